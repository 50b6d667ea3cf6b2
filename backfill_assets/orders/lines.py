"""What a line of the orders' source is.

What is made of the lines stands elsewhere: code that changes there leaves the raw log as it is.
"""

from __future__ import annotations

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field

from backfill_assets.tables.columns import nullable
from backfill_assets.tables.sources import Role, Source


class OrderLine(pa.DataFrameModel):
    """A version of an order, as a line of the landing has it."""

    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = nullable(0.25, 0.9, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")


ORDER_LINES = Source(
    "orders",
    OrderLine,
    key=["order_id"],
    event_time="order_ts",
    version_time="ingestion_ts",
    amount="amount",
    named={Role.LATENESS: "arrival_lateness", Role.PAGE: "lateness_dashboard"},
)
