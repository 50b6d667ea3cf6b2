"""What a table without days holds, as its log tells: which changes count as other rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.delta.delta_rs import replace_rows
from backfill_assets.delta.ledger_reader import read_unpartitioned
from backfill_assets_tests.helpers.written_logs import append_commit, commit_info
from backfill_assets_tests.own_tables import REFRESH


@pytest.fixture
def mapped(spark, tmp_path: Path) -> Path:
    """A table whose columns have other names in the files."""
    url = tmp_path / "rates"
    spark.sql(
        f"CREATE TABLE delta.`{url}` (currency STRING, low DOUBLE, high DOUBLE) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{url}` VALUES ('EUR', 1.0, 2.0)")
    return url


def read_content(url: Path) -> str | None:
    return read_unpartitioned(str(url)).content


def test_of_a_table_with_mapped_columns_rows_and_names_count_and_nothing_else(spark, mapped):
    # What changes no row.
    before = read_content(mapped)
    spark.sql(f"ALTER TABLE delta.`{mapped}` ALTER COLUMN low COMMENT 'the lowest of a day'")
    spark.sql(f"ALTER TABLE delta.`{mapped}` SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    spark.sql(f"OPTIMIZE delta.`{mapped}`")
    assert read_content(mapped) == before
    # Columns that swap names are other rows.
    metadata = last_metadata(mapped)
    for old, new in (("low", "other"), ("high", "low"), ("other", "high")):
        spark.sql(f"ALTER TABLE delta.`{mapped}` RENAME COLUMN {old} TO {new}")
    (row,) = spark.read.format("delta").load(str(mapped)).collect()
    assert (row["low"], row["high"]) == (2.0, 1.0)
    assert read_content(mapped) != before
    # And back again they are the same rows.
    append_commit(mapped, commit_info("RENAME COLUMN"), {"metaData": metadata})
    assert read_content(mapped) == before
    # A row more.
    spark.sql(f"INSERT INTO delta.`{mapped}` VALUES ('USD', 1.0, 2.0)")
    assert read_content(mapped) != before


def last_metadata(url: Path) -> dict:
    """What the newest commit that says something of the columns says."""
    for path in sorted((url / "_delta_log").glob("*.json"), reverse=True):
        for action in map(json.loads, path.read_text().splitlines()):
            if "metaData" in action:
                return action["metaData"]
    raise AssertionError("no commit says anything of the columns")


def test_of_a_table_without_mapped_columns_the_last_commit_of_rows_tells(tmp_path):
    url = tmp_path / "rates"
    write_deltalake(url, pa.table({"n": [1]}))
    write_deltalake(url, pa.table({"n": [2]}), mode="append")
    DeltaTable(url).optimize.compact()
    log = DeltaTable(url)
    assert log.version() == 2
    assert read_content(url) == f"version 1 of {log.metadata().id}"


def test_rows_are_replaced_in_one_commit_if_they_are_others(tmp_path):
    url, key = str(tmp_path / "customers"), ["customer_id"]
    rows = pa.table({"customer_id": ["c1", "c2"], "country": ["FR", None]})
    assert replace_rows(url, rows, key)
    first = read_content(Path(url))
    assert not replace_rows(url, rows.take([1, 0]), key)
    assert (DeltaTable(url).version(), read_content(Path(url))) == (0, first)
    other = pa.table({"customer_id": ["c1", "c2"], "country": ["FR", "DE"]})
    assert replace_rows(url, other, key)
    assert DeltaTable(url).version() == 1
    assert read_content(Path(url)) != first
    with pytest.raises(ValueError, match="have the same customer_id as another"):
        replace_rows(url, pa.concat_tables([other, rows]), key)
    assert DeltaTable(url).version() == 1


def test_the_page_writes_a_table_of_customers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(REFRESH, {})
    assert DeltaTable("data/warehouse/customers").version() == 0
