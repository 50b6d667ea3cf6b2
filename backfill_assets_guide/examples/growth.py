"""Growth: revenue by month and from month to month, customers by week, and who comes back."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    MONTH,
    Reads,
    conserves_total,
    days_between,
    nullable_column,
    previous_partitions,
    table,
    week_starting,
)
from backfill_assets.orders.tables import FACT, ORDERS


class MonthlyRevenue(pa.DataFrameModel):
    """Orders of a month."""

    month: T.DateType = Field(description="The first day of the month.")
    orders: T.LongType = Field(ge=0, description="Orders of the month.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


@table(
    MonthlyRevenue,
    partition="month",
    key=[],
    totals=["orders", "revenue"],
    checks=[conserves_total("orders", column, column) for column in ("orders", "revenue")],
    group="growth",
)
def revenue_monthly(orders: Annotated[DataFrame, Reads(FACT, MONTH)]) -> DataFrame:
    """Orders and revenue of each month."""
    return orders.groupBy(F.col("for_day").alias("month")).agg(
        F.sum("orders").alias("orders"), F.sum("revenue").cast("decimal(28,2)").alias("revenue")
    )


class RevenueGrowth(pa.DataFrameModel):
    """Revenue of a month beside that of the months before it."""

    month: T.DateType = Field(description="The first day of the month.")
    revenue: T.DecimalType(28, 2) = Field(description="Revenue of the month.")  # type: ignore[valid-type]
    growth: T.DecimalType(18, 4) = nullable_column(  # type: ignore[valid-type]
        1.0, 1.0, "Share of the month before; null without revenue in that."
    )
    mean_3m: T.DecimalType(28, 2) = Field(description="Mean of three months, or of those there.")  # type: ignore[valid-type]


@table(RevenueGrowth, partition="month", key=[], totals=["revenue"], group="growth")
def revenue_growth(
    months: Annotated[DataFrame, Reads(revenue_monthly, previous_partitions(2, MONTH))],
) -> DataFrame:
    """Growth over the month before, and the mean of three months."""

    def months_ago(count: int) -> Column:
        is_month = F.add_months("month", count) == F.col("for_day")
        return F.sum(F.when(is_month, F.col("revenue")).otherwise(0)).cast("decimal(28,2)")

    growth = F.try_divide(months_ago(0) - months_ago(1), months_ago(1))
    return months.groupBy(F.col("for_day").alias("month")).agg(
        months_ago(0).alias("revenue"),
        growth.cast("decimal(18,4)").alias("growth"),
        F.avg("revenue").cast("decimal(28,2)").alias("mean_3m"),
    )


class ActiveCustomers(pa.DataFrameModel):
    """Who ordered in a week, Sunday to Saturday."""

    week: T.DateType = Field(description="The Sunday of the week.")
    customers: T.LongType = Field(ge=0, description="Different customers with an order.")
    orders: T.LongType = Field(ge=1, description="Orders, those of unknown customers as well.")


@table(
    ActiveCustomers,
    partition="week",
    key=[],
    totals=["customers", "orders"],
    checks=[conserves_total("orders", "orders", "orders")],
    group="growth",
)
def active_customers_weekly(
    orders: Annotated[DataFrame, Reads(FACT, week_starting("sunday"))],
) -> DataFrame:
    """Customers with an order, by week."""
    return orders.groupBy(F.col("for_day").alias("week")).agg(
        F.count_distinct(F.nullif("customer_id", F.lit("unknown"))).alias("customers"),
        F.sum("orders").alias("orders"),
    )


class ReturningCustomers(pa.DataFrameModel):
    """The customers of a day: who had come before, and who came back."""

    run_date: T.DateType = Field(description="The day.")
    customers: T.LongType = Field(ge=1, description="Customers with an order.")
    known: T.LongType = Field(ge=0, description="Those with an order in the 7 days before.")
    came_back: T.LongType = Field(ge=0, description="Those with an order in the 30 days after.")


@table(
    ReturningCustomers,
    partition="run_date",
    key=[],
    totals=["customers", "known", "came_back"],
    group="growth",
)
def returning_customers(
    orders: Annotated[DataFrame, Reads(FACT, days_between(-7, 30))],
) -> DataFrame:
    """By day, its customers and those of the days around it."""
    around = (
        orders.where("customer_id <> 'unknown'")
        .groupBy("for_day", "customer_id")
        .agg(
            F.bool_or(F.col("run_date") == F.col("for_day")).alias("on_the_day"),
            F.bool_or(F.col("run_date") < F.col("for_day")).alias("before"),
            F.bool_or(F.col("run_date") > F.col("for_day")).alias("after"),
        )
        .where("on_the_day")
    )
    return around.groupBy(F.col("for_day").alias("run_date")).agg(
        F.count(F.lit(1)).alias("customers"),
        F.count_if("before").alias("known"),
        F.count_if("after").alias("came_back"),
    )


TABLES = [*ORDERS, revenue_monthly, revenue_growth, active_customers_weekly, returning_customers]
