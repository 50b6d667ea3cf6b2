"""Invent landing files with every trouble real ones have, and the right answer beside them.

What happens is for `emitter`, what the files look like for `rendering`, and what a pipeline must
make of them for `answer`. No real data belongs here (that is `cdnow`).
"""

from __future__ import annotations

import json
import random
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

from backfill_assets.sample.answer import expected_answer
from backfill_assets.sample.emitter import Emitter
from backfill_assets.sample.lines import DAY, SOURCE, Line
from backfill_assets.sample.rendering import FORMATS, render_file


def write_invented_landing(
    landing: Path,
    *,
    start: date,
    days: int,
    orders_per_day: int = 200,
    seed: int = 7,
    window_days: int = 7,
) -> dict:
    """Write `days` arrival folders below `landing`, and `expected.json`; return what it says.

    The same arguments give the same bytes. The business time zone is UTC. All orders happen, and
    all lines arrive and are logged, from `start` to the day before `start + days`.

    Args:
        landing: The landing root; its `orders` folder must not exist yet.
        start: The first arrival day.
        days: The number of arrival days.
        orders_per_day: How many orders happen on a day.
        seed: Another seed gives other orders with the same troubles.
        window_days: The reprocessing window that the expected answer is for.

    Raises:
        FileExistsError: If `landing` already has an `orders` folder.
        ValueError: If a count is out of range.
    """
    if days < 1 or orders_per_day < 0 or window_days < 0:
        raise ValueError("days must be positive; orders_per_day and window_days not negative")
    orders = landing / SOURCE
    orders.mkdir(parents=True)  # landed files are never changed, so an earlier landing is an error

    rng = random.Random(seed)
    lines = Emitter(rng, start, days, orders_per_day, window_days).emit_lines()
    calendar = [start + n * DAY for n in range(days)]
    by_arrival: dict[date, list[Line]] = {day: [] for day in calendar}
    for line in lines:
        by_arrival[line.arrival].append(line)

    _write_files(orders, by_arrival, rng)
    answer = {
        "start": str(start),
        "days": days,
        "orders_per_day": orders_per_day,
        "seed": seed,
        "window_days": window_days,
        "timezone": "UTC",
        **expected_answer(lines, calendar, timedelta(days=window_days)),
    }
    _write_json(landing / "expected.json", answer)
    return answer


def _write_files(orders: Path, by_arrival: dict[date, list[Line]], rng: random.Random) -> None:
    """Write the arrival folders, given their days in order."""
    file_number = 0
    for index, (day, lines) in enumerate(by_arrival.items()):
        folder = orders / f"arrival_date={day}"
        folder.mkdir()
        parts: list[list[Line]] = [[] for _ in range(rng.choice((1, 2, 2, 3)))]
        for line in sorted(lines, key=lambda line: line.ingestion_ts):
            rng.choice(parts).append(line)
        for part, content in enumerate(parts):
            suffix = FORMATS[file_number % len(FORMATS)]
            data = render_file(suffix, content, file_number, rng)
            (folder / f"part-{part:03d}.{suffix}").write_bytes(data)
            file_number += 1
        if index == min(1, len(by_arrival) - 1):
            (folder / f"part-{len(parts):03d}.jsonl").write_bytes(b"")
        if index % 3 == 0:
            accepted = [line for line in lines if line.trouble is None]
            amount = sum((line.amount for line in accepted), Decimal("0.00"))
            _write_json(folder / "_control.json", {"rows": len(accepted), "amount": str(amount)})


def _write_json(path: Path, value: object) -> None:
    path.write_bytes((json.dumps(value, indent=2) + "\n").encode())
