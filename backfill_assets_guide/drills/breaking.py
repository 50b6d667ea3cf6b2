"""What breaks a deployment: other writers, a source that sends something wrong, a purge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from backfill_assets.calendar.partitions import Window
from backfill_assets.spark import filesystems
from backfill_assets_guide.sample.landings import SOURCE

#: The customer of `send_many`.
MANY = "c-bulk"
#: Orders and revenue by day.
Facts = dict[date, tuple[int, Decimal]]


def append_again(url: str, column: str, days: Window) -> None:
    """Append the rows of some days once more, as a job does that knows of no audit.

    Args:
        url: of the table.
        column: its partition column.
        days: the days.
    """
    rows = DeltaTable(url).to_pyarrow_table(filesystem=filesystems.folder_filesystem(url))
    inside = (pc.field(column) >= days.start) & (pc.field(column) < days.end)
    write_deltalake(url, rows.filter(inside), mode="append")


def delete_rows(url: str, column: str, days: Window) -> None:
    """Delete the rows of some days.

    Args:
        url: of the table.
        column: its partition column.
        days: the days.
    """
    DeltaTable(url).delete(f"{column} >= '{days.start}' AND {column} < '{days.end}'")


def purge_landing(landing: Path, days: Iterable[date]) -> None:
    """Remove the folders of some arrival days."""
    for day in days:
        shutil.rmtree(arrival_folder(landing, day))


def arrival_folder(landing: Path, day: date) -> Path:
    """The folder of an arrival day."""
    return landing / SOURCE / f"arrival_date={day}"


def send_orders(landing: Path, days: Iterable[date], name: str, amount: Decimal) -> None:
    """One more order a day, in a file of its own, with the source's control totals to match.

    A file of that name that is there already is replaced.

    Args:
        landing: the landing.
        days: the arrival days.
        name: of the file.
        amount: of the order.
    """
    for day in days:
        file = arrival_folder(landing, day) / name
        stamp = f"{day}T11:00:00Z"
        line = {"order_id": f"{file.stem}-{day}", "customer_id": "c-drill", "order_ts": stamp}
        line |= {"amount": str(amount), "ingestion_ts": stamp}
        old = Decimal(json.loads(file.read_text())["amount"]) if file.exists() else None
        file.write_text(json.dumps(line) + "\n")
        _add_to_totals(file, int(old is None), amount - (old or 0))


def send_many(landing: Path, day: date, name: str, orders: int) -> None:
    """Many orders of one customer on one day, in a file of their own.

    Args:
        landing: the landing.
        day: the arrival day.
        name: of the file.
        orders: how many, of 10.00 each.
    """
    file, amount = arrival_folder(landing, day) / name, Decimal("10.00")
    lines = [
        {
            "order_id": f"{file.stem}-{day}-{n:06d}",
            "customer_id": MANY,
            "order_ts": f"{day}T12:{n // 60 % 60:02d}:{n % 60:02d}Z",
            "amount": str(amount),
            "ingestion_ts": f"{day}T14:00:00Z",
        }
        for n in range(orders)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _add_to_totals(file, orders, orders * amount)


def _add_to_totals(file: Path, rows: int, amount: Decimal) -> None:
    """Have the source's control totals count what is sent in a file, if there are any."""
    control = file.with_name("_control.json")
    if control.exists():
        totals = json.loads(control.read_text())
        total = Decimal(totals["amount"]) + amount
        control.write_text(json.dumps({"rows": totals["rows"] + rows, "amount": str(total)}))


def read_facts(url: str) -> Facts:
    """Orders and revenue by day, as a reader sees them now, without Spark."""
    rows: pa.Table = DeltaTable(url).to_pyarrow_table(
        columns=["run_date", "orders", "revenue"], filesystem=filesystems.folder_filesystem(url)
    )
    sums = rows.group_by("run_date").aggregate([("orders", "sum"), ("revenue", "sum")])
    facts = {r["run_date"]: (r["orders_sum"], r["revenue_sum"]) for r in sums.to_pylist()}
    return dict(sorted(facts.items()))
