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

from backfill_assets.calendar.late_data import Policy
from backfill_assets.landing import files
from backfill_assets.landing.listing import list_landing
from backfill_assets.monitoring.incidents import Monitor, find_incidents
from backfill_assets.monitoring.states import DayState, Snapshot, day_states
from backfill_assets.orders.tables import ORDER_LINES, RAW, TABLES
from backfill_assets.publish.types import ACCEPT_TAG, REWRITE_TAG
from backfill_assets.staleness.assess import settled_days
from backfill_assets.staleness.impact import LogChange
from backfill_assets.staleness.unloaded import find_unloaded_days, loaded_manifests
from backfill_assets_tests.helpers.invented_listings import file_path
from backfill_assets_tests.helpers.pipeline import Pipeline, count_outcomes, day, order

RAW_STEP = ("raw_orders", "raw_orders_rejected")
REWRITE = {REWRITE_TAG: "true"}


def accept_tags(*names: str) -> dict[str, str]:
    return {ACCEPT_TAG: ", ".join(names)}


def early_order(order_id: str, n: int, **changes: str) -> dict:
    """An order of a day's folder that is logged on the day after."""
    return order(order_id, n, ingested=f"{day(n + 1)}T01:00:00Z", **changes)


def many_orders(count: int, n: int, prefix: str = "o") -> list[dict | str]:
    return [order(f"{prefix}-{n}-{i}", n) for i in range(count)]


def order_ids(pipeline: Pipeline, n: int) -> list[str]:
    """The orders that are logged on a day."""
    return sorted(r["order_id"] for r in pipeline.rows("raw_orders") if r["log_date"] == day(n))


def rejected_lines(pipeline: Pipeline) -> list[tuple[date, str]]:
    return sorted((r["arrival_date"], r["text"]) for r in pipeline.rows("raw_orders_rejected"))


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


def days_to_load(pipeline: Pipeline, today: int) -> set[date]:
    """The log days that a night would load; with the rejected lines, where these are loaded."""
    rejected = pipeline.io_manager.ledger(TABLES["raw_orders_rejected"])
    arrived = find_unloaded_days(
        pipeline.io_manager.ledger(RAW),
        list_landing(str(pipeline.landing), ORDER_LINES),
        Policy.from_settings(pipeline.settings),
        day(today),
        rejected if rejected.records else None,
    )
    return set(arrived.days_to_load)


def read_snapshot(pipeline: Pipeline, today: int) -> Snapshot:
    pipeline.now = pipeline.now.replace(month=1, day=today, hour=3)
    return Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)


def incident_details(now: Snapshot, kind: str) -> dict[str, str]:
    """What a person is told of the raw log, by day."""
    return {
        i.item: i.detail for i in find_incidents(now) if (i.kind, i.subject) == (kind, RAW.name)
    }


# --- landing that was purged ----------------------------------------------------------------------


def test_days_are_rebuilt_from_the_log_when_their_landing_is_purged(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Day 4 was written by an older version: which content its files had, nobody knows."""
    evening = order("evening", 1, at="16:00")
    pipeline.land(1, [order("a", 1), order("b", 1), evening, early_order("e", 1), "rejected"])
    pipeline.land(2, [order("c", 2, "7.00"), order("a", 1, "1.00", ingested=f"{day(2)}T09:00:00Z")])
    (pipeline.folder(2) / "_control.json").write_text('{"rows": 2, "amount": "8.00"}')
    pipeline.land(3, [order("d", 3), "rejected too"])
    pipeline.land(3, [order("f", 3), "rejected three"], "part-1.jsonl")
    pipeline.run(1, 3, RAW_STEP)
    pipeline.land(4, [order("g", 4), order("h", 4), "rejected"])
    pipeline.land(4, ["all of it rejected"], "part-1.jsonl")
    honest = LogChange.details_for

    def details_without_manifests(*arguments):
        return msgspec.structs.replace(honest(*arguments), landing={})

    monkeypatch.setattr(LogChange, "details_for", details_without_manifests)
    pipeline.run(4, 4, RAW_STEP)
    monkeypatch.undo()
    assert {*loaded_manifests(pipeline.io_manager.ledger(RAW))} == {day(1), day(2), day(3)}
    before, refused = pipeline.digests(), rejected_lines(pipeline)

    for n in (1, 3, 4):
        shutil.rmtree(pipeline.folder(n))
    (pipeline.folder(2) / "part-0.jsonl").unlink()  # the control file stays, alone
    assert days_to_load(pipeline, 4) == set()
    result = pipeline.run(1, 4, RAW_STEP, tags=REWRITE)
    assert pipeline.digests() == before
    assert rejected_lines(pipeline) == refused
    assert [n for n in (1, 2, 3) if not check_evaluation(result, n).passed] == []

    # What was kept is kept again, and what lands later comes on top of it. That a file is gone may
    # be accepted as well: its rows go.
    pipeline.land(1, [order("new", 1), "rejected later"], "part-1.jsonl")
    assert days_to_load(pipeline, 4) == {day(1), day(2)}
    pipeline.run(1, 3, RAW_STEP, tags={**REWRITE, **accept_tags(file_path(3))})
    assert {n: order_ids(pipeline, n) for n in (1, 2, 3, 4)} == {
        1: ["a", "b", "evening", "new"],
        2: ["a", "c", "e"],
        3: ["f"],
        4: ["g", "h"],
    }
    assert rejected_lines(pipeline) == [
        (day(1), "rejected"),
        (day(1), "rejected later"),
        (day(3), "rejected three"),
        (day(4), "all of it rejected"),
        (day(4), "rejected"),
    ]

    # Rows that another time zone would move to another day cannot be read again.
    before = pipeline.digests()
    tokyo = Pipeline(pipeline.io_manager.engine, pipeline.root, timezone="Asia/Tokyo")
    text = tokyo.failure(tokyo.run(1, 2, [RAW.name], fails=True))
    assert "raw_orders[2024-01-01]  conservation: 1 row(s) whose files are gone belong" in text
    assert "put the files back, or keep the time zone" in text
    assert "raw_orders[2024-01-02]" not in text
    assert tokyo.digests() == before


# --- files that were replaced ---------------------------------------------------------------------


def test_a_replaced_file_that_takes_orders_away_waits_for_a_person(pipeline: Pipeline) -> None:
    """That of day 1. That of day 3 is a correction first, as it has all orders."""
    pipeline.land(
        1, [order("a", 1), order("b", 1), early_order("e", 1), early_order("f", 1), "rejected"]
    )
    pipeline.land(2, [order("c", 2)])
    path = pipeline.land(3, [order("x", 3), order("y", 3)])
    pipeline.run(1, 3, RAW_STEP)

    pipeline.land(1, [order("b", 1, "11.00"), early_order("f", 1)])
    pipeline.land(3, [order("y", 3, "11.00"), order("z", 3), order("x", 3)])
    assert days_to_load(pipeline, 4) == {day(1), day(2), day(3)}
    result = pipeline.run(1, 3, RAW_STEP)
    for n in (1, 2, 3):
        check = check_evaluation(result, n)
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
        if n == 3:
            assert f"have all orders that were loaded from them: {file_path(3)}" in (
                check.description
            )
        else:
            assert file_path(1) in check.description
            assert ACCEPT_TAG in check.description
    assert {n: order_ids(pipeline, n) for n in (1, 2, 3)} == {
        1: ["a", "b"],
        2: ["c", "e", "f"],
        3: ["x", "y", "z"],
    }
    assert rejected_lines(pipeline) == [(day(1), "rejected")]

    # It waits, and says so; nothing else has to wait for it.
    assert days_to_load(pipeline, 4) == set()
    now = read_snapshot(pipeline, 4)
    assert day_states(RAW.name, now) == {
        day(1): DayState.HELD,
        day(2): DayState.HELD,
        day(3): DayState.FRESH,
    }
    waits = incident_details(now, "replaced file waits")
    assert set(waits) == {str(day(1)), str(day(2))}
    assert all(file_path(1) in detail for detail in waits.values())
    pipeline.land(1, [order("new", 1), early_order("g", 1)], "part-1.jsonl")
    pipeline.land(2, [order("new-2", 2)], "part-1.jsonl")
    whole = path.read_text()
    pipeline.land(3, [order("x", 3)])
    pipeline.run(1, 3, RAW_STEP)
    assert order_ids(pipeline, 1) == ["a", "b", "new"]
    assert order_ids(pipeline, 2) == ["c", "e", "f", "g", "new-2"]
    assert order_ids(pipeline, 3) == ["x", "y", "z"]
    assert day_states(RAW.name, read_snapshot(pipeline, 4))[day(3)] is DayState.HELD

    # The old file is put back: nothing to read, but the record no longer says that one waits.
    path.write_text(whole)
    assert days_to_load(pipeline, 4) == {day(3)}

    # Accepted by name, it is loaded.
    result = pipeline.run(1, 3, RAW_STEP, tags=accept_tags(file_path(1)))
    assert all(check_evaluation(result, n).passed for n in (1, 2))
    assert order_ids(pipeline, 1) == ["b", "new"]
    assert order_ids(pipeline, 2) == ["c", "f", "g", "new-2"]
    amounts = {r["order_id"]: str(r["amount"]) for r in pipeline.rows("raw_orders")}
    assert amounts["b"] == amounts["y"] == "11.00"
    assert rejected_lines(pipeline) == []
    now = read_snapshot(pipeline, 4)
    assert days_to_load(pipeline, 4) == set()
    assert set(day_states(RAW.name, now).values()) == {DayState.FRESH}
    assert incident_details(now, "replaced file waits") == {}
    assert settled_days(now.ledgers[RAW.name]) == {day(1), day(2), day(3)}


def test_whatever_becomes_of_a_file_its_rows_stay(pipeline: Pipeline) -> None:
    """Gone while another came, cut to nothing, called unfinished, another name: each on its day."""
    for n in range(1, 6):
        pipeline.land(n, [*many_orders(2, n), f"rejected {n}"])
    pipeline.land(5, [order("more", 5), "rejected more"], "more.jsonl")
    pipeline.land(6, [order("a", 6), early_order("e", 6)])
    pipeline.run(1, 6, RAW_STEP)
    refused = rejected_lines(pipeline)

    path = {n: pipeline.folder(n) / "part-0.jsonl" for n in range(1, 7)}
    path[1].unlink()
    pipeline.land(1, [order("new", 1), "rejected later"], "part-1.jsonl")
    path[2].write_bytes(b"")
    path[3].rename(path[3].with_name("part-0.jsonl.tmp"))
    path[4].rename(path[4].with_name("other.jsonl"))
    # A renamed file beside one that is gone: its lines count once, rejected ones too.
    path[5].rename(path[5].with_name("other.jsonl"))
    path[5].with_name("more.jsonl").unlink()
    shutil.rmtree(path[6].parent)
    pipeline.land(7, [order("b", 7)])
    assert days_to_load(pipeline, 7) == {day(1), day(2), day(3)}
    result = pipeline.run(1, 7, RAW_STEP, tags=REWRITE)
    assert order_ids(pipeline, 1) == ["new", "o-1-0", "o-1-1"]
    for n in (2, 3, 4):
        assert order_ids(pipeline, n) == [f"o-{n}-0", f"o-{n}-1"]
    assert order_ids(pipeline, 5) == ["more", "o-5-0", "o-5-1"]
    assert rejected_lines(pipeline) == sorted([*refused, (day(1), "rejected later")])
    assert {r["source_file"] for r in pipeline.rows("raw_orders") if r["log_date"] == day(4)} == {
        file_path(4, "other.jsonl")
    }
    now = read_snapshot(pipeline, 8)
    assert incident_details(now, "replaced file waits").keys() == {str(day(2)), str(day(3))}

    # A folder that went before the next day was loaded has been there, so it closes windows; but
    # its early lines were never loaded.
    assert (order_ids(pipeline, 6), order_ids(pipeline, 7)) == (["a"], ["b"])
    assert (
        "1 early line(s) that arrival_date=2024-01-06 had"
        in check_evaluation(result, 7).description
    )
    assert settled_days(now.ledgers[RAW.name]) >= {day(6), day(7)}
    assert days_to_load(pipeline, 8) == set()


# --- identity by content --------------------------------------------------------------------------


def test_a_copied_landing_is_the_same_landing(pipeline: Pipeline) -> None:
    for n in (1, 2):
        pipeline.land(n, [*many_orders(2, n), early_order(f"e-{n}", n), "rejected"])
    pipeline.run(1, 2, [RAW.name])
    # A day that is loaded by itself has the early lines of the folder before it.
    pipeline.run(3, assets=[RAW.name])
    assert order_ids(pipeline, 3) == ["e-2"]
    for path in Path(pipeline.landing).rglob("*.jsonl"):
        os.utime(path, ns=(1, 1))
    assert days_to_load(pipeline, 4) == set()
    result = pipeline.run(1, 3, [RAW.name])
    assert count_outcomes(result).keys() == {"identical"}

    # The same size, but not the same content.
    path = pipeline.folder(1) / "part-0.jsonl"
    path.write_text(path.read_text().replace("10.00", "20.00"))
    os.utime(path, ns=(1, 1_000_000_001))
    assert days_to_load(pipeline, 4) == {day(1), day(2)}


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
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On days 1 and 3 it is new, on days 5 and 7 it was loaded before; it grows, or goes.

    That of day 9 was loaded and renamed, and has a third name when it is read.
    """
    paths = {}
    for n in (1, 3, 5, 7):
        paths[n] = pipeline.land(n, [order("a", n), early_order("e", n), "rejected"])
        pipeline.land(n, [order("b", n), "rejected as well"], "part-1.jsonl")
    paths[9] = pipeline.land(9, many_orders(2, 9))
    pipeline.run(5, 9, [RAW.name])

    def write_file(n: int, suffix: str) -> None:
        with paths[n].open("a") as file:
            for line in (order(f"a{suffix}", n), early_order(f"e{suffix}", n)):
                file.write(json.dumps(line) + "\n")

    def act() -> None:
        for n in (1, 5):
            write_file(n, "-while-reading")
        for n in (3, 7):
            paths[n].unlink()
        second.rename(third)

    for n in (5, 7):
        write_file(n, "-before")
    second, third = paths[9].with_name("second.jsonl"), paths[9].with_name("third.jsonl")
    paths[9].rename(second)
    pipeline.land(9, [order("new", 9)], "part-1.jsonl")
    run_at_reading(monkeypatch, act)
    result = pipeline.run(1, 9, [RAW.name])
    monkeypatch.undo()
    for n in range(1, 9):
        check = check_evaluation(result, n)
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert f"not loaded by this run: {file_path(n - 1 + n % 2)}" in check.description
    ids_by_day = {n: order_ids(pipeline, n) for n in range(1, 9)}
    assert ids_by_day == {
        1: ["b"],
        2: [],
        3: ["b"],
        4: [],
        5: ["a", "b"],
        6: ["e"],
        7: ["a", "b"],
        8: ["e"],
    }

    # No run has found the file of day 9 under a name, and its rows stay.
    assert order_ids(pipeline, 9) == ["new", "o-9-0", "o-9-1"]

    # At rest, they are taken; of those that are gone, there is nothing to take.
    third.unlink()
    assert days_to_load(pipeline, 9) == {day(n) for n in (1, 2, 5, 6)}
    pipeline.run(1, 9, [RAW.name], tags=REWRITE)
    assert days_to_load(pipeline, 9) == set()
    assert order_ids(pipeline, 9) == ["new", "o-9-0", "o-9-1"]
    assert {n: order_ids(pipeline, n) for n in range(1, 9)} == ids_by_day | {
        1: ["a", "a-while-reading", "b"],
        2: ["e", "e-while-reading"],
        5: ["a", "a-before", "a-while-reading", "b"],
        6: ["e", "e-before", "e-while-reading"],
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
    result = pipeline.run(1, 9, [RAW.name], fails=True)
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
    pipeline.run(1, 6, [RAW.name], tags=accept_tags(file_path(2), "rejected"), fails=True)
    assert {n: len(order_ids(pipeline, n)) for n in (1, 2, 6)} == {1: 30, 2: 14, 6: 21}
    pipeline.run(1, 1, [RAW.name], tags=accept_tags("rows"))
    assert len(order_ids(pipeline, 1)) == 14
    now = read_snapshot(pipeline, 10)
    assert incident_details(now, "check failed") == {}
    assert incident_details(now, "lines rejected").keys() == {str(day(n)) for n in (6, 7, 9)}
