"""`make clean` removes the sample and what was made of it, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from backfill_assets.cli import main
from backfill_assets_tests.helpers.paths import PROJECT


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """What `make demo` leaves behind, small."""
    root = tmp_path / "project"
    script = root / "backfill_assets_guide/sample/clearing.py"
    script.parent.mkdir(parents=True)
    shutil.copy(PROJECT / "backfill_assets_guide/sample/clearing.py", script)
    shutil.copy(PROJECT / "Makefile", root)
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(root / "data/landing"))
    assert main(["-q", "sample", "--days", "2"]) == 0
    monkeypatch.delenv("BACKFILL_ASSETS_LANDING")
    (root / ".dagster").mkdir()
    (root / ".dagster/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    write_commit(root, "raw_orders", made_of=next((root / "data/landing/orders").rglob("part-*")))
    write_commit(root, "stg_orders")
    page = root / "data/warehouse/lateness_dashboard/index.html"
    page.parent.mkdir()
    page.write_text("<html>")
    return root


def write_commit(root: Path, table: str, *, made_of: Path | None = None, ours: bool = True) -> None:
    """The next commit of a table, with the record that the pipeline would give it."""
    log = root / "data/warehouse" / table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    record: dict = {"run_id": "r", "asset": table, "details": {}}
    if made_of:
        digest = hashlib.sha256(made_of.read_bytes()).hexdigest()[:32]
        files = {f"{made_of.parent.name}/{made_of.name}": [1, 0, digest]}
        record["details"]["landing"] = {str(date(2024, 1, 1)): {"files": files}}
    info = {"operation": "WRITE"} | ({"userMetadata": json.dumps(record)} if ours else {})
    actions = [{"commitInfo": info}, {"add": {"path": "a.parquet", "dataChange": True}}]
    version = len([*log.glob("*.json")])
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def make_clean(root: Path, **settings: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BACKFILL_ASSETS_")}
    result = subprocess.run(
        ["make", "-C", str(root), "clean", f"PYTHON={sys.executable}"],
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_sample_goes_with_all_that_was_made_of_it(project):
    (project / "site").mkdir()
    assert "stay as they are" not in make_clean(project)
    assert {path.name for path in project.iterdir()} == {"Makefile", "backfill_assets_guide"}
    assert "stay as they are" not in make_clean(project)


def _own_file(root: Path) -> None:
    (root / "data/landing/orders/arrival_date=2024-01-01/mine.jsonl").write_text("{}\n")


def _own_content(root: Path) -> None:
    first = next((root / "data/landing/orders").rglob("part-*"))
    first.write_bytes(first.read_bytes() + b"\n")


def _own_landing(root: Path) -> None:
    (root / "data/landing/.sample.json").unlink()


def _own_source(root: Path) -> None:
    (root / "data/landing/visits/arrival_date=2024-01-01").mkdir(parents=True)
    (root / "data/landing/visits/arrival_date=2024-01-01/a.csv").write_text("a\n")


def _other_warehouse(root: Path) -> None:
    (root / "data/production").mkdir()


def _own_table(root: Path) -> None:
    write_commit(root, "customers", ours=False)


def _own_folder(root: Path) -> None:
    (root / "data/warehouse/notes").mkdir()


def _own_rows(root: Path) -> None:
    write_commit(root, "stg_orders", ours=False)


def _loaded_from_elsewhere(root: Path) -> None:
    other = root / "arrival_date=2024-01-01" / "mine.csv"
    other.parent.mkdir()
    other.write_text("mine\n")
    write_commit(root, "raw_orders", made_of=other)


def _cut_log(root: Path) -> None:
    (root / "data/warehouse/raw_orders/_delta_log/00000000000000000000.json").unlink()
    (root / "data/warehouse/raw_orders/part.parquet").write_text("")


def _broken_log(root: Path) -> None:
    (root / "data/warehouse/raw_orders/_delta_log/00000000000000000001.json").write_text("{")


def _link_for_data(root: Path) -> None:
    (root / "data").rename(root.parent / "elsewhere")
    (root / "data").symlink_to(root.parent / "elsewhere")


def _link_inside(root: Path) -> None:
    (root / "data/landing/orders").rename(root.parent / "orders")
    (root / "data/landing/orders").symlink_to(root.parent / "orders")


def _link_that_leads_nowhere(root: Path) -> None:
    (root / "data/production").symlink_to(root.parent / "nowhere")


def _no_data(root: Path) -> None:
    shutil.rmtree(root / "data")


@pytest.mark.parametrize(
    "change",
    [
        _own_file,
        _own_content,
        _own_landing,
        _own_source,
        _other_warehouse,
        _own_table,
        _own_folder,
        _own_rows,
        _loaded_from_elsewhere,
        _cut_log,
        _broken_log,
        _link_for_data,
        _link_inside,
        _link_that_leads_nowhere,
        _no_data,
    ],
    ids=lambda change: change.__name__.strip("_"),
)
def test_what_is_not_the_sample_stays_all_of_it(change: Callable[[Path], None], project):
    change(project)
    before = list_paths(project.parent)
    assert "stay as they are: " in make_clean(project)
    assert list_paths(project.parent) == before


@pytest.mark.parametrize("name", ["WAREHOUSE", "LANDING"])
def test_an_instance_that_is_used_for_other_tables_stays(name, project):
    """Also where the sample lies beside it."""
    output = make_clean(project, **{f"BACKFILL_ASSETS_{name}": str(project.parent / "mine")})
    assert f"BACKFILL_ASSETS_{name} is " in output
    assert (project / ".dagster/dagster.yaml").exists()
    assert (project / "data/landing/orders").exists()


def test_a_warehouse_inside_the_folder_of_the_sample(project):
    warehouse = project / "data/warehouse/mine"
    assert "stay as they are" in make_clean(project, BACKFILL_ASSETS_WAREHOUSE=str(warehouse))


def test_an_instance_elsewhere_stays(project, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    make_clean(project, DAGSTER_HOME=str(home))
    assert home.is_dir()
    assert not (project / "data").exists()


def test_a_sample_beside_other_files_is_none(tmp_path, monkeypatch):
    (tmp_path / "visits").mkdir()
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path))
    assert main(["-q", "sample", "--days", "1"]) == 0
    assert (tmp_path / "orders").is_dir()
    assert not (tmp_path / ".sample.json").exists()


def list_paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}
