"""Each drill is solved by its model solution, with full marks; a wrong solution scores worse."""

from __future__ import annotations

import random
import shlex
import subprocess
import time
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster._cli import cli as dagster_cli

from backfill_assets.backfills.postmortems import SECTIONS
from backfill_assets.cli import main
from backfill_assets.drills import playing
from backfill_assets.drills.outages import OUTAGES
from backfill_assets.drills.playing import Drill
from backfill_assets.engine.spark import Engine

#: A deployment that is right, by its days and orders per day.
DAYS = 12


@pytest.fixture(scope="module")
def right(engine, spark, tmp_path_factory):
    t = time.time()
    found = playing.prepared(engine, tmp_path_factory.mktemp("right"), OUTAGES["doubled"], DAYS)
    print("PREPARED", time.time() - t)
    return found


def fill_in(path: Path) -> None:
    """What a person does with a post-mortem."""
    text = path.read_text()
    for what in SECTIONS.values():
        text = text.replace(f"TO BE FILLED IN: {what}", "Four words are enough.")
    path.write_text(text)


def play(drill: Drill, line: str, monkeypatch, engine) -> int:
    monkeypatch.setattr(Engine, "of", lambda _: engine)
    for name, value in drill.deployment.variables.items():
        monkeypatch.setenv(name, value)
    program, *words = shlex.split(drill.filled(line))
    if program == "backfill-assets":
        return main(words)
    if program == "dagster":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Dagster's, of its own command
            result = CliRunner().invoke(dagster_cli, words)
        assert result.exit_code == 0, result.exception or result.output
        return 0
    if program == "$EDITOR":
        fill_in(Path(words[0]))
        return 0
    return subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("name", ["doubled", "purged", "skewed", "amounts", "crashed"])
def test_x(name, right, engine, monkeypatch, tmp_path, capsys):
    t = time.time()
    drill = playing.begin(engine, right, tmp_path / "a", name, random.Random(3))
    print("BEGUN", time.time() - t, drill.symptom, drill.days)
    for line in drill.outage.solution:
        if "runbook" in line or "EDITOR" in line:
            continue
        t = time.time()
        s = play(drill, line, monkeypatch, engine)
        print("STEP", line, s, time.time() - t)
    print(capsys.readouterr().out)
    assert 0
