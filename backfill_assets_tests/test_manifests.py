"""What log days are loaded from, and what a new listing changes of that: over listings by hand."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import date

import pytest

from backfill_assets.calendar.partitions import DAY
from backfill_assets.landing.listing import CONTROL_FILE, Listing
from backfill_assets.landing.manifests import (
    LoadedFile,
    LoadManifest,
    LoadTarget,
    after_undo,
    describe_change,
    load_target,
    needs_reload,
)
from backfill_assets_tests.invented_listings import Made, file, landing
from backfill_assets_tests.pipeline import START, day


def files(n: int, *names: str) -> set[str]:
    return {file(n, name) for name in names}


def loaded(n: int, listing: Listing, before: LoadManifest | None = None, **how) -> LoadManifest:
    """What a day's record says after it was loaded."""
    said = load_target(day(n), before, listing, **how).manifest.as_json
    manifest = LoadManifest.from_record(json.loads(json.dumps(said)))
    assert manifest is not None
    return manifest


def again(n: int, then: Listing, now: Listing, **how) -> tuple[LoadManifest, LoadTarget]:
    """A day as it was loaded, and what it is to be made of now."""
    before = loaded(n, then)
    return before, load_target(day(n), before, now, **how)


# --- the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "manifest",
    [
        LoadManifest(),
        LoadManifest({file(1, "a"): LoadedFile(3, 5, "d")}, frozenset({day(0), day(1)})),
        LoadManifest(present_days=frozenset({day(1)}), closed=True),
        LoadManifest({file(1, "a"): LoadedFile(3, 0, "d")}, awaiting_approval={file(1, "a"): "e"}),
    ],
)
def test_a_manifest_comes_back_from_its_record(manifest):
    assert LoadManifest.from_record(json.loads(json.dumps(manifest.as_json))) == manifest


def test_what_is_empty_is_not_recorded():
    assert LoadManifest().as_json == {}
    assert LoadManifest.from_record({}) == LoadManifest()


@pytest.mark.parametrize("said", [None, "1-a", ["none", "1-a"]])
def test_the_records_of_before_there_were_manifests(said):
    assert LoadManifest.from_record(said) is None


# --- the fingerprint ------------------------------------------------------------------------------

HELD = LoadManifest(
    {file(1, "a"): LoadedFile(3, 5, "d"), file(2, "b"): LoadedFile(4, 6, "e")},
    frozenset({day(1), day(2)}),
)


@pytest.mark.parametrize(
    "other",
    [
        {file(1, "a"): LoadedFile(3, 99, "d"), file(2, "b"): LoadedFile(9, 6, "e")},  # copied
        {file(1, "other"): LoadedFile(3, 5, "d"), file(2, "b"): LoadedFile(4, 6, "e")},  # renamed
    ],
)
def test_the_fingerprint_is_one_of_contents(other):
    assert replace(HELD, files=other).content_digest() == HELD.content_digest()


@pytest.mark.parametrize(
    "other",
    [
        {"files": {file(1, "a"): LoadedFile(3, 5, "d")}},
        {"files": {file(1, "a"): LoadedFile(3, 5, "other"), file(2, "b"): LoadedFile(4, 6, "e")}},
        # The same two contents, in the other folder each.
        {"files": {file(2, "a"): LoadedFile(3, 5, "d"), file(1, "b"): LoadedFile(4, 6, "e")}},
        # A content that is there twice is read twice.
        {"files": {**HELD.files, file(1, "copy"): LoadedFile(3, 5, "d")}},
        {"there": frozenset({day(2)})},
        {"closed": True},
        # What the day waits for: when that changes, its windows may close.
        {"held": {file(1, "a"): "x"}},
    ],
)
def test_the_fingerprint_tells_apart_what_is_loaded(other):
    assert replace(HELD, **other).content_digest() != HELD.content_digest()


# --- settled --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "there", "more", "settled"),
    [
        (3, (2, 3), {}, True),
        (3, (3,), {}, False),  # early lines of the folder before it may be missing
        (3, (2,), {}, False),
        (3, (), {}, False),
        (3, (2,), {"closed": True}, True),
        (3, (), {"closed": True}, False),
        (3, (2, 3), {"held": {file(3, "a"): "d"}}, False),
        # Nothing is due before the first day of all.
        (1, (1,), {}, True),
        (1, (), {}, False),
        (1, (), {"closed": True}, True),
    ],
)
def test_settled(n, there, more, settled):
    manifest = LoadManifest(present_days=frozenset(map(day, there)), **more)
    assert manifest.is_complete(day(n), START) is settled


# --- what a day is to be made of ------------------------------------------------------------------


def test_a_day_is_made_of_its_folder_and_the_one_before_it():
    found = load_target(day(2), None, landing("a=1", "b=22", "c=333"))
    assert found.files_to_read.keys() == files(1, "a") | files(2, "b")
    assert found.manifest.files == {
        file(1, "a"): LoadedFile(1, 1, "digest of 1"),
        file(2, "b"): LoadedFile(2, 1, "digest of 22"),
    }
    assert found.manifest.present_days == {day(1), day(2)}
    assert not (
        found.replaced or found.dropped or found.retained_files or found.manifest.awaiting_approval
    )


@pytest.mark.parametrize(
    ("folders", "there"),
    [(("a=1", "b=2"), (1, 2)), (("a=1", None), (1,)), ((None, ""), (2,)), ((None, None), ())],
)
def test_a_folder_without_files_has_been_there(folders, there):
    assert load_target(day(2), None, landing(*folders)).manifest.present_days == set(
        map(day, there)
    )


def test_a_folder_that_is_gone_has_been_there():
    _, found = again(2, landing("a=1", "b=2"), landing())
    assert found.manifest.present_days == {day(1), day(2)}


SAME = landing("a=1", "b=22")


@pytest.mark.parametrize(
    ("at", "opened"),
    [(1, set()), (2, {"a", "b"}), (0, {"a", "b"})],
    ids=["untouched", "copied", "no times"],
)
def test_only_files_that_look_changed_are_opened(at, opened):
    now = replace(landing("a=1", "b=22", at=at), opened=set())
    before, found = again(2, SAME, now)
    assert now.opened == opened
    assert not needs_reload(before, found)
    assert not found.replaced


def test_where_the_store_says_no_times_nothing_is_taken_on_trust():
    """Another content of the same length."""
    before, found = again(2, landing("a=1", "b=22", at=0), landing("a=1", "b=xx", at=0))
    assert found.replaced == files(2, "b")
    assert needs_reload(before, found)


def test_an_untouched_file_keeps_the_digest_on_record():
    _, found = again(2, SAME, landing("a=1", "b=22", "c=3"))
    assert found.manifest.files == loaded(2, SAME).files


@pytest.mark.parametrize(
    ("now", "kept", "read"),
    [
        (("a=1", ""), {(2, "b")}, {(1, "a")}),
        (("a=1", None), {(2, "b")}, {(1, "a")}),
        (("", "b=22"), {(1, "a")}, {(2, "b")}),
        ((None, None), {(1, "a"), (2, "b")}, set()),
    ],
)
def test_what_was_loaded_from_files_that_are_gone_stays(now, kept, read):
    before, found = again(2, SAME, landing(*now))
    assert found.retained_files == {file(*of) for of in kept}
    assert found.files_to_read.keys() == {file(*of) for of in read}
    assert found.manifest.files == before.files
    assert not needs_reload(before, found)
    assert not found.dropped


def test_a_file_that_comes_back_is_read_again():
    before, gone = again(2, SAME, landing("a=1", ""))
    back = load_target(day(2), gone.manifest, SAME)
    assert back.files_to_read.keys() == files(1, "a") | files(2, "b")
    assert not (back.retained_files or back.replaced)
    assert not needs_reload(before, back)


def test_new_files_leave_those_that_are_gone():
    before, found = again(2, SAME, landing("a=1", "c=new"))
    assert found.retained_files == files(2, "b")
    assert found.manifest.files.keys() == files(1, "a") | files(2, "b", "c")
    assert needs_reload(before, found)
    assert describe_change(before, found) == "new files"


def test_a_renamed_file_takes_the_place_of_the_old_one():
    before, found = again(2, SAME, landing("a=1", "other=22", at=2))
    assert found.dropped == files(2, "b")
    assert found.manifest.files.keys() == files(1, "a") | files(2, "other")
    assert not (found.retained_files or found.replaced)
    assert not needs_reload(before, found)


@pytest.mark.parametrize(
    ("then", "now", "dropped", "kept"),
    [
        # As many as there are new names.
        ("b=22 c=22", "d=22", {"b"}, {"c"}),
        ("b=22 c=22", "d=22 e=22", {"b", "c"}, set()),
        ("b=22", "c=22 d=22", {"b"}, set()),
        ("b=22", "c=other", set(), {"b"}),
        # Its content lay under that name before.
        ("b=22 c=22", "c=22", set(), {"b"}),
    ],
)
def test_renamed_or_gone(then, now, dropped, kept):
    _, found = again(2, landing("", then), landing("", now))
    assert (found.dropped, found.retained_files) == (files(2, *dropped), files(2, *kept))


def test_a_file_that_moved_to_another_folder_is_another_file():
    _, found = again(2, landing("a=1", "b=22"), landing("a=1 b=22", ""))
    assert (found.retained_files, found.dropped) == (files(2, "b"), set())
    assert found.files_to_read.keys() == files(1, "a", "b")


@pytest.mark.parametrize("name", ["b", "c"])
def test_what_a_person_accepts_is_gone(name):
    before, found = again(2, landing("", "b=1 c=2"), landing("", ""), accepted=files(2, name))
    assert found.dropped == files(2, name)
    assert found.retained_files == files(2, *({"b", "c"} - {name}))
    assert found.manifest.files.keys() == found.retained_files
    assert needs_reload(before, found)
    assert describe_change(before, found) == "accepted files"


# --- replaced files -------------------------------------------------------------------------------


def test_a_replaced_file_is_read_and_named():
    before, found = again(2, SAME, landing("a=1", "b=other"))
    assert found.replaced == files(2, "b")
    assert found.manifest.files[file(2, "b")].digest == "digest of other"
    assert needs_reload(before, found)
    assert describe_change(before, found) == "other content"


def test_an_accepted_file_may_take_away():
    _, found = again(2, SAME, landing("a=1", "b=other"), accepted=files(2, "b"))
    assert not found.replaced
    assert found.files_to_read.keys() == files(1, "a") | files(2, "b")


def test_what_sources_say_of_a_day_is_neither_replaced_nor_kept():
    before, found = again(
        2, landing("", f"b=1 {CONTROL_FILE}=x"), landing("", f"b=1 {CONTROL_FILE}=other")
    )
    assert not found.replaced
    assert needs_reload(before, found)
    _, found = again(2, landing("", f"b=1 {CONTROL_FILE}=x"), landing("", ""))
    assert found.retained_files == files(2, "b")


def held() -> tuple[LoadManifest, Listing]:
    """What the record of day 2 says after file b was replaced and held back; what lies there."""
    now = landing("a=1", "b=less")
    before, wanted = again(2, SAME, now)
    said = wanted.hold_back_files(files(2, "b"), before).manifest.as_json
    record = LoadManifest.from_record(json.loads(json.dumps(said)))
    assert record is not None
    return record, now


def test_holding_a_file_leaves_what_was_loaded():
    before, wanted = again(2, SAME, landing("a=1", "b=less"))
    found = wanted.hold_back_files(files(2, "b"), before)
    assert found.files_to_read.keys() == files(1, "a")
    assert found.retained_files == files(2, "b")
    assert not found.replaced
    assert found.manifest.files == before.files
    assert found.manifest.awaiting_approval == {file(2, "b"): "digest of less"}
    assert found.manifest.content_digest() != before.content_digest()


def test_a_file_that_is_held_back_is_not_read_again():
    record, now = held()
    found = load_target(day(2), record, now)
    assert not needs_reload(record, found)
    assert (found.files_to_read.keys(), found.retained_files) == (files(1, "a"), files(2, "b"))
    assert found.manifest.awaiting_approval == record.awaiting_approval


def test_a_file_that_is_held_back_is_read_when_a_person_accepts_it():
    record, now = held()
    found = load_target(day(2), record, now, accepted=files(2, "b"))
    assert found.files_to_read.keys() == files(1, "a") | files(2, "b")
    assert not (found.manifest.awaiting_approval or found.replaced or found.retained_files)
    assert needs_reload(record, found)
    assert describe_change(record, found) == "accepted files"


def test_a_file_that_is_held_back_is_looked_at_again_when_it_changes():
    record, _ = held()
    found = load_target(day(2), record, landing("a=1", "b=other"))
    assert found.replaced == files(2, "b")
    assert not found.manifest.awaiting_approval
    assert needs_reload(record, found)
    assert describe_change(record, found) == "other content"


def test_the_old_file_put_back():
    """The day holds what it held, but waits no longer: a load says so, and its windows close."""
    record, _ = held()
    found = load_target(day(2), record, SAME)
    assert not (found.manifest.awaiting_approval or found.replaced or found.retained_files)
    assert found.manifest.is_complete(day(2), START)
    assert needs_reload(record, found)
    assert not needs_reload(found.manifest, load_target(day(2), found.manifest, SAME))


def test_a_file_that_is_held_back_and_gone_is_gone():
    record, _ = held()
    found = load_target(day(2), record, landing("a=1", ""))
    assert found.retained_files == files(2, "b")
    assert not found.manifest.awaiting_approval
    assert needs_reload(record, found)


# --- without some of the files --------------------------------------------------------------------


def without(now: Listing, names: Collection[str]) -> tuple[LoadManifest, LoadTarget, LoadTarget]:
    before, wanted = again(2, SAME, now)
    return before, wanted, wanted.without_files(names, before)


def test_without_a_file_that_is_new():
    before, _, found = without(landing("a=1", "b=22 c=new"), files(2, "c"))
    assert found.manifest == before
    assert found.files_to_read.keys() == files(1, "a") | files(2, "b")
    assert not found.retained_files


def test_without_a_file_that_was_loaded():
    before, _, found = without(landing("a=1", "b=broken"), files(2, "b"))
    assert found.manifest == before
    assert found.files_to_read.keys() == files(1, "a")
    assert found.retained_files == files(2, "b")


def test_without_a_file_of_no_concern():
    _, wanted, found = without(landing("a=1", "b=other"), files(3, "x"))
    assert found is wanted


def test_without_the_new_name_of_a_file_the_old_one_stays():
    before, wanted, found = without(landing("a=1", "other=22"), files(2, "other"))
    assert wanted.dropped == files(2, "b")
    assert not found.dropped
    assert found.retained_files == files(2, "b")
    assert found.manifest == before


def test_without_any_of_them_a_new_day_is_empty():
    wanted = load_target(day(2), None, SAME)
    found = wanted.without_files(wanted.files_to_read, None)
    assert not (found.files_to_read or found.retained_files or found.manifest.files)
    assert found.manifest.present_days == {day(1), day(2)}


# --- nothing more is expected ---------------------------------------------------------------------


def test_a_day_is_closed_if_it_has_no_folder():
    assert load_target(day(2), None, landing("a=1"), close=True).manifest.closed
    assert not load_target(day(2), None, landing("a=1", ""), close=True).manifest.closed
    assert not load_target(day(2), None, landing("a=1")).manifest.closed


def test_closing_a_day_is_news_once():
    before = loaded(2, landing("a=1"))
    closed = load_target(day(2), before, landing("a=1"), close=True)
    assert needs_reload(before, closed)
    assert describe_change(before, closed) == "nothing more is expected"
    # From then on it is so, whoever asks.
    assert load_target(day(2), closed.manifest, landing("a=1")).manifest.closed
    assert not needs_reload(
        closed.manifest, load_target(day(2), closed.manifest, landing("a=1"), close=True)
    )


def test_a_folder_that_comes_after_all():
    closed = loaded(2, landing("a=1"), close=True)
    found = load_target(day(2), closed, landing("a=1", "b=22"), close=True)
    assert not found.manifest.closed
    assert needs_reload(closed, found)
    assert describe_change(closed, found) == "new files, its folder has come"
    empty = load_target(day(2), closed, landing("a=1", ""))
    assert needs_reload(closed, empty)
    assert describe_change(closed, empty) == "its folder has come"


def test_a_day_that_was_never_loaded_is_due():
    found = load_target(day(2), None, landing())
    assert needs_reload(None, found)
    assert describe_change(None, found) == ""
    assert found.manifest == LoadManifest()


def test_a_renamed_file_is_no_news():
    """Nobody accepted that it is gone; it is not."""
    before, found = again(2, SAME, landing("a=1", "other=22 c=new"))
    assert found.dropped == files(2, "b")
    assert describe_change(before, found) == "new files"


def test_no_news_without_need():
    assert describe_change(*again(2, SAME, SAME)) == ""
    assert day(2) - DAY in loaded(2, SAME).present_days


def test_listings_of_dates_that_were_not_looked_for():
    assert landing("a=1").files_on(date(1999, 1, 1)) == {}


# --- after an undo --------------------------------------------------------------------------------


def undone(n: int, then: Made, now: Made, **how) -> tuple[LoadManifest, LoadTarget]:
    """A day that was loaded twice, the second time undone, and what it would be made of now."""
    before = loaded(n, then)
    put_back = after_undo(before, loaded(n, now, before, **how))
    told = LoadManifest.from_record(json.loads(json.dumps(put_back.as_json)))
    assert told == put_back
    assert {**put_back.files} == {**before.files}
    return put_back, load_target(day(n), put_back, now)


@pytest.mark.parametrize(
    ("then", "now", "accepted"),
    [
        ("a=1", "a=2", ()),
        ("a=1", "a=1 b=2", ()),
        ("a=1 b=2", "a=1", [file(1, "b")]),
        ("a=1 b=2", "b=3 c=1", [file(1, "b")]),
        ("a=1 b=1", "c=1", [file(1, "b")]),
        ("a=1", "", [file(1, "a")]),
        ("", "a=1", ()),
    ],
)
def test_what_was_undone_is_not_due_until_something_else_lands(then, now, accepted):
    before, wanted = undone(1, landing(then), landing(now, at=2), accepted=accepted)
    assert not needs_reload(before, wanted)
    other = load_target(day(1), before, landing(f"{now} new=9", at=3))
    assert needs_reload(before, other)


def test_a_replaced_file_is_asked_about_again_after_its_undo():
    before, wanted = undone(1, landing("a=1"), landing("a=2", at=2), accepted=[file(1, "a")])
    assert wanted.replaced == files(1, "a")
    held = wanted.hold_back_files(files(1, "a"), before)
    assert {**held.manifest.files} == {**before.files}
    # And a file that somebody had accepted as gone is kept again.
    gone, wanted = undone(1, landing("a=1 b=2"), landing("a=1"), accepted=[file(1, "b")])
    assert wanted.retained_files == files(1, "b")
    assert gone.files.keys() == files(1, "a", "b")


def test_a_file_that_was_held_before_is_held_again_after_the_undo():
    first, shorter = landing("a=1"), landing("a=2", at=2)
    before = loaded(1, first)
    held = load_target(day(1), before, shorter).hold_back_files(files(1, "a"), before).manifest
    accepted = loaded(1, shorter, held, accepted=[file(1, "a")])
    assert not accepted.awaiting_approval
    back = after_undo(held, accepted)
    wanted = load_target(day(1), back, shorter)
    assert back.awaiting_approval == wanted.manifest.awaiting_approval != {}
    assert not needs_reload(back, wanted)


def test_the_undo_of_a_first_load_leaves_nothing_that_was_loaded():
    now = loaded(1, landing("a=1"))
    back = after_undo(None, now)
    assert not back.files
    assert not needs_reload(back, load_target(day(1), back, landing("a=1")))
    assert needs_reload(back, load_target(day(1), back, landing("a=2", at=2)))


def test_undos_one_after_another_hold():
    """The latest is undone first, as an undo asks for."""
    landed = landing("a=1 b=2 c=3")
    one, two, three = (loaded(1, landing(of)) for of in ("a=1", "a=1 b=2", "a=1 b=2 c=3"))
    back = after_undo(two, three)
    back = after_undo(one, back)
    assert not needs_reload(back, load_target(day(1), back, landed))
    back = after_undo(None, back)
    assert not needs_reload(back, load_target(day(1), back, landed))
    assert not back.files
    assert needs_reload(back, load_target(day(1), back, landing("a=1 b=2 c=3 d=4")))


def test_the_undo_of_an_undo_holds():
    now = landing("a=2", at=2)
    first = loaded(1, landing("a=1"))
    accepted = loaded(1, now, first, accepted=[file(1, "a")])
    back = after_undo(accepted, after_undo(first, accepted))
    assert {**back.files} == {**accepted.files}
    assert not needs_reload(back, load_target(day(1), back, now))


def test_the_undo_of_a_load_that_held_a_file_holds():
    first, now = loaded(1, landing("a=1")), landing("a=2 b=3", at=2)
    held = load_target(day(1), first, now).hold_back_files(files(1, "a"), first).manifest
    back = after_undo(first, held)
    assert not needs_reload(back, load_target(day(1), back, now))


@pytest.mark.parametrize("purged", ["", "a=1", None])
@pytest.mark.parametrize("then", ["a=1", None])
def test_a_landing_that_is_purged_after_an_undo_is_no_news(then, purged):
    before = None if then is None else loaded(1, landing(then))
    back = after_undo(before, loaded(1, landing("a=1 b=2")))
    wanted = load_target(day(1), back, landing(purged))
    assert not needs_reload(back, wanted)
    assert wanted.retained_files == (files(1, "a") if then and not purged else set())
