"""The table of lab `swap`, by the new definition: revenue without taxes of a fifth."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets_guide.labs.swap_before import Revenue


@table(Revenue, partition="run_date", key=[], totals=["revenue"])
def daily_revenue(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    """The amounts without taxes."""
    day = F.col("for_day").alias("run_date")
    without = F.sum("amount") / F.lit(Decimal("1.2"))
    return orders.groupBy(day).agg(without.cast("decimal(18,2)").alias("revenue"))


TABLES = [*ORDERS, daily_revenue]
