"""Lab `overwrite`: what an overwrite takes away that has no partition, or no rows."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.labs.lab import START, Lab, Line

_DAYS = Window(START, START + 4 * DAY)
_SHOPS, _ORDERS, _LEFT = 2, 30, 5
_SECOND = START + DAY
_DAY = f"day = DATE'{_SECOND}'"
_BUILT = ("raw_orders", "stg_orders", "fact_daily_orders")


def overwrite(lab: Lab) -> None:
    """A day is overwritten without its partition, and by a delivery that lacks rows."""
    sales = lab.table("sales")

    def delivered(amount: int) -> DataFrame:
        return lab.spark.range(len(_DAYS) * _SHOPS).selectExpr(
            f"date_add(DATE'{START}', CAST(id DIV {_SHOPS} AS INT)) AS day",
            f"concat('shop-', id % {_SHOPS}) AS shop",
            f"CAST({amount} AS DECIMAL(10, 2)) AS amount",
        )

    def look() -> None:
        lab.look(
            "reader",
            "SELECT count(DISTINCT day) AS days, count(*) AS rows, sum(amount) AS revenue "
            f"FROM {sales}",
        )

    lab.say("Sales of four days. The second day is delivered again, with right amounts.")
    delivered(10).write.format("delta").partitionBy("day").save(lab.url("sales"))
    delivered(12).where(_DAY).createOrReplaceTempView("lab_delivered")
    lab.step("The table before.")
    look()
    lab.step("INSERT OVERWRITE with the rows of that day, and without its partition.")
    lab.sql(f"INSERT OVERWRITE {sales} SELECT * FROM lab_delivered")
    look()
    lab.step("The version before is restored. The same statement, with its partition.")
    lab.sql(f"RESTORE TABLE {sales} TO VERSION AS OF 0")
    lab.sql(f"INSERT OVERWRITE {sales} PARTITION ({_DAY}) SELECT shop, amount FROM lab_delivered")
    look()
    lab.step("The next delivery of the day has no rows. A job replaces the day by it.")
    lab.replace(delivered(12).where("false"), "sales", _DAY)
    look()
    lab.spark.catalog.dropTempView("lab_delivered")
    _audited(lab)
    lab.lesson(
        "an overwrite replaces what its condition says by whatever comes. Without a condition it "
        "replaces all days. Name the days, and compare the rows before the commit."
    )


def _audited(lab: Lab) -> None:
    """A delivery that lacks rows here."""
    lab.say("Here a check compares what comes with what was loaded before.")
    here = lab.pipeline(window_days=0)
    for day in _DAYS:
        here.land(day, _orders(day, _ORDERS))

    def orders() -> None:
        lab.look(
            "reader",
            "SELECT count(DISTINCT run_date) AS days, sum(orders) AS orders, "
            f"sum(revenue) AS revenue FROM {here.table('fact_daily_orders')}",
        )

    lab.step(f"Four days are loaded, {_ORDERS} orders a day.")
    here.run(_DAYS, _BUILT)
    orders()
    lab.step(f"The file of the second day is replaced by one with {_LEFT} orders. The day is run.")
    here.land(_SECOND, _orders(_SECOND, _LEFT))
    done = here.run(Window(_SECOND, _SECOND + DAY), _BUILT)
    orders()
    for check in done.get_asset_check_evaluations():
        if not check.passed:
            lab.tell(f"check {check.check_name}", str(check.description))


def _orders(day: date, count: int) -> list[Line]:
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
