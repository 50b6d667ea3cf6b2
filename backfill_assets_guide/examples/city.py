"""A city: readings of the air that come a day later, and parking tickets, none on Sundays.

Two sources with different lags and arrival days, a table over both, its months, and what the last
28 days were like.
"""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets import MONTH, Reads, Source, conserves, last_days, nullable, table


class Reading(pa.DataFrameModel):
    """What a station measured."""

    station: T.StringType = Field(description="The station.")
    district: T.StringType = Field(description="Where it stands.")
    measured_at: T.TimestampType = Field(description="When it was.")
    pm10: T.DecimalType(6, 1) = Field(ge=0, description="Fine dust, micrograms a cubic metre.")  # type: ignore[valid-type]
    sent_at: T.TimestampType = Field(description="When this value was sent; a later one counts.")


class Ticket(pa.DataFrameModel):
    """A version of a parking ticket."""

    ticket: T.StringType = Field(description="Its number.")
    district: T.StringType = Field(description="Where the car stood.")
    issued_at: T.TimestampType = Field(description="When it was issued.")
    fine: T.DecimalType(8, 2) = Field(ge=0, description="Euros.")  # type: ignore[valid-type]
    changed_at: T.TimestampType = Field(description="When this version was written.")


#: The station sends a day's readings in a file of the next day.
READINGS = Source(
    "readings",
    Reading,
    key=["station", "measured_at"],
    event_time="measured_at",
    version_time="sent_at",
    window_days=7,
    arrives_after=1,
    timezone="Europe/Lisbon",
)
#: No tickets on Sundays, and no file of them.
TICKETS = Source(
    "tickets",
    Ticket,
    key=["ticket"],
    event_time="issued_at",
    version_time="changed_at",
    amount="fine",
    window_days=7,
    arrives_on="mon-sat",
    timezone="Europe/Lisbon",
)


#: The limits of fine dust up to which the air is good, and fair.
GOOD, FAIR = 20, 40
#: The grade of a mean value of fine dust; null if there is none.
grade_air = F.udf(
    lambda pm10: (
        None
        if pm10 is None
        else "good" if pm10 <= GOOD else "fair" if pm10 <= FAIR else "poor"
    ),
    T.StringType(),
)


class DistrictDay(pa.DataFrameModel):
    """A district on a day."""

    run_date: T.DateType = Field(description="The day.")
    district: T.StringType = Field(description="The district.")
    readings: T.LongType = Field(ge=0, description="Readings of its stations.")
    pm10: T.DecimalType(18, 1) = Field(ge=0, description="Their sum.")  # type: ignore[valid-type]
    air: T.StringType = nullable(0, 1, "The grade of the mean; null without readings.")
    tickets: T.LongType = Field(ge=0, description="Tickets issued.")
    fines: T.DecimalType(18, 2) = Field(ge=0, description="Sum of the fines.")  # type: ignore[valid-type]


_TOTALS = ["readings", "pm10", "tickets", "fines"]


@table(
    DistrictDay,
    partition="run_date",
    key=["district"],
    totals=_TOTALS,
    checks=[
        conserves("readings", None, "readings"),
        conserves("readings", "pm10", "pm10"),
        conserves("tickets", None, "tickets"),
        conserves("tickets", "fine", "fines"),
    ],
    group="city",
)
def district_day(
    readings: Annotated[DataFrame, Reads(READINGS.staged)],
    tickets: Annotated[DataFrame, Reads(TICKETS.staged)],
) -> DataFrame:
    """The air and the tickets of each district. A day waits for the readings of it."""
    by_day = F.col("for_day").alias("run_date"), F.col("district")
    air = readings.groupBy(*by_day).agg(
        F.count(F.lit(1)).alias("readings"), F.sum("pm10").alias("pm10")
    )
    fines = tickets.groupBy(*by_day).agg(
        F.count(F.lit(1)).alias("tickets"), F.sum("fine").alias("fines")
    )
    mean = (F.col("pm10") / F.col("readings")).cast("double")
    return air.join(fines, ["run_date", "district"], "full").select(
        "run_date",
        "district",
        _or_zero("readings", "bigint"),
        _or_zero("pm10", "decimal(18,1)"),
        grade_air(mean).alias("air"),
        _or_zero("tickets", "bigint"),
        _or_zero("fines", "decimal(18,2)"),
    )


def _or_zero(column: str, kind: str) -> Column:
    return F.coalesce(F.col(column), F.lit(0)).cast(kind).alias(column)


class DistrictMonth(pa.DataFrameModel):
    """A district in a month."""

    month: T.DateType = Field(description="The first day of the month.")
    district: T.StringType = Field(description="The district.")
    readings: T.LongType = Field(ge=0, description="Readings of its stations.")
    pm10: T.DecimalType(28, 1) = Field(ge=0, description="Their sum.")  # type: ignore[valid-type]
    tickets: T.LongType = Field(ge=0, description="Tickets issued.")
    fines: T.DecimalType(28, 2) = Field(ge=0, description="Sum of the fines.")  # type: ignore[valid-type]


@table(
    DistrictMonth,
    partition="month",
    key=["district"],
    totals=_TOTALS,
    checks=[conserves("days", column, column) for column in _TOTALS],
    group="city",
)
def district_month(days: Annotated[DataFrame, Reads(district_day, MONTH)]) -> DataFrame:
    """The months of the districts."""
    sums = [F.sum(column).alias(column) for column in _TOTALS]
    return days.groupBy(F.col("for_day").alias("month"), "district").agg(*sums)


class DistrictBaseline(pa.DataFrameModel):
    """A district in the 28 days that end with a day."""

    run_date: T.DateType = Field(description="The last of the 28 days.")
    district: T.StringType = Field(description="The district.")
    tickets: T.LongType = Field(ge=0, description="Tickets of the 28 days.")
    fines: T.DecimalType(28, 2) = Field(ge=0, description="Sum of the fines.")  # type: ignore[valid-type]


@table(
    DistrictBaseline,
    partition="run_date",
    key=["district"],
    totals=["tickets", "fines"],
    checks=[conserves("days", column, column) for column in ("tickets", "fines")],
    group="city",
)
def district_baseline(
    days: Annotated[DataFrame, Reads(district_day, last_days(28))],
) -> DataFrame:
    """What a day is compared with."""
    return days.groupBy(F.col("for_day").alias("run_date"), "district").agg(
        F.sum("tickets").alias("tickets"), F.sum("fines").alias("fines")
    )


TABLES = [READINGS, TICKETS, district_day, district_month, district_baseline]
