"""The audit: what is measured by Spark, what is judged from numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pandera.pyspark as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandera.pyspark import Field

from backfill_assets import forbids_rows
from backfill_assets.audit import verdicts
from backfill_assets.audit.verdicts import (
    DayContent,
    DayMetrics,
    Expectation,
    Finding,
    RefusedError,
    Severity,
    Verdict,
    Violation,
    _day_metrics,
    check_frame_window,
    describe_difference,
    differing_figures,
    digest_text,
    empty_day,
    have_same_rows,
    judge_days,
    measure_days,
    row_hash,
    rows_differ,
    sum_digests,
)
from backfill_assets.calendar.partitions import Window
from backfill_assets.orders.tables import FACT, ORDER_LINES, RAW, STAGED
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.city import district_day, district_month
from backfill_assets_tests.helpers import row_digest
from backfill_assets_tests.helpers.pipeline import day

ONE_DAY = Window(day(10), day(11))
NONE_NULL = dict.fromkeys(STAGED.columns, 0)


class Visit(pa.DataFrameModel):
    """A model whose table has a check of each kind."""

    run_date: T.DateType = Field(description="Day.")
    site: T.StringType = Field(description="Site.")
    number: T.LongType = Field(description="Number.")


VISITS = Table(
    "visits",
    Visit,
    partition="run_date",
    key=["site", "number"],
    notices={"silence": "Something came."},
    forbidden=[forbids_rows("overlap", lambda rows: rows, "No overlap.")],
)


def make_facts(spark, rows):
    return spark.createDataFrame(rows, FACT.struct_type)


def make_measured(rows: int, **changes) -> DayMetrics:
    return replace(empty_day(STAGED), rows=rows, keys=rows, **changes)


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
    _, customer, orders, revenue = rows[1]
    for values in (
        ("z", orders, revenue),
        (customer, 3, revenue),
        (customer, orders, Decimal("2.21")),
    ):
        changed = [rows[0], (day(1), *values), rows[2]]
        other = {d: m.digest for d, m in measure_days(make_facts(spark, changed), FACT).items()}
        assert other[day(1)] != digests[day(1)], values
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
    order, other = ((day(1), name, None, at, Decimal("1.00"), at, day(1)) for name in "op")

    def measure(*rows: tuple) -> DayMetrics:
        return measure_days(spark.createDataFrame(rows, STAGED.struct_type), STAGED)[day(1)]

    twice, thrice = measure(order, order), measure(order, order, order)
    assert twice.digest != thrice.digest
    assert measure(order, order, other).digest != measure(order, other, other).digest
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
    ("rows", "before", "usual"),
    [
        (100, [100] * 7, None),
        (20, [100] * 7, None),
        (19, [100] * 7, "100"),
        (0, [100] * 7, "100"),
        (500, [100] * 7, None),
        (501, [100] * 7, "100"),
        # A day that was far from the others decides nothing.
        (19, [100, 0, 9000], "100"),
        (1, [20, 21, 21, 22], "21"),
        (1, [20, 21, 22, 22], "21.5"),
        # Too few days to compare with.
        (10, [100] * 2, None),
        (10, [], None),
        # Too few rows in all of them.
        (1, [19] * 7, None),
        (1, [20] * 7, "20"),
        (19, [1] * 7, None),
        (20, [1] * 7, "1"),
        # A table that usually has no rows has no usual number of them.
        (1000, [0] * 7, None),
        # Only the last days are looked at.
        (100, [100] * 7 + [9000] * 20, None),
    ],
)
def test_row_count_is_compared_with_the_median_of_the_week_before(rows, before, usual):
    known = {day(9) - timedelta(days=n): make_measured(c) for n, c in enumerate(before)}
    text = f"{rows} rows"
    if usual:
        text += f", where the {len(before)} days before it have {usual} (median)"
    found = judge_check(STAGED, make_measured(rows), "row_count", before=known)
    assert found == Finding("row_count", Severity.WARN if usual else Severity.OK, text)


def test_days_of_the_same_run_are_neighbours():
    window = Window(day(1), day(11))
    measurements = {d: make_measured(100) for d in window} | {day(10): make_measured(5)}
    verdicts = judge_days(STAGED, window, measurements, {}, {})
    assert [v.worst_severity for v in verdicts] == [Severity.OK] * 9 + [Severity.WARN]


def test_a_day_of_the_same_run_takes_the_place_of_what_was_published():
    window = Window(day(7), day(11))
    published = {d: make_measured(1000) for d in window}
    *_, last = judge_days(STAGED, window, {d: make_measured(100) for d in window}, {}, published)
    assert last.findings[0] == Finding("row_count", Severity.OK, "100 rows")


def test_a_day_on_which_nothing_is_expected_is_compared_with_no_other():
    """And no other with it: the 7th is a Sunday, and a source delivers on weekdays."""
    source = replace(ORDER_LINES, arrives_on="mon-fri")
    rows = {n: 0 if day(n).weekday() > 4 else 100 for n in range(1, 16)}
    window = Window(day(1), day(16))
    measured = {day(n): make_measured(count) for n, count in rows.items()}

    def warned_days(table: Table) -> list[int]:
        verdicts = judge_days(table, window, measured, {}, {})
        return [v.day.day for v in verdicts if v.findings[0].severity is Severity.WARN]

    assert warned_days(STAGED) == [6, 7, 13, 14]
    assert warned_days(source.staged) == []
    # Where lines come the next day, those of a Friday come on Monday: each day has rows.
    late = replace(source, arrives_after=1)
    assert warned_days(late.staged) == [6, 7, 13, 14]
    assert not source.raw.expects_rows(day(7))
    assert not late.raw.expects_rows(day(7))
    assert district_day.expects_rows(day(6))
    assert not district_day.expects_rows(day(7))
    assert district_month.expects_rows(day(1))


@pytest.mark.parametrize(
    ("rows", "nulls", "before", "severity", "said"),
    [
        (100, 10, [0.1] * 7, Severity.OK, ""),
        # The bounds of the model are the last shares that are allowed.
        (100, 25, [0.2] * 7, Severity.OK, ""),
        (100, 26, [0.2] * 7, Severity.WARN, "26.0% (usual 25%)"),
        (100, 90, [0.9] * 7, Severity.WARN, "90.0% (usual 25%)"),
        (100, 91, [0.9] * 7, Severity.ERROR, "91.0% (allowed 90%)"),
        # A spike, though below the usual share.
        (100, 20, [0.0] * 7, Severity.OK, ""),
        (100, 21, [0.0] * 7, Severity.WARN, "21.0%, before in 0.0%"),
        (1000, 215, [0.01, 0.01, 0.24], Severity.WARN, "21.5%, before in 1.0%"),
        # Too few days to compare with; one without rows has no share.
        (100, 21, [0.0] * 2, Severity.OK, ""),
        (100, 21, [0.0, 0.0, None], Severity.OK, ""),
        (100, 21, [0.1, 0.1, 0.1, None, None, None, None], Severity.OK, ""),
        # Of a few rows no share is judged.
        (19, 19, [0.0] * 7, Severity.OK, ""),
        (20, 20, [0.0] * 7, Severity.ERROR, "100.0% (allowed 90%)"),
    ],
)
def test_the_share_of_nulls_is_bounded_by_the_model_and_by_the_days_before(
    rows, nulls, before, severity, said
):
    known = {
        day(9) - timedelta(days=n): empty_day(STAGED)
        if share is None
        else make_measured(100, nulls={**NONE_NULL, "customer_id": round(100 * share)})
        for n, share in enumerate(before)
    }
    measurement = make_measured(rows, nulls={**NONE_NULL, "customer_id": nulls})
    text = f"customer_id is null in {said}" if said else "no unexpected nulls"
    found = judge_check(STAGED, measurement, "nulls", before=known)
    assert found == Finding("nulls", severity, text)


@pytest.mark.parametrize(
    ("rows", "nulls", "text"),
    [
        (1, {"order_id": 1}, "1 null(s) in order_id, which is required"),
        (19, {"customer_id": 19, "amount": 2}, "2 null(s) in amount, which is required"),
        (
            100,
            {"order_id": 1, "customer_id": 26, "order_ts": 3},
            "1 null(s) in order_id, which is required; customer_id is null in 26.0% (usual 25%); "
            "3 null(s) in order_ts, which is required",
        ),
    ],
)
def test_a_required_column_has_no_null_in_however_few_rows(rows, nulls, text):
    measurement = make_measured(rows, nulls={**NONE_NULL, **nulls})
    assert judge_check(STAGED, measurement, "nulls") == Finding("nulls", Severity.ERROR, text)


def test_the_share_of_nulls_of_a_day_without_rows_is_zero():
    assert empty_day(STAGED).null_rate("customer_id") == 0
    assert make_measured(4, nulls={"customer_id": 1}).null_rate("customer_id") == 0.25


@pytest.mark.parametrize(
    ("duplicates", "finding"),
    [
        (0, (Severity.OK, "5 distinct keys")),
        (2, (Severity.ERROR, "2 row(s) repeat a (site, number) of the day")),
    ],
)
def test_a_key_comes_once_a_day(duplicates, finding):
    measurement = replace(empty_day(VISITS), rows=5, keys=5 - duplicates)
    assert judge_check(VISITS, measurement, "unique_key") == Finding("unique_key", *finding)


@pytest.mark.parametrize(
    ("expectation", "finding"),
    [
        (Expectation(), (Severity.OK, "nothing due")),
        (Expectation(rows=5), (Severity.OK, "nothing due")),
        (Expectation({"came": 6, "gone": 1}, rows=5), (Severity.OK, "came 6, gone 1")),
        (Expectation({"came": 6}, rows=6), (Severity.ERROR, "5 rows where 6 are due (came 6)")),
        (Expectation(rows=0), (Severity.ERROR, "5 rows where 0 are due")),
        (Expectation(rows=5, totals={"amount": 0}), (Severity.OK, "nothing due")),
        (
            Expectation(rows=5, totals={"amount": Decimal("1.50")}),
            (Severity.ERROR, "amount adds up to 0.00 where 1.50 is due"),
        ),
        (
            Expectation(rows=5, problems=["file x cannot be read"]),
            (Severity.ERROR, "file x cannot be read"),
        ),
        (Expectation({"came": 5}, 5, warnings=["mind"]), (Severity.WARN, "mind (came 5)")),
        (
            Expectation({"came": 4}, 4, {"amount": 1}, ["p", "q"], ["mind"]),
            (
                Severity.ERROR,
                "p; q; 5 rows where 4 are due; amount adds up to 0.00 where 1 is due; mind"
                " (came 4)",
            ),
        ),
    ],
)
def test_a_day_has_what_its_inputs_say(expectation, finding):
    found = judge_check(STAGED, make_measured(5), "conservation", expectation=expectation)
    assert found == Finding("conservation", *finding)


def test_a_row_that_breaks_a_rule_holds_its_day_back():
    measurement = make_measured(5, broken={"amount > 0": 2, "order_id > ''": 1})
    assert judge_check(STAGED, measurement, "conservation") == Finding(
        "conservation",
        Severity.ERROR,
        "2 row(s) break the rule amount > 0; 1 row(s) break the rule order_id > ''",
    )


def test_a_day_gets_one_finding_of_each_check_of_its_table():
    (verdict,) = judge_days(VISITS, ONE_DAY, {}, {}, {})
    assert verdict == Verdict(
        day(10),
        empty_day(VISITS),
        Expectation(),
        [
            Finding("row_count", Severity.OK, "0 rows"),
            Finding("nulls", Severity.OK, "no unexpected nulls"),
            Finding("conservation", Severity.OK, "nothing due"),
            Finding("unique_key", Severity.OK, "0 distinct keys"),
            Finding("overlap", Severity.OK, "no such row"),
            Finding("silence", Severity.OK, "nothing"),
        ],
    )
    assert verdict.may_publish
    assert {finding.check for finding in verdict.findings} == VISITS.check_descriptions.keys()
    # A table without a key has no such check.
    (of_log,) = judge_days(RAW, ONE_DAY, {}, {}, {})
    assert "unique_key" not in {finding.check for finding in of_log.findings}


def test_a_notice_says_what_the_inputs_say():
    notices = {"silence": (Severity.ALERT, "nothing since noon")}
    found = judge_check(
        VISITS, empty_day(VISITS), "silence", expectation=Expectation(notices=notices)
    )
    assert found == Finding("silence", Severity.ALERT, "nothing since noon")


def test_forbidden_rows_hold_their_day_back_and_are_named():
    measurement = replace(empty_day(VISITS), rows=2, violations={"overlap": Violation(1, ("(a)",))})
    assert judge_check(VISITS, measurement, "overlap") == Finding(
        "overlap", Severity.ERROR, "1 row(s) that may not be there: (a)"
    )


@pytest.mark.parametrize(
    ("violation", "said"),
    [
        (Violation(3), "3 row(s) that may not be there"),
        (Violation(1, ("(a)",)), "1 row(s) that may not be there: (a)"),
        (Violation(2, ("(a)", "(b)")), "2 row(s) that may not be there: (a), (b)"),
        (Violation(2, ("(a)",)), "2 row(s) that may not be there: (a), ..."),
    ],
)
def test_forbidden_rows_are_shown_by_a_few_keys(violation, said):
    assert str(violation) == said


@pytest.mark.parametrize(
    ("severities", "worst", "reasons"),
    [
        ([Severity.OK, Severity.OK], Severity.OK, ""),
        ([Severity.OK, Severity.WARN, Severity.OK], Severity.WARN, ""),
        ([Severity.ALERT, Severity.WARN], Severity.ALERT, ""),
        ([Severity.ERROR, Severity.ALERT], Severity.ERROR, "check 0: text 0"),
        (
            [Severity.ERROR, Severity.WARN, Severity.ERROR],
            Severity.ERROR,
            "check 0: text 0; check 2: text 2",
        ),
    ],
)
def test_only_an_error_holds_a_day_back(severities, worst, reasons):
    findings = [Finding(f"check {n}", s, f"text {n}") for n, s in enumerate(severities)]
    verdict = Verdict(day(1), empty_day(STAGED), Expectation(), findings)
    assert verdict.worst_severity is worst
    assert verdict.may_publish == (worst is not Severity.ERROR)
    assert verdict.failure_reasons == reasons


def test_a_finding_is_one_line_whatever_a_file_is_called():
    assert Finding("nulls", Severity.WARN, "a\nb\x1b[31m").text == "a\\nb\\x1b[31m"


def test_a_problem_is_added_to_those_there_are():
    expectation = Expectation({"came": 1}, 1, problems=("first",), warnings=["mind"])
    assert expectation.with_problem("second") == replace(expectation, problems=["first", "second"])
    assert expectation.problems == ("first",)


@pytest.mark.parametrize(
    ("found", "expectations", "said"),
    [
        (
            {None: make_measured(2), day(12): make_measured(3)},
            {},
            "2 row(s) have no event_date.",
        ),
        (
            {
                day(10): make_measured(1),
                day(20): make_measured(1),
                day(12): make_measured(2),
                day(13): make_measured(3),
            },
            {},
            "6 row(s) have a event_date outside the window: 2024-01-12...2024-01-13, 2024-01-20.",
        ),
        (
            {},
            {day(10): Expectation(rows=7), day(9): Expectation(rows=1)},
            "the frame has no rows at all, but its inputs say that 7 are due.",
        ),
        (
            {},
            {day(10): Expectation(rows=1)},
            "the frame has no rows at all, but its inputs say that 1 are due.",
        ),
    ],
)
def test_refusals_name_table_days_and_cause(found, expectations, said):
    with pytest.raises(RefusedError) as error:
        check_frame_window(found, STAGED, ONE_DAY, expectations)
    assert str(error.value) == (f"stg_orders [2024-01-10]: refused, the table is as it was: {said}")


@pytest.mark.parametrize(
    ("found", "expectations"),
    [
        ({}, {}),
        ({}, {day(10): Expectation()}),
        ({}, {day(9): Expectation(rows=1)}),
        # A day that has too few rows is held back by itself, see `conservation`.
        ({day(10): make_measured(1)}, {day(10): Expectation(rows=7)}),
    ],
)
def test_a_frame_with_only_days_of_the_window_is_judged_day_by_day(found, expectations):
    check_frame_window(found, STAGED, ONE_DAY, expectations)


def test_a_day_that_is_truly_empty_is_fine():
    check_frame_window({}, STAGED, ONE_DAY, {day(10): Expectation(rows=0)})
    verdict = judge_days(STAGED, ONE_DAY, {}, {day(10): Expectation(rows=0)}, {})[0]
    assert verdict.may_publish
    assert verdict.metrics == DayMetrics(
        rows=0,
        nulls=NONE_NULL,
        keys=0,
        totals={"amount": Decimal("0.00")},
        digest="0-0-0",
    )


def test_the_columns_of_the_aggregation_are_the_numbers_of_a_day():
    row = {
        "rows": 5,
        "keys": 3,
        "low": 255,
        "high": 16,
        **{f"null_{name}": n for n, name in enumerate(STAGED.columns)},
        "total_amount": Decimal("1.50"),
        "broken_0": 0,
        "broken_1": 2,
        "kind_0": 0,
        "kind_1": 4,
    }
    measured = DayMetrics(
        rows=5,
        nulls={name: n for n, name in enumerate(STAGED.columns)},
        keys=3,
        totals={"amount": Decimal("1.50")},
        digest="5-10-ff",
        broken={"amount > 0": 2},
        kinds={"open": 0, "done": 4},
    )
    rules, kinds = ["order_id > ''", "amount > 0"], ["open", "done"]
    assert _day_metrics(row, STAGED, rules, kinds) == measured
    # The sum of nothing is null in SQL.
    nothing = {**row, "total_amount": None}
    assert _day_metrics(nothing, STAGED, rules, kinds) == replace(
        measured, totals={"amount": Decimal("0.00")}
    )


# --- digests --------------------------------------------------------------------------------------

NUMBER, TEXT = T.LongType(), T.StringType()
PLAIN = T.StructType().add("a", NUMBER).add("b `c`", TEXT)


@pytest.mark.parametrize(
    ("struct", "sql"),
    [
        (PLAIN, "xxhash64(`a`, `a` IS NULL, `b ``c```, `b ``c``` IS NULL)"),
        (
            T.StructType().add("a", T.ArrayType(NUMBER)),
            "xxhash64(transform(`a`, element0 -> xxhash64(element0, element0 IS NULL)),"
            " `a` IS NULL)",
        ),
        (
            T.StructType().add("a", T.ArrayType(T.ArrayType(NUMBER))),
            "xxhash64(transform(`a`, element0 -> xxhash64("
            "transform(element0, element1 -> xxhash64(element1, element1 IS NULL)),"
            " element0 IS NULL)), `a` IS NULL)",
        ),
        (
            T.StructType().add("a", T.MapType(TEXT, T.ArrayType(NUMBER))),
            "xxhash64(array_sort(transform(map_entries(`a`), element0 -> xxhash64(array("
            "xxhash64(element0.`key`, element0.`key` IS NULL), xxhash64("
            "transform(element0.`value`, element1 -> xxhash64(element1, element1 IS NULL)),"
            " element0.`value` IS NULL)), element0 IS NULL))), `a` IS NULL)",
        ),
        (
            T.StructType().add("a", T.StructType().add("b", T.ArrayType(NUMBER)).add("c", TEXT)),
            "xxhash64(array(xxhash64(transform(`a`.`b`, element0 -> xxhash64(element0, element0 IS"
            " NULL)), `a`.`b` IS NULL), xxhash64(`a`.`c`, `a`.`c` IS NULL)), `a` IS NULL)",
        ),
    ],
)
def test_rows_are_hashed_as_they_were_when_the_digests_were_recorded(struct, sql):
    """Another hash would make all published days differ from what is computed anew."""
    assert row_hash(struct) == sql


@pytest.mark.parametrize(
    ("struct", "suffix"),
    [
        (PLAIN, ""),
        (T.StructType().add("a", NUMBER).add("b", T.ArrayType(NUMBER)), "-nested"),
        (T.StructType().add("b", T.MapType(TEXT, NUMBER)).add("a", NUMBER), "-nested"),
        (T.StructType().add("b", PLAIN), "-nested"),
    ],
)
def test_a_digest_says_how_its_rows_were_hashed(struct, suffix):
    sums = {"rows": 17, "high": 4096, "low": 10}
    assert digest_text(sums, struct) == f"11-1000-a{suffix}"
    # Without rows there are no sums.
    assert digest_text({"rows": 0, "high": None, "low": None}, struct) == "0-0-0"


SUMS = st.fixed_dictionaries(
    {name: st.integers(0 if name != "rows" else 1, 2**70) for name in ("rows", "high", "low")}
)


def test_two_contents_are_compared_in_the_figures_that_both_have():
    old = DayContent(2, {"orders": 2, "gone": 1}, "2-1-1", 2)
    new = DayContent(4, {"orders": 2, "added": Decimal("0.50")}, "4-1-1", 3)
    assert differing_figures(old, new) == {"rows": (2, 4), "keys": (2, 3)}
    assert describe_difference(old, new) == "rows +2, keys +1"
    # As many keys more as rows: that is what a key is for.
    assert describe_difference(old, replace(new, keys=4)) == "rows +2"
    assert describe_difference(None, new) == "rows +4, keys +3, orders +2, added +0.50"
    assert describe_difference(old, None) == "rows -2, orders -2, gone -1"


def test_contents_with_the_same_figures_may_have_other_rows():
    content = DayContent(2, {"orders": 2}, "2-1-1")
    other, incomparable = (replace(content, digest=d) for d in ("2-1-9", "2-1-9-nested"))
    assert describe_difference(content, other) == "same counts and sums, other values"
    assert describe_difference(content, incomparable) == ""
    assert [have_same_rows(content, x) for x in (other, incomparable, None)] == [False, True, False]
    assert have_same_rows(None, None)
    assert describe_difference(None, None) == ""


@given(st.lists(SUMS, max_size=4), st.sampled_from([PLAIN, T.StructType().add("a", PLAIN)]))
def test_digests_of_days_add_up_to_the_digest_of_all_their_rows(days, struct):
    digests = [digest_text(sums, struct) for sums in days]
    together = {name: sum(sums[name] for sums in days) for name in ("rows", "high", "low")}
    # A day without rows changes nothing.
    assert sum_digests(["0-0-0", *digests, "0-0-0"]) == digest_text(together, struct)


def test_a_sum_of_digests_that_were_computed_in_two_ways_says_both():
    assert sum_digests(["1-2-3", "1-2-3-nested", "1-a-3-nested"]) == "3-e-9-nested"


@pytest.mark.parametrize(
    ("digest", "other", "differ"),
    [
        ("1-2-3", "1-2-3", False),
        ("1-2-3", "1-2-4", True),
        ("1-2-3-nested", "1-2-3-nested", False),
        ("1-2-3-nested", "1-2-4-nested", True),
        # The same rows, hashed in two ways, have two digests.
        ("1-2-3", "1-2-3-nested", False),
        ("1-2-3-nested", "1-2-4", False),
        # No rows are no rows in any way.
        ("0-0-0", "1-2-3-nested", True),
        ("1-2-3-nested", "0-0-0", True),
        ("0-0-0", "0-0-0", False),
    ],
)
def test_only_digests_that_were_computed_in_one_way_can_differ(digest, other, differ):
    assert rows_differ(digest, other) is differ
