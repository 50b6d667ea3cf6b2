"""Lab `leak`: a training set joined with the customers of today, and as of each order."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import functions as F

from backfill_assets.transforms.point_in_time import as_of_join
from backfill_assets_guide.labs.lab import Lab


def leak_lab(lab: Lab) -> None:
    """Orders of 2021 are joined with what is known of their customers."""
    orders = lab.spark.createDataFrame(
        [("c", _month_start(2021, 3)), ("d", _month_start(2021, 3))],
        "customer STRING, ordered TIMESTAMP",
    )
    versions = lab.spark.createDataFrame(
        [
            ("c", "ok", _month_start(2020, 1), _month_start(2020, 1)),
            ("c", "unsubscribed", _month_start(2021, 2), _month_start(2026, 5)),
            ("c", "bounced", _month_start(2026, 5), _month_start(2026, 5)),
            ("d", "ok", _month_start(2020, 1), _month_start(2020, 1)),
        ],
        "customer STRING, email STRING, valid_from TIMESTAMP, known_at TIMESTAMP",
    )
    lab.say(
        "Customers c and d ordered in March 2021. The e-mail of c: ok since 2020; unsubscribed in "
        "February 2021, which was known in 2026 only; bounced in 2026."
    )
    lab.step("The customers as they are today.")
    latest = versions.groupBy("customer").agg(F.max_by("email", "valid_from").alias("email"))
    orders.join(latest, "customer").createOrReplaceTempView("lab_rows")
    _show_reader(lab)
    for text, cutoff in (
        ("As of the order, of what is known today.", F.lit(_month_start(2026, 11))),
        ("As of the order, of what was known then.", F.col("ordered")),
    ):
        lab.step(text)
        joined = as_of_join(
            orders,
            versions,
            key="customer",
            at="ordered",
            valid_from="valid_from",
            known="known_at",
            cutoff=cutoff,
        )
        joined.createOrReplaceTempView("lab_rows")
        _show_reader(lab)
    lab.spark.catalog.dropTempView("lab_rows")
    lab.lesson(
        "a join with today writes the future into the past: a model learns what nobody knew. "
        "A join as of a moment needs two times: since when a value held, and when it was known."
    )


def _month_start(year: int, month: int) -> datetime:
    return datetime(year, month, 1)  # noqa: DTZ001 - as Spark takes it


def _show_reader(lab: Lab) -> None:
    lab.show_query("reader", "SELECT customer, email FROM lab_rows ORDER BY customer")
