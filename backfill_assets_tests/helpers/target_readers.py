"""Readers of the tables of `beside`, in a loop, while a target is built, switched over, undone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import duckdb
from deltalake import DeltaTable

from backfill_assets.delta.consistent_versions import versions_that_belong_together
from backfill_assets_tests.helpers.pipeline import Pipeline, day
from backfill_assets_tests.helpers.shadow_targets import RANKS, SCORES, STATE

CHANGED = (SCORES, RANKS, STATE)


class Reader(threading.Thread):
    """Reads the tables in a loop, as they are and as they belong together.

    Attributes:
        old: by day, the points for an order before the switch-over.
        canary: with the last day switched over.
        new: after it.
        looks: how often it has read all tables.
        wrong: what it has read besides.
    """

    def __init__(self, pipeline: Pipeline, orders: Mapping[int, int], rests: float = 0) -> None:
        """Of a pipeline with so many orders of one customer on each day.

        Args:
            pipeline: the tables.
            orders: by the number of a day.
            rests: seconds between two looks, where the tables are changed in this process.
        """
        super().__init__()
        self.rests = rests
        self.pipeline, self.over = pipeline, threading.Event()
        self.expected = _expected_points(orders)
        self.old, self.new = (1,) * len(orders), (10,) * len(orders)
        self.canary = (*self.old[1:], 10)
        self.looks, self.wrong = 0, []

    def run(self) -> None:
        while not self.over.wait(self.rests):
            self.check_tables()

    def check_tables(self) -> None:
        points_by_table = dict(zip(CHANGED, self.read_points(), strict=True))
        allowed = (self.old, self.canary, self.new)
        self.wrong += [
            (name, points) for name, points in points_by_table.items() if points not in allowed
        ]
        pins = versions_that_belong_together(self.pipeline.settings.warehouse)
        pinned = self.read_points(pins)
        if pinned not in ([self.old] * 3, [self.new] * 3):
            self.wrong.append(("pinned", pinned))
        self.looks += 1

    def read_points(self, pins: Mapping[str, int] | None = None) -> list[tuple[int, ...]]:
        """By table and day, the points for an order: now by delta-rs, pinned by DuckDB."""
        return [self._table_points(name, pins[name] if pins else None) for name in CHANGED]

    def _table_points(self, name: str, version: int | None) -> tuple[int, ...]:
        settings, expected = self.pipeline.settings, self.expected[name]
        log = DeltaTable(settings.table(name), version=version)
        if version is None:
            rows = log.to_pyarrow_table(columns=["run_date", "score"])
        else:
            with duckdb.connect() as engine:
                engine.register("seen", log.to_pyarrow_dataset())
                rows = engine.sql("SELECT run_date, score FROM seen").to_arrow_table()
        by_day = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        assert rows.num_rows == len(by_day) == len(expected)
        return tuple(by_day[day(n)] // expected_points for n, expected_points in expected.items())


def _expected_points(orders: Mapping[int, int]) -> dict[str, dict[int, int]]:
    """What each table has on each day, for a point an order."""
    best = {n: max(orders.get(window_day, 0) for window_day in range(n - 2, n + 1)) for n in orders}
    total, sums = 0, {}
    for n, count in orders.items():
        sums[n] = total = total + count
    return {SCORES: {**orders}, RANKS: best, STATE: sums}


@contextmanager
def run_reader(pipeline: Pipeline, orders: Mapping[int, int], rests: float = 0) -> Iterator[Reader]:
    """A reader that looks until the block ends; it has looked once when it begins."""
    reader = Reader(pipeline, orders, rests)
    reader.check_tables()
    reader.start()
    try:
        yield reader
    finally:
        reader.over.set()
        reader.join()
