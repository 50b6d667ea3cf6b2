"""The runbook page of a backfill: its commands once more, with blanks, and what they took."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta

from backfill_assets.backfills.chronicles import BackfillHistory, format_changed_days, plan_options
from backfill_assets.escaping import escape_line, escape_markdown, markdown_table

#: What a person puts in place of them.
DAYS, ID, REASON = "FIRST...LAST", "ID", "WHY"
_RANGE = re.compile(r"\b\d{4}-\d{2}-\d{2}(\.\.\.\d{4}-\d{2}-\d{2})?\b")


def render_runbook(history: BackfillHistory) -> str:
    """The page, in Markdown."""
    return "\n".join(_runbook_lines(history))


def _runbook_lines(history: BackfillHistory) -> Iterator[str]:
    yield f"# Runbook, after {escape_markdown(history.name)}"
    yield ""
    yield f"When: {escape_markdown(history.reason) or 'no reason is on record; say here when this is done'}"
    yield ""
    id_ = (
        "the id that the plan prints" if history.plan else "the first 8 characters of the run's id"
    )
    yield f"Put the days in place of `{DAYS}`, {id_} in place of `{ID}`, the reason for `{REASON}`."
    yield ""
    for number, (what, command) in enumerate(_runbook_steps(history), 1):
        yield f"## {number}. {what}"
        yield ""
        yield "```text"
        yield escape_line(command)
        yield "```"
        yield ""
    yield "## What it took the last time"
    yield ""
    rows = [
        (event.action, f"{timedelta(seconds=round(event.seconds))}", event.outcome)
        for event in history.events
        if event.seconds is not None
    ]
    yield markdown_table(("what", "took", "outcome"), rows)
    yield ""
    yield f"Days written: {format_changed_days(history) or 'none'}"
    yield ""


def _runbook_steps(history: BackfillHistory) -> Iterator[tuple[str, str]]:
    """What to do, each with its command."""
    tables = [changes.table for changes in history.table_changes]
    if history.plan is not None:
        request = history.plan.parameters
        tables = list(request.tables)
        extra_options = plan_options(request.model_copy(update={"accept": ()}))
        plan = ["plan", DAYS, *extra_options, "--reason", REASON]
        yield "Plan: does it list the days that you expect, and no others?", _command_line(*plan)
        yield "Launch", _command_line("backfill", ID)
    else:
        # An account or an undo of these days is not part of how others are made.
        commands = (event.command for event in history.events if event.is_build and event.command)
        for command in dict.fromkeys(commands):
            yield "Run", _RANGE.sub(DAYS, command)
    selected = ["--select", ",".join(tables)] if tables else []
    yield "Reconcile: is all of it there, and does it add up?", _command_line("reconcile", ID)
    yield (
        "Verify: does a day that is computed again come out the same?",
        _command_line("verify", DAYS, *selected),
    )
    yield "If it was wrong: undo", _command_line("undo", ID, "--reason", REASON)


def _command_line(*words: str) -> str:
    return shlex.join(["backfill-assets", *words])
