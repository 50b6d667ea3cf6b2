"""Where landing and warehouse lie, and what Arrow, delta-rs and Spark are told of it."""

from __future__ import annotations

import json
import os
import re

import pyarrow.fs as pafs
import pytest
from dagster_deltalake.config import LocalConfig

from backfill_assets.delta import delta_rs
from backfill_assets.delta.commit_log import file_uri, resolve_path
from backfill_assets.delta.delta_rs import UnsafeStoreError, raise_if_unsafe_store, storage_options
from backfill_assets.settings import load_settings
from backfill_assets.spark.configuration import spark_config
from backfill_assets.spark.filesystems import folder_filesystem, open_store
from backfill_assets.spark.processes import spark_home
from backfill_assets.spark.stores import S3, STORES, AzureStorage, GoogleStorage
from backfill_assets.tables.unpartitioned import Unpartitioned
from backfill_assets_tests.helpers.connect_server import server_settings
from backfill_assets_tests.helpers.lossy_s3_server import careless_s3

(LOG_STORE,) = S3.log_store_settings()
AZURE = "abfss://lake@account.dfs.core.windows.net/w"


@pytest.fixture(autouse=True)
def _no_variables_of_stores(monkeypatch):
    prefixes = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)


def test_the_logs_of_a_store_share_its_configuration(monkeypatch):
    """Dagster derives the schema of each resource anew, which takes milliseconds."""
    resources, create = [], delta_rs.DeltaTableResource

    def create_resource(**values):
        resources.append(create(**values))
        return resources[-1]

    monkeypatch.setattr(delta_rs, "DeltaTableResource", create_resource)
    logs = [delta_rs.delta_log(f"/warehouse/{n}", n) for n in range(3)]
    assert [(log.url, log.version) for log in logs] == [(f"/warehouse/{n}", n) for n in range(3)]
    assert all(isinstance(log.storage_options, LocalConfig) for log in logs)
    assert len(resources) <= 1


@pytest.mark.parametrize("setting", ["landing", "warehouse"])
def test_spark_and_delta_rs_are_told_where_s3_is(monkeypatch, tmp_path, setting):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    settings = load_settings(jars=tmp_path, **{setting: "s3://bucket/x"})
    for config in (spark_config(settings), server_settings(settings, tmp_path)):
        assert config[LOG_STORE] == S3.log_store
        assert "spark.hadoop.fs.s3a.endpoint" not in config
        assert "hush" not in str(config)
    assert storage_options("s3a://bucket/x/t")["allow_http"] == "False"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one:9000")
    assert spark_config(settings)["spark.hadoop.fs.s3a.endpoint"] == "http://one:9000"
    assert spark_config(settings)["spark.hadoop.fs.s3a.path.style.access"] == "true"
    options = storage_options("s3a://bucket/x/t")
    assert options["endpoint"] == "http://one:9000" and options["allow_http"] == "True"
    assert options["region"] == "us-east-1"
    # What is for S3 alone goes before what is for all of Amazon's services.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://two")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    options = storage_options("s3a://bucket/x/t")
    assert options["endpoint"] == "https://two" and options["allow_http"] == "False"
    assert options["region"] == "eu-north-1"
    assert spark_config(settings)["spark.hadoop.fs.s3a.endpoint.region"] == "eu-north-1"


def test_what_keeps_commits_apart_cannot_be_set_otherwise(tmp_path):
    conditional = "spark.hadoop.fs.s3a.create.conditional.enabled"
    conf = {
        LOG_STORE: "io.delta.storage.S3SingleDriverLogStore",
        conditional: "false",
        "spark.hadoop.fs.s3a.endpoint": "http://own",
    }
    settings = load_settings(jars=tmp_path, warehouse="s3a://bucket/w", spark_conf=conf)
    config = spark_config(settings)
    assert config[LOG_STORE] == S3.log_store
    assert config[conditional] == "true"
    assert config["spark.hadoop.fs.s3a.endpoint"] == "http://own"


def test_of_a_local_deployment_nothing_is_told_of_stores(tmp_path):
    names = [*spark_config(load_settings(jars=tmp_path))]
    assert not [name for name in names if re.search(r"s3a|\.gs\.|abfs|azure", name)]


@pytest.mark.parametrize("store", [S3, AzureStorage])
def test_hadoop_s_jars_are_those_of_spark_s_own_hadoop(store):
    (client,) = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    version = store.packages.coordinates[0].split(":")[-1]
    assert version == client.stem.removeprefix("hadoop-client-api-")


def test_spark_and_delta_rs_are_told_where_google_s_storage_is(monkeypatch, tmp_path):
    settings = load_settings(jars=tmp_path, warehouse="gs://bucket/w/")
    config = spark_config(settings)
    assert settings.warehouse == "gs://bucket/w"
    assert config["spark.delta.logStore.gs.impl"] == GoogleStorage.log_store
    assert config["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    assert "spark.hadoop.fs.gs.storage.root.url" not in config
    assert "service_account_key" not in storage_options("gs://bucket/w/t")
    # As Google's clients take it: with and without a scheme.
    for emulator in ("127.0.0.1:9000", "http://127.0.0.1:9000"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
        config = spark_config(settings)
        assert config["spark.hadoop.fs.gs.auth.type"] == "UNAUTHENTICATED"
        assert config["spark.hadoop.fs.gs.storage.root.url"] == "http://127.0.0.1:9000/"
        options = storage_options("gs://bucket/w/t")
        assert json.loads(options["service_account_key"])["gcs_base_url"] == "http://127.0.0.1:9000"
        assert options["allow_http"] == "True"


def test_spark_is_told_of_azure_s_credentials_without_a_secret(monkeypatch, tmp_path):
    settings = load_settings(jars=tmp_path, landing=AZURE)

    def azure_conf() -> dict[str, str]:
        config = spark_config(settings)
        assert "hush" not in str(config)
        for scheme in ("abfs", "abfss"):
            assert config[f"spark.delta.logStore.{scheme}.impl"] == AzureStorage.log_store
        prefix = "spark.hadoop.fs.azure."
        names = (name for name in config if name.startswith(prefix))
        return {name.removeprefix(prefix): config[name] for name in names}

    conf = azure_conf()
    assert conf["account.oauth.provider.type"].endswith(".MsiTokenProvider")
    assert conf["always.use.https"] == "true"
    assert not {"abfs.endpoint", "account.hns.enabled", "fns.account.service.type"} & {*conf}
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "hush")
    conf = azure_conf()
    assert conf["account.oauth.provider.type"].endswith(".ClientCredsTokenProvider")
    assert conf["account.oauth2.client.id"] == "client"
    assert conf["account.oauth2.client.endpoint"].endswith(".com/tenant/oauth2/token")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", "/token")
    conf = azure_conf()
    assert conf["account.oauth.provider.type"].endswith(".WorkloadIdentityTokenProvider")
    assert conf["account.oauth2.token.file"] == "/token"
    assert "account.oauth2.client.secret" not in conf
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hush")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/account")
    conf = azure_conf()
    assert conf["account.auth.type"] == "SharedKey"
    assert conf["abfs.endpoint"] == "127.0.0.1:10000" and conf["always.use.https"] == "false"
    assert conf["fns.account.service.type"] == "BLOB"
    options = storage_options(f"{AZURE}/t")
    assert options["account_name"] == "account" and options["allow_http"] == "True"
    assert "hush" not in str(options)


def test_without_a_hierarchical_namespace_delta_rs_lists_azure(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")
    flat = AZURE.replace(".dfs.", ".blob.")
    assert isinstance(open_store(flat)[0], pafs.PyFileSystem)
    for url in (AZURE, flat):
        assert not isinstance(folder_filesystem(url), pafs.PyFileSystem)
    assert not isinstance(open_store(AZURE)[0], pafs.PyFileSystem)


@pytest.mark.parametrize("url", ["s3a://bucket/w", "gs://bucket/w", AZURE])
def test_a_table_in_a_store_has_its_path_there(monkeypatch, url):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    filesystem, path = open_store(f"{url}/a b%20")
    assert path in ("bucket/w/a b%20", "w/a b%20")
    assert not isinstance(filesystem, pafs.LocalFileSystem)
    assert resolve_path(url, file_uri(url, "day=2024-01-01/x.parquet")) == (
        f"{url}/day=2024-01-01/x.parquet"
    )


def test_each_store_has_schemes_and_options_of_its_own():
    for attribute in ("name", "schemes", "jars_option", "log_store"):
        assert len({getattr(store, attribute) for store in STORES}) == len(STORES)
    schemes = [scheme for store in STORES for scheme in store.schemes]
    assert len({*schemes}) == len(schemes)


def test_a_store_that_overlooks_conditions_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with careless_s3() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(UnsafeStoreError, match="s3a://lake/w overlooks conditions of a PUT"):
            raise_if_unsafe_store("s3a://lake/w")


def test_a_local_folder_is_not_asked(tmp_path):
    raise_if_unsafe_store(str(tmp_path))
    assert not [*tmp_path.iterdir()]


def test_a_table_without_days_may_lie_in_a_store():
    assert Unpartitioned("customers", "s3://bucket/c").place("/w") == "s3a://bucket/c"
    assert Unpartitioned("customers", "gs://bucket/c").place("/w") == "gs://bucket/c"
    assert Unpartitioned("customers", AZURE).place("/w") == AZURE
    assert Unpartitioned("customers", "/c").place("/w") == "/c"
    assert Unpartitioned("customers", "file:///c").place("/w") == "/c"
    with pytest.raises(ValueError, match="other stores"):
        Unpartitioned("customers", "hdfs://nn/c")
