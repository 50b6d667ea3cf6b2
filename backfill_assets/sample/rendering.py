"""The bytes of invented landing files: lines in every format and notation that is read."""

from __future__ import annotations

import gzip
import io
import json
import random
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.parquet as pq

from backfill_assets.sample.lines import Line

_FIELDS = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts")
_REQUIRED = ("order_id", "order_ts", "amount", "ingestion_ts")

# Files take their format from this list in turn, so that a short run, too, has all of them.
FORMATS = (
    "jsonl", "csv", "jsonl", "parquet", "jsonl", "jsonl.gz", "jsonl", "csv.gz", "json", "parquet",
    "jsonl", "jsonl.gz",
)  # fmt: skip
_CRLF_FILE = 1
_BOM_FILE = 2
_PARQUET_OF_STRINGS_FILE = 9

_PARQUET_TYPES = {
    "order_id": pa.string(),
    "customer_id": pa.string(),
    "order_ts": pa.timestamp("us", tz="UTC"),
    "amount": pa.decimal128(18, 2),
    "ingestion_ts": pa.timestamp("us", tz="UTC"),
}
_BAD_NUMBERS = ("12.345", "abc", "1e17", "12,50", "NaN")
_BAD_TIMESTAMPS = ("2024-02-30T10:00:00Z", "yesterday", "2024-01-15T25:00:00Z", "15/01/2024")


def render_file(suffix: str, lines: list[Line], file_number: int, rng: random.Random) -> bytes:
    """Return the bytes of one landing file."""
    kind = suffix.removesuffix(".gz")
    if kind == "parquet":
        return _parquet_bytes(lines, file_number)
    if kind == "csv":
        texts = _csv_lines(lines, file_number, rng)
        if suffix == "csv.gz":
            texts.insert(1 + len(texts) // 2, texts[0])  # two exports in one: a second header line
    else:
        texts = [_json_line(line, file_number) for line in lines]
    if kind == "json":
        texts.append("")  # a blank last line
    end = "\r\n" if file_number == _CRLF_FILE else "\n"
    data = "".join(text + end for text in texts).encode()
    if file_number == _BOM_FILE:
        data = b"\xef\xbb\xbf" + data
    return gzip.compress(data, mtime=0) if suffix.endswith(".gz") else data


def _text_cells(line: Line, file_number: int) -> dict[str, str | None]:
    """Return the fields as text, None where missing. Of the troubles, `broken` is not done yet."""
    cells = {
        "order_id": line.order_id,
        "customer_id": line.customer_id,
        "order_ts": _format_timestamp(line.order_ts, file_number),
        "amount": str(line.amount),
        "ingestion_ts": _format_timestamp(line.ingestion_ts, file_number),
    }
    if line.trouble == "missing":
        cells[_REQUIRED[line.detail % len(_REQUIRED)]] = None
    elif line.trouble == "bad number":
        cells["amount"] = _BAD_NUMBERS[line.detail % len(_BAD_NUMBERS)]
    elif line.trouble == "bad timestamp":
        name = ("order_ts", "ingestion_ts")[line.detail % 2]
        cells[name] = _BAD_TIMESTAMPS[line.detail % len(_BAD_TIMESTAMPS)]
    return cells


def _format_timestamp(moment: datetime, file_number: int) -> str:
    """Return the moment in the notation that this file uses."""
    style = file_number % 4
    if style == 1:
        return moment.astimezone(timezone(timedelta(hours=2))).isoformat()
    if style == 2:
        return moment.replace(tzinfo=None).isoformat(sep=" ")
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _json_line(line: Line, file_number: int) -> str:
    cells = _text_cells(line, file_number)
    parts = []
    for name, text in cells.items():
        if text is None and (name != "customer_id" or file_number % 3 == 0):
            continue
        # Amounts are numbers in most files and strings in the others.
        number = name == "amount" and file_number % 3 and text not in ("abc", "12,50")
        value = text if number else json.dumps(text, ensure_ascii=file_number % 2 == 0)
        parts.append(f'"{name}": {value}')
    if file_number % 5 == 0:
        parts.append('"channel": {"name": "web", "tags": []}')  # a field nobody asked for
    text = "{" + ", ".join(parts) + "}"
    if line.trouble == "broken":
        variants = (text[: len(text) // 2], text + "}", f"[{text}]", text + text)
        return variants[line.detail % len(variants)]
    return text


def _csv_lines(lines: list[Line], file_number: int, rng: random.Random) -> list[str]:
    columns = [*_FIELDS, "channel"] if file_number % 2 else list(_FIELDS)
    rng.shuffle(columns)
    texts = [",".join(columns)]
    for line in lines:
        cells = {**_text_cells(line, file_number), "channel": "web"}
        values = [_quote_csv(cells[name] or "") for name in columns]
        text = ",".join(values)
        if line.trouble == "broken":
            variants = (",".join(values[:-1]), text + ",", '"' + text.replace('"', ""))
            text = variants[line.detail % len(variants)]
        texts.append(text)
    return texts


def _quote_csv(text: str) -> str:
    if any(mark in text for mark in ',"'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _parquet_bytes(lines: list[Line], file_number: int) -> bytes:
    rows: list[dict] = []
    if file_number == _PARQUET_OF_STRINGS_FILE:
        types = dict.fromkeys(_FIELDS, pa.string())
        for line in lines:
            rows.append(_text_cells(line, file_number))
            if line.trouble == "broken":
                rows[-1]["amount"] = ""
    else:
        types = _PARQUET_TYPES
        for line in lines:
            rows.append({name: getattr(line, name) for name in _FIELDS})
            # A typed column cannot hold a bad number or half a record; it can hold nothing.
            if line.trouble not in (None, "future"):
                rows[-1][_REQUIRED[line.detail % len(_REQUIRED)]] = None
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
