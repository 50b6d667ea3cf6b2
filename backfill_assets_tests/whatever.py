"""Where the tables differ from the truth about what has arrived; read without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal

from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.logs import load_log
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.landing.listing import list_landing
from backfill_assets.orders.facts import CORRECTIONS, CURRENT, FACT
from backfill_assets.orders.lines import ORDER_LINES
from backfill_assets.orders.tables import RAW, REJECTED
from backfill_assets.settings import Settings
from backfill_assets.staleness.arrivals import find_unloaded_days
from backfill_assets.staleness.backlog import find_stale_days
from backfill_assets.staleness.finality import final_days
from backfill_assets_tests.arriving import Sums, Truth

_NOTHING = (0, Decimal(0))


def differences(settings: Settings, truth: Truth) -> dict[str, str]:
    """Where the tables differ from the truth, as of a night after which nothing is left to do."""
    ledgers, policy = read_ledgers(settings), Policy.from_settings(settings)
    landed = list_landing(settings.landing, ORDER_LINES)
    found = find_unloaded_days(
        ledgers[RAW.name], landed, policy, truth.today, ledgers[REJECTED.name]
    )
    facts, current, corrections = (
        sums(_rows(settings, table.name)) for table in (FACT, CURRENT, CORRECTIONS)
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
        "to load": (sorted(found.days_to_load), []),
        "held": ({name for of in found.files_on_hold.values() for name in of}, truth.held),
        "to build": (
            {t: set(d) for t, d in find_stale_days(ledgers, policy, truth.today).open.items()},
            {},
        ),
        "raw": (_lines(_rows(settings, RAW.name), *logged), _lines(truth.model.raw, *logged)),
        "rejected": (
            _lines(_rows(settings, REJECTED.name), "arrival_date", "text"),
            _lines(truth.model.rejected, "arrival_date", "text"),
        ),
        "current": (current, truth.current()),
        "facts": (facts, truth.facts()),
        "final": (final_days(ledgers, policy)[FACT.name], set(truth.final)),
        "corrections": (corrections, less),
    }
    return {
        name: f"{_beyond(is_, due)} instead of {_beyond(due, is_)}"
        for name, (is_, due) in pairs.items()
        if is_ != due
    }


def _beyond(one: object, other: object) -> str:
    """What one has and the other has not."""
    if isinstance(one, Counter) and isinstance(other, Counter):
        return str(dict(one - other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return str({key: x for key, x in one.items() if other.get(key) != x})
    if isinstance(one, (set, frozenset)) and isinstance(other, (set, frozenset)):
        return str(sorted(map(str, one - other)))
    return str(one)


def _rows(settings: Settings, name: str) -> list[dict]:
    log = load_log(settings.table(name))
    return log.to_pyarrow_table().to_pylist() if log else []


def sums(rows: Iterable[Mapping]) -> Sums:
    """Orders and revenue by day and customer."""
    return {(r["run_date"], r["customer_id"]): (r["orders"], r["revenue"]) for r in rows}


def _lines(rows: Iterable[Mapping], *columns: str) -> Counter:
    return Counter(tuple(str(row[column]) for column in columns) for row in rows)
