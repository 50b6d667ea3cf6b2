"""Foreign text in a format: what a terminal, Markdown or a chat would take for its own signs.

Others choose the names of landed files, what is in their lines, and why a backfill was launched.
Each function belongs to one format, and is called where that format is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: What Markdown takes for a sign of its own in a line: code, tags, emphasis, cells of a table, the
#: end of a link's or picture's text, characters by name, and what lists and headings begin with.
_MARKDOWN = re.compile(
    r"[\\`*~|]|<(?=[a-z/!?])|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|&(?=#?\w+;)"
    r"|^(?=[-+>#=])",
    re.IGNORECASE,
)


def escape_terminal(text: str) -> str:
    """For a terminal: what is no character to be seen is spelled out, but for ends of lines.

    That is: colours and cursors of terminals, what turns the direction of writing around, and the
    bytes of file names that are no UTF-8, which could not be printed.
    """
    return "\n".join(map(escape_line, text.split("\n")))


def escape_line(text: str) -> str:
    """For a line of a log: the same, and ends of lines are spelled out as well."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape_markdown(text: str) -> str:
    """For a line or a cell of Markdown: shown as it is, and nothing is fetched for it.

    Dagster's pages take descriptions of checks for Markdown as well. An address becomes a link to
    what it says.
    """
    return _MARKDOWN.sub(r"\\\g<0>", escape_line(text).strip())


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, whose cells are foreign text; lines of a cell are put side by side."""
    cells = [[escape_markdown(cell.replace("\n", ", ")) for cell in row] for row in rows]
    heading, *lines = (f"| {' | '.join(line)} |" for line in (headings, *cells))
    return "\n".join([heading, "|---" * len(headings) + "|", *lines])


def escape_chat(text: str) -> str:
    """For a message of a chat: nobody is called by name, and no link hides where it leads.

    Slack takes its commands in angle brackets, and shows `&lt;` as one. Mattermost and others call
    whom an @ names: an invisible character behind it keeps them from that.
    """
    return escape_terminal(text).replace("<", "&lt;").replace("@", "@\u200b")
