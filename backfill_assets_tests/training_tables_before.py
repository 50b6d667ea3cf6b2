"""As `training_tables`, from before the features had a score."""

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame

from backfill_assets import Reads, conserves_total, last_days, table
from backfill_assets.orders.tables import ORDERS, RAW
from backfill_assets_guide.examples.customers import features as now


class Features(pa.DataFrameModel):
    """The columns that there were."""

    event_date: T.DateType = Field(description="The last of the thirty days.")
    user_id: T.StringType = Field(description="Customer, or `unknown`.")
    orders_7d: T.LongType = Field(ge=0, description="Orders of the last seven days.")
    orders_30d: T.LongType = Field(ge=1, description="Orders of the thirty days.")
    revenue_30d: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")
    features_through: T.DateType = Field(description="Log day of the newest line.")


@table(
    Features,
    partition="event_date",
    key=["user_id"],
    totals=["orders_30d", "revenue_30d"],
    rules=now.features.rules,
    drift=now.features.drift,
    merge=True,
    checks=[conserves_total("orders", None, "orders_30d")],
)
def features(
    orders: Annotated[DataFrame, Reads(RAW, last_days(30), as_known=True, each_row_once=True)],
) -> DataFrame:
    """Without the score."""
    return now.features(orders).drop("engagement_score")


TABLES = [*ORDERS, features]
