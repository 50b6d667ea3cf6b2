"""A source whose lines arrive the day after they happened, and a table that is made of it."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, Source, table


class Reading(pa.DataFrameModel):
    """What a meter read."""

    meter_id: T.StringType = Field(description="The meter.")
    at: T.TimestampType = Field(description="When it was.")
    sent_at: T.TimestampType = Field(description="When it was sent.")
    kwh: T.DecimalType(18, 3) = Field(ge=0, description="Since the reading before.")  # type: ignore[valid-type]


class Consumption(pa.DataFrameModel):
    """What a meter used on a day."""

    run_date: T.DateType = Field(description="The day.")
    meter_id: T.StringType = Field(description="The meter.")
    kwh: T.DecimalType(28, 3) = Field(description="Sum of the readings.")  # type: ignore[valid-type]


READINGS = Source(
    "readings",
    Reading,
    key=["meter_id", "at"],
    event_time="at",
    version_time="sent_at",
    window_days=1,
    arrives_after=1,
)


@table(Consumption, partition="run_date", key=["meter_id"])
def consumption(readings: Annotated[DataFrame, Reads(READINGS.staged)]) -> DataFrame:
    return readings.groupBy(F.col("for_day").alias("run_date"), "meter_id").agg(
        F.sum("kwh").cast("decimal(28,3)").alias("kwh")
    )


TABLES = [READINGS, consumption]
