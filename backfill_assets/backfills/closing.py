"""Closing of arrival days: for which no folder will come, as a person says, and opening them again.

A closed day is loaded as an empty one, and no window waits for it. Its load manifest records it.
"""

from collections.abc import Iterator
from datetime import date

from backfill_assets.calendar.partitions import Window, format_ranges
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import folder_name, list_landing
from backfill_assets.publish.types import CLOSE_TAG, REASON_TAG, REOPEN_TAG
from backfill_assets.staleness.unloaded import loaded_manifests
from backfill_assets.tables.sources import Source


def closing_tags(reason: str, *, reopen: bool) -> dict[str, str]:
    """The tags of a run that closes the arrival days it loads, or opens them again."""
    return {REOPEN_TAG if reopen else CLOSE_TAG: "true", REASON_TAG: reason}


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
            f"{source.name} [{format_ranges(days)}] is not {verb}, as {day} {reason}. Nothing was "
            "changed"
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
        elif day >= deployment.today:
            yield day, "is not over: its folder may still come"
        elif day in listing.folders or (manifest and day in manifest.present_days):
            yield day, f"has a folder: {folder_name(day)} has come"


def _reasons_not_to_reopen(
    deployment: Deployment, source: Source, days: Window
) -> Iterator[tuple[date, str]]:
    policy = source.policy(deployment.settings)
    log = read_ledger(deployment.table_url(source.raw.name), source.raw)
    manifests = loaded_manifests(log)
    newest = max((d for d, m in manifests.items() if d in m.present_days), default=date.min)
    for day in days:
        if day not in manifests or not manifests[day].closed:
            yield day, "is not closed"
        elif day not in policy.arrival_days:
            yield day, "is no arrival day of the source (`arrives_on` in its declaration)"
        elif (newest - day).days >= policy.absent_days:
            yield (
                day,
                f"is not waited for: the folder of {newest} has come, {policy.absent_days} days "
                "later or more. A folder that comes after all is loaded",
            )
