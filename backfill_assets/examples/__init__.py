"""The old place of `backfill_assets_guide.examples`: an import of it works, with a warning."""

import sys
import warnings
from importlib import import_module
from pkgutil import walk_packages

_PLACE = "backfill_assets_guide.examples"

warnings.warn(
    f"{__name__} is {_PLACE} now; the old name goes with the next release",
    FutureWarning,
    stacklevel=2,
)
# The modules themselves, not copies of them: a table must not be declared twice.
for _module in walk_packages(import_module(_PLACE).__path__, f"{_PLACE}."):
    sys.modules[_module.name.replace(_PLACE, __name__)] = import_module(_module.name)
