"""The digest of rows in plain Python, from Arrow: what `audit.verdicts.measure_days` must give.

Spark hashes the values of a row one after the other with XXH64, each with the hash so far as its
seed, the first with 42 (`org.apache.spark.sql.catalyst.expressions.XxHash64Function`). A null
leaves the hash as it is; the digest hashes with each value whether it is null.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
from xxhash import xxh64_intdigest

_SEED = 42
_LOW = 2**32 - 1


def digests_by_day(rows: pa.Table, partition: str) -> dict[date, str]:
    """The digest of each day of a table that has rows, over the columns in their order."""
    columns = [(field.type, rows.column(field.name).to_pylist()) for field in rows.schema]
    hashes: defaultdict[date, list[int]] = defaultdict(list)
    for n, day in enumerate(rows.column(partition).to_pylist()):
        hashes[day].append(_hash_values(((kind, values[n]) for kind, values in columns), _SEED))
    suffix = "-nested" if any(pa.types.is_nested(kind) for kind, _ in columns) else ""
    return {day: _digest_text(day_hashes) + suffix for day, day_hashes in hashes.items()}


def _digest_text(hashes: Sequence[int]) -> str:
    high, low = sum(value >> 32 for value in hashes), sum(value & _LOW for value in hashes)
    return f"{len(hashes):x}-{high:x}-{low:x}"


def _hash_values(values: Iterable[tuple[pa.DataType, Any]], seed: int) -> int:
    """The hash of values, each followed by whether it is null."""
    for kind, value in values:
        # The fields of a struct that is null are null, and are hashed.
        if value is not None or pa.types.is_struct(kind):
            for part in _value_bytes(kind, value):
                seed = xxh64_intdigest(part, seed)
        seed = xxh64_intdigest(struct.pack("<i", value is None), seed)
    return seed


def _value_bytes(kind: pa.DataType, value: Any) -> Iterable[bytes]:
    """What Spark hashes of a value; the elements of a nested one by their own hashes."""
    if pa.types.is_struct(kind):
        fields = [[(field.type, (value or {}).get(field.name))] for field in kind]
        return [_long(_hash_values(field, _SEED)) for field in fields]
    if pa.types.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        entries = (
            _signed(_hash_values([(pair, {"key": key, "value": item})], _SEED))
            for key, item in value
        )
        return [struct.pack("<q", entry) for entry in sorted(entries)]
    if pa.types.is_list(kind):
        return [_long(_hash_values([(kind.value_type, element)], _SEED)) for element in value]
    return [_scalar_bytes(kind, value)]


def _scalar_bytes(kind: pa.DataType, value: Any) -> bytes:
    if pa.types.is_decimal(kind):
        unscaled = int(value.scaleb(kind.scale))
        if kind.precision <= 18:
            return struct.pack("<q", unscaled)
        length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(length, "big", signed=True)
    if pa.types.is_timestamp(kind):
        return struct.pack("<q", pa.scalar(value, pa.timestamp("us", kind.tz)).value)
    if pa.types.is_date(kind):
        return struct.pack("<i", (value - date(1970, 1, 1)).days)
    if pa.types.is_floating(kind):
        # -0.0 counts as 0.0, and all NaN as the same.
        return struct.pack("<d" if pa.types.is_float64(kind) else "<f", value + 0.0)
    if pa.types.is_int64(kind):
        return struct.pack("<q", value)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return struct.pack("<i", value)
    return value if isinstance(value, bytes) else str(value).encode()


def _long(unsigned: int) -> bytes:
    return struct.pack("<Q", unsigned)


def _signed(unsigned: int) -> int:
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned
