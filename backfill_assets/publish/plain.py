"""Ordinary Dagster assets that return a Spark DataFrame, published day by day as our tables are.

Such an asset has its pandera model in its metadata. Nothing is known of its inputs, so its days are
computed each time; a day whose rows are there already is not written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import PrivateAttr
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import Window, any_of, one_window, windows
from backfill_assets.dagster_ext.events import DagsterEvent
from backfill_assets.engine.caching import caching
from backfill_assets.publish.candidates import Built, Candidate, Input, Plan, Snapshot
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.quality.checks import failure_text
from backfill_assets.tables.catalog import declared
from backfill_assets.tables.table import Table

#: The metadata of an asset that has its pandera model.
MODEL = "backfill_assets/model"


def table_of(name: str, metadata: Mapping[str, Any]) -> Table:
    """The table of an asset whose model is in its metadata.

    Raises:
        dagster.Failure: there is none.
    """
    model = metadata.get(MODEL)
    if model is None:
        raise dg.Failure(
            f"{name}: the asset has no pandera model in its metadata under {MODEL!r}, so its rows "
            "cannot be audited. Nothing was written. Add metadata={" + repr(MODEL) + ": Model} to "
            "the asset.",
            allow_retries=False,
        )
    return Table(name, model)


class DataFrameIOManager(DeltaIOManager):
    """The IO manager of our tables, for assets that return and take DataFrames as well."""

    _read: dict[tuple[str, str], list[Snapshot]] = PrivateAttr(default_factory=dict)

    def load_input(self, context: dg.InputContext) -> Input | DataFrame:  # type: ignore[override]
        """The rows of the run's days for a parameter that is a DataFrame; else as our assets take.

        A day of the output whose own day of such an input is not published is not published either.
        """
        if context.dagster_type.typing_type is not DataFrame:
            return super().load_input(context)
        upstream = context.upstream_output
        name = context.asset_key.path[-1]
        table = declared(self.tables).get(name) or table_of(
            name, upstream.definition_metadata if upstream else {}
        )
        source = self.source(self.ledger(table), by_day=context.has_asset_partitions)
        if not context.has_asset_partitions:
            return source.whole
        self._read.setdefault(_step(context.step_context), []).append(source)
        return source.days(one_window(context.asset_partition_keys))

    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Candidate | DataFrame
    ) -> Iterator[DagsterEvent]:
        """Publish the good days of a DataFrame, and fail the step if there are others.

        Raises:
            dagster.Failure: some days did not pass the audit; the message names them.
        """
        if not isinstance(obj, DataFrame):
            yield from super().handle_output(context, obj)
            return
        table = table_of(context.asset_key.path[-1], context.definition_metadata)
        sources = self._read.pop(_step(context.step_context), [])
        with caching() as cache:
            rows = cache(obj)

            def plan(window: Window) -> Plan:
                def build(days: Window) -> Built:
                    # Not those of days that lack an input. Others outside of the run are refused.
                    left = any_of(windows({*window} - {*days}), table.partition)
                    kept = rows.where(f"NOT ({left})") if left else rows
                    return Built(kept, {}, scattered=True)

                return Plan(dict.fromkeys(window, ""), build, sources)

            yield from super().handle_output(context, Candidate(table, plan))
        # Or Dagster would log one materialization more for each day, the same for all of them.
        context._asset_key = None
        run_id = context.step_context.run_id
        if failed := self.failed(run_id).get(table.name):
            raise dg.Failure(failure_text({table.name: failed}), allow_retries=False)


def _step(context: Any) -> tuple[str, str]:
    return context.run_id, context.step.key
