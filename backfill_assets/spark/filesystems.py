"""Folders and URLs as Arrow file systems, for files that are listed, read or written without Spark.

And the location of S3: Arrow, delta-rs and Spark all take it from Amazon's environment variables.
"""

import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, Self
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow.fs as pafs

from backfill_assets.spark.known_jars import LOG_STORE, LOG_STORE_CLASS

_S3_SCHEME = "s3a://"
#: The SDK's own chain: environment, web identity, profiles, container, machine. The keys in a
#: deployment's Spark settings come first.
_CREDENTIALS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)


class S3(NamedTuple):
    """The location of S3, for Amazon's SDKs; each SDK finds the credentials by itself.

    Attributes:
        endpoint: URL of another S3 store; empty for Amazon's.
        region: empty if found elsewhere, as in a profile.
    """

    endpoint: str
    region: str

    @classmethod
    def from_environment(cls) -> Self:
        """From `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION` and so on."""
        endpoint = _first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        # Other stores have no regions, but their clients require one.
        region = _first_variable("AWS_REGION", "AWS_DEFAULT_REGION") or (
            "us-east-1" if endpoint else ""
        )
        return cls(endpoint, region)

    @property
    def is_plain(self) -> bool:
        """Whether the connection is without TLS."""
        return self.endpoint.startswith("http:")

    def with_s3a_conf(self, config: Mapping[str, str]) -> dict[str, str]:
        """Spark's configuration with the settings of Hadoop's S3A; they contain no secret.

        Its own settings win, except where commits would be lost.
        """
        options = {
            "endpoint": self.endpoint,
            "endpoint.region": self.region,
            "path.style.access": "true" if self.endpoint else "",
            "aws.credentials.provider": ",".join(_CREDENTIALS),
            # Hadoop's newer stream caches objects, and an engine lives for weeks: it would go on
            # reading the old content of a file that was replaced.
            "input.stream.type": "classic",
            # File names are unique, so no check for an existing file before a write.
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
        # Not from the URL, in which a space or a percent sign would be decoded.
        return _s3_filesystem(S3.from_environment()), url.removeprefix(_S3_SCHEME)
    return pafs.LocalFileSystem(), url


@cache
def _s3_filesystem(s3: S3) -> pafs.S3FileSystem:
    """The filesystem of a location, once for each process; credentials are found by the SDK."""
    url = urlsplit(s3.endpoint)
    return pafs.S3FileSystem(
        region=s3.region or None,
        scheme=url.scheme or None,
        endpoint_override=url.netloc or None,
        # A small file takes one request, not the three of a multipart upload.
        allow_delayed_open=True,
    )


def replace_file(folder: str, name: str, content: bytes) -> None:
    """Write a file atomically, in place of an existing one; a missing folder is created.

    Raises:
        OSError: it cannot be written.
    """
    filesystem, root = open_store(folder)
    filesystem.create_dir(root, recursive=True)
    # An object on S3 appears as a whole. Two local processes that write at once need different
    # temporary files.
    new_name = name if on_s3(folder) else f".{uuid4().hex}-{name}"
    with filesystem.open_output_stream(f"{root}/{new_name}") as stream:
        stream.write(content)
    if new_name != name:
        filesystem.move(f"{root}/{new_name}", f"{root}/{name}")


def folder_filesystem(url: str) -> pafs.FileSystem:
    """A folder as a file system of Arrow's own, for reading a table by delta-rs.

    Arrow's threads may still use delta-rs's own file system, which is in Python, when the process
    exits; the process then aborts.
    """
    filesystem, path = open_store(url)
    return pafs.SubTreeFileSystem(path, filesystem)
