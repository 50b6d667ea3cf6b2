"""The output of commands: text for a person, JSON for a program, and the exit status."""

import enum
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from backfill_assets.escaping import escape_terminal
from backfill_assets.report import Report, ReportTable

#: A pipe has no width: each row of a table stays on one line.
_PIPE_WIDTH = 1000
#: The start of a line with aligned text: spaces, or a heading and spaces.
_HEADING = re.compile(r"\s*\S+\s{2,}|\s+")
#: The minimum width of a column of sentences, which wraps.
_SENTENCE_WIDTH = 30
#: Of the group and of each command: click keeps the help option that a command is first asked for.
CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class Status(enum.IntEnum):
    """The exit status of a command."""

    FINE = 0
    #: Something is wrong.
    FINDING = 1
    WRONG_USE = 2
    COULD_NOT_RUN = 3


class Finding(Exception):
    """A command's finding, printed without a further message."""


class CannotRunError(Exception):
    """A command cannot run; the message says what to do."""


class Output:
    """The printer of a command: a result is printed as text, or with `--json` as JSON alone.

    A command gives both to it: each method prints in its own form, or not at all.

    Attributes:
        quiet: print only results, neither progress nor hints.
        json: print JSON instead of text.
        verbose: also print stack traces, and Dagster's log of a run of this command.
        command: the name of the running command, for messages.
    """

    def __init__(self) -> None:
        self.quiet = self.json = self.verbose = False
        self.command = ""

    def print_text(self, text: str) -> None:
        """Print text wrapped to the terminal's width; words and paths are not broken."""
        if sys.stdout.isatty():
            width = _make_console().width
            text = "\n".join(_wrap_line(line, width) for line in text.split("\n"))
        self.print_command(text)

    def print_command(self, text: str) -> None:
        """Print a command on one line, so that it can be piped into a shell."""
        if not self.json:
            _make_console().print(text, soft_wrap=True)

    def print_note(self, text: str) -> None:
        """Print progress or a hint, unless quiet."""
        if not self.quiet:
            self.print_text(text)

    def print_facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and texts, one line each, with the texts aligned."""
        pairs = list(rows)
        width = max((14, *(len(name) for name, _ in pairs)))
        for name, text in pairs:
            self.print_text(f"{name:{width}} {text}")

    def print_table(self, table: ReportTable) -> None:
        """Print a table with all of its columns, however narrow the terminal."""
        if self.json:
            return
        console = _make_console()
        for part in (*_fit_grid(_make_grid(table), console), *table.lines):
            console.print(part)

    def print_report(self, report: Report) -> None:
        """Print a report: facts, tables, notes."""
        self.print_facts(report.facts)
        for table in report.tables:
            self.print_table(table)
        for note in report.notes:
            self.print_text(note)

    def print_json(self, value: Any) -> None:
        """Print a value as JSON, with `--json`."""
        if self.json:
            click.echo(json.dumps(value, indent=2, default=str))


class _PlainConsole(Console):
    """A console that takes no text for markup, and escapes control characters."""

    def render_str(self, text: str, **named: Any) -> Text:
        return super().render_str(escape_terminal(text), **named)


def _make_console() -> Console:
    """A console on the current standard output; without colours in a pipe and under NO_COLOR."""
    terminal = sys.stdout.isatty()
    return _PlainConsole(
        markup=False,
        emoji=False,
        highlight=False,
        width=None if terminal or os.environ.get("COLUMNS") else _PIPE_WIDTH,
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
    )


def _wrap_line(line: str, width: int) -> str:
    """Wrap a line to the width; further lines are indented below its text."""
    if len(line) <= width:
        return line
    heading = _HEADING.match(line)
    indent = " " * len(heading[0]) if heading and 2 * len(heading[0]) < width else "  "
    wrapped = textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return "\n".join(wrapped)


def _make_grid(table: ReportTable) -> Grid:
    grid = Grid(
        title=table.title or None,
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        show_header=table.show_headings,
    )
    for heading in table.headings:
        grid.add_column(
            heading,
            no_wrap=heading not in table.sentences,
            justify="right" if heading in table.numbers else "left",
        )
    for row in table.rows:
        grid.add_row(*row)
    return grid


def _fit_grid(grid: Grid, console: Console) -> list[RenderableType]:
    """The table; if it is too wide, with its first columns on separate lines."""
    widths = [_column_width(column, console) for column in grid.columns]
    for lead in range(len(widths)):
        indent = 2 if lead else 0
        if lead == len(widths) - 1 or indent + sum(w + 2 for w in widths[lead:]) <= console.width:
            break
    return _stack_columns(grid, lead, widths) if lead else [grid]


def _column_width(column: Column, console: Console) -> int:
    """The width that a column needs; a column of sentences may wrap."""
    wide = console.options.update(max_width=_PIPE_WIDTH)
    cells = [column.header, *column.cells]
    needed = max(Measurement.get(console, wide, cell).maximum for cell in cells)
    return needed if column.no_wrap else min(needed, _SENTENCE_WIDTH)


def _stack_columns(grid: Grid, lead: int, widths: Sequence[int]) -> list[RenderableType]:
    """The grid as parts: the first `lead` columns where they change, the others indented below."""
    columns, previous = grid.columns, None
    rows = list(zip(*[column.cells for column in columns], strict=True))
    parts: list[RenderableType] = (
        [Text(escape_terminal(str(grid.title)), style="italic")] if grid.title else []
    )
    if grid.show_header:
        rows.insert(0, tuple(column.header for column in columns))
    for row in rows:
        if row[:lead] != previous:
            parts.append("  ".join(str(cell) for cell in row[:lead] if str(cell)))
        previous = row[:lead]
        row_grid = Grid(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
        row_grid.add_column(width=1)
        for column, width in zip(columns[lead:], widths[lead:], strict=True):
            # The last column may take the rest of the line.
            fixed = None if column is columns[-1] and not column.no_wrap else width
            row_grid.add_column(width=fixed, justify=column.justify, overflow="fold")
        row_grid.add_row("", *row[lead:])
        parts.append(row_grid)
    return parts


def level_options() -> list[click.Option]:
    """The options -q and -v, before or after the name of a command."""
    return [
        click.Option(
            [f"-{name[0]}", f"--{name}"],
            is_flag=True,
            is_eager=True,  # so that errors of other parameters name the command
            expose_value=False,
            callback=_set_level,
            help=text,
        )
        for name, text in (
            ("quiet", "Results alone: no progress, no hints."),
            ("verbose", "Also the traces of errors, and Dagster's log of a run."),
        )
    ]


def _set_level(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    """Set -q or -v on the command's `Output`; click calls it for each option, given or not."""
    out = ctx.ensure_object(Output)
    if ctx.parent:  # of a group in a group, both names
        out.command = ctx.command_path.partition(" ")[2]
    if value:
        setattr(out, str(option.name), True)
    if out.quiet and out.verbose:
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)


def command(*examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command, whose help ends with examples, without `backfill-assets`."""
    lines = "\n".join(f"  backfill-assets {example}" for example in examples)
    epilog = f"\b\n{'Examples' if examples[1:] else 'Example'}:\n{lines}"

    def decorate(function: Callable[..., Any]) -> click.Command:
        decorator = click.command(epilog=epilog, context_settings=CONTEXT_SETTINGS)
        click_command = decorator(click.pass_obj(function))
        click_command.params += level_options()
        return click_command

    return decorate
