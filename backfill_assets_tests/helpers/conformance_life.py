"""A deployment's life, the same on every back end: a late line, verification, an undo.

Whatever computes the rows, and wherever folders and Dagster's records lie, the digests are the
same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.maintenance import run_maintenance
from backfill_assets.orders.tables import FACT, STAGED
from backfill_assets.spark.filesystems import open_store
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import (
    LAYERS,
    Pipeline,
    day,
    order,
    run_undo,
    run_verify,
)
from backfill_assets_tests.udfs import check_udfs

#: By table and day, a digest of its rows.
Digests = dict[str, dict[str, str]]


def conformance_life(
    engine: Engine, root: Path, *, only_files: bool = False, **places: Any
) -> dict[str, Digests]:
    """Load two days, load a late line, verify, undo and maintain; the digests of both states.

    UDFs of each kind give what they are to give.

    Args:
        engine: what computes.
        root: the folder of landing and warehouse.
        only_files: leave out the verification and the UDFs, for which it is all the same where
            the files lie.
        places: a landing or a warehouse elsewhere.
    """
    pipeline = Pipeline(engine, root, **places)
    for n in (1, 2):
        pipeline.land(n, [order(f"o{n}", n, f"{n}.00"), order(f"p{n}", n, "7.50", None)])
    # What URLs, patterns and object keys spell in another way.
    pipeline.land(2, [order("odd", 2)], "a b%20[1]+é#.jsonl")
    pipeline.run(1, 2)
    staged_ids = {str(row["order_id"]) for row in pipeline.rows("stg_orders")}
    assert staged_ids == {"o1", "p1", "o2", "p2", "odd"}
    loaded, versions = pipeline.digests(), table_versions(pipeline)

    pipeline.run(1, 2)
    assert table_versions(pipeline) == versions, "nothing had changed"

    late_line = order("late", 1, "100.00", ingested=f"{day(2)}T12:00:00Z")
    pipeline.land(2, [late_line], "late.jsonl")
    pipeline.run(1, 2, tags={"dagster/backfill": "wrongone"})
    corrected = pipeline.digests()
    facts_before, facts_after = loaded[FACT.name], corrected[FACT.name]
    assert {d for d in facts_after if facts_after[d] != facts_before[d]} == {str(day(1))}
    if not only_files:
        tables = [STAGED.name, FACT.name]
        results = run_verify(pipeline.settings, engine, Window(day(1), day(3)), tables)
        assert [result.outcome for result in results] == [VerifyOutcome.MATCHES] * 4
        check_udfs(engine.spark_session, str(root / "numbers"))

    run_undo(pipeline, "wrongone")
    assert pipeline.digests() == loaded
    (maintained,) = run_maintenance(engine.spark_session, pipeline.deployment, [FACT.name])
    assert maintained.problems == []
    assert pipeline.digests() == loaded
    assert loaded.keys() == {*LAYERS}
    filesystem, warehouse = open_store(pipeline.settings.warehouse)
    infos = filesystem.get_file_info(pafs.FileSelector(warehouse, recursive=True))
    assert not [info.path for info in infos if "/writing-" in info.path], "folders of writes remain"
    return {"loaded": loaded, "corrected": corrected}


def table_versions(pipeline: Pipeline) -> dict[str, int | None]:
    """The version of each table."""
    return {name: ledger.version for name, ledger in read_ledgers(pipeline.deployment).items()}
