"""Undo: the days that one backfill wrote are put back to what they were before it, they alone.

With them goes what was made of them since, by whichever run. The old rows go through the same audit
and the same commit as new ones, one commit a table, so that the undo is in the trail like
everything else and can be undone itself. Inputs come first: a day that has not been put back yet is
then behind its input for all to see, and is put back when the undo is asked for again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import cache, reduce

import msgspec
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame

from backfill_assets.backfills.dependents import Extent, extents
from backfill_assets.backfills.footprints import Change, footprint, part_of, put_back, written
from backfill_assets.calendar.partitions import DAY, Window, any_of, packed, spelled, windows
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.evolution import version_of
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.logs import delta_log, metadata_of
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.records import Details, Provenance, Published, Record
from backfill_assets.delta.snapshots import data_files, files_as_of, rows_as_of
from backfill_assets.engine.stores import open_store
from backfill_assets.landing.manifests import Manifest, after_undo
from backfill_assets.publish.candidates import Built, Candidate, Done, Plan, Remarks, Snapshot
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.quality.audit import Verdict, differ, digests_by_day
from backfill_assets.settings import Settings
from backfill_assets.staleness.arrivals import manifests
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.staleness.touched import touched
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.sources import Role, SourceTable
from backfill_assets.tables.table import Table


class UndoRefusedError(ValueError):
    """A backfill cannot be undone as asked; nothing was written, or the message says what was."""


class NothingToUndoError(UndoRefusedError):
    """Nothing of a backfill stands: it wrote nothing, or is undone already."""


def take_back(
    io: DeltaIOManager,
    settings: Settings,
    name: str,
    run_id: str,
    tags: Mapping[str, str],
    days: Container[date] | None = None,
) -> Iterator[tuple[Table, list[Done]]]:
    """Put back the days that a backfill wrote and what was made of them, table after table.

    One that was killed halfway is finished by asking again: what is put back already stays so.

    Args:
        io: reads and publishes.
        settings: the deployment's settings.
        name: the backfill, as `footprints.belongs` takes it.
        run_id: of the run that undoes.
        tags: of that run.
        days: only these of those that it wrote, and what was made of them; all if not given.

    Raises:
        UndoRefusedError: the backfill wrote nothing; or a day has been written since, was made of
            what others wrote as well, its old files are gone, or what was there would not pass the
            audit. Found before anything is written, unless another run comes in between.
    """
    asked = _Asked(settings, name, days)
    found = asked.extents()
    if problems := asked.problems(found):
        raise UndoRefusedError(
            f"{name} was not undone, and nothing was written: " + "; ".join(problems)
        )
    if nothing := _nothing_to_undo(name, found):
        raise NothingToUndoError(f"{nothing} at {settings.warehouse}; nothing was written.")
    for table in asked.tables.values():
        # Another run may have followed what is undone since the first look.
        extent = asked.extents()[table.name]
        if todo := {**extent.unchanged, **extent.changes}:
            record = io.record(table, run_id, tags)
            candidate = Candidate(table, _Undo(io, asked, table).plan)
            hull = Window(min(todo), max(todo) + DAY)
            yield table, io.publish(candidate, hull, record, rewrite=extent.changes)


def outlook(
    settings: Settings, name: str, days: Container[date] | None = None
) -> tuple[dict[str, Extent], list[str]]:
    """What `take_back` would do now, by table, and why it would refuse. Nothing is written.

    Args:
        settings: the deployment's settings.
        name: the backfill, as `footprints.belongs` takes it.
        days: only these of those that it wrote, and what was made of them; all if not given.
    """
    asked = _Asked(settings, name, days)
    found = asked.extents()
    problems = asked.problems(found)
    if not problems and (nothing := _nothing_to_undo(name, found)):
        problems = [nothing]
    return found, problems


def _nothing_to_undo(name: str, found: Mapping[str, Extent]) -> str:
    """That a backfill has no day to put back; empty if it has."""
    if any(extent.changes or extent.unchanged for extent in found.values()):
        return ""
    done = any(extent.done for extent in found.values())
    return f"{name} {'is undone already' if done else 'has written no such day in any table'}"


def written_by(settings: Settings, run_id: str) -> dict[str, set[date]]:
    """By table, the days that the commits of a run wrote or withdrew; no table without such.

    Args:
        settings: say where the tables are.
        run_id: of the run.
    """
    found = {}
    for name, ledger in read_ledgers(settings).items():
        commits = [record for record in ledger.records if record.run_id == run_id]
        if days := {day for record in commits for day in (*record.days, *record.withdrawn)}:
            found[name] = days
    return found


def undone(ledgers: Ledgers, name: str) -> dict[str, dict[date, Record]]:
    """The days that a backfill wrote and that have been put back, each with its commit, by table.

    Args:
        ledgers: those of all tables.
        name: the backfill, as `footprints.belongs` takes it.
    """
    found = {}
    for table, ledger in ledgers.items():
        changes = footprint(ledger, part_of(name))
        found[table] = {day: changes[day].last for day in put_back(ledger, changes)}
    return found


class _Asked:
    """What a person asks to be undone."""

    def __init__(self, settings: Settings, name: str, days: Container[date] | None) -> None:
        self.settings, self.name, self.days = settings, name, days
        self.tables = tables_of(settings)
        self._known: tuple[dict[str, int | None], dict[str, Extent]] = ({}, {})

    def extents(self) -> dict[str, Extent]:
        """What that is about as of now, by table."""
        ledgers = read_ledgers(self.settings)
        versions = {name: ledger.version for name, ledger in ledgers.items()}
        if versions != self._known[0]:
            found = extents(ledgers, self.name, Policy.of(self.settings), self.days)
            self._known = versions, found
        return self._known[1]

    def problems(self, found: Mapping[str, Extent]) -> list[str]:
        """Why days cannot be put back, each with their names, by what the undo is about."""
        return [text for name, extent in found.items() for text in self._problems(name, extent)]

    def _problems(self, name: str, extent: Extent) -> list[str]:
        table, url, problems = self.tables[name], self.settings.table(name), [*extent.problems]
        for version, of in _by_version(extent.changes).items():
            try:
                # Only a table of a third schema may be two steps away from an old version.
                schema = self._schema(table, version) if table.schema_version > 2 else 1
                if table.schema_version - schema > 1:
                    problems.append(_other_columns(table, of, version, schema))
                    continue
                lost = _as_of(url, table, version, of).lost
            except (DeltaError, OSError) as error:
                problems.append(f"{table.name} cannot be read as of version {version} ({error})")
                continue
            if lost:
                problems.append(
                    f"the files that {table.name} [{spelled(lost)}] had in version "
                    f"{version} are gone: VACUUM takes them when the time to undo is over; "
                    "mend the input and launch these days again instead"
                )
        return problems

    def _schema(self, table: Table, version: int) -> int:
        """The version of a table's schema as of a version of the table."""
        return version_of(metadata_of(delta_log(self.settings.table(table.name), version).load()))


def _other_columns(table: Table, days: Iterable[date], version: int, schema: int) -> str:
    """That rows cannot be put back as they were: a migration tells one step, and not the way."""
    return (
        f"{table.name} [{spelled(days)}] had the columns of schema {schema} in version {version}, "
        f"and has those of schema {table.schema_version}: what became of each value in between is "
        "not known; mend the input and launch these days again instead"
    )


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


#: Before the time to undo is over: an undo takes less.
_MARGIN = timedelta(hours=6)


def _files(url: str, ledger: Ledger, changes: Mapping[date, Change], undo_days: int) -> DataFiles:
    """The files that days had, where the day can have them back as they are.

    A commit cannot take away a file and add it: where a merge has left one in place, the rows of
    the day are written again. So they are where the time to undo is over: a VACUUM that has begun
    before this undo may be about to remove the files.
    """
    table, now = ledger.table, ledger.version or 0
    youngest = datetime.now(timezone.utc) - timedelta(days=undo_days) + _MARGIN
    changes = {
        day: change
        for day, change in changes.items()
        if all(commit.at and commit.at > youngest for commit in _replacements(ledger, day, change))
    }
    found = {
        day: of
        for version, days in _by_version(changes).items()
        for day, of in files_as_of(url, table, days, version).items()
    }
    there = {file["path"] for file in data_files(url, table, changes, now).to_pylist()}
    return {day: of for day, of in found.items() if there.isdisjoint(file.path for file in of)}


def _replacements(ledger: Ledger, day: date, change: Change) -> list[Record]:
    """The commits since a day had the rows that are put back which wrote it."""
    return [
        commit
        for commit in ledger.records
        if commit.version > change.before and day in written(commit)
    ]


@dataclass(frozen=True)
class _Undo:
    """How one table is put back."""

    io: DeltaIOManager
    asked: _Asked
    table: Table

    @property
    def _policy(self) -> Policy:
        return Policy.of(self.asked.settings)

    def plan(self, _: Window) -> Plan:
        """What is to be put back as of now.

        Raises:
            UndoRefusedError: another run has written one of the days meanwhile.
        """
        io, table = self.io, self.table
        url, ledger = io.url(table), io.ledger(table)
        found = self.asked.extents()
        if problems := self.asked.problems({table.name: found[table.name]}):
            raise UndoRefusedError(
                f"{table.name} was not undone: {'; '.join(problems)}. Tables that were put "
                "back before it stay so; when the days are free, ask again for the rest."
            )
        changes, unchanged = found[table.name].changes, found[table.name].unchanged
        todo = {**unchanged, **changes}
        if not todo:
            return Plan({}, lambda _: Built(self._rows(ledger.version or 0, ()), {}))
        there = {
            day
            for version, of in _by_version(changes).items()
            for day in _as_of(url, table, version, of).there
        }
        withdrawn = {d for d, c in changes.items() if c.previous is None and d not in there}
        last = max(todo.values(), key=lambda change: change.after).last
        tables = self.asked.tables
        sources = [io.source(io.ledger(tables[name]), by_day=False) for name in last.inputs]
        fingerprints = {day: self._fingerprint(ledger, day, todo[day]) for day in sorted(todo)}

        def build(_days: Window) -> Built:
            as_of = {**_by_version(changes), ledger.version or 0: list(unchanged)}
            rows = reduce(
                DataFrame.unionByName,
                (self._rows(version, of) for version, of in as_of.items() if of),
            )

            def remarks(before: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
                assert before is not None
                return self._remarks(before, rows, verdicts, todo, changes, withdrawn)

            # They were made by what made them then, whatever the settings and inputs of now are.
            previous = {d: c.previous for d, c in todo.items() if c.previous}
            return Built(
                rows,
                {},
                remarks=remarks,
                made_under={d: record.made_under(d) for d, record in previous.items()},
                provenance=self._provenances(ledger, sources, previous, fingerprints),
                files=_files(url, ledger, changes, self.asked.settings.undo_days),
            )

        return Plan(
            fingerprints,
            build,
            sources,
            news=dict.fromkeys(todo, f"undo of {self.asked.name}"),
            # Rows that stay get their old record.
            recorded_anew=unchanged,
        )

    def _fingerprint(self, ledger: Ledger, day: date, change: Change) -> str:
        """What the old rows were made of; empty if that is not known.

        As of rows of another writer, and of those from the landing, which is not put back.
        """
        if not self.table.inputs(self._policy):
            return ""
        published = self._published_before(ledger, day, change)
        return published.fingerprint if published else ""

    def _provenances(
        self,
        ledger: Ledger,
        sources: Sequence[Snapshot],
        previous: Mapping[date, Record],
        fingerprints: Mapping[date, str],
    ) -> dict[date, Provenance]:
        """What the old rows were made by and from.

        Where the inputs hold what they held then, as of the versions of now: what comes later is
        newer for these days. So it is where nobody knows what they held.
        """
        versions = {source.table.name: source.ledger.version or 0 for source in sources}
        ledgers = {source.table.name: source.ledger for source in sources}
        inputs = self.table.inputs(self._policy)
        current: Mapping[date, str] = {}
        if all(dependency.source.name in ledgers for dependency in inputs):
            current = input_fingerprints(inputs, ledgers, previous, ledger.references)
        found = {}
        for day, record in previous.items():
            provenance = record.provenance(day)
            if fingerprints[day] in ("", current.get(day)):
                provenance = msgspec.structs.replace(
                    provenance, inputs={**provenance.inputs, **versions}
                )
            found[day] = provenance
        return found

    def _published_before(self, ledger: Ledger, day: date, change: Change) -> Published | None:
        """The old rows as their commit tells of them; None if others had changed them."""
        old = change.previous
        if old is None:
            return None
        others = (other.version for other in ledger.external if day in other.days)
        if any(old.vouches(day) < version <= change.before for version in others):
            return None
        return old.days[day]

    def _refuse_other_rows(
        self, ledger: Ledger, verdicts: Sequence[Verdict], changes: Mapping[date, Change]
    ) -> None:
        """See that the old files give the rows that their commits tell of.

        Rows from before a migration are digested in their own columns, not in those of now.

        Raises:
            UndoRefusedError: they give others.
        """
        io, table = self.io, self.table
        found = {v.day: v.measured.digest for v in verdicts if v.day in changes}
        recorded = {
            day: published.digest
            for day in found
            if (published := self._published_before(ledger, day, changes[day]))
        }
        columns = cache(self._columns)
        unlike = {
            day: changes[day] for day, digest in recorded.items() if differ(digest, found[day])
        }
        for version, days in _by_version(unlike).items():
            # The table gets a new column of the model with its next commit.
            if columns(version) != {c.name: c.dataType.simpleString() for c in table.struct}:
                rows = io.engine.spark_session.read.format("delta").option("versionAsOf", version)
                frame = rows.load(io.url(table)).where(any_of(windows(days), table.partition))
                found |= digests_by_day(frame, table.partition)
            wrong = [
                day
                for day in days
                if found[day] != recorded[day]
                and (old := unlike[day].previous)
                and columns(old.version) == columns(version)
            ]
            if wrong:
                raise UndoRefusedError(
                    f"{table.name} [{spelled(wrong)}] was not undone: its files of version "
                    f"{version} give other rows than their commit tells of. Tables that were put "
                    "back before it stay so. Leave these days out, or mend the input and launch "
                    "them again."
                )

    def _columns(self, version: int) -> dict[str, str]:
        """The columns of the table as of a version, with their types."""
        struct = metadata_of(delta_log(self.io.url(self.table), version).load()).struct
        return {column.name: column.dataType.simpleString() for column in struct}

    def _on_hold(self, ledger: Ledger, days: Iterable[date]) -> dict[date, str]:
        """The input fingerprints of the rows that go: while the inputs are these, nothing is due.

        A person has decided against these rows. A log is loaded from files, which have their own
        rule, see `manifests.after_undo`.
        """
        current = {day: ledger.current_record(day) for day in days}
        return {
            day: published.fingerprint
            for day, published in current.items()
            if published and published.fingerprint and self.table.inputs(self._policy)
        }

    def _rows(self, version: int, days: Collection[date]) -> DataFrame:
        io = self.io
        spark, url = io.engine.spark_session, io.url(self.table)
        return rows_as_of(spark, url, self.table, version, days)

    def _remarks(
        self,
        before: Snapshot,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        todo: Mapping[date, Change],
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
        self._refuse_other_rows(before.ledger, verdicts, changes)
        details = msgspec.structs.replace(
            self._details(before, rows, verdicts, todo),
            undoes=self.asked.name,
            on_hold={
                # Of days whose rows stay, what holds goes on to hold.
                **{d: held for d, held in before.ledger.on_hold.items() if d in todo},
                **self._on_hold(before.ledger, changes),
            },
            as_of={str(v): packed(of) for v, of in _by_version(todo).items()},
        )
        final = {d for d, c in todo.items() if c.previous and d in c.previous.final}
        gone = f"taken back by the undo of {self.asked.name}: it counts as never published"
        return Remarks(final, dict.fromkeys(withdrawn, gone), details)

    def _details(
        self,
        before: Snapshot,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        changes: Mapping[date, Change],
    ) -> Details:
        """What those who follow this table read from its commits, as its assets say it."""
        days = [v.day for v in verdicts]
        table = self.table
        if not isinstance(table, SourceTable):
            return Details(references={**before.ledger.references})
        if table.role is Role.LOG:
            loaded = manifests(before.ledger)
            settings = self.asked.settings
            policy = table.source.policy(settings)
            moved = touched(table.source, before, rows, verdicts, policy, settings.timezone)
            landing = {
                day: _put_back(changes[day].previous, day, loaded[day]).as_json
                for day in days
                if day in loaded
            }
            return msgspec.structs.replace(moved.details, landing=landing)
        if table.role is Role.LATE:
            olds = {day: c.previous.details.late for day, c in changes.items() if c.previous}
            return Details(late={day: old[day] for day, old in olds.items() if day in old})
        return Details()


def _put_back(previous: Record | None, day: date, undone: Manifest) -> Manifest:
    """What a log day is made of once the commit before stands again; see `after_undo`."""
    before = Manifest.of(previous.details.landing.get(day)) if previous else None
    if previous and before is None:
        return undone  # a commit of an earlier release did not record it
    return after_undo(before, undone)
