"""Lines of a source that is not the orders: every type of field, in every format, good and bad."""

# One case a line, however long.
# ruff: noqa: E501

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pandera.pyspark as pa
import pyarrow as arrow
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, conserves_total, explode_json, table
from backfill_assets.assets.derived import derived_expectations
from backfill_assets.audit.verdicts import measure_days
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.landing import files as landing_files
from backfill_assets.landing.files import probe_files, read_lines
from backfill_assets.landing.formats import (
    TEXT,
    Control,
    careful_patterns,
    key_pattern,
    member_pattern,
    number_pattern,
)
from backfill_assets.landing.listing import LandingError, list_landing
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.columns import holds_json, json_column, nullable_column
from backfill_assets.tables.sources import Source
from backfill_assets.transforms.raw_rows import (
    accepted_rows,
    count_lines_by_file,
    parse_timestamp,
    read_versions,
    rejected_rows,
)
from backfill_assets_tests.helpers.invented_logs import ledger
from backfill_assets_tests.own_tables import ITEMS

DAY = date(2024, 1, 2)
STAMP = "2024-01-02T10:00:00Z"


class Visit(pa.DataFrameModel):
    """A visit of a web site."""

    visit_id: T.StringType = Field(description="Visit.")
    user_id: T.StringType = nullable_column(1.0, 1.0, "User.")
    at: T.TimestampType = Field(description="Begin.")
    seen_at: T.TimestampType = Field(description="When it was seen.")
    clicks: T.LongType = Field(ge=0, description="Clicks.")
    paid: T.DecimalType(10, 3) = nullable_column(1.0, 1.0, "Paid.")  # type: ignore[valid-type]
    logged_in: T.BooleanType = Field(description="Whether the user is known.")
    signed_up: T.DateType = nullable_column(1.0, 1.0, "When the user signed up.")
    properties: T.StringType = json_column("Anything else.", optional=True)


VISITS = Source("visits", Visit, key=["visit_id"], event_time="at", version_time="seen_at")

GOOD = {
    "visit_id": "v1",
    "user_id": "u1",
    "at": STAMP,
    "seen_at": STAMP,
    "clicks": 3,
    "paid": 1.5,
    "logged_in": True,
    "signed_up": "2020-02-29",
    "properties": {"page": "/", "seconds": [1, 2]},
}
#: How a good line is read.
READ = {
    "visit_id": "v1",
    "user_id": "u1",
    "clicks": 3,
    "paid": Decimal("1.500"),
    "logged_in": True,
    "signed_up": date(2020, 2, 29),
    "properties": '{"page": "/", "seconds": [1, 2]}',
}

# A field as JSON, and its value or the reason of rejection.
JSON = [
    ("visit_id", "17", "17"),
    ("visit_id", '" x "', " x "),
    ("visit_id", "null", "missing visit_id"),
    ("visit_id", '""', "missing visit_id"),
    ("visit_id", "1.5", "bad visit_id: not a string"),
    ("user_id", "null", None),
    ("user_id", '""', None),
    ("user_id", "12345678901234567890", "12345678901234567890"),
    ("user_id", '{"id":1}', "bad user_id: not a string"),
    ("user_id", "[1]", "bad user_id: not a string"),
    ("user_id", "true", "bad user_id: not a string"),
    ("user_id", '"true"', "true"),
    ("user_id", r'"\ud800"', "half a surrogate pair"),
    ("at", '"yesterday"', "bad at: not a time as 2024-01-31T08:30:00Z"),
    ("at", "null", "missing at"),
    ("seen_at", "17", "bad seen_at: not a time as 2024-01-31T08:30:00Z"),
    ("clicks", "0", 0),
    ("clicks", "-0", 0),
    ("clicks", "9223372036854775807", 9223372036854775807),
    ("clicks", '"9223372036854775807"', 9223372036854775807),
    ("clicks", '"+7"', 7),
    ("clicks", "9223372036854775808", "bad clicks: not a whole number of 64 bits"),
    ("clicks", "12345678901234567890", "bad clicks: not a whole number of 64 bits"),
    ("clicks", "-1", "bad clicks"),
    ("clicks", '"-1"', "bad clicks"),
    *(("clicks", x, "bad clicks: not a whole number of 64 bits") for x in ("1.0", "1e3", "1e400", "true", "{}", "[3]", '" 3"', '"3\\n"', '"three"', r'"\ud800"')),
    ("clicks", "null", "missing clicks"),
    ("clicks", '""', "missing clicks"),
    ("paid", "null", None),
    ("paid", '""', None),
    ("paid", "1234567.891", Decimal("1234567.891")),
    ("paid", "-1234567.8910", Decimal("-1234567.891")),
    ("paid", '"1e6"', Decimal("1000000.000")),
    ("paid", "5e-3", Decimal("0.005")),
    ("paid", "0.0005", "bad paid: 4 decimals, 3 are kept"),
    *(("paid", x, "bad paid: not a number that decimal(10,3) holds, with a point for decimals") for x in ("12345678", "1e7", "true", "{}", '"NaN"', '"1,5"')),
    ("paid", r'"\ud800"', "half a surrogate pair"),
    ("logged_in", "false", False),
    ("logged_in", '"true"', True),
    *(("logged_in", x, "bad logged_in: not true or false") for x in ("0", "1", '"True"', '"yes"', "[true]", "{}")),
    ("logged_in", "null", "missing logged_in"),
    ("signed_up", "null", None),
    ("signed_up", '"0001-01-01"', date(1, 1, 1)),
    ("signed_up", '"9999-12-31"', date(9999, 12, 31)),
    *(("signed_up", x, "bad signed_up: not a date as 2024-01-31") for x in ('"0000-12-31"', '"10000-01-01"', '"2023-02-29"', '"2024-1-2"', '"2024-01-02T00:00"', '"2024-01"', "20240102", "true", '"2024-01-02\\n"', r'"\ud800"')),
    ("properties", "null", None),
    ("properties", "{}", "{}"),
    # As it is written: every digit, blank and escape.
    *(("properties", x, x) for x in ('[{"a": null}, "\u00e9"]', '[12345678901234567.89, 1e400, 1.10, -0.0, 1E+2]', r'{ "\u00e9" : "\/\"}{\ud800" }', "1.10", "1e400", "-0", "[" * 64 + "]" * 64)),
    ("properties", '1, "properties" :\t[ ] ', "[ ]"),
    ("properties", r'null, "pr\u006Fperties": {"properties": [1.0 ]}', '{"properties": [1.0 ]}'),
    # Also in a line with a number of many digits.
    ("properties", '[1.10 ], "paid": 1.50000000000000000000', "[1.10 ]"),
    ("properties", "[" * 65 + "]" * 65, "bad properties: nested more than 64 levels"),
    ("properties", r'"\ud800"', "half a surrogate pair"),
    ("properties", r'"{\"a\": \"\udc00\"}"', "half a surrogate pair"),
    # Half a pair of another field.
    ("user_id", r'null, "other": "\ud800"', None),
    ("paid", r'null, "other": ["\\\udc00"]', None),
    ("user_id", r'"\ud800", "other": "\\ud800"', "half a surrogate pair"),
    ("properties", r'"[\"\\ud83d\\ude00\"]"', r'["\ud83d\ude00"]'),
    ("properties", "17", "17"),
    ("properties", "true", "true"),
    # Numbers within are not put in quotes, nor taken for fields.
    ("properties", '{"visit_id": 5, "paid": 3, "clicks": -1}', '{"visit_id": 5, "paid": 3, "clicks": -1}'),
    # A string is JSON text already, as in CSV.
    ("properties", r'"{\"a\": 1.50}"', '{"a": 1.50}'),
    ("properties", '"text"', "bad properties: not JSON"),
    ("properties", '"{} x"', "bad properties: not JSON"),
    ("properties", '"1],[1"', "bad properties: not JSON"),
    ("properties", '"1,2] x"', "bad properties: not JSON"),
    ("properties", '"1,2"', "bad properties: not JSON"),
    ("properties", '"NaN"', "bad properties: not JSON"),
]  # fmt: skip

# The same as CSV cells.
CSV = [
    ("visit_id", "", "missing visit_id"),
    ("visit_id", "{}", "{}"),
    ("user_id", "", None),
    ("clicks", "-0", 0),
    ("clicks", "", "missing clicks"),
    ("clicks", "1.0", "bad clicks: not a whole number of 64 bits"),
    ("clicks", "-1", "bad clicks"),
    ("paid", "", None),
    ("paid", "1.2345", "bad paid: 4 decimals, 3 are kept"),
    ("logged_in", "false", False),
    ("logged_in", "TRUE", "bad logged_in: not true or false"),
    ("logged_in", "", "missing logged_in"),
    ("signed_up", "", None),
    ("signed_up", "02.01.2024", "bad signed_up: not a date as 2024-01-31"),
    ("properties", "", None),
    ("properties", '{"a": [1, "x"]}', '{"a": [1, "x"]}'),
    ("properties", "{'a': 1}", "bad properties: not JSON"),
    ("properties", f"[{', '.join(['1.10'] * 30_000)}]", f"[{', '.join(['1.10'] * 30_000)}]"),
    ("at", "", "missing at"),
    ("seen_at", "x", "bad seen_at: not a time as 2024-01-31T08:30:00Z"),
]

# A column of Parquet, and its two values or reasons.
PARQUET = [
    ("visit_id", arrow.array([1, 2]), ["1", "2"]),
    ("visit_id", arrow.array([1.0, 2.0]), ["bad visit_id: a column of type double"] * 2),
    ("user_id", arrow.array([{"a": 1}, None]), ["bad user_id: a column of type struct<a: int64>"] * 2),
    ("clicks", arrow.array([7, -1], arrow.int8()), [7, "bad clicks"]),
    ("clicks", arrow.array([2**63, 2**63 - 1], arrow.uint64()), ["bad clicks: not a whole number of 64 bits", 2**63 - 1]),
    ("clicks", arrow.array([1.0, None]), ["bad clicks: not a whole number of 64 bits", "missing clicks"]),
    ("clicks", arrow.array(["7", "x"]), [7, "bad clicks: not a whole number of 64 bits"]),
    ("paid", arrow.array([Decimal("1.2300"), Decimal("1.2345")], arrow.decimal128(12, 4)), [Decimal("1.230"), "bad paid: 4 decimals, 3 are kept"]),
    ("paid", arrow.array([0.1, None]), [Decimal("0.100"), None]),
    ("logged_in", arrow.array([False, None]), [False, "missing logged_in"]),
    ("logged_in", arrow.array(["true", "1"]), [True, "bad logged_in: not true or false"]),
    ("logged_in", arrow.array([0, 1]), ["bad logged_in: not true or false"] * 2),
    ("signed_up", arrow.array([date(1, 1, 1), None], arrow.date32()), [date(1, 1, 1), None]),
    ("signed_up", arrow.array([True, False]), ["bad signed_up: not a date as 2024-01-31"] * 2),
    ("at", arrow.array([datetime(2024, 1, 2, 10, tzinfo=timezone.utc), None], arrow.timestamp("us", "UTC")), ["v1", "missing at"]),
    ("properties", arrow.array([{"a": 1, "b": [None, "x"]}, None]), ['{"a":1,"b":[null,"x"]}', None]),
    ("properties", arrow.array([[1, None], []], arrow.list_(arrow.int64())), ["[1,null]", "[]"]),
    ("properties", arrow.array([[("k", 1.5)], []], arrow.map_(arrow.string(), arrow.float64())), ['{"k":1.5}', "{}"]),
    ("properties", arrow.array(['{"a": 1}', "text"]), ['{"a": 1}', "bad properties: not JSON"]),
    ("properties", arrow.array([1, None]), ["1", None]),
    ("properties", arrow.array([[b"a"], None], arrow.list_(arrow.binary())), ["bad properties: a column of type list<element: binary>"] * 2),
    ("properties", arrow.array([{"a": 1, "A": 2}, None]), ["bad properties: a column of type struct<a: int64, A: int64>"] * 2),
]  # fmt: skip


def json_line(name: str, value: str) -> str:
    rest = ", ".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in GOOD.items() if n != name)
    return f'{{{rest}, "{name}": {value}}}'


def csv_text() -> str:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    # In another order than the fields are declared, and with a column that is none.
    rows.writerow([*reversed(GOOD), "more"])
    texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in GOOD.items()}
    for name, value, _ in CSV:
        rows.writerow([*reversed({**texts, name: value}.values()), "x"])
    return out.getvalue()


def parquet_cells() -> dict[str, list]:
    return {n: [json.dumps(v) if n == "properties" else v] * 2 for n, v in GOOD.items()}


def parquet_table(name: str, column: arrow.Array) -> arrow.Table:
    return arrow.table({**parquet_cells(), name: column})


def line_without(name: str, other: str) -> str:
    """A good line with something else in place of a field, at its begin."""
    rest = {n: v for n, v in GOOD.items() if n != name}
    return f"{{{other}, {json.dumps(rest)[1:]}"


DEEP = "[" * 65 + "]" * 65

#: Lines whose keys differ from the fields in case, and how they are read.
NAMES = [
    (json.dumps({name.upper(): value for name, value in GOOD.items()}), READ),
    (line_without("user_id", '"User_ID": 12345678901234567890'), {**READ, "user_id": "12345678901234567890"}),
    (line_without("user_id", r'"USER\u005fI\u0044" : "u9"'), {**READ, "user_id": "u9"}),
    (line_without("properties", '"Properties": {"user_id": 1.10, "USER_ID": 2}'), {**READ, "properties": '{"user_id": 1.10, "USER_ID": 2}'}),
    (line_without("user_id", '"x": [{"user_id": "u8"}], "USER_ID": "u9"'), {**READ, "user_id": "u9"}),
    # That of the field itself counts, in any order.
    (line_without("user_id", '"USER_ID": "u9", "user_id": null'), {**READ, "user_id": None}),
    (line_without("user_id", '"user_id": null, "USER_ID": "u9"'), {**READ, "user_id": None}),
    (line_without("user_id", '"USER_ID": "u8", "User_Id": "u9"'), "more than one key is named user_id"),
    (line_without("user_id", f'"x": {DEEP}, "USER_ID": "u9"'), "nested more than 64 levels"),
    # One key of two can be named.
    (line_without("user_id", f'"CLICKS": 3, "x": {DEEP}, "USER_ID": "u9"').replace('"clicks"', '"y"'), "nested more than 64 levels"),
    (line_without("user_id", '"user": "USER_ID"'), {**READ, "user_id": None}),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("landing") / "visits" / f"arrival_date={DAY}"
    path.mkdir(parents=True)
    lines = [json_line(name, value) for name, value, _ in JSON]
    (path / "0.jsonl").write_text("\n".join(lines))
    (path / "1.csv").write_text(csv_text())
    for n, (name, column, _) in enumerate(PARQUET):
        pq.write_table(parquet_table(name, column), path / f"p{n}.parquet")
    (path / "names.jsonl").write_text("\n".join(line for line, _ in NAMES))
    upper = {name.upper(): column for name, column in parquet_cells().items() if name != "user_id"}
    pq.write_table(arrow.table(upper), path / "names.parquet")
    (path / "none.csv").write_text(",".join(name for name in GOOD if name != "clicks"))
    (path / "_control.json").write_text('{"rows": 12}')
    return path


@pytest.fixture(scope="module")
def everything(spark, folder: Path) -> dict:
    landing = str(folder.parent.parent)
    files = probe_files(spark, landing, VISITS, Window(DAY, DAY + timedelta(days=1)))
    read = read_versions(read_lines(spark, files, VISITS), VISITS, "UTC").persist()
    rows = read.drop("at", "seen_at").collect()
    yield {"found": files, "read": read, "rows": [row.asDict() for row in rows]}
    read.unpersist()


def row_outcome(row: dict) -> str | dict:
    return row["_reason"] or {name: row[name] for name in READ}


def by_file(everything: dict, name: str) -> list:
    rows = [row for row in everything["rows"] if row["source_file"].endswith(f"/{name}")]
    return [row_outcome(row) for row in rows]


def expected_row(name: str, value: object) -> str | dict:
    wrong = isinstance(value, str) and value.startswith(("bad ", "missing ", "half "))
    return value if wrong else {**READ, name: value}


def test_json(everything: dict) -> None:
    outcomes = by_file(everything, "0.jsonl")
    assert outcomes == [expected_row(name, value) for name, _, value in JSON]


def test_names_in_another_case(everything: dict) -> None:
    assert by_file(everything, "names.jsonl") == [expected for _, expected in NAMES]
    assert by_file(everything, "names.parquet") == [{**READ, "user_id": None}] * 2


def test_lines_that_lack_a_field_are_counted(everything: dict) -> None:
    counts = count_lines_by_file(everything["read"], VISITS, everything["found"].line_counts)
    lacking = {name.partition("/")[2]: +file.lacking for name, file in counts.items()}
    assert lacking["names.parquet"] == {"user_id": 2}
    # Only the last line has it not at all.
    assert lacking["names.jsonl"] == {"user_id": 1}
    # A null, or an empty cell, is a value.
    assert not lacking["0.jsonl"]
    assert not lacking["1.csv"]


def test_csv(everything: dict) -> None:
    # A cell of JSON is kept as it is written.
    good = {"properties": json.dumps(GOOD["properties"])}
    expected = [expected_row(name, expected) for name, _, expected in CSV]
    assert by_file(everything, "1.csv") == [
        {**x, **(good if name != "properties" else {})} if isinstance(x, dict) else x
        for x, (name, _, _) in zip(expected, CSV, strict=True)
    ]


def test_parquet(everything: dict) -> None:
    good = {"properties": json.dumps(GOOD["properties"])}
    for n, (name, _, dues) in enumerate(PARQUET):
        expected = [expected_row("visit_id" if name == "at" else name, x) for x in dues]
        assert by_file(everything, f"p{n}.parquet") == [
            {**x, **(good if name != "properties" else {})} if isinstance(x, dict) else x
            for x in expected
        ], (name, n)


def test_every_line_is_accepted_or_rejected(everything: dict) -> None:
    read, files = everything["read"], everything["found"]
    counts = count_lines_by_file(read, VISITS, files.line_counts)
    landed = {"0.jsonl": len(JSON), "1.csv": len(CSV), "names.jsonl": len(NAMES)}
    landed["names.parquet"] = 2
    landed |= {f"p{n}.parquet": 2 for n in range(len(PARQUET))}
    assert {name.partition("/")[2]: x.landed for name, x in counts.items()} == landed
    assert all(x.landed == x.accepted + x.rejected for x in counts.values())
    assert {x.amount for x in counts.values()} == {0}
    good, rejects = accepted_rows(read, VISITS), rejected_rows(read, VISITS)
    assert good.columns == list(VISITS.raw.columns)
    assert good.schema == VISITS.raw.conform_frame(good).schema
    assert rejects.columns == list(VISITS.rejected.columns)
    assert good.count() == sum(x.accepted for x in counts.values())
    assert rejects.where("text IS NOT NULL AND reason IS NOT NULL").count() == sum(
        x.rejected for x in counts.values()
    )


def test_a_rejected_line_is_kept_as_it_landed(everything: dict) -> None:
    texts = Counter(
        row["_text"] for row in everything["rows"] if row["source_file"].endswith("0.jsonl")
    )
    wrong = [(n, v) for n, v, value in JSON if isinstance(expected_row(n, value), str)]
    assert texts - Counter({None: len(JSON)}) == Counter(json_line(n, v) for n, v in wrong)


def test_a_file_without_a_required_field_is_broken(everything: dict) -> None:
    (text,) = everything["found"].broken_by_day()[DAY]
    assert text.startswith(
        f"arrival_date={DAY}/none.csv (LandingError: its first line is not a header with clicks"
    )
    assert ": it is " in text


# --- what the source says it sent -----------------------------------------------------------------


def test_a_control_file_has_no_amount_where_none_is_declared(everything: dict) -> None:
    assert everything["found"].controls == {DAY: Control(12, None)}


def test_control_files_that_cannot_be_used(spark, tmp_path: Path) -> None:
    reasons = {
        '{"rows": 1, "amount": "1.00"}': "ValueError: the source visits declares no amount",
        '{"rows": 1.5}': "rows must be a whole number",
        "{}": "KeyError",
        "[]": "TypeError",
    }
    for n, text in enumerate(reasons):
        path = tmp_path / "visits" / f"arrival_date={DAY + timedelta(days=n)}"
        path.mkdir(parents=True)
        (path / "_control.json").write_text(text)
    window = Window(DAY, DAY + timedelta(days=len(reasons)))
    files = probe_files(spark, str(tmp_path), VISITS, window)
    assert files.controls == {}
    for arrival, why in zip(window, reasons.values(), strict=True):
        assert files.control_problems[arrival].startswith("_control.json is not {'rows': N} (")
        assert why in files.control_problems[arrival]


def test_the_folder_of_the_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    with pytest.raises(LandingError, match=r"no folder .*/visits: .* holds visits/arrival_date="):
        list_landing(str(tmp_path), VISITS)


# --- patterns -------------------------------------------------------------------------------------


def test_the_patterns_of_orders() -> None:
    whole, decimal = r"[0-9]{1,18}", r"-?[0-9]{1,7}(?:\.[0-9]{1,8})?"
    assert careful_patterns(ORDER_LINES) == [
        rf'"order_id"\s*:\s*(?!"|null\b|\s|{whole}[ \t]*[,}}])',
        rf'"customer_id"\s*:\s*(?!"|null\b|\s|{whole}[ \t]*[,}}])',
        rf'"amount"\s*:\s*(?!"|null\b|\s|{decimal}[ \t]*[,}}])',
    ]
    assert number_pattern(ORDER_LINES).startswith(
        r'((?<!\\)"(?:(?:order_id|customer_id)"[ \t]*:[ \t]*(?=-?[0-9]+[ \t]*[,}])'
        r'|(?:amount)"[ \t]*:[ \t]*))'
    )


def test_the_pattern_of_a_key_finds_the_first_one_at_the_top() -> None:
    pattern, value = re.compile(key_pattern("a_b")), '[{"A_B": 1}, "\\"A_B\\": "]'
    named = {
        '{"A_B":1}': '{"a_b":1}',
        f' {{ "a_b_c" : {value} , "A_b" : 2, "A_B": 3}}': f' {{ "a_b_c" : {value} , "a_b" : 2, "A_B": 3}}',
        r'{"\u0041\u005FB":1}': '{"a_b":1}',
        f'{{"x":{value}}}': None,
        "{}": None,
    }
    assert {text: pattern.search(text) and pattern.sub(r'\1"a_b"', text) for text in named} == named


def test_the_pattern_of_a_member_finds_the_last_one_at_the_top() -> None:
    pattern = re.compile(member_pattern("a_b"))
    values = {
        '{"a_b":1.10}': "1.10",
        ' { "x" : [ { "a_b" : 1 } ] , "a_b" : {"a_b" : [1e400, "]}"]}, "y" : "a_b" }': '{"a_b" : [1e400, "]}"]}',
        r'{"a\u005Fb":"\"a_b\":2,","x\"":3}': r'"\"a_b\":2,"',
        '{"a_b":1,"a_b":null}': "null",
        '{"A_b":1,"x":"\\"","aXb":2}': None,
        "{ }": None,
        '{"a_b":' + "[" * 64 + "]" * 64 + "}": "[" * 64 + "]" * 64,
    }
    matches = {text: pattern.search(text) for text in values}
    assert {text: match and match[1] for text, match in matches.items()} == values
    assert all(match and match[0] == text for text, match in matches.items())
    assert not pattern.search('{"a_b":' + "[" * 65 + "]" * 65 + "}")


class Clock(pa.DataFrameModel):
    """Times of a row, each in a column of another type."""

    clock_id: T.StringType = Field(description="Clock.")
    text: T.TimestampType = Field(description="Text without an offset.")
    text_offset: T.TimestampType = Field(description="Text with an offset.")
    local: T.TimestampType = Field(description="Not adjusted to UTC.")
    local_early: T.TimestampType = Field(description="The same, in the first year.")
    local_nanoseconds: T.TimestampType = Field(description="The same, in nanoseconds.")
    day: T.TimestampType = Field(description="A date.")
    moment: T.TimestampType = Field(description="Adjusted to UTC.")
    moment_of_tokyo: T.TimestampType = Field(description="The same, with a zone to show it in.")
    moment_early: T.TimestampType = Field(description="The same, in the first year.")
    moment_nanoseconds: T.TimestampType = Field(description="The same, in nanoseconds.")
    ticks: T.LongType = Field(description="A number.")


SUMMER = datetime(2023, 7, 2, 8, tzinfo=timezone.utc)
FIRST_YEAR = datetime(1, 7, 2, 8, tzinfo=timezone.utc)
# By column: its value and type, and its time for a source of UTC and for one of Berlin.
TIMES = {
    "text": ("2023-07-02 08:00:00", arrow.string(), "2023-07-02 08:00:00", "2023-07-02 06:00:00"),
    "text_offset": ("2023-07-02T08:00:00+02:00", arrow.string(), "2023-07-02 06:00:00", "2023-07-02 06:00:00"),
    "local": (SUMMER, arrow.timestamp("us"), "2023-07-02 08:00:00", "2023-07-02 06:00:00"),
    "local_early": (FIRST_YEAR, arrow.timestamp("us"), "0001-07-02 08:00:00", "0001-07-02 07:06:32"),
    "local_nanoseconds": (SUMMER, arrow.timestamp("ns"), "2023-07-02 08:00:00", "2023-07-02 06:00:00"),
    "day": (SUMMER.date(), arrow.date32(), "2023-07-02 00:00:00", "2023-07-01 22:00:00"),
    "moment": (SUMMER, arrow.timestamp("us", "UTC"), "2023-07-02 08:00:00", "2023-07-02 08:00:00"),
    "moment_of_tokyo": (SUMMER, arrow.timestamp("ms", "Asia/Tokyo"), "2023-07-02 08:00:00", "2023-07-02 08:00:00"),
    "moment_early": (FIRST_YEAR, arrow.timestamp("us", "UTC"), "0001-07-02 08:00:00", "0001-07-02 08:00:00"),
    "moment_nanoseconds": (SUMMER, arrow.timestamp("ns", "UTC"), "2023-07-02 08:00:00", "2023-07-02 08:00:00"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "typed_frames"),
    [("Europe/Berlin", 0), ("Europe/Berlin", 2), pytest.param("UTC", 2, marks=pytest.mark.slow)],
)
def test_moments_in_parquet_are_not_read_as_times_of_the_zone(
    spark, tmp_path: Path, monkeypatch, zone: str, typed_frames: int
) -> None:
    """Spark writes moments: as local times they would all be hours off."""
    monkeypatch.setattr(landing_files, "MOST_TYPED_FRAMES", typed_frames)
    source = Source("clocks", Clock, key=["clock_id"], event_time="moment", timezone=zone)
    day_folder = tmp_path / "clocks" / f"arrival_date={DAY}"
    day_folder.mkdir(parents=True)
    columns = {name: arrow.array([value, value], kind) for name, (value, kind, *_) in TIMES.items()}
    # The second row is rejected.
    table = arrow.table({"clock_id": ["a", "b"], **columns, "ticks": ["1", "none"]})
    pq.write_table(table, day_folder / "plain.parquet")
    int96 = table.drop_columns(["local_early", "moment_early"])
    for name in ("local_early", "moment_early"):  # too early for it
        int96 = int96.append_column(name, columns["moment"])
    pq.write_table(int96, day_folder / "int96.parquet", use_deprecated_int96_timestamps=True)
    files = probe_files(spark, str(tmp_path), source, Window(DAY, DAY + timedelta(days=1)))
    read = read_versions(read_lines(spark, files, source), source, "UTC")
    # The text of a rejected row is the same moment if it lands again as a line.
    times = [
        F.when(F.col("_reason").isNull(), F.col(name))
        .otherwise(parse_timestamp(F.get_json_object("_text", f"$.{name}"), zone))
        .cast("string")
        for name in TIMES
    ]
    rows = read.select("source_file", F.col("_reason").isNull(), *times).collect()
    expected = {name: berlin if zone != "UTC" else utc for name, (*_, utc, berlin) in TIMES.items()}
    # INT96 has no mark: it is a moment.
    moments = {
        name: "2023-07-02 08:00:00" for name in TIMES if name.startswith(("local", "moment"))
    }
    expected_by_file = {"plain": expected, "int96": {**expected, **moments}}
    assert {(Path(file).stem, accepted): values for file, accepted, *values in rows} == {
        (file, accepted): [*file_values.values()]
        for file, file_values in expected_by_file.items()
        for accepted in (True, False)
    }


EPOCH = date(1970, 1, 1)
# A value of a column in the type of its field, as Parquet stores it, and the value or the reason.
STORED = [
    ("clicks", 7, 7),
    ("clicks", None, "missing clicks"),
    ("clicks", -1, "bad clicks"),
    ("clicks", 2**63 - 1, 2**63 - 1),
    ("paid", 9_999_999_999, Decimal("9999999.999")),
    ("paid", -9_999_999_999, Decimal("-9999999.999")),
    ("paid", 10**10, "bad paid: not a number that decimal(10,3) holds, with a point for decimals"),
    ("paid", -(10**17), "bad paid: not a number that decimal(10,3) holds, with a point for decimals"),
    ("paid", None, None),
    ("logged_in", False, False),
    ("logged_in", None, "missing logged_in"),
    ("signed_up", (date(1, 1, 1) - EPOCH).days, date(1, 1, 1)),
    ("signed_up", (date.max - EPOCH).days, date.max),
    ("signed_up", (date.max - EPOCH).days + 1, "bad signed_up: not a date as 2024-01-31"),
    ("signed_up", (date(1, 1, 1) - EPOCH).days - 1, "bad signed_up: not a date as 2024-01-31"),
    ("signed_up", None, None),
    ("at", None, "missing at"),
    ("at", 253402300800000000, "bad at: not a time as 2024-01-31T08:30:00Z"),
    ("at", -62135596800000001, "bad at: not a time as 2024-01-31T08:30:00Z"),
]  # fmt: skip


def decimal_array(unscaled: list[int | None], kind: arrow.Decimal128Type) -> arrow.Array:
    """Decimals that may have more digits than their type declares."""
    data = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in unscaled)
    validity = arrow.array([number is not None for number in unscaled]).buffers()[1]
    return arrow.Array.from_buffers(kind, len(unscaled), [validity, arrow.py_buffer(data)])


@pytest.mark.parametrize("typed_frames", [0, 2])
def test_stored_values_are_read_as_their_text_would_be(
    spark, tmp_path: Path, monkeypatch, typed_frames: int
) -> None:
    monkeypatch.setattr(landing_files, "MOST_TYPED_FRAMES", typed_frames)
    day_folder = tmp_path / "visits" / f"arrival_date={DAY}"
    day_folder.mkdir(parents=True)
    stamp = int(datetime(2024, 1, 2, 10, tzinfo=timezone.utc).timestamp() * 1_000_000)
    usual = {"clicks": 3, "paid": 1500, "logged_in": True, "signed_up": (READ["signed_up"] - EPOCH).days, "at": stamp, "seen_at": stamp}  # fmt: skip
    cells = {name: [value if name == n else rest for n, value, _ in STORED] for name, rest in usual.items()}  # fmt: skip
    count = len(STORED)
    table = arrow.table(
        {
            "visit_id": [f"v{n}" for n in range(count)],
            "user_id": ["u1"] * count,
            "clicks": cells["clicks"],
            "paid": decimal_array(cells["paid"], arrow.decimal128(10, 3)),
            "logged_in": cells["logged_in"],
            "signed_up": arrow.array(cells["signed_up"], arrow.int32()).view(arrow.date32()),
            "at": arrow.array(cells["at"]).view(arrow.timestamp("us", "UTC")),
            "seen_at": arrow.array(cells["seen_at"]).view(arrow.timestamp("us", "UTC")),
            "properties": [json.dumps(GOOD["properties"])] * count,
        }
    )
    pq.write_table(table, day_folder / "a.parquet", store_decimal_as_integer=True)
    files = probe_files(spark, str(tmp_path), VISITS, Window(DAY, DAY + timedelta(days=1)))
    (frame,) = read_lines(spark, files, VISITS)
    assert (dict(frame.dtypes)["clicks"] == "bigint") is bool(typed_frames)
    rows = read_versions([frame], VISITS, "UTC").orderBy("visit_id").drop("at", "seen_at").collect()
    by_id = {row["visit_id"]: row.asDict() for row in rows}
    for n, (name, _, expected) in enumerate(STORED):
        row = by_id[f"v{n}"]
        assert (name, row["_reason"] or row[name]) == (name, expected)
    assert len(rows) == count


class Sale(pa.DataFrameModel):
    """A sale, as spreadsheets and cash desks tell it."""

    sale_id: T.StringType = Field(description="Sale.")
    sold_on: T.DateType = Field(description="Its day.", alias="Sold on")
    amount: T.DecimalType(10, 2) = nullable_column(1.0, 1.0, "Amount.")  # type: ignore[valid-type]
    pieces: T.LongType = nullable_column(1.0, 1.0, "Pieces.")
    note: T.StringType = nullable_column(1.0, 1.0, "What the desk noted.")


SALES = Source("sales", Sale, key=["sale_id"], event_time="sold_on")
GERMAN = replace(
    SALES,
    delimiter=";",
    decimal=",",
    thousands=".",
    encoding="cp1252",
    null=["NULL", r"\N"],
    comment="#",
    rename={"Receipt No.": "sale_id"},
)
NO_HEADER = replace(SALES, delimiter="|", quote="'", header=False, thousands=" ")
NO_QUOTES = replace(SALES, delimiter="\t", quote="", comment="%")
NO_NUMBER = "bad amount: not a number as 1.234,50"

# By source: cells of amount, pieces and note, and what is read.
DIALECTS = [
    (GERMAN, ["1.234,50", "1.000", 'K\u00e4se "\u20ac";'], (Decimal("1234.50"), 1000, 'K\u00e4se "\u20ac";')),
    (GERMAN, ["-0,5", "+7", "NULL"], (Decimal("-0.50"), 7, None)),
    (GERMAN, ["NULL", r"\N", ""], (None, None, None)),
    (GERMAN, ["1,5e3", "1000000", "null"], (Decimal("1500.00"), 1000000, "null")),
    (GERMAN, ["1.234", "1", "# none"], (Decimal("1234.00"), 1, "# none")),
    (GERMAN, ["1,234", "1", ""], "bad amount: 3 decimals, 2 are kept"),
    *((GERMAN, [text, "1", ""], NO_NUMBER) for text in ("1234.50", "1.23", "12.34,50", "1,234.50", "1.2345", "one", "1,5,0")),
    (GERMAN, ["1", "1.00", ""], "bad pieces: not a whole number of 64 bits"),
    (GERMAN, ["1", "1,0", ""], "bad pieces: not a whole number of 64 bits"),
    (NO_HEADER, ["1 234.50", "1 000", "it's | two\r\nlines"], (Decimal("1234.50"), 1000, "it's | two\r\nlines")),
    (NO_HEADER, ["1 23", "1", '"'], "bad amount: not a number that decimal(10,2) holds, with a point for decimals"),
    (NO_HEADER, ["1", "2", '"quoted"'], (Decimal("1.00"), 2, '"quoted"')),
    (NO_QUOTES, ["1.5", "2", '5" pipe, "x'], (Decimal("1.50"), 2, '5" pipe, "x')),
    (NO_QUOTES, ["1.5", "2", '"quoted"'], (Decimal("1.50"), 2, '"quoted"')),
    (NO_QUOTES, ["1.5", "2", "\0a\0"], "a NUL"),
    (NO_QUOTES, ["1.5", "2", "a\tb"], "not 5 fields as in the header"),
]  # fmt: skip


def sales_text(source: Source, rows: list[list[str]]) -> str:
    """A CSV file in the dialect of a source, with a comment if it can have one."""
    names = {"sold_on": "Sold on", **{field: name for name, field in source.rename.items()}}
    out = io.StringIO(newline="")
    if source.comment:
        out.write(f'{source.comment} exported{source.delimiter}"today\n')
    lines = [[names.get(name, name) for name in source.fields]] * source.header + rows
    if source.quote:
        options = {"quotechar": source.quote, "quoting": csv.QUOTE_MINIMAL}
        csv.writer(out, delimiter=source.delimiter, lineterminator="\n", **options).writerows(lines)
    else:
        out.writelines(f"{source.delimiter.join(line)}\n" for line in lines)
    return out.getvalue()


@pytest.mark.parametrize("source", [GERMAN, NO_HEADER, NO_QUOTES])
def test_dialects_of_csv_and_other_names(spark, tmp_path: Path, source: Source) -> None:
    path = tmp_path / "sales" / f"arrival_date={DAY}"
    path.mkdir(parents=True)
    cases = [(cells, expected) for of, cells, expected in DIALECTS if of is source]
    rows = [[str(n), str(DAY), *cells] for n, (cells, _) in enumerate(cases)]
    expected_by_id = {str(n): expected for n, (_, expected) in enumerate(cases)}
    text = sales_text(source, rows)
    own = "cp1252" if source is GERMAN else "utf-8"
    for name, encoding in (("own.csv", own), ("utf_8.csv", "utf-8-sig"), ("utf_16.csv", "utf-16")):
        (path / name).write_bytes(text.encode(encoding))
    expected = dict.fromkeys(("own.csv", "utf_8.csv", "utf_16.csv"), expected_by_id)
    if source is GERMAN:
        # A byte that is no character of it; the other formats have other names, and no dialect.
        line = f"a;{DAY};1;1;".encode() + b"\x81"
        (path / "bytes.csv").write_bytes(b"RECEIPT NO.;Sold on;amount;pieces;note\n" + line)
        plain = {
            "Receipt No.": "j",
            "Sold on": str(DAY),
            "amount": 1.5,
            "pieces": 1,
            "note": "NULL",
        }
        twice = {**plain, "RECEIPT NO.": "k"}
        own_name = {**plain, "sale_id": "l", "sold_on": str(DAY), "Sold on": "unused"}
        (path / "names.jsonl").write_text("\n".join(map(json.dumps, (plain, twice, own_name))))
        table = arrow.table({name: [value] for name, value in plain.items()})
        pq.write_table(table, path / "names.parquet")
        read = (Decimal("1.50"), 1, "NULL")
        several = "more than one key is named sale_id"
        expected |= {
            "bytes.csv": {None: "not CP1252"},
            "names.jsonl": {"j": read, None: several, "l": read},
            "names.parquet": {"j": read},
        }
    if source is NO_HEADER:
        (path / "half.csv").write_bytes(text.encode("utf-16") + b"\0")  # ends within a character
    files = probe_files(spark, str(tmp_path), source, Window(DAY, DAY + timedelta(days=1)))
    assert {file.name for file in files.broken} == ({"half.csv"} if source is NO_HEADER else set())
    read_rows = read_versions(read_lines(spark, files, source), source, "UTC").collect()
    outcomes: dict[str, dict] = {name: {} for name in expected}
    for row in read_rows:
        sale = row["sale_id"] if row["sale_id"] in expected_by_id or not row["_reason"] else None
        outcome = row["_reason"] or (row["amount"], row["pieces"], row["note"])
        outcomes[row["source_file"].rpartition("/")[2]][sale] = outcome
    assert outcomes == expected
    counts = {name.rpartition("/")[2]: count for name, count in files.line_counts.items()}
    assert counts == {name: len(outcome) for name, outcome in outcomes.items()}


def test_a_file_of_dbgen_has_a_delimiter_after_the_last_field(spark, tmp_path: Path) -> None:
    """Its first line tells; a line without one, or with text after it, is rejected."""
    path = tmp_path / "sales" / f"arrival_date={DAY}"
    path.mkdir(parents=True)
    ends = ["1|note|", "|'a|b'|", "2|no end", "3|x|more", "4|x||", "5||"]
    lines = [f"{n}|{DAY}|1.50|{end}\n" for n, end in enumerate(ends)]
    (path / "lines.tbl").write_text("".join(lines))
    (path / "plain.tbl").write_text(lines[2] + lines[0])
    files = probe_files(spark, str(tmp_path), NO_HEADER, Window(DAY, DAY + timedelta(days=1)))
    rows = read_versions(read_lines(spark, files, NO_HEADER), NO_HEADER, "UTC").collect()
    read = {
        (row["source_file"].rpartition("/")[2], (row[TEXT] or row["sale_id"])[0]): row["_reason"]
        or (row["pieces"], row["note"])
        for row in rows
    }
    misfit = "not 5 fields as the source has"
    rejected = f"{misfit}, each with '|' after it, as in the first line"
    assert read == {
        ("lines.tbl", "0"): (1, "note"),
        ("lines.tbl", "1"): (None, "a|b"),
        **{("lines.tbl", n): rejected for n in "234"},
        ("lines.tbl", "5"): (5, None),
        ("plain.tbl", "2"): (2, "no end"),
        ("plain.tbl", "0"): misfit,
    }


NOON = "bad sold_on: not at midnight in Europe/Berlin, and it is to be a date"


@pytest.mark.parametrize("typed_frames", [0, 9])
def test_timestamps_of_parquet_at_midnight_are_dates(
    spark, tmp_path: Path, monkeypatch, typed_frames: int
) -> None:
    """Midnight in the zone of the source; any other time is a rejected row, never a date."""
    monkeypatch.setattr(landing_files, "MOST_TYPED_FRAMES", typed_frames)
    path = tmp_path / "sales" / f"arrival_date={DAY}"
    path.mkdir(parents=True)
    midnight = datetime.combine(DAY, time.min)
    in_utc = datetime(2024, 1, 1, 23, tzinfo=timezone.utc)
    second, micro = timedelta(seconds=1), timedelta(microseconds=1)
    columns = {
        "local": (arrow.timestamp("us"), [midnight, midnight + micro, midnight - second, None]),
        "pandas": (arrow.timestamp("ns"), [midnight, midnight + micro]),
        "utc": (
            arrow.timestamp("us", "UTC"),
            [in_utc, in_utc + second, in_utc + timedelta(hours=2)],
        ),
        "int96": (arrow.timestamp("ns"), [in_utc.replace(tzinfo=None), midnight]),
        "extreme": (arrow.timestamp("us"), [2**63 - 1, 1 - 2**63]),
        "extreme_utc": (arrow.timestamp("us", "UTC"), [2**63 - 1, 1 - 2**63]),
    }
    for name, (kind, moments) in columns.items():
        ids = [str(n) for n in range(len(moments))]
        table = arrow.table({"sale_id": ids, "Sold on": arrow.array(moments, kind)})
        int96 = name == "int96"
        pq.write_table(table, path / f"{name}.parquet", use_deprecated_int96_timestamps=int96)
    source = replace(SALES, timezone="Europe/Berlin")
    files = probe_files(spark, str(tmp_path), source, Window(DAY, DAY + timedelta(days=1)))
    read: dict[str, dict] = {name: {} for name in columns}
    for frame in read_lines(spark, files, source):
        for row in read_versions([frame], source, "UTC").collect():
            name = row["source_file"].rpartition("/")[2].removesuffix(".parquet")
            read[name][row["sale_id"]] = row["_reason"] or row["sold_on"]
            assert row["_reason"] != NOON or "Sold on" in row[TEXT] or "sold_on" in row[TEXT]
    assert read == {
        "local": {"0": DAY, "1": NOON, "2": NOON, "3": "missing sold_on"},
        "pandas": {"0": DAY, "1": NOON},
        "utc": {"0": DAY, "1": NOON, "2": NOON},
        "int96": {"0": DAY, "1": NOON},
        "extreme": {"0": NOON, "1": NOON},
        "extreme_utc": {"0": NOON, "1": NOON},
    }


class TicketLine(pa.DataFrameModel):
    """A ticket of a cash desk, with the items that it lists."""

    ticket: T.StringType = Field(description="Ticket.")
    at: T.DateType = Field(description="Its day.")
    items: T.StringType = json_column("What was bought.", optional=True)


TICKETS = Source("tickets", TicketLine, key=["ticket"], event_time="at")


class Item(pa.DataFrameModel):
    """An item of a ticket."""

    sku: T.StringType = Field(description="What.")
    pieces: T.LongType = Field(ge=1, description="How many.")
    price: T.DecimalType(8, 2) = nullable_column(1.0, 1.0, "For one.")  # type: ignore[valid-type]
    best_before: T.DateType = nullable_column(1.0, 1.0, "When it is to be eaten.")
    unit: T.StringType = Field(alias="Unit of sale", nullable=True, description="Unit.")
    more: T.StringType = json_column("Anything else.", optional=True)


class TicketItem(pa.DataFrameModel):
    """An item, or the reason why it is none."""

    run_date: T.DateType = Field(description="Day.")
    ticket: T.StringType = Field(description="Ticket.")
    item_number: T.LongType = Field(description="Place of the item.")
    sku: T.StringType = nullable_column(0.01, 0.1, "What.")
    item_problem: T.StringType = nullable_column(1.0, 1.0, "Why it is rejected.")


@table(
    TicketItem,
    partition="run_date",
    key=["ticket", "item_number"],
    counts={"rejected_items": "item_problem IS NOT NULL"},
    checks=[conserves_total("tickets", "items")],
)
def ticket_items(tickets: Annotated[DataFrame, Reads(TICKETS.staged)]) -> DataFrame:
    items = explode_json(tickets, "items", Item).withColumnRenamed("for_day", "run_date")
    return items.select(*TicketItem.to_schema().columns)


def test_the_page_declares_the_items():
    assert ITEMS in Path(__file__).read_text()


# The text of an array; by item, its values, or why it has none.
ARRAYS = [
    ('[{"sku": "a", "pieces": 2, "price": 1.50, "Unit of sale": "kg", "more": {"x": [1]}}]', [("a", 2, Decimal("1.50"), None, "kg", '{"x":[1]}')]),
    ('[{"sku": 12345678901234567890, "pieces": "3", "price": "-0.5", "best_before": "2024-02-29"}]', [("12345678901234567890", 3, Decimal("-0.50"), date(2024, 2, 29), None, None)]),
    ('[{"sku": "a", "pieces": 1}, {"sku": "b"}, 5, null, {"sku": "d", "pieces": 4}]', [("a", 1, None, None, None, None), "missing pieces", "not a JSON object", "not a JSON object", ("d", 4, None, None, None, None)]),
    ('[{"sku": true, "pieces": 1}]', ["bad sku: not a string"]),
    ('[{"sku": 1.5, "pieces": 1}]', ["bad sku: not a string"]),
    ('[{"sku": "a", "pieces": 0}]', ["bad pieces"]),
    ('[{"sku": "a", "pieces": 1.5}]', ["bad pieces: not a whole number of 64 bits"]),
    ('[{"sku": "a", "pieces": 1, "price": 1.555}]', ["bad price: 3 decimals, 2 are kept"]),
    ('[{"sku": "a", "pieces": 1, "best_before": "29.2.2024"}]', ["bad best_before: not a date as 2024-01-31"]),
    ('[{"sku": "a", "sku": "b", "pieces": 1}, {"sku": "c", "pieces": 1}]', ["in an array in which a key is there twice in an item"] * 2),
    ('{"sku": "a", "pieces": 1}', ["not a JSON array"]),
    ('"text"', ["not a JSON array"]),
    ("[]", []),
    (" [ ] ", []),
    (None, []),
]  # fmt: skip


def test_items_of_arrays_are_rows_and_none_is_lost(spark) -> None:
    rows = [(str(n), text) for n, (text, _) in enumerate(ARRAYS)]
    frame = spark.createDataFrame(rows, "ticket STRING, items STRING").withColumns(
        {"at": F.lit(DAY), "event_date": F.lit(DAY), "for_day": F.lit(DAY), "log_date": F.lit(DAY)}
    )
    found = explode_json(frame, "items", Item).drop("at", "event_date", "for_day", "log_date")
    expected = {
        (str(n), place): item
        for n, (_, items) in enumerate(ARRAYS)
        for place, item in enumerate(items, 1)
    }
    outcomes = {(t, n): problem or tuple(values) for t, n, *values, problem in found.collect()}
    assert outcomes == expected
    # Of an item that is rejected, nothing is left that could be summed.
    rejected = found.where("item_problem IS NOT NULL").select("sku", "pieces", "price").distinct()
    assert [tuple(row) for row in rejected.collect()] == [(None,) * 3]
    # The table has as many rows as there are items, by a count of its own.
    unpublished = TableSnapshot(ledger(TICKETS.staged), needs_same_day=True, read=frame.where)
    inputs = ([{"tickets": unpublished}], {"tickets": frame})
    window = Window(DAY, DAY + timedelta(days=1))
    (expectations,) = derived_expectations(ticket_items, *inputs, window)
    expectation = expectations[DAY]
    assert expectation.rows == len(expected)
    counts = {name: str(condition) for name, condition in ticket_items.counts.items()}
    metrics = measure_days(ticket_items(frame), ticket_items, kinds=counts)[DAY]
    count = sum(isinstance(outcome, str) for outcome in expected.values())
    assert (metrics.rows, metrics.kinds) == (len(expected), {"rejected_items": count})


@pytest.mark.parametrize(
    ("column", "names", "reason"),
    [
        ("item", {}, "no column item; did you mean 'items'"),
        ("items", {"number": "SKU"}, "both have sku: rename one of them"),
        ("items", {"problem": "ticket"}, "both have ticket"),
        ("items", {"number": "a b"}, "number is 'a b': give a name"),
    ],
)
def test_items_that_cannot_be_columns_are_refused(column: str, names: dict, reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason):
        explode_json(SimpleNamespace(columns=["ticket", "items"]), column, Item, **names)


class Reading(pa.DataFrameModel):
    """What a sensor says; its fields are named as columns that every line has."""

    text: T.LongType = Field(description="Key.")
    problem: T.TimestampType = Field(description="Event time.")
    reason: T.TimestampType = Field(description="Version time.")
    field_text: T.LongType = Field(description="A value.")


def test_fields_of_any_name_and_no_text_at_all(spark, tmp_path: Path) -> None:
    source = Source("readings", Reading, key=["text"], event_time="problem", version_time="reason")
    path = tmp_path / "readings" / f"arrival_date={DAY}"
    path.mkdir(parents=True)
    line = {"text": 1, "problem": STAMP, "reason": STAMP, "field_text": 5}
    lines = [line, {**line, "text": "\u00e9"}, {**line, "field_text": None}]
    (path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert number_pattern(source) == ""
    files = probe_files(spark, str(tmp_path), source, Window(DAY, DAY + timedelta(days=1)))
    read = read_versions(read_lines(spark, files, source), source, "UTC")
    good = accepted_rows(read, source).select("text", "field_text", F.col("reason").cast("string"))
    assert [tuple(row) for row in good.collect()] == [(1, 5, "2024-01-02 10:00:00")]
    reasons = {json.loads(row["text"])["text"]: row["reason"] for row in rejected_rows(read, source).collect()}  # fmt: skip
    assert reasons == {"\u00e9": "bad text: not a whole number of 64 bits", 1: "missing field_text"}


def test_which_fields_hold_json() -> None:
    assert [name for name, column in VISITS.columns.items() if holds_json(column)] == ["properties"]
    assert "properties" in VISITS.may_be_null

    class Required(pa.DataFrameModel):
        payload: T.StringType = json_column("Required.")

    (column,) = Required.to_schema().columns.values()
    assert holds_json(column)
    assert not column.nullable
