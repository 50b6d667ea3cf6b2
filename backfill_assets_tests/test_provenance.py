"""Which code runs: the digest sees the source, and git's word is taken only for its own files."""

import re
import subprocess
from importlib.metadata import version

import pytest

from backfill_assets.provenance import Code, running_code, time_zone_data


@pytest.fixture
def package(tmp_path):
    """A package in a git repository, all of it committed."""
    folder = tmp_path / "repository" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "rules.py").write_text("W = 7\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_committed_code(package):
    code = running_code("of the image", package)
    assert (code.commit, code.dirty) == (git(package, "rev-parse", "HEAD"), False)
    (package.parent / "notes.txt").write_text("beside the package")
    assert running_code(None, package) == code
    assert str(code) == f"{code.version} (commit {code.commit[:10]})"


@pytest.mark.parametrize("name", ["rules.py", "new.py"])
def test_uncommitted_code_is_called_so(package, name):
    before = running_code(None, package)
    (package / name).write_text("W = 8\n")
    code = running_code(None, package)
    assert (code.commit, code.dirty) == (before.commit, True)
    assert code.version != before.version
    assert str(code).endswith(", with uncommitted changes)")


def test_a_repository_that_is_not_its_own(package):
    """A package installed in a `.venv` inside of some repository is not that repository's code."""
    installed = package.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert running_code(None, installed) == Code(running_code(None, installed).version, "", None)
    code = running_code("0123456789abcdef", installed)
    assert (code.commit, code.dirty) == ("0123456789abcdef", None)
    assert str(code) == f"{code.version} (commit 0123456789, as the deployment says)"


def test_without_git(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    code = running_code(None, package)
    assert (code.commit, code.dirty) == ("", None)
    assert str(code) == f"{code.version} (commit unknown)"


# --- the engine ---


def java(home, head: bytes) -> str:
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "tzdb.dat").write_bytes(head + b"\x02[\x00\x0eAfrica/Abidjan")
    return str(home)


def test_the_time_zone_data_is_that_of_java(tmp_path, monkeypatch):
    head = b"\x01\x00\x04TZDB\x00\x01\x00\x052031c"
    monkeypatch.setenv("JAVA_HOME", java(tmp_path / "jdk", head))
    assert time_zone_data() == "2031c"


def test_the_time_zone_data_of_the_java_on_the_path(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert re.fullmatch(r"20\d\d[a-z]", time_zone_data())


@pytest.mark.parametrize("head", [b"", b"\x01\x00\x04ABCD\x00\x01\x00\x052031c"])
def test_without_those_the_time_zone_data_is_the_package_s(tmp_path, monkeypatch, head):
    monkeypatch.setenv("JAVA_HOME", java(tmp_path / "jdk", head))
    assert time_zone_data() == version("tzdata")
