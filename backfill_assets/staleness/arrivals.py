"""What has landed against what a raw log was loaded from: the log days to load, and what of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.landing.listing import Listing
from backfill_assets.landing.manifests import Manifest, Target, due, target
from backfill_assets.settings import PREFIX


@dataclass(frozen=True)
class Arrivals:
    """The landing folders against what the raw log was loaded from.

    Attributes:
        load: log days to load, with what they are to be loaded from.
        absent: log days that are due and have no folder.
        held: by log day, the files that were replaced by ones that take orders away, and wait for
            a person to accept it.
        fingerprints: by log day, that of what it would be made of now.
        last: the last log day that is asked for although nothing has landed for it.
        strays: names of what lies beside the folders of arrival days.
    """

    load: Mapping[date, str] = field(default_factory=dict)
    absent: frozenset[date] = frozenset()
    held: Mapping[date, Sequence[str]] = field(default_factory=dict)
    fingerprints: Mapping[date, str] = field(default_factory=dict, compare=False)
    last: date = field(default=date.max, compare=False)
    strays: Sequence[str] = field(default=(), compare=False)


def arrivals(
    raw: Ledger, listing: Listing, policy: Policy, today: date, rejected: Ledger | None = None
) -> Arrivals:
    """Which log days have landed and are not loaded as they are.

    Args:
        raw: the ledger of a raw log.
        rejected: that of its rejected lines, which a run may have failed to publish with it.
        listing: of the whole landing.
        policy: the late-data policy.
        today: a log day must be over to be loaded. One without a folder is loaded as an empty day
            when it is due; its window stays open, until the folder comes or is no longer waited
            for. Not so far beyond the newest day that has landed: there the source is silent, or
            the clock is wrong, and more empty days would not help.
    """
    loaded, load, absent, held, fingerprints = manifests(raw), {}, set(), {}, {}
    due_days, logged = policy.due(today), policy.logged(today)
    last = _last_awaited(loaded, listing, logged, policy)
    known = {*loaded, *raw.published, *raw.withdrawals}
    asked = [day for day in policy.until(min(last, today - DAY)) if day not in known]
    asked += [day for day in known if day in logged]
    for day, wanted in targets(loaded, listing, sorted(asked), policy).items():
        then = loaded.get(day)
        fingerprint = fingerprints[day] = wanted.manifest.fingerprint()
        never = day not in raw.published and day not in raw.withdrawals
        if then is None and never and day not in listing.folders and day not in due_days:
            continue
        if wanted.manifest.held:
            held[day] = sorted(wanted.manifest.held)
        if day in due_days and day not in wanted.manifest.there and not wanted.manifest.closed:
            absent.add(day)
        if due(then, wanted):
            load[day] = fingerprint
        elif rejected is not None and _lags(rejected, day, fingerprint):
            load[day] = f"{fingerprint}+{rejected.table.name}"
    return Arrivals(load, frozenset(absent), held, fingerprints, last, listing.strays)


def silence(found: Arrivals, policy: Policy, today: date) -> str:
    """What is to be said of a source from which nothing has come for long; empty if it has."""
    if found.last >= policy.due(today).end - DAY:
        return ""
    newest = found.last - policy.absent_days * DAY
    since = f"since {newest}" if newest >= policy.start else f"from {policy.start} on"
    beside = f" (but for {found.strays[-1]}, which is not read)" if found.strays else ""
    return (
        f"nothing has landed {since}{beside}, for more than {policy.absent_days} days "
        f"({PREFIX}ABSENT_DAYS): days after {found.last} are not asked for. The source is silent, "
        "or this machine's clock runs ahead. See that the source delivers, or set the clock; what "
        "lands is loaded as ever. To have these days as empty ones, materialize them"
    )


def _last_awaited(
    loaded: Mapping[date, Manifest], listing: Listing, logged: Window, policy: Policy
) -> date:
    """The last log day that is asked for without a folder: so many days after the newest landed.

    By what was loaded as well: the landing may have been purged.
    """
    landed = {day for day in listing.folders if day in logged}
    landed.update(*(one.there for one in loaded.values()))
    newest = max([policy.start - DAY, *landed])
    return newest + min(policy.absent_days, (date.max - newest).days) * DAY


def targets(
    before: Mapping[date, Manifest],
    listing: Listing,
    days: Iterable[date],
    policy: Policy,
    *,
    accepted: Collection[str] = (),
    close: bool = False,
) -> dict[date, Target]:
    """What log days are to be made of; see `manifests.target`.

    A folder is waited for until one has been loaded that came so many days later.

    Args:
        before: what all log days were last loaded from.
        listing: of the folders of these days.
        days: the log days.
        policy: the late-data policy.
        accepted: files that may take orders away.
        close: whether nothing more is expected of any of the days without a folder.
    """
    seen = {day for day, one in before.items() if day in one.there}
    newest = max(seen, default=date.min)
    return {
        day: target(
            day,
            before.get(day),
            listing,
            seen=seen,
            accepted=accepted,
            close=close or (newest - day).days >= policy.absent_days,
        )
        for day in days
    }


def manifests(raw: Ledger) -> dict[date, Manifest]:
    """What each log day was last loaded from; those of which it is not known are left out."""
    loaded = {
        day: manifest for record in raw.records for day, manifest in record.details.landing.items()
    }
    found = {day: Manifest.of(manifest) for day, manifest in loaded.items()}
    return {day: manifest for day, manifest in found.items() if manifest is not None}


def _lags(table: Ledger, day: date, fingerprint: str) -> bool:
    """Whether a day is not published with this fingerprint; one without any counts as published."""
    published = table.current_record(day)
    if published is None:
        return day not in table.withdrawals
    return published.fingerprint not in ("", fingerprint)
