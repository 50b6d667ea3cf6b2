"""What is told of a commit: a line of the copy, made of its file; and the record made of that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from typing import Any

import msgspec

from backfill_assets.calendar.partitions import unpacked
from backfill_assets.delta.records import PERSON, Details, Published, Record
from backfill_assets.tables.table import Table


class _Metadata(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
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
    said: Details = msgspec.field(default_factory=Details)
    commit_id: str = ""
    reason: str | None = None
    git_commit: str = ""
    git_dirty: bool | None = None
    withdrawn: list[str] = msgspec.field(default_factory=list)
    because: dict[str, list[str]] = msgspec.field(default_factory=dict)
    not_published: dict[date, Any] = msgspec.field(default_factory=dict)
    release: str = ""
    package: str = ""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
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
    said: _Metadata | None = None
    days: list[str] = msgspec.field(default_factory=list)
    anywhere: bool = False
    columns: list[str] = msgspec.field(default_factory=list)


#: Ten thousand empty sets are ten thousand objects to look through for garbage.
_NO_DAYS: frozenset[date] = frozenset()
_DECODER = msgspec.json.Decoder(Entry)


def parsed(line: bytes) -> Entry:
    """What a line tells of a commit.

    Raises:
        ValueError: it is not one of ours, or of another form.
    """
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        # JSON as Python writes it has more: NaN, and halves of characters in what a person typed.
        return msgspec.convert(json.loads(line), Entry)


def version_of(line: bytes) -> int | None:
    """The version that a line tells of; none if other code wrote it in a way of its own."""
    try:
        return parsed(line).version
    except (msgspec.ValidationError, ValueError):
        return None


def form(table: Table) -> str:
    """Names what `line_of` tells: its number goes up when that changes."""
    return " ".join(
        [
            "3",
            table.partition,
            *_Metadata.__struct_encode_fields__,
            *Published.__struct_encode_fields__,
            *Details.__struct_encode_fields__,
        ]
    )


def line_of(table: Table, version: int, text: bytes) -> bytes | None:
    """What is told of a commit, as a line of text; none if it changed no row, as OPTIMIZE does."""
    lines = text.splitlines()
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
    info: Mapping[str, Any] = next(filter(None, infos), {})
    said = _ours(info.get("userMetadata"))
    days: list[str | None] = []
    if said is None:
        days = [_day_of(file, table.partition) for file in _changed(lines)]
    columns = _columns(lines)
    if said is None and not days and not columns:
        return None
    at = info.get("timestamp")
    entry = Entry(
        version,
        str(info.get("operation")),
        at if isinstance(at, int) else None,
        said,
        sorted(set(filter(None, days))),
        None in days,
        columns,
    )
    return json.dumps(msgspec.to_builtins(entry), separators=(",", ":")).encode()


def changes_rows(text: bytes) -> bool:
    """Whether a commit changed rows, as OPTIMIZE does not."""
    return any(True for _ in _changed(text.splitlines()))


def _changed(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """The files that a commit added or removed with rows that changed."""
    for action in map(json.loads, lines):
        for kind in ("add", "remove"):
            if kind in action and action[kind].get("dataChange", True):
                yield action[kind]


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


def _ours(metadata: Any) -> _Metadata | None:
    """What a commit says of itself; none if it is somebody else's, in any form of their own."""
    try:
        said = msgspec.convert(json.loads(metadata), _Metadata)
        record_of(Entry(0, ""), said)
    except (ValueError, TypeError):
        return None
    return said


def record_of(entry: Entry, said: _Metadata) -> Record:
    """The record of a commit of ours, from what it says of itself."""
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
        details=said.said,
        commit_id=said.commit_id,
        since=None if said.since is msgspec.UNSET else said.since,
        written=None if said.since is msgspec.UNSET else _days(said.days),
        at=made_at(entry),
        reason=said.reason or "",
        git_commit=said.git_commit,
        git_dirty=said.git_dirty,
        withdrawn=_days(said.withdrawn),
        because=said.because,
        merged=entry.operation == "MERGE",
        failed={day: str(why) for day, why in said.not_published.items()},
        release=said.release,
        package=said.package,
    )


def _days(ranges: list[str]) -> frozenset[date]:
    return frozenset(unpacked(ranges)) if ranges else _NO_DAYS


def made_at(entry: Entry) -> datetime | None:
    """When a commit was made, in UTC; none if it does not say."""
    if entry.timestamp is None:
        return None
    return datetime.fromtimestamp(entry.timestamp / 1000, timezone.utc)
