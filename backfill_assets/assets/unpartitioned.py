"""Inputs without days in Dagster: what a run has read of each, as an observation.

No asset is defined for them: whoever makes such a table with Dagster has one of that name.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from backfill_assets.delta.logs import load_log
from backfill_assets.delta.references import read_unpartitioned_inputs
from backfill_assets.tables.table import Table


def reference_observations(table: Table, warehouse: str) -> Iterator[dg.AssetObservation]:
    """What the inputs without days of a table are now: version and columns of each.

    Args:
        table: the table that reads them.
        warehouse: of the deployment.
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
                "delta version": log.version(),
                "dagster/column_schema": dg.TableSchema(columns),
            },
            tags={"dagster/data_version": str(reference.content)},
        )
