"""Tables of which there is another definition: see `target_tables_after`."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, last_days, table
from backfill_assets.orders.tables import RAW, REJECTED, STAGED

#: What these tables are made from, and no other table of the orders: less to build and look at.
SOURCES = [RAW, REJECTED, STAGED]


class Score(pa.DataFrameModel):
    """A score of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="The customer.")
    score: T.LongType = Field(ge=0, description="The score.")


class Ranked(Score):
    """The best score of three days."""

    run_date: T.DateType = Field(description="The last of the days.")


def score_orders(orders: DataFrame, points: int) -> DataFrame:
    """So many points for each order of a customer."""
    return orders.groupBy(F.col("for_day").alias("run_date"), "customer_id").agg(
        (F.count("*") * points).alias("score")
    )


def best_scores(scores: DataFrame) -> DataFrame:
    """The best score of each customer."""
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return scores.groupBy(*keys).agg(F.max("score").alias("score"))


@table(Score, partition="run_date", key=["customer_id"], totals=["score"])
def scores(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return score_orders(orders, 1)


@table(Ranked, partition="run_date", key=["customer_id"], totals=["score"])
def ranks(of: Annotated[DataFrame, Reads(scores, last_days(3))]) -> DataFrame:
    return best_scores(of)


class Summed(Score):
    """The scores of all days so far."""

    run_date: T.DateType = Field(description="The day.")


def add_scores(before: DataFrame, new_scores: DataFrame) -> DataFrame:
    """What there was, and what came since."""
    columns = ["for_day", "customer_id", "score"]
    rows = before.select(columns).unionByName(new_scores.select(columns))
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return rows.groupBy(*keys).agg(F.sum("score").alias("score"))


@table(Summed, partition="run_date", key=["customer_id"], totals=["score"])
def sums(
    of: Annotated[DataFrame, Reads(scores)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    return add_scores(before, of)


TABLES = [*SOURCES, scores, ranks, sums]
