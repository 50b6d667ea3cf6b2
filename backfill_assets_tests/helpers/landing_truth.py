"""Where the tables differ from the truth about what has arrived; read without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal

from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import list_landing
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, ORDER_LINES, RAW, REJECTED
from backfill_assets.settings import Settings
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.staleness.unloaded import find_unloaded_days
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.random_arrivals import Sums, Truth

_NOTHING = (0, Decimal(0))


def list_differences(settings: Settings, truth: Truth) -> dict[str, str]:
    """Where the tables differ from the truth, as of a night after which nothing is left to do."""
    ledgers, policy = read_ledgers(Deployment(settings)), Policy.from_settings(settings)
    landed = list_landing(settings.landing, ORDER_LINES)
    new_arrivals = find_unloaded_days(
        ledgers[RAW.name], landed, policy, truth.today, ledgers[REJECTED.name]
    )
    facts, current, corrections = (
        sum_facts(_read_rows(settings, table.name)) for table in (FACT, CURRENT, CORRECTIONS)
    )
    # Renamed files keep the name under which they were loaded.
    logged = ("log_date", "arrival_date", "order_id", "customer_id", "amount")
    less = {
        key: (now[0] - then[0], now[1] - then[1])
        for key in facts.keys() | current.keys()
        for now, then in [(current.get(key, _NOTHING), facts.get(key, _NOTHING))]
        if now != then
    }
    pairs = {
        "to load": (sorted(new_arrivals.days_to_load), []),
        "held": (
            {name for names in new_arrivals.files_on_hold.values() for name in names},
            truth.on_hold,
        ),
        "to build": (
            {
                t: set(d)
                for t, d in find_stale_days(
                    snapshot_ledgers(ledgers, policy, truth.today)
                ).open.items()
            },
            {},
        ),
        "raw": (
            _count_lines(_read_rows(settings, RAW.name), *logged),
            _count_lines(truth.model.raw, *logged),
        ),
        "rejected": (
            _count_lines(_read_rows(settings, REJECTED.name), "arrival_date", "text"),
            _count_lines(truth.model.rejected, "arrival_date", "text"),
        ),
        "current": (current, truth.expected_current()),
        "facts": (facts, truth.expected_facts()),
        "final": (snapshot_ledgers(ledgers, policy).final_by_table[FACT.name], set(truth.final)),
        "corrections": (corrections, less),
    }
    return {
        name: f"{_describe_surplus(is_, expected)} instead of {_describe_surplus(expected, is_)}"
        for name, (is_, expected) in pairs.items()
        if is_ != expected
    }


def _describe_surplus(value: object, other: object) -> str:
    """What one has and the other has not."""
    if isinstance(value, Counter) and isinstance(other, Counter):
        return str(dict(value - other))
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return str({key: x for key, x in value.items() if other.get(key) != x})
    if isinstance(value, (set, frozenset)) and isinstance(other, (set, frozenset)):
        return str(sorted(map(str, value - other)))
    return str(value)


def _read_rows(settings: Settings, name: str) -> list[dict]:
    log = load_log(settings.table(name))
    return log.to_pyarrow_table().to_pylist() if log else []


def sum_facts(rows: Iterable[Mapping]) -> Sums:
    """Orders and revenue by day and customer."""
    return {(r["run_date"], r["customer_id"]): (r["orders"], r["revenue"]) for r in rows}


def _count_lines(rows: Iterable[Mapping], *columns: str) -> Counter:
    return Counter(tuple(str(row[column]) for column in columns) for row in rows)
