"""A deployment: its settings, and what is declared in it; built once and handed on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from backfill_assets.calendar.partitions import (
    BusinessDay,
    Window,
    parse_calendar_days,
    parse_days_and_part,
)
from backfill_assets.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import dagster as dg
    from pyspark.sql import SparkSession

    from backfill_assets.calendar.late_data import Policy
    from backfill_assets.tables.code_version import Code
    from backfill_assets.tables.graph import Graph
    from backfill_assets.tables.sources import Source
    from backfill_assets.tables.table import Table
    from backfill_assets.tables.unpartitioned import Lookup

#: Keys of the resources that read and publish the tables, and that start Spark sessions; see
#: `Deployment.resource_key`. They name this package: the definitions may be merged with those of a
#: project that has an `io_manager`.
IO_MANAGER_KEY, ENGINE_KEY = "backfill_assets_io_manager", "backfill_assets_engine"

#: The jobs of ops, by name without a prefix.
_JOBS = (
    *("backfill", "close", "compare_target", "housekeeping", "maintenance", "plan_backfill"),
    *("reconcile", "shadow_backfill", "switch_over", "undo"),
)


@dataclass(frozen=True)
class Deployment:
    """What commands, jobs, sensors and checks of a deployment have in common.

    The declarations are imported when they are asked for: the help of a command needs none.

    Attributes:
        settings: of the deployment.
        declared: its tables and sources; None for those that the setting `tables` names.
        automate: as of `build_defs`.
    """

    settings: Settings
    declared: tuple[object, ...] | None = None
    automate: bool = False

    @cached_property
    def graph(self) -> Graph:
        """The graph of the declared tables, checked.

        Raises:
            SettingsError: they cannot be imported, or do not fit together.
        """
        from backfill_assets.tables.graph import load_graph

        return load_graph(self.settings, self.declared)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name, inputs first."""
        return self.graph.tables

    @cached_property
    def policy(self) -> Policy:
        """The late-data policy, where a source has none of its own."""
        from backfill_assets.calendar.late_data import Policy

        return Policy.from_settings(self.settings)

    @property
    def today(self) -> date:
        """The business day: the date in the time zone of the deployment, with the hour."""
        return BusinessDay.at(datetime.now(self.settings.zone))

    @cached_property
    def by_hour(self) -> bool:
        """Whether tables have parts `HOURS`: the calendar has the day of now as well."""
        return any(table.by_hour for table in self.tables.values())

    def parse_days(self, text: str) -> Window:
        """The days of the calendar that a person requests; raises as `parse_calendar_days`."""
        return parse_calendar_days(text, self.settings, by_hour=self.by_hour)

    def parse_days_and_part(self, text: str) -> tuple[Window | None, str]:
        """The days and the part that a person requests; raises as `parse_calendar_days`."""
        return parse_days_and_part(text, self.settings, by_hour=self.by_hour)

    @cached_property
    def code(self) -> Code:
        """The code of the tables, as it was on disk when it was first asked for.

        Raises:
            SettingsError: a module that declares a table has no source file.
        """
        from backfill_assets.tables import code_version

        module = self.settings.tables.partition(":")[0]
        if self.declared is not None:
            module = [name for table in self.tables.values() for name in table.modules][-1]
        return code_version.running_code(self.settings, self.tables, module)

    @cached_property
    def config_digests(self) -> dict[str, str]:
        """By table, a digest of all settings that decide its rows."""
        return config_digests(self.settings, self.graph)

    @cached_property
    def lookups(self) -> Mapping[str, Lookup]:
        """The lookups of the tables, by name."""
        from backfill_assets.tables.graph import collect_lookups

        return collect_lookups(self.tables, self.settings.tables)

    @property
    def key_prefix(self) -> str:
        """The parts of the prefix of its asset keys, with `/` between them; empty without one."""
        return self.settings.key_prefix or ""

    @property
    def _key_parts(self) -> list[str]:
        return [*filter(None, self.key_prefix.split("/"))]

    def asset_key(self, name: str) -> dg.AssetKey:
        """Dagster's key of a table or page, with its name at the end; of others, that of theirs."""
        import dagster as dg

        from backfill_assets.tables.table import asset_name

        if external := self.graph.external.get(name):
            return dg.AssetKey(external.asset_key or name)
        return dg.AssetKey([*self._key_parts, asset_name(name)])

    def asset_names(self, keys: Iterable[dg.AssetKey]) -> list[str]:
        """The names of those assets that have the prefix; another deployment may have the same."""
        return [key.path[-1] for key in keys if key.path[:-1] == self._key_parts]

    def tables_of(self, keys: Iterable[dg.AssetKey]) -> list[str]:
        """The names of the tables of assets, those of all parts of an asset that has some."""
        assets = self.graph.assets
        return [table.name for name in self.asset_names(keys) for table in assets.get(name, ())]

    def automation_name(self, name: str) -> str:
        """Dagster's name of a job, op, schedule or sensor: with the prefix, too."""
        return "_".join([*self._key_parts, name])

    @property
    def automation_status(self) -> str:
        """The default status of the schedules and sensors that launch runs by themselves."""
        return "RUNNING" if self.automate else "STOPPED"

    def job_of_run(self, run: dg.DagsterRun) -> str:
        """The job of a run without the prefix; empty if it is no job of the deployment."""
        from backfill_assets.calendar.partitions import Grain

        jobs = {*_JOBS, *(grain.job_name for grain in Grain)}
        jobs |= {table.job_name for table in self.tables.values()}
        return next((job for job in jobs if run.job_name == self.automation_name(job)), "")

    def owns_run(self, run: dg.DagsterRun) -> bool:
        """Whether a run has a job or assets of the deployment; without a prefix, any run."""
        return not self._key_parts or bool(
            self.asset_names(run.asset_selection or ()) or self.job_of_run(run)
        )

    def resource_key(self, key: str) -> str:
        """Dagster's key of a resource; the prefix comes last, as a key is a Python identifier."""
        return "_".join([key, *self._key_parts])

    def io_manager(self, resources: Any) -> Any:
        """The IO manager of the tables, of the resources of a run."""
        return getattr(resources, self.resource_key(IO_MANAGER_KEY))

    def spark_session(self, resources: Any) -> SparkSession:
        """The Spark session of the resources of a run."""
        return getattr(resources, self.resource_key(ENGINE_KEY)).spark_session

    def asset_path(self, name: str = "") -> str:
        """The path of a table or page in Dagster's UI; without a name, of what all are under."""
        return "/".join(filter(None, ["assets", self.settings.key_prefix, name]))

    def table_url(self, name: str) -> str:
        """The URL of a table: in the warehouse, unless others write it elsewhere."""
        from backfill_assets.tables.table import asset_name

        if external := self.graph.external.get(name):
            return external.place(self.settings.warehouse)
        return self.settings.table(asset_name(name))


def config_digests(settings: Settings, graph: Graph) -> dict[str, str]:
    """By table, a digest of all settings that decide its rows.

    Settings that a source overrides count with the value of the source.
    """
    digests = {}
    for name, table in graph.tables.items():
        sources = [graph.sources[log] for log in sorted(graph.source_logs(name))]
        source_digests = [
            settings.digest_of(
                *_deciding_settings(settings, table, source), local_zone=source.timezone
            )
            for source in sources
        ]
        digests[name] = _combined_digest(source_digests or [settings.digest_of(table.decided_by)])
    return digests


def _deciding_settings(
    settings: Settings, table: Table, source: Source
) -> tuple[Sequence[str], Mapping[str, Any]]:
    """The settings that decide the rows from one source: names, and overridden values."""
    if not source.arrives_after or "window_days" not in table.decided_by:
        return table.decided_by, source.overrides
    policy = source.policy(settings)
    values = {"window_days": policy.window_days, "arrives_after": policy.arrives_after}
    return [*table.decided_by, "arrives_after"], {**source.overrides, **values}


def _combined_digest(digests: Collection[str]) -> str:
    """The common digest if all are equal, otherwise a digest of all."""
    if len(same := {*digests}) == 1:
        return same.pop()
    return hashlib.sha256(",".join(digests).encode()).hexdigest()[:16]
