"""Looking at the tables: `show`, `status`, `history`. Nothing is computed, no JVM is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import CannotRunError, Finding, Output, Status, command
from backfill_assets.cli.parameters import (
    Partitions,
    Tables,
    home,
    instance,
    json_option,
    selection,
)
from backfill_assets.settings import PREFIX, Settings, load_settings

if TYPE_CHECKING:
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledger
    from backfill_assets.monitoring.states import Situation, State

_VERDICTS = ("ok", "warn", "alert")


@command("show", "show --select stg_orders,fact_daily_orders --json")
@selection
@json_option
def show(out: Output, tables: Sequence[str], as_json: bool) -> None:
    """What is published of each table."""
    settings = load_settings()
    refuse_no_warehouse(settings)
    found = list(_published(settings, tables))
    if as_json:
        out.json(found)
        return
    from rich.table import Table as Grid

    grid = Grid(title="Published", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "days", "from...to", "rows", *_VERDICTS, "commits"):
        left = heading in ("table", "from...to")
        grid.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for one in found:
        grid.add_row(*_cells(one))
    out.grid(grid)
    out.note(f"Tables   {settings.warehouse}/<table>")
    out.note(f"Landing  {settings.landing}/<source>/arrival_date=<day>/")
    out.note("Next     make ui, then launch a range of days; or run the same days again and")
    out.note("         see with `backfill-assets show` that not a row has changed")


def _published(settings: Settings, tables: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What is published of each table, from its log."""
    from backfill_assets.calendar.partitions import windows
    from backfill_assets.delta.reading import read_ledger
    from backfill_assets.tables.catalog import tables_of

    known = tables_of(settings)
    for name in tables or known:
        ledger = read_ledger(settings.table(name), known[name])
        verdicts = {day: record.days[day].verdict for day, record in ledger.latest.items()}
        counts = Counter(verdicts.values())
        yield {
            "table": name,
            "path": settings.table(name),
            "version": ledger.version,
            "days": len(verdicts),
            "partitions": [str(window) for window in windows(verdicts)],
            "rows": sum((ledger.rows or {}).values()),
            "verdicts": {verdict: counts[verdict] for verdict in _VERDICTS},
            "commits": len(ledger.records),
        }


def _cells(one: dict[str, Any]) -> list[str]:
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.history import spans

    if one["version"] is None:
        return [one["table"], "0", "no table yet"]
    days = spans([Window.parse(text) for text in one["partitions"]])
    counts = [str(count) for count in one["verdicts"].values()]
    return [one["table"], str(one["days"]), days, f"{one['rows']:,}", *counts, str(one["commits"])]


def refuse_no_warehouse(settings: Settings) -> None:
    """See that there is a warehouse.

    Raises:
        CannotRunError: there is none where the settings say.
    """
    from backfill_assets.engine.stores import open_store

    filesystem, path = open_store(settings.warehouse)
    if filesystem.get_file_info(path).type.name == "NotFound":
        raise CannotRunError(
            f"there is no warehouse at {settings.warehouse}: nothing has been published there yet, "
            f"or {PREFIX}WAREHOUSE should name another place"
        )


@command("status", "status --select fact_daily_orders --json")
@selection
@json_option
def status(out: Output, tables: Sequence[str], as_json: bool) -> Status:
    """The state of the days of each table.

    It ends with 1 if somebody has to do something about a day. Without DAGSTER_HOME it cannot know
    of days whose last run failed a check.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.calendar.partitions import packed
    from backfill_assets.monitoring.states import MEANING, day_states

    now = _situation(settings)
    found = {name: _by_state(day_states(name, now)) for name in tables or now.ledgers}
    states = dict.fromkeys(state for of in found.values() for state in of)
    if as_json:
        named = {
            name: {state.value: packed(days) for state, days in of.items()}
            for name, of in found.items()
        }
        good = all(state.good for state in states)
        out.json({"as_of": str(now.today), "good": good, "tables": named})
    else:
        _show_states(out, now.ledgers, found)
        for state in states:
            if not state.good:
                out.say(f"{state.value}: {MEANING[state]}")
        out.note(f"As of    {now.today}")
    return Status.FINE if all(state.good for state in states) else Status.FINDING


def _situation(settings: Settings) -> Situation:
    import dagster as dg

    from backfill_assets.monitoring.look import situation

    with instance() if home() else dg.DagsterInstance.ephemeral() as found:
        return situation(settings, found, datetime.now(settings.zone))


def _by_state(states: Any) -> dict[State, list[date]]:
    from backfill_assets.monitoring.states import State

    days = {state: [day for day, of in states.items() if of is state] for state in State}
    return {state: of for state, of in days.items() if of}


def _show_states(
    out: Output, ledgers: Mapping[str, Ledger], found: dict[str, dict[State, list[date]]]
) -> None:
    from rich.table import Table as Grid

    from backfill_assets.delta.history import spans

    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "state", "days", "which"):
        justify: Any = "right" if heading == "days" else "left"
        grid.add_column(heading, justify=justify, no_wrap=True)
    for name, of in found.items():
        for state, days in of.items():
            ranges = ledgers[name].table.cadence.ranges(days)
            grid.add_row(name, state.value, str(len(days)), spans(ranges))
        if not of:
            grid.add_row(name, "no day is due", "0", "none")
    out.grid(grid)


@command("history fact_daily_orders", "history fact_daily_orders 2024-01-05")
@click.argument("table", type=Tables(one=True))
@click.argument("partitions", type=Partitions(), required=False)
@json_option
def history(out: Output, table: str, partitions: Window | None, as_json: bool) -> None:
    """The commits of a table, or the life of a day of it.

    PARTITIONS are one day, or FIRST...LAST: then the commits that speak of these days. It ends with
    1 if there are none.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.delta import history as commits

    try:
        if as_json:
            out.json(commits.as_json(settings, table, partitions))
        elif partitions is not None and len(partitions) == 1:
            out.grid(commits.life(settings, table, partitions.start))
        else:
            out.grid(commits.history(settings, table, partitions))
    except ValueError as error:  # there is no such commit
        raise Finding(f"{error}") from error
