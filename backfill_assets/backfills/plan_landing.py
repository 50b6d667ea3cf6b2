"""What has landed for a plan: the files that the days of a raw log are to be loaded from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from backfill_assets.calendar.partitions import DAY
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.landing.listing import Entry, list_landing
from backfill_assets.landing.manifests import Target, news
from backfill_assets.staleness.arrivals import manifests, targets
from backfill_assets.tables.sources import Source


@dataclass(frozen=True)
class Landed:
    """What the days of a raw log are to be loaded from.

    Attributes:
        targets: by day.
        news: by day, what has changed since it was loaded, in words.
        entries: the files.
    """

    targets: Mapping[date, Target]
    news: Mapping[date, str]
    entries: Sequence[Entry]

    @cached_property
    def fingerprints(self) -> dict[date, str]:
        """By day, the fingerprint of what it is to be loaded from."""
        return {day: one.manifest.fingerprint() for day, one in self.targets.items()}


def landed_for(
    landing: str,
    source: Source,
    log: Ledger,
    days: Collection[date],
    policy: Policy,
    accepted: Collection[str],
) -> Landed:
    """What days of a raw log are to be loaded from, as of now.

    Args:
        landing: the root of the landing.
        source: of the log.
        log: its ledger.
        days: the log days.
        policy: the late-data policy.
        accepted: files that may take orders away.
    """
    arrivals = sorted({d for day in days for d in (day - DAY, day)})
    listed, before = list_landing(landing, source, arrivals), manifests(log)
    wanted = targets(before, listed, sorted(days), source.under(policy), accepted=accepted)
    said = {day: news(before.get(day), one) for day, one in wanted.items()}
    entries = [entry for day in arrivals for entry in listed.files(day).values()]
    return Landed(wanted, said, entries)


def digest_of(landed: Mapping[str, Landed]) -> str:
    """A digest of what all raw logs are to be loaded from: it moves when files land, or go."""
    said = json.dumps(
        {
            log: {str(day): what for day, what in sorted(of.fingerprints.items())}
            for log, of in landed.items()
        }
    )
    return hashlib.sha256(said.encode()).hexdigest()[:16]
