"""The post-mortem page of a backfill: what is on record, and sections for a person to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone

from backfill_assets.backfills.chronicles import Chronicle, Step
from backfill_assets.backfills.plans import in_lines, in_numbers
from backfill_assets.calendar.partitions import spelled
from backfill_assets.escaping import markdown, markdown_table, one_line

#: The sections that only a person can fill in, each with what belongs there.
SECTIONS: Mapping[str, str] = {
    "Impact": "Who saw which wrong days, from when to when, and what they did with them.",
    "Cause": "What happened, and why nothing prevented it.",
    "Follow-ups": "What will be done so that it does not happen again: by whom, until when.",
}
#: Begins what is to be replaced.
BLANK = "TO BE FILLED IN: "
#: A section with fewer words says nothing.
_FEWEST = 4


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
        if BLANK in (body := said.get(name, "")) or len(body.split()) < _FEWEST
    ]


def page(found: Chronicle) -> str:
    """The page, in Markdown."""
    return "\n".join(_page(found))


def _page(found: Chronicle) -> Iterator[str]:
    yield f"# Post-mortem of {markdown(found.name)}"
    yield ""
    yield f"Reason on record: {markdown(found.reason) or 'none given'}"
    yield ""
    for name in ("Impact", "Cause"):
        yield from _blank(name)
    yield "## What was done"
    yield ""
    rows = [(_moment(s.at), s.what, _duration(s.took), s.outcome) for s in found.steps]
    yield markdown_table(("at (UTC)", "what", "took", "outcome"), rows)
    yield ""
    yield "The commands, in their order:"
    yield ""
    yield from typed(found.steps)
    yield "## Days touched"
    yield ""
    yield from _days(found)
    yield from _of_plan(found)
    yield "## Verdict"
    yield ""
    yield from (f"- {markdown(text)}" for text in _verdict(found))
    yield ""
    yield from _blank("Follow-ups")


def _blank(name: str) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield f"{BLANK}{SECTIONS[name]}"
    yield ""


def _days(found: Chronicle) -> Iterator[str]:
    rows = [
        (
            of.table,
            spelled(of.days),
            f"{of.before if of.before >= 0 else 'no table'}",
            f"{of.after}",
            spelled(of.undone) or "none",
            "; ".join(of.because),
        )
        for of in found.touched
    ]
    if not rows:
        yield "No day of any table was written."
        yield ""
        return
    headings = (
        "table", "days written", "version before", "version after", "put back since", "why",
    )  # fmt: skip
    yield markdown_table(headings, rows)
    yield ""
    yield "Every version can be read for as long as its files are kept."
    yield ""


def _of_plan(found: Chronicle) -> Iterator[str]:
    yield "## Plan"
    yield ""
    if found.plan is None:
        yield "There was no plan under this name, or it is not kept any more."
        yield ""
        return
    yield markdown_table(("table", "what becomes of them", "why", "days"), in_lines(found.plan))
    yield ""
    yield markdown_table(("", ""), in_numbers(found.plan))
    yield ""


def _verdict(found: Chronicle) -> Iterator[str]:
    if found.ended:
        yield f"The backfill: {found.ended}."
    yield from (f"{of}: {expected}: {became}." for of, expected, became in found.came)
    yield from (f"Made by code {code}." for code in found.codes)
    if not (found.ended or found.codes):
        yield "Nothing that it did is on record in any table."


def typed(steps: Iterable[Step]) -> Iterator[str]:
    """The commands of steps, as a block of Markdown."""
    yield "```text"
    yield from (one_line(step.command) for step in steps if step.command)
    yield "```"
    yield ""


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S}" if at else "unknown"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))}"
