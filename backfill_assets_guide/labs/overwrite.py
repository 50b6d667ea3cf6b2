"""Lab `overwrite`: what an overwrite takes away that has no partition, or no rows."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets_guide.labs.lab import START, Lab, Line

_DAYS = Window(START, START + 4 * DAY)
_SHOPS, _ORDERS, _REMAINING = 2, 30, 5
_SECOND = START + DAY
_DAY = f"day = DATE'{_SECOND}'"
_BUILT = ("raw_orders", "stg_orders", "fact_daily_orders")


def overwrite_lab(lab: Lab) -> None:
    """A day is overwritten without its partition, and by a delivery that lacks rows."""
    sales = lab.table_sql("sales")

    def create_delivery(amount: int) -> DataFrame:
        return lab.spark.range(len(_DAYS) * _SHOPS).selectExpr(
            f"date_add(DATE'{START}', CAST(id DIV {_SHOPS} AS INT)) AS day",
            f"concat('shop-', id % {_SHOPS}) AS shop",
            f"CAST({amount} AS DECIMAL(10, 2)) AS amount",
        )

    def show_reader() -> None:
        lab.show_query(
            "reader",
            "SELECT count(DISTINCT day) AS days, count(*) AS rows, sum(amount) AS revenue "
            f"FROM {sales}",
        )

    lab.say("Sales of four days. The second day is delivered again, with right amounts.")
    create_delivery(10).write.format("delta").partitionBy("day").save(lab.table_url("sales"))
    create_delivery(12).where(_DAY).createOrReplaceTempView("lab_delivered")
    lab.step("The table before.")
    show_reader()
    lab.step("INSERT OVERWRITE with the rows of that day, and without its partition.")
    lab.run_sql(f"INSERT OVERWRITE {sales} SELECT * FROM lab_delivered")
    show_reader()
    lab.step("The version before is restored. The same statement, with its partition.")
    lab.run_sql(f"RESTORE TABLE {sales} TO VERSION AS OF 0")
    lab.run_sql(
        f"INSERT OVERWRITE {sales} PARTITION ({_DAY}) SELECT shop, amount FROM lab_delivered"
    )
    show_reader()
    lab.step("The next delivery of the day has no rows. A job replaces the day by it.")
    lab.replace(create_delivery(12).where("false"), "sales", _DAY)
    show_reader()
    lab.spark.catalog.dropTempView("lab_delivered")
    _show_audit(lab)
    lab.lesson(
        "an overwrite replaces what its condition says by whatever comes. Without a condition it "
        "replaces all days. Name the days, and compare the rows before the commit."
    )


def _show_audit(lab: Lab) -> None:
    """A delivery that lacks rows here."""
    lab.say("Here a check compares what comes with what was loaded before.")
    pipeline = lab.create_pipeline(window_days=0)
    for day in _DAYS:
        pipeline.land_lines(day, _order_lines(day, _ORDERS))

    def show_orders() -> None:
        lab.show_query(
            "reader",
            "SELECT count(DISTINCT run_date) AS days, sum(orders) AS orders, "
            f"sum(revenue) AS revenue FROM {pipeline.table_sql('fact_daily_orders')}",
        )

    lab.step(f"Four days are loaded, {_ORDERS} orders a day.")
    pipeline.run_tables(_DAYS, _BUILT)
    show_orders()
    lab.step(
        f"The file of the second day is replaced by one with {_REMAINING} orders. The day is run."
    )
    pipeline.land_lines(_SECOND, _order_lines(_SECOND, _REMAINING))
    result = pipeline.run_tables(Window(_SECOND, _SECOND + DAY), _BUILT)
    show_orders()
    for check in result.get_asset_check_evaluations():
        if not check.passed:
            lab.show(f"check {check.check_name}", str(check.description))


def _order_lines(day: date, count: int) -> list[Line]:
    moment = f"{day}T10:00:00Z"
    return [
        {
            "order_id": f"o-{day}-{n}",
            "customer_id": f"c-{n}",
            "order_ts": moment,
            "amount": "10.00",
            "ingestion_ts": moment,
        }
        for n in range(count)
    ]
