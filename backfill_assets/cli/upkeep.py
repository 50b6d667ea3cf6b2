"""Upkeep: `verify`, days computed again; `maintain`, files; `forget`, answers of services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.parameters import (
    Partitions,
    Tables,
    json_option,
    merge_selections,
    select_option,
)
from backfill_assets.cli.tables import refuse_no_warehouse
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.calendar.partitions import Window


@command("verify 2024-01-10...2024-01-14", "verify 2024-01-12 --select fact_daily_orders --json")
@click.argument("partitions", type=Partitions())
@select_option
@json_option
def verify(out: Output, partitions: Window, tables: Sequence[str], as_json: bool) -> Status:
    """Compute days anew, compare them, write nothing.

    PARTITIONS are FIRST...LAST, or one day. It ends with 1 if a day differs.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.backfills import verification
    from backfill_assets.definitions import build_defs
    from backfill_assets.delta.other_engine import check_read
    from backfill_assets.tables.catalog import tables_of

    results = verification.verify_days(settings, build_defs(settings), partitions, tables)
    table_names, known = dict.fromkeys(result.table for result in results), tables_of(settings)
    reads = [check_read(settings, known[name], partitions) for name in table_names]
    if as_json:
        out.print_json(verification.as_json(results, reads))
    else:
        out.print_grid(verification.as_grid(results))
        for test in reads:
            out.print_text(str(test))
    return Status.FINE if verification.is_good(results, reads) else Status.FINDING


@command("maintain --dry-run", "maintain --select raw_orders,stg_orders")
@click.argument("more", metavar="[TABLES]...", type=Tables(), nargs=-1, callback=merge_selections)
@select_option
@click.option("--dry-run", is_flag=True, help="Tell what would be done.")
def maintain(out: Output, more: Sequence[str], tables: Sequence[str], dry_run: bool) -> Status:
    """Compact small files, take away those past the time to undo.

    TABLES are the same as those of --select. It ends with 1 if a table is not as it should be.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.delta import maintained, maintenance
    from backfill_assets.engine.spark import Engine

    names: list[Any] = [*tables, *(name for name in more if name not in tables)]
    spark = Engine.from_settings(settings).spark_session
    results = list(maintenance.run_maintenance(spark, settings, names, dry_run=dry_run))
    out.print_grid(maintained.as_grid(results))
    for text in maintained.format_notes(results, dry_run=dry_run):
        out.print_text(text)
    return Status.FINDING if any(result.problems for result in results) else Status.FINE


@command("forget exchange_rates \"day = '2024-01-05'\"", "forget exchange_rates TRUE")
@click.argument("lookup")
@click.argument("condition")
def forget(out: Output, lookup: str, condition: str) -> Status:
    """Forget answers of a service, so that they are asked again.

    LOOKUP is the name of its table, CONDITION says in SQL which answers. All days of the tables
    that ask it become due. It ends with 1 if there are none.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.lookups.kept import forget_answers as take_away
    from backfill_assets.tables.catalog import lookups_of

    known = lookups_of(settings)
    if lookup not in known:
        raise CannotRunError(f"no lookup is named {lookup}; there are {[*known]}")
    count = take_away(known[lookup], known[lookup].place(settings.warehouse), condition)
    out.print_text(f"{lookup}: {count:,} answers forgotten")
    if count:
        out.print_note(
            "Next     days that are open are built again by themselves, or launch a backfill"
        )
    return Status.FINE if count else Status.FINDING
