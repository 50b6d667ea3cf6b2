"""Undo: the days that one backfill wrote are put back to what they were before it, they alone.

The old rows go through the same audit and the same commit as new ones, one commit a table, so that
the undo is in the trail like everything else and can be undone itself.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any

from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame

from backfill_assets.audit import Verdict
from backfill_assets.footprints import Change, footprint, written_since
from backfill_assets.io_manager import (
    Built,
    Candidate,
    DeltaIOManager,
    Done,
    Plan,
    Remarks,
    Source,
)
from backfill_assets.lateness import Policy
from backfill_assets.partitions import DAY, Window, spelled
from backfill_assets.records import Foreign, Ledger, Ledgers, Record, packed, unpacked
from backfill_assets.reprocessing import loaded_from
from backfill_assets.schemas import LATE, RAW, REJECTED, TABLES, Table
from backfill_assets.settings import Settings
from backfill_assets.snapshots import data_files, rows_as_of
from backfill_assets.stores import open_store
from backfill_assets.touched import touched

#: What the record of an undo calls the backfill that it undoes.
_UNDOES = "undoes"
#: And the days that it put back, by the version that had written them.
_UNDID = "undid"


class UndoRefusedError(ValueError):
    """A backfill cannot be undone as asked; nothing was written, or the message says what was."""


def take_back(
    io: DeltaIOManager,
    settings: Settings,
    name: str,
    run_id: str,
    tags: Mapping[str, str],
    days: Container[date] | None = None,
) -> Iterator[tuple[Table, list[Done]]]:
    """Put back the days that a backfill wrote, table after table, those that others read first.

    One that was killed halfway is finished by asking again: what is put back already stays so.

    Args:
        io: reads and publishes.
        settings: the deployment's settings.
        name: the backfill, as `footprints.belongs` takes it.
        run_id: of the run that undoes.
        tags: of that run.
        days: only these; all that the backfill wrote if not given.

    Raises:
        UndoRefusedError: the backfill wrote nothing; or a day has been written since, its old files
            are gone, or what was there would not pass the audit. Found before anything is written,
            unless another run comes in between.
    """
    todo = {}
    problems, done_before = [], False
    for table in TABLES.values():
        ledger = io.ledger(table)
        changes, undone = _standing(ledger, name, days)
        done_before |= bool(undone)
        problems += _problems(io.url(table), ledger, changes)
        if changes:
            todo[table.name] = changes
    if problems:
        raise UndoRefusedError(
            f"{name} was not undone, and nothing was written: " + "; ".join(problems)
        )
    if not todo:
        state = "is undone already" if done_before else "has written no such day in any table"
        raise UndoRefusedError(f"{name} {state} at {settings.warehouse}; nothing was written.")
    for table_name, changes in todo.items():
        table = TABLES[table_name]
        record = io.record(table, run_id, tags)
        again = _Undo(io, settings, name, table, record, days)
        hull = Window(min(changes), max(changes) + DAY)
        yield table, io.publish(Candidate(table, again.plan), hull, record, rewrite=True)


def undone(ledgers: Ledgers, name: str) -> dict[str, dict[date, Record]]:
    """The days that a backfill wrote and that have been put back, each with its commit, by table.

    Args:
        ledgers: those of all tables.
        name: the backfill, as `footprints.belongs` takes it.
    """
    found = {}
    for table, ledger in ledgers.items():
        changes = footprint(ledger, name)
        since = written_since(ledger, changes)
        found[table] = {
            day: changes[day].last
            for day, commit in since.items()
            if isinstance(commit, Record) and _undid(commit, day) is not None
            # An undo may itself have been undone, and that as well.
            if ledger.content(day) != changes[day].last.days[day].digest
        }
    return found


def _standing(
    ledger: Ledger, name: str, days: Container[date] | None
) -> tuple[dict[date, Change], set[date]]:
    """What a backfill did and is not undone yet; and the days that are."""
    changes = footprint(ledger, name, days)
    since = written_since(ledger, changes)
    undone = {
        day
        for day, commit in since.items()
        if isinstance(commit, Record) and _undid(commit, day) == changes[day].after
    }
    return {day: change for day, change in changes.items() if day not in undone}, undone


def _undid(record: Record, day: date) -> int | None:
    """The version whose rows of a day a commit took back; none if it took none back."""
    for version, days in record.said.get(_UNDID, {}).items():
        if day in unpacked(days):
            return int(version)
    return None


def _problems(url: str, ledger: Ledger, changes: Mapping[date, Change]) -> list[str]:
    """Why the days cannot be put back, each with their names."""
    name = ledger.table.name
    since = written_since(ledger, changes)
    found = []
    for commit in {commit.version: commit for commit in since.values()}.values():
        theirs = spelled(day for day, other in since.items() if other.version == commit.version)
        who = (
            f"another writer ({commit.operation})"
            if isinstance(commit, Foreign)
            else f"run {commit.run_id[:8]}"
        )
        found.append(
            f"{name} [{theirs}] has been written since, by {who} in version "
            f"{commit.version}; undo that first, or leave these days out"
        )
    for version, of in _by_version(changes).items():
        try:
            lost = _as_of(url, ledger.table, version, of).lost
        except (DeltaError, OSError) as error:
            found.append(f"{name} cannot be read as of version {version} ({error})")
            continue
        if lost:
            found.append(
                f"the files that {name} [{spelled(lost)}] had in version "
                f"{version} are gone: VACUUM takes them when the time to undo is over"
            )
    return found


def _by_version(changes: Mapping[date, Change]) -> dict[int, list[date]]:
    found: dict[int, list[date]] = {}
    for day, change in changes.items():
        found.setdefault(change.before, []).append(day)
    return found


@dataclass(frozen=True)
class _AsOf:
    """Days at an old version: those that had files, and those whose files are not all there now."""

    there: frozenset[date]
    lost: frozenset[date]


def _as_of(url: str, table: Table, version: int, days: Iterable[date]) -> _AsOf:
    files = data_files(url, table, days, version).to_pylist()
    filesystem, base = open_store(url)
    infos = filesystem.get_file_info([f"{base}/{file['path']}" for file in files])
    lost = {file["day"] for file, info in zip(files, infos, strict=True) if not info.is_file}
    return _AsOf(frozenset(file["day"] for file in files), frozenset(lost))


@dataclass(frozen=True)
class _Undo:
    """How one table is put back."""

    io: DeltaIOManager
    settings: Settings
    name: str
    table: Table
    record: Mapping[str, Any]
    days: Container[date] | None

    def plan(self, _: Window) -> Plan:
        """What is to be put back as of now.

        Raises:
            UndoRefusedError: another run has written one of the days meanwhile.
        """
        url = self.io.url(self.table)
        ledger = self.io.ledger(self.table)
        changes, _undone = _standing(ledger, self.name, self.days)
        if problems := _problems(url, ledger, changes):
            raise UndoRefusedError(
                f"{self.table.name} was not undone: {'; '.join(problems)}. Tables that were put "
                "back before it stay so; when the days are free, ask again for the rest."
            )
        if not changes:
            return Plan({}, lambda _: Built(self._rows(ledger.version or 0, ()), {}))
        there = {
            day
            for version, of in _by_version(changes).items()
            for day in _as_of(url, self.table, version, of).there
        }
        withdrawn = {d for d, c in changes.items() if c.previous is None and d not in there}
        last = max(changes.values(), key=lambda change: change.after).last
        sources = [
            self.io.source(self.io.ledger(TABLES[name]), by_day=False) for name in last.inputs
        ]

        def build(_days: Window) -> Built:
            rows = reduce(
                DataFrame.unionByName,
                (self._rows(version, of) for version, of in _by_version(changes).items()),
            )

            def remarks(before: Source | None, verdicts: Sequence[Verdict]) -> Remarks:
                assert before is not None
                return self._remarks(before, rows, verdicts, changes, withdrawn)

            # They were made under the settings of then, whatever those of now are.
            under = {d: c.previous.made_under(d) for d, c in changes.items() if c.previous}
            return Built(rows, {}, remarks=remarks, made_under=under)

        return Plan(
            {day: self._recipe(ledger, day, changes[day]) for day in sorted(changes)},
            build,
            sources,
            dict.fromkeys(changes, f"undo of {self.name}"),
        )

    def _recipe(self, ledger: Ledger, day: date, change: Change) -> str:
        """What the old rows were made of; empty if they would not come of it again.

        As when other code made them, or another writer; or from the landing, which is not put
        back.
        """
        old = change.previous
        if old is None or self.table in (RAW, REJECTED):
            return ""
        others = (other.version for other in ledger.foreign if day in other.days)
        if any(old.vouches(day) < version <= change.before for version in others):
            return ""
        by = (old.code_version, old.made_under(day))
        now = (self.record["code_version"], self.record["config_digest"])
        return old.days[day].made_of if by == now else ""

    def _rows(self, version: int, days: Collection[date]) -> DataFrame:
        spark, url = self.io.engine.spark_session, self.io.url(self.table)
        return rows_as_of(spark, url, self.table, version, days)

    def _remarks(
        self,
        before: Source,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        changes: Mapping[date, Change],
        withdrawn: Collection[date],
    ) -> Remarks:
        """What the commit is to say of itself.

        Raises:
            UndoRefusedError: what was there would not pass the audit.
        """
        if failed := [v for v in verdicts if not v.passed]:
            why = "; ".join(f"{self.table.name}[{v.day}] {v.reasons}" for v in failed)
            raise UndoRefusedError(
                f"{self.table.name} was not undone, as what was there before would not pass the "
                f"audit: {why}. Tables that were put back before it stay so; leave these days "
                "out, or mend the input and launch them again."
            )
        said = {
            _UNDOES: self.name,
            _UNDID: {
                str(after): packed(d for d, c in changes.items() if c.after == after)
                for after in {change.after for change in changes.values()}
            },
            "as of": {str(v): packed(of) for v, of in _by_version(changes).items()},
            **self._told(before, rows, verdicts, changes),
        }
        final = {d for d, c in changes.items() if c.previous and d in c.previous.final}
        gone = f"taken back by the undo of {self.name}: it counts as never published"
        return Remarks(final, dict.fromkeys(withdrawn, gone), said)

    def _told(
        self,
        before: Source,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        changes: Mapping[date, Change],
    ) -> dict[str, Any]:
        """What those who follow this table read from its commits, as the assets themselves say it.

        An undo holds until somebody decides otherwise or something new lands: what has landed by
        now counts as known.
        """
        days = [v.day for v in verdicts]
        if self.table is RAW:
            loaded = loaded_from(before.ledger)
            policy = Policy.of(self.settings)
            moved = touched(before, rows, verdicts, policy, self.settings.timezone)
            return {
                "landing": {str(day): loaded[day] for day in days if day in loaded},
                **moved.said,
            }
        if self.table is LATE:
            olds = {
                str(day): c.previous.said.get("late", {})
                for day, c in changes.items()
                if c.previous
            }
            return {"late": {day: old[day] for day, old in olds.items() if day in old}}
        return {}
