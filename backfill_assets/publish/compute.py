"""The computed days of a plan: their audit, days built one upon the other, errors in words.

A run computes all days of its range at once. A function that groups without the day would mix
days, and no check of a single day would notice. So the first range that new code of a table
computes is compared with one or two of its days that are computed alone.
"""

import re
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from typing import Any

import dagster as dg
import pyspark.sql.types as T
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.profile import Baseline, Histograms, PublishedHistory, audit_frame
from backfill_assets.audit.verdicts import (
    TRAILING_DAYS,
    Expectation,
    RefusedError,
    Verdict,
    digest_sums,
    judge_days,
    sum_digests,
)
from backfill_assets.calendar.partitions import DAY, Window, format_ranges
from backfill_assets.dagster_ext.failures import raise_if_engine_failed
from backfill_assets.delta import records
from backfill_assets.delta.commits import PublishError, summarize_error
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.types import ComputedDays, ComputePlan
from backfill_assets.settings import PREFIX
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.staleness.assess import new_input_reason
from backfill_assets.staleness.input_digest import StateDigester
from backfill_assets.tables.arguments import declaration_location
from backfill_assets.tables.table import Table

#: The traceback of a Python worker, and its last lines.
_WORKER_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE
)


@contextmanager
def explain_spark_errors(table: Table, days: Window) -> Iterator[None]:
    """Replace errors of Spark by a step failure with a short message, without plan and stack.

    Raises:
        dagster.Failure: the rows cannot be computed.
        Exception: the error is one of the engine, not of the rows; unchanged.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        raise_if_engine_failed(error)
        raise step_failure(table, days, "its rows cannot be computed", error) from error


@contextmanager
def explain_function_errors(table: Table, days: Window) -> Iterator[None]:
    """Replace errors of a table's function by a step failure that names its file and line.

    Raises:
        dagster.Failure: the function raised an exception.
        Exception: the error is one of the engine, not of the function; unchanged.
    """
    try:
        yield
    except (dg.Failure, EngineError):
        raise
    except Exception as error:
        raise_if_engine_failed(error)
        raise step_failure(table, days, "its function failed", error) from error


def step_failure(table: Table, days: Window, problem: str, error: Exception) -> dg.Failure:
    """Return the failure of a step: what failed, why, the state of the table, what to do.

    `problem` is a clause such as "its function failed".
    """
    is_spark_error = isinstance(error, SPARK_ERRORS)
    cause = (
        summarize_error(error).rstrip("; .")
        if is_spark_error
        else f"{type(error).__name__}: {error}"
    )
    if is_spark_error and (worker_errors := _WORKER_TRACEBACK.findall(str(error))):
        cause = f"{cause} {worker_errors[-1]}"
    fix = "See to what it names"
    if table.kind == "derived":
        fix = "Mend the function, or the input rows that it cannot take"
    where = declaration_location([*traceback.walk_tb(error.__traceback__)][::-1])
    return dg.Failure(
        f"{table.name} [{days}]: {problem}: {cause}{where}. Nothing was written, and the table is "
        f"as it was. {fix}, and launch these days again."
    )


#: The column that marks rows of a day that was computed alone.
_ALONE_COLUMN = "_alone"


class DependentDaysError(RefusedError):
    """A day has other rows within a range than alone."""


def days_to_compute_alone(plan: ComputePlan, frame: DataFrame) -> list[date]:
    """Return the days to compute alone as well, to see that the range gives the same rows.

    None if some run published several days at once by this code version. Otherwise the day with the
    fewest rows, and one day without rows. Of a stateful table, only the first day can be computed
    alone.
    """
    days, ledger = plan.days, plan.ledger
    version = plan.request.record["code_version"]
    computed_before = not plan.request.compares and any(
        record.code_version == version and len(record.days) > 1 and _is_computed(record)
        for record in ledger.records
    )
    if len(days) < 2 or computed_before:
        return []
    first = min(days)
    if plan.digester:
        return [first]
    counts = frame.groupBy(plan.table.partition).count().collect()
    rows_by_day = dict.fromkeys(days, 0) | {day: rows for day, rows in counts if day in days}
    return _sample_days(rows_by_day, first)


def _is_computed(record: records.CommitRecord) -> bool:
    """Return whether a run computed the days of a commit; other commits carry earlier rows over."""
    details = record.details
    return not (details.kind or details.undoes or details.as_of)


def refuse_dependent_days(
    table: Table, frame: DataFrame, days: Window, frames_alone: Mapping[date, DataFrame]
) -> None:
    """Raise if a day has other rows in the range than when it is computed alone.

    Values of floating-point columns are not compared: their sum depends on the order of the rows.

    `frames_alone` has the frames of days that were computed alone.

    Raises:
        DependentDaysError: a day has other rows; nothing was written.
    """
    frames = [
        table.conform_frame(frame)
        .where(F.col(table.partition).isin([*frames_alone]))
        .withColumn(_ALONE_COLUMN, F.lit(False))
    ]
    exact = T.StructType(
        [column for column in table.struct_type if not _contains_floats(column.dataType)]
    )
    sums = digest_sums(exact)
    frames += [
        table.conform_frame(alone).withColumn(_ALONE_COLUMN, F.lit(True))
        for alone in frames_alone.values()
    ]
    grouped = reduce(DataFrame.unionByName, frames).groupBy(table.partition, _ALONE_COLUMN)
    digest_rows = grouped.agg(*[column.alias(name) for name, column in sums.items()]).collect()
    digests = {
        (row[table.partition], row[_ALONE_COLUMN]): tuple(row[name] for name in sums)
        for row in digest_rows
    }
    for day in frames_alone:
        within, by_itself = digests.get((day, False)), digests.get((day, True))
        if within != by_itself:
            raise DependentDaysError(
                f"{table.name} [{days}]: refused, the table is as it was: the function gives other "
                f"rows for {day} alone ({_row_count_text(by_itself)}) than within {days} "
                f"({_row_count_text(within)}). Does it group, join and order by for_day? It may "
                "read no clock and no random number, and what it ranks or collects must have one "
                "order. Mend the function and launch these days again; to publish it as it is, set "
                "BACKFILL_ASSETS_CHECK_INDEPENDENCE=false."
            )


def _row_count_text(sums: tuple[int, ...] | None) -> str:
    return f"{sums[0] if sums else 0} row(s)"


def _sample_days(rows: Mapping[date, int], first: date) -> list[date]:
    """Choose the days to compute alone.

    A later day is preferred: on the first one, a function that looks at the row before is right.
    """
    filled = [day for day in rows if rows[day]]
    empty = [day for day in rows if not rows[day]]
    fewest = min(filled, key=lambda day: (day == first, rows[day], day), default=None)
    return [*sorted(empty)[:1], *([fewest] if fewest else [])]


def _contains_floats(kind: T.DataType) -> bool:
    """Return whether a type contains floating-point numbers, whose sums depend on the row order."""
    if isinstance(kind, T.ArrayType):
        return _contains_floats(kind.elementType)
    if isinstance(kind, T.MapType):
        return _contains_floats(kind.keyType) or _contains_floats(kind.valueType)
    if isinstance(kind, T.StructType):
        return any(_contains_floats(field.dataType) for field in kind)
    return isinstance(kind, T.FloatType | T.DoubleType)


@dataclass(frozen=True)
class AuditedDays:
    """Days that were computed and audited.

    Attributes:
        plan: by which they were computed.
        computed: the result of the asset's function, with the audit's figures.
        frame: their rows, with the columns and types of the table.
        fingerprints: by day, the input fingerprint.
        verdicts: of the audit.
        identical: days of a stateful table that came out as they are published, and were computed
            only as the day before had changed.
        histograms: by day, of the columns that are watched for drift.
        files: by day, data files that are written but not committed.
    """

    plan: ComputePlan
    computed: ComputedDays
    frame: DataFrame
    fingerprints: Mapping[date, str]
    verdicts: Mapping[date, Verdict]
    identical: Collection[date] = ()
    histograms: Mapping[date, Histograms] = field(default_factory=dict)
    files: dict[date, list[AddAction]] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[date, str]:
        """By day that is not identical, why it was computed."""
        return {d: reason for d, reason in self.plan.reasons.items() if d not in self.identical}

    @property
    def passed(self) -> list[Verdict]:
        """The verdicts of the days to commit."""
        return [self.verdicts[day] for day in self.reasons if self.verdicts[day].may_publish]

    def encode_record(self, notes: records.CommitNotes) -> dict[str, Any]:
        """Encode the record of the commit of the days that passed."""
        plan, computed, reasons = self.plan, self.computed, self.reasons
        published = records.to_published_days(
            self.passed,
            {**self.fingerprints, **computed.fingerprints},
            computed.numbers,
            computed.made_under,
            computed.provenance,
        )
        failures = {
            day: self.verdicts[day].failure_reasons for day in reasons if day not in published
        }
        return records.encode_published(
            plan.request.record,
            plan.input_versions,
            plan.ledger.version,
            published,
            failures,
            {day: reasons[day] for day in published},
            notes,
        )

    def write_files(self, days: Sequence[date]) -> DataFiles:
        """Write the data files of days once, and return them; files that exist are reused.

        Raises:
            PublishError: writing failed, or the files hold other rows than were audited.
        """
        existing = self.computed.files
        if new_days := [day for day in days if day not in self.files and day not in existing]:
            written, digest = self.plan.writer.write_rows(
                self.frame, new_days, rebalance=self.computed.scattered
            )
            audited = sum_digests(self.verdicts[day].metrics.digest for day in new_days)
            if digest != audited:
                self.plan.writer.remove_files(file for files in written.values() for file in files)
                raise PublishError(
                    f"{self.plan.table.name} [{format_ranges(new_days)}]: the rows that were "
                    f"written have the digest {digest}, and those that were audited {audited}: "
                    "computed twice, the days have not the same rows. Nothing was published. Let "
                    "the table's transform give the same rows each time."
                )
            self.files.update({day: [*written.get(day, ())] for day in new_days})
        return {day: existing[day] if day in existing else self.files[day] for day in days}

    def mark_committed(self, days: Iterable[date]) -> None:
        """Forget the files of days that a version of the table now contains."""
        for day in days:
            self.files.pop(day, None)

    def remove_files(self) -> None:
        """Remove data files that no commit contains.

        Only where the log shows that: after an error of the store, a commit may still arrive.
        """
        if files := [file for files in self.files.values() for file in files]:
            self.plan.writer.remove_files(files)


def audit_days(plan: ComputePlan, computed: ComputedDays) -> AuditedDays:
    """Measure and judge the computed days of a plan, not those between them.

    Raises:
        SchemaError: a column is missing or of another type.
        DeclarationError: a condition of the model is not valid SQL.
        RefusedError: rows outside of these days, rows without a day, or no rows where some are
            expected.
    """
    ledger, days = plan.ledger, plan.days
    frame = plan.table.conform_frame(computed.frame)
    history = _published_history(ledger, days)
    expectations = dict(computed.expectations)
    if plan.request.merge and ledger.version is not None:
        leftover_rows = plan.writer.count_leftover_rows(frame, [*days], ledger.version)
        for day, rows in leftover_rows.items():
            expectation = expectations.get(day, Expectation())
            problem = (
                f"{rows} published row(s) are absent or less frequent in the source, and a merge "
                "would leave them; launch the day without merge"
            )
            problems = [*expectation.problems, problem]
            expectations[day] = replace(expectation, problems=problems)
    audit = audit_frame(frame, plan.table, days, expectations, plan.rules, history)
    numbers = {
        **computed.numbers,
        **{day: {**computed.numbers.get(day, {}), **more} for day, more in audit.figures.items()},
    }
    fingerprints: Mapping[date, str] = {day: plan.fingerprints[day] for day in days}
    verdicts, identical = audit.verdicts, set[date]()
    if plan.digester:
        fingerprints, verdicts, identical = chain_days(plan, plan.digester, verdicts)
    return AuditedDays(
        plan,
        replace(computed, numbers=numbers),
        frame,
        fingerprints,
        {verdict.day: verdict for verdict in verdicts},
        identical,
        audit.histograms,
    )


def _published_history(ledger: Ledger, days: Window) -> PublishedHistory:
    """Return what the days are judged against, from the statistics and records in the log."""
    grain = ledger.table.grain
    earlier = {d for day in days for d in grain.partitions_before(day, TRAILING_DAYS)} - {*days}
    return PublishedHistory(
        {day: ledger.measured[day] for day in earlier if day in ledger.measured},
        {
            day: Baseline(f"version {record.version}", record.details.spreads[day])
            for day in (*days, *earlier)
            if (record := ledger.latest.get(day))
            and record.details.spreads.get(day)
            and ledger.current_record(day)
        },
    )


#: Days of a stateful table that are computed and committed together. Limited, as each row of the
#: state is repeated for each of these days; and a run that was killed continues after its last
#: commit. A month fits into one commit.
DAYS_PER_COMMIT = 31


def split_buildable_days(
    plan: ComputePlan, window: Window, failed: Collection[date], config_digest: str
) -> tuple[dict[date, str], dict[date, Expectation]]:
    """Return the days to compute and those to refuse, as each day is built from the day before.

    If a day is computed, so are the days that follow it, as they may change. No day is built after
    a day that is refused, until one that is published with its current inputs.

    The reasons and refusals of `plan` consider the other inputs only; `failed` are days of the
    table that this run failed to publish.
    """
    name, reasons, refused = plan.table.name, plan.reasons, plan.refused
    blocker = _blocking_reason(plan, window.start, failed, config_digest)
    buildable: dict[date, str] = {}
    blocked: dict[date, Expectation] = dict(refused)
    for day in window:
        if day in refused:
            blocker = f"{name}[{day}] was not published"
        elif blocker and day in reasons:
            blocked[day] = Expectation(problems=[f"it is built upon earlier days, and {blocker}"])
        elif blocker:
            blocker = ""
        elif day - DAY in buildable or day in reasons:
            buildable[day] = reasons.get(day) or new_input_reason([name])
    return buildable, blocked


def _blocking_reason(
    plan: ComputePlan, first: date, failed: Collection[date], config_digest: str
) -> str:
    """Return why the first day cannot be built from the days before; empty if it can."""
    ledger, name = plan.ledger, plan.table.name
    if earlier := [day for day in failed if day < first]:
        return f"{name}[{max(earlier)}] failed in this run"
    own_snapshot = next(source for source in plan.sources if source.table is ledger.table)
    earlier = [day for day in ledger.published_days if day < first]
    begins = first not in ledger.published_days and not own_snapshot.required_days(first)
    if earlier and begins and first - DAY not in ledger.published_days:
        return (
            f"{name} has days up to {max(earlier)} and none on the day before {first}, the first "
            f"day now: it would begin anew. Put {PREFIX}START back and build the days between"
        )
    for needed in own_snapshot.required_days(first):
        if needed not in ledger.published_days:
            return f"{name}[{needed}] has never been published"
        if needed in ledger.under_other_settings(config_digest):
            return f"{name}[{needed}] was made under other settings; rebuild it first"
    return ""


def chain_days(
    plan: ComputePlan, digester: StateDigester, verdicts: Sequence[Verdict]
) -> tuple[dict[date, str], list[Verdict], set[date]]:
    """Judge days that are built one upon the other, given how the day before came out.

    `verdicts` are those of each day by itself, in ascending order.

    Returns:
        The input fingerprint of each day; the verdicts, of which none passes after a day that did
        not pass; and the days that came out as they are published, if they were computed only as
        the day before had changed.
    """
    table, ledger = plan.table, plan.ledger
    fingerprints: dict[date, str] = {}
    verdict_by_day: dict[date, Verdict] = {}
    identical: set[date] = set()
    for verdict in verdicts:
        day, previous = verdict.day, verdict_by_day.get(verdict.day - DAY)
        content = previous.metrics.digest if previous else ledger.content_key(day - DAY)
        fingerprints[day] = digester.digest_day(day, content)
        published = ledger.current_record(day)
        if day not in plan.requested and published and published.fingerprint == fingerprints[day]:
            identical.add(day)
        if previous and not previous.may_publish:
            problem = f"it is built upon {table.name}[{previous.day}], which did not pass"
            expectation = replace(
                verdict.expectation, problems=[*verdict.expectation.problems, problem]
            )
            (verdict,) = judge_days(table, [day], {day: verdict.metrics}, {day: expectation}, {})
        verdict_by_day[day] = verdict
    return fingerprints, [*verdict_by_day.values()], identical
