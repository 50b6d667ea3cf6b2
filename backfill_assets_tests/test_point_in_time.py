"""Joins as of a moment: which version is taken, and what is refused."""

from __future__ import annotations

import inspect
import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import functions as F

from backfill_assets import as_of_join


def hour(n: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(hours=n)


ROWS = "id STRING, k STRING, d STRING, at TIMESTAMP, until TIMESTAMP"
VERSIONS = "k STRING, d STRING, began TIMESTAMP, known TIMESTAMP, v STRING"
ON = {"key": ["k", "d"], "at": "at", "valid_from": "began", "known": "known"}


def join_values(
    spark, rows: list[tuple], versions: list[tuple], **on: Any
) -> dict[str, str | None]:
    frame = as_of_join(
        spark.createDataFrame(rows, ROWS),
        spark.createDataFrame(versions, VERSIONS),
        **{**ON, "cutoff": "until", **on},
    )
    assert frame.columns == ["id", "k", "d", "at", "until", "began", "known", "v"]
    collected = frame.collect()
    assert len(collected) == len(rows), "each row once"
    return {row["id"]: row["v"] for row in collected}


def test_the_latest_version_that_had_begun_and_was_known(spark):
    rows = [
        ("before", "a", "x", hour(0), hour(9)),
        ("at the moment", "a", "x", hour(1), hour(9)),
        ("between", "a", "x", hour(4), hour(9)),
        ("at the cutoff", "a", "x", hour(5), hour(8)),
        ("not known yet", "a", "x", hour(5), hour(7)),
        ("nothing known", "a", "x", hour(5), hour(0)),
        ("no moment", "a", "x", None, hour(9)),
        ("no cutoff", "a", "x", hour(5), None),
        ("another key", "a", "y", hour(5), hour(9)),
        ("no such key", "b", "x", hour(5), hour(9)),
        ("no key", None, "x", hour(5), hour(9)),
    ]
    versions = [
        ("a", "x", hour(1), hour(1), "first"),
        ("a", "x", hour(5), hour(8), "second"),
        ("a", "x", hour(3), hour(6), "late"),
        ("a", "x", hour(2), None, "never known"),
        ("a", "x", None, hour(1), "never began"),
        ("a", "y", hour(1), hour(1), "other"),
        (None, "x", hour(1), hour(1), "of nobody"),
    ]
    assert join_values(spark, rows, versions) == {
        "before": None,
        "at the moment": "first",
        "between": "late",
        "at the cutoff": "second",
        "not known yet": "late",
        "nothing known": None,
        "no moment": None,
        "no cutoff": None,
        "another key": "other",
        "no such key": None,
        "no key": None,
    }
    # The cutoff of a row may be worked out.
    hours = F.expr("at + INTERVAL 3 HOURS")
    assert join_values(spark, rows, versions, cutoff=hours)["at the cutoff"] == "second"
    assert join_values(spark, rows, versions, cutoff=hours)["at the moment"] == "first"


def test_of_versions_of_a_moment_the_one_that_was_known_last_and_then_the_greatest(spark):
    rows = [("r", "a", "x", hour(5), hour(9))]
    same = [
        ("a", "x", hour(5), hour(5), "z"),
        ("a", "x", hour(5), hour(6), "m"),
        ("a", "x", hour(5), hour(6), "n"),
        ("a", "x", hour(4), hour(9), "y"),
    ]
    for order in (same, same[::-1]):
        assert join_values(spark, rows, order) == {"r": "n"}
    assert join_values(spark, rows, []) == {"r": None}


@pytest.mark.parametrize("hot", [None, 0.2])
def test_it_is_what_looking_at_all_pairs_finds(spark, hot):
    """Also where the rows of the hot keys, a and c, are spread over several tasks."""
    chance = random.Random(5)
    keys = [*"aaabcc", None]
    rows = [
        (f"r{n}", chance.choice(keys), "x", hour(chance.randrange(9)), hour(chance.randrange(9)))
        for n in range(60)
    ]
    versions = [
        (chance.choice("ab"), "x", hour(chance.randrange(9)), hour(chance.randrange(9)), f"v{n:02}")
        for n in range(40)
    ]

    def expected_value(row: tuple) -> str | None:
        candidates = [v for v in versions if v[0] == row[1] and v[2] <= row[3] and v[3] <= row[4]]
        return max(candidates, key=lambda v: v[2:])[4] if candidates else None

    assert join_values(spark, rows, versions, hot=hot) == {
        row[0]: expected_value(row) for row in rows
    }


@pytest.mark.parametrize("left_out", ["known", "cutoff"])
def test_none_can_be_written_without_a_cutoff_of_what_is_known(left_out):
    assert inspect.signature(as_of_join).parameters[left_out].default is inspect.Parameter.empty
    with pytest.raises(TypeError, match=left_out):
        as_of_join(None, None, **{n: v for n, v in {**ON, "cutoff": "at"}.items() if n != left_out})


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ({"key": "nothing"}, "the rows have no column nothing"),
        ({"at": "then"}, "the rows have no column then"),
        ({"known": "told"}, "the versions have no column told"),
        ({"key": "k"}, "rows and versions both have d: rename or drop one of them"),
    ],
)
def test_columns_that_are_not_there_or_twice_are_refused(spark, on, said):
    with pytest.raises(ValueError, match=said):
        join_values(spark, [("r", "a", "x", hour(1), hour(1))], [], **on)
