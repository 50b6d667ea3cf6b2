"""The Dagster `Definitions` of a deployment, and the component for a `defs.yaml`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Self

import click
import dagster as dg
from pydantic import BaseModel, SkipValidation, create_model
from pyspark.sql import SparkSession

from backfill_assets.assets import backfill_jobs, derived, raw_load, staging
from backfill_assets.assets.backfill_jobs import option_of_command, range_of_command
from backfill_assets.assets.input_frames import OpenServices
from backfill_assets.calendar.partitions import Grain, Window
from backfill_assets.deployment import ENGINE_KEY, IO_MANAGER_KEY, Deployment
from backfill_assets.monitoring import automation, lateness_page
from backfill_assets.monitoring.incidents import Clock
from backfill_assets.publish.io_manager import Asset, DataFrameIOManager, DeltaIOManager
from backfill_assets.settings import PREFIX, Settings, SettingsError, load_settings, require_extra
from backfill_assets.shadow.jobs import build_shadow_jobs, comparison_assets
from backfill_assets.spark.session import Engine
from backfill_assets.tables.derived import Corrections, Current, Derived, versions_in
from backfill_assets.tables.table import Table, asset_name

#: The tag of an asset with the name of its grain's job, to be selected by.
GRAIN_TAG = "backfill_assets/grain"

#: Tags of assets: the first version of a table with several versions, this asset's version, and its
#: retirement day.
VERSIONS_TAG = "backfill_assets/versions_of"
VERSION_TAG = "backfill_assets/version"
RETIRED_TAG = "backfill_assets/retired"


def build_defs(
    settings: Settings | None = None,
    *,
    tables: Iterable[object] | str | None = None,
    engine: Engine | SparkSession | Any = None,
    translation: Callable[[dg.AssetSpec], dg.AssetSpec] | None = None,
    resources: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    automate: bool = False,
    **values: Any,
) -> dg.Definitions:
    """The definitions of a deployment, to be merged with those of a project.

    They bring no executor, and no resource under a name that a project would choose:

        dg.Definitions.merge(
            build_defs(tables=[VISITS, daily_visits], warehouse="s3://lake/gold"),
            dg.Definitions(assets=[report], resources={"io_manager": theirs}),
        )

    Args:
        settings: all settings; if not given, `values`, and the environment for the others.
        tables: the tables and sources, or where they are declared, as `module:attribute`; if not
            given, those that the settings name.
        engine: a Spark session of the project, or a resource that provides one as
            `spark_session`, such as dagster-pyspark's; as in the settings if not given.
        translation: changes the group, owners, tags, kinds or description of an asset's spec; its
            key follows from the setting `key_prefix`.
        resources: replacements for resources of the deployment, by `Deployment.resource_key`, for
            tests.
        clock: gives the current time to the sensors; the system's if not given.
        automate: whether what launches runs that nobody has asked for is on as soon as it is
            loaded: the schedules `nightly`, and the sensors `touched_days` and `lost_retries`.
            Otherwise somebody turns them on in Dagster.
        values: settings by the name of their field, as `warehouse="/lake"`.

    Raises:
        SettingsError: naming the variable or argument, the value and what is allowed.
        TypeError: both `settings` and `values` are given.
    """
    deployment = _deployment(settings, tables, values, automate)
    settings = deployment.settings
    _report_long_range(settings.partitions_per_run)
    code = deployment.code
    if engine is None:
        engine = Engine.from_settings(settings)
    elif not isinstance(engine, Engine):
        engine = Engine.from_session(settings, engine)
    clock = clock or (lambda: datetime.now(settings.zone))
    automation_defs = automation.build_automation(deployment, clock)
    assets = _build_assets(deployment, clock().astimezone(settings.zone).date(), translation)
    _refuse_mixed_grains(assets, deployment)
    manual_jobs, stage_sensor = backfill_jobs.build_backfill_jobs(deployment, assets, code)
    target_job_definitions, switch_sensor = build_shadow_jobs(deployment, assets, code)
    return dg.Definitions(
        assets=[*assets, *comparison_assets(deployment)],
        asset_checks=automation_defs.checks,
        jobs=[*automation_defs.jobs, *manual_jobs, *target_job_definitions],
        schedules=[*automation_defs.schedules, automation.build_housekeeping(deployment)],
        sensors=[*automation_defs.sensors, stage_sensor, switch_sensor],
        resources={
            deployment.resource_key(IO_MANAGER_KEY): fixed_resource(
                _io_manager(deployment, engine)
            ),
            deployment.resource_key(ENGINE_KEY): fixed_resource(engine),
            **(resources or {}),
        },
    )


def _report_long_range(partitions_per_run: int) -> None:
    """Warn on stderr if Dagster's command is given a longer range than a run normally has."""
    text = range_of_command()
    try:
        days = len(Window.parse(text)) if text else 0
    except ValueError:  # Dagster reports it
        return
    if days > partitions_per_run:
        click.echo(
            f"One run makes all {days} days of {text}, more than the {partitions_per_run} of "
            f"{PREFIX}PARTITIONS_PER_RUN: it needs memory and time for all of them, and is to be "
            "begun again if it is killed. It goes on. To have them in runs of that size: "
            f"`backfill-assets backfill {text}`, or the Dagster UI.",
            err=True,
        )


def _refuse_mixed_grains(assets: Iterable[dg.AssetsDefinition], deployment: Deployment) -> None:
    """Raise if Dagster's command is given tables of several grains, which it has no run for.

    Raises:
        click.UsageError: what takes all of them, and the selection of each grain.
    """
    selection = option_of_command("select", "assets")
    if not selection:  # each start of a run, a command and the code server is here
        return
    try:
        keys = dg.AssetSelection.from_coercible(selection.split(",")).resolve(assets)
    except dg.DagsterError:  # it reports that itself
        return
    tables = deployment.tables
    jobs = {t.asset_name: t.job_name for t in tables.values()}
    selected = {jobs[name] for name in deployment.asset_names(keys) if name in jobs}
    names = [job for job in _job_names(tables) if job in selected]
    if len(names) > 1:
        days = option_of_command("partition_range", "partition") or "FIRST...LAST"
        tags = [f"tag:{GRAIN_TAG}={name}" for name in names]
        raise click.UsageError(
            f"{selection!r} has tables with partitions of {len(names)} kinds, and Dagster's runs "
            f"have one. All of them: `backfill-assets materialize {days}`. Or select them by kind, "
            f"one command after the other: {', '.join(tags)}. Nothing was run."
        )


def _job_names(tables: Mapping[str, Table]) -> list[str]:
    """Return the names of the jobs of the tables: days first, then weeks and months."""
    in_order = sorted(tables.values(), key=lambda table: [*Grain].index(table.grain))
    return [*dict.fromkeys(table.job_name for table in in_order)]


def _build_assets(
    deployment: Deployment,
    today: date,
    translation: Callable[[dg.AssetSpec], dg.AssetSpec] | None,
) -> list[dg.AssetsDefinition]:
    """The assets of all tables and pages; `translation` is that of `build_defs`."""
    assets = [
        *(
            asset
            for parts in deployment.graph.parts_of_sources
            for asset in (
                raw_load.build_raw_assets(deployment, parts),
                *staging.build_staging_assets(deployment, parts),
                staging.build_lateness_asset(deployment, parts),
                *(lateness_page.build_lateness_page(deployment, part) for part in parts),
            )
        ),
        *(
            _make_external(asset) if table.is_retired(today) else asset
            for table, asset in _declared_assets(deployment)
        ),
    ]
    assets = [
        asset.map_asset_specs(partial(_with_freshness_and_tags, deployment)) for asset in assets
    ]
    return [asset.map_asset_specs(translation) for asset in assets] if translation else assets


def _deployment(
    settings: Settings | None,
    tables: Iterable[object] | str | None,
    values: Mapping[str, Any],
    automate: bool,
) -> Deployment:
    """The deployment of the arguments of `build_defs`."""
    if isinstance(tables, str):
        values, tables = {**values, "tables": tables}, None
    if settings is not None and values:
        raise TypeError(f"give settings, or {', '.join(values)} as arguments, not both")
    if tables is not None and not (tables := tuple(tables)):
        raise SettingsError("bad tables=: it has no table")
    settings = settings or load_settings(**values)
    return Deployment(settings, tables, automate)


def _with_freshness_and_tags(deployment: Deployment, spec: dg.AssetSpec) -> dg.AssetSpec:
    """Add the freshness policy to an asset, and the tags of its grain and version.

    Unpartitioned assets are refreshed daily, and have the tag of daily tables. An asset with a
    retirement day has no policy: Dagster would go on checking it after that day.
    """
    table = next(iter(deployment.graph.assets.get(spec.key.path[-1], ())), None)
    job_name = table.job_name if table else Grain.DAILY.job_name
    spec = spec.merge_attributes(tags={GRAIN_TAG: job_name})
    if table is not None and table.retired:
        description = f"{spec.description or ''} Retired on {table.retired}.".strip()
        spec = spec.replace_attributes(description=description).merge_attributes(
            tags={RETIRED_TAG: str(table.retired)}
        )
    else:
        policy = deployment.graph.policy_of(table.name) if table else deployment.policy
        spec = spec.replace_attributes(
            freshness_policy=automation.freshness_policy(deployment, policy)
        )
    if isinstance(table, Derived) and len(versions_in(deployment.tables, table.first)) > 1:
        spec = spec.merge_attributes(
            tags={VERSIONS_TAG: asset_name(table.first), VERSION_TAG: str(table.version)}
        )
    return spec


def _make_external(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Turn the asset of a retired table into an external one, which nobody can materialize."""
    return dg.AssetsDefinition(specs=[*asset.specs])


def _declared_assets(
    deployment: Deployment,
) -> Iterator[tuple[Table, dg.AssetsDefinition]]:
    """The tables declared by a function, each with the asset for its kind."""
    for parts in deployment.graph.assets.values():
        table = parts[0]
        if derived_tables := [part for part in parts if isinstance(part, Derived)]:
            open_services = _service_opener() if derived_tables[0].answers else None
            yield table, derived.build_derived_asset(deployment, derived_tables, open_services)
        elif current := [part for part in parts if isinstance(part, Current)]:
            yield table, derived.build_current_asset(deployment, current)
        elif corrections := [part for part in parts if isinstance(part, Corrections)]:
            yield table, derived.build_corrections_asset(deployment, corrections)


def _service_opener() -> OpenServices:
    """What opens the services of a run.

    Raises:
        SettingsError: the package that keeps quotas is not installed.
    """
    # Not at the top: a deployment without lookups does not need the package.
    require_extra("lookups", "pyrate_limiter", "a table that asks a service")
    from backfill_assets.lookups.answers import ServiceCaller

    return ServiceCaller.from_context


def fixed_resource(resource: object) -> dg.ResourceDefinition:
    """Wrap a resource for Dagster's definitions so that runs cannot configure it.

    A run could configure a `ConfigurableResource`: with another server, which then receives the
    engine's token, with options of the JVM, or with another warehouse. Dagster also does not show
    or store how this one was configured.
    """
    if isinstance(resource, DeltaIOManager):
        return resource.as_definition()
    return dg.ResourceDefinition(lambda _: resource, config_schema={})


def _io_manager(deployment: Deployment, engine: Engine) -> DataFrameIOManager:
    """The IO manager, which sends lineage events if the settings say so."""
    if deployment.settings.lineage is None:
        return DataFrameIOManager(deployment, engine)
    # Not at the top: a deployment without lineage does not need the package.
    from backfill_assets.monitoring.lineage import send_events

    return DataFrameIOManager(deployment, engine, send_lineage=send_events)


def delta_io_manager(
    settings: Settings, assets: Iterable[Asset], engine: Engine | None = None
) -> dg.ResourceDefinition:
    """The IO manager of all tables, for your own definitions.

    Args:
        settings: the deployment's settings.
        assets: ordinary assets that it publishes or reads, besides the tables; their metadata is
            that of `publishes`.
        engine: gives the Spark session; as in the settings if not given.

    Raises:
        DeclarationError: an asset cannot be published: it has no metadata of `publishes`, or
            other partitions than days.
    """
    engine = engine or Engine.from_settings(settings)
    return fixed_resource(_io_manager(Deployment(settings), engine).add_assets(assets))


def with_executor(definitions: dg.Definitions) -> dg.Definitions:
    """The definitions of a deployment of its own: each run is one process with one session.

    A JVM for each step costs more than the step.
    """
    from backfill_assets.dagster_ext.executor import one_process_executor

    return dg.Definitions.merge(definitions, dg.Definitions(executor=one_process_executor))


#: The definitions built in this process, by settings.
_defs_by_settings: dict[str, dg.Definitions] = {}


@dg.definitions
def defs() -> dg.Definitions:
    """What `workspace.yaml` loads."""
    settings = load_settings()
    key = settings.model_dump_json()
    # Dagster calls this six times for a run from the command line.
    if key not in _defs_by_settings:
        _defs_by_settings[key] = with_executor(build_defs(settings, automate=True))
    return _defs_by_settings[key]


#: The files of a folder of declarations, each with its template.
DECLARATION_FILES = {
    name: f"{name}.j2" for name in ("sources.py", "tables.py", "sample.py", "test_tables.py")
}
_SCAFFOLD_DAYS = 14


def write_scaffold(folder: Path, files: Mapping[str, str], **values: str) -> dict[str, Any]:
    """Write files from the templates of the scaffold.

    Args:
        folder: where, new or empty; it becomes a package.
        files: the template of each file, by its path in `folder`.
        values: what the templates ask for: `name` is the package that has the declarations.

    Returns:
        `values` with the days of the sample data: `start`, `last`, `end` and their number.
    """
    # The sample's days end yesterday: Dagster's plots start with the newest.
    end = datetime.now(timezone.utc).date()
    days = {
        "days": _SCAFFOLD_DAYS,
        "start": end - timedelta(days=_SCAFFOLD_DAYS),
        "last": end - timedelta(days=1),
        "end": end,
    }
    for path, template in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render_scaffold(template, values | days))
    return values | days


def render_scaffold(template: str, values: Mapping[str, Any]) -> str:
    """A template of the scaffold, filled in."""
    # Not at the top: a code location loads without it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return templates.get_template(template).render(values)


def write_declarations(folder: Path) -> dict[str, Any]:
    """Write a source, a table, their test and sample data into a package that is there.

    Args:
        folder: the new folder in the package; it becomes a package in it.

    Returns:
        What `write_scaffold` returns.

    Raises:
        ValueError: `folder` is in no package, or a name in its path cannot be imported.
    """
    path = folder.resolve()
    # Between the package and the new folder may be others, without an `__init__.py`.
    packages = [parent for parent in path.parents if (parent / "__init__.py").exists()]
    if not packages:
        raise ValueError(f"{folder.parent} is not in a package: no __init__.py there or above")
    root = packages[0]
    while root.parent in packages:
        root = root.parent
    names = path.relative_to(root.parent).parts
    if wrong := [name for name in names if not name.isidentifier() or iskeyword(name)]:
        raise ValueError(f"{wrong[0]} cannot name a Python package: use letters")
    name = ".".join(names)
    values = write_scaffold(folder, DECLARATION_FILES, name=name)
    (folder / "__init__.py").write_text('"""Tables by backfill-assets."""\n')
    return values


class DeclarationsScaffolder(dg.Scaffolder):
    """What `dg scaffold defs backfill_assets.BackfillAssets` writes."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write declarations, and the `defs.yaml` that names them.

        Raises:
            ValueError: as `write_declarations`.
        """
        values = write_declarations(request.target_path)
        attributes = {"tables": f"{values['name']}.tables:TABLES", "start": str(values["start"])}
        dg.scaffold_component(request, attributes)


@dg.scaffold_with(DeclarationsScaffolder)
@dataclass
class BackfillAssets(dg.Component):
    """The assets, checks, jobs, schedules and sensors of a deployment.

    The attributes in `defs.yaml` are settings, named as the fields of `Settings`. They win over the
    environment; what they leave out comes from there. A value may be a template such as
    `{{ env.LANDING }}`.

    Attributes:
        settings: the deployment's settings.
        automate: as of `build_defs`.
    """

    settings: Settings
    automate: bool = False

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The model of the attributes, for Dagster and for editors of `defs.yaml`."""
        return _ATTRIBUTES

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """The component of a `defs.yaml`.

        Raises:
            SettingsError: naming each attribute or variable with a bad value, and what is allowed.
        """
        rendered = _render_templates(
            dict(attributes or {}), context.resolution_context.at_path("attributes")
        )
        # An empty attribute counts as unset, as an empty variable does.
        overrides = {name: value for name, value in rendered.items() if value not in (None, "")}
        automate = overrides.pop("automate", False)
        return cls(load_settings(**overrides), automate)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions with these settings."""
        return build_defs(self.settings, automate=self.automate)


#: The fields of `Settings`, and `automate`, as attributes. Dagster does not validate the values of
#: settings: they may be templates, and `Settings` reports each error in one sentence.
_FIELDS: dict[str, Any] = {
    name: (Annotated[field.rebuild_annotation(), SkipValidation()], None)
    for name, field in Settings.model_fields.items()
}
_FIELDS["automate"] = (bool, False)
_ATTRIBUTES = create_model("BackfillAssetsAttributes", __base__=dg.Model, **_FIELDS)


def _render_templates(value: Any, context: dg.ResolutionContext) -> Any:
    """Render templates in a value, and leave other text as text.

    Dagster would turn any text that looks like a number into a number, such as a Spark setting's
    value.
    """
    if isinstance(value, dict):
        return {
            name: _render_templates(inner, context.at_path(name)) for name, inner in value.items()
        }
    return context.resolve_value(value) if isinstance(value, str) and "{{" in value else value
