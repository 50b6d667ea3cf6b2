"""What a person is to be told, and the sensor's memory of what was told, as values."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date

from backfill_assets.calendar.partitions import Window, to_windows

Key = tuple[str, str, str]
#: How large an incident is: by aspect, such as a sum of money or a failed check, a number.
Size = Mapping[str, float]
#: Told once more from so many times the number that was told.
_GROWTH_FACTOR = 2


@dataclass(frozen=True)
class Incident:
    """Something that a person must know, for as long as it is found.

    Attributes:
        kind: what is wrong, such as `check failed`, `hole` or `stale`.
        subject: the asset.
        item: the day as YYYY-MM-DD; empty for the asset as a whole.
        detail: one line for a reader: what state the table is in, what to do.
        size: how large it is. It is told again when an aspect comes up that was not told, or has
            doubled.
    """

    kind: str
    subject: str
    item: str
    detail: str
    size: Size = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What makes it this incident: the detail may change from tick to tick."""
        return self.kind, self.subject, self.item


@dataclass(frozen=True)
class Alert:
    """One message that has to be delivered.

    Attributes:
        name: the same at every tick, so that attempts can be counted.
        text: composes the message.
        incidents: the incidents that it tells, with the size of each.
        runs: the ids of the failed runs that it tells.
    """

    name: str
    text: Callable[[], str]
    incidents: Mapping[Key, Size] = field(default_factory=dict)
    runs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outbox:
    """The memory of the sensor from tick to tick: its cursor as a value.

    Attributes:
        looked: when failed runs were last looked for; none on a fresh start, which takes the runs
            that have failed before as known.
        seen_runs: the failed runs found then, told or not.
        waiting: the failed runs that nobody was told of yet, by when they failed.
        reported: the incidents that a person was told of and that are still there, with the largest
            size told. One that goes away is forgotten, so that it alerts again when it comes back.
        attempts: how often each alert that waits was posted in vain.
        blind: for how many ticks in a row the tables could not be looked at.
    """

    looked: float | None = None
    seen_runs: frozenset[str] = frozenset()
    waiting: Mapping[str, float] = field(default_factory=dict)
    reported: Mapping[Key, Size] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    blind: int = 0

    @classmethod
    def from_text(cls, text: str | None) -> Outbox:
        """The outbox of a cursor; an empty one if there is none or it cannot be read."""
        try:
            saved = json.loads(text or "")
            return cls(
                looked=None if saved["looked"] is None else float(saved["looked"]),
                seen_runs=frozenset(map(str, saved["seen"])),
                waiting={str(run): float(at) for run, at in saved["waiting"].items()},
                reported={
                    key: size for group in saved["told"] for key, size in _group_incidents(*group)
                },
                attempts={str(name): int(n) for name, n in saved["attempts"].items()},
                blind=int(saved["blind"]),
            )
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return cls()

    def to_text(self) -> str:
        """The cursor, with days as ranges: years of them must not make it long."""
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for key in sorted(self.reported):
            kind, subject, item = key
            groups[kind, subject, json.dumps(self.reported[key], sort_keys=True)].append(item)
        reported_groups = []
        for (kind, subject, size), items in groups.items():
            days, others = split_days(items)
            day_ranges = [[str(w.start), str(w.end)] for w in days]
            reported_groups.append([kind, subject, day_ranges, others, json.loads(size)])
        return json.dumps(
            {
                "looked": self.looked,
                "seen": sorted(self.seen_runs),
                "waiting": dict(self.waiting),
                "told": reported_groups,
                "attempts": dict(self.attempts),
                "blind": self.blind,
            }
        )

    def with_failed_runs(self, failed: Mapping[str, float], now: float) -> Outbox:
        """With the runs that failed since a while before the last look."""
        fresh = self.looked is None
        new = {run: at for run, at in failed.items() if not fresh and run not in self.seen_runs}
        return replace(
            self, looked=now, seen_runs=frozenset(failed), waiting={**self.waiting, **new}
        )

    def with_incidents(self, incidents: Sequence[Incident] | None) -> Outbox:
        """With what was found in the tables; none if they could not be looked at."""
        if incidents is None:
            return replace(self, blind=self.blind + 1)
        # A size is unknown of what an earlier version of this project told: the first look sets it.
        still = {i.key: self.reported[i.key] or i.size for i in incidents if i.key in self.reported}
        return replace(self, blind=0, reported=still)

    def unreported(self, incidents: Iterable[Incident]) -> Iterator[Incident]:
        """The incidents that nobody was told of, and those that have grown since."""
        for incident in incidents:
            reported_size = self.reported.get(incident.key)
            if reported_size is None:
                yield incident
            elif _has_grown(reported_size, incident.size):
                yield replace(incident, detail=f"more than was told: {incident.detail}")

    def without_runs(self, runs: Set[str]) -> Outbox:
        """With these runs no longer waiting."""
        waiting = {run: at for run, at in self.waiting.items() if run not in runs}
        return replace(self, waiting=waiting)

    def with_pending(self, alerts: Sequence[Alert]) -> Outbox:
        """With attempts only of the alerts that there still are."""
        names = {alert.name for alert in alerts}
        return replace(self, attempts={a: n for a, n in self.attempts.items() if a in names})

    def mark_delivered(self, alert: Alert) -> Outbox:
        """With an alert delivered."""
        attempts = {name: n for name, n in self.attempts.items() if name != alert.name}
        reported = {
            **self.reported,
            **{
                key: _largest_size(self.reported.get(key, {}), size)
                for key, size in alert.incidents.items()
            },
        }
        return replace(self.without_runs(alert.runs), reported=reported, attempts=attempts)

    def count_failure(self, alert: Alert) -> Outbox:
        """With one more attempt to deliver an alert in vain."""
        attempts = {**self.attempts, alert.name: self.attempts.get(alert.name, 0) + 1}
        return replace(self, attempts=attempts)


def split_days(items: Iterable[str]) -> tuple[list[Window], list[str]]:
    """Items as windows of days, and those that are no days."""
    days, others = [], []
    for item in items:
        day = _parse_day(item)
        if day is None:
            others.append(item)
        else:
            days.append(day)
    return to_windows(days), others


def _parse_day(item: str) -> date | None:
    try:
        day = date.fromisoformat(item)
    except ValueError:
        return None
    return day if str(day) == item else None  # other spellings are read since Python 3.11


def _has_grown(reported: Size, current: Size) -> bool:
    return any(
        name not in reported
        or (abs(n) > abs(reported[name]) and abs(n) >= _GROWTH_FACTOR * abs(reported[name]))
        for name, n in current.items()
    )


def _largest_size(reported: Size, current: Size) -> Size:
    """The largest of each aspect: what goes down and up again is no news."""
    return {
        name: max(reported.get(name, 0), current.get(name, 0), key=abs)
        for name in {**reported, **current}
    }


def _group_incidents(
    kind: str,
    subject: str,
    days: Iterable[Sequence[str]],
    others: Iterable[str],
    size: Mapping[str, float] | None = None,
) -> Iterator[tuple[Key, Size]]:
    """The incidents of a group in the cursor."""
    known_size = {str(name): float(n) for name, n in (size or {}).items()}
    for start, end in days:
        for day in Window(date.fromisoformat(start), date.fromisoformat(end)):
            yield (str(kind), str(subject), str(day)), known_size
    for item in others:
        yield (str(kind), str(subject), str(item)), known_size
