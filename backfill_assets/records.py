"""What the tables' commits say of themselves: the ledger that later decisions rest on.

Reading only, from the transaction logs and without a JVM; how their files are read is known to
`commit_files`. What is written there is decided by `io_manager` and by the assets; what follows
from it by `reprocessing`.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from dagster_deltalake import DeltaTableResource
from dagster_deltalake.config import AzureConfig, GcsConfig, LocalConfig, S3Config
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from backfill_assets.audit import Book, Finding, Measured, Severity, Verdict
from backfill_assets.commit_files import CommitFiles
from backfill_assets.partitions import Window, windows
from backfill_assets.schemas import TABLES, Table
from backfill_assets.settings import Settings


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


class Record(msgspec.Struct, frozen=True, gc=False):
    """What one commit of ours says of itself.

    Attributes:
        version: the table's version that it made.
        run_id: the Dagster run.
        backfill_id: the Dagster backfill that the run belongs to, if any.
        launched_by: `schedule <name>`, `sensor <name>`, or `person`.
        code_version: of the code that computed it.
        config_digest: of the settings that decide what is in the tables.
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
        failed: days that its run could not publish, each with the reason.
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
    failed: Mapping[date, str] = msgspec.field(default_factory=dict)

    @property
    def wrote(self) -> frozenset[date]:
        """The days whose files it wrote; where nobody recorded which, all that it speaks of."""
        return frozenset(self.days) if self.written is None else self.written

    def vouches(self, day: date) -> int:
        """The version as of which the day is what the record says."""
        if self.written is None or day in self.written:
            return self.version
        return -1 if self.since is None else self.since

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
    """

    version: int
    operation: str
    days: frozenset[date]
    at: datetime | None = field(default=None, compare=False)


class Stored(NamedTuple):
    """The data files of a day: how many, and their bytes."""

    files: int
    size: int


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
    """

    table: Table
    version: int | None = None
    records: Sequence[Record] = ()
    foreign: Sequence[Foreign] = ()
    measured: Mapping[date, Measured] = field(default_factory=dict)
    stored: Mapping[date, Stored] = field(default_factory=dict)

    @property
    def rows(self) -> dict[date, int]:
        """Rows by day."""
        return {day: measured.rows for day, measured in self.measured.items()}

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

    @cached_property
    def _foreign(self) -> dict[date, int]:
        """The last version of each day's files that is not ours."""
        return {day: other.version for other in self.foreign for day in other.days}

    def stands(self, day: date) -> Published | None:
        """The day as it was last published; none if never, or if others have changed it since."""
        record = self.latest.get(day)
        if record is None or self._foreign.get(day, -1) > record.vouches(day):
            return None
        return record.days[day]

    def content(self, day: date) -> str:
        """What a day holds, as text: days with equal texts have equal rows."""
        published = self.stands(day)
        if published is not None:
            return published.digest
        return f"version {self._foreign[day]}" if day in self._foreign else "nothing"

    @property
    def commits(self) -> list[Record | Foreign]:
        """Ours and those of others, in ascending order of their versions."""
        found: list[Record | Foreign] = [*self.records, *self.foreign]
        return sorted(found, key=lambda commit: commit.version)

    @cached_property
    def changed(self) -> Mapping[int, frozenset[date]]:
        """By version of our commits, the days that have held something else since."""
        held: dict[date, str] = {}
        found = {}
        for commit in self.commits:
            if isinstance(commit, Foreign):
                held |= dict.fromkeys(commit.days, f"version {commit.version}")
            else:
                new = {day: published.digest for day, published in commit.days.items()}
                new |= dict.fromkeys(commit.withdrawn, "nothing")
                found[commit.version] = frozenset(d for d in new if held.get(d) != new[d])
                held |= new
        return found


Ledgers = Mapping[str, Ledger]


def published(verdict: Verdict, made_of: str, numbers: Mapping[str, Any]) -> Published:
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


#: What was last read of each table in this process, with the mark of the last commit then.
_known: dict[str, tuple[Ledger, str]] = {}


def read_ledger(url: str, table: Table) -> Ledger:
    """The ledger of a table as of now."""
    commits = CommitFiles(url, partial(_entry, table), _form(table))
    known, mark = _known.get(url, (Ledger(table), ""))
    at = known.version or 0
    if known.table is not table or not commits.is_marked(at, mark):
        known = Ledger(table)
    elif commits.text(at + 1) is None:
        return known
    while (log := load_log(url)) is not None:
        lines = commits.lines(known.version, log.version())
        if commits.text(log.version() + 1) is None:
            with _no_collection():
                ledger = _continued(known, lines, log)
            _known[url] = ledger, commits.mark(log.version())
            return ledger
        # Somebody committed in between.
    return Ledger(table)


def read_ledgers(settings: Settings) -> Ledgers:
    """The ledgers of all tables as of now, inputs first."""
    # Those that are built last are read first: an input may be newer than what was looked at
    # before, which the next look mends, but not older than what was built from it.
    tables = reversed(list(TABLES.items()))
    found = {name: read_ledger(settings.table(name), table) for name, table in tables}
    return {name: found[name] for name in TABLES}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without looking for garbage: ten thousand commits make much of which none is any."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _continued(known: Ledger, lines: Iterable[bytes], log: DeltaTable) -> Ledger:
    """A ledger with the commits that came since."""
    records, foreign = list(known.records), list(known.foreign)
    for entry in map(_read, lines):
        if entry.said:
            records.append(_record(entry, entry.said))
        elif records:  # what came before our first one was the creation
            days = frozenset(map(date.fromisoformat, entry.days))
            foreign.append(Foreign(entry.version, entry.operation, days, _made_at(entry)))
    return Ledger(known.table, log.version(), records, foreign, *_by_day(log, known.table))


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
    not_published: dict[date, Any] = msgspec.field(default_factory=dict)


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is told of a commit: what it says of itself, or the days that another writer changed."""

    version: int
    operation: str
    timestamp: int | None = None
    said: _Said | None = None
    days: list[str] = msgspec.field(default_factory=list)


#: Ten thousand empty sets are ten thousand objects to look through for garbage.
_NO_DAYS: frozenset[date] = frozenset()
_DECODER = msgspec.json.Decoder(_Entry)


def _read(line: bytes) -> _Entry:
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        # JSON as Python writes it has more: NaN, and halves of characters in what a person typed.
        return msgspec.convert(json.loads(line), _Entry)


def _form(table: Table) -> str:
    """Names what `_entry` tells: its number goes up when that changes."""
    return " ".join(["2", table.partition, *_Said.__struct_fields__, *Published.__struct_fields__])


def _entry(table: Table, version: int, text: bytes) -> bytes | None:
    """What is told of a commit, as a line of text; none if it changed no row, as OPTIMIZE does."""
    lines = text.splitlines()
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
    info: Mapping[str, Any] = next(filter(None, infos), {})
    said = _ours(info.get("userMetadata"))
    days: set[str] = set()
    if said is None:
        files = [
            action[kind]
            for action in map(json.loads, lines)
            for kind in ("add", "remove")
            if kind in action and action[kind].get("dataChange", True)
        ]
        if not files:
            return None
        values = {(file.get("partitionValues") or {}).get(table.partition) for file in files}
        days = set(filter(None, values))
    at = info.get("timestamp")
    at = at if isinstance(at, int) else None
    entry = _Entry(version, str(info.get("operation")), at, said, sorted(days))
    return json.dumps(msgspec.to_builtins(entry), separators=(",", ":")).encode()


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
        failed={day: str(why) for day, why in said.not_published.items()},
    )


def _days(ranges: list[str]) -> frozenset[date]:
    return frozenset(unpacked(ranges)) if ranges else _NO_DAYS


def _made_at(entry: _Entry) -> datetime | None:
    if entry.timestamp is None:
        return None
    return datetime.fromtimestamp(entry.timestamp / 1000, timezone.utc)


def packed(days: Iterable[date]) -> list[str]:
    """Days as the fewest ranges, for a record."""
    return [str(window) for window in windows(days)]


def unpacked(ranges: Collection[str]) -> list[date]:
    """The days of `packed`."""
    found: list[date] = []
    for text in ranges:
        # Most are one day, and a long history has many.
        found += Window.parse(text) if "..." in text else [date.fromisoformat(text)]
    return found


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


def _by_day(log: DeltaTable, table: Table) -> tuple[Mapping[date, Measured], Mapping[date, Stored]]:
    """What the log says of each day's files: rows and nulls by their statistics; and themselves.

    No row is read. Digest and totals are not in the log and are left empty.
    """
    actions = pa.table(log.get_add_actions(flatten=True))
    day = f"partition.{table.partition}"
    if not actions.num_rows:
        return {}, {}
    nulls = [f"null_count.{name}" for name in table.columns]
    counts = [n for n in ("num_records", "size_bytes", *nulls) if n in actions.column_names]
    sums = actions.group_by(day).aggregate([("path", "count"), *((n, "sum") for n in counts)])

    def measured(row: Mapping[str, Any]) -> Measured:
        nulls = {name: row.get(f"null_count.{name}_sum") or 0 for name in table.columns}
        return Measured(row["num_records_sum"] or 0, nulls, 0, {}, "")

    def stored(row: Mapping[str, Any]) -> Stored:
        return Stored(row["path_count"], row["size_bytes_sum"])

    at = {day: n for n, day in enumerate(sums.column(day).to_pylist())}
    return _Rows(at, sums, measured), _Rows(at, sums, stored)


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
