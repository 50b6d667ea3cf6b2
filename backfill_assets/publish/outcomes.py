"""What became of the days of a run."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import date

from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import restore_verdict
from backfill_assets.publish.candidates import CommitNotes, ComputePlan, DayResult, Outcome
from backfill_assets.publish.computing import AuditedDays
from backfill_assets.quality.audit import Expectation, judge_days
from backfill_assets.tables.table import Table


def result_from_record(ledger: Ledger, day: date) -> DayResult:
    """A day as the record of its commit tells of it."""
    record = ledger.latest[day]
    published = record.days[day]
    verdict = restore_verdict(ledger.table, day, published)
    numbers, inputs = published.numbers, record.inputs
    return DayResult(
        Outcome.IDENTICAL, verdict, record.version, numbers, inputs, record.reason_for_day(day)
    )


def skipped_days(
    ledger: Ledger, plan: ComputePlan, reasons: Container[date], refused: Mapping[date, Expectation]
) -> list[DayResult]:
    """The days that are not computed: as they are published already, or as an input lacks them."""
    current_days = {day for day in plan.fingerprints if day not in reasons and day not in refused}
    failed = judge_days(ledger.table, sorted(refused), {}, refused, {})
    reverted = sorted(current_days - ledger.latest.keys())
    text = (
        "an undo has reverted its rows, and its inputs are the same: only a person builds it again"
    )
    on_hold = judge_days(
        ledger.table, reverted, {}, dict.fromkeys(reverted, Expectation(problems=[text])), {}
    )
    return [
        *(result_from_record(ledger, day) for day in sorted(current_days & ledger.latest.keys())),
        *(DayResult(Outcome.WITHDRAWN, verdict) for verdict in on_hold),
        *(DayResult(Outcome.FAILED, verdict) for verdict in failed),
    ]


def day_results(
    table: Table,
    audited: AuditedDays,
    reasons: Mapping[date, str],
    version: int | None,
    inputs: Mapping[str, int],
    commit_notes: CommitNotes,
    changed: Container[date],
) -> list[DayResult]:
    """What became of the days that were computed.

    Args:
        table: the table.
        audited: the days, computed and judged.
        reasons: the days, each with why it was computed.
        version: the commit that speaks of those that passed; none if there are none.
        inputs: the version of each table that they were computed from.
        commit_notes: what the asset added to the commit.
        changed: the days that were written.
    """
    results = []
    for day, reason in reasons.items():
        verdict = audited.verdicts[day]
        outcome, commit_version = Outcome.UNCHANGED, version if verdict.may_publish else None
        if not verdict.may_publish:
            outcome = Outcome.FAILED
        elif day in commit_notes.revoked_days:
            outcome = Outcome.WITHDRAWN
            expectation = Expectation(problems=[commit_notes.revoked_days[day]])
            (verdict,) = judge_days(table, [day], {}, {day: expectation}, {})
        elif day in changed:
            outcome = Outcome.WRITTEN
        numbers = audited.built.numbers.get(day, {})
        provenance = audited.built.provenance.get(day)
        input_versions = provenance.inputs if provenance else inputs
        results.append(DayResult(outcome, verdict, commit_version, numbers, input_versions, reason))
    return results
