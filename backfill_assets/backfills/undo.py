"""Undo: restore the days that a backfill changed, and the days computed from them since.

The old rows pass the same audit and are committed as new ones are, one commit per table, so an undo
is in the log and can be undone itself. Input tables are reverted first. If the undo is interrupted,
the remaining days are stale until it is requested again.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from functools import cache, cached_property, reduce
from typing import Any

import msgspec
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame

from backfill_assets.audit.verdicts import NO_ROWS, Verdict, digests_by_day, rows_differ
from backfill_assets.backfills.changes import DayChange, written_days
from backfill_assets.backfills.downstream import UndoScope, undo_scopes
from backfill_assets.calendar import partitions
from backfill_assets.delta import data_files, records
from backfill_assets.delta.commits import PublishError, summarize_error
from backfill_assets.delta.delta_rs import RACE_ATTEMPTS, delta_log, race_attempts, read_metadata
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.table_schema import read_schema_version
from backfill_assets.deployment import Deployment
from backfill_assets.landing.load_manifest import LoadManifest, after_undo
from backfill_assets.publish import types
from backfill_assets.publish.compute import explain_spark_errors
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.publication import AuditedDays, audit_days
from backfill_assets.spark.frames import quote_name
from backfill_assets.staleness.assess import recompute_reason
from backfill_assets.staleness.impact import impact_of
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import loaded_manifests
from backfill_assets.tables.sources import Role, SourceTable
from backfill_assets.tables.table import Table


class UndoRefusedError(ValueError):
    """A backfill cannot be undone as requested; the message says whether anything was written."""


class NothingToUndoError(UndoRefusedError):
    """A backfill has no day to revert: it wrote nothing, or is undone already."""


def undo_backfill(
    publisher: DeltaIOManager,
    deployment: Deployment,
    name: str,
    run_id: str,
    tags: Mapping[str, str],
    days: Container[date] | None = None,
    part: str = "",
) -> Iterator[tuple[Table, list[types.DayResult]]]:
    """Revert the days that a backfill wrote and the days downstream of them, table by table.

    If it was interrupted, the same request reverts the remaining days.

    Args:
        publisher: reads and publishes.
        deployment: whose tables they are.
        name: backfill or run, as in `changes.is_commit_of`.
        run_id: the run that undoes.
        tags: tags of that run.
        days: only these of the written days, and the days downstream of them; None for all.
        part: only those of this part; what is made of several parts stays, behind its inputs.

    Raises:
        UndoRefusedError: the backfill wrote nothing; or a day was overwritten since, also depends
            on input by others, its old files are deleted, or its old rows would fail the audit or
            are not those of its record. Raised before anything is written, unless another run
            commits meanwhile.
        PublishError: a commit failed; the message says which table, and what to do next.
    """
    request = _UndoRequest(deployment, name, days, part)
    plan = request.current_plan()
    if plan.problems:
        raise UndoRefusedError(
            f"{name} was not undone, and nothing was written: {'; '.join(plan.problems)}"
        )
    if message := plan.explain_nothing_to_undo():
        raise NothingToUndoError(
            f"{message} at {deployment.settings.warehouse}; nothing was written."
        )
    undos = [
        _TableUndo(publisher, request, table, publisher.run_metadata(table, run_id, tags))
        for table in deployment.tables.values()
    ]
    # All tables before the first commit: what follows is refused only if another run comes first.
    if problems := [text for undo in undos for text in undo.find_problems()]:
        raise UndoRefusedError(
            f"{name} was not undone, and nothing was written: {'; '.join(problems)}. Leave these "
            "days out, or mend the input and launch them again."
        )
    for undo in undos:
        try:
            results = undo.restore_days()
        except PublishError as error:
            cause = summarize_error(error.__cause__ or error).rstrip(". ")
            raise PublishError(
                f"{undo.table.name} was not undone and is as it was: {cause}. Tables that were put "
                f"back before it stay so; ask for the undo of {name} again for the rest."
            ) from error
        if results:
            yield undo.table, results


def days_written_by_run(deployment: Deployment, run_id: str) -> dict[str, set[date]]:
    """Days that the commits of a run wrote or revoked, by table; only tables with such days."""
    days_by_table = {}
    for name, ledger in read_ledgers(deployment).items():
        commits = [record for record in ledger.records if record.run_id == run_id]
        if days := {day for record in commits for day in (*record.days, *record.revoked_days)}:
            days_by_table[name] = days
    return days_by_table


@dataclass(frozen=True)
class UndoPlan:
    """What `undo_backfill` reverts, as of one version of each table, and why it would refuse.

    The old rows are not read: `undo_backfill` itself audits them.

    Attributes:
        deployment: whose tables they are.
        name: backfill or run, as in `changes.is_commit_of`.
        scopes: what to revert, by table, inputs first.
    """

    deployment: Deployment
    name: str
    scopes: Mapping[str, UndoScope]

    @cached_property
    def problems(self) -> list[str]:
        """Why days of the tables cannot be reverted: messages that name the days."""
        return [text for name in self.deployment.tables for text in self.find_problems(name)]

    def explain_nothing_to_undo(self) -> str:
        """Why there is no day to revert; empty if there is one."""
        if any(scope.days for scope in self.scopes.values()):
            return ""
        if any(scope.already_reverted for scope in self.scopes.values()):
            return f"{self.name} is undone already"
        return f"{self.name} has written no such day in any table"

    def find_problems(self, name: str) -> list[str]:
        """Refusals of one table: its scope, an old schema, unreadable or deleted files."""
        table, url = self.deployment.tables[name], self.deployment.table_url(name)
        scope = self.scopes[name]
        problems = [*scope.problems]
        for version, days in _group_by_version(scope.changes).items():
            try:
                # Only a table of a third schema may be two steps away from an old version.
                schema = _schema_version_at(url, version) if table.schema_version > 2 else 1
                if table.schema_version - schema > 1:
                    problems.append(_explain_other_columns(table, days, version, schema))
                    continue
                missing_days = data_files.find_old_files(
                    url, table, version, days
                ).days_with_missing_files
            except (DeltaError, OSError) as error:
                problems.append(f"{table.name} cannot be read as of version {version} ({error})")
                continue
            if missing_days:
                problems.append(
                    f"the files that {table.name} [{partitions.format_ranges(missing_days)}] "
                    f"had in version {version} are gone: VACUUM takes them when the time to undo "
                    "is over; mend the input and launch these days again instead"
                )
        return problems


def plan_undo(
    deployment: Deployment,
    name: str,
    days: Container[date] | None = None,
    part: str = "",
    ledgers: Ledgers | None = None,
) -> UndoPlan:
    """What `undo_backfill` reverts now, or as of some ledgers; writes nothing."""
    snapshot = Snapshot.from_deployment(deployment, ledgers or read_ledgers(deployment))
    return UndoPlan(deployment, name, undo_scopes(snapshot, name, days, part))


def _schema_version_at(url: str, version: int) -> int:
    return read_schema_version(read_metadata(delta_log(url, version).load()))


class _UndoRequest:
    """One undo request; caches its plan until a table has a new version, and audits."""

    def __init__(self, deployment: Deployment, name: str, days: Any, part: str) -> None:
        self.deployment, self.name, self.only = deployment, name, (days, part)
        #: By table, the version and the versions of the old rows that were audited, and these.
        self.audited: dict[str, tuple[object, AuditedDays]] = {}
        self._cached: tuple[dict[str, int | None], UndoPlan] | None = None

    def current_plan(self) -> UndoPlan:
        """What to revert now."""
        ledgers = read_ledgers(self.deployment)
        versions = {name: ledger.version for name, ledger in ledgers.items()}
        if self._cached is None or versions != self._cached[0]:
            self._cached = versions, plan_undo(self.deployment, self.name, *self.only, ledgers)
        return self._cached[1]


def _explain_other_columns(table: Table, days: Iterable[date], version: int, schema: int) -> str:
    """Message that the schema changed more than once: one migration cannot map the old rows."""
    return (
        f"{table.name} [{partitions.format_ranges(days)}] had the columns of schema {schema} "
        "in version "
        f"{version}, and has those of schema {table.schema_version}: what became of each value in "
        "between is not known; mend the input and launch these days again instead"
    )


def _group_by_version(changes: Mapping[date, DayChange]) -> dict[int, list[date]]:
    days_by_version: dict[int, list[date]] = {}
    for day, change in changes.items():
        days_by_version.setdefault(change.version_before, []).append(day)
    return days_by_version


#: Safety margin before the undo period ends: longer than an undo takes.
_MARGIN = timedelta(hours=6)


def _restorable_files(
    url: str, ledger: Ledger, changes: Mapping[date, DayChange], undo_days: int
) -> data_files.DataFiles:
    """The old files of each day that can be added again without rewriting rows.

    A commit cannot both remove and add the same file, so a day of which a merge left a file in
    place is rewritten. So is a day near the end of the undo period: a running VACUUM may delete its
    old files.
    """
    table, current_version = ledger.table, ledger.version or 0
    oldest_safe = datetime.now(timezone.utc) - timedelta(days=undo_days) + _MARGIN
    changes = {
        day: change
        for day, change in changes.items()
        if all(
            commit.at and commit.at > oldest_safe for commit in _later_commits(ledger, day, change)
        )
    }
    old_files = {
        day: day_files
        for version, days in _group_by_version(changes).items()
        for day, day_files in data_files.files_as_of(url, table, days, version).items()
    }
    current_paths = {
        file["path"]
        for file in data_files.list_data_files(url, table, changes, current_version).to_pylist()
    }
    return {
        day: day_files
        for day, day_files in old_files.items()
        if current_paths.isdisjoint(file.path for file in day_files)
    }


def _later_commits(ledger: Ledger, day: date, change: DayChange) -> list[records.CommitRecord]:
    return [
        commit
        for commit in ledger.records
        if commit.version > change.version_before and day in written_days(commit)
    ]


@dataclass(frozen=True)
class _TableUndo:
    publisher: DeltaIOManager
    request: _UndoRequest
    table: Table
    record: Mapping[str, Any]

    def restore_days(self) -> list[types.DayResult]:
        """Audit the old rows of the table and commit them.

        Raises:
            UndoRefusedError: another run has written one of the days meanwhile.
            PublishError: the commit failed, or other commits came first each time.
        """
        for _ in race_attempts():
            # Another run may have published downstream days since the first check.
            if (results := self._try_restoring()) is not None:
                return results
        raise types.CommitRaceError(f"other runs committed first {RACE_ATTEMPTS} times in a row")

    def _try_restoring(self) -> list[types.DayResult] | None:
        """As `restore_days`; None if another commit came first."""
        ledger = self.publisher.ledger(self.table)  # before the scopes, which may be newer
        plan = self.request.current_plan()
        scope = plan.scopes[self.table.name]
        if not scope.days:
            return []
        problems = plan.find_problems(self.table.name)
        if not problems:
            audited, problems = self._audit_old_rows(ledger, scope)
        if problems:
            raise UndoRefusedError(
                f"{self.table.name} was not undone, as another run came first: "
                f"{'; '.join(problems)}. Tables that were put back before stay so; when the days "
                "are free, ask again for the rest."
            )
        with explain_spark_errors(self.table, partitions.DaySet.from_days(scope.days)):
            notes = self._commit_notes(ledger, audited, scope)
        audited = replace(audited, computed=replace(audited.computed, notes=notes))
        committed = audited.commit_once()
        if committed is None:
            audited.remove_files()
            return None
        return [*committed[0].results()]

    def find_problems(self) -> list[str]:
        """Why the old rows cannot be put back: messages that name the days."""
        scope = self.request.current_plan().scopes[self.table.name]
        if not scope.days:
            return []
        _, problems = self._audit_old_rows(self.publisher.ledger(self.table), scope)
        return problems

    def _audit_old_rows(self, ledger: Ledger, scope: UndoScope) -> tuple[AuditedDays, list[str]]:
        """The audited old rows, and why they cannot be put back."""
        name = self.table.name
        rows = ledger.version, {day: change.version_before for day, change in scope.days.items()}
        with explain_spark_errors(self.table, partitions.DaySet.from_days(scope.days)):
            plan, computed = self._read_old_days(ledger, scope)
            if name in self.request.audited:
                known_rows, audited = self.request.audited[name]
                if known_rows == rows:
                    return audited.by_plan(plan, computed), []
            (audited,) = audit_days([types.Candidate(plan, computed)]).values()
            self.request.audited[name] = rows, audited
            return audited, [*self._find_wrong_rows(ledger, audited, scope.changes)]

    def _read_old_days(
        self, ledger: Ledger, scope: UndoScope
    ) -> tuple[types.ComputePlan, types.ComputedDays]:
        """Plan the days to restore, with their old rows."""
        publisher, deployment, name = self.publisher, self.request.deployment, self.table.name
        todo, changes, tables = scope.days, scope.changes, deployment.graph.all_tables
        newest = max(todo.values(), key=lambda change: change.version_after).last_commit
        sources = [
            publisher.table_snapshot(publisher.ledger(tables[source]), by_day=False)
            for source in newest.inputs
        ]
        input_digests = {day: self._input_digest(ledger, day, todo[day]) for day in sorted(todo)}
        request = types.RunRequest(partitions.DaySet.from_days(todo), self.record, rewrite=changes)
        ledgers = {**{source.table.name: source.ledger for source in sources}, name: ledger}
        current = publisher.snapshot(request, deployment.graph, ledgers)
        undo = dict.fromkeys(todo, f"undo of {self.request.name}")
        snapshot = replace(current, digests={name: input_digests}, changes={name: undo})
        # Days with unchanged rows get their old record back, so all are computed in any case.
        reasons = {
            day: recompute_reason(snapshot, name, day, input_digest, requested=True)
            for day, input_digest in input_digests.items()
        }
        plan = publisher.plan_commit(request, self.table, snapshot, sources, reasons)
        as_of = {**_group_by_version(changes), ledger.version or 0: list(scope.unchanged)}
        rows = reduce(
            DataFrame.unionByName,
            (self._rows_at(version, days) for version, days in as_of.items() if days),
        )
        # Old rows keep their old provenance, whatever the current settings and inputs are.
        previous = {d: c.previous_commit for d, c in todo.items() if c.previous_commit}
        return plan, types.ComputedDays(
            rows,
            {},
            made_under={d: record.made_under(d) for d, record in previous.items()},
            provenance=self._old_provenances(current, plan.input_versions, previous, input_digests),
            files=_restorable_files(
                publisher.url(self.table), ledger, changes, deployment.settings.undo_days
            ),
        )

    def _input_digest(self, ledger: Ledger, day: date, change: DayChange) -> str:
        """Digest of the inputs of the old rows; empty if not known.

        Not known for rows by another writer, and for rows loaded from the landing, which an undo
        does not change.
        """
        if not self.request.deployment.graph.inputs[self.table.name]:
            return ""
        published = self._find_old_day(ledger, day, change)
        return published.input_digest if published else ""

    def _old_provenances(
        self,
        snapshot: Snapshot,
        versions: Mapping[str, int],
        previous: Mapping[date, records.CommitRecord],
        input_digests: Mapping[date, str],
    ) -> dict[date, records.Provenance]:
        """Provenance of the old rows by day.

        If the inputs have the same content now as then, or it is not known, their current versions
        are recorded, so that only later changes make the day stale.
        """
        current: Mapping[date, str] = {}
        inputs = snapshot.inputs_of(self.table.name)
        if all(dependency.source.name in snapshot.ledgers for dependency in inputs):
            current = snapshot.input_digests(self.table.name, previous)
        provenances = {}
        for day, record in previous.items():
            provenance = record.day_provenance(day)
            if input_digests[day] in ("", current.get(day)):
                provenance = msgspec.structs.replace(
                    provenance, inputs={**provenance.inputs, **versions}
                )
            provenances[day] = provenance
        return provenances

    def _find_old_day(
        self, ledger: Ledger, day: date, change: DayChange
    ) -> records.PublishedDay | None:
        """The old rows as recorded by their commit; None without one or if others changed them."""
        old = change.previous_commit
        if old is None:
            return None
        others = (other.version for other in ledger.external_commits if day in other.days)
        if any(old.valid_as_of(day) < version <= change.version_before for version in others):
            return None
        return old.days[day]

    def _find_wrong_rows(
        self, ledger: Ledger, audited: AuditedDays, changes: Mapping[date, DayChange]
    ) -> Iterator[str]:
        """Messages for old rows that fail the audit, or are not those of the record."""
        if failed := [v for v in audited.verdicts.values() if not v.may_publish]:
            reasons = "; ".join(f"{self.table.name}[{v.day}] {v.failure_reasons}" for v in failed)
            yield f"what was there before would not pass the audit: {reasons}"
        table, columns = self.table, cache(self._columns_at)
        spark, url = self.publisher.engine.spark_session, self.publisher.url(table)
        digests = {day: v.metrics.digest for day, v in audited.verdicts.items() if day in changes}
        current = {c.name: c.dataType.simpleString() for c in table.struct_type}
        for version, days in _group_by_version({d: changes[d] for d in digests}).items():
            wrong = self._find_other_rows(
                version, {d: changes[d] for d in days}, ledger, digests, columns
            )
            # With the same columns, the table gives the rows that it gave then.
            files = {day: files for day, files in audited.computed.files.items() if day in days}
            if files and columns(version) != current:
                rows = data_files.rows_of_files(spark, url, table, files, files)
                given = digests_by_day(rows, table.partition)
                wrong |= {day for day in files if given.get(day, NO_ROWS) != digests[day]}
            if wrong:
                yield (
                    f"the files of {table.name} [{partitions.format_ranges(wrong)}] in version "
                    f"{version} give other rows than their commit tells of"
                )

    def _find_other_rows(
        self,
        version: int,
        changes: Mapping[date, DayChange],
        ledger: Ledger,
        digests: Mapping[date, str],
        columns: Callable[[int], Mapping[str, str]],
    ) -> set[date]:
        """Days that had other rows in a version than their record says, in the record's columns.

        A column that was dropped or converted between the two cannot be compared.
        """
        recorded: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
        for day, change in changes.items():
            old, commit = self._find_old_day(ledger, day, change), change.previous_commit
            if old and commit and old.digest != digests[day]:
                of_record = columns(commit.version) or columns(version)
                if of_record.items() <= columns(version).items():
                    recorded[(*of_record,)][day] = old.digest
        wrong = set[date]()
        for names, expected in recorded.items():
            reader = self.publisher.engine.spark_session.read.format("delta")
            rows = reader.option("versionAsOf", version).load(self.publisher.url(self.table))
            rows = rows.where(self.table.days_condition(expected))
            given = digests_by_day(rows.select(*map(quote_name, names)), self.table.partition)
            wrong |= {
                day
                for day, digest in expected.items()
                if rows_differ(given.get(day, NO_ROWS), digest)
            }
        return wrong

    def _columns_at(self, version: int) -> dict[str, str]:
        """Spark types of the table's columns by name, as of a version; none if it is not kept."""
        try:
            log = delta_log(self.publisher.url(self.table), version).load()
        except (DeltaError, OSError):
            return {}
        return {c.name: c.dataType.simpleString() for c in read_metadata(log).struct}

    def _find_held_digests(self, ledger: Ledger, days: Iterable[date]) -> dict[date, str]:
        """Input digests of the reverted rows: with these inputs the day is not built again.

        A person rejected these rows. Logs are loaded from files, which have a rule of their own:
        see `load_manifest.after_undo`.
        """
        current = {day: ledger.current_record(day) for day in days}
        return {
            day: published.input_digest
            for day, published in current.items()
            if published
            and published.input_digest
            and self.table.inputs(self.request.deployment.policy)
        }

    def _rows_at(self, version: int, days: Collection[date]) -> DataFrame:
        publisher = self.publisher
        spark, url = publisher.engine.spark_session, publisher.url(self.table)
        return data_files.rows_as_of(spark, url, self.table, version, days)

    def _commit_notes(
        self, ledger: Ledger, audited: AuditedDays, scope: UndoScope
    ) -> records.CommitNotes:
        """Notes of the commit: final days, revoked days and details."""
        verdicts, todo, changes = [*audited.verdicts.values()], scope.days, scope.changes
        details = msgspec.structs.replace(
            self._commit_details(ledger, audited.computed.frame, verdicts, todo),
            undoes=self.request.name,
            on_hold={
                # Days with unchanged rows stay on hold.
                **{d: digest for d, digest in ledger.on_hold.items() if d in todo},
                **self._find_held_digests(ledger, changes),
            },
            as_of={
                str(v): partitions.to_ranges(days) for v, days in _group_by_version(todo).items()
            },
        )
        final = {d for d, c in todo.items() if c.previous_commit and d in c.previous_commit.final}
        message = f"taken back by the undo of {self.request.name}: it counts as never published"
        return records.CommitNotes(
            final, dict.fromkeys(self._revoked_days(changes), message), details
        )

    def _revoked_days(self, changes: Mapping[date, DayChange]) -> set[date]:
        """Days that had neither a commit nor files before."""
        url = self.publisher.url(self.table)
        days_with_files = {
            day
            for version, version_days in _group_by_version(changes).items()
            for day in data_files.find_old_files(
                url, self.table, version, version_days
            ).days_with_files
        }
        return {
            d for d, c in changes.items() if c.previous_commit is None and d not in days_with_files
        }

    def _commit_details(
        self,
        ledger: Ledger,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        changes: Mapping[date, DayChange],
    ) -> records.CommitDetails:
        """Details that downstream tables read from this commit, as the assets write them."""
        days = [v.day for v in verdicts]
        table = self.table
        if not isinstance(table, SourceTable):
            return records.CommitDetails(references={**ledger.references})
        if table.role is Role.LOG:
            loaded = loaded_manifests(ledger)
            settings = self.request.deployment.settings
            policy = table.source.policy(settings)
            before = self.publisher.table_snapshot(ledger, by_day=False)
            impact = impact_of(table.source, before, rows, verdicts, policy, settings.timezone)
            landing = {
                day: _restored_manifest(changes[day].previous_commit, day, loaded[day]).as_json
                for day in days
                if day in loaded
            }
            return msgspec.structs.replace(impact.as_details, landing=landing)
        if table.role is Role.LATE:
            olds = {
                day: c.previous_commit.details.late
                for day, c in changes.items()
                if c.previous_commit
            }
            return records.CommitDetails(
                late={day: old[day] for day, old in olds.items() if day in old}
            )
        return records.CommitDetails()


def _restored_manifest(
    previous: records.CommitRecord | None, day: date, undone: LoadManifest
) -> LoadManifest:
    """Load manifest of a log day once its previous commit is restored; see `after_undo`."""
    before = LoadManifest.from_record(previous.details.landing.get(day)) if previous else None
    if previous and before is None:
        return undone  # not recorded by a commit of an earlier release
    return after_undo(before, undone)
