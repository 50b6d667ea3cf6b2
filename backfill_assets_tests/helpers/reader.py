"""A person who follows the pages: the environment of the commands that they have."""

from __future__ import annotations

import json
import os

from backfill_assets.settings import PREFIX
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.paths import BIN


def reader_environment() -> dict[str, str]:
    """The environment of a fresh shell, without settings of anybody's own."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name not in ("SPARK_REMOTE", "DAGSTER_HOME")
    }
    return {
        **inherited,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        # Jars are not downloaded for a test, and the machine is shared with the suite's Spark.
        "BACKFILL_ASSETS_JARS": os.environ.get("BACKFILL_ASSETS_JARS", ""),
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps({**conftest.SMALL, "spark.master": "local[2]"}),
        # The last lines of a step arrive on a loaded machine as well (see the Makefile).
        "DAGSTER_COMPUTE_LOG_TAIL_WAIT_AFTER_FINISH": "2",
    }
