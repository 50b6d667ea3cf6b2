"""Customers as they were, end to end: three batches land, and days run in order and at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import ORDERS, RAW, STAGED
from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES
from backfill_assets_guide.examples.customers.dimension import dim_customers
from backfill_assets_guide.examples.customers.orders import (
    fact_orders_enriched,
    fact_orders_settled,
)
from backfill_assets_guide.examples.customers.sample import Batch, create_batches, land_batch
from backfill_assets_tests.helpers.customers_model import (
    Version,
    expected_versions,
    parse_change,
    parse_moment,
    parse_versions,
    version_as_known,
)
from backfill_assets_tests.helpers.pipeline import START, Pipeline, copy_loaded, day

DAYS = 7


MADE = [dim_customers, fact_orders_enriched, fact_orders_settled]
TABLES = [*ORDERS, CUSTOMER_CHANGES, *MADE]
PLACE = f"{__name__}:TABLES"
CUSTOMERS = [CUSTOMER_CHANGES.raw.name, dim_customers.name]
NAMES = [RAW.name, STAGED.name, *CUSTOMERS, *(made.name for made in MADE[1:])]


def lines_of_source(
    source_batches: Iterable[Batch], source: str
) -> list[tuple[date, Mapping[str, Any]]]:
    return [
        (arrival_day, line)
        for batch in source_batches
        for arrival_day, all_ in batch[source].items()
        for line in all_
    ]


def published_versions(pipeline: Pipeline, log_day: date) -> set[Version]:
    return parse_versions(
        row for row in pipeline.rows(dim_customers.name) if row["log_date"] == log_day
    )


def change_ids(pipeline: Pipeline, name: str) -> dict[str, str | None]:
    return {row["order_id"]: row["change_id"] for row in pipeline.rows(name)}


def digests_by_table(pipeline: Pipeline) -> dict[str, dict[date, str | None]]:
    """The digest of each published day."""
    ledgers = read_ledgers(pipeline.deployment)
    return {
        customer_table.name: {
            d: ledgers[customer_table.name].content_key(d)
            for d in ledgers[customer_table.name].published_days
        }
        for customer_table in MADE
    }


def make_pipeline(engine, root: Path) -> Pipeline:
    """That a range has what its days have alone is compared by the test itself."""
    return Pipeline(engine, root, land=False, tables=PLACE, check_independence=False)


def test_three_batches_by_night_and_at_once(engine, tmp_path):
    all_batches = create_batches(start=START, days=DAYS, customers=5, orders_per_day=8, seed=11)
    changes = [
        parse_change(*dated_line) for dated_line in lines_of_source(all_batches, "customer_changes")
    ]
    pipeline = make_pipeline(engine, tmp_path / "nightly")
    # With the last batches, the days before that came late are built again, as the sensor would.
    # Then orders settle, which the days after theirs decide.
    settled = fact_orders_settled.name
    nightly = [name for name in NAMES if name != settled]
    history, *increments = all_batches
    land_batch(pipeline.landing, history)
    pipeline.run(1, DAYS - 2, nightly)
    for increment in increments:
        land_batch(pipeline.landing, increment)
    pipeline.run(1, DAYS, NAMES)

    for n in range(1, DAYS + 1):
        assert published_versions(pipeline, day(n)) == expected_versions(changes, day(n))
    orders = {o["order_id"]: o for _, o in lines_of_source(all_batches, "orders")}
    then = {
        id_: version_as_known(
            expected_versions(changes, parse_moment(o["order_ts"]).date()),
            o["customer_id"],
            parse_moment(o["order_ts"]),
            parse_moment(o["order_ts"]),
        )
        for id_, o in orders.items()
    }
    assert change_ids(pipeline, fact_orders_enriched.name) == {
        i: v and v.change_id for i, v in then.items()
    }
    end = datetime(2025, 1, 1, tzinfo=timezone.utc)
    newest = expected_versions(changes, day(DAYS))
    later = {
        id_: version_as_known(newest, o["customer_id"], parse_moment(o["order_ts"]), end)
        for id_, o in orders.items()
    }
    settled_ids = change_ids(pipeline, settled)
    assert settled_ids == {i: v and v.change_id for i, v in later.items()}
    assert settled_ids != change_ids(pipeline, fact_orders_enriched.name)
    configuration = pipeline.log(fact_orders_enriched.name).metadata().configuration
    assert (
        configuration["delta.constraints.known_at_by_order_ts"]
        == "known_at IS NULL OR known_at <= order_ts"
    )

    # All of it at once, in another warehouse with the same raw logs: the same days.
    root = tmp_path / "clean"
    root.mkdir()
    copy_loaded(pipeline.root, root)
    for made in MADE:
        shutil.rmtree(root / "warehouse" / made.name)
    clean = make_pipeline(engine, root)
    assert not any(digests_by_table(clean).values())
    clean.run(1, DAYS, [made.name for made in MADE])
    assert digests_by_table(clean) == digests_by_table(pipeline)

    # A late change: the days before stay as they were, the last one has another history.
    before = digests_by_table(pipeline)
    first = min(changes, key=lambda c: (c.changed_at, c.change_id))
    at = f"{first.changed_at:%Y-%m-%d}T23:59:59Z"
    late_change = {
        "change_id": "late",
        "customer_id": first.customer_id,
        "op": "update",
        "email_status": "bounced",
        "segment": None,
        "country": None,
        "changed_at": at,
        "ingested_at": f"{day(DAYS)}T23:59:59Z",
    }
    land_batch(
        pipeline.landing,
        {
            "customer_changes": {
                day(DAYS): [*all_batches[2]["customer_changes"][day(DAYS)], late_change]
            }
        },
    )
    pipeline.run(1, DAYS, [*CUSTOMERS, fact_orders_enriched.name])
    assert published_versions(pipeline, day(DAYS)) == expected_versions(
        [*changes, parse_change(day(DAYS), late_change)], day(DAYS)
    )
    after = digests_by_table(pipeline)
    changed = {
        name: {d for d in digests if digests[d] != before[name][d]}
        for name, digests in after.items()
    }
    assert changed[dim_customers.name] == {day(DAYS)}
    assert changed[fact_orders_enriched.name] == set()
