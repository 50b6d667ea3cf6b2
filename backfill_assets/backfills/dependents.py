"""What was made of what a backfill wrote, table after table; what an undo has to reach.

Pure functions over ledgers. A day follows another if a record of it names a version of the input in
which the other day held what the backfill wrote, if the commit that wrote that made it due, and if
its fingerprint depends on it. So nothing here knows a table by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from backfill_assets.backfills.built_upon import Chain
from backfill_assets.backfills.footprints import (
    Change,
    Origins,
    footprint,
    found_unchanged,
    part_of,
    put_back,
    standing,
    written,
    written_since,
)
from backfill_assets.calendar.partitions import spelled
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import ACCEPTED_CODE, ExternalCommit, Record
from backfill_assets.staleness.backlog import follows
from backfill_assets.staleness.supposed import depending
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import graph_of


@dataclass(frozen=True)
class Extent:
    """What an undo of a backfill is about in one table.

    Attributes:
        changes: the days to put back: what the backfill wrote, and what was made of it.
        unchanged: days whose rows stay, but not their last record: they were made of it and came
            out with the rows that they had, or it accepted them as made by other code.
        done: the days that hold again what they held before, or were made anew of such.
        problems: why days cannot be put back, each in a sentence that names them.
    """

    changes: Mapping[date, Change]
    unchanged: Mapping[date, Change]
    done: Collection[date]
    problems: Collection[str]


def extents(
    ledgers: Ledgers, name: str, policy: Policy, days: Container[date] | None = None
) -> dict[str, Extent]:
    """What an undo is about, by table, inputs first.

    Args:
        ledgers: those of all tables.
        name: the backfill, as `footprints.belongs` takes it.
        policy: the late-data policy.
        days: only these of those that it wrote, and what was made of them; all if not given.
    """
    direct = part_of(name, days)
    above: dict[str, _Written] = {}
    all_origins: dict[str, Origins] = {}
    found: dict[str, Extent] = {}
    for table, ledger in ledgers.items():
        origins = all_origins[table] = Origins(ledger)
        of = _Following(table, ledgers, policy, above)
        if carries_state(ledger.table):
            of.chain = Chain(ledger, origins, name, direct, of.follows, of.mixed)

        def mine(record: Record, day: date, of: _Following = of) -> bool:
            return direct(record, day) or of.follows(record, day)

        changes = footprint(ledger, mine, origins)
        above[table] = _Written(ledger, changes, origins)
        since = written_since(ledger, changes, origins)
        done = above[table].done | {
            day for day, commit in since.items() if of.made_anew(changes[day], commit, day)
        }
        left = {day: change for day, change in changes.items() if day not in done}
        others = {day: commit for day, commit in since.items() if day not in done}
        alone = [d for d in left if d not in others]
        unchanged = {
            day: change
            for day, change in found_unchanged(ledger, mine).items()
            if day not in left
            if change.last.details.kind == ACCEPTED_CODE or of.follows(change.last, day)
            if not of.mixed(change.previous, change.last, day)
        }
        found[table] = Extent(
            changes=left,
            unchanged=unchanged,
            done=done,
            problems=[
                *_written_since(table, others),
                *_made_of_others_too(of, ledger, {d: left[d] for d in alone}, direct),
                *_made_of_reverted(
                    ledgers, policy, table, {**unchanged, **left}, found, all_origins
                ),
            ],
        )
    return found


class _Written:
    """What is undone in a table, as those who follow it see it."""

    def __init__(self, ledger: Ledger, changes: Mapping[date, Change], origins: Origins) -> None:
        """From the table's ledger, and what is undone, whether it stands or not."""
        self.origins, self.changes = origins, changes
        #: By version of the commits that are undone, the days of each.
        self.commits: dict[int, frozenset[date]] = {}
        for record in ledger.records if changes else ():
            days = (
                d for d in written(record) if d in changes and _within(changes[d], record.version)
            )
            if of := frozenset(days):
                self.commits[record.version] = of
        self.done = put_back(ledger, changes, origins)
        self._seen: dict[int, frozenset[date]] = {}

    def seen(self, version: int) -> frozenset[date]:
        """The days that held what is undone as of a version."""
        if version not in self._seen:
            self._seen[version] = frozenset(
                day
                for day, change in self.changes.items()
                if self.origins.seen(day, change, version)
            )
        return self._seen[version]

    def before(self, version: int) -> int:
        """The version before all of that."""
        return min((self.changes[day].before for day in self.seen(version)), default=version)


def _within(change: Change, version: int) -> bool:
    return change.before < version <= change.after


_DaysOf = Callable[[Record], Iterable[date]]


class _Following:
    """Which days of a table follow what is undone in its inputs."""

    def __init__(
        self, table: str, ledgers: Ledgers, policy: Policy, above: Mapping[str, _Written]
    ) -> None:
        self._table, self._ledgers, self._policy = table, ledgers, policy
        self._above = {name: of for name, of in above.items() if of.changes}
        self._due: dict[str, _DaysOf] = {
            source: days_of
            for source, follower, days_of in follows(ledgers, policy)
            if follower == table
        }
        #: Of a table that carries state, the days that were built upon days that are undone.
        self.chain: Chain | None = None
        #: What all commits that are undone have made due: most days are in none of these.
        self._due_by = {
            name: {
                day
                for record in ledgers[name].records
                if record.version in of.commits
                for day in self._due[name](record)
            }
            for name, of in self._above.items()
            if name in self._due
        }
        self._known: dict[tuple[str, int], frozenset[date]] = {}
        self._reached: dict[tuple[str, frozenset[date], frozenset[int]], frozenset[date]] = {}
        self._others: dict[tuple[str, int, int], dict[date, Record | ExternalCommit]] = {}

    def follows(self, record: Record, day: date) -> bool:
        """Whether a day of a commit was made of what is undone."""
        if self.chain and day in self.chain.upon.get(record.version, ()):
            return True
        if not any(day in days for days in self._due_by.values()):
            return False
        inputs = record.for_day(day).inputs
        return any(
            day in days and name in inputs and day in self._following(name, inputs[name])
            for name, days in self._due_by.items()
        )

    def made_anew(self, change: Change, since: Record | ExternalCommit, day: date) -> bool:
        """Whether a day that followed was made again, from inputs that were put back before."""
        if (
            isinstance(since, ExternalCommit)
            or change.between
            or not self.follows(change.last, day)
        ):
            return False
        seen = {name: self._above[name].seen(v) for name, v in self._read(change.last, day)}
        gone = all(self._above[name].done >= days for name, days in seen.items())
        return gone and not self.follows(since, day)

    def mixed(
        self, previous: Record | None, record: Record, day: date
    ) -> tuple[str, Record | ExternalCommit] | None:
        """An input's commit of somebody else that a day was made of as well, since it was before.

        Args:
            previous: the commit that spoke of the day before; none if none did.
            record: one that was made of what is undone.
            day: the day.
        """
        if self.chain and previous and (commit := self.chain.by_others(previous, record, day)):
            return self._table, commit
        earlier = previous.for_day(day).inputs if previous else {}
        for name, version in record.for_day(day).inputs.items():
            if name not in self._due or name == self._table:
                continue
            since = earlier.get(name)
            if since is None:
                since = self._above[name].before(version) if name in self._above else version
            if commit := self._made_by_others(name, since, version).get(day):
                return name, commit
        return None

    def _read(self, record: Record, day: date) -> Iterator[tuple[str, int]]:
        inputs = record.for_day(day).inputs
        for name in self._above:
            if name in inputs and name in self._due:
                yield name, inputs[name]

    def _following(self, name: str, version: int) -> frozenset[date]:
        """The days that follow what is undone in an input as it was in a version."""
        if (name, version) not in self._known:
            of = self._above[name]
            seen = of.seen(version)
            by = frozenset(v for v, days in of.commits.items() if v <= version and days & seen)
            self._known[name, version] = self._reach(name, seen, by) if seen else frozenset()
        return self._known[name, version]

    def _reach(self, name: str, moving: frozenset[date], by: frozenset[int]) -> frozenset[date]:
        """The days that commits of an input made due, and whose fingerprint has days that moved."""
        key = (name, moving, by)
        if key not in self._reached:
            records = [r for r in self._ledgers[name].records if r.version in by]
            due = {day for record in records for day in self._due[name](record)}
            self._reached[key] = self._changing(name, moving, due)
        return self._reached[key]

    def _changing(
        self, name: str, moving: Collection[date], days: Collection[date]
    ) -> frozenset[date]:
        of = depending(self._ledgers, self._policy, self._table, days, name, moving)
        return frozenset(of)

    def _made_by_others(
        self, name: str, since: int, version: int
    ) -> dict[date, Record | ExternalCommit]:
        """The days that commits of an input between two versions made due, if not undone."""
        key = (name, since, version)
        if key not in self._others:
            ledger = self._ledgers[name]
            of = self._above.get(name) or _Written(ledger, {}, Origins(ledger))
            seen = of.seen(version)
            found: dict[date, Record | ExternalCommit] = {}
            for commit in ledger.commits:
                if not since < commit.version <= version:
                    continue
                moved = {
                    day
                    for day in written(commit) - seen
                    if of.origins.at(day, since) != of.origins.at(day, version)
                    and commit.version not in of.commits
                }
                if moved:
                    due = (
                        self._ledgers[self._table].published
                        if isinstance(commit, ExternalCommit)
                        else set(self._due[name](commit))
                    )
                    found |= dict.fromkeys(self._changing(name, moved, due), commit)
            self._others[key] = found
        return self._others[key]


def _written_since(table: str, others: Mapping[date, Record | ExternalCommit]) -> Iterator[str]:
    for commit, days in _by_commit(others):
        yield (
            f"{table} [{spelled(days)}] has been written since, by {_who(commit)} in version "
            f"{commit.version}; undo that first, or leave these days out"
        )


def _made_of_others_too(
    of: _Following,
    ledger: Ledger,
    changes: Mapping[date, Change],
    direct: Callable[[Record, date], bool],
) -> Iterator[str]:
    """Days that followed, and that others had a part in: to put them back would take that away."""
    before: dict[date, Record] = {}
    inputs: dict[str, dict[date, Record | ExternalCommit]] = defaultdict(dict)
    codes: dict[date, Record | ExternalCommit] = {}
    stands = standing(ledger)
    for record in ledger.records:
        for day in record.days:
            change, previous = changes.get(day), before.get(day)
            if change is None or not _within(change, record.version) or direct(record, day):
                continue
            # What was put back since has no part in the rows that are there.
            if record.version not in stands[day]:
                continue
            if mixed := of.mixed(previous, record, day):
                inputs[mixed[0]][day] = mixed[1]
            if (
                previous
                and _within(change, previous.version)
                and _other_code(previous, record, day)
            ):
                codes[day] = record
        spoken = [day for day in record.days if record.version in stands[day]]
        before |= dict.fromkeys([*spoken, *record.withdrawn], record)
    for name, days_of in inputs.items():
        for commit, days in _by_commit(days_of):
            yield (
                f"{ledger.table.name} [{spelled(days)}] was made of what is to be undone, and of "
                f"version {commit.version} of {name} by {_who(commit)} as well; undo that first, "
                "or leave out the days that these are made of"
            )
    yield from _written_since(ledger.table.name, codes)


def _other_code(one: Record, other: Record, day: date) -> bool:
    code_version, other_version = (record.for_day(day).code_version for record in (one, other))
    return code_version != other_version or one.made_under(day) != other.made_under(day)


def _made_of_reverted(
    ledgers: Ledgers,
    policy: Policy,
    table: str,
    changes: Mapping[date, Change],
    extents: Mapping[str, Extent],
    origins: Mapping[str, Origins],
) -> Iterator[str]:
    """Days whose old rows were made of input that another undo has reverted since.

    Put back, they would hold what their inputs do not. Input that is newer than theirs is no
    reason: such a day is behind, for all to see.

    Args:
        ledgers: those of all tables.
        policy: the late-data policy.
        table: the name of the table.
        changes: its days to put back.
        extents: of its inputs, what is undone.
        origins: of its inputs.
    """
    days_of: dict[tuple[str, int], set[date]] = defaultdict(set)
    for dependency in graph_of(ledgers, policy).inputs[table] if changes else ():
        name = dependency.source.name
        source = ledgers[name]
        deciding = dependency.reach.deciding(source)
        undone = changes if name == table else extents[name].changes
        reverted: dict[int, set[date]] = defaultdict(set)
        for day, change in changes.items():
            version = change.previous.for_day(day).inputs.get(name) if change.previous else None
            if version is None:
                continue
            # A commit of a table that carries state has built its days one upon the other.
            version += name == table
            for input_day in deciding(day):
                as_of = undone[input_day].before if input_day in undone else source.version or 0
                made_of = origins[name].at(input_day, version)
                if origins[name].at(input_day, as_of) < made_of:
                    reverted[made_of].add(day)
        # Days that a reverted commit of ours has not made due hold nothing of it.
        days_due = dependency.due(source)
        due = {r.version: {*days_due(r)} for r in source.records if r.version in reverted}
        for version, days in reverted.items():
            if affected := days & due.get(version, days):
                days_of[name, version] |= affected
    for (name, version), days in sorted(days_of.items()):
        yield (
            f"{table} [{spelled(days)}] was made of version {version} of {name} before, which "
            "has been undone since; undo that undo first, or leave these days out"
        )


def _by_commit(
    days: Mapping[date, Record | ExternalCommit],
) -> Iterator[tuple[Record | ExternalCommit, list[date]]]:
    for version, commit in sorted({c.version: c for c in days.values()}.items()):
        yield commit, [day for day, other in days.items() if other.version == version]


def _who(commit: Record | ExternalCommit) -> str:
    if isinstance(commit, ExternalCommit):
        return f"another writer ({commit.operation})"
    return f"run {commit.run_id[:8]}"
