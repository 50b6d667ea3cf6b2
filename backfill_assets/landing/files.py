"""What lies in the folders of some arrival days: the files, and what the source says it sent."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow.fs as pafs

from backfill_assets.landing.formats import ParquetColumns
from backfill_assets.landing.listing import CONTROL_FILE, LandingError, ListedFile, folder_name
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.tables.sources import Source

_UNUSABLE = (
    OSError,
    LandingError,
    ValueError,
    KeyError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
#: Characters of the reason why a control file cannot be used.
_MOST_REASON = 200
#: Digits of a total.
_MOST_DIGITS = 38
_GLOB = re.compile(r"[\\{}\[\]*?]")


@dataclass(frozen=True)
class LandingFile:
    """One landing file.

    Attributes:
        arrival_date: day of the folder it lies in.
        name: file name, after the folder of its hour where the source lands by the hour.
        url: what Spark opens, escaped where it would see a pattern.
        size: bytes.
        path: for Arrow's file system.
    """

    arrival_date: date
    name: str
    url: str
    size: int
    path: str = ""

    @property
    def source_file(self) -> str:
        """The file's name in the tables: relative, so that moving the landing changes no row."""
        return f"{folder_name(self.arrival_date)}/{self.name}"

    @property
    def format(self) -> str:
        """`json`, `csv` or `parquet`."""
        suffix = self.name.removesuffix(".gz").rsplit(".", 1)[1]
        return "json" if suffix == "jsonl" else suffix


@dataclass(frozen=True)
class Control:
    """What the source says that it delivered on an arrival day.

    Attributes:
        rows: number of lines that are in order.
        amount: sum of their amounts; none where the source declares no amount.
    """

    rows: int
    amount: Decimal | None


@dataclass
class LandingFiles:
    """What lies in the folders of some arrival days.

    Attributes:
        files: the readable files.
        broken: why a file cannot be read at all, by file.
        unknown_files: files of no known format; not read, worth a warning.
        hours: by arrival day, the folders of hours that are there.
        strays: by arrival day, what lies beside its folder and may be meant for it; not read.
        controls: the source's own totals by arrival day, where it sends them.
        control_problems: why a control file cannot be used, by arrival day.
        line_counts: non-blank data lines found, headers not counted, by the file's name in the
            tables.
        headers: the first line of CSV files.
        columns: what is read of Parquet files.
        limits: what a file may be at most.
    """

    files: list[LandingFile] = field(default_factory=list)
    broken: dict[LandingFile, str] = field(default_factory=dict)
    unknown_files: dict[date, list[str]] = field(default_factory=lambda: defaultdict(list))
    hours: dict[date, frozenset[str]] = field(default_factory=dict)
    strays: dict[date, list[str]] = field(default_factory=dict)
    controls: dict[date, Control] = field(default_factory=dict)
    control_problems: dict[date, str] = field(default_factory=dict)
    line_counts: Mapping[str, int] = field(default_factory=dict)
    headers: dict[LandingFile, str] = field(default_factory=dict)
    columns: dict[LandingFile, ParquetColumns] = field(default_factory=dict)
    limits: SizeLimits = field(default_factory=SizeLimits.default_limits)

    @property
    def broken_names(self) -> set[str]:
        """The names in the tables of the files that cannot be read."""
        return {file.source_file for file in self.broken}

    def broken_by_day(self) -> Mapping[date, list[str]]:
        """The unreadable files of each arrival day that has any, each with its reason."""
        by_day: dict[date, list[str]] = defaultdict(list)
        for file, reason in self.broken.items():
            by_day[file.arrival_date].append(f"{file.source_file} ({reason})")
        return by_day

    def broken_on(self, day: date) -> list[str]:
        """The unreadable files of one arrival day."""
        return self.broken_by_day().get(day, [])

    def exclude_files(self, names: Collection[str]) -> bool:
        """Take out files that are not at rest, readable or not; whether any would have been read.

        Args:
            names: their names in the tables.
        """
        for file in [file for file in self.broken if file.source_file in names]:
            del self.broken[file]
        for day in [d for d in self.controls | self.control_problems if _control_name(d) in names]:
            self.controls.pop(day, None)
            self.control_problems.pop(day, None)
        stale = [file for file in self.files if file.source_file in names]
        self.files = [file for file in self.files if file.source_file not in names]
        return bool(stale)

    def drop_file(self, file: LandingFile, reason: str) -> None:
        """Take a file out that turned out to be unreadable."""
        self.files.remove(file)
        self.broken[file] = reason


def _control_name(day: date) -> str:
    return f"{folder_name(day)}/{CONTROL_FILE}"


def escape_glob(url: str) -> str:
    """A path for Spark, which would take the brackets of `part[1].json` for a glob.

    Not its option to turn globs off: with that, each such path stands for all paths that are read
    with it, and every line would count as often.
    """
    return _GLOB.sub(r"\\\g<0>", url)


def read_control(
    filesystem: pafs.FileSystem,
    entry: ListedFile,
    source: Source,
    day: date,
    landing_files: LandingFiles,
) -> None:
    """What the source says that it delivered on a day, or why that cannot be used."""
    if entry.refused:
        landing_files.control_problems[day] = f"{CONTROL_FILE} cannot be used: {entry.refused}"
        return
    try:
        text = landing_files.limits.read_control_file(filesystem, entry)
        content = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        landing_files.controls[day] = _parse_control(content, source)
    except _UNUSABLE as error:
        amount = ", 'amount': '0.00'" if source.amount else ""
        reason = f"{type(error).__name__}: {error}"[:_MOST_REASON]
        landing_files.control_problems[day] = (
            f"{CONTROL_FILE} is not {{'rows': N{amount}}} ({reason})"
        )


def _parse_control(content: Any, source: Source) -> Control:
    rows = Decimal(content["rows"])
    if source.amount is None and "amount" in content:
        raise ValueError(f"the source {source.name} declares no amount")
    amount = Decimal(content["amount"]) if source.amount else None
    # Size before value: the whole number of `1e999999999` would never be done.
    if not rows.is_finite() or rows.adjusted() > 18 or rows != int(rows):
        raise ValueError("rows must be a whole number")
    if amount is not None and not _is_valid_total(amount):
        raise ValueError("amount must be a finite number of at most 38 digits")
    return Control(int(rows), amount)


def _is_valid_total(amount: Decimal) -> bool:
    """Whether a number is none that only an attacker, or a fault, would send as a total."""
    if not amount.is_finite():
        return False
    # Zeros at the end do no harm, but for the time that it takes to print millions of them.
    digits = len(amount.as_tuple().digits)
    return digits <= _MOST_DIGITS and abs(amount.adjusted()) <= _MOST_DIGITS
