"""Where things lie: the project, the programs beside its Python, the data beside it."""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
#: The master file of CDNOW, which is not part of the project.
CDNOW = PROJECT.parent / "shared/data/cdnow/CDNOW_master.txt"
