"""A source whose files land by the hour, and the table by day that is made of it."""

from __future__ import annotations

import shutil
from datetime import datetime, time
from pathlib import Path

import dagster as dg
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest

from backfill_assets.audit.raw_expectations import ACCEPT_TAG
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import Window, days_of_run
from backfill_assets.landing.listing import list_landing
from backfill_assets_tests.helpers.pipeline import Pipeline, day, make_plan, run_undo, run_verify
from backfill_assets_tests.neighbours import TAPS, Taps, taps_by_hour

LOG = TAPS.raw.name
#: Of lines that are all accepted.
MADE = (LOG, TAPS.staged.name, taps_by_hour.name)
NAMES = (*MADE, TAPS.rejected.name)


@pytest.fixture
def taps(engine, spark, tmp_path: Path) -> Taps:
    (tmp_path / "landing" / "taps").mkdir(parents=True)
    return Taps(engine, tmp_path, land=False, tables="backfill_assets_tests.neighbours:HOURS")


def audit_message(result: dg.ExecuteInProcessResult, n: int, name: str = LOG) -> str:
    """What the audit says of a day of the log."""
    (evaluation,) = (
        e
        for e in result.get_asset_check_evaluations()
        if (e.asset_key, e.check_name, e.partition)
        == (dg.AssetKey(name), "conservation", str(day(n)))
    )
    return evaluation.description or ""


def test_hours_are_read_and_a_late_one_makes_its_day_again(taps: Taps) -> None:
    for n in (1, 2):
        taps.whole_day(n)
    taps.whole_day(3, without=[4, 23])
    (taps.hour(3, 5) / "part-0.jsonl").unlink()  # the hour came, with nothing
    result = taps.run(1, 3, NAMES)
    assert taps.made(1) == taps.made(2) == dict.fromkeys(range(24), 1)
    assert taps.made(3) == dict.fromkeys({*range(24)} - {4, 5, 23}, 1)
    assert taps.files(2) == {f"arrival_date={day(2)}/hour={h:02}/part-0.jsonl" for h in range(24)}
    assert "no folder" not in audit_message(result, 1)
    assert f"2 hour(s) of arrival_date={day(3)} have no folder: 04, 23" in audit_message(result, 3)
    # The hours of a day come after it was loaded; nobody has to say so.
    taps.tap(3, 23, ["a", "b"])
    taps.now = datetime.combine(day(4), time(2), tzinfo=taps.settings.zone)
    (request,) = (r for r in taps.tick_schedule() if dg.AssetKey(LOG) in (r.asset_selection or ()))
    assert days_of_run(request.tags) == Window(day(3), day(4))
    taps.run(3, 3, MADE, tags={"dagster/schedule_name": "nightly"})
    assert taps.made(3)[23] == 2
    plan = make_plan(taps, str(day(3)), tables=NAMES)
    assert plan.tables[taps_by_hour.name].identical
    # The last of them: the warning ends.
    taps.tap(3, 4, ["c"])
    plan = make_plan(taps, str(day(3)), tables=NAMES)
    assert not plan.tables[TAPS.raw.name].identical
    assert "no folder" not in audit_message(taps.run(3, 3, MADE), 3)
    assert taps.made(3)[4] == 1
    ends = (LOG, taps_by_hour.name)
    matches = run_verify(taps.settings, taps.io_manager.engine, Window(day(1), day(4)), ends)
    assert {(found.table, found.outcome) for found in matches} == {
        (name, VerifyOutcome.MATCHES) for name in ends
    }


@pytest.mark.slow
def test_a_purged_landing_of_hours_takes_nothing_away(taps: Taps) -> None:
    taps.whole_day(1, without=[9])
    before = taps.run(1, 1, NAMES)
    assert "no folder: 09" in audit_message(before, 1)
    hours = taps.made(1)
    for hour in range(12):
        shutil.rmtree(taps.landing / "taps" / f"arrival_date={day(1)}" / f"hour={hour:02}", True)
    taps.tap(1, 20, ["more"], "part-1.jsonl")
    # What was loaded has come: the hour that never came alone is missing.
    assert "no folder: 09." in audit_message(taps.run(1, 1, NAMES), 1)
    assert taps.made(1) == hours | {20: 2}


@pytest.mark.slow
def test_a_replaced_file_of_an_hour_waits_for_a_person(taps: Taps) -> None:
    taps.whole_day(1)
    taps.tap(1, 3, ["x", "y"])
    taps.run(1, 1, NAMES)
    path = taps.tap(1, 3, ["x"])
    name = f"arrival_date={day(1)}/hour=03/{path.name}"
    assert f"{name} was replaced and lacks taps" in audit_message(taps.run(1, 1, NAMES), 1)
    assert taps.made(1)[3] == 2
    accepted = taps.run(1, 1, NAMES, tags={ACCEPT_TAG: name})
    assert taps.made(1)[3] == 1
    run_undo(taps, accepted.run_id)
    assert taps.made(1)[3] == 2


def test_what_lies_beside_the_hours_is_told(taps: Taps) -> None:
    taps.whole_day(1)
    folder = taps.landing / "taps" / f"arrival_date={day(1)}"
    shutil.copy(folder / "hour=03" / "part-0.jsonl", folder / "beside.jsonl")
    shutil.copytree(folder / "hour=03", folder / "hour=24")
    (folder / "_control.json").write_text('{"rows": 24}')
    text = audit_message(taps.run(1, 1, [LOG]), 1)
    for name in ("beside.jsonl", "hour=24"):
        assert f"unknown kind of file: arrival_date={day(1)}/{name}" in text
    # A control file counts all hours; one that is wrong holds the day back.
    (folder / "_control.json").write_text('{"rows": 25}')
    assert "_control.json says 25 taps, 24 were read" in audit_message(
        taps.run(1, 1, [LOG], fails=True), 1
    )
    (folder / "_control.json").unlink()
    # A broken file of an hour holds the day back, by its name.
    (folder / "hour=05" / "broken.json.gz").write_bytes(b"no gzip")
    text = audit_message(taps.run(1, 1, [LOG], fails=True), 1)
    assert f"cannot be read: arrival_date={day(1)}/hour=05/broken.json.gz" in text


def test_every_format_lands_by_the_hour(taps: Taps) -> None:
    """A day that has not come lacks no hour."""
    at = f"{day(1)}T01:00:00Z"
    (taps.hour(1, 1) / "a b+c%20.csv").write_text(f"tap_id,at,seen_at\nc,{at},{at}\n")
    columns = arrow.table({"tap_id": ["p"], "at": [at], "seen_at": [at]})
    pq.write_table(columns, taps.hour(1, 2) / "part-0.parquet")
    taps.tap(1, 3, ["j"], "part[0].jsonl")
    result = taps.run(1, 2, [LOG])
    assert "have no folder" in audit_message(result, 1)
    assert "no folder" not in audit_message(result, 2)
    assert taps.files(1) == {
        f"arrival_date={day(1)}/{name}"
        for name in ("hour=01/a b+c%20.csv", "hour=02/part-0.parquet", "hour=03/part[0].jsonl")
    }
    listed = list_landing(str(taps.landing), TAPS).files_on(day(1))
    assert {*listed} == taps.files(1)


def test_hours_of_a_source_by_day_are_told(engine, spark, tmp_path: Path) -> None:
    pipeline = Pipeline(engine, tmp_path)
    (pipeline.folder(1) / "hour=03").mkdir()
    (pipeline.folder(1) / "hour=03" / "part-0.jsonl").write_text("{}\n")
    result = pipeline.run(1, 1, ["raw_orders"])
    text = audit_message(result, 1, "raw_orders")
    assert f"1 folder(s) of hours are not read, such as arrival_date={day(1)}/hour=03" in text
    assert "hourly=True" in text
