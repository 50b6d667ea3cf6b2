"""The conditions in SQL that a model has, held against its columns before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.engine.spark import first_line
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.counts import counts_of
from backfill_assets.tables.table import Table


def check_conditions(frame: DataFrame, table: Table, rules: Mapping[str, str]) -> None:
    """See that Spark takes the rules of a table, and the kinds of rows that it counts.

    Nothing is computed: Spark looks at the columns and their types alone.

    Args:
        frame: with the columns of the table.
        table: the table.
        rules: by name, the conditions that must be true for each row.

    Raises:
        DeclarationError: conditions that are none, by name, with Spark's reason.
    """
    conditions = {
        **{f"the rule {name}": rule for name, rule in rules.items()},
        **{f"the count {kind!r}": condition for kind, condition in counts_of(table).items()},
    }
    if not conditions or not _spark_problem(frame, *conditions.values()):
        return
    raise DeclarationError(
        f"{table.name}: {'; '.join(_wrong_conditions(frame, conditions))}. Nothing was computed, and the "
        "table is as it was. Mend the condition in the model's Config.metadata, or, where the "
        "table has it as a Delta constraint of its own, drop that (ALTER TABLE ... DROP "
        "CONSTRAINT)."
    )


def _wrong_conditions(frame: DataFrame, conditions: Mapping[str, str]) -> Iterator[str]:
    for name, condition in conditions.items():
        if problem := _spark_problem(frame, condition):
            yield f"{name} ({condition}) is no condition on its columns: {problem}"


def _spark_problem(frame: DataFrame, *conditions: str) -> str:
    """Why Spark does not take conditions, in one line; empty if it does."""
    try:
        # As it is counted: what is no truth value is refused as well.
        _ = frame.agg(*(F.count_if(F.expr(condition)) for condition in conditions)).schema
    except AnalysisException as error:
        return first_line(error)
    return ""
