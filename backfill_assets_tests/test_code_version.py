"""The code version of a table: which changes of a project and of this package change it."""

import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets import runtime_versions
from backfill_assets.orders.tables import TABLES
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.tables import code_version
from backfill_assets.tables.code_version import (
    Code,
    SourceFiles,
    _declaring_package,
    asset_version,
    git_state,
    running_code,
    table_versions,
)
from backfill_assets.tables.graph import tables_of
from backfill_assets_guide.examples.web_events import TABLES as WEB_EVENTS

IMPORTS = """
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
"""
MODEL = """
class Row(pa.DataFrameModel):
    'A row.'

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="The customer.")
    amount: T.DecimalType(18, 2) = Field(ge=0, description="The amount.")

    class Config:
        strict = True
        metadata: ClassVar = {"partition": "run_date", "key": ["customer_id"]}

"""
GROUPS = 'orders.groupBy(F.col("for_day").alias("run_date"), "customer_id")'
PROJECT = {
    "shop/__init__.py": """
from shop.rounding import rounded

def __getattr__(name):
    import importlib

    return getattr(importlib.import_module("shop.lazy"), name)
""",
    "shop/rounding.py": "def rounded(amount):\n    return amount.cast('decimal(18, 2)')\n",
    "shop/lazy.py": "def doubled(amount):\n    return amount * 2\n",
    "shop/helpers.py": """
import shop_rules

def total(amount: object) -> object:
    # A comment.
    result: object = shop_rules.scaled(amount)
    return result
""",
    "shop/spend.py": f"""{IMPORTS}
from backfill_assets import STAGED, Reads, last_days, table
from shop.helpers import total

if TYPE_CHECKING:
    from shop.unused import Unused

{MODEL}
@table(Row)
def spend(orders: Annotated[DataFrame, Reads(STAGED, last_days(3))]) -> DataFrame:
    return {GROUPS}.agg(total(F.sum("amount")).alias("amount"))
""",
    "shop/refunds.py": f"""{IMPORTS}
from pathlib import Path

from backfill_assets.orders.tables import STAGED
from backfill_assets.tables.table_function import table
from backfill_assets.tables.derived import Reads
from shop import doubled

{MODEL}
@table(Row, depends_on=["shop.loaded_by_name", "pyarrow", Path("rates.csv")])
def refunds(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    from . import inner

    return inner.kept({GROUPS}.agg(doubled(F.sum("amount")).alias("amount")))
""",
    "shop/inner.py": "def kept(frame):\n    return frame\n",
    "shop/loaded_by_name.py": "LIMIT = 1\n",
    "shop/rates.csv": "EUR,1\n",
    "shop/unused.py": "class Unused:\n    pass\n",
    "shop/tables.py": """
from backfill_assets.orders.tables import ORDERS
from shop.refunds import refunds
from shop.spend import spend

TABLES = [*ORDERS, spend, refunds]
""",
    "shop_rules.py": "def scaled(amount):\n    return amount\n",
}


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with two tables of its own, as its folder."""
    folder = tmp_path_factory.mktemp("project")
    write_files(folder, PROJECT)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    # Other tests of this process look for modules of these names.
    names = {name.partition("/")[0].removesuffix(".py") for name in PROJECT}
    for module in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[module]


def table_code() -> Code:
    by_table = table_versions(tables_of(load_settings(tables="shop.tables:TABLES")))
    return Code(code_version._version_of_all(by_table), tables=by_table)


def test_the_running_code(project):
    code = running_code(load_settings(tables="shop.tables:TABLES"))
    assert (code.version, code.tables) == (table_code().version, table_code().tables)
    # The project is in no repository, whatever this package is in.
    assert (code.commit, code.dirty) == ("", None)


#: What changes, by name: the file, the old and the new text, and the tables that are other code.
CHANGES = {
    # What decides no row.
    "comment": ("shop/helpers.py", "# A comment.", "# Another one.\n", ""),
    "formatting": ("shop/helpers.py", "scaled(amount)", "scaled(\n        amount,\n    )", ""),
    "annotation": ("shop/helpers.py", "amount: object", "amount: int", ""),
    "annotation of a result": ("shop/helpers.py", "-> object", "-> float", ""),
    "annotation of a variable": ("shop/helpers.py", "result: object =", "result =", ""),
    "docstring of a model": ("shop/spend.py", "A row.", "Another row.", ""),
    "docstring of a function": (
        "shop/rounding.py",
        "(amount):\n",
        '(amount):\n    """Round."""\n',
        "",
    ),
    "import for type checkers": ("shop/spend.py", "import Unused", "import Unused as U", ""),
    "module for type checkers": ("shop/unused.py", "pass", "x = 1", ""),
    "module of this package": (
        "shop/refunds.py",
        "from backfill_assets.tables.table_function import table",
        "from backfill_assets import table",
        "",
    ),
    "module that nobody imports": ("shop/new.py", "", "x = 1", ""),
    "module that collects the tables": ("shop/tables.py", "TABLES =", "x = 1\nTABLES =", ""),
    # What decides rows.
    "transform": ("shop/spend.py", 'F.sum("amount")', 'F.max("amount")', "spend"),
    "reach": ("shop/spend.py", "last_days(3)", "last_days(4)", "spend"),
    "bound": ("shop/spend.py", "ge=0", "ge=1", "spend"),
    "type of a column": ("shop/spend.py", "T.DecimalType(18, 2)", "T.LongType", "spend"),
    "helper": ("shop/helpers.py", "scaled(amount)", "scaled(amount * 2)", "spend"),
    "another helper": (
        "shop/helpers.py",
        "import shop_rules",
        "import other as shop_rules",
        "spend",
    ),
    "sibling module": ("shop_rules.py", "return amount", "return amount * 2", "spend"),
    "package": ("shop/__init__.py", "import importlib", "import importlib as i", "spend refunds"),
    "re-exported": ("shop/rounding.py", "18, 2", "18, 3", "spend refunds"),
    "given out lazily": ("shop/lazy.py", "* 2", "* 3", "refunds"),
    "imported in a function": ("shop/inner.py", "return frame", "return frame.limit(1)", "refunds"),
    "declared module": ("shop/loaded_by_name.py", "1", "2", "refunds"),
    "declared file": ("shop/rates.csv", "1", "2", "refunds"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_project(project, change):
    file, old, new, tables = CHANGES[change]
    path, before = project / file, table_code()
    text = path.read_text() if path.exists() else ""
    assert old in text
    try:
        path.write_text(text.replace(old, new) or new)
        after = table_code()
    finally:
        path.write_text(text)
    changed = {name for name in before.tables if before.tables[name] != after.tables[name]}
    assert changed == set(tables.split())
    # A backfill is pinned to the version of all tables: it goes on unless one of them changes.
    assert (after.version != before.version) is bool(tables)


@pytest.mark.parametrize(
    ("kind", "tables"),
    [
        ("raw", {"raw_orders"}),
        ("rejected", {"raw_orders_rejected"}),
        ("staging", {"stg_orders"}),
        ("late", {"late_orders"}),
        ("lateness", {"arrival_lateness"}),
        ("current", {"fact_daily_orders_current"}),
        ("corrections", {"fact_order_corrections"}),
        ("derived", {"fact_daily_orders", "spend", "refunds"}),
        ("package", {*TABLES}),
    ],
)
def test_a_rows_version_that_is_raised(project, monkeypatch, kind, tables):
    before = table_code()
    raised = {**code_version.ROWS_VERSION, kind: code_version.ROWS_VERSION[kind] + 1}
    monkeypatch.setattr(code_version, "ROWS_VERSION", raised)
    after = table_code()
    changed = {name for name in before.tables if before.tables[name] != after.tables[name]}
    assert changed == tables
    assert after.version != before.version


def test_every_kind_of_table_has_a_rows_version(project):
    kinds = {table.kind for table in TABLES.values()} | {"asset", "package"}
    assert kinds == code_version.ROWS_VERSION.keys()


def test_the_release_and_the_source_of_this_package_count_for_nothing(project, monkeypatch):
    before = table_code()
    monkeypatch.setattr(runtime_versions, "package_version", lambda: "99.0")
    assert table_code() == before
    files = SourceFiles()
    for table in [*TABLES.values(), *WEB_EVENTS[0].tables, WEB_EVENTS[1]]:
        for module in files.import_closure(table.modules):
            assert not module.startswith("backfill_assets.") or module in {
                *table.modules,
                "backfill_assets_guide.examples",
            }


def test_a_library_that_is_declared_counts_by_its_version(project, monkeypatch):
    before = table_code()
    monkeypatch.setattr(code_version.importlib.metadata, "version", lambda _: "99.0")
    after = table_code()
    assert [n for n in before.tables if before.tables[n] != after.tables[n]] == ["refunds"]


@pytest.mark.parametrize(
    ("dependency", "message"),
    [
        ("no_such_module", "no_such_module.*neither a module of the project nor"),
        (Path("/nowhere/rates.csv"), r"/nowhere/rates\.csv.*No such file"),
    ],
)
def test_a_declared_dependency_that_is_not_there(dependency, message):
    with pytest.raises(SettingsError, match=message):
        SourceFiles().modules_digest([], [dependency])


def test_modules_that_swap_their_contents_are_other_code(project):
    before = table_code()
    files = [project / "shop/lazy.py", project / "shop/inner.py"]
    texts = [file.read_text() for file in files]
    try:
        for file, text in zip(files, reversed(texts), strict=True):
            file.write_text(text)
        after = table_code()
    finally:
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
    assert [n for n in before.tables if before.tables[n] != after.tables[n]] == ["refunds"]


def test_a_module_without_source():
    with pytest.raises(SettingsError, match="nowhere, which declares a table, has no source file"):
        SourceFiles().modules_digest(["nowhere"])
    assert asset_version("nowhere") == ""


def test_the_old_name_of_the_examples_is_the_same_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def digest_import(place: str) -> str:
        write_files(tmp_path, {"visitors.py": f"from {place}.web_events import VISITS\nVISITS\n"})
        return SourceFiles().modules_digest(["visitors"])

    old, new = map(digest_import, ("backfill_assets.examples", "backfill_assets_guide.examples"))
    assert old == new != digest_import("backfill_assets")
    code = (
        "import backfill_assets.examples.customers as by_old_name\n"
        "import backfill_assets_guide.examples.customers as customers\n"
        "import backfill_assets.examples\n"
        "assert by_old_name is customers is backfill_assets.examples.customers\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "backfill_assets_guide.examples now; the old name goes" in result.stderr


def test_a_project_that_is_installed(tmp_path, monkeypatch):
    """All modules of its distribution count, those of others do not."""
    installed = tmp_path / "site-packages"
    write_files(
        installed,
        {
            "wares/__init__.py": "",
            "wares/tables.py": "import wares_rules\nimport other_library\n",
            "wares_rules.py": "LIMIT = 1\n",
            "other_library.py": "LIMIT = 1\n",
        },
    )
    monkeypatch.syspath_prepend(installed)
    by_package = {"wares": ["wares"], "wares_rules": ["wares"], "other_library": ["other"]}
    monkeypatch.setattr(code_version, "_distributions", lambda: by_package)
    before = SourceFiles().modules_digest(["wares.tables"])
    (installed / "other_library.py").write_text("LIMIT = 2\n")
    assert SourceFiles().modules_digest(["wares.tables"]) == before
    (installed / "wares_rules.py").write_text("LIMIT = 2\n")
    assert SourceFiles().modules_digest(["wares.tables"]) != before


def test_a_version_can_be_read(project):
    assert table_versions(TABLES)["raw_orders"] == "raw-1-package-1"
    kind, number, digest = table_code().tables["spend"].split("-")
    assert (kind, number, len(digest)) == ("derived", "1", 12)
    assert table_code().table_version("another") == table_code().version


# --- git ------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    """A package in a git repository, all of it committed."""
    folder = tmp_path / "repository" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "rules.py").write_text("W = 7\n")
    run_git(folder, "init", "-q")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-q", "-m", "first")
    return folder


def run_git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x.org", "-c", "commit.gpgsign=false"]
    process = subprocess.run(
        ["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def test_committed_code(package):
    assert git_state("of the image", package) == (run_git(package, "rev-parse", "HEAD"), False)
    (package.parent / "notes.txt").write_text("beside the package")
    assert git_state(None, package)[1] is False


def test_uncommitted_code_is_called_so(package):
    (package / "rules.py").write_text("W = 8\n")
    commit, dirty = git_state(None, package)
    assert (commit, dirty) == (run_git(package, "rev-parse", "HEAD"), True)
    assert str(Code("v", commit, dirty)) == f"v (commit {commit[:10]}, with uncommitted changes)"


def test_the_commit_is_that_of_the_module_that_declares_the_tables(package, monkeypatch):
    """Whatever repository this package is installed from."""
    (package / "tables.py").write_text("TABLES = []\n")
    run_git(package, "add", "-A")
    run_git(package, "commit", "-m", "tables")
    (package.parent / "alone.py").write_text("TABLES = []\n")
    monkeypatch.syspath_prepend(str(package.parent))
    own_source, alone = (
        _declaring_package(f"{package.name}.tables:TABLES"),
        _declaring_package("alone:TABLES"),
    )
    assert git_state("of the image", own_source) == (run_git(package, "rev-parse", "HEAD"), False)
    assert git_state("of the image", alone) == ("of the image", None)


def test_a_repository_that_is_not_its_own(package):
    """A package installed in a `.venv` inside of some repository is not that repository's code."""
    installed = package.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_state(None, installed) == ("", None)
    assert git_state("0123456789abcdef", installed) == ("0123456789abcdef", None)
    assert str(Code("v", "0123456789abcdef")) == "v (commit 0123456789, as the deployment says)"


def test_without_git(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_state(None, package) == ("", None)
    assert str(Code("v")) == "v (commit unknown)"
