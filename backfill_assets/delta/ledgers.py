"""The ledger of a table: its log as of one version, and each day's state that follows from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from typing import NamedTuple, Self

import msgspec
import pyspark.sql.types as T

from backfill_assets.audit.verdicts import DayMetrics
from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    RETIREMENT,
    Commit,
    CommitDetails,
    CommitRecord,
    ExternalCommit,
    PublishedDay,
)
from backfill_assets.tables.table import Dependency, ExternalTable, Table

#: Bytes of data files that count as a row.
_ROW_BYTES = 50


class StoredFiles(NamedTuple):
    """The data files of a day: number, bytes, newest modification time in ms since 1970."""

    files: int
    size: int
    newest: int = 0


@dataclass(frozen=True)
class TableMetadata:
    """The metadata of a Delta table; `properties` include the constraints."""

    struct: T.StructType
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """All that a table's log says.

    Attributes:
        version: the latest version; None if there is no table.
        records: our commits, in ascending order of versions.
        external_commits: commits of other writers that may have changed rows, in ascending order.
        measured: by day, rows and nulls from the files' statistics, whoever wrote the files.
        rows: by day, rows from the files' statistics; days with a file without statistics are left
            out. None if the files were not read.
        transaction: the number of our last commit, as stored by Delta; None if there was none.
        missing_versions: versions that are not known, because the log was cut.
        metadata: None if there is no table.
        changed_columns: columns added or dropped since the table was created, with the version of
            the change.
        references: by name, the current content of each unpartitioned input; None if it does not
            exist.
    """

    table: Table
    version: int | None = None
    records: Sequence[CommitRecord] = ()
    external_commits: Sequence[ExternalCommit] = ()
    measured: Mapping[date, DayMetrics] = field(default_factory=dict)
    stored: Mapping[date, StoredFiles] = field(default_factory=dict)
    rows: Mapping[date, int] | None = None
    transaction: int | None = None
    missing_versions: Sequence[int] = ()
    metadata: TableMetadata | None = None
    changed_columns: Mapping[str, int] = field(default_factory=dict)
    references: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def hypothetical_days(self) -> frozenset[date]:
        """The days that may change in a what-if; empty for a published table."""
        return frozenset()

    @cached_property
    def latest(self) -> dict[date, CommitRecord]:
        """The latest record of each published day, empty days included."""
        by_day: dict[date, CommitRecord] = {}
        for record in self.records:
            by_day |= dict.fromkeys(record.days, record)
            for day in record.revoked_days:
                by_day.pop(day, None)
        return {day: record.for_day(day) for day, record in by_day.items()}

    @cached_property
    def code_parts(self) -> Mapping[str, Mapping[str, str]]:
        """What code versions are made of, by version; those of earlier releases are not known."""
        records = (record for record in self.records if record.code_parts)
        return {record.code_version: record.code_parts for record in records}

    @cached_property
    def failed_days(self) -> set[date]:
        """The days that the last commit about them could not publish."""
        failed: set[date] = set()
        for record in self.records:
            failed = (failed - record.days.keys()) | record.failed_days.keys()
        return failed

    @cached_property
    def on_hold(self) -> Mapping[date, str]:
        """By day on hold and not published since, the input digest that a person rejected."""
        holds: dict[date, str] = {}
        for record in self.records:
            for day in (*record.days, *record.revoked_days) if holds else ():
                holds.pop(day, None)
            holds |= record.details.on_hold
        return holds

    @cached_property
    def revocations(self) -> Mapping[date, CommitRecord]:
        """The reverted days that were not published since, with the commit that reverted them."""
        revoking_records = {day: record for record in self.records for day in record.revoked_days}
        return {day: record for day, record in revoking_records.items() if day not in self.latest}

    @cached_property
    def published_days(self) -> frozenset[date]:
        """The published days, empty ones included."""
        return frozenset(self.latest).union(self.measured)

    @cached_property
    def final_days(self) -> frozenset[date]:
        """The days that are final by their latest record."""
        return frozenset(day for day, record in self.latest.items() if day in record.final)

    @property
    def retirement_commit(self) -> CommitRecord | None:
        """The commit that deleted the rows of a retired table; None if there is none."""
        last = self.records[-1] if self.records else None
        return last if last and last.details.kind == RETIREMENT else None

    def under_other_settings(self, config_digest: str) -> frozenset[date]:
        """The published days whose settings digest is another one."""
        return frozenset(
            day for day, record in self.latest.items() if record.made_under(day) != config_digest
        )

    @cached_property
    def days_without_record(self) -> frozenset[date]:
        """The days whose last commit is not known, because the log was cut."""
        if not self.missing_versions:
            return frozenset()
        return frozenset(
            day
            for day in self.published_days
            if self._external_versions.get(day, -1) < self._last_missing_version
            and (
                day not in self.latest
                or self.latest[day].valid_as_of(day) < self._last_missing_version
            )
        )

    @cached_property
    def _external_versions(self) -> dict[date, int]:
        """By day, the last version in which another writer changed its files."""
        return {day: other.version for other in self.external_commits for day in other.days}

    @cached_property
    def _unknown_days_version(self) -> int:
        """The last version that removed files of unknown days; -1 if none did."""
        return max(
            (other.version for other in self.external_commits if other.has_unknown_days), default=-1
        )

    @cached_property
    def _last_missing_version(self) -> int:
        """The last version that is not known; -1 if all are known."""
        return max(self.missing_versions, default=-1)

    def current_record(self, day: date) -> PublishedDay | None:
        """The day as last published; None if never published, or if others changed it since."""
        record = self.latest.get(day)
        if record is None:
            return None
        since = record.valid_as_of(day)
        if self._external_versions.get(day, -1) > since or self._last_missing_version > since:
            return None
        published = record.days[day]
        if self.rows is not None:
            if day in self.measured and day not in self.rows:
                # The rows are not known: the removed files may be those of this day.
                return None if self._unknown_days_version > since else published
            # Other writers may have changed a day in a commit that is no longer in the log.
            if self.rows.get(day, 0) != published.rows:
                return None
        return published

    def rows_of(self, day: date) -> int | None:
        """The number of rows of a day; None if it is not published."""
        if day not in self.published_days:
            return None
        if self.rows is not None and day in self.rows:
            return self.rows[day]
        return self.measured[day].rows if day in self.measured else 0

    def estimate_rows(self, day: date) -> int:
        """The number of rows of a day, for an estimate of work: a large row counts as several."""
        record = self.latest.get(day)
        recorded = record.days[day].rows if record else 0
        size = self.stored[day].size if day in self.stored else 0
        return max(self.rows_of(day) or 0, recorded, size // _ROW_BYTES)

    def content_key(self, day: date) -> str:
        """Identifies the rows of a day: days with equal keys have equal rows."""
        published = self.current_record(day)
        if published is not None:
            return published.digest
        record = self.latest.get(day)
        counted = self.rows is not None
        if (
            record is None
            and day not in self.measured
            and (counted or day not in self._external_versions)
        ):
            return "nothing"
        last = max(self._external_versions.get(day, -1), self._unknown_days_version)
        if last > max(self._last_missing_version, record.valid_as_of(day) if record else -1):
            ours = record.version if record and day in record.rewritten_days else -1
            return f"version {max(last, ours)}"
        rows = (self.rows or {}).get(day, 0 if day not in self.measured else "unknown")
        files = self.stored.get(day, StoredFiles(0, 0))
        return (
            f"unrecorded {rows} rows in {files.files} file(s) of {files.size} bytes, "
            f"the newest of {files.newest}"
        )

    def as_of(self, version: int) -> Self:
        """The ledger as of an older version; the data files of that version are not known."""
        return replace(
            self,
            version=version,
            records=[record for record in self.records if record.version <= version],
            external_commits=[other for other in self.external_commits if other.version <= version],
            missing_versions=[missing for missing in self.missing_versions if missing <= version],
            measured={},
            stored={},
            rows=None,
        )

    @cached_property
    def as_external_input(self) -> "Ledger":
        """The ledger of a table that others write, in which each of their commits has a record.

        A day without a file is not published: the last commit that changed it has revoked it. Days
        that changed before the log begins are of a record that is older than all others.
        """
        rows = {day: (self.rows or {}).get(day, 0) for day in self.measured if day}
        commits = {
            other.version: other.days.union(rows) if other.has_unknown_days else other.days
            for other in self.external_commits
        }
        newest = {day: version for version, days in commits.items() for day in days}
        known = newest.keys() | {day for record in self.records for day in record.days}
        # A deployment of this package may write it, whose backfills are not those of this one.
        records = [
            msgspec.structs.replace(record, run_id="", backfill_id=None) for record in self.records
        ]
        if before := rows.keys() - known:
            keys = {day: self.content_key(day) for day in before}
            published = {day: PublishedDay(rows[day], keys[day], "ok") for day in before}
            records.append(_foreign_record(ExternalCommit(0, "", frozenset()), published))
        for other in self.external_commits:
            days = commits[other.version]
            gone = frozenset(d for d in days if newest[d] == other.version and d not in rows)
            digest = f"version {other.version} of {other.at}"
            published = {day: PublishedDay(rows.get(day, 0), digest, "ok") for day in days - gone}
            records.append(_foreign_record(other, published, gone))
        return replace(
            self,
            records=sorted(records, key=lambda record: record.version),
            external_commits=(),
            measured={},
            missing_versions=(),
        )

    def columns_changed_since(self, record: CommitRecord) -> frozenset[str]:
        """The columns added or dropped since a commit, which its figures do not cover."""
        return frozenset(
            name for name, since in self.changed_columns.items() if since > record.version
        )

    def changed_references(self, day: date) -> dict[str, str | None]:
        """The unpartitioned inputs whose content has changed since a day was published."""
        previous = self.latest[day].details.references
        return {
            name: current
            for name, current in self.references.items()
            if previous.get(name) != current
        }

    def code_of(self, record: CommitRecord, day: date) -> str:
        """The code of all tables that a day of a commit counts as computed by.

        This is the code of the commit, unless a person has accepted the day under newer code since.
        """
        latest = self.latest.get(day)
        if latest and latest.details.kind == ACCEPTED_CODE and latest.version > record.version:
            return latest.code_id
        return record.for_day(day).code_id

    @property
    def all_commits(self) -> list[Commit]:
        """Our commits and those of other writers, in ascending order of versions."""
        commits: list[Commit] = [*self.records, *self.external_commits]
        return sorted(commits, key=lambda commit: commit.version)

    @cached_property
    def changed_days(self) -> Mapping[int, frozenset[date]]:
        """By version of our commits, the days whose rows the commit changed."""
        contents: dict[date, str] = {}
        others: dict[date, int] = {}
        changes = {}
        cut = self._last_missing_version
        for commit in self.all_commits:
            if commit.version > cut >= 0:
                contents.clear()  # a missing commit may have changed any day
                cut = -1
            if isinstance(commit, ExternalCommit):
                if commit.has_unknown_days:
                    contents.clear()
                contents |= dict.fromkeys(commit.days, f"version {commit.version}")
                others |= dict.fromkeys(commit.days, commit.version)
            else:
                new = {day: published.digest for day, published in commit.days.items()}
                for day in new.keys() & others.keys():
                    if others[day] > commit.valid_as_of(day):
                        written = day in commit.rewritten_days
                        new[day] = f"version {commit.version if written else others[day]}"
                new |= dict.fromkeys(commit.revoked_days, "nothing")
                changes[commit.version] = frozenset(d for d in new if contents.get(d) != new[d])
                contents |= new
        return changes

    @cached_property
    def last_change(self) -> int:
        """The last version that changed the rows of a day; -1 if there is none."""
        ours = [version for version, days in self.changed_days.items() if days]
        return max([*ours, *(other.version for other in self.external_commits)], default=-1)


def _foreign_record(
    commit: ExternalCommit,
    days: Mapping[date, PublishedDay],
    revoked_days: frozenset[date] = frozenset(),
) -> CommitRecord:
    """The record of a commit of others: nothing but its days is known."""
    return CommitRecord(
        version=commit.version,
        run_id="",
        backfill_id=None,
        launched_by=f"another writer ({commit.operation})",
        code_version="",
        config_digest="",
        inputs={},
        days=days,
        final=frozenset(),
        details=CommitDetails(),
        at=commit.at,
        revoked_days=revoked_days,
    )


Ledgers = Mapping[str, Ledger]


def own_ledgers(ledgers: Ledgers) -> Ledgers:
    """The ledgers by table, without those of tables that others write."""
    return {
        n: ledger for n, ledger in ledgers.items() if not isinstance(ledger.table, ExternalTable)
    }


def due_days(dependency: Dependency, source: Ledger) -> Callable[[CommitRecord], Iterable[date]]:
    """A function from a commit of an input to the days of the table that it makes due.

    Args:
        dependency: the input, with the reach of the table.
        source: the commits of the input.
    """

    def days_due_by(record: CommitRecord) -> Iterable[date]:
        ranges = getattr(record.details, dependency.recorded) if dependency.recorded else None
        if ranges is not None:
            return from_ranges(ranges)
        return dependency.reach.changed_days(source.changed_days[record.version], source)

    return days_due_by
