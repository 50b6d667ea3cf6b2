"""What a plan says of skew on days that have landed and are not loaded: from a sample of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import TypeVar

from backfill_assets.backfills.plans import BackfillPlan
from backfill_assets.backfills.skews import find_sampled_skews
from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledger
from backfill_assets.landing.listing import CONTROL_FILE, LandingError, ListedFile, list_landing
from backfill_assets.landing.samples import Values, sample_values
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.skews import skews_of
from backfill_assets.tables.sources import Source

Item = TypeVar("Item")
#: At most so many files of a source are looked into, of as many days as there are files.
MAX_SAMPLED_FILES = 32


def add_sampled_skews(settings: Settings, plan: BackfillPlan) -> BackfillPlan:
    """A plan that says of days which are to be loaded for the first time whether they are skewed.

    Where the staging of their source watches a column. What cannot be sampled is named.

    Args:
        settings: the deployment's settings.
        plan: made of the tables' logs and the listing of the landing.
    """
    skews, unsampled = list(plan.skews), list[str]()
    for log, source in graph_for(settings).sources.items():
        forecast = plan.tables.get(log)
        if forecast is None or not skews_of(source.staged):
            continue
        ledger = read_ledger(f"{settings.warehouse}/{log}", source.raw)
        days = [day for day in from_ranges(forecast.computed) if _is_new(ledger, day)]
        lines: dict[date, list[Values]] = {}
        for day, values_or_error in _sample_files(settings.landing, source, days):
            if isinstance(values_or_error, str):
                unsampled.append(values_or_error)
            else:
                lines.setdefault(day, []).extend(values_or_error)
        skews += find_sampled_skews(source.staged, lines)
    return plan.model_copy(update={"skews": tuple(skews), "unsampled": tuple(unsampled)})


def _is_new(ledger: Ledger, day: date) -> bool:
    return day not in ledger.published_days


def _sample_files(
    landing: str, source: Source, days: Sequence[date]
) -> Iterator[tuple[date, list[Values] | str]]:
    """Lines of files that arrived on some days; or which file has none to give, and why."""
    fields = [*skews_of(source.staged)]
    try:
        listing = list_landing(landing, source, _spread_evenly(days, MAX_SAMPLED_FILES))
    except LandingError as error:
        yield date.min, str(error)
        return
    days_by_file: dict[ListedFile, date] = {}
    files_per_day = max(1, MAX_SAMPLED_FILES // max(1, len(listing.folders)))
    for day in listing.folders:
        files = [
            entry
            for entry in listing.files_on(day).values()
            if entry.name != CONTROL_FILE and (entry.size or entry.refused)
        ]
        days_by_file |= dict.fromkeys(_spread_evenly(files, files_per_day), day)
    never_null = [n for n, name in enumerate(fields) if name not in source.may_be_null]
    for entry, values_or_error in sample_values(landing, source, [*days_by_file], fields).items():
        if isinstance(values_or_error, str):
            yield days_by_file[entry], f"{source.name}/{entry.source_file} ({values_or_error})"
        else:
            # A line without such a field will be rejected.
            complete_lines = [
                line for line in values_or_error if all(line[n] is not None for n in never_null)
            ]
            yield days_by_file[entry], complete_lines


def _spread_evenly(items: Sequence[Item], limit: int) -> list[Item]:
    """At most so many of the items, from the first to the last."""
    if len(items) <= limit:
        return [*items]
    return [items[n * (len(items) - 1) // max(1, limit - 1)] for n in range(limit)]
