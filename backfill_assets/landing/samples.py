"""Samples of landing files: values of some fields of some lines, read without Spark.

A sample is small, however large the file; that of a text file comes from several places. Lines that
cannot be read are left out.
"""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from backfill_assets.landing.csv_files import csv_texts, header_columns, read_header, split_record
from backfill_assets.landing.formats import BYTE_ORDER_MARK, match_fields
from backfill_assets.landing.listing import LandingError, ListedFile
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.spark.filesystems import open_store
from backfill_assets.tables.arguments import UTF_16
from backfill_assets.tables.sources import Source

#: Maximum number of lines of a file.
MOST_LINES = 1000
#: Number of places in a large file, and bytes read at each.
_PIECES, _PIECE_BYTES = 4, 256 << 10
#: Timeout in seconds for the Parquet files of a sample.
_TIMEOUT_SECONDS = 60
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LINE_BREAK = re.compile(r"[\r\n]")
#: Errors of a file that cannot be read.
_UNREADABLE = (OSError, EOFError, ValueError, pa.ArrowException, LandingError, RecursionError)

#: The values of a line, in the order of the requested fields.
Values = tuple[str | None, ...]


def sample_values(
    landing: str, source: Source, entries: Sequence[ListedFile], fields: Sequence[str]
) -> dict[ListedFile, list[Values] | str]:
    """Sampled values by file; for an unreadable file, the reason."""
    filesystem, _ = open_store(landing)
    values_by_file: dict[ListedFile, list[Values] | str] = {}
    parquet = []
    for entry in entries:
        if entry.refused:
            values_by_file[entry] = entry.refused
        elif entry.path.endswith(".parquet"):
            parquet.append(entry)
        else:
            try:
                values_by_file[entry] = [*_sample_text(filesystem, entry, source, fields)]
            except _UNREADABLE as error:
                values_by_file[entry] = _error_text(error)
    return values_by_file | _sample_parquet(landing, parquet, fields, source.rename)


def _sample_text(
    filesystem: pafs.FileSystem, entry: ListedFile, source: Source, fields: Sequence[str]
) -> Iterator[Values]:
    """Yield the fields of at most `MOST_LINES` lines, evenly spread over the sampled lines."""
    if not entry.path.removesuffix(".gz").endswith((".csv", ".tbl")):
        lines = _spread_evenly([*_sample_lines(filesystem, entry)])
        values_by_line = (_json_values(line, fields, source.rename) for line in lines)
        yield from filter(None, values_by_line)
        return
    header = read_header(filesystem, entry.path, source)
    if header is None:
        return
    names = header_columns(header, source)
    for line in _spread_evenly(_sample_records(filesystem, entry, source, header.encoding)):
        if line != header.text and (values := _csv_values(line, names, source)):
            yield tuple(values.get(name) or None for name in fields)


def _spread_evenly(lines: list[str]) -> list[str]:
    return lines[:: -(-len(lines) // MOST_LINES) or 1]


def _sample_records(
    filesystem: pafs.FileSystem, entry: ListedFile, source: Source, encoding: str
) -> list[str]:
    """The whole, non-blank records in the sampled parts of a CSV file.

    A part may begin in text in quotes over several lines, or within a character. So of a file with
    such text, or in UTF-16, only the beginning is sampled.
    """
    parts = islice(_read_pieces(filesystem, entry), 1 if encoding == UTF_16 else None)
    pieces = [[*csv_texts(piece, source, encoding)] for piece in parts]
    records = [record for piece in pieces for record in piece]
    return pieces[0] if any(map(_LINE_BREAK.search, records)) else records


def _sample_lines(filesystem: pafs.FileSystem, entry: ListedFile) -> Iterator[str]:
    """The whole, non-blank lines in the sampled parts of a file."""
    for piece in _read_pieces(filesystem, entry):
        for line in _LINE_END.split(piece):
            text = line.decode(errors="replace").removeprefix(BYTE_ORDER_MARK)
            if text.strip():
                yield text


def _read_pieces(filesystem: pafs.FileSystem, entry: ListedFile) -> Iterator[bytes]:
    """Yield the pieces of a file to sample: all, its beginning if gzip, or evenly spread pieces."""
    max_bytes = _PIECES * _PIECE_BYTES
    if entry.path.endswith(".gz"):
        # A gzip file can only be read from its beginning.
        with filesystem.open_input_stream(entry.path, compression="gzip") as stream:
            piece = stream.read(max_bytes)
            yield _whole_lines(piece, end=not stream.read(1))
        return
    with filesystem.open_input_file(entry.path) as file:
        size = file.size()
        if size <= max_bytes:
            yield file.read_at(size, 0)
            return
        for n in range(_PIECES):
            start = n * (size - _PIECE_BYTES) // (_PIECES - 1)
            yield _whole_lines(file.read_at(_PIECE_BYTES, start), begin=not n, end=n == _PIECES - 1)


def _whole_lines(piece: bytes, *, begin: bool = True, end: bool = True) -> bytes:
    """A part of a file without its incomplete lines."""
    if not begin:
        first = _LINE_END.search(piece)
        piece = piece[first.end() :] if first else b""
    if not end:
        piece = piece[: max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1]
    return piece


def _json_values(line: str, fields: Sequence[str], renames: Mapping[str, str]) -> Values | None:
    """The values of the fields, numbers as written; None if the line is not a JSON object."""
    try:
        parsed = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    values = dict(zip(match_fields([*parsed], fields, renames), parsed.values(), strict=True))
    return tuple(_value_text(values.get(name)) for name in fields)


def _csv_values(line: str, names: Sequence[str], source: Source) -> dict[str, str] | None:
    try:
        cells = split_record(line, source)
    except csv.Error:
        return None
    values = ["" if cell in source.null else cell for cell in cells]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else None


def _sample_parquet(
    landing: str, entries: Sequence[ListedFile], fields: Sequence[str], renames: Mapping[str, str]
) -> dict[ListedFile, list[Values] | str]:
    """Sample Parquet files in a separate process: some files make Arrow end the process."""
    if not entries:
        return {}
    paths = [entry.path for entry in entries]
    request = json.dumps([landing, paths, [*fields], {**renames}])
    command = [sys.executable, "-m", __name__]
    try:
        process = subprocess.run(
            command,
            input=request,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        answers = process.stdout.splitlines()
    except subprocess.TimeoutExpired:
        answers = []
    values_by_file: dict[ListedFile, list[Values] | str] = dict.fromkeys(
        entries, "it was not read to its end"
    )
    for entry, line in zip(entries, answers, strict=False):
        answer = json.loads(line)
        values_by_file[entry] = (
            answer if isinstance(answer, str) else [tuple(values) for values in answer]
        )
    return values_by_file


def _parquet_rows(
    filesystem: pafs.FileSystem, path: str, fields: Sequence[str], renames: Mapping[str, str]
) -> list[Values]:
    """Rows of a Parquet file, from several of its row groups."""
    entry = ListedFile("", path, 0, 0)
    SizeLimits.default_limits().read_footer(filesystem, entry)
    with filesystem.open_input_file(path) as opened, pq.ParquetFile(opened) as file:
        groups = range(file.num_row_groups)[:: max(1, file.num_row_groups // _PIECES)][:_PIECES]
        names = file.schema_arrow.names
        columns = {
            column: name
            for column, name in zip(names, match_fields(names, fields, renames), strict=True)
            if name in fields
        }
        max_rows = MOST_LINES // max(1, len(groups))
        rows: list[dict[str, Any]] = []
        for group in groups:
            batches = file.iter_batches(batch_size=max_rows, row_groups=[group], columns=[*columns])
            rows += [row for batch in islice(batches, 1) for row in _batch_rows(batch)]
    values = [{columns[column]: value for column, value in row.items()} for row in rows]
    return [tuple(_value_text(row.get(name)) for name in fields) for row in values]


def _batch_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    # A batch without columns still has a number of rows.
    return batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows


def _value_text(value: Any) -> str | None:
    """A value as text; None for an empty one."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return None if value is None else str(value) or None


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error) or '?').splitlines()[0][:200]}"


def _answer_request(request: str) -> Iterable[str]:
    """For each Parquet file, its rows or why it cannot be read, as a line of JSON."""
    landing, paths, fields, renames = json.loads(request)
    filesystem, _ = open_store(landing)
    for path in paths:
        try:
            yield json.dumps(_parquet_rows(filesystem, path, fields, renames))
        except _UNREADABLE as error:
            yield json.dumps(_error_text(error))


if __name__ == "__main__":
    for line in _answer_request(sys.stdin.read()):
        print(line, flush=True)
