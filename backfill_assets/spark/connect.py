"""Clients of a Spark Connect server: channel, port owner, and whether the server suits.

The owner of the engine's port is checked before each call: when the engine has died, another user
of the machine could take the port and receive the token.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, UnsupportedOperationException
from pyspark.sql import SparkSession

from backfill_assets.runtime_versions import is_secret, may_decide_rows
from backfill_assets.spark.configuration import DELTA_CONF
from backfill_assets.spark.jars import EngineError, delta_coordinate
from backfill_assets.spark.stores import STORES

if TYPE_CHECKING:
    from pyspark.sql.connect.client import DefaultChannelBuilder

#: Linux's lists of open sockets.
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# Linux's netlink interface to sockets, in its own words.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _TCP_LISTEN = 4, 20, 10
_NLMSG_ERROR, _NLMSG_DONE, _NLM_F_REQUEST_DUMP = 2, 3, 0x301
#: The header of a message: size, kind, flags, number, sender.
_HEADER = struct.Struct("=IHHII")
#: Where a message about a socket has its user.
_USER_OFFSET = 80
#: The loopback addresses other than `localhost`.
_LOOPBACK = re.compile(r"^sc://(127\.0\.0\.1|\[::1\])(?=[:/]|$)")
#: Environment variable: the address of the deployment's own engine.
ENGINE_VARIABLE = "BACKFILL_ENGINE"


def port_users(port: int) -> set[int] | None:
    """The ids of the users that listen at a TCP port, at any address; None if unknown.

    The kernel answers in microseconds where its lists take milliseconds to read: a run makes
    hundreds of calls.
    """
    try:
        return _query_listeners(port)
    except (OSError, struct.error):  # not Linux, or a sandbox without netlink
        return _listed_listeners(port)


def _query_listeners(port: int, protocol: int = socket.IPPROTO_TCP) -> set[int]:
    """Ask the kernel by netlink, see `sock_diag(7)`.

    Raises:
        OSError: there is no such interface, or none for the protocol.
    """
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, "no netlink")
    users = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI", family, protocol, 0, 1 << _TCP_LISTEN)
            request += struct.pack("!H", port) + bytes(46)  # addresses and interface: any
            size = _HEADER.size + len(request)
            header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 0, 0)
            kernel.send(header + request)
            kind = None
            while kind != _NLMSG_DONE:
                data = kernel.recv(1 << 16)
                while data and kind != _NLMSG_DONE:
                    size, kind, *_ = _HEADER.unpack_from(data)
                    if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                        (code,) = struct.unpack_from("=i", data, _HEADER.size)
                        if code < 0:
                            raise OSError(-code, os.strerror(-code))
                    elif kind == _SOCK_DIAG_BY_FAMILY:
                        users.add(struct.unpack_from("=I", data, _USER_OFFSET)[0])
                    data = data[(size + 3) & ~3 :]
    return users


def _listed_listeners(port: int) -> set[int] | None:
    # Number, local address, remote address, state (0A listens), queues, timer, retries, user.
    line = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} \S+ 0A \S+ \S+ \S+ +(\d+) ", re.MULTILINE)
    texts = [path.read_text() for path in _SOCKETS if path.exists()]
    return {int(user) for text in texts for user in line.findall(text)} if texts else None


def raise_if_foreign_port(port: int) -> None:
    """Raise if the listener at the engine's port is not this user.

    Raises:
        ConnectionRefusedError: nobody listens.
        EngineError: another user listens.
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
    """The channel to a Spark Connect server; for our own engine it checks the port's owner."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    # Without TLS, Spark's client sends a token only to the name `localhost`.
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
    """Checks before each call: gRPC reconnects by itself, and each call carries the token."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _check_and_call(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        raise_if_foreign_port(self._port)
        return call(details, request)

    intercept_unary_unary = _check_and_call
    intercept_unary_stream = _check_and_call
    intercept_stream_unary = _check_and_call


#: Queries Delta's version; over VALUES, so that it needs no job.
_DELTA_VERSION_QUERY = "SELECT reflect('io.delta.package', 'VERSION') FROM VALUES (1)"
#: Spark's messages when Delta's class or the catalog's class is missing.
_NO_DELTA = re.compile(r"io\.delta\.package not found|Cannot find catalog plugin class")


def hide_token(url: str) -> str:
    """A server's URL without its token."""
    return re.sub(r"token=[^;]+", "token=***", url)


def describe_server(config: Mapping[str, Any]) -> str:
    """The server of a configuration, for messages."""
    return f"the Spark Connect server at SPARK_REMOTE={hide_token(config['spark.remote'])}"


def raise_if_incompatible(
    session: SparkSession, config: Mapping[str, Any], description: str
) -> None:
    """Raise if a session cannot compute what the configuration says, or would give other rows.

    `description` says whose session it is, such as that of a server.

    Raises:
        EngineError: another minor version of Spark or Delta; no Delta, or not its settings; a
            setting that decides rows and that a session cannot change; not Apache Spark.
    """
    _raise_if_other_version(description, "Spark", session.version, "pyspark")
    server_conf = session.conf.getAll
    delta = _delta_version(session, description)
    missing = [] if delta else [f"Delta's jars (spark.jars.packages={delta_coordinate()})"]
    # Another catalog may know Delta's tables; Spark's own does not.
    missing += [
        f"{name}={expected}" for name, expected in DELTA_CONF.items() if not server_conf.get(name)
    ]
    if missing:
        raise EngineError(
            f"{description} has no Delta Lake: it lacks {' and '.join(missing)}. Start it with "
            "them; nothing was written."
        )
    _raise_if_other_version(description, "Delta Lake", delta, "delta-spark")
    differences = []
    for name, expected in config.items():
        actual = server_conf.get(name)
        if may_decide_rows(name) and str(actual).lower() != str(expected).lower():
            detail = "" if is_secret(name) else f" ({actual} and not {expected})"
            differences.append(f"{name}{detail}")
    if differences:
        raise EngineError(
            f"{description} runs with other settings than it must, and a session cannot change "
            f"them: {'; '.join(differences)}. Set them where Spark is started; nothing was written."
        )


def raise_if_unsafe_commits(
    session: SparkSession, description: str, store_names: Collection[str]
) -> None:
    """Raise if a session would overwrite commits of other writers in object stores.

    Raises:
        EngineError: it was started without the log store of one.
    """
    settings = {
        setting: store
        for store in STORES
        if store.name in store_names
        for setting in store.log_store_settings()
    }
    for setting, store in settings.items():
        if session.conf.get(setting, store.default_log_store) == store.log_store:
            continue
        raise EngineError(
            f"{description} would "
            f"overwrite commits of others on {store.schemes[0]}://: {setting} must be "
            f"{store.log_store}, of the jars that backfill-assets jars {store.jars_option} gets. "
            "Set both where Spark is started; nothing was written."
        )


def _raise_if_other_version(server: str, product: str, server_version: str, package: str) -> None:
    client_version = version(package)
    if client_version.split(".")[:2] != server_version.split(".")[:2]:
        raise EngineError(
            f"{server} runs {product} {server_version}, and {package} here is {client_version}: "
            "they may compute other rows. Give the two the same minor version; nothing was written."
        )


def _delta_version(session: SparkSession, description: str) -> str:
    """The version of the server's Delta; empty if it has none.

    Raises:
        EngineError: the server is not Apache Spark's; Sail, for one, has no `reflect`.
    """
    try:
        (row,) = session.sql(_DELTA_VERSION_QUERY).collect()
    except UnsupportedOperationException as error:
        raise EngineError(
            f"{description} does not answer as Apache Spark does ({error}): it may compute other "
            "rows. Start Spark's own server, or unset SPARK_REMOTE; nothing was written."
        ) from None
    except PySparkException as error:
        if _NO_DELTA.search(str(error)):
            return ""
        raise
    return str(row[0])
