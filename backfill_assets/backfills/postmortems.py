"""The post-mortem page of a backfill: what is on record, and sections for a person to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone

from backfill_assets.backfills.chronicles import BackfillHistory, HistoryEvent
from backfill_assets.backfills.plans import day_rows, plan_facts
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.escaping import escape_line, escape_markdown, markdown_table

#: The sections that only a person can fill in, each with what belongs there.
SECTIONS: Mapping[str, str] = {
    "Impact": "Who saw which wrong days, from when to when, and what they did with them.",
    "Cause": "What happened, and why nothing prevented it.",
    "Follow-ups": "What will be done so that it does not happen again: by whom, until when.",
}
#: Begins what is to be replaced.
BLANK = "TO BE FILLED IN: "
#: A section with fewer words says nothing.
_MIN_WORDS = 4


def unfilled_sections(text: str) -> list[str]:
    """The sections that a post-mortem lacks, or that are not filled in.

    Args:
        text: in Markdown.
    """
    parts = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [
        name
        for name in SECTIONS
        if BLANK in (body := bodies.get(name, "")) or len(body.split()) < _MIN_WORDS
    ]


def render_postmortem(history: BackfillHistory) -> str:
    """The page, in Markdown."""
    return "\n".join(_postmortem_lines(history))


def _postmortem_lines(history: BackfillHistory) -> Iterator[str]:
    yield f"# Post-mortem of {escape_markdown(history.name)}"
    yield ""
    yield f"Reason on record: {escape_markdown(history.reason) or 'none given'}"
    yield ""
    for name in ("Impact", "Cause"):
        yield from _blank_section(name)
    yield "## What was done"
    yield ""
    rows = [
        (
            _format_time(event.timestamp),
            event.action,
            _format_duration(event.seconds),
            event.outcome,
        )
        for event in history.events
    ]
    yield markdown_table(("at (UTC)", "what", "took", "outcome"), rows)
    yield ""
    yield "The commands, in their order:"
    yield ""
    yield from command_block(history.events)
    yield "## Days touched"
    yield ""
    yield from _days_section(history)
    yield from _plan_section(history)
    yield "## Verdict"
    yield ""
    yield from (f"- {escape_markdown(text)}" for text in _verdict_lines(history))
    yield ""
    yield from _blank_section("Follow-ups")


def _blank_section(name: str) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield f"{BLANK}{SECTIONS[name]}"
    yield ""


def _days_section(history: BackfillHistory) -> Iterator[str]:
    rows = [
        (
            changes.table,
            format_ranges(changes.days),
            f"{changes.version_before if changes.version_before >= 0 else 'no table'}",
            f"{changes.version_after}",
            format_ranges(changes.reverted_days) or "none",
            "; ".join(changes.reasons),
        )
        for changes in history.table_changes
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


def _plan_section(history: BackfillHistory) -> Iterator[str]:
    yield "## Plan"
    yield ""
    if history.plan is None:
        yield "There was no plan under this name, or it is not kept any more."
        yield ""
        return
    yield markdown_table(("table", "what becomes of them", "why", "days"), day_rows(history.plan))
    yield ""
    yield markdown_table(("", ""), plan_facts(history.plan))
    yield ""


def _verdict_lines(history: BackfillHistory) -> Iterator[str]:
    if history.outcome:
        yield f"The backfill: {history.outcome}."
    yield from (
        f"{table}: {planned}: {outcome}." for table, planned, outcome in history.plan_results
    )
    yield from (f"Made by code {code}." for code in history.code_descriptions)
    if not (history.outcome or history.code_descriptions):
        yield "Nothing that it did is on record in any table."


def command_block(events: Iterable[HistoryEvent]) -> Iterator[str]:
    """The commands of steps, as a block of Markdown."""
    yield "```text"
    yield from (escape_line(event.command) for event in events if event.command)
    yield "```"
    yield ""


def _format_time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S}" if at else "unknown"


def _format_duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))}"
