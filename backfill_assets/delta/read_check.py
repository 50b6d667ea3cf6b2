"""Check of published days: read by delta-rs and Arrow, and compared with their records."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from backfill_assets.delta.commits import summarize_error
from backfill_assets.delta.delta_rs import delta_log
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.records import PublishedDay
from backfill_assets.deployment import Deployment
from backfill_assets.spark.filesystems import folder_filesystem
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class ReadCheck:
    """The result of reading a table with another engine than Spark; no version without a table."""

    table: str
    version: int | None
    problems: Sequence[str] = ()

    def __str__(self) -> str:
        head = f"{self.table}: read by another engine"
        if self.version is not None:
            head += f" at version {self.version}"
        return "\n  ".join([f"{head}: {'NOT ' * bool(self.problems)}as published", *self.problems])


def check_read(deployment: Deployment, table: Table, days: Iterable[date]) -> ReadCheck:
    """Read days as a consumer may: by delta-rs and Arrow, without a JVM.

    All columns of each day are read at the published version. Rows, nulls and totals (money as
    exact decimals) must equal the record of the day. Only the files of these days are opened; days
    without a record are left out.
    """
    url = deployment.table_url(table.name)
    try:
        ledger = read_ledger(url, table)
        if ledger.version is None:
            return ReadCheck(table.name, None, [f"there is no table at {url}"])
        log = delta_log(url, ledger.version).load()
        stored_columns = {field.name for field in log.schema().fields}
    except (DeltaError, OSError, ValueError) as error:
        return ReadCheck(table.name, None, [f"it cannot be opened: {summarize_error(error)}"])
    absent = table.columns.keys() - stored_columns
    if missing := sorted(absent - table.null_bounds.keys()):
        problems = [f"column {name} is missing" for name in missing]
    else:
        records = {day: ledger.latest[day] for day in days if day in ledger.latest}
        problems = [
            f"{table.name}[{day}]: {problem}"
            for day, record in records.items()
            for problem in _read_differences(
                url,
                log,
                table,
                day,
                record.days[day],
                absent | ledger.columns_changed_since(record),
            )
        ]
    return ReadCheck(table.name, ledger.version, problems)


def _read_differences(
    url: str,
    log: DeltaTable,
    table: Table,
    day: date,
    published: PublishedDay,
    skipped_columns: Collection[str],
) -> Iterator[str]:
    """The differences between the rows of a day and its record, without `skipped_columns`."""
    columns = [name for name in table.columns if name not in skipped_columns]
    try:
        files = log.to_pyarrow_dataset(
            filesystem=folder_filesystem(url),
            file_pruning_predicate=[
                (table.partition, "in", [day.isoformat()]),
                *((column, "=", part) for column, part in table.part_values.items()),
            ],
        )
        rows = files.to_table(columns=columns)
    except (DeltaError, OSError, pa.ArrowException) as error:
        yield f"cannot be read: {summarize_error(error)}"
        return
    if rows.num_rows != published.rows:
        yield f"{rows.num_rows} rows where {published.rows} were published"
    for name in columns:
        nulls, were = rows[name].null_count, published.nulls.get(name, 0)
        if nulls != were:
            yield f"{nulls} null(s) in {name} where {were} were published"
    for name, total in published.totals.items():
        if name not in columns:
            continue
        # Arrow's sum of 64-bit numbers begins again at the least of them.
        wide = pa.decimal256(76, getattr(rows[name].type, "scale", 0))
        actual = pc.sum(rows[name].cast(wide)).as_py() or 0
        if Decimal(actual) != Decimal(total):
            yield f"{name} adds up to {actual} where {total} was published"
