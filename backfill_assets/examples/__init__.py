"""The old place of `backfill_assets_guide.examples`: an import of it works, with a warning."""

import sys
import warnings
from importlib import import_module
from pkgutil import walk_packages

_PLACE = "backfill_assets_guide.examples"
#: These run as scripts by their old name too (`python -m`), and declare no table.
_SCRIPTS = ("customers.rates", "customers.sample")

warnings.warn(
    f"{__name__} is {_PLACE} now; the old name goes with the next release",
    FutureWarning,
    stacklevel=2,
)
# The modules themselves, not copies of them: a table must not be declared twice.
for _info in walk_packages(import_module(_PLACE).__path__, f"{_PLACE}."):
    _name = _info.name.removeprefix(f"{_PLACE}.")
    if _name not in _SCRIPTS:
        sys.modules[f"{__name__}.{_name}"] = import_module(_info.name)
        if "." not in _name:
            globals()[_name] = sys.modules[_info.name]
