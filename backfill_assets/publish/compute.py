"""The computation of days: errors in words, and whether days are independent of each other.

A run computes all days of its range at once. A function that groups without the day would mix
days, and no check of a single day would notice. So the first range that new code of a table
computes is compared with one or two of its days that are computed alone.
"""

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import reduce

import dagster as dg
import pyspark.sql.types as T
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import RefusedError, digest_sums
from backfill_assets.calendar.partitions import Window
from backfill_assets.dagster_ext.failures import raise_if_engine_failed
from backfill_assets.delta import records
from backfill_assets.delta.commits import summarize_error
from backfill_assets.publish.types import ComputePlan
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.session import SPARK_ERRORS
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
