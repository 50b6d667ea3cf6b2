"""What commits of each kind and the files beside the tables say: their keys and shapes.

Readers of the log rely on these: dashboards, scripts, and releases that come later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from backfill_assets.backfills.accept_code import accept_code
from backfill_assets.backfills.exports import MANIFEST, export_days
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta import targets
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.consistent_versions import VERSIONS_FILE, save_versions
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.maintenance import run_maintenance
from backfill_assets.delta.migrate import migrate_table
from backfill_assets.delta.targets import ComparisonLimits
from backfill_assets.imports.importer import ImportRequest, run_import
from backfill_assets.orders.tables import FACT, ORDER_LINES, RAW, REJECTED, STAGED
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import tables_of
from backfill_assets_tests.contracts.commit_tables import RETIRES
from backfill_assets_tests.contracts.shapes import shape
from backfill_assets_tests.helpers.pipeline import (
    EVERYTHING,
    LAYERS,
    Pipeline,
    copy_loaded,
    day,
    order,
    run_undo,
)
from backfill_assets_tests.helpers.shadow_targets import (
    build_shadow,
    compare_shadow,
    run_switch_over,
)

pytestmark = pytest.mark.system
PLACE = "backfill_assets_tests.contracts.commit_tables:"
SCORES, NOTES = "scores", "notes"
TABLES = tuple(name for name in EVERYTHING if name != "lateness_dashboard")


class Life:
    """A deployment in which something of each kind happens, one after the other."""

    def __init__(self, engine: Any, root: Path) -> None:
        self.engine, self.root = engine, root
        self.commits: dict[str, Any] = {}
        self.files: dict[str, Any] = {}

    def deploy(self, tables: str, today: date) -> Pipeline:
        place = f"{PLACE}{tables}"
        return Pipeline(
            self.engine,
            self.root,
            tables=place,
            window_days=1,
            today=today,
            check_independence=True,
        )

    def copy(self, name: str, pipeline: Pipeline) -> Pipeline:
        """A deployment that goes on from where another is."""
        root = self.root / name
        root.mkdir()
        copy_loaded(pipeline.root, root)
        settings, today = pipeline.settings, pipeline.now.date()
        copied = Pipeline(
            self.engine,
            root,
            land=False,
            tables=settings.tables,
            window_days=1,
            today=today,
            check_independence=True,
        )
        copied.instance = pipeline.instance
        return copied

    def note_commit(self, kind: str, url: Path, run_id: str = "") -> None:
        """Take the shape of the last commit of a table that says something of itself.

        Args:
            kind: of the commit.
            url: the table's folder.
            run_id: of the commit's run, where others may have followed.
        """
        for path in sorted((url / "_delta_log").glob("*.json"), reverse=True):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
            metadata = json.loads(info.get("userMetadata", "{}"))
            if metadata and run_id in ("", metadata["run_id"]):
                break
        else:
            raise AssertionError(f"{url.name} has no such commit: {kind}")
        transactions = [action["txn"] for action in actions if "txn" in action]
        self.commits.setdefault(kind, {})[url.name] = {
            "operation": info["operation"],
            "userMetadata": shape(metadata),
            "transactions": [
                {"appId": txn["appId"], "version": shape(txn["version"])} for txn in transactions
            ],
            "actions": sorted({name for action in actions for name in action}),
        }

    def note_commits(self, kind: str, warehouse: Path, names: tuple[str, ...]) -> None:
        for name in names:
            self.note_commit(kind, warehouse / name)

    def note_file(self, name: str, text: str | bytes) -> None:
        self.files[name] = shape(json.loads(text))


def _import_rows(life: Life, first: Pipeline, spark: Any) -> None:
    """Land the rows of somebody's table, on the second day."""
    moment = datetime(2024, 1, 2, 10, tzinfo=timezone.utc)
    values = {"order_ts": moment, "ingestion_ts": moment, "amount": Decimal("5.00")}
    rows = {name: [value] for name, value in (order("imported", 2) | values).items()}
    table = life.root / "old"
    write_deltalake(table, pa.table(rows))
    run_import(ImportRequest(first.deployment, spark, ORDER_LINES, str(table)))
    (manifest,) = (first.warehouse / "_imports" / "orders").glob("*.json")
    life.note_file("import", manifest.read_bytes())


def _load_days(life: Life, spark: Any) -> Pipeline:
    first = life.deploy("FIRST", day(4))
    first.land(1, [order("1", 1), order("no-customer", 1, "2.00", "c2"), "no JSON"])
    _import_rows(life, first, spark)
    first.land(2, [order("2", 2, "2.00"), order("late", 1, ingested=f"{day(2)}T12:00:00Z")])
    first.land(3, [order("3", 3), order("too-late", 1, ingested=f"{day(3)}T12:00:00Z")])
    first.run(1, None, (*TABLES, SCORES, NOTES))
    life.note_commits("load", first.warehouse, (*TABLES, SCORES, NOTES))
    # More days; before the facts are made of them, a copy has them merged.
    made_of_days = (FACT.name, SCORES, NOTES)
    tables = tuple(name for name in (*LAYERS, SCORES, NOTES) if name != REJECTED.name)
    backfill = {"dagster/backfill": "b1", "backfill_assets/reason": "more days"}
    first.run(1, 3, [name for name in tables if name not in made_of_days], tags=backfill)
    merging = life.copy("merging", first)
    merging.run(1, 3, [FACT.name], tags={"backfill_assets/write_mode": "merge"})
    life.note_commit("merge", merging.warehouse / FACT.name)
    first.run(1, 3, made_of_days, tags=backfill)
    life.note_commits("range", first.warehouse, tables)
    # And another copy has all of them undone.
    undone = life.copy("undone", first)
    run_undo(undone, "b1")
    life.note_commits("undo", undone.warehouse, tables)
    other = Code("tables-other", tables=dict.fromkeys(TABLES, "other"))
    accept_code(first.deployment, first.defs, other, FACT.name, None, "same rows", 0)
    life.note_commit("accepted code", first.warehouse / FACT.name)
    return first


def _switch_over(life: Life, first: Pipeline, spark: Any) -> None:
    second = life.deploy("SECOND", day(5))
    days = str(Window(day(1), day(3)))
    target, stages = build_shadow(second, days, reason="other points")
    assert [stage.failure for stage in stages] == [""]
    life.note_commit("target build", Path(target.table_url(second.deployment, SCORES)))
    # What production publishes meanwhile: the target begins anew there, with the days it has made.
    first.land(4, [order("4", 4)])
    first.run(4, None, (RAW.name, STAGED.name, SCORES))
    target, stages = build_shadow(second, days)
    assert [stage.failure for stage in stages] == [""]
    life.note_commit("adopt", Path(target.table_url(second.deployment, SCORES)), "target v2")
    compare_shadow(second, spark, ComparisonLimits(most_rows=0.5))
    run_switch_over(second, days=str(day(2)), reason="one day first")
    life.note_commit("canary", second.warehouse / SCORES)
    run_switch_over(second)
    life.note_commit("switch-over", second.warehouse / SCORES)
    life.note_file("target", targets.load_target(second.deployment, "v2").model_dump_json())
    run_undo(second, "v2-2")
    life.note_commit("undo of a switch-over", second.warehouse / SCORES)
    targets.drop_target(second.deployment, "v2")


def _migrate_and_retire(life: Life, spark: Any) -> None:
    second = life.deploy("SECOND", day(5))
    url = second.settings.table(NOTES)
    list(migrate_table(Writer(lambda: spark, url, tables_of(second.settings)[NOTES])))
    life.note_commit("migration", Path(url))
    ledgers = read_ledgers(second.deployment)
    assert save_versions(str(second.warehouse), ledgers)
    life.note_file(VERSIONS_FILE, (second.warehouse / VERSIONS_FILE).read_bytes())
    retired = life.deploy("RETIRED", RETIRES)
    over = RETIRES + (retired.settings.undo_days + 1) * DAY
    list(run_maintenance(spark, retired.deployment, [SCORES], today=over))
    life.note_commit("retirement", retired.warehouse / SCORES)


@pytest.fixture(scope="module")
def life(engine, spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    life = Life(engine, tmp_path_factory.mktemp("life"))
    first = _load_days(life, spark)
    to = life.root / "exported"
    export_days(first.deployment, spark, FACT.name, Window(day(1), day(3)), to)
    life.note_file("export", (to / MANIFEST).read_bytes())
    _switch_over(life, first, spark)
    _migrate_and_retire(life, spark)
    return life


KINDS = (
    "load",
    "range",
    "merge",
    "accepted code",
    "undo",
    "target build",
    "adopt",
    "canary",
    "switch-over",
    "undo of a switch-over",
    "migration",
    "retirement",
)


@pytest.mark.parametrize("kind", KINDS)
def test_commit(life: Life, kind: str, snapshot: SnapshotAssertion) -> None:
    assert life.commits[kind] == snapshot.use_extension(JSONSnapshotExtension)


@pytest.mark.parametrize("name", [VERSIONS_FILE, "target", "import", "export"])
def test_file_beside_the_tables(life: Life, name: str, snapshot: SnapshotAssertion) -> None:
    assert life.files[name] == snapshot.use_extension(JSONSnapshotExtension)


def test_no_kind_is_without_a_snapshot(life: Life) -> None:
    assert set(life.commits) == {*KINDS}
