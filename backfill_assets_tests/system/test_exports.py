"""Exports of days: frozen, the same for the same days, and proven by what they were made of."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from backfill_assets import cli
from backfill_assets.backfills.exports import (
    MANIFEST,
    ExportError,
    export_days,
    find_export_problems,
    find_rebuild_problems,
    read_manifest,
)
from backfill_assets.calendar.partitions import Window
from backfill_assets.definitions import build_defs
from backfill_assets.orders.tables import FACT, STAGED
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import refusal_message
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day, order

DAYS = Window(day(1), day(5))


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory):
    """Four days by two runs, to be copied."""
    loaded = Pipeline(engine, tmp_path_factory.mktemp("original"), window_days=2)
    for n in (1, 2, 4):
        loaded.land(n, [order(f"o{n}-{k}", n, customer="é" if k else None) for k in range(3)])
    loaded.land(3, [])
    loaded.run(1, 2)
    loaded.run(3, 4)
    return loaded.root


@pytest.fixture
def pipeline(engine, original, tmp_path):
    copy_loaded(original, tmp_path)
    return Pipeline(engine, tmp_path, window_days=2)


def write_export(pipeline: Pipeline, name: str, to: Path) -> bool:
    spark = pipeline.io_manager.engine.spark_session
    return export_days(pipeline.deployment, spark, name, DAYS, to)[1]


def find_problems(pipeline: Pipeline, folder: Path) -> list[str]:
    spark = pipeline.io_manager.engine.spark_session
    return [*find_export_problems(pipeline.deployment, spark, folder, read_manifest(folder))]


def rebuild_export(pipeline: Pipeline, folder: Path) -> list[str]:
    defs = build_defs(pipeline.settings, resources={"engine": pipeline.io_manager.engine})
    return [*find_rebuild_problems(pipeline.deployment, defs, read_manifest(folder))]


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_is_frozen_and_can_be_rebuilt_from_what_it_was_made_of(pipeline, tmp_path):
    folder, other = tmp_path / "one", tmp_path / "deeper" / "other"
    assert write_export(pipeline, FACT.name, folder)
    assert write_export(pipeline, FACT.name, other)
    assert read_files(folder) == read_files(other)
    assert not write_export(pipeline, FACT.name, folder)  # it is there already
    assert {path.name for path in tmp_path.iterdir()} >= {"one"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    manifest = read_manifest(folder)
    assert (manifest.table, manifest.days, manifest.rows) == (FACT.name, str(DAYS), 6)
    assert [str(file.day) for file in manifest.files] == [str(day(n)) for n in (1, 2, 4)]
    assert set(manifest.digests) == {*DAYS}
    assert [commit.days for commit in manifest.made_by] == [
        [str(Window(day(1), day(3)))],
        [str(Window(day(3), day(5)))],
    ]
    staged = pipeline.log(STAGED.name).version()
    assert [commit.inputs for commit in manifest.made_by] == [
        {STAGED.name: staged - 1},
        {STAGED.name: staged},
    ]
    rows = [row for file in manifest.files for row in pq.read_table(folder / file.path).to_pylist()]
    assert sorted(map(str, rows)) == sorted(map(str, pipeline.rows(FACT.name)))
    assert find_problems(pipeline, folder) == rebuild_export(pipeline, folder) == []

    # A late line changes the table: not the export, and not what it can be made of again.
    pipeline.land(4, [order("late", 2, ingested=f"{day(4)}T08:00:00Z")], "late.jsonl")
    pipeline.run(2, 4)
    with pytest.raises(ExportError, match="holds another export; it is as it was"):
        write_export(pipeline, FACT.name, folder)
    assert read_files(folder) == read_files(other)
    assert find_problems(pipeline, folder) == rebuild_export(pipeline, folder) == []
    assert write_export(pipeline, FACT.name, tmp_path / "newer")
    assert read_files(tmp_path / "newer") != read_files(folder)
    assert (
        find_problems(pipeline, tmp_path / "newer")
        == rebuild_export(pipeline, tmp_path / "newer")
        == []
    )


def test_times_and_text_come_through(pipeline, tmp_path):
    assert write_export(pipeline, STAGED.name, tmp_path / "staged")
    assert find_problems(pipeline, tmp_path / "staged") == []
    rows = [pq.read_table(path) for path in sorted((tmp_path / "staged").glob("*.parquet"))]
    assert pa.concat_tables(rows).num_rows == 9


def test_what_was_changed_is_found(pipeline, tmp_path):
    folder = tmp_path / "export"
    write_export(pipeline, FACT.name, folder)
    first, second, third = (folder / file.path for file in read_manifest(folder).files)
    pq.write_table(pq.read_table(first).slice(1), first)
    second.unlink()
    third.write_bytes(b"no Parquet")
    (folder / "more.parquet").write_bytes(b"")
    message = "\n".join(find_problems(pipeline, folder))
    assert "the manifest does not know more.parquet" in message
    assert f"{first.name} was changed" in message
    assert f"{day(1)}: the rows have digest" in message
    assert f"{second.name} is gone" in message
    assert f"{third.name} cannot be read" in message
    with pytest.raises(ExportError, match="holds something else"):
        write_export(pipeline, FACT.name, folder)
    (folder / "more.parquet").unlink()
    second.write_bytes(b"")
    with pytest.raises(ExportError, match="holds this export with other files"):
        write_export(pipeline, FACT.name, folder)

    # A manifest that was changed along with the files does not agree with the log.
    text = json.loads((folder / MANIFEST).read_text())
    text["digests"][str(day(3))] = "1-2-3"
    (folder / MANIFEST).write_text(json.dumps(text))
    assert f"{day(3)}: the log says 0-0-0 of version" in "\n".join(find_problems(pipeline, folder))
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(ExportError, match="cannot be read"):
        read_manifest(folder)


def test_days_that_are_not_as_published_are_not_exported(pipeline, tmp_path):
    spark, to = pipeline.io_manager.engine.spark_session, tmp_path / "export"
    with pytest.raises(ExportError, match=rf"\[{day(5)}\] has never been published"):
        export_days(pipeline.deployment, spark, FACT.name, Window(day(4), day(6)), to)
    rows = pipeline.log(FACT.name).to_pyarrow_table()
    write_deltalake(str(pipeline.warehouse / FACT.name), rows.slice(0, 1), mode="append")
    with pytest.raises(ExportError, match="another writer changed it"):
        export_days(pipeline.deployment, spark, FACT.name, DAYS, to)
    assert not to.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_commands(pipeline, engine, tmp_path, monkeypatch, capsys):
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        value = getattr(pipeline.settings, name)
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", str(value))
    monkeypatch.setattr(Engine, "from_settings", lambda _: engine)
    folder = str(tmp_path / "out")
    run = ["export", FACT.name, f"{day(1)}...{day(4)}", "--to", folder]
    assert cli.main(run) == 0
    output = capsys.readouterr().out
    assert "6 in 3 file(s)" in output
    assert f"verify-export {folder} --rebuild" in output
    assert cli.main(run) == 0
    assert "holds this export already" in capsys.readouterr().out
    assert cli.main(["verify-export", folder, "--rebuild"]) == 0
    assert "computed anew, as exported" in capsys.readouterr().out
    (tmp_path / "out" / "x").write_text("x")
    assert cli.main(["verify-export", folder, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["the manifest does not know x"]
    assert cli.main(run) == 3
    assert "holds something else" in refusal_message(capsys, "export")
    assert cli.main(["verify-export", str(tmp_path / "warehouse")]) == 3
    assert "holds no export" in refusal_message(capsys, "verify-export")
