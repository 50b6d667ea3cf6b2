"""A service of rates on this machine: it holds its quota, wants its secret, and misbehaves."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "hush-3f9c2b71"


def true_rate(day: str, currency: str) -> Decimal:
    """The rate that the service has for a day."""
    number = sum(map(ord, day + currency)) + int(day[-2:]) * 37
    return Decimal(5000 + number % 4000) / 10000


class RateServer(ThreadingHTTPServer):
    """Answers `/rates/<day>/<currency>`.

    Attributes:
        asked: the paths of all requests, also of those that got no answer.
        refused: how many of them were more than the quota.
        behave: is given a path and how often it was asked before, and names a misbehaviour.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, calls: int = 10_000, seconds: float = 1.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls, self.seconds = calls, seconds
        self.lock = threading.Lock()
        self.asked: list[str] = []
        self.times: deque[float] = deque()
        self.most = self.refused = 0
        self.open = self.most_open = 0
        self.again: Counter[str] = Counter()
        self.retry_after: str | None = None
        self.behave: Callable[[str, int], str] = lambda path, before: ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def counts(self, path: str) -> tuple[bool, int]:
        """Whether a request is within the quota, and how often it came before."""
        with self.lock:
            now = time.monotonic()
            while self.times and self.times[0] <= now - self.seconds:
                self.times.popleft()
            before = self.again[path]
            self.again[path] += 1
            self.asked.append(path)
            fine = len(self.times) < self.calls
            if fine:
                self.times.append(now)
                self.most = max(self.most, len(self.times))
            else:
                self.refused += 1
            return fine, before

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes away while it is answered is gone."""


class _Handler(BaseHTTPRequestHandler):
    server: RateServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        try:
            self._answer()
        finally:
            with server.lock:
                server.open -= 1

    def _answer(self) -> None:
        fine, before = self.server.counts(self.path)
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            return self._say(401, {"error": "who are you?"})
        if not fine:
            return self._say(429, {}, {"Retry-After": self.server.retry_after or "1"})
        found = re.fullmatch(r"/rates/([-\d]+)/(\w+)", self.path)
        if not found:
            return self._say(404, {})
        day, currency = found.groups()
        rate = true_rate(day, currency)
        said: Any = {"day": day, "currency": currency, "in_euros": str(rate), "source": "ours"}
        how = self.server.behave(self.path, before)
        kind, _, value = how.partition(" ")
        if kind == "status":
            status, _, wait = value.partition(" ")
            return self._say(int(status), {}, {"Retry-After": wait} if wait else {})
        if kind == "slow":
            time.sleep(float(value))
        elif kind == "json":
            said = json.loads(value)
        elif kind == "with":
            said |= json.loads(value)
        elif kind == "echo":
            said["source"] = self.headers["Authorization"]
        body = json.dumps(said).encode()
        if kind == "text":
            body = value.encode()
        return self._send(200, body, kind)

    def _say(self, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(said).encode(), "", headers)

    def _send(
        self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
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
def rate_server(calls: int = 10_000, seconds: float = 1.0) -> Iterator[RateServer]:
    """A service that allows so many calls in so many seconds, until the end."""
    with RateServer(calls, seconds) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    with RateServer(calls=20) as by_hand:
        print(f"export RATES_URL={by_hand.url} RATES_KEY={SECRET}", flush=True)
        by_hand.serve_forever()
