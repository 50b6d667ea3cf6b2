"""Unloaded days: log days whose landed files differ from what the raw log was loaded from.

A load plan says what days would be loaded from, whether they differ or not. An arrival day without
a folder is closed if none is expected for it.
"""

import hashlib
import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window, format_ranges
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import Deployment
from backfill_assets.landing import load_manifest
from backfill_assets.landing.listing import ListedFile, Listing, folder_name, list_landing
from backfill_assets.settings import PREFIX
from backfill_assets.tables.sources import Source


@dataclass(frozen=True)
class UnloadedDays:
    """The landing folders compared with what the raw log was loaded from.

    Attributes:
        days_to_load: log days to load, each with an input digest of its files.
        missing_days: log days that are due and have no folder.
        files_on_hold: by log day, files that were replaced by ones that lack orders, and wait for
            a person to accept them.
        input_digests: by log day, that of the files it would be loaded from now.
        last_day_requested: the last log day that is requested although nothing has landed for it.
        strays: names of files and folders beside the folders of arrival days.
        reverted_days: log days that lack files which a person reverted and that still lie there.
        closed_days: published log days without a folder, for which none is expected.
        days_without_news: days to load although nothing has landed: a missing folder is not
            expected any more, or expected again.
    """

    days_to_load: Mapping[date, str] = field(default_factory=dict)
    missing_days: frozenset[date] = frozenset()
    files_on_hold: Mapping[date, Sequence[str]] = field(default_factory=dict)
    input_digests: Mapping[date, str] = field(default_factory=dict, compare=False)
    last_day_requested: date = field(default=date.max, compare=False)
    strays: Sequence[str] = field(default=(), compare=False)
    reverted_days: frozenset[date] = frozenset()
    closed_days: frozenset[date] = frozenset()
    days_without_news: frozenset[date] = frozenset()


def find_unloaded_days(
    raw: Ledger, listing: Listing, policy: Policy, today: date, rejected: Ledger | None = None
) -> UnloadedDays:
    """Return the log days whose landed files are not loaded in their present state.

    Args:
        raw: the ledger of a raw log.
        rejected: the ledger of its rejected lines, which a run may have failed to publish.
        listing: of the whole landing.
        policy: the late-data policy.
        today: only log days before it are loaded. A due day without a folder is loaded as an empty
            day; its window stays open until the folder comes or is no longer expected. But not
            days far after the newest landed one: then the source is silent or the clock is wrong,
            and more empty days would not help.
    """
    loaded = loaded_manifests(raw)
    days_to_load: dict[date, str] = {}
    input_digests: dict[date, str] = {}
    files_on_hold: dict[date, list[str]] = {}
    missing_days, reverted_days = set[date](), set[date]()
    days_without_news = set[date]()
    due_days, log_window = policy.expected_days(today), policy.loadable_days(today)
    last_expected = _last_day_requested(loaded, listing, log_window, policy)
    known_days = {*loaded, *raw.published_days, *raw.revocations}
    log_days = [
        day
        for day in policy.partitions_until(min(last_expected, log_window.end - DAY))
        if day not in known_days
    ]
    log_days += [day for day in known_days if day in log_window]
    for day, planned in load_targets(loaded, listing, sorted(log_days), policy).items():
        loaded_manifest = loaded.get(day)
        input_digest = input_digests[day] = planned.manifest.content_digest()
        never_published = day not in raw.published_days and day not in raw.revocations
        if (
            loaded_manifest is None
            and never_published
            and day not in listing.folders
            and day not in due_days
        ):
            continue
        if planned.manifest.awaiting_approval:
            files_on_hold[day] = sorted(planned.manifest.awaiting_approval)
        if (
            day in due_days
            and day not in planned.manifest.present_days
            and not planned.manifest.closed
        ):
            missing_days.add(day)
        if load_manifest.needs_reload(loaded_manifest, planned):
            days_to_load[day] = input_digest
            if not load_manifest.has_news(loaded_manifest, planned):
                days_without_news.add(day)
        elif rejected is not None and _lacks_load(rejected, day, input_digest):
            days_to_load[day] = f"{input_digest}+{rejected.table.name}"
        elif loaded_manifest is not None and loaded_manifest.lacks_reverted_files:
            reverted_days.add(day)
    return UnloadedDays(
        days_to_load,
        frozenset(missing_days),
        files_on_hold,
        input_digests,
        last_expected,
        listing.strays,
        frozenset(reverted_days),
        frozenset(day for day, manifest in loaded.items() if manifest.closed),
        frozenset(days_without_news),
    )


def no_data_warning(unloaded: UnloadedDays, policy: Policy, today: date) -> str:
    """Return a warning if nothing has landed from a source for long; empty otherwise.

    Days without a folder are requested for `absent_days` after the newest one that landed.
    """
    if unloaded.last_day_requested >= policy.expected_days(today).end - DAY:
        return ""
    newest = unloaded.last_day_requested - policy.absent_days * DAY
    since = f"since {newest}" if newest >= policy.start else f"from {policy.start} on"
    unread_files_note = (
        f" (but for {unloaded.strays[-1]}, which is not read)" if unloaded.strays else ""
    )
    return (
        f"nothing has landed {since}{unread_files_note}, for more than {policy.absent_days} days "
        f"({PREFIX}ABSENT_DAYS): days after {unloaded.last_day_requested} are not asked for. "
        "The source is silent, or this machine's clock runs ahead. See that the source delivers, "
        "or set the clock; what lands is loaded as ever. To have these days as empty ones, "
        "materialize them"
    )


def _last_day_requested(
    loaded: Mapping[date, load_manifest.LoadManifest],
    listing: Listing,
    log_window: Window,
    policy: Policy,
) -> date:
    """Return the last log day that is requested without a folder: `absent_days` after the newest.

    Loaded days count as landed: the landing may have been purged.
    """
    landed = {day for day in listing.folders if day in log_window}
    landed.update(*(manifest.present_days for manifest in loaded.values()))
    newest = max([policy.start - DAY, *landed])
    return newest + min(policy.absent_days, (date.max - newest).days) * DAY


def load_targets(
    loaded: Mapping[date, load_manifest.LoadManifest],
    listing: Listing,
    days: Iterable[date],
    policy: Policy,
    *,
    accepted: Collection[str] = (),
    close: Container[date] = (),
    reopen: Container[date] = (),
) -> dict[date, load_manifest.LoadTarget]:
    """Return what each log day is to be loaded from; see `landing.load_manifest.load_target`.

    A missing folder is expected on the arrival days of the source, until a folder that is
    `absent_days` newer has been loaded.

    `accepted` files may lack orders that were loaded before. Folders of the days `close` are not
    expected any more, and those of `reopen` are again.
    """
    seen_days = _loaded_folders(loaded)
    newest = max(seen_days, default=date.min)

    def is_closed(day: date) -> bool:
        if day < policy.start:
            return False
        if day not in policy.arrival_days or _is_given_up(day, newest, policy):
            return True
        recorded = day in loaded and loaded[day].closed
        return day in close or (recorded and day not in reopen)

    return {
        day: load_manifest.load_target(
            day,
            loaded.get(day),
            listing,
            arrived_days=seen_days,
            accepted=accepted,
            closed_days={d for d in (day - DAY, day) if is_closed(d)},
        )
        for day in days
    }


def _loaded_folders(loaded: Mapping[date, load_manifest.LoadManifest]) -> set[date]:
    """Return the arrival days whose folders were loaded; the landing may have been purged."""
    return {day for day, manifest in loaded.items() if day in manifest.present_days}


def _is_given_up(day: date, newest: date, policy: Policy) -> bool:
    """Return whether no folder is waited for, as one of so much later has been loaded."""
    return (newest - day).days >= policy.absent_days


def loaded_manifests(raw: Ledger) -> dict[date, load_manifest.LoadManifest]:
    """Return what each log day was last loaded from, without days that have no such record."""
    loaded = {
        day: manifest for record in raw.records for day, manifest in record.details.landing.items()
    }
    manifest_by_day = {
        day: load_manifest.LoadManifest.from_record(manifest) for day, manifest in loaded.items()
    }
    return {day: manifest for day, manifest in manifest_by_day.items() if manifest is not None}


def days_without_folder(raw: Ledger) -> set[date]:
    """Return the log days that were last loaded without their folder, although it is expected."""
    return {day for day, manifest in loaded_manifests(raw).items() if manifest.lacks_folder(day)}


def _lacks_load(rejected: Ledger, day: date, input_digest: str) -> bool:
    """Return whether the rejected lines of a day were not published from these landed files.

    A day that was undone stays undone; a record without an input digest counts as up to date.
    """
    published = rejected.current_record(day)
    if published is None:
        return day not in rejected.revocations
    return published.input_digest not in ("", input_digest)


@dataclass(frozen=True)
class LoadPlan:
    """The files to load for days of a raw log.

    Attributes:
        targets: by day.
        changes: by day, what changed since it was loaded, as text.
        entries: all listed files of these days.
    """

    targets: Mapping[date, load_manifest.LoadTarget]
    changes: Mapping[date, str]
    entries: Sequence[ListedFile]

    @cached_property
    def load_digests(self) -> dict[date, str]:
        """By day, the digest of the content to load."""
        return {day: target.manifest.content_digest() for day, target in self.targets.items()}


def plan_load(
    landing: str,
    source: Source,
    log: Ledger,
    days: Collection[date],
    policy: Policy,
    accepted: Collection[str],
) -> LoadPlan:
    """Plan the load of days of a raw log, from the landing as of now.

    `accepted` has names of files that may remove orders.
    """
    arrival_days = sorted({d for day in days for d in (day - DAY, day)})
    listing, loaded = list_landing(landing, source, arrival_days), loaded_manifests(log)
    target_by_day = load_targets(
        loaded, listing, sorted(days), source.under(policy), accepted=accepted
    )
    changes = {
        day: load_manifest.describe_change(day, loaded.get(day), target)
        for day, target in target_by_day.items()
    }
    entries = [entry for day in arrival_days for entry in listing.files_on(day).values()]
    return LoadPlan(target_by_day, changes, entries)


def digest_load_plans(load_plans: Mapping[str, LoadPlan]) -> str:
    """A digest of what is to be loaded: a launch compares it with that of the plan.

    It changes if files land, change or are deleted.
    """
    text = json.dumps(
        {
            raw_table: {str(day): digest for day, digest in sorted(load_plan.load_digests.items())}
            for raw_table, load_plan in load_plans.items()
        }
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


#: What follows once arrival days are closed, or opened again.
AFTER_CLOSING = "the next night loads the days after them, and closes or opens their windows"


def refuse_closing(deployment: Deployment, source: Source, days: Window, *, reopen: bool) -> None:
    """Raise if some arrival days cannot be closed, or opened again.

    Raises:
        ValueError: the message names the first such day, and why.
        LandingError: the landing is not where the settings say.
    """
    find_reasons = _reasons_not_to_reopen if reopen else _reasons_not_to_close
    for day, reason in find_reasons(deployment, source, days):
        verb = "opened" if reopen else "closed"
        raise ValueError(
            f"{source.full_name} [{format_ranges(days)}] is not {verb}, as {day} {reason}. Nothing "
            "was changed"
        )


def _reasons_not_to_close(
    deployment: Deployment, source: Source, days: Window
) -> Iterator[tuple[date, str]]:
    policy = source.policy(deployment.settings)
    listing = list_landing(deployment.settings.landing, source, days)
    log = read_ledger(deployment.table_url(source.raw.name), source.raw)
    manifests = loaded_manifests(log)
    for day in days:
        manifest = manifests.get(day)
        if day < policy.start:
            yield day, f"is before the first day of the source, {policy.start}"
        elif day >= policy.business_day(deployment.today):
            yield day, "is not over: its folder may still come"
        elif policy.end and day >= policy.end:
            yield day, f"is after the last day of the source, {policy.end - DAY}"
        elif day in listing.folders or (manifest and day in manifest.present_days):
            yield day, f"has a folder: {folder_name(day)} has come"


def _reasons_not_to_reopen(
    deployment: Deployment, source: Source, days: Window
) -> Iterator[tuple[date, str]]:
    policy = source.policy(deployment.settings)
    log = read_ledger(deployment.table_url(source.raw.name), source.raw)
    manifests = loaded_manifests(log)
    newest = max(_loaded_folders(manifests), default=date.min)
    for day in days:
        if day not in manifests or not manifests[day].closed:
            yield day, "is not closed"
        elif day not in policy.arrival_days:
            yield day, "is no arrival day of the source (`arrives_on` in its declaration)"
        elif _is_given_up(day, newest, policy):
            yield (
                day,
                f"is not waited for: the folder of {newest} has come, {policy.absent_days} days "
                "later or more. A folder that comes after all is loaded",
            )
