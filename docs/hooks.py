"""Hooks of MkDocs: the columns of the example's tables are listed; evidence is folded.

In the field guide, what shows a claim is folded. The pages keep their lines `Shown by: ...`, which
the tests read. A closed `<details>` needs no script.
"""

import re
from typing import Any

#: A paragraph of its own.
_PARAGRAPH = re.compile(r"<p>Shown by: (.*?)</p>", re.DOTALL)
#: The last line of a paragraph, which ends before it: `<details>` may not stand within `<p>`.
_LAST_LINE = re.compile(r"\nShown by: ((?:(?!</?(?:p|li|[uo]l)>).)*)</p>", re.DOTALL)
#: The last line of an item of a list, before a list within it.
_ITEM = re.compile(r"\nShown by: (.*?)(?=\s*(?:</li>|<[uo]l>))", re.DOTALL)
_FOLDED = r'<details class="shown"><summary>Shown by</summary>\1</details>'


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The HTML of a page, with what shows its claims folded."""
    if not page.file.src_uri.startswith("guide/"):
        return html
    html = _PARAGRAPH.sub(_FOLDED, html)
    html = _LAST_LINE.sub(rf"</p>\n{_FOLDED}", html)
    return _ITEM.sub(_FOLDED, html)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page, with the columns of the tables at the end of theirs."""
    if page.file.src_uri != "tables.md":
        return markdown
    # Only this page needs the tables.
    from backfill_assets.orders.tables import TABLES

    sections: dict[str, list[str]] = {}
    for table in TABLES.values():
        lines = [
            f"- `{name}` {column.dtype.type.simpleString()}"
            f"{', may be null' if column.nullable else ''}: {column.description}"
            for name, column in table.columns.items()
        ]
        sections.setdefault("\n".join(lines), []).append(f"`{table.name}`")
    listed = (f"### {', '.join(names)}\n\n{lines}\n" for lines, names in sections.items())
    return "\n".join((markdown, *listed))
