"""The rows of a frame that a table forbids: how many a day has, and the keys of a few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.tables.table import Table

#: Of so many offending rows the keys are shown.
SHOWN_KEYS = 3


@dataclass(frozen=True)
class Violation:
    """What a check found in a day.

    Attributes:
        rows: the offending rows.
        keys: of a few of them, each as one text; the same for the same rows.
    """

    rows: int
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = ", ..." if self.rows > len(self.keys) > 0 else ""
        shown = f": {', '.join(self.keys)}{more}" if self.keys else ""
        return f"{self.rows} row(s) that may not be there{shown}"


def find_violations(
    frame: DataFrame, table: Table
) -> Mapping[date | None, Mapping[str, Violation]]:
    """By day and check, the rows that the checks of a table forbid; one Spark job for all checks.

    Args:
        frame: the rows, with the columns of the table.
        table: says what it forbids.
    """
    if not table.forbidden:
        return {}
    parts = [F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in table.key]
    key = F.concat(F.lit("("), F.concat_ws(", ", *parts), F.lit(")")) if parts else F.lit(None)
    forbidden_rows = reduce(
        DataFrame.unionAll,
        [
            check.find(frame).select(
                F.lit(check.name).alias("check"),
                F.col(table.partition).alias("day"),
                key.cast("string").alias("key"),
            )
            for check in table.forbidden
        ],
    )
    # Of many offending rows no list is made: it would be as long as they are.
    group_columns = ("check", "day")
    position = F.row_number().over(SqlWindow.partitionBy(*group_columns).orderBy("key"))
    by_check = (
        forbidden_rows.withColumn("place", position)
        .groupBy(*group_columns)
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.sort_array(F.collect_list(F.when(F.col("place") <= SHOWN_KEYS, F.col("key")))).alias(
                "keys"
            ),
        )
    )
    days: dict[date | None, dict[str, Violation]] = defaultdict(dict)
    for row in by_check.collect():
        days[row["day"]][row["check"]] = Violation(row["rows"], tuple(row["keys"]))
    return days
