"""The tables' schemas, and what follows from them: types, checks, constraints, UI metadata."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pyspark.sql import functions as F

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
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.columns import NullBounds
from backfill_assets.tables.table import SchemaError, Table
from backfill_assets_tests.helpers.publish_rows import PER_CHANNEL

#: `!` marks a column that must not be null.
TYPES = {
    "raw_orders": (
        "log_date:date!, arrival_date:date!, order_id:string!, customer_id:string, "
        "order_ts:timestamp!, amount:decimal(18,2)!, ingestion_ts:timestamp!, source_file:string!"
    ),
    "raw_orders_rejected": "arrival_date:date!, source_file:string!, text:string!, reason:string!",
    "stg_orders": (
        "event_date:date!, order_id:string!, customer_id:string, order_ts:timestamp!, "
        "amount:decimal(18,2)!, ingestion_ts:timestamp!, log_date:date!"
    ),
    "late_orders": (
        "log_date:date!, event_date:date!, arrival_date:date!, order_id:string!, "
        "customer_id:string, order_ts:timestamp!, amount:decimal(18,2)!, ingestion_ts:timestamp!, "
        "source_file:string!"
    ),
    "fact_daily_orders": "run_date:date!, customer_id:string!, orders:bigint!, "
    "revenue:decimal(28,2)!",
    "fact_order_corrections": "run_date:date!, customer_id:string!, orders:bigint!, "
    "revenue:decimal(28,2)!",
    "fact_daily_orders_current": "run_date:date!, customer_id:string!, orders:bigint!, "
    "revenue:decimal(28,2)!",
    "arrival_lateness": (
        "log_date:date!, lines:bigint!, late_lines:bigint!, late_amount:decimal(28,2)!, "
        "beyond_lines:bigint!, beyond_amount:decimal(28,2)!, superseded_lines:bigint!, "
        "rejected_lines:bigint!, delay_days_p50:bigint, delay_days_p95:bigint, "
        "delay_days_max:bigint, delay_minutes_p50:bigint, delay_minutes_p95:bigint, "
        "delay_minutes_max:bigint, delays:array<bigint>!, lines_by_delay:array<bigint>!, "
        "amount_by_delay:array<decimal(28,2)>!"
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_spark_types(name):
    fields = TABLES[name].struct_type
    types = [f"{f.name}:{f.dataType.simpleString()}{'' if f.nullable else '!'}" for f in fields]
    assert ", ".join(types) == TYPES[name]


def test_there_are_no_other_tables():
    assert set(TYPES) == set(TABLES)


@pytest.mark.parametrize(
    ("table", "partition", "key", "totals"),
    [
        (RAW, "log_date", (), ("amount",)),
        (REJECTED, "arrival_date", (), ()),
        (STAGED, "event_date", ("order_id",), ("amount",)),
        (LATE, "log_date", (), ("amount",)),
        (FACT, "run_date", ("customer_id",), ("orders", "revenue")),
        (CORRECTIONS, "run_date", ("customer_id",), ("orders", "revenue")),
        (CURRENT, "run_date", ("customer_id",), ("orders", "revenue")),
        (LATENESS, "log_date", ("log_date",), ()),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_partition_key_and_totals(table, partition, key, totals):
    assert (table.partition, table.key, table.totals) == (partition, key, totals)
    assert isinstance(table.struct_type[partition].dataType, T.DateType)
    assert not table.struct_type[partition].nullable


class Readings(pa.DataFrameModel):
    day: T.DateType
    meter: T.StringType
    kwh: T.DoubleType
    cost: T.DecimalType(38, 2)


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (
            "kwh",
            "has the type double, whose sum depends on the order of the rows: make it a DECIMAL",
        ),
        ("meter", "has the type string"),
        ("cost", r"has the type decimal\(38,2\), whose sum may have more than 38 digits"),
        ("power", "no column"),
    ],
)
def test_a_total_is_a_decimal_or_a_whole_number(total, text):
    with pytest.raises(DeclarationError, match=f"{total} is one of the totals and .*{text}"):
        Table("readings", Readings, partition="day", totals=[total])


def test_a_check_on_the_key_where_there_is_one():
    for table in TABLES.values():
        expected = {"row_count", "nulls", "conservation"} | ({"unique_key"} if table.key else set())
        assert set(table.check_descriptions) == expected | set(table.notices)
        assert all(table.check_descriptions.values())
    assert {table.name for table in TABLES.values() if table.notices} == {RAW.name, LATE.name}
    assert STAGED.check_descriptions["unique_key"] == "(event_date, order_id) is unique."


def test_null_bounds_of_the_columns_that_may_be_null():
    usual = {"customer_id": NullBounds(warn=0.25, error=0.9)}
    assert RAW.null_bounds == STAGED.null_bounds == usual
    assert LATE.null_bounds == {"customer_id": NullBounds(warn=1.0, error=1.0)}
    assert REJECTED.null_bounds == FACT.null_bounds == {}


def test_rows_of_a_key():
    """A null is equal to a null, where the model allows nulls."""
    assert STAGED.same_key("t", "s") == (
        "t.`event_date` = s.`event_date` AND t.`order_id` = s.`order_id`"
    )
    assert PER_CHANNEL.same_key("t", "s") == (
        "t.`run_date` = s.`run_date` AND t.`customer_id` = s.`customer_id` "
        "AND t.`channel` <=> s.`channel`"
    )


def test_constraints():
    assert FACT.check_constraints == CURRENT.check_constraints
    assert FACT.check_constraints == {"orders_greater_than_or_equal_to": "orders >= 1"}
    assert set(LATENESS.check_constraints.values()) == {
        f"{name}_lines >= 0" for name in ("late", "beyond", "superseded", "rejected")
    } | {"lines >= 0"}
    others = [table for table in TABLES.values() if table not in (FACT, CURRENT, LATENESS)]
    assert all(not table.check_constraints for table in others)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_column_schema_for_the_ui(table):
    columns = {column.name: column for column in table.column_schema.columns}
    assert list(columns) == table.struct_type.fieldNames()
    for field in table.struct_type:
        column = columns[field.name]
        assert column.type == field.dataType.simpleString()
        assert column.description
        assert column.constraints.nullable is field.nullable
        assert ("partition column" in column.constraints.other) is (field.name == table.partition)
        assert ("part of the natural key" in column.constraints.other) is (field.name in table.key)


def test_column_schema_shows_value_bounds():
    columns = {column.name: column for column in FACT.column_schema.columns}
    assert columns["orders"].constraints.other == ["orders >= 1"]
    assert columns["revenue"].constraints.other == []


@pytest.fixture(scope="module")
def facts(spark):
    return spark.createDataFrame([(date(2024, 1, 1), "a", 1, Decimal("1.00"))], FACT.struct_type)


def test_conform_puts_columns_in_order(facts):
    shuffled = facts.select("revenue", "orders", "customer_id", "run_date")
    assert FACT.conform_frame(shuffled).columns == ["run_date", "customer_id", "orders", "revenue"]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_conform_takes_each_tables_own_type(spark, table):
    assert table.conform_frame(spark.createDataFrame([], table.struct_type)).columns == list(
        table.columns
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop("revenue"), ["revenue"]),
        (lambda f: f.drop("run_date", "orders"), ["run_date", "orders"]),
        (lambda f: f.withColumn("surprise", F.lit(1)), ["surprise"]),
        (lambda f: f.withColumn("revenue", F.col("revenue").cast("double")), ["revenue", "Double"]),
        (
            lambda f: f.withColumn("revenue", F.col("revenue").cast("decimal(18,2)")),
            ["revenue", "18"],
        ),
        (lambda f: f.withColumn("orders", F.col("orders").cast("int")), ["orders", "Integer"]),
        (
            lambda f: f.withColumn("run_date", F.col("run_date").cast("string")),
            ["run_date", "String"],
        ),
        (
            lambda f: f.withColumn("run_date", F.col("run_date").cast("timestamp")),
            ["run_date", "Timestamp"],
        ),
        (lambda f: f.withColumnRenamed("orders", "Orders"), ["orders"]),
    ],
)
def test_conform_refuses(facts, change, said):
    with pytest.raises(SchemaError) as caught:
        FACT.conform_frame(change(facts))
    text = str(caught.value)
    assert text.startswith("fact_daily_orders: ")
    assert text.endswith("Nothing was written; the table is as it was.")
    assert "\n" not in text
    for word in said:
        assert word in text


def test_conform_names_every_problem(facts):
    with pytest.raises(SchemaError) as caught:
        FACT.conform_frame(facts.drop("revenue").withColumn("orders", F.lit("x")))
    assert "revenue" in str(caught.value)
    assert "orders" in str(caught.value)


def test_conform_leaves_values_to_the_audit(spark):
    """A null in a required column fails a day's audit, not the frame, and no Spark job runs."""
    frame = spark.createDataFrame(
        [(date(2024, 1, 1), None, 0, None)], _all_nullable(FACT.struct_type)
    )
    assert FACT.conform_frame(frame).collect()[0]["orders"] == 0


def _all_nullable(struct: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(f.name, f.dataType, True) for f in struct])
