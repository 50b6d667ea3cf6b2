"""A deployment's life, the same on every back end: a late line, an undo.

Whatever computes the rows, and wherever folders and Dagster's records lie, the digests are the
same: those of `EXPECTED`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.fs as pafs

from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.maintenance import run_maintenance
from backfill_assets.orders.tables import FACT, RAW, STAGED
from backfill_assets.spark.filesystems import in_object_store, open_store
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    day,
    order,
    run_undo,
    run_verify,
)
from backfill_assets_tests.udfs import check_udfs

#: By table and day, a digest of its rows.
Digests = dict[str, dict[str, str]]
#: What a short life makes: of a table that reads files, one that reads a table, and an aggregate.
COMPUTED = (RAW.name, STAGED.name, FACT.name)
#: What can differ between places of files: how files are read, how tables are read and written.
STORED = (RAW.name, STAGED.name)
#: The digests that a life has on any back end, before and after the late line.
EXPECTED: Mapping[str, Digests] = {
    "loaded": {
        RAW.name: {"2024-01-01": "2-938179f7-58774c24", "2024-01-02": "3-c2a04974-244394a64"},
        STAGED.name: {"2024-01-01": "2-13816fcb3-f46b02f3", "2024-01-02": "3-debe55ab-cedd0046"},
        FACT.name: {"2024-01-01": "2-dc657ebc-9ff40424", "2024-01-02": "2-197a5d3b1-e1f1ac1f"},
    },
    "corrected": {
        RAW.name: {"2024-01-01": "2-938179f7-58774c24", "2024-01-02": "4-1b33b7dfd-2bcb63479"},
        STAGED.name: {"2024-01-01": "3-1420b478a-1cc0c713d", "2024-01-02": "3-debe55ab-cedd0046"},
        FACT.name: {"2024-01-01": "2-17f975bbc-9fb95df0", "2024-01-02": "2-197a5d3b1-e1f1ac1f"},
    },
}


def conformance_life(
    engine: Engine,
    root: Path,
    tables: Sequence[str] = COMPUTED,
    *,
    long: bool = False,
    **places: Any,
) -> None:
    """Load two days, load a late line and undo it; the digests are those of `EXPECTED`.

    In an object store, a run before it ends between its write and its commit.

    Args:
        engine: what computes.
        root: the folder of landing and warehouse.
        tables: of the layers.
        long: run as well when nothing has changed, verify, and maintain the facts.
        places: a landing or a warehouse elsewhere.
    """
    pipeline = begin_life(engine, root, tables, **places)
    continue_life(pipeline, tables, long=long)


def continue_life(pipeline: Pipeline, tables: Sequence[str] = COMPUTED, *, long: bool) -> None:
    """After two days are loaded: load a late line and undo it; arguments as `conformance_life`."""
    engine = pipeline.io_manager.engine
    # What reads a table of a store has been seen: there, only what reads files runs again.
    stored = in_object_store(pipeline.settings.warehouse)
    again = tables if long or not stored else (RAW.name,)
    late_line = order("late", 1, "100.00", ingested=f"{day(2)}T12:00:00Z")
    pipeline.land(2, [late_line], "late.jsonl")
    pipeline.run(1, 2, again, tags={"dagster/backfill": "wrongone"})
    check_digests(pipeline, "corrected", again)
    ledgers = read_ledgers(pipeline.deployment)
    # Only what had changed was written again.
    for name in {*again} & {*COMPUTED}:
        rewritten_days = {*ledgers[name].records[-1].rewritten_days}
        assert rewritten_days == {day(2) if name == RAW.name else day(1)}, name
    if long:
        repeat_and_verify(pipeline, tables)
    if FACT.name in tables:
        check_udfs(engine.spark_session, str(pipeline.root / "numbers"))

    run_undo(pipeline, "wrongone")
    check_digests(pipeline, "loaded", tables)
    if long:
        (maintained,) = run_maintenance(engine.spark_session, pipeline.deployment, [FACT.name])
        assert maintained.problems == []
        check_digests(pipeline, "loaded", tables)
    check_folders(pipeline)


def begin_life(
    engine: Engine,
    root: Path,
    tables: Sequence[str] = COMPUTED,
    *,
    ends_before_commit: bool = True,
    **places: Any,
) -> Pipeline:
    """Load two days; in an object store, a run before that may end between write and commit."""
    pipeline = Pipeline(engine, root, **places)
    load_two_days(pipeline, tables, ends_before_commit=ends_before_commit)
    return pipeline


def load_two_days(
    pipeline: Pipeline, tables: Sequence[str] = COMPUTED, *, ends_before_commit: bool = False
) -> None:
    """Land and load what a life begins with."""
    for n in (1, 2):
        pipeline.land(n, [order(f"o{n}", n, f"{n}.00"), order(f"p{n}", n, "7.50", None)])
    # What URLs, patterns and object keys spell in another way.
    pipeline.land(2, [order("odd", 2)], "a b%20[1]+é#.jsonl")
    if ends_before_commit and in_object_store(pipeline.settings.warehouse):
        end_before_commit(pipeline)
    pipeline.run(1, 2, tables)
    last = STAGED if STAGED.name in tables else RAW
    order_ids = {str(row["order_id"]) for row in pipeline.rows(last.name)}
    assert order_ids == {"o1", "p1", "o2", "p2", "odd"}
    check_digests(pipeline, "loaded", tables)
    check_folders(pipeline)


def check_folders(pipeline: Pipeline) -> None:
    """See that nothing is left of writes."""
    filesystem, warehouse = open_store(pipeline.settings.warehouse)
    infos = filesystem.get_file_info(pafs.FileSelector(warehouse, recursive=True))
    assert not [info.path for info in infos if "/writing-" in info.path], "folders of writes remain"


def check_digests(pipeline: Pipeline, moment: str, tables: Sequence[str]) -> None:
    """See that tables have the digests of a moment; the other layers have no rows."""
    digests, expected = pipeline.digests(), EXPECTED[moment]
    assert {name: digests[name] for name in tables} == {
        name: expected.get(name, {}) for name in tables
    }


def end_before_commit(pipeline: Pipeline) -> None:
    """A run that has written its files when it ends: they are of no table."""
    with patch.object(Writer, "commit_files", side_effect=RuntimeError("killed")) as commit:
        pipeline.run(1, 2, [RAW.name], fails=True)
    assert commit.called
    filesystem, folder = open_store(pipeline.settings.table(RAW.name))
    infos = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    assert [info for info in infos if info.path.endswith(".parquet")]
    assert pipeline.rows(RAW.name) == []


def repeat_and_verify(pipeline: Pipeline, tables: Sequence[str]) -> None:
    """A run when nothing has changed, and a computation beside the tables."""
    before = table_versions(pipeline)
    pipeline.run(1, 2, tables)
    assert table_versions(pipeline) == before
    engine = pipeline.io_manager.engine
    window = Window(day(1), day(3))
    results = run_verify(pipeline.settings, engine, window, [STAGED.name, FACT.name])
    assert [result.outcome for result in results] == [VerifyOutcome.MATCHES] * 4


def table_versions(pipeline: Pipeline) -> dict[str, int | None]:
    """The version of each table."""
    return {name: ledger.version for name, ledger in read_ledgers(pipeline.deployment).items()}
