"""What the assets of all layers share: the decorator that wires one, and handing over frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from backfill_assets.assets.run_size import backfill_policy
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.events import (
    SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as EVENTS_ARE_OURS,
)
from backfill_assets.publish.candidates import Candidate
from backfill_assets.quality.checks import check_specs
from backfill_assets.settings import Settings
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Lineage, Table


def delta_assets(
    settings: Settings,
    *,
    name: str,
    tables: Sequence[Table],
    group: str,
    lineage: Lineage | None = None,
    code: Code | None = None,
    pool: str | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare the assets of one step: inputs, partitions, checks and UI metadata from the tables.

    Args:
        settings: the deployment's settings.
        name: of the step.
        tables: one asset each, of one cadence.
        group: asset group.
        lineage: for each column, the (asset, column) pairs that it is made of.
        code: that computes the assets.
        pool: Dagster's pool of the step; none if others of its kind may run at the same time.
    """
    partitions_def = tables[0].grain.partitions_def(settings)
    return dg.multi_asset(
        name=name,
        outs={table.name: _asset_out(settings, table, group, lineage, code) for table in tables},
        ins={
            name: asset_in
            for table in tables
            for name, asset_in in _asset_ins(settings, table).items()
        },
        deps=[reference.name for table in tables for reference in table.unpartitioned_inputs],
        check_specs=check_specs(tables, partitions_def),
        partitions_def=partitions_def,
        backfill_policy=backfill_policy(settings.partitions_per_run),
        # Only where there is something to choose: a check alone cannot be run, it is the audit.
        can_subset=len(tables) > 1,
        pool=pool,
    )


def _asset_ins(settings: Settings, table: Table) -> dict[str, dg.AssetIn]:
    """The inputs of a table's asset, with the partition mappings of their reaches."""
    return {
        dependency.source.name: dg.AssetIn(
            partition_mapping=(dependency.launched or dependency.reach).partition_mapping
        )
        for dependency in table.inputs(Policy.from_settings(settings))
    }


def _asset_out(
    settings: Settings,
    table: Table,
    group: str,
    lineage: Lineage | None,
    code: Code | None,
) -> dg.AssetOut:
    metadata: dict[str, Any] = {
        "dagster/column_schema": table.column_schema,
        "dagster/table_name": table.name,
        "dagster/uri": settings.table(table.name),
        "partition_expr": table.partition,
    }
    if lineage:
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {
                column: [dg.TableColumnDep(asset, source) for asset, source in sources]
                for column, sources in lineage.items()
            }
        )
    return dg.AssetOut(
        is_required=False,
        description=table.model.__doc__,
        metadata=metadata,
        group_name=group,
        owners=settings.asset_owners,
        kinds={"pyspark", "deltalake"},
        code_version=code.table_version(table.name) if code else None,
    )


def _require_partitions(context: dg.AssetExecutionContext) -> None:
    """Refuse a run that has no days, as when the UI executes checks by themselves."""
    if not context.has_partition_key and not context.has_partition_key_range:
        raise dg.Failure(
            "The checks are the audit of a day that is about to be published and cannot run by "
            "themselves: materialize the days instead. Nothing was written.",
            allow_retries=False,
        )


def yield_outputs(
    context: dg.AssetExecutionContext, candidates: Iterable[Candidate]
) -> Iterator[dg.Output]:
    """Hand the candidates to the IO manager.

    Dagster would stamp one materialization on every day of the range, with one data version; the
    IO manager has logged the days one by one, and this metadata key keeps Dagster from adding its
    own. A day that was not published does not fail the step, or the later steps would be skipped
    for the good days too: `day_checks` fails the run when all steps are through.

    Raises:
        dagster.Failure: the run has no days.
    """
    _require_partitions(context)
    selected_outputs = context.op_execution_context.selected_output_names
    for candidate in candidates:
        table = candidate.table
        if table.name not in selected_outputs:
            continue
        yield dg.Output(candidate, output_name=table.name, metadata={EVENTS_ARE_OURS: True})
        for check in table.check_descriptions:
            output_name = f"{table.name}_{check}"
            if output_name in selected_outputs:
                yield dg.Output(None, output_name=output_name)
