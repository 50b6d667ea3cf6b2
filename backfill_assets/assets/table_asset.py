"""The Dagster asset of a table: plan its days, compute them, and hand them to the IO manager."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import click
import dagster as dg
import msgspec
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.assets.input_frames import OpenServices, Services
from backfill_assets.audit.checks import check_specs
from backfill_assets.calendar.partitions import (
    DATE_DIMENSION,
    DaySet,
    Window,
    partitions_of_run,
    split_key,
    to_ranges,
    to_windows,
)
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.dagster_ext.failures import is_engine_lost
from backfill_assets.dagster_ext.internals import (
    SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as EVENTS_ARE_OURS,
)
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import UnpartitionedState, read_unpartitioned_inputs
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.table_schema import SessionFactory
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.publish.compute import (
    days_to_compute_alone,
    explain_spark_errors,
    is_failure_of_rows,
    refuse_dependent_days,
)
from backfill_assets.publish.publication import CommitRaceError
from backfill_assets.publish.publisher import Input, Publisher
from backfill_assets.publish.types import Candidate, ComputedDays, ComputePlan, RunRequest
from backfill_assets.spark.frames import Cache, Share, cache_frames
from backfill_assets.spark.jars import EngineError
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.table import Dependency, ExternalTable, Lineage, Table
from backfill_assets.tables.unpartitioned import Lookup, Unpartitioned

#: The tag of an asset with the name of its grain's job, to be selected by.
GRAIN_TAG = "backfill_assets/grain"
#: Dagster's commands that take a range as one run: `dagster asset materialize`, `dg launch`. They
#: refuse a range of assets whose runs are limited in days.
_COMMANDS = ("materialize", "launch")


def backfill_policy(partitions_per_run: int) -> dg.BackfillPolicy:
    """Return the policy of all assets; ranges of several assets need the same one.

    A range that is given to a command is one run.
    """
    if range_of_command():
        return dg.BackfillPolicy.single_run()
    return dg.BackfillPolicy.multi_run(partitions_per_run)


def range_of_command() -> str:
    """Return the range given to one of `_COMMANDS` that loads the definitions; empty if none."""
    return option_of_command("partition_range")


def option_of_command(*names: str) -> str:
    """Return the first of some options that one of `_COMMANDS` is given; empty if none."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name not in _COMMANDS:
        return ""
    return next(filter(None, map(context.params.get, names)), "")


def delta_assets(
    deployment: Deployment,
    *,
    name: str,
    tables: Sequence[Table],
    group: str,
    lineage: Lineage | None = None,
    pool: str | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare the assets of one step: inputs, partitions, checks and UI metadata from the tables.

    The tables have one grain and one dimension; of an asset with several parts, one of them.
    `lineage` has, by column, the (asset, column) pairs that it is built from. `pool` is None if
    such steps may run in parallel.
    """
    partitions_def = tables[0].partitions_def(deployment.settings)
    return dg.multi_asset(
        name=deployment.automation_name(name),
        outs={table.asset_name: _asset_out(deployment, table, group, lineage) for table in tables},
        ins={
            name: asset_in
            for table in tables
            for name, asset_in in _asset_ins(deployment, table).items()
        },
        deps=[name for table in tables for name in _assets_of_others(deployment, table)],
        check_specs=check_specs(
            {deployment.asset_key(table.name): table for table in tables}, partitions_def
        ),
        partitions_def=partitions_def,
        backfill_policy=backfill_policy(deployment.settings.partitions_per_run),
        # Only if there are several tables: a check cannot run alone, as it is the audit.
        can_subset=len(tables) > 1,
        pool=pool,
        # It knows the published days.
        required_resource_keys={deployment.resource_key(IO_MANAGER_KEY)},
    )


def _asset_ins(deployment: Deployment, table: Table) -> dict[str, dg.AssetIn]:
    """Return the inputs of a table's asset, with the partition mappings of their reaches."""
    return {
        dependency.source.asset_name: dg.AssetIn(
            key=deployment.asset_key(dependency.source.name),
            partition_mapping=_partition_mapping(dependency, table),
        )
        for dependency in table.inputs(deployment.policy)
        if dependency.source.name not in deployment.graph.external
    }


def _partition_mapping(dependency: Dependency, table: Table) -> dg.PartitionMapping | None:
    """Return the partition mapping of an input, in both dimensions if there are two."""
    days = (dependency.launched or dependency.reach).partition_mapping
    dimension = dependency.source.dimension
    is_same = days is None and table.dimension and table.grain is dependency.source.grain
    if dimension is None or is_same:
        return days
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        if table.dimension is None:
            return dg.MultiToSingleDimensionPartitionMapping(DATE_DIMENSION)
        mapping = dg.DimensionPartitionMapping
        return dg.MultiPartitionMapping(
            {
                DATE_DIMENSION: mapping(DATE_DIMENSION, days or dg.TimeWindowPartitionMapping()),
                dimension.name: mapping(dimension.name, dg.IdentityPartitionMapping()),
            }
        )


def _assets_of_others(deployment: Deployment, table: Table) -> list[dg.AssetDep]:
    """Return the assets that write what no asset of the deployment does: Dagster loads none of it.

    Dagster maps days of theirs to the same days, and to all, if they have no partitions. Of those
    that begin later, our first days have none: Dagster would refuse a backfill with such a day.
    """
    deps = [dg.AssetDep(reference.name) for reference in table.unpartitioned_inputs]
    for name in deployment.graph.direct_inputs(table.name):
        if external := deployment.graph.external.get(name):
            begins_later = external.start and not table.dimension
            mapping = SAME_DAY.mapping_of_existing if begins_later else None
            deps.append(dg.AssetDep(deployment.asset_key(name), partition_mapping=mapping))
    return deps


def _asset_out(
    deployment: Deployment,
    table: Table,
    group: str,
    lineage: Lineage | None,
) -> dg.AssetOut:
    """Return the output of a table with its UI metadata; it has no code version without `code`."""
    metadata: dict[str, Any] = {
        "dagster/column_schema": table.column_schema,
        "dagster/table_name": table.asset_name,
        "dagster/uri": deployment.table_url(table.name),
        "partition_expr": {
            DATE_DIMENSION: table.partition,
            table.dimension.name: table.dimension.name,
        }
        if table.dimension
        else table.partition,
    }
    if lineage:
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {
                column: [
                    dg.TableColumnDep(deployment.asset_key(asset), source)
                    for asset, source in sources
                ]
                for column, sources in lineage.items()
            }
        )
    return dg.AssetOut(
        key=deployment.asset_key(table.name),
        is_required=False,
        io_manager_key=deployment.resource_key(IO_MANAGER_KEY),
        description=table.model.__doc__,
        metadata=metadata,
        group_name=group,
        owners=deployment.settings.asset_owners,
        kinds={"pyspark", "deltalake"},
        code_version=deployment.code.table_version(table.name),
    )


def _require_partitions(context: dg.AssetExecutionContext) -> None:
    """Raise if a run has no days, as when the UI executes checks by themselves."""
    if not context.has_partition_key and not context.has_partition_key_range:
        raise dg.Failure(
            "The checks are the audit of a day that is about to be published and cannot run by "
            "themselves: materialize the days instead. Nothing was written.",
            allow_retries=False,
        )


def yield_outputs(
    deployment: Deployment,
    context: dg.AssetExecutionContext,
    steps: Sequence[tuple[Table, Callable[[RunRequest], Iterator[Candidate]]]],
) -> Iterator[dg.Output]:
    """Yield the candidates of each asset for the IO manager, which takes them one after the other.

    A step computes the candidates of a request. Those of an asset with several parts follow each
    other.

    Dagster would log the same materialization for every day of the range, with one data version;
    the IO manager has logged the days one by one, and the metadata key keeps Dagster from adding
    its own. A day that was not published does not fail the step, or later steps would be skipped
    for the good days too: the state checks fail the run after all steps.

    Raises:
        dagster.Failure: the run has no days, or a tag of it has a value that is not known.
        PublishError: the run belongs to a backfill that was planned with other code.
    """
    _require_partitions(context)
    keys_by_part: dict[str, list[str]] = {}
    for key in context.partition_keys:
        keys_by_part.setdefault(split_key(key)[1], []).append(key)
    try:
        windows = {
            part: partitions_of_run(keys, context.run.tags) for part, keys in keys_by_part.items()
        }
    except ValueError as error:
        raise dg.Failure(f"{error}. Nothing was written.", allow_retries=False) from error
    selected_outputs = context.op_execution_context.selected_output_names
    publisher: Publisher = deployment.io_manager(context.resources)
    for name, asset_steps in groupby(steps, key=lambda step: step[0].asset_name):
        if name not in selected_outputs:
            continue
        parts = [(table, compute) for table, compute in asset_steps if table.part in windows]
        requests = [
            (
                compute,
                publisher.request_for_run(
                    table, context.run.run_id, context.run.tags, windows[table.part]
                ),
            )
            for table, compute in parts
        ]
        metadata = {EVENTS_ARE_OURS: True}
        yield dg.Output(_join_candidates(requests), output_name=name, metadata=metadata)
        identifier = deployment.asset_key(name).to_python_identifier()
        for check in parts[0][0].check_descriptions:
            output_name = f"{identifier}_{check}"
            if output_name in selected_outputs:
                yield dg.Output(None, output_name=output_name)


def _join_candidates(
    requests: Iterable[tuple[Callable[[RunRequest], Iterator[Candidate]], RunRequest]],
) -> Iterator[Candidate]:
    """Yield the candidates of requests; what is thrown into it reaches the one that computes.

    Raises:
        Exception: the first failure of a request, after the candidates of the others: a part that
            cannot be computed or published holds back no other one. If another run was first, or
            the engine is lost, the step begins again at once.
    """
    failure: Exception | None = None
    for compute, request in requests:
        try:
            yield from compute(request)
        except (CommitRaceError, EngineError):
            raise
        except Exception as error:
            if is_engine_lost(error):
                raise
            failure = failure or error
    if failure is not None:
        raise failure


def reference_observations(table: Table, warehouse: str) -> Iterator[dg.AssetObservation]:
    """Yield an observation of each unpartitioned input: its version and columns.

    This package defines no asset for them: if Dagster builds such a table, it has one of that name.
    """
    for name, reference in read_unpartitioned_inputs(table, warehouse).items():
        log = load_log(reference.url)
        if log is None:
            continue
        columns = [
            dg.TableColumn(field.name, str(getattr(field.type, "type", field.type)))
            for field in log.schema().fields
        ]
        yield dg.AssetObservation(
            name,
            metadata={
                "dagster/uri": reference.url,
                "delta_version": log.version(),
                "dagster/column_schema": dg.TableSchema(columns),
            },
            tags={"dagster/data_version": str(reference.content)},
        )


@dataclass(frozen=True)
class AssetInputs:
    """The inputs of a run, each table at one version.

    Attributes:
        tables: the partitioned inputs, by name.
        references: the unpartitioned inputs, by name.
        services: answers the requests of the run; None if the table has none.
        run_tables: the tables of the run.
        share: shares a cached frame with other steps of the run.
    """

    tables: Mapping[str, TableSnapshot]
    references: Mapping[str, UnpartitionedState]
    services: Services | None
    run_tables: AbstractSet[str]
    share: Share

    def unpartitioned_rows(
        self, inputs: Mapping[str, Unpartitioned], spark: SparkSession
    ) -> dict[str, DataFrame]:
        """Return all rows of unpartitioned inputs, by parameter."""
        return {
            name: self.references[reference.name].read_rows(spark)
            for name, reference in inputs.items()
        }


#: Computes some days of a table; the cache keeps the rows of a frame until they are published.
ComputeDays = Callable[[AssetInputs, Cache, Window], ComputedDays]


def table_asset(
    deployment: Deployment,
    parts: Sequence[tuple[Table, ComputeDays]],
    *,
    name: str = "",
    group: str,
    lineage: Lineage,
    lookups: Sequence[Lookup] = (),
    open_services: OpenServices | None = None,
) -> dg.AssetsDefinition:
    """Build the asset of a table, or of the parts of one, that is built from other tables.

    Inputs are read in the order of the table. `lineage` has, by column, the (table, column) pairs
    that it is built from. The step's default name is `make_` and the table's name. Requests to
    `lookups` are answered by what `open_services` gives.
    """
    table = parts[0][0]

    @delta_assets(
        deployment,
        name=name or f"make_{table.asset_name}",
        tables=[table],
        group=group,
        lineage=lineage,
        pool=next((lookup.pool or lookup.name for lookup in lookups), None),
    )
    def asset(context: dg.AssetExecutionContext, **inputs: Input) -> Iterator:
        services = open_services and open_services(context, deployment.settings.warehouse)
        if services:
            services.create_answer_tables(lookups)
        for observation in reference_observations(table, deployment.settings.warehouse):
            context.log_event(observation)
        publisher: Publisher = deployment.io_manager(context.resources)
        input_keys = map(deployment.asset_key, inputs)
        publisher.note_failures_of_run(context.instance, context.run, input_keys)
        for dependency in table.inputs(deployment.policy):
            if isinstance(dependency.source, ExternalTable):
                inputs[dependency.source.name] = Input(publisher, dependency.source, by_day=True)
        selected_keys = context.job_def.asset_layer.selected_asset_keys
        provide_inputs = partial(
            AssetInputs,
            services=services,
            run_tables={*deployment.tables_of(selected_keys)},
            share=partial(publisher.shared_frames.share, context.run.run_id),
        )
        steps = [
            (part, _TableStep(deployment, part, compute, publisher, inputs, provide_inputs).compute)
            for part, compute in parts
        ]
        yield from yield_outputs(deployment, context, steps)

    return asset


#: Days of a stateful table that are computed and committed together. Limited, as each row of the
#: state is repeated for each of these days; and a run that was killed continues after its last
#: commit. A month fits into one commit.
DAYS_PER_COMMIT = 31


@dataclass(frozen=True)
class _TableStep:
    """One step of a table: it plans days from the current inputs, and computes them.

    Attributes:
        deployment: whose tables they are.
        table: the table.
        compute_days: computes days from the inputs.
        publisher: knows what is published.
        inputs: the partitioned inputs, by the name of the asset.
        provide_inputs: makes the inputs of `compute_days` from those of a plan, by name: the
            partitioned and the unpartitioned ones.
    """

    deployment: Deployment
    table: Table
    compute_days: ComputeDays
    publisher: Publisher
    inputs: Mapping[str, Input]
    provide_inputs: Callable[
        [Mapping[str, TableSnapshot], Mapping[str, UnpartitionedState]], AssetInputs
    ]

    def compute(self, request: RunRequest) -> Iterator[Candidate]:
        """Yield the days of a request, computed; of a stateful table a month at a time.

        Each month is planned when the one before it is published.
        """
        parts = [request.window]
        if carries_state(self.table):
            stretches = to_windows(request.window)
            parts = [part for days in stretches for part in days.split_by_length(DAYS_PER_COMMIT)]
        for part in parts:
            yield from self._compute_part(replace(request, window=part))

    def _compute_part(self, request: RunRequest) -> Iterator[Candidate]:
        """Yield the days of a request, computed together.

        If Spark fails on rows of them, here or where the candidate is published, each half is
        computed by itself, and so on. A day whose rows fail is refused. One such day of n costs
        up to 2 log2(n) further computations, of up to 2n days in total.
        """
        plan, inputs = self._plan(request)
        if not plan.reasons:
            yield Candidate(plan)
            return
        try:
            with cache_frames() as cache:  # until the days are published
                with explain_spark_errors(self.table, plan.days):
                    computed = self.compute_days(inputs, cache, plan.days)
                    if self.deployment.settings.check_independence and self.table.kind == "derived":
                        computed = self._compare_days_alone(plan, computed, inputs)
                yield Candidate(plan, _record_references(computed, inputs.references, plan.days))
            return
        except dg.Failure as failure:
            if not is_failure_of_rows(failure):
                raise
            reason = failure.description or ""
        if len(plan.days) == 1:
            yield Candidate(plan.refuse_all(reason))
            return
        for half in request.window.split_at(sorted(plan.days)[len(plan.days) // 2]):
            yield from self._compute_part(replace(request, window=half))

    def _plan(self, request: RunRequest) -> tuple[ComputePlan, AssetInputs]:
        """Plan the days of a request, and return the inputs that it was planned with."""
        table, deployment = self.table, self.deployment
        ledger = self.publisher.ledger(table)
        dependencies = table.inputs(deployment.policy)
        # Before those of the inputs: a folder that comes meanwhile is waited for.
        log_names = deployment.graph.joined_logs(table.name)
        logs = {name: self.publisher.ledger(deployment.graph.tables[name]) for name in log_names}
        # The ledger of a stateful table is one of them.
        ledgers = logs | {
            d.source.name: ledger if d.source is table else self._input(d).read_ledger()
            for d in dependencies
        }
        references = read_unpartitioned_inputs(table, deployment.settings.warehouse)

        def start_session() -> SparkSession:
            # How many rows an unpartitioned input has is not known.
            if references:
                return self.publisher.start_session()
            return self.publisher.engine.session_for_rows(
                self._count_input_rows(tables.values(), request.window)
            )

        tables = {
            dependency.source.name: self._input_snapshot(
                dependency, ledgers[dependency.source.name], start_session
            )
            for dependency in dependencies
        }
        contents = _reference_digests(table, references, request.window)
        ledgers[table.name] = replace(ledger, references=contents)
        snapshot = self.publisher.snapshot(request, deployment.graph, ledgers)
        plan = self.publisher.plan_days(request, table, snapshot, [*tables.values()], start_session)
        return plan, self.provide_inputs(tables, references)

    def _count_input_rows(self, tables: Iterable[TableSnapshot], window: Window) -> int:
        once = {r.table.name for r in getattr(self.table, "reads", {}).values() if r.each_row_once}
        # Only a function of a project gets a row once for each of the days that it decides.
        repeats = self.table.kind == "derived"
        rows = sum(
            snapshot.count_input_rows(window, each_once=not repeats or snapshot.table.name in once)
            for snapshot in tables
        )
        # State, and each row since, is repeated for all later days.
        return rows * len(window) if carries_state(self.table) else rows

    def _input(self, dependency: Dependency) -> Input:
        """Return an input as Dagster gave it; of an input with several parts, the one it names."""
        return replace(self.inputs[dependency.source.asset_name], table=dependency.source)

    def _input_snapshot(
        self, dependency: Dependency, ledger: Ledger, session: SessionFactory
    ) -> TableSnapshot:
        """Return the snapshot of an input, with the days of it that decide a day."""
        snapshot = self._input(dependency).snapshot(ledger, session)
        required_days = partial(self.deployment.graph.required_days, dependency)
        return snapshot.with_reach(dependency.reach.deciding_days(ledger), required_days)

    def _compare_days_alone(
        self, plan: ComputePlan, computed: ComputedDays, inputs: AssetInputs
    ) -> ComputedDays:
        """Compute some days alone as well, and add to the commit's notes that they are equal.

        Raises:
            DependentDaysError: a day has other rows in the range than alone.
        """
        sample = days_to_compute_alone(plan, computed.frame)
        if not sample:
            return computed
        with cache_frames() as cache:
            frames = {
                day: self.compute_days(inputs, cache, DaySet.from_days([day])).frame
                for day in sample
            }
            refuse_dependent_days(self.table, computed.frame, plan.days, frames)
        details = msgspec.structs.replace(computed.notes.details, alone=to_ranges(sample))
        return replace(computed, notes=replace(computed.notes, details=details))


def _reference_digests(
    table: Table, references: Mapping[str, UnpartitionedState], window: Window
) -> dict[str, str]:
    """Return the content of the unpartitioned inputs, by name.

    Raises:
        dagster.Failure: one of them does not exist.
    """
    digests = {
        name: reference.content
        for name, reference in references.items()
        if reference.content is not None
    }
    if missing := [
        f"{name} at {reference.url}"
        for name, reference in references.items()
        if name not in digests
    ]:
        raise dg.Failure(
            f"{table.name} [{window}] cannot be made: there is no Delta table {', '.join(missing)}."
            " Nothing was written. Put the table there, and launch these days again.",
            allow_retries=False,
        )
    return digests


def _record_references(
    computed: ComputedDays, references: Mapping[str, UnpartitionedState], days: Window
) -> ComputedDays:
    """Add the content of the unpartitioned inputs to what the commit records.

    A change of such an input makes these days stale.
    """
    if not references:
        return computed
    # A later version of a growing input has the same rows for a day.
    numbers = {
        f"input version {name}": reference.version
        for name, reference in references.items()
        if not reference.grows
    }
    contents = {name: reference.content for name, reference in references.items()}
    details = msgspec.structs.replace(computed.notes.details, references=contents)
    with_versions = computed.with_numbers(dict.fromkeys(days, numbers))
    return replace(with_versions, notes=replace(computed.notes, details=details))
