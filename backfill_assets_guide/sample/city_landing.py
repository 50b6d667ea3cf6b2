"""The landing of the example `city`: files of readings and tickets, day by day, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

DISTRICTS = ("Alfama", "Baixa", "Belém")
_DAY = timedelta(days=1)

#: A line of a file, as it is written: strings, and decimals as text.
Line = Mapping[str, str]


def files_of_day(seed: int, arrival: date, first: date) -> dict[str, list[Line]]:
    """By path in the landing, the lines of the files that come for an arrival day.

    Readings are of the day before, and of the days before that if a station was offline; some are
    corrected values. Tickets are of the day itself, some of earlier days; none on Sundays.
    """
    chance = random.Random(f"{seed} {arrival}")
    folder = f"arrival_date={arrival}"
    files = {f"readings/{folder}/stations.jsonl": [*_readings(chance, arrival, first)]}
    if arrival.weekday() < 6:
        files[f"tickets/{folder}/tickets.jsonl"] = [*_tickets(chance, arrival, first)]
    return files


def write_files(landing: Path, files: Mapping[str, list[Line]]) -> None:
    """Write files into a landing."""
    for name, lines in files.items():
        path = landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _readings(chance: random.Random, arrival: date, first: date) -> Iterator[Line]:
    for number, district in enumerate(DISTRICTS):
        days_late = chance.choice([1] * 9 + [2, 4])
        for day in {arrival - _DAY, arrival - days_late * _DAY}:
            if day >= first:
                for hour in (6, 18):
                    yield {
                        "station": f"s{number}",
                        "district": district,
                        "measured_at": _at(day, hour),
                        "pm10": f"{chance.randrange(50, 600) / 10}",
                        "sent_at": _at(arrival, 1),
                    }


def _tickets(chance: random.Random, arrival: date, first: date) -> Iterator[Line]:
    for number in range(chance.randrange(2, 6)):
        issued = max(first, arrival - chance.choice([0] * 9 + [1, 3]) * _DAY)
        if issued.weekday() == 6:
            issued = arrival
        yield {
            "ticket": f"{issued}-{arrival}-{number}",
            "district": chance.choice(DISTRICTS),
            "issued_at": _at(issued, 9 + number),
            "fine": f"{chance.randrange(3000, 12000) / 100:.2f}",
            "changed_at": _at(arrival, 20),
        }


def _at(day: date, hour: int) -> str:
    return datetime.combine(day, time(hour)).isoformat()


def district_days(lines: Mapping[str, list[Line]]) -> dict[tuple[date, str], dict[str, Any]]:
    """The rows of `district_day` by day and district, from all lines that have come, in Python.

    `lines` is by path in the landing. Of several values of a reading, the one sent last counts.
    """
    from decimal import Decimal

    readings: dict[tuple[str, str], Line] = {}
    tickets: dict[str, Line] = {}
    for name, file_lines in sorted(lines.items()):
        for line in file_lines:
            if name.startswith("readings/"):
                key = line["station"], line["measured_at"]
                if key not in readings or readings[key]["sent_at"] <= line["sent_at"]:
                    readings[key] = line
            else:
                tickets[line["ticket"]] = line
    rows: dict[tuple[date, str], dict[str, Any]] = {}

    def add(at: str, district: str, **values: Any) -> None:
        row = rows.setdefault((date.fromisoformat(at[:10]), district), {})
        for column, value in values.items():
            row[column] = row.get(column, 0) + value

    zero = {"readings": 0, "pm10": Decimal("0.0"), "tickets": 0, "fines": Decimal("0.00")}
    for line in readings.values():
        add(line["measured_at"], line["district"], readings=1, pm10=Decimal(line["pm10"]))
    for line in tickets.values():
        add(line["issued_at"], line["district"], tickets=1, fines=Decimal(line["fine"]))
    return {key: {**zero, **row} for key, row in sorted(rows.items())}
