"""The tables of `target_tables` by another definition."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, WEEK, Reads, Unpartitioned, last_days, table
from backfill_assets.orders.tables import STAGED
from backfill_assets_tests.target_tables import (
    SOURCES,
    Ranked,
    Score,
    Summed,
    add_scores,
    best_scores,
    score_orders,
)


@table(Score, partition="run_date", key=["customer_id"], totals=["score"])
def scores(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    """Ten points for each order."""
    return score_orders(orders, 10)


@table(Ranked, partition="run_date", key=["customer_id"], totals=["score"])
def ranks(of: Annotated[DataFrame, Reads(scores, last_days(3))]) -> DataFrame:
    return best_scores(of)


@table(Summed, partition="run_date", key=["customer_id"], totals=["score"])
def sums(
    of: Annotated[DataFrame, Reads(scores)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    return add_scores(before, of)


TABLES = [*SOURCES, scores, ranks, sums]


@table(Score, partition="run_date", key=["customer_id"], totals=["score"])
def weighed(
    of: Annotated[DataFrame, Reads(scores)],
    weights: Annotated[DataFrame, Unpartitioned("weights")],
) -> DataFrame:
    score = (F.col("score") * F.col("weight")).alias("score")
    return of.crossJoin(weights).select(F.col("for_day").alias("run_date"), "customer_id", score)


@table(Score, partition="run_date", key=["customer_id"], totals=["score"])
def weekly(of: Annotated[DataFrame, Reads(weighed, WEEK)]) -> DataFrame:
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return of.groupBy(*keys).agg(F.sum("score").alias("score"))


#: With tables that there were none of: of a table without days, and by the week.
MORE = [*TABLES, weighed, weekly]
