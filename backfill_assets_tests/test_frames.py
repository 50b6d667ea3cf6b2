"""Rows of this process as frames, without Python where Spark computes."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pyspark.sql import types as T

from backfill_assets.orders.tables import TABLES
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


def test_steps_of_a_run_share_a_frame_until_the_last_of_them_ends(spark):
    shared_frames, computed = SharedFrames(), []

    def compute():
        computed.append(spark.range(3))
        return computed[-1]

    steps = {"staging", "current"}
    with shared_frames.read_by("run", "staging", steps) as share:
        frame = share("lines", compute)
        with shared_frames.read_by("another run", "staging", {"staging"}) as share_other:
            assert share_other("lines", compute) is not frame
    assert frame.count() == 3
    with shared_frames.read_by("run", "current", steps) as share:
        assert share("lines", compute) is frame
        assert is_cached(frame)
        assert share("other lines", compute) is not frame
    assert len(computed) == 3
    if hasattr(frame, "_jdf"):  # a server has no such name any more
        assert not is_cached(frame)


def test_a_step_that_is_repeated_computes_a_released_frame_again(spark):
    shared_frames, frames = SharedFrames(), []
    for _ in range(2):
        with (
            pytest.raises(ZeroDivisionError),
            shared_frames.read_by("run", "staging", {"staging"}) as share,
        ):
            frames.append(share("lines", lambda: spark.range(3)))
            assert is_cached(frames[-1])
            raise ZeroDivisionError
    assert frames[0] is not frames[1]


def test_a_step_that_reads_no_shared_frame_holds_none_back(spark):
    """Its inputs had not changed, or it failed before it read them."""
    shared_frames, steps = SharedFrames(), {"staging", "current"}
    with shared_frames.read_by("run", "current", steps):
        pass
    with shared_frames.read_by("run", "staging", steps) as share:
        frame = share("lines", lambda: spark.range(3))
    if hasattr(frame, "_jdf"):
        assert not is_cached(frame)
