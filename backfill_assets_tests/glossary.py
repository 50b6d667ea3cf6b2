"""The rows of the glossary."""

from __future__ import annotations

import re
from dataclasses import dataclass

from backfill_assets_tests.pages import PAGES

PAGE = "docs/glossary.md"


@dataclass(frozen=True)
class Row:
    """A word and those that mean the same.

    Attributes:
        terms: the words, of this project and of others.
        meaning: what they mean.
        where: the tables, commands, settings and pages where the thing lives.
    """

    terms: tuple[str, ...]
    meaning: str
    where: str


def _rows() -> tuple[Row, ...]:
    found = re.findall(r"^\| (.+?) \| (.+) \| (.+?) \|$", PAGES[PAGE], re.MULTILINE)
    return tuple(
        Row(tuple(re.sub(r"[*`]", "", words).split(", ")), meaning, where)
        for words, meaning, where in found
        if words.startswith("*")
    )


ROWS = _rows()
