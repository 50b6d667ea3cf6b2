"""Schemas: `migrate`, tables brought to the columns of their models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Tables, selection, together
from backfill_assets.cli.tables import refuse_no_warehouse
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    from backfill_assets.delta.schema_changes import Migration


@command("migrate --plan", "migrate fact_daily_orders")
@click.argument("more", metavar="[TABLES]...", type=Tables(), nargs=-1, callback=together)
@selection
@click.option("--plan", "plan_only", is_flag=True, help="Tell each change; write nothing.")
def migrate(out: Output, more: Sequence[str], tables: Sequence[str], plan_only: bool) -> Status:
    """Change the columns of tables to those of their models.

    TABLES are the same as those of --select; all if none is given. Readers see a table as it was or
    as it is to be. It ends with 1 if a table cannot be changed in place.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.delta import migrating
    from backfill_assets.tables.catalog import tables_of

    known = tables_of(settings)
    names = [name for name in known if name in {*tables, *more}] or [*known]
    found = {name: migrating.look(settings.table(name), known[name]) for name in names}
    there = {name: one for name, one in found.items() if one and (one.changes or one.refused)}
    if not there:
        out.say("nothing to migrate: the tables have the columns of their models")
        return Status.FINE
    _show(out, there)
    if plan_only:
        out.note("Nothing was written. The same without --plan does it.")
    else:
        for name, one in there.items():
            if not one.refused:
                _do(out, settings, name)
    return Status.FINDING if any(one.refused for one in there.values()) else Status.FINE


def _show(out: Output, found: dict[str, Migration]) -> None:
    from rich.table import Table as Grid

    grid = Grid(title="Schema changes", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "how", "change"):
        grid.add_column(heading, no_wrap=heading != "change")
    for name, one in found.items():
        for text in one.refused:
            grid.add_row(name, "refused", text)
        if not one.refused:
            for change in one.changes:
                grid.add_row(name, change.cost, change.text)
    out.grid(grid)


def _do(out: Output, settings: Settings, name: str) -> None:
    from backfill_assets.delta.commits import Writer
    from backfill_assets.delta.migrating import migrate as change
    from backfill_assets.engine.spark import Engine
    from backfill_assets.tables.catalog import tables_of

    def session() -> Any:
        return Engine.of(settings).spark_session

    writer = Writer(session, settings.table(name), tables_of(settings)[name], settings.undo_days)
    for text in change(writer):
        out.say(f"{name}: {text}")
