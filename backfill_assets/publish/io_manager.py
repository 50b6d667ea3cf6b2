"""The IO managers: they load inputs, publish what assets return, and log events to Dagster.

`DataFrameIOManager` also takes ordinary assets whose metadata is that of `publishes`; it is checked
when the definitions load. The inputs of such an asset are not recorded, so its
days are computed each time; a day with unchanged rows is not written again.
"""

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import dagster as dg
import pandera.pyspark as pa
from pyspark.sql import DataFrame

from backfill_assets.audit.checks import (
    check_evaluations,
    day_metadata,
    failure_text,
    latest_materializations,
)
from backfill_assets.audit.verdicts import RefusedError
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import (
    Grain,
    days_condition,
    format_ranges,
    partitions_of_run,
)
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.failures import retry_if_engine_fails
from backfill_assets.delta.catalog import register_table
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.delta_rs import RACE_ATTEMPTS, race_wait
from backfill_assets.publish import publisher
from backfill_assets.publish.types import (
    Candidate,
    CommitRaceError,
    ComputedDays,
    DayResult,
    Delivery,
    Outcome,
)
from backfill_assets.spark.frames import cache_frames
from backfill_assets.spark.tasks import TaskTimes, report_stalls, watch_session, watch_tasks
from backfill_assets.tables import table_options
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.code_version import asset_version
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency, SchemaError, Table

#: Ordinary assets are not in the graph of a deployment: each has its own inputs, on the same day.
_NO_GRAPH = Graph({}, Policy(date.min, None, 0, 0, corrects=False, only_touched=False))
#: The metadata key of the plot.
PLOT = "task_times"
#: The plot has at most this many lines; of more tasks, evenly spaced ones are shown.
_LINES = 12
_BAR = 30


def task_metadata(times: TaskTimes | None) -> dict[str, Any]:
    """Return two numbers, which the UI plots over days, and a plot of tasks, if there are times."""
    if times is None:
        return {}
    return {
        "longest_task_seconds": round(times.longest_seconds, 3),
        "median_task_seconds": round(times.median_seconds, 3),
        PLOT: dg.MetadataValue.md(_task_plot(times)),
    }


def _task_plot(times: TaskTimes) -> str:
    """Return a line for each task, longest first, with a bar of its duration."""
    last_index = len(times.seconds) - 1
    line_count = min(len(times.seconds), _LINES)
    width = len(str(times.tasks))
    rows = []
    for n in range(line_count):
        at = round(n * last_index / max(line_count - 1, 1))  # longest first
        seconds = times.seconds[last_index - at]
        rank = 1 + round(at * (times.tasks - 1) / max(last_index, 1))
        bar = (
            "█" * max(round(_BAR * seconds / times.longest_seconds), 1)
            if times.longest_seconds
            else ""
        )
        rows.append(f"{rank:>{width}}. {seconds:10.3f} s  {bar}".rstrip())
    head = f"The stage with the longest task had {times.tasks} task{'s' * (times.tasks != 1)}."
    return "\n".join([head, "", "```text", *rows, "```"])


class DeltaIOManager(publisher.Publisher):
    """Hands tables to the assets, publishes the days that they computed, and tells Dagster."""

    def with_destination(self, destination: publisher.Destination) -> "DeltaIOManager":
        """Return a copy that reads tables from, and delivers to, another destination."""
        return DeltaIOManager(
            self.deployment,
            self.engine,
            self.asset_versions,
            destination,
            send_lineage=self.send_lineage,
        )

    def as_definition(self) -> dg.IOManagerDefinition:
        """Return the definition for Dagster: not copied, without configuration.

        At the end of a run, it releases the frames that the run's steps have shared.
        """

        @contextlib.contextmanager
        def provide(context: dg.InitResourceContext) -> Iterator[DeltaIOManager]:
            try:
                yield self
            finally:
                if context.run is not None:
                    self.shared_frames.release(context.run.run_id)

        # Dagster takes a context manager here, although the annotation does not say so.
        return dg.IOManagerDefinition(provide, config_schema={})  # type: ignore[arg-type]

    def load_input(self, context: dg.InputContext) -> publisher.Input:
        """Return the input, to be read after the ledger of the table that is built from it."""
        table = self.deployment.graph.assets[context.asset_key.path[-1]][0]
        return publisher.Input(self, table, bool(context.asset_partition_keys))

    # Dagster also accepts a generator, although the base class returns None.
    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Iterator[Sequence[Candidate]]
    ) -> Iterator[dg.DagsterEvent]:
        """Publish the candidates in turn, and log events for every day.

        The asset computes candidates when they are taken, so a stateful table is built from what
        the candidate before it has published. If another run changed the days meanwhile, the step
        starts again.

        Raises:
            RetryRequested: another commit changed the days first.
            SchemaError: a column is missing or of another type, in the frame or in the table.
            RefusedError: rows outside the run's days, rows without a day, or no rows where some are
                expected.
            PublishError: the commit failed.
        """
        if not isinstance(obj, Iterator):  # a list or a frame of pandas is iterable as well
            raise TypeError(f"{context.asset_key}: an asset hands over Candidates, not {type(obj)}")
        step, name = context.step_context, context.asset_key.path[-1]
        run_id = step.dagster_run.run_id
        days = partitions_of_run(context.asset_partition_keys, step.dagster_run.tags)
        outcome_counts: Counter[str] = Counter()
        check_count = 0
        failed: dict[str, dict[date, str]] = {}
        not_due: dict[str, tuple[date, str]] = {}
        with (
            retry_if_engine_fails(step.instance, run_id),
            watch_tasks() as tasks,
            self._report_stalls(context, f"{name} [{days}]"),
        ):
            try:
                for delivery in self.deliver_all(obj):
                    for candidate, results in delivery:
                        table = candidate.plan.table
                        failed_days = failed.setdefault(table.name, {})
                        failed_days |= {
                            d.day: d.verdict.failure_reasons
                            for d in results
                            if d.outcome is Outcome.FAILED
                        }
                        self.note_failed_days(run_id, table.name, failed_days)
                        outcome_counts.update(d.outcome.value for d in results)
                        check_count += sum(len(d.verdict.findings) for d in results)
                        not_due |= {
                            table.partition_key(day): (day, text)
                            for day, text in candidate.plan.not_due.items()
                        }
                    published = [(c.plan.table, results) for c, results in delivery]
                    task_figures = task_metadata(tasks.read_times())
                    key = context.asset_key
                    for events in self.events(step.instance, published, task_figures, key):
                        yield from internals.stored_events(step, events)
                    for table, results in published:
                        self.report_commits(context, step.dagster_run, table, results)
            except CommitRaceError as error:
                wait = race_wait(step.previous_attempt_count + 1)
                raise dg.RetryRequested(RACE_ATTEMPTS, wait) from error
        context.log.info(
            f"{name} [{days}]: "
            + ", ".join(
                f"{n} day{'s' * (n != 1)} {outcome}" for outcome, n in outcome_counts.items()
            )
            + (f"; {check_count} checks evaluated" if outcome_counts else "nothing published")
        )
        for partition, (_, text) in not_due.items():
            # Its partition stays missing; this is what the UI has to show of it.
            description = f"not due yet: {text}"
            context.log_event(
                dg.AssetObservation(context.asset_key, description, partition=partition)
            )
        if not_due:
            ranges = format_ranges(day for day, _ in not_due.values())
            first_day, text = min(not_due.values())
            context.log.warning(
                f"{name} [{ranges}] is not due yet: nothing was published. {first_day}: {text}"
            )

    def deliver_all(self, batches: Iterator[Sequence[Candidate]]) -> Iterator[Delivery]:
        """Deliver the candidates that are handed over together, and yield them with their results.

        A failure is raised where the asset has yielded the candidates: it may hand over fewer days
        instead, or those of another part first.

        Raises:
            dagster.Failure: the days cannot be published; other errors as `handle_output`.
        """
        batch = next(batches, None)
        while batch:
            failure: Exception | None = None
            try:
                yield from self.destination.deliver(self, batch)
            except (dg.Failure, RefusedError, SchemaError, PublishError) as error:
                failure = error
            if failure is None:
                batch = next(batches, None)
            elif isinstance(batches, Generator):
                batch = batches.throw(failure)
            else:
                raise failure

    def _report_stalls(
        self, context: dg.OutputContext, days: str
    ) -> contextlib.AbstractContextManager[None]:
        """Log which query the step waits for, if that takes long."""

        def log_stall(text: str) -> None:
            context.log.warning(f"{days}: {text}")

        seconds = self.deployment.settings.stalled_after
        return report_stalls(lambda: self.engine.started_sessions, seconds, log_stall)

    def events(
        self,
        instance: dg.DagsterInstance,
        published: Sequence[tuple[Table, Sequence[DayResult]]],
        task_figures: Mapping[str, Any] = MappingProxyType({}),
        key: dg.AssetKey | None = None,
    ) -> Iterator[list[internals.AssetEvent]]:
        """Yield the events of the days in lists; store each list before you take the next.

        An unchanged day gets a materialization and evaluations like any other: Dagster expects both
        of every day of a run, and shows a day that lacks them as failed or missing if the run
        fails.

        Args:
            instance: Dagster's.
            published: a table, or parts of one, each with the results of its days.
            task_figures: additional metadata of the days that were computed.
            key: of an ordinary asset, which the deployment does not declare.
        """
        key = key or self.deployment.asset_key(published[0][0].name)
        days = [(table, result) for table, results in published for result in results]
        not_computed = (Outcome.IDENTICAL, Outcome.FAILED, Outcome.WITHDRAWN)
        newest = max(
            (r for _, r in days if r.outcome not in not_computed), key=lambda r: r.day, default=None
        )
        numbers = {name: figure for name, figure in task_figures.items() if name != PLOT}
        # The plot is large, and the same for all days of a run: only the newest day has it.
        yield [
            self._build_materialization(
                key, table, result, task_figures if result is newest else numbers
            )
            for table, result in days
            if result.outcome not in (Outcome.FAILED, Outcome.WITHDRAWN)
        ]
        # Afterwards, as an evaluation names the materialization that it belongs to.
        keys = [table.partition_key(result.day) for table, result in days]
        latest = latest_materializations(instance, key, keys)
        check_events: list[internals.AssetEvent] = []
        for (table, result), partition in zip(days, keys, strict=True):
            record = latest.get(partition)
            target = record and internals.AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
            withdrawn = result.outcome is Outcome.WITHDRAWN
            check_events += check_evaluations(
                key, table, result.verdict, target, blocks=not withdrawn
            )
        yield check_events

    def report_commits(
        self,
        context: dg.OutputContext | dg.OpExecutionContext,
        run: dg.DagsterRun,
        table: Table,
        results: Sequence[DayResult],
    ) -> None:
        """Send OpenLineage events and register the table, as the settings say.

        What fails is a warning.
        """
        catalog = self.deployment.settings.catalog
        if self.send_lineage and not self.destination.compares:
            for problem in self.send_lineage(self, run, table, results):
                context.log.warning(f"lineage: {problem}")
        if catalog is None or self._destination is not None:
            return
        if not any(result.is_committed for result in results):
            return
        name = f"{catalog}.{table.asset_name}"
        if problem := register_table(
            self.start_session, catalog, table, self.url(table), run.run_id
        ):
            context.log.warning(
                f"{table.name} is published, but it is not in the catalog as {name}: {problem}. "
                "The next run that publishes days of it tries again"
            )

    def _build_materialization(
        self,
        key: dg.AssetKey,
        table: Table,
        result: DayResult,
        task_figures: Mapping[str, Any],
    ) -> dg.AssetMaterialization:
        """Return the materialization of a day; its data version is the digest of the day's rows."""
        return dg.AssetMaterialization(
            asset_key=key,
            partition=table.partition_key(result.day),
            metadata={
                **day_metadata(result.verdict, result.numbers),
                **_outcome_metadata(result),
                **(task_figures if result.outcome is not Outcome.IDENTICAL else {}),
                "dagster/uri": self.url(table),
                "code_version": self.code_of(table),
                "config_digest": self.config_of(table),
                **{f"input_version_{name}": version for name, version in result.inputs.items()},
            },
            tags={
                "dagster/data_version": result.verdict.metrics.digest,
                "dagster/data_version_is_user_provided": "true",
            },
        )


def _outcome_metadata(result: DayResult) -> dict[str, Any]:
    metadata = {"outcome": result.outcome.value, "delta_version": result.version}
    return {**metadata, "reason": result.reason} if result.reason else metadata


#: The metadata key of an asset's pandera model and the options of its table.
MODEL = "backfill_assets/model"


@table_options.takes_options("publishes")
def publishes(
    model: "type[pa.DataFrameModel[Any]]",
    *,
    partition: str,
    key: Sequence[str] | None = None,
    totals: Sequence[str] = (),
    rules: Mapping[str, tuple[str, str]] = {},
    notices: Mapping[str, str] = {},
    counts: Mapping[str, str] = {},
    drift: Mapping[str, float] = {},
    skew: Mapping[str, float] = {},
    merge: bool = False,
    schema_version: int = 1,
) -> Mapping[str, Any]:
    """Return the metadata of an ordinary asset whose DataFrame `delta_io_manager` publishes.

    For an asset with daily partitions::

        @dg.asset(
            partitions_def=DAYS,
            io_manager_key="io_manager",
            metadata=publishes(Visits, partition="day", key=["page"]),
        )
        def page_visits() -> DataFrame: ...

    The arguments are those of `table`.

    Raises:
        DeclarationError: the model has options of a table in its `Config.metadata`. Values that do
            not fit are found when the definitions load.
    """
    options = locals() | {
        "key": table_options.declared_key(f"publishes({model.__name__})", model, key)
    }
    return {MODEL: partial(Table, **options)}


#: The format of Dagster's partition keys of days.
_DAYS = "%Y-%m-%d"
Asset = dg.AssetsDefinition | dg.AssetSpec


def tables_of_assets(assets: Iterable[Asset]) -> dict[str, Table]:
    """Return the tables of ordinary assets, by name.

    Raises:
        DeclarationError: an asset has no model in its metadata, no daily partitions, or a model
            that is not possible for a table.
    """
    specs = [
        spec
        for asset in assets
        for spec in ([asset] if isinstance(asset, dg.AssetSpec) else asset.specs)
    ]
    return {spec.key.path[-1]: _build_asset_table(spec) for spec in specs}


def _build_asset_table(spec: dg.AssetSpec) -> Table:
    """Build the table of an ordinary asset from what `publishes` put into its metadata.

    Raises:
        DeclarationError: the asset cannot be published.
    """
    name, partitions, build_table = spec.key.path[-1], spec.partitions_def, spec.metadata.get(MODEL)
    if table_options.is_model(build_table):
        table_options.refuse_metadata(
            build_table, f"metadata=publishes({build_table.__name__}", table_options.OPTION_NAMES
        )
    if not isinstance(build_table, partial):
        raise DeclarationError(
            f"{name}: the asset has no pandera model in its metadata, so its rows cannot be "
            'audited. Add metadata=publishes(Model, partition="day", key=[...]) to the asset'
        )
    if not _is_daily(partitions):
        kind = type(partitions).__name__ if partitions else "no partitions"
        raise DeclarationError(
            f"{name}: the asset has {kind}, not dg.DailyPartitionsDefinition. "
            f"{table_options.WHOLE_DAYS}. A table by week or month is declared by a function, with "
            "Reads(TABLE, WEEK) or MONTH"
        )
    table: Table = build_table(name=name)
    return table


def _is_daily(partitions: dg.PartitionsDefinition | None) -> bool:
    if (
        not isinstance(partitions, dg.TimeWindowPartitionsDefinition)
        or partitions.schedule_type is None
    ):
        return False
    return partitions.schedule_type.name == Grain.DAILY.name and partitions.fmt == _DAYS


@dataclass(eq=False)
class DataFrameIOManager(DeltaIOManager):
    """The IO manager of our tables, for assets that return and take DataFrames as well."""

    #: By run and step, of all IO managers of the process: one may load what another publishes.
    _inputs_by_step: ClassVar[dict[tuple[str, str], list[TableSnapshot]]] = {}
    _asset_tables: dict[str, Table] = field(default_factory=dict)

    def add_assets(self, assets: Iterable[Asset]) -> Self:
        """Return a copy that also publishes these ordinary assets.

        Raises:
            DeclarationError: one of them cannot be published.
        """
        assets = [*assets]
        self._asset_tables |= tables_of_assets(assets)
        for asset in assets:
            compute = getattr(getattr(asset, "node_def", None), "compute_fn", None)
            function = getattr(compute, "decorated_fn", None)
            for name, table in tables_of_assets([asset]).items():
                if function and (version := asset_version(function, table)):
                    self.asset_versions[name] = version
        return self

    def _find_table(self, key: dg.AssetKey) -> Table:
        """Return the table of an asset.

        Raises:
            dagster.Failure: the asset was not given to `add_assets`.
        """
        name = key.path[-1]
        if (table := self.deployment.tables.get(name) or self._asset_tables.get(name)) is None:
            if parts := self.deployment.graph.assets.get(name):
                raise dg.Failure(
                    f"{name} has parts, as {parts[0].name}: a table of `@table` reads them, an "
                    "ordinary asset cannot. Nothing was written.",
                    allow_retries=False,
                )
            raise dg.Failure(
                f"{name}: the IO manager does not know this asset. Nothing was written. Name it "
                f"where the IO manager is made: delta_io_manager(settings, [{name}, ...])",
                allow_retries=False,
            )
        return table

    def load_input(self, context: dg.InputContext) -> publisher.Input | DataFrame:  # type: ignore[override]
        """Return the rows of the run's days for a DataFrame parameter, else the unread input.

        If such an input lacks a day, the same day of the output is not published.
        """
        if context.dagster_type.typing_type is not DataFrame:
            return super().load_input(context)
        table = self._find_table(context.asset_key)
        source = self.table_snapshot(self.ledger(table), by_day=context.has_asset_partitions)
        if not context.has_asset_partitions:
            return source.all_rows
        step = context.step_context
        self.note_failures_of_run(step.instance, step.dagster_run, [context.asset_key])
        self._inputs_by_step.setdefault(_step_key(context.step_context), []).append(source)
        return source.read_days([*map(date.fromisoformat, context.asset_partition_keys)])

    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Iterator[Sequence[Candidate]] | DataFrame
    ) -> Iterator[dg.DagsterEvent]:
        """Publish the days of a DataFrame that pass the audit, and fail the step if others do not.

        Raises:
            dagster.Failure: some days did not pass the audit; the message names them. Or the asset
                was not given to `add_assets`.
        """
        if not isinstance(obj, DataFrame):
            yield from super().handle_output(context, obj)
            return
        table = self._find_table(context.asset_key)
        sources = self._inputs_by_step.pop(_step_key(context.step_context), [])
        with cache_frames() as cache:
            candidates = self._frame_candidates(context, table, cache(obj), sources)
            yield from super().handle_output(context, candidates)
        # Else Dagster would log a second materialization for each day, the same for all of them.
        context._asset_key = None
        run_id = context.step_context.run_id
        if failed := self.failed_days(run_id).get(table.name):
            raise dg.Failure(failure_text({table.name: failed}), allow_retries=False)

    def _frame_candidates(
        self,
        context: dg.OutputContext,
        table: Table,
        rows: DataFrame,
        sources: Sequence[TableSnapshot],
    ) -> Iterator[Sequence[Candidate]]:
        """Yield the rows of an ordinary asset, without the days that lack an input.

        All days have an empty input digest, so that none is skipped as current. Rows outside of the
        run's range are refused by the audit.
        """
        watch_session(rows.sparkSession)  # the asset had it before the publisher asks for it
        run = context.step_context.dagster_run
        window = partitions_of_run(context.asset_partition_keys, run.tags)
        request = self.request_for_run(table, run.run_id, run.tags, window)
        ledgers = {source.table.name: source.ledger for source in sources}
        snapshot = self.snapshot(
            request,
            _NO_GRAPH,
            {**ledgers, table.name: self.ledger(table)},
            digests={table.name: dict.fromkeys(request.window, "")},
            asset_inputs={
                table.name: tuple(
                    Dependency(source.table, SAME_DAY)
                    for source in sources
                    if source.needs_same_day
                )
            },
        )
        plan = self.plan_days(request, table, snapshot, sources)
        computed = None
        if plan.reasons:
            days = {*map(date.fromisoformat, context.asset_partition_keys)} - plan.reasons.keys()
            other_days = days_condition(days, table.partition)
            frame = rows.where(f"NOT ({other_days})") if other_days else rows
            computed = ComputedDays(frame, {}, scattered=True)
        yield [Candidate(plan, computed)]


def _step_key(context: Any) -> tuple[str, str]:
    return context.run_id, context.step.key
