"""Properties over generated histories: the rules row by row, and re-running in whatever order."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from backfill_assets.assets import derived, staging
from backfill_assets.assets.input_frames import for_days
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.landing.files import probe_files, read_lines
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, LATE, ORDER_LINES, RAW, STAGED
from backfill_assets.staleness import impact
from backfill_assets.transforms import dedup, raw_rows
from backfill_assets_tests.helpers.landing_strategies import DAYS, batches
from backfill_assets_tests.helpers.landing_truth import sum_facts
from backfill_assets_tests.helpers.orders_model import current_facts, run_model
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import LAYERS, START, Pipeline, day

CALENDAR = Window(day(1), day(DAYS + 1))
DAY_MINUTES = 24 * 60
SLOW = partial(
    settings,
    deadline=None,
    # Shrinking a failure would run Spark for minutes; the generated case is small as it is.
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def random_batch(seed: int, worlds: int = 6) -> list[tuple[int, str]]:
    """Lines as in `batches`, of several worlds with orders of their own: examples at one cost."""
    chance, batch = Random(seed), []
    for world in range(worlds):
        own = [random_line(chance, world) for _ in range(chance.randint(15, 40))]
        batch += own + own[:2]
    return batch


def format_stamp(minutes: int) -> str:
    midnight = datetime(START.year, START.month, START.day, tzinfo=timezone.utc)
    return f"{midnight + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"


def random_line(chance: Random, world: int) -> tuple[int, str]:
    """(arrival day number, line): mostly a good order, at times one that must be rejected."""
    arrival = chance.randint(1, DAYS)
    # Mostly of the days before, at times a little ahead (early) or far ahead (the future).
    end = arrival * DAY_MINUTES + chance.choice([0, 0, 0, 600, 2000])
    latest = min(end, DAYS * DAY_MINUTES - 1)
    happened = chance.randint(0, latest)
    line = {
        "order_id": f"{chance.choice('abcde')}{world}",
        "customer_id": chance.choice(["c1", "c2", "é", "", None]),
        "order_ts": format_stamp(happened),
        "amount": chance.choice(["1.00", "2.50", "-3.00", 4.25, "5e1", "0"]),
        "ingestion_ts": format_stamp(chance.randint(max(happened - 100, 0), latest)),
    }
    spoil = chance.choice([None] * 9 + ["broken", "missing", "amount", "stamp"])
    if spoil == "missing":
        del line[chance.choice(["order_id", "order_ts", "amount", "ingestion_ts"])]
    elif spoil == "amount":
        line["amount"] = chance.choice(["1.005", "abc", "1e99", True, None])
    elif spoil == "stamp":
        line["order_ts"] = chance.choice(["yesterday", "2024-02-30", 20240101])
    text = json.dumps(line, ensure_ascii=False)
    return arrival, text[:-3] if spoil == "broken" else text


def land_batch(pipeline: Pipeline, batch, name: str) -> None:
    by_day = defaultdict(list)
    for arrival, text in batch:
        by_day[arrival].append(text)
    for arrival, texts in by_day.items():
        pipeline.land(arrival, texts, f"{name}.jsonl")


def facts_of(staged: DataFrame) -> DataFrame:
    return FACT(for_days(staged, STAGED.partition, SAME_DAY, CALENDAR))


def rows_as_text(rows, columns) -> list[tuple]:
    """Rows as text: Spark hands out UTC timestamps without saying so, the model with."""
    return sorted(tuple(str(row[c]).removesuffix("+00:00") for c in columns) for row in rows)


@pytest.mark.parametrize(
    ("seed", "window_days", "zone"),
    [(1, 0, "UTC"), (2, 1, "Asia/Tokyo"), (3, 3, "America/New_York")],
)
def test_the_transforms_agree_with_the_model_on_every_row(
    engine, spark, tmp_path, seed, window_days, zone
):
    pipeline = Pipeline(engine, tmp_path)
    land_batch(pipeline, random_batch(seed), "part")
    model = run_model(
        pipeline.landing, start=START, end=CALENDAR.end, window_days=window_days, timezone=zone
    )
    listing = probe_files(spark, str(pipeline.landing), ORDER_LINES, CALENDAR.widen_by(before=1))
    landed = read_lines(spark, listing, ORDER_LINES)
    read = raw_rows.read_versions(landed, ORDER_LINES, zone).persist()
    log = raw_rows.accepted_rows(read, ORDER_LINES).where(CALENDAR.sql_condition("log_date"))
    dated = dedup.with_event_day(log, ORDER_LINES, zone).persist()
    ranked = dedup.rank_in_window(
        dedup.rank_lines(dated, ORDER_LINES, window_days, corrects=True),
        ORDER_LINES,
        CALENDAR,
        window_days,
    )
    staged = dedup.drop_superseded(ranked, ORDER_LINES).persist()
    assert rows_as_text(log.collect(), RAW.columns) == rows_as_text(model.raw, RAW.columns)
    assert raw_rows.rejected_rows(read, ORDER_LINES).where(
        CALENDAR.sql_condition("arrival_date")
    ).count() == len(model.rejected)
    assert rows_as_text(staged.collect(), STAGED.columns) == rows_as_text(
        model.staged, STAGED.columns
    )
    late = staging.late_lines(dated, ORDER_LINES, window_days)
    assert rows_as_text(late.collect(), LATE.columns) == rows_as_text(model.late, LATE.columns)
    assert sum_facts(facts_of(staged).collect()) == model.fact
    for frame in (read, dated, staged):
        frame.unpersist()


@pytest.mark.parametrize(("seed", "window_days"), [(1, 0), (2, 2)])
def test_a_range_decides_each_day_as_that_day_alone(engine, spark, tmp_path, seed, window_days):
    pipeline = Pipeline(engine, tmp_path)
    land_batch(pipeline, random_batch(seed), "part")
    listing = probe_files(spark, str(pipeline.landing), ORDER_LINES, CALENDAR.widen_by(before=1))
    landed = read_lines(spark, listing, ORDER_LINES)
    log = raw_rows.accepted_rows(raw_rows.read_versions(landed, ORDER_LINES, "UTC"), ORDER_LINES)
    dated = dedup.with_event_day(log, ORDER_LINES, "UTC").persist()

    def stage_window(window: Window):
        logged = dated.where(window.widen_by(after=window_days).sql_condition("log_date"))
        rows = dedup.rank_in_window(
            dedup.rank_lines(logged, ORDER_LINES, window_days, corrects=True),
            ORDER_LINES,
            window,
            window_days,
        )
        return dedup.drop_superseded(rows, ORDER_LINES)

    alone = stage_window(Window(day(1), day(2)))
    for n in range(2, DAYS + 1):
        alone = alone.unionByName(stage_window(Window(day(n), day(n + 1))))
    together = stage_window(CALENDAR)
    assert rows_as_text(together.collect(), STAGED.columns) == rows_as_text(
        alone.collect(), STAGED.columns
    )
    dated.unpersist()


@pytest.mark.parametrize(("seed", "window_days", "corrects"), [(1, 0, False), (2, 2, True)])
def test_current_is_what_an_endless_window_gives(
    engine, spark, tmp_path, seed, window_days, corrects
):
    """However orders move between closed and open days; for the range as for parts of it."""
    pipeline = Pipeline(engine, tmp_path)
    land_batch(pipeline, random_batch(seed), "part")
    model = run_model(
        pipeline.landing, start=START, end=CALENDAR.end, window_days=window_days, timezone="UTC"
    )
    expected = current_facts(
        model.raw,
        start=START,
        end=CALENDAR.end,
        window_days=window_days,
        timezone="UTC",
        drop=not corrects,
    )
    listing = probe_files(spark, str(pipeline.landing), ORDER_LINES, CALENDAR.widen_by(before=1))
    landed = read_lines(spark, listing, ORDER_LINES)
    log = raw_rows.accepted_rows(raw_rows.read_versions(landed, ORDER_LINES, "UTC"), ORDER_LINES)
    log = log.where(CALENDAR.sql_condition("log_date"))
    log = dedup.with_event_day(log, ORDER_LINES, "UTC").persist()

    def compute_current(window: Window):
        rows = dedup.rank_all(
            dedup.rank_lines(log, ORDER_LINES, window_days, corrects=corrects),
            ORDER_LINES,
            window,
            window_days,
            corrects=corrects,
        )
        return derived.current_rows(CURRENT, rows, window, {})

    whole = compute_current(CALENDAR).persist()
    assert sum_facts(whole.collect()) == expected
    # The first day and the last alone, and those between them.
    ends = (1, 2, DAYS, DAYS + 1)
    parts = [Window(day(first), day(end)) for first, end in pairwise(ends)]
    rows = [row for window in parts for row in compute_current(window).collect()]
    assert sum_facts(rows) == expected
    ranked = dedup.rank_in_window(
        dedup.rank_lines(log, ORDER_LINES, window_days, corrects=True),
        ORDER_LINES,
        CALENDAR,
        window_days,
    )
    facts = facts_of(dedup.drop_superseded(ranked, ORDER_LINES))
    changes = sum_facts(derived.correction_rows(CORRECTIONS, facts, whole).collect())
    frozen = model.fact
    nothing = (0, Decimal(0))
    assert changes == {
        key: (now[0] - then[0], now[1] - then[1])
        for key in expected.keys() | frozen.keys()
        for now, then in [(expected.get(key, nothing), frozen.get(key, nothing))]
        if now != then
    }
    log.unpersist()
    whole.unpersist()


def test_spans_hold_the_days_of_all_lines_of_an_order(spark):
    """Of orders with one line to five, which need not be on the days of the first and the last."""
    chance, order_lines, expected = Random(3), [], defaultdict(set)
    for n in range(60):
        order_days = [
            (day(chance.randint(1, 300)), day(chance.randint(1, 300)))
            for _ in range(chance.randint(1, 5))
        ]
        order_lines += [(f"o-{n}", log_day, event_day) for log_day, event_day in order_days]
        for log_day, _ in order_days:
            expected[log_day].update(event_day for _, event_day in order_days)
    for take in (order_lines, []):
        frame = spark.createDataFrame(take, "order_id STRING, log_date DATE, event_date DATE")
        spans = impact._event_days_by_log_day(ORDER_LINES, frame)
        if take is order_lines:
            assert spans == expected
        assert spans.keys() == {log_day for _, log_day, _ in take}


ranges = st.tuples(st.integers(1, DAYS), st.integers(1, DAYS)).map(lambda r: (min(r), max(r)))


@pytest.mark.slow
@SLOW(max_examples=2)
@given(
    history=st.lists(
        st.tuples(batches, st.lists(ranges, min_size=0, max_size=2)), min_size=2, max_size=2
    ),
    final=st.permutations([(1, 2), (3, 3), (4, DAYS)]),
)
def test_runs_in_any_order_end_as_one_clean_load(engine, spark, history, final):
    """Arrivals between runs, repeats, and a last pass over all days in some order of chunks."""
    with tempfile.TemporaryDirectory() as root:
        lived = Pipeline(engine, Path(root, "lived"), window_days=2)
        for n, (batch, runs) in enumerate(history):
            land_batch(lived, batch, f"part-{n}")
            for first, last in runs:
                lived.run(first, last)
        # Raw first: a chunk of staging reads the log days of the chunks after it.
        for assets in (
            ["raw_orders", "raw_orders_rejected"],
            ["stg_orders", "late_orders", "fact_daily_orders"],
        ):
            for first, last in final:
                lived.run(first, last, assets)
        clean = Pipeline(
            engine, Path(root, "clean"), land=False, window_days=2, landing=str(lived.landing)
        )
        clean.run(1, DAYS)
        assert lived.digests() == clean.digests()
        assert set(clean.digests()) == set(LAYERS)


def test_the_model_is_independent_of_the_code():
    source = (PROJECT / "backfill_assets_tests" / "helpers" / "orders_model.py").read_text()
    imports = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    assert not any("backfill_assets" in line for line in imports)
