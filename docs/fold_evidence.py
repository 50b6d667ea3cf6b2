"""A hook of MkDocs: in the field guide, what shows a claim is folded.

The pages keep their lines `Shown by: ...`, which the tests read. A closed `<details>` needs no
script.
"""

import re
from typing import Any

#: A paragraph of its own, or the last line of an item of a list.
_PARAGRAPH = re.compile(r"<p>Shown by: (.*?)</p>", re.DOTALL)
_LINE = re.compile(r"\nShown by: (.*?)(?=</p>|</li>)", re.DOTALL)
_FOLDED = r'<details class="shown"><summary>Shown by</summary>\1</details>'


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The HTML of a page, with what shows its claims folded."""
    if not page.file.src_uri.startswith("guide/"):
        return html
    return _LINE.sub(_FOLDED, _PARAGRAPH.sub(_FOLDED, html))
