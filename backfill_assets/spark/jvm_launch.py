"""How a Spark JVM is started: settings in private files, a local folder, and a class archive.

Settings are not passed as arguments, which all users of the machine can read. The local folder is
not in /tmp, where a cleaner could remove files of a running engine. Without the class archive, a
JVM reads and verifies some 15,000 classes: about 4 seconds of each start.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

from py4j.java_gateway import JavaClass, JavaMember, JVMView  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from backfill_assets.spark.jars import find_java
from backfill_assets.spark.processes import SUBMIT_ARGS_VARIABLE, jvm_environment, spark_home

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Seconds to wait for the output of a JVM that has ended.
_LAST_WORDS = 5.0
_STDERR = 2


def submit_options(config: Mapping[str, Any], folder: Path) -> list[str]:
    """The options of `spark-submit` for settings that are written to private files in the folder.

    The files are read at each start of the command.
    """
    settings = {name: str(value) for name, value in config.items()}
    if options := shlex.split(settings.get(_JAVA_OPTIONS, "")):
        # Java also reads its arguments from a file, and needs quotes around those with spaces.
        quoted = (json.dumps(option, ensure_ascii=False) for option in options)
        file = _write_private(folder / "java.options", "\n".join(quoted))
        settings[_JAVA_OPTIONS] = f'"@{file}"'
    lines = (
        f"{_escape_property(name)}={_escape_property(value)}" for name, value in settings.items()
    )
    file = _write_private(folder / "spark.properties", "\n".join(lines))
    # With its own properties file, Spark ignores any spark-defaults.conf.
    return ["--properties-file", str(file)]


def start_driver(config: Mapping[str, Any]) -> None:
    """Start the JVM of this process's embedded sessions, unless it runs.

    The caller has set the JVM's environment, see `use_jvm_environment`.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - only this tells
        return
    with tempfile.TemporaryDirectory() as folder:
        options = shlex.join(submit_options(config, Path(folder)))
        os.environ[SUBMIT_ARGS_VARIABLE] = f"{options} pyspark-shell"
        with _copied_output() as pipe:
            # When it returns, the JVM has read the files.
            gateway = launch_gateway(popen_kwargs={"stdout": pipe, "stderr": pipe})
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as above
    keep_java_names()


@contextmanager
def _copied_output() -> Iterator[int]:
    """The end of a pipe; what is written into it appears as this process's own errors.

    While Dagster does a run, it has the output of the process in the log of that run. A JVM that
    had the file of the first run itself would write to it during all later ones.
    """
    output, pipe = os.pipe()
    thread = Thread(target=_copy_output, args=(output,), name="output of the JVM", daemon=True)
    thread.start()
    try:
        yield pipe
    except BaseException:
        os.close(pipe)
        thread.join(_LAST_WORDS)  # why it has ended
        raise
    os.close(pipe)


def _copy_output(output: int) -> None:
    with suppress(OSError):  # this process has closed its output
        while text := os.read(output, 1 << 16):
            os.write(_STDERR, text)


@cache
def keep_java_names() -> None:
    """Look up each Java class and static method once in this process, not at each call.

    PySpark names them at each call, as in `jvm.functions.col(name)`. Py4J asks the JVM for each of
    the names, and the JVM looks for some of them in all jars: a third of what a step sends.
    """
    for owner, named in ((JVMView, JavaClass), (JavaClass, JavaMember)):
        owner.__getattr__ = _keep_answers(owner.__getattr__, named)


def _keep_answers(ask: Callable[[Any, str], Any], kept: type) -> Callable[[Any, str], Any]:
    """A `__getattr__` whose answers of that type become attributes: it is not asked again."""

    def answer(owner: Any, name: str) -> Any:
        value = ask(owner, name)
        if isinstance(value, kept):
            setattr(owner, name, value)
        return value

    return answer


def _write_private(file: Path, text: str) -> Path:
    """Write a file that only its owner can read, from its first byte on."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(f"{text}\n".encode())
    return file


def _escape_property(text: str) -> str:
    """Escape a text for `java.util.Properties`."""
    return "".join(f"\\u{ord(c):04x}" if c in "\\=:#! \t\n\r\f" else c for c in text)


_LOCAL_DIR = "spark.local.dir"
_TMPDIR_OPTION = "-Djava.io.tmpdir="


class ScratchDir:
    """The private local folder of one engine, until the process that created it ends."""

    def __init__(self, home: Path) -> None:
        """Create the folder in DAGSTER_HOME/scratch, and remove the folders of dead engines."""
        self._root = home.resolve() / "scratch"
        self.folder = self._root / f"engine-{uuid4().hex}"
        self._lock: int | None = None
        self.recreate()

    def recreate(self) -> None:
        """Empty the folder for the next engine, or create it again if it was removed."""
        self._root.mkdir(parents=True, exist_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        with _lock_folder(self._root):  # a new folder, not yet locked, must not look abandoned
            for old_folder in self._root.iterdir():
                with suppress(OSError), _lock_folder(old_folder, wait=False):
                    shutil.rmtree(old_folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            # The lock ends with the process, even if that is killed.
            self._lock = os.open(self.folder, os.O_RDONLY)
            with suppress(OSError):  # without file locks, no folder looks abandoned
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._known_blocks: set[Path] = set()

    def with_local_dir(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Spark's configuration, with this folder for temporary files unless it names its own."""
        options = config.get(_JAVA_OPTIONS, "")
        # Spark splits the options of a JVM at each space.
        if _TMPDIR_OPTION not in options and " " not in str(self.folder):
            options = f"{options} {_TMPDIR_OPTION}{self.folder}".strip()
        extra = {_JAVA_OPTIONS: options} if options else {}
        return {_LOCAL_DIR: str(self.folder), **config, **extra}

    def is_complete(self) -> bool:
        """Whether all folders of Spark's blocks still exist: Spark creates them once only."""
        blocks = {*self.folder.glob("blockmgr-*"), *self.folder.glob("blockmgr-*/*")}
        self._known_blocks |= blocks
        return blocks == self._known_blocks


@contextmanager
def _lock_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder's lock; with `wait`, go on without a lock if the file system has none.

    Raises:
        OSError: not a folder; or, without `wait`, locked by another process or not lockable.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if wait:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


_ARCHIVE_PREFIX = "classes-"
#: File beside an archive: the folder of the Spark that the archive is for.
_SPARK_HOME_FILE = "spark_home"
#: Seconds; it usually takes 20.
_ARCHIVE_TIMEOUT = 300
# The JVM silently ignores an archive that does not fit (other jars on the class path).
_SHARING_OPTIONS = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def class_archive_path(cache: Path) -> Path | None:
    """The path of the archive for this Java and this Spark; None if there can be none."""
    java = find_java()
    # Spark splits the options of a JVM at each space.
    if java is None or " " in str(cache):
        return None
    java_binary = Path(java).resolve()
    # Every update of Java rewrites this file, and a JVM refuses the archive of another Java. It
    # also refuses the archive of other jars, or of the same jars in another folder.
    modules = java_binary.parent.parent / "lib" / "modules"
    stamp = modules.stat().st_mtime_ns if modules.exists() else 0
    jars = max(jar.stat().st_mtime_ns for jar in (spark_home() / "jars").glob("*.jar"))
    fingerprint = f"{java_binary} {stamp} {spark_home()} {jars}"
    key = hashlib.sha256(fingerprint.encode()).hexdigest()[:12]
    return cache / f"{_ARCHIVE_PREFIX}{key}" / "classes.jsa"


def with_class_archive(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Spark's configuration, with the archive if there is one."""
    archive = class_archive_path(cache)
    if archive is None or not archive.exists():
        return dict(config)
    options = f"{config.get(_JAVA_OPTIONS, '')} -XX:SharedArchiveFile={archive} {_SHARING_OPTIONS}"
    return {**config, _JAVA_OPTIONS: options.strip()}


def make_class_archive(cache: Path) -> bool:
    """Create the archive unless there is one, in some 20 seconds; whether there is one now.

    A JVM starts without one as well.
    """
    archive = class_archive_path(cache)
    if archive is None or archive.exists():
        return archive is not None
    # Another process may be first, or the folder may be read-only.
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        # It appears under its final name all at once, so a partial archive is never used.
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
    """Remove the archives of removed Sparks, and older ones of this Spark: 180 MB each."""
    for marker in cache.glob(f"{_ARCHIVE_PREFIX}*/{_SPARK_HOME_FILE}"):
        home = marker.read_text()
        if marker.parent != new_folder and (home == str(spark_home()) or not Path(home).exists()):
            shutil.rmtree(marker.parent, ignore_errors=True)


def _record_classes(archive: Path, scratch: Path) -> None:
    """Run typical queries in a JVM that writes the classes it loaded to an archive at its exit."""
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
    # The JVM writes the archive when its input ends; wait for it.
    jvm.proc.stdin.close()
    if status := jvm.proc.wait():
        raise SystemExit(status)


if __name__ == "__main__":
    _record_classes(Path(sys.argv[1]), Path(sys.argv[2]))
