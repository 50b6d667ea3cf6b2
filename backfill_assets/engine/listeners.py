"""Who listens at the engine's port: nobody but the user of this process may be shown its token.

When the engine has died, another user of the machine could take its port before it is restarted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]

from backfill_assets.engine.jars import EngineError

if TYPE_CHECKING:
    from pyspark.sql.connect.client import DefaultChannelBuilder

#: Where Linux tells of sockets.
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: The ways to write this machine that are not `localhost`.
_LOOPBACK = re.compile(r"^sc://(127\.0\.0\.1|\[::1\])(?=[:/]|$)")
#: In the environment of what the engine's deployment starts: where the engine is.
ENGINE_VARIABLE = "BACKFILL_ENGINE"


def port_users(port: int) -> set[int] | None:
    """The ids of the users that listen at a port, at any address; none if the system has no word.

    Args:
        port: a TCP port of this machine.
    """
    # Number, local address, remote one, state (0A listens), queues, timer, retries, user.
    line = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} \S+ 0A \S+ \S+ \S+ +(\d+) ", re.MULTILINE)
    texts = [path.read_text() for path in _SOCKETS if path.exists()]
    return {int(user) for text in texts for user in line.findall(text)} if texts else None


def raise_if_foreign_port(port: int) -> None:
    """Raise unless it is this user who listens at the engine's port.

    Raises:
        ConnectionRefusedError: nobody listens.
        EngineError: somebody else does.
    """
    users = port_users(port)
    if users is None:
        return
    if not users:
        raise ConnectionRefusedError(f"the Spark engine, port {port}, is gone")
    if strangers := users - {os.geteuid()}:
        raise EngineError(
            f"at port {port} of this machine, which is that of the Spark engine, somebody else "
            f"listens (user id {', '.join(map(str, sorted(strangers)))}): the engine's token was not "
            "sent there. Find out who that is; restart the deployment, which takes another port."
        )


def channel_builder(url: str) -> DefaultChannelBuilder:
    """The channel to a Spark Connect server; to our own engine one that looks who is there.

    Args:
        url: of the server.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder

    # Spark's client shows a token without TLS to `localhost` by that name alone.
    channel = DefaultChannelBuilder(_LOOPBACK.sub("sc://localhost", url))
    if channel.endpoint == os.environ.get(ENGINE_VARIABLE):
        port = int(channel.endpoint.rpartition(":")[2])
        channel.add_interceptor(_PortOwnerCheck(port))
    return channel


class _PortOwnerCheck(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Looks before each call: gRPC connects again by itself, and each call carries the token."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _check_and_call(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        raise_if_foreign_port(self._port)
        return call(details, request)

    intercept_unary_unary = _check_and_call
    intercept_unary_stream = _check_and_call
    intercept_stream_unary = _check_and_call
