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

from backfill_assets.dagster_ext.passwords import Passwords
from backfill_assets.settings import PREFIX

_THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")
_LOOKING = ("GET", "HEAD", "OPTIONS")
#: What a form of any page may send to any server.
_FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
_MEND = f"If that is the address of this server, set {PREFIX}UI_URL to it."


class Door:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, ui_url: str, passwords: Passwords | None = None) -> None:
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
        self._names = dict.fromkeys([*_THIS_MACHINE, _name(host)])
        self._admitted: set[bytes] = set()
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it with a sentence."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        if refusal := self._refusal(asked):
            status, sentence = refusal
            await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send)
        elif not await self._known(asked.headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": 'Basic realm="Dagster", charset="UTF-8"'}
            said = PlainTextResponse("Give your name and password.\n", 401, challenge)
            await said(scope, receive, send)
        else:
            await self._app(scope, receive, _unframed(send))

    def _refusal(self, asked: HTTPConnection) -> tuple[int, str] | None:
        """Status and sentence; none for a request that any page of this server could make."""
        headers = asked.headers
        host = headers.get("host", "").lower()
        if _name(host) not in self._names:
            known = ", ".join(self._names)
            return 403, f"This server is {known}, and not {_shown(host)}. {_MEND}"
        socket = asked.scope["type"] == "websocket"
        looks = not socket and asked.scope["method"] in _LOOKING
        if looks and _is_graphql(asked.scope["path"]) and not _is_playground(asked):
            return 405, "GraphQL is asked by POST: else a link could start something."
        site = headers.get("sec-fetch-site", "none")
        if looks:
            if site in ("same-origin", "none") or _is_followed(headers):
                return None
            return 403, "Another page may lead here by a link, and may not embed this."
        origin = headers.get("origin", "").lower()
        if origin and not self._is_own(origin, host):
            return 403, f"This comes from a page of {_shown(origin)}, a foreign one. {_MEND}"
        if not socket and site not in ("same-origin", "none"):
            return 403, "This comes from a foreign page."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _FORMS:
            return 415, f"What a form of any page can send is refused ({kind}): send JSON."
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page is one of this server; on this machine, of the port that was asked."""
        if origin == self._origin:
            return True
        return _name(host) in _THIS_MACHINE and origin.partition("://")[2] == host

    async def _known(self, authorization: str) -> bool:
        if self._passwords is None:
            return True
        digest = sha256(authorization.encode()).digest()
        if digest in self._admitted:
            return True
        # A password is slow to check, so that it is slow to guess.
        async with self._one_at_a_time:
            if digest not in self._admitted:
                if not await run_in_threadpool(self._passwords.admit, authorization):
                    return False
                self._admitted.add(digest)
        return True


def _name(host: str) -> str:
    """A host without its port."""
    return re.sub(r":\d+$", "", host.lower())


def _is_graphql(path: str) -> bool:
    """Whether a path may lead to GraphQL: to Starlette, one with a line's end behind it does."""
    return any(part.strip() == "graphql" for part in path.split("/"))


def _is_playground(asked: HTTPConnection) -> bool:
    """Whether Dagster answers with a page for typing queries, and executes none."""
    return asked.scope["method"] == "GET" and "text/html" in asked.headers.get("accept", "")


def _is_followed(headers: Mapping[str, str]) -> bool:
    """Whether a browser goes to a page, rather than puts it into another one."""
    sought = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
    return all(headers.get(name) == value for name, value in sought)


def _unframed(send: Send) -> Send:
    """Answers that no other page may show in a frame, where clicks could be lured onto them."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return sent


def _shown(text: str) -> str:
    return ascii(text[:100])
