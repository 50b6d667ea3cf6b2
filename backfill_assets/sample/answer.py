"""What a pipeline must arrive at, counted from the lines that the generator emitted.

It is never read back from the files, and it shares no code with the pipeline: that is what makes it
worth comparing with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import date, timedelta
from decimal import Decimal

from backfill_assets.sample.lines import Line


def expected_answer(lines: list[Line], calendar: list[date], window: timedelta) -> dict:
    """Count what the pipeline must arrive at."""
    accepted = [line for line in lines if line.trouble is None]
    landed = Counter(line.arrival for line in lines)
    rejected = Counter(line.arrival for line in lines if line.trouble is not None)
    early = Counter(line.arrival for line in accepted if line.log_day > line.arrival)
    raw = Counter(line.log_day for line in accepted)
    late = Counter(line.log_day for line in accepted if line.log_day > line.event_day + window)
    in_time = Counter(
        line.event_day for line in accepted if line.log_day <= line.event_day + window
    )

    staged, two_day_orders, no_day_orders = _winning_lines(accepted, calendar, window)
    event_days = _event_days(staged, in_time)
    total_revenue = sum(
        (Decimal(str(day["revenue"])) for day in event_days.values()), Decimal("0.00")
    )
    return {
        "arrival_days": {
            str(day): {"landed": landed[day], "rejected": rejected[day], "early": early[day]}
            for day in calendar
        },
        "log_days": {str(day): {"raw": raw[day], "late": late[day]} for day in calendar},
        "event_days": event_days,
        "totals": {
            "landed": len(lines),
            "rejected": rejected.total(),
            "early": early.total(),
            "raw": len(accepted),
            "late": late.total(),
            "staged": sum(day["staged"] for day in event_days.values()),
            "superseded": sum(day["superseded"] for day in event_days.values()),
            "fact_rows": sum(day["customers"] for day in event_days.values()),
            "revenue": str(total_revenue),
            "orders_on_two_days": two_day_orders,
            "orders_on_no_day": no_day_orders,
        },
    }


def _winning_lines(
    accepted: list[Line], calendar: list[date], window: timedelta
) -> tuple[dict[date, list[Line]], int, int]:
    """The line that wins of each order by event day; how many orders have two days, and none."""
    versions: defaultdict[str, list[Line]] = defaultdict(list)
    for line in accepted:
        versions[line.order_id].append(line)
    staged: dict[date, list[Line]] = {day: [] for day in calendar}
    two_day_orders = 0
    no_day_orders = 0
    for history in versions.values():
        days = 0
        # Each day asks for itself: of what was logged by its end, is the greatest one mine?
        for day in sorted({line.event_day for line in history}):
            known = [line for line in history if line.log_day <= day + window]
            winner = max(known, key=lambda line: line.version_key, default=None)
            if winner is not None and winner.event_day == day:
                staged[day].append(winner)
                days += 1
        # Corrections onto another day that came after one of the two days was final: the order
        # stays on the old day as well, or has left it while its new day was closed already.
        two_day_orders += days > 1
        no_day_orders += days == 0 and any(
            line.log_day <= line.event_day + window for line in history
        )
    return staged, two_day_orders, no_day_orders


def _event_days(staged: dict[date, list[Line]], in_time: Counter[date]) -> dict[str, dict]:
    """The numbers of each event day."""
    event_days = {}
    for day, winners in staged.items():
        revenue = sum((line.amount for line in winners), Decimal("0.00"))
        event_days[str(day)] = {
            "staged": len(winners),
            "superseded": in_time[day] - len(winners),
            "customers": len({line.customer_id for line in winners}),
            "orders": len(winners),
            "revenue": str(revenue),
        }
    return event_days
