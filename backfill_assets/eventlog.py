"""Dagster's event log in SQLite, with connections that stay open: a tenth of the time an event.

A range run tells Dagster of every day and check by itself. Dagster's own storage opens, syncs and
closes up to three database connections for each event (15 to 20 ms on a small machine), which
for a year of days was more than Spark's part. On Postgres, Dagster's storage needs no such help.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
    SQLITE_BUSY_TIMEOUT_SECONDS,
    SqliteEventLogStorage,
)
from dagster._serdes import ConfigurableClassData
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool

#: Databases that stay open: the index of all runs, and those of the runs that were used last.
_OPEN = 16


class LocalEventLog(SqliteEventLogStorage):
    """The event log of one machine: `event_log_storage` in `dagster.yaml`.

    Its files are those of Dagster's default storage, in the default place unless `base_dir` is
    configured, so that one can be exchanged for the other at any time. Synchronised are the files
    at checkpoints rather than at each event: an event may be lost with the power, but not with a
    process; and what the tables' commits say, a run that is launched again restores.
    """

    _engines: OrderedDict[str, Engine] | None = None

    @classmethod
    def config_type(cls) -> Any:
        """An optional `base_dir`."""
        return {"base_dir": dg.Field(dg.StringSource, is_required=False)}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> LocalEventLog:
        """The storage that the configuration asks for.

        Raises:
            DagsterInvariantViolationError: neither it nor the environment says where.
        """
        base_dir = config_value.get("base_dir")
        if not base_dir:
            home = os.environ.get("DAGSTER_HOME")
            if not home:
                raise dg.DagsterInvariantViolationError(
                    "The event log needs DAGSTER_HOME, or a base_dir in dagster.yaml."
                )
            base_dir = str(Path(home, "history", "runs"))
        return cls(base_dir=base_dir, inst_data=inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            engine = self._engine(shard)
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.begin() as connection:
                yield connection

    def _engine(self, shard: str) -> Engine:
        if self._engines is None:
            self._engines = OrderedDict()
        if shard not in self._engines:
            engine = create_engine(
                self.conn_string_for_shard(shard),
                poolclass=QueuePool,
                # One at a time has it, as `_db_lock` sees to, but not always the same thread.
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
            )
            event.listen(engine, "connect", _sync_at_checkpoints)
            self._engines[shard] = engine
            while len(self._engines) > _OPEN:
                self._engines.popitem(last=False)[1].dispose()
        self._engines.move_to_end(shard)
        return self._engines[shard]

    def dispose(self) -> None:
        """Close all connections."""
        while self._engines:
            self._engines.popitem()[1].dispose()
        super().dispose()


def _sync_at_checkpoints(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
