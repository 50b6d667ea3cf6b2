"""The same project with dbt models that read the tables, as assets of the same graph."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_dbt import DbtCliResource, DbtProject, dbt_assets

from backfill_assets_guide.examples.host_project import definitions

PROJECT = DbtProject(Path(__file__).parent / "dbt")


@dbt_assets(
    manifest=PROJECT.manifest_path,
    partitions_def=definitions.DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def dbt_models(context: dg.AssetExecutionContext, dbt: DbtCliResource) -> Iterator[Any]:
    """The models, for the days of the run: dbt replaces each as a batch."""
    days = context.partition_time_window
    window = ["--event-time-start", f"{days.start:%F}", "--event-time-end", f"{days.end:%F}"]
    yield from dbt.cli(["build", *window], context=context).stream()


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    models = dg.Definitions(
        assets=[dbt_models], resources={"dbt": DbtCliResource(project_dir=PROJECT)}
    )
    return dg.Definitions.merge(definitions.defs(), models)
