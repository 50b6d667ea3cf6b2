"""The parameters of commands: partitions, tables, shared options, and the Dagster instance."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from backfill_assets.calendar import partitions
from backfill_assets.cli.output import CannotRunError, Output
from backfill_assets.settings import Settings, SettingsError, find_dagster_home, load_settings

if TYPE_CHECKING:
    from datetime import date

    import dagster as dg

    from backfill_assets.deployment import Deployment
    from backfill_assets.tables.sources import Source


def unknown_name_message(what: str, name: str, known: Iterable[str], *, most: int = 10) -> str:
    """A sentence on an unknown name, with the most similar ones and the last of the known ones."""
    known = list(known)
    similar = get_close_matches(name, known, n=3, cutoff=0.5)
    suggestion = f"; did you mean {' or '.join(similar)}?" if similar else "."
    if not known:
        return f"there is no {what} {name}, and no other either."
    more = f" and {len(known) - most} older" if len(known) > most else ""
    return f"there is no {what} {name}{suggestion} There are {', '.join(known[-most:])}{more}."


def find_source(deployment: Deployment, name: str) -> Source:
    """The declared source; `click.BadParameter` with similar names if there is none."""
    try:
        return deployment.graph.find_source(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="SOURCE") from error


class Partitions(click.ParamType):
    """Calendar days in Dagster's notation of a partition range: FIRST...LAST, or one day.

    With `gaps`, several of them with commas between them.
    """

    name = "partitions"

    def __init__(self, *, gaps: bool = False) -> None:
        self.gaps = gaps

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The window of the days; a part after them, as in `2024-01-05/eu`, is that of --part."""
        settings = load_settings()
        if ctx and param:
            value = split_part(ctx, param, value)
        try:
            days = _parse_days(value, settings)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if isinstance(days, partitions.DaySet) and not self.gaps:
            self.fail(f"{days} has gaps: give one range here", param, ctx)
        return days


def _parse_days(text: str, settings: Settings) -> partitions.Window:
    """The days of the calendar; the declarations are imported only for those that it may lack."""
    try:
        return partitions.parse_calendar_days(text, settings)
    except ValueError:
        from backfill_assets.deployment import Deployment

        return Deployment(settings).parse_days(text)


class ChunkDays(click.ParamType):
    """The size of stages: a number of days, `auto`, or `none` for one stage."""

    name = "auto|none|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of `BackfillRequest.chunk_days`."""
        if value in ("auto", None):
            return value
        if value == "none":
            return None
        return click.IntRange(min=0).convert(value, param, ctx) or None


class Day(click.ParamType):
    """One day, in the deployment's calendar or not."""

    name = "day"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The day as a date."""
        try:
            return partitions.parse_single_day(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Tables(click.ParamType):
    """Table names with commas between them, or `*` for all, as in Dagster's asset selection."""

    name = "tables"

    def __init__(self, *, single: bool = False) -> None:
        self.single = single

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of names; with `single`, the name.

        The name of a table with a second dimension stands for all of its parts.
        """
        known = _table_names()
        if value == "*" and not self.single:
            return tuple(known)
        names: list[str] = []
        for name in (value,) if self.single else value.split(","):
            parts = [n for n in known if n.partition(partitions.PART_MARK)[0] == name]
            if name not in known and not parts:
                self.fail(unknown_name_message("table", name, known), param, ctx)
            if self.single and len(parts) > 1:
                self.fail(f"{name} has parts: give one of {', '.join(parts)}", param, ctx)
            names += [name] if name in known else parts
        return names[0] if self.single else tuple(names)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The tables whose name starts with the text."""
        return [CompletionItem(name) for name in _table_names() if name.startswith(incomplete)]


class TablesOrDays(Tables):
    """Table names as of `Tables`, or days as of `Partitions`, which begin with a digit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of names, or the window of the days."""
        if value[:1].isdigit():
            return Partitions().convert(value, param, ctx)
        return super().convert(value, param, ctx)


def split_tables_and_days(
    ctx: click.Context, param: click.Parameter, values: Sequence[Any]
) -> tuple[tuple[str, ...], partitions.Window | None]:
    """The tables of all values, inputs first, and the days; None if none are given.

    Raises:
        click.BadParameter: no table is given, or the days are no last and single value.
    """
    *selections, last = values
    days = last if isinstance(last, partitions.Window) else None
    if days is None:
        selections.append(last)
    if not selections or any(isinstance(names, partitions.Window) for names in selections):
        raise click.BadParameter("give tables, then at most one range of days", ctx, param)
    return merge_selections(ctx, param, selections), days


def _table_names() -> Iterable[str]:
    """The deployment's tables, inputs first."""
    from backfill_assets.tables.graph import tables_of

    return tables_of(load_settings())


def merge_selections(ctx: click.Context, param: click.Parameter, values: Any) -> tuple[str, ...]:
    """The tables of all values of an option or argument, inputs first; empty for all tables.

    With --part, those of the part alone.
    """
    part = ctx.meta.get(_PART, "")
    # With --part alone, the option stands for all tables; not beside tables that are arguments.
    if not values and (not part or param.name != "tables" or ctx.params.get("more")):
        return ()
    names = [n for n in _table_names() if not values or any(n in names for names in values)]
    if part:
        names = [name for name in names if name.endswith(f"{partitions.PART_MARK}{part}")]
        if not names:
            raise click.BadParameter(f"no table of these has a part {part}", ctx, param)
    return tuple(names)


#: The key of the chosen part in a command's context.
_PART = "backfill_assets.part"


def _choose_part(ctx: click.Context, param: click.Parameter, part: str) -> None:
    if part and (other := ctx.meta.setdefault(_PART, part)) != part:
        raise click.BadParameter(f"part {part}, and part {other}: give one", ctx, param)
    if part and not any(name.endswith(f"{partitions.PART_MARK}{part}") for name in _table_names()):
        raise click.BadParameter(f"no table has a part {part}", ctx, param)


def split_part(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Days without the part that may follow them; the part is that of --part from then on."""
    days, _, part = value.partition(partitions.PART_MARK)
    if part and not any("--part" in other.opts for other in ctx.command.params):
        raise click.BadParameter(f"{ctx.command.name} takes days without a part", ctx, param)
    _choose_part(ctx, param, part)
    return days


def chosen_part() -> str:
    """The part that the command is given, by --part or after the days; empty if none."""
    return str(click.get_current_context().meta.get(_PART, ""))


def part_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --part: only one part of the tables with a second dimension of partitions."""
    return click.option(
        "--part",
        metavar="PART",
        expose_value=False,
        is_eager=True,
        callback=_choose_part,
        help="Only this part of tables with a second dimension; also as 2024-01-05/PART.",
    )(function)


def tables_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Names of tables as arguments or by --select; the function gets those of both as `tables`."""

    @wraps(function)
    def merge_names(
        *values: Any, tables: Sequence[str], more: Sequence[str], **options: Any
    ) -> Any:
        return function(*values, tables=tuple(dict.fromkeys([*tables, *more])), **options)

    arguments = click.argument(
        "more", metavar="[TABLES]...", type=Tables(), nargs=-1, callback=merge_selections
    )
    return arguments(select_option(merge_names))


def partitions_option(consequence: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --partitions, or --days; the help ends with what follows from the days."""
    return click.option(
        "--partitions",
        "--days",
        type=Partitions(),
        is_eager=True,
        help=f"Only these days, FIRST...LAST or one, with what {consequence}.",
    )


def select_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options --select, or --table, its older name, and --part."""
    return click.option(
        "--select",
        "--table",
        "tables",
        metavar="TABLES",
        type=Tables(),
        multiple=True,
        callback=merge_selections,
        help="Only these tables: names with commas between them. May be given again.",
    )(part_option(function))


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --json, which sets `Output.json`."""
    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Print JSON, for a program.",
    )(function)


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Output).json = value


def port_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --port: the UI's port."""
    return click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=3000,
        show_default=True,
        help="Port of the UI on 127.0.0.1.",
    )(function)


def dagster_home(note: Callable[[str], None] | None = None) -> Path | None:
    """DAGSTER_HOME, the folder of plans and runs; None if it is not set.

    It is closed to other users of the machine; `note` prints a change of its permissions.

    Raises:
        CannotRunError: Dagster would refuse it.
    """
    from backfill_assets.serve.supervisor import make_home_private

    try:
        folder = find_dagster_home()
    except SettingsError as error:
        raise CannotRunError(f"{error}. Nothing was done.") from error
    if folder and (change := make_home_private(folder)) and note:
        note(change)
    return folder


@contextlib.contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Dagster's instance, with plans and runs.

    Raises:
        CannotRunError: DAGSTER_HOME is not set.
    """
    if not dagster_home():
        raise CannotRunError(
            "DAGSTER_HOME is not set: set it to that of the deployment, where plans are kept and "
            "runs recorded. Nothing was done."
        )
    import dagster as dg

    with dg.DagsterInstance.get() as dagster:
        yield dagster


def format_days(days_by_table: Mapping[str, Iterable[date]]) -> str:
    """Days by table as text: `visits [2024-01-01...2024-01-03], visits_7d [...]`."""
    return ", ".join(
        f"{name} [{partitions.format_ranges(days)}]" for name, days in days_by_table.items()
    )


def confirm_final_days(
    what: str, days_by_table: Mapping[str, Iterable[date]], command: str
) -> None:
    """Ask before final days are rewritten: readers rely on final days not to change.

    Raises:
        click.UsageError: nobody can be asked; the message names the command to give instead.
        CannotRunError: the answer is no.
    """
    message = f"{what} rewrites final days, which readers count on: {format_days(days_by_table)}"
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{message}. Nobody can be asked here, as there is no terminal, so nothing was "
            f"launched. If that is meant, give --yes: {command}"
        )
    if not click.confirm(f"{message[0].upper()}{message[1:]}. Rewrite them?"):
        raise CannotRunError("nothing was launched")


def asset_graph(settings: Settings) -> Any:
    """The asset graph of the deployment."""
    from backfill_assets.definitions import build_defs

    return build_defs(settings).get_repository_def().asset_graph


def options_file_option(days: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --from: a YAML file with other defaults; `days` is the parameter of the days."""

    def read_file(ctx: click.Context, _param: click.Parameter, file: str | None) -> None:
        if file:
            ctx.default_map = _read_options(ctx, file, days)

    return click.option(
        "--from",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        callback=read_file,
        expose_value=False,
        is_eager=True,
        help="A YAML file with days and options.",
    )


def _read_options(ctx: click.Context, file: str, days: str) -> dict[str, Any]:
    """The values of a file by parameter.

    Raises:
        click.UsageError: it is no mapping, or has a key that is no option.
    """
    values = _read_values(file)
    if {"start", "end"} & values.keys():
        start, end = values.pop("start", None), values.pop("end", None)
        if "days" in values or not (isinstance(start, str) and isinstance(end, str)):
            raise click.UsageError(f"{file}: give `days`, or `start` and `end`")
        values["days"] = f"{start}...{end}"
    parameters = {
        option.removeprefix("--"): parameter
        for parameter in ctx.command.params
        for option in parameter.opts
        if option.startswith("--") and option not in ("--from", "--json", "--help")
    }
    parameters["days"] = next(p for p in ctx.command.params if p.name == days)
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        if key not in parameters:
            raise click.UsageError(
                f"{file}: {unknown_name_message('option', key, parameters, most=20)}"
            )
        parameter = parameters[key]
        multiple = isinstance(parameter, click.Option) and parameter.multiple
        if isinstance(value, list) and not multiple:
            raise click.UsageError(f"{file}: {key} is {value}: give one value")
        if value is not None:
            defaults[str(parameter.name)] = (
                [value] if multiple and isinstance(value, str) else value
            )
    return defaults


def _read_values(file: str) -> dict[str, str | list[str] | None]:
    """The texts of a YAML file by key, as they are written; None where there is no value.

    The types that YAML gives to texts would change them: `no` is False there, and `010` is 8.

    Raises:
        click.UsageError: it is no mapping to texts and lists of texts, or has a key twice.
    """
    import yaml

    try:
        mapping = yaml.compose(Path(file).read_text("utf-8"), yaml.SafeLoader)
    except (yaml.YAMLError, ValueError) as error:  # or no UTF-8
        raise click.UsageError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(mapping, yaml.MappingNode):
        raise click.UsageError(
            f"{file}: write `days` and options, as `max-parallel: 2`, a line each"
        )
    values: dict[str, str | list[str] | None] = {}
    for key, node in mapping.value:
        is_list = isinstance(node, yaml.SequenceNode)
        items = node.value if is_list else [node]
        if not all(isinstance(item, yaml.ScalarNode) for item in [key, *items]):
            raise click.UsageError(
                f"{file}: line {key.start_mark.line + 1} is no option with a value or a list of "
                "values"
            )
        if key.value in values:
            raise click.UsageError(
                f"{file}: {key.value} is there again in line {key.start_mark.line + 1}: leave one "
                "of the two out"
            )
        is_null = node.tag == "tag:yaml.org,2002:null"
        texts = [item.value for item in items]
        values[key.value] = texts if is_list else None if is_null else texts[0]
    return values


def target_option(function: Any) -> Any:
    """The option --target."""
    return click.option(
        "--target", metavar="NAME", default="", help="Beside production: in the target NAME."
    )(function)
