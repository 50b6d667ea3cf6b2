"""Sample data: a change feed of customers and their orders, in three batches.

The batches have the shape of TPC-DI: a historical load, and then two increments of a day each. The
feed has inserts, updates, hard deletes and re-inserts, several changes a day and two at the same
moment; lines come late, out of order and twice; a change is corrected by a later version, which may
tell of another moment. Beside the batches: page views, which land by the hour, and a static table
of countries.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

_DAY = timedelta(days=1)
_STATUSES = ("ok", "ok", "ok", "bounced", "unsubscribed")
_SEGMENTS = ("auto", "building", "furniture", "machinery")
#: By country, its market.
_MARKETS = {"DE": "Europe", "FR": "Europe", "JP": "Asia", "US": "Americas"}
_COUNTRIES = tuple(_MARKETS)
#: By source and arrival day, the lines of the landing.
Batch = Mapping[str, Mapping[date, Sequence[Mapping[str, Any]]]]


@dataclass
class _Feed:
    """Decides what happens to customers, and when each line of it lands."""

    chance: random.Random
    start: date
    days: int
    landed: dict[str, dict[date, list[dict[str, Any]]]] = field(
        default_factory=lambda: {
            "customer_changes": defaultdict(list),
            "orders": defaultdict(list),
        }
    )
    #: By customer, whether it is there.
    is_present: dict[str, bool] = field(default_factory=dict)
    changes: int = 0

    @property
    def last_day(self) -> date:
        return self.start + (self.days - 1) * _DAY

    def random_moment(self, day: date) -> datetime:
        midnight = datetime.combine(day, time(), timezone.utc)
        return midnight + timedelta(seconds=self.chance.randrange(86_400))

    def add_change(self, customer: str, op: str, at: datetime) -> None:
        """A change with all its lines: late, sent again, corrected."""
        self.changes += 1
        self.is_present[customer] = op != "delete"
        line = {
            "change_id": f"ch-{self.changes:06d}",
            "customer_id": customer,
            "op": op,
            **self._random_attributes(),
            "changed_at": _format_moment(at),
        }
        arrival, taken_at = self._arrival(at)
        self._land_change(arrival, line, taken_at)
        if self.chance.random() < 0.05:
            self._land_change(arrival + self.chance.choice((0, 1, 2)) * _DAY, line, taken_at)
        while self.chance.random() < 0.12:
            other_moment = {}
            if self.chance.random() < 0.5:
                hours = self.chance.choice((-40, -5, -1, 1, 5))
                other_moment = {
                    "changed_at": _format_moment(min(at + timedelta(hours=hours), taken_at))
                }
            line = {**line, **self._random_attributes(), **other_moment}
            taken_at = min(
                taken_at + timedelta(minutes=self.chance.randrange(1, 4000)), self._last_moment
            )
            later = taken_at.date() + self.chance.choice((0, 0, 1, 3)) * _DAY
            self._land_change(later, line, taken_at)

    def add_order(self, day: date, number: int) -> None:
        at = self.random_moment(day)
        arrival, taken_at = self._arrival(at)
        known = [*self.is_present, "c-stranger", None]
        line = {
            "order_id": f"o-{day:%Y%m%d}-{number:04d}",
            "customer_id": self.chance.choice(known),
            "order_ts": _format_moment(at),
            "amount": f"{self.chance.randrange(100, 20_000) / 100:.2f}",
            "ingestion_ts": _format_moment(taken_at),
        }
        if arrival <= self.last_day:
            self.landed["orders"][arrival].append(line)

    @property
    def _last_moment(self) -> datetime:
        return datetime.combine(self.last_day, time(23, 59, 59), timezone.utc)

    def _random_attributes(self) -> dict[str, str | None]:
        return {
            "email_status": self.chance.choice(_STATUSES),
            "segment": self.chance.choice(_SEGMENTS),
            "country": self.chance.choice((*_COUNTRIES, None)),
        }

    def _arrival(self, at: datetime) -> tuple[date, datetime]:
        """The arrival day of a line, and when the source took it."""
        taken_at = min(at + timedelta(seconds=self.chance.randrange(1, 7200)), self._last_moment)
        if self.chance.random() < 0.8:
            return taken_at.date(), taken_at
        arrival = taken_at.date() + self.chance.randrange(1, 5) * _DAY
        # Taken at once and shipped late, or taken late.
        return arrival, taken_at if self.chance.random() < 0.5 else self.random_moment(arrival)

    def _land_change(self, arrival: date, line: Mapping[str, Any], taken_at: datetime) -> None:
        if arrival <= self.last_day:
            lines = self.landed["customer_changes"][arrival]
            lines.append({**line, "ingested_at": _format_moment(taken_at)})


def _format_moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def create_batches(
    *, start: date, days: int = 14, customers: int = 12, orders_per_day: int = 20, seed: int = 7
) -> list[Batch]:
    """What lands: the historical load, and two increments of a day each.

    The same arguments give the same lines.

    Args:
        start: the first arrival day.
        days: arrival days of all batches together; 3 or more.
        customers: how many there are in the beginning; some come later.
        orders_per_day: how many orders happen on a day.
        seed: another seed gives other lines with the same troubles.

    Raises:
        ValueError: there are too few days for three batches.
    """
    if days < 3:
        raise ValueError("three batches need three days or more")
    chance = random.Random(seed)
    feed = _Feed(chance, start, days)
    for n in range(customers):
        feed.add_change(
            f"c-{n:04d}", "insert", feed.random_moment(start - chance.choice((0, 0, 0, 30)) * _DAY)
        )
    for day in (start + n * _DAY for n in range(days)):
        for customer in sorted(feed.is_present):
            for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2, 3))):
                at = feed.random_moment(day)
                op = "update" if feed.is_present[customer] else "insert"
                feed.add_change(customer, "delete" if chance.random() < 0.15 else op, at)
                if chance.random() < 0.1:
                    feed.add_change(customer, "update", at)
        if chance.random() < 0.5:
            feed.add_change(f"c-{len(feed.is_present):04d}", "insert", feed.random_moment(day))
        for number in range(orders_per_day):
            feed.add_order(day, number)
    increments = [feed.last_day - _DAY, feed.last_day]
    history = [feed.start + n * _DAY for n in range(days - 2)]
    return [
        {
            source: {day: by_day.get(day, []) for day in batch_days}
            for source, by_day in feed.landed.items()
        }
        for batch_days in (history, *([day] for day in increments))
    ]


def land_batch(landing: Path, batch: Batch) -> None:
    """Write the files of a batch below a landing root; its lines are out of order."""
    for source, by_day in batch.items():
        for day, lines in by_day.items():
            folder = landing / source / f"arrival_date={day}"
            folder.mkdir(parents=True, exist_ok=True)
            shuffled = random.Random(f"{source} {day}").sample([*lines], len(lines))
            text = "".join(f"{json.dumps(line)}\n" for line in shuffled)
            (folder / "part-000.jsonl").write_text(text)


def land_page_views(landing: Path, *, start: date, days: int, customers: int, seed: int) -> None:
    """Write page views, a file an hour; an hour of every third day does not come."""
    chance = random.Random(f"page views {seed}")
    for n in range(days * 24):
        begin = datetime.combine(start, time(), timezone.utc) + timedelta(hours=n)
        if n % 72 == 27:
            continue
        lines = []
        for number in range(chance.randrange(2, 9)):
            at = begin + timedelta(seconds=chance.randrange(3600))
            line = {
                "view_id": f"v-{begin:%Y%m%d%H}-{number}",
                "customer_id": chance.choice([None, f"c-{chance.randrange(customers):04d}"]),
                "viewed_at": _format_moment(at),
                "sent_at": _format_moment(at),
            }
            lines.append(f"{json.dumps(line)}\n")
        folder = landing / "page_views" / f"arrival_date={begin:%Y-%m-%d}" / f"hour={begin:%H}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part-000.jsonl").write_text("".join(lines))


def write_countries(warehouse: Path) -> None:
    """Write the table of countries; where it is there already, with the same rows."""
    rows = {"country": [*_MARKETS], "market": [*_MARKETS.values()]}
    write_deltalake(warehouse / "countries", pa.table(rows), mode="overwrite")


def main() -> None:
    """Write sample data from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("landing", type=Path, help="the landing root")
    parser.add_argument("warehouse", type=Path, help="where the table of countries is written")
    parser.add_argument("--start", type=date.fromisoformat, default=date(2024, 1, 1))
    parser.add_argument("--days", type=int, default=21)
    parser.add_argument("--customers", type=int, default=50)
    parser.add_argument("--orders-per-day", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    options = vars(parser.parse_args())
    landing = options.pop("landing")
    write_countries(options.pop("warehouse"))
    for batch in create_batches(**options):
        land_batch(landing, batch)
    del options["orders_per_day"]
    land_page_views(landing, **options)


if __name__ == "__main__":
    main()
