"""What a table takes to declare: those that come with the package are short."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.orders.tables import FACT, ORDER_LINES
from backfill_assets.tables.derived import Derived
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples import growth, web_events
from backfill_assets_guide.examples.customers import tables as customers
from backfill_assets_tests.helpers.docs_pages import code_blocks

DECLARED = [ORDER_LINES, FACT, *customers.TABLES, *web_events.TABLES, *growth.TABLES]
TABLES = {item.name: item for item in DECLARED if isinstance(item, Derived)}
SOURCES = {item.name: item for item in DECLARED if isinstance(item, Source)}
LONGEST = 40
#: What pages show of the modules of the customers.
SHOWN = {
    "customers": code_blocks("docs/customers.md", "python"),
    "training-sets": code_blocks("docs/training-sets.md", "python"),
}


@pytest.mark.parametrize("page", SHOWN)
def test_what_a_page_shows_is_a_part_of_a_module(page):
    folder = Path(customers.__file__).parent
    # An argument of a call is an assignment on the page, which has blanks.
    modules = ["".join(path.read_text().split()) for path in folder.glob("*.py")]
    assert SHOWN[page]
    for block in SHOWN[page]:
        assert any("".join(block.split()) in module for module in modules), block


def code_lines(path: Path) -> dict[str, tuple[int, set[str]]]:
    """By class and function of a module: its lines of code, and the names that are in it."""
    text, definitions = path.read_text(), {}
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        numbers = {*range(first, (node.end_lineno or 0) + 1)} - {*_docstring_lines(node)}
        code = [lines[n - 1].strip() for n in numbers]
        names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
        definitions[node.name] = (
            sum(bool(line) and not line.startswith("#") for line in code),
            names,
        )
    return definitions


def _docstring_lines(node: ast.ClassDef | ast.FunctionDef) -> Iterator[int]:
    for child in ast.walk(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(child):
            yield from range(child.body[0].lineno, (child.body[0].end_lineno or 0) + 1)


def declaration_lines(table: Table, function: str) -> int:
    """The lines of a table: its model, its function, and what this calls of its module."""
    path = Path(str(sys.modules[table.model.__module__].__file__))
    definitions = code_lines(path)
    functions = {name for name in definitions if not name[0].isupper()}
    required = [function]
    for name in required:
        required += sorted((definitions[name][1] & functions) - {*required})
    return sum(definitions[name][0] for name in (table.model.__name__, *required))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_declared_in_forty_lines(name: str) -> None:
    """Counted are the lines of code of a table's model, and of the function that makes its rows.

    With its decorator, and with the functions of its module that it calls. Docstrings, comments and
    blank lines are not counted, nor imports and constants of the module.
    """
    assert declaration_lines(TABLES[name], name) <= LONGEST


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_declared_in_forty_lines(name: str) -> None:
    """Counted as of a table: the model of its lines, and the statement that names it."""
    lines = SOURCES[name].lines
    path = Path(inspect.getfile(lines))
    (statement,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and f"Source('{name}'" in ast.unparse(node)
    )
    model, _ = code_lines(path)[lines.__name__]
    assert model + (statement.end_lineno or 0) - statement.lineno + 1 <= LONGEST


def test_the_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    path.write_text(
        '@table(\n    Rows\n)\ndef rows(\n    a\n):\n    """One.\n\n    Two.\n    """\n'
        "    # Why.\n\n    return helper(a)  # what\n\n\nclass Rows(Model):\n    "
        '"""A row."""\n\n    class Config:\n        """One."""\n\n        strict = True\n'
    )
    definitions = code_lines(path)
    assert {name: lines for name, (lines, _) in definitions.items()} == {"rows": 7, "Rows": 3}
    assert {"helper", "Rows", "table"} <= definitions["rows"][1]


def test_the_readme_shows_the_end_of_an_example() -> None:
    module = Path(web_events.__file__).read_text()
    assert code_blocks("README.md", "python") == [module[module.index("@table(") :]]
