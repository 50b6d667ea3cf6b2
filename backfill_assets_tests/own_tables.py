"""The modules of docs/own-tables.md, word for word, where a user would have them."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path

from backfill_assets_tests.helpers.docs_pages import code_blocks

_HOME = tempfile.TemporaryDirectory()
_first, _partials, ITEMS, _whole, REFRESH, _known = code_blocks("docs/own-tables.md", "python")
(Path(_HOME.name) / "my_tables.py").write_text(_first)
(Path(_HOME.name) / "my_partials.py").write_text(f"{_first}\n\n{_partials}")
(Path(_HOME.name) / "my_countries.py").write_text(f"{_first}\n\n{_whole}")
(Path(_HOME.name) / "my_known.py").write_text(f"{_first}\n\n{_known}")
sys.path.append(_HOME.name)
#: As it is first, and with each of what the page adds to it.
my_tables, my_partials, my_countries, my_known = map(
    import_module, ("my_tables", "my_partials", "my_countries", "my_known")
)
