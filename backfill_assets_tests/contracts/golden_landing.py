"""A landing of eight days that has everything in it; the same bytes' worth of rows each time.

A window of two days is meant (three for visits). The names of orders say what they show.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from backfill_assets_guide.examples.customers.sample import write_countries

START = date(2024, 1, 1)
DAYS = 8
#: No order happens, in UTC, and no file of orders has a line.
EMPTY_DAY = 5

Line = Mapping[str, Any] | str | bytes


def day(number: int) -> date:
    """The day with a number, from 1."""
    return START + timedelta(days=number - 1)


def stamp(number: int, time: str) -> str:
    """A time of a day in UTC, as a line has it."""
    return f"{day(number)}T{time}Z"


def write_landing(landing: Path, warehouse: Path) -> None:
    """Write the files of all sources, and the table of countries."""
    _write_orders(landing / "orders")
    _write_changes(landing / "customer_changes")
    _write_visits(landing / "visits")
    _write_page_views(landing / "page_views")
    write_countries(warehouse)


# --- files ----------------------------------------------------------------------------------------


def _folder(source: Path, arrival: int) -> Path:
    folder = source / f"arrival_date={day(arrival)}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _line_bytes(line: Line) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode()


def _write_lines(path: Path, lines: Iterable[Line], *, begin: bytes = b"") -> None:
    content = begin + b"".join(_line_bytes(line) + b"\n" for line in lines)
    # Without a time in its header, a gzip file has the same bytes each time.
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


# --- orders ---------------------------------------------------------------------------------------


def _order(
    order_id: object,
    event: str,
    amount: object = "10.00",
    customer: str | None = "c-1",
    taken: str | None = None,
) -> dict[str, Any]:
    return {
        "order_id": order_id,
        "customer_id": customer,
        "order_ts": event,
        "amount": amount,
        "ingestion_ts": taken or event,
    }


#: Of all CSV files of orders: in an order of its own, with a field that nobody knows.
CSV_HEADER = "channel,amount,order_ts,order_id,ingestion_ts,customer_id"


def _record(
    order_id: str, customer: str, event: str, amount: str, taken: str = "", channel: str = "shop"
) -> str:
    return f"{channel},{amount},{event},{order_id},{taken or event},{customer}"


def _write_orders(source: Path) -> None:
    _write_first_days(source)
    _write_typed_rows(_folder(source, 3))
    _write_moves(source)
    _write_lines(_folder(source, EMPTY_DAY) / "part-0.jsonl", [])
    _write_late_lines(source)
    _write_rejects(_folder(source, 7))
    last = [
        _order("last", stamp(8, "12:00"), "8.88", "c-3"),
        # A clock that runs ahead, on the last day: the log day does not exist.
        _order("ahead-of-all-days", stamp(8, "22:00"), "1.00", "c-2", stamp(9, "00:01")),
    ]
    _write_lines(_folder(source, 8) / "part-0.jsonl", last, begin="\ufeff".encode())


def _write_first_days(source: Path) -> None:
    first = [
        _order("plain", stamp(1, "10:00"), "10.00", "c-1"),
        _order("plain", stamp(1, "10:00"), "10.00", "c-1"),
        _order("no-customer", stamp(1, "11:00"), "20.50", None),
        _order("empty-customer", stamp(1, "11:30"), "0.50", ""),
        _order(7, stamp(1, "12:00"), 12.5, "c-2"),
        _order("exponent", stamp(1, "12:01"), "1.2e2", "c-2"),
        _order("refund", f"{day(1)} 12:02:03.123456Z", "-3.00", "c-2"),
        _order("bare-date", str(day(1)), "1.00", "c-3"),
        _order("offset", f"{day(1)}T23:30:00+09:00", "2.00", "c-3"),
        _order("before-all-days", stamp(0, "23:00"), "5.00", "c-1", stamp(1, "01:00")),
        _order("unknown-field", stamp(1, "13:00"), "1.00", "c-1") | {"channel": "shop"},
        # Early lines: the version time lies in the next day, of UTC or of Tokyo.
        _order("early-in-utc", stamp(1, "23:59"), "4.00", "c-1", stamp(2, "00:10")),
        _order("early-in-tokyo", stamp(1, "16:00"), "6.00", "c-2"),
    ]
    _write_lines(_folder(source, 1) / "part-0.jsonl", first)
    at = stamp(2, "11:00")
    records = [
        CSV_HEADER,
        _record("plain", "c-1", stamp(1, "10:00"), "11.00", stamp(2, "09:00")),
        # Ties: of the same version time the greatest amount wins, and null is the lowest customer.
        _record("tie", "c-1", stamp(2, "10:00"), "21.00", stamp(2, "10:30")),
        _record("tie", "c-2", stamp(2, "10:00"), "22.00", stamp(2, "10:30")),
        _record("tie", "", stamp(2, "10:00"), "22.00", stamp(2, "10:30")),
        _record("quoted", "c-3", at, "3.00", channel='"a, ""b"""'),
        _record("too-many-fields", "c-3,more", at, "3.00"),
        _record("loose-quote", "c-3", at, "3.00", channel='sh"op'),
    ]
    second = _folder(source, 2)
    _write_lines(second / "part-0.csv", records)
    again = [
        _order("plain", stamp(1, "10:00"), "10.00", "c-1"),
        _order("moves", stamp(2, "12:00"), "30.00", "c-2"),
        _order("moves-too-late", stamp(2, "13:00"), "31.00", "c-2"),
    ]
    _write_lines(second / "part-1.json", again)


def _write_typed_rows(folder: Path) -> None:
    moments = [datetime(2024, 1, 3, hour, 0, 0, 250_000, timezone.utc) for hour in range(4)]
    rows = {
        "order_id": ["typed-1", "typed-2", None, "typed-4"],
        "customer_id": ["c-1", None, "c-2", "c-3"],
        "order_ts": moments,
        "amount": [Decimal("1.10"), Decimal("2.20"), Decimal("3.30"), None],
        "ingestion_ts": moments,
    }
    pa.parquet.write_table(pa.table(rows), folder / "part-0.parquet")
    wrong = {
        **{name: values[:1] for name, values in rows.items()},
        "order_id": [1.5],
        "amount": [4.125],
    }
    pa.parquet.write_table(pa.table(wrong), folder / "part-1.parquet")
    lines = [
        _order("third", stamp(3, "14:59:59"), "9.99", "c-1"),
        # Of the same version time as one of the next folder, which wins in spite of its amount.
        _order("tie-of-folders", stamp(3, "10:00"), "21.00", "c-2", stamp(3, "10:30")),
    ]
    _write_lines(folder / "part-2.jsonl", lines)


def _write_moves(source: Path) -> None:
    moves = [
        _order("fourth", stamp(4, "10:00"), "14.00", "c-1"),
        # To another day within the window.
        _order("moves", stamp(3, "12:00"), "30.00", "c-2", stamp(4, "08:00")),
        _order("tie-of-folders", stamp(3, "10:00"), "20.00", "c-1", stamp(3, "10:30")),
        # Late within the window.
        _order("late-in-window", stamp(2, "09:00"), "2.50", "c-3", stamp(4, "09:00")),
        _order("tokyo-day-five", stamp(4, "20:00"), "7.00", "c-3"),
    ]
    _write_lines(_folder(source, 4) / "part-0.jsonl.gz", moves)


def _write_late_lines(source: Path) -> None:
    records = [
        CSV_HEADER,
        _record("sixth", "c-1", stamp(6, "10:00"), "16.00"),
        _record("late-last-chance", "c-2", stamp(4, "10:00"), "4.40", stamp(6, "09:00")),
        _record("late-beyond", "c-2", stamp(3, "10:00"), "3.30", stamp(6, "09:00")),
        _record("late-without-customer", "", stamp(1, "10:00"), "1.10", stamp(6, "09:00")),
        # Shipped late, though the source took it in time.
        _record("shipped-late", "c-1", stamp(2, "10:00"), "2.20"),
        # To another day after the window of the first has closed.
        _record("moves-too-late", "c-2", stamp(6, "00:00:00"), "31.00", stamp(6, "12:00")),
        # A version beyond the window: it counts for what is known now, not for the facts.
        _record("plain", "c-1", stamp(1, "10:00"), "99.00", stamp(6, "12:00")),
    ]
    _write_lines(_folder(source, 6) / "part-0.csv.gz", records)


def _write_rejects(folder: Path) -> None:
    at = stamp(7, "10:00")
    half_a_pair = _order("\ud800", at)
    fine = [_order(f"seventh-{n}", stamp(7, f"0{n}:00"), f"{n}.07", f"c-{n}") for n in range(1, 4)]
    far = _order("far", at, taken=stamp(9, "00:00"))
    rejects: list[Line] = [
        b'{"order_id": "\xff"}',
        "no JSON",
        "[]",
        "{} {}",
        half_a_pair,
        _order(True, at),
        _order(None, at),
        _order("", at),
        _order("no-time", ""),
        _order("clock", "12:00", taken=at),
        _order("year-zero", "0000-01-01T00:00:00Z", taken=at),
        _order("no-amount", at, None),
        _order("words", at, "ten"),
        _order("three-decimals", at, "1.234"),
        _order("too-great", at, "1e17"),
        _order("not-taken", at) | {"ingestion_ts": None},
        _order("taken-when", at, taken="yesterday"),
        far,
    ]
    _write_lines(folder / "part-0.jsonl", [*fine, *rejects])
    # Known again after its window, in a file that has no line end.
    (folder / "part-1.jsonl").write_text(
        json.dumps(_order("no-customer", stamp(1, "11:00"), "20.50", "c-9", stamp(7, "11:00")))
    )


# --- changes of customers -------------------------------------------------------------------------


def _change(
    number: int, customer: str, op: str, at: str, taken: str = "", **values: str | None
) -> dict[str, Any]:
    attributes = {"email_status": "ok", "segment": "home", "country": "DE", **values}
    times = {"changed_at": at, "ingested_at": taken or at}
    return {"change_id": f"ch-{number}", "customer_id": customer, "op": op, **attributes, **times}


def _write_changes(source: Path) -> None:
    bounced = _change(4, "c-1", "update", stamp(2, "08:00"), email_status="bounced")
    by_arrival: dict[int, list[Line]] = {
        1: [
            _change(1, "c-1", "insert", stamp(1, "00:00")),
            _change(2, "c-2", "insert", stamp(1, "09:00"), segment=None, country="FR"),
            _change(3, "c-3", "insert", stamp(-20, "09:00"), stamp(1, "05:00"), country="US"),
        ],
        2: [bounced, bounced, _change(5, "c-3", "delete", stamp(2, "10:59"))],
        # Late: it tells of a moment before what is known; and at the same moment as another one.
        3: [
            _change(6, "c-2", "update", stamp(1, "20:00"), stamp(3, "07:00"), segment="work"),
            _change(7, "c-2", "update", stamp(1, "20:00"), stamp(3, "07:00"), segment="trade"),
        ],
        # A correction: of the moment, and of the customer whom it is about.
        4: [
            _change(4, "c-1", "update", stamp(2, "12:00"), stamp(4, "06:00"), country=None),
            _change(7, "c-3", "insert", stamp(3, "20:00"), stamp(4, "06:30"), segment="trade"),
        ],
        5: [],
        6: [
            _change(8, "c-1", "delete", stamp(6, "09:30")),
            _change(9, "c-1", "insert", stamp(6, "09:31"), segment="work", country="JP"),
            # An early line.
            _change(10, "c-2", "update", stamp(6, "23:50"), stamp(7, "00:05"), country="US"),
        ],
        7: [
            {**_change(11, "c-4", "insert", stamp(7, "01:00")), "op": None},
            _change(12, "c-4", "insert", "soon", stamp(7, "01:00")),
            _change(13, "c-4", "insert", stamp(7, "02:00")),
        ],
        8: [_change(14, "c-2", "update", stamp(5, "12:00"), stamp(8, "03:00"), segment="home")],
    }
    for arrival, lines in by_arrival.items():
        _write_lines(_folder(source, arrival) / "part-0.jsonl", lines)


# --- web events -----------------------------------------------------------------------------------


def _visit(name: str, at: str, sent: str = "", **values: Any) -> dict[str, Any]:
    return {
        "visit_id": name,
        "user_id": "u-1",
        "began_at": at,
        "page": "/",
        "clicks": 1,
        "logged_in": True,
        "properties": None,
        "sent_at": sent or at,
        **values,
    }


def _write_visits(source: Path) -> None:
    nested = {"agent": {"name": "Ünï", "version": [1, 2.5, None]}}
    by_arrival: dict[int, list[Line]] = {
        1: [
            _visit("v1", stamp(1, "10:00"), properties=nested),
            _visit("v2", stamp(1, "11:00"), user_id=None, logged_in=False, clicks=0),
        ],
        2: [
            _visit("v1", stamp(1, "10:00"), stamp(2, "00:30"), clicks=5),
            _visit("v3", stamp(2, "10:00"), user_id="u-2", page="/a b"),
        ],
        3: [_visit("v4", stamp(3, "10:00"), user_id="u-3")],
        4: [_visit("late", stamp(1, "12:00"), stamp(4, "01:00"), user_id="u-4")],
        5: [_visit("beyond", stamp(1, "13:00"), stamp(5, "01:00"), user_id="u-5")],
        6: [
            _visit("fine", stamp(6, "10:00"), user_id="u-2"),
            _visit("negative", stamp(6, "10:00"), clicks=-1),
            _visit("half", stamp(6, "10:00"), clicks=1.5),
            _visit("maybe", stamp(6, "10:00"), logged_in="maybe"),
            _visit("", stamp(6, "10:00")),
        ],
        7: [],
        8: [_visit("v8", stamp(8, "23:59"), stamp(9, "00:01")), _visit("v9", stamp(8, "09:00"))],
    }
    for arrival, lines in by_arrival.items():
        _write_lines(_folder(source, arrival) / "part-0.jsonl", lines)


def _write_page_views(source: Path) -> None:
    for number in range(1, DAYS + 1):
        # The third hour of a day does not come; its day is published all the same.
        for hour in (0, 1, 3, 23):
            views = [
                {
                    "view_id": f"p-{number}-{hour}-{k}",
                    "customer_id": None if k else f"c-{number % 3}",
                    "viewed_at": stamp(number, f"{hour:02d}:{10 * k:02d}"),
                    "sent_at": stamp(number, f"{hour:02d}:59"),
                }
                for k in range(number % 3)
            ]
            if (number, hour) == (2, 3):
                views.append({**views[0], "viewed_at": None})
            folder = _folder(source, number) / f"hour={hour:02d}"
            folder.mkdir()
            _write_lines(folder / "part-0.jsonl", views)
