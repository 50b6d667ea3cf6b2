"""Running labs: each in a scratch folder, and compared with what its page says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path

from backfill_assets.spark.session import Engine
from backfill_assets_guide.labs.append import append_lab
from backfill_assets_guide.labs.column import column_lab
from backfill_assets_guide.labs.crash import crash_lab
from backfill_assets_guide.labs.dedup import dedup_lab
from backfill_assets_guide.labs.event_time import event_time_lab
from backfill_assets_guide.labs.lab import Lab
from backfill_assets_guide.labs.late import late_lab
from backfill_assets_guide.labs.leak import leak_lab
from backfill_assets_guide.labs.merge import merge_lab
from backfill_assets_guide.labs.overwrite import overwrite_lab
from backfill_assets_guide.labs.quota import quota_lab
from backfill_assets_guide.labs.skew import skew_lab
from backfill_assets_guide.labs.swap import swap_lab
from backfill_assets_guide.labs.torn import torn_lab

#: By name, in the order in which a newcomer reads them.
LABS: Mapping[str, Callable[[Lab], None]] = {
    "append": append_lab,
    "torn": torn_lab,
    "overwrite": overwrite_lab,
    "merge": merge_lab,
    "dedup": dedup_lab,
    "event-time": event_time_lab,
    "late": late_lab,
    "crash": crash_lab,
    "skew": skew_lab,
    "leak": leak_lab,
    "column": column_lab,
    "swap": swap_lab,
    "quota": quota_lab,
}


def describe_lab(name: str) -> str:
    """What a lab does, in a sentence."""
    return (LABS[name].__doc__ or "").splitlines()[0]


def read_page(name: str) -> str:
    """What the page of a lab says that it prints."""
    return (files("backfill_assets_guide.labs") / "pages" / f"{name}.txt").read_text(
        encoding="utf-8"
    )


def run_lab(name: str, engine: Engine) -> str:
    """Run a lab in a folder that is removed; what it printed.

    Args:
        name: of the lab.
        engine: with a session, or that starts one.
    """
    with tempfile.TemporaryDirectory(prefix=f"lab-{name}-") as folder:
        lab = Lab(engine, Path(folder))
        LABS[name](lab)
    return "\n".join(lab.lines)


def page_diff(name: str, printed: str) -> str:
    """How what a lab printed differs from its page; empty if it does not."""
    lines = read_page(name).splitlines(), printed.splitlines()
    return "\n".join(unified_diff(*lines, "the page", "this run", n=1, lineterm=""))
