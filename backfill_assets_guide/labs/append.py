"""Lab `append`: a correcting backfill by an appending step, and by replaced partitions."""

from __future__ import annotations

from pyspark.sql import DataFrame

from backfill_assets_guide.labs.lab import Lab

_DAYS, _SHOPS = 1096, 3
_ALL = "day >= DATE'2021-01-01'"


def append_lab(lab: Lab) -> None:
    """Three years are loaded, and loaded again with a correction."""

    def create_sales(price: str) -> DataFrame:
        return lab.spark.range(_DAYS * _SHOPS).selectExpr(
            f"date_add(DATE'2021-01-01', CAST(id DIV {_SHOPS} AS INT)) AS day",
            f"concat('shop-', id % {_SHOPS}) AS shop",
            f"CAST({price} AS DECIMAL(10, 2)) AS amount",
        )

    def show_table(name: str) -> None:
        lab.show_query(
            "reader",
            "SELECT count(DISTINCT day) AS days, count(*) AS rows, sum(amount) AS revenue "
            f"FROM {lab.table_sql(name)}",
        )

    lab.say("Three years of sales. Shop 2 was loaded with a wrong price: 10.00 instead of 12.00.")
    lab.step("A job appends the three years.")
    lab.append(create_sales("10"), "appended")
    show_table("appended")
    lab.step("The correcting backfill: the same job with the right price. It ends with success.")
    right_price = "IF(id % 3 = 2, 12, 10)"
    lab.append(create_sales(right_price), "appended")
    show_table("appended")
    lab.step("Somebody presses the button once more.")
    lab.append(create_sales(right_price), "appended")
    show_table("appended")
    lab.say("The same history, by a job that replaces the partitions of its days.")
    lab.step("The job writes the three years, and then the correction.")
    create_sales("10").write.format("delta").partitionBy("day").save(lab.table_url("replaced"))
    show_table("replaced")
    lab.replace(create_sales(right_price), "replaced", _ALL)
    show_table("replaced")
    lab.step("Somebody presses the button once more.")
    lab.replace(create_sales(right_price), "replaced", _ALL)
    show_table("replaced")
    lab.lesson(
        "a load that appends counts each run. A load that replaces its partitions counts each day."
    )
