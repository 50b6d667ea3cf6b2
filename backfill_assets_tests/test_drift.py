"""How far the distributions of a day have moved, and what is warned of."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, nullable_column, table
from backfill_assets.audit.profile import (
    Baseline,
    _bin_column,
    count_values,
    histogram_rows,
    judge_drift,
    stability_index,
)
from backfill_assets.audit.verdicts import Severity
from backfill_assets.orders.tables import STAGED
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.pipeline import day


class Watched(pa.DataFrameModel):
    """A row of each kind of column."""

    run_date: T.DateType = Field(description="Day.")
    count: T.LongType = Field(description="A number.")
    money: T.DecimalType(10, 2) = nullable_column(1.0, 1.0, "Another.")
    churned: T.BooleanType = Field(description="Yes or no.")


WATCHED = Table(
    "watched",
    Watched,
    partition="run_date",
    key=[],
    drift={"count": 0.2, "money": 0.25, "churned": 0.1},
)
BOUNDS = WATCHED.drift


def test_the_bins_are_those_of_powers_of_two(spark):
    rows = [
        (day(1), 0, Decimal("0.30"), True),
        (day(1), 1, None, False),
        (day(1), 3, Decimal("-5.00"), True),
        (day(1), 2, Decimal("-7.99"), True),
        (day(2), -1, Decimal("0.00"), False),
    ]
    frame = spark.createDataFrame(rows, WATCHED.struct_type)
    assert count_values(frame, [WATCHED], [day(1)], BOUNDS, ())[""].histograms == {
        day(1): {
            "count": {"0": 1, "2^0": 1, "2^1": 2},
            "money": {"-2^2": 2, "2^-2": 1, "null": 1},
            "churned": {"false": 1, "true": 3},
        },
        day(2): {"count": {"-2^0": 1}, "money": {"0": 1}, "churned": {"false": 1}},
    }
    doubles = [math.nan, -math.nan, -0.0, 1.5, -math.inf]
    bins = [_bin_column(F.lit(number), T.DoubleType()) for number in doubles]
    assert [*spark.range(1).select(*bins).first()] == [
        *("NaN", "NaN", "0", "2^0"),
        f"-2^{2**63 - 1}",
    ]


def test_the_index_is_that_of_the_books():
    """With half a row more in each bin."""
    then, now = [50.5 / 101, 50.5 / 101], [25.5 / 101, 75.5 / 101]
    by_hand = sum((q - p) * math.log(q / p) for p, q in zip(then, now, strict=True))
    assert stability_index([50, 50], [25, 75]) == pytest.approx(by_hand)
    assert stability_index([50, 50], [500, 500]) == pytest.approx(0)
    # A bin that nobody was in has no infinite weight.
    assert 0 < stability_index([100, 0], [99, 1]) < 0.1 < stability_index([100, 0], [0, 100])


def profile_of_counts(*counts: int) -> dict[str, dict[str, int]]:
    return {
        "count": {f"2^{n}": count for n, count in enumerate(counts)},
        "money": {"0": sum(counts)},
        "churned": {"true": sum(counts)},
    }


def test_what_has_moved_far_is_warned_of():
    then = Baseline("version 3", profile_of_counts(100, 100))
    (severity, message), numbers = judge_drift(BOUNDS, profile_of_counts(10, 190), then)
    assert severity is Severity.WARN
    assert message.startswith("200 rows against 200 of version 3; stability index: count 1.")
    assert "(allowed 0.2), money 0.000, churned 0.000" in message
    assert numbers["drift of count"] > 1
    assert (numbers["drift of money"], numbers["rows before"]) == (0, 200)
    assert judge_drift(BOUNDS, profile_of_counts(101, 99), then)[0][0] is Severity.OK


def test_a_few_rows_are_no_distribution():
    (severity, message), numbers = judge_drift(
        BOUNDS, profile_of_counts(1, 50), Baseline("v", profile_of_counts(50, 1))
    )
    assert severity is Severity.OK
    assert message.endswith("below 100 rows nothing is warned of")
    assert numbers["drift of count"] > 1
    for now, then in (
        (profile_of_counts(5), None),
        ({}, Baseline("v", profile_of_counts(5))),
        (profile_of_counts(5), Baseline("v", {})),
    ):
        assert judge_drift(BOUNDS, now, then) == (
            (Severity.OK, f"{histogram_rows(now)} rows, and nothing to compare them with"),
            {},
        )


def watched(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame: ...


def test_a_column_without_a_distribution_is_refused():
    with pytest.raises(DeclarationError) as error:
        table(Watched, partition="run_date", key=[], drift={"run_date": 0.1, "x": 0.1})(watched)
    assert "drift of run_date, which is no number and no boolean column of it; " in str(error.value)
    assert "drift of x" in str(error.value)
