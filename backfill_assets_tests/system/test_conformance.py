"""One life on every back end: local disks, S3, Spark Connect, Postgres, a cluster.

The session's own engine leads the life on local disks. Where another engine or other folders are
needed, a pytest session of its own runs `test_a_life`, and its digests are compared. One such
session leads the lives in all object stores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from backfill_assets.postgres import PooledEventLog
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers import object_stores, s3_server
from backfill_assets_tests.helpers import pipeline as pipelines
from backfill_assets_tests.helpers.conformance_life import Digests, conformance_life
from backfill_assets_tests.helpers.connect_server import SESSION_ID, connect_server, run_attached
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.spark_cluster import MASTER, run_cluster

#: Where a nested session writes its digests.
RESULT = "BACKFILL_TEST_DIGESTS"
#: By store, where a nested session leads its life: the variable of the place, and the folder.
LIVES = "BACKFILL_TEST_LIVES_IN_STORES"
IN_STORE = object_stores.PLACE in os.environ
pytestmark = pytest.mark.timeout(1800)
outermost = pytest.mark.skipif(
    IN_STORE or "SPARK_REMOTE" in os.environ or MASTER in os.environ,
    reason="this session runs on such a back end",
)


@pytest.fixture(scope="module")
def expected(engine, spark, tmp_path_factory) -> dict[str, Digests]:
    """The digests on local disks, by the session's own engine."""
    return conformance_life(engine, tmp_path_factory.mktemp("life"))


def run_life(folder: Path, base: Path, **environment: str) -> Any:
    """The digests that `test_a_life` writes in a pytest session of its own.

    Args:
        folder: for the result.
        base: the folder of the session's files.
        environment: names the back end.
    """
    result = folder / "digests.json"
    words = ["-p", "no:cacheprovider", f"--basetemp={base}", f"{__file__}::test_a_life"]
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, **environment, RESULT: str(result)},
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-6000:]
    return json.loads(result.read_text())


@pytest.mark.skipif(RESULT not in os.environ, reason="the tests below lead it on each back end")
def test_a_life(request, tmp_path, monkeypatch):
    digests: Any = {}
    if LIVES in os.environ:
        lives = json.loads(os.environ[LIVES])
        urls = [variable.split("\n")[1] for variable, _ in lives.values()]
        engine = object_stores.engine_of_stores(urls, SMALL, "local[2]")
        for store, (variable, root) in lives.items():
            monkeypatch.setenv(object_stores.PLACE, variable)
            digests[store] = conformance_life(engine, Path(root), only_files=True)
    else:
        digests = conformance_life(request.getfixturevalue("engine"), tmp_path)
    Path(os.environ[RESULT]).write_text(json.dumps(digests))


@outermost
def test_a_life_with_dagsters_storage_in_postgres(
    expected, engine, spark, database, tmp_path, monkeypatch
):
    opened: list[dg.DagsterInstance] = []
    open_instance = pipelines.instance_in

    def record_instance(root: Path) -> dg.DagsterInstance:
        opened.append(open_instance(root))
        return opened[-1]

    monkeypatch.setattr(pipelines, "instance_in", record_instance)
    assert conformance_life(engine, tmp_path) == expected
    (instance,) = opened
    assert isinstance(instance.event_log_storage, PooledEventLog)
    instance.dispose()


@pytest.fixture(scope="module")
def digests_in_stores(tmp_path_factory) -> dict[str, dict[str, Digests]]:
    """By store, the digests of a life in it; without stores that this machine does not have."""
    folder, lives, environment = tmp_path_factory.mktemp("stores"), {}, {}
    with ExitStack() as stack:
        servers = {}
        for store, (program, run_store) in s3_server.STORES.items():
            if program:
                (own_folder := folder / store).mkdir()
                servers[store] = server = stack.enter_context(run_store(own_folder))
                # S3's objects are files in a folder of the server.
                top = getattr(server, "bucket", own_folder)
                variables = {**object_stores.place(top, server.url), **server.environment}
                lives[store] = (variables.pop(object_stores.PLACE), str(top / "inner"))
                environment |= variables
        variables = {**environment, LIVES: json.dumps(lives)}
        digests = run_life(folder, folder / "inner", **variables)
        assert all(server.has_written("inner") for server in servers.values())
    return digests


@outermost
@pytest.mark.parametrize("store", s3_server.STORES)
def test_a_life_in_a_store(store, expected, request):
    program, _ = s3_server.STORES[store]
    if not program:
        pytest.skip(f"{object_stores.MISSING}; {s3_server.MISSING}")
    assert request.getfixturevalue("digests_in_stores")[store] == expected


@pytest.mark.skipif(not IN_STORE, reason="`test_object_storage` runs it on S3")
@pytest.mark.parametrize("local", ["landing", "warehouse"])
def test_a_life_of_which_a_part_is_on_local_disks(engine, spark, tmp_path, local):
    conformance_life(engine, tmp_path, **{local: str(tmp_path / local)})


@outermost
def test_a_life_on_a_connect_server(expected, tmp_path):
    with connect_server(tmp_path, SMALL) as url:
        assert run_life(tmp_path, tmp_path / "inner", SPARK_REMOTE=url) == expected
        # Processes with the same settings share a session.
        assert run_attached(url, SESSION_ID) == run_attached(url, SESSION_ID)


@outermost
@pytest.mark.slow
def test_a_life_on_a_cluster(expected, tmp_path):
    (tmp_path / "cluster").mkdir()
    with run_cluster(tmp_path / "cluster") as machines:
        # UDFs need a Python with their packages on the executors.
        variables = {MASTER: machines.master, "PYSPARK_PYTHON": sys.executable}
        assert run_life(tmp_path, tmp_path / "inner", **variables) == expected
        assert "Registered app backfill_assets" in machines.read_log("master")
