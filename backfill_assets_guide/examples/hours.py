"""Page views by the hour: an hour is published when it is over, a day when all its hours are."""

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import ALL, HOURS, Reads, Source, conserves_total, table


class View(pa.DataFrameModel):
    """A view of a page, as the web servers log it."""

    view_id: T.StringType = Field(description="The view.")
    page: T.StringType = Field(description="The page.")
    viewed_at: T.TimestampType = Field(description="When it was; its hour is that of the folder.")


#: landing/views/arrival_date=2024-01-05/hour=09/....
VIEWS = Source(
    "views", View, key=["view_id"], event_time="viewed_at", window_days=1, dimension=HOURS
)


class HourlyViews(pa.DataFrameModel):
    """The views of a page in an hour."""

    run_date: T.DateType = Field(description="The day.")
    hour: T.StringType = Field(description="The hour of the day, 00 to 23.")
    page: T.StringType = Field(description="The page.")
    views: T.LongType = Field(ge=1, description="How often it was viewed.")


@table(
    HourlyViews,
    partition=("run_date", "hour"),
    key=["page"],
    totals=["views"],
    checks=[conserves_total("views", None, "views")],
)
def hourly_views(views: Annotated[DataFrame, Reads(VIEWS.staged)]) -> DataFrame:
    """Count the views of each page in an hour."""
    hours = views.groupBy(F.col("for_day").alias("run_date"), "hour", "page")
    return hours.agg(F.count(F.lit(1)).alias("views"))


class DailyViews(pa.DataFrameModel):
    """The views of a page in a day."""

    run_date: T.DateType = Field(description="The day.")
    page: T.StringType = Field(description="The page.")
    views: T.LongType = Field(ge=1, description="How often it was viewed.")
    busiest: T.StringType = Field(description="The hour in which it was viewed most.")


@table(
    DailyViews,
    partition="run_date",
    key=["page"],
    totals=["views"],
    checks=[conserves_total("hours", "views", "views")],
)
def daily_views(hours: Annotated[DataFrame, Reads(hourly_views, parts=ALL)]) -> DataFrame:
    """Sum the hours; a day is computed when the folders of all of them have come."""
    days = hours.groupBy(F.col("for_day").alias("run_date"), "page")
    first_of_most = F.min_by("hour", F.struct(-F.col("views"), "hour"))
    return days.agg(F.sum("views").alias("views"), first_of_most.alias("busiest"))


TABLES = [VIEWS, hourly_views, daily_views]
