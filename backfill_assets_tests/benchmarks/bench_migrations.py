"""The part of `make bench` about schema changes: one of metadata alone, and one that rewrites."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyspark.sql.types as T
from pandera.pyspark import Field

from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.migrate import migrate_table
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_jobs import time_work
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.changing_columns import BEFORE, load_log, make_table, make_writer
from backfill_assets_tests.helpers.pipeline import Pipeline, day
from backfill_assets_tests.helpers.publish_rows import publish_frame, window


def measure_migrations(engine: Engine, root: Path, days: int) -> None:
    """Seconds of a dropped column and of a widened one, of days of one row each.

    Args:
        engine: with a session.
        root: a folder for all of it.
        days: of the table.
    """
    print(f"\n{days:,} days x 1 row, whose columns change", flush=True)
    pipeline = Pipeline(engine, root)
    url = pipeline.io_manager.url(BEFORE)
    all_days = [day(n) for n in range(1, days + 1)]
    rows = [
        (date_, "a", n, Decimal(n), 0.5, f"note {n}") for n, date_ in enumerate(all_days, start=1)
    ]
    frame = engine.spark_session.createDataFrame(rows, BEFORE.struct_type)
    publish_frame(pipeline, frame, window(1, days), table=BEFORE, input_digest="this")
    files = set(load_log(url).file_uris())
    fewer = make_table(2, note=None)
    took = time_work("a column dropped", lambda: list(migrate_table(make_writer(pipeline, fewer))))
    print_result(f"a column dropped, {days:,} days", took, unit="s")
    assert set(load_log(url).file_uris()) == files, "no data file is touched"
    wider = make_table(3, note=None, orders=(T.LongType, Field(ge=1, description="Orders.")))
    version = load_log(url).version()
    took = time_work("a column widened", lambda: list(migrate_table(make_writer(pipeline, wider))))
    print_result(f"a column widened, {days:,} days", took, unit="s")
    assert load_log(url).version() == version + 2, "the change, and the version of the schema"
    orders = load_log(url).to_pyarrow_table()["orders"].to_pylist()
    assert sorted(orders) == list(range(1, days + 1))
    assert len(read_ledger(url, wider).published_days) == days
