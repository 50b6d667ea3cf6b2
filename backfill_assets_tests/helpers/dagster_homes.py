"""Homes of Dagster whose databases are there already: to make them takes Dagster half a second."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import dagster as dg
from alembic.config import Config
from alembic.script import ScriptDirectory

_MADE = tempfile.TemporaryDirectory()


def make_home(folder: Path, dagster_yaml: str) -> None:
    """Make a folder a home with these settings of Dagster, in which nothing has happened."""
    shutil.copytree(_made_home(dagster_yaml), folder, dirs_exist_ok=True)


@cache
def _made_home(dagster_yaml: str) -> Path:
    home = Path(tempfile.mkdtemp(dir=_MADE.name))
    (home / "dagster.yaml").write_text(dagster_yaml)
    with (
        patch.dict(os.environ, {"DAGSTER_HOME": str(home)}),
        dg.DagsterInstance.from_config(str(home)) as instance,
    ):
        # Each storage makes its database when it is first asked.
        instance.get_runs()
        instance.get_materialized_partitions(dg.AssetKey("any"))
        instance.all_instigator_state()
    return home


@contextmanager
def remember_revisions() -> Iterator[None]:
    """The revisions of Dagster's databases are read once, not by each instance, in memory too.

    Alembic reads some ninety files for them.
    """
    read, known = ScriptDirectory.from_config, {}

    def recall(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = read(config)
        return known[place]

    with patch.object(ScriptDirectory, "from_config", recall):
        yield
