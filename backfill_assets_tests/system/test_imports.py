"""An append-only table of somebody else's becomes landing files, is loaded, and is followed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.cli import main
from backfill_assets.imports import importer
from backfill_assets.imports import landing_files as files_module
from backfill_assets.imports.import_state import (
    ImportMapping,
    ImportRefusedError,
    load_imports,
    lock_import,
)
from backfill_assets.imports.importer import (
    ImportRequest,
    RowCounts,
    check_import,
    plan_import,
    run_import,
)
from backfill_assets.imports.landing_files import split_chunks
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.pipeline import Pipeline, day

Command = Callable[..., str]
RAW = ("raw_orders", "raw_orders_rejected")
STAGING = (*RAW, "stg_orders")
SCHEMA = pa.schema(
    [
        ("order_id", pa.string()),
        ("customer_id", pa.string()),
        ("order_ts", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(18, 2)),
        ("ingestion_ts", pa.timestamp("us", "UTC")),
        ("job", pa.string()),
    ]
)


def row(
    key: str | None, event: int | None, ingested: int | None = None, amount: str = "10.00"
) -> dict[str, Any]:
    """A row of the old table: an order of a day, taken on that day or a later one."""

    def at(n: int | None, hour: int) -> datetime | None:
        return None if n is None else datetime.combine(day(n), time(hour), timezone.utc)

    return {
        "order_id": key,
        "customer_id": "c1",
        "order_ts": at(event, 10),
        "amount": Decimal(amount),
        "ingestion_ts": at(ingested or event, 11),
        "job": "nightly",
    }


#: Three days; an order that changes in time, one that comes late, one without a key.
DAYS = [
    row("a", 1),
    row("b", 1, amount="1.10"),
    row("c", 2),
    row("a", 1, 2, "12.00"),
    row(None, 2),
    row("d", 3),
    row("e", 3, 12, "7.00"),
]


def append_rows(old: Path, rows: Iterable[Mapping[str, Any]], *, mode: Any = "append") -> None:
    write_deltalake(old, pa.Table.from_pylist([*rows], schema=SCHEMA), mode=mode)


def import_work(pipeline: Pipeline, spark, old: Path, **more: Any) -> ImportRequest:
    return ImportRequest(pipeline.deployment, spark, ORDER_LINES, str(old), **more)


def landing_files(pipeline: Pipeline) -> dict[str, tuple[bytes, int]]:
    """What lies in the landing: contents and times."""
    return {
        str(path.relative_to(pipeline.landing)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(pipeline.landing.rglob("*"))
        if path.is_file()
    }


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check_counts(pipeline: Pipeline, spark):
    imports = load_imports(pipeline.deployment, "orders").values()
    return check_import(pipeline.deployment, spark, ORDER_LINES, imports)


def staged_by_model(rows: Iterable[Mapping[str, Any]], window: int = 7) -> dict[date, Decimal]:
    """By event day the amount that counts: of each key the last version that came in time."""
    latest: dict[str, Mapping[str, Any]] = {}
    for record in sorted(rows, key=lambda record: str(record["ingestion_ts"])):
        key, event, ingested = (record[name] for name in ("order_id", "order_ts", "ingestion_ts"))
        if key and event and ingested and ingested.date() - event.date() <= timedelta(days=window):
            latest[key] = record
    sums: Counter[date] = Counter()
    for record in latest.values():
        sums[record["order_ts"].date()] += record["amount"]
    return dict(sums)


def staged_amounts(pipeline: Pipeline) -> dict[date, Decimal]:
    sums: Counter[date] = Counter()
    for record in pipeline.rows("stg_orders"):
        sums[record["event_date"]] += record["amount"]
    return dict(sums)


def landed_rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The rows of all landing files."""
    paths = sorted((pipeline.landing / "orders").glob("arrival_date=*/*"))
    # Not as a data set, which would take the folders for a column.
    return [record for path in paths for record in pq.ParquetFile(path).read().to_pylist()]


@pytest.fixture
def pipeline(engine: Engine, tmp_path: Path) -> Pipeline:
    return Pipeline(engine, tmp_path)


@pytest.fixture
def import_command(pipeline: Pipeline, engine: Engine, spark, monkeypatch, capsys) -> Command:
    """The command for orders; what it prints."""
    for name in ("landing", "warehouse", "start", "end"):
        value = str(getattr(pipeline.settings, name))
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", value)
    monkeypatch.setattr(importer.Engine, "from_settings", lambda _: engine)

    def run_command(*words: str, status: int = 0) -> str:
        assert main(["import", "orders", *words]) == status
        output = capsys.readouterr()
        return output.out + output.err

    return run_command


def test_the_plan_of_the_page(tmp_path: Path, import_command: Command) -> None:
    """Each column of the table of the page makes a field."""
    old = tmp_path / "old"
    moment = datetime.combine(day(1), time(10), timezone.utc)
    columns = {"id": ["a"], "customer_id": ["c1"], "revenue": [1.005], "order_ts": [moment]}
    write_deltalake(old, pa.table(columns))
    (block,) = (code for code in code_blocks("docs/own-sources.md", "text") if "--plan" in code)
    words = shlex.split(block.replace("/data/old_orders", str(old)).replace("\\\n", " "))
    assert words[:3] == ["backfill-assets", "import", "orders"]
    output = import_command(*words[3:])
    assert re.search(r"^unused columns +none$", output, re.MULTILINE), output
    assert re.search(r"^rows +1 in ", output, re.MULTILINE), output


def test_a_table_that_was_appended_twice_is_imported_and_followed(
    pipeline: Pipeline, spark, tmp_path: Path, import_command: Command
) -> None:
    old = tmp_path / "old"
    append_rows(old, DAYS)
    append_rows(old, [*DAYS, row("f", None)])
    rows = [*DAYS, *DAYS, row("f", None)]
    before = read_files(old)

    with (
        lock_import(pipeline.deployment, "orders", str(old)),
        pytest.raises(ImportRefusedError, match="is being imported into orders by process"),
    ):
        run_import(import_work(pipeline, spark, old))
    assert not landing_files(pipeline)

    # The plan: how many duplicates, by which key, on which day.
    proposal = plan_import(import_work(pipeline, spark, old))
    assert (proposal.new_data.version, proposal.new_data.since) == (1, None)
    assert proposal.new_data.size == sum(path.stat().st_size for path in old.glob("*.parquet"))
    assert proposal.by_day == {
        day(1): RowCounts(rows=4, repeated=2),
        day(2): RowCounts(rows=6, repeated=3, no_key=2),
        day(3): RowCounts(rows=2, repeated=1),
        day(12): RowCounts(rows=2, repeated=1, late=2),
    }
    assert proposal.stray == RowCounts(rows=1)
    assert proposal.total.rows == len(rows)
    # a, b, c, d, e and f; a in two versions.
    assert (proposal.keys, proposal.versions, proposal.max_repeats) == (6, 7, 2)
    assert (proposal.absent, proposal.unused) == ([], ["job"])
    output = import_command(str(old), "--plan")
    assert f"{len(rows)} in " in output
    assert str(day(12)) in output
    assert not landing_files(pipeline)
    assert not load_imports(pipeline.deployment, "orders")

    # A row without a day is a person's to decide about.
    with pytest.raises(ImportRefusedError, match=r"1 row\(s\) .* tell no day of the calendar"):
        run_import(import_work(pipeline, spark, old))
    assert not landing_files(pipeline)

    output = import_command(str(old), "--stray", str(day(3)))
    assert f"{len(rows)} rows in 4 file(s)" in output
    landed = landing_files(pipeline)
    assert Counter(name.split("/")[1][13:] for name in landed) == Counter(
        [str(day(n)) for n in (1, 2, 3, 12)]
    )

    # The same again changes nothing.
    assert "no new rows" in import_command()
    assert landing_files(pipeline) == landed
    assert read_files(old) == before

    # Its owner goes on: new rows, one late, one repeated; and compacts the table.
    more = [row("g", 13), row("h", 4, 13, "3.00"), row("c", 2)]
    append_rows(old, more)
    DeltaTable(old).optimize.compact()
    before = read_files(old)
    run_import(import_work(pipeline, spark, old))
    new = landing_files(pipeline).keys() - landed.keys()
    assert sorted(name.split("/")[1] for name in new) == [f"arrival_date={day(n)}" for n in (2, 13)]
    assert {name: landing_files(pipeline)[name] for name in landed} == landed
    pipeline.run(1, 13, STAGING)
    rows += more
    counts = check_counts(pipeline, spark)
    assert counts.problems == []
    assert (counts.read, counts.landed) == (len(rows), len(rows))
    # Rejected: two without a key, one without a day.
    assert (counts.raw, counts.rejected) == (15, 3)
    assert (counts.staged, counts.superseded, counts.late, counts.early) == (5, 7, 3, 0)
    assert (
        staged_amounts(pipeline)
        == staged_by_model(rows)
        == {
            day(1): Decimal("13.10"),
            **dict.fromkeys(map(day, (2, 3, 13)), Decimal("10.00")),
        }
    )
    output = import_command("--check")
    assert "15 raw + 3 rejected" in output
    assert str(len(rows)) in output

    # Compacting alone is no news, and what has been looked at is not looked at again.
    DeltaTable(old).optimize.compact()
    landed, before = landing_files(pipeline), read_files(old)
    found_again = run_import(import_work(pipeline, spark, old))
    assert found_again.version == DeltaTable(old).version()
    assert landing_files(pipeline) == landed
    assert read_files(old) == before

    # What takes rows away is refused, unless a person passes over it.
    DeltaTable(old).delete("order_id = 'b'")
    version = DeltaTable(old).version()
    append_rows(old, [row("i", 14)])
    with pytest.raises(ImportRefusedError, match=rf"version {version} \(DELETE\) took rows away"):
        run_import(import_work(pipeline, spark, old))
    assert landing_files(pipeline) == landed
    run_import(import_work(pipeline, spark, old, skip=(version,)))
    (name,) = landing_files(pipeline).keys() - landed.keys()
    assert pq.read_table(pipeline.landing / name)["order_id"].to_pylist() == ["i"]
    append_rows(old, [row("z", 1)], mode="overwrite")
    with pytest.raises(ImportRefusedError, match="took rows away"):
        run_import(import_work(pipeline, spark, old))


def test_a_killed_import_goes_on_with_the_same_rows(
    pipeline: Pipeline, spark, tmp_path: Path, monkeypatch
) -> None:
    old = tmp_path / "old"
    append_rows(old, [row("a", 1), row("b", 1), row("c", 2), row("d", 3)])
    whole = Pipeline(pipeline.io_manager.engine, tmp_path / "whole")
    run_import(import_work(whole, spark, old))
    expected = {name: content for name, (content, _) in landing_files(whole).items()}

    land, times = files_module.land_files, []

    def killed_land(*arguments: Any) -> dict[str, int]:
        times.append(1)
        result = land(*arguments)
        if len(times) == 2:
            raise KeyboardInterrupt  # its files have landed, and nobody has written it down
        return result

    monkeypatch.setattr(files_module, "land_files", killed_land)
    with pytest.raises(KeyboardInterrupt):
        run_import(import_work(pipeline, spark, old, chunk_rows=1))
    monkeypatch.setattr(files_module, "land_files", land)
    (progress,) = load_imports(pipeline.deployment, "orders").values()
    assert progress.unfinished_step
    assert len(progress.landed_files) == 1
    assert len(landing_files(pipeline)) == 2
    with pytest.raises(ImportRefusedError, match="ended before its end: 2 of 4 rows"):
        plan_import(import_work(pipeline, spark, old))
    unfinished, unloaded = check_counts(pipeline, spark).problems
    assert "import again" in unfinished
    assert "not loaded yet: 1 file(s)" in unloaded
    # Meanwhile the owner has appended: that lands as a step of its own.
    append_rows(old, [row("g", 13)])
    run_import(import_work(pipeline, spark, old))
    now = {name: content for name, (content, _) in landing_files(pipeline).items()}
    assert {name: content for name, content in now.items() if name in expected} == expected
    (name,) = now.keys() - expected.keys()
    assert name.startswith(f"orders/arrival_date={day(13)}/")
    (progress,) = load_imports(pipeline.deployment, "orders").values()
    assert [step.row_count for step in progress.steps] == [4, 1]
    assert progress.unfinished_step is None


def test_a_folder_of_parquet_files(pipeline: Pipeline, spark, tmp_path: Path) -> None:
    old = tmp_path / "old [1]"

    def write_file(name: str, rows: list[dict[str, Any]]) -> None:
        path = old / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)

    write_file("year=2024/first.parquet", DAYS[:4])
    write_file("_temporary/half.parquet", DAYS)
    run_import(import_work(pipeline, spark, old))
    landed = landing_files(pipeline)
    run_import(import_work(pipeline, spark, old))
    assert landing_files(pipeline) == landed
    write_file("year=2024/second.parquet", [row("x", 2), row("a", 1)])
    run_import(import_work(pipeline, spark, old))
    new = landing_files(pipeline).keys() - landed.keys()
    assert sorted(name.split("/")[1][13:] for name in new) == [str(day(1)), str(day(2))]
    assert sorted(record["order_id"] for record in landed_rows(pipeline)) == [*"aaabcx"]
    write_file("year=2024/first.parquet", DAYS[:3])
    with pytest.raises(ImportRefusedError, match=r"1 file\(s\) .* gone or changed"):
        run_import(import_work(pipeline, spark, old))


@pytest.mark.parametrize(
    ("properties", "change"),
    [
        pytest.param("", "OPTIMIZE {}", marks=pytest.mark.slow),
        pytest.param(
            "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
            "ALTER TABLE {} RENAME COLUMN job TO task",
            marks=pytest.mark.slow,
        ),
        (
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            "DELETE FROM {} WHERE order_id = 'o-0'",
        ),
    ],
    ids=["compacted", "a renamed column", "deletion vectors"],
)
def test_a_partitioned_table_of_spark(
    pipeline: Pipeline, spark, tmp_path: Path, properties: str, change: str
) -> None:
    """What its files hold is Delta's to say, also of those that come later."""
    old = tmp_path / "old"
    columns = (
        "order_id STRING, customer_id STRING, order_ts TIMESTAMP, amount DECIMAL(18, 2), "
        "ingestion_ts TIMESTAMP, job STRING"
    )
    spark.sql(
        f"CREATE TABLE delta.`{old}` ({columns}, order_day DATE) USING delta "
        f"PARTITIONED BY (order_day) {properties}"
    )

    def add_rows(rows: Iterable[Mapping[str, Any]]) -> None:
        frame = spark.createDataFrame([tuple(record.values()) for record in rows], columns)
        of_day = frame.selectExpr("*", "CAST(order_ts AS DATE) AS order_day")
        # Not by a view, which would stay in the session of the suite.
        spark.sql(f"INSERT INTO delta.`{old}` SELECT * FROM {{rows}}", rows=of_day)

    # Days of several files, where they are compacted.
    batches = [range(9), range(9, 12)] if change.startswith("OPTIMIZE") else [range(9)]
    for numbers in batches:
        add_rows(row(f"o-{n}", 1 + n % 3) for n in numbers)
    spark.sql(change.format(f"delta.`{old}`"))
    run_import(import_work(pipeline, spark, old))
    add_rows(row(f"o-{n}", 2) for n in range(12, 14))
    run_import(import_work(pipeline, spark, old))
    expected = {f"o-{n}" for numbers in (*batches, range(12, 14)) for n in numbers}
    if change.startswith("DELETE"):
        expected.remove("o-0")
    assert Counter(record["order_id"] for record in landed_rows(pipeline)) == Counter(expected)


def test_columns_that_do_not_fit_are_refused_by_name(
    pipeline: Pipeline, spark, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    table = pa.Table.from_pylist(
        [
            {"id": 7, "order_ts": "2024-01-01T10:00:00", "revenue": 1.5, "customer_id": [1]},
            {"id": 8, "order_ts": "2024-01-02T10:00:00", "revenue": 2.255, "customer_id": [2]},
        ]
    )
    write_deltalake(old, table)
    with pytest.raises(ImportRefusedError) as refused:
        plan_import(import_work(pipeline, spark, old))
    for text in (
        "order_id: the table has no such column",
        "amount: the table has no such column",
        "ingestion_ts: the table has no such column",
        "order_ts: it is string in the table, and must be timestamp",
        "customer_id: it is array<bigint> in the table, and must be string",
    ):
        assert text in str(refused.value)
    fields = {
        "order_id": "id",
        "customer_id": "cast(customer_id[0] as string)",
        "order_ts": "try_to_timestamp(order_ts)",
        "ingestion_ts": "try_to_timestamp(order_ts)",
        "amount": "revenue",
    }
    for other, message in (
        ({"nothing": "1"}, "has no field nothing"),
        (fields | {"amount": "no_such"}, "amount: no_such cannot be computed"),
        (fields | {"amount": "1 +"}, r"amount: 1 \+ cannot be computed"),
    ):
        with pytest.raises(ImportRefusedError, match=message):
            run_import(import_work(pipeline, spark, old, mapping=ImportMapping(fields=other)))
    with pytest.raises(ImportRefusedError, match="arrival day id: it is bigint"):
        run_import(
            import_work(pipeline, spark, old, mapping=ImportMapping(fields=fields, arrived="id"))
        )
    with pytest.raises(ImportRefusedError, match="holds no Delta table and no Parquet files"):
        run_import(import_work(pipeline, spark, tmp_path / "nowhere"))
    assert not landing_files(pipeline)
    assert not load_imports(pipeline.deployment, "orders")

    run_import(
        import_work(
            pipeline, spark, old, mapping=ImportMapping(fields=fields, arrived="DATE'2024-01-03'")
        )
    )
    with pytest.raises(ImportRefusedError, match="already, with other expressions"):
        run_import(
            import_work(pipeline, spark, old, mapping=ImportMapping(fields={"order_id": "id"}))
        )
    pipeline.run(3, 3, RAW)
    (raw_row,) = pipeline.rows("raw_orders")
    names = ("log_date", "order_id", "customer_id", "amount")
    assert [raw_row[name] for name in names] == [day(3), "7", "1", Decimal("1.50")]
    # 2.255 is no amount with two decimals: said, and not rounded.
    assert len(pipeline.rows("raw_orders_rejected")) == 1


def test_what_the_command_refuses(import_command: Command, tmp_path: Path, capsys) -> None:
    old = tmp_path / "old"
    assert "give the table" in import_command(status=3)
    for words, message in (
        (["order", str(old)], "did you mean 'orders'?"),
        (["orders", str(old), "--field", "amount"], "is not NAME=EXPRESSION"),
    ):
        assert main(["import", *words]) == 2
        assert message in capsys.readouterr().err


def test_chunks() -> None:
    rows = {day(3): 5, day(1): 4, day(2): 4, day(4): 30, day(5): 1}
    assert list(split_chunks(rows, 10)) == [[day(1), day(2)], [day(3)], [day(4)], [day(5)]]
    assert list(split_chunks({}, 10)) == []


def test_a_day_of_many_rows_has_several_files(
    pipeline: Pipeline, spark, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(files_module, "ROWS_PER_FILE", 20)
    old = tmp_path / "old"
    append_rows(old, [row(f"k{n}", 1) for n in range(70)])
    result = run_import(import_work(pipeline, spark, old))
    assert len(result.landed_files) == 4
    assert sum(result.landed_files.values()) == 70
    names = pq.read_table(pipeline.landing / "orders" / f"arrival_date={day(1)}")["order_id"]
    assert sorted(names.to_pylist()) == sorted(f"k{n}" for n in range(70))


@pytest.mark.parametrize(
    ("value", "expression", "arrival_day", "landed"),
    [
        # Ten in the evening in New York is the next day in UTC, the business zone here. What has no
        # offset lands as it is: the loader reads it in the zone of the source.
        ("timestamp_ntz'2024-01-01T22:00:00'", "order_ts", 2, "2024-01-01 22:00:00"),
        ("date'2024-01-01'", "order_ts", 1, "2024-01-01"),
        ("timestamp'2024-01-01T22:00:00Z'", "order_ts", 1, "2024-01-01 22:00:00"),
        # An expression reads it in the zone of the source.
        ("'2024-01-01T22:00:00'", "cast(order_ts as timestamp)", 2, "2024-01-02 03:00:00"),
        ("'2024-01-01T22:00:00Z'", "cast(order_ts as timestamp)", 1, "2024-01-01 22:00:00"),
        (
            "'1.1.2024 22:00'",
            "to_timestamp(order_ts, 'd.M.yyyy HH:mm')",
            2,
            "2024-01-02 03:00:00",
        ),
    ],
)
def test_times_without_an_offset_are_in_the_zone_of_the_source(
    spark: SparkSession, value: str, expression: str, arrival_day: int, landed: str
):
    """Their arrival day is the one that the loader reads from the landed value."""
    source = replace(ORDER_LINES, timezone="America/New_York")
    table = spark.sql(
        f"SELECT 'a' order_id, 'c1' customer_id, {value} order_ts, 1.00BD amount, "
        "struct(timestamp'2024-01-02T02:00:00Z' AS at) nested"
    )
    fields = dict.fromkeys(("order_ts", "ingestion_ts"), expression)
    mapped = []
    for arrived in ("", expression, "to_date(nested.at)"):
        mapping = ImportMapping(fields=fields, arrived=arrived)
        lines = files_module.map_rows(table, source, mapping, "UTC").rows
        mapped.append(lines.select(F.col("order_ts").cast("string"), files_module.ARRIVAL_DAY))
    assert [tuple(line) for line in reduce(DataFrame.unionAll, mapped).collect()] == [
        (landed, day(number)) for number in (arrival_day, arrival_day, 1)
    ]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    for view in spark.sql("SHOW VIEWS LIKE 'import_*'").collect():
        spark.catalog.dropTempView(view["viewName"])
