"""Sample landings: invented orders with the expected answer, or the CDNOW data set.

It is never read back from the files, and it shares no code with the pipeline: that is what makes it
worth comparing with.

What happens is for `emitter`, what the files look like for `rendering`, and what a pipeline must
make of them for `answer`. No real data belongs here (that is `cdnow`).

The CDNOW data set is a public record of real purchases, which makes its totals a check that owes
nothing to this project: whatever is landed here must come out of the fact table again.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

from backfill_assets.sample.invented_orders import DAY, FORMATS, SOURCE, Emitter, Line, render_file


def expected_answer(lines: list[Line], calendar: list[date], window: timedelta) -> dict:
    """Count what the pipeline must arrive at."""
    accepted = [line for line in lines if line.trouble is None]
    landed = Counter(line.arrival for line in lines)
    rejected = Counter(line.arrival for line in lines if line.trouble is not None)
    early = Counter(line.arrival for line in accepted if line.log_day > line.arrival)
    raw = Counter(line.log_day for line in accepted)
    late = Counter(line.log_day for line in accepted if line.log_day > line.event_day + window)
    in_time = Counter(
        line.event_day for line in accepted if line.log_day <= line.event_day + window
    )

    staged, two_day_orders, no_day_orders = _winning_lines(accepted, calendar, window)
    event_days = _event_days(staged, in_time)
    total_revenue = sum(
        (Decimal(str(day["revenue"])) for day in event_days.values()), Decimal("0.00")
    )
    return {
        "arrival_days": {
            str(day): {"landed": landed[day], "rejected": rejected[day], "early": early[day]}
            for day in calendar
        },
        "log_days": {str(day): {"raw": raw[day], "late": late[day]} for day in calendar},
        "event_days": event_days,
        "totals": {
            "landed": len(lines),
            "rejected": rejected.total(),
            "early": early.total(),
            "raw": len(accepted),
            "late": late.total(),
            "staged": sum(day["staged"] for day in event_days.values()),
            "superseded": sum(day["superseded"] for day in event_days.values()),
            "fact_rows": sum(day["customers"] for day in event_days.values()),
            "revenue": str(total_revenue),
            "orders_on_two_days": two_day_orders,
            "orders_on_no_day": no_day_orders,
        },
    }


def _winning_lines(
    accepted: list[Line], calendar: list[date], window: timedelta
) -> tuple[dict[date, list[Line]], int, int]:
    """The line that wins of each order by event day; how many orders have two days, and none."""
    versions: defaultdict[str, list[Line]] = defaultdict(list)
    for line in accepted:
        versions[line.order_id].append(line)
    staged: dict[date, list[Line]] = {day: [] for day in calendar}
    two_day_orders = 0
    no_day_orders = 0
    for history in versions.values():
        days = 0
        # Each day asks for itself: of what was logged by its end, is the greatest one mine?
        for day in sorted({line.event_day for line in history}):
            known = [line for line in history if line.log_day <= day + window]
            winner = max(known, key=lambda line: line.version_key, default=None)
            if winner is not None and winner.event_day == day:
                staged[day].append(winner)
                days += 1
        # Corrections onto another day that came after one of the two days was final: the order
        # stays on the old day as well, or has left it while its new day was closed already.
        two_day_orders += days > 1
        no_day_orders += days == 0 and any(
            line.log_day <= line.event_day + window for line in history
        )
    return staged, two_day_orders, no_day_orders


def _event_days(staged: dict[date, list[Line]], in_time: Counter[date]) -> dict[str, dict]:
    """The numbers of each event day."""
    event_days = {}
    for day, winners in staged.items():
        revenue = sum((line.amount for line in winners), Decimal("0.00"))
        event_days[str(day)] = {
            "staged": len(winners),
            "superseded": in_time[day] - len(winners),
            "customers": len({line.customer_id for line in winners}),
            "orders": len(winners),
            "revenue": str(revenue),
        }
    return event_days


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


_RECORD = re.compile(r"\s*([0-9]+)\s+([0-9]{4})([0-9]{2})([0-9]{2})\s+[0-9]+\s+([0-9]+\.[0-9]+)\s*")


def write_cdnow_landing(master: Path, landing: Path) -> int:
    """Write one arrival folder for each purchase day and return the number of lines written.

    A record has no key of its own and exact repeats are real purchases, so the record's number in
    the file (1 for the first line below the header) becomes the order's id.

    Args:
        master: The master file: a header line, then customer, date, number of CDs and value,
            separated by whitespace.
        landing: The landing root; its `orders` folder must not exist yet.

    Raises:
        FileExistsError: If `landing` already has an `orders` folder.
        ValueError: If a line is not a CDNOW record.
    """
    lines_by_day: defaultdict[date, list[str]] = defaultdict(list)
    records = 0
    with master.open(encoding="ascii") as file:
        next(file)  # the header
        for text in file:
            if not text.strip():
                continue
            match = _RECORD.fullmatch(text)
            if match is None:
                raise ValueError(f"{master.name}: not a CDNOW record: {text!r}")
            records += 1
            customer, year, month, day, value = match.groups()
            purchase = date(int(year), int(month), int(day))
            lines_by_day[purchase].append(
                f'{{"order_id": "cdnow-{records:06d}", "customer_id": "{customer}", '
                f'"order_ts": "{purchase}T00:00:00Z", "amount": "{value}", '
                f'"ingestion_ts": "{purchase}T12:00:00Z"}}\n'
            )

    orders = landing / SOURCE
    orders.mkdir(parents=True)  # landed files are never changed, so an earlier landing is an error
    for purchase, lines in sorted(lines_by_day.items()):
        folder = orders / f"arrival_date={purchase}"
        folder.mkdir()
        (folder / "part-000.jsonl").write_bytes("".join(lines).encode("ascii"))
    return records
