"""The table of lab `quota`: orders with the country of their customer, which a service knows."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Lookup, LookupAnswers, Quota, Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED


class Place(pa.DataFrameModel):
    """Where a customer is."""

    customer_id: T.StringType = Field(description="The customer.")
    country: T.StringType = Field(isin=["AT", "FR"], description="The country.")


class OrderPlace(pa.DataFrameModel):
    """An order, and where its customer is."""

    run_date: T.DateType = Field(description="The day.")
    order_id: T.StringType = Field(description="The order.")
    country: T.StringType = Field(description="The country of the customer.")


PLACES = Lookup(
    "places",
    Place,
    request=["customer_id"],
    path="/places/{customer_id}",
    url="BACKFILL_LAB_PLACES_URL",
    quota=[Quota(10, "second"), Quota(10_000, "day")],
)


def places_needed(orders: DataFrame) -> DataFrame:
    """The places that orders need."""
    return orders.select("for_day", "customer_id")


@table(OrderPlace, partition="run_date", key=["order_id"])
def order_places(
    orders: Annotated[DataFrame, Reads(STAGED)],
    places: Annotated[DataFrame, LookupAnswers(PLACES, of=places_needed)],
) -> DataFrame:
    """The orders with their places."""
    return orders.join(places, ["for_day", "customer_id"]).select(
        F.col("for_day").alias("run_date"), "order_id", "country"
    )


TABLES = [*ORDERS, order_places]
