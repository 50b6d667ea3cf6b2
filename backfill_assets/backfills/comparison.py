"""How a day that was computed anew compares with the published one, and why they may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum

from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, PublishedDay
from backfill_assets.quality.audit import DayMetrics, rows_differ

_UNEXPLAINED = (
    "nothing that it is made of has changed since: the files of an input were changed behind its "
    "log, or the computation is not deterministic"
)


class VerifyOutcome(Enum):
    """How a day that was computed anew compares with the published one."""

    MATCHES = "matches"
    DIFFERS = "differs"
    NOT_PUBLISHED = "not published"
    #: It is published, but what would be computed now does not pass the audit.
    WOULD_FAIL = "would fail"


@dataclass(frozen=True)
class DaySummary:
    """What a day holds, in numbers; equal if the digests are.

    Attributes:
        rows: number of rows.
        totals: sums by column, as text; money exact.
        digest: of the rows.
    """

    rows: int = field(compare=False)
    totals: Mapping[str, str] = field(compare=False)
    digest: str

    @classmethod
    def from_numbers(cls, numbers: DayMetrics | PublishedDay) -> DaySummary:
        """The content that an audit measured, now or when the day was published."""
        totals = {name: str(total) for name, total in numbers.totals.items()}
        return cls(numbers.rows, totals, numbers.digest)

    def __str__(self) -> str:
        totals = [f"{name} {total}" for name, total in self.totals.items()]
        return ", ".join([f"{self.rows:,} rows", *totals])


@dataclass(frozen=True)
class VerifiedDay:
    """What was found of one day of a table.

    Attributes:
        table: the table's name.
        day: the day.
        outcome: how the day compares.
        why: what explains the outcome; of a day that matches, what has changed without changing it.
        published: what the record of the day's commit says; none if there is no record.
        held: what the data files hold; none if the day is not published or cannot be read.
        now: what was computed anew; none if it could not be computed.
        same_inputs: whether inputs and settings are those that the day was published with.
    """

    table: str
    day: date
    outcome: VerifyOutcome
    why: str = ""
    published: DaySummary | None = None
    held: DaySummary | None = None
    now: DaySummary | None = None
    same_inputs: bool = False

    def __str__(self) -> str:
        if self.outcome is not VerifyOutcome.DIFFERS:
            return self.why
        parts = [f"published {self.published}"] if self.published else []
        if self.held and self.held != self.published:
            parts.append(f"the files hold {self._describe_other(self.held)}")
        parts.append(f"now {self._describe_other(self.now)}")
        return f"{'; '.join(parts)}: {self.why}"

    def _describe_other(self, other: DaySummary | None) -> str:
        """Another content than the published one, also where its numbers alone do not tell."""
        if other != self.published and str(other) == str(self.published):
            return "as many rows with the same totals, but other values"
        return str(other)


def compare_day(
    ledger: Ledger,
    day: date,
    *,
    recomputed: DaySummary | None,
    audit_failure: str,
    stored: DaySummary | None,
    read_error: str,
    changed_since_publish: Sequence[str],
    same_inputs: bool = False,
) -> VerifiedDay:
    """How a day that was computed anew compares with the published one.

    Args:
        ledger: what the table's log says.
        day: the day.
        recomputed: what was computed; none if it could not be.
        audit_failure: why it would not be published now; empty if it would.
        stored: what the data files hold; none if nothing is published or they cannot be read.
        read_error: why the data files cannot be read; empty if they can.
        changed_since_publish: what is no longer as it was when the day was published.
        same_inputs: whether inputs and settings are as they were then.
    """
    record = ledger.latest.get(day)
    published = DaySummary.from_numbers(record.days[day]) if record else None
    file_problem = f"its files cannot be read ({read_error})" if read_error else ""
    if published and stored and not rows_differ(published.digest, stored.digest):
        # The record is of a time when nested values were hashed in another way.
        published = replace(published, digest=stored.digest)
    if stored != published:
        file_problem = file_problem or _explain_files(ledger, record, day)
    if day not in ledger.published_days:
        outcome = VerifyOutcome.NOT_PUBLISHED
        explanation = (
            f"would fail now: {audit_failure}"
            if audit_failure
            else f"would be published now: {recomputed}"
        )
    elif audit_failure:
        outcome, explanation = (
            VerifyOutcome.WOULD_FAIL,
            "; ".join(filter(None, [audit_failure, file_problem])),
        )
    elif stored == published == recomputed:
        outcome, explanation = (
            VerifyOutcome.MATCHES,
            f"although {' and '.join(changed_since_publish)}" if changed_since_publish else "",
        )
    else:
        outcome = VerifyOutcome.DIFFERS
        if recomputed == published:
            reasons = ["computed anew it is as it was published"]
        else:
            reasons = [
                " and ".join(changed_since_publish) or ("" if file_problem else _UNEXPLAINED)
            ]
        explanation = "; ".join(filter(None, [file_problem, *reasons]))
    return VerifiedDay(
        ledger.table.name, day, outcome, explanation, published, stored, recomputed, same_inputs
    )


def _explain_files(ledger: Ledger, record: CommitRecord | None, day: date) -> str:
    """Why the files of a day do not hold what its record says."""
    valid_version = record.valid_as_of(day) if record else -1
    external_commits = [
        x for x in ledger.external_commits if day in x.days and x.version > valid_version
    ]
    if external_commits:
        last = external_commits[-1]
        return f"another writer changed it in version {last.version} ({last.operation})"
    if record is None:
        return "its rows were written before any commit on record"
    if changed_columns := ledger.columns_changed_since(record):
        return f"version {record.version} is from before {', '.join(sorted(changed_columns))} came or went"
    return f"its files are not what version {record.version} says: changed behind the log"
