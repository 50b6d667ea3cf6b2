"""`init`: the project that it writes works by its own commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

from backfill_assets.cli import main
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.paths import BIN, PROJECT


def run_make(folder: Path, target: str) -> str:
    """What `run_make` says, in an environment that has no settings of this process."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("BACKFILL_ASSETS_", "DAGSTER_"))
    }
    if jars := os.environ.get("BACKFILL_ASSETS_JARS"):
        environment["BACKFILL_ASSETS_JARS"] = jars
    environment["BACKFILL_ASSETS_SPARK_CONF"] = json.dumps(SMALL)
    command = ["make", "-C", str(folder), target, f"BIN={BIN}"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("of_users") / "shop"
    assert main(["init", str(folder)]) == 0
    return folder


def test_the_demo_and_the_test_of_a_new_project_pass(project):
    (text,) = re.findall(r"_END=(.*)\n", (project / ".env").read_text())
    end = date.fromisoformat(text)
    assert timedelta(0) <= datetime.now(timezone.utc).date() - end <= timedelta(days=1)
    shown = run_make(project, "demo")
    for table in ("raw_payments", "stg_payments", "account_totals_7d"):
        (cells,) = [cells for line in shown.splitlines() if (cells := line.split())[:1] == [table]]
        assert cells[1:3] == ["14", f"{end - timedelta(days=14)}...{end - timedelta(days=1)}"]
    assert "1 passed" in run_make(project, "test")


def test_dagster_shows_the_names_of_the_project(project):
    env = (project / ".env").read_text()
    assert "BACKFILL_ASSETS_LOCATION=shop\nBACKFILL_ASSETS_OWNERS=team:shop\n" in env
    (place,) = yaml.safe_load((project / "workspace.yaml").read_text())["load_from"]
    assert place["python_module"]["location_name"] == "shop"


def test_the_instance_is_configured_as_ours(project):
    assert (project / "deployment/dagster.yaml").read_text() == (
        PROJECT / "dagster.yaml"
    ).read_text()


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [("full", "a file", "is not empty"), ("1st", None, "cannot name a Python package")],
)
def test_what_cannot_become_a_project_is_refused(name, there, said, tmp_path, capsys):
    folder = tmp_path / name
    if there:
        folder.mkdir()
        (folder / there).write_text("")
    assert main(["init", str(folder)]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in folder.glob("*")] == ([there] if there else [])
