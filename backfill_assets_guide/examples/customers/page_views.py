"""Page views: a source whose files land by the hour, and a table by day that is made of it."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, Source, conserves_total, nullable_column, table


class PageView(pa.DataFrameModel):
    """A view of a page, as a line of the landing has it."""

    view_id: T.StringType = Field(description="Names the view.")
    customer_id: T.StringType = nullable_column(0.9, 1.0, "Who viewed it; null if not known.")
    viewed_at: T.TimestampType = Field(description="When it was viewed (UTC).")
    sent_at: T.TimestampType = Field(description="When the browser sent this version (UTC).")


PAGE_VIEWS = Source(
    "page_views",
    PageView,
    key=["view_id"],
    event_time="viewed_at",
    version_time="sent_at",
    hourly=True,
)


class DailyViews(pa.DataFrameModel):
    """Page views of a customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="Customer, or `unknown`.")
    views: T.LongType = Field(ge=1, description="Number of views.")
    hours: T.LongType = Field(ge=1, le=24, description="Hours of the day with views.")


@table(
    DailyViews,
    partition="run_date",
    key=["customer_id"],
    totals=["views"],
    group="customers",
    checks=[conserves_total("views", None, "views")],
)
def page_views_daily(views: Annotated[DataFrame, Reads(PAGE_VIEWS.staged)]) -> DataFrame:
    """Page views of each day and customer."""
    customer = F.coalesce("customer_id", F.lit("unknown")).alias("customer_id")
    return views.groupBy(F.col("for_day").alias("run_date"), customer).agg(
        F.count(F.lit(1)).alias("views"), F.count_distinct(F.hour("viewed_at")).alias("hours")
    )
