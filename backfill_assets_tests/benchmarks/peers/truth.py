"""What the three tables must hold, by day: computed from the landing in plain Python.

It shares no code with any of the tools that are compared. A table is a mapping of days to figures:
rows, rows with a known customer (or orders, in the facts), and the sum of the amounts in cents.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

#: Days after its event day within which a line counts.
WINDOW_DAYS = 7
#: The table's name, and its day.
DAY_COLUMNS = {
    "raw_orders": "log_date",
    "stg_orders": "event_date",
    "fact_daily_orders": "run_date",
}
#: What `Figures` sums up in each table, as SQL.
SECOND_FIGURE = {
    "raw_orders": "count(customer_id)",
    "stg_orders": "count(customer_id)",
    "fact_daily_orders": "sum(orders)",
}
AMOUNT = {"raw_orders": "amount", "stg_orders": "amount", "fact_daily_orders": "revenue"}

#: Rows; rows with a customer, or orders; and cents.
Figures = tuple[int, int, int]
Tables = Mapping[str, Mapping[date, Figures]]


@dataclass(frozen=True)
class Line:
    """A readable line of the landing."""

    log_date: date
    order_id: str
    customer_id: str | None
    event_date: date
    version: datetime
    cents: int


def parse_line(text: str, log_date: date) -> Line | None:
    """The line; None if it is not JSON, or lacks one of the four fields that an order needs."""
    try:
        fields = json.loads(text)
        order_ts, ingestion_ts = map(
            datetime.fromisoformat, (fields["order_ts"], fields["ingestion_ts"])
        )
        cents = int(Decimal(fields["amount"]) * 100)
        return Line(
            log_date,
            fields["order_id"],
            fields.get("customer_id"),
            order_ts.date(),
            max(order_ts, ingestion_ts),
            cents,
        )
    except (ValueError, KeyError):
        return None


def read_landing(landing: Path) -> Iterator[Line]:
    """The readable lines of all files."""
    for path in sorted(landing.glob("orders/arrival_date=*/*.jsonl")):
        log_date = date.fromisoformat(path.parent.name.partition("=")[2])
        with path.open() as file:
            for text in file:
                line = parse_line(text, log_date)
                if line is not None:
                    yield line


def staged_lines(lines: Iterable[Line]) -> Iterator[Line]:
    """Each order in its greatest version within the window of the event day.

    A version that came after the window of a day neither counts on that day nor displaces an older
    one from it.
    """
    versions = defaultdict(list)
    for line in lines:
        versions[line.order_id].append(line)
    for candidates in versions.values():
        candidates.sort(key=lambda line: (line.version, line.log_date, line.cents), reverse=True)
        for position, line in enumerate(candidates):
            closes = line.event_date + timedelta(days=WINDOW_DAYS)
            newer = candidates[:position]
            if line.log_date <= closes and not any(x.log_date <= closes for x in newer):
                yield line


def sum_by_day(rows: Iterable[tuple[date, bool, int]]) -> dict[date, Figures]:
    """Figures of rows, each given by its day, whether the customer is known, and its cents."""
    sums: dict[date, list[int]] = defaultdict(lambda: [0, 0, 0])
    for day, is_known, cents in rows:
        figures = sums[day]
        figures[0] += 1
        figures[1] += is_known
        figures[2] += cents
    return {day: (rows, known, cents) for day, (rows, known, cents) in sums.items()}


def expected_tables(landing: Path, first: date, last: date) -> Tables:
    """The three tables that follow from a landing, for a range of days."""
    lines = [line for line in read_landing(landing) if first <= line.log_date <= last]
    staged = [line for line in staged_lines(lines) if first <= line.event_date <= last]
    customers = defaultdict(set)
    for line in staged:
        customers[line.event_date].add(line.customer_id)
    staged_figures = sum_by_day((x.event_date, x.customer_id is not None, x.cents) for x in staged)
    return {
        "raw_orders": sum_by_day((x.log_date, x.customer_id is not None, x.cents) for x in lines),
        "stg_orders": staged_figures,
        "fact_daily_orders": {
            day: (len(customers[day]), rows, cents)
            for day, (rows, _, cents) in staged_figures.items()
        },
    }


def figures_query(table: str, relation: str) -> str:
    """SQL that gives the figures of a table by day, for DataFusion and for Spark."""
    column = DAY_COLUMNS[table]
    return (
        f"SELECT CAST({column} AS string) AS day, count(*) AS entries, "
        f"{SECOND_FIGURE[table]} AS known, CAST(sum({AMOUNT[table]}) * 100 AS bigint) AS cents "
        f"FROM {relation} GROUP BY {column}"
    )


def read_table(table: str, folder: Path) -> dict[date, Figures]:
    """The figures of a Delta table in a folder; empty if there is none."""
    # Imported late: the tests of the calculation need no Delta.
    from deltalake import DeltaTable, QueryBuilder

    if not DeltaTable.is_deltatable(str(folder)):
        return {}
    builder = QueryBuilder().register("orders", DeltaTable(str(folder)))
    batches = builder.execute(figures_query(table, "orders")).read_all()
    columns = [batches[name].to_pylist() for name in ("day", "entries", "known", "cents")]
    return {
        date.fromisoformat(day): (entries, known, cents)
        for day, entries, known, cents in zip(*columns, strict=True)
    }


def compare_days(expected: Mapping[date, Figures], actual: Mapping[date, Figures]) -> Counter[str]:
    """How many days are right, wrong (surplus days too) and missing."""
    return Counter(day_state(day, expected, actual) for day in expected.keys() | actual.keys())


def day_state(day: date, expected: Mapping[date, Figures], actual: Mapping[date, Figures]) -> str:
    """Whether a day is right, wrong or missing."""
    if day not in actual:
        return "missing"
    return "right" if actual[day] == expected.get(day) else "wrong"
