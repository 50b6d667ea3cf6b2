"""The `backfill-assets` command: what it prints, and one sentence where something is wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from backfill_assets import spark as spark_module
from backfill_assets.cli import main
from backfill_assets.schemas import TABLES
from backfill_assets.spark import delta_coordinate

FACT = "fact_daily_orders"
JAN = [date(2024, 1, 1) + timedelta(days=n) for n in range(31)]


@pytest.fixture(autouse=True)
def _folders(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "landing"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def refused(capsys, command: str) -> str:
    """What a command says that ended with status 1: one line."""
    said = capsys.readouterr()
    assert said.err.startswith(f"backfill-assets {command}: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err + said.out
    return said.err


def test_a_bad_setting_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("BACKFILL_ASSETS_START", "20240101")
    for command in ("jars", "sample", "show", "ui", "progress"):
        assert main([command]) == 1
        said = refused(capsys, command)
        assert "BACKFILL_ASSETS_START='20240101': must be a day as YYYY-MM-DD" in said


def test_no_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "required: command" in capsys.readouterr().err


def test_it_is_installed_under_its_name():
    command = Path(sys.executable).with_name("backfill-assets")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    for word in ("jars", "sample", "cdnow", "show", "ui", "progress"):
        assert f"\n    {word} " in done.stdout


# jars


def test_jars_that_are_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path))
    folder = tmp_path / delta_coordinate().replace(":", "_")
    folder.mkdir()
    (folder / "io.delta_x.jar").touch()
    assert main(["jars"]) == 0
    assert capsys.readouterr().out == ""


def test_jars_without_java(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["jars"]) == 1
    said = refused(capsys, "jars")
    assert "Spark needs Java 17 or 21 and there is none on the PATH" in said


def test_jars_without_a_network(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path))
    monkeypatch.setattr(spark_module, "check_java", lambda: None)
    failed = subprocess.CompletedProcess([], 1, "", "x\n[unresolved dependency: io.delta]\n\tat y")
    monkeypatch.setattr(spark_module.subprocess, "run", lambda *_, **__: failed)
    assert main(["jars"]) == 1
    said = capsys.readouterr()
    assert said.out == f"Downloading the Delta jars ({delta_coordinate()}) ...\n"
    assert said.err.count("\n") == 1
    assert "could not be downloaded" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_server_needs_no_jars_here(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path))
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    assert main(["jars"]) == 0
    assert "the server has the Delta jars" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# sample and cdnow


def test_sample_is_written_once(capsys, tmp_path):
    assert main(["sample"]) == 0
    orders = tmp_path / "landing" / "orders"
    assert capsys.readouterr().out == (
        f"Writing 28 days of sample orders to {tmp_path / 'landing'} ...\n"
    )
    assert len(list(orders.iterdir())) == 28
    assert (orders / "arrival_date=2024-01-28").is_dir()
    assert (tmp_path / "landing" / "expected.json").is_file()
    before = {path: path.stat().st_mtime_ns for path in orders.rglob("*")}
    assert main(["sample"]) == 0
    assert capsys.readouterr().out == ""
    assert {path: path.stat().st_mtime_ns for path in orders.rglob("*")} == before


def test_only_a_local_landing_is_written_to(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", "s3a://bucket/in")
    assert main(["sample"]) == 0  # `make ui` goes on
    assert "s3a://bucket/in is no local folder" in capsys.readouterr().out
    assert main(["cdnow", "x.txt"]) == 1
    assert "LANDING=s3a://bucket/in is no local folder" in refused(capsys, "cdnow")
    assert list(tmp_path.iterdir()) == []


def test_a_landing_that_cannot_be_written(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "file"))
    assert main(["sample"]) == 1
    assert str(tmp_path / "file") in refused(capsys, "sample")


def test_cdnow(capsys, tmp_path):
    master = tmp_path / "master.txt"
    master.write_text("header\n 00001 19970101  1   11.77\n 00002 19970112  1   12.00\n")
    assert main(["cdnow", str(master)]) == 0
    assert capsys.readouterr().out == f"2 purchases written to {tmp_path / 'landing'}\n"
    landed = tmp_path / "landing/orders/arrival_date=1997-01-12/part-000.jsonl"
    assert json.loads(landed.read_text())["amount"] == "12.00"
    assert main(["cdnow", str(master)]) == 1
    assert "orders" in refused(capsys, "cdnow")


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("header\nnonsense\n", "not a CDNOW record: 'nonsense\\n'")],
)
def test_cdnow_refuses(capsys, tmp_path, text, said):
    master = tmp_path / "master.txt"
    if text:
        master.write_text(text)
    assert main(["cdnow", str(master)]) == 1
    assert said in refused(capsys, "cdnow")
    assert not (tmp_path / "landing").exists()


# show


def publish_facts(tmp_path: Path, days: dict[date, str], rows: int = 2, **said: object) -> None:
    """Commit days of facts as the IO manager would, with their verdicts."""
    table = pa.table(
        {
            "run_date": [day for day in days for _ in range(rows)],
            "customer_id": [f"c{n}" for _ in days for n in range(rows)],
            "orders": [1] * (rows * len(days)),
            "revenue": [Decimal("1.00")] * (rows * len(days)),
        }
    )
    audit = {
        str(day): {"rows": rows, "digest": "d", "verdict": verdict} for day, verdict in days.items()
    }
    record = {"run_id": "r", "code_version": "c", "config_digest": "d", "audit": audit, **said}
    if "written" in said:
        record["days"] = said["written"]
    write_deltalake(
        tmp_path / "warehouse" / "fact_daily_orders",
        table,
        mode="append",
        partition_by=["run_date"],
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(record)}),
    )


def shown(capsys) -> dict[str, list[str]]:
    """The words of each table's lines; no line is wider than 100."""
    assert main(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines if "/" not in line) <= 100
    assert lines[0].split() == ["Published"]
    assert lines[1].split() == [
        *("table", "days", "from...to", "rows", "ok", "warn", "alert", "commits")
    ]
    found: dict[str, list[str]] = {}
    for line in lines[2:]:
        if line.startswith("Tables "):
            break
        name = line.split()[0] if line[0] != " " else name  # noqa: F821
        found.setdefault(name, []).extend(line.split())
    return found


def test_show_without_tables(capsys, tmp_path):
    found = shown(capsys)
    assert found["fact_daily_orders"] == ["fact_daily_orders", "0", "no", "table", "yet"]
    assert list(found) == list(TABLES)


def test_show(capsys, tmp_path):
    publish_facts(tmp_path, {**dict.fromkeys(JAN[:20], "ok"), JAN[20]: "warn"}, rows=60)
    row = shown(capsys)["fact_daily_orders"]
    assert row[1:] == ["21", "2024-01-01...2024-01-21", "1,260", "20", "1", "0", "1"]


def test_show_with_gaps(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys([*JAN[:3], *JAN[4:6]], "ok"))
    publish_facts(tmp_path, {JAN[10]: "warn"})
    assert shown(capsys)["fact_daily_orders"][1:] == [
        *("6", "2024-01-01...2024-01-03", "12", "5", "1", "0", "2"),
        *("2024-01-05...2024-01-06", "2024-01-11"),
    ]


def test_show_with_many_gaps(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[::2], "ok"))
    row = " ".join(shown(capsys)["fact_daily_orders"])
    assert "11 range(s) before" in row
    assert "2024-01-31" in row
    assert "2024-01-21" not in row


def test_show_takes_the_latest_verdict(capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "warn"})
    publish_facts(tmp_path, {JAN[0]: "ok"})
    assert shown(capsys)["fact_daily_orders"][-4:] == ["1", "0", "0", "2"]


def test_show_says_where_things_are(capsys, monkeypatch, tmp_path):
    odd = tmp_path / ("long" * 30) / "[red]:100:"
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(odd))
    assert main(["show"]) == 0
    assert f"\nTables   {odd}/<table>\n" in capsys.readouterr().out


# history


def history(capsys, *given: str) -> list[list[str]]:
    assert main(["history", *given]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_history(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    twice = dict.fromkeys(JAN[1:3], "ok")
    publish_facts(tmp_path, twice, 5, backfill_id="b", since=0, written=["2024-01-02...2024-01-02"])
    now = datetime.now(timezone.utc).date()
    all_days = history(capsys, FACT)
    assert all_days[0] == ["version", "at", "(UTC)", "days", "run", "backfill", "by"]
    first, second, third = all_days[1:]
    assert first[:2] == ["0", str(now)]
    assert first[3:] == ["2024-01-01...2024-01-03", "r", "none", "person"]
    assert second[3:] == ["2024-01-02", "r", "b", "person"]
    assert third == ["2024-01-03", "unchanged"]


def life(capsys, day: str) -> list[str]:
    """What is printed of each commit."""
    assert main(["history", FACT, day]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    return "\n".join(lines).strip().split("\n\n")


def test_the_life_of_a_day(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    committed = {"git_commit": "0123456789abcdef", "git_dirty": True}
    by = {"backfill_id": "b", "reason": "bad amounts", "inputs": {"stg_orders": 4}, **committed}
    twice = dict.fromkeys(JAN[1:3], "warn")
    publish_facts(tmp_path, twice, 5, since=0, written=["2024-01-02...2024-01-02"], **by)
    undone = {"since": 1, "written": ["2024-01-02"], "said": {"undoes": "b"}}
    publish_facts(tmp_path, {JAN[1]: "ok"}, **undone, withdrawn=["2024-01-03"])
    first, second, third = life(capsys, "2024-01-02")
    assert "UTC, written" in first
    assert "2, digest d, verdict ok" in first
    assert "c (commit unknown)" in first
    assert "made from the landing" in first
    assert "r, backfill b" in second
    assert "person: bad amounts" in second
    assert "c (commit 0123456789, with uncommitted changes)" in second
    assert "stg_orders version 4" in second
    assert "put back to what it was before b" in third
    first, second, third = life(capsys, "2024-01-03")
    assert "computed, and unchanged" in second
    assert "taken back: before b it had never been published" in third
    assert len(life(capsys, "2024-01-01")) == 1
    assert "2024-01-03 taken back" in " ".join(history(capsys, FACT)[-1])


def test_history_tells_of_other_writers(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    DeltaTable(tmp_path / "warehouse" / FACT).delete("run_date = '2024-01-02'")
    assert "another writer: DELETE" in " ".join(history(capsys, FACT)[-1])
    assert "changed by another writer: DELETE" in life(capsys, "2024-01-02")[-1]
    assert len(life(capsys, "2024-01-03")) == 1


def test_history_of_what_is_not_there(capsys, tmp_path):
    assert main(["history", FACT]) == 1
    assert f"{FACT} has never been published at" in refused(capsys, "history")
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    assert main(["history", FACT, "2024-01-09"]) == 1
    assert f"{FACT}[2024-01-09] has never been published" in refused(capsys, "history")


# progress


def log(*events: str) -> str:
    """Lines as Dagster writes them; what does not begin with a step or RUN_ stays as it is."""
    stamp = datetime(2024, 1, 1, tzinfo=timezone.utc).strftime("%Y-%m-%d %H:%M:%S %z")
    head = f"{stamp} - dagster - DEBUG - __ASSET_JOB - 3d3d2572-95b6 - 22365 - "
    return "".join(f"{head}{e[1:]}\n" if e.startswith("*") else f"{e}\n" for e in events)


NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"
PASSED = (
    "*read_landing - ASSET_CHECK_EVALUATION - Asset check 'nulls' on 'raw_orders' passed. "
    "Description: 'did well'"
)
NOT_PASSED = (
    "*read_landing - ASSET_CHECK_EVALUATION - Asset check 'conservation' on 'raw_orders' "
    "did not pass. Description: 'x'"
)
RAW = "*read_landing - ASSET_MATERIALIZATION - Materialized value raw_orders."
REJECTED = "*read_landing - ASSET_MATERIALIZATION - Materialized value raw_orders_rejected."
BEGINNING = (
    "click/core.py:911: SupersessionWarning: superseded",
    '*RUN_START - Started execution of run for "__ASSET_JOB".',
    '*read_landing - STEP_START - Started execution of step "read_landing".',
    NOISE,
)
FAILED = (
    '*read_landing - STEP_FAILURE - Execution of step "read_landing" failed.',
    "",
    "dagster._core.definitions.events.Failure: raw_orders: 1 day(s) failed the audit.",
    "  raw_orders[2024-01-04]  conservation: [bold]2 rows where 3 are due",
    "",
    "raw_orders_rejected: 1 day(s) failed the audit.",
    "",
    "Stack Trace:",
    '  File "/x.py", line 243, in y',
)
SKIPPED = (
    "*stage_orders - Dependencies for step stage_orders failed: ['read_landing']. Not executing.",
    "*sum_orders - Dependencies for step sum_orders were not executed: ['stage_orders'].",
    '*RUN_FAILURE - Execution of run for "__ASSET_JOB" failed.',
    "",
    "dagster._core.definitions.events.Failure: raw_orders: 1 day(s) failed the audit.",
    "",
    "Stack Trace:",
    "Error: Materialization failed.",
)


def progress(monkeypatch, capsys, text: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status = main(["progress"])
    return status, capsys.readouterr().out


def test_progress(monkeypatch, capsys):
    text = log(
        *BEGINNING,
        *(PASSED, NOT_PASSED, RAW, RAW, PASSED, REJECTED),
        '*read_landing - STEP_SUCCESS - Finished execution of step "read_landing" in 41.9s.',
        "*stage_orders - STEP_START - Started",
        "*stage_orders - STEP_SUCCESS - Finished",
        "*RUN_SUCCESS - Finished execution of run.",
    )
    status, said = progress(monkeypatch, capsys, text)
    assert status == 0
    assert said.splitlines() == [
        "  read_landing ... published raw_orders 2 days, raw_orders_rejected 1 day; "
        "3 checks evaluated, 1 did not pass",
        "  stage_orders ... published nothing; 0 checks evaluated",
    ]


def test_progress_of_days_that_need_not_be_computed(monkeypatch, capsys):
    text = log(
        *BEGINNING,
        "*read_landing - raw_orders [2024-01-01...2024-01-21]: 20 days identical, 1 day written",
        RAW,
        "*read_landing - raw_orders_rejected [2024-01-01...2024-01-21]: 21 days identical",
        "*read_landing - STEP_SUCCESS - Finished",
        "*RUN_SUCCESS - Finished execution of run.",
    )
    assert progress(monkeypatch, capsys, text) == (
        0,
        "  read_landing ... identical raw_orders 20 days, raw_orders_rejected 21 days; "
        "published raw_orders 1 day\n",
    )


def test_progress_of_a_run_with_a_failed_day(monkeypatch, capsys):
    text = log(*BEGINNING, PASSED, NOT_PASSED, RAW, *FAILED, *SKIPPED)
    status, said = progress(monkeypatch, capsys, text)
    assert status == 1
    assert said.splitlines() == [
        "  read_landing ... FAILED; published raw_orders 1 day; 2 checks evaluated, 1 did not pass",
        "    raw_orders: 1 day(s) failed the audit.",
        "      raw_orders[2024-01-04]  conservation: [bold]2 rows where 3 are due",
        "    ",
        "    raw_orders_rejected: 1 day(s) failed the audit.",
        "  stage_orders ... not run, because of what failed before it",
        "  sum_orders ... not run, because of what failed before it",
    ]


def test_progress_shows_one_sentence_of_an_error_of_ours(monkeypatch, capsys):
    text = log(
        *BEGINNING,
        "*read_landing - STEP_FAILURE - Execution failed.",
        "dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred:",
        "",
        "backfill_assets.spark.EngineError: no server at :100:",
        "",
        "Stack Trace:",
        "  File x",
    )
    status, said = progress(monkeypatch, capsys, text)
    assert status == 1
    assert said.splitlines() == [
        "  read_landing ... FAILED; published nothing; 0 checks evaluated",
        "    backfill_assets.spark.EngineError: no server at :100:",
    ]


def test_progress_shows_the_stack_of_an_unforeseen_error(monkeypatch, capsys):
    text = log(
        *BEGINNING,
        "*read_landing - STEP_FAILURE - Execution failed.",
        "KeyError: 'x'",
        "Stack Trace:",
        "  File x",
        "*RUN_FAILURE - failed",
    )
    status, said = progress(monkeypatch, capsys, text)
    assert status == 1
    assert said.splitlines()[1:] == ["    KeyError: 'x'", "    Stack Trace:", "      File x"]


def test_progress_of_a_run_that_was_killed(monkeypatch, capsys):
    status, said = progress(monkeypatch, capsys, log(*BEGINNING, RAW, "OutOfMemoryError", "Killed"))
    assert status == 1
    assert said.splitlines() == [
        "  read_landing ... BROKEN OFF; published raw_orders 1 day",
        "    OutOfMemoryError",
        "    Killed",
    ]


def test_progress_of_a_run_that_never_began(monkeypatch, capsys):
    text = "Traceback (most recent call last):\n  File x\nErrr: no such asset\n"
    status, said = progress(monkeypatch, capsys, text)
    assert status == 1
    assert said.splitlines()[-1] == "    Errr: no such asset"
    text = "Traceback:\n  File x\nbackfill_assets.settings.SettingsError: bad settings: X\n"
    status, said = progress(monkeypatch, capsys, text)
    assert (status, said) == (1, "    backfill_assets.settings.SettingsError: bad settings: X\n")
    assert progress(monkeypatch, capsys, "") == (1, "")
