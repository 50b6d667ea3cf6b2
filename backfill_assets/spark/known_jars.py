"""The jars that a session may load: their SHA-256, and the sources of those built here."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from backfill_assets.spark.processes import use_jvm_environment

_LIST = Path(__file__).with_suffix(".sha256")
#: By name, the SHA-256 of each jar. The content decides: a copy made by hand may have another name.
#: For a new version: the SHA-256 of the downloaded jars, after comparing their SHA-1 with those
#: beside the jars at Maven Central (or their signatures).
SHA256 = {
    name: digest
    for digest, name in (line.split() for line in _LIST.read_text().splitlines() if line[0] != "#")
}


def unknown_jars(jars: Iterable[Path]) -> list[Path]:
    """The jars whose content is not one of the known ones."""
    known = set(SHA256.values())
    return [jar for jar in jars if hashlib.sha256(jar.read_bytes()).hexdigest() not in known]


#: The target version of the classes, so that a jar is the same on each Java that Spark runs on.
_TARGET_JAVA = 8


@dataclass(frozen=True)
class JavaSource:
    """A Java source file in this module's folder, and the name of the jar of its classes."""

    file: str
    jar: str

    def jar_in(self, cache: Path) -> Path:
        """The path of this source's jar in the jar cache, built or not."""
        digest = hashlib.sha256(self._source_path.read_bytes()).hexdigest()
        return cache / f"{Path(self.jar).stem}-{digest[:12]}" / self.jar

    def build_jar(self, cache: Path, libraries: Sequence[Path] = ()) -> Path:
        """Compile the source, unless that is done, with the compiler that is part of Spark.

        So no Java development kit is needed. The classpath is Spark's, and the libraries.
        """
        jar = self.jar_in(cache)
        if not jar.exists():
            jar.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                new_jar = Path(scratch, jar.name)
                with ZipFile(new_jar, "w", ZIP_STORED) as archive:
                    for name, content in sorted(
                        compile_source(self._source_path.read_text(), libraries).items()
                    ):
                        # A current date would change the jar each time.
                        entry = ZipInfo(f"{name.replace('.', '/')}.class", (1980, 1, 1, 0, 0, 0))
                        archive.writestr(entry, content)
                new_jar.replace(jar)
        return jar

    @property
    def _source_path(self) -> Path:
        return Path(__file__).with_name(self.file)


def compile_source(source: str, libraries: Sequence[Path]) -> dict[str, bytes]:
    """The classes of a source by name, compiled against Spark and libraries in a JVM of its own."""
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
