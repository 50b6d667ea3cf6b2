"""What a commit says of days that nobody computed anew: what their records said, and what changed.

A migration changes the columns of the days' rows, an acceptance of code the code version alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Any
from uuid import uuid4

import msgspec

from backfill_assets.calendar.partitions import packed, windows
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    Details,
    Published,
    Record,
    as_written,
)
from backfill_assets.delta.schema_changes import Migration
from backfill_assets.provenance import package_version
from backfill_assets.quality.audit import Measured
from backfill_assets.tables.code_version import Code


def migration_record(
    migration: Migration, measured: Mapping[date, Measured], current: Ledger
) -> dict[str, Any]:
    """The record of a migration: of the rewritten days, what their records said.

    Days that others have changed since they were published stay so: nobody vouches for them. Where
    days were made by different code, the commit names none, and they are made again when a run
    takes them.

    Args:
        migration: the migration.
        measured: by day, what its new data files hold.
        current: the ledger that the commit rests on.
    """
    ledger = migration.ledger
    days = [day for day in sorted(migration.days) if ledger.current_record(day)]
    records = {day: ledger.latest[day] for day in days}
    reason = "; ".join(change.text for change in migration.changes)
    # Whose rows a day holds stays as it was: an undo sees through the migration.
    as_of = {str(current.version): packed(migration.days)} if migration.days else {}
    return {
        **_carried_record(
            ledger,
            {day: _remeasured(ledger.latest[day].days[day], measured[day]) for day in days},
            Details(as_of=as_of),
        ),
        "run_id": f"migrate-{uuid4().hex[:12]}",
        "reason": reason,
        "code_version": _common(record.code_version for record in records.values()),
        "release": _common(record.release for record in records.values()),
        "git_commit": _common(record.git_commit for record in records.values()),
        "since": current.version,
        "days": [str(window) for window in windows(migration.days)],
        "because": {"schema change": packed(days)},
    }


def acceptance_record(
    ledger: Ledger, days: Collection[date], code: Code, reason: str
) -> dict[str, Any]:
    """The record of an acceptance: days count as made by the present code, their rows stay.

    Args:
        ledger: that of the table.
        days: the days; each has a current record.
        code: the present code.
        reason: why, as the person who accepts it puts it.
    """
    by_version: dict[str, list[date]] = defaultdict(list)
    for day in sorted(days):
        by_version[ledger.latest[day].code_version].append(day)
    accepts = {version: packed(of_version) for version, of_version in by_version.items()}
    return {
        **_carried_record(
            ledger,
            {day: ledger.latest[day].days[day] for day in sorted(days)},
            Details(kind=ACCEPTED_CODE, accepts=accepts),
        ),
        "run_id": f"accept-{uuid4().hex[:12]}",
        "reason": reason,
        "code_version": code.table_version(ledger.table.name),
        "release": code.version,
        "package": package_version(),
        "git_commit": code.commit,
        "git_dirty": code.dirty,
        "since": ledger.version,
        "because": {"code accepted": packed(days)},
    }


def _carried_record(
    ledger: Ledger, published: Mapping[date, Published], details: Details
) -> dict[str, Any]:
    """What a commit says of days with records, with the details that are its own."""
    records = {day: ledger.latest[day] for day in published}
    made_under = Counter(record.made_under(day) for day, record in records.items())
    config = made_under.most_common(1)[0][0] if made_under else ""
    return {
        "asset": ledger.table.name,
        "config_digest": config,
        "inputs": _oldest_inputs(records.values()),
        "audit": {
            str(day): as_written(_with_settings(figures, records[day].made_under(day), config))
            for day, figures in published.items()
        },
        "final": packed(ledger.final & published.keys()),
        "said": msgspec.to_builtins(_carried_details(records, details)),
    }


def _common(values: Iterable[str]) -> str:
    """The value that all have; empty if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""


def _oldest_inputs(records: Collection[Record]) -> dict[str, int]:
    """The oldest version of each input that a day was made from."""
    oldest: dict[str, int] = {}
    for record in records:
        for name, version in record.inputs.items():
            oldest[name] = min(version, oldest.get(name, version))
    return oldest


def _remeasured(published: Published, measured: Measured) -> Published:
    """What is said of a day: as before, with the figures of its rows under a schema change."""
    return msgspec.structs.replace(
        published,
        digest=measured.digest,
        nulls={name: count for name, count in measured.nulls.items() if count},
        totals={name: str(total) for name, total in measured.totals.items()},
    )


def _with_settings(published: Published, made_under: str, config: str) -> Published:
    """The same, with the settings that the day was made under if the commit names others."""
    return msgspec.structs.replace(published, made_under="" if made_under == config else made_under)


def _carried_details(records: Mapping[date, Record], details: Details) -> Details:
    """What those who follow the table read: that no row of theirs changes."""
    by_day = {day: record.details for day, record in records.items()}
    references = [carried.references for carried in by_day.values()]
    spans = [carried.spans for carried in by_day.values()]
    alike = references and all(each == references[0] for each in references)
    return msgspec.structs.replace(
        details,
        landing={day: d.landing[day] for day, d in by_day.items() if day in d.landing},
        event_days=[],
        current_days=[],
        log_days=[],
        spans=None
        if None in spans
        else {day: d.spans[day] for day, d in by_day.items() if d.spans and day in d.spans},
        late={day: d.late[day] for day, d in by_day.items() if day in d.late},
        references=references[0] if alike else {},
        spreads={day: d.spreads[day] for day, d in by_day.items() if day in d.spreads},
    )
