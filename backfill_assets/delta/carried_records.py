"""What a commit says of days that nobody computed anew: what their records said, and what changed.

A migration changes the columns of the days' rows, an acceptance of code the code version alone; a
target gives production its days as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Any
from uuid import uuid4

import msgspec

from backfill_assets.calendar.partitions import to_ranges, to_windows
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    CommitDetails,
    Provenance,
    PublishedDay,
    encode_day,
)
from backfill_assets.delta.schema_changes import Migration
from backfill_assets.provenance import package_version
from backfill_assets.quality.audit import DayMetrics
from backfill_assets.tables.code_version import Code


def build_migration_record(
    migration: Migration, measured: Mapping[date, DayMetrics], current: Ledger
) -> dict[str, Any]:
    """The record of a migration: of the rewritten days, what their records said.

    Days that others have changed since they were published stay so: nobody vouches for them.

    Args:
        migration: the migration.
        measured: by day, what its new data files hold.
        current: the ledger that the commit rests on.
    """
    ledger = migration.ledger
    days = [day for day in sorted(migration.days) if ledger.current_record(day)]
    reason = "; ".join(change.text for change in migration.changes)
    # Whose rows a day holds stays as it was: an undo sees through the migration.
    as_of = {str(current.version): to_ranges(migration.days)} if migration.days else {}
    return {
        **build_carried_record(
            ledger,
            {day: _with_new_figures(ledger.latest[day].days[day], measured[day]) for day in days},
            {day: ledger.latest[day].day_provenance(day) for day in days},
            _without_row_changes(ledger, days, CommitDetails(as_of=as_of)),
        ),
        "run_id": f"migrate-{uuid4().hex[:12]}",
        "reason": reason,
        "since": current.version,
        "days": [str(window) for window in to_windows(migration.days)],
        "because": {"schema change": to_ranges(days)},
    }


def build_acceptance_record(
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
    accepts = {version: to_ranges(version_days) for version, version_days in by_version.items()}
    present_code = {
        "code_version": code.table_version(ledger.table.name),
        "release": code.version,
        "package": package_version(),
        "git_commit": code.commit,
        "git_dirty": code.dirty,
    }
    provenances = {
        day: msgspec.structs.replace(ledger.latest[day].day_provenance(day), **present_code)
        for day in days
    }
    return {
        **build_carried_record(
            ledger,
            {day: ledger.latest[day].days[day] for day in sorted(days)},
            provenances,
            _without_row_changes(ledger, days, CommitDetails(kind=ACCEPTED_CODE, accepts=accepts)),
        ),
        "run_id": f"accept-{uuid4().hex[:12]}",
        "reason": reason,
        "since": ledger.version,
        "because": {"code accepted": to_ranges(days)},
    }


def build_carried_record(
    ledger: Ledger,
    published: Mapping[date, PublishedDay],
    provenances: Mapping[date, Provenance],
    details: CommitDetails,
) -> dict[str, Any]:
    """What a commit says of days whose rows another commit has made.

    Args:
        ledger: that in which the days have their records.
        published: by day, what the commit is to say of it.
        provenances: by day, what its rows were made by and from.
        details: those of the commit.
    """
    made_under = {day: ledger.latest[day].made_under(day) for day in published}
    config = Counter(made_under.values()).most_common(1)[0][0] if made_under else ""
    common = _common_provenance(provenances.values())

    def carry_day(day: date, figures: PublishedDay) -> PublishedDay:
        provenance = provenances[day]
        return msgspec.structs.replace(
            figures,
            made_under="" if made_under[day] == config else made_under[day],
            provenance=None if provenance == common else provenance,
        )

    return {
        "asset": ledger.table.name,
        "config_digest": config,
        **{name: getattr(common, name) for name in _CODE_FIELDS},
        "inputs": dict(common.inputs),
        "audit": {
            str(day): encode_day(carry_day(day, figures)) for day, figures in published.items()
        },
        "final": to_ranges(ledger.final_days & published.keys()),
        "said": msgspec.to_builtins(msgspec.structs.replace(details, references=common.references)),
    }


#: What a commit says of the code, by the names that `Provenance` has as well.
_CODE_FIELDS = ("code_version", "release", "package", "git_commit", "git_dirty")


def _common_provenance(provenances: Collection[Provenance]) -> Provenance:
    """What a commit says of all of its days: what they have in common, and their oldest inputs."""
    git_dirty = {provenance.git_dirty for provenance in provenances}
    references = [provenance.references for provenance in provenances]
    all_equal = references and all(each == references[0] for each in references)
    texts = {
        name: _common_value(getattr(provenance, name) for provenance in provenances)
        for name in _CODE_FIELDS
        if name != "git_dirty"
    }
    return Provenance(
        **texts,
        git_dirty=git_dirty.pop() if len(git_dirty) == 1 else None,
        inputs=_oldest_inputs(provenances),
        references=references[0] if all_equal else {},
    )


def _common_value(values: Iterable[str]) -> str:
    """The value that all have; empty if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""


def _oldest_inputs(provenances: Collection[Provenance]) -> dict[str, int]:
    """The oldest version of each input that a day was made from."""
    oldest: dict[str, int] = {}
    for provenance in provenances:
        for name, version in provenance.inputs.items():
            oldest[name] = min(version, oldest.get(name, version))
    return oldest


def _with_new_figures(published: PublishedDay, measured: DayMetrics) -> PublishedDay:
    """What is said of a day: as before, with the figures of its rows under a schema change."""
    return msgspec.structs.replace(
        published,
        digest=measured.digest,
        nulls={name: count for name, count in measured.nulls.items() if count},
        totals={name: str(total) for name, total in measured.totals.items()},
    )


def _without_row_changes(
    ledger: Ledger, days: Collection[date], details: CommitDetails
) -> CommitDetails:
    """What those who follow the table read: that no row of theirs changes."""
    by_day = {day: ledger.latest[day].details for day in days}
    spans = [carried.spans for carried in by_day.values()]
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
        spreads={day: d.spreads[day] for day, d in by_day.items() if day in d.spreads},
        on_hold={day: fingerprint for day, fingerprint in ledger.on_hold.items() if day in by_day},
    )
