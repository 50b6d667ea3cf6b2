"""The calendar of a deployment, and the one way in which a person says days of it.

Light on purpose: the command line asks here before it loads Dagster or Spark.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from backfill_assets.settings import Settings

_DAY = r"\d{4}-\d{2}-\d{2}"
_DAYS = re.compile(rf"({_DAY})(?:\.\.\.({_DAY}))?")


def calendar(settings: Settings, now: datetime | None = None) -> tuple[date, date] | None:
    """The first and the last day that there is a partition for; none if there is no day yet.

    The same as those of `Cadence.DAILY.definition`, without Dagster.

    Args:
        settings: the deployment's settings.
        now: the moment; the present one if not given.
    """
    today = (now or datetime.now(settings.zone)).astimezone(settings.zone).date()
    end = min(settings.end or today, today)
    return (settings.start, end - timedelta(days=1)) if end > settings.start else None


def days_asked(text: str, settings: Settings, now: datetime | None = None) -> tuple[date, date]:
    """The first and the last of the days that a person asks for.

    Args:
        text: `FIRST...LAST`, or one day.
        settings: the deployment's settings.
        now: the moment; the present one if not given.

    Raises:
        ValueError: they are no days, or reversed, or not all on the calendar: one sentence for all.
    """
    found, known = _read(text), calendar(settings, now)
    if found and known and known[0] <= found[0] <= found[1] <= known[1]:
        return found
    spelled = f"{known[0]}...{known[1]}" if known else "empty"
    raise ValueError(
        f"{text!r} is not in the calendar, which is {spelled}: give FIRST...LAST or one day, "
        "as YYYY-MM-DD, the first not after the last"
    )


def one_day(text: str) -> date:
    """The day that a person names, on the calendar or not.

    Raises:
        ValueError: it is none.
    """
    found = _read(text)
    if found is None or "..." in text:
        raise ValueError(f"{text!r} is not one day, as YYYY-MM-DD")
    return found[0]


def _read(text: str) -> tuple[date, date] | None:
    match = _DAYS.fullmatch(text)
    try:
        first = date.fromisoformat(match[1]) if match else None
        last = date.fromisoformat(match[2] or match[1]) if match else None
    except ValueError:  # such as the 30th of February
        return None
    return (first, last) if first and last else None
