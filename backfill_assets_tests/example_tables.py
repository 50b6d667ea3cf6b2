"""Tables of one's own, made of those of the orders: as the tutorial declares them."""

from typing import Annotated, ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import ORDERS, STAGED, Reads, conserves, last_days, table


class CustomerSpend(pa.DataFrameModel):
    """What each customer spent on a day and the six days before it."""

    run_date: T.DateType = Field(description="The last of the seven days.")
    customer_id: T.StringType = Field(description="Customer, or `unknown`.")
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    spend: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")

    class Config:
        """One row for each day and customer."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "spend"],
        }


@table(
    CustomerSpend,
    checks=[conserves("orders", None, "orders"), conserves("orders", "amount", "spend")],
)
def customer_spend_7d(orders: Annotated[DataFrame, Reads(STAGED, last_days(7))]) -> DataFrame:
    return orders.groupBy(
        F.col("for_day").alias("run_date"),
        F.coalesce("customer_id", F.lit("unknown")).alias("customer_id"),
    ).agg(F.count("*").alias("orders"), F.sum("amount").cast("decimal(28,2)").alias("spend"))


TABLES = [*ORDERS, customer_spend_7d]
