"""The engine: a server that answers and computes what the settings say, or one started here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_assets.doctor.examination import CheckResult, ok
from backfill_assets.engine.sharing import is_shared
from backfill_assets.engine.spark import Engine
from backfill_assets.settings import Settings


def check_engine(settings: Settings, *, start: bool) -> Iterator[CheckResult]:
    """Whether there is an engine, and the right one.

    Args:
        settings: the deployment's settings.
        start: also start an embedded one, and write a small table with it.

    Raises:
        EngineError: there is none, or another one than the settings need.
    """
    if not settings.spark_remote and not start:
        yield ok("embedded: --engine starts one and writes a small table with it")
        return
    # A server that has other settings than it must is refused here.
    spark = Engine.from_settings(settings).spark_session
    try:
        if spark.range(3).count() != 3:
            raise ValueError("the engine cannot count to 3")
        if not settings.spark_remote:
            _write_table(spark)
    finally:
        if not is_shared(settings.spark_remote or ""):
            spark.stop()
    yield ok(f"Spark {spark.version} answers, with the settings that it must have")


def _write_table(spark: SparkSession) -> None:
    """Write a table and read it: with jars that do not fit, that fails."""
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as folder:
        table = str(Path(folder, "table"))
        spark.range(3).write.format("delta").save(table)
        if spark.read.format("delta").load(table).count() != 3:
            raise ValueError("the engine does not read what it wrote")
