"""`init`: the project that it writes works by its own commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import dagster as dg
import pytest
import yaml

from backfill_assets.cli import main
from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.helpers.reader import Reader
from backfill_assets_tests.helpers.wheel import build_wheel


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


def test_declarations_come_into_a_package_that_is_there(tmp_path, monkeypatch, capsys):
    (tmp_path / "their_shop").mkdir()
    (tmp_path / "their_shop/__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["init", "--into", "their_shop/lake"]) == 0
    written = capsys.readouterr().out
    names: dict = {"dg": dg, "yours": dg.Definitions(executor=dg.multiprocess_executor)}
    # What is to be added to their definitions, as it is printed.
    code = textwrap.dedent("\n".join(re.findall(r"^(?: {4}.*)?$", written, re.MULTILINE)))
    exec(code, names)
    graph = names["defs"].resolve_asset_graph()
    assert dg.AssetKey("account_totals_7d") in graph.get_all_asset_keys()
    assert {path.name for path in (tmp_path / "their_shop/lake").iterdir()} >= {
        "sample.py",
        "test_tables.py",
    }


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("their_shop", "name a new folder in it, as their_shop/lake"),
        ("nobody/lake", "nobody is not in a package: no __init__.py there or above"),
        ("their_shop/1st", "1st cannot name a Python package"),
    ],
)
def test_declarations_go_into_packages_alone(folder, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "their_shop").mkdir()
    (tmp_path / "their_shop/__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--into", folder]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "their_shop").iterdir()] == ["__init__.py"]


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


@pytest.mark.slow
def test_a_project_on_the_wheel_alone(tmp_path):
    """`init`, its demo and its test, in an empty environment into which the wheel is installed.

    The registry gives what the wheel requires, in the versions of the lock file.
    """
    programs, project = tmp_path / "env" / "bin", tmp_path / "shop"
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    environment = {**kept, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink"}

    def run(*command: object, folder: Path = tmp_path) -> str:
        process = subprocess.run(
            [*map(str, command)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, (process.stdout + process.stderr)[-6000:]
        return process.stdout

    wheel = build_wheel(tmp_path / "wheel")
    run(BIN / "uv", "venv", "-q", "--python", sys.executable, programs.parent)
    install = (BIN / "uv", "pip", "install", "-q", "--python", programs / "python")
    run(*install, "-c", PROJECT / "requirements.lock", f"backfill-assets @ file://{wheel}")
    plain = run(programs / "python", "-c", "import backfill_assets as b; print(b.__file__)")
    assert Path(plain.strip()).is_relative_to(programs.parent)
    extras = f"backfill-assets[serve,lookups] @ file://{wheel}"
    run(*install, "-c", PROJECT / "requirements.lock", extras, "pytest")
    run(programs / "backfill-assets", "init", project)
    shown = run("make", "demo", f"BIN={programs}", folder=project)
    for table in ("raw_payments", "stg_payments", "account_totals_7d"):
        assert re.search(rf"^\W*{table} +14 ", shown, re.MULTILINE), shown[-3000:]
    assert "1 passed" in run("make", "test", f"BIN={programs}", folder=project)
