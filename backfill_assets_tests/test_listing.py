"""What lies in the landing: names, folders, digests; on real files, without Spark."""

from __future__ import annotations

import hashlib
import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.fs as pafs
import pytest

from backfill_assets.landing import listing
from backfill_assets.landing.listing import UNDECODABLE_NAME, LandingError, list_landing
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets_tests.helpers.pipeline import day

NAME = f"arrival_date={day(1)}"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    folder = tmp_path / "orders"
    folder.mkdir()
    return folder


def put_file(orders: Path, name: str, n: int = 1, text: str = "x") -> Path:
    path = orders / f"arrival_date={day(n)}" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def list_orders(orders: Path, **how) -> listing.Listing:
    return list_landing(str(orders.parent), ORDER_LINES, **how)


def test_without_its_folder_the_landing_is_a_wrong_setting(tmp_path):
    with pytest.raises(LandingError, match=r"BACKFILL_ASSETS_LANDING.*Nothing was written"):
        list_landing(str(tmp_path), ORDER_LINES)


def test_nothing_has_landed(orders):
    assert list_orders(orders).folders == {}
    assert list_orders(orders, days=[day(1)]).folders == {}
    assert list_orders(orders, days=[day(1)]).requested_days == {day(1)}


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
    put_file(orders, name)
    (folder,) = list_orders(orders).folders.values()
    assert list(folder.files) == [f"{NAME}/{name}"]
    assert not folder.unknown_files
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
    put_file(orders, name)
    (folder,) = list_orders(orders).folders.values()
    assert not folder.files
    assert not folder.unknown_files


@pytest.mark.parametrize(
    "name",
    ["part-0.txt", "part-0.parquet.gz", "part-0.JSONL", "part-0", "jsonl", "part-0.jsonl.bak"],
)
def test_unknown_kinds_are_named(orders, name):
    put_file(orders, name)
    (folder,) = list_orders(orders).folders.values()
    assert not folder.files
    assert folder.unknown_files == (f"{NAME}/{name}",)


def test_folders_within_are_no_files(orders):
    (orders / NAME / "more.jsonl").mkdir(parents=True)
    (orders / NAME / "more.jsonl" / "part-0.jsonl").write_text("x")
    (orders / NAME / "_hidden").mkdir()
    for how in ({}, {"days": [day(1)]}):
        (folder,) = list_orders(orders, **how).folders.values()
        assert not folder.files
        assert folder.unknown_files == (f"{NAME}/more.jsonl",)


def test_a_name_that_is_not_utf_8(orders):
    put_file(orders, "part-0.jsonl")
    put_file(orders, "part-0.jsonl", 2)
    put_file(orders, os.fsdecode(b"\xff.jsonl"))
    put_file(orders, os.fsdecode(b"\xfe.jsonl"))
    assert refused_files(orders) == {UNDECODABLE_NAME: "rename it"}
    assert list(list_orders(orders).files_on(day(2))) == [f"arrival_date={day(2)}/part-0.jsonl"]


def test_a_name_with_a_colon_that_spark_must_not_take_for_a_pattern(orders):
    """A path that is escaped is looked up by its parts, and Hadoop takes `T10:` for a scheme."""
    for name in ("T10:00.jsonl", "part[1].jsonl", "part[1]T10:00.jsonl"):
        put_file(orders, name)
    reason = "Spark opens no path with a colon and one of * ? [ ] { } \\: rename it"
    assert refused_files(orders) == {"part[1]T10:00.jsonl": reason}


# --- what is not opened ---------------------------------------------------------------------------


def refused_files(orders: Path, n: int = 1) -> dict[str, str]:
    """What is refused of a day, by one listing of all and by one of the day alike."""
    result = list_orders(orders)
    assert result.folders == list_orders(orders, days=result.folders).folders
    entries = result.files_on(day(n)).values()
    no = {entry for entry in entries if entry.refused}
    assert all(not text for entry, text in result.content_digests(entries).items() if entry in no)
    return {entry.name: entry.refused for entry in no}


OUT = "a link that leads out of the landing: land the file itself"
NOWHERE = "a link that leads nowhere: remove it, or land the file itself"


def test_links_may_not_lead_out_of_the_landing(orders, tmp_path_factory):
    secret = tmp_path_factory.mktemp("outside") / "secret.jsonl"
    secret.write_text("secret")
    day_folder = put_file(orders, "a.jsonl").parent
    other = orders.parent / "visits"
    other.mkdir()
    (other / "of-another-source.jsonl").write_text("xyz")
    # By way of a link within.
    (day_folder / "hop").symlink_to(secret.parent)
    links = {
        "absolute.jsonl": secret,
        "relative.jsonl": os.path.relpath(secret, day_folder),
        "hop.jsonl": "hop/secret.jsonl",
        "_control.json": secret,
        "folder.jsonl": "/etc",
        "dangling.jsonl": "nothing",
        "through-a-file.jsonl": "a.jsonl/x",
        "loop.jsonl": "loop.jsonl",
        "fine.jsonl": "a.jsonl",
        "other.jsonl": "../../visits/of-another-source.jsonl",
    }
    for name, target in links.items():
        (day_folder / name).symlink_to(target)
    assert refused_files(orders) == {
        **dict.fromkeys(["absolute.jsonl", "relative.jsonl", "hop.jsonl", "_control.json"], OUT),
        "folder.jsonl": OUT,
        **dict.fromkeys(["dangling.jsonl", "through-a-file.jsonl"], NOWHERE),
        "loop.jsonl": "a link that leads to itself: remove it",
    }
    folder = list_orders(orders).folders[day(1)]
    assert folder.files[f"{NAME}/other.jsonl"].size == 3
    assert file_digests(orders)["fine.jsonl"] == file_digests(orders)["a.jsonl"]
    assert folder.unknown_files == (f"{NAME}/hop",)


def test_links_of_the_deployment_itself_are_fine(orders, tmp_path_factory):
    """The landing may be a link, and so may the folder of a source in it."""
    put_file(orders, "a.jsonl")
    (orders / NAME / "link.jsonl").symlink_to("a.jsonl")
    place = tmp_path_factory.mktemp("elsewhere")
    (place / "landing").mkdir()
    (place / "landing" / "orders").symlink_to(orders)
    (place / "link").symlink_to("landing")
    for root in (place / "landing", place / "link"):
        result = list_landing(str(root), ORDER_LINES)
        assert result.folders == list_landing(str(root), ORDER_LINES, [day(1)]).folders
        assert [entry.refused for entry in result.files_on(day(1)).values()] == ["", ""]


def test_folders_that_are_links(orders, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "a.jsonl").write_text("secret")
    put_file(orders, "a.jsonl", 4)
    for n, target in enumerate([outside, "nothing", f"arrival_date={day(4)}", "/etc/passwd"], 1):
        link = orders / f"arrival_date={day(n if n < 4 else 5)}"
        link.symlink_to(target)
    assert refused_files(orders, 1) == {"": OUT}
    assert refused_files(orders, 2) == {"": NOWHERE}
    assert list(list_orders(orders).files_on(day(3))) == [f"arrival_date={day(3)}/a.jsonl"]
    assert refused_files(orders, 5) == {"": OUT}


def test_a_file_in_the_place_of_a_folder(orders):
    (orders / NAME).write_text("x")
    put_file(orders, "a.jsonl", 2)
    assert refused_files(orders) == {"": "NotADirectoryError: Not a directory"}
    assert refused_files(orders, 2) == {}


def test_pipes_and_sockets_are_not_opened(orders):
    day_folder = put_file(orders, "a.jsonl").parent
    os.mkfifo(day_folder / "pipe.jsonl")
    os.mkfifo(day_folder / "_control.json")
    (day_folder / "link.jsonl").symlink_to("pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(orders / "s"))
        (orders / "s").rename(day_folder / "socket.jsonl")
    assert refused_files(orders) == {"_control.json": "not a file"}
    names = ("link.jsonl", "pipe.jsonl", "socket.jsonl")
    assert list_orders(orders).folders[day(1)].unknown_files == tuple(
        f"{NAME}/{name}" for name in names
    )
    assert file_digests(orders).keys() == {"_control.json", "a.jsonl"}


def make_anything(path: Path, chance: random.Random, targets: Sequence[object]) -> None:
    kind = chance.choice(["file", "link", "pipe", "folder", "folder"])
    if os.path.lexists(path):
        return  # not through a link that was made before
    if kind == "file":
        path.write_text("x")
    elif kind == "link":
        path.symlink_to(str(chance.choice([*targets, path.name])))
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_lies_there(orders, tmp_path_factory, seed):
    """Nothing is raised, nothing hangs, and nothing outside is told of."""
    chance, outside = random.Random(seed), tmp_path_factory.mktemp("outside") / "secret.jsonl"
    outside.write_text("secret")
    targets = [outside, outside.parent, "..", ".", "nothing", "/dev/zero", "/proc/self/fd"]
    stems, ends = (
        ["a", "_control", "b\n", "\udcfe", "-rf", "..c"],
        [".jsonl", ".csv.gz", ".json", ""],
    )
    for name in (*(f"arrival_date={day(n)}" for n in range(1, 6)), "arrival_date=", "\n", "\udcff"):
        make_anything(orders / name, chance, targets)
        if (orders / name).is_symlink() or not (orders / name).is_dir():
            continue
        for _ in range(6):
            file = chance.choice(stems) + chance.choice(ends)
            make_anything(orders / name / file, chance, targets)
    for n in range(1, 6):
        refused_files(orders, n)
        opened = [e for e in list_orders(orders).files_on(day(n)).values() if not e.refused]
        assert all(Path(entry.path).resolve().is_relative_to(orders.parent) for entry in opened)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may list everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder of orders that another user may list."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "orders"
        folder.mkdir()
        yield folder


def test_a_folder_that_may_not_be_listed_is_its_days_problem(open_to_all):
    orders = open_to_all
    for n in (1, 2, 3):
        put_file(orders, "a.jsonl", n)
    (orders / NAME).chmod(0)
    # Its names may be listed, but nothing else.
    (orders / f"arrival_date={day(2)}").chmod(0o444)
    try:
        with as_nobody():
            assert refused_files(orders, 1) == {"": "PermissionError: Permission denied"}
            assert refused_files(orders, 2) == {"a.jsonl": "PermissionError: Permission denied"}
            assert refused_files(orders, 3) == {}
    finally:
        for n in (1, 2):
            (orders / f"arrival_date={day(n)}").chmod(0o755)


def test_a_landing_that_may_not_be_listed_says_so(open_to_all):
    put_file(open_to_all, "a.jsonl")
    open_to_all.chmod(0)
    try:
        with (
            as_nobody(),
            pytest.raises(LandingError, match=r"orders cannot be listed \(Permission"),
        ):
            list_orders(open_to_all)
    finally:
        open_to_all.chmod(0o755)


# --- folders --------------------------------------------------------------------------------------


def test_folders_by_arrival_day(orders):
    put_file(orders, "a.jsonl")
    (orders / f"arrival_date={day(2)}").mkdir()
    put_file(orders, "c.jsonl", 4)
    result = list_orders(orders)
    assert {d: list(folder.files) for d, folder in result.folders.items()} == {
        day(1): [f"{NAME}/a.jsonl"],
        day(2): [],
        day(4): [f"arrival_date={day(4)}/c.jsonl"],
    }
    assert result.files_on(day(3)) == {}
    assert not result.requested_days


def test_one_listing_of_all_says_what_one_of_each_day_does(orders):
    for n in (1, 2, 4):
        put_file(orders, "a.jsonl", n)
        put_file(orders, "b.txt", n)
    requested_days = [day(n) for n in range(1, 6)]
    result = list_orders(orders, days=requested_days)
    assert result.folders == list_orders(orders).folders
    assert result.requested_days == {*requested_days}
    assert list_orders(orders, days=[day(2)]).folders.keys() == {day(2)}


def test_a_store_that_is_no_local_folder_says_the_same(orders, monkeypatch):
    for n in (1, 2, 4):
        put_file(orders, "a.jsonl", n)
        put_file(orders, "b.txt", n)
    (orders / f"arrival_date={day(5)}").mkdir()
    (orders / NAME / "more.jsonl").mkdir()
    put_file(orders, "_control.json", 2)
    local = list_orders(orders)
    root = orders.parent
    store = pafs.SubTreeFileSystem(str(root.parent), pafs.LocalFileSystem())
    monkeypatch.setattr(listing, "open_store", lambda _url: (store, root.name))
    for how in ({}, {"days": [day(n) for n in range(1, 7)]}):
        other = list_orders(orders, **how)
        assert [*other.folders] == [*local.folders]
        for n, folder in other.folders.items():
            assert folder.unknown_files == local.folders[n].unknown_files
            local_files = local.files_on(n).values()
            assert [*map(entry_fields, folder.files.values())] == [*map(entry_fields, local_files)]
            digests = other.content_digests(folder.files.values()).values()
            assert {*digests} == {hashlib.sha256(b"x").hexdigest()[:32]} or not local_files


def entry_fields(entry: listing.ListedFile) -> tuple:
    return entry.source_file, entry.size, entry.mtime, entry.refused


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
    assert list_orders(orders).folders == {}
    assert list_orders(orders, days=[day(1)]).folders == {}


# --- folders of hours -----------------------------------------------------------------------------

HOURLY = replace(ORDER_LINES, hourly=True)


def list_by_hour(orders: Path, **how) -> listing.Listing:
    return list_landing(str(orders.parent), HOURLY, **how)


def put_hours(orders: Path) -> None:
    for hour in ("00", "07", "23"):
        (orders / NAME / f"hour={hour}").mkdir(parents=True)
    names = [
        "hour=00/a.jsonl",
        "hour=07/a.jsonl",
        "hour=07/.hidden.jsonl",
        "hour=07/a.tmp",
        "_control.json",
    ]
    unknown = ["hour=07/_control.json", "hour=07/b.txt", "beside.jsonl", "b.txt"]
    for name in [*names, *unknown]:
        put_file(orders, name)
    for name in ("hour=24", "hour=7", "hour=", "hours=03", "_hour=03", "hour=07/hour=08"):
        (orders / NAME / name).mkdir()
        put_file(orders, f"{name}/part-0.jsonl")


def test_folders_of_hours(orders):
    put_hours(orders)
    for how in ({}, {"days": [day(1)]}):
        (folder,) = list_by_hour(orders, **how).folders.values()
        assert folder.hours == {"hour=00", "hour=07", "hour=23"}
        assert {e.name: e.refused for e in folder.files.values()} == {
            "_control.json": "",
            "hour=00/a.jsonl": "",
            "hour=07/a.jsonl": "",
        }
        assert all(Path(entry.path).read_text() == "x" for entry in folder.files.values())
        assert {*map(listing.folder_of, folder.files)} == {NAME}
        beside = ["b.txt", "beside.jsonl", "hour=", "hour=24", "hour=7", "hours=03"]
        within = ["hour=07/_control.json", "hour=07/b.txt", "hour=07/hour=08"]
        assert sorted(folder.unknown_files) == sorted(
            f"{NAME}/{name}" for name in [*beside, *within]
        )


def test_folders_of_hours_of_another_source_are_not_lost_in_silence(orders):
    put_hours(orders)
    for how in ({}, {"days": [day(1)]}):
        (folder,) = list_orders(orders, **how).folders.values()
        assert {f"{NAME}/hour={hour}" for hour in ("00", "07", "23", "24")} <= {
            *folder.unknown_files
        }
        assert not folder.hours


def test_folders_of_hours_in_a_store(orders, monkeypatch):
    put_hours(orders)
    (orders / f"arrival_date={day(2)}").mkdir()
    put_file(orders, "hour=05", 3)
    root = orders.parent
    store = pafs.SubTreeFileSystem(str(root.parent), pafs.LocalFileSystem())
    for source in (HOURLY, ORDER_LINES):
        local = list_landing(str(root), source)
        (orders / "orders.csv").touch()
        with monkeypatch.context() as patch:
            patch.setattr(listing, "open_store", lambda _url: (store, root.name))
            for days in (None, [day(n) for n in range(1, 5)]):
                other = list_landing(str(root), source, days)
                assert [*other.folders] == [*local.folders] == [day(1), day(2), day(3)]
                # Of some days, it is looked for where one has no folder.
                assert other.strays == ("orders.csv",)
                for n in (day(1), day(2)):
                    folder, local_folder = other.folders[n], local.folders[n]
                    assert (folder.unknown_files, folder.hours) == (
                        local_folder.unknown_files,
                        local_folder.hours,
                    )
                    assert [*map(entry_fields, folder.files.values())] == [
                        *map(entry_fields, local_folder.files.values())
                    ]
                refused = [e.refused for e in other.files_on(day(3)).values()]
                assert refused == (["not a folder"] if source.hourly else [])


def test_links_and_folders_of_hours(orders, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.jsonl").write_text("secret")
    put_hours(orders)
    day_folder = orders / NAME
    put_file(orders, "hour=05", 1)
    (day_folder / "hour=01").symlink_to(outside)
    (day_folder / "hour=02").symlink_to("nothing")
    (day_folder / "hour=03").symlink_to("hour=07")
    (day_folder / "hour=04").symlink_to("..")
    os.mkfifo(day_folder / "hour=06")
    (day_folder / "hour=00" / "link.jsonl").symlink_to(outside / "secret.jsonl")
    (day_folder / "hour=00" / os.fsdecode(b"\xff.jsonl")).write_text("x")
    for how in ({}, {"days": [day(1)]}):
        folder = list_by_hour(orders, **how).folders[day(1)]
        assert {e.name: e.refused for e in folder.files.values() if e.refused} == {
            "hour=01/": OUT,
            "hour=02/": NOWHERE,
            "hour=05/": "NotADirectoryError: Not a directory",
            "hour=06/": "NotADirectoryError: Not a directory",
            "hour=00/link.jsonl": OUT,
            f"hour=00/{UNDECODABLE_NAME}": "rename it",
        }
        assert f"{NAME}/hour=03/a.jsonl" in folder.files
        assert f"{NAME}/hour=04/{NAME}" in folder.unknown_files


# --- sizes, times, contents -----------------------------------------------------------------------


def test_what_is_known_of_a_file(orders):
    path = put_file(orders, "a.jsonl", text="12345")
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    (entry,) = list_orders(orders).files_on(day(1)).values()
    assert (entry.size, entry.mtime) == (5, 1_700_000_000_123_456_789)


def file_digests(orders: Path) -> dict[str, str]:
    result = list_orders(orders)
    return {
        entry.name: text
        for entry, text in result.content_digests(result.files_on(day(1)).values()).items()
    }


def test_digests_are_of_contents(orders):
    put_file(orders, "a.jsonl", text="one")
    put_file(orders, "b.jsonl", text="one")
    put_file(orders, "c.jsonl", text="two")
    put_file(orders, "d.jsonl.gz", text="one")
    put_file(orders, "e.jsonl", text="")
    actual = file_digests(orders)
    assert actual["a.jsonl"] == actual["b.jsonl"] == hashlib.sha256(b"one").hexdigest()[:32]
    assert actual["d.jsonl.gz"] == actual["a.jsonl"], "of the bytes as they lie there"
    assert len({*actual.values()}) == 3


def test_digests_of_nothing(orders):
    assert list_orders(orders).content_digests([]) == {}


def test_large_files_are_read_whole(orders):
    put_file(orders, "a.jsonl", text="x" * (2 << 20) + "1")
    put_file(orders, "b.jsonl", text="x" * (2 << 20) + "2")
    first, second = file_digests(orders).values()
    assert first != second


def test_a_file_is_read_once_a_process(orders, monkeypatch):
    read = []
    original = listing._digest

    def digest(filesystem, path):
        read.append(Path(path).name)
        return original(filesystem, path)

    monkeypatch.setattr(listing, "_digest", digest)
    path = put_file(orders, "a.jsonl", text="one")
    first = file_digests(orders)
    assert file_digests(orders) == first
    assert read == ["a.jsonl"]
    # It was changed since.
    path.write_text("another")
    assert file_digests(orders) != first
    # Another of the same length and another time.
    path.write_text("ANOTHER")
    os.utime(path, ns=(1, 1))
    last = file_digests(orders)
    assert last["a.jsonl"] == hashlib.sha256(b"ANOTHER").hexdigest()[:32]
    assert read == ["a.jsonl"] * 3


def test_a_file_that_is_gone_since_the_listing_has_no_digest(orders):
    path = put_file(orders, "a.jsonl", text="gone in between")
    result = list_orders(orders)
    path.unlink()
    entries = result.files_on(day(1)).values()
    assert [*result.content_digests(entries).values()] == [""]
    # That is not kept for the next time.
    path.write_text("gone in between")
    os.utime(path, ns=(1, next(iter(entries)).mtime))
    assert all(result.content_digests(entries).values())


def test_an_object_with_the_name_of_a_folder_is_a_stray(orders, monkeypatch):
    put_file(orders, "a.json")
    (orders / f"arrival_date={day(4)}").touch()
    root = orders.parent
    store = pafs.SubTreeFileSystem(str(root.parent), pafs.LocalFileSystem())
    monkeypatch.setattr(listing, "open_store", lambda _url: (store, root.name))
    listed = list_landing(str(root), ORDER_LINES)
    assert (*listed.folders, *listed.strays) == (day(1), f"arrival_date={day(4)}")


# --- what lies beside the folders of arrival days -------------------------------------------------


@pytest.mark.parametrize("days", [None, [day(1)]])
def test_what_is_of_no_arrival_day_is_named(orders, days):
    put_file(orders, "a.json")
    for name in ("arrival_date=20240102", "arrival_date=2024-01-02T00:00:00", "2024"):
        (orders / name / "x").mkdir(parents=True)
    for name in ("orders.csv", "_SUCCESS", ".DS_Store", "orders.tmp", f"{NAME}_$folder$"):
        (orders / name).touch()
    strays = ("2024", "arrival_date=2024-01-02T00:00:00", "arrival_date=20240102", "orders.csv")
    assert list_orders(orders, days=days).strays == strays


def test_a_stray_is_told_on_the_days_that_it_may_be_meant_for(orders):
    put_file(orders, "a.json")
    put_file(orders, "a.json", 2)
    for name in ("20240102", "dt=2024-01-03", "2024", "20240199", "9202401023"):
        (orders / name).mkdir()
    listed = list_orders(orders)
    undated = ["2024", "20240199", "9202401023"]
    assert listed.strays_of(day(1)) == []
    assert listed.strays_of(day(2)) == ["20240102"]
    assert listed.strays_of(day(3)) == [*undated, "dt=2024-01-03"]
    assert listed.strays_of(day(4)) == undated
