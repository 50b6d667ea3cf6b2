"""The days that one backfill changed in a table, and the versions around each change.

Pure functions over ledgers; `accounts`, `dependents` and `undo` rest on them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import CommitRecord, ExternalCommit

#: As many characters of a run's id as the console shows are enough to name it.
_SHORT_ID_LENGTH = 8


def is_commit_of(record: CommitRecord, name: str) -> bool:
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
    return len(name) >= _SHORT_ID_LENGTH and record.run_id.startswith(name)


def backfill_ids_of(ledgers: Ledgers, name: str) -> set[str]:
    """The ids of the backfills that commits belong to, if what is named is a run of one.

    Args:
        ledgers: those of all tables.
        name: as `is_commit_of` takes it.
    """
    commits = (record for ledger in ledgers.values() for record in ledger.records)
    return {r.backfill_id for r in commits if r.backfill_id and is_commit_of(r, name)}


#: Whether what a commit says of a day is part of what is looked at.
CommitFilter = Callable[[CommitRecord, date], bool]


def commits_of(name: str, days: Container[date] | None = None) -> CommitFilter:
    """What a backfill did.

    Args:
        name: as `is_commit_of` takes it.
        days: only these; all if not given.
    """
    return lambda record, day: is_commit_of(record, name) and (days is None or day in days)


@dataclass(frozen=True)
class DayChange:
    """What a backfill did to one day.

    Attributes:
        version_before: the table's version just before it first wrote the day, since it was last
            undone.
        version_after: the version that it last wrote the day in.
        previous_commit: the commit that spoke of the day before; none if none did.
        last_commit: the last commit of the backfill that wrote the day.
        commit_between: a commit of somebody else that wrote the day between two of the backfill's.
    """

    version_before: int
    version_after: int
    previous_commit: CommitRecord | None
    last_commit: CommitRecord
    commit_between: CommitRecord | ExternalCommit | None = None


def written_days(commit: CommitRecord | ExternalCommit) -> frozenset[date]:
    """The days whose files a commit changed, those that it took back included."""
    return (
        commit.days
        if isinstance(commit, ExternalCommit)
        else commit.rewritten_days | commit.revoked_days
    )


#: The origin of a day that nobody has written.
_NEVER_WRITTEN = -1


class RowOrigins:
    """Whose rows a day held as of a version: by the commit that first brought them.

    An undo writes a day, and brings back the rows of an older commit; so two undos in a row are
    seen through, and what was put back is known as such.
    """

    def __init__(self, ledger: Ledger) -> None:
        """From the table's ledger."""
        self._timelines: dict[date, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for commit in ledger.all_commits:
            as_of = _restored_versions(commit) if isinstance(commit, CommitRecord) else {}
            for day in written_days(commit):
                versions, origins = self._timelines[day]
                origins.append(self.origin_at(day, as_of[day]) if day in as_of else commit.version)
                versions.append(commit.version)

    def origin_at(self, day: date, version: int) -> int:
        """The version whose rows a day held as of a version; -1 if nobody had written it."""
        if day not in self._timelines:
            return _NEVER_WRITTEN
        versions, origins = self._timelines[day]
        n = bisect_right(versions, version)
        return origins[n - 1] if n else _NEVER_WRITTEN

    def holds_result(self, day: date, change: DayChange, version: int | None = None) -> bool:
        """Whether a day holds what a change left; as of a version, if one is given."""
        origin = self._timelines[day][1][-1] if version is None else self.origin_at(day, version)
        return origin == self.origin_at(day, change.version_after)

    def is_reverted(self, day: date, change: DayChange, version: int | None = None) -> bool:
        """Whether a change was undone, and not put in place again; whoever wrote the day then.

        As of a version, if one is given.
        """
        versions, origins = self._timelines[day]
        end = len(versions) if version is None else bisect_right(versions, version)
        own_origin, reverted = self.origin_at(day, change.version_after), False
        for origin in origins[bisect_right(versions, change.version_after) : end]:
            reverted = origin != own_origin and (reverted or origin <= change.version_before)
        return reverted

    def was_affected(self, day: date, change: DayChange, version: int) -> bool:
        """Whether a day held, as of a version, what a change wrote."""
        origin = self.origin_at(day, version)
        in_scope = (
            origin == self.origin_at(day, change.version_after)
            or change.version_before < origin <= change.version_after
        )
        return change.version_before < version and in_scope


def _restored_versions(commit: CommitRecord) -> dict[date, int]:
    """By day that an undo put back, the version that it is as of."""
    ranges = commit.details.as_of
    return {day: int(version) for version, days in ranges.items() for day in from_ranges(days)}


def standing_versions(ledger: Ledger) -> Mapping[date, Sequence[int]]:
    """By day, the versions of our commits that speak of it and were not put back since.

    An undo speaks of a day as the commits did that it went back to.
    """
    versions_by_day: dict[date, list[int]] = defaultdict(list)
    for record in ledger.records:
        as_of = _restored_versions(record)
        for day in record.days:
            versions = versions_by_day[day]
            if day in as_of:
                versions[:] = [version for version in versions if version <= as_of[day]]
            else:
                versions.append(record.version)
    return versions_by_day


def changed_days(
    ledger: Ledger, is_own: CommitFilter, origins: RowOrigins | None = None
) -> dict[date, DayChange]:
    """The days whose files a backfill wrote or took back, each with what was before.

    A day that it found with the rows that it was to write is not among them. Of a day that was put
    back and written again, only what came after counts.

    Args:
        ledger: the table's.
        is_own: which commits are the backfill's.
        origins: those of the ledger, where they are known already.
    """
    standing: dict[date, CommitRecord] = {}
    writers: dict[date, CommitRecord | ExternalCommit] = {}
    origins = origins or RowOrigins(ledger)
    changes: dict[date, DayChange] = {}
    for commit in ledger.all_commits:
        if isinstance(commit, CommitRecord):
            version_before = commit.version - 1
            for day in [d for d in written_days(commit) if is_own(commit, d)]:
                old = changes.get(day)
                if old is None or origins.is_reverted(day, old, version_before):
                    changes[day] = DayChange(
                        version_before, commit.version, standing.get(day), commit
                    )
                    continue
                # An undo of what came between brings back the backfill's own rows.
                is_restored = any(
                    origins.holds_result(day, old, version)
                    for version in (version_before, commit.version)
                )
                commit_between = old.commit_between if is_restored else writers[day]
                changes[day] = DayChange(
                    old.version_before, commit.version, old.previous_commit, commit, commit_between
                )
            standing |= dict.fromkeys(commit.days, commit)
            for day in commit.revoked_days:
                standing.pop(day, None)
        writers |= dict.fromkeys(written_days(commit), commit)
    return changes


def unchanged_days(ledger: Ledger, is_own: CommitFilter) -> dict[date, DayChange]:
    """The days that a backfill spoke of last and never wrote: they had the rows already.

    Args:
        ledger: the table's.
        is_own: which commits are the backfill's.

    Returns:
        Each with the commit that spoke of the day before the backfill did.
    """
    timelines: dict[date, list[_TimelineEntry]] = defaultdict(list)
    for record in ledger.records:
        as_of = _restored_versions(record)
        for day in record.days:
            timeline, is_own_commit = timelines[day], is_own(record, day)
            last_entry = timeline[-1] if timeline else _TimelineEntry(-1, None, None)
            if day in as_of:
                # An undo: what it goes back to counts, unless it is the undo that is asked about.
                earlier = [entry for entry in timeline if entry.version <= as_of[day]]
                restored = earlier[-1] if earlier else last_entry
                if restored.change or restored.rows_changed or not is_own_commit:
                    timeline.append(restored._replace(version=record.version))
                    continue
            timeline.append(_next_entry(last_entry, record, day, is_own=is_own_commit))
        for day in record.revoked_days:
            timelines[day].append(_TimelineEntry(record.version, None, None))
    return {
        day: timeline[-1].change
        for day, timeline in timelines.items()
        if timeline[-1].change and ledger.current_record(day)
    }


class _TimelineEntry(NamedTuple):
    """What is to be known of a day after a commit that covers it.

    Attributes:
        version: of the commit.
        record: the one that stands.
        change: what a backfill did to the day without a change of its rows; None if it did not.
        rows_changed: whether the backfill has changed the rows.
    """

    version: int
    record: CommitRecord | None
    change: DayChange | None
    rows_changed: bool = False


def _next_entry(
    entry: _TimelineEntry, record: CommitRecord, day: date, *, is_own: bool
) -> _TimelineEntry:
    if not is_own:
        return _TimelineEntry(record.version, record, None)
    if day in record.rewritten_days:
        return _TimelineEntry(record.version, record, None, rows_changed=True)
    change = entry.change
    if not (entry.rows_changed or change or entry.record is None):
        change = DayChange(record.version - 1, record.version, entry.record, record)
    return _TimelineEntry(record.version, record, change, entry.rows_changed)


def reverted_days(
    ledger: Ledger, changes: Mapping[date, DayChange], origins: RowOrigins | None = None
) -> set[date]:
    """The days that were put back to what they held before a backfill wrote them."""
    origins = origins or RowOrigins(ledger)
    return {day for day, change in changes.items() if origins.is_reverted(day, change)}


def overwritten_since(
    ledger: Ledger, changes: Mapping[date, DayChange], origins: RowOrigins | None = None
) -> dict[date, CommitRecord | ExternalCommit]:
    """The last commit that wrote a day after the backfill did, by day, where there is one.

    Undos are seen through: nobody did where the backfill's own rows were brought back.
    """
    if not changes:
        return {}
    origins = origins or RowOrigins(ledger)
    commits_by_day = {
        day: change.commit_between for day, change in changes.items() if change.commit_between
    }
    for commit in ledger.all_commits:
        for day in written_days(commit):
            if day in changes and commit.version > changes[day].version_after:
                commits_by_day[day] = commit
    return {
        day: commit
        for day, commit in commits_by_day.items()
        if changes[day].commit_between or not origins.holds_result(day, changes[day])
    }
