"""A table of somebody else's becomes landing files of a source: `import`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Day, json_option, nearest
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import SparkSession

    from backfill_assets.imports.checking import Counts
    from backfill_assets.imports.importing import Proposal, Work
    from backfill_assets.settings import Settings
    from backfill_assets.tables.sources import Source


def _fields(_ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The expressions by field."""
    found = {}
    for text in given:
        name, equals, expression = text.partition("=")
        if not (name and equals and expression):
            raise click.BadParameter(f"{text!r} is not NAME=EXPRESSION", param=param)
        found[name.strip()] = expression
    return found


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
    callback=_fields,
    help="How a field is made of the table's columns. May be given again.",
)
@click.option(
    "--arrived",
    default="",
    metavar="SQL",
    help="When a row arrived; else the later one of event and version time.",
)
@click.option("--stray", type=Day(), help="Arrival day of rows that tell none of the calendar.")
@click.option(
    "--skip", type=int, multiple=True, metavar="VERSION", help="Do not follow this version."
)
@click.option(
    "--chunk-rows", type=click.IntRange(min=1), help="So many rows land at a time.  [20000000]"
)
@json_option
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
    as_json: bool,
) -> Status:
    """Land an append-only table as files of a source.

    TABLE is the folder or s3a:// URL of a Delta table or of Parquet files. It is never written.
    The same again lands what was appended since; without TABLE, of all tables of the SOURCE. The
    loads that follow audit and publish.
    """
    if plan_only and check_only:
        raise click.UsageError("--plan and --check exclude each other")
    settings = load_settings()
    from backfill_assets.imports.importing import ROWS_PER_CHUNK, Work, spark_for
    from backfill_assets.imports.manifests import How, ImportRefusedError, known

    of = _source(settings, source)
    tables = [table] if table else list(known(settings, source))
    if not tables:
        raise ImportRefusedError(f"nothing has been imported into {source}: give the table.")
    spark = spark_for(settings, tables)
    if check_only:
        return _check(out, settings, spark, of, as_json)
    how, most = How(fields, arrived, stray), chunk_rows or ROWS_PER_CHUNK
    works = [Work(settings, spark, of, one, how, tuple(skip), most) for one in tables]
    if plan_only:
        _plan(out, works, as_json)
    else:
        _bring(out, works, as_json)
    return Status.FINE


def _source(settings: Settings, name: str) -> Source:
    from backfill_assets.tables.catalog import graph_for

    known = {one.name: one for one in graph_for(settings).sources.values()}
    if name not in known:
        raise click.BadParameter(nearest("source", name, known), param_hint="SOURCE")
    return known[name]


def _plan(out: Output, works: Sequence[Work], as_json: bool) -> None:
    from backfill_assets.imports.importing import propose

    found = [propose(work) for work in works]
    if as_json:
        out.json([_as_json(one) for one in found])
        return
    for one in found:
        _show(out, one)
    out.note("Nothing was written. The same without --plan lands it.")


def _as_json(of: Proposal) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "table": of.of.table,
        "kind": of.of.kind,
        "version": of.news.version,
        "since": of.news.since,
        "bytes": of.news.size,
        "total": asdict(of.total),
        "stray": asdict(of.stray),
        "keys": of.keys,
        "versions": of.versions,
        "most": of.most,
        "absent": of.absent,
        "unused": of.unused,
        "days": {str(day): asdict(kinds) for day, kinds in of.by_day.items()},
        "chunks": [[str(days[0]), str(days[-1])] for days in of.chunks],
    }


def _show(out: Output, of: Proposal) -> None:
    from rich.table import Table as Grid

    total, since = of.total, of.news.since
    after = "" if since is None else f", after version {since}"
    out.facts(
        [
            ("table", f"{of.of.table} ({of.of.kind}, version {of.news.version}{after})"),
            ("rows", f"{total.rows:,} in {of.news.size:,} bytes"),
            ("duplicates", f"{total.repeated:,} equal in all fields; one row {of.most:,} times"),
            ("keys", f"{of.keys:,} in {of.versions:,} different rows with a key"),
            ("without a key", f"{total.no_key:,}"),
            ("without a day", f"{of.stray.rows:,}"),
            ("late", f"{total.late:,} after the window of their day"),
            ("ahead", f"{total.ahead:,} of the future: would be rejected"),
            ("absent fields", ", ".join(of.absent) or "none"),
            ("unused columns", ", ".join(of.unused) or "none"),
            ("chunks", ", ".join(f"{days[0]}...{days[-1]}" for days in of.chunks) or "none"),
        ]
    )
    names = ("rows", "repeated", "no_key", "late", "ahead")
    grid = Grid("arrival day", *(name.replace("_", " ") for name in names), box=None)
    for day, kinds in of.by_day.items():
        grid.add_row(str(day), *(f"{getattr(kinds, name):,}" for name in names))
    out.grid(grid)


def _bring(out: Output, works: Sequence[Work], as_json: bool) -> None:
    from backfill_assets.imports.importing import bring

    told = []
    for work in works:
        before = work.begun()[1]
        one = bring(work, (lambda _: None) if as_json else out.note)
        new = {file: rows for file, rows in one.landed.items() if file not in before.landed}
        days = sorted({file[13:23] for file in new})
        told.append({"table": one.table, "version": one.version, "files": new, "days": days})
        if not as_json:
            said = f"{sum(new.values()):,} rows in {len(new)} file(s)" if new else "no new rows"
            out.say(f"{one.table}, version {one.version}: {said}")
            if new:
                name = work.source.name
                out.note(f"Next     load {days[0]}...{days[-1]}, such as by a planned backfill")
                out.note(f"Then     backfill-assets import {name} --check")
    if as_json:
        out.json(told)


def _check(
    out: Output, settings: Settings, spark: SparkSession, source: Source, as_json: bool
) -> Status:
    import msgspec

    from backfill_assets.imports.checking import check
    from backfill_assets.imports.manifests import known

    counts = check(settings, spark, source, known(settings, source.name).values())
    if as_json:
        out.json(msgspec.to_builtins(counts))
    else:
        _show_counts(out, counts)
    return Status.FINDING if counts.problems else Status.FINE


def _show_counts(out: Output, of: Counts) -> None:
    out.facts(
        [
            ("read", f"{of.read:,} rows"),
            ("landed", f"{of.landed:,}"),
            ("loaded", f"{of.raw:,} raw + {of.rejected:,} rejected"),
            (
                "raw",
                f"{of.staged:,} staged + {of.superseded:,} superseded + {of.late:,} late + "
                f"{of.early:,} before the first day",
            ),
        ]
    )
    for problem in of.problems:
        out.say(problem)
    out.say("The counts do NOT add up." if of.problems else "The counts add up.")
