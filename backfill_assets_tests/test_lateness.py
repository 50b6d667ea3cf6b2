"""The reprocessing window: as a rule over dates, and as Dagster resolves it."""

from __future__ import annotations

from datetime import date, datetime, timezone

import dagster as dg
import pytest
from dagster._core.definitions.partitions.subset import TimeWindowPartitionsSubset

from backfill_assets.lateness import last_log_day, log_days, log_days_mapping
from backfill_assets.partitions import Window


def d(text: str) -> date:
    return date.fromisoformat(text)


@pytest.mark.parametrize(
    ("event_day", "window_days", "last"),
    [
        ("2024-01-10", 0, "2024-01-10"),
        ("2024-01-10", 1, "2024-01-11"),
        ("2024-01-10", 7, "2024-01-17"),
        ("2024-02-25", 7, "2024-03-03"),  # a leap year
        ("2023-02-25", 7, "2023-03-04"),
        ("2023-12-31", 366, "2024-12-31"),
    ],
)
def test_last_log_day(event_day, window_days, last):
    assert last_log_day(d(event_day), window_days) == d(last)


@pytest.mark.parametrize(
    ("first", "end", "window_days", "log_first", "log_end"),
    [
        ("2024-01-10", "2024-01-11", 0, "2024-01-10", "2024-01-11"),
        ("2024-01-10", "2024-01-11", 7, "2024-01-10", "2024-01-18"),
        ("2024-01-10", "2024-01-20", 7, "2024-01-10", "2024-01-27"),
        ("2024-01-10", "2024-01-20", 0, "2024-01-10", "2024-01-20"),
    ],
)
def test_log_days(first, end, window_days, log_first, log_end):
    found = log_days(Window(d(first), d(end)), window_days)
    assert found == Window(d(log_first), d(log_end))
    # The two say the same.
    assert found.end == last_log_day(d(end), window_days)


DAILY = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
#: In the middle of the last day but one: 2024-01-30 is not over yet.
NOW = datetime(2024, 1, 30, 12, tzinfo=timezone.utc)


def upstream(keys: list[str], window_days: int, partitions=DAILY):
    subset = partitions.subset_with_partition_keys(keys)
    with dg.partition_loading_context(effective_dt=NOW):
        return log_days_mapping(window_days).get_upstream_mapped_partitions_result_for_partitions(
            subset, partitions, partitions
        )


def days(first: str, last: str) -> list[str]:
    end = d(last)
    return [str(x) for x in Window(d(first), date.fromordinal(end.toordinal() + 1))]


@pytest.mark.parametrize(
    ("keys", "window_days", "log_days_read"),
    [
        (["2024-01-10"], 0, ["2024-01-10"]),
        (["2024-01-10"], 2, days("2024-01-10", "2024-01-12")),
        (["2024-01-10"], 7, days("2024-01-10", "2024-01-17")),
        # The first day of all reads nothing before it.
        (["2024-01-01"], 7, days("2024-01-01", "2024-01-08")),
        (days("2024-01-01", "2024-01-05"), 2, days("2024-01-01", "2024-01-07")),
        # The last days have log days that do not exist yet: open, not broken.
        (["2024-01-29"], 7, ["2024-01-29"]),
        (days("2024-01-26", "2024-01-29"), 7, days("2024-01-26", "2024-01-29")),
        (["2024-01-25"], 7, days("2024-01-25", "2024-01-29")),
        # Gaps stay gaps where the windows do not meet.
        (["2024-01-02", "2024-01-10"], 1, ["2024-01-02", "2024-01-03", "2024-01-10", "2024-01-11"]),
    ],
)
def test_mapping_as_dagster_resolves_it(keys, window_days, log_days_read):
    found = upstream(keys, window_days)
    assert isinstance(found.partitions_subset, TimeWindowPartitionsSubset)
    with dg.partition_loading_context(effective_dt=NOW):
        assert sorted(found.partitions_subset.get_partition_keys()) == log_days_read
    # With an invalid upstream partition Dagster would refuse the run.
    assert not found.required_but_nonexistent_subset.get_partition_keys()


def test_mapping_downstream_has_no_day_before():
    """A root backfilled in the UI drags in what reads it: that must not be days before START."""
    mapping = log_days_mapping(7)
    with dg.partition_loading_context(effective_dt=NOW):
        found = mapping.get_downstream_partitions_for_partitions(
            DAILY.subset_with_partition_keys(["2024-01-03"]), DAILY, DAILY
        )
        assert sorted(found.get_partition_keys()) == days("2024-01-01", "2024-01-03")


def test_mapping_crosses_a_change_of_the_clock():
    berlin = dg.DailyPartitionsDefinition(
        "2024-01-01", end_date="2024-06-01", timezone="Europe/Berlin"
    )
    subset = berlin.subset_with_partition_keys(["2024-03-29"])
    found = log_days_mapping(7).get_upstream_mapped_partitions_result_for_partitions(
        subset, berlin, berlin
    )
    keys = sorted(found.partitions_subset.get_partition_keys())
    assert keys == days("2024-03-29", "2024-04-05")  # summer time begins on the 31st
