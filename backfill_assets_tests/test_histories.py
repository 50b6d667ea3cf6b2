"""The versions of a key: which version of a change counts, and in which order changes hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from backfill_assets import History
from backfill_assets_tests.pipeline import day

PRICES = History(day="day", key="item", change="id", known="told_at", values=("gone", "price"))
CHANGES = (
    "for_day DATE, id STRING, item STRING, valid_from TIMESTAMP, told_at TIMESTAMP, gone BOOLEAN, "
    "price INT, logged_on DATE"
)


class Change(NamedTuple):
    """A version of a change; days by their numbers."""

    id: str = "x"
    item: str = "a"
    since: int = 1
    told: int = 1
    gone: bool | None = False
    price: int | None = 1
    logged: int = 2

    @property
    def row(self) -> tuple[Any, ...]:
        since, told = (datetime(2024, 1, n, 10) for n in (self.since, self.told))  # noqa: DTZ001
        return day(2), self.id, self.item, since, told, self.gone, self.price, day(self.logged)


def versions(
    spark, changes: Sequence[Change], before: Sequence[Change] = ()
) -> dict[str, tuple[Change, int | None]]:
    """By change, the version that counts on the second day, and the day on which it ends."""
    frames = (
        spark.createDataFrame([one.row for one in rows], CHANGES) for rows in (changes, before)
    )
    found = PRICES.versions(*frames).collect()
    assert all(row["is_current"] == (row["valid_to"] is None) for row in found)
    assert {row["day"] for row in found} <= {day(2)}
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
        for row in found
    }


@pytest.mark.parametrize(
    ("less", "greater"),
    [
        # Each is greater by one column, and less by the next one.
        (Change(told=1, since=3), Change(told=2, since=1)),
        (Change(since=1, item="b"), Change(since=2, item="a")),
        (Change(item="a", gone=True), Change(item="b", gone=False)),
        (Change(gone=False, price=9), Change(gone=True, price=1)),
        (Change(gone=None, price=9), Change(gone=False, price=1)),
        (Change(price=None), Change(price=-1)),
        (Change(price=1, logged=1), Change(price=2, logged=2)),
        (Change(price=1, logged=2), Change(price=2, logged=1)),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_the_greatest_version_of_a_change_counts(spark, less, greater, kept):
    """Whichever came first, and whether the other one is of the day or of the day before."""
    for one, other in ((less, greater), (greater, less)):
        before = [other] if kept else []
        found = versions(spark, [one] if kept else [one, other], before)
        assert found == {"x": (greater, None)}


def test_a_line_that_is_sent_again_was_known_since_it_came_first(spark):
    first, again = Change(logged=1), Change(logged=2)
    assert versions(spark, [again], [first]) == {"x": (first, None)}
    assert versions(spark, [again, first]) == {"x": (first, None)}


def test_changes_hold_in_the_order_of_their_moments(spark):
    """Of those of one moment, the one that was known last, and then the one with the last name."""
    early, late = Change("c", since=1), Change("a", since=5)
    known_first, known_last = Change("z", since=3, told=3), Change("b", since=3, told=4)
    named_last = Change("y", since=3, told=4)
    other = Change("o", item="b", since=2)
    found = versions(spark, [late, known_last, other, named_last], [early, known_first])
    assert found == {
        "c": (early, 3),
        "z": (known_first, 3),
        "b": (known_last, 3),
        "y": (named_last, 5),
        "a": (late, None),
        "o": (other, None),
    }


def test_no_changes_and_no_state(spark):
    assert versions(spark, []) == {}
