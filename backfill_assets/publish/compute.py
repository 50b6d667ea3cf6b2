"""The computation of days: errors in words, and whether days are independent of each other.

A run computes all days of its range at once. A function that groups without the day would mix
days, and no check of a single day would notice. So a range is compared with some of its days that
are computed alone, until ranges of the same code have shown enough days with rows that are equal.
The commit records which days were compared.

Parts of a table are computed together, and if that fails, each by itself.
"""

import logging
import re
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import reduce
from typing import NamedTuple, TypeVar

import dagster as dg
import pyspark.sql.types as T
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import RefusedError, digest_sums
from backfill_assets.calendar.partitions import DAY, Window, from_ranges
from backfill_assets.dagster_ext.failures import is_engine_lost, raise_if_engine_failed
from backfill_assets.delta.commits import PublishError, summarize_error
from backfill_assets.delta.records import CommitRecord
from backfill_assets.publish.types import Candidate, CommitRaceError, ComputePlan, RunRequest
from backfill_assets.spark.frames import part_key, split_by_part
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.tables.arguments import declaration_location
from backfill_assets.tables.table import Table
from backfill_assets.tables.table_options import contains_floats

_log = logging.getLogger(__name__)
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
        f"{table.name} [{days}]: {problem}: {cause}{where}. Nothing was written for these days, "
        f"and they are as they were. {fix}, and launch these days again."
    )


#: Errors of Spark before it reads rows: it cannot analyze a query, or a call is wrong.
_QUERY_ERRORS = (AnalysisException, AttributeError, LookupError, TypeError, ValueError)


def is_failure_of_rows(failure: dg.Failure) -> bool:
    """Return whether Spark failed on rows of some days, so that other days may be computed."""
    cause = failure.__cause__
    return isinstance(cause, SPARK_ERRORS) and not isinstance(cause, _QUERY_ERRORS)


#: The column that marks rows of a day that was computed alone.
_ALONE_COLUMN = "_alone"


class DependentDaysError(RefusedError):
    """A day has other rows within a range than alone."""


#: So many different days with rows must have come out the same alone as within a range.
_ENOUGH_DAYS = 2


class Sample(NamedTuple):
    """Days of a table, or of one part of it, that are computed alone as well.

    Attributes:
        days: the days.
        among: the other parts with rows on one of them, which the function might have mixed in.
    """

    days: list[date]
    among: list[str]


def days_to_compute_alone(plans: Sequence[ComputePlan], frame: DataFrame) -> dict[str, Sample]:
    """Return, by part, the days to compute alone as well, to see that the run gives the same rows.

    None if this code version has shown that, see `has_shown_equal_days` and
    `has_shown_equal_parts`. Otherwise two days with rows, and one day without rows; of parts that
    are computed together, of the one with the fewest rows and the one with the most. Of a stateful
    table, only the first day can be computed alone.
    """
    plan = plans[0]
    days, table = plan.days, plan.table
    if (len(days) < 2 and len(plans) < 2) or _have_shown_it(plans):
        return {}
    if plan.snapshot:
        return {table.part: Sample([min(days)], [])}
    grouped = frame.groupBy(*part_key(table.part_column), F.col(table.partition).alias("_day"))
    counts = split_by_part(grouped.agg(F.count(F.lit(1)).alias("_rows")).collect())
    rows = {
        p.table.part: dict.fromkeys(days, 0)
        | {r["_day"]: r["_rows"] for r in counts.get(p.table.part, ()) if r["_day"] in days}
        for p in plans
    }
    filled = sorted((p for p in plans if any(rows[p.table.part].values())), key=_total(rows))
    samples = {}
    for sampled in [*filled[:1], *filled[1:][-1:]] or [plan]:
        part = sampled.table.part
        input_rows = {
            day: sum(source.count_input_rows(Window(day, day + DAY)) for source in sampled.sources)
            for day in days
        }
        sample = sample_days(rows[part], input_rows)
        others = {name for name in rows if name != part and any(rows[name][day] for day in sample)}
        samples[part] = Sample(sample, sorted(others) if any(rows[part].values()) else [])
    return samples


def _total(rows: Mapping[str, Mapping[date, int]]) -> Callable[[ComputePlan], int]:
    return lambda plan: sum(rows[plan.table.part].values())


def _have_shown_it(plans: Sequence[ComputePlan]) -> bool:
    """Return whether runs of the same code have shown that days, and parts, are not mixed.

    One part has shown it for all: they have the same function.
    """
    request, version = plans[0].request, plans[0].request.record["code_version"]
    if request.compares:
        return False
    records = [plan.ledger.records for plan in plans]
    if len(plans) > 1 and not any(has_shown_equal_parts(r, version) for r in records):
        return False
    return len(plans[0].days) < 2 or any(has_shown_equal_days(r, version) for r in records)


def has_shown_equal_parts(records: Sequence[CommitRecord], code_version: str) -> bool:
    """Return whether a day came out the same alone as among other parts that have rows."""
    return any(
        record.code_version == code_version and _is_computed(record) and record.details.among
        for record in records
    )


def has_shown_equal_days(records: Sequence[CommitRecord], code_version: str) -> bool:
    """Return whether enough days came out the same alone as within a range, by a code version.

    A range in which a single day has rows shows nothing: there was nothing to mix.
    """
    equal_days: set[date] = set()
    for record in reversed(records):
        if record.code_version != code_version or not _is_computed(record):
            continue
        filled_days = {day for day, published in record.days.items() if published.rows}
        if len(filled_days) > 1:
            equal_days |= filled_days.intersection(from_ranges(record.details.alone))
        if len(equal_days) >= _ENOUGH_DAYS:
            return True
    return False


def _is_computed(record: CommitRecord) -> bool:
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
        table.rows_of_part(table.conform_frame(frame))
        .where(F.col(table.partition).isin([*frames_alone]))
        .withColumn(_ALONE_COLUMN, F.lit(False))
    ]
    exact = T.StructType(
        [column for column in table.struct_type if not contains_floats(column.dataType)]
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


def sample_days(rows: Mapping[date, int], input_rows: Mapping[date, int]) -> list[date]:
    """Choose the days to compute alone: a day without rows, and two of those with the fewest rows.

    `rows` are those of each day within the range. The first day with rows is chosen last: a
    function that looks at the row before is right there. Of the days without rows, the one with the
    most `input_rows` is chosen: the range may have put its rows into another day.
    """
    filled = sorted(day for day in rows if rows[day])
    empty = sorted(rows.keys() - filled, key=lambda day: (-input_rows[day], day))
    fewest = sorted(filled, key=lambda day: (day == filled[0], rows[day], day))
    return [*empty[:1], *fewest[:_ENOUGH_DAYS]]


Key = TypeVar("Key")
Work = TypeVar("Work")


def compute_each(
    compute: Callable[[Key, Work], Iterator[Sequence[Candidate]]], work: Mapping[Key, Work]
) -> Iterator[Sequence[Candidate]]:
    """Yield the candidates of parts, one after the other; what is thrown into it reaches the part.

    Raises:
        Exception: the first failure of a part, after the candidates of the others: a part that
            cannot be computed or published holds back no other one. If another run was first, or
            the engine is lost, the step begins again at once.
    """
    failure: Exception | None = None
    for key, request in work.items():
        try:
            yield from compute(key, request)
        except (CommitRaceError, EngineError):
            raise
        except Exception as error:
            if is_engine_lost(error):
                raise
            failure = failure or error
    if failure is not None:
        raise failure


@contextmanager
def leave_to_each_part(tables: Mapping[str, Table], *, commits: bool = False) -> Iterator[None]:
    """End a block that does something for several parts together, if it fails.

    It is then done for each part by itself: so the others are published, and the error is that of
    the part. Not if the engine is lost, or, where the block commits, a commit failed.
    """
    try:
        yield
    except Exception as error:
        kinds = (EngineError, PublishError) if commits else EngineError
        if is_engine_lost(error) or isinstance(error, kinds):
            raise
        name = next(iter(tables.values())).asset_name
        _log.warning("%s: parts together failed, now each by itself: %s", name, error)


Planned = TypeVar("Planned")


def compute_together(
    tables: Mapping[str, Table],
    requests: Mapping[str, RunRequest],
    *,
    plan: Callable[[Mapping[str, RunRequest]], list[Planned]],
    group: Callable[[Planned], Hashable],
    compute_planned: Callable[[Sequence[Planned]], Iterator[Sequence[Candidate]]],
    compute_alone: Callable[[str, RunRequest], Iterator[Sequence[Candidate]]],
) -> Iterator[Sequence[Candidate]]:
    """Yield the days of requests by part: those of a group together, or if that fails, alone.

    `group` tells what parts have in common that are computed together. Of several groups, each is
    planned anew when its turn comes, as those before have taken their time.
    """

    def compute_group(
        key: Hashable, members: Mapping[str, RunRequest], parts: Sequence[Planned] = ()
    ) -> Iterator[Sequence[Candidate]]:
        if len(members) > 1:
            with leave_to_each_part(tables):
                parts = parts or plan(members)
            if parts and all(group(part) == key for part in parts):
                with leave_to_each_part(tables, commits=True):
                    yield from compute_planned(parts)
                    return
        yield from compute_each(compute_alone, members)

    parts: list[Planned] = []
    with leave_to_each_part(tables):
        parts = plan(requests)
    groups: dict[Hashable, dict[str, RunRequest]] = {}
    for name, part in zip(requests, parts, strict=False):
        groups.setdefault(group(part), {})[name] = requests[name]
    if len(groups) == 1:
        yield from compute_group(group(parts[0]), requests, parts)
    elif groups:
        yield from compute_each(compute_group, groups)
    else:
        yield from compute_each(compute_alone, requests)
