"""What is run: mutmut, in `mutants/`, where the changed copy of the project lies.

mutmut knows by itself which functions have changed. It does not look whether a test that it knows
has changed, nor a module that it does not mutate: what was noted of those is forgotten here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from filecmp import cmp
from pathlib import Path

from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.mutants.score import COPY

#: Which test reaches which function, and how long each takes.
_STATS = COPY / "mutmut-stats.json"
_PACKAGE = PROJECT / "backfill_assets"
_TESTS = PROJECT / "backfill_assets_tests"


def run_mutmut(names: Sequence[str]) -> None:
    """Make what mutants are lacking, and test those of some names; or all of them anew."""
    if not names:
        shutil.rmtree(COPY, ignore_errors=True)
    _forget_changed_tests()
    # What is copied again has no file that is no longer there.
    shutil.rmtree(COPY / _TESTS.name, ignore_errors=True)
    patterns = [name if "__mutmut_" in name else f"*{name}*.x*" for name in names]
    command = [str(BIN / "mutmut"), "run", *patterns]
    if subprocess.run(command, cwd=PROJECT, check=False).returncode:
        sys.exit("mutmut did not come to its end: there is no score.")


def _forget_changed_tests() -> None:
    """Have mutmut ask again what changed tests reach; if other code changed, what all do."""
    if not _STATS.exists():
        return
    changed = {path for path in _TESTS.rglob("*.py") if _has_changed(path)}
    tests = {path for path in changed if path.name.startswith("test_")}
    noted = _STATS.stat().st_mtime
    package_changed = any(path.stat().st_mtime > noted for path in _PACKAGE.rglob("*.py"))
    if changed - tests or package_changed:
        _STATS.unlink()
        return
    files = {str(path.relative_to(PROJECT)) for path in tests}
    stats = json.loads(_STATS.read_text())
    seconds, reached = stats["duration_by_test"], stats["tests_by_mangled_function_name"]
    stats["duration_by_test"] = {
        test: taken for test, taken in seconds.items() if test.partition("::")[0] not in files
    }
    stats["tests_by_mangled_function_name"] = {
        function: [test for test in those if test.partition("::")[0] not in files]
        for function, those in reached.items()
    }
    _STATS.write_text(json.dumps(stats))


def _has_changed(path: Path) -> bool:
    copied = COPY / path.relative_to(PROJECT)
    return not copied.exists() or not cmp(path, copied, shallow=False)
