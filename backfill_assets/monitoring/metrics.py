"""Metrics for Prometheus: day states, backlog, commits, late lines and incidents of the tables."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, time
from pathlib import Path

import dagster as dg
from prometheus_client import CollectorRegistry, Gauge, generate_latest, write_to_textfile

from backfill_assets.backfills.history import run_seconds
from backfill_assets.delta.ledgers import own_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.monitoring.states import MonitoringSnapshot, count_states

#: By name after the prefix, the help text and the labels of each gauge.
GAUGES = {
    "days": ("Days that are due or published, by state.", ["table", "state"]),
    "days_behind": (
        "Days behind their inputs; only a person rebuilds final ones.",
        ["table", "final"],
    ),
    "rows": ("Published rows.", ["table"]),
    "newest_day_timestamp_seconds": ("Start of the newest published day.", ["table"]),
    "last_commit_timestamp_seconds": ("Time of the last commit.", ["table"]),
    "last_commit_rows": ("Rows of the days that the last commit wrote.", ["table"]),
    "last_run_seconds": (
        "Duration of the run of the last commit, all of its tables together.",
        ["table"],
    ),
    "late_lines": (
        "Lines that came after their day had closed; dropped ones are in no total.",
        ["table", "dropped"],
    ),
    "late_amount": ("The amount of these lines.", ["table", "dropped"]),
    "incidents": ("Incidents as the alerts name them, one for each day.", ["table", "kind"]),
}


#: A gauge, its value, and its labels.
_Figure = tuple[str, float, tuple[str, ...]]


def read_metrics(
    deployment: Deployment, snapshot: MonitoringSnapshot, instance: dg.DagsterInstance
) -> CollectorRegistry:
    """Return the metrics of a deployment as of a snapshot.

    Durations are those of runs that the instance knows: a commit of a command has none.
    """
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(f"backfill_assets_{name}", text, labels, registry=registry)
        for name, (text, labels) in GAUGES.items()
    }
    for name, value, labels in (
        *_state_figures(snapshot),
        *_commit_figures(deployment, snapshot, instance),
        *_late_figures(snapshot),
    ):
        gauges[name].labels(*labels).set(value)
    return registry


def _state_figures(snapshot: MonitoringSnapshot) -> Iterator[_Figure]:
    """Yield the days by state, the backlog and the incidents."""
    for table in own_ledgers(snapshot.ledgers):
        for state, count in count_states(snapshot.states_of(table)).items():
            yield "days", count, (table, state)
        parts = (snapshot.stale.open, snapshot.stale.blocked)
        behind = sum(len(part.get(table, ())) for part in parts)
        yield "days_behind", behind, (table, "false")
        yield "days_behind", len(snapshot.stale.final.get(table, ())), (table, "true")
    kinds = Counter((incident.subject, incident.kind) for incident in find_incidents(snapshot))
    for labels, count in kinds.items():
        yield "incidents", count, labels


def _commit_figures(
    deployment: Deployment, snapshot: MonitoringSnapshot, instance: dg.DagsterInstance
) -> Iterator[_Figure]:
    """Yield what is published of each table, and the figures of its last commit."""
    ledgers = own_ledgers(snapshot.ledgers)
    last_records = {n: ledger.records[-1] for n, ledger in ledgers.items() if ledger.records}
    run_ids = {record.run_id for record in last_records.values()}
    runs = instance.get_run_records(dg.RunsFilter(run_ids=[*run_ids])) if run_ids else ()
    seconds = {run.dagster_run.run_id: run_seconds(run) for run in runs}
    for table, ledger in ledgers.items():
        yield "rows", sum((ledger.rows or {}).values()), (table,)
        if days := ledger.published_days:
            newest = datetime.combine(max(days), time(), deployment.settings.zone)
            yield "newest_day_timestamp_seconds", newest.timestamp(), (table,)
        if not (record := last_records.get(table)):
            continue
        written = record.rewritten_days & record.days.keys()
        yield "last_commit_rows", sum(record.days[day].rows for day in written), (table,)
        if record.at:
            yield "last_commit_timestamp_seconds", record.at.timestamp(), (table,)
        if (duration := seconds.get(record.run_id)) is not None:
            yield "last_run_seconds", duration, (table,)


def _late_figures(snapshot: MonitoringSnapshot) -> Iterator[_Figure]:
    """Yield the late lines of each source, as the commits record them."""
    for source in snapshot.graph.sources.values():
        if (table := source.late.name) not in snapshot.ledgers:
            continue
        labels = table, "false" if source.under(snapshot.policy).corrects else "true"
        records = snapshot.ledgers[table].latest.items()
        late = [record.details.late.get(day, (0, "0")) for day, record in records]
        yield "late_lines", sum(lines for lines, _ in late), labels
        if source.amount:
            yield "late_amount", sum(float(amount) for _, amount in late), labels


def format_metrics(registry: CollectorRegistry) -> str:
    """Return metrics in Prometheus's text format."""
    return generate_latest(registry).decode()


def write_metrics(path: Path, registry: CollectorRegistry) -> None:
    """Replace a file by metrics; a reader sees the old file or the new one, whole.

    Raises:
        OSError: the file cannot be written.
    """
    write_to_textfile(str(path), registry)
