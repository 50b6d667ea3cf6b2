"""DAGSTER_HOME: who may see it, its `dagster.yaml` against ours, its instance and its clock."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg

from backfill_assets.backfills.stages import lacking_daemons
from backfill_assets.dagster_ext.eventlog import LocalStorage
from backfill_assets.dagster_ext.internals import DagsterError
from backfill_assets.doctor.examination import Found, note, ok, wrong
from backfill_assets.settings import is_secret

#: The ones that the package has: one for each storage.
_PACKAGE = Path(__file__).parent.parent
_OURS = [_PACKAGE / "scaffold/dagster.yaml", _PACKAGE / "deploy/dagster.postgres.yaml"]
#: A tick that is so many seconds ahead of the clock is not of this second.
_AHEAD = 300


def home_folder() -> Path | None:
    """DAGSTER_HOME; none if it is not set.

    Raises:
        ValueError: Dagster would not take it.
    """
    said = os.environ.get("DAGSTER_HOME")
    if not said:
        return None
    folder = Path(said).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"DAGSTER_HOME={said} is a relative path: give an absolute one")
    if not folder.is_dir():
        raise ValueError(f"DAGSTER_HOME={said} is no folder: make it, or give the right one")
    return folder


def permissions() -> Iterator[Found]:
    """Whether DAGSTER_HOME is there, and whose it is."""
    folder = home_folder()
    if folder is None:
        mend = "set it to the deployment's folder; without it Dagster keeps nothing"
        yield note("DAGSTER_HOME is not set", mend)
        return
    state = folder.stat()
    mend = f"chmod 700 {folder}"
    if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
        yield wrong(f"{folder} can be written by everybody on this machine", mend)
    elif state.st_mode & (stat.S_IROTH | stat.S_IXOTH):
        yield note(f"{folder} can be read by others on this machine: logs, plans, alerts", mend)
    elif state.st_uid != os.geteuid():
        yield note(f"{folder} belongs to user {state.st_uid}, and this is {os.geteuid()}")
    else:
        yield ok(f"{folder}")


def configuration() -> Iterator[Found]:
    """The `dagster.yaml` of DAGSTER_HOME against that of this version."""
    folder = home_folder()
    if folder is None:
        yield ok("no DAGSTER_HOME, none needed")
        return
    yield from _compared(folder)


def _compared(folder: Path) -> Iterator[Found]:
    theirs = folder / "dagster.yaml"
    if not theirs.is_file():
        said = f"there is none in {folder}: Dagster's own defaults are at work"
        yield note(said, f"cp {_OURS[0]} {folder}/, and start the deployment again")
        return
    ours, unlike = differences(theirs)
    if not unlike:
        yield ok(f"{theirs} is that of this version")
        return
    mend = "take over what you miss, then start the deployment again; yours is never overwritten"
    for text in unlike:
        yield note(f"{theirs}: {text}", f"compare it with {ours}; {mend}")


def told(folder: Path) -> str:
    """One sentence on a `dagster.yaml` that is not ours; empty if it is, or there is none."""
    theirs = folder / "dagster.yaml"
    unlike = differences(theirs)[1] if theirs.is_file() else []
    if not unlike:
        return ""
    return (
        f"{theirs} differs from that of this version in {len(unlike)} setting(s), and stays as it "
        "is: `backfill-assets doctor` names them."
    )


def differences(theirs: Path) -> tuple[Path, list[str]]:
    """The nearest of ours to a `dagster.yaml`, and how that differs, a sentence for each setting.

    Raises:
        ValueError: it is no YAML of settings.
    """
    found = _settings_in(theirs)
    all_ours = ((path, [*_unlike(_settings_in(path), found)]) for path in _OURS)
    return min(all_ours, key=lambda one: len(one[1]))


def _settings_in(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(dg.config_from_files([str(path)]))
    except DagsterError as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{path} cannot be read as YAML: {said}") from error


def _unlike(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in ours.keys() | theirs.keys():
            where = f"{at}.{name}" if at else str(name)
            if name not in theirs:
                yield f"{where} is not there, and in ours it is {_shown(ours[name], where)}"
            elif name not in ours:
                yield f"{where} is there, and not in ours"
            else:
                yield from _unlike(ours[name], theirs[name], where)
    elif ours != theirs:
        yield f"{at} is {_shown(theirs, at)}, and in ours {_shown(ours, at)}"


def _shown(value: Any, at: str) -> str:
    text = str(value)
    if is_secret(at) or is_secret(text) or "://" in text:
        return "(hidden)"
    return text if len(text) < 80 else f"{text[:77]}..."


def instance() -> Iterator[Found]:
    """Dagster's storage, and whether a daemon is at work."""
    folder = home_folder()
    if folder is None or not _used(folder):
        yield ok("nothing has run here yet")
        return
    with dg.DagsterInstance.from_config(str(folder)) as found:
        version = found.run_storage.alembic_version()
        found.get_runs(limit=1)
        if version and version[0] != version[1]:
            said = f"its database is of another version of Dagster ({version[0]})"
            yield wrong(said, "stop the deployment, then run `dagster instance migrate`")
        lacking = lacking_daemons(found)
    if lacking:
        said = f"no {' and no '.join(lacking)} daemon is at work: nothing runs by itself"
        yield note(said, "start the deployment: make ui, or backfill-assets ui")
    else:
        yield ok(f"Dagster {dg.__version__}; its daemons are at work")


def _used(folder: Path) -> bool:
    """Whether there is a storage already: to look at it must not make one."""
    storage = _settings_in(folder / "dagster.yaml").get("storage", {"sqlite": {}})
    local = "sqlite" in storage or storage.get("custom", {}).get("class") == LocalStorage.__name__
    return not local or (folder / "history").is_dir()


def ticks() -> Iterator[Found]:
    """Schedules and sensors whose last tick is ahead of the clock: until then they are silent."""
    folder = home_folder()
    if folder is None or not _used(folder):
        yield ok("nothing has run here yet")
        return
    now = datetime.now(timezone.utc).timestamp()
    ahead = {}
    with dg.DagsterInstance.from_config(str(folder)) as found:
        for state in found.all_instigator_state():
            last = found.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
            data = state.instigator_data
            times = [tick.timestamp for tick in last]
            times += [getattr(data, name, None) or 0 for name in _TIMES]
            if max(times, default=0) > now + _AHEAD:
                ahead[state.instigator_name] = max(times)
    if not ahead:
        yield ok("no schedule or sensor waits for a time that was wrong")
        return
    until = datetime.fromtimestamp(max(ahead.values()), timezone.utc)
    said = f"{', '.join(sorted(ahead))} ticked at {until:%Y-%m-%d %H:%M} by a clock that ran ahead"
    yield wrong(
        f"{said}, and do nothing until then",
        f"set the clock, stop the deployment and move {folder}/schedules away (on Postgres: delete "
        "the rows of instigators and job_ticks): they begin anew, and alerts are told again",
    )


#: Where Dagster notes when a schedule or a sensor ticked last.
_TIMES = ("last_tick_timestamp", "last_tick_start_timestamp", "last_iteration_timestamp")
