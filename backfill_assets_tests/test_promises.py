"""Each promise of the project names tests that CI runs."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROMISES = tomllib.loads((TESTS / "promises.toml").read_text())["promise"]


def why_not_in_ci(name: str, root: Path = TESTS) -> str | None:
    """Why CI does not run a test; None if it does.

    Args:
        name: as `system/test_undo.py::test_an_undo_holds`.
        root: the folder of the tests.
    """
    file, _, function = name.partition("::")
    if not (root / file).is_file():
        return f"there is no {file}"
    tree = ast.parse((root / file).read_text())
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            marks += node.decorator_list
            return f"{name} is slow" if any(map(_is_slow, marks)) else None
    return f"{file} has no {function}"


def _is_slow(mark: ast.expr) -> bool:
    """Whether a decorator or `pytestmark` marks all cases of a test as slow."""
    elements = mark.elts if isinstance(mark, ast.List) else [mark]
    return any(ast.unparse(element) == "pytest.mark.slow" for element in elements)


def test_each_promise_is_held_by_tests_of_ci():
    names = [name for promise in PROMISES for name in promise["tests"]]
    assert {name: reason for name in names if (reason := why_not_in_ci(name))} == {}
    texts = [promise["text"] for promise in PROMISES]
    assert len({*texts}) == len(texts) > 25
    assert all(promise["tests"] for promise in PROMISES)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("test_a.py::test_fast", None),
        ("test_a.py::test_some", None),
        ("test_a.py::test_slow", "test_a.py::test_slow is slow"),
        ("test_a.py::test_none", "test_a.py has no test_none"),
        ("test_b.py::test_fast", "test_b.py::test_fast is slow"),
        ("test_c.py::test_fast", "there is no test_c.py"),
    ],
)
def test_a_test_that_ci_does_not_run_is_named(tmp_path, name, why):
    slow = "@pytest.mark.slow\ndef test_slow(): ...\n"
    parametrized = "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow), 2])\n"
    text = f"def test_fast(): ...\n{slow}{parametrized}def test_some(n): ...\n"
    (tmp_path / "test_a.py").write_text(text)
    (tmp_path / "test_b.py").write_text(f"pytestmark = [pytest.mark.slow, other]\n{text}")
    assert why_not_in_ci(name, tmp_path) == why
