"""What a field means: amounts, timestamps, log days, and the reasons of rejection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from zoneinfo import ZoneInfo

import pyspark.sql.types as T
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column
from pyspark.sql import functions as F

from backfill_assets.assets.raw_rows import (
    accepted_rows,
    is_ambiguous,
    later_moment,
    parse_decimal,
    parse_timestamp,
    read_versions,
    rejected_rows,
)
from backfill_assets.orders.tables import ORDER_LINES, RAW, REJECTED
from backfill_assets_tests.helpers import orders_model

FIELDS = ORDER_LINES.fields

AMOUNTS = {
    "0": "0.00",
    "10": "10.00",
    "10.": "10.00",
    ".5": "0.50",
    "+7.10": "7.10",
    "-7.10": "-7.10",
    "-0.00": "0.00",
    "-0": "0.00",
    "007": "7.00",
    "12.500": "12.50",
    "12.50000000000000000000000000000000000000000000": "12.50",
    "0000000000000000000000000000000000000000000012.5": "12.50",
    "12.345": None,
    "0.001": None,
    "0.000": "0.00",
    "0.0100000000000000000000000000000000000000000001": None,
    # Exponents.
    "1e3": "1000.00",
    "1E+3": "1000.00",
    "1.5e1": "15.00",
    "1234e-2": "12.34",
    "1234e-3": None,
    "12340e-3": "12.34",
    "-.5e-1": "-0.05",
    "1e0000000000000000000000002": "100.00",
    "1e-0000000000000000000000002": "0.01",
    "10000000000000000000000000000000000000000e-40": "1.00",
    "1e16": None,
    "1e15": "1000000000000000.00",
    "1e999999999": None,
    "1e-999999999": None,
    "1e2147483647": None,
    "1e-2147483648": None,
    "1e9223372036854775807": None,
    "1e-9223372036854775808": None,
    "1e99999999999999999999999": None,
    "0e99999999999999999999999": "0.00",
    "-0.000e-999999999": "0.00",
    # The limits of decimal(18,2).
    "9999999999999999.99": "9999999999999999.99",
    "-9999999999999999.99": "-9999999999999999.99",
    "9999999999999999.990": "9999999999999999.99",
    "9999999999999999.995": None,
    "10000000000000000": None,
    "10000000000000000.00": None,
    "00000000000000009999999999999999.99": "9999999999999999.99",
    # Not amounts.
    "": None,
    ".": None,
    "+": None,
    "-": None,
    "e5": None,
    "1e": None,
    "1e+": None,
    "1e1.5": None,
    "1.2.3": None,
    "--1": None,
    "1,50": None,
    "1 000": None,
    " 1": None,
    "1 ": None,
    "1\n": None,
    "1\u2028": None,
    "1\x85": None,
    "\u0661": None,
    "1_000": None,
    "0x10": None,
    "1f": None,
    "1d": None,
    "NaN": None,
    "Infinity": None,
    "-inf": None,
    "null": None,
    "true": None,
    "$5": None,
}

TIMESTAMPS = {
    "2024-01-02T03:04:05Z": "2024-01-02T03:04:05",
    "2024-01-02 03:04:05": "2024-01-02T03:04:05",
    "2024-01-02T03:04": "2024-01-02T03:04:00",
    "2024-01-02T03:04Z": "2024-01-02T03:04:00",
    "2024-01-02": "2024-01-02T00:00:00",
    "2024-01-02T03:04:05.6": "2024-01-02T03:04:05.600000",
    "2024-01-02T03:04:05,678Z": "2024-01-02T03:04:05.678000",
    "2024-01-02T03:04:05.123456Z": "2024-01-02T03:04:05.123456",
    "2024-01-02T03:04:05.123456999999999999Z": "2024-01-02T03:04:05.123456",
    "1969-12-31T23:59:59.9999999Z": "1969-12-31T23:59:59.999999",
    # Offsets.
    "2024-01-02T03:04:05+09:00": "2024-01-01T18:04:05",
    "2024-01-02T03:04:05-0330": "2024-01-02T06:34:05",
    "2024-01-02T03:04:05+05": "2024-01-01T22:04:05",
    "2024-01-02 03:04+05:30": "2024-01-01T21:34:00",
    "2024-01-02T03:04:05-00:00": "2024-01-02T03:04:05",
    "2024-01-02T03:04:05+18:00": "2024-01-01T09:04:05",
    "2024-01-02T03:04:05+18:01": None,
    "2024-01-02T03:04:05+19": None,
    "2024-01-02T03:04:05+09:60": None,
    "2024-01-02T03:04:05+9:00": None,
    "2024-01-02T03:04:05 +09:00": None,
    "2024-01-02T03:04:05 Z": None,
    "2024-01-02T03:04:05z": None,
    "2024-01-02T03:04:05 UTC": None,
    "2024-01-02T03:04:05Europe/Berlin": None,
    "2024-01-02T03:04:05+09:00:00": None,
    # The calendar.
    "2024-02-29T00:00:00Z": "2024-02-29T00:00:00",
    "2023-02-29T00:00:00Z": None,
    "1900-02-29T00:00:00Z": None,
    "1582-10-10T00:00:00Z": "1582-10-10T00:00:00",
    "2024-13-01T00:00:00Z": None,
    "2024-00-10T00:00:00Z": None,
    "2024-01-00T00:00:00Z": None,
    "2024-01-02T24:00:00Z": None,
    "2024-01-02T23:60:00Z": None,
    "2024-06-30T23:59:60Z": None,
    # The first and the last moment that Python knows.
    "0001-01-01T00:00:00Z": "0001-01-01T00:00:00",
    "0001-01-01T00:00:00+00:01": None,
    "0000-12-31T23:59:59Z": None,
    "0000-12-31T23:59:59-00:01": None,
    "9999-12-31T23:59:59.9999999Z": "9999-12-31T23:59:59.999999",
    "9999-12-31T23:59:59-00:01": None,
    "10000-01-01T00:00:00Z": None,
    "-2024-01-02T00:00:00Z": None,
    "+2024-01-02T00:00:00Z": None,
    # Not timestamps.
    "": None,
    "2024": None,
    "2024-01": None,
    "2024-1-2": None,
    "12:00": None,
    "T12:00": None,
    "20240102T030405Z": None,
    "2024-01-02T03": None,
    "2024-01-02T3:04:05": None,
    "2024-01-02T03:04:05.": None,
    "2024-01-02t03:04:05": None,
    "2024-01-02Z": None,
    "2024-01-02+01:00": None,
    "2024-01-02  03:04:05": None,
    " 2024-01-02": None,
    "2024-01-02 ": None,
    "2024-01-02T03:04:05Z\n": None,
    "2024-01-02\u2029": None,
    "2024-01-0\u0662": None,
    "1704164645": None,
    "today": None,
    "now": None,
    "epoch": None,
}


def read_money(spark, texts: Sequence[str]) -> list[Decimal | None]:
    return _read_texts(spark, texts, lambda text: parse_decimal(text, T.DecimalType(18, 2)))


def read_timestamps(spark, texts: Sequence[str]) -> list[datetime | None]:
    # As integers: a datetime would be moved to the zone of the machine that runs the test.
    micros = _read_texts(spark, texts, lambda text: F.unix_micros(parse_timestamp(text)))
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return [None if n is None else epoch + timedelta(microseconds=n) for n in micros]


def _read_texts(spark, texts: Sequence[str], read: Callable) -> list:
    frame = spark.createDataFrame(list(enumerate(texts)), "n INT, text STRING")
    values = {
        row["n"]: row["value"]
        for row in frame.select("n", read(F.col("text")).alias("value")).collect()
    }
    return [values[n] for n in range(len(texts))]


def parse_or_none(parse: Callable, text: str) -> Decimal | datetime | None:
    try:
        return parse(text)
    except orders_model.Unreadable:
        return None


def test_amounts(spark) -> None:
    read = dict(zip(AMOUNTS, read_money(spark, list(AMOUNTS)), strict=True))
    assert read == {t: None if x is None else Decimal(x) for t, x in AMOUNTS.items()}
    assert read == {text: parse_or_none(orders_model.parse_amount, text) for text in AMOUNTS}
    assert not read["-0.00"].is_signed()
    assert {x.as_tuple().exponent for x in read.values() if x is not None} == {-2}


def test_timestamps(spark) -> None:
    read = dict(zip(TIMESTAMPS, read_timestamps(spark, list(TIMESTAMPS)), strict=True))
    assert read == {
        text: None if x is None else datetime.fromisoformat(x).replace(tzinfo=timezone.utc)
        for text, x in TIMESTAMPS.items()
    }
    assert read == {text: parse_or_none(orders_model.parse_timestamp, text) for text in TIMESTAMPS}


_digits = st.text("0123456789", max_size=6) | st.sampled_from(["0" * 30, "9" * 16, "1" + "0" * 40])
_exponents = st.integers(-45, 45) | st.sampled_from(
    [10**9, -(10**9), 2**31, -(2**31), 2**63, -(2**63)]
)
_amounts = st.builds(
    lambda sign, whole, point, fraction, exponent, tail: (
        f"{sign}{whole}{point}{fraction}{exponent}{tail}"
    ),
    st.sampled_from(["", "", "-", "+"]),
    _digits,
    st.sampled_from([".", "", "."]),
    _digits | st.sampled_from(["5", "50", "25", "250", "00"]),
    st.sampled_from(["", ""]) | st.builds("{}{}".format, st.sampled_from("eE"), _exponents),
    st.sampled_from(["", "", "", "", "", "", "", "\n", " ", "x", "."]),
)
_two = st.integers(0, 62).map("{:02}".format)
_timestamps = st.builds(
    lambda year, month, day, between, clock, tail: (
        f"{year}-{month:02}-{day:02}{between}{clock}{tail}"
    ),
    st.sampled_from(["0000", "0001", "1582", "1900", "1969", "2023", "2024", "9999", "10000"]),
    st.integers(0, 13),
    st.integers(0, 32) | st.sampled_from([1, 28, 29, 30, 31]),
    st.sampled_from(["T", "T", "T", " ", "", "t"]),
    st.builds("{:02}:{}".format, st.integers(0, 24), _two)
    | st.builds(
        "{:02}:{}:{}".format, st.integers(0, 23), st.integers(0, 59).map("{:02}".format), _two
    )
    | st.builds("23:59:59{}{}".format, st.sampled_from(".,"), st.text("0123456789", max_size=12))
    | st.just(""),
    st.sampled_from(["", "Z", "Z", "z", "\n", " ", "+00:00", "-18:00", "+1801", "+05", "-1"])
    | st.builds("{}{}{}{}".format, st.sampled_from("+-"), _two, st.sampled_from(["", ":"]), _two),
)


# A Spark action costs far more than the strings in it: few examples with many strings each, and no
# shrinking, as the strings that differ are named anyway.
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
@given(
    amounts=st.lists(_amounts, min_size=80, max_size=120),
    moments=st.lists(_timestamps, min_size=80, max_size=120),
)
def test_any_amount_and_timestamp_reads_as_in_the_model(
    spark, amounts: list[str], moments: list[str]
) -> None:
    assert _list_differences(amounts, read_money(spark, amounts), orders_model.parse_amount) == {}
    assert (
        _list_differences(moments, read_timestamps(spark, moments), orders_model.parse_timestamp)
        == {}
    )


def _list_differences(texts: Sequence[str], read: Sequence, parse: Callable) -> dict:
    expected = [parse_or_none(parse, text) for text in texts]
    triples = zip(texts, read, expected, strict=True)
    return {
        text: (value, expected_value)
        for text, value, expected_value in triples
        if value != expected_value
    }


NOON = "2024-01-05T12:00:00Z"
NO_AMOUNT = "not a number that decimal(18,2) holds, with a point for decimals"
FUTURE = "from the future: its version time lies beyond the day after arrival"
# Business zone, arrival day, order_ts, ingestion_ts: log day or reason.
LOG_DAYS = [
    ("UTC", "2024-01-05", NOON, NOON, "2024-01-05"),
    ("UTC", "2024-01-05", "2019-01-05", "2019-01-05", "2024-01-05"),
    ("UTC", "2024-01-05", NOON, "2024-01-05T23:59:59.999999Z", "2024-01-05"),
    ("UTC", "2024-01-05", NOON, "2024-01-06T00:00:00Z", "2024-01-06"),
    ("UTC", "2024-01-05", NOON, "2024-01-06T23:59:59.999999Z", "2024-01-06"),
    ("UTC", "2024-01-05", NOON, "2024-01-07T00:00:00Z", FUTURE),
    # The order may be later than what tells of it: the later one counts.
    ("UTC", "2024-01-05", "2024-01-06T01:00:00Z", NOON, "2024-01-06"),
    ("UTC", "2024-01-05", "2024-01-07T01:00:00Z", NOON, FUTURE),
    ("UTC", "2024-01-05", "9999-12-31T23:59:59Z", NOON, FUTURE),
    # A month's and a year's end, a leap day.
    ("UTC", "2024-02-28", "2024-02-28", "2024-02-29T10:00:00Z", "2024-02-29"),
    ("UTC", "2023-12-31", "2023-12-31", "2024-01-01T10:00:00Z", "2024-01-01"),
    # In Tokyo the day is over at 15:00 UTC: lines of a folder named in UTC are early.
    ("Asia/Tokyo", "2024-01-05", NOON, "2024-01-05T14:59:59.999999Z", "2024-01-05"),
    ("Asia/Tokyo", "2024-01-05", NOON, "2024-01-05T15:00:00Z", "2024-01-06"),
    ("Asia/Tokyo", "2024-01-05", NOON, "2024-01-06T00:00:00+09:00", "2024-01-06"),
    ("Asia/Tokyo", "2024-01-05", NOON, "2024-01-06T14:59:59Z", "2024-01-06"),
    ("Asia/Tokyo", "2024-01-05", NOON, "2024-01-06T15:00:00Z", FUTURE),
    # Days of 23 and of 25 hours.
    ("Europe/Berlin", "2024-03-30", "2024-03-30", "2024-03-30T22:59:59.999999Z", "2024-03-30"),
    ("Europe/Berlin", "2024-03-30", "2024-03-30", "2024-03-30T23:00:00Z", "2024-03-31"),
    ("Europe/Berlin", "2024-03-30", "2024-03-30", "2024-03-31T21:59:59.999999Z", "2024-03-31"),
    ("Europe/Berlin", "2024-03-30", "2024-03-30", "2024-03-31T22:00:00Z", FUTURE),
    ("Europe/Berlin", "2024-10-26", "2024-10-26", "2024-10-26T21:59:59.999999Z", "2024-10-26"),
    ("Europe/Berlin", "2024-10-26", "2024-10-26", "2024-10-26T22:00:00Z", "2024-10-27"),
    ("Europe/Berlin", "2024-10-26", "2024-10-26", "2024-10-27T22:59:59.999999Z", "2024-10-27"),
    ("Europe/Berlin", "2024-10-26", "2024-10-26", "2024-10-27T23:00:00Z", FUTURE),
    # No date can hold the last day of the year 0.
    ("UTC", "2024-01-05", "0001-01-01T00:00:00Z", NOON, "2024-01-05"),
    ("America/New_York", "2024-01-05", "0001-01-01T00:00:00Z", NOON, "bad order_ts"),
    ("America/New_York", "2024-01-05", "0001-01-01T05:00:00Z", NOON, "2024-01-05"),
    ("America/New_York", "2024-01-05", NOON, "0001-01-01T00:00:00Z", "2024-01-05"),
]

GOOD = {
    "problem": None,
    "order_id": "o1",
    "customer_id": "c1",
    "order_ts": NOON,
    "amount": "1.50",
    "ingestion_ts": NOON,
}
# What differs from a good line: the reason, or what is read of the line.
LINES = [
    ({}, GOOD),
    ({"customer_id": None}, {"customer_id": None}),
    ({"customer_id": ""}, {"customer_id": None}),
    ({"customer_id": " "}, {"customer_id": " "}),
    ({"customer_id": "null"}, {"customer_id": "null"}),
    ({"order_id": " o 1 "}, {"order_id": " o 1 "}),
    ({"order_id": "\u00e4\U0001f600"}, {"order_id": "\u00e4\U0001f600"}),
    ({"amount": "-0.00"}, {"amount": "0.00"}),
    ({"amount": "1e2"}, {"amount": "100.00"}),
    ({"order_id": None}, "missing order_id"),
    ({"order_id": ""}, "missing order_id"),
    ({"order_ts": None}, "missing order_ts"),
    ({"order_ts": ""}, "missing order_ts"),
    ({"order_ts": "yesterday"}, "bad order_ts: not a time as 2024-01-31T08:30:00Z"),
    ({"ingestion_ts": None}, "missing ingestion_ts"),
    ({"ingestion_ts": "2024-01-05T25:00"}, "bad ingestion_ts: not a time as 2024-01-31T08:30:00Z"),
    ({"amount": None}, "missing amount"),
    ({"amount": ""}, "missing amount"),
    ({"amount": "12.345"}, "bad amount: 3 decimals, 2 are kept"),
    ({"amount": "-.00100"}, "bad amount: 3 decimals, 2 are kept"),
    ({"amount": "1e-7"}, "bad amount: 7 decimals, 2 are kept"),
    ({"amount": "1e-99999999999"}, f"bad amount: {NO_AMOUNT}"),
    ({"amount": "1e16"}, f"bad amount: {NO_AMOUNT}"),
    # One reason is given, the first.
    ({"order_id": None, "amount": "x", "order_ts": "x"}, "missing order_id"),
    ({"amount": "x", "order_ts": "2030-01-01"}, f"bad amount: {NO_AMOUNT}"),
    ({"problem": "not one JSON object"}, "not one JSON object"),
    ({"problem": "not UTF-8", "order_id": None}, "not UTF-8"),
]
_DDL = (
    "arrival_date DATE, source_file STRING, _text STRING, _problem STRING, _lacking ARRAY<STRING>, "
    + (", ".join(f"{name} STRING" for name in FIELDS))
)


def _landed_row(arrival: str, source: str, **fields: str | None) -> tuple:
    return (
        date.fromisoformat(arrival),
        source,
        f"text of {source}",
        {**GOOD, **fields}["problem"],
        None,
        *({**GOOD, **fields}[n] for n in FIELDS),
    )


def test_the_log_day_is_that_of_arrival_or_the_next(spark) -> None:
    frame = None
    for zone in sorted({case[0] for case in LOG_DAYS}):
        lines = [
            _landed_row(arrival, str(n), order_ts=order_ts, ingestion_ts=ingestion_ts)
            for n, (name, arrival, order_ts, ingestion_ts, _) in enumerate(LOG_DAYS)
            if name == zone
        ]
        read = read_versions([spark.createDataFrame(lines, _DDL)], ORDER_LINES, zone)
        read = read.select("source_file", F.coalesce(F.col("log_date").cast("string"), "_reason"))
        frame = read if frame is None else frame.unionByName(read)
    outcomes = {int(n): outcome for n, outcome in frame.collect()}
    assert [(*case[:4], outcomes[n]) for n, case in enumerate(LOG_DAYS)] == LOG_DAYS


def test_fields_and_reasons(spark) -> None:
    lines = [_landed_row("2024-01-05", str(n), **change) for n, (change, _) in enumerate(LINES)]
    read = read_versions([spark.createDataFrame(lines, _DDL)], ORDER_LINES, "UTC")
    # Rejected lines need no fields, accepted ones no text.
    rows = read.withColumns({name: F.col(name).cast("string") for name in FIELDS}).collect()
    for row in rows:
        change, expected = LINES[int(row["source_file"])]
        if isinstance(expected, str):
            assert (change, row["_reason"]) == (change, expected)
            assert row["_text"] == f"text of {row['source_file']}"
            assert row["log_date"] is None
            continue
        assert (change, row["_reason"], row["_text"]) == (change, None, None)
        assert row["log_date"] == date(2024, 1, 5)
        stamp = "2024-01-05 12:00:00"
        want = {**GOOD, "order_ts": stamp, "ingestion_ts": stamp, **(expected if change else {})}
        assert (change, {n: row[n] for n in FIELDS}) == (
            change,
            {n: want[n] for n in FIELDS},
        )
    assert len(rows) == len(LINES)


def test_every_line_is_either_accepted_or_rejected(spark) -> None:
    lines = [_landed_row("2024-01-05", str(n), **change) for n, (change, _) in enumerate(LINES)]
    read = read_versions([spark.createDataFrame(lines, _DDL)], ORDER_LINES, "UTC")
    raw, rejects = accepted_rows(read, ORDER_LINES), rejected_rows(read, ORDER_LINES)
    assert raw.columns == list(RAW.columns)
    assert rejects.columns == list(REJECTED.columns)
    names = raw.select("source_file", F.lit("raw")).union(
        rejects.select("source_file", F.lit("rejected"))
    )
    assert {int(n): kind for n, kind in names.collect()} == {
        n: "rejected" if isinstance(expected, str) else "raw"
        for n, (_, expected) in enumerate(LINES)
    }


#: A zone, and a local time near a change of its clocks.
CLOCK_CHANGES = [
    ("Europe/Berlin", "2024-10-27T02:00"),
    ("Europe/Berlin", "2024-03-31T02:00"),
    ("Australia/Lord_Howe", "2024-04-07T02:00"),  # by half an hour
    ("America/Havana", "2024-11-03T01:00"),  # over midnight
    ("America/Havana", "2024-03-10T00:00"),
    ("Pacific/Apia", "2011-12-30T00:00"),  # by a whole day
    ("Asia/Kolkata", "2024-10-27T02:00"),
]


def test_local_times_that_a_zone_has_twice_or_not_at_all(spark) -> None:
    expected, read = {}, {}
    for zone, center in CLOCK_CHANGES:
        clock = [datetime.fromisoformat(center) + n * timedelta(minutes=10) for n in range(-20, 21)]
        locals_ = [moment.isoformat(sep=" ") for moment in clock]
        texts = [*locals_, *(f"{text}+01:00" for text in locals_), center[:10], "no time"]
        values = _read_texts(spark, texts, partial(parse_and_judge, zone))
        later_values = _read_texts(spark, texts, partial(parse_later, zone))
        read |= {(zone, text): value for text, value in zip(texts, values, strict=True)}
        expected |= dict.fromkeys(((zone, text) for text in texts), False)
        for text, moment in zip(locals_, clock, strict=True):
            first, second = (moment.replace(tzinfo=ZoneInfo(zone), fold=n) for n in (0, 1))
            expected[zone, text] = first.utcoffset() != second.utcoffset()
        later = dict(zip(texts, later_values, strict=True))
        for text, moment in zip(locals_, clock, strict=True):
            folds = [moment.replace(tzinfo=ZoneInfo(zone), fold=n) for n in (0, 1)]
            assert later[text] == max(folds, key=datetime.timestamp).timestamp(), (zone, text)
            assert later[f"{text}+01:00"] == datetime.fromisoformat(f"{text}+01:00").timestamp()
    assert read == expected
    assert sum(expected.values()) == 6 + 6 + 3 + 6 + 6 + 21


def parse_and_judge(zone: str, text: Column) -> Column:
    return is_ambiguous(text, parse_timestamp(text, zone), zone)


def parse_later(zone: str, text: Column) -> Column:
    return F.unix_seconds(later_moment(text, parse_timestamp(text, zone), zone))


@pytest.mark.parametrize("zone", ["Mars/Olympus"])
def test_an_unknown_zone_is_an_error_not_utc(spark, zone: str) -> None:
    lines = spark.createDataFrame([_landed_row("2024-01-05", "a")], _DDL)
    with pytest.raises(Exception, match="Olympus"):
        read_versions([lines], ORDER_LINES, zone).collect()
