"""A step that waits for Spark says which query, and where; one that comes further says nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from backfill_assets.spark.tasks import report_stalls
from backfill_assets_tests.helpers.process_kills import wait_for


def collect_when_there(spark: SparkSession, file: Path) -> list:
    """Rows that come once there is a file: a query that stands still until then."""

    def until_there(number):
        wait_for(file.exists)
        return number

    return spark.range(3).repartition(3).select(F.udf(until_there, "long")("id")).collect()


def test_the_query_and_the_place_are_named(spark, tmp_path):
    reports: list[str] = []

    def note_report(text: str) -> None:
        # On a loaded machine, what comes before the tasks may take as long.
        if "0 of 3 tasks have ended" in text:
            reports.append(text)
            (tmp_path / "there").touch()

    with report_stalls(lambda: [spark], 0.5, note_report):
        assert len(collect_when_there(spark, tmp_path / "there")) == 3
    text = reports[0]
    assert text.startswith("No task of Spark has ended for 0.5 seconds. stage ")
    assert "The step waits in collect_when_there (" in text
    assert "test_stalls.py, line" in text


def test_who_comes_further_is_left_alone():
    """One that does something else each time it is looked at."""
    reports, looks = [], []

    def sessions() -> list[SparkSession]:
        looks.append(1)
        return []

    def go(rounds: int) -> None:
        if rounds and not reports:
            wait_for(lambda: len(looks) > 40 - rounds)
            go(rounds - 1)

    with report_stalls(sessions, 0.2, reports.append):
        go(40)
    assert reports == []


def test_none_is_looked_at_where_that_is_switched_off():
    before = threading.active_count()
    with report_stalls(lambda: pytest.fail("looked"), 0, pytest.fail):
        assert threading.active_count() == before
