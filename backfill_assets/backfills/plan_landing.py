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
from backfill_assets.landing.listing import ListedFile, list_landing
from backfill_assets.landing.manifests import LoadTarget, describe_change
from backfill_assets.staleness.arrivals import load_targets, loaded_manifests
from backfill_assets.tables.sources import Source


@dataclass(frozen=True)
class LoadPlan:
    """What the days of a raw log are to be loaded from.

    Attributes:
        targets: by day.
        changes: by day, what has changed since it was loaded, in words.
        entries: the files.
    """

    targets: Mapping[date, LoadTarget]
    changes: Mapping[date, str]
    entries: Sequence[ListedFile]

    @cached_property
    def load_digests(self) -> dict[date, str]:
        """By day, the fingerprint of what it is to be loaded from."""
        return {day: target.manifest.content_digest() for day, target in self.targets.items()}


def plan_load(
    landing: str,
    source: Source,
    log: Ledger,
    days: Collection[date],
    policy: Policy,
    accepted: Collection[str],
) -> LoadPlan:
    """What days of a raw log are to be loaded from, as of now.

    Args:
        landing: the root of the landing.
        source: of the log.
        log: its ledger.
        days: the log days.
        policy: the late-data policy.
        accepted: files that may take orders away.
    """
    arrival_days = sorted({d for day in days for d in (day - DAY, day)})
    listing, loaded = list_landing(landing, source, arrival_days), loaded_manifests(log)
    target_by_day = load_targets(
        loaded, listing, sorted(days), source.under(policy), accepted=accepted
    )
    changes = {
        day: describe_change(loaded.get(day), target) for day, target in target_by_day.items()
    }
    entries = [entry for day in arrival_days for entry in listing.files_on(day).values()]
    return LoadPlan(target_by_day, changes, entries)


def digest_load_plans(load_plans: Mapping[str, LoadPlan]) -> str:
    """A digest of what all raw logs are to be loaded from: it moves when files land, or go."""
    text = json.dumps(
        {
            log: {str(day): digest for day, digest in sorted(load_plan.load_digests.items())}
            for log, load_plan in load_plans.items()
        }
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
