"""The hand-made mutants fit the code, and CI runs the tests that find them."""

from __future__ import annotations

import subprocess

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
