"""The commands `export` and `verify-export` for days, and `import` for foreign tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.tables import open_deployment
from backfill_assets.deployment import Deployment
from backfill_assets.report import ReportTable
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import SparkSession

    from backfill_assets.calendar.partitions import Window
    from backfill_assets.imports.importer import ImportCheck, ImportPlan, ImportRequest
    from backfill_assets.tables.sources import Source


@command("export fact_daily_orders 2024-01-10 --to exports/january")
@click.argument("table", type=parameters.Tables(single=True))
@click.argument("partitions", type=parameters.Partitions())
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="A folder that is not there yet.",
)
@parameters.json_option
def export(out: Output, table: str, partitions: Window, folder: Path) -> None:
    """Write days of a table as Parquet, with a manifest.

    PARTITIONS are FIRST...LAST, or one day. The folder appears as a whole or not at all.
    """
    deployment = open_deployment()
    import msgspec

    from backfill_assets.backfills import exports
    from backfill_assets.spark.session import Engine

    spark = Engine.from_settings(deployment.settings).spark_session
    manifest, is_new = exports.export_days(deployment, spark, table, partitions, folder)
    out.print_json({"new": is_new, **msgspec.to_builtins(manifest)})
    out.print_facts(
        [
            ("table", f"{manifest.table}, version {manifest.version}"),
            ("days", manifest.days),
            ("rows", f"{manifest.rows:,} in {len(manifest.files)} file(s)"),
            ("folder", f"{folder}{'' if is_new else ' holds this export already'}"),
        ]
    )
    out.print_note(f"Prove it   backfill-assets verify-export {folder} --rebuild")


@command("verify-export exports/january", "verify-export exports/january --rebuild --json")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--rebuild", is_flag=True, help="Also compute the days anew, and compare.")
@parameters.json_option
def verify_export(out: Output, folder: Path, rebuild: bool) -> Status:
    """Compare an export with its manifest and the table's log.

    With --rebuild the days are computed anew, from the versions that they were made of. Nothing is
    written. It ends with 1 if something differs.
    """
    deployment = open_deployment()
    from backfill_assets.backfills import exports
    from backfill_assets.definitions import build_defs
    from backfill_assets.spark.session import Engine

    manifest = exports.read_manifest(folder)
    problems = [
        *exports.find_export_problems(
            deployment, Engine.from_settings(deployment.settings).spark_session, folder, manifest
        )
    ]
    if rebuild:
        problems += exports.find_rebuild_problems(
            deployment, build_defs(deployment.settings), manifest
        )
    out.print_json({"good": not problems, "problems": problems})
    for text in problems:
        out.print_text(text)
    method = "computed anew, " if rebuild else ""
    outcome = "NOT " * bool(problems) + "as exported"
    out.print_text(
        f"{manifest.table} [{manifest.days}], version {manifest.version}: {method}{outcome}"
    )
    return Status.FINDING if problems else Status.FINE


def _parse_fields(
    _ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    """The values of --field as SQL expressions by field name; click calls it as a callback."""
    expressions = {}
    for text in values:
        name, equals, expression = text.partition("=")
        if not (name and equals and expression):
            raise click.BadParameter(f"{text!r} is not NAME=EXPRESSION", param=param)
        expressions[name.strip()] = expression
    return expressions


@command(
    "import orders /data/old_orders --plan",
    'import orders /data/old --field "amount=round(revenue, 2)"',
    "import orders",
)
@click.argument("source")
@click.argument("table", required=False)
@click.option("--plan", "plan_only", is_flag=True, help="Tell what would land; write nothing.")
@click.option("--check", "check_only", is_flag=True, help="Count what was imported, to staging.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=SQL",
    callback=_parse_fields,
    help="How a field is made of the table's columns. May be given again.",
)
@click.option(
    "--arrived",
    default="",
    metavar="SQL",
    help="When a row arrived; else the later one of event and version time.",
)
@click.option(
    "--stray", type=parameters.Day(), help="Arrival day of rows that tell none of the calendar."
)
@click.option(
    "--skip", type=int, multiple=True, metavar="VERSION", help="Do not follow this version."
)
@click.option(
    "--chunk-rows", type=click.IntRange(min=1), help="So many rows land at a time.  [20000000]"
)
@parameters.json_option
def import_table(
    out: Output,
    source: str,
    table: str | None,
    plan_only: bool,
    check_only: bool,
    fields: dict[str, str],
    arrived: str,
    stray: date | None,
    skip: Sequence[int],
    chunk_rows: int | None,
) -> Status:
    """Land an append-only table as files of a source.

    TABLE is the folder or s3a:// URL of a Delta table or of Parquet files. It is never written.
    The same again lands what was appended since; without TABLE, of all tables of the SOURCE. The
    loads that follow audit and publish.
    """
    if plan_only and check_only:
        raise click.UsageError("--plan and --check exclude each other")
    deployment = Deployment(load_settings())
    from backfill_assets.imports.import_state import ImportMapping, ImportRefusedError, load_imports
    from backfill_assets.imports.importer import ROWS_PER_CHUNK, ImportRequest, spark_for

    declared_source = parameters.find_source(deployment, source)
    if declared_source.part:
        raise ImportRefusedError(
            f"{source} is a part of a source with a second dimension, and tables are imported into "
            "sources without one: land the rows as files. Nothing was done."
        )
    tables = [table] if table else list(load_imports(deployment, source))
    if not tables:
        raise ImportRefusedError(f"nothing has been imported into {source}: give the table.")
    spark = spark_for(deployment, tables)
    if check_only:
        return _check_counts(out, deployment, spark, declared_source)
    mapping, rows_per_chunk = ImportMapping(fields, arrived, stray), chunk_rows or ROWS_PER_CHUNK
    table_imports = [
        ImportRequest(
            deployment, spark, declared_source, location, mapping, tuple(skip), rows_per_chunk
        )
        for location in tables
    ]
    if plan_only:
        _print_plan(out, table_imports)
    else:
        _import_tables(out, table_imports)
    return Status.FINE


def _print_plan(out: Output, table_imports: Sequence[ImportRequest]) -> None:
    """Plan each import and print what would land; `import --plan` calls it."""
    from backfill_assets.imports.importer import plan_import

    proposals = [plan_import(table_import) for table_import in table_imports]
    out.print_json([_proposal_values(proposal) for proposal in proposals])
    for proposal in proposals:
        _print_proposal(out, proposal)
    out.print_note("Nothing was written. The same without --plan lands it.")


def _proposal_values(proposal: ImportPlan) -> dict[str, Any]:
    """One import plan as JSON; the keys are part of the command's contract."""
    from dataclasses import asdict

    return {
        "table": proposal.table_import.table,
        "kind": proposal.table_import.kind,
        "version": proposal.new_data.version,
        "since": proposal.new_data.since,
        "bytes": proposal.new_data.size,
        "total": asdict(proposal.total),
        "stray": asdict(proposal.stray),
        "keys": proposal.keys,
        "versions": proposal.versions,
        "most": proposal.max_repeats,
        "absent": proposal.absent,
        "unused": proposal.unused,
        "days": {str(day): asdict(kinds) for day, kinds in proposal.by_day.items()},
        "chunks": [[str(days[0]), str(days[-1])] for days in proposal.chunks],
    }


def _print_proposal(out: Output, proposal: ImportPlan) -> None:
    """Print the counts of one import plan, then its rows by arrival day."""
    total, since = proposal.total, proposal.new_data.since
    since_text = "" if since is None else f", after version {since}"
    out.print_facts(
        [
            (
                "table",
                f"{proposal.table_import.table} ({proposal.table_import.kind}, version "
                f"{proposal.new_data.version}{since_text})",
            ),
            ("rows", f"{total.rows:,} in {proposal.new_data.size:,} bytes"),
            (
                "duplicates",
                f"{total.repeated:,} equal in all fields; one row {proposal.max_repeats:,} times",
            ),
            ("keys", f"{proposal.keys:,} in {proposal.versions:,} different rows with a key"),
            ("without a key", f"{total.no_key:,}"),
            ("without a day", f"{proposal.stray.rows:,}"),
            ("late", f"{total.late:,} after the window of their day"),
            ("ahead", f"{total.ahead:,} of the future: would be rejected"),
            ("absent fields", ", ".join(proposal.absent) or "none"),
            ("unused columns", ", ".join(proposal.unused) or "none"),
            ("chunks", ", ".join(f"{days[0]}...{days[-1]}" for days in proposal.chunks) or "none"),
        ]
    )
    names = ("rows", "repeated", "no_key", "late", "ahead")
    headings = [name.replace("_", " ") for name in names]
    rows = [
        (str(day), *(f"{getattr(kinds, name):,}" for name in names))
        for day, kinds in proposal.by_day.items()
    ]
    out.print_table(ReportTable.from_rows(["arrival day", *headings], rows, numbers=headings))


def _import_tables(out: Output, table_imports: Sequence[ImportRequest]) -> None:
    """Land the new rows of each table; prints after each, as JSON only after the last."""
    from backfill_assets.imports.importer import run_import
    from backfill_assets.imports.landing_files import arrival_days

    results = []
    for table_import in table_imports:
        previous = table_import.open_import()[1]
        manifest = run_import(table_import, out.print_note)
        new_files = {
            file: rows
            for file, rows in manifest.landed_files.items()
            if file not in previous.landed_files
        }
        days = sorted(map(str, arrival_days(new_files)))
        results.append(
            {"table": manifest.table, "version": manifest.version, "files": new_files, "days": days}
        )
        summary = (
            f"{sum(new_files.values()):,} rows in {len(new_files)} file(s)"
            if new_files
            else "no new rows"
        )
        out.print_text(f"{manifest.table}, version {manifest.version}: {summary}")
        if new_files:
            name = table_import.source.name
            out.print_note(f"Next     load {days[0]}...{days[-1]}, such as by a planned backfill")
            out.print_note(f"Then     backfill-assets import {name} --check")
    out.print_json(results)


def _check_counts(
    out: Output, deployment: Deployment, spark: SparkSession, source: Source
) -> Status:
    """Compare counts from the external tables to staging; `FINDING` if they do not add up."""
    import msgspec

    from backfill_assets.imports.import_state import load_imports
    from backfill_assets.imports.importer import check_import

    counts = check_import(deployment, spark, source, load_imports(deployment, source.name).values())
    out.print_json(msgspec.to_builtins(counts))
    _print_counts(out, counts)
    return Status.FINDING if counts.problems else Status.FINE


def _print_counts(out: Output, counts: ImportCheck) -> None:
    """Print the rows at each step from the external tables to staging, then the differences."""
    out.print_facts(
        [
            ("read", f"{counts.read:,} rows"),
            ("landed", f"{counts.landed:,}"),
            ("loaded", f"{counts.raw:,} raw + {counts.rejected:,} rejected"),
            (
                "raw",
                f"{counts.staged:,} staged + {counts.superseded:,} superseded + {counts.late:,} "
                f"late + {counts.early:,} before the first day",
            ),
        ]
    )
    for problem in counts.problems:
        out.print_text(problem)
    out.print_text("The counts do NOT add up." if counts.problems else "The counts add up.")
