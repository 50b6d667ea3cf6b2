"""Where landing and warehouse lie, and what Arrow, delta-rs and Spark are told of it."""

from __future__ import annotations

import os

import pytest

from backfill_assets.delta.delta_rs import UnsafeStoreError, raise_if_unsafe_store, storage_options
from backfill_assets.settings import load_settings
from backfill_assets.spark import jars
from backfill_assets.spark.configuration import spark_config
from backfill_assets.spark.jars import spark_home
from backfill_assets.spark.known_jars import LOG_STORE, LOG_STORE_CLASS
from backfill_assets.tables.unpartitioned import Unpartitioned
from backfill_assets_tests.helpers.connect_server import server_settings
from backfill_assets_tests.helpers.lossy_s3_server import careless_s3


@pytest.fixture
def no_aws(monkeypatch):
    """As Amazon's environment variables are not set."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("setting", ["landing", "warehouse"])
def test_spark_and_delta_rs_are_told_where_s3_is(no_aws, monkeypatch, tmp_path, setting):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    settings = load_settings(jars=tmp_path, **{setting: "s3://bucket/x"})
    for config in (spark_config(settings), server_settings(settings, tmp_path)):
        assert config[LOG_STORE] == LOG_STORE_CLASS
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


def test_what_keeps_commits_apart_cannot_be_set_otherwise(no_aws, tmp_path):
    conditional = "spark.hadoop.fs.s3a.create.conditional.enabled"
    conf = {
        LOG_STORE: "io.delta.storage.S3SingleDriverLogStore",
        conditional: "false",
        "spark.hadoop.fs.s3a.endpoint": "http://own",
    }
    settings = load_settings(jars=tmp_path, warehouse="s3a://bucket/w", spark_conf=conf)
    config = spark_config(settings)
    assert config[LOG_STORE] == LOG_STORE_CLASS
    assert config[conditional] == "true"
    assert config["spark.hadoop.fs.s3a.endpoint"] == "http://own"


def test_without_s3_nothing_is_told_of_it(tmp_path):
    assert not any("s3a" in name for name in spark_config(load_settings(jars=tmp_path)))


def test_the_jars_of_s3_are_those_of_spark_s_own_hadoop():
    (client,) = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    assert jars._S3[0].split(":")[-1] == client.stem.removeprefix("hadoop-client-api-")


def test_a_store_that_overlooks_conditions_is_refused(no_aws, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with careless_s3() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(UnsafeStoreError, match="s3a://lake/w overlooks conditions of a PUT"):
            raise_if_unsafe_store("s3a://lake/w")


def test_a_local_folder_is_not_asked(tmp_path):
    raise_if_unsafe_store(str(tmp_path))
    assert not [*tmp_path.iterdir()]


def test_a_table_without_days_may_lie_on_s3():
    assert Unpartitioned("customers", "s3://bucket/c").place("/w") == "s3a://bucket/c"
    assert Unpartitioned("customers", "/c").place("/w") == "/c"
    assert Unpartitioned("customers", "file:///c").place("/w") == "/c"
    with pytest.raises(ValueError, match="other stores"):
        Unpartitioned("customers", "gs://bucket/c")
