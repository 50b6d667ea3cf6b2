"""Expectations of raw days: what landed against what is logged, and what a person should know."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

from backfill_assets.assets.landed_rows import Kept, Lines, Reading, Targets
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.landing.files import Landing
from backfill_assets.landing.listing import CONTROL_FILE, HOURS, folder_name, folder_of
from backfill_assets.landing.manifests import Target
from backfill_assets.publish.run_tags import ACCEPT_TAG
from backfill_assets.quality.audit import (
    ENOUGH_DAYS,
    ENOUGH_ROWS,
    TRAILING_DAYS,
    Expectation,
    Severity,
)
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source

#: What a person may agree to by `ACCEPT_TAG`, besides the names of files.
FEWER_ROWS, MANY_REJECTED = "rows", "rejected"
#: A smaller share of the rows that a day had is not published unless a person agrees.
_ROW_SHARE = 0.5
#: So many files of a day are named one by one.
_MOST_NAMES = 20


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


def raw_expectations(
    source: Source,
    reading: Reading,
    targets: Targets,
    kept: Kept,
    window: Window,
    log: Ledger,
    limits: Limits,
    accepted: Collection[str],
) -> dict[date, Expectation]:
    """By log day: landed lines = raw + early + rejected, and what a person should know.

    Args:
        source: whose lines they are.
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
            *_broken(reading, day),
            *_control_problems(source, reading.found, day, own, wanted),
            *_fewer_rows(log, day, rows, wanted, accepted),
        ]
        if moved := kept.elsewhere.get(day):
            problems.append(
                f"{moved} row(s) whose files are gone belong to another log day in this time "
                "zone: put the files back, or keep the time zone"
            )
        found[day] = Expectation(
            entries=entries,
            rows=rows,
            problems=problems,
            warnings=[
                *_warnings(source, reading, day, wanted, log),
                *_hours(source, reading.found, day, wanted),
                *_unknown(reading.found, day),
                *_strays(source, reading.found, day),
            ],
            notices={"rejected_lines": rejected_share(source, log, day, own, limits, accepted)},
        )
    return found


def rejected_expectations(
    reading: Reading, targets: Targets, kept: Kept, window: Window
) -> dict[date, Expectation]:
    """By arrival day: landed lines = accepted + rejected."""
    found = {}
    for day in window:
        own, stays = reading.of(_within(targets[day].read, day)), kept.counts.get(day, 0)
        found[day] = Expectation(
            entries={
                "landed": own.landed,
                "rejected": own.rejected,
                "early": own.early,
                "kept": stays,
            },
            rows=own.landed - own.accepted + stays,
            problems=_broken(reading, day),
            warnings=_unknown(reading.found, day),
        )
    return found


def _within(names: Collection[str], day: date) -> list[str]:
    return [name for name in names if folder_of(name) == folder_name(day)]


def _broken(reading: Reading, day: date) -> list[str]:
    return _some("cannot be read: {}", reading.broken.get(day, ()))


def _unknown(found: Landing, day: date) -> list[str]:
    return _some("not read, unknown kind of file: {}", found.unknown.get(day, ()))


def _strays(source: Source, found: Landing, day: date) -> list[str]:
    """What lies beside the folders of arrival days and may be meant for this one."""
    strays = found.strays.get(day, [])
    return _some(
        f"not read, as {source.name}/{{}} is not the folder of an arrival day: if it holds lines "
        f"of this day, move them into {source.name}/{folder_name(day)}",
        strays,
    )


def _hours(source: Source, found: Landing, day: date, wanted: Target) -> list[str]:
    """Which hours of an arrival day have not come; or that a source has hours unexpectedly."""
    folder = folder_name(day)
    if not source.hourly:
        unread = [f"{folder}/{hour}" for hour in HOURS if f"{folder}/{hour}" in found.unknown[day]]
        return unread and [
            f"{len(unread)} folder(s) of hours are not read, such as {unread[0]}: declare the "
            f"source {source.name} with hourly=True to read them"
        ]
    if day not in wanted.manifest.there:
        return []  # the whole day has not come, which its state says
    # What was loaded has come, though it may have been purged since.
    come = {*found.hours.get(day, ())}
    come |= {name.split("/")[1] for name in _within(wanted.manifest.files, day)}
    missing = [hour.removeprefix("hour=") for hour in HOURS if hour not in come]
    return missing and [
        f"{len(missing)} hour(s) of {folder} have no folder: {', '.join(missing)}. The day is "
        "loaded again when files of them come"
    ]


def _some(text: str, names: Sequence[str]) -> list[str]:
    """A sentence for each of the first names: a folder may hold any number of files."""
    more = len(names) - _MOST_NAMES
    said = [text.format(name) for name in names[:_MOST_NAMES]]
    return [*said, text.format(f"{more} more")] if more > 0 else said


def _early_gone(log: Ledger, day: date, reading: Reading) -> int:
    """How many early lines a day that was never loaded lacks, as files of the day before went."""
    before = log.latest.get(day - DAY)
    if before is None or day in log.published:
        return 0
    had = int(before.days[day - DAY].entries.get("early", 0))
    return max(0, had - reading.of(reading.counted.get(folder_name(day - DAY), ())).early)


def _warnings(
    source: Source, reading: Reading, day: date, wanted: Target, log: Ledger
) -> list[str]:
    """What is published nevertheless."""
    said = _some(
        "early lines may be missing, the day before has a file that cannot be read: {}",
        reading.broken.get(day - DAY, ()),
    )
    said += [
        f"{name} was replaced and lacks {source.name} that were loaded from it: the rows stay as "
        f"they were until a person accepts the file (tag {ACCEPT_TAG})"
        for name in sorted(wanted.manifest.held)
    ]
    if gone := _early_gone(log, day, reading):
        said.append(
            f"{gone} early line(s) that {folder_name(day - DAY)} had when it was loaded are not "
            "in the log: its files went before this day was loaded. Put them back to load them"
        )
    if fine := sorted(wanted.replaced):
        said.append(
            f"{len(fine)} file(s) were replaced and have all {source.name} that were loaded from "
            "them: " + ", ".join(fine[:5])
        )
    if moving := sorted(n for d in (day - DAY, day) for n in reading.moved.get(folder_name(d), ())):
        said.append(f"still being written, so not loaded by this run: {', '.join(moving[:5])}")
    return said


def _control_problems(
    source: Source, found: Landing, day: date, own: Lines, wanted: Target
) -> list[str]:
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
        said.append(f"{CONTROL_FILE} says {control.rows} {source.name}, {own.accepted} were read")
    if control.amount is not None and control.amount != own.amount:
        said.append(f"{CONTROL_FILE} says {control.amount} in total, {own.amount} was read")
    return said


def _fewer_rows(
    log: Ledger, day: date, rows: int, wanted: Target, accepted: Collection[str]
) -> list[str]:
    """Why a day that would lose most of its rows is held back; nothing if a person agreed."""
    published = log.current_record(day)
    if published is None or published.rows < ENOUGH_ROWS or rows >= published.rows * _ROW_SHARE:
        return []
    if set(accepted) & {FEWER_ROWS, *wanted.read, *wanted.dropped}:
        return []
    return [
        f"{rows} rows where the published version has {published.rows}; if that is right, launch "
        f"the day with the tag {ACCEPT_TAG} = {FEWER_ROWS}"
    ]


def rejected_share(
    source: Source,
    log: Ledger,
    day: date,
    own: Lines,
    limits: Limits,
    accepted: Collection[str],
) -> tuple[Severity, str]:
    """What the share of rejected lines says, by itself and against the days before.

    Args:
        source: whose lines they are.
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
            f"{said}, {limits.hold:.0%} or more; see {source.rejected.name} for the reasons; if "
            f"that is right, launch the day with the tag {ACCEPT_TAG} = {MANY_REJECTED}"
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
