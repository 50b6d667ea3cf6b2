"""Which inputs of a plan are skewed: shares of one key and of nulls.

From the tables' records: what a commit recorded of a day when it was published. Of days that have
landed and are not loaded yet, from a sample of their lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date

from pydantic import BaseModel

from backfill_assets.calendar.partitions import format_ranges, from_ranges, to_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.tables.skews import most_rows_of, skews_of
from backfill_assets.tables.table import Table


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
        lines: the share is one of so many lines that landed on that day, a sample; 0 if it is exact
            and the day one that is published.
    """

    table: str
    column: str
    above: float
    day: date
    one_key: float
    no_key: float
    days: tuple[str, ...]
    lines: int = 0

    def __str__(self) -> str:
        days = from_ranges(self.days)
        rows = "lines that landed on" if self.lines else "rows of"
        sample = f" in a sample of {self.lines:,} lines" if self.lines else ""
        text = (
            f"{self.one_key:.0%} of the {rows} {self.day} have one key, {self.no_key:.0%} have "
            f"none{sample}; above {self.above:.0%}"
        )
        return f"{text} on {len(days)} days: {format_ranges(days)}" if len(days) > 1 else text


def find_skews(reads: Iterable[tuple[str, Iterable[date]]], ledgers: Ledgers) -> Iterator[Skew]:
    """What is skewed of the days that a plan reads.

    Args:
        reads: inputs, each with days of it that are read. A table may come several times.
        ledgers: those of all tables.
    """
    days_by_input: dict[str, set[date]] = {}
    for name, days in reads:
        days_by_input.setdefault(name, set()).update(days)
    for name, table_days in days_by_input.items():
        for column, above in skews_of(ledgers[name].table).items():
            shares = {
                day: day_shares
                for day in table_days
                if (day_shares := _recorded_shares(ledgers[name], day, column))
            }
            yield from _skew_above(name, column, above, shares)


def find_sampled_skews(
    table: Table, lines: Mapping[date, Sequence[Sequence[str | None]]]
) -> Iterator[Skew]:
    """What is skewed of lines that have landed.

    Args:
        table: that they are going to be rows of.
        lines: by arrival day a sample, with the values of the columns that the table watches.
    """
    for n, (column, above) in enumerate(skews_of(table).items()):
        shares = {}
        for day, day_lines in lines.items():
            keys = Counter(values[n] for values in day_lines)
            nulls = keys.pop(None, 0)
            if day_lines:
                shares[day] = max(keys.values(), default=0) / len(day_lines), nulls / len(day_lines)
        for skew in _skew_above(table.name, column, above, shares):
            yield skew.model_copy(update={"lines": len(lines[skew.day])})


def _skew_above(
    table: str, column: str, above: float, shares: Mapping[date, tuple[float, float]]
) -> Iterator[Skew]:
    """What is to be told of a column, from the shares of one key and of nulls by day."""
    skewed_days = sorted(day for day, day_shares in shares.items() if max(day_shares) > above)
    if skewed_days:
        worst = max(skewed_days, key=lambda day: max(shares[day]))
        one_key, no_key = shares[worst]
        yield Skew(
            table=table,
            column=column,
            above=above,
            day=worst,
            one_key=one_key,
            no_key=no_key,
            days=tuple(to_ranges(skewed_days)),
        )


def _recorded_shares(ledger: Ledger, day: date, column: str) -> tuple[float, float] | None:
    """The shares of the most frequent key and of nulls; none if they are not on record."""
    published = ledger.current_record(day)
    if published is None or not published.rows or most_rows_of(column) not in published.numbers:
        return None
    most_rows = published.numbers[most_rows_of(column)]
    return most_rows / published.rows, published.nulls.get(column, 0) / published.rows
