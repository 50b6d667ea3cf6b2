"""The journal of a drill: what happened when, a line for each event, in the drill's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from backfill_assets_guide.drills.places import OWN

#: What can happen: the outage, and what the player asks for.
INCIDENT, HINT, FOUND, WRONG, ASKED, END, GAVE_UP = (
    "incident", "hint", "found", "wrong", "asked", "end", "gave up",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One event of a drill.

    Attributes:
        at: when, in UTC.
        what: which kind.
        details: what else is on record.
    """

    at: datetime
    what: str
    details: Mapping[str, Any]


def record_event(folder: Path, what: str, **details: Any) -> None:
    """Add an event that happens now."""
    line = {"at": datetime.now(timezone.utc).isoformat(), "what": what, **details}
    with (folder / OWN / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def has_ended(folder: Path) -> bool:
    """Whether a drill has ended, well or not, or its folder is gone."""
    is_missing = not (folder / OWN).is_dir()
    return is_missing or any(event.what in (END, GAVE_UP) for event in read_events(folder))


def read_events(folder: Path) -> list[Event]:
    """All events, the oldest first."""
    path = folder / OWN / "journal.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries = []
    for line in lines:
        record = json.loads(line)
        entries.append(Event(datetime.fromisoformat(record.pop("at")), record.pop("what"), record))
    return entries
