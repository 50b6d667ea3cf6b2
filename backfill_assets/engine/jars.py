"""What Spark needs on a machine before a session can start: Java, and jars, Delta's above all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

_SCALA = "2.13"
_JAVA = (17, 21)
# What Delta's pom names besides its own jars is in Spark's distribution already, and newer there.
_IN_SPARK_ALREADY = (
    "org.apache.*:*,com.fasterxml*:*,com.google*:*,com.github*:*,io.airlift:*,io.unitycatalog:*,org.xerial*:*,org.locationtech*:*,"
    "org.roaringbitmap:*,commons*:*,org.slf4j:*,javax*:*"
)
#: For each file and folder that it makes, Hadoop's own class for local files starts a process, to
#: set what may be done with it: a small file took 7 ms, and with this library takes 2.
_LOCAL_FILES = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
_LOCAL_FILES_CLASS = "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem"
#: The setting of a session whose JVM has that class, and the class that it has otherwise. Of local
#: files as such: no checksums are kept beside them, which take a fifth of the time of a small one.
LOCAL_FILES = "spark.backfill_assets.localFiles"
RAW_LOCAL_FILES = "org.apache.hadoop.fs.RawLocalFileSystem"


class EngineError(RuntimeError):
    """No Spark session can be had here; the message is one sentence with the fix."""


def delta_coordinate() -> str:
    """Maven coordinate of the Delta artifact for the installed pyspark and delta-spark."""
    minor = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{minor}_{_SCALA}:{version('delta-spark')}"


def find_java() -> str | None:
    """The Java that Spark would start; none if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java")


def check_java() -> None:
    """Refuse early what would otherwise end as `JAVA_GATEWAY_EXITED`.

    Raises:
        EngineError: there is no Java, or one that this Spark does not run on.
    """
    wanted = " or ".join(map(str, _JAVA))
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise EngineError(
            f"Spark needs Java {wanted} and there is none {where}: install it "
            "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < _JAVA[0]:
        what = f"Java {found[1]}" if found else "not a working Java"
        raise EngineError(
            f"Spark needs Java {wanted} and {java} is {what}: set JAVA_HOME to a newer one."
        )


def delta_jars(cache: Path) -> list[Path]:
    """The Delta jars in the cache; empty while they have not been downloaded."""
    return sorted(_jar_folder(cache).glob("*.jar"))


def with_jars(jars: Sequence[Path]) -> dict[str, str]:
    """The settings of a session that has these jars."""
    found = {"spark.jars": ",".join(map(str, jars))}
    if any(_LOCAL_FILES.split(":")[1] in jar.name for jar in jars):
        found[LOCAL_FILES] = _LOCAL_FILES_CLASS
    return found


def fetch_delta_jars(cache: Path) -> list[Path]:
    """Download the Delta jars into the cache, once; later sessions need no resolution.

    With them comes a library that writes local files without a process for each.

    Raises:
        EngineError: there is no Java, or the registry cannot be reached.
    """
    if found := delta_jars(cache):
        return found
    check_java()
    folder = _jar_folder(cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The jars appear under their final name all at once, so a broken download is never used.
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [
            str(spark_home() / "bin" / "spark-submit"),
            *("--packages", f"{delta_coordinate()},{_LOCAL_FILES}"),
            *("--exclude-packages", _IN_SPARK_ALREADY),
            *("--conf", f"spark.jars.ivy={scratch}/ivy", "--master", "local[1]"),
            *("--class", "org.apache.spark.deploy.PythonRunner", "spark-internal"),
        ]
        # Resolution comes before the main class, which has nothing to run and fails: the jars tell.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        resolved = Path(scratch, "ivy", "jars")
        jars = [*resolved.glob("io.delta_*.jar")]
        if not jars:
            raise EngineError(
                f"the Delta jars ({delta_coordinate()}) could not be downloaded: check that this "
                "machine reaches Maven Central (or the mirror that your Ivy settings name), or "
                f"copy the io.delta jars of a machine that does into {folder}. "
                f"Last words: {_last_words(done.stderr)}"
            )
        ready = Path(scratch, "ready")
        ready.mkdir()
        for jar in (*jars, *resolved.glob(f"{_LOCAL_FILES.split(':')[0]}_*.jar")):
            shutil.move(jar, ready / jar.name)
        try:
            ready.rename(folder)
        except OSError:  # another process was first
            if not delta_jars(cache):
                raise
    return delta_jars(cache)


def _jar_folder(cache: Path) -> Path:
    return cache / "_".join(delta_coordinate().split(":") + _LOCAL_FILES.split(":")[1:])


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [x for x in lines if "unresolved" in x.lower() or "exception" in x.lower()]
    return (telling or lines or ["none"])[-1][:300]


def spark_home() -> Path:
    """The folder of Spark's distribution, which is that of the Python package."""
    import pyspark

    return Path(pyspark.__path__[0])
