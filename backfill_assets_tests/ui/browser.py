"""Debian's Chromium, headless and with a profile of its own, and a folder served on loopback."""

from __future__ import annotations

import gzip
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-quic", "--no-first-run", "--disable-sync",
    "--window-size=1600,1000",
)  # fmt: skip


@contextmanager
def open_chromium() -> Iterator[webdriver.Chrome]:
    """A browser, closed in the end.

    It keeps what a page asked of the network, and what a page wrote to the console:
    `browser.get_log("performance")` and `browser.get_log("browser")`.
    """
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options, Service(str(DRIVER)))
        try:
            yield browser
        finally:
            browser.quit()


class _Compressed(SimpleHTTPRequestHandler):
    """Files as web servers send them: text is compressed."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        kind = self.guess_type(str(path))
        if not path.is_file() or not kind.startswith(("text/", "application/j")):
            super().do_GET()
            return
        sent = gzip.compress(path.read_bytes())
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: object) -> None:
        """Say nothing: the test says what matters."""


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """The address of a folder's files, served on loopback by a thread until the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Compressed, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
