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
    def from_json(cls, values: Mapping[str, Any]) -> Observed:
        """From what a journal has."""
        seconds = values["detected"]
        detected = None if seconds is None else timedelta(seconds=seconds)
        return cls(**{**values, "detected": detected})


@dataclass(frozen=True)
class Part:
    """One part of a score.

    Attributes:
        name: what is scored.
        observation: what was observed, in words.
        points: what it gives; less than 0 for what takes away.
        most: what it could give; 0 for what only takes away.
    """

    name: str
    observation: str
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


def score_drill(observed: Observed) -> Score:
    """The score of what was observed."""
    return Score([*_score_parts(observed)], repaired=not observed.wrong)


def _score_parts(observed: Observed) -> Iterator[Part]:
    def create_part(name: str, text: str, share: float) -> Part:
        return Part(name, text, round(POINTS[name] * min(1.0, max(0.0, share))), POINTS[name])

    detected = observed.detected
    detected_text = "not found" if detected is None else f"found after {_format_minutes(detected)}"
    yield create_part(
        "cause", detected_text, 0 if detected is None else _remaining_share(detected, *DETECT)
    )
    yield create_part(
        "days named", "yes" if observed.days_named else "no", float(observed.days_named)
    )
    # Who repairs nothing touches nothing wrongly, and could end before a reader asks twice.
    repaired = 1 - observed.wrong / max(observed.broken, observed.wrong, 1)
    yield create_part("days wrong at the end", f"{observed.wrong} of {observed.broken}", repaired)
    name = "days wrongly touched"
    yield create_part(name, str(observed.touched), repaired * (1 - observed.touched / POINTS[name]))
    each = timedelta(minutes=observed.answers / max(observed.broken_for_readers, 1))
    reading_share = min(1.0, _remaining_share(each, *READ))
    yield create_part("wrong answers to readers", f"{observed.answers:,}", repaired * reading_share)
    written = observed.filled / observed.sections if observed.sections else 0
    yield create_part("report", f"{observed.filled} of {observed.sections} sections", written)
    for name, count, cost in (
        ("wrong diagnoses", observed.wrong_diagnoses, WRONG_DIAGNOSIS),
        ("hints", observed.hints, HINT),
    ):
        yield Part(name, str(count), -cost * count, 0)


def _remaining_share(took: timedelta, free: timedelta, end: timedelta) -> float:
    """The share that is left of points that a time takes away evenly, from `free` to `end`."""
    return 1 - (took - free) / (end - free)


def _format_minutes(time: timedelta) -> str:
    seconds = round(time.total_seconds())
    return f"{seconds // 60}:{seconds % 60:02d} minutes"
