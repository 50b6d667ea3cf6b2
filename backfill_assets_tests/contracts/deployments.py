"""A deployment on folders of a test's own, for commands that need no Spark session."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from backfill_assets.cli import cli
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import JAN, publish_facts

_WIDTH = 80


def make_deployment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Publish three days of facts; the commands that follow find no engine, and no terminal."""
    # A module that is loaded later would import what a test has patched, and keep that.
    assert [*all_commands()]
    (folder / "landing/orders").mkdir(parents=True)
    (folder / "home").mkdir()
    (folder / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(folder / "landing"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(folder / "warehouse"))
    monkeypatch.setenv("BACKFILL_ASSETS_START", "2024-01-01")
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-29")
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "home"))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    monkeypatch.setattr(Engine, "spark_session", property(_refuse_session))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(folder)
    publish_facts(folder, dict.fromkeys(JAN[:3], "ok"))
    return folder


def _refuse_session(_engine: Engine) -> None:
    raise ConnectionError("the engine is not there")


def all_commands(
    command: click.Command = cli, name: str = "backfill-assets", parent: click.Context | None = None
) -> Iterator[click.Context]:
    """A context for every command and subcommand, as wide as a page of documentation."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **command.context_settings,
    )
    yield context
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            subcommand = command.get_command(context, word)
            assert subcommand
            yield from all_commands(subcommand, word, context)
