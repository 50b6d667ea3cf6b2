"""The `backfill-assets` command: what Dagster's own commands do not cover.

Running assets is Dagster's part; there is no load path here. `materialize` runs them by Dagster:
tables of all grains, and days with gaps, which `dagster asset materialize` does not take.
A module for each family of commands. They load Dagster, Spark and the tables when a command runs,
so that help and completion are quick. Another package adds a command by an entry point in the group
`backfill_assets.commands`: a name, and a function that `output.command` made a command.
"""

import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click

from backfill_assets.cli.output import CONTEXT_SETTINGS, Finding, Output, Status, level_options
from backfill_assets.escaping import escape_terminal

#: The commands by family, each with its module; a command is the function of the same name.
_FAMILIES = {
    "Tables": {"show": "tables", "status": "tables", "history": "tables", "metrics": "tables"},
    "Backfills": {
        "materialize": "materialize",
        "plan": "backfill",
        "plans": "backfill",
        "backfill": "backfill",
        "reconcile": "outcomes",
        "undo": "outcomes",
        "runbook": "outcomes",
    },
    "Targets": {
        "targets": "targets",
        "compare": "targets",
        "switch": "targets",
        "drop": "targets",
    },
    "Imports": {"import": "import_export"},
    "Exports": {"export": "import_export", "verify-export": "import_export"},
    "Upkeep": {
        "close": "materialize",
        "reopen": "materialize",
        "verify": "upkeep",
        "accept-code": "upkeep",
        "maintain": "upkeep",
        "migrate": "upkeep",
        "forget": "upkeep",
    },
    "Deployment": {
        "init": "deployment",
        "ui": "deployment",
        "engine": "deployment",
        "password": "deployment",
        "doctor": "deployment",
        "settings": "deployment",
        "night": "materialize",
        "jars": "deployment",
        "progress": "deployment",
    },
}
#: Commands whose function has another name.
_FUNCTIONS = {
    "accept-code": "accept_code",
    "verify-export": "verify_export",
    "import": "import_table",
}
_MODULES = {name: module for commands in _FAMILIES.values() for name, module in commands.items()}

_INTERRUPTED = 130  # as in a shell

_EPILOG = """\b
Exit status:
  0    fine
  1    a finding: something is not as it should be
  2    wrong use of the command
  3    the command could not run
  130  interrupted
\b
Shell completion, in ~/.bashrc (zsh_source or fish_source for those shells):
  eval "$(_BACKFILL_ASSETS_COMPLETE=bash_source backfill-assets)"
\b
Example:
  backfill-assets show
"""


@cache
def added_commands() -> dict[str, EntryPoint]:
    """The commands of other packages by name; none replaces a command of this package."""
    points = sorted(entry_points(group="backfill_assets.commands"), key=lambda point: point.name)
    return {point.name: point for point in points if point.name not in _MODULES}


class _LazyCommands(click.Group):
    """Imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES, *added_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES or cmd_name in added_commands():
            return _load_command(cmd_name)
        # click suggests the most similar name
        self.commands = {name: _load_command(name) for name in self.list_commands(ctx)}
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, arguments = super().resolve_command(ctx, args)
        # Before its own eager arguments are parsed: an error in them names the command, too.
        ctx.ensure_object(Output).command = name or ""
        return name, command, arguments

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        families: dict[str, Iterable[str]] = {**_FAMILIES, "Of other packages": added_commands()}
        for heading, names in families.items():
            rows = [(f"{name:9}", _load_command(name).get_short_help_str(70)) for name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _load_command(name: str) -> click.Command:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), _FUNCTIONS.get(name, name))
    return added_commands()[name].load()


def _explains_itself(error: Exception) -> bool:
    """Whether an error's message is enough: ours, and those of files, tables and Dagster."""
    if isinstance(error, (OSError, ValueError)):
        return True
    modules = ("backfill_assets", *(point.module for point in added_commands().values()))
    if type(error).__module__.partition(".")[0] in {name.partition(".")[0] for name in modules}:
        return True
    from dagster import DagsterError
    from deltalake.exceptions import DeltaError

    return isinstance(error, (DagsterError, DeltaError))


@click.group(cls=_LazyCommands, epilog=_EPILOG, context_settings=CONTEXT_SETTINGS)
@click.version_option(package_name="backfill-assets", message="%(prog)s %(version)s")
def cli() -> None:
    """Plan, launch, prove and undo backfills; see what is published.

    Dagster runs the assets: by `backfill-assets materialize`, by the UI or by its own commands.
    """


cli.params += level_options()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the process's own; return its status, see `output.Status`."""
    out = Output()
    try:
        if (Path.cwd() / ".env").is_file():
            # Not at the top: help and completion need no settings.
            from backfill_assets.settings import load_env_file

            load_env_file(Path.cwd())
        status = cli.main(arguments, "backfill-assets", standalone_mode=False, obj=out)
        return int(status or Status.FINE)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("Aborted.", err=True)
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - Python would end with 1, which is a finding
        if out.verbose or not _explains_itself(error):
            traceback.print_exc()
        click.echo(escape_terminal(f"backfill-assets {out.command}: {error}"), err=True)
        return Status.FINDING if isinstance(error, Finding) else Status.COULD_NOT_RUN
