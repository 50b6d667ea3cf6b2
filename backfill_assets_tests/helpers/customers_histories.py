"""What lands of customers and orders over some days: late, out of order, corrected and twice."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from backfill_assets_guide.examples.customers.sample import create_batches
from backfill_assets_tests.helpers.pipeline import START, day, order

Line = Mapping[str, Any]
#: The latest day of each look at the landing.
LOOKS = (2, 4, 6, 7)
DAYS = LOOKS[-1]


@dataclass(frozen=True)
class File:
    """A file of the landing."""

    source: str
    arrival: date
    name: str
    lines: tuple[Line, ...]

    def land(self, landing: Path) -> None:
        folder = landing / self.source / f"arrival_date={self.arrival}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.name).write_text("".join(f"{json.dumps(line)}\n" for line in self.lines))


def _random_orders(chance: random.Random) -> Iterator[tuple[date, bool, Line]]:
    """(arrival day, whether its file must not be late, line) of orders.

    Each day has an order of a customer that comes on that day: a day of none but orders without a
    customer is held back.
    """
    for n in range(1, DAYS + 1):
        for k in range(chance.choice([1, 2, 3, 3])):
            at = f"{chance.randrange(24):02d}:30"
            customer = f"c-{chance.randrange(4):04d}" if k == 0 else _random_customer(chance)
            arrival = n if k == 0 else min(DAYS, n + chance.choice([0, 0, 1, 2, 4]))
            amount = f"{chance.randint(100, 9999) / 100:.2f}"
            ingested = f"{day(arrival)}T23:40:00Z"
            line = order(f"o{n}-{k}", n, amount, customer, at=at, ingested=ingested)
            yield day(arrival), k == 0, line
            second_arrival = arrival + chance.choice([1, 2, 3])
            if k and chance.random() < 0.4 and second_arrival <= DAYS:
                moved = max(1, n - chance.choice([0, 0, 1]))
                ingested = f"{day(second_arrival)}T23:50:00Z"
                line = order(f"o{n}-{k}", moved, "1.00", customer, at=at, ingested=ingested)
                yield day(second_arrival), False, line


def _random_customer(chance: random.Random) -> str | None:
    return chance.choice([f"c-{chance.randrange(4):04d}", "c-stranger", None])


def history(seed: int) -> list[list[File]]:
    """The files that each look finds: some come later than their day, and some twice."""
    chance = random.Random(seed)
    generated = create_batches(start=START, days=DAYS, customers=3, orders_per_day=0, seed=seed)
    lines = [("orders", *order_line) for order_line in _random_orders(chance)]
    for batch in generated:
        for arrival, folder_lines in batch["customer_changes"].items():
            lines += [("customer_changes", arrival, False, line) for line in folder_lines]
    lines_by_look: list[dict[tuple[str, date], list[Line]]] = [defaultdict(list) for _ in LOOKS]
    for source, arrival, prompt, line in lines:
        first = next(k for k, last in enumerate(LOOKS) if day(last) >= arrival)
        late = 0 if prompt else chance.choice([0, 0, 0, 1, 2])
        lines_by_look[min(first + late, len(LOOKS) - 1)][source, arrival].append(line)
    files: list[list[File]] = [[] for _ in LOOKS]
    for k, by_folder in enumerate(lines_by_look):
        for (source, arrival), folder_lines in by_folder.items():
            shuffled = tuple(chance.sample(folder_lines, len(folder_lines)))
            files[k].append(File(source, arrival, f"look-{k}.jsonl", shuffled))
            if chance.random() < 0.3:
                later = min(k + chance.choice([0, 1]), len(LOOKS) - 1)
                days = timedelta(days=chance.choice([0, 0, 1]))
                to = min(arrival + days, day(LOOKS[later]))
                files[later].append(File(source, to, f"again-{k}-{arrival}.jsonl", shuffled))
    return files
