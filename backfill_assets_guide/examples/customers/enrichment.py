"""Orders in euros: each with the rate of its day, which a service with a quota knows."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    Lookup,
    LookupAnswers,
    Quota,
    Reads,
    conserves_total,
    nullable_column,
    table,
)
from backfill_assets.orders.tables import STAGED


class Rate(pa.DataFrameModel):
    """What a currency was worth on a day."""

    currency: T.StringType = Field(description="The currency, as ISO 4217 names it.")
    day: T.DateType = Field(description="The day.")
    in_euros: T.DecimalType(12, 6) = Field(  # type: ignore[valid-type]
        gt=0, lt=10, description="What one of it was worth in euros."
    )


class OrderInEuros(pa.DataFrameModel):
    """An order of a day, with its amount in euros."""

    run_date: T.DateType = Field(description="The day of the order.")
    order_id: T.StringType = Field(description="Names the order.")
    customer_id: T.StringType = nullable_column(0.9, 1.0, "Customer; null if unknown.")
    amount: T.DecimalType(18, 2) = Field(description="Amount in dollars.")  # type: ignore[valid-type]
    in_euros: T.DecimalType(12, 6) = Field(description="The rate.")  # type: ignore[valid-type]
    amount_eur: T.DecimalType(18, 2) = Field(description="Amount in euros.")  # type: ignore[valid-type]


RATES = Lookup(
    "exchange_rates",
    Rate,
    request=["currency", "day"],
    path="/rates/{day}/{currency}",
    url="RATES_URL",
    secret="RATES_KEY",
    quota=[Quota(10, "second"), Quota(10_000, "day")],
    reserve=0.2,
)


def rates_needed(orders: DataFrame) -> DataFrame:
    """The rates that orders need: all amounts are dollars."""
    return orders.select("for_day", F.lit("USD").alias("currency"), F.col("for_day").alias("day"))


@table(
    OrderInEuros,
    partition="run_date",
    key=["order_id"],
    totals=["amount", "amount_eur"],
    checks=[conserves_total("orders", "amount", "amount")],
    group="enrichment",
)
def fact_orders_eur(
    orders: Annotated[DataFrame, Reads(STAGED)],
    rates: Annotated[DataFrame, LookupAnswers(RATES, of=rates_needed)],
) -> DataFrame:
    """The orders in euros."""
    return orders.join(rates, "for_day").select(
        F.col("for_day").alias("run_date"),
        *("order_id", "customer_id", "amount", "in_euros"),
        (F.col("amount") * F.col("in_euros")).cast("decimal(18,2)").alias("amount_eur"),
    )
