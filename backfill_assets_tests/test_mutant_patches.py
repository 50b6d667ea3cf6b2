"""The hand-made mutants fit the code, and CI runs the tests that find them.

Each of the others is tested in a process that has run no test before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from backfill_assets_tests.helpers.ci_tests import why_not_in_ci
from backfill_assets_tests.mutants.patches import PROJECT, read_patches


def test_each_patch_fits_the_code_and_names_tests_of_ci():
    mutants = read_patches()
    assert len(mutants) >= 30
    for mutant in mutants:
        checked = subprocess.run(
            ["git", "apply", "--check", str(mutant.path)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr
        assert mutant.says.endswith(".")
        assert mutant.tests
        assert {test: why for test in mutant.tests if (why := why_not_in_ci(test))} == {}


TESTS = """
from mutmut.mutation.trampoline import get_mutant_under_test
from mutmut.state import state

runs = []

def test_in_a_process_once():
    state()._stats.add("m.x_f")
    runs.append(1)
    assert len(runs) == 1

def test_everywhere():
    state()._stats.add("m.x_f")
    assert get_mutant_under_test() != "m.x_f__mutmut_2"
"""


def test_each_mutant_has_a_process_that_has_run_no_test(tmp_path):
    """delta-rs works in no fork of a process that has used it."""
    for name, text in {
        "test_m.py": TESTS,
        "pyproject.toml": "",
        "wanted.json": json.dumps(["m.x_f__mutmut_1", "m.x_f__mutmut_2"]),
    }.items():
        (tmp_path / name).write_text(text)
    files = ["wanted.json", "results.jsonl", "test_m.py"]
    command = [sys.executable, "-m", "backfill_assets_tests.mutants.session", *files]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    results = dict(map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines()))
    assert results == {"m.x_f__mutmut_1": 0, "m.x_f__mutmut_2": 1}
