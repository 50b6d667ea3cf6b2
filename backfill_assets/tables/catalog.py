"""The tables of a deployment: those that the setting `tables` names, inputs first."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from pandera.errors import SchemaInitError
from pyspark.errors import PySparkException

from backfill_assets.calendar.late_data import Policy
from backfill_assets.env_file import origin_note
from backfill_assets.settings import PREFIX, Settings, SettingsError
from backfill_assets.tables.arguments import DeclarationError, declaration_location, describe_value
from backfill_assets.tables.derived import Derived, versions_in
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Table
from backfill_assets.tables.unpartitioned import Lookup, Unpartitioned

#: What a declaration raises while its module is imported, besides `DeclarationError`.
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


def tables_of(settings: Settings) -> Mapping[str, Table]:
    """The tables of a deployment by name, inputs first.

    Raises:
        SettingsError: as `load_tables`; or a table comes before one of its inputs.
    """
    return graph_for(settings).tables


def graph_for(settings: Settings) -> Graph:
    """The graph of a deployment's tables.

    Raises:
        SettingsError: as `tables_of`.
    """
    return _build_graph(settings.tables, Policy.from_settings(settings))


@cache
def _build_graph(place: str, policy: Policy) -> Graph:
    tables: dict[str, Table] = {}
    for name, table in load_tables(place).items():
        for dependency in table.inputs(policy):
            if (
                dependency.source is not table
                and tables.get(dependency.source.name) is not dependency.source
            ):
                raise _settings_error(
                    place, f"{dependency.source.name}, an input of {name}, must come before it"
                )
            if dependency.source.retired and not table.is_retired(dependency.source.retired):
                raise _settings_error(place, _retired_input_message(table, dependency.source))
        for reference in table.unpartitioned_inputs:
            if reference.name in load_tables(place):
                raise _settings_error(
                    place, f"{name} reads {reference.name} whole, which has days: use Reads"
                )
        if isinstance(table, SourceTable) and table.source.under(policy).start < policy.start:
            source = table.source
            raise _settings_error(
                place,
                f"{source.name} starts on {source.start}, before {PREFIX}START ({policy.start})",
            )
        tables[name] = table
        if isinstance(table, Derived):
            _check_versions(place, tables, table)
    _load_lookups(place)
    return Graph(tables, policy)


def buildable_tables(settings: Settings, chosen: Collection[str], today: date) -> tuple[str, ...]:
    """The tables that can be built on a business day, inputs first.

    Args:
        settings: the deployment's settings.
        chosen: names of tables; all that are fed, if none is given.
        today: the business day.

    Raises:
        ValueError: there is no such table, or it is retired.
    """
    tables = tables_of(settings)
    if unknown := {*chosen} - tables.keys():
        raise ValueError(f"no such table: {', '.join(sorted(unknown))}; there are {[*tables]}")
    retired = [name for name in chosen if tables[name].is_retired(today)]
    if retired:
        raise ValueError(
            f"{' and '.join(f'{name} is retired since {tables[name].retired}' for name in retired)}"
            ": no day of it is built any more, and readers see the rows of then. Leave it out, or "
            "take `retired` out of its declaration. Nothing was done"
        )
    active = graph_for(settings).without_retired(today).tables
    return tuple(name for name in active if name in (chosen or active))


def lookups_of(settings: Settings) -> Mapping[str, Lookup]:
    """The lookups that the tables of a deployment ask, by name.

    Raises:
        SettingsError: as `load_tables`; or two are named alike.
    """
    return _load_lookups(settings.tables)


@cache
def _load_lookups(place: str) -> Mapping[str, Lookup]:
    lookups: dict[str, Lookup] = {}
    for table in load_tables(place).values():
        for answers in table.answers.values() if isinstance(table, Derived) else ():
            # They would share a table of answers, and a quota.
            if lookups.setdefault(answers.lookup.name, answers.lookup) is not answers.lookup:
                raise _settings_error(place, f"two lookups are named {answers.lookup.name}")
    return lookups


@cache
def load_tables(place: str) -> Mapping[str, Table]:
    """The tables that are declared at a place, by name.

    Args:
        place: as `module:attribute`; the attribute holds tables and sources, or these by name.

    Raises:
        SettingsError: there is no such module or attribute, or it holds something else than tables
            that have a name each of their own.
    """
    module, _, attribute = place.partition(":")
    if (
        working_folder := str(Path.cwd())
    ) not in sys.path:  # as Dagster's own commands look for modules
        sys.path.append(working_folder)
    try:
        listed = getattr(importlib.import_module(module), attribute)
    except DeclarationError as error:
        raise _settings_error(place, str(error)) from error
    except _DECLARATION_ERRORS as error:
        where = declaration_location([*traceback.walk_tb(error.__traceback__)][::-1])
        raise _settings_error(place, f"{error}{where}") from error
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        raise _settings_error(
            place,
            f"it is {describe_value(listed)}: give a list, as {attribute} = [VISITS, visits_7d]",
        )
    tables: dict[str, Table] = {}
    for table in _expand_sources(listed.values() if isinstance(listed, Mapping) else listed):
        if not isinstance(table, Table):
            raise _settings_error(
                place,
                f"{describe_value(table)} is neither a table nor a source{_listing_hint(table)}",
            )
        if table.name in tables:
            raise _settings_error(place, f"two tables are named {table.name}")
        tables[table.name] = table
    return tables


def _check_versions(place: str, tables: Mapping[str, Table], table: Derived) -> None:
    others = versions_in(tables, table.first)
    if same := [
        other.name for other in others if other.version == table.version and other is not table
    ]:
        raise _settings_error(place, f"{same[0]} and {table.name} are both version {table.version}")


def _retired_input_message(table: Table, source: Table) -> str:
    until = f"is retired on {table.retired} only" if table.retired else "is not"
    return (
        f"{source.name} is retired on {source.retired}, and {table.name}, which reads it, {until}: "
        "let it read another version, or retire it by that day"
    )


def _listing_hint(entry: object) -> str:
    """What to do about something that is listed among the tables."""
    if isinstance(entry, Lookup | Unpartitioned):
        return ": tables that read it are, and it is not listed"
    if inspect.isfunction(entry):
        return f": put @table(MODEL) before {entry.__name__}"
    if isinstance(entry, list | tuple):
        return ": write *LIST to list what it has"
    return ""


def _expand_sources(entries: Iterable[object]) -> Iterator[object]:
    """What is given, with the tables of a source in place of the source."""
    for entry in entries:
        yield from entry.tables if isinstance(entry, Source) else [entry]


def _settings_error(place: str, reason: str) -> SettingsError:
    name = f"{PREFIX}TABLES"
    return SettingsError(f"bad settings: {name}={place!r}{origin_note(name)}: {reason}")


def config_digests(settings: Settings) -> dict[str, str]:
    """By table, a digest of all that decides its rows.

    Of a table that is made of sources with settings of their own, these count.
    """
    graph = graph_for(settings)
    digests = {}
    for name, table in graph.tables.items():
        sources = [graph.sources[log] for log in sorted(graph.source_logs(name))]
        source_digests = [
            settings.digest_of(*_deciding_settings(settings, table, source)) for source in sources
        ]
        digests[name] = _combined_digest(source_digests or [settings.digest_of(table.decided_by)])
    return digests


def _deciding_settings(
    settings: Settings, table: Table, source: Source
) -> tuple[Sequence[str], Mapping[str, Any]]:
    """What decides the rows that a table has of a source: names, and the values of the source."""
    if not source.arrives_after or "window_days" not in table.decided_by:
        return table.decided_by, source.overrides
    policy = source.policy(settings)
    values = {"window_days": policy.window_days, "arrives_after": policy.arrives_after}
    return [*table.decided_by, "arrives_after"], {**source.overrides, **values}


def _combined_digest(digests: Collection[str]) -> str:
    """The digest that all are, or one of all."""
    if len(same := {*digests}) == 1:
        return same.pop()
    return hashlib.sha256(",".join(digests).encode()).hexdigest()[:16]
