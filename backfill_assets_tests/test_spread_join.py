"""Joins whose hot keys are spread: the same rows as the plain join, and in more tasks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_assets import spread_join

ROWS = "id STRING, k STRING, n LONG, tags MAP<STRING, STRING>"
OTHERS = "k STRING, n LONG, v STRING"
KEYS = st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from([1, 2, None]))
#: Rows that are alike, and keys that come several times on either side.
LEFT = st.lists(st.tuples(st.sampled_from("xy"), KEYS), max_size=12)
RIGHT = st.lists(st.tuples(KEYS, st.sampled_from("vw")), max_size=6)


@given(LEFT, RIGHT, st.sampled_from(["left", "inner"]), st.sampled_from([0.01, 0.3, 0.99]))
@example([], [], "left", 0.05)
@example([("x", ("a", 1))] * 9, [], "left", 0.05)
@example([], [(("a", 1), "v")], "left", 0.05)
@example(
    [("x", ("a", 1))] * 9 + [("y", (None, 1))] * 3,
    [(("a", 1), "v"), ((None, 1), "w")],
    "inner",
    0.05,
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_rows_are_those_of_the_plain_join(spark, left_rows, right_rows, how, hot):
    rows = spark.createDataFrame([(id_, k, n, None) for id_, (k, n) in left_rows], ROWS)
    other = spark.createDataFrame([(k, n, v) for (k, n), v in right_rows], OTHERS)
    spread = spread_join(rows, other, ["k", "n"], how, hot=hot, tasks=3)
    plain = rows.join(other, ["k", "n"], how)
    assert spread.columns == plain.columns
    # A map has no order and no hash.
    collected = [frame.drop("tags").collect() for frame in (spread, plain)]
    assert Counter(map(tuple, collected[0])) == Counter(map(tuple, collected[1]))


def test_a_hot_key_and_rows_without_one_are_in_several_tasks(spark):
    """And a key that is not hot is in one."""
    key = F.when(F.col("id") < 60, "hot").when(F.col("id") < 80, None)
    rows = spark.range(100).select(
        "id", F.coalesce(key, F.expr("if(id < 80, null, 'c' || id)")).alias("k")
    )
    other = spark.createDataFrame([("hot", 1), ("c90", 2)], "k STRING, v INT")
    with_no_broadcast = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
    }
    before = {name: spark.conf.get(name) for name in with_no_broadcast}
    try:
        for name, value in with_no_broadcast.items():
            spark.conf.set(name, value)
        task = F.spark_partition_id().alias("task")
        tasks = {
            name: Counter(row["k"] for row in frame.select("k", task).distinct().collect())
            for name, frame in {
                "plain": rows.join(other, "k", "left"),
                "spread": spread_join(rows, other, "k"),
            }.items()
        }
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert tasks["plain"]["hot"] == tasks["plain"][None] == 1
    assert tasks["spread"]["hot"] > 3
    assert tasks["spread"][None] > 3
    assert {n for k, n in tasks["spread"].items() if k not in ("hot", None)} == {1}


@pytest.mark.parametrize(
    ("rows", "other", "said"),
    [
        ("k INT", "k BIGINT", "k is int in the rows and bigint in the other frame: cast one of"),
        ("k DOUBLE", "k DOUBLE", "k is double, which is not spread"),
        ("k ARRAY<INT>", "k ARRAY<INT>", "k is array<int>, which is not spread"),
        ("k STRING COLLATE UNICODE_CI", "k STRING COLLATE UNICODE_CI", "k is string collate"),
        ("j INT", "k INT", "rows has no column k"),
        ("k INT", "j INT", "other has no column k"),
    ],
)
def test_keys_whose_hashes_may_differ_are_refused(spark, rows, other, said):
    """Equal values of these need not have equal hashes."""
    frames = (spark.createDataFrame([], schema) for schema in (rows, other))
    with pytest.raises(ValueError, match=f"spread_join: {said}"):
        spread_join(*frames, "k")
