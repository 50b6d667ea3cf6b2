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
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Inputs
from backfill_assets.transforms import dedup


def sharing_tables(graph: Graph, source: Source) -> list[str]:
    """Return the tables whose steps share ranked lines of a source, if they read the same."""
    return [*_ranking_tables(graph, source), source.lateness.name]


def _ranking_tables(graph: Graph, source: Source) -> list[str]:
    """Return the tables that rank the versions of each key of a source."""
    return [source.staged.name, *graph.current_tables(source.raw.name)]


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
        ranking = inputs.readers & {*_ranking_tables(deployment.graph, source)}
        same = [
            name
            for name in ranking
            if _days_read_for(deployment.graph.inputs[name], log.ledger, days) == filled_days
        ]
        if len(same) < 2:
            return cls(rows, None, rank)
        # A step with few rows has a session of its own.
        key = (log.table.name, log.ledger.version, filled_days, raw.sparkSession)
        return cls(rows, inputs.share(key, rank), rank)

    def cache_ranked(self, select: Callable[[DataFrame], DataFrame], cache: Cache) -> DataFrame:
        """Return a selection of the ranked lines, whose rows are cached."""
        return cache(select(self.rank())) if self.shared is None else select(self.shared)


def _days_read_for(inputs: Inputs, log: Ledger, days: Window) -> frozenset[date]:
    """Return the days with rows of a raw log that some days of a table with such inputs read."""
    (deciding_days,) = (
        dependency.reach.deciding_days(log)
        for dependency in inputs
        if dependency.source.name == log.table.name
    )
    return _filled_days(log, {d for day in days for d in deciding_days(day)})


def _filled_days(log: Ledger, days: Iterable[date]) -> frozenset[date]:
    """Return the days with rows: empty ones are read by some tables only."""
    return frozenset(day for day in days if log.estimate_rows(day))
