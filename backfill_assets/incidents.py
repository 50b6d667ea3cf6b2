"""What a person must be told: incidents, from the states of the days."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from backfill_assets.alerts import Incident
from backfill_assets.partitions import DAY
from backfill_assets.schemas import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
)
from backfill_assets.states import (
    MEANING,
    Situation,
    State,
    changed_final_days,
    day_states,
    holes,
)

#: Late lines of so many days back are still news.
_NEWS = 30
_ABSENT = (
    "no folder has landed for this arrival day, so it counts as an empty day until files land; if "
    "there is nothing to send, an empty folder says so"
)
_GONE = (
    "landing files that were loaded are no longer there; the loaded rows are kept. Put the files "
    "back, or materialize these days to drop the rows"
)
#: What a table is built from: where a day is missing there, that is the incident, and just one.
_BUILT_FROM = {
    REJECTED.name: RAW.name,
    STAGED.name: RAW.name,
    LATE.name: RAW.name,
    CORRECTIONS.name: RAW.name,
    LATENESS.name: RAW.name,
    FACT.name: STAGED.name,
    CURRENT.name: FACT.name,
}


def incidents(now: Situation) -> list[Incident]:
    """All that is wrong as of now; the same as long as it is."""
    states = {name: day_states(name, now) for name in TABLES}
    changed = changed_final_days(now)
    found: list[Incident] = []

    def add(kind: str, table: str, days: Collection[date], detail: str) -> None:
        found.extend(Incident(kind, table, str(day), detail) for day in sorted(days))

    for name, by_day in states.items():
        upstream = states.get(_BUILT_FROM.get(name, ""), {})
        # A day that failed is failed in all that is made of it: the first table is the one to mend.
        failed = {
            day
            for day in _in(by_day, State.CHECK_FAILED)
            if upstream.get(day, State.FRESH) is not State.CHECK_FAILED
        }
        add("check failed", name, failed, MEANING[State.CHECK_FAILED])
        missing = {
            day
            for day in _in(by_day, State.MISSING)
            if upstream.get(day, State.FRESH) not in (State.MISSING, State.CHECK_FAILED)
        }
        inside = holes(by_day)
        add("hole", name, missing & inside, MEANING[State.MISSING])
        add("stale", name, missing - inside, MEANING[State.MISSING])
        foreign = _in(by_day, State.FOREIGN) - (changed.keys() if name == FACT.name else set())
        add("changed by another writer", name, foreign, MEANING[State.FOREIGN])
        taken_back = _in(by_day, State.INPUT_WITHDRAWN)
        add("input taken back", name, taken_back, MEANING[State.INPUT_WITHDRAWN])
        add(
            "new input for final days",
            name,
            now.backlog.final.get(name, {}).keys(),
            MEANING[State.INPUT_NEWER],
        )
    for day, how in changed.items():
        add("final day changed", FACT.name, [day], f"{how}; compare it with what it should be")
    recent = {day for day in now.absent if day > now.today - _NEWS * DAY}
    add("input missing", RAW.name, recent, _ABSENT)
    add("input gone", RAW.name, now.arrivals.gone, _GONE)
    found += _late_money(now)
    return found


def _in(states: dict[date, State], wanted: State) -> set[date]:
    return {day for day, state in states.items() if state is wanted}


def _late_money(now: Situation) -> list[Incident]:
    became = (
        "they are in late_orders, and in fact_daily_orders_current as corrections"
        if now.policy.corrects
        else "they were DROPPED and are in no total"
    )
    found = []
    for day, record in sorted(now.ledgers[LATE.name].latest.items()):
        count, amount = record.said.get("late", {}).get(str(day), (0, "0"))
        if count and day > now.today - _NEWS * DAY:
            detail = (
                f"{day}: {count} line(s) worth {amount} came after their day had closed; {became}"
            )
            found.append(Incident("late money", LATE.name, str(day), detail))
    return found
