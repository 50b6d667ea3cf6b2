"""The environment variables: settings with types and defaults, and all others that are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import backfill_assets
import backfill_assets_guide
from backfill_assets.settings import PREFIX, Settings, load_settings
from backfill_assets_tests.contracts.snapshot_files import TextFile

PACKAGE = Path(backfill_assets.__file__).parent
GUIDE = Path(backfill_assets_guide.__file__).parent
#: A value for each variable that is not the default.
VALUES = {
    "LANDING": "/l",
    "WAREHOUSE": "s3a://bucket/warehouse",
    "START": "2023-01-01",
    "END": "2030-01-01",
    "TIMEZONE": "Europe/Berlin",
    "PARTITIONS_PER_RUN": "2",
    "WINDOW_DAYS": "3",
    "LAG_DAYS": "2",
    "LATE_LINES": "drop",
    "REPROCESS": "window",
    "NIGHTLY_AT": "03:00",
    "DEADLINE": "07:00",
    "REJECTED_WARN": "0.01",
    "REJECTED_ALERT": "0.1",
    "REJECTED_HOLD": "0.9",
    "ABSENT_DAYS": "3",
    "MAX_LINE": "2MiB",
    "MAX_EXPANDED": "2GiB",
    "MAX_CONTROL": "2KiB",
    "UNDO_DAYS": "3",
    "KEEP_RUNS_DAYS": "3",
    "KEEP_PLANS_DAYS": "3",
    "WEBHOOK": "https://example.org/hook",
    "METRICS_FILE": "/metrics.prom",
    "LINEAGE": "shop",
    "CATALOG": "spark_catalog.shop",
    "GIT_COMMIT": "c0ffee",
    "UI_URL": "https://example.org",
    "STALLED_AFTER": "60",
    "LOCATION": "shop",
    "KEY_PREFIX": "lake/gold",
    "OWNERS": "team:data",
    "UI_PASSWORDS": "/passwords",
    "SPARK_MASTER": "local[1]",
    "SPARK_CONF": '{"spark.x": "y"}',
    "JARS": "/jars",
    "TABLES": "my_tables:TABLES",
    "CHECK_INDEPENDENCE": "false",
}
#: Spelled like variables, in modules that compute the name of one.
OTHER_WORDS = {"APPLICATION_DEFAULT", "JDK_HTTP_URL_CONNECTION", "TIMESTAMP_MICROS"}


def test_settings(snapshot):
    lines = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        annotation = field.annotation
        type_name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        type_name = type_name.replace("pathlib._local.", "pathlib.")  # as Python 3.13 has it
        variable = "SPARK_REMOTE" if name == "spark_remote" else f"{PREFIX}{name.upper()}"
        lines += [f"{variable}: {type_name} = {default}", *(f"    {x}" for x in field.metadata)]
    assert snapshot(extension_class=TextFile) == "\n".join([*lines, ""])


def test_each_setting_is_read_from_its_variable(monkeypatch):
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv(f"{PREFIX}JARS", raising=False)
    defaults = load_settings()
    for name, value in VALUES.items():
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:1")
    settings = load_settings()
    same = [
        name for name in Settings.model_fields if getattr(settings, name) == getattr(defaults, name)
    ]
    assert same == []


def test_variables_that_the_package_reads(snapshot):
    paths = [path for package in (PACKAGE, GUIDE) for path in sorted(package.rglob("*.py"))]
    trees = [ast.parse(path.read_text()) for path in paths]
    constants = constants_of(trees)
    names = {name for tree in trees for name in variables_of(tree, constants)} - OTHER_WORDS
    assert snapshot(extension_class=TextFile) == "\n".join([*sorted(names), ""])


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os\nos.environ.get('A_B', '')", {"A_B"}),
        ("import os\nos.environ['A_B']\nos.getenv('C')", {"A_B", "C"}),
        ("import os\n'A_B' in os.environ", {"A_B"}),
        ("import os\n_X, _Y = 'A_B', 'z'\nos.environ.pop(_X)", {"A_B"}),
        ("import os\nfor name in ('A_B', 'C_D'): os.environ.get(name)", {"A_B", "C_D"}),
        ("import os\nmap(os.environ.get, names)\nfirst('A_B')", {"A_B"}),
        ("import os\n{**os.environ, 'A_B': ''}", set()),
        ("import os\nP = 'A_'\nmap(os.environ.get, [f'{P}B', f'{x}C_D'])", {"A_B"}),
        ("'A_B'", set()),
    ],
)
def test_a_variable_is_recognized(source, names):
    tree = ast.parse(source)
    assert {*variables_of(tree, constants_of([tree]))} == names


def variables_of(tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    """The variables that a module reads; where a name is computed, all that may be one."""
    for node in ast.walk(tree):
        for key in keys_of(node):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value
            elif isinstance(key, ast.Name) and key.id in constants:
                yield constants[key.id]
            else:
                yield from words_of(tree, constants)


def keys_of(node: ast.AST) -> Iterator[ast.expr | None]:
    """What an expression looks for in the environment."""
    if isinstance(node, ast.Call):
        function, *arguments = map(ast.unparse, [node.func, *node.args])
        if function in (
            "os.getenv",
            *(f"os.environ.{name}" for name in ("get", "pop", "setdefault")),
        ):
            yield node.args[0]
        elif "os.environ.get" in arguments:
            yield None
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
        yield node.slice
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
        yield node.left


def words_of(tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    """The text of a module that is spelled like a variable."""
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(map(str, (part_text(part, constants) for part in node.values)))
        elif isinstance(node, ast.Constant) and id(node) not in parts:
            text = str(node.value)
        if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", text):
            yield text


def part_text(part: ast.expr, constants: dict[str, str]) -> str:
    """A part of an f-string; what is computed is a question mark."""
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
        return constants.get(part.value.id, "?")
    return str(part.value) if isinstance(part, ast.Constant) else "?"


def constants_of(trees: list[ast.Module]) -> dict[str, str]:
    """The text constants of modules by name: one module may import that of another."""
    constants = {}
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.Assign):
            names, values = tuple_elements(node.targets[0]), tuple_elements(node.value)
            constants.update(
                {
                    name.id: value.value
                    for name, value in zip(names, values, strict=False)
                    if isinstance(name, ast.Name)
                    and isinstance(value, ast.Constant)
                    and isinstance(value.value, str)
                }
            )
    return constants


def tuple_elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]
