"""Fixtures: the documentation served, a browser to look at it; a Spark Connect server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.docs_site import site_in
from backfill_assets_tests.helpers.hostile_environment import make_hostile_variables
from backfill_assets_tests.helpers.real_engine import RealEngine, run_engine
from backfill_assets_tests.ui.browser import CHROMIUM, DRIVER, open_chromium, serve_folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation, served on loopback."""
    with serve_folder(site_in(tmp_path_factory.mktemp("site"))) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A headless Chromium."""
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("Chromium is not there: apt-get install chromium chromium-driver")
    with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def hostile_variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of somebody else."""
    return make_hostile_variables(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def connect_engine(
    tmp_path_factory: pytest.TempPathFactory, hostile_variables: dict[str, str]
) -> Iterator[RealEngine]:
    """A Spark Connect server for all tests, started in the environment of somebody else."""
    conf = {**SMALL, "spark.driver.memory": "1g"}
    running = run_engine(tmp_path_factory.mktemp("connect"), conf)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hostile_variables.items():
            patch.setenv(name, value)
        engine = running.__enter__()
    try:
        yield engine
    finally:
        running.__exit__(None, None, None)
