"""Object stores: what Hadoop, delta-rs and Arrow are told of each, from the environment.

Each client finds the credentials by itself, where the store's own tools look for them.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from dagster_deltalake.config import ClientConfig, GcsConfig, S3Config

from backfill_assets.spark.known_jars import JavaSource


class Packages(NamedTuple):
    """Maven coordinates of Hadoop's client, and what of their dependencies is left out.

    Attributes:
        coordinates: the client first.
        excludes: of Spark's distribution, or of no use here.
        classifier: of jars that contain their dependencies.
    """

    coordinates: tuple[str, ...]
    excludes: str = ""
    classifier: str = ""


@dataclass(frozen=True)
class ObjectStore(ABC):
    """A store and its location.

    Attributes:
        name: as messages name it.
        scheme: of its URLs, for Spark.
        packages: Hadoop's client.
        jars_option: the option of `backfill-assets jars` for its jars.
        log_store: the class by which Delta's commits do not overwrite each other.
        default_log_store: the class that Delta takes, if it is known to do so.
        log_store_source: its source, if it is of this package.
    """

    name: ClassVar[str]
    scheme: ClassVar[str]
    jars_option: ClassVar[str]
    packages: ClassVar[Packages]
    log_store: ClassVar[str]
    default_log_store: ClassVar[str] = ""
    log_store_source: ClassVar[JavaSource | None] = None

    @classmethod
    @abstractmethod
    def from_environment(cls) -> Self:
        """The store, with its location from the environment."""

    @abstractmethod
    def hadoop_conf(self) -> dict[str, str]:
        """Settings of Hadoop's client; they contain no secret. Empty ones are not set."""

    @abstractmethod
    def delta_rs_config(self) -> tuple[S3Config | GcsConfig, ClientConfig]:
        """The configuration of delta-rs, for dagster-deltalake."""

    @abstractmethod
    def create_filesystem(self) -> pafs.FileSystem:
        """A file system of Arrow."""

    @classmethod
    def log_store_setting(cls) -> str:
        """Spark's setting for the log store."""
        return f"spark.delta.logStore.{cls.scheme}.impl"

    @classmethod
    def commit_conf(cls) -> dict[str, str]:
        """Settings of Spark without which commits would be lost."""
        return {cls.log_store_setting(): cls.log_store}

    def with_spark_conf(self, config: Mapping[str, str]) -> dict[str, str]:
        """Spark's configuration with the settings of the store; its own win, except for commits."""
        store_conf = {f"spark.hadoop.{k}": v for k, v in self.hadoop_conf().items() if v}
        return {**store_conf, **config, **self.commit_conf()}


@dataclass(frozen=True)
class S3(ObjectStore):
    """Amazon's S3, or a store that speaks its protocol.

    Attributes:
        endpoint: URL of another store than Amazon's; empty for Amazon's.
        region: empty if found elsewhere, as in a profile.
    """

    endpoint: str
    region: str
    name = "S3"
    scheme = "s3a"
    jars_option = "--s3"
    # Hadoop itself requires all of Amazon's SDK in one jar of 690 MB; the modules used have 13 MB.
    packages = Packages(
        (
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "software.amazon.awssdk:s3:2.35.4",
            "software.amazon.awssdk:s3-transfer-manager:2.35.4",
            "software.amazon.awssdk:sts:2.35.4",
            "software.amazon.awssdk:sso:2.35.4",
            "software.amazon.eventstream:eventstream:1.0.1",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
            "org.reactivestreams:reactive-streams:1.0.4",
        ),
        "software.amazon.awssdk:bundle,org.wildfly*:*,io.netty:*,org.apache.httpcomponents*:*,"
        "commons*:*,org.slf4j:*",
    )
    log_store = "backfill_assets.ConditionalLogStore"
    log_store_source = JavaSource("ConditionalLogStore.java", "conditional-log-store.jar")
    #: The SDK's own chain: environment, web identity, profiles, container, machine. The keys in a
    #: deployment's Spark settings come first.
    _credentials: ClassVar[tuple[str, ...]] = (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    )

    @classmethod
    def from_environment(cls) -> Self:
        """From `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION` and so on."""
        endpoint = _first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        # Other stores have no regions, but their clients require one.
        region = _first_variable("AWS_REGION", "AWS_DEFAULT_REGION") or (
            "us-east-1" if endpoint else ""
        )
        return cls(endpoint, region)

    def hadoop_conf(self) -> dict[str, str]:
        """Settings of S3A."""
        options = {
            "endpoint": self.endpoint,
            "endpoint.region": self.region,
            "path.style.access": "true" if self.endpoint else "",
            "aws.credentials.provider": ",".join(self._credentials),
            # Hadoop's newer stream caches objects, and an engine lives for weeks: it would go on
            # reading the old content of a file that was replaced.
            "input.stream.type": "classic",
            # File names are unique, so no check for an existing file before a write.
            "performance.flags": "create",
        }
        return {f"fs.s3a.{name}": value for name, value in options.items()}

    @classmethod
    def commit_conf(cls) -> dict[str, str]:
        """The log store, and what its conditional PUT needs."""
        return {
            **super().commit_conf(),
            "spark.hadoop.fs.s3a.create.conditional.enabled": "true",
        }

    def delta_rs_config(self) -> tuple[S3Config, ClientConfig]:
        """The location; delta-rs reads Amazon's variables itself, but not all of them."""
        config = S3Config(endpoint=self.endpoint or None, region=self.region or None)
        return config, _client_config(self.endpoint)

    def create_filesystem(self) -> pafs.FileSystem:
        """Arrow's `S3FileSystem`."""
        url = urlsplit(self.endpoint)
        return pafs.S3FileSystem(
            region=self.region or None,
            scheme=url.scheme or None,
            endpoint_override=url.netloc or None,
            # A small file takes one request, not the three of a multipart upload.
            allow_delayed_open=True,
        )


@dataclass(frozen=True)
class GoogleStorage(ObjectStore):
    """Google Cloud Storage.

    Attributes:
        emulator: URL of an emulator, which takes no credentials; empty for Google's.
    """

    emulator: str
    name = "Google Cloud Storage"
    scheme = "gs"
    jars_option = "--gs"
    packages = Packages(("com.google.cloud.bigdataoss:gcs-connector:4.0.4",), classifier="shaded")
    # An upload on condition that the object is not there.
    log_store = default_log_store = "io.delta.storage.GCSLogStore"

    @classmethod
    def from_environment(cls) -> Self:
        """From `STORAGE_EMULATOR_HOST`, as Google's own clients."""
        emulator = _first_variable("STORAGE_EMULATOR_HOST")
        return cls(emulator if "://" in emulator or not emulator else f"http://{emulator}")

    def hadoop_conf(self) -> dict[str, str]:
        """Settings of Google's connector, which stands for Hadoop's: that knows no emulator."""
        return {
            "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            "fs.gs.auth.type": "UNAUTHENTICATED" if self.emulator else "APPLICATION_DEFAULT",
            # Hadoop's own defaults are for its own client, and Google's cannot read this one (64m).
            "fs.gs.block.size": str(64 << 20),
            # Emulators have no request that moves an object.
            "fs.gs.operation.move.enable": "false" if self.emulator else "",
            "fs.gs.storage.root.url": self.emulator and f"{self.emulator}/",
        }

    def delta_rs_config(self) -> tuple[GcsConfig, ClientConfig]:
        """The key of an emulator; else, delta-rs finds Google's application default credentials."""
        anonymous_key = {
            "gcs_base_url": self.emulator,
            "disable_oauth": True,
            **dict.fromkeys(("client_email", "private_key", "private_key_id"), ""),
        }
        key = json.dumps(anonymous_key) if self.emulator else None
        return GcsConfig(service_account_key=key), _client_config(self.emulator)

    def create_filesystem(self) -> pafs.FileSystem:
        """Arrow's `GcsFileSystem`."""
        url = urlsplit(self.emulator)
        return pafs.GcsFileSystem(
            anonymous=bool(self.emulator),
            scheme=url.scheme or "https",
            endpoint_override=url.netloc or None,
        )


#: All kinds of object stores.
STORES: tuple[type[ObjectStore], ...] = (S3, GoogleStorage)


def _store_type(url: str) -> type[ObjectStore] | None:
    return next((store for store in STORES if url.startswith(f"{store.scheme}://")), None)


def store_of(url: str) -> ObjectStore | None:
    """The object store of a folder; None if it is a local one."""
    store = _store_type(url)
    return store.from_environment() if store else None


def store_types(urls: Iterable[str]) -> list[type[ObjectStore]]:
    """The kinds of object stores that folders lie on."""
    return [store for store in STORES if store in {*map(_store_type, urls)}]


def configured_store_types(config: Mapping[str, Any]) -> list[type[ObjectStore]]:
    """The kinds of object stores that a configuration of Spark is for."""
    return [store for store in STORES if store.log_store_setting() in config]


def _first_variable(*names: str) -> str:
    return next(filter(None, map(os.environ.get, names)), "")


def _is_plain(url: str) -> bool:
    """Whether a connection is without TLS."""
    return url.startswith("http:")


def _client_config(endpoint: str) -> ClientConfig:
    return ClientConfig(allow_http=_is_plain(endpoint))
