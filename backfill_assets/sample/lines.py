"""One line of an invented landing file, and the moments that a day begins and ends at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

DAY = timedelta(days=1)
#: The source of the lines: its folder in the landing.
SOURCE = "orders"


@dataclass(frozen=True)
class Line:
    """One line of a landing file. With a `trouble` it must be rejected."""

    arrival: date
    order_id: str
    customer_id: str | None
    order_ts: datetime
    amount: Decimal
    ingestion_ts: datetime
    trouble: str | None = None
    detail: int = 0  # which variant of the trouble

    @property
    def event_day(self) -> date:
        """The day it happened on."""
        return self.order_ts.date()

    @property
    def log_day(self) -> date:
        """The day it is logged on."""
        return max(self.arrival, self.order_ts.date(), self.ingestion_ts.date())

    @property
    def version_key(self) -> tuple[object, ...]:
        """What orders the versions of one order."""
        customer = (self.customer_id is not None, (self.customer_id or "").encode())
        version_time = max(self.order_ts, self.ingestion_ts)
        return (
            version_time, self.log_day, self.order_ts, self.ingestion_ts, self.amount, customer,
        )  # fmt: skip


def start_of(day: date) -> datetime:
    """The first moment of a day."""
    return datetime.combine(day, time(), tzinfo=timezone.utc)


def end_of(day: date) -> datetime:
    """The last millisecond of a day."""
    return start_of(day + DAY) - timedelta(milliseconds=1)
