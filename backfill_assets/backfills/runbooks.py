"""The runbook page of a backfill: its commands once more, with blanks, and what they took."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta

from backfill_assets.backfills.chronicles import Chronicle, days_touched, options
from backfill_assets.escaping import markdown, markdown_table, one_line

#: What a person puts in place of them.
DAYS, ID, WHY = "FIRST...LAST", "ID", "WHY"
_RANGE = re.compile(r"\b\d{4}-\d{2}-\d{2}(\.\.\.\d{4}-\d{2}-\d{2})?\b")


def page(found: Chronicle) -> str:
    """The page, in Markdown."""
    return "\n".join(_page(found))


def _page(found: Chronicle) -> Iterator[str]:
    yield f"# Runbook, after {markdown(found.name)}"
    yield ""
    yield f"When: {markdown(found.reason) or 'no reason is on record; say here when this is done'}"
    yield ""
    id_ = "the id that the plan prints" if found.plan else "the first 8 characters of the run's id"
    yield f"Put the days in place of `{DAYS}`, {id_} in place of `{ID}`, the reason for `{WHY}`."
    yield ""
    for number, (what, command) in enumerate(_commands(found), 1):
        yield f"## {number}. {what}"
        yield ""
        yield "```text"
        yield one_line(command)
        yield "```"
        yield ""
    yield "## What it took the last time"
    yield ""
    rows = [
        (step.what, f"{timedelta(seconds=round(step.took))}", step.outcome)
        for step in found.steps
        if step.took is not None
    ]
    yield markdown_table(("what", "took", "outcome"), rows)
    yield ""
    yield f"Days written: {days_touched(found) or 'none'}"
    yield ""


def _commands(found: Chronicle) -> Iterator[tuple[str, str]]:
    """What to do, each with its command."""
    tables = [of.table for of in found.touched]
    if found.plan is not None:
        asked = found.plan.parameters
        tables = list(asked.tables)
        more = options(asked.model_copy(update={"accept": ()}))
        plan = ["plan", DAYS, *more, "--reason", WHY]
        yield "Plan: does it list the days that you expect, and no others?", _ours(*plan)
        yield "Launch", _ours("backfill", ID)
    else:
        # An account or an undo of these days is not part of how others are made.
        made = (step.command for step in found.steps if step.made and step.command)
        for command in dict.fromkeys(made):
            yield "Run", _RANGE.sub(DAYS, command)
    selected = ["--select", ",".join(tables)] if tables else []
    yield "Reconcile: is all of it there, and does it add up?", _ours("reconcile", ID)
    yield (
        "Verify: does a day that is computed again come out the same?",
        _ours("verify", DAYS, *selected),
    )
    yield "If it was wrong: undo", _ours("undo", ID, "--reason", WHY)


def _ours(*words: str) -> str:
    return shlex.join(["backfill-assets", *words])
