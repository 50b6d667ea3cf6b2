"""Plans of backfills and how far they have come, kept in Dagster's storage."""

from __future__ import annotations

import dagster as dg
from pydantic import BaseModel, ValidationError, model_validator

from backfill_assets.backfills import command_log
from backfill_assets.backfills.plans import BackfillPlan
from backfill_assets.dagster_ext.internals import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    DaemonCursorStorage,
)

#: Where Dagster keeps the plans for us.
_PLAN = "backfill_assets/plan/{}"
#: The ids of those that are under way: dynamic partitions, as these are what Dagster adds and takes
#: away one by one, whoever else does so at the same moment.
OPEN = "backfill_assets_plans_under_way"
#: The ids of all plans, the oldest first: Dagster's storage does not list what it keeps.
_KEPT = "backfill_assets_plans"


class BackfillRefusedError(ValueError):
    """A backfill was not launched; nothing was written."""


class PlanUnreadableError(BackfillRefusedError):
    """A plan is kept in a form that this version of the project does not know."""


class Undertaking(BaseModel):
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
    def _has_its_stage(self) -> Undertaking:
        if self.stage not in range(len(self.plan.stages)):
            raise ValueError(f"there is no stage {self.stage}")
        return self

    @property
    def backfill_id(self) -> str:
        """Of the stage that is under way, as a backfill of Dagster's."""
        name, _ = self.plan.stages[self.stage]
        again = f"-{self.attempt}" if self.attempt > 1 else ""
        return f"{self.plan.id}-{name}{again}"


def keep(instance: dg.DagsterInstance, it: Undertaking) -> None:
    """Put a plan, or how far it has come, into Dagster's storage."""
    _store(instance).set_cursor_values({_PLAN.format(it.plan.id): it.model_dump_json()})
    instance.add_dynamic_partitions(_KEPT, [it.plan.id])


def kept(instance: dg.DagsterInstance) -> list[str]:
    """The ids of the plans that are kept, the oldest first."""
    return list(instance.get_dynamic_partitions(_KEPT))


def find(instance: dg.DagsterInstance, id_: str) -> Undertaking:
    """A plan that was kept.

    Raises:
        BackfillRefusedError: there is none.
        PlanUnreadableError: there is one that another version of this project kept.
    """
    key = _PLAN.format(id_)
    said = _store(instance).get_cursor_values({key}).get(key)
    if not said:
        raise BackfillRefusedError(
            f"there is no plan {id_} in this DAGSTER_HOME; make one with `backfill-assets plan`"
        )
    try:
        return Undertaking.model_validate_json(said)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PlanUnreadableError(
            f"plan {id_} was kept by another version of this project and cannot be read ({where}: "
            f"{first['msg']}). It launches nothing more. What its runs published stays; what is "
            "left of its days is in the backlog. Make a new plan for them"
        ) from error


def close(instance: dg.DagsterInstance, id_: str) -> bool:
    """End what is under way by an id alone, as its plan cannot be read; what is kept stays.

    Returns:
        Whether it has ended: not while Dagster works at a stage of it.
    """
    lasting = [s for s in BulkActionStatus if s not in BULK_ACTION_TERMINAL_STATUSES]
    going = instance.get_backfills(BulkActionsFilter(statuses=lasting))
    if any(found.backfill_id.startswith(f"{id_}-") for found in going):
        return False
    instance.delete_dynamic_partition(OPEN, id_)
    return True


def forget(instance: dg.DagsterInstance, before: float) -> list[str]:
    """Take away plans that ended, or were made and never launched, before a moment.

    Args:
        instance: Dagster's.
        before: in seconds since 1970.

    Returns:
        Their ids. One that is under way stays, and so does one of which it is not known when it was
        made or launched.
    """
    gone, open_ = [], under_way(instance)
    for id_ in kept(instance):
        try:
            it = find(instance, id_)
        except BackfillRefusedError:  # of another version: nobody knows how old it is
            continue
        last = max(it.made, it.began + it.took)
        if id_ not in open_ and 0 < last < before:
            # Dagster's storage of texts takes none away.
            _store(instance).set_cursor_values({_PLAN.format(id_): ""})
            instance.delete_dynamic_partition(_KEPT, id_)
            command_log.forget(instance, id_)
            gone.append(id_)
    return gone


def launched(instance: dg.DagsterInstance, id_: str) -> Undertaking | None:
    """What has been launched under an id; none if nothing has."""
    try:
        it = find(instance, id_)
    except BackfillRefusedError:
        return None
    there = id_ in under_way(instance) or instance.get_backfill(it.backfill_id) is not None
    return it if it.attempt and there else None


def under_way(instance: dg.DagsterInstance) -> list[str]:
    """The ids of the backfills that have been launched and have not ended."""
    return sorted(instance.get_dynamic_partitions(OPEN))


def _store(instance: dg.DagsterInstance) -> DaemonCursorStorage:
    """What Dagster keeps for its own daemons: texts by key."""
    store = instance.daemon_cursor_storage
    assert store is not None
    return store


def refuse_under_way(instance: dg.DagsterInstance, name: str) -> None:
    """Keep a person from undoing what is still being written.

    Raises:
        BackfillRefusedError: a planned backfill or one of Dagster's of that name has not ended.
    """
    backfill = instance.get_backfill(name)
    running = backfill and backfill.status not in BULK_ACTION_TERMINAL_STATUSES
    if running or name.partition("-")[0] in under_way(instance):
        raise BackfillRefusedError(
            f"backfill {name} is under way; cancel it, or let it end, and ask again. Nothing was "
            "written."
        )
