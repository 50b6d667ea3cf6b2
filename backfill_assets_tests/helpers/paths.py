"""Where things lie: the project, the programs beside its Python, the data beside it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: What `make dbt` installs, above the packages of the project.
DBT = PROJECT / "build/dbt/bin/dbt"
#: Of the project's workspace, as the pages give it: `test_definitions.py` runs it.
VALIDATE_COMMAND = "dagster definitions validate -w workspace.yaml"
#: The master file of CDNOW, which is not part of the project.
CDNOW = PROJECT.parent / "shared/data/cdnow/CDNOW_master.txt"


def dagster_yaml() -> Path:
    """The instance of the project: on Postgres where the environment says which, see `postgres`."""
    on_postgres = "DAGSTER_PG_DB" in os.environ
    name = "backfill_assets/deploy/dagster.postgres.yaml" if on_postgres else "dagster.yaml"
    return PROJECT / name


def free_port() -> int:
    """A port of loopback that nobody has right now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
