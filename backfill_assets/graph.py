"""What each table is made of: the one declaration of the tables' dependencies.

What a day's fingerprint holds, which days are behind their inputs, what a plan builds and reads,
what an undo reaches, which incident is the first of several, and the assets' partition mappings all
follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from backfill_assets.lateness import Policy
from backfill_assets.reach import SAME_DAY, Known, Reach, last_days
from backfill_assets.records import Ledger, Record
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
    Table,
)


@dataclass(frozen=True)
class Dependency:
    """An input of a table.

    A day of the table needs its own day of the input to be published; whatever else it reaches is
    read if it is there.

    Attributes:
        source: the input.
        reach: which days of it decide a day.
        recorded: the name under which a commit of the input records the days of the table that it
            changes; where it does not, all that it may change are meant.
        launched: the reach that Dagster is told, where it is another: what a launch of the input's
            days takes along, and no more.
    """

    source: Table
    reach: Reach | Known
    recorded: str = ""
    launched: Reach | None = None

    def due(self, source: Ledger) -> Callable[[Record], Iterable[date]]:
        """The days of the table that a commit of the input makes due."""

        def days(record: Record) -> Iterable[date]:
            if self.recorded and self.recorded in record.said:
                return record.days_said(self.recorded)
            return self.reach.changed(source.changed[record.version], source)

        return days


#: The inputs of tables, by the table's name.
Graph = Mapping[str, tuple[Dependency, ...]]


def dependencies(policy: Policy) -> Graph:
    """The inputs of each table that is made of others; of those from the landing, none."""
    window = policy.reach
    return {
        STAGED.name: (Dependency(RAW, window, "event_days" if policy.only_touched else ""),),
        LATE.name: (Dependency(RAW, SAME_DAY),),
        FACT.name: (Dependency(STAGED, SAME_DAY),),
        # As a mapping, its reach would make a launch of one raw day in the UI build every earlier
        # day. The raw log's commits say which of them need it.
        CURRENT.name: (Dependency(RAW, Known(), "current_days", launched=window),),
        CORRECTIONS.name: (Dependency(FACT, SAME_DAY), Dependency(CURRENT, SAME_DAY)),
        # With an offset in the mapping, the UI would ask for more days than the user did.
        LATENESS.name: (
            Dependency(REJECTED, SAME_DAY),
            Dependency(RAW, last_days(policy.window_days + 1), "log_days", launched=SAME_DAY),
        ),
    }


#: By table, the module that makes it; see `codes`.
MADE_IN = {
    RAW.name: "assets.raw",
    REJECTED.name: "assets.raw",
    STAGED.name: "assets.staging",
    LATE.name: "assets.staging",
    FACT.name: "assets.fact",
    CURRENT.name: "assets.corrections",
    CORRECTIONS.name: "assets.corrections",
    LATENESS.name: "assets.lateness",
}


def upstream(name: str, graph: Graph) -> set[str]:
    """All tables that a table is made of, directly or by way of others."""
    found = {of.source.name for of in graph.get(name, ())}
    return found.union(*(upstream(source, graph) for source in found))


def _follows_window(name: str, graph: Graph) -> bool:
    inputs = [of for source in {name, *upstream(name, graph)} for of in graph.get(source, ())]
    return any(of.reach.stays_open for of in inputs)


_SHAPE = dependencies(Policy(date.min, None, 0, 1, corrects=True, only_touched=True))
#: Tables that are made with the load of their own day; and tables whose days stay open for late
#: data, or are made of such. Each in the order of the graph, inputs first.
BY_LOG_DAY = tuple(name for name in TABLES if name in _SHAPE and not _follows_window(name, _SHAPE))
BY_EVENT_DAY = tuple(name for name in TABLES if _follows_window(name, _SHAPE))
