"""Object stores: what Hadoop, delta-rs and Arrow are told of each, from the environment.

Each client finds the credentials by itself, where the store's own tools look for them.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from dagster_deltalake.config import AzureConfig, ClientConfig, GcsConfig, S3Config
from deltalake.fs import DeltaStorageHandler

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
        schemes: of its URLs, for Spark.
        packages: Hadoop's client.
        jars_option: the option of `backfill-assets jars` for its jars.
        log_store: the class by which Delta's commits do not overwrite each other.
        default_log_store: the class that Delta takes, if it is known to do so.
        log_store_source: its source, if it is of this package.
    """

    name: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]
    jars_option: ClassVar[str]
    packages: ClassVar[Packages]
    log_store: ClassVar[str]
    default_log_store: ClassVar[str] = ""
    log_store_source: ClassVar[JavaSource | None] = None

    @classmethod
    @abstractmethod
    def from_url(cls, url: str) -> Self:
        """The store of a URL, with the rest of its location from the environment."""

    @abstractmethod
    def hadoop_conf(self) -> dict[str, str]:
        """Settings of Hadoop's client; they contain no secret. Empty ones are not set."""

    @abstractmethod
    def delta_rs_config(self) -> tuple[S3Config | GcsConfig | AzureConfig, ClientConfig]:
        """The configuration of delta-rs, for dagster-deltalake."""

    @abstractmethod
    def create_reader(self) -> pafs.FileSystem:
        """A file system of Arrow's own, which reads files in threads of Arrow."""

    def create_writer(self) -> pafs.FileSystem | None:
        """A file system that also lists, writes, moves and deletes; None if the reader does."""
        return None

    @classmethod
    def path_of(cls, url: str) -> str:
        """The path of a URL in both file systems."""
        # Not by Arrow, which would decode a space or a percent sign.
        return url.partition("://")[2]

    @classmethod
    def log_store_settings(cls) -> list[str]:
        """Spark's settings for the log store, by scheme."""
        return [f"spark.delta.logStore.{scheme}.impl" for scheme in cls.schemes]

    @classmethod
    def commit_conf(cls) -> dict[str, str]:
        """Settings of Spark without which commits would be lost."""
        return dict.fromkeys(cls.log_store_settings(), cls.log_store)

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
    schemes = ("s3a",)
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
    def from_url(cls, url: str) -> Self:
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

    def create_reader(self) -> pafs.FileSystem:
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
    schemes = ("gs",)
    jars_option = "--gs"
    packages = Packages(("com.google.cloud.bigdataoss:gcs-connector:4.0.4",), classifier="shaded")
    # An upload on condition that the object is not there.
    log_store = default_log_store = "io.delta.storage.GCSLogStore"

    @classmethod
    def from_url(cls, url: str) -> Self:
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

    def create_reader(self) -> pafs.FileSystem:
        """Arrow's `GcsFileSystem`."""
        url = urlsplit(self.emulator)
        return pafs.GcsFileSystem(
            anonymous=bool(self.emulator),
            scheme=url.scheme or "https",
            endpoint_override=url.netloc or None,
        )


_AZURE_KEY = "AZURE_STORAGE_ACCOUNT_KEY"
_AZURE_TOKENS = "org.apache.hadoop.fs.azurebfs.oauth2"


class _BytesWriter:
    """A stream of delta-rs, which takes bytes alone, for the buffers of Arrow."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, buffer: pa.Buffer) -> int:
        """Write a buffer."""
        return int(self._stream.write(bytes(buffer)))


class _FlatHandler(DeltaStorageHandler):
    """delta-rs's file system for a container without a hierarchical namespace.

    Hadoop marks a folder with an empty blob of the folder's name, which Arrow takes for a file.
    """

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """List files and folders, without the marks of the folders."""
        infos = super().get_file_info_selector(selector)
        folders = {info.path for info in infos if info.type == pafs.FileType.Directory}
        return [info for info in infos if not info.is_file or info.path not in folders]

    def open_output_stream(self, path: str, metadata: Any = None) -> pa.PythonFile:
        """Open a file that appears as a whole when it is closed."""
        return pa.PythonFile(_BytesWriter(self._handler.open_output_stream(path, metadata)))

    def delete_dir(self, path: str) -> None:
        """Delete the files of a folder and its mark."""
        super().delete_dir(path)
        with suppress(FileNotFoundError):
            super().delete_file(path)


@dataclass(frozen=True)
class AzureStorage(ObjectStore):
    """A container of an Azure storage account.

    Attributes:
        container: its name.
        host: that of the account; the blob service's if it has no hierarchical namespace.
        endpoint: URL of an emulator's account, which has none; empty for Azure's.
        has_key: whether the account's key is in the environment.
    """

    container: str
    host: str
    endpoint: str
    has_key: bool
    name = "Azure"
    schemes = ("abfss", "abfs")
    jars_option = "--azure"
    packages = Packages(
        ("org.apache.hadoop:hadoop-azure:3.5.0",),
        "org.apache.hadoop.thirdparty:*,com.*:*,org.wildfly*:*,org.apache.httpcomponents*:*,"
        "org.eclipse*:*,org.codehaus*:*,commons*:*,org.slf4j:*",
    )
    # A rename that overwrites nothing: on the blob service, a copy on condition.
    log_store = default_log_store = "io.delta.storage.AzureLogStore"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """From the URL, `AZURE_STORAGE_ENDPOINT` and `AZURE_STORAGE_ACCOUNT_KEY`."""
        parts = urlsplit(url)
        endpoint, key = map(_first_variable, ("AZURE_STORAGE_ENDPOINT", _AZURE_KEY))
        return cls(parts.username or "", parts.hostname or "", endpoint, bool(key))

    @classmethod
    def path_of(cls, url: str) -> str:
        """The path in the container."""
        return url.partition("://")[2].partition("/")[2]

    @property
    def _account(self) -> str:
        return self.host.partition(".")[0]

    def hadoop_conf(self) -> dict[str, str]:
        """Settings of ABFS. By the host, it speaks to the blob service or to that of data lakes."""
        emulator = {
            "fs.azure.abfs.endpoint": urlsplit(self.endpoint).netloc,
            "fs.azure.fns.account.service.type": "BLOB",
            # It cannot be asked whether it has a hierarchical namespace.
            "fs.azure.account.hns.enabled": "false",
        }
        return {
            **(emulator if self.endpoint else {}),
            # The TLS and the HTTP client of Java; others need more jars, or do nothing but TLS.
            "fs.azure.ssl.channel.mode": "Default_JSSE",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            "fs.azure.always.use.https": str(not _is_plain(self.endpoint)).lower(),
            **(self._key_conf() if self.has_key else self._oauth_conf()),
        }

    def _key_conf(self) -> dict[str, str]:
        # Hadoop reads the variable where it needs the key: no setting has it.
        key = f"${{env.{_AZURE_KEY}}}"
        return {"fs.azure.account.auth.type": "SharedKey", "fs.azure.account.key": key}

    def _oauth_conf(self) -> dict[str, str]:
        """The token of a workload, a service principal or the machine, by Azure's variables."""
        tenant, token_file = map(_first_variable, ("AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"))
        host = _first_variable("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com/"
        options = {"client.id": _first_variable("AZURE_CLIENT_ID")}
        if token_file:
            provider = "WorkloadIdentityTokenProvider"
            options |= {"token.file": token_file, "msi.tenant": tenant, "msi.authority": host}
        elif _first_variable("AZURE_CLIENT_SECRET"):
            provider = "ClientCredsTokenProvider"
            endpoint = f"{host.rstrip('/')}/{tenant}/oauth2/token"
            options |= {"client.secret": "${env.AZURE_CLIENT_SECRET}", "client.endpoint": endpoint}
        else:
            provider = "MsiTokenProvider"
        return {
            "fs.azure.account.auth.type": "OAuth",
            "fs.azure.account.oauth.provider.type": f"{_AZURE_TOKENS}.{provider}",
            **{f"fs.azure.account.oauth2.{name}": value for name, value in options.items()},
        }

    def delta_rs_config(self) -> tuple[AzureConfig, ClientConfig]:
        """The account; delta-rs reads Azure's variables itself."""
        return AzureConfig(account_name=self._account), _client_config(self.endpoint)

    def create_reader(self) -> pafs.FileSystem:
        """The container in Arrow's `AzureFileSystem`."""
        url = urlsplit(self.endpoint)
        location = {
            "blob_storage_authority": url.netloc,
            "blob_storage_scheme": url.scheme,
            "dfs_storage_authority": url.netloc,
            "dfs_storage_scheme": url.scheme,
        }
        account = pafs.AzureFileSystem(
            self._account,
            account_key=_first_variable(_AZURE_KEY) or None,
            **{name: value for name, value in location.items() if value},
        )
        return pafs.SubTreeFileSystem(self.container, account)

    def create_writer(self) -> pafs.FileSystem | None:
        """That of delta-rs, for an account without a hierarchical namespace."""
        if ".blob." not in self.host and not self.endpoint:
            return None
        location, client = self.delta_rs_config()
        url = f"abfss://{self.container}@{self.host}"
        return pafs.PyFileSystem(_FlatHandler(url, {**location.str_dict(), **client.str_dict()}))


#: All kinds of object stores.
STORES: tuple[type[ObjectStore], ...] = (S3, GoogleStorage, AzureStorage)


def _store_type(url: str) -> type[ObjectStore] | None:
    scheme, separator, _ = url.partition("://")
    return next((store for store in STORES if separator and scheme in store.schemes), None)


def store_of(url: str) -> ObjectStore | None:
    """The object store of a folder; None if it is a local one."""
    store = _store_type(url)
    return store.from_url(url) if store else None


def store_types(urls: Iterable[str]) -> list[type[ObjectStore]]:
    """The kinds of object stores that folders lie on."""
    return [store for store in STORES if store in {*map(_store_type, urls)}]


def configured_store_types(config: Mapping[str, Any]) -> list[type[ObjectStore]]:
    """The kinds of object stores that a configuration of Spark is for."""
    return [store for store in STORES if not {*store.log_store_settings()}.isdisjoint(config)]


def _first_variable(*names: str) -> str:
    """The value of the first of these environment variables that has one; empty if none has."""
    return next(filter(None, map(os.environ.get, names)), "")


def _is_plain(url: str) -> bool:
    """Whether a connection is without TLS."""
    return url.startswith("http:")


def _client_config(endpoint: str) -> ClientConfig:
    return ClientConfig(allow_http=_is_plain(endpoint))
