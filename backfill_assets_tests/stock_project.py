"""The orders in a project that takes Dagster as it comes: no executor and no IO manager of ours."""

from __future__ import annotations

import dagster as dg

from backfill_assets import build_defs


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads; the environment names landing, warehouse and key prefix."""
    return dg.Definitions.merge(
        build_defs(),
        dg.Definitions(
            resources={"io_manager": dg.FilesystemIOManager()}, executor=dg.multiprocess_executor
        ),
    )
