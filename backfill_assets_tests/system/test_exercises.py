"""The exercises of the guide are solved as the page says; each check prints what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from datetime import date
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.cli import main
from backfill_assets.settings import PREFIX
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.docs_pages import (
    BLOCK,
    PAGES,
    code_blocks,
    run_step,
    split_sections,
)
from backfill_assets_tests.helpers.paths import dagster_yaml
from backfill_assets_tests.helpers.pipeline import Pipeline

PAGE = PAGES["docs/guide/exercises.md"]
SECTIONS = [section for section in split_sections(PAGE) if section.level == 2]
EXERCISES = [section for section in SECTIONS if not section.title.startswith("Challenge")]
CHALLENGES = [section for section in SECTIONS if section not in EXERCISES]
#: What the page exports before the first exercise.
(_EXPORTS,) = code_blocks("docs/guide/exercises.md", "bash")
SETTINGS = dict(re.findall(r"(\w+)=(\S+)", _EXPORTS))


def section_steps(body: str) -> list[str]:
    """The commands of a section in order, each with the lines that it prints."""
    blocks = (text for _, text in BLOCK.findall(body) if text.startswith("$ "))
    return [step for block in blocks for step in re.split(r"\n(?=\$ )", block.rstrip())]


class Shell:
    """What a reader types, in a folder that stands for the clone."""

    def __init__(self, engine: Engine, root: Path, environment: pytest.MonkeyPatch) -> None:
        self.engine, self.root, self.environment = engine, root, environment
        home = root / "data/exercises/home"
        home.mkdir(parents=True)
        shutil.copy(dagster_yaml(), home / "dagster.yaml")
        environment.chdir(root)
        environment.setattr(Engine, "from_settings", lambda _: engine)
        environment.delenv("SPARK_REMOTE", raising=False)
        for name, value in SETTINGS.items():
            environment.setenv(name, value.replace("$PWD", str(root)))
        self.last_run = ""

    def run_step(self, step: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Run a command as the page has it."""
        words = step.removeprefix("$ ").split()
        if words[0] == "backfill-assets":
            run_step(step.replace("RUN", self.last_run), capsys)
        elif words[0] == "materialize":
            self.materialize(os.environ[words[1].removeprefix("$")], words[2])
        elif words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environment.setenv(name, value)
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", step.removeprefix("$ ")], check=True)

    def materialize(self, names: str, days: str) -> None:
        """What the function of the page does, on the engine of the tests.

        That days are the same alone is compared by other tests.
        """
        pipeline = Pipeline(
            self.engine,
            self.root / "data/exercises",
            end=date.fromisoformat(SETTINGS[f"{PREFIX}END"]),
            tables=os.environ[f"{PREFIX}TABLES"],
            check_independence=False,
        )
        pipeline.instance = dg.DagsterInstance.get()
        first, last = map(date.fromisoformat, days.split("..."))
        self.last_run = pipeline.run(first, last, names.split(",")).run_id[:8]


@pytest.fixture
def shell(engine, spark, tmp_path, monkeypatch) -> Shell:
    return Shell(engine, tmp_path, monkeypatch)


def solve(shell: Shell, sections: list, capsys: pytest.CaptureFixture[str]) -> None:
    for section in sections:
        for step in section_steps(section.body):
            shell.run_step(step, capsys)


def test_the_solutions_give_what_the_page_shows(shell, capsys):
    """Those of the first two, without the tables that they do not show."""
    sections, others = EXERCISES[:2], {"training_sample", "raw_orders_rejected"}
    assert not any(name in section.body for section in sections for name in others)
    names = [name for name in os.environ["LAYERS"].split(",") if name not in others]
    shell.environment.setenv("LAYERS", ",".join(names))
    solve(shell, sections, capsys)


@pytest.mark.slow
def test_the_challenges_give_what_the_page_shows(shell, capsys):
    """After all exercises."""
    solve(shell, SECTIONS, capsys)


def test_the_worked_week_is_planned(tmp_path, monkeypatch, capsys):
    """As the page on decisions has it: a day a run, two at a time."""
    lead = PAGES["docs/guide/lead.md"]
    (setting,) = re.findall(r"`(\w+PARTITIONS_PER_RUN)=1`", lead)
    (command,) = re.findall(r"`backfill-assets (plan \S+ --max-parallel 2)`", lead)
    monkeypatch.setenv(setting, "1")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv(f"{PREFIX}END", "2024-01-15")
    for name in ("landing", "warehouse"):
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", str(tmp_path / name))
    assert main(["sample", "--days", "14"]) == 0
    capsys.readouterr()
    assert main(command.split()) == 0
    runs = re.findall(r"^runs +(.+?) *$", capsys.readouterr().out, re.MULTILINE)
    assert runs == ["about 14, at most 2 at a time"]
    assert f"`{runs[0]}`" in lead


def test_each_exercise_has_a_task_a_hint_a_solution_and_a_check():
    assert (len(EXERCISES), len(CHALLENGES)) == (3, 2)
    for section in SECTIONS:
        parts = ["**Task.**", "<summary>Hint<", "<summary>Solution<", "**Check.**"]
        places = [section.body.index(part) for part in parts]
        assert places == sorted(places), section.title
        assert section.body.count("<details") == section.body.count("</details>") == 2
