"""The landing files of some arrival days, and the totals that the source sent for them."""

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
#: Maximum characters of the reason why a control file cannot be used.
_MOST_REASON = 200
#: Maximum digits of a total.
_MOST_DIGITS = 38
_GLOB = re.compile(r"[\\{}\[\]*?]")


@dataclass(frozen=True)
class LandingFile:
    """One landing file.

    Attributes:
        arrival_date: the day of its folder.
        name: file name, with the hour folder if the source lands hourly.
        url: path or URL for Spark, with glob characters escaped.
        path: path for Arrow's file system.
    """

    arrival_date: date
    name: str
    url: str
    size: int
    path: str = ""

    @property
    def source_file(self) -> str:
        """The file's name in the tables; relative, so that moving the landing changes no row."""
        return f"{folder_name(self.arrival_date)}/{self.name}"

    @property
    def format(self) -> str:
        """`json`, `csv` or `parquet`."""
        suffix = self.name.removesuffix(".gz").rsplit(".", 1)[1]
        return "json" if suffix == "jsonl" else suffix


@dataclass(frozen=True)
class Control:
    """The totals of valid lines that the source sent for a day; no amount if it declares none."""

    rows: int
    amount: Decimal | None


@dataclass
class LandingFiles:
    """The landing files of some arrival days.

    Attributes:
        files: the readable files.
        broken: by unreadable file, the reason.
        unknown_files: by arrival day, files of unknown formats; not read, worth a warning.
        hours: by arrival day, the existing hour folders.
        strays: by arrival day, items beside its folder that may belong to it; not read.
        controls: by arrival day, the source's own totals, if sent.
        control_problems: by arrival day, why its control file cannot be used.
        line_counts: non-blank data lines, without headers, by the file's name in the tables.
        headers: the first line of CSV files.
        columns: the columns of Parquet files.
        limits: size limits of the files.
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
        """The names in the tables of the unreadable files."""
        return {file.source_file for file in self.broken}

    def broken_by_day(self) -> Mapping[date, list[str]]:
        """The unreadable files by arrival day, each with its reason."""
        by_day: dict[date, list[str]] = defaultdict(list)
        for file, reason in self.broken.items():
            by_day[file.arrival_date].append(f"{file.source_file} ({reason})")
        return by_day

    def broken_on(self, day: date) -> list[str]:
        """The unreadable files of one arrival day, each with its reason."""
        return self.broken_by_day().get(day, [])

    def exclude_files(self, names: Collection[str]) -> bool:
        """Remove files that are still being written; return whether any of them was readable."""
        for file in [file for file in self.broken if file.source_file in names]:
            del self.broken[file]
        for day in [d for d in self.controls | self.control_problems if _control_name(d) in names]:
            self.controls.pop(day, None)
            self.control_problems.pop(day, None)
        stale = [file for file in self.files if file.source_file in names]
        self.files = [file for file in self.files if file.source_file not in names]
        return bool(stale)

    def drop_file(self, file: LandingFile, reason: str) -> None:
        """Move a file that turned out to be unreadable to `broken`."""
        self.files.remove(file)
        self.broken[file] = reason


def _control_name(day: date) -> str:
    return f"{folder_name(day)}/{CONTROL_FILE}"


def escape_glob(url: str) -> str:
    """Escape a path for Spark, which would read the brackets of `part[1].json` as a glob.

    Spark's option to turn globs off is no alternative: with it, each such path stands for all paths
    of the read, and each line is counted that many times.
    """
    return _GLOB.sub(r"\\\g<0>", url)


def read_control(
    filesystem: pafs.FileSystem,
    entry: ListedFile,
    source: Source,
    day: date,
    landing_files: LandingFiles,
) -> None:
    """Read the control file of a day into `landing_files`, or the reason why it cannot be used."""
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
    """Check decoded content, in which numbers are Decimals; `read_control` catches each error."""
    rows = Decimal(content["rows"])
    if source.amount is None and "amount" in content:
        raise ValueError(f"the source {source.name} declares no amount")
    amount = Decimal(content["amount"]) if source.amount else None
    # Check the size before the value: computing `int(1e999999999)` would never end.
    if not rows.is_finite() or rows.adjusted() > 18 or rows != int(rows):
        raise ValueError("rows must be a whole number")
    if amount is not None and not _is_valid_total(amount):
        raise ValueError("amount must be a finite number of at most 38 digits")
    return Control(int(rows), amount)


def _is_valid_total(amount: Decimal) -> bool:
    """Whether a total is finite and has at most 38 digits; others are attacks or faults."""
    if not amount.is_finite():
        return False
    # Trailing zeros count as digits too: printing millions of them takes too long.
    digits = len(amount.as_tuple().digits)
    return digits <= _MOST_DIGITS and abs(amount.adjusted()) <= _MOST_DIGITS
