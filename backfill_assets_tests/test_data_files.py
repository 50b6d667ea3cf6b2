"""Rows as of a version are those that Delta's own time travel gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import any_window_condition, to_windows
from backfill_assets.delta.data_files import rows_as_of
from backfill_assets.orders.tables import FACT
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.publish_rows import WIDER
from backfill_assets_tests.helpers.written_logs import commit_days, facts_table

TWO = days(1, 3)


def create_versions(url: Path) -> str:
    """Days 1 to 3; then day 1 once more and a new day 4; then day 3 anew."""
    commit_days(url, days((1, 3)))
    commit_days(url, days(1, 4))
    commit_days(url, days(3), mode="overwrite")
    return str(url)


def by_delta(spark, url: str, version: int) -> DataFrame:
    rows = spark.read.format("delta").option("versionAsOf", version).load(url)
    return rows.where(any_window_condition(to_windows(TWO), "run_date")).select(*FACT.columns)


def count_equal_rows(spark, url: str, version: int) -> int:
    """Whether both ways give the same; the number of rows."""
    result, expected = rows_as_of(spark, url, FACT, version, TWO), by_delta(spark, url, version)
    assert result.schema.simpleString() == expected.schema.simpleString()
    rows = sorted(map(tuple, result.collect()))
    assert rows == sorted(map(tuple, expected.collect()))
    return len(rows)


def test_every_version_is_as_delta_reads_it(spark, tmp_path):
    url = create_versions(tmp_path / "a ä {2} x*y q?")
    assert [count_equal_rows(spark, url, version) for version in range(3)] == [2, 3, 3]


def test_days_without_files_have_no_rows(spark, tmp_path):
    result = rows_as_of(spark, create_versions(tmp_path / "t"), FACT, 2, days(20))
    assert result.collect() == []
    assert result.columns == list(FACT.columns)


def test_files_that_do_not_lie_in_the_folders_of_their_days(spark, tmp_path):
    url = create_versions(tmp_path / "t")
    spark.sql(f"ALTER TABLE delta.`{url}` SET TBLPROPERTIES('delta.randomizeFilePrefixes'='true')")
    rows = spark.createDataFrame(facts_table(days(1, 3)).to_pandas(), FACT.struct_type)
    rows.write.format("delta").mode("append").save(url)
    assert [count_equal_rows(spark, url, version) for version in (2, 4)] == [3, 5]
    assert len(list(Path(url).glob("run_date=*"))) == 4
    assert len(list(Path(url).glob("??/*.parquet"))) == 2


def test_a_version_that_lacks_a_column(spark, tmp_path):
    url = str(tmp_path / "t")
    write_deltalake(url, facts_table(TWO).drop_columns(["orders"]), partition_by=["run_date"])
    with pytest.raises(AnalysisException, match="orders"):
        rows_as_of(spark, url, FACT, 0, TWO).collect()


def test_a_version_from_before_a_column_was_added(spark, tmp_path):
    url = create_versions(tmp_path / "t")
    rows = rows_as_of(spark, url, WIDER, 2, TWO).collect()
    assert [row["channel"] for row in rows] == [None] * 3
    assert list(rows[0].asDict()) == list(WIDER.columns)


def test_a_version_that_is_not_there(spark, tmp_path):
    with pytest.raises(DeltaError):
        rows_as_of(spark, create_versions(tmp_path / "t"), FACT, 99, TWO)


def test_rows_that_are_deleted_in_their_file_stay_deleted(spark, tmp_path):
    url = str(tmp_path / "vectors")
    spark.createDataFrame(facts_table(days((1, 3))).to_pandas(), FACT.struct_type).union(
        spark.createDataFrame(facts_table(days((1, 3))).to_pandas(), FACT.struct_type).selectExpr(
            "run_date", "'other' AS customer_id", "orders", "revenue"
        )
    ).coalesce(1).write.format("delta").partitionBy("run_date").option(
        "delta.enableDeletionVectors", "true"
    ).save(url)
    spark.sql(f"DELETE FROM delta.`{url}` WHERE customer_id = 'other'")
    assert [count_equal_rows(spark, url, version) for version in range(2)] == [4, 2]
    assert rows_as_of(spark, url, FACT, 1, ()).collect() == []
    assert list(Path(url).glob("deletion_vector_*"))
