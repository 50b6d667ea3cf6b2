"""A deployment: its settings, and what is declared in it; built once and handed on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from backfill_assets.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backfill_assets.calendar.late_data import Policy
    from backfill_assets.tables.code_version import Code
    from backfill_assets.tables.graph import Graph
    from backfill_assets.tables.table import Table
    from backfill_assets.tables.unpartitioned import Lookup


@dataclass(frozen=True)
class Deployment:
    """What commands, jobs, sensors and checks of a deployment have in common.

    The declarations are imported when they are asked for: the help of a command needs none.

    Attributes:
        settings: of the deployment.
    """

    settings: Settings

    @cached_property
    def graph(self) -> Graph:
        """The graph of the tables that the setting `tables` names, checked.

        Raises:
            SettingsError: they cannot be imported, or do not fit together.
        """
        from backfill_assets.tables.graph import load_graph

        return load_graph(self.settings)

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
        """The business day: the date in the time zone of the deployment."""
        return datetime.now(self.settings.zone).date()

    @cached_property
    def code(self) -> Code:
        """The code of the tables, as it was on disk when it was first asked for.

        Raises:
            SettingsError: a module that declares a table has no source file.
        """
        from backfill_assets.tables import code_version

        return code_version.running_code(self.settings)

    @cached_property
    def config_digests(self) -> dict[str, str]:
        """By table, a digest of all settings that decide its rows."""
        from backfill_assets.tables.graph import config_digests

        return config_digests(self.settings)

    @cached_property
    def lookups(self) -> Mapping[str, Lookup]:
        """The lookups of the tables, by name."""
        from backfill_assets.tables.graph import lookups_of

        return lookups_of(self.settings)

    def table_url(self, name: str) -> str:
        """The URL of a table in the warehouse."""
        return self.settings.table(name)
