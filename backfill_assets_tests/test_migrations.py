"""Tables are brought to other columns, and all readers see them as they were or as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyspark.sql.types as T
import pytest
from msgspec import structs
from pandera.pyspark import Field

from backfill_assets.backfills.undo import UndoRefusedError, undo_backfill
from backfill_assets.calendar.partitions import DaySet, Dimension
from backfill_assets.delta import data_files, migrate, table_schema
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger, StoredFiles, TableMetadata
from backfill_assets.delta.migrate import migrate_table, read_migration
from backfill_assets.delta.migration_plan import Migration, plan_migration
from backfill_assets.delta.read_check import check_read
from backfill_assets.delta.records import CommitDetails, PublishedDay
from backfill_assets.delta.table_schema import (
    COLUMN_GAPS,
    CONSTRAINT,
    SCHEMA_VERSION,
    declared_constraints,
    delta_schema,
    missing_columns,
    raise_if_schema_differs,
    read_schema_version,
    schema_differences,
    schema_properties,
)
from backfill_assets.delta.table_schema import DROPPED_COLUMNS as DROPPED_PROPERTY
from backfill_assets.deployment import Deployment
from backfill_assets.publish.types import ComputedDays, Outcome
from backfill_assets.spark.jars import EngineError
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.columns import (
    added_column,
    files_match_schema,
    is_wider_type,
    nullable_column,
)
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import SchemaError, Table
from backfill_assets_tests.changing_columns import BEFORE, load_log, make_table, make_writer
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day
from backfill_assets_tests.helpers.publish_rows import publish_days, publish_frame


def note_renamed_from(old: str) -> Any:
    """The field of a note that had another name."""
    return Field(
        nullable=True,
        description="A note.",
        metadata={"null_warn": 1.0, "null_error": 1.0, "renamed_from": old},
    )


RENAMED = make_table(2, note=("remark", T.StringType, note_renamed_from("note")))
WIDER_COLUMNS = {
    "orders": (T.LongType, Field(ge=1, description="Orders.")),
    "paid": (T.DecimalType(28, 4), Field(description="Paid.")),
    "share": (T.DoubleType, Field(description="Share.")),
}
WIDENED = make_table(2, **WIDER_COLUMNS)
DROPPED = make_table(2, note=None)
LOOSER_ORDERS = (
    T.IntegerType,
    Field(
        ge=1,
        nullable=True,
        description="Orders, if known.",
        metadata={"null_warn": 1.0, "null_error": 1.0},
    ),
)
LOOSER = make_table(2, orders=LOOSER_ORDERS)
REQUIRED_NOTE = (T.StringType, Field(description="A note."))
STRICTER = make_table(2, note=REQUIRED_NOTE)
REQUIRED_FROM_NOTE = Field(description="A note.", metadata={"renamed_from": "note"})
CHANNEL = (T.StringType, added_column("shop", day(3), "Where from."))
GAP = make_table(2, channel=CHANNEL)

ROWS = [
    (day(1), "a", 1, Decimal("1.10"), 0.5, "x"),
    (day(1), "b", 2, Decimal("2.20"), 0.25, "y"),
    (day(2), "a", 3, Decimal("3.30"), 0.75, "z"),
    (day(3), "c", 4, Decimal("4.40"), 0.1, "w"),
]


def publish_rows(pipeline: Pipeline, spark, table: Table, rows: list[tuple], made_of: str = "this"):
    frame = spark.createDataFrame(rows, table.struct_type)
    dates = sorted({row[0] for row in rows})
    results = publish_frame(
        pipeline,
        frame,
        DaySet.from_days(dates),
        table=table,
        input_digest=made_of,
        run=made_of,
    )
    return [result.outcome for result in results]


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory) -> Path:
    """The table before its migration, to be copied."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("original"))
    assert publish_rows(pipeline, spark, BEFORE, ROWS) == [Outcome.WRITTEN] * 3
    return pipeline.root


@pytest.fixture
def pipeline(engine, original, tmp_path) -> Pipeline:
    copy_loaded(original, tmp_path)
    return Pipeline(engine, tmp_path)


@pytest.fixture
def url(pipeline) -> str:
    return pipeline.io_manager.url(BEFORE)


def rows_in_all_readers(spark, url: str, version: int | None = None) -> list[dict]:
    """The rows as Spark, delta-rs and DuckDB have them, who must have the same."""
    log = load_log(url, version)
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    by_spark = sorted((row.asDict() for row in reader.load(url).collect()), key=str)
    arrow = log.to_pyarrow_table()
    by_rust = sorted(arrow.to_pylist(), key=str)
    with duckdb.connect() as engine:
        rows = engine.register("t", log.to_pyarrow_dataset()).sql("SELECT * FROM t")
        names = rows.columns
        by_duck = sorted((dict(zip(names, row, strict=True)) for row in rows.fetchall()), key=str)
    assert by_spark == by_rust == by_duck
    return by_spark


def change_texts(plan: Migration | None) -> list[tuple[str, str]]:
    assert plan is not None
    return [(change.text, change.cost) for change in plan.changes]


def rows_with(change: Callable[[dict], dict]) -> list[dict]:
    return [change(dict(zip(BEFORE.columns, row, strict=True))) for row in ROWS]


def approximately(rows: list[dict]) -> list[dict]:
    return sorted(({**row, "share": round(row["share"], 6)} for row in rows), key=str)


def renamed(row: dict) -> dict:
    return {("remark" if name == "note" else name): value for name, value in row.items()}


def widened(row: dict) -> dict:
    return {**row, "paid": row["paid"].quantize(Decimal("1.0000"))}


def without_note(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "note"}


def with_channel(row: dict) -> dict:
    return {**row, "channel": "shop" if row["run_date"] < day(3) else None}


#: Changes of columns, what they make of a row, and how many days are rewritten for them.
CHANGES = {
    "renamed, required and widened": (
        make_table(2, note=("remark", T.StringType, REQUIRED_FROM_NOTE), **WIDER_COLUMNS),
        lambda row: widened(renamed(row)),
        3,
    ),
    "dropped, may be null, and a default": (
        make_table(2, note=None, orders=LOOSER_ORDERS, channel=CHANNEL),
        lambda row: with_channel(without_note(row)),
        2,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_readers_see_the_table_as_it_was_or_as_it_is(name, url, pipeline, spark, monkeypatch):
    table, change, rewritten = CHANGES[name]
    before, version = rows_in_all_readers(spark, url), load_log(url).version()
    assert approximately(before) == approximately(rows_with(dict))
    files = set(load_log(url).file_uris())
    plan = read_migration(url, table)
    assert plan is not None
    assert plan.refused == []
    assert len(plan.days) == rewritten
    # An ordinary run of the new code is refused until then.
    with pytest.raises(SchemaError, match="Run backfill-assets migrate"):
        raise_if_schema_differs(read_ledger(url, table), url)

    # Killed between the new files and the commit: readers have what they had, at each version.
    def raise_killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(migrate, "_commit_migration", raise_killed)
        list(migrate_table(make_writer(pipeline, table)))
    assert rows_in_all_readers(spark, url) == before
    # Killed after the commit, before the version of the schema is set.
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(migrate, "_finish_migration", raise_killed)
        list(migrate_table(make_writer(pipeline, table)))
    after = rows_in_all_readers(spark, url)
    assert approximately(after) == approximately(rows_with(change))
    for code in (BEFORE, table):
        with pytest.raises(SchemaError):
            raise_if_schema_differs(read_ledger(url, code), url)

    messages = list(migrate_table(make_writer(pipeline, table)))
    assert any("the schema has version 2, not 1" in text for text in messages)
    assert rows_in_all_readers(spark, url) == after
    assert load_log(url).metadata().configuration[SCHEMA_VERSION] == "2"
    assert (read_migration(url, table) or Migration(read_ledger(url, table))).changes == []
    # Old versions are read as before; each version has one of the two.
    assert rows_in_all_readers(spark, url, version) == before
    for at in range(version + 1, load_log(url).version()):
        rows = load_log(url, at).to_pyarrow_table().to_pylist()
        assert sorted(rows, key=str) in (before, after)
    unchanged_files = files & set(load_log(url).file_uris())
    assert len(unchanged_files) == 3 - rewritten

    # The schema is as a table that is created now has it.
    assert load_log(url).schema().to_json() == delta_schema(table).to_json()
    # The days are on record, and another engine finds what the records say.
    ledger = read_ledger(url, table)
    assert ledger.published_days == days(1, 2, 3)
    assert not ledger.external_commits
    assert check_read(pipeline.deployment, table, days(1, 2, 3)).problems == []
    # The code of before is refused, and told why.
    with pytest.raises(SchemaError, match=r"schema has version 2, and the code has 1.*Install the"):
        raise_if_schema_differs(read_ledger(url, BEFORE), url)
    with pytest.raises(SchemaError, match="Nothing was written"):
        publish_rows(pipeline, spark, BEFORE, ROWS)


# --- what is to change, from the model and the log ------------------------------------------------


def ledger_of(table: Table, stored_table: Table, **properties: str) -> Ledger:
    """A ledger of days 1 to 3 of a table that is there."""
    struct = T.StructType.fromJson(json.loads(delta_schema(stored_table).to_json()))
    files = {day(n): StoredFiles(1, 100) for n in (1, 2, 3)}
    metadata = TableMetadata(struct, (stored_table.partition,), properties)
    return Ledger(table, 7, stored=files, metadata=metadata)


def test_nothing_is_to_change_in_a_table_without_a_version():
    plan = plan_migration(ledger_of(BEFORE, BEFORE), {})
    assert (plan.changes, plan.refused) == ([], [])
    assert read_schema_version(TableMetadata(BEFORE.struct_type, ("run_date",))) == 1


def test_the_plan_tells_which_days_are_rewritten():
    both = make_table(
        2,
        orders=(T.LongType, Field(ge=1, description="Orders.")),
        note=None,
        share=(T.FloatType, Field(description="The share.")),
        channel=(T.StringType, added_column("shop", day(2), "Where from.")),
    )
    assert change_texts(plan_migration(ledger_of(both, BEFORE), {})) == [
        ("column orders is widened from int to bigint", "3 days are rewritten"),
        ("column share has another description", "metadata only"),
        ("column channel is added; it is null where nobody fills it", "metadata only"),
        (
            "column note is dropped; its values stay in data files until their days are written "
            "again",
            "metadata only",
        ),
        (f"column channel is 'shop' before {day(2)}", "1 days are rewritten"),
        ("the schema has version 2, not 1", "metadata only"),
    ]


def test_the_column_of_the_page_has_its_default_on_the_days_before():
    (statement,) = code_blocks("docs/schema-changes.md", "python")
    page: dict[str, Any] = {"T": T, "added_column": added_column, "date": date}
    exec(statement, page)
    table = make_table(2, channel=(T.StringType, page["channel"]))
    assert ("column channel is 'shop' before 2024-03-01", "3 days are rewritten") in change_texts(
        plan_migration(ledger_of(table, BEFORE), {})
    )


REFUSED = {
    "narrower": (
        make_table(2, orders=(T.ShortType, Field(ge=1, description="Orders."))),
        "column orders would change from int to smallint",
    ),
    "another kind": (
        make_table(2, paid=(T.DoubleType, Field(description="Paid."))),
        r"column paid would change from decimal\(10,2\) to double",
    ),
    "new and required": (
        make_table(2, city=(T.StringType, Field(description="City."))),
        "column city is new and required",
    ),
    "renamed twice": (
        make_table(
            3,
            note=("text", T.StringType, note_renamed_from("remark")),
        ),
        "column text is renamed from remark, and the table has neither: migrate it with the code",
    ),
    "no other version": (make_table(1, note=None), "give it 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    table, reason = REFUSED[name]
    plan = plan_migration(ledger_of(table, BEFORE), {})
    with pytest.raises(SchemaError, match=f"cannot be migrated: .*{reason}.*Nothing was written"):
        migrate.raise_if_refused(plan)


@pytest.mark.parametrize(
    ("stored", "properties"),
    [(BEFORE, {}), (DROPPED, {SCHEMA_VERSION: "2", DROPPED_PROPERTY: '["note"]'})],
    ids=["at once", "dropped before"],
)
def test_a_column_whose_name_has_another_case_does_not_bring_the_old_values_back(
    stored, properties
):
    third = make_table(3, note=("Note", T.StringType, nullable_column(1.0, 1.0, "A note.")))
    ledger = ledger_of(third, stored, **properties)
    text = "column Note is there again, without its values from before it was dropped"
    assert (text, "3 days are rewritten") in change_texts(plan_migration(ledger, {}))
    assert ledger.metadata is not None
    if stored is DROPPED:
        assert missing_columns(third, ledger.metadata) == []
        text = "column Note was dropped, and its old values are in the data files"
        assert text in schema_differences(third, ledger.metadata)


def test_a_default_that_rows_have_cannot_be_another():
    other = make_table(3, channel=(T.StringType, added_column("web", day(3), "Where from.")))
    ledger = ledger_of(
        other, GAP, **{SCHEMA_VERSION: "2", COLUMN_GAPS: schema_properties(GAP)[COLUMN_GAPS]}
    )
    (text,) = plan_migration(ledger, {}).refused
    assert text.startswith("column channel is 'shop' before 2024-01-03, which its rows hold")


def test_a_required_column_needs_a_log_without_nulls():
    ledger = ledger_of(STRICTER, BEFORE)
    for nulls, reason in (({day(2): 5}, "5 in all"), ({day(2): None}, "the log does not tell")):
        plan = plan_migration(ledger, {"note": nulls})
        assert [text for text in plan.refused if reason in text and str(day(2)) in text]
    assert plan_migration(ledger, {"note": {}}).refused == []


def test_a_default_is_a_migration_even_if_the_column_may_be_null():
    same = make_table(1, channel=(T.StringType, added_column("shop", day(2), "Where from.")))
    ledger = ledger_of(same, BEFORE)
    assert ledger.metadata is not None
    assert schema_differences(same, ledger.metadata) == [
        "column channel has another gap, or default"
    ]
    # A table that is created with it has written no day without it.
    assert (
        schema_differences(
            same, TableMetadata(same.struct_type, ("run_date",), schema_properties(same))
        )
        == []
    )
    none = make_table(1, channel=(T.StringType, added_column(None, day(2), "Where from.")))
    assert schema_differences(none, ledger.metadata) == []


def test_code_of_an_older_version_changes_nothing():
    plan = plan_migration(ledger_of(BEFORE, BEFORE, **{SCHEMA_VERSION: "3"}), {})
    assert plan.refused == [
        "the table's schema has version 3, and this code has 1: install the code that has it"
    ]
    assert plan.changes == []


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        (T.IntegerType(), T.LongType(), True),
        (T.LongType(), T.IntegerType(), False),
        (T.FloatType(), T.DoubleType(), True),
        (T.DoubleType(), T.FloatType(), False),
        (T.IntegerType(), T.DoubleType(), False),
        (T.DecimalType(10, 2), T.DecimalType(12, 2), True),
        (T.DecimalType(10, 2), T.DecimalType(12, 4), True),
        (T.DecimalType(10, 2), T.DecimalType(11, 4), False),
        (T.DecimalType(10, 2), T.DecimalType(12, 1), False),
        (T.DateType(), T.TimestampType(), False),
        (T.ArrayType(T.FloatType()), T.ArrayType(T.DoubleType()), True),
        (T.ArrayType(T.LongType(), False), T.ArrayType(T.LongType()), True),
        (T.ArrayType(T.DecimalType(30, 2)), T.ArrayType(T.DecimalType(28, 2)), False),
        (T.ArrayType(T.FloatType()), T.DoubleType(), False),
    ],
)
def test_which_types_hold_all_values_of_another(old, new, holds):
    assert is_wider_type(old, new) is holds


def test_rows_from_before_are_converted_only_if_the_columns_are_others():
    for table in (BEFORE, LOOSER, STRICTER):
        assert files_match_schema(BEFORE.struct_type, table.columns)
    for table in (RENAMED, WIDENED, DROPPED, GAP):
        assert not files_match_schema(BEFORE.struct_type, table.columns)
    # A column that came later is null; whether a file holds an older one of its name, it says.
    assert files_match_schema(DROPPED.struct_type, BEFORE.columns)


@pytest.mark.parametrize(
    ("version", "column", "said"),
    [
        (0, Field(description=""), "schema_version is 0: give a whole number of 1 or more"),
        (True, Field(description=""), "schema_version is True: give a"),
        (2, Field(description="", metadata={"renamed_from": "orders"}), "the model still has"),
        (2, Field(description="", metadata={"renamed_from": "customer"}), "not the name"),
    ],
)
def test_what_a_model_says_wrongly(version, column, said):
    with pytest.raises(DeclarationError, match=said):
        make_table(version, customer=(T.StringType, column))


# --- with Spark -----------------------------------------------------------------------------------


def test_a_name_that_was_dropped_does_not_bring_the_old_values_back(
    url, pipeline, spark, monkeypatch
):
    # A table of a release without schema versions.
    spark.sql(f"ALTER TABLE delta.`{url}` UNSET TBLPROPERTIES ('{SCHEMA_VERSION}')")
    assert SCHEMA_VERSION not in load_log(url).metadata().configuration
    raise_if_schema_differs(read_ledger(url, BEFORE), url)
    list(migrate_table(make_writer(pipeline, DROPPED)))
    assert load_log(url).metadata().configuration[SCHEMA_VERSION] == "2"
    next_table = make_table(2)
    with pytest.raises(SchemaError, match="note was dropped, and its old values are in the data"):
        raise_if_schema_differs(read_ledger(url, next_table), url)
    wrong_rows = [(day(3), "c", 9, *ROWS[3][3:5])]
    assert publish_rows(pipeline, spark, DROPPED, wrong_rows, "wrong run") == [Outcome.WRITTEN]
    third = make_table(3)
    (first, *_) = change_texts(read_migration(url, third))
    text = "column note is there again, without its values from before it was dropped"
    assert first == (text, "3 days are rewritten")
    list(migrate_table(make_writer(pipeline, third)))
    assert {row["note"] for row in rows_in_all_readers(spark, url)} == {None}
    assert json.loads(load_log(url).metadata().configuration[DROPPED_PROPERTY]) == []
    # Nor does an undo of what was written meanwhile, whose old file still has them.
    deployment = Deployment(pipeline.settings)
    tables = {**deployment.tables, third.name: third}
    deployment.__dict__["graph"] = Graph.from_tables(tables.values(), deployment.policy)
    undo = partial(undo_backfill, pipeline.io_manager, deployment, "wrong run", "undo", {})
    before = rows_in_all_readers(spark, url)
    with monkeypatch.context() as patched:
        patched.setattr(data_files, "_holds_no_column", lambda *_, **__: True)
        with pytest.raises(UndoRefusedError, match=f"{day(3)}.* give other rows than"):
            list(undo())
    assert rows_in_all_readers(spark, url) == before
    ((_, results),) = undo()
    assert [result.outcome for result in results] == [Outcome.WRITTEN]
    after = rows_in_all_readers(spark, url)
    assert {(row["run_date"].day, row["orders"]) for row in after} >= {(3, 4)}
    assert {row["note"] for row in after} == {None}
    assert check_read(deployment, third, days(1, 2, 3)).problems == []


def test_days_that_others_write_meanwhile_are_rewritten_again(url, pipeline, spark, monkeypatch):
    checked, ran = migrate._verify_rewrite, []

    def check_slowly(*arguments: Any) -> Any:
        result = checked(*arguments)
        if not ran:
            ran.append(
                publish_rows(pipeline, spark, BEFORE, [(day(3), "d", 9, *ROWS[3][3:])], "that")
            )
        return result

    monkeypatch.setattr(migrate, "_verify_rewrite", check_slowly)
    messages = list(migrate_table(make_writer(pipeline, RENAMED)))
    assert ran == [[Outcome.WRITTEN]]
    assert sum("another run committed first" in text for text in messages) == 1
    rows = {
        (row["run_date"].day, row["customer"], row["remark"])
        for row in rows_in_all_readers(spark, url)
    }
    assert rows == {(1, "a", "x"), (1, "b", "y"), (2, "a", "z"), (3, "d", "w")}
    # No file is left of the first time.
    assert len([*Path(url).glob("run_date=*/*.parquet")]) == 3 + 1 + 3


def test_a_run_of_the_old_code_cannot_commit_after_a_migration(url, pipeline, spark):
    """It was planned before; the day that it adds has no record that the migration changes."""
    frame = spark.createDataFrame([(day(4), *ROWS[0][1:])], BEFORE.struct_type)

    def migrate_meanwhile(window: DaySet) -> ComputedDays:
        list(migrate_table(make_writer(pipeline, RENAMED)))
        return ComputedDays(frame, {})

    requested = DaySet.from_days([day(4)])
    with pytest.raises(SchemaError, match="schema has version 2, and the code has 1"):
        publish_days(pipeline.io_manager, BEFORE, requested, migrate_meanwhile, "that")
    assert {row["remark"] for row in rows_in_all_readers(spark, url)} == {"x", "y", "z", "w"}
    assert read_ledger(url, RENAMED).published_days == days(1, 2, 3)


def test_files_that_hold_something_else_are_not_committed(url, pipeline, spark, monkeypatch):
    before = rows_in_all_readers(spark, url)
    honest = migrate.measure_days
    marks = iter("ab")  # the new files and the old rows, one after the other

    def measure_with_mark(frame: Any, table: Table) -> dict:
        mark = next(marks)
        measured_days = honest(frame, table).items()
        return {
            measured_day: replace(figures, digest=f"{mark}{figures.digest}")
            for measured_day, figures in measured_days
        }

    monkeypatch.setattr(migrate, "measure_days", measure_with_mark)
    with pytest.raises(PublishError, match=r"the new data files hold .* columns and days are as"):
        list(migrate_table(make_writer(pipeline, RENAMED)))
    assert rows_in_all_readers(spark, url) == before


@pytest.mark.parametrize(
    ("module", "lost", "table"),
    [
        (migrate, "measure_days", WIDENED),
        (
            table_schema,
            "add_constraints",
            make_table(2, share=(T.FloatType, Field(ge=0, description="Share."))),
        ),
    ],
    ids=["before", "after"],
)
def test_a_lost_engine_is_no_failed_migration(
    module, lost, table, url, pipeline, spark, monkeypatch
):
    def refuse_connection(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("nobody listens")

    with monkeypatch.context() as patch, pytest.raises(EngineError) as raised:
        patch.setattr(module, lost, refuse_connection)
        list(migrate_table(make_writer(pipeline, table)))
    assert "engine was lost while fact_daily_orders was migrated" in str(raised.value)
    assert "run `backfill-assets migrate fact_daily_orders` again" in str(raised.value)
    # No rule of the model was passed over: there is something left to do.
    assert read_migration(url, table).changes
    list(migrate_table(make_writer(pipeline, table)))
    rule_names = {name.removeprefix(CONSTRAINT) for name in load_log(url).metadata().configuration}
    assert {*declared_constraints(table)} <= rule_names


def test_the_record_keeps_what_the_days_were_made_of(url, pipeline, spark):
    before = read_ledger(url, BEFORE)
    list(migrate_table(make_writer(pipeline, RENAMED)))
    ledger = read_ledger(url, RENAMED)
    for run_date in (day(1), day(2), day(3)):
        current, previous = ledger.current_record(run_date), before.current_record(run_date)
        assert current is not None
        assert previous is not None
        assert (current.input_digest, current.digest, current.rows) == (
            previous.input_digest,
            previous.digest,
            previous.rows,
        )
        assert ledger.latest[run_date].code_version == before.latest[run_date].code_version
    version = ledger.version
    # What is made as it was is not even computed.
    assert publish_rows(pipeline, spark, RENAMED, ROWS) == [Outcome.IDENTICAL] * 3
    assert read_ledger(url, RENAMED).content_key(day(1)) == before.content_key(day(1))
    assert load_log(url).version() == version


def test_a_day_of_a_gap_that_is_made_again_gets_the_default(url, pipeline, spark):
    list(migrate_table(make_writer(pipeline, GAP)))
    rows = [
        (day(2), "a", 8, Decimal("3.30"), 0.75, "z", None),
        # A late version of an old row may have a value.
        (day(2), "b", 9, Decimal("3.30"), 0.75, "z", "web"),
        (day(3), *ROWS[3][1:], None),
    ]
    publish_rows(pipeline, spark, GAP, rows, "that")
    seen_now = {
        (row["run_date"].day, row["orders"], row["channel"])
        for row in rows_in_all_readers(spark, url)
    }
    assert seen_now >= {(2, 8, "shop"), (2, 9, "web"), (3, 4, None)}
    descriptions = {column.name: column.description for column in GAP.column_schema.columns}
    assert f"since {day(3)}; on the days before it is 'shop'" in descriptions["channel"]
    gaps = json.loads(load_log(url).metadata().configuration[COLUMN_GAPS])
    assert gaps == {"channel": {"since": str(day(3)), "default": "shop"}}


# --- parts of a table -----------------------------------------------------------------------------

REGION = (T.StringType, Field(description="The region."))


def make_parts(version: int = 1, *parts: str, **columns: Any) -> list[Table]:
    """The parts of the table of before with a region; columns as in `make_table`."""
    dimension = Dimension("region", parts or ("eu", "us"))
    table = make_table(version, region=REGION, **columns)
    declared = {f.name: getattr(table, f.name) for f in fields(Table)}
    return [
        Table(**declared | {"name": f"region_spend/{part}", "dimension": dimension, "part": part})
        for part in dimension.values
    ]


EU, US = make_parts()
WIDER_PARTS = make_parts(
    2, **WIDER_COLUMNS, note=("remark", T.StringType, note_renamed_from("note"))
)
US_ROWS = [(*row, "us") for row in (ROWS[2], ROWS[3])]


@pytest.fixture(scope="module")
def original_parts(engine, spark, tmp_path_factory) -> Path:
    """Days 1 and 2 of one part, 2 and 3 of the other, whose day 2 was published twice."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("parts"))
    publish_rows(pipeline, spark, EU, [(*row, "eu") for row in ROWS[:3]], "eu run")
    publish_rows(pipeline, spark, US, US_ROWS, "us run")
    second = [(*US_ROWS[0][:2], 7, *US_ROWS[0][3:])]
    assert publish_rows(pipeline, spark, US, second, "second us run") == [Outcome.WRITTEN]
    return pipeline.root


@pytest.fixture
def parts_pipeline(engine, original_parts, tmp_path) -> Pipeline:
    copy_loaded(original_parts, tmp_path)
    return Pipeline(engine, tmp_path)


def rows_by_part(spark, pipeline: Pipeline) -> set[tuple]:
    rows = rows_in_all_readers(spark, pipeline.io_manager.url(EU))
    return {(row["region"], row["run_date"].day, row["customer"], row["orders"]) for row in rows}


def test_all_parts_of_a_table_are_migrated_in_one_commit(parts_pipeline, spark, monkeypatch):
    pipeline, url = parts_pipeline, parts_pipeline.io_manager.url(EU)
    before = {part.part: read_ledger(url, part) for part in (EU, US)}
    rows = rows_by_part(spark, pipeline)
    plan = read_migration(url, *WIDER_PARTS)
    assert plan is not None
    assert plan.refused == []
    assert plan.days == days(1, 2, 3)

    # A day of the other part is published again while the first part is rewritten.
    checked, ran = migrate._verify_rewrite, []

    def publish_meanwhile(*arguments: Any) -> Any:
        result = checked(*arguments)
        if not ran:
            changed = [(*US_ROWS[1][:2], 8, *US_ROWS[1][3:])]
            ran.append(publish_rows(pipeline, spark, US, changed, "third us run"))
        return result

    monkeypatch.setattr(migrate, "_verify_rewrite", publish_meanwhile)
    writer = make_writer(pipeline, WIDER_PARTS[1])
    messages = list(migrate_table(writer, WIDER_PARTS[0]))
    assert ran == [[Outcome.WRITTEN]]
    assert sum("another run committed first" in text for text in messages) == 1
    assert rows_by_part(spark, pipeline) == {
        (part, n, customer, 8 if (part, n) == ("us", 3) else orders)
        for part, n, customer, orders in rows
    }
    assert load_log(url).schema().to_json() == delta_schema(WIDER_PARTS[0]).to_json()

    after = {part.part: read_ledger(url, part) for part in WIDER_PARTS}
    for part, part_days in (("eu", days(1, 2)), ("us", days(2, 3))):
        ledger = after[part]
        assert ledger.published_days == part_days
        assert not ledger.external_commits
        record = ledger.records[-1]
        assert record.run_id == after["eu"].records[-1].run_id
        assert record.written_days == record.days.keys() == part_days
        assert (record.version, record.run_id.split("-")[0]) == (
            after["eu"].records[-1].version,
            "migrate",
        )
    for part, n in (("eu", 1), ("eu", 2), ("us", 2)):
        made_of = after[part].current_record(day(n)).input_digest
        assert made_of == before[part].current_record(day(n)).input_digest
    assert (read_migration(url, *WIDER_PARTS) or plan).changes == []


def test_a_part_is_undone_across_a_migration(parts_pipeline, spark):
    pipeline, url = parts_pipeline, parts_pipeline.io_manager.url(EU)
    list(migrate_table(make_writer(pipeline, WIDER_PARTS[0]), WIDER_PARTS[1]))
    rows = rows_by_part(spark, pipeline)
    deployment = Deployment(pipeline.settings)
    tables = [*deployment.tables.values(), *WIDER_PARTS]
    deployment.__dict__["graph"] = Graph.from_tables(tables, deployment.policy)
    ((_, results),) = undo_backfill(pipeline.io_manager, deployment, "second us run", "undo", {})
    assert [result.outcome for result in results] == [Outcome.WRITTEN]
    assert rows_by_part(spark, pipeline) == {
        (part, n, customer, 3 if (part, n) == ("us", 2) else orders)
        for part, n, customer, orders in rows
    }
    for part, part_days in zip(WIDER_PARTS, (days(1, 2), days(2, 3)), strict=True):
        assert read_ledger(url, part).published_days == part_days
        assert check_read(deployment, part, part_days).problems == []


def test_a_part_whose_rows_nobody_declares_is_not_lost(parts_pipeline, spark):
    """Files of a part that is not rewritten would be read under columns that they do not have."""
    url, (only_eu,) = parts_pipeline.io_manager.url(EU), make_parts(2, "eu", **WIDER_COLUMNS)
    version = load_log(url).version()
    with pytest.raises(SchemaError, match=r"it has rows of us, which its dimension does not have"):
        list(migrate_table(make_writer(parts_pipeline, only_eu)))
    assert load_log(url).version() == version
    # Nor would it be known later which of its columns are to be ignored or filled.
    for column in ({"note": None}, {"channel": CHANNEL}):
        (only_eu,) = make_parts(2, "eu", **column)
        assert "it has rows of us" in read_migration(url, only_eu).refused[0]


def test_what_is_recorded_of_a_part_meanwhile_is_carried_over(parts_pipeline, spark, monkeypatch):
    """The first step is a commit of properties: what came before it may concern records alone."""
    pipeline, url = parts_pipeline, parts_pipeline.io_manager.url(EU)
    # A column that is dropped, and one whose days are rewritten.
    parts = make_parts(2, note=None, orders=WIDER_COLUMNS["orders"])
    prepare, accepted = migrate._prepare_log, []

    def accept_before(*arguments: Any) -> bool:
        if not accepted:
            ledger = read_ledger(url, US)
            record = migrate.build_carried_record(
                ledger,
                {day(3): replace_input(ledger.latest[day(3)].days[day(3)])},
                {day(3): ledger.latest[day(3)].day_provenance(day(3))},
                CommitDetails(),
            )
            record |= {"run_id": "meanwhile", "since": ledger.version}
            accepted.append(make_writer(pipeline, US).commit({}, [], record, ledger))
        return prepare(*arguments)

    monkeypatch.setattr(migrate, "_prepare_log", accept_before)
    messages = list(migrate_table(make_writer(pipeline, parts[0]), parts[1]))
    assert accepted != [None]
    assert not any("another run committed first" in text for text in messages)
    ledger = read_ledger(url, parts[1])
    assert ledger.current_record(day(3)).input_digest == "as recorded meanwhile"
    assert ledger.records[-1].days.keys() == days(2, 3)
    assert {row["orders"] for row in rows_in_all_readers(spark, url)} == {1, 2, 3, 4, 7}


def replace_input(published: PublishedDay) -> PublishedDay:
    return structs.replace(published, input_digest="as recorded meanwhile")


def test_a_change_of_the_log_alone_needs_one_record(parts_pipeline):
    url, parts = parts_pipeline.io_manager.url(EU), make_parts(2, note=None)
    files = load_log(url).file_uris()
    assert list(migrate_table(make_writer(parts_pipeline, parts[0]), parts[1]))
    assert load_log(url).file_uris() == files
    eu, us = (read_ledger(url, part) for part in parts)
    assert eu.records[-1].run_id.startswith("migrate-")
    assert us.records[-1].run_id == "second us run"
    assert (eu.published_days, us.published_days) == (days(1, 2), days(2, 3))
    assert (read_migration(url, *parts) or Migration(eu)).changes == []


def test_more_days_of_parts_than_a_commit_can_have_are_refused(parts_pipeline, monkeypatch):
    monkeypatch.setattr(migrate, "_CELLS_PER_COMMIT", 3)
    url = parts_pipeline.io_manager.url(EU)
    with pytest.raises(SchemaError, match=r"4 days of all parts would be rewritten.* at most 3"):
        list(migrate_table(make_writer(parts_pipeline, WIDER_PARTS[0]), WIDER_PARTS[1]))
    assert read_ledger(url, EU).records[-1].run_id == "eu run"
