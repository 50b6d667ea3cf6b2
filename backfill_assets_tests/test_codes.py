"""Which code makes a table: the digest sees what it imports, and git tells of its own files."""

import subprocess

import pytest

from backfill_assets.orders.facts import FACT
from backfill_assets.orders.lines import ORDER_LINES
from backfill_assets.orders.tables import RAW, TABLES
from backfill_assets.tables.codes import _PACKAGE, _Files, code_of, made_by


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


def running(given, package):
    return code_of({"table": (f"{package.name}.rules",)}, given, package)


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_committed_code(package):
    code = running("of the image", package)
    assert (code.commit, code.dirty) == (git(package, "rev-parse", "HEAD"), False)
    (package.parent / "notes.txt").write_text("beside the package")
    assert running(None, package) == code
    assert str(code) == f"{code.version} (commit {code.commit[:10]})"


def test_uncommitted_code_is_called_so(package):
    before = running(None, package)
    (package / "rules.py").write_text("W = 8\n")
    code = running(None, package)
    assert (code.commit, code.dirty) == (before.commit, True)
    assert code.version != before.version
    assert str(code).endswith(", with uncommitted changes)")


def test_a_repository_that_is_not_its_own(package):
    """A package installed in a `.venv` inside of some repository is not that repository's code."""
    installed = package.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    for name in ("__init__.py", "rules.py"):
        (installed / name).write_text("")
    code = running(None, installed)
    assert (code.commit, code.dirty) == ("", None)
    code = running("0123456789abcdef", installed)
    assert (code.commit, code.dirty) == ("0123456789abcdef", None)
    assert str(code) == f"{code.version} (commit 0123456789, as the deployment says)"


def test_without_git(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    code = running(None, package)
    assert (code.commit, code.dirty) == ("", None)
    assert str(code) == f"{code.version} (commit unknown)"


# --- by table -------------------------------------------------------------------------------------

SOURCES = {
    "__init__": "",
    "base": "WINDOW = 7",
    "helper": "import package.base",
    "alone": "",
    "command": "from package.inner.one import rows",
    "inner/__init__": "",
    "inner/one": "from package import helper\n\n\ndef rows():\n    from package.late import MORE",
    "inner/two": "from package.base import WINDOW\nfrom os import path",
    "late": "MORE = 1",
}
TWO = {"a": ("package.inner.one",), "b": ("package.inner.two",)}


@pytest.fixture
def many(tmp_path):
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    for name, text in SOURCES.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("changed", "tables"),
    [
        ("base", "ab"),
        ("helper", "a"),
        ("late", "a"),
        ("inner/one", "a"),
        ("inner/two", "b"),
        ("alone", ""),
        ("command", ""),
        ("new", ""),
    ],
)
def test_a_table_has_the_code_of_what_makes_it(many, changed, tables):
    before = code_of(TWO, None, many)
    with (many / f"{changed}.py").open("a") as file:
        file.write("\n# a word more")
    now = code_of(TWO, None, many)
    assert {table for table in TWO if now.of(table) != before.of(table)} == set(tables)
    assert (now.version != before.version) is bool(tables)
    assert before.of("another") == before.version


def test_what_makes_the_tables():
    files = _Files(_PACKAGE, [])
    imported = {name: files.closure(modules) for name, modules in made_by(TABLES).items()}
    assert imported.keys() == TABLES.keys()
    for table, modules in imported.items():
        assert {*TABLES[table].made_in} <= modules
        for module in ("publish.publisher", "delta.commits", "quality.audit", "calendar.reach"):
            assert f"backfill_assets.{module}" in modules
        assert {"backfill_assets.tables.table", "backfill_assets.orders.lines"} <= modules
        rooms = {module.split(".")[1] for module in modules}
        assert not rooms & {"cli", "monitoring", "backfills", "definitions", "sample", "examples"}
        others = {
            "dagster_ext.deployment",
            "engine.servers",
            "assets.dashboard",
            "staleness.backlog",
        }
        assert not {f"backfill_assets.{module}" for module in others} & modules
    for table in ORDER_LINES.tables:
        assert (
            not {"backfill_assets.assets.derived", "backfill_assets.assets.known"}
            & imported[table.name]
        )
        assert "backfill_assets.orders.facts" not in table.made_in
    # What is made of the lines does not decide what a line is.
    assert "backfill_assets.orders.facts" not in files.closure(["backfill_assets.orders.lines"])
    assert "backfill_assets.landing.lines" not in imported[FACT.name]
    assert "backfill_assets.landing.lines" in imported[RAW.name]
