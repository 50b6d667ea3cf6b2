"""What Spark needs on a machine before a session can start: Java, Delta's jars, and one more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backfill_assets.engine.environment import (
    environment_problem,
    jvm_environment,
    jvm_options,
    spark_home,
)
from backfill_assets.engine.known_jars import unknown_jars
from backfill_assets.engine.log_store import LOG_STORE, LOG_STORE_SOURCE
from backfill_assets.engine.task_times import with_task_times

_SCALA = "2.13"
_JAVA = (17, 21)
# What Delta's pom names besides its own jars is in Spark's distribution already, and newer there.
_IN_SPARK_ALREADY = (
    "org.apache.*:*,com.fasterxml*:*,com.google*:*,com.github*:*,io.airlift:*,io.unitycatalog:*,"
    "org.xerial*:*,org.locationtech*:*,org.roaringbitmap:*,commons*:*,org.slf4j:*,javax*:*"
)
#: Without its native library, Hadoop starts a process (`chmod`) for each file and folder that it
#: makes on a local disk: a small file took 7 ms, and takes 2 with this library.
_LOCAL_FILES = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
_LOCAL_FILES_CLASS = "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem"
#: The setting of a session whose JVM has that class, and Hadoop's own class of the kind. Neither
#: keeps files with checksums, which take a fifth of the time to write a small one.
LOCAL_FILES = "spark.backfill_assets.localFiles"
RAW_LOCAL_FILES = "org.apache.hadoop.fs.RawLocalFileSystem"
#: Hadoop's file system for S3, of the Hadoop that is in Spark, and what it uses of Amazon's SDK: 13
#: MB. Hadoop itself asks for all services of Amazon in one jar of 690 MB.
_SDK = ("s3", "s3-transfer-manager", "sts", "sso")
_S3 = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in _SDK),
    "software.amazon.eventstream:eventstream:1.0.1",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    "org.reactivestreams:reactive-streams:1.0.4",
)
_NOT_FOR_S3 = (
    "software.amazon.awssdk:bundle,org.wildfly*:*,io.netty:*,org.apache.httpcomponents*:*,"
    "commons*:*,org.slf4j:*"
)


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
        EngineError: there is no Java, or one that this Spark does not run on, or an environment
            that no JVM of Spark's can do with.
    """
    if problem := environment_problem():
        raise EngineError(problem)
    wanted = " or ".join(map(str, _JAVA))
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise EngineError(
            f"Spark needs Java {wanted} and there is none {where}: install it "
            "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
        )
    command = [java, "-XshowSettings:properties", "-version"]
    environment = jvm_environment("local")
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    found = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    if result.returncode and (options := jvm_options()):
        raise EngineError(
            f"{java} does not start with the options in {' and '.join(options)} "
            f"({_last_words(result.stderr)}): mend or unset the variable."
        )
    if found is None or int(found[1]) < _JAVA[0]:
        what = f"Java {found[1]}" if found else "not a working Java"
        raise EngineError(
            f"Spark needs Java {wanted} and {java} is {what}: set JAVA_HOME to a newer one."
        )
    encoding = re.search(r"sun\.jnu\.encoding = (\S+)", result.stderr)
    if encoding and encoding[1].upper() != "UTF-8":
        raise EngineError(
            f"{java} takes names of files as {encoding[1]}, and they are UTF-8: install the locale "
            f"{environment['LC_ALL']}, which the engine is started with."
        )


def delta_jars(cache: Path) -> list[Path]:
    """The Delta jars in the cache; empty while they have not been downloaded."""
    return _downloaded(cache, delta_coordinate())


def s3_jars(cache: Path) -> list[Path]:
    """The jars for S3 in the cache; empty while they have not all been downloaded and built."""
    found, store = _downloaded(cache, _S3[0]), LOG_STORE_SOURCE.jar_in(cache)
    return [*found, store] if found and store.exists() else []


def with_jars(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """A session's configuration with the jars that are in the cache, and the deployment's own.

    Args:
        config: of a JVM that is to start; its `spark.jars`, if any, are added to ours.
        cache: the folder of the jars.
    """
    # Delta's alone will do, copied there by hand; and without them the others are of no use.
    ours = delta_jars(cache)
    if ours:
        ours += _downloaded(cache, _LOCAL_FILES)
    if LOG_STORE in config:
        ours += s3_jars(cache)
    jars = dict.fromkeys([*map(str, ours), *filter(None, config.get("spark.jars", "").split(","))])
    known = {**config, "spark.jars": ",".join(jars)}
    has = any(_LOCAL_FILES.split(":")[1] in jar for jar in jars)
    known = {**known, LOCAL_FILES: _LOCAL_FILES_CLASS} if has else known
    return with_task_times(known, cache) if ours else known


def refuse_unknown_jars(config: Mapping[str, Any], cache: Path) -> None:
    """Refuse a session that would load jars from the cache that are not the published ones.

    Args:
        config: its configuration. A user's own jars, which lie elsewhere, are the user's affair.
        cache: the folder of the Delta jars.

    Raises:
        EngineError: naming the jars; nothing was started.
    """
    paths = [Path(path) for path in config.get("spark.jars", "").split(",") if path]
    if unknown := unknown_jars(path for path in paths if cache in path.parents):
        raise EngineError(
            f"{', '.join(map(str, unknown))}: not one of the jars that this version was made with "
            "(their SHA-256 says so): a broken download, or somebody changed it. Remove it and run "
            "backfill-assets jars, which makes it anew. Nothing was started."
        )


def fetch_delta_jars(cache: Path) -> list[Path]:
    """Download the Delta jars into the cache, once; later sessions need no resolution.

    And a library that makes writing local files quicker, if it can be had.

    Raises:
        EngineError: there is no Java, or the registry cannot be reached, or it sent other jars.
    """
    if not delta_jars(cache):
        _fetch("the Delta jars", [delta_coordinate()], cache)
    if find_java() and not _folder(cache, _LOCAL_FILES).exists():
        _download([_LOCAL_FILES], cache, _IN_SPARK_ALREADY)
    return delta_jars(cache)


def fetch_s3_jars(cache: Path) -> list[Path]:
    """Download the jars of S3's file system into the cache and build the log store, once.

    Delta's jars are there already: the log store extends a class of theirs.

    Raises:
        EngineError: there is no Java, or the registry cannot be reached.
    """
    if not _downloaded(cache, _S3[0]):
        _fetch("the jars of s3a://", _S3, cache, _NOT_FOR_S3)
    LOG_STORE_SOURCE.build(cache, delta_jars(cache))
    return s3_jars(cache)


def _fetch(
    what: str, coordinates: Sequence[str], cache: Path, without: str = _IN_SPARK_ALREADY
) -> None:
    check_java()
    said = _download(coordinates, cache, without)
    if not _downloaded(cache, coordinates[0]):
        raise EngineError(
            f"{what} ({coordinates[0]}) could not be downloaded: check that this machine reaches "
            "Maven Central (or the mirror in DEFAULT_ARTIFACT_REPOSITORY), or copy the jars of a "
            f"machine that does into {_folder(cache, coordinates[0])}. "
            f"Last words: {_last_words(said)}"
        )


def _download(coordinates: Sequence[str], cache: Path, without: str) -> str:
    """Try to download artifacts, and what they need of their own kinds, and say what was said.

    The jars appear under their final name all at once, so a broken download is never used.

    Args:
        coordinates: the artifacts; the folder is named for the first.
        cache: the folder of the jars.
        without: what is not to be downloaded with them.
    """
    cache.mkdir(parents=True, exist_ok=True)
    kinds = tuple({coordinate.split(":")[0] for coordinate in coordinates})
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [
            str(spark_home() / "bin" / "spark-submit"),
            *("--packages", ",".join(coordinates), "--exclude-packages", without),
            *("--conf", f"spark.jars.ivy={scratch}/ivy", "--master", "local[1]"),
            *("--class", "org.apache.spark.deploy.PythonRunner", "spark-internal"),
        ]
        # Resolution comes before the main class, which has nothing to run and fails: the jars tell.
        environment = jvm_environment("local[1]")
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        found = Path(scratch, "ivy", "jars").glob("*.jar")
        jars = [jar for jar in found if jar.name.startswith(kinds)]
        if unknown := unknown_jars(jars):
            raise EngineError(
                f"{', '.join(jar.name for jar in unknown)}, as downloaded for {coordinates[0]}, is "
                "not what Maven Central has (another SHA-256): look at the mirror or proxy that "
                "DEFAULT_ARTIFACT_REPOSITORY names. Nothing was kept of it."
            )
        ready = Path(scratch, "ready")
        ready.mkdir()
        for jar in jars:
            shutil.move(jar, ready / jar.name)
        if jars:
            with suppress(OSError):  # another process was first
                ready.rename(_folder(cache, coordinates[0]))
    return done.stderr


def _downloaded(cache: Path, coordinate: str) -> list[Path]:
    return sorted(_folder(cache, coordinate).glob("*.jar"))


def _folder(cache: Path, coordinate: str) -> Path:
    return cache / coordinate.replace(":", "_")


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [x for x in lines if "unresolved" in x.lower() or "exception" in x.lower()]
    return (telling or lines or ["none"])[-1][:300]
