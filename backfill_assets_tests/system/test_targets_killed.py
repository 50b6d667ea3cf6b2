"""Switch-overs that are killed: whoever reads sees whole tables, and asking again finishes them."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable

from backfill_assets.delta import targets
from backfill_assets.delta.versions import versions_that_belong_together
from backfill_assets.settings import PREFIX
from backfill_assets_tests.beside import (
    AFTER,
    ALL,
    BEFORE,
    SCORES,
    landed,
    shadow,
)
from backfill_assets_tests.deployed import COMMAND
from backfill_assets_tests.killing import wait_for
from backfill_assets_tests.pipeline import Pipeline, day, undo
from backfill_assets_tests.places import PROJECT, dagster_yaml

CHANGED = ALL[-3:]
DAYS = range(1, 7)


class Reader(threading.Thread):
    """Reads the tables in a loop, as they are and as they belong together."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline, self.over = pipeline, threading.Event()
        self.looks, self.wrong = 0, []

    def run(self) -> None:
        while not self.over.is_set():
            self.look()

    def look(self) -> None:
        found = {name: _points(self.pipeline, name) for name in CHANGED}
        self.wrong += [(name, of) for name, of in found.items() if of not in ({1}, {10})]
        pins = versions_that_belong_together(self.pipeline.settings.warehouse)
        pinned = [_points(self.pipeline, name, pins[name]) for name in CHANGED]
        if pinned not in ([{1}] * 3, [{10}] * 3):
            self.wrong.append(("pinned", pinned))
        self.looks += 1


#: What each table has of n orders a day, for a point an order.
EXPECTED = {
    SCORES: {n: n for n in DAYS},
    "ranks": {n: n for n in DAYS},
    "sums": {n: sum(range(1, n + 1)) for n in DAYS},
}


def _points(pipeline: Pipeline, name: str, version: int | None = None) -> set[int]:
    """The points for an order that a reader of a table sees, whichever day it looks at."""
    log = DeltaTable(pipeline.settings.table(name), version=version)
    rows = log.to_pyarrow_table().to_pylist()
    by_day = {(row["run_date"] - day(1)).days + 1: row["score"] for row in rows}
    assert len(rows) == len(by_day) == len(DAYS)
    return {by_day[n] // EXPECTED[name][n] for n in DAYS}


@contextmanager
def reading(pipeline: Pipeline) -> Iterator[Reader]:
    reader = Reader(pipeline)
    reader.start()
    try:
        yield reader
    finally:
        reader.over.set()
        reader.join()


def version(pipeline: Pipeline, name: str) -> int:
    return DeltaTable(pipeline.settings.table(name)).version()


def test_killed_between_any_two_tables(engine, spark, tmp_path: Path) -> None:
    production = landed(Pipeline(engine, tmp_path, tables=BEFORE, window_days=1))
    # All that is left to build, so that the versions belong together.
    production.run(1, 6, ("fact_daily_orders_current", "fact_order_corrections"))
    production.run(1, 6, ("arrival_lateness",))
    after = Pipeline(engine, tmp_path, tables=AFTER, window_days=1)
    shadow(after, f"{day(1)}...{day(6)}")
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster_yaml().read_text())
    settings = after.settings
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        f"{PREFIX}TABLES": AFTER,
        f"{PREFIX}WINDOW_DAYS": "1",
        **{
            f"{PREFIX}{name.upper()}": str(getattr(settings, name))
            for name in ("landing", "warehouse", "start", "end")
        },
    }
    switch = [COMMAND, "switch", "v2"]

    def begun() -> subprocess.Popen:
        return subprocess.Popen(switch, env=environment, cwd=PROJECT, stdout=subprocess.DEVNULL)

    production.tick("watch_days")
    chance = random.Random(11)
    with reading(production) as reader:
        wait_for(lambda: reader.looks)
        for killed_after in chance.sample(CHANGED, 2):
            at = version(production, killed_after)
            process = begun()
            wait_for(lambda name=killed_after, at=at: version(production, name) > at)
            process.kill()
            process.wait()
            assert begun().wait() == 0
            assert not targets.interrupted(settings)
            assert [_points(production, name) for name in CHANGED] == [{10}] * 3
            undo(after, "v2")
            production.tick("watch_days")
    assert not reader.wrong
    assert reader.looks > 5
