"""The environment that JVMs and Python workers are given, whatever the shell has."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from pathlib import Path

import pytest

from backfill_assets.spark.jars import EngineError, check_java
from backfill_assets.spark.processes import (
    TOKEN_VARIABLE,
    environment_problem,
    ignored_variables,
    jvm_environment,
    spark_home,
    use_jvm_environment,
)

ELSEWHERE = {
    "SPARK_HOME": "/opt/other-spark",
    "SPARK_CONF_DIR": "/etc/spark",
    "SPARK_REMOTE": "",
    "SPARK_SUBMIT_OPTS": "-Xmx1m",
    "SPARK_DRIVER_MEMORY": "1t",
    "SPARK_LOCAL_IP": "203.0.113.9",
    "PYSPARK_SUBMIT_ARGS": "--nonsense",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "_JAVA_OPTIONS": "-Xmx1m",
}
OF_CLUSTERS = {"PYSPARK_PYTHON": "/opt/python/bin/python3", "SPARK_PUBLIC_DNS": "driver.example"}
PASSED_ON = {
    "HADOOP_CONF_DIR": "/etc/hadoop",
    "JAVA_TOOL_OPTIONS": "-Dhttps.proxyHost=proxy",
    "SPARK_LOCAL_DIRS": "/scratch",
    TOKEN_VARIABLE: "secret",
    "BACKFILL_ASSETS_START": "2024-01-01",
}


@pytest.fixture
def shell(monkeypatch) -> None:
    for name, value in (ELSEWHERE | OF_CLUSTERS | PASSED_ON | {"LC_ALL": "C"}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("master", ["local[2]", "spark://machine:7077"])
def test_our_spark_and_utf_8(shell, master):
    environment = jvm_environment(master)
    assert environment["SPARK_HOME"] == str(spark_home())
    assert environment["LC_ALL"] == "C.UTF-8" or sys.platform != "linux"
    assert not {*environment.items()} & {*ELSEWHERE.items()}
    assert PASSED_ON.items() <= environment.items()


def test_workers_on_this_machine_have_the_python_of_the_deployment(shell):
    environment = jvm_environment("local[*]")
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_PUBLIC_DNS" not in environment


def test_a_cluster_has_a_python_of_its_own(shell):
    assert OF_CLUSTERS.items() <= jvm_environment("spark://machine:7077").items()


def test_what_the_engine_is_not_given_is_named(shell):
    named = {*ELSEWHERE, *OF_CLUSTERS} - {"SPARK_REMOTE"}
    assert {*ignored_variables("local[2]")} >= named
    assert not {*ignored_variables("local[2]")} & {*PASSED_ON, "LC_ALL", "SPARK_REMOTE"}
    assert not {*ignored_variables("spark://machine:7077")} & OF_CLUSTERS.keys()


def test_what_libraries_set_in_a_process_is_not_named(monkeypatch):
    before = ignored_variables("local")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_AUTH_SOCKET_TIMEOUT", "15")
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")
    assert ignored_variables("local") == before
    assert "SPARK_LOCAL_IP" not in jvm_environment("spark://machine:7077")
    assert "SPARK_LOCAL_IP" not in ignored_variables("spark://machine:7077")


def test_this_process_has_its_own_environment_again(shell):
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), use_jvm_environment("local"):
        assert os.environ["SPARK_HOME"] == str(spark_home())
        assert "_JAVA_OPTIONS" not in os.environ
        os.environ["PYSPARK_SUBMIT_ARGS"] = "ours"
        1 / 0  # noqa: B018
    assert dict(os.environ) == before


def fake_java(tmp_path: Path, monkeypatch, says: str, status: int = 0) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(says)} >&2\nexit {status}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


def refusal_message() -> str:
    with pytest.raises(EngineError) as refused:
        check_java()
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_user_without_a_name(monkeypatch):
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    assert environment_problem() == ""
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert f"user id {os.geteuid()} has no name" in refusal_message()


def test_names_of_files_in_another_encoding(monkeypatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    assert "set LC_ALL=C.UTF-8" in refusal_message()


def test_a_java_without_the_locale(tmp_path, monkeypatch):
    says = '    sun.jnu.encoding = ANSI_X3.4-1968\nopenjdk version "17.0.9"'
    fake_java(tmp_path, monkeypatch, says)
    assert "ANSI_X3.4-1968, and they are UTF-8: install the locale C.UTF-8" in refusal_message()


def test_options_that_java_refuses(tmp_path, monkeypatch):
    fake_java(tmp_path, monkeypatch, "Unrecognized VM option 'Nonsense'", status=1)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+Nonsense")
    assert (
        "does not start with the options in JAVA_TOOL_OPTIONS (Unrecognized VM" in refusal_message()
    )
