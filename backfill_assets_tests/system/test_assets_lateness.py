"""How late lines arrive: the figures against plain Python, and the way from landing to page."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from math import ceil

import dagster as dg
import pyarrow as pa
import pyspark.sql.types as T
import pytest
from deltalake import write_deltalake

from backfill_assets.assets import staging
from backfill_assets.audit.verdicts import Severity, judge_days, measure_days
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.monitoring import lateness_page
from backfill_assets.orders.tables import LATENESS, ORDER_LINES
from backfill_assets.settings import load_settings
from backfill_assets.transforms.lateness import lateness_figures
from backfill_assets_tests.helpers.orders_model import by_delay
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

WEEK = Window(day(10), day(17))
OTHER_WINDOWS = [(2, 0), (7, 0), (20, 0), (1, 1)]
LINE = T.StructType(
    [
        T.StructField("log_date", T.DateType()),
        T.StructField("event_date", T.DateType()),
        T.StructField("order_id", T.StringType()),
        T.StructField("order_ts", T.TimestampType()),
        T.StructField("ingestion_ts", T.TimestampType()),
        T.StructField("amount", T.DecimalType(18, 2)),
    ]
)


def make_line(
    log_day: int, event_day: int, order_id: str, amount="1.00", *, seconds: float = 0
) -> dict:
    """A raw line, taken so many seconds after it happened."""
    happened = datetime.combine(day(event_day), datetime.min.time(), timezone.utc)
    return {
        "log_date": day(log_day),
        "event_date": day(event_day),
        "order_id": order_id,
        "order_ts": happened,
        "ingestion_ts": happened + timedelta(seconds=seconds),
        "amount": Decimal(amount),
    }


def generate_lines() -> list[dict]:
    chosen = random.Random(5)
    lines = []
    for _ in range(150):
        log_day = chosen.randint(3, 16)
        if day(log_day) == day(13):  # a day without lines
            continue
        delay = chosen.choice([0, 0, 0, 0, 1, 1, 2, 3, 4, 9, 16, 40])
        amount = f"{chosen.randint(-500, 500)}.{chosen.randint(10, 99)}"
        seconds = chosen.choice([-100, 0, 59, 60, 86_399.999999, chosen.randint(0, 10**6)])
        order_id = f"o{chosen.randint(1, 30)}"
        lines.append(make_line(log_day, log_day - delay, order_id, amount, seconds=seconds))
    return lines


def expected_row(
    lines: list[dict],
    rejected: list[date],
    log_day: date,
    window_days: int,
    arrives_after: int = 0,
) -> dict:
    """One row of the table, worked out line by line; the window is in log days."""
    day_lines = [x for x in lines if x["log_date"] == log_day]
    delays = [(x["log_date"] - x["event_date"]).days for x in day_lines]
    late = [x for x, delay in zip(day_lines, delays, strict=True) if delay > arrives_after]
    beyond = [x for x, delay in zip(day_lines, delays, strict=True) if delay > window_days]
    before = Window(log_day - window_days * DAY, log_day)
    known = {x["order_id"] for x in lines if x["log_date"] in before}
    superseded = 0
    for x in day_lines:
        superseded += x["order_id"] in known
        known.add(x["order_id"])
    row = {
        "log_date": log_day,
        "lines": len(day_lines),
        "late_lines": len(late),
        "late_amount": sum((x["amount"] for x in late), Decimal("0.00")),
        "beyond_lines": len(beyond),
        "beyond_amount": sum((x["amount"] for x in beyond), Decimal("0.00")),
        "superseded_lines": superseded,
        "rejected_lines": Counter(rejected)[log_day],
        **by_delay((x["amount"], delay) for x, delay in zip(day_lines, delays, strict=True)),
    }
    days = sorted(delay - arrives_after for delay in delays if delay > arrives_after)
    minutes = sorted(
        (max(x["order_ts"], x["ingestion_ts"]) - x["order_ts"]) // timedelta(minutes=1)
        for x in late
    )
    for unit, values in (("days", days), ("minutes", minutes)):
        for name, percent in (("p50", 50), ("p95", 95), ("max", 100)):
            at = ceil(len(values) * percent / 100) - 1
            row[f"delay_{unit}_{name}"] = values[at] if values else None
    return row


def make_frames(spark, lines: list[dict], rejected: list[date]):
    ddl = "arrival_date date"
    return (
        spark.createDataFrame(lines, LINE),
        spark.createDataFrame([{"arrival_date": d} for d in rejected], ddl),
    )


def lateness_rows(
    spark, lines, rejected, window: Window, window_days: int, source=ORDER_LINES
) -> list[dict]:
    """What the transform makes of the days that a run over this window reads."""
    read = window.widen_by(before=window_days)
    frame = lateness_figures(
        *make_frames(
            spark,
            [x for x in lines if x["log_date"] in read],
            [d for d in rejected if d in window],
        ),
        [source.lateness],
        window,
        replace(source.policy(load_settings()), window_days=window_days),
    )
    LATENESS.conform_frame(frame)
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["log_date"])


def test_lines_as_a_reader_would_count_them(spark):
    lines = [
        make_line(9, 9, "a"),  # known by the day before
        make_line(10, 10, "a", "5.00"),  # supersedes it
        make_line(10, 10, "b", "7.00"),
        make_line(10, 9, "c", "1.50", seconds=119),  # late by one day, taken after a minute
        make_line(10, 9, "c", "1.50", seconds=119),  # the same line again
        make_line(10, 7, "d", "-2.25", seconds=3 * 86_400 + 59.9),  # beyond a window of two days
        make_line(10, 4, "e", "100.00", seconds=-60),  # taken before it happened
    ]
    (row,) = lateness_rows(spark, lines, [day(10), day(10)], Window(day(10), day(11)), 2)
    assert row == {
        "log_date": day(10),
        "lines": 6,
        "late_lines": 4,
        "late_amount": Decimal("100.75"),
        "beyond_lines": 2,
        "beyond_amount": Decimal("97.75"),
        "superseded_lines": 2,
        "rejected_lines": 2,
        "delay_days_p50": 1,
        "delay_days_p95": 6,
        "delay_days_max": 6,
        "delay_minutes_p50": 1,
        "delay_minutes_p95": 3 * 1440,
        "delay_minutes_max": 3 * 1440,
        "delays": [0, 1, 3, 6],
        "lines_by_delay": [2, 2, 1, 1],
        "amount_by_delay": [Decimal("12.00"), Decimal("3.00"), Decimal("2.25"), Decimal("100.00")],
    }


@pytest.mark.parametrize(
    ("window_days", "arrives_after"),
    [(0, 0), (5, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_WINDOWS)],
)
def test_every_day_is_what_plain_python_says(spark, window_days, arrives_after):
    lines, source = generate_lines(), replace(ORDER_LINES, arrives_after=arrives_after)
    rejected = [day(11), day(11), day(13), day(20)]
    rows = lateness_rows(spark, lines, rejected, WEEK, window_days, source)
    assert rows == [expected_row(lines, rejected, d, window_days, arrives_after) for d in WEEK]
    assert sum(row["superseded_lines"] for row in rows) > 0


def test_a_range_is_its_days_one_by_one(spark):
    """And what plain Python says; one of the days has no line."""
    lines, rejected, days = generate_lines(), [day(12)], Window(day(11), day(14))
    alone = [lateness_rows(spark, lines, rejected, Window(d, d + DAY), 2)[0] for d in days]
    assert lateness_rows(spark, lines, rejected, days, 2) == alone
    assert alone == [expected_row(lines, rejected, d, 2) for d in days]


def test_order_days_before_all_days_count_like_others_and_a_day_without_lines_has_its_row(spark):
    happened = datetime(1, 1, 2, tzinfo=timezone.utc)
    old = make_line(10, 10, "a") | {"event_date": happened.date(), "order_ts": happened}
    row, empty = lateness_rows(spark, [old], [], Window(day(10), day(12)), 7)
    assert row == expected_row([old], [], day(10), 7)
    assert row["delay_days_max"] > 700_000
    assert empty == expected_row([], [], day(11), 7)
    assert empty["delay_days_p50"] is None
    numbers = staging.day_figures(empty)
    assert set(numbers) == {
        "late lines",
        "beyond window lines",
        "beyond window amount",
        "superseded lines",
        "rejected lines",
    }


def test_numbers_are_what_the_ui_plots():
    row = expected_row(generate_lines(), [], day(12), 2)
    numbers = staging.day_figures(row)
    assert {type(value) for value in numbers.values()} == {int, float}
    assert numbers["late share"] == row["late_lines"] / row["lines"]
    assert numbers["beyond window share"] == row["beyond_lines"] / row["lines"]
    assert numbers["caught by W=0"] == pytest.approx(1 - numbers["late share"])
    assert numbers["caught by W=14"] <= 1
    assert {f"delay {unit} {name}" for unit in ("days", "minutes") for name in ("p50", "p95")} < (
        set(numbers)
    )


def test_expectations_count_for_themselves(spark):
    lines, window = generate_lines(), Window(day(10), day(12))
    rejected, policy = [day(10)], ORDER_LINES.policy(load_settings(window_days=2))
    raw_frame, rejected_frame = make_frames(spark, lines, rejected)
    rows = {d: expected_row(lines, rejected, d, 2) for d in window}
    rows[day(11)]["lines"] += 1
    (expectations,) = staging.lateness_expectations(
        {"": rows}, raw_frame, rejected_frame, [LATENESS], window, policy, {"": {day(8)}}
    )
    good, bad = expectations[day(10)], expectations[day(11)]
    assert (good.rows, bad.rows) == (1, 1)
    assert not good.problems
    assert good.entries == {
        "lines": rows[day(10)]["lines"],
        "late": rows[day(10)]["late_lines"],
        "beyond": rows[day(10)]["beyond_lines"],
        "rejected": 1,
    }
    assert bad.problems == [
        f"lines is {rows[day(11)]['lines']} where {rows[day(11)]['lines'] - 1} are due"
    ]
    assert "1 of the 2 day(s) before" in good.warnings[0]
    assert not bad.warnings
    # A missing row is the audit's to find.
    frame = lateness_figures(
        raw_frame, rejected_frame, [LATENESS], Window(day(10), day(11)), policy
    )
    verdicts = judge_days(LATENESS, window, measure_days(frame, LATENESS), expectations, {})
    assert [verdict.worst_severity for verdict in verdicts] == [Severity.WARN, Severity.ERROR]


MEASURED = ("raw_orders", "raw_orders_rejected", LATENESS.name, ORDER_LINES.page)


def asset_events(pipeline: Pipeline, name: str) -> list[dg.AssetMaterialization]:
    records = pipeline.instance.fetch_materializations(dg.AssetKey(name), limit=100).records
    return [record.asset_materialization for record in records]


def test_assets_from_landing_to_page(pipeline):
    for n in range(1, 5):
        pipeline.land(n, [order("same", n), order(f"o{n}", 1, "3.00"), "no order"])
    pipeline.run_days([day(1), day(2), day(4)], MEASURED)  # day 4 before the day before it
    rows = {row["log_date"]: row for row in pipeline.rows(LATENESS.name)}
    assert [rows[day(n)]["superseded_lines"] for n in (1, 2, 4)] == [0, 1, 1]
    pipeline.run(3, 3, MEASURED)
    rows = {row["log_date"]: row for row in pipeline.rows(LATENESS.name)}
    assert [rows[day(n)]["late_lines"] for n in range(1, 5)] == [0, 1, 1, 1]
    assert [rows[day(n)]["delay_days_max"] for n in range(1, 5)] == [None, 1, 2, 3]
    assert [rows[day(n)]["rejected_lines"] for n in range(1, 5)] == [1, 1, 1, 1]
    by_day = {e.partition: e.metadata for e in asset_events(pipeline, LATENESS.name)}
    assert sorted(by_day) == [str(day(n)) for n in range(1, 5)]
    assert by_day[str(day(4))]["late_share"] == dg.FloatMetadataValue(0.5)
    assert by_day[str(day(4))]["delay_days_p95"] == dg.IntMetadataValue(3)
    assert "superseded_lines may be too low: 1 of the 7" in by_day[str(day(4))]["warnings"].value

    pages = asset_events(pipeline, ORDER_LINES.page)
    assert [page.partition for page in pages] == [None, None]  # one a run, of no day
    metadata = {name: value.value for name, value in pages[0].metadata.items()}
    folder = pipeline.warehouse / ORDER_LINES.page
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    assert metadata["path"] == str(folder / "index.html")
    assert (metadata["days"], metadata["lines"], metadata["late_share"]) == (4, 8, 3 / 8)
    assert (metadata["compared_event_days"], metadata["window_days_for_99_percent_of_lines"]) == (
        0,
        "not known yet",
    )
    version = pipeline.log(LATENESS.name).version()
    assert metadata[f"delta_version_{LATENESS.name}"] == version
    table = pipeline.log(LATENESS.name).to_pyarrow_table()
    text = (folder / "index.html").read_text()
    ui_url = pipeline.settings.ui_url
    assert text == lateness_page.render_page(
        table, ORDER_LINES, pipeline.deployment, version, ui_url
    )


def test_without_a_table_there_is_no_page(pipeline):
    result = pipeline.run(1, assets=[ORDER_LINES.page], fails=True)
    assert "materialize it for some days, then lateness_dashboard again" in (
        pipeline.failure(result)
    )
    assert not (pipeline.warehouse / ORDER_LINES.page).exists()


def test_a_table_of_an_earlier_release_is_named_with_the_way(pipeline):
    without = [name for name in LATENESS.columns if "delays" not in name]
    rows = pa.Table.from_pylist([expected_row([], [], day(1), 7)]).select(without)
    write_deltalake(str(pipeline.warehouse / LATENESS.name), rows)
    result = pipeline.run(1, assets=[ORDER_LINES.page], fails=True)
    assert "was made by an earlier release and has no delays. The page is as it was." in (
        pipeline.failure(result)
    )
