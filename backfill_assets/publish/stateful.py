"""Stateful tables: their days are built in date order, each from the day before."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date

from backfill_assets.audit.verdicts import Expectation, Verdict, judge_days
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.publish.types import ComputePlan
from backfill_assets.settings import PREFIX
from backfill_assets.staleness.assess import new_input_reason
from backfill_assets.staleness.input_digest import StateDigester

#: Days of a stateful table that are computed and committed together. Limited, as each row of the
#: state is repeated for each of these days; and a run that was killed continues after its last
#: commit. A month fits into one commit.
DAYS_PER_COMMIT = 31


def split_buildable_days(
    plan: ComputePlan, window: Window, failed: Collection[date], config_digest: str
) -> tuple[dict[date, str], dict[date, Expectation]]:
    """Return the days to compute and those to refuse, as each day is built from the day before.

    If a day is computed, so are all later days, as they may change. No day is built after a day
    that is not published with its current inputs.

    The reasons and refusals of `plan` consider the other inputs only; `failed` are days of the
    table that this run failed to publish.
    """
    name, reasons, refused = plan.table.name, plan.reasons, plan.refused
    blocker = _blocking_reason(plan, window.start, failed, config_digest)
    buildable: dict[date, str] = {}
    blocked: dict[date, Expectation] = dict(refused)
    for day in window:
        if day in refused:
            blocker = f"{name}[{day}] was not published"
        elif blocker and day in reasons:
            blocked[day] = Expectation(problems=[f"it is built upon earlier days, and {blocker}"])
        elif not blocker and (buildable or day in reasons):
            buildable[day] = reasons.get(day) or new_input_reason([name])
    return buildable, blocked


def _blocking_reason(
    plan: ComputePlan, first: date, failed: Collection[date], config_digest: str
) -> str:
    """Return why the first day cannot be built from the days before; empty if it can."""
    ledger, name = plan.ledger, plan.table.name
    if earlier := [day for day in failed if day < first]:
        return f"{name}[{max(earlier)}] failed in this run"
    own_snapshot = next(source for source in plan.sources if source.table is ledger.table)
    earlier = [day for day in ledger.published_days if day < first]
    begins = first not in ledger.published_days and not own_snapshot.required_days(first)
    if earlier and begins and first - DAY not in ledger.published_days:
        return (
            f"{name} has days up to {max(earlier)} and none on the day before {first}, the first "
            f"day now: it would begin anew. Put {PREFIX}START back and build the days between"
        )
    for needed in own_snapshot.required_days(first):
        if needed not in ledger.published_days:
            return f"{name}[{needed}] has never been published"
        if needed in ledger.under_other_settings(config_digest):
            return f"{name}[{needed}] was made under other settings; rebuild it first"
    return ""


def recompute_digests(
    plan: ComputePlan, digester: StateDigester, verdicts: Sequence[Verdict]
) -> tuple[dict[date, str], list[Verdict]]:
    """Return the actual input fingerprints and verdicts of days that depend on each other.

    `verdicts` are those of each day by itself, in ascending order.

    Returns:
        The fingerprint of each day, given the day before as it was computed; and the verdicts, of
        which none passes after a day that did not pass.
    """
    table = plan.table
    fingerprints: dict[date, str] = {}
    verdict_by_day: dict[date, Verdict] = {}
    for verdict in verdicts:
        day, previous = verdict.day, verdict_by_day.get(verdict.day - DAY)
        content = previous.metrics.digest if previous else plan.ledger.content_key(day - DAY)
        fingerprints[day] = digester.digest_day(day, content)
        if previous and not previous.may_publish:
            problem = f"it is built upon {table.name}[{previous.day}], which did not pass"
            expectation = replace(
                verdict.expectation, problems=[*verdict.expectation.problems, problem]
            )
            (verdict,) = judge_days(table, [day], {day: verdict.metrics}, {day: expectation}, {})
        verdict_by_day[day] = verdict
    return fingerprints, [*verdict_by_day.values()]


def unchanged_days(plan: ComputePlan, fingerprints: Mapping[date, str]) -> list[date]:
    """Return the days of a stateful table that came out as they are published; else none.

    Days that were computed for another reason than a change of the day before are not among them.
    """
    unchanged = []
    for day in plan.reasons if plan.digester else ():
        published = plan.ledger.current_record(day)
        if day not in plan.requested and published and published.fingerprint == fingerprints[day]:
            unchanged.append(day)
    return unchanged
