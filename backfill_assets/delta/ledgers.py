"""The ledger of a table: all that its log says, and what follows from it for each day.

Later decisions rest on it, those of `reprocessing` among them; how it is read is known to
`reading`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from typing import NamedTuple

import pyspark.sql.types as T

from backfill_assets.audit.verdicts import DayMetrics
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    RETIREMENT,
    CommitRecord,
    ExternalCommit,
    PublishedDay,
)
from backfill_assets.tables.table import Table


class StoredFiles(NamedTuple):
    """The data files of a day: how many, their bytes, and when the newest was made."""

    files: int
    size: int
    newest: int = 0


@dataclass(frozen=True)
class TableMetadata:
    """What a table's log says of the table itself.

    Attributes:
        struct: its columns.
        partitioned_by: the partition columns.
        properties: Delta's properties by name, constraints included.
    """

    struct: T.StructType
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """All that a table's log says.

    Attributes:
        table: the table.
        version: its latest version; none while there is no table.
        records: our commits in ascending order of their versions.
        external_commits: commits of others that may have changed rows, in ascending order.
        measured: rows and nulls by day as the data files have them, whoever wrote them.
        stored: the data files by day.
        rows: rows by day as the data files' statistics count them; days with a file that has no
            statistics are left out. None if nobody has looked at the files.
        transaction: the number of our last commit, as Delta keeps it; none if there was none.
        missing_versions: versions of which nothing is known any more: the log was cut.
        metadata: the table's own; none while there is no table.
        changed_columns: columns that the table did not have from the beginning, or has no longer,
            with the version since when.
        references: by name, what the tables without days hold now that it is made of; none of one
            that is not there.
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
        """The days that may come to hold anything; none of what is published."""
        return frozenset()

    @cached_property
    def latest(self) -> dict[date, CommitRecord]:
        """The record that speaks of each published day, empty ones included."""
        by_day: dict[date, CommitRecord] = {}
        for record in self.records:
            by_day |= dict.fromkeys(record.days, record)
            for day in record.revoked_days:
                by_day.pop(day, None)
        return {day: record.for_day(day) for day, record in by_day.items()}

    @cached_property
    def on_hold(self) -> Mapping[date, str]:
        """The days for whose rows a person has decided, and that nobody has published since.

        By day, the input fingerprint of the rows that it was decided against.
        """
        holds: dict[date, str] = {}
        for record in self.records:
            for day in (*record.days, *record.revoked_days) if holds else ():
                holds.pop(day, None)
            holds |= record.details.on_hold
        return holds

    @cached_property
    def revocations(self) -> Mapping[date, CommitRecord]:
        """The days that were taken back and that nobody has published since, each with by which."""
        revoking_records = {day: record for record in self.records for day in record.revoked_days}
        return {day: record for day, record in revoking_records.items() if day not in self.latest}

    @cached_property
    def published_days(self) -> frozenset[date]:
        """The days that have been published, empty ones included."""
        return frozenset(self.latest).union(self.measured)

    @cached_property
    def final_days(self) -> frozenset[date]:
        """The days whose latest record calls them final."""
        return frozenset(day for day, record in self.latest.items() if day in record.final)

    @property
    def retirement_commit(self) -> CommitRecord | None:
        """The commit by which a retired table gave up its rows; none if it has not."""
        last = self.records[-1] if self.records else None
        return last if last and last.details.kind == RETIREMENT else None

    def under_other_settings(self, config_digest: str) -> frozenset[date]:
        """The published days that were made under other settings than these."""
        return frozenset(
            day for day, record in self.latest.items() if record.made_under(day) != config_digest
        )

    @cached_property
    def days_without_record(self) -> frozenset[date]:
        """Days of which no commit tells any more who published them, as the log was cut."""
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
        """The last version of each day's files that is not ours."""
        return {day: other.version for other in self.external_commits for day in other.days}

    @cached_property
    def _unknown_days_version(self) -> int:
        """The last version that took files of unknown days away; -1 if none did."""
        return max(
            (other.version for other in self.external_commits if other.has_unknown_days), default=-1
        )

    @cached_property
    def _last_missing_version(self) -> int:
        """The last version of which nothing is known; -1 if all is."""
        return max(self.missing_versions, default=-1)

    def current_record(self, day: date) -> PublishedDay | None:
        """The day as it was last published; none if never, or if others have changed it since."""
        record = self.latest.get(day)
        if record is None:
            return None
        since = record.valid_as_of(day)
        if self._external_versions.get(day, -1) > since or self._last_missing_version > since:
            return None
        published = record.days[day]
        if self.rows is not None:
            if day in self.measured and day not in self.rows:
                # Nobody has counted them: this day's files may be those that were taken away.
                return None if self._unknown_days_version > since else published
            # Others may have changed a day without a word of it in the log.
            if self.rows.get(day, 0) != published.rows:
                return None
        return published

    def rows_of(self, day: date) -> int | None:
        """The rows of a day; none if it is not published."""
        if day not in self.published_days:
            return None
        if self.rows is not None and day in self.rows:
            return self.rows[day]
        return self.measured[day].rows if day in self.measured else 0

    def content_key(self, day: date) -> str:
        """What a day holds, as text: days with equal texts have equal rows."""
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

    def as_of(self, version: int) -> Ledger:
        """What the commits up to a version say; what the data files held then is not known."""
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

    def columns_changed_since(self, record: CommitRecord) -> frozenset[str]:
        """The columns that came or went since a commit: its figures are not those of now."""
        return frozenset(
            name for name, since in self.changed_columns.items() if since > record.version
        )

    def changed_references(self, day: date) -> dict[str, str | None]:
        """The tables without days that hold something else than when a day was published."""
        previous = self.latest[day].details.references
        return {
            name: current
            for name, current in self.references.items()
            if previous.get(name) != current
        }

    def code_of(self, record: CommitRecord, day: date) -> str:
        """The code of all tables that a day of a commit counts as made by.

        That of the commit, unless a person has accepted the day as made by other code since.
        """
        latest = self.latest.get(day)
        if latest and latest.details.kind == ACCEPTED_CODE and latest.version > record.version:
            return latest.code_id
        return record.for_day(day).code_id

    @property
    def all_commits(self) -> list[CommitRecord | ExternalCommit]:
        """Ours and those of others, in ascending order of their versions."""
        commits: list[CommitRecord | ExternalCommit] = [*self.records, *self.external_commits]
        return sorted(commits, key=lambda commit: commit.version)

    @cached_property
    def changed_days(self) -> Mapping[int, frozenset[date]]:
        """By version of our commits, the days that have held something else since."""
        contents: dict[date, str] = {}
        others: dict[date, int] = {}
        changes = {}
        cut = self._last_missing_version
        for commit in self.all_commits:
            if commit.version > cut >= 0:
                contents.clear()  # whatever it was, it may have become something else
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
        """The last version that made a day hold something else; -1 if there is none."""
        ours = [version for version, days in self.changed_days.items() if days]
        return max([*ours, *(other.version for other in self.external_commits)], default=-1)


Ledgers = Mapping[str, Ledger]
