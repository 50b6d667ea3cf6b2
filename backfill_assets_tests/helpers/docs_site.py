"""The documentation as `make docs` builds it: built once, read by all tests of the pages."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from backfill_assets_tests.helpers.paths import PROJECT

#: `make docs` touches it when a build has ended without a warning.
_STAMP = PROJECT / "site" / ".built"
#: The pages, what they include, and the docstrings that they show.
_SOURCES = ("docs", "backfill_assets")


def site_in(folder: Path) -> Path:
    """The site of `make docs` if nothing is newer; else one that is built into a folder.

    A test is skipped where mkdocs is not installed.

    Raises:
        AssertionError: the build gave a warning.
    """
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: `make docs` installs it")
    if _STAMP.exists() and _STAMP.stat().st_mtime > _newest_source():
        return _STAMP.parent
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-d", str(folder)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder


def load_hooks() -> ModuleType:
    """The hooks that change a page before or after it becomes HTML."""
    spec = importlib.util.spec_from_file_location("docs_hooks", PROJECT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(hooks := importlib.util.module_from_spec(spec))
    return hooks


def _newest_source() -> float:
    files = [PROJECT / "mkdocs.yml"]
    for name in _SOURCES:
        files += (PROJECT / name).rglob("*.*")
    return max(file.stat().st_mtime for file in files if "__pycache__" not in file.parts)
