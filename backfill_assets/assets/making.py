"""The asset of a table that is made of others: it reads their snapshots, and computes its days."""

from collections.abc import Callable, Iterator, Mapping

import dagster as dg

from backfill_assets.assets.publishing import delta_assets, publish
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.engine.spark import Cache, caching
from backfill_assets.publish.candidates import Built, Candidate, Input, Plan, Snapshot
from backfill_assets.settings import Settings
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.tables.codes import Code
from backfill_assets.tables.table import Lineage, Table

#: Computes some days of a table: from its inputs by name, each as of one version, and with a
#: function that caches the rows of a frame until they are published.
Make = Callable[[Mapping[str, Snapshot], Cache, Window], Built]


def made_asset(
    settings: Settings,
    code: Code,
    table: Table,
    make: Make,
    *,
    name: str = "",
    group: str,
    lineage: Lineage,
) -> dg.AssetsDefinition:
    """The asset of a table that is made of others.

    Args:
        settings: the deployment's settings.
        code: that computes the asset.
        table: the table; its inputs are read in the order in which it names them.
        make: computes some of its days.
        name: of the step; `make_` and the table's name, if not given.
        group: the asset group.
        lineage: for each column, the (table, column) pairs that it is made of.
    """
    dependencies = table.inputs(Policy.of(settings))

    @delta_assets(
        settings,
        name=name or f"make_{table.name}",
        tables=[table],
        group=group,
        lineage=lineage,
        code=code,
    )
    def asset(context: dg.AssetExecutionContext, **inputs: Input) -> Iterator:
        with caching() as cache:

            def plan(window: Window) -> Plan:
                read: dict[str, Snapshot] = {}
                for of in dependencies:
                    found = inputs[of.source.name].now()
                    read[of.source.name] = found.of(of.reach.deciding(found.ledger))
                ledgers = {name: snapshot.ledger for name, snapshot in read.items()}
                fingerprints = input_fingerprints(dependencies, ledgers, window)
                return Plan(fingerprints, lambda days: make(read, cache, days), [*read.values()])

            yield from publish(context, [Candidate(table, plan)])

    return asset
