"""A plain-Python reading of the tables with memory of orders; no pipeline code.

It is slow and literal on purpose: it begins anew for each day. Orders are rows of the raw log or of
the facts as `helpers.orders_model` has them. It must not import `backfill_assets`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta, timezone
from decimal import Decimal
from typing import Any

from backfill_assets_tests.helpers.orders_model import version_key

_DAY = timedelta(days=1)
Orders = Mapping[tuple[date, str], tuple[int, Decimal]]


def _event_day(row: Mapping[str, Any]) -> date:
    return row["order_ts"].astimezone(timezone.utc).date()


def compute_features(raw: Iterable[dict], days: Iterable[date]) -> list[tuple]:
    """The features of each day: of the versions of orders that were logged by then.

    Args:
        raw: the rows of the raw log.
        days: the days.
    """
    feature_rows, raw = [], list(raw)
    for d in days:
        newest: dict[str, dict] = {}
        for row in sorted((row for row in raw if row["log_date"] <= d), key=version_key):
            newest[row["order_id"]] = row
        by_user = defaultdict(list)
        for row in newest.values():
            if d - 30 * _DAY < _event_day(row) <= d:
                by_user[row["customer_id"] or "unknown"].append(row)
        for user, user_orders in by_user.items():
            active = Decimal(len({_event_day(row) for row in user_orders})) * 100 / 30
            feature_rows.append(
                (
                    d,
                    user,
                    sum(_event_day(row) > d - 7 * _DAY for row in user_orders),
                    len(user_orders),
                    sum(row["amount"] for row in user_orders),
                    max(row["log_date"] for row in user_orders),
                    round(active, 2),
                )
            )
    return sorted(feature_rows)


def compute_labels(
    facts: Iterable[tuple[date, str]], last: date, *, following: int = 30
) -> list[tuple]:
    """The labels of each day.

    Args:
        facts: the days and customers that have orders.
        last: the last day that is published.
        following: so many days after a day decide.
    """
    ordered, label_rows = set(facts), []
    for d, user in ordered:
        if user != "unknown":
            after = [d + n * _DAY for n in range(1, following + 1)]
            churned = not any((other, user) in ordered for other in after)
            state = "final" if after[-1] <= last else "open"
            label_rows.append((d, user, churned, state, d + _DAY, min(last, after[-1])))
    return sorted(label_rows)


def join_training_rows(features: Iterable[tuple], labels: Iterable[tuple]) -> list[tuple]:
    """The training set of features and labels."""
    known = {row[:2]: row for row in features}
    return sorted(
        (d, user, *known[d, user][2:5], known[d, user][6], churned, known[d, user][5], begins)
        for d, user, churned, state, begins, _ in labels
        if state == "final" and (d, user) in known
    )


def cohort_values(values: Iterable[tuple], last: date, *, following: int = 30) -> list[tuple]:
    """What the customers of each day's cohort are worth some days later, as far as it is known.

    Args:
        values: the lifetime values of all days.
        last: the last day that is published.
        following: so many days after the first order.
    """
    return sorted(
        (first, customer, orders, revenue, d)
        for d, customer, first, orders, revenue, _ in values
        if customer != "unknown" and d == min(last, first + following * _DAY)
    )


def lifetime_values(orders: Orders, days: Sequence[date]) -> set[tuple]:
    """The rows of all days, in order, by a plain loop.

    Args:
        orders: by day and customer, how many orders there are and what they add up to.
        days: the days.
    """
    value_rows: set[tuple] = set()
    state: dict[str, tuple[date, int, Decimal, date]] = {}
    for d in days:
        for (order_day, customer), (count, amount) in orders.items():
            if order_day == d:
                first, before, sum_, _ = state.get(customer, (d, 0, Decimal(0), d))
                state[customer] = first, before + count, sum_ + amount, d
        value_rows |= {
            (d, customer, first, count, sum_, (d - latest).days)
            for customer, (first, count, sum_, latest) in state.items()
        }
    return value_rows
