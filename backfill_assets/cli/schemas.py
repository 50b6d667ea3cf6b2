"""Schemas: `migrate`, tables brought to the columns of their models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Tables, merge_selections, select_option
from backfill_assets.cli.tables import refuse_no_warehouse
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    from backfill_assets.delta.schema_changes import Migration


@command("migrate --plan", "migrate fact_daily_orders")
@click.argument("more", metavar="[TABLES]...", type=Tables(), nargs=-1, callback=merge_selections)
@select_option
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

    tables_by_name = tables_of(settings)
    names = [name for name in tables_by_name if name in {*tables, *more}] or [*tables_by_name]
    migrations = {
        name: migrating.read_migration(settings.table(name), tables_by_name[name]) for name in names
    }
    pending = {
        name: migration
        for name, migration in migrations.items()
        if migration and (migration.changes or migration.refused)
    }
    if not pending:
        out.print_text("nothing to migrate: the tables have the columns of their models")
        return Status.FINE
    _print_migrations(out, pending)
    if plan_only:
        out.print_note("Nothing was written. The same without --plan does it.")
    else:
        for name, migration in pending.items():
            if not migration.refused:
                _migrate_table(out, settings, name)
    return (
        Status.FINDING if any(migration.refused for migration in pending.values()) else Status.FINE
    )


def _print_migrations(out: Output, migrations: dict[str, Migration]) -> None:
    from rich.table import Table as Grid

    grid = Grid(title="Schema changes", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "how", "change"):
        grid.add_column(heading, no_wrap=heading != "change")
    for name, migration in migrations.items():
        for text in migration.refused:
            grid.add_row(name, "refused", text)
        if not migration.refused:
            for change in migration.changes:
                grid.add_row(name, change.cost, change.text)
    out.print_grid(grid)


def _migrate_table(out: Output, settings: Settings, name: str) -> None:
    from backfill_assets.delta.commits import Writer
    from backfill_assets.delta.migrating import migrate_table as change
    from backfill_assets.engine.spark import Engine
    from backfill_assets.tables.catalog import tables_of

    def get_session() -> Any:
        return Engine.from_settings(settings).spark_session

    writer = Writer(
        get_session, settings.table(name), tables_of(settings)[name], settings.undo_days
    )
    for text in change(writer):
        out.print_text(f"{name}: {text}")
