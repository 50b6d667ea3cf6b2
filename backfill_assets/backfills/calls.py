"""How many calls of services a backfill makes, and how long their quotas make it take.

Told from the tables' logs. Which requests a day makes is known only once it is computed: so this is
a bound, for functions that make one request of a row at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date

from backfill_assets.backfills.fates import COMPUTE_OUTCOMES, DayForecast
from backfill_assets.backfills.plans import ApiCallEstimate
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.publish.reasons import REQUESTED
from backfill_assets.tables.derived import Derived
from backfill_assets.tables.lookups import Answers, Lookup, requests_figure


def estimate_api_calls(
    forecasts: Mapping[str, Mapping[date, DayForecast]], ledgers: Ledgers
) -> dict[str, ApiCallEstimate]:
    """By service, the calls of a plan.

    Args:
        forecasts: what becomes of the days of each table.
        ledgers: those of all tables.
    """
    estimates: dict[str, ApiCallEstimate] = {}
    for name, day_forecasts in forecasts.items():
        table = ledgers[name].table
        if not isinstance(table, Derived):
            continue
        # Of a day that is only written again, all answers are kept.
        days = [
            day
            for day, forecast in day_forecasts.items()
            if forecast.outcome in COMPUTE_OUTCOMES and forecast.reason != REQUESTED
        ]
        for answers in table.answers.values():
            estimate = _estimate_table_calls(answers, table, days, ledgers)
            previous = estimates.get(answers.lookup.name)
            estimates[answers.lookup.name] = (
                _add_estimates(previous, estimate) if previous else estimate
            )
    return estimates


def _estimate_table_calls(
    answers: Answers, table: Derived, days: Iterable[date], ledgers: Ledgers
) -> ApiCallEstimate:
    """The calls that days of a table make."""
    ledger, lookup = ledgers[table.name], answers.lookup
    dependencies = [table.reads[name] for name in answers.parameters if name in table.reads]

    def input_rows(day: date) -> int:
        return sum(
            ledgers[dependency.table.name].rows_of(input_day) or 0
            for dependency in dependencies
            for input_day in dependency.reach.deciding_days(ledgers[dependency.table.name])(day)
        )

    requests_by_day = {
        day: count for day in ledger.latest if (count := _recorded_requests(ledger, day, lookup))
    }
    rows_read = sum(input_rows(day) for day in requests_by_day)
    total = unknown_days = 0
    projected = 0.0
    for day in days:
        unknown_days += any(
            ledgers[dependency.table.name].rows_of(needed_day) is None
            for dependency in dependencies
            for needed_day in dependency.reach.required_days(day)
        )
        total += input_rows(day)
        if rows_read:
            uncached = day not in requests_by_day or lookup.name in ledger.changed_references(day)
            cached = 0 if uncached else requests_by_day[day]
            projected += max(
                0.0, input_rows(day) * sum(requests_by_day.values()) / rows_read - cached
            )
    expected = min(total, math.ceil(projected)) if rows_read else None
    return ApiCallEstimate(
        at_most=total,
        expected=expected,
        unknown_days=unknown_days,
        seconds=lookup.seconds_for(total),
        expected_seconds=lookup.seconds_for(expected or 0),
        quota=" and ".join(map(str, lookup.quotas)),
        reserve=lookup.reserve,
    )


def _add_estimates(first: ApiCallEstimate, second: ApiCallEstimate) -> ApiCallEstimate:
    """The calls of two tables that ask the same service; which requests they share nobody knows."""
    known = [estimate.expected for estimate in (first, second) if estimate.expected is not None]
    return first.model_copy(
        update={
            "at_most": first.at_most + second.at_most,
            "expected": sum(known) if len(known) == 2 else None,
            "unknown_days": first.unknown_days + second.unknown_days,
            "seconds": first.seconds + second.seconds,
            "expected_seconds": first.expected_seconds + second.expected_seconds,
        }
    )


def _recorded_requests(ledger: Ledger, day: date, lookup: Lookup) -> int:
    """How many requests a day made when it was published."""
    return int(ledger.latest[day].days[day].numbers.get(requests_figure(lookup.name), 0))
