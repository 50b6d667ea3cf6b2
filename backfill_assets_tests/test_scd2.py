"""The versions of a key: which version of a change counts, and in which order changes hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from backfill_assets import VersionHistory
from backfill_assets_tests.helpers.pipeline import day

PRICES = VersionHistory(
    day="day", key="item", change="id", known="told_at", values=("gone", "price")
)
CHANGES = (
    "for_day DATE, id STRING, item STRING, valid_from TIMESTAMP, told_at TIMESTAMP, gone BOOLEAN, "
    "price INT, logged_on DATE"
)


class Change(NamedTuple):
    """A version of a change; days by their numbers."""

    id: str = "x"
    item: str = "a"
    since: int = 1
    reported: int = 1
    deleted: bool | None = False
    price: int | None = 1
    logged: int = 2

    @property
    def row(self) -> tuple[Any, ...]:
        since, reported_at = (datetime(2024, 1, n, 10) for n in (self.since, self.reported))  # noqa: DTZ001
        return (
            day(2),
            self.id,
            self.item,
            since,
            reported_at,
            self.deleted,
            self.price,
            day(self.logged),
        )


def versions_by_change(
    spark, changes: Sequence[Change], before: Sequence[Change] = ()
) -> dict[str, tuple[Change, int | None]]:
    """By change, the version that counts on the second day, and the day on which it ends."""
    frames = (
        spark.createDataFrame([change.row for change in rows], CHANGES)
        for rows in (changes, before)
    )
    output = PRICES.versions(*frames).collect()
    assert all(row["is_current"] == (row["valid_to"] is None) for row in output)
    assert {row["day"] for row in output} <= {day(2)}
    return {
        row["id"]: (
            Change(
                row["id"],
                row["item"],
                row["valid_from"].day,
                row["told_at"].day,
                row["gone"],
                row["price"],
                row["logged_on"].day,
            ),
            row["valid_to"] and row["valid_to"].day,
        )
        for row in output
    }


@pytest.mark.parametrize(
    ("less", "greater"),
    [
        # Each is greater by one column, and less by the next one.
        (Change(reported=1, since=3), Change(reported=2, since=1)),
        (Change(since=1, item="b"), Change(since=2, item="a")),
        (Change(item="a", deleted=True), Change(item="b", deleted=False)),
        (Change(deleted=False, price=9), Change(deleted=True, price=1)),
        (Change(deleted=None, price=9), Change(deleted=False, price=1)),
        (Change(price=None), Change(price=-1)),
        (Change(price=1, logged=1), Change(price=2, logged=2)),
        (Change(price=1, logged=2), Change(price=2, logged=1)),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_the_greatest_version_of_a_change_counts(spark, less, greater, kept):
    """Whichever came first, and whether the other one is of the day or of the day before."""
    for first, other in ((less, greater), (greater, less)):
        before = [other] if kept else []
        result = versions_by_change(spark, [first] if kept else [first, other], before)
        assert result == {"x": (greater, None)}


def test_a_line_that_is_sent_again_was_known_since_it_came_first(spark):
    first, second = Change(logged=1), Change(logged=2)
    assert versions_by_change(spark, [second], [first]) == {"x": (first, None)}
    assert versions_by_change(spark, [second, first]) == {"x": (first, None)}


def test_changes_hold_in_the_order_of_their_moments(spark):
    """Of those of one moment, the one that was known last, and then the one with the last name."""
    early, late = Change("c", since=1), Change("a", since=5)
    known_first, known_last = Change("z", since=3, reported=3), Change("b", since=3, reported=4)
    named_last = Change("y", since=3, reported=4)
    other = Change("o", item="b", since=2)
    result = versions_by_change(spark, [late, known_last, other, named_last], [early, known_first])
    assert result == {
        "c": (early, 3),
        "z": (known_first, 3),
        "b": (known_last, 3),
        "y": (named_last, 5),
        "a": (late, None),
        "o": (other, None),
    }


def test_no_changes_and_no_state(spark):
    assert versions_by_change(spark, []) == {}
