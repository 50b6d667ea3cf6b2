"""Escaping of foreign text for a terminal, a log, Markdown or a chat.

Others choose the names of landing files, the content of their lines, and the reasons of backfills.
Each function belongs to one format, and is called where that format is produced.
"""

import re
from collections.abc import Iterable, Sequence

#: Markup of Markdown within a line: code, tags, emphasis, table cells, the end of a link's or
#: picture's text, named characters; and at its start: lists and headings.
_MARKDOWN = re.compile(
    r"[\\`*~|]|<(?=[a-z/!?])|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|&(?=#?\w+;)"
    r"|^(?=[-+>#=])",
    re.IGNORECASE,
)


def escape_terminal(text: str) -> str:
    """Replace invisible characters with their codes, except line ends.

    These are: colours and cursor moves of terminals, characters that reverse the writing direction,
    and bytes of file names that are not UTF-8 and could not be printed.
    """
    return "\n".join(map(escape_line, text.split("\n")))


def escape_line(text: str) -> str:
    """Replace invisible characters with their codes, including line ends, for a line of a log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape_markdown(text: str) -> str:
    """Escape a line or a cell of Markdown: it is shown unchanged, and loads nothing.

    Dagster's pages also render descriptions of checks as Markdown. A URL becomes a link to itself.
    """
    return _MARKDOWN.sub(r"\\\g<0>", escape_line(text).strip())


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown with escaped cells; the lines of a cell are joined."""
    cells = [[escape_markdown(cell.replace("\n", ", ")) for cell in row] for row in rows]
    heading, *lines = (f"| {' | '.join(line)} |" for line in (headings, *cells))
    return "\n".join([heading, "|---" * len(headings) + "|", *lines])


def escape_chat(text: str) -> str:
    """Escape a chat message: it notifies nobody by name, and no link hides its target.

    Slack's commands are in angle brackets, and `&lt;` shows one. Mattermost and others notify the
    user after an @: an invisible character behind it prevents that.
    """
    return escape_terminal(text).replace("<", "&lt;").replace("@", "@\u200b")
