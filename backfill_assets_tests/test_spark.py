"""How a session comes to be, and what is said when none can be had."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections import Counter
from datetime import datetime, timezone
from datetime import time as clock
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import JavaPackage, JVMView
from py4j.protocol import Py4JError

from backfill_assets.dagster_ext.failures import is_engine_lost
from backfill_assets.delta.data_files import write_files
from backfill_assets.orders.tables import RAW, REJECTED, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.spark import connect, known_jars
from backfill_assets.spark import jars as jars_module
from backfill_assets.spark import session as module
from backfill_assets.spark.configuration import connect_server_command, spark_config, static_config
from backfill_assets.spark.jars import (
    LOCAL_FILES_SETTING,
    EngineError,
    check_java,
    delta_coordinate,
    delta_jars,
    fetch_delta_jars,
    fetch_store_jars,
    raise_if_unknown_jars,
    store_jars,
)
from backfill_assets.spark.jvm_launch import (
    class_archive_path,
    keep_java_names,
    make_class_archive,
    with_class_archive,
)
from backfill_assets.spark.session import Engine
from backfill_assets.spark.stores import S3, STORES, GoogleStorage
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.connect_server import server_settings
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order


def one_sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# Java.


@pytest.fixture
def no_java(monkeypatch, tmp_path) -> Path:
    """An otherwise empty PATH, without JAVA_HOME."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def fake_java(folder: Path, says: str, status: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho {shlex.quote(says)} >&2\nexit {status}\n")
    java.chmod(0o755)


def test_no_java(no_java):
    with pytest.raises(EngineError) as caught:
        check_java()
    message = one_sentence(caught)
    assert message.startswith("Spark needs Java 17 or 21 and there is none on the PATH")
    assert "apt-get install openjdk-17-jre-headless" in message


def test_no_java_in_java_home(no_java, monkeypatch, tmp_path):
    fake_java(no_java, 'openjdk version "17.0.9"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(EngineError) as caught:
        check_java()
    assert f"there is none in JAVA_HOME={tmp_path / 'gone'}" in one_sentence(caught)


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ('openjdk version "11.0.22" 2024-01-16', "Java 11"),
        ('java version "1.8.0_401"', "Java 8"),
        ("Error: could not find libjvm.so", "not a working Java"),
    ],
)
def test_a_java_that_spark_does_not_run_on(no_java, says, found):
    fake_java(no_java, says, status=0 if "version" in says else 1)
    with pytest.raises(EngineError) as caught:
        check_java()
    message = one_sentence(caught)
    assert f"Spark needs Java 17 or 21 and {no_java / 'java'} is {found}: set JAVA_HOME" in message


@pytest.mark.parametrize("says", ['openjdk version "17.0.9"', 'openjdk version "21" 2023-09-19'])
def test_a_java_that_will_do(no_java, says):
    fake_java(no_java, says)
    check_java()


def test_java_home_goes_before_the_path(no_java, monkeypatch, tmp_path):
    fake_java(no_java, 'openjdk version "11.0.22"')
    (tmp_path / "jdk").mkdir()
    fake_java(tmp_path / "jdk" / "bin", 'openjdk version "17.0.9"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    check_java()


def test_an_engine_without_java_says_so(no_java, tmp_path):
    settings = load_settings(jars=tmp_path / "jars")
    with pytest.raises(EngineError, match="Spark needs Java 17 or 21 and there is none"):
        Engine.from_settings(settings).spark_session  # noqa: B018


# The Delta jars.


def test_the_coordinate_fits_the_installed_versions():
    minor = ".".join(version("pyspark").split(".")[:2])
    assert delta_coordinate() == f"io.delta:delta-spark_{minor}_2.13:{version('delta-spark')}"


class FakeSubmit:
    """Stands for `spark-submit`: notes its calls, and downloads what it is told to."""

    def __init__(self, monkeypatch, jars: tuple[str, ...] = (), stderr: str = "") -> None:
        self.calls: list[list[str]] = []
        self.ivy_settings: list[str] = []
        self.jars, self.stderr = jars, stderr
        monkeypatch.setattr(jars_module, "check_java", lambda: None)
        monkeypatch.setattr(jars_module.subprocess, "run", self)

    def __call__(self, command, **_):
        self.calls.append(command)
        ivy = next(word for word in command if word.startswith("spark.jars.ivy=")).split("=")[1]
        prefix = "spark.jars.ivySettings="
        paths = (word.removeprefix(prefix) for word in command if word.startswith(prefix))
        self.ivy_settings += [Path(path).read_text() for path in paths]
        folder = Path(ivy, "jars")
        folder.mkdir(parents=True)
        for name in self.jars:
            (folder / name).write_bytes(b"jar")
        return subprocess.CompletedProcess(command, 1, "", self.stderr)


@pytest.fixture
def _these_are_known(monkeypatch) -> None:
    """What stands for jars in these tests passes for them."""
    texts = (b"jar", b"theirs", b"")
    shams = {text.decode(): hashlib.sha256(text).hexdigest() for text in texts}
    monkeypatch.setattr(known_jars, "SHA256", shams)


NAMES = ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar")
LOCAL_JAR = "com.globalmentor_hadoop-bare-naked-local-fs-0.1.0.jar"


@pytest.mark.usefixtures("_these_are_known")
def test_jars_are_fetched_once(monkeypatch, tmp_path):
    submit = FakeSubmit(monkeypatch, jars=(LOCAL_JAR, *NAMES, "org.other_thing-1.jar"))
    monkeypatch.setattr(jars_module, "find_java", lambda: "java")
    cache = tmp_path / "a" / "cache"
    assert delta_jars(cache) == []
    first = fetch_delta_jars(cache)
    assert [jar.name for jar in first] == [*NAMES]
    assert all(jar.read_bytes() == b"jar" for jar in first)
    assert fetch_delta_jars(cache) == delta_jars(cache) == first
    delta_call, library_call = submit.calls
    assert delta_coordinate() in delta_call and jars_module._LOCAL_FILES in library_call
    library = jars_module._jar_folder(cache, jars_module._LOCAL_FILES)
    assert [path.name for path in library.iterdir()] == [LOCAL_JAR]
    assert {*cache.iterdir()} == {first[0].parent, library}  # no leftovers


@pytest.mark.usefixtures("_these_are_known")
def test_a_session_is_told_of_the_library_for_local_files_if_it_has_it(tmp_path):
    """Jars may be copied from somewhere by hand, or be others: Delta's alone will do."""
    file_system = "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem"
    folder = jars_module._jar_folder(tmp_path, delta_coordinate())
    folder.mkdir()
    (folder / NAMES[0]).touch()
    assert LOCAL_FILES_SETTING not in spark_config(load_settings(jars=tmp_path))
    library = jars_module._jar_folder(tmp_path, jars_module._LOCAL_FILES)
    library.mkdir()
    (library / LOCAL_JAR).touch()
    config = spark_config(load_settings(jars=tmp_path))
    assert config["spark.jars"] == f"{folder / NAMES[0]},{library / LOCAL_JAR}"
    assert config[LOCAL_FILES_SETTING] == file_system
    assert (
        server_settings(load_settings(jars=tmp_path), tmp_path)[LOCAL_FILES_SETTING] == file_system
    )


@pytest.mark.usefixtures("_these_are_known")
def test_jars_of_the_deployment_are_added_to_ours(tmp_path):
    folder = jars_module._jar_folder(tmp_path, delta_coordinate())
    folder.mkdir()
    ours = folder / NAMES[0]
    ours.touch()
    conf = {"spark.jars": f"/opt/a.jar,{ours},/opt/b.jar", "spark.jars.packages": "org.x:y:1"}
    settings = load_settings(jars=tmp_path, spark_conf=conf)
    config = spark_config(settings)
    assert config["spark.jars"] == f"{ours},/opt/a.jar,/opt/b.jar"
    assert config["spark.jars.packages"] == "org.x:y:1"
    assert server_settings(settings, tmp_path)["spark.jars"] == config["spark.jars"]
    # Before ours are there, too: they are when the session starts.
    folder.rename(tmp_path / "away")
    assert spark_config(settings)["spark.jars"] == f"/opt/a.jar,{ours},/opt/b.jar"


@pytest.mark.usefixtures("_these_are_known")
def test_the_jars_of_s3_are_fetched_where_they_are_asked_for(monkeypatch, tmp_path):
    names = ["org.apache.hadoop_hadoop-aws-3.5.0.jar", "software.amazon.awssdk_s3-2.35.4.jar"]
    submit = FakeSubmit(monkeypatch, jars=(*names, "com.other_thing-1.jar"))
    monkeypatch.setattr(known_jars, "compile_source", lambda *_: {"a.B": b"code"})
    assert store_jars(tmp_path, S3) == []
    jars = fetch_store_jars(tmp_path, S3)
    assert [jar.name for jar in jars] == [*names, "conditional-log-store.jar"]
    assert fetch_store_jars(tmp_path, S3) == jars
    (call,) = submit.calls
    assert "software.amazon.awssdk:bundle," in call[call.index("--exclude-packages") + 1]
    on_s3 = load_settings(jars=tmp_path, warehouse="s3a://bucket/w")
    assert spark_config(on_s3)["spark.jars"] == ",".join(map(str, jars))
    assert spark_config(load_settings(jars=tmp_path))["spark.jars"] == ""


@pytest.mark.usefixtures("_these_are_known")
def test_the_jar_of_google_s_storage_has_its_dependencies_in_it(monkeypatch, tmp_path):
    submit = FakeSubmit(monkeypatch, jars=("com.google.cloud.bigdataoss_gcs-connector-4.0.4.jar",))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "https://mirror/a&b")
    (jar,) = fetch_store_jars(tmp_path, GoogleStorage)
    assert fetch_store_jars(tmp_path, GoogleStorage) == [jar]
    (ivy_settings,) = submit.ivy_settings
    resolver = ElementTree.fromstring(ivy_settings).find("resolvers/ibiblio")
    assert resolver.attrib["pattern"].endswith("/[artifact]-[revision]-shaded.[ext]")
    assert resolver.attrib["root"] == "https://mirror/a&b"
    monkeypatch.delenv("DEFAULT_ARTIFACT_REPOSITORY")
    fetch_store_jars(tmp_path / "other", GoogleStorage)
    assert "root" not in submit.ivy_settings[1]
    in_store = load_settings(jars=tmp_path, landing="gs://bucket/in")
    assert spark_config(in_store)["spark.jars"] == str(jar)


@pytest.mark.parametrize("source", [s.log_store_source for s in STORES if s.log_store_source])
def test_a_log_store_is_built_once_and_is_the_known_one(tmp_path, source):
    built = source.build_jar(tmp_path, delta_jars(load_settings().jars))
    assert known_jars.unknown_jars([built]) == []
    written = built.stat().st_mtime_ns
    assert source.build_jar(tmp_path) == built
    assert built.stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [built.parent.name]


def test_files_have_the_rights_that_hadoop_gives_them(spark, tmp_path):
    assert spark.conf.get(LOCAL_FILES_SETTING).endswith("NakedLocalFileSystem")
    rows = spark.range(2).selectExpr("id", "DATE'2024-01-01' AS day")
    files_by_part = write_files(rows.coalesce(1), str(tmp_path), ["day"])
    ((written,),) = files_by_part[""].values()
    mode = (tmp_path / written.path).stat().st_mode
    assert stat.filemode(mode) == "-rw-r--r--"
    assert [path.name for path in tmp_path.iterdir()] == ["day=2024-01-01"]


@pytest.mark.usefixtures("_these_are_known")
def test_two_that_fetch_at_once(monkeypatch, tmp_path):
    submit = FakeSubmit(monkeypatch, jars=NAMES)
    folder = jars_module._jar_folder(tmp_path, delta_coordinate())

    def other_is_first(command, **options):
        folder.mkdir(exist_ok=True)
        (folder / NAMES[0]).write_bytes(b"theirs")
        return submit(command, **options)

    monkeypatch.setattr(jars_module.subprocess, "run", other_is_first)
    assert [jar.read_bytes() for jar in fetch_delta_jars(tmp_path)] == [b"theirs"]
    assert list(tmp_path.iterdir()) == [folder]


def test_the_jars_of_this_machine_are_the_published_ones():
    jars = [*delta_jars(load_settings().jars)]
    assert len(jars) == 5
    assert known_jars.unknown_jars(jars) == []
    assert known_jars.unknown_jars([*jars, Path(__file__)]) == [Path(__file__)]


def test_a_jar_that_somebody_put_into_the_cache_is_not_loaded(monkeypatch, tmp_path):
    """Beside the known ones, or in the place of one; a user's own lie elsewhere."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    cache = tmp_path / "cache"
    shutil.copytree(load_settings().jars, cache, ignore=shutil.ignore_patterns("classes-*"))
    user_jar = tmp_path / "own.jar"
    user_jar.write_bytes(b"the user's affair")
    raise_if_unknown_jars(spark_config(load_settings(jars=cache)), cache)
    raise_if_unknown_jars({"spark.jars": f"{delta_jars(cache)[0]},{user_jar}"}, cache)
    swapped, added = delta_jars(cache)[0], cache / delta_jars(cache)[0].parent / "agent.jar"
    swapped.write_bytes(swapped.read_bytes() + b"x")
    added.write_bytes(b"x")
    settings = load_settings(jars=cache)
    for start in (
        lambda: Engine.from_settings(settings).spark_session,
        lambda: connect_server_command(settings, 15099, tmp_path),
    ):
        with pytest.raises(EngineError) as caught:
            start()
        message = one_sentence(caught)
        assert str(swapped) in message and str(added) in message
        assert str(delta_jars(cache)[-1]) not in message


def test_a_mirror_that_sends_other_jars(monkeypatch, tmp_path):
    FakeSubmit(monkeypatch, jars=NAMES)
    monkeypatch.setattr(known_jars, "SHA256", {})
    with pytest.raises(EngineError, match=r"another SHA-256.*Nothing was kept") as caught:
        fetch_delta_jars(tmp_path)
    assert NAMES[0] in one_sentence(caught)
    assert list(tmp_path.iterdir()) == []


NO_NETWORK = """\
:: problems summary ::
\t\tmodule not found: io.delta#delta-spark_4.2_2.13;4.4.0
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta#delta]
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
"""


@pytest.mark.parametrize("stderr", [NO_NETWORK, ""])
def test_jars_that_cannot_be_fetched(monkeypatch, tmp_path, stderr):
    FakeSubmit(monkeypatch, stderr=stderr)
    with pytest.raises(EngineError) as caught:
        fetch_delta_jars(tmp_path)
    message = one_sentence(caught)
    assert f"the Delta jars ({delta_coordinate()}) could not be downloaded" in message
    assert "check that this machine reaches Maven Central" in message
    assert ("unresolved dependency" in message) is bool(stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_jars_without_a_network(monkeypatch, tmp_path):
    """The real resolution, behind a proxy that is not there."""
    dead = "-D{0}.proxyHost=127.0.0.1 -D{0}.proxyPort=1"
    options = f"{dead.format('http')} {dead.format('https')} -Duser.home={tmp_path / 'home'}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    cache = tmp_path / "cache"
    with pytest.raises(EngineError) as caught:
        fetch_delta_jars(cache)
    assert "could not be downloaded" in one_sentence(caught)
    assert "unresolved dependency" in str(caught.value)
    assert list(cache.iterdir()) == []


# Configuration.


def test_the_embedded_session(tmp_path):
    settings = load_settings(spark_master="local[3]", spark_conf={"spark.driver.memory": "9g"})
    config = spark_config(settings)
    assert config["spark.master"] == "local[3]"
    assert config["spark.driver.memory"] == "9g"
    assert config["spark.sql.session.timeZone"] == "UTC"
    assert "-Duser.timezone=UTC" in config["spark.driver.extraJavaOptions"]
    assert "DeltaSparkSessionExtension" in config["spark.sql.extensions"]
    assert "spark.remote" not in config


def test_the_session_really_has_it(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.legacy.parquet.nanosAsLong") == "true"
    assert "Delta" in spark.conf.get("spark.sql.extensions")


def timestamp_encodings(pipeline: Pipeline) -> dict[str, tuple[str, bool]]:
    """By log day of `raw_orders`, how its files keep times, and whether with statistics."""
    encodings = {}
    for uri in pipeline.log("raw_orders").file_uris():
        columns = pq.ParquetFile(uri).metadata.row_group(0)
        by_name = {columns.column(n).path_in_schema: columns.column(n) for n in range(7)}
        column = by_name["order_ts"]
        has_statistics = column.statistics is not None and column.statistics.has_min_max
        encodings[re.findall(r"log_date=([0-9-]+)", uri)[0]] = (
            column.physical_type,
            has_statistics,
        )
    return encodings


def rewritten_as_before(spark, url: str, days: str) -> None:
    """Put the rows of some days into files as earlier releases wrote them."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        rows = spark.read.format("delta").load(url).where(days)
        writer = rows.write.format("delta").mode("overwrite").option("dataChange", "false")
        writer.option("replaceWhere", days).save(url)
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def test_times_are_kept_with_statistics_and_old_files_stay_good(pipeline, spark):
    for n in (1, 2, 3):
        pipeline.land(n, [order(f"o{n}", n, f"{n}.00", at=f"0{n}:00"), order("moves", 1)])
    names = ("raw_orders", "stg_orders")
    pipeline.run(1, 2, names)
    new = pipeline.digests()
    assert set(timestamp_encodings(pipeline).values()) == {("INT64", True)}
    rewritten_as_before(spark, str(pipeline.warehouse / "raw_orders"), "log_date = '2024-01-01'")
    pipeline.run(3, None, names)
    assert timestamp_encodings(pipeline) == {
        str(day(1)): ("INT96", False),
        str(day(2)): ("INT64", True),
        str(day(3)): ("INT64", True),
    }
    old = pipeline.digests()
    for name, days in new.items():
        assert {d: old[name][d] for d in days} == days, name
    # Both kinds of files in one table, for an engine that is not Spark.
    log = pipeline.log("raw_orders")
    order_times = {(row["order_id"], row["order_ts"]) for row in log.to_pyarrow_table().to_pylist()}
    assert order_times == {("moves", moment(1, 10))} | {(f"o{n}", moment(n, n)) for n in (1, 2, 3)}
    actions = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    statistics = {
        str(a["partition.log_date"]): (a["min.order_ts"], a["max.order_ts"]) for a in actions
    }
    assert statistics[str(day(3))] == (moment(1, 10), moment(3, 3))
    later = log.to_pyarrow_table(filters=[("order_ts", ">", moment(2, 1))])
    assert sorted(later["order_id"].to_pylist()) == ["o2", "o3"]


def moment(day_n: int, hour: int) -> datetime:
    return datetime.combine(day(day_n), clock(hour), timezone.utc)


def test_a_session_of_the_projects_own_stays_as_it_is(spark, tmp_path):
    """Runs work in clones of it, with settings of ours."""
    given = spark.cloneSession() if hasattr(spark, "cloneSession") else spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    given.conf.set("spark.sql.ansi.enabled", "false")
    given.range(3).createOrReplaceTempView("mine")
    before = dict(given.conf.getAll)
    resource = SimpleNamespace(spark_session=given)
    engine = Engine.from_session(load_settings(spark_conf=SMALL), resource)
    pipeline = Pipeline(engine, tmp_path)
    pipeline.land(1, [order("a", 1)])
    assert pipeline.run(1, 1, (RAW.name, REJECTED.name, STAGED.name)).success
    assert len(pipeline.rows(STAGED.name)) == 1
    assert (dict(given.conf.getAll), given.table("mine").count()) == (before, 3)
    for session in engine.started_sessions:
        conf = session.conf.getAll
        assert conf["spark.sql.session.timeZone"] == "UTC"
        assert conf["spark.sql.ansi.enabled"] == "true"


def test_a_session_of_the_projects_own_that_does_not_suit_is_named(spark, monkeypatch):
    monkeypatch.setattr(connect, "DELTA_CONF", {"spark.sql.no.such": "setting"})
    given = "the Spark session that build_defs was given as its engine has no Delta Lake"
    with pytest.raises(EngineError, match=f"{given}: it lacks spark.sql.no.such=setting"):
        _ = Engine.from_session(load_settings(), spark).spark_session


def test_a_connect_session_gets_only_what_can_change_at_run_time():
    conf = {"spark.sql.x": "1", "spark.master": "local[2]"}
    settings = load_settings(spark_remote="sc://h:1", spark_conf=conf)
    config = spark_config(settings)
    assert config["spark.remote"] == "sc://h:1"
    assert config["spark.sql.session.timeZone"] == "UTC"
    assert config["spark.sql.x"] == "1"
    assert not {"spark.master", "spark.jars", "spark.driver.memory"} & set(config)


OPTIONS = "spark.driver.extraJavaOptions"


def test_a_jvm_starts_with_an_archive_of_classes_where_there_is_one(tmp_path):
    archive = class_archive_path(tmp_path)
    assert archive is not None
    conf = {OPTIONS: "-Duser.timezone=UTC", "spark.driver.memory": "1g"}
    assert with_class_archive(conf, tmp_path) == conf
    archive.parent.mkdir()
    archive.write_text("no archive at all")
    options = with_class_archive(conf, tmp_path)[OPTIONS].split()
    assert options[:2] == ["-Duser.timezone=UTC", f"-XX:SharedArchiveFile={archive}"]
    # What is no archive, or that of another Java, is passed over in silence.
    output = subprocess.run(
        ["java", *options, "-version"], capture_output=True, text=True, check=True
    )
    plain = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    assert output.stdout == ""
    assert output.stderr.replace(", sharing", "") == plain.stderr.replace(", sharing", "")
    server_settings(load_settings(jars=tmp_path), tmp_path)
    assert str(archive) in (tmp_path / "java.options").read_text()


def test_no_java_no_archive(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert class_archive_path(tmp_path) is None
    assert with_class_archive({OPTIONS: "x"}, tmp_path) == {OPTIONS: "x"}
    assert not make_class_archive(tmp_path)


def test_there_is_no_archive_in_a_path_with_a_space(tmp_path):
    """Spark would cut it in two."""
    assert class_archive_path(tmp_path / "a b") is None
    assert not make_class_archive(tmp_path / "a b")


@pytest.mark.parametrize("given", ["-XX:+UseG1GC -Xmx1g", "-Xmx1g"])
def test_a_jvm_gets_one_collector(monkeypatch, given):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", given)
    options = static_config()[OPTIONS].split()
    assert ("-XX:+UseParallelGC" in options) is ("G1GC" not in given)
    assert "-Duser.timezone=UTC" in options


def test_a_folder_that_is_not_ours_gets_no_archive(tmp_path):
    (tmp_path / "file").touch()
    assert not make_class_archive(tmp_path / "file")


def test_an_archive_that_cannot_be_made_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "false")
    assert not make_class_archive(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_these_are_known")
def test_the_server_listens_on_loopback_only(tmp_path):
    folder = jars_module._jar_folder(tmp_path, delta_coordinate())
    folder.mkdir()
    (folder / NAMES[0]).touch()
    settings = load_settings(jars=tmp_path, spark_conf={"spark.driver.memory": "9g"})
    config = server_settings(settings, tmp_path)
    assert config["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert config["spark.connect.grpc.binding.port"] == "15099"
    assert config["spark.jars"] == str(folder / NAMES[0])
    assert config["spark.master"] == "local[*]"
    assert config["spark.driver.memory"] == "9g"


SECRETS = {
    "spark.hadoop.fs.azure.sas.box.account": "hush-1",
    "spark.driver.extraJavaOptions": """-Dtrust.Password="hush-2 \\"hush-3" -Dplain=1""",
    "spark.some.url": "jdbc:x://me:hush-4@host/ \nspark.other=1",
}


def test_a_jvm_gets_its_settings_by_files_of_its_owner(tmp_path):
    before = os.umask(0)
    try:
        settings = load_settings(spark_conf=SECRETS, jars=tmp_path / "jars")
        config = server_settings(settings, tmp_path)
        assert "hush" not in str(connect_server_command(settings, 15099, tmp_path))
    finally:
        os.umask(before)
    options = tmp_path / "java.options"
    assert config == {**config, **SECRETS, OPTIONS: f'"@{options}"'}
    assert '"-Dtrust.Password=hush-2 \\"hush-3"' in options.read_text().splitlines()
    for file in (options, tmp_path / "spark.properties"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_an_empty_spark_remote_is_no_server(monkeypatch):
    """Spark itself would take an empty variable for the address of a server."""
    monkeypatch.setenv("SPARK_REMOTE", "")
    monkeypatch.setattr(jars_module, "check_java", lambda: None)
    start = lambda self: setattr(self, "_spark_session", "a session")  # noqa: E731
    monkeypatch.setattr(Engine, "_init_session", start)
    monkeypatch.setattr(jars_module, "fetch_delta_jars", lambda cache: [])
    monkeypatch.setattr(module, "build_task_times", lambda cache: None)
    engine = Engine(spark_config={"spark.jars": "x.jar"}, jars="/j")
    assert engine.spark_session == "a session"
    assert engine.spark_config["spark.jars"] == "x.jar"
    assert "SPARK_REMOTE" not in os.environ


# A server that does not answer.


@pytest.mark.parametrize("secret", ["", "/;token=hush", "/;user_id=me;token=hush;x=1"])
def test_a_dead_server(monkeypatch, secret):
    monkeypatch.setattr(module, "_CONNECT_TIMEOUT", 1.0)
    engine = Engine.from_settings(load_settings(spark_remote=f"sc://127.0.0.1:1{secret}"))
    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        engine.spark_session  # noqa: B018
    assert time.monotonic() - began < 15
    message = one_sentence(caught)
    assert "the Spark Connect server at SPARK_REMOTE=sc://127.0.0.1:1" in message
    assert "does not answer (no connection within 1 s): start it, or unset SPARK_REMOTE" in message
    everything = "".join(traceback.format_exception(caught.value)) + repr(engine)
    assert "hush" not in everything


def test_patience_is_less_than_half_a_minute():
    """Spark's own client goes on for more than ten minutes."""
    assert module._CONNECT_TIMEOUT <= 30


def test_something_else_listens_there(monkeypatch):
    monkeypatch.setattr(module, "_CONNECT_TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"sc://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineError, match="does not answer"):
            Engine.from_settings(load_settings(spark_remote=url)).spark_session  # noqa: B018


def test_an_address_that_spark_refuses():
    token = "".join(("hu", "sh"))  # as the stack trace below quotes this very line
    engine = Engine.from_settings(load_settings(spark_remote=f"sc://host:1/path;token={token}"))
    with pytest.raises(EngineError) as caught:
        engine.spark_session  # noqa: B018
    assert "SPARK_REMOTE=sc://host:1/path;token=***" in one_sentence(caught)
    assert token not in "".join(traceback.format_exception(caught.value))


def test_secrets_are_for_the_session_alone(monkeypatch):
    session_config = {}
    monkeypatch.setattr(module, "start_driver", lambda config: None)
    monkeypatch.setattr(
        module, "spark_session_from_config", lambda config: session_config.update(config)
    )
    settings = load_settings(spark_conf={"spark.hadoop.fs.s3a.secret.key": "hush", "spark.x": "y"})
    engine = Engine.from_settings(settings)
    assert "hush" not in repr(engine)
    engine._init_session()
    assert session_config["spark.hadoop.fs.s3a.secret.key"] == "hush"
    assert session_config["spark.x"] == "y"


def test_the_jvm_is_asked_for_a_name_once():
    """PySpark names classes and static methods at each call."""
    answers = {
        "u\nfunctions": "ycorg.apache.spark.sql.functions",
        "m\norg.apache.spark.sql.functions\ncol": "ym",
        "m\norg.apache.spark.sql.functions\nMODULE$": "yi1",
        "u\nnowhere": "yp",
    }
    asked = []

    def send_command(command):
        name = next(name for name in answers if command.startswith(f"r\n{name}\n"))
        asked.append(name)
        return answers[name]

    gateway = SimpleNamespace(pool={}, auto_field=False, auto_convert=False)
    client = SimpleNamespace(send_command=send_command, gateway_property=gateway, converters=[])
    keep_java_names()
    keep_java_names()
    for view in (JVMView(client, "of a JVM", id="j"), JVMView(client, "of the next", id="j")):
        for _ in range(3):
            # A package may have other classes by the next time, and a field another value.
            assert isinstance(view.nowhere, JavaPackage)
            assert view.functions.col.command_header == "z:org.apache.spark.sql.functions\ncol\n"
            assert getattr(view.functions, "MODULE$") == 1
    of_each = Counter({name: 1 if name.endswith(("functions", "col")) else 3 for name in answers})
    assert Counter(asked) == of_each + of_each


# A cluster that does not take the driver.


@pytest.mark.parametrize(
    ("master", "said"),
    [("spark://h:7077", "the Spark cluster at spark://h:7077 does not answer"), ("local[1]", "x")],
)
def test_a_cluster_that_does_not_take_the_driver(monkeypatch, master, said):
    def raise_error(_):
        raise Py4JError("x")

    monkeypatch.setattr(module, "start_driver", lambda _: None)
    monkeypatch.setattr(module, "spark_session_from_config", raise_error)
    with pytest.raises(Py4JError if master == "local[1]" else EngineError) as caught:
        Engine.from_settings(load_settings(spark_master=master))._init_session()
    assert one_sentence(caught).startswith(said)
    assert is_engine_lost(caught.value) is not (master == "local[1]")
