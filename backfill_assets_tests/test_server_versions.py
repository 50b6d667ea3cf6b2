"""What a Spark Connect server that others started must have, and what is said if it has not."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from pyspark.errors import AnalysisException, UnsupportedOperationException

from backfill_assets.settings import load_settings
from backfill_assets.spark import session as module
from backfill_assets.spark.configuration import DELTA_CONF
from backfill_assets.spark.jars import EngineError, delta_coordinate
from backfill_assets.spark.session import Engine

HERE = {name: version(name) for name in ("pyspark", "delta-spark")}


class FakeServer:
    """Stands for the session that Spark's client gives: versions and settings."""

    def __init__(
        self,
        monkeypatch,
        *,
        spark: str = HERE["pyspark"],
        delta: str | Exception = HERE["delta-spark"],
        **conf: str,
    ) -> None:
        self.version, self.overrides, self.conf = spark, {**DELTA_CONF, **conf}, self
        self.delta = delta
        monkeypatch.setattr(module, "_await_server", lambda _: None)
        monkeypatch.setattr(module, "_create_server_session", self._open_session)

    def _open_session(self, _, config):
        self.session_config = config
        return self

    @property
    def getAll(self):  # noqa: N802 - as Spark has it
        return {**self.session_config, **self.overrides}

    def sql(self, text):
        assert "reflect('io.delta.package', 'VERSION')" in text
        return self

    def collect(self):
        if isinstance(self.delta, Exception):
            raise self.delta
        return [(self.delta,)]


def connect_engine(**conf: str):
    return Engine.from_settings(load_settings(spark_remote="sc://h:1/;token=hush", spark_conf=conf))


def test_a_server_that_takes_the_settings_of_the_session(monkeypatch):
    server = FakeServer(monkeypatch, **{"spark.sql.shuffle.partitions": "7"})
    assert connect_engine().spark_session is server
    assert server.session_config["spark.sql.files.ignoreCorruptFiles"] == "false"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.own", "2"),
    ],
)
def test_a_server_that_keeps_to_its_own_settings(monkeypatch, name, value):
    FakeServer(monkeypatch, **{name: value})
    engine = connect_engine(**{"spark.sql.own": "1"})
    for _ in range(2):  # nor is it taken the second time
        with pytest.raises(EngineError) as caught:
            engine.spark_session  # noqa: B018
        message = str(caught.value)
        assert "\n" not in message
        assert "SPARK_REMOTE=sc://h:1/;token=*** runs with other settings than it must" in message
        assert f"{name} ({value} and not " in message


def test_a_secret_that_the_server_has_otherwise_is_not_shown(monkeypatch):
    FakeServer(monkeypatch, **{"spark.sql.own.token": "theirs"})
    with pytest.raises(EngineError, match=r"spark\.sql\.own\.token\. Set them") as caught:
        connect_engine(**{"spark.sql.own.token": "ours"}).spark_session  # noqa: B018
    assert "theirs" not in str(caught.value)
    assert "ours" not in str(caught.value)


def test_a_server_of_another_spark(monkeypatch):
    FakeServer(monkeypatch, spark="3.5.7")
    with pytest.raises(EngineError, match=r"runs Spark 3\.5\.7, and pyspark here is 4\."):
        connect_engine().spark_session  # noqa: B018
    minor = ".".join(version("pyspark").split(".")[:2])
    assert connect_engine().spark_config["spark.remote"]
    FakeServer(monkeypatch, spark=f"{minor}.99")
    connect_engine().spark_session  # noqa: B018


NO_CLASS = "[DATATYPE_MISMATCH] due to data type mismatch: class io.delta.package not found."
NO_CATALOG = "Cannot find catalog plugin class for catalog 'spark_catalog': DeltaCatalog."
JARS = f"Delta's jars (spark.jars.packages={delta_coordinate()})"
EXTENSION, CATALOG = (f"{name}={value}" for name, value in DELTA_CONF.items())


@pytest.mark.parametrize(
    ("delta", "without", "lacks"),
    [
        (AnalysisException(NO_CLASS), [*DELTA_CONF], [JARS, EXTENSION, CATALOG]),
        (AnalysisException(NO_CATALOG), [], [JARS]),
        (version("delta-spark"), [*DELTA_CONF], [EXTENSION, CATALOG]),
        (version("delta-spark"), ["spark.sql.catalog.spark_catalog"], [CATALOG]),
    ],
)
def test_a_server_without_delta_is_told_what_it_lacks(monkeypatch, delta, without, lacks):
    FakeServer(monkeypatch, delta=delta, **dict.fromkeys(without, ""))
    with pytest.raises(EngineError) as caught:
        connect_engine().spark_session  # noqa: B018
    message = str(caught.value)
    assert f"token=*** has no Delta Lake: it lacks {' and '.join(lacks)}. Start it with" in message
    assert "\n" not in message


def test_a_catalog_that_wraps_deltas_will_do(monkeypatch):
    FakeServer(
        monkeypatch, **{"spark.sql.catalog.spark_catalog": "io.unitycatalog.UCSingleCatalog"}
    )
    connect_engine().spark_session  # noqa: B018


def test_a_server_of_another_delta(monkeypatch):
    FakeServer(monkeypatch, delta="4.3.1")
    with pytest.raises(EngineError, match=r"runs Delta Lake 4\.3\.1, and delta-spark here is 4\.4"):
        connect_engine().spark_session  # noqa: B018


def test_a_server_that_is_not_apache_spark(monkeypatch):
    """Sail 0.7.2 answers so, and it has the version of Spark that it stands in for."""
    FakeServer(monkeypatch, delta=UnsupportedOperationException("function: reflect"))
    with pytest.raises(EngineError, match="does not answer as Apache Spark does") as caught:
        connect_engine().spark_session  # noqa: B018
    assert str(caught.value).endswith("nothing was written.")


def test_what_else_goes_wrong_there_is_not_taken_for_a_missing_delta(monkeypatch):
    FakeServer(monkeypatch, delta=AnalysisException("[PERMISSION_DENIED] reflect is not for you"))
    with pytest.raises(EngineError, match="PERMISSION_DENIED"):
        connect_engine().spark_session  # noqa: B018
