"""What lies in the landing: names, folders, digests; on real files, without Spark."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from backfill_assets.landing import listing
from backfill_assets.landing.listing import LandingError, list_landing
from backfill_assets_tests.pipeline import day

NAME = f"arrival_date={day(1)}"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    folder = tmp_path / "orders"
    folder.mkdir()
    return folder


def put(orders: Path, name: str, n: int = 1, text: str = "x") -> Path:
    path = orders / f"arrival_date={day(n)}" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def found(orders: Path, **how) -> listing.Listing:
    return list_landing(str(orders.parent), "orders", **how)


def test_without_its_folder_the_landing_is_a_wrong_setting(tmp_path):
    with pytest.raises(LandingError, match=r"BACKFILL_ASSETS_LANDING.*Nothing was written"):
        list_landing(str(tmp_path), "orders")


def test_nothing_has_landed(orders):
    assert found(orders).folders == {}
    assert found(orders, days=[day(1)]).folders == {}
    assert found(orders, days=[day(1)]).asked == {day(1)}


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "part-0.json",
        "part-0.jsonl",
        "part-0.csv",
        "part-0.json.gz",
        "part-0.jsonl.gz",
        "part-0.csv.gz",
        "part-0.parquet",
        "_control.json",
        "with space+plus%20é.jsonl",
        "two\nlines.csv",
        "a.tmp.jsonl",
    ],
)
def test_known_names(orders, name):
    put(orders, name)
    (folder,) = found(orders).folders.values()
    assert list(folder.files) == [f"{NAME}/{name}"]
    assert not folder.unknown
    (entry,) = folder.files.values()
    assert entry.name == name
    assert Path(entry.path).read_text() == "x"


@pytest.mark.parametrize(
    "name",
    [
        "_SUCCESS",
        "_part-0.jsonl",
        ".part-0.jsonl",
        ".part-0.jsonl.crc",
        "part-0.jsonl.tmp",
        "part-0.jsonl.part",
        "_control.json.tmp",
        ".DS_Store",
        ".tmp",
    ],
)
def test_hidden_and_unfinished_names(orders, name):
    """As if they were not there; the folder is."""
    put(orders, name)
    (folder,) = found(orders).folders.values()
    assert not folder.files
    assert not folder.unknown


@pytest.mark.parametrize(
    "name",
    ["part-0.txt", "part-0.parquet.gz", "part-0.JSONL", "part-0", "jsonl", "part-0.jsonl.bak"],
)
def test_unknown_kinds_are_named(orders, name):
    put(orders, name)
    (folder,) = found(orders).folders.values()
    assert not folder.files
    assert folder.unknown == (f"{NAME}/{name}",)


def test_folders_within_are_no_files(orders):
    (orders / NAME / "more.jsonl").mkdir(parents=True)
    (orders / NAME / "more.jsonl" / "part-0.jsonl").write_text("x")
    (orders / NAME / "_hidden").mkdir()
    for how in ({}, {"days": [day(1)]}):
        (folder,) = found(orders, **how).folders.values()
        assert not folder.files
        assert folder.unknown == (f"{NAME}/more.jsonl",)


def test_a_name_that_is_not_utf_8(orders):
    put(orders, "part-0.jsonl")
    put(orders, "part-0.jsonl", 2)
    put(orders, os.fsdecode(b"\xff.jsonl"))
    seen = found(orders).folders
    assert seen[day(1)].nameless
    assert list(seen[day(1)].files) == [f"{NAME}/part-0.jsonl"]
    assert not seen[day(2)].nameless


# --- folders --------------------------------------------------------------------------------------


def test_folders_by_arrival_day(orders):
    put(orders, "a.jsonl")
    (orders / f"arrival_date={day(2)}").mkdir()
    put(orders, "c.jsonl", 4)
    seen = found(orders)
    assert {d: list(folder.files) for d, folder in seen.folders.items()} == {
        day(1): [f"{NAME}/a.jsonl"],
        day(2): [],
        day(4): [f"arrival_date={day(4)}/c.jsonl"],
    }
    assert seen.files(day(3)) == {}
    assert not seen.asked


def test_one_listing_of_all_says_what_one_of_each_day_does(orders):
    for n in (1, 2, 4):
        put(orders, "a.jsonl", n)
        put(orders, "b.txt", n)
    asked = [day(n) for n in range(1, 6)]
    seen = found(orders, days=asked)
    assert seen.folders == found(orders).folders
    assert seen.asked == {*asked}
    assert found(orders, days=[day(2)]).folders.keys() == {day(2)}


@pytest.mark.parametrize(
    "name",
    [
        "2024-01-01",
        "arrival_date=20240101",
        "arrival_date=2024-W01-1",
        "arrival_date=2024-01-32",
        "arrival_date=2024-1-1",
        "arrival_date=",
        "_arrival_date=2024-01-01",
        "arrival_date=2024-01-01.tmp",
        "other",
    ],
)
def test_other_folders_are_no_arrival_days(orders, name):
    (orders / name).mkdir()
    (orders / name / "part-0.jsonl").write_text("x")
    (orders / "stray.jsonl").write_text("x")
    assert found(orders).folders == {}
    assert found(orders, days=[day(1)]).folders == {}


# --- sizes, times, contents -----------------------------------------------------------------------


def test_what_is_known_of_a_file(orders):
    path = put(orders, "a.jsonl", text="12345")
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    (entry,) = found(orders).files(day(1)).values()
    assert (entry.size, entry.mtime) == (5, 1_700_000_000_123_456_789)


def digests(orders: Path) -> dict[str, str]:
    seen = found(orders)
    return {entry.name: text for entry, text in seen.digests(seen.files(day(1)).values()).items()}


def test_digests_are_of_contents(orders):
    put(orders, "a.jsonl", text="one")
    put(orders, "b.jsonl", text="one")
    put(orders, "c.jsonl", text="two")
    put(orders, "d.jsonl.gz", text="one")
    put(orders, "e.jsonl", text="")
    seen = digests(orders)
    assert seen["a.jsonl"] == seen["b.jsonl"] == hashlib.sha256(b"one").hexdigest()[:32]
    assert seen["d.jsonl.gz"] == seen["a.jsonl"], "of the bytes as they lie there"
    assert len({*seen.values()}) == 3


def test_digests_of_nothing(orders):
    assert found(orders).digests([]) == {}


def test_large_files_are_read_whole(orders):
    put(orders, "a.jsonl", text="x" * (2 << 20) + "1")
    put(orders, "b.jsonl", text="x" * (2 << 20) + "2")
    one, other = digests(orders).values()
    assert one != other


def test_a_file_is_read_once_a_process(orders, monkeypatch):
    read = []
    original = listing._digest

    def digest(filesystem, path):
        read.append(Path(path).name)
        return original(filesystem, path)

    monkeypatch.setattr(listing, "_digest", digest)
    path = put(orders, "a.jsonl", text="one")
    first = digests(orders)
    assert digests(orders) == first
    assert read == ["a.jsonl"]
    # It was changed since.
    path.write_text("another")
    assert digests(orders) != first
    # Another of the same length and another time.
    path.write_text("ANOTHER")
    os.utime(path, ns=(1, 1))
    last = digests(orders)
    assert last["a.jsonl"] == hashlib.sha256(b"ANOTHER").hexdigest()[:32]
    assert read == ["a.jsonl"] * 3


def test_a_file_that_is_gone_since_the_listing_has_no_digest(orders):
    path = put(orders, "a.jsonl", text="gone in between")
    seen = found(orders)
    path.unlink()
    entries = seen.files(day(1)).values()
    assert [*seen.digests(entries).values()] == [""]
    # That is not kept for the next time.
    path.write_text("gone in between")
    os.utime(path, ns=(1, next(iter(entries)).mtime))
    assert all(seen.digests(entries).values())
