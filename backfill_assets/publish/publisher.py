"""The only write path: plan the days of a run, audit computed days, then make one commit.

Every row that reaches a table passes through `Publisher.audit` and `Publisher.commit`.
"""

import logging
import random
import time
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Any

import dagster as dg
import msgspec
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from backfill_assets.audit.verdicts import Expectation, judge_days
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta import records, table_schema
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish import compute, types
from backfill_assets.runtime_versions import package_version
from backfill_assets.settings import UNDO_DAYS
from backfill_assets.spark.session import Engine
from backfill_assets.staleness import assess
from backfill_assets.staleness.input_digest import StateDigester
from backfill_assets.tables.table import Table

_log = logging.getLogger(__name__)

#: Attempts to commit if other commits come first, of a step and within it.
ATTEMPTS = 30


class CommitRaceError(PublishError):
    """Another commit changed the days that a candidate replaces: they must be planned anew."""


@dataclass(frozen=True)
class Destination:
    """Where a publisher reads tables, and what it does with a candidate; this one is production.

    Attributes:
        warehouse: each table is at `<warehouse>/<asset name>`.
    """

    warehouse: str

    #: Whether a run may merge rows rather than replace days.
    merges = True
    #: Whether days are compared with the published ones, and none is published.
    compares = False

    def url(self, table: Table) -> str:
        """Return the URL of a table."""
        return f"{self.warehouse}/{table.name}"

    def ledger(self, table: Table) -> Ledger:
        """Read the current ledger of a table."""
        return read_ledger(self.url(table), table)

    def data_url(self, table: Table) -> str:
        """Return where new data files are written; empty for the table's own folder."""
        return ""

    def deliver(self, publisher: "Publisher", candidate: types.Candidate) -> list[types.DayResult]:
        """Publish the days of a candidate; see `Publisher.publish`."""
        return publisher.publish(candidate)


def result_from_record(ledger: Ledger, day: date) -> types.DayResult:
    """Return the result of a day that stays as published, from the record of its commit."""
    record = ledger.latest[day]
    published = record.days[day]
    verdict = records.restore_verdict(ledger.table, day, published)
    numbers, inputs = published.numbers, record.inputs
    return types.DayResult(
        types.Outcome.IDENTICAL,
        verdict,
        record.version,
        numbers,
        inputs,
        record.reason_for_day(day),
    )


@dataclass(frozen=True)
class CommittedDays:
    """Days that were computed and audited, and the commit of those that passed.

    Attributes:
        audited: the days.
        version: of the commit; None if no day passed.
        changed: the days whose files were written.
        revoked_days: by day that the commit records as withdrawn, why.
    """

    audited: compute.AuditedDays
    version: int | None = None
    changed: Collection[date] = ()
    revoked_days: Mapping[date, str] = field(default_factory=dict)


def list_results(
    plan: types.ComputePlan, committed: CommittedDays | None = None
) -> list[types.DayResult]:
    """Return the result of each day of a plan, in ascending order; None if no day was computed."""
    results = [*_list_skipped_results(plan)]
    if committed:
        results += list_computed_results(committed)
    return sorted(results, key=lambda result: result.day)


def _list_skipped_results(plan: types.ComputePlan) -> Iterator[types.DayResult]:
    """Yield the results of days that are not computed: identical, reverted or without an input."""
    ledger = plan.ledger
    current = plan.fingerprints.keys() - plan.reasons.keys() - plan.refused.keys()
    for day in current & ledger.latest.keys():
        yield result_from_record(ledger, day)
    text = (
        "an undo has reverted its rows, and its inputs are the same: only a person builds it again"
    )
    reverted = dict.fromkeys(current - ledger.latest.keys(), Expectation(problems=[text]))
    unpublished = {**plan.refused, **reverted}
    for verdict in judge_days(ledger.table, sorted(unpublished), {}, unpublished, {}):
        outcome = types.Outcome.WITHDRAWN if verdict.day in reverted else types.Outcome.FAILED
        yield types.DayResult(outcome, verdict)


def list_computed_results(committed: CommittedDays) -> Iterator[types.DayResult]:
    """Yield the result of each computed day.

    A day with a provenance of its own names the inputs of that, and not those of this run.
    """
    audited = committed.audited
    plan, computed = audited.plan, audited.computed
    for day in audited.identical:
        yield result_from_record(plan.ledger, day)
    for day, reason in audited.reasons.items():
        verdict = audited.verdicts[day]
        commit_version = committed.version if verdict.may_publish else None
        if not verdict.may_publish:
            outcome = types.Outcome.FAILED
        elif day in committed.revoked_days:
            # The commit covers the day, but it counts as never published, and its check says why.
            outcome = types.Outcome.WITHDRAWN
            expected = {day: Expectation(problems=[committed.revoked_days[day]])}
            (verdict,) = judge_days(plan.table, [day], {}, expected, {})
        elif day in committed.changed:
            outcome = types.Outcome.WRITTEN
        else:
            outcome = types.Outcome.UNCHANGED
        numbers = computed.numbers.get(day, {})
        provenance = computed.provenance.get(day)
        input_versions = provenance.inputs if provenance else plan.input_versions
        yield types.DayResult(outcome, verdict, commit_version, numbers, input_versions, reason)


class Publisher(dg.ConfigurableIOManager):
    """Reads and replaces whole days of the Delta tables of one warehouse.

    Attributes:
        engine: provides the Spark session.
        warehouse: each table is at `<warehouse>/<asset name>`.
        code_version: of the code of all tables; a backfill is pinned to it.
        code_versions: by table, of the code that computes it; commits record it.
        config_digest: of all settings that decide rows; a backfill is pinned to it.
        config_digests: by table, of the settings that decide its rows; commits record it.
        tables: where the tables are declared, see `load_tables`.
        git_commit: of the code; empty if unknown.
        git_dirty: whether the code differs from that commit; None if unknown.
        undo_days: for how many days a new table keeps replaced files.
        stalled_after: seconds after which a step logs the query it waits for; 0 for never.
        lineage: the namespace of jobs in OpenLineage events; None sends no events.
        landing: where the files of sources lie.
        catalog: where tables are registered, as `catalog.schema`; None registers none.
    """

    engine: Engine
    warehouse: str
    code_version: str
    code_versions: dict[str, str]
    config_digest: str
    config_digests: dict[str, str]
    tables: str
    git_commit: str = ""
    git_dirty: bool | None = None
    undo_days: int = UNDO_DAYS
    stalled_after: int = 0
    lineage: str | None = None
    landing: str = ""
    catalog: str | None = None
    _failed_days: dict[tuple[str, str], dict[date, str]] = PrivateAttr(default_factory=dict)
    _destination: Destination | None = PrivateAttr(default=None)

    @property
    def destination(self) -> Destination:
        """Where tables are read and candidates go; production unless set."""
        return self._destination or Destination(self.warehouse)

    def run_metadata(self, table: Table, run_id: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's part of the commit metadata: who, why, and by which code."""
        return {
            "run_id": run_id,
            "backfill_id": tags.get("dagster/backfill"),
            "launched_by": types.launched_by(tags),
            "reason": tags.get(types.REASON_TAG, ""),
            "asset": table.name,
            "code_version": self.code_of(table),
            "release": self.code_version,
            "config_digest": self.config_of(table),
            "package": package_version(),
            "git_commit": self.git_commit,
            "git_dirty": self.git_dirty,
        }

    def failed_days(self, run_id: str) -> dict[str, dict[date, str]]:
        """Return the days that a run in this process did not publish, with reasons, by table."""
        # Other steps of the run add to it at the same time.
        entries = list(self._failed_days.items())
        return {name: dict(days) for (run, name), days in entries if run == run_id}

    def request_for_run(
        self, table: Table, run_id: str, tags: Mapping[str, str], window: Window
    ) -> types.RunRequest:
        """Return what a run asks of the days of a table, by its tags.

        Raises:
            PublishError: the run belongs to a backfill that was planned with other code.
            dagster.Failure: a tag has a value that is not known.
        """
        current_pin = types.format_code_pin(self.code_version, self.config_digest)
        if (planned_pin := tags.get(types.CODE_TAG, current_pin)) != current_pin:
            raise PublishError(
                f"{table.name} [{window}]: the backfill was planned with code and "
                f"configuration {planned_pin}, and this run has {current_pin}. Nothing was "
                "written. Put back what was deployed and launch the backfill again, or make a new "
                "plan."
            )
        destination = self.destination
        return types.RunRequest(
            window,
            self.run_metadata(table, run_id, tags),
            rewrite=window if tags.get(types.REWRITE_TAG, "").lower() == "true" else (),
            merge=types.is_merge_run(tags) and table.merges and destination.merges,
            compares=destination.compares,
        )

    def plan_days(
        self,
        request: types.RunRequest,
        ledger: Ledger,
        sources: Sequence[TableSnapshot],
        fingerprints: Mapping[date, str],
        *,
        input_changes: Mapping[date, str] = MappingProxyType({}),
        recommitted: Container[date] = (),
        digester: StateDigester | None = None,
        session: table_schema.SessionFactory | None = None,
    ) -> types.ComputePlan:
        """Decide which days of a request to compute, and which cannot be.

        Args:
            request: of the run.
            ledger: of the table, read before its inputs.
            sources: the input tables.
            fingerprints: the current input fingerprint of each day.
            input_changes: by day, what changed in its input, if known better than `new input`.
            recommitted: days that the commit must cover although they have not changed.
            digester: of a stateful table.
            session: starts the Spark session of the step; the engine's default one if None.

        Raises:
            PublishError: the backfill was planned with other code.
            SchemaError: the table or one of its inputs does not match its model.
        """
        if not request.compares:
            self._raise_if_schema_differs(ledger, sources)
        window, record = request.window, request.record
        input_ledgers = [source.ledger for source in sources]
        assess.refuse_other_code([ledger, *input_ledgers], window, record, self.config_of)
        requested = assess.recompute_reasons(
            ledger,
            fingerprints,
            input_ledgers,
            record["code_version"],
            record["config_digest"],
            {
                d
                for d in fingerprints
                if request.compares or d in request.rewrite or d in recommitted
            },
            input_changes,
        )
        writer = self.writer(ledger.table, session)
        plan = types.ComputePlan(
            request, writer, ledger, sources, fingerprints, requested, {}, requested, digester
        )
        plan, buildable_window = _skip_days_on_hold(plan)
        return self._refuse_unbuildable_days(plan, buildable_window)

    def _raise_if_schema_differs(self, ledger: Ledger, sources: Sequence[TableSnapshot]) -> None:
        input_names = [source.table.name for source in sources]
        table_schema.raise_if_schema_differs(ledger, self.url(ledger.table), input_names)
        for source in sources:
            table_schema.raise_if_schema_differs(source.ledger, self.url(source.table))

    def _refuse_unbuildable_days(
        self, plan: types.ComputePlan, window: Window
    ) -> types.ComputePlan:
        """Return the plan without the days of a window that lack an input, or the day before."""
        table, request = plan.table, plan.request
        failed_by_table = self.failed_days(request.record["run_id"])
        others = [x for x in plan.sources if request.compares or x.table is not table]
        refused = assess.missing_inputs(others, window, self.config_of, failed_by_table)
        reasons: Mapping[date, str] = {d: r for d, r in plan.reasons.items() if d not in refused}
        if plan.digester and not request.compares:
            reasons, refused = compute.split_buildable_days(
                replace(plan, refused=refused),
                window,
                failed_by_table.get(table.name, ()),
                self.config_of(table),
            )
        return replace(plan, reasons=reasons, refused=refused)

    def publish(self, candidate: types.Candidate) -> list[types.DayResult]:
        """Audit the days of a candidate and commit those that pass.

        Returns:
            The result of each day, in ascending order.

        Raises:
            CommitRaceError: another commit changed the days first; nothing was committed.
            PublishError: the commit failed.
            RefusedError: the frame has rows outside of its days, or none where some are expected.
            SchemaError: a column is missing or of another type.
            dagster.Failure: Spark cannot compute the rows.
        """
        committed = None
        if candidate.computed is not None:
            audited = self.audit(candidate)
            committed = self.commit(audited)
        return list_results(candidate.plan, committed)

    def audit(self, candidate: types.Candidate) -> compute.AuditedDays:
        """Measure and judge the computed days of a candidate.

        Raises:
            RefusedError: the frame has rows outside of its days, or none where some are expected.
            SchemaError: a column is missing or of another type.
            dagster.Failure: Spark cannot compute the rows.
        """
        plan, computed = candidate.plan, candidate.computed
        assert computed is not None
        with compute.explain_spark_errors(plan.table, plan.days):
            return compute.audit_days(plan, computed)

    def commit(self, audited: compute.AuditedDays) -> CommittedDays:
        """Commit the days that passed the audit.

        If another commit comes first, it is tried again, as long as the days are as planned.

        Raises:
            CommitRaceError: another commit changed the days first; nothing was committed.
            PublishError: the commit failed.
        """
        for attempt in range(1, ATTEMPTS + 1):
            committed = self.commit_once(audited)
            if committed is not None:
                audited.remove_files()
                return committed
            plan, ledger = audited.plan, self.ledger(audited.plan.table)
            if not plan.holds_for(ledger):
                break
            request = plan.request
            assess.refuse_other_code([ledger], request.window, request.record, self.config_of)
            _log.info("%s [%s]: another run was first, trying again", plan.table.name, plan.days)
            time.sleep(random.uniform(0.1, 0.5) * min(attempt, 4))  # or runs collide again
            audited = replace(audited, plan=replace(plan, ledger=ledger))
        audited.remove_files()
        raise CommitRaceError(
            f"{audited.plan.table.name} [{audited.plan.days}]: another run committed first. The "
            "table is as it left it. Launch these days again."
        )

    def commit_once(self, audited: compute.AuditedDays) -> CommittedDays | None:
        """Commit the days that passed; return None if another commit of this package came first.

        Days to rewrite are written although their rows have not changed.

        Raises:
            PublishError: the commit failed, or the rows are not those that were audited.
        """
        plan, writer = audited.plan, audited.plan.writer
        if not audited.passed:
            return CommittedDays(audited)
        changed = sorted(
            v.day
            for v in audited.passed
            if v.day in plan.request.rewrite or plan.ledger.content_key(v.day) != v.metrics.digest
        )
        notes = self._commit_notes(audited)
        metadata = audited.encode_record(notes)
        files = audited.write_files(changed)
        if plan.request.merge and changed:
            version = writer.merge(files, changed, metadata, plan.ledger)
        else:
            version = writer.commit(files, changed, metadata, plan.ledger)
            if version is not None:
                audited.mark_committed(changed)
        if version is None:
            return None
        return CommittedDays(audited, version, frozenset(changed), notes.revoked_days)

    def _commit_notes(self, audited: compute.AuditedDays) -> records.CommitNotes:
        """Return what the commit tells others of the days that passed."""
        plan, computed = audited.plan, audited.computed
        days = {verdict.day for verdict in audited.passed}
        notes = computed.notes.of_days(days)
        if computed.log_change:
            before = TableSnapshot.at_version(plan.writer.url, plan.ledger, plan.writer.session)
            verdicts = [audited.verdicts[day] for day in audited.reasons]
            notes = replace(notes, details=computed.log_change.details_for(before, verdicts))
        if spreads := {day: bins for day, bins in audited.histograms.items() if day in days}:
            notes = replace(notes, details=msgspec.structs.replace(notes.details, spreads=spreads))
        return notes

    def url(self, table: Table) -> str:
        """Return the URL of a table at the destination."""
        return self.destination.url(table)

    def ledger(self, table: Table) -> Ledger:
        """Read the ledger of a table at the destination."""
        return self.destination.ledger(table)

    def code_of(self, table: Table) -> str:
        """Return the code version of a table; of all tables if it is not declared."""
        return self.code_versions.get(table.name, self.code_version)

    def config_of(self, table: Table) -> str:
        """Return the digest of the settings that decide a table; of all if it is not declared."""
        return self.config_digests.get(table.name, self.config_digest)

    def start_session(self) -> SparkSession:
        """Return the engine's default session, started at its first use."""
        session: SparkSession = self.engine.spark_session
        return session

    def writer(self, table: Table, session: table_schema.SessionFactory | None = None) -> Writer:
        """Return the writer that commits to a table, in the default session if none is given."""
        data_url = self.destination.data_url(table)
        return Writer(
            session or self.start_session, self.url(table), table, self.undo_days, data_url
        )

    def table_snapshot(
        self, ledger: Ledger, by_day: bool, session: table_schema.SessionFactory | None = None
    ) -> TableSnapshot:
        """Return a table at the version of its ledger, in the default session if none is given."""
        url, start_session = self.url(ledger.table), session or self.start_session
        return TableSnapshot.at_version(url, ledger, start_session, by_day=by_day)


def _skip_days_on_hold(plan: types.ComputePlan) -> tuple[types.ComputePlan, Window]:
    """Drop days on hold from a plan and its window, unless a person launched the run.

    Of a stateful table, days after a day on hold are not built either.
    """
    request, window = plan.request, plan.request.window
    if request.compares or request.record.get("launched_by", records.PERSON) == records.PERSON:
        return plan, window
    on_hold = assess.days_on_hold(plan.ledger, plan.fingerprints)
    if on_hold and plan.digester:
        window = Window(window.start, max(window.start, min(on_hold)))
    reasons = {d: reason for d, reason in plan.reasons.items() if d not in on_hold and d in window}
    return replace(plan, reasons=reasons, requested=reasons), window


@dataclass(frozen=True)
class Input:
    """An input of an asset, not read yet: the ledger of the table to build is read before it."""

    publisher: Publisher
    table: Table
    by_day: bool

    def read_ledger(self) -> Ledger:
        """Read the current ledger of the input."""
        return self.publisher.ledger(self.table)

    def snapshot(
        self, ledger: Ledger, session: table_schema.SessionFactory | None = None
    ) -> TableSnapshot:
        """Return the input at the version of its ledger; see `Publisher.table_snapshot`."""
        return self.publisher.table_snapshot(ledger, self.by_day, session)
