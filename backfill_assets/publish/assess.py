"""Which days a run computes, and why; and what keeps days from being computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.partitions import DAY, Window, format_ranges, to_ranges
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.types import ComputePlan, Snapshot
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.table import Table

#: A day that is made of what it was made of, by the code that made it.
REQUESTED = "asked for"


def recompute_reason(
    ledger: Ledger,
    day: date,
    fingerprint: str,
    code_version: str,
    config_digest: str,
    rewrite: bool = False,
    *,
    inputs: Iterable[Ledger] = (),
    input_change: str = "",
) -> str | None:
    """Why a day is to be computed; none if it is published as it would be made now.

    Args:
        ledger: that of the table.
        day: the day.
        fingerprint: the input fingerprint that the day would have now.
        code_version: of the code that would compute it.
        config_digest: of the settings that would decide what is in it.
        rewrite: whether somebody asks for it, whatever is published.
        inputs: the tables that it is made of, as they are now, to tell which of them is new.
        input_change: what is new in its input, where somebody knows better than these tables do.
    """
    latest, published = ledger.latest.get(day), ledger.current_record(day)
    if latest is None:
        return "rows without a record" if day in ledger.published_days else "never published"
    if published is None:
        return "external commit"
    reasons = []
    if not published.fingerprint:
        reasons.append(input_change or "input not on record")
    elif published.fingerprint != fingerprint:
        # A table may have changed on other days only; the fingerprint knows which days count.
        newer = [
            x.table.name for x in inputs if x.last_change > latest.inputs.get(x.table.name, -1)
        ]
        reasons.append(input_change or new_input_reason([*newer, *ledger.changed_references(day)]))
    if latest.code_version != code_version:
        reasons.append("other code")
    if latest.made_under(day) != config_digest:
        reasons.append("other settings")
    if rewrite and not reasons:
        reasons.append(input_change or REQUESTED)
    return "; ".join(reasons) or None


def new_input_reason(names: Sequence[str]) -> str:
    """New input as a reason, with the tables that it comes from as far as they are known."""
    return f"new input: {', '.join(names)}" if names else "new input"


def days_to_compute(
    ledger: Ledger,
    plan: ComputePlan,
    code_version: str,
    config_digest: str,
    rewrite: Container[date],
) -> dict[date, str]:
    """The days of a plan that are to be computed, each with why.

    Args:
        ledger: that of the table.
        plan: how its days would be made now.
        code_version: of the code that would compute them.
        config_digest: of the settings that would decide what is in them.
        rewrite: the days that somebody asks for, whatever is published.
    """
    inputs = [source.ledger for source in plan.sources]
    reasons = {
        day: recompute_reason(
            ledger,
            day,
            fingerprint,
            code_version,
            config_digest,
            day in rewrite or day in plan.recommitted_days,
            inputs=inputs,
            input_change=plan.input_changes.get(day, ""),
        )
        for day, fingerprint in plan.fingerprints.items()
    }
    return {day: reason for day, reason in reasons.items() if reason is not None}


def days_on_hold(ledger: Ledger, fingerprints: Mapping[date, str]) -> set[date]:
    """The days that would come out with rows that a person has decided against.

    Of a table that carries state, the days after such a day as well, as far as they were decided
    against: they were built upon it.

    Args:
        ledger: that of the table.
        fingerprints: by day, the input fingerprint that it would have now.
    """
    held_days: set[date] = set()
    for day in sorted(ledger.on_hold.keys() & fingerprints.keys()):
        follows_held_day = carries_state(ledger.table) and day - DAY in held_days
        if follows_held_day or ledger.on_hold[day] == fingerprints[day]:
            held_days.add(day)
    return held_days


def days_by_reason(reasons: Mapping[date, str]) -> dict[str, list[str]]:
    """The days by reason, for a record."""
    grouped = defaultdict(list)
    for day, reason in reasons.items():
        grouped[reason].append(day)
    return {reason: to_ranges(days) for reason, days in grouped.items()}


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
                        f"{recorded_version[0]} and configuration {recorded_version[1]}, and this "
                        f"run has {running_version[0]} and {running_version[1]}. Nothing was "
                        "written. Put back what was deployed and launch what is missing and failed "
                        "again, or launch all of its days as a new backfill. If the new code makes "
                        "the same rows, `backfill-assets accept-code` says so for the days that "
                        "are published."
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
                f"{source.table.name}[{format_ranges(other_settings_days)}] was made under other "
                "settings; rebuild these days first"
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
