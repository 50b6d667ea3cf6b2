"""How Spark commits on S3: Delta's log store with conditional PUTs, compiled once."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

#: The setting of Spark that names the log store of `s3a://`, and ours, in place of Delta's own.
LOG_STORE = "spark.delta.logStore.s3a.impl"
LOG_STORE_CLASS = "backfill_assets.ConditionalLogStore"
_SOURCE = Path(__file__).with_name("ConditionalLogStore.java")
#: Of the class, so that the jar is the same on each Java that Spark runs on.
_JAVA = 8


def log_store_jar(cache: Path) -> Path:
    """Where the jar of this source is, or is to be."""
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()
    return cache / f"log-store-{source[:12]}" / "conditional-log-store.jar"


def build_log_store(cache: Path, delta: Sequence[Path]) -> Path:
    """Compile the log store, unless that is done, with the compiler that is part of Spark.

    So no Java development kit is needed.

    Args:
        cache: the folder of the jars.
        delta: Delta's jars, which have the class that is extended.
    """
    jar = log_store_jar(cache)
    if not jar.exists():
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            ready = Path(scratch, jar.name)
            with ZipFile(ready, "w", ZIP_STORED) as archive:
                for name, content in _compiled(delta).items():
                    # With a date of its own, the jar would be another each time.
                    entry = ZipInfo(f"{name.replace('.', '/')}.class", (1980, 1, 1, 0, 0, 0))
                    archive.writestr(entry, content)
            ready.replace(jar)
    return jar


def _compiled(delta: Sequence[Path]) -> dict[str, bytes]:
    """The classes of the source by name, compiled in a JVM that ends with this."""
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    try:
        jvm = gateway.jvm
        urls = gateway.new_array(jvm.java.net.URL, len(delta))
        for n, jar in enumerate(delta):
            urls[n] = jvm.java.io.File(str(jar)).toURI().toURL()
        spark = jvm.Thread.currentThread().getContextClassLoader()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(_JAVA)
        compiler.setParentClassLoader(jvm.java.net.URLClassLoader(urls, spark))
        compiler.cook(_SOURCE.read_text())
        return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
