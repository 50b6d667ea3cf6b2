"""Numbers of a day for the UI: counts of rows that a model names, and totals to be plotted."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field

from backfill_assets.audit.checks import day_metadata
from backfill_assets.audit.verdicts import DayMetrics, Expectation, Finding, Severity, Verdict
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.publication import audit_days
from backfill_assets.publish.types import Candidate, ComputedDays
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.publish_rows import make_plan


class Ticket(pa.DataFrameModel):
    """A ticket."""

    run_date: T.DateType = Field(description="Day.")
    state: T.StringType = Field(nullable=True, description="What has become of it.")


def test_rows_are_counted_by_day_and_kind(spark):
    rows = [(day(0), "open"), (day(0), "open"), (day(0), "done"), (day(0), None), (day(1), "done")]
    frame = spark.createDataFrame(rows, "run_date date, state string")
    ledger = Ledger(
        Table(
            "tickets",
            Ticket,
            partition="run_date",
            key=[],
            counts={"open tickets": "state = 'open'", "others, of any kind": "state <> 'open'"},
        )
    )
    plan = make_plan(ledger, [day(0), day(1), day(2)])
    computed = ComputedDays(frame, {}, numbers={day(0): {"seen": 7}})
    (audited,) = audit_days([Candidate(plan, computed)]).values()
    assert audited.computed.numbers == {
        day(0): {"seen": 7, "count of open tickets": 2, "count of others, of any kind": 1},
        day(1): {"count of open tickets": 0, "count of others, of any kind": 1},
        day(2): {"count of open tickets": 0, "count of others, of any kind": 0},
    }


def test_the_examples_count_what_is_open_and_what_is_new(spark):
    """Their conditions are SQL over their columns."""
    for table in (labels_daily, customer_lifetime_value):
        frame = spark.createDataFrame([], table.struct_type)
        plan = make_plan(Ledger(table), [day(0)])
        (audited,) = audit_days([Candidate(plan, ComputedDays(frame, {}))]).values()
        numbers = audited.computed.numbers[day(0)]
        assert numbers == {f"count of {kind}": 0 for kind in table.counts} != {}


@pytest.mark.parametrize(
    ("total", "shown"),
    [
        (12, 12),
        (Decimal("1234567.89"), 1234567.89),
        (Decimal("0.10"), 0.1),
        (Decimal("-0.07"), -0.07),
        # No float is this number.
        (Decimal("12345678901234567.89"), "12345678901234567.89"),
    ],
)
def test_a_total_is_a_number_that_is_plotted_as_long_as_it_stays_exact(total, shown):
    measured = DayMetrics(1, {"revenue": total}, "digest")
    fine = Finding("row_count", Severity.OK, "1 row")
    plotted = day_metadata(Verdict(date(2024, 1, 1), measured, Expectation(), [fine]), {})[
        "total_revenue"
    ]
    assert (plotted, type(plotted)) == (shown, type(shown))
