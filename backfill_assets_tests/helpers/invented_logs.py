"""Commit records and ledgers made by hand; days are numbers from 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

import msgspec

from backfill_assets.audit.verdicts import DayMetrics
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import CommitDetails, CommitRecord, ExternalCommit, PublishedDay
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
)
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.pipeline import day

NIGHTLY = "schedule nightly"
#: What each table is built from.
SOURCES: dict[str, tuple[str, ...]] = {
    RAW.name: (),
    REJECTED.name: (),
    STAGED.name: (RAW.name,),
    FACT.name: (STAGED.name,),
    CURRENT.name: (RAW.name,),
    CORRECTIONS.name: (FACT.name, CURRENT.name),
    LATE.name: (RAW.name,),
    LATENESS.name: (RAW.name, REJECTED.name),
}


def days(*spans: int | tuple[int, int]) -> frozenset[date]:
    """Days by number: single ones, and (first, last)."""
    pairs = [span if isinstance(span, tuple) else (span, span) for span in spans]
    return frozenset(day(n) for first, last in pairs for n in range(first, last + 1))


def record(
    version: int,
    published: Iterable[date],
    *,
    inputs: Mapping[str, int] | None = None,
    final: Iterable[date] = (),
    launched_by: str = NIGHTLY,
    run: str = "",
    backfill: str | None = None,
    rows: int = 1,
    digest: str = "",
    config_digest: str = "config",
    **details: Any,
) -> CommitRecord:
    """What a commit says of itself; sets of days in `details` are packed as the assets do it."""
    written = {k: to_ranges(v) if isinstance(v, frozenset) else v for k, v in details.items()}
    assert written.keys() <= {*CommitDetails.__struct_encode_fields__}
    published_day = PublishedDay(rows, digest or f"digest {version}", "ok")
    return CommitRecord(
        version=version,
        run_id=run or f"run {version}",
        backfill_id=backfill,
        launched_by=launched_by,
        code_version="code",
        config_digest=config_digest,
        inputs=inputs or {},
        days=dict.fromkeys(sorted(published), published_day),
        final=frozenset(final),
        details=msgspec.convert(written, CommitDetails),
    )


def ledger(table: Table, *records: CommitRecord, external: Iterable[ExternalCommit] = ()) -> Ledger:
    others = sorted(external, key=lambda other: other.version)
    version = max((commit.version for commit in (*records, *others)), default=None)
    rows = {
        d: published_day.rows
        for r in records
        for d, published_day in r.days.items()
        if published_day.rows
    }
    return Ledger(table, version, records, others, make_measured(rows))


def make_measured(rows: Mapping[date, int]) -> dict[date, DayMetrics]:
    """Rows by day as a table's log counts them."""
    return {d: DayMetrics(count, {}, "") for d, count in rows.items()}


def ledgers(*filled: Ledger) -> dict[str, Ledger]:
    """The ledgers of all tables; those that are not given are empty."""
    return {name: Ledger(t) for name, t in TABLES.items()} | {x.table.name: x for x in filled}


def snapshot_ledgers(ledgers: Ledgers, policy: Policy, today: date = date.max) -> Snapshot:
    """A snapshot of the tables of these ledgers, without code and settings."""
    graph = Graph.from_tables((ledger.table for ledger in ledgers.values()), policy)
    return Snapshot(graph, ledgers, today)


def commit_metadata(published_days: Iterable[date], **more: Any) -> dict[str, Any]:
    """The record of a commit, in the form that it had from the beginning."""
    audit = {
        str(d): {"rows": 1, "digest": f"digest of {d}", "verdict": "ok"} for d in published_days
    }
    fields = {"run_id": "r", "code_version": "code", "config_digest": "config", "audit": audit}
    return {**fields, "inputs": {"stg_orders": 4}, "asset": FACT.name, **more}


def make_raw_record(
    version: int,
    logged: Iterable[date],
    touches: Iterable[date] | None = None,
    *,
    follow: Iterable[date] = (),
    run: str = "",
    settled: Iterable[date] | None = None,
    unsettled: Iterable[date] = (),
    current: Iterable[date] | None = None,
    reverted: Iterable[date] = (),
) -> CommitRecord:
    """A commit of the raw log.

    Args:
        version: the version it made.
        logged: the log days that it published.
        touches: the event days that it says it touches; by default the same days.
        follow: later log days whose lateness changes as well.
        run: the run's id.
        settled: the log days for which nothing more is due since; by default all that it loads.
        unsettled: those for which something has come since they were settled.
        current: the event days of which it says that what is known changes; by default the same
            as those that it touches.
        reverted: the log days that it took back.
    """
    logged = frozenset(logged)
    touches = logged if touches is None else frozenset(touches)
    raw_record = record(
        version,
        logged,
        run=run,
        event_days=touches,
        current_days=touches if current is None else frozenset(current),
        log_days=logged | frozenset(follow),
        settled=logged if settled is None else frozenset(settled),
        unsettled=frozenset(unsettled),
    )
    return msgspec.structs.replace(raw_record, revoked_days=frozenset(reverted))
