"""The truth that `make bench-peers` holds all peers against, and the table that it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from backfill_assets_tests.benchmarks.peers import report, truth, workspace
from backfill_assets_tests.benchmarks.peers.bench_peers import order_versions
from backfill_assets_tests.helpers.paths import PROJECT

FIRST, LAST = date(2024, 1, 1), date(2024, 1, 12)


def land(landing: Path, log_day: int, *orders: tuple[str, int, str], customer: str | None = "c"):
    """Lines of an arrival day: each an order, its event day, and its amount."""
    folder = landing / "orders" / f"arrival_date=2024-01-{log_day:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lines.jsonl").open("a") as file:
        for number, (order_id, event_day, amount) in enumerate(orders):
            line = {
                "order_id": order_id,
                "customer_id": customer,
                "order_ts": f"2024-01-{event_day:02d}T10:00:00Z",
                "amount": amount,
                "ingestion_ts": f"2024-01-{log_day:02d}T23:59:59.{number:06d}Z",
            }
            file.write(json.dumps(line) + "\n")


def test_an_order_counts_in_its_greatest_version_within_the_window(tmp_path):
    land(tmp_path, 1, ("sent twice", 1, "1.00"), ("sent twice", 1, "2.00"), ("later", 1, "4.00"))
    land(tmp_path, 2, ("moved", 2, "8.00"))
    land(tmp_path, 3, ("moved", 1, "16.00"))
    land(tmp_path, 4, ("unknown", 4, "32.00"), ("unknown too", 4, "0.50"), customer=None)
    # Within the window of the first day; and beyond it, which displaces nothing.
    land(tmp_path, 8, ("late", 1, "64.00"))
    land(tmp_path, 9, ("too late", 1, "128.00"), ("later", 1, "256.00"))
    with (tmp_path / "orders" / "arrival_date=2024-01-09" / "lines.jsonl").open("a") as file:
        file.write('{"order_id": broken\n{"order_id": "no amount"}\n')
    tables = truth.expected_tables(tmp_path, FIRST, LAST)
    assert tables["raw_orders"] == {
        date(2024, 1, 1): (3, 3, 700),
        date(2024, 1, 2): (1, 1, 800),
        date(2024, 1, 3): (1, 1, 1600),
        date(2024, 1, 4): (2, 0, 3250),
        date(2024, 1, 8): (1, 1, 6400),
        date(2024, 1, 9): (2, 2, 38400),
    }
    assert tables["stg_orders"] == {
        date(2024, 1, 1): (4, 4, 200 + 400 + 1600 + 6400),
        date(2024, 1, 4): (2, 0, 3250),
    }
    assert tables["fact_daily_orders"] == {
        date(2024, 1, 1): (1, 4, 8600),
        date(2024, 1, 4): (1, 2, 3250),
    }


def test_figures_are_read_from_delta_tables(tmp_path):
    stamp = datetime(2024, 1, 1, 10, tzinfo=timezone.utc)
    rows = {
        "log_date": [FIRST, FIRST, LAST],
        "customer_id": ["c-1", None, "c-2"],
        "order_ts": [stamp] * 3,
        "amount": pa.array(
            [Decimal("1.10"), Decimal("2.20"), Decimal("-3.30")], pa.decimal128(18, 2)
        ),
    }
    write_deltalake(tmp_path / "raw_orders", pa.table(rows), partition_by=["log_date"])
    actual = truth.read_table("raw_orders", tmp_path / "raw_orders")
    assert actual == {FIRST: (2, 1, 330), LAST: (1, 1, -330)}
    assert truth.read_table("stg_orders", tmp_path / "stg_orders") == {}
    expected = {FIRST: (2, 2, 330), date(2024, 1, 2): (1, 1, 100)}
    assert truth.compare_days(expected, actual) == {"wrong": 2, "missing": 1}
    assert truth.day_state(FIRST, actual, actual) == "right"


def test_the_probes_change_a_copy_of_the_landing_alone(tmp_path):
    original, copy = tmp_path / "original", tmp_path / "copy"
    for day in (2, 5, 10):
        land(original, day, (f"first {day}", day, "1.00"), (f"second {day}", day, "2.00"))
    before = truth.expected_tables(original, FIRST, LAST)
    shutil.copytree(original, copy, copy_function=os.link)
    workspace.poison_day(copy, date(2024, 1, 5))
    poisoned = truth.expected_tables(copy, FIRST, LAST)
    assert poisoned["raw_orders"][date(2024, 1, 5)] == (2, 0, 300)
    assert truth.expected_tables(original, FIRST, LAST) == before
    workspace.mend_day(copy, original, date(2024, 1, 5))
    assert truth.expected_tables(copy, FIRST, LAST) == before
    workspace.land_late_file(copy, date(2024, 1, 10), date(2024, 1, 5), date(2024, 1, 2))
    late = truth.expected_tables(copy, FIRST, LAST)
    assert late["raw_orders"][date(2024, 1, 10)][0] == 62
    assert [late["stg_orders"][date(2024, 1, day)][0] for day in (2, 5, 10)] == [2, 52, 2]
    assert truth.expected_tables(original, FIRST, LAST) == before


def test_no_two_lines_of_the_landing_are_the_same_version():
    line = '{"order_id":"a","ingestion_ts":"2024-01-01T23:59:59Z"}'
    versions = [*order_versions([line, line])]
    assert [json.loads(version)["ingestion_ts"][-8:] for version in versions] == [
        ".000000Z",
        ".000001Z",
    ]


def test_the_table_says_what_is_wrong():
    hand = report.PeerResult("by hand", "pyspark 4.2.0", [30.0, 20.0, 10.0], again_commits=3)
    states = {"stg_orders": "wrong", "fact_daily_orders": "missing"}
    peer = report.PeerResult(
        "other",
        "other 1.0",
        [50.0],
        is_right=False,
        again_seconds=2.5,
        late=report.LateResult("a command", 12.3, is_right=False),
        poison=report.PoisonResult(1, states, Counter(right=28, missing=2), 40.2, is_mended=True),
        remark="of one day",
        target=2.0,
    )
    *_, hand_row, other_row = report.format_table([hand, peer], "by hand").splitlines()
    assert hand_row.startswith(
        "| by hand | pyspark 4.2.0 | 20 s | 1.00 |  |  |  | yes | 0.0 s, all written"
    )
    assert other_row == (
        "| other | other 1.0 | 50 s (of one day) | 2.50 | 2 | 1.25 | missed | **no** "
        "| 2.5 s, nothing written | a command: 12 s, **wrong** "
        "| stg_orders wrong, fact_daily_orders missing; "
        "days of facts: 28 right, 2 missing; it says so | 40 s |"
    )


def test_all_peers_are_pinned():
    peers = PROJECT / "backfill_assets_tests" / "benchmarks" / "peers"
    files = sorted(peers.glob("*/requirements.txt"))
    assert len(files) == 5
    pins = [line for file in files for line in file.read_text().splitlines()]
    assert [pin for pin in pins if not re.fullmatch(r"[\w-]+(\[[\w,]+\])?==[\d.]+", pin)] == []


def test_the_page_names_the_versions_that_were_compared():
    """Those that the environments of both benchmarks have."""
    page = (PROJECT / "docs/comparison.md").read_text()
    (versions,) = re.findall(r"^Versions: (.*)\.$", page, re.MULTILINE)
    named = dict(re.findall(r"([\w-]+) (\d+\.\d+)", versions))
    benchmarks = PROJECT / "backfill_assets_tests/benchmarks"
    files = [*benchmarks.glob("*/*/requirements.txt"), PROJECT / "requirements-dev.lock"]
    pinned = {
        (name, version)
        for path in files
        for name, version in re.findall(
            r"^(dbt-core|sqlmesh|dagster|pyspark|delta-spark|pysail|duckdb)(?:\[\w+\])?==(\d+\.\d+)\.",
            path.read_text(),
            re.MULTILINE,
        )
    }
    assert pinned == {
        ("dbt-core", named["dbt-core"]),
        ("sqlmesh", named["SQLMesh"]),
        ("dagster", named["Dagster"]),
        ("pyspark", named["Spark"]),
        ("delta-spark", named["Delta"]),
        ("pysail", named["Sail"]),
        ("duckdb", named["DuckDB"]),
    }
