"""Drive the assets in a test: land lines, run days, read tables without Spark."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.sensor_definition import SensorExecutionData
from deltalake import DeltaTable

from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import verify
from backfill_assets.backfills.backfill_plan import BackfillPlan, BackfillRequest
from backfill_assets.backfills.verify import VerifiedDay
from backfill_assets.calendar.partitions import DAY, Window, days_of_run
from backfill_assets.definitions import build_defs, with_executor
from backfill_assets.delta.commit_log import resolve_path
from backfill_assets.delta.delta_rs import delta_log, load_log
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.orders.tables import TABLES
from backfill_assets.publish.io_manager import DataFrameIOManager
from backfill_assets.settings import Settings, load_settings
from backfill_assets.spark.filesystems import (
    folder_filesystem,
    in_object_store,
    open_store,
    replace_file,
)
from backfill_assets.spark.session import Engine
from backfill_assets.tables.graph import tables_of
from backfill_assets.tables.table import Table
from backfill_assets.tables.table_options import OPTION_NAMES
from backfill_assets_tests.helpers.object_stores import url_of
from backfill_assets_tests.helpers.postgres import instance_in
from backfill_assets_tests.helpers.row_digest import digests_by_day

#: What a test runs unless it says otherwise: the layers themselves, without what is about them.
LAYERS = ("raw_orders", "raw_orders_rejected", "stg_orders", "late_orders", "fact_daily_orders")
EVERYTHING = (*TABLES, "lateness_dashboard")
#: For tables with the model of the facts.
FACT_OPTIONS = {name: getattr(TABLES["fact_daily_orders"], name) for name in OPTION_NAMES}
START, END = date(2024, 1, 1), date(2024, 2, 1)
#: Digests of days by their files; none for files without a row.
_DIGESTS: dict[Hashable, str | None] = {}


def day(n: int) -> date:
    """The n-th day of the test calendar, from 1."""
    return START + timedelta(days=n - 1)


def order(
    order_id: str,
    day_n: int,
    amount: str = "10.00",
    customer: str | None = "c1",
    *,
    at: str = "10:00",
    ingested: str | None = None,
) -> dict:
    """An order line as it lands."""
    stamp = f"{day(day_n)}T{at}:00Z"
    return {
        "order_id": order_id,
        "customer_id": customer,
        "order_ts": stamp,
        "amount": amount,
        "ingestion_ts": ingested or stamp,
    }


def io_manager_of(
    defs: dg.Definitions, instance: dg.DagsterInstance | None = None
) -> DataFrameIOManager:
    """The IO manager that the runs of definitions have."""
    (key,) = (key for key in defs.resources if key.startswith(IO_MANAGER_KEY))
    resource = {"io_manager": defs.resources[key]}
    with dg.build_resources(resource, instance=instance) as resources:
        return resources.io_manager


def copy_loaded(loaded: Path, root: Path) -> None:
    """Copy a landing and its tables to where another pipeline has its own."""
    for name in ("landing", "warehouse"):
        shutil.copytree(loaded / name, root / name)


class Pipeline:
    """The project's definitions on folders of their own.

    That new code gives a day in a range what it gives it alone is compared only where a test asks
    for it: each comparison computes days once more.
    """

    def __init__(
        self,
        engine: Engine,
        root: Path,
        *,
        land: bool = True,
        today: date = END,
        **overrides: Any,
    ) -> None:
        self.root = root
        self.landing, self.warehouse = root / "landing", root / "warehouse"
        if land:
            (self.landing / "orders").mkdir(parents=True, exist_ok=True)
        values = {
            "landing": url_of(self.landing),
            "warehouse": url_of(self.warehouse),
            "start": START,
            "end": END,
            "check_independence": False,
        }
        self.settings = load_settings(**{**values, **overrides})
        self.deployment = Deployment(self.settings)
        self.now = datetime.combine(today, time(12), tzinfo=self.settings.zone)
        definitions = build_defs(self.settings, engine=engine, clock=lambda: self.now)
        self.defs = with_executor(definitions)
        self.repository = self.defs.get_repository_def()
        self.instance = instance_in(root)
        self.io_manager = io_manager_of(self.defs, self.instance)
        self.code = self.io_manager.deployment.code
        self.cursors: dict[str, str | None] = {}
        self.run_keys: set[str] = set()

    def land(self, day_n: int, lines: Iterable[Mapping | str], name: str = "part-0.jsonl") -> Path:
        """Put a JSON Lines file into an arrival day's folder."""
        path = self.folder(day_n) / name
        text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
        if in_object_store(folder := url_of(path.parent)):
            replace_file(folder, name, text.encode())
        else:
            path.write_text(text)
        return path

    def folder(self, day_n: int) -> Path:
        folder = self.landing / "orders" / f"arrival_date={day(day_n)}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run_job(self, job: str, **arguments: Any) -> dg.ExecuteInProcessResult:
        """A run of a job to its end, whether it succeeds or not."""
        return self.repository.get_job(job).execute_in_process(
            instance=self.instance, raise_on_error=False, **arguments
        )

    def run(
        self,
        first: int | date,
        last: int | date | None = None,
        assets: Sequence[str] = LAYERS,
        *,
        fails: bool | None = False,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize a range of days (inclusive) in one run, which may fail if that is None."""
        first = first if isinstance(first, date) else day(first)
        last = first if last is None else last if isinstance(last, date) else day(last)
        result = self.run_job(
            self.repository.get_implicit_global_asset_job_def().name,
            asset_selection=[*map(self.deployment.asset_key, assets)],
            tags={
                "dagster/asset_partition_range_start": str(first),
                "dagster/asset_partition_range_end": str(last),
                **(tags or {}),
            },
        )
        assert fails is None or result.success is not fails, [
            e.message for e in result.all_events if e.is_failure
        ]
        return result

    def run_days(
        self, days: Iterable[date], assets: Sequence[str] = LAYERS, **more: Any
    ) -> dg.ExecuteInProcessResult:
        """Materialize days, with or without gaps, in one run; `more` as in `run`."""
        tags = tables_of(self.settings)[assets[0]].grain.run_tags(days)
        window = days_of_run(tags)
        assert window is not None
        tags |= more.pop("tags", {})
        return self.run(window.start, window.end - DAY, assets, tags=tags, **more)

    def night(
        self, today: date, assets: Sequence[str] = (), at: time = time(2)
    ) -> list[dg.RunRequest]:
        """What the daemon does in a night: the schedule's tick, and the sensor's until it rests.

        Of what is asked for, only the given assets are run, if any are given.
        """
        self.now = datetime.combine(today, at, tzinfo=self.settings.zone)
        launched = self.launch(self.tick_schedule(), assets)
        while requests := self.launch(self.tick("touched_days").run_requests or [], assets):
            launched += requests
        return launched

    def tick_schedule(self) -> list[dg.RunRequest]:
        """The requests of the nightly schedules as of now."""
        context = dg.build_schedule_context(
            instance=self.instance,
            scheduled_execution_time=self.now,
            repository_def=self.repository,
        )
        # A context takes only an instance that another process could open.
        context._instance_ref, context._instance = True, self.instance
        schedules = [s for s in self.repository.schedule_defs if s.name.startswith("nightly")]
        ticks = [schedule.evaluate_tick(context) for schedule in schedules]
        return [request for tick in ticks for request in tick.run_requests or []]

    def tick(self, sensor: str) -> SensorExecutionData:
        """One tick of a sensor, whose cursor is kept as the daemon would."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursors.get(sensor), repository_def=self.repository
        )
        name = self.deployment.automation_name(sensor)
        tick_data = self.repository.get_sensor_def(name).evaluate_tick(context)
        self.cursors[sensor] = tick_data.cursor or self.cursors.get(sensor)
        for event in tick_data.asset_events:
            self.instance.report_runless_asset_event(event)
        return tick_data

    def launch(
        self, requests: Iterable[dg.RunRequest], assets: Sequence[str] = ()
    ) -> list[dg.RunRequest]:
        """Run what was asked for, each run key once, of some assets or all; what was run."""
        launched = []
        for request in requests:
            if request.run_key in self.run_keys:
                continue
            self.run_keys.add(str(request.run_key))
            selection = request.asset_selection
            if assets:
                wanted = [*map(self.deployment.asset_key, assets)]
                selection = [key for key in selection or wanted if key in wanted]
                if not selection:
                    continue
            launched.append(request)
            self.repository.get_job(request.job_name or "daily").execute_in_process(
                instance=self.instance,
                asset_selection=selection,
                tags={
                    "dagster/sensor_name": "touched_days",
                    "dagster/run_key": str(request.run_key),
                    **request.tags,
                },
                raise_on_error=False,
            )
        return launched

    def log(self, name: str) -> DeltaTable:
        return delta_log(url_of(self.warehouse / name)).load()

    def rows(self, name: str) -> list[dict]:
        """A table's rows, read by an engine that is not Spark."""
        return self._arrow_rows(name).to_pylist()

    def _arrow_rows(
        self, name: str, filters: list[tuple[str, str, list[date]]] | None = None
    ) -> pa.Table:
        url = url_of(self.warehouse / name)
        filesystem = folder_filesystem(url) if in_object_store(url) else None
        return self.log(name).to_pyarrow_table(filters=filters, filesystem=filesystem)

    def digests(self) -> dict[str, dict[str, str]]:
        """The digest of every day of every table, computed from its rows without Spark.

        Data files do not change: days with the same files as before are not computed again.
        """
        digests = {}
        for name, table in tables_of(self.settings).items():
            # A run that was killed may have left a folder that is no table yet.
            if load_log(url_of(self.warehouse / name)) is None:
                continue
            keys = self._file_keys(name, table)
            if new_days := [d for d, key in keys.items() if key not in _DIGESTS]:
                rows = self._arrow_rows(name, [(table.partition, "in", new_days)])
                measured = digests_by_day(rows.select([*table.columns]), table.partition)
                _DIGESTS.update((keys[d], measured.get(d)) for d in new_days)
            days = {str(d): _DIGESTS[key] for d, key in keys.items()}
            digests[name] = {d: digest for d, digest in days.items() if digest}
        return digests

    def _file_keys(self, name: str, table: Table) -> dict[date, Hashable]:
        """By day, what its rows follow from: the columns, and the files with size and time."""
        log, folder = self.log(name), url_of(self.warehouse / name)
        filesystem, _ = open_store(folder)
        files = defaultdict(set)
        for action in pa.table(log.get_add_actions(flatten=True)).to_pylist():
            path = resolve_path(folder, action["path"])
            (info,) = filesystem.get_file_info([open_store(path)[1]])
            # A copy of a table has the rows of the table: names of data files are unique.
            name_in_table = path.removeprefix(folder)
            files[action[f"partition.{table.partition}"]].add(
                (name_in_table, info.size, info.mtime_ns)
            )
        return {d: (str(table.columns), frozenset(day_files)) for d, day_files in files.items()}

    def materialized(self, name: str) -> set[str]:
        return self.instance.get_materialized_partitions(self.deployment.asset_key(name))

    def failure(self, result: dg.ExecuteInProcessResult) -> str:
        """What the failed steps of a run say, as a user reads it."""
        return "\n".join(
            e.step_failure_data.error.to_string()
            if not e.step_failure_data.user_failure_data
            else str(e.step_failure_data.user_failure_data.description)
            for e in result.all_events
            if e.is_step_failure
        )


def run_verify(
    settings: Settings, engine: Engine, window: Window, tables: Sequence[str] = ()
) -> list[VerifiedDay]:
    """What `verification` finds when the days are computed on this engine."""
    defs = build_defs(settings, engine=engine)
    return verify.verify_days(Deployment(settings), defs, window, tables)


def count_outcomes(result: dg.ExecuteInProcessResult) -> Counter[str]:
    """What a run says became of the days that it materialized, over all tables."""
    return Counter(
        str(event.materialization.metadata["outcome"].value)
        for event in result.get_asset_materialization_events()
        if "outcome" in event.materialization.metadata
    )


def run_undo(
    pipeline: Pipeline,
    name: str,
    days: str = "",
    *,
    fails: bool = False,
    tags: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Put back what a backfill or a run has published."""
    config = {"backfill": name, "days": days, "reason": "a drill"}
    job, op = map(pipeline.deployment.automation_name, ("undo", "put_back"))
    run_config = {"ops": {op: {"config": config}}}
    result = pipeline.run_job(job, run_config=run_config, tags=tags)
    assert result.success is not fails, pipeline.failure(result)
    return result


def tick_planned_backfills(pipeline: Pipeline) -> str:
    """One look of the sensor of planned backfills; the run that it asks for is run."""
    tick_data = pipeline.tick("planned_backfills")
    for request in tick_data.run_requests or []:
        job = pipeline.deployment.automation_name("reconcile")
        pipeline.repository.get_job(job).execute_in_process(
            instance=pipeline.instance,
            run_config=request.run_config,
            tags=request.tags,
            raise_on_error=False,
        )
    return tick_data.skip_message or ""


def make_plan(pipeline: Pipeline, days: str, **more: Any) -> BackfillPlan:
    """A plan as of now, which is kept; of the layers unless other tables are given."""
    request = BackfillRequest(days=days, **{"tables": LAYERS, **more})
    return backfill_jobs.create_plan(pipeline.deployment, pipeline.instance, pipeline.code, request)
