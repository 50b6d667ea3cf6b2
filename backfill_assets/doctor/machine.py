"""Checks of this machine and DAGSTER_HOME: Java, jars, disks; `dagster.yaml`, storage, ticks."""

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import dagster as dg

from backfill_assets.backfills.stages import missing_daemons
from backfill_assets.dagster_ext.eventlog import LocalStorage
from backfill_assets.doctor.checks import CheckResult, note, ok, wrong
from backfill_assets.runtime_versions import is_secret
from backfill_assets.serve.supervisor import TakenError, listen_on_port
from backfill_assets.settings import Settings, find_dagster_home
from backfill_assets.spark import known_jars
from backfill_assets.spark.configuration import master_url, spark_config
from backfill_assets.spark.jars import check_java, delta_coordinate, delta_jars, find_java
from backfill_assets.spark.known_jars import unknown_jars
from backfill_assets.spark.processes import ignored_variables

#: Bytes of free space: below the first, runs fail; below the second, they may on a day with much
#: data.
_MIN_FREE_BYTES, _LOW_FREE_BYTES = 1 << 30, 10 << 30
#: Files that can still be created: below this number, runs fail.
_FEW_FILES = 10_000
#: The prefix of Delta's own jars.
_DELTA_PREFIX = "delta-"
#: Seconds for a UI to answer.
_UI_TIMEOUT = 5
#: The HTTP status of a UI that requires a login.
_LOGIN_STATUS = 401


def check_java_version(settings: Settings) -> Iterator[CheckResult]:
    """Check the Java that the engine would run on."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    check_java()
    yield ok(f"{find_java()}")


def check_environment(settings: Settings) -> Iterator[CheckResult]:
    """Name the Spark and Java variables that are set here but do not reach the engine."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    if names := ignored_variables(master_url(settings)):
        message = f"{', '.join(names)}: set here, and the engine is not given them"
        advice = "nothing, or say what they are to do in BACKFILL_ASSETS_SPARK_CONF"
        yield note(message, f"{advice}: see docs/deployments.md")
        return
    yield ok("it has nothing that the engine is not given")


def check_jars(settings: Settings) -> Iterator[CheckResult]:
    """Check that the jars in the cache exist and are the published ones."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    cached_jars = delta_jars(settings.jars)
    if not cached_jars:
        message = f"there is no {delta_coordinate()} in {settings.jars}"
        yield wrong(message, "backfill-assets jars downloads them; a run would do so as well")
        return
    loaded = map(Path, spark_config(settings)["spark.jars"].split(","))
    if changed_jars := unknown_jars(jar for jar in loaded if settings.jars in jar.parents):
        message = (
            f"{', '.join(map(str, changed_jars))}: not the jars of this version, by their SHA-256"
        )
        yield wrong(message, f"remove {changed_jars[0].parent}, then run backfill-assets jars")
        return
    if len(cached_jars) < sum(name.startswith(_DELTA_PREFIX) for name in known_jars.SHA256):
        message = f"{cached_jars[0].parent} lacks some of Delta's jars"
        yield wrong(message, f"remove {cached_jars[0].parent}, then run backfill-assets jars")
        return
    yield ok(
        f"{len(cached_jars)} jars in {cached_jars[0].parent}, with the SHA-256 that they must have"
    )


def check_loopback() -> Iterator[CheckResult]:
    """Check the name `localhost`, by which Spark and its clients find this machine."""
    addresses = {str(info[4][0]) for info in socket.getaddrinfo("localhost", None)}
    if foreign_addresses := {
        address for address in addresses if not ip_address(address).is_loopback
    }:
        message = (
            f"localhost is {', '.join(sorted(foreign_addresses))}, which is not this machine's "
            "loopback"
        )
        yield wrong(message, "mend the line of localhost in /etc/hosts")
        return
    yield ok(f"localhost is {', '.join(sorted(addresses))}")


def check_port(number: int) -> Iterator[CheckResult]:
    """Check that the UI's port is free, or that a UI answers there."""
    try:
        with listen_on_port(number):
            pass
    except TakenError as error:
        if message := _ui_at(number):
            yield ok(message)
        else:
            message, _, fix = str(error).removesuffix(" Nothing was started.").partition(": ")
            yield note(f"{message}, and no UI answers there", fix)
        return
    yield ok(f"{number} is free")


def _ui_at(number: int) -> str:
    """A sentence on the UI at a port; empty if there is none."""
    try:
        with urlopen(f"http://127.0.0.1:{number}/server_info", timeout=_UI_TIMEOUT) as answer:
            version = json.load(answer).get("dagster_version")
    except HTTPError as error:
        return f"a UI at {number} asks for a login" if error.code == _LOGIN_STATUS else ""
    except (OSError, ValueError, AttributeError):
        return ""
    return f"a UI of Dagster {version} answers at {number}" if version else ""


def scratch_folder(settings: Settings) -> Path:
    """The folder for an engine's data that do not fit into memory."""
    setting = os.environ.get("SPARK_LOCAL_DIRS") or settings.spark_conf.get("spark.local.dir")
    if not setting and (home := os.environ.get("DAGSTER_HOME")):
        return Path(home, "scratch")
    return Path((setting or tempfile.gettempdir()).split(",")[0])


def check_disks(folders: Mapping[str, Path]) -> Iterator[CheckResult]:
    """Check the free space of the disks, and that the folders can be written."""
    disks: dict[int, tuple[str, os.statvfs_result]] = {}
    for name, folder in folders.items():
        path = nearest_folder(folder)
        if reason := write_error(path):
            yield wrong(f"the {name} at {path} cannot be written: {reason}", _fix_for(reason, path))
        # Folders on one disk share its space.
        disks.setdefault(path.stat().st_dev, (f"{name} at {path}", os.statvfs(path)))
    free = []
    for name, state in disks.values():
        space, files = state.f_bavail * state.f_frsize, state.f_favail
        free.append(f"{space / (1 << 30):.1f} GiB for the {name}")
        if space < _MIN_FREE_BYTES:
            yield wrong(f"{free[-1]} are left", "make room: runs fail when it is full")
        elif space < _LOW_FREE_BYTES:
            yield note(f"{free[-1]} are left", "see docs/deployments.md, housekeeping")
        elif state.f_files and files < _FEW_FILES:
            yield wrong(f"{files} more files can be made for the {name}", "take files away there")
    yield ok(f"free: {'; '.join(free)}")


def nearest_folder(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def write_error(folder: Path) -> str:
    """Why a folder cannot be written; empty if it can. The test file is removed."""
    try:
        with tempfile.TemporaryFile(dir=folder) as tried:
            tried.write(b"x")
            tried.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _fix_for(reason: str, folder: Path) -> str:
    if "space" in reason or "quota" in reason.lower():
        return "make room there"
    return f"let this user write to {folder}, or set another folder"


#: The package's own `dagster.yaml` files: one for each storage.
_PACKAGE = Path(__file__).parent.parent
_OUR_CONFIGURATIONS = [
    _PACKAGE / "scaffold/dagster.yaml",
    _PACKAGE / "deploy/dagster.postgres.yaml",
]
#: Seconds that a tick may be ahead of the clock.
_TICK_TOLERANCE = 300


def check_permissions() -> Iterator[CheckResult]:
    """Check that DAGSTER_HOME exists, its owner, and who else can read or write it."""
    folder = find_dagster_home()
    if folder is None:
        fix = "set it to the deployment's folder; without it Dagster keeps nothing"
        yield note("DAGSTER_HOME is not set", fix)
        return
    state = folder.stat()
    fix = f"chmod 700 {folder}"
    if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
        yield wrong(f"{folder} can be written by everybody on this machine", fix)
    elif state.st_mode & (stat.S_IROTH | stat.S_IXOTH):
        yield note(f"{folder} can be read by others on this machine: logs, plans, alerts", fix)
    elif state.st_uid != os.geteuid():
        yield note(f"{folder} belongs to user {state.st_uid}, and this is {os.geteuid()}")
    else:
        yield ok(f"{folder}")


def check_configuration() -> Iterator[CheckResult]:
    """Compare the `dagster.yaml` of DAGSTER_HOME with this version's."""
    folder = find_dagster_home()
    if folder is None:
        yield ok("no DAGSTER_HOME, none needed")
        return
    yield from _compare_configuration(folder)


def _compare_configuration(folder: Path) -> Iterator[CheckResult]:
    """A note for each setting that differs from ours; not a problem, as users edit the file."""
    user_file = folder / "dagster.yaml"
    if not user_file.is_file():
        message = f"there is none in {folder}: Dagster's own defaults are at work"
        yield note(
            message, f"cp {_OUR_CONFIGURATIONS[0]} {folder}/, and start the deployment again"
        )
        return
    own_file, sentences = find_differences(user_file)
    if not sentences:
        yield ok(f"{user_file} is that of this version")
        return
    fix = "take over what you miss, then start the deployment again; yours is never overwritten"
    for text in sentences:
        yield note(f"{user_file}: {text}", f"compare it with {own_file}; {fix}")


def describe_configuration(folder: Path) -> str:
    """One sentence on a `dagster.yaml` that differs from ours; empty if none does."""
    theirs = folder / "dagster.yaml"
    sentences = find_differences(theirs)[1] if theirs.is_file() else []
    if not sentences:
        return ""
    return (
        f"{theirs} differs from that of this version in {len(sentences)} setting(s), and stays as "
        "it is: `backfill-assets doctor` names them."
    )


def find_differences(theirs: Path) -> tuple[Path, list[str]]:
    """Our `dagster.yaml` that is nearest to theirs, and a sentence for each setting that differs.

    Raises:
        ValueError: theirs is not valid YAML.
    """
    their_settings = _read_settings(theirs)
    all_ours = (
        (path, [*_difference_sentences(_read_settings(path), their_settings)])
        for path in _OUR_CONFIGURATIONS
    )
    return min(all_ours, key=lambda candidate: len(candidate[1]))


def _read_settings(path: Path) -> Mapping[str, Any]:
    """The content of a `dagster.yaml`; empty if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        return dict(dg.config_from_files([str(path)]))
    except dg.DagsterError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{path} cannot be read as YAML: {message}") from error


def _difference_sentences(ours: Any, theirs: Any, name_path: str = "") -> Iterator[str]:
    """Sentences on different values; calls itself for nested mappings, with dotted names."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in ours.keys() | theirs.keys():
            inner_path = f"{name_path}.{name}" if name_path else str(name)
            if name not in theirs:
                yield (
                    f"{inner_path} is not there, and in ours it is "
                    f"{_show_value(ours[name], inner_path)}"
                )
            elif name not in ours:
                yield f"{inner_path} is there, and not in ours"
            else:
                yield from _difference_sentences(ours[name], theirs[name], inner_path)
    elif ours != theirs:
        yield (
            f"{name_path} is {_show_value(theirs, name_path)}, and in ours "
            f"{_show_value(ours, name_path)}"
        )


def _show_value(value: Any, name_path: str) -> str:
    text = str(value)
    if is_secret(name_path) or is_secret(text) or "://" in text:
        return "(hidden)"
    return text if len(text) < 80 else f"{text[:77]}..."


def check_instance() -> Iterator[CheckResult]:
    """Check Dagster's storage, and that a daemon runs."""
    folder = find_dagster_home()
    if folder is None or not _has_storage(folder):
        yield ok("nothing has run here yet")
        return
    with dg.DagsterInstance.from_config(str(folder)) as dagster:
        version = dagster.run_storage.alembic_version()
        dagster.get_runs(limit=1)
        if version and version[0] != version[1]:
            message = f"its database is of another version of Dagster ({version[0]})"
            yield wrong(message, "stop the deployment, then run `dagster instance migrate`")
        missing = missing_daemons(dagster)
    if missing:
        message = f"no {' and no '.join(missing)} daemon is at work: nothing runs by itself"
        yield note(message, "start the deployment: make ui, or backfill-assets ui")
    else:
        yield ok(f"Dagster {dg.__version__}; its daemons are at work")


def _has_storage(folder: Path) -> bool:
    """Whether a storage exists: the check itself must not create one."""
    storage = _read_settings(folder / "dagster.yaml").get("storage", {"sqlite": {}})
    local = "sqlite" in storage or storage.get("custom", {}).get("class") == LocalStorage.__name__
    return not local or (folder / "history").is_dir()


def check_ticks() -> Iterator[CheckResult]:
    """Find schedules and sensors whose last tick is in the future: until then they do not run."""
    folder = find_dagster_home()
    if folder is None or not _has_storage(folder):
        yield ok("nothing has run here yet")
        return
    now = datetime.now(timezone.utc).timestamp()
    ahead = {}
    with dg.DagsterInstance.from_config(str(folder)) as dagster:
        for state in dagster.all_instigator_state():
            last = dagster.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
            data = state.instigator_data
            times = [tick.timestamp for tick in last]
            times += [getattr(data, name, None) or 0 for name in _TICK_ATTRIBUTES]
            if max(times, default=0) > now + _TICK_TOLERANCE:
                ahead[state.instigator_name] = max(times)
    if not ahead:
        yield ok("no schedule or sensor waits for a time that was wrong")
        return
    until = datetime.fromtimestamp(max(ahead.values()), timezone.utc)
    message = (
        f"{', '.join(sorted(ahead))} ticked at {until:%Y-%m-%d %H:%M} by a clock that ran ahead"
    )
    yield wrong(
        f"{message}, and do nothing until then",
        f"set the clock, stop the deployment and move {folder}/schedules away (on Postgres: delete "
        "the rows of instigators and job_ticks): they begin anew, and alerts are told again",
    )


#: The attributes with the time of the last tick of a schedule or a sensor.
_TICK_ATTRIBUTES = ("last_tick_timestamp", "last_tick_start_timestamp", "last_iteration_timestamp")
