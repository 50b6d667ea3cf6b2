"""Lab `column`: a column that the source has had for a year only, in a table of three years."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

import dagster as dg
import pyspark.sql.types as T
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import DAY, Window, format_ranges
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.delta_rs import delta_log
from backfill_assets.delta.migrate import migrate_table, read_migration
from backfill_assets.delta.table_schema import COLUMN_GAPS
from backfill_assets.publish.io_manager import publishes, tables_of_assets
from backfill_assets.spark.filesystems import folder_filesystem
from backfill_assets.tables.columns import added_column
from backfill_assets_guide.labs.lab import Lab, Sales

#: A week of each of three years.
_WEEKS = [Window(date(year, 1, 4), date(year, 1, 11)) for year in (2021, 2022, 2023)]
_SINCE = _WEEKS[-1].start
_SHOPS = 3


class SalesByChannel(Sales):
    """The same, with the channel."""

    channel: T.StringType = added_column("shop", _SINCE, "Where it was sold.")


def column_lab(lab: Lab) -> None:
    """A channel is added to the sales, which the source has had for a year only."""
    lab.say(
        f"Sales of three shops, a week of each year from 2021 to 2023. Since {_SINCE} the source "
        "says by which channel: the third shop sells on the web, the others do not. Before that "
        "none did."
    )
    _show_careless_ways(lab)
    lab.say('Here the model gets the column: `added_column("shop", date(2023, 1, 4), ...)`.')
    pipeline = lab.create_pipeline(start=_WEEKS[0].start, end=_WEEKS[-1].end)
    url = pipeline.settings.table("daily_sales")
    lab.step("The three weeks, by the code of before.")
    for week in _WEEKS:
        pipeline.publish_asset(_sales_asset(week, Sales), week)
    _show_readers(lab, url)
    lab.step("The new code runs before the table is migrated.")
    asset = _sales_asset(_WEEKS[-1], SalesByChannel)
    _report_run(lab, pipeline.publish_asset(asset, _WEEKS[-1]))
    _show_readers(lab, url)
    lab.step("The plan of the migration. It writes nothing.")
    table = tables_of_assets([asset])["daily_sales"]
    plan = read_migration(url, table)
    for change in plan.changes if plan else ():
        lab.show("plan", f"{change.text} ({change.cost})")
    _show_readers(lab, url)
    lab.step("The migration: columns and files in one commit.")
    for _ in migrate_table(Writer(lambda: lab.spark, url, table)):
        pass
    _show_readers(lab, url)
    lab.show(
        "property of the table", str(delta_log(url).load().metadata().configuration[COLUMN_GAPS])
    )
    lab.step(f"The backfill of the days that were null, {format_ranges(_WEEKS[-1])}.")
    _report_run(lab, pipeline.publish_asset(asset, _WEEKS[-1]))
    _show_readers(lab, url)
    lab.step("A week of 2021 is loaded again. Its source has no channel.")
    _report_run(lab, pipeline.publish_asset(_sales_asset(_WEEKS[0], SalesByChannel), _WEEKS[0]))
    _show_readers(lab, url)
    lab.lesson(
        "a null is not a value: a reader takes it for zero, or loses the row. Say what the days "
        "before hold, write it into them in the commit that adds the column, and plan a backfill "
        "of the days that have more to say."
    )


def _show_careless_ways(lab: Lab) -> None:
    """A column that comes by an append, and one that comes by an overwrite of everything."""

    def show_reader() -> None:
        lab.show_query(
            "reader",
            "SELECT CAST(year(day) AS STRING) AS year, sum(amount) AS amount, "
            "sum(IF(channel = 'web', amount, 0)) AS web, "
            "sum(IF(channel <> 'web', amount, 0)) AS `not web` "
            f"FROM {lab.table_sql('careless')} GROUP BY 1 ORDER BY 1",
        )

    name = "careless"
    lab.step(
        "The last day is appended with the new column, by `mergeSchema`. A report asks for what "
        "was sold on the web, and for what was not."
    )
    first = _create_sales(lab.spark, _WEEKS[0])
    for week in _WEEKS[1:]:
        first = first.unionByName(_create_sales(lab.spark, week))
    last = Window(_WEEKS[-1].end - DAY, _WEEKS[-1].end)
    first.where(f"NOT ({last.sql_condition('day')})").write.format("delta").save(
        lab.table_url(name)
    )
    rows = _with_channel(_create_sales(lab.spark, last)).write.format("delta").mode("append")
    rows.option("mergeSchema", "true").save(lab.table_url(name))
    show_reader()
    lab.step(
        "The whole table is loaded again, with `overwriteSchema`. The source keeps two years, so "
        "one year is gone."
    )
    two_years = _create_sales(lab.spark, _WEEKS[1]).selectExpr("*", "'shop' AS channel")
    reloaded = two_years.unionByName(_with_channel(_create_sales(lab.spark, _WEEKS[2])))
    writer = reloaded.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.save(lab.table_url(name))
    show_reader()


def _create_sales(spark: SparkSession, days: Window) -> DataFrame:
    return spark.range(len(days) * _SHOPS).selectExpr(
        f"date_add(DATE'{days.start}', CAST(id DIV {_SHOPS} AS INT)) AS day",
        f"concat('shop-', id % {_SHOPS}) AS shop",
        "10L AS amount",
    )


def _with_channel(sales: DataFrame) -> DataFrame:
    return sales.selectExpr("*", "IF(shop = 'shop-2', 'web', 'shop') AS channel")


def _sales_asset(days: Window, model: Any) -> dg.AssetsDefinition:
    """An ordinary asset that has the sales of some days, by the code of then or of now."""

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition(
            start_date=str(_WEEKS[0].start), end_date=str(_WEEKS[-1].end)
        ),
        io_manager_key="io_manager",
        metadata=publishes(
            model,
            partition="day",
            key=["shop"],
            totals=["amount"],
            schema_version=1 if model is Sales else 2,
        ),
    )
    def daily_sales() -> DataFrame:
        sales = _create_sales(SparkSession.active(), days)
        if model is Sales:
            return sales
        return (
            _with_channel(sales)
            if days.start >= _SINCE
            else sales.selectExpr("*", "CAST(NULL AS STRING) AS channel")
        )

    return daily_sales


def _report_run(lab: Lab, success: bool) -> None:
    lab.show("Dagster", f"runs with success {int(success)}   failed {int(not success)}")


def _show_readers(lab: Lab, url: str) -> None:
    """Tell what two readers see, who must see the same."""
    by_spark = [row.asDict() for row in lab.spark.read.format("delta").load(url).collect()]
    by_rust = delta_log(url).load().to_pyarrow_table(filesystem=folder_filesystem(url)).to_pylist()
    for reader, rows in (("Spark", by_spark), ("delta-rs", by_rust)):
        summary = f"rows {len(rows)}   amount {sum(row['amount'] for row in rows)}"
        channels = Counter(row["channel"] or "null" for row in rows if "channel" in row)
        lab.show(
            reader,
            "   ".join(
                [summary, *(f"channel {channel} {n}" for channel, n in sorted(channels.items()))]
            ),
        )
