"""Nobody but the user of a run may be shown the engine's token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backfill_assets.spark import connect
from backfill_assets.spark.connect import (
    ENGINE_VARIABLE,
    channel_builder,
    port_users,
    raise_if_foreign_port,
)
from backfill_assets.spark.jars import EngineError
from backfill_assets_tests.helpers.paths import PROJECT

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start what another user listens with"
)

#: What listens as another user, answers as a gRPC server does, and tells of all that it is sent.
STRANGER = """
import os, socket, sys
listening = socket.create_server(("127.0.0.1", 0))
if len(sys.argv) > 1:
    # The user of a socket is the one that made it.
    listening.close()
    os.setuid(int(sys.argv[1]))
    listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    connection, _ = listening.accept()
    connection.sendall(bytes(3) + b"\\x04" + bytes(5))
    while got := connection.recv(4096):
        print(got, flush=True)
"""


@contextmanager
def stranger(*user: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-c", STRANGER, *map(str, user)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()


def test_who_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port_users(port) == {os.geteuid()}
        raise_if_foreign_port(port)
        with socket.create_connection(("127.0.0.1", port)):  # is no listener of its own port
            assert port_users(port) == {os.geteuid()}
    assert port_users(port) == set()
    with pytest.raises(ConnectionRefusedError, match=f"port {port}, is gone"):
        raise_if_foreign_port(port)


@pytest.mark.parametrize("address", ["::1", "::", "0.0.0.0"])
def test_who_listens_elsewhere(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("no such address here")
    with server:
        assert port_users(server.getsockname()[1]) == {os.geteuid()}


def test_lists_are_read_where_the_kernel_does_not_answer(monkeypatch):
    def refuse(_port: int) -> set[int]:
        raise PermissionError

    monkeypatch.setattr(connect, "_query_listeners", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert port_users(server.getsockname()[1]) == {os.geteuid()}
    assert port_users(1) == set()


def test_a_protocol_that_the_kernel_has_no_answer_for():
    """Its refusal is in the message that ends the list."""
    unknown = 99
    with pytest.raises(OSError, match="No such file or directory"):
        connect._query_listeners(1, unknown)


def test_where_the_system_does_not_tell_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.delattr(socket, "AF_NETLINK")
    monkeypatch.setattr(connect, "_SOCKETS", (tmp_path / "tcp",))
    assert port_users(1) is None
    raise_if_foreign_port(1)


@needs_root
def test_a_stranger_at_the_engines_port_is_not_sent_the_token(monkeypatch):
    with stranger(NOBODY) as (port, process):
        assert port_users(port) == {NOBODY}
        url = f"sc://localhost:{port}/;session_id=b1c7a7a2-6b2f-4cf5-8a59-2a5c2d4c6f11"
        monkeypatch.setenv(TOKEN, "hush-hush")
        monkeypatch.setenv(ENGINE_VARIABLE, f"localhost:{port}")
        with channel_builder(url).toChannel() as channel:
            calls = [
                channel.unary_unary("/spark.connect.SparkConnectService/Config"),
                channel.unary_stream("/spark.connect.SparkConnectService/ExecutePlan"),
                channel.stream_unary("/spark.connect.SparkConnectService/AddArtifacts"),
            ]
            for call in calls:
                argument = iter([b"x"]) if call is calls[2] else b"x"
                with pytest.raises(EngineError, match=f"user id {NOBODY}.*token was not sent"):
                    answer = call(argument, timeout=20)
                    next(iter(answer))
        # And as a run attaches: in a process of its own, as this one may have a session.
        code = (
            "from backfill_assets.spark.session import Engine\n"
            "from backfill_assets.settings import load_settings\n"
            "Engine.from_settings(load_settings()).spark_session\n"
        )
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, "SPARK_REMOTE": url},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"user id {NOBODY}" in result.stderr.splitlines()[-1]
        process.kill()
        assert "hush" not in process.stdout.read()


def test_a_server_of_somebody_else_that_the_user_chose_is_taken(monkeypatch):
    """A service account's, say: it is not the engine of a deployment."""
    monkeypatch.setenv(ENGINE_VARIABLE, "localhost:15002")
    assert channel_builder("sc://localhost:15003")._interceptors == []
    assert channel_builder("sc://spark.example.org:15002")._interceptors == []
    assert len(channel_builder("sc://localhost:15002")._interceptors) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_token_is_shown_on_this_machine_without_tls(host):
    channel = channel_builder(f"sc://{host}:15002/;token=secret")
    assert channel.endpoint == "localhost:15002"


def test_another_machine_is_called_by_its_own_name():
    assert channel_builder("sc://127.0.0.1.example:15002").endpoint == "127.0.0.1.example:15002"
