"""The `backfill-assets` command: what Dagster's own commands do not cover.

Running assets is Dagster's part (`dagster asset materialize`, the UI); there is no load path here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from deltalake.exceptions import TableNotFoundError
from rich.console import Console
from rich.table import Table as Grid

from backfill_assets.io_manager import delta_log, measured_by_log
from backfill_assets.partitions import windows
from backfill_assets.sample.cdnow import write_landing
from backfill_assets.sample.generator import generate
from backfill_assets.schemas import TABLES
from backfill_assets.settings import Settings, SettingsError, load_settings
from backfill_assets.spark import EngineError, delta_coordinate, delta_jars, fetch_delta_jars

_SAMPLE_DAYS = 28


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 1 after one sentence on what is wrong."""
    parser = argparse.ArgumentParser(prog="backfill-assets", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars", help="download the Delta jars into their cache, once")
    commands.add_parser("sample", help="write sample landing data, unless there is some")
    cdnow = commands.add_parser("cdnow", help="turn CDNOW_master.txt into landing data")
    cdnow.add_argument("master", type=Path, help="path of CDNOW_master.txt")
    commands.add_parser("show", help="what is published: days, rows, verdicts, places")
    commands.add_parser("progress", help="condense a run's log (standard input) into progress")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        settings = load_settings()
        if given.command == "jars":
            _jars(settings, console)
        elif given.command == "sample":
            _sample(settings, console)
        elif given.command == "cdnow":
            rows = write_landing(given.master, Path(settings.landing))
            console.print(f"{rows} purchases written to {settings.landing}")
        elif given.command == "show":
            show(settings, console)
        else:
            return progress(sys.stdin, console)
    except (SettingsError, EngineError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _jars(settings: Settings, console: Console) -> None:
    if not delta_jars(settings.jars):
        console.print(f"Downloading the Delta jars ({delta_coordinate()}) ...")
    fetch_delta_jars(settings.jars)


def _sample(settings: Settings, console: Console) -> None:
    landing = Path(settings.landing)
    if (landing / "orders").exists():
        return
    console.print(f"Writing {_SAMPLE_DAYS} days of sample orders to {landing} ...")
    generate(landing, start=settings.start, days=_SAMPLE_DAYS, window_days=settings.window_days)


def show(settings: Settings, console: Console) -> None:
    """Print what is published, from the tables' logs; no JVM is started."""
    grid = Grid("table", "days", "rows", "warnings", "version", title="Published")
    for name, table in TABLES.items():
        try:
            log = delta_log(settings.table(name)).load()
        except TableNotFoundError:
            grid.add_row(name, "no table yet", "", "", "")
            continue
        days = measured_by_log(log, table)
        spans = ", ".join(map(str, windows(days)))
        rows = sum(day.rows for day in days.values())
        grid.add_row(name, spans, f"{rows:,}", "", str(log.version()))
    console.print(grid)
    console.print(f"Tables: {settings.warehouse}/<table>   Landing: {settings.landing}/orders")


_STEP = re.compile(r" - (?P<step>\w+) - (?P<event>[A-Z_]+)(?: - (?P<text>.*))?$")


def progress(lines: Iterable[str], console: Console) -> int:
    """Condense a run's log into a line a step, and pass everything on where the run fails."""
    done = {"ASSET_MATERIALIZATION": 0, "ASSET_CHECK_EVALUATION": 0}
    for line in lines:
        found = _STEP.search(line.rstrip())
        if not found:
            continue
        event = found["event"]
        if event in done:
            done[event] += 1
        elif event == "STEP_START":
            console.print(f"  {found['step']} ...", end=" ")
            done = dict.fromkeys(done, 0)
        elif event == "STEP_SUCCESS":
            console.print(
                f"{done['ASSET_MATERIALIZATION']} days published, "
                f"{done['ASSET_CHECK_EVALUATION']} checks evaluated"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
