"""The code version of a table: which changes of a project and of this package change it."""

# A change is one line, however long.
# ruff: noqa: E501

import ast
import dataclasses
import enum
import functools
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from reprlib import recursive_repr
from threading import Lock
from types import FunctionType, ModuleType, SimpleNamespace
from typing import ClassVar, Optional

import pyarrow
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect import functions as connect
from pyspark.sql.connect.session import SparkSession as RemoteSession
from pyspark.sql.types import LongType
from pyspark.sql.udf import UserDefinedFunction

from backfill_assets import runtime_versions
from backfill_assets.backfills.accept_code import days_by_reason
from backfill_assets.calendar.reach import Reach
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import TABLES
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.tables import code_version, derived, project_source
from backfill_assets.tables.code_version import (
    DECIDING,
    Code,
    _declaring_package,
    asset_version,
    declare,
    format_code_change,
    git_state,
    parts_of_version,
    table_codes,
)
from backfill_assets.tables.columns import Forbidden
from backfill_assets.tables.graph import load_tables, tables_of
from backfill_assets.tables.project_source import (
    DeadEndError,
    Project,
    TreeReader,
    function_trees,
)
from backfill_assets.tables.reached_code import reach, text_digest
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Table
from backfill_assets.tables.table_options import OPTION_NAMES
from backfill_assets.tables.unpartitioned import Lookup, LookupAnswers, Unpartitioned
from backfill_assets_tests.helpers.paths import PROJECT as PROJECT_FOLDER
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

IMPORTS = """
from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, Source, last_days, table
from backfill_assets.orders.tables import STAGED
"""
MODEL = """
class Row(pa.DataFrameModel):
    'A row.'

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="The customer.")
    amount: T.DecimalType(18, 2) = Field(ge=0, description="The amount.")


OF_ROW = {"partition": "run_date", "key": ["customer_id"]}

"""
GROUPS = 'orders.groupBy(F.col("for_day").alias("run_date"), "customer_id")'
INPUT = "orders: Annotated[DataFrame, Reads(STAGED, last_days(3))]"
#: All tables in one module, with all that they reach; the names of tables tell what they reach.
PROJECT = {
    "shop/__init__.py": "",
    "shop/settings.py": """
import enum
import os
from dataclasses import dataclass
from pathlib import Path

RATE = 0.21
LIMIT = os.environ.get("SHOP_LIMIT", "10")
SQL = (Path(__file__).parent / "query.sql").read_text()
FOLDER = Path(__file__).parent / "files"
UNREAD = 1


class Size(enum.Enum):
    SMALL = 1


@dataclass(frozen=True)
class Fees:
    share: float

    def fee(self, amount):
        return amount * self.share

FEES = Fees(0.1)
TABLE = {"eur": 1.0, "usd": [1.1, {2, 3}]}
""",
    "shop/query.sql": "amount > 0",
    "shop/dynamic.py": "RATE = 0.21\n\n\ndef unread():\n    return 1\n",
    "shop/helpers.py": """
import functools

import shop_rules
from shop import settings


def total(amount: object) -> object:
    # A comment.
    result: object = shop_rules.scaled(amount)
    return result


def with_rate(amount):
    return amount * settings.RATE


def logged(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


@logged
def decorated(amount):
    return amount + 1


def add(amount, more=2):
    return amount + more


added = functools.partial(add, more=3)
negated = lambda amount: -amount; halved = lambda amount: amount / 2


def make_scale(by):
    def scale(amount):
        return amount * by

    return scale


tripled = make_scale(3)


class Rounder:
    digits = 2

    def __init__(self, plus):
        self.plus = plus

    def round(self, amount):
        return self.shift(F.round(amount, self.digits))

    def shift(self, amount):
        return amount + self.plus


ROUNDER = Rounder(1)


def is_even(n):
    return n == 0 or is_odd(n - 1)


def is_odd(n):
    return n != 0 and is_even(n - 1)


@functools.lru_cache
def cached(n):
    return n + 1


@functools.singledispatch
def dispatched(n):
    return 1


@dispatched.register
def _(n: str):
    return 5


def documented():
    'amount > 1'


def read_doc():
    return documented.__doc__
""".replace(
        "import functools\n", "import functools\n\nfrom pyspark.sql import functions as F\n", 1
    ),
    "shop/lazy.py": "def kept(frame):\n    return frame\n\ndef unused():\n    return 1\n",
    "shop_rules.py": "def scaled(amount):\n    return amount\n",
    "space/inside.py": "FACTOR = 5\n",
    "shop/sources.py": IMPORTS
    + """
class Line(pa.DataFrameModel):
    visit_id: T.StringType = Field(description="The visit.")
    at: T.TimestampType = Field(description="The time.")


def make_source(name):
    return Source(name, Line, key=["visit_id"], event_time="at", timezone="Europe/Berlin")


VISITS = make_source("visits")
CALLS = replace(VISITS, name="calls", timezone="Asia/Tokyo")
""",
    "shop/spend.py": IMPORTS
    + """
from importlib import import_module

from pyspark.sql.functions import udf

from shop import dynamic, helpers, settings
from shop.helpers import total
from space import inside

if TYPE_CHECKING:
    from shop.unused import Unused

GREETING = "hello"
by_name = import_module("shop.lazy")


@udf(T.StringType())
def shout(text):
    return text.upper()

"""
    + MODEL
    + "".join(
        f"""
@table(Row, **OF_ROW)
def {name}({INPUT}) -> DataFrame:
    return {GROUPS}.agg({expression}.cast("decimal(18, 2)").alias("amount"))

"""
        for name, expression in {
            "plain": 'F.sum("amount")',
            "by_helper": 'total(F.sum("amount"))',
            "by_rate": 'helpers.with_rate(F.sum("amount"))',
            "by_udf": 'F.max(shout("customer_id"))',
            "by_limit": "F.lit(settings.LIMIT)",
            "by_sql": "F.expr(settings.SQL)",
            "by_path": "F.lit(str(settings.FOLDER))",
            "by_enum": "F.lit(settings.Size.SMALL.value)",
            "by_fees": 'settings.FEES.fee(F.sum("amount"))',
            "by_dict": 'F.lit(settings.TABLE["eur"])',
            "by_decorated": 'helpers.decorated(F.sum("amount"))',
            "by_partial": 'helpers.added(F.sum("amount"))',
            "by_lambda": 'helpers.negated(F.sum("amount"))',
            "by_closure": 'helpers.tripled(F.sum("amount"))',
            "by_method": 'helpers.ROUNDER.round(F.sum("amount"))',
            "by_recursion": "F.lit(helpers.is_even(2))",
            "by_cached": "F.lit(helpers.cached(2))",
            "by_dispatch": "F.lit(helpers.dispatched('x'))",
            "by_docstring": "F.expr(helpers.read_doc())",
            "by_namespace": "F.lit(inside.FACTOR)",
            "by_module": "by_name.kept(F.sum('amount'))",
            "by_format": 'F.lit(f"{GREETING:>{settings.RATE}}")',
            "by_nested": '(lambda amount: [total(x) for x in [amount]][0])(F.sum("amount"))',
        }.items()
    )
    + f"""
@table(Row, **OF_ROW)
def by_lazy_import({INPUT}) -> DataFrame:
    from .lazy import kept

    return kept({GROUPS}.agg(F.sum("amount").alias("amount")))


@table(Row, **OF_ROW)
def by_getattr({INPUT}) -> DataFrame:
    return getattr(dynamic, "RATE")
""",
    "shop/rows.py": IMPORTS
    + "from backfill_assets import version_of\n"
    + MODEL
    + """
from pathlib import Path


def make_table(name, days):
    def build(orders: Annotated[DataFrame, Reads(STAGED, last_days(days))]) -> DataFrame:
        return orders

    build.__annotations__["orders"] = Annotated[DataFrame, Reads(STAGED, last_days(days))]
    build.__name__ = build.__qualname__ = name
    return table(Row, **OF_ROW)(build)


made = make_table("made", 2)


@version_of(made, 2)
def made_v2(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return orders.limit(7)


@table(Row, **OF_ROW, depends_on=["shop.listed", "pyarrow", Path("rates.csv"), Path("trees")])
def depending(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return orders
""",
    "shop/listed.py": "LIMIT = 1\n\ndef bounded(x):\n    return x\n",
    "shop/rates.csv": "EUR,1\n",
    "shop/trees/a/one.txt": "1",
    "shop/unused.py": "class Unused:\n    pass\n",
    "shop/tables.py": """
from backfill_assets.orders.tables import ORDER_LINES, ORDERS
from backfill_assets.tables.derived import Derived
from shop import rows, settings, sources, spend

OWN = [value for module in (spend, rows) for value in vars(module).values()
       if isinstance(value, Derived)]
TABLES = [*ORDERS, sources.VISITS, sources.CALLS, *OWN]
RUN = [
    ORDER_LINES,
    *(spend.plain, spend.by_helper, spend.by_rate, spend.by_closure, spend.by_fees),
    *(spend.by_dict, spend.by_decorated, spend.by_partial, spend.by_recursion, spend.by_cached),
]
REORDERED = [*ORDERS, *reversed(OWN), sources.CALLS, sources.VISITS]
""",
}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)


def forget_modules() -> None:
    """As in a new process: nothing of the project is imported."""
    names = {"shop", "shop_rules", "space", "moved"}
    for module in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[module]
    importlib.invalidate_caches()
    load_tables.cache_clear()


def import_project(module: str) -> ModuleType:
    """A module of the project."""
    return importlib.import_module(module)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of many tables of its own in one module, as its folder."""
    folder = tmp_path_factory.mktemp("project")
    write_files(folder, PROJECT)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(sys, "dont_write_bytecode", True)
        yield folder
    forget_modules()


def imported_code(name: str = "TABLES") -> Code:
    """The code of the project, as a new process imports it."""
    forget_modules()
    return Deployment(load_settings(tables=f"shop.tables:{name}")).code


@pytest.fixture(scope="module")
def before(project) -> Code:
    return imported_code()


def changed_tables(before: Code, after: Code) -> set[str]:
    return {name for name in before.tables if before.tables[name] != after.tables[name]}


#: What changes, by name: the file, the old and the new text, and the tables that are other code.
CHANGES: dict[str, tuple[str, str, str, str]] = {
    # --- what decides no row ---
    "comment": ("shop/helpers.py", "# A comment.", "# Another one.\n", ""),
    "formatting": ("shop/helpers.py", "scaled(amount)", "scaled(\n        amount,\n    )", ""),
    "lines before a function": ("shop/helpers.py", "def total", "\n\n\ndef total", ""),
    "annotation": ("shop/helpers.py", "amount: object", "amount: int", ""),
    "annotation of a result": ("shop/helpers.py", "-> object", "-> float", ""),
    "annotation of a variable": ("shop/helpers.py", "result: object =", "result =", ""),
    "annotations as text": ("shop/helpers.py", "import functools", "from __future__ import annotations\nimport functools", ""),
    "docstring of a model": ("shop/spend.py", "A row.", "Another row.", ""),
    "docstring of a function": ("shop_rules.py", "(amount):\n", '(amount):\n    """Scale."""\n', ""),
    "description of a column": ("shop/spend.py", "The amount.", "The sum.", ""),
    "warning about nulls": ("shop/rows.py", 'Field(description="The customer.")', 'Field(description="The customer.", metadata={"owner": "us"})', ""),
    "group": ("shop/spend.py", "@table(Row, **OF_ROW)\ndef plain", "@table(Row, **OF_ROW, group='sales')\ndef plain", ""),
    "no check": ("shop/spend.py", "@table(Row, **OF_ROW)\ndef plain", "@table(Row, **OF_ROW, checks=[])\ndef plain", ""),
    "retired": ("shop/spend.py", "@table(Row, **OF_ROW)\ndef plain", "@table(Row, **OF_ROW, retired=date(2030, 1, 1))\ndef plain", ""),
    "frozen": ("shop/spend.py", "@table(Row, **OF_ROW)\ndef plain", "@table(Row, **OF_ROW, frozen=True)\ndef plain", ""),
    "lineage": ("shop/spend.py", "@table(Row, **OF_ROW)\ndef plain", "@table(Row, **OF_ROW, lineage={'amount': [('stg_orders', 'amount')]})\ndef plain", ""),
    "drift": ("shop/spend.py", '"key": ["customer_id"]}', '"key": ["customer_id"], "drift": {"amount": 0.2}}', ""),
    "list of public names": ("shop/helpers.py", "import shop_rules", "import shop_rules\n__all__ = ['total']", ""),
    "import that nobody uses": ("shop/helpers.py", "import shop_rules", "import json\nimport shop_rules", ""),
    "another alias of a module": ("shop/spend.py", "from shop import dynamic, helpers, settings", "import shop.helpers as helpers\nfrom shop import dynamic, settings", ""),
    "import for type checkers": ("shop/spend.py", "import Unused", "import Unused as U", ""),
    "module for type checkers": ("shop/unused.py", "pass", "x = 1", ""),
    "constant that nobody reads": ("shop/settings.py", "UNREAD = 1", "UNREAD = 2", ""),
    "function that nobody calls": ("shop/lazy.py", "return 1", "return 2", ""),
    "the same value, written otherwise": ("shop/settings.py", "RATE = 0.21", "RATE = 21 / 100", ""),
    "how a constant is made": ("shop/settings.py", 'LIMIT = os.environ.get("SHOP_LIMIT", "10")', 'LIMIT = str(10)', ""),
    "order of a set": ("shop/settings.py", "{2, 3}", "{3, 2}", ""),
    "module of this package": ("shop/spend.py", "import Reads, Source, last_days, table", "import Reads, Source, last_days\nfrom backfill_assets.tables.table_function import table", ""),
    "name of a factory": ("shop/rows.py", "make_table", "build_table", ""),
    "name of a model": ("shop/spend.py", "Row", "Line", ""),
    "name of an enumeration's owner": ("shop/tables.py", "OWN", "MINE", ""),
    "module that nobody imports": ("shop/new.py", "", "x = 1", ""),
    "module that collects the tables": ("shop/tables.py", "TABLES =", "x = 1\nTABLES =", ""),
    "package": ("shop/__init__.py", "", "import importlib as i\n", ""),
    "other function of a namespace package": ("space/inside.py", "FACTOR = 5", "FACTOR = 5\nOTHER = 1", ""),
    "docstring that nobody reads": ("shop/spend.py", "def shout(text):\n", "def shout(text):\n    'Loud.'\n", ""),
    "hourly": ("shop/sources.py", 'event_time="at",', 'event_time="at", hourly=True,', ""),
    "description of a line": ("shop/sources.py", "The visit.", "A visit.", ""),
    # --- what decides rows: of the table itself ---
    "transform": ("shop/spend.py", 'agg(F.sum("amount").cast', 'agg(F.max("amount").cast', "plain"),
    "reach": ("shop/spend.py", "last_days(3))]) -> DataFrame:\n    return " + GROUPS + '.agg(F.sum("amount")', "last_days(4))]) -> DataFrame:\n    return " + GROUPS + '.agg(F.sum("amount")', "plain"),
    "each row once": ("shop/rows.py", "last_days(days))]\n", "last_days(days), each_row_once=True)]\n", "made"),
    "check": ("shop/spend.py", "@table(Row, **OF_ROW)\ndef plain", "from backfill_assets import forbids_rows\n@table(Row, **OF_ROW, checks=[forbids_rows('none', lambda rows: rows, 'No.')])\ndef plain", "plain"),
    "table made by a call": ("shop/rows.py", 'make_table("made", 2)', 'make_table("made", 5)', "made"),
    "second version of a table": ("shop/rows.py", "limit(7)", "limit(8)", "made_v2"),
    # --- what it reaches ---
    "UDF": ("shop/spend.py", "text.upper()", "text.lower()", "by_udf"),
    "type of a UDF": ("shop/spend.py", "@udf(T.StringType())", "@udf(T.BinaryType())", "by_udf"),
    "helper": ("shop/helpers.py", "scaled(amount)", "scaled(amount * 2)", "by_helper by_nested"),
    "helper of a helper": ("shop_rules.py", "return amount", "return amount * 2", "by_helper by_nested"),
    "another function for a name": ("shop/spend.py", "from shop.helpers import total", "from shop.helpers import cached as total", "by_helper by_nested"),
    "constant": ("shop/settings.py", "RATE = 0.21", "RATE = 0.19", "by_rate by_format"),
    "type of a constant": ("shop/settings.py", "RATE = 0.21", "RATE = '0.21'", "by_rate by_format"),
    "file read at import": ("shop/query.sql", "> 0", "> 1", "by_sql"),
    "path": ("shop/settings.py", '"files"', '"others"', "by_path"),
    "member of an enumeration": ("shop/settings.py", "SMALL = 1", "SMALL = 2", "by_enum"),
    "value in a dict": ("shop/settings.py", "[1.1, {2", "[1.1, {4, 2", "by_dict"),
    "value of a dict": ("shop/settings.py", '"eur": 1.0', '"eur": 2.0', "by_dict"),
    "order of a dict": ("shop/settings.py", '{"eur": 1.0, "usd": [1.1, {2, 3}]}', '{"usd": [1.1, {2, 3}], "eur": 1.0}', "by_dict"),
    "object": ("shop/settings.py", "Fees(0.1)", "Fees(0.2)", "by_fees"),
    "method of an object": ("shop/settings.py", "amount * self.share", "amount / self.share", "by_fees"),
    "attribute of an object": ("shop/helpers.py", "Rounder(1)", "Rounder(2)", "by_method"),
    "attribute of a class": ("shop/helpers.py", "digits = 2", "digits = 3", "by_method"),
    "method that a method calls": ("shop/helpers.py", "amount + self.plus", "amount - self.plus", "by_method"),
    "decorated function": ("shop/helpers.py", "return amount + 1", "return amount + 2", "by_decorated"),
    "decorator": ("shop/helpers.py", "return function(*args)", "return function(*args) * 2", "by_decorated"),
    "no decorator": ("shop/helpers.py", "@logged\n", "", "by_decorated"),
    "default": ("shop/helpers.py", "more=2", "more=4", "by_partial"),
    "partial": ("shop/helpers.py", "more=3", "more=4", "by_partial"),
    "lambda of two on a line": ("shop/helpers.py", "-amount;", "-amount * 2;", "by_lambda"),
    "the other lambda": ("shop/helpers.py", "amount / 2", "amount / 3", ""),
    "value of a closure": ("shop/helpers.py", "make_scale(3)", "make_scale(4)", "by_closure"),
    "function with a closure": ("shop/helpers.py", "return amount * by", "return amount / by", "by_closure"),
    "mutual recursion": ("shop/helpers.py", "n != 0 and", "n != 1 and", "by_recursion"),
    "function that is registered for a type": ("shop/helpers.py", "return 5", "return 6", "by_dispatch"),
    "order of columns": ("shop/rows.py", "class Row(pa.DataFrameModel):\n    'A row.'\n\n    run_date: T.DateType = Field(description=\"The day.\")\n    customer_id: T.StringType = Field(description=\"The customer.\")\n", "class Row(pa.DataFrameModel):\n    customer_id: T.StringType = Field(description=\"The customer.\")\n    run_date: T.DateType = Field(description=\"The day.\")\n", ""),
    "cached function": ("shop/helpers.py", "return n + 1", "return n + 2", "by_cached"),
    "docstring that is read": ("shop/helpers.py", "'amount > 1'", "'amount > 2'", "by_docstring"),
    "module that is used as a value": ("shop/dynamic.py", "return 1", "return 2", "by_getattr"),
    "namespace package": ("space/inside.py", "5", "6", "by_namespace"),
    "module imported by a text": ("shop/lazy.py", "return frame", "return frame.limit(1)", "by_module by_lazy_import"),
    "f-string": ("shop/spend.py", "{GREETING:>", "{GREETING:<", "by_format"),
    "text in an f-string": ("shop/spend.py", 'GREETING = "hello"', 'GREETING = "hullo"', "by_format"),
    "constant that another module sets": ("shop/tables.py", "OWN =", "settings.RATE = 0.5\nOWN =", "by_rate by_format"),
    # --- what it names ---
    "module that is named": ("shop/listed.py", "LIMIT = 1", "LIMIT = 2", "depending"),
    "function of a module that is named": ("shop/listed.py", "return x", "return x + 1", "depending"),
    "file that is named": ("shop/rates.csv", "1", "2", "depending"),
    "file in a folder that is named": ("shop/trees/a/one.txt", "1", "2", "depending"),
    # --- sources ---
    "zone in a factory": ("shop/sources.py", "Europe/Berlin", "Europe/Rome", "visits"),
    "zone by replace": ("shop/sources.py", "Asia/Tokyo", "Asia/Seoul", "calls"),
    "field of a line": ("shop/sources.py", "T.TimestampType = Field(", "T.TimestampType = Field(ge=datetime(2020, 1, 1), ", "visits calls"),
    "ambiguous": ("shop/sources.py", 'event_time="at",', 'event_time="at", ambiguous="raise",', "visits calls"),
    "delimiter": ("shop/sources.py", 'event_time="at",', 'event_time="at", delimiter=";",', "visits calls"),
    "decimal": ("shop/sources.py", 'event_time="at",', 'event_time="at", delimiter=";", decimal=",",', "visits calls"),
    "another name in the files": ("shop/sources.py", 'event_time="at",', 'event_time="at", rename={"When it was": "at"},', "visits calls"),
}  # fmt: skip
#: Changes of the model that all tables of a module have, and of what only some tables have.
OF_ALL_IN_SPEND = {
    "bound": ("ge=0", "ge=1"),
    "type of a column": ("T.DecimalType(18, 2)", "T.LongType"),
    "key": ('"key": ["customer_id"]', '"key": []'),
    "rule": ('"key":', '"rules": {"some": ("amount > 1", "So.")}, "key":'),
    "schema version": ('"key":', '"schema_version": 2, "key":'),
}


def source_tables(names: str) -> set[str]:
    """The names of tables, with those of a source in place of it."""
    by_source = {
        name: {
            f"raw_{name}",
            f"raw_{name}_rejected",
            f"stg_{name}",
            f"late_{name}",
            f"{name}_lateness",
        }
        for name in ("visits", "calls")
    }
    return {table for name in names.split() for table in by_source.get(name, {name})}


@pytest.fixture
def code_after(project):
    """A function that gives the code after changes, each of a file, which are undone then."""
    texts: dict[Path, str | None] = {}

    def change_files(*changes: tuple[str, str, str]) -> Code:
        for file, old, new in changes:
            path = project / file
            text = path.read_text() if path.exists() else None
            texts.setdefault(path, text)
            assert old in (text or ""), (file, old)
            path.write_text((text or "").replace(old, new) if old else new)
        return imported_code()

    def restore() -> None:
        for path, text in texts.items():
            path.unlink() if text is None else path.write_text(text)
        texts.clear()

    change_files.restore = restore
    yield change_files
    restore()
    forget_modules()


def changed_places(change: str) -> set[tuple[str, int]]:
    """Where a change replaces text: the file and the characters of it."""
    file, old, *_ = CHANGES[change]
    text = PROJECT.get(file, "")
    starts = [m.start() for m in re.finditer(re.escape(old), text)] if old else [0]
    return {(file, start + n) for start in starts for n in range(len(old or text) or 1)}


def independent_batches() -> list[list[str]]:
    """The changes in batches within which no two concern the same table or the same text."""
    batches: list[list[str]] = []
    for name, (*_, tables) in CHANGES.items():
        for batch in batches:
            concerned = {table for other in batch for table in CHANGES[other][3].split()}
            places = {place for other in batch for place in changed_places(other)}
            if not concerned & {*tables.split()} and not places & changed_places(name):
                batch.append(name)
                break
        else:
            batches.append([name])
    return batches


@pytest.mark.parametrize("batch", independent_batches(), ids=lambda batch: batch[0])
def test_changes_of_the_project(before, code_after, batch):
    changes = [CHANGES[name] for name in batch]
    after = code_after(*(change[:3] for change in changes))
    expected = {table for *_, tables in changes for table in source_tables(tables)}
    if changed_tables(before, after) != expected:
        # Which of them is it?
        for name in batch:
            code_after.restore()
            alone = changed_tables(before, code_after(CHANGES[name][:3]))
            assert (name, alone) == (name, source_tables(CHANGES[name][3]))
    assert changed_tables(before, after) == expected
    # A backfill is pinned to the version of all tables: it goes on unless one of them changes.
    assert (after.version != before.version) is bool(expected)


def test_a_change_of_a_model_is_one_of_the_tables_that_have_it(before, code_after):
    in_spend = PROJECT["shop/spend.py"].count("@table(Row, **OF_ROW)")
    for change in OF_ALL_IN_SPEND.values():
        changed = changed_tables(before, code_after(("shop/spend.py", *change)))
        assert (len(changed), changed & {"made", "depending"}) == (in_spend, set())
        code_after.restore()


def test_a_variable_of_the_environment_that_was_read_at_import(before, monkeypatch):
    monkeypatch.setenv("SHOP_LIMIT", "11")
    assert changed_tables(before, imported_code()) == {"by_limit"}


@pytest.mark.parametrize("place", ["moved", "shop.inside.moved"])
def test_a_function_or_a_module_that_moves_is_the_same_code(before, project, code_after, place):
    """All of `shop/helpers.py` and `shop/settings.py` is elsewhere in the project."""
    path = f"{place.replace('.', '/')}.py"
    try:
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(
            PROJECT["shop/settings.py"]
            .replace("Path(__file__).parent", "Path(sys.modules['shop'].__file__).parent")
            .replace("import os\n", "import os\nimport sys\n")
            + PROJECT["shop/helpers.py"].replace(
                "from shop import settings", "import sys\nsettings = sys.modules[__name__]"
            )
        )
        after = code_after(
            (
                "shop/spend.py",
                "from shop import dynamic, helpers, settings",
                f"import {place} as helpers\nimport {place} as settings\nfrom shop import dynamic",
            ),
            ("shop/spend.py", "from shop.helpers import total", f"from {place} import total"),
            (
                "shop/tables.py",
                "import rows, settings, sources, spend",
                "import rows, sources, spend",
            ),
        )
        assert changed_tables(before, after) == set()
    finally:
        (project / path).unlink()


def test_the_order_in_which_tables_are_declared_counts_for_nothing(before):
    assert imported_code("REORDERED").version == before.version


#: The digests in the versions of the project's own tables.
DIGESTS = """
raw_visits 55c1018faa4a  raw_calls 9461ba6f9027  plain 7b79f1d9abf9  by_helper bf7ef2b68d17
by_rate 3f19461f2906  by_udf 076c8e0e6ba8  by_limit 5e419c4a5e62  by_sql 314ec7437f89
by_path ee24a8935d17  by_enum 871b5133a22a  by_fees f46b793afe8e  by_dict 6127eac4749a
by_decorated 8d1588cb17b0  by_partial ff55a0ca13ff  by_lambda cf9b8a511fe2  by_closure d6e3b5a129aa
by_method 4a79a4eaa411  by_recursion f2371dded42e  by_cached b57642608ea7  by_dispatch 55ebfc74b8e3
by_docstring ca3d40172071  by_namespace d699e892fc0c  by_module 72becc2bfa9f  by_format f44df90fab60
by_nested f43848332c6c  by_lazy_import 0207cae71051  by_getattr 4c1fc504dbb2  made a1806bfd7b20
made_v2 c93e72149a56
"""


def test_a_release_changes_no_version(before):
    """With another text of code or values, all users would compute their tables again."""
    digests = dict(re.findall(r"(\w+) (\w+)", DIGESTS))
    assert {name: before.tables[name].rpartition("-")[2] for name in digests} == digests


def test_another_process_and_another_hash_seed_give_the_same_versions(before, project):
    code = (
        "from backfill_assets.settings import load_settings\n"
        "from backfill_assets.deployment import Deployment\n"
        "print(Deployment(load_settings(tables='shop.tables:TABLES')).code.version)\n"
    )
    paths = os.pathsep.join([str(project), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    process = subprocess.run(
        [sys.executable, "-B", "-c", code], env=environment, capture_output=True, text=True
    )
    assert process.stdout.strip() == before.version, process.stderr


#: What differs, by the change: as `plan`, `history` and `accept-code` tell it.
TOLD = {
    "constant": ("by_rate", "with_rate → RATE: 0.21 → 0.19"),
    "UDF": ("by_udf", "shout"),
    "helper of a helper": ("by_helper", "scaled"),
    "value of a closure": ("by_closure", "make_scale.<locals>.scale → by: 3 → 4"),
    "zone in a factory": ("stg_visits", "source timezone: 'Europe/Berlin' → 'Europe/Rome'"),
    "file that is named": ("depending", "depends_on rates.csv"),
    "default": ("by_partial", "add → more: 2 → 4"),
    "check": ("plain", "forbidden is new, <lambda> is new"),
}


def test_what_differs_between_two_versions_is_told(before, code_after):
    after = code_after(*(CHANGES[change][:3] for change in TOLD))
    told = {
        table: format_code_change(
            *(parts_of_version(code.tables[table]) for code in (before, after))
        )
        for table, _ in TOLD.values()
    }
    assert told == dict(TOLD.values())


def test_no_secret_is_told(before, code_after, monkeypatch):
    """What a function takes from the environment goes into the log of the table."""
    monkeypatch.setenv("SHOP_LIMIT", "s3cret")
    after = code_after(
        ("shop/settings.py", "LIMIT =", "API_TOKEN ="),
        ("shop/spend.py", "settings.LIMIT", "settings.API_TOKEN"),
    )
    parts = parts_of_version(after.tables["by_limit"])
    assert "by_limit → API_TOKEN" in parts
    assert "s3cret" not in str(parts)


def test_of_many_differences_the_first_are_told():
    old, new = ({f"f → {n}": str(n + more) for n in range(5)} for more in (0, 1))
    text = "f → 0: 0 → 1, f → 1: 1 → 2, f → 2: 2 → 3, and 2 more"
    assert format_code_change(old, new) == text
    assert format_code_change({}, new) == format_code_change(old, {}) == ""
    assert format_code_change({"a": "1"}, {"b": "1"}) == "b is new, a is gone"
    three = dict([*new.items()][:3])
    assert format_code_change(old, {**old, **three}) == "f → 0: 0 → 1, f → 1: 1 → 2, f → 2: 2 → 3"
    # Of what has a digest, its name says enough.
    assert format_code_change({"a": "0123456789ab"}, {"a": "1"}) == "a"
    assert parts_of_version("none of this process") == {}


#: A module of forms that code and values can have, each of which has a text of its own.
FORMS = '''
import asyncio
import enum
import functools
import logging
import os
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING

import pyspark.sql.types as T
from pyspark.sql.functions import udf

if TYPE_CHECKING:
    from forms.nowhere import Nobody

LOOP = [1]
LOOP.append({"again": LOOP})
SHARED = ("shared",) * 3
LONG = ["many characters"] * 60
KINDS = [b"a", 1j, ..., range(3), {3, "3", None}, frozenset([2]), MappingProxyType({"k": 1})]
OBJECTS = [OrderedDict(a=1), defaultdict(list, a=[2]), SimpleNamespace(b=5)]
LIBRARY = [OrderedDict, len, "a".upper, {}.get, dict.fromkeys, os.path, functools.partial(int, base=2)]
TYPES = [T.LongType(), T.ArrayType(T.StringType())]
OTHERS = [os.environ, logging.getLogger("forms"), os.path.join, SHARED, SHARED]
UDFS = [udf(lambda x: x, T.LongType()), udf(lambda x: x + 1, T.LongType()).asNondeterministic()]
DEEP = {"a": {"b": [("c", {"d": 1})]}}


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Named(str):
    """A text that is more."""


class Outer:
    limit: int = 3
    unset: int

    class Inner:
        """Inner."""

        depth = 2

        @staticmethod
        def static(x):
            return x

        @classmethod
        def made(cls, x=Slotted):
            return cls

        @property
        def own(self):
            return self.depth

    def method(self):
        return self.Inner


class Size(enum.IntFlag):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


def local_class():
    factor = 2

    class Local(Point):
        def scaled(self):
            return self.x * factor

    return Local


LOCAL = local_class()
MADE = type("Made", (Point,), {"z": 7, "__doc__": "None."})
INSTANCES = [Slotted(1), Point(2), LOCAL(3), MADE(4), Outer.Inner, Named("t"), Size.SMALL, Outer().method]
one, two = lambda x: x + 1, lambda x: x + 2


def keyword(a, /, b, *rest, c=one, d: int = 2, **more):
    return a, b, rest, c, d, more


keyword.mark = "marked"


def documented(x):
    "Documented."
    return x


def reads_doc():
    return documented.__doc__


async def waiting(x):
    async with x as y:
        async for z in y:
            await asyncio.sleep(z)


def statements(x: object, *, y: object = None) -> object:
    """All of them."""
    import os.path
    import forms.inside as inside
    import forms.inside
    from . import inside as again
    from .inside import VALUE as value, not_there
    from forms.missing import nothing

    total: float = 1.5
    later: int
    if TYPE_CHECKING:
        total = 2
    else:
        total = 3
    while x:
        x -= 1
        if x == 3:
            continue
        break
    try:
        with open(x) as file, file:
            pass
    except (OSError, ValueError) as error:
        raise KeyError("no") from error
    finally:
        del later
    for n in range(x):
        yield n
    else:
        yield from [a for a in x if a]
    match x:
        case [1, *others] | {"k": others}:
            assert others, "none"
        case Point(x=0) as p:
            return p
        case _:
            pass

    def nested(z: int = 1, *args: str) -> int:
        nonlocal total
        total = z if (w := z) else -w
        return total

    class Within:
        name: str = "n"
        other: int

        def get(self):
            return self.name

    text = f"{x!r:>{total}} and {{}} {y}" "more" f"{inside.VALUE}"
    data = {"a": x[1:2], **{}}, [*x], {1, 2}, not x, x < 1 <= 2, x and y or value, (yield)
    call = import_module("forms.inside").VALUE, import_module(".inside", "forms").VALUE
    name = import_module(x), __import__("forms.inside"), import_module("json"), import_module()
    return text, data, call, name, nested, Within, again.VALUE, forms.inside.OTHER, nothing, not_there


def everything(x):
    return (
        *(LOOP, SHARED, LONG, KINDS, OBJECTS, LIBRARY, TYPES, OTHERS, UDFS, DEEP, INSTANCES),
        *(Outer, Size, LOCAL, MADE, one, two, keyword, reads_doc, waiting, statements),
        x.upper().lower, no_such_name,
    )
'''


def test_each_form_of_code_and_of_values_has_a_text(tmp_path, monkeypatch):
    """The texts are the same in each release, process and version of Python."""
    write_files(tmp_path, {"forms/__init__.py": FORMS, "forms/inside.py": "VALUE = 1\nOTHER = 2\n"})
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("forms", "forms.inside"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    project = Project()
    project.add_declaring("forms")
    code = reach({"use": import_project("forms").everything}, project)
    told = {
        "everything → LOOP": "[1,{'again':^2}]",
        "everything → SHARED": "('shared','shared','shared')",
        "everything → LONG": "e285b9cdd420",
        "everything → DEEP": "{'a':{'b':[('c',{'d':1})]}}",
        "Size → members": "{'SMALL':1,'LARGE':2}",
        "Outer → limit": "3",
        "Made → bases": "(@)",
        "local_class.<locals>.Local → factor": "2",
        "statements → value": "1",
        "forms.inside → OTHER": "2",
    }
    assert {name: code.parts[name] for name in told} == told
    assert text_digest("\n".join(map(str, code.parts.items()))) == "39ba31f3e189"
    assert code.digest == "7f2833081027"


def doubled(x):
    return 2 * x


def documented_double(x):
    "With a docstring."
    return 2 * x


def own_reach(value: object, *counted: ModuleType):
    """What a value reaches, of a project that has these tests."""
    project = Project()
    project.add_declaring(__name__)
    return reach({"it": value}, project, counted_modules=counted)


def test_functions_count_wherever_a_value_has_them():
    """The text of a value has a mark for each, and what it is counts with the value."""
    again: list = []
    again.append(again)
    texts = {
        "{@}": {doubled},
        "{@:1}": {doubled: 1},
        "[[^1]]": [again],
        "functools:_lru_cache_wrapper(@)": functools.lru_cache(doubled),
    }
    for text, value in texts.items():
        assert own_reach(value).parts["it"] == text
    one, other = (doubled,), (documented_double,)
    assert own_reach([one, one, other]).digest != own_reach([one, other, one]).digest
    # Nobody reads the docstring.
    text = TreeReader({}, None, Project()).text_of(*function_trees(doubled))
    parts = own_reach([doubled, documented_double]).parts
    assert parts["doubled"] == parts["documented_double"] == text_digest(text)


LOCK = Lock()


def locked():
    return LOCK


class Kind(enum.Enum):
    DOUBLED = (doubled,)


class Reduced:
    """An object that `pickle` would make of what it is given."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def of_library(function: Callable, **attributes: object) -> FunctionType:
    """A function of a library: it has the code of another, and other globals."""
    made = FunctionType(function.__code__, {"__name__": "json"})
    vars(made).update(attributes)
    return made


LONG_TEXT = "a" * 496
#: The text of a value, by the value: of kinds that a library makes, or `pickle` knows.
TEXTS = [
    (Path("/files/a"), "path '/files/a'"),
    (PROJECT_FOLDER / "files", "path '<project>/files'"),
    (connect.lit(1), "column Column<'1'>"),
    (Kind.DOUBLED, "@.DOUBLED=(@)"),
    (str.upper, "builtins:str.upper"),
    (re.compile("a"), "object(re:_compile,('a',32),None,[],[])"),
    (Optional, "typing:_SpecialForm:Optional"),
    (Reduced(doubled, (1,)), "object(@,(1),None,[],[])"),
    (Reduced(doubled, (), ("a", {"b": 1})), "object(@,(),('a',{'b':1}),[],[])"),
    (Reduced(doubled, (), ({"a": 1}, {"b": 2})), "object(@,(),a=1,b=2,[],[])"),
    (Reduced(doubled, (), None, iter("a"), iter([("b", 2)])), "object(@,(),None,['a'],[('b',2)])"),
    (FunctionType(doubled.__code__, {}), "builtins:doubled"),
    (of_library(doubled), "json:doubled"),
    (contextmanager(doubled), "contextlib:contextmanager.<locals>.helper(@)"),
    (
        functools.singledispatch(doubled),
        "functools:singledispatch.<locals>.wrapper(@,(builtins:object,@))",
    ),
    (recursive_repr(), "reprlib:recursive_repr.<locals>.decorating_function('...')"),
    (
        of_library(doubled, evalType=100, deterministic=True, returnType="long", func=doubled),
        "udf(['by row', True, 'long'],@)",
    ),
    (
        of_library(doubled, evalType=200, deterministic=False, returnType="long", func=doubled),
        "udf([200, False, 'long'],@)",
    ),
    (UserDefinedFunction(doubled, LongType()), """udf(['by row', True, '"long"'],@)"""),
    (io.TextIOWrapper, "io:TextIOWrapper"),
    (pytest.MonkeyPatch, "pytest:MonkeyPatch"),
    (Decimal.sqrt, "decimal:Decimal.sqrt"),
    ({date, Decimal}, "{decimal:Decimal,datetime:date}"),
    ({3, 20, 100}, "{100,20,3}"),
    ("a" * 38, f"'{'a' * 38}'"),
    ([LONG_TEXT], f"['{LONG_TEXT}']"),
    ([LONG_TEXT, 1], text_digest(f"['{LONG_TEXT}',1] []")),
    ([LONG_TEXT, doubled], text_digest(f"['{LONG_TEXT}',@] [0]")),
]


def test_the_texts_of_values():
    for value, text in TEXTS:
        assert own_reach(value).parts["it"] == (text if len(text) <= 40 else text_digest(text))


def test_what_is_in_itself_has_a_text_wherever_it_begins():
    one: list = []
    other = [one]
    one.append(other)
    assert own_reach([one, other]).parts["it"] == "[[[^2]],[[^2]]]"


def test_what_is_in_a_value_many_times_is_read_once():
    value, text = ["a"], "['a']"
    for _ in range(60):
        value, text = [value, value], f"[{text},{text}]"
        text = text_digest(f"{text} []") if len(text) > 500 else text
    assert own_reach(value).parts["it"] == (text if len(text) <= 40 else text_digest(text))


def test_buffers_count_by_their_values():
    one, other = (own_reach(pyarrow.py_buffer(value)).digest for value in (b"a", b"b"))
    assert one == own_reach(pyarrow.py_buffer(b"a")).digest != other


def test_what_cannot_be_followed_is_told_or_counts_by_its_source():
    append = [].append
    append.__module__ = __name__
    udf = of_library(doubled, evalType=100, deterministic=True, returnType="long", func=LOCK)
    told = {
        r"it\[0\] is compiled, and its source cannot be read: make it within": [append],
        r"it → locked\.LOCK is of _thread\.lock, which has no value: make it": locked,
        r"it\.func is of _thread\.lock": udf,
        r"it\.parts\[0\] is of _thread\.lock": SimpleNamespace(parts=[LOCK]),
    }
    for text, value in told.items():
        with pytest.raises(DeadEndError, match=f"^{text}"):
            own_reach(value)
    project = Project()
    project.add_declaring(__name__)
    assert reach({"it": locked}, project, by_source=True).parts["locked → LOCK"] == ""
    names = {"__name__": __name__}
    exec("def made(): return 1", names)
    with pytest.raises(DeadEndError, match=r"^it → made has no source"):
        own_reach(names["made"])


def shadowed(LOCK):  # noqa: N803
    return LOCK


class Options:
    table: ClassVar = {"a": [1]}
    functions: ClassVar = {"a": doubled}


def test_names_that_are_bound_within_a_function_are_none_of_its_module():
    assert own_reach(shadowed).parts.keys() == {"shadowed"}


def test_a_class_counts_by_its_plain_values_beside_its_source():
    parts = own_reach(Options).parts
    assert (parts["Options → table"], "Options → functions" in parts) == ("{'a':[1]}", False)


def test_what_a_call_has_made_counts_by_its_values():
    """A class or a module without source; what has no file, as methods of data classes, is left."""
    place = f"{__name__.partition('.')[0]}.made"
    functions: dict = {}
    exec("def made(): return 1", functions)
    values = {"limit": 3, "__module__": place}
    made = own_reach(type("Made", (), values))
    assert made.parts["Made → limit"] == "3"
    assert own_reach(type("Made", (), {**values, "made": functions["made"]})).digest == made.digest
    assert own_reach(type("Made", (), {**values, "made": doubled})).digest != made.digest
    module = ModuleType(place)
    module.LIMIT = 3
    told = own_reach(module).parts
    assert (told[f"{place} → LIMIT"], told[f"{place} → bases"]) == ("3", "()")


def test_a_function_counts_by_its_own_defaults_and_not_by_what_it_wraps():
    def longer(x, more=3):
        return x * more

    plain = own_reach(longer)
    wrapping = own_reach(functools.wraps(doubled)(longer))
    assert wrapping.digest == plain.digest
    assert wrapping.parts["doubled → more"] == "3"


def test_a_name_that_is_not_set_yet_is_missing():
    def set_later():
        def read():
            return value

        yield own_reach(read)
        value = None
        yield own_reach(read)

    before, after = set_later()
    assert before.digest != after.digest
    assert [value for name, value in after.parts.items() if name.endswith("→ value")] == ["None"]


def test_a_function_that_reads_all_names_reaches_its_module(tmp_path, monkeypatch):
    code = "LIMIT = 3\ndef use():\n    return globals()['LIMIT']\n"
    write_files(tmp_path, {"reading_all.py": code})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reading_all", raising=False)
    project = Project()
    project.add_declaring("reading_all")
    parts = reach({"it": import_project("reading_all").use}, project).parts
    assert parts["reading_all → LIMIT"] == "3"


def test_what_a_counted_module_has_counts_with_it():
    module = ModuleType("counted")
    module.OPTIONS = SimpleNamespace(a=1)
    assert own_reach(module.OPTIONS, module).parts["it"] == "@counted"
    assert own_reach(module.OPTIONS).parts["it"] != "@counted"


def test_the_way_to_a_dead_end_names_keys_that_are_texts():
    for value, way in (({1: Lock()}, "it"), ({"a": (0, Lock())}, "it['a'][1]")):
        with pytest.raises(DeadEndError, match=f"^{re.escape(way)} is of _thread.lock"):
            own_reach(value)


def test_what_cannot_change_a_result_is_not_in_the_text():
    def text_of(source: str) -> str:
        return TreeReader({}, None, Project()).text_of(ast.parse(source))

    assert text_of("if TYPE_CHECKING:\n import a\nelse:\n b = 1\n c = 2") == text_of("b = 1; c = 2")
    assert text_of("a = u'b'") == text_of("a: str = 'b'")


def test_the_text_of_an_f_string_is_the_same_however_its_parser_divides_it():
    a, b, c, d = map(ast.Constant, "abcd")
    tree = ast.JoinedStr([a, b, ast.FormattedValue(ast.Name("x"), -1), c, d])
    text = "f('ab',(FormattedValue value=x conversion=-1),'cd')"
    assert TreeReader({}, None, Project()).text_of(tree) == text


def test_code_that_reads_docstrings_or_all_names_is_known_whatever_follows():
    reader = TreeReader({}, None, Project())
    reader.text_of(ast.parse("f.__doc__, eval, g.name"))
    assert (reader.reads_docs, reader.reaches_all) == (True, True)


def test_a_function_that_stands_elsewhere_by_now_has_no_text(tmp_path, monkeypatch):
    write_files(tmp_path, {"standing.py": "def use():\n    return 1\n"})
    monkeypatch.syspath_prepend(tmp_path)
    use = importlib.import_module("standing").use
    del sys.modules["standing"]
    write_files(tmp_path, {"standing.py": "\n\ndef use():\n    return 1\n"})
    with pytest.raises(
        DeadEndError, match=r"line 1, has now: .* imported\. Start the process again"
    ):
        function_trees(use)


def test_the_module_that_is_run_is_of_the_project(monkeypatch):
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__spec__ = None
    found = []
    for file in ("/home/run.py", "/usr/lib/python3/dist-packages/run.py", None):
        main.__file__ = file
        found.append(Project().has("__main__"))
    assert found == [True, False, False]


def test_what_is_no_project():
    project = Project()
    project.add_declaring("backfill_assets.orders.tables")
    assert project.roots == set()
    names = ["sys", "json", "pyspark.sql", "py4j", "pandera", "backfill_assets.orders"]
    assert not any(map(project.has, names))


#: What cannot be followed, by what the message tells of it.
DEAD_ENDS = {
    "import threading\nLOCK = threading.Lock()": ("LOCK", "LOCK is of _thread.lock"),
    "FILE = open(__file__)": ("FILE", "FILE is of _io.TextIOWrapper"),
    "NUMBERS = (n for n in range(3))": ("NUMBERS", "NUMBERS is of builtins.generator"),
    "import threading\nclass Client:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
    "CLIENTS = {'a': [Client()]}": ("CLIENTS", "CLIENTS['a'][0].lock is of _thread.lock"),
    "exec('def made(): return 1')": ("made", "made has no source that could be read"),
}


@pytest.mark.parametrize("text", DEAD_ENDS, ids=lambda text: DEAD_ENDS[text][0])
def test_what_cannot_be_followed_is_refused_by_name(code_after, text):
    name, message = DEAD_ENDS[text]
    with pytest.raises(SettingsError) as raised:
        code_after(("shop/lazy.py", "", f"{text}\n\ndef kept(frame):\n    return {name}\n"))
    assert str(raised.value).startswith("bad settings: by_module: transform → by_module → kept")
    assert message in str(raised.value)


def test_a_module_that_is_named_counts_by_its_source_and_is_not_followed(before, code_after):
    """The way out where a value cannot be followed."""
    declared = "def depending(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:\n    "
    listed = PROJECT["shop/listed.py"]
    changes = [
        (
            "shop/rows.py",
            f"{declared}return orders",
            f"{declared}from shop.listed import get\n    return get()",
        ),
        (
            "shop/listed.py",
            "",
            f"{listed}\nimport threading\nLOCK = threading.Lock()\ndef get():\n    return LOCK\n",
        ),
    ]
    first = code_after(*changes)
    second = code_after(("shop/listed.py", "return LOCK", "return [LOCK]"))
    assert changed_tables(before, first) == changed_tables(first, second) == {"depending"}


def test_a_file_that_has_changed_since_it_was_imported_is_refused(project, code_after):
    """The version would be that of code which does not run."""
    forget_modules()
    import_project("shop.tables")
    path = project / "shop/helpers.py"
    text = path.read_text()
    try:
        path.write_text(text.replace("shop_rules.scaled(amount)", "amount"))
        with pytest.raises(SettingsError, match="has changed since it was imported"):
            _ = Deployment(load_settings(tables="shop.tables:TABLES")).code
    finally:
        path.write_text(text)
        forget_modules()


#: Ten changes of the tables of a deployment: the factor by which the amounts of a table change; 1
#: where the change decides no row.
RUN_CHANGES = {
    "group": ("plain", 1),
    "helper of a helper": ("by_helper", 2),
    "constant": ("by_rate", Decimal("0.19") / Decimal("0.21")),
    "value of a closure": ("by_closure", Decimal(4) / Decimal(3)),
    "object": ("by_fees", 2),
    "value of a dict": ("by_dict", 2),
    "annotation": ("by_decorated", 1),
    "the other lambda": ("by_partial", 1),
    "list of public names": ("by_recursion", 1),
    "comment": ("by_cached", 1),
}


@pytest.mark.parametrize(
    "changes",
    [
        ["group", "constant"],
        pytest.param([*RUN_CHANGES], marks=pytest.mark.slow),
    ],
    ids=["two", "ten"],
)
def test_a_deployment_computes_again_what_has_changed_and_nothing_else(
    engine, tmp_path, before, code_after, changes
):
    """Rows before, some changes at once, and a launch of their tables."""
    factors = dict(RUN_CHANGES[change] for change in changes)
    names = [*factors]

    def amounts(pipeline: Pipeline) -> dict[str, Decimal]:
        return {name: pipeline.rows(name)[0]["amount"] for name in names}

    forget_modules()
    first = Pipeline(engine, tmp_path, tables="shop.tables:RUN")
    first.land(1, [order("o1", 1, "21.00")])
    first.run(1, assets=["raw_orders", "stg_orders", *names])
    versions, old = {name: first.log(name).version() for name in names}, amounts(first)
    code_after(*(CHANGES[change][:3] for change in changes))
    forget_modules()
    second = Pipeline(engine, tmp_path, tables="shop.tables:RUN")
    reason = "other code: with_rate → RATE: 0.21 → 0.19"
    ledgers = read_ledgers(second.deployment)
    assert days_by_reason(ledgers["by_rate"], second.deployment.code) == {reason: [day(1)]}
    assert days_by_reason(ledgers["plain"], second.deployment.code) == {}
    second.run(1, assets=names)
    computed = {name for name in names if second.log(name).version() > versions[name]}
    assert computed == {table for table, factor in factors.items() if factor != 1}
    new = amounts(second)
    assert new == {table: round(old[table] * factor, 2) for table, factor in factors.items()}
    record = read_ledgers(second.deployment)["by_rate"].latest[day(1)]
    assert record.reason_for_day(day(1)) == reason


# --- declarations ---------------------------------------------------------------------------------

#: The other fields, which decide no row. `inputs` and `decided_by` follow from the others, and the
#: settings have a digest of their own.
_TABLE_NOT_DECIDING = (
    *("name", "modules", "decided_by", "inputs", "frozen", "retired", "drift", "skew", "counts"),
    *("dimension", "part"),
)
NOT_DECIDING: Mapping[type, tuple[str, ...]] = {
    Source: (
        "hourly",
        "arrives_on",
        "arrives_after_hours",
        "named",
        "skew",
        "declared_in",
        "dimension",
        "part",
    ),
    SourceTable: (*DECIDING[Table], *_TABLE_NOT_DECIDING, "role"),
    derived.Derived: (*_TABLE_NOT_DECIDING, "group", "first", "lineage", "part_column"),
    derived.Current: (*DECIDING[Table], *_TABLE_NOT_DECIDING),
    derived.Corrections: ("forbidden", "depends_on", *_TABLE_NOT_DECIDING, "facts", "current"),
    Table: _TABLE_NOT_DECIDING,
    derived.Reads: ("parts",),
    derived.PublishedDays: (),
    LookupAnswers: (),
    derived.Conserved: (),
    Forbidden: ("description",),
    Unpartitioned: (),
    Lookup: (
        *("quota", "secret", "header", "reserve", "pool", "connections", "timeout", "tries"),
        "patience",
    ),
}


@pytest.mark.parametrize("declaration", DECIDING, ids=lambda declaration: declaration.__name__)
def test_each_field_of_a_declaration_decides_rows_or_does_not(declaration):
    names = [part.name for part in dataclasses.fields(declaration)]
    assert sorted(names) == sorted([*DECIDING[declaration], *NOT_DECIDING[declaration]])


def test_the_page_of_upgrades_tells_what_decides():
    told = (Path(__file__).parents[1] / "docs/upgrading.md").read_text()
    for name in OPTION_NAMES:
        assert f"`{name}`" in told, name
    for fields in (*DECIDING.values(), *NOT_DECIDING.values()):
        for name in {*fields} & {*Source.__dataclass_fields__, *Lookup.__dataclass_fields__}:
            assert f"`{name}`" in told, name


#: Of tables of every kind, parts of the version that stand for fields of the declaration.
PARTS = {
    "fact_daily_orders_current": {
        "rows of this package": "current-1-package-1",
        "column orders": "[type \"long\",False,['orders >= 1']]",
        "reads stg_orders": "{'table':'table stg_orders'}",
        "source key": "('order_id')",
        "source lines column amount": '[type "decimal(18,2)"]',
        "totals": "('orders','revenue')",
        "transform": "backfill_assets:fact_daily_orders",
    },
    "labels_daily": {
        "published published": "21ae65affbcd",
        "reads orders": "21ae65affbcd",
        "rules": "{'nothing_of_before':'label_from > dt'}",
    },
    "fact_orders_eur": {"answers rates": "760884a75346", "conserved": "156c3ea8d2e9"},
    "revenue_by_market": {"unpartitioned countries": "{'name':'countries'}", "key": "('market')"},
    "stg_visits": {"source window_days": "3", "source name": "'visits'"},
}


def test_the_fields_of_a_declaration_are_parts_of_the_version():
    place = "backfill_assets_tests.contracts.every_kind:TABLES"
    codes = table_codes(tables_of(load_settings(tables=place)))
    found = {
        name: {part: codes[name].parts.get(part) for part in parts} for name, parts in PARTS.items()
    }
    assert found == PARTS
    # What a setting decides of one table decides nothing of another.
    assert "source window_days" not in codes["raw_visits"].parts


def test_what_stands_for_a_declaration():
    fact = TABLES["fact_daily_orders"]
    assert declare(fact)["key"] == ("customer_id",)
    assert "column revenue" in declare(fact.model)
    assert declare(Reach(before=2)) == ["Reach", {"before": 2}]
    assert declare("a text") is declare(str) is None


@pytest.mark.parametrize(
    ("kind", "tables"),
    [
        ("raw", {"raw_orders", "raw_visits", "raw_calls"}),
        ("late", {"late_orders", "late_visits", "late_calls"}),
        ("current", {"fact_daily_orders_current"}),
        ("corrections", {"fact_order_corrections"}),
        ("package", {*TABLES}),
    ],
)
def test_a_rows_version_that_is_raised(before, project, monkeypatch, kind, tables):
    raised = {**code_version.ROWS_VERSION, kind: code_version.ROWS_VERSION[kind] + 1}
    monkeypatch.setattr(code_version, "ROWS_VERSION", raised)
    after = Deployment(load_settings(tables="shop.tables:TABLES")).code
    assert changed_tables(before, after) == tables


def test_every_kind_of_table_has_a_rows_version():
    kinds = {table.kind for table in TABLES.values()} | {"asset", "package"}
    assert kinds == code_version.ROWS_VERSION.keys()


def test_the_release_and_the_source_of_this_package_count_for_nothing(before, monkeypatch):
    monkeypatch.setattr(runtime_versions, "package_version", lambda: "99.0")
    assert imported_code() == before


def test_a_library_that_is_declared_counts_by_its_version(before, monkeypatch):
    monkeypatch.setattr(code_version.importlib.metadata, "version", lambda _: "99.0")
    after = imported_code()
    assert changed_tables(before, after) == {"depending"}
    assert after.tables["depending"] == "derived-1-185b952904b0"
    parts = parts_of_version(after.tables["depending"])
    names = {name for name in parts if name.startswith("depends_on")}
    assert names == {"depends_on pyarrow", "depends_on rates.csv", "depends_on trees"}
    assert parts["depends_on pyarrow"] == "99.0"


def test_a_module_of_a_library_counts_by_the_version_of_the_library():
    table = dataclasses.replace(TABLES["fact_daily_orders"], depends_on=("pyarrow.parquet",))
    parts = table_codes({"a": table})["a"].parts
    version = code_version.importlib.metadata.version("pyarrow")
    assert parts["depends_on pyarrow.parquet"] == version


@pytest.mark.parametrize(
    ("dependency", "told"),
    [
        (
            "no_such_module",
            "'no_such_module': it is neither a module of the project nor one of an installed "
            "distribution",
        ),
        (Path("/nowhere/rates.csv"), "'/nowhere/rates.csv': No such file or directory"),
    ],
)
def test_a_declared_dependency_that_is_not_there(dependency, told):
    table = dataclasses.replace(TABLES["fact_daily_orders"], depends_on=(dependency,))
    with pytest.raises(SettingsError) as raised:
        table_codes({"a": table})
    assert str(raised.value) == f"bad settings: depends_on={told}"


def test_a_version_can_be_read(before):
    assert before.tables["raw_orders"].startswith("raw-2-package-1-")
    kind, number, digest = before.tables["plain"].split("-")
    assert (kind, number, len(digest)) == ("derived", "1", 12)
    assert before.table_version("another") == before.version


def test_the_code_of_a_table_is_read_once_in_a_process(project, monkeypatch):
    code = imported_code()
    monkeypatch.setattr(code_version, "reach", lambda *_, **__: pytest.fail("it is read again"))
    assert Deployment(load_settings(tables="shop.tables:TABLES")).code == code


def test_the_code_of_a_deployment_has_the_commit_of_its_project(project, monkeypatch):
    states = {("of the image", "shop"): ("0123456789ab", False)}
    monkeypatch.setattr(code_version, "git_state", lambda given, path: states[given, path.name])
    forget_modules()
    settings = load_settings(tables="shop.tables:TABLES", git_commit="of the image")
    code = Deployment(settings).code
    assert str(code) == f"{code.version} (commit 0123456789)"


def test_the_version_of_all_tables_is_made_of_those_of_each():
    digest = text_digest("a 1\nb 2")
    assert code_version._version_of_all({"b": "2", "a": "1"}) == f"tables-{digest}"


def test_of_many_tables_of_a_module_its_file_is_parsed_once(project, monkeypatch):
    forget_modules()
    rows = import_project("shop.rows")
    tables = {f"t{n}": rows.make_table(f"t{n}", n % 9 + 1) for n in range(100)}
    parsed_files = []

    class CountedFile(project_source._SourceFile):
        def __init__(self, file, names):
            parsed_files.append(Path(file).name)
            super().__init__(file, names)

    monkeypatch.setattr(project_source, "_SourceFile", CountedFile)
    codes = table_codes(tables)
    assert parsed_files == ["rows.py"]
    # The number of days that a table reads is all that differs.
    assert len({code.digest for code in codes.values()}) == 9


def test_the_code_of_an_asset_is_what_its_function_reaches(project, code_after):
    def version() -> str:
        function = import_project("shop.helpers").total
        return asset_version(function, TABLES["fact_daily_orders"])

    forget_modules()
    old = version()
    assert old.startswith("asset-1-")
    code_after(("shop_rules.py", "return amount", "return amount * 2"))
    assert version() != old
    assert asset_version(table_codes, TABLES["fact_daily_orders"]) == ""
    with pytest.raises(SettingsError, match="bad settings: fact_daily_orders: function → dead"):
        code = "import threading\nLOCK = threading.Lock()\ndef dead():\n    return LOCK\n"
        code_after(("shop/lazy.py", "", code + PROJECT["shop/lazy.py"]))
        asset_version(import_project("shop.lazy").dead, TABLES["fact_daily_orders"])


#: What holds a Spark session, and `start`, which gives it to all of them.
SESSIONS = """
import functools
from dagster_pyspark import PySparkResource

SPARK, RESOURCE = None, PySparkResource(spark_config={})
class Lab:
    spark = None
class Engine:
    def __init__(self):
        self.started, self.name = None, "engine"
    @functools.cached_property
    def spark(self):
        return SPARK
ENGINE = Engine()
def close_over():
    spark = None
    def start(session):
        nonlocal spark
        spark = session
    return start, lambda: spark
START, CLOSURE = close_over()
def kept(frame, spark=None):
    return SPARK, RESOURCE, Lab.spark, ENGINE, CLOSURE
def start(session):
    global SPARK
    SPARK = RESOURCE._spark_session = Lab.spark = ENGINE.started = session
    kept.__defaults__ = (session,)
    ENGINE.spark
    START(session)
"""


@pytest.mark.parametrize("session_class", [SparkSession, RemoteSession])
def test_a_spark_session_counts_as_nothing_before_and_after_it_starts(code_after, session_class):
    code_after(("shop/lazy.py", "", SESSIONS))
    module, versions = import_project("shop.lazy"), []
    for session in (None, object.__new__(session_class)):
        if session:
            module.start(session)
        versions.append(asset_version(module.kept, TABLES["fact_daily_orders"]))
    assert "spark" in vars(module.ENGINE)
    assert len({*versions}) == 1
    module.ENGINE.name = "other"
    assert asset_version(module.kept, TABLES["fact_daily_orders"]) not in versions


def test_a_project_that_is_installed(tmp_path, monkeypatch):
    """All modules of its distribution count, those of others do not."""
    installed = tmp_path / "site-packages"
    write_files(
        installed,
        {
            "wares/__init__.py": "",
            "wares/tables.py": "import wares_rules\nimport other_library\n\n"
            "def use():\n    return wares_rules.LIMIT, other_library.LIMIT\n",
            "wares_rules.py": "LIMIT = 1\n",
            "other_library.py": "LIMIT = 1\n",
        },
    )
    monkeypatch.syspath_prepend(installed)
    by_package = {"wares": ["wares"], "wares_rules": ["wares"], "other_library": ["other"]}
    monkeypatch.setattr(project_source, "distributions", lambda: by_package)
    project = Project()
    project.add_declaring("wares.tables")
    names = ["wares", "wares_rules", "other_library", "numpy", "backfill_assets", "nowhere", ""]
    assert [project.has(name) for name in names] == [True, True, *[False] * 5]
    assert project.has("backfill_assets_guide.examples")
    # A package that was copied there is of no distribution.
    copied = tmp_path / "copied" / "site-packages"
    write_files(copied, {"copied_wares.py": ""})
    monkeypatch.syspath_prepend(copied)
    project.add_declaring("copied_wares")
    assert project.roots == {str(installed), str(copied)}
    parts = reach({"use": import_project("wares.tables").use}, project).parts
    assert parts["use → LIMIT"] == "1"
    for name in by_package:
        for module in [other for other in sys.modules if other.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)


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
    assert str(Code("v", commit, False)) == f"v (commit {commit[:10]})"
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
        _declaring_package(f"{package.name}.tables"),
        _declaring_package("alone"),
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
