"""The days that are behind their inputs, by what the tables' commits say.

Pure functions over ledgers and dates. They look at the state, not at events: what was missed while
nothing ran is found the next time that somebody looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import Record
from backfill_assets.staleness.finality import final_days
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.tables.graph import Graph, graph_of


@dataclass(frozen=True)
class Behind:
    """Why a day of a table is behind: by input, the record that changed what it is made of."""

    inputs: Mapping[str, Record]

    @property
    def token(self) -> str:
        """The commits that the day needs, as text: versions begin anew when a table does."""
        return ",".join(
            f"{name}@{record.commit_id or record.version}"
            for name, record in sorted(self.inputs.items())
        )


@dataclass(frozen=True)
class Backlog:
    """The days that are behind their inputs, by table.

    Attributes:
        open: those that a scheduled run rebuilds.
        final: those that only a person may rebuild, as their window has closed.
    """

    open: Mapping[str, Mapping[date, Behind]] = field(default_factory=dict)
    final: Mapping[str, Mapping[date, Behind]] = field(default_factory=dict)

    def days(self, table: str) -> set[date]:
        """All days of a table that are behind."""
        return {*self.open.get(table, ()), *self.final.get(table, ())}


def backlog(ledgers: Ledgers, policy: Policy, today: date) -> Backlog:
    """Which days are behind their inputs.

    A day is behind if an input's commit changed what the day is made of, and the day was last
    published from an older version of that input, or never; unless the inputs hold again what they
    held then.
    """
    closed, graph = final_days(ledgers, policy), graph_of(ledgers, policy)
    found: dict[str, dict[date, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for source, table, days_of in follows(ledgers, policy):
        needed = {day: record for record in ledgers[source].records for day in days_of(record)}
        own = graph.policy_of(table)
        due = own.due(today) if table in graph.by_event_day else own.logged(today)
        for day, record in needed.items():
            can = day in due and _can_be_made(table, day, ledgers, graph)
            # A day that was taken back stays so until there is newer input than there was then.
            built = ledgers[table].latest.get(day) or ledgers[table].withdrawals.get(day)
            if can and _is_older(built, ledgers[source], record):
                found[table][day][source] = record
    backlog = Backlog(defaultdict(dict), defaultdict(dict))
    for table, days in found.items():
        fingerprints = input_fingerprints(graph.inputs[table], ledgers, days)
        for day, inputs in sorted(days.items()):
            published = ledgers[table].current_record(day)
            if published and published.fingerprint == fingerprints[day]:
                continue
            part = backlog.final if day in closed.get(table, ()) else backlog.open
            part[table][day] = Behind(inputs)  # type: ignore[index]
    return backlog


def follows(
    ledgers: Ledgers, policy: Policy
) -> list[tuple[str, str, Callable[[Record], Iterable[date]]]]:
    """Which table follows which: the days of it that a commit of its input makes due."""
    return [
        (of.source.name, table, of.due(ledgers[of.source.name]))
        for table, inputs in graph_of(ledgers, policy).inputs.items()
        for of in inputs
    ]


def _can_be_made(table: str, day: date, ledgers: Ledgers, graph: Graph) -> bool:
    """Whether all that a day needs is published: it may have been taken back since.

    Before the first day of an input there is nothing to wait for.
    """
    needed = ((of.source.name, of.reach.needed(day)) for of in graph.inputs[table])
    return all(
        of in ledgers[name].published or of < graph.policy_of(name).start for name, of in needed
    )


def _is_older(built: Record | None, source: Ledger, needed: Record) -> bool:
    """Whether a day was built before an input's commit, or from a table that was since replaced."""
    if built is None:
        return True
    version = built.inputs.get(source.table.name, -1)
    return version < needed.version or version > (source.version or 0)
