"""Inputs without days in Dagster: an external asset each, and what a run has read of it."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from backfill_assets.delta.logs import load_log
from backfill_assets.delta.references import references_of
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.table import Table


def external_assets(settings: Settings) -> list[dg.AssetSpec]:
    """The inputs without days of all tables, with where each lies.

    Args:
        settings: the deployment's settings.
    """
    inputs = {
        reference.name: reference.place(settings.warehouse)
        for table in graph_for(settings).tables.values()
        for reference in table.references
    }
    return [
        dg.AssetSpec(
            name,
            group_name="inputs",
            kinds={"deltalake"},
            description="A Delta table without days, whose rows decide every day that reads it.",
            metadata={"dagster/uri": place, "dagster/table_name": name},
        )
        for name, place in inputs.items()
    ]


def observations(table: Table, warehouse: str) -> Iterator[dg.AssetObservation]:
    """What the inputs without days of a table are now: version and columns of each.

    Args:
        table: the table that reads them.
        warehouse: of the deployment.
    """
    for name, reference in references_of(table, warehouse).items():
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
                "delta version": log.version(),
                "dagster/column_schema": dg.TableSchema(columns),
            },
            tags={"dagster/data_version": str(reference.content)},
        )
