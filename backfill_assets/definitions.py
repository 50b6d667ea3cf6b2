"""Where everything meets: settings, assets and resources become one `Definitions`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import dagster as dg

from backfill_assets.assets import dashboard, derived, known, lateness, raw, staging
from backfill_assets.assets.run_size import report_long_range
from backfill_assets.backfills import jobs, target_jobs
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.executor import one_process_executor
from backfill_assets.engine.spark import Engine
from backfill_assets.monitoring import automation, housekeeping
from backfill_assets.monitoring.look import Clock
from backfill_assets.publish.plain import Asset, DataFrameIOManager
from backfill_assets.settings import Settings, load_settings
from backfill_assets.tables.catalog import config_digests, graph_for, tables_of
from backfill_assets.tables.code_version import Code, running_code
from backfill_assets.tables.derived import Derived, versions_in
from backfill_assets.tables.known import Corrections, Current
from backfill_assets.tables.table import Table

#: Tags of assets: name of the first version of a table that has several, which version an asset is,
#: and the day on which it is retired.
VERSIONS_TAG = "backfill_assets/versions_of"
VERSION_TAG = "backfill_assets/version"
RETIRED_TAG = "backfill_assets/retired"


def build_defs(
    settings: Settings | None = None,
    *,
    resources: dict[str, Any] | None = None,
    clock: Clock | None = None,
) -> dg.Definitions:
    """The project's definitions.

    Args:
        settings: the deployment's settings; from the environment if not given.
        resources: replacements for `engine` or `io_manager`, for tests.
        clock: tells the time to the sensors; the system's if not given.

    Raises:
        SettingsError: naming the variable, the value and what is allowed.
    """
    settings = settings or load_settings()
    report_long_range(settings.partitions_per_run)
    running = running_code(settings)
    given = resources or {}
    engine = given.get("engine") or Engine.of(settings)
    clock = clock or (lambda: datetime.now(settings.zone))
    automatic = automation.build(settings, clock)
    today = clock().astimezone(settings.zone).date()
    sources = graph_for(settings).sources.values()
    assets = [
        *(
            asset
            for source in sources
            for asset in (
                raw.build(settings, running, source),
                *staging.build(settings, running, source),
                lateness.build(settings, running, source),
                dashboard.build(settings, source),
            )
        ),
        *(
            _unfed(asset) if table.is_retired(today) else asset
            for table, asset in _declared(settings, running)
        ),
    ]
    assets = [asset.map_asset_specs(partial(_told, settings)) for asset in assets]
    by_hand, stages = jobs.build(settings, assets, running)
    of_targets, switch_overs = target_jobs.build(settings, assets, running)
    return dg.Definitions(
        assets=[*assets, *target_jobs.comparisons(settings)],
        asset_checks=automatic.checks,
        jobs=[*automatic.jobs, *by_hand, *of_targets],
        schedules=[*automatic.schedules, housekeeping.build(settings)],
        sensors=[*automatic.sensors, stages, switch_overs],
        resources={
            "io_manager": fixed(io_manager_of(settings, engine, running)),
            **given,
            "engine": fixed(engine),
        },
        # One process and one session a run: a JVM for each step costs more than the step.
        executor=one_process_executor,
    )


def _told(settings: Settings, spec: dg.AssetSpec) -> dg.AssetSpec:
    """The same asset with Dagster's freshness, and with what tells it from its other versions.

    Assets without days are made anew with a day. One that is to be retired has no freshness:
    Dagster would go on to look at it after that day.
    """
    table = tables_of(settings).get(spec.key.path[-1])
    if table is not None and table.retired:
        said = f"{spec.description or ''} Retired on {table.retired}.".strip()
        spec = spec.replace_attributes(description=said).merge_attributes(
            tags={RETIRED_TAG: str(table.retired)}
        )
    else:
        policy = graph_for(settings).policy_of(table.name) if table else Policy.of(settings)
        spec = spec.replace_attributes(freshness_policy=automation.freshness(settings, policy))
    if isinstance(table, Derived) and len(versions_in(tables_of(settings), table.first)) > 1:
        spec = spec.merge_attributes(
            tags={VERSIONS_TAG: table.first, VERSION_TAG: str(table.version)}
        )
    return spec


def _unfed(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """The asset of a retired table: Dagster shows what it was, and materializes it no more."""
    return dg.AssetsDefinition(specs=[*asset.specs])


def _declared(settings: Settings, code: Code) -> Iterator[tuple[Table, dg.AssetsDefinition]]:
    """The tables that are declared by a function, each with its asset, which its kind decides."""
    for table in tables_of(settings).values():
        if isinstance(table, Derived):
            yield table, derived.build(settings, code, table)
        elif isinstance(table, Current):
            yield table, known.build_current(settings, code, table)
        elif isinstance(table, Corrections):
            yield table, known.build_corrections(settings, code, table)


def fixed(resource: object) -> dg.ResourceDefinition:
    """A resource as it is, for Dagster's definitions: a run that configures it is refused.

    A `ConfigurableResource` would take whatever a run is launched with: another server, which is
    then shown the engine's token, options of the JVM, or another warehouse. Nor does Dagster show
    what this one was made with, or store it with runs.
    """
    if isinstance(resource, dg.IOManager):
        return dg.IOManagerDefinition(lambda _: resource, config_schema={})
    return dg.ResourceDefinition(lambda _: resource, config_schema={})


def delta_io_manager(
    settings: Settings, assets: Iterable[Asset], engine: Engine | None = None
) -> dg.ResourceDefinition:
    """The IO manager of all tables, for definitions of one's own.

    Args:
        settings: the deployment's settings.
        assets: the ordinary assets that it publishes or reads, besides the tables.
        engine: where the Spark session comes from; as the settings say if not given.

    Raises:
        DeclarationError: an asset cannot be published: it has no pandera model in its metadata, or
            other partitions than days.
    """
    made = io_manager_of(settings, engine or Engine.of(settings), running_code(settings))
    return fixed(made.publishes(assets))


def io_manager_of(settings: Settings, engine: Engine, running: Code) -> DataFrameIOManager:
    """The IO manager of all tables.

    Args:
        settings: the deployment's settings.
        engine: where the Spark session comes from.
        running: the code of the tables.
    """
    return DataFrameIOManager(
        engine=engine,
        warehouse=settings.warehouse,
        code_version=running.version,
        code_versions={name: running.table_version(name) for name in tables_of(settings)},
        git_commit=running.commit,
        git_dirty=running.dirty,
        undo_days=settings.undo_days,
        stalled_after=settings.stalled_after,
        tables=settings.tables,
        config_digest=settings.digest,
        config_digests=config_digests(settings),
    )


#: What was built in this process, by the settings.
_built: dict[str, dg.Definitions] = {}


@dg.definitions
def defs() -> dg.Definitions:
    """What `workspace.yaml` loads."""
    settings = load_settings()
    key = settings.model_dump_json()
    # Dagster asks six times for a run that the command line launches.
    if key not in _built:
        _built[key] = build_defs(settings)
    return _built[key]
