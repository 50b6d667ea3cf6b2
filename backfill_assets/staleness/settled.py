"""When all tables have come to one state: no open day is behind its inputs."""

from __future__ import annotations

from datetime import date

from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.versions import keep_versions
from backfill_assets.settings import Settings
from backfill_assets.staleness.backlog import backlog


def keep_settled_versions(settings: Settings, today: date) -> bool:
    """Take note of the versions of the tables if they belong together; whether they do.

    To be called when no run is under way.

    Args:
        settings: say where the tables are.
        today: the business day.
    """
    ledgers = read_ledgers(settings)
    settled = not any(backlog(ledgers, Policy.of(settings), today).open.values())
    if settled:
        keep_versions(settings.warehouse, ledgers)
    return settled
