"""Switch-overs that are killed: whoever reads sees whole tables, and asking again finishes them."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.delta import targets
from backfill_assets.deployment import Deployment
from backfill_assets.settings import PREFIX
from backfill_assets_tests.helpers.deployment import COMMAND
from backfill_assets_tests.helpers.paths import PROJECT, dagster_yaml
from backfill_assets_tests.helpers.pipeline import Pipeline, day, run_undo
from backfill_assets_tests.helpers.process_kills import wait_for
from backfill_assets_tests.helpers.shadow_targets import AFTER, BEFORE, build_shadow, land_orders
from backfill_assets_tests.helpers.target_readers import CHANGED, run_reader

#: So many orders of one customer on each day.
ORDERS = {n: n for n in range(1, 7)}


def table_version(pipeline: Pipeline, name: str) -> int:
    return DeltaTable(pipeline.settings.table(name)).version()


def deploy_pipelines(engine, root: Path) -> tuple[Pipeline, Pipeline, dict[str, str]]:
    """Production by the code of before, the code of after, and what commands of that are told."""
    production = land_orders(Pipeline(engine, root, tables=BEFORE, window_days=1))
    production.tick("watch_days")
    home = root / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster_yaml().read_text())
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        f"{PREFIX}TABLES": AFTER,
        f"{PREFIX}WINDOW_DAYS": "1",
        **{
            f"{PREFIX}{name.upper()}": str(getattr(production.settings, name))
            for name in ("landing", "warehouse", "start", "end")
        },
    }
    return production, Pipeline(engine, root, tables=AFTER, window_days=1), environment


@pytest.mark.slow
def test_killed_between_any_two_tables(engine, spark, tmp_path: Path) -> None:
    production, after, environment = deploy_pipelines(engine, tmp_path)
    settings = after.settings
    build_shadow(after, f"{day(1)}...{day(6)}")
    switch = [COMMAND, "switch", "v2"]

    def start_switch() -> subprocess.Popen:
        return subprocess.Popen(switch, env=environment, cwd=PROJECT, stdout=subprocess.DEVNULL)

    chance = random.Random(11)
    with run_reader(production, ORDERS) as reader:
        for killed_after in chance.sample(CHANGED, 2):
            at = table_version(production, killed_after)
            process = start_switch()
            wait_for(lambda name=killed_after, at=at: table_version(production, name) > at)
            process.kill()
            process.wait()
            assert start_switch().wait() == 0
            assert not targets.interrupted_switches(Deployment(settings))
            assert reader.read_points() == [reader.new] * 3
            run_undo(after, "v2")
            production.tick("watch_days")
    assert not reader.wrong
    assert reader.looks > 5


#: The steps of a target, and the most files that come about before a kill: logs of clones, data
#: files, commits, what is known of the target.
#: Then what readers see.
STEPS = (
    (f"backfill {day(1)}...{day(6)} --target v2 --select scores", 24, "old"),
    (f"switch v2 --days {day(6)}", 4, "canary"),
    ("switch v2", 4, "new"),
    ("undo v2", 4, "old"),
)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("seed", range(int(os.environ.get("BACKFILL_TEST_SEEDS", "3"))))
def test_each_step_killed_at_a_random_moment(engine, spark, tmp_path: Path, seed: int) -> None:
    production, after, environment = deploy_pipelines(engine, tmp_path)
    settings, chance = after.settings, random.Random(seed)
    before = production.digests()

    def start_command(words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [COMMAND, *words.split()], env=environment, cwd=PROJECT, stdout=subprocess.DEVNULL
        )

    def count_files() -> int:
        return sum(path.suffix in (".json", ".parquet") for path in after.warehouse.rglob("*"))

    with run_reader(production, ORDERS) as reader:
        for words, most, then in STEPS:
            at, count = count_files(), chance.randint(1, most)
            process = start_command(words)
            wait_for(
                lambda at=at, count=count, process=process: (
                    count_files() >= at + count or process.poll() is not None
                ),
            )
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
            # A kill that came too late is none.
            killed = process.wait() != 0
            repeated = start_command(words).wait()
            target = targets.load_target(Deployment(settings), "v2")
            assert not (target.switching or target.undoing), target
            assert repeated == 0 or (killed and words.startswith("undo")), words
            assert reader.read_points() == [getattr(reader, then)] * 3, (words, count)
            look = reader.looks
            wait_for(lambda look=look: reader.looks > look)
    assert not reader.wrong
    assert production.digests() == before
