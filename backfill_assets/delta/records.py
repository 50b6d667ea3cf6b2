"""The record of a commit, its encoding in the log and in the commit cache."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Self

import msgspec

from backfill_assets.audit.verdicts import DayContent, DayMetrics, Severity, Verdict
from backfill_assets.calendar.partitions import PART_MARK, Window, from_ranges, to_ranges
from backfill_assets.delta.commit_log import changed_files
from backfill_assets.tables.table import Table


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The code and inputs of a day's rows, where they differ from those of the commit.

    They differ after an undo, which restores rows of an older run, and after a switch-over, which
    publishes rows of a target.

    Attributes:
        code_version: code version of the table.
        release: version of the code of all tables together; empty if not recorded.
        package: release of this package; empty if not recorded.
        git_dirty: whether the code differed from `git_commit`; None if unknown.
        inputs: by name, the version of each input table.
        references: by name, the content of each unpartitioned input.
    """

    code_version: str
    release: str = ""
    package: str = ""
    git_commit: str = ""
    git_dirty: bool | None = None
    inputs: Mapping[str, int] = msgspec.field(default_factory=dict)
    references: dict[str, str | None] = msgspec.field(default_factory=dict)


class PublishedDay(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One day of a commit with its audit results; Dagster's metadata comes from here.

    Attributes:
        verdict: the worst severity of all checks.
        totals: sums by column, as text.
        input_digest: digest of the inputs, see `staleness.snapshot`; empty if not recorded.
        nulls: number of nulls by column; columns without nulls are left out.
        entries: the counts behind the expectation, by name; sums of money as text.
        findings: by check that is not OK, its severity and text.
        numbers: further figures for the UI.
        made_under: settings digest, if it is not that of the commit, as after an undo.
        provenance: code and inputs of the rows, if they are not those of the commit.
    """

    rows: int
    digest: str
    verdict: str
    totals: Mapping[str, str] = msgspec.field(default_factory=dict)
    input_digest: str = ""
    nulls: Mapping[str, int] = msgspec.field(default_factory=dict)
    entries: Mapping[str, int | str] = msgspec.field(default_factory=dict)
    findings: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    numbers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    made_under: str = ""
    provenance: Provenance | None = None

    @property
    def content(self) -> DayContent:
        """The content of the day, as published."""
        totals = {name: Decimal(total) for name, total in self.totals.items()}
        return DayContent(self.rows, totals, self.digest)


#: Kinds of commits that compute no rows: a switch-over of all days of a target or of the first ones
#: (canary), the deletion of a retired table's rows, the acceptance of days as of the current code.
SWITCH_OVER, CANARY, RETIREMENT = "switch-over", "canary", "retirement"
ACCEPTED_CODE = "accepted code"


class CommitDetails(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a commit tells downstream tables and later runs, besides its published days.

    Days are ranges, as made by `partitions.to_ranges`. None means not recorded: the commit is of an
    earlier release, or of a table that does not record it.

    Attributes:
        landing: by log day, the manifest of the loaded files; see `landing.load_manifest`.
        event_days: the event days whose staged rows the commit changes; see `staleness.impact`.
        current_days: the event days whose current rows the commit changes.
        log_days: the log days whose lateness the commit changes.
        spans: by log day, the event days of its lines.
        settled: the log days that are complete since this commit; see `staleness.assess`.
        unsettled: the log days that are no longer complete.
        late: by log day, the number of late lines, and their amount as text.
        kind: `SWITCH_OVER`, `CANARY`, `RETIREMENT` or `ACCEPTED_CODE`; empty for a run and an undo.
        undoes: the id of the backfill or switch-over that the commit undoes.
        as_of: of an undo and a migration, by version of the table, the days that have the rows of
            that version since.
        references: by name, the content of the unpartitioned inputs that the days were built from.
        spreads: by day and watched column, the number of rows in each bin; see `audit.profile`.
        accepts: of `ACCEPTED_CODE`, by the code version that computed them, the accepted days.
        on_hold: of an undo and a canary, by day, the input digest of rows that a person has
            rejected. No schedule or sensor builds the day while its inputs have this digest.
        alone: days that were computed alone as well, with the same rows; see `publish.compute`.
        among: other parts with rows on these days, with which they were computed.
    """

    landing: dict[date, Any] = msgspec.field(default_factory=dict)
    event_days: list[str] | None = None
    current_days: list[str] | None = None
    log_days: list[str] | None = None
    spans: dict[date, list[str]] | None = None
    settled: list[str] = msgspec.field(default_factory=list)
    unsettled: list[str] = msgspec.field(default_factory=list)
    late: dict[date, tuple[int, str]] = msgspec.field(default_factory=dict)
    kind: str = ""
    undoes: str | None = None
    as_of: dict[str, list[str]] = msgspec.field(default_factory=dict)
    references: dict[str, str | None] = msgspec.field(default_factory=dict)
    spreads: dict[date, dict[str, dict[str, int]]] = msgspec.field(default_factory=dict)
    accepts: dict[str, list[str]] = msgspec.field(default_factory=dict)
    on_hold: dict[date, str] = msgspec.field(default_factory=dict)
    alone: list[str] = msgspec.field(default_factory=list)
    among: list[str] = msgspec.field(default_factory=list)


class CommitRecord(msgspec.Struct, frozen=True, gc=False):
    """The record of one commit made by this package.

    Attributes:
        version: the table version that the commit made.
        launched_by: `schedule <name>`, `sensor <name>`, `command night`, or `person`.
        code_version: code version of the table.
        config_digest: digest of the settings that decide the rows.
        inputs: by name, the version of each input table.
        final: the days that do not change any more unless a person rebuilds them.
        commit_id: unique for each commit.
        since: the table version that the commit was compared with; None if there was no table.
        written_days: the days whose files the commit wrote; the others had the same rows already.
        at: commit time in UTC.
        reason: the reason given at launch.
        git_dirty: whether the code differed from `git_commit`; None if unknown.
        revoked_days: days that the commit reverted: they count as never published.
        reasons: by reason for computing them, the days as ranges; see `reason_for_day`.
        is_merge: whether the commit merged rows into its written days instead of replacing them.
        failed_days: days that the run could not publish, with the reason.
        release: version of the code of all tables together; empty if not recorded.
        package: release of this package; empty if not recorded.
        code_parts: of the first commit by a code version, what that is made of; see
            `code_version.parts_of_version`.
        key_prefix: of the deployment that made it; empty if it has none.
    """

    version: int
    run_id: str
    backfill_id: str | None
    launched_by: str
    code_version: str
    config_digest: str
    inputs: Mapping[str, int]
    days: Mapping[date, PublishedDay]
    final: frozenset[date]
    details: CommitDetails
    commit_id: str = ""
    since: int | None = None
    written_days: frozenset[date] | None = None
    at: datetime | None = None
    reason: str = ""
    git_commit: str = ""
    git_dirty: bool | None = None
    revoked_days: frozenset[date] = frozenset()
    reasons: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    is_merge: bool = False
    failed_days: Mapping[date, str] = msgspec.field(default_factory=dict)
    release: str = ""
    package: str = ""
    code_parts: Mapping[str, str] = msgspec.field(default_factory=dict)
    key_prefix: str = ""

    def reason_for_day(self, day: date) -> str:
        """Why a day was computed; empty if not recorded."""
        for reason, ranges in self.reasons.items():
            if any(day in Window.parse(text) for text in ranges):
                return reason
        return ""

    @property
    def rewritten_days(self) -> frozenset[date]:
        """The days whose files the commit wrote; all of its days if not recorded."""
        return frozenset(self.days) if self.written_days is None else self.written_days

    def valid_as_of(self, day: date) -> int:
        """The table version as of which the record describes the day's rows.

        A replaced day is valid as of the commit. A merge leaves other rows in place, which were
        checked only as of the version that the commit was compared with.
        """
        if self.written_days is None or (day in self.written_days and not self.is_merge):
            return self.version
        return -1 if self.since is None else self.since

    @property
    def code_id(self) -> str:
        """The version of the code of all tables together; of this table's code if not recorded."""
        return self.release or self.code_version

    def for_day(self, day: date) -> "CommitRecord":
        """The record with the code and inputs of one of its days."""
        published = self.days.get(day)
        if published is None or published.provenance is None:
            return self
        fields = msgspec.structs.asdict(published.provenance)
        details = msgspec.structs.replace(self.details, references=fields.pop("references"))
        return msgspec.structs.replace(self, **fields, details=details)

    def day_provenance(self, day: date) -> Provenance:
        """The code and inputs of a day, for a later commit that carries over its rows."""
        published = self.days.get(day)
        if published and published.provenance:
            return published.provenance
        names = (name for name in Provenance.__struct_fields__ if name != "references")
        values = {name: getattr(self, name) for name in names}
        return Provenance(**values, references=self.details.references)

    def made_under(self, day: date) -> str:
        """The settings digest of a day."""
        return self.days[day].made_under or self.config_digest

    @property
    def by_person(self) -> bool:
        """Whether a person launched the run, rather than a schedule, a sensor or `night`."""
        return self.launched_by == PERSON


PERSON = "person"


@dataclass(frozen=True)
class ExternalCommit:
    """A commit of another writer.

    Attributes:
        operation: Delta's name of the operation.
        days: the days whose files the commit changed.
        at: commit time in UTC.
        has_unknown_days: whether the commit removed files whose days are unknown.
    """

    version: int
    operation: str
    days: frozenset[date]
    at: datetime | None = field(default=None, compare=False)
    has_unknown_days: bool = False


#: A commit that may have changed rows: ours, or that of another writer.
Commit = CommitRecord | ExternalCommit


def encode_metrics(measured: DayMetrics) -> dict[str, Any]:
    """The fields of a `PublishedDay` that depend on the columns of the rows."""
    return {
        "digest": measured.digest,
        "totals": {name: str(total) for name, total in measured.totals.items()},
        "nulls": {name: count for name, count in measured.nulls.items() if count},
    }


def to_published_days(
    verdicts: Iterable[Verdict],
    input_digests: Mapping[date, str],
    numbers: Mapping[date, Mapping[str, Any]],
    made_under: Mapping[date, str],
    provenance: Mapping[date, Provenance],
) -> dict[date, PublishedDay]:
    """The published days of passed verdicts; the other arguments are by day, see `PublishedDay`."""
    return {
        v.day: PublishedDay(
            rows=v.metrics.rows,
            verdict=v.worst_severity.value,
            input_digest=input_digests[v.day],
            entries={
                name: count if isinstance(count, int) else str(count)
                for name, count in v.expectation.entries.items()
            },
            findings={
                finding.check: [finding.severity.value, finding.text]
                for finding in v.findings
                if finding.severity is not Severity.OK
            },
            numbers=numbers.get(v.day, {}),
            made_under=made_under.get(v.day, ""),
            provenance=provenance.get(v.day),
            **encode_metrics(v.metrics),
        )
        for v in verdicts
    }


def encode_day(day: PublishedDay) -> dict[str, Any]:
    """A published day by the keys that commits use."""
    values = dict(zip(day.__struct_encode_fields__, msgspec.structs.astuple(day), strict=True))
    provenance = msgspec.to_builtins(values.pop("provenance"))
    return {**values, "provenance": provenance} if provenance else values


@dataclass(frozen=True)
class CommitNotes:
    """What a commit of days records for downstream tables, besides the audit.

    Attributes:
        final_days: days that only a person may rebuild from now on.
        revoked_days: by day without rows, the reason why it counts as never published from now on.
        details: of the commit.
    """

    final_days: Collection[date] = ()
    revoked_days: Mapping[date, str] = field(default_factory=dict)
    details: CommitDetails = field(default_factory=CommitDetails)

    def of_days(self, days: Container[date]) -> Self:
        """Return the notes without what concerns other days."""
        late = {day: late for day, late in self.details.late.items() if day in days}
        return replace(
            self,
            final_days={day for day in self.final_days if day in days},
            details=msgspec.structs.replace(self.details, late=late),
        )


def days_by_reason(reasons: Mapping[date, str]) -> dict[str, list[str]]:
    """Group days by reason, in the form that a commit stores."""
    grouped = defaultdict(list)
    for day, reason in reasons.items():
        grouped[reason].append(day)
    return {reason: to_ranges(days) for reason, days in grouped.items()}


def encode_published(
    record: Mapping[str, Any],
    inputs: Mapping[str, int],
    since: int | None,
    days: Mapping[date, PublishedDay],
    failed: Mapping[date, str],
    reasons: Mapping[date, str],
    notes: CommitNotes,
) -> dict[str, Any]:
    """The metadata of a commit of computed days, as `_EncodedRecord` decodes it.

    Args:
        record: the run's part: who, why, and by which code.
        inputs: the version of each input table.
        since: the version of the table that the days were computed from.
        days: those that passed the audit; a revoked day has a reason, but no published day.
        failed: by day that did not pass, why.
        reasons: by day that passed, why it was computed.
        notes: what the commit records besides.
    """
    return {
        **record,
        "inputs": inputs,
        "since": since,
        "audit": {
            str(day): encode_day(published)
            for day, published in days.items()
            if day not in notes.revoked_days
        },
        "not_published": {
            str(day): reason for day, reason in failed.items() if day not in notes.revoked_days
        },
        "reasons": days_by_reason(reasons),
        "final": to_ranges(notes.final_days),
        "withdrawn": to_ranges(notes.revoked_days),
        "details": msgspec.to_builtins(notes.details),
    }


class _EncodedRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A `CommitRecord` as encoded in the commit's `userMetadata`."""

    run_id: str
    code_version: str
    config_digest: str
    audit: dict[date, PublishedDay]
    backfill_id: str | None = None
    launched_by: str = PERSON
    inputs: dict[str, int] = msgspec.field(default_factory=dict)
    since: int | msgspec.UnsetType | None = msgspec.UNSET
    days: list[str] = msgspec.field(default_factory=list)
    final: list[str] = msgspec.field(default_factory=list)
    details: CommitDetails = msgspec.field(default_factory=CommitDetails)
    commit_id: str = ""
    reason: str | None = None
    git_commit: str = ""
    git_dirty: bool | None = None
    withdrawn: list[str] = msgspec.field(default_factory=list)
    reasons: dict[str, list[str]] = msgspec.field(default_factory=dict)
    not_published: dict[date, Any] = msgspec.field(default_factory=dict)
    release: str = ""
    package: str = ""
    code_parts: dict[str, str] = msgspec.field(default_factory=dict)
    key_prefix: str = ""
    part: str = ""
    other_parts: "list[_EncodedRecord]" = msgspec.field(default_factory=list)

    @property
    def by_part(self) -> "dict[str, _EncodedRecord]":
        """The records of the commit; the part of a table without parts is empty."""
        others = (
            msgspec.structs.replace(record, code_parts=self.code_parts)
            for record in self.other_parts
        )
        return {record.part: record for record in (self, *others)}


class CommitSummary(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the ledger needs of one commit of the log, ours or another writer's.

    Attributes:
        operation: Delta's name of the operation.
        timestamp: commit time in milliseconds since 1970.
        record: the encoded record, if the commit is ours.
        days: the days that another writer changed, with the part of a table that has parts.
        anywhere: whether another writer removed files whose days are unknown.
        columns: the table's columns, if the commit changed them.
    """

    version: int
    operation: str
    timestamp: int | None = None
    record: _EncodedRecord | None = None
    days: list[str] = msgspec.field(default_factory=list)
    anywhere: bool = False
    columns: list[str] = msgspec.field(default_factory=list)


#: Shared: ten thousand empty sets would be ten thousand objects for the garbage collector.
_NO_DAYS: frozenset[date] = frozenset()
_DECODER = msgspec.json.Decoder(CommitSummary)


def decode_commit(line: bytes) -> CommitSummary:
    """Decode one line of the commit cache.

    Raises:
        ValueError: the line is not one of ours, or has another form.
    """
    if b'"said":' in line:
        values = json.loads(line)
        record = _with_current_keys(values.get("said", values.get("record")))
        return msgspec.convert({**values, "record": record}, CommitSummary)
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        # Python's JSON allows more: NaN, and lone surrogates in text that a person typed.
        return msgspec.convert(json.loads(line), CommitSummary)


#: Keys that commits had before the first release; the next release reads them no more.
_OLD_KEYS = {"because": "reasons", "said": "details", "made_of": "input_digest"}
_OLD_KEYS |= {"as of": "as_of", "on hold": "on_hold"}


def _with_current_keys(record: Any) -> Any:
    """A decoded record with the present keys of the commit, of its details and of its days."""
    if not isinstance(record, dict) or _OLD_KEYS.keys().isdisjoint(record):
        return record

    def rename_keys(values: Mapping[str, Any]) -> dict[str, Any]:
        return {_OLD_KEYS.get(key, key): value for key, value in values.items()}

    audit = {day: rename_keys(published) for day, published in record["audit"].items()}
    return rename_keys({**record, "audit": audit, "said": rename_keys(record.get("said", {}))})


def decode_version(line: bytes) -> int | None:
    """The version of a line of the commit cache; None if the line has an unknown form."""
    try:
        return decode_commit(line).version
    except ValueError:
        return None


def encoding_id(table: Table) -> str:
    """Identifies the form of `encode_commit`: raise its number when that form changes."""
    return " ".join(
        [
            "4",
            *table.partition_columns,
            *_EncodedRecord.__struct_encode_fields__,
            *PublishedDay.__struct_encode_fields__,
            *CommitDetails.__struct_encode_fields__,
        ]
    )


def encode_commit(table: Table, version: int, text: bytes) -> bytes | None:
    """Encode a commit as one line; None if the commit changed no row, like OPTIMIZE."""
    lines = text.splitlines()
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
    info: Mapping[str, Any] = next(filter(None, infos), {})
    encoded = _own_metadata(info.get("userMetadata"))
    days: list[str | None] = []
    if encoded is None:
        days = [_file_partition(file, table.partition_columns) for file in changed_files(lines)]
    columns = _new_columns(lines)
    if encoded is None and not days and not columns:
        return None
    timestamp = info.get("timestamp")
    summary = CommitSummary(
        version,
        str(info.get("operation")),
        timestamp if isinstance(timestamp, int) else None,
        encoded,
        sorted(set(filter(None, days))),
        None in days,
        columns,
    )
    return json.dumps(msgspec.to_builtins(summary), separators=(",", ":")).encode()


def _file_partition(file: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """The day of an added or removed file, and its part; empty without a day, None if unknown.

    Delta requires only the path of a removal; by convention the path has them.
    """
    in_path = dict(re.findall(r"(?:^|/)([^/=]+)=([\w.-]+)(?=/)", file["path"]))
    values = {**in_path, **(file.get("partitionValues") or {})}
    if not values.keys() >= {*columns}:
        return None
    day, *part = (values[column] or "" for column in columns)
    if day and not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        return None
    return PART_MARK.join([day, *part]) if day else ""


def _new_columns(lines: Iterable[bytes]) -> list[str]:
    """The table's columns, if the commit sets them; else empty."""
    for line in lines:
        if b'"metaData"' in line and (metadata := json.loads(line).get("metaData")):
            return [column["name"] for column in json.loads(metadata["schemaString"])["fields"]]
    return []


def _own_metadata(metadata: Any) -> _EncodedRecord | None:
    """The record in a commit's `userMetadata`; None if another writer made the commit."""
    try:
        values = _with_current_keys(json.loads(metadata))
        encoded = msgspec.convert(values, _EncodedRecord)
        for record in encoded.by_part.values():
            to_record(CommitSummary(0, ""), record)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return encoded


def to_record(summary: CommitSummary, encoded: _EncodedRecord) -> CommitRecord:
    """The record of a commit of ours."""
    return CommitRecord(
        version=summary.version,
        run_id=encoded.run_id,
        backfill_id=encoded.backfill_id,
        launched_by=encoded.launched_by,
        code_version=encoded.code_version,
        config_digest=encoded.config_digest,
        inputs=encoded.inputs,
        days=encoded.audit,
        final=_parse_days(encoded.final),
        details=encoded.details,
        commit_id=encoded.commit_id,
        since=None if encoded.since is msgspec.UNSET else encoded.since,
        written_days=None if encoded.since is msgspec.UNSET else _parse_days(encoded.days),
        at=commit_time(summary),
        reason=encoded.reason or "",
        git_commit=encoded.git_commit,
        git_dirty=encoded.git_dirty,
        revoked_days=_parse_days(encoded.withdrawn),
        reasons=encoded.reasons,
        is_merge=summary.operation == "MERGE",
        failed_days={day: str(reason) for day, reason in encoded.not_published.items()},
        release=encoded.release,
        package=encoded.package,
        code_parts=encoded.code_parts,
        key_prefix=encoded.key_prefix,
    )


def _parse_days(ranges: list[str]) -> frozenset[date]:
    return frozenset(from_ranges(ranges)) if ranges else _NO_DAYS


def commit_time(summary: CommitSummary) -> datetime | None:
    """The commit time in UTC; None if not recorded."""
    if summary.timestamp is None:
        return None
    return datetime.fromtimestamp(summary.timestamp / 1000, timezone.utc)
