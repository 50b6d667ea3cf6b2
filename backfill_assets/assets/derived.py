"""The assets of tables that are declared by a function."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.publishing import delta_assets, plan_of, publish
from backfill_assets.audit import Book, Verdict
from backfill_assets.codes import Code
from backfill_assets.derived import FOR_DAY, Derived
from backfill_assets.io_manager import Built, Candidate, Input, Plan, Remarks, Snapshot
from backfill_assets.lateness import Policy
from backfill_assets.partitions import Window
from backfill_assets.reach import Reach
from backfill_assets.settings import Settings
from backfill_assets.spark import keeping


def for_days(rows: DataFrame, partition: str, reach: Reach, days: Window) -> DataFrame:
    """Rows of an input, each once for each of the days that it helps to decide.

    Args:
        rows: of the input.
        partition: its partition column.
        reach: which days of it decide a day.
        days: the days.

    Returns:
        The columns of the input, and `for_day`.
    """
    day = F.col(partition)
    counts_for = F.sequence(F.date_sub(day, reach.after), F.date_add(day, reach.before))
    return rows.withColumn(FOR_DAY, F.explode(counts_for)).where(days.predicate(FOR_DAY))


def books(table: Derived, frames: Mapping[str, DataFrame], days: Window) -> dict[date, Book]:
    """By day, the totals that the inputs say it must have.

    Args:
        table: the table.
        frames: the inputs with `for_day`, by parameter.
        days: the days.
    """
    totals: dict[date, dict[str, int | Decimal]] = {day: {} for day in days}
    for check in table.conserved:
        counted = F.count(F.lit(1)) if check.column is None else F.sum(check.column)
        sums = {
            day: total
            for day, total in frames[check.parameter].groupBy(FOR_DAY).agg(counted).collect()
            if total is not None
        }
        for day, of in totals.items():
            of[check.total] = sums.get(day, table.zeros[check.total])
    return {
        day: Book(entries={f"expected {n}": v for n, v in of.items()}, totals=of)
        for day, of in totals.items()
    }


def build(settings: Settings, code: Code, table: Derived) -> dg.AssetsDefinition:
    """The asset of a declared table."""
    policy = Policy.of(settings)

    @delta_assets(settings, name=f"make_{table.name}", tables=[table], group=table.group, code=code)
    def make(context: dg.AssetExecutionContext, **inputs: Input) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                sources = {n: inputs[of.table.name].now() for n, of in table.reads.items()}

                def build(days: Window) -> Built:
                    frames = {
                        name: for_days(
                            sources[name].days(of.reach.read(days)),
                            of.table.partition,
                            of.reach,
                            days,
                        )
                        for name, of in table.reads.items()
                    }
                    rows = keep(table.transform(**frames))

                    def remarks(_: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
                        passed = (v.day for v in verdicts if v.passed)
                        final = {d for d in passed if _final(table, sources, d, settings.start)}
                        return Remarks(final)

                    return Built(rows, books(table, frames, days), scattered=True, remarks=remarks)

                return plan_of(table, policy, window, [*sources.values()], build)

            yield from publish(context, [Candidate(table, plan)])

    return make


def _final(table: Derived, sources: Mapping[str, Snapshot], day: date, start: date) -> bool:
    """Whether all input days that decide a day are final; a missing one is not."""
    return all(
        of in source.ledger.final
        for name, source in sources.items()
        for of in table.reads[name].reach.deciding(source.ledger)(day)
        if of >= start
    )
