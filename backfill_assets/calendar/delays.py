"""What a window takes in, by the delays of lines: the delay of each is that of its log day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The window lengths that are compared, in days.
COMPARED_WINDOWS = range(15)


def total_within(by_delay: Mapping[int, int], window_days: int) -> int:
    """How much a window takes in.

    Args:
        by_delay: lines or cents by delay in days.
        window_days: the length of the window.
    """
    return sum(count for delay, count in by_delay.items() if delay <= window_days)


def lines_within(row: Mapping[str, Any], window_days: int) -> int:
    """How many of a log day's lines a window takes in.

    Args:
        row: of `models.ArrivalLateness`.
        window_days: the length of the window from the event day on, whichever was configured when
            the row was made.
    """
    return total_within(dict(zip(row["delays"], row["lines_by_delay"], strict=True)), window_days)
