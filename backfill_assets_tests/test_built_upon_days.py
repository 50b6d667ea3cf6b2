"""Days that are built upon the day before: which of them a run builds, and how they are judged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date
from functools import partial
from typing import Annotated
from unittest.mock import Mock

import msgspec
import pytest
from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, Reads, table
from backfill_assets.audit.verdicts import DayMetrics, Expectation, Verdict, judge_days
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord
from backfill_assets.orders.tables import ORDERS, STAGED, DailyOrders
from backfill_assets.publish.publication import chain_days
from backfill_assets.publish.types import ComputePlan, RunRequest
from backfill_assets.settings import load_settings
from backfill_assets.staleness.assess import (
    DayAssessment,
    Obstacle,
    find_state_obstacle,
    follow_days,
    new_input_reason,
)
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.graph import Graph, tables_of
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS, START, day


@table(DailyOrders, **FACT_OPTIONS)
def balance(
    orders: Annotated[DataFrame, Reads(STAGED)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame: ...


TABLES = [*ORDERS, balance]


def days_between(first: int, last: int) -> Window:
    return Window(day(first), day(last) + DAY)


def split_days(
    own: Ledger,
    window: Window,
    due: Collection[date] | None = None,
    *,
    refused: Collection[date] = (),
    failed: Collection[date] = (),
    start: date = START,
) -> tuple[dict[date, str], dict[date, str]]:
    """The days that a run builds and those that it refuses, with the reasons.

    All days of the window are due unless some are given.
    """
    settings = load_settings(
        tables="backfill_assets_tests.test_built_upon_days:TABLES", start=start
    )
    graph = Graph.from_tables(tables_of(settings).values(), Policy.from_settings(settings))
    snapshot = Snapshot(
        graph,
        {balance.name: own},
        config_digests={balance.name: "config"},
        failed={balance.name: failed},
    )
    due = window if due is None else due
    full_disk = Obstacle("the disk is full")
    assessments = {
        d: DayAssessment(
            "",
            reason="never published" if d in due else "",
            obstacle=full_disk if d in refused else None,
        )
        for d in window
    }
    find_obstacle = partial(find_state_obstacle, snapshot, balance.name)
    ordered = follow_days(balance.name, assessments, find_obstacle)
    buildable = {
        d: a.reason or new_input_reason([balance.name]) for d, a in ordered.items() if a.can_change
    }
    return buildable, {d: a.obstacle.text for d, a in ordered.items() if a.obstacle}


def blocked_by(problem: str, blocked_days: Iterable[date]) -> dict[date, str]:
    return dict.fromkeys(blocked_days, f"it is built upon earlier days, and {problem}")


# --- which days are built -------------------------------------------------------------------------


def test_a_day_is_built_after_the_day_before_and_so_are_the_days_that_follow_it():
    own = ledger(balance, record(0, days((1, 6))))
    buildable, blocked = split_days(own, days_between(1, 6), due=days(3))
    assert buildable == {
        day(3): "never published",
        **dict.fromkeys(days((4, 6)), f"new input: {balance.name}"),
    }
    assert blocked == {}
    assert split_days(ledger(balance), days_between(1, 6))[0].keys() == days((1, 6))


def test_after_a_hole_nothing_is_built():
    own = ledger(balance, record(0, days(1, 2)))
    # Day 3 is missing.
    hole = f"{balance.name}[{day(3)}] has never been published"
    assert split_days(own, days_between(4, 6)) == ({}, blocked_by(hole, days((4, 6))))
    assert split_days(own, days_between(3, 6))[0].keys() == days((3, 6))


def test_a_start_that_is_moved_past_a_hole_does_not_begin_anew_in_silence():
    own = ledger(balance, record(0, days(1, 2)))
    buildable, blocked = split_days(own, days_between(4, 6), start=day(4))
    assert buildable == {}
    assert blocked.keys() == days((4, 6))
    for problem in blocked.values():
        assert f"{balance.name} has days up to {day(2)} and none on the day before {day(4)}" in (
            problem
        )
        assert "it would begin anew" in problem
    # Right after the days that there are, it goes on; and the first day of all has none before it.
    for known in (ledger(balance, record(0, days((1, 3)))), ledger(balance)):
        assert split_days(known, days_between(4, 6), start=day(4))[0].keys() == days((4, 6))


def test_after_a_day_that_cannot_be_made_nothing_is_built():
    buildable, blocked = split_days(ledger(balance), days_between(1, 6), refused=days(4))
    assert buildable.keys() == days((1, 3))
    lacking = f"{balance.name}[{day(4)}] was not published"
    assert blocked == {day(4): "the disk is full", **blocked_by(lacking, days(5, 6))}


def test_a_refused_day_does_not_hold_back_days_after_a_current_one():
    own = ledger(balance, record(0, days((1, 6))))
    # Days 4 and 5 are as they were, and built upon day 3 as it is; day 6 has a new order.
    buildable, blocked = split_days(own, days_between(1, 6), due=days(2, 6), refused=days(3))
    assert buildable.keys() == days(2, 6)
    assert blocked == {day(3): "the disk is full"}
    # A day that is due right after it waits.
    buildable, blocked = split_days(own, days_between(1, 6), due=days(4, 6), refused=days(3))
    assert buildable.keys() == days(6)
    assert blocked.keys() == days(3, 4)


def test_nothing_is_built_upon_a_day_of_other_settings():
    own = ledger(balance, record(0, days((1, 3)), config_digest="other"))
    problem = f"{balance.name}[{day(3)}] was made under other settings; rebuild it first"
    assert split_days(own, days_between(4, 4)) == ({}, blocked_by(problem, days(4)))
    assert split_days(own, days_between(1, 4))[0].keys() == days((1, 4))


def test_nothing_is_built_upon_what_a_day_was_before_it_failed_in_the_run():
    own = ledger(balance, record(0, days((1, 6))))
    buildable, blocked = split_days(own, days_between(5, 6), failed=days(3, 4))
    assert buildable == {}
    assert blocked == blocked_by(f"{balance.name}[{day(4)}] failed in this run", days(5, 6))


# --- how days of one commit are judged ------------------------------------------------------------


def digest_day(d: date, content_before: str) -> str:
    """What a day is made of, if nothing but the day before counts."""
    return f"{d} upon {content_before}"


def judge(digests: Mapping[int, str], broken: Collection[int] = ()) -> list[Verdict]:
    """Verdicts of days by themselves; some of them break what their inputs say."""
    nulls = dict.fromkeys(balance.columns, 0)
    return judge_days(
        balance,
        [day(n) for n in digests],
        {day(n): DayMetrics(1, {}, digest, nulls=nulls) for n, digest in digests.items()},
        {day(n): Expectation(rows=2) for n in broken},
        {},
    )


def chain(
    own: Ledger, requested: Collection[date], verdicts: list[Verdict]
) -> tuple[dict[date, str], dict[date, str], set[date]]:
    """The input digests, the reasons against days, and the days that came out as they were."""
    window = Window(verdicts[0].day, verdicts[-1].day + DAY)
    reasons = dict.fromkeys(window, "never published")
    plan = ComputePlan(
        RunRequest(window, {}), Mock(), own, [], {}, reasons, {}, requested=requested
    )
    snapshot = Mock(digest_following=lambda _, d, content: digest_day(d, content))
    input_digests, judged, identical = chain_days(plan, snapshot, verdicts)
    failures = {v.day: v.failure_reasons for v in judged if not v.may_publish}
    return input_digests, failures, identical


def publish_chain(digests: Mapping[int, str]) -> Ledger:
    """A commit of days that were built upon each other."""
    commit: CommitRecord = record(0, days(*digests))
    for n, digest in digests.items():
        before = digests.get(n - 1, "nothing")
        commit.days[day(n)] = msgspec.structs.replace(
            commit.days[day(n)], digest=digest, input_digest=digest_day(day(n), before)
        )
    return ledger(balance, commit)


def test_days_before_one_that_does_not_pass_are_published_and_none_after_it():
    own = publish_chain({2: "b"})
    verdicts = judge({3: "c", 4: "d", 5: "e", 6: "f"}, broken=[4])
    _, failures, identical = chain(own, days((3, 6)), verdicts)
    assert failures.keys() == days((4, 6))
    assert failures[day(4)].startswith("conservation: ")
    assert "built upon" not in failures[day(4)]
    for n in (5, 6):
        assert (
            f"it is built upon {balance.name}[{day(n - 1)}], which did not pass"
            in (failures[day(n)])
        )
    assert identical == set()


@pytest.mark.parametrize(("requested", "as_they_were"), [((2, 3), (4,)), ((2, 3, 4), ())])
def test_a_day_is_made_of_what_the_day_before_came_out_as(requested, as_they_were):
    own = publish_chain({1: "a", 2: "b", 3: "c", 4: "d"})
    # Days 2 and 3 are asked for. Day 3 came out as it was: so does day 4, unless it is asked for.
    verdicts = judge({2: "other", 3: "c", 4: "d"})
    input_digests, failures, identical = chain(own, days(*requested), verdicts)
    assert failures == {}
    assert input_digests == {
        day(2): digest_day(day(2), own.content_key(day(1))),
        day(3): digest_day(day(3), "other"),
        day(4): digest_day(day(4), "c"),
    }
    assert identical == days(*as_they_were)
