"""A table that carries state from day to day: computed in order, by day or by range."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, table
from backfill_assets.assets import table_asset
from backfill_assets.backfills.backfill_plan import TableForecast
from backfill_assets.backfills.verify import VerifyOutcome, verify_days
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta import ledger_reader
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.monitoring.next_runs import rebuild_requests
from backfill_assets.orders.tables import CURRENT, FACT, ORDERS, STAGED
from backfill_assets.publish.publisher import Publisher
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.settings import load_settings
from backfill_assets.spark.frames import Cache, cache_frames
from backfill_assets.staleness.assess import final_days
from backfill_assets.staleness.stale import StaleDays, StaleReason, find_stale_days
from backfill_assets.tables.graph import load_graph
from backfill_assets_guide.examples.customers.cohorts import cohort_value_30d
from backfill_assets_guide.examples.customers.lifetime_value import (
    LifetimeValue,
    customer_lifetime_value,
)
from backfill_assets_tests.helpers.memory_model import lifetime_values
from backfill_assets_tests.helpers.pipeline import Pipeline, day, make_plan, order, run_undo


@table(LifetimeValue)
def frozen_value(
    orders: Annotated[DataFrame, Reads(FACT)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    return customer_lifetime_value(orders, before)


TABLES = [*ORDERS, customer_lifetime_value, cohort_value_30d, frozen_value]
LTV = customer_lifetime_value.name
FACTS = ("raw_orders", "raw_orders_rejected", CURRENT.name)
ALL = (*FACTS, LTV)


@pytest.fixture
def stateful(engine, spark, tmp_path: Path) -> Pipeline:
    return Pipeline(engine, tmp_path, tables="backfill_assets_tests.system.test_state:TABLES")


def expected_values(orders: Iterable[Mapping[str, Any]], last: int) -> set[tuple]:
    """The rows of all days, by a plain loop."""
    by_day: dict[tuple[date, str], tuple[int, Decimal]] = {}
    for row in orders:
        count, sum_ = by_day.get((day(row["n"]), row["c"]), (0, Decimal(0)))
        by_day[day(row["n"]), row["c"]] = count + 1, sum_ + Decimal(row["amount"])
    return lifetime_values(by_day, [day(n) for n in range(1, last + 1)])


def read_rows(pipeline: Pipeline) -> set[tuple]:
    return {tuple(row.values()) for row in pipeline.rows(LTV)}


def land_orders(
    pipeline: Pipeline, n: int, orders: Iterable[Mapping[str, Any]], name: str = "a"
) -> None:
    """Orders of any days, in an arrival day's folder."""
    lines = [
        order(row["id"], row["n"], row["amount"], row["c"], ingested=f"{day(n)}T12:00:00Z")
        for row in orders
    ]
    pipeline.land(n, lines, f"{name}.jsonl")


def day_digests(pipeline: Pipeline) -> dict[date, str]:
    ledger = pipeline.io_manager.ledger(customer_lifetime_value)
    return {d: ledger.content_key(d) for d in sorted(ledger.published_days)}


def latest_version(pipeline: Pipeline) -> int:
    return pipeline.io_manager.ledger(customer_lifetime_value).version or 0


ORDERED = [
    {"id": "1", "n": 1, "c": "a", "amount": "1.00"},
    {"id": "2", "n": 1, "c": "b", "amount": "2.00"},
    {"id": "3", "n": 3, "c": "a", "amount": "4.00"},
    {"id": "4", "n": 4, "c": "c", "amount": "8.00"},
]


def land_all(pipeline: Pipeline, orders: Iterable[Mapping[str, Any]], last: int) -> None:
    for n in range(1, last + 1):
        land_orders(pipeline, n, [row for row in orders if row["n"] == n])


def test_a_range_has_what_days_have_and_a_repeat_changes_nothing(
    stateful: Pipeline, engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_all(stateful, ORDERED, 5)
    assert stateful.run(1, 5, ALL)
    assert read_rows(stateful) == expected_values(ORDERED, 5)
    at_once, before = day_digests(stateful), latest_version(stateful)
    assert stateful.run(1, 5, ALL)
    assert latest_version(stateful) == before
    # Asked for, each day is written once more, as it came out as it was.
    stateful.run(1, 5, [LTV], tags={REWRITE_TAG: "true"})
    latest = stateful.io_manager.ledger(customer_lifetime_value).latest
    assert {d for d in latest if latest[d].version > before} == {day(n) for n in range(1, 6)}
    assert day_digests(stateful) == at_once
    # The same by stretches of two days, and day by day.
    for name, ranges in (("two", [(1, 5)]), ("one", [(n, n) for n in range(1, 6)])):
        other = Pipeline(engine, tmp_path / name, tables=stateful.settings.tables)
        land_all(other, ORDERED, 5)
        other.run(1, 5, FACTS)
        monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 2)
        for first, last in ranges:
            assert other.run(first, last, [LTV])
        assert day_digests(other) == at_once


def test_a_late_line_rebuilds_the_days_that_change_and_no_more(stateful: Pipeline) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, ALL)
    # It moves from day 4 to day 2: the days 2 and 3 change, and 4 has other days since the last.
    land_orders(stateful, 6, [{**ORDERED[2], "n": 2}], "late")
    stateful.run(6, 6, FACTS)
    stateful.run(2, 4, [CURRENT.name])
    ledger = stateful.io_manager.ledger(customer_lifetime_value)
    behind = find_stale_days(
        ledger_reader.read_ledgers(stateful.deployment),
        Policy.from_settings(stateful.settings),
        day(7),
    ).all_days(LTV)
    assert behind == {day(n) for n in range(2, 7)}
    stateful.run(2, 6, [LTV])
    later = stateful.io_manager.ledger(customer_lifetime_value)
    assert read_rows(stateful) == expected_values(
        [*ORDERED[:2], {**ORDERED[2], "n": 2}, ORDERED[3]], 6
    )
    changed = {d for d in later.latest if ledger.latest[d].version != later.latest[d].version}
    assert changed == {day(n) for n in range(2, 7)}
    stale = find_stale_days(
        ledger_reader.read_ledgers(stateful.deployment),
        Policy.from_settings(stateful.settings),
        day(7),
    )
    assert not stale.all_days(LTV)


def test_it_ends_where_a_day_comes_out_as_it_was(stateful: Pipeline) -> None:
    ordered = [*ORDERED, {"id": "5", "n": 4, "c": "a", "amount": "16.00"}]
    land_all(stateful, ordered, 6)
    stateful.run(1, 6, ALL)
    before = latest_version(stateful)
    # It moves from day 3 to day 2; from day 4 on, nothing tells of that.
    land_orders(stateful, 6, [{**ORDERED[2], "n": 2}], "late")
    stateful.run(6, 6, FACTS)
    stateful.run(2, 3, [CURRENT.name])
    stateful.run(2, 6, [LTV])
    ledger = stateful.io_manager.ledger(customer_lifetime_value)
    new_records = [record for record in ledger.records if record.version > before]
    assert {d for record in new_records for d in record.rewritten_days} == {day(2), day(3)}
    assert {d for record in new_records for d in record.days} == {day(n) for n in (2, 3, 4)}
    assert read_rows(stateful) == expected_values(
        [*ORDERED[:2], {**ORDERED[2], "n": 2}, *ordered[3:]], 6
    )


def test_after_a_hole_nothing_is_built(stateful: Pipeline) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 2, ALL)
    stateful.run(3, 6, FACTS)
    # Day 3 is missing.
    result = stateful.run(4, 6, [LTV], fails=True)
    message = stateful.failure(result)
    assert f"{LTV}[{day(3)}] has never been published" in message
    assert sorted(day_digests(stateful)) == [day(1), day(2)]
    stateful.run(3, 6, [LTV])
    assert read_rows(stateful) == expected_values(ORDERED, 6)


def test_a_start_that_is_moved_past_a_hole_does_not_begin_anew_in_silence(
    engine, stateful: Pipeline, tmp_path: Path
) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 2, ALL)
    stateful.run(3, 6, FACTS)
    tables = "backfill_assets_tests.system.test_state:TABLES"
    moved = Pipeline(engine, tmp_path, tables=tables, start=day(4))
    before = read_rows(stateful)
    message = moved.failure(moved.run(4, 6, [LTV], fails=True))
    assert f"{LTV} has days up to {day(2)} and none on the day before {day(4)}" in message
    assert "it would begin anew" in message
    assert read_rows(stateful) == before
    # Right after the days that there are, it goes on.
    stateful.run(3, 3, [LTV])
    moved.run(4, 6, [LTV])
    assert {d: c for d, c in day_digests(moved).items() if d >= day(4)}


def test_after_a_day_that_cannot_be_made_nothing_is_built(stateful: Pipeline) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, FACTS[:2])
    stateful.run(1, 3, [CURRENT.name])
    stateful.run(5, 6, [CURRENT.name])
    message = stateful.failure(stateful.run(1, 6, [LTV], fails=True))
    assert f"built upon earlier days, and {LTV}[{day(4)}] was not published" in message
    assert sorted(day_digests(stateful)) == [day(1), day(2), day(3)]


def test_a_refused_day_does_not_hold_back_days_after_a_current_one(
    stateful: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, ALL)
    late = {"id": "5", "n": 2, "c": "b", "amount": "16.00"}
    new = {"id": "6", "n": 6, "c": "c", "amount": "32.00"}
    land_orders(stateful, 6, [late, new], "late")
    stateful.run(6, 6, FACTS)
    stateful.run(2, 2, [CURRENT.name])
    with monkeypatch.context() as patch:
        failed = {CURRENT.name: {day(3): "the disk is full"}}
        patch.setattr(Publisher, "failed_days", lambda *_: failed)
        message = stateful.failure(stateful.run(1, 6, [LTV], fails=True))
    assert f"{day(3)}]  the disk is full" in message
    # Day 3 is as it was, with days 4 and 5, which are built upon it; day 6 has its new order.
    assert read_rows(stateful) == {
        row
        for orders, numbers in (([*ORDERED, late], (1, 2)), ([*ORDERED, new], (3, 4, 5, 6)))
        for row in expected_values(orders, 6)
        if row[0] in map(day, numbers)
    }
    stateful.run(1, 6, [LTV])
    assert read_rows(stateful) == expected_values([*ORDERED, late, new], 6)


def test_nothing_is_built_upon_a_day_of_other_settings(
    stateful: Pipeline, engine, tmp_path: Path
) -> None:
    land_all(stateful, ORDERED, 4)
    stateful.run(1, 3, ALL)
    # At ten o'clock it is the same day there.
    moved = Pipeline(engine, tmp_path, tables=stateful.settings.tables, timezone="America/New_York")
    moved.run(4, 4, FACTS)
    message = moved.failure(moved.run(4, 4, [LTV], fails=True))
    assert f"{LTV}[{day(3)}] was made under other settings; rebuild it first" in message
    moved.run(1, 4, ALL)
    assert read_rows(moved) == expected_values(ORDERED, 4)


def test_a_day_that_does_not_pass_holds_back_those_after_it(
    stateful: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 2, ALL)
    stateful.run(3, 6, FACTS)
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 2)
    transform = customer_lifetime_value.transform

    def lose_row(**frames: DataFrame) -> DataFrame:
        return transform(**frames).where(
            F.expr(f"NOT (run_date = '{day(4)}' AND customer_id = 'c')")
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(customer_lifetime_value.__dict__, "transform", lose_row)
        message = stateful.failure(stateful.run(3, 6, [LTV], fails=True))
    assert sorted(day_digests(stateful)) == [day(n) for n in (1, 2, 3)]
    assert f"{LTV}[{day(4)}]  conservation: orders adds up to 3 where 4 is due" in message
    assert (
        f"{LTV}[{day(5)}]  conservation: it is built upon earlier days, and {LTV}[{day(4)}]"
        in message
    )
    stateful.run(3, 6, [LTV])
    assert read_rows(stateful) == expected_values(ORDERED, 6)
    # Nor is a later day built upon what such a day was before.
    before, more = day_digests(stateful), {"id": "5", "n": 5, "c": "a", "amount": "16.00"}
    land_orders(stateful, 6, [{**ORDERED[3], "amount": "9.00"}, more], "late")
    stateful.run(6, 6, FACTS)
    stateful.run(4, 5, [CURRENT.name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(customer_lifetime_value.__dict__, "transform", lose_row)
        message = stateful.failure(stateful.run(3, 6, [LTV], fails=True))
        assert f"it is built upon earlier days, and {LTV}[{day(4)}] failed in this run" in message
        monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 30)
        message = stateful.failure(stateful.run(3, 6, [LTV], fails=True))
        assert f"it is built upon {LTV}[{day(4)}], which did not pass" in message
    assert day_digests(stateful) == before
    stateful.run(3, 6, [LTV])
    assert read_rows(stateful) == expected_values(
        [*ORDERED[:3], {**ORDERED[3], "amount": "9.00"}, more], 6
    )


@pytest.mark.slow
def test_any_history_ends_as_one_clean_load(
    stateful: Pipeline, engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines in any order, day runs and range runs, repeats: as the model, and as one load."""
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 3)
    chance, last = random.Random(4), 7
    orders = {
        str(k): {
            "id": str(k),
            "n": chance.randint(1, last),
            "c": chance.choice("abc"),
            "amount": f"{chance.randint(1, 99)}.00",
        }
        for k in range(12)
    }
    clean = Pipeline(engine, tmp_path / "clean", tables=stateful.settings.tables)
    arrived: dict[int, list] = {n: [] for n in range(1, last + 1)}
    for row in orders.values():
        arrived[chance.randint(row["n"], last)].append(row)
    for n, those in arrived.items():
        land_orders(stateful, n, those)
        land_orders(clean, n, those)
        stateful.run(n, n, FACTS)
        first = chance.randint(1, n)
        stateful.run(1, n, [CURRENT.name])
        if chance.random() < 0.7:
            stateful.run(first if len(day_digests(stateful)) >= first - 1 else 1, n, [LTV])
    stateful.run(1, last, [LTV])
    clean.run(1, last, ALL)
    assert read_rows(stateful) == expected_values(orders.values(), last)
    assert day_digests(stateful) == day_digests(clean)


def test_a_plan_says_which_days_wait_and_verification_computes_them_again(
    stateful: Pipeline,
) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, FACTS)

    def plan_outlook(first: int, last: int) -> TableForecast:
        return make_plan(stateful, f"{day(first)}...{day(last)}", tables=(LTV,)).tables[LTV]

    waits = f"never published; waits for the day before of {LTV}"
    assert plan_outlook(1, 6).why == {
        "never published": (str(day(1)),),
        waits: (f"{day(2)}...{day(6)}",),
    }
    assert plan_outlook(3, 6).lacking == (f"{day(3)}...{day(6)}",)
    stateful.run(1, 6, [LTV])
    assert plan_outlook(1, 6).identical == (f"{day(1)}...{day(6)}",)
    results = verify_days(stateful.deployment, stateful.defs, Window(day(1), day(7)), [LTV])
    assert [result.outcome for result in results] == [VerifyOutcome.MATCHES] * 6
    land_orders(stateful, 6, [{**ORDERED[2], "n": 2}], "late")
    stateful.run(6, 6, FACTS)
    stateful.run(2, 3, [CURRENT.name])
    later = plan_outlook(1, 6)
    assert later.identical == (str(day(1)),)
    assert later.computed == (f"{day(2)}...{day(3)}",)
    assert later.depends == (f"{day(4)}...{day(6)}",)


def test_runs_of_days_that_are_built_upon_each_other_are_asked_one_after_another() -> None:
    settings = load_settings(tables="backfill_assets_tests.system.test_state:TABLES", start=day(1))
    graph = load_graph(settings)
    reason = StaleReason({})
    behind = StaleDays({LTV: {day(n): reason for n in range(1, 8)}})
    (first,) = rebuild_requests(behind, graph, 3)
    assert (first.tables[0], first.window) == (LTV, Window(day(1), day(4)))
    # Other days of it do not wait for these.
    apart = StaleDays({LTV: {day(n): reason for n in (1, 2, 20, 21)}})
    assert [len(request.window) for request in rebuild_requests(apart, graph, 2)] == [2, 2]
    (whole,) = rebuild_requests(behind, graph, 31)
    assert whole.window == Window(day(1), day(8))
    # Of tables without state, all at once.
    others = StaleDays({CURRENT.name: {day(n): reason for n in range(1, 8)}})
    orders = load_graph(load_settings(start=day(1)))
    requests = rebuild_requests(others, orders, 3)
    assert [len(request.window) for request in requests] == [3, 3, 1]


def test_a_run_that_ends_in_the_middle_continues_from_its_last_commit(
    stateful: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 2)
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, FACTS)
    commit = Writer.commit
    remaining = [2]

    def commit_or_end(*arguments: Any) -> int | None:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise PublishError("the process ended here")
        return commit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "commit", commit_or_end)
        stateful.run(1, 6, [LTV], fails=True)
    assert sorted(day_digests(stateful)) == [day(n) for n in (1, 2, 3, 4)]
    partitions = stateful.instance.get_materialized_partitions(dg.AssetKey(LTV))
    assert partitions == {str(day(n)) for n in (1, 2, 3, 4)}
    before = stateful.io_manager.ledger(customer_lifetime_value).latest[day(4)].version
    stateful.run(1, 6, [LTV])
    ledger = stateful.io_manager.ledger(customer_lifetime_value)
    assert ledger.latest[day(4)].version == before
    assert read_rows(stateful) == expected_values(ORDERED, 6)


def test_rows_of_days_that_are_published_are_not_kept_in_memory(
    stateful: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_all(stateful, ORDERED, 5)
    stateful.run(1, 5, FACTS)
    open_caches, most = 0, []

    @contextmanager
    def count_caches() -> Iterator[Cache]:
        nonlocal open_caches
        open_caches += 1
        most.append(open_caches)
        with cache_frames() as cache:
            yield cache
        open_caches -= 1

    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 2)
    monkeypatch.setattr(table_asset, "cache_frames", count_caches)
    stateful.run(1, 5, [LTV])
    # The second is a day that is computed alone, to be compared with the first range.
    assert (most, open_caches) == ([1, 2, 1, 1], 0)


def test_the_value_of_a_cohort_is_that_of_the_newest_day(engine, spark, tmp_path: Path) -> None:
    name = "backfill_assets_tests.system.test_state:TABLES"
    stateful = Pipeline(engine, tmp_path, tables=name, end=day(33))
    ordered = [*ORDERED, {"id": "5", "n": 32, "c": "a", "amount": "16.00"}]
    for n in range(1, 33):
        land_orders(stateful, n, [line for line in ordered if line["n"] == n])
    stateful.run(1, 31, ALL)
    stateful.run(1, 31, [cohort_value_30d.name])
    worth = {
        (day(1), "a", 2, Decimal("5.00"), day(31)),
        (day(1), "b", 1, Decimal("2.00"), day(31)),
        (day(4), "c", 1, Decimal("8.00"), day(31)),
    }
    cohort_table = cohort_value_30d.name
    assert {tuple(row.values()) for row in stateful.rows(cohort_table)} == worth
    latest = stateful.io_manager.ledger(cohort_value_30d).latest
    numbers = [latest[day(n)].days[day(n)].numbers["count of open values"] for n in (1, 2, 4)]
    assert numbers == [0, 0, 1]
    # What comes after thirty days is not of the cohort's value.
    stateful.run(32, 32, ALL)
    stateful.run(1, 32, [cohort_table])
    newest_rows = {tuple(row.values()) for row in stateful.rows(cohort_table)}
    assert newest_rows == {(*row[:4], day(31) if row[0] == day(1) else day(32)) for row in worth}


@pytest.mark.slow
def test_an_undo_puts_all_days_of_a_chain_back(stateful: Pipeline) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, ALL)
    before = day_digests(stateful)
    land_orders(stateful, 6, [{**ORDERED[2], "n": 2}], "late")
    stateful.run(6, 6, FACTS)
    stateful.run(2, 3, [CURRENT.name])
    stateful.run(2, 6, [LTV], tags={"dagster/backfill": "wrongone"})
    assert day_digests(stateful) != before
    run_undo(stateful, "wrongone")
    assert day_digests(stateful) == before
    # It holds until somebody decides otherwise.
    ledgers = ledger_reader.read_ledgers(stateful.deployment)
    assert not find_stale_days(ledgers, Policy.from_settings(stateful.settings), day(7)).all_days(
        LTV
    )
    stateful.run(2, 6, [LTV])
    assert read_rows(stateful) == expected_values(
        [*ORDERED[:2], {**ORDERED[2], "n": 2}, ORDERED[3]], 6
    )


def test_an_undo_takes_what_others_built_upon_its_days_with_it(stateful: Pipeline) -> None:
    land_all(stateful, ORDERED, 7)
    stateful.run(1, 6, ALL)
    before = day_digests(stateful)
    # One line tells of day 5, which the backfill builds, and one of day 2, which others build.
    late = [{**ORDERED[3], "id": "6", "n": 5}, {**ORDERED[2], "n": 2}]
    land_orders(stateful, 6, late, "late")
    stateful.run(5, 6, ALL, tags={"dagster/backfill": "wrongone"})
    stateful.run(2, 6, [CURRENT.name, LTV])
    # A day that is new since is built upon them, and stays.
    stateful.run(7, 7, ALL)
    assert read_rows(stateful) == expected_values([*ORDERED[:2], ORDERED[3], *late], 7)
    run_undo(stateful, "wrongone")
    assert {d: digest for d, digest in day_digests(stateful).items() if d != day(7)} == before
    ledgers = ledger_reader.read_ledgers(stateful.deployment)
    assert find_stale_days(ledgers, Policy.from_settings(stateful.settings), day(8)).all_days(
        LTV
    ) == {day(7)}
    stateful.run(7, 7, [LTV])
    assert read_rows(stateful) == expected_values(ORDERED, 7)


def test_an_undo_is_refused_where_others_changed_the_day_before(stateful: Pipeline) -> None:
    land_all(stateful, ORDERED, 6)
    stateful.run(1, 6, ALL)
    late = {**ORDERED[3], "id": "6", "n": 5}
    land_orders(stateful, 6, [late], "late")
    stateful.run(5, 6, ALL, tags={"dagster/backfill": "wrongone"})
    land_orders(stateful, 6, [{**ORDERED[2], "n": 2}], "later")
    other = stateful.run(6, 6, FACTS)
    stateful.run(2, 6, [CURRENT.name, LTV])
    message = stateful.failure(run_undo(stateful, "wrongone", fails=True))
    assert f"{LTV} [{day(5)}] was made of what is to be undone, and of version" in message
    # What others did is undone by itself, and the part of the backfill stays.
    run_undo(stateful, other.run_id[:8])
    assert read_rows(stateful) == expected_values([*ORDERED, late], 6)


@pytest.mark.parametrize("at_once", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_its_days_are_final_when_those_it_is_made_of_are(
    engine, spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", at_once)
    name = "backfill_assets_tests.system.test_state:TABLES"
    pipeline = Pipeline(engine, tmp_path, tables=name, window_days=1)
    land_all(pipeline, ORDERED, 5)
    layers = [*FACTS[:2], STAGED.name, FACT.name, frozen_value.name]
    pipeline.run(1, 3, layers)
    pipeline.run(4, 5, layers)
    final_by_table = final_days(
        ledger_reader.read_ledgers(pipeline.deployment), Policy.from_settings(pipeline.settings)
    )
    assert final_by_table[FACT.name] == {day(n) for n in (1, 2, 3, 4)}
    # What was still open in the first run waits for the next look.
    pipeline.run(1, 5, layers)
    final_by_table = final_days(
        ledger_reader.read_ledgers(pipeline.deployment), Policy.from_settings(pipeline.settings)
    )
    assert final_by_table[frozen_value.name] == final_by_table[FACT.name]
