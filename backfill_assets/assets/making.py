"""The asset of a table that is made of others: it reads their snapshots, and computes its days."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

import dagster as dg
import msgspec
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.assets.asking import Asking
from backfill_assets.assets.publishing import delta_assets, publish
from backfill_assets.assets.unpartitioned import observations
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.references import Reference, references_of
from backfill_assets.engine.caching import Cache, caching
from backfill_assets.publish.candidates import (
    Built,
    Candidate,
    Input,
    Plan,
    Remarks,
    Snapshot,
)
from backfill_assets.quality.audit import Verdict
from backfill_assets.settings import Settings
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.lookups import Lookup
from backfill_assets.tables.references import Unpartitioned
from backfill_assets.tables.table import Dependency, Lineage, Table


@dataclass(frozen=True)
class Read:
    """What the days of a run are made of, each table as of one version.

    Attributes:
        tables: the inputs, by name.
        references: the inputs without days, by name.
        asking: how the run may ask services.
    """

    tables: Mapping[str, Snapshot]
    references: Mapping[str, Reference]
    asking: Asking

    def whole(
        self, inputs: Mapping[str, Unpartitioned], spark: SparkSession
    ) -> dict[str, DataFrame]:
        """All rows of inputs without days, by parameter as these are given."""
        return {name: self.references[of.name].rows(spark) for name, of in inputs.items()}


#: Computes some days of a table: from its inputs, and with a function that caches the rows of a
#: frame until they are published.
Make = Callable[[Read, Cache, Window], Built]


def made_asset(
    settings: Settings,
    code: Code,
    table: Table,
    make: Make,
    *,
    name: str = "",
    group: str,
    lineage: Lineage,
    lookups: Sequence[Lookup] = (),
) -> dg.AssetsDefinition:
    """The asset of a table that is made of others.

    Args:
        settings: the deployment's settings.
        code: that computes the asset.
        table: the table; its inputs are read in this order.
        make: computes some of its days.
        name: of the step; `make_` and the table's name, if not given.
        group: the asset group.
        lineage: for each column, the (table, column) pairs that it is made of.
        lookups: the services that it asks.
    """

    @delta_assets(
        settings,
        name=name or f"make_{table.name}",
        tables=[table],
        group=group,
        lineage=lineage,
        code=code,
        pool=next((of.pool or of.name for of in lookups), None),
    )
    def asset(context: dg.AssetExecutionContext, **inputs: Input) -> Iterator:
        asking = Asking.of(context, settings.warehouse)
        asking.prepare(lookups)
        for observation in observations(table, settings.warehouse):
            context.log_event(observation)
        with ExitStack() as kept:
            plan = partial(_planned, settings, table, inputs, make, asking, kept)
            yield from publish(context, [Candidate(table, plan)])

    return asset


def _planned(
    settings: Settings,
    table: Table,
    inputs: Mapping[str, Input],
    make: Make,
    asking: Asking,
    kept: ExitStack,
    window: Window,
) -> Plan:
    """How some days of a table are made of its inputs as they are now.

    `kept` holds the rows that the last build of this run has cached.
    """
    dependencies, graph = table.inputs(Policy.of(settings)), graph_for(settings)
    tables = {of.source.name: _snapshot(of, inputs, graph) for of in dependencies}
    ledgers = {name: of.ledger for name, of in tables.items()}
    references = references_of(table, settings.warehouse)
    held = _held(table, references, window)
    fingerprints = input_fingerprints(dependencies, ledgers, window, held)

    def build(days: Window) -> Built:
        # What was computed before is published by now, or was given up.
        kept.close()
        cache = kept.enter_context(caching())
        built = make(Read(tables, references, asking), cache, days)
        return _with_references(built, references, held, days)

    @contextmanager
    def alone(days: Window) -> Iterator[Built]:
        with caching() as cache:
            yield make(Read(tables, references, asking), cache, days)

    def after(day: date, content: str) -> str:
        own = {(table.name, day - DAY): content}
        return input_fingerprints(dependencies, ledgers, [day], held, own)[day]

    chain = after if table.name in tables else None
    compared = settings.check_independence and table.kind == "derived"
    return Plan(
        fingerprints,
        build,
        [*tables.values()],
        after=chain,
        alone=alone if compared else None,
    )


def _snapshot(of: Dependency, inputs: Mapping[str, Input], graph: Graph) -> Snapshot:
    """An input as of now, with the days of it that decide a day."""
    found = inputs[of.source.name].now()
    needs = partial(_needed, of, graph.policy_of(of.source.name).start)
    return found.of(of.reach.deciding(found.ledger), needs)


def _needed(of: Dependency, start: date, day: date) -> list[date]:
    """The days of an input without which a day cannot be made; before its first there is none."""
    return [needed for needed in of.reach.needed(day) if needed >= start]


def _held(table: Table, references: Mapping[str, Reference], window: Window) -> dict[str, str]:
    """What the inputs without days hold, by name.

    Raises:
        dagster.Failure: one of them is not there.
    """
    found = {name: of.content for name, of in references.items() if of.content is not None}
    if missing := [f"{name} at {of.url}" for name, of in references.items() if name not in found]:
        raise dg.Failure(
            f"{table.name} [{window}] cannot be made: there is no Delta table {', '.join(missing)}."
            " Nothing was written. Put the table there, and launch these days again.",
            allow_retries=False,
        )
    return found


def _with_references(
    built: Built, references: Mapping[str, Reference], held: Mapping[str, str], days: Window
) -> Built:
    """The same, and the commit records what the inputs without days held."""
    if not held:
        return built
    # Of one that only grows, later versions hold the same for a day.
    whole = {name: of for name, of in references.items() if not of.grows}
    numbers = {f"input version {name}": of.version for name, of in whole.items()}

    def remarks(before: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
        own = built.remarks(before, verdicts) if built.remarks else Remarks()
        return replace(own, details=msgspec.structs.replace(own.details, references={**held}))

    return replace(
        built,
        remarks=remarks,
        numbers={day: {**built.numbers.get(day, {}), **numbers} for day in days},
    )
