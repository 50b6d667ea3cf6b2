"""The lines of a raw log are ranked once for the steps of a run that read the same log days."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from backfill_assets.assets import staging
from backfill_assets.assets.log_lines import _is_shared
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.orders.tables import RAW, STAGED, TABLES
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.frames import SharedFrames
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import EVERYTHING, START, Pipeline, day, order

RAW_TABLES = ("raw_orders", "raw_orders_rejected")
FACTS, KNOWN = "fact_daily_orders", "fact_daily_orders_current"
REST = [name for name in TABLES if name not in RAW_TABLES]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The frame that each step got which shares one."""
    frames: list[object] = []
    share = SharedFrames.share

    def note_frame(*arguments):
        frames.append(share(*arguments))
        return frames[-1]

    monkeypatch.setattr(SharedFrames, "share", note_frame)
    return frames


def land_days(pipeline: Pipeline) -> None:
    """Three days and a later one, with versions within and beyond the window, and a broken line."""
    pipeline.land(1, [order("o1", 1), order("moved", 1)])
    pipeline.land(2, [order("o2", 2, "1.00"), order("o2", 2, "2.00", at="11:00"), "broken"])
    pipeline.land(3, [order("o3", 3), order("o2", 2, "3.00", ingested=f"{day(3)}T12:00:00Z")])
    ingested = f"{day(20)}T12:00:00Z"
    late = [order("o1", 1, "9.00", ingested=ingested), order("moved", 2, ingested=ingested)]
    pipeline.land(20, [*late, order("o20", 20)])


def revenue_by_day(pipeline: Pipeline, name: str) -> dict[str, str]:
    totals: dict[str, str] = {}
    for row in pipeline.rows(name):
        assert str(row["run_date"]) not in totals, "all orders have one customer"
        totals[str(row["run_date"])] = str(row["revenue"])
    return totals


def held_frames(pipeline: Pipeline) -> int:
    return len(pipeline.io_manager.shared_frames._frames)


def test_a_range_ranks_its_lines_once(pipeline: Pipeline, shared: list[object]):
    land_days(pipeline)
    pipeline.run(1, 3, EVERYTHING)
    staged, current, lateness = shared
    assert staged is current is lateness
    assert revenue_by_day(pipeline, KNOWN)[str(day(2))] == "3.00"
    assert held_frames(pipeline) == 0


def test_a_step_that_reads_other_log_days_ranks_them_itself(
    pipeline: Pipeline, shared: list[object]
):
    """A line far beyond its window is of a log day that staging does not read."""
    land_days(pipeline)
    pipeline.run(1, 3, RAW_TABLES)
    pipeline.run(20, 20, RAW_TABLES)
    pipeline.run(1, 1, ["stg_orders", FACTS, KNOWN], tags={REWRITE_TAG: "true"})
    assert shared == []
    assert revenue_by_day(pipeline, FACTS)[str(day(1))] == "20.00"
    assert revenue_by_day(pipeline, KNOWN)[str(day(1))] == "9.00"


def test_a_step_alone_shares_nothing(pipeline: Pipeline, shared: list[object]):
    land_days(pipeline)
    pipeline.run(1, 3)
    pipeline.run(1, 3, [KNOWN])
    assert shared == []


@pytest.mark.parametrize("late_lines", ["correct", "drop"])
def test_a_run_of_all_tables_has_the_rows_of_one_run_for_each(
    engine: Engine, tmp_path: Path, shared: list[object], late_lines: str
):
    digests = []
    for name, runs in (("one", [EVERYTHING]), ("each", [RAW_TABLES, *([n] for n in REST)])):
        root = tmp_path / name
        root.mkdir()
        pipeline = Pipeline(engine, root, late_lines=late_lines)
        land_days(pipeline)
        for selection in runs:
            days_with_gap = [START + timedelta(days=n) for n in (0, 1, 2, 19)]
            pipeline.run_days(days_with_gap, selection)
        digests.append(pipeline.digests())
        assert len(shared) == 3, "the second way shares nothing"
    assert digests[0] == digests[1]


def test_a_run_that_fails_holds_no_frame(
    pipeline: Pipeline, shared: list[object], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(staging, "staged_expectations", fail)
    land_days(pipeline)
    pipeline.run(1, 3, EVERYTHING, fails=True)
    assert shared
    assert held_frames(pipeline) == 0


def test_an_older_version_with_a_commit_of_another_writer_is_not_shared(pipeline: Pipeline):
    """Which of its days have rows is not known: the tables may read different ones."""
    land_days(pipeline)
    pipeline.run(1, 3, RAW_TABLES)
    own = pipeline.io_manager.ledger(RAW)
    other = ExternalCommit(own.version + 1, "WRITE", frozenset([day(2)]))
    window, graph = Window(day(1), day(4)), pipeline.deployment.graph

    def is_shared(log: Ledger) -> bool:
        filled_days = frozenset(map(day, (1, 2, 3)))
        return _is_shared(graph, [STAGED.name, KNOWN], log, filled_days, window)

    assert is_shared(own)
    assert is_shared(own.as_of(own.version))
    with_other = replace(own, version=other.version, external_commits=[other])
    assert not is_shared(with_other.as_of(other.version))
    cut = replace(own, missing_versions=[0])
    assert not is_shared(cut.as_of(own.version))
