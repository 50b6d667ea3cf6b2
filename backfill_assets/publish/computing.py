"""Computing the days of a plan, and having them judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import Days, Window
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import as_written, published
from backfill_assets.publish.candidates import Built, Plan
from backfill_assets.quality.audit import (
    TRAILING_DAYS,
    Expectation,
    Measured,
    Verdict,
    judge,
    measure,
    refuse_strays,
)
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class Audited:
    """Days that were computed and judged.

    Attributes:
        built: as the asset built them.
        frame: their rows, with the columns and types of the table.
        fingerprints: by day, the input fingerprint that it was made under.
        verdicts: what the audit says of them.
        merge: whether they were judged as for a merge.
    """

    built: Built
    frame: DataFrame
    fingerprints: Mapping[date, str]
    verdicts: Mapping[date, Verdict]
    merge: bool = False

    def covers(self, wanted: Mapping[date, str]) -> bool:
        """Whether these days would be made no otherwise now."""
        return wanted.items() <= self.fingerprints.items()


def compute(
    table: Table,
    plan: Plan,
    wanted: Mapping[date, str],
    ledger: Ledger,
    merging: Writer | None = None,
) -> Audited:
    """The days computed and judged; those between them are not.

    Args:
        table: the table that they are meant for.
        plan: how they are made.
        wanted: the days, each with its fingerprint.
        ledger: that of the table.
        merging: what would merge them into the table; none if they are to replace what is there.

    Raises:
        SchemaError: a column is missing or of another type.
        RefusedError: rows outside of these days, rows without a day, or none where some are due.
    """
    days = Days.of(wanted)
    built = plan.build(days)
    frame = table.conform(built.frame)
    found = measure(frame, table)
    refuse_strays(found, table, days, built.expectations)
    expectations = dict(built.expectations)
    if merging and ledger.version is not None:
        left = merging.leftover(frame, list(wanted), ledger.version)
        for day, rows in left.items():
            expectation = expectations.get(day, Expectation())
            said = (
                f"{rows} published row(s) are absent or less frequent in the source, and a "
                "merge would leave them; launch the day without merge"
            )
            expectations[day] = replace(expectation, problems=[*expectation.problems, said])
    verdicts = judge(table, days, found, expectations, _trailing(ledger, days))
    return Audited(built, frame, wanted, {v.day: v for v in verdicts}, merging is not None)


def _trailing(ledger: Ledger, window: Window) -> dict[date, Measured]:
    """The days before those of the window in numbers, from the statistics in the table's log."""
    before = set(window.widened(before=TRAILING_DAYS)) - set(window)
    return {day: ledger.measured[day] for day in before if day in ledger.measured}


def summary(verdicts: Sequence[Verdict], audited: Audited) -> dict[str, Any]:
    """What a commit is to say of days: those that passed, and why the others did not."""
    built = audited.built
    return {
        "audit": {
            str(v.day): as_written(
                published(
                    v,
                    built.fingerprints.get(v.day, audited.fingerprints[v.day]),
                    built.numbers.get(v.day, {}),
                    built.made_under.get(v.day, ""),
                )
            )
            for v in verdicts
            if v.passed
        },
        "not_published": {str(v.day): v.reasons for v in verdicts if not v.passed},
    }
