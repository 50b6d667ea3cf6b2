"""The snapshot that days are assessed from: logs, code, settings, and what is planned.

It reads nothing. Days with the same input digest, code and settings have the same rows, so a day
with an unchanged input digest need not be computed again. What a plan would change, a target that
is not switched over yet, and the tables of a comparison are other snapshots of this type.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cached_property
from typing import Any, Self

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY
from backfill_assets.calendar.reach import Reach, RecordedReach
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.staleness.finality import FinalityCheck, final_days, finality_check
from backfill_assets.staleness.unloaded import days_without_folder
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency, Inputs


def input_digests(
    inputs: Inputs,
    ledgers: Ledgers,
    days: Iterable[date],
    references: Mapping[str, str | None] | None = None,
    content_overrides: Mapping[tuple[str, date], str] | None = None,
) -> dict[date, str]:
    """Return the input digests of days of a table.

    `content_overrides` replaces published content, by input and day.
    """
    reference_contents = [f"{name} {content}" for name, content in (references or {}).items()]
    describers = [
        _content_describer(
            dependency.reach, ledgers[dependency.source.name], content_overrides or {}
        )
        for dependency in inputs
    ]
    return {
        day: _hash_contents(
            [*itertools.chain(*(describe(day) for describe in describers)), *reference_contents]
        )
        for day in days
    }


def _content_describer(
    reach: Reach | RecordedReach, ledger: Ledger, overrides: Mapping[tuple[str, date], str]
) -> Callable[[date], list[str]]:
    """Return a function from a day to the content of the input days that decide it."""
    deciding_days = reach.deciding_days(ledger)

    def describe_content(input_day: date) -> str:
        content = overrides.get((ledger.table.name, input_day)) or ledger.content_key(input_day)
        # Where the number of input days differs by day, content without its date is ambiguous.
        return f"{input_day} {content}" if reach.varies_by_day else content

    return lambda day: [describe_content(input_day) for input_day in deciding_days(day)]


def _hash_contents(contents: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class HypotheticalLedger(Ledger):
    """A ledger in which the content of some days is unknown, as they may change."""

    changing_days: frozenset[date] = frozenset()

    @classmethod
    def from_ledger(cls, ledger: Ledger, changing_days: Iterable[date]) -> Self:
        """Copy a ledger, with some days that may change."""
        return cls(**_ledger_fields(ledger), changing_days=frozenset(changing_days))

    @cached_property
    def published_days(self) -> frozenset[date]:
        """The published days, and those that may change."""
        return super().published_days | self.changing_days

    @property
    def hypothetical_days(self) -> frozenset[date]:
        """The days that may change."""
        return self.changing_days

    def content_key(self, day: date) -> str:
        """Return the content of a day as text; a constant for a day that may change."""
        return "not known yet" if day in self.changing_days else super().content_key(day)


@dataclass(frozen=True, kw_only=True)
class SwitchedLedger(Ledger):
    """The ledger of a shallow clone as it will be in production after the switch.

    Attributes:
        built_days: the days that the clone built; other days keep the content of production.
        production: the current ledger of the cloned table.
    """

    built_days: frozenset[date]
    production: Ledger

    @classmethod
    def from_clone(cls, clone: Ledger, built_days: Iterable[date], production: Ledger) -> Self:
        """Combine the ledger of a clone with that of its table."""
        return cls(**_ledger_fields(clone), built_days=frozenset(built_days), production=production)

    def content_key(self, day: date) -> str:
        """Return the content of a day as text: of the clone if built there, else of production."""
        return (
            super().content_key(day) if day in self.built_days else self.production.content_key(day)
        )


def _ledger_fields(ledger: Ledger) -> dict[str, Any]:
    return {field.name: getattr(ledger, field.name) for field in fields(Ledger)}


@dataclass(frozen=True)
class Snapshot:
    """What the days of tables are assessed from.

    Attributes:
        graph: of the tables.
        ledgers: by table; an assessment of a table needs its own, those of its inputs, and, of a
            table that joins parts, those of their raw logs.
        today: the business day; it decides which days are due. All are if it is not given.
        code_versions: by table, of the code that would compute it now.
        config_digests: by table, of the settings that decide its rows now.
        digests: by table and day, the input digest where it does not follow from other tables: of
            what has landed, or of rows that are restored.
        changes: by table and day, what changed in the input, where it is known better than by the
            name of an input.
        planned: by table whose days may change before its downstream tables are built, its ledger
            after that, in which their content is unknown.
        failed: by table, the days that the run in question has failed to publish.
        asset_inputs: the inputs of ordinary assets, which are not in the graph.
        folder_plans: by raw log and day that a plan loads, whether its folder would be missing.
    """

    graph: Graph
    ledgers: Ledgers
    today: date = date.max
    code_versions: Mapping[str, str] = field(default_factory=dict)
    config_digests: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, Mapping[date, str]] = field(default_factory=dict)
    changes: Mapping[str, Mapping[date, str]] = field(default_factory=dict)
    planned: Mapping[str, HypotheticalLedger] = field(default_factory=dict)
    failed: Mapping[str, Collection[date]] = field(default_factory=dict)
    asset_inputs: Mapping[str, Inputs] = field(default_factory=dict)
    folder_plans: Mapping[str, Mapping[date, bool]] = field(default_factory=dict)

    @classmethod
    def from_deployment(
        cls,
        deployment: Deployment,
        ledgers: Ledgers,
        today: date = date.max,
        code: Code | None = None,
    ) -> Self:
        """Return the snapshot of a deployment's tables; without code, none counts as other code."""
        versions = {name: code.table_version(name) for name in ledgers} if code else {}
        return cls(deployment.graph, ledgers, today, versions, deployment.config_digests)

    @property
    def policy(self) -> Policy:
        """The late-data policy of the deployment."""
        return self.graph.policy

    @cached_property
    def is_final(self) -> FinalityCheck:
        """Tells of a table, a record and a day whether the record's rows of the day are final."""
        return finality_check(self.graph, self.ledgers)

    @cached_property
    def final_by_table(self) -> Mapping[str, set[date]]:
        """The final days of all tables that close.

        It needs the ledgers of all tables upstream, and `assess` those of the direct inputs only,
        which are all that a run reads. So it is no field of `DayAssessment`.
        """
        return final_days(self.graph, self.ledgers, self.is_final)

    def inputs_of(self, table: str) -> Inputs:
        """Return the inputs of a table."""
        return self.asset_inputs[table] if table in self.asset_inputs else self.graph.inputs[table]

    def required_days(self, dependency: Dependency, day: date) -> Sequence[date]:
        """Return the days of an input without which a day cannot be built; see `Graph`."""
        if dependency.source.name in self.graph.all_tables:
            return self.graph.required_days(dependency, day)
        return dependency.reach.required_days(day)

    def awaits_lines(self, table: str, day: date) -> bool:
        """Return whether lines that a day requires are still to come by the sources' arrival days.

        Not if the business day is not known.
        """
        known = self.today < date.max and table in self.graph.tables
        return known and not self.graph.is_over(table, day, self.today)

    def awaited_folders(self, table: str, day: date) -> list[tuple[str, date]]:
        """Return the log days whose folders a day of all parts waits for, with their raw log.

        A part's own days are published without: they are empty until the folder comes.
        """
        logs = self.graph.joined_logs(table)
        arrivals = sorted(self.graph.arrivals(table, day)) if logs else ()
        return [(log, d) for log, d in arrivals if log in logs and self._lacks_folder(log, d)]

    def _lacks_folder(self, log: str, day: date) -> bool:
        if day in (plans := self.folder_plans.get(log, {})):
            return plans[day]
        if log not in self._days_without_folder:
            raw = self.ledgers.get(log)
            self._days_without_folder[log] = days_without_folder(raw) if raw else set()
        return day in self._days_without_folder[log]

    @cached_property
    def _days_without_folder(self) -> dict[str, set[date]]:
        return {}

    def with_planned(self, table: str, days: Collection[date]) -> Self:
        """Return the snapshot in which some days of a table may change, in addition."""
        if not days:
            return self
        ledger = HypotheticalLedger.from_ledger(self.ledgers[table], days)
        return replace(self, planned={**self.planned, table: ledger})

    def input_digests(self, table: str, days: Iterable[date]) -> dict[date, str]:
        """Return the input digests of days of a table, by what its inputs hold now."""
        if table in self.digests:
            return {day: self.digests[table][day] for day in days}
        references = self.ledgers[table].references
        return input_digests(self.inputs_of(table), self.ledgers, days, references)

    def digest_following(self, table: str, day: date, previous_content: str) -> str:
        """Return the input digest of a day, given the content of the table's day before."""
        content = {(table, day - DAY): previous_content}
        references = self.ledgers[table].references
        digests = input_digests(self.inputs_of(table), self.ledgers, [day], references, content)
        return digests[day]

    def days_depending_on(
        self, table: str, days: Collection[date], source: str, changing_days: Collection[date]
    ) -> set[date]:
        """Return the days of a table whose input digest changes if some days of an input change."""
        if not days or not changing_days:
            return set()
        ledger = HypotheticalLedger.from_ledger(self.ledgers[source], changing_days)
        return self.changed_days(table, self.input_digests(table, days), ledger)

    def changed_days(self, table: str, digests: Mapping[date, str], source: Ledger) -> set[date]:
        """Return the days of a table that have other input digests with another ledger of an input.

        `digests` are those of now.
        """
        changed = replace(self, ledgers={**self.ledgers, source.table.name: source})
        hypothetical = changed.input_digests(table, digests)
        return {day for day, digest in digests.items() if hypothetical[day] != digest}

    def other_settings_days(self, table: str) -> frozenset[date]:
        """Return the published days of a table that were built under other settings than now.

        Without those that are planned.
        """
        digest = self.config_digests.get(table)
        if digest is None:
            return frozenset()
        planned = self.planned[table].changing_days if table in self.planned else ()
        return self.ledgers[table].under_other_settings(digest).difference(planned)
