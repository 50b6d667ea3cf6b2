"""An S3 server of a test's own, on loopback, which keeps its objects as plain files in a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from backfill_assets_tests.helpers.object_stores import (
    BUCKET,
    EMULATORS,
    Emulator,
    find_program,
    free_port,
    place,
    run_server,
)

#: The program, as `make s3-server` builds it, or another that is on the PATH.
PROGRAM = find_program("versitygw", "versitygw-*/versitygw")
MISSING = "there is no S3 server here: make s3-server builds one"


class S3Server:
    """A server that runs.

    Attributes:
        url: of its bucket.
        environment: what a client's environment is to have.
        bucket: the folder in which the bucket's objects lie.
    """

    url = f"s3a://{BUCKET}"

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
            **place(self.bucket, self.url),
        }

    def has_written(self, what: str) -> bool:
        """Whether an object was put into it whose name a pattern fits."""
        return bool(self.requests(what)["PutObject"])

    def requests(self, what: str = "") -> Counter[str]:
        """How often each operation was asked for, of objects and prefixes that a pattern fits."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        matches = (re.search(r" s3_(\w+) ", line) for line in lines if re.search(what, line))
        return Counter(match[1] for match in matches if match)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server on a free port, with its objects in a folder, until the end."""
    server = S3Server(folder, free_port())
    beside = folder / "attributes"
    beside.mkdir()
    # What a test has put into the folder itself has no ETag.
    attribute_options = ["--sidecar", str(beside), "--default-etag", "0"]
    address = f"127.0.0.1:{server.port}"
    command = [PROGRAM, "--port", address, "--quiet", "--access-log", str(server.log)]
    keys = {
        "ROOT_ACCESS_KEY": server.environment["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": server.environment["AWS_SECRET_ACCESS_KEY"],
    }
    command += ["posix", *attribute_options, str(server.bucket.parent)]
    with run_server(command, address, folder / "server.log", **keys):
        yield server


#: By name, the program of a store and what runs it.
STORES: dict[str, tuple[str, Callable[[Path], AbstractContextManager[S3Server | Emulator]]]] = {
    "s3": (PROGRAM, s3_server),
    **EMULATORS,
}
