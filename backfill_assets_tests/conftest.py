"""Fixtures: one Spark session for the whole suite, and a pipeline on folders of a test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from compileall import compile_dir
from pathlib import Path

import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob
from hypothesis import settings as hypothesis
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from backfill_assets.settings import load_settings
from backfill_assets.spark.frames import (
    ADAPTIVE_EXECUTION,
    SHUFFLE_PARTITIONS,
    SMALL_DATA_CONF,
)
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers import postgres, spark_cluster
from backfill_assets_tests.helpers.dagster_homes import remember_revisions
from backfill_assets_tests.helpers.object_stores import url_of
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import Pipeline
from backfill_assets_tests.timing import SESSION_CPU, cpu_seconds

# Of many tiny jobs, most of the time goes into planning, and into compiling code for a few rows:
# what Spark would generate is interpreted, and the JVM compiles but lightly.
SMALL = {
    **SMALL_DATA_CONF,
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Each call of PySpark would look for IPython and tell the JVM where it stands in the source.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # The text of each plan, for a page that nobody opens.
    "spark.sql.ui.explainMode": "simple",
    "spark.driver.memory": "2g",
}
#: For the suite's own engine. With 2 GB, the JVM of a whole run of CI spent most of its last
#: minutes on collecting garbage. Its session for many rows has adaptive execution, as where nobody
#: sets that.
LASTING = {
    **SMALL,
    SHUFFLE_PARTITIONS: "2",
    ADAPTIVE_EXECUTION: "true",
    "spark.driver.memory": "4g",
}


# How long an example takes depends on what else the machine does.
hypothesis.register_profile("suite", deadline=None)
hypothesis.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """What tests start ends when it is told to, also where a script's background ignores that.

    Python's own handling of SIGINT is what Dagster takes for SIGTERM as well. And it finds the
    package compiled, also where PYTHONDONTWRITEBYTECODE would have each process compile it anew.
    """
    if not hasattr(config, "workerinput"):
        for package in ("backfill_assets", "backfill_assets_guide"):
            compile_dir(PROJECT / package, quiet=2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What stands in system/ is run by `make test-system`, and by CI together with all others."""
    for item in items:
        if item.path.parent.name == "system":
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> None:
    """A developer's own settings must not decide what the tests see."""
    for name in list(os.environ):
        if name.startswith("BACKFILL_ASSETS_") and name != "BACKFILL_ASSETS_JARS":
            del os.environ[name]
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it


@pytest.fixture(scope="session", autouse=True)
def _remember_revisions() -> Iterator[None]:
    """Instances of Dagster, of which most tests make some, read no revisions of databases."""
    with remember_revisions():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--postgres`: with Dagster's storage in Postgres, a database for each test."""
    parser.addoption("--postgres", action="store_true", help="keep Dagster's storage in Postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A Postgres server for all tests that ask for one."""
    if lacking := postgres.missing_server_reason():
        pytest.skip(lacking)
    with postgres.run_server() as server:
        yield server


@pytest.fixture
def database(postgres_server: postgres.Server, monkeypatch) -> postgres.Database:
    """An empty database, in which the project's instance keeps what it keeps: `dagster_yaml`."""
    new_database = postgres_server.database()
    for name, value in new_database.environment.items():
        monkeypatch.setenv(name, value)
    return new_database


@pytest.fixture(autouse=True)
def _on_postgres(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--postgres"):
        request.getfixturevalue("database")


@pytest.fixture(autouse=True)
def _no_job_of_another_test() -> Iterator[None]:
    """Dagster keeps the last job that was loaded by name, with the settings of its test."""
    yield
    ReconstructableJob.get_repository_definition.cache_clear()
    ReconstructableJob.get_definition.cache_clear()


@pytest.fixture(scope="session")
def engine(tmp_path_factory) -> Engine:
    """The suite's engine: embedded, on a cluster if one is named, or that of SPARK_REMOTE."""
    master = os.environ.get(spark_cluster.MASTER, "local[2]")
    # A server has its static settings already, and would warn of each.
    local_conf = LASTING if master.startswith("local") else spark_cluster.SMALL
    conf = {} if "SPARK_REMOTE" in os.environ else local_conf
    # Where the tests run on object storage, so does the engine.
    url = url_of(tmp_path_factory.getbasetemp())
    engine = Engine.from_settings(
        load_settings(spark_master=master, spark_conf=conf, warehouse=url)
    )
    # As where nobody sets Spark's partitions: steps that read few rows have a session of their own.
    return engine.model_copy(update={"small_data_config": dict(SMALL_DATA_CONF)})


def forget_yarn(session: SparkSession) -> None:
    """Take YARN's settings, half of all, out of what Spark sends with a task that writes."""
    context = session.sparkContext
    context._jvm.org.apache.hadoop.mapred.JobConf()  # which adds them
    conf = context._jsc.hadoopConfiguration()
    for name in [*conf.getPropsWithPrefix("yarn.")]:
        conf.unset(f"yarn.{name}")


@pytest.fixture(scope="session")
def spark(engine: Engine, pytestconfig: pytest.Config) -> Iterator:
    before = cpu_seconds()
    session = engine.spark_session
    if not is_remote():
        forget_yarn(session)
    pytestconfig.stash[SESSION_CPU] = cpu_seconds() - before
    yield session
    session.stop()


@pytest.fixture
def one_session_engine(engine: Engine, spark) -> Engine:
    """The suite's engine, whose only session is that of steps that read many rows."""
    return engine.model_copy(update={"small_data_config": {}})


@pytest.fixture
def pipeline(engine: Engine, spark, tmp_path: Path) -> Pipeline:
    """The assets on an empty landing and warehouse, 2024-01-01 to 2024-01-31."""
    return Pipeline(engine, tmp_path)
