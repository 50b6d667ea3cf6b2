"""Reconciliation: contents that other engines confirm, and what two versions differ in."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandera.pyspark as pa
import pyarrow
import pyspark.sql.types as T
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import DayContent
from backfill_assets.backfills.diff import (
    DayChangeKind,
    DayDiff,
    TableDiff,
    as_table,
    cross_table_mismatches,
    report_values,
)
from backfill_assets.backfills.diff_query import (
    ReconciliationError,
    _choose_versions,
    _measure_drift,
    _measure_groups,
    _text_columns,
    diff_table,
)
from backfill_assets.cli.output import Output
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails, CommitRecord, ExternalCommit, PublishedDay
from backfill_assets.delta.table_schema import create_table
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
)
from backfill_assets.report import Report
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.day_sha256 import hash_day, sha256_of_days
from backfill_assets_tests.helpers.command_line import JAN, publish_facts
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.pipeline import day, order

EMPTY = sha256(b"").hexdigest()
#: The SHA-256 of days of `stg_orders`, by DuckDB; the first two statements are macros.
SQL = r"""
CREATE OR REPLACE MACRO field(x) AS coalesce(
  replace(replace(replace(replace(
      x::VARCHAR, '\', '\\'), chr(9), '\t'), chr(10), '\n'), chr(13), '\r'),
  '\N');
CREATE OR REPLACE MACRO float_field(x) AS coalesce(
  CASE WHEN isnan(x) THEN 'nan' WHEN x = 0 THEN '0x0p+0' ELSE format('{:a}', x::DOUBLE) END,
  '\N');

WITH lines AS (
  SELECT event_date, amount, sha256(concat_ws(chr(9),
      field(event_date), field(order_id), field(customer_id), field(epoch_us(order_ts)),
      field(amount), field(epoch_us(ingestion_ts)), field(log_date))) AS line
  FROM read_parquet($files, hive_partitioning = true)),
groups AS (
  SELECT event_date, left(line, 2) AS first, count(*) AS rows, sum(amount) AS amount,
      sha256(string_agg(line, chr(10) ORDER BY line)) AS hash
  FROM lines GROUP BY event_date, first)
SELECT event_date, sum(rows)::BIGINT AS rows, sum(amount) AS amount,
    sha256(string_agg(hash, chr(10) ORDER BY first)) AS sha256
FROM groups GROUP BY event_date ORDER BY event_date;
"""


def measure_by_duckdb(url: str, version: int, days: Iterable[date]) -> dict[date, tuple]:
    """What DuckDB says of days of `stg_orders`: rows, amount and SHA-256."""
    filters = [("event_date", "in", [str(d) for d in days])]
    files = DeltaTable(url, version=version).file_uris(file_pruning_predicate=filters)
    with duckdb.connect() as engine:
        for statement in SQL.split(";\n"):
            parameters = {"files": files} if "$files" in statement else None
            if statement.strip():
                result = engine.execute(statement, parameters)
        return {row[0]: row[1:] for row in result.fetchall()}


def make_frame(table: Table, rows: list[tuple], spark) -> DataFrame:
    """A frame of the table's type from rows whose times are microseconds since 1970."""
    kinds = {f.name: f.dataType for f in table.struct_type}
    times = [name for name, kind in kinds.items() if isinstance(kind, T.TimestampType)]
    microsecond_struct = T.StructType(
        [T.StructField(n, T.LongType() if n in times else k) for n, k in kinds.items()]
    )
    frame = spark.createDataFrame(rows, microsecond_struct)
    for name in times:
        frame = frame.withColumn(name, F.timestamp_micros(name))
    return frame


def to_microseconds(*when: int) -> int:
    since = datetime(*when, tzinfo=timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return since // timedelta(microseconds=1)


def staged_row(n: int, order_id: str, customer: str | None = "c1", **changes: Any) -> tuple:
    """A row of `stg_orders` on the n-th day."""
    values = {
        "event_date": day(n),
        "order_id": order_id,
        "customer_id": customer,
        "order_ts": to_microseconds(2024, 1, n, 10),
        "amount": Decimal("10.00"),
        "ingestion_ts": to_microseconds(2024, 1, n, 10),
        "log_date": day(n),
    }
    return tuple({**values, **changes}.values())


#: Rows that one engine or another may spell or sort in its own way, over three days.
NASTY = [
    staged_row(1, "a\tb\nc\rd\\e", "\\N"),
    staged_row(1, "null", None),
    staged_row(1, "empty", ""),
    staged_row(1, "space ", "  x "),
    staged_row(1, "quote'\"", "100%_$1"),
    staged_row(1, "ünï ∑ 中文 العربية", "👩‍🚀 e\u0301 \u00e9 \x00 \u2028"),
    staged_row(1, "twice"),
    staged_row(1, "twice"),
    *[staged_row(1, f"many {n}") for n in range(600)],  # more than there are groups of hashes
    *[
        staged_row(2, f"o{n}", amount=Decimal(amount))
        for n, amount in enumerate(
            ["0.00", "-0.01", "0.10", "100.00", "-9999999999999999.99", "9999999999999999.99"]
        )
    ],
    *[
        staged_row(3, f"o{n}", order_ts=at, log_date=log_date)
        for n, (at, log_date) in enumerate(
            [
                (0, date(1970, 1, 1)),
                (-1, date(1969, 12, 31)),
                (to_microseconds(1, 1, 1), date(1, 1, 1)),
                (to_microseconds(42, 3, 1, 12, 30, 1, 7), date(42, 3, 1)),
                (to_microseconds(1582, 10, 10), date(1582, 10, 10)),
                (to_microseconds(1883, 11, 18, 17, 0, 0, 999999), date(1883, 11, 18)),
                (to_microseconds(1899, 12, 31, 23, 59, 59), date(1900, 2, 28)),
                (to_microseconds(2024, 11, 3, 5, 30), date(2024, 2, 29)),
                (to_microseconds(2024, 11, 3, 6, 30), date(2024, 2, 29)),
                (to_microseconds(9999, 12, 31, 23, 59, 59, 999999), date(9999, 12, 31)),
            ]
        )
    ],
]
DAYS = [day(1), day(2), day(3)]


@pytest.fixture(scope="module")
def nasty(spark, tmp_path_factory) -> str:
    """`stg_orders` with the nasty rows.

    Version 0 has a file a day, version 1 the rows shuffled in many, with times as INT96.
    """
    url = str(tmp_path_factory.mktemp("nasty") / STAGED.name)
    write_version(make_frame(STAGED, NASTY, spark).coalesce(1), STAGED, url)
    with session_conf(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
        write_version(make_frame(STAGED, NASTY[::-1], spark).repartition(5), STAGED, url)
    files = [len(DeltaTable(url, version=version).file_uris()) for version in (0, 1)]
    assert files[0] == 3 < files[1]
    return url


def write_version(frame: DataFrame, table: Table, url: str) -> None:
    """Make a version of a table that has just these rows."""
    frame.write.format("delta").partitionBy(table.partition).mode("overwrite").save(url)


@contextmanager
def session_conf(spark, setting: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session, for a while."""
    before = {name: spark.conf.get(name) for name in setting}
    try:
        for name, value in setting.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def measure_days(frame: DataFrame, table: Table) -> dict[date, DayContent]:
    """The content of each day with rows."""
    return {d: found for (d,), found in _measure_groups(frame, table, table.partition).items()}


def test_the_page_shows_how_a_day_is_hashed_without_spark(tmp_path, monkeypatch, capsys):
    """By its rules: here are two rows of strings, a whole number and a decimal."""
    (block,) = code_blocks("docs/reconciliation.md", "python")
    publish_facts(tmp_path / "data", dict.fromkeys(JAN[:5], "ok"))
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    hashes = [sha256(f"2024-01-05\tc{n}\t1\t1.00".encode()).hexdigest() for n in range(2)]
    assert len({digits[:2] for digits in hashes}) == 2
    groups = [sha256(digits.encode()).hexdigest() for digits in sorted(hashes)]
    expected = sha256("\n".join(groups).encode()).hexdigest()
    assert capsys.readouterr().out == f"{{{JAN[4]!r}: {expected!r}}}\n"


def test_other_engines_compute_the_same_sha256(spark, nasty):
    report = diff_table(spark, nasty, STAGED, dict.fromkeys(DAYS, (0, 1)))
    assert report.summary_line == "stg_orders: 3 identical"
    for version, side in ((0, "before"), (1, "after")):
        measured: dict[date, DayContent] = {d.day: getattr(d, side) for d in report.days}
        shas = {d: content.digest for d, content in measured.items()}
        assert sha256_of_days(nasty, version, DAYS) == shas
        assert measure_by_duckdb(nasty, version, DAYS) == {
            d: (content.rows, content.totals["amount"], content.digest)
            for d, content in measured.items()
        }
    assert [(d.after.rows, d.after.keys) for d in report.days] == [(608, 607), (6, 6), (10, 10)]


def test_the_session_has_no_influence(spark, nasty):
    expected = measure_days(spark.read.format("delta").load(nasty), STAGED)
    for setting in (
        {"spark.sql.session.timeZone": "America/St_Johns"},
        {"spark.sql.session.timeZone": "Pacific/Apia", "spark.sql.ansi.enabled": "false"},
    ):
        with session_conf(spark, setting):
            assert measure_days(spark.read.format("delta").load(nasty), STAGED) == expected


def test_the_canonical_text_is_as_specified(spark):
    rows = [staged_row(1, "a\tb\\", None, amount=Decimal("-0.5")), staged_row(1, "b", order_ts=-1)]
    lines = [
        "2024-01-01\ta\\tb\\\\\t\\N\t1704103200000000\t-0.50\t1704103200000000\t2024-01-01",
        "2024-01-01\tb\tc1\t-1\t10.00\t1704103200000000\t2024-01-01",
    ]
    hashes = [sha256(line.encode()).hexdigest() for line in lines]
    assert hashes[0][:2] != hashes[1][:2]
    groups = [sha256(line.encode()).hexdigest() for line in sorted(hashes)]
    result = measure_days(make_frame(STAGED, rows, spark), STAGED)
    assert result == {
        day(1): DayContent(
            2, {"amount": Decimal("9.50")}, sha256("\n".join(groups).encode()).hexdigest(), 2
        )
    }


def test_rows_that_look_alike_are_told_apart(spark):
    alike = [
        [staged_row(1, "x", None)],
        [staged_row(1, "x", "\\N")],
        [staged_row(1, "x", "")],
        [staged_row(1, "x", "null")],
        [staged_row(1, "x\tc1", "c1")],
        [staged_row(1, "x", "c1\tc1")],
        [staged_row(1, "x\\tc1", "c1")],
        [staged_row(1, "x", "c1")],
        [staged_row(1, "x", "c1")] * 2,
        [staged_row(1, "x", "c1")] * 3,
        [staged_row(1, "x", "c1", order_ts=to_microseconds(2024, 1, 1, 10) + 1)],
    ]
    frames = [
        make_frame(STAGED, rows, spark).withColumn("case", F.lit(n)) for n, rows in enumerate(alike)
    ]
    result = _measure_groups(reduce(DataFrame.unionByName, frames), STAGED, "case")
    assert len({content.digest for content in result.values()}) == len(alike)


def test_arrays_and_other_tables(spark, tmp_path):
    """A row at least of tables that have all types, so that each type has its text."""
    values: dict[type[T.DataType], Any] = {
        T.DateType: day(1),
        T.StringType: "x",
        T.TimestampType: 7,
        T.DecimalType: Decimal("-1.50"),
        T.LongType: 3,
    }
    several = {T.LongType: [0, -1, 2], T.DecimalType: [Decimal("0.00"), Decimal("-1.50")]}

    def value_of(kind: T.DataType) -> Any:
        if isinstance(kind, T.ArrayType):
            return several[type(kind.elementType)]
        return values[type(kind)]

    seen: set[str] = set()
    for table in sorted(TABLES.values(), key=lambda t: -len(kinds_of(t))):
        if kinds_of(table) <= seen:
            continue
        seen |= kinds_of(table)
        row = tuple(value_of(f.dataType) for f in table.struct_type)
        none = tuple(
            None if f.nullable else [] if type(f.dataType) is T.ArrayType else value
            for f, value in zip(table.struct_type, row, strict=True)
        )
        url = str(tmp_path / table.name)
        frame = make_frame(table, [row, none], spark)
        write_version(frame, table, url)
        result = measure_days(frame, table)
        assert {d: content.digest for d, content in result.items()} == sha256_of_days(
            url, 0, [day(1)]
        )


def kinds_of(table: Table) -> set[str]:
    """The types of a table's columns, and whether they may be null."""
    return {f"{f.dataType.simpleString()} {f.nullable}" for f in table.struct_type}


#: Doubles of all kinds, by their bits: any, NaN with and without payload, the least, the greatest.
DOUBLES = [
    *(random.Random(15).getrandbits(64) for _ in range(2000)),
    *(0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF),
    *(0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF),
    *(0x7FF0000000000000, 0xFFF0000000000000, 0x3FF0000000000000, 0x4340000000000001),
    *(int.from_bytes(struct.pack(">d", x)) for x in (0.1, -0.1, 2e23, 3.0, 1 / 3, 1e-5, 1e22)),
]


class Measures(pa.DataFrameModel):
    """Numbers as a sensor sends them."""

    day: T.DateType = pa.Field()
    number: T.DoubleType = pa.Field(nullable=True)
    # A name that begins as those of this package's own columns.
    single: T.FloatType = pa.Field(nullable=True, alias="_version")


def test_floating_point_numbers_have_one_text_in_all_engines(spark, tmp_path):
    """Written without Spark, so that each bit pattern is in the file as it is."""
    table, url = Table("measures", Measures, partition="day", key=[]), str(tmp_path / "measures")
    numbers = [
        *struct.unpack(f"<{len(DOUBLES)}d", struct.pack(f"<{len(DOUBLES)}Q", *DOUBLES)),
        None,
    ]
    singles = [
        *struct.unpack(
            f"<{len(DOUBLES)}f", struct.pack(f"<{len(DOUBLES)}I", *(bits >> 32 for bits in DOUBLES))
        ),
        None,
    ]
    arrays = {
        "day": pyarrow.array([day(1)] * len(numbers)),
        "number": pyarrow.array(numbers, pyarrow.float64()),
        "_version": pyarrow.array(singles, pyarrow.float32()),
    }
    write_deltalake(url, pyarrow.table(arrays), partition_by=["day"])
    (figures,) = measure_days(spark.read.format("delta").load(url), table).values()
    assert {day(1): figures.digest} == sha256_of_days(url, 0, [day(1)])
    with duckdb.connect() as engine:
        for macro in SQL.split(";\n")[:2]:
            engine.execute(macro)
        lines = engine.execute(
            "SELECT concat_ws(chr(9), field(day), float_field(number), float_field(_version)) "
            "FROM read_parquet($files, hive_partitioning = true)",
            {"files": DeltaTable(url).file_uris()},
        ).fetchall()
    assert hash_day(line for (line,) in lines) == figures.digest


def test_zeros_and_nans_are_the_same_rows_in_digest_and_diff(spark, tmp_path):
    """Written without Spark, as the doubles above."""
    table, url = Table("measures", Measures, partition="day", key=[]), str(tmp_path / "measures")
    for zero, nan in ((0.0, math.nan), (-0.0, -math.nan), (5e-324, None)):
        arrays = {
            "day": pyarrow.array([day(1)] * 2),
            "number": pyarrow.array([zero, nan], pyarrow.float64()),
            "_version": pyarrow.array([0.1] * 2, pyarrow.float32()),
        }
        write_deltalake(url, pyarrow.table(arrays), mode="overwrite", partition_by=["day"])
    same, other = (diff_table(spark, url, table, {day(1): (0, version)}) for version in (1, 2))
    assert (same.summary_line, other.summary_line) == (
        "measures: 1 identical",
        "measures: 1 changed",
    )
    assert [(s.kind, (s.before or s.after)["number"]) for s in other.samples] == [
        ("added", "5e-324"),
        ("added", None),
        ("removed", "0.0"),
        ("removed", "nan"),
    ]
    assert other.samples[0].after["_version"] == "0.10000000149011612"


#: By type that a model may have beside those of the default tables: values that look alike.
VALUES = {
    "boolean": ["true", "false", "null"],
    "tinyint": ["-128Y", "null"],
    "smallint": ["7S", "-7S"],
    "decimal(38,10)": ["1E-10BD", "-1E-10BD", "0", "12345678901234567890.5", "null"],
    "decimal(38,38)": ["1E-38BD", "-1E-7BD", "0.5"],
    "binary": ["X''", "X'00FF0A'", "null"],
    "array<timestamp>": ["array(TIMESTAMP'2024-03-10 02:30:00Z')", "array()"],
    "array<string>": [
        "array()",
        "array('')",
        "array('a', 'b')",
        "array('a, b')",
        "array('a\", \"b')",
        "array(null)",
        r"array('\\N')",
        "null",
    ],
    "array<array<double>>": ["array(array(1D, -0D), null)", "array(array(1D), array(0D))"],
    "array<struct<a:string,b:date>>": [
        "array(struct('x', null), null)",
        "array(struct(null, DATE'2024-01-01'))",
    ],
    "map<string,array<double>>": [
        "map('b', array(1D), 'a', null)",
        "map('a, \"b', array(double('NaN')))",
        "map()",
        "null",
    ],
}


def test_every_type_of_a_model_has_its_text(spark, tmp_path):
    """Each value is told apart, and Python reads the same, whatever the session's zone and mode."""
    kinds = {f"column_{n}": T._parse_datatype_string(kind) for n, kind in enumerate(VALUES)}
    fields = {name: pa.Field(nullable=True) for name in kinds}
    body = {"__annotations__": {"day": T.DateType, **kinds}, "day": pa.Field(), **fields}
    table = Table("every", type("Every", (pa.DataFrameModel,), body), partition="day")
    url, days = str(tmp_path / "every"), [day(n + 1) for n in range(max(map(len, VALUES.values())))]
    create_table(lambda: spark, url, table, {})
    rows = [
        [f"CAST({values[n % len(values)]} AS {kind})" for kind, values in VALUES.items()]
        for n in range(len(days))
    ]
    selects = [f"SELECT DATE'{d}', {', '.join(row)}" for d, row in zip(days, rows, strict=True)]
    frame = spark.sql(" UNION ALL ".join(selects)).toDF(*table.columns)
    frame.write.format("delta").mode("append").save(url)
    stored = spark.read.format("delta").load(url)
    shas = {d: figures.digest for d, figures in measure_days(stored, table).items()}
    assert shas == sha256_of_days(url, DeltaTable(url).version(), days)
    texts = stored.select(*_text_columns(table).values()).collect()
    distinct = [len({*column}) for column in zip(*texts, strict=True)][1:]
    assert distinct == [len(values) for values in VALUES.values()]
    with session_conf(
        spark,
        {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"},
    ):
        again = measure_days(spark.read.format("delta").load(url), table)
        assert {d: figures.digest for d, figures in again.items()} == shas


def fact_row(n: int, customer: str, orders: int = 1, revenue: str = "10.00") -> tuple:
    return (day(n), customer, orders, Decimal(revenue))


def write_facts(rows: list[tuple], url: str) -> None:
    """Make a version of `fact_daily_orders` that has just these rows, without Spark."""
    kinds = (pyarrow.date32(), pyarrow.string(), pyarrow.int64(), pyarrow.decimal128(28, 2))
    arrays = map(pyarrow.array, zip(*rows, strict=True), kinds)
    rows_table = pyarrow.table(dict(zip(FACT.columns, arrays, strict=True)))
    write_deltalake(url, rows_table, mode="overwrite", partition_by=[FACT.partition])


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> str:
    """`fact_daily_orders` in two versions, of which version 0 has the days 1 to 5, 1 to 6."""
    url = str(tmp_path_factory.mktemp("facts") / FACT.name)
    same = [fact_row(1, "a"), fact_row(2, "a"), fact_row(2, "b")]
    first = [
        *same,
        *[fact_row(3, f"c{n}") for n in range(8)],
        fact_row(4, "gone"),
        fact_row(5, "a"),
    ]
    second = [
        *same,
        *[fact_row(3, f"c{n}", 1 + n // 2) for n in range(1, 8)],
        *[fact_row(3, f"new{n}", revenue="1000.00") for n in range(6)],
        fact_row(5, "a", revenue="-10.50"),
        fact_row(6, "a"),
    ]
    for rows in (first, second):
        write_facts(rows, url)
    return url


@pytest.fixture(scope="module")
def report(spark, facts) -> TableDiff:
    both: Mapping[int, tuple[int | None, int | None]] = {
        **dict.fromkeys([1, 2, 3, 4, 5, 9], (0, 1)),
        6: (None, 1),
        7: (0, None),
        8: (None, None),
    }
    return diff_table(spark, facts, FACT, {day(n): pair for n, pair in both.items()})


def test_what_became_of_each_day(report):
    result = {d.day.day: (d.status, d.difference_text) for d in report.days}
    assert result == {
        1: (DayChangeKind.IDENTICAL, ""),
        2: (DayChangeKind.IDENTICAL, ""),
        3: (DayChangeKind.CHANGED, "rows +5, orders +17, revenue +5,990.00"),
        4: (DayChangeKind.CHANGED, "rows -1, orders -1, revenue -10.00"),
        5: (DayChangeKind.CHANGED, "revenue -20.50"),
        6: (DayChangeKind.ADDED, "rows +1, orders +1, revenue +10.00"),
        7: (DayChangeKind.MISSING, ""),
        8: (DayChangeKind.MISSING, ""),
        9: (DayChangeKind.IDENTICAL, ""),
    }
    emptied = report.days[3].after
    assert emptied == DayContent(0, FACT.zero_totals, EMPTY, 0)


def test_samples_are_few_in_order_and_side_by_side(report):
    shown = [
        (s.kind, s.day.day, s.before and s.before["customer_id"], s.after and s.after["orders"])
        for s in report.samples
    ]
    assert shown == [
        *[("added", 3, None, "1")] * 5,
        ("changed", 3, "c2", "2"),
        ("changed", 3, "c3", "2"),
        ("changed", 3, "c4", "3"),
        ("changed", 3, "c5", "3"),
        ("changed", 3, "c6", "4"),
        ("removed", 3, "c0", None),
        ("removed", 4, "gone", None),
    ]
    assert [s.after["customer_id"] for s in report.samples[:5]] == [f"new{n}" for n in range(5)]
    assert report.samples[5].before == {
        "run_date": "2024-01-03",
        "customer_id": "c2",
        "orders": "1",
        "revenue": "10.00",
    }


def test_rows_without_a_key_are_compared_as_a_whole(spark, tmp_path):
    """A log may have a line twice; its times are shown in UTC, however far back."""
    url, table = str(tmp_path / LATE.name), LATE
    line = dict(zip(table.columns, [day(1)] * 9, strict=True)) | {
        "order_id": "o",
        "customer_id": None,
        "order_ts": to_microseconds(42, 3, 1, 12, 30, 1, 7),
        "amount": Decimal("1.00"),
        "ingestion_ts": to_microseconds(2024, 1, 1),
        "source_file": "a\tb",
    }
    rows = [tuple(line.values()), tuple({**line, "customer_id": "c"}.values())]
    write_version(make_frame(table, [*rows, rows[0]], spark), table, url)
    write_version(make_frame(table, [rows[0]], spark), table, url)
    result = diff_table(spark, url, table, {day(1): (0, 1)})
    assert result.days[0].difference_text == "rows -2, amount -2.00"
    assert result.days[0].before.keys is None
    assert [(s.kind, s.before["customer_id"]) for s in result.samples] == [
        ("removed", None),
        ("removed", "c"),
    ]
    assert result.samples[0].before["order_ts"] == "0042-03-01T12:30:01.000007Z"
    assert result.samples[0].before["source_file"] == "a\\tb"


def test_only_the_files_of_the_days_are_read(spark, facts, tmp_path):
    url = str(tmp_path / "copy")
    shutil.copytree(facts, url)
    only = [("run_date", "=", "2024-01-02")]
    needed_files = {
        file
        for version in (0, 1)
        for file in DeltaTable(url, version=version).file_uris(file_pruning_predicate=only)
    }
    for file in Path(url).rglob("*.parquet"):
        if str(file) not in needed_files:
            file.unlink()
    assert diff_table(spark, url, FACT, {day(2): (0, 1)}).summary_line.endswith("1 identical")
    with pytest.raises(ReconciliationError) as error:
        diff_table(spark, url, FACT, {day(2): (0, 1), day(3): (0, 1)})
    for part in ("fact_daily_orders [2024-01-02...2024-01-03]", "0, 1", url, "as it was"):
        assert part in str(error.value)
    with pytest.raises(ReconciliationError, match=r"version\(s\) 7"):
        diff_table(spark, url, FACT, {day(2): (7, 7)})


def test_many_commits_are_few_versions_to_read(spark, tmp_path):
    """A day is read at another version than was asked only if no commit wrote it in between."""
    url = str(tmp_path / FACT.name)
    for changed in (0, 1, 2):
        rows = [fact_row(n, "a", 10 if n <= changed else 1) for n in (1, 2)]
        write_facts(rows, url)
    audits = dict.fromkeys(DAYS[:2], PublishedDay(1, "digest", "ok"))
    first = CommitRecord(
        0, "run", None, "person", "code", "config", {}, audits, frozenset(), CommitDetails()
    )
    second = msgspec.structs.replace(first, version=1, written_days=frozenset([day(1)]))
    ledger = Ledger(FACT, 2, [first, second], [ExternalCommit(2, "DELETE", frozenset([day(2)]))])
    version_pairs = {day(1): (0, 1), day(2): (1, 2)}
    result = diff_table(spark, url, FACT, version_pairs, ledger)
    assert result.summary_line == "fact_daily_orders: 2 changed"
    assert result == diff_table(spark, url, FACT, version_pairs)
    assert _choose_versions(
        {(v, d) for d, pair in version_pairs.items() for v in pair}, ledger
    ) == {
        (0, day(1)): (0, day(1)),
        (1, day(2)): (0, day(2)),
        (1, day(1)): (2, day(1)),
        (2, day(2)): (2, day(2)),
    }
    # What was committed after the ledger was read, it does not know.
    assert _choose_versions({(3, day(1)), (2, day(1)), (0, day(2))}, ledger) == {
        (3, day(1)): (3, day(1)),
        (2, day(1)): (1, day(1)),
        (0, day(2)): (1, day(2)),
    }


def test_a_day_that_was_never_published_needs_no_table(spark, tmp_path):
    result = diff_table(spark, str(tmp_path / "none"), FACT, {day(1): (None, None)})
    assert result.summary_line == "fact_daily_orders: 1 missing"


#: A hundred values before and after, and whether they have drifted.
DRIFTS = [
    ([*range(100)], [*range(100)], "none"),
    ([*range(100)], [*range(3, 103)], "none"),
    ([*range(100)], [*range(70), *range(40, 70)], "large"),
    ([*range(100)], [*range(85), *range(70, 85)], "large"),
    ([*range(100)], [x * 100 for x in range(100)], "large"),
    ([5] * 100, [5] * 99 + [6], "none"),
    # Where all values are equal, there are no tenths to move between.
    ([5] * 100, [4] * 100, "large"),
    ([5] * 100, [6] * 100, "large"),
    # NaN is greater than all numbers.
    ([x / 10 for x in range(100)], [*[x / 10 for x in range(70)], *[math.nan] * 30], "large"),
    ([*[1.5] * 50, *[math.nan] * 50], [*[math.nan] * 50, *[1.5] * 50], "none"),
]


def test_drift(spark):
    """Each case in a column of its own, as columns know nothing of each other."""
    names = [f"case_{n}" for n in range(len(DRIFTS))]
    kinds = [T.LongType if type(before[0]) is int else T.DoubleType for before, *_ in DRIFTS]
    columns = {"__annotations__": {"day": T.DateType} | dict(zip(names, kinds, strict=True))}
    fields = {name: pa.Field() for name in ("day", *names)}
    model = type("Cases", (pa.DataFrameModel,), {**columns, **fields})
    table = Table("cases", model, partition="day")
    frames = [
        spark.createDataFrame(
            [(day(1), *row) for row in zip(*(case[which] for case in DRIFTS), strict=True)],
            table.struct_type,
        )
        for which in (0, 1)
    ]
    result = _measure_drift(*frames, table)
    assert [result[name].level for name in names] == [level for *_, level in DRIFTS]
    for name, (before, after, _) in zip(names, DRIFTS, strict=True):
        same = sorted(map(str, before)) == sorted(map(str, after))
        assert (result[name].psi == 0) is same, name
        assert (result[name].ks == 0) is same, name
        assert result[name].ks <= 1, name


def test_drift_sees_nulls(spark):
    values = {"date": day(1), "bigint": 1, "decimal(28,2)": Decimal("0.00")}
    values |= {f"array<{kind}>": [value] for kind, value in values.items()}
    row = {f.name: values[f.dataType.simpleString()] for f in LATENESS.struct_type}
    none = {**row, "delay_days_max": None}
    before, after = (
        spark.createDataFrame([tuple(r.values()) for r in rows], LATENESS.struct_type)
        for rows in ([none] * 50, [none] * 25 + [row] * 25)
    )
    drift = _measure_drift(before, after, LATENESS)
    assert (drift["delay_days_max"].level, drift["delay_days_p95"].level) == ("large", "none")
    assert _measure_drift(after, before, LATENESS)["delay_days_max"].level == "large"


def test_drift_of_a_report(report):
    assert report.drift.keys() == {"orders", "revenue"}
    assert report.drift["revenue"].level == "large"


def test_the_report_for_a_person(report, capsys):
    table = as_table(report)
    Output().print_table(table)
    shown = capsys.readouterr().out
    lines = [re.sub(r" {2,}", " | ", line.strip()) for line in shown.splitlines()]
    assert lines[0] == "fact_daily_orders: 3 identical, 3 changed, 1 added, 2 missing"
    assert lines[2:4] == ["2024-01-01...2024-01-02 | identical | 3", "2024-01-09"]
    assert lines[4].startswith("2024-01-03 | changed | 8 -> 13 | rows +5, orders +17, ")
    markdown = table.to_markdown()
    assert Report.from_json(Report(tables=(table,)).to_json()).tables == (table,)
    assert "| 2024-01-01...2024-01-02, 2024-01-09 | identical | 3 |  |  |" in markdown
    for text in (lines[0], "| 2024-01-05 | changed | 1 -> 1 | revenue -20.50 | "):
        assert text in markdown
    for text in (
        "changed 2024-01-03 | customer_id=c2 orders 1 -> 2",
        "added 2024-01-03 | customer_id=new0 orders=1 revenue=1000.00",
        "removed 2024-01-04 | customer_id=gone orders=1 revenue=10.00",
    ):
        assert text in lines
        assert f"    {text.replace(' | ', '  ')}" in markdown.splitlines()


def test_the_report_for_a_program(report):
    result = json.loads(json.dumps(report_values([report])))["fact_daily_orders"]
    assert result["days"]["2024-01-05"] == {
        "status": "changed",
        "difference": "revenue -20.50",
        "before": {
            "version": 0,
            "rows": 1,
            "keys": 1,
            "totals": {"orders": 1, "revenue": "10.00"},
            "sha256": report.days[4].before.digest,
        },
        "after": {
            "version": 1,
            "rows": 1,
            "keys": 1,
            "totals": {"orders": 1, "revenue": "-10.50"},
            "sha256": report.days[4].after.digest,
        },
    }
    assert result["days"]["2024-01-08"] == {
        "status": "missing",
        "difference": "",
        "before": None,
        "after": None,
    }
    assert result["samples"][0]["after"]["customer_id"] == "new0"
    assert result["drift"]["revenue"]["level"] == "large"


def one_day_report(table: Table, rows: int, **totals: Any) -> TableDiff:
    """A report of one day, published with version 3."""
    content = DayContent(rows, {**table.zero_totals, **totals}, str(rows))
    return TableDiff(table, [DayDiff(day(1), (None, 3), None, content)])


def matching_ledger(report: TableDiff, **entries: int | str) -> Ledger:
    """A log whose version 2 says of the day what the report does."""
    content = report.days[0].after
    assert content
    totals = {name: str(total) for name, total in content.totals.items()}
    published = PublishedDay(content.rows, "digest", "ok", totals, entries=entries)
    record = CommitRecord(
        2,
        "run",
        None,
        "person",
        "code",
        "config",
        {},
        {day(1): published},
        frozenset(),
        CommitDetails(),
    )
    return Ledger(report.table, 5, [record])


STAGED_DAY = one_day_report(STAGED, 3, amount=Decimal("30.50"))
FACT_DAY = one_day_report(FACT, 2, orders=3, revenue=Decimal("30.50"))
RAW_DAY = one_day_report(RAW, 4, amount=Decimal("40.50"))
REJECTED_DAY = one_day_report(REJECTED, 1)
LATE_DAY = one_day_report(LATE, 1, amount=Decimal("10.00"))
LATENESS_DAY = one_day_report(LATENESS, 1)
CURRENT_DAY = one_day_report(CURRENT, 2, orders=4, revenue=Decimal("31.50"))
CORRECTED_DAY = one_day_report(CORRECTIONS, 1, orders=1, revenue=Decimal("1.00"))
ALL = [
    *(STAGED_DAY, FACT_DAY, RAW_DAY, REJECTED_DAY, LATE_DAY, LATENESS_DAY),
    *(CURRENT_DAY, CORRECTED_DAY),
]
LEDGERS = {
    STAGED.name: matching_ledger(STAGED_DAY),
    FACT.name: matching_ledger(FACT_DAY),
    RAW.name: matching_ledger(RAW_DAY, landed=5, rejected=1),
    REJECTED.name: matching_ledger(REJECTED_DAY),
    LATE.name: matching_ledger(LATE_DAY, raw=4, late=1, **{"in time": 3, "late amount": "10.00"}),
    LATENESS.name: matching_ledger(LATENESS_DAY, lines=4, late=2, beyond=1, rejected=1),
    CURRENT.name: matching_ledger(CURRENT_DAY),
    CORRECTIONS.name: matching_ledger(
        CORRECTED_DAY,
        orders=3,
        revenue="30.50",
        **{"current orders": 4, "current revenue": "31.50"},
    ),
}


def test_layers_that_agree():
    assert cross_table_mismatches(ALL, LEDGERS) == []
    assert cross_table_mismatches([], LEDGERS) == []


@pytest.mark.parametrize(
    ("report", "entries", "said"),
    [
        (
            one_day_report(FACT, 2, orders=4, revenue=Decimal("1234.50")),
            {},
            [
                "stg_orders has 3 rows, but fact_daily_orders has 4 orders",
                "stg_orders has amount 30.50, but fact_daily_orders has revenue 1,234.50",
                "fact_daily_orders has 4 orders, but fact_order_corrections was made of 3",
                "fact_daily_orders has revenue 1,234.50, but fact_order_corrections was made "
                "of 30.50",
            ],
        ),
        (
            one_day_report(CURRENT, 2, orders=5, revenue=Decimal("31.50")),
            {},
            ["fact_daily_orders_current has 5 orders, but fact_order_corrections was made of 4"],
        ),
        (
            one_day_report(RAW, 5),
            {"rejected": 1},
            [
                "raw_orders has 5 rows, but late_orders was made of 4",
                "raw_orders has 5 rows, but arrival_lateness was made of 4",
            ],
        ),
        (
            REJECTED_DAY,
            {},
            [],
        ),
        (
            one_day_report(REJECTED, 0),
            {},
            [
                "raw_orders_rejected has 0 rows, but raw_orders was read with 1 rejected",
                "raw_orders_rejected has 0 rows, but arrival_lateness was made of 1",
            ],
        ),
        (
            LATE_DAY,
            {"raw": 4, "late": 2},
            ["late_orders found 2 late, but arrival_lateness found 1"],
        ),
    ],
)
def test_layers_that_do_not_agree(report, entries, said):
    name = report.table.name
    reports = [report if r.table.name == name else r for r in ALL]
    messages = cross_table_mismatches(
        reports, {**LEDGERS, name: matching_ledger(report, **entries)}
    )
    assert messages == sorted(f"2024-01-01: {text}" for text in said)


def test_a_day_is_held_against_its_own_commit():
    changed = one_day_report(STAGED, 2, amount=Decimal("30.00"))
    assert cross_table_mismatches([changed], LEDGERS) == [
        "2024-01-01: stg_orders has amount 30.00, but the commit that published it says 30.50",
        "2024-01-01: stg_orders has rows 2, but the commit that published it says 3",
    ]
    # What others did to the day since, its commit need not know; what comes after, no more.
    by_others = replace(
        LEDGERS[STAGED.name], external_commits=[ExternalCommit(3, "DELETE", frozenset([day(1)]))]
    )
    assert cross_table_mismatches([changed], {STAGED.name: by_others}) == []
    later = replace(
        LEDGERS[STAGED.name], external_commits=[ExternalCommit(4, "DELETE", frozenset([day(1)]))]
    )
    assert len(cross_table_mismatches([changed], {STAGED.name: later})) == 2


def test_a_day_that_is_not_published_disagrees_with_nothing():
    missing = TableDiff(FACT, [DayDiff(day(1), (3, None), FACT_DAY.days[0].after, None)])
    assert cross_table_mismatches([STAGED_DAY, missing], LEDGERS) == []


def first_day_record(
    table: Table, version: int, *, inputs: Mapping[str, int], rows: int, **more: Any
) -> CommitRecord:
    """A commit of the first day, with totals; `entries` are what it recorded of its inputs."""
    entries = more.pop("entries", {})
    totals = {name: str(zero) for name, zero in table.zero_totals.items()} | more
    published_days = {
        day(1): PublishedDay(rows, f"digest {version}", "ok", totals, entries=entries)
    }
    run = f"run {table.name} {version}"
    return CommitRecord(
        version,
        run,
        None,
        "person",
        "code",
        "config",
        inputs,
        published_days,
        frozenset(),
        CommitDetails(),
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (2, []),
        (
            4,
            [
                "2024-01-01: stg_orders has 5 rows, but fact_daily_orders has 3 orders",
                "2024-01-01: stg_orders has amount 50.00, but fact_daily_orders has revenue 30.50",
            ],
        ),
    ],
)
@pytest.mark.parametrize("looked_at", ["both", "facts"])
def test_days_are_compared_as_of_the_versions_that_they_were_made_of(named, said, looked_at):
    """Another run has staged the day again in between; the newest of all is no measure."""
    staged = [
        first_day_record(STAGED, 2, inputs={}, rows=3, amount="30.50"),
        first_day_record(STAGED, 4, inputs={}, rows=5, amount="50.00"),
    ]
    arguments = {"inputs": {STAGED.name: named}, "rows": 2}
    fact = first_day_record(FACT, 2, orders="3", revenue="30.50", **arguments)
    ledgers = {STAGED.name: Ledger(STAGED, 5, staged), FACT.name: Ledger(FACT, 3, [fact])}
    totals = {"amount": Decimal("50.00")}
    newest = TableDiff(STAGED, [DayDiff(day(1), (3, 5), None, DayContent(5, totals, "x"))])
    reports = [newest, FACT_DAY] if looked_at == "both" else [FACT_DAY]
    assert cross_table_mismatches(reports, ledgers) == said


def test_tables_that_are_made_side_by_side_are_compared_if_made_of_the_same():
    late = first_day_record(LATE, 2, inputs={RAW.name: 2}, rows=1, entries={"late": 1})
    lateness = first_day_record(LATENESS, 2, inputs={RAW.name: 3}, rows=1, entries={"beyond": 2})
    raw = [first_day_record(RAW, version, inputs={}, rows=4) for version in (2, 3)]
    empty_ledgers = {name: Ledger(table) for name, table in TABLES.items()}
    empty_ledgers |= {
        LATE.name: Ledger(LATE, 3, [late]),
        LATENESS.name: Ledger(LATENESS, 3, [lateness]),
    }
    reports = [one_day_report(LATE, 1), one_day_report(LATENESS, 1)]
    assert cross_table_mismatches(reports, {**empty_ledgers, RAW.name: Ledger(RAW, 3, raw)}) == []
    # A commit of the log that did not write the day makes no other input of it.
    (message,) = cross_table_mismatches(
        reports, {**empty_ledgers, RAW.name: Ledger(RAW, 3, raw[:1])}
    )
    assert message == "2024-01-01: late_orders found 1 late, but arrival_lateness found 2"


def test_a_backfill(pipeline, spark):
    """What the assets publish agrees, also where a layer has not come to follow another yet."""
    pipeline.land(1, [order("a", 1), order("b", 1, "2.50", None), "{broken"])
    pipeline.land(2, [order("c", 2)])
    names = (STAGED.name, FACT.name)
    pipeline.run(1, 2, [RAW.name, *names])
    first = {name: pipeline.log(name).version() for name in names}
    pipeline.land(1, [order("d", 1, "-1.00")], "part-1.jsonl")
    pipeline.run(1, 2, [RAW.name, STAGED.name])
    ledgers = {name: pipeline.io_manager.ledger(TABLES[name]) for name in names}
    reports = {
        name: diff_table(
            spark,
            pipeline.settings.table(name),
            TABLES[name],
            {day(n): (first[name], ledgers[name].version) for n in (1, 2)},
        )
        for name in names
    }
    changed = {
        name: [d.day.day for d in r.days_with(DayChangeKind.CHANGED)] for name, r in reports.items()
    }
    assert changed == {name: [1] if name == STAGED.name else [] for name in names}
    (corrected,) = reports[STAGED.name].days_with(DayChangeKind.CHANGED)
    assert corrected.difference_text == "rows +1, amount -1.00"
    assert [s.after["order_id"] for s in reports[STAGED.name].samples] == ["d"]
    assert cross_table_mismatches(reports.values(), ledgers) == []
    for name, table_report in reports.items():
        shas = {d.day: d.after.digest for d in table_report.days}
        url = pipeline.settings.table(name)
        assert sha256_of_days(url, ledgers[name].version, list(shas)) == shas
