"""Samples of landing files, and what a plan says of skew before anything is loaded."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.backfills import planner
from backfill_assets.backfills.backfill_plan import plan_facts
from backfill_assets.backfills.planner import MAX_SAMPLED_FILES
from backfill_assets.landing.csv_files import (
    csv_texts,
    file_encoding,
    open_line_pattern,
    split_record,
)
from backfill_assets.landing.listing import list_landing
from backfill_assets.landing.samples import MOST_LINES, sample_values
from backfill_assets.tables.sources import Source
from backfill_assets_tests.helpers.pipeline import Pipeline, day, make_plan, order
from backfill_assets_tests.skewed_tables import PURCHASES

FIELDS = ["customer_id", "amount"]
PLACE = "backfill_assets_tests.skewed_tables:LANDED"


def put_file(landing: Path, name: str, content: bytes) -> None:
    folder = landing / "orders" / f"arrival_date={day(1)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def read_samples(landing: Path, source: Source = PURCHASES) -> dict[str, list | str]:
    listing = list_landing(str(landing), source, [day(1)])
    entries = [*listing.files_on(day(1)).values()]
    samples = sample_values(str(landing), source, entries, FIELDS)
    return {entry.name: values for entry, values in samples.items()}


def test_the_values_of_lines_of_each_format(tmp_path):
    lines = [
        b"\xef\xbb\xbf" + b'{"customer_id": "c1", "amount": 1.50}',
        b'{"CUSTOMER_ID": 7, "amount": "2", "more": {}}',
        b'{"customer_id": "", "amount": null}',
        b"no line",
        b'"a value"',
        b" ",
        b'{"amount": "1"}',
    ]
    expected = [("c1", "1.50"), ("7", "2"), (None, None), (None, "1")]
    text = b"\r\n".join(lines)
    put_file(tmp_path, "a.json", text)
    put_file(tmp_path, "b.jsonl.gz", gzip.compress(text))
    header = "order_id,order_ts,amount,ingestion_ts,customer_id"
    records = f'{header}\n1,x,1.50,y,c1\n2,x,2,y,"7"\n3,x,,y,\n4,x\n{header}\n5,x,1,y,\n'
    put_file(tmp_path, "c.csv", records.encode())
    put_file(tmp_path, "d.csv.gz", gzip.compress(records.encode()))
    rows = pa.table({"Customer_ID": ["c1", "7", "", None], "amount": ["1.50", "2", None, "1"]})
    target = tmp_path / "rows.parquet"
    pq.write_table(rows, target, row_group_size=2)
    put_file(tmp_path, "e.parquet", target.read_bytes())
    pq.write_table(rows.drop_columns(["Customer_ID"]), target)
    put_file(tmp_path, "f.parquet", target.read_bytes())
    result = read_samples(tmp_path)
    without = [(None, amount) for _, amount in expected]
    assert result == {
        **dict.fromkeys(("a.json", "b.jsonl.gz", "c.csv", "d.csv.gz", "e.parquet"), expected),
        "f.parquet": without,
    }


RECORDS = b"""a,b,c
1,"x
y",2\r\n\r\n3,"he said ""hi""\r\n\r\n4,5,6\r",7
8,x"y,9\r10,"z"q,11
\xef\xbb\xbf"12","\xff
",14
15,"open
16,,17"""


def test_the_records_of_csv_are_those_of_other_readers():
    records = [*csv_texts(RECORDS, PURCHASES)]
    text = RECORDS.replace(b"\xef\xbb\xbf", b"").decode(errors="replace")
    expected = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    assert [next(csv.reader(io.StringIO(record, newline=""))) for record in records] == expected
    assert [*csv_texts(RECORDS, PURCHASES, end=False)] == records[:-1]
    # A line by itself ends in quotes if, and only if, more belongs to it.
    opens = re.compile(open_line_pattern(PURCHASES))
    first_lines = [re.split(r"[\r\n]", record)[0] for record in records]
    assert [line != record for line, record in zip(first_lines, records, strict=True)] == [
        bool(opens.search(line)) for line in first_lines
    ]
    lines = {"": False, '""': False, '"a"b,"c"': False, 'a"b,"c': True, 'a,"b""': True, '"': True}
    assert {line: bool(opens.search(line)) for line in lines} == lines


TEXTS = st.text("ab09 '\"|;,.#%\\\r\n\u00e9", max_size=5)


@st.composite
def dialects(draw: st.DrawFn) -> dict[str, str]:
    """Options of CSV that do not contradict each other."""
    return {
        "delimiter": draw(st.sampled_from(",;|\t")),
        "quote": draw(st.sampled_from(["'", '"', ""])),
        "comment": draw(st.sampled_from(["#", "%", ""])),
    }


@settings(max_examples=40, deadline=None)
@given(
    dialect=dialects(),
    rows=st.lists(st.lists(TEXTS, min_size=3, max_size=3), max_size=4),
    encoding=st.sampled_from(["utf-8-sig", "utf-16", "latin-1"]),
)
def test_records_in_any_dialect_are_those_that_python_wrote(dialect, rows, encoding):
    source = replace(PURCHASES, encoding="latin-1", **dialect)
    quoted = bool(source.quote)
    if not quoted:
        special = re.compile(f"[\r\n{source.delimiter}]")
        rows = [[special.sub("", text) for text in row] for row in rows]
    rows = [[f"x{first}", *others] for first, *others in rows]
    out = io.StringIO(newline="")
    options = {"quotechar": source.quote, "quoting": csv.QUOTE_MINIMAL}
    writer = csv.writer(
        out,
        delimiter=source.delimiter,
        **(options if quoted else {"quotechar": None, "quoting": csv.QUOTE_NONE}),
    )
    for row in rows:
        if source.comment:
            out.write(f'{source.comment} it\'s {source.delimiter}"no" record\r\n')
        writer.writerow(row)
    data = out.getvalue().encode(encoding)
    known = file_encoding(data, source)
    assert [split_record(text, source) for text in csv_texts(data, source, known)] == rows


def test_samples_of_other_dialects_and_names(tmp_path):
    source = replace(
        PURCHASES,
        delimiter=";",
        encoding="cp1252",
        comment="#",
        null=["NULL"],
        rename={"Kunde Nr.": "customer_id"},
    )
    lines = ["# exported", "order_id;order_ts;amount;ingestion_ts;KUNDE NR."]
    text = "\n".join([*lines, "1;x;1,50;y;M\u00fcller \u20ac", "# 2 rows", "2;x;NULL;y;NULL"])
    for name, encoding in (("a.csv", "cp1252"), ("b.csv", "utf-16"), ("c.csv", "utf-8-sig")):
        put_file(tmp_path, name, text.encode(encoding))
    put_file(
        tmp_path, "d.json", '{"Kunde Nr.": "M\u00fcller \u20ac", "amount": "1,50"}\n{}'.encode()
    )
    rows = pa.table({"Kunde Nr.": ["M\u00fcller \u20ac", None], "amount": ["1,50", None]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    put_file(tmp_path, "e.parquet", (tmp_path / "rows.parquet").read_bytes())
    expected = [("M\u00fcller \u20ac", "1,50"), (None, None)]
    result = read_samples(tmp_path, source)
    assert result == dict.fromkeys(("a.csv", "b.csv", "c.csv", "d.json", "e.parquet"), expected)


def test_of_text_in_quotes_over_several_lines_no_line_is_sampled(tmp_path):
    header = "order_id,order_ts,amount,ingestion_ts,customer_id"
    record = '1,x,1.50,y,"c\n2,x,7.00,y,inner"\n'
    put_file(tmp_path, "a.csv", f"{header}\n{record}".encode())
    # In a part of a large file, nothing tells where the text begins.
    long_text = "\n".join(["2,x,7.00,y,inner"] * 100_000)
    put_file(tmp_path, "b.csv", f'{header}\n{record * 9}3,x,2,y,"{long_text}"\n{record}'.encode())
    result = read_samples(tmp_path)
    assert result["a.csv"] == [("c\n2,x,7.00,y,inner", "1.50")]
    assert {*result["b.csv"]} == {("c\n2,x,7.00,y,inner", "1.50")}


def test_a_file_that_cannot_be_read_says_why_and_the_others_are_read(tmp_path):
    whole = b'{"customer_id": "c1", "amount": "1"}\n'
    put_file(tmp_path, "a.json", whole)
    put_file(tmp_path, "b.json.gz", b"no gzip")
    put_file(tmp_path, "c.csv", b"no,header\n1,2\n")
    put_file(tmp_path, "d.parquet", b"PAR1 no parquet PAR1")
    target = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"customer_id": ["c1"], "amount": ["1"]}), target)
    put_file(tmp_path, "e.parquet", target.read_bytes())
    result = read_samples(tmp_path)
    assert result["a.json"] == result["e.parquet"] == [("c1", "1")]
    for name in ("b.json.gz", "c.csv", "d.parquet"):
        assert (isinstance(result[name], str) and "Error" in result[name]) or "Invalid" in result[
            name
        ]
    assert "order_id" in result["c.csv"]


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_large_file_a_part_is_read(tmp_path, packed):
    """Of one that is not packed, from its beginning to its end."""
    lines = [json.dumps({"customer_id": f"c{n}", "amount": "1" * 90}) for n in range(20_000)]
    text = "\n".join(lines).encode()
    put_file(tmp_path, "a.json.gz" if packed else "a.json", gzip.compress(text) if packed else text)
    (values,) = read_samples(tmp_path).values()
    assert MOST_LINES // 2 < len(values) <= MOST_LINES
    numbers = [int(customer[1:]) for customer, _ in values]
    assert numbers == sorted({*numbers})
    assert numbers[0] == 0
    assert numbers[-1] > 19_000 or (packed and numbers[-1] > 5_000)


def order_lines(n: int, *customers: str | None) -> list[dict]:
    return [order(f"o-{n}-{i}", n, "1.00", customer) for i, customer in enumerate(customers)]


def test_a_plan_says_what_is_skewed_of_days_that_are_not_loaded(engine, spark, tmp_path):
    landed = Pipeline(engine, tmp_path, tables=PLACE)
    landed.land(1, order_lines(1, *["c"] * 30, *[None] * 10, *(f"c{i}" for i in range(10))))
    landed.land(2, order_lines(2, *(f"c{i}" for i in range(9))))
    landed.land(3, order_lines(3, *["c"] * 2, *[None] * 7, "d"))
    landed.land(3, order_lines(3, *["c"] * 10), name="part-1.jsonl").rename(
        landed.folder(3) / "x.tmp"
    )
    (landed.folder(4) / "part-0.jsonl.gz").write_bytes(b"no gzip")
    arguments = {"tables": ("raw_orders", "raw_orders_rejected", "stg_orders")}
    plan = make_plan(landed, f"{day(1)}...{day(5)}", **arguments)
    plan_numbers = dict(plan_facts(plan))
    assert plan_numbers["skew"] == (
        f"stg_orders.customer_id: 20% of the lines that landed on {day(3)} have one key, 70% have "
        f"none in a sample of 10 lines; above 50% on 2 days: {day(1)}, {day(3)}"
    )
    page = Path(__file__).parents[1] / "docs" / "skew.md"
    assert plan_numbers["skew"] in page.read_text()
    (broken,) = plan.unsampled
    assert broken.startswith(f"orders/arrival_date={day(4)}/part-0.jsonl.gz (")
    assert plan_numbers["not looked at for skew"] == broken
    plan_json = plan.model_dump(mode="json")
    assert (plan_json["skews"][0]["lines"], plan_json["skews"][0]["days"]) == (
        10,
        [str(day(1)), str(day(3))],
    )

    # Once it is loaded, the record of the staging tells.
    landed.run(1, 3, ["raw_orders", "raw_orders_rejected"])
    second_plan = make_plan(landed, f"{day(1)}...{day(3)}", **arguments, rewrite=True)
    assert second_plan.skews == second_plan.unsampled == ()


def test_of_many_days_some_are_looked_at(engine, tmp_path, monkeypatch):
    landed = Pipeline(engine, tmp_path, tables=PLACE)
    for n in range(1, 32):
        for part in ("a.json", "b.json", "c.json"):
            landed.land(n, order_lines(n, "c"), name=part)
    looked: list[tuple[date, str]] = []
    real = planner.sample_values

    def note_sample(landing, source, entries, fields):
        looked.extend((date.fromisoformat(e.source_file[13:23]), e.name) for e in entries)
        return real(landing, source, entries, fields)

    monkeypatch.setattr(planner, "sample_values", note_sample)
    monkeypatch.setattr(planner, "MAX_SAMPLED_FILES", 7)
    arguments = {"tables": ("raw_orders",)}
    (skew,) = make_plan(landed, f"{day(1)}...{day(31)}", **arguments).skews
    assert [at for at, _ in looked] == [day(n) for n in (1, 6, 11, 16, 21, 26, 31)]
    assert len(skew.days) == 7 and skew.lines == 1
    looked.clear()
    make_plan(landed, f"{day(1)}...{day(3)}", **arguments)
    assert [(at.day, name) for at, name in looked] == [
        (n, name) for n in (1, 2, 3) for name in ("a.json", "c.json")
    ]
    assert MAX_SAMPLED_FILES > 7
