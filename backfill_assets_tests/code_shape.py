"""Measures names, modules and imports of the package, prints the figures, and fails above a limit.

    python -m backfill_assets_tests.code_shape [FOLDER]

`make check` runs it. Without limits, names drift: each word below was once a variable that only its
author could read.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

#: Words that do not say what a variable holds: function words and bare participles.
NO_NAMES = frozenset(
    [
        *("again", "asked", "because", "by", "done", "due", "far", "found", "given", "gone"),
        *("held", "here", "it", "kept", "left", "lost", "made", "meant", "mine", "near", "of"),
        *("one", "own", "put", "said", "seen", "so", "some", "spoken", "such", "taken", "there"),
        *("thus", "told", "unlike", "wanted", "was", "whom", "why"),
    ]
)
#: Highest allowed value of each figure, in the order in which they are printed.
LIMITS = {
    "modules": 170,
    "lines of the longest module": 600,
    "imports, % of code": 9.0,
    "variables that are no names, %": 0.5,
    "functions named by one word, %": 30.0,
    "import circles": 0,
    "modules imported by one other": 20,
    "modules under 80 lines": 25,
}


@dataclass(frozen=True)
class Module:
    """One module: its dotted name, its lines, and its syntax tree."""

    name: str
    lines: list[str]
    tree: ast.Module

    def code_lines(self) -> int:
        """Lines that are neither blank, comment nor docstring."""
        documentation = {
            line
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        }
        return sum(
            bool(line.strip()) and not line.strip().startswith("#") and number not in documentation
            for number, line in enumerate(self.lines, start=1)
        )

    def variables(self) -> Iterator[str]:
        """Each binding of a variable or parameter but `self`, `cls` and `_`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                continue
            if name not in {"self", "cls", "_"}:
                yield name.strip("_")

    def functions(self) -> Iterator[str]:
        """Names of functions and methods but those with two underscores in front."""
        for node in ast.walk(self.tree):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not node.name.startswith("__"):
                yield node.name.strip("_")

    def import_lines(self) -> int:
        return sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )

    def imported(self, names: set[str]) -> set[str]:
        """Which of the modules `names` this one imports, for type checking alone as well."""
        modules = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full_name = f"{node.module}.{alias.name}"
                    modules.add(full_name if full_name in names else node.module)
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
        return modules & names - {self.name}


def read_modules(folder: Path) -> list[Module]:
    """All modules below a package folder but those of the scaffold, which are a template."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        if "scaffold" not in path.parts:
            dotted = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            text = path.read_text()
            modules.append(
                Module(dotted.removesuffix(".__init__"), text.splitlines(), ast.parse(text))
            )
    return modules


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def measure(modules: list[Module]) -> tuple[dict[str, float], list[str]]:
    """The figures of `LIMITS`, and lines that say where the worst of them are."""
    names = {module.name for module in modules}
    imports = {module.name: module.imported(names) for module in modules}
    importers = Counter(name for targets in imports.values() for name in targets)
    code = sum(module.code_lines() for module in modules)
    variables = Counter(name for module in modules for name in module.variables())
    functions = [name for module in modules for name in module.functions()]
    no_names = Counter({name: variables[name] for name in NO_NAMES & variables.keys()})
    circle = find_circle(imports)
    figures = {
        "modules": len(modules),
        "lines of the longest module": max(len(module.lines) for module in modules),
        "imports, % of code": 100 * sum(module.import_lines() for module in modules) / code,
        "variables that are no names, %": 100 * no_names.total() / variables.total(),
        "functions named by one word, %": 100
        * sum("_" not in name for name in functions)
        / len(functions),
        "import circles": int(bool(circle)),
        "modules imported by one other": sum(importers[name] == 1 for name in names),
        "modules under 80 lines": sum(
            len(module.lines) < 80 and not _is_package(module, names) for module in modules
        ),
    }
    notes = [f"code: {code:,} lines"]
    if no_names:
        notes.append(f"no names: {', '.join(f'{n} {c}' for n, c in no_names.most_common(12))}")
    if circle:
        notes.append(f"circle: {' -> '.join(circle)}")
    return figures, notes


def _is_package(module: Module, names: set[str]) -> bool:
    return any(name.startswith(f"{module.name}.") for name in names)


def main(folder: Path) -> int:
    figures, notes = measure(read_modules(folder))
    for name, limit in LIMITS.items():
        mark = "" if figures[name] <= limit else "  <-- above the limit"
        print(f"{name:<32} {figures[name]:>7.4g}  limit {limit:g}{mark}")
    print("\n".join(notes))
    return int(any(figures[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "backfill_assets")))
