"""Customers as they were: a slowly changing dimension of type 2, for each day of the log."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, VersionHistory, nullable_column, table
from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES

_ATTRIBUTES = ("email_status", "segment", "country")
HISTORY = VersionHistory(
    day="log_date",
    key="customer_id",
    change="change_id",
    known="known_at",
    values=("is_deleted", *_ATTRIBUTES),
)


class CustomerVersion(pa.DataFrameModel):
    """What the log knew at the end of a day of a customer: since when it was as the row says."""

    log_date: T.DateType = Field(description="Day of the log at whose end this was known.")
    customer_id: T.StringType = Field(description="Customer.")
    valid_from: T.TimestampType = Field(description="Since when the customer was so (UTC).")
    # Equal to `valid_from` if the customer was never so.
    valid_to: T.TimestampType = nullable_column(
        1.0, 1.0, "Until when, exclusive; null while it is so."
    )
    is_current: T.BooleanType = Field(description="Whether the customer is so still.")
    is_deleted: T.BooleanType = Field(description="Whether the customer was deleted.")
    email_status: T.StringType = nullable_column(1.0, 1.0, "As the change says; null if deleted.")
    segment: T.StringType = nullable_column(1.0, 1.0, "As the change says; null if deleted.")
    country: T.StringType = nullable_column(1.0, 1.0, "As the change says; null if deleted.")
    change_id: T.StringType = Field(description="The change that made the customer so.")
    known_at: T.TimestampType = Field(description="Since when it is known (UTC): taken, and true.")
    logged_on: T.DateType = Field(description="Log day on which this version came first.")


@table(
    CustomerVersion,
    partition="log_date",
    key=["change_id"],
    rules=HISTORY.rules,
    checks=HISTORY.checks,
    group="customers",
)
def dim_customers(
    changes: Annotated[DataFrame, Reads(CUSTOMER_CHANGES.raw)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    """The changes that are known, in the order in which they hold."""
    deleted = F.col("op") == "delete"
    known = changes.select(
        "for_day",
        "change_id",
        "customer_id",
        deleted.alias("is_deleted"),
        *(F.when(~deleted, F.col(name)).alias(name) for name in _ATTRIBUTES),
        F.col("changed_at").alias("valid_from"),
        F.greatest("changed_at", "ingested_at").alias("known_at"),
        F.col("log_date").alias("logged_on"),
    )
    return HISTORY.versions(known, before)
