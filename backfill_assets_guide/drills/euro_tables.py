"""The tables of drill `quota`: orders, and revenue in euros at rates that a service knows."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Lookup, LookupAnswers, Quota, Reads, conserves_total, table
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets_guide.drills.places import RATES_URL


class Rate(pa.DataFrameModel):
    """What a currency was worth on a day."""

    currency: T.StringType = Field(description="The currency, as ISO 4217 names it.")
    day: T.DateType = Field(description="The day.")
    in_euros: T.DecimalType(12, 6) = Field(  # type: ignore[valid-type]
        gt=0, lt=10, description="What one of it was worth in euros."
    )


class EurosOfDay(pa.DataFrameModel):
    """Orders of a day, and their revenue in euros."""

    run_date: T.DateType = Field(description="The day.")
    currency: T.StringType = Field(description="The currency that was paid.")
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Their revenue in euros.")  # type: ignore[valid-type]


RATES = Lookup(
    "exchange_rates",
    Rate,
    request=["currency", "day"],
    path="/rates/{day}/{currency}",
    url=RATES_URL,
    quota=Quota(10, "second"),
)


def rates_needed(orders: DataFrame) -> DataFrame:
    """The rates that orders need: all amounts are dollars."""
    return orders.select("for_day", F.lit("USD").alias("currency"), F.col("for_day").alias("day"))


@table(
    EurosOfDay,
    partition="run_date",
    key=["currency"],
    totals=["orders", "revenue"],
    checks=[conserves_total("orders", None, "orders")],
)
def fact_daily_euros(
    orders: Annotated[DataFrame, Reads(STAGED)],
    rates: Annotated[DataFrame, LookupAnswers(RATES, of=rates_needed)],
) -> DataFrame:
    """Orders and revenue of each day, in euros."""
    return (
        orders.join(rates, "for_day")
        .groupBy(F.col("for_day").alias("run_date"), "currency")
        .agg(
            F.count(F.lit(1)).alias("orders"),
            F.sum(F.col("amount") * F.col("in_euros")).cast("decimal(28,2)").alias("revenue"),
        )
    )


TABLES = [*ORDERS, fact_daily_euros]
