"""What the tables' commits say of themselves: the ledger that later decisions rest on.

Reading only, from the transaction logs and without a JVM; how their files are read is known to
`commit_files`. What is written there is decided by `io_manager` and by the assets; what follows
from it by `reprocessing`.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from dagster_deltalake import DeltaTableResource
from dagster_deltalake.config import AzureConfig, GcsConfig, LocalConfig, S3Config
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from backfill_assets.audit import Book, Finding, Measured, Severity, Verdict
from backfill_assets.commit_files import CommitFiles, Entry
from backfill_assets.partitions import Window, windows
from backfill_assets.schemas import TABLES, Table
from backfill_assets.settings import Settings


@dataclass(frozen=True)
class Published:
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
    totals: Mapping[str, str] = field(default_factory=dict)
    made_of: str = ""
    nulls: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, int | str] = field(default_factory=dict)
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
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
    at: datetime | None = field(default=None, compare=False)
    reason: str = ""
    git_commit: str = ""
    git_dirty: bool | None = None
    withdrawn: frozenset[date] = frozenset()

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


@dataclass(frozen=True)
class Ledger:
    """All that a table's log says.

    Attributes:
        table: the table.
        version: its latest version; none while there is no table.
        records: our commits in ascending order of their versions.
        foreign: commits of others that may have changed rows, in ascending order.
        measured: rows and nulls by day as the data files have them, whoever wrote them.
    """

    table: Table
    version: int | None = None
    records: Sequence[Record] = ()
    foreign: Sequence[Foreign] = ()
    measured: Mapping[date, Measured] = field(default_factory=dict)

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
        entries = commits.entries(known.version, log.version())
        if commits.text(log.version() + 1) is None:
            with _no_collection():
                ledger = _continued(known, entries, log)
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


def _continued(known: Ledger, entries: Iterable[Entry], log: DeltaTable) -> Ledger:
    """A ledger with the commits that came since."""
    records, foreign = list(known.records), list(known.foreign)
    for entry in entries:
        if "said" in entry:
            records.append(_record(entry))
        elif records:  # what came before our first one was the creation
            days = frozenset(map(date.fromisoformat, entry["days"]))
            foreign.append(Foreign(entry["version"], entry["operation"], days, _made_at(entry)))
    return Ledger(known.table, log.version(), records, foreign, measured_by_log(log, known.table))


def _form(table: Table) -> str:
    """Names what `_entry` tells: its number goes up when that changes."""
    return " ".join(["1", table.partition, *(part.name for part in fields(Published))])


def _entry(table: Table, version: int, text: bytes) -> Entry | None:
    """What is told of a commit: what it says of itself, or the days that another writer changed.

    None if it changed no row, as OPTIMIZE does not.
    """
    lines = text.splitlines()
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
    info: Entry = next(filter(None, infos), {})
    entry = {
        "version": version,
        "timestamp": info.get("timestamp"),
        "operation": str(info.get("operation")),
    }
    if ours := _ours(entry, info.get("userMetadata")):
        return ours
    files = [
        action[kind]
        for action in map(json.loads, lines)
        for kind in ("add", "remove")
        if kind in action and action[kind].get("dataChange", True)
    ]
    values = {(file.get("partitionValues") or {}).get(table.partition) for file in files}
    return {**entry, "days": sorted(filter(None, values))} if files else None


def _ours(entry: Entry, metadata: Any) -> Entry | None:
    """An entry with what its commit says of itself, the days as text, as `_Days` takes them.

    None if it is somebody else's, in whatever form of their own.
    """
    try:
        said = json.loads(metadata or "null")
        said["audit"] = {day: json.dumps(audit) for day, audit in said["audit"].items()}
        ours = {**entry, "said": said}
        dict(_record(ours).days)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return ours


class _Days(Mapping[date, Published]):
    """The days of a commit; each is text until somebody asks for it, as most are but counted."""

    def __init__(self, audit: Mapping[str, str]) -> None:
        self._days: dict[date, Published | str] = {
            date.fromisoformat(day): text for day, text in audit.items()
        }

    def __getitem__(self, day: date) -> Published:
        said = self._days[day]
        if isinstance(said, str):
            said = self._days[day] = Published(**json.loads(said))
        return said

    def __contains__(self, day: object) -> bool:
        return day in self._days

    def __iter__(self) -> Iterator[date]:
        return iter(self._days)

    def __len__(self) -> int:
        return len(self._days)

    def __repr__(self) -> str:
        return repr(dict(self))


def _record(entry: Entry) -> Record:
    """The record in an entry of ours."""
    said = entry["said"]
    return Record(
        version=entry["version"],
        run_id=said["run_id"],
        backfill_id=said.get("backfill_id"),
        launched_by=said.get("launched_by", PERSON),
        code_version=said["code_version"],
        config_digest=said["config_digest"],
        inputs=said.get("inputs", {}),
        days=_Days(said["audit"]),
        final=frozenset(unpacked(said.get("final", ()))),
        said=said.get("said", {}),
        commit_id=said.get("commit_id", ""),
        since=said.get("since"),
        written=frozenset(unpacked(said["days"])) if "since" in said else None,
        at=_made_at(entry),
        reason=said.get("reason") or "",
        git_commit=said.get("git_commit", ""),
        git_dirty=said.get("git_dirty"),
        withdrawn=frozenset(unpacked(said.get("withdrawn", ()))),
    )


def _made_at(entry: Entry) -> datetime | None:
    milliseconds = entry.get("timestamp")
    return milliseconds and datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


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


def data_files(
    url: str, table: Table, days: Iterable[date], version: int | None = None
) -> pa.Table:
    """The data files of days, from the log: their `day`, `path` and `size_bytes`."""
    log = delta_log(url, version).load()
    actions = pa.table(log.get_add_actions(flatten=True))
    partition = f"partition.{table.partition}"
    if not actions.num_rows:
        return pa.table({"day": [], "path": [], "size_bytes": []})
    wanted = pc.is_in(pc.field(partition), pa.array(sorted(days), pa.date32()))
    found = actions.filter(wanted).select([partition, "path", "size_bytes"])
    return found.rename_columns(["day", "path", "size_bytes"])


def measured_by_log(log: DeltaTable, table: Table) -> Mapping[date, Measured]:
    """Rows and nulls by day from the log's file statistics; no row is read.

    Digest and totals are not in the log and are left empty.
    """
    actions = pa.table(log.get_add_actions(flatten=True))
    day = f"partition.{table.partition}"
    if not actions.num_rows:
        return {}
    nulls = [f"null_count.{name}" for name in table.columns]
    counts = [name for name in ("num_records", *nulls) if name in actions.column_names]
    sums = actions.group_by(day).aggregate([(name, "sum") for name in counts])
    return _Counted(table, sums.column(day).to_pylist(), sums)


class _Counted(Mapping[date, Measured]):
    """Rows and nulls by day; each is put together when somebody asks for it."""

    def __init__(self, table: Table, days: Sequence[date], sums: pa.Table) -> None:
        self._table, self._sums = table, sums
        self._at = {day: n for n, day in enumerate(days)}

    def __getitem__(self, day: date) -> Measured:
        (row,) = self._sums.slice(self._at[day], 1).to_pylist()
        return Measured(
            row["num_records_sum"] or 0,
            {name: row.get(f"null_count.{name}_sum") or 0 for name in self._table.columns},
            0,
            {},
            "",
        )

    def __iter__(self) -> Iterator[date]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def __repr__(self) -> str:
        return repr(dict(self))
