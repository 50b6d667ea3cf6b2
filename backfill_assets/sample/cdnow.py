"""Turn the CDNOW master file into landing files; no invented data (that is `generator`).

The CDNOW data set is a public record of real purchases, which makes its totals a check that owes
nothing to this project: whatever is landed here must come out of the fact table again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import date
from pathlib import Path

from backfill_assets.sample.lines import SOURCE

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
