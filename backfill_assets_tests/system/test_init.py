"""`init`: the project that it writes works by its own commands."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone

import pytest
import yaml

from backfill_assets.cli import main
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.reader import Reader


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("of_users") / "shop"
    assert main(["init", str(folder)]) == 0
    return folder


def test_the_demo_and_the_test_of_a_new_project_pass(project, engine, spark):
    """In a shell; our commands, Dagster's and the project's test are run in this process."""

    def run_make(target: str) -> str:
        status, printed = reader.type(f"make {target} BIN={reader.programs}", project)
        assert status == 0, printed[-6000:]
        return printed

    (text,) = re.findall(r"_END=(.*)\n", (project / ".env").read_text())
    end = date.fromisoformat(text)
    assert timedelta(0) <= datetime.now(timezone.utc).date() - end <= timedelta(days=1)
    with Reader(engine, project) as reader:
        shown, tested = run_make("demo"), run_make("test")
    for table in ("raw_payments", "stg_payments", "account_totals_7d"):
        (cells,) = [cells for line in shown.splitlines() if (cells := line.split())[:1] == [table]]
        assert cells[1:3] == ["14", f"{end - timedelta(days=14)}...{end - timedelta(days=1)}"]
    assert "1 passed" in tested


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
