"""The SHA-256 of days of a table, without Spark and without `backfill_assets`.

`docs/reconciliation.md` has the rules. Times are of the years 1 to 9999.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import sha256
from itertools import groupby
from typing import Any

from deltalake import DeltaTable
from pyarrow import dataset

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def sha256_of_days(url: str, version: int, days: Iterable[date]) -> dict[date, str]:
    """By day, the SHA-256 of the rows that a version of a table has of it."""
    chosen_days = list(days)
    log = DeltaTable(url, version=version)
    (partition,) = log.metadata().partition_columns
    columns = [field.name for field in log.schema().fields]
    # Spark writes times as INT96, which Arrow would take for nanoseconds: years 1678 to 2262.
    options = dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    table = log.to_pyarrow_dataset(parquet_read_options=options)
    rows = table.to_table(columns=columns, filter=dataset.field(partition).isin(chosen_days))
    lines: dict[date, list[str]] = {day: [] for day in chosen_days}
    for row in rows.to_pylist():
        lines[row[partition]].append("\t".join(format_value(row[name]) for name in columns))
    return {day: hash_day(found) for day, found in lines.items()}


def hash_day(lines: Iterable[str]) -> str:
    """The SHA-256 of a day from the lines of its rows."""
    hashes = sorted(map(_hash_text, lines))
    groups = groupby(hashes, key=lambda digits: digits[:2])
    return _hash_text("\n".join(_hash_text("\n".join(group)) for _, group in groups))


def format_value(value: Any, nested: bool = False) -> str:
    """The text of a value, which may be within an array, a struct or a map."""
    if value is None:
        return r"\N"
    if isinstance(value, datetime):
        return str((value - _EPOCH) // timedelta(microseconds=1))
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return re.sub(r"\.?0*p", "p", (value + 0.0).hex())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict | tuple):  # a struct, or an entry of a map
        parts = value.values() if isinstance(value, dict) else value
        return f"{{{', '.join(format_value(part, nested=True) for part in parts)}}}"
    if isinstance(value, list):
        texts = [format_value(part, nested=True) for part in value]
        is_map = any(isinstance(part, tuple) for part in value)
        return f"[{', '.join(sorted(texts) if is_map else texts)}]"
    if isinstance(value, bool):
        return str(value).lower()
    escaped = str(value).translate(_ESCAPES)
    quoted = nested and isinstance(value, str)
    return '"' + escaped.replace('"', r"\"") + '"' if quoted else escaped


def _hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()
