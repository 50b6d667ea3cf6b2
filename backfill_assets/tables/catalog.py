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

from backfill_assets.calendar.policy import Policy
from backfill_assets.env_file import in_file
from backfill_assets.settings import PREFIX, Settings, SettingsError
from backfill_assets.tables.arguments import DeclarationError, place_in, shown
from backfill_assets.tables.derived import Derived, versions_in
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.lookups import Lookup
from backfill_assets.tables.references import Unpartitioned
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Table

#: What a declaration raises while its module is imported, besides `DeclarationError`.
_MISTAKES = (
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
        SettingsError: as `declared`; or a table comes before one of its inputs.
    """
    return graph_for(settings).tables


def graph_for(settings: Settings) -> Graph:
    """The graph of a deployment's tables.

    Raises:
        SettingsError: as `tables_of`.
    """
    return _graph(settings.tables, Policy.of(settings))


@cache
def _graph(place: str, policy: Policy) -> Graph:
    found: dict[str, Table] = {}
    for name, table in declared(place).items():
        for of in table.inputs(policy):
            if of.source is not table and found.get(of.source.name) is not of.source:
                raise _bad(place, f"{of.source.name}, an input of {name}, must come before it")
            if of.source.retired and not table.is_retired(of.source.retired):
                raise _bad(place, _reads_retired(table, of.source))
        for reference in table.references:
            if reference.name in declared(place):
                raise _bad(place, f"{name} reads {reference.name} whole, which has days: use Reads")
        if isinstance(table, SourceTable) and table.source.under(policy).start < policy.start:
            source = table.source
            raise _bad(
                place,
                f"{source.name} starts on {source.start}, before {PREFIX}START ({policy.start})",
            )
        found[name] = table
        if isinstance(table, Derived):
            _refuse_same_version(place, found, table)
    _lookups(place)
    return Graph(found, policy)


def fed_tables(settings: Settings, chosen: Collection[str], today: date) -> tuple[str, ...]:
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
    fed = graph_for(settings).fed(today).tables
    return tuple(name for name in fed if name in (chosen or fed))


def lookups_of(settings: Settings) -> Mapping[str, Lookup]:
    """The lookups that the tables of a deployment ask, by name.

    Raises:
        SettingsError: as `declared`; or two are named alike.
    """
    return _lookups(settings.tables)


@cache
def _lookups(place: str) -> Mapping[str, Lookup]:
    found: dict[str, Lookup] = {}
    for table in declared(place).values():
        for asked in table.asks.values() if isinstance(table, Derived) else ():
            # They would share a table of answers, and a quota.
            if found.setdefault(asked.lookup.name, asked.lookup) is not asked.lookup:
                raise _bad(place, f"two lookups are named {asked.lookup.name}")
    return found


@cache
def declared(place: str) -> Mapping[str, Table]:
    """The tables that are declared at a place, by name.

    Args:
        place: as `module:attribute`; the attribute holds tables and sources, or these by name.

    Raises:
        SettingsError: there is no such module or attribute, or it holds something else than tables
            that have a name each of their own.
    """
    module, _, attribute = place.partition(":")
    if (here := str(Path.cwd())) not in sys.path:  # as Dagster's own commands look for modules
        sys.path.append(here)
    try:
        given = getattr(importlib.import_module(module), attribute)
    except DeclarationError as error:
        raise _bad(place, str(error)) from error
    except _MISTAKES as error:
        where = place_in([*traceback.walk_tb(error.__traceback__)][::-1])
        raise _bad(place, f"{error}{where}") from error
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise _bad(
            place, f"it is {shown(given)}: give a list, as {attribute} = [VISITS, visits_7d]"
        )
    found: dict[str, Table] = {}
    for table in _expanded(given.values() if isinstance(given, Mapping) else given):
        if not isinstance(table, Table):
            raise _bad(place, f"{shown(table)} is neither a table nor a source{_meant(table)}")
        if table.name in found:
            raise _bad(place, f"two tables are named {table.name}")
        found[table.name] = table
    return found


def _refuse_same_version(place: str, found: Mapping[str, Table], table: Derived) -> None:
    others = versions_in(found, table.first)
    if same := [of.name for of in others if of.version == table.version and of is not table]:
        raise _bad(place, f"{same[0]} and {table.name} are both version {table.version}")


def _reads_retired(table: Table, source: Table) -> str:
    until = f"is retired on {table.retired} only" if table.retired else "is not"
    return (
        f"{source.name} is retired on {source.retired}, and {table.name}, which reads it, {until}: "
        "let it read another version, or retire it by that day"
    )


def _meant(given: object) -> str:
    """What to do about something that is listed among the tables."""
    if isinstance(given, Lookup | Unpartitioned):
        return ": tables that read it are, and it is not listed"
    if inspect.isfunction(given):
        return f": put @table(MODEL) before {given.__name__}"
    if isinstance(given, list | tuple):
        return ": write *LIST to list what it has"
    return ""


def _expanded(given: Iterable[object]) -> Iterator[object]:
    """What is given, with the tables of a source in place of the source."""
    for one in given:
        yield from one.tables if isinstance(one, Source) else [one]


def _bad(place: str, why: str) -> SettingsError:
    name = f"{PREFIX}TABLES"
    return SettingsError(f"bad settings: {name}={place!r}{in_file(name)}: {why}")


def config_digests(settings: Settings) -> dict[str, str]:
    """By table, a digest of all that decides its rows.

    Of a table that is made of sources with settings of their own, these count.
    """
    graph = graph_for(settings)
    found = {}
    for name, table in graph.tables.items():
        sources = [graph.sources[log] for log in sorted(graph.logs(name))]
        of = [settings.digest_of(*_deciding(settings, table, source)) for source in sources]
        found[name] = _one(of or [settings.digest_of(table.decided_by)])
    return found


def _deciding(
    settings: Settings, table: Table, source: Source
) -> tuple[Sequence[str], Mapping[str, Any]]:
    """What decides the rows that a table has of a source: names, and the values of the source."""
    if not source.arrives_after or "window_days" not in table.decided_by:
        return table.decided_by, source.overrides
    policy = source.policy(settings)
    values = {"window_days": policy.window_days, "arrives_after": policy.arrives_after}
    return [*table.decided_by, "arrives_after"], {**source.overrides, **values}


def _one(digests: Collection[str]) -> str:
    """The digest that all are, or one of all."""
    if len(same := {*digests}) == 1:
        return same.pop()
    return hashlib.sha256(",".join(digests).encode()).hexdigest()[:16]
