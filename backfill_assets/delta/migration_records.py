"""What the commit of a migration says of its days: what their records said, under the change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Any
from uuid import uuid4

import msgspec

from backfill_assets.calendar.partitions import packed, windows
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import Details, Published, Record, as_written
from backfill_assets.delta.schema_changes import Migration
from backfill_assets.quality.audit import Measured


def record_of(found: Migration, measured: Mapping[date, Measured], now: Ledger) -> dict[str, Any]:
    """What the commit of a migration says: of the rewritten days, what their records said.

    Days that others have changed since they were published stay so: nobody vouches for them. Where
    days were made by different code, the commit names none, and they are made again when a run
    takes them.

    Args:
        found: the migration.
        measured: by day, what its new data files hold.
        now: the ledger that the commit rests on.
    """
    ledger = found.ledger
    days = [day for day in sorted(found.days) if ledger.current_record(day)]
    records = {day: ledger.latest[day] for day in days}
    made_under = Counter(record.made_under(day) for day, record in records.items())
    config = made_under.most_common(1)[0][0] if made_under else ""
    reason = "; ".join(change.text for change in found.changes)
    # Whose rows a day holds stays as it was: an undo sees through the migration.
    as_of = {str(now.version): packed(found.days)} if found.days else {}
    return {
        "run_id": f"migrate-{uuid4().hex[:12]}",
        "reason": reason,
        "asset": ledger.table.name,
        "code_version": _one(record.code_version for record in records.values()),
        "release": _one(record.release for record in records.values()),
        "git_commit": _one(record.git_commit for record in records.values()),
        "config_digest": config,
        "inputs": _inputs(records.values()),
        "since": now.version,
        "days": [str(window) for window in windows(found.days)],
        "audit": {
            str(day): as_written(_published(ledger, day, measured[day], config)) for day in days
        },
        "because": {"schema change": packed(days)},
        "final": packed(ledger.final & set(days)),
        "said": msgspec.to_builtins(msgspec.structs.replace(_details(records), as_of=as_of)),
    }


def _one(found: Iterable[str]) -> str:
    """What all are; empty if they differ."""
    different = set(found)
    return different.pop() if len(different) == 1 else ""


def _inputs(records: Collection[Record]) -> dict[str, int]:
    """The oldest version of each input that a day was made from."""
    found: dict[str, int] = {}
    for record in records:
        for name, version in record.inputs.items():
            found[name] = min(version, found.get(name, version))
    return found


def _published(ledger: Ledger, day: date, measured: Measured, config: str) -> Published:
    """What is said of a day: as before, with the figures of its rows under the change."""
    record = ledger.latest[day]
    under = record.made_under(day)
    return msgspec.structs.replace(
        record.days[day],
        digest=measured.digest,
        nulls={name: count for name, count in measured.nulls.items() if count},
        totals={name: str(total) for name, total in measured.totals.items()},
        made_under="" if under == config else under,
    )


def _details(records: Mapping[date, Record]) -> Details:
    """What those who follow the table are told: that no row of theirs changes."""
    of = {day: record.details for day, record in records.items()}
    references = [details.references for details in of.values()]
    spans = [details.spans for details in of.values()]
    alike = references and all(one == references[0] for one in references)
    return Details(
        landing={day: d.landing[day] for day, d in of.items() if day in d.landing},
        event_days=[],
        current_days=[],
        log_days=[],
        spans=None
        if None in spans
        else {day: d.spans[day] for day, d in of.items() if d.spans and day in d.spans},
        late={day: d.late[day] for day, d in of.items() if day in d.late},
        references=references[0] if alike else {},
        spreads={day: d.spreads[day] for day, d in of.items() if day in d.spreads},
    )
