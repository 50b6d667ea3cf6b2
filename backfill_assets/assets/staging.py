"""Assets of a source after raw: staging, late lines, and the figures of lateness.

To rank the lines of a raw log is most of the work of staging and of the current tables, and the
figures of lateness group them by key as well. In a run of a range, all of them mostly read the same
log days, so they are ranked once for the steps that read the same (`LogLines`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, Self

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.input_frames import AssetInputs, read_inputs, sums_by_day
from backfill_assets.assets.table_asset import table_asset
from backfill_assets.audit.verdicts import Expectation, Severity
from backfill_assets.calendar.late_data import COMPARED_WINDOWS, Policy, lines_within
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails, CommitNotes
from backfill_assets.deployment import Deployment
from backfill_assets.publish.types import ComputedDays
from backfill_assets.spark.frames import Cache, part_key, split_by_part
from backfill_assets.staleness.finality import window_closed_at
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Lineage
from backfill_assets.transforms import dedup
from backfill_assets.transforms.lateness import delay_beyond, lateness_figures


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
        parts: Sequence[AssetInputs],
        days: Window,
    ) -> Self:
        """Read the lines that some days of a table, or of parts of one, are built from."""
        source = parts[0].table.source
        logs = [inputs.tables[inputs.table.source.raw.name] for inputs in parts]
        log_days = frozenset[date]().union(*(log.days_read_for(days) for log in logs))
        raw = TableSnapshot.read_together(logs, log_days)
        rows = dedup.with_event_day(raw, source, deployment.settings.timezone)
        policy = source.policy(deployment.settings)

        def rank() -> DataFrame:
            return dedup.rank_lines(rows, source, policy.window_days, corrects=policy.corrects)

        filled_days = [_filled_days(log.ledger, log_days) for log in logs]
        for inputs, log, days_with_rows in zip(parts, logs, filled_days, strict=True):
            own_source = inputs.table.source
            tables = {own_source.staged.name, *deployment.graph.current_tables(log.table.name)}
            ranking_tables = tables & inputs.run_tables
            if not _is_shared(deployment.graph, ranking_tables, log.ledger, days_with_rows, days):
                return cls(rows, None, rank)
        # A step with few rows has a session of its own.
        names = tuple(log.table.name for log in logs)
        key = (names, logs[0].ledger.version, tuple(filled_days), raw.sparkSession)
        return cls(rows, parts[0].share(key, rank), rank)

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


def late_lines(raw: DataFrame, source: Source, window_days: int, *, keep: bool = True) -> DataFrame:
    """Return the rows of the raw log that came after the window of their event day had closed.

    Empty where such lines are dropped: then only `late_expectations` counts them.
    """
    return raw.where(dedup.is_late(window_days) & F.lit(keep)).select(*source.late.columns)


def staged_expectations(
    raw: DataFrame,
    rows: DataFrame,
    window: Window,
    window_days: int,
    parts: Sequence[SourceTable],
) -> list[dict[date, Expectation]]:
    """By event day of each part: rows in time (counted from the raw log) = staged + superseded."""
    counted, zero, keys = F.lit(1), F.lit(0), parts[0].cell_columns
    lines_in_time = raw.where(window.sql_condition("event_date")).where(
        dedup.within_window(window_days)
    )
    both = lines_in_time.select(*keys, counted.alias("came"), zero.alias("gone")).unionAll(
        rows.where(dedup.SUPERSEDED).select(*keys, zero, counted)
    )
    sums = {name: F.sum(name) for name in ("came", "gone")}
    sums_by_part = sums_by_day(both, "event_date", sums, {}, parts[0].part_column)
    nothing = {"came": 0, "gone": 0}

    def expect(day_sums: Mapping[str, Any]) -> Expectation:
        line_count, superseded = int(day_sums["came"]), int(day_sums["gone"])
        entries = {"in time": line_count, "superseded": superseded}
        return Expectation(entries=entries, rows=line_count - superseded)

    return [
        {day: expect(sums_by_part.get(part.part, {}).get(day, nothing)) for day in window}
        for part in parts
    ]


def late_expectations(
    raw: DataFrame,
    parts: Sequence[tuple[Source, date]],
    window: Window,
    window_days: int,
    *,
    keep: bool = True,
    counted: bool = True,
) -> list[dict[date, Expectation]]:
    """By log day of each part: rows of the raw log = in time + late, with a notice of these.

    `parts` has the source and the first day of each part. `keep`: the late lines are kept;
    `counted`: a table has them, as it has all that is known.

    Late lines that are kept are in the current tables, and a warning is enough; for dropped ones
    the notice is the only trace. Lines of days before the first day are in the raw log only, in
    time or late.
    """
    late = dedup.is_late(window_days)
    source, first_day = parts[0]
    nothing, part_column = F.lit(Decimal("0.00")), source.raw.part_column
    start = F.lit(first_day)
    for part, day in parts[1:]:
        start = F.when(F.col(part_column) == part.part, F.lit(day)).otherwise(start)
    counts = raw.groupBy(*part_key(part_column), "log_date").agg(
        F.count(F.lit(1)).alias("_rows"),
        F.count_if(late).alias("_late"),
        F.coalesce(F.sum(F.when(late, dedup.line_amount(source))), nothing).alias("_amount"),
        F.count_if(F.col("event_date") < start).alias("_before"),
    )
    counts_by_part: Mapping[Any, Mapping[date, Any]] = {
        part: {row["log_date"]: row for row in rows}
        for part, rows in split_by_part(counts.collect()).items()
    }
    severity = Severity.WARN if keep else Severity.ALERT
    no_lines: Mapping[str, Any] = {"_rows": 0, "_late": 0, "_amount": Decimal("0.00"), "_before": 0}

    def expect(source: Source, first_day: date, day: date) -> Expectation:
        counts = counts_by_part.get(source.part, {}).get(day, no_lines)
        rows, count, amount, before = (counts[name] for name in no_lines)
        warning = (
            f"{before} line(s) tell of days before {first_day}, the first of all; they are in "
            f"{source.raw.name} and in no total"
        )
        return Expectation(
            entries={
                "raw": rows,
                "in time": rows - count,
                "late": count,
                "late amount": amount,
                "before the first day": before,
            },
            rows=count if keep else 0,
            warnings=[warning] if before else [],
            notices={"late_lines": (severity, _late_message(source, count, amount, keep, counted))}
            if count
            else {},
        )

    return [{day: expect(*part, day) for day in window} for part in parts]


def _late_message(source: Source, count: int, amount: Decimal, keep: bool, counted: bool) -> str:
    """Return the outcome of a day's late lines in a sentence."""
    worth = f" worth {amount}" if source.amount else ""
    became = "THEY WERE DROPPED and are in no total"
    if keep:
        where = "in what is made of all that is known" if counted else "in no total"
        became = f"they are in {source.late.name} and {where}"
    return f"{count} line(s){worth} came after the window of their day had closed; {became}"


def build_staging_assets(
    deployment: Deployment, parts: Sequence[Source]
) -> list[dg.AssetsDefinition]:
    """Build the staging assets of a source, or of the parts of one.

    Its late-data window is their partition mapping.
    """
    source = parts[0]
    return [
        table_asset(
            deployment,
            [part.staged for part in parts],
            partial(_compute_staged, deployment),
            name=f"stage_{source.name}",
            group="staging",
            lineage=_staging_lineage(source),
        ),
        table_asset(
            deployment,
            [part.late for part in parts],
            partial(_compute_late, deployment),
            name=f"keep_late_{source.name}",
            group="staging",
            lineage=_staging_lineage(source, "arrival_date", "source_file"),
        ),
    ]


def _staging_lineage(source: Source, *columns: str) -> Lineage:
    """Return the lineage of raw columns and of the event day."""
    raw = source.raw.name
    return {
        **{name: [(raw, name)] for name in (*source.fields, "log_date", *columns)},
        "event_date": [(raw, source.event_time)],
    }


def _compute_staged(
    deployment: Deployment, parts: Sequence[AssetInputs], cache: Cache, days: Window
) -> list[ComputedDays]:
    """Compute each key once, on its event day, in the greatest version in time.

    It is read from the log days of the window. The commit marks the days whose late-data window has
    closed as final.
    """
    tables: list[SourceTable] = [part.table for part in parts]
    source = tables[0].source
    window_days = source.policy(deployment.settings).window_days
    lines = LogLines.read(deployment, parts, days)
    ranked_rows = lines.cache_ranked(
        lambda ranked: dedup.rank_in_window(ranked, source, days, window_days), cache
    )
    expectations = staged_expectations(lines.rows, ranked_rows, days, window_days, tables)
    rows = dedup.drop_superseded(ranked_rows, source)
    closed_days = [
        {
            *window_closed_at(
                part.tables[part.table.source.raw.name].ledger,
                part.table.source.policy(deployment.settings),
            )
        }
        for part in parts
    ]
    return [
        ComputedDays(rows, expected, scattered=True, notes=CommitNotes(closed))
        for expected, closed in zip(expectations, closed_days, strict=True)
    ]


def _compute_late(
    deployment: Deployment, parts: Sequence[AssetInputs], cache: Cache, days: Window
) -> list[ComputedDays]:
    """Compute the late lines of these log days; dropped ones are only counted by the audit.

    The frame is empty if the policy drops them.
    """
    sources: list[Source] = [part.table.source for part in parts]
    source, policy = sources[0], sources[0].policy(deployment.settings)
    lines = read_inputs(parts, lambda table: table.source.raw, days)
    raw = dedup.with_event_day(lines, source, deployment.settings.timezone)
    rows = cache(late_lines(raw, source, policy.window_days, keep=policy.corrects))
    expectations = late_expectations(
        raw,
        [(source, source.policy(deployment.settings).start) for source in sources],
        days,
        policy.window_days,
        keep=policy.corrects,
        counted=bool(deployment.graph.tables_of_all_known(source.raw.name)),
    )
    return [
        ComputedDays(rows, expected, notes=_late_commit_notes(expected))
        for expected in expectations
    ]


def _late_commit_notes(expectations: Mapping[date, Expectation]) -> CommitNotes:
    """Return count and amount of late lines by day; incidents read them in the commit."""
    late = {
        day: (int(expectation.entries["late"]), str(expectation.entries["late amount"]))
        for day, expectation in expectations.items()
        if expectation.entries["late"]
    }
    return CommitNotes(details=CommitDetails(late=late))


def lateness_expectations(
    rows: Mapping[str, Mapping[date, Any]],
    raw: DataFrame,
    rejected: DataFrame,
    tables: Sequence[SourceTable],
    window: Window,
    policy: Policy,
    unknown: Mapping[str, Collection[date]],
) -> list[dict[date, Expectation]]:
    """By log day of each part: one row, whose counts are those of the inputs.

    `rows` is the result of `lateness_figures` by part and day. The logs of `unknown` days, by part,
    have never been published, so that their keys are not known.
    """
    source, part_column = tables[0].source, tables[0].part_column
    both = (
        raw.where(window.sql_condition("log_date"))
        .select(
            *source.raw.cell_columns,
            F.lit(1).alias("lines"),
            (delay_beyond(policy, window) >= 1).cast("int").alias("late"),
            dedup.is_late(policy.window_days).cast("int").alias("beyond"),
            F.lit(0).alias("rejected"),
        )
        .unionAll(
            rejected.select(*source.rejected.cell_columns, F.lit(0), F.lit(0), F.lit(0), F.lit(1))
        )
    )
    names = ("lines", "late", "beyond", "rejected")
    sums = sums_by_day(both, "log_date", {n: F.sum(n) for n in names}, {}, part_column)
    return [
        {
            day: _expect_lateness(
                rows.get(table.part, {}).get(day),
                {name: sums.get(table.part, {}).get(day, {}).get(name, 0) for name in names},
                table.source,
                [
                    d
                    for d in Window(day, day).widen_by(before=policy.window_days)
                    if d in unknown.get(table.part, ())
                ],
                policy.window_days,
            )
            for day in window
        }
        for table in tables
    ]


def _expect_lateness(
    row: Mapping[str, Any] | None,
    entries: Mapping[str, Any],
    source: Source,
    holes: Sequence[date],
    window_days: int,
) -> Expectation:
    """Return what the figures of a day must be; of the days in `holes` the keys are not known."""
    problems = []
    for name, expected in entries.items():
        column = "lines" if name == "lines" else f"{name}_lines"
        actual = row[column] if row else None
        if actual is not None and actual != expected:
            problems.append(f"{column} is {actual} where {expected} are due")
    warning = (
        f"superseded_lines may be too low: {len(holes)} of the {window_days} day(s) before "
        f"have no published {source.raw.name}; publish them, then this day again"
    )
    return Expectation(
        entries=entries, rows=1, problems=problems, warnings=[warning] if holes else []
    )


def day_figures(row: Mapping[str, Any], arrives_after: int = 0) -> dict[str, int | float]:
    """Return one day's figures for the UI, which plots only numbers; shares are 0 to 1.

    A figure that a day does not have (a share of no lines, a delay of no late line) is left out.

    Args:
        row: of `tables.source_models.ArrivalLateness`.
        arrives_after: days after which the source's lines usually arrive; windows begin then.
    """
    lines = row["lines"]
    figures: dict[str, int | float] = {
        "late lines": row["late_lines"],
        "beyond window lines": row["beyond_lines"],
        # A double is enough for a plot; the exact sum is in the table.
        "beyond window amount": float(row["beyond_amount"]),
        "superseded lines": row["superseded_lines"],
        "rejected lines": row["rejected_lines"],
    }
    if lines:
        figures["late share"] = row["late_lines"] / lines
        figures["beyond window share"] = row["beyond_lines"] / lines
        for w in COMPARED_WINDOWS:
            figures[f"caught by W={w}"] = lines_within(row, arrives_after + w) / lines
    for unit in ("days", "minutes"):
        for name in ("p50", "p95", "max"):
            delay = row[f"delay_{unit}_{name}"]
            if delay is not None:
                figures[f"delay {unit} {name}"] = delay
    return figures


def _lateness_lineage(source: Source) -> Lineage:
    """Return, by column of the lateness table, the (table, column) pairs it is built from."""
    raw = source.raw.name
    of_lines = [(raw, "log_date"), (raw, source.event_time)]
    with_amount = [*of_lines, (raw, source.amount)] if source.amount else []
    # Without a version time, that is the event time, and Dagster refuses a column named twice.
    in_minutes = [*dict.fromkeys([*of_lines, (raw, source.version_time)])]
    delays = ("p50", "p95", "max")
    return {
        "log_date": [(raw, "log_date")],
        "lines": [(raw, "log_date")],
        "late_lines": of_lines,
        "late_amount": with_amount,
        "beyond_lines": of_lines,
        "beyond_amount": with_amount,
        "superseded_lines": [(raw, "log_date"), *((raw, name) for name in source.key)],
        "rejected_lines": [(source.rejected.name, "arrival_date")],
        **{f"delay_days_{name}": of_lines for name in delays},
        **{f"delay_minutes_{name}": in_minutes for name in delays},
        "delays": of_lines,
        "lines_by_delay": of_lines,
        "amount_by_delay": with_amount,
    }


def build_lateness_asset(deployment: Deployment, parts: Sequence[Source]) -> dg.AssetsDefinition:
    """Build the asset of a source's lateness figures, or of those of the parts of one."""
    source = parts[0]
    return table_asset(
        deployment,
        [part.lateness for part in parts],
        partial(_compute_lateness, deployment),
        name=f"measure_{source.lateness.asset_name}",
        group="lateness",
        lineage=_lateness_lineage(source),
    )


def _compute_lateness(
    deployment: Deployment, parts: Sequence[AssetInputs], cache: Cache, days: Window
) -> list[ComputedDays]:
    """Compute one row of figures for each log day, from the raw log and the rejected lines."""
    tables: list[SourceTable] = [part.table for part in parts]
    policies = [table.source.policy(deployment.settings) for table in tables]
    policy = policies[0]
    lines = LogLines.read(deployment, parts, days)
    rejected = read_inputs(parts, lambda table: table.source.rejected, days)
    # The lines that other steps share are grouped by key already.
    raw = lines.rows if lines.shared is None else lines.shared
    frame = cache(lateness_figures(raw, rejected, tables, days, policy))
    rows_by_part: dict[str, dict[date, Mapping[str, Any]]] = {table.part: {} for table in tables}
    for row in frame.collect():
        part = row[tables[0].part_column] if tables[0].part else ""
        rows_by_part[part][row["log_date"]] = row.asDict()
    log_days = days.widen_by(before=policy.window_days)
    unknown = {
        table.part: {d for d in log_days if d >= policy.start} - log.ledger.published_days
        for table, policy, log in zip(
            tables,
            policies,
            (part.tables[part.table.source.raw.name] for part in parts),
            strict=True,
        )
    }
    expectations = lateness_expectations(
        rows_by_part, lines.rows, rejected, tables, days, policy, unknown
    )
    return [
        ComputedDays(
            frame,
            expected,
            scattered=True,
            numbers={
                day: day_figures(row, table.source.arrives_after)
                for day, row in rows_by_part[table.part].items()
            },
        )
        for table, expected in zip(tables, expectations, strict=True)
    ]
