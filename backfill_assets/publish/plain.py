"""Ordinary Dagster assets that return a Spark DataFrame, published day by day as our tables are.

Such an asset has its pandera model in its metadata. Whether it can be published is told when the
definitions load. Nothing is known of its inputs, so its days are computed each time; a day whose
rows are there already is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg
from pydantic import PrivateAttr
from pyspark.sql import DataFrame

from backfill_assets.calendar.cadences import Grain
from backfill_assets.calendar.partitions import Window, any_window_condition, to_windows
from backfill_assets.dagster_ext.events import DagsterEvent
from backfill_assets.engine.caching import caching
from backfill_assets.engine.task_times import watch_session
from backfill_assets.publish.candidates import Candidate, ComputedDays, ComputePlan, Input, Snapshot
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.quality.checks import failure_text
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.catalog import load_tables
from backfill_assets.tables.code_version import asset_version
from backfill_assets.tables.drifts import wrong_drifts
from backfill_assets.tables.partitioning import WHOLE_DAYS
from backfill_assets.tables.rules import wrong_names
from backfill_assets.tables.skews import wrong_skews
from backfill_assets.tables.table import Table

#: The metadata of an asset that has its pandera model.
MODEL = "backfill_assets/model"


#: Dagster's keys of days, as this writes and reads them.
_DAYS = "%Y-%m-%d"
#: An asset as it may be given to the IO manager.
Asset = dg.AssetsDefinition | dg.AssetSpec


def tables_of_assets(assets: Iterable[Asset]) -> dict[str, Table]:
    """The tables of ordinary assets, by name.

    Raises:
        DeclarationError: an asset has no model in its metadata, no partition a day, or a model that
            no table can have.
    """
    specs = [
        spec
        for asset in assets
        for spec in ([asset] if isinstance(asset, dg.AssetSpec) else asset.specs)
    ]
    return {spec.key.path[-1]: _asset_table(spec) for spec in specs}


def _asset_table(spec: dg.AssetSpec) -> Table:
    name, partitions, model = spec.key.path[-1], spec.partitions_def, spec.metadata.get(MODEL)
    if model is None:
        raise DeclarationError(
            f"{name}: the asset has no pandera model in its metadata under {MODEL!r}, so its rows "
            "cannot be audited. Add metadata={" + repr(MODEL) + ": Model} to the asset"
        )
    if not _is_daily(partitions):
        kind = type(partitions).__name__ if partitions else "no partitions"
        raise DeclarationError(
            f"{name}: the asset has {kind}, not dg.DailyPartitionsDefinition. {WHOLE_DAYS}. A "
            "table by week is declared by a function, with Reads(TABLE, WEEK)"
        )
    table = Table(name, model)
    if wrong := [*wrong_drifts(table), *wrong_skews(table), *wrong_names(table)]:
        raise DeclarationError(f"{name}: {'; '.join(wrong)}")
    return table


def _is_daily(partitions: dg.PartitionsDefinition | None) -> bool:
    if (
        not isinstance(partitions, dg.TimeWindowPartitionsDefinition)
        or partitions.schedule_type is None
    ):
        return False
    return partitions.schedule_type.name == Grain.DAILY.name and partitions.fmt == _DAYS


class DataFrameIOManager(DeltaIOManager):
    """The IO manager of our tables, for assets that return and take DataFrames as well."""

    _inputs_by_step: dict[tuple[str, str], list[Snapshot]] = PrivateAttr(default_factory=dict)
    _asset_tables: dict[str, Table] = PrivateAttr(default_factory=dict)

    def add_assets(self, assets: Iterable[Asset]) -> DataFrameIOManager:
        """The same, for ordinary assets as well.

        Raises:
            DeclarationError: one of them cannot be published.
        """
        assets = [*assets]
        self._asset_tables |= tables_of_assets(assets)
        for asset in assets:
            function = getattr(getattr(asset, "node_def", None), "compute_fn", None)
            module = getattr(getattr(function, "decorated_fn", None), "__module__", "")
            if version := asset_version(module):
                self.code_versions.update(dict.fromkeys(tables_of_assets([asset]), version))
        return self

    def _find_table(self, key: dg.AssetKey) -> Table:
        """The table of an asset.

        Raises:
            dagster.Failure: nobody has named it.
        """
        name = key.path[-1]
        if (table := load_tables(self.tables).get(name) or self._asset_tables.get(name)) is None:
            raise dg.Failure(
                f"{name}: the IO manager does not know this asset. Nothing was written. Name it "
                f"where the IO manager is made: delta_io_manager(settings, [{name}, ...])",
                allow_retries=False,
            )
        return table

    def load_input(self, context: dg.InputContext) -> Input | DataFrame:  # type: ignore[override]
        """The rows of the run's days for a parameter that is a DataFrame; else as our assets take.

        A day of the output whose own day of such an input is not published is not published either.
        """
        if context.dagster_type.typing_type is not DataFrame:
            return super().load_input(context)
        table = self._find_table(context.asset_key)
        source = self.table_snapshot(self.ledger(table), by_day=context.has_asset_partitions)
        if not context.has_asset_partitions:
            return source.all_rows
        self._inputs_by_step.setdefault(_step_key(context.step_context), []).append(source)
        return source.read_days(table.grain.one_range(context.asset_partition_keys))

    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Candidate | DataFrame
    ) -> Iterator[DagsterEvent]:
        """Publish the good days of a DataFrame, and fail the step if there are others.

        Raises:
            dagster.Failure: some days did not pass the audit; the message names them. Or nobody has
                named the asset.
        """
        if not isinstance(obj, DataFrame):
            yield from super().handle_output(context, obj)
            return
        table = self._find_table(context.asset_key)
        sources = self._inputs_by_step.pop(_step_key(context.step_context), [])
        with caching() as cache:
            rows = cache(obj)

            def plan_days(window: Window) -> ComputePlan:
                def compute_window(days: Window) -> ComputedDays:
                    watch_session(
                        rows.sparkSession
                    )  # the asset had it before the publisher asks for it
                    # Not those of days that lack an input. Others outside of the run are refused.
                    other_days = any_window_condition(
                        to_windows({*window} - {*days}), table.partition
                    )
                    window_rows = rows.where(f"NOT ({other_days})") if other_days else rows
                    return ComputedDays(window_rows, {}, scattered=True)

                return ComputePlan(dict.fromkeys(window, ""), compute_window, sources)

            yield from super().handle_output(context, Candidate(table, plan_days))
        # Or Dagster would log one materialization more for each day, the same for all of them.
        context._asset_key = None
        run_id = context.step_context.run_id
        if failed := self.failed_days(run_id).get(table.name):
            raise dg.Failure(failure_text({table.name: failed}), allow_retries=False)


def _step_key(context: Any) -> tuple[str, str]:
    return context.run_id, context.step.key
