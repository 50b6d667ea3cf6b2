"""69,659 real purchases over 546 days: every one counted, by day, by customer, to the cent."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from backfill_assets.sample.cdnow import write_landing
from backfill_assets_tests.pipeline import Pipeline

MASTER = Path(__file__).parents[2] / "shared/data/cdnow/CDNOW_master.txt"
FIRST, LAST = date(1997, 1, 1), date(1998, 6, 30)


@pytest.mark.skipif(not MASTER.exists(), reason="the CDNOW file is not beside the project")
def test_the_whole_history_in_one_run_and_again_in_part(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, land=False, start=FIRST, end=date(1998, 7, 1))
    assert write_landing(MASTER, pipeline.landing) == 69_659
    pipeline.run(FIRST, LAST)
    # Read by engines that are not Spark.
    staged = pipeline.log("stg_orders").to_pyarrow_table()
    fact = pipeline.log("fact_daily_orders").to_pyarrow_table()
    assert staged.num_rows == 69_659
    found = duckdb.from_arrow(fact).aggregate(
        "count(*), count(DISTINCT run_date), count(DISTINCT customer_id), sum(orders), sum(revenue)"
    )
    assert found.fetchall() == [(67_591, 546, 23_570, 69_659, Decimal("2500315.63"))]
    assert len(pipeline.materialized("fact_daily_orders")) == 546
    before = pipeline.digests()
    pipeline.run(date(1997, 2, 20), date(1997, 3, 1))
    assert pipeline.digests() == before
