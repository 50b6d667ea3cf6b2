"""The page on schema changes is followed command by command; what it shows is what is printed."""

from __future__ import annotations

import pytest

from backfill_assets.cli import main
from backfill_assets.delta.migrate import migrate_table
from backfill_assets.settings import PREFIX
from backfill_assets.spark.session import Engine
from backfill_assets.tables.graph import tables_of
from backfill_assets_tests.helpers.docs_pages import code_blocks, run_step
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day, order, run_undo
from backfill_assets_tests.helpers.shadow_targets import build_shadow

STEPS = [text for text in code_blocks("docs/schema-changes.md", "text") if text.startswith("$ ")]
BEFORE = "backfill_assets_tests.migrating_tables:TABLES"
AFTER = "backfill_assets_tests.migrating_tables_after:TABLES"
THIRD = "backfill_assets_tests.migrating_tables_third:TABLES"
LAYERS = ["raw_orders", "stg_orders", "notes"]


@pytest.fixture
def production(engine, spark, tmp_path, monkeypatch) -> Pipeline:
    pipeline = Pipeline(engine, tmp_path, tables=BEFORE, window_days=1)
    for n in range(1, 4):
        pipeline.land(n, [order(f"{n}-{k}", n) for k in range(n)])
    pipeline.run(1, 3, LAYERS, tags={"dagster/backfill": "first"})
    pipeline.land(2, [order("2-9", 2, customer="late")], "part-1.jsonl")
    pipeline.run(1, 3, LAYERS, tags={"dagster/backfill": "second"})
    (tmp_path / "home").mkdir()
    (tmp_path / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", str(getattr(pipeline.settings, name)))
    monkeypatch.setenv(f"{PREFIX}TABLES", AFTER)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(Engine, "from_settings", lambda _: engine)
    return pipeline


def test_the_steps_do_what_the_page_says_and_an_undo_goes_back_over_one_change(
    production, engine, tmp_path, capsys
):
    after = Pipeline(engine, tmp_path, land=False, tables=AFTER, window_days=1)
    after.instance = production.instance
    build_shadow(production, f"{day(1)}...{day(3)}", tables=("notes",))
    refused = after.run(1, 3, ["notes"], fails=True)
    assert "backfill-assets migrate notes --plan" in after.failure(refused)
    versions = []
    for step in STEPS:
        run_step(step, capsys)
        versions.append(after.log("notes").version())
    assert versions[0] < versions[1]
    rows = {(row["run_date"], row["orders"], row["remark"]) for row in after.rows("notes")}
    assert {run_date for run_date, *_ in rows} == {day(n) for n in (1, 2, 3)}
    assert all(remark.startswith("note of ") for *_, remark in rows)
    assert main(["migrate"]) == 0
    assert "nothing to migrate" in capsys.readouterr().out
    # What was built beside it before has the columns of then: it is refused, and told what to do.
    before = after.rows("notes")
    for words in (
        ["switch", "v2"],
        ["compare", "v2"],
        ["backfill", f"{day(1)}...{day(3)}", "--target", "v2"],
    ):
        assert main(words) != 0
        message = " ".join("".join(capsys.readouterr()).split())
        assert "notes (its schema has version 2, and the clone's 1): the columns were" in message
        assert (
            "Drop the target (`backfill-assets drop v2`), and build the days into a new" in message
        )
    assert main(["drop", "v2"]) == 0
    assert after.rows("notes") == before
    # Over two changes of the columns it is not undone: another table goes on to the third.
    (tmp_path / "third").mkdir()
    copy_loaded(tmp_path, tmp_path / "third")
    third = Pipeline(engine, tmp_path / "third", land=False, tables=THIRD, window_days=1)
    third.instance = production.instance
    table = tables_of(third.settings)["notes"]
    assert [*migrate_table(third.io_manager.writer(table))]
    rows_of_third = third.rows("notes")
    refused = third.failure(run_undo(third, "second", fails=True))
    assert f"notes [{day(2)}] had the columns of schema 1 in version" in refused
    assert "has those of schema 3" in refused
    assert third.rows("notes") == rows_of_third
    # A backfill from before is undone with what was made of it: the old rows, in the new columns.
    assert "late" in {row["customer_id"] for row in after.rows("notes")}
    run_undo(after, "second")
    undone = after.rows("notes")
    assert {row["run_date"] for row in undone} == {day(1), day(2), day(3)}
    assert "late" not in {row["customer_id"] for row in undone}
    assert {row["remark"] for row in undone} == {f"note of {row['customer_id']}" for row in undone}
