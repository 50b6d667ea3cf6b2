"""The part of `make bench` about targets: bytes of a shadow backfill, seconds of a switch-over."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.targets import load_target
from backfill_assets.shadow.build import build_stages, prepare_target
from backfill_assets.shadow.switch import switch_over
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_jobs import time_work
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import Pipeline, day, io_manager_of, order

_BEFORE, _AFTER = (
    f"backfill_assets_tests.target_tables{suffix}:TABLES" for suffix in ("", "_after")
)
#: Days of production, lines of each, and days that a small change is about.
_LINES, _FEW = 7, 5
_NAME = "v2"


def measure_shadows(engine: Engine, root: Path, days: int) -> None:
    """Bytes that a shadow backfill writes, and seconds of a switch-over and of its undo.

    Args:
        engine: with a session.
        root: a folder for all of it.
        days: of production.
    """
    print(f"\n{days:,} days x {_LINES} lines, built beside production", flush=True)
    first, last = day(1 - days), day(0)
    places = {"start": first, "end": last + DAY, "window_days": 1}
    production = Pipeline(engine, root, tables=_BEFORE, **places)
    for n in range(1 - days, 1):
        production.land(n, [order(f"o-{n}-{i}", n, "1.00", f"c{i}") for i in range(_LINES)])
    tables = [name for name in production.deployment.tables if name in _table_names(production)]
    time_work("production loaded", lambda: production.run(first, last, tables))
    after = Pipeline(engine, root, tables=_AFTER, **places)
    whole = _folder_size(production.warehouse)
    _build_target(after, "few", last - (_FEW - 1) * DAY, last, ("scores",))
    written = _folder_size(production.warehouse) - whole
    clones = _folder_size(production.warehouse / "_targets")
    print_result(
        f"shadow of {_FEW} days of {days:,}",
        f"{written:,} bytes written, of which logs {clones:,}; the tables have {whole:,}",
    )
    time_work("all days built", lambda: _build_target(after, _NAME, first, last, ()))
    seconds = time_work("switched over", lambda: _switch_target(after))
    table_count = len(load_target(after.deployment, _NAME).tables)
    print_result(f"switch-over of {table_count} tables x {days:,} days", seconds, unit="s")


def _table_names(pipeline: Pipeline) -> Iterable[str]:
    return {key.to_user_string() for key in pipeline.repository.asset_graph.get_all_asset_keys()}


def _build_target(
    pipeline: Pipeline, name: str, first: date, last: date, tables: tuple[str, ...]
) -> None:
    request = BackfillRequest(days=f"{first}...{last}", tables=tables)
    io, assets = io_manager_of(pipeline.defs), list(pipeline.defs.assets)
    target = prepare_target(io, pipeline.deployment, name, request)
    for stage in build_stages(io, pipeline.deployment, assets, target, request):
        assert not stage.failure, stage.failure


def _switch_target(pipeline: Pipeline) -> None:
    graph, io = pipeline.repository.asset_graph, io_manager_of(pipeline.defs)
    switched = switch_over(io, pipeline.deployment, graph, pipeline.code, _NAME, "bench", {})
    for table, days in switched:
        print(f"    {table.name}: {len(days):,} days", flush=True)


def _folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
