"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re

from backfill_assets_tests.places import PROJECT

#: The text of README and of all other pages by their path, README first.
PAGES = {
    str(path.relative_to(PROJECT)): path.read_text()
    for path in (
        PROJECT / "README.md",
        PROJECT / "CONTRIBUTING.md",
        *sorted((PROJECT / "docs").rglob("*.md")),
    )
}
#: A block of code: its language, and what is in it.
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented(page: str, language: str) -> list[str]:
    """The blocks of a page in a language."""
    return [body for found, body in BLOCK.findall(PAGES[page]) if found == language]
