"""The definitions of the project, merged with those of the tables.

The project keeps its IO manager and its executor. Where the landing and the warehouse are, the
environment says; `build_defs(warehouse=..., landing=...)` would as well.
"""

from datetime import date
from typing import Any

import dagster as dg
import pyarrow.dataset as ds

from backfill_assets import build_defs, load_settings
from backfill_assets_guide.examples.host_project.delta_tables import open_table
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d

FIRST_DAY = date(2024, 1, 1)
SETTINGS = load_settings(start=FIRST_DAY)
DAYS = dg.DailyPartitionsDefinition(
    str(FIRST_DAY), str(SETTINGS.end) if SETTINGS.end else None, timezone=SETTINGS.timezone
)
LAKE = ["lake", "gold"]


@dg.asset(
    deps=[dg.AssetKey([*LAKE, active_users_7d.name])],
    partitions_def=DAYS,
    automation_condition=dg.AutomationCondition.eager(),
    group_name="reports",
)
def users_report(context: dg.AssetExecutionContext) -> dict[str, Any]:
    """The figures of a day, which the project's own IO manager stores."""
    table = open_table(SETTINGS.table(active_users_7d.name))
    day = date.fromisoformat(context.partition_key)
    rows = table.to_table(filter=ds.field("run_date") == day).to_pylist()
    return {name: rows[0][name] if rows else 0 for name in ("users", "visits", "clicks")}


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    tables = build_defs(tables=[VISITS, active_users_7d], key_prefix=LAKE, start=FIRST_DAY)
    return dg.Definitions.merge(
        tables,
        dg.Definitions(
            assets=[users_report],
            resources={"io_manager": dg.FilesystemIOManager()},
            executor=dg.multiprocess_executor,
        ),
    )
