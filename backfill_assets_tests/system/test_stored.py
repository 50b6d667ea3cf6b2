"""A deployment's life where its folders lie: nights, late data, an undo, upkeep, verification.

`test_object_storage` runs it on S3.
"""

from __future__ import annotations

import os

import pytest

from backfill_assets.backfills.comparison import Match
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.maintenance import maintain
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.orders.facts import FACT
from backfill_assets.orders.tables import TABLES
from backfill_assets.settings import load_settings
from backfill_assets_tests.pipeline import EVERYTHING, Pipeline, day, order, undo, verify
from backfill_assets_tests.s3_server import FOLDER

pytestmark = pytest.mark.skipif(FOLDER not in os.environ, reason="other tests do so on local disks")


@pytest.mark.parametrize("local", [(), ("landing",), ("warehouse",)])
def test_a_life(engine, spark, tmp_path, local):
    """Of a pipeline whose folders lie on S3, or one of them on a local disk."""
    places = {name: str(tmp_path / name) for name in local}
    pipeline = Pipeline(engine, tmp_path, **places)
    urls = {name: getattr(pipeline.settings, name) for name in ("landing", "warehouse")}
    assert [n for n, url in urls.items() if not url.startswith("s3a://lake/")] == [*local]
    for n in (1, 2, 3):
        pipeline.land(n, [order(f"o{n}", n, f"{n}.00"), order(f"p{n}", n, "7.50", None)])
    pipeline.land(2, [order("odd", 2)], "a b%20[1]+é#.jsonl")
    assert pipeline.night(day(4))
    assert {str(row["order_id"]) for row in pipeline.rows("stg_orders")} == {
        "odd",
        *(f"{x}{n}" for x in "op" for n in (1, 2, 3)),
    }

    def versions() -> dict[str, int | None]:
        return {name: ledger.version for name, ledger in read_ledgers(pipeline.settings).items()}

    before, made = pipeline.digests(), versions()
    pipeline.run(1, 3, EVERYTHING)
    assert (pipeline.digests(), versions()) == (before, made), "nothing had changed"

    pipeline.land(3, [order("late", 1, "100.00", ingested=f"{day(3)}T12:00:00Z")], "late.jsonl")
    pipeline.run(1, 3, EVERYTHING, tags={"dagster/backfill": "wrongone"})
    after = pipeline.digests()[FACT.name]
    assert {d for d in after if after[d] != before[FACT.name][d]} == {str(day(1))}
    if not local:
        found = verify(pipeline.settings, engine, Window(day(1), day(4)))
        assert {one.outcome for one in found} == {Match.MATCHES}
    undo(pipeline, "wrongone")
    assert pipeline.digests() == before

    if not local:
        kept = list(maintain(spark, pipeline.settings))
        assert [one.problems for one in kept] == [[]] * len(TABLES)
        assert pipeline.digests() == before
        page = pipeline.warehouse / "lateness_dashboard" / "index.html"
        assert "<html" in page.read_text()
    assert not [*pipeline.warehouse.glob("*/writing-*")], "the folders of the writes are gone"
    assert load_settings(**urls).landing == urls["landing"]
