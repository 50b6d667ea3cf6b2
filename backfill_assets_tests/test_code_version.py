"""The code version of a table: which changes of a project and of this package change it."""

import importlib
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

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
from backfill_assets.tables.graph import load_tables, tables_of
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
REORDERED = [*ORDERS, refunds, spend]
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
    # And a process that runs these tests twice has another project then.
    load_tables.cache_clear()


def table_code() -> Code:
    by_table = table_versions(tables_of(load_settings(tables="shop.tables:TABLES")))
    return Code(code_version._version_of_all(by_table), tables=by_table)


def test_the_running_code(project):
    code = running_code(load_settings(tables="shop.tables:TABLES"))
    assert (code.version, code.tables) == (table_code().version, table_code().tables)
    # The project is in no repository, whatever this package is in.
    assert (code.commit, code.dirty) == ("", None)


def test_the_commit_of_a_project_without_a_repository_is_the_one_that_its_deployment_says(project):
    settings = load_settings(tables="shop.tables:TABLES", git_commit="0123abc")
    code = running_code(settings)
    assert (code.commit, code.dirty) == ("0123abc", None)


def test_the_order_in_which_tables_are_declared_counts_for_nothing(project):
    versions = [
        running_code(load_settings(tables=f"shop.tables:{name}")).version
        for name in ("TABLES", "REORDERED")
    ]
    assert versions[0] == versions[1]


def test_of_an_asset_its_module_and_what_that_imports_count(project):
    digest = SourceFiles().modules_digest(["shop.helpers"])
    assert asset_version("shop.helpers") == f"asset-1-{digest}"


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
    ("dependency", "said"),
    [
        (
            "no_such_module",
            "'no_such_module': it is neither a module of the project nor one of an installed "
            "distribution",
        ),
        (Path("/nowhere/rates.csv"), "'/nowhere/rates.csv': No such file or directory"),
    ],
)
def test_a_declared_dependency_that_is_not_there(dependency, said):
    with pytest.raises(SettingsError) as raised:
        SourceFiles().modules_digest([], [dependency])
    assert str(raised.value) == f"bad settings: depends_on={said}"


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
    with pytest.raises(SettingsError) as raised:
        SourceFiles().modules_digest(["nowhere"])
    assert str(raised.value) == (
        "bad settings: nowhere, which declares a table, has no source file"
    )
    assert asset_version("nowhere") == ""


def test_the_old_name_of_the_examples_is_the_same_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def digest_import(place: str) -> str:
        write_files(tmp_path, {"visitors.py": f"from {place}.web_events import VISITS\nVISITS\n"})
        return SourceFiles().modules_digest(["visitors"])

    old, new = map(digest_import, ("backfill_assets.examples", "backfill_assets_guide.examples"))
    assert old == new != digest_import("backfill_assets")


def test_the_old_name_of_the_examples_is_the_same_module():
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
    assert table_versions(TABLES)["raw_orders"] == "raw-2-package-1"
    kind, number, digest = table_code().tables["spend"].split("-")
    assert (kind, number, len(digest)) == ("derived", "1", 12)
    assert table_code().table_version("another") == table_code().version


# --- what counts of a source ----------------------------------------------------------------------


@pytest.fixture
def write_project(tmp_path, monkeypatch):
    """A function that writes files of a project, which replace those of before."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> SourceFiles:
        write_files(tmp_path, files)
        importlib.invalidate_caches()
        return SourceFiles()

    return write


#: By what they are: two sources of the same rows.
SAME_ROWS = {
    "docstring": ("'''Totals.'''\nx = 1", "x = 1"),
    "constant that nobody reads": ("x = 1\n...\n'a note'\ny = 2", "x = 1\ny = 2"),
    "form": ("x = u'a'   # A comment.\ny = (1)", 'x = "a"\ny = 1'),
    "annotation of a variable": ("x: int = 1", "x = 1"),
    "annotation alone": ("x: int\ny = 1", "y = 1"),
    "annotation of a variable in a function": (
        "def f(a):\n    x: int\n    y: int = a\n    return y",
        "def f(a):\n    y = a\n    return y",
    ),
    "annotations of parameters": (
        "def f(a: A, /, b: B = 1, *c: C, d: D = 2, **e: E) -> F:\n    return a",
        "def f(a, /, b=1, *c, d=2, **e):\n    return a",
    ),
    "annotations of a coroutine": (
        "async def f(a: A, /, b: B = 1, *c: C, d: D = 2, **e: E) -> F:\n    x: int = a",
        "async def f(a, /, b=1, *c, d=2, **e):\n    x = a",
    ),
    "annotations in a method": (
        "class A:\n    def f(self, a: int) -> int:\n        x: int = a\n        y: int\n",
        "class A:\n    def f(self, a):\n        x = a\n",
    ),
    "annotations in a decorated function": (
        "@f\ndef g(a):\n    x: int = a\n    y: int\n    return x",
        "@f\ndef g(a):\n    x = a\n    return x",
    ),
    "docstring of a class": ("class A:\n    'Rows.'\n    x = 1", "class A:\n    x = 1"),
    "docstring of a method": (
        "class A:\n    def f(self):\n        'Rows.'\n        return 1",
        "class A:\n    def f(self):\n        return 1",
    ),
    "within blocks": (
        "for x in y:\n    'a note'\n    z: int = x\nelse:\n    'a note'\n    w: int = x",
        "for x in y:\n    z = x\nelse:\n    w = x",
    ),
    "within handlers": (
        "try:\n    x: int = 1\nexcept E:\n    x: int = 2\nfinally:\n    y: int = 3",
        "try:\n    x = 1\nexcept E:\n    x = 2\nfinally:\n    y = 3",
    ),
    "within a match": (
        "match x:\n    case 1:\n        'one'\n        y: int = 1\n",
        "match x:\n    case 1:\n        y = 1\n",
    ),
    "what type checkers read": (
        "import typing\nif typing.TYPE_CHECKING:\n    import frames\nx = 1",
        "import typing\nx = 1",
    ),
    "what type checkers read in a function": (
        "def f():\n    if TYPE_CHECKING:\n        import frames\n    return 1",
        "def f():\n    return 1",
    ),
    "what type checkers do not read": (
        "if TYPE_CHECKING:\n    import frames\nelif a:\n    x: int = 1\nelse:\n    x: int = 2",
        "if a:\n    x = 1\nelse:\n    x = 2",
    ),
    "place in this package": (
        "import backfill_assets.orders.tables as t, os",
        "import backfill_assets.tables.table as t, os",
    ),
    "place in this package of a name": (
        "from backfill_assets.orders.tables import STAGED",
        "from backfill_assets import STAGED",
    ),
    "place of the examples": (
        "import backfill_assets.examples.a\nfrom backfill_assets.examples import x",
        "import backfill_assets_guide.examples.a\nfrom backfill_assets_guide.examples import x",
    ),
}
#: By what they are: two sources that may give other rows.
OTHER_ROWS = {
    "value": ("x = 1", "x = 2"),
    "type of a value": ("x = 1", "x = '1'"),
    "sign of zero": ("x = 0.0", "x = -0.0"),
    "name": ("x = 1", "y = 1"),
    "order": ("x = 1\ny = x", "y = x\nx = 1"),
    "operator": ("x = a + b", "x = a - b"),
    "default": ("def f(a=1): pass", "def f(a=2): pass"),
    "kind of a parameter": ("def f(a, /, b): pass", "def f(a, b): pass"),
    "decorator": ("@f\ndef g(): pass", "@h\ndef g(): pass"),
    "what a decorator may read": ("@f\ndef g(a: int): pass", "@f\ndef g(a: str): pass"),
    "what a decorator of a coroutine may read": (
        "@f\nasync def g(a: int): pass",
        "@f\nasync def g(a: str): pass",
    ),
    "column of a model": ("class A:\n    x: int", "class A:\n    x: str"),
    "column with a default": ("class A:\n    x: int = 1", "class A:\n    x: str = 1"),
    "column after a method": (
        "class A:\n    def f(self): pass\n    x: int",
        "class A:\n    def f(self): pass\n    x: str",
    ),
    "column of a model in a function": (
        "def f():\n    class A:\n        x: int",
        "def f():\n    class A:\n        x: str",
    ),
    "column in a block": (
        "class A:\n    if B:\n        x: int",
        "class A:\n    if B:\n        x: str",
    ),
    "call for its effect": ("f()", "pass"),
    "other condition": ("if CHECKING:\n    x = 1", ""),
    "other condition of a module": ("if typing.CHECKING:\n    x = 1", ""),
    "comparison": ("if TYPE_CHECKING == 1:\n    x = 1", ""),
    "module": ("import one", "import other"),
    "name of a module": ("import one as x", "import one as y"),
    "source of a name": ("from one import x", "from other import x"),
    "this package": ("import backfill_assets", "import backfill_other"),
    "name of this package": ("from backfill_assets import x", "from backfill_assets import y"),
    "what begins like this package": (
        "import backfill_assets_of_others.a",
        "import backfill_assets_of_others.b",
    ),
    "what begins like the examples": (
        "import backfill_assets.examples_of_others",
        "import backfill_assets_guide.examples_of_others",
    ),
    "level of an import": ("from . import x", "from .. import x"),
    "import of a sibling": ("from .backfill_assets.a import x", "from .backfill_assets.b import x"),
}


def digest_source(write_project, text: str) -> str:
    return write_project({"counted.py": text}).modules_digest(["counted"])


@pytest.mark.parametrize("sources", SAME_ROWS.values(), ids=SAME_ROWS)
def test_what_cannot_change_rows_counts_for_nothing(write_project, sources):
    one, other = (digest_source(write_project, text) for text in sources)
    assert one == other


@pytest.mark.parametrize("sources", OTHER_ROWS.values(), ids=OTHER_ROWS)
def test_what_can_change_rows_counts(write_project, sources):
    one, other = (digest_source(write_project, text) for text in sources)
    assert one != other


LASTING = """
'''Each kind of statement, and of expression.'''
from __future__ import annotations
import json as j, os.path
from . import sibling
from ..above import Name as Other
from backfill_assets.orders.tables import STAGED

@j.decorated(1, key="value", *[2], **{"k": None})
class Model(Other, metaclass=type):
    column: Decimal(18, 2) = Field(ge=0)
    other: int

    @property
    async def method(self, a: int, /, b=1, *c, d=2, **e) -> str:
        async with a as f, b:
            await c
        async for g in d:
            yield g
        return f"{e!r:>10} of {self.column}"

def function(x):
    global y
    try:
        y = x[1:2, ...] if x and not y or 1 < x <= 2 else lambda z=1: ~z
    except (KeyError, ValueError) as error:
        raise RuntimeError("a") from error
    else:
        del y[0]
    finally:
        assert x, "text"
    while True:
        x += 1
        if x is None:
            break
        elif x in (1, 2.5, 3j, b"bytes", True):
            continue
    match x:
        case {"a": [1, *rest], **others} | Other(b=2) if rest:
            pass
        case _:
            return {n: {m for m in n} for n in x if n}, [*x], (yield from x)
"""


def test_the_version_of_a_project_is_the_same_in_all_releases_and_versions_of_python(write_project):
    """Else an upgrade makes all days of all tables stale: the code that built them is other code.

    If this fails, tables of a project would be computed again that have the same rows. A digest may
    change only with a release that says so.
    """
    text = {
        "lasting/__init__.py": "",
        "lasting/part/__init__.py": "",
        "lasting/part/all.py": LASTING,
    }
    more = {"lasting/part/sibling.py": "x = 1\n", "lasting/above.py": "Name = object\n"}
    files = write_project({**text, **more, "lasting/rates.csv": "EUR,1\n"})
    (folder,) = (Path(place) for place in sys.path[:1])
    depends_on = [folder / "lasting" / "rates.csv", "lasting.above"]
    assert files.modules_digest(["lasting.part.all"], depends_on) == "c0ea46a91375"


# --- which modules count --------------------------------------------------------------------------

PARCELS = {
    "parcels/__init__.py": "",
    "parcels/tables/__init__.py": "from .rounding import rounded\n",
    "parcels/tables/rounding.py": "from decimal import Decimal\n",
    "parcels/tables/sent.py": """
import os.path
import numpy
import pyspark.sql
import backfill_assets.orders.tables
import backfill_assets_guide.examples
import parcels.weights, parcels_rules as rules
from . import prices
from .. import zones
from ..carriers import rail
from .deep.down import anything
from parcels import NAMES, borders
import nowhere.at_all
""",
    "parcels/tables/prices.py": "from .costs import total\n",
    "parcels/tables/costs.py": "import parcels.tables.prices\n",
    "parcels/tables/unread.py": "",
    "parcels/tables/deep/__init__.py": "",
    "parcels/tables/deep/down/__init__.py": "from .... import top\nfrom . import below\n",
    "parcels/tables/deep/down/below.py": "",
    "parcels/weights.py": "def f():\n    import parcels.lazy\n",
    "parcels/lazy.py": "",
    "parcels/zones.py": "",
    "parcels/borders.py": "",
    "parcels/unread.py": "",
    "parcels/carriers/__init__.py": "",
    "parcels/carriers/rail/__init__.py": "",
    "parcels/carriers/rail.py": "import parcels.unread\n",
    "parcels/carriers/road.py": "",
    "parcels_rules.py": "import parcels_folder.inner\n",
    # A folder without an `__init__.py` is a package as well.
    "parcels_folder/inner.py": "",
}


def test_all_that_a_module_imports_from_the_project_counts_with_it(write_project):
    files = write_project(PARCELS)
    assert files.import_closure(["parcels.tables.sent"]) == {
        "backfill_assets_guide",
        "backfill_assets_guide.examples",
        "parcels",
        "parcels.tables",
        "parcels.tables.rounding",
        "parcels.tables.sent",
        "parcels.tables.prices",
        "parcels.tables.costs",
        "parcels.tables.deep",
        "parcels.tables.deep.down",
        "parcels.tables.deep.down.below",
        "parcels.weights",
        "parcels.lazy",
        "parcels.zones",
        "parcels.borders",
        "parcels.carriers",
        "parcels.carriers.rail",
        "parcels_rules",
        "parcels_folder.inner",
    }
    assert files.import_closure(["parcels.zones", "parcels.borders"]) == {
        "parcels",
        "parcels.zones",
        "parcels.borders",
    }
    assert files.import_closure([]) == set()


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("parcels", True),
        ("parcels.tables", True),
        ("parcels.tables.sent", True),
        ("parcels_rules", True),
        ("parcels_folder", False),
        ("parcels_folder.inner", True),
        ("parcels_rules.inner", False),
        ("parcels.nowhere", False),
        ("nowhere", False),
        ("", False),
        ("sys", False),
        ("json.decoder", False),
        ("numpy", False),
        ("pyspark.sql", False),
        ("backfill_assets.orders.tables", False),
        ("backfill_assets_guide.examples.customers", True),
        ("backfill_assets.examples.customers", True),
        ("parcels_compiled", False),
        ("parcels_native", False),
    ],
)
def test_the_project_is_what_is_neither_installed_nor_this_package(write_project, module, expected):
    compiled = {"parcels_compiled.pyc": "", f"parcels_native{EXTENSION_SUFFIXES[0]}": ""}
    assert write_project({**PARCELS, **compiled}).has_source(module) is expected


@pytest.mark.parametrize("library", ["pyspark", "py4j"])
def test_the_libraries_of_a_spark_distribution_are_not_the_project(
    write_project, monkeypatch, library
):
    """They are on the path, outside of `site-packages`."""
    monkeypatch.delitem(sys.modules, library)
    assert not write_project({f"{library}/__init__.py": ""}).has_source(library)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_is_installed_is_not_the_project(tmp_path, monkeypatch, folder):
    write_files(tmp_path / folder, {"bought.py": ""})
    monkeypatch.syspath_prepend(tmp_path / folder)
    assert not SourceFiles().has_source("bought")


def test_a_script_that_declares_tables_is_a_module(tmp_path, monkeypatch):
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert not SourceFiles().has_source("__main__")
    write_files(tmp_path, {"script.py": "x = 1\n"})
    script.__file__ = str(tmp_path / "script.py")
    assert SourceFiles().has_source("__main__")
    version = asset_version("__main__")
    write_files(tmp_path, {"script.py": "x = 2\n"})
    assert asset_version("__main__") != version


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
    # A process that runs this twice has those of the first time.
    for module in (package.name, f"{package.name}.tables", "alone"):
        monkeypatch.delitem(sys.modules, module, raising=False)
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


def test_only_the_file_of_a_module_that_stands_alone_counts(package):
    alone = package / "alone.py"
    alone.write_text("TABLES = []\n")
    run_git(package, "add", "-A")
    run_git(package, "commit", "-q", "-m", "tables")
    (package / "rules.py").write_text("W = 8\n")
    assert git_state(None, alone) == (run_git(package, "rev-parse", "HEAD"), False)
    alone.write_text("TABLES = [1]\n")
    assert git_state(None, alone) == (run_git(package, "rev-parse", "HEAD"), True)


def test_a_file_that_is_not_in_git_is_a_change_of_the_package(package):
    (package / "new.py").write_text("")
    assert git_state(None, package)[1] is True


def test_a_repository_without_a_commit(package):
    """What is there is a change: nothing is committed yet."""
    run_git(package, "update-ref", "-d", "HEAD")
    assert git_state("of the image", package) == ("", True)


def put_before_git(folder, monkeypatch, *lines):
    """A `git` that does something else first."""
    found = shutil.which("git")
    git = folder / "git"
    git.write_text("\n".join(["#!/bin/sh", *lines, f'exec {found} "$@"']))
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_it_is_unknown_whether_code_has_changed_where_git_cannot_say(
    package, tmp_path, monkeypatch
):
    put_before_git(tmp_path, monkeypatch, '[ "$3" = status ] && exit 1')
    assert git_state("of the image", package) == (run_git(package, "rev-parse", "HEAD"), None)


def test_git_that_does_not_answer_is_not_waited_for(package, tmp_path, monkeypatch):
    put_before_git(tmp_path, monkeypatch, "exec sleep 20")
    monkeypatch.setattr(code_version, "_TIMEOUT", 0.1)
    assert git_state("of the image", package) == ("of the image", None)
