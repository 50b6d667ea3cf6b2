"""Assets of a source after raw: staging, late lines, and the figures of lateness.

To rank the lines of a raw log is most of the work of staging and of the current tables, and the
figures of lateness group them by key as well. In a run of a range, all of them mostly read the same
log days, so they are ranked once for the steps that read the same (`LogLines`).
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial, reduce
from typing import Any, Self

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.assets.input_frames import sums_by_day
from backfill_assets.assets.table_asset import AssetInputs, ComputeDays, table_asset
from backfill_assets.audit.verdicts import Expectation, Severity
from backfill_assets.calendar.late_data import COMPARED_WINDOWS, Policy, lines_within
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails, CommitNotes
from backfill_assets.deployment import Deployment
from backfill_assets.publish.types import ComputedDays
from backfill_assets.spark.frames import Cache, create_frame
from backfill_assets.staleness.finality import window_closed_at
from backfill_assets.tables.derived import Current
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Lineage
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


def late_lines(raw: DataFrame, source: Source, window_days: int, *, keep: bool = True) -> DataFrame:
    """Return the rows of the raw log that came after the window of their event day had closed.

    Empty where such lines are dropped: then only `late_expectations` counts them.
    """
    return raw.where(dedup.is_late(window_days) & F.lit(keep)).select(*source.late.columns)


def staged_expectations(
    raw: DataFrame, rows: DataFrame, window: Window, window_days: int
) -> dict[date, Expectation]:
    """By event day: rows in time (counted from the raw log) = staged + superseded."""
    counted, zero = F.lit(1), F.lit(0)
    lines_in_time = raw.where(window.sql_condition("event_date")).where(
        dedup.within_window(window_days)
    )
    both = lines_in_time.select("event_date", counted.alias("came"), zero.alias("gone")).unionAll(
        rows.where(dedup.SUPERSEDED).select("event_date", zero, counted)
    )
    day_sums = sums_by_day(both, "event_date", {name: F.sum(name) for name in ("came", "gone")}, {})
    nothing = {"came": 0, "gone": 0}
    expectations = {}
    for day in window:
        of_day = day_sums.get(day, nothing)
        line_count, superseded = int(of_day["came"]), int(of_day["gone"])
        expectations[day] = Expectation(
            entries={"in time": line_count, "superseded": superseded}, rows=line_count - superseded
        )
    return expectations


def late_expectations(
    raw: DataFrame,
    source: Source,
    window: Window,
    window_days: int,
    start: date,
    *,
    keep: bool = True,
    counted: bool = True,
) -> dict[date, Expectation]:
    """By log day: rows of the raw log = in time + late, with a notice about the late ones.

    `keep`: the late lines are kept; `counted`: a table has them, as it has all that is known.

    Late lines that are kept are in the current tables, and a warning is enough; for dropped ones
    the notice is the only trace. Lines of days before the first day are in the raw log only, in
    time or late.
    """
    late = dedup.is_late(window_days)
    nothing = F.lit(Decimal("0.00"))
    counts = raw.groupBy("log_date").agg(
        F.count(F.lit(1)),
        F.count_if(late),
        F.coalesce(F.sum(F.when(late, dedup.line_amount(source))), nothing),
        F.count_if(F.col("event_date") < F.lit(start)),
    )
    counts_by_day = {day: numbers for day, *numbers in counts.collect()}
    severity = Severity.WARN if keep else Severity.ALERT
    expectations = {}
    for day in window:
        rows, count, amount, before = counts_by_day.get(day, (0, 0, Decimal("0.00"), 0))
        warning = (
            f"{before} line(s) tell of days before {start}, the first of all; they are in "
            f"{source.raw.name} and in no total"
        )
        expectations[day] = Expectation(
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
    return expectations


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
            [(part.staged, _staged_computation(deployment, part)) for part in parts],
            name=f"stage_{source.name}",
            group="staging",
            lineage=_staging_lineage(source),
        ),
        table_asset(
            deployment,
            [(part.late, _late_computation(deployment, part)) for part in parts],
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


def _staged_computation(deployment: Deployment, source: Source) -> ComputeDays:
    """Return what computes days of the staging table.

    Each key once, on its event day, in the greatest version in time. Its commit marks the days
    whose late-data window has closed as final.
    """
    policy = source.policy(deployment.settings)
    window_days = policy.window_days

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute each key's greatest version in time, from the log days of the window."""
        lines = LogLines.read(deployment, source.staged, inputs, days)
        ranked_rows = lines.cache_ranked(
            lambda ranked: dedup.rank_in_window(ranked, source, days, window_days), cache
        )
        closed_days = {*window_closed_at(inputs.tables[source.raw.name].ledger, policy)}
        expectations = staged_expectations(lines.rows, ranked_rows, days, window_days)
        rows = dedup.drop_superseded(ranked_rows, source)
        return ComputedDays(rows, expectations, scattered=True, notes=CommitNotes(closed_days))

    return compute_days


def _late_computation(deployment: Deployment, source: Source) -> ComputeDays:
    """Return what computes days of late lines; dropped ones are only counted by the audit."""
    policy = source.policy(deployment.settings)
    window_days = policy.window_days

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute the late lines of these log days; the frame is empty if the policy drops them."""
        raw = dedup.with_event_day(
            inputs.tables[source.raw.name].read_days(days), source, deployment.settings.timezone
        )
        rows = cache(late_lines(raw, source, window_days, keep=policy.corrects))
        expected = late_expectations(
            raw,
            source,
            days,
            window_days,
            policy.start,
            keep=policy.corrects,
            counted=bool(deployment.graph.tables_of_all_known(source.raw.name)),
        )
        return ComputedDays(rows, expected, notes=_late_commit_notes(expected))

    return compute_days


def _late_commit_notes(expectations: Mapping[date, Expectation]) -> CommitNotes:
    """Return count and amount of late lines by day; incidents read them in the commit."""
    late = {
        day: (int(expectation.entries["late"]), str(expectation.entries["late amount"]))
        for day, expectation in expectations.items()
        if expectation.entries["late"]
    }
    return CommitNotes(details=CommitDetails(late=late))


def lateness_figures(
    raw: DataFrame, rejected: DataFrame, source: Source, window: Window, policy: Policy
) -> DataFrame:
    """Return one row for each log day of the window, also for a day without lines.

    `raw` is the result of `with_event_day` for the log days from `policy.window_days` before the
    window to its end; the days before only tell which keys were known. `rejected` has days of the
    window.
    """
    unread = rejected.groupBy(F.col("arrival_date").alias("log_date")).agg(
        F.count(F.lit(1)).alias("rejected_lines")
    )
    struct = T.StructType().add("log_date", T.DateType())
    days = create_frame(raw.sparkSession, struct, [(day,) for day in window])
    logged = window.sql_condition("log_date")
    flagged = raw.withColumn(dedup.SUPERSEDED, _is_repeated(source, policy.window_days))
    days_late = _days_late(policy, window)
    parts = (
        _by_delay(flagged.where(logged), source, days_late, policy.window_days),
        _delay_percentiles(raw.where(logged), source, days_late),
        unread,
    )
    table = source.lateness
    kinds = {name: table.struct_type[name].dataType.simpleString() for name in table.columns}
    part = table.part_values
    measured = [name for name in kinds if name != "log_date" and name not in part]
    figures = [F.first(name, ignorenulls=True).alias(name) for name in measured]
    # Rows of one day are merged: joins would be a broadcast job each.
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts, days)
    merged = rows.groupBy("log_date").agg(*figures)
    if part:  # Spark Connect takes no empty mapping
        merged = merged.withColumns({name: F.lit(value) for name, value in part.items()})
    return merged.select(*[_fill_zero(name, kind) for name, kind in kinds.items()])


def _fill_zero(name: str, kind: str) -> Column:
    """Return a column in its type of the table, with zero for days without rows in an input."""
    column = F.col(name)
    if kind.startswith("array"):
        column = F.coalesce(column, F.array().cast(kind))
    elif name.endswith(("_lines", "_amount")) or name == "lines":
        column = F.coalesce(column, F.lit(0))
    return column.cast(kind).alias(name)


def _delay_days() -> Column:
    return F.datediff("log_date", "event_date")


#: The longest delay of which the days that nothing was expected on are left out.
_MOST_WAITED = 366


def _days_late(policy: Policy, window: Window) -> Column:
    """Return how many days after its usual arrival a line was logged; 0 or less if in time.

    Lines of a source with `arrives_on` wait for the next day on which something is expected.
    """
    days = _delay_days() - policy.arrives_after
    first = window.start - _MOST_WAITED * DAY
    waits = [
        (policy.arrival_of(day) - day).days - policy.arrives_after
        for day in Window(first, window.end)
    ]
    if not any(waits):
        return days
    # Text that Spark makes a literal of; thousands of literals would take seconds to plan.
    waited = F.get(
        F.from_json(F.lit(json.dumps(waits)), "array<int>"), F.datediff("event_date", F.lit(first))
    )
    return days - F.when(_delay_days() <= _MOST_WAITED, waited).otherwise(0)


def _by_delay(logged: DataFrame, source: Source, days_late: Column, window_days: int) -> DataFrame:
    """Return counts and sums by log day, in all and by delay.

    Grouped by event day first, which leaves few rows. `logged` has the flag `SUPERSEDED`.
    """
    late, beyond = days_late >= 1, F.col("delay") > window_days
    entry = F.struct("delay", "count", "money")
    return (
        logged.groupBy("log_date", "event_date")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum(dedup.line_amount(source)).alias("amount"),
            F.sum(F.abs(dedup.line_amount(source))).alias("money"),
            F.count_if(dedup.SUPERSEDED).alias("superseded"),
        )
        .withColumn("delay", _delay_days())
        .groupBy("log_date")
        .agg(
            F.sum("count").alias("lines"),
            F.sum("superseded").alias("superseded_lines"),
            F.sum(F.when(late, F.col("count"))).alias("late_lines"),
            F.sum(F.when(late, F.col("amount"))).alias("late_amount"),
            F.sum(F.when(beyond, F.col("count"))).alias("beyond_lines"),
            F.sum(F.when(beyond, F.col("amount"))).alias("beyond_amount"),
            F.sort_array(F.collect_list(entry)).alias("entries"),
        )
        .withColumns(
            {
                "delays": F.col("entries.delay"),
                "lines_by_delay": F.col("entries.count"),
                "amount_by_delay": F.col("entries.money"),
            }
        )
        .drop("entries")
    )


def _delay_percentiles(logged: DataFrame, source: Source, days_late: Column) -> DataFrame:
    """Return delays by log day with late lines, counted from when the lines were expected."""
    times = [F.col(name).cast("timestamp") for name in dedup.compared_times(source)]
    micros = F.unix_micros(F.greatest(*times)) - F.unix_micros(times[0])
    # In integers: a double cannot hold the microseconds between distant times.
    minutes = F.call_function("div", micros, F.lit(60_000_000))
    delays = {"days": days_late, "minutes": minutes}
    return (
        logged.where(days_late >= 1)
        .withColumns(delays)
        .groupBy("log_date")
        .agg(
            *[
                column.alias(f"delay_{unit}_{name}")
                for unit in delays
                for name, column in (
                    ("p50", _discrete_percentile(unit, "0.5")),
                    ("p95", _discrete_percentile(unit, "0.95")),
                    ("max", F.max(unit)),
                )
            ]
        )
    )


def _discrete_percentile(name: str, share: str) -> Column:
    """Return a percentile that is one of the values, without interpolation."""
    return F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {name})")


def _is_repeated(source: Source, window_days: int) -> Column:
    """Whether a line is not the first of its key in its log day and the W days before it.

    Computed for each day by itself, so that a range gives the same as its days one by one.
    """
    by_day = SqlWindow.partitionBy(*source.key).orderBy("log_date")
    since = F.datediff("log_date", F.lag("log_date").over(by_day))
    return F.coalesce(since <= window_days, F.lit(False))


def lateness_expectations(
    rows: Mapping[date, Any],
    raw: DataFrame,
    rejected: DataFrame,
    source: Source,
    window: Window,
    policy: Policy,
    unknown: Collection[date] = (),
) -> dict[date, Expectation]:
    """By log day: one row, whose counts are those of the inputs.

    `rows` is the result of `lateness_figures` by day. The logs of `unknown` days have never been
    published, so that their keys are not known.
    """
    logged = raw.where(window.sql_condition("log_date"))
    both = logged.select(
        "log_date",
        F.lit(1).alias("lines"),
        (_days_late(policy, window) >= 1).cast("int").alias("late"),
        dedup.is_late(policy.window_days).cast("int").alias("beyond"),
        F.lit(0).alias("rejected"),
    ).unionAll(rejected.select("arrival_date", F.lit(0), F.lit(0), F.lit(0), F.lit(1)))
    names = ("lines", "late", "beyond", "rejected")
    window_days = policy.window_days
    sums = sums_by_day(both, "log_date", {name: F.sum(name) for name in names}, {})
    expectations_by_day = {}
    for day in window:
        day_sums = sums.get(day, {})
        entries = {name: day_sums.get(name, 0) for name in names}
        problems = []
        for name, expected in entries.items():
            column = "lines" if name == "lines" else f"{name}_lines"
            actual = rows[day][column] if day in rows else None
            if actual is not None and actual != expected:
                problems.append(f"{column} is {actual} where {expected} are due")
        holes = [d for d in Window(day, day).widen_by(before=window_days) if d in unknown]
        warning = (
            f"superseded_lines may be too low: {len(holes)} of the {window_days} day(s) before "
            f"have no published {source.raw.name}; publish them, then this day again"
        )
        expectations_by_day[day] = Expectation(
            entries=entries, rows=1, problems=problems, warnings=[warning] if holes else []
        )
    return expectations_by_day


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
        [(part.lateness, _lateness_computation(deployment, part)) for part in parts],
        name=f"measure_{source.lateness.asset_name}",
        group="lateness",
        lineage=_lateness_lineage(source),
    )


def _lateness_computation(deployment: Deployment, source: Source) -> ComputeDays:
    """Return what computes days of a source's lateness figures, from its raw log."""
    policy = source.policy(deployment.settings)
    window_days = policy.window_days
    table = source.lateness

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute one row of figures for each log day, from the raw log and the rejected lines."""
        lines = LogLines.read(deployment, table, inputs, days)
        rejected = inputs.tables[source.rejected.name].read_days(days)
        # The lines that other steps share are grouped by key already.
        raw = lines.rows if lines.shared is None else lines.shared
        frame = cache(lateness_figures(raw, rejected, source, days, policy))
        rows = {row["log_date"]: row.asDict() for row in frame.collect()}
        published_days = inputs.tables[source.raw.name].ledger.published_days
        log_days = days.widen_by(before=window_days)
        unknown = {d for d in log_days if d >= policy.start and d not in published_days}
        return ComputedDays(
            frame,
            lateness_expectations(rows, lines.rows, rejected, source, days, policy, unknown),
            scattered=True,
            numbers={day: day_figures(row, source.arrives_after) for day, row in rows.items()},
        )

    return compute_days
