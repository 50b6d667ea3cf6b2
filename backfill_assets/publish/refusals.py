"""What keeps days from being computed: inputs that are not as they must be, or other code."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import date
from typing import Any

from backfill_assets.calendar.partitions import Window, format_ranges
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.candidates import Snapshot
from backfill_assets.quality.audit import Expectation
from backfill_assets.tables.table import Table


def refuse_other_code(
    ledgers: Sequence[Ledger],
    window: Window,
    record: Mapping[str, Any],
    config_of: Callable[[Table], str],
) -> None:
    """Keep one backfill to one code and one configuration, in a table and in those it reads.

    Args:
        ledgers: that of the table, and those of the tables that it reads.
        window: the run's days.
        record: what the commit is to say of the run.
        config_of: the digest of the settings that decide a table now.

    Raises:
        PublishError: a deploy came in between. No day of a range that is answered for as one may
            be computed by other rules than the rest.
    """
    backfill = record.get("backfill_id")
    if not backfill:
        return
    for ledger in ledgers:
        config = record["config_digest"] if ledger is ledgers[0] else config_of(ledger.table)
        running_version = (record.get("release", record["code_version"]), config)
        for earlier_record in reversed(ledger.records):
            if earlier_record.backfill_id != backfill:
                continue
            for day in earlier_record.days:
                recorded_version = (
                    ledger.code_of(earlier_record, day),
                    earlier_record.config_digest,
                )
                if recorded_version != running_version:
                    raise PublishError(
                        f"{ledgers[0].table.name} [{window}]: backfill {backfill} has published "
                        f"{format_ranges(earlier_record.days)} of {ledger.table.name} with code "
                        f"{recorded_version[0]} and configuration {recorded_version[1]}, and this run has {running_version[0]} and "
                        f"{running_version[1]}. Nothing was written. Put back what was deployed and launch "
                        "what is missing and failed again, or launch all of its days as a new "
                        "backfill. If the new code makes the same rows, `backfill-assets "
                        "accept-code` says so for the days that are published."
                    )


def missing_inputs(
    sources: Sequence[Snapshot],
    window: Window,
    config_of: Callable[[Table], str],
    failed: Mapping[str, Container[date]],
) -> dict[date, Expectation]:
    """The days that an input has not, or not as the settings of now make it; with the reason.

    Such a day has no rows to read, but that does not make it an empty day; and one that has
    just failed upstream must not be built from what was there before. What was made under
    other settings would count an order twice, or not at all.

    Args:
        sources: the inputs.
        window: the days to be made.
        config_of: the digest of the settings that decide a table now.
        failed: days that this run has failed to publish, by table.
    """
    expectations: dict[date, Expectation] = {}
    for source in sources:
        digest = config_of(source.table)
        for day, other_settings_days in source.days_with_other_settings(window, digest).items():
            problem = (
                f"{source.table.name}[{format_ranges(other_settings_days)}] was made under other settings; "
                "rebuild these days first"
            )
            expectations.setdefault(day, Expectation(problems=[problem]))
        just_failed = failed.get(source.table.name, ())
        for day in window:
            needed = source.required_days(day)
            if unusable_days := [needed_day for needed_day in needed if needed_day in just_failed]:
                problem = f"{source.table.name}[{format_ranges(unusable_days)}] failed in this run"
                expectations[day] = Expectation(problems=[problem])
            elif unusable_days := [
                needed_day
                for needed_day in needed
                if needed_day not in source.ledger.published_days
            ]:
                problem = (
                    f"{source.table.name}[{format_ranges(unusable_days)}] has never been published"
                )
                expectations[day] = Expectation(problems=[problem])
    return expectations
