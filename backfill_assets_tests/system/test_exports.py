"""Exports of days: frozen, the same for the same days, and proven by what they were made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from backfill_assets import cli
from backfill_assets.audit.verdicts import empty_day
from backfill_assets.backfills import exports
from backfill_assets.backfills.exports import (
    MANIFEST,
    ExportError,
    ExportManifest,
    describe_file,
    export_days,
    find_export_problems,
    read_manifest,
)
from backfill_assets.calendar.partitions import Window
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT, RAW, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import refusal_message
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day, order
from backfill_assets_tests.helpers.written_logs import commit_days, commit_with_record

DAYS = Window(day(1), day(4))
TABLES = (RAW.name, STAGED.name)


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory):
    """Three days by two runs, the second one without rows, to be copied."""
    loaded = Pipeline(engine, tmp_path_factory.mktemp("original"), window_days=2)
    for n in (1, 3):
        loaded.land(n, [order(f"o{n}-{k}", n, customer="é" if k else None) for k in range(3)])
    loaded.land(2, [])
    loaded.run(1, 1, TABLES)
    loaded.run(2, 3, TABLES)
    return loaded.root


@pytest.fixture
def pipeline(engine, original, tmp_path, monkeypatch):
    """The three days, for the commands as well."""
    copy_loaded(original, tmp_path)
    pipeline = Pipeline(engine, tmp_path, window_days=2)
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        value = getattr(pipeline.settings, name)
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", str(value))
    monkeypatch.setattr(Engine, "from_settings", lambda _: engine)
    return pipeline


def write_export(pipeline: Pipeline, name: str, to: Path) -> bool:
    spark = pipeline.io_manager.engine.spark_session
    return export_days(pipeline.deployment, spark, name, DAYS, to)[1]


def find_problems(pipeline: Pipeline, folder: Path) -> list[str]:
    spark = pipeline.io_manager.engine.spark_session
    return [*find_export_problems(pipeline.deployment, spark, folder, read_manifest(folder))]


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_is_frozen_and_can_be_rebuilt_from_what_it_was_made_of(
    pipeline, tmp_path, capsys
):
    folder, other = tmp_path / "one", tmp_path / "deeper" / "other"
    command = ["export", STAGED.name, f"{day(1)}...{day(3)}", "--to", str(folder)]
    assert cli.main(command) == 0
    output = capsys.readouterr().out
    assert "6 in 2 file(s)" in output
    assert f"verify-export {folder} --rebuild" in output
    assert write_export(pipeline, STAGED.name, other)
    assert read_files(folder) == read_files(other)
    assert cli.main(command) == 0
    assert "holds this export already" in capsys.readouterr().out
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    manifest = read_manifest(folder)
    assert (manifest.table, manifest.days, manifest.rows) == (STAGED.name, str(DAYS), 6)
    assert [str(file.day) for file in manifest.files] == [str(day(n)) for n in (1, 3)]
    assert set(manifest.digests) == {*DAYS}
    assert [commit.days for commit in manifest.made_by] == [
        [str(Window(day(1), day(2)))],
        [str(Window(day(2), day(4)))],
    ]
    raw = pipeline.log(RAW.name).version()
    assert [commit.inputs for commit in manifest.made_by] == [{RAW.name: raw - 1}, {RAW.name: raw}]
    rows = [row for file in manifest.files for row in pq.read_table(folder / file.path).to_pylist()]
    assert sorted(map(str, rows)) == sorted(map(str, pipeline.rows(STAGED.name)))

    # A late line changes the table: not the export, and not what it can be made of again.
    pipeline.land(3, [order("late", 1, ingested=f"{day(3)}T08:00:00Z")], "late.jsonl")
    pipeline.run(1, 3, TABLES)
    capsys.readouterr()  # the log of the run
    assert cli.main(command) == 3
    assert "holds another export; it is as it was" in refusal_message(capsys, "export")
    assert read_files(folder) == read_files(other)
    assert cli.main(["verify-export", str(folder), "--rebuild"]) == 0
    assert "computed anew, as exported" in capsys.readouterr().out
    assert write_export(pipeline, STAGED.name, tmp_path / "newer")
    assert read_files(tmp_path / "newer") != read_files(folder)


def test_what_was_changed_is_found(pipeline, tmp_path, capsys):
    folder = tmp_path / "export"
    # Of a table with times and text: they come through.
    assert write_export(pipeline, STAGED.name, folder)
    assert find_problems(pipeline, folder) == []
    assert sum(pq.read_table(path).num_rows for path in folder.glob("*.parquet")) == 6

    first, second = (folder / file.path for file in read_manifest(folder).files)
    pq.write_table(pq.read_table(first).slice(1), first)
    second.unlink()
    (folder / "more.parquet").write_bytes(b"")
    assert cli.main(["verify-export", str(folder), "--json"]) == 1
    message = "\n".join(json.loads(capsys.readouterr().out)["problems"])
    assert "the manifest does not know more.parquet" in message
    assert f"{first.name} was changed" in message
    assert f"{day(1)}: the rows have digest" in message
    assert f"{second.name} is gone" in message
    command = ["export", STAGED.name, f"{day(1)}...{day(3)}", "--to", str(folder)]
    assert cli.main(command) == 3
    assert "holds something else" in refusal_message(capsys, "export")
    (folder / "more.parquet").unlink()
    second.write_bytes(b"no Parquet")
    with pytest.raises(ExportError, match="holds this export with other files"):
        write_export(pipeline, STAGED.name, folder)

    # A manifest that was changed along with the files does not agree with the log.
    text = json.loads((folder / MANIFEST).read_text())
    text["digests"][str(day(2))] = "1-2-3"
    (folder / MANIFEST).write_text(json.dumps(text))
    message = "\n".join(find_problems(pipeline, folder))
    assert f"{second.name} cannot be read" in message
    assert f"{day(2)}: the log says 0-0-0 of version" in message
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(ExportError, match="cannot be read"):
        read_manifest(folder)
    assert cli.main(["verify-export", str(tmp_path / "warehouse")]) == 3
    assert "holds no export" in refusal_message(capsys, "verify-export")


def test_files_with_other_days_and_days_without_a_record_are_found(tmp_path, monkeypatch):
    """Their digests cannot be compared, which shows nothing; nor has an empty file the day."""
    deployment = Deployment(load_settings(warehouse=f"{tmp_path}/warehouse"))
    contents = {day(1): [day(2)], day(3): []}
    for d, others in contents.items():
        pq.write_table(pa.table({"days": pa.array(others, pa.date32())}), tmp_path / f"{d}.parquet")
    manifest = ExportManifest(
        FACT.name,
        str(DAYS),
        version=0,
        columns={},
        rows=2,
        digests=dict.fromkeys(contents, "1-2-3-nested"),
        made_by=[],
        files=[describe_file(tmp_path, f"{d}.parquet", d, 1) for d in contents],
    )
    monkeypatch.setattr(exports, "create_frame", lambda _, __, rows: rows["days"].to_pylist())
    monkeypatch.setattr(
        exports,
        "measure_days",
        lambda found, table: {d: replace(empty_day(table), digest="1-2-3-nested") for d in found},
    )
    known = ledger(FACT, record(0, days(1), digest="1-2-3-nested"))
    monkeypatch.setattr(exports, "read_ledger", lambda *_: known)
    no_engine = cast("SparkSession", None)
    assert [*find_export_problems(deployment, no_engine, tmp_path, manifest)] == [
        f"{day(1)}.parquet has rows of other days: {day(2)}",
        f"{day(1)}: the rows have digest 0-0-0, the manifest says 1-2-3-nested",
        f"{day(3)}: the rows have digest 0-0-0, the manifest says 1-2-3-nested",
        f"{day(3)}: the log has no record of it in version 0",
    ]


def test_days_that_are_not_as_published_are_not_exported(tmp_path):
    deployment, to = Deployment(load_settings(warehouse=f"{tmp_path}/warehouse")), tmp_path / "to"
    facts = Path(deployment.table_url(FACT.name))
    no_engine = cast("SparkSession", None)
    commit_with_record(facts, 1, 2)
    with pytest.raises(ExportError, match=rf"\[{day(3)}\] has never been published"):
        export_days(deployment, no_engine, FACT.name, Window(day(2), day(4)), to)
    commit_days(facts, days(2))
    with pytest.raises(ExportError, match=rf"\[{day(2)}\] .* another writer changed it"):
        export_days(deployment, no_engine, FACT.name, Window(day(1), day(3)), to)
    assert [path.name for path in tmp_path.iterdir()] == ["warehouse"]
