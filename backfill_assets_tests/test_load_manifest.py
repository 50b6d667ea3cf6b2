"""What log days are loaded from, and what a new listing changes of that: over listings by hand."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import date

import pytest

from backfill_assets.calendar.partitions import DAY
from backfill_assets.landing.listing import CONTROL_FILE, Listing
from backfill_assets.landing.load_manifest import (
    LoadedFile,
    LoadManifest,
    LoadTarget,
    after_undo,
    describe_change,
    has_news,
    load_target,
    needs_reload,
)
from backfill_assets_tests.helpers.invented_listings import InventedListing, file_path, make_landing
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.pipeline import START, day


def file_names(n: int, *names: str) -> set[str]:
    return {file_path(n, name) for name in names}


def loaded_manifest(
    n: int, listing: Listing, before: LoadManifest | None = None, **how
) -> LoadManifest:
    """What a day's record says after it was loaded."""
    encoded = load_target(day(n), before, listing, **how).manifest.as_json
    manifest = LoadManifest.from_record(json.loads(json.dumps(encoded)))
    assert manifest is not None
    return manifest


def reload_target(n: int, then: Listing, now: Listing, **how) -> tuple[LoadManifest, LoadTarget]:
    """A day as it was loaded, and what it is to be made of now."""
    before = loaded_manifest(n, then)
    return before, load_target(day(n), before, now, **how)


# --- the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "manifest",
    [
        LoadManifest(),
        LoadManifest({file_path(1, "a"): LoadedFile(3, 5, "d")}, frozenset({day(0), day(1)})),
        LoadManifest(present_days=frozenset({day(1)}), closed=True),
        LoadManifest(
            {file_path(1, "a"): LoadedFile(3, 0, "d")}, awaiting_approval={file_path(1, "a"): "e"}
        ),
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


def test_a_record_names_files_folders_and_what_persons_decided():
    """Commits hold it: another name would make every log day look never loaded."""
    record = {
        "files": {file_path(1, "a"): [3, 5, "d"], file_path(2, "b"): [4, 0, "e"]},
        "there": [str(day(1)), str(day(2))],
        "closed": True,
        "held": {file_path(1, "a"): "x"},
        "known": {"files": {file_path(1, "a"): [6, 7, "x"]}, "there": [str(day(1))]},
    }
    manifest = LoadManifest(
        {file_path(1, "a"): LoadedFile(3, 5, "d"), file_path(2, "b"): LoadedFile(4, 0, "e")},
        frozenset({day(1), day(2)}),
        closed=True,
        awaiting_approval={file_path(1, "a"): "x"},
        known_before_undo=LoadManifest(
            {file_path(1, "a"): LoadedFile(6, 7, "x")}, frozenset({day(1)})
        ),
    )
    assert manifest.as_json == record
    assert LoadManifest.from_record(record) == manifest


# --- the input digest -----------------------------------------------------------------------------

HELD = LoadManifest(
    {file_path(1, "a"): LoadedFile(3, 5, "d"), file_path(2, "b"): LoadedFile(4, 6, "e")},
    frozenset({day(1), day(2)}),
)


@pytest.mark.parametrize(
    "other",
    [
        {
            file_path(1, "a"): LoadedFile(3, 99, "d"),
            file_path(2, "b"): LoadedFile(9, 6, "e"),
        },  # copied
        {
            file_path(1, "other"): LoadedFile(3, 5, "d"),
            file_path(2, "b"): LoadedFile(4, 6, "e"),
        },  # renamed
    ],
)
def test_the_input_digest_is_one_of_contents(other):
    assert replace(HELD, files=other).content_digest() == HELD.content_digest()


@pytest.mark.parametrize(
    "other",
    [
        {"files": {file_path(1, "a"): LoadedFile(3, 5, "d")}},
        {
            "files": {
                file_path(1, "a"): LoadedFile(3, 5, "other"),
                file_path(2, "b"): LoadedFile(4, 6, "e"),
            }
        },
        # The same two contents, in the other folder each.
        {
            "files": {
                file_path(2, "a"): LoadedFile(3, 5, "d"),
                file_path(1, "b"): LoadedFile(4, 6, "e"),
            }
        },
        # A content that is there twice is read twice.
        {"files": {**HELD.files, file_path(1, "copy"): LoadedFile(3, 5, "d")}},
        {"present_days": frozenset({day(2)})},
        {"closed": True},
        # What the day waits for: when that changes, its windows may close.
        {"awaiting_approval": {file_path(1, "a"): "x"}},
    ],
)
def test_the_input_digest_tells_apart_what_is_loaded(other):
    assert replace(HELD, **other).content_digest() != HELD.content_digest()


@pytest.mark.parametrize(
    ("manifest", "digest"),
    [
        (LoadManifest(), "e3b0c44298fc1c14"),
        (HELD, "c570a21b85d25eed"),
        (
            replace(HELD, closed=True, awaiting_approval={file_path(1, "a"): "x"}),
            "ac5aa90b7c653d01",
        ),
    ],
)
def test_the_input_digest_is_the_one_that_commits_hold(manifest, digest):
    """With another one, all log days would look changed since they were loaded."""
    assert manifest.content_digest() == digest


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
        (3, (3,), {"day_before_closed": True}, True),
        (3, (), {"closed": True, "day_before_closed": True}, True),
        (3, (2, 3), {"awaiting_approval": {file_path(3, "a"): "d"}}, False),
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
    result = load_target(day(2), None, make_landing("a=1", "b=22", "c=333"))
    assert result.files_to_read.keys() == file_names(1, "a") | file_names(2, "b")
    assert result.manifest.files == {
        file_path(1, "a"): LoadedFile(1, 1, "digest of 1"),
        file_path(2, "b"): LoadedFile(2, 1, "digest of 22"),
    }
    assert result.manifest.present_days == {day(1), day(2)}
    assert not (
        result.replaced
        or result.dropped
        or result.retained_files
        or result.manifest.awaiting_approval
    )


@pytest.mark.parametrize(
    ("folders", "there"),
    [(("a=1", "b=2"), (1, 2)), (("a=1", None), (1,)), ((None, ""), (2,)), ((None, None), ())],
)
def test_a_folder_without_files_has_been_there(folders, there):
    assert load_target(day(2), None, make_landing(*folders)).manifest.present_days == set(
        map(day, there)
    )


def test_a_folder_that_is_gone_has_been_there():
    _, result = reload_target(2, make_landing("a=1", "b=2"), make_landing())
    assert result.manifest.present_days == {day(1), day(2)}


SAME = make_landing("a=1", "b=22")


@pytest.mark.parametrize(
    ("at", "opened"),
    [(1, set()), (2, {"a", "b"}), (0, {"a", "b"})],
    ids=["untouched", "copied", "no times"],
)
def test_only_files_that_look_changed_are_opened(at, opened):
    now = replace(make_landing("a=1", "b=22", at=at), opened=set())
    before, result = reload_target(2, SAME, now)
    assert now.opened == opened
    assert not needs_reload(before, result)
    assert not result.replaced


def test_where_the_store_says_no_times_nothing_is_taken_on_trust():
    """Another content of the same length."""
    before, result = reload_target(
        2, make_landing("a=1", "b=22", at=0), make_landing("a=1", "b=xx", at=0)
    )
    assert result.replaced == file_names(2, "b")
    assert needs_reload(before, result)


def test_an_untouched_file_keeps_the_digest_on_record():
    _, result = reload_target(2, SAME, make_landing("a=1", "b=22", "c=3"))
    assert result.manifest.files == loaded_manifest(2, SAME).files


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
    before, result = reload_target(2, SAME, make_landing(*now))
    assert result.retained_files == {file_path(*arguments) for arguments in kept}
    assert result.files_to_read.keys() == {file_path(*arguments) for arguments in read}
    assert result.manifest.files == before.files
    assert not needs_reload(before, result)
    assert not result.dropped


def test_a_file_that_comes_back_is_read_again():
    before, without_file = reload_target(2, SAME, make_landing("a=1", ""))
    back = load_target(day(2), without_file.manifest, SAME)
    assert back.files_to_read.keys() == file_names(1, "a") | file_names(2, "b")
    assert not (back.retained_files or back.replaced)
    assert not needs_reload(before, back)


def test_new_files_leave_those_that_are_gone():
    before, result = reload_target(2, SAME, make_landing("a=1", "c=new"))
    assert result.retained_files == file_names(2, "b")
    assert result.manifest.files.keys() == file_names(1, "a") | file_names(2, "b", "c")
    assert needs_reload(before, result)
    assert describe_change(day(2), before, result) == "new files"


def test_a_renamed_file_takes_the_place_of_the_old_one():
    before, result = reload_target(2, SAME, make_landing("a=1", "other=22", at=2))
    assert result.dropped == file_names(2, "b")
    assert result.manifest.files.keys() == file_names(1, "a") | file_names(2, "other")
    assert not (result.retained_files or result.replaced)
    assert not needs_reload(before, result)


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
    _, result = reload_target(2, make_landing("", then), make_landing("", now))
    assert (result.dropped, result.retained_files) == (
        file_names(2, *dropped),
        file_names(2, *kept),
    )


def test_a_file_that_moved_to_another_folder_is_another_file():
    _, result = reload_target(2, make_landing("a=1", "b=22"), make_landing("a=1 b=22", ""))
    assert (result.retained_files, result.dropped) == (file_names(2, "b"), set())
    assert result.files_to_read.keys() == file_names(1, "a", "b")


@pytest.mark.parametrize("name", ["b", "c"])
def test_what_a_person_accepts_is_gone(name):
    before, result = reload_target(
        2, make_landing("", "b=1 c=2"), make_landing("", ""), accepted=file_names(2, name)
    )
    assert result.dropped == file_names(2, name)
    assert result.retained_files == file_names(2, *({"b", "c"} - {name}))
    assert result.manifest.files.keys() == result.retained_files
    assert needs_reload(before, result)
    assert describe_change(day(2), before, result) == "accepted files"


# --- replaced files -------------------------------------------------------------------------------


def test_a_replaced_file_is_read_and_named():
    before, result = reload_target(2, SAME, make_landing("a=1", "b=other"))
    assert result.replaced == file_names(2, "b")
    assert result.manifest.files[file_path(2, "b")].digest == "digest of other"
    assert needs_reload(before, result)
    assert describe_change(day(2), before, result) == "other content"


def test_an_accepted_file_may_take_away():
    _, result = reload_target(2, SAME, make_landing("a=1", "b=other"), accepted=file_names(2, "b"))
    assert not result.replaced
    assert result.files_to_read.keys() == file_names(1, "a") | file_names(2, "b")


def test_what_sources_say_of_a_day_is_neither_replaced_nor_kept():
    before, result = reload_target(
        2, make_landing("", f"b=1 {CONTROL_FILE}=x"), make_landing("", f"b=1 {CONTROL_FILE}=other")
    )
    assert not result.replaced
    assert needs_reload(before, result)
    _, result = reload_target(2, make_landing("", f"b=1 {CONTROL_FILE}=x"), make_landing("", ""))
    assert result.retained_files == file_names(2, "b")


def held_manifest() -> tuple[LoadManifest, Listing]:
    """What the record of day 2 says after file b was replaced and held back; what lies there."""
    now = make_landing("a=1", "b=less")
    before, result = reload_target(2, SAME, now)
    encoded = result.hold_back_files(file_names(2, "b"), before).manifest.as_json
    record = LoadManifest.from_record(json.loads(json.dumps(encoded)))
    assert record is not None
    return record, now


def test_holding_a_file_leaves_what_was_loaded():
    before, initial = reload_target(2, SAME, make_landing("a=1", "b=less"))
    result = initial.hold_back_files(file_names(2, "b"), before)
    assert result.files_to_read.keys() == file_names(1, "a")
    assert result.retained_files == file_names(2, "b")
    assert not result.replaced
    assert result.manifest.files == before.files
    assert result.manifest.awaiting_approval == {file_path(2, "b"): "digest of less"}
    assert result.manifest.content_digest() != before.content_digest()


def test_a_file_that_is_held_back_is_not_read_again():
    record, now = held_manifest()
    result = load_target(day(2), record, now)
    assert not needs_reload(record, result)
    assert (result.files_to_read.keys(), result.retained_files) == (
        file_names(1, "a"),
        file_names(2, "b"),
    )
    assert result.manifest.awaiting_approval == record.awaiting_approval


def test_a_file_that_is_held_back_is_read_when_a_person_accepts_it():
    record, now = held_manifest()
    result = load_target(day(2), record, now, accepted=file_names(2, "b"))
    assert result.files_to_read.keys() == file_names(1, "a") | file_names(2, "b")
    assert not (result.manifest.awaiting_approval or result.replaced or result.retained_files)
    assert needs_reload(record, result)
    assert describe_change(day(2), record, result) == "accepted files"


def test_a_file_that_is_held_back_is_looked_at_again_when_it_changes():
    record, _ = held_manifest()
    result = load_target(day(2), record, make_landing("a=1", "b=other"))
    assert result.replaced == file_names(2, "b")
    assert not result.manifest.awaiting_approval
    assert needs_reload(record, result)
    assert describe_change(day(2), record, result) == "other content"


def test_the_old_file_put_back():
    """The day holds what it held, but waits no longer: a load says so, and its windows close."""
    record, _ = held_manifest()
    result = load_target(day(2), record, SAME)
    assert not (result.manifest.awaiting_approval or result.replaced or result.retained_files)
    assert result.manifest.is_complete(day(2), START)
    assert needs_reload(record, result)
    assert not needs_reload(result.manifest, load_target(day(2), result.manifest, SAME))


def test_a_file_that_is_held_back_and_gone_is_gone():
    record, _ = held_manifest()
    result = load_target(day(2), record, make_landing("a=1", ""))
    assert result.retained_files == file_names(2, "b")
    assert not result.manifest.awaiting_approval
    assert needs_reload(record, result)


# --- without some of the files --------------------------------------------------------------------


def target_without(
    now: Listing, names: Collection[str]
) -> tuple[LoadManifest, LoadTarget, LoadTarget]:
    before, initial = reload_target(2, SAME, now)
    return before, initial, initial.without_files(names, before)


def test_without_a_file_that_is_new():
    before, _, result = target_without(make_landing("a=1", "b=22 c=new"), file_names(2, "c"))
    assert result.manifest == before
    assert result.files_to_read.keys() == file_names(1, "a") | file_names(2, "b")
    assert not result.retained_files


def test_without_a_file_that_was_loaded():
    before, _, result = target_without(make_landing("a=1", "b=broken"), file_names(2, "b"))
    assert result.manifest == before
    assert result.files_to_read.keys() == file_names(1, "a")
    assert result.retained_files == file_names(2, "b")


def test_without_a_file_of_no_concern():
    _, initial, result = target_without(make_landing("a=1", "b=other"), file_names(3, "x"))
    assert result is initial


def test_without_the_new_name_of_a_file_the_old_one_stays():
    before, initial, result = target_without(
        make_landing("a=1", "other=22"), file_names(2, "other")
    )
    assert initial.dropped == file_names(2, "b")
    assert not result.dropped
    assert result.retained_files == file_names(2, "b")
    assert result.manifest == before


def test_without_any_of_them_a_new_day_is_empty():
    initial = load_target(day(2), None, SAME)
    result = initial.without_files(initial.files_to_read, None)
    assert not (result.files_to_read or result.retained_files or result.manifest.files)
    assert result.manifest.present_days == {day(1), day(2)}


def test_without_some_files_the_others_are_loaded_as_they_would_be():
    """Two were replaced, one is new, one has another name, and one of each cannot be read."""
    then = make_landing("a=1 x=9", "b=22 c=33 old=5 gone=6")
    now = make_landing("a=11 x=99", "b=2222 c=33 new=5 more=7", at=2)
    before, initial = reload_target(2, then, now)
    unread = file_names(1, "a") | file_names(2, "new")
    assert initial.without_files(unread, before) == LoadTarget(
        replace(
            initial.manifest,
            files={
                file_path(1, "a"): LoadedFile(1, 1, "digest of 1"),
                file_path(1, "x"): LoadedFile(2, 2, "digest of 99"),
                file_path(2, "b"): LoadedFile(4, 2, "digest of 2222"),
                file_path(2, "c"): LoadedFile(2, 2, "digest of 33"),
                file_path(2, "old"): LoadedFile(1, 1, "digest of 5"),
                file_path(2, "more"): LoadedFile(1, 2, "digest of 7"),
                file_path(2, "gone"): LoadedFile(1, 1, "digest of 6"),
            },
        ),
        {
            name: entry
            for name, entry in {**now.files_on(day(1)), **now.files_on(day(2))}.items()
            if name not in unread
        },
        replaced=frozenset(file_names(1, "x") | file_names(2, "b")),
        retained_files=frozenset(file_names(1, "a") | file_names(2, "old", "gone")),
    )


def test_a_second_file_is_held_back_beside_the_first():
    record, _ = held_manifest()
    initial = load_target(day(2), record, make_landing("a=less", "b=less"))
    result = initial.hold_back_files(file_names(1, "a") | file_names(3, "x"), record)
    assert result.manifest.awaiting_approval == {
        file_path(1, "a"): "digest of less",
        file_path(2, "b"): "digest of less",
    }
    assert result.manifest.files == record.files
    assert not result.files_to_read
    assert result.retained_files == file_names(1, "a") | file_names(2, "b")


# --- nothing more is expected ---------------------------------------------------------------------


def test_a_day_is_closed_if_it_has_no_folder():
    assert load_target(day(2), None, make_landing("a=1"), closed_days=days(2)).manifest.closed
    assert not load_target(
        day(2), None, make_landing("a=1", ""), closed_days=days(2)
    ).manifest.closed
    assert not load_target(day(2), None, make_landing("a=1")).manifest.closed


def test_closing_a_day_is_news_once():
    before = loaded_manifest(2, make_landing("a=1"))
    closed = load_target(day(2), before, make_landing("a=1"), closed_days=days(2))
    assert needs_reload(before, closed)
    assert describe_change(day(2), before, closed) == "nothing more is expected"
    assert not has_news(before, closed)
    lines_as_well = load_target(day(2), before, make_landing("a=1 c=2"), closed_days=days(2))
    assert has_news(before, lines_as_well)
    assert has_news(None, closed)
    # From then on it is so, whoever asks.
    assert not needs_reload(
        closed.manifest,
        load_target(day(2), closed.manifest, make_landing("a=1"), closed_days=days(2)),
    )


def test_a_closed_day_whose_folder_is_expected_again_is_news():
    closed = loaded_manifest(2, make_landing("a=1"), closed_days=days(2))
    reopened = load_target(day(2), closed, make_landing("a=1"))
    assert needs_reload(closed, reopened)
    assert describe_change(day(2), closed, reopened) == "a folder is expected again"


def test_a_folder_that_comes_after_all():
    closed = loaded_manifest(2, make_landing("a=1"), closed_days=days(2))
    result = load_target(day(2), closed, make_landing("a=1", "b=22"), closed_days=days(2))
    assert not result.manifest.closed
    assert needs_reload(closed, result)
    assert describe_change(day(2), closed, result) == "new files, its folder has come"
    empty = load_target(day(2), closed, make_landing("a=1", ""))
    assert needs_reload(closed, empty)
    assert describe_change(day(2), closed, empty) == "its folder has come"


def test_a_day_that_was_never_loaded_is_due():
    result = load_target(day(2), None, make_landing())
    assert needs_reload(None, result)
    assert describe_change(day(2), None, result) == "its folder has not landed"
    assert result.manifest == LoadManifest()
    for landing, closed_days in ((make_landing("a=1", ""), ()), (make_landing("a=1"), days(2))):
        result = load_target(day(2), None, landing, closed_days=closed_days)
        assert describe_change(day(2), None, result) == ""


def test_a_renamed_file_is_no_news():
    """Nobody accepted that it is gone; it is not."""
    before, result = reload_target(2, SAME, make_landing("a=1", "other=22 c=new"))
    assert result.dropped == file_names(2, "b")
    assert describe_change(day(2), before, result) == "new files"


def test_news_are_told_together():
    record = replace(
        loaded_manifest(2, make_landing("a=1 b=22")),
        awaiting_approval={file_path(1, "b"): "digest of less"},
    )
    accepted = file_names(1, "b")
    now = make_landing("a=other b=less c=new", at=2)
    closed = load_target(day(2), record, now, accepted=accepted, closed_days=days(2))
    assert describe_change(day(2), record, closed) == (
        "new files, other content, accepted files, nothing more is expected"
    )
    now = make_landing("a=other b=less c=new", "", at=2)
    come = load_target(day(2), record, now, accepted=accepted, closed_days=days(2))
    assert describe_change(day(2), record, come) == (
        "new files, other content, accepted files, its folder has come"
    )


def test_a_folder_has_been_there_if_other_days_were_loaded_from_it():
    arrived = load_target(day(2), None, make_landing(), arrived_days=[day(0), day(1), day(3)])
    assert arrived.manifest.present_days == {day(1)}
    arrived = load_target(day(2), None, make_landing("a=1"), arrived_days=[day(2)])
    assert arrived.manifest.present_days == {day(1), day(2)}


def test_no_news_without_need():
    assert describe_change(day(2), *reload_target(2, SAME, SAME)) == ""
    assert day(2) - DAY in loaded_manifest(2, SAME).present_days


def test_listings_of_dates_that_were_not_looked_for():
    assert make_landing("a=1").files_on(date(1999, 1, 1)) == {}


# --- after an undo --------------------------------------------------------------------------------


def undone_target(
    n: int, then: InventedListing, now: InventedListing, **how
) -> tuple[LoadManifest, LoadTarget]:
    """A day that was loaded twice, the second time undone, and what it would be made of now."""
    before = loaded_manifest(n, then)
    put_back = after_undo(before, loaded_manifest(n, now, before, **how))
    decoded = LoadManifest.from_record(json.loads(json.dumps(put_back.as_json)))
    assert decoded == put_back
    assert {**put_back.files} == {**before.files}
    return put_back, load_target(day(n), put_back, now)


@pytest.mark.parametrize(
    ("then", "now", "accepted"),
    [
        ("a=1", "a=2", ()),
        ("a=1", "a=1 b=2", ()),
        ("a=1 b=2", "a=1", [file_path(1, "b")]),
        ("a=1 b=2", "b=3 c=1", [file_path(1, "b")]),
        ("a=1 b=1", "c=1", [file_path(1, "b")]),
        ("a=1", "", [file_path(1, "a")]),
        ("", "a=1", ()),
    ],
)
def test_what_was_undone_is_not_due_until_something_else_lands(then, now, accepted):
    before, result = undone_target(
        1, make_landing(then), make_landing(now, at=2), accepted=accepted
    )
    assert not needs_reload(before, result)
    assert describe_change(day(2), before, result) == ""
    other = load_target(day(1), before, make_landing(f"{now} new=9", at=3))
    assert needs_reload(before, other)


def test_a_replaced_file_is_asked_about_again_after_its_undo():
    before, result = undone_target(
        1, make_landing("a=1"), make_landing("a=2", at=2), accepted=[file_path(1, "a")]
    )
    assert result.replaced == file_names(1, "a")
    on_hold = result.hold_back_files(file_names(1, "a"), before)
    assert {**on_hold.manifest.files} == {**before.files}
    # And a file that somebody had accepted as gone is kept again.
    reverted, result = undone_target(
        1, make_landing("a=1 b=2"), make_landing("a=1"), accepted=[file_path(1, "b")]
    )
    assert result.retained_files == file_names(1, "b")
    assert reverted.files.keys() == file_names(1, "a", "b")


def test_a_file_that_was_held_before_is_held_again_after_the_undo():
    first, shorter = make_landing("a=1"), make_landing("a=2", at=2)
    before = loaded_manifest(1, first)
    on_hold = (
        load_target(day(1), before, shorter).hold_back_files(file_names(1, "a"), before).manifest
    )
    accepted = loaded_manifest(1, shorter, on_hold, accepted=[file_path(1, "a")])
    assert not accepted.awaiting_approval
    back = after_undo(on_hold, accepted)
    result = load_target(day(1), back, shorter)
    assert back.awaiting_approval == result.manifest.awaiting_approval != {}
    assert not needs_reload(back, result)


def test_the_undo_of_a_first_load_leaves_nothing_that_was_loaded():
    now = loaded_manifest(1, make_landing("a=1"))
    back = after_undo(None, now)
    assert not back.files
    assert not needs_reload(back, load_target(day(1), back, make_landing("a=1")))
    assert needs_reload(back, load_target(day(1), back, make_landing("a=2", at=2)))


def test_undos_one_after_another_hold():
    """The latest is undone first, as an undo asks for."""
    landed = make_landing("a=1 b=2 c=3")
    first, second, third = (
        loaded_manifest(1, make_landing(text)) for text in ("a=1", "a=1 b=2", "a=1 b=2 c=3")
    )
    back = after_undo(second, third)
    back = after_undo(first, back)
    assert not needs_reload(back, load_target(day(1), back, landed))
    back = after_undo(None, back)
    assert not needs_reload(back, load_target(day(1), back, landed))
    assert not back.files
    assert needs_reload(back, load_target(day(1), back, make_landing("a=1 b=2 c=3 d=4")))


def test_the_undo_of_an_undo_holds():
    now = make_landing("a=2", at=2)
    first = loaded_manifest(1, make_landing("a=1"))
    accepted = loaded_manifest(1, now, first, accepted=[file_path(1, "a")])
    back = after_undo(accepted, after_undo(first, accepted))
    assert {**back.files} == {**accepted.files}
    assert not needs_reload(back, load_target(day(1), back, now))


def test_the_undo_of_a_load_that_held_a_file_holds():
    first, now = loaded_manifest(1, make_landing("a=1")), make_landing("a=2 b=3", at=2)
    on_hold = load_target(day(1), first, now).hold_back_files(file_names(1, "a"), first).manifest
    back = after_undo(first, on_hold)
    assert not needs_reload(back, load_target(day(1), back, now))


@pytest.mark.parametrize("purged", ["", "a=1", None])
@pytest.mark.parametrize("then", ["a=1", None])
def test_a_landing_that_is_purged_after_an_undo_is_no_news(then, purged):
    before = None if then is None else loaded_manifest(1, make_landing(then))
    back = after_undo(before, loaded_manifest(1, make_landing("a=1 b=2")))
    result = load_target(day(1), back, make_landing(purged))
    assert not needs_reload(back, result)
    assert result.retained_files == (file_names(1, "a") if then and not purged else set())


def test_an_undone_day_lacks_the_rows_of_files_that_lie_there_still():
    first, second = (loaded_manifest(1, make_landing(text)) for text in ("a=1", "a=1 b=2"))
    assert after_undo(first, second).lacks_reverted_files
    assert after_undo(None, first).lacks_reverted_files
    # What was undone was not a load of other files.
    assert not after_undo(first, replace(first, closed=True)).lacks_reverted_files
    assert not first.lacks_reverted_files


def test_an_undo_gives_the_files_back_and_forgets_no_folder_and_no_decision():
    first = loaded_manifest(2, make_landing("a=1"))
    second = loaded_manifest(2, make_landing("a=1 c=3"), first, closed_days=days(2))
    assert after_undo(first, second) == LoadManifest(
        first.files, frozenset({day(1)}), closed=True, known_before_undo=second
    )
    third = loaded_manifest(2, make_landing("a=1", "b=2"), first)
    back = LoadManifest(first.files, frozenset({day(1), day(2)}), known_before_undo=third)
    assert after_undo(first, third) == back
    # Of several undos, the first one knows all that has been loaded.
    assert after_undo(None, back) == LoadManifest(
        {}, frozenset({day(1), day(2)}), known_before_undo=third
    )


def test_what_an_undone_day_is_compared_with_is_what_it_would_be_without_the_undo():
    first, second = (loaded_manifest(1, make_landing(text)) for text in ("a=1", "a=1 b=2"))
    target = load_target(day(1), after_undo(first, second), make_landing("a=1 b=2"))
    assert target.digest_before_undo == second.content_digest()
    assert load_target(day(1), second, make_landing("a=1 b=2")).digest_before_undo == ""


def test_a_file_of_an_undone_day_that_a_person_accepts_as_gone_is_news():
    first = loaded_manifest(1, make_landing("a=1"))
    back = after_undo(first, first)
    gone = make_landing("")
    assert not needs_reload(back, load_target(day(1), back, gone))
    assert needs_reload(back, load_target(day(1), back, gone, accepted=file_names(1, "a")))


def test_that_nothing_more_is_expected_of_an_undone_day_is_news():
    first = loaded_manifest(2, make_landing("a=1"))
    back = after_undo(first, first)
    now = make_landing("a=1")
    assert not needs_reload(back, load_target(day(2), back, now))
    assert needs_reload(back, load_target(day(2), back, now, closed_days=days(2)))


def test_a_folder_that_other_days_were_loaded_from_is_news_of_an_undone_day():
    first = loaded_manifest(2, make_landing())
    back = after_undo(first, replace(first, closed=True))
    how = {"closed_days": days(2)}
    assert not needs_reload(back, load_target(day(2), back, make_landing(), **how))
    come = load_target(day(2), back, make_landing(), arrived_days=[day(1)], **how)
    assert needs_reload(back, come)
