"""The Dagster asset of a table: plan its days, compute them, and hand them to the IO manager."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dagster as dg
import msgspec
from pyspark.sql import SparkSession

from backfill_assets.assets.backfill_jobs import backfill_policy
from backfill_assets.assets.input_frames import (
    AssetInputs,
    OpenServices,
    record_references,
    reference_digests,
    reference_observations,
)
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
from backfill_assets.dagster_ext.internals import (
    SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as EVENTS_ARE_OURS,
)
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledger_reader import UnpartitionedState, read_unpartitioned_inputs
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.table_schema import SessionFactory
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.publish.compute import (
    compute_each,
    compute_together,
    days_to_compute_alone,
    explain_spark_errors,
    is_failure_of_rows,
    refuse_dependent_days,
)
from backfill_assets.publish.publisher import Input, Publisher
from backfill_assets.publish.types import Candidate, ComputedDays, ComputePlan, RunRequest
from backfill_assets.spark.frames import Cache, cache_frames
from backfill_assets.tables.derived import Current, Derived, carries_state
from backfill_assets.tables.sources import SourceTable
from backfill_assets.tables.table import (
    Dependency,
    ExternalTable,
    Lineage,
    Table,
    asset_name,
)
from backfill_assets.tables.unpartitioned import Lookup


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


#: Yields the candidates of requests by part, those that are computed together in one sequence.
ComputeParts = Callable[[Mapping[str, RunRequest]], Iterator[Sequence[Candidate]]]


def yield_outputs(
    deployment: Deployment,
    context: dg.AssetExecutionContext,
    steps: Sequence[tuple[Sequence[Table], ComputeParts]],
) -> Iterator[dg.Output]:
    """Yield the candidates of each asset for the IO manager, which takes them one after the other.

    A step has the table of an asset, or its parts.

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
    for tables, compute in steps:
        table = tables[0]
        if table.asset_name not in selected_outputs:
            continue
        requests = {
            part.part: publisher.request_for_run(
                part, context.run.run_id, context.run.tags, windows[part.part]
            )
            for part in tables
            if part.part in windows
        }
        metadata = {EVENTS_ARE_OURS: True}
        yield dg.Output(compute(requests), output_name=table.asset_name, metadata=metadata)
        identifier = deployment.asset_key(table.name).to_python_identifier()
        for check in table.check_descriptions:
            output_name = f"{identifier}_{check}"
            if output_name in selected_outputs:
                yield dg.Output(None, output_name=output_name)


#: Computes some days of a table, or of some parts of one together: all have the same frame. The
#: cache keeps the rows of a frame until they are published.
ComputeDays = Callable[[Sequence[AssetInputs], Cache, Window], Sequence[ComputedDays]]


def table_asset(
    deployment: Deployment,
    parts: Sequence[Table],
    compute_days: ComputeDays,
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
    table = parts[0]

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
        tables = {part.part: part for part in parts}
        step = _TableStep(deployment, tables, compute_days, publisher, inputs, provide_inputs)
        yield from yield_outputs(deployment, context, [(parts, step.compute)])

    return asset


#: Days of a stateful table that are computed and committed together. Limited, as each row of the
#: state is repeated for each of these days; and a run that was killed continues after its last
#: commit. A month fits into one commit.
DAYS_PER_COMMIT = 31


@dataclass(frozen=True)
class _Part:
    """The planned days of a table, or of one part of it, and the inputs they were planned with."""

    plan: ComputePlan
    inputs: AssetInputs

    @property
    def group(self) -> Hashable:
        """What parts have in common that are computed together: days and versions of inputs."""
        versions = {asset_name(name): v for name, v in self.plan.input_versions.items()}
        references = {
            name: (reference.version, reference.content)
            for name, reference in self.inputs.references.items()
        }
        return (*self.plan.reasons,), (*versions.items(),), (*references.items(),)

    def count_input_rows(self) -> int:
        """Estimate how many rows the days of its request are computed from."""
        table, window = self.plan.table, self.plan.request.window
        once = {r.table.name for r in getattr(table, "reads", {}).values() if r.each_row_once}
        # Only a function of a project gets a row once for each of the days that it decides.
        repeats = table.kind == "derived"
        rows = sum(
            snapshot.count_input_rows(window, each_once=not repeats or snapshot.table.name in once)
            for snapshot in self.inputs.tables.values()
        )
        # State, and each row since, is repeated for all later days.
        return rows * len(window) if carries_state(table) else rows


@dataclass(frozen=True)
class _TableStep:
    """The step of a table: it plans days from the current inputs, and computes them.

    Attributes:
        deployment: whose tables they are.
        tables: the table, or its parts, by part.
        compute_days: computes days from the inputs.
        publisher: knows what is published.
        inputs: the partitioned inputs, by the name of the asset.
        provide_inputs: makes the inputs of `compute_days` from the table and those of a plan, by
            name: the partitioned and the unpartitioned ones.
    """

    deployment: Deployment
    tables: Mapping[str, Table]
    compute_days: ComputeDays
    publisher: Publisher
    inputs: Mapping[str, Input]
    provide_inputs: Callable[
        [Table, Mapping[str, TableSnapshot], Mapping[str, UnpartitionedState]], AssetInputs
    ]

    def compute(self, requests: Mapping[str, RunRequest]) -> Iterator[Sequence[Candidate]]:
        """Yield the days of requests by part, computed; parts with the same days together."""
        if len(requests) < 2 or not self._may_be_joined(next(iter(self.tables.values()))):
            yield from compute_each(self._compute_alone, requests)
            return
        yield from compute_together(
            self.tables,
            requests,
            plan=self._plan,
            group=lambda part: part.group,
            compute_planned=self._compute_planned,
            compute_alone=self._compute_alone,
        )

    def _may_be_joined(self, table: Table) -> bool:
        """Return whether parts of the table may be computed together, each row with its part.

        Not those that are built upon their days before, that ask a service, or that get the
        published days of an input, which differ by part; nor, unless it is looked whether a day has
        the same rows alone, what a function of a project computes.
        """
        if isinstance(table, Derived):
            is_alike = not (carries_state(table) or table.published or table.answers)
            return is_alike and self.deployment.settings.check_independence
        if isinstance(table, SourceTable):  # an hour that the clocks skip has no arrival of its own
            return not (table.by_hour and table.source.arrives_after)
        return not isinstance(table, Current)

    def _compute_alone(self, name: str, request: RunRequest) -> Iterator[Sequence[Candidate]]:
        """Yield the days of a part, or of a table without; of a stateful one a month at a time.

        Each month is planned when the one before it is published.
        """
        windows = [request.window]
        if carries_state(self.tables[name]):
            stretches = to_windows(request.window)
            windows = [part for days in stretches for part in days.split_by_length(DAYS_PER_COMMIT)]
        for window in windows:
            yield from self._compute_window(name, replace(request, window=window))

    def _compute_window(self, name: str, request: RunRequest) -> Iterator[Sequence[Candidate]]:
        """Yield the days of a request, computed together.

        If Spark fails on rows of them, here or where the candidate is published, each half is
        computed by itself, and so on. A day whose rows fail is refused. One such day of n costs
        up to 2 log2(n) further computations, of up to 2n days in total.
        """
        (part,) = self._plan({name: request})
        plan = part.plan
        try:
            yield from self._compute_planned([part])
            return
        except dg.Failure as failure:
            if not is_failure_of_rows(failure):
                raise
            reason = failure.description or ""
        if len(plan.days) == 1:
            yield [Candidate(plan.refuse_all(reason))]
            return
        for half in request.window.split_at(sorted(plan.days)[len(plan.days) // 2]):
            yield from self._compute_window(name, replace(request, window=half))

    def _compute_planned(self, parts: Sequence[_Part]) -> Iterator[Sequence[Candidate]]:
        """Yield planned days, computed together until they are published."""
        plan = parts[0].plan
        if not plan.reasons:
            yield [Candidate(part.plan) for part in parts]
            return
        with cache_frames() as cache:
            with explain_spark_errors(plan.table, plan.days):
                computed = self.compute_days([part.inputs for part in parts], cache, plan.days)
                if self.deployment.settings.check_independence and plan.table.kind == "derived":
                    computed = self._compare_days_alone(parts, computed)
            yield [
                Candidate(
                    part.plan, record_references(days, part.inputs.references, part.plan.days)
                )
                for part, days in zip(parts, computed, strict=True)
            ]

    def _plan(self, requests: Mapping[str, RunRequest]) -> list[_Part]:
        """Plan the days of requests; all are read in the session that suits their rows together."""
        parts: list[_Part] = []

        def start_session() -> SparkSession:
            # How many rows an unpartitioned input has is not known.
            if any(part.inputs.references for part in parts):
                return self.publisher.start_session()
            rows = sum(part.count_input_rows() for part in parts)
            return self.publisher.engine.session_for_rows(rows)

        for name, request in requests.items():
            parts.append(self._plan_part(self.tables[name], request, start_session))
        return parts

    def _plan_part(self, table: Table, request: RunRequest, start_session: SessionFactory) -> _Part:
        """Plan the days of a request, with the inputs of now."""
        deployment = self.deployment
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
        tables = {
            dependency.source.name: self._input_snapshot(
                dependency, ledgers[dependency.source.name], start_session
            )
            for dependency in dependencies
        }
        contents = reference_digests(table, references, request.window)
        ledgers[table.name] = replace(ledger, references=contents)
        snapshot = self.publisher.snapshot(request, deployment.graph, ledgers)
        plan = self.publisher.plan_days(request, table, snapshot, [*tables.values()], start_session)
        return _Part(plan, self.provide_inputs(table, tables, references))

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
        self, parts: Sequence[_Part], computed: Sequence[ComputedDays]
    ) -> list[ComputedDays]:
        """Compute some days alone as well, and note that they are equal in their commits.

        Raises:
            DependentDaysError: a day has other rows in the range, or with other parts, than alone.
        """
        plan, table, frame = parts[0].plan, parts[0].plan.table, computed[0].frame
        rows = table.conform_frame(frame) if table.part else frame
        samples = days_to_compute_alone([part.plan for part in parts], rows)
        compared = list[ComputedDays]()
        for part, days in zip(parts, computed, strict=True):
            if sample := samples.get(part.plan.table.part):
                with cache_frames() as cache:
                    windows = {day: DaySet.from_days([day]) for day in sample.days}
                    frames = {
                        day: self.compute_days([part.inputs], cache, window)[0].frame
                        for day, window in windows.items()
                    }
                    refuse_dependent_days(part.plan.table, frame, plan.days, frames)
                alone, details = to_ranges(sample.days), days.notes.details
                details = msgspec.structs.replace(details, alone=alone, among=sample.among)
                days = replace(days, notes=replace(days.notes, details=details))
            compared.append(days)
        return compared
