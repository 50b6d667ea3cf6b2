"""Why a day is computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date

from backfill_assets.calendar.partitions import DAY, packed
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.candidates import Plan
from backfill_assets.tables.derived import carries_state

#: A day that is made of what it was made of, by the code that made it.
ASKED_FOR = "asked for"


def why(
    ledger: Ledger,
    day: date,
    fingerprint: str,
    code_version: str,
    config_digest: str,
    rewrite: bool = False,
    *,
    inputs: Iterable[Ledger] = (),
    news: str = "",
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
        news: what is new in its input, where somebody knows better than these tables do.
    """
    known, published = ledger.latest.get(day), ledger.current_record(day)
    if known is None:
        return "rows without a record" if day in ledger.published else "never published"
    if published is None:
        return "external commit"
    found = []
    if not published.fingerprint:
        found.append(news or "input not on record")
    elif published.fingerprint != fingerprint:
        # A table may have changed on other days only; the fingerprint knows which days count.
        newer = [x.table.name for x in inputs if x.moved > known.inputs.get(x.table.name, -1)]
        found.append(news or new_input([*newer, *ledger.other_references(day)]))
    if known.code_version != code_version:
        found.append("other code")
    if known.made_under(day) != config_digest:
        found.append("other settings")
    if rewrite and not found:
        found.append(news or ASKED_FOR)
    return "; ".join(found) or None


def new_input(names: Sequence[str]) -> str:
    """New input as a reason, with the tables that it comes from as far as they are known."""
    return f"new input: {', '.join(names)}" if names else "new input"


def to_compute(
    ledger: Ledger, plan: Plan, code_version: str, config_digest: str, rewrite: Container[date]
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
    found = {
        day: why(
            ledger,
            day,
            fingerprint,
            code_version,
            config_digest,
            day in rewrite or day in plan.recorded_anew,
            inputs=inputs,
            news=plan.news.get(day, ""),
        )
        for day, fingerprint in plan.fingerprints.items()
    }
    return {day: reason for day, reason in found.items() if reason is not None}


def days_on_hold(ledger: Ledger, fingerprints: Mapping[date, str]) -> set[date]:
    """The days that would come out with rows that a person has decided against.

    Of a table that carries state, the days after such a day as well, as far as they were decided
    against: they were built upon it.

    Args:
        ledger: that of the table.
        fingerprints: by day, the input fingerprint that it would have now.
    """
    found: set[date] = set()
    for day in sorted(ledger.on_hold.keys() & fingerprints.keys()):
        follows_held = carries_state(ledger.table) and day - DAY in found
        if follows_held or ledger.on_hold[day] == fingerprints[day]:
            found.add(day)
    return found


def by_reason(because: Mapping[date, str]) -> dict[str, list[str]]:
    """The days by reason, for a record."""
    found = defaultdict(list)
    for day, reason in because.items():
        found[reason].append(day)
    return {reason: packed(days) for reason, days in found.items()}
