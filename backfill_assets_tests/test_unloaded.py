"""What is to be loaded from a landing, and what is said of a source that is silent."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import msgspec
import pytest

from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.landing.listing import folder_name, list_landing
from backfill_assets.landing.load_manifest import LoadedFile, LoadManifest, LoadTarget
from backfill_assets.orders.tables import ORDER_LINES, RAW, REJECTED
from backfill_assets.staleness.unloaded import (
    LoadPlan,
    UnloadedDays,
    digest_load_plans,
    find_unloaded_days,
    load_targets,
    loaded_manifests,
    no_data_warning,
    plan_load,
)
from backfill_assets_tests.helpers.invented_listings import file_path, make_landing, write_landing
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import START, day

POLICY = Policy(
    START, None, window_days=2, lag_days=1, corrects=True, only_touched=True, absent_days=4
)


def by_number(values: Mapping[date, object]) -> dict[int, object]:
    return {(d - START).days + 1: value for d, value in values.items()}


# --- a source that is silent ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_requested", "today", "lag", "is_silent"),
    [
        # All days that are due are asked for.
        (9, 10, 1, False),
        (30, 10, 1, False),
        (8, 10, 1, True),
        # With a lag of 3, day 7 is the last one that is due on day 10.
        (7, 10, 3, False),
        (6, 10, 3, True),
    ],
)
def test_a_source_is_silent_if_days_are_due_that_nobody_asks_for(
    last_requested, today, lag, is_silent
):
    unloaded = UnloadedDays(last_day_requested=day(last_requested))
    warning = no_data_warning(unloaded, replace(POLICY, lag_days=lag), day(today))
    assert bool(warning) is is_silent


ADVICE = (
    "The source is silent, or this machine's clock runs ahead. See that the source delivers, or "
    "set the clock; what lands is loaded as ever. To have these days as empty ones, materialize "
    "them"
)


@pytest.mark.parametrize(
    ("last_requested", "strays", "warning"),
    [
        (
            9,
            (),
            "nothing has landed since 2024-01-05, for more than 4 days "
            "(BACKFILL_ASSETS_ABSENT_DAYS): days after 2024-01-09 are not asked for. ",
        ),
        # The newest day that landed is the first of the calendar.
        (
            5,
            (),
            "nothing has landed since 2024-01-01, for more than 4 days "
            "(BACKFILL_ASSETS_ABSENT_DAYS): days after 2024-01-05 are not asked for. ",
        ),
        # There is none.
        (
            4,
            (),
            "nothing has landed from 2024-01-01 on, for more than 4 days "
            "(BACKFILL_ASSETS_ABSENT_DAYS): days after 2024-01-04 are not asked for. ",
        ),
        # What lies beside the folders may be what is missed: the last of it is named.
        (
            9,
            ("2024-01-06", "2024-01-07"),
            "nothing has landed since 2024-01-05 (but for 2024-01-07, which is not read), for more "
            "than 4 days (BACKFILL_ASSETS_ABSENT_DAYS): days after 2024-01-09 are not asked for. ",
        ),
    ],
)
def test_the_warning_of_a_silent_source_says_since_when_and_what_to_do(
    last_requested, strays, warning
):
    unloaded = UnloadedDays(last_day_requested=day(last_requested), strays=strays)
    assert no_data_warning(unloaded, POLICY, day(100)) == warning + ADVICE


def test_nothing_is_said_of_a_source_whose_days_are_not_limited():
    assert no_data_warning(UnloadedDays(), POLICY, day(100)) == ""


# --- what is to be loaded -------------------------------------------------------------------------


def test_files_beside_the_folders_are_told():
    listing = replace(make_landing("f=a"), strays=("2024-01-02", "notes.txt"))
    unloaded = find_unloaded_days(ledger(RAW), listing, POLICY, day(2))
    assert unloaded.strays == ("2024-01-02", "notes.txt")


def test_each_day_has_an_input_digest_of_the_files_that_it_would_be_loaded_from():
    """Also the days that are loaded from these already."""
    listing = make_landing("f=a", "f=b", "f=c")
    targets = load_targets({}, listing, days(1, 2, 3), POLICY)
    digests = {d: target.manifest.content_digest() for d, target in targets.items()}
    first = record(0, days(1), landing={str(day(1)): targets[day(1)].manifest.as_json})
    unloaded = find_unloaded_days(ledger(RAW, first), listing, POLICY, day(4))
    assert unloaded.input_digests == digests
    assert unloaded.days_to_load == {day(2): digests[day(2)], day(3): digests[day(3)]}


def test_a_day_that_was_taken_back_lacks_the_files_that_still_lie_there():
    """It is not loaded again; and once they are gone, it lacks nothing."""
    with_more, without = make_landing("f=a g=b"), make_landing("f=a")
    less = load_targets({}, without, [day(1)], POLICY)[day(1)].manifest
    more = load_targets({}, with_more, [day(1)], POLICY)[day(1)].manifest
    reverted = replace(less, known_before_undo=more)
    raw = ledger(RAW, record(0, days(1), landing={str(day(1)): reverted.as_json}))
    unloaded = find_unloaded_days(raw, with_more, POLICY, day(2))
    assert (unloaded.days_to_load, unloaded.reverted_days) == ({}, days(1))
    whole = replace(less, known_before_undo=less)
    raw = ledger(RAW, record(0, days(1), landing={str(day(1)): whole.as_json}))
    assert find_unloaded_days(raw, without, POLICY, day(2)).reverted_days == frozenset()


def test_what_is_loaded_closes_days_whose_folder_is_missing_for_long():
    """Four days after it, by the newest folder that was loaded."""
    listing = make_landing("f=a", None, None, "f=d", "f=e", "f=f")
    loaded = {
        d: target.manifest for d, target in load_targets({}, listing, days((1, 6)), POLICY).items()
    }
    targets = load_targets(loaded, listing, days(1, 2, 3), POLICY)
    assert {n: target.manifest.closed for n, target in by_number(targets).items()} == {
        1: False,
        2: True,
        3: False,
    }
    # A person may close one before.
    asked = load_targets(loaded, listing, days(1, 3), POLICY, close=days(1, 3))
    assert {n: target.manifest.closed for n, target in by_number(asked).items()} == {
        1: False,
        3: True,
    }
    # It stays closed in later loads, until its folder is expected again.
    loaded[day(3)] = asked[day(3)].manifest
    assert load_targets(loaded, listing, days(3), POLICY)[day(3)].manifest.closed
    reopened = load_targets(loaded, listing, days(3), POLICY, reopen=days(3))
    assert not reopened[day(3)].manifest.closed
    # Nothing is closed by what is listed and not loaded, nor by a day that is loaded as empty.
    assert not load_targets({}, listing, days(2), POLICY)[day(2)].manifest.closed
    empty = {day(6): replace(loaded[day(6)], present_days=frozenset())}
    assert not load_targets(empty, listing, days(2), POLICY)[day(2)].manifest.closed


def test_days_whose_missing_folder_is_no_longer_expected_are_loaded_without_news():
    """Day 2 has no folder; day 3 reads it for early lines, and a file of its own is new."""
    landing = ("f=a", None, "f=c", "f=d", "f=e", "f=f")
    targets = load_targets({}, make_landing(*landing), days((1, 6)), POLICY)
    manifests = {str(d): target.manifest.as_json for d, target in targets.items()}
    raw = ledger(RAW, record(0, days((1, 6)), landing=manifests))
    unloaded = find_unloaded_days(raw, make_landing(*landing), POLICY, day(7))
    assert unloaded.days_to_load.keys() == unloaded.days_without_news == days(2, 3)
    more = make_landing("f=a", None, "f=c g=x", *landing[3:])
    assert find_unloaded_days(raw, more, POLICY, day(7)).days_without_news == days(2)


def test_a_folder_that_was_loaded_and_is_gone_has_been_there():
    """By the manifest of its own day: the next day needs it for early lines."""
    listing = make_landing("f=a", "f=b")
    loaded = {
        d: target.manifest for d, target in load_targets({}, listing, days(1), POLICY).items()
    }
    purged = make_landing(None, "f=b")
    (target,) = load_targets(loaded, purged, days(2), POLICY).values()
    assert target.manifest.present_days == days(1, 2)
    (target,) = load_targets({}, purged, days(2), POLICY).values()
    assert target.manifest.present_days == days(2)


def test_the_last_load_of_a_day_counts_and_records_without_files_do_not():
    first, second = (LoadManifest({"f": LoadedFile(n, n, f"{n}")}, days(1)) for n in (1, 2))
    raw = ledger(
        RAW,
        record(0, days(1, 2), landing={str(day(n)): first.as_json for n in (1, 2)}),
        record(1, days(2), landing={str(day(2)): second.as_json}),
        record(2, days(3), landing={str(day(3)): ["of an earlier release"]}),
    )
    assert loaded_manifests(raw) == {day(1): first, day(2): second}


# --- rejected lines that lack a load --------------------------------------------------------------


def test_the_load_of_rejected_lines_has_an_input_digest_of_its_own():
    """So that a run that failed for the rejected lines only is not taken for one of the day."""
    listing = make_landing("f=a", "f=b")
    targets = load_targets({}, listing, days(1, 2), POLICY)
    landing = {str(d): target.manifest.as_json for d, target in targets.items()}
    raw = ledger(RAW, record(0, days(1, 2), landing=landing))
    digests = {d: target.manifest.content_digest() for d, target in targets.items()}
    published = record(0, days(1))
    published_day = msgspec.structs.replace(published.days[day(1)], input_digest=digests[day(1)])
    rejected = ledger(REJECTED, msgspec.structs.replace(published, days={day(1): published_day}))
    unloaded = find_unloaded_days(raw, listing, POLICY, day(3), rejected)
    assert unloaded.days_to_load == {day(2): f"{digests[day(2)]}+raw_orders_rejected"}


# --- the plan of a load ---------------------------------------------------------------------------


def load_log(landing: Path, *numbers: int) -> Ledger:
    """A log whose days were loaded from a landing as it is now."""
    listing = list_landing(str(landing), ORDER_LINES)
    targets = load_targets({}, listing, days(*numbers), POLICY)
    manifests = {str(d): target.manifest.as_json for d, target in targets.items()}
    return ledger(RAW, record(0, days(*numbers), landing=manifests))


def plan_days(landing: Path, log: Ledger, *numbers: int, accepted: tuple[str, ...] = ()):
    return plan_load(str(landing), ORDER_LINES, log, [day(n) for n in numbers], POLICY, accepted)


def test_a_plan_has_the_files_of_its_days_and_of_the_days_before(tmp_path):
    landing = write_landing(tmp_path, "a.jsonl=1", "b.jsonl=2", "c.jsonl=3", "d.jsonl=4")
    log = load_log(landing, 2)
    (landing / "orders" / file_path(2, "more.jsonl")).write_text("5")
    plan = plan_days(landing, log, 4, 2)
    names = {n: file_path(n, f"{name}.jsonl") for n, name in enumerate("abcd", start=1)}
    more = file_path(2, "more.jsonl")
    assert {n: {*target.files_to_read} for n, target in by_number(plan.targets).items()} == {
        2: {names[1], names[2], more},
        4: {names[3], names[4]},
    }
    assert by_number(plan.changes) == {2: "new files", 4: ""}
    assert [entry.source_file for entry in plan.entries] == [
        names[1], names[2], more, names[3], names[4]
    ]  # fmt: skip
    assert [*plan.targets] == [day(2), day(4)]
    assert plan.load_digests == {
        d: target.manifest.content_digest() for d, target in plan.targets.items()
    }


def test_a_plan_lists_no_other_folders(tmp_path, monkeypatch):
    """A landing may have thousands."""
    landing = write_landing(tmp_path, "a.jsonl=1", "b.jsonl=2", "c.jsonl=3", "d.jsonl=4")
    scandir, listed = os.scandir, set()

    def note_folder(folder):
        listed.add(Path(folder).name)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", note_folder)
    plan_days(landing, ledger(RAW), 3)
    assert listed & {folder_name(day(n)) for n in range(1, 5)} == {
        folder_name(day(2)),
        folder_name(day(3)),
    }


def test_a_file_that_is_gone_loses_its_rows_only_if_a_person_accepts_it(tmp_path):
    landing = write_landing(tmp_path, "a.jsonl=1", "b.jsonl=2")
    log = load_log(landing, 2)
    name = file_path(2, "b.jsonl")
    (landing / "orders" / name).unlink()
    (target,) = plan_days(landing, log, 2).targets.values()
    assert (target.dropped, target.retained_files) == (frozenset(), {name})
    plan = plan_days(landing, log, 2, accepted=(name,))
    (target,) = plan.targets.values()
    assert (target.dropped, target.retained_files) == ({name}, frozenset())
    assert by_number(plan.changes) == {2: "accepted files"}


def test_a_plan_stops_waiting_for_a_folder_as_a_load_does(tmp_path):
    """Day 2 has none, and a folder of five days later was loaded."""
    folders = ["a.jsonl=1", None, *(f"{n}.jsonl={n}" for n in range(3, 8))]
    landing = write_landing(tmp_path, *folders)
    log = load_log(landing, *range(1, 8))
    assert by_number(plan_days(landing, log, 2, 3).changes) == {
        2: "nothing more is expected",
        # It needs that folder no more either.
        3: "nothing more is expected",
    }


# --- the digest of plans --------------------------------------------------------------------------


def make_load_plan(**digests: str) -> LoadPlan:
    """Days, as `d1`, each to be loaded from a file of this digest."""
    targets = {
        day(int(name[1:])): LoadTarget(LoadManifest({"a/f": LoadedFile(1, 1, digest)}), {})
        for name, digest in digests.items()
    }
    return LoadPlan(targets, {}, [])


def test_the_digest_of_load_plans_is_that_of_what_is_to_be_loaded():
    plan = make_load_plan(d1="a", d2="b")
    digest = digest_load_plans({RAW.name: plan})
    text = json.dumps({RAW.name: {str(d): plan.load_digests[d] for d in (day(1), day(2))}})
    assert digest == hashlib.sha256(text.encode()).hexdigest()[:16]
    # In whatever order the days come, and whatever else is said of them.
    other = replace(make_load_plan(d2="b", d1="a"), changes={day(1): "new files"})
    assert digest_load_plans({RAW.name: other}) == digest
    for plans in (
        {RAW.name: make_load_plan(d1="a", d2="other")},
        {RAW.name: make_load_plan(d1="b", d2="a")},
        {RAW.name: make_load_plan(d1="a", d3="b")},
        {RAW.name: make_load_plan(d1="a")},
        {"raw_visits": plan},
        {RAW.name: plan, "raw_visits": plan},
        {},
    ):
        assert digest_load_plans(plans) != digest
