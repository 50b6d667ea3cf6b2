"""An HTTP service of JSON for programs of this machine, and the environment to ask it in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

#: Whoever asks such a service asks no proxy.
NO_PROXY: Mapping[str, str] = {"no_proxy": "127.0.0.1"}
_LOOK = 0.05  # seconds between two looks whether it is to end
#: The status and the JSON object of an answer, by the path of a request.
Answer = Callable[[str], tuple[int, Mapping[str, Any]]]


class Loopback(ThreadingHTTPServer):
    """The service."""

    daemon_threads = True

    def __init__(self, answer: Answer, port: int = 0) -> None:
        """One that listens.

        Args:
            answer: is called for each GET, by several threads.
            port: of this machine; any that is free, if it is 0.

        Raises:
            OSError: the port is not free.
        """
        self.answer = answer
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def answer_in_thread(self) -> Iterator[None]:
        """Answer, in a thread, until the block ends."""
        thread = Thread(target=self.serve_forever, args=(_LOOK,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


@contextmanager
def set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of this process that are put back after the block."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Loopback

    def do_GET(self) -> None:
        """Send what the service answers."""
        status, content = self.server.answer(self.path)
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing on the terminal."""
