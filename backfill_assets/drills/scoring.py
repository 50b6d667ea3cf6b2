"""The score of a drill, from what was observed; reads no clock, no table and no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

#: Points at most, by what is scored. They make 100.
POINTS = {
    "cause": 15,
    "days named": 10,
    "days wrong at the end": 30,
    "days wrongly touched": 20,
    "wrong answers to readers": 15,
    "report": 10,
}
#: What each wrong diagnosis and each hint takes away.
WRONG_DIAGNOSIS, HINT = 5, 5
#: Up to the first, the time to detect costs nothing; from the second on nothing is left.
DETECT = timedelta(minutes=10), timedelta(minutes=60)
#: The same of the time for which a reader saw a day wrong, in the mean of the days that were.
READ = timedelta(minutes=30), timedelta(minutes=120)


@dataclass(frozen=True)
class Observed:
    """What was observed of a drill, from its journal, the tables' logs and the report.

    Attributes:
        detected: time from the incident to the right cause; none if it was not found.
        days_named: whether the days were named with it.
        wrong_diagnoses: how often a cause was named that is not the one.
        hints: how many were asked for.
        broken: days of tables that were wrong right after the incident.
        wrong: days of tables that are wrong now.
        touched: days of tables that were written since, and had been right.
        broken_for_readers: days that were wrong of the table that readers ask.
        answers: how often a reader was given a wrong day, who asks for every day once a minute.
        sections: how many sections the report has for a person to fill in.
        filled: how many of them are filled in.
    """

    detected: timedelta | None
    days_named: bool
    wrong_diagnoses: int
    hints: int
    broken: int
    wrong: int
    touched: int
    broken_for_readers: int
    answers: int
    sections: int
    filled: int

    def as_json(self) -> dict[str, Any]:
        """The same for a journal."""
        seconds = None if self.detected is None else self.detected.total_seconds()
        return {**asdict(self), "detected": seconds}

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Observed:
        """From what a journal has."""
        seconds = said["detected"]
        detected = None if seconds is None else timedelta(seconds=seconds)
        return cls(**{**said, "detected": detected})


@dataclass(frozen=True)
class Part:
    """One part of a score.

    Attributes:
        name: what is scored.
        seen: what was observed, in words.
        points: what it gives; less than 0 for what takes away.
        most: what it could give; 0 for what only takes away.
    """

    name: str
    seen: str
    points: int
    most: int


@dataclass(frozen=True)
class Score:
    """The score of a drill.

    Attributes:
        parts: what it is made of.
        repaired: whether all days are right.
    """

    parts: Sequence[Part]
    repaired: bool

    @property
    def total(self) -> int:
        """The points, 0 to 100."""
        return max(0, sum(part.points for part in self.parts))


def score(seen: Observed) -> Score:
    """The score of what was observed."""
    return Score([*_parts(seen)], repaired=not seen.wrong)


def _parts(seen: Observed) -> Iterator[Part]:
    def part(name: str, text: str, share: float) -> Part:
        return Part(name, text, round(POINTS[name] * min(1.0, max(0.0, share))), POINTS[name])

    found = seen.detected
    told = "not found" if found is None else f"found after {_minutes(found)}"
    yield part("cause", told, 0 if found is None else _left(found, *DETECT))
    yield part("days named", "yes" if seen.days_named else "no", float(seen.days_named))
    # Who repairs nothing touches nothing wrongly, and could end before a reader asks twice.
    repaired = 1 - seen.wrong / max(seen.broken, seen.wrong, 1)
    yield part("days wrong at the end", f"{seen.wrong} of {seen.broken}", repaired)
    name = "days wrongly touched"
    yield part(name, str(seen.touched), repaired * (1 - seen.touched / POINTS[name]))
    each = timedelta(minutes=seen.answers / max(seen.broken_for_readers, 1))
    left = min(1.0, _left(each, *READ))
    yield part("wrong answers to readers", f"{seen.answers:,}", repaired * left)
    written = seen.filled / seen.sections if seen.sections else 0
    yield part("report", f"{seen.filled} of {seen.sections} sections", written)
    for name, count, cost in (
        ("wrong diagnoses", seen.wrong_diagnoses, WRONG_DIAGNOSIS),
        ("hints", seen.hints, HINT),
    ):
        yield Part(name, str(count), -cost * count, 0)


def _left(took: timedelta, free: timedelta, end: timedelta) -> float:
    """The share that is left of points that a time takes away evenly, from `free` to `end`."""
    return 1 - (took - free) / (end - free)


def _minutes(time: timedelta) -> str:
    seconds = round(time.total_seconds())
    return f"{seconds // 60}:{seconds % 60:02d} minutes"
