"""`accept-code`: a person says that a change of code changes no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Partitions, Tables, json_option, open_instance
from backfill_assets.cli.tables import refuse_no_warehouse
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.backfills.accept_code import AcceptedCode
    from backfill_assets.calendar.partitions import Window


@command("accept-code '*' --reason upgrade", "accept-code stg_orders --reason 'plain join'")
@click.argument("tables", metavar="TABLES", type=Tables())
@click.argument("partitions", metavar="[PARTITIONS]", type=Partitions(), required=False)
@click.option("--reason", required=True, help="Why the rows are the same, for the record.")
@click.option(
    "--verify-days",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Compute so many days of each table anew first; 0 for none.",
)
@json_option
def accept_code(
    out: Output,
    tables: Sequence[str],
    partitions: Window | None,
    reason: str,
    verify_days: int,
    as_json: bool,
) -> Status:
    """Accept that a change of code changes no rows.

    TABLES are names with commas between them, or `*`; PARTITIONS are FIRST...LAST, or one day; all
    days if not given. Days that other code has made count as made by the present code, and keep
    their rows. First a sample of them is computed anew: it ends with 1 if that gives other rows.
    """
    settings = load_settings()
    refuse_no_warehouse(settings)
    from backfill_assets.backfills import accept_code as acceptance
    from backfill_assets.definitions import build_defs
    from backfill_assets.delta.reading import read_ledgers
    from backfill_assets.tables.code_version import running_code

    code, defs = running_code(settings), build_defs(settings)
    results: list[AcceptedCode] = []
    refusals: list[str] = []
    with open_instance() as dagster:
        for table in tables:
            try:
                result = acceptance.accept_code(
                    settings, defs, code, table, partitions, reason, verify_days
                )
            except acceptance.AcceptanceRefusedError as error:
                refusals.append(str(error))
                continue
            results.append(result)
            if not as_json:
                out.print_text(_format_result(result))
        plans = acceptance.repin_plans(dagster, read_ledgers(settings), results, code)
    if as_json:
        result_rows = [
            {**asdict(result), "versions": sorted(result.versions)} for result in results
        ]
        out.print_json(
            {"code": code.version, "tables": result_rows, "plans": plans, "refused": refusals}
        )
    else:
        for plan in plans:
            out.print_text(
                f"Plan {plan} goes on with the present code: `backfill-assets backfill {plan}`"
            )
        for text in refusals:
            out.print_text(text)
    return Status.FINDING if refusals else Status.FINE


def _format_result(result: AcceptedCode) -> str:
    from backfill_assets.calendar.partitions import format_ranges

    if not result.days:
        return f"{result.table}: no day is made by other code"
    proof = f"computed anew with the same rows: {format_ranges(result.verified)}"
    return (
        f"{result.table} [{format_ranges(result.days)}] counts as made by the present code "
        f"(version {result.version}); {proof if result.verified else 'nothing was computed anew'}. "
        f"`backfill-assets undo {result.run_id}` takes that back"
    )
