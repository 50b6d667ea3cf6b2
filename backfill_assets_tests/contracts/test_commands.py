"""The commands: their help, and the status with which they end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import state_store
from backfill_assets.backfills.reconcile import CodeProvenance, ReconcileResult
from backfill_assets.cli import backfill, main, outcomes, output
from backfill_assets.cli.runs import JobRun
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.tables import FACT
from backfill_assets_tests.contracts.deployments import all_commands, make_deployment
from backfill_assets_tests.contracts.snapshot_files import TextFile
from backfill_assets_tests.helpers.command_line import DAYS, JAN, reconcile_run, save_plan


def test_help(snapshot):
    pages = [
        f"$ {context.command_path} --help\n{context.command.get_help(context)}\n"
        for context in all_commands()
    ]
    assert snapshot(extension_class=TextFile) == "\n".join(pages)


@pytest.fixture
def deployment(tmp_path, monkeypatch) -> Path:
    return make_deployment(tmp_path, monkeypatch)


@pytest.fixture
def instance(deployment) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.get() as instance:
        yield instance


Run = Callable[..., None]


def test_exit_codes(deployment, instance, monkeypatch, snapshot):
    lines = [f"{status.name:14} {int(status)}" for status in output.Status]
    lines.append("")

    def end(outcome: str, *arguments: str) -> None:
        lines.append(f"{' '.join(arguments)}\n    {outcome}: {int(main(arguments))}")

    end_wrong_uses(end)
    end_bad_settings(end)
    end_looks(end, monkeypatch, deployment)
    end_plans(end, monkeypatch, instance)
    end_results(end, monkeypatch)
    end_without_deployment(end, monkeypatch)
    assert snapshot(extension_class=TextFile) == "\n".join(lines) + "\n"


def end_wrong_uses(end: Run) -> None:
    end("no command")
    end("unknown command", "bakfill")
    end("help", "--help")
    end("version", "--version")
    end("help of a command", "show", "--help")
    end("unknown option", "show", "--unknown")
    end("options that exclude each other", "show", "-q", "-v")
    end("missing argument", "plan")
    end("unknown table", "show", "--select", "no_table")
    end("unknown table", "history", "no_table")
    end("day outside of the calendar", "verify", "2023-12-31")
    end("no day", "night", "--as-of", "20240101")
    end("pilot longer than the days", "plan", DAYS, "--pilot-days", "3")
    end("options that a target does not take", "plan", DAYS, "--target", "v2", "--rewrite")
    end("unknown plan", "backfill", "aaaaaaaa")
    end("unknown backfill", "reconcile", "aaaaaaaa")
    end("unknown backfill", "undo", "aaaaaaaa")
    end("unknown backfill", "runbook", "aaaaaaaa")
    end("unknown target", "compare", "v2")
    end("unknown target", "switch", "v2")
    end("unknown target", "drop", "v2")
    end("unknown source", "import", "no_source", "old")
    end("options that exclude each other", "import", "orders", "old", "--plan", "--check")
    end("directory that is not empty", "init", "landing")
    end("unknown lookup", "forget", "no_lookup", "TRUE")
    end("unknown lab", "lab", "no_lab")
    end("no subcommand", "drill")
    end("folder without a drill", "drill", "look", "no_drill")


def end_bad_settings(end: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "-1")
        for command in ("show", "plans", "targets", "ui", "night", "jars", "sample"):
            end("setting with a bad value", command)
        end("setting with a bad value", "verify", "2024-01-01")
        patch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "7")
        patch.setenv("BACKFILL_ASSETS_TABLES", "no_module:TABLES")
        end("setting names a module that is not there", "show")


def end_looks(end: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    end("days are published", "show")
    end("days are missing", "status")
    end("days are missing", "metrics")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "backfill_assets.monitoring.states.day_states", lambda *_: {JAN[0]: DayState.FINAL}
        )
        end("all days are good", "status")
    end("commits", "history", FACT.name)
    end("no commit of the table", "history", "stg_orders")
    end("no commit of the day", "history", FACT.name, "2024-01-09")
    end("no targets", "targets")
    end("runs as commands", "night", "--as-of", "2024-01-29")
    end("nothing to migrate", "migrate", "stg_orders")
    end("columns that cannot be changed in place", "migrate", FACT.name)
    end("the engine is not there", "maintain", FACT.name)
    end("a folder that is no export", "verify-export", "landing")
    end("nothing was imported before", "import", "orders")
    end("a local landing that has orders", "sample")
    end("a file that is not there", "cdnow", "no_file")
    end("a new directory", "init", "shop")
    end("list", "lab", "list")
    end("list", "drill", "causes")
    for log, outcome in (("RUN_SUCCESS - Finished.", "good"), ("RUN_FAILURE - Failed.", "bad")):
        with pytest.MonkeyPatch.context() as patch:
            line = f"2024-01-01 00:00:00 +0000 - dagster - DEBUG - j - 3d3d2572-95b6 - 1 - {log}\n"
            patch.setattr("sys.stdin", io.StringIO(line))
            end(f"log of a {outcome} run", "progress")
    end("no file of passwords", "password", "anna")
    monkeypatch.setenv("BACKFILL_ASSETS_UI_PASSWORDS", str(folder / "passwords"))
    end("empty password", "password", "anna")
    end("no such name", "password", "a b")
    monkeypatch.setattr("sys.stdin", io.StringIO("long enough to be a password\n"))
    end("password", "password", "anna")
    end("no token", "engine")


def end_plans(end: Run, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
    end("no plan", "plans")
    end("plan", "plan", "2024-01-02", "--select", FACT.name)
    final = save_plan(instance, "finaldays", final=(DAYS,))
    end("final days, and nobody to ask", "backfill", "finaldays")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        patch.setattr(backfill.click, "confirm", lambda _: False)
        end("final days, and a person says no", "backfill", "finaldays")
    end("an option that would change the plan", "backfill", "finaldays", "--rewrite")
    end("no daemon", "backfill", "finaldays", "--yes")
    for complete, outcome in ((True, "ended well"), (False, "a stage did not pass")):
        over = final.model_copy(update={"ended": outcome, "complete": complete})
        monkeypatch.setattr(backfill_jobs, "launch_plan", lambda *_, over=over: over)
        end(outcome, "backfill", "finaldays", "--yes")
    monkeypatch.setattr(backfill_jobs, "launch_plan", raise_interrupt)
    end("interrupted", "backfill", "finaldays", "--yes")
    key = state_store._PLAN_KEY.format("finaldays")
    instance.daemon_cursor_storage.set_cursor_values({key: "{}"})
    end("a plan of another version", "backfill", "finaldays")


def raise_interrupt(*_arguments: Any) -> None:
    raise KeyboardInterrupt


def end_results(end: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "refuse_unknown", lambda *_: None)
    end("the engine is not there", "reconcile", "aaaaaaaa")
    code = CodeProvenance({}, frozenset(), {})
    for problems, outcome in (([], "adds up"), (["x"], "does not add up")):
        account = ReconcileResult("aaaaaaaa", [], code, [], problems)
        monkeypatch.setattr(outcomes, "_run_reconcile", reconcile_run(account))
        end(outcome, "reconcile", "aaaaaaaa")
    monkeypatch.setattr(outcomes, "run_job", lambda *_: JobRun("0123456789", {}))
    end("done", "undo", "aaaaaaaa")
    monkeypatch.setattr(outcomes, "run_job", raise_refusal)
    end("refused", "undo", "aaaaaaaa")
    monkeypatch.setattr(outcomes, "run_job", raise_error)
    end("an error that nobody expects", "undo", "aaaaaaaa")


def raise_refusal(*_arguments: Any) -> None:
    raise ValueError("refused")


def raise_error(*_arguments: Any) -> None:
    raise KeyError("unexpected")


def end_without_deployment(end: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "relative")
    end("relative DAGSTER_HOME", "plans")
    monkeypatch.delenv("DAGSTER_HOME")
    for command in (["plan", "2024-01-01"], ["plans"], ["backfill", "2024-01-01"], ["ui"]):
        end("no DAGSTER_HOME", *command)
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", "no_warehouse")
    for command in (
        ["show"],
        ["metrics"],
        ["status"],
        ["history", FACT.name],
        ["verify", "2024-01-01"],
    ):
        end("no warehouse", *command)
    for command in (["maintain"], ["migrate"], ["forget", "rates", "TRUE"]):
        end("no warehouse", *command)
    end("no warehouse", "export", FACT.name, "2024-01-01", "--to", "exports")
    end("no warehouse", "verify-export", "exports")
