"""The days that one backfill changed in a table, and the versions around each change.

Pure functions over ledgers, used by `reconcile`, `downstream` and `undo`.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import ACCEPTED_CODE, Commit, CommitRecord, ExternalCommit

#: Shortest prefix that names a run: as long as the console shows.
_SHORT_ID_LENGTH = 8


def is_commit_of(record: CommitRecord, name: str) -> bool:
    """Whether a commit is part of a backfill or run.

    Args:
        record: the commit's record.
        name: a backfill's id, whose stages are named `<id>-<stage>`; or a run's id, or at least its
            first eight characters, for a range that was run without a backfill.
    """
    backfill = record.backfill_id or ""
    if not name:
        return False
    if backfill == name or backfill.startswith(f"{name}-"):
        return True
    return len(name) >= _SHORT_ID_LENGTH and record.run_id.startswith(name)


def own_commits(ledgers: Ledgers, name: str) -> list[CommitRecord]:
    """The commits of a backfill or run in all tables; `name` as in `is_commit_of`."""
    return [
        record
        for ledger in ledgers.values()
        for record in ledger.records
        if is_commit_of(record, name)
    ]


def backfill_ids_of(ledgers: Ledgers, name: str) -> set[str]:
    """The backfills that the commits of `name` belong to; `name` as in `is_commit_of`."""
    return {record.backfill_id for record in own_commits(ledgers, name) if record.backfill_id}


#: Selects days of commits.
CommitFilter = Callable[[CommitRecord, date], bool]


def commits_of(name: str, days: Container[date] | None = None) -> CommitFilter:
    """A filter for the days of a backfill's commits.

    Args:
        name: as in `is_commit_of`.
        days: only these; None for all.
    """
    return lambda record, day: is_commit_of(record, name) and (days is None or day in days)


@dataclass(frozen=True)
class DayChange:
    """How a backfill changed one day.

    Attributes:
        version_before: the table's version just before the backfill first committed the day, or
            first committed it again after an undo or after a commit by others.
        version_after: the version in which it last wrote the day.
        previous_commit: the commit that covered the day before; None without one.
        last_commit: the last commit of the backfill that wrote the day.
        external_between: another writer's commit between two of the backfill's commits: what it
            left of the rows of the first is not known.
    """

    version_before: int
    version_after: int
    previous_commit: CommitRecord | None
    last_commit: CommitRecord
    external_between: ExternalCommit | None = None


def written_days(commit: Commit) -> frozenset[date]:
    """The days whose files a commit changed, including revoked days."""
    return (
        commit.days
        if isinstance(commit, ExternalCommit)
        else commit.rewritten_days | commit.revoked_days
    )


#: The origin of a day that was never written.
_NEVER_WRITTEN = -1


class RowOrigins:
    """The origin of a day's rows as of a version: the commit that first wrote them.

    An undo writes a day with the rows of an older commit. Origins point to that commit, also
    through several undos, so restored rows are recognised.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._timelines: dict[date, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for commit in ledger.all_commits:
            as_of = restored_versions(commit) if isinstance(commit, CommitRecord) else {}
            for day in written_days(commit):
                versions, origins = self._timelines[day]
                origins.append(self.origin_at(day, as_of[day]) if day in as_of else commit.version)
                versions.append(commit.version)

    def origin_at(self, day: date, version: int) -> int:
        """The version that first wrote the rows of a day as of a version; -1 if never written."""
        if day not in self._timelines:
            return _NEVER_WRITTEN
        versions, origins = self._timelines[day]
        n = bisect_right(versions, version)
        return origins[n - 1] if n else _NEVER_WRITTEN

    def holds_result(self, day: date, change: DayChange, version: int | None = None) -> bool:
        """Whether a day holds the rows of a change, as of a version; None for the last version."""
        origin = self._timelines[day][1][-1] if version is None else self.origin_at(day, version)
        return origin == self.origin_at(day, change.version_after)

    def is_reverted(self, day: date, change: DayChange, version: int | None = None) -> bool:
        """Whether a change was undone and not restored, as of a version; None for the last version.

        Later writes by others do not matter. The change of an undo is not undone by another undo
        that restores rows that are older still.
        """
        return self.are_rows_reverted(day, change.version_before, change.version_after, version)

    def are_rows_reverted(
        self, day: date, version_before: int, version_after: int, version: int | None = None
    ) -> bool:
        """As `is_reverted`, of what was written between two versions."""
        versions, origins = self._timelines[day]
        end = len(versions) if version is None else bisect_right(versions, version)
        own_origin, reverted = self.origin_at(day, version_after), False
        origin_before = self.origin_at(day, version_before)
        is_undo = own_origin <= version_before
        for origin in origins[bisect_right(versions, version_after) : end]:
            older = not is_undo and origin <= version_before
            is_before = older or origin == origin_before
            reverted = origin != own_origin and (reverted or is_before)
        return reverted

    def find_revert(self, day: date, origin: int, version: int) -> int | None:
        """The first version after `version` that has rows of a day older than those of `origin`.

        None without one, or if the rows were older in `version` already.
        """
        versions, origins = self._timelines[day]
        if self.origin_at(day, version) < origin:
            return None
        later = range(bisect_right(versions, version), len(versions))
        return next((versions[n] for n in later if origins[n] < origin), None)

    def was_affected(self, day: date, change: DayChange, version: int) -> bool:
        """Whether a day held rows written by a change, as of a version."""
        origin = self.origin_at(day, version)
        in_scope = (
            origin == self.origin_at(day, change.version_after)
            or change.version_before < origin <= change.version_after
        )
        return change.version_before < version and in_scope


def restored_versions(commit: CommitRecord) -> dict[date, int]:
    """By day that an undo restored, the version whose rows it has again."""
    ranges = commit.details.as_of
    return {day: int(version) for version, days in ranges.items() for day in from_ranges(days)}


def standing_commits(ledger: Ledger, is_own: CommitFilter) -> Mapping[date, Sequence[CommitRecord]]:
    """By day, our commits that cover it or take it back and are not reverted since.

    An undo, unless it is what `is_own` selects, removes the commits after the version that it
    restores, and adds none.
    """
    commits_by_day: dict[date, list[CommitRecord]] = defaultdict(list)
    for record in ledger.records:
        as_of = restored_versions(record)
        for day in [*record.days, *record.revoked_days]:
            commits = commits_by_day[day]
            if day in as_of and day in record.days and not is_own(record, day):
                commits[:] = [commit for commit in commits if commit.version <= as_of[day]]
            else:
                commits.append(record)
    return commits_by_day


def publishing_commits(ledger: Ledger) -> dict[date, CommitRecord]:
    """By published day, the commit that published it as it is.

    An undo, a migration and an acceptance of code carry over what an earlier commit published. Days
    that no commit of ours published as they are, as after an undo of all of them, are left out.
    """
    timelines: dict[date, list[tuple[int, CommitRecord | None]]] = defaultdict(list)
    for record in ledger.records:
        as_of = restored_versions(record)
        for day in record.days:
            commit: CommitRecord | None = record
            if day in as_of or record.details.kind == ACCEPTED_CODE:
                last_version = as_of.get(day, record.version)
                earlier_commits = [c for version, c in timelines[day] if version <= last_version]
                commit = earlier_commits[-1] if earlier_commits else None
            timelines[day].append((record.version, commit))
        for day in record.revoked_days:
            timelines[day].append((record.version, None))
    last_commits = {day: timeline[-1][1] for day, timeline in timelines.items()}
    return {day: commit for day, commit in last_commits.items() if commit}


def changed_days(
    ledger: Ledger,
    is_own: CommitFilter,
    origins: RowOrigins | None = None,
    is_direct: CommitFilter | None = None,
) -> dict[date, DayChange]:
    """The days whose files a backfill wrote or revoked.

    Days that it recomputed with unchanged rows are left out. For a day that was reverted, or
    written by others, and written again, only the later change counts, and the earlier one if it is
    restored. An undo, unless it is what `is_own` selects, brings back what was so in the version
    that it restores.

    Args:
        ledger: the table's ledger.
        is_own: selects the days of the backfill.
        origins: row origins of the same ledger.
        is_direct: of these, selects those that it wrote itself, by default all. The others were
            recomputed from its rows, whatever had been written between.
    """
    origins, is_direct = origins or RowOrigins(ledger), is_direct or is_own
    histories: dict[date, list[_DayState]] = defaultdict(lambda: [_DayState(-1)])
    writers: dict[date, Commit] = {}
    for commit in ledger.all_commits:
        written = written_days(commit)
        if isinstance(commit, CommitRecord):
            as_of = restored_versions(commit)
            for day in commit.days.keys() | commit.revoked_days:
                history, is_own_commit = histories[day], is_own(commit, day)
                last, change = history[-1], history[-1].change
                if day in as_of and not is_own_commit:
                    last = [state for state in history if state.version <= as_of[day]][-1]
                    is_own_commit = last.is_own
                    # A change since then is reverted, and days may still be made of it.
                    if is_own_commit or not change or change.version_before < as_of[day]:
                        change = last.change or change
                elif is_own_commit and day in written:
                    change = _extend_change(
                        last,
                        commit,
                        day,
                        origins,
                        writers.get(day),
                        is_direct=is_direct(commit, day),
                    )
                version_before = commit.version - 1
                previous: CommitRecord | None = commit
                if is_own_commit and last.is_own:
                    version_before = last.version_before
                if is_own_commit:
                    previous = last.previous
                elif day in commit.revoked_days:
                    previous = None
                history.append(
                    _DayState(commit.version, is_own_commit, version_before, previous, change)
                )
        writers |= dict.fromkeys(written, commit)
    return {day: history[-1].change for day, history in histories.items() if history[-1].change}


class _DayState(NamedTuple):
    """A day after a commit that covers it.

    Attributes:
        version: version of the commit.
        is_own: whether the commit is one of the backfill.
        version_before: the version before the backfill's commits that end with this one.
        previous: the commit that covered the day before those of the backfill; None without one.
        change: how the backfill changed the day so far; also if that was reverted.
    """

    version: int
    is_own: bool = False
    version_before: int = -1
    previous: CommitRecord | None = None
    change: DayChange | None = None


def _extend_change(
    state: _DayState,
    commit: CommitRecord,
    day: date,
    origins: RowOrigins,
    writer: Commit | None,
    *,
    is_direct: bool,
) -> DayChange:
    """The change of a day once the backfill has written it again; `writer` wrote it last."""
    old, version_before = state.change, commit.version - 1
    # An undo of the commits between restores the backfill's own rows.
    is_restored = old is not None and any(
        origins.holds_result(day, old, version) for version in (version_before, commit.version)
    )
    is_replaced = is_direct and isinstance(writer, CommitRecord) and not is_restored
    if old is None or is_replaced or origins.is_reverted(day, old, version_before):
        if state.is_own:  # it had the same rows in its commits so far
            version_before = state.version_before
        return DayChange(version_before, commit.version, state.previous, commit)
    between = old.external_between
    if isinstance(writer, ExternalCommit) and not is_restored:
        between = writer
    return DayChange(old.version_before, commit.version, old.previous_commit, commit, between)


def changed_days_by_table(ledgers: Ledgers, name: str) -> dict[str, dict[date, DayChange]]:
    """The days that a backfill wrote, by table; only tables with such days."""
    days_by_table = {
        table: changed_days(ledger, commits_of(name)) for table, ledger in ledgers.items()
    }
    return {table: days for table, days in days_by_table.items() if days}


def unchanged_days(ledger: Ledger, is_own: CommitFilter) -> dict[date, DayChange]:
    """The days that a backfill committed last without writing: they had the same rows already.

    Each with the commit that covered the day before the backfill.
    """
    timelines: dict[date, list[_TimelineEntry]] = defaultdict(list)
    for record in ledger.records:
        as_of = restored_versions(record)
        for day in record.days:
            timeline, is_own_commit = timelines[day], is_own(record, day)
            last_entry = timeline[-1] if timeline else _TimelineEntry(-1, None, None)
            if day in as_of:
                # An undo counts as the entry that it restores, unless the undo is what `is_own`
                # selects.
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
    """The state of a day after a commit that covers it.

    Attributes:
        version: version of the commit.
        record: the current record; None after a revocation.
        change: the backfill's commit of the day without a change of rows; None without one.
        rows_changed: whether the backfill has changed the rows.
    """

    version: int
    record: CommitRecord | None
    change: DayChange | None
    rows_changed: bool = False


def _next_entry(
    entry: _TimelineEntry, record: CommitRecord, day: date, *, is_own: bool
) -> _TimelineEntry:
    """The day's state after one more commit; a commit by others ends the backfill's change."""
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
    """The days that hold again what they held before the backfill wrote them."""
    origins = origins or RowOrigins(ledger)
    return {day for day, change in changes.items() if origins.is_reverted(day, change)}


def reverted_by_table(ledgers: Ledgers, name: str) -> dict[str, dict[date, CommitRecord]]:
    """Days that a backfill wrote and that are reverted, each with its last commit, by table.

    `name` is a backfill or run, as in `is_commit_of`.
    """
    return {
        table: {day: changes[day].last_commit for day in reverted_days(ledgers[table], changes)}
        for table, changes in changed_days_by_table(ledgers, name).items()
    }


def overwritten_since(
    ledger: Ledger, changes: Mapping[date, DayChange], origins: RowOrigins | None = None
) -> dict[date, Commit]:
    """By day, the commit by others that wrote its rows after the backfill; only such days.

    Not the undo that has put these rows back. A day is left out if an undo has restored the
    backfill's rows.
    """
    if not changes:
        return {}
    origins = origins or RowOrigins(ledger)
    commits_by_day: dict[date, Commit] = {
        day: change.external_between for day, change in changes.items() if change.external_between
    }
    #: By day, the versions that wrote it after the backfill, each with the commit of the rows.
    writers: dict[date, dict[int, Commit]] = defaultdict(dict)
    for commit in ledger.all_commits:
        as_of = restored_versions(commit) if isinstance(commit, CommitRecord) else {}
        for day in written_days(commit):
            if day in changes and commit.version > changes[day].version_after:
                last_version = as_of.get(day, -1)
                restored = [c for version, c in writers[day].items() if version <= last_version]
                writers[day][commit.version] = restored[-1] if restored else commit
                commits_by_day[day] = writers[day][commit.version]
    return {
        day: commit
        for day, commit in commits_by_day.items()
        if changes[day].external_between or not origins.holds_result(day, changes[day])
    }
