"""Tables, landing and Dagster's instance as of now: what all automation starts from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from threading import Lock

import dagster as dg
from dagster import AssetKey

from backfill_assets.calendar.late_data import Policy
from backfill_assets.dagster_ext.failures import DISK_FAILED_TAG
from backfill_assets.dagster_ext.internals import (
    AssetCheckExecutionRecordStatus,
    AssetCheckKey,
    get_and_update_asset_status_cache_value,
)
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.monitoring.alerts import ALL_TABLES
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.monitoring.next_runs import RunPlanner, unloaded_by_log
from backfill_assets.monitoring.outbox import Incident
from backfill_assets.monitoring.states import Situation
from backfill_assets.settings import Settings
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.tables.catalog import config_digests, tables_of
from backfill_assets.tables.graph import graph_of
from backfill_assets.tables.table import Table

Clock = Callable[[], datetime]
#: Well below the 60 s after which Dagster gives up a tick, whose thread goes on.
TURN_SECONDS = 15.0


class LookError(RuntimeError):
    """Tables and landing cannot be looked at now, as somebody else has not come back from there."""


#: For so long a disk that failed is an incident; once that is over, it is told again.
_DISK_NEWS_PERIOD = timedelta(days=1)


class Monitor:
    """Looks at tables, landing and Dagster's instance, as of now.

    A look at a dead mount does not come back, and nobody can end it. Ticks take turns: those that
    come meanwhile fail, instead of losing one thread of the code server after another.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.tables = tables_of(settings)
        self.clock = clock
        self.planner = RunPlanner(settings)
        self._lock = Lock()
        self._since: datetime | None = None

    @contextmanager
    def take_turn(self) -> Iterator[None]:
        """For a tick: nobody else looks meanwhile.

        Raises:
            LookError: another look does not come back.
        """
        if not self._lock.acquire(timeout=TURN_SECONDS):
            since = f"{self._since:%Y-%m-%d %H:%M:%S %Z}" if self._since else "a moment ago"
            raise LookError(
                f"a look at tables and landing that began at {since} has not come back: the "
                "storage may hang (a dead mount). Nothing was asked for; the next tick looks "
                "again. If the storage is well, restart the code server."
            )
        self._since = datetime.now(self.settings.zone)
        try:
            yield
        finally:
            self._lock.release()

    @property
    def today(self) -> date:
        """The business day."""
        return self.clock().astimezone(self.settings.zone).date()

    def read_situation(self, instance: dg.DagsterInstance) -> Situation:
        """All that the states of the days follow from."""
        return read_situation(self.settings, instance, self.clock())

    def find_incidents(self, context: dg.SensorEvaluationContext) -> list[Incident]:
        """What a person must be told.

        Raises:
            LookError: another look does not come back.
        """
        with self.take_turn():
            disk = disk_failures(context.instance, self.clock() - _DISK_NEWS_PERIOD)
            return [*disk, *find_incidents(self.read_situation(context.instance))]


def disk_failures(instance: dg.DagsterInstance, since: datetime) -> list[Incident]:
    """That the disk of the engine failed, once for all runs that it made fail."""
    failed = dg.RunsFilter(tags={DISK_FAILED_TAG: "true"}, updated_after=since)
    runs = instance.get_runs(failed, limit=1)
    return [
        Incident(
            "the engine's disk failed",
            ALL_TABLES,
            "",
            f"it is full, or somebody cleared it: run {run.run_id[:8]}, for one. No file is at "
            "fault, and the days are as they were. Such runs are retried, twice at most. Make room "
            "where Spark keeps its scratch files (spark.local.dir; under DAGSTER_HOME unless set)",
        )
        for run in runs
    ]


def read_situation(settings: Settings, instance: dg.DagsterInstance, now: datetime) -> Situation:
    """All that the states of the days follow from.

    Args:
        settings: the deployment's settings.
        instance: knows the runs whose checks failed.
        now: the moment.

    Raises:
        LandingError: the landing is not where the settings say.
    """
    policy, now = Policy.from_settings(settings), now.astimezone(settings.zone)
    ledgers = read_ledgers(settings)
    return Situation(
        ledgers=ledgers,
        stale=find_stale_days(ledgers, policy, now.date()),
        unloaded=unloaded_by_log(settings, ledgers, graph_of(ledgers, policy), now.date()),
        failed_checks={
            name: _failed_checks(settings, ledger.table, instance)
            for name, ledger in ledgers.items()
        },
        policy=policy,
        config_digests=config_digests(settings),
        today=now.date(),
        before_deadline=now.strftime("%H:%M") < settings.deadline,
    )


def _failed_checks(
    settings: Settings, table: Table, instance: dg.DagsterInstance
) -> dict[date, set[str]]:
    """The days that the last run over them did not publish because of checks, and which."""
    key, partitions = AssetKey(table.name), table.grain.partitions_def(settings)
    # What `instance.get_status_by_partition` is made of: that asks for each day of the calendar.
    status = get_and_update_asset_status_cache_value(instance, key, partitions)
    if status is None:
        return {}
    failed = {*status.deserialize_failed_partition_subsets(partitions).get_partition_keys()} - {
        *status.deserialize_in_progress_partition_subsets(partitions).get_partition_keys()
    }
    if not failed:
        return {}
    checks = [AssetCheckKey(key, check) for check in table.check_descriptions]
    checks_by_day: dict[date, set[str]] = {}
    for info in instance.event_log_storage.get_asset_check_partition_info(
        checks, partition_keys=sorted(failed)
    ):
        is_failed = info.latest_execution_status is AssetCheckExecutionRecordStatus.FAILED
        if info.partition_key and is_failed:
            day = date.fromisoformat(info.partition_key)
            checks_by_day.setdefault(day, set()).add(info.check_key.name)
    return checks_by_day
