"""Rows of this process as frames, without Python where Spark computes."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from threading import Event

import pytest
from pyspark.sql import types as T

from backfill_assets.orders.tables import TABLES
from backfill_assets.spark import frames
from backfill_assets.spark.frames import SharedFrames, create_frame

STRUCT = T.StructType().add("day", T.DateType()).add("amount", T.DecimalType(18, 2))


def executed_plan(spark, frame) -> str:
    if not hasattr(frame, "_jdf"):
        pytest.skip("only an embedded session shows its plan")
    return frame._jdf.queryExecution().executedPlan().toString()


def test_rows_are_those_given(spark):
    rows = [(date(2024, 1, 1), Decimal("1.50")), (None, None)]
    frame = create_frame(spark, STRUCT, rows)
    assert frame.schema == STRUCT
    assert [tuple(row) for row in frame.collect()] == rows
    assert "LocalTableScan" in executed_plan(spark, frame)


@pytest.mark.parametrize("name", TABLES)
def test_no_rows_of_any_table(spark, name):
    frame = create_frame(spark, TABLES[name].struct_type)
    assert frame.schema == TABLES[name].struct_type
    assert "LocalTableScan" in executed_plan(spark, frame)


def test_no_rows_are_none_to_spark(spark):
    assert create_frame(spark, STRUCT).count() == 0


def test_times_are_those_given(spark):
    struct = T.StructType().add("at", T.TimestampType())
    at = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert create_frame(spark, struct, [(at,)]).selectExpr("string(at)").first()[0] == (
        "2024-01-01 10:00:00"
    )


def is_cached(frame) -> bool:
    return frame.storageLevel.useMemory


def test_steps_of_a_run_share_a_frame_until_the_run_ends(spark):
    shared_frames, computed = SharedFrames(), []

    def compute():
        computed.append(spark.range(3))
        return computed[-1]

    frame = shared_frames.share("run", "lines", compute)
    assert frame.count() == 3
    assert shared_frames.share("run", "lines", compute) is frame
    others = [
        shared_frames.share(run_id, key, compute)
        for run_id, key in (("run", "other lines"), ("another run", "lines"))
    ]
    assert len(computed) == 3
    assert all(map(is_cached, (frame, *others)))
    shared_frames.release("run")
    shared_frames.release("run")
    assert is_cached(others[1])
    if hasattr(frame, "_jdf"):  # a server has no such name any more
        assert not is_cached(frame)
        assert not is_cached(others[0])
    assert shared_frames.share("run", "lines", compute) is not frame
    for run_id in ("run", "another run"):
        shared_frames.release(run_id)
    assert not shared_frames._frames
    assert not shared_frames._blocks


def test_the_end_of_a_run_does_not_wait_for_an_engine_that_is_gone(spark, monkeypatch):
    answers = Event()

    @contextmanager
    def cache_frames():
        yield lambda frame: frame
        answers.wait(60)

    monkeypatch.setattr(frames, "cache_frames", cache_frames)
    monkeypatch.setattr(frames, "_RELEASE_SECONDS", 0.01)
    shared_frames = SharedFrames()
    shared_frames.share("run", "lines", lambda: spark.range(3))
    shared_frames.release("run")
    assert not answers.is_set()
    assert not shared_frames._frames
    answers.set()
