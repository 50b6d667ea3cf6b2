"""The publication of candidates: audit their days, then make one commit of those that pass.

Every row that a run computes or an undo restores passes through `audit_days` and
`AuditedDays.commit_once`.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple

import msgspec
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from backfill_assets.audit.profile import (
    Baseline,
    Histograms,
    MeasuredRows,
    PublishedHistory,
    count_leftover_rows,
    judge_measured_days,
    measure_frame,
)
from backfill_assets.audit.verdicts import (
    Expectation,
    Verdict,
    judge_days,
    sum_digests,
)
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta import records
from backfill_assets.delta.commits import PartRecord, PublishError
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.delta_rs import race_attempts
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails
from backfill_assets.publish import types
from backfill_assets.publish.compute import explain_spark_errors
from backfill_assets.staleness.assess import refuse_other_code
from backfill_assets.staleness.snapshot import Snapshot

_log = logging.getLogger(__name__)


def publish_candidates(candidates: Sequence[types.Candidate]) -> Iterator[types.Delivery]:
    """Audit the days of candidates and commit those that pass.

    The candidates are of one table, or of parts of one whose rows are in the same frame: these are
    measured and written together, and those whose same days changed are committed together. A part
    that cannot be committed holds back no other one.

    Yields:
        The candidates of each commit, each with the result of each day, in ascending order.

    Raises:
        CommitRaceError: another commit changed the days first; nothing of these was committed.
        PublishError: the commit failed.
        RefusedError: the frame has rows outside of its days, or none where some are expected.
        SchemaError: a column is missing or of another type.
        dagster.Failure: Spark cannot compute the rows.
    """
    audited = audit_days(candidates)
    if len(audited) > 1:
        _write_together([*audited.values()])
    by_part = {candidate.plan.table.part: candidate for candidate in candidates}
    failure: PublishError | None = None
    waiting = _group_by_commit(audited)
    follows = False
    try:
        if skipped := [candidate for part, candidate in by_part.items() if part not in audited]:
            yield [(candidate, list_results(candidate.plan)) for candidate in skipped]
        while waiting:
            parts = waiting.pop(0)
            try:
                committed = _publish_days([audited[part] for part in parts], follows=follows)
            except types.CommitRaceError:
                raise
            except PublishError as error:
                failure = failure or error
                continue
            finally:
                follows = True
            if committed is None:
                waiting[:0] = [[part] for part in parts]
                continue
            yield [
                (by_part[part], list_results(by_part[part].plan, days))
                for part, days in zip(parts, committed, strict=True)
            ]
    finally:
        for parts in waiting:  # written with the others, and not committed any more
            _remove_files([audited[part] for part in parts])
    if failure is not None:
        raise failure


#: Days of parts in a commit. Their records are one text in it, which a JSON parser may limit.
_CELLS_PER_COMMIT = 1000


class _CommitKey(NamedTuple):
    """What parts have in common that a commit covers, or the part that has one of its own.

    Attributes:
        url: of the table. In a target, each part has a clone of its own.
        changed: the days whose rows have changed.
        passed: whether any day passed.
        part: empty if others may be in the same commit.
    """

    url: str
    changed: Sequence[date]
    passed: bool
    part: str


def _group_by_commit(audited: "Mapping[str, AuditedDays]") -> list[list[str]]:
    """Group parts that one commit can cover: it replaces the same days of each.

    A part that is retired, or whose rows were not written with those of the others, is committed by
    itself.
    """
    groups = defaultdict[_CommitKey, list[str]](list)
    for part, days in audited.items():
        changed, plan = days.changed, days.plan
        can_share = (
            days.files.keys() >= {*changed}
            and not plan.request.merge
            and plan.ledger.retirement_commit is None
        )
        key = _CommitKey(plan.writer.url, (*changed,), bool(days.passed), "" if can_share else part)
        groups[key].append(part)
    size = max(1, _CELLS_PER_COMMIT // max((len(d.verdicts) for d in audited.values()), default=1))
    return [parts[n : n + size] for parts in groups.values() for n in range(0, len(parts), size)]


def _publish_days(
    audited: "Sequence[AuditedDays]", *, follows: bool
) -> "list[CommittedDays] | None":
    """Commit the days that passed, of a table or of parts of one, in one commit.

    If another commit comes first, it is tried again, as long as the days are as planned.

    Args:
        audited: the days, by part; the same days of each have changed.
        follows: whether other parts of the table were committed since the days were planned.

    Returns:
        The committed days; None if the parts are to be committed each by itself.

    Raises:
        CommitRaceError: another commit changed the days first; nothing was committed.
        PublishError: the commit failed.
    """
    current = _with_current_ledgers(audited) if follows else audited
    for _ in race_attempts():
        if current is None:
            break
        first, *others = current
        committed = first.commit_once(others)
        if committed is not None:
            _remove_files(audited)
            return committed
        current = _with_current_ledgers(audited)
        _log.info("%s: another run was first, trying again", first.plan.table.name)
    if len(audited) > 1:
        return None
    _remove_files(audited)
    plan = audited[0].plan
    raise types.CommitRaceError(
        f"{plan.table.name} [{plan.days}]: another run committed first. The table is as it left "
        "it. Launch these days again."
    )


def _with_current_ledgers(audited: "Sequence[AuditedDays]") -> "Sequence[AuditedDays] | None":
    """Return the days with the current ledgers of their parts; None if one is not as planned.

    The same days of each must have changed: another writer may have put rows into those of some.

    Raises:
        PublishError: code that is not that of the backfill would publish days without parts.
    """
    if not audited[0].passed:
        return audited
    try:
        current = [days.with_current_ledger() for days in audited]
    except PublishError:
        if len(audited) > 1:
            return None
        _remove_files(audited)
        raise
    planned = [days for days in current if days]
    is_alike = len({(*days.changed,) for days in planned}) == 1
    return planned if len(planned) == len(audited) and is_alike else None


def _remove_files(audited: "Sequence[AuditedDays]") -> None:
    for days in audited:
        days.remove_files()


def audit_days(candidates: Sequence[types.Candidate]) -> "dict[str, AuditedDays]":
    """Measure and judge the computed days of candidates, not those between them; by part.

    Raises:
        SchemaError: a column is missing or of another type.
        DeclarationError: a condition of the model is not valid SQL.
        RefusedError: rows outside of these days, rows without a day, or no rows where some are
            expected.
        dagster.Failure: Spark cannot compute the rows.
    """
    computed = {c.plan.table.part: (c.plan, c.computed) for c in candidates if c.computed}
    if not computed:
        return {}
    first, first_days = next(iter(computed.values()))
    with explain_spark_errors(first.table, first.days):
        frame = first.table.conform_frame(first_days.frame)
        tables = [plan.table for plan, _ in computed.values()]
        expectations = {part: days.expectations for part, (_, days) in computed.items()}
        measured = measure_frame(frame, tables, first.days, first.rules, expectations)
        return {
            part: _judge_days(plan, days, frame, measured[part])
            for part, (plan, days) in computed.items()
        }


def _judge_days(
    plan: types.ComputePlan, computed: types.ComputedDays, frame: DataFrame, measured: MeasuredRows
) -> "AuditedDays":
    """Judge the computed days of a plan by what was counted in their rows."""
    ledger, days = plan.ledger, plan.days
    baselines = {
        day: Baseline(f"version {record.version}", record.details.spreads[day])
        for day, record in ledger.latest.items()
        if record.details.spreads.get(day) and ledger.current_record(day)
    }
    leftover_rows: Mapping[date, int] = {}
    if plan.request.merge and ledger.version is not None:
        rows = plan.table.rows_of_part(frame)
        leftover_rows = count_leftover_rows(rows, plan.published.read_days(days), plan.table)
    history = PublishedHistory(ledger.measured, baselines)
    audit = judge_measured_days(
        plan.table, days, measured, computed.expectations, history, leftover_rows
    )
    input_digests: Mapping[date, str] = {day: plan.input_digests[day] for day in days}
    verdicts, identical = audit.verdicts, set[date]()
    if plan.snapshot:
        input_digests, verdicts, identical = chain_days(plan, plan.snapshot, verdicts)
    return AuditedDays(
        plan,
        computed.with_numbers(audit.figures),
        frame,
        input_digests,
        {verdict.day: verdict for verdict in verdicts},
        identical,
        audit.histograms,
    )


def _write_together(audited: Sequence["AuditedDays"]) -> None:
    """Write the data files of all parts at once; what fails here is left to the commit of each."""
    written = [days for days in audited if days.changed and not days.plan.request.merge]
    if not written:
        return
    first = written[0]
    digest = sum_digests(
        days.verdicts[day].metrics.digest for days in written for day in days.changed
    )
    try:
        files = first.plan.writer.write_parts(
            first.frame,
            [(days.plan.table, days.changed) for days in written],
            digest,
            rebalance=first.computed.scattered,
        )
        for days in written:
            part_files = files.get(days.plan.table.part, {})
            days.files.update({day: [*part_files.get(day, ())] for day in days.changed})
    except PublishError as error:
        _log.warning("parts could not be written together, now each by itself: %s", error)


def chain_days(
    plan: types.ComputePlan, snapshot: Snapshot, verdicts: Sequence[Verdict]
) -> tuple[dict[date, str], list[Verdict], set[date]]:
    """Judge days that are built one upon the other, given how the day before came out.

    `verdicts` are those of each day by itself, in ascending order.

    Returns:
        The input digest of each day; the verdicts, of which none passes after a day that did
        not pass; and the days that came out as they are published, if they were computed only as
        the day before had changed.
    """
    table, ledger = plan.table, plan.ledger
    input_digests: dict[date, str] = {}
    verdict_by_day: dict[date, Verdict] = {}
    identical: set[date] = set()
    for verdict in verdicts:
        day, previous = verdict.day, verdict_by_day.get(verdict.day - DAY)
        content = previous.metrics.digest if previous else ledger.content_key(day - DAY)
        input_digests[day] = snapshot.digest_following(table.name, day, content)
        published = ledger.current_record(day)
        if day not in plan.requested and published and published.input_digest == input_digests[day]:
            identical.add(day)
        if previous and not previous.may_publish:
            problem = f"it is built upon {table.name}[{previous.day}], which did not pass"
            expectation = verdict.expectation.with_problem(problem)
            (verdict,) = judge_days(table, [day], {day: verdict.metrics}, {day: expectation}, {})
        verdict_by_day[day] = verdict
    return input_digests, [*verdict_by_day.values()], identical


@dataclass(frozen=True)
class AuditedDays:
    """Days that were computed and audited, on their way into a commit.

    Attributes:
        plan: by which they were computed.
        computed: the result of the asset's function, with the audit's figures.
        frame: their rows, with the columns and types of the table.
        input_digests: by day, the input digest.
        verdicts: of the audit.
        identical: days of a stateful table that came out as they are published, and were computed
            only as the day before had changed.
        histograms: by day, of the columns that are watched for drift.
        files: by day, data files that are written but not committed.
        log_details: of a log, what its commit tells, by the number of commits before it.
    """

    plan: types.ComputePlan
    computed: types.ComputedDays
    frame: DataFrame
    input_digests: Mapping[date, str]
    verdicts: Mapping[date, Verdict]
    identical: Collection[date] = ()
    histograms: Mapping[date, Histograms] = field(default_factory=dict)
    files: dict[date, list[AddAction]] = field(default_factory=dict)
    log_details: dict[tuple[int, int], CommitDetails] = field(default_factory=dict)

    def by_plan(self, plan: types.ComputePlan, computed: types.ComputedDays) -> "AuditedDays":
        """The same rows, with the inputs, provenance and files of a later plan of the same days."""
        return replace(
            self,
            plan=plan,
            computed=replace(computed, numbers=self.computed.numbers),
            input_digests={day: plan.input_digests[day] for day in plan.days},
            files={},
            log_details={},
        )

    @property
    def reasons(self) -> dict[date, str]:
        """By day that is not identical, why it was computed."""
        return {d: reason for d, reason in self.plan.reasons.items() if d not in self.identical}

    @property
    def passed(self) -> list[Verdict]:
        """The verdicts of the days to commit."""
        return [self.verdicts[day] for day in self.reasons if self.verdicts[day].may_publish]

    @property
    def changed(self) -> list[date]:
        """The days to commit whose rows have changed, or are to be written in any case."""
        plan = self.plan
        return sorted(
            v.day
            for v in self.passed
            if v.day in plan.request.rewrite or plan.ledger.content_key(v.day) != v.metrics.digest
        )

    def with_current_ledger(self) -> "AuditedDays | None":
        """Return the days with the current ledger of the table; None if they are not as planned."""
        plan, request = self.plan, self.plan.request
        ledger = plan.writer.read_ledger()
        if not plan.holds_for(ledger):
            return None
        refuse_other_code(ledger, request.window, request.record)
        return replace(self, plan=replace(plan, ledger=ledger))

    def commit_once(self, others: "Sequence[AuditedDays]" = ()) -> "list[CommittedDays] | None":
        """Commit the days that passed; return None if another commit of this package came first.

        Days to rewrite are written although their rows have not changed.

        Args:
            others: days of other parts of the table, of which the same days have changed and are
                written; they get into the same commit.

        Raises:
            PublishError: the commit failed, or the rows are not those that were audited.
        """
        plan, writer, together = self.plan, self.plan.writer, [self, *others]
        if not self.passed:
            return [CommittedDays(days) for days in together]
        changed = self.changed
        record = self.encode_record()
        written = [days.write_files(changed) for days in together]
        files = {day: [f for part in written for f in part.get(day, ())] for day in changed}
        if plan.request.merge and changed:
            version = writer.merge(files, changed, record, plan.ledger)
        else:
            records = [PartRecord(days.encode_record(), days.plan.ledger) for days in others]
            version = writer.commit(files, changed, record, plan.ledger, records)
            if version is not None:
                for days in together:
                    for day in changed:
                        days.files.pop(day, None)  # the table has them now
        if version is None:
            return None
        return [CommittedDays(days, version, frozenset(changed)) for days in together]

    def encode_record(self) -> dict[str, Any]:
        """Encode the record of the commit of the days that passed."""
        plan, computed, reasons = self.plan, self.computed, self.reasons
        published = records.to_published_days(
            self.passed,
            {**self.input_digests, **computed.input_digests},
            computed.numbers,
            computed.made_under,
            computed.provenance,
        )
        notes = computed.notes.of_days(published)
        if computed.log_change:
            ledger = plan.ledger  # commits of other parts change nothing of this one
            state = len(ledger.records), len(ledger.external_commits)
            if state not in self.log_details:
                verdicts = [self.verdicts[day] for day in reasons]
                details = computed.log_change.details_for(plan.published, verdicts)
                self.log_details[state] = details
            notes = replace(notes, details=self.log_details[state])
        if spreads := {day: bins for day, bins in self.histograms.items() if day in published}:
            notes = replace(notes, details=msgspec.structs.replace(notes.details, spreads=spreads))
        return records.encode_published(
            plan.request.record,
            plan.input_versions,
            plan.ledger.version,
            published,
            {d: self.verdicts[d].failure_reasons for d in reasons if d not in published},
            {day: reasons[day] for day in published},
            notes,
        )

    def write_files(self, days: Sequence[date]) -> DataFiles:
        """Write the data files of days once, and return them; files that exist are reused.

        Raises:
            PublishError: writing failed, or the files hold other rows than were audited.
        """
        existing = {**self.files, **self.computed.files}
        if new_days := [day for day in days if day not in existing]:
            digest = sum_digests(self.verdicts[day].metrics.digest for day in new_days)
            written = self.plan.writer.write_rows(
                self.frame, new_days, digest, rebalance=self.computed.scattered
            )
            self.files.update({day: [*written.get(day, ())] for day in new_days})
        return {**self.files, **self.computed.files}

    def remove_files(self) -> None:
        """Remove data files that no commit contains.

        Only where the log shows that: after an error of the store, a commit may still arrive.
        """
        if files := [file for files in self.files.values() for file in files]:
            self.plan.writer.remove_files(files)


@dataclass(frozen=True)
class CommittedDays:
    """Days that were computed and audited, and the commit of those that passed.

    Attributes:
        audited: the days.
        version: of the commit; None if no day passed.
        changed: the days whose files were written.
    """

    audited: AuditedDays
    version: int | None = None
    changed: Collection[date] = ()

    def results(self) -> Iterator[types.DayResult]:
        """Yield the result of each day.

        A day with a provenance of its own names the inputs of that, and not those of this run.
        """
        plan, computed = self.audited.plan, self.audited.computed
        revoked_days = computed.notes.revoked_days
        for day in self.audited.identical:
            yield result_from_record(plan.ledger, day)
        for day, reason in self.audited.reasons.items():
            verdict = self.audited.verdicts[day]
            commit_version = self.version if verdict.may_publish else None
            if not verdict.may_publish:
                outcome = types.Outcome.FAILED
            elif day in revoked_days:
                # The commit covers the day, but it counts as never published, and its check says
                # why.
                outcome = types.Outcome.WITHDRAWN
                expected = {day: Expectation(problems=[revoked_days[day]])}
                (verdict,) = judge_days(plan.table, [day], {}, expected, {})
            elif day in self.changed:
                outcome = types.Outcome.WRITTEN
            else:
                outcome = types.Outcome.UNCHANGED
            numbers = computed.numbers.get(day, {})
            provenance = computed.provenance.get(day)
            input_versions = provenance.inputs if provenance else plan.input_versions
            yield types.DayResult(outcome, verdict, commit_version, numbers, input_versions, reason)


def list_results(
    plan: types.ComputePlan, committed: CommittedDays | None = None
) -> list[types.DayResult]:
    """Return the result of each day of a plan, in ascending order.

    `committed` is None if no day was computed.
    """
    results = [*_list_skipped_results(plan)]
    if committed:
        results += committed.results()
    return sorted(results, key=lambda result: result.day)


def _list_skipped_results(plan: types.ComputePlan) -> Iterator[types.DayResult]:
    """Yield the results of days that are not computed: identical, reverted or without an input."""
    ledger = plan.ledger
    current = plan.input_digests.keys() - plan.reasons.keys() - plan.refused.keys()
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


def result_from_record(ledger: Ledger, day: date) -> types.DayResult:
    """Return the result of a day that stays as published, from the record of its commit."""
    record = ledger.latest[day]
    published = record.days[day]
    verdict = types.restore_verdict(ledger.table, day, published)
    numbers, inputs = published.numbers, record.inputs
    return types.DayResult(
        types.Outcome.IDENTICAL,
        verdict,
        record.version,
        numbers,
        inputs,
        record.reason_for_day(day),
    )
