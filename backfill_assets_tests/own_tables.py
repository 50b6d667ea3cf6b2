"""The modules of docs/own-tables.md, word for word, where a user would have them."""

from __future__ import annotations

import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

from dagster import BetaWarning

from backfill_assets_tests.helpers.docs_pages import code_blocks

_HOME = tempfile.TemporaryDirectory()
_BLOCKS = code_blocks("docs/own-tables.md", "python")
_first, _partials, ITEMS, _held, _state, REFRESH, _known, _asset = _BLOCKS
_MODULES = {
    "my_tables": _first,
    "my_partials": f"{_first}\n\n{_partials}",
    "my_rules": f"{_first}\n\n{_held}",
    "my_state": f"{_first}\n\n{_state}",
    "my_known": f"{_first}\n\n{_known}",
    "my_asset": f"{_first}\n\n{_asset}",
}
for _name, _text in _MODULES.items():
    (Path(_HOME.name) / f"{_name}.py").write_text(_text)
sys.path.append(_HOME.name)
#: As it is first, and with each of what the page adds to it.
my_tables, my_partials, my_rules, my_state, my_known = map(import_module, [*_MODULES][:-1])


def __getattr__(name: str) -> ModuleType:
    """`my_asset`, when somebody asks for it: its import reads the settings of the process."""
    if name != "my_asset":
        raise AttributeError(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)  # of the backfill policy
        return import_module(name)
