"""What the tables' commits say of themselves: the ledger that later decisions rest on.

Reading only, from the transaction logs and without a JVM; how their files are read is known to
`commit_files`. What is written there is decided by `io_manager` and by the assets; what follows
from it by `backlog` and `finality`.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as T
from dagster_deltalake import DeltaTableResource
from dagster_deltalake.config import AzureConfig, GcsConfig, LocalConfig, S3Config
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from backfill_assets.audit import Book, Finding, Measured, Severity, Verdict
from backfill_assets.catalog import tables_of
from backfill_assets.commit_files import CommitFiles, Told
from backfill_assets.partitions import Window, unpacked
from backfill_assets.settings import Settings
from backfill_assets.tables import Table


class Published(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One day of a commit, as the audit found it: all that Dagster is told of it.

    Attributes:
        rows: number of rows.
        digest: of the rows.
        verdict: the worst that any check found.
        totals: sums by column, as text.
        made_of: digest of what the inputs held, as `recipes` says it; empty if nobody recorded it.
        nulls: nulls by column, where there are any.
        entries: the counts behind the expectation, by name; sums of money as text.
        findings: what was not in order, as severity and text by check.
        numbers: further figures for the UI.
        made_under: digest of the settings that it was made under, where these are not those of the
            commit: an undo puts rows back as they were.
    """

    rows: int
    digest: str
    verdict: str
    totals: Mapping[str, str] = msgspec.field(default_factory=dict)
    made_of: str = ""
    nulls: Mapping[str, int] = msgspec.field(default_factory=dict)
    entries: Mapping[str, int | str] = msgspec.field(default_factory=dict)
    findings: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    numbers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    made_under: str = ""


class Record(msgspec.Struct, frozen=True, gc=False):
    """What one commit of ours says of itself.

    Attributes:
        version: the table's version that it made.
        run_id: the Dagster run.
        backfill_id: the Dagster backfill that the run belongs to, if any.
        launched_by: `schedule <name>`, `sensor <name>`, or `person`.
        code_version: of the code that computed it, as far as that makes the table.
        config_digest: of the settings that decide what is in the table.
        inputs: the version of each table that it was computed from.
        days: what was published, by day.
        final: those of the days that will not change any more unless a person rebuilds them.
        said: what the asset itself added, by name.
        commit_id: tells this commit from every other.
        since: the version that it was compared with; none if there was no table.
        written: those of the days whose files it wrote; the others had these rows already.
        at: when it was made, in UTC.
        reason: why, as whoever launched it put it.
        git_commit: of the code that computed it; empty if unknown.
        git_dirty: whether that code differed from the commit; none if unknown.
        withdrawn: days that it took back: they count as never published.
        because: why its days were computed: the days, as ranges, by reason; see `why`.
        merged: whether it changed rows of the days that it wrote, rather than replace all of them.
        failed: days that its run could not publish, each with the reason.
        release: version of the code of all tables together; empty if nobody recorded it.
    """

    version: int
    run_id: str
    backfill_id: str | None
    launched_by: str
    code_version: str
    config_digest: str
    inputs: Mapping[str, int]
    days: Mapping[date, Published]
    final: frozenset[date]
    said: Mapping[str, Any]
    commit_id: str = ""
    since: int | None = None
    written: frozenset[date] | None = None
    at: datetime | None = None
    reason: str = ""
    git_commit: str = ""
    git_dirty: bool | None = None
    withdrawn: frozenset[date] = frozenset()
    because: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    merged: bool = False
    failed: Mapping[date, str] = msgspec.field(default_factory=dict)
    release: str = ""

    def why(self, day: date) -> str:
        """Why a day was computed; empty if nobody recorded it."""
        for reason, ranges in self.because.items():
            if any(day in Window.parse(text) for text in ranges):
                return reason
        return ""

    @property
    def wrote(self) -> frozenset[date]:
        """The days whose files it wrote; where nobody recorded which, all that it speaks of."""
        return frozenset(self.days) if self.written is None else self.written

    def vouches(self, day: date) -> int:
        """The version as of which the day is what the record says.

        Overwriting a day replaces whatever was there until then. A merge leaves rows, of which only
        those of the version that it was compared with were looked at.
        """
        if self.written is None or (day in self.written and not self.merged):
            return self.version
        return -1 if self.since is None else self.since

    @property
    def code(self) -> str:
        """The version of the code of all tables together, as far as it is on record."""
        return self.release or self.code_version

    def made_under(self, day: date) -> str:
        """Digest of the settings that a day of it was made under."""
        return self.days[day].made_under or self.config_digest

    def days_said(self, name: str) -> frozenset[date]:
        """Days that the asset recorded under a name."""
        return frozenset(unpacked(self.said.get(name, ())))

    @property
    def by_person(self) -> bool:
        """Whether a person launched the run, rather than a schedule or a sensor."""
        return self.launched_by == PERSON


PERSON = "person"


def launched_by(tags: Mapping[str, str]) -> str:
    """Who launched a run, from its tags.

    One that a person launches again has the tags of the first, unlike one that Dagster retries.
    """
    if "dagster/parent_run_id" in tags and "dagster/retry_number" not in tags:
        return PERSON
    for kind in ("schedule", "sensor"):
        if name := tags.get(f"dagster/{kind}_name"):
            return f"{kind} {name}"
    return PERSON


@dataclass(frozen=True)
class Foreign:
    """A commit that is not ours.

    Attributes:
        version: the table's version that it made.
        operation: what it was, in Delta's words.
        days: the days whose files it changed.
        at: when it was made, in UTC.
        anywhere: whether it took files away of which it does not say whose days they were.
    """

    version: int
    operation: str
    days: frozenset[date]
    at: datetime | None = field(default=None, compare=False)
    anywhere: bool = False


class Stored(NamedTuple):
    """The data files of a day: how many, their bytes, and when the newest was made."""

    files: int
    size: int
    newest: int = 0


@dataclass(frozen=True)
class Metadata:
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
        foreign: commits of others that may have changed rows, in ascending order.
        measured: rows and nulls by day as the data files have them, whoever wrote them.
        stored: the data files by day.
        rows: rows by day as the data files' statistics count them; days with a file that has no
            statistics are left out. None if nobody has looked at the files.
        transaction: the number of our last commit, as Delta keeps it; none if there was none.
        lost: versions of which nothing is known any more: the log was cut.
        metadata: the table's own; none while there is no table.
        added: columns that the table did not have from the beginning, with the version since when.
    """

    table: Table
    version: int | None = None
    records: Sequence[Record] = ()
    foreign: Sequence[Foreign] = ()
    measured: Mapping[date, Measured] = field(default_factory=dict)
    stored: Mapping[date, Stored] = field(default_factory=dict)
    rows: Mapping[date, int] | None = None
    transaction: int | None = None
    lost: Sequence[int] = ()
    metadata: Metadata | None = None
    added: Mapping[str, int] = field(default_factory=dict)

    @property
    def uncertain(self) -> frozenset[date]:
        """The days that may come to hold anything; none of what is published."""
        return frozenset()

    @cached_property
    def latest(self) -> dict[date, Record]:
        """The record that speaks of each published day, empty ones included."""
        found: dict[date, Record] = {}
        for record in self.records:
            found |= dict.fromkeys(record.days, record)
            for day in record.withdrawn:
                found.pop(day, None)
        return found

    @cached_property
    def withdrawals(self) -> Mapping[date, Record]:
        """The days that were taken back and that nobody has published since, each with by which."""
        taken = {day: record for record in self.records for day in record.withdrawn}
        return {day: record for day, record in taken.items() if day not in self.latest}

    @cached_property
    def published(self) -> frozenset[date]:
        """The days that have been published, empty ones included."""
        return frozenset(self.latest).union(self.measured)

    @cached_property
    def final(self) -> frozenset[date]:
        """The days whose latest record calls them final."""
        return frozenset(day for day, record in self.latest.items() if day in record.final)

    def under_other_settings(self, config_digest: str) -> frozenset[date]:
        """The published days that were made under other settings than these."""
        return frozenset(
            day for day, record in self.latest.items() if record.made_under(day) != config_digest
        )

    @cached_property
    def unrecorded(self) -> frozenset[date]:
        """Days of which no commit tells any more who published them, as the log was cut."""
        if not self.lost:
            return frozenset()
        return frozenset(
            day
            for day in self.published
            if self._foreign.get(day, -1) < self._cut
            and (day not in self.latest or self.latest[day].vouches(day) < self._cut)
        )

    @cached_property
    def _foreign(self) -> dict[date, int]:
        """The last version of each day's files that is not ours."""
        return {day: other.version for other in self.foreign for day in other.days}

    @cached_property
    def _anywhere(self) -> int:
        """The last version that took files of unknown days away; -1 if none did."""
        return max((other.version for other in self.foreign if other.anywhere), default=-1)

    @cached_property
    def _cut(self) -> int:
        """The last version of which nothing is known; -1 if all is."""
        return max(self.lost, default=-1)

    def stands(self, day: date) -> Published | None:
        """The day as it was last published; none if never, or if others have changed it since."""
        record = self.latest.get(day)
        if record is None:
            return None
        since = record.vouches(day)
        if self._foreign.get(day, -1) > since or self._cut > since:
            return None
        published = record.days[day]
        if self.rows is not None:
            if day in self.measured and day not in self.rows:
                # Nobody has counted them: this day's files may be those that were taken away.
                return None if self._anywhere > since else published
            # Others may have changed a day without a word of it in the log.
            if self.rows.get(day, 0) != published.rows:
                return None
        return published

    def content(self, day: date) -> str:
        """What a day holds, as text: days with equal texts have equal rows."""
        published = self.stands(day)
        if published is not None:
            return published.digest
        record = self.latest.get(day)
        counted = self.rows is not None
        if record is None and day not in self.measured and (counted or day not in self._foreign):
            return "nothing"
        last = max(self._foreign.get(day, -1), self._anywhere)
        if last > max(self._cut, record.vouches(day) if record else -1):
            ours = record.version if record and day in record.wrote else -1
            return f"version {max(last, ours)}"
        rows = (self.rows or {}).get(day, 0 if day not in self.measured else "unknown")
        files = self.stored.get(day, Stored(0, 0))
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
            foreign=[other for other in self.foreign if other.version <= version],
            lost=[lost for lost in self.lost if lost <= version],
            measured={},
            stored={},
            rows=None,
        )

    def lacked(self, record: Record) -> frozenset[str]:
        """The columns that the table has got since a commit: its figures do not speak of them."""
        return frozenset(name for name, since in self.added.items() if since > record.version)

    @property
    def commits(self) -> list[Record | Foreign]:
        """Ours and those of others, in ascending order of their versions."""
        found: list[Record | Foreign] = [*self.records, *self.foreign]
        return sorted(found, key=lambda commit: commit.version)

    @cached_property
    def changed(self) -> Mapping[int, frozenset[date]]:
        """By version of our commits, the days that have held something else since."""
        held: dict[date, str] = {}
        others: dict[date, int] = {}
        found = {}
        cut = self._cut
        for commit in self.commits:
            if commit.version > cut >= 0:
                held.clear()  # whatever it was, it may have become something else
                cut = -1
            if isinstance(commit, Foreign):
                if commit.anywhere:
                    held.clear()
                held |= dict.fromkeys(commit.days, f"version {commit.version}")
                others |= dict.fromkeys(commit.days, commit.version)
            else:
                new = {day: published.digest for day, published in commit.days.items()}
                for day in new.keys() & others.keys():
                    if others[day] > commit.vouches(day):
                        written = day in commit.wrote
                        new[day] = f"version {commit.version if written else others[day]}"
                new |= dict.fromkeys(commit.withdrawn, "nothing")
                found[commit.version] = frozenset(d for d in new if held.get(d) != new[d])
                held |= new
        return found

    @cached_property
    def moved(self) -> int:
        """The last version that made a day hold something else; -1 if there is none."""
        ours = [version for version, days in self.changed.items() if days]
        return max([*ours, *(other.version for other in self.foreign)], default=-1)


Ledgers = Mapping[str, Ledger]


def published(
    verdict: Verdict, made_of: str, numbers: Mapping[str, Any], made_under: str = ""
) -> Published:
    """What a commit is to say of a day that passed."""
    measured = verdict.measured
    return Published(
        rows=measured.rows,
        digest=measured.digest,
        verdict=verdict.severity.value,
        totals={name: str(total) for name, total in measured.totals.items()},
        made_of=made_of,
        nulls={name: count for name, count in measured.nulls.items() if count},
        entries={
            name: count if isinstance(count, int) else str(count)
            for name, count in verdict.book.entries.items()
        },
        findings={
            finding.check: [finding.severity.value, finding.text]
            for finding in verdict.findings
            if finding.severity is not Severity.OK
        },
        numbers=numbers,
        made_under=made_under,
    )


def verdict_of(table: Table, day: date, said: Published) -> Verdict:
    """The verdict on a day, from what its commit says."""
    entries = {
        name: count if isinstance(count, int) else Decimal(count)
        for name, count in said.entries.items()
    }
    totals = {
        name: type(zero)(said.totals[name]) if name in said.totals else zero
        for name, zero in table.zeros.items()
    }
    nulls = {name: said.nulls.get(name, 0) for name in table.columns}
    fine = [Severity.OK.value, "in order when it was published"]
    findings = [
        Finding(check, Severity(severity), text)
        for check in table.checks
        for severity, text in [said.findings.get(check, fine)]
    ]
    return Verdict(
        day,
        Measured(said.rows, nulls, 0, totals, said.digest),
        Book(entries=entries, notices=dict.fromkeys(table.notices, (Severity.OK, ""))),
        findings,
    )


#: Delta knows the number of the last commit of each writing application: this is ours.
APPLICATION = "backfill_assets"


class _Known(NamedTuple):
    """What was last read of a table in this process.

    Attributes:
        ledger: as of then.
        mark: that of its last commit.
        oldest: the first version whose commit was there.
    """

    ledger: Ledger
    mark: str
    oldest: int

    def holds(self, table: Table, commits: CommitFiles) -> bool:
        """Whether the log still has what was read of it."""
        ledger = self.ledger
        return (
            ledger.table is table
            and commits.is_marked(ledger.version or 0, self.mark)
            # Who has not read the log before knows no more than what is there, and so shall we.
            and commits.has(self.oldest)
            and not (ledger.lost and commits.there().intersection(ledger.lost))
        )


_known: dict[str, _Known] = {}


def read_ledger(url: str, table: Table) -> Ledger:
    """The ledger of a table as of now."""
    commits = CommitFiles(url, partial(_entry, table), _version_of, _form(table))
    known = _known.get(url)
    if known is not None and not known.holds(table, commits):
        known = None
    ledger = known.ledger if known else Ledger(table)
    if known and commits.text((ledger.version or 0) + 1) is None:
        return ledger
    while (log := load_log(url)) is not None:
        told = commits.told(ledger.version, log.version(), str(log.metadata().id))
        if commits.text(log.version() + 1) is None:
            with no_collection():
                ledger = _continued(ledger, told, log)
            oldest = known.oldest if known else commits.oldest(log.version())
            _known[url] = _Known(ledger, commits.mark(log.version()), oldest)
            return ledger
        # Somebody committed in between.
    return Ledger(table)


def read_ledgers(settings: Settings) -> Ledgers:
    """The ledgers of all tables as of now, inputs first."""
    # Those that are built last are read first: an input may be newer than what was looked at
    # before, which the next look mends, but not older than what was built from it.
    tables = tables_of(settings)
    found = {
        name: read_ledger(settings.table(name), table)
        for name, table in reversed([*tables.items()])
    }
    return {name: found[name] for name in tables}


@contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection, as where much is made of which nothing is garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _continued(known: Ledger, told: Told, log: DeltaTable) -> Ledger:
    """A ledger with the commits that came since."""
    lost = [*known.lost, *told.lost]
    metadata = metadata_of(log)
    if metadata.partitioned_by != (known.table.partition,) or not any(
        column.name == known.table.partition and column.dataType == T.DateType()
        for column in metadata.struct
    ):
        # Its days are not those of the table that is meant.
        return Ledger(known.table, log.version(), lost=lost, metadata=metadata)
    records, foreign, added = list(known.records), list(known.foreign), dict(known.added)
    columns = set(known.metadata.struct.names) if known.metadata else set()
    for entry in map(_read, told.lines):
        if entry.columns:
            new = set(entry.columns) - columns if columns else ()
            added |= dict.fromkeys(new, entry.version)
            columns = set(entry.columns)
        if entry.said:
            records.append(_record(entry, entry.said))
        # What came before our first one was the creation.
        elif (entry.days or entry.anywhere) and (records or lost):
            days = frozenset(map(date.fromisoformat, entry.days))
            at = _made_at(entry)
            foreign.append(Foreign(entry.version, entry.operation, days, at, entry.anywhere))
    return Ledger(
        known.table,
        log.version(),
        records,
        foreign,
        *_by_day(log, known.table),
        transaction=log.transaction_version(APPLICATION),
        lost=lost,
        metadata=metadata,
        added=added,
    )


def metadata_of(log: DeltaTable) -> Metadata:
    """What a log says of the table itself."""
    said = log.metadata()
    struct = T.StructType.fromJson(json.loads(log.schema().to_json()))
    return Metadata(struct, tuple(said.partition_columns), dict(said.configuration))


class _Said(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a commit says of itself, as it is written; see `Record`."""

    run_id: str
    code_version: str
    config_digest: str
    audit: dict[date, Published]
    backfill_id: str | None = None
    launched_by: str = PERSON
    inputs: dict[str, int] = msgspec.field(default_factory=dict)
    since: int | msgspec.UnsetType | None = msgspec.UNSET
    days: list[str] = msgspec.field(default_factory=list)
    final: list[str] = msgspec.field(default_factory=list)
    said: dict[str, Any] = msgspec.field(default_factory=dict)
    commit_id: str = ""
    reason: str | None = None
    git_commit: str = ""
    git_dirty: bool | None = None
    withdrawn: list[str] = msgspec.field(default_factory=list)
    because: dict[str, list[str]] = msgspec.field(default_factory=dict)
    not_published: dict[date, Any] = msgspec.field(default_factory=dict)
    release: str = ""


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is told of a commit.

    Attributes:
        version: the table's version that it made.
        operation: what it was, in Delta's words.
        timestamp: when it was made, in milliseconds.
        said: what it says of itself, if it is ours.
        days: the days that another writer changed.
        anywhere: whether that writer took files of unknown days away.
        columns: those of the table, if it changed them.
    """

    version: int
    operation: str
    timestamp: int | None = None
    said: _Said | None = None
    days: list[str] = msgspec.field(default_factory=list)
    anywhere: bool = False
    columns: list[str] = msgspec.field(default_factory=list)


#: Ten thousand empty sets are ten thousand objects to look through for garbage.
_NO_DAYS: frozenset[date] = frozenset()
_DECODER = msgspec.json.Decoder(_Entry)


def _read(line: bytes) -> _Entry:
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        # JSON as Python writes it has more: NaN, and halves of characters in what a person typed.
        return msgspec.convert(json.loads(line), _Entry)


def _version_of(line: bytes) -> int | None:
    """The version that a line tells of; none if other code wrote it in a way of its own."""
    try:
        return _read(line).version
    except (msgspec.ValidationError, ValueError):
        return None


def _form(table: Table) -> str:
    """Names what `_entry` tells: its number goes up when that changes."""
    return " ".join(["3", table.partition, *_Said.__struct_fields__, *Published.__struct_fields__])


def _entry(table: Table, version: int, text: bytes) -> bytes | None:
    """What is told of a commit, as a line of text; none if it changed no row, as OPTIMIZE does."""
    lines = text.splitlines()
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
    info: Mapping[str, Any] = next(filter(None, infos), {})
    said = _ours(info.get("userMetadata"))
    days: list[str | None] = []
    if said is None:
        days = [
            _day_of(action[kind], table.partition)
            for action in map(json.loads, lines)
            for kind in ("add", "remove")
            if kind in action and action[kind].get("dataChange", True)
        ]
    columns = _columns(lines)
    if said is None and not days and not columns:
        return None
    at = info.get("timestamp")
    entry = _Entry(
        version,
        str(info.get("operation")),
        at if isinstance(at, int) else None,
        said,
        sorted(set(filter(None, days))),
        None in days,
        columns,
    )
    return json.dumps(msgspec.to_builtins(entry), separators=(",", ":")).encode()


def _day_of(file: Mapping[str, Any], partition: str) -> str | None:
    """The day of a file that was added or removed; empty for rows without one, none if unknown.

    Delta asks of a removal no more than the path, in which the day is by custom.
    """
    values = file.get("partitionValues") or {}
    if partition in values:
        return values[partition] or ""
    found = re.search(rf"(?:^|/){re.escape(partition)}=(\d{{4}}-\d\d-\d\d)/", file["path"])
    return found[1] if found else None


def _columns(lines: Iterable[bytes]) -> list[str]:
    """The table's columns where a commit says what they are from now on."""
    for line in lines:
        if b'"metaData"' in line and (metadata := json.loads(line).get("metaData")):
            return [column["name"] for column in json.loads(metadata["schemaString"])["fields"]]
    return []


def _ours(metadata: Any) -> _Said | None:
    """What a commit says of itself; none if it is somebody else's, in any form of their own."""
    try:
        said = msgspec.convert(json.loads(metadata), _Said)
        _record(_Entry(0, ""), said)
    except (ValueError, TypeError):
        return None
    return said


def _record(entry: _Entry, said: _Said) -> Record:
    return Record(
        version=entry.version,
        run_id=said.run_id,
        backfill_id=said.backfill_id,
        launched_by=said.launched_by,
        code_version=said.code_version,
        config_digest=said.config_digest,
        inputs=said.inputs,
        days=said.audit,
        final=_days(said.final),
        said=said.said,
        commit_id=said.commit_id,
        since=None if said.since is msgspec.UNSET else said.since,
        written=None if said.since is msgspec.UNSET else _days(said.days),
        at=_made_at(entry),
        reason=said.reason or "",
        git_commit=said.git_commit,
        git_dirty=said.git_dirty,
        withdrawn=_days(said.withdrawn),
        because=said.because,
        merged=entry.operation == "MERGE",
        failed={day: str(why) for day, why in said.not_published.items()},
        release=said.release,
    )


def _days(ranges: list[str]) -> frozenset[date]:
    return frozenset(unpacked(ranges)) if ranges else _NO_DAYS


def _made_at(entry: _Entry) -> datetime | None:
    if entry.timestamp is None:
        return None
    return datetime.fromtimestamp(entry.timestamp / 1000, timezone.utc)


def load_log(url: str) -> DeltaTable | None:
    """A table's transaction log; none while there is no table."""
    try:
        return delta_log(url).load()
    except TableNotFoundError:
        return None


def delta_log(url: str, version: int | None = None) -> DeltaTableResource:
    """dagster-deltalake's handle on a table's log, with credentials from the environment."""
    scheme = url.partition("://")[0] if "://" in url else ""
    options: Any = LocalConfig()
    if scheme in ("s3", "s3a"):
        options = S3Config()
    elif scheme in ("abfs", "abfss", "az"):
        options = AzureConfig(account_name="")
    elif scheme == "gs":
        options = GcsConfig()
    return DeltaTableResource(url=url, storage_options=options, version=version)


def _by_day(
    log: DeltaTable, table: Table
) -> tuple[Mapping[date, Measured], Mapping[date, Stored], Mapping[date, int] | None]:
    """What the log says of each day's files: their statistics; themselves; and rows alone.

    No row is read. Digest and totals are not in the log and are left empty.
    """
    actions = pa.table(log.get_add_actions(flatten=True))
    day = f"partition.{table.partition}"
    if not actions.num_rows:
        return {}, {}, {}
    rows = "num_records"
    if rows not in actions.column_names:
        actions = actions.append_column(rows, pa.nulls(actions.num_rows, pa.int64()))
    for name in table.nullable:
        # A file from before the column was added has a null in each row, and says nothing of it.
        count = f"null_count.{name}"
        if count not in actions.column_names:
            actions = actions.append_column(count, actions[rows])
        else:
            filled = pc.coalesce(actions[count], actions[rows])
            actions = actions.set_column(actions.column_names.index(count), count, filled)
    nulls = [f"null_count.{name}" for name in table.columns]
    counts = [n for n in ("size_bytes", *nulls) if n in actions.column_names]
    sums = actions.group_by(day).aggregate(
        [
            ("path", "count"),
            (rows, "sum"),
            (rows, "count"),
            ("modification_time", "max"),
            *((n, "sum") for n in counts),
        ]
    )

    def measured(row: Mapping[str, Any]) -> Measured:
        nulls = {name: row.get(f"null_count.{name}_sum") or 0 for name in table.columns}
        return Measured(row["num_records_sum"] or 0, nulls, 0, {}, "")

    def stored(row: Mapping[str, Any]) -> Stored:
        return Stored(row["path_count"], row["size_bytes_sum"], row["modification_time_max"])

    at = {day: n for n, day in enumerate(sums.column(day).to_pylist())}
    counted = None
    # A deletion vector takes rows away that the statistics of its file go on counting.
    if "deletionVectors" not in (log.protocol().reader_features or ()):
        whole = sums.filter(pc.equal(sums["path_count"], sums["num_records_count"]))
        pairs = (whole.column(name).to_pylist() for name in (day, "num_records_sum"))
        counted = dict(zip(*pairs, strict=True))
    return _Rows(at, sums, measured), _Rows(at, sums, stored), counted


_Value = TypeVar("_Value")


class _Rows(Mapping[date, _Value]):
    """By day, what is made of a row of a table when somebody asks for it."""

    def __init__(
        self, at: Mapping[date, int], rows: pa.Table, make: Callable[[Mapping[str, Any]], _Value]
    ) -> None:
        self._at, self._rows, self._make = at, rows, make

    def __getitem__(self, day: date) -> _Value:
        (row,) = self._rows.slice(self._at[day], 1).to_pylist()
        return self._make(row)

    def __contains__(self, day: object) -> bool:
        return day in self._at

    def __iter__(self) -> Iterator[date]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def __repr__(self) -> str:
        return repr(dict(self))
