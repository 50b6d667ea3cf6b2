"""A plugin of dbt-duckdb: a dbt source is the newest version of a Delta table.

DuckDB's own extension for Delta is downloaded at run time; this needs what is installed.
"""

import os

import pyarrow.dataset as ds
from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import SourceConfig

from backfill_assets_guide.examples.host_project.delta_tables import open_table


class Plugin(BasePlugin):
    """Reads the tables of the warehouse by their names."""

    def load(self, source_config: SourceConfig) -> ds.Dataset:
        """The rows of a source, which DuckDB filters while it reads."""
        return open_table(f"{os.environ['BACKFILL_ASSETS_WAREHOUSE']}/{source_config.identifier}")

    def default_materialization(self) -> str:
        """A view: no row is copied before a model asks for it."""
        return "view"
