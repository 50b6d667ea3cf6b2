"""The `.env` of a project: commands read it as Dagster does, and say what came from it."""

from __future__ import annotations

import json
import os

import pytest
from dagster._core.secrets.env_file import get_env_var_dict

from backfill_assets.cli import main
from backfill_assets.settings import SettingsError, load_env_file, load_settings
from backfill_assets.tables.graph import tables_of

TEXT = """
# The deployment's settings.
BACKFILL_ASSETS_WINDOW_DAYS=3
export BACKFILL_ASSETS_LAG_DAYS="2"   # quoted
BACKFILL_ASSETS_TIMEZONE='Europe/Berlin'
BACKFILL_ASSETS_SPARK_CONF={"spark.sql.shuffle.partitions": "4"}
ELSEWHERE=${BACKFILL_ASSETS_LAG_DAYS}
NOTHING
EMPTY=
"""
NAMES = [*(f"BACKFILL_ASSETS_{name}" for name in ("WINDOW_DAYS", "LAG_DAYS", "TIMEZONE"))]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a `.env`, in which commands are called; the environment is put back."""
    for name in (
        *NAMES,
        "BACKFILL_ASSETS_SPARK_CONF",
        "BACKFILL_ASSETS_TABLES",
        "ELSEWHERE",
        "NOTHING",
        "EMPTY",
    ):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    (tmp_path / ".env").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def show_settings(capsys) -> dict[str, dict[str, str]]:
    assert main(["settings", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_the_file_wins_over_the_environment(project, monkeypatch, capsys):
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "30")
    monkeypatch.setenv("BACKFILL_ASSETS_MAX_LINE", "4096")
    rows = show_settings(capsys)
    file = str(project / ".env")
    expected = {
        "WINDOW_DAYS": ("3", file),
        "LAG_DAYS": ("2", file),
        "TIMEZONE": ("Europe/Berlin", file),
        "SPARK_CONF": ("(hidden)", file),
        "MAX_LINE": ("4096", "environment"),
        "UNDO_DAYS": ("30", "default"),
    }
    for name, (value, origin) in expected.items():
        row = rows[f"BACKFILL_ASSETS_{name}"]
        assert (row["value"], row["origin"]) == (value, origin), name


def test_what_is_read_is_what_dagster_reads(project):
    load_env_file(project)
    read = get_env_var_dict(str(project))
    assert {*NAMES, "ELSEWHERE", "EMPTY"} < read.keys()
    assert "NOTHING" not in read
    assert {name: os.environ[name] for name in read} == read


def test_an_error_names_the_file(project, capsys):
    file = project / ".env"
    file.write_text("BACKFILL_ASSETS_WINDOW_DAYS=many\n")
    assert main(["show"]) == 3
    message = capsys.readouterr().err
    assert f"BACKFILL_ASSETS_WINDOW_DAYS='many' (from {file}): " in message
    file.write_text("BACKFILL_ASSETS_WINDOW_DAYS=3\nBACKFILL_ASSETS_TABLES=nowhere:TABLES\n")
    load_env_file(project)
    with pytest.raises(SettingsError) as refused:
        tables_of(load_settings())
    message = str(refused.value)
    assert f"BACKFILL_ASSETS_TABLES='nowhere:TABLES' (from {file}): No module named" in message


def test_a_folder_without_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert show_settings(capsys)["BACKFILL_ASSETS_UNDO_DAYS"]["origin"] == "default"
    assert main(["settings"]) == 0
    assert "BACKFILL_ASSETS_UNDO_DAYS" in capsys.readouterr().out


def test_the_file_of_a_folder_above_is_named_and_not_read(project, monkeypatch, capsys):
    (project / ".env").write_text("BACKFILL_ASSETS_UNDO_DAYS=7\n")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    monkeypatch.delenv("BACKFILL_ASSETS_UNDO_DAYS", raising=False)
    assert main(["settings"]) == 0
    output = capsys.readouterr().out
    assert f"# {project / '.env'} is not read: commands read the .env of the folder" in output
    assert show_settings(capsys)["BACKFILL_ASSETS_UNDO_DAYS"]["origin"] == "default"


def test_a_file_that_is_no_text(project, capsys):
    (project / ".env").write_bytes(b"A=\xff\n")
    assert main(["settings"]) == 3
    message = capsys.readouterr().err
    assert f"{project / '.env'} cannot be read" in message
    assert len(message.splitlines()) == 1
