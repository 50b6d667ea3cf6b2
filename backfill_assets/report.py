"""Reports: the result of a job or command, for a terminal, as Markdown, or stored as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import msgspec

from backfill_assets.escaping import escape_line, markdown_table


class ReportTable(msgspec.Struct, frozen=True):
    """Rows of text.

    Attributes:
        headings: of the columns.
        rows: the cells; a row with fewer cells has empty ones at its end.
        title: a line above the headings.
        lines: lines below the rows, such as samples.
        numbers: headings of columns that are aligned right.
        sentences: headings of columns whose cells may wrap.
        show_headings: whether a terminal shows them.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    lines: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    show_headings: bool = True

    @classmethod
    def from_rows(
        cls,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        lines: Iterable[str] = (),
        numbers: Sequence[str] = (),
        sentences: Sequence[str] = (),
        show_headings: bool = True,
    ) -> Self:
        """A table of rows that may be of any kind of sequence."""
        return cls(
            tuple(headings),
            tuple(map(tuple, rows)),
            title,
            tuple(lines),
            tuple(numbers),
            tuple(sentences),
            show_headings,
        )

    def to_markdown(self) -> str:
        """The table in Markdown, with its title and lines."""
        parts = [f"**{self.title}**", ""] if self.title else []
        parts.append(markdown_table(self.headings, self.rows))
        # Indented as code, so that values in rows are not read as markup.
        parts += ["", *(f"    {escape_line(line)}" for line in self.lines)] if self.lines else []
        return "\n".join(parts)


class Report(msgspec.Struct, frozen=True):
    """The result of a job or command.

    Attributes:
        facts: names and texts; the verdict, if there is one, comes first.
        tables: below the facts.
        notes: sentences below the tables.
    """

    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[ReportTable, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def facts_table(self) -> ReportTable:
        """The facts as a table without headings."""
        return ReportTable(("", ""), self.facts)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The report that `to_json` encoded."""
        return msgspec.convert(values, cls)
