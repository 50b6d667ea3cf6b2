"""The model of sales by day and shop, which labs publish as an ordinary asset."""

from __future__ import annotations

from typing import ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field


class Sales(pa.DataFrameModel):
    """Sales of each shop on a day."""

    day: T.DateType = Field(description="The day.")
    shop: T.StringType = Field(description="The shop.")
    amount: T.LongType = Field(ge=0, description="What it sold.")

    class Config:
        """One row for each day and shop."""

        strict = True
        metadata: ClassVar = {"partition": "day", "key": ["shop"], "totals": ["amount"]}
