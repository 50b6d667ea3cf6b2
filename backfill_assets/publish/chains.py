"""Days that are built upon each other: those of a table that carries state from day to day."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.candidates import Plan
from backfill_assets.publish.reasons import new_input
from backfill_assets.quality.audit import Expectation, Verdict, judge
from backfill_assets.settings import PREFIX
from backfill_assets.tables.table import Table

#: So many days of such a table are computed at once, and published by a commit: a row of the first
#: of them is read for each of the others. So a run that is killed continues from the last of them.
#: A run of a month is one commit.
AT_ONCE = 31


def in_order(
    ledger: Ledger,
    plan: Plan,
    window: Window,
    because: Mapping[date, str],
    refused: Mapping[date, Expectation],
    failed: Collection[date],
    config_digest: str,
) -> tuple[dict[date, str], dict[date, Expectation]]:
    """The days to compute, and those to refuse, as each day is built upon the one before it.

    With a day, all days after it are computed, as they may change with it. After a day that is not
    published as it would be now, no day is built.

    Args:
        ledger: that of the table.
        plan: how its days would be made now.
        window: the days of the plan, without a gap.
        because: the days to compute, each with why, by what else they are made of.
        refused: the days that cannot be made, by what else they are made of.
        failed: earlier days of the table that this run has failed to publish.
        config_digest: of the settings that decide the table now.
    """
    name = ledger.table.name
    hole = _before(ledger, plan, window.start, failed, config_digest)
    wanted: dict[date, str] = {}
    stopped: dict[date, Expectation] = dict(refused)
    for day in window:
        if day in refused:
            hole = f"{name}[{day}] was not published"
        elif hole and day in because:
            stopped[day] = Expectation(problems=[f"it is built upon earlier days, and {hole}"])
        elif not hole and (wanted or day in because):
            wanted[day] = because.get(day) or new_input([name])
    return wanted, stopped


def _before(
    ledger: Ledger, plan: Plan, first: date, failed: Collection[date], config_digest: str
) -> str:
    """Why nothing can be built upon the days before a first one; empty if it can."""
    name = ledger.table.name
    if earlier := [day for day in failed if day < first]:
        return f"{name}[{max(earlier)}] failed in this run"
    own = next(source for source in plan.sources if source.table is ledger.table)
    earlier = [day for day in ledger.published if day < first]
    begins = first not in ledger.published and not own.needed(first)
    if earlier and begins and first - DAY not in ledger.published:
        return (
            f"{name} has days up to {max(earlier)} and none on the day before {first}, the first "
            f"day now: it would begin anew. Put {PREFIX}START back and build the days between"
        )
    for needed in own.needed(first):
        if needed not in ledger.published:
            return f"{name}[{needed}] has never been published"
        if needed in ledger.under_other_settings(config_digest):
            return f"{name}[{needed}] was made under other settings; rebuild it first"
    return ""


def chained(
    table: Table, plan: Plan, ledger: Ledger, verdicts: Sequence[Verdict]
) -> tuple[dict[date, str], list[Verdict]]:
    """What days were really made of, and what the audit says of them, one upon the other.

    Args:
        table: the table.
        plan: how its days were made.
        ledger: that of the table.
        verdicts: of each day by itself, in ascending order.

    Returns:
        The fingerprint of each day, given the day before as it was computed; and the verdicts, of
        which none passes after a day that did not.
    """
    assert plan.after is not None
    fingerprints: dict[date, str] = {}
    found: dict[date, Verdict] = {}
    for verdict in verdicts:
        day, before = verdict.day, found.get(verdict.day - DAY)
        content = before.measured.digest if before else ledger.content(day - DAY)
        fingerprints[day] = plan.after(day, content)
        if before and not before.passed:
            said = f"it is built upon {table.name}[{before.day}], which did not pass"
            due = replace(verdict.expectation, problems=[*verdict.expectation.problems, said])
            (verdict,) = judge(table, [day], {day: verdict.measured}, {day: due}, {})
        found[day] = verdict
    return fingerprints, [*found.values()]


def as_it_was(
    ledger: Ledger, plan: Plan, fingerprints: Mapping[date, str], asked: Collection[date]
) -> list[date]:
    """The days of a table that carries state that came out as they are published.

    Args:
        ledger: that of the table.
        plan: how its days were made; of a table that carries no state, there are none.
        fingerprints: of the days, as `chained` has them.
        asked: the days that were computed for another reason than the day before them.
    """
    found = []
    for day, fingerprint in fingerprints.items() if plan.after else ():
        published = ledger.current_record(day)
        if day not in asked and published and published.fingerprint == fingerprint:
            found.append(day)
    return found
