"""Lab `crash`: six months, killed in the fourth; what is lost, and how it goes on."""

from __future__ import annotations

from datetime import date

import dagster as dg
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.commit_log import CommitLog
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.publish.io_manager import publishes
from backfill_assets_guide.labs.lab import START, JobDiedError, Lab, Sales

_MONTHS = [Window(date(2024, month, 1), date(2024, month + 1, 1)) for month in range(1, 7)]
_APRIL = _MONTHS[3]
_DIES = date(2024, 4, 15)


def crash_lab(lab: Lab) -> None:
    """A backfill of six months dies in April."""
    lab.say("Sales of three shops, January to June. The engine goes away in April.")

    lab.step("One job for all of it dies.")
    with lab.expect_death():
        sales = _create_sales(lab.spark, Window(_MONTHS[0].start, _MONTHS[-1].end))
        # Its files are there. No commit names them.
        sales.write.parquet(lab.table_url("one_shot"))
        raise JobDiedError
    _show_reader(lab, lab.table_url("one_shot"))

    lab.step("A job a month that appends. In April it dies after its commit.")
    with lab.expect_death():
        for month in _MONTHS:
            lab.append(_create_sales(lab.spark, month), "appended")
            if month is _APRIL:
                raise JobDiedError
    _show_reader(lab, lab.table_url("appended"))
    lab.step("It goes on with the month that did not end with success.")
    for month in _MONTHS[_MONTHS.index(_APRIL) :]:
        lab.append(_create_sales(lab.spark, month), "appended")
    _show_reader(lab, lab.table_url("appended"))

    _show_daily_jobs(lab)
    pipeline = lab.create_pipeline(end=_MONTHS[-1].end)
    url = pipeline.settings.table("daily_sales")
    lab.say("Here: the same months, a run for each, which replaces its days in one commit.")
    lab.step("The run of April dies.")
    ended = [
        pipeline.publish_asset(_sales_asset(month, dies=month is _APRIL), month)
        for month in _MONTHS[: _MONTHS.index(_APRIL) + 1]
    ]
    lab.show("Dagster", f"runs with success {sum(ended)}   failed {ended.count(False)}")
    _show_reader(lab, url)
    lab.step("All six months are asked for again.")
    for month in _MONTHS:
        pipeline.publish_asset(_sales_asset(month), month)
    _show_reader(lab, url)
    lab.lesson(
        "one job for everything loses everything. A job a day loses a day, and starts once for "
        "each. Appending cannot be repeated. Days that are replaced can: what is there is left "
        "alone, and the rest is done."
    )


def _show_daily_jobs(lab: Lab) -> None:
    """A job for each day, which loses least and begins most often."""
    url, days = lab.table_url("by_day"), [*Window(_MONTHS[0].start, _MONTHS[-1].end)]
    lab.step(f"A job a day that appends. That of {_DIES} dies before its commit; none comes after.")
    finished_days = days[: days.index(_DIES)]
    for day in finished_days:
        _append_day(url, day)
    lab.show(
        "jobs",
        f"ended {len(finished_days)}   died 1   not begun {len(days) - len(finished_days) - 1}",
    )
    _show_reader(lab, url)
    lab.step("It goes on with the days that are lacking. Each day has cost a job of its own.")
    for day in days[len(finished_days) :]:
        _append_day(url, day)
    lab.show("jobs", f"ended {len(days)}   died 1")
    _show_reader(lab, url)


def _append_day(url: str, day: date) -> None:
    """Append the sales of a day, without an engine to start."""
    shops = range(3)
    rows = {
        "day": pa.array([day for _ in shops], pa.date32()),
        "shop": [f"shop-{n}" for n in shops],
        "amount": pa.array([10 + n for n in shops], pa.int64()),
    }
    write_deltalake(url, pa.table(rows), mode="append")


def _sales_asset(month: Window, *, dies: bool = False) -> dg.AssetsDefinition:
    """An ordinary asset that has the sales of a month, or whose run dies."""

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition(start_date=str(START)),
        io_manager_key="io_manager",
        metadata=publishes(Sales, partition="day", key=["shop"], totals=["amount"]),
    )
    def daily_sales() -> DataFrame:
        if dies:
            raise JobDiedError
        return _create_sales(SparkSession.active(), month)

    return daily_sales


def _show_reader(lab: Lab, url: str) -> None:
    if load_log(url) is None:
        lab.show("reader", "there is no table")
        return
    lab.show_query(
        "reader",
        "SELECT count(DISTINCT day) AS days, count(*) AS rows, sum(amount) AS amount "
        f"FROM delta.`{url}`",
    )
    log = CommitLog(url)
    commits = sum(b'"add":' in (log.read_commit(version) or b"") for version in log.list_versions())
    lab.show("history", f"commits with rows {commits}")


def _create_sales(spark: SparkSession, days: Window) -> DataFrame:
    return spark.range(len(days) * 3).selectExpr(
        f"date_add(DATE'{days.start}', CAST(id DIV 3 AS INT)) AS day",
        "concat('shop-', id % 3) AS shop",
        "10 + id % 3 AS amount",
    )
