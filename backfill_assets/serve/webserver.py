"""Dagster's web server behind a guard that refuses other sites' requests and checks passwords.

Dagster's web server accepts mutations from any web page that its user opens: by links, by forms,
under any host name and by websockets. The guard decides by headers that no page can choose (`Host`,
`Origin` and `Sec-Fetch-Site`, W3C's Fetch Metadata), and by JSON, which no page can send to another
server unasked. Programs that are not browsers send only `Host`, and may pass.

`python -m` this module `--workspace FILE` serves on a port of this machine; with `--listening`, on
sockets that the parent process has opened.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import click
import uvicorn
from dagster import DagsterInstance
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.version import __version__
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backfill_assets.dagster_ext import internals
from backfill_assets.serve.supervisor import PasswordFile
from backfill_assets.settings import PREFIX, Settings, load_settings

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
#: The content types that a form of any page may send to any server.
_FORM_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
_FIX = f"If that is the address of this server, set {PREFIX}UI_URL to it."


class RequestGuard:
    """An ASGI application in front of Dagster's web server; without passwords, anyone may pass."""

    def __init__(self, app: ASGIApp, ui_url: str, passwords: PasswordFile | None = None) -> None:
        url = urlsplit(ui_url)
        host = url.netloc.rpartition("@")[2].lower()
        self._app, self._passwords = app, passwords
        self._origin = f"{url.scheme}://{host}"
        self._host_names = dict.fromkeys([*_LOCAL_HOSTS, _host_name(host)])
        self._accepted_logins: set[bytes] = set()
        self._password_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with a sentence."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        if refusal := self._check_request(request):
            status, sentence = refusal
            await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send)
        elif not await self._is_authorized(request.headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": 'Basic realm="Dagster", charset="UTF-8"'}
            response = PlainTextResponse("Give your name and password.\n", 401, challenge)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, _deny_framing(send))

    def _check_request(self, request: HTTPConnection) -> tuple[int, str] | None:
        """Status and sentence of a refusal; None for a request that may pass."""
        headers = request.headers
        host = headers.get("host", "").lower()
        if _host_name(host) not in self._host_names:
            host_names = ", ".join(self._host_names)
            return 403, f"This server is {host_names}, and not {_printable(host)}. {_FIX}"
        is_websocket = request.scope["type"] == "websocket"
        is_read = not is_websocket and request.scope["method"] in _READ_METHODS
        if is_read and _is_graphql(request.scope["path"]) and not _is_query_page(request):
            return 405, "GraphQL is asked by POST: else a link could start something."
        site = headers.get("sec-fetch-site", "none")
        if is_read:
            if site in ("same-origin", "none") or _is_navigation(headers):
                return None
            return 403, "Another page may lead here by a link, and may not embed this."
        origin = headers.get("origin", "").lower()
        if origin and not self._is_own_origin(origin, host):
            return 403, f"This comes from a page of {_printable(origin)}, a foreign one. {_FIX}"
        if not is_websocket and site not in ("same-origin", "none"):
            return 403, "This comes from a foreign page."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _FORM_TYPES:
            return 415, f"What a form of any page can send is refused ({kind}): send JSON."
        return None

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page is of this server; for local hosts, of the same port."""
        if origin == self._origin:
            return True
        return _host_name(host) in _LOCAL_HOSTS and origin.partition("://")[2] == host

    async def _is_authorized(self, authorization: str) -> bool:
        if self._passwords is None:
            return True
        digest = sha256(authorization.encode()).digest()
        if digest in self._accepted_logins:
            return True
        # Checking a password is slow, so that guessing is slow.
        async with self._password_lock:
            if digest not in self._accepted_logins:
                if not await run_in_threadpool(self._passwords.is_valid, authorization):
                    return False
                self._accepted_logins.add(digest)
        return True


def _host_name(host: str) -> str:
    return re.sub(r":\d+$", "", host.lower())


def _is_graphql(path: str) -> bool:
    """Whether a path may lead to GraphQL: Starlette ignores a line break at its end."""
    return any(part.strip() == "graphql" for part in path.split("/"))


def _is_query_page(request: HTTPConnection) -> bool:
    """Whether Dagster answers with the page for writing queries, and executes none."""
    return request.scope["method"] == "GET" and "text/html" in request.headers.get("accept", "")


def _is_navigation(headers: Mapping[str, str]) -> bool:
    """Whether a browser opens a page, rather than embeds it in another one."""
    expected = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
    return all(headers.get(name) == value for name, value in expected)


def _deny_framing(send: Send) -> Send:
    """Forbid other pages to show the answers in a frame, where they could catch clicks."""

    async def send_unframed(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return send_unframed


def _printable(text: str) -> str:
    return ascii(text[:100])


#: As in Dagster's own command: milliseconds for a statement, seconds that a connection is kept,
#: connections beyond the pool; milliseconds between two polls of an open page.
_DATABASE_OPTIONS = (15_000, 3600, 20)
_POLL_MILLISECONDS = 2000
#: Seconds for running requests at shutdown.
_SHUTDOWN_SECONDS = 5


@click.command()
@click.option("--workspace", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--listening", multiple=True, type=int, help="A descriptor; may be given again.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=3000, show_default=True)
def serve(workspace: Path, listening: Sequence[int], host: str, port: int) -> None:
    """Serve the UI of a workspace, behind the door."""
    internals.configure_loggers()
    settings = load_settings()
    with (
        DagsterInstance.get() as instance,
        internals.WorkspaceProcessContext(
            instance,
            version=__version__,
            workspace_load_target=internals.WorkspaceFileTarget([str(workspace)]),
        ) as context,
        contextlib.suppress(KeyboardInterrupt),  # the server has ended as it should by then
    ):
        instance.optimize_for_webserver(*_DATABASE_OPTIONS)
        sockets = [socket.socket(fileno=number) for number in listening]
        where = sockets[0].getsockname() if sockets else (host, port)
        text = f"Dagster's UI is at http://{where[0]}:{where[1]}"
        app = create_app_from_workspace_process_context(
            context, live_data_poll_rate=_POLL_MILLISECONDS, lifespan=partial(_announce_start, text)
        )
        config = uvicorn.Config(
            guard_app(app, settings),
            host=host,
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        uvicorn.Server(config).run(sockets or None)


def guard_app(app: Starlette, settings: Settings) -> RequestGuard:
    """An application behind the guard of a deployment.

    Raises:
        SettingsError: the password file is not valid.
    """
    path = settings.ui_passwords
    return RequestGuard(app, settings.ui_url, PasswordFile.read_file(path) if path else None)


@contextlib.asynccontextmanager
async def _announce_start(text: str, _app: Starlette) -> AsyncIterator[None]:
    """Print a text once the application takes requests: it must be the last line of a start."""
    click.echo(text)
    # As in Dagster's own: the server cancels this wait at shutdown.
    with contextlib.suppress(asyncio.CancelledError):
        yield


if __name__ == "__main__":
    serve()
