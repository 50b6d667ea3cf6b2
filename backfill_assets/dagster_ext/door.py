"""The door of the UI: which requests reach Dagster's web server, and which are refused.

Dagster's web server takes mutations from any web page that its user looks at: by links, by forms,
under any host name and by websockets. No page can choose the headers `Host`, `Origin` and
`Sec-Fetch-Site` of its requests, or send JSON to another server unasked: the door goes by these, as
W3C's Fetch Metadata has it. Programs that are no browsers send the first alone, and may come in.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backfill_assets.dagster_ext.passwords import PasswordFile
from backfill_assets.settings import PREFIX

_THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
#: What a form of any page may send to any server.
_FORM_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
_FIX = f"If that is the address of this server, set {PREFIX}UI_URL to it."


class RequestGuard:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, ui_url: str, passwords: PasswordFile | None = None) -> None:
        """Nobody is let in yet.

        Args:
            app: Dagster's web server.
            ui_url: where people find it, besides on this machine.
            passwords: of those who may come in; none lets everybody in who can reach it.
        """
        url = urlsplit(ui_url)
        host = url.netloc.rpartition("@")[2].lower()
        self._app, self._passwords = app, passwords
        self._origin = f"{url.scheme}://{host}"
        self._host_names = dict.fromkeys([*_THIS_MACHINE, _host_name(host)])
        self._accepted_logins: set[bytes] = set()
        self._password_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it with a sentence."""
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
        """Status and sentence; none for a request that any page of this server could make."""
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
        """Whether a page is one of this server; on this machine, of the port that was asked."""
        if origin == self._origin:
            return True
        return _host_name(host) in _THIS_MACHINE and origin.partition("://")[2] == host

    async def _is_authorized(self, authorization: str) -> bool:
        if self._passwords is None:
            return True
        digest = sha256(authorization.encode()).digest()
        if digest in self._accepted_logins:
            return True
        # A password is slow to check, so that it is slow to guess.
        async with self._password_lock:
            if digest not in self._accepted_logins:
                if not await run_in_threadpool(self._passwords.is_valid, authorization):
                    return False
                self._accepted_logins.add(digest)
        return True


def _host_name(host: str) -> str:
    """A host without its port."""
    return re.sub(r":\d+$", "", host.lower())


def _is_graphql(path: str) -> bool:
    """Whether a path may lead to GraphQL: to Starlette, one with a line's end behind it does."""
    return any(part.strip() == "graphql" for part in path.split("/"))


def _is_query_page(request: HTTPConnection) -> bool:
    """Whether Dagster answers with a page for typing queries, and executes none."""
    return request.scope["method"] == "GET" and "text/html" in request.headers.get("accept", "")


def _is_navigation(headers: Mapping[str, str]) -> bool:
    """Whether a browser goes to a page, rather than puts it into another one."""
    expected = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
    return all(headers.get(name) == value for name, value in expected)


def _deny_framing(send: Send) -> Send:
    """Answers that no other page may show in a frame, where clicks could be lured onto them."""

    async def send_unframed(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return send_unframed


def _printable(text: str) -> str:
    return ascii(text[:100])
