"""The commands for upkeep of tables: `verify`, `accept-code`, `maintain`, `migrate`, `forget`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.tables import open_deployment
from backfill_assets.deployment import Deployment
from backfill_assets.report import Report, ReportTable

if TYPE_CHECKING:
    from backfill_assets.backfills.accept_code import AcceptedCode
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.migration_plan import Migration


@command("verify 2024-01-10...2024-01-14", "verify 2024-01-12 --select fact_daily_orders --json")
@click.argument("partitions", type=parameters.Partitions(), is_eager=True)
@parameters.select_option
@parameters.json_option
def verify(out: Output, partitions: Window, tables: Sequence[str]) -> Status:
    """Compute days anew, compare them, write nothing.

    PARTITIONS are FIRST...LAST, or one day. It ends with 1 if a day differs.
    """
    deployment = open_deployment()
    from backfill_assets.backfills import verify
    from backfill_assets.definitions import build_defs
    from backfill_assets.delta.read_check import check_read

    results = verify.verify_days(deployment, build_defs(deployment.settings), partitions, tables)
    table_names, known = dict.fromkeys(result.table for result in results), deployment.tables
    reads = [check_read(deployment, known[name], partitions) for name in table_names]
    out.print_json(verify.verified_values(results, reads))
    out.print_table(verify.as_table(results))
    for test in reads:
        out.print_text(str(test))
    return Status.FINE if verify.is_good(results, reads) else Status.FINDING


@command("maintain --dry-run", "maintain --select raw_orders,stg_orders")
@parameters.tables_parameters
@click.option("--dry-run", is_flag=True, help="Tell what would be done.")
def maintain(out: Output, tables: Sequence[str], dry_run: bool) -> Status:
    """Compact small files, take away those past the time to undo.

    TABLES are the same as those of --select. It ends with 1 if a table is not as it should be.
    """
    deployment = open_deployment()
    from backfill_assets.delta import maintenance
    from backfill_assets.spark.session import Engine

    spark = Engine.from_settings(deployment.settings).spark_session
    results = list(maintenance.run_maintenance(spark, deployment, tables, dry_run=dry_run))
    notes = maintenance.format_notes(results, dry_run=dry_run)
    out.print_report(Report(tables=(maintenance.as_table(results),), notes=tuple(notes)))
    return Status.FINDING if any(result.problems for result in results) else Status.FINE


@command("forget exchange_rates \"day = '2024-01-05'\"", "forget exchange_rates TRUE")
@click.argument("lookup")
@click.argument("condition")
def forget(out: Output, lookup: str, condition: str) -> Status:
    """Forget answers of a service, so that they are asked again.

    LOOKUP is the name of its table, CONDITION says in SQL which answers. All days of the tables
    that ask it become due. It ends with 1 if there are none.
    """
    deployment = open_deployment()
    from backfill_assets.lookups.batch import forget_answers

    known = deployment.lookups
    if lookup not in known:
        raise CannotRunError(f"no lookup is named {lookup}; there are {[*known]}")
    count = forget_answers(
        known[lookup], known[lookup].place(deployment.settings.warehouse), condition
    )
    out.print_text(f"{lookup}: {count:,} answers forgotten")
    if count:
        out.print_note(
            "Next     days that are open are built again by themselves, or launch a backfill"
        )
    return Status.FINE if count else Status.FINDING


@command("accept-code '*' --reason upgrade", "accept-code stg_orders late_orders --reason join")
@click.argument(
    "selection",
    metavar="TABLES... [PARTITIONS]",
    type=parameters.TablesOrDays(),
    nargs=-1,
    required=True,
    callback=parameters.split_tables_and_days,
)
@click.option("--reason", required=True, help="Why the rows are the same, for the record.")
@click.option(
    "--verify-days",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Compute so many days of each table anew first; 0 for none.",
)
@parameters.json_option
def accept_code(
    out: Output,
    selection: tuple[Sequence[str], Window | None],
    reason: str,
    verify_days: int,
) -> Status:
    """Accept that a change of code changes no rows.

    TABLES are names with commas or blanks between them, or `*`; PARTITIONS are FIRST...LAST, or one
    day; all days if not given. Days that other code has made count as made by the present code, and
    keep their rows. First a sample of them is computed anew: it ends with 1 if that gives other
    rows.
    """
    deployment = open_deployment()
    from backfill_assets.backfills import accept_code as acceptance
    from backfill_assets.definitions import build_defs
    from backfill_assets.delta.ledger_reader import read_ledgers

    tables, partitions = selection
    code, defs = deployment.code, build_defs(deployment.settings)
    results: list[AcceptedCode] = []
    refusals: list[str] = []
    with parameters.open_instance() as dagster:
        for table in tables:
            try:
                result = acceptance.accept_code(
                    deployment, defs, code, table, partitions, reason, verify_days
                )
            except acceptance.AcceptanceRefusedError as error:
                refusals.append(str(error))
                continue
            results.append(result)
            out.print_text(_format_result(result))
        plans = acceptance.repin_plans(deployment, dagster, read_ledgers(deployment), results, code)
    result_rows = [{**asdict(result), "versions": sorted(result.versions)} for result in results]
    out.print_json(
        {"code": code.version, "tables": result_rows, "plans": plans, "refused": refusals}
    )
    for plan in plans:
        out.print_text(
            f"Plan {plan} goes on with the present code: `backfill-assets backfill {plan}`"
        )
    for text in refusals:
        out.print_text(text)
    return Status.FINDING if refusals else Status.FINE


def _format_result(result: AcceptedCode) -> str:
    """What was accepted for a table, how it was verified, and the undo command."""
    from backfill_assets.calendar.partitions import format_ranges

    if not result.days:
        return f"{result.table}: no day is made by other code"
    proof = f"computed anew with the same rows: {format_ranges(result.verified)}"
    differences = f"; what differs: {'; '.join(result.differences)}" if result.differences else ""
    return (
        f"{result.table} [{format_ranges(result.days)}] counts as made by the present code "
        f"(version {result.version}); {proof if result.verified else 'nothing was computed anew'}"
        f"{differences}. "
        f"`backfill-assets undo {result.run_id}` takes that back"
    )


@command("migrate --plan", "migrate fact_daily_orders")
@parameters.tables_parameters
@click.option("--plan", "plan_only", is_flag=True, help="Tell each change; write nothing.")
def migrate(out: Output, tables: Sequence[str], plan_only: bool) -> Status:
    """Change the columns of tables to those of their models.

    TABLES are the same as those of --select; all if none is given. All parts of a table are
    migrated together. Readers see a table as it was or as it is to be. It ends with 1 if a table
    cannot be changed in place.
    """
    deployment = open_deployment()
    from backfill_assets.delta.migrate import read_migration
    from backfill_assets.tables.table import asset_name

    assets = deployment.graph.assets
    migrations = {
        name: read_migration(deployment.table_url(name), *assets[name])
        for name in dict.fromkeys(map(asset_name, tables or assets))
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
                _migrate_table(out, deployment, name)
    return (
        Status.FINDING if any(migration.refused for migration in pending.values()) else Status.FINE
    )


def _print_migrations(out: Output, migrations: dict[str, Migration]) -> None:
    """Print each schema change with its cost; of a refused table, only the refusals."""
    rows = []
    for name, migration in migrations.items():
        rows += [(name, "refused", text) for text in migration.refused]
        if not migration.refused:
            rows += [(name, change.cost, change.text) for change in migration.changes]
    headings = ("table", "how", "change")
    out.print_table(
        ReportTable.from_rows(headings, rows, title="Schema changes", sentences=["change"])
    )


def _migrate_table(out: Output, deployment: Deployment, name: str) -> None:
    """Migrate one table; Spark starts only if its data files are rewritten."""
    from backfill_assets.delta.commits import Writer
    from backfill_assets.delta.migrate import migrate_table

    first, *other_parts = deployment.graph.assets[name]
    for text in migrate_table(Writer.from_settings(deployment.settings, first), *other_parts):
        out.print_text(f"{name}: {text}")
