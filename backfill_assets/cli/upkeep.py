"""Upkeep: `verify`, days computed again; `maintain`, files; `forget`, answers of services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.parameters import Partitions, Tables, json_option, selection, together
from backfill_assets.cli.tables import refuse_no_warehouse
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.calendar.partitions import Window


@command("verify 2024-01-10...2024-01-14", "verify 2024-01-12 --select fact_daily_orders --json")
@click.argument("partitions", type=Partitions())
@selection
@json_option
def verify(out: Output, partitions: Window, tables: Sequence[str], as_json: bool) -> Status:
    """Compute days anew, compare them, write nothing.

    PARTITIONS are FIRST...LAST, or one day. It ends with 1 if a day differs.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.backfills import verification
    from backfill_assets.definitions import build_defs
    from backfill_assets.delta.other_engine import read_test
    from backfill_assets.tables.catalog import tables_of

    found = verification.verify(settings, build_defs(settings), partitions, tables)
    looked_at, known = dict.fromkeys(one.table for one in found), tables_of(settings)
    reads = [read_test(settings, known[name], partitions) for name in looked_at]
    if as_json:
        out.json(verification.as_json(found, reads))
    else:
        out.grid(verification.as_grid(found))
        for test in reads:
            out.say(str(test))
    return Status.FINE if verification.good(found, reads) else Status.FINDING


@command("maintain --dry-run", "maintain --select raw_orders,stg_orders")
@click.argument("more", metavar="[TABLES]...", type=Tables(), nargs=-1, callback=together)
@selection
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
    spark = Engine.of(settings).spark_session
    found = list(maintenance.maintain(spark, settings, names, dry_run=dry_run))
    out.grid(maintained.as_grid(found))
    for text in maintained.sentences(found, dry_run=dry_run):
        out.say(text)
    return Status.FINDING if any(one.problems for one in found) else Status.FINE


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
    from backfill_assets.lookups.kept import forget as take_away
    from backfill_assets.tables.catalog import lookups_of

    known = lookups_of(settings)
    if lookup not in known:
        raise CannotRunError(f"no lookup is named {lookup}; there are {[*known]}")
    count = take_away(known[lookup], known[lookup].place(settings.warehouse), condition)
    out.say(f"{lookup}: {count:,} answers forgotten")
    if count:
        out.note("Next     days that are open are built again by themselves, or launch a backfill")
    return Status.FINE if count else Status.FINDING
