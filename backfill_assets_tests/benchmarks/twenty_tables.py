"""Twenty tables for `bench_scale`: those of the orders, and twelve that are made of the facts."""

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import SAME_DAY, Reads, last_days, table
from backfill_assets.calendar.reach import Reach
from backfill_assets.orders.tables import FACT, ORDERS
from backfill_assets.tables.derived import FOR_DAY, Derived


class Revenue(pa.DataFrameModel):
    """The revenue of a day, or of some days up to it."""

    run_date: T.DateType = Field(description="The last of the days.")
    revenue: T.DecimalType(28, 2) = Field(description="Their revenue.")  # type: ignore[valid-type]


def revenue(name: str, days: Reach) -> Derived:
    """A table of the revenue of some days."""

    def made(facts: Annotated[DataFrame, Reads(FACT, days)]) -> DataFrame:
        """The revenue of some days."""
        return facts.groupBy(F.col(FOR_DAY).alias("run_date")).agg(
            F.sum("revenue").cast("decimal(28,2)").alias("revenue")
        )

    made.__name__ = made.__qualname__ = name
    return table(Revenue, partition="run_date", key=["run_date"], totals=["revenue"])(made)


TABLES = [
    *ORDERS,
    *(revenue(f"revenue_{n:02}", last_days(7) if n % 2 else SAME_DAY) for n in range(1, 13)),
]
