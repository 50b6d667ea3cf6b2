"""The score of each module, and the mutants that no test has killed.

A mutant that does what the code does cannot be killed. `equivalent.toml` lists those, by what they
change, since mutmut numbers the mutants of a function anew where it changes.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

from backfill_assets_tests.helpers.paths import PROJECT

#: Where mutmut keeps the mutants and what became of them.
COPY = PROJECT / "mutants"
#: Of a module's mutants, so many per cent must be killed.
REQUIRED = 90
EQUIVALENTS = Path(__file__).with_name("equivalent.toml")
#: A test that does not end tells the mutant from the code as well as one that fails.
_KILLED = frozenset(["killed", "timeout"])
#: A function with one of them in its signature is tested with Spark, or not at all.
_FRAMES = frozenset(["Column", "DataFrame", "SparkSession", "WindowSpec"])


@dataclass(frozen=True)
class Change:
    """What a mutant changes: lines of a function, without their indents."""

    module: str
    function: str
    removed: str
    added: str


@dataclass(frozen=True)
class Mutant:
    """A mutant by mutmut's name of it, and what became of it: killed, timeout, survived, ..."""

    name: str
    path: str
    status: str

    @property
    def killed(self) -> bool:
        """Whether a test has failed, or not ended."""
        return self.status in _KILLED

    @property
    def module(self) -> str:
        """The name of its module in the package."""
        return self.path.removesuffix(".py").replace("/", ".").removeprefix("backfill_assets.")

    def has_name(self, name: str) -> bool:
        """Whether it is meant by its full name, or by a part of the name of its module."""
        if "__mutmut_" in name:
            return self.name == name
        return name in f"backfill_assets.{self.module}"

    @property
    def function(self) -> str:
        """The function that it changes; of a method, with its class."""
        function, class_name = orig_function_and_class_names_from_key(self.name)
        return f"{class_name}.{function}" if class_name else function

    @cached_property
    def change(self) -> Change:
        """The lines that it takes out of its function and puts into it."""
        lines = get_diff_for_mutant(self.name, path=self.path).splitlines()[3:]
        return Change(
            self.module,
            self.function,
            *("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+"),
        )


@dataclass(frozen=True)
class Score:
    """How many mutants of a module are killed, and which are not, nor excused."""

    module: str
    killed: int
    timeouts: int
    excused: int
    survivors: list[Mutant]

    @classmethod
    def of_module(
        cls, module: str, mutants: Collection[Mutant], excused: Container[Change]
    ) -> Score:
        """Count the mutants of one module."""
        alive = [mutant for mutant in mutants if not mutant.killed]
        survivors = [mutant for mutant in alive if mutant.change not in excused]
        return cls(
            module,
            len(mutants) - len(alive),
            sum(mutant.status == "timeout" for mutant in mutants),
            len(alive) - len(survivors),
            survivors,
        )

    @classmethod
    def of_all(cls, scores: Collection[Score]) -> Score:
        """The sum."""
        return cls(
            "all",
            sum(score.killed for score in scores),
            sum(score.timeouts for score in scores),
            sum(score.excused for score in scores),
            [mutant for score in scores for mutant in score.survivors],
        )

    @property
    def total(self) -> int:
        """All that could be killed."""
        return self.killed + len(self.survivors)

    def is_enough(self) -> bool:
        """Whether the required share is killed."""
        return 100 * self.killed >= REQUIRED * self.total


def read_mutants() -> list[Mutant]:
    """All mutants there are, with the last result of each, but for those of functions of frames."""
    mutants: list[Mutant] = []
    for path in sorted(COPY.rglob("*.py.meta")):
        source = str(path.relative_to(COPY)).removesuffix(".meta")
        results = json.loads(path.read_text())["exit_code_by_key"]
        of_module = [
            Mutant(key, source, status_by_exit_code[code]) for key, code in results.items()
        ]
        of_frames = _functions_of_frames((PROJECT / source).read_text())
        mutants += [mutant for mutant in of_module if mutant.function not in of_frames]
    return mutants


def _functions_of_frames(source: str) -> set[str]:
    """The functions of a module that are given, or give, what only Spark can compute."""
    module = ast.parse(source)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    functions = {
        **dict(_functions_in(module.body)),
        **{f"{c.name}.{name}": node for c in classes for name, node in _functions_in(c.body)},
    }
    return {
        name
        for name, function in functions.items()
        for annotation in [*map(_annotation, ast.walk(function.args)), function.returns]
        if annotation and _FRAMES & {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)}
    }


def _annotation(node: ast.AST) -> ast.expr | None:
    return node.annotation if isinstance(node, ast.arg) else None


def _functions_in(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    return ((node.name, node) for node in body if isinstance(node, ast.FunctionDef))


def select_mutants(mutants: Collection[Mutant], names: Sequence[str]) -> list[Mutant]:
    """Those that are meant by some names, or all."""
    return [mutant for mutant in mutants if not names or any(map(mutant.has_name, names))]


def read_equivalents() -> dict[Change, str]:
    """What is excused, and why."""
    entries = tomllib.loads(EQUIVALENTS.read_text()).get("mutant", [])
    return {Change(**entry): reason for entry in entries if (reason := entry.pop("reason"))}


def print_score(mutants: Collection[Mutant], names: Sequence[str]) -> bool:
    """Print survivors and scores of what is meant by some names; whether all is as it must be."""
    by_module: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in select_mutants(mutants, names):
        by_module[mutant.module].append(mutant)
    equivalents = read_equivalents()
    excused = {
        mutant.change
        for of_module in by_module.values()
        for mutant in of_module
        if not mutant.killed and mutant.change in equivalents
    }
    scores = [Score.of_module(module, mutants, excused) for module, mutants in by_module.items()]
    for score in scores:
        _print_survivors(score.survivors)
    _print_table(scores)
    too_low = [score.module for score in scores if not score.is_enough()]
    if too_low:
        print(f"\nBelow {REQUIRED} %: {', '.join(too_low)}")
    whole = not any("__mutmut_" in name for name in names)
    unused = [change for change in equivalents.keys() - excused if change.module in by_module]
    stale = unused if whole else []
    for change in stale:
        print(f"\n{EQUIVALENTS.name} excuses what is no survivor: {change}")
    return bool(scores) and not too_low and not stale


def _print_survivors(survivors: Collection[Mutant]) -> None:
    for mutant in survivors:
        print(f"\n{mutant.name}: {mutant.status}, in {mutant.function}")
        for sign, text in (("-", mutant.change.removed), ("+", mutant.change.added)):
            print("\n".join(f"    {sign} {line}" for line in text.splitlines()))


def _print_table(scores: Sequence[Score]) -> None:
    print(f"\n{'module':28} killed / total   score  timeouts  excused")
    for score in [*scores, Score.of_all(scores)]:
        share = f"{100 * score.killed / score.total:.1f} %" if score.total else "-"
        print(
            f"{score.module:28} {score.killed:6} / {score.total:5} {share:>7}"
            f" {score.timeouts:9} {score.excused:8}"
        )
    print("What a mutant changes, in its function: .venv/bin/mutmut show NAME")
