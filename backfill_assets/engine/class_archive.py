"""The engine's classes in one file, which the JVM maps at its start: class-data sharing.

Without it, a new JVM reads and verifies some 15,000 classes: about 4 seconds of each start.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from backfill_assets.engine.environment import jvm_environment, spark_home
from backfill_assets.engine.jars import find_java

_ARCHIVE_PREFIX = "classes-"
#: Beside an archive: the folder of the Spark that it is for.
_SPARK_HOME_FILE = "spark_home"
#: Seconds; it is a matter of 20.
_ARCHIVE_TIMEOUT = 300
# An archive that does not fit (other jars on the class path) is passed over, and that is all.
_SHARING_OPTIONS = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def class_archive_path(cache: Path) -> Path | None:
    """Where the archive for this Java and this Spark lies or is to lie; none if there can be none.

    Args:
        cache: the folder of the Delta jars.
    """
    java = find_java()
    # Spark cuts the options of a JVM at each space.
    if java is None or " " in str(cache):
        return None
    java_binary = Path(java).resolve()
    # Rewritten by every update of Java, whose JVM refuses the archive of another. It refuses that
    # of other jars as well, and the same ones elsewhere are others.
    modules = java_binary.parent.parent / "lib" / "modules"
    stamp = modules.stat().st_mtime_ns if modules.exists() else 0
    jars = max(jar.stat().st_mtime_ns for jar in (spark_home() / "jars").glob("*.jar"))
    fingerprint = f"{java_binary} {stamp} {spark_home()} {jars}"
    key = hashlib.sha256(fingerprint.encode()).hexdigest()[:12]
    return cache / f"{_ARCHIVE_PREFIX}{key}" / "classes.jsa"


def with_class_archive(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Spark's configuration, with the archive if there is one.

    Args:
        config: of a driver whose JVM is to start.
        cache: the folder of the Delta jars.
    """
    archive = class_archive_path(cache)
    if archive is None or not archive.exists():
        return dict(config)
    options = f"{config.get(_JAVA_OPTIONS, '')} -XX:SharedArchiveFile={archive} {_SHARING_OPTIONS}"
    return {**config, _JAVA_OPTIONS: options.strip()}


def make_class_archive(cache: Path) -> bool:
    """Make the archive unless there is one, which takes some 20 seconds.

    Returns:
        Whether there is one now; a JVM starts without one as well.
    """
    archive = class_archive_path(cache)
    if archive is None or archive.exists():
        return archive is not None
    # Somebody else may be first, or the folder not be ours to write to.
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        # It appears under its final name all at once, so half of one is never used.
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            ready = Path(scratch, "ready")
            ready.mkdir()
            (ready / _SPARK_HOME_FILE).write_text(str(spark_home()))
            command = [sys.executable, "-m", __name__, str(ready / archive.name), scratch]
            with suppress(subprocess.SubprocessError):
                subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    cwd=scratch,
                    env=jvm_environment("local"),
                    timeout=_ARCHIVE_TIMEOUT,
                )
                ready.rename(archive.parent)
                _remove_old_archives(cache, archive.parent)
    return archive.exists()


def _remove_old_archives(cache: Path, new_folder: Path) -> None:
    """Remove the archives of a Spark that is gone, and older ones of this: 180 MB each."""
    for marker in cache.glob(f"{_ARCHIVE_PREFIX}*/{_SPARK_HOME_FILE}"):
        home = marker.read_text()
        if marker.parent != new_folder and (home == str(spark_home()) or not Path(home).exists()):
            shutil.rmtree(marker.parent, ignore_errors=True)


def _record_classes(archive: Path, scratch: Path) -> None:
    """Have a JVM load what most runs use, and write its classes to an archive at its end."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.host", "localhost")
    spark = builder.config(_JAVA_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}").getOrCreate()
    rows = spark.range(100).withColumn("day", F.col("id") % 3)
    by_day = rows.groupBy("day").agg(F.sum("id").alias("total"), F.max("id"), F.xxhash64("day"))
    rows.join(by_day, "day").select(F.to_json(F.struct("id", "day"))).write.text(f"{scratch}/json")
    lines = spark.read.text(f"{scratch}/json").withColumn("at", F.input_file_name())
    parsed = lines.select(F.from_json("value", "id LONG, day INT").alias("of"), "at")
    records = parsed.select("of.*", "at").persist()
    records.groupBy("at").count().collect()
    records.write.partitionBy("day").parquet(f"{scratch}/parquet")
    spark.read.parquet(f"{scratch}/parquet").groupBy("day").agg(F.collect_list("id")).collect()
    jvm: Any = SparkContext._gateway  # noqa: SLF001 - only this knows the process
    spark.stop()
    # The JVM writes the archive when its input ends, and this must not end before it has.
    jvm.proc.stdin.close()
    if status := jvm.proc.wait():
        raise SystemExit(status)


if __name__ == "__main__":
    _record_classes(Path(sys.argv[1]), Path(sys.argv[2]))
