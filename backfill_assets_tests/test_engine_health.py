"""An engine that computes nothing any more is found; one that is busy is left alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from backfill_assets.serve import servers
from backfill_assets.serve.servers import HealthProbe

ANSWERED, REFUSED, HANGS = "", "raise SystemExit(1)", "import time; time.sleep(60)"


def idle() -> float:
    """Processor seconds of an engine that uses none."""
    return 7.0


def working() -> float:
    """Processor seconds of an engine that uses half of one."""
    return time.monotonic() / 2


@pytest.fixture(autouse=True)
def _impatient(monkeypatch) -> None:
    monkeypatch.setattr(servers, "_QUERY_INTERVAL", 0.0)
    monkeypatch.setattr(servers, "_QUERY_TIMEOUT", 0.3)


def check_engine(monkeypatch, queries: list[str], used: Callable[[], float]) -> bool:
    """What is said of an engine once these queries have been asked."""
    looks, count = HealthProbe({}, used), 0
    monkeypatch.setattr(servers, "_QUERY_TIMEOUT", 20.0 if HANGS not in queries else 0.3)
    try:
        for query in queries:
            monkeypatch.setattr(servers, "_QUERY", ("-c", query))
            assert looks.is_good()
            process = looks._process
            assert process is not None
            while looks._process is process:
                good = looks.is_good()
                time.sleep(0.01)
            assert process.poll() is not None
            count += 1
            if not good:
                break
        return good
    finally:
        looks.stop_query()


def test_an_answer_is_good(monkeypatch):
    assert check_engine(monkeypatch, [ANSWERED], idle)


def test_three_failures_in_a_row_are_not(monkeypatch):
    assert check_engine(monkeypatch, [REFUSED, REFUSED], idle)
    assert not check_engine(monkeypatch, [REFUSED, REFUSED, REFUSED], idle)
    assert check_engine(monkeypatch, [REFUSED, REFUSED, ANSWERED, REFUSED, REFUSED], idle)


def test_an_engine_that_does_nothing_and_does_not_answer(monkeypatch):
    assert not check_engine(monkeypatch, [HANGS, HANGS, HANGS], idle)


@pytest.mark.parametrize("used", [working, lambda: float("inf")], ids=["busy", "not known"])
def test_an_engine_that_is_busy_is_left_alone(monkeypatch, used):
    assert check_engine(monkeypatch, [HANGS] * 5, used)
