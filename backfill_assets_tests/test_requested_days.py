"""What was asked for and not published, as Dagster and the tables' logs know it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import dagster as dg
import msgspec
import pytest
from dagster._core.events import AssetObservationData, DagsterEvent
from dagster._core.test_utils import create_run_for_test

from backfill_assets.backfills.reconcile import PlannedDays, requested_days
from backfill_assets.orders.tables import FACT, RAW, STAGED
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.postgres import instance_in

NOW = datetime.now(timezone.utc)


@pytest.fixture
def instance(tmp_path):
    with instance_in(tmp_path) as instance:
        yield instance


def store_run(instance, first, last, tables, **tags):
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


def make_commit(version, spans, *, at=NOW, failed=(), **more):
    base = record(version, days(*spans), **more)
    return msgspec.structs.replace(
        base, at=at, failed_days=dict.fromkeys(days(*failed), "it broke")
    )


def report_observation(instance, run_id, table, n):
    """Dagster is told of a day that was published already."""
    observation = AssetObservationData(dg.AssetObservation(table.name, partition=str(day(n))))
    event = DagsterEvent("ASSET_OBSERVATION", "daily", event_specific_data=observation)
    instance.report_dagster_event(event, run_id)


def test_a_run_that_was_lost(instance):
    """It has loaded, and come to nothing else."""
    id_ = store_run(instance, 1, 3, [RAW, STAGED])
    result = requested_days(
        instance, ledgers(ledger(RAW, make_commit(1, [(1, 3)], run=id_))), id_[:8]
    )
    assert result.days == {RAW.name: days((1, 3)), STAGED.name: days((1, 3))}
    (message,) = result.not_published
    assert message.startswith(
        "stg_orders [2024-01-01...2024-01-03] was asked for and not published;"
    )


def test_a_day_that_failed(instance):
    id_ = store_run(instance, 1, 3, [FACT])
    own_commit = make_commit(2, [1, 3], run=id_, failed=[2])
    old = make_commit(1, [(1, 3)], at=NOW - timedelta(days=1))
    (message,) = requested_days(
        instance, ledgers(ledger(FACT, old, own_commit)), id_[:8]
    ).not_published
    assert message.startswith(
        "fact_daily_orders [2024-01-02] was asked for and not published (it b"
    )
    # Until it has been published, by whomever.
    later = make_commit(3, [2], run="another run", at=NOW + timedelta(minutes=1))
    result = requested_days(instance, ledgers(ledger(FACT, old, own_commit, later)), id_[:8])
    assert result.not_published == []


def test_what_failed_last_counts(instance):
    options = {"backfill": "backfill"}
    first, second = (
        make_commit(1, [1, 2], failed=[3], **options),
        make_commit(2, [3], failed=[1], **options),
    )
    (message,) = requested_days(
        instance, ledgers(ledger(FACT, first, second)), "backfill"
    ).not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for")


def test_days_that_were_published_as_they_were_to_be(instance):
    """No commit speaks of them, but Dagster was told."""
    id_ = store_run(instance, 1, 2, [FACT], backfill="backfill")
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    report_observation(instance, id_, FACT, 1)
    (message,) = requested_days(instance, ledgers(ledger(FACT, old)), "backfill").not_published
    assert message.startswith("fact_daily_orders [2024-01-02] was asked for")
    report_observation(instance, id_, FACT, 2)
    result = requested_days(instance, ledgers(ledger(FACT, old)), "backfill")
    assert (result.days, result.not_published) == ({FACT.name: days(1, 2)}, [])


def test_planned_days_of_a_stage_that_was_not_launched(instance):
    """They are missing, unless another run has published them since the plan."""
    planned = PlannedDays({FACT.name: days(1, 2)}, [], NOW.timestamp())
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    (message,) = requested_days(
        instance, ledgers(ledger(FACT, old)), "planplan", planned
    ).not_published
    assert message.startswith("fact_daily_orders [2024-01-01...2024-01-02] was asked for")
    later = make_commit(2, [1, 2], run="another run", at=NOW + timedelta(minutes=1))
    result = requested_days(instance, ledgers(ledger(FACT, old, later)), "planplan", planned)
    assert (result.days, result.not_published) == ({FACT.name: days(1, 2)}, [])


def test_runs_of_all_stages_of_a_plan_count(instance):
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    for n, stage in ((1, "pilot"), (2, "rest")):
        id_ = store_run(instance, n, n, [FACT], backfill=f"planplan-{stage}")
        report_observation(instance, id_, FACT, n)
    stages = ["planplan-pilot", "planplan-rest"]
    planned = PlannedDays({FACT.name: days(1)}, stages, NOW.timestamp())
    result = requested_days(instance, ledgers(ledger(FACT, old)), "planplan", planned)
    assert (result.days, result.not_published) == ({FACT.name: days(1, 2)}, [])


def test_a_stage_is_not_excused_by_the_stage_before_it(instance):
    """Stage 001 published the day; 002 loaded a late line for it, and the day failed."""
    own = {"backfill": "planplan-002", "failed": [1]}
    first = make_commit(1, [1], backfill="planplan-001", at=NOW + timedelta(minutes=1))
    second = make_commit(2, [2], at=NOW + timedelta(minutes=2), **own)
    planned = PlannedDays({FACT.name: days(1, 2)}, ["planplan-002"], NOW.timestamp())
    arguments = ("planplan-002", planned)
    (message,) = requested_days(
        instance, ledgers(ledger(FACT, first, second)), *arguments
    ).not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for and not published (it")
    # Until another run has published it after that.
    later = make_commit(3, [1], run="another run", at=NOW + timedelta(minutes=3))
    known = ledgers(ledger(FACT, first, second, later))
    assert requested_days(instance, known, *arguments).not_published == []


def test_a_run_that_succeeded_needs_no_events(instance):
    """They may have been pruned; but a day that is in no table was not published."""
    id_ = store_run(instance, 1, 2, [FACT], backfill="backfill")
    instance.report_dagster_event(DagsterEvent("PIPELINE_SUCCESS", "daily"), id_)
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    assert requested_days(instance, ledgers(ledger(FACT, old)), "backfill").not_published == []
    part = make_commit(1, [1], at=NOW - timedelta(days=1))
    (message,) = requested_days(instance, ledgers(ledger(FACT, part)), "backfill").not_published
    assert message.startswith("fact_daily_orders [2024-01-02] was asked for")


def test_nothing_is_known_of_the_name(instance):
    result = requested_days(instance, ledgers(ledger(FACT, make_commit(1, [1]))), "nobodyknows")
    assert (result.days, result.not_published) == ({}, [])
