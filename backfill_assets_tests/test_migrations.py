"""Tables are brought to other columns, and all readers see them as they were or as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import duckdb
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from deltalake import DeltaTable
from pandera.pyspark import Field

from backfill_assets.delta import migrating
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.creation import schema_of
from backfill_assets.delta.evolution import SCHEMA_VERSION, refuse
from backfill_assets.delta.migrating import look, migrate
from backfill_assets.delta.other_engine import read_test
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.schema_changes import Migration
from backfill_assets.orders.facts import FACT
from backfill_assets.publish.candidates import Built, Candidate, Outcome, Plan
from backfill_assets.tables.columns import nullable
from backfill_assets.tables.schemas import added
from backfill_assets.tables.table import SchemaError, Table
from backfill_assets_tests.invented_logs import days
from backfill_assets_tests.pipeline import Pipeline, day
from backfill_assets_tests.publishing import RECORD, window

CONFIG = {"partition": "run_date", "key": ["customer"], "totals": ["orders"]}


def table_of(version: int = 1, **columns: Any) -> Table:
    """The table of before, with these columns in place of its own; none takes one away.

    Args:
        version: of the schema.
        columns: (type, field) by name, `old_to_new` style names not needed.
    """
    own: dict[str, Any] = {
        "run_date": (T.DateType, Field(description="The day.")),
        "customer": (T.StringType, Field(description="The customer.")),
        "orders": (T.IntegerType, Field(ge=1, description="Orders.")),
        "paid": (T.DecimalType(10, 2), Field(description="Paid.")),
        "share": (T.FloatType, Field(description="Share.")),
        "note": (T.StringType, nullable(1.0, 1.0, "A note.")),
    }
    named = {}
    for name, of in own.items():
        new = columns.pop(name, of)
        if isinstance(new, tuple) and isinstance(new[0], str):
            named[new[0]] = new[1:]
        elif new is not None:
            named[name] = new
    named |= columns
    config = type("Config", (), {"strict": True, "metadata": {**CONFIG, "schema_version": version}})
    body = {
        "__annotations__": {name: kind for name, (kind, _) in named.items()},
        "__module__": __name__,
        "Config": config,
        **{name: field for name, (_, field) in named.items()},
    }
    return replace(FACT, model=type("Model", (pa.DataFrameModel,), body))


BEFORE = table_of()
RENAMED = table_of(
    2,
    note=(
        "remark",
        T.StringType,
        Field(
            nullable=True,
            description="A note.",
            metadata={"null_warn": 1.0, "null_error": 1.0, "renamed_from": "note"},
        ),
    ),
)
WIDENED = table_of(
    2,
    orders=(T.LongType, Field(ge=1, description="Orders.")),
    paid=(T.DecimalType(28, 4), Field(description="Paid.")),
    share=(T.DoubleType, Field(description="Share.")),
)
DROPPED = table_of(2, note=None)
LOOSER = table_of(
    2,
    orders=(
        T.IntegerType,
        Field(
            ge=1,
            nullable=True,
            description="Orders, if known.",
            metadata={"null_warn": 1.0, "null_error": 1.0},
        ),
    ),
)
STRICTER = table_of(2, note=(T.StringType, Field(description="A note.")))
GAP = table_of(2, channel=(T.StringType, added("shop", day(3), "Where from.")))

ROWS = [
    (day(1), "a", 1, Decimal("1.10"), 0.5, "x"),
    (day(1), "b", 2, Decimal("2.20"), 0.25, "y"),
    (day(2), "a", 3, Decimal("3.30"), 0.75, "z"),
    (day(3), "c", 4, Decimal("4.40"), 0.1, "w"),
]


def publish(pipeline: Pipeline, spark, table: Table, rows: list[tuple], run: str = "r1"):
    found = spark.createDataFrame(rows, table.struct)
    dates = sorted({row[0] for row in rows})
    plan = Plan(dict.fromkeys(dates, "made of this"), lambda _: Built(found, {}))
    over = window(dates[0].day, dates[-1].day)
    done = pipeline.io_manager.publish(
        Candidate(table, lambda _: plan), over, {**RECORD, "run_id": run}
    )
    return [one.outcome for one in done]


@pytest.fixture
def url(pipeline, spark) -> str:
    assert publish(pipeline, spark, BEFORE, ROWS) == [Outcome.WRITTEN] * 3
    return pipeline.io_manager.url(BEFORE)


def writer(pipeline: Pipeline, table: Table) -> Writer:
    engine = pipeline.io_manager.engine
    return Writer(lambda: engine.spark_session, pipeline.io_manager.url(table), table)


def seen(spark, url: str, version: int | None = None) -> list[dict]:
    """The rows as Spark, delta-rs and DuckDB have them, who must have the same."""
    log = DeltaTable(url, version=version)
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


def texts(found: Migration | None) -> list[tuple[str, str]]:
    assert found is not None
    return [(change.text, change.cost) for change in found.changes]


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


def same(row: dict) -> dict:
    return row


CHANGES = {
    "renamed": (RENAMED, renamed, 3),
    "widened": (WIDENED, widened, 3),
    "dropped": (DROPPED, without_note, 0),
    "may be null": (LOOSER, same, 0),
    "required": (STRICTER, same, 0),
    "a default": (GAP, with_channel, 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_readers_see_the_table_as_it_was_or_as_it_is(name, url, pipeline, spark, monkeypatch):
    table, change, rewritten = CHANGES[name]
    before, version = seen(spark, url), DeltaTable(url).version()
    assert approximately(before) == approximately(rows_with(same))
    files = set(DeltaTable(url).file_uris())
    found = look(url, table)
    assert found is not None
    assert found.refused == []
    assert len(found.days) == rewritten
    # An ordinary run of the new code is refused until then.
    with pytest.raises(SchemaError, match="Run backfill-assets migrate"):
        refuse(read_ledger(url, table), url)

    # Killed between the new files and the commit: readers have what they had, at each version.
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(migrating, "_commit", killed)
        list(migrate(writer(pipeline, table)))
    assert seen(spark, url) == before
    # Killed after the commit, before the version of the schema is set.
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(migrating, "_finish", killed)
        list(migrate(writer(pipeline, table)))
    after = seen(spark, url)
    assert approximately(after) == approximately(rows_with(change))
    for code in (BEFORE, table):
        if name in ("renamed", "widened") or code is table:
            with pytest.raises(SchemaError):
                refuse(read_ledger(url, code), url)

    said = list(migrate(writer(pipeline, table)))
    assert any("the schema has version 2, not 1" in text for text in said)
    assert seen(spark, url) == after
    assert DeltaTable(url).metadata().configuration[SCHEMA_VERSION] == "2"
    assert (look(url, table) or Migration(read_ledger(url, table))).changes == []
    # Old versions are read as before; each version has one of the two.
    for at in range(version, DeltaTable(url).version() + 1):
        assert seen(spark, url, at) in (before, after)
    kept = files & set(DeltaTable(url).file_uris())
    assert len(kept) == 3 - rewritten

    # The schema is as a table that is created now has it.
    assert DeltaTable(url).schema().to_json() == schema_of(table).to_json()
    # The days are on record, and another engine finds what the records say.
    ledger = read_ledger(url, table)
    assert ledger.published == days(1, 2, 3)
    assert not ledger.external
    assert read_test(pipeline.settings, table, days(1, 2, 3)).problems == []
    # The code of before is refused, and told why.
    with pytest.raises(SchemaError, match=r"schema has version 2, and the code has 1.*Install the"):
        refuse(read_ledger(url, BEFORE), url)
    with pytest.raises(SchemaError, match="Nothing was written"):
        publish(pipeline, spark, BEFORE, ROWS)
