"""The staging assets: each key once on its event day, and the lines that came after its window."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.input_frames import sums_by_day
from backfill_assets.assets.table_asset import AssetInputs, table_asset
from backfill_assets.audit.verdicts import Expectation, Severity
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.records import CommitDetails
from backfill_assets.deployment import Deployment
from backfill_assets.publish.types import CommitNotes, ComputedDays
from backfill_assets.spark.frames import Cache
from backfill_assets.staleness.finality import window_closed_at
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Lineage
from backfill_assets.transforms.dedup import (
    SUPERSEDED,
    drop_superseded,
    line_amount,
    rank_in_window,
    with_event_day,
    within_window,
)


def late_lines(raw: DataFrame, source: Source, window_days: int, *, keep: bool = True) -> DataFrame:
    """Return the rows of the raw log that came after the window of their event day had closed.

    Empty where such lines are dropped: then only `late_expectations` counts them.
    """
    return raw.where(~within_window(window_days) & F.lit(keep)).select(*source.late.columns)


def staged_expectations(
    raw: DataFrame, rows: DataFrame, window: Window, window_days: int
) -> dict[date, Expectation]:
    """By event day: rows in time (counted from the raw log) = staged + superseded."""
    counted, zero = F.lit(1), F.lit(0)
    lines_in_time = raw.where(window.sql_condition("event_date")).where(within_window(window_days))
    both = lines_in_time.select("event_date", counted.alias("came"), zero.alias("gone")).unionAll(
        rows.where(SUPERSEDED).select("event_date", zero, counted)
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
) -> dict[date, Expectation]:
    """By log day: rows of the raw log = in time + late, with a notice about the late ones.

    Late lines that are kept are in the current tables, and a warning is enough; for dropped ones
    the notice is the only trace. Lines of days before the first day are in the raw log only, in
    time or late.
    """
    late = ~within_window(window_days)
    nothing = F.lit(Decimal("0.00"))
    counts = raw.groupBy("log_date").agg(
        F.count(F.lit(1)),
        F.count_if(late),
        F.coalesce(F.sum(F.when(late, line_amount(source))), nothing),
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
            notices={"late_lines": (severity, _late_message(source, count, amount, keep))}
            if count
            else {},
        )
    return expectations


def _late_message(source: Source, count: int, amount: Decimal, keep: bool) -> str:
    """Return the outcome of a day's late lines in a sentence."""
    worth = f" worth {amount}" if source.amount else ""
    became = (
        f"they are in {source.late.name} and in what is made of all that is known"
        if keep
        else "THEY WERE DROPPED and are in no total"
    )
    return f"{count} line(s){worth} came after the window of their day had closed; {became}"


def build_staging_assets(
    deployment: Deployment, code: Code, source: Source
) -> list[dg.AssetsDefinition]:
    """Build the staging assets of a source; its late-data window is their partition mapping."""
    return [
        _build_staged_asset(deployment, code, source),
        _build_late_asset(deployment, code, source),
    ]


def _staging_lineage(source: Source, *columns: str) -> Lineage:
    """Return the lineage of raw columns and of the event day."""
    raw = source.raw.name
    return {
        **{name: [(raw, name)] for name in (*source.fields, "log_date", *columns)},
        "event_date": [(raw, source.event_time)],
    }


def _build_staged_asset(deployment: Deployment, code: Code, source: Source) -> dg.AssetsDefinition:
    """The staging table: each key once, on its event day, in the greatest version in time.

    Its commit marks the days whose late-data window has closed as final.
    """
    policy = source.policy(deployment.settings)
    window_days = policy.window_days

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute each key's greatest version in time, from the log days of the window."""
        raw = inputs.tables[source.raw.name]
        log_days = policy.reach.input_days(days)
        raw_rows = with_event_day(raw.read_days(log_days), source, deployment.settings.timezone)
        ranked_rows = cache(rank_in_window(raw_rows, source, days, window_days))

        closed_days = {*window_closed_at(raw.ledger, policy)}
        expectations = staged_expectations(raw_rows, ranked_rows, days, window_days)
        rows = drop_superseded(ranked_rows, source)
        return ComputedDays(rows, expectations, scattered=True, notes=CommitNotes(closed_days))

    name = f"stage_{source.name}"
    return table_asset(
        deployment,
        code,
        source.staged,
        compute_days,
        name=name,
        group="staging",
        lineage=_staging_lineage(source),
    )


def _build_late_asset(deployment: Deployment, code: Code, source: Source) -> dg.AssetsDefinition:
    """Build the asset of late lines; if the policy drops them, its audit only counts them."""
    policy = source.policy(deployment.settings)
    window_days = policy.window_days

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute the late lines of these log days; the frame is empty if the policy drops them."""
        raw = with_event_day(
            inputs.tables[source.raw.name].read_days(days), source, deployment.settings.timezone
        )
        rows = cache(late_lines(raw, source, window_days, keep=policy.corrects))
        expected = late_expectations(
            raw, source, days, window_days, policy.start, keep=policy.corrects
        )
        return ComputedDays(rows, expected, notes=_late_commit_notes(expected))

    return table_asset(
        deployment,
        code,
        source.late,
        compute_days,
        name=f"keep_late_{source.name}",
        group="staging",
        lineage=_staging_lineage(source, "arrival_date", "source_file"),
    )


def _late_commit_notes(expectations: Mapping[date, Expectation]) -> CommitNotes:
    """Return count and amount of late lines by day; incidents read them in the commit."""
    late = {
        day: (int(expectation.entries["late"]), str(expectation.entries["late amount"]))
        for day, expectation in expectations.items()
        if expectation.entries["late"]
    }
    return CommitNotes(details=CommitDetails(late=late))
