"""What a deployment has to itself: its home and its port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets.serve.supervisor import (
    TakenError,
    listen_on_port,
    lock_home,
    make_home_private,
)
from backfill_assets.settings import find_ui_url, load_settings
from backfill_assets_tests.helpers.paths import PROJECT

HOLD = """
import sys, time
from pathlib import Path
from backfill_assets.serve.supervisor import lock_home
with lock_home(Path(sys.argv[1]), 3017):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_home_is_one_deployments_until_it_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TakenError) as caught, lock_home(tmp_path, 3000):
            pass
        assert str(caught.value) == (
            f"DAGSTER_HOME={tmp_path} is that of another deployment: process {holder.pid}, its UI "
            "at http://127.0.0.1:3017. End that one first, or give this one a DAGSTER_HOME of its "
            "own. Nothing was started."
        )
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    # Nor twice in one process; and what is said of it is of now.
    refusal = pytest.raises(TakenError, match=rf"process {os.getpid()}, .*:3000\.")
    with lock_home(tmp_path, 3000), refusal, lock_home(tmp_path, 3001):
        pass
    with lock_home(tmp_path, 3001):
        assert find_ui_url(load_settings(), str(tmp_path)) == "http://127.0.0.1:3001"
    assert find_ui_url(load_settings(), str(tmp_path / "elsewhere")) == "http://127.0.0.1:3000"
    # What is set goes first: people may come by a proxy.
    settings = load_settings(ui_url="https://dagster.example.org")
    assert find_ui_url(settings, str(tmp_path)) == "https://dagster.example.org"


@pytest.mark.parametrize("said", ["", "{", "[]", '{"pid": "x"}', "\0"])
def test_a_lock_that_says_nothing(tmp_path, said):
    with lock_home(tmp_path, 3000):
        (tmp_path / "deployment.lock").write_text(said)
        assert find_ui_url(load_settings(), str(tmp_path)) == "http://127.0.0.1:3000"
        with pytest.raises(TakenError, match=r"of another deployment\. End that one first"):
            lock_home(tmp_path, 3000).__enter__()


def test_a_home_that_cannot_be_locked(tmp_path):
    (tmp_path / "deployment.lock").mkdir()
    with pytest.raises(TakenError, match=r"cannot be locked \(Is a directory\)"):
        lock_home(tmp_path, 3000).__enter__()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_port_is_had_from_the_start():
    port = free_port()
    with listen_on_port(port) as sockets:
        assert {bound_socket.getsockname()[1] for bound_socket in sockets} == {port}
        with pytest.raises(TakenError, match=rf"port {port} of 127\.0\.0\.1 cannot be had"):
            listen_on_port(port).__enter__()
        # Whoever calls meanwhile waits, and is not refused.
        socket.create_connection(("127.0.0.1", port)).close()
    with listen_on_port(port):
        pass


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_nobody_else_is_where_localhost_may_lead_to():
    try:
        other = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("there is no IPv6 here")
    port = other.getsockname()[1]
    with other, pytest.raises(TakenError, match=rf"port {port} of ::1 cannot be had"):
        listen_on_port(port).__enter__()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0o755, 0o700),
        (0o700, 0o700),
        (0o750, 0o700),
        (0o775, 0o770),
        (0o770, 0o770),
        (0o777, 0o770),
    ],
)
def test_a_home_is_closed_to_others(tmp_path, before, after):
    tmp_path.chmod(before)
    message = make_home_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == after
    assert bool(message) == (before != after)
    assert make_home_private(tmp_path) == ""


def test_a_home_that_cannot_be_closed_is_told_of(tmp_path, monkeypatch):
    def refuse_access(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse_access)
    assert make_home_private(tmp_path).startswith(
        "Other users of this machine may read DAGSTER_HOME="
    )
