"""What happens in an invented landing: orders, and how each of them reaches the landing zone."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import accumulate

from backfill_assets.sample.lines import DAY, Line, end_of, start_of

# Shares of the orders (the malformed lines: of the orders of a day) that meet each trouble.
_NO_CUSTOMER = 0.02
_LATE_IN_WINDOW = 0.05
_LATE_BEYOND_WINDOW = 0.005
_RESENT = 0.02
_CORRECTED = 0.02
_EARLY = 0.003
_MALFORMED = 0.005
_REFUND = 0.005
_TROUBLES = ("broken", "missing", "bad number", "bad timestamp", "future")


@dataclass
class Emitter:
    """Decides what happens: orders, and how each of them reaches the landing zone."""

    rng: random.Random
    start: date
    days: int
    orders_per_day: int
    window_days: int
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.start + (self.days - 1) * DAY
        # Integer Zipf weights: the k-th customer orders in proportion to 1/k.
        population = max(20, 5 * self.orders_per_day)
        self.customer_weights = list(accumulate(10**9 // k for k in range(1, population + 1)))

    def emit_lines(self) -> list[Line]:
        """Return every line of every file, in no order that matters."""
        for offset in range(self.days):
            day = self.start + offset * DAY
            for number in range(self.orders_per_day):
                self._emit_order(day, f"o-{day:%Y%m%d}-{number:06d}")
            self._emit_malformed_lines(day)
        return self.lines

    def _emit_order(self, day: date, order_id: str) -> None:
        rng = self.rng
        order_ts = self._random_moment(day)
        roll = rng.random()
        if roll < _LATE_BEYOND_WINDOW:
            line = self._delayed_line(order_id, order_ts, self.window_days + 1 + rng.randrange(5))
        elif roll < _LATE_BEYOND_WINDOW + _LATE_IN_WINDOW and self.window_days:
            line = self._delayed_line(order_id, order_ts, 1 + rng.randrange(self.window_days))
        elif 1 - roll < _EARLY and day < self.last:
            line = self._early_line(order_id, day)
        else:
            line = self._prompt_line(order_id, order_ts)
        if line.arrival > self.last:
            return
        self.lines.append(line)
        if rng.random() < _RESENT:
            # Exactly the same line again: same content, same or later folder.
            resent_day = line.arrival + rng.choice((0, 0, 1, 2, 3)) * DAY
            self.lines.append(replace(line, arrival=min(resent_day, self.last)))
        while rng.random() < _CORRECTED:
            corrected = self._corrected_line(line)
            if corrected is None:
                break
            self.lines.append(corrected)
            line = corrected

    def _prompt_line(self, order_id: str, order_ts: datetime) -> Line:
        """Ingested within minutes, in the folder of the day of ingestion."""
        latency = timedelta(milliseconds=self.rng.randrange(200, 5 * 60_000))
        ingestion_ts = min(order_ts + latency, end_of(self.last))
        return self._new_line(ingestion_ts.date(), order_id, order_ts, ingestion_ts)

    def _delayed_line(self, order_id: str, order_ts: datetime, delay: int) -> Line:
        """In the folder of a later day: ingested late, or ingested at once and shipped late."""
        arrival = order_ts.date() + delay * DAY
        if self.rng.random() < 0.5:
            return self._new_line(arrival, order_id, order_ts, self._random_moment(arrival))
        ingestion_ts = order_ts + timedelta(seconds=self.rng.randrange(1, 3600))
        return self._new_line(arrival, order_id, order_ts, ingestion_ts)

    def _early_line(self, order_id: str, day: date) -> Line:
        """In today's folder, though its version time already lies in the next day."""
        midnight = start_of(day + DAY)
        ingestion_ts = midnight + timedelta(seconds=self.rng.randrange(1, 300))
        # Half of them happened before midnight; the other half bear a clock that runs ahead.
        shift = self.rng.choice((-1, 1)) * timedelta(seconds=self.rng.randrange(1, 60))
        return self._new_line(day, order_id, midnight + shift, ingestion_ts)

    def _corrected_line(self, line: Line) -> Line | None:
        """Return a later version of the order, or None if it would arrive after the last day."""
        rng = self.rng
        # Counted from the ingestion, not the arrival: a correction may overtake what it corrects.
        since = line.ingestion_ts + timedelta(seconds=1)
        arrival = since.date() + rng.choice((0, 0, 1, 1, 2, 3, self.window_days + 1)) * DAY
        if arrival > self.last:
            return None
        kind = rng.choice(("amount", "customer", "day"))
        corrected = line
        if kind == "day":
            moved = line.event_day + rng.choice((-3, -2, -1, 1, 2, 3)) * DAY
            if not self.start <= moved <= arrival:
                kind = "amount"
            else:
                moved_ts = datetime.combine(moved, line.order_ts.timetz())
                corrected = replace(line, order_ts=moved_ts)
        if kind == "customer":
            corrected = replace(line, customer_id=self._random_customer())
        if kind == "amount":
            corrected = replace(line, amount=self._random_amount())
        earliest = max(since, corrected.order_ts, start_of(arrival))
        room = max((end_of(arrival) - earliest) // timedelta(milliseconds=1), 0)
        ingestion_ts = earliest + timedelta(milliseconds=rng.randrange(room + 1))
        return replace(corrected, arrival=arrival, ingestion_ts=ingestion_ts)

    def _emit_malformed_lines(self, day: date) -> None:
        rng = self.rng
        share = _MALFORMED * self.orders_per_day
        count = int(share) + (rng.random() < share % 1)
        for number in range(count):
            moment = self._random_moment(day)
            order_id = f"x-{day:%Y%m%d}-{number:04d}"
            trouble = rng.choice(_TROUBLES)
            ingestion_ts = moment
            if trouble == "future":
                # In the name of a real order, which it must not replace.
                order_id = f"o-{day:%Y%m%d}-{rng.randrange(self.orders_per_day):06d}"
                ingestion_ts = moment + (2 + rng.randrange(400)) * DAY
            line = self._new_line(day, order_id, moment, ingestion_ts)
            self.lines.append(replace(line, trouble=trouble, detail=rng.randrange(60)))

    def _new_line(
        self, arrival: date, order_id: str, order_ts: datetime, ingestion_ts: datetime
    ) -> Line:
        return Line(
            arrival,
            order_id,
            self._random_customer(),
            order_ts,
            self._random_amount(),
            ingestion_ts,
        )

    def _random_moment(self, day: date) -> datetime:
        # The sum of two uniform draws: quiet nights, busy noons.
        half = 43_200_000
        milliseconds = self.rng.randrange(half) + self.rng.randrange(half)
        return start_of(day) + timedelta(milliseconds=milliseconds)

    def _random_customer(self) -> str | None:
        if self.rng.random() < _NO_CUSTOMER:
            return None
        draw = self.rng.randrange(self.customer_weights[-1])
        rank = bisect_right(self.customer_weights, draw) + 1
        # One regular customer whose id needs quoting and is not plain ASCII.
        return 'Zoë "Z", Köln' if rank == 5 else f"c-{rank:06d}"

    def _random_amount(self) -> Decimal:
        cents = self.rng.randrange(499, 5000) * self.rng.choice((1, 1, 1, 2, 2, 3, 5, 12))
        if self.rng.random() < _REFUND:
            cents = -cents
        return Decimal(cents).scaleb(-2)
