"""Whatever happens to the tables with memory, they end as one clean load and as plain Python says.

The days of a history land late, out of order, corrected and twice; between, days and ranges are
run, killed and run again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.assets import table_asset
from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.lookups import batch
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_tests.customers_tables import COHORT_DAYS, LABEL_DAYS, SETTLES_AFTER
from backfill_assets_tests.helpers import memory_model
from backfill_assets_tests.helpers.customers_histories import DAYS, LOOKS, history
from backfill_assets_tests.helpers.customers_model import (
    Change,
    expected_versions,
    parse_change,
    parse_versions,
    version_as_known,
)
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.orders_model import run_model
from backfill_assets_tests.helpers.paths import BIN
from backfill_assets_tests.helpers.pipeline import EVERYTHING, START, Pipeline, day
from backfill_assets_tests.helpers.rate_server import SECRET, rate_server, true_rate

PLACE = "backfill_assets_tests.customers_tables:TABLES"
WINDOW = 2
END = day(DAYS + 1)
SEEDS = range(1, 1 + int(os.environ.get("BACKFILL_TEST_HISTORIES", "1")))
#: What is run together, inputs first.
CHANGES = ("raw_customer_changes", "raw_customer_changes_rejected")
ORDERS = tuple(name for name in EVERYTHING if name != "lateness_dashboard")
CUSTOMERS = ("dim_customers", "fact_orders_enriched", "fact_orders_settled", "fact_orders_eur")
VALUES = ("customer_lifetime_value", "cohort_value_30d")
LEARNED = (*VALUES, "features", "labels_daily", "training_daily")
MADE = (*CUSTOMERS, *LEARNED)
ALL = (*CHANGES, *ORDERS, *MADE)

pytestmark = [pytest.mark.slow, pytest.mark.torture, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The service of rates; and days that are built upon each other are committed by threes."""
    monkeypatch.setattr(batch, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 3)
    with rate_server() as server:
        monkeypatch.setenv("RATES_URL", server.url)
        monkeypatch.setenv("RATES_KEY", SECRET)
        yield


def make_pipeline(engine: Any, root: Path, **more: Any) -> Pipeline:
    return Pipeline(engine, root, tables=PLACE, window_days=WINDOW, end=END, **more)


# --- plain Python ---------------------------------------------------------------------------------


def read_changes(landing: Path) -> list[Change]:
    """All lines of the change feed."""
    return [
        parse_change(datetime.fromisoformat(path.parent.name[-10:]).date(), json.loads(line))
        for path in sorted((landing / "customer_changes").glob("*/*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def expected_enriched(staged: Iterable[dict], feed: list[Change], after: int | None) -> list[tuple]:
    """Orders with their customers; as they were known some days after, or at the order's time."""
    rows = []
    for row in staged:
        event_day, at = row["event_date"], row["order_ts"]
        known, cutoff = event_day, at
        if after is not None:
            known = min(event_day + timedelta(days=after), day(DAYS))
            midnight = datetime(event_day.year, event_day.month, event_day.day, tzinfo=timezone.utc)
            cutoff = midnight + timedelta(days=after + 1)
        version = version_as_known(expected_versions(feed, known), row["customer_id"], at, cutoff)
        attributes: tuple = (None,) * 8
        if version:
            attributes = (
                *version.attributes,
                version.deleted,
                version.change_id,
                version.valid_from,
            )
            attributes += (version.known_at, version.logged_on)
        rows.append(
            (event_day, row["order_id"], row["customer_id"], at, row["amount"], *attributes)
        )
    return rows


def expected_in_euros(row: dict) -> tuple:
    rate = true_rate(str(row["event_date"]), "USD")
    euros = (row["amount"] * rate).quantize(Decimal("0.01"), "ROUND_HALF_UP")
    named = (row[name] for name in ("event_date", "order_id", "customer_id", "amount"))
    return (*named, rate, euros)


def expected_rows(landing: Path) -> dict[str, list[tuple]]:
    """By table, the rows that it must have; all but those of the dimension."""
    days = [day(n) for n in range(1, DAYS + 1)]
    model = run_model(landing, start=START, end=END, window_days=WINDOW, timezone="UTC")
    # The window of what is known now has no end.
    now = run_model(landing, start=START, end=END, window_days=999, timezone="UTC").fact
    feed = read_changes(landing)
    features = memory_model.compute_features(model.raw, days)
    labels = memory_model.compute_labels(model.fact, days[-1], following=LABEL_DAYS)
    values = memory_model.lifetime_values(now, days)
    rows_by_table: dict[str, Iterable[tuple]] = {
        "stg_orders": [tuple(row.values()) for row in model.staged],
        "fact_daily_orders": [(*key, *value) for key, value in model.fact.items()],
        "fact_daily_orders_current": [(*key, *value) for key, value in now.items()],
        "fact_orders_enriched": expected_enriched(model.staged, feed, None),
        "fact_orders_settled": expected_enriched(model.staged, feed, SETTLES_AFTER),
        "fact_orders_eur": map(expected_in_euros, model.staged),
        "customer_lifetime_value": values,
        "cohort_value_30d": memory_model.cohort_values(values, days[-1], following=COHORT_DAYS),
        "features": features,
        "labels_daily": labels,
        "training_daily": memory_model.join_training_rows(features, labels),
    }
    return {name: sort_rows(rows) for name, rows in rows_by_table.items()}


def sort_rows(rows: Iterable[tuple]) -> list[tuple]:
    return sorted(rows, key=str)


def table_rows(pipeline: Pipeline, name: str) -> list[tuple]:
    return sort_rows(tuple(row.values()) for row in pipeline.rows(name))


def check_rows(pipeline: Pipeline) -> None:
    """Every row of every table is the one that plain Python has."""
    for name, rows in expected_rows(pipeline.landing).items():
        assert table_rows(pipeline, name) == rows != [], name
    feed, dimension_rows = read_changes(pipeline.landing), pipeline.rows("dim_customers")
    for d in (day(n) for n in range(1, DAYS + 1)):
        day_versions = parse_versions(row for row in dimension_rows if row["log_date"] == d)
        assert sorted(map(astuple, day_versions), key=str) == sorted(
            map(astuple, expected_versions(feed, d)), key=str
        )
        assert day_versions


def check_same_tables(pipeline: Pipeline, other: Pipeline) -> None:
    """The tables of two warehouses have the same rows, and say so of the same days."""
    ledgers, others = read_ledgers(pipeline.deployment), read_ledgers(other.deployment)
    for name in ALL:
        assert table_rows(pipeline, name) == table_rows(other, name), name
        days = ledgers[name].published_days
        assert days == others[name].published_days == {day(n) for n in range(1, DAYS + 1)}, name
        assert {d: ledgers[name].content_key(d) for d in days} == {
            d: others[name].content_key(d) for d in days
        }, name


# --- histories ------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here: nobody takes care of it."""


@contextmanager
def kill_after_commits(commits: int, after: bool) -> Iterator[None]:
    """After some commits, the next is the last of a process: it ends before or after that one.

    Dagster goes on with other steps; these commit nothing.
    """
    commit, remaining = Writer.commit, commits

    def commit_or_die(*arguments: Any) -> int | None:
        nonlocal remaining
        remaining -= 1
        if remaining >= 0:
            return commit(*arguments)
        if after and remaining == -1:
            commit(*arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "commit", commit_or_die)
        yield


def some_days(chance: random.Random, today: int, *, alone: bool) -> tuple[int, int]:
    """A day alone, or a range; half of the ranges begin with the first day."""
    first, last = sorted(chance.sample(range(1, today + 1), 2))
    return (last, last) if alone else chance.choice([(first, last), (1, today)])


def run_history(pipeline: Pipeline, seed: int) -> Counter[str]:
    """Go through a history; how often a run was killed, and how often days waited for others."""
    chance = random.Random(f"runs {seed}")
    happened: Counter[str] = Counter()
    shapes = [(alone, kills) for alone in (True, False) for kills in (True, False)]
    runs = [shape for _ in range(len(LOOKS) // 2) for shape in chance.sample(shapes, 4)]
    for today, files in zip(LOOKS, history(seed), strict=True):
        for file in files:
            file.land(pipeline.landing)
        for alone, kills in (runs.pop(), runs.pop()):
            first, last = some_days(chance, today, alone=alone)
            assets = chance.choice([ALL, ALL, (*CHANGES, *CUSTOMERS), LEARNED, ORDERS])
            with (
                kill_after_commits(chance.randrange(7), chance.random() < 0.5)
                if kills
                else nullcontext()
            ):
                result = pipeline.run(first, last, assets, fails=None)
            if not result.success:
                message = pipeline.failure(result)
                dies = kills and Killed.__name__ in message
                assert dies or "has never been published" in message, message
                happened["killed" if dies else "waits"] += 1
    assert not runs
    return happened


def clean_load(engine: Any, root: Path, like: Pipeline) -> Pipeline:
    clean = make_pipeline(engine, root, land=False, landing=str(like.landing))
    clean.run(1, DAYS, ALL)
    return clean


def table_versions(pipeline: Pipeline) -> dict[str, int]:
    return {name: pipeline.log(name).version() for name in ALL}


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_ends_as_one_clean_load(engine, spark, tmp_path, seed):
    lived = make_pipeline(engine, tmp_path / "lived")
    happened = run_history(lived, seed)
    assert happened["killed"], happened
    lived.run(1, DAYS, ALL)
    check_rows(lived)
    check_same_tables(lived, clean_load(engine, tmp_path / "clean", lived))
    behind = find_stale_days(
        snapshot_ledgers(read_ledgers(lived.deployment), Policy.from_settings(lived.settings), END)
    )
    assert not {name: days for name in ALL if (days := behind.all_days(name))}
    before = table_versions(lived)
    lived.run(1, DAYS, ALL)
    assert table_versions(lived) == before


def test_day_by_day_equals_a_range(engine, spark, tmp_path):
    """What a day is made of is there before; of its own days each is built upon the one before."""
    alone = make_pipeline(engine, tmp_path / "alone")
    for file in (file for files in history(4) for file in files):
        file.land(alone.landing)
    alone.run(1, DAYS, (*CHANGES, *ORDERS))
    # These are made of the days of an input that follow.
    later = ("fact_orders_settled", "cohort_value_30d")
    for n in range(1, DAYS + 1):
        alone.run(n, n, tuple(name for name in MADE if name not in later))
    for n in range(1, DAYS + 1):
        alone.run(n, n, later)
    check_rows(alone)
    check_same_tables(alone, clean_load(engine, tmp_path / "clean", alone))


# --- a process that is killed ---------------------------------------------------------------------


def launch_run(pipeline: Pipeline) -> subprocess.Popen:
    """A run of all days and tables in a process of its own, as the command line starts it."""
    home = pipeline.root / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "BACKFILL_ASSETS_LANDING": pipeline.settings.landing,
        "BACKFILL_ASSETS_WAREHOUSE": pipeline.settings.warehouse,
        "BACKFILL_ASSETS_TABLES": PLACE,
        "BACKFILL_ASSETS_WINDOW_DAYS": str(WINDOW),
        "BACKFILL_ASSETS_START": str(START),
        "BACKFILL_ASSETS_END": str(END),
        "BACKFILL_ASSETS_SPARK_CONF": '{"spark.sql.shuffle.partitions": "2"}',
    }
    selection = " or ".join(f"key:{name}" for name in ALL)
    days = f"{day(1)}...{day(DAYS)}"
    command = [str(BIN / "dagster"), "asset", "materialize", "-m", "backfill_assets.definitions"]
    return subprocess.Popen(
        [*command, "--select", selection, "--partition-range", days],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def data_files(pipeline: Pipeline, name: str) -> set[str]:
    """The data files that are there, whether a version names them or not."""
    root = pipeline.warehouse / name
    return {str(path.relative_to(root)) for path in root.glob("*=*/*.parquet")}


@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="kills an engine of its own")
@pytest.mark.parametrize("name", ["dim_customers", "customer_lifetime_value"])
def test_a_range_that_is_killed_while_it_writes_is_resumed(engine, spark, tmp_path, name):
    pipeline = make_pipeline(engine, tmp_path / "lived")
    early, late = LOOKS[1], history(3)
    for files in late[:2]:
        for file in files:
            file.land(pipeline.landing)
    pipeline.run(1, early, ALL)
    for files in late[2:]:
        for file in files:
            file.land(pipeline.landing)
    before, existing_files, rows = (
        pipeline.log(name).version(),
        data_files(pipeline, name),
        table_rows(pipeline, name),
    )
    run = launch_run(pipeline)
    try:
        deadline = time.monotonic() + 300
        while data_files(pipeline, name) <= existing_files:
            assert run.poll() is None, "it ended and wrote nothing"
            assert time.monotonic() < deadline, "it never wrote"
            time.sleep(0.005)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    # In the middle: files that no version has. Readers see the days as they were.
    assert pipeline.log(name).version() == before
    assert table_rows(pipeline, name) == rows
    pipeline.run(1, DAYS, ALL)
    check_rows(pipeline)
    check_same_tables(pipeline, clean_load(engine, tmp_path / "clean", pipeline))
