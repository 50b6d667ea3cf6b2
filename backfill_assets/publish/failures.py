"""What a person is told where the rows of days cannot be computed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from backfill_assets.calendar.partitions import Window
from backfill_assets.dagster_ext.engine_failures import raise_if_engine_failed
from backfill_assets.delta.commits import summarize_error
from backfill_assets.engine.spark import SPARK_ERRORS, EngineError
from backfill_assets.tables.arguments import declaration_location
from backfill_assets.tables.table import Table

#: The traceback of a Python worker, and how it ends.
_WORKER_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE
)


@contextmanager
def explain_spark_errors(table: Table, days: Window) -> Iterator[None]:
    """Tell of what Spark cannot compute in a sentence: Spark's own has a plan and a stack.

    Args:
        table: the table.
        days: of it that are computed.

    Raises:
        dagster.Failure: the rows cannot be computed.
        Exception: the engine failed, and not the rows.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        raise_if_engine_failed(error)
        raise step_failure(table, days, "its rows cannot be computed", error) from error


@contextmanager
def explain_function_errors(table: Table, days: Window) -> Iterator[None]:
    """Tell of what the function of a table raises in a sentence, with its file and line.

    Args:
        table: the table.
        days: of it that it is called for.

    Raises:
        dagster.Failure: the function raised something.
        Exception: the engine failed, and not the function.
    """
    try:
        yield
    except (dg.Failure, EngineError):
        raise
    except Exception as error:
        raise_if_engine_failed(error)
        raise step_failure(table, days, "its function failed", error) from error


def step_failure(table: Table, days: Window, problem: str, error: Exception) -> dg.Failure:
    """The failure of a step: what failed, why, what state the table is in, what to do.

    Args:
        table: the table.
        days: of it that were to be computed.
        problem: failed.
        error: the cause.
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
        f"{table.name} [{days}]: {problem}: {cause}{where}. Nothing was written, and the table is as it "
        f"was. {fix}, and launch these days again."
    )
