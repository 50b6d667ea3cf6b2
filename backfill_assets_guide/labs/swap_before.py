"""The table of lab `swap`, by the definition of before: revenue with taxes."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED


class Revenue(pa.DataFrameModel):
    """The revenue of a day."""

    run_date: T.DateType = Field(description="The day.")
    revenue: T.DecimalType(18, 2) = Field(description="Its revenue.")  # type: ignore[valid-type]


@table(Revenue, partition="run_date", key=[], totals=["revenue"])
def daily_revenue(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    """The amounts as they were paid."""
    day = F.col("for_day").alias("run_date")
    return orders.groupBy(day).agg(F.sum("amount").cast("decimal(18,2)").alias("revenue"))


TABLES = [*ORDERS, daily_revenue]
