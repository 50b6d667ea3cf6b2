"""What the commands print with `--json`: keys, and types of values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from deltalake import DeltaTable

from backfill_assets.audit.verdicts import DayContent
from backfill_assets.backfills import accept_code as acceptance
from backfill_assets.backfills import exports, state_store, undo, verify
from backfill_assets.backfills.accept_code import AcceptanceRefusedError, AcceptedCode
from backfill_assets.backfills.backfill_plan import (
    ApiCallEstimate,
    BackfillPlan,
    BackfillRequest,
    Skew,
    Stage,
    TableForecast,
)
from backfill_assets.backfills.diff import ColumnDrift, DayDiff, RowDiff, TableDiff
from backfill_assets.backfills.downstream import UndoScope
from backfill_assets.backfills.reconcile import CodeProvenance, ReconcileResult
from backfill_assets.backfills.state_store import BackfillState
from backfill_assets.backfills.verify import VerifiedDay, VerifyOutcome
from backfill_assets.cli import backfill, main, outcomes
from backfill_assets.cli import backfill as plan_commands
from backfill_assets.cli.runs import JobRun
from backfill_assets.delta import delta_rs, targets
from backfill_assets.delta.read_check import ReadCheck
from backfill_assets.delta.targets import ComparisonLimits, Target, TargetComparison
from backfill_assets.deployment import Deployment
from backfill_assets.imports import importer
from backfill_assets.imports.external_table import NewData
from backfill_assets.imports.import_state import ImportMapping, TableImport
from backfill_assets.imports.import_state import ImportStep as ImportStep
from backfill_assets.imports.importer import ImportCheck, ImportPlan, RowCounts
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.tables import FACT, TABLES
from backfill_assets.settings import load_settings
from backfill_assets.shadow import compare
from backfill_assets.shadow.compare import Comparison
from backfill_assets.spark.session import Engine
from backfill_assets_tests.contracts.deployments import all_commands, make_deployment
from backfill_assets_tests.contracts.snapshot_files import Shape, TextFile
from backfill_assets_tests.helpers.command_line import (
    DAYS,
    JAN,
    publish_facts,
    reconcile_run,
    save_plan,
)

LANDED = "arrival_date=2024-01-01/import-0.parquet"
#: Keys that are data.
NAMES = {
    **dict.fromkeys(TABLES, "<table>"),
    **dict.fromkeys(FACT.columns, "<column>"),
    **dict.fromkeys(["exchange_rates", "places"], "<lookup>"),
    "countries": "<reference>",
    "new input": "<why>",
    LANDED: "<file>",
}


class Shapes:
    """The shape of what each command prints, by a label that begins with the command."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.by_label: dict[str, Shape] = {}

    def take(self, label: str, *arguments: str, names: Mapping[str, str] = NAMES) -> None:
        """Run a command; a label that comes again adds to the shape of before."""
        self._capsys.readouterr()
        status = main([*arguments, "--json"])
        printed = self._capsys.readouterr()
        assert status in (0, 1), printed.err
        self.by_label.setdefault(label, Shape(names)).add(json.loads(printed.out))


@pytest.fixture
def deployment(tmp_path, monkeypatch) -> Path:
    return make_deployment(tmp_path, monkeypatch)


def test_json(deployment, monkeypatch, capsys, snapshot):
    monkeypatch.setattr(Engine, "spark_session", property(lambda _: None))
    shapes = Shapes(capsys)
    for take in (
        take_tables,
        take_plans,
        take_launches,
        take_undo,
        take_reconcile,
        take_targets,
        take_exports,
        take_imports,
        take_verify,
        take_acceptance,
        take_doctor,
    ):
        with pytest.MonkeyPatch.context() as patch:
            take(shapes, deployment, patch)
    text = "\n".join(
        f"{label}\n{chr(10).join(shape.lines())}\n" for label, shape in shapes.by_label.items()
    )
    assert snapshot(extension_class=TextFile) == text
    offer_json = {
        context.command_path.partition(" ")[2]
        for context in all_commands()
        if any("--json" in parameter.opts for parameter in context.command.params)
    }
    # A command that gets the option needs its shape here.
    assert offer_json == {label.partition(" [")[0] for label in shapes.by_label}


def take_tables(shapes: Shapes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_facts(
        folder,
        dict.fromkeys(JAN[1:3], "warn"),
        since=0,
        written=["2024-01-02"],
        withdrawn=["2024-01-01"],
        inputs={"stg_orders": 1},
        backfill_id="aecrkdop",
        git_commit="c0ffee",
        git_dirty=False,
        reason="why",
    )
    publish_facts(folder, {JAN[3]: "ok"}, said={"undoes": "aecrkdop"})
    DeltaTable(folder / "warehouse" / FACT.name).delete("run_date = '2024-01-02'")
    shapes.take("show", "show")
    states = {state.value: "<state>" for state in DayState}
    shapes.take("status", "status", names=NAMES | states)
    shapes.take("history", "history", FACT.name)
    shapes.take("history", "history", FACT.name, "2024-01-03")


def filled_plan(**fields: Any) -> BackfillPlan:
    """A plan that has something in every field, unless it is told otherwise."""
    ranges = ("2024-01-01...2024-01-03",)
    outlook = TableForecast(
        identical=ranges,
        computed=ranges,
        depends=ranges,
        lacking=ranges,
        other_settings=ranges,
        final=ranges,
        why={"new input": ranges},
    )
    calls = ApiCallEstimate(at_most=2, expected=1, unknown_days=1, seconds=2.0, quota="10 a second")
    uncertain = calls.model_copy(update={"expected": None})
    skew = Skew(table=FACT.name, column="customer_id", above=0.5, day=JAN[0], one_key=0.6,
                no_key=0.1, days=ranges, lines=3)  # fmt: skip
    filled = {
        "id": "aecrkdop",
        "parameters": BackfillRequest(
            days=DAYS,
            tables=(FACT.name,),
            chunk_days=2,
            max_parallel=2,
            max_retries=1,
            accept=("x",),
            reason="why",
        ),
        "code_version": "c",
        "code": "c (commit c0ffee)",
        "config_digest": "d",
        "versions": {FACT.name: 1, "stg_orders": None},
        "landing": "d",
        "code_versions": {FACT.name: "c"},
        "held": ("a.jsonl",),
        "replaced": ("b.jsonl",),
        "tables": {FACT.name: outlook},
        "keys": {FACT.name: ("customer_id",)},
        "only_read": {"stg_orders": ranges},
        "following": {"orders_7d": ranges},
        "files": 1,
        "size": 1,
        "commits": 1,
        "runs": 1,
        "seconds": 1.5,
        "calls": {"exchange_rates": calls, "places": uncertain},
        "cut": (Stage(name="rest", days=DAYS, work=3),),
        "skews": (skew,),
        "unsampled": ("c.jsonl: why",),
    }
    plan = BackfillPlan.model_validate(filled | fields)
    for name in BackfillPlan.model_fields:
        assert fields or getattr(plan, name), f"{name} is empty"
    return plan


def take_plans(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for plan in (
            filled_plan(),
            filled_plan(seconds=None, parameters=BackfillRequest(days=DAYS)),
            filled_plan(parameters=BackfillRequest(days=DAYS, chunk_days=None)),
        ):
            patch.setattr(plan_commands, "create_plan", lambda *_, plan=plan: plan)
            shapes.take("plan", "plan", DAYS)
    # As it is made from the tables' logs.
    shapes.take("plan", "plan", DAYS, "--select", FACT.name)
    with dg.DagsterInstance.get() as instance:
        save_plan(instance, "aaaaaaaa")
        key = state_store._PLAN_KEY.format("bbbbbbbb")
        save_plan(instance, "bbbbbbbb")
        instance.daemon_cursor_storage.set_cursor_values({key: "{}"})
    shapes.take("plans", "plans")


def take_launches(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = BackfillState(plan=filled_plan(), attempt=1, ended="done", complete=True, took=2.5)
    monkeypatch.setattr(backfill, "create_plan", lambda *_: ended.plan)
    monkeypatch.setattr(backfill, "_launch_plan", lambda *_: ended)
    shapes.take("backfill", "backfill", DAYS, "--yes")


def take_undo(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "refuse_unknown", lambda *_: None)
    monkeypatch.setattr(outcomes, "run_job", lambda *_: JobRun("0123456789", {}))
    monkeypatch.setattr(undo, "days_written_by_run", lambda *_: {FACT.name: {JAN[0], JAN[1]}})
    shapes.take("undo", "undo", "aecrkdop")
    extent = UndoScope({JAN[0]: Mock()}, {JAN[1]: Mock()}, [JAN[2]], [])
    plan = Mock(scopes={FACT.name: extent}, problems=["a problem"])
    monkeypatch.setattr(undo, "plan_undo", lambda *_, **__: plan)
    shapes.take("undo [--plan]", "undo", "aecrkdop", "--plan")


def filled_reports() -> list[TableDiff]:
    """A day that was added, one that is missing, and one that has changed."""
    keyless = DayContent(2, {"orders": 2, "revenue": Decimal("1.00")}, "a")
    keyed = DayContent(3, {"orders": 3, "revenue": Decimal("2.00")}, "b", 3)
    days = [
        DayDiff(JAN[0], (None, 1), None, keyed),
        DayDiff(JAN[1], (0, None), keyed, None),
        DayDiff(JAN[2], (0, 1), keyless, keyless),
    ]
    row = {"run_date": str(JAN[0]), "customer_id": "c1", "orders": None}
    samples = [RowDiff(JAN[0], None, row), RowDiff(JAN[1], row, None)]
    return [TableDiff(FACT, days, samples, {"orders": ColumnDrift(0.3, 0.2)})]


def take_reconcile(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = CodeProvenance({"c": {FACT.name: [JAN[0]]}}, frozenset({"c"}), {FACT.name: ["d"]})
    monkeypatch.setattr(outcomes, "refuse_unknown", lambda *_: None)
    for unreadable in ("", "the plan is of another version"):
        account = ReconcileResult("aecrkdop", filled_reports(), code, [], ["a problem"], unreadable)
        monkeypatch.setattr(outcomes, "_run_reconcile", reconcile_run(account))
        shapes.take("reconcile", "reconcile", "aecrkdop")
        shapes.take("reconcile [--summary]", "reconcile", "aecrkdop", "--summary")


def take_targets(shapes: Shapes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = TargetComparison(generation="g", versions={}, pins={}, bounds=ComparisonLimits())
    target = Target(
        name="v2",
        tables=(FACT.name,),
        requested_days=(DAYS,),
        pins={},
        generation="g",
        compared=compared,
    )
    settings = load_settings()
    targets.save_target(Deployment(settings), target)
    # A target of another version of the package.
    delta_rs.write_document(
        f"{targets.target_folder(Deployment(settings), 'v3')}/_state", "{}", delta_rs.NO_REVISION
    )
    shapes.take("targets", "targets")
    monkeypatch.setattr(
        compare, "compare_target", lambda *_: Comparison(filled_reports(), ["a problem"])
    )
    shapes.take("compare", "compare", "v2")


def take_exports(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = exports.ExportOrigin(
        [DAYS], 1, "r", {"stg_orders": 1}, {"countries": "x"}, "c", "c0ffee", ["d"]
    )
    uncounted = exports.ExportOrigin([DAYS], 1, "r", {}, {"countries": None}, "c", "", ["d"])
    manifest = exports.ExportManifest(
        table=FACT.name,
        days=DAYS,
        version=1,
        columns={"orders": "bigint"},
        rows=2,
        digests={JAN[0]: "d"},
        made_by=[origin, uncounted],
        files=[exports.ExportedFile("run_date=2024-01-01/part-0.parquet", JAN[0], 2, 100, "s")],
    )
    monkeypatch.setattr(exports, "export_days", lambda *_: (manifest, True))
    shapes.take("export", "export", FACT.name, DAYS, "--to", "exports")
    monkeypatch.setattr(exports, "read_manifest", lambda _: manifest)
    monkeypatch.setattr(exports, "find_export_problems", lambda *_: ["a problem"])
    shapes.take("verify-export", "verify-export", "exports")


def take_imports(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = TableImport("orders", "/old", "delta", "id", ImportMapping())
    for since in (None, 0):
        news = NewData(1, since, 100, [])
        proposal = ImportPlan(
            before,
            news,
            {JAN[0]: RowCounts(1)},
            RowCounts(),
            1,
            1,
            1,
            ["x"],
            ["y"],
            [[JAN[0], JAN[1]]],
        )
        monkeypatch.setattr(importer, "plan_import", lambda _, proposal=proposal: proposal)
        shapes.take("import [--plan]", "import", "orders", "/old", "--plan")
    counts = ImportCheck(1, 1, problems=["a problem"])
    monkeypatch.setattr(importer, "check_import", lambda *_: counts)
    shapes.take("import [--check]", "import", "orders", "/old", "--check")
    after = before.with_step(ImportStep("s", None, 1, {JAN[0]: 2}, {LANDED: 2}, done=True))
    monkeypatch.setattr(importer.ImportRequest, "open_import", lambda _: (None, before))
    monkeypatch.setattr(importer, "run_import", lambda *_: after)
    shapes.take("import [without an option]", "import", "orders", "/old")


def take_verify(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = DayContent(2, {"orders": 2}, "d")
    verified = [
        VerifiedDay(FACT.name, JAN[0], VerifyOutcome.DIFFERS, "why", content, content, content),
        VerifiedDay(FACT.name, JAN[1], VerifyOutcome.NOT_PUBLISHED),
    ]
    monkeypatch.setattr(verify, "verify_days", lambda *_: verified)
    tests = [ReadCheck(FACT.name, 1, ["a problem"]), ReadCheck("stg_orders", None)]
    for test in tests:
        monkeypatch.setattr(
            "backfill_assets.delta.read_check.check_read", lambda *_, test=test: test
        )
        shapes.take("verify", "verify", DAYS)


def take_acceptance(shapes: Shapes, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = AcceptedCode(FACT.name, JAN[:2], JAN[:1], frozenset({"c"}), 3, "accept-1")
    for error in (None, AcceptanceRefusedError("why")):
        monkeypatch.setattr(
            acceptance, "accept_code", Mock(return_value=accepted, side_effect=error)
        )
        monkeypatch.setattr(acceptance, "repin_plans", lambda *_: ["plan1"])
        shapes.take("accept-code", "accept-code", FACT.name, "--reason", "why")


def take_doctor(shapes: Shapes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a bad setting the other parts are not looked at: all lines have the same keys.
    with monkeypatch.context() as bad:
        bad.setenv("BACKFILL_ASSETS_START", "20240101")
        shapes.take("doctor", "doctor")
    shapes.take("settings", "settings")
