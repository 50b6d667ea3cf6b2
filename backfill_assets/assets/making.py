"""The asset of a table that is made of others: it reads their snapshots, and computes its days."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

import dagster as dg
import msgspec
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.assets.asking import ServiceCaller
from backfill_assets.assets.publishing import delta_assets, yield_outputs
from backfill_assets.assets.unpartitioned import reference_observations
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.references import UnpartitionedState, read_unpartitioned_inputs
from backfill_assets.engine.caching import Cache, caching
from backfill_assets.publish.candidates import (
    Candidate,
    CommitNotes,
    ComputedDays,
    ComputePlan,
    Input,
    Snapshot,
)
from backfill_assets.quality.audit import Verdict
from backfill_assets.settings import Settings
from backfill_assets.staleness.fingerprints import input_digests
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.lookups import Lookup
from backfill_assets.tables.references import Unpartitioned
from backfill_assets.tables.table import Dependency, Lineage, Table


@dataclass(frozen=True)
class AssetInputs:
    """What the days of a run are made of, each table as of one version.

    Attributes:
        tables: the inputs, by name.
        references: the inputs without days, by name.
        service_caller: how the run may ask services.
    """

    tables: Mapping[str, Snapshot]
    references: Mapping[str, UnpartitionedState]
    service_caller: ServiceCaller

    def unpartitioned_rows(
        self, inputs: Mapping[str, Unpartitioned], spark: SparkSession
    ) -> dict[str, DataFrame]:
        """All rows of inputs without days, by parameter as these are given."""
        return {
            name: self.references[reference.name].read_rows(spark)
            for name, reference in inputs.items()
        }


#: Computes some days of a table: from its inputs, and with a function that caches the rows of a
#: frame until they are published.
ComputeDays = Callable[[AssetInputs, Cache, Window], ComputedDays]


def table_asset(
    settings: Settings,
    code: Code,
    table: Table,
    compute_days: ComputeDays,
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
        compute_days: computes some of its days.
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
        pool=next((lookup.pool or lookup.name for lookup in lookups), None),
    )
    def asset(context: dg.AssetExecutionContext, **inputs: Input) -> Iterator:
        service_caller = ServiceCaller.from_context(context, settings.warehouse)
        service_caller.create_answer_tables(lookups)
        for observation in reference_observations(table, settings.warehouse):
            context.log_event(observation)
        with ExitStack() as cache_stack:
            plan = partial(
                _plan_days, settings, table, inputs, compute_days, service_caller, cache_stack
            )
            yield from yield_outputs(context, [Candidate(table, plan)])

    return asset


def _plan_days(
    settings: Settings,
    table: Table,
    inputs: Mapping[str, Input],
    compute_days: ComputeDays,
    service_caller: ServiceCaller,
    cache_stack: ExitStack,
    window: Window,
) -> ComputePlan:
    """How some days of a table are made of its inputs as they are now.

    `cache_stack` holds the rows that the last build of this run has cached.
    """
    dependencies, graph = table.inputs(Policy.from_settings(settings)), graph_for(settings)
    tables = {
        dependency.source.name: _input_snapshot(dependency, inputs, graph)
        for dependency in dependencies
    }
    ledgers = {name: snapshot.ledger for name, snapshot in tables.items()}
    references = read_unpartitioned_inputs(table, settings.warehouse)
    reference_digests = _reference_digests(table, references, window)
    digests = input_digests(dependencies, ledgers, window, reference_digests)

    def build_days(days: Window) -> ComputedDays:
        # What was computed before is published by now, or was given up.
        cache_stack.close()
        cache = cache_stack.enter_context(caching())
        built = compute_days(AssetInputs(tables, references, service_caller), cache, days)
        return _record_references(built, references, reference_digests, days)

    @contextmanager
    def build_alone(days: Window) -> Iterator[ComputedDays]:
        with caching() as cache:
            yield compute_days(AssetInputs(tables, references, service_caller), cache, days)

    def digest_after(day: date, content: str) -> str:
        own_content = {(table.name, day - DAY): content}
        return input_digests(dependencies, ledgers, [day], reference_digests, own_content)[day]

    digest_chain = digest_after if table.name in tables else None
    compared = settings.check_independence and table.kind == "derived"
    return ComputePlan(
        digests,
        build_days,
        [*tables.values()],
        fingerprint_after=digest_chain,
        compute_alone=build_alone if compared else None,
    )


def _input_snapshot(dependency: Dependency, inputs: Mapping[str, Input], graph: Graph) -> Snapshot:
    """An input as of now, with the days of it that decide a day."""
    snapshot = inputs[dependency.source.name].read_snapshot()
    required_days = partial(
        _required_input_days, dependency, graph.policy_of(dependency.source.name).start
    )
    return snapshot.with_reach(dependency.reach.deciding_days(snapshot.ledger), required_days)


def _required_input_days(dependency: Dependency, start: date, day: date) -> list[date]:
    """The days of an input without which a day cannot be made; before its first there is none."""
    return [input_day for input_day in dependency.reach.required_days(day) if input_day >= start]


def _reference_digests(
    table: Table, references: Mapping[str, UnpartitionedState], window: Window
) -> dict[str, str]:
    """What the inputs without days hold, by name.

    Raises:
        dagster.Failure: one of them is not there.
    """
    digests = {
        name: reference.content
        for name, reference in references.items()
        if reference.content is not None
    }
    if missing := [
        f"{name} at {reference.url}"
        for name, reference in references.items()
        if name not in digests
    ]:
        raise dg.Failure(
            f"{table.name} [{window}] cannot be made: there is no Delta table {', '.join(missing)}."
            " Nothing was written. Put the table there, and launch these days again.",
            allow_retries=False,
        )
    return digests


def _record_references(
    built: ComputedDays,
    references: Mapping[str, UnpartitionedState],
    reference_digests: Mapping[str, str],
    days: Window,
) -> ComputedDays:
    """The same, and the commit records what the inputs without days held."""
    if not reference_digests:
        return built
    # Of one that only grows, later versions hold the same for a day.
    replaceable = {name: reference for name, reference in references.items() if not reference.grows}
    numbers = {
        f"input version {name}": reference.version for name, reference in replaceable.items()
    }

    def commit_notes(before: Snapshot | None, verdicts: Sequence[Verdict]) -> CommitNotes:
        notes = built.commit_notes(before, verdicts) if built.commit_notes else CommitNotes()
        return replace(
            notes, details=msgspec.structs.replace(notes.details, references={**reference_digests})
        )

    return replace(
        built,
        commit_notes=commit_notes,
        numbers={day: {**built.numbers.get(day, {}), **numbers} for day in days},
    )
