"""Fixtures: the documentation served, and a browser to look at it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from backfill_assets_tests.helpers.docs_site import site_in
from backfill_assets_tests.ui.browser import CHROMIUM, DRIVER, open_chromium, serve_folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation, served on loopback."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: `make docs` installs it")
    with serve_folder(site_in(tmp_path_factory.mktemp("site"))) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A headless Chromium."""
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("Chromium is not there: apt-get install chromium chromium-driver")
    with open_chromium() as browser:
        yield browser
