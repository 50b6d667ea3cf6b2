"""Where a backfill is, with a plan and without one."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.test_utils import create_run_for_test
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backfill_assets.backfills import stages, state_store
from backfill_assets.backfills.state_store import (
    BackfillRefusedError,
    BackfillStatus,
    find_backfill,
    find_ended_backfill,
)
from backfill_assets.dagster_ext.internals import AssetGraph
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.next_runs import tables_in_progress
from backfill_assets.orders.tables import FACT
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.command_line import save_launch, save_plan
from backfill_assets_tests.helpers.memory_instance import memory_instance

ID, DEPLOYMENT = "planplan", Deployment(load_settings())
DONE = BulkActionStatus.COMPLETED_SUCCESS


@dg.asset(name=FACT.name, partitions_def=dg.DailyPartitionsDefinition("2024-01-01"))
def facts() -> None:
    """The table of `save_plan`."""


class Lifecycle:
    """A plan of two stages in Dagster, and a model of it.

    Attributes:
        status: where the model is.
        launched: the ids of the stages that the model has launched.
        stage_status: of the last of them in Dagster.
        verdict: of its reconciliation; None before it.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.graph = instance, AssetGraph.from_assets([facts])
        state = save_plan(instance, ID)
        parameters = state.plan.parameters.model_copy(update={"pilot_days": 1})
        self.plan = state.plan.model_copy(update={"parameters": parameters})
        state_store.save(instance, state.model_copy(update={"plan": self.plan}))
        self.status = BackfillStatus.NOT_LAUNCHED
        self.launched: list[str] = []
        self.stage_status = BulkActionStatus.REQUESTED
        self.verdict: bool | None = None

    def launch(self) -> None:
        if self.status in (BackfillStatus.ACTIVE, BackfillStatus.COMPLETED):
            with pytest.raises(BackfillRefusedError, match=f"{ID} is {self.status.value};"):
                stages.launch_stage(DEPLOYMENT, self.instance, self.graph, ID, self.plan)
            return
        stages.launch_stage(DEPLOYMENT, self.instance, self.graph, ID, self.plan)
        stage = "rest" if f"{ID}-rest" in self.launched else "pilot"
        attempt = sum(name.startswith(f"{ID}-{stage}") for name in self.launched) + 1
        self._start(f"{ID}-{stage}" + (f"-{attempt}" if attempt > 1 else ""))

    def _start(self, name: str) -> None:
        self.launched.append(name)
        self.status, self.verdict = BackfillStatus.ACTIVE, None
        self.stage_status = BulkActionStatus.REQUESTED

    def end(self, status: BulkActionStatus) -> None:
        """The stage ends in Dagster."""
        if self.status is BackfillStatus.ACTIVE and self.verdict is None:
            launch = self.instance.get_backfill(self.launched[-1])
            assert launch
            self.instance.update_backfill(launch.with_status(status))
            self.stage_status = status

    def reconcile(self, *, passes: bool) -> None:
        ended = self.stage_status is not BulkActionStatus.REQUESTED
        if self.status is BackfillStatus.ACTIVE and ended and self.verdict is None:
            self.verdict = passes
            create_run_for_test(
                self.instance,
                job_name=stages.RECONCILE_JOB,
                tags={stages.RECONCILES_TAG: self.launched[-1]},
                status=dg.DagsterRunStatus.SUCCESS if passes else dg.DagsterRunStatus.FAILURE,
            )

    def advance(self) -> None:
        """The sensor's tick."""
        for id_ in state_store.active_ids(self.instance):
            stages.advance(
                DEPLOYMENT, self.instance, self.graph, state_store.load(self.instance, id_)
            )
        if self.status is not BackfillStatus.ACTIVE or self.verdict is None:
            return
        if not self.verdict or self.stage_status is not DONE:
            self.status = BackfillStatus.FAILED
        elif "rest" in self.launched[-1]:
            self.status = BackfillStatus.COMPLETED
        else:
            self._start(f"{ID}-rest")

    def check(self) -> None:
        backfill = find_backfill(self.instance, ID)
        assert backfill.status is self.status
        assert [launch.backfill_id for launch in backfill.launches] == self.launched
        assert backfill.state
        progress = stages.describe_progress(self.instance, backfill.state)
        assert (progress == "not launched") is (self.status is BackfillStatus.NOT_LAUNCHED)
        for name in (ID, *self.launched):
            if self.status is BackfillStatus.ACTIVE:
                with pytest.raises(BackfillRefusedError, match="is under way"):
                    find_ended_backfill(self.instance, name)
            else:
                assert find_ended_backfill(self.instance, name).status is not BackfillStatus.ACTIVE


ACTIONS = {
    "launch": Lifecycle.launch,
    "stage is built": lambda lifecycle: lifecycle.end(DONE),
    "stage is canceled": lambda lifecycle: lifecycle.end(BulkActionStatus.CANCELED),
    "passes": lambda lifecycle: lifecycle.reconcile(passes=True),
    "does not pass": lambda lifecycle: lifecycle.reconcile(passes=False),
    "tick": Lifecycle.advance,
}


ONE_STAGE = ["stage is built", "passes", "tick"]


@settings(max_examples=25)
@given(st.lists(st.sampled_from([*ACTIONS]), max_size=12))
@example([*ONE_STAGE, *ONE_STAGE, "tick", "launch"])
@example([*ONE_STAGE, "stage is canceled", "passes", "tick", "launch", *ONE_STAGE])
@example(["stage is built", "does not pass", "tick", "launch", *ONE_STAGE])
def test_a_planned_backfill_is_where_its_history_puts_it(actions):
    with memory_instance() as instance:
        lifecycle = Lifecycle(instance)
        lifecycle.check()
        for action in ("launch", *actions):
            ACTIONS[action](lifecycle)
            lifecycle.check()


def test_a_relaunch_that_was_lost_is_launched_again():
    """Its process ended between the storage of the attempt and the launch."""
    with memory_instance() as instance:
        lifecycle = Lifecycle(instance)
        for action in ("launch", "stage is built", "does not pass", "tick"):
            ACTIONS[action](lifecycle)
        state = state_store.load(instance, ID)
        state_store.save(instance, state.model_copy(update={"attempt": 2}))
        ACTIONS["launch"](lifecycle)
        lifecycle.check()
        assert lifecycle.launched == [f"{ID}-pilot", f"{ID}-pilot-2"]


@pytest.mark.parametrize("comes", [True, False], ids=["comes", "is given up"])
def test_a_reconciliation_that_lost_its_process_decides_nothing(comes):
    """Its retry does, if there is one."""
    with memory_instance() as instance:
        lifecycle = Lifecycle(instance)
        for action in ("launch", "stage is built"):
            ACTIONS[action](lifecycle)
        run = create_run_for_test(
            instance,
            job_name=stages.RECONCILE_JOB,
            tags={stages.RECONCILES_TAG: f"{ID}-pilot", "dagster/will_retry": "true"},
            status=dg.DagsterRunStatus.FAILURE,
        )
        lifecycle.advance()
        lifecycle.check()
        if comes:
            instance.add_run_tags(run.run_id, {"dagster/auto_retry_run_id": "retry"})
            lifecycle.reconcile(passes=True)
        else:
            instance.add_run_tags(run.run_id, {"dagster/will_retry": "false"})
            lifecycle.verdict = False
        lifecycle.advance()
        lifecycle.check()


@pytest.mark.parametrize("dagster_status", [*BulkActionStatus])
def test_a_launch_without_a_plan_is_where_dagster_says(dagster_status):
    active = {
        BulkActionStatus.REQUESTED,
        BulkActionStatus.CANCELING,
        BulkActionStatus.FAILING,
    }
    with memory_instance() as instance:
        assert find_backfill(instance, "byhand12").status is BackfillStatus.NOT_LAUNCHED
        save_launch(instance, "byhand12", {FACT.name: ["2024-01-01"]}, status=dagster_status)
        backfill = find_backfill(instance, "byhand12")
        waiting = tables_in_progress(instance, DEPLOYMENT)
    assert (backfill.state, backfill.plan, len(backfill.launches)) == (None, None, 1)
    assert bool(waiting) is (dagster_status in active), "its tables wait until it has ended"
    if dagster_status in active:
        assert backfill.status is BackfillStatus.ACTIVE
    else:
        succeeded = dagster_status in (DONE, BulkActionStatus.COMPLETED)
        expected = BackfillStatus.COMPLETED if succeeded else BackfillStatus.FAILED
        assert backfill.status is expected


@pytest.mark.parametrize("dagster_status", [BulkActionStatus.REQUESTED, DONE])
def test_a_plan_that_cannot_be_read_is_under_way_while_a_stage_of_it_is(dagster_status):
    """Also if it is not in the list of active plans: it must not be undone meanwhile."""
    with memory_instance() as instance:
        save_plan(instance, ID)
        key = state_store._PLAN_KEY.format(ID)
        instance.daemon_cursor_storage.set_cursor_values({key: "{}"})
        assert find_backfill(instance, ID).status is BackfillStatus.NOT_LAUNCHED
        save_launch(instance, f"{ID}-pilot", {FACT.name: ["2024-01-01"]}, status=DONE)
        save_launch(instance, f"{ID}-rest", {FACT.name: ["2024-01-02"]}, status=dagster_status)
        if dagster_status is DONE:
            assert find_ended_backfill(instance, ID).status is BackfillStatus.FAILED
        else:
            with pytest.raises(BackfillRefusedError, match=f"{ID} is under way"):
                find_ended_backfill(instance, ID)
