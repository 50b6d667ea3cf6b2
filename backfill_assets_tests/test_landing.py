"""Reading landing files of every kind, whole and broken, against the model and by hand."""

# One case a line, however long; timestamps without a zone are cases too.
# ruff: noqa: E501, DTZ001

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill_assets.calendar.partitions import Window
from backfill_assets.landing import files as reading
from backfill_assets.landing.files import LandingFiles, probe_files, read_lines
from backfill_assets.landing.formats import Control
from backfill_assets.landing.listing import LandingError
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.transforms.raw_rows import read_versions
from backfill_assets_tests.helpers.orders_model import run_model
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

ZONE = "Asia/Tokyo"
DAY = date(2024, 1, 2)
WINDOW = Window(date(2024, 1, 2), date(2024, 1, 6))
STAMP = "2024-01-02T10:00:00Z"
#: Digits as only an attacker, or a fault, would send them.
MANY, ZEROS = "7" * 500_000, "0" * 500_000
GOOD = {
    "order_id": "o1",
    "customer_id": "c1",
    "order_ts": STAMP,
    "amount": "1.50",
    "ingestion_ts": STAMP,
}
O1 = ("o1", "c1", "1.50")
MARK = b"\xef\xbb\xbf"
HEADER = b"order_id,customer_id,order_ts,amount,ingestion_ts"


def json_line(**fields: object) -> bytes:
    return json.dumps({**GOOD, **fields}, ensure_ascii=False).encode()


def json_line_with(name: str, value: str) -> bytes:
    """A line in which one field's JSON is as given."""
    rest = ", ".join(f'"{n}": "{v}"' for n, v in GOOD.items() if n != name)
    return f'{{{rest}, "{name}": {value}}}'.encode()


def csv_record(order_id: str = "o1", customer_id: str = "c1", amount: str = "1.50") -> bytes:
    return f"{order_id},{customer_id},{STAMP},{amount},{STAMP}".encode()


# A line, and (order_id, customer_id, amount) or None where it is rejected.
JSON_LINES: list[tuple[bytes, tuple[str, str | None, str] | None]] = [
    (json_line(), O1),
    (b" \t" + json_line() + b" \t", O1),
    (json_line(extra={"order_id": 5, "a": [1, {"b": None}]}, other="x"), O1),
    (json_line(customer_id=None), ("o1", None, "1.50")),
    # A name in another case, if it is the only one.
    (json_line_with("customer_id", 'null, "CUSTOMER_ID": "c2"'), ("o1", None, "1.50")),
    (json_line().replace(b"customer_id", b"CUSTOMER_ID"), O1),
    (json_line(CUSTOMER_id="c2").replace(b"customer_id", b"CUSTOMER_ID"), None),
    (json_line().replace(b"amount", b"Amount").replace(b'"1.50"', b"9007199254740993.01"), ("o1", "c1", "9007199254740993.01")),
    (json_line(customer_id=""), ("o1", None, "1.50")),
    (b'{"order_id":"o1","order_ts":"%b","amount":1,"ingestion_ts":"%b"}' % ((STAMP.encode(),) * 2), ("o1", None, "1.00")),
    (json_line(order_id="\u00fc\U0001f600\u2028\x7f", customer_id="\ufeffc"), ("\u00fc\U0001f600\u2028\x7f", "\ufeffc", "1.50")),
    (json_line_with("order_id", r'"\ud83d\ude00\u0041\n\"\\"'), ('\U0001f600A\n"\\', "c1", "1.50")),
    (b'{"order\\u005fid":"o1",' + json_line()[1:], O1),
    # The last of a key that comes twice.
    (b'{"order_id":"first","amount":7,' + json_line()[1:], O1),
    # Identifiers: strings and whole numbers, as they are written.
    (json_line(order_id=" o1 "), (" o1 ", "c1", "1.50")),
    (json_line(order_id="true"), ("true", "c1", "1.50")),
    (json_line(order_id="{}"), ("{}", "c1", "1.50")),
    (json_line(order_id="[1]", customer_id="1.5"), ("[1]", "1.5", "1.50")),
    (json_line(order_id="007", customer_id="-0"), ("007", "-0", "1.50")),
    (json_line_with("order_id", "42"), ("42", "c1", "1.50")),
    (json_line_with("order_id", "-0"), ("-0", "c1", "1.50")),
    (json_line_with("order_id", "9223372036854775808"), ("9223372036854775808", "c1", "1.50")),
    (json_line_with("order_id", "1" * 60), ("1" * 60, "c1", "1.50")),
    *((json_line_with("order_id", x), (x.strip(), "c1", "1.50")) for x in ("0", "9" * 18, "9" * 19, "12 ", "-5")),
    (json_line_with("customer_id", "0"), ("o1", "0", "1.50")),
    *((json_line_with("order_id", x), None) for x in ("null", '""', "true", "false", "1.0", "1.50", "1e3", "-1E3", "12345678901234567890.0", "{}", '{"a":1}', "[]", '["o1"]', "007", "+1", "o1", "'o1'")),
    *((json_line_with("customer_id", x), None) for x in ("true", "1.0", "1e3", '{"id":"c1"}', '["c1"]', "NaN")),
    (json_line_with("customer_id", r'"c\ud800"'), None),
    (json_line_with("order_id", r'"o\udc00"'), None),
    (json_line_with("customer_id", r'"c\\ud800"'), ("o1", r"c\ud800", "1.50")),
    (json_line_with("note", r'"\ud800"'), O1),
    # Amounts: exact, whatever a double would make of them.
    (json_line_with("amount", "1.50"), O1),
    (json_line_with("amount", "1.500"), O1),
    (json_line_with("amount", "-0.00"), ("o1", "c1", "0.00")),
    (json_line_with("amount", "1e3"), ("o1", "c1", "1000.00")),
    (json_line_with("amount", "-15E-1"), ("o1", "c1", "-1.50")),
    (json_line_with("amount", '"15e-1"'), O1),
    (json_line_with("amount", "9999999999999999.99"), ("o1", "c1", "9999999999999999.99")),
    (json_line_with("amount", "9007199254740993.01"), ("o1", "c1", "9007199254740993.01")),
    # With seven digits, and with eight, before the point: a double writes those with an exponent.
    *((json_line_with("amount", x), ("o1", "c1", x.strip())) for x in ("9999999.99", "-9999999.99", "9999999.99 ", "10000000.01", "-12345678.90", "0.01")),
    (json_line_with("amount", "1.50000000"), O1),
    (json_line_with("amount", '7, "amount": 9007199254740993.01'), ("o1", "c1", "9007199254740993.01")),
    (json_line_with("amount", '9007199254740993.01, "amount": 7'), ("o1", "c1", "7.00")),
    (json_line_with("amount", "0.10" + "0" * 60), ("o1", "c1", "0.10")),
    (json_line_with("amount", '1e2, "items": [{"amount": 3}, {"amount": 5e1}]'), ("o1", "c1", "100.00")),
    (json_line_with("amount", r'1e2, "note": "\"amount\": 7"'), ("o1", "c1", "100.00")),
    *((json_line_with("amount", x), None) for x in ("null", '""', "true", "{}", "[1]", "12.345", "0.1000000000000000055511151231257827", "99999999999999999999999999999999999999.5", "1e400", "1e-400", "1e16", "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "5.", "1_0", '"1,50"', '" 1"', '"1\\n"', '"NaN"')),
    # Numbers of half a million digits take no longer than other lines of that length.
    *((json_line_with("amount", x), None) for x in (MANY, f'"{MANY}"', f'"{MANY}x"', f'"1.5{ZEROS}"', f"1.5{ZEROS}", f'"{ZEROS}1"', f'"1e{MANY}"', f"1e-{MANY}")),
    (json_line_with("order_ts", f'"2024-01-02T10:00:00.{MANY}x"'), None),
    # Timestamps are strings.
    *((json_line_with("order_ts", x), None) for x in ("null", '""', "20240102", "1704189600", "true", "{}", f'["{STAMP}"]', f'"{STAMP}\\n"')),
    # Lines that are no order, or more than one.
    (b"{", None),
    (b"{}", None),
    (b"[]", None),
    (b"null", None),
    (b'"text"', None),
    (b'""', None),
    (b"17", None),
    (b"// comment", None),
    (b"[" + json_line() + b"]", None),
    (json_line()[:-1], None),
    (json_line()[:-1] + b",}", None),
    (json_line() + b"}", None),
    (json_line() + b"]", None),
    (json_line() + b",", None),
    (json_line() + b" x", None),
    (json_line() + json_line(), None),
    (json_line() + b" " + json_line(), None),
    (json_line() + b"," + json_line(), None),
    (json_line() + b',"x":' + json_line(), None),
    (json_line() + b',"closed":true', None),
    (json_line() + b',"closed":true}', None),
    (json_line() + b'],"closed":true}' + json_line(), None),
    (json_line().replace(b'"', b"'"), None),
    (b'{"extra":' + b"[" * 3000 + b"]" * 3000 + b"," + json_line()[1:], None),
    (b"[" * 5000, None),
    # Bytes that are no text, and characters that JSON wants escaped.
    (json_line().replace(b"c1", b"c\xff"), None),
    (json_line().replace(b"c1", b"c\xed\xa0\x80"), None),
    (json_line().replace(b"c1", b"c\xc0\xaf"), None),
    (json_line().replace(b"c1", b"c\xe4")[:-40], None),
    (json_line(note=1)[:-1] + b',"x":"\xf0\x9f\x98"}', None),
    (json_line().replace(b"c1", b"c\t1"), None),
    (json_line().replace(b"c1", b"c\x001"), None),
    (json_line().replace(b"c1", b"c\x0b1"), None),
    (b"\x0b" + json_line(), None),
    (b"\xc2\xa0" + json_line(), None),
    (b"\x00", None),
    (b"\xef", None),
    (b"\xef\xbb", None),
    (b"\xff\xfe", None),
]  # fmt: skip

RECORDS: list[tuple[bytes, tuple[str, str | None, str] | None]] = [
    (csv_record(), O1),
    (csv_record(customer_id=""), ("o1", None, "1.50")),
    (csv_record(customer_id='""'), ("o1", None, "1.50")),
    (csv_record(" o1 ", " "), (" o1 ", " ", "1.50")),
    (csv_record("007", "null"), ("007", "null", "1.50")),
    (csv_record("#1"), ("#1", "c1", "1.50")),
    (csv_record("o\\", "\\N"), ("o\\", "\\N", "1.50")),
    (csv_record("o\x00", "c'1'"), ("o\x00", "c'1'", "1.50")),
    (csv_record("\u00fc\U0001f600", "c\u2028\x85"), ("\u00fc\U0001f600", "c\u2028\x85", "1.50")),
    (csv_record('"o1"', '"c1"', '"1.50"'), O1),
    (csv_record('"o,1"', '"say ""c"""'), ("o,1", 'say "c"', "1.50")),
    (csv_record('""""', '",,"'), ('"', ",,", "1.50")),
    (csv_record(amount="1e3"), ("o1", "c1", "1000.00")),
    (csv_record("o1", "x" * 200_000), ("o1", "x" * 200_000, "1.50")),
    (csv_record(""), None),
    (csv_record(amount=""), None),
    (csv_record(amount=" 1"), None),
    (csv_record(amount='"1,50"'), None),
    (csv_record(amount=MANY), None),
    (csv_record(amount=f"{MANY}x"), None),
    (csv_record(amount=f"1.5{ZEROS}"), None),
    # Quotes out of place.
    (csv_record('"x"y'), None),
    (csv_record('x"y'), None),
    (csv_record('x""y'), None),
    (csv_record('""x'), None),
    (csv_record('x"'), None),
    (csv_record('"x" '), None),
    (csv_record(' "x"'), None),
    (csv_record('"x"\u2028'), None),
    # Spark's parser would drop it.
    (csv_record('"o\x001"'), None),
    # Too many fields and too few.
    (csv_record() + b",", None),
    (csv_record() + b",x,y", None),
    (b",".join(csv_record().split(b",")[:4]), None),
    (b"o1", None),
    (b",,,,", None),
    (b"," * 25_000, None),
    (csv_record().replace(b"c1", b"c\xff"), None),
    (b"\xef\xbb", None),
]  # fmt: skip


# The same with line breaks in quotes, as the writers of Python and Excel make them.
MULTILINE: list[tuple[bytes, tuple[str, str | None, str] | None]] = [
    (csv_record("m0"), ("m0", "c1", "1.50")),
    (csv_record('"m\n1"'), ("m\n1", "c1", "1.50")),
    (csv_record("m2", '"a\r\n \t\r\n\n""\r, b"'), ("m2", 'a\r\n \t\r\n\n"\r, b', "1.50")),
    # What looks like a record, or like the header, is text.
    (csv_record("m3", f'"x\n{csv_record("m4").decode()}\ny"'), ("m3", f"x\n{csv_record('m4').decode()}\ny", "1.50")),
    (csv_record("m5", f'"x\n{HEADER.decode()}\n"'), ("m5", f"x\n{HEADER.decode()}\n", "1.50")),
    (csv_record("m6\x00", "\u00fc\U0001f600"), ("m6\x00", "\u00fc\U0001f600", "1.50")),
    (csv_record("m7", '"a\nb"', "1,50"), None),
    (csv_record("m8", '"a\nb"', "x"), None),
    (csv_record("m9", '"a\nb"').replace(b"a", b"\xff"), None),
    (csv_record("m10").replace(b"c1", b"c\xff"), None),
    (csv_record("m11", '"a\n\x00b"'), None),
    (csv_record('"x"y'), None),
]  # fmt: skip


def orders_table(count: int = 2, **columns: object) -> pa.Table:
    """A table of orders, all strings unless a column is given."""
    cells = {name: [value] * count for name, value in GOOD.items()}
    cells["order_id"] = [f"p{n}" for n in range(count)]
    return pa.table({n: c for n, c in {**cells, **columns}.items() if c is not None})


MOMENTS = [datetime(2024, 1, 2, 10, 0, 0, 123456), datetime(2024, 1, 2, 11)]
NANOS = [1704189600123456789, -1]
DAYS = [date(2024, 1, 2), date(1969, 12, 31)]


def moment_columns(kind: pa.DataType, values: list = MOMENTS) -> dict[str, pa.Array]:
    column = pa.array(values, kind)
    return {"order_ts": column, "ingestion_ts": column}


def decimal_array(*values: str, precision: int = 38, scale: int = 4) -> pa.Array:
    return pa.array([Decimal(x) for x in values], pa.decimal128(precision, scale))


# A Parquet file and the (order_id, customer_id, amount) of its accepted rows.
PARQUET: dict[str, tuple[pa.Table, list[tuple[str, str | None, str]]]] = {
    "strings": (orders_table(), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "no-rows": (orders_table(0), []),
    "decimal": (orders_table(3, amount=decimal_array("12.3400", "12.3450", "-0.0000")), [("p0", "c1", "12.34"), ("p2", "c1", "0.00")]),
    "decimal-limit": (orders_table(amount=decimal_array("9999999999999999.99", "10000000000000000", scale=2)), [("p0", "c1", "9999999999999999.99")]),
    "double": (orders_table(5, amount=[12.34, 0.1 + 0.2, float("nan"), None, 1e15]), [("p0", "c1", "12.34"), ("p4", "c1", "1000000000000000.00")]),
    "float": (orders_table(amount=pa.array([12.34, float("inf")], pa.float32())), [("p0", "c1", "12.34")]),
    "integers": (orders_table(order_id=[1, 2], customer_id=pa.array([7, None], pa.uint64()), amount=pa.array([5, -5], pa.int8())), [("1", "7", "5.00"), ("2", None, "-5.00")]),
    "ids-decimal": (orders_table(order_id=decimal_array("1", "22", scale=0), customer_id=decimal_array("5", "6", scale=1)), []),
    "id-decimal": (orders_table(order_id=decimal_array("1", "22", scale=0)), [("1", "c1", "1.50"), ("22", "c1", "1.50")]),
    "id-boolean": (orders_table(order_id=[True, False]), []),
    "id-binary": (orders_table(order_id=[b"a", b"b"]), []),
    # As pandas writes a column of numbers and nulls; whole it was, but that is not what it says.
    "customer-double": (orders_table(customer_id=[1.0, None]), [("p1", None, "1.50")]),
    "customer-null": (orders_table(customer_id=pa.nulls(2)), [("p0", None, "1.50"), ("p1", None, "1.50")]),
    "customer-nested": (orders_table(customer_id=[{"id": "c"}, {"id": "d"}]), []),
    "amount-boolean": (orders_table(amount=[True, False]), []),
    "dictionary": (orders_table(customer_id=pa.array(["c", None]).dictionary_encode(), amount=pa.array(["2", "3"], pa.large_string())), [("p0", "c", "2.00"), ("p1", None, "3.00")]),
    "micros-utc": (orders_table(**moment_columns(pa.timestamp("us", "UTC"))), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "micros-tokyo": (orders_table(**moment_columns(pa.timestamp("us", "Asia/Tokyo"))), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "micros-naive": (orders_table(**moment_columns(pa.timestamp("us"))), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "millis": (orders_table(**moment_columns(pa.timestamp("ms"), [MOMENTS[1], datetime(1, 1, 1)])), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "nanos-naive": (orders_table(**moment_columns(pa.timestamp("ns"), NANOS)), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "nanos-utc": (orders_table(3, **moment_columns(pa.timestamp("ns", "UTC"), [*NANOS, None])), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "int96": (orders_table(**moment_columns(pa.timestamp("ns"), [NANOS[0], 1704189600000000001])), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "micros-too-late": (orders_table(**moment_columns(pa.timestamp("us"), [253402300800000000, 0])), [("p1", "c1", "1.50")]),
    "dates": (orders_table(**moment_columns(pa.date32(), DAYS)), [("p0", "c1", "1.50"), ("p1", "c1", "1.50")]),
    "timestamps-integer": (orders_table(**moment_columns(pa.int64(), NANOS)), []),
    "timestamps-time": (orders_table(**moment_columns(pa.time64("us"), [0, 1])), []),
    "no-customer": (orders_table(customer_id=None), [("p0", None, "1.50"), ("p1", None, "1.50")]),
    "no-amount": (orders_table(amount=None), []),
    "other-columns": (pa.table({"x": [1, 2]}), []),
    "other-case": (orders_table(order_id=None, Order_ID=["a", "b"], customer_id=None, CUSTOMER_ID=["c", None]), [("a", "c", "1.50"), ("b", None, "1.50")]),
    # Columns that are none of ours, some of which Spark cannot read at all.
    "extra": (
        orders_table(
            **{
                "nested": [{"amount": 1}, None],
                "list": [[1, 2], []],
                "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
                "half": pa.array([1.0, 2.0], pa.float16()),
                "time": pa.array([1, 2], pa.time64("ns")),
                "bytes": [b"\xff", b""],
                "huge": pa.array([Decimal(1), None], pa.decimal256(60, 0)),
                "duration": pa.array([1, 2], pa.duration("us")),
                "nanos": pa.array(NANOS, pa.timestamp("ns")),
                "_metadata": ["a", "b"],
                "odd `name`.with, marks": ["a", "b"],
                "twice": [1, 2],
                "TWICE": [3, 4],
                "touched": [1, 2],
                "text": ["x", "y"],
                "source_file": ["x", "y"],
                "arrival_date": ["x", "y"],
                "problem": ["x", "y"],
            }
        ),
        [("p0", "c1", "1.50"), ("p1", "c1", "1.50")],
    ),
}  # fmt: skip

# File names that a shell, a URL, a glob or a regular expression would take for something else.
NAMES = [
    "a b.jsonl",
    "part[1].jsonl",
    "p+q.jsonl",
    "50%41.jsonl",
    "%.jsonl",
    "n\u00e4\u4e16.jsonl",
    "{a,b}.json",
    "a\\b.json",
    "#a?b.json",
    "*.json",
    "it's.jsonl",
    "a&b=c;d.jsonl",
    "a..jsonl.csv.json",
    "line\nend.jsonl",
]


def make_folder(landing: Path, arrival: date = DAY) -> Path:
    path = landing / "orders" / f"arrival_date={arrival}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def csv_file(
    landing: Path, name: str, *lines: bytes, end: bytes = b"\n", arrival: date = DAY
) -> None:
    data = end.join(lines) + end
    (make_folder(landing, arrival) / name).write_bytes(
        gzip.compress(data) if name.endswith(".gz") else data
    )


def write_everything(landing: Path) -> None:
    """A landing in which every file can be read, and hardly one is plain."""
    day_folder = make_folder(landing)
    (day_folder / "lines.jsonl").write_bytes(b"\n".join(line for line, _ in JSON_LINES))
    csv_file(landing, "records.csv", HEADER, *(line for line, _ in RECORDS))
    for name, (content, _) in PARQUET.items():
        pq.write_table(
            content, day_folder / f"{name}.parquet", use_deprecated_int96_timestamps=name == "int96"
        )
    for n, name in enumerate(NAMES):
        (day_folder / name).write_bytes(json_line(order_id=f"name-{n}"))

    # Line ends, blank lines, byte-order marks, no line end at the end.
    (day_folder / "ends.jsonl").write_bytes(
        MARK
        + json_line(order_id="e1")
        + b"\r\n\r\n \t\r\n\x0b\x0c\n"
        + json_line(order_id="e2")
        + b"\r"
        + MARK
        + json_line(order_id="e3")
        + b"\n"
        + MARK
        + b"\n\r\r"
        + json_line(order_id="e4")
    )
    # Python would cut lines at these, Spark does not.
    odd = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    (day_folder / "not-ends.json").write_bytes(
        json_line(order_id="n1", note=odd[5:]) + b"\n" + odd.encode() + b"\n"
    )
    (day_folder / "empty.jsonl").write_bytes(b"")
    (day_folder / "empty.csv").write_bytes(b"")
    (day_folder / "empty.parquet").write_bytes(b"")
    (day_folder / "mark.jsonl").write_bytes(MARK)
    (day_folder / "mark.csv").write_bytes(MARK + b"\r\n")
    (day_folder / "blank.json").write_bytes(b"\n\r\n \n")
    (day_folder / "nothing.jsonl.gz").write_bytes(gzip.compress(b""))
    (day_folder / "nothing.csv.gz").write_bytes(gzip.compress(b""))
    (day_folder / "zipped.jsonl.gz").write_bytes(
        gzip.compress(MARK + json_line(order_id="z1") + b"\nno\n")
    )
    (day_folder / "zipped.json.gz").write_bytes(
        gzip.compress(json_line(order_id="z2") + b"\n") + gzip.compress(json_line(order_id="z3"))
    )

    for name in ("multiline.csv", "multiline.csv.gz"):
        texts = (line for line, _ in MULTILINE)
        csv_file(landing, name, MARK + HEADER, b"", *texts, MARK + HEADER, b"", end=b"\r\n")
    csv_file(landing, "multiline-header.csv", HEADER + b',"more\nof it"', csv_record("m12") + b",x")
    csv_file(landing, "zipped.csv.gz", MARK + HEADER, csv_record("z4"), end=b"\r\n")
    csv_file(landing, "header-only.csv", HEADER)
    (day_folder / "header-no-end.csv").write_bytes(HEADER)
    csv_file(landing, "header-late.csv", b"", b" \t", MARK + HEADER, csv_record("h1"), end=b"\r")
    csv_file(
        landing,
        "header-again.csv",
        MARK + HEADER,
        csv_record("h2"),
        HEADER,
        MARK + HEADER,
        csv_record("h3"),
    )
    csv_file(
        landing,
        "header-spaced.csv",
        b" order_id , customer_id,order_ts ,amount,\tingestion_ts",
        csv_record("h4"),
    )
    csv_file(
        landing,
        "header-quoted.csv",
        b'"order_id","customer_id","order_ts","amount","ingestion_ts"',
        csv_record("h5"),
    )
    csv_file(
        landing,
        "header-odd.csv",
        HEADER + b",a\x0bb\x0c\x1c\x1d\x1e\xc2\x85\xe2\x80\xa8",
        csv_record("h6") + b",x",
    )
    csv_file(
        landing,
        "header-latin.csv",
        HEADER + b",W\xe4hrung",
        csv_record("h7") + b",EUR",
        HEADER + b",W\xe4hrung",
        csv_record("h8") + b",\xa3",
    )
    csv_file(landing, "header-long.csv", HEADER + b",y" * 1_900, csv_record(), b"," * 25_004)
    csv_file(landing, "blank-then-header.csv", *[b" " * 99] * 700, HEADER, csv_record("h9"))
    csv_file(
        landing,
        "order.csv",
        b"ingestion_ts,extra,amount,order_ts,customer_id,order_id",
        f"{STAMP},x,2,{STAMP},c9,h10".encode(),
    )
    csv_file(
        landing,
        "no-customer.csv",
        b"order_id,order_ts,amount,ingestion_ts",
        f"h11,{STAMP},2,{STAMP}".encode(),
    )

    # Other days: early lines, lines of the day before the window and of its last day.
    for arrival, text in (
        (date(2024, 1, 1), "2024-01-01T15:00:00Z"),
        (date(2024, 1, 1), "2024-01-01T14:59:59Z"),
        (date(2024, 1, 3), "2024-01-03T15:00:00+00:00"),
        (date(2024, 1, 3), "2024-01-04T15:00:00Z"),
        (date(2024, 1, 3), "2019-01-01"),
        (date(2024, 1, 5), "2024-01-05T15:00:00Z"),
        (date(2024, 1, 6), "2024-01-06T00:00:00Z"),
    ):
        with (make_folder(landing, arrival) / "part-0.jsonl").open("ab") as file:
            file.write(json_line(order_ts=text, ingestion_ts=text) + b"\nrejected\n")

    # What is no order file.
    (day_folder / "_control.json").write_text('{"rows": "12", "amount": 3.50}')
    (day_folder / "_SUCCESS").write_bytes(b"")
    (day_folder / ".hidden.jsonl").write_bytes(json_line(order_id="hidden"))
    (day_folder / "_other.jsonl").write_bytes(json_line(order_id="hidden"))
    for name in ("a.jsonl.tmp", "b.csv.part", "c.jsonl.gz.tmp", "d.tmp"):
        (day_folder / name).write_bytes(json_line(order_id="hidden"))
    (day_folder / "_temporary").mkdir()
    (day_folder / "_temporary" / "a.jsonl").write_bytes(json_line(order_id="below"))
    for name in ("notes.txt", "a.JSONL", "a.csv.zip", "a.parquet.gz", "jsonl", "a.csv\n", "b.xlsx"):
        (day_folder / name).write_bytes(json_line(order_id="unknown"))
    (day_folder / "sub.jsonl").mkdir()
    (day_folder / "sub.jsonl" / "a.jsonl").write_bytes(json_line(order_id="below"))


@pytest.fixture(scope="module")
def everything(spark, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The landing with everything in it, read by the pipeline's code and by the model."""
    landing = tmp_path_factory.mktemp("a landing %41+[x]")
    write_everything(landing)
    listed = probe_files(spark, str(landing), ORDER_LINES, WINDOW.widen_by(before=1))
    read = read_versions(read_lines(spark, listed, ORDER_LINES), ORDER_LINES, ZONE)
    columns = read.selectExpr(
        "log_date", "arrival_date", "source_file", "_text text", "_reason reason", "order_id", "customer_id",
        "unix_micros(order_ts) order_ts", "amount", "unix_micros(ingestion_ts) ingestion_ts",
    )  # fmt: skip
    rows = [row.asDict() for row in columns.collect()]
    model = run_model(landing, start=WINDOW.start, end=WINDOW.end, window_days=7, timezone=ZONE)
    return {"found": listed, "rows": rows, "model": model}


def to_micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def lines_per_day(listed: LandingFiles, days: Iterable[date]) -> dict[date, int]:
    """Lines by arrival day, by the count that knows nothing of parsing."""
    return {
        day: sum(
            n for name, n in listed.line_counts.items() if name.startswith(f"arrival_date={day}/")
        )
        for day in days
    }


def accepted_rows(everything: dict, name: str) -> Counter:
    return Counter(
        (row["order_id"], row["customer_id"], str(row["amount"]))
        for row in everything["rows"]
        if row["reason"] is None and row["source_file"] == f"arrival_date={DAY}/{name}"
    )


def rejected_rows(everything: dict, name: str) -> Counter:
    return Counter(
        row["text"]
        for row in everything["rows"]
        if row["reason"] is not None and row["source_file"] == f"arrival_date={DAY}/{name}"
    )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("lines.jsonl", JSON_LINES),
        ("records.csv", RECORDS),
        ("multiline.csv", MULTILINE),
        ("multiline.csv.gz", MULTILINE),
    ],
)
def test_lines_by_hand(everything: dict, name: str, lines: list) -> None:
    assert accepted_rows(everything, name) == Counter(x for _, x in lines if x is not None)
    assert rejected_rows(everything, name) == Counter(
        line.decode(errors="replace") for line, x in lines if x is None
    )


def test_parquet_by_hand(everything: dict) -> None:
    actual = {name: accepted_rows(everything, f"{name}.parquet") for name in PARQUET}
    assert actual == {name: Counter(rows) for name, (_, rows) in PARQUET.items()}
    rejected_counts = {
        name: rejected_rows(everything, f"{name}.parquet").total() for name in PARQUET
    }
    assert rejected_counts == {
        name: content.num_rows - len(rows) for name, (content, rows) in PARQUET.items()
    }


def test_a_rejected_parquet_row_is_kept_as_json(everything: dict) -> None:
    texts = rejected_rows(everything, "decimal.parquet")
    assert [json.loads(text) for text in texts] == [{**GOOD, "order_id": "p1", "amount": "12.3450"}]
    assert set(rejected_rows(everything, "other-columns.parquet")) == {'{"x":"1"}', '{"x":"2"}'}


def test_timestamps_of_parquet_are_exact(everything: dict) -> None:
    timestamps = {}
    for row in everything["rows"]:
        stem = row["source_file"].rpartition("/")[2].removesuffix(".parquet")
        if stem in PARQUET and row["reason"] is None:
            timestamps.setdefault(stem, {})[row["order_id"]] = row["order_ts"]
    first = 1704189600123456
    assert timestamps["micros-utc"] == timestamps["micros-tokyo"] == timestamps["micros-naive"]
    assert timestamps["micros-utc"] == {"p0": first, "p1": 1704193200000000}
    # Digits beyond the microsecond are cut off, before 1970 too.
    assert timestamps["nanos-naive"] == timestamps["nanos-utc"] == {"p0": first, "p1": -1}
    assert timestamps["int96"] == {"p0": first, "p1": 1704189600000000}
    assert timestamps["dates"] == {"p0": 1704153600000000, "p1": -86400000000}


def test_csv_headers_by_hand(everything: dict) -> None:
    expected = {"header-late.csv": "h1", "header-spaced.csv": "h4", "header-quoted.csv": "h5", "header-odd.csv": "h6", "blank-then-header.csv": "h9", "zipped.csv.gz": "z4", "multiline-header.csv": "m12"}  # fmt: skip
    for name, order_id in expected.items():
        assert accepted_rows(everything, name) == {(order_id, "c1", "1.50"): 1}, name
        assert not rejected_rows(everything, name), name
    assert accepted_rows(everything, "header-again.csv") == {
        ("h2", "c1", "1.50"): 1,
        ("h3", "c1", "1.50"): 1,
    }
    assert not rejected_rows(everything, "header-again.csv")
    assert accepted_rows(everything, "header-latin.csv") == {("h7", "c1", "1.50"): 1}
    assert len(rejected_rows(everything, "header-latin.csv")) == 1
    assert accepted_rows(everything, "order.csv") == {("h10", "c9", "2.00"): 1}
    assert accepted_rows(everything, "no-customer.csv") == {("h11", None, "2.00"): 1}
    counts = {"header-long.csv": 2, "header-only.csv": 0, "header-no-end.csv": 0, "empty.csv": 0, "mark.csv": 0, "nothing.csv.gz": 0}  # fmt: skip
    for name, count in counts.items():
        assert not accepted_rows(everything, name), name
        assert rejected_rows(everything, name).total() == count, name


@pytest.mark.slow
def test_a_header_of_almost_the_most_columns(spark, tmp_path: Path) -> None:
    """For each of its columns, Spark has work to do before it reads a record."""
    more = b",y" * 19_000
    csv_file(tmp_path, "a.csv", HEADER + more, csv_record() + more, csv_record(), b"," * 25_004)
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)
    read = read_versions(read_lines(spark, listed, ORDER_LINES), ORDER_LINES, ZONE)
    reasons = sorted(row[0] or "" for row in read.select("_reason").collect())
    assert reasons == ["", *["not 19005 fields as in the header"] * 2]


def test_json_files_by_hand(everything: dict) -> None:
    ids = {name: sorted(x[0] for x in accepted_rows(everything, name)) for name in ("ends.jsonl", "not-ends.json", "zipped.jsonl.gz", "zipped.json.gz")}  # fmt: skip
    assert ids == {
        "ends.jsonl": ["e1", "e2", "e3", "e4"],
        "not-ends.json": ["n1"],
        "zipped.jsonl.gz": ["z1"],
        "zipped.json.gz": ["z2", "z3"],
    }
    assert not rejected_rows(everything, "ends.jsonl")
    assert rejected_rows(everything, "zipped.jsonl.gz") == {"no": 1}
    assert rejected_rows(everything, "not-ends.json").total() == 1
    for n, name in enumerate(NAMES):
        assert accepted_rows(everything, name) == {(f"name-{n}", "c1", "1.50"): 1}, name


def test_everything_reads_as_in_the_model(everything: dict) -> None:
    rows, model, listed = everything["rows"], everything["model"], everything["found"]
    assert listed.broken == {}
    raw = Counter(
        tuple(row[n] for n in ("log_date", "arrival_date", "source_file", *ORDER_LINES.fields))
        for row in rows
        if row["reason"] is None and row["log_date"] in WINDOW
    )
    assert raw == Counter(
        (row["log_date"], row["arrival_date"], row["source_file"], row["order_id"], row["customer_id"],
         to_micros(row["order_ts"]), row["amount"], to_micros(row["ingestion_ts"]))
        for row in model.raw
    )  # fmt: skip
    # A Parquet row has no text of its own.
    unread = Counter(
        (row["source_file"], None if row["source_file"].endswith(".parquet") else row["text"])
        for row in rows
        if row["reason"] is not None and row["arrival_date"] in WINDOW
    )
    assert unread == Counter(
        (row["source_file"], None if row["source_file"].endswith(".parquet") else row["text"])
        for row in model.rejected
    )
    assert lines_per_day(listed, WINDOW) == model.landed
    early = Counter(
        row["arrival_date"]
        for row in rows
        if row["log_date"] and row["log_date"] > row["arrival_date"]
    )
    assert {d: early[d] for d in WINDOW} == model.early


def test_lines_are_conserved(everything: dict) -> None:
    """The count that knows nothing of parsing agrees with what parsing gives."""
    counts = Counter(row["arrival_date"] for row in everything["rows"])
    assert counts == lines_per_day(everything["found"], counts)
    assert all(row["text"] is not None for row in everything["rows"] if row["reason"])


def test_what_is_no_order_file_is_left_alone(everything: dict) -> None:
    listed = everything["found"]
    names = {name.rpartition("/")[2] for name in listed.unknown_files[DAY]}
    assert names == {
        "notes.txt",
        "a.JSONL",
        "a.csv.zip",
        "a.parquet.gz",
        "jsonl",
        "a.csv\n",
        "b.xlsx",
        "sub.jsonl",
    }
    assert listed.controls == {DAY: Control(12, Decimal("3.50"))}
    assert listed.control_problems == {}
    assert not {"hidden", "unknown", "below"} & {row["order_id"] for row in everything["rows"]}


def test_names_with_a_colon(spark, tmp_path: Path) -> None:
    """Beside such a file, Hadoop's own file system cannot look for a checksum."""
    day_folder = make_folder(tmp_path)
    names = [f"T10:00:{n}.{kind}" for n, kind in enumerate(("jsonl", "csv", "parquet", "json.gz"))]
    (day_folder / names[0]).write_bytes(json_line())
    csv_file(tmp_path, names[1], HEADER, csv_record())
    pq.write_table(orders_table(1), day_folder / names[2])
    (day_folder / names[3]).write_bytes(gzip.compress(json_line()))
    found = probe_files(spark, str(tmp_path), ORDER_LINES, Window(DAY, DAY + timedelta(days=1)))
    assert found.broken == {}
    assert found.line_counts == {f"arrival_date={DAY}/{name}": 1 for name in names}
    read = read_versions(read_lines(spark, found, ORDER_LINES), ORDER_LINES, "UTC").collect()
    assert {row["source_file"] for row in read} == {*found.line_counts}
    assert all(row["_reason"] is None for row in read)


def test_broken_files_are_named_and_hide_no_other(spark, tmp_path: Path) -> None:
    day_folder = make_folder(tmp_path)
    good = json_line() + b"\n"
    many = b"".join(json_line(order_id=f"{n * 7919 % 99991}") + b"\n" for n in range(3000))
    whole = gzip.compress(many)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    pq.write_table(orders_table(5000), day_folder / "whole.parquet")
    footer = (day_folder / "whole.parquet").read_bytes()
    broken = {
        "a.json.gz": whole[:-9],
        "b b+%41.jsonl.gz": b"not gzip at all",
        "c.csv.gz": b"not gzip at all",
        "d.csv.gz": gzip.compress(HEADER + b"\n" + many)[: len(whole) // 2],
        "e.jsonl.gz": bytes(flipped),
        "f.parquet": b"garbage",
        "g.parquet": footer[:-20],
        "h.parquet": footer[:4] + b"\xff" * 200 + footer[204:],
    }
    for name, data in broken.items():
        (day_folder / name).write_bytes(data)
    twice = orders_table(1, customer_id=None, CUSTOMER_ID=["c1"], Customer_ID=["c2"])
    pq.write_table(twice, day_folder / "j.parquet")
    amounts = pa.table(
        [*orders_table(1).columns, pa.array(["1"])], [*orders_table(1).column_names, "Amount"]
    )
    pq.write_table(amounts, day_folder / "i.parquet")
    # Their names begin as that of a broken file does, or the other way round.
    for name in ("a.json", "a.jsonl", "c.csv", "zz.jsonl"):
        (day_folder / name).write_bytes(
            HEADER + b"\n" + csv_record() if name.endswith("csv") else good
        )
    (make_folder(tmp_path, date(2024, 1, 3)) / "a.json.gz").write_bytes(gzip.compress(good))

    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)

    assert sorted(file.name for file in listed.broken) == [*broken, "i.parquet", "j.parquet"]
    assert all(file.arrival_date == DAY and reason for file, reason in listed.broken.items())
    messages = listed.broken_by_day()[DAY]
    assert any(
        x.startswith(f"arrival_date={DAY}/a.json.gz (LandingError: broken gzip: it ends in")
        for x in messages
    )
    assert any("i.parquet" in x and "more than one column is named amount" in x for x in messages)
    assert any("j.parquet" in x and "is named customer_id" in x for x in messages)
    assert date(2024, 1, 3) not in listed.broken_by_day()
    lines = Counter(
        row[0]
        for frame in read_lines(spark, listed, ORDER_LINES)
        for row in frame.select("source_file").collect()
    )
    rest = {"a.json": 1, "a.jsonl": 1, "c.csv": 1, "zz.jsonl": 1, "whole.parquet": 5000}
    assert lines == {
        **{f"arrival_date={DAY}/{name}": count for name, count in rest.items()},
        "arrival_date=2024-01-03/a.json.gz": 1,
    }
    assert lines_per_day(listed, (DAY, date(2024, 1, 3))) == {DAY: 5004, date(2024, 1, 3): 1}


def test_a_csv_file_without_the_header_of_orders_is_broken(spark, tmp_path: Path) -> None:
    """Its first line would be lost, and all others rejected for want of fields."""
    lines = [csv_record("first"), csv_record("second")]
    all_of_them = "its first line is not a header with order_id, order_ts, amount, ingestion_ts"
    broken = {
        "missing.csv": (lines, all_of_them),
        "blank-first.csv": ([b"", *lines], all_of_them),
        "zipped.csv.gz": (lines, all_of_them),
        "no-amount.csv": (
            [b"order_id,customer_id,order_ts,ingestion_ts", b"o,c,,"],
            "its first line is not a header with amount",
        ),
        "renamed.csv": (
            [HEADER.replace(b"order_id", b"id"), *lines],
            "its first line is not a header with order_id",
        ),
        "quote.csv": ([csv_record('"x'), *lines], "its first line is not a header: unexpected end"),
        "quoted.csv": ([HEADER + b',"x', *lines], "its first line is not a header: unexpected end"),
        "long.csv": ([b"x" * 200_000, b"order"], "its first line is not a header: field larger"),
        "twice.csv": ([HEADER + b",amount", *lines], "more than one column is named amount"),
        "wide.csv": ([HEADER + b",y" * 25_000, *lines], "its header has 25005 columns, more"),
    }
    for name, (content, _) in broken.items():
        csv_file(tmp_path, name, *content)
    csv_file(tmp_path, "whole.csv", HEADER, *lines)
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)
    assert {file.name for file in listed.broken} == broken.keys()
    for file, reason in listed.broken.items():
        assert reason.startswith(f"LandingError: {broken[file.name][1]}"), file.name
        assert len(reason) < 400
    renamed, cut = ((HEADER.replace(b"order_id", b"id").decode()), "x" * 120)
    reasons = {file.name: reason for file, reason in listed.broken.items()}
    assert reasons["renamed.csv"].endswith(f"with order_id: it is {renamed}")
    assert f": it is {cut}" in reasons["long.csv"]
    assert [file.name for file in listed.files] == ["whole.csv"]
    # The model, which knows of no width that is too much, says the same.
    for name in broken.keys() - {"wide.csv"}:
        alone = tmp_path / "alone" / name
        (make_folder(alone) / name).write_bytes((make_folder(tmp_path) / name).read_bytes())
        with pytest.raises(OSError, match="no header of orders"):
            run_model(alone, start=DAY, end=WINDOW.end, window_days=7, timezone=ZONE)


def test_a_csv_file_whose_quotes_are_not_sure_is_broken(spark, tmp_path: Path) -> None:
    """A quote that is out of place may begin text that is none: lines would be lost in it."""
    lines = [csv_record(f"{n}") for n in range(9)]
    stray = csv_record("stray", '"x')
    broken = {
        "no-end.csv": [*lines, stray, *lines],
        "no-end.csv.gz": [*lines, stray, *lines],
        "no-end-of-last.csv": [*lines, stray],
        "end-out-of-place.csv": [*lines, stray, *lines, csv_record("o1", '"x"')],
        "long.csv": [*lines, csv_record("o1", f'"{"x" * 600}\n{"y" * 600}"')],
        "large.csv": [csv_record("o1", '"x\ny"'), *(csv_record("z" * 900) for _ in range(40))],
    }
    for name, content in broken.items():
        csv_file(tmp_path, name, HEADER, *content)
    csv_file(tmp_path, "whole.csv", HEADER, *lines, csv_record('"x"y'))
    limits = SizeLimits(max_line=1000, max_expanded=1 << 20, max_control=1000)
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW, limits=limits)
    reasons = {file.name: reason for file, reason in listed.broken.items()}
    assert reasons.keys() == broken.keys()
    text = "LandingError: it has text in quotes over several lines, "
    assert all(reason.startswith(text) for reason in reasons.values())
    assert "and more than 32,000 bytes (32 times BACKFILL_ASSETS_MAX_LINE)" in reasons["large.csv"]
    assert f": it is {stray.decode()}\\n" in reasons["no-end.csv"]
    assert listed.line_counts[f"arrival_date={DAY}/whole.csv"] == 10
    assert [file.name for file in listed.files] == ["whole.csv"]


def test_a_folder_has_only_so_many_headers(spark, tmp_path: Path, monkeypatch) -> None:
    """Spark could not plan a reading of its own for each of thousands."""
    monkeypatch.setattr(reading, "_MOST_KINDS", 3)
    for n in range(4):
        for name in (f"{n}.csv", f"{n}-again.csv"):
            csv_file(tmp_path, name, HEADER + b",more%d" % n, csv_record() + b",x")
    pq.write_table(orders_table(2), make_folder(tmp_path) / "z.parquet")
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)
    assert [file.name for file in listed.broken] == ["3-again.csv", "3.csv", "z.parquet"]
    assert {*listed.broken.values()} == {"LandingError: its folder has more than 3 headers"}
    assert sum(listed.line_counts.values()) == len(listed.files) == 6


def test_a_file_name_that_is_no_text_is_a_broken_file(spark, tmp_path: Path) -> None:
    odd = bytes(make_folder(tmp_path)) + b"/\xff.jsonl"
    try:
        Path(odd.decode(errors="surrogateescape")).write_bytes(json_line())
    except OSError:
        pytest.skip("this file system takes no such name")
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)
    assert listed.broken_by_day()[DAY] == [
        f"arrival_date={DAY}/(a file whose name is not UTF-8) (rename it)"
    ]


def test_without_an_orders_folder_nothing_is_read(spark, tmp_path: Path) -> None:
    for landing in (tmp_path, tmp_path / "not there"):
        with pytest.raises(LandingError, match="BACKFILL_ASSETS_LANDING"):
            probe_files(spark, str(landing), ORDER_LINES, WINDOW)
    (tmp_path / "orders").write_text("a file")
    with pytest.raises(LandingError, match="no folder"):
        probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)


def test_days_without_files_are_empty(spark, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    make_folder(tmp_path)
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, WINDOW)
    assert (listed.files, listed.line_counts, listed.broken) == ([], {}, {})
    lines = read_lines(spark, listed, ORDER_LINES)
    assert read_versions(lines, ORDER_LINES, "UTC").collect() == []


#: The text of a control file, and what it says, or None where it cannot be used.
CONTROLS: list[tuple[str, Control | None]] = [
    ('{"rows": 2, "amount": "3.50"}', Control(2, Decimal("3.5"))),
    ('\ufeff{"rows": 2.0, "amount": 3, "by": "shop"}', Control(2, Decimal(3))),
    ('{"rows": 0, "amount": 9007199254740993.01}', Control(0, Decimal("9007199254740993.01"))),
    ("", None),
    ("[2, 3]", None),
    ("null", None),
    ("{}", None),
    ('{"rows": 2}', None),
    ('{"rows": "two", "amount": 1}', None),
    ('{"rows": null, "amount": 1}', None),
    ('{"rows": 1.5, "amount": 1}', None),
    ('{"rows": [1], "amount": 1}', None),
    ('{"rows": Infinity, "amount": 1}', None),
    ('{"rows": NaN, "amount": 1}', None),
    ('{"rows": 1e999999999, "amount": 1}', None),
    ('{"rows": 1, "amount": "NaN"}', None),
    ('{"rows": 1, "amount": "1,50"}', None),
    ('{"rows": 1, "amount": 1} x', None),
    ("[" * 100_000, None),
    ('{"rows": 1, "amount": %s}' % ("7" * 3_000_000), None),
    ('{"rows": 1, "amount": %s}' % ("7" * 900_000), None),
    ('{"rows": 1, "amount": "1.%s"}' % ("0" * 900_000), None),
    ('{"rows": %s, "amount": 1}' % ("7" * 900_000), None),
    ('{"rows": 1, "amount": 1e999999999}', None),
    ('{"%s": 1}' % ("x" * 900_000), None),
    ("\udcff", None),
]


def test_control_files(spark, tmp_path: Path) -> None:
    """Each of a day of its own, as one file says nothing of another day."""
    control_days = [DAY + timedelta(days=n) for n in range(len(CONTROLS) + 1)]
    for arrival, (text, _) in zip(control_days, CONTROLS, strict=False):
        path = make_folder(tmp_path, arrival) / "_control.json"
        path.write_bytes(text.encode(errors="surrogateescape"))
    (make_folder(tmp_path, control_days[-1]) / "_control.json").mkdir()
    window = Window(DAY, control_days[-1] + timedelta(days=1))
    listed = probe_files(spark, str(tmp_path), ORDER_LINES, window)
    expected = dict(zip(control_days, [control for _, control in CONTROLS] + [None], strict=True))
    assert listed.controls == {d: control for d, control in expected.items() if control}
    assert {*listed.control_problems} == {d for d, control in expected.items() if not control}
    for arrival, problem in listed.control_problems.items():
        assert "_control.json" in str(problem), arrival
        assert len(str(problem)) < 1000, arrival


# --- through the pipeline -----------------------------------------------------------------------

RAW_STEP = ["raw_orders", "raw_orders_rejected"]


def day_keys(*days: int) -> set[str]:
    return {str(day(n)) for n in days}


def conservation_checks(
    result: dg.ExecuteInProcessResult, name: str = "raw_orders"
) -> dict[str, dg.AssetCheckEvaluation]:
    return {
        check.partition: check
        for check in result.get_asset_check_evaluations()
        if check.asset_key == dg.AssetKey(name) and check.check_name == "conservation"
    }


def test_a_broken_file_and_a_control_file_that_disagrees_fail_their_days(
    pipeline: Pipeline,
) -> None:
    controls = {
        6: '{"rows": 1, "amount": "10.00"}',
        7: '{"rows": 2, "amount": "10.00"}',
        8: '{"rows": 1, "amount": "10.01"}',
        9: "rows=1",
        11: '{"rows": 0, "amount": 0}',
        12: '{"rows": 1, "amount": "10.00"}',
    }
    for n in range(1, 11):
        # A rejected line is none of the orders that the source counts.
        pipeline.land(n, [order(f"o{n}", n), "rejected"])
    whole = gzip.compress(json.dumps(order("late", 3, ingested=f"{day(4)}T01:00:00Z")).encode())
    broken = pipeline.folder(3) / "part 1.jsonl.gz"
    broken.write_bytes(whole[:-12])
    for n, text in controls.items():
        (pipeline.folder(n) / "_control.json").write_text(text)

    result = pipeline.run(1, 12, RAW_STEP, fails=True)

    # The broken file fails its day, and the next one says that lines of its may be lost.
    name = f"arrival_date={day(3)}/part 1.jsonl.gz"
    message = pipeline.failure(result)
    assert name in message
    assert all(str(day(n)) in message for n in (7, 8, 9, 12))
    loaded = day_keys(1, 2, 4, 5, 6, 10, 11)
    # The source's totals are about orders: what was rejected is on record.
    rejected = day_keys(1, 2, *range(4, 13))
    assert pipeline.materialized("raw_orders") == loaded
    assert pipeline.materialized("raw_orders_rejected") == rejected
    # On the 11th nothing landed but the file that says so, on the 12th not even that is so.
    with_orders = loaded - day_keys(11)
    assert {str(row["log_date"]) for row in pipeline.rows("raw_orders")} == with_orders
    with_rejects = rejected - day_keys(11, 12)
    assert {
        str(row["arrival_date"]) for row in pipeline.rows("raw_orders_rejected")
    } == with_rejects
    checks = conservation_checks(result)
    assert {k: (c.passed, c.severity.value) for k, c in checks.items()} == {
        **dict.fromkeys(loaded, (True, "ERROR")),
        **dict.fromkeys(day_keys(3, 7, 8, 9, 12), (False, "ERROR")),
        str(day(4)): (False, "WARN"),
    }
    assert name in checks[str(day(3))].description
    assert name in checks[str(day(4))].description
    assert "says 2 orders, 1 were read" in checks[str(day(7))].description
    assert "says 10.01 in total, 10.00 was read" in checks[str(day(8))].description
    assert "control.json is not" in checks[str(day(9))].description
    assert "says 1 orders, 0 were read" in checks[str(day(12))].description

    # Both are mended.
    broken.write_bytes(whole)
    (pipeline.folder(7) / "_control.json").write_text('{"rows": 1, "amount": 10}')
    mended = pipeline.run_days([day(3), day(4), day(7)], RAW_STEP)
    assert all(check.passed for check in conservation_checks(mended).values())
    assert pipeline.materialized("raw_orders") == loaded | day_keys(3, 7)
    assert pipeline.materialized("raw_orders_rejected") == rejected | day_keys(3)
    # The line was early: it is logged on the day after its file's.
    logged = sorted((str(row["log_date"]), row["order_id"]) for row in pipeline.rows("raw_orders"))
    numbers = (1, 2, 3, 4, 5, 6, 7, 10)
    assert logged == sorted([*((str(day(n)), f"o{n}") for n in numbers), (str(day(4)), "late")])
