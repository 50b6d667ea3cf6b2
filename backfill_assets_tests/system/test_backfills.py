"""Planned backfills: the plan is right, and the stages come one after another or not at all."""

import re
import shutil
from datetime import date
from statistics import mean

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import forecast, history, state_store
from backfill_assets.backfills import stages as backfills
from backfill_assets.backfills.backfill_plan import BackfillRequest, plan_facts
from backfill_assets.backfills.forecast import expected_seconds
from backfill_assets.backfills.history import read_history
from backfill_assets.backfills.planner import days_by_table, plan_backfill
from backfill_assets.backfills.reconcile import reconcile_backfill
from backfill_assets.backfills.state_store import BackfillRefusedError
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.next_runs import RunPlanner
from backfill_assets.orders.tables import FACT, RAW, STAGED, TABLES
from backfill_assets.settings import load_settings
from backfill_assets.tables import code_version
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import Graph
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import (
    LAYERS,
    Pipeline,
    day,
    make_plan,
    order,
    run_undo,
    tick_planned_backfills,
)


@pytest.fixture(autouse=True)
def _daemons_run(monkeypatch):
    monkeypatch.setattr(backfills, "missing_daemons", lambda _: [])


def land_days(engine, root, **settings):
    pipeline = Pipeline(engine, root, window_days=2, **settings)
    for n in range(1, 7):
        pipeline.land(n, [order(f"o{n}", n, f"{n}.00")])
    return pipeline


@pytest.fixture
def pipeline(engine, tmp_path):
    return land_days(engine, tmp_path)


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory):
    """The raw log of three days, by a backfill without a plan, to be copied."""
    pipeline = land_days(engine, tmp_path_factory.mktemp("original"))
    pipeline.run(1, 3, [RAW.name], tags={"dagster/backfill": "byhand12"})
    return pipeline.root


@pytest.fixture
def loaded(pipeline, original):
    """The pipeline with that raw log."""
    shutil.copytree(original / "warehouse", pipeline.warehouse, dirs_exist_ok=True)
    return pipeline


#: One table after another; enough for all that follows from days of runs.
CHAIN = (RAW.name, STAGED.name, FACT.name)
#: Enough for all that follows from stages.
PAIR = (RAW.name, STAGED.name)


def graph_of(pipeline):
    return pipeline.repository.asset_graph


def code_of(pipeline):
    return pipeline.code


def launch_plan(pipeline, id_):
    return backfill_jobs.launch_plan(
        pipeline.deployment, graph_of(pipeline), pipeline.instance, code_of(pipeline), id_
    )


def run_stage(pipeline, *, fails=False):
    """What the daemon does with the backfill that is under way: the runs, wave after wave."""
    (id_,) = state_store.active_ids(pipeline.instance)
    state = state_store.load(pipeline.instance, id_)
    backfill = pipeline.instance.get_backfill(state.backfill_id)
    tags = {**backfill.tags, "dagster/backfill": backfill.backfill_id}
    subsets = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
    days = {key.path[-1]: sorted(s.get_partition_keys()) for key, s in subsets.items()}
    raw = [name for name in days if name.startswith("raw")]
    for wave in (raw, [name for name in LAYERS if name in days and name not in raw]):
        spans = {(days[name][0], days[name][-1]) for name in wave}
        for first, last in sorted(spans):
            names = [name for name in wave if (days[name][0], days[name][-1]) == (first, last)]
            pipeline.run(*map(date.fromisoformat, (first, last)), names, tags=tags, fails=fails)
    status = BulkActionStatus.COMPLETED_FAILED if fails else BulkActionStatus.COMPLETED_SUCCESS
    pipeline.instance.update_backfill(backfill.with_status(status))
    return backfill.backfill_id


def test_stages_one_after_another(engine, tmp_path):
    """Under a key prefix: jobs, ops and sensors have other names, and nothing else is different."""
    pipeline = land_days(engine, tmp_path, key_prefix="lake/gold")
    plan = make_plan(
        pipeline,
        "2024-01-01...2024-01-04",
        tables=PAIR,
        pilot_days=3,
        reason="first",
    )
    assert [(name, str(w)) for name, w in plan.stages] == [
        ("pilot", "2024-01-01...2024-01-03"),
        ("rest", "2024-01-04"),
    ]
    launch_plan(pipeline, plan.id)
    with pytest.raises(BackfillRefusedError, match="is under way"):
        launch_plan(pipeline, plan.id)
    backfill_ids = []
    for _ in range(20):
        if not state_store.active_ids(pipeline.instance):
            break
        if "under way" in (text := tick_planned_backfills(pipeline)):
            backfill_ids.append(run_stage(pipeline))
    assert backfill_ids == [f"{plan.id}-pilot", f"{plan.id}-rest"]
    state = state_store.load(pipeline.instance, plan.id)
    assert (state.complete, state.ended) == (True, "complete and reconciled"), text
    record = read_ledgers(pipeline.deployment)[STAGED.name].latest[day(4)]
    assert (record.backfill_id, record.reason) == (f"{plan.id}-rest", "first")
    check_history_pages(pipeline, plan)
    facts = dict(plan_facts(make_plan(pipeline, "2024-01-02", tables=(STAGED.name,), rewrite=True)))
    assert facts["also reads"] == "raw_orders 2024-01-02...2024-01-03"
    assert facts["keys within a day"] == "stg_orders by order_id"


def check_history_pages(pipeline, plan):
    """From the records of Dagster and of the tables, an undo of one stage among them."""
    before = {name: ledger.version for name, ledger in read_ledgers(pipeline.deployment).items()}
    run_undo(pipeline, f"{plan.id}-rest")
    ledgers = read_ledgers(pipeline.deployment)
    backfill_history = read_history(pipeline.deployment, pipeline.instance, ledgers, plan.id)
    stages = [f"{plan.id}-{name}" for name, _ in plan.stages]
    whats = [step.action.partition(":")[0] for step in backfill_history.events]
    assert whats[:2] == ["plan", "launch"]
    assert whats[2:-1] == [w for s in stages for w in (f"stage {s}", f"reconciliation of {s}")]
    assert whats[-1].startswith("undo by run ")
    assert [step.timestamp for step in backfill_history.events] == sorted(
        step.timestamp for step in backfill_history.events
    )
    assert [step.command for step in backfill_history.events if step.command] == [
        f"backfill-assets plan 2024-01-01...2024-01-04 --select {','.join(PAIR)} "
        "--pilot-days 3 --reason first",
        f"backfill-assets backfill {plan.id}",
        f"backfill-assets undo {plan.id}-rest --reason 'a drill'",
    ]
    assert {
        s.outcome for s in backfill_history.events if s.action.startswith("reconciliation")
    } == {"passed"}
    assert backfill_history.events[-1].outcome == "put back"
    assert (backfill_history.reason, backfill_history.outcome) == (
        "first",
        "complete and reconciled",
    )
    touched = {entry.table: entry for entry in backfill_history.table_changes}
    staged = touched[STAGED.name]
    first = ledgers[STAGED.name].records[0].version
    assert (staged.version_before, staged.version_after) == (first - 1, before[STAGED.name])
    assert [*map(str, staged.days)] == [f"2024-01-0{n}" for n in range(1, 5)]
    assert [*staged.reverted_days] == [day(4)]
    page = history.render_postmortem(backfill_history)
    versions = f"{staged.version_before} | {staged.version_after}"
    assert f"\n| {STAGED.name} | 2024-01-01...2024-01-04 | {versions} | 2024-01-04 |" in page
    assert "never published" in staged.reasons
    assert "first" in history.render_runbook(backfill_history)
    # Of one stage, and of the run of the undo.
    last = read_history(pipeline.deployment, pipeline.instance, ledgers, stages[-1])
    assert {str(entry.days[0]) for entry in last.table_changes if entry.table == STAGED.name} == {
        "2024-01-04"
    }
    undid = ledgers[STAGED.name].records[-1].run_id[:8]
    (step,) = read_history(pipeline.deployment, pipeline.instance, ledgers, undid).events
    assert step.command == f"backfill-assets undo {plan.id}-rest --reason 'a drill'"


def test_the_account_of_what_was_not_planned(pipeline):
    """All of it is there and adds up, in all of its tables; a day that failed is not there."""
    spark = pipeline.io_manager.engine.spark_session
    arguments = pipeline.deployment, pipeline.instance, spark
    pipeline.run(1, 3, CHAIN, tags={"dagster/backfill": "goodgood"})
    result = reconcile_backfill(*arguments, "goodgood")
    assert result.problems == []
    assert {report.table.name for report in result.reports} == set(CHAIN)
    pipeline.folder(2).joinpath("part-1.jsonl.gz").write_bytes(b"broken")
    pipeline.land(3, [order("x3", 3)], "part-1.jsonl")
    run = pipeline.run(2, 3, [RAW.name], tags={"dagster/backfill": "badbadba"}, fails=True)
    for name in ("badbadba", run.run_id[:8]):
        problems = reconcile_backfill(*arguments, name).problems
        (failed,) = [text for text in problems if text.startswith("raw_orders [2024-01-02]")]
        assert "was asked for and not published" in failed
        assert "part-1.jsonl.gz" in failed
        assert not [text for text in problems if "has" in text and "but" in text]


@pytest.mark.slow
def test_black_friday_is_cut_into_runs_of_even_work(engine, tmp_path, monkeypatch):
    """A day with twenty times the rows. Of so few rows the rest costs more, so it is left out."""
    monkeypatch.setattr(forecast, "ROWS_OF_RUN", 0)
    monkeypatch.setattr(forecast, "ROWS_OF_DAY", 0)
    pipeline = Pipeline(engine, tmp_path, window_days=0, partitions_per_run=14)
    for n in range(1, 31):
        pipeline.land(n, [order(f"o{n}-{k}", n) for k in range(200 if n == 15 else 15)])
    all_days = f"{day(1)}...{day(30)}"
    whole = make_plan(pipeline, all_days, chunk_days=None)
    assert [str(window) for _, window in whole.stages] == [all_days]
    plan = make_plan(pipeline, all_days)
    assert [window for _, window in plan.stages] != Window.parse(all_days).split_by_length(14)
    launch_plan(pipeline, plan.id)
    # The cut is kept with the plan: plans that are made since would have another.
    monkeypatch.setattr(forecast, "even_stages", lambda days, **_: [days])
    stages = []
    while state_store.active_ids(pipeline.instance):
        if "under way" in tick_planned_backfills(pipeline):
            stages.append(run_stage(pipeline))
    assert state_store.load(pipeline.instance, plan.id).complete
    assert stages == [f"{plan.id}-{name}" for name, _ in plan.stages]
    records = {
        name: read_ledgers(pipeline.deployment)[name].records for name in (RAW.name, STAGED.name)
    }
    for stage_records in records.values():
        assert [record.backfill_id for record in stage_records] == stages
        rows = [sum(day.rows for day in record.days.values()) for record in stage_records]
        assert all(abs(count / mean(rows) - 1) <= 0.3 for count in rows), rows


def test_a_failing_pilot_leaves_the_rest_unlaunched(pipeline):
    pipeline.land(1, ["{not json"], "_control.json")
    pipeline.folder(1).joinpath("part-1.jsonl.gz").write_bytes(b"broken")
    plan = make_plan(pipeline, "2024-01-01...2024-01-04", tables=[RAW.name], pilot_days=1)
    launch_plan(pipeline, plan.id)
    run_stage(pipeline, fails=True)
    tick_planned_backfills(pipeline)
    assert "did not pass" in tick_planned_backfills(pipeline)
    state = state_store.load(pipeline.instance, plan.id)
    assert not state.complete
    assert state.ended.endswith("not launched: 2024-01-02...2024-01-04")
    assert pipeline.instance.get_backfill(f"{plan.id}-rest") is None
    (run,) = pipeline.instance.get_runs(dg.RunsFilter(job_name="reconcile"))
    steps = [e.dagster_event for e in pipeline.instance.all_logs(run.run_id) if e.dagster_event]
    (failed,) = [event.step_failure_data for event in steps if event.is_step_failure]
    description = failed.user_failure_data.description
    assert "raw_orders [2024-01-01] was asked for and not published" in description
    assert re.search(
        r"run \w{8} failed: check_days: .*[^/]*part-1.jsonl.gz", description, re.DOTALL
    ), description
    # Mended, the same backfill goes on from the stage that failed.
    pipeline.folder(1).joinpath("part-1.jsonl.gz").unlink()
    pipeline.folder(1).joinpath("_control.json").unlink()
    launch_plan(pipeline, plan.id)
    assert run_stage(pipeline) == f"{plan.id}-pilot-2"
    tick_planned_backfills(pipeline)
    assert f"{plan.id}-rest is launched" in tick_planned_backfills(pipeline)


def test_a_backfill_does_not_go_on_from_stages_that_were_undone(pipeline):
    pipeline.folder(3).joinpath("part-1.jsonl.gz").write_bytes(b"broken")
    plan = make_plan(pipeline, "2024-01-01...2024-01-04", pilot_days=2, tables=["raw_orders"])
    launch_plan(pipeline, plan.id)
    pilot = run_stage(pipeline)
    tick_planned_backfills(pipeline)
    tick_planned_backfills(pipeline)
    run_id = read_ledgers(pipeline.deployment)["raw_orders"].records[-1].run_id
    run_undo(pipeline, run_id[:8], fails=True)  # the rest is under way
    rest = run_stage(pipeline, fails=True)
    tick_planned_backfills(pipeline)
    tick_planned_backfills(pipeline)
    pipeline.folder(3).joinpath("part-1.jsonl.gz").unlink()
    run_undo(pipeline, rest)  # of the stage that is launched again, this may be
    run_undo(pipeline, pilot, "2024-01-02")
    with pytest.raises(BackfillRefusedError, match=r"\[2024-01-02\], which the stages before"):
        launch_plan(pipeline, plan.id)
    assert state_store.active_ids(pipeline.instance) == []


def test_what_has_moved_since_the_plan_is_named(loaded):
    plan = make_plan(loaded, "2024-01-01...2024-01-03", tables=PAIR)
    loaded.land(2, [order("more", 2)], "more.jsonl")
    loaded.log(RAW.name).delete(f"log_date = '{day(2)}'")
    with pytest.raises(BackfillRefusedError) as refused:
        launch_plan(loaded, plan.id)
    message = str(refused.value)
    version = loaded.log("raw_orders").version()
    assert f"raw_orders was at version {version - 1} and is at {version}" in message
    assert "files have landed (or gone)" in message
    assert "stg_orders" not in message
    assert state_store.active_ids(loaded.instance) == []


@pytest.fixture
def redeployed(pipeline, engine, monkeypatch):
    """The same deployment with other code."""
    monkeypatch.setattr(code_version, "running_code", lambda *_: Code("deployed-meanwhile"))
    other = Pipeline(engine, pipeline.root, window_days=2)
    other.instance = pipeline.instance
    return other


def test_other_code_does_not_finish_a_backfill(pipeline, redeployed):
    plan = make_plan(pipeline, "2024-01-01...2024-01-02", tables=[RAW.name], pilot_days=1)
    launch_plan(pipeline, plan.id)
    run_stage(redeployed, fails=True)
    assert all(ledger.records == () for ledger in read_ledgers(pipeline.deployment).values())
    tick_planned_backfills(redeployed)
    assert "did not pass" in tick_planned_backfills(redeployed)
    with pytest.raises(BackfillRefusedError, match=r"the code was .* and is deployed-meanwhile"):
        launch_plan(redeployed, plan.id)


def test_without_a_plan_other_code_is_refused_as_well(loaded, redeployed):
    tags = {"dagster/backfill": "byhand12"}
    failed = redeployed.run(1, 2, ["stg_orders"], tags=tags, fails=True)
    assert "backfill byhand12 has published 2024-01-01...2024-01-03 of raw_orders" in (
        redeployed.failure(failed)
    )
    assert read_ledgers(loaded.deployment)[STAGED.name].records == ()
    redeployed.run(1, 2, ["stg_orders"], tags={"dagster/backfill": "another1"})


def test_the_days_that_follow(pipeline):
    """A table that follows two others has the days of both; Dagster's own search may lose some."""
    days = days_by_table(pipeline.deployment, list(TABLES), Window(day(4), day(6)))
    assert [*days] == [*TABLES]
    for name in TABLES:
        follows = (
            name
            in Graph.from_tables(
                TABLES.values(), Policy.from_settings(pipeline.settings)
            ).by_event_day
        )
        assert days[name] == [day(n) for n in ((2, 3, 4, 5) if follows else (4, 5))], name
    assert days_by_table(pipeline.deployment, ["fact_daily_orders"], Window(day(4), day(6))) == {
        "fact_daily_orders": [day(4), day(5)]
    }


def test_a_stage_passes_if_it_has_nothing_to_do_and_not_if_dagster_calls_it_failed(loaded):
    raw = {"tables": [RAW.name]}
    plan = make_plan(loaded, "2024-01-01...2024-01-04", chunk_days=2, **raw)
    launch_plan(loaded, plan.id)
    run_stage(loaded)
    # A day was published as it should be when the stage ran: what lands then is not its fault.
    loaded.land(1, [order("late", 1)], "late.jsonl")
    tick_planned_backfills(loaded)
    assert "002 is launched" in tick_planned_backfills(loaded)
    run_stage(loaded)
    tick_planned_backfills(loaded)
    assert tick_planned_backfills(loaded) == "complete and reconciled"
    spark = loaded.io_manager.engine.spark_session
    result = reconcile_backfill(loaded.deployment, loaded.instance, spark, plan.id)
    assert result.problems == []
    for runs, text in ((True, "ended as canceled in Dagster"), (False, "did not pass")):
        plan = make_plan(loaded, "2024-01-01...2024-01-04", rewrite=True, **raw)
        launch_plan(loaded, plan.id)
        if runs:
            run_stage(loaded)
        backfill = loaded.instance.get_backfill(f"{plan.id}-rest")
        loaded.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
        tick_planned_backfills(loaded)
        assert text in tick_planned_backfills(loaded)
        assert not state_store.load(loaded.instance, plan.id).complete


def test_days_whose_input_is_not_there(pipeline):
    """Those that only follow are left out; those that were asked for are refused, by name."""
    plan = make_plan(pipeline, "2024-01-05...2024-01-06", tables=[RAW.name, STAGED.name])
    assert plan.tables["stg_orders"].lacking == ("2024-01-03...2024-01-04",)
    launch_plan(pipeline, plan.id)
    run_stage(pipeline)
    tick_planned_backfills(pipeline)
    tick_planned_backfills(pipeline)
    assert state_store.load(pipeline.instance, plan.id).complete
    alone = make_plan(pipeline, "2024-01-02...2024-01-05", tables=["stg_orders"])
    with pytest.raises(BackfillRefusedError, match=r"stg_orders \[2024-01-02...2024-01-04\]"):
        launch_plan(pipeline, alone.id)


def run_job(pipeline, *, root=None, plan=""):
    """A run of the job `backfill`; as Dagster's retry of another, if one is given."""
    days = {"days": "2024-01-01...2024-01-02", "tables": [RAW.name]}
    tags = {"dagster/retry_number": "1", "dagster/parent_run_id": root, "dagster/root_run_id": root}
    return pipeline.repository.get_job("backfill").execute_in_process(
        instance=pipeline.instance,
        run_config={"ops": {"launch_stages": {"config": {"plan": plan} if plan else days}}},
        tags=tags if root else {},
    )


def test_a_launch_that_is_retried_launches_no_second_backfill(pipeline):
    """Its process was lost when it had done its work, or before it had done any."""
    first = run_job(pipeline)
    (id_,) = state_store.active_ids(pipeline.instance)
    assert first.run_id.startswith(id_)
    run_job(pipeline, root=first.run_id)
    assert state_store.active_ids(pipeline.instance) == [id_]
    assert len(pipeline.instance.get_backfills()) == 1
    # When it has ended, one that a person runs again is another.
    state = state_store.load(pipeline.instance, id_)
    stage = pipeline.instance.get_backfill(state.backfill_id)
    pipeline.instance.update_backfill(stage.with_status(BulkActionStatus.CANCELED))
    backfills._end_backfill(pipeline.instance, state, "it did not pass")
    assert not run_job(pipeline).run_id.startswith(id_)
    assert len(pipeline.instance.get_backfills()) == 2


def test_a_launch_that_is_retried_launches_a_plan_that_had_failed(pipeline):
    """The launch before it, which failed, is none of the lost run's."""
    plan = make_plan(pipeline, "2024-01-01")
    launch_plan(pipeline, plan.id)
    stage = pipeline.instance.get_backfill(f"{plan.id}-rest")
    pipeline.instance.update_backfill(stage.with_status(BulkActionStatus.CANCELED))
    state = state_store.load(pipeline.instance, plan.id)
    backfills._end_backfill(pipeline.instance, state, "it did not pass")
    lost = pipeline.instance.create_run_for_job(
        pipeline.repository.get_job("backfill"), status=dg.DagsterRunStatus.FAILURE
    )
    run_job(pipeline, root=lost.run_id, plan=plan.id)
    assert state_store.active_ids(pipeline.instance) == [plan.id]
    assert state_store.load(pipeline.instance, plan.id).backfill_id == f"{plan.id}-rest-2"
    # A second retry finds that launch.
    run_job(pipeline, root=lost.run_id, plan=plan.id)
    assert len(pipeline.instance.get_backfills()) == 2


def test_a_plan_that_cannot_be_read_does_not_stop_the_others(pipeline):
    unreadable, plan = (make_plan(pipeline, days) for days in ("2024-01-01", "2024-01-02"))
    launch_plan(pipeline, unreadable.id)
    launch_plan(pipeline, plan.id)
    cursor_values = {f"backfill_assets/plan/{unreadable.id}": "{}"}
    pipeline.instance.daemon_cursor_storage.set_cursor_values(cursor_values)
    message = tick_planned_backfills(pipeline)
    assert f"plan {unreadable.id} was kept by another version" in message
    assert "(plan: Field required)" in message
    assert "Dagster works at its last stage" in message
    assert f"{plan.id}-rest is under way" in message
    # Its stage ends: it is closed, and can be undone.
    stage = pipeline.instance.get_backfill(f"{unreadable.id}-rest")
    pipeline.instance.update_backfill(stage.with_status(BulkActionStatus.CANCELED))
    assert "; closed" in tick_planned_backfills(pipeline)
    assert state_store.active_ids(pipeline.instance) == [plan.id]
    state_store.find_ended_backfill(pipeline.instance, unreadable.id)
    # Its post-mortem says so, and what it launched is known.
    ledgers = read_ledgers(pipeline.deployment)
    page = history.render_postmortem(
        read_history(pipeline.deployment, pipeline.instance, ledgers, unreadable.id)
    )
    assert f"plan {unreadable.id} was kept by another version" in page
    assert "There was no plan" not in page
    # Its day is still due.
    assert any(
        day(1) in request.window for request in RunPlanner(pipeline.deployment).plan_loads(day(9))
    )


def test_a_plan_of_a_table_that_is_no_more_is_closed(pipeline):
    orphaned, plan = (make_plan(pipeline, days) for days in ("2024-01-01", "2024-01-02"))
    for launched in (orphaned, plan):
        launch_plan(pipeline, launched.id)
    state = state_store.load(pipeline.instance, orphaned.id)
    parameters = state.plan.parameters.model_copy(update={"tables": ("gone",)})
    state.plan = state.plan.model_copy(update={"parameters": parameters})
    state_store.save(pipeline.instance, state)
    message = tick_planned_backfills(pipeline)
    assert f"no table gone; {orphaned.id}-rest and what follows it is not built" in message
    assert f"{plan.id}-rest is under way" in message
    assert state_store.active_ids(pipeline.instance) == [plan.id]
    assert "no table gone" in state_store.load(pipeline.instance, orphaned.id).ended
    # As long as Dagster works at its stage, it cannot be undone or launched again.
    with pytest.raises(BackfillRefusedError, match=f"{orphaned.id} is under way"):
        state_store.find_ended_backfill(pipeline.instance, orphaned.id)
    stage = pipeline.instance.get_backfill(f"{orphaned.id}-rest")
    pipeline.instance.update_backfill(stage.with_status(BulkActionStatus.FAILED))
    state_store.find_ended_backfill(pipeline.instance, orphaned.id)


def test_a_stage_that_somebody_else_has_just_added(pipeline, monkeypatch):
    """The sensor and a person come to it at once; Dagster takes each id but once."""
    plan = make_plan(pipeline, "2024-01-01")
    state = launch_plan(pipeline, plan.id)
    get, answers = pipeline.instance.get_backfill, [None]
    monkeypatch.setattr(
        pipeline.instance, "get_backfill", lambda id_: answers.pop() if answers else get(id_)
    )
    backfills.advance(pipeline.deployment, pipeline.instance, graph_of(pipeline), state)
    assert answers == []
    assert len(pipeline.instance.get_backfills()) == 1


def test_what_is_under_way_is_not_undone(pipeline):
    plan = make_plan(pipeline, "2024-01-01...2024-01-02")
    launch_plan(pipeline, plan.id)
    for name in (plan.id, f"{plan.id}-rest"):
        with pytest.raises(BackfillRefusedError, match="is under way"):
            state_store.find_ended_backfill(pipeline.instance, name)
    state_store.find_ended_backfill(pipeline.instance, "another1")


@pytest.mark.parametrize(
    ("past", "runs", "days", "seconds"),
    [
        ([], 2, 10, None),
        # 20 seconds a run and 1 second a day.
        ([(1, 21), (10, 30), (30, 50)], 4, 40, 120),
        # Of one size only: shorter runs are taken for no quicker, longer ones for slower.
        ([(31, 40), (31, 60)], 4, 10, 200),
        ([(10, 40)], 2, 60, 240),
        # More days took less: no trend to go by.
        ([(1, 60), (3, 40)], 2, 4, 100),
    ],
)
def test_the_expected_duration(past, runs, days, seconds):
    assert expected_seconds(past, runs, days) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "days", ["2024-01-05...2024-01-01", "2023-12-31", "2024-01-31...2024-02-01"]
)
def test_days_of_no_calendar(pipeline, days):
    with pytest.raises(ValueError, match=r"the calendar, which is 2024-01-01\.\.\.2024-01-31"):
        make_plan(pipeline, days)


def test_days_of_different_settings_do_not_meet(pipeline, engine):
    """The window is changed, and the facts alone are rebuilt: an order could count twice."""
    pipeline.land(6, [order("late", 3, ingested=f"{day(6)}T10:00:00Z")], "late.jsonl")
    pipeline.run(1, 6, CHAIN)
    other = Pipeline(engine, pipeline.root, land=False, window_days=3)
    other.instance = pipeline.instance
    before = {name: pipeline.log(name).version() for name in CHAIN}
    result = other.run(3, 5, ["fact_daily_orders"], fails=True)
    failed = other.failure(result)
    for n in (3, 4, 5):
        assert (
            f"stg_orders[{day(n)}] was made under other settings; rebuild these days first"
        ) in failed
    assert {name: pipeline.log(name).version() for name in CHAIN} == before
    # The plan says so beforehand, and is not launched.
    plan = make_plan(other, "2024-01-03...2024-01-05", tables=["fact_daily_orders"])
    assert plan.tables["fact_daily_orders"].other_settings == ("2024-01-03...2024-01-05",)
    with pytest.raises(
        BackfillRefusedError, match=r"fact_daily_orders \[2024-01-03...2024-01-05\]"
    ):
        launch_plan(other, plan.id)
    # With the input they can be built. The raw log is the same under any window.
    whole = make_plan(other, "2024-01-03...2024-01-05", tables=CHAIN)
    assert whole.tables["raw_orders"].identical == ("2024-01-03...2024-01-05",)
    assert whole.tables["fact_daily_orders"].other_settings == ()
    tags = {"dagster/backfill": "again123"}
    other.run(1, 6, CHAIN, tags=tags)
    assert other.log("raw_orders").version() == before["raw_orders"]
    ledgers, digests = read_ledgers(other.deployment), Deployment(other.settings).config_digests
    for name in CHAIN:
        assert {r.config_digest for r in ledgers[name].latest.values()} == {digests[name]}
    # What is put back says that the settings of then made it: the one day that differs.
    run_undo(other, "again123")
    for name in ("stg_orders", "fact_daily_orders"):
        table_ledger = read_ledgers(other.deployment)[name]
        assert table_ledger.under_other_settings(digests[name]) == {day(3)}
        assert (
            table_ledger.latest[day(3)].made_under(day(3))
            == pipeline.deployment.config_digests[name]
        )


def test_a_plan_sees_the_settings_of_all_days_that_are_read(tmp_path):
    """Of the raw log, days 5 and 6 were made under others; staging reads W days ahead."""
    settings = load_settings(landing=str(tmp_path), window_days=2)
    (tmp_path / "orders").mkdir()
    digest = Deployment(settings).config_digests[RAW.name]
    raw = ledger(
        RAW,
        record(0, days((1, 8)), config_digest=digest),
        record(1, days(5, 6), config_digest="old"),
    )

    def plan_tables(tables, window):
        parameters = BackfillRequest(days=str(window), tables=tables)
        days_by_table = {name: list(window) for name in tables}
        return plan_backfill(
            Deployment(settings), parameters, days_by_table, ledgers(raw), Code("c"), "id"
        ).tables

    staged = plan_tables([STAGED.name], Window(day(1), day(8)))[STAGED.name]
    assert staged.other_settings == ("2024-01-03...2024-01-06",)
    assert staged.computed == ("2024-01-01...2024-01-02", "2024-01-07")
    # Those that the plan itself rebuilds first are no hindrance, and only those.
    both = plan_tables([RAW.name, STAGED.name], Window(day(1), day(6)))[STAGED.name]
    assert both.other_settings == ("2024-01-04...2024-01-05",)
