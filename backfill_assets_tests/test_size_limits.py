"""What a landing file may be at most: caps on lines, on what expands, and on control files."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.landing import size_limits
from backfill_assets.landing.files import LandingFile, _probe_file
from backfill_assets.landing.listing import LandingError, ListedFile
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets_tests.helpers.pipeline import START

KB, MB = 1 << 10, 1 << 20
LINE = 4 * KB
SMALL = SizeLimits(max_line=LINE, max_expanded=MB, max_control=KB)
STORE = pafs.LocalFileSystem()


def make_entry(path: Path) -> ListedFile:
    return ListedFile(path.name, str(path), path.stat().st_size, 1)


def check_text(path: Path, data: bytes, limits: SizeLimits = SMALL) -> None:
    path.write_bytes(data)
    limits.check_text(STORE, make_entry(path))


def longest_line(data: bytes) -> int:
    return max(map(len, data.replace(b"\r", b"\n").split(b"\n")))


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("before", [0, 1, 100, 5 * LINE])
@pytest.mark.parametrize("last", [False, True])
def test_the_longest_line(tmp_path, monkeypatch, end, before, last):
    """Wherever it lies: of as many bytes as there may be it is fine, with a byte more it is not."""
    monkeypatch.setattr(size_limits, "_FIRST_READ_BYTES", 64)
    lines = (b"x" * 70 + end) * (before // 70)
    after = b"" if last else end + b"y" * 2000 + end + b"z" * 2000
    for name, packed in (("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress)):
        check_text(tmp_path / name, packed(lines + b"x" * LINE + after))
        with pytest.raises(LandingError, match=r"a line is longer than 4,096 bytes .*MAX_LINE"):
            check_text(tmp_path / name, packed(lines + b"x" * (LINE + 1) + after))


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([b"\n", b"\r", b"\r\n", b""])), max_size=40
    ),
    line=st.integers(1, 60),
    tail=st.integers(1, 20),
    piece=st.integers(1, 50),
)
def test_lines_of_any_lengths(tmp_path_factory, parts, line, tail, piece):
    data = b"".join(b"x" * length + end for length, end in parts)
    limits = SizeLimits(line, MB, KB)
    folder = tmp_path_factory.mktemp("any")
    for name, packed in (("a.csv", bytes), ("a.csv.gz", gzip.compress)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(size_limits, "_FIRST_READ_BYTES", tail)
            patch.setattr(size_limits, "_PIECE", piece)
            if longest_line(data) > line:
                with pytest.raises(LandingError, match="a line is longer"):
                    check_text(folder / name, packed(data), limits)
            else:
                check_text(folder / name, packed(data), limits)


def test_what_a_file_expands_to(tmp_path):
    lines = b"x" * 1023 + b"\n"
    check_text(tmp_path / "a.json.gz", gzip.compress(lines * KB))
    # Of a plain file, the size says nothing of what the engine must hold.
    check_text(tmp_path / "a.json", lines * 2 * KB)
    with pytest.raises(LandingError, match=r"expands to more than 1,048,576 bytes .*MAX_EXPANDED"):
        check_text(tmp_path / "a.json.gz", gzip.compress(lines * KB + b"\n"))
    # As members of one file.
    with pytest.raises(LandingError, match="MAX_EXPANDED"):
        check_text(tmp_path / "a.json.gz", gzip.compress(lines) * (KB + 1))


def test_a_line_over_members_of_a_gzip(tmp_path):
    half = gzip.compress(b"x" * (LINE // 2))
    check_text(tmp_path / "a.json.gz", half * 2 + gzip.compress(b"\n") + half)
    with pytest.raises(LandingError, match="MAX_LINE"):
        check_text(tmp_path / "a.json.gz", half * 2 + gzip.compress(b"x\n") + half)


@pytest.mark.parametrize(
    "data",
    [b"not gzip", gzip.compress(b"x")[:-3], gzip.compress(b"x") + b"garbage", zlib.compress(b"x")],
    # Not by what they hold: a gzip says when it was made.
    ids=["text", "cut", "garbage", "zlib"],
)
def test_what_is_no_gzip(tmp_path, data):
    """Whatever our own reading does not understand is not given to another."""
    with pytest.raises(LandingError, match="broken gzip"):
        check_text(tmp_path / "a.json.gz", data)


def test_plain_files_that_are_too_small_are_not_opened(tmp_path):
    missing_path = str(tmp_path / "gone.jsonl")
    SMALL.check_text(STORE, ListedFile("gone.jsonl", missing_path, LINE, 1))
    with pytest.raises(FileNotFoundError):
        SMALL.check_text(STORE, ListedFile("gone.jsonl", missing_path, LINE + 1, 1))


def test_a_line_of_gigabytes_is_told_in_little_memory_and_time(tmp_path):
    usual = SizeLimits.default_limits()
    bomb = gzip.compress(b"x" * 16 * MB) * 100
    assert len(bomb) < 2 * MB
    tracemalloc.start()
    try:
        with pytest.raises(LandingError, match="MAX_LINE"):
            check_text(tmp_path / "bomb.jsonl.gz", bomb, usual)
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
    finally:
        tracemalloc.stop()


class Counted:
    """A file of orderly lines that is larger than memory; it counts what is read."""

    def __init__(self, size: int) -> None:
        self._size, self.read = size, 0

    def size(self) -> int:
        return self._size

    def read_at(self, count: int, start: int) -> bytes:
        self.read += count
        return (b"x" * 99 + b"\n") * (count // 100 + 2)


def test_of_a_large_plain_file_little_is_read():
    """So it is on object storage as well."""
    file = Counted(1 << 35)
    SizeLimits.default_limits()._check_plain(file)
    assert file.read < file.size() / 200


def test_control_files(tmp_path):
    path = tmp_path / "_control.json"
    path.write_bytes(b" " * KB)
    assert len(SMALL.read_control_file(STORE, make_entry(path))) == KB
    path.write_bytes(b" " * (KB + 1))
    with pytest.raises(LandingError, match=r"larger than 1,024 bytes .*MAX_CONTROL"):
        SMALL.read_control_file(STORE, make_entry(path))


def write_parquet(path: Path, texts: list[str], **how) -> ListedFile:
    pq.write_table(pa.table({"note": texts}), path, use_dictionary=False, **how)
    return make_entry(path)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["x" * 10 * LINE], r"rows have more than 4,096 bytes on average .*MAX_LINE"),
        (["x" * 1024 * LINE, *["y"] * 1999], r"4,194,304 bytes \(1,024 times \w*MAX_LINE\)"),
        (["x" * (LINE // 2)] * 600, r"expands to 1,\d+,\d+ bytes, more than 1,048,576 .*EXPANDED"),
    ],
)
def test_parquet_files(tmp_path, texts, why):
    file_entry = write_parquet(
        tmp_path / "a.parquet", texts, compression="zstd", row_group_size=2000
    )
    assert file_entry.size < 64 * KB
    with pytest.raises(LandingError, match=why):
        SMALL.read_footer(STORE, file_entry)
    assert SizeLimits.default_limits().read_footer(STORE, file_entry).num_rows == len(texts)


def test_a_parquet_footer(tmp_path, monkeypatch):
    file_entry = write_parquet(tmp_path / "a.parquet", ["x"] * 1000)
    monkeypatch.setattr(size_limits, "_MOST_COLUMNS", 0)
    with pytest.raises(LandingError, match="it has 1 columns, more than 0"):
        SMALL.read_footer(STORE, file_entry)
    monkeypatch.setattr(size_limits, "_MOST_FOOTER", 100)
    with pytest.raises(LandingError, match=r"its footer has \d+ bytes, more than 100"):
        SMALL.read_footer(STORE, file_entry)


def test_any_broken_footer_is_a_file_that_cannot_be_read(tmp_path):
    """Whatever is wrong, nothing is raised, and the process lives: Arrow can end it."""
    path = tmp_path / "a.parquet"
    columns = {name: ["x"] for name in ORDER_LINES.fields} | {"more": [{"within": [1]}]}
    pq.write_table(pa.table(columns), path)
    whole, chance = path.read_bytes(), random.Random(0)
    footer = int.from_bytes(whole[-8:-4], "little")
    outcomes = Counter()
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data) - footer - 8, len(data))] = chance.randrange(256)
        path.write_bytes(data)
        file = LandingFile(START, path.name, str(path), len(data))
        outcome = _probe_file(
            STORE, ORDER_LINES, SizeLimits.default_limits(), (make_entry(path), file)
        )
        outcomes[type(outcome).__name__] += 1
    assert {*outcomes} == {"ParquetColumns", "_Unreadable"}
