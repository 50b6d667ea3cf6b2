"""Frozen days of a table: `export` writes them as Parquet, `verify-export` proves them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Partitions, Tables, json_option
from backfill_assets.cli.tables import refuse_no_warehouse
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.calendar.partitions import Window


@command("export fact_daily_orders 2024-01-10 --to exports/january")
@click.argument("table", type=Tables(single=True))
@click.argument("partitions", type=Partitions())
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="A folder that is not there yet.",
)
@json_option
def export(out: Output, table: str, partitions: Window, folder: Path, as_json: bool) -> None:
    """Write days of a table as Parquet, with a manifest.

    PARTITIONS are FIRST...LAST, or one day. The folder appears as a whole or not at all.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    import msgspec

    from backfill_assets.backfills import exports
    from backfill_assets.engine.spark import Engine

    spark = Engine.from_settings(settings).spark_session
    manifest, is_new = exports.export_days(settings, spark, table, partitions, folder)
    if as_json:
        out.print_json({"new": is_new, **msgspec.to_builtins(manifest)})
        return
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
@json_option
def verify_export(out: Output, folder: Path, rebuild: bool, as_json: bool) -> Status:
    """Compare an export with its manifest and the table's log.

    With --rebuild the days are computed anew, from the versions that they were made of. Nothing is
    written. It ends with 1 if something differs.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.backfills import export_proof
    from backfill_assets.definitions import build_defs
    from backfill_assets.engine.spark import Engine

    manifest = export_proof.read_manifest(folder)
    problems = [
        *export_proof.find_export_problems(
            settings, Engine.from_settings(settings).spark_session, folder, manifest
        )
    ]
    if rebuild:
        problems += export_proof.find_rebuild_problems(settings, build_defs(settings), manifest)
    if as_json:
        out.print_json({"good": not problems, "problems": problems})
    else:
        for text in problems:
            out.print_text(text)
        method = "computed anew, " if rebuild else ""
        outcome = "NOT " * bool(problems) + "as exported"
        out.print_text(
            f"{manifest.table} [{manifest.days}], version {manifest.version}: {method}{outcome}"
        )
    return Status.FINDING if problems else Status.FINE
