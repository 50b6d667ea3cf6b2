"""The raw log keeps what was loaded, whatever becomes of the files: purged, replaced, growing."""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path

import dagster as dg
import msgspec
import pytest

from backfill_assets.audit.raw_expectations import ACCEPT_TAG
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.landing import files
from backfill_assets.landing.listing import list_landing
from backfill_assets.monitoring.incidents import Monitor, find_incidents
from backfill_assets.monitoring.states import DayState, MonitoringSnapshot, day_states
from backfill_assets.orders.tables import ORDER_LINES, RAW, TABLES
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.finality import settled_days
from backfill_assets.staleness.impact import LogChange
from backfill_assets.staleness.unloaded import find_unloaded_days, loaded_manifests
from backfill_assets_tests.helpers.invented_listings import file_path
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    copy_loaded,
    count_outcomes,
    day,
    order,
)

RAW_STEP = ("raw_orders", "raw_orders_rejected")
REWRITE = {REWRITE_TAG: "true"}


def accept_tags(*names: str) -> dict[str, str]:
    return {ACCEPT_TAG: ", ".join(names)}


def early_order(order_id: str, n: int, **changes: str) -> dict:
    """An order of a day's folder that is logged on the day after."""
    return order(order_id, n, ingested=f"{day(n + 1)}T01:00:00Z", **changes)


def many_orders(count: int, n: int, prefix: str = "o") -> list[dict | str]:
    return [order(f"{prefix}-{n}-{i}", n) for i in range(count)]


#: The days of each test that begins with loaded ones.
PURGED, REPLACED, COPIED = (1, 2, 3), (6, 7, 8), (10, 11)
GONE, AT_REST = (14, 15, 16, 17, 18, 19), (24, 25, 26, 27)


@pytest.fixture(scope="module")
def loaded(engine: Engine, spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days of all tests, to be copied: a run costs the same, however many days it loads."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("loaded"))
    evening = order("evening", 1, at="16:00")
    pipeline.land(1, [order("a", 1), order("b", 1), evening, early_order("e", 1), "rejected"])
    pipeline.land(2, [order("c", 2, "7.00"), order("a", 1, "1.00", ingested=f"{day(2)}T09:00:00Z")])
    (pipeline.folder(2) / "_control.json").write_text('{"rows": 2, "amount": "8.00"}')
    pipeline.land(3, [order("d", 3), "rejected too"])
    pipeline.land(3, [order("f", 3), "rejected three"], "part-1.jsonl")

    early = [early_order("e", 6), early_order("f", 6)]
    pipeline.land(6, [order("a", 6), order("b", 6), *early, "rejected"])
    pipeline.land(7, [order("c", 7)])
    pipeline.land(8, [order("x", 8), order("y", 8)])

    for n in COPIED:
        pipeline.land(n, [*many_orders(2, n), early_order(f"e-{n}", n), "rejected"])

    for n in GONE[:5]:
        pipeline.land(n, [*many_orders(2, n), f"rejected {n}"])
    pipeline.land(18, [order("more", 18), "rejected more"], "more.jsonl")
    pipeline.land(19, [order("a", 19), early_order("e", 19)])

    pipeline.land(24, [order("a", 24), early_order("e", 24), "rejected"])
    pipeline.land(24, [order("b", 24), "rejected as well"], "part-1.jsonl")
    pipeline.land(26, [order("c", 26), early_order("f", 26), "rejected"], "loaded.jsonl")
    pipeline.land(26, many_orders(2, 26), "first.jsonl")

    pipeline.run_days([day(n) for n in (*PURGED, *REPLACED, *COPIED, *GONE, *AT_REST)], RAW_STEP)
    return pipeline.root


@pytest.fixture
def log(engine: Engine, loaded: Path, tmp_path: Path) -> Pipeline:
    """The raw log of the days of all tests."""
    copy_loaded(loaded, tmp_path)
    return Pipeline(engine, tmp_path)


def order_ids(pipeline: Pipeline, n: int) -> list[str]:
    """The orders that are logged on a day."""
    return sorted(r["order_id"] for r in pipeline.rows("raw_orders") if r["log_date"] == day(n))


def rejected_lines(pipeline: Pipeline, first: int, last: int) -> list[tuple[date, str]]:
    rows = pipeline.rows("raw_orders_rejected")
    days = Window(day(first), day(last + 1))
    return sorted((r["arrival_date"], r["text"]) for r in rows if r["arrival_date"] in days)


def check_evaluation(
    result: dg.ExecuteInProcessResult, n: int, check: str = "conservation"
) -> dg.AssetCheckEvaluation:
    """What a check of the raw log says of a day; its severity matters only if it did not pass."""
    (evaluation,) = (
        e
        for e in result.get_asset_check_evaluations()
        if (e.asset_key, e.check_name, e.partition) == (dg.AssetKey(RAW.name), check, str(day(n)))
    )
    return evaluation


def days_to_load(
    pipeline: Pipeline, first: int, today: int, *, rejected_too: bool = True
) -> set[date]:
    """The log days from a first one that a night would load; with rejected lines, if these are."""
    rejected = pipeline.io_manager.ledger(TABLES["raw_orders_rejected"])
    arrived = find_unloaded_days(
        pipeline.io_manager.ledger(RAW),
        list_landing(str(pipeline.landing), ORDER_LINES),
        Policy.from_settings(pipeline.settings),
        day(today),
        rejected if rejected_too else None,
    )
    return {d for d in arrived.days_to_load if d >= day(first)}


def read_snapshot(pipeline: Pipeline, today: int) -> MonitoringSnapshot:
    pipeline.now = pipeline.now.replace(month=1, day=today, hour=3)
    return Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)


def incident_details(now: MonitoringSnapshot, kind: str) -> dict[str, str]:
    """What a person is told of the raw log, by day."""
    return {
        i.item: i.detail for i in find_incidents(now) if (i.kind, i.subject) == (kind, RAW.name)
    }


# --- landing that was purged ----------------------------------------------------------------------


def test_days_are_rebuilt_from_the_log_when_their_landing_is_purged(
    log: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Day 4 was written by an older version: which content its files had, nobody knows."""
    log.land(4, [order("g", 4), order("h", 4), "rejected"])
    log.land(4, ["all of it rejected"], "part-1.jsonl")
    honest = LogChange.details_for

    def details_without_manifests(*arguments):
        return msgspec.structs.replace(honest(*arguments), landing={})

    monkeypatch.setattr(LogChange, "details_for", details_without_manifests)
    log.run(4, 4, RAW_STEP)
    monkeypatch.undo()
    manifests = loaded_manifests(log.io_manager.ledger(RAW))
    assert {n for n in (*PURGED, 4) if day(n) in manifests} == {*PURGED}
    before, refused = log.digests(), rejected_lines(log, 1, 4)

    for n in (1, 3, 4):
        shutil.rmtree(log.folder(n))
    (log.folder(2) / "part-0.jsonl").unlink()  # the control file stays, alone
    assert days_to_load(log, 1, 4) == set()
    result = log.run(1, 4, RAW_STEP, tags=REWRITE)
    assert log.digests() == before
    assert rejected_lines(log, 1, 4) == refused
    assert [n for n in (1, 2, 3) if not check_evaluation(result, n).passed] == []

    # What was kept is kept again, and what lands later comes on top of it. That a file is gone may
    # be accepted as well: its rows go.
    log.land(1, [order("new", 1), "rejected later"], "part-1.jsonl")
    assert days_to_load(log, 1, 4) == {day(1), day(2)}
    log.run(1, 3, RAW_STEP, tags={**REWRITE, **accept_tags(file_path(3))})
    assert {n: order_ids(log, n) for n in (1, 2, 3, 4)} == {
        1: ["a", "b", "evening", "new"],
        2: ["a", "c", "e"],
        3: ["f"],
        4: ["g", "h"],
    }
    assert rejected_lines(log, 1, 4) == [
        (day(1), "rejected"),
        (day(1), "rejected later"),
        (day(3), "rejected three"),
        (day(4), "all of it rejected"),
        (day(4), "rejected"),
    ]

    # Rows that another time zone would move to another day cannot be read again.
    before = log.digests()
    tokyo = Pipeline(log.io_manager.engine, log.root, timezone="Asia/Tokyo")
    text = tokyo.failure(tokyo.run(1, 2, [RAW.name], fails=True))
    assert "raw_orders[2024-01-01]  conservation: 1 row(s) whose files are gone belong" in text
    assert "put the files back, or keep the time zone" in text
    assert "raw_orders[2024-01-02]" not in text
    assert tokyo.digests() == before


# --- files that were replaced ---------------------------------------------------------------------


def test_a_replaced_file_that_takes_orders_away_waits_for_a_person(log: Pipeline) -> None:
    """That of day 6. That of day 8 is a correction first, as it has all orders."""

    def states(now: MonitoringSnapshot) -> dict[int, DayState]:
        by_day = day_states(RAW.name, now)
        return {n: by_day[day(n)] for n in REPLACED}

    log.land(6, [order("b", 6, "11.00"), early_order("f", 6)])
    path = log.land(8, [order("y", 8, "11.00"), order("z", 8), order("x", 8)])
    assert days_to_load(log, 6, 9) == {day(6), day(7), day(8)}
    result = log.run(6, 8, RAW_STEP)
    for n in REPLACED:
        check = check_evaluation(result, n)
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
        if n == 8:
            assert f"have all orders that were loaded from them: {file_path(8)}" in (
                check.description
            )
        else:
            assert file_path(6) in check.description
            assert ACCEPT_TAG in check.description
    assert {n: order_ids(log, n) for n in REPLACED} == {
        6: ["a", "b"],
        7: ["c", "e", "f"],
        8: ["x", "y", "z"],
    }
    assert rejected_lines(log, 6, 8) == [(day(6), "rejected")]

    # It waits, and says so; nothing else has to wait for it.
    assert days_to_load(log, 6, 9) == set()
    now = read_snapshot(log, 9)
    assert states(now) == {6: DayState.HELD, 7: DayState.HELD, 8: DayState.FRESH}
    waits = incident_details(now, "replaced file waits")
    assert set(waits) == {str(day(6)), str(day(7))}
    assert all(file_path(6) in detail for detail in waits.values())
    log.land(6, [order("new", 6), early_order("g", 6)], "part-1.jsonl")
    log.land(7, [order("new-2", 7)], "part-1.jsonl")
    whole = path.read_text()
    log.land(8, [order("x", 8)])
    log.run(6, 8, RAW_STEP)
    assert order_ids(log, 6) == ["a", "b", "new"]
    assert order_ids(log, 7) == ["c", "e", "f", "g", "new-2"]
    assert order_ids(log, 8) == ["x", "y", "z"]
    assert states(read_snapshot(log, 9))[8] is DayState.HELD

    # The old file is put back: nothing to read, but the record no longer says that one waits.
    path.write_text(whole)
    assert days_to_load(log, 6, 9) == {day(8)}

    # Accepted by name, it is loaded.
    result = log.run(6, 8, RAW_STEP, tags=accept_tags(file_path(6)))
    assert all(check_evaluation(result, n).passed for n in (6, 7))
    assert order_ids(log, 6) == ["b", "new"]
    assert order_ids(log, 7) == ["c", "f", "g", "new-2"]
    rows = [r for r in log.rows("raw_orders") if day(6) <= r["log_date"] <= day(8)]
    amounts = {r["order_id"]: str(r["amount"]) for r in rows}
    assert amounts["b"] == amounts["y"] == "11.00"
    assert rejected_lines(log, 6, 8) == []
    now = read_snapshot(log, 9)
    assert days_to_load(log, 6, 9) == set()
    assert set(states(now).values()) == {DayState.FRESH}
    assert incident_details(now, "replaced file waits") == {}
    # Into day 6, early lines of a folder of day 5 may still come.
    assert settled_days(now.ledgers[RAW.name]) & {day(n) for n in REPLACED} == {day(7), day(8)}


def test_whatever_becomes_of_a_file_its_rows_stay(log: Pipeline) -> None:
    """Gone while another came, cut to nothing, called unfinished, another name: each on its day."""
    refused = rejected_lines(log, 14, 20)
    path = {n: log.folder(n) / "part-0.jsonl" for n in GONE}
    path[14].unlink()
    log.land(14, [order("new", 14), "rejected later"], "part-1.jsonl")
    path[15].write_bytes(b"")
    path[16].rename(path[16].with_name("part-0.jsonl.tmp"))
    path[17].rename(path[17].with_name("other.jsonl"))
    # A renamed file beside one that is gone: its lines count once, rejected ones too.
    path[18].rename(path[18].with_name("other.jsonl"))
    path[18].with_name("more.jsonl").unlink()
    shutil.rmtree(path[19].parent)
    log.land(20, [order("b", 20)])
    assert days_to_load(log, 14, 20) == {day(14), day(15), day(16)}
    result = log.run(14, 20, RAW_STEP, tags=REWRITE)
    assert order_ids(log, 14) == ["new", "o-14-0", "o-14-1"]
    for n in (15, 16, 17):
        assert order_ids(log, n) == [f"o-{n}-0", f"o-{n}-1"]
    assert order_ids(log, 18) == ["more", "o-18-0", "o-18-1"]
    assert rejected_lines(log, 14, 20) == sorted([*refused, (day(14), "rejected later")])
    assert {r["source_file"] for r in log.rows("raw_orders") if r["log_date"] == day(17)} == {
        file_path(17, "other.jsonl")
    }
    now = read_snapshot(log, 21)
    assert incident_details(now, "replaced file waits").keys() == {str(day(15)), str(day(16))}

    # A folder that went before the next day was loaded has been there, so it closes windows; but
    # its early lines were never loaded.
    assert (order_ids(log, 19), order_ids(log, 20)) == (["a"], ["b"])
    assert (
        "1 early line(s) that arrival_date=2024-01-19 had"
        in check_evaluation(result, 20).description
    )
    assert settled_days(now.ledgers[RAW.name]) >= {day(19), day(20)}
    assert days_to_load(log, 14, 21) == set()


# --- identity by content --------------------------------------------------------------------------


def test_a_copied_landing_is_the_same_landing(log: Pipeline) -> None:
    # A day that is loaded by itself has the early lines of the folder before it.
    log.run(12, assets=[RAW.name])
    assert order_ids(log, 12) == ["e-11"]
    for path in Path(log.landing).rglob("*.jsonl"):
        os.utime(path, ns=(1, 1))
    assert days_to_load(log, 10, 13, rejected_too=False) == set()
    result = log.run(10, 12, [RAW.name])
    assert count_outcomes(result).keys() == {"identical"}

    # The same size, but not the same content.
    path = log.folder(10) / "part-0.jsonl"
    path.write_text(path.read_text().replace("10.00", "20.00"))
    os.utime(path, ns=(1, 1_000_000_001))
    assert days_to_load(log, 10, 13, rejected_too=False) == {day(10), day(11)}


# --- files that are still being written -----------------------------------------------------------


def run_at_reading(monkeypatch: pytest.MonkeyPatch, act) -> None:
    """Do something once, after the landing was listed and before its lines are read."""
    honest, pending = files.read_lines, [act]

    def read_lines(*arguments):
        while pending:
            pending.pop()()
        return honest(*arguments)

    monkeypatch.setattr(files, "read_lines", read_lines)


def test_a_file_that_is_not_at_rest_is_not_loaded(
    log: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows: on day 22 it is new, on day 24 it was loaded before. Or it goes: both on day 26.

    Another of day 26 was loaded and renamed, and has a third name when it is read.
    """
    growing = {n: log.folder(n) / "part-0.jsonl" for n in (22, 24)}
    log.land(22, [order("a", 22), early_order("e", 22), "rejected"])
    log.land(22, [order("b", 22), "rejected as well"], "part-1.jsonl")
    gone = log.folder(26) / "loaded.jsonl", log.folder(26) / "new.jsonl"
    log.land(26, [order("d", 26), early_order("g", 26), "rejected"], "new.jsonl")

    def add_lines(path: Path, n: int, suffix: str) -> None:
        with path.open("a") as file:
            for line in (order(f"a{suffix}", n), early_order(f"e{suffix}", n)):
                file.write(json.dumps(line) + "\n")

    def act() -> None:
        for n, path in growing.items():
            add_lines(path, n, "-while-reading")
        for path in gone:
            path.unlink()
        second.rename(third)

    add_lines(growing[24], 24, "-before")
    add_lines(gone[0], 26, "-before")
    second, third = (log.folder(26) / f"{name}.jsonl" for name in ("second", "third"))
    (log.folder(26) / "first.jsonl").rename(second)
    log.land(26, [order("o", 26)], "part-1.jsonl")
    run_at_reading(monkeypatch, act)
    result = log.run(22, 27, [RAW.name])
    monkeypatch.undo()
    moving = {n: [file_path(n - n % 2)] for n in (22, 23, 24, 25)}
    for n in (26, 27):
        moving[n] = [file_path(26, path.name) for path in gone]
    for n, names in moving.items():
        check = check_evaluation(result, n)
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert "not loaded by this run: " in check.description
        assert all(name in check.description for name in names), n
    ids_by_day = {n: order_ids(log, n) for n in moving}
    # No run has found the renamed file under a name, and its rows stay.
    assert ids_by_day == {
        22: ["b"],
        23: [],
        24: ["a", "b"],
        25: ["e"],
        26: ["c", "o", "o-26-0", "o-26-1"],
        27: ["f"],
    }

    # At rest, they are taken; of those that are gone, there is nothing to take.
    third.unlink()
    assert days_to_load(log, 22, 28, rejected_too=False) == {day(n) for n in (22, 23, 24, 25)}
    log.run(22, 27, [RAW.name], tags=REWRITE)
    assert days_to_load(log, 22, 28, rejected_too=False) == set()
    assert {n: order_ids(log, n) for n in moving} == ids_by_day | {
        22: ["a", "a-while-reading", "b"],
        23: ["e", "e-while-reading"],
        24: ["a", "a-before", "a-while-reading", "b"],
        25: ["e", "e-before", "e-while-reading"],
    }


# --- a delivery that went wrong -------------------------------------------------------------------


def test_deliveries_that_went_wrong_are_held_back(pipeline: Pipeline) -> None:
    """Most lines are rejected, more than on the days before, or far fewer than there were."""
    for n in (1, 2):
        pipeline.land(n, [order(f"o-{n}", n)] * 30)
    for n in (3, 4, 5):
        pipeline.land(n, [*many_orders(24, n), "rejected"])
    pipeline.run(1, 5, [RAW.name])

    # All orders of days 1 and 2 are still there, but most lines are not.
    for n in (1, 2):
        pipeline.land(n, [order(f"o-{n}", n)] * 14)
    pipeline.land(6, [*many_orders(21, 6), *(["rejected"] * 79)])
    pipeline.land(7, [*many_orders(75, 7), *(["rejected"] * 25)])
    pipeline.land(8, ["rejected"] * 19)  # too few to tell
    pipeline.land(9, [*many_orders(22, 9), *(["rejected"] * 3)])
    changed = [day(n) for n in (1, 2, 6, 7, 8, 9)]
    result = pipeline.run_days(changed, [RAW.name], fails=True)
    text = pipeline.failure(result)
    assert "raw_orders[2024-01-01]  conservation: 14 rows where the published version" in text
    assert f"{ACCEPT_TAG} = rows" in text
    assert "raw_orders[2024-01-06]  rejected_lines: 79 of 100 lines are rejected (79.0%)" in text
    assert f"{ACCEPT_TAG} = rejected" in text
    assert pipeline.materialized("raw_orders") == {str(day(n)) for n in range(1, 10) if n != 6}
    assert {len(order_ids(pipeline, n)) for n in (1, 2)} == {30}
    checks = {n: check_evaluation(result, n, "rejected_lines") for n in (6, 7, 8, 9)}
    assert {n: (c.passed, c.severity.value) for n, c in checks.items()} == {
        6: (False, "ERROR"),
        7: (False, "ERROR"),
        8: (True, "ERROR"),
        9: (False, "ERROR"),
    }
    assert checks[9].description == (
        "3 of 25 lines are rejected (12.0%), on the days before 4.0% (median)"
    )
    now = read_snapshot(pipeline, 10)
    assert day_states(RAW.name, now)[day(6)] is DayState.CHECK_FAILED
    assert incident_details(now, "check failed").keys() == {str(day(n)) for n in (1, 2, 6)}
    lines = incident_details(now, "lines rejected")
    assert lines.keys() == {str(day(7)), str(day(9))}
    assert "25 of 100 lines are rejected (25.0%)" in lines[str(day(7))]

    # A person accepts one thing after another; a file by its name counts for its days alone.
    accepted = accept_tags(file_path(2), "rejected")
    pipeline.run_days(changed[:3], [RAW.name], tags=accepted, fails=True)
    assert {n: len(order_ids(pipeline, n)) for n in (1, 2, 6)} == {1: 30, 2: 14, 6: 21}
    pipeline.run(1, 1, [RAW.name], tags=accept_tags("rows"))
    assert len(order_ids(pipeline, 1)) == 14
    now = read_snapshot(pipeline, 10)
    assert incident_details(now, "check failed") == {}
    assert incident_details(now, "lines rejected").keys() == {str(day(n)) for n in (6, 7, 9)}
