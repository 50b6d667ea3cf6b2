"""A table that is made of one without days, which others keep."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets import current_table
from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.delta_rs import replace_rows
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets.staleness.stale import StaleDays, find_stale_days
from backfill_assets_tests.country_tables import country_spend
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_undo,
)

SPEND = country_spend
NOW = current_table(SPEND)
TABLES = [*ORDERS, SPEND, NOW]
BOTH = (SPEND.name, NOW.name)
#: Days 1 to 4 are final on the morning of day 7, days 5 and 6 are open.
OPEN = {5, 6}
SIX = f"{day(1)}...{day(6)}"


class Customers:
    """The table of customers, as somebody else keeps it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.url = str(pipeline.warehouse / "customers")

    def write(self, mode: str = "overwrite", **countries: str) -> None:
        rows = pa.table({"customer_id": [*countries], "country": [*countries.values()]})
        if mode == "overwrite":
            replace_rows(self.url, rows, ["customer_id"])
        else:
            write_deltalake(self.url, rows, mode=mode)


def make_pipeline(engine, root: Path) -> Pipeline:
    """On the morning of day 7."""
    place = "backfill_assets_tests.system.test_unpartitioned:TABLES"
    return Pipeline(
        engine, root, tables=place, window_days=2, today=day(7), check_independence=False
    )


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Path:
    """Six days that were made with the customers as they were at first, to be copied."""
    pipeline = make_pipeline(engine, tmp_path_factory.mktemp("loaded"))
    for n in range(1, 7):
        pipeline.land(n, [order(f"o{n}-{c}", n, f"{n}.50", c) for c in ("c1", "c2")])
    Customers(pipeline).write(c1="FR")
    pipeline.run(1, 6, ("raw_orders", STAGED.name, *BOTH))
    return pipeline.root


@pytest.fixture
def pipeline(engine, loaded, tmp_path):
    copy_loaded(loaded, tmp_path)
    return make_pipeline(engine, tmp_path)


@pytest.fixture
def customers(pipeline):
    return Customers(pipeline)


def expected_spend(pipeline: Pipeline, **countries: str) -> dict[tuple[str, str], Decimal]:
    totals: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in pipeline.rows(STAGED.name):
        totals[str(row["event_date"]), countries.get(row["customer_id"], "unknown")] += row[
            "amount"
        ]
    return dict(totals)


def published_spend(pipeline: Pipeline, name: str = SPEND.name) -> dict[tuple[str, str], Decimal]:
    rows = pipeline.rows(name)
    return {(str(row["run_date"]), row["country"]): row["spend"] for row in rows}


def find_backlog(pipeline: Pipeline) -> StaleDays:
    ledgers = read_ledgers(pipeline.deployment)
    return find_stale_days(
        snapshot_ledgers(ledgers, Policy.from_settings(pipeline.settings), pipeline.now.date())
    )


def spend_on_days(
    totals: dict[tuple[str, str], Decimal], *numbers: int
) -> dict[tuple[str, str], Decimal]:
    day_keys = {str(day(n)) for n in numbers}
    return {key: spend for key, spend in totals.items() if key[0] in day_keys}


def test_other_rows_make_open_days_due_and_final_ones_wait_for_a_person(pipeline, customers):
    first = expected_spend(pipeline, c1="FR")
    assert published_spend(pipeline) == published_spend(pipeline, NOW.name) == first != {}

    customers.write("append", c2="DE")
    now = expected_spend(pipeline, c1="FR", c2="DE")
    stale = find_backlog(pipeline)
    assert set(stale.open[SPEND.name]) == {day(n) for n in OPEN}
    assert set(stale.final[SPEND.name]) == {day(n) for n in range(1, 5)}
    # What is known now has no final days.
    assert set(stale.open[NOW.name]) == {day(n) for n in range(1, 7)}
    pipeline.run(5, 6, [SPEND.name])
    pipeline.run(1, 6, [NOW.name])
    assert spend_on_days(published_spend(pipeline), 5, 6) == spend_on_days(now, 5, 6)
    assert spend_on_days(published_spend(pipeline), 1, 2, 3, 4) == spend_on_days(first, 1, 2, 3, 4)
    assert published_spend(pipeline, NOW.name) == now
    assert find_backlog(pipeline).open.keys().isdisjoint(BOTH)

    outlook = make_plan(pipeline, SIX, tables=[SPEND.name]).tables[SPEND.name]
    assert [*outlook.days_by_reason()] == [
        (DayOutcome.IDENTICAL, "", [day(5), day(6)]),
        (DayOutcome.COMPUTED, "new input: customers", [day(n) for n in range(1, 5)]),
    ]
    pipeline.run(1, 6, [SPEND.name])
    assert published_spend(pipeline) == now
    assert find_backlog(pipeline).final == {}
    record = read_ledgers(pipeline.deployment)[SPEND.name].records[-1]
    assert record.days[day(1)].numbers == {"input version customers": 1}
    # What Dagster shows of it.
    key = dg.AssetKey("customers")
    (observation,) = pipeline.instance.fetch_observations(key, limit=1).records
    metadata = observation.asset_observation.metadata
    assert metadata["delta_version"].value == 1
    assert metadata["dagster/uri"].value == customers.url
    columns = metadata["dagster/column_schema"].value.columns
    assert [(column.name, column.type) for column in columns] == [
        ("customer_id", "string"),
        ("country", "string"),
    ]


def test_what_changes_no_row_makes_nothing_due(pipeline, customers):
    customers.write("append", c2="DE")
    pipeline.run(1, 6, [SPEND.name])
    commits = pipeline.log(SPEND.name).version()
    for name in ("compact", "vacuum"):
        delta_table = DeltaTable(customers.url)
        if name == "compact":
            assert delta_table.optimize.compact()["numFilesRemoved"] == 2
        else:
            delta_table.vacuum(dry_run=False)
        assert not find_backlog(pipeline).all_days(SPEND.name)
    pipeline.run(1, 6, [SPEND.name])
    assert pipeline.log(SPEND.name).version() == commits


def test_a_table_that_was_made_anew_is_another_one_and_an_undo_holds(pipeline, customers):
    """The days go back to the rows of before, although the rows of now are others."""
    first = published_spend(pipeline)
    customers.url = str(pipeline.root / "elsewhere")
    customers.write(c1="IT")
    (pipeline.warehouse / "customers").rename(pipeline.root / "old")
    (pipeline.root / "elsewhere").rename(pipeline.warehouse / "customers")
    wrong = pipeline.run(1, 6, [SPEND.name])
    assert published_spend(pipeline) == expected_spend(pipeline, c1="IT") != first
    run_undo(pipeline, wrong.run_id[:8])
    assert published_spend(pipeline) == first
    assert not find_backlog(pipeline).all_days(SPEND.name)


def test_without_the_table_no_day_can_be_made(pipeline, customers):
    before = published_spend(pipeline)
    (pipeline.warehouse / "customers").rename(pipeline.root / "gone")
    assert not find_backlog(pipeline).all_days(SPEND.name)
    assert make_plan(pipeline, SIX, tables=[SPEND.name]).tables[SPEND.name].lacking
    message = pipeline.failure(pipeline.run(1, 6, [SPEND.name], fails=True))
    assert (
        "country_spend [2024-01-01...2024-01-06] cannot be made: there is no Delta table" in message
    )
    assert f"customers at {pipeline.warehouse}/customers" in message
    assert published_spend(pipeline) == before
