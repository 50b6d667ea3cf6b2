"""Rows as of a version are those that Delta's own time travel gives."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyspark.sql.types as T
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import days_condition
from backfill_assets.delta.data_files import files_as_of, rows_as_of
from backfill_assets.delta.table_schema import delta_schema, schema_properties
from backfill_assets.orders.tables import FACT
from backfill_assets.tables.columns import added_column
from backfill_assets_tests.changing_columns import make_table
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.publish_rows import WIDER
from backfill_assets_tests.helpers.written_logs import (
    append_commit,
    commit_days,
    commit_info,
    facts_table,
    log_file,
)

TWO = days(1, 3)


def create_versions(url: Path) -> str:
    """Days 1 to 3; then day 1 once more and a new day 4; then day 3 anew."""
    commit_days(url, days((1, 3)))
    commit_days(url, days(1, 4))
    commit_days(url, days(3), mode="overwrite")
    return str(url)


def by_delta(spark, url: str, version: int) -> DataFrame:
    rows = spark.read.format("delta").option("versionAsOf", version).load(url)
    return rows.where(days_condition(TWO, "run_date")).select(*FACT.columns)


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


def columns_dropped(url: Path, *names: str) -> dict:
    """The table's metadata of version 0 without columns, as a commit has them."""
    actions = map(json.loads, log_file(url, 0).read_text().splitlines())
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    struct = json.loads(metadata["schemaString"])
    struct["fields"] = [field for field in struct["fields"] if field["name"] not in names]
    return {"metaData": {**metadata, "schemaString": json.dumps(struct)}}


@pytest.mark.parametrize("name", ["channel", "Channel"])
def test_a_file_that_holds_a_dropped_column_is_not_taken_where_the_column_is_back(tmp_path, name):
    url = tmp_path / FACT.name
    rows = facts_table(TWO).append_column(name, pa.array(["shop"] * 2, pa.string()))
    write_deltalake(url, rows, partition_by=["run_date"])
    append_commit(url, commit_info("DROP COLUMNS"), columns_dropped(url, name))
    commit_days(url, days(2))
    assert files_as_of(str(url), FACT, days((1, 3)), 2).keys() == days((1, 3))
    assert files_as_of(str(url), WIDER, days((1, 3)), 2).keys() == days(2)
    # A file that cannot be looked into is not known to lack the column.
    for file in url.glob(f"run_date={day(2)}/*.parquet"):
        file.write_bytes(b"")
    assert files_as_of(str(url), WIDER, days((1, 3)), 2) == {}


#: A column that was null at first, and got a default later.
FILLED = make_table(2, channel=(T.StringType, added_column("shop", day(3), "Where from.")))


def create_unfilled(url: Path) -> str:
    """Days 1 and 3 from before the default."""
    values = ["x", 1, Decimal("1.10"), 0.5, None, None]
    rows = [dict(zip(FILLED.columns, [day(n), *values], strict=True)) for n in (1, 3)]
    schema = pa.schema(delta_schema(FILLED).to_arrow())
    write_deltalake(url, pa.Table.from_pylist(rows, schema), partition_by=["run_date"])
    return str(url)


def test_files_from_before_a_default_was_filled_in_are_not_taken(tmp_path):
    url = create_unfilled(tmp_path / FACT.name)
    assert files_as_of(url, FILLED, TWO, 0) == {}
    DeltaTable(url).alter.set_table_properties(schema_properties(FILLED), raise_if_not_exists=False)
    assert files_as_of(url, FILLED, TWO, 1).keys() == TWO


def test_rows_from_before_a_default_was_filled_in_have_it(spark, tmp_path):
    rows = rows_as_of(spark, create_unfilled(tmp_path / "t"), FILLED, 0, TWO).collect()
    assert {(row["run_date"], row["channel"]) for row in rows} == {(day(1), "shop"), (day(3), None)}


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
