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

from backfill_assets.landing.caps import Caps
from backfill_assets.landing.listing import CONTROL_FILE, Entry, LandingError, folder_name
from backfill_assets.landing.parquet import Columns
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
_MOST_SAID = 200
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
class Landing:
    """What lies in the folders of some arrival days.

    Attributes:
        files: the readable files.
        broken: why a file cannot be read at all, by file.
        unknown: files of no known format; not read, worth a warning.
        hours: by arrival day, the folders of hours that are there.
        strays: by arrival day, what lies beside its folder and may be meant for it; not read.
        controls: the source's own totals by arrival day, where it sends them.
        bad_controls: why a control file cannot be used, by arrival day.
        counts: non-blank data lines found, headers not counted, by the file's name in the tables.
        headers: the first line of CSV files.
        columns: what is read of Parquet files.
        caps: what a file may be at most.
    """

    files: list[LandingFile] = field(default_factory=list)
    broken: dict[LandingFile, str] = field(default_factory=dict)
    unknown: dict[date, list[str]] = field(default_factory=lambda: defaultdict(list))
    hours: dict[date, frozenset[str]] = field(default_factory=dict)
    strays: dict[date, list[str]] = field(default_factory=dict)
    controls: dict[date, Control] = field(default_factory=dict)
    bad_controls: dict[date, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    headers: dict[LandingFile, str] = field(default_factory=dict)
    columns: dict[LandingFile, Columns] = field(default_factory=dict)
    caps: Caps = field(default_factory=Caps.usual)

    @property
    def unreadable(self) -> set[str]:
        """The names in the tables of the files that cannot be read."""
        return {file.source_file for file in self.broken}

    def broken_by_day(self) -> Mapping[date, list[str]]:
        """The unreadable files of each arrival day that has any, each with its reason."""
        found: dict[date, list[str]] = defaultdict(list)
        for file, why in self.broken.items():
            found[file.arrival_date].append(f"{file.source_file} ({why})")
        return found

    def broken_on(self, day: date) -> list[str]:
        """The unreadable files of one arrival day."""
        return self.broken_by_day().get(day, [])

    def leave_out(self, names: Collection[str]) -> bool:
        """Take out files that are not at rest, readable or not; whether any would have been read.

        Args:
            names: their names in the tables.
        """
        for file in [file for file in self.broken if file.source_file in names]:
            del self.broken[file]
        for day in [d for d in self.controls | self.bad_controls if _control(d) in names]:
            self.controls.pop(day, None)
            self.bad_controls.pop(day, None)
        stale = [file for file in self.files if file.source_file in names]
        self.files = [file for file in self.files if file.source_file not in names]
        return bool(stale)

    def drop(self, file: LandingFile, why: str) -> None:
        """Take a file out that turned out to be unreadable."""
        self.files.remove(file)
        self.broken[file] = why


def _control(day: date) -> str:
    return f"{folder_name(day)}/{CONTROL_FILE}"


def literal(url: str) -> str:
    """A path for Spark, which would take the brackets of `part[1].json` for a glob.

    Not its option to turn globs off: with that, each such path stands for all paths that are read
    with it, and every line would count as often.
    """
    return _GLOB.sub(r"\\\g<0>", url)


def read_control(
    filesystem: pafs.FileSystem, entry: Entry, source: Source, day: date, found: Landing
) -> None:
    """What the source says that it delivered on a day, or why that cannot be used."""
    if entry.refused:
        found.bad_controls[day] = f"{CONTROL_FILE} cannot be used: {entry.refused}"
        return
    try:
        text = found.caps.whole_control(filesystem, entry)
        said = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        found.controls[day] = _control_of(said, source)
    except _UNUSABLE as error:
        amount = ", 'amount': '0.00'" if source.amount else ""
        why = f"{type(error).__name__}: {error}"[:_MOST_SAID]
        found.bad_controls[day] = f"{CONTROL_FILE} is not {{'rows': N{amount}}} ({why})"


def _control_of(said: Any, source: Source) -> Control:
    rows = Decimal(said["rows"])
    if source.amount is None and "amount" in said:
        raise ValueError(f"the source {source.name} declares no amount")
    amount = Decimal(said["amount"]) if source.amount else None
    # Size before value: the whole number of `1e999999999` would never be done.
    if not rows.is_finite() or rows.adjusted() > 18 or rows != int(rows):
        raise ValueError("rows must be a whole number")
    if amount is not None and not _is_a_sum(amount):
        raise ValueError("amount must be a finite number of at most 38 digits")
    return Control(int(rows), amount)


def _is_a_sum(amount: Decimal) -> bool:
    """Whether a number is none that only an attacker, or a fault, would send as a total."""
    if not amount.is_finite():
        return False
    # Zeros at the end do no harm, but for the time that it takes to print millions of them.
    digits = len(amount.as_tuple().digits)
    return digits <= _MOST_DIGITS and abs(amount.adjusted()) <= _MOST_DIGITS
