"""The part of `make bench` about a long history: does it slow down what a person asks for?

The years before are commits that nobody made: each is a night's, as a nightly run's commit says it,
and its file is that of the first night.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable

from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import FACT, TABLES
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.pipeline import LAYERS, START, Pipeline, order

DAY = timedelta(days=1)
#: The days that are really there, and those of them that are built again.
RECENT, AGAIN = 60, 30
BACKFILL = "benchone"


def measure_long_history(
    engine: Engine, root: Path, histories: tuple[int, ...], rounds: int = 3
) -> None:
    """Seconds of what a person asks about 30 days, with few and many days before; upkeep."""
    seconds_by_days: dict[int, dict[str, float]] = {}
    for days in histories:
        pipeline = _make_aged_pipeline(engine, root / str(days), days)
        answers = ServedDeployment(root / str(days), pipeline.settings)
        seconds_by_days[days] = dict(_time_commands(pipeline, answers, rounds))
    few, many = histories[0], histories[-1]
    for what, seconds in seconds_by_days[many].items():
        before = seconds_by_days[few][what]
        print_result(
            f"{what}, {AGAIN} days, with {many:,} days in the tables : with {few:,}",
            seconds / before,
            note=f"{seconds:.1f} s : {before:.1f} s",
        )


def _make_aged_pipeline(engine: Engine, root: Path, days: int) -> Pipeline:
    """Layers with so many days, of which the last ones are there."""
    start = START - (days - RECENT) * DAY
    pipeline = Pipeline(engine, root, start=start, end=START + RECENT * DAY)
    for n in ((start - START).days + 1, *range(1, RECENT + 1)):
        pipeline.land(n, [order(f"o-{n}-{i}", n, customer=f"c{i % 50}") for i in range(200)])
    pipeline.run(start)
    nights = [start + n * DAY for n in range(1, days - RECENT)]
    offsets = {name: pipeline.log(name).version() for name in LAYERS}
    for name in LAYERS:
        add_nights(Path(pipeline.settings.table(name)), TABLES[name].partition, nights, offsets)
    pipeline.run(START, START + (RECENT - 1) * DAY)
    return pipeline


def add_nights(table: Path, partition: str, nights: list[date], offsets: dict[str, int]) -> None:
    """A commit for each night, like the table's last one."""
    version = offsets[table.name]
    log = table / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{version:020d}.json").open()]
    info = next(a["commitInfo"] for a in actions if "commitInfo" in a)
    add = next((a["add"] for a in actions if "add" in a), None)
    metadata = json.loads(info["userMetadata"])
    (audit,) = metadata["audit"].values()
    for n, night in enumerate(nights, 1):
        text = str(night)
        night_metadata = metadata | {
            "run_id": str(uuid4()),
            "commit_id": uuid4().hex,
            "since": version + n - 1,
            "launched_by": "schedule nightly",
            "inputs": {name: offsets[name] + n for name in metadata["inputs"]},
            "audit": {text: audit | {"digest": f"{n}-{n:x}-{n:x}"}},
            "days": [text],
        }
        if "landing" in metadata["details"]:
            (landing,) = metadata["details"]["landing"].values()
            about = ("event_days", "current_days", "log_days", "settled")
            night_metadata["details"] = {
                "landing": {text: landing},
                **{name: [text] for name in about},
                "spans": {text: [text]},
            }
        new: list[Any] = [{"commitInfo": info | {"userMetadata": json.dumps(night_metadata)}}]
        if add:
            path = f"{partition}={text}/part-00000-{uuid4()}.c000.snappy.parquet"
            (table / path).parent.mkdir()
            (table / path).hardlink_to(table / add["path"])
            new.append({"add": add | {"path": path, "partitionValues": {partition: text}}})
        file = log / f"{version + n:020d}.json"
        file.write_text("".join(json.dumps(action) + "\n" for action in new))
    DeltaTable(table).create_checkpoint()


def _time_commands(
    pipeline: Pipeline, answers: ServedDeployment, rounds: int
) -> Iterator[tuple[str, float]]:
    """Seconds of each command, as a process of its own: the median of some rounds."""
    rebuilt_days = (START + (RECENT - AGAIN) * DAY, START + (RECENT - 1) * DAY)
    for n in range(RECENT - AGAIN + 1, RECENT + 1):
        pipeline.land(n, [order(f"more-{n}", n)], "more.jsonl")
    tables = [part for name in LAYERS for part in ("--table", name)]
    plan = ["plan", f"{rebuilt_days[0]}...{rebuilt_days[1]}", *tables]
    yield "plan", _median_seconds(rounds, lambda: _run_command(answers, *plan))
    pipeline.run(*rebuilt_days, tags={"dagster/backfill": BACKFILL})
    wrote = [r for r in read_ledgers(pipeline.deployment)[FACT.name].records if r.backfill_id]
    assert [len(r.rewritten_days) for r in wrote] == [AGAIN]
    yield "reconcile", _median_seconds(rounds, lambda: _run_command(answers, "reconcile", BACKFILL))
    life = ["history", FACT.name, str(rebuilt_days[0])]
    yield "history of a day", _median_seconds(rounds, lambda: _run_command(answers, *life))
    undone = [BACKFILL]

    def undo_last() -> None:
        match = re.search(r"by run (\w+)", _run_command(answers, "undo", undone[-1]))
        assert match
        undone.append(match[1])

    yield "undo, and undo of the undo", _median_seconds(rounds, undo_last)
    yield "maintain", _median_seconds(1, lambda: _run_command(answers, "maintain"))


def _run_command(answers: ServedDeployment, *command: str) -> str:
    process = answers.run(*command)
    assert process.returncode == 0, f"{command}: {process.stdout}\n{process.stderr[-4000:]}"
    return process.stdout


def _median_seconds(rounds: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return median(seconds)
