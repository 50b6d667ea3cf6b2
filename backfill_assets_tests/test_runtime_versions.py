"""Which versions of the engine and of time zones the rows depend on."""

import re
from importlib.metadata import version

import pytest

from backfill_assets.runtime_versions import time_zone_data

# --- the engine ---


def make_java_home(home, head: bytes) -> str:
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "tzdb.dat").write_bytes(head + b"\x02[\x00\x0eAfrica/Abidjan")
    return str(home)


def test_the_time_zone_data_is_that_of_java(tmp_path, monkeypatch):
    head = b"\x01\x00\x04TZDB\x00\x01\x00\x052031c"
    monkeypatch.setenv("JAVA_HOME", make_java_home(tmp_path / "jdk", head))
    assert time_zone_data() == "2031c"


def test_the_time_zone_data_of_the_java_on_the_path(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert re.fullmatch(r"20\d\d[a-z]", time_zone_data())


@pytest.mark.parametrize("head", [b"", b"\x01\x00\x04ABCD\x00\x01\x00\x052031c"])
def test_without_those_the_time_zone_data_is_the_package_s(tmp_path, monkeypatch, head):
    monkeypatch.setenv("JAVA_HOME", make_java_home(tmp_path / "jdk", head))
    assert time_zone_data() == version("tzdata")
