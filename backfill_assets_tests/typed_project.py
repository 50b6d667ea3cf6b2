"""Type-checks a project of a user: what `init` writes, and a module with every exported name.

    python -m backfill_assets_tests.typed_project

`make check` runs it, after mypy has checked the package: so only the project is checked here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from backfill_assets.cli import main as run_command
from backfill_assets_tests.helpers.paths import BIN, PROJECT

EVERY_NAME = PROJECT / "backfill_assets_tests" / "fixtures" / "every_name.py"
#: What `mypy --strict` adds to the options of `pyproject.toml`. As comments of the project's files:
#: with other options of its own, mypy would check the package and Spark once more. Models are
#: generic for pandera's annotations alone, and `DecimalType(18, 2)` is how it has a type.
STRICT = (
    "disallow-subclassing-any, disallow-untyped-calls, disallow-incomplete-defs, "
    "disallow-untyped-decorators, warn-return-any, no-implicit-reexport, strict-equality, "
    "extra-checks, disable-error-code=valid-type"
)


def check_project(folder: Path) -> int:
    """Write a project into a new folder and check it; returns the exit code of mypy."""
    if status := run_command(["init", str(folder)]):
        return status
    package = folder / folder.name
    shutil.copy(EVERY_NAME, package)
    for path in (*package.glob("*.py"), *folder.glob("tests/*.py")):
        path.write_text(f"# mypy: {STRICT}\n{path.read_text()}")
    command = [BIN / "mypy", package, folder / "tests"]
    path = {"MYPYPATH": str(folder)}
    return subprocess.run(command, cwd=PROJECT, env={**os.environ, **path}).returncode


if __name__ == "__main__":
    with TemporaryDirectory() as root:
        sys.exit(check_project(Path(root) / "shop"))
