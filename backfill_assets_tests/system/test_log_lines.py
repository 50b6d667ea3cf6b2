"""The lines of a raw log are ranked once for the steps of a run that read the same log days."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.transforms import dedup
from backfill_assets_tests.helpers.pipeline import EVERYTHING, Pipeline, day, order

STAGED, CURRENT = "stg_orders", "fact_daily_orders_current"


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The frames that lines were ranked from."""
    frames: list[object] = []
    rank_lines = dedup.rank_lines

    def note_frame(raw, *arguments, **named):
        frames.append(raw)
        return rank_lines(raw, *arguments, **named)

    monkeypatch.setattr(dedup, "rank_lines", note_frame)
    return frames


@pytest.fixture
def landed(pipeline: Pipeline) -> Pipeline:
    """Three days; of the second one, a version in the window and one far behind it."""
    pipeline.land(1, [order("o1", 1)])
    pipeline.land(2, [order("o2", 2, "1.00"), order("o2", 2, "2.00", at="11:00")])
    pipeline.land(3, [order("o3", 3), order("o2", 2, "3.00", ingested=f"{day(3)}T12:00:00Z")])
    return pipeline


def facts(pipeline: Pipeline, name: str) -> dict[str, str]:
    rows = pipeline.rows(name)
    return {str(row["run_date"]): str(row["revenue"]) for row in rows}


def test_a_range_ranks_its_lines_once(landed: Pipeline, ranked: list[object]):
    landed.run(1, 3, EVERYTHING)
    assert len(ranked) == 1
    assert facts(landed, CURRENT)[str(day(2))] == "3.00"
    assert landed.io_manager.shared_frames._by_run == {}


def test_a_step_that_reads_other_log_days_ranks_them_itself(landed: Pipeline, ranked: list[object]):
    """A line far beyond its window is of a log day that staging does not read."""
    landed.run(1, 3, EVERYTHING)
    landed.land(20, [order("o1", 1, "9.00", ingested=f"{day(20)}T12:00:00Z")])
    landed.run(20, 20, ["raw_orders", "raw_orders_rejected"])
    ranked.clear()
    landed.run(1, 1, [STAGED, "fact_daily_orders", CURRENT], tags={REWRITE_TAG: "true"})
    assert len(ranked) == 2
    assert facts(landed, "fact_daily_orders")[str(day(1))] == "10.00"
    assert facts(landed, CURRENT)[str(day(1))] == "9.00"


def test_a_step_alone_ranks_only_what_it_reads(landed: Pipeline, ranked: list[object]):
    landed.run(1, 3)
    landed.run(1, 3, [CURRENT])
    assert len(ranked) == 2
    assert landed.io_manager.shared_frames._by_run == {}
