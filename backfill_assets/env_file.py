"""The `.env` of a project, read as Dagster reads it; and where each variable comes from."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv import dotenv_values

#: By variable, the file that it was read from and its value there.
_file_values: dict[str, tuple[Path, str]] = {}


def load_env_file(folder: Path) -> None:
    """Put the variables of a folder's `.env` into the environment of this process.

    As in Dagster's own processes, the file wins over the environment, and a name without a value
    is left out (`dagster._core.secrets.env_file`).

    Args:
        folder: where commands are called.

    Raises:
        ValueError: the file cannot be read.
    """
    file = folder / ".env"
    if not file.is_file():
        return
    try:
        variables = dotenv_values(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    for name, value in variables.items():
        if value is not None:
            os.environ[name] = value
            _file_values[name] = (file, value)


def variable_origin(name: str) -> str:
    """Where a variable comes from: `default` if it is not set, `environment`, or a file."""
    if not os.environ.get(name):
        return "default"
    file, value = _file_values.get(name, (None, ""))
    return str(file) if file and os.environ[name] == value else "environment"


def origin_note(name: str) -> str:
    """The file that a variable comes from, for a message about it; empty if it is of none."""
    source = variable_origin(name)
    return "" if source in ("default", "environment") else f" (from {source})"
