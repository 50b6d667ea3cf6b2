"""The door of a whole deployment: Dagster's processes, without an engine."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from backfill_assets.serve.supervisor import lock_home, write_password
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.process_kills import find_processes, is_alive, wait_for

ANNA = {"Authorization": "Basic " + base64.b64encode(b"anna:secret").decode()}
MUTATION = "mutation{__typename}"
_LISTENS = "0A"  # as the kernel writes it


@pytest.fixture
def deployment(tmp_path) -> Iterator[ServedDeployment]:
    deployed = ServedDeployment(
        tmp_path, load_settings(landing=str(tmp_path), warehouse=str(tmp_path))
    )
    write_password(tmp_path / "people", "anna", "secret")
    deployed.environment |= {
        "SPARK_REMOTE": "sc://127.0.0.1:9",  # none is needed
        "BACKFILL_ASSETS_UI_PASSWORDS": str(tmp_path / "people"),
    }
    deployed.environment.pop("BACKFILL_ASSETS_END")
    yield deployed
    deployed.stop()


def request_status(
    deployment: ServedDeployment, path: str, body: bytes | None = None, **headers: str
) -> int:
    """The status of an answer; 0 if nobody answers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(f"http://127.0.0.1:{deployment.port}{path}", body, named)
    try:
        with urlopen(request, timeout=120) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def listening_addresses(pids: list[int]) -> set[tuple[str, int]]:
    """The addresses, as the kernel writes them, and ports that processes listen at."""
    inodes = set()
    for pid in pids:
        for entry in Path("/proc").glob(f"{pid}/fd/*"):
            # It may close what it had open when it was listed.
            with suppress(FileNotFoundError):
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                address, port = fields[1].split(":")
                addresses.add((address, int(port, 16)))
    return addresses


def test_the_door_is_the_only_way_in(deployment):
    deployment.tend()
    wait_for(lambda: request_status(deployment, "/server_info", **ANNA) == 200)
    query = json.dumps({"query": MUTATION}).encode()
    typed = {"Content_Type": "application/json"}
    assert request_status(deployment, "/graphql", query, **typed, **ANNA) == 200
    assert request_status(deployment, "/graphql", query, **typed) == 401
    assert (
        request_status(deployment, "/graphql", query, **typed, **ANNA, Origin="http://evil.example")
        == 403
    )
    assert request_status(deployment, f"/graphql?query={MUTATION}", **ANNA) == 405
    assert request_status(deployment, "/", **ANNA, Host="evil.example") == 403

    # Nothing of the deployment listens elsewhere: neither on another port nor to other machines.
    wait_for(
        lambda: any(
            "dagster._daemon" in command for command in find_processes(deployment.home).values()
        )
    )
    ours = [*find_processes(deployment.home), deployment.process.pid]
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert {port for _, port in listening_addresses(ours)} == {deployment.port}
    assert {address for address, _ in listening_addresses(ours)} <= loopback
    assert deployment.home.stat().st_mode & 0o777 == 0o700
    assert "secret" not in (deployment.home / "deployment.log").read_text()

    # A home whose deployment was killed is free: its parts do not outlive it.
    parts = find_processes(deployment.home)
    assert any("backfill_assets.serve.webserver" in command for command in parts.values())
    deployment.process.kill()
    deployment.process.wait()
    with lock_home(deployment.home, 3000):
        wait_for(lambda: not find_processes(deployment.home))
    wait_for(lambda: not any(is_alive(pid) for pid in parts))
