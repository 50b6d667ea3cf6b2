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
