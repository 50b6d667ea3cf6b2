"""Which tests CI runs."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


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
