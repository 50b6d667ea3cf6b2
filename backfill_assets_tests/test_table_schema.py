"""Models change while their tables are there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from deltalake import DeltaTable, write_deltalake
from pandera.pyspark import Field

from backfill_assets.audit.verdicts import DayMetrics
from backfill_assets.delta.delta_rs import load_log, read_metadata
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import TableMetadata
from backfill_assets.delta.maintenance import run_maintenance
from backfill_assets.delta.read_check import check_read
from backfill_assets.delta.table_schema import (
    missing_columns,
    raise_if_schema_differs,
    schema_differences,
)
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, DailyOrders
from backfill_assets.publish.types import DayResult, Outcome
from backfill_assets.staleness.stale import StaleDays
from backfill_assets.tables.table import SchemaError, Table
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.invented_states import make_healthy_ledgers, make_snapshot
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day
from backfill_assets_tests.helpers.publish_rows import (
    OPTIONAL,
    WIDER,
    fact_rows,
    outcome_values,
    publish_days,
    publish_frame,
    read_content,
    run_together,
    window,
)
from backfill_assets_tests.helpers.written_logs import (
    add_action,
    append_commit,
    append_other_commit,
    append_our_commit,
    commit_info,
    create_table,
    log_file,
    read_by_another_process,
    read_facts,
)


class Stricter(DailyOrders):
    """A required column more."""

    channel: T.StringType = Field(description="Where from.")


class Other(pa.DataFrameModel):
    """Another partition column, another type, a column gone, one that may be null."""

    log_date: T.DateType = Field(description="Day.")
    customer_id: T.StringType = Field(nullable=True, description="", metadata=OPTIONAL)
    orders: T.IntegerType = Field(description="")


STRICTER = replace(FACT, model=Stricter)
OTHER = replace(FACT, model=Other, partition="log_date", key=[], totals=[], merge=False)


def metadata_of_table(table: Table) -> TableMetadata:
    return TableMetadata(table.struct_type, (table.partition,))


# --- what is different ----------------------------------------------------------------------------


def test_a_table_that_its_model_describes():
    assert schema_differences(FACT, metadata_of_table(FACT)) == []
    assert missing_columns(FACT, metadata_of_table(FACT)) == []
    # The order is none of it, nor is whether something in an array may be null.
    turned = T.StructType(list(reversed(FACT.struct_type.fields)))
    assert schema_differences(FACT, replace(metadata_of_table(FACT), struct=turned)) == []


def test_columns_that_may_be_null_can_be_added():
    assert schema_differences(WIDER, metadata_of_table(FACT)) == []
    assert [column.name for column in missing_columns(WIDER, metadata_of_table(FACT))] == [
        "channel",
        "items",
    ]


@pytest.mark.parametrize(
    ("model", "there", "said"),
    [
        (STRICTER, FACT, ["column channel (string, required) is missing"]),
        (FACT, WIDER, ["column channel is not in the model", "column items is not in the model"]),
        (
            OTHER,
            FACT,
            [
                "it is partitioned by run_date, not by log_date",
                "column log_date (date, required) is missing",
                "column customer_id is required there, and may be null in the model",
                "column orders is bigint, not int",
                "column run_date is not in the model",
                "column revenue is not in the model",
            ],
        ),
    ],
)
def test_everything_else_is_a_difference(model, there, said):
    assert schema_differences(model, metadata_of_table(there)) == said


def test_a_column_that_a_constraint_requires():
    properties = {"delta.constraints.channel_required": "channel IS NOT NULL"}
    existing = replace(metadata_of_table(WIDER), properties=properties)
    assert schema_differences(WIDER, existing) == [
        "column channel is required there, and may be null in the model"
    ]


def test_what_is_said_of_a_table_of_another_form(tmp_path):
    """A warehouse from when corrections were partitioned otherwise."""
    url = create_table(tmp_path / FACT.name)
    append_our_commit(url, 1, 2)
    ledger = read_ledger(str(url), OTHER)
    assert (ledger.version, ledger.records, ledger.published_days) == (1, (), frozenset())
    with pytest.raises(SchemaError) as error:
        raise_if_schema_differs(ledger, str(url), ["stg_orders"])
    for part in (
        f"{FACT.name}: the table at {url} ",
        "it is partitioned by run_date, not by log_date",
        "Nothing was written; the table is as it was",
        f"move its folder away and materialize all days of {FACT.name}",
        "they are rebuilt from stg_orders.",
    ):
        assert part in str(error.value)
    with pytest.raises(SchemaError, match="the landing, as far as its files are still there"):
        raise_if_schema_differs(ledger, str(url), [])
    # Read as what it is, it is what it was.
    assert read_facts(url).published_days == days(1, 2)


def test_a_person_is_told_once_of_a_table_of_another_form(tmp_path):
    url = tmp_path / CORRECTIONS.name
    write_deltalake(url, DeltaTable.create(tmp_path / "x", _arrow_schema()).to_pyarrow_table())
    by_table = make_healthy_ledgers() | {CORRECTIONS.name: read_ledger(str(url), CORRECTIONS)}
    (incident,) = find_incidents(make_snapshot(by_table, behind=StaleDays()))
    assert incident.key == ("table is not that of the code", CORRECTIONS.name, "")
    assert "it is partitioned by nothing" in incident.detail
    assert f"rebuilt from {FACT.name} and {CURRENT.name}" in incident.detail


def _arrow_schema():
    import pyarrow

    return pyarrow.schema([("x", pyarrow.int64())])


# --- figures from the log -------------------------------------------------------------------------


def with_columns(url: Path, *names: str) -> dict:
    """The table's metadata with more columns, as a commit has them."""
    lines = log_file(url, 0).read_text().splitlines()
    (action,) = [a["metaData"] for a in map(json.loads, lines) if "metaData" in a]
    struct = json.loads(action["schemaString"])
    types = {column.name: column.dataType.typeName() for column in WIDER.struct_type}
    struct["fields"] += [
        {"name": name, "type": types[name], "nullable": True, "metadata": {}} for name in names
    ]
    return {**action, "schemaString": json.dumps(struct)}


def test_files_from_before_a_column_have_nulls_in_it(tmp_path):
    url = create_table(tmp_path / FACT.name)
    append_our_commit(url, 1, 2)
    ledger = read_ledger(str(url), WIDER)
    nulls = {"run_date": 0, "customer_id": 0, "orders": 1, "revenue": 0, "channel": 2, "items": 2}
    assert ledger.measured[day(1)] == DayMetrics(2, {}, "", nulls=nulls)
    # Files of since then say themselves how many.
    append_commit(
        url, commit_info("ADD COLUMNS"), {"metaData": with_columns(url, "channel", "items")}
    )
    stats = json.dumps({"numRecords": 5, "nullCount": {"channel": 1}})
    append_commit(url, commit_info(), add_action(3, "new", stats=stats))
    new = read_ledger(str(url), WIDER).measured[day(3)]
    assert (new.nulls["channel"], new.nulls["items"]) == (1, 5)


def test_a_ledger_knows_which_records_are_from_before_a_column(tmp_path):
    url = create_table(tmp_path / FACT.name)
    append_our_commit(url, 1)
    append_our_commit(url, 2)
    added = append_commit(
        url, commit_info("ADD COLUMNS"), {"metaData": with_columns(url, "channel")}
    )
    external = append_other_commit(url, 7)
    append_our_commit(url, 3)
    for ledger in (read_by_another_process(url), read_ledger(str(url), WIDER)):
        assert ledger.changed_columns == {"channel": added}
        lacked = [ledger.columns_changed_since(record) for record in ledger.records]
        assert lacked == [{"channel"}, {"channel"}, frozenset()]
        assert [other.version for other in ledger.external_commits] == [external]


# --- with Spark -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory) -> Path:
    """Two days of one row, to be copied."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("original"))
    publish_frame(pipeline, fact_rows(spark, [(1, "a", 1), (2, "a", 2)]), window(1, 2))
    return pipeline.root


@pytest.fixture
def loaded(engine, original, tmp_path) -> Pipeline:
    copy_loaded(original, tmp_path)
    return Pipeline(engine, tmp_path)


def publish_wide(
    pipeline: Pipeline, spark, n: int, items: int | None = 3, **how: bool
) -> list[DayResult]:
    """Publish a day with a row of the wider model."""
    rows = spark.createDataFrame([(day(n), "b", 9, Decimal(9), "web", items)], WIDER.struct_type)
    made_of = f"wide {n} {items}"
    return publish_frame(
        pipeline, rows, window(n, n), table=WIDER, input_digest=made_of, run=f"w{n}", **how
    )


def test_a_column_that_may_be_null_is_added_before_the_commit(loaded, spark, monkeypatch):
    files = set(loaded.log(FACT.name).file_uris())
    before = loaded.log(FACT.name).version()
    io = loaded.io_manager
    # Two at once, of which one may come second to each statement.
    results: list = []
    work = [lambda n=n: results.extend(publish_wide(loaded, spark, n)) for n in (2, 3)]
    assert run_together(*work) == []
    assert [result.outcome for result in results] == [Outcome.WRITTEN] * 2
    table = loaded.log(FACT.name)
    assert [f.name for f in table.schema().fields] == list(WIDER.columns)
    assert table.version() == before + 5, "two columns, a rule, two commits"
    assert len(files & set(table.file_uris())) == 1, "no file was written for the column"
    rows = {(r["run_date"].day, r["channel"], r["items"]) for r in loaded.rows(FACT.name)}
    assert rows == {(1, None, None), (2, "web", 3), (3, "web", 3)}
    # The next finds nothing to do, and the rule holds where there is something to hold.
    publish_wide(loaded, spark, 4, None)
    assert loaded.log(FACT.name).version() == before + 6
    (failed_day,) = publish_wide(loaded, spark, 5, 0)
    assert (
        "1 row(s) break the rule items IS NULL OR items >= 1" in failed_day.verdict.failure_reasons
    )
    # A merge, and who reads the days of then.
    assert outcome_values(publish_wide(loaded, spark, 4, merge=True)) == ["written"]
    ledger = io.ledger(WIDER)
    assert ledger.current_record(day(1)) is not None
    assert ledger.columns_changed_since(ledger.latest[day(1)]) == {"channel", "items"}
    old = io.table_snapshot(ledger, False).read_days(window(1, 1)).collect()
    assert [(r["customer_id"], r["channel"]) for r in old] == [("a", None)]
    read = check_read(loaded.deployment, WIDER, days((1, 4)))
    assert read.problems == []
    # A compaction of a day from before finds what was there, though not in the record's words.
    url = f"delta.`{io.url(FACT)}`"
    monkeypatch.setattr(Deployment, "tables", {FACT.name: WIDER})
    spark.sql(f"INSERT INTO {url} SELECT * FROM {url} WHERE run_date = DATE'{day(1)}' AND false")
    (report,) = run_maintenance(spark, loaded.deployment)
    assert report.problems == []


def test_rules_are_added_even_if_who_added_the_column_was_killed(loaded, spark):
    url = loaded.io_manager.url(FACT)
    spark.sql(f"ALTER TABLE delta.`{url}` ADD COLUMNS (channel STRING, items BIGINT)")
    publish_wide(loaded, spark, 3)
    properties = loaded.log(FACT.name).metadata().configuration
    assert "delta.constraints.items_greater_than_or_equal_to" in properties


@pytest.mark.parametrize("table", [STRICTER, OTHER], ids=["required", "another form"])
def test_other_changes_are_refused_before_anything_is_computed(loaded, spark, table):
    def fail_if_called(_):
        raise AssertionError("computed, although it can't be published")

    before, rows = loaded.log(FACT.name).version(), read_content(loaded)
    with pytest.raises(SchemaError, match="Nothing was written; the table is as it was"):
        publish_days(loaded.io_manager, table, window(2, 2), fail_if_called, "new")
    assert (loaded.log(FACT.name).version(), read_content(loaded)) == (before, rows)


def test_maintenance_leaves_a_table_of_another_form(loaded, spark, monkeypatch):
    monkeypatch.setattr(Deployment, "tables", {FACT.name: OTHER})
    (report,) = run_maintenance(spark, loaded.deployment)
    assert "it is partitioned by run_date, not by log_date" in report.problems[0]
    assert read_metadata(load_log(loaded.io_manager.url(FACT))).partitioned_by == ("run_date",)


def test_a_column_in_another_case_is_named():
    names = [name for name in FACT.columns if name != "orders"]
    frame = SimpleNamespace(columns=[*names, "Orders", "extra"])
    text = "the frame lacks orders (it has Orders: another case) and has besides extra; its columns"
    with pytest.raises(SchemaError, match=re.escape(text)):
        FACT.conform_frame(frame)
