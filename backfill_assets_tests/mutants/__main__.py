"""`make mutants`: changes the code that decides, bit by bit, and tells which changes no test sees.

    python -m backfill_assets_tests.mutants [NAME ...] [--survivors | --score]
    python -m backfill_assets_tests.mutants --patches ...

Without names, all mutants are made and tested anew. A name is a part of the name of a module, or
the full name of a mutant.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys

from backfill_assets_tests.mutants.runs import run_mutmut
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
    parser.add_argument("--score", action="store_true", help="test nothing: print the last results")
    arguments = parser.parse_args()
    if not arguments.score:
        names = arguments.names
        if arguments.survivors:
            chosen = select_mutants(read_mutants(), names)
            names = [mutant.name for mutant in chosen if not mutant.killed]
        if names or not arguments.survivors:
            run_mutmut(names)
    sys.exit(not print_score(read_mutants(), arguments.names))


if __name__ == "__main__":
    main()
