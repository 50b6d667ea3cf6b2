"""The scope of an undo: the changed days of a backfill and the days downstream of them.

Pure functions over ledgers. A day is downstream of another if its record names an input version in
which the other day held the backfill's rows, the commit of these rows made it stale, and its input
digest depends on that day. So no rule here is for one table by name.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache

from backfill_assets.backfills.changes import (
    CommitFilter,
    DayChange,
    RowOrigins,
    changed_days,
    commits_of,
    is_commit_of,
    overwritten_since,
    restored_versions,
    reverted_days,
    standing_commits,
    unchanged_days,
    written_days,
)
from backfill_assets.calendar.partitions import DAY, format_ranges
from backfill_assets.delta.ledgers import Ledger, due_days
from backfill_assets.delta.records import ACCEPTED_CODE, Commit, CommitRecord, ExternalCommit
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import downstream_tables
from backfill_assets.tables.derived import carries_state


@dataclass(frozen=True)
class UndoScope:
    """What an undo changes in one table.

    Attributes:
        changes: days to revert: written by the backfill, or downstream of them.
        unchanged: days that keep their rows and get their old record back: recomputed from the
            backfill's rows with the same result, or only accepted as made by other code.
        already_reverted: days that hold their old rows again, or were recomputed from reverted
            inputs.
        problems: why days cannot be reverted, each a message that names them.
    """

    changes: Mapping[date, DayChange]
    unchanged: Mapping[date, DayChange]
    already_reverted: Collection[date]
    problems: Collection[str]

    @property
    def days(self) -> Mapping[date, DayChange]:
        """The days that its commit covers."""
        return {**self.unchanged, **self.changes}


def undo_scopes(
    snapshot: Snapshot, name: str, days: Container[date] | None = None, part: str = ""
) -> dict[str, UndoScope]:
    """What an undo changes, by table, inputs first; arguments as in `undo.undo_backfill`.

    Of a part, only tables of that part: those made of several parts have no rows to go back to.
    """
    is_direct = commits_of(name, days)
    undone_by_table: dict[str, _UndoneDays] = {}
    scopes: dict[str, UndoScope] = {}
    for table, ledger in snapshot.ledgers.items():
        origins = RowOrigins(ledger)
        if part and ledger.table.part != part:
            undone_by_table[table] = _UndoneDays(ledger, {}, origins)
            scopes[table] = UndoScope(changes={}, unchanged={}, already_reverted=set(), problems=[])
            continue
        inputs = _UndoneInputs(snapshot, table, undone_by_table)
        commits = _UndoneCommits(ledger, origins, inputs, name, is_direct)
        changes = changed_days(ledger, commits.is_undone, origins, is_direct)
        undone_by_table[table] = _UndoneDays(ledger, changes, origins)
        overwriting = overwritten_since(ledger, changes, origins)
        reverted = undone_by_table[table].already_reverted | {
            day
            for day, commit in overwriting.items()
            if commits.is_recomputed(changes[day], commit, day)
        }
        remaining = {day: change for day, change in changes.items() if day not in reverted}
        commits_by_others = {
            day: commit for day, commit in overwriting.items() if day not in reverted
        }
        not_overwritten = {d: c for d, c in remaining.items() if d not in commits_by_others}
        unchanged = {
            day: change
            for day, change in unchanged_days(ledger, commits.is_undone).items()
            if day not in remaining
            if change.last_commit.details.kind == ACCEPTED_CODE
            or commits.is_downstream(change.last_commit, day)
            if not commits.find_other_input(change.previous_commit, change.last_commit, day)
        }
        scopes[table] = UndoScope(
            changes=remaining,
            unchanged=unchanged,
            already_reverted=reverted,
            problems=[
                *_overwrite_problems(table, commits_by_others),
                *_mixed_input_problems(commits, ledger, not_overwritten, is_direct),
                *_reverted_input_problems(snapshot, table, remaining, scopes, undone_by_table),
            ],
        )
    return scopes


class _UndoneDays:
    """The undone days of one input table, for its downstream tables."""

    def __init__(
        self, ledger: Ledger, changes: Mapping[date, DayChange], origins: RowOrigins
    ) -> None:
        """`changes` are all undone days, whether already reverted or not."""
        self.origins, self.changes = origins, changes
        #: Undone days by commit version.
        self.days_by_version: dict[int, frozenset[date]] = {}
        for record in ledger.records if changes else ():
            days = (
                d
                for d in written_days(record)
                if d in changes and _is_within(changes[d], record.version)
            )
            if commit_days := frozenset(days):
                self.days_by_version[record.version] = commit_days
        self.already_reverted = reverted_days(ledger, changes, origins)
        self._affected: dict[int, frozenset[date]] = {}

    def affected_days(self, version: int) -> frozenset[date]:
        """The days that held undone rows as of a version."""
        if version not in self._affected:
            self._affected[version] = frozenset(
                day
                for day, change in self.changes.items()
                if self.origins.was_affected(day, change, version)
            )
        return self._affected[version]

    def version_before(self, version: int) -> int:
        """The version before all undone changes of those days."""
        return min(
            (self.changes[day].version_before for day in self.affected_days(version)),
            default=version,
        )


def _is_within(change: DayChange, version: int) -> bool:
    return change.version_before < version <= change.version_after


class _UndoneInputs:
    """Which days of a table were built from undone days of its inputs.

    The days before in the table itself are not among these inputs: see `_UndoneCommits`.
    """

    def __init__(
        self, snapshot: Snapshot, table: str, undone_by_table: Mapping[str, _UndoneDays]
    ) -> None:
        """`undone_by_table` has the undone days of all tables before this one."""
        self._table, self._snapshot = table, snapshot
        self._days_made_stale_by = {
            input_name: days_of
            for input_name, table_name, days_of in downstream_tables(snapshot)
            if table_name == table != input_name
        }
        self._undone = {name: undone_by_table[name] for name in self._days_made_stale_by}
        #: Days that undone commits made stale, by input; a fast filter for most days.
        self._candidate_days = {
            name: self._days_stale_by(name, undone.days_by_version)
            for name, undone in self._undone.items()
            if undone.changes
        }
        self._downstream_days = cache(self._find_downstream)
        self._foreign_commits = cache(self._find_foreign_commits)
        self._reachable_days = cache(self._find_reachable)

    def is_downstream(self, record: CommitRecord, day: date) -> bool:
        """Whether a day of a commit was built from undone rows of an input."""
        names = [name for name, days in self._candidate_days.items() if day in days]
        inputs = record.for_day(day).inputs if names else {}
        return any(
            name in inputs and day in self._downstream_days(name, inputs[name]) for name in names
        )

    def are_reverted(self, record: CommitRecord, day: date) -> bool:
        """Whether all undone input days as of a commit hold again what they held before."""
        inputs = record.for_day(day).inputs
        return all(
            undone.already_reverted >= undone.affected_days(inputs[name])
            for name, undone in self._undone.items()
            if name in inputs
        )

    def find_foreign_commit(
        self, previous: CommitRecord | None, record: CommitRecord, day: date
    ) -> tuple[str, Commit] | None:
        """An input, and its commit by others, that also changed a day since its previous commit.

        `record` is built from undone rows.
        """
        earlier = previous.for_day(day).inputs if previous else {}
        for name, version in record.for_day(day).inputs.items():
            if name not in self._undone:
                continue
            after_version = earlier.get(name)
            if after_version is None:
                after_version = self._undone[name].version_before(version)
            if commit := self._foreign_commits(name, after_version, version).get(day):
                return name, commit
        return None

    def _find_downstream(self, name: str, version: int) -> frozenset[date]:
        """Days downstream of the undone rows that an input held as of a version."""
        undone = self._undone[name]
        affected = undone.affected_days(version)
        versions = frozenset(
            v for v, days in undone.days_by_version.items() if v <= version and days & affected
        )
        return self._reachable_days(name, affected, versions)

    def _find_reachable(
        self, name: str, input_days: frozenset[date], versions: frozenset[int]
    ) -> frozenset[date]:
        """Days that commits of an input made stale and whose input digest depends on its days."""
        if not input_days:
            return frozenset()
        days = self._days_stale_by(name, versions)
        return frozenset(self._snapshot.days_depending_on(self._table, days, name, input_days))

    def _days_stale_by(self, name: str, versions: Container[int]) -> set[date]:
        """Days that commits of an input made stale; after another writer's, all may be."""
        days = set[date]()
        for commit in self._snapshot.ledgers[name].all_commits:
            if commit.version in versions:
                days.update(
                    self._snapshot.ledgers[self._table].published_days
                    if isinstance(commit, ExternalCommit)
                    else self._days_made_stale_by[name](commit)
                )
        return days

    def _find_foreign_commits(
        self, name: str, after_version: int, version: int
    ) -> dict[date, Commit]:
        """Days that commits by others between two input versions made stale, with the commit."""
        undone, origins = self._undone[name], self._undone[name].origins
        affected = undone.affected_days(version)
        commits_by_day: dict[date, Commit] = {}
        for commit in self._snapshot.ledgers[name].all_commits:
            is_between = after_version < commit.version <= version
            if not is_between or commit.version in undone.days_by_version:
                continue
            changed = frozenset(
                day
                for day in written_days(commit) - affected
                if origins.origin_at(day, after_version) != origins.origin_at(day, version)
            )
            days = self._reachable_days(name, changed, frozenset([commit.version]))
            commits_by_day |= dict.fromkeys(days, commit)
        return commits_by_day


class _UndoneCommits:
    """The days of a table's commits that an undo reverts.

    Those of the backfill itself, and those downstream: built from undone days of an input or, in a
    stateful table, from the undone day before.
    """

    def __init__(
        self,
        ledger: Ledger,
        origins: RowOrigins,
        inputs: _UndoneInputs,
        name: str,
        is_direct: CommitFilter,
    ) -> None:
        """Find them in the order of the commits.

        Args:
            ledger: the table's ledger.
            origins: row origins of the same ledger.
            inputs: the undone days of its inputs.
            name: the backfill that is undone.
            is_direct: selects days that the backfill itself wrote.
        """
        self._ledger, self._origins, self._inputs = ledger, origins, inputs
        #: By commit version.
        self._undone: dict[int, set[date]] = {}
        self._downstream: dict[int, set[date]] = {}
        standing: dict[date, CommitRecord] = {}
        for record in ledger.records:
            undone = self._undone[record.version] = set()
            downstream = self._downstream[record.version] = set()
            restored = restored_versions(record)
            for day in sorted(record.days.keys() | record.revoked_days):
                # Days that are left out of the request, published first since, or changed by other
                # inputs as well stay: they become stale once the day before them is reverted.
                follows_undone_day = (
                    day in record.days
                    and day in standing
                    and not is_commit_of(record, name)
                    and self._follows_undone_day(record, day)
                    and not inputs.find_foreign_commit(standing[day], record, day)
                )
                # An undo builds no day.
                if day not in restored and (
                    follows_undone_day or inputs.is_downstream(record, day)
                ):
                    downstream.add(day)
                if day in downstream or is_direct(record, day):
                    undone.add(day)
            standing |= dict.fromkeys(record.days, record)
            for day in record.revoked_days:
                standing.pop(day, None)

    def is_undone(self, record: CommitRecord, day: date) -> bool:
        """Whether the backfill wrote a day of a commit, or it is downstream."""
        return day in self._undone[record.version]

    def is_downstream(self, record: CommitRecord, day: date) -> bool:
        """Whether a day of a commit was built from undone rows."""
        return day in self._downstream[record.version]

    def is_recomputed(self, change: DayChange, overwriting: Commit, day: date) -> bool:
        """Whether a downstream day was recomputed after its inputs were reverted."""
        return (
            isinstance(overwriting, CommitRecord)
            and not change.external_between
            and self.is_downstream(change.last_commit, day)
            and not self.is_downstream(overwriting, day)
            and self._inputs.are_reverted(change.last_commit, day)
        )

    def find_other_input(
        self, previous: CommitRecord | None, record: CommitRecord, day: date
    ) -> tuple[str, Commit] | None:
        """An input, or the table itself, and its commit by others, that also changed a day.

        Between its previous commit and `record`, which is built from undone rows.
        """
        if previous and (commit := self._find_kept_day_before(previous, record, day)):
            return self._ledger.table.name, commit
        return self._inputs.find_foreign_commit(previous, record, day)

    def _follows_undone_day(self, record: CommitRecord, day: date) -> bool:
        """Whether the day before, as this commit of a stateful table read it, is undone."""
        if not carries_state(self._ledger.table):
            return False
        origin = self._origins.origin_at(day - DAY, record.version)
        return day - DAY in self._undone.get(origin, ())

    def _find_kept_day_before(
        self, previous: CommitRecord, record: CommitRecord, day: date
    ) -> Commit | None:
        """The commit that changed the day before between two of a day, if it stands.

        Not if this undo reverts it, or another one has: that one has left the day as it was.
        """
        if not carries_state(self._ledger.table):
            return None
        day_before = day - DAY
        earlier, current = (
            self._origins.origin_at(day_before, commit.version) for commit in (previous, record)
        )
        if (
            earlier == current
            or day_before in self._undone.get(current, ())
            or self._origins.are_rows_reverted(day_before, current - 1, current)
        ):
            return None
        return next((c for c in self._ledger.all_commits if c.version == current), None)


def _overwrite_problems(table: str, commits_by_day: Mapping[date, Commit]) -> Iterator[str]:
    """Messages for days that an undo refuses, as other commits have written them since."""
    for commit, days in _group_by_commit(commits_by_day):
        yield (
            f"{table} [{format_ranges(days)}] has been written since, by "
            f"{_describe_writer(commit)} in version {commit.version}; undo that first, or leave "
            "these days out"
        )


def _mixed_input_problems(
    undone: _UndoneCommits,
    ledger: Ledger,
    changes: Mapping[date, DayChange],
    is_direct: Callable[[CommitRecord, date], bool],
) -> Iterator[str]:
    """Messages for downstream days that also depend on commits by others, which undo would drop.

    A day is judged by the last commit that wrote it: what others changed in its inputs, and what
    was reverted there before that commit, has no part in the current rows. If its first commit of
    undone rows was of the others' rows already, the day is undone first: each of both would else
    name the other.
    """
    makers: dict[date, Commit] = {}
    commits_by_input: dict[str, dict[date, Commit]] = defaultdict(dict)
    other_code_commits: dict[date, Commit] = {}
    standing = standing_commits(ledger, is_direct)
    for day, change in changes.items():
        commits = [c for c in standing[day] if c.version <= change.version_after]
        is_downstream = [
            day in commit.days and _is_within(change, commit.version) and not is_direct(commit, day)
            for commit in commits
        ]
        if not any(is_downstream[-1:]):
            continue
        start = max((n for n, found in enumerate(is_downstream, 1) if not found), default=0)
        previous, first, last = commits[start - 1] if start else None, commits[start], commits[-1]
        if other_input := undone.find_other_input(previous, last, day):
            commits_by_input[other_input[0]][day] = other_input[1]
            if undone.find_other_input(previous, first, day):
                makers[day] = last
        # A commit that took the day back has made no rows, with no code.
        if previous and day in previous.days and _is_within(change, previous.version):
            first = previous
        if _differ_in_code(first, last, day):
            other_code_commits[day] = last
    yield from _explain_mixed_inputs(ledger.table.name, commits_by_input, makers)
    yield from _overwrite_problems(ledger.table.name, other_code_commits)


def _explain_mixed_inputs(
    table: str,
    commits_by_input: Mapping[str, Mapping[date, Commit]],
    makers: Mapping[date, Commit],
) -> Iterator[str]:
    """Messages for days of a table that commits by others changed as well.

    `makers` has the commits of those days that were built from both at once.
    """
    for name, commits_by_day in commits_by_input.items():
        for commit, days in _group_by_commit(commits_by_day):
            other = f"version {commit.version} of {name} by {_describe_writer(commit)}"
            if days_apart := [day for day in days if day not in makers]:
                yield (
                    f"{table} [{format_ranges(days_apart)}] was made of what is to be undone, and "
                    f"of {other} as well; undo that first, or leave out the days that these are "
                    "made of"
                )
            makers_of_days = {day: makers[day] for day in days if day in makers}
            for maker, days_at_once in _group_by_commit(makers_of_days):
                run = _describe_writer(maker)
                yield (
                    f"{table} [{format_ranges(days_at_once)}] was made by {run} in version "
                    f"{maker.version}, of what is to be undone and of {other} at once; undo {run} "
                    "first, or leave out the days that these are made of"
                )


def _differ_in_code(first: CommitRecord, second: CommitRecord, day: date) -> bool:
    first_version, second_version = (record.for_day(day).code_version for record in (first, second))
    return first_version != second_version or first.made_under(day) != second.made_under(day)


def _reverted_input_problems(
    snapshot: Snapshot,
    table: str,
    changes: Mapping[date, DayChange],
    scopes: Mapping[str, UndoScope],
    upstream: Mapping[str, _UndoneDays],
) -> Iterator[str]:
    """Messages for days whose old rows were built from input that another undo has reverted.

    Restored, they would not match their inputs. Input that is newer than the old rows is no
    problem: such a day is stale, and shown as stale. Nor is input that was reverted before the
    change that is undone: the old rows were there with that input. `scopes` and `upstream` are
    those of its inputs.
    """
    days_of: dict[tuple[str, int, int], set[date]] = defaultdict(set)
    ledgers = snapshot.ledgers
    for dependency in snapshot.graph.inputs[table] if changes else ():
        name = dependency.source.name
        source, undone, origins = ledgers[name], upstream[name].changes, upstream[name].origins
        deciding, current = dependency.reach.deciding_days(source), source.version or 0
        remaining = changes if name == table else scopes[name].changes
        #: By the version that wrote the rows, and by that of their undo.
        reverted: dict[tuple[int, int], set[date]] = defaultdict(set)
        for day, change in changes.items():
            version = (
                change.previous_commit.for_day(day).inputs.get(name)
                if change.previous_commit
                else None
            )
            if version is None:
                continue
            # A commit of a stateful table built each of its days from the day before.
            version += name == table
            seen = _input_version_at_change(ledgers[table], change, day, name) or version
            for input_day in deciding(day):
                before = undone[input_day].version_before if input_day in undone else current
                origin = origins.origin_at(input_day, version)
                undo = origins.find_revert(input_day, origin, max(version, min(seen, before)))
                as_of = remaining[input_day].version_before if input_day in remaining else current
                # Not if that undo is itself undone, by now or by this one.
                if undo and all(origins.origin_at(input_day, v) < origin for v in (as_of, current)):
                    reverted[origin, undo].add(day)
        # A day that our reverted commit did not make stale holds none of its rows.
        stale_days = due_days(dependency, source)
        written = {version for version, _ in reverted}
        stale_by_version = {
            r.version: {*stale_days(r)} for r in source.records if r.version in written
        }
        for (version, undo), days in reverted.items():
            if affected := days & stale_by_version.get(version, days):
                days_of[name, version, undo] |= affected
    for (name, version, undo), days in sorted(days_of.items()):
        commits = {commit.version: commit for commit in ledgers[name].all_commits}
        yield (
            f"{table} [{format_ranges(days)}] was made before of what "
            f"{_describe_writer(commits[version])} had written to {name}, which "
            f"{_describe_writer(commits[undo])} has undone since; undo that undo first, or leave "
            "these days out"
        )


def _input_version_at_change(ledger: Ledger, change: DayChange, day: date, name: str) -> int | None:
    """The version that an input, or the table itself, had when a change began; None if unknown."""
    if name == ledger.table.name:
        return change.version_before
    for commit in ledger.records:
        if (
            commit.version > change.version_before
            and day in commit.days.keys() | commit.revoked_days
        ):
            return commit.inputs.get(name)
    return None


def _group_by_commit(days: Mapping[date, Commit]) -> Iterator[tuple[Commit, list[date]]]:
    for version, commit in sorted({c.version: c for c in days.values()}.items()):
        yield commit, [day for day, other in days.items() if other.version == version]


def _describe_writer(commit: Commit) -> str:
    if isinstance(commit, ExternalCommit):
        return f"another writer ({commit.operation})"
    return f"run {commit.run_id[:8]}"
