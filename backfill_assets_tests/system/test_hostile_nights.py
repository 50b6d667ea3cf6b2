"""A landing as an attacker, or an unlucky user, leaves it: through nights, states and alerts."""

from __future__ import annotations

import gzip
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.monitoring.incidents import Monitor, find_incidents
from backfill_assets.monitoring.states import DayState, MonitoringSnapshot, day_states
from backfill_assets_tests.helpers.invented_listings import close_folder
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

FINE = (1, 2, 7)
#: What reads the landing; what is made of it knows no file.
LOADED = ("raw_orders", "raw_orders_rejected")


def spoil_days(pipeline: Pipeline, secret: Path) -> None:
    """A day of each kind between days that are fine."""
    for n in range(1, 8):
        if n != 5:
            pipeline.land(n, [order(f"o{n}", n)])
    bomb = gzip.compress(b"x" * (16 << 20)) * 100
    (pipeline.folder(3) / "bomb.jsonl.gz").write_bytes(bomb)
    (pipeline.folder(4) / "link.jsonl").symlink_to(secret)
    (pipeline.landing / "orders" / f"arrival_date={day(5)}").write_text("no folder")
    # Day 6 may not be listed: see `close_folder`.


def fix_days(pipeline: Pipeline) -> None:
    (pipeline.folder(3) / "bomb.jsonl.gz").unlink()
    (pipeline.folder(4) / "link.jsonl").unlink()
    (pipeline.landing / "orders" / f"arrival_date={day(5)}").unlink()
    pipeline.land(5, [order("o5", 5)])


def test_one_bad_day_is_no_other_days_problem(pipeline: Pipeline, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("secret")
    spoil_days(pipeline, secret)
    reasons_by_day = {
        3: f"arrival_date={day(3)}/bomb.jsonl.gz (LandingError: a line is longer than",
        4: f"arrival_date={day(4)}/link.jsonl (a link that leads out of the landing",
        5: f"arrival_date={day(5)}/ (NotADirectoryError",
        6: f"arrival_date={day(6)}/ (PermissionError",
    }
    with pytest.MonkeyPatch.context() as patch:
        close_folder(patch, pipeline.folder(6))
        pipeline.night(day(8), LOADED)
        now = read_snapshot(pipeline)
        states = day_states("raw_orders", now)
        day_incidents = {i.item: i for i in find_incidents(now) if i.subject == "raw_orders"}
    assert pipeline.materialized("raw_orders") == {str(day(n)) for n in FINE}
    assert {n for n in reasons_by_day if states[day(n)] is DayState.CHECK_FAILED} == {
        *reasons_by_day
    }
    assert {day_incidents[str(day(n))].kind for n in reasons_by_day} == {"check failed"}
    messages = check_messages(pipeline)
    for n, text in reasons_by_day.items():
        assert any(f"cannot be read: {text}" in reason for reason in messages[str(day(n))])
        assert secret.read_text() not in str(messages)

    fix_days(pipeline)
    pipeline.night(day(9), LOADED)
    assert pipeline.materialized("raw_orders") >= {str(day(n)) for n in range(1, 8)}
    assert {row["order_id"] for row in pipeline.rows("raw_orders")} == {
        f"o{n}" for n in range(1, 8)
    }
    assert DayState.CHECK_FAILED not in day_states("raw_orders", read_snapshot(pipeline)).values()


def read_snapshot(pipeline: Pipeline) -> MonitoringSnapshot:
    return Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)


def check_messages(pipeline: Pipeline) -> dict[str, list[str]]:
    """By day, what the checks of the raw log said."""
    messages: dict[str, list[str]] = {}
    for run in pipeline.instance.get_runs():
        for entry in pipeline.instance.all_logs(
            run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ):
            evaluation = entry.get_dagster_event().asset_check_evaluation_data
            if evaluation.partition and not evaluation.passed:
                messages.setdefault(evaluation.partition, []).append(str(evaluation.description))
    return messages
