"""What the states of days are told from, made by hand: all is well, or one thing is not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date

from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.monitoring.states import DayState, MonitoringSnapshot, day_states
from backfill_assets.orders.tables import FACT, RAW, STAGED, TABLES
from backfill_assets.staleness.stale import StaleDays, StaleReason
from backfill_assets.staleness.unloaded import UnloadedDays
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_logs import (
    NIGHTLY,
    SOURCES,
    days,
    ledger,
    ledgers,
    record,
)
from backfill_assets_tests.helpers.pipeline import START, day

W = 2
POLICY = Policy(START, None, window_days=W, lag_days=1, corrects=True, only_touched=True)
TODAY = day(11)
ALL = days((1, 10))


def make_healthy_ledgers(
    published: Collection[date] = ALL, final: Collection[date] = days((1, 8))
) -> dict[str, Ledger]:
    """All tables after a night in which everything went well."""
    logged = frozenset(published)
    raw = record(0, published, event_days=logged, current_days=logged, log_days=logged)
    closes = {STAGED.name: set(final) & logged, FACT.name: set(final) & logged}
    built = [
        record(0, published, inputs=dict.fromkeys(sources, 0), final=closes.get(name, ()))
        for name, sources in SOURCES.items()
    ]
    others = [
        ledger(TABLES[name], table_record)
        for name, table_record in zip(SOURCES, built, strict=True)
    ]
    return ledgers(*others, ledger(RAW, raw))


def append_externally(table: Table, *to: int) -> dict[str, Ledger]:
    """Healthy tables; somebody else has appended to some days of one."""
    healthy_tables = make_healthy_ledgers()
    record = healthy_tables[table.name].records[-1]
    other = ExternalCommit(record.version + 1, "WRITE", days(*to))
    return healthy_tables | {table.name: ledger(table, record, external=[other])}


def make_snapshot(
    table_ledgers: Mapping[str, Ledger] | None = None,
    *,
    behind: StaleDays | None = None,
    load: Collection[date] = (),
    without_news: Collection[date] = (),
    absent: Collection[date] = (),
    on_hold: Collection[date] = (),
    failed: Mapping[str, Collection[date]] | None = None,
    policy: Policy = POLICY,
    today: date = TODAY,
    in_time: bool = False,
    settings: str = "config",
    last: date = date.max,
    later_days: Collection[date] = (),
) -> MonitoringSnapshot:
    table_ledgers = make_healthy_ledgers() if table_ledgers is None else table_ledgers
    snapshot = MonitoringSnapshot(
        Graph.from_tables((known.table for known in table_ledgers.values()), policy),
        table_ledgers,
        today,
        config_digests=dict.fromkeys(TABLES, settings),
        unloaded={
            RAW.name: UnloadedDays(
                days_to_load=dict.fromkeys(load, "x"),
                days_without_news=frozenset(without_news),
                missing_days=frozenset(absent),
                files_on_hold={day: [f"arrival_date={day}/part-0.jsonl"] for day in on_hold},
                last_day_requested=last,
            )
        },
        failed_checks={
            name: dict.fromkeys(failed_days, ("unique_key",))
            for name, failed_days in (failed or {}).items()
        },
        before_deadline=in_time,
        later_days=later_days,
    )
    if behind:
        vars(snapshot)["stale"] = behind
    return snapshot


def make_backlog(*missing_days: date, table: Table, final: bool = False) -> StaleDays:
    part = {table.name: dict.fromkeys(missing_days, StaleReason({}))}
    return StaleDays({}, part) if final else StaleDays(part)


def states_by_day(table: Table, now: MonitoringSnapshot) -> dict[int, DayState]:
    """By the number of the day."""
    return {(d - START).days + 1: state for d, state in day_states(table.name, now).items()}


def make_built_record(
    version: int, digest: str, *, final: bool = True, launched_by: str = NIGHTLY, day_numbers=(1, 2)
) -> CommitRecord:
    """Days 1 and 2 as of a version; both final or both not."""
    built_days = days(*day_numbers)
    return record(
        version,
        built_days,
        digest=digest,
        final=built_days if final else (),
        launched_by=launched_by,
    )
