"""Folders of Parquet files of somebody else's: which files are data, and columns that differ."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from pyspark.sql import functions as F

from backfill_assets.imports.external_table import list_parquet_files, read_files
from backfill_assets.imports.import_state import ImportMapping, ImportRefusedError
from backfill_assets.imports.landing_files import SourceLines, map_rows, names_in
from backfill_assets.orders.tables import ORDER_LINES


def write_file(folder: Path, name: str, **columns: pa.Array) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def read_rows(spark, folder: Path) -> list[dict[str, Any]]:
    records = [
        row.asDict()
        for row in read_files(spark, str(folder), list_parquet_files(str(folder))).rows.collect()
    ]
    return sorted(records, key=str)


def read_error(spark, folder: Path) -> str:
    with pytest.raises(ImportRefusedError) as refused:
        read_files(spark, str(folder), list_parquet_files(str(folder)))
    message = str(refused.value)
    assert "Nothing was written" in message
    return message


def test_partitions_are_text(spark, tmp_path):
    """As numbers, 007 and 7 would be one shop."""
    for n, shop in enumerate(("007", "7", "012", "__HIVE_DEFAULT_PARTITION__", "a%2Fb")):
        write_file(tmp_path, f"shop={shop}/part", n=pa.array([n]))
    shops = {row["n"]: row["shop"] for row in read_rows(spark, tmp_path)}
    assert shops == {0: "007", 1: "7", 2: "012", 3: None, 4: "a/b"}


def test_any_name_that_is_not_hidden_is_data(spark, tmp_path):
    data = ["000000_0", "part-1.parq", "a.parquet", "_day=1/x", ".day=1/x"]
    hidden = ["_SUCCESS", ".a.crc", "_temporary/0/a.parquet", ".hive/a.parquet", "day=1_$folder$"]
    for name in [*data, *hidden]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [file.path for file in list_parquet_files(str(tmp_path))] == sorted(data)


@pytest.mark.parametrize("column", ["_day", ".day"])
def test_a_partition_whose_name_begins_as_a_hidden_one(spark, tmp_path, column):
    write_file(tmp_path, f"{column}=1/x", n=pa.array([1]))
    assert read_rows(spark, tmp_path) == [{"n": 1, column: "1"}]


def test_files_of_any_name_are_read(spark, tmp_path):
    write_file(tmp_path, "000000_0", n=pa.array([1]))
    write_file(tmp_path, "part-1.parq", n=pa.array([2]))
    write_file(tmp_path, "part-2024-01-01T10:00:00", n=pa.array([3]))
    assert [row["n"] for row in read_rows(spark, tmp_path)] == [1, 2, 3]


def test_a_column_of_several_types_has_one_that_holds_all(spark, tmp_path):
    write_file(
        tmp_path,
        "a",
        key=pa.array([1], pa.int32()),
        amount=pa.array([7], pa.int32()),
        rate=pa.array([0.5], pa.float32()),
        note=pa.array(["x"]),
    )
    big = 2**40
    write_file(
        tmp_path,
        "b",
        key=pa.array([big], pa.int64()),
        Amount=pa.array([Decimal("1.25")], pa.decimal128(5, 2)),
        rate=pa.array([0.1], pa.float64()),
    )
    assert read_rows(spark, tmp_path) == [
        {"key": 1, "amount": Decimal("7.00"), "rate": 0.5, "note": "x"},
        {"key": big, "amount": Decimal("1.25"), "rate": 0.1, "note": None},
    ]


def test_structs_have_the_fields_of_all_files_and_nulls_any_type(spark, tmp_path):
    write_file(
        tmp_path, "a", n=pa.array([{"x": 1, "l": [{"y": 1}]}]), note=pa.array([None], pa.null())
    )
    write_file(
        tmp_path, "b", n=pa.array([{"x": 2, "l": [{"z": "s"}], "new": 1.5}]), note=pa.array(["t"])
    )
    values = [(row["n"].asDict(recursive=True), row["note"]) for row in read_rows(spark, tmp_path)]
    assert values == [
        ({"x": 1, "l": [{"y": 1, "z": None}], "new": None}, None),
        ({"x": 2, "l": [{"y": None, "z": "s"}], "new": 1.5}, "t"),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array(["7"]), pa.array([7], pa.int64())),
        (pa.array([7], pa.int64()), pa.array([7.5])),
        (
            pa.array([Decimal(7)], pa.decimal128(38, 0)),
            pa.array([Decimal("7.5")], pa.decimal128(9, 1)),
        ),
    ],
    ids=["text and number", "whole and floating", "too many digits"],
)
def test_columns_that_no_type_holds_are_named_with_their_files(spark, tmp_path, one, other):
    write_file(tmp_path, "a.parquet", n=one)
    write_file(tmp_path, "b.parquet", n=other)
    message = read_error(spark, tmp_path)
    assert "the column n is" in message
    assert "in b.parquet and" in message
    assert "in a.parquet, and no type holds both" in message


UNREADABLE = {
    "at": pa.array([1], pa.time64("us")),
    "rate": pa.array([0.5], pa.float16()),
    "nested": pa.array([{"at": 1}], pa.struct([("at", pa.time64("us"))])),
    "listed": pa.array([[1]], pa.list_(pa.timestamp("ns"))),
    "code": pa.array(["x"]),
    "Code": pa.array(["y"]),
}


def test_columns_that_spark_cannot_read_are_left_out(spark, tmp_path):
    """Each alone makes Spark's own inference fail, though nobody uses it."""
    write_file(tmp_path, "shop=7/a", n=pa.array([1]), **UNREADABLE)
    write_file(tmp_path, "shop=7/b", n=pa.array([2]), rate=pa.array([0.5]), Shop=pa.array([3]))
    read = read_files(spark, str(tmp_path), list_parquet_files(str(tmp_path)))
    assert {(row["n"], row["shop"]) for row in read.rows.collect()} == {(1, "7"), (2, "7")}
    # In one file it could be read.
    assert read.rows.columns == ["n", "shop"]
    assert read.unreadable == {
        "at": "time64[us]",
        "rate": "halffloat",
        "nested": "struct<at: time64[us]>",
        "listed": "list<element: timestamp[ns]>",
        "code": "several columns, in upper and lower case",
        "Code": "several columns, in upper and lower case",
    }


def test_a_column_that_spark_cannot_read_becomes_no_field(spark, tmp_path):
    """Not even one that may be null."""
    texts = {name: pa.array(["1"]) for name in ("order_id", "amount")}
    moments = dict.fromkeys(("order_ts", "ingestion_ts"), pa.array([0], pa.timestamp("ns")))
    write_file(tmp_path, "a", **texts, **moments, Customer_ID=UNREADABLE["at"])
    read = read_files(spark, str(tmp_path), list_parquet_files(str(tmp_path)))

    def map_fields(**fields: str) -> SourceLines:
        mapping = ImportMapping(fields=fields)
        return map_rows(read.rows, ORDER_LINES, mapping, "UTC", read.unreadable)

    for fields, problem in (
        ({}, "customer_id: it is time64[us] in the table, which Spark cannot read"),
        ({"customer_id": "customer_id"}, "customer_id: customer_id cannot be computed: "),
    ):
        with pytest.raises(ImportRefusedError) as refused:
            map_fields(**fields)
        assert problem in str(refused.value)
        assert "columns that Spark cannot read: Customer_ID (time64[us])" in str(refused.value)
    assert map_fields(customer_id="null").unused == []
    assert map_fields(customer_id="null", order_id="amount").unused == ["order_id"]
    (row,) = map_fields(customer_id="null").rows.collect()
    assert row["customer_id"] is None
    assert map_fields(customer_id="null").rows.schema["customer_id"].dataType == T.StringType()


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("`Order ID`", {"order id"}),
        ("round(Revenue, 2)", {"round", "revenue", "2"}),
        ("concat('it\\'s id', \"job\", note)", {"concat", "note"}),
        ("`a``b`.c", {"a`b", "c"}),
    ],
)
def test_the_columns_that_an_expression_is_made_of_are_used(expression, names):
    assert names_in(expression) == names


def test_what_pandas_writes_is_read(spark, tmp_path):
    at = pd.Timestamp("2024-01-02 03:04:05.123456789")
    frame = pd.DataFrame(
        {
            "at": [at],
            "moment": [at.tz_localize("Europe/Berlin")],
            "shop": pd.Categorical(["a"]),
            "note": pd.array(["b"], pd.ArrowDtype(pa.large_string())),
            "nothing": [None],
            "took": [pd.Timedelta(3)],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    rows = read_files(spark, str(tmp_path), list_parquet_files(str(tmp_path))).rows
    assert [type(field.dataType) for field in rows.schema][:2] == [
        T.TimestampNTZType,
        T.TimestampType,
    ]
    times = {name: F.col(name).cast("string") for name in ("at", "moment")}
    (row,) = rows.withColumns(times).collect()
    assert row.asDict() == {
        "at": "2024-01-02 03:04:05.123456",
        "moment": "2024-01-02 02:04:05.123456",
        "shop": "a",
        "note": "b",
        "nothing": None,
        "took": 3,
    }


def test_older_timestamps_in_structs_and_bytes_are_read(spark, tmp_path):
    """Spark writes timestamps as INT96, also in a struct; no landing file has such a column."""
    at = pa.array([{"at": pd.Timestamp("2024-01-02")}], pa.struct([("at", pa.timestamp("ns"))]))
    table = pa.table(
        {
            "nested": at,
            "name": pa.array([b"a"]),
            "code": pa.array([b"bc"], pa.binary(2)),
            "parts": pa.array([[(1, "x")]], pa.map_(pa.int32(), pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "a", use_deprecated_int96_timestamps=True)
    rows = read_files(spark, str(tmp_path), list_parquet_files(str(tmp_path))).rows
    (row,) = rows.selectExpr(
        "cast(nested.at as string) at",
        "cast(name as string)",
        "cast(code as string)",
        "parts[1] part",
    ).collect()
    assert row.asDict() == {"at": "2024-01-02 00:00:00", "name": "a", "code": "bc", "part": "x"}


def test_files_that_are_not_parquet_are_named(spark, tmp_path):
    write_file(tmp_path, "a.parquet", n=pa.array([1]))
    (tmp_path / "b.parquet").touch()
    (tmp_path / "README").write_text("what this is")
    message = read_error(spark, tmp_path)
    assert "2 file(s) are not Parquet files: README, b.parquet (empty)." in message


def test_partitions_that_some_files_lack_are_refused(spark, tmp_path):
    write_file(tmp_path, "a.parquet", n=pa.array([1]))
    write_file(tmp_path, "shop=7/b.parquet", n=pa.array([1]))
    assert "shop=7/b.parquet lies in folders of other partitions" in read_error(spark, tmp_path)
