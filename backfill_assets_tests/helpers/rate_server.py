"""The example's service of rates, made to misbehave: it counts what is asked, and how."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from backfill_assets_guide.examples.customers.rates import RateHandler, RateServer, rate_of

SECRET = "hush-3f9c2b71"
true_rate = rate_of


class WatchedServer(RateServer):
    """The service, which can misbehave.

    Attributes:
        asked: the paths of all requests, also of those that got no answer.
        refused: how many of them were more than the quota.
        behave: is given a path and how often it was asked before, and names a misbehaviour.
    """

    def __init__(self, calls: int = 10_000, seconds: float = 1.0) -> None:
        super().__init__(key=SECRET, calls=calls, seconds=seconds, handler=_Misbehaving)
        self.requested_paths: list[str] = []
        self.most = self.refused = 0
        self.open = self.most_open = 0
        self.attempts: Counter[str] = Counter()
        self.behave: Callable[[str, int], str] = lambda path, before: ""

    def admits(self, path: str) -> bool:
        fine = super().admits(path)
        with self.lock:
            self.attempts[path] += 1
            self.requested_paths.append(path)
            self.most = max(self.most, len(self.times))
            self.refused += not fine
        return fine

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes away while it is answered is gone."""


class _Misbehaving(RateHandler):
    server: WatchedServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def do_GET(self) -> None:  # noqa: N802 - its name there
        server = self.server
        with server.lock:
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        try:
            super().do_GET()
        finally:
            with server.lock:
                server.open -= 1

    def answer(self, day: str, currency: str) -> None:
        rate = rate_of(day, currency)
        response: Any = {"day": day, "currency": currency, "in_euros": str(rate), "source": "ours"}
        how = self.server.behave(self.path, self.server.attempts[self.path] - 1)
        kind, _, value = how.partition(" ")
        if kind == "status":
            status, _, wait = value.partition(" ")
            return self.say(int(status), {}, {"Retry-After": wait} if wait else {})
        if kind == "slow":
            time.sleep(float(value))
        elif kind == "json":
            response = json.loads(value)
        elif kind == "with":
            response |= json.loads(value)
        elif kind == "echo":
            response["source"] = self.headers["Authorization"]
        body = json.dumps(response).encode()
        if kind == "text":
            body = value.encode()
        return self._send(body, kind)

    def _send(self, body: bytes, kind: str) -> None:
        self.head(200, body)
        if kind == "truncated":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif kind == "drip":
            for n in range(len(body)):
                self.wfile.write(body[n : n + 1])
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.wfile.write(body)


@contextmanager
def rate_server(calls: int = 10_000, seconds: float = 1.0) -> Iterator[WatchedServer]:
    """A service that allows so many calls in so many seconds, until the end."""
    with WatchedServer(calls, seconds) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
