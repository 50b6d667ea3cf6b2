"""Lab `overwrite`: what an overwrite takes away that has no partition, or no rows."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets_guide.labs.lab import START, Lab, Line

_DAYS = Window(START, START + 4 * DAY)
_SHOPS, _ORDERS, _REMAINING = 2, 30, 5
_SECOND, _THIRD = START + DAY, START + 2 * DAY
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
    _show_equal_totals(lab, create_delivery(10))
    _show_audit(lab)
    lab.lesson(
        "an overwrite replaces what its condition says by whatever comes. Without a condition it "
        "replaces all days. Name the days, and compare the rows before the commit: equal totals "
        "are no proof."
    )


def _show_equal_totals(lab: Lab, expected: DataFrame) -> None:
    """Two errors of a day that cancel out."""
    lab.step(
        "A job writes the third day with 3.00 of one shop counted for the other. First its totals "
        "are compared, then its rows."
    )
    third = f"day = DATE'{_THIRD}'"
    wrong = "CAST(amount + IF(shop = 'shop-0', 3, -3) AS DECIMAL(10, 2)) AS amount"
    lab.replace(expected.where(third).selectExpr("day", "shop", wrong), "sales", third)
    expected.where(third).createOrReplaceTempView("lab_expected")
    both = (
        "lab_expected e JOIN (SELECT shop, amount FROM "
        f"{lab.table_sql('sales')} WHERE {third}) t USING (shop)"
    )
    lab.show_query(
        "totals",
        f"SELECT count(*) AS rows, sum(e.amount) AS expected, sum(t.amount) AS revenue FROM {both}",
    )
    lab.show_query(
        "rows that differ",
        "SELECT shop, e.amount AS expected, t.amount AS revenue "
        f"FROM {both} WHERE e.amount <> t.amount ORDER BY shop",
    )
    lab.spark.catalog.dropTempView("lab_expected")


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
    lab.step(
        "All orders of that day come again, at 12.00. The facts are run first, and then the log "
        "and staging."
    )
    pipeline.land_lines(_SECOND, _order_lines(_SECOND, _ORDERS, amount="12.00"))
    second = Window(_SECOND, _SECOND + DAY)
    for tables in (_BUILT[2:], _BUILT[:2]):
        pipeline.run_tables(second, tables)
    show_orders()
    lab.step("The three tables are asked for at once, so that they run in their order.")
    pipeline.run_tables(second, _BUILT)
    show_orders()


def _order_lines(day: date, count: int, amount: str = "10.00") -> list[Line]:
    moment = f"{day}T10:00:00Z"
    return [
        {
            "order_id": f"o-{day}-{n}",
            "customer_id": f"c-{n}",
            "order_ts": moment,
            "amount": amount,
            "ingestion_ts": moment,
        }
        for n in range(count)
    ]
