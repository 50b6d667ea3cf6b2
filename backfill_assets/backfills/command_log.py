"""The commands that were given about a backfill and of which nothing else keeps a record.

Plans, launches, stages and undos are on record in Dagster's storage and in the tables' logs. An
account that a person asked for is not: it is kept here, in Dagster's storage as well.
"""

from __future__ import annotations

import logging
import time

import dagster as dg
from pydantic import BaseModel, TypeAdapter, ValidationError

_log = logging.getLogger(__name__)

_COMMANDS = "backfill_assets/commands/{}"
#: So many of one backfill are kept, the last ones.
_MOST = 50
#: So many characters of an outcome.
_LONGEST = 1000


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


_LIST = TypeAdapter(list[Command])


def note(instance: dg.DagsterInstance, name: str, text: str, outcome: str) -> None:
    """Keep a command that was given now.

    Who may read the storage and not write to it has the answer all the same: a warning says that
    the command was not kept.

    Args:
        instance: where it is kept.
        name: what it was about, as `footprints.belongs` takes it.
        text: as it was typed.
        outcome: what came of it.
    """
    told = Command(at=time.time(), text=text, outcome=outcome[:_LONGEST])
    kept = [*noted(instance, name), told][-_MOST:]
    store = instance.daemon_cursor_storage
    assert store is not None
    try:
        store.set_cursor_values({_key(name): _LIST.dump_json(kept).decode()})
    except Exception as error:  # noqa: BLE001 - each storage has errors of its own
        first = next(iter(str(error).splitlines()), "")
        _log.warning(
            "`%s` is not kept for the post-mortem of %s, as Dagster's storage does not take it "
            "(%s: %s)", text, name, type(error).__name__, first,
        )  # fmt: skip


def noted(instance: dg.DagsterInstance, name: str) -> list[Command]:
    """The commands about a backfill, the oldest first; none of what another version has kept."""
    store = instance.daemon_cursor_storage
    assert store is not None
    said = store.get_cursor_values({_key(name)}).get(_key(name))
    try:
        return _LIST.validate_json(said) if said else []
    except ValidationError:
        return []


def forget(instance: dg.DagsterInstance, name: str) -> None:
    """Keep nothing about a backfill any more."""
    store = instance.daemon_cursor_storage
    assert store is not None
    store.set_cursor_values({_key(name): ""})


def _key(name: str) -> str:
    """Of a backfill with all its stages; of a run, by the characters that name it."""
    return _COMMANDS.format(name.partition("-")[0])
