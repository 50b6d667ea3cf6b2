"""DAGSTER_HOME: who may see it, its `dagster.yaml` against ours, its instance and its clock."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg

from backfill_assets.backfills.stages import missing_daemons
from backfill_assets.dagster_ext.eventlog import LocalStorage
from backfill_assets.dagster_ext.internals import DagsterError
from backfill_assets.doctor.examination import CheckResult, note, ok, wrong
from backfill_assets.settings import is_secret

#: The ones that the package has: one for each storage.
_PACKAGE = Path(__file__).parent.parent
_OUR_CONFIGURATIONS = [
    _PACKAGE / "scaffold/dagster.yaml",
    _PACKAGE / "deploy/dagster.postgres.yaml",
]
#: A tick that is so many seconds ahead of the clock is not of this second.
_TICK_TOLERANCE = 300


def home_folder() -> Path | None:
    """DAGSTER_HOME; none if it is not set.

    Raises:
        ValueError: Dagster would not take it.
    """
    value = os.environ.get("DAGSTER_HOME")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"DAGSTER_HOME={value} is a relative path: give an absolute one")
    if not folder.is_dir():
        raise ValueError(f"DAGSTER_HOME={value} is no folder: make it, or give the right one")
    return folder


def check_permissions() -> Iterator[CheckResult]:
    """Whether DAGSTER_HOME is there, and whose it is."""
    folder = home_folder()
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
    """The `dagster.yaml` of DAGSTER_HOME against that of this version."""
    folder = home_folder()
    if folder is None:
        yield ok("no DAGSTER_HOME, none needed")
        return
    yield from _compare_configuration(folder)


def _compare_configuration(folder: Path) -> Iterator[CheckResult]:
    theirs = folder / "dagster.yaml"
    if not theirs.is_file():
        message = f"there is none in {folder}: Dagster's own defaults are at work"
        yield note(
            message, f"cp {_OUR_CONFIGURATIONS[0]} {folder}/, and start the deployment again"
        )
        return
    ours, sentences = find_differences(theirs)
    if not sentences:
        yield ok(f"{theirs} is that of this version")
        return
    fix = "take over what you miss, then start the deployment again; yours is never overwritten"
    for text in sentences:
        yield note(f"{theirs}: {text}", f"compare it with {ours}; {fix}")


def describe_configuration(folder: Path) -> str:
    """One sentence on a `dagster.yaml` that is not ours; empty if it is, or there is none."""
    theirs = folder / "dagster.yaml"
    sentences = find_differences(theirs)[1] if theirs.is_file() else []
    if not sentences:
        return ""
    return (
        f"{theirs} differs from that of this version in {len(sentences)} setting(s), and stays as it "
        "is: `backfill-assets doctor` names them."
    )


def find_differences(theirs: Path) -> tuple[Path, list[str]]:
    """The nearest of ours to a `dagster.yaml`, and how that differs, a sentence for each setting.

    Raises:
        ValueError: it is no YAML of settings.
    """
    their_settings = _read_settings(theirs)
    all_ours = (
        (path, [*_difference_sentences(_read_settings(path), their_settings)])
        for path in _OUR_CONFIGURATIONS
    )
    return min(all_ours, key=lambda candidate: len(candidate[1]))


def _read_settings(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(dg.config_from_files([str(path)]))
    except DagsterError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{path} cannot be read as YAML: {message}") from error


def _difference_sentences(ours: Any, theirs: Any, name_path: str = "") -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in ours.keys() | theirs.keys():
            inner_path = f"{name_path}.{name}" if name_path else str(name)
            if name not in theirs:
                yield f"{inner_path} is not there, and in ours it is {_show_value(ours[name], inner_path)}"
            elif name not in ours:
                yield f"{inner_path} is there, and not in ours"
            else:
                yield from _difference_sentences(ours[name], theirs[name], inner_path)
    elif ours != theirs:
        yield f"{name_path} is {_show_value(theirs, name_path)}, and in ours {_show_value(ours, name_path)}"


def _show_value(value: Any, name_path: str) -> str:
    text = str(value)
    if is_secret(name_path) or is_secret(text) or "://" in text:
        return "(hidden)"
    return text if len(text) < 80 else f"{text[:77]}..."


def check_instance() -> Iterator[CheckResult]:
    """Dagster's storage, and whether a daemon is at work."""
    folder = home_folder()
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
    """Whether there is a storage already: to look at it must not make one."""
    storage = _read_settings(folder / "dagster.yaml").get("storage", {"sqlite": {}})
    local = "sqlite" in storage or storage.get("custom", {}).get("class") == LocalStorage.__name__
    return not local or (folder / "history").is_dir()


def check_ticks() -> Iterator[CheckResult]:
    """Schedules and sensors whose last tick is ahead of the clock: until then they are silent."""
    folder = home_folder()
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


#: Where Dagster notes when a schedule or a sensor ticked last.
_TICK_ATTRIBUTES = ("last_tick_timestamp", "last_tick_start_timestamp", "last_iteration_timestamp")
