"""The landing: TPC-H's `lineitem` by day of receipt, and what happens to it in each step."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import date
from pathlib import Path

import duckdb

from backfill_assets.calendar.partitions import DAY

#: The first day; `lineitem` has receipts from January 1992 to December 1998.
FIRST = date(1993, 1, 1)
MOST_DAYS = (date(1998, 12, 1) - FIRST).days
#: The fewest days that have those of all steps.
FEWEST_DAYS = 60
#: Added to a key, it is one that no line of `lineitem` has.
_KEY_OFFSET = 10**12
_FILE = "items.parquet"


def generate_days(programs: Path, scale: float, days: int, folder: Path) -> None:
    """Write the folders of all days, by `tpchgen-cli`; lines that were shipped before are left out.

    Args:
        programs: where `tpchgen-cli` is.
        scale: TPC-H's scale factor; 1 has some 2,500 lines a day.
        days: how many, from the first.
        folder: has a folder `arrival_date=...` of each day then.
    """
    target = folder / "generated"
    subprocess.run(
        [programs / "tpchgen-cli", "parquet", "-s", str(scale), "-T", "lineitem", "-o", target],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    last = FIRST + (days - 1) * DAY
    with duckdb.connect() as connection:
        # Beyond so many folders, one that was closed would get a second file.
        connection.execute(f"SET partitioned_write_max_open_files = {days}")
        connection.execute(
            f"""COPY (
                SELECT *, l_receiptdate AS arrival_date FROM '{target}/lineitem.parquet'
                WHERE l_receiptdate BETWEEN '{FIRST}' AND '{last}' AND l_shipdate >= '{FIRST}'
            ) TO '{folder}' (
                FORMAT parquet, PARTITION_BY (arrival_date), OVERWRITE_OR_IGNORE,
                FILENAME_PATTERN 'items'
            )"""
        )
    shutil.rmtree(target)


class Landing:
    """The landing of one tool: days land in it, and files of them change.

    Files are links to those of `original`, so they are replaced and never written to.
    """

    def __init__(self, root: Path, original: Path) -> None:
        self.folder = root / "items"
        self._original = original

    def land_days(self, first: date, last: date) -> None:
        """Land the original files of a range of days, also in place of others."""
        for number in range((last - first).days + 1):
            folder = self._day_folder(first + number * DAY)
            folder.mkdir(parents=True, exist_ok=True)
            paths = [*(self._original / folder.name).glob("*.parquet")]
            if len(paths) > 1:
                raise ValueError(f"{folder.name} has {len(paths)} files, and one is expected")
            for path in paths:  # none on a day without receipts
                (folder / _FILE).unlink(missing_ok=True)
                os.link(path, folder / _FILE)

    def land_late_file(self, arrival: date, open_day: date, closed_day: date) -> None:
        """A file of a loaded day: new lines and newer versions, within the window and beyond it."""
        self._write(
            f"""SELECT * REPLACE (DATE '{arrival}' AS l_receiptdate,
                                  l_orderkey + (l_orderkey % 2) * {_KEY_OFFSET} AS l_orderkey,
                                  l_extendedprice + 1 AS l_extendedprice)
                FROM lines WHERE l_shipdate IN ('{open_day}', '{closed_day}')
                             AND l_receiptdate <> '{arrival}'""",
            self._original / "*" / "*.parquet",
            self._day_folder(arrival) / "late.parquet",
        )

    def correct_file(self, arrival: date) -> None:
        """The file of a loaded day is replaced: every tenth order has other prices."""
        self._write(
            """SELECT * REPLACE (l_extendedprice + (l_orderkey % 10 = 0)::INT AS l_extendedprice)
               FROM lines""",
            *self._files(arrival),
        )

    def poison_day(self, arrival: date) -> None:
        """The lines of a day have no ship mode."""
        self._write(
            "SELECT * REPLACE (NULL::VARCHAR AS l_shipmode) FROM lines",
            *self._files(arrival),
        )

    def _files(self, arrival: date) -> tuple[Path, Path]:
        """The original file of a day, and where it lands."""
        (path,) = (self._original / f"arrival_date={arrival}").glob("*.parquet")
        return path, self._day_folder(arrival) / _FILE

    def _day_folder(self, arrival: date) -> Path:
        return self.folder / f"arrival_date={arrival}"

    def _write(self, query: str, source: Path, target: Path) -> None:
        """Write what a query makes of `lines`, without the day of the folder."""
        target.parent.mkdir(exist_ok=True)
        written = target.with_suffix(".part")
        with duckdb.connect() as connection:
            lines = connection.read_parquet(str(source), hive_partitioning=False)
            types = dict(zip(lines.columns, lines.types, strict=True))
            result = lines.query("lines", query)
            casts = ", ".join(f"{name}::{types[name]} AS {name}" for name in result.columns)
            result.project(casts).write_parquet(str(written))
        written.replace(target)
