"""The tables of a deployment and the graph of their inputs.

Input digests, stale days, plans, undo, incidents and the partition mappings of the assets all
follow from this graph.
"""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Self

from pandera.errors import SchemaInitError
from pyspark.errors import PySparkException

from backfill_assets.calendar.late_data import Policy, combine_policies
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.calendar.reach import RecordedReach
from backfill_assets.settings import PREFIX, Settings, SettingsError, origin_note
from backfill_assets.tables.arguments import DeclarationError, describe_value, locate_message
from backfill_assets.tables.derived import Derived, expand_parts, versions_in
from backfill_assets.tables.repeatable import RepeatableCode
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Dependency, ExternalTable, Inputs, Table, asset_name
from backfill_assets.tables.table_options import suggest_name
from backfill_assets.tables.unpartitioned import Lookup, Unpartitioned


@dataclass(frozen=True)
class Graph:
    """The tables of a deployment and their inputs.

    Attributes:
        tables: by name, inputs first.
        policy: the deployment's late-data policy; a source may override it.
    """

    tables: Mapping[str, Table]
    policy: Policy

    @classmethod
    def from_tables(cls, tables: Iterable[Table], policy: Policy) -> Self:
        """The graph of tables that are given inputs first."""
        return cls({table.name: table for table in tables}, policy)

    def without_retired(self, today: date) -> "Graph":
        """The graph without the tables that are retired on a business day."""
        return Graph(
            {name: table for name, table in self.tables.items() if not table.is_retired(today)},
            self.policy,
        )

    @cached_property
    def inputs(self) -> Mapping[str, Inputs]:
        """The inputs by table; empty for tables that are loaded from the landing."""
        return {name: table.inputs(self.policy) for name, table in self.tables.items()}

    @cached_property
    def assets(self) -> Mapping[str, list[Table]]:
        """The tables of each asset, by its name: one, or one for each part of its dimension."""
        tables: dict[str, list[Table]] = {}
        for table in self.tables.values():
            tables.setdefault(table.asset_name, []).append(table)
        return tables

    @cached_property
    def external(self) -> Mapping[str, ExternalTable]:
        """The tables of others that tables of the graph read, by name."""
        sources = (dependency.source for inputs in self.inputs.values() for dependency in inputs)
        return {source.name: source for source in sources if isinstance(source, ExternalTable)}

    @cached_property
    def all_tables(self) -> Mapping[str, Table]:
        """The tables of others, then those of the graph, by name, inputs first."""
        return {**self.external, **self.tables}

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        """The sources, by the name of the raw log."""
        return {
            table.source.raw.name: table.source
            for table in self.tables.values()
            if isinstance(table, SourceTable)
        }

    def follows_part(self, names: Sequence[str], others: Sequence[str]) -> bool:
        """Whether tables are those of others in the next part: one run can have both."""
        table, other = self.tables[names[0]], self.tables[others[-1]]
        if table.dimension is None or table.dimension != other.dimension:
            return False
        values = table.dimension.values
        assets, other_assets = ([*dict.fromkeys(map(asset_name, n))] for n in (names, others))
        return assets == other_assets and values.index(table.part) == values.index(other.part) + 1

    def join_parts(self, names: Iterable[str]) -> list[str]:
        """The names of tables, in place of all parts of one its own name."""
        names = [*names]
        joined = dict[str, None]()
        for name in names:
            asset = asset_name(name)
            is_whole = {table.name for table in self.assets[asset]} <= {*names}
            joined[asset if is_whole else name] = None
        return [*joined]

    @property
    def parts_of_sources(self) -> list[list[Source]]:
        """Each source as a list of its parts; of one without a second dimension, itself."""
        parts: dict[str, list[Source]] = {}
        for source in self.sources.values():
            parts.setdefault(source.name, []).append(source)
        return [*parts.values()]

    @cached_property
    def sources_by_name(self) -> Mapping[str, Source]:
        """The sources, by their own name."""
        return {source.full_name: source for source in self.sources.values()}

    def find_source(self, name: str) -> Source:
        """The source of a name.

        Raises:
            ValueError: there is none.
        """
        if name not in self.sources_by_name:
            suggestion = suggest_name(name, self.sources_by_name)
            raise ValueError(f"there is no source {name}{suggestion}. Nothing was done")
        return self.sources_by_name[name]

    def source_logs(self, name: str) -> frozenset[str]:
        """The raw logs that a table is built from, directly or indirectly."""
        return self._logs_by_table[name]

    @cached_property
    def _logs_by_table(self) -> Mapping[str, frozenset[str]]:
        """The raw logs of each table; `tables` has inputs first, so their logs are known."""
        logs: dict[str, frozenset[str]] = dict.fromkeys(self.external, frozenset())
        for name, table in self.tables.items():
            if isinstance(table, SourceTable):
                logs[name] = frozenset([table.source.raw.name])
            else:
                logs[name] = frozenset().union(
                    *(logs[parent] for parent in self.direct_inputs(name))
                )
        return logs

    def joined_logs(self, name: str) -> frozenset[str]:
        """The raw logs of the parts of which a table reads several; none of other tables."""
        table = self.tables.get(name)
        if table is None or table.part:
            return frozenset()
        parts = [d.source.name for d in self.inputs[name] if d.source.part]
        return frozenset().union(*map(self.source_logs, parts))

    def policy_of(self, name: str) -> Policy:
        """The policy of a table, with its grain: that of its source, or of all combined."""
        return self._policy_by_table[name]

    @cached_property
    def _policy_by_table(self) -> Mapping[str, Policy]:
        """The policy by table, with its grain; by event day, the lag includes the arrival delay."""
        source_policies = {log: source.under(self.policy) for log, source in self.sources.items()}
        policies = {}
        for name, logs in self._logs_by_table.items():
            combined = combine_policies(
                [source_policies[log] for log in sorted(logs)] or [self.policy]
            )
            start, end = self._bounds_of(name, logs)
            policy = replace(combined, start=start, end=end)
            # A log day can be loaded when it is over; an event day is empty until its lines arrive.
            if name in self.by_event_day and policy.arrives_after:
                end = _end_of_arrivals(policy, [source_policies[log] for log in logs])
                lag_days = policy.lag_days + policy.arrives_after
                policy = replace(policy, lag_days=lag_days, end=end)
            policies[name] = replace(policy, grain=self.all_tables[name].grain)
        return policies

    def _bounds_of(self, name: str, logs: Iterable[str]) -> tuple[date, date | None]:
        """The first day and the end of a table of some raw logs.

        All sources are there, each with some part, and so are the tables of others.
        """
        policies: dict[str, list[Policy]] = {"": [self.policy]}
        for source in map(self.sources.__getitem__, logs):
            policies.setdefault(source.name, []).append(source.under(self.policy))
        others = {name, *self.upstream_tables(name)} & self.external.keys()
        starts = [min(policy.start for policy in parts) for parts in policies.values()]
        starts += [start for other in others if (start := self.external[other].start)]
        end = min(max(policy.end or date.max for policy in parts) for parts in policies.values())
        return max(starts), None if end == date.max else end

    def expects_day(self, name: str, day: date) -> bool:
        """Whether a day, week or month is neither before a table's start, nor after its end.

        Its end is that of its part, or of the parts that it reads. Nor, of a table of others, is a
        day expected on which it has no rows.
        """
        table, policy = self.all_tables[name], self.policy_of(name)
        if isinstance(table, ExternalTable) and not table.expects_rows(day):
            return False
        end = self._ends.get(name)
        return policy.start <= day and (end is None or table.grain.days_of(day).end <= end)

    @cached_property
    def _ends(self) -> Mapping[str, date]:
        """The ends of tables of which parts are retired; not if others of their parts go on."""
        gone = {log for log, source in self.sources.items() if source.raw.end}
        return {
            name: end
            for name, logs in self._logs_by_table.items()
            if (end := self.policy_of(name).end) and not logs.isdisjoint(gone)
        }

    def arrivals(self, table: str, day: date) -> frozenset[tuple[str, date]]:
        """The log days in which the lines that a day requires usually arrive, with their raw log.

        Those of its required input days, so that each source counts with its own arrival days.
        """
        if (table, day) not in self._arrivals:
            log_days: set[tuple[str, date]] = set()
            if table in self.landed_tables:
                log_days = {(log, day) for log in self.source_logs(table)}
            for dependency in self.inputs.get(table, ()):
                name, reach = dependency.source.name, dependency.reach
                for needed in self.required_days(dependency, day) if name != table else ():
                    if name in self.sources and reach.stays_open:
                        log_days.add((name, self._policy_by_table[name].arrival_of(needed)))
                    else:
                        log_days |= self.arrivals(name, needed)
            self._arrivals[table, day] = frozenset(log_days)
        return self._arrivals[table, day]

    @cached_property
    def _arrivals(self) -> dict[tuple[str, date], frozenset[tuple[str, date]]]:
        return {}

    def last_arrival(self, table: str, day: date) -> date:
        """The last log day that a day waits for: its own last one, or the last of `arrivals`."""
        last_day = self.tables[table].grain.days_of(day).end - DAY
        return max([last_day, *(log_day for _log, log_day in self.arrivals(table, day))])

    def is_over(self, table: str, day: date, today: date) -> bool:
        """Whether the last log day that a day waits for is over, for parts `HOURS` by the hour."""
        return self.last_arrival(table, day) < self.policy_of(table).business_day(today)

    def due_date(self, table: str, day: date) -> date:
        """The business day whose nightly run first publishes a day, with all that it requires."""
        return self.last_arrival(table, day) + self.policy.lag_days * DAY

    def expected_days(self, table: str, today: date, last: date = date.max) -> Window:
        """The days that should have been published by the end of a day's nightly run.

        Up to `last`, if that is earlier. A day is not due before those ahead of it.
        """
        policy = self.policy_of(table)
        grain, today = policy.grain, policy.business_day(today)
        day = grain.first_day(today)
        while day >= policy.start and self.due_date(table, day) > today:
            day = grain.first_day(day - DAY)
        return policy.partitions_until(min(grain.days_of(day).end - DAY, last))

    def loaded_with(self, log: str) -> tuple[str, ...]:
        """The tables that one run loads with a raw log: from the landing, and by log day.

        A weekly table is not among them: a run of Dagster has partitions of one definition.
        """
        return tuple(
            name
            for name in (*self.landed_tables, *self.by_log_day)
            if self.source_logs(name) == frozenset([log])
            and self.tables[name].grain is Grain.DAILY
            and self.tables[name].part == self.tables[log].part
        )

    def direct_inputs(self, name: str) -> list[str]:
        """The other tables that a table reads directly."""
        return [
            dependency.source.name
            for dependency in self.inputs.get(name, ())
            if dependency.source.name != name
        ]

    def upstream_tables(self, name: str) -> set[str]:
        """All other tables that a table is built from, directly or indirectly."""
        parents = set(self.direct_inputs(name))
        return parents.union(*(self.upstream_tables(source) for source in parents))

    def current_tables(self, log: str) -> list[str]:
        """The tables built from all that is known of a source, however late it came."""
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
        """The tables that are loaded from the landing."""
        return tuple(name for name, inputs in self.inputs.items() if not inputs)

    def required_days(self, dependency: Dependency, day: date) -> list[date]:
        """The days of an input without which a day cannot be built; see `expects_day`."""
        name = dependency.source.name
        return [d for d in dependency.reach.required_days(day) if self.expects_day(name, d)]

    def tables_of_all_known(self, log: str) -> list[str]:
        """The tables that have all lines of a raw log, however late they came."""
        return [
            name
            for name in self.by_event_day
            if name not in self.closing_tables and log in self.source_logs(name)
        ]

    @cached_property
    def by_log_day(self) -> tuple[str, ...]:
        """The tables that are built with the load of their own day."""
        return tuple(
            name for name in self.inputs if name not in (*self.landed_tables, *self.by_event_day)
        )

    @cached_property
    def by_event_day(self) -> tuple[str, ...]:
        """The tables whose days stay open for late data, directly or by their inputs."""
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
        """The tables whose days become final when all input days that decide them are.

        A day of a table with a `RecordedReach` is never final, nor is one that is built from such a
        day. Of its own, a table reads earlier days, which close no later than its other inputs.
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


def _end_of_arrivals(policy: Policy, source_policies: Sequence[Policy]) -> date | None:
    """The end of the event days whose lines arrive before the calendar's end; None without that.

    Lines in folders after the end of the calendar are never loaded.
    """
    if policy.end is None:
        return None
    end = calendar_end = policy.end
    while end > policy.start and any(
        source.arrival_of(end - DAY) >= calendar_end for source in source_policies
    ):
        end -= DAY
    return end


#: Errors of a declaration while its module is imported, besides `DeclarationError`.
_DECLARATION_ERRORS = (
    *(ImportError, AttributeError, NameError, TypeError, ValueError, LookupError),
    *(
        ArithmeticError,
        NotImplementedError,
        SyntaxError,
        SchemaInitError,
        re.error,
        PySparkException,
    ),
)
#: What to do about a pattern that Python does not compile.
_PATTERN_ADVICE = (
    ". Pandera compiles the pattern of a check in Python before Spark reads it, as Java does: give "
    'one that both take, or, for what only Java has, one of "rules" in the metadata, as '
    r"""{'letters': ("name RLIKE '^\\p{L}+$'", 'A name has letters alone.')}"""
)


def tables_of(settings: Settings) -> Mapping[str, Table]:
    """The tables of a deployment by name, inputs first.

    Raises:
        SettingsError: as `load_tables`; or a table comes before one of its inputs.
    """
    return load_graph(settings).tables


def load_graph(settings: Settings, declared: Iterable[object] | None = None) -> Graph:
    """The graph of the declared tables and sources, or of those that `settings.tables` names.

    Raises:
        SettingsError: they cannot be imported, or do not fit together.
    """
    tables_path, policy = settings.tables, Policy.from_settings(settings)
    if declared is None:
        all_tables = load_tables(tables_path)
    else:
        tables_path = DECLARED
        all_tables = collect_tables(declared, tables_path)
    tables: dict[str, Table] = {}
    external: dict[str, Table] = {}
    for name, table in all_tables.items():
        for dependency in table.inputs(policy):
            read = dependency.source
            if isinstance(read, ExternalTable):
                external.setdefault(read.name, all_tables.get(read.name, read))
            if problem := _wrong_input(table, read, {**external, **tables}):
                raise _settings_error(tables_path, problem)
        for reference in table.unpartitioned_inputs:
            if reference.name in all_tables:
                raise _settings_error(
                    tables_path, f"{name} reads {reference.name} whole, which has days: use Reads"
                )
        _check_starts(tables_path, policy, table)
        tables[name] = table
        if isinstance(table, Derived):
            _check_versions(tables_path, tables, table)
    collect_lookups(tables, tables_path)
    _check_dimensions(tables_path, tables.values())
    return Graph(expand_parts(tables, settings.timezone), policy)


def _check_starts(place: str, policy: Policy, table: Table) -> None:
    """Refuse a source, or a part of one, that begins before the calendar."""
    sources = [table.source] if isinstance(table, SourceTable) else []
    for source in [*sources, *(part for s in sources for part in s.parts.values())]:
        if source.under(policy).start < policy.start:
            name, start = source.full_name, f"{PREFIX}START ({policy.start})"
            raise _settings_error(place, f"{name} starts on {source.start}, before {start}")


def _check_dimensions(place: str, tables: Iterable[Table]) -> None:
    """Refuse two dimensions of one name: their tables are in one job, which has one definition."""
    values: dict[str, Sequence[str]] = {}
    for dimension in filter(None, (table.dimension for table in tables)):
        if values.setdefault(dimension.name, dimension.values) != dimension.values:
            raise _settings_error(
                place,
                f"two dimensions are named {dimension.name} and have other values: give both the "
                "same values, or one another name",
            )


def buildable_tables(graph: Graph, chosen: Collection[str], today: date) -> tuple[str, ...]:
    """The chosen tables, or all that are not retired on a business day, inputs first.

    Raises:
        ValueError: there is no such table, or it is retired.
    """
    tables = graph.tables
    if unknown := {*chosen} - tables.keys():
        raise ValueError(f"no such table: {', '.join(sorted(unknown))}; there are {[*tables]}")
    retired = [name for name in chosen if tables[name].is_retired(today)]
    if retired:
        raise ValueError(
            f"{' and '.join(f'{name} is retired since {tables[name].retired}' for name in retired)}"
            ": no day of it is built any more, and readers see the rows of then. Leave it out, or "
            "take `retired` out of its declaration. Nothing was done"
        )
    active = graph.without_retired(today).tables
    return tuple(name for name in active if name in (chosen or active))


def collect_lookups(tables: Mapping[str, Table], place: str) -> Mapping[str, Lookup]:
    """The lookups of the tables that are declared at a place, by name.

    Raises:
        SettingsError: two lookups have the same name.
    """
    lookups: dict[str, Lookup] = {}
    for table in tables.values():
        for answers in table.answers.values() if isinstance(table, Derived) else ():
            # Two of one name would share a table of answers, and a quota.
            if lookups.setdefault(answers.lookup.name, answers.lookup) is not answers.lookup:
                raise _settings_error(place, f"two lookups are named {answers.lookup.name}")
    return lookups


@cache
def load_tables(tables_path: str) -> Mapping[str, Table]:
    """The tables that are declared at a place, by name.

    Args:
        tables_path: `module:attribute` of a list, or a mapping by name, of tables and sources.

    Raises:
        SettingsError: the module or attribute does not exist, holds something else, or has two
            tables with the same name, a source in part, or a function that gives other rows each
            time.
    """
    module, _, attribute = tables_path.partition(":")
    if (
        working_folder := str(Path.cwd())
    ) not in sys.path:  # as Dagster's own commands look for modules
        sys.path.append(working_folder)
    try:
        listed = getattr(importlib.import_module(module), attribute)
    except DeclarationError as error:
        raise _settings_error(tables_path, str(error)) from error
    except _DECLARATION_ERRORS as error:
        frames = [*traceback.walk_tb(error.__traceback__)][::-1]
        advice = _PATTERN_ADVICE if isinstance(error, re.error) else ""
        text = locate_message(f"{error}{advice}", frames)
        raise _settings_error(tables_path, text) from error
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        raise _settings_error(
            tables_path,
            f"it is {describe_value(listed)}: give a list, as {attribute} = [VISITS, visits_7d]",
        )
    return collect_tables(listed.values() if isinstance(listed, Mapping) else listed, tables_path)


def collect_tables(listed: Iterable[object], tables_path: str) -> Mapping[str, Table]:
    """The tables of a list of tables and sources, by name; raises as `load_tables`."""
    tables: dict[str, Table] = {}
    code = RepeatableCode()
    for table in _expand_sources(listed):
        if not isinstance(table, Table) or isinstance(table, ExternalTable):
            raise _settings_error(
                tables_path,
                f"{describe_value(table)} is neither a table nor a source{_listing_hint(table)}",
            )
        if table.name in tables:
            raise _settings_error(tables_path, f"two tables are named {table.name}")
        if isinstance(table, Derived) and (call := code.find_unrepeatable_call(table.functions)):
            raise _settings_error(tables_path, f"{table.name}: {call}")
        tables[table.name] = table
    _check_sources(tables_path, tables)
    return tables


def _check_sources(place: str, tables: Mapping[str, Table]) -> None:
    """Refuse a source without one of the tables that are loaded from its landing."""
    sources = {t.source.name: t.source for t in tables.values() if isinstance(t, SourceTable)}
    for source in sources.values():
        loaded = [source.raw.name, source.rejected.name]
        if missing := [name for name in loaded if name not in tables]:
            raise _settings_error(
                place,
                f"the source {source.name} is listed without {', '.join(missing)}, and one run "
                f"loads {' and '.join(loaded)}: list the source itself, which stands for all of "
                "its tables, as [VISITS, visits_7d] does with the source VISITS",
            )


def _check_versions(place: str, tables: Mapping[str, Table], table: Derived) -> None:
    others = versions_in(tables, table.first)
    if same := [
        other.name for other in others if other.version == table.version and other is not table
    ]:
        raise _settings_error(place, f"{same[0]} and {table.name} are both version {table.version}")


def _wrong_input(table: Table, source: Table, earlier: Mapping[str, Table]) -> str:
    """Why a table cannot have an input, given the tables before it; empty if it can."""
    if source is not table and earlier.get(source.name) is not source:
        if isinstance(source, ExternalTable):
            return f"two tables are named {source.name}"
        return f"{source.name}, an input of {table.name}, must come before it"
    if source.retired and not table.is_retired(source.retired):
        return _retired_input_message(table, source)
    return ""


def _retired_input_message(table: Table, source: Table) -> str:
    until = f"is retired on {table.retired} only" if table.retired else "is not"
    return (
        f"{source.name} is retired on {source.retired}, and {table.name}, which reads it, {until}: "
        "let it read another version, or retire it by that day"
    )


def _listing_hint(entry: object) -> str:
    """How to replace an entry that is neither a table nor a source."""
    if isinstance(entry, Lookup | Unpartitioned | ExternalTable):
        return ": tables that read it are, and it is not listed"
    if inspect.isfunction(entry):
        return f": put @table(MODEL) before {entry.__name__}"
    if isinstance(entry, list | tuple):
        return ": write *LIST to list what it has"
    return ""


def _expand_sources(entries: Iterable[object]) -> Iterator[object]:
    """The entries, with the tables of a source in place of the source."""
    for entry in entries:
        yield from entry.tables if isinstance(entry, Source) else [entry]


#: The place of tables that are given as objects.
DECLARED = "tables="


def _settings_error(place: str, reason: str) -> SettingsError:
    if place == DECLARED:
        return SettingsError(f"bad {DECLARED}: {reason}")
    name = f"{PREFIX}TABLES"
    return SettingsError(f"bad settings: {name}={place!r}{origin_note(name)}: {reason}")
