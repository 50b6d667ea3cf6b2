"""The tables by DuckDB, all anew: the truth that other tools are compared with, and the floor."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import duckdb

from backfill_assets_tests.benchmarks.tpch import WINDOW_DAYS

_SUMS = """
    SELECT l_shipdate AS run_date, coalesce(l_shipmode, 'unknown') AS l_shipmode,
           count(*) AS items, sum(l_quantity)::DECIMAL(28, 2) AS quantity,
           sum(l_extendedprice * (1 - l_discount))::DECIMAL(28, 4) AS revenue
    FROM {lines} GROUP BY ALL
"""
_LATEST = """
    SELECT * FROM {lines}
    QUALIFY row_number() OVER (
        PARTITION BY l_orderkey, l_linenumber ORDER BY l_receiptdate DESC, log_date DESC
    ) = 1
"""
#: By table, in the order in which they are made; the names are those of this project.
QUERIES = {
    "raw_items": "SELECT * FROM landed",
    "stg_items": _LATEST.format(
        lines=f"(SELECT * FROM raw_items WHERE log_date - l_shipdate <= {WINDOW_DAYS})"
    ),
    "mode_days": _SUMS.format(lines="stg_items"),
    "mode_days_current": _SUMS.format(lines=f"({_LATEST.format(lines='raw_items')})"),
    "mode_days_corrections": """
        SELECT run_date, l_shipmode, c.items - coalesce(f.items, 0) AS items,
               c.quantity - coalesce(f.quantity, 0) AS quantity,
               c.revenue - coalesce(f.revenue, 0) AS revenue
        FROM mode_days_current c LEFT JOIN mode_days f USING (run_date, l_shipmode)
        WHERE f.items IS NULL
           OR (c.items, c.quantity, c.revenue) <> (f.items, f.quantity, f.revenue)
    """,
}


def make_tables(landing: Path, first: date, last: date, target: Path) -> None:
    """Write the tables as files of Parquet, from the folders of a range of arrival days.

    A key that is current and not in the facts, or with other sums, is a correction; a key of the
    facts that is not current there is not: no line moves to another day here.
    """
    target.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as connection:
        connection.execute(
            f"""CREATE VIEW landed AS SELECT * RENAME (arrival_date AS log_date)
                FROM read_parquet('{landing}/items/*/*.parquet', hive_partitioning = true,
                                  hive_types = {{arrival_date: DATE}})
                WHERE arrival_date BETWEEN '{first}' AND '{last}'"""
        )
        for name, query in QUERIES.items():
            connection.execute(f"CREATE TABLE {name} AS {query}")
            connection.execute(f"COPY {name} TO '{target}/{name}.parquet'")


if __name__ == "__main__":
    make_tables(
        Path(sys.argv[1]),
        date.fromisoformat(sys.argv[2]),
        date.fromisoformat(sys.argv[3]),
        Path(sys.argv[4]),
    )
