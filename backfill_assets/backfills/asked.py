"""What Dagster was asked for under a backfill's name, and which of it was not published.

For backfills and ranges that were launched without a plan: Dagster knows the days of their runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import dagster as dg

from backfill_assets.backfills.footprints import belongs
from backfill_assets.calendar.partitions import days_of_run, spelled
from backfill_assets.delta.ledgers import Ledger, Ledgers

#: Dagster is told of a day that is published by one of these, whether or not it was computed.
_TOLD = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION}
_NEVER = float("inf")


@dataclass(frozen=True)
class Asked:
    """What was asked for under a name.

    Attributes:
        days: by table.
        not_published: the days of them that were not published, each table's in a sentence.
    """

    days: Mapping[str, Collection[date]]
    not_published: Sequence[str]


def asked_for(instance: dg.DagsterInstance, ledgers: Ledgers, name: str) -> Asked:
    """What was asked for under a name, and whether it was published.

    Published is what a commit speaks of, what Dagster was told of as published already, and what
    somebody else has published since.

    Args:
        instance: knows runs and backfills.
        ledgers: those of all tables; their commits know which runs the name stands for.
        name: the backfill, as `footprints.belongs` takes it.
    """
    mine = [r for ledger in ledgers.values() for r in ledger.records if belongs(r, name)]
    runs = _runs(instance, name, {record.run_id for record in mine})
    times = [run.create_timestamp for run in runs]
    times += [record.at for record in mine if record.at]
    began = min((moment.timestamp() for moment in times), default=_NEVER)
    days = _days(instance, name, [run.dagster_run for run in runs], ledgers)
    lacking: dict[tuple[str, date], str] = {}
    for table, ledger in ledgers.items():
        spoken, failed = _last_recorded(ledger, name)
        of = {*days.get(table, ()), *failed} - spoken - _since(ledger, name, began)
        lacking |= {(table, day): failed.get(day, "") for day in of}
    if any(not why for why in lacking.values()):
        reported = _reported(instance, [run.dagster_run.run_id for run in runs])
        lacking = {key: why for key, why in lacking.items() if why or key not in reported}
    return Asked(days, [*_sentences(lacking)])


def _runs(instance: dg.DagsterInstance, name: str, ids: Collection[str]) -> list[dg.RunRecord]:
    filters = [dg.RunsFilter(tags={"dagster/backfill": name}), dg.RunsFilter(run_ids=[name, *ids])]
    found = {r.dagster_run.run_id: r for f in filters for r in instance.get_run_records(f)}
    return list(found.values())


def _days(
    instance: dg.DagsterInstance,
    name: str,
    runs: Iterable[dg.DagsterRun],
    ledgers: Ledgers,
) -> dict[str, set[date]]:
    """The days of the runs, and those for which Dagster's backfill has launched none."""
    days: dict[str, set[date]] = defaultdict(set)
    for run in runs:
        of = days_of_run(run.tags)
        selected = {key.path[-1] for key in run.asset_selection or ()} or ledgers.keys()
        for table in ledgers.keys() & selected if of else ():
            days[table] |= {*ledgers[table].table.cadence.touched(of or ())}
    backfill = instance.get_backfill(name)
    if backfill and backfill.asset_backfill_data:
        target = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
        for key, subset in target.items():
            if key.path[-1] in ledgers:
                days[key.path[-1]] |= {*map(date.fromisoformat, subset.get_partition_keys())}
    return days


def _reported(instance: dg.DagsterInstance, run_ids: Iterable[str]) -> set[tuple[str, date]]:
    """The days of tables that Dagster knows as published, as runs found or left them."""
    found = set()
    for run_id in run_ids:
        for entry in instance.all_logs(run_id, of_type=_TOLD):
            event = entry.get_dagster_event()
            if event.asset_key and event.partition:
                found.add((event.asset_key.path[-1], date.fromisoformat(event.partition)))
    return found


def _sentences(lacking: Mapping[tuple[str, date], str]) -> Iterator[str]:
    days: dict[tuple[str, str], list[date]] = defaultdict(list)
    for (table, day), why in lacking.items():
        days[table, why].append(day)
    for (table, why), of in days.items():
        yield (
            f"{table} [{spelled(of)}] was asked for and not published{why and f' ({why})'}; "
            "readers see what was there before. See what failed, and launch these days again"
        )


def _last_recorded(ledger: Ledger, name: str) -> tuple[set[date], dict[date, str]]:
    """The days that the commits of a backfill speak of, and those that failed last, and why."""
    spoken: set[date] = set()
    failed: dict[date, str] = {}
    for record in ledger.records:
        if belongs(record, name):
            spoken = (spoken | record.days.keys() | record.withdrawn) - record.failed.keys()
            failed = {**failed, **record.failed}
            failed = {day: why for day, why in failed.items() if day not in spoken}
    return spoken, failed


def _since(ledger: Ledger, name: str, began: float) -> set[date]:
    """The days that others than the backfill have published since."""
    return {
        day
        for day, record in ledger.latest.items()
        if record.at and record.at.timestamp() > began and not belongs(record, name)
    }
