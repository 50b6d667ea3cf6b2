"""What follows from the tables' inputs as a whole: order, ancestors, and which days close.

What a day's fingerprint holds, which days are behind their inputs, what a plan builds and reads,
what an undo reaches, which incident is the first of several, and the assets' partition mappings all
follow from the declarations of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING

from backfill_assets.calendar.grain import Grain
from backfill_assets.calendar.late_data import Policy, combine_policies
from backfill_assets.calendar.partitions import DAY
from backfill_assets.calendar.reach import RecordedReach
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Inputs, Table

if TYPE_CHECKING:
    from backfill_assets.delta.ledgers import Ledgers


@dataclass(frozen=True)
class Graph:
    """The tables of a deployment and their inputs.

    Attributes:
        tables: by name, inputs first.
        policy: the deployment's late-data policy; a source may have another.
    """

    tables: Mapping[str, Table]
    policy: Policy

    @classmethod
    def from_tables(cls, tables: Iterable[Table], policy: Policy) -> Graph:
        """The graph of tables, which are given inputs first."""
        return cls({table.name: table for table in tables}, policy)

    def without_retired(self, today: date) -> Graph:
        """Those that are fed on a business day: without the retired ones, which no other reads."""
        return Graph(
            {name: table for name, table in self.tables.items() if not table.is_retired(today)},
            self.policy,
        )

    @cached_property
    def inputs(self) -> Mapping[str, Inputs]:
        """By table, what it is made of; nothing for those that come from the landing."""
        return {name: table.inputs(self.policy) for name, table in self.tables.items()}

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        """The sources, each by the name of its raw log."""
        return {
            table.source.raw.name: table.source
            for table in self.tables.values()
            if isinstance(table, SourceTable)
        }

    def source_logs(self, name: str) -> frozenset[str]:
        """The raw logs of the sources that a table is made of, directly or by way of others."""
        return self._logs_by_table[name]

    @cached_property
    def _logs_by_table(self) -> Mapping[str, frozenset[str]]:
        logs: dict[str, frozenset[str]] = {}
        for name, table in self.tables.items():
            if isinstance(table, SourceTable):
                logs[name] = frozenset([table.source.raw.name])
            else:
                logs[name] = frozenset().union(
                    *(logs[parent] for parent in self.direct_inputs(name))
                )
        return logs

    def policy_of(self, name: str) -> Policy:
        """The late-data policy of a table: that of its source; of several, the widest.

        With the table's cadence.
        """
        return self._policy_by_table[name]

    @cached_property
    def _policy_by_table(self) -> Mapping[str, Policy]:
        source_policies = {log: source.under(self.policy) for log, source in self.sources.items()}
        policies = {}
        for name, logs in self._logs_by_table.items():
            policy = combine_policies(
                [source_policies[log] for log in sorted(logs)] or [self.policy]
            )
            # A log day is over when it is; an event day is empty until its lines have arrived.
            if name in self.by_event_day and policy.arrives_after:
                days_later = policy.arrives_after
                # What is in no folder of the calendar does not arrive.
                end = policy.end and max(policy.start, policy.end - days_later * DAY)
                policy = replace(policy, lag_days=policy.lag_days + days_later, end=end)
            policies[name] = replace(policy, grain=self.tables[name].grain)
        return policies

    def loaded_with(self, log: str) -> tuple[str, ...]:
        """The tables that one run loads with a raw log: what lands, and what is made by log day.

        Dagster's runs have partitions of one definition, so none of a table by week.
        """
        return tuple(
            name
            for name in (*self.landed_tables, *self.by_log_day)
            if self.source_logs(name) == frozenset([log]) and self.tables[name].grain is Grain.DAILY
        )

    def direct_inputs(self, name: str) -> list[str]:
        """The other tables that a table is made of directly."""
        return [
            dependency.source.name
            for dependency in self.inputs[name]
            if dependency.source.name != name
        ]

    def upstream_tables(self, name: str) -> set[str]:
        """All other tables that a table is made of, directly or by way of others."""
        parents = set(self.direct_inputs(name))
        return parents.union(*(self.upstream_tables(source) for source in parents))

    def current_tables(self, log: str) -> list[str]:
        """The tables that are made of all that is known of a source, however late it came."""
        return [
            name
            for name, inputs in self.inputs.items()
            if any(
                isinstance(dependency.reach, RecordedReach) and dependency.source.name == log
                for dependency in inputs
            )
        ]

    @cached_property
    def landed_tables(self) -> tuple[str, ...]:
        """The tables that come from the landing."""
        return tuple(name for name, inputs in self.inputs.items() if not inputs)

    @cached_property
    def by_log_day(self) -> tuple[str, ...]:
        """The tables that are made with the load of their own day."""
        return tuple(
            name for name in self.inputs if name not in (*self.landed_tables, *self.by_event_day)
        )

    @cached_property
    def by_event_day(self) -> tuple[str, ...]:
        """The tables whose days stay open for late data, or are made of such."""
        names: list[str] = []
        for name, inputs in self.inputs.items():
            if any(
                dependency.reach.stays_open or dependency.source.name in names
                for dependency in inputs
            ):
                names.append(name)
        return tuple(names)

    @cached_property
    def closing_tables(self) -> tuple[str, ...]:
        """The tables of which a day is final once all input days that decide it are.

        A day that all that is known decides never is; nor is one that is made of such. Its own
        days before close no later than a table's other inputs do.
        """
        names: list[str] = []
        for name in self.by_event_day:
            if all(
                not isinstance(dependency.reach, RecordedReach)
                and (dependency.source.name in (*names, name) or dependency.reach.stays_open)
                for dependency in self.inputs[name]
            ):
                names.append(name)
        return tuple(names)


def graph_of(ledgers: Ledgers, policy: Policy) -> Graph:
    """The graph of the tables whose ledgers these are."""
    return Graph.from_tables((ledger.table for ledger in ledgers.values()), policy)
