"""How many partitions one run takes: a number, or all of the range that a command was given."""

from __future__ import annotations

import click
import dagster as dg

from backfill_assets.calendar.partitions import Window
from backfill_assets.settings import PREFIX

#: Dagster's commands that take a range as one run: `dagster asset materialize`, `dg launch`. They
#: refuse a range of assets of which a run takes only some days.
_COMMANDS = ("materialize", "launch")


def backfill_policy(partitions_per_run: int) -> dg.BackfillPolicy:
    """How many partitions one run takes; the same for every asset, or ranges could not be shared.

    Args:
        partitions_per_run: at most so many, but for a range that a command was given.
    """
    if _range_of_command():
        return dg.BackfillPolicy.single_run()
    return dg.BackfillPolicy.multi_run(partitions_per_run)


def report_long_range(partitions_per_run: int) -> None:
    """Say so, on stderr, if the command that loads the definitions has a longer range than a run.

    Args:
        partitions_per_run: so many days a run takes elsewhere.
    """
    text = _range_of_command()
    try:
        days = len(Window.parse(text)) if text else 0
    except ValueError:  # Dagster says what is wrong with it
        return
    if days > partitions_per_run:
        click.echo(
            f"One run makes all {days} days of {text}, more than the {partitions_per_run} of "
            f"{PREFIX}PARTITIONS_PER_RUN: it needs memory and time for all of them, and is to be "
            "begun again if it is killed. It goes on. To have them in runs of that size: "
            f"`backfill-assets backfill {text}`, or the Dagster UI.",
            err=True,
        )


def _range_of_command() -> str:
    """The range of the command that loads the definitions; empty if it is no such, or has none."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name not in _COMMANDS:
        return ""
    return context.params.get("partition_range") or ""
