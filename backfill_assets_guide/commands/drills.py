"""The command `drill`: timed outages to practise on."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import CannotRunError, Output, Status, command, level_options
from backfill_assets.cli.parameters import Partitions
from backfill_assets.report import ReportTable

if TYPE_CHECKING:
    from backfill_assets.calendar.partitions import Window
    from backfill_assets_guide.drills.playing import Drill
    from backfill_assets_guide.drills.scoring import Score


_FOLDER_ARGUMENT = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))


@click.group(
    epilog="\b\nExamples:\n  backfill-assets drill start incident\n"
    "  backfill-assets drill end incident"
)
def drill() -> None:
    """Practise an incident against the clock, on a deployment of your own.

    `start` makes a small deployment and breaks something. Find out what, repair it with the
    ordinary commands, and write a report; `end` scores it. See the page on the incident room.
    """


drill.params += level_options()


@command("drill start incident", "drill start incident --seed 7")
@_FOLDER_ARGUMENT
@click.argument("name", required=False, default="")
@click.option("--seed", type=int, help="The same seed chooses the same.")
@click.option(
    "--days", type=click.IntRange(min=12), help="So many days of orders; `timezone` needs 50."
)
def start(out: Output, folder: Path, name: str, seed: int | None, days: int | None) -> None:
    """Make a deployment in FOLDER, load it, and break something.

    NAME is that of an outage; one is chosen if none is named.
    """
    from backfill_assets.settings import load_settings
    from backfill_assets.spark.session import Engine
    from backfill_assets_guide.drills import playing
    from backfill_assets_guide.drills.deployment import other_variables
    from backfill_assets_guide.drills.places import ENVIRONMENT

    for variable in other_variables():  # as `env.sh` does in the user's shell
        os.environ.pop(variable, None)
    out.print_note("Making a deployment, and loading it. This takes a minute or two ...")
    new_drill = playing.start_drill(Engine.from_settings(load_settings()), folder, name, seed, days)
    out.print_text(new_drill.symptom)
    out.print_note("The clock is running.")
    quoted_folder = shlex.quote(str(folder))
    out.print_note(f"Source   . {shlex.quote(str(folder / ENVIRONMENT))}")
    out.print_note(
        "Then     the ordinary commands work on it: backfill-assets status, history, show"
    )
    out.print_note(
        f"Next     backfill-assets drill found {quoted_folder} CAUSE DAYS, when you know it;"
    )
    out.print_note(f"         backfill-assets drill hint {quoted_folder}, when you do not")


@command("drill look incident")
@_FOLDER_ARGUMENT
def look(out: Output, folder: Path) -> None:
    """Orders and revenue by day, as a reader sees them now."""
    from backfill_assets_guide.drills import breaking

    active_drill = _open_drill(folder)
    facts_by_day = breaking.read_facts(
        active_drill.deployment.settings().table(active_drill.outage.reader_table)
    )
    out.print_facts(
        (str(day), f"{orders:6,} {revenue:16,}") for day, (orders, revenue) in facts_by_day.items()
    )


@command("drill hint incident")
@_FOLDER_ARGUMENT
def hint(out: Output, folder: Path) -> None:
    """A hint; each of the three is clearer, and costs points."""
    out.print_text(_open_drill(folder).next_hint())


@command("drill found incident doubled 2024-01-05...2024-01-08")
@_FOLDER_ARGUMENT
@click.argument("cause")
@click.argument("days", type=Partitions(), required=False)
def found(out: Output, folder: Path, cause: str, days: Window | None) -> Status:
    """Tell the cause, and the days; stops the clock of detection.

    CAUSE is a word of the list that `backfill-assets drill causes` prints. It ends with 1 if it is
    not the cause; that costs points.
    """
    from backfill_assets_guide.drills.playing import list_causes

    active_drill, known_causes = _open_drill(folder), dict(list_causes())
    if cause not in known_causes:
        raise click.UsageError(f"there is no cause {cause!r}; there are {', '.join(known_causes)}")
    if not active_drill.diagnose(cause, days):
        out.print_text("That is not the cause.")
        return Status.FINDING
    out.print_text("That is the cause.")
    out.print_note("Next     repair the days that are wrong, and no other; then write the report")
    return Status.FINE


@command("drill causes")
def causes(out: Output) -> None:
    """The causes that `found` takes."""
    from backfill_assets_guide.drills import playing

    out.print_facts(playing.list_causes())


@command("drill ask incident 2024-01-05...2024-01-08")
@_FOLDER_ARGUMENT
@click.argument("days", type=Partitions())
def ask(out: Output, folder: Path, days: Window) -> None:
    """Ask the source to send the files of some days again, or a service for more calls."""
    out.print_text(_open_drill(folder).ask_source(days))


@command("drill end incident")
@_FOLDER_ARGUMENT
def end(out: Output, folder: Path) -> Status:
    """End the drill, and score it.

    It ends with 1 if a day of a table is still wrong.
    """
    score = _open_drill(folder).end()
    _print_score(out, score)
    out.print_note(f"Next     backfill-assets drill solution {shlex.quote(str(folder))}")
    return Status.FINE if score.repaired else Status.FINDING


def _print_score(out: Output, score: Score) -> None:
    rows = [
        (part.name, part.observation, f"{part.points}" + (f" of {part.most}" if part.most else ""))
        for part in score.parts
    ]
    rows.append(("score", "", f"{score.total} of 100"))
    out.print_table(ReportTable.from_rows(("what", "seen", "points"), rows, numbers=["points"]))


@command("drill solution incident", "drill solution incident --give-up")
@_FOLDER_ARGUMENT
@click.option("--give-up", is_flag=True, help="End the drill without a score.")
def solution(out: Output, folder: Path, give_up: bool) -> None:
    """What the outage was, and commands that solve it."""
    active_drill = _open_drill(folder)
    if give_up:
        active_drill.give_up()
    if not active_drill.has_ended:
        raise CannotRunError(
            f"the drill has not ended: backfill-assets drill end {shlex.quote(str(folder))}, or "
            "--give-up"
        )
    out.print_text(f"{active_drill.name}: {active_drill.outage.cause}, {active_drill.days}")
    for line in active_drill.solution():
        out.print_text(f"$ {line}")


def _open_drill(folder: Path) -> Drill:
    from backfill_assets_guide.drills.playing import Drill

    return Drill(folder)


for _subcommand in (start, look, hint, found, causes, ask, end, solution):
    drill.add_command(_subcommand)
