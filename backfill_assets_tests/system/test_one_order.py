"""The values of docs/late-data.md on one order are what the pipeline gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window
from backfill_assets.landing.files import probe_files, read_lines
from backfill_assets.orders.tables import ORDER_LINES, TABLES
from backfill_assets.transforms.dedup import with_event_day
from backfill_assets.transforms.raw_rows import accepted_rows, read_versions
from backfill_assets_tests.helpers.docs_pages import PAGES, code_blocks
from backfill_assets_tests.helpers.pipeline import Pipeline, day

PAGE = "docs/late-data.md"
ORDERED = date(2024, 1, 5)
FACTS = ("fact_daily_orders", "fact_daily_orders_current")
#: Of each line in Tokyo: amount, arrival, log and event day, days late.
TOKYO = [
    ["40.00", "2024-01-05", "2024-01-06", "2024-01-06", "0"],
    ["45.00", "2024-01-09", "2024-01-10", "2024-01-06", "4"],
    ["50.00", "2024-01-15", "2024-01-15", "2024-01-06", "9"],
]


def page_files() -> list[tuple[str, str]]:
    """The page's files: path, and the one line of each."""
    (block,) = code_blocks(PAGE, "text")
    lines = block.splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def page_table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page."""
    section = PAGES[PAGE].partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def land_file(pipeline: Pipeline, path: str, line: str) -> None:
    file = pipeline.landing / "orders" / path
    file.parent.mkdir(parents=True)
    file.write_text(f"{line}\n")


def date_cells(log: DataFrame, zone: str) -> Iterator[list[str]]:
    """A row of the page for each line: amount, arrival, log and event day, days late."""
    late = F.datediff("log_date", "event_date")
    rows = (
        with_event_day(log, ORDER_LINES, zone).orderBy("amount").withColumn("late", late).collect()
    )
    for row in rows:
        yield [
            str(row[name]) for name in ("amount", "arrival_date", "log_date", "event_date", "late")
        ]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_the_dates_of_each_line(pipeline, spark, zone):
    for path, line in page_files():
        land_file(pipeline, path, line)
    listing = probe_files(spark, str(pipeline.landing), ORDER_LINES, Window(day(1), day(31)))
    lines = read_lines(spark, listing, ORDER_LINES)
    log = accepted_rows(read_versions(lines, ORDER_LINES, zone), ORDER_LINES)
    if zone == "UTC":
        expected = page_table("The dates of each line")
        assert all(cells[3] == cells[4] for cells in expected)
        expected = [[*cells[:4], cells[5]] for cells in expected]
    else:
        expected = TOKYO
        assert "The lines are 0, 4 and 9 days late." in PAGES[PAGE]
    assert list(date_cells(log, zone)) == expected


@pytest.mark.slow
def test_what_the_tables_say(pipeline):
    expected = page_table("What the tables say of January 5")
    for (path, line), (log_day, *cells) in zip(page_files(), expected, strict=True):
        land_file(pipeline, path, line)
        pipeline.run(1, date.fromisoformat(log_day), assets=list(TABLES))
        tables = [pipeline.rows("stg_orders"), *map(pipeline.rows, FACTS)]
        (staged,), *facts = tables
        assert staged["event_date"] == ORDERED
        assert [row["run_date"] for (row,) in facts] == [ORDERED, ORDERED]
        amounts = [staged["amount"], *(row["revenue"] for (row,) in facts)]
        corrections, late = map(pipeline.rows, ("fact_order_corrections", "late_orders"))
        assert all((row["run_date"], row["orders"]) == (ORDERED, 0) for row in corrections)
        assert all(row["log_date"] == date.fromisoformat(log_day) for row in late)
        amounts += [sum(row["revenue"] for row in corrections) or "none"]
        amounts += [sum(row["amount"] for row in late) or "none"]
        assert list(map(str, amounts)) == cells
    logged = {row["log_date"]: row["amount"] for row in pipeline.rows("raw_orders")}
    assert logged == {
        day(5): Decimal("40.00"),
        day(10): Decimal("45.00"),
        day(15): Decimal("50.00"),
    }
