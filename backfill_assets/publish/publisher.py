"""The only write path: compute and audit the days that changed, then make one commit.

Every row that reaches a table passes through `Publisher.publish`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Container, Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg
import msgspec
from pydantic import PrivateAttr
from pyspark.sql import DataFrame

from backfill_assets.audit.verdicts import Expectation, Verdict, judge_days
from backfill_assets.calendar.partitions import DaySet, Window, to_ranges
from backfill_assets.delta import table_schema
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import rows_as_of
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import PERSON, restore_verdict
from backfill_assets.publish import assess, stateful
from backfill_assets.publish.compute import (
    AuditedDays,
    add_spreads,
    audit_summary,
    compute_days,
    explain_spark_errors,
    has_computed_ranges,
)
from backfill_assets.publish.types import (
    REASON_TAG,
    Candidate,
    CommitNotes,
    ComputePlan,
    DayResult,
    Outcome,
    Snapshot,
    launched_by,
)
from backfill_assets.runtime_versions import package_version
from backfill_assets.settings import UNDO_DAYS
from backfill_assets.spark.session import Engine
from backfill_assets.tables.table import Table


def result_from_record(ledger: Ledger, day: date) -> DayResult:
    """Return the result of a day that stays as published, from the record of its commit."""
    record = ledger.latest[day]
    published = record.days[day]
    verdict = restore_verdict(ledger.table, day, published)
    numbers, inputs = published.numbers, record.inputs
    return DayResult(
        Outcome.IDENTICAL, verdict, record.version, numbers, inputs, record.reason_for_day(day)
    )


def list_skipped_results(
    ledger: Ledger, plan: ComputePlan, reasons: Container[date], refused: Mapping[date, Expectation]
) -> list[DayResult]:
    """Return the results of days that are not computed: identical, reverted or without an input."""
    current_days = {day for day in plan.fingerprints if day not in reasons and day not in refused}
    failed = judge_days(ledger.table, sorted(refused), {}, refused, {})
    reverted = sorted(current_days - ledger.latest.keys())
    text = (
        "an undo has reverted its rows, and its inputs are the same: only a person builds it again"
    )
    on_hold = [_failed_verdict(ledger.table, day, text) for day in reverted]
    return [
        *(result_from_record(ledger, day) for day in sorted(current_days & ledger.latest.keys())),
        *(DayResult(Outcome.WITHDRAWN, verdict) for verdict in on_hold),
        *(DayResult(Outcome.FAILED, verdict) for verdict in failed),
    ]


def _failed_verdict(table: Table, day: date, problem: str) -> Verdict:
    """The verdict of a day that is not measured, with a problem as its finding."""
    (verdict,) = judge_days(table, [day], {}, {day: Expectation(problems=[problem])}, {})
    return verdict


def list_computed_results(
    table: Table,
    audited: AuditedDays,
    reason_by_day: Mapping[date, str],
    version: int | None,
    inputs: Mapping[str, int],
    commit_notes: CommitNotes,
    changed: Container[date],
) -> list[DayResult]:
    """Return a result for each day of `reason_by_day`: the computed days, with why.

    A day with a provenance of its own names the inputs of that, and not those of this run.
    `version` is None if no day passed; `changed` are the days whose files were written.
    """
    results = []
    for day, reason in reason_by_day.items():
        verdict = audited.verdicts[day]
        commit_version = version if verdict.may_publish else None
        if not verdict.may_publish:
            outcome = Outcome.FAILED
        elif day in commit_notes.revoked_days:
            # The commit covers the day, but it counts as never published, and its check says why.
            outcome = Outcome.WITHDRAWN
            verdict = _failed_verdict(table, day, commit_notes.revoked_days[day])
        elif day in changed:
            outcome = Outcome.WRITTEN
        else:
            outcome = Outcome.UNCHANGED
        numbers = audited.computed.numbers.get(day, {})
        provenance = audited.computed.provenance.get(day)
        input_versions = provenance.inputs if provenance else inputs
        results.append(DayResult(outcome, verdict, commit_version, numbers, input_versions, reason))
    return results


_log = logging.getLogger(__name__)

_ATTEMPTS = 30


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
    _failed_days: dict[tuple[str, str], dict[date, str]] = PrivateAttr(default_factory=dict)

    def run_metadata(self, table: Table, run_id: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's part of the commit metadata: who, why, and by which code."""
        return {
            "run_id": run_id,
            "backfill_id": tags.get("dagster/backfill"),
            "launched_by": launched_by(tags),
            "reason": tags.get(REASON_TAG, ""),
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

    def publish(
        self,
        candidate: Candidate,
        window: Window,
        record: Mapping[str, Any],
        *,
        rewrite: Container[date] = (),
        merge: bool = False,
    ) -> list[DayResult]:
        """Compute the days that changed, audit them, and commit those that pass.

        Older input never overwrites newer, however many runs write a day: first the table's ledger
        is read, then the inputs, and the commit succeeds only if no other came since. If one did,
        the run starts again with the new ledger.

        Args:
            candidate: the asset's table and plan.
            window: the run's days.
            record: the run's part of the commit metadata.
            rewrite: days to compute and write even if nothing has changed.
            merge: whether to merge rows by their natural key, if the table allows it. The result is
                the same: a day with rows that a merge would leave behind fails.

        Returns:
            The result of each day, in ascending order.

        Raises:
            PublishError: the commit failed, or the backfill was planned with other code.
            SchemaError: the table or one of its inputs does not match its model.
        """
        table, merge = candidate.table, merge and candidate.table.merges
        audited: AuditedDays | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            ledger, plan = self._plan_days(candidate, window, record)
            requested = assess.days_to_compute(ledger, plan, *_code_and_settings(record), rewrite)
            requested, buildable = _skip_days_on_hold(ledger, plan, window, requested, record)
            reasons, refused = self._buildable_days(ledger, plan, buildable, requested, record)
            results = list_skipped_results(ledger, plan, reasons, refused)
            if reasons:
                fingerprints = {day: plan.fingerprints[day] for day in reasons}
                # The rows that a merge would leave behind also depend on the table.
                if audited is None or merge or not audited.is_current_for(fingerprints, ledger):
                    self._remove_orphaned_files(table, audited)
                    audited = self._compute_days(
                        table, plan, fingerprints, ledger, record, merge=merge
                    )
                for day in stateful.unchanged_days(ledger, plan, audited.fingerprints, requested):
                    results.append(result_from_record(ledger, day))
                    del reasons[day]
                written_results = self._commit_passed_days(
                    table, audited, reasons, ledger, plan, record, rewrite
                )
                if written_results is None:
                    _log.info("%s [%s]: another run was first, looking again", table.name, window)
                    time.sleep(random.uniform(0.1, 0.5) * min(attempt, 4))  # or runs collide again
                    continue
                results += written_results
            self._remove_orphaned_files(table, audited)
            return sorted(results, key=lambda result: result.day)
        raise PublishError(
            f"{table.name} [{window}]: other runs committed first {_ATTEMPTS} times in a row. The "
            "table is as they left it. Launch these days again."
        )

    def _compute_days(
        self,
        table: Table,
        plan: ComputePlan,
        fingerprints: Mapping[date, str],
        ledger: Ledger,
        record: Mapping[str, Any],
        *,
        merge: bool,
    ) -> AuditedDays:
        """Compute and audit the days; errors of Spark become a step failure.

        Raises:
            dagster.Failure: Spark cannot compute the rows.
        """
        merge_writer = self.writer(table) if merge else None
        skip_independence = has_computed_ranges(ledger, record["code_version"])
        with explain_spark_errors(table, DaySet.from_days(fingerprints)):
            return compute_days(
                table, plan, fingerprints, ledger, merge_writer, skip_independence=skip_independence
            )

    def _plan_days(
        self, candidate: Candidate, window: Window, record: Mapping[str, Any]
    ) -> tuple[Ledger, ComputePlan]:
        """Read the table's ledger and, after it, the inputs for the plan.

        Raises:
            PublishError: the backfill was planned with other code.
            SchemaError: the table or one of its inputs does not match its model.
        """
        ledger = self.ledger(candidate.table)
        plan = candidate.plan(window)
        made_from = [source.table.name for source in plan.sources]
        table_schema.raise_if_schema_differs(ledger, self.url(candidate.table), made_from)
        for source in plan.sources:
            table_schema.raise_if_schema_differs(source.ledger, self.url(source.table))
        sources = [source.ledger for source in plan.sources]
        assess.refuse_other_code([ledger, *sources], window, record, self.config_of)
        return ledger, plan

    def _buildable_days(
        self,
        ledger: Ledger,
        plan: ComputePlan,
        window: Window,
        requested: Mapping[date, str],
        record: Mapping[str, Any],
    ) -> tuple[dict[date, str], dict[date, Expectation]]:
        """Split the days to compute into those that can be built and those that are refused."""
        table, failed_by_table = ledger.table, self.failed_days(record["run_id"])
        others = [source for source in plan.sources if source.table is not table]
        refused = assess.missing_inputs(others, window, self.config_of, failed_by_table)
        if plan.fingerprint_after:
            own_failed_days, config = failed_by_table.get(table.name, ()), self.config_of(table)
            return stateful.split_buildable_days(
                ledger, plan, window, requested, refused, own_failed_days, config
            )
        return {day: reason for day, reason in requested.items() if day not in refused}, refused

    def _commit_passed_days(
        self,
        table: Table,
        audited: AuditedDays,
        reasons: Mapping[date, str],
        ledger: Ledger,
        plan: ComputePlan,
        record: Mapping[str, Any],
        rewrite: Container[date],
    ) -> list[DayResult] | None:
        """Commit the days that passed; return None if another commit of this package came first.

        Days in `rewrite` are written although their rows have not changed.
        """
        verdicts = [audited.verdicts[day] for day in reasons]
        inputs = {source.table.name: source.ledger.version or 0 for source in plan.sources}
        passed = [verdict for verdict in verdicts if verdict.may_publish]
        changed = {
            v.day
            for v in passed
            if v.day in rewrite or ledger.content_key(v.day) != v.metrics.digest
        }
        version, commit_notes = None, CommitNotes()
        if passed:
            if audited.computed.commit_notes:
                before = None if ledger.version is None else self.table_snapshot(ledger, False)
                commit_notes = audited.computed.commit_notes(before, verdicts)
            metadata = {
                **record,
                "inputs": inputs,
                "since": ledger.version,
                **audit_summary(
                    [v for v in verdicts if v.day not in commit_notes.revoked_days], audited
                ),
                "because": assess.days_by_reason({v.day: reasons[v.day] for v in passed}),
                "final": to_ranges(commit_notes.final_days),
                "withdrawn": to_ranges(commit_notes.revoked_days),
                "said": msgspec.to_builtins(add_spreads(commit_notes.details, audited, passed)),
            }
            version = self._commit_files(table, audited, sorted(changed), metadata, ledger)
            if version is None:
                return None
        return list_computed_results(
            table, audited, reasons, version, inputs, commit_notes, changed
        )

    def _commit_files(
        self,
        table: Table,
        audited: AuditedDays,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        ledger: Ledger,
    ) -> int | None:
        """Return the version that holds the days; None if another commit came first.

        Raises:
            PublishError: the commit failed, or the rows are not those that were audited.
        """
        writer = self.writer(table)
        if audited.merge and days:
            return writer.merge(audited.write_files(writer, days), days, metadata, ledger)
        version = writer.commit(audited.write_files(writer, days), days, metadata, ledger)
        if version is not None:
            audited.mark_committed(days)
        return version

    def _remove_orphaned_files(self, table: Table, audited: AuditedDays | None) -> None:
        if audited and audited.orphaned_files:
            self.writer(table).remove_files(audited.orphaned_files)

    def url(self, table: Table) -> str:
        """Return the URL of a table."""
        return f"{self.warehouse}/{table.name}"

    def ledger(self, table: Table) -> Ledger:
        """Read the current ledger of a table."""
        return read_ledger(self.url(table), table)

    def code_of(self, table: Table) -> str:
        """Return the code version of a table; of all tables if it is not declared."""
        return self.code_versions.get(table.name, self.code_version)

    def config_of(self, table: Table) -> str:
        """Return the digest of the settings that decide a table; of all if it is not declared."""
        return self.config_digests.get(table.name, self.config_digest)

    def writer(self, table: Table) -> Writer:
        """Return the writer that commits to a table."""
        return Writer(lambda: self.engine.spark_session, self.url(table), table, self.undo_days)

    def table_snapshot(self, ledger: Ledger, by_day: bool) -> Snapshot:
        """Return a table at the version of its ledger; rows are read on demand.

        The version is pinned: the audit and the write evaluate a frame at different times, and must
        not see a commit that comes in between.
        """
        table = ledger.table

        def read(days: Collection[date] | None) -> DataFrame:
            """Read days at the ledger's version; `Snapshot` calls it, with None for all days."""
            if ledger.version is None:
                raise dg.Failure(
                    f"{table.name} has no table yet at {self.url(table)}: materialize it first. "
                    "Nothing was written.",
                    allow_retries=False,
                )
            spark = self.engine.spark_session
            return rows_as_of(spark, self.url(table), table, ledger.version, days)

        return Snapshot(ledger, by_day, read)


def _skip_days_on_hold(
    ledger: Ledger,
    plan: ComputePlan,
    window: Window,
    requested: Mapping[date, str],
    record: Mapping[str, Any],
) -> tuple[dict[date, str], Window]:
    """Drop days on hold from the days to compute and the window, unless a person launched the run.

    Of a stateful table, days after a day on hold are not built either.
    """
    if record.get("launched_by", PERSON) == PERSON:
        return dict(requested), window
    on_hold = assess.days_on_hold(ledger, plan.fingerprints)
    if on_hold and plan.fingerprint_after:
        window = Window(window.start, max(window.start, min(on_hold)))
    return {
        d: reason for d, reason in requested.items() if d not in on_hold and d in window
    }, window


def _code_and_settings(record: Mapping[str, Any]) -> tuple[str, str]:
    return record["code_version"], record["config_digest"]
