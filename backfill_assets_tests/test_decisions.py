"""What runs, plans, nights, states and targets decide over random ledgers stays as it was.

`fixtures/decisions.json` has, by seed, a digest of what each of them decided when the file was
written. Where a decision is meant to change, the file is written again: run this module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.backfills.forecast import COMPUTE_OUTCOMES, forecast_days
from backfill_assets.calendar.partitions import DaySet
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.next_runs import make_inclusion_rule
from backfill_assets.monitoring.states import MonitoringSnapshot, day_states
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.types import ComputePlan, RunRequest
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.snapshot import Snapshot, SwitchedLedger
from backfill_assets.staleness.stale import built_from_revoked, find_stale_days
from backfill_assets.staleness.unloaded import UnloadedDays
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.random_ledgers import RandomLedgers

FROZEN = Path(__file__).parent / "fixtures" / "decisions.json"
SEEDS = range(200)
#: So many are looked at for each change.
IN_CI = 12

RUN = {"run_id": "this run", "launched_by": "person"}


def list_days(days: Iterable[date]) -> list[str]:
    return [str(d) for d in sorted(days)]


def take_snapshot(world: RandomLedgers, *, with_code: bool = True) -> Snapshot:
    code = world.code if with_code else None
    return Snapshot.from_deployment(world.deployment, world.ledgers, world.today, code)


def decide_stale(world: RandomLedgers) -> list[Any]:
    stale = find_stale_days(take_snapshot(world, with_code=False))
    behind = [
        {
            name: [(str(d), reason.commit_key) for d, reason in sorted(by_day.items())]
            for name, by_day in part.items()
        }
        for part in (stale.open, stale.final)
    ]
    return [*behind, {name: list_days(held) for name, held in stale.on_hold.items()}]


def decide_inclusion(world: RandomLedgers) -> Any:
    may_include = make_inclusion_rule(
        take_snapshot(world), find_stale_days(take_snapshot(world, with_code=False))
    )
    return {
        name: list_days(d for d in world.partitions(name) if may_include(name, d))
        for name in world.ledgers
    }


def decide_states(world: RandomLedgers) -> Any:
    all_days = [day(n) for n in range(1, world.last + 1)]
    unloaded = {
        log: UnloadedDays(
            days_to_load=dict.fromkeys(world.choose(all_days, 0.1), "files"),
            missing_days=frozenset(world.choose(all_days, 0.1)),
            files_on_hold={d: ["file"] for d in world.choose(all_days, 0.05)},
            last_day_requested=world.chance.choice([date.max, day(world.last)]),
            reverted_days=frozenset(world.choose(all_days, 0.05)),
        )
        for log in world.deployment.graph.sources
    }
    snapshot = MonitoringSnapshot(
        world.deployment.graph,
        world.ledgers,
        world.today,
        config_digests=world.deployment.config_digests,
        unloaded=unloaded,
        failed_checks={
            name: dict.fromkeys(failed, ("unique_key",)) for name, failed in world.failed.items()
        }
        | {name: {} for name in world.ledgers if name not in world.failed},
        before_deadline=world.chance.random() < 0.3,
    )
    return {
        name: [(str(d), state.name) for d, state in day_states(name, snapshot).items()]
        for name in world.ledgers
    }


def decide_final(world: RandomLedgers) -> Any:
    snapshot = take_snapshot(world, with_code=False)
    return [
        {name: list_days(days) for name, days in by_table.items() if days}
        for by_table in (snapshot.final_by_table, built_from_revoked(snapshot))
    ]


def decide_forecast(world: RandomLedgers, snapshot: Snapshot | None = None) -> Any:
    """The forecast of a plan of most tables; some landed days differ from what is loaded."""
    graph, rewrite = world.deployment.graph, snapshot is None and world.chance.random() < 0.1
    if snapshot is None:
        snapshot = take_snapshot(world)
        digests: dict[str, dict[date, str]] = {}
        changes: dict[str, dict[date, str]] = {}
        for name in graph.landed_tables:
            recorded = {d: world.ledgers[name].current_record(d) for d in world.partitions(name)}
            landed = {d: world.chance.random() for d in recorded}
            digests[name] = {
                d: record.input_digest if record and landed[d] < 0.8 else f"landed {d}"
                for d, record in recorded.items()
            }
            changes[name] = {d: "a file came" for d in recorded if landed[d] > 0.85}
        snapshot = replace(snapshot, digests=digests, changes=changes)
        names = [*graph.inputs]
    else:
        names = [name for name, inputs in graph.inputs.items() if inputs]
    # The days are those of before days could be not due, which `test_nights` is about.
    snapshot = replace(snapshot, today=date.max)
    days = {n: world.partitions(n) for n in names if world.chance.random() < 0.9}
    return {
        name: [(str(d), outcome.name, reason) for d, (outcome, reason) in by_day.items()]
        for name, by_day in forecast_days(snapshot, days, rewrite=rewrite).items()
    }


def decide_target(world: RandomLedgers) -> Any:
    """The forecast over the tables as they are after a switch to clones of some of them."""
    production = dict(world.ledgers)
    for name in world.choose(production):
        world.build_some(name)
    ledgers = {}
    for name, ledger in world.ledgers.items():
        cloned_version = production[name].version
        since = -1 if cloned_version is None else cloned_version
        built = {d for d, record in ledger.latest.items() if record.version > since}
        ledgers[name] = (
            ledger
            if ledger is production[name]
            else SwitchedLedger.from_clone(ledger, built, production[name])
        )
    world.ledgers = ledgers
    return decide_forecast(world, take_snapshot(world))


def make_publisher(world: RandomLedgers) -> DeltaIOManager:
    deployment = Deployment(world.deployment.settings)
    vars(deployment)["code"] = world.code
    publisher = DeltaIOManager(deployment, Engine(spark_config={}, jars=""))
    for name, failed in world.failed.items():
        publisher.note_failed_days("this run", name, dict.fromkeys(failed, "failed"))
    return publisher


def plan_run(
    world: RandomLedgers, name: str, days: Iterable[date], today: date = date.max, **request: Any
) -> ComputePlan:
    """The plan of a run of days of a derived table."""
    graph, publisher = world.deployment.graph, make_publisher(world)
    known = {n: world.ledgers[n] for n in {name, *(d.source.name for d in graph.inputs[name])}}
    sources = [
        TableSnapshot(known[dependency.source.name], True, pytest.fail).with_reach(
            dependency.reach.deciding_days(known[dependency.source.name]),
            partial(graph.required_days, dependency),
        )
        for dependency in graph.inputs[name]
    ]
    record = {
        **RUN,
        "launched_by": request.pop("launched_by", "person"),
        "code_version": world.code.table_version(name),
        "config_digest": world.deployment.config_digests[name],
    }
    asked_for = RunRequest(DaySet.from_days(days), record, **request)
    snapshot = replace(publisher.snapshot(asked_for, graph, known), today=today)
    return publisher.plan_days(asked_for, known[name].table, snapshot, sources)


def decide_runs(world: RandomLedgers) -> Any:
    """The plan of a run of some days, for each derived table."""
    plans = {}
    for name, inputs in world.deployment.graph.inputs.items():
        if not inputs:
            continue
        partitions, chance = world.partitions(name), world.chance
        first = chance.randrange(len(partitions))
        days = partitions[first : first + chance.randrange(1, len(partitions) + 1)]
        rewrite = world.choose(days, 0.2) if chance.random() < 0.3 else ()
        plan = plan_run(
            world,
            name,
            days,
            launched_by=chance.choice(["schedule nightly", "person"]),
            rewrite=rewrite,
            compares=chance.random() < 0.1,
        )
        plans[name] = [
            list_days(days),
            [(str(d), reason) for d, reason in plan.reasons.items()],
            [(str(d), expected.problems) for d, expected in plan.refused.items()],
            list_days(plan.requested),
        ]
    return plans


DECIDERS: Mapping[str, Callable[[RandomLedgers], Any]] = {
    "night": decide_stale,
    "inclusion": decide_inclusion,
    "states": decide_states,
    "final": decide_final,
    "plan": decide_forecast,
    "run": decide_runs,
    "target": decide_target,
}


def digest_decisions(seed: int) -> dict[str, str]:
    """A digest of what each decides, in the order of `DECIDERS`."""
    world = RandomLedgers(seed)
    return {
        name: hashlib.sha256(json.dumps(decide(world)).encode()).hexdigest()[:8]
        for name, decide in DECIDERS.items()
    }


@cache
def read_frozen() -> Mapping[str, Mapping[str, str]]:
    frozen: dict[str, dict[str, str]] = json.loads(FROZEN.read_text())
    return frozen


CHANGED_FEW = [
    *SEEDS[:IN_CI],
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[IN_CI:]),
]


@pytest.mark.parametrize("seed", CHANGED_FEW)
def test_decisions_are_those_of_before(seed):
    assert digest_decisions(seed) == read_frozen()[str(seed)]


@pytest.mark.parametrize("seed", CHANGED_FEW)
def test_a_run_computes_what_a_plan_of_its_table_computes(seed):
    """And refuses what it lacks, if nothing else is planned and a person launches it."""
    world = RandomLedgers(seed)
    world.failed.clear()
    for name, inputs in world.deployment.graph.inputs.items():
        if not inputs:
            continue
        days = world.partitions(name)
        forecasts = forecast_days(take_snapshot(world), {name: days})[name]
        plan = plan_run(world, name, days, world.today)
        outcomes = {d: forecast.outcome for d, forecast in forecasts.items()}
        assert {*plan.reasons} == {d for d in days if outcomes[d] in COMPUTE_OUTCOMES}, name
        lacking = (DayOutcome.LACKING, DayOutcome.OTHER_SETTINGS)
        assert {*plan.refused} == {d for d in days if outcomes[d] in lacking}, name


@pytest.mark.parametrize("seed", CHANGED_FEW)
def test_a_night_asks_for_no_day_that_its_runs_leave(seed):
    """Each day that it asks for is computed, alone or with those before it that it asks for."""
    world = RandomLedgers(seed)
    world.failed.clear()
    stale = find_stale_days(take_snapshot(world, with_code=False))
    for name, days in stale.open.items():
        plan = plan_run(world, name, days, launched_by="schedule nightly")
        assert {*plan.reasons} == {*days}, name


if __name__ == "__main__":
    seeds = range(int(os.environ.get("BACKFILL_TEST_DECISIONS", len(SEEDS))))
    FROZEN.write_text(
        "{\n"
        + ",\n".join(f'"{seed}": {json.dumps(digest_decisions(seed))}' for seed in seeds)
        + "\n}\n"
    )
