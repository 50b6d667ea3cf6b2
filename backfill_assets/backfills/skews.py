"""Which inputs of a plan are skewed: shares of one key and of nulls, from the tables' records.

Nothing is read but the logs: what a commit recorded of a day when it was published. Of a day that
is not published yet, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date

from pydantic import BaseModel

from backfill_assets.calendar.partitions import packed, spelled, unpacked
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.tables.skews import most_rows_of, skews_of


class Skew(BaseModel, frozen=True):
    """A column of an input that has more than a share of a day's rows in one key, or in none.

    Attributes:
        table: the input.
        column: the column.
        above: the share (0 to 1) that its model declares.
        day: the worst of the days: the one with the largest of both shares.
        one_key: on that day, the share of the most frequent key.
        no_key: on that day, the share of nulls.
        days: all days that are above, as ranges.
    """

    table: str
    column: str
    above: float
    day: date
    one_key: float
    no_key: float
    days: tuple[str, ...]

    def __str__(self) -> str:
        days = unpacked(self.days)
        text = (
            f"{self.one_key:.0%} of the rows of {self.day} have one key, {self.no_key:.0%} have "
            f"none; above {self.above:.0%}"
        )
        return f"{text} on {len(days)} days: {spelled(days)}" if len(days) > 1 else text


def skews_in(reads: Iterable[tuple[str, Iterable[date]]], ledgers: Ledgers) -> Iterator[Skew]:
    """What is skewed of the days that a plan reads.

    Args:
        reads: inputs, each with days of it that are read. A table may come several times.
        ledgers: those of all tables.
    """
    days_of: dict[str, set[date]] = {}
    for name, days in reads:
        days_of.setdefault(name, set()).update(days)
    for name, of in days_of.items():
        for column, above in skews_of(ledgers[name].table).items():
            shares = {day: found for day in of if (found := _shares(ledgers[name], day, column))}
            high = sorted(day for day, found in shares.items() if max(found) > above)
            if high:
                worst = max(high, key=lambda day: max(shares[day]))
                one_key, no_key = shares[worst]
                yield Skew(
                    table=name,
                    column=column,
                    above=above,
                    day=worst,
                    one_key=one_key,
                    no_key=no_key,
                    days=tuple(packed(high)),
                )


def _shares(ledger: Ledger, day: date, column: str) -> tuple[float, float] | None:
    """The shares of the most frequent key and of nulls; none if they are not on record."""
    published = ledger.current_record(day)
    if published is None or not published.rows or most_rows_of(column) not in published.numbers:
        return None
    most = published.numbers[most_rows_of(column)]
    return most / published.rows, published.nulls.get(column, 0) / published.rows
