"""Hand-made mutants of what only Spark can show, each a patch with the tests that must find it.

`patches/NAME.patch` begins with a sentence that says what is wrong then, and a line
`Found by: FILE::TEST` for each test, of which at least one must fail with the patch. All of these
tests run in CI.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TESTS = Path(__file__).parents[1]
PROJECT = TESTS.parent
FOLDER = Path(__file__).with_name("patches")
_FOUND_BY = "Found by: "
#: Of the project, what a mutant's tests do not need.
_NOT_COPIED = (".*", "build", "data", "docs", "mutants", "site", "__pycache__")
#: What pytest answers where tests have failed.
_TESTS_FAILED = 1


@dataclass(frozen=True)
class PatchMutant:
    """A patch.

    Attributes:
        path: of the patch.
        says: what is wrong with it.
        tests: as `system/test_undo.py::test_an_undo_holds`; one of them must fail.
    """

    path: Path
    says: str
    tests: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a patch."""
        says, *lines = path.read_text().splitlines()
        tests = [line.removeprefix(_FOUND_BY) for line in lines if line.startswith(_FOUND_BY)]
        return cls(path, says, tests)

    def is_found(self, project: Path) -> bool:
        """Whether one of its tests fails in a copy of the project, which is as before afterwards.

        Raises:
            RuntimeError: pytest could not run them.
        """
        self._apply(project)
        try:
            command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider"]
            folder = project / TESTS.name
            completed = subprocess.run(
                [*command, "-m", "", *(str(folder / test) for test in self.tests)],
                cwd=project,
                env={**os.environ, "PYTHONPATH": str(project)},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            self._apply(project, "--reverse")
        if completed.returncode not in (0, _TESTS_FAILED):
            raise RuntimeError(f"{self.path.name}: {completed.stdout[-3000:]}")
        return completed.returncode == _TESTS_FAILED

    def _apply(self, project: Path, *options: str) -> None:
        # Outside of a repository, or git would leave out what that ignores.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(project.parent)}
        command = ["git", "apply", *options, str(self.path)]
        subprocess.run(command, cwd=project, env=environment, check=True)


def read_patches() -> list[PatchMutant]:
    """All hand-made mutants, by name."""
    return [PatchMutant.read(path) for path in sorted(FOLDER.glob("*.patch"))]


def copy_project(folder: Path) -> Path:
    """Copy the package and its tests into a folder."""
    project = folder / PROJECT.name
    shutil.copytree(PROJECT, project, ignore=_ignore_unneeded, symlinks=True)
    return project


def _ignore_unneeded(folder: str, names: list[str]) -> set[str]:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")(folder, names)
    if Path(folder) == PROJECT:
        ignored |= shutil.ignore_patterns(*_NOT_COPIED)(folder, names)
    return ignored


def main() -> None:
    """Run each patch against its tests; exit with 1 if none of them finds it."""
    parser = argparse.ArgumentParser(prog="make mutants ARGS=--patches")
    parser.add_argument("names", nargs="*", help="parts of the names of patches; all by default")
    names = parser.parse_args().names
    chosen = [
        mutant
        for mutant in read_patches()
        if not names or any(name in mutant.path.stem for name in names)
    ]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder))
        for mutant in chosen:
            found = mutant.is_found(project)
            print("found   " if found else "SURVIVED", mutant.path.stem, flush=True)
            survivors += [] if found else [mutant]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} are found.")
    for mutant in survivors:
        print(f"{mutant.path.name}: {mutant.says} None of {', '.join(mutant.tests)} fails.")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
