"""What is observed of a drill: from its journal, the tables' logs, and the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from math import floor
from pathlib import Path

from backfill_assets.backfills.changes import written_days
from backfill_assets.backfills.history import PLACEHOLDER_PREFIX, SECTIONS
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets_guide.drills import journal
from backfill_assets_guide.drills.deployment import Contents, DrillDeployment
from backfill_assets_guide.drills.journal import Event
from backfill_assets_guide.drills.scoring import Observed

#: What a day holds that nobody has published.
_NOTHING = "nothing"


def observe_drill(
    deployment: DrillDeployment,
    right: Contents,
    events: Sequence[Event],
    days: Window,
    readers: str,
    now: datetime,
) -> Observed:
    """All that a score follows from.

    Args:
        deployment: what the drill is played on.
        right: what the tables hold when they are right.
        events: the journal.
        days: those that a diagnosis should name.
        readers: the table that readers ask.
        now: when the drill ends.
    """
    (incident,) = (event for event in events if event.what == journal.INCIDENT)
    diagnoses = [event for event in events if event.what == journal.FOUND]
    ledgers, since = deployment.ledgers, incident.details["versions"]
    broken = {
        name: _wrong_days(ledger, right.get(name, {}), since[name])
        for name, ledger in ledgers.items()
    }
    reader_ledger = ledgers[readers]
    return Observed(
        detected=diagnoses[0].at - incident.at if diagnoses else None,
        # The first that were named count: the second would be a guess.
        days_named=[event.details["days"] for event in diagnoses if event.details["days"]][:1]
        == [str(days)],
        wrong_diagnoses=sum(event.what == journal.WRONG for event in events),
        hints=sum(event.what == journal.HINT for event in events),
        broken=sum(map(len, broken.values())),
        wrong=sum(
            len(_wrong_days(ledger, right.get(name, {}), ledger.version))
            for name, ledger in ledgers.items()
        ),
        touched=sum(
            len(_written_since(ledger, since[name]) - broken[name])
            for name, ledger in ledgers.items()
        ),
        broken_for_readers=len(broken[readers]),
        answers=wrong_answers(
            [*_wrong_day_counts(reader_ledger, right[readers], incident.at, since[readers])], now
        ),
        sections=len(SECTIONS),
        filled=_filled_sections(deployment.folder),
    )


def wrong_answers(states: Sequence[tuple[datetime, int]], end: datetime) -> int:
    """How often a reader was given a wrong day, who asks for every day once a minute.

    Args:
        states: from when on so many days were wrong, the oldest first; the first is the incident.
        end: when the reader stops.
    """
    began = states[0][0]
    ends = [*(at for at, _ in states[1:]), end]
    return sum(
        wrong * (_count_questions(until - began) - _count_questions(at - began))
        for (at, wrong), until in zip(states, ends, strict=True)
    )


def _count_questions(time: timedelta) -> int:
    """How often a reader has asked before a moment, who began with the incident."""
    seconds = max(0.0, time.total_seconds())
    return floor(seconds / 60) + 1 if seconds else 0


def newest_run(deployment: DrillDeployment) -> str:
    """The run of the newest commit of all tables, by its first eight characters."""
    records = [record for ledger in deployment.ledgers.values() for record in ledger.records]
    newest = max(
        records, key=lambda record: record.at.timestamp() if record.at else 0, default=None
    )
    return newest.run_id[:8] if newest else ""


def _version_number(version: int | None) -> int:
    """The version of a table; -1 if there was none."""
    return -1 if version is None else version


def _wrong_days(ledger: Ledger, right: Mapping[date, str], version: int | None) -> set[date]:
    """The days that were not right as of a version."""
    past_ledger = ledger.as_of(_version_number(version))
    others = (day for other in past_ledger.external_commits for day in other.days)
    days = {*right, *past_ledger.latest, *others}
    return {day for day in days if past_ledger.content_key(day) != right.get(day, _NOTHING)}


def _written_since(ledger: Ledger, version: int | None) -> set[date]:
    return {
        day
        for commit in ledger.all_commits
        if commit.version > _version_number(version)
        for day in written_days(commit)
    }


def _wrong_day_counts(
    ledger: Ledger, right: Mapping[date, str], incident: datetime, version: int | None
) -> Iterator[tuple[datetime, int]]:
    """From when on how many days of a table were wrong."""
    yield incident, len(_wrong_days(ledger, right, version))
    for commit in ledger.all_commits:
        if commit.version > _version_number(version) and commit.at:
            yield commit.at, len(_wrong_days(ledger, right, commit.version))


def _filled_sections(folder: Path) -> int:
    """How many sections of the best report are filled in."""
    reports = folder.glob("post-mortem*.md")
    counts = [
        len(SECTIONS) - len(unfilled_sections(path.read_text(errors="replace"))) for path in reports
    ]
    return max(counts, default=0)


#: A section with fewer words counts as not filled in.
_MIN_WORDS = 4


def unfilled_sections(text: str) -> list[str]:
    """The sections that a post-mortem in Markdown lacks, or that are not filled in."""
    parts = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [
        name
        for name in SECTIONS
        if PLACEHOLDER_PREFIX in (body := bodies.get(name, "")) or len(body.split()) < _MIN_WORDS
    ]
