"""The commands about backfills: what they refuse, ask and print; the work itself is faked."""

from __future__ import annotations

import json
import re
import time
from datetime import date
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.types import DaemonHeartbeat

from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import changes, state_store
from backfill_assets.backfills import stages as backfills
from backfill_assets.backfills.diff import TableDiff
from backfill_assets.backfills.reconcile import CodeProvenance, ReconcileResult
from backfill_assets.cli import backfill, main, outcomes
from backfill_assets.cli.runs import RunProcess
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT, STAGED, TABLES
from backfill_assets.publish.types import LATER_DAYS_TAG
from backfill_assets.serve.supervisor import lock_home
from backfill_assets.settings import PREFIX
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import (
    DAYS,
    JAN,
    publish_facts,
    reconcile_run,
    refusal_message,
    save_launch,
    save_plan,
    usage_error,
)
from backfill_assets_tests.helpers.dagster_homes import make_home
from backfill_assets_tests.helpers.docs_pages import code_blocks


@pytest.fixture(autouse=True)
def _deployment(monkeypatch, tmp_path):
    for name in ("landing/orders", "warehouse"):
        (tmp_path / name).mkdir(parents=True)
    make_home(tmp_path / "home", "telemetry: {enabled: false}\n")
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "landing"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-29")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(backfill, "_POLL_SECONDS", 0)


@pytest.fixture
def instance(_deployment):
    with dg.DagsterInstance.get() as instance:
        yield instance


# plan and plans


def test_plan(instance, capsys):
    assert main(["plan", DAYS, "--pilot-days", "1", "--select", FACT.name]) == 0
    output = capsys.readouterr().out
    (id_,) = re.findall(r"^Launch   backfill-assets backfill (\w+)$", output, re.M)
    assert output.startswith(f"Plan {id_}")
    assert state_store.load(instance, id_).plan.parameters.pilot_days == 1
    assert main(["plan", "2024-01-02", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"]["days"] == "2024-01-02"
    assert list(plan["tables"]) == list(TABLES)
    assert state_store.list_ids(instance) == [id_, plan["id"]]


def test_a_plan_fits_a_screen(instance, capsys, monkeypatch):
    """Its totals, then what is unusual; `--full` has a row for each table and outcome."""
    monkeypatch.setenv("BACKFILL_ASSETS_TABLES", "backfill_assets_tests.planned_tables:TABLES")
    assert main(["plan", "2024-01-08...2024-01-20"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) < 30
    total = r"\d+ computed +never published +\d+ tables +2024-01-08\.\.\."
    assert any(re.match(total, line) for line in lines)
    table_lines = lines[lines.index("Look at") :]
    assert any(re.match(f"{STAGED.name} +\\d+ input missing", line) for line in table_lines)
    rest = r"not shown +\d+ rows by table.*: --full shows all"
    assert any(re.match(rest, line) for line in lines)
    assert main(["plan", "2024-01-08...2024-01-20", "--full"]) == 0
    full = capsys.readouterr().out.splitlines()
    assert len(full) > len(lines)
    assert {"code", "configuration"} <= {line.partition(" ")[0] for line in full}
    assert not any(line.startswith("not shown") for line in full)


def test_a_plan_names_the_weeks_that_it_leaves_out(instance, capsys, monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_TABLES", "backfill_assets_tests.planned_tables:TABLES")
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-31")
    assert main(["plan", "2024-01-22...2024-01-30", "--select", "weekly"]) == 0
    left_out = "Left out weekly[2024-01-29] ends after the calendar, on 2024-02-04"
    assert left_out in capsys.readouterr().out.splitlines()


def test_a_plan_from_a_file(instance, capsys, tmp_path):
    file = tmp_path / "backfill.yaml"
    (page,) = code_blocks("docs/runbook.md", "yaml")
    file.write_text(f"{page}\nchunk-days: none\nrewrite: true\npilot-days:\n")
    assert main(["plan", "--from", str(file), "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    assert parameters == {
        "days": "2024-01-10...2024-01-14",
        "tables": [STAGED.name, FACT.name],
        "pilot_days": 0,
        "chunk_days": None,
        "max_parallel": 2,
        "max_retries": 1,
        "write_mode": "overwrite",
        "rewrite": True,
        "accept": [],
        "reason": "bad amounts on the 12th",
    }
    # What is given with the command goes before the file.
    words = ["2024-01-03", "--select", FACT.name, "--max-parallel", "1", "--json"]
    assert main(["plan", "--from", str(file), *words]) == 0
    changed = json.loads(capsys.readouterr().out)["parameters"]
    assert (changed["days"], changed["tables"]) == ("2024-01-03", [FACT.name])
    assert (changed["max_parallel"], changed["max_retries"]) == (1, 1)
    for text, message in (
        ("parallel: 2", "there is no option parallel; did you mean max-parallel"),
        ("json: true", "there is no option json"),
        ("days: [", "is not YAML: while parsing"),
        ("start: 2024-01-02", "give `days`, or `start` and `end`"),
        ("days: 2024-01-02\nstart: 2024-01-02\nend: 2024-01-03", "give `days`, or `start`"),
        ("days: 2024-01-02\nreason: [a, b]", "reason is ['a', 'b']: give one value"),
        ("2024-01-02", "write `days` and options, as `max-parallel: 2`, a line each"),
        ("max-parallel: 2", "Missing argument 'PARTITIONS'"),
        ("days: 2024-01-32", "'2024-01-32' is not in the calendar"),
        ("days: 2024-01-02\nmax-parallel: 0x2", "'0x2' is not a valid integer range"),
        ("days: 2024-01-02\nselect:\n  fact: true", "line 2 is no option with a value or a list"),
        ("days: 2024-01-02\naccept: [[a]]", "line 2 is no option with a value or a list"),
        ("days: 2024-01-02\n? [reason]\n: a", "line 2 is no option with a value or a list"),
        ("days: 2024-01-02\nreason: a\ndays: 2024-01-03", "days is there again in line 3: leave"),
        ("start: 2024-01-02\nend:\n", "give `days`, or `start` and `end`"),
        ("days: 2024-01-02\nmax-parallel: 9", "9 is not in the range 1<=x<=8"),
    ):
        file.write_text(text)
        assert message in usage_error(capsys, "plan", "--from", str(file))


@pytest.mark.parametrize(
    ("line", "parameter", "value"),
    [
        ("reason: no", "reason", "no"),
        ("reason: 1.10", "reason", "1.10"),
        ("reason: 2024-01-10 00:00:00", "reason", "2024-01-10 00:00:00"),
        ("reason: 12:30", "reason", "12:30"),
        ("reason: 'null'", "reason", "null"),
        ("reason: null", "reason", ""),
        ("accept: 0x1f", "accept", ("0x1f",)),
        ("accept: [on, 007, null, =, 1_0]", "accept", ("on", "007", "null", "=", "1_0")),
        ("chunk-days: 010", "chunk_days", 10),
        ("chunk-days: none", "chunk_days", None),
        ("rewrite: yes", "rewrite", True),
        ("rewrite: off", "rewrite", False),
    ],
)
def test_a_value_in_a_file_is_read_as_it_is_written(tmp_path, line, parameter, value):
    file = tmp_path / "backfill.yaml"
    file.write_text(f"days: {DAYS}\n{line}\n")
    with backfill.plan.make_context("plan", ["--from", str(file)]) as context:
        assert context.params[parameter] == value


def test_a_plan_is_cut_as_is_asked(instance, capsys):
    for options, chunk_days, stages in (
        ([], "auto", ["rest"]),
        (["--chunk-days", "auto"], "auto", ["rest"]),
        (["--chunk-days", "none"], None, ["rest"]),
        (["--chunk-days", "0"], None, ["rest"]),
        (["--chunk-days", "2"], 2, ["001", "002"]),
    ):
        assert main(["plan", DAYS, "--json", *options]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["parameters"]["chunk_days"] == chunk_days
        assert [stage["name"] for stage in plan["cut"]] == stages


@pytest.mark.parametrize("command", ["plan", "backfill"])
def test_what_cannot_be_planned(instance, capsys, command):
    for options, message in (
        (["--pilot-days", "5"], f"a pilot of 5 day(s) leaves nothing of the 3 day(s) {DAYS}"),
        (["--pilot-days", "3"], "a pilot of 3 day(s) leaves nothing of the 3 day(s)"),
        (["--accept", "x", "--select", FACT.name], "x is accepted for nothing: only raw_orders"),
        (["--pilot-days", "-1"], "-1 is not in the range x>=0"),
        (["--chunk-days", "-1"], "-1 is not in the range x>=0"),
        (["--chunk-days", "even"], "'even' is not a valid integer range"),
        (["--max-parallel", "9"], "9 is not in the range 1<=x<=8"),
        (["--max-parallel", "many"], "'many' is not a valid integer range"),
        (["--write-mode", "append"], "'append' is not one of 'overwrite', 'merge'"),
    ):
        assert message in usage_error(capsys, command, DAYS, *options)
    assert state_store.list_ids(instance) == []


def test_plans(instance, monkeypatch, capsys):
    assert main(["plans"]) == 0
    assert "no plan is kept" in capsys.readouterr().out
    save_plan(instance, "aaaaaaaa")
    complete_state = save_plan(instance, "bbbbbbbb")
    complete_state.ended, complete_state.complete = "complete and reconciled", True
    state_store.save(instance, complete_state)
    assert main(["plans"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["plan", "made", "days", "tables", "state", "reason"]
    assert first.split()[3:] == [DAYS, FACT.name, "not", "launched", "why", "[red]"]
    assert second.split()[0] == "bbbbbbbb"
    assert "complete and reconciled" in second
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["plans"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 60
    assert {*heading.split(), *first.split(), *second.split()} == {*" ".join(lines).split()}
    assert main(["plans", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert [(plan["plan"], plan["state"]) for plan in plans] == [
        ("aaaaaaaa", "not launched"),
        ("bbbbbbbb", "complete and reconciled"),
    ]
    put_back = {"bbbbbbbb": {FACT.name: {date(2024, 1, 1): Mock()}}}
    monkeypatch.setattr(
        changes, "reverted_by_table", lambda _, id_: put_back.get(id_, {FACT.name: {}})
    )
    assert main(["plans", "--json"]) == 0
    assert [plan["state"] for plan in json.loads(capsys.readouterr().out)] == [
        "not launched",
        "complete and reconciled; undone since, or days of it",
    ]


def test_plans_of_another_version(instance, capsys):
    save_plan(instance, "aaaaaaaa")
    key = state_store._PLAN_KEY.format("aaaaaaaa")
    instance.daemon_cursor_storage.set_cursor_values({key: "{}"})
    assert main(["plans"]) == 0
    assert "was kept by another version" in capsys.readouterr().out
    assert main(["backfill", "aaaaaaaa"]) == 3
    assert "was kept by another version" in refusal_message(capsys, "backfill")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{}", "plan: Field required"),
        ("not JSON", "Invalid JSON"),
        ({"stage": 7}, "there is no stage 7"),
        ({"plan": {"parameters": {"days": "one day"}}}, "'one day' is no range of days"),
    ],
)
def test_a_plan_in_whatever_form_is_a_sentence(instance, said, why):
    state = save_plan(instance, "aaaaaaaa")
    if isinstance(said, dict):
        form = json.loads(state.model_dump_json())
        form["stage"] = said.get("stage", 0)
        form["plan"]["parameters"] |= said.get("plan", {}).get("parameters", {})
        said = json.dumps(form)
    key = state_store._PLAN_KEY.format("aaaaaaaa")
    instance.daemon_cursor_storage.set_cursor_values({key: said})
    with pytest.raises(state_store.PlanUnreadableError, match=re.escape(why)):
        state_store.load(instance, "aaaaaaaa")


# backfill


def test_a_plan_is_launched_as_it_was_made(capsys):
    for options in (
        *(["--max-parallel", "2"], ["--pilot-days", "0"], ["--chunk-days", "2"], ["--rewrite"]),
        *(["--reason", "x"], ["--accept", "x"], ["--select", FACT.name]),
        ["--write-mode", "overwrite"],
    ):
        message = usage_error(capsys, "backfill", "aaaaaaaa", *options)
        assert message.startswith(f"{options[0]} cannot change plan aaaaaaaa")


def test_an_unknown_plan(instance, capsys):
    assert "there is no plan aecrkdop, and no other either" in usage_error(
        capsys, "backfill", "aecrkdop"
    )
    save_plan(instance, "aecrkdop")
    message = usage_error(capsys, "backfill", "aecrkdob")
    assert "there is no plan aecrkdob; did you mean aecrkdop? There are aecrkdop." in message
    for run in ("12345678", "3d3d2572", "aecrkdop-pilot"):
        assert f"there is no plan {run}" in usage_error(capsys, "backfill", run)


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """The plans that were launched; each is complete at once."""
    plan_ids: list[str] = []

    def launch(_settings, _graph, dagster, _code, id_):
        plan_ids.append(id_)
        state = state_store.load(dagster, id_)
        state.ended, state.complete, state.took = "complete and reconciled", True, 61
        return state

    monkeypatch.setattr(backfill_jobs, "launch_plan", launch)
    return plan_ids


def test_final_days_are_not_rewritten_unasked(instance, launches, capsys, monkeypatch):
    save_plan(instance, "aaaaaaaa", final=("2024-01-01...2024-01-02",))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    message = usage_error(capsys, "backfill", "aaaaaaaa")
    assert (
        f"rewrites final days, which readers count on: {FACT.name} [2024-01-01...2024-0" in message
    )
    command = "backfill-assets backfill aaaaaaaa --yes"
    assert message.endswith(f"nothing was launched. If that is meant, give --yes: {command}\n")
    assert launches == []
    assert main(["backfill", "aaaaaaaa", "--yes"]) == 0
    assert launches == ["aaaaaaaa"]
    assert "Took     0:01:01" in capsys.readouterr().out


def test_the_link_is_that_of_the_ui_of_this_machine(instance, launches, capsys, monkeypatch):
    save_plan(instance, "aaaaaaaa")

    def read_link() -> str:
        assert main(["backfill", "aaaaaaaa"]) == 0
        (line,) = re.findall(r"^Launched (\S+)$", capsys.readouterr().out, re.MULTILINE)
        return line

    monkeypatch.delenv(f"{PREFIX}UI_URL", raising=False)
    assert read_link().startswith("http://127.0.0.1:3000/runs/b/")
    with lock_home(Path(instance.root_directory), 3017):
        assert read_link().startswith("http://127.0.0.1:3017/runs/b/")
        monkeypatch.setenv(f"{PREFIX}UI_URL", "https://dagster.example.org")
        assert read_link().startswith("https://dagster.example.org/runs/b/")


@pytest.mark.parametrize(("answer", "status"), [(False, 3), (True, 0)])
def test_a_person_is_asked_about_final_days(
    instance, launches, capsys, monkeypatch, answer, status
):
    save_plan(
        instance, "aaaaaaaa", computed=("2024-01-03",), depends=("2024-01-01",), final=(DAYS,)
    )
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(backfill.click, "confirm", lambda text: questions.append(text) or answer)
    assert main(["backfill", "aaaaaaaa"]) == status
    assert questions == [
        "Plan aaaaaaaa rewrites final days, which readers count on: "
        f"{FACT.name} [2024-01-01, 2024-01-03]. Rewrite them?"
    ]
    assert bool(launches) is answer
    if not answer:
        assert "nothing was launched; the plan is kept as aaaaaaaa" in refusal_message(
            capsys, "backfill"
        )


def test_final_days_that_stay_are_not_asked_about(instance, launches):
    save_plan(instance, "aaaaaaaa", computed=("2024-01-03",), identical=("2024-01-01",),
         final=("2024-01-01",))  # fmt: skip
    assert main(["backfill", "aaaaaaaa"]) == 0
    assert launches == ["aaaaaaaa"]


def send_heartbeat(instance, age: float) -> None:
    for kind in ("BACKFILL", "SENSOR"):
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age, kind, "x", []))


def test_a_dead_daemon(instance, capsys):
    save_plan(instance, "aaaaaaaa")
    for age in (None, 600.0):
        if age:
            send_heartbeat(instance, age)
        assert main(["backfill", "aaaaaaaa"]) == 3
        message = refusal_message(capsys, "backfill")
        assert "no SENSOR daemon is at work in this DAGSTER_HOME" in message
        assert "Nothing was launched" in message
    send_heartbeat(instance, 40.0)
    assert backfills.missing_daemons(instance) == []


@pytest.mark.parametrize(("complete", "status"), [(True, 0), (False, 1)])
def test_a_launch_is_watched(instance, monkeypatch, capsys, complete, status):
    state = save_plan(instance, "aaaaaaaa")
    instance.add_dynamic_partitions(state_store.ACTIVE, ["aaaaaaaa"])
    monkeypatch.setattr(backfill_jobs, "launch_plan", lambda *_: state)
    monkeypatch.setattr(backfills, "missing_daemons", lambda _: [])
    ended = state.model_copy(update={"ended": "it is over", "complete": complete})
    looks = iter([state, state, state, ended])
    monkeypatch.setattr(state_store, "load", lambda *_: next(looks))
    assert main(["backfill", "aaaaaaaa"]) == status
    output = capsys.readouterr().out
    assert output.count("stage 1 of 1 (aaaaaaaa-rest): about to be launched") == 1
    assert re.search(r"^\d\d:\d\d:\d\d  it is over$", output, re.M)
    assert "Next     backfill-assets reconcile aaaaaaaa, or backfill-assets undo" in output


def test_a_launch_that_nobody_watches_to_its_end(instance, monkeypatch, capsys):
    def raise_interrupt(*_):
        raise KeyboardInterrupt

    state = save_plan(instance, "aaaaaaaa")
    monkeypatch.setattr(backfill_jobs, "launch_plan", lambda *_: state)
    monkeypatch.setattr(backfills, "describe_progress", raise_interrupt)
    assert main(["backfill", "aaaaaaaa"]) == 130
    assert "It goes on, and `backfill-assets plans` tells how far" in capsys.readouterr().out


def test_a_quiet_launch_tells_its_end_alone(instance, monkeypatch, capsys):
    state = save_plan(instance, "aaaaaaaa")
    monkeypatch.setattr(backfill_jobs, "launch_plan", lambda *_: state)
    monkeypatch.setattr(backfills, "missing_daemons", lambda _: [])
    looks = iter([state, state, state.model_copy(update={"ended": "it is over"})])
    monkeypatch.setattr(state_store, "load", lambda *_: next(looks))
    assert main(["-q", "backfill", "aaaaaaaa"]) == 1
    assert re.fullmatch(r"\d\d:\d\d:\d\d  it is over\n", capsys.readouterr().out)


def test_a_daemon_that_dies_meanwhile(instance, monkeypatch, capsys):
    state = save_plan(instance, "aaaaaaaa")
    instance.add_dynamic_partitions(state_store.ACTIVE, ["aaaaaaaa"])
    monkeypatch.setattr(backfill_jobs, "launch_plan", lambda *_: state)
    assert main(["backfill", "aaaaaaaa"]) == 3
    message = refusal_message(capsys, "backfill")
    assert "daemon fell silent, so backfill aaaaaaaa stands at: stage 1 of 1" in message
    assert "goes on by itself" in message


# materialize


def test_days_that_a_plan_of_the_ui_did_not_publish(instance, monkeypatch):
    """Its id is the beginning of the id of the run that made it. Day 3 was never launched."""
    run = create_run_for_test(instance, job_name="backfill", status=dg.DagsterRunStatus.SUCCESS)
    id_ = run.run_id[:8]
    save_plan(instance, id_)
    save_launch(instance, f"{id_}-rest", {FACT.name: JAN[:2]})
    built: list[tuple[list[str], str]] = []

    def run_days(_process, assets, window, _tags) -> bool:
        built.append((assets, str(window)))
        return True

    monkeypatch.setattr(RunProcess, "run_days", run_days)
    assert main(["materialize", "--failed-of", id_, "--yes"]) == 0
    assert built == [([FACT.name], "2024-01-01...2024-01-02")]


def test_a_run_names_the_days_that_later_runs_build(instance, monkeypatch):
    """So that nobody is told to materialize them."""
    monkeypatch.setenv("BACKFILL_ASSETS_PARTITIONS_PER_RUN", "2")
    later_days = dict[str, str | None]()

    def run_days(_process, _assets, window, tags) -> bool:
        later_days[str(window)] = tags.get(LATER_DAYS_TAG)
        return True

    monkeypatch.setattr(RunProcess, "run_days", run_days)
    assert main(["materialize", "2024-01-01...2024-01-05", "--select", FACT.name]) == 0
    assert later_days == {
        "2024-01-01...2024-01-02": "2024-01-03...2024-01-05",
        "2024-01-03...2024-01-04": "2024-01-05",
        "2024-01-05": None,
    }


# reconcile and undo


def test_unknown_backfills(instance, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Engine, "from_settings", None)  # Spark is not asked
    save_plan(instance, "planplan")
    publish_facts(tmp_path, {JAN[0]: "ok"}, run_id="0123456789abcdef")
    publish_facts(tmp_path, {JAN[1]: "ok"}, backfill_id="aecrkdop-pilot")
    for command in ("reconcile", "undo"):
        message = usage_error(capsys, command, "aecrkdob")
        assert message == (
            "there is no backfill or run aecrkdob; did you mean aecrkdop? There are 01234567, "
            "aecrkdop, planplan.\n"
        )


def test_known_backfills(instance, tmp_path):
    from backfill_assets.settings import load_settings

    save_plan(instance, "planplan")
    publish_facts(tmp_path, {JAN[0]: "ok"}, run_id="0123456789abcdef")
    publish_facts(tmp_path, {JAN[1]: "ok"}, backfill_id="aecrkdop-pilot")
    for name in ("planplan", "01234567", "0123456789abcdef", "aecrkdop", "aecrkdop-pilot"):
        outcomes.refuse_unknown(Deployment(load_settings()), instance, name)


@pytest.fixture
def account(monkeypatch) -> list[str]:
    """What `reconcile` finds; its problems are what the list has."""
    problems: list[str] = []
    proof = CodeProvenance({"c": {STAGED.name: [date(2024, 1, 1)]}}, frozenset({"c"}), {})
    monkeypatch.setattr(outcomes, "refuse_unknown", lambda *_: None)
    result = ReconcileResult("x", [TableDiff(STAGED, [])], proof, [], problems)
    monkeypatch.setattr(outcomes, "_run_reconcile", reconcile_run(result))
    return problems


@pytest.mark.parametrize(
    ("found", "verdict", "status"),
    [([], "all of it is there, and adds up", 0), (["one", "two"], "one; two", 1)],
)
def test_reconcile_begins_with_its_verdict(account, capsys, found, verdict, status):
    account += found
    assert main(["reconcile", "x"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{'verdict':14} {verdict}"
    assert len([line for line in lines if line.startswith("verdict")]) == 1
    assert lines[1].split() == ["made", "by", "code", "c"]
    assert lines[2].startswith("stg_orders: no days")
    assert main(["reconcile", "x", "--summary"]) == status
    assert capsys.readouterr().out == f"{'verdict':14} {verdict}\n"
    assert main(["reconcile", "x", "--json"]) == status
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["good"], result["problems"]) == (verdict, not found, found)
    assert result[STAGED.name]["days"] == {}
    assert main(["reconcile", "x", "--json", "--summary"]) == status
    assert STAGED.name not in json.loads(capsys.readouterr().out)


# close and reopen


@pytest.fixture
def launched(instance, monkeypatch, tmp_path) -> list[tuple[list[str], str, dict[str, str]]]:
    """What the commands run, in a landing of orders that has the folder of the first day alone."""
    (tmp_path / "orders" / "arrival_date=2024-01-01").mkdir(parents=True)
    monkeypatch.setenv(f"{PREFIX}LANDING", str(tmp_path))
    runs: list[tuple[list[str], str, dict[str, str]]] = []

    def run_days(_process, assets, days, tags) -> bool:
        runs.append(([*assets], str(days), dict(tags)))
        return "fails" not in tags["backfill_assets/reason"]

    monkeypatch.setattr(RunProcess, "run_days", run_days)
    return runs


def test_arrival_days_are_closed_by_a_run_of_what_is_loaded_with_them(launched, capsys):
    words = ["orders", "2024-01-02...03", "--reason", "a strike"]
    assert main(["close", *words]) == 0
    assert (
        "Closed   nothing is waited for: orders [2024-01-02...2024-01-03]"
        in capsys.readouterr().out
    )
    ((assets, days, tags),) = launched
    assert {*assets} >= {"raw_orders", "raw_orders_rejected", "late_orders"}
    assert days == "2024-01-02...2024-01-03"
    assert tags == {"backfill_assets/close": "true", "backfill_assets/reason": "a strike"}
    assert main(["close", "orders", "2024-01-02", "--reason", "it fails"]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["close", "orders", "2024-01-01"], 3, "2024-01-01 has a folder"),
        (["reopen", "orders", "2024-01-02"], 3, "2024-01-02 is not closed"),
        (["close", "order", "2024-01-02"], 2, "did you mean 'orders'?"),
    ],
)
def test_arrival_days_that_are_not_closed(words, status, message, launched, capsys):
    assert main([*words, "--reason", "why"]) == status
    assert message in capsys.readouterr().err
    assert launched == []
