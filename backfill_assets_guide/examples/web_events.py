"""A pipeline of web events: visits of pages, and the active users of the last seven days."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    Reads,
    Source,
    conserves_total,
    json_column,
    last_days,
    nullable_column,
    table,
)


class Visit(pa.DataFrameModel):
    """A version of a visit, as a line of the landing has it."""

    visit_id: T.StringType = Field(description="Names the visit.")
    user_id: T.StringType = nullable_column(0.9, 1.0, "Who visited; null if nobody was logged in.")
    began_at: T.TimestampType = Field(description="When the visit began (UTC).")
    page: T.StringType = Field(description="The first page.")
    clicks: T.LongType = Field(ge=0, description="Clicks so far.")
    logged_in: T.BooleanType = Field(description="Whether the user was logged in.")
    properties: T.StringType = json_column("What else the browser says, as JSON.", optional=True)
    sent_at: T.TimestampType = Field(description="When the browser sent this version (UTC).")


VISITS = Source(
    "visits",
    Visit,
    key=["visit_id"],
    event_time="began_at",
    version_time="sent_at",
    window_days=3,
)


class ActiveUsers(pa.DataFrameModel):
    """Who was active on a day and the six days before it; one row a day."""

    run_date: T.DateType = Field(description="The last of the seven days.")
    users: T.LongType = Field(ge=0, description="Different users.")
    visits: T.LongType = Field(ge=1, description="Visits, also of nobody who was logged in.")
    clicks: T.LongType = Field(ge=0, description="Clicks of these visits.")


@table(
    ActiveUsers,
    partition="run_date",
    key=["run_date"],
    totals=["visits", "clicks"],
    checks=[
        conserves_total("visits", None, "visits"),
        conserves_total("visits", "clicks", "clicks"),
    ],
    group="users",
)
def active_users_7d(visits: Annotated[DataFrame, Reads(VISITS.staged, last_days(7))]) -> DataFrame:
    """The active users of seven days."""
    return visits.groupBy(F.col("for_day").alias("run_date")).agg(
        F.count_distinct("user_id").alias("users"),
        F.count("*").alias("visits"),
        F.sum("clicks").alias("clicks"),
    )


TABLES = [VISITS, active_users_7d]
