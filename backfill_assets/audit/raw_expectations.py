"""Expectations of raw days: counts of landed lines against rows, warnings and problems."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import Any

from backfill_assets.audit import verdicts
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.landing.files import LandingFiles
from backfill_assets.landing.formats import FileCounts
from backfill_assets.landing.listing import CONTROL_FILE, HOUR_FOLDERS, folder_name, folder_of
from backfill_assets.landing.load_manifest import LoadTarget
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source
from backfill_assets.transforms.raw_rows import (
    MOST_KEYS,
    LoadTargets,
    ParsedFiles,
    RetainedRows,
)

#: The tag of a run that says what a person accepts: names of replaced files as
#: `arrival_date=YYYY-MM-DD/name`, and the values below, separated by commas.
ACCEPT_TAG = "backfill_assets/accept"
#: Values of `ACCEPT_TAG` besides the names of files.
FEWER_ROWS, MANY_REJECTED = "rows", "rejected"
#: A day that keeps a smaller share of its rows is not published unless a person accepts it.
_ROW_SHARE = 0.5
#: The most files of a day that messages name.
_MOST_NAMES = 20


@dataclass(frozen=True)
class PublishedCounts:
    """What is published of the log, to compare days with.

    Attributes:
        rows: by day, its rows as last published; without days that others changed since.
        entries: by day, the entries of its latest record, also of a day that was removed since.
        days: the published days.
    """

    rows: Mapping[date, int]
    entries: Mapping[date, Mapping[str, Any]]
    days: Collection[date]


def raw_expectations(
    source: Source,
    parsed_files: ParsedFiles,
    targets: LoadTargets,
    retained: RetainedRows,
    window: Window,
    log: PublishedCounts,
    settings: Settings,
    accepted: Collection[str],
) -> dict[date, verdicts.Expectation]:
    """By log day: landed lines = raw + early + rejected, with warnings and problems."""
    expectations = {}
    for day in window:
        target = targets[day]
        counts = parsed_files.counts_of(_files_of_day(target.files_to_read, day))
        early = parsed_files.counts_of(_files_of_day(target.files_to_read, day - DAY)).early
        retained_count = retained.counts.get(day, 0)
        entries = {
            "landed": counts.landed,
            "rejected": counts.rejected,
            "early": counts.early,
            "from the day before": early,
            "kept": retained_count,
        }
        rows = counts.landed - counts.rejected - counts.early + early + retained_count
        problems = [
            *_broken_messages(parsed_files, day),
            *_control_problems(source, parsed_files.landing_files, day, counts, target),
            *_fewer_rows_problems(log, day, rows, target, accepted),
        ]
        if moved := retained.moved_counts.get(day):
            problems.append(
                f"{moved} row(s) whose files are gone belong to another log day in this time "
                "zone: put the files back, or keep the time zone"
            )
        expectations[day] = verdicts.Expectation(
            entries=entries,
            rows=rows,
            problems=problems,
            warnings=[
                *_day_warnings(source, parsed_files, day, target, log),
                *_ambiguous_messages(source, counts),
                *_hour_messages(source, parsed_files.landing_files, day, target),
                *_unknown_messages(parsed_files.landing_files, day),
                *_lacking_messages(day, counts),
                *_stray_messages(source, parsed_files.landing_files, day),
            ],
            notices={
                "rejected_lines": rejected_share(source, log, day, counts, settings, accepted)
            },
        )
    return expectations


def rejected_expectations(
    parsed_files: ParsedFiles, targets: LoadTargets, retained: RetainedRows, window: Window
) -> dict[date, verdicts.Expectation]:
    """By arrival day: landed lines = accepted + rejected."""
    expectations = {}
    for day in window:
        counts, retained_count = (
            parsed_files.counts_of(_files_of_day(targets[day].files_to_read, day)),
            retained.counts.get(day, 0),
        )
        expectations[day] = verdicts.Expectation(
            entries={
                "landed": counts.landed,
                "rejected": counts.rejected,
                "early": counts.early,
                "kept": retained_count,
            },
            rows=counts.landed - counts.accepted + retained_count,
            problems=_broken_messages(parsed_files, day),
            warnings=_unknown_messages(parsed_files.landing_files, day),
        )
    return expectations


def drop_ambiguous_files(
    source: Source, landing_files: LandingFiles, counts: Mapping[str, FileCounts]
) -> bool:
    """Drop the files that a source with `ambiguous="raise"` holds back; return whether any is."""
    if source.ambiguous != "raise":
        return False
    ambiguous_counts = {name: count for name, count in counts.items() if count.ambiguous}
    for file in [x for x in landing_files.files if x.full_name in ambiguous_counts]:
        landing_files.drop_file(file, _describe_ambiguous(source, ambiguous_counts[file.full_name]))
    return bool(ambiguous_counts)


def ambiguous_figures(
    source: Source, parsed_files: ParsedFiles, targets: LoadTargets, window: Window
) -> dict[date, dict[str, int]]:
    """By arrival day, the number of lines whose local time is ambiguous, for the UI to plot.

    Of a source in UTC, which has no such times, nothing.
    """
    if source.timezone == "UTC":
        return {}
    files_by_day = {day: _files_of_day(targets[day].files_to_read, day) for day in window}
    return {
        day: {"ambiguous times": parsed_files.counts_of(files).ambiguous}
        for day, files in files_by_day.items()
    }


def _ambiguous_messages(source: Source, counts: FileCounts) -> list[str]:
    """Report lines of an arrival day that are loaded although their local time is ambiguous."""
    if not counts.ambiguous:
        return []
    return [
        f"{_describe_ambiguous(source, counts)}. They are loaded with the {source.ambiguous} of "
        "two moments, so lines of two hours may count as versions of one; to hold such files back "
        f'instead, declare the source {source.name} with ambiguous="raise"'
    ]


def _describe_ambiguous(source: Source, counts: FileCounts) -> str:
    """Return how many lines have an ambiguous local time, which ones, and the mend."""
    keys = "; ".join(counts.ambiguous_keys[:MOST_KEYS])
    return (
        f"{counts.ambiguous} line(s) have a local time that {source.timezone} has twice, or not at "
        f"all, as its clocks change, such as {keys}: have the source send times in UTC, or with an "
        "offset"
    )


def _files_of_day(names: Collection[str], day: date) -> list[str]:
    return [name for name in names if folder_of(name) == folder_name(day)]


def _broken_messages(parsed_files: ParsedFiles, day: date) -> list[str]:
    return _first_messages("cannot be read: {}", parsed_files.broken_by_day.get(day, ()))


def _unknown_messages(landing_files: LandingFiles, day: date) -> list[str]:
    return _first_messages(
        "not read, unknown kind of file: {}", landing_files.unknown_files.get(day, ())
    )


def _lacking_messages(day: date, counts: FileCounts) -> list[str]:
    """Report the fields that no line of an arrival day has, and that are null therefore."""
    return [
        f"no line in {folder_name(day)} has the field {name}, so it is null in all "
        f"{counts.accepted}: if its name has changed, land the files again with the name {name}; "
        "if the sender has nothing to send, nothing is to be done"
        for name, lines in sorted(counts.lacking.items())
        if lines and lines == counts.accepted
    ]


def _stray_messages(source: Source, landing_files: LandingFiles, day: date) -> list[str]:
    """Report files and folders beside the arrival folders that may be meant for this day."""
    strays = landing_files.strays.get(day, [])
    return _first_messages(
        f"not read, as {source.name}/{{}} is not the folder of an arrival day: if it holds lines "
        f"of this day, move them into {source.name}/{folder_name(day)}",
        strays,
    )


def _hour_messages(
    source: Source, landing_files: LandingFiles, day: date, target: LoadTarget
) -> list[str]:
    """Report missing hours of an arrival day, or hours of a source that should have none."""
    folder = folder_name(day)
    if not source.hourly:
        unread = [
            f"{folder}/{hour}"
            for hour in HOUR_FOLDERS
            if f"{folder}/{hour}" in landing_files.unknown_files[day]
        ]
        return unread and [
            f"{len(unread)} folder(s) of hours are not read, such as {unread[0]}: declare the "
            f"source {source.name} with hourly=True to read them"
        ]
    if day not in target.manifest.present_days:
        return []  # the whole day is missing: its state tells that
    # Loaded hours count as landed, though they may have been purged since.
    present_hours = {*landing_files.hours.get(day, ())}
    present_hours |= {name.split("/")[1] for name in _files_of_day(target.manifest.files, day)}
    missing = [hour.removeprefix("hour=") for hour in HOUR_FOLDERS if hour not in present_hours]
    return missing and [
        f"{len(missing)} hour(s) of {folder} have no folder: {', '.join(missing)}. The day is "
        "loaded again when files of them come"
    ]


def _first_messages(text: str, names: Sequence[str]) -> list[str]:
    """Return a message for each of the first names, as a folder may hold many files."""
    more = len(names) - _MOST_NAMES
    messages = [text.format(name) for name in names[:_MOST_NAMES]]
    return [*messages, text.format(f"{more} more")] if more > 0 else messages


def _missing_early_lines(log: PublishedCounts, day: date, parsed_files: ParsedFiles) -> int:
    """Return how many early lines a never loaded day lacks, as files of the day before are gone."""
    before = log.entries.get(day - DAY)
    if before is None or day in log.days:
        return 0
    early_count = int(before.get("early", 0))
    return max(
        0,
        early_count
        - parsed_files.counts_of(
            parsed_files.counted_by_folder.get(folder_name(day - DAY), ())
        ).early,
    )


def _day_warnings(
    source: Source, parsed_files: ParsedFiles, day: date, target: LoadTarget, log: PublishedCounts
) -> list[str]:
    """Return the warnings with which a day is published."""
    warnings = []
    if day in target.manifest.present_days and day not in source.arrival_days:
        warnings.append(
            f"{folder_name(day)} has come on a day on which nothing is expected (`arrives_on`): it "
            "is loaded like any other"
        )
    warnings += _first_messages(
        "early lines may be missing, the day before has a file that cannot be read: {}",
        parsed_files.broken_by_day.get(day - DAY, ()),
    )
    warnings += [
        f"{name} was replaced and lacks {source.name} that were loaded from it: the rows stay as "
        f"they were until a person accepts the file (tag {ACCEPT_TAG})"
        for name in sorted(target.manifest.awaiting_approval)
    ]
    if missing_count := _missing_early_lines(log, day, parsed_files):
        warnings.append(
            f"{missing_count} early line(s) that {folder_name(day - DAY)} had when it was loaded "
            "are not in the log: its files went before this day was loaded. Put them back to load "
            "them"
        )
    if replaced := sorted(target.replaced):
        warnings.append(
            f"{len(replaced)} file(s) were replaced and have all {source.name} that were loaded "
            "from them: " + ", ".join(replaced[:5])
        )
    if moving_files := sorted(
        n for d in (day - DAY, day) for n in parsed_files.moving_by_folder.get(folder_name(d), ())
    ):
        warnings.append(
            f"still being written, so not loaded by this run: {', '.join(moving_files[:5])}"
        )
    return warnings


def _control_problems(
    source: Source, landing_files: LandingFiles, day: date, counts: FileCounts, target: LoadTarget
) -> list[str]:
    """Return differences between the loaded day and the control counts of its source.

    They cannot be checked once files are gone or held back.
    """
    if day in landing_files.control_problems:
        return [landing_files.control_problems[day]]
    control = landing_files.controls.get(day)
    if control is None or _files_of_day(target.retained_files, day):
        return []
    problems = []
    if control.rows != counts.accepted:
        problems.append(
            f"{CONTROL_FILE} says {control.rows} {source.name}, {counts.accepted} were read"
        )
    if control.amount is not None and control.amount != counts.amount:
        problems.append(f"{CONTROL_FILE} says {control.amount} in total, {counts.amount} was read")
    return problems


def _fewer_rows_problems(
    log: PublishedCounts, day: date, rows: int, target: LoadTarget, accepted: Collection[str]
) -> list[str]:
    """Return why a day that would lose most of its rows is held back; empty if accepted."""
    published = log.rows.get(day, 0)
    if published < verdicts.MIN_JUDGED_ROWS or rows >= published * _ROW_SHARE:
        return []
    if set(accepted) & {FEWER_ROWS, *target.files_to_read, *target.dropped}:
        return []
    return [
        f"{rows} rows where the published version has {published}; if that is right, launch "
        f"the day with the tag {ACCEPT_TAG} = {FEWER_ROWS}"
    ]


def rejected_share(
    source: Source,
    log: PublishedCounts,
    day: date,
    counts: FileCounts,
    settings: Settings,
    accepted: Collection[str],
) -> tuple[verdicts.Severity, str]:
    """Judge the share of rejected lines, by itself and against the days before."""
    if not counts.rejected:
        return verdicts.Severity.OK, "no line is rejected"
    share = counts.rejected / counts.landed
    text = f"{counts.rejected} of {counts.landed} lines are rejected ({share:.1%})"
    if counts.landed < verdicts.MIN_JUDGED_ROWS:
        return verdicts.Severity.OK, text
    usual = _usual_share(log, day)
    if share >= settings.rejected_hold and MANY_REJECTED not in accepted:
        return verdicts.Severity.ERROR, (
            f"{text}, {settings.rejected_hold:.0%} or more; see {source.rejected.name} for the "
            f"reasons; if that is right, launch the day with the tag {ACCEPT_TAG} = {MANY_REJECTED}"
        )
    if share >= settings.rejected_alert:
        return verdicts.Severity.ALERT, f"{text}, {settings.rejected_alert:.0%} or more"
    if usual is not None and share > usual + settings.rejected_warn:
        return verdicts.Severity.ALERT, f"{text}, on the days before {usual:.1%} (median)"
    if share >= settings.rejected_warn:
        return verdicts.Severity.WARN, f"{text}, {settings.rejected_warn:.0%} or more"
    return verdicts.Severity.OK, text


def _usual_share(log: PublishedCounts, day: date) -> float | None:
    """Return the median share of rejected lines of the days before; None if they are too few."""
    shares = []
    for before in Window(day - verdicts.TRAILING_DAYS * DAY, day):
        entries = log.entries.get(before, {})
        if landed := int(entries.get("landed", 0)):
            shares.append(int(entries.get("rejected", 0)) / landed)
    return median(shares) if len(shares) >= verdicts.ENOUGH_DAYS else None
