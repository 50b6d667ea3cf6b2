"""Checks of a Spark Connect server: who listens at its port, its versions and its settings.

When the engine has died, another user of the machine could take its port before it is restarted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.spark.configuration import DELTA_CONF
from backfill_assets.spark.jars import EngineError, delta_coordinate
from backfill_assets.spark.known_jars import LOG_STORE, LOG_STORE_CLASS
from backfill_assets.spark_rules import is_secret, may_decide_rows

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
            f"listens (user id {', '.join(map(str, sorted(strangers)))}): the engine's token was "
            "not sent there. Find out who that is; restart the deployment, which takes another "
            "port."
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


#: Asks for Delta's version; of values, so that it needs no job.
_DELTA_VERSION_QUERY = "SELECT reflect('io.delta.package', 'VERSION') FROM VALUES (1)"
#: What Spark says of a class, of Delta's or of the catalog, that it does not have.
_NO_DELTA = re.compile(r"io\.delta\.package not found|Cannot find catalog plugin class")


def hide_token(url: str) -> str:
    """A server's URL without its token."""
    return re.sub(r"token=[^;]+", "token=***", url)


def raise_if_incompatible(session: SparkSession, config: Mapping[str, Any]) -> None:
    """Refuse a server that cannot compute what the configuration says, or would compute otherwise.

    Raises:
        EngineError: another minor version of Spark or Delta; no Delta, or not its settings; a
            setting that decides rows and that the server does not let a session change.
    """
    server = f"the Spark Connect server at SPARK_REMOTE={hide_token(config['spark.remote'])}"
    _raise_if_other_version(server, "Spark", session.version, "pyspark")
    server_conf = session.conf.getAll
    delta = _delta_version(session)
    missing = [] if delta else [f"Delta's jars (spark.jars.packages={delta_coordinate()})"]
    # The catalog may be another one that knows Delta's tables; Spark's own does not.
    missing += [
        f"{name}={expected}" for name, expected in DELTA_CONF.items() if not server_conf.get(name)
    ]
    if missing:
        raise EngineError(
            f"{server} has no Delta Lake: it lacks {' and '.join(missing)}. Start it with them; "
            "nothing was written."
        )
    _raise_if_other_version(server, "Delta Lake", delta, "delta-spark")
    differences = []
    for name, expected in config.items():
        actual = server_conf.get(name)
        if may_decide_rows(name) and str(actual).lower() != str(expected).lower():
            detail = "" if is_secret(name) else f" ({actual} and not {expected})"
            differences.append(f"{name}{detail}")
    if differences:
        raise EngineError(
            f"{server} runs with other settings than it must, and a session cannot change them: "
            f"{'; '.join(differences)}. Set them where the server is started; nothing was written."
        )


def raise_if_unsafe_commits(session: SparkSession, config: Mapping[str, Any]) -> None:
    """Refuse a server that would overwrite the commits of others on S3.

    Raises:
        EngineError: it was started without the setting.
    """
    if session.conf.get(LOG_STORE, "") != LOG_STORE_CLASS:
        raise EngineError(
            f"the Spark Connect server at SPARK_REMOTE={hide_token(config['spark.remote'])} would "
            f"overwrite commits of others on s3a://: {LOG_STORE} must be {LOG_STORE_CLASS}, of the "
            "jar that backfill-assets jars --s3 builds. Set both where the server is started; "
            "nothing was written."
        )


def _raise_if_other_version(server: str, product: str, server_version: str, package: str) -> None:
    client_version = version(package)
    if client_version.split(".")[:2] != server_version.split(".")[:2]:
        raise EngineError(
            f"{server} runs {product} {server_version}, and {package} here is {client_version}: "
            "they may compute other rows. Give the two the same minor version; nothing was written."
        )


def _delta_version(session: SparkSession) -> str:
    """The version of the server's Delta; empty if it has none."""
    try:
        (row,) = session.sql(_DELTA_VERSION_QUERY).collect()
    except PySparkException as error:
        if _NO_DELTA.search(str(error)):
            return ""
        raise
    return str(row[0])
