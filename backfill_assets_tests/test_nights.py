"""Nights of sources with different lags, arrival days and starts, against a model of dates."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from inspect import Parameter, Signature
from typing import Annotated

import msgspec
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pyspark.sql import DataFrame

from backfill_assets import MONTH, PREVIOUS_DAY, WEEK, Reads, Source, table
from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.backfills.forecast import forecast_days
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, DaySet, Grain, Window, to_ranges
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord
from backfill_assets.landing.listing import DayFolder
from backfill_assets.landing.load_manifest import needs_reload
from backfill_assets.monitoring.next_runs import (
    Request,
    load_requests,
    make_block_rule,
    make_inclusion_rule,
    rebuild_requests,
)
from backfill_assets.monitoring.states import DayState, MonitoringSnapshot
from backfill_assets.staleness.assess import assess
from backfill_assets.staleness.finality import settled_days
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.staleness.unloaded import (
    UnloadedDays,
    find_unloaded_days,
    load_targets,
    loaded_manifests,
)
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_listings import InventedListing
from backfill_assets_tests.helpers.invented_logs import record
from backfill_assets_tests.helpers.pipeline import day

#: The nights that are played: more than a month, so that one is final.
NIGHTS, WINDOW_DAYS, ABSENT_DAYS = 60, 4, 12


class Line(pa.DataFrameModel):
    id: T.StringType
    at: T.TimestampType


class Count(pa.DataFrameModel):
    run_date: T.DateType
    lines: T.LongType


@dataclass(frozen=True, eq=False)
class Delivery:
    """How the folders of a source come: what the declaration says, and what really happens.

    Attributes:
        weekdays: on which folders are expected.
        arrives_after: the usual days from an event to its folder.
        start: the first day.
        came: by arrival day, the business day on which its folder is there first.
    """

    weekdays: frozenset[int]
    arrives_after: int
    start: date
    came: dict[date, date]

    def expects(self, arrival: date) -> bool:
        return arrival.weekday() in self.weekdays

    def arrival_of(self, event_day: date) -> date:
        arrival = event_day + self.arrives_after * DAY
        while self.arrives_after and not self.expects(arrival):
            arrival += DAY
        return arrival

    def has_come(self, arrival: date, today: date) -> bool:
        return self.came.get(arrival, date.max) <= today

    @cache  # noqa: B019 - few deliveries, which the test keeps
    def newest(self, today: date) -> date:
        """The newest arrival day that is over and has a folder."""
        landed = (d for d in self.came if d < today and self.has_come(d, today))
        return max(landed, default=date.min)


class World:
    """Three sources, tables over them, and what the nights have published."""

    def __init__(self, deliveries: Iterable[Delivery], lag_days: int = 1) -> None:
        self.lag_days = lag_days
        self.deliveries = dict(zip("abc", deliveries, strict=True))
        tables = [*self._declare()]
        policy = Policy(
            start=day(1),
            end=None,
            window_days=WINDOW_DAYS,
            lag_days=self.lag_days,
            corrects=True,
            only_touched=True,
            absent_days=ABSENT_DAYS,
        )
        self.graph = Graph.from_tables(tables, policy)
        self.records: dict[str, list[CommitRecord]] = {t.name: [] for t in tables}
        self._ledgers = {t.name: Ledger(t) for t in tables}
        self.config_digests = dict.fromkeys(self.graph.tables, "config")

    def _declare(self) -> Iterator:
        a, b, c = (
            Source(
                name,
                Line,
                key=["id"],
                event_time="at",
                arrives_after=delivery.arrives_after,
                arrives_on=lambda arrival, delivery=delivery: delivery.expects(arrival),
                start=delivery.start,
            )
            for name, delivery in self.deliveries.items()
        )
        pair = _count("pair", a=Reads(a.staged), b=Reads(b.staged))
        triple = _count("triple", pair=Reads(pair), c=Reads(c.staged))
        after = _count("after", c=Reads(c.staged), b=Reads(b.staged, PREVIOUS_DAY))
        weekly = _count("weekly", pair=Reads(pair, WEEK))
        monthly = _count("monthly", triple=Reads(triple, MONTH))
        for source in (a, b, c):
            yield from source.tables
        yield from (pair, triple, after, weekly, monthly)

    # --- what the nights do ---

    @property
    def ledgers(self) -> dict[str, Ledger]:
        for name, records in self.records.items():
            if len(self._ledgers[name].records) < len(records):
                table = self.graph.tables[name]
                self._ledgers[name] = Ledger(table, len(records) - 1, [*records])
        return {**self._ledgers}

    def list_landing(self, source: Source, today: date) -> InventedListing:
        folders = {
            arrival: DayFolder({})
            for arrival in self.deliveries[source.name].came
            if self.deliveries[source.name].has_come(arrival, today)
        }
        return InventedListing("/landing", folders, source_name=source.name)

    def find_unloaded(self, today: date) -> dict[str, UnloadedDays]:
        ledgers = self.ledgers
        return {
            log: find_unloaded_days(
                ledgers[log],
                self.list_landing(source, today),
                self.graph.policy_of(log),
                today,
                ledgers[source.rejected.name],
            )
            for log, source in self.graph.sources.items()
        }

    def plan_night(self, today: date) -> list[Request]:
        snapshot = self.snapshot(today)
        find_blocked = make_block_rule(snapshot)
        if requests := load_requests(
            self.find_unloaded(today), self.graph, 31, find_blocked=find_blocked
        ):
            return requests
        stale = find_stale_days(snapshot)
        return rebuild_requests(
            stale,
            self.graph,
            31,
            may_include=make_inclusion_rule(snapshot, stale),
            is_due=lambda name, d: d in self.graph.expected_days(name, today),
            find_blocked=find_blocked,
        )

    def snapshot(self, today: date) -> Snapshot:
        return Snapshot(self.graph, self.ledgers, today, config_digests=self.config_digests)

    def play_night(self, today: date) -> None:
        for _ in range(20):
            requests = self.plan_night(today)
            if not requests:
                return
            for request in requests:
                grain = self.graph.tables[request.tables[0]].grain
                days = grain.partitions_of(request.window)
                for name in request.tables:
                    self.build(name, DaySet.from_days(days), today)
        raise AssertionError(f"the night of {today} does not end: {requests}")

    def build(self, name: str, window: Window, today: date) -> None:
        landed = name in self.graph.landed_tables
        source = self.graph.tables[name].source if landed else None
        snapshot = self.snapshot(today)
        details = {}
        if source:
            log = self.ledgers[source.raw.name]
            listing, policy = self.list_landing(source, today), self.graph.policy_of(log.table.name)
            targets = load_targets(loaded_manifests(log), listing, window, policy)
            digests = {d: target.manifest.content_digest() for d, target in targets.items()}
            snapshot = Snapshot(
                self.graph,
                self.ledgers,
                today,
                config_digests=snapshot.config_digests,
                digests={name: digests},
            )
            if name == source.raw.name:
                details = self._load_details(source, log, listing, targets)
        assessments = assess(snapshot, name, window, respects_holds=True)
        for d, assessment in assessments.items():
            assert not assessment.obstacle, f"{name}[{d}]: {assessment.obstacle}"
            assert not assessment.not_due, f"{name}[{d}] is not due on {today}"
        changing = {d: a for d, a in assessments.items() if a.can_change}
        if not changing:
            return
        records, ledgers = self.records[name], self.ledgers
        inputs = {
            dependency.source.name: ledgers[dependency.source.name].version or 0
            for dependency in self.graph.inputs[name]
        }
        config_digest = self.config_digests[name]
        commit = record(
            len(records), changing, inputs=inputs, config_digest=config_digest, **details
        )
        published = {
            d: msgspec.structs.replace(
                commit.days[d], input_digest=a.digest, digest=f"rows of {a.digest}"
            )
            for d, a in changing.items()
        }
        records.append(msgspec.structs.replace(commit, days=published))

    def _load_details(self, source: Source, log: Ledger, listing, targets) -> dict:
        """What a load records: the event days that it changes, and the settled log days."""
        policy, delivery = self.graph.policy_of(log.table.name), self.deliveries[source.name]
        known = {**loaded_manifests(log), **{d: t.manifest for d, t in targets.items()}}
        event_days = {
            event_day
            for arrival in targets
            for event_day in policy.affected_event_days(arrival)
            if delivery.arrival_of(event_day) == arrival and event_day >= policy.start
        }
        new = targets.keys() - log.published_days
        settled_before = settled_days(log)
        settled = {
            d
            for d, target in load_targets(known, listing, known, policy).items()
            if target.manifest.is_complete(d, policy.start) and not needs_reload(known[d], target)
        }
        return {
            "landing": {str(d): target.manifest.as_json for d, target in targets.items()},
            "event_days": to_ranges(event_days & (log.published_days | new) | new),
            "log_days": to_ranges(targets),
            "settled": to_ranges(settled - settled_before),
            "unsettled": to_ranges(settled_before - settled),
        }

    # --- the model ---

    def due_on(self, name: str, d: date) -> date:
        """The night on which a day is first published."""
        return self._last_arrival(name, d) + self.lag_days * DAY

    def _last_arrival(self, name: str, d: date) -> date:
        if name.startswith("stg_"):
            return self.deliveries[name[-1]].arrival_of(d)
        parts = {
            "pair": [("stg_a", d), ("stg_b", d)],
            "triple": [("pair", d), ("stg_c", d)],
            "after": [("stg_c", d), ("stg_b", d - DAY)],
            "weekly": [("pair", each) for each in Grain.WEEKLY.days_of(d)],
            "monthly": [("triple", each) for each in Grain.MONTHLY.days_of(d)],
        }[name]
        return max(
            self._last_arrival(part, each) for part, each in parts if each >= self.start_of(part)
        )

    def start_of(self, name: str) -> date:
        sources = {"pair": "ab", "weekly": "ab", "after": "bc"}
        letters = name[-1] if name.startswith("stg_") else sources.get(name, "abc")
        return max(self.deliveries[letter].start for letter in letters)

    def due_days(self, name: str, today: date) -> set[date]:
        grain = self.graph.tables[name].grain
        every = Window(self.start_of(name), today)
        return {
            d
            for d in grain.partitions_of(every)
            if d >= self.start_of(name) and self.due_on(name, d) <= today
            if grain.days_of(d).end <= today
        }

    def is_waited_for(self, letter: str, arrival: date, today: date) -> bool:
        """Whether a folder is expected and has not come, with none of long after."""
        delivery = self.deliveries[letter]
        return (
            delivery.expects(arrival)
            and not delivery.has_come(arrival, today)
            and (delivery.newest(today) - arrival).days < ABSENT_DAYS
        )

    def is_final(self, name: str, d: date, today: date) -> bool:
        if d < self.start_of(name):
            return True
        if name.startswith("stg_"):
            delivery = self.deliveries[name[-1]]
            last = d + (WINDOW_DAYS + delivery.arrives_after) * DAY
            return all(
                self._is_loaded(name[-1], arrival, today)
                and not self.is_waited_for(name[-1], arrival, today)
                and (
                    arrival == delivery.start
                    or not self.is_waited_for(name[-1], arrival - DAY, today)
                )
                for arrival in Window(d, last + DAY)
            )
        days = [*self.graph.tables[name].grain.days_of(d)]
        parts = {"pair": ["stg_a", "stg_b"], "triple": ["pair", "stg_c"]}
        parts |= {"after": ["stg_c"], "weekly": ["pair"], "monthly": ["triple"]}
        before = name != "after" or self.is_final("stg_b", d - DAY, today)
        return before and all(
            self.is_final(part, each, today) for part in parts[name] for each in days
        )

    def _is_loaded(self, letter: str, arrival: date, today: date) -> bool:
        came = self.deliveries[letter].has_come(arrival, today)
        return arrival < today and (came or arrival + self.lag_days * DAY <= today)


def _count(name: str, **reads: Reads) -> Table:
    """A table of a function that would count rows of its inputs."""

    def function(*frames: DataFrame) -> DataFrame: ...

    parameters = [
        Parameter(p, Parameter.POSITIONAL_OR_KEYWORD, annotation=Annotated[DataFrame, r])
        for p, r in reads.items()
    ]
    function.__name__ = function.__qualname__ = name
    function.__signature__ = Signature(parameters, return_annotation=DataFrame)
    function.__annotations__ = {p.name: p.annotation for p in parameters}
    return table(Count, partition="run_date", key=[])(function)


def _deliver(chance: random.Random, *, punctual: bool) -> Delivery:
    weekdays = chance.choice([range(7), range(6), range(5), [0, 2, 4], [3]])
    start = day(chance.choice([1, 1, 1, 4, 10]))
    delivery = Delivery(frozenset(weekdays), chance.choice([0, 0, 1, 2, 3]), start, {})
    for arrival in Window(start, start + 2 * NIGHTS * DAY):
        if (
            delivery.expects(arrival)
            if punctual or chance.random() < 0.95
            else chance.random() < 0.3
        ):
            late = 0 if punctual else chance.choice([0] * 9 + [1, 2, 5])
            delivery.came[arrival] = arrival + (1 + late) * DAY
    return delivery


#: Of each kind, so many worlds are for each change; the others are slow.
FEW = 1


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[] if n < FEW else [pytest.mark.slow]) for n in range(40)]
)
@pytest.mark.parametrize("punctual", [True, False])
def test_each_night_builds_what_is_due(seed, punctual):
    """Where each folder comes as it is expected, no state is bad on any night."""
    chance = random.Random(seed)
    lag_days = chance.choice([1, 1, 2])
    world = World((_deliver(chance, punctual=punctual) for _ in "abc"), lag_days)
    for today in Window(day(2), day(2 + NIGHTS)):
        world.play_night(today)
        check_missing_days(world, today)
        if today.weekday() == 0 or today == day(1 + NIGHTS):
            check_tables(world, today)


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[] if n < FEW else [pytest.mark.slow]) for n in range(40)]
)
def test_no_run_of_a_night_is_refused_after_settings_have_changed(seed):
    """`World.build` fails for a day that a run would refuse; what follows waits for a person."""
    chance = random.Random(seed)
    world = World(_deliver(chance, punctual=False) for _ in "abc")
    blocked = 0
    for today in Window(day(2), day(2 + NIGHTS)):
        if chance.random() < 0.1:
            changed = chance.sample([*world.graph.tables], 3)
            world.config_digests |= dict.fromkeys(changed, f"settings of {today}")
        world.play_night(today)
        blocked += len(find_stale_days(world.snapshot(today)).blocked)
        assert not any(find_stale_days(world.snapshot(today)).open.values())
    assert blocked or seed >= FEW, "nothing was blocked, so nothing is shown"


def check_missing_days(world: World, today: date) -> None:
    unloaded = world.find_unloaded(today)
    for log, source in world.graph.sources.items():
        delivery = world.deliveries[source.name]
        due = Window(delivery.start, max(delivery.start, today - world.lag_days * DAY + DAY))
        expected = {d for d in due if world.is_waited_for(source.name, d, today)}
        assert unloaded[log].missing_days == expected, f"{log} on {today}"


def check_tables(world: World, today: date) -> None:
    ledgers, unloaded = world.ledgers, world.find_unloaded(today)
    snapshot = MonitoringSnapshot(
        world.graph,
        ledgers,
        today,
        config_digests=dict.fromkeys(ledgers, "config"),
        unloaded=unloaded,
        failed_checks={},
    )
    final = snapshot.final_by_table
    for name in world.graph.by_event_day:
        due = world.due_days(name, today)
        assert ledgers[name].published_days == due, f"{name} on {today}"
        model = {d for d in due if world.is_final(name, d, today)}
        assert model or name == "monthly" or today < day(NIGHTS), f"no day of {name} is final"
        assert final[name] == model, f"final days of {name} on {today}"
    missing_anywhere = any(part.missing_days for part in unloaded.values())
    for name in world.graph.tables:
        states = snapshot.states_of(name)
        bad = {d: state for d, state in states.items() if not state.is_good}
        assert set(bad.values()) <= ({DayState.INPUT_MISSING} if missing_anywhere else set()), (
            f"{name} on {today}: {bad}"
        )
        if name in world.graph.sources:
            not_expected = {d for d, s in states.items() if s is DayState.NOT_EXPECTED}
            delivery = world.deliveries[name[-1]]
            assert not_expected >= {
                d
                for d in ledgers[name].published_days
                if not delivery.expects(d) and not delivery.has_come(d, today)
            }


def test_a_run_leaves_days_that_are_not_due_whoever_launches_it():
    """A plan says so. What was published before the declaration is built as ever."""
    daily = frozenset(range(7))
    came = {d: d + DAY for d in Window(day(1), day(20))}
    world = World(Delivery(daily, n, day(1), came) for n in (0, 2, 0))
    today, days = day(10), [day(7), day(8), day(9)]
    world.play_night(today)
    assert world.ledgers["pair"].published_days == {*Window(day(1), day(8))}
    snapshot = world.snapshot(today)
    assessments = assess(snapshot, "pair", days, requested=days)
    waits = "lines of it are still to come: it is due on "
    assert [a.not_due for a in assessments.values()] == [
        "",
        f"{waits}{day(11)}",
        f"{waits}{day(12)}",
    ]
    assert [a.can_change for a in assessments.values()] == [True, False, False]
    assert [world.graph.due_date("pair", d) for d in days] == [day(10), day(11), day(12)]
    versions = dict.fromkeys(world.graph.tables, "code")
    forecasts = forecast_days(replace(snapshot, code_versions=versions), {"pair": days})
    outcomes = [day_forecast.outcome for day_forecast in forecasts["pair"].values()]
    assert outcomes == [DayOutcome.IDENTICAL, DayOutcome.NOT_DUE, DayOutcome.NOT_DUE]
    # A source that comes on the day itself is not waited for.
    assert not any(a.not_due for a in assess(snapshot, "stg_a", days).values())
    published = Ledger(world.graph.tables["pair"], 0, [record(0, days)])
    with_days = replace(snapshot, ledgers={**snapshot.ledgers, "pair": published})
    assert not any(a.not_due for a in assess(with_days, "pair", days).values())
    # Without a known business day, every day is due.
    any_day = replace(snapshot, today=date.max)
    assert not any(a.not_due for a in assess(any_day, "pair", days).values())
