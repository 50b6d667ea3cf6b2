"""What the pages of the labs say, as figures that tests can compare with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from backfill_assets_guide.labs import running

Figure = int | Decimal | str | None
#: Who looks at something, and what they see, by name.
Observation = tuple[str, Mapping[str, Figure]]
_STEP = re.compile(r"\d+\. (.*)")
_SEEN = re.compile(r"   (\S.{25}) (.+)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def read_figures(lab: str) -> list[tuple[str, list[Observation]]]:
    """The steps of a lab in their order, as its page has them, and what is seen after each.

    Numbers are int, or Decimal where they have decimals; null is None; dates and words are str.
    A line that is prose has its text under the name `text`.

    Args:
        lab: its name, such as `append`.
    """
    steps: list[tuple[str, list[Observation]]] = []
    for line in running.read_page(lab).splitlines():
        if step := _STEP.fullmatch(line):
            steps.append((step[1], []))
        elif match := _SEEN.fullmatch(line):
            steps[-1][1].append((match[1].rstrip(), _parse_figures(match[2])))
    return steps


def _parse_figures(text: str) -> dict[str, Figure]:
    named: dict[str, Figure] = {}
    for part in text.split("   "):
        name, _, value = part.rpartition(" ")
        word = not (_is_number(value) or _DATE.fullmatch(value) or value == "null")
        if not name or (word and " " in name):
            return {"text": text}
        named[name] = None if value == "null" else _parse_value(value)
    return named


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d[\d,]*(\.\d+)?", text) is not None


def _parse_value(text: str) -> Figure:
    if not _is_number(text):
        return text
    plain = text.replace(",", "")
    return Decimal(plain) if "." in plain else int(plain)
