"""A service of exchange rates on this machine, to try `fact_orders_eur` with.

It answers `/rates/<day>/<currency>` for whoever sends its key, and holds a quota. The rates are
made up: the same day and currency have the same rate always.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def rate_of(day: str, currency: str) -> Decimal:
    """The rate that the service has for a day: between 0.5 and 0.9."""
    number = sum(map(ord, day + currency)) + int(day[-2:]) * 37
    return Decimal(5000 + number % 4000) / 10000


class RateHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: RateServer

    def do_GET(self) -> None:
        """Answer with the rate, or say why not."""
        is_within = self.server.admits(self.path)
        match = re.fullmatch(r"/rates/(\d{4}-\d\d-\d\d)/(\w+)", self.path)
        if self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.say(401, {"error": "this is not the key"})
        elif not is_within:
            wait = {"Retry-After": self.server.retry_after}
            self.say(429, {"error": "the quota is used up"}, wait)
        elif not match:
            self.say(404, {"error": "there is /rates/<day>/<currency>"})
        else:
            self.answer(*match.groups())

    def answer(self, day: str, currency: str) -> None:
        """Answer with the rate."""
        self.say(200, {"day": day, "currency": currency, "in_euros": str(rate_of(day, currency))})

    def say(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.head(status, body, headers)
        self.wfile.write(body)

    def head(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send what comes before a body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()


class RateServer(ThreadingHTTPServer):
    """The service, for programs of this machine only.

    Attributes:
        key: whoever asks must send it.
        calls: so many requests are answered
        seconds: in any such time.
        retry_after: what a request beyond that is told, in seconds.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        port: int = 0,
        *,
        key: str,
        calls: int = 10,
        seconds: float = 1.0,
        handler: type[RateHandler] = RateHandler,
    ) -> None:
        """Listen at a port of this machine; at any that is free, if it is 0."""
        super().__init__(("127.0.0.1", port), handler)
        self.key, self.calls, self.seconds, self.retry_after = key, calls, seconds, "1"
        self.lock = threading.Lock()
        self.times: deque[float] = deque()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def admits(self, path: str) -> bool:
        """Whether a request is within the quota, of which it then takes a part."""
        with self.lock:
            now = time.monotonic()
            while self.times and self.times[0] <= now - self.seconds:
                self.times.popleft()
            if is_admitted := len(self.times) < self.calls:
                self.times.append(now)
            return is_admitted


def main() -> None:
    """Serve until Ctrl-C, with the key that the variable `RATES_KEY` has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--calls", type=int, default=10, help="so many requests a second")
    options = parser.parse_args()
    key = os.environ.get("RATES_KEY")
    if not key:
        parser.error("RATES_KEY is not set: export a key of your own, for the service and the runs")
    try:
        server = RateServer(options.port, key=key, calls=options.calls)
    except OSError as error:
        parser.error(f"port {options.port} of 127.0.0.1 is not free ({error.strerror}): --port N")
    with server:
        print(f"{options.calls} requests a second at {server.url}", file=sys.stderr)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
