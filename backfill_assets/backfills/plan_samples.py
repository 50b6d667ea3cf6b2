"""What a plan says of skew on days that have landed and are not loaded: from a sample of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import TypeVar

from backfill_assets.backfills.plans import BackfillPlan
from backfill_assets.backfills.skews import sampled_skews
from backfill_assets.calendar.partitions import unpacked
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledger
from backfill_assets.landing.listing import CONTROL_FILE, Entry, LandingError, list_landing
from backfill_assets.landing.samples import Values, sample
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.skews import skews_of
from backfill_assets.tables.sources import Source

Some = TypeVar("Some")
#: At most so many files of a source are looked into, of as many days as there are files.
MOST_FILES = 32


def with_samples(settings: Settings, plan: BackfillPlan) -> BackfillPlan:
    """A plan that says of days which are to be loaded for the first time whether they are skewed.

    Where the staging of their source watches a column. What cannot be sampled is named.

    Args:
        settings: the deployment's settings.
        plan: made of the tables' logs and the listing of the landing.
    """
    skews, unsampled = list(plan.skews), list[str]()
    for log, source in graph_for(settings).sources.items():
        outlook = plan.tables.get(log)
        if outlook is None or not skews_of(source.staged):
            continue
        ledger = read_ledger(f"{settings.warehouse}/{log}", source.raw)
        days = [day for day in unpacked(outlook.computed) if _is_new(ledger, day)]
        lines: dict[date, list[Values]] = {}
        for day, of in _sampled(settings.landing, source, days):
            if isinstance(of, str):
                unsampled.append(of)
            else:
                lines.setdefault(day, []).extend(of)
        skews += sampled_skews(source.staged, lines)
    return plan.model_copy(update={"skews": tuple(skews), "unsampled": tuple(unsampled)})


def _is_new(ledger: Ledger, day: date) -> bool:
    return day not in ledger.published


def _sampled(
    landing: str, source: Source, days: Sequence[date]
) -> Iterator[tuple[date, list[Values] | str]]:
    """Lines of files that arrived on some days; or which file has none to give, and why."""
    fields = [*skews_of(source.staged)]
    try:
        listing = list_landing(landing, source, _spread(days, MOST_FILES))
    except LandingError as error:
        yield date.min, str(error)
        return
    chosen: dict[Entry, date] = {}
    each = max(1, MOST_FILES // max(1, len(listing.folders)))
    for day in listing.folders:
        files = [
            entry
            for entry in listing.files(day).values()
            if entry.name != CONTROL_FILE and (entry.size or entry.refused)
        ]
        chosen |= dict.fromkeys(_spread(files, each), day)
    never_null = [n for n, name in enumerate(fields) if name not in source.may_be_null]
    for entry, of in sample(landing, source, [*chosen], fields).items():
        if isinstance(of, str):
            yield chosen[entry], f"{source.name}/{entry.source_file} ({of})"
        else:
            # A line without such a field will be rejected.
            kept = [line for line in of if all(line[n] is not None for n in never_null)]
            yield chosen[entry], kept


def _spread(some: Sequence[Some], most: int) -> list[Some]:
    """At most so many of some, from the first to the last."""
    if len(some) <= most:
        return [*some]
    return [some[n * (len(some) - 1) // max(1, most - 1)] for n in range(most)]
