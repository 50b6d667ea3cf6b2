"""What became of the days of a run."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import date

from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import verdict_of
from backfill_assets.publish.candidates import Done, Outcome, Plan, Remarks
from backfill_assets.publish.computing import Audited
from backfill_assets.quality.audit import Expectation, judge
from backfill_assets.tables.table import Table


def as_published(ledger: Ledger, day: date) -> Done:
    """A day as the record of its commit tells of it."""
    record = ledger.latest[day]
    published = record.days[day]
    verdict = verdict_of(ledger.table, day, published)
    numbers, inputs = published.numbers, record.inputs
    return Done(Outcome.IDENTICAL, verdict, record.version, numbers, inputs, record.why(day))


def left(
    ledger: Ledger, plan: Plan, because: Container[date], refused: Mapping[date, Expectation]
) -> list[Done]:
    """The days that are not computed: as they are published already, or as an input lacks them."""
    kept = {day for day in plan.fingerprints if day not in because and day not in refused}
    failed = judge(ledger.table, sorted(refused), {}, refused, {})
    reverted = sorted(kept - ledger.latest.keys())
    text = (
        "an undo has reverted its rows, and its inputs are the same: only a person builds it again"
    )
    on_hold = judge(
        ledger.table, reverted, {}, dict.fromkeys(reverted, Expectation(problems=[text])), {}
    )
    return [
        *(as_published(ledger, day) for day in sorted(kept & ledger.latest.keys())),
        *(Done(Outcome.WITHDRAWN, verdict) for verdict in on_hold),
        *(Done(Outcome.FAILED, verdict) for verdict in failed),
    ]


def outcomes(
    table: Table,
    audited: Audited,
    because: Mapping[date, str],
    version: int | None,
    inputs: Mapping[str, int],
    remarks: Remarks,
    changed: Container[date],
) -> list[Done]:
    """What became of the days that were computed.

    Args:
        table: the table.
        audited: the days, computed and judged.
        because: the days, each with why it was computed.
        version: the commit that speaks of those that passed; none if there are none.
        inputs: the version of each table that they were computed from.
        remarks: what the asset added to the commit.
        changed: the days that were written.
    """
    done = []
    for day, reason in because.items():
        verdict = audited.verdicts[day]
        outcome, at = Outcome.UNCHANGED, version if verdict.passed else None
        if not verdict.passed:
            outcome = Outcome.FAILED
        elif day in remarks.withdrawn:
            outcome = Outcome.WITHDRAWN
            why = Expectation(problems=[remarks.withdrawn[day]])
            (verdict,) = judge(table, [day], {}, {day: why}, {})
        elif day in changed:
            outcome = Outcome.WRITTEN
        numbers = audited.built.numbers.get(day, {})
        provenance = audited.built.provenance.get(day)
        made_from = provenance.inputs if provenance else inputs
        done.append(Done(outcome, verdict, at, numbers, made_from, reason))
    return done
