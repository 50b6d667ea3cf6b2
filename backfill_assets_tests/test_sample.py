"""Test the sample data against the plain-Python model, and the model by hand; no Spark here."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill_assets_guide.sample.landings import write_cdnow_landing, write_invented_landing
from backfill_assets_tests.helpers.orders_model import (
    Model,
    Unreadable,
    parse_amount,
    parse_timestamp,
    run_model,
)
from backfill_assets_tests.helpers.paths import CDNOW

DAY = timedelta(days=1)
START = date(2024, 2, 20)  # so that the runs cross a leap day


def model_of(landing: Path, expected: dict) -> Model:
    """Run the model over everything the generator wrote."""
    start = date.fromisoformat(expected["start"])
    return run_model(
        landing,
        start=start,
        end=start + expected["days"] * DAY,
        window_days=expected["window_days"],
        timezone="UTC",
    )


def answer_of(model: Model, window_days: int) -> dict:
    """Return the model's answer in the shape of `expected.json`, every number of it."""
    days = list(model.landed)
    rejected = Counter(row["arrival_date"] for row in model.rejected)
    raw = Counter(row["log_date"] for row in model.raw)
    late = Counter(row["log_date"] for row in model.late)
    staged = Counter(row["event_date"] for row in model.staged)
    customers = Counter(day for day, _ in model.fact)
    orders: Counter[date] = Counter()
    revenue = dict.fromkeys(days, Decimal("0.00"))
    for (day, _), (count, amount) in model.fact.items():
        orders[day] += count
        revenue[day] += amount

    window = timedelta(days=window_days)
    in_time_ids = {
        row["order_id"] for row in model.raw if row["log_date"] <= row["order_ts"].date() + window
    }
    staged_ids = Counter(row["order_id"] for row in model.staged)
    return {
        "arrival_days": {
            str(day): {
                "landed": model.landed[day],
                "rejected": rejected[day],
                "early": model.early[day],
            }
            for day in days
        },
        "log_days": {str(day): {"raw": raw[day], "late": late[day]} for day in days},
        "event_days": {
            str(day): {
                "staged": staged[day],
                "superseded": model.superseded[day],
                "customers": customers[day],
                "orders": orders[day],
                "revenue": str(revenue[day]),
            }
            for day in days
        },
        "totals": {
            "landed": sum(model.landed.values()),
            "rejected": len(model.rejected),
            "early": sum(model.early.values()),
            "raw": len(model.raw),
            "late": len(model.late),
            "staged": len(model.staged),
            "superseded": sum(model.superseded.values()),
            "fact_rows": len(model.fact),
            "revenue": str(sum((amount for _, amount in model.fact.values()), Decimal("0.00"))),
            "orders_on_two_days": sum(count > 1 for count in staged_ids.values()),
            "orders_on_no_day": len(in_time_ids - set(staged_ids)),
        },
    }


# --- the generator ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """One sample, large enough to hold every trouble."""
    landing = tmp_path_factory.mktemp("sample")
    return landing, write_invented_landing(landing, start=START, days=24, orders_per_day=300)


@pytest.mark.parametrize(
    ("days", "orders_per_day", "seed", "window_days"),
    [
        (1, 0, 1, 7),
        (1, 50, 1, 7),
        (2, 50, 2, 7),
        (12, 100, 3, 0),
        (15, 100, 4, 1),
        (20, 40, 5, 3),
        (30, 200, 7, 7),
        (25, 500, 11, 7),
        (10, 100, 12, 30),
        *[(14, 60, seed, 2) for seed in range(20, 30)],
    ],
)
def test_the_expected_answer_is_the_models(
    tmp_path: Path, days: int, orders_per_day: int, seed: int, window_days: int
) -> None:
    """Two derivations that share no code agree on every number."""
    expected = write_invented_landing(
        tmp_path,
        start=START,
        days=days,
        orders_per_day=orders_per_day,
        seed=seed,
        window_days=window_days,
    )

    answer = answer_of(model_of(tmp_path, expected), window_days)

    assert {key: expected[key] for key in answer} == answer
    assert json.loads((tmp_path / "expected.json").read_text()) == expected


def test_nothing_is_lost(sample: tuple[Path, dict]) -> None:
    """The identities of the design hold in the model, day by day."""
    landing, expected = sample
    model = model_of(landing, expected)
    raw = Counter(row["log_date"] for row in model.raw)
    rejected = Counter(row["arrival_date"] for row in model.rejected)
    for day, landed in model.landed.items():
        early_before = model.early.get(day - DAY, 0)
        assert landed == raw[day] - early_before + model.early[day] + rejected[day]
    assert len(model.raw) == sum(model.in_time.values()) + len(model.late)
    assert min(model.superseded.values()) >= 0


def test_a_day_alone_is_the_day_in_a_range(sample: tuple[Path, dict]) -> None:
    """What is logged after a day's window does not influence it, however long the range."""
    landing, expected = sample
    whole = model_of(landing, expected)
    end = START + expected["days"] * DAY
    for day in (START, START + 9 * DAY, START + 15 * DAY):
        alone = run_model(
            landing, start=day, end=min(day + 8 * DAY, end), window_days=7, timezone="UTC"
        )
        assert [row for row in alone.staged if row["event_date"] == day] == [
            row for row in whole.staged if row["event_date"] == day
        ]
        assert [row for row in alone.raw if row["log_date"] == day] == [
            row for row in whole.raw if row["log_date"] == day
        ]


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    """A seed decides every byte, those of compressed files included; another seed differs."""
    contents = []
    for name, seed in (("first", 3), ("second", 3), ("third", 4)):
        landing = tmp_path / name
        write_invented_landing(landing, start=START, days=14, orders_per_day=80, seed=seed)
        contents.append(
            {p.relative_to(landing): p.read_bytes() for p in landing.rglob("*") if p.is_file()}
        )
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_landed_files_are_never_changed(tmp_path: Path) -> None:
    """A second landing in the same place is an error, not a mixture."""
    write_invented_landing(tmp_path, start=START, days=1, orders_per_day=1)
    with pytest.raises(FileExistsError):
        write_invented_landing(tmp_path, start=START, days=1, orders_per_day=1)


def test_every_arrival_day_has_a_folder(sample: tuple[Path, dict]) -> None:
    """Folders are those of the calendar, no more and no fewer."""
    landing, expected = sample
    folders = sorted(p.name for p in (landing / "orders").iterdir())
    assert folders == [f"arrival_date={START + n * DAY}" for n in range(expected["days"])]


def test_every_format_occurs(sample: tuple[Path, dict]) -> None:
    """All formats, an empty file, a byte-order mark, CRLF and a Parquet file of strings."""
    landing, _ = sample
    files = sorted(p for p in (landing / "orders").rglob("part-*"))
    suffixes = Counter(path.name.split(".", 1)[1] for path in files)
    assert set(suffixes) == {"jsonl", "jsonl.gz", "json", "csv", "csv.gz", "parquet"}
    assert suffixes.most_common(1)[0][0] == "jsonl"
    assert sum(path.stat().st_size == 0 for path in files) == 1
    assert sum(path.read_bytes().startswith(b"\xef\xbb\xbf") for path in files) == 1
    texts = [path.read_bytes() for path in files if path.suffix in (".json", ".jsonl", ".csv")]
    assert sum(b"\r\n" in text for text in texts) == 1
    types = {pq.read_schema(p).field("amount").type for p in files if p.suffix == ".parquet"}
    assert types == {pa.decimal128(18, 2), pa.string()}
    for path in (path for path in files if path.suffix == ".gz"):
        assert gzip.decompress(path.read_bytes())


def test_every_trouble_occurs(sample: tuple[Path, dict]) -> None:
    """Late, early, resent, corrected and malformed lines are all there, in likely numbers."""
    landing, expected = sample
    model = model_of(landing, expected)
    totals = expected["totals"]
    assert totals["late"] > 0
    assert totals["early"] > 0
    assert 0.002 < totals["rejected"] / totals["landed"] < 0.01
    assert len({row["reason"] for row in model.rejected}) >= 6
    assert any(row["reason"] == "version time in the future" for row in model.rejected)

    versions: dict[str, list[dict]] = {}
    for row in model.raw:
        versions.setdefault(row["order_id"], []).append(row)

    def count_changed(*names: str) -> int:
        return sum(
            len({tuple(row[name] for name in names) for row in history}) > 1
            for history in versions.values()
        )

    orders = len(versions)
    assert count_changed("amount") > 0
    assert count_changed("customer_id") > 0
    moved = [
        history
        for history in versions.values()
        if len({row["order_ts"].date() for row in history}) > 1
    ]
    assert moved
    content = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts")
    resent = [
        history
        for history in versions.values()
        if max(Counter(tuple(row[name] for name in content) for row in history).values()) > 1
    ]
    assert 0.01 < len(resent) / orders < 0.03
    assert any(len({row["arrival_date"] for row in history}) > 1 for history in resent)
    assert any(len({row["arrival_date"] for row in history}) == 1 for history in resent)

    delays = Counter((row["log_date"] - row["order_ts"].date()).days for row in model.raw)
    late_in_window = sum(count for delay, count in delays.items() if 1 <= delay <= 7)
    assert 0.03 < late_in_window / len(model.raw) < 0.08
    anonymous = sum(row["customer_id"] is None for row in model.raw)
    assert 0.01 < anonymous / len(model.raw) < 0.03
    # Early both ways: ingested after midnight, and (a clock that runs ahead) happened after it.
    early = [row for row in model.raw if row["log_date"] > row["arrival_date"]]
    assert {row["order_ts"].date() - row["arrival_date"] for row in early} == {0 * DAY, DAY}


def test_a_few_customers_buy_much(sample: tuple[Path, dict]) -> None:
    """The head of the customers is heavy and the tail long."""
    landing, expected = sample
    model = model_of(landing, expected)
    counts = Counter(row["customer_id"] for row in model.raw if row["customer_id"])
    top = sum(count for _, count in counts.most_common(10))
    assert top / counts.total() > 0.25
    assert sum(count == 1 for count in counts.values()) > 100


def test_control_files_count_the_accepted_lines(sample: tuple[Path, dict]) -> None:
    """A control file holds for its arrival folder, early lines included, malformed ones not."""
    landing, expected = sample
    model = model_of(landing, expected)
    controls = sorted((landing / "orders").rglob("_control.json"))
    assert len(controls) == expected["days"] // 3
    for path in controls:
        arrival = date.fromisoformat(path.parent.name.removeprefix("arrival_date="))
        rows = [row for row in model.raw if row["arrival_date"] == arrival]
        total = sum((row["amount"] for row in rows), Decimal("0.00"))
        assert json.loads(path.read_text()) == {"rows": len(rows), "amount": str(total)}


# --- CDNOW --------------------------------------------------------------------------------------


@pytest.mark.skipif(not CDNOW.exists(), reason="the CDNOW master file is not here")
def test_cdnow_adds_up(tmp_path: Path) -> None:
    """The published totals of the data set come out at the other end."""
    assert write_cdnow_landing(CDNOW, tmp_path) == 69_659
    model = run_model(
        tmp_path, start=date(1997, 1, 1), end=date(1998, 7, 1), window_days=7, timezone="UTC"
    )
    assert len(list((tmp_path / "orders").iterdir())) == 546
    assert not model.rejected and not model.late
    assert sum(model.superseded.values()) == 0
    assert len(model.staged) == 69_659
    assert len(model.fact) == 67_591
    assert sum(amount for _, amount in model.fact.values()) == Decimal("2500315.63")
    assert sum(row["amount"] == 0 for row in model.staged) == 80
    orders: Counter[date] = Counter()
    for (day, _), (count, _) in model.fact.items():
        orders[day] += count
    assert orders.most_common(1) == [(date(1997, 2, 24), 504)]
    assert min(orders.values()) == 44


def test_cdnow_refuses_what_is_no_record(tmp_path: Path) -> None:
    """A line in another shape is an error and not a gap."""
    master = tmp_path / "master.txt"
    master.write_text("id date cds value\n 00001 19970101  1   11.77\n 00001 19970101  1\n")
    with pytest.raises(ValueError, match="not a CDNOW record"):
        write_cdnow_landing(master, tmp_path / "landing")


# --- the model itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.5", "12.50"), ("12.500", "12.50"), ("1.25e1", "12.50"), ("+.5", "0.50"),
        ("5.", "5.00"), ("-0.01", "-0.01"), ("0e999999999999999999999", "0.00"),
        ("100e-2", "1.00"), ("1e15", "1000000000000000.00"),
        ("9999999999999999.99", "9999999999999999.99"), ("00000000000000000000001", "1.00"),
        ("0." + "0" * 900 + "1e900", "0.10"), ("1" + "0" * 900 + "e-900", "1.00"),
    ],
)  # fmt: skip
def test_amounts_by_value(text: str, value: str) -> None:
    """What counts is the value, not the notation."""
    assert str(parse_amount(text)) == value


@pytest.mark.parametrize(
    "text",
    ["", None, "12.345", "abc", "1e16", "1e-3", " 1", "1 ", "1_000", "1,5", "NaN", "inf", ".",
     "1e", "--1", "0x10", "\u0661", "1e99999999999999999999", True, "9" * 5000],
)  # fmt: skip
def test_amounts_refused(text: object) -> None:
    """Nothing is rounded, guessed or overflows."""
    with pytest.raises(Unreadable):
        parse_amount(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-02-29", "2024-02-29T00:00:00"),
        ("2024-02-29 10:30", "2024-02-29T10:30:00"),
        ("2024-02-29T10:30+02", "2024-02-29T08:30:00"),
        ("2024-02-29T10:30:15Z", "2024-02-29T10:30:15"),
        ("2024-02-29T23:30:15,1234567-0130", "2024-03-01T01:00:15.123456"),
        ("2024-02-29T10:30:15.5+18:00", "2024-02-28T16:30:15.500000"),
        ("0001-01-01", "0001-01-01T00:00:00"),
    ],
)
def test_timestamps(text: str, value: str) -> None:
    """Every permitted notation, taken to UTC."""
    assert parse_timestamp(text) == datetime.fromisoformat(value).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text",
    ["", None, "2023-02-29", "2024-02-29Z", "2024-02-29T10", "2024-02-29T24:00", "20240229",
     "2024-02-29T10:30:60", "2024-02-29t10:30", "2024-02-29T10:30z", "2024-02-29T10:30+18:01",
     "2024-02-29T10:30+02:60", " 2024-02-29", "2024-02-29\n", "0000-01-01", "2024-2-9",
     "0001-01-01T00:00+01:00", "2024-02-29T10:30:15.", "2024-02-29T10:30.5", 1709164800],
)  # fmt: skip
def test_timestamps_refused(text: object) -> None:
    """What is not a date-time is not taken for one."""
    with pytest.raises(Unreadable):
        parse_timestamp(text)


def land_file(landing: Path, arrival: str, name: str, data: str | bytes) -> None:
    """Write one landing file by hand."""
    folder = landing / "orders" / f"arrival_date={arrival}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def json_line(
    order_id: object, order_ts: str, ingestion_ts: str, amount: object = "1.00", **more: object
) -> str:
    """Return one JSON line."""
    fields = {
        "order_id": order_id,
        "order_ts": order_ts,
        "ingestion_ts": ingestion_ts,
        "amount": amount,
        **more,
    }
    return json.dumps(fields) + "\n"


def run_model_for(
    landing: Path, start: str, end: str, *, window: int = 2, zone: str = "UTC"
) -> Model:
    """Run the model over days given as text."""
    return run_model(
        landing,
        start=date.fromisoformat(start),
        end=date.fromisoformat(end),
        window_days=window,
        timezone=zone,
    )


def test_model_early_lines_are_logged_the_next_day(tmp_path: Path) -> None:
    """Folders named in UTC, business in Tokyo: after 15:00 UTC it is tomorrow."""
    land_file(
        tmp_path,
        "2024-01-01",
        "a.jsonl",
        json_line("noon", "2024-01-01T03:00:00Z", "2024-01-01T03:01:00Z")
        + json_line("evening", "2024-01-01T16:00:00Z", "2024-01-01T16:01:00Z")
        + json_line("future", "2024-01-02T15:00:00Z", "2024-01-02T15:00:00Z"),
    )
    first = run_model_for(tmp_path, "2024-01-01", "2024-01-02", zone="Asia/Tokyo")
    assert [row["order_id"] for row in first.raw] == ["noon"]
    assert len(first.rejected) == 1
    assert first.early == {date(2024, 1, 1): 1}
    second = run_model_for(tmp_path, "2024-01-02", "2024-01-03", zone="Asia/Tokyo")
    assert [row["order_id"] for row in second.raw] == ["evening"]
    assert second.rejected == []  # that line is the first's, by its arrival day
    assert second.landed == {date(2024, 1, 2): 0}
    assert [row["event_date"] for row in second.staged] == [date(2024, 1, 2)]


def test_model_an_order_moves_and_late_versions_do_not_count(tmp_path: Path) -> None:
    """A correction in time moves the order; one after the window goes to late."""
    land_file(
        tmp_path, "2024-01-02", "a.jsonl", json_line("a", "2024-01-02", "2024-01-02", "1.00") * 2
    )
    land_file(tmp_path, "2024-01-03", "a.jsonl", json_line("a", "2024-01-01", "2024-01-03", "2.00"))
    land_file(tmp_path, "2024-01-04", "a.jsonl", json_line("a", "2024-01-01", "2024-01-04", "3.00"))
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-05")
    assert [(row["event_date"].day, str(row["amount"])) for row in model.staged] == [(1, "2.00")]
    assert [(row["log_date"].day, str(row["amount"])) for row in model.late] == [(4, "3.00")]
    assert model.superseded[date(2024, 1, 2)] == 2
    assert model.fact == {(date(2024, 1, 1), "unknown"): (1, Decimal("2.00"))}


@pytest.mark.parametrize("versions", [("1.00", "1.00"), ("1.00", "2.00"), ("2.00", "-9.00")])
def test_model_ties_are_broken_by_amount(tmp_path: Path, versions: tuple[str, str]) -> None:
    """Of identical rows one counts; of rows that tie in time the greater amount."""
    lines = [json_line("a", "2024-01-02", "2024-01-02", amount) for amount in versions]
    land_file(tmp_path, "2024-01-02", "a.jsonl", "".join(lines))
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-05")
    assert [row["amount"] for row in model.staged] == [max(map(Decimal, versions))]


def test_model_of_equal_times_the_later_logged_wins(tmp_path: Path) -> None:
    """The log day comes before the amount, and a line sent again counts as the later one."""
    land_file(tmp_path, "2024-01-02", "a.jsonl", json_line("a", "2024-01-02", "2024-01-02", "5.00"))
    land_file(tmp_path, "2024-01-03", "a.jsonl", json_line("a", "2024-01-02", "2024-01-02", "1.00"))
    land_file(tmp_path, "2024-01-04", "a.jsonl", json_line("a", "2024-01-02", "2024-01-02", "1.00"))
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-05")
    assert [(row["log_date"].day, str(row["amount"])) for row in model.staged] == [(4, "1.00")]


def test_model_version_time_is_the_later_of_both(tmp_path: Path) -> None:
    """An order that claims to happen after its ingestion is logged on the day it happens."""
    land_file(
        tmp_path,
        "2024-01-01",
        "a.jsonl",
        json_line("ahead", "2024-01-02T00:00:05Z", "2024-01-01T23:59:59Z")
        + json_line("future", "2024-01-03", "2024-01-01T23:59:59Z"),
    )
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-05")
    assert [(row["order_id"], row["log_date"].day) for row in model.raw] == [("ahead", 2)]
    assert [row["reason"] for row in model.rejected] == ["version time in the future"]


def test_model_json_lines(tmp_path: Path) -> None:
    """One object a line; whole numbers keep their text as ids; what else is no text is refused."""
    good = '"order_ts":"2024-01-01","ingestion_ts":"2024-01-01"'
    accepted = [
        f'{{"order_id":150,"customer_id":-7,"amount":12.500,{good}}}',
        f'{{"order_id":"a","order_id":" b","amount":"1e1","customer_id":"",{good},"x":[1,{{}}]}}',
    ]
    rejected = [
        f'{{"order_id":1.50,"amount":1,{good}}}',
        f'{{"order_id":"a","customer_id":1e3,"amount":1,{good}}}',
        f'{{"order_id":"","amount":1,{good}}}',
        f'{{"order_id":true,"amount":1,{good}}}',
        f'{{"order_id":"a","customer_id":["x"],"amount":1,{good}}}',
        f'{{"order_id":"a","amount":NaN,{good}}}',
        f'{{"order_id":"a","amount":1,{good},"x":NaN}}',
        f'{{"order_id":"a","amount":1,{good}}} {{}}',
        f'{{"order_id":"a","amount":1,{good}',
        f'[{{"order_id":"a","amount":1,{good}}}]',
        '{"order_id":"a","amount":1,"order_ts":20240101,"ingestion_ts":"2024-01-01"}',
        '{"order_id":"a","amount":1,"order_ts":"2024-01-01","ingestion_ts":null}',
        "[" * 100_000,
        "null",
    ]
    text = "\n \t\n".join(accepted + rejected)
    land_file(tmp_path, "2024-01-01", "a.json", b"\xef\xbb\xbf" + text.encode() + b"\n\xff{}\n")
    land_file(tmp_path, "2024-01-01", "_a.json", "not read")
    land_file(tmp_path, "2024-01-01", ".a.json", "not read")
    land_file(tmp_path, "2024-01-01", "a.txt", "not read")
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-02")
    assert [(row["order_id"], row["customer_id"], str(row["amount"])) for row in model.raw] == [
        ("150", "-7", "12.50"),
        (" b", None, "10.00"),
    ]
    assert len(model.rejected) == len(rejected) + 1
    assert model.landed == {date(2024, 1, 1): len(accepted) + len(rejected) + 1}


def test_model_csv(tmp_path: Path) -> None:
    """Columns by name, quotes doubled, headers repeated, records of a wrong length refused."""
    text = "\r\n".join(
        [
            "amount,order_ts,customer_id,order_id,ingestion_ts",
            '1.5,2024-01-01,"M ""N"", Ltd",a,2024-01-01',
            '"2",2024-01-01,,"b",2024-01-01',
            "amount,order_ts,customer_id,order_id,ingestion_ts",
            "",
            "3,2024-01-01,,c",
            "3,2024-01-01,,c,2024-01-01,",
            '3,2024-01-01,"x"y,c,2024-01-01',
            ",2024-01-01,x,c,2024-01-01",
            '4,2024-01-01,"",d,2024-01-01',
        ]
    )
    land_file(tmp_path, "2024-01-01", "a.csv.gz", gzip.compress(text.encode()))
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-02")
    assert [(row["order_id"], row["customer_id"], str(row["amount"])) for row in model.raw] == [
        ("a", 'M "N", Ltd', "1.50"),
        ("b", None, "2.00"),
        ("d", None, "4.00"),
    ]
    assert len(model.rejected) == 4
    assert model.raw[0]["source_file"] == "arrival_date=2024-01-01/a.csv.gz"


def test_model_parquet(tmp_path: Path) -> None:
    """Typed columns are taken by value, and a missing column is a missing key."""
    folder = tmp_path / "orders" / "arrival_date=2024-01-01"
    folder.mkdir(parents=True)
    naive = datetime(2024, 1, 1, 10, 0, 0, 5)  # noqa: DTZ001 - a naive column is the point
    table = pa.table(
        {
            "order_id": pa.array([1, 2, None], pa.int64()),
            "order_ts": pa.array([naive] * 3, pa.timestamp("ns")),
            "amount": pa.array([12.34, 0.125, 1.0], pa.float64()),
            "ingestion_ts": pa.array([date(2024, 1, 1)] * 3, pa.date32()),
        }
    )
    pq.write_table(table, folder / "a.parquet")
    pq.write_table(table.drop_columns(["amount"]), folder / "b.parquet")
    model = run_model_for(tmp_path, "2024-01-01", "2024-01-02")
    assert [(row["order_id"], str(row["amount"])) for row in model.raw] == [("1", "12.34")]
    assert model.raw[0]["order_ts"] == naive.replace(tzinfo=timezone.utc)
    assert len(model.rejected) == 5
