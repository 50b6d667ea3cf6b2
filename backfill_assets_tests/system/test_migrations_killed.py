"""Migrations killed by SIGKILL: readers see the table as it was or as it is, until it is done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.migrate import read_migration
from backfill_assets.settings import PREFIX
from backfill_assets.tables.graph import tables_of
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.deployment import COMMAND
from backfill_assets_tests.helpers.paths import PROJECT, dagster_yaml
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order
from backfill_assets_tests.helpers.process_kills import wait_for

BEFORE = "backfill_assets_tests.migrating_tables:TABLES"
AFTER = "backfill_assets_tests.migrating_tables_after:TABLES"
DAYS = 6
#: A killed migration has made as many files, or fewer: data files, and commits.
MOST = DAYS + 1

#: What a reader sees: the columns with their types, and the rows.
TableState = tuple[list[tuple[str, str]], list[dict[str, Any]]]


class Reader(threading.Thread):
    """Reads the table in a loop by two engines.

    Attributes:
        looks: what it has seen, each once, in this order.
        count: how often it has looked.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.over, self.count = url, threading.Event(), 0
        self.looks: list[TableState] = [self.read_state()]

    def run(self) -> None:
        while not self.over.is_set():
            if (state := self.read_state()) != self.looks[-1]:
                self.looks.append(state)
            self.count += 1

    def read_state(self) -> TableState:
        log = DeltaTable(self.url)
        arrow = log.to_pyarrow_table()
        with duckdb.connect() as engine:
            rows = engine.register("t", log.to_pyarrow_dataset()).sql("SELECT * FROM t")
            named = [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]
        records = sorted(arrow.to_pylist(), key=str)
        assert sorted(named, key=str) == records
        return [(field.name, str(field.type)) for field in arrow.schema], records


def migrate_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row under the changes of `migrating_tables_after`."""
    values = {name: value for name, value in row.items() if name not in ("note", "share")}
    return {**values, "remark": row["note"]}


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize(
    ("seed", "kills", "connect"),
    [
        (1, 2, True),
        *((2 + n, 8, False) for n in range(int(os.environ.get("BACKFILL_TEST_SEEDS", "3")))),
    ],
)
def test_killed_until_it_is_done(engine, spark, tmp_path: Path, seed, kills, connect) -> None:
    production = Pipeline(engine, tmp_path, tables=BEFORE, window_days=1)
    for n in range(1, DAYS + 1):
        production.land(n, [order(f"{n}-{k}", n, customer=f"c{k}") for k in range(n)])
    production.run(1, DAYS, ["raw_orders", "raw_orders_rejected", "stg_orders", "notes"])
    url, settings = production.settings.table("notes"), production.settings
    (tmp_path / "home").mkdir()
    (tmp_path / "home/dagster.yaml").write_text(dagster_yaml().read_text())
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(tmp_path / "home"),
        f"{PREFIX}TABLES": AFTER,
        **{
            f"{PREFIX}{name.upper()}": str(getattr(settings, name))
            for name in ("landing", "warehouse", "start", "end", "window_days")
        },
    }
    (tmp_path / "server").mkdir()
    server = connect_server(tmp_path / "server", SMALL) if connect else nullcontext("")
    chance, hit = random.Random(seed), []

    def count_files() -> int:
        # Folders may go while they are listed, which `os.walk` passes over.
        names = (name for _, _, names in os.walk(url) for name in names)
        return sum(name.endswith((".json", ".parquet")) for name in names)

    with server as remote:
        if remote:
            environment["SPARK_REMOTE"] = remote

        def start_migration() -> subprocess.Popen:
            words = [COMMAND, "migrate", "notes"]
            return subprocess.Popen(words, env=environment, cwd=PROJECT, stdout=subprocess.DEVNULL)

        reader = Reader(url)
        reader.start()
        try:
            for _ in range(kills):
                enough, process = count_files() + chance.randint(1, MOST), start_migration()
                wait_for(
                    lambda enough=enough, process=process: (
                        count_files() >= enough or process.poll() is not None
                    )
                )
                time.sleep(chance.uniform(0, 0.05))
                process.kill()
                hit.append(process.wait())
            assert start_migration().wait() == 0
            at = reader.count
            wait_for(lambda: reader.count > at + 1 or not reader.is_alive())
        finally:
            reader.over.set()
            reader.join()
    assert -signal.SIGKILL in hit
    # Whole and of one schema at every look, and no way back.
    (columns, before), (_, after) = reader.looks
    assert ("orders", "int32") in columns
    assert after == sorted(map(migrate_row, before), key=str)
    names = dict(reader.looks[-1][0])
    assert (names["orders"], *names) == ("int64", "run_date", "customer_id", "orders", "remark")
    table = tables_of(Pipeline(engine, tmp_path, tables=AFTER).settings)["notes"]
    assert read_migration(url, table).changes == []
    ledger = read_ledger(url, table)
    assert ledger.published_days == {day(n) for n in range(1, DAYS + 1)}
    assert not ledger.external_commits
