"""Features and labels that leak, made of ours by a mutation each: none may be published."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path

from backfill_assets.orders.tables import ORDERS
from backfill_assets_guide.examples.customers import features, labels

_HOME = tempfile.TemporaryDirectory()
sys.path.append(_HOME.name)


def _mutated_table(module: object, function: str, *changes: tuple[str, str]) -> object:
    """The table of a function, with other code in its module."""
    text = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    for old, new in ((f"def {function}", f"def leaking_{function}"), *changes):
        assert old in text
        text = text.replace(old, new)
    (Path(_HOME.name) / f"leaking_{function}_module.py").write_text(text)
    return getattr(import_module(f"leaking_{function}_module"), f"leaking_{function}")


#: What is known now of the days, rather than what was known then.
LEAKING_FEATURES = [
    *ORDERS,
    _mutated_table(
        features,
        "features",
        ("Reads(RAW, last_days(30), as_known=True,", "Reads(STAGED, last_days(30),"),
        ("import RAW", "import STAGED"),
    ),
]
#: With the day itself among the days after it.
LEAKING_LABELS_DAILY = [
    *ORDERS,
    _mutated_table(labels, "labels_daily", ('"run_date > for_day"', '"run_date >= for_day"')),
]
