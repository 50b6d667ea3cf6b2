"""UDFs of each kind, as a function of a table may have them."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as T
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

doubled = F.udf(lambda n: 2 * n, T.LongType())
doubled_by_arrow = F.udf(lambda n: 2 * n, T.LongType(), useArrow=True)


@F.pandas_udf(T.LongType())
def doubled_by_pandas(numbers: pd.Series) -> pd.Series:
    """Of a module, by pandas."""
    return 2 * numbers


def with_udfs(numbers: DataFrame) -> DataFrame:
    """Twice each number by UDFs of each kind, in the module and in this function."""
    inner = F.udf(lambda n: 2 * n, "long")
    inner_arrow = F.udf(lambda n: 2 * n, "long", useArrow=True)

    @F.pandas_udf("long")
    def inner_pandas(series: pd.Series) -> pd.Series:
        return 2 * series

    @F.arrow_udf("long")
    def inner_arrays(array: pa.Array) -> pa.Array:
        return pc.multiply(array, 2)

    half = F.udf(lambda n: n // 2, "long")
    return numbers.select(
        "n",
        doubled("n").alias("module"),
        doubled_by_arrow("n").alias("module_arrow"),
        doubled_by_pandas("n").alias("module_pandas"),
        inner("n").alias("inner"),
        inner_arrow("n").alias("inner_arrow"),
        inner_pandas("n").alias("inner_pandas"),
        inner_arrays("n").alias("inner_arrays"),
        inner(half(inner("n"))).alias("nested"),
    )


def check_udfs(spark: SparkSession, folder: str) -> None:
    """See that UDFs of each kind give what they are to give, over rows of files.

    Args:
        spark: the session.
        folder: takes a Parquet file, as Spark hands columns of files over by another way.
    """
    spark.range(1, 100).select(F.col("id").alias("n")).write.parquet(folder)
    rows = with_udfs(spark.read.parquet(folder)).collect()
    expected = 99
    assert len(rows) == expected
    assert all({*row.asDict().values()} == {row["n"], 2 * row["n"]} for row in rows)
