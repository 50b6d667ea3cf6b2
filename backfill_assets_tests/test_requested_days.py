"""What was asked for and not published, as Dagster and the tables' logs know it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from unittest.mock import Mock

import dagster as dg
import msgspec
import pytest
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.test_utils import create_run_for_test

from backfill_assets.backfills import reconcile, state_store
from backfill_assets.backfills.backfill_plan import Stage
from backfill_assets.backfills.reconcile import RequestedDays, find_runs, requested_days
from backfill_assets.backfills.state_store import find_backfill
from backfill_assets.dagster_ext.internals import BulkActionStatus, PartitionBackfill
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import ACCEPTED_CODE
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT, RAW, STAGED, TABLES
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.command_line import save_launch, save_plan
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.postgres import instance_in

NOW, DEPLOYMENT = datetime.now(timezone.utc), Deployment(load_settings())


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


def report_materialization(instance, run_id, table, n):
    """Dagster is told of a day that was published already."""
    materialization = dg.AssetMaterialization(table.name, partition=str(day(n)))
    data = StepMaterializationData(materialization)
    event = DagsterEvent("ASSET_MATERIALIZATION", "daily", event_specific_data=data)
    instance.report_dagster_event(event, run_id)


def find_requested(instance, name, *filled: Ledger) -> RequestedDays:
    return requested_days(DEPLOYMENT, instance, ledgers(*filled), find_backfill(instance, name))


def test_a_run_that_was_lost(instance):
    """It has loaded, and come to nothing else."""
    id_ = store_run(instance, 1, 3, [RAW, STAGED])
    result = find_requested(instance, id_[:8], ledger(RAW, make_commit(1, [(1, 3)], run=id_)))
    assert result.days == {RAW.name: days((1, 3)), STAGED.name: days((1, 3))}
    (message,) = result.not_published
    assert message.startswith(
        "stg_orders [2024-01-01...2024-01-03] was asked for and not published;"
    )


def test_a_day_that_failed(instance):
    id_ = store_run(instance, 1, 3, [FACT])
    own_commit = make_commit(2, [1, 3], run=id_, failed=[2])
    old = make_commit(1, [(1, 3)], at=NOW - timedelta(days=1))
    (message,) = find_requested(instance, id_[:8], ledger(FACT, old, own_commit)).not_published
    assert message.startswith(
        "fact_daily_orders [2024-01-02] was asked for and not published (it b"
    )
    # Until it has been published, by whomever.
    later = make_commit(3, [2], run="another run", at=NOW + timedelta(days=1))
    result = find_requested(instance, id_[:8], ledger(FACT, old, own_commit, later))
    assert result.not_published == []


def test_what_failed_last_counts(instance):
    options = {"backfill": "backfill"}
    first, second = (
        make_commit(1, [1, 2], failed=[3], **options),
        make_commit(2, [3], failed=[1], **options),
    )
    (message,) = find_requested(instance, "backfill", ledger(FACT, first, second)).not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for")


def test_days_that_failed_in_several_commits_are_all_asked_for(instance):
    options = {"backfill": "backfill"}
    first, second = (
        make_commit(1, [1], failed=[3], **options),
        make_commit(2, [2], failed=[4], **options),
    )
    (message,) = find_requested(instance, "backfill", ledger(FACT, first, second)).not_published
    assert message.startswith("fact_daily_orders [2024-01-03...2024-01-04] was asked for")


def test_days_that_were_published_as_they_were_to_be(instance):
    """No commit speaks of them, but Dagster was told."""
    id_ = store_run(instance, 1, 2, [FACT], backfill="backfill")
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    report_materialization(instance, id_, FACT, 1)
    (message,) = find_requested(instance, "backfill", ledger(FACT, old)).not_published
    assert message.startswith("fact_daily_orders [2024-01-02] was asked for")
    report_materialization(instance, id_, FACT, 2)
    report_materialization(instance, store_run(instance, 1, 2, [FACT]), FACT, 2)  # again, since
    result = find_requested(instance, "backfill", ledger(FACT, old))
    assert (result.days, result.not_published) == ({FACT.name: days(1, 2)}, [])


def test_what_a_run_reported_and_nobody_published(instance):
    """Of a table, the day is not there; an asset of the project's own has hours."""
    id_ = store_run(instance, 1, 2, [FACT], backfill="backfill")
    report_materialization(instance, id_, FACT, 1)
    hourly = dg.AssetMaterialization("readings", partition="2024-01-01-07:00")
    data = StepMaterializationData(hourly)
    event = DagsterEvent("ASSET_MATERIALIZATION", "daily", event_specific_data=data)
    instance.report_dagster_event(event, id_)
    old = make_commit(1, [2], at=NOW - timedelta(days=1))
    (message,) = find_requested(instance, "backfill", ledger(FACT, old)).not_published
    assert message.startswith("fact_daily_orders [2024-01-01...2024-01-02] was asked for")


def test_planned_days_of_a_stage_that_was_not_launched(instance):
    """They are missing, unless another run has published them since the plan."""
    save_plan(instance, "planplan", computed=(f"{day(1)}...{day(2)}",))
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    (message,) = find_requested(instance, "planplan", ledger(FACT, old)).not_published
    assert message.startswith("fact_daily_orders [2024-01-01...2024-01-02] was asked for")
    later = make_commit(2, [1, 2], run="another run", at=NOW + timedelta(days=1))
    result = find_requested(instance, "planplan", ledger(FACT, old, later))
    assert (result.days, result.not_published) == ({FACT.name: days(1, 2)}, [])


def save_stages(instance, **days_by_stage) -> None:
    """A plan whose stages are all launched."""
    state = save_plan(instance, "planplan", computed=())
    stages = tuple(
        Stage(name=name.strip("_"), days=",".join(map(str, sorted(stage_days))))
        for name, stage_days in days_by_stage.items()
    )
    state.plan = state.plan.model_copy(update={"cut": stages})
    state_store.save(instance, state)
    for stage, stage_days in zip(stages, days_by_stage.values(), strict=True):
        save_launch(instance, f"planplan-{stage.name}", {FACT.name: stage_days}, NOW.timestamp())


def test_runs_of_all_stages_of_a_plan_count(instance):
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    save_stages(instance, pilot=days(1), rest=days(2))
    for n, stage in ((1, "pilot"), (2, "rest")):
        id_ = store_run(instance, n, n, [FACT], backfill=f"planplan-{stage}")
        report_materialization(instance, id_, FACT, n)
    result = find_requested(instance, "planplan", ledger(FACT, old))
    assert (result.days, result.not_published) == ({FACT.name: days(1, 2)}, [])


def test_stages_of_a_plan_that_cannot_be_read_count(instance):
    """The pilot has published its day, the run of the rest was lost."""
    save_stages(instance, pilot=days(1), rest=days(2))
    key = state_store._PLAN_KEY.format("planplan")
    instance.daemon_cursor_storage.set_cursor_values({key: "{}"})
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    pilot = make_commit(2, [1], backfill="planplan-pilot", at=NOW + timedelta(days=1))
    result = find_requested(instance, "planplan", ledger(FACT, old, pilot))
    (message,) = result.not_published
    assert message.startswith("fact_daily_orders [2024-01-02] was asked for and not published")


def test_a_stage_is_not_excused_by_the_stage_before_it(instance):
    """Stage 001 published the day; 002 loaded a late line for it, and the day failed."""
    save_stages(instance, _001=days(1), _002=days(1, 2))
    own = {"backfill": "planplan-002", "failed": [1]}
    first = make_commit(1, [1], backfill="planplan-001", at=NOW + timedelta(days=1))
    second = make_commit(2, [2], at=NOW + timedelta(days=2), **own)
    result = find_requested(instance, "planplan-002", ledger(FACT, first, second))
    (message,) = result.not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for and not published (it")
    # Until another run has published it after that.
    later = make_commit(3, [1], run="another run", at=NOW + timedelta(days=3))
    result = find_requested(instance, "planplan-002", ledger(FACT, first, second, later))
    assert result.not_published == []


def test_a_backfill_whose_runs_are_pruned(instance):
    """Dagster knows that it succeeded; but a day that is in no table was not published."""
    succeeded = BulkActionStatus.COMPLETED_SUCCESS
    save_launch(instance, "backfill", {FACT.name: days((1, 3))}, NOW.timestamp(), succeeded)
    old = make_commit(1, [1, 2], at=NOW - timedelta(days=1))
    result = find_requested(instance, "backfill", ledger(FACT, old))
    assert result.days == {FACT.name: days((1, 3))}
    (message,) = result.not_published
    assert message.startswith("fact_daily_orders [2024-01-03] was asked for")


def test_a_lost_run_is_not_excused_by_a_run_that_passed_over_its_days(instance):
    """That one may have held back a file that this one was to accept."""
    store_run(instance, 1, 1, [FACT], backfill="backfill")
    old = make_commit(1, [1], at=NOW - timedelta(days=1))
    another_run = store_run(instance, 1, 1, [FACT])
    report_materialization(instance, another_run, FACT, 1)
    (message,) = find_requested(instance, "backfill", ledger(FACT, old)).not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for")


@pytest.mark.parametrize(
    "details",
    [{"kind": ACCEPTED_CODE}, {"as_of": {"1": ["2024-01-01"]}}],
    ids=["accept", "migrate"],
)
def test_a_commit_that_carries_rows_over_publishes_no_day(instance, details):
    """The code of the old rows is accepted, or their columns change, after the run was lost."""
    store_run(instance, 1, 1, [FACT], backfill="backfill")
    old = make_commit(1, [1], at=NOW - timedelta(days=1))
    carried = make_commit(2, [1], run="carries", at=NOW + timedelta(days=1), **details)
    (message,) = find_requested(instance, "backfill", ledger(FACT, old, carried)).not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for")
    # It hides no run that published the day in between.
    other = make_commit(2, [1], run="another run", at=NOW + timedelta(days=1))
    more = {"as_of": {"2": ["2024-01-01"]}} if "as_of" in details else details
    carried = make_commit(3, [1], run="carries", at=NOW + timedelta(days=2), **more)
    result = find_requested(instance, "backfill", ledger(FACT, old, other, carried))
    assert result.not_published == []


def test_a_day_that_another_run_published_and_an_undo_reverted(instance):
    store_run(instance, 1, 1, [FACT], backfill="backfill")
    old = make_commit(1, [1], at=NOW - timedelta(days=1))
    other = make_commit(2, [1], run="another run", at=NOW + timedelta(days=1))
    undone = {"undoes": "another run", "as_of": {"1": ["2024-01-01"]}}
    undo = make_commit(3, [1], run="undo", at=NOW + timedelta(days=2), **undone)
    result = find_requested(instance, "backfill", ledger(FACT, old, other, undo))
    (message,) = result.not_published
    assert message.startswith("fact_daily_orders [2024-01-01] was asked for")
    # Until the undo is undone.
    restored = {"undoes": "undo", "as_of": {"2": ["2024-01-01"]}}
    redo = make_commit(4, [1], run="redo", at=NOW + timedelta(days=3), **restored)
    result = find_requested(instance, "backfill", ledger(FACT, old, other, undo, redo))
    assert result.not_published == []


def test_the_run_that_made_a_plan_stands_for_it(instance):
    """The job `backfill` names its plan by the first part of its own id."""
    run_id = store_run(instance, 1, 1, [FACT])
    plan_id = run_id[:8]
    save_plan(instance, plan_id, computed=(f"{day(1)}...{day(2)}",))
    stage = find_backfill(instance, plan_id).state.plan.stages[0][0]
    save_launch(instance, f"{plan_id}-{stage}", {FACT.name: days(1, 2)})
    by_plan, by_run = (find_backfill(instance, name) for name in (plan_id, run_id))
    assert by_plan == by_run
    assert [launch.backfill_id for launch in by_run.launches] == [f"{plan_id}-{stage}"]


def test_a_run_of_a_whole_job_asks_for_the_tables_of_its_grain(instance):
    """Its partition is a month; the daily tables have a day of that name."""
    tags = {"dagster/partition": str(day(1))}
    runs = {
        job: create_run_for_test(instance, job_name=job, tags=tags).run_id
        for job in ("monthly", "daily")
    }
    old = ledger(FACT, make_commit(1, [1], at=NOW - timedelta(days=1)))
    assert not any(find_requested(instance, runs["monthly"], old).days.values())
    assert find_requested(instance, runs["daily"], old).days.keys() == TABLES.keys()


def test_nothing_is_known_of_the_name(instance):
    result = find_requested(instance, "nobodyknows", ledger(FACT, make_commit(1, [1])))
    assert (result.days, result.not_published) == ({}, [])


def not_published(table, text, error=""):
    """The message about days of a table."""
    return (
        f"{table.name} [{text}] was asked for and not published{error}; readers see what was there "
        "before. See what failed, and launch these days again"
    )


def test_each_table_and_each_error_has_one_message(instance):
    id_ = store_run(instance, 1, 5, [STAGED, FACT])
    own_commit = make_commit(1, [1], run=id_, failed=[2, 4])
    own_commit = msgspec.structs.replace(
        own_commit, failed_days=own_commit.failed_days | {day(5): "unique_key: 2 rows"}
    )
    staged = ledger(STAGED, make_commit(1, [(2, 5)], run=id_))
    result = find_requested(instance, id_, staged, ledger(FACT, own_commit))
    assert result.not_published == [
        not_published(STAGED, "2024-01-01"),
        not_published(FACT, "2024-01-02, 2024-01-04", " (it broke)"),
        not_published(FACT, "2024-01-03"),
        not_published(FACT, "2024-01-05", " (unique_key: 2 rows)"),
    ]
    assert result.unpublished == {
        (STAGED.name, day(1)): "",
        **dict.fromkeys([(FACT.name, day(2)), (FACT.name, day(4))], "it broke"),
        (FACT.name, day(3)): "",
        (FACT.name, day(5)): "unique_key: 2 rows",
    }


def test_the_runs_of_a_backfill_are_those_that_it_launched_and_those_of_its_commits(instance):
    launched, committed, both, _ = (
        store_run(instance, 1, 1, [FACT], **tags)
        for tags in (
            {"backfill": "planplan-pilot"},
            {},
            {"backfill": "planplan"},
            {"backfill": "x"},
        )
    )
    save_stages(instance, pilot=days(1))
    known = ledgers(
        ledger(
            FACT,
            *(
                make_commit(n, [1], run=run, backfill="planplan-rest")
                for n, run in enumerate([committed, both])
            ),
        )
    )
    runs = find_runs(instance, known, find_backfill(instance, "planplan"))
    assert sorted(run.dagster_run.run_id for run in runs) == sorted([launched, committed, both])


def test_the_tags_are_those_of_the_last_run_without_what_dagster_sets(instance):
    for number, user in enumerate(["first", "last", "of another run"]):
        run_id = store_run(instance, 1, 1, [FACT], backfill="backfill" if number < 2 else "x")
        instance.add_run_tags(run_id, {"user": user, f"tag {number}": "x", ".dagster/repo": "x"})
    assert find_requested(instance, "backfill").tags == {"user": "last", "tag 1": "x"}
    assert find_requested(instance, "nobodyknows").tags == {}


DAY_BEFORE, TWO_DAYS_BEFORE = NOW - timedelta(days=1), NOW - timedelta(days=2)


@pytest.mark.parametrize("sign", ["launch", "commit"])
def test_a_day_counts_if_others_published_it_since_the_first_sign_of_the_backfill(instance, sign):
    """A run of it was created now; it was launched before, or had committed another day before."""
    store_run(instance, 1, 1, [FACT], backfill="backfill")
    staged = []
    if sign == "launch":
        save_launch(instance, "backfill", {FACT.name: days(1)}, TWO_DAYS_BEFORE.timestamp())
    else:
        commits = enumerate([None, TWO_DAYS_BEFORE, NOW])
        staged = [make_commit(n, [7 + n], at=at, backfill="backfill") for n, at in commits]
    messages = {}
    for at in (NOW - timedelta(days=3), TWO_DAYS_BEFORE, DAY_BEFORE, None):
        other = make_commit(2, [1], run="another run", at=at)
        result = find_requested(instance, "backfill", ledger(STAGED, *staged), ledger(FACT, other))
        messages[at] = result.not_published
    missing = [not_published(FACT, "2024-01-01")]
    assert messages == {
        NOW - timedelta(days=3): missing,
        TWO_DAYS_BEFORE: missing,
        DAY_BEFORE: [],
        # Nobody knows when.
        None: missing,
    }


def test_a_plan_of_unknown_age_is_not_excused_by_others(instance):
    state = save_plan(instance, "planplan", computed=(f"{day(1)}...{day(2)}",))
    state.made = 0
    state_store.save(instance, state)
    later = make_commit(2, [1, 2], run="another run", at=NOW + timedelta(days=1))
    result = find_requested(instance, "planplan", ledger(FACT, later))
    assert result.not_published == [not_published(FACT, "2024-01-01...2024-01-02")]


def test_days_that_may_be_computed_are_asked_for_and_those_left_alone_are_not(instance):
    ranges = {"computed": ("2024-01-01",), "depends": ("2024-01-02",), "identical": (str(day(5)),)}
    save_plan(instance, "planplan", **ranges)
    assert find_requested(instance, "planplan").days == {FACT.name: days(1, 2)}
    # Besides those of its launches and runs.
    save_launch(instance, "planplan-rest", {FACT.name: days(3)}, NOW.timestamp())
    store_run(instance, 4, 4, [FACT], backfill="planplan-rest")
    assert find_requested(instance, "planplan").days == {FACT.name: days((1, 4))}


def test_a_day_that_the_backfill_revoked_is_done(instance):
    """Its file is gone from the landing: no rows are to be there."""
    store_run(instance, 1, 3, [RAW], backfill="backfill")
    own = {"backfill": "backfill"}
    revoking = msgspec.structs.replace(make_commit(2, [2], **own), revoked_days=days(1))
    failing = make_commit(1, [], failed=[1], **own)
    result = find_requested(instance, "backfill", ledger(RAW, failing, revoking))
    assert result.not_published == [not_published(RAW, "2024-01-03")]


@pytest.mark.parametrize(
    ("status", "counts"),
    [(dg.DagsterRunStatus.SUCCESS, True), (dg.DagsterRunStatus.FAILURE, False)],
)
def test_a_run_that_succeeded_has_found_its_days_as_they_were_to_be(instance, status, counts):
    """But not a day that is in no table."""
    tags = {"dagster/partition": str(day(1)), "dagster/backfill": "backfill"}
    for table in (STAGED, FACT):
        selection = frozenset([dg.AssetKey(table.name)])
        create_run_for_test(instance, asset_selection=selection, tags=tags, status=status)
    old = make_commit(1, [1], at=DAY_BEFORE)
    result = find_requested(instance, "backfill", ledger(FACT, old))
    missing = [not_published(STAGED, "2024-01-01")]
    if not counts:
        missing.append(not_published(FACT, "2024-01-01"))
    assert result.not_published == missing


def test_a_report_of_a_run_excuses_only_the_day_and_table_that_it_names(instance):
    id_ = store_run(instance, 1, 2, [STAGED, FACT], backfill="backfill")
    old = [make_commit(1, [1, 2], at=DAY_BEFORE)]
    report_materialization(instance, id_, FACT, 1)
    instance.report_dagster_event(
        DagsterEvent(
            "ASSET_MATERIALIZATION",
            "daily",
            event_specific_data=StepMaterializationData(dg.AssetMaterialization(FACT.name)),
        ),
        id_,
    )
    result = find_requested(instance, "backfill", ledger(STAGED, *old), ledger(FACT, *old))
    assert result.not_published == [
        not_published(STAGED, "2024-01-01...2024-01-02"),
        not_published(FACT, "2024-01-02"),
    ]


def test_a_launch_asks_for_days_of_tables_only(instance):
    """It may be of assets that have hours, or of a job, whose days Dagster does not keep."""
    hours = {"readings": ["2024-01-01-07:00"], FACT.name: days(1)}
    save_launch(instance, "backfill", hours, NOW.timestamp())
    assert find_requested(instance, "backfill").days == {FACT.name: days(1)}
    failed = BulkActionStatus.COMPLETED_FAILED
    instance.add_backfill(PartitionBackfill("of-a-job", failed, False, {}, NOW.timestamp()))
    assert find_requested(instance, "of-a-job").days == {}


def test_a_stage_without_days_is_in_order_and_a_name_that_nobody_knows_is_not(
    instance, monkeypatch
):
    """Of a backfill of weeks, no week ends in some stages."""
    monkeypatch.setattr(reconcile, "read_ledgers", lambda _: ledgers())
    save_launch(instance, "of-weeks", {})
    assert reconcile.reconcile_backfill(DEPLOYMENT, instance, Mock(), "of-weeks").problems == []
    (problem,) = reconcile.reconcile_backfill(DEPLOYMENT, instance, Mock(), "unknown").problems
    assert problem.startswith("no commit of unknown is in any table")


def test_a_run_without_days_asks_for_none(instance):
    selection = frozenset([dg.AssetKey(FACT.name)])
    run = create_run_for_test(instance, asset_selection=selection, tags={})
    assert find_requested(instance, run.run_id).days == {}
