"""The part of `make bench` about targets: bytes of a shadow backfill, seconds of a switch-over."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

from backfill_assets.backfills.plans import BackfillRequest
from backfill_assets.backfills.shadow import build_stages, prepare_target
from backfill_assets.backfills.switching import switch_over
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.targets import load_target
from backfill_assets.engine.spark import Engine
from backfill_assets_tests.benchmarks.bench_jobs import result, timed
from backfill_assets_tests.pipeline import Pipeline, day, io_manager_of, order

_BEFORE, _AFTER = (f"backfill_assets_tests.target_tables{of}:TABLES" for of in ("", "_after"))
#: Days of production, lines of each, and days that a small change is about.
_LINES, _FEW = 7, 5
_NAME = "v2"


def shadows(engine: Engine, root: Path, days: int) -> None:
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
    tables = [name for name in production.io_manager.code_versions if name in _names(production)]
    timed("production loaded", lambda: production.run(first, last, tables))
    after = Pipeline(engine, root, tables=_AFTER, **places)
    whole = _size(production.warehouse)
    _build(after, "few", last - (_FEW - 1) * DAY, last, ("scores",))
    written = _size(production.warehouse) - whole
    forks = _size(production.warehouse / "_targets")
    result(
        f"shadow of {_FEW} days of {days:,}",
        f"{written:,} bytes written, of which logs {forks:,}; the tables have {whole:,}",
        "",
    )
    timed("all days built", lambda: _build(after, _NAME, first, last, ()))
    seconds = timed("switched over", lambda: _switch(after))
    made = len(load_target(after.settings, _NAME).tables)
    result(f"switch-over of {made} tables x {days:,} days", f"{seconds:.1f} s", "")


def _names(pipeline: Pipeline) -> Iterable[str]:
    return {key.to_user_string() for key in pipeline.repository.asset_graph.get_all_asset_keys()}


def _build(pipeline: Pipeline, name: str, first: date, last: date, tables: tuple[str, ...]) -> None:
    asked = BackfillRequest(days=f"{first}...{last}", tables=tables)
    io, assets = io_manager_of(pipeline.defs), list(pipeline.defs.assets)
    target = prepare_target(io, pipeline.settings, name, asked)
    for stage in build_stages(io, pipeline.settings, assets, target, asked):
        assert not stage.failure, stage.failure


def _switch(pipeline: Pipeline) -> None:
    graph, io = pipeline.repository.asset_graph, io_manager_of(pipeline.defs)
    done = switch_over(io, pipeline.settings, graph, pipeline.code, _NAME, "bench", {})
    for table, days in done:
        print(f"    {table.name}: {len(days):,} days", flush=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
