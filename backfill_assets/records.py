"""What the tables' commits say of themselves: the ledger that later decisions rest on.

Reading only, from the transaction logs and without a JVM. What is written there is decided by
`io_manager` and by the assets; what follows from it by `reprocessing`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cached_property
from typing import Any

from dagster_deltalake import DeltaTableResource
from dagster_deltalake.config import AzureConfig, GcsConfig, LocalConfig, S3Config
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from backfill_assets.audit import Book, Finding, Measured, Severity, Verdict
from backfill_assets.partitions import Window, windows
from backfill_assets.schemas import Table
from backfill_assets.stores import open_store


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
        return {day: record for record in self.records for day in record.days}

    @cached_property
    def published(self) -> frozenset[date]:
        """The days that have been published, empty ones included."""
        return frozenset(self.latest) | self.measured.keys()

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


def read_ledger(url: str, table: Table) -> Ledger:
    """The ledger of a table as of now."""
    log = load_log(url)
    while log is not None:
        entries = log.history()
        now = load_log(url)
        if now is not None and now.version() == log.version():
            return _ledger(url, log, entries, table)
        # Somebody committed in between, and the entries are numbered from the version before.
        log = now
    return Ledger(table)


def _ledger(url: str, log: DeltaTable, entries: Sequence[Any], table: Table) -> Ledger:
    records: list[Record] = []
    foreign: list[Foreign] = []
    for entry in reversed(entries):
        record = _record(entry)
        if record is not None:
            records.append(record)
        elif records:  # what came before our first one was the creation
            changes, days = _changes(url, entry["version"], table)
            if changes:
                operation = str(entry.get("operation"))
                foreign.append(Foreign(entry["version"], operation, days, _made_at(entry)))
    return Ledger(table, log.version(), records, foreign, measured_by_log(log, table))


def _changes(url: str, version: int, table: Table) -> tuple[bool, frozenset[date]]:
    """Whether a commit changed rows (OPTIMIZE does not), and of which days."""
    filesystem, path = open_store(url)
    with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
        actions = [json.loads(line) for line in stream.read().splitlines()]
    files = [
        action[kind]
        for action in actions
        for kind in ("add", "remove")
        if kind in action and action[kind].get("dataChange", True)
    ]
    values = [(file.get("partitionValues") or {}).get(table.partition) for file in files]
    return bool(files), frozenset(date.fromisoformat(value) for value in values if value)


def _record(entry: Mapping[str, Any]) -> Record | None:
    """The record in a commit; none if it is somebody else's, in whatever form of their own."""
    try:
        said = json.loads(entry.get("userMetadata") or "null")
        days = {date.fromisoformat(day): Published(**audit) for day, audit in said["audit"].items()}
        return Record(
            version=entry["version"],
            run_id=said["run_id"],
            backfill_id=said.get("backfill_id"),
            launched_by=said.get("launched_by", PERSON),
            code_version=said["code_version"],
            config_digest=said["config_digest"],
            inputs=said.get("inputs", {}),
            days=days,
            final=frozenset(unpacked(said.get("final", ()))),
            said=said.get("said", {}),
            commit_id=said.get("commit_id", ""),
            since=said.get("since"),
            written=frozenset(unpacked(said["days"])) if "since" in said else None,
            at=_made_at(entry),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _made_at(entry: Mapping[str, Any]) -> datetime | None:
    milliseconds = entry.get("timestamp")
    return milliseconds and datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def packed(days: Iterable[date]) -> list[str]:
    """Days as the fewest ranges, for a record."""
    return [str(window) for window in windows(days)]


def unpacked(ranges: Collection[str]) -> list[date]:
    """The days of `packed`."""
    return [day for text in ranges for day in Window.parse(text)]


def load_log(url: str) -> DeltaTable | None:
    """A table's transaction log; none while there is no table."""
    try:
        return delta_log(url).load()
    except TableNotFoundError:
        return None


def delta_log(url: str) -> DeltaTableResource:
    """dagster-deltalake's handle on a table's log, with credentials from the environment."""
    scheme = url.partition("://")[0] if "://" in url else ""
    options: Any = LocalConfig()
    if scheme in ("s3", "s3a"):
        options = S3Config()
    elif scheme in ("abfs", "abfss", "az"):
        options = AzureConfig(account_name="")
    elif scheme == "gs":
        options = GcsConfig()
    return DeltaTableResource(url=url, storage_options=options)


def measured_by_log(log: DeltaTable, table: Table) -> dict[date, Measured]:
    """Rows and nulls by day from the log's file statistics; no row is read.

    Digest and totals are not in the log and are left empty.
    """
    actions = log.get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in actions.schema.names}
    found: dict[date, Measured] = {}
    for n, day in enumerate(columns.get(f"partition.{table.partition}", ())):
        old = found.get(day)
        rows = (old.rows if old else 0) + (columns["num_records"][n] or 0)
        nulls = {
            name: (old.nulls[name] if old else 0)
            + (columns.get(f"null_count.{name}", {n: 0})[n] or 0)
            for name in table.columns
        }
        found[day] = Measured(rows, nulls, 0, {}, "")
    return found
