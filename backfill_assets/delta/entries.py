"""What is told of a commit: a line of the copy, made of its file; and the record made of that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from typing import Any

import msgspec

from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.delta.records import PERSON, CommitDetails, CommitRecord, PublishedDay
from backfill_assets.tables.table import Table


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
