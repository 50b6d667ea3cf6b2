"""`make soak`: a deployment that lives through weeks of arrivals and kills, with nobody's help.

A source that does what it should not (see `arriving`), the deployment as a user has it
(`backfill-assets ui`, whose sensors are told the time by a file), and a process of it killed now
and then. Now and then a person undoes a run and builds its days again, or switches over to a target
of the same definition. When nothing is left to do, the tables are held against the model, day after
day.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import dagster as dg

from backfill_assets.backfills.undo import NothingToUndoError, UndoRefusedError
from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.delta.targets import TargetError
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import list_landing
from backfill_assets.monitoring.next_runs import UNFINISHED_STATUSES
from backfill_assets.orders.tables import FACT, ORDER_LINES, RAW, REJECTED
from backfill_assets.settings import Settings, load_settings
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.staleness.unloaded import find_unloaded_days
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.landing_truth import list_differences
from backfill_assets_tests.helpers.process_kills import KINDS, kill_random_process
from backfill_assets_tests.helpers.random_arrivals import DAY, Source, Truth

#: A day that is not done after so many seconds is a finding.
_PATIENCE = 1800
#: What a run raises that refuses what a person has asked for.
_REFUSED = frozenset({UndoRefusedError.__name__, NothingToUndoError.__name__, TargetError.__name__})
#: A backfill that goes on, as Dagster names it.
_UNDER_WAY = ("REQUESTED", "CANCELING", "COMPLETING", "FAILING")
#: So many seconds after a kill a run that is only created then may still miss what was killed.
_COMES_BACK = 120
#: The kinds of the processes that were killed, by the time of day in seconds since 1970.
Kills = dict[float, str]


def run_soak(
    root: Path,
    days: int,
    kills: float,
    seed: int,
    window_days: int,
    late_lines: str,
    kinds: Sequence[str],
    by_hand: int,
) -> None:
    """Let a deployment live.

    Args:
        root: a folder for everything.
        days: simulated days.
        kills: the share of days on which a process is killed.
        seed: of all chances.
        window_days: the reprocessing window W.
        late_lines: `correct` or `drop`.
        kinds: of processes to kill.
        by_hand: after so many days a person undoes a run, or switches over.

    Raises:
        AssertionError: a table is not as the model says, or a run ended failed that did not lose
            its process.
    """
    start, chance = date.today() - (days + 30) * DAY, random.Random(seed)  # noqa: DTZ011
    settings = load_settings(
        landing=str(root / "landing"),
        warehouse=str(root / "warehouse"),
        start=start,
        end=start + (days + 1) * DAY,
        window_days=window_days,
        late_lines=late_lines,
        rejected_hold=1,
        absent_days=36500,
    )
    source = Source(root / "landing", start, seed)
    truth = Truth(source, root / "truth", window_days=window_days, drop=late_lines == "drop")
    clock = root / "clock"
    deployment = ServedDeployment(root, settings, clock=clock)
    deployment.environment |= {
        "BACKFILL_ASSETS_WINDOW_DAYS": str(window_days),
        "BACKFILL_ASSETS_LATE_LINES": late_lines,
        "BACKFILL_ASSETS_REJECTED_HOLD": "1",
        "BACKFILL_ASSETS_ABSENT_DAYS": "36500",
    }
    clock.write_text(f"{start}T02:00:00+00:00")
    killed: Kills = {}
    try:
        for n in range(days):
            source.simulate_day(start + n * DAY)
            today = start + (n + 1) * DAY
            clock.write_text(f"{today}T02:00:00+00:00")
            began = time.monotonic()
            victim = chance.choice(kinds) if chance.random() < kills else None
            _settle_deployment(deployment, settings, today, victim, chance, killed)
            if n % by_hand == by_hand - 1:
                what = _switch_over if n % (2 * by_hand) == by_hand - 1 else _undo_and_build
                print(f"{today}: {what(deployment, settings, chance)}", flush=True)
                _settle_deployment(deployment, settings, today, None, chance, killed)
            truth.load_landing(today)
            wrong = list_differences(settings, truth)
            assert not wrong, f"{today}: {wrong}"
            print(f"{today}: as the model says, {time.monotonic() - began:.0f} s", flush=True)
        _report_runs(deployment, killed)
    finally:
        deployment.stop()


def _settle_deployment(
    deployment: ServedDeployment,
    settings: Settings,
    today: date,
    victim: str | None,
    chance: random.Random,
    killed: Kills,
) -> None:
    """Wait until nothing is left to do, and kill a process meanwhile."""
    began, quiet, strike = time.monotonic(), 0, chance.uniform(2, 25)
    while quiet < 2:
        deployment.tend()
        if (
            victim
            and time.monotonic() - began > strike
            and kill_random_process(deployment.home, victim, chance)
        ):
            killed[time.time()] = victim
            victim = None
        quiet = 0 if _open_work(deployment, settings, today) else quiet + 1
        if time.monotonic() - began > _PATIENCE:
            raise AssertionError(f"{today}: not done: {_open_work(deployment, settings, today)}")
        time.sleep(1)


def _undo_and_build(deployment: ServedDeployment, settings: Settings, chance: random.Random) -> str:
    """Undo one of the newest runs, and build the days on hold again as a person does."""
    ledgers = read_ledgers(Deployment(settings))
    newest = max(ledgers.values(), key=lambda ledger: _commit_time(ledger.records[-1]))
    record = chance.choice([newest, newest, ledgers[FACT.name]]).records[-1]
    process = deployment.run("undo", record.run_id[:8], "--reason", "soak")
    if process.returncode:
        return f"an undo of {record.run_id[:8]} was refused: {process.stderr.strip()[-200:]}"
    on_hold = {name: ledger.on_hold for name, ledger in read_ledgers(Deployment(settings)).items()}
    tables = [name for name, days in on_hold.items() if days]
    days = sorted({str(day) for held_days in on_hold.values() for day in held_days})
    if tables:
        backfill = deployment.launch(days, tables)
        while (status := deployment.status(backfill)) in _UNDER_WAY:
            time.sleep(1)
        assert status == "COMPLETED_SUCCESS", (backfill, status)
    return f"undid {record.run_id[:8]} and built {len(days)} days of {tables} again"


def _commit_time(record: CommitRecord) -> datetime:
    """When a commit was made; one that does not say is old."""
    return record.at or datetime.min.replace(tzinfo=timezone.utc)


def _switch_over(deployment: ServedDeployment, settings: Settings, chance: random.Random) -> str:
    """Build some days beside production by the same code, and make them production."""
    days = sorted(read_ledgers(Deployment(settings))[FACT.name].latest)[-10:]
    first, last = sorted(chance.choices(days, k=2))
    words = ["--target", "soak", "--select", FACT.name]
    process = deployment.run("backfill", f"{first}...{last}", *words, "--yes")
    assert process.returncode == 0, process.stderr[-2000:]
    switched = deployment.run("switch", "soak", "--reason", "soak")
    dropped = deployment.run("drop", "soak")
    assert dropped.returncode == 0, dropped.stderr[-2000:]
    if switched.returncode:
        return f"a switch-over was refused: {switched.stderr.strip()[-200:]}"
    return f"switched {first}...{last} over"


def _open_work(deployment: ServedDeployment, settings: Settings, today: date) -> list[str]:
    """What is still to be done."""
    with deployment.instance() as instance:
        runs = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED_STATUSES))
    ledgers, policy = read_ledgers(Deployment(settings)), Policy.from_settings(settings)
    landed = list_landing(settings.landing, ORDER_LINES)
    unloaded = find_unloaded_days(ledgers[RAW.name], landed, policy, today, ledgers[REJECTED.name])
    behind = find_stale_days(snapshot_ledgers(ledgers, policy, today)).open
    return [
        *(f"run {run.run_id} {run.status.value}" for run in runs),
        *(f"load {day}" for day in unloaded.days_to_load),
        *(f"build {table} {sorted(days)}" for table, days in behind.items() if days),
    ]


def _report_runs(deployment: ServedDeployment, killed: Kills) -> None:
    """Say how the runs ended; a run may fail only because its process or the engine was lost.

    So a process was killed in its time, and nobody judged the data.
    """
    with deployment.instance() as instance:
        ended = Counter(run.status.value for run in instance.get_runs())
        failed = instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
        errors = {
            record.dagster_run.run_id: _error_chains(instance, record.dagster_run)
            for record in failed
        }
    print(f"runs: {dict(ended)}; killed: {dict(Counter(killed.values()))}")
    unexplained = []
    for record in failed:
        run_id = record.dagster_run.run_id
        first, last = record.create_timestamp.timestamp(), record.end_time or time.time()
        if any(_REFUSED.intersection(names) for names in errors[run_id].values()):
            continue  # of what a person has asked for
        killed_kinds = [kind for at, kind in killed.items() if first - _COMES_BACK < at < last]
        if not killed_kinds or any(
            dg.Failure.__name__ in names for names in errors[run_id].values()
        ):
            unexplained.append(run_id)
        print(f"{run_id}: {killed_kinds} killed; {errors[run_id]}")
    assert not unexplained, f"failed without losing a process: {unexplained}"


def _error_chains(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, list[str]]:
    """What the events of a failed run say of failures, with the errors' classes from the outer."""
    errors_by_message = {}
    for entry in instance.all_logs(run.run_id):
        event = entry.get_dagster_event() if entry.is_dagster_event else None
        error = getattr(event.event_specific_data, "error", None) if event else None
        if event and (event.is_failure or error):
            chain = []
            while error:
                chain.append(error.cls_name or error.message.strip())
                error = error.cause or error.context
            errors_by_message[str(event.message).strip()[:200]] = chain
    return errors_by_message


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--kills", type=float, default=0.3, help="share of days with a kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window-days", type=int, default=3)
    parser.add_argument("--late-lines", choices=["correct", "drop"], default="correct")
    parser.add_argument("--by-hand", type=int, default=6, help="days between undos, switch-overs")
    parser.add_argument("--root", type=Path, help="keep everything in this (new) folder")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="kill only these")
    arguments = parser.parse_args()
    kinds = arguments.kind or sorted(KINDS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.root or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        run_soak(
            root,
            arguments.days,
            arguments.kills,
            arguments.seed,
            arguments.window_days,
            arguments.late_lines,
            kinds,
            arguments.by_hand,
        )
    print(f"{arguments.days} days in {timedelta(seconds=round(time.monotonic() - began))}")


if __name__ == "__main__":
    main()
