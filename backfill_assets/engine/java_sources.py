"""The Java sources of this package, each compiled once into a jar beside those of Delta."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from backfill_assets.engine.environment import use_jvm_environment

#: Of the classes, so that a jar is the same on each Java that Spark runs on.
_TARGET_JAVA = 8


@dataclass(frozen=True)
class JavaSource:
    """A source file, and the jar of its classes.

    Attributes:
        file: the name of the source, which lies beside this module.
        jar: the name of the jar.
    """

    file: str
    jar: str

    def jar_in(self, cache: Path) -> Path:
        """Where the jar of this source is, or is to be.

        Args:
            cache: the folder of the jars.
        """
        digest = hashlib.sha256(self._source_path.read_bytes()).hexdigest()
        return cache / f"{Path(self.jar).stem}-{digest[:12]}" / self.jar

    def build_jar(self, cache: Path, libraries: Sequence[Path] = ()) -> Path:
        """Compile the source, unless that is done, with the compiler that is part of Spark.

        So no Java development kit is needed.

        Args:
            cache: the folder of the jars.
            libraries: jars with classes that it uses, besides Spark's own.
        """
        jar = self.jar_in(cache)
        if not jar.exists():
            jar.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                new_jar = Path(scratch, jar.name)
                with ZipFile(new_jar, "w", ZIP_STORED) as archive:
                    for name, content in sorted(
                        compiled(self._source_path.read_text(), libraries).items()
                    ):
                        # With a date of its own, the jar would be another each time.
                        entry = ZipInfo(f"{name.replace('.', '/')}.class", (1980, 1, 1, 0, 0, 0))
                        archive.writestr(entry, content)
                new_jar.replace(jar)
        return jar

    @property
    def _source_path(self) -> Path:
        return Path(__file__).with_name(self.file)


def compiled(source: str, libraries: Sequence[Path]) -> dict[str, bytes]:
    """The classes of a source by name, compiled in a JVM that ends with this.

    Args:
        source: the text.
        libraries: jars with classes that it uses, besides Spark's own.
    """
    from pyspark.java_gateway import launch_gateway

    with use_jvm_environment("local"):
        gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    try:
        jvm = gateway.jvm
        urls = gateway.new_array(jvm.java.net.URL, len(libraries))
        for index, jar in enumerate(libraries):
            urls[index] = jvm.java.io.File(str(jar)).toURI().toURL()
        spark = jvm.Thread.currentThread().getContextClassLoader()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(_TARGET_JAVA)
        compiler.setParentClassLoader(jvm.java.net.URLClassLoader(urls, spark))
        compiler.cook(source)
        return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
