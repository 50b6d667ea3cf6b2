"""Dagster's storage in Postgres, with pooled connections and batches of events.

Dagster's own opens a connection for each query, three for a check's event: each starts a server
process and computes a password digest of some thousand rounds. For a year of days that took longer
than Spark. Here a process keeps one connection, and a batch of events is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import EventLogEntry
from dagster_postgres import (
    DagsterPostgresStorage,
    PostgresEventLogStorage,
    PostgresRunStorage,
    PostgresScheduleStorage,
)
from dagster_postgres.auth import PgTokenProvider
from dagster_postgres.utils import (
    create_pg_engine,
    get_token_provider_from_config,
    pg_url_from_config,
)
from sqlalchemy import make_url
from sqlalchemy.engine import Engine

from backfill_assets.dagster_ext.eventlog import BatchedEventLog, RunStorageWithGaps

if TYPE_CHECKING:
    from backfill_assets.dagster_ext.internals import ConfigurableClassData

#: Further connections that the threads of a process may open for a short time.
_MAX_OVERFLOW = 20
#: SQLAlchemy 2.1's default driver for `postgresql` is not the one that Dagster uses.
_DRIVER = "postgresql+psycopg2"


class PooledEventLog(BatchedEventLog, PostgresEventLogStorage):
    """The event log of `PostgresStorage`."""

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store all of one run's events about assets and checks, or none of them."""
        with self.index_transaction() as connection:
            self._store_events(connection, events)

    def dispose(self) -> None:
        """Stop watching events, and close the pool that runs and schedules use as well."""
        super().dispose()
        self._engine.dispose()


class PooledRunStorage(RunStorageWithGaps, PostgresRunStorage):
    """The runs of `PostgresStorage`."""


class PostgresStorage(DagsterPostgresStorage):
    """All of Dagster's storages: `storage` in `dagster.yaml`, with Dagster's own configuration.

    Its tables are those of Dagster's own storage, so each can replace the other.
    """

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: ConfigurableClassData | None = None,
        token_provider: PgTokenProvider | None = None,
    ) -> None:
        url = _with_driver(postgres_url)
        self.postgres_url = url
        self.should_autocreate_tables = should_autocreate_tables
        self._inst_data = inst_data
        options: dict[str, Any] = {"token_provider": token_provider}
        self._run_storage = PooledRunStorage(url, should_autocreate_tables, **options)
        self._event_log_storage = PooledEventLog(url, should_autocreate_tables, **options)
        self._schedule_storage = PostgresScheduleStorage(url, should_autocreate_tables, **options)
        engine = _create_engine(url, token_provider)
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage._engine = engine
        super(DagsterPostgresStorage, self).__init__()  # the parent's would open them again

    @classmethod
    def from_config_value(
        cls,
        inst_data: ConfigurableClassData | None,
        config_value: Mapping[str, Any],
    ) -> PostgresStorage:
        """The storage of the configuration."""
        return cls(
            pg_url_from_config(config_value),
            config_value.get("should_autocreate_tables", True),
            inst_data,
            get_token_provider_from_config(config_value),
        )


def _with_driver(url: str) -> str:
    """The URL with Dagster's driver, unless it names one."""
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername=_DRIVER)
    return parsed.render_as_string(hide_password=False)


def _create_engine(url: str, token_provider: PgTokenProvider | None) -> Engine:
    """The engine that the run, event log and schedule storages of a process share."""
    return create_pg_engine(
        url,
        token_provider,
        isolation_level="AUTOCOMMIT",
        pool_size=1,
        max_overflow=_MAX_OVERFLOW,
        # Reconnect after a restart of the server, at the cost of one more query each.
        pool_pre_ping=True,
    )
