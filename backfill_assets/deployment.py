"""A deployment: its settings, and what is declared in it; built once and handed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from backfill_assets.calendar.late_data import Policy
from backfill_assets.settings import Settings
from backfill_assets.tables import graph as declared
from backfill_assets.tables.table import Table
from backfill_assets.tables.unpartitioned import Lookup


@dataclass(frozen=True)
class Deployment:
    """What commands, jobs, sensors and checks of a deployment have in common.

    Attributes:
        settings: of the deployment.
    """

    settings: Settings

    @cached_property
    def graph(self) -> declared.Graph:
        """The graph of the tables that the setting `tables` names, checked.

        Raises:
            SettingsError: they cannot be imported, or do not fit together.
        """
        return declared.load_graph(self.settings)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name, inputs first."""
        return self.graph.tables

    @cached_property
    def policy(self) -> Policy:
        """The late-data policy, where a source has none of its own."""
        return Policy.from_settings(self.settings)

    @cached_property
    def config_digests(self) -> dict[str, str]:
        """By table, a digest of all settings that decide its rows."""
        return declared.config_digests(self.settings)

    @cached_property
    def lookups(self) -> Mapping[str, Lookup]:
        """The lookups of the tables, by name."""
        return declared.lookups_of(self.settings)

    def table_url(self, name: str) -> str:
        """The URL of a table in the warehouse."""
        return self.settings.table(name)
