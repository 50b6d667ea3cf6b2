"""How a day that was computed anew compares with the published one, and why they may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum

from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import Published, Record
from backfill_assets.quality.audit import Measured, differ

_UNEXPLAINED = (
    "nothing that it is made of has changed since: the files of an input were changed behind its "
    "log, or the computation is not deterministic"
)


class Match(Enum):
    """How a day that was computed anew compares with the published one."""

    MATCHES = "matches"
    DIFFERS = "differs"
    NOT_PUBLISHED = "not published"
    #: It is published, but what would be computed now does not pass the audit.
    WOULD_FAIL = "would fail"


@dataclass(frozen=True)
class Content:
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
    def of(cls, numbers: Measured | Published) -> Content:
        """The content that an audit measured, now or when the day was published."""
        totals = {name: str(total) for name, total in numbers.totals.items()}
        return cls(numbers.rows, totals, numbers.digest)

    def __str__(self) -> str:
        totals = [f"{name} {total}" for name, total in self.totals.items()]
        return ", ".join([f"{self.rows:,} rows", *totals])


@dataclass(frozen=True)
class Verified:
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
    outcome: Match
    why: str = ""
    published: Content | None = None
    held: Content | None = None
    now: Content | None = None
    same_inputs: bool = False

    def __str__(self) -> str:
        if self.outcome is not Match.DIFFERS:
            return self.why
        told = [f"published {self.published}"] if self.published else []
        if self.held and self.held != self.published:
            told.append(f"the files hold {self._beside(self.held)}")
        told.append(f"now {self._beside(self.now)}")
        return f"{'; '.join(told)}: {self.why}"

    def _beside(self, other: Content | None) -> str:
        """Another content than the published one, also where its numbers alone do not tell."""
        if other != self.published and str(other) == str(self.published):
            return "as many rows with the same totals, but other values"
        return str(other)


def compare(
    ledger: Ledger,
    day: date,
    *,
    now: Content | None,
    failing: str,
    held: Content | None,
    unreadable: str,
    moved: Sequence[str],
    same_inputs: bool = False,
) -> Verified:
    """How a day that was computed anew compares with the published one.

    Args:
        ledger: what the table's log says.
        day: the day.
        now: what was computed; none if it could not be.
        failing: why it would not be published now; empty if it would.
        held: what the data files hold; none if nothing is published or they cannot be read.
        unreadable: why the data files cannot be read; empty if they can.
        moved: what is no longer as it was when the day was published.
        same_inputs: whether inputs and settings are as they were then.
    """
    record = ledger.latest.get(day)
    published = Content.of(record.days[day]) if record else None
    others = f"its files cannot be read ({unreadable})" if unreadable else ""
    if published and held and not differ(published.digest, held.digest):
        # The record is of a time when nested values were hashed in another way.
        published = replace(published, digest=held.digest)
    if held != published:
        others = others or _who_wrote(ledger, record, day)
    if day not in ledger.published:
        outcome = Match.NOT_PUBLISHED
        why = f"would fail now: {failing}" if failing else f"would be published now: {now}"
    elif failing:
        outcome, why = Match.WOULD_FAIL, "; ".join(filter(None, [failing, others]))
    elif held == published == now:
        outcome, why = Match.MATCHES, f"although {' and '.join(moved)}" if moved else ""
    else:
        outcome = Match.DIFFERS
        if now == published:
            said = ["computed anew it is as it was published"]
        else:
            said = [" and ".join(moved) or ("" if others else _UNEXPLAINED)]
        why = "; ".join(filter(None, [others, *said]))
    return Verified(ledger.table.name, day, outcome, why, published, held, now, same_inputs)


def _who_wrote(ledger: Ledger, record: Record | None, day: date) -> str:
    """Why the files of a day do not hold what its record says."""
    since = record.vouches(day) if record else -1
    theirs = [x for x in ledger.external if day in x.days and x.version > since]
    if theirs:
        last = theirs[-1]
        return f"another writer changed it in version {last.version} ({last.operation})"
    if record is None:
        return "its rows were written before any commit on record"
    if lacked := ledger.lacked(record):
        return f"version {record.version} is from before {', '.join(sorted(lacked))} came or went"
    return f"its files are not what version {record.version} says: changed behind the log"
