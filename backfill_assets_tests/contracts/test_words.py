"""The words for states, outcomes, verdicts and levels: they are stored, shown and sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import backfill_assets
import backfill_assets_guide
from backfill_assets_tests.contracts.snapshot_files import TextFile

PACKAGE = Path(backfill_assets.__file__).parent
GUIDE = Path(backfill_assets_guide.__file__).parent


def test_words_of_enumerations(snapshot):
    """The values of each enumeration; their names in the code are no contract."""
    values = [
        [*values_of(node)]
        for package in (PACKAGE, GUIDE)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "Enum" in " ".join(map(ast.unparse, node.bases))
    ]
    assert [] not in values
    assert snapshot(extension_class=TextFile) == "".join(
        f"{', '.join(words)}\n" for words in sorted(values)
    )


def values_of(enumeration: ast.ClassDef) -> Iterator[str]:
    for node in enumeration.body:
        if isinstance(node, ast.Assign):
            yield str(ast.literal_eval(node.value))


def test_kinds_of_incidents(snapshot):
    """What alerts call an incident: text that `Incident`, or a function beside it, gets first."""
    kinds = {
        node.args[0].value
        for path in (PACKAGE / "monitoring").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and (
            name_of(node) == "Incident"
            or (name_of(node) == "add_incidents" and len(node.args) == 4)
        )
    }
    assert snapshot(extension_class=TextFile) == "".join(f"{kind}\n" for kind in sorted(kinds))


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func)
