"""`settings`: what holds for a deployment, and where each setting comes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import json_option
from backfill_assets.env_file import variable_origin
from backfill_assets.settings import list_variables, load_settings


@command("settings", "settings --json")
@json_option
def settings(out: Output, as_json: bool) -> Status:
    """All settings, with the value of each and where it comes from.

    The `.env` of the current folder is read as Dagster reads it, and wins over the environment.
    """
    rows = [*_setting_rows()]
    if as_json:
        out.print_json(rows)
        return Status.FINE
    if file := _ignored_env_file():
        out.print_note(
            f"# {file} is not read: commands read the .env of the folder they are called in."
        )
    widths = [max(len(row[column]) for row in rows) for column in ("name", "value")]
    for row in rows:
        out.print_text(
            f"{row['name']:{widths[0]}}  {row['value']:{widths[1]}}  {row['origin']}".rstrip()
        )
    return Status.FINE


def _ignored_env_file() -> Path | None:
    """The `.env` of a folder above, where the current one has none."""
    current = Path.cwd()
    if (current / ".env").is_file():
        return None
    return next(
        (folder / ".env" for folder in current.parents if (folder / ".env").is_file()), None
    )


def _setting_rows() -> Iterator[dict[str, Any]]:
    for name, value in list_variables(load_settings()):
        yield {"name": name, "value": value, "origin": variable_origin(name)}
