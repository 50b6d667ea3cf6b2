"""What Dagster was asked for under a backfill's name, and which of it was not published.

For backfills and ranges that were launched without a plan: Dagster knows the days of their runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import dagster as dg

from backfill_assets.backfills.footprints import is_commit_of
from backfill_assets.calendar.partitions import days_of_run, format_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers

#: Dagster is told of a day that is published by one of these, whether or not it was computed.
_PUBLISHED_EVENTS = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
}
_NEVER = float("inf")


@dataclass(frozen=True)
class RequestedDays:
    """What was asked for under a name.

    Attributes:
        days: by table.
        not_published: the days of them that were not published, each table's in a sentence.
    """

    days: Mapping[str, Collection[date]]
    not_published: Sequence[str]


def requested_days(instance: dg.DagsterInstance, ledgers: Ledgers, name: str) -> RequestedDays:
    """What was asked for under a name, and whether it was published.

    Published is what a commit speaks of, what Dagster was told of as published already, and what
    somebody else has published since.

    Args:
        instance: knows runs and backfills.
        ledgers: those of all tables; their commits know which runs the name stands for.
        name: the backfill, as `footprints.is_commit_of` takes it.
    """
    own_records = [
        r for ledger in ledgers.values() for r in ledger.records if is_commit_of(r, name)
    ]
    runs = _find_runs(instance, name, {record.run_id for record in own_records})
    times = [run.create_timestamp for run in runs]
    times += [record.at for record in own_records if record.at]
    start = min((moment.timestamp() for moment in times), default=_NEVER)
    days = _days_by_table(instance, name, [run.dagster_run for run in runs], ledgers)
    unpublished: dict[tuple[str, date], str] = {}
    for table, ledger in ledgers.items():
        recorded, failed = _recorded_days(ledger, name)
        missing = {*days.get(table, ()), *failed} - recorded - _days_by_others(ledger, name, start)
        unpublished |= {(table, day): failed.get(day, "") for day in missing}
    if any(not error for error in unpublished.values()):
        reported = _days_reported(instance, [run.dagster_run.run_id for run in runs])
        unpublished = {
            key: error for key, error in unpublished.items() if error or key not in reported
        }
    return RequestedDays(days, [*_unpublished_messages(unpublished)])


def _find_runs(instance: dg.DagsterInstance, name: str, ids: Collection[str]) -> list[dg.RunRecord]:
    filters = [dg.RunsFilter(tags={"dagster/backfill": name}), dg.RunsFilter(run_ids=[name, *ids])]
    records = {r.dagster_run.run_id: r for f in filters for r in instance.get_run_records(f)}
    return list(records.values())


def _days_by_table(
    instance: dg.DagsterInstance,
    name: str,
    runs: Iterable[dg.DagsterRun],
    ledgers: Ledgers,
) -> dict[str, set[date]]:
    """The days of the runs, and those for which Dagster's backfill has launched none."""
    days: dict[str, set[date]] = defaultdict(set)
    for run in runs:
        window = days_of_run(run.tags)
        selected = {key.path[-1] for key in run.asset_selection or ()} or ledgers.keys()
        for table in ledgers.keys() & selected if window else ():
            days[table] |= {*ledgers[table].table.grain.partitions_of(window or ())}
    backfill = instance.get_backfill(name)
    if backfill and backfill.asset_backfill_data:
        target = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
        for key, subset in target.items():
            if key.path[-1] in ledgers:
                days[key.path[-1]] |= {*map(date.fromisoformat, subset.get_partition_keys())}
    return days


def _days_reported(instance: dg.DagsterInstance, run_ids: Iterable[str]) -> set[tuple[str, date]]:
    """The days of tables that Dagster knows as published, as runs found or left them."""
    reported = set()
    for run_id in run_ids:
        for entry in instance.all_logs(run_id, of_type=_PUBLISHED_EVENTS):
            event = entry.get_dagster_event()
            if event.asset_key and event.partition:
                reported.add((event.asset_key.path[-1], date.fromisoformat(event.partition)))
    return reported


def _unpublished_messages(unpublished: Mapping[tuple[str, date], str]) -> Iterator[str]:
    days: dict[tuple[str, str], list[date]] = defaultdict(list)
    for (table, day), error in unpublished.items():
        days[table, error].append(day)
    for (table, error), table_days in days.items():
        yield (
            f"{table} [{format_ranges(table_days)}] was asked for and not published{error and f' ({error})'}; "
            "readers see what was there before. See what failed, and launch these days again"
        )


def _recorded_days(ledger: Ledger, name: str) -> tuple[set[date], dict[date, str]]:
    """The days that the commits of a backfill speak of, and those that failed last, and why."""
    recorded: set[date] = set()
    failed: dict[date, str] = {}
    for record in ledger.records:
        if is_commit_of(record, name):
            recorded = (
                recorded | record.days.keys() | record.revoked_days
            ) - record.failed_days.keys()
            failed = {**failed, **record.failed_days}
            failed = {day: error for day, error in failed.items() if day not in recorded}
    return recorded, failed


def _days_by_others(ledger: Ledger, name: str, start: float) -> set[date]:
    """The days that others than the backfill have published since."""
    return {
        day
        for day, record in ledger.latest.items()
        if record.at and record.at.timestamp() > start and not is_commit_of(record, name)
    }
