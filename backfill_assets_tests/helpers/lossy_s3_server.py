"""An S3 server in a few lines, which overlooks every condition of a PUT."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_WHEN = "2024-01-01T00:00:00.000Z"
_HTTP_WHEN = "Mon, 01 Jan 2024 00:00:00 GMT"


class _Careless(BaseHTTPRequestHandler):
    """One bucket's objects, by key."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.objects[unquote(urlsplit(self.path).path)] = data
        self.send_answer(200)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
        if "list-type" in parameters:
            self.send_answer(200, self.list_objects(unquote(url.path), parameters))
        else:
            body = self.objects.get(unquote(url.path))
            self.send_answer(200 if body is not None else 404, body or b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def list_objects(self, bucket: str, parameters: dict[str, str]) -> bytes:
        after = parameters.get("start-after", "")
        keys = [key.removeprefix(f"{bucket}/") for key in sorted([*self.objects])]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>1</Size><ETag>0</ETag>"
            f"<LastModified>{_WHEN}</LastModified></Contents>"
            for key in keys
            if key.startswith(parameters.get("prefix", "")) and key > after
        )
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.objects.clear()
        self.send_answer(200, b"<DeleteResult/>")

    def do_DELETE(self) -> None:
        self.objects.pop(unquote(urlsplit(self.path).path), None)
        self.send_answer(204)

    def send_answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", _HTTP_WHEN)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is to be said of each request."""


@contextmanager
def careless_s3() -> Iterator[str]:
    """The URL of such a server, until the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Careless)
    _Careless.objects.clear()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
