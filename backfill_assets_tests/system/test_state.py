"""A table that carries state from day to day: computed in order, by day or by range."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

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
from backfill_assets.orders.tables import CURRENT, FACT, ORDERS, RAW, STAGED
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.settings import load_settings
from backfill_assets.spark.frames import Cache, cache_frames
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.stale import StaleDays, StaleReason, find_stale_days
from backfill_assets.tables.graph import load_graph
from backfill_assets_guide.examples.customers.cohorts import cohort_value_30d
from backfill_assets_guide.examples.customers.lifetime_value import (
    LifetimeValue,
    customer_lifetime_value,
)
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.memory_model import lifetime_values
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_undo,
)
from backfill_assets_tests.own_tables import my_state


@table(
    LifetimeValue,
    partition="run_date",
    key=["customer_id"],
    totals=customer_lifetime_value.totals,
    counts={"new customers": "first_order = run_date"},
)
def frozen_value(
    orders: Annotated[DataFrame, Reads(FACT)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    return customer_lifetime_value(orders, before)


TABLES = [*ORDERS, customer_lifetime_value, cohort_value_30d, frozen_value]
LTV = customer_lifetime_value.name
PLACE = "backfill_assets_tests.system.test_state:TABLES"
FACTS = (RAW.name, CURRENT.name)
ALL = (*FACTS, LTV)


@dataclass(frozen=True)
class Loaded:
    """Folders of days 1 to 7, to be copied; the last day has no order, and no lifetime values.

    Attributes:
        facts: with all that the lifetime values are made of.
        values: with the lifetime values of days 1 to 6.
    """

    engine: Engine
    facts: Path
    values: Path

    def copy(self, source: Path, root: Path) -> Pipeline:
        copy_loaded(source, root)
        return make_pipeline(self.engine, root)


def make_pipeline(engine: Engine, root: Path, **more: Any) -> Pipeline:
    """That a range has what its days have alone is compared in tests, not by each run."""
    options = {"tables": PLACE, "check_independence": False, **more}
    return Pipeline(engine, root, **options)


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Loaded:
    folders = Loaded(engine, tmp_path_factory.mktemp("facts"), tmp_path_factory.mktemp("values"))
    facts = make_pipeline(engine, folders.facts)
    land_all(facts, ORDERED, 7)
    facts.run(1, 7, FACTS)
    folders.copy(folders.facts, folders.values).run(1, 6, [LTV])
    return folders


@pytest.fixture
def stateful(loaded: Loaded, tmp_path: Path) -> Pipeline:
    """The lifetime values of days 1 to 6, and the facts of day 7."""
    return loaded.copy(loaded.values, tmp_path / "stateful")


@pytest.fixture(scope="module")
def late_root(loaded: Loaded, tmp_path_factory) -> Path:
    """As `stateful`; an order has moved from day 3 to day 2, and to another customer.

    The facts know it, and the lifetime values do not.
    """
    pipeline = loaded.copy(loaded.values, tmp_path_factory.mktemp("late"))
    land_orders(pipeline, 6, [MOVED], "late")
    pipeline.run(2, 6, FACTS)
    return pipeline.root


@pytest.fixture
def late(loaded: Loaded, late_root: Path, tmp_path: Path) -> Pipeline:
    return loaded.copy(late_root, tmp_path / "late")


@pytest.fixture(scope="module")
def wrong_root(loaded: Loaded, tmp_path_factory) -> Path:
    """As `stateful`; a backfill loaded an order of day 5 and one of day 2, and built days 5 and 6.

    What it loaded changes day 2 as well, which it did not build.
    """
    pipeline = loaded.copy(loaded.values, tmp_path_factory.mktemp("wrong"))
    land_orders(pipeline, 6, WRONG, "late")
    pipeline.run(5, 6, ALL, tags={"dagster/backfill": "wrongone"})
    return pipeline.root


@pytest.fixture
def wrong(loaded: Loaded, wrong_root: Path, tmp_path: Path) -> Pipeline:
    return loaded.copy(wrong_root, tmp_path / "wrong")


def expected_values(orders: Iterable[Mapping[str, Any]], last: int) -> set[tuple]:
    """The rows of all days, by a plain loop."""
    by_day: dict[tuple[date, str], tuple[int, Decimal]] = {}
    for row in orders:
        count, sum_ = by_day.get((day(row["n"]), row["c"]), (0, Decimal(0)))
        by_day[day(row["n"]), row["c"]] = count + 1, sum_ + Decimal(row["amount"])
    return lifetime_values(by_day, [day(n) for n in range(1, last + 1)])


def replace_order(moved: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The orders, one of them in its newest version."""
    return [moved if row["id"] == moved["id"] else row for row in ORDERED]


def stale_days(pipeline: Pipeline, today: int) -> set[date]:
    """The days of the lifetime values that are behind."""
    ledgers = ledger_reader.read_ledgers(pipeline.deployment)
    stale = find_stale_days(
        snapshot_ledgers(ledgers, Policy.from_settings(pipeline.settings), day(today))
    )
    return {*stale.all_days(LTV)}


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


def test_the_table_of_the_page(engine: Engine, tmp_path: Path) -> None:
    """Its sums over a run and the next one; a customer is null."""
    pipeline = Pipeline(engine, tmp_path, tables="my_state:TABLES")
    by_day = {1: {"a": "1.00", None: "2.00"}, 2: {"a": "4.00"}, 3: {}, 4: {None: "8.00"}}
    for n, amounts in by_day.items():
        pipeline.land(n, [order(f"{n} {c}", n, amount, c) for c, amount in amounts.items()])
    name = my_state.spend_so_far.name
    pipeline.run(1, 2, [RAW.name, STAGED.name, name])
    pipeline.run(3, 4, [RAW.name, STAGED.name, name])
    spend = {
        (row["run_date"], row["customer_id"]): (row["orders"], row["spend"])
        for row in pipeline.rows(name)
    }
    assert spend == {
        (day(n), customer): (orders, Decimal(sum_))
        for n, sums in {
            1: {"a": (1, "1.00"), "unknown": (1, "2.00")},
            2: {"a": (2, "5.00"), "unknown": (1, "2.00")},
            3: {"a": (2, "5.00"), "unknown": (1, "2.00")},
            4: {"a": (2, "5.00"), "unknown": (2, "10.00")},
        }.items()
        for customer, (orders, sum_) in sums.items()
    }


ORDERED = [
    {"id": "1", "n": 1, "c": "a", "amount": "1.00"},
    {"id": "2", "n": 1, "c": "b", "amount": "2.00"},
    {"id": "3", "n": 3, "c": "a", "amount": "4.00"},
    {"id": "4", "n": 4, "c": "c", "amount": "8.00"},
    {"id": "5", "n": 4, "c": "a", "amount": "16.00"},
]
MOVED = {**ORDERED[2], "n": 2, "c": "b"}
WRONG = [{**ORDERED[3], "id": "6", "n": 5}, {**ORDERED[2], "n": 2}]


def land_all(pipeline: Pipeline, orders: Iterable[Mapping[str, Any]], last: int) -> None:
    for n in range(1, last + 1):
        land_orders(pipeline, n, [row for row in orders if row["n"] == n])


def test_a_repeat_changes_nothing_and_days_that_are_asked_for_are_written_as_they_were(
    stateful: Pipeline,
) -> None:
    assert read_rows(stateful) == expected_values(ORDERED, 6)
    at_once, before = day_digests(stateful), latest_version(stateful)
    stateful.run(1, 6, [LTV])
    assert latest_version(stateful) == before
    stateful.run(1, 6, [LTV], tags={REWRITE_TAG: "true"})
    latest = stateful.io_manager.ledger(customer_lifetime_value).latest
    assert {d for d in latest if latest[d].version > before} == {day(n) for n in range(1, 7)}
    assert day_digests(stateful) == at_once


# --- a life in parts ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LifeInParts:
    """Days 1 and 2 one by one, days 4 to 6 in vain, and days 3 to 6 in runs of two days a commit.

    Attributes:
        pipeline: as it ended.
        refusal: of the days after the hole.
        before_end: the days that were published before the hole was filled.
        after_end: those that were published by the run that ended in the middle.
        materialized: the same, as Dagster knows them.
        version: the commit of day 4, then.
        open_caches: of that run, how many caches were open whenever one was opened.
    """

    pipeline: Pipeline
    refusal: str
    before_end: list[date]
    after_end: list[date]
    materialized: set[str]
    version: int
    open_caches: list[int]


@pytest.fixture(scope="module")
def life_in_parts(loaded: Loaded, tmp_path_factory) -> LifeInParts:
    root = tmp_path_factory.mktemp("parts")
    copy_loaded(loaded.facts, root)
    pipeline = make_pipeline(loaded.engine, root, check_independence=True)
    for n in (1, 2):
        pipeline.run(n, n, [LTV])
    refusal = pipeline.failure(pipeline.run(4, 6, [LTV], fails=True))
    before_end = sorted(day_digests(pipeline))

    open_caches, most = 0, []

    @contextmanager
    def count_caches() -> Iterator[Cache]:
        nonlocal open_caches
        open_caches += 1
        most.append(open_caches)
        with cache_frames() as cache:
            yield cache
        open_caches -= 1

    commit, remaining = Writer.commit, 1

    def commit_or_end(*arguments: Any) -> int | None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise PublishError("the process ended here")
        return commit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_asset, "DAYS_PER_COMMIT", 2)
        with patch.context() as ending:
            ending.setattr(table_asset, "cache_frames", count_caches)
            ending.setattr(Writer, "commit", commit_or_end)
            pipeline.run(3, 6, [LTV], fails=True)
        ledger = pipeline.io_manager.ledger(customer_lifetime_value)
        life = LifeInParts(
            pipeline,
            refusal,
            before_end,
            sorted(ledger.published_days),
            pipeline.materialized(LTV),
            ledger.latest[day(4)].version,
            most,
        )
        pipeline.run(1, 6, [LTV])
    return life


def test_a_range_has_what_days_have_and_what_parts_of_it_have(
    life_in_parts: LifeInParts, stateful: Pipeline
) -> None:
    assert read_rows(life_in_parts.pipeline) == expected_values(ORDERED, 6)
    assert day_digests(life_in_parts.pipeline) == day_digests(stateful)


def test_after_a_hole_nothing_is_built(life_in_parts: LifeInParts) -> None:
    assert f"{LTV}[{day(3)}] has never been published" in life_in_parts.refusal
    assert life_in_parts.before_end == [day(1), day(2)]


def test_a_run_that_ends_in_the_middle_continues_from_its_last_commit(
    life_in_parts: LifeInParts,
) -> None:
    published = [day(n) for n in (1, 2, 3, 4)]
    assert life_in_parts.after_end == published
    assert life_in_parts.materialized == {*map(str, published)}
    pipeline = life_in_parts.pipeline
    ledger = pipeline.io_manager.ledger(customer_lifetime_value)
    assert ledger.latest[day(4)].version == life_in_parts.version
    assert read_rows(pipeline) == expected_values(ORDERED, 6)


def test_rows_of_days_that_are_published_are_not_kept_in_memory(
    life_in_parts: LifeInParts,
) -> None:
    # The first day of each part is computed alone as well, to be compared with the part.
    assert life_in_parts.open_caches == [1, 2, 1, 2]


# --- what came late -------------------------------------------------------------------------------


def test_a_late_line_rebuilds_the_days_that_change_and_no_more(late: Pipeline) -> None:
    ledger = late.io_manager.ledger(customer_lifetime_value)
    # It moved from day 3 to day 2: both change, and all that were built upon them.
    assert stale_days(late, 7) == {day(n) for n in range(2, 7)}
    late.run(2, 6, [LTV])
    later = late.io_manager.ledger(customer_lifetime_value)
    assert read_rows(late) == expected_values(replace_order(MOVED), 6)
    changed = {d for d in later.latest if ledger.latest[d].version != later.latest[d].version}
    assert changed == {day(n) for n in range(2, 7)}
    assert not stale_days(late, 7)


def test_it_ends_where_a_day_comes_out_as_it_was(stateful: Pipeline) -> None:
    before = latest_version(stateful)
    # It moves from day 3 to day 2; from day 4 on, nothing tells of that.
    moved = {**ORDERED[2], "n": 2}
    land_orders(stateful, 6, [moved], "late")
    stateful.run(2, 6, FACTS)
    stateful.run(2, 6, [LTV])
    ledger = stateful.io_manager.ledger(customer_lifetime_value)
    new_records = [record for record in ledger.records if record.version > before]
    assert {d for record in new_records for d in record.rewritten_days} == {day(2), day(3)}
    assert {d for record in new_records for d in record.days} == {day(n) for n in (2, 3, 4)}
    assert read_rows(stateful) == expected_values(replace_order(moved), 6)


def test_a_day_that_does_not_pass_holds_back_those_after_it(
    late: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 2)
    transform = customer_lifetime_value.transform

    def lose_row(**frames: DataFrame) -> DataFrame:
        return transform(**frames).where(
            F.expr(f"NOT (run_date = '{day(4)}' AND customer_id = 'c')")
        )

    before = day_digests(late)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(customer_lifetime_value.__dict__, "transform", lose_row)
        # All of these days are asked for, also those that follow from the ones before them only.
        result = late.run(2, 6, [LTV], tags={REWRITE_TAG: "true"}, fails=True)
    message = late.failure(result)
    assert f"{LTV}[{day(4)}]  conservation: orders adds up to 4 where 5 is due" in message
    # Of the same commit, and of the one after it.
    assert f"it is built upon {LTV}[{day(4)}], which did not pass" in message
    assert f"it is built upon earlier days, and {LTV}[{day(5)}] failed in this run" in message
    # Nor is a later day built upon what such a day was before.
    after = day_digests(late)
    assert {d for d in before if after[d] != before[d]} == {day(2), day(3)}
    late.run(2, 6, [LTV])
    assert read_rows(late) == expected_values(replace_order(MOVED), 6)


@pytest.mark.slow
def test_any_history_ends_as_one_clean_load(
    engine, spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines in any order, day runs and range runs, repeats: as the model, and as one load."""
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", 3)
    stateful, clean = (make_pipeline(engine, tmp_path / name) for name in ("lived", "clean"))
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
    arrived: dict[int, list] = {n: [] for n in range(1, last + 1)}
    for row in orders.values():
        arrived[chance.randint(row["n"], last)].append(row)
    for n, those in arrived.items():
        land_orders(stateful, n, those)
        land_orders(clean, n, those)
        stateful.run(1, n, FACTS)
        first = chance.randint(1, n)
        if chance.random() < 0.7:
            stateful.run(first if len(day_digests(stateful)) >= first - 1 else 1, n, [LTV])
    stateful.run(1, last, [LTV])
    clean.run(1, last, ALL)
    assert read_rows(stateful) == expected_values(orders.values(), last)
    assert day_digests(stateful) == day_digests(clean)


def test_a_plan_says_which_days_wait_and_verification_computes_them_again(
    loaded: Loaded, stateful: Pipeline, late: Pipeline, tmp_path: Path
) -> None:
    def plan_outlook(pipeline: Pipeline, first: int, last: int) -> TableForecast:
        return make_plan(pipeline, f"{day(first)}...{day(last)}", tables=(LTV,)).tables[LTV]

    unbuilt = loaded.copy(loaded.facts, tmp_path / "unbuilt")
    waits = f"never published; waits for the day before of {LTV}"
    assert plan_outlook(unbuilt, 1, 6).why == {
        "never published": (str(day(1)),),
        waits: (f"{day(2)}...{day(6)}",),
    }
    assert plan_outlook(unbuilt, 3, 6).lacking == (f"{day(3)}...{day(6)}",)
    assert plan_outlook(stateful, 1, 6).identical == (f"{day(1)}...{day(6)}",)
    results = verify_days(stateful.deployment, stateful.defs, Window(day(1), day(7)), [LTV])
    assert [result.outcome for result in results] == [VerifyOutcome.MATCHES] * 6
    later = plan_outlook(late, 1, 6)
    assert later.identical == (str(day(1)),)
    assert later.computed == (f"{day(2)}...{day(3)}",)
    assert later.depends == (f"{day(4)}...{day(6)}",)


def test_runs_of_days_that_are_built_upon_each_other_are_asked_one_after_another() -> None:
    settings = load_settings(tables=PLACE, start=day(1))
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


def test_the_value_of_a_cohort_is_that_of_the_newest_day(stateful: Pipeline) -> None:
    """Of the days that there are; `test_reach` has the thirty days that it reads."""
    stateful.run(1, 4, [cohort_value_30d.name])
    assert {tuple(row.values()) for row in stateful.rows(cohort_value_30d.name)} == {
        (day(1), "a", 3, Decimal("21.00"), day(6)),
        (day(1), "b", 1, Decimal("2.00"), day(6)),
        (day(4), "c", 1, Decimal("8.00"), day(6)),
    }
    latest = stateful.io_manager.ledger(cohort_value_30d).latest
    numbers = [latest[day(n)].days[day(n)].numbers["count of open values"] for n in (1, 2, 4)]
    assert numbers == [2, 0, 1]


@pytest.mark.slow
def test_the_value_of_a_cohort_is_that_of_thirty_days(engine, spark, tmp_path: Path) -> None:
    pipeline = make_pipeline(engine, tmp_path, end=day(33))
    late_order = {"id": "6", "n": 32, "c": "a", "amount": "16.00"}
    land_all(pipeline, [*ORDERED, late_order], 32)
    pipeline.run(1, 32, (*ALL, cohort_value_30d.name))
    # What comes after thirty days is not of the cohort's value.
    assert {tuple(row.values()) for row in pipeline.rows(cohort_value_30d.name)} == {
        (day(1), "a", 3, Decimal("21.00"), day(31)),
        (day(1), "b", 1, Decimal("2.00"), day(31)),
        (day(4), "c", 1, Decimal("8.00"), day(32)),
    }
    latest = pipeline.io_manager.ledger(cohort_value_30d).latest
    numbers = [latest[day(n)].days[day(n)].numbers["count of open values"] for n in (1, 2, 4)]
    assert numbers == [0, 0, 1]


# --- what is undone -------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_undo_puts_all_days_of_a_chain_back(stateful: Pipeline, late: Pipeline) -> None:
    before = day_digests(stateful)
    late.run(2, 6, [LTV], tags={"dagster/backfill": "wrongone"})
    assert day_digests(late) != before
    run_undo(late, "wrongone")
    assert day_digests(late) == before
    # It holds until somebody decides otherwise.
    assert not stale_days(late, 7)
    late.run(2, 6, [LTV])
    assert read_rows(late) == expected_values(replace_order(MOVED), 6)


def test_an_undo_takes_what_others_built_upon_its_days_with_it(
    stateful: Pipeline, wrong: Pipeline
) -> None:
    # Others build the day that it did not build, with those upon it; and day 7, which is new.
    wrong.run(2, 7, [CURRENT.name, LTV])
    orders = [*(row for row in ORDERED if row["id"] != WRONG[1]["id"]), *WRONG]
    assert read_rows(wrong) == expected_values(orders, 7)
    run_undo(wrong, "wrongone")
    before = day_digests(stateful)
    assert {d: digest for d, digest in day_digests(wrong).items() if d != day(7)} == before
    # The new day is built upon them, and stays.
    assert stale_days(wrong, 8) == {day(7)}


@pytest.mark.slow
def test_an_undo_is_refused_where_others_changed_the_day_before(wrong: Pipeline) -> None:
    before = read_rows(wrong)
    land_orders(wrong, 6, [{"id": "7", "n": 3, "c": "b", "amount": "32.00"}], "later")
    other = wrong.run(2, 6, ALL)
    message = wrong.failure(run_undo(wrong, "wrongone", fails=True))
    assert f"{LTV} [{day(5)}] was made" in message and f"run {other.run_id[:8]}" in message
    # What others did is undone by itself, and the part of the backfill stays.
    run_undo(wrong, other.run_id[:8])
    assert read_rows(wrong) == before


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2, 30])
def test_its_days_are_final_when_those_it_is_made_of_are(
    engine, spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(table_asset, "DAYS_PER_COMMIT", at_once)
    pipeline = make_pipeline(engine, tmp_path, window_days=1)
    land_all(pipeline, ORDERED, 5)
    layers = [RAW.name, STAGED.name, FACT.name, frozen_value.name]
    pipeline.run(1, 3, layers)
    # What was still open in the first run is looked at again.
    pipeline.run(1, 5, layers)
    known = ledger_reader.read_ledgers(pipeline.deployment)
    final_by_table = snapshot_ledgers(known, Policy.from_settings(pipeline.settings)).final_by_table
    assert final_by_table[FACT.name] == {day(n) for n in (1, 2, 3, 4)}
    assert final_by_table[frozen_value.name] == final_by_table[FACT.name]
