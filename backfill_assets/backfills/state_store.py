"""Backfills: the stored state of planned ones, their launches in Dagster, and where each is."""

import enum
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import dagster as dg
from pydantic import BaseModel, ValidationError, model_validator

from backfill_assets.backfills.backfill_plan import BackfillPlan
from backfill_assets.dagster_ext import internals
from backfill_assets.deployment import Deployment

#: Key of a plan in Dagster's storage.
_PLAN_KEY = "backfill_assets/plan/{}"
#: Ids of active backfills, as dynamic partitions: Dagster adds and deletes these one by one, also
#: with concurrent writers.
ACTIVE = "backfill_assets_plans_under_way"
#: Ids of all plans, oldest first, as Dagster's storage cannot list its keys.
_PLAN_IDS = "backfill_assets_plans"
#: Characters of an id of a run in Dagster.
_RUN_ID_LENGTH = 36


class BackfillRefusedError(ValueError):
    """A backfill was refused; nothing was written."""


class PlanUnreadableError(BackfillRefusedError):
    """A plan is stored in a format that this release does not know."""


class BackfillState(BaseModel):
    """A plan and its progress.

    Attributes:
        plan: the plan.
        stage: index of the current stage, from 0.
        attempt: launches of that stage, from 1; 0 before the first.
        ended: how it ended, in a sentence; empty until then.
        complete: whether it ended successfully.
        made: time of planning, in seconds since 1970; 0 if not recorded.
        began: time of launch, in seconds since 1970.
        took: seconds from launch to end.
        key_prefix: of the deployment; empty if it has none.
    """

    plan: BackfillPlan
    stage: int = 0
    attempt: int = 0
    ended: str = ""
    complete: bool = False
    made: float = 0
    began: float = 0
    took: float = 0
    key_prefix: str = ""

    @model_validator(mode="after")
    def _check_stage_exists(self) -> Self:
        if self.stage not in range(len(self.plan.stages)):
            raise ValueError(f"there is no stage {self.stage}")
        return self

    @property
    def backfill_id(self) -> str:
        """The id of the current stage's backfill in Dagster."""
        name, _ = self.plan.stages[self.stage]
        suffix = f"-{self.attempt}" if self.attempt > 1 else ""
        return f"{self.plan.id}-{name}{suffix}"


def save(instance: dg.DagsterInstance, state: BackfillState) -> None:
    """Store a plan and its progress."""
    _cursor_storage(instance).set_cursor_values(
        {_PLAN_KEY.format(state.plan.id): state.model_dump_json()}
    )
    instance.add_dynamic_partitions(_PLAN_IDS, [state.plan.id])


def list_ids(instance: dg.DagsterInstance) -> list[str]:
    """The ids of all stored plans of the instance, oldest first."""
    return list(instance.get_dynamic_partitions(_PLAN_IDS))


def own_ids(deployment: Deployment, instance: dg.DagsterInstance, ids: Iterable[str]) -> list[str]:
    """Those of the stored plans that the deployment made; others on the instance have theirs."""
    keys = {_PLAN_KEY.format(id_): id_ for id_ in ids}
    texts = _cursor_storage(instance).get_cursor_values({*keys})
    prefix = deployment.key_prefix
    return [id_ for key, id_ in keys.items() if _key_prefix_of(texts.get(key, "")) == prefix]


def refuse_of_others(deployment: Deployment, instance: dg.DagsterInstance, id_: str) -> None:
    """Refuse a stored plan that another deployment on the instance has made.

    Raises:
        BackfillRefusedError: it names both key prefixes.
    """
    key = _PLAN_KEY.format(id_)
    planned_under = _key_prefix_of(_cursor_storage(instance).get_cursor_values({key}).get(key, ""))
    if planned_under != deployment.key_prefix and id_ in list_ids(instance):
        raise BackfillRefusedError(
            f"backfill {id_} is of another deployment: it was planned under the key prefix "
            f"{planned_under!r}, and this one has {deployment.key_prefix!r}. Give the command the "
            "settings of that one, or make a new plan here."
        )


def _key_prefix_of(text: str) -> str:
    """The key prefix of a stored plan; empty if another release stored it in another format."""
    try:
        return json.loads(text).get("key_prefix", "")
    except (ValueError, AttributeError):
        return ""


def load(instance: dg.DagsterInstance, id_: str) -> BackfillState:
    """Read a stored plan.

    Raises:
        BackfillRefusedError: there is none.
        PlanUnreadableError: another release stored it, in another format.
    """
    key = _PLAN_KEY.format(id_)
    text = _cursor_storage(instance).get_cursor_values({key}).get(key)
    if not text:
        raise BackfillRefusedError(
            f"there is no plan {id_} in this DAGSTER_HOME; make one with `backfill-assets plan`"
        )
    try:
        return BackfillState.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise PlanUnreadableError(
            f"plan {id_} was kept by another version of this project and cannot be read ({field}: "
            f"{first['msg']}). It launches nothing more. What its runs published stays; what is "
            "left of its days is in the backlog. Make a new plan for them"
        ) from error


def close_by_id(instance: dg.DagsterInstance, id_: str) -> bool:
    """End an active backfill whose plan cannot be read; its stored state stays.

    Returns:
        Whether it has ended; False while a stage of it is active in Dagster.
    """
    if any(launch.backfill_id.startswith(f"{id_}-") for launch in active_launches(instance)):
        return False
    instance.delete_dynamic_partition(ACTIVE, id_)
    return True


def active_launches(instance: dg.DagsterInstance) -> Sequence[internals.PartitionBackfill]:
    """The backfills of Dagster that have not ended, planned or not."""
    ended = internals.BULK_ACTION_TERMINAL_STATUSES
    active = [status for status in internals.BulkActionStatus if status not in ended]
    return instance.get_backfills(internals.BulkActionsFilter(statuses=active))


def delete_older(deployment: Deployment, instance: dg.DagsterInstance, before: float) -> list[str]:
    """Delete plans that ended, or were made and never launched, before a time (seconds since 1970).

    Plans that are active or have no recorded time stay.

    Returns:
        Ids of the deleted plans.
    """
    deleted, active = [], active_ids(instance)
    for id_ in own_ids(deployment, instance, list_ids(instance)):
        try:
            state = load(instance, id_)
        except BackfillRefusedError:  # of another release: its age is not known
            continue
        last = max(state.made, state.began + state.took)
        if id_ not in active and 0 < last < before:
            # Dagster's cursor storage cannot delete a key.
            _cursor_storage(instance).set_cursor_values({_PLAN_KEY.format(id_): ""})
            instance.delete_dynamic_partition(_PLAN_IDS, id_)
            deleted.append(id_)
    return deleted


def active_ids(instance: dg.DagsterInstance) -> list[str]:
    """The ids of backfills that are launched and have not ended."""
    return sorted(instance.get_dynamic_partitions(ACTIVE))


def _cursor_storage(instance: dg.DagsterInstance) -> internals.DaemonCursorStorage:
    """Dagster's key-value storage for its daemons."""
    store = instance.daemon_cursor_storage
    assert store is not None
    return store


class BackfillStatus(enum.Enum):
    """Where a backfill is, in the words of messages."""

    NOT_LAUNCHED = "not launched"
    ACTIVE = "under way"
    COMPLETED = "complete"
    #: A stage did not pass, or was canceled.
    FAILED = "ended"


SUCCEEDED = (
    internals.BulkActionStatus.COMPLETED,
    internals.BulkActionStatus.COMPLETED_SUCCESS,
)


def read_status(
    instance: dg.DagsterInstance, name: str, state: BackfillState | None
) -> BackfillStatus:
    """Where a backfill is.

    A stage is active as long as its plan is. What Dagster knows no backfill of, as a run that a
    person launched, is not launched.

    Args:
        instance: Dagster's instance.
        name: of a plan, one of its stages, or a launch without a plan.
        state: the stored state of the plan; None without a plan.
    """
    if name.partition("-")[0] in active_ids(instance):
        return BackfillStatus.ACTIVE
    is_plan = state is not None and name == state.plan.id
    launch = instance.get_backfill(state.backfill_id if state and is_plan else name)
    if launch and launch.status not in internals.BULK_ACTION_TERMINAL_STATUSES:
        return BackfillStatus.ACTIVE  # also of a plan that ended as it lacks a table
    if state and is_plan and state.ended:
        return BackfillStatus.COMPLETED if state.complete else BackfillStatus.FAILED
    if launch is None:
        return BackfillStatus.NOT_LAUNCHED
    # A plan is complete only once its stages are reconciled.
    succeeded = launch.status in SUCCEEDED and not is_plan
    return BackfillStatus.COMPLETED if succeeded else BackfillStatus.FAILED


@dataclass(frozen=True)
class Backfill:
    """A backfill, a stage of it, or a run; a launch without a plan is its own only stage.

    Attributes:
        name: as in `changes.is_commit_of`.
        state: the stored plan and its progress, also for a stage of it; None without a plan.
        launches: its backfills in Dagster, each attempt of each stage, in order.
        status: where it is.
        plan_error: why its plan cannot be read; empty if it was read or there is none.
    """

    name: str
    state: BackfillState | None
    launches: Sequence[internals.PartitionBackfill]
    status: BackfillStatus
    plan_error: str = ""

    @property
    def plan(self) -> BackfillPlan | None:
        """The plan of all of it; None for a stage, and without a plan."""
        return self.state.plan if self.state and self.name == self.state.plan.id else None


def find_backfill(instance: dg.DagsterInstance, name: str) -> Backfill:
    """The backfill, stage or run of that name, also if nothing is recorded of it.

    The id of a run of the job `backfill` without a plan is that of the plan that it made.
    """
    id_, state, plan_error = name.partition("-")[0], None, ""
    try:
        state = load(instance, id_)
    except PlanUnreadableError as error:
        plan_error = str(error)
    except BackfillRefusedError:
        pass  # no plan
    if (state or plan_error) and len(name) == _RUN_ID_LENGTH:
        name = id_
    if plan_error:  # it does not say which stages there are
        candidates = sorted(instance.get_backfills(), key=lambda launch: launch.backfill_timestamp)
    else:
        stages = [f"{id_}-{stage}" for stage, _ in state.plan.stages] if state else [name]
        candidates = [
            launch
            for stage in stages
            if f"{name}-".startswith(f"{stage}-") or f"{stage}-".startswith(f"{name}-")
            for launch in _stage_attempts(instance, stage)
        ]
    launches = [launch for launch in candidates if f"{launch.backfill_id}-".startswith(f"{name}-")]
    status = read_status(instance, name, state)
    if plan_error and launches and status is BackfillStatus.NOT_LAUNCHED:
        ended = all(launch.status in internals.BULK_ACTION_TERMINAL_STATUSES for launch in launches)
        status = BackfillStatus.FAILED if ended else BackfillStatus.ACTIVE
    return Backfill(name, state, launches, status, plan_error)


def _stage_attempts(
    instance: dg.DagsterInstance, stage: str
) -> Iterator[internals.PartitionBackfill]:
    """The backfills in Dagster of a stage, or the one that was launched without a plan."""
    attempt, launch = 1, instance.get_backfill(stage)
    while launch is not None:
        yield launch
        attempt += 1
        launch = instance.get_backfill(f"{stage}-{attempt}")


def find_ended_backfill(instance: dg.DagsterInstance, name: str) -> Backfill:
    """The backfill of that name; one that is under way must not be undone or built again.

    Raises:
        BackfillRefusedError: a planned backfill or one of Dagster's of that name has not ended.
    """
    backfill = find_backfill(instance, name)
    if backfill.status is BackfillStatus.ACTIVE:
        raise BackfillRefusedError(
            f"backfill {name} is under way; cancel it, or let it end, and ask again. Nothing was "
            "written."
        )
    return backfill
