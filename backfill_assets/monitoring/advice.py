"""Which window catches how much: what the rows of `models.ArrivalLateness` say of windows.

Nothing here knows Spark, Dagster or the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from backfill_assets.calendar.delays import COMPARED_WINDOWS, total_within
from backfill_assets.calendar.partitions import DAY

#: Rows of `models.ArrivalLateness`, as they come from the table.
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class LatenessFigures:
    """What is known of the event days that had the time to be known.

    Attributes:
        needed: so many log days an event day needs, itself the first.
        days: the event days, ascending.
        lines: of these event days, by delay in days from when the source's lines usually arrive.
        cents: the amounts of these lines without their signs, in cents: a refund that is late does
            not make up for a sale that is.
    """

    needed: int
    days: Sequence[date]
    lines: Mapping[int, int]
    cents: Mapping[int, int]


def lateness_figures(rows: Rows, window_days: int, arrives_after: int = 0) -> LatenessFigures:
    """The lines by which windows are judged: only of event days that had the chance to be late.

    A log that begins with a day holds nothing late on it, and of the last days more is to come:
    counted, both would make lines look more punctual than they are. So an event day counts if it
    and as many log days after it as the longest window compared are measured, and then with all of
    its lines, those that came later still included.

    Args:
        rows: of `models.ArrivalLateness`.
        window_days: the reprocessing window W, which is compared as well.
        arrives_after: after so many days the source's lines usually arrive; windows begin then.
    """
    longest = arrives_after + max(COMPARED_WINDOWS[-1], window_days)
    measured = {row["log_date"] for row in rows}
    span = [n * DAY for n in range(longest + 1)]
    days = [day for day in sorted(measured) if all(day + later in measured for later in span)]
    settled_days, lines, cents = set(days), Counter[int](), Counter[int]()
    for row in rows:
        parts = zip(row["delays"], row["lines_by_delay"], row["amount_by_delay"], strict=True)
        for delay, count, amount in parts:
            # A delay may reach back to before all days.
            if (
                delay <= row["log_date"].toordinal()
                and row["log_date"] - delay * DAY in settled_days
            ):
                late = max(0, delay - arrives_after)
                lines[late] += count
                cents[late] += int(amount * 100)
    return LatenessFigures(longest + 1, days, lines, cents)


def key_figures(
    rows: Rows, window_days: int, arrives_after: int = 0
) -> dict[str, int | float | str]:
    """The page's figures, as metadata; see `lateness_figures`."""
    lines = sum(row["lines"] for row in rows)
    figures: dict[str, int | float | str] = {"days": len(rows), "lines": lines}
    if lines:
        figures["late share"] = sum(row["late_lines"] for row in rows) / lines
    lateness = lateness_figures(rows, window_days, arrives_after)
    figures["event days compared"] = len(lateness.days)
    for by_delay, what in ((lateness.lines, ""), (lateness.cents, " of the money")):
        for per_mille, name in ((990, "99 %"), (999, "99.9 %")):
            days: int | str | None = "not known yet"
            if any(by_delay.values()):
                days = smallest_window(by_delay, per_mille)
            more = f"more than {COMPARED_WINDOWS[-1]}"
            figures[f"smallest W that catches {name}{what}"] = more if days is None else days
    return figures


def smallest_window(by_delay: Mapping[int, int], per_mille: int) -> int | None:
    """The shortest window, in days, that takes in so many of a thousand; none if none does.

    Counted in integers: 99.8999 % is not 99.9 %.

    Args:
        by_delay: lines or cents by delay in days.
        per_mille: how many of a thousand.
    """
    whole = sum(by_delay.values())
    return next(
        (w for w in COMPARED_WINDOWS if total_within(by_delay, w) * 1000 >= whole * per_mille), None
    )
