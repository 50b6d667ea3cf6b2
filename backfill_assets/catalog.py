"""The tables of a deployment: those that the setting `tables` names, inputs first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from backfill_assets.lateness import Policy
from backfill_assets.settings import PREFIX, Settings, SettingsError
from backfill_assets.tables import Table


def tables_of(settings: Settings) -> Mapping[str, Table]:
    """The tables of a deployment by name, inputs first.

    Raises:
        SettingsError: as `declared`; or a table comes before one of its inputs.
    """
    return _in_order(settings.tables, Policy.of(settings))


@cache
def _in_order(place: str, policy: Policy) -> Mapping[str, Table]:
    found: dict[str, Table] = {}
    for name, table in declared(place).items():
        for of in table.inputs(policy):
            if found.get(of.source.name) is not of.source:
                raise _bad(place, f"{of.source.name}, an input of {name}, must come before it")
        found[name] = table
    return found


@cache
def declared(place: str) -> Mapping[str, Table]:
    """The tables that are declared at a place, by name.

    Args:
        place: as `module:attribute`; the attribute holds tables, or tables by name.

    Raises:
        SettingsError: there is no such module or attribute, or it holds something else than tables
            that have a name each of their own.
    """
    module, _, attribute = place.partition(":")
    if (here := str(Path.cwd())) not in sys.path:  # as Dagster's own commands look for modules
        sys.path.append(here)
    try:
        given = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _bad(place, str(error)) from error
    found: dict[str, Table] = {}
    for table in given.values() if isinstance(given, Mapping) else given:
        if not isinstance(table, Table):
            raise _bad(place, f"{table!r} is not a table")
        if table.name in found:
            raise _bad(place, f"two tables are named {table.name}")
        found[table.name] = table
    return found


def _bad(place: str, why: str) -> SettingsError:
    return SettingsError(f"bad settings: {PREFIX}TABLES={place!r}: {why}")


def config_digests(settings: Settings) -> dict[str, str]:
    """By table, a digest of all that decides its rows."""
    return {
        name: settings.digest_of(table.decided_by) for name, table in tables_of(settings).items()
    }
