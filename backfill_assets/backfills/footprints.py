"""What one backfill did to a table, from the table's ledger: its days, and the versions around it.

Pure functions over ledgers; `accounts`, `dependents` and `undo` rest on them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from backfill_assets.calendar.partitions import unpacked
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import ExternalCommit, Record

#: As many characters of a run's id as the console shows are enough to name it.
_SHORT = 8


def belongs(record: Record, name: str) -> bool:
    """Whether a commit is part of a backfill.

    Args:
        record: what the commit says of itself.
        name: a backfill's id, whose stages are called `<id>-<stage>`; or a run's id, or its first
            eight characters or more, for a range that was run without a backfill.
    """
    backfill = record.backfill_id or ""
    if not name:
        return False
    if backfill == name or backfill.startswith(f"{name}-"):
        return True
    return len(name) >= _SHORT and record.run_id.startswith(name)


def backfills_of(ledgers: Ledgers, name: str) -> set[str]:
    """The ids of the backfills that commits belong to, if what is named is a run of one.

    Args:
        ledgers: those of all tables.
        name: as `belongs` takes it.
    """
    commits = (record for ledger in ledgers.values() for record in ledger.records)
    return {r.backfill_id for r in commits if r.backfill_id and belongs(r, name)}


#: Whether what a commit says of a day is part of what is looked at.
Mine = Callable[[Record, date], bool]


def part_of(name: str, days: Container[date] | None = None) -> Mine:
    """What a backfill did.

    Args:
        name: as `belongs` takes it.
        days: only these; all if not given.
    """
    return lambda record, day: belongs(record, name) and (days is None or day in days)


@dataclass(frozen=True)
class Change:
    """What a backfill did to one day.

    Attributes:
        before: the table's version just before it first wrote the day, since it was last undone.
        after: the version that it last wrote the day in.
        previous: the commit that spoke of the day before; none if none did.
        last: the last commit of the backfill that wrote the day.
        between: a commit of somebody else that wrote the day between two of the backfill's.
    """

    before: int
    after: int
    previous: Record | None
    last: Record
    between: Record | ExternalCommit | None = None


def written(commit: Record | ExternalCommit) -> frozenset[date]:
    """The days whose files a commit changed, those that it took back included."""
    return commit.days if isinstance(commit, ExternalCommit) else commit.wrote | commit.withdrawn


#: The origin of a day that nobody has written.
_NOBODY = -1


class Origins:
    """Whose rows a day held as of a version: by the commit that first brought them.

    An undo writes a day, and brings back the rows of an older commit; so two undos in a row are
    seen through, and what was put back is known as such.
    """

    def __init__(self, ledger: Ledger) -> None:
        """From the table's ledger."""
        self._of: dict[date, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for commit in ledger.commits:
            as_of = _as_of(commit) if isinstance(commit, Record) else {}
            for day in written(commit):
                versions, origins = self._of[day]
                origins.append(self.at(day, as_of[day]) if day in as_of else commit.version)
                versions.append(commit.version)

    def at(self, day: date, version: int) -> int:
        """The version whose rows a day held as of a version; -1 if nobody had written it."""
        if day not in self._of:
            return _NOBODY
        versions, origins = self._of[day]
        n = bisect_right(versions, version)
        return origins[n - 1] if n else _NOBODY

    def holds(self, day: date, change: Change, version: int | None = None) -> bool:
        """Whether a day holds what a change left; as of a version, if one is given."""
        held = self._of[day][1][-1] if version is None else self.at(day, version)
        return held == self.at(day, change.after)

    def put_back(self, day: date, change: Change, version: int | None = None) -> bool:
        """Whether a change was undone, and not put in place again; whoever wrote the day then.

        As of a version, if one is given.
        """
        versions, origins = self._of[day]
        end = len(versions) if version is None else bisect_right(versions, version)
        mine, gone = self.at(day, change.after), False
        for origin in origins[bisect_right(versions, change.after) : end]:
            gone = origin != mine and (gone or origin <= change.before)
        return gone

    def seen(self, day: date, change: Change, version: int) -> bool:
        """Whether a day held, as of a version, what a change wrote."""
        origin = self.at(day, version)
        mine = origin == self.at(day, change.after) or change.before < origin <= change.after
        return change.before < version and mine


def _as_of(commit: Record) -> dict[date, int]:
    """By day that an undo put back, the version that it is as of."""
    ranges = commit.details.as_of
    return {day: int(version) for version, days in ranges.items() for day in unpacked(days)}


def standing(ledger: Ledger) -> Mapping[date, Sequence[int]]:
    """By day, the versions of our commits that speak of it and were not put back since.

    An undo speaks of a day as the commits did that it went back to.
    """
    found: dict[date, list[int]] = defaultdict(list)
    for record in ledger.records:
        as_of = _as_of(record)
        for day in record.days:
            of = found[day]
            if day in as_of:
                of[:] = [version for version in of if version <= as_of[day]]
            else:
                of.append(record.version)
    return found


def footprint(ledger: Ledger, mine: Mine, origins: Origins | None = None) -> dict[date, Change]:
    """The days whose files a backfill wrote or took back, each with what was before.

    A day that it found with the rows that it was to write is not among them. Of a day that was put
    back and written again, only what came after counts.

    Args:
        ledger: the table's.
        mine: which commits are the backfill's.
        origins: those of the ledger, where they are known already.
    """
    stands: dict[date, Record] = {}
    writers: dict[date, Record | ExternalCommit] = {}
    origins = origins or Origins(ledger)
    found: dict[date, Change] = {}
    for commit in ledger.commits:
        if isinstance(commit, Record):
            before = commit.version - 1
            for day in [d for d in written(commit) if mine(commit, d)]:
                old = found.get(day)
                if old is None or origins.put_back(day, old, before):
                    found[day] = Change(before, commit.version, stands.get(day), commit)
                    continue
                # An undo of what came between brings back the backfill's own rows.
                own = any(origins.holds(day, old, at) for at in (before, commit.version))
                between = old.between if own else writers[day]
                found[day] = Change(old.before, commit.version, old.previous, commit, between)
            stands |= dict.fromkeys(commit.days, commit)
            for day in commit.withdrawn:
                stands.pop(day, None)
        writers |= dict.fromkeys(written(commit), commit)
    return found


def found_unchanged(ledger: Ledger, mine: Mine) -> dict[date, Change]:
    """The days that a backfill spoke of last and never wrote: they had the rows already.

    Args:
        ledger: the table's.
        mine: which commits are the backfill's.

    Returns:
        Each with the commit that spoke of the day before the backfill did.
    """
    timelines: dict[date, list[_Spoken]] = defaultdict(list)
    for record in ledger.records:
        as_of = _as_of(record)
        for day in record.days:
            timeline, is_mine = timelines[day], mine(record, day)
            before = timeline[-1] if timeline else _Spoken(-1, None, None)
            if day in as_of:
                # An undo: what it goes back to counts, unless it is the undo that is asked about.
                earlier = [spoken for spoken in timeline if spoken.version <= as_of[day]]
                restored = earlier[-1] if earlier else before
                if restored.change or restored.wrote or not is_mine:
                    timeline.append(restored._replace(version=record.version))
                    continue
            timeline.append(_next(before, record, day, mine=is_mine))
        for day in record.withdrawn:
            timelines[day].append(_Spoken(record.version, None, None))
    return {
        day: timeline[-1].change
        for day, timeline in timelines.items()
        if timeline[-1].change and ledger.current_record(day)
    }


class _Spoken(NamedTuple):
    """What is to be known of a day after a commit that covers it.

    Attributes:
        version: of the commit.
        record: the one that stands.
        change: what a backfill did to the day without a change of its rows; None if it did not.
        wrote: whether the backfill has changed the rows.
    """

    version: int
    record: Record | None
    change: Change | None
    wrote: bool = False


def _next(before: _Spoken, record: Record, day: date, *, mine: bool) -> _Spoken:
    if not mine:
        return _Spoken(record.version, record, None)
    if day in record.wrote:
        return _Spoken(record.version, record, None, wrote=True)
    change = before.change
    if not (before.wrote or change or before.record is None):
        change = Change(record.version - 1, record.version, before.record, record)
    return _Spoken(record.version, record, change, before.wrote)


def put_back(
    ledger: Ledger, changes: Mapping[date, Change], origins: Origins | None = None
) -> set[date]:
    """The days that were put back to what they held before a backfill wrote them."""
    origins = origins or Origins(ledger)
    return {day for day, change in changes.items() if origins.put_back(day, change)}


def written_since(
    ledger: Ledger, changes: Mapping[date, Change], origins: Origins | None = None
) -> dict[date, Record | ExternalCommit]:
    """The last commit that wrote a day after the backfill did, by day, where there is one.

    Undos are seen through: nobody did where the backfill's own rows were brought back.
    """
    if not changes:
        return {}
    origins = origins or Origins(ledger)
    found = {day: change.between for day, change in changes.items() if change.between}
    for commit in ledger.commits:
        for day in written(commit):
            if day in changes and commit.version > changes[day].after:
                found[day] = commit
    return {
        day: commit
        for day, commit in found.items()
        if changes[day].between or not origins.holds(day, changes[day])
    }
