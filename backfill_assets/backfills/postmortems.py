"""What a person writes in a post-mortem: the sections, and whether they are filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The sections that only a person can fill in, each with what belongs there.
SECTIONS: Mapping[str, str] = {
    "Impact": "Who saw which wrong days, from when to when, and what they did with them.",
    "Cause": "What happened, and why nothing prevented it.",
    "Follow-ups": "What will be done so that it does not happen again: by whom, until when.",
}
#: Begins what is to be replaced.
_BLANK = "TO BE FILLED IN: "
#: A section with fewer words says nothing.
_FEWEST = 4


def blanks() -> list[str]:
    """The sections, to be filled in, as lines of Markdown."""
    return [
        line
        for name, what in SECTIONS.items()
        for line in (f"## {name}", "", f"{_BLANK}{what}", "")
    ]


def unfilled(text: str) -> list[str]:
    """The sections that a post-mortem lacks, or that are not filled in.

    Args:
        text: in Markdown.
    """
    parts = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [
        name
        for name in SECTIONS
        if _BLANK in (body := said.get(name, "")) or len(body.split()) < _FEWEST
    ]
