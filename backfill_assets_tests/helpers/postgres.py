"""A Postgres server of one's own, on loopback, for Dagster's storage."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import dagster as dg
import psycopg2
import yaml

from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.paths import dagster_yaml, free_port

#: Where Debian and Homebrew put the server's programs.
_PLACES = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin")
#: It refuses to run as root.
_USER = "postgres"
_PASSWORD = "p&ss:w/rd %41'"


def missing_server_reason() -> str | None:
    """Why there can be no server here; none if there can."""
    if _find_programs() is None:
        return "there is no Postgres server: on Debian, apt-get install postgresql"
    return None


def option() -> list[str]:
    """What has pytest keep Dagster's storage in Postgres; nothing where there can be no server."""
    return [] if missing_server_reason() else ["--postgres"]


def _find_programs() -> Path | None:
    initdb = shutil.which("initdb")
    places = [Path(initdb).resolve().parent] if initdb else []
    for place in _PLACES:
        places += sorted(Path("/").glob(place.lstrip("/")))
    return next((each for each in places if (each / "postgres").exists()), None)


@dataclass(frozen=True)
class Database:
    """An empty database, and the variables by which `dagster.yaml` finds it."""

    port: int
    name: str

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "DAGSTER_PG_HOST": "127.0.0.1",
            "DAGSTER_PG_PORT": str(self.port),
            "DAGSTER_PG_USERNAME": _USER,
            "DAGSTER_PG_PASSWORD": _PASSWORD,
            "DAGSTER_PG_DB": self.name,
        }

    def ask(self, query: str, *values: object) -> list[tuple]:
        """The rows that a query gives."""
        with closing(connect(self)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchall() if cursor.description else []


def connect(database: Database) -> psycopg2.extensions.connection:
    """A connection of its own to a database."""
    return _open_connection(database.port, database.name)


def _open_connection(port: int, name: str) -> psycopg2.extensions.connection:
    return psycopg2.connect(
        host="127.0.0.1", port=port, user=_USER, password=_PASSWORD, dbname=name
    )


class Server:
    """A server with data of its own in a temporary folder."""

    def __init__(self, *, durable: bool = False) -> None:
        """Nothing is started yet.

        Args:
            durable: whether a commit waits for the disk, as it does unless turned off.
        """
        programs = _find_programs()
        assert programs is not None, missing_server_reason()
        self.port = free_port()
        self._programs, self._durable = programs, durable
        # Not in a folder of pytest's, which nobody but root may enter.
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._as = {"user": _USER, "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it, and make its data the first time."""
        data = self._folder / "data"
        if not data.exists():
            password = self._folder / "password"
            password.write_text(_PASSWORD)
            if self._as:
                shutil.chown(self._folder, _USER)
                shutil.chown(password, _USER)
            self._run_program(
                "initdb", "-U", _USER, "-A", "scram-sha-256", f"--pwfile={password}", data
            )
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "max_connections": "200",
            **({} if self._durable else {"fsync": "off", "synchronous_commit": "off"}),
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", data, *words],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as,
            )
        while self._process.poll() is None:
            with (
                suppress(psycopg2.OperationalError),
                closing(_open_connection(self.port, "postgres")),
            ):
                return
            time.sleep(0.05)
        raise AssertionError((self._folder / "log").read_text())

    def _run_program(self, program: str, *words: str | Path) -> None:
        subprocess.run(
            [self._programs / program, "-D", words[-1], *words[:-1]],
            cwd=self._folder,
            check=True,
            capture_output=True,
            **self._as,
        )

    def database(self) -> Database:
        """A new one."""
        return _create_database(self.port)

    def stop(self) -> None:
        """End all connections and the server."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Stop it and take its data away."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def instance_in(folder: Path) -> dg.DagsterInstance:
    """An instance without settings, in memory; with `--postgres` in a database of its own."""
    if "DAGSTER_PG_DB" not in os.environ:
        return memory_instance()
    database = _create_database(int(os.environ["DAGSTER_PG_PORT"]))
    home = folder / f"home-{database.name}"
    home.mkdir(parents=True)
    storage = yaml.safe_load(dagster_yaml().read_text())["storage"]
    (home / "dagster.yaml").write_text(yaml.safe_dump({"storage": storage}))
    with patch.dict(os.environ, {**database.environment, "DAGSTER_HOME": str(home)}):
        return dg.DagsterInstance.get()


def _create_database(port: int) -> Database:
    database = Database(port, f"dagster_{uuid4().hex}")
    Database(port, "postgres").ask(f"CREATE DATABASE {database.name}")
    return database


@contextmanager
def run_server(*, durable: bool = False) -> Iterator[Server]:
    """A server that runs until the end."""
    new_server = Server(durable=durable)
    try:
        new_server.start()
        yield new_server
    finally:
        new_server.remove()
