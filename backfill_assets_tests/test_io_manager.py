"""The write path: exactly the run's days, all or nothing, whoever else is writing."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pandas as pd
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from deltalake import DeltaTable
from pandera.pyspark import Field
from pyspark.sql import functions as F

from backfill_assets.assets import derived, input_frames
from backfill_assets.audit.verdicts import RefusedError
from backfill_assets.backfills.diff_query import diff_table
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta import data_files, table_schema
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import write_files
from backfill_assets.delta.read_check import check_read
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT, RAW, STAGED
from backfill_assets.publish.types import ComputedDays, DayResult, Outcome
from backfill_assets.settings import load_settings
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.staleness.assess import refuse_other_code
from backfill_assets.staleness.impact import LogChange
from backfill_assets.tables.columns import nullable_column
from backfill_assets.tables.table import SchemaError, Table
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day, order
from backfill_assets_tests.helpers.publish_rows import (
    PER_CHANNEL,
    RECORD,
    fact_rows,
    outcome_values,
    publish_days,
    publish_frame,
    read_content,
    run_together,
    window,
)


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory) -> Path:
    """Three days of one row, to be copied."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("original"))
    publish_frame(pipeline, fact_rows(spark, [(1, "a", 1), (2, "a", 2), (3, "a", 3)]), window(1, 3))
    return pipeline.root


@pytest.fixture
def loaded(engine, original, tmp_path) -> Pipeline:
    copy_loaded(original, tmp_path)
    return Pipeline(engine, tmp_path)


def test_replaces_exactly_the_days_of_the_run_in_one_commit(loaded, spark):
    before = loaded.log(FACT.name).version()
    results = publish_frame(loaded, fact_rows(spark, [(2, "b", 9), (3, "b", 9)]), window(2, 3))
    assert read_content(loaded) == {(1, "a", 1), (2, "b", 9), (3, "b", 9)}
    assert loaded.log(FACT.name).version() == before + 1
    # The commit says what it is.
    entry = next(e for e in loaded.log(FACT.name).history() if e["version"] == results[0].version)
    metadata = json.loads(entry["userMetadata"])
    assert {k: metadata[k] for k in RECORD} == RECORD
    assert metadata["days"] == ["2024-01-02...2024-01-03"]
    assert metadata["audit"]["2024-01-02"]["rows"] == 1
    assert metadata["audit"]["2024-01-03"]["digest"] == results[1].verdict.metrics.digest
    # An empty day is published deliberately.
    publish_frame(loaded, fact_rows(spark, []), window(2, 2), expected_rows=0)
    assert read_content(loaded) == {(1, "a", 1), (3, "b", 9)}


REFUSED = {
    "rows outside the window": RefusedError,
    "a row without a day": RefusedError,
    "no rows where some are due": RefusedError,
    "a partition column of another type": SchemaError,
    "a missing column": SchemaError,
    "an unknown column": SchemaError,
}


def refused_frame(spark, cause: str):
    good = fact_rows(spark, [(2, "b", 1)])
    return {
        "rows outside the window": lambda: fact_rows(spark, [(2, "b", 1), (4, "b", 1)]),
        "a row without a day": lambda: good.withColumn("run_date", F.lit(None).cast("date")),
        "no rows where some are due": lambda: fact_rows(spark, []),
        "a partition column of another type": lambda: good.withColumn(
            "run_date", F.col("run_date").cast("string")
        ),
        "a missing column": lambda: good.drop("revenue"),
        "an unknown column": lambda: good.withColumn("more", F.lit(1)),
    }[cause]()


def test_refusals_leave_the_table_as_it_was(loaded, spark):
    before, rows = loaded.log(FACT.name).version(), read_content(loaded)
    for cause, error_type in REFUSED.items():
        with pytest.raises(error_type) as error:
            publish_frame(loaded, refused_frame(spark, cause), window(2, 2), expected_rows=1)
        assert FACT.name in str(error.value), cause
        assert "as it was" in str(error.value), cause
        assert (loaded.log(FACT.name).version(), read_content(loaded)) == (before, rows), cause


def test_days_that_fail_keep_their_old_version(loaded, spark):
    frame = fact_rows(spark, [(1, "b", 1), (2, "b", 1), (2, "b", 2), (3, "b", 3)])
    results = publish_frame(loaded, frame, window(1, 3))
    assert [d.outcome for d in results] == [Outcome.WRITTEN, Outcome.FAILED, Outcome.WRITTEN]
    assert read_content(loaded) == {(1, "b", 1), (2, "a", 2), (3, "b", 3)}
    metadata = json.loads(loaded.log(FACT.name).history(1)[0]["userMetadata"])
    assert metadata["days"] == ["2024-01-01", "2024-01-03"]
    assert "unique_key" in metadata["not_published"]["2024-01-02"]
    # Nothing is committed when no day passes.
    before = loaded.log(FACT.name).version()
    (result,) = publish_frame(loaded, fact_rows(spark, [(2, "b", 1), (2, "b", 2)]), window(2, 2))
    assert (result.outcome, result.version) == (Outcome.FAILED, None)
    assert loaded.log(FACT.name).version() == before


def test_two_runs_that_both_create_the_table(pipeline, spark):
    work = [
        lambda n=n: publish_frame(
            pipeline, fact_rows(spark, [(n, "a", n)]), window(n, n), run=f"r{n}"
        )
        for n in (1, 2)
    ]
    assert run_together(*work) == []
    assert read_content(pipeline) == {(1, "a", 1), (2, "a", 2)}


def test_a_creation_that_was_killed_before_its_constraints_gets_them(pipeline, spark, monkeypatch):
    class Killed(BaseException):
        """As a killed process ends: nothing after it."""

    def raise_killed(*_, **__):
        raise Killed

    # Another one was killed before its first commit, and has left this.
    log = pipeline.warehouse / FACT.name / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.1234.tmp").write_text("{}")
    monkeypatch.setattr(table_schema, "add_constraints", raise_killed)
    with pytest.raises(Killed):
        publish_frame(pipeline, fact_rows(spark, [(1, "a", 1)]), window(1, 1))
    monkeypatch.undo()
    assert pipeline.log(FACT.name).version() == 0
    publish_frame(pipeline, fact_rows(spark, [(1, "a", 1)]), window(1, 1))
    properties = pipeline.log(FACT.name).metadata().configuration
    assert {f"delta.constraints.{name}" for name in FACT.check_constraints} <= set(properties)
    assert read_content(pipeline) == {(1, "a", 1)}
    # They hold against writers of any kind.
    url = f"delta.`{pipeline.warehouse / FACT.name}`"
    some_day = "DATE'2024-01-05'"
    for values in ("NULL, 'a', 1, 1", f"{some_day}, NULL, 1, 1", f"{some_day}, 'a', 0, 1"):
        with pytest.raises(SPARK_ERRORS, match="DELTA"):
            spark.sql(f"INSERT INTO {url} VALUES ({values})")


class Ruled(pa.DataFrameModel):
    """One of each kind of rule."""

    day: T.DateType = Field(description="The day.")
    number: T.LongType = Field(ge=-1, description="A number.")
    maybe: T.IntegerType = nullable_column(1, 1, "A number that may not be there.")
    share: T.DecimalType(10, 2) = Field(ge=0.5, description="A decimal.")
    Upper: T.LongType = Field(ge=2, description="A name with a capital letter.")
    meter: T.StringType = Field(str_matches=r"m\d+", str_startswith="m", description="A pattern.")
    state: T.StringType = Field(isin=["it's on", "off"], description="One of some words.")


def test_rules_stand_in_the_table_in_words_that_spark_takes_as_they_are_meant(pipeline, spark):
    table, url = (
        Table(name="ruled", model=Ruled, partition="day", key=[]),
        str(pipeline.warehouse / "ruled"),
    )
    table_schema.create_table(lambda: spark, url, table, {})
    properties = DeltaTable(url).metadata().configuration

    def squeeze(rules: Mapping[str, str]) -> dict[str, str]:
        """Rules without the blanks that Delta puts around what it has read."""
        return {name: re.sub(r"\s*([(),])\s*", r"\1", rule) for name, rule in rules.items()}

    prefix = table_schema.CONSTRAINT
    rules = {n.removeprefix(prefix): r for n, r in properties.items() if n.startswith(prefix)}
    assert squeeze(rules) == squeeze(table_schema.all_constraints(table, None))
    rows = (
        """-1, NULL, 0.5, 2, 'm17', "it's on" """,
        "-2, NULL, 0.5, 2, 'm17', 'off'",
        "0, NULL, 0.49, 2, 'm17', 'off'",
        "0, NULL, 0.5, 1, 'm17', 'off'",
        "0, NULL, 0.5, 2, 'mm', 'off'",
        "0, NULL, 0.5, 2, 'm17', 'on'",
    )
    values = ", ".join(f"(DATE'2024-01-01', {row})" for row in rows)
    broken = " + ".join(f"int(NOT ({rule}))" for rule in rules.values())
    frame = spark.sql(f"SELECT {broken} FROM VALUES {values} AS t({', '.join(table.columns)})")
    assert [count for (count,) in frame.collect()] == [0, 1, 1, 1, 1, 1]
    with pytest.raises(SPARK_ERRORS, match="DELTA_VIOLATE_CONSTRAINT"):
        spark.sql(f"INSERT INTO delta.`{url}` VALUES (DATE'2024-01-01', {rows[-1]})")


class Oddly(pa.DataFrameModel):
    """Columns whose names are not read by SQL as they are, with many rules."""

    day: T.DateType = Field(description="The day.")
    key: T.StringType = Field(alias="the-key", isin=["a", "b"], description="A key.")
    null: T.LongType = Field(in_range=(1, 9), nullable=True, description="A word of SQL.")
    number: T.DecimalType(12, 2) = Field(alias="2d", ge=0, lt=100, description="A literal.")
    text: T.StringType = Field(alias="it's_100%", str_contains="x")
    rows: T.LongType = Field(description="A name that the audit counts by, as are the next.")
    copies: T.LongType = Field(nullable=True)
    count: T.StringType


def test_a_table_is_made_in_two_commits_with_all_of_its_rules(pipeline, spark):
    table, url = (
        Table(
            name="oddly",
            model=Oddly,
            partition="day",
            key=["the-key", "rows", "copies", "count"],
            totals=["2d"],
        ),
        str(pipeline.warehouse / "oddly"),
    )

    def make_rows(*rows: tuple, days: Sequence[int] = (1, 1, 1, 1)):
        more = (1, None, "c")
        dated_rows = [(day(n), *row, *more) for n, row in zip(days, rows, strict=False)]
        return spark.createDataFrame(dated_rows, table.struct_type)

    good = [("a", 1, Decimal(1), "x"), ("b", None, Decimal(2), "xy")]
    assert outcome_values(publish_frame(pipeline, make_rows(*good), window(1, 1), table=table)) == [
        "written"
    ]
    log = DeltaTable(url)
    assert log.version() == 2, "the table, the rule that sets the protocol, the rows"
    assert log.protocol().min_writer_version == 3
    properties = log.metadata().configuration
    stored = {n: r for n, r in properties.items() if n.startswith(table_schema.CONSTRAINT)}
    assert len(stored) == 5
    bad_rows = [("c", 1, 1, "x"), ("a", 0, 1, "x"), ("a", 1, -1, "x"), ("a", 1, 1, "y")]
    rows = make_rows(
        *((key, null, Decimal(number), text) for key, null, number, text in bad_rows),
        days=(1, 2, 3, 4),
    )
    results = publish_frame(pipeline, rows, window(1, 4), table=table)
    assert outcome_values(results) == ["failed"] * 4
    for result in results:
        assert "1 row(s) break the rule" in result.verdict.failure_reasons
    with pytest.raises(SPARK_ERRORS, match="DELTA_VIOLATE_CONSTRAINT"):
        spark.sql(
            f"INSERT INTO delta.`{url}` VALUES (DATE'2024-01-01', 'a', 1, -1, 'x', 1, null, 'c')"
        )
    merged = make_rows(good[0], ("b", 3, Decimal(4), "x"))
    publish_frame(pipeline, merged, window(1, 1), table=table, merge=True)
    assert {(r["the-key"], r["null"]) for r in pipeline.rows(table.name)} == {("a", 1), ("b", 3)}
    repeated = input_frames._count_repeated_rows(
        make_rows(*good, good[0]), [day(1)], (table.partition, *table.key)
    )
    assert repeated == {day(1): 1}


def test_two_runs_on_the_same_day_end_as_one_of_them(loaded, spark):
    work = [
        lambda w=w: publish_frame(
            loaded, fact_rows(spark, [(n, w, 1) for n in (1, 2)]), window(1, 2), run=w
        )
        for w in ("x", "y")
    ]
    assert run_together(*work) == []
    assert read_content(loaded) in ({(1, w, 1), (2, w, 1), (3, "a", 3)} for w in ("x", "y"))


@pytest.mark.slow
def test_two_runs_on_different_days_both_succeed(loaded, spark):
    work = [
        lambda n=n: publish_frame(
            loaded, fact_rows(spark, [(n, "z", n)]), window(n, n), run=f"d{n}"
        )
        for n in (1, 2, 3)
    ]
    assert run_together(*work) == []
    assert read_content(loaded) == {(n, "z", n) for n in (1, 2, 3)}


def test_a_reader_never_sees_a_day_empty_partial_or_mixed(loaded, spark):
    """Each overwrite writes one value into every row of two days; readers check for just that."""
    stop, read_values, wrong = threading.Event(), set(), []

    def read() -> None:
        while not stop.is_set():
            rows = loaded.rows(FACT.name)
            values = {r["customer_id"][0] for r in rows if r["run_date"] < day(3)}
            counts = [sum(r["run_date"] == day(n) for r in rows) for n in (1, 2)]
            if len(values) != 1 or counts != [20, 20]:
                wrong.append((values, counts))
            read_values.update(values)

    def write(letter: str) -> None:
        rows = [(n, f"{letter}{i}", 1) for n in (1, 2) for i in range(20)]
        publish_frame(loaded, fact_rows(spark, rows).repartition(3), window(1, 2), run=letter)

    write("a")
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for letter in "bc":
            write(letter)
    finally:
        stop.set()
        reader.join()
    assert wrong == []
    assert len(read_values) > 1, "the reader did not run beside the writers"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("delta.appendOnly", "append-only). Launch these days again."),
        pytest.param("delta.enableRowTracking", "RowTracking", marks=pytest.mark.slow),
        ("delta.enableInCommitTimestamps", "DROP FEATURE) and launch these days again; or, where"),
    ],
)
def test_a_commit_that_fails_is_told_with_table_days_and_state(loaded, spark, name, said):
    url = loaded.warehouse / FACT.name
    spark.sql(f"ALTER TABLE delta.`{url}` SET TBLPROPERTIES ('{name}' = 'true')")
    with pytest.raises(PublishError) as error:
        publish_frame(loaded, fact_rows(spark, [(2, "b", 9)]), window(2, 2))
    for part in (FACT.name, "2024-01-02", "the table is as it was", said):
        assert part in str(error.value)
    assert (2, "a", 2) in read_content(loaded)


def test_rules_that_others_gave_the_table_hold_and_columns_that_they_mapped_are_refused(
    loaded, spark
):
    url = loaded.warehouse / FACT.name
    spark.sql(f"ALTER TABLE delta.`{url}` ADD CONSTRAINT few CHECK (orders < 5)")
    results = publish_frame(loaded, fact_rows(spark, [(2, "b", 9), (3, "b", 1)]), window(2, 3))
    assert outcome_values(results) == ["failed", "written"]
    assert "1 row(s) break the rule orders < 5" in results[0].verdict.failure_reasons
    assert read_content(loaded) == {(1, "a", 1), (2, "a", 2), (3, "b", 1)}
    # Columns that have other names in the files are refused.
    spark.sql(f"ALTER TABLE delta.`{url}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with pytest.raises(SchemaError, match=r"delta\.columnMapping\.mode name"):
        publish_frame(loaded, fact_rows(spark, [(2, "b", 9)]), window(2, 2))


def test_rows_that_are_others_each_time_they_are_computed_are_not_published(loaded, spark):
    # From 1 to 100,000 rows, as chance has it each time.
    random = "cast(reflect('java.lang.Math', 'random') as double)"
    sized_rows = fact_rows(spark, [(2, "c", 1)]).withColumn(
        "many", F.expr(f"1 + int(99999 * {random})")
    )
    fickle = sized_rows.withColumn("n", F.explode(F.expr("sequence(1, many)")))
    fickle = fickle.withColumn("customer_id", F.concat("customer_id", F.col("n").cast("string")))
    fickle = fickle.drop("many", "n")
    with pytest.raises(PublishError, match="computed twice, the days have not the same rows"):
        publish_frame(loaded, fickle, window(2, 2))
    assert read_content(loaded) == {(n, "a", n) for n in (1, 2, 3)}


def test_as_many_other_rows_are_not_published_either(loaded, spark):
    random = "cast(reflect('java.lang.Math', 'random') as double)"
    one_row = fact_rows(spark, [(2, "a", 1)])
    fickle = one_row.withColumn("orders", F.expr(f"1 + bigint(1e9 * {random})"))
    for merge in (False, True):
        with pytest.raises(PublishError, match="the rows that were written have the digest"):
            publish_frame(loaded, fickle, window(2, 2), merge=merge)
    assert read_content(loaded) == {(n, "a", n) for n in (1, 2, 3)}
    named = {path.rpartition("/")[2] for path in loaded.log(FACT.name).file_uris()}
    files = (loaded.warehouse / FACT.name / "run_date=2024-01-02").glob("*.parquet")
    assert {file.name for file in files} <= named, "files are left of what was not committed"


def test_no_file_is_left_of_what_was_not_committed(loaded, spark):
    """Another run publishes the same rows while this one computes: its own files go."""
    frame = fact_rows(spark, [(2, "b", 1)])
    first = []

    def build(_: Window) -> ComputedDays:
        if not first:
            first.append(
                publish_frame(loaded, frame, window(2, 2), input_digest="one", run="other")
            )
        return ComputedDays(frame, {})

    (result,) = publish_days(loaded.io_manager, FACT, window(2, 2), build, "one", run="r2")
    assert result.outcome is Outcome.IDENTICAL
    named = {path for path in loaded.log(FACT.name).file_uris() if "run_date=2024-01-02" in path}
    files_on_disk = (loaded.warehouse / FACT.name / "run_date=2024-01-02").glob("*.parquet")
    replaced = 1  # the file of the first load, which VACUUM removes
    assert len({*files_on_disk}) == len(named) + replaced
    assert not [*(loaded.warehouse / FACT.name).glob("writing-*")]


def test_no_file_is_left_if_the_impact_of_a_load_cannot_be_told(pipeline, monkeypatch):
    """Files are written when all else of their commit is known."""

    def raise_error(*_: object) -> None:
        raise OSError("the landing does not answer")

    pipeline.land(1, [order("o1", 1)])
    monkeypatch.setattr(LogChange, "details_for", raise_error)
    pipeline.run(1, assets=[RAW.name], fails=True)
    assert not [*pipeline.warehouse.rglob("*.parquet")]


def test_reads_are_pinned_to_the_version_of_the_start(loaded, spark):
    """A commit between audit and write must not come between them."""
    context = dg.build_input_context(
        asset_key=dg.AssetKey(FACT.name),
        partition_key="2024-01-02",
        asset_partitions_def=loaded.repository.asset_graph.get(
            dg.AssetKey(FACT.name)
        ).partitions_def,
        asset_partition_key_range=dg.PartitionKeyRange("2024-01-02", "2024-01-03"),
        dagster_type=dg.PythonObjectDagsterType(object),
    )
    table_input = loaded.io_manager.load_input(context)
    snapshot = table_input.snapshot(table_input.read_ledger())
    before = snapshot.read_days(window(2, 3))
    publish_frame(loaded, fact_rows(spark, [(2, "b", 9)]), window(2, 2))
    for frame in (before, snapshot.read_days(window(2, 3))):
        assert {r["customer_id"] for r in frame.collect()} == {"a"}
        assert {r["run_date"] for r in frame.collect()} == {day(2), day(3)}


def test_what_no_step_hands_over_is_refused_by_its_type(loaded):
    """Rows in a list or in a frame of pandas can be iterated too."""
    context = dg.build_output_context(asset_key=dg.AssetKey(FACT.name))
    for rows in ([(day(1), "a", 1)], pd.DataFrame({"orders": [1]})):
        with pytest.raises(TypeError, match="an asset hands over Candidates, not"):
            next(loaded.io_manager.handle_output(context, rows))
    assert read_content(loaded) == {(n, "a", n) for n in (1, 2, 3)}


# --- what need not be done again, and what must not -----------------------------------------------


def latest_version(pipeline: Pipeline) -> int:
    return pipeline.log(FACT.name).version()


def fail_if_built(_: Window) -> ComputedDays:
    raise AssertionError("computed although nothing had changed")


def test_days_that_would_be_the_same_are_neither_computed_nor_committed(loaded, spark):
    frame = fact_rows(spark, [(n, "a", n) for n in (1, 2, 3)])
    first = publish_frame(loaded, frame, window(1, 3), input_digest="one")
    before = latest_version(loaded)
    second = publish_days(loaded.io_manager, FACT, window(1, 3), fail_if_built, "one", run="r2")
    assert outcome_values(second) == ["identical"] * 3
    assert latest_version(loaded) == before
    # All that a lost run did not tell Dagster of is in the commit's record.
    for old, new in zip(first, second, strict=True):
        assert new.version == old.version
        assert new.verdict.metrics == old.verdict.metrics
        assert new.verdict.worst_severity is old.verdict.worst_severity
    # A day that others changed is not the same, and only that day is asked for.
    spark.sql(f"DELETE FROM delta.`{loaded.warehouse / FACT.name}` WHERE run_date = '{day(2)}'")
    rows_of_day = fact_rows(spark, [(2, "a", 2)])
    results = publish_frame(loaded, rows_of_day, window(1, 3), input_digest="one")
    assert outcome_values(results) == ["identical", "written", "identical"]
    assert read_content(loaded) == {(n, "a", n) for n in (1, 2, 3)}
    # On demand everything is written again.
    files = set(loaded.log(FACT.name).file_uris())
    results = publish_frame(loaded, frame, window(1, 3), input_digest="one", rewrite=window(1, 3))
    assert outcome_values(results) == ["written"] * 3
    assert not files & set(loaded.log(FACT.name).file_uris())


def test_other_code_or_configuration_computes_anew_and_writes_what_differs(loaded, spark):
    publish_frame(
        loaded, fact_rows(spark, [(n, "a", n) for n in (1, 2, 3)]), window(1, 3), input_digest="one"
    )
    for changed, letter in (("code_version", "y"), ("config_digest", "z")):
        files = set(loaded.log(FACT.name).file_uris())
        other_rows = fact_rows(spark, [(1, "a", 1), (2, letter, 2), (3, "a", 3)])
        how = {"input_digest": "one", "run": letter, changed: "other"}
        results = publish_frame(loaded, other_rows, window(1, 3), **how)
        assert outcome_values(results) == ["unchanged", "written", "unchanged"]
        unchanged_files = files & set(loaded.log(FACT.name).file_uris())
        assert len(unchanged_files) == len(files) - 1, "a day with the same rows was written again"
        record = loaded.io_manager.ledger(FACT).latest[day(1)]
        assert getattr(record, changed) == "other", "the record tells what computed the day last"


def test_a_run_that_was_overtaken_looks_again_and_does_not_put_older_on_newer(loaded, spark):
    """A slow run reads its input, another publishes newer, then the slow one wants to commit."""
    reads = []

    def read_input_digest() -> str:
        reads.append(newest["value"])
        return newest["value"]

    def build(_: Window) -> ComputedDays:
        value = newest["value"]
        if len(reads) == 1:
            newest["value"] = "new"
            publish_frame(
                loaded, fact_rows(spark, [(2, "new", 1)]), window(2, 2), input_digest="new"
            )
        return ComputedDays(fact_rows(spark, [(2, value, 1)]), {})

    newest = {"value": "old"}
    before = latest_version(loaded)
    results = publish_days(
        loaded.io_manager, FACT, window(2, 2), build, read_input_digest, run="slow"
    )
    assert reads == ["old", "new"]
    assert outcome_values(results) == ["identical"]
    assert (2, "new", 1) in read_content(loaded)
    assert latest_version(loaded) == before + 1


def test_a_run_that_was_overtaken_on_other_days_does_not_compute_again(loaded, spark):
    built = []

    def build(days: Window) -> ComputedDays:
        if not built:
            publish_frame(loaded, fact_rows(spark, [(3, "other", 1)]), window(3, 3))
        built.append(days)
        return ComputedDays(fact_rows(spark, [(2, "mine", 1)]), {})

    results = publish_days(loaded.io_manager, FACT, window(2, 2), build, "mine", run="slow")
    assert outcome_values(results) == ["written"]
    assert built == [window(2, 2)]
    assert read_content(loaded) == {(1, "a", 1), (2, "mine", 1), (3, "other", 1)}


def test_commits_of_other_kinds_do_not_hide_one_of_ours(loaded, spark):
    """One run looked before an OPTIMIZE or the like, another after it."""
    manager = loaded.io_manager
    writer = Writer(lambda: spark, manager.url(FACT), FACT)
    metadata = {**RECORD, "audit": {}}
    before = manager.ledger(FACT)
    spark.sql(f"ALTER TABLE delta.`{manager.url(FACT)}` SET TBLPROPERTIES ('note' = 'x')")
    after = manager.ledger(FACT)
    assert after.version > before.version
    rows = fact_rows(spark, [(1, "b", 1), (2, "b", 1)])
    files = writer.write_rows(rows, [day(1), day(2)], None, rebalance=False)
    assert writer.commit(files, [day(1)], metadata, before) is None
    assert writer.commit(files, [day(1)], metadata, after) is not None
    assert writer.commit(files, [day(2)], metadata, after) is None
    assert read_content(loaded) == {(1, "b", 1), (2, "a", 2), (3, "a", 3)}


def test_the_log_is_put_together_every_ten_commits(loaded, spark):
    writer = Writer(lambda: spark, loaded.io_manager.url(FACT), FACT)
    while (ledger := loaded.io_manager.ledger(FACT)).version < 21:
        assert writer.commit({}, [], {**RECORD, "audit": {}}, ledger) == ledger.version + 1
    log = loaded.warehouse / FACT.name / "_delta_log"
    assert {int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")} == {10, 20}
    # Whoever comes new to the table begins with it, Spark as well as others.
    table_copy = shutil.copytree(loaded.warehouse / FACT.name, loaded.root / "elsewhere")
    for commit in (table_copy / "_delta_log").glob("000000000000000000[01]*.json"):
        commit.unlink()
    rows = spark.read.format("delta").load(str(table_copy)).collect()
    assert {(row["run_date"].day, row["customer_id"]) for row in rows} == {
        (row["run_date"].day, row["customer_id"]) for row in loaded.rows(FACT.name)
    }


def test_files_have_the_statistics_that_delta_has(spark, tmp_path, monkeypatch):
    """As Spark itself would say them: rows, nulls, least and greatest values by column."""
    text = "x" * 33
    columns = "a INT, b STRING, c DECIMAL(10,2), d TIMESTAMP, e ARRAY<INT>, f DOUBLE, g BOOLEAN"
    frame = spark.sql(
        "SELECT DATE'2024-01-01' AS day, t.* FROM VALUES "
        "(1, 'a', 1.50BD, TIMESTAMP'2024-01-01 00:00:00.000001', array(1, NULL), 1D, true), "
        "(NULL, 'b', 2.50BD, TIMESTAMP'2024-01-02 00:00:00.000001', NULL, double('NaN'), NULL) "
        "AS t(a, b, c, d, e, f, g)"
    ).coalesce(1)
    url = str(tmp_path / "any")
    spark.sql(f"CREATE TABLE delta.`{url}` (day DATE, {columns}) USING DELTA PARTITIONED BY (day)")
    for store in ("a disk", "S3"):
        if store == "S3":
            monkeypatch.setattr(data_files, "_write_parquet", data_files._write_directly)
        ((file_day, (file,)),) = write_files(frame, url, ["day"])[""].items()
        assert (file_day, file.path.partition("/")[0]) == (day(1), "day=2024-01-01")
        assert json.loads(file.stats) == {
            "numRecords": 2,
            "nullCount": {"a": 1, "b": 0, "c": 0, "d": 0, "e": 1, "f": 0, "g": 1},
            "minValues": {"a": 1, "b": "a", "c": 1.5, "d": "2024-01-01T00:00:00.000Z", "g": True},
            "maxValues": {"a": 1, "b": "b", "c": 2.5, "d": "2024-01-02T00:00:00.001Z", "g": True},
        }
    # Of long texts there are no bounds, which could only be wrong.
    ((_, (file,)),) = write_files(frame.withColumn("b", F.lit(text)), url, ["day"])[""].items()
    assert "b" not in json.loads(file.stats)["minValues"]


def test_a_commit_whose_answer_is_lost_has_come_about(loaded, spark, monkeypatch):
    write_version = Writer._write_version

    def write_and_fail(self, *arguments) -> None:
        write_version(self, *arguments)
        raise OSError("connection lost")

    monkeypatch.setattr(Writer, "_write_version", write_and_fail)
    for rewrite in ((), window(2, 2)):
        before = loaded.log(FACT.name).version()
        rows = fact_rows(spark, [(2, "b", 9)])
        results = publish_frame(loaded, rows, window(2, 2), rewrite=rewrite)
        assert outcome_values(results) == ["written"]
        assert loaded.log(FACT.name).version() == before + 1
        assert read_content(loaded) == {(1, "a", 1), (2, "b", 9), (3, "a", 3)}


def test_a_rule_that_comes_while_a_day_is_computed_holds_for_it(loaded, spark):
    url, built = loaded.warehouse / FACT.name, []

    def build(window_days: Window) -> ComputedDays:
        if not built:
            spark.sql(f"ALTER TABLE delta.`{url}` ADD CONSTRAINT few CHECK (orders < 5)")
        built.append(window_days)
        return ComputedDays(fact_rows(spark, [(2, "b", 9)]), {})

    (result,) = publish_days(loaded.io_manager, FACT, window(2, 2), build, "one", run="r2")
    assert "1 row(s) break the rule orders < 5" in result.verdict.failure_reasons
    assert len(built) == 2
    assert read_content(loaded) == {(n, "a", n) for n in (1, 2, 3)}


def test_a_sum_that_is_no_number_of_64_bits(loaded, spark):
    """The audit, the record, the reconciliation and who reads without Spark have the same one."""
    rows = fact_rows(spark, [(2, "a", 6 * 10**18), (2, "b", 6 * 10**18)])
    (result,) = publish_frame(loaded, rows, window(2, 2))
    assert outcome_values([result]) == ["written"]
    assert result.verdict.metrics.totals["orders"] == 12 * 10**18
    published = loaded.io_manager.ledger(FACT).latest[day(2)].days[day(2)]
    assert published.totals["orders"] == str(12 * 10**18)
    assert check_read(loaded.deployment, FACT, days(2)).problems == []
    url = loaded.io_manager.url(FACT)
    (difference,) = diff_table(
        spark, url, FACT, {day(2): (None, loaded.log(FACT.name).version())}
    ).days
    assert difference.difference_text.startswith("rows +2, orders +12,000,000,000,000,000,000")
    frame = spark.read.format("delta").load(url).withColumn("for_day", F.col("run_date"))
    sums = derived._aggregations(frame, {"orders": "orders", "rows": None})
    of_day = input_frames.sums_by_day(frame, "for_day", sums, FACT.zero_totals)[""][day(2)]
    assert of_day == {"orders": 12 * 10**18, "rows": 2}
    assert type(of_day["orders"]) is int


#: A value, and what its bounds are, or None where none are told.
BOUNDS = [
    ("2999-12-31 23:59:59.999999", ("2999-12-31T23:59:59.999Z", "3000-01-01T00:00:00.000Z")),
    ("9999-12-31 23:59:59.999999", None),
    ("1960-01-01 00:00:00.0015", ("1960-01-01T00:00:00.001Z", "1960-01-01T00:00:00.002Z")),
    ("0900-01-01 00:00:00", ("0900-01-01T00:00:00.000Z",) * 2),
    ("CAST(0.1 AS DECIMAL(10,2))", (0.1, 0.1)),
    ("CAST(-2.5 AS DECIMAL(30,2))", (-2.5, -2.5)),
    ("CAST(1152921504606846976 AS DECIMAL(38,0))", None),
    ("named_struct('x', 1)", None),
]


def test_bounds_are_exact_or_not_told(spark, tmp_path):
    """Each value in a column of its own, as columns know nothing of each other."""
    columns = {}
    for n, (value, _) in enumerate(BOUNDS):
        is_time = value.endswith(tuple("0123456789"))
        columns[f"v{n}"] = f"TIMESTAMP'{value}'" if is_time else value
    selected = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    frame = spark.sql(f"SELECT DATE'2024-01-01' AS day, {selected}")
    ((_, (file,)),) = write_files(frame, str(tmp_path / "any"), ["day"])[""].items()
    stats = json.loads(file.stats)
    for name, (_, bounds) in zip(columns, BOUNDS, strict=True):
        told = [stats[kind][name] for kind in ("minValues", "maxValues") if name in stats[kind]]
        assert told == [*(bounds or ())], name


def test_what_others_do_to_a_day_before_its_record_is_not_overlooked(loaded, spark):
    """The day had the same rows when it was compared, and has none when it is to be committed."""
    frame = fact_rows(spark, [(2, "a", 2)])

    def build(_: Window) -> ComputedDays:
        where = f"run_date = DATE'{day(2)}'"
        spark.sql(f"DELETE FROM delta.`{loaded.warehouse / FACT.name}` WHERE {where}")
        return ComputedDays(frame, {})

    (result,) = publish_days(
        loaded.io_manager, FACT, window(2, 2), build, "same rows, other input", run="r2"
    )
    assert result.outcome is Outcome.WRITTEN
    assert loaded.io_manager.ledger(FACT).current_record(day(2)) is not None
    assert read_content(loaded) == {(n, "a", n) for n in (1, 2, 3)}


# --- merge ----------------------------------------------------------------------------------------


def test_a_merge_changes_and_adds_rows_and_is_on_record(loaded, spark):
    """A key is one of its day."""
    rows = fact_rows(spark, [(1, "a", 1), (2, "a", 7), (2, "b", 1), (3, "a", 9)])
    results = publish_frame(loaded, rows, window(1, 3), merge=True)
    assert outcome_values(results) == ["unchanged", "written", "written"]
    assert read_content(loaded) == {(1, "a", 1), (2, "a", 7), (2, "b", 1), (3, "a", 9)}
    newest = loaded.log(FACT.name).history(1)[0]
    assert newest["operation"] == "MERGE"
    assert json.loads(newest["userMetadata"])["days"] == ["2024-01-02...2024-01-03"]
    assert loaded.digests()[FACT.name]["2024-01-02"] == results[1].verdict.metrics.digest
    # The settings of the one statement are gone.
    publish_frame(loaded, fact_rows(spark, [(1, "c", 1)]), window(1, 1))
    assert loaded.log(FACT.name).history(1)[0]["operation"] == "WRITE"


def test_what_a_merge_would_leave_behind_is_caught(loaded, spark):
    """A merge takes nothing away: customer a is gone from day 2, and a row is there twice on day 1.

    Both would stay.
    """
    url = f"delta.`{loaded.warehouse / FACT.name}`"
    spark.sql(f"INSERT INTO {url} SELECT * FROM {url} WHERE run_date = DATE'{day(1)}'")
    rows = [(1, "a", 1), (2, "b", 1), (3, "a", 9)]
    results = publish_frame(loaded, fact_rows(spark, rows), window(1, 3), merge=True)
    assert outcome_values(results) == ["failed", "failed", "written"]
    for result in results[:2]:
        assert (
            "1 published row(s) are absent or less frequent in the source"
            in result.verdict.failure_reasons
        )
    assert read_content(loaded) == {(1, "a", 1), (2, "a", 2), (3, "a", 9)}
    assert outcome_values(publish_frame(loaded, fact_rows(spark, rows[:2]), window(1, 2))) == [
        "written",
        "written",
    ]
    assert read_content(loaded) == {(1, "a", 1), (2, "b", 1), (3, "a", 9)}
    assert loaded.log(FACT.name).to_pyarrow_table().num_rows == 3


def test_a_null_in_a_key_is_equal_to_a_null(pipeline, spark):
    """In the audit of a merge, and in the merge itself; the first one makes the table."""

    def merge_rows(*rows: tuple[int, str | None, int]) -> list[DayResult]:
        data = [(day(n), "a", orders, Decimal(orders), channel, 1) for n, channel, orders in rows]
        frame = spark.createDataFrame(data, PER_CHANNEL.struct_type)
        return publish_frame(pipeline, frame, window(1, 2), table=PER_CHANNEL, merge=True)

    made = merge_rows((1, None, 1), (1, "web", 2), (2, None, 3))
    assert outcome_values(made) == ["written", "written"]
    results = merge_rows((1, None, 5), (1, "web", 2), (1, "shop", 4), (2, "web", 3))
    assert outcome_values(results) == ["written", "failed"]
    assert "1 published row(s) are absent" in results[1].verdict.failure_reasons
    assert {(r["run_date"].day, r["channel"], r["orders"]) for r in pipeline.rows(FACT.name)} == {
        (1, None, 5),
        (1, "web", 2),
        (1, "shop", 4),
        (2, None, 3),
    }
    assert pipeline.log(FACT.name).to_pyarrow_table().num_rows == 4


def test_a_merge_that_was_overtaken_looks_again(loaded, spark):
    """The other run adds a row that this source has not: merging on would leave it."""
    first = []

    def build(_: Window) -> ComputedDays:
        if not first:
            first.append(
                publish_frame(loaded, fact_rows(spark, [(2, "a", 2), (2, "x", 1)]), window(2, 2))
            )
        return ComputedDays(fact_rows(spark, [(2, "a", 5)]), {})

    (result,) = publish_days(
        loaded.io_manager, FACT, window(2, 2), build, "mine", run="slow", merge=True
    )
    assert (
        "1 published row(s) are absent or less frequent in the source"
        in result.verdict.failure_reasons
    )
    assert read_content(loaded) == {(1, "a", 1), (2, "a", 2), (2, "x", 1), (3, "a", 3)}


def test_an_unknown_write_mode_is_refused(pipeline):
    pipeline.land(1, [order("a", 1)])
    result = pipeline.run(1, tags={"backfill_assets/write_mode": "append"}, fails=True)
    assert "must be `overwrite` or `merge`" in pipeline.failure(result)
    assert not (pipeline.warehouse / "raw_orders").exists()


def test_the_run_tags_reach_the_write_path(pipeline):
    pipeline.land(1, [order("a", 1)])
    names = (RAW.name, STAGED.name)
    pipeline.run(1, None, names)
    versions = {name: pipeline.log(name).version() for name in names}
    tags = {"backfill_assets/rewrite": "true", "backfill_assets/write_mode": "merge"}
    pipeline.run(1, None, names, tags=tags)
    assert {name: pipeline.log(name).version() for name in names} == {
        name: version + 1 for name, version in versions.items()
    }
    operations = {name: pipeline.log(name).history(1)[0]["operation"] for name in names}
    # Rows of the log are never merged.
    assert {name for name, operation in operations.items() if operation == "MERGE"} == {STAGED.name}


# --- what other settings made ---------------------------------------------------------------------


def test_a_backfill_is_kept_to_the_settings_of_each_table():
    """The window was changed halfway: the raw log does not depend on it, staging does."""
    before, now = (Deployment(load_settings(window_days=w)).config_digests for w in (7, 8))
    metadata = {"code_version": "code", "config_digest": now[FACT.name], "backfill_id": "b"}

    def read_inputs(*tables: Table) -> None:
        inputs = [
            (ledger(t, record(0, days(1), backfill="b", config_digest=before[t.name])), now[t.name])
            for t in tables
        ]
        refuse_other_code(ledger(FACT), window(1, 1), metadata, inputs)

    read_inputs(RAW)
    with pytest.raises(PublishError, match="has published 2024-01-01 of stg_orders with code code"):
        read_inputs(RAW, STAGED)
