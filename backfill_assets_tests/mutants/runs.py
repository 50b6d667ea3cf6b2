"""What is run: mutmut makes the mutants, in a copy of the project, and one session tests them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from io import StringIO

from mutmut.__main__ import create_mutants
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir

from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.mutants.score import COPY, Mutant

_SESSION = "backfill_assets_tests.mutants.session"
_TESTS = "backfill_assets_tests"


def make_mutants(*, afresh: bool) -> None:
    """Copy the project and make its mutants: of the functions that have changed, or of all."""
    if afresh:
        shutil.rmtree(COPY, ignore_errors=True)
    # What is copied again has no file that is no longer there.
    shutil.rmtree(COPY / _TESTS, ignore_errors=True)
    COPY.mkdir(exist_ok=True)
    with chdir(PROJECT), redirect_stdout(StringIO()):
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(os.cpu_count() or 1)


def run_mutants(mutants: Sequence[Mutant], files: Sequence[str]) -> None:
    """Test some mutants with some files of tests, and keep what became of each."""
    selection = [f"{_TESTS}/{file}" for file in files]
    with chdir(PROJECT):
        settings = config()
    arguments = [
        *settings.pytest_add_cli_args,
        *(selection or settings.pytest_add_cli_args_test_selection),
    ]
    wanted, results = COPY / "wanted.json", COPY / "results.jsonl"
    wanted.write_text(json.dumps([mutant.name for mutant in mutants]))
    results.write_text("")
    command = [sys.executable, "-m", _SESSION, str(wanted), str(results), *arguments]
    try:
        # The package is that of the copy: the folder that a module is started in comes first.
        code = subprocess.run(command, cwd=COPY, env=_environment(), check=False).returncode
    finally:
        _keep_results(dict(map(json.loads, results.read_text().splitlines())), mutants)
    if code:
        sys.exit("The tests did not come to their end, or fail without a mutant: no score.")


def _environment() -> dict[str, str]:
    """What tests start as a process of its own takes the package of the copy as well."""
    return {**os.environ, "PYTHONPATH": str(COPY)}


def _keep_results(exit_codes: dict[str, int], mutants: Sequence[Mutant]) -> None:
    """Note them where mutmut does, which shows them then."""
    by_path: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
    for mutant in mutants:
        if mutant.name in exit_codes:
            by_path[mutant.path][mutant.name] = exit_codes[mutant.name]
    with chdir(PROJECT):
        for path, results in by_path.items():
            data = SourceFileMutationData(path=path)
            data.load()
            data.exit_code_by_key.update(results)
            data.save()
