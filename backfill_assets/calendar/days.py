"""The calendar of a deployment, and the one way in which a person says days of it.

Light on purpose: the command line asks here before it loads Dagster or Spark.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from backfill_assets.settings import Settings

_DAY = r"\d{4}-\d{2}-\d{2}"
#: A day or a range; as Dagster's UI has it in brackets, and as others write it.
_DAYS = re.compile(rf"(\[?)\s*({_DAY})(?:\s*(?:\.{{2,3}}|:)\s*({_DAY}))?\s*(\]?)")


def calendar_bounds(settings: Settings, now: datetime | None = None) -> tuple[date, date] | None:
    """The first and the last day that there is a partition for; none if there is no day yet.

    The same as those of `Cadence.DAILY.definition`, without Dagster.

    Args:
        settings: the deployment's settings.
        now: the moment; the present one if not given.
    """
    today = (now or datetime.now(settings.zone)).astimezone(settings.zone).date()
    end = min(settings.end or today, today)
    return (settings.start, end - timedelta(days=1)) if end > settings.start else None


def parse_calendar_days(
    text: str, settings: Settings, now: datetime | None = None
) -> tuple[date, date]:
    """The first and the last of the days that a person asks for.

    Args:
        text: `FIRST...LAST`, or one day; `[FIRST...LAST]`, as the UI has it, `FIRST..LAST` and
            `FIRST:LAST` are the same.
        settings: the deployment's settings.
        now: the moment; the present one if not given.

    Raises:
        ValueError: they are no days, or reversed, or not all on the calendar: one sentence for all.
    """
    days, bounds = parse_days(text), calendar_bounds(settings, now)
    if days and bounds and bounds[0] <= days[0] <= days[1] <= bounds[1]:
        return days
    bounds_text = f"{bounds[0]}...{bounds[1]}" if bounds else "empty"
    raise ValueError(
        f"{text!r} is not in the calendar, which is {bounds_text}: give FIRST...LAST or one day, "
        "as YYYY-MM-DD, the first not after the last"
    )


def parse_single_day(text: str) -> date:
    """The day that a person names, on the calendar or not.

    Raises:
        ValueError: it is none.
    """
    days = parse_days(text) if re.fullmatch(_DAY, text) else None
    if days is None:
        raise ValueError(f"{text!r} is not one day, as YYYY-MM-DD")
    return days[0]


def parse_days(text: str) -> tuple[date, date] | None:
    """The first and the last of some days, on the calendar or not; none if the text names none."""
    match = _DAYS.fullmatch(text.strip())
    if match is None or bool(match[1]) != bool(match[4]):
        return None
    try:
        first, last = date.fromisoformat(match[2]), date.fromisoformat(match[3] or match[2])
    except ValueError:  # such as the 30th of February
        return None
    return first, last
