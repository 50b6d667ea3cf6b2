"""Computing the days of a plan, and having them judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import msgspec
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import Days, Window, spelled
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.creation import rules_of
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import Details, as_written, published
from backfill_assets.publish.candidates import Built, Plan
from backfill_assets.publish.chains import chained
from backfill_assets.publish.independence import refuse_dependent_days
from backfill_assets.quality.audit import (
    TRAILING_DAYS,
    Expectation,
    Measured,
    RefusedError,
    Verdict,
    judge,
    measure,
    refuse_strays,
    sum_digests,
)
from backfill_assets.quality.conditions import refuse_wrong
from backfill_assets.quality.counts import counted
from backfill_assets.quality.drift import Earlier, Spread, drifted, spreads
from backfill_assets.quality.forbidden import offences
from backfill_assets.quality.skews import most_rows
from backfill_assets.tables.drifts import DRIFT, drifts_of
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class Audited:
    """Days that were computed and judged.

    Attributes:
        built: as the asset built them.
        frame: their rows, with the columns and types of the table.
        fingerprints: by day, the input fingerprint that it was made under.
        verdicts: what the audit says of them.
        rules: by name, what was asked of each row.
        merge: whether they were judged as for a merge.
        files: by day, the data files that are written and not committed.
        spreads: by day, how its columns are distributed that are watched.
    """

    built: Built
    frame: DataFrame
    fingerprints: Mapping[date, str]
    verdicts: Mapping[date, Verdict]
    rules: Mapping[str, str]
    merge: bool = False
    files: dict[date, list[AddAction]] = field(default_factory=dict)
    spreads: Mapping[date, Spread] = field(default_factory=dict)

    def covers(self, wanted: Mapping[date, str], ledger: Ledger) -> bool:
        """Whether these days would be made and judged no otherwise now."""
        rules = rules_of(ledger.table, ledger.metadata)
        return wanted.items() <= self.fingerprints.items() and rules == self.rules

    def written(self, writer: Writer, days: Sequence[date]) -> DataFiles:
        """The data files of days, which are written once; those that are there already, never.

        Raises:
            PublishError: they could not be written, or hold other rows than were audited.
        """
        there = self.built.files
        if new := [day for day in days if day not in self.files and day not in there]:
            written, digest = writer.write(self.frame, new, scattered=self.built.scattered)
            self.files.update({day: written.get(day, []) for day in new})
            audited = sum_digests(self.verdicts[day].measured.digest for day in new)
            if digest != audited:
                writer.remove(file for day in new for file in self.files.pop(day))
                raise PublishError(
                    f"{writer.table.name} [{spelled(new)}]: the rows that were written have the "
                    f"digest {digest}, and those that were audited {audited}: computed twice, the "
                    "days have not the same rows. Nothing was published. Let the table's transform "
                    "give the same rows each time."
                )
        return {day: there[day] if day in there else self.files[day] for day in days}

    def committed(self, days: Iterable[date]) -> None:
        """Take note of days whose files a version of the table has now."""
        for day in days:
            self.files.pop(day, None)

    @property
    def left(self) -> list[AddAction]:
        """The data files that no commit will name."""
        return [file for files in self.files.values() for file in files]


def compute(
    table: Table,
    plan: Plan,
    wanted: Mapping[date, str],
    ledger: Ledger,
    merging: Writer | None = None,
    *,
    known: bool = False,
) -> Audited:
    """The days computed and judged; those between them are not.

    Args:
        table: the table that they are meant for.
        plan: how they are made.
        wanted: the days, each with its fingerprint.
        ledger: that of the table.
        merging: what would merge them into the table; none if they are to replace what is there.
        known: whether a range that this code computes need not be held against its days alone.

    Raises:
        SchemaError: a column is missing or of another type.
        DeclarationError: a condition of the model is none.
        RefusedError: rows outside of these days, rows without a day, none where some are due, or
            a day that has other rows when it is computed alone.
    """
    days = Days.of(wanted)
    built = plan.build(days)
    frame = table.conform(built.frame)
    rules = rules_of(table, ledger.metadata)
    refuse_wrong(frame, table, rules)
    found = measure(frame, table, [*rules.values()])
    refuse_strays(found, table, days, built.expectations)
    for day, of in offences(frame, table).items():
        if day not in found:
            raise RefusedError(
                f"{table.name} [{days}]: refused, the table is as it was: {', '.join(of)} found "
                f"rows of {day}, of which the frame has none. A check gives rows of the frame."
            )
        found[day] = replace(found[day], offences=of)
    expectations = dict(built.expectations)
    if merging and ledger.version is not None:
        left = merging.leftover(frame, list(wanted), ledger.version)
        expectations |= {day: _with_leftover(expectations.get(day), n) for day, n in left.items()}
    found_spreads = spreads(frame, table)
    moved = _look_for_drift(table, ledger, found_spreads, days, expectations)
    numbers = built.numbers
    for more in (counted(frame, table, days), most_rows(frame, table, days), moved):
        numbers = _joined(numbers, more)
    built = replace(built, numbers=numbers)
    verdicts = judge(table, days, found, expectations, _trailing(ledger, days))
    if plan.after:
        wanted, verdicts = chained(table, plan, ledger, verdicts)
    by_day = {v.day: v for v in verdicts}
    if plan.alone and not known:
        passed = {v.day: v.measured.rows for v in verdicts if v.passed}
        refuse_dependent_days(
            table, frame, days, passed, plan.alone, chained=plan.after is not None
        )
    merge = merging is not None
    return Audited(built, frame, wanted, by_day, rules, merge, spreads=found_spreads)


def _with_leftover(due: Expectation | None, rows: int) -> Expectation:
    """What is expected of a day, which has rows that a merge would leave."""
    due = due or Expectation()
    said = (
        f"{rows} published row(s) are absent or less frequent in the source, and a merge would "
        "leave them; launch the day without merge"
    )
    return replace(due, problems=[*due.problems, said])


def _look_for_drift(
    table: Table,
    ledger: Ledger,
    now: Mapping[date, Spread],
    days: Window,
    expectations: dict[date, Expectation],
) -> dict[date, Mapping[str, float]]:
    """Add what is found of drift to what is expected of the days; numbers for the UI by day."""
    numbers: dict[date, Mapping[str, float]] = {}
    for day in days if drifts_of(table) else ():
        notice, numbers[day] = drifted(table, now.get(day, {}), _earlier(ledger, now, day))
        due = expectations.get(day, Expectation())
        expectations[day] = replace(
            due,
            notices={**due.notices, DRIFT: notice},
            figures={**due.figures, DRIFT: numbers[day]},
        )
    return numbers


def _earlier(ledger: Ledger, now: Mapping[date, Spread], day: date) -> Earlier | None:
    """What a day is held against: the version that it replaces, or else the last day before it."""

    def published_then(of: date) -> Spread | None:
        record = ledger.latest.get(of)
        return record.details.spreads.get(of) if record and ledger.current_record(of) else None

    if then := published_then(day):
        return Earlier(f"version {ledger.latest[day].version}", then)
    for before in ledger.table.cadence.before(day, TRAILING_DAYS):
        if then := now.get(before) or published_then(before):
            return Earlier(str(before), then)
    return None


def _joined(
    some: Mapping[date, Mapping[str, Any]], more: Mapping[date, Mapping[str, Any]]
) -> dict[date, Mapping[str, Any]]:
    return {**some, **{day: {**some.get(day, {}), **of} for day, of in more.items()}}


def _trailing(ledger: Ledger, window: Window) -> dict[date, Measured]:
    """The days before those of the window in numbers, from the statistics in the table's log."""
    cadence = ledger.table.cadence
    before = {d for day in window for d in cadence.before(day, TRAILING_DAYS)} - {*window}
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
                    built.provenance.get(v.day),
                )
            )
            for v in verdicts
            if v.passed
        },
        "not_published": {str(v.day): v.reasons for v in verdicts if not v.passed},
    }


def with_spreads(details: Details, audited: Audited, passed: Iterable[Verdict]) -> Details:
    """What a commit is to tell of itself, with the distributions of its days."""
    found = {v.day: audited.spreads[v.day] for v in passed if v.day in audited.spreads}
    return msgspec.structs.replace(details, spreads=found) if found else details
