"""The state of planned backfills and their recorded commands, in the storage of Dagster.

Plans, launches, stages and undos are on record in Dagster's storage and in the tables' logs. An
account that a person asked for is not: it is kept here, in Dagster's storage as well.
"""

from __future__ import annotations

import logging
import time

import dagster as dg
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from backfill_assets.backfills.backfill_plan import BackfillPlan
from backfill_assets.dagster_ext.internals import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    DaemonCursorStorage,
)

_log = logging.getLogger(__name__)

_COMMANDS_KEY = "backfill_assets/commands/{}"
#: So many of one backfill are kept, the last ones.
_MOST_COMMANDS = 50
#: So many characters of an outcome.
_LONGEST_OUTCOME = 1000


class Command(BaseModel, frozen=True):
    """A command that was given.

    Attributes:
        at: when, in seconds since 1970.
        text: as it was typed.
        outcome: what came of it, in a sentence.
    """

    at: float
    text: str
    outcome: str


_COMMAND_LIST = TypeAdapter(list[Command])


def record_command(instance: dg.DagsterInstance, name: str, text: str, outcome: str) -> None:
    """Keep a command that was given now.

    Who may read the storage and not write to it has the answer all the same: a warning says that
    the command was not kept.

    Args:
        instance: where it is kept.
        name: what it was about, as `footprints.is_commit_of` takes it.
        text: as it was typed.
        outcome: what came of it.
    """
    command = Command(at=time.time(), text=text, outcome=outcome[:_LONGEST_OUTCOME])
    commands = [*list_commands(instance, name), command][-_MOST_COMMANDS:]
    store = instance.daemon_cursor_storage
    assert store is not None
    try:
        store.set_cursor_values({_command_key(name): _COMMAND_LIST.dump_json(commands).decode()})
    except Exception as error:  # noqa: BLE001 - each storage has errors of its own
        first_line = next(iter(str(error).splitlines()), "")
        _log.warning(
            "`%s` is not kept for the post-mortem of %s, as Dagster's storage does not take it "
            "(%s: %s)", text, name, type(error).__name__, first_line,
        )  # fmt: skip


def list_commands(instance: dg.DagsterInstance, name: str) -> list[Command]:
    """The commands about a backfill, the oldest first; none of what another version has kept."""
    store = instance.daemon_cursor_storage
    assert store is not None
    stored = store.get_cursor_values({_command_key(name)}).get(_command_key(name))
    try:
        return _COMMAND_LIST.validate_json(stored) if stored else []
    except ValidationError:
        return []


def delete_commands(instance: dg.DagsterInstance, name: str) -> None:
    """Keep nothing about a backfill any more."""
    store = instance.daemon_cursor_storage
    assert store is not None
    store.set_cursor_values({_command_key(name): ""})


def _command_key(name: str) -> str:
    """Of a backfill with all its stages; of a run, by the characters that name it."""
    return _COMMANDS_KEY.format(name.partition("-")[0])


#: Where Dagster keeps the plans for us.
_PLAN_KEY = "backfill_assets/plan/{}"
#: The ids of those that are under way: dynamic partitions, as these are what Dagster adds and takes
#: away one by one, whoever else does so at the same moment.
ACTIVE = "backfill_assets_plans_under_way"
#: The ids of all plans, the oldest first: Dagster's storage does not list what it keeps.
_PLAN_IDS = "backfill_assets_plans"


class BackfillRefusedError(ValueError):
    """A backfill was not launched; nothing was written."""


class PlanUnreadableError(BackfillRefusedError):
    """A plan is kept in a form that this version of the project does not know."""


class BackfillState(BaseModel):
    """A plan and how far it has come.

    Attributes:
        plan: the plan.
        stage: number of the stage that is under way, from 0.
        attempt: how often that stage has been launched, from 1; 0 if nothing has been yet.
        ended: how it ended, in a sentence; empty until then.
        complete: whether it ended well.
        made: when it was planned, in seconds since 1970; 0 if nobody recorded it.
        began: when it was launched, in seconds since 1970.
        took: seconds from then to its end.
    """

    plan: BackfillPlan
    stage: int = 0
    attempt: int = 0
    ended: str = ""
    complete: bool = False
    made: float = 0
    began: float = 0
    took: float = 0

    @model_validator(mode="after")
    def _check_stage_exists(self) -> BackfillState:
        if self.stage not in range(len(self.plan.stages)):
            raise ValueError(f"there is no stage {self.stage}")
        return self

    @property
    def backfill_id(self) -> str:
        """Of the stage that is under way, as a backfill of Dagster's."""
        name, _ = self.plan.stages[self.stage]
        suffix = f"-{self.attempt}" if self.attempt > 1 else ""
        return f"{self.plan.id}-{name}{suffix}"


def save(instance: dg.DagsterInstance, state: BackfillState) -> None:
    """Put a plan, or how far it has come, into Dagster's storage."""
    _cursor_storage(instance).set_cursor_values(
        {_PLAN_KEY.format(state.plan.id): state.model_dump_json()}
    )
    instance.add_dynamic_partitions(_PLAN_IDS, [state.plan.id])


def list_ids(instance: dg.DagsterInstance) -> list[str]:
    """The ids of the plans that are kept, the oldest first."""
    return list(instance.get_dynamic_partitions(_PLAN_IDS))


def load(instance: dg.DagsterInstance, id_: str) -> BackfillState:
    """A plan that was kept.

    Raises:
        BackfillRefusedError: there is none.
        PlanUnreadableError: there is one that another version of this project kept.
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
    """End what is under way by an id alone, as its plan cannot be read; what is kept stays.

    Returns:
        Whether it has ended: not while Dagster works at a stage of it.
    """
    active_statuses = [s for s in BulkActionStatus if s not in BULK_ACTION_TERMINAL_STATUSES]
    backfills = instance.get_backfills(BulkActionsFilter(statuses=active_statuses))
    if any(backfill.backfill_id.startswith(f"{id_}-") for backfill in backfills):
        return False
    instance.delete_dynamic_partition(ACTIVE, id_)
    return True


def delete_older(instance: dg.DagsterInstance, before: float) -> list[str]:
    """Take away plans that ended, or were made and never launched, before a moment.

    Args:
        instance: Dagster's.
        before: in seconds since 1970.

    Returns:
        Their ids. One that is under way stays, and so does one of which it is not known when it was
        made or launched.
    """
    deleted, active = [], active_ids(instance)
    for id_ in list_ids(instance):
        try:
            state = load(instance, id_)
        except BackfillRefusedError:  # of another version: nobody knows how old it is
            continue
        last = max(state.made, state.began + state.took)
        if id_ not in active and 0 < last < before:
            # Dagster's storage of texts takes none away.
            _cursor_storage(instance).set_cursor_values({_PLAN_KEY.format(id_): ""})
            instance.delete_dynamic_partition(_PLAN_IDS, id_)
            delete_commands(instance, id_)
            deleted.append(id_)
    return deleted


def load_launched(instance: dg.DagsterInstance, id_: str) -> BackfillState | None:
    """What has been launched under an id; none if nothing has."""
    try:
        state = load(instance, id_)
    except BackfillRefusedError:
        return None
    exists = id_ in active_ids(instance) or instance.get_backfill(state.backfill_id) is not None
    return state if state.attempt and exists else None


def active_ids(instance: dg.DagsterInstance) -> list[str]:
    """The ids of the backfills that have been launched and have not ended."""
    return sorted(instance.get_dynamic_partitions(ACTIVE))


def _cursor_storage(instance: dg.DagsterInstance) -> DaemonCursorStorage:
    """What Dagster keeps for its own daemons: texts by key."""
    store = instance.daemon_cursor_storage
    assert store is not None
    return store


def refuse_active(instance: dg.DagsterInstance, name: str) -> None:
    """Keep a person from undoing what is still being written.

    Raises:
        BackfillRefusedError: a planned backfill or one of Dagster's of that name has not ended.
    """
    backfill = instance.get_backfill(name)
    running = backfill and backfill.status not in BULK_ACTION_TERMINAL_STATUSES
    if running or name.partition("-")[0] in active_ids(instance):
        raise BackfillRefusedError(
            f"backfill {name} is under way; cancel it, or let it end, and ask again. Nothing was "
            "written."
        )
