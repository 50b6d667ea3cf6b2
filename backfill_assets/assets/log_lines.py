"""The lines of a raw log that a step reads, ranked once for the steps of a run that read the same.

To rank the lines is most of the work of staging and of the current tables, and the figures of
lateness group them by key as well. In a run of a range, all of them mostly read the same log days.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Self

from pyspark.sql import DataFrame

from backfill_assets.assets.table_asset import AssetInputs
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import Deployment
from backfill_assets.spark.frames import Cache
from backfill_assets.tables.derived import Current
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import SourceTable
from backfill_assets.transforms import dedup


@dataclass(frozen=True)
class LogLines:
    """The lines that some days of a table are built from.

    Attributes:
        rows: the lines with their event day, read for this step alone: the audit counts what is in
            the log.
        shared: the result of `dedup.rank_lines`, cached, if other steps of the run read the same
            lines; else None.
        rank: computes that result.
    """

    rows: DataFrame
    shared: DataFrame | None
    rank: Callable[[], DataFrame]

    @classmethod
    def read(
        cls,
        deployment: Deployment,
        table: SourceTable | Current,
        inputs: AssetInputs,
        days: Window,
    ) -> Self:
        """Read the lines that some days of a table are built from."""
        source = table.source
        log = inputs.tables[source.raw.name]
        log_days = log.days_read_for(days)
        raw = log.read_days(log_days)
        rows = dedup.with_event_day(raw, source, deployment.settings.timezone)
        policy = source.policy(deployment.settings)

        def rank() -> DataFrame:
            return dedup.rank_lines(rows, source, policy.window_days, corrects=policy.corrects)

        filled_days = _filled_days(log.ledger, log_days)
        tables = {source.staged.name, *deployment.graph.current_tables(source.raw.name)}
        ranking_tables = tables & inputs.run_tables
        if not _is_shared(deployment.graph, ranking_tables, log.ledger, filled_days, days):
            return cls(rows, None, rank)
        # A step with few rows has a session of its own.
        key = (log.table.name, log.ledger.version, filled_days, raw.sparkSession)
        return cls(rows, inputs.share(key, rank), rank)

    def cache_ranked(self, select: Callable[[DataFrame], DataFrame], cache: Cache) -> DataFrame:
        """Return a selection of the ranked lines, whose rows are cached."""
        return cache(select(self.rank())) if self.shared is None else select(self.shared)


def _is_shared(
    graph: Graph,
    ranking_tables: Iterable[str],
    ledger: Ledger,
    filled_days: frozenset[date],
    days: Window,
) -> bool:
    """Return whether several tables rank the lines of these days of a raw log for some days."""
    if ledger.rows is None and (ledger.external_commits or ledger.missing_versions):
        return False  # which days have rows as of an older version is not known
    reaches = [
        dependency.reach.deciding_days(ledger)
        for name in ranking_tables
        for dependency in graph.inputs[name]
        if dependency.source.name == ledger.table.name
    ]
    if len(reaches) < 2:
        return False
    same_reaches = [
        reach
        for reach in reaches
        if _filled_days(ledger, {d for day in days for d in reach(day)}) == filled_days
    ]
    return len(same_reaches) > 1


def _filled_days(ledger: Ledger, days: Iterable[date]) -> frozenset[date]:
    """Return the days with rows: tables differ in which days without rows they read."""
    return frozenset(day for day in days if ledger.estimate_rows(day))
