"""`make mutants`: changes the code that decides, bit by bit, and tells which changes no test sees.

    python -m backfill_assets_tests.mutants [NAME ...] [--survivors] [--tests FILE] [--score]
    python -m backfill_assets_tests.mutants --patches ...

A name is a part of the name of a module, or the full name of a mutant. Without names, all mutants
are made anew.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys

from backfill_assets_tests.mutants.runs import make_mutants, run_mutants
from backfill_assets_tests.mutants.score import print_score, read_mutants, select_mutants

_PATCHES = "backfill_assets_tests.mutants.patches"


def main() -> None:
    """The command."""
    if sys.argv[1:2] == ["--patches"] and importlib.util.find_spec(_PATCHES):
        del sys.argv[1]
        importlib.import_module(_PATCHES).main()
        return
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="part of a module's name, or a mutant's full name")
    parser.add_argument("--survivors", action="store_true", help="test only what survived before")
    parser.add_argument("--tests", nargs="+", default=[], help="files of tests, instead of all")
    parser.add_argument("--score", action="store_true", help="test nothing: print the last results")
    arguments = parser.parse_args()
    if not arguments.score:
        make_mutants(afresh=not arguments.names and not arguments.survivors)
        mutants = select_mutants(read_mutants(), arguments.names)
        alive = [mutant for mutant in mutants if not mutant.killed]
        run_mutants(alive if arguments.survivors else mutants, arguments.tests)
    sys.exit(not print_score(read_mutants(), arguments.names))


if __name__ == "__main__":
    main()
