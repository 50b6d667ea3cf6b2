"""A sample of a landing file: the values of some fields of some of its lines, without Spark.

It is bounded, however large the file. Of a text file it is taken at several places. What a run
makes of the lines is not decided here: those that cannot be read are left out.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from backfill_assets.engine.stores import open_store
from backfill_assets.landing.caps import Caps
from backfill_assets.landing.csv import header_of, names_of
from backfill_assets.landing.listing import Entry, LandingError
from backfill_assets.landing.text import BYTE_ORDER_MARK
from backfill_assets.tables.sources import Source

#: At most so many lines of a file.
MOST_LINES = 1000
#: So many places of a larger file, and bytes from each of them on.
_PLACES, _BYTES = 4, 256 << 10
#: Seconds for the Parquet files of a sample.
_PATIENCE = 60
_LINE_END = re.compile(rb"\r\n|\n|\r")
#: What a file raises that cannot be read.
_UNREADABLE = (OSError, EOFError, ValueError, pa.ArrowException, LandingError, RecursionError)

#: The values of a line, in the order of the fields that were asked for.
Values = tuple[str | None, ...]


def sample(
    landing: str, source: Source, entries: Sequence[Entry], fields: Sequence[str]
) -> dict[Entry, list[Values] | str]:
    """Lines of some files; of a file that cannot be read, why.

    Args:
        landing: the root of the landing.
        source: whose files they are.
        entries: the files.
        fields: of the source, whose values are wanted.
    """
    filesystem, _ = open_store(landing)
    found: dict[Entry, list[Values] | str] = {}
    parquet = []
    for entry in entries:
        if entry.refused:
            found[entry] = entry.refused
        elif entry.path.endswith(".parquet"):
            parquet.append(entry)
        else:
            try:
                found[entry] = [*_of_text(filesystem, entry, source, fields)]
            except _UNREADABLE as error:
                found[entry] = _why(error)
    return found | _of_parquet(landing, parquet, fields)


def _of_text(
    filesystem: pafs.FileSystem, entry: Entry, source: Source, fields: Sequence[str]
) -> Iterator[Values]:
    lines = [*_lines(filesystem, entry)]
    spread = lines[:: -(-len(lines) // MOST_LINES) or 1]
    if not entry.path.removesuffix(".gz").endswith(".csv"):
        yield from filter(None, (_of_json(line, fields) for line in spread))
        return
    header = header_of(filesystem, entry.path, source)
    names = names_of(header, source) if header else []
    for line in spread:
        if line != header and (values := _of_csv(line, names)):
            yield tuple(values.get(name) or None for name in fields)


def _lines(filesystem: pafs.FileSystem, entry: Entry) -> Iterator[str]:
    """The lines that are whole, of a part of a file; blank ones are left out."""
    for piece in _pieces(filesystem, entry):
        for line in _LINE_END.split(piece):
            text = line.decode(errors="replace").removeprefix(BYTE_ORDER_MARK)
            if text.strip():
                yield text


def _pieces(filesystem: pafs.FileSystem, entry: Entry) -> Iterator[bytes]:
    most = _PLACES * _BYTES
    if entry.path.endswith(".gz"):
        # There is no other place in it than its beginning.
        with filesystem.open_input_stream(entry.path, compression="gzip") as stream:
            piece = stream.read(most)
            yield _cut(piece, end=not stream.read(1))
        return
    with filesystem.open_input_file(entry.path) as file:
        size = file.size()
        if size <= most:
            yield file.read_at(size, 0)
            return
        for n in range(_PLACES):
            start = n * (size - _BYTES) // (_PLACES - 1)
            yield _cut(file.read_at(_BYTES, start), begin=not n, end=n == _PLACES - 1)


def _cut(piece: bytes, *, begin: bool = True, end: bool = True) -> bytes:
    """A part of a file without the lines of which only a part is in it."""
    if not begin:
        first = _LINE_END.search(piece)
        piece = piece[first.end() :] if first else b""
    if not end:
        piece = piece[: max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1]
    return piece


def _of_json(line: str, fields: Sequence[str]) -> Values | None:
    try:
        said = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return tuple(_text(said.get(name)) for name in fields) if isinstance(said, dict) else None


def _of_csv(line: str, names: Sequence[str]) -> dict[str, str] | None:
    try:
        values = next(csv.reader([line], strict=True))
    except csv.Error:
        return None
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else None


def _of_parquet(
    landing: str, entries: Sequence[Entry], fields: Sequence[str]
) -> dict[Entry, list[Values] | str]:
    """The same of Parquet files, in a process of its own: Arrow ends the one that reads some."""
    if not entries:
        return {}
    asked = json.dumps([landing, [entry.path for entry in entries], [*fields]])
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        told = done.stdout.splitlines()
    except subprocess.TimeoutExpired:
        told = []
    found: dict[Entry, list[Values] | str] = dict.fromkeys(entries, "it was not read to its end")
    for entry, line in zip(entries, told, strict=False):
        said = json.loads(line)
        found[entry] = said if isinstance(said, str) else [tuple(values) for values in said]
    return found


def _rows(filesystem: pafs.FileSystem, path: str, fields: Sequence[str]) -> list[Values]:
    """Rows of a Parquet file, from several of its row groups."""
    entry = Entry("", path, 0, 0)
    Caps.usual().footer_of(filesystem, entry)
    with filesystem.open_input_file(path) as opened, pq.ParquetFile(opened) as file:
        groups = range(file.num_row_groups)[:: max(1, file.num_row_groups // _PLACES)][:_PLACES]
        columns = [name for name in fields if name in file.schema_arrow.names]
        most = MOST_LINES // max(1, len(groups))
        rows: list[dict[str, Any]] = []
        for group in groups:
            batches = file.iter_batches(batch_size=most, row_groups=[group], columns=columns)
            rows += [row for batch in islice(batches, 1) for row in _listed(batch)]
    return [tuple(_text(row.get(name)) for name in fields) for row in rows]


def _listed(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    # Without a column, a batch has rows and nothing else.
    return batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows


def _text(value: Any) -> str | None:
    """A value as text; an empty one is none."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return None if value is None else str(value) or None


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error) or '?').splitlines()[0][:200]}"


def _tell(asked: str) -> Iterable[str]:
    """For each Parquet file its rows, or why it cannot be read, as a line of JSON."""
    landing, paths, fields = json.loads(asked)
    filesystem, _ = open_store(landing)
    for path in paths:
        try:
            yield json.dumps(_rows(filesystem, path, fields))
        except _UNREADABLE as error:
            yield json.dumps(_why(error))


if __name__ == "__main__":
    for line in _tell(sys.stdin.read()):
        print(line, flush=True)
