"""Each promise of the project names tests that CI runs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from backfill_assets_tests.helpers.ci_tests import why_not_in_ci

TESTS = Path(__file__).parent
PROMISES = tomllib.loads((TESTS / "promises.toml").read_text())["promise"]


def test_each_promise_is_held_by_tests_of_ci():
    names = [name for promise in PROMISES for name in promise["tests"]]
    assert {name: reason for name in names if (reason := why_not_in_ci(name))} == {}
    texts = [promise["text"] for promise in PROMISES]
    assert len({*texts}) == len(texts) > 25
    assert all(promise["tests"] for promise in PROMISES)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("test_a.py::test_fast", None),
        ("test_a.py::test_some", None),
        ("test_a.py::test_slow", "test_a.py::test_slow is slow"),
        ("test_a.py::test_none", "test_a.py has no test_none"),
        ("test_b.py::test_fast", "test_b.py::test_fast is slow"),
        ("test_c.py::test_fast", "there is no test_c.py"),
    ],
)
def test_a_test_that_ci_does_not_run_is_named(tmp_path, name, why):
    slow = "@pytest.mark.slow\ndef test_slow(): ...\n"
    parametrized = "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow), 2])\n"
    text = f"def test_fast(): ...\n{slow}{parametrized}def test_some(n): ...\n"
    (tmp_path / "test_a.py").write_text(text)
    (tmp_path / "test_b.py").write_text(f"pytestmark = [pytest.mark.slow, other]\n{text}")
    assert why_not_in_ci(name, tmp_path) == why
