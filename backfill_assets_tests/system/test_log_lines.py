"""The lines of a raw log are ranked once for the steps of a run that read the same log days."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.assets import staging
from backfill_assets.assets.staging import _is_shared
from backfill_assets.calendar.partitions import DaySet
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.orders.tables import CURRENT, LATENESS, RAW, REJECTED, STAGED
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.frames import SharedFrames
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day, order

RAW_TABLES = (RAW.name, REJECTED.name)
#: Those that rank the lines of the log.
RANKED = (STAGED.name, CURRENT.name, LATENESS.name)
DAYS = [day(n) for n in (1, 2, 3, 20)]


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


def held_frames(pipeline: Pipeline) -> int:
    return len(pipeline.io_manager.shared_frames._frames)


@pytest.fixture(scope="module")
def loaded(engine: Engine, spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw log of the days, to be copied."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("loaded"))
    land_days(pipeline)
    pipeline.run_days(DAYS, RAW_TABLES)
    return pipeline.root


def copy_log(engine: Engine, loaded: Path, root: Path, **settings: Any) -> Pipeline:
    root.mkdir(exist_ok=True)
    copy_loaded(loaded, root)
    return Pipeline(engine, root, **settings)


@pytest.fixture
def log_alone(engine: Engine, loaded: Path, tmp_path: Path) -> Pipeline:
    """A deployment whose raw log is loaded, and no other table."""
    return copy_log(engine, loaded, tmp_path)


@pytest.mark.parametrize("late_lines", ["correct", pytest.param("drop", marks=pytest.mark.slow)])
def test_a_run_ranks_its_lines_once_and_has_the_rows_of_a_run_for_each_table(
    engine: Engine, loaded: Path, tmp_path: Path, shared: list[object], late_lines: str
):
    (tmp_path / "one").mkdir()
    one = Pipeline(engine, tmp_path / "one", late_lines=late_lines)
    land_days(one)
    one.run_days(DAYS, [*RAW_TABLES, *RANKED])
    staged, current, lateness = shared
    assert staged is current is lateness
    assert held_frames(one) == 0
    each = copy_log(engine, loaded, tmp_path / "each", late_lines=late_lines)
    for name in RANKED:
        each.run_days(DAYS, [name])
    assert len(shared) == 3, "a step alone shares nothing"
    digests = one.digests()
    assert digests.keys() == {*RAW_TABLES, *RANKED}
    assert digests == each.digests()


def test_a_step_that_reads_other_log_days_ranks_them_itself(
    log_alone: Pipeline, shared: list[object]
):
    """A line far beyond its window is of a log day that staging does not read."""
    log_alone.run(1, 1, [STAGED.name, CURRENT.name], tags={REWRITE_TAG: "true"})
    assert shared == []
    assert [str(row["amount"]) for row in log_alone.rows(STAGED.name)] == ["10.00", "10.00"]
    (known,) = log_alone.rows(CURRENT.name)
    assert (known["orders"], str(known["revenue"])) == (1, "9.00")


def test_a_run_that_fails_holds_no_frame(
    log_alone: Pipeline, shared: list[object], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(staging, "staged_expectations", fail)
    log_alone.run_days(DAYS, [STAGED.name, CURRENT.name], fails=True)
    assert shared
    assert held_frames(log_alone) == 0


def test_an_older_version_with_a_commit_of_another_writer_is_not_shared(log_alone: Pipeline):
    """Which of its days have rows is not known: the tables may read different ones."""
    own = log_alone.io_manager.ledger(RAW)
    other = ExternalCommit(own.version + 1, "WRITE", frozenset([day(2)]))
    days, graph = DaySet.from_days(DAYS), log_alone.deployment.graph

    def is_shared(log: Ledger) -> bool:
        return _is_shared(graph, [STAGED.name, CURRENT.name], log, frozenset(DAYS), days)

    assert is_shared(own)
    assert is_shared(own.as_of(own.version))
    with_other = replace(own, version=other.version, external_commits=[other])
    assert not is_shared(with_other.as_of(other.version))
    cut = replace(own, missing_versions=[0])
    assert not is_shared(cut.as_of(own.version))
