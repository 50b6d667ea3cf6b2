"""Object stores of a test's own, on loopback, and folders that a process takes for their URLs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets.spark.stores import store_of
from backfill_assets_tests.helpers.process_kills import wait_for

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "backfill_assets")
BUCKET = "lake"
#: A folder, and the URL that it is to be taken for, with a line between.
PLACE = "BACKFILL_TEST_STORE"


def find_program(name: str, pattern: str) -> str:
    """A program on the PATH, or in the cache by a pattern; empty if it is in neither."""
    cached = sorted(CACHE.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    return shutil.which(name) or next(map(str, cached), "")


def place(folder: Path, url: str) -> dict[str, str]:
    """The variable of a process for which a folder is that URL."""
    return {PLACE: f"{folder}\n{url}"}


def url_of(path: Path) -> str:
    """A folder as the settings are to name it: by its URL, if it lies in an object store."""
    if PLACE in os.environ:
        folder, url = os.environ[PLACE].split("\n")
        if path.is_relative_to(folder):
            return f"{url}/{path.relative_to(folder)}"
    return str(path)


@dataclass(frozen=True)
class Emulator:
    """A server that keeps its objects in memory.

    Attributes:
        url: of its bucket or container.
        environment: what a client's environment is to have.
        log: its requests.
    """

    url: str
    environment: Mapping[str, str]
    log: Path

    def has_written(self, what: str) -> bool:
        """Whether something was put into it whose name has a text in it."""
        lines = self.log.read_text().splitlines()
        return any(what in line and ("PUT" in line or "POST" in line) for line in lines)


GCS_PROGRAM = find_program("", "gcs-server-*/gcs-server")
AZURE_PROGRAM = shutil.which("node") and find_program(
    "azurite-blob", "azurite-*/node_modules/.bin/azurite-blob"
)
MISSING = "there is no such store here: make gcs-server azure-server gets them"
#: The account of every Azurite.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def gcs_server(folder: Path) -> Iterator[Emulator]:
    """Google Cloud Storage on a free port, until the end."""
    address = f"127.0.0.1:{free_port()}"
    environment = {"STORAGE_EMULATOR_HOST": f"http://{address}"}
    with run_server([GCS_PROGRAM, address, BUCKET], address, folder / "gcs.log") as log:
        yield Emulator(f"gs://{BUCKET}", environment, log)


@contextmanager
def azure_server(folder: Path) -> Iterator[Emulator]:
    """Azure's blob service on a free port, until the end."""
    address = f"127.0.0.1:{(port := free_port())}"
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    command = [AZURE_PROGRAM, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
    environment = {
        "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        "AZURE_STORAGE_ENDPOINT": f"http://{address}/{_ACCOUNT}",
    }
    with run_server(command, address, folder / "azure.log") as log:
        azure_account(address).create_dir(BUCKET)
        yield Emulator(f"abfs://{BUCKET}@{_ACCOUNT}.dfs.core.windows.net", environment, log)


def azure_account(address: str) -> pafs.AzureFileSystem:
    """Arrow's file system for all containers of an Azurite."""
    location = dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), address)
    schemes = dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), "http")
    return pafs.AzureFileSystem(_ACCOUNT, account_key=_KEY, **location, **schemes)


#: By store, the program of its emulator and what runs it.
EMULATORS = {"google": (GCS_PROGRAM, gcs_server), "azure": (AZURE_PROGRAM, azure_server)}


def engine_of_stores(urls: Sequence[str], conf: Mapping[str, str], master: str) -> Engine:
    """An engine for folders in several stores, each of which the environment describes."""
    settings = load_settings(spark_master=master, spark_conf=dict(conf))
    engine, stores = Engine.from_settings(settings), [*filter(None, map(store_of, urls))]
    config = engine.spark_config
    for store in stores:
        config = store.with_spark_conf(config)
    names = [store.name for store in stores]
    return engine.model_copy(update={"spark_config": config, "stores": names})


@contextmanager
def run_server(command: Sequence[str], address: str, log: Path, **more: str) -> Iterator[Path]:
    """A server until the end, with more variables; what it says is in the log."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **more}
        )
    try:
        wait_for(lambda: process.poll() is not None or is_listening(address))
        assert process.poll() is None, log.read_text()
        yield log
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_listening(address: str) -> bool:
    """Whether somebody listens at `host:port`."""
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
