"""What a line of the customers' change feed is."""

from __future__ import annotations

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field

from backfill_assets import Source, nullable_column


class CustomerChange(pa.DataFrameModel):
    """A version of a change of a customer, as a line of the landing has it.

    A change has the whole customer as it is since. A change can be corrected: by a later version of
    the same `change_id`, which may tell of another moment, and even of another customer.
    """

    change_id: T.StringType = Field(description="Names the change.")
    customer_id: T.StringType = Field(description="Who has changed.")
    op: T.StringType = Field(description="`insert`, `update` or `delete`.")
    email_status: T.StringType = nullable_column(0.9, 1.0, "`ok`, `bounced` or `unsubscribed`.")
    segment: T.StringType = nullable_column(0.9, 1.0, "Segment of the market.")
    country: T.StringType = nullable_column(0.9, 1.0, "Country, as a code of two letters.")
    changed_at: T.TimestampType = Field(description="Since when it holds (UTC).")
    ingested_at: T.TimestampType = Field(description="When the source took this version (UTC).")


CUSTOMER_CHANGES = Source(
    "customer_changes",
    CustomerChange,
    key=["change_id"],
    event_time="changed_at",
    version_time="ingested_at",
)
