"""What a person is told where the rows of days cannot be computed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from backfill_assets.calendar.partitions import Window
from backfill_assets.dagster_ext.engine_failures import raise_if_engine_failed
from backfill_assets.delta.commits import gist
from backfill_assets.engine.spark import SPARK_ERRORS, EngineError
from backfill_assets.tables.arguments import place_in
from backfill_assets.tables.table import Table

#: The traceback of a Python worker, and how it ends.
_WORKER = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)


@contextmanager
def explained(table: Table, days: Window) -> Iterator[None]:
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
        raise failure(table, days, "its rows cannot be computed", error) from error


@contextmanager
def calling(table: Table, days: Window) -> Iterator[None]:
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
        raise failure(table, days, "its function failed", error) from error


def failure(table: Table, days: Window, what: str, error: Exception) -> dg.Failure:
    """The failure of a step: what failed, why, what state the table is in, what to do.

    Args:
        table: the table.
        days: of it that were to be computed.
        what: failed.
        error: the cause.
    """
    spark = isinstance(error, SPARK_ERRORS)
    why = gist(error).rstrip("; .") if spark else f"{type(error).__name__}: {error}"
    if spark and (said := _WORKER.findall(str(error))):
        why = f"{why} {said[-1]}"
    mend = "See to what it names"
    if table.kind == "derived":
        mend = "Mend the function, or the input rows that it cannot take"
    where = place_in([*traceback.walk_tb(error.__traceback__)][::-1])
    return dg.Failure(
        f"{table.name} [{days}]: {what}: {why}{where}. Nothing was written, and the table is as it "
        f"was. {mend}, and launch these days again."
    )
