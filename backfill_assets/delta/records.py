"""What a commit says of its table's days: the record, and its encoding in the log and the cache.

What is written there is decided by `publisher` and by the assets; what follows from it by `backlog`
and `finality`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import msgspec

from backfill_assets.audit.verdicts import DayMetrics, Expectation, Finding, Severity, Verdict
from backfill_assets.calendar.partitions import Window, from_ranges
from backfill_assets.tables.table import Table


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the rows of a day were made by and from, where that is not what their commit says.

    An undo puts rows back that an older run made, a switch-over publishes those of a target.

    Attributes:
        code_version: of the code that computed them, as far as that makes the table.
        release: version of the code of all tables together; empty if not recorded.
        package: the release of this package that ran; empty if not recorded.
        git_commit: of the code; empty if unknown.
        git_dirty: whether that code differed from the commit; None if unknown.
        inputs: the version of each table that they were computed from.
        references: by name, what the tables without days held.
    """

    code_version: str
    release: str = ""
    package: str = ""
    git_commit: str = ""
    git_dirty: bool | None = None
    inputs: Mapping[str, int] = msgspec.field(default_factory=dict)
    references: dict[str, str | None] = msgspec.field(default_factory=dict)


class PublishedDay(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One day of a commit, as the audit found it: all that Dagster is told of it.

    Attributes:
        rows: number of rows.
        digest: of the rows.
        verdict: the worst that any check found.
        totals: sums by column, as text.
        fingerprint: digest of what the inputs held, see `staleness.fingerprints`; empty if nobody
            recorded it.
        nulls: nulls by column, where there are any.
        entries: the counts behind the expectation, by name; sums of money as text.
        findings: what was not in order, as severity and text by check.
        numbers: further figures for the UI.
        made_under: digest of the settings that it was made under, where these are not those of the
            commit: an undo puts rows back as they were.
        provenance: what the rows were made by and from, where the commit says something else.
    """

    rows: int
    digest: str
    verdict: str
    totals: Mapping[str, str] = msgspec.field(default_factory=dict)
    fingerprint: str = msgspec.field(default="", name="made_of")
    nulls: Mapping[str, int] = msgspec.field(default_factory=dict)
    entries: Mapping[str, int | str] = msgspec.field(default_factory=dict)
    findings: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    numbers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    made_under: str = ""
    provenance: Provenance | None = None


#: Kinds of commits that nobody computed: days of a target became production, all of them or some
#: first; a retired table gave up its rows; a person accepted days as made by the present code.
SWITCH_OVER, CANARY, RETIREMENT = "switch-over", "canary", "retirement"
ACCEPTED_CODE = "accepted code"


class CommitDetails(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a commit tells those who follow its table, besides the days that it published.

    Days are ranges, as `partitions.to_ranges` makes them. What is none was not recorded: the commit
    is of an earlier release, or of a table that does not record it.

    Attributes:
        landing: by log day, the manifest that it was loaded from; see `landing.manifests`.
        event_days: the event days whose staged rows it changes; see `staleness.touched`.
        current_days: the event days whose rows it changes in what is known now.
        log_days: the log days whose lateness it changes.
        spans: by log day, the event days that its lines tell of.
        settled: the log days for which nothing more is due since; see `staleness.finality`.
        unsettled: the log days for which something is due again.
        late: by log day, the number of late lines, and their amount as text.
        kind: `SWITCH_OVER`, `CANARY`, `RETIREMENT` or `ACCEPTED_CODE`; empty for what a run or an
            undo published.
        undoes: the backfill that it undoes.
        as_of: of an undo and a migration, by version of the table, the days that hold the rows of
            that version since.
        references: by name, what the tables without days held that its days were made of.
        spreads: by day and column that is watched, the rows in each bin; see `quality.drift`.
        accepts: of `ACCEPTED_CODE`, by code version that made them, the days, as ranges.
        on_hold: of an undo and a canary, by day, the input fingerprint of rows that a person has
            decided against. No schedule or sensor builds the day while its inputs are these.
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
    as_of: dict[str, list[str]] = msgspec.field(default_factory=dict, name="as of")
    references: dict[str, str | None] = msgspec.field(default_factory=dict)
    spreads: dict[date, dict[str, dict[str, int]]] = msgspec.field(default_factory=dict)
    accepts: dict[str, list[str]] = msgspec.field(default_factory=dict)
    on_hold: dict[date, str] = msgspec.field(default_factory=dict, name="on hold")


class CommitRecord(msgspec.Struct, frozen=True, gc=False):
    """What one commit of ours says of itself.

    Attributes:
        version: the table's version that it made.
        run_id: the Dagster run.
        backfill_id: the Dagster backfill that the run belongs to, if any.
        launched_by: `schedule <name>`, `sensor <name>`, `command night`, or `person`.
        code_version: of the code that computed it, as far as that makes the table.
        config_digest: of the settings that decide what is in the table.
        inputs: the version of each table that it was computed from.
        days: what was published, by day.
        final: those of the days that will not change any more unless a person rebuilds them.
        details: what it tells those who follow the table.
        commit_id: tells this commit from every other.
        since: the version that it was compared with; none if there was no table.
        written_days: those of the days whose files it wrote; the others had these rows already.
        at: when it was made, in UTC.
        reason: why, as whoever launched it put it.
        git_commit: of the code that computed it; empty if unknown.
        git_dirty: whether that code differed from the commit; none if unknown.
        revoked_days: days that it took back: they count as never published.
        reasons: why its days were computed: the days, as ranges, by reason; see `reason_for_day`.
        is_merge: whether it changed rows of the days that it wrote, rather than replace all of
            them.
        failed_days: days that its run could not publish, each with the reason.
        release: version of the code of all tables together; empty if not recorded.
        package: the release of this package that ran; empty if not recorded.
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

    def reason_for_day(self, day: date) -> str:
        """Why a day was computed; empty if nobody recorded it."""
        for reason, ranges in self.reasons.items():
            if any(day in Window.parse(text) for text in ranges):
                return reason
        return ""

    @property
    def rewritten_days(self) -> frozenset[date]:
        """The days whose files it wrote; where nobody recorded which, all that it speaks of."""
        return frozenset(self.days) if self.written_days is None else self.written_days

    def valid_as_of(self, day: date) -> int:
        """The version as of which the day is what the record says.

        Overwriting a day replaces whatever was there until then. A merge leaves rows, of which only
        those of the version that it was compared with were looked at.
        """
        if self.written_days is None or (day in self.written_days and not self.is_merge):
            return self.version
        return -1 if self.since is None else self.since

    @property
    def code_id(self) -> str:
        """The version of the code of all tables together, as far as it is on record."""
        return self.release or self.code_version

    def for_day(self, day: date) -> CommitRecord:
        """The record as it holds for one of its days: with what this day was made by and from."""
        published = self.days.get(day)
        if published is None or published.provenance is None:
            return self
        fields = msgspec.structs.asdict(published.provenance)
        details = msgspec.structs.replace(self.details, references=fields.pop("references"))
        return msgspec.structs.replace(self, **fields, details=details)

    def day_provenance(self, day: date) -> Provenance:
        """What a day was made by and from, to be carried by another commit."""
        published = self.days.get(day)
        if published and published.provenance:
            return published.provenance
        names = (name for name in Provenance.__struct_fields__ if name != "references")
        values = {name: getattr(self, name) for name in names}
        return Provenance(**values, references=self.details.references)

    def made_under(self, day: date) -> str:
        """Digest of the settings that a day of it was made under."""
        return self.days[day].made_under or self.config_digest

    @property
    def by_person(self) -> bool:
        """Whether a person launched the run, rather than a schedule, a sensor or a night."""
        return self.launched_by == PERSON


PERSON = "person"


@dataclass(frozen=True)
class ExternalCommit:
    """A commit that is not ours.

    Attributes:
        version: the table's version that it made.
        operation: what it was, in Delta's words.
        days: the days whose files it changed.
        at: when it was made, in UTC.
        has_unknown_days: whether it took files away of which it does not say whose days they were.
    """

    version: int
    operation: str
    days: frozenset[date]
    at: datetime | None = field(default=None, compare=False)
    has_unknown_days: bool = False


def to_published_day(
    verdict: Verdict,
    fingerprint: str,
    numbers: Mapping[str, Any],
    made_under: str = "",
    provenance: Provenance | None = None,
) -> PublishedDay:
    """What a commit is to say of a day that passed."""
    measured = verdict.metrics
    return PublishedDay(
        rows=measured.rows,
        digest=measured.digest,
        verdict=verdict.worst_severity.value,
        totals={name: str(total) for name, total in measured.totals.items()},
        fingerprint=fingerprint,
        nulls={name: count for name, count in measured.nulls.items() if count},
        entries={
            name: count if isinstance(count, int) else str(count)
            for name, count in verdict.expectation.entries.items()
        },
        findings={
            finding.check: [finding.severity.value, finding.text]
            for finding in verdict.findings
            if finding.severity is not Severity.OK
        },
        numbers=numbers,
        made_under=made_under,
        provenance=provenance,
    )


def encode_day(day: PublishedDay) -> dict[str, Any]:
    """What a commit is to say of a day, by the names that commits have it under."""
    values = dict(zip(day.__struct_encode_fields__, msgspec.structs.astuple(day), strict=True))
    provenance = msgspec.to_builtins(values.pop("provenance"))
    return {**values, "provenance": provenance} if provenance else values


def restore_verdict(table: Table, day: date, published: PublishedDay) -> Verdict:
    """The verdict on a day, from what its commit says."""
    entries = {
        name: count if isinstance(count, int) else Decimal(count)
        for name, count in published.entries.items()
    }
    totals = {
        name: type(zero)(published.totals[name]) if name in published.totals else zero
        for name, zero in table.zero_totals.items()
    }
    nulls = {name: published.nulls.get(name, 0) for name in table.columns}
    fine = [Severity.OK.value, "in order when it was published"]
    findings = [
        Finding(check, Severity(severity), text)
        for check in table.check_descriptions
        for severity, text in [published.findings.get(check, fine)]
    ]
    return Verdict(
        day,
        DayMetrics(published.rows, nulls, 0, totals, published.digest),
        Expectation(entries=entries, notices=dict.fromkeys(table.notices, (Severity.OK, ""))),
        findings,
    )


class _EncodedRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a commit says of itself, as it is written; see `Record`."""

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
    said: CommitDetails = msgspec.field(default_factory=CommitDetails)
    commit_id: str = ""
    reason: str | None = None
    git_commit: str = ""
    git_dirty: bool | None = None
    withdrawn: list[str] = msgspec.field(default_factory=list)
    because: dict[str, list[str]] = msgspec.field(default_factory=dict)
    not_published: dict[date, Any] = msgspec.field(default_factory=dict)
    release: str = ""
    package: str = ""


class CommitSummary(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
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
    said: _EncodedRecord | None = None
    days: list[str] = msgspec.field(default_factory=list)
    anywhere: bool = False
    columns: list[str] = msgspec.field(default_factory=list)


#: Ten thousand empty sets are ten thousand objects to look through for garbage.
_NO_DAYS: frozenset[date] = frozenset()
_DECODER = msgspec.json.Decoder(CommitSummary)


def decode_commit(line: bytes) -> CommitSummary:
    """What a line tells of a commit.

    Raises:
        ValueError: it is not one of ours, or of another form.
    """
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        # JSON as Python writes it has more: NaN, and halves of characters in what a person typed.
        return msgspec.convert(json.loads(line), CommitSummary)


def decode_version(line: bytes) -> int | None:
    """The version that a line tells of; none if other code wrote it in a way of its own."""
    try:
        return decode_commit(line).version
    except (msgspec.ValidationError, ValueError):
        return None


def encoding_id(table: Table) -> str:
    """Names what `encode_commit` tells: its number goes up when that changes."""
    return " ".join(
        [
            "3",
            table.partition,
            *_EncodedRecord.__struct_encode_fields__,
            *PublishedDay.__struct_encode_fields__,
            *CommitDetails.__struct_encode_fields__,
        ]
    )


def encode_commit(table: Table, version: int, text: bytes) -> bytes | None:
    """What is told of a commit, as a line of text; none if it changed no row, as OPTIMIZE does."""
    lines = text.splitlines()
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
    info: Mapping[str, Any] = next(filter(None, infos), {})
    encoded = _own_metadata(info.get("userMetadata"))
    days: list[str | None] = []
    if encoded is None:
        days = [_file_day(file, table.partition) for file in _changed_files(lines)]
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


def changes_rows(text: bytes) -> bool:
    """Whether a commit changed rows, as OPTIMIZE does not."""
    return any(True for _ in _changed_files(text.splitlines()))


def _changed_files(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """The files that a commit added or removed with rows that changed."""
    for action in map(json.loads, lines):
        for kind in ("add", "remove"):
            if kind in action and action[kind].get("dataChange", True):
                yield action[kind]


def _file_day(file: Mapping[str, Any], partition: str) -> str | None:
    """The day of a file that was added or removed; empty for rows without one, none if unknown.

    Delta asks of a removal no more than the path, in which the day is by custom.
    """
    values = file.get("partitionValues") or {}
    if partition in values:
        return values[partition] or ""
    match = re.search(rf"(?:^|/){re.escape(partition)}=(\d{{4}}-\d\d-\d\d)/", file["path"])
    return match[1] if match else None


def _new_columns(lines: Iterable[bytes]) -> list[str]:
    """The table's columns where a commit says what they are from now on."""
    for line in lines:
        if b'"metaData"' in line and (metadata := json.loads(line).get("metaData")):
            return [column["name"] for column in json.loads(metadata["schemaString"])["fields"]]
    return []


def _own_metadata(metadata: Any) -> _EncodedRecord | None:
    """What a commit says of itself; none if it is somebody else's, in any form of their own."""
    try:
        encoded = msgspec.convert(json.loads(metadata), _EncodedRecord)
        to_record(CommitSummary(0, ""), encoded)
    except (ValueError, TypeError):
        return None
    return encoded


def to_record(summary: CommitSummary, encoded: _EncodedRecord) -> CommitRecord:
    """The record of a commit of ours, from what it says of itself."""
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
        details=encoded.said,
        commit_id=encoded.commit_id,
        since=None if encoded.since is msgspec.UNSET else encoded.since,
        written_days=None if encoded.since is msgspec.UNSET else _parse_days(encoded.days),
        at=commit_time(summary),
        reason=encoded.reason or "",
        git_commit=encoded.git_commit,
        git_dirty=encoded.git_dirty,
        revoked_days=_parse_days(encoded.withdrawn),
        reasons=encoded.because,
        is_merge=summary.operation == "MERGE",
        failed_days={day: str(reason) for day, reason in encoded.not_published.items()},
        release=encoded.release,
        package=encoded.package,
    )


def _parse_days(ranges: list[str]) -> frozenset[date]:
    return frozenset(from_ranges(ranges)) if ranges else _NO_DAYS


def commit_time(summary: CommitSummary) -> datetime | None:
    """When a commit was made, in UTC; none if it does not say."""
    if summary.timestamp is None:
        return None
    return datetime.fromtimestamp(summary.timestamp / 1000, timezone.utc)
