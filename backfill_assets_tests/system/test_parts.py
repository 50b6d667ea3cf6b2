"""Tables with a second dimension: a region is loaded, judged, held back and undone apart."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, corrections_table, current_table, table
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.publish import publication
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_guide.examples import regions as example
from backfill_assets_tests.helpers.pipeline import Pipeline, day, run_undo
from backfill_assets_tests.helpers.region_lines import REGIONS, land, line

OF_REGIONS = ("region_orders", "customer_spend")
EVERYTHING = (
    *("raw_orders", "raw_orders_rejected", "stg_orders", "late_orders", "orders_lateness"),
    *OF_REGIONS,
)
#: What makes the orders of a region; no test needs the others only to have them.
ORDERS = ("raw_orders", "raw_orders_rejected", "stg_orders", "region_orders")
#: Days after the event day on which a line still counts.
WINDOW = 2
CURRENT = current_table(example.region_orders)
CORRECTIONS = corrections_table(example.region_orders, CURRENT)


@table(example.RegionOrders, partition=("run_date", "region"), key=[], totals=["orders"])
def mixing_orders(orders: Annotated[DataFrame, Reads(example.ORDERS.staged)]) -> DataFrame:
    """Right for one region; of several, it has the first one only."""
    return orders.groupBy(F.col("for_day").alias("run_date")).agg(
        F.first("region").alias("region"),
        F.count("*").alias("orders"),
        F.sum("amount").cast("decimal(28,2)").alias("revenue"),
    )


KNOWN = [example.ORDERS, example.region_orders, CURRENT, CORRECTIONS, mixing_orders]


def make_pipeline(
    engine: Engine, root: Path, tables: str = "backfill_assets_guide.examples.regions:TABLES"
) -> Pipeline:
    return Pipeline(engine, root, tables=tables)


@pytest.fixture
def regions(engine, spark, tmp_path: Path) -> Pipeline:
    return make_pipeline(engine, tmp_path)


def run_regions(
    pipeline: Pipeline,
    first: int,
    last: int,
    parts: tuple[str, str] = ("eu", "apac"),
    assets: Iterable[str] = EVERYTHING,
    **more: Any,
) -> Any:
    """Materialize days of adjacent regions in one run."""
    keys = {"start": f"{day(first)}|{parts[0]}", "end": f"{day(last)}|{parts[1]}"}
    tags = {f"dagster/asset_partition_range_{end}": key for end, key in keys.items()}
    return pipeline.run(first, last, [*assets], tags=tags | more.pop("tags", {}), **more)


def region_totals(pipeline: Pipeline) -> dict[tuple[str, date], tuple[int, Decimal]]:
    rows = pipeline.rows("region_orders")
    return {(r["region"], r["run_date"]): (r["orders"], r["revenue"]) for r in rows}


class Model:
    """What the tables must have, from all lines that were landed, in plain Python."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, date, dict]] = []

    def land(self, pipeline: Pipeline, n: int, region: str, lines: list[dict], name: str) -> None:
        land(pipeline, n, region, lines, name)
        self.lines += [(region, day(n), entry) for entry in lines]

    def regions_landed(self, arrival: date) -> set[str]:
        """The regions of which a folder has come."""
        return {region for region, landed, _ in self.lines if landed == arrival}

    def counting(self) -> list[tuple[str, date, dict]]:
        """By region and event day, the greatest version of each order that came in time."""
        best: dict[tuple[str, str], tuple[str, date, dict]] = {}
        for region, arrival, entry in self.lines:
            event = datetime.fromisoformat(entry["ordered_at"]).date()
            key = region, entry["order_id"]
            in_time = (arrival - event).days <= WINDOW
            if in_time and (key not in best or best[key][2]["updated_at"] < entry["updated_at"]):
                best[key] = region, event, entry
        return [*best.values()]

    def totals(self) -> dict[tuple[str, date], tuple[int, Decimal]]:
        totals: dict[tuple[str, date], tuple[int, Decimal]] = {}
        for region, event, entry in self.counting():
            n, amount = totals.get((region, event), (0, Decimal(0)))
            totals[region, event] = (n + 1, amount + Decimal(entry["amount"]))
        return totals

    def spend(self, last: date) -> dict[tuple[str, date, str], Decimal]:
        """By region, day and customer, what was spent so far; up to a last day."""
        spent: dict[tuple[str, date, str], Decimal] = defaultdict(Decimal)
        for region, event, entry in self.counting():
            for later in Window(event, last + DAY):
                spent[region, later, entry["customer"]] += Decimal(entry["amount"])
        return dict(spent)


def assert_as_model(pipeline: Pipeline, model: Model, last: date) -> None:
    """Every row of the tables is that of the model; `last` is the last day that is due.

    The world has the days of which the folders of all regions have come.
    """
    totals = model.totals()
    assert region_totals(pipeline) == totals
    spend = {
        (r["region"], r["run_date"], r["customer"]): r["spent"]
        for r in pipeline.rows("customer_spend")
    }
    assert spend == model.spend(last)
    world: dict[date, tuple[int, Decimal]] = {}
    complete = {d for d in Window(day(1), last + DAY) if len(model.regions_landed(d)) == 3}
    for (_, run_date), (n, amount) in totals.items():
        if run_date not in complete:
            continue
        orders, revenue = world.get(run_date, (0, Decimal(0)))
        world[run_date] = (orders + n, revenue + amount)
    rows = pipeline.rows("world_orders") if complete else []
    assert {r["run_date"]: (r["orders"], r["revenue"]) for r in rows} == world


def commits_by_day(pipeline: Pipeline, name: str) -> Counter[date]:
    """How often the days of a table were written."""
    records = read_ledgers(pipeline.deployment)[name].records
    return Counter(d for record in records for d in record.rewritten_days & record.days.keys())


def read_last_observation(pipeline: Pipeline) -> str:
    """What the last observation of the world says."""
    key = pipeline.deployment.asset_key("world_orders")
    observations = pipeline.instance.fetch_observations(key, limit=1).records
    return str(observations[0].asset_observation.description) if observations else ""


def live_nights(pipeline: Pipeline, nights: int, late_by: int, seed: int) -> Model:
    """Nights with corrections and late lines, and with one region that is days late."""
    random, model = Random(seed), Model()
    waiting: dict[int, list[dict]] = {}
    for n in range(1, nights + 1):
        for region in REGIONS:
            lines = [
                line(f"o{n}-{i}", n, f"{random.randint(1, 99)}.50", customer=f"c{i % 2}")
                for i in range(random.randint(1, 3))
            ]
            if region == "apac":
                waiting[n] = lines
                continue
            if region == "us" and n > 1 and random.random() < 0.5:
                back = random.randint(1, min(4, n - 1))
                lines.append(line(f"o{n - back}-0", n - back, "7.00", version=1 + n % 8))
            model.land(pipeline, n, region, lines, "a.jsonl")
        if n > late_by:
            model.land(pipeline, n - late_by, "apac", waiting.pop(n - late_by), "a.jsonl")
        pipeline.night(day(n + 1))
        assert_as_model(pipeline, model, day(n))
    return model


def test_a_region_that_is_late_holds_back_only_itself(regions):
    """Rows are those of plain Python, night by night; the others are published and become final."""
    live_nights(regions, 3, late_by=1, seed=4)
    ledgers = read_ledgers(regions.deployment)
    days = [day(n) for n in range(1, 4)]
    assert commits_by_day(regions, "region_orders/eu") == dict.fromkeys(days, 1)
    assert commits_by_day(regions, "region_orders/apac")[day(1)] == 2, "empty, then with its lines"
    assert {*commits_by_day(regions, "world_orders")} == {day(1), day(2)}, "of each, once all came"
    regions.run(3, 3, ["world_orders"])
    assert read_last_observation(regions).endswith(
        "it waits for the folder of raw_orders/apac[2024-01-03]"
    )
    final = Snapshot.from_deployment(regions.deployment, ledgers, day(4)).final_by_table
    assert day(1) in final["stg_orders/eu"]
    assert not final["stg_orders/apac"]
    metadata = ledgers["region_orders/eu"].metadata
    assert metadata is not None
    assert metadata.partitioned_by == ("run_date", "region")
    assert regions.materialized("region_orders") == {f"{d}|{r}" for d in days for r in REGIONS}


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("seed", range(int(os.environ.get("BACKFILL_TEST_HISTORIES", "1"))))
def test_thirty_nights_of_three_regions(engine, spark, tmp_path, seed):
    live_nights(make_pipeline(engine, tmp_path), 30, late_by=3, seed=seed)


def test_a_poisoned_cell_is_held_back_alone_and_a_part_is_undone_alone(regions):
    """The other regions publish, the world waits and says for which; an undo leaves the others."""
    for n in (1, 2):
        for region in REGIONS:
            land(regions, n, region, [line(f"o{n}", n, "10.00"), line(f"p{n}", n, "5.00")])
    (regions.folder(2) / "region=us" / "_control.json").write_text('{"rows": 3, "amount": "99"}')
    run_regions(regions, 1, 2, assets=ORDERS, fails=True)
    two = (2, Decimal("15.00"))
    published = {(r, day(n)): two for r in REGIONS for n in (1, 2) if (r, n) != ("us", 2)}
    assert region_totals(regions) == published
    result = regions.run(1, 2, ["world_orders"], fails=True)
    assert "region_orders/us[2024-01-02] has never been published" in regions.failure(result)
    assert {r["run_date"] for r in regions.rows("world_orders")} == {day(1)}

    (regions.folder(2) / "region=us" / "_control.json").unlink()
    run_regions(regions, 2, 2, ("us", "us"), ORDERS)
    regions.run(2, 2, ["world_orders"])
    for region in REGIONS:
        land(regions, 1, region, [line("o1", 1, "70.00", version=1)], "b.jsonl")
    wrong = run_regions(regions, 1, 1, assets=ORDERS)
    regions.run(1, 1, ["world_orders"])
    files = file_names(regions, "region_orders", "us")
    run_undo(regions, wrong.run_id, "/eu")
    totals = region_totals(regions)
    assert totals["eu", day(1)] == two
    assert totals["us", day(1)] == totals["apac", day(1)] == (2, Decimal("75.00"))
    assert file_names(regions, "region_orders", "us") == files
    # No version of the world has the old rows of one region and the new ones of another.
    ledgers = read_ledgers(regions.deployment)
    snapshot = Snapshot.from_deployment(regions.deployment, ledgers, day(4))
    assert {*find_stale_days(snapshot).all_days("world_orders")} == {day(1)}
    regions.run(1, 1, ["world_orders"])
    world = {r["run_date"]: r["revenue"] for r in regions.rows("world_orders")}
    assert world == {day(1): Decimal("165.00"), day(2): Decimal("45.00")}


def test_what_is_known_now_of_a_part(engine, spark, tmp_path, monkeypatch):
    """A line that is too late for its day corrects the day of its own region, and no other.

    Parts are computed and written together, unless a function mixes them.
    """
    measured: dict[str, list[int]] = defaultdict(list)
    measure = publication.measure_frame

    def measure_recorded(frame: Any, tables: Any, *arguments: Any) -> Any:
        measured[tables[0].asset_name].append(len(tables))
        return measure(frame, tables, *arguments)

    monkeypatch.setattr(publication, "measure_frame", measure_recorded)
    pipeline = Pipeline(engine, tmp_path, tables=f"{__name__}:KNOWN", check_independence=True)
    for region in REGIONS:
        for n in range(1, 5):
            land(pipeline, n, region, [line(f"o{n}", n, "10.00")])
    land(pipeline, 4, "eu", [line("late", 1, "5.00")], "late.jsonl")
    tables = (*ORDERS, CURRENT.name, CORRECTIONS.name)
    run_regions(pipeline, 1, 4, assets=(*tables, mixing_orders.name))
    joined = {name: [3] for name in tables if name != CURRENT.name}
    alone = {CURRENT.name: [1, 1, 1], mixing_orders.name: [1, 1, 1]}
    assert measured == joined | alone
    # What was computed part by part shows nothing of parts together.
    run_regions(pipeline, 2, 3, assets=[mixing_orders.name], tags={REWRITE_TAG: "true"})
    assert measured[mixing_orders.name] == [1] * 6
    mixed = {(r["region"], r["run_date"]): r["orders"] for r in pipeline.rows(mixing_orders.name)}
    assert mixed == {cell: orders for cell, (orders, _) in region_totals(pipeline).items()}
    ledgers = read_ledgers(pipeline.deployment)
    among = {r: ledgers[f"region_orders/{r}"].records[-1].details.among for r in REGIONS}
    assert among == {"eu": ["apac", "us"], "us": [], "apac": ["eu", "us"]}
    assert region_totals(pipeline)["eu", day(1)] == (1, Decimal("10.00"))
    current = {
        (r["region"], r["run_date"]): (r["orders"], r["revenue"])
        for r in pipeline.rows(CURRENT.name)
    }
    assert current == region_totals(pipeline) | {("eu", day(1)): (2, Decimal("15.00"))}
    (row,) = pipeline.rows(CORRECTIONS.name)
    assert row == {
        "run_date": day(1),
        "region": "eu",
        "orders": 1,
        "revenue": Decimal("5.00"),
    }


def file_names(pipeline: Pipeline, table: str, region: str) -> set[str]:
    actions = pipeline.log(table).get_add_actions(flatten=True)
    pairs = zip(
        actions.column("partition.region").to_pylist(),
        actions.column("path").to_pylist(),
        strict=True,
    )
    return {path for part, path in pairs if part == region}
