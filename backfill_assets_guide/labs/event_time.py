"""Lab `event-time`: Monday's order that arrives on Wednesday, by arrival and by event."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyspark.sql.types as T
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.tables.graph import load_graph
from backfill_assets.tables.sources import Source
from backfill_assets.transforms.dedup import (
    drop_superseded,
    rank_in_window,
    rank_lines,
    with_event_day,
)
from backfill_assets_guide.labs.lab import START, Lab

_WINDOWS = (0, 1, 2, 7)


def event_time_lab(lab: Lab) -> None:
    """An order of Monday arrives on Wednesday: on which day does it count?"""
    monday, tuesday, wednesday = START, START + DAY, START + 2 * DAY
    source = load_graph(lab.create_pipeline().settings).sources["raw_orders"]
    log = _create_log(lab, source, [(monday, monday), (tuesday, tuesday), (monday, wednesday)])
    log.write.format("delta").save(lab.table_url("log"))
    lab.say("Three orders of 10.00: one of Monday, one of Tuesday, one of Monday that came late.")
    lab.step("Revenue by the day on which a line arrived.")
    lab.show_query(
        "reader",
        f"SELECT log_date AS day, sum(amount) AS revenue FROM {lab.table_sql('log')} GROUP BY 1 "
        "ORDER BY 1",
    )
    lab.step("Revenue by the day on which the order happened.")
    lab.show_query(
        "reader",
        "SELECT CAST(order_ts AS DATE) AS day, sum(amount) AS revenue "
        f"FROM {lab.table_sql('log')} GROUP BY 1 ORDER BY 1",
    )
    lab.step("The orders of Monday, as staging has them with a reprocessing window of some days.")
    read = with_event_day(lab.spark.read.format("delta").load(lab.table_url("log")), source, "UTC")
    for window in _WINDOWS:
        days = Window(monday, tuesday)
        known = read.where(days.widen_by(after=window).sql_condition("log_date"))
        rows = drop_superseded(
            rank_in_window(rank_lines(known, source, window, corrects=True), source, days, window),
            source,
        )
        rows.createOrReplaceTempView("lab_rows")
        lab.show_query(
            f"{window} days", "SELECT count(*) AS orders, sum(amount) AS revenue FROM lab_rows"
        )
    lab.spark.catalog.dropTempView("lab_rows")
    lab.step(
        "A transform that asks for orders of the last two days, `order_ts >= CURRENT_DATE - 1`: "
        "run on Tuesday, and replayed a year later."
    )
    for today in (tuesday, tuesday.replace(year=tuesday.year + 1)):
        lab.show_query(
            str(today),
            f"SELECT count(*) AS orders FROM {lab.table_sql('log')} "
            f"WHERE log_date <= DATE'{tuesday}' AND order_ts >= DATE'{today}' - 1",
        )
    _show_stamped(lab, monday, (tuesday, tuesday.replace(year=tuesday.year + 1)))
    lab.lesson(
        "by arrival, a late line changes the wrong day. By event it changes its own day, as long "
        "as the window is open. A transform that reads the clock gives another result on a replay."
    )


def _show_stamped(lab: Lab, day: date, run_days: tuple[date, ...]) -> None:
    """The orders of a day, in a table whose partition is the day on which the run took place."""
    lab.step(
        "A transform that writes `CURRENT_DATE AS run_date`, and replaces this day: the orders of "
        "Monday, run on Tuesday, and replayed a year later."
    )
    stamped = lab.table_url("stamped")
    for today in run_days:
        lab.spark.sql(
            f"SELECT DATE'{today}' AS run_date, order_id, amount FROM {lab.table_sql('log')} "
            f"WHERE CAST(order_ts AS DATE) = DATE'{day}'"
        ).write.format("delta").mode("overwrite").partitionBy("run_date").option(
            "replaceWhere", f"run_date = DATE'{today}'"
        ).save(stamped)
    lab.show_query(
        "reader",
        "SELECT run_date, count(*) AS orders, sum(amount) AS revenue "
        f"FROM {lab.table_sql('stamped')} GROUP BY 1 ORDER BY 1",
    )


def _create_log(lab: Lab, source: Source, orders: list[tuple[date, date]]) -> DataFrame:
    """Rows of the raw log, by event day and log day."""
    rows = []
    for number, (event, logged) in enumerate(orders, 1):
        known = {
            "order_id": f"o-{number}",
            "customer_id": "c-1",
            "order_ts": datetime(event.year, event.month, event.day, 10),  # noqa: DTZ001 - as Spark takes it
            "amount": Decimal("10.00"),
            "ingestion_ts": datetime(logged.year, logged.month, logged.day, 11),  # noqa: DTZ001
            "log_date": logged,
        }
        rows.append(known)
    columns = [column for column in source.raw.struct_type if column.name in rows[0]]
    return lab.spark.createDataFrame(rows, T.StructType(columns))
