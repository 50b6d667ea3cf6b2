"""The files of a deployment: what of the package, and which variables, they name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import backfill_assets
from backfill_assets.settings import PREFIX, Settings
from backfill_assets_tests.contracts.snapshot_files import TextFile
from backfill_assets_tests.helpers.paths import PROJECT

PACKAGE = Path(backfill_assets.__file__).parent
FILES = [
    PROJECT / "dagster.yaml",
    PROJECT / "workspace.yaml",
    *sorted(path for name in ("deploy", "scaffold") for path in (PACKAGE / name).iterdir()),
]
_MODULE = re.compile(r"(?<![\w./])backfill_assets(?:\.\w+)+(?![\w/])")
_VARIABLE = re.compile(
    r"\$\{([A-Z][A-Z0-9_]+)|\benv: ([A-Z][A-Z0-9_]+)|\b(BACKFILL_ASSETS_[A-Z_]+)"
)


def project_path(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def modules_in(path: Path) -> list[str]:
    return sorted({*_MODULE.findall(path.read_text())})


def variables_in(path: Path) -> list[str]:
    return sorted({"".join(match) for match in _VARIABLE.findall(path.read_text())})


def classes_in(path: Path) -> list[tuple[str, str]]:
    """The pairs of a module and a class with which Dagster is configured."""
    if path.suffix != ".yaml":
        return []
    return sorted({*class_pairs(yaml.safe_load(path.read_text()))})


def class_pairs(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("module"), str) and isinstance(value.get("class"), str):
            yield value["module"], value["class"]
        value = [*value.values()]
    for item in value if isinstance(value, list) else []:
        yield from class_pairs(item)


def test_names_in_files(snapshot):
    lines = []
    for path in FILES:
        lines.append(project_path(path))
        lines += [f"  class {module}:{name}" for module, name in classes_in(path)]
        lines += [f"  module {name}" for name in modules_in(path)]
        lines += [f"  variable {name}" for name in variables_in(path)]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    for kind in ("scripts", "entry-points"):
        lines += [f"{kind} {name}: {value}" for name, value in project.get(kind, {}).items()]
    assert snapshot(extension_class=TextFile) == "\n".join([*lines, ""])


@pytest.mark.parametrize("path", FILES, ids=project_path)
def test_what_files_name_is_there(path):
    for module, name in classes_in(path):
        # Dagster reads this older name so.
        place = re.sub(r"^dagster\.core\.", "dagster._core.", module)
        assert isinstance(getattr(import_module(place), name), type)
    assert [name for name in modules_in(path) if find_spec(name) is None] == []
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    named = {name for name in variables_in(path) if name.startswith(PREFIX)}
    assert named <= settings


def test_the_scaffold_imports_what_is_public():
    texts = [(PACKAGE / f"scaffold/{name}.py.j2").read_text() for name in ("sources", "tables")]
    imported = {
        alias.name
        for text in texts
        for node in ast.walk(ast.parse(text.replace("{{ name }}", "shop")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("backfill_assets")
        for alias in node.names
    }
    assert imported
    assert imported <= {*backfill_assets.__all__}
