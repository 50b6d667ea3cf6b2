"""What the field guide claims, and what shows it: labs, tests, and pages with figures.

`python -m backfill_assets_tests.helpers.guide_claims` lists every claim with its evidence. It exits
with 1 if nothing shows a claim.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from backfill_assets_guide.labs.running import LABS
from backfill_assets_tests.helpers import glossary
from backfill_assets_tests.helpers.docs_pages import PAGES, Section, anchor_of, split_sections
from backfill_assets_tests.helpers.paths import PROJECT

GUIDE = "docs/guide/"
#: The last line of a section that claims nothing: it only tells what to do, or where to read.
NO_CLAIM = ("instructions", "links")
_SHOWN = re.compile(r"^Shown by: (.+?)\.?$", re.MULTILINE)
_BETWEEN = re.compile(r";|,(?= [`[])")
_NO_CLAIM = re.compile(rf"^<!-- No claim: ({'|'.join(NO_CLAIM)})\. -->$")
#: A block, a table, a picture, or the part of `make bench` by which figures were measured.
_FIGURE = re.compile(r"^(```|\||!\[)|--part \w+", re.MULTILINE)
_TESTS = PROJECT / "backfill_assets_tests"


@dataclass(frozen=True)
class Claim:
    """A section of a page, or an item of a data file.

    Attributes:
        where: the file, and the section or item in it.
        evidence: what shows it; empty where nothing is claimed.
        wrong: why it is not shown; empty if it is.
    """

    where: str
    evidence: tuple[str, ...]
    wrong: tuple[str, ...]


def list_claims() -> Iterator[Claim]:
    """All of the guide, pages first, and where the words of the glossary live."""
    for page, text in PAGES.items():
        if page.startswith(GUIDE):
            yield from claims_of_page(page, text)
    for path in sorted((PROJECT / GUIDE).glob("*.json")):
        yield from claims_of_data(f"{GUIDE}{path.name}", json.loads(path.read_text()))
    for row in glossary.ROWS:
        missing = tuple(f"there is no {name}" for name in glossary.missing_places(row.where))
        yield Claim(f"{glossary.PAGE}: {row.terms[0]}", (row.where,), missing)


def claims_of_page(page: str, text: str) -> Iterator[Claim]:
    """The `##` sections of a page, or the page as a whole if it has none."""
    of_level = [section for section in split_sections(text) if section.level == 2]
    for section in of_level or [Section(1, page, text)]:
        last = section.body.rstrip().rpartition("\n")[2]
        where = f"{page}: {section.title}"
        if _NO_CLAIM.match(last):
            yield Claim(where, (), ())
        elif _SHOWN.match(last):
            # Those of parts of the section count as well.
            evidence = ";".join(_SHOWN.findall(section.body))
            yield _make_claim(where, evidence, page)
        else:
            nothing = f"<!-- No claim: {'|'.join(NO_CLAIM)}. -->"
            missing = f'it ends with neither "Shown by: ..." nor "{nothing}"'
            yield Claim(where, (), (missing,))


def claims_of_data(name: str, data: Any, where: str = "") -> Iterator[Claim]:
    """The items of a data file: each has a field `shown_by`, or consists of items.

    Args:
        name: of the file, from the project's folder.
        data: what is in it, or in a part of it.
        where: the part; empty for the whole.
    """
    if isinstance(data, list):
        for number, item in enumerate(data, 1):
            yield from claims_of_data(name, item, f"{where} {number}")
        return
    if not isinstance(data, dict):
        yield Claim(f"{name}:{where}", (), ("it is no object with a field `shown_by`",))
        return
    if "shown_by" in data:
        yield _make_claim(f"{name}:{where}", str(data["shown_by"]), name)
        return
    parts = {key: value for key, value in data.items() if isinstance(value, (list, dict))}
    if not parts:
        yield Claim(f"{name}:{where}", (), ("it has no field `shown_by`",))
    for key, value in parts.items():
        yield from claims_of_data(name, value, f"{where} {key}")


def _make_claim(where: str, evidence: str, page: str) -> Claim:
    parts = tuple(part.strip() for part in _BETWEEN.split(evidence))
    return Claim(where, parts, tuple(filter(None, (unproven_reason(part, page) for part in parts))))


def unproven_reason(evidence: str, page: str) -> str | None:
    """Why a piece of evidence shows nothing; none if it does.

    Args:
        evidence: `lab NAME`, `test_x.py::test_name` (its path in the folder of the tests) or
            `[words](../page.md#anchor)`; the first two with or without backticks.
        page: the file that names it, from the project's folder.
    """
    plain = evidence.replace("`", "")
    if match := re.fullmatch(r"lab ([\w-]+)", plain):
        return None if match[1] in LABS else f"there is no lab {match[1]}"
    if match := re.fullmatch(r"((?:\w+/)*test_\w+\.py)::(test_\w+)", plain):
        return _missing_test_reason(match[1], match[2])
    if match := re.fullmatch(r"\[[^\]]+\]\(([^)#]+)(?:#([\w-]+))?\)", evidence):
        return _missing_figure_reason(PurePosixPath(page).parent / match[1], match[2])
    return f"{evidence!r} is no lab, no test and no link to a page"


def _missing_test_reason(module: str, name: str) -> str | None:
    path = _TESTS / module
    if not path.is_file():
        return f"there is no module {module} of tests"
    if name not in _function_names(path):
        return f"{module} has no {name}"
    return None


@cache
def _function_names(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _missing_figure_reason(path: PurePosixPath, anchor: str | None) -> str | None:
    page = (PROJECT / path).resolve().relative_to(PROJECT.resolve()).as_posix()
    if page not in PAGES:
        return f"there is no page {page}"
    if page.startswith(GUIDE):
        return f"{page} is a page of the guide: name what shows it there"
    bodies = [PAGES[page]]
    if anchor:
        page_sections = split_sections(PAGES[page])
        bodies = [section.body for section in page_sections if anchor_of(section.title) == anchor]
        if not bodies:
            return f"{page} has no section {anchor}"
    if not any(_FIGURE.search(body) for body in bodies):
        return f"{page}#{anchor or ''} has no figure, block or table"
    return None


def main() -> int:
    """Print all claims; 1 if one is not shown."""
    all_claims = list(list_claims())
    for claim in all_claims:
        print(claim.where)
        for line in claim.evidence or ("(no claim)",) * (not claim.wrong):
            print(f"    {line}")
        for line in claim.wrong:
            print(f"    NOT SHOWN: {line}")
    wrong = sum(bool(claim.wrong) for claim in all_claims)
    print(f"{len(all_claims)} sections, items and words, {wrong} not shown")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
