"""Folders and URLs as Arrow file systems, for what is listed, read or written without Spark.

And where S3 is: Arrow, delta-rs and Spark are told the same, from Amazon's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow.fs as pafs

from backfill_assets.spark.known_jars import LOG_STORE, LOG_STORE_CLASS

_S3_SCHEME = "s3a://"
#: The SDK's own chain: the environment, web identity, profiles, the container, the machine. Before
#: it, keys that the Spark settings of a deployment have.
_CREDENTIALS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)


class S3(NamedTuple):
    """Where S3 is, as Amazon's SDKs are told; credentials are found by each of them.

    Attributes:
        endpoint: URL of a store that is not Amazon's; empty if it is.
        region: empty if it is found otherwise, as in a profile.
    """

    endpoint: str
    region: str

    @classmethod
    def from_environment(cls) -> S3:
        """As `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION` and so on have it."""
        endpoint = _first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        # A store that is not Amazon's has no regions, and its clients want one.
        region = _first_variable("AWS_REGION", "AWS_DEFAULT_REGION") or (
            "us-east-1" if endpoint else ""
        )
        return cls(endpoint, region)

    @property
    def is_plain(self) -> bool:
        """Whether it is spoken to without TLS."""
        return self.endpoint.startswith("http:")

    def with_s3a_conf(self, config: Mapping[str, str]) -> dict[str, str]:
        """Spark's configuration with what Hadoop's S3A is told; there is no secret in that.

        Args:
            config: of a JVM that is to start; it goes first, but not where commits would be lost.
        """
        options = {
            "endpoint": self.endpoint,
            "endpoint.region": self.region,
            "path.style.access": "true" if self.endpoint else "",
            "aws.credentials.provider": ",".join(_CREDENTIALS),
            # Hadoop's newer one remembers what an object was, and an engine lives for weeks: of a
            # file that has been replaced it would go on reading the old one.
            "input.stream.type": "classic",
            # A file of a name that nobody else takes is not looked for before it is written.
            "performance.flags": "create",
        }
        s3a_conf = {
            f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items() if value
        }
        conditional_put = {"spark.hadoop.fs.s3a.create.conditional.enabled": "true"}
        log_store_conf = {LOG_STORE: LOG_STORE_CLASS, **conditional_put}
        return {**s3a_conf, **config, **log_store_conf}


def _first_variable(*names: str) -> str:
    return next(filter(None, map(os.environ.get, names)), "")


def on_s3(url: str) -> bool:
    """Whether a folder lies on S3."""
    return url.startswith(_S3_SCHEME)


def open_store(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a local path or a URL, and the path in it."""
    if on_s3(url):
        # Not by the URL, in which a name with a space or a percent sign would be another.
        return _s3_filesystem(S3.from_environment()), url.removeprefix(_S3_SCHEME)
    return pafs.LocalFileSystem(), url


@cache
def _s3_filesystem(s3: S3) -> pafs.S3FileSystem:
    url = urlsplit(s3.endpoint)
    return pafs.S3FileSystem(
        region=s3.region or None,
        scheme=url.scheme or None,
        endpoint_override=url.netloc or None,
        # A small file is one request, and not the three of an upload in parts.
        allow_delayed_open=True,
    )


def replace_file(folder: str, name: str, content: bytes) -> None:
    """Write a file at once, in place of what was there: nobody reads half of it.

    Args:
        folder: path or URL, made if need be.
        name: of the file.
        content: what it is to hold.

    Raises:
        OSError: it cannot be written.
    """
    filesystem, root = open_store(folder)
    filesystem.create_dir(root, recursive=True)
    # An object is there when it is whole. Two processes that write at once have files of their own.
    new_name = name if on_s3(folder) else f".{uuid4().hex}-{name}"
    with filesystem.open_output_stream(f"{root}/{new_name}") as stream:
        stream.write(content)
    if new_name != name:
        filesystem.move(f"{root}/{new_name}", f"{root}/{name}")


def folder_filesystem(url: str) -> pafs.FileSystem:
    """A folder as a file system of Arrow's own, for reading a table by delta-rs.

    Arrow's threads may still use delta-rs's own, which is Python, when the process ends. Then it
    ends with an abort.
    """
    filesystem, path = open_store(url)
    return pafs.SubTreeFileSystem(path, filesystem)
