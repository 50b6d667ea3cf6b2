"""Functions that mix the days of a range are refused before anything is published."""

from __future__ import annotations

import re
from datetime import datetime, time, timezone
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.orders.tables import STAGED
from backfill_assets.publish.compute import (
    DependentDaysError,
    Sample,
    days_to_compute_alone,
    refuse_dependent_days,
)
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets_tests.dependent_tables import by_day
from backfill_assets_tests.helpers.pipeline import Pipeline, day, run_verify
from backfill_assets_tests.helpers.publish_rows import make_plan, publish_frame, window

TABLES = "backfill_assets_tests.dependent_tables:TABLES"
REWRITE = {REWRITE_TAG: "true"}


@pytest.fixture(scope="module")
def pipeline(engine, spark, tmp_path_factory) -> Pipeline:
    root = tmp_path_factory.mktemp("dependent")
    pipeline = Pipeline(engine, root, tables=TABLES, check_independence=True)
    rows = [
        (day(n), f"{n}-{i}", f"c{i}", stamp, Decimal(n), stamp, day(n))
        for n in (1, 2, 3)
        for stamp in [datetime.combine(day(n), time(10), timezone.utc)]
        for i in range(4)
    ]
    frame = spark.createDataFrame(rows, STAGED.struct_type)
    digest = pipeline.deployment.config_digests[STAGED.name]
    publish_frame(pipeline, frame, window(1, 5), table=STAGED, config_digest=digest)
    return pipeline


def ledger_of(pipeline: Pipeline, name: str) -> Ledger:
    return read_ledgers(pipeline.deployment)[name]


def test_a_function_that_mixes_days_publishes_nothing(pipeline):
    # Days 1 and 2 have no rows within `by_range`; which of them has the larger input is estimated.
    first_other_day = {"by_range": "[12]", "since_the_day_before": "2", "spend_so_far": "1"}
    text = pipeline.failure(pipeline.run(1, 3, [*first_other_day, "by_day"], fails=True))
    assert "Does it group, join and order by for_day?" in text
    for name, n in first_other_day.items():
        assert re.search(
            rf"{name} \[{day(1)}\.\.\.{day(3)}\]: refused, the table is as it was: the function "
            rf"gives other rows for 2024-01-0{n} alone \(4 row\(s\)\) than within",
            text,
        )
        assert ledger_of(pipeline, name).version is None
    # What was compared is on record.
    (published,) = ledger_of(pipeline, "by_day").records
    assert published.details.alone == [f"{day(2)}...{day(3)}"]


def test_a_day_by_itself_is_what_it_is(pipeline, engine):
    """It has been published, also among days without rows; the next range is compared again."""
    pipeline.run(1, 1, ["by_range"])
    pipeline.run(2, 2, ["by_range"])
    pipeline.run(3, 5, ["by_range"])
    assert not pipeline.run(2, 3, ["by_range"], fails=True, tags=REWRITE).success
    # Verification compares each day alone.
    results = run_verify(pipeline.settings, engine, Window(day(1), day(4)), ["by_range"])
    assert {result.day: result.outcome for result in results if result.day <= day(2)} == {
        day(n): VerifyOutcome.MATCHES for n in (1, 2)
    }


def test_it_can_be_switched_off(engine, pipeline):
    lax = Pipeline(engine, pipeline.root, tables=TABLES)
    lax.run(1, 3, ["since_the_day_before"])
    assert ledger_of(lax, "since_the_day_before").published_days


def test_the_emptiest_days_of_a_range_are_computed_alone(spark):
    rows = spark.createDataFrame([(day(1), "c", 3, 0.5)], by_day.struct_type)
    other = spark.createDataFrame([(day(1), "c", 1, 0.25)], by_day.struct_type)
    days = Window(day(1), day(4))
    plan = make_plan(Ledger(by_day), days)
    assert days_to_compute_alone([plan], rows) == {"": Sample([day(2), day(1)], [])}
    assert days_to_compute_alone([make_plan(Ledger(by_day), [day(1)])], rows) == {}, "no range"
    with pytest.raises(DependentDaysError, match=f"other rows for {day(1)} alone"):
        refuse_dependent_days(by_day, rows, days, {day(1): other})
    # Sums of floats depend on the order.
    refuse_dependent_days(by_day, rows, days, {day(1): rows.withColumn("share", F.lit(0.75))})
