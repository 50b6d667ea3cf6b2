"""Playing a drill in this process: its commands as a person gives them, on the suite's engine."""

from __future__ import annotations

import shlex
import subprocess
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster._cli import cli as dagster_cli

from backfill_assets.backfills.history import PLACEHOLDER_PREFIX, SECTIONS
from backfill_assets.cli import main
from backfill_assets.spark.session import Engine
from backfill_assets_guide.drills.deployment import DrillDeployment
from backfill_assets_guide.drills.playing import Drill


class Player:
    """Somebody whose shell has sourced the file of a drill."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        monkeypatch.delenv("SPARK_REMOTE", raising=False)
        monkeypatch.setattr(Engine, "from_settings", lambda _: engine)

    def source(self, deployment: DrillDeployment) -> None:
        """Source the file of a deployment."""
        for name, value in deployment.variables.items():
            self.monkeypatch.setenv(name, value)

    def type(self, command: str) -> int:
        """Give a command; its status."""
        program, *words = shlex.split(command)
        if program == "backfill-assets":
            return main(words)
        if program == "dagster":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Dagster's, of its own command
                result = CliRunner().invoke(dagster_cli, words)
            assert result.exit_code == 0, result.exception or result.output
            return 0
        if program == ".":
            self.source(DrillDeployment(Path(*words).parent))
            return 0
        if program == "$EDITOR":
            fill_in(Path(*words))
            return 0
        return subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL).returncode

    def solve(self, drill: Drill) -> int:
        """Give the commands of its solution, one after another; the status of the last."""
        self.source(drill.deployment)
        status = 0
        for line in drill.outage.solution:
            # A look ends with 1 where it finds something.
            status = self.type(drill.fill_in(line))
            assert status in (0, 1), line
        return status


def fill_in(path: Path) -> None:
    """Write something into each section of a post-mortem."""
    text = path.read_text()
    for what in SECTIONS.values():
        assert f"{PLACEHOLDER_PREFIX}{what}" in text
        text = text.replace(f"{PLACEHOLDER_PREFIX}{what}", "A sentence that says what was.")
    path.write_text(text)
