"""The audit: what is measured by Spark, what is judged from numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from backfill_assets.audit import verdicts
from backfill_assets.audit.verdicts import (
    DayMetrics,
    Expectation,
    RefusedError,
    Severity,
    check_frame_window,
    empty_day,
    judge_days,
    measure_days,
    row_hash,
)
from backfill_assets.calendar.partitions import Window
from backfill_assets.orders.tables import FACT, STAGED
from backfill_assets_tests.helpers import row_digest
from backfill_assets_tests.helpers.pipeline import day

ONE_DAY = Window(day(10), day(11))


def make_facts(spark, rows):
    return spark.createDataFrame(rows, FACT.struct_type)


def make_measured(rows: int, **changes) -> DayMetrics:
    return replace(empty_day(STAGED), rows=rows, **changes)


def judge_check(table, measurement, check, *, expectation=None, before=None, window=ONE_DAY):
    verdicts = judge_days(
        table, window, {day(10): measurement}, {day(10): expectation or Expectation()}, before or {}
    )
    return next(f for f in verdicts[0].findings if f.check == check)


@pytest.fixture(scope="module")
def rows():
    return [
        (day(1), "a", 1, Decimal("1.10")),
        (day(1), "b", 2, Decimal("2.20")),
        (day(2), "a", 3, Decimal("-3.30")),
    ]


def test_digest_knows_content_not_order(spark, rows):
    digests = {d: m.digest for d, m in measure_days(make_facts(spark, rows), FACT).items()}
    shuffled = make_facts(spark, rows[::-1]).repartition(3)
    assert {d: m.digest for d, m in measure_days(shuffled, FACT).items()} == digests
    changed = [rows[0], (*rows[1][:2], 3, rows[1][3]), rows[2]]
    other = {d: m.digest for d, m in measure_days(make_facts(spark, changed), FACT).items()}
    assert other[day(1)] != digests[day(1)]
    assert other[day(2)] == digests[day(2)]


NESTED = {
    "array<int>": [
        "array()",
        "array(null)",
        "array(null, null)",
        "array(null, 1)",
        "array(1, null)",
    ],
    "array<array<int>>": [
        "array(array(1, 2), array(3))",
        "array(array(1), array(2, 3))",
        "array(array(1, 2, 3))",
        "array(array(1, 2, 3), array())",
        "array(array(1, 2, 3), null)",
    ],
    "struct<a:int,b:int>": [
        "named_struct('a', 1, 'b', null)",
        "named_struct('a', null, 'b', 1)",
        "named_struct('a', null, 'b', null)",
        "null",
    ],
    "map<string,int>": ["map()", "map('a', null)", "map('a', 1)", "map('b', 1)", "null"],
    "array<struct<a:string,b:string>>": [
        "array(named_struct('a', 'x', 'b', null))",
        "array(named_struct('a', null, 'b', 'x'))",
    ],
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_values_that_differ_have_hashes_that_differ(spark, kind):
    values = ", ".join(f"(CAST({value} AS {kind}))" for value in NESTED[kind])
    frame = spark.sql(f"SELECT col1 AS value FROM VALUES {values}")
    hashes = [row[0] for row in frame.selectExpr(row_hash(frame.schema)).collect()]
    assert len({*hashes}) == len(NESTED[kind])


@pytest.mark.parametrize(
    ("value", "equal_value"),
    [
        ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"),
        ("double('NaN')", "-double('NaN')"),
        ("0.0D", "-0.0D"),
        ("array(0.0D, double('NaN'))", "array(-0.0D, -double('NaN'))"),
    ],
)
def test_values_that_are_equal_have_one_hash(spark, value, equal_value):
    frame = spark.sql(f"SELECT {value} AS value UNION ALL SELECT {equal_value}")
    first, second = (row[0] for row in frame.selectExpr(row_hash(frame.schema)).collect())
    assert first == second


def test_the_digest_is_what_plain_python_computes_of_all_types(spark, tmp_path):
    """By the definition of Spark's hash: a release that hashes otherwise makes all days differ."""
    frame = spark.sql(
        """
        SELECT DATE'2024-01-01' AS day, id AS a_long, CAST(-id AS INT) AS an_int,
            CAST(id AS SMALLINT) AS a_short, id % 2 = 0 AS flag, id / 3 - 1 AS a_double,
            CAST(id / 7 AS FLOAT) AS a_float,
            IF(id = 1, NULL, repeat('é', CAST(id AS INT))) AS text,
            CAST(repeat('b', CAST(id AS INT)) AS BINARY) AS bytes,
            CAST(id - 2.55 AS DECIMAL(18, 2)) AS amount,
            CAST(id * -1e20 AS DECIMAL(38, 5)) AS large,
            TIMESTAMP'2024-01-01 00:00:00.000001' - make_interval(0, 0, 0, id * 40000) AS at,
            CAST(TIMESTAMP'1969-12-31 23:59:59' AS TIMESTAMP_NTZ) AS local_time,
            IF(id = 2, NULL, struct(id AS a, IF(id = 3, NULL, 'x') AS b)) AS pair,
            array(id, NULL, array_size(array(id))) AS numbers,
            CAST(array() AS ARRAY<INT>) AS nothing,
            IF(id = 3, NULL, map(concat('k', id), NULL, 'z', array(struct(id AS n)))) AS entries
        FROM range(4)
        UNION ALL
        SELECT DATE'2024-01-02', 0, 0, 0, true, -0.0D, FLOAT('NaN'), '', X'', 0, 0,
            TIMESTAMP'2024-01-01', TIMESTAMP_NTZ'2024-01-01', NULL, NULL, NULL, NULL
        """
    )
    digests = verdicts.digests_by_day(frame, "day")
    assert len(digests) == 2
    frame.write.parquet(str(tmp_path / "rows"))
    assert row_digest.digests_by_day(pq.read_table(tmp_path / "rows"), "day") == digests


def test_digest_sees_a_row_that_came_twice(spark):
    at = datetime(2024, 1, 1, tzinfo=timezone.utc)
    order = (day(1), "o", None, at, Decimal("1.00"), at, day(1))
    twice, thrice = (
        measure_days(spark.createDataFrame([order] * n, STAGED.struct_type), STAGED)[day(1)]
        for n in (2, 3)
    )
    assert twice.digest != thrice.digest
    assert (twice.duplicate_keys, thrice.duplicate_keys) == (1, 2)
    assert twice.nulls["customer_id"] == 2


def test_hash_knows_where_a_null_is(spark):
    frame = spark.createDataFrame([("x", None), (None, "x")], "a string, b string")
    first, second = (row[0] for row in frame.selectExpr(row_hash(frame.schema)).collect())
    assert first != second


def test_measure_counts_rows_keys_nulls_and_totals(spark, rows):
    measurements = measure_days(make_facts(spark, [*rows, rows[0]]), FACT)
    assert measurements[day(1)].rows == 3
    assert measurements[day(1)].duplicate_keys == 1
    assert str(measurements[day(1)].totals["revenue"]) == "4.40"
    assert measurements[day(2)].totals["orders"] == 3


def test_a_frame_without_rows_has_no_days(spark):
    assert measure_days(make_facts(spark, []), FACT) == {}


@pytest.mark.parametrize(
    ("rows", "before", "severity"),
    [
        (100, [100] * 7, Severity.OK),
        (10, [100] * 7, Severity.WARN),
        (0, [100] * 7, Severity.WARN),
        (1000, [100] * 7, Severity.WARN),
        (10, [100] * 2, Severity.OK),  # too few neighbours to compare with
        (10, [], Severity.OK),
    ],
)
def test_row_count_against_the_days_before(rows, before, severity):
    known = {day(9) - timedelta(days=n): make_measured(c) for n, c in enumerate(before)}
    assert judge_check(STAGED, make_measured(rows), "row_count", before=known).severity is severity


def test_days_of_the_same_run_are_neighbours():
    window = Window(day(1), day(11))
    measurements = {d: make_measured(100) for d in window} | {day(10): make_measured(5)}
    verdicts = judge_days(STAGED, window, measurements, {}, {})
    assert [v.worst_severity for v in verdicts] == [Severity.OK] * 9 + [Severity.WARN]


@pytest.mark.parametrize(
    ("column", "nulls", "before", "severity"),
    [
        ("customer_id", 10, 0.1, Severity.OK),
        ("customer_id", 30, 0.2, Severity.WARN),  # over the usual share
        ("customer_id", 22, 0.0, Severity.WARN),  # a spike, though below the usual share
        ("customer_id", 95, 0.9, Severity.ERROR),
        ("order_id", 1, 0.0, Severity.ERROR),
    ],
)
def test_null_rates(column, nulls, before, severity):
    zero = dict.fromkeys(STAGED.columns, 0)
    known = {
        day(9) - timedelta(days=n): make_measured(
            100, nulls={**zero, "customer_id": int(100 * before)}
        )
        for n in range(7)
    }
    measurement = make_measured(100, nulls={**zero, column: nulls})
    result = judge_check(STAGED, measurement, "nulls", before=known)
    assert result.severity is severity
    assert severity is Severity.OK or column in result.text


def test_unique_key():
    result = judge_check(STAGED, make_measured(5, duplicate_keys=2), "unique_key")
    assert result.severity is Severity.ERROR
    assert "order_id" in result.text


@pytest.mark.parametrize(
    ("expectation", "severity"),
    [
        (Expectation(rows=5), Severity.OK),
        (Expectation(rows=6), Severity.ERROR),
        (Expectation(rows=5, totals={"amount": 0}), Severity.OK),
        (Expectation(rows=5, totals={"amount": 1}), Severity.ERROR),
        (Expectation(rows=5, problems=["file x cannot be read"]), Severity.ERROR),
        (Expectation(rows=5, warnings=["mind the gap"]), Severity.WARN),
        (Expectation(), Severity.OK),
    ],
)
def test_conservation(expectation, severity):
    assert (
        judge_check(STAGED, make_measured(5), "conservation", expectation=expectation).severity
        is severity
    )


@pytest.mark.parametrize(
    ("found", "expectations", "said"),
    [
        ({None: make_measured(2)}, {}, "2 row(s) have no event_date"),
        (
            {day(10): make_measured(1), day(12): make_measured(3)},
            {},
            "3 row(s) have a event_date outside",
        ),
        ({}, {day(10): Expectation(rows=7)}, "no rows at all, but its inputs say that 7 are due"),
    ],
)
def test_refusals_name_table_days_and_cause(found, expectations, said):
    with pytest.raises(RefusedError) as error:
        check_frame_window(found, STAGED, ONE_DAY, expectations)
    for part in ("stg_orders", "2024-01-10", "the table is as it was", said):
        assert part in str(error.value)


def test_a_day_that_is_truly_empty_is_fine():
    check_frame_window({}, STAGED, ONE_DAY, {day(10): Expectation(rows=0)})
    verdict = judge_days(STAGED, ONE_DAY, {}, {day(10): Expectation(rows=0)}, {})[0]
    assert verdict.may_publish
    assert verdict.metrics.rows == 0
