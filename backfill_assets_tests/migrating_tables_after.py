"""The table of `migrating_tables` in the next version of its schema."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets_tests.migrating_tables import counted

_OPTIONAL = {"null_warn": 1.0, "null_error": 1.0}


class Notes(pa.DataFrameModel):
    """Orders of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="The customer.")
    orders: T.LongType = Field(ge=1, description="Their orders.")
    remark: T.StringType = Field(
        nullable=True, description="A note.", metadata={**_OPTIONAL, "renamed_from": "note"}
    )


@table(Notes, partition="run_date", key=["customer_id"], totals=["orders"], schema_version=2)
def notes(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    remark = F.concat(F.lit("note of "), "customer_id").alias("remark")
    return counted(orders).select("run_date", "customer_id", "orders", remark)


TABLES = [*ORDERS, notes]
