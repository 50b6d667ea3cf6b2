"""69,659 real purchases over 546 days: every one counted, by day, by customer, to the cent."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date
from decimal import Decimal

import duckdb
import pytest

from backfill_assets.calendar.partitions import DAY
from backfill_assets.orders.tables import TABLES
from backfill_assets_guide.sample.landings import write_cdnow_landing
from backfill_assets_tests.helpers.paths import CDNOW
from backfill_assets_tests.helpers.pipeline import EVERYTHING, Pipeline

FIRST, LAST = date(1997, 1, 1), date(1998, 6, 30)


def files_by_day(pipeline: Pipeline, name: str) -> dict[str, set[str]]:
    """The data files of each day: a day that is not rewritten keeps its files."""
    actions = pipeline.log(name).get_add_actions(flatten=True)
    files: dict[str, set[str]] = defaultdict(set)
    column = f"partition.{TABLES[name].partition}"
    for path, day in zip(actions["path"].to_pylist(), actions[column].to_pylist(), strict=True):
        files[str(day)].add(path)
    return files


@pytest.mark.slow
@pytest.mark.skipif(not CDNOW.exists(), reason="the CDNOW file is not beside the project")
def test_the_whole_history_in_one_run_and_three_late_lines(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, land=False, start=FIRST, end=LAST + 2 * DAY)
    assert write_cdnow_landing(CDNOW, pipeline.landing) == 69_659
    pipeline.run(FIRST, LAST, EVERYTHING)
    # Read by engines that are not Spark.
    staged = pipeline.log("stg_orders").to_pyarrow_table()
    assert staged.num_rows == 69_659
    for name in ("fact_daily_orders", "fact_daily_orders_current"):
        fact = pipeline.log(name).to_pyarrow_table()
        totals = duckdb.from_arrow(fact).aggregate(
            "count(*), count(DISTINCT run_date), count(DISTINCT customer_id), "
            "sum(orders), sum(revenue)"
        )
        assert totals.fetchall() == [(67_591, 546, 23_570, 69_659, Decimal("2500315.63"))]
    assert len(pipeline.materialized("fact_daily_orders")) == 546
    before = pipeline.digests()
    pipeline.run(date(1997, 2, 20), date(1997, 3, 1))
    assert pipeline.digests() == before

    # On the day after, three lines tell of three of the 546 days, and one of its own.
    arrival = LAST + DAY
    event_days = [date(1998, 6, 25), date(1998, 6, 27), date(1998, 6, 29), arrival]
    folder = pipeline.landing / "orders" / f"arrival_date={arrival}"
    folder.mkdir()
    lines = [
        {"order_id": f"late-{n}", "customer_id": "1", "amount": "1.00"}
        | {"order_ts": f"{d}T12:00:00Z", "ingestion_ts": f"{arrival}T12:00:00Z"}
        for n, d in enumerate(event_days)
    ]
    (folder / "late.jsonl").write_text("\n".join(map(json.dumps, lines)))
    names = ("stg_orders", "fact_daily_orders")
    files = {name: files_by_day(pipeline, name) for name in names}
    pipeline.night(arrival + DAY)
    for name in names:
        after = files_by_day(pipeline, name)
        assert {d for d in after if after[d] != files[name].get(d)} == set(map(str, event_days))
    assert not pipeline.night(arrival + DAY), "all is done, and nothing is done twice"
