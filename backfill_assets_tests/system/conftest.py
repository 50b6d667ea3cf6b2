"""Fixtures: the documentation built and served, and a browser to look at it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from backfill_assets_tests.places import PROJECT
from backfill_assets_tests.ui.browser import CHROMIUM, DRIVER, chromium, served


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation, built from docs/ and served on loopback."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", str(folder)],
        cwd=PROJECT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A headless Chromium."""
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("Chromium is not there: apt-get install chromium chromium-driver")
    with chromium() as browser:
        yield browser
