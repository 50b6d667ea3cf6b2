"""Tables that are not daily, or are made of what is not, for tests of code and of deployments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import WEEK, Reads, Source, conserves_total, table
from backfill_assets.orders.tables import FACT, ORDERS
from backfill_assets_tests.country_tables import country_spend
from backfill_assets_tests.helpers.pipeline import Pipeline, day


class Revenue(pa.DataFrameModel):
    """Revenue of a week."""

    week: T.DateType = Field(description="The Monday.")
    orders: T.LongType = Field(ge=1, description="Orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


def summed(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.col("for_day").alias("week")).agg(
        F.sum("orders").alias("orders"), F.sum("revenue").cast("decimal(28,2)").alias("revenue")
    )


@table(
    Revenue,
    partition="week",
    key=[],
    totals=["orders", "revenue"],
    checks=[conserves_total("orders", column, column) for column in ("orders", "revenue")],
)
def weekly(orders: Annotated[DataFrame, Reads(FACT, WEEK)]) -> DataFrame:
    return summed(orders)


@table(
    Revenue,
    partition="week",
    key=[],
    totals=["orders", "revenue"],
    checks=[conserves_total("weeks", "revenue", "revenue")],
)
def weekly_again(weeks: Annotated[DataFrame, Reads(weekly)]) -> DataFrame:
    return summed(weeks)


class TapLine(pa.DataFrameModel):
    """A tap on a screen."""

    tap_id: T.StringType = Field(description="Names the tap.")
    at: T.TimestampType = Field(description="When it was.")
    seen_at: T.TimestampType = Field(description="When the source took it.")


TAPS = Source("taps", TapLine, key=["tap_id"], event_time="at", version_time="seen_at", hourly=True)


class HourOfTaps(pa.DataFrameModel):
    """Taps of an hour."""

    run_date: T.DateType = Field(description="The day.")
    hour: T.LongType = Field(ge=0, le=23, description="The hour of it.")
    taps: T.LongType = Field(ge=1, description="How many.")


@table(
    HourOfTaps,
    partition="run_date",
    key=["hour"],
    totals=["taps"],
    checks=[conserves_total("taps", None, "taps")],
)
def taps_by_hour(taps: Annotated[DataFrame, Reads(TAPS.staged)]) -> DataFrame:
    hour = F.hour("at").cast("long").alias("hour")
    return taps.groupBy(F.col("for_day").alias("run_date"), hour).agg(
        F.count(F.lit(1)).alias("taps")
    )


#: By week; of a source by the hour; and these with one that reads a static reference table.
WEEKS = [*ORDERS, weekly, weekly_again]
HOURS = [TAPS, taps_by_hour]
TABLES = [*WEEKS, *HOURS, country_spend]


class Taps(Pipeline):
    """The tables on folders of their own."""

    def hour(self, n: int, hour: int) -> Path:
        folder = self.landing / "taps" / f"arrival_date={day(n)}" / f"hour={hour:02}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def tap(self, n: int, hour: int, ids: Sequence[str], name: str = "part-0.jsonl") -> Path:
        """Taps of an hour, in its folder."""
        at = f"{day(n)}T{hour:02}:30:00Z"
        lines = [{"tap_id": tap_id, "at": at, "seen_at": at} for tap_id in ids]
        path = self.hour(n, hour) / name
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    def whole_day(self, n: int, without: Sequence[int] = ()) -> None:
        """A tap an hour."""
        for hour in {*range(24)} - {*without}:
            self.tap(n, hour, [f"{n}-{hour}"])

    def made(self, n: int) -> dict[int, int]:
        """Taps by hour."""
        rows = self.rows(taps_by_hour.name)
        return {row["hour"]: row["taps"] for row in rows if row["run_date"] == day(n)}

    def files(self, n: int) -> set[str]:
        rows = self.rows(TAPS.raw.name)
        return {row["source_file"] for row in rows if row["log_date"] == day(n)}
