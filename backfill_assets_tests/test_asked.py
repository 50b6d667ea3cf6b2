"""What was asked for and not published, as Dagster and the tables' logs know it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import dagster as dg
import msgspec
import pytest
from dagster._core.events import AssetObservationData, DagsterEvent
from dagster._core.test_utils import create_run_for_test

from backfill_assets.backfills.asked import requested_days
from backfill_assets.orders.facts import FACT
from backfill_assets.orders.tables import RAW, STAGED
from backfill_assets_tests.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.pipeline import day
from backfill_assets_tests.postgres import instance_in

NOW = datetime.now(timezone.utc)


@pytest.fixture
def instance(tmp_path):
    with instance_in(tmp_path) as instance:
        yield instance


def run(instance, first, last, tables, **tags):
    """A run over days that has left nothing behind but itself."""
    return create_run_for_test(
        instance,
        asset_selection=frozenset(dg.AssetKey(table.name) for table in tables),
        tags={
            "dagster/asset_partition_range_start": str(day(first)),
            "dagster/asset_partition_range_end": str(day(last)),
            **{f"dagster/{name}": value for name, value in tags.items()},
        },
    ).run_id


def commit(version, of, *, at=NOW, failed=(), **more):
    one = record(version, days(*of), **more)
    return msgspec.structs.replace(one, at=at, failed=dict.fromkeys(days(*failed), "it broke"))


def tell(instance, run_id, table, n):
    """Dagster is told of a day that was published already."""
    told = AssetObservationData(dg.AssetObservation(table.name, partition=str(day(n))))
    event = DagsterEvent("ASSET_OBSERVATION", "daily", event_specific_data=told)
    instance.report_dagster_event(event, run_id)


def test_a_run_that_was_lost(instance):
    """It has loaded, and come to nothing else."""
    id_ = run(instance, 1, 3, [RAW, STAGED])
    found = requested_days(instance, ledgers(ledger(RAW, commit(1, [(1, 3)], run=id_))), id_[:8])
    assert found.days == {RAW.name: days((1, 3)), STAGED.name: days((1, 3))}
    (said,) = found.not_published
    assert said.startswith("stg_orders [2024-01-01...2024-01-03] was asked for and not published;")


def test_a_day_that_failed(instance):
    id_ = run(instance, 1, 3, [FACT])
    mine = commit(2, [1, 3], run=id_, failed=[2])
    old = commit(1, [(1, 3)], at=NOW - timedelta(days=1))
    (said,) = requested_days(instance, ledgers(ledger(FACT, old, mine)), id_[:8]).not_published
    assert said.startswith("fact_daily_orders [2024-01-02] was asked for and not published (it b")
    # Until it has been published, by whomever.
    later = commit(3, [2], run="another run", at=NOW + timedelta(minutes=1))
    found = requested_days(instance, ledgers(ledger(FACT, old, mine, later)), id_[:8])
    assert found.not_published == []


def test_what_failed_last_counts(instance):
    of = {"backfill": "backfill"}
    first, again = commit(1, [1, 2], failed=[3], **of), commit(2, [3], failed=[1], **of)
    (said,) = requested_days(
        instance, ledgers(ledger(FACT, first, again)), "backfill"
    ).not_published
    assert said.startswith("fact_daily_orders [2024-01-01] was asked for")


def test_days_that_were_published_as_they_were_to_be(instance):
    """No commit speaks of them, but Dagster was told."""
    id_ = run(instance, 1, 2, [FACT], backfill="backfill")
    old = commit(1, [1, 2], at=NOW - timedelta(days=1))
    tell(instance, id_, FACT, 1)
    (said,) = requested_days(instance, ledgers(ledger(FACT, old)), "backfill").not_published
    assert said.startswith("fact_daily_orders [2024-01-02] was asked for")
    tell(instance, id_, FACT, 2)
    found = requested_days(instance, ledgers(ledger(FACT, old)), "backfill")
    assert (found.days, found.not_published) == ({FACT.name: days(1, 2)}, [])


def test_nothing_is_known_of_the_name(instance):
    found = requested_days(instance, ledgers(ledger(FACT, commit(1, [1]))), "nobodyknows")
    assert (found.days, found.not_published) == ({}, [])
