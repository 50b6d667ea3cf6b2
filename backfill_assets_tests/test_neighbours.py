"""The examples of neighbours that are not daily, on the sample that is written for them."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from datetime import date
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pytest
from deltalake import DeltaTable

from backfill_assets.calendar.partitions import Window
from backfill_assets.definitions import build_defs
from backfill_assets.landing.files import probe_files, read_lines
from backfill_assets.landing.listing import HOUR_FOLDERS, list_landing
from backfill_assets.settings import load_settings
from backfill_assets_guide.examples.customers.markets import revenue_by_market
from backfill_assets_guide.examples.customers.page_views import PAGE_VIEWS, page_views_daily
from backfill_assets_guide.examples.customers.sample import main
from backfill_assets_tests.helpers.pipeline import START, day

TABLES = "backfill_assets_guide.examples.customers.tables:TABLES"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Landing and warehouse of the sample, as its command writes them."""
    root = tmp_path_factory.mktemp("sample")
    with pytest.MonkeyPatch.context() as patch:
        days = ("--start", str(START), "--days", "4", "--orders-per-day", "3")
        patch.setattr(sys, "argv", ["sample", str(root / "landing"), str(root / "w"), *days])
        for _ in range(2):  # again, over what is there
            main()
    return root


def test_page_views_land_by_the_hour_and_count_by_day(spark, sample: Path) -> None:
    listing = list_landing(str(sample / "landing"), PAGE_VIEWS)
    assert [*listing.folders] == [day(n) for n in range(1, 5)]
    assert all(not folder.unknown_files for folder in listing.folders.values())
    missing = {
        landing_day: {*HOUR_FOLDERS} - folder.hours
        for landing_day, folder in listing.folders.items()
    }
    assert {of: hours for of, hours in missing.items() if hours} == {day(2): {"hour=03"}}
    listed = probe_files(spark, str(sample / "landing"), PAGE_VIEWS, Window(day(1), day(5)))
    (lines,) = read_lines(spark, listed, PAGE_VIEWS)
    views = lines.selectExpr(
        "arrival_date AS for_day", "customer_id", "CAST(viewed_at AS TIMESTAMP) AS viewed_at"
    )
    rows = page_views_daily.conform_frame(page_views_daily(views)).collect()
    expected: Counter[tuple[date, str]] = Counter()
    within: dict[tuple[date, str], set[int]] = defaultdict(set)
    for row in views.collect():
        of = row["for_day"], row["customer_id"] or "unknown"
        expected[of] += 1
        within[of].add(row["viewed_at"].hour)
        assert row["viewed_at"].date() == row["for_day"]
    assert {(r["run_date"], r["customer_id"]): r["views"] for r in rows} == expected
    assert {(r["run_date"], r["customer_id"]): {*range(r["hours"])} for r in rows} == {
        of: {*range(len(hours_of))} for of, hours_of in within.items()
    }


def test_revenue_by_market(spark, sample: Path) -> None:
    countries = DeltaTable(str(sample / "w" / "countries")).to_pyarrow_table().to_pylist()
    orders = [(day(1), "DE", "1.00"), (day(1), "FR", "2.00"), (day(1), None, "4.00")]
    orders += [(day(2), "JP", "8.00"), (day(2), "XX", "16.00")]
    frame = spark.createDataFrame(orders, "for_day DATE, country STRING, amount STRING")
    frame = frame.withColumn("amount", frame["amount"].cast("decimal(18,2)"))
    revenue = revenue_by_market(frame, spark.createDataFrame(countries))
    assert {
        (r["run_date"], r["market"]): (r["orders"], r["revenue"])
        for r in revenue_by_market.conform_frame(revenue).collect()
    } == {
        (day(1), "Europe"): (2, Decimal("3.00")),
        (day(1), "unknown"): (1, Decimal("4.00")),
        (day(2), "Asia"): (1, Decimal("8.00")),
        (day(2), "unknown"): (1, Decimal("16.00")),
    }


def test_the_partitions_of_each_kind_in_dagster(tmp_path: Path) -> None:
    settings = load_settings(
        landing=str(tmp_path), warehouse=str(tmp_path), start=START, end=day(22), tables=TABLES
    )
    graph = build_defs(settings).get_repository_def().asset_graph
    kinds = {
        name: type(graph.get(dg.AssetKey(name)).partitions_def)
        for name in ("raw_page_views", "page_views_daily", "revenue_by_market", "orders_weekly")
    }
    assert kinds.pop("orders_weekly") is dg.WeeklyPartitionsDefinition
    assert {*kinds.values()} == {dg.DailyPartitionsDefinition}
    static = graph.get(dg.AssetKey("countries"))
    assert static.partitions_def is None
    assert not static.is_materializable
