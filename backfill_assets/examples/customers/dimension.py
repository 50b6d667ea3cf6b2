"""Customers as they were: a slowly changing dimension of type 2, for each day of the log."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from backfill_assets import PREVIOUS_DAY, SELF, Reads, forbids, nullable, table
from backfill_assets.examples.customers.changes import CUSTOMER_CHANGES


class CustomerVersion(pa.DataFrameModel):
    """What the log knew at the end of a day of a customer: since when it was as the row says."""

    log_date: T.DateType = Field(description="Day of the log at whose end this was known.")
    customer_id: T.StringType = Field(description="Customer.")
    valid_from: T.TimestampType = Field(description="Since when the customer was so (UTC).")
    # Equal to `valid_from` if the customer was never so.
    valid_to: T.TimestampType = nullable(1.0, 1.0, "Until when, exclusive; null while it is so.")
    is_current: T.BooleanType = Field(description="Whether the customer is so still.")
    is_deleted: T.BooleanType = Field(description="Whether the customer was deleted.")
    email_status: T.StringType = nullable(1.0, 1.0, "As the change says; null if deleted.")
    segment: T.StringType = nullable(1.0, 1.0, "As the change says; null if deleted.")
    country: T.StringType = nullable(1.0, 1.0, "As the change says; null if deleted.")
    change_id: T.StringType = Field(description="The change that made the customer so.")
    known_at: T.TimestampType = Field(description="Since when it is known (UTC): taken, and true.")
    logged_on: T.DateType = Field(description="Log day on which this version came first.")

    class Config:
        """One row for each change that was known, in its latest version."""

        strict = True
        metadata: ClassVar = {
            "partition": "log_date",
            "key": ["change_id"],
            "rules": {
                "ends_no_earlier": (
                    "valid_to IS NULL OR valid_to >= valid_from",
                    "A version ends no earlier than it began.",
                ),
                "current_is_open": (
                    "is_current = (valid_to IS NULL)",
                    "A version is current if it has not ended, and no other is.",
                ),
                "logged_by_its_day": (
                    "logged_on <= log_date",
                    "A day of the log knows nothing of later ones.",
                ),
            },
        }


_ATTRIBUTES = ("email_status", "segment", "country")
#: Of two versions of a change, the one that is greater by these columns, in this order, counts.
_VERSION = ("known_at", "valid_from", "customer_id", "is_deleted", *_ATTRIBUTES)


def _of_a_customer() -> WindowSpec:
    return Window.partitionBy("log_date", "customer_id")


def _with_next(rows: DataFrame) -> DataFrame:
    """The versions, each with when the one after it begins."""
    in_order = _of_a_customer().orderBy("valid_from", F.col("valid_to").asc_nulls_last())
    return rows.withColumn("next", F.lead("valid_from").over(in_order))


def overlaps(rows: DataFrame) -> DataFrame:
    """Versions of a customer that end after the next one begins."""
    return _with_next(rows).where("next < valid_to OR (next IS NOT NULL AND valid_to IS NULL)")


def gaps(rows: DataFrame) -> DataFrame:
    """Versions of a customer that end before the next one begins."""
    return _with_next(rows).where("next > valid_to")


def without_one_current(rows: DataFrame) -> DataFrame:
    """Versions of customers with no current version, or several."""
    current = F.sum(F.col("is_current").cast("int")).over(_of_a_customer())
    return rows.withColumn("current", current).where("current != 1")


@table(
    CustomerVersion,
    checks=[
        forbids("overlap", overlaps, "No two versions of a customer overlap."),
        forbids("gap", gaps, "Between two versions of a customer there is no gap."),
        forbids("one_current", without_one_current, "Each customer has one current version."),
    ],
    group="customers",
)
def dim_customers(
    changes: Annotated[DataFrame, Reads(CUSTOMER_CHANGES.raw)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    """The changes that are known, in the order in which they hold."""
    deleted = F.col("op") == "delete"
    came = changes.select(
        "for_day",
        "change_id",
        "customer_id",
        deleted.alias("is_deleted"),
        *(F.when(~deleted, F.col(name)).alias(name) for name in _ATTRIBUTES),
        F.col("changed_at").alias("valid_from"),
        F.greatest("changed_at", "ingested_at").alias("known_at"),
        F.col("log_date").alias("logged_on"),
    )
    versions = came.unionByName(before.select(*came.columns))
    # A line that is sent again was known since it came first: the greatest of these is the least.
    first = (-F.unix_date("logged_on")).alias("first")
    latest = versions.groupBy(F.col("for_day").alias("log_date"), "change_id").agg(
        F.max(F.struct(*_VERSION, first)).alias("of")
    )
    history = _of_a_customer().orderBy("valid_from", "known_at", "change_id")
    return (
        latest.select("log_date", "change_id", "of.*")
        .withColumn("logged_on", F.date_from_unix_date(-F.col("first")))
        .withColumn("valid_to", F.lead("valid_from").over(history))
        .withColumn("is_current", F.col("valid_to").isNull())
        .drop("first")
    )
