"""The stream of `make bench-tpch`, the tables that DuckDB makes of it, and the table it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets.calendar.partitions import DAY
from backfill_assets_tests.benchmarks.peers.workspace import Call
from backfill_assets_tests.benchmarks.tpch import bench_tpch, duckdb_job
from backfill_assets_tests.benchmarks.tpch.bench_tpch import StepResult, make_steps
from backfill_assets_tests.benchmarks.tpch.landing import FIRST, Landing
from backfill_assets_tests.helpers.paths import PROJECT

#: Order, line, day of shipment, day of receipt (counted from 0), price, mode.
LINES = [
    (1, 1, 0, 1, "10.00", "AIR"),
    (2, 1, 0, 14, "20.00", "AIR"),
    (3, 1, 0, 15, "40.00", "AIR"),
    (4, 1, 0, 16, "80.00", None),
    (10, 1, 3, 4, "5.00", "RAIL"),
]


@pytest.fixture
def original(tmp_path) -> Path:
    """Days of the stream, as `generate_days` writes them."""
    folder = tmp_path / "original"
    for day in range(17):
        (folder / f"arrival_date={FIRST + day * DAY}").mkdir(parents=True)
    for order, line, shipped, received, price, mode in LINES:
        duckdb.sql(
            f"""SELECT {order}::BIGINT AS l_orderkey, {line} AS l_linenumber,
                       1::DECIMAL(15, 2) AS l_quantity,
                       {price}::DECIMAL(15, 2) AS l_extendedprice,
                       0.5::DECIMAL(15, 2) AS l_discount,
                       DATE '{FIRST}' + {shipped} AS l_shipdate,
                       DATE '{FIRST}' + {received} AS l_receiptdate,
                       {f"'{mode}'" if mode else "NULL::VARCHAR"} AS l_shipmode"""
        ).write_parquet(str(folder / f"arrival_date={FIRST + received * DAY}" / "items0.parquet"))
    return folder


def make_tables(root: Path, last: int) -> dict[str, list[tuple]]:
    """The rows of the tables: day from 0, mode and sums, or order and price."""
    duckdb_job.make_tables(root, FIRST, FIRST + last * DAY, root / "truth")
    columns = {
        "raw_items": f"log_date - DATE '{FIRST}', l_orderkey, l_extendedprice::DOUBLE",
        "stg_items": f"l_shipdate - DATE '{FIRST}', l_orderkey, l_extendedprice::DOUBLE",
    }
    sums = f"run_date - DATE '{FIRST}', l_shipmode, items, revenue::DOUBLE"
    return {
        name: duckdb.sql(
            f"SELECT {columns.get(name, sums)} FROM '{root}/truth/{name}.parquet' ORDER BY ALL"
        ).fetchall()
        for name in duckdb_job.QUERIES
    }


def test_lines_beyond_the_window_are_current_and_corrections(tmp_path, original):
    Landing(tmp_path, original).land_days(FIRST, FIRST + 16 * DAY)
    tables = make_tables(tmp_path, 16)
    assert len(tables["raw_items"]) == 5
    assert tables["stg_items"] == [(0, 1, 10.0), (0, 2, 20.0), (3, 10, 5.0)]
    assert tables["mode_days"] == [(0, "AIR", 2, 15.0), (3, "RAIL", 1, 2.5)]
    assert tables["mode_days_current"] == [
        *[(0, "AIR", 3, 35.0), (0, "unknown", 1, 40.0), (3, "RAIL", 1, 2.5)]
    ]
    assert tables["mode_days_corrections"] == [(0, "AIR", 1, 20.0), (0, "unknown", 1, 40.0)]
    assert len(make_tables(tmp_path, 15)["raw_items"]) == 4


def test_what_happens_changes_one_landing_alone(tmp_path, original):
    """Late: a newer version of an even order, a new key of an odd one; then a correction."""
    before = {path: path.read_bytes() for path in original.rglob("*.parquet")}
    landing = Landing(tmp_path, original)
    landing.land_days(FIRST, FIRST + 5 * DAY)
    landing.land_late_file(FIRST + 5 * DAY, FIRST + 3 * DAY, FIRST)
    late = make_tables(tmp_path, 5)
    newer, new_keys = {(0, 2, 21.0), (0, 4, 81.0)}, {(0, 10**12 + 1, 11.0), (0, 10**12 + 3, 41.0)}
    assert {*late["stg_items"]} == {(0, 1, 10.0), (3, 10, 6.0)} | newer | new_keys
    landing.correct_file(FIRST + 4 * DAY)
    assert (4, 10, 6.0) in make_tables(tmp_path, 5)["raw_items"]
    landing.poison_day(FIRST + 4 * DAY)
    assert (3, "unknown", 1, 2.5) in make_tables(tmp_path, 4)["mode_days"]
    landing.land_days(FIRST + 4 * DAY, FIRST + 4 * DAY)
    assert (3, "RAIL", 1, 2.5) in make_tables(tmp_path, 4)["mode_days"]
    assert {path: path.read_bytes() for path in original.rglob("*.parquet")} == before


def test_rows_are_compared_and_those_that_are_twice(tmp_path, original):
    Landing(tmp_path, original).land_days(FIRST, FIRST + 16 * DAY)
    make_tables(tmp_path, 16)
    truth, warehouse = tmp_path / "truth", tmp_path / "warehouse"
    rows = {
        name: duckdb.read_parquet(str(truth / f"{name}.parquet")).to_arrow_table()
        for name in duckdb_job.QUERIES
    }
    for name, table in rows.items():
        write_deltalake(warehouse / name, table)
    assert bench_tpch.wrong_tables(warehouse, truth) == []
    twice = pa.concat_tables([rows["stg_items"]] * 2)
    write_deltalake(warehouse / "stg_items", twice, mode="overwrite")
    write_deltalake(warehouse / "mode_days", rows["mode_days"].slice(1), mode="overwrite")
    assert bench_tpch.wrong_tables(warehouse, truth) == ["stg_items", "mode_days"]
    entries = bench_tpch.log_entries(warehouse)
    assert len(entries) == 7
    assert bench_tpch.count_rows(max(entries & {*(warehouse / "stg_items").rglob("*1.json")})) == 6


def test_the_table_has_a_row_for_each_step_and_tool():
    first, *others = make_steps(60)
    assert first.changed == (date(1993, 1, 1), date(1993, 2, 27))
    (poisoned,) = (step for step in others if step.may_fail)
    assert poisoned.last - poisoned.known == DAY
    hand, ours = (
        StepResult(step, tool, Call(seconds, status), 30.0, 1234, 5, 2.5, wrong)
        for step, tool, seconds, status, wrong in (
            (poisoned, "by hand", 20.0, 0, ["raw_items"]),
            (poisoned, "ours", 25.0, 1, []),
        )
    )
    *_, hand_row, ours_row = bench_tpch.format_table([[hand], [ours]]).splitlines()
    cells = [cell.strip() for cell in hand_row.strip("|").split("|")]
    assert cells == [
        *("one day more, poisoned", "by hand", "20.0", "1.00", "30.0", "1,234", "5", "2.5 s"),
        "wrong: raw_items",
    ]
    assert [cell.strip() for cell in ours_row.strip("|").split("|")][3::5] == [
        "1.25",
        "right; status 1",
    ]


@pytest.mark.slow
def test_all_steps_with_each_tool():
    """Only the script by hand shows rows of the poisoned day; nothing else is wrong.

    The script runs on Sail, where a step takes a second: it is the one that runs on Spark.
    """
    _, ours, on_sail = (tool.name for tool in bench_tpch.TOOLS)
    arguments = ["--scale", "0.01", "--days", "60", "--tool", ours, "--tool", on_sail]
    result = subprocess.run(
        [sys.executable, "-m", bench_tpch.__name__, *arguments],
        cwd=PROJECT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    rows = [row.split("|") for row in result.stdout.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 3 * len(make_steps(60))
    wrong = [(row[1].strip(), row[2].strip()) for row in rows if "wrong" in row[9]]
    assert wrong == [("one day more, poisoned", on_sail)]
    (refused,) = (row for row in rows if "status" in row[9])
    assert [refused[n].strip() for n in (1, 2, 6, 7, 9)] == [
        *("one day more, poisoned", "this project", "0", "0", "right; status 1")
    ]
