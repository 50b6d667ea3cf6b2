"""An S3 server of a test's own, on loopback, which keeps its objects as plain files in a folder."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backfill_assets_tests.helpers.process_kills import wait_for

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "backfill_assets")
#: The program, as `make s3-server` builds it, or another that is on the PATH.
PROGRAM = shutil.which("versitygw") or next(
    (str(path) for path in sorted(_CACHE.glob("versitygw-*/versitygw"), reverse=True)), ""
)
MISSING = "there is no S3 server here: make s3-server builds one"
BUCKET = "lake"
#: The folder of the objects, for a process whose folders in it are to be taken for URLs.
FOLDER = "BACKFILL_TEST_S3"


class S3Server:
    """A server that runs.

    Attributes:
        environment: what a client's environment is to have.
        bucket: the folder in which the bucket's objects lie.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.bucket = folder / "objects" / BUCKET
        self.bucket.mkdir(parents=True)
        self.log = folder / "requests.log"
        self.port = port
        self.environment = {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
            FOLDER: str(self.bucket.parent),
        }

    def requests(self, what: str = "") -> Counter[str]:
        """How often each operation was asked for, of objects and prefixes that a pattern fits."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        matches = (re.search(r" s3_(\w+) ", line) for line in lines if re.search(what, line))
        return Counter(match[1] for match in matches if match)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server on a free port, with its objects in a folder, until the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = S3Server(folder, port)
    beside = folder / "attributes"
    beside.mkdir()
    # What a test has put into the folder itself has no ETag.
    attribute_options = ["--sidecar", str(beside), "--default-etag", "0"]
    command = [PROGRAM, "--port", f"127.0.0.1:{port}", "--quiet", "--access-log", str(server.log)]
    keys = {
        "ROOT_ACCESS_KEY": server.environment["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": server.environment["AWS_SECRET_ACCESS_KEY"],
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "posix", *attribute_options, str(server.bucket.parent)],
            env={**os.environ, **keys},
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: process.poll() is not None or _is_listening(port))
        assert process.poll() is None, (folder / "server.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def url_of(path: Path) -> str:
    """A folder as the settings are to name it: by its URL, where it is one of such a server."""
    objects = os.environ.get(FOLDER)
    if objects and path.is_relative_to(objects):
        return f"s3a://{path.relative_to(objects)}"
    return str(path)
