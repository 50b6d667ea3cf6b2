"""Days of the log, and their rejected lines, from the landing and from what is published.

What lines mean is decided in `lines`, what a day is to be made of in `manifests`. Here the two
meet: files that can be read are read, and rows of files that are gone or held back are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from statistics import median
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.arrivals import manifests, targets
from backfill_assets.assets.lines import raw_orders, read_orders, rejected_orders
from backfill_assets.assets.versions import business_day
from backfill_assets.audit import ENOUGH_DAYS, ENOUGH_ROWS, TRAILING_DAYS, Book, Severity, Verdict
from backfill_assets.finality import settled_days
from backfill_assets.io_manager import ACCEPT_TAG, Built, Plan, Remarks, Snapshot
from backfill_assets.landing import Landing, read_lines, readable, survey
from backfill_assets.lateness import Policy
from backfill_assets.listing import (
    CONTROL_FILE,
    Entry,
    Listing,
    folder_name,
    folder_of,
    list_landing,
)
from backfill_assets.manifests import Loaded, Manifest, Target, due, news
from backfill_assets.partitions import DAY, Window, packed
from backfill_assets.records import Ledger, read_ledger
from backfill_assets.schemas import ORDER_LINES, RAW, REJECTED
from backfill_assets.settings import Settings
from backfill_assets.snapshots import rows_as_of
from backfill_assets.spark import Engine, Keep
from backfill_assets.tables import Table
from backfill_assets.touched import touched

Targets = Mapping[date, Target]

#: What a person may agree to by `ACCEPT_TAG`, besides the names of files.
FEWER_ROWS, MANY_REJECTED = "rows", "rejected"
#: A smaller share of the rows that a day had is not published unless a person agrees.
_ROW_SHARE = 0.5
_NO_MONEY = Decimal("0.00")


@dataclass(frozen=True)
class Lines:
    """What one file brought, in numbers.

    Attributes:
        landed: lines, counted apart from parsing.
        rejected: those that are no orders.
        early: accepted lines that are logged on the day after.
        accepted: lines that are orders.
        amount: the sum of their amounts.
    """

    landed: int = 0
    rejected: int = 0
    early: int = 0
    accepted: int = 0
    amount: Decimal = _NO_MONEY

    def __add__(self, other: Lines) -> Lines:
        return Lines(
            self.landed + other.landed,
            self.rejected + other.rejected,
            self.early + other.early,
            self.accepted + other.accepted,
            self.amount + other.amount,
        )


@dataclass(frozen=True)
class Limits:
    """Shares of rejected lines (0 to 1) of an arrival day, from which on something is said or done.

    Attributes:
        warn: it is published with a warning; so much more than on the days before is an alert.
        alert: it is published, and a person is told.
        hold: it is not published unless a person agrees.
    """

    warn: float
    alert: float
    hold: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits that the settings ask for."""
        return cls(settings.rejected_warn, settings.rejected_alert, settings.rejected_hold)


@dataclass(frozen=True)
class Reading:
    """The files of a run's folders, read once.

    Attributes:
        found: the files, and which of them cannot be read.
        moving: names of files that changed, came or went while they were read.
        lines: as `lines.read_orders` gives them.
        counts: by file.
    """

    found: Landing
    moving: frozenset[str]
    lines: DataFrame
    counts: Mapping[str, Lines]

    def of(self, names: Collection[str]) -> Lines:
        """What some files brought together."""
        return sum((self.counts.get(name, Lines()) for name in names), Lines())


@dataclass(frozen=True)
class Kept:
    """Rows of the published table that stay, as their files are gone or held back.

    Attributes:
        rows: the rows; none if there are none to keep.
        counts: how many, by day.
        elsewhere: by day, how many of them would be logged on another day now.
    """

    rows: DataFrame | None = None
    counts: Mapping[date, int] = field(default_factory=dict)
    elsewhere: Mapping[date, int] = field(default_factory=dict)


def count_lines(read: DataFrame, landed: Mapping[str, int]) -> dict[str, Lines]:
    """What each file brought.

    Args:
        read: as `lines.read_orders` gives it.
        landed: lines by file, from a scan of its own.
    """
    rows = read.groupBy("source_file").agg(
        F.count_if(F.col("reason").isNotNull()).alias("rejected"),
        F.count_if(F.col("log_date") > F.col("arrival_date")).alias("early"),
        F.count_if(F.col("reason").isNull()).alias("accepted"),
        F.coalesce(F.sum(F.when(F.col("reason").isNull(), F.col("amount"))), F.lit(_NO_MONEY)),
    )
    seen = {name: numbers for name, *numbers in rows.collect()}
    nothing = [0, 0, 0, _NO_MONEY]
    return {
        name: Lines(landed.get(name, 0), *seen.get(name, nothing))
        for name in landed.keys() | seen.keys()
    }


def lost_orders(before: DataFrame, lines: DataFrame, names: Collection[str]) -> dict[str, int]:
    """By replaced file, how many orders it no longer has of those that were loaded from it.

    Args:
        before: rows of the raw log.
        lines: the lines that the files have now, as `lines.read_orders` gives them.
        names: the replaced files.
    """
    keys = ["source_file", "order_id"]
    of_files = F.col("source_file").isin(sorted(names))
    now = raw_orders(lines).where(of_files).select(*keys)
    gone = before.where(of_files).select(*keys).distinct().join(now, keys, "left_anti")
    counts = gone.groupBy("source_file").count().collect()
    return {row["source_file"]: row["count"] for row in counts}


def kept_rows(
    before: DataFrame, targets: Targets, days: Collection[date], table: Table, timezone: str
) -> DataFrame:
    """The rows of days that come of the files that are kept, with `_elsewhere`.

    Args:
        before: the published table.
        targets: what each day is to be made of.
        days: the days that keep rows.
        table: `RAW` or `REJECTED`.
        timezone: the business time zone; `_elsewhere` tells of a raw row whether it would be logged
            on another day by it.
    """
    spark = before.sparkSession
    kept = [(day, name) for day in days for name in targets[day].kept]
    files = spark.createDataFrame(kept, f"{table.partition} DATE, source_file STRING")
    rows = before.where(F.col(table.partition).isin(list(days))).join(
        F.broadcast(files), [table.partition, "source_file"], "left_semi"
    )
    elsewhere = F.lit(False)
    if table is RAW:
        version_day = business_day(F.greatest("order_ts", "ingestion_ts"), timezone)
        elsewhere = F.greatest("arrival_date", version_day) != F.col("log_date")
    return rows.select(*table.columns, elsewhere.alias("_elsewhere"))


def raw_books(
    reading: Reading,
    targets: Targets,
    kept: Kept,
    window: Window,
    log: Ledger,
    limits: Limits,
    accepted: Collection[str],
) -> dict[date, Book]:
    """By log day: landed lines = raw + early + rejected, and what a person should know.

    Args:
        reading: the files.
        targets: what each day is to be made of.
        kept: the rows that stay.
        window: the days.
        log: the ledger of the raw log as it is.
        limits: the shares of rejected lines that are in order.
        accepted: what a person agreed to.
    """
    found = {}
    for day in window:
        wanted = targets[day]
        own = reading.of(_within(wanted.read, day))
        early = reading.of(_within(wanted.read, day - DAY)).early
        stays = kept.counts.get(day, 0)
        entries = {
            "landed": own.landed,
            "rejected": own.rejected,
            "early": own.early,
            "from the day before": early,
            "kept": stays,
        }
        rows = own.landed - own.rejected - own.early + early + stays
        problems = [
            *(f"cannot be read: {text}" for text in reading.found.broken_on(day)),
            *_control_problems(reading.found, day, own, wanted),
            *_fewer_rows(log, day, rows, wanted, accepted),
        ]
        if moved := kept.elsewhere.get(day):
            problems.append(
                f"{moved} row(s) whose files are gone belong to another log day in this time "
                "zone: put the files back, or keep the time zone"
            )
        found[day] = Book(
            entries=entries,
            rows=rows,
            problems=problems,
            warnings=[*_warnings(reading, day, wanted, log), *_unknown(reading.found, day)],
            notices={"rejected_lines": rejected_share(log, day, own, limits, accepted)},
        )
    return found


def rejected_books(
    reading: Reading, targets: Targets, kept: Kept, window: Window
) -> dict[date, Book]:
    """By arrival day: landed lines = accepted + rejected."""
    found = {}
    for day in window:
        own, stays = reading.of(_within(targets[day].read, day)), kept.counts.get(day, 0)
        found[day] = Book(
            entries={
                "landed": own.landed,
                "rejected": own.rejected,
                "early": own.early,
                "kept": stays,
            },
            rows=own.landed - own.accepted + stays,
            problems=[f"cannot be read: {text}" for text in reading.found.broken_on(day)],
            warnings=_unknown(reading.found, day),
        )
    return found


def _within(names: Collection[str], day: date) -> list[str]:
    return [name for name in names if folder_of(name) == folder_name(day)]


def _unknown(found: Landing, day: date) -> list[str]:
    return [f"not read, unknown kind of file: {name}" for name in found.unknown.get(day, ())]


def _early_gone(log: Ledger, day: date, reading: Reading) -> int:
    """How many early lines a day that was never loaded lacks, as files of the day before went."""
    before = log.latest.get(day - DAY)
    if before is None or day in log.published:
        return 0
    had = int(before.days[day - DAY].entries.get("early", 0))
    return max(0, had - reading.of(_within(reading.counts, day - DAY)).early)


def _warnings(reading: Reading, day: date, wanted: Target, log: Ledger) -> list[str]:
    """What is published nevertheless."""
    said = [
        f"early lines may be missing, the day before has a file that cannot be read: {text}"
        for text in reading.found.broken_on(day - DAY)
    ]
    said += [
        f"{name} was replaced and lacks orders that were loaded from it: the rows stay as they "
        f"were until a person accepts the file (tag {ACCEPT_TAG})"
        for name in sorted(wanted.manifest.held)
    ]
    if gone := _early_gone(log, day, reading):
        said.append(
            f"{gone} early line(s) that {folder_name(day - DAY)} had when it was loaded are not "
            "in the log: its files went before this day was loaded. Put them back to load them"
        )
    if fine := sorted(wanted.replaced):
        said.append(
            f"{len(fine)} file(s) were replaced and have all orders that were loaded from them: "
            + ", ".join(fine[:5])
        )
    if moving := sorted(name for d in (day - DAY, day) for name in _within(reading.moving, d)):
        said.append(f"still being written, so not loaded by this run: {', '.join(moving[:5])}")
    return said


def _control_problems(found: Landing, day: date, own: Lines, wanted: Target) -> list[str]:
    """Where the loaded day disagrees with what the source says it sent.

    What it sent cannot be told any more once files are gone or held back.
    """
    if day in found.bad_controls:
        return [found.bad_controls[day]]
    control = found.controls.get(day)
    if control is None or _within(wanted.kept, day):
        return []
    said = []
    if control.rows != own.accepted:
        said.append(f"{CONTROL_FILE} says {control.rows} orders, {own.accepted} were read")
    if control.amount != own.amount:
        said.append(f"{CONTROL_FILE} says {control.amount} in total, {own.amount} was read")
    return said


def _fewer_rows(
    log: Ledger, day: date, rows: int, wanted: Target, accepted: Collection[str]
) -> list[str]:
    """Why a day that would lose most of its rows is held back; nothing if a person agreed."""
    published = log.stands(day)
    if published is None or published.rows < ENOUGH_ROWS or rows >= published.rows * _ROW_SHARE:
        return []
    if set(accepted) & {FEWER_ROWS, *wanted.read, *wanted.dropped}:
        return []
    return [
        f"{rows} rows where the published version has {published.rows}; if that is right, launch "
        f"the day with the tag {ACCEPT_TAG} = {FEWER_ROWS}"
    ]


def rejected_share(
    log: Ledger, day: date, own: Lines, limits: Limits, accepted: Collection[str]
) -> tuple[Severity, str]:
    """What the share of rejected lines says, by itself and against the days before.

    Args:
        log: the ledger of the raw log as it is, which knows the shares of other days.
        day: the arrival day.
        own: what its files brought.
        limits: the shares that are in order.
        accepted: what a person agreed to.
    """
    if not own.rejected:
        return Severity.OK, "no line is rejected"
    share = own.rejected / own.landed
    said = f"{own.rejected} of {own.landed} lines are rejected ({share:.1%})"
    if own.landed < ENOUGH_ROWS:
        return Severity.OK, said
    usual = _usual_share(log, day)
    if share >= limits.hold and MANY_REJECTED not in accepted:
        return Severity.ERROR, (
            f"{said}, {limits.hold:.0%} or more; see raw_orders_rejected for the reasons; if that "
            f"is right, launch the day with the tag {ACCEPT_TAG} = {MANY_REJECTED}"
        )
    if share >= limits.alert:
        return Severity.ALERT, f"{said}, {limits.alert:.0%} or more"
    if usual is not None and share > usual + limits.warn:
        return Severity.ALERT, f"{said}, on the days before {usual:.1%} (median)"
    if share >= limits.warn:
        return Severity.WARN, f"{said}, {limits.warn:.0%} or more"
    return Severity.OK, said


def _usual_share(log: Ledger, day: date) -> float | None:
    """The median share of rejected lines of the days before; none if there are too few."""
    shares = []
    for before in Window(day - TRAILING_DAYS * DAY, day):
        record = log.latest.get(before)
        entries = record.days[before].entries if record else {}
        if landed := int(entries.get("landed", 0)):
            shares.append(int(entries.get("rejected", 0)) / landed)
    return median(shares) if len(shares) >= ENOUGH_DAYS else None


@dataclass(frozen=True)
class Work:
    """What a run needs to read, keep and decide.

    Attributes:
        settings: the deployment's settings.
        engine: where the session comes from.
        keep: keeps a frame's rows once they are computed.
        accepted: what a person agreed to, by the run's tag.
        close: whether nothing more is expected of days without a folder, by the run's tag.
    """

    settings: Settings
    engine: Engine
    keep: Keep
    accepted: frozenset[str]
    close: bool
    _read: dict[Any, Reading] = field(default_factory=dict)

    @property
    def log(self) -> Ledger:
        """The ledger of the raw log as of now."""
        return read_ledger(self.settings.table(RAW.name), RAW)

    def plan(self, table: Table, window: Window) -> Plan:
        """The plan of days of the log, or of the rejected lines."""
        log = self.log
        recorded = manifests(log)
        before = {**self._of_old(log, window, recorded), **recorded}
        listing = list_landing(self.settings.landing, window.widened(before=1))
        policy = Policy.of(self.settings)
        first = targets(before, listing, window, policy, accepted=self.accepted, close=self.close)

        def build(days: Window) -> Built:
            reading = self.read(days, listing)
            wanted = self.decide(reading, {day: first[day] for day in days}, before, log)
            ledger = log if table is RAW else read_ledger(self.settings.table(table.name), table)
            kept = self.kept(wanted, ledger)
            rows = _selected(reading, wanted, table, days)
            if kept.rows is not None:
                rows = rows.unionByName(kept.rows)
            made_of = {day: one.manifest.recipe() for day, one in wanted.items()}
            if table is REJECTED:
                return Built(rows, rejected_books(reading, wanted, kept, days), made_of=made_of)
            books = raw_books(
                reading, wanted, kept, days, log, Limits.of(self.settings), self.accepted
            )

            def remarks(source: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
                return self.remarks(source, rows, verdicts, wanted, listing)

            return Built(rows, books, made_of=made_of, remarks=remarks)

        return Plan(
            {day: one.manifest.recipe() for day, one in first.items()},
            build,
            news={day: news(before.get(day), one) for day, one in first.items()},
        )

    def read(self, days: Window, listing: Listing) -> Reading:
        """One reading for both tables, as long as the same files are there."""
        folders = days.widened(before=1)
        entries = {name: entry for day in folders for name, entry in listing.files(day).items()}
        key = days, frozenset(entries.values())
        if key not in self._read:
            self._read[key] = self._reading(folders, listing, entries)
        return self._read[key]

    def _reading(self, folders: Window, listing: Listing, entries: Mapping[str, Entry]) -> Reading:
        spark, landing = self.engine.spark_session, self.settings.landing
        found = survey(spark, landing, folders, listing)

        def parse(part: Landing) -> tuple[DataFrame, dict[str, Lines]]:
            # No filter before this: Spark would push it down and parse all once more.
            lines = self.keep(read_orders(read_lines(spark, part), self.settings.timezone))
            return lines, count_lines(lines, part.counts)

        moving: set[str] = set()
        while True:
            lines, counts = readable(found, parse)
            again = list_landing(landing, folders)
            there = {name: file for day in folders for name, file in again.files(day).items()}
            moving |= {name for name, entry in entries.items() if there.get(name) != entry}
            if not found.leave_out(moving):
                return Reading(found, frozenset(moving), lines, counts)

    def decide(
        self,
        reading: Reading,
        targets: Targets,
        before: Mapping[date, Manifest],
        log: Ledger,
    ) -> dict[date, Target]:
        """What the days are made of, now that the files have been read."""
        away = reading.moving | reading.found.unreadable
        wanted = {day: one.without(away, before.get(day)) for day, one in targets.items()}
        doubtful = {name for one in wanted.values() for name in one.replaced}
        # A file has rows on its own log day and the next: also those that this run is not for.
        near = {
            d for day, one in wanted.items() if one.replaced for d in (day - DAY, day, day + DAY)
        }
        days = sorted(near & log.published)
        if not days:
            return wanted
        lost = lost_orders(self._published(log, days), reading.lines, doubtful)
        return {
            day: one.holding(one.replaced & lost.keys(), before.get(day))
            for day, one in wanted.items()
        }

    def _of_old(
        self, log: Ledger, window: Window, recorded: Collection[date]
    ) -> dict[date, Manifest]:
        """The manifests of days that were published when none were recorded, by their rows.

        Which files there were is known, but not what they held.
        """
        days = [day for day in window if day in log.published and day not in recorded]
        found: dict[date, dict[str, Loaded]] = {day: {} for day in days}
        for table in (RAW, REJECTED) if days else ():
            ledger = read_ledger(self.settings.table(table.name), table)
            there = [day for day in days if day in ledger.published]
            if there:
                rows = self._published(ledger, there)
                for day, name in rows.select(table.partition, "source_file").distinct().collect():
                    found[day][name] = Loaded(0, 0, "")
        return {day: Manifest(files) for day, files in found.items()}

    def kept(self, wanted: Targets, ledger: Ledger) -> Kept:
        """The rows that stay of a table."""
        days = [day for day, one in wanted.items() if day in ledger.published and one.kept]
        if not days:
            return Kept()
        table, zone = ledger.table, self.settings.timezone
        rows = self.keep(kept_rows(self._published(ledger, days), wanted, days, table, zone))
        counts = rows.groupBy(table.partition).agg(
            F.count(F.lit(1)), F.count_if(F.col("_elsewhere"))
        )
        found = {day: numbers for day, *numbers in counts.collect()}
        return Kept(
            rows.drop("_elsewhere"),
            {day: count for day, (count, _) in found.items()},
            {day: count for day, (_, count) in found.items()},
        )

    def _published(self, ledger: Ledger, days: Collection[date]) -> DataFrame:
        url, spark = self.settings.table(ledger.table.name), self.engine.spark_session
        return rows_as_of(spark, url, ledger.table, ledger.version or 0, days)

    def remarks(
        self,
        before: Snapshot | None,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        wanted: Targets,
        listing: Listing,
    ) -> Remarks:
        """What a commit of raw tells those who follow it; `arrivals` and `recipes` read it."""
        policy = Policy.of(self.settings)
        changes = touched(ORDER_LINES, before, rows, verdicts, policy, self.settings.timezone)
        loaded = {v.day: wanted[v.day].manifest for v in verdicts if v.passed}
        log = before.ledger if before else Ledger(RAW)
        was, now = self._settled(log, loaded, listing, policy)
        return Remarks(
            said={
                "landing": {str(day): manifest.said for day, manifest in loaded.items()},
                **changes.said,
                "settled": packed(now - was),
                "unsettled": packed(was - now),
            }
        )

    def _settled(
        self, log: Ledger, loaded: Mapping[date, Manifest], listing: Listing, policy: Policy
    ) -> tuple[set[date], set[date]]:
        """Of the log days that may have been settled or unsettled: settled before, and after."""
        known = {**manifests(log), **loaded}
        around = Window(min(loaded), max(loaded) + DAY).widened(
            before=policy.window_days, after=policy.window_days
        )
        # And those that waited for something, whatever became of it.
        settled = settled_days(log)
        near = [day for day in known if day in around or day not in settled]
        folders = {folder for day in near for folder in (day - DAY, day)} - listing.asked
        others = list_landing(self.settings.landing, sorted(folders))
        whole = replace(listing, folders={**others.folders, **listing.folders})
        wanted = targets(known, whole, near, policy)
        now = {
            day
            for day, one in wanted.items()
            if one.manifest.settled(day, policy.start) and not due(known[day], one)
        }
        return settled & set(near), now


def _selected(reading: Reading, wanted: Targets, table: Table, days: Window) -> DataFrame:
    """The lines that were read, without those of files that are held back on a day."""
    rows = raw_orders(reading.lines) if table is RAW else rejected_orders(reading.lines)
    rows = rows.where(days.predicate(table.partition))
    for day, one in wanted.items():
        if one.manifest.held:
            of_held = F.col("source_file").isin(sorted(one.manifest.held))
            rows = rows.where(~((F.col(table.partition) == F.lit(day)) & of_held))
    return rows
