"""The project's wheel, as somebody installs it who has no checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from backfill_assets_tests.helpers.paths import PROJECT

#: Of the project, what the wheel is made of.
SOURCES = (
    "LICENSE",
    "README.md",
    "backfill_assets",
    "backfill_assets_guide",
    "dagster.yaml",
    "pyproject.toml",
)


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder that there is not yet, and return its path."""
    source = folder / "source"
    source.mkdir(parents=True)  # setuptools would leave folders in the project
    ignore = shutil.ignore_patterns("__pycache__", "target", "logs")
    for name in SOURCES:
        place = PROJECT / name
        if place.is_dir():
            shutil.copytree(place, source / name, ignore=ignore)
        else:
            shutil.copy(place, source / name)
    command = ("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source)
    subprocess.run([sys.executable, "-m", *command], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
