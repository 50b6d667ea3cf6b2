"""The Java and the jars that Spark needs before a session starts: Delta's, and those of stores."""

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
from xml.sax.saxutils import quoteattr

from backfill_assets.spark import processes
from backfill_assets.spark.known_jars import unknown_jars
from backfill_assets.spark.stores import ObjectStore, configured_store_types
from backfill_assets.spark.tasks import with_task_times

_SCALA_VERSION = "2.13"
_JAVA_VERSIONS = (17, 21)
# Other dependencies in Delta's pom; Spark's distribution has newer versions of them.
_SPARK_EXCLUDES = (
    "org.apache.*:*,com.fasterxml*:*,com.google*:*,com.github*:*,io.airlift:*,io.unitycatalog:*,"
    "org.xerial*:*,org.locationtech*:*,org.roaringbitmap:*,commons*:*,org.slf4j:*,javax*:*"
)
#: Without its native library, Hadoop starts a process (`chmod`) for each file and folder that it
#: creates on a local disk: a small file took 7 ms, and takes 2 with this library.
_LOCAL_FILES = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
_LOCAL_FILES_CLASS = "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem"
#: The setting that says that the JVM has that class, and the class of Hadoop that it replaces.
#: Neither writes checksum files, which would take a fifth of the time of a small file.
LOCAL_FILES_SETTING = "spark.backfill_assets.localFiles"
RAW_LOCAL_FILES_CLASS = "org.apache.hadoop.fs.RawLocalFileSystem"


class EngineError(RuntimeError):
    """No Spark session can be started or reached; the message is one sentence with the fix."""


def delta_coordinate() -> str:
    """Maven coordinate of the Delta artifact for the installed pyspark and delta-spark."""
    minor = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{minor}_{_SCALA_VERSION}:{version('delta-spark')}"


def find_java() -> str | None:
    """The Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java")


def check_java() -> None:
    """Raise early what would otherwise fail as `JAVA_GATEWAY_EXITED`.

    Raises:
        EngineError: no Java, one that this Spark does not run on, or an environment in which no JVM
            of Spark can start.
    """
    if problem := processes.environment_problem():
        raise EngineError(problem)
    versions = " or ".join(map(str, _JAVA_VERSIONS))
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise EngineError(
            f"Spark needs Java {versions} and there is none {where}: install it "
            "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
        )
    command = [java, "-XshowSettings:properties", "-version"]
    environment = processes.jvm_environment("local")
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    version_match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    if result.returncode and (options := processes.jvm_options()):
        raise EngineError(
            f"{java} does not start with the options in {' and '.join(options)} "
            f"({_error_summary(result.stderr)}): mend or unset the variable."
        )
    if version_match is None or int(version_match[1]) < _JAVA_VERSIONS[0]:
        description = f"Java {version_match[1]}" if version_match else "not a working Java"
        raise EngineError(
            f"Spark needs Java {versions} and {java} is {description}: set JAVA_HOME to a newer "
            "one."
        )
    encoding = re.search(r"sun\.jnu\.encoding = (\S+)", result.stderr)
    if encoding and encoding[1].upper() != "UTF-8":
        raise EngineError(
            f"{java} takes names of files as {encoding[1]}, and they are UTF-8: install the locale "
            f"{environment['LC_ALL']}, which the engine is started with."
        )


def delta_jars(cache: Path) -> list[Path]:
    """The Delta jars in the cache; empty if not downloaded."""
    return _cached_jars(cache, delta_coordinate())


def store_jars(cache: Path, store: type[ObjectStore]) -> list[Path]:
    """The jars for an object store in the cache; empty unless all are downloaded and built."""
    client_jars = _cached_jars(cache, store.packages.coordinates[0])
    log_store_jars = [store.log_store_source.jar_in(cache)] if store.log_store_source else []
    is_complete = client_jars and all(jar.exists() for jar in log_store_jars)
    return [*client_jars, *log_store_jars] if is_complete else []


def with_jars(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """A session's configuration with the jars of the cache, and its own `spark.jars`."""
    # Delta's alone are enough, copied there by hand; without them the others are useless.
    package_jars = delta_jars(cache)
    if package_jars:
        package_jars += _cached_jars(cache, _LOCAL_FILES)
    for store in configured_store_types(config):
        package_jars += store_jars(cache, store)
    jars = dict.fromkeys(
        [*map(str, package_jars), *filter(None, config.get("spark.jars", "").split(","))]
    )
    merged = {**config, "spark.jars": ",".join(jars)}
    has_local_files = any(_LOCAL_FILES.split(":")[1] in jar for jar in jars)
    merged = {**merged, LOCAL_FILES_SETTING: _LOCAL_FILES_CLASS} if has_local_files else merged
    return with_task_times(merged, cache) if package_jars else merged


def raise_if_unknown_jars(config: Mapping[str, Any], cache: Path) -> None:
    """Raise if a session would load jars from the cache that are not the published ones.

    A user's own jars, in other folders, are not checked.

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
    """Download the Delta jars into the cache, once.

    And, if possible, a library that makes writing local files faster.

    Raises:
        EngineError: no Java, the registry cannot be reached, or it sent other jars.
    """
    if not delta_jars(cache):
        _fetch_jars("the Delta jars", [delta_coordinate()], cache)
    if find_java() and not _jar_folder(cache, _LOCAL_FILES).exists():
        _download_jars([_LOCAL_FILES], cache, _SPARK_EXCLUDES)
    return delta_jars(cache)


def fetch_store_jars(cache: Path, store: type[ObjectStore]) -> list[Path]:
    """Download the jars for an object store into the cache and build its log store, once.

    Needs Delta's jars: the log store extends one of their classes.

    Raises:
        EngineError: no Java, or the registry cannot be reached.
    """
    coordinates, excludes, classifier = store.packages
    if not _cached_jars(cache, coordinates[0]):
        _fetch_jars(f"the jars of {store.schemes[0]}://", coordinates, cache, excludes, classifier)
    if store.log_store_source:
        store.log_store_source.build_jar(cache, delta_jars(cache))
    return store_jars(cache, store)


def _fetch_jars(
    label: str,
    coordinates: Sequence[str],
    cache: Path,
    excludes: str = _SPARK_EXCLUDES,
    classifier: str = "",
) -> None:
    """Download jars; raise if the first one is missing afterwards. `label` is for the message."""
    check_java()
    output = _download_jars(coordinates, cache, excludes, classifier)
    if not _cached_jars(cache, coordinates[0]):
        raise EngineError(
            f"{label} ({coordinates[0]}) could not be downloaded: check that this machine reaches "
            "Maven Central (or the mirror in DEFAULT_ARTIFACT_REPOSITORY), or copy the jars of a "
            f"machine that does into {_jar_folder(cache, coordinates[0])}. "
            f"Last words: {_error_summary(output)}"
        )


#: Ivy's settings for jars with a classifier, which a coordinate of Spark cannot have. Such a jar
#: contains its dependencies, so no POM is read.
_CLASSIFIER_SETTINGS = """<ivysettings><settings defaultResolver="maven"/><resolvers>
<ibiblio name="maven" m2compatible="true" usepoms="false"{root}
pattern="[organisation]/[module]/[revision]/[artifact]-[revision]-{classifier}.[ext]"/>
</resolvers></ivysettings>"""


def _classifier_options(classifier: str, folder: str) -> list[str]:
    """The options of spark-submit for jars with a classifier; none if it is empty."""
    if not classifier:
        return []
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    root = f" root={quoteattr(mirror)}" if mirror else ""
    path = Path(folder, "ivysettings.xml")
    path.write_text(_CLASSIFIER_SETTINGS.format(root=root, classifier=classifier))
    return ["--conf", f"spark.jars.ivySettings={path}"]


def _download_jars(
    coordinates: Sequence[str], cache: Path, excludes: str, classifier: str = ""
) -> str:
    """Try to download artifacts with their dependencies, and return the error output.

    The jars appear all at once in a folder named for the first artifact, so a broken download is
    never used.
    """
    cache.mkdir(parents=True, exist_ok=True)
    groups = tuple({coordinate.split(":")[0] for coordinate in coordinates})
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [
            str(processes.spark_home() / "bin" / "spark-submit"),
            *("--packages", ",".join(coordinates), "--exclude-packages", excludes),
            *_classifier_options(classifier, scratch),
            *("--conf", f"spark.jars.ivy={scratch}/ivy", "--master", "local[1]"),
            *("--class", "org.apache.spark.deploy.PythonRunner", "spark-internal"),
        ]
        # Resolution comes before the main class, which is missing and fails: success shows in the
        # jars.
        environment = processes.jvm_environment("local[1]")
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        jar_paths = Path(scratch, "ivy", "jars").glob("*.jar")
        jars = [jar for jar in jar_paths if jar.name.startswith(groups)]
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
                ready.rename(_jar_folder(cache, coordinates[0]))
    return result.stderr


def _cached_jars(cache: Path, coordinate: str) -> list[Path]:
    return sorted(_jar_folder(cache, coordinate).glob("*.jar"))


def _jar_folder(cache: Path, coordinate: str) -> Path:
    return cache / coordinate.replace(":", "_")


def _error_summary(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    relevant = [
        entry for entry in lines if "unresolved" in entry.lower() or "exception" in entry.lower()
    ]
    return (relevant or lines or ["none"])[-1][:300]
