"""The first of the tables of `target_tables`, with a column more."""

from __future__ import annotations

from typing import Annotated

import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, nullable_column, table
from backfill_assets.orders.tables import STAGED
from backfill_assets_tests.target_tables import SOURCES, Score, score_orders


class Wider(Score):
    """A score of each customer on a day, and what it would be by another rule."""

    run_date: T.DateType = Field(description="The day.")
    bonus: T.LongType = nullable_column(
        1.0, 1.0, "Another score; null on days made before it was added."
    )


@table(Wider, partition="run_date", key=["customer_id"], totals=["score"])
def scores(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return score_orders(orders, 1).withColumn("bonus", F.col("score") * 2)


TABLES = [*SOURCES, scores]
