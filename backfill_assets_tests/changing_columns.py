"""A table of one row model or another, as a schema change has it before and after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandera.pyspark as pa
import pyspark.sql.types as T
from deltalake import DeltaTable
from pandera.pyspark import Field

from backfill_assets.delta.commits import Writer
from backfill_assets.delta.delta_rs import delta_log
from backfill_assets.orders.tables import FACT
from backfill_assets.tables.columns import nullable_column
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.pipeline import Pipeline


def make_table(version: int = 1, **columns: Any) -> Table:
    """The table of before, with these columns in place of its own; none takes one away.

    Args:
        version: of the schema.
        columns: (type, field) by name; with another name before them, the column has that name.
    """
    default_columns: dict[str, Any] = {
        "run_date": (T.DateType, Field(description="The day.")),
        "customer": (T.StringType, Field(description="The customer.")),
        "orders": (T.IntegerType, Field(ge=1, description="Orders.")),
        "paid": (T.DecimalType(10, 2), Field(description="Paid.")),
        "share": (T.FloatType, Field(description="Share.")),
        "note": (T.StringType, nullable_column(1.0, 1.0, "A note.")),
    }
    named = {}
    for name, column in default_columns.items():
        new = columns.pop(name, column)
        if isinstance(new, tuple) and isinstance(new[0], str):
            named[new[0]] = new[1:]
        elif new is not None:
            named[name] = new
    named |= columns
    body = {
        "__annotations__": {name: kind for name, (kind, _) in named.items()},
        "__module__": __name__,
        **{name: field for name, (_, field) in named.items()},
    }
    return replace(
        FACT,
        model=type("Model", (pa.DataFrameModel,), body),
        key=["customer"],
        totals=["orders"],
        merge=False,
        schema_version=version,
    )


BEFORE = make_table()


def make_writer(pipeline: Pipeline, table: Table) -> Writer:
    engine = pipeline.io_manager.engine
    return Writer(lambda: engine.spark_session, pipeline.io_manager.url(table), table)


def load_log(url: str, version: int | None = None) -> DeltaTable:
    return delta_log(url, version).load()
