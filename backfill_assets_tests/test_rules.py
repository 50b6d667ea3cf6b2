"""Rules of rows over several columns, and checks between rows: declared, held, and shown."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from backfill_assets import Reads, current_table, forbids_rows, no_leaks, nullable_column, table
from backfill_assets.audit.profile import find_violations
from backfill_assets.audit.verdicts import RefusedError, Violation
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets.publish.publication import audit_days
from backfill_assets.publish.types import Candidate, ComputedDays
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets_tests.helpers.invented_logs import ledger
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order
from backfill_assets_tests.helpers.publish_rows import make_plan
from backfill_assets_tests.own_tables import my_rules


class Span(pa.DataFrameModel):
    """The least and the greatest amount of a customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="Customer.")
    least: T.DecimalType(18, 2) = Field(description="The least amount.")
    most: T.DecimalType(18, 2) = Field(ge=-1000, description="The greatest amount.")
    most_orders: T.LongType = nullable_column(1.0, 1.0, "Orders of both amounts, if any.")


def same_least(rows: DataFrame) -> DataFrame:
    """Rows of customers with the same least amount."""
    same = F.count("*").over(Window.partitionBy("run_date", "least"))
    return rows.withColumn("same", same).where("same > 1")


def beyond(rows: DataFrame) -> DataFrame:
    return rows.where("most > 99")


CHECKS = [
    forbids_rows("same_least", same_least, "No two customers have the same least amount."),
    forbids_rows("beyond", beyond, "No amount is beyond 99."),
]


@table(
    Span,
    partition="run_date",
    key=["customer_id"],
    rules={"In_Order": ("most >= least", "The greatest is not below the least.")},
    checks=CHECKS,
)
def spans(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    # A customer whose name says so gets what breaks the rule.
    turned = F.col("customer_id").startswith("turned")
    least, most = F.min("amount"), F.max("amount")
    grouped = orders.groupBy(F.col("for_day").alias("run_date"), "customer_id").agg(
        least.alias("least"), most.alias("most")
    )
    return grouped.select(
        "run_date",
        "customer_id",
        F.when(turned, F.col("most")).otherwise(F.col("least")).alias("least"),
        F.when(turned, F.col("least")).otherwise(F.col("most")).alias("most"),
        F.lit(None).cast("long").alias("most_orders"),
    )


TABLES = [*ORDERS, spans]
PLACE = f"{__name__}:TABLES"


def test_a_bad_day_is_held_back_and_the_finding_says_why(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path, tables=PLACE)
    pipeline.land(1, [order("a", 1, "1.00"), order("b", 1, "2.00", "c2")])
    same = [order(f"s{n}", 2, "5.00", f"c{n}") for n in range(5)]
    pipeline.land(2, [*same, order("t", 2, "100.00", "far")])
    pipeline.land(3, [order("x", 3, "1.00", "turned"), order("y", 3, "2.00", "turned")])
    pipeline.land(4, [order("z", 4)])
    result = pipeline.run(1, 4, ["raw_orders", STAGED.name, spans.name], fails=True)
    assert {row["run_date"] for row in pipeline.rows(spans.name)} == {day(1), day(4)}

    properties = pipeline.log(spans.name).metadata().configuration
    assert properties["delta.constraints.in_order"] == "most >= least"
    evaluations = {
        (e.check_name, e.partition): e
        for e in result.get_asset_check_evaluations()
        if e.asset_key == dg.AssetKey(spans.name)
    }
    assert {
        check_and_day
        for check_and_day, e in evaluations.items()
        if check_and_day[1] and not e.passed
    } == {
        ("same_least", str(day(2))),
        ("beyond", str(day(2))),
        ("conservation", str(day(3))),
    }
    same_, beyond_ = evaluations["same_least", str(day(2))], evaluations["beyond", str(day(2))]
    assert same_.description == "5 row(s) that may not be there: (c0), (c1), (c2), ..."
    assert same_.metadata["offending"].value == 5
    assert beyond_.description == "1 row(s) that may not be there: (far)"
    assert (
        "1 row(s) break the rule most >= least"
        in evaluations["conservation", str(day(3))].description
    )
    assert evaluations["beyond", str(day(1))].description == "no such row"


def test_the_rules_of_the_page(engine, tmp_path):
    """On days with a customer of null."""
    pipeline = Pipeline(engine, tmp_path, tables="my_rules:TABLES")
    pipeline.land(1, [order(f"a{c}", 1, "1.00", c) for c in ("c1", None, "c2")])
    pipeline.land(2, [order("b1", 2, "1.00"), order("b2", 2, "9.00", None)])
    refund = order("c0", 3, "-1.00")
    pipeline.land(3, [refund, *(order(f"c{c}", 3, "2.00", c) for c in (None, "c2", "c3"))])
    name = my_rules.spend_held.name
    result = pipeline.run(1, 3, ["raw_orders", STAGED.name, name], fails=True)
    assert {row["run_date"] for row in pipeline.rows(name)} == {day(1)}
    failed = {
        (e.check_name, e.partition): e.description
        for e in result.get_asset_check_evaluations()
        if e.asset_key == dg.AssetKey(name) and e.partition and not e.passed
    }
    assert failed.keys() == {("over_half", str(day(2))), ("conservation", str(day(3)))}
    assert "(unknown)" in failed["over_half", str(day(2))]


def test_they_are_shown():
    assert [*spans.check_descriptions] == [
        "row_count",
        "nulls",
        "conservation",
        "unique_key",
        "same_least",
        "beyond",
    ]
    schema = spans.column_schema
    assert schema.constraints.other == ["most >= least: The greatest is not below the least."]
    shown_rules = {column.name: column.constraints.other for column in schema.columns}
    # And not those of the column whose name begins so.
    assert shown_rules["most"] == ["most >= -1000"]
    assert shown_rules["most_orders"] == []
    assert current_table(spans, name="spans_now").forbidden == spans.forbidden


def make_frame(spark, *rows: tuple) -> DataFrame:
    values = [(day(d), name, Decimal(least), Decimal(most), None) for d, name, least, most in rows]
    return spark.createDataFrame(values, spans.struct_type)


def test_offences_of_several_days_and_checks(spark):
    rows = [(2, f"c{n}", "1.00", "2.00") for n in range(4)]
    frame = make_frame(spark, *rows, (1, "a", "1.00", "100.00"), (3, "b", "1.00", "2.00"))
    assert find_violations(frame, [spans])[""] == {
        day(1): {"beyond": Violation(1, ("(a)",))},
        day(2): {"same_least": Violation(4, ("(c0)", "(c1)", "(c2)"))},
    }
    assert find_violations(make_frame(spark), [spans]) == {}
    assert find_violations(make_frame(spark, (1, "a", "1.00", "1.00")), [STAGED]) == {}


def test_a_check_that_finds_rows_of_no_day_of_the_frame_is_refused(spark):
    @table_of(
        [
            forbids_rows(
                "lost", lambda rows: rows.withColumn("run_date", F.date_add("run_date", 9)), "d"
            )
        ]
    )
    def build():
        return ComputedDays(make_frame(spark, (1, "a", "1.00", "1.00")), {})

    checked_table, built = build
    with pytest.raises(RefusedError, match=r"lost found rows of 2024-01-10, of which the frame"):
        audit_days([Candidate(make_plan(ledger(checked_table), [day(1)]), built)])


def table_of(checks):
    return lambda build: (
        table(
            Span,
            partition="run_date",
            key=["customer_id"],
            rules={"In_Order": ("most >= least", "The greatest is not below the least.")},
            checks=checks,
        )(spans.transform),
        build(),
    )


@pytest.mark.parametrize(
    ("rules", "names", "said"),
    [
        ({"most_greater_than_or_equal_to": ("1 = 1", "d")}, [], "a rule cannot be named"),
        ({"two words": ("1 = 1", "d")}, [], "a rule cannot be named 'two words'"),
        ({}, ["nulls"], "a check cannot be named 'nulls'"),
        ({}, ["twice", "twice"], "a check cannot be named 'twice'"),
        ({}, ["a-b"], "a check cannot be named 'a-b'"),
    ],
)
def test_names_that_are_taken_are_refused(rules, names, said):
    checks = [forbids_rows(name, beyond, "d") for name in names]
    with pytest.raises(DeclarationError, match=f"spans: {said}"):
        table(Span, partition="run_date", key=["customer_id"], rules=rules, checks=checks)(
            spans.transform
        )


def test_conditions_that_are_none_are_refused_by_name_before_anything_is_computed(spark):
    wrong_table = table(
        Span,
        partition="run_date",
        key=["customer_id"],
        rules={
            "typo": ("mots >= least", "d"),
            "fine": ("most >= least", "d"),
            "number": ("most - least", "d"),
        },
        counts={"half": "least >", "all": "true"},
    )(spans.transform)

    def fail_if_computed(_):
        raise AssertionError

    rows = make_frame(spark, (1, "a", "1.00", "1.00")).mapInPandas(
        fail_if_computed, spans.struct_type
    )
    with pytest.raises(DeclarationError) as refused:
        audit_days([Candidate(make_plan(ledger(wrong_table), [day(1)]), ComputedDays(rows, {}))])
    message = str(refused.value)
    assert message.startswith(
        "spans: the rule typo (mots >= least) is no condition on its columns: ["
    )
    assert "`mots` cannot be resolved. Did you mean one of the following? [`most`" in message
    assert "the rule number (most - least) is no condition" in message
    assert (
        "the count 'half' (least >) is no condition on its columns: [PARSE_SYNTAX_ERROR]" in message
    )
    assert "fine" not in message
    assert "'all'" not in message
    assert "Nothing was computed, and the table is as it was." in message
    assert "\n" not in message


def test_what_is_carried_without_its_moments_is_a_leak(spark):
    rules = no_leaks("at", carries=["x", "y"], began="since", known="told")
    columns = "x INT, y INT, at INT, since INT, told INT"

    def list_broken_rules(*row: int | None) -> set[str]:
        row_frame = spark.createDataFrame([row], columns)
        return {
            n
            for n, rule in rules.items()
            if row_frame.where(f"NOT coalesce({rule.condition}, false)").count()
        }

    assert list_broken_rules(1, None, 5, 5, 5) == set()
    assert list_broken_rules(None, None, 5, None, None) == set()
    assert list_broken_rules(1, None, 5, 6, 5) == {"since_by_at"}
    assert list_broken_rules(1, None, 5, 5, 6) == {"told_by_at"}
    assert (
        list_broken_rules(1, None, 5, 5, None)
        == list_broken_rules(None, 1, 5, None, 5)
        == {"told_told"}
    )
    assert list_broken_rules(None, None, None, 5, 5) == {"since_by_at", "told_by_at"}
