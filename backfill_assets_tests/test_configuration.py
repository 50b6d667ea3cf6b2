"""The settings that a driver of Spark's is given: on this machine, and as part of a cluster."""

from __future__ import annotations

import re

import pytest

from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.spark.configuration import (
    DELTA_CONF,
    connect_server_command,
    is_local,
    spark_config,
    static_config,
)
from backfill_assets.spark.jars import delta_coordinate
from backfill_assets.spark.stores import S3
from backfill_assets.spark.tasks import TASK_TIMES, TASK_TIMES_CLASS
from backfill_assets_tests.helpers.docs_pages import code_blocks

CLUSTER = "spark://spark.example.org:7077"
ON_DRIVER, ON_EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
ALONE = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}


@pytest.mark.parametrize(
    ("master", "local"),
    [
        *((f"local{kind}", True) for kind in ("", "[*]", "[4]", "[4,3]")),
        ("local-cluster[2,1,1024]", False),
        *((url, False) for url in (CLUSTER, "spark://a:1,b:1", "yarn", "k8s://https://local:443")),
    ],
)
def test_what_holds_for_one_machine_is_for_one_machine(tmp_path, master, local):
    assert is_local(master) is local
    for options in ({"spark_master": master}, {"spark_conf": {"spark.master": master}}):
        config = spark_config(load_settings(**options))
        assert config["spark.master"] == master
        assert (config.items() >= ALONE.items()) is local
        assert local or not config.keys() & ALONE.keys()
        connect_server_command(load_settings(jars=tmp_path, **options), 15099, tmp_path)
        written = (tmp_path / "spark.properties").read_text()
        assert ("spark.driver.host" in written) is local


def test_where_the_executors_find_the_driver_is_for_the_user_to_say():
    conf = {"spark.driver.host": "10.0.0.7", "spark.driver.port": "40000"}
    config = spark_config(load_settings(spark_master=CLUSTER, spark_conf=conf))
    assert config.items() >= conf.items()
    assert "spark.driver.bindAddress" not in config


def test_the_options_of_a_jvm_are_added_to_ours():
    conf = {ON_DRIVER: "-Xss8m -Da=b", ON_EXECUTOR: "-XX:+UseZGC"}
    config = spark_config(load_settings(spark_master=CLUSTER, spark_conf=conf))
    ours = static_config()[ON_DRIVER]
    assert ours.startswith("-Duser.timezone=UTC ") and "-XX:+UseParallelGC" in ours
    assert config[ON_DRIVER] == f"{ours} -Xss8m -Da=b"
    assert config[ON_EXECUTOR] == "-Duser.timezone=UTC -XX:+UseZGC"
    assert spark_config(load_settings())[ON_EXECUTOR] == "-Duser.timezone=UTC"
    assert config["spark.executorEnv.TZ"] == "UTC"


def test_a_jvm_that_is_given_a_collector_gets_no_second_one():
    """It would not start."""
    config = spark_config(load_settings(spark_conf={ON_DRIVER: "-XX:+UseG1GC"}))
    assert re.findall(r"Use\w+GC", config[ON_DRIVER]) == ["UseG1GC"]
    assert "-XX:+UseParallelGC" in static_config("-Xmx1g")[ON_DRIVER]


@pytest.mark.parametrize("name", [ON_DRIVER, ON_EXECUTOR, "spark.driver.defaultJavaOptions"])
def test_no_jvm_gets_another_time_zone(name):
    load_settings(spark_conf={name: "-Duser.timezone=UTC -Xss8m"})
    with pytest.raises(SettingsError, match=rf"{name} must leave -Duser\.timezone out: it is UTC"):
        load_settings(spark_conf={name: "-Xss8m '-Duser.timezone=Asia/Tokyo'"})


def test_the_settings_of_a_server_on_the_pages_are_those_of_the_code():
    stream = "fs.s3a.input.stream.type"
    expected = {
        "deployments.md": {"spark.jars.packages": delta_coordinate(), **DELTA_CONF},
        "skew.md": {"spark.extraListeners": TASK_TIMES_CLASS, TASK_TIMES: TASK_TIMES_CLASS},
        "object-storage.md": {
            **dict.fromkeys(S3.log_store_settings(), S3.log_store),
            f"spark.hadoop.{stream}": S3.from_url("s3a://bucket").hadoop_conf()[stream],
        },
    }
    for page, settings in expected.items():
        (block,) = (
            code for code in code_blocks(f"docs/{page}", "text") if code.startswith("spark.")
        )
        assert dict(line.split("=", 1) for line in block.splitlines()) == settings
