"""The `backfill-assets` command: what it prints, and one sentence where something is wrong."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version

import click
import pytest
from deltalake import DeltaTable

from backfill_assets.cli import added_commands, cli, main
from backfill_assets.cli.output import Output
from backfill_assets.cli.upkeep import accept_code
from backfill_assets.monitoring.next_runs import REBUILD, RunPlanner
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.tables import TABLES
from backfill_assets.report import ReportTable
from backfill_assets.spark import jars as jars_module
from backfill_assets.spark.jars import delta_coordinate
from backfill_assets.spark.jvm_launch import class_archive_path
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import (
    JAN,
    publish_facts,
    refusal_message,
    usage_error,
)
from backfill_assets_tests.helpers.paths import BIN

FACT = "fact_daily_orders"


@pytest.fixture(autouse=True)
def _folders(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "landing"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_bad_setting_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("BACKFILL_ASSETS_START", "20240101")
    for command in ("jars", "sample", "show", "ui", "status"):
        assert main([command]) == 3
        message = refusal_message(capsys, command)
        assert "BACKFILL_ASSETS_START='20240101': must be a day as YYYY-MM-DD" in message
    assert main(["verify", "2024-01-01"]) == 3
    refusal_message(capsys, "verify")


# the command itself

HEAVY = {"dagster", "pyspark", "pandera", "deltalake", "pandas", "pyarrow"}


def test_no_command(capsys):
    assert main([]) == 2
    assert "Usage: backfill-assets" in capsys.readouterr().err


def test_an_unknown_command(capsys):
    assert "Did you mean 'backfill'?" in usage_error(capsys, "bakfill")
    assert "Did you mean" not in usage_error(capsys, "xyz")


def test_it_is_installed_under_its_name():
    command = BIN / "backfill-assets"
    result = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    for word in cli.list_commands(click.Context(cli)):
        assert f"\n  {word} " in result.stdout
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"backfill-assets {version('backfill-assets')}\n"


def test_a_night_is_not_fine_while_days_wait_for_days_of_other_settings(monkeypatch, capsys):
    """No run failed, as none could be asked for; cron hears of it all the same."""
    reason = "stg_orders[2024-01-01] was made under other settings; rebuild these days first"
    blocked = [(FACT, JAN[1:2], reason)]
    monkeypatch.setattr(RunPlanner, "next_batch", lambda *_: (REBUILD, []))
    monkeypatch.setattr(RunPlanner, "blocked_days", lambda *_: iter(blocked))
    for name in ("plan_rebuilds", "days_for_a_person"):
        monkeypatch.setattr(RunPlanner, name, lambda *_: [])
    monkeypatch.setattr(RunPlanner, "no_data_warnings", lambda *_: {})
    text = f"{FACT} [2024-01-02] is behind its inputs and cannot be built: {reason}"
    assert main(["night", "--run"]) == 1
    assert capsys.readouterr().out == f"Blocked  {text}\n"
    assert main(["night"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"# {text}"]
    blocked.clear()
    assert main(["night", "--run"]) == 0


def test_help_is_quick():
    """None of the help loads what takes seconds."""
    code = (
        "import sys; from backfill_assets.cli import cli, main; import click\n"
        "main(['--help'])\n"
        "for name in cli.list_commands(click.Context(cli)): main([name, '--help'])\n"
        f"print(*({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == ""
    assert result.stdout.count("Usage: ") == 1 + len(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_help_has_an_example_that_can_be_typed(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-29")
    (tmp_path / "backfill.yaml").write_text("days: 2024-01-10")
    monkeypatch.chdir(tmp_path)
    assert main([name, "-h"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    examples = re.findall(r"^    backfill-assets (.*)$", output.partition("  Example")[2], re.M)
    assert examples
    for example in examples:
        first, *words = shlex.split(example.partition("<")[0])
        assert first == name
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        with command.make_context(name, words, parent=click.Context(cli, obj=Output())) as context:
            assert context.params.keys() == {p.name for p in command.params if p.expose_value}


def test_a_command_of_another_package(monkeypatch, capsys, tmp_path):
    """It runs by its name, is in the help, and replaces no command of this package."""
    (tmp_path / "greeting.py").write_text(
        "import click\n"
        "class GreetingError(Exception): ...\n"
        "from backfill_assets.cli.output import command\n"
        "@command('greet Anna')\n"
        "@click.argument('name')\n"
        "def greet(out, name):\n"
        '    """Greet somebody."""\n'
        "    if name == 'nobody': raise GreetingError('there is nobody')\n"
        "    out.print_text(f'Good morning, {name}')\n"
    )
    metadata = tmp_path / "greeting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[backfill_assets.commands]\ngreet = greeting:greet\nshow = greeting:greet\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    added_commands.cache_clear()
    try:
        assert main(["greet", "Anna"]) == 0
        assert capsys.readouterr().out == "Good morning, Anna\n"
        assert main(["greet", "nobody"]) == 3
        assert refusal_message(capsys, "greet").endswith("there is nobody\n")
        assert main(["--help"]) == 0
        assert re.search(r"  greet +Greet somebody\.", capsys.readouterr().out)
        assert "'greet'?" in usage_error(capsys, "greett")
        assert main(["show", "--help"]) == 0
        assert "Greet" not in capsys.readouterr().out
    finally:
        added_commands.cache_clear()


@pytest.mark.parametrize("prints_json", [False, True])
def test_a_result_is_printed_as_text_or_as_json(prints_json, capsys):
    out = Output()
    out.json = prints_json
    out.print_note("Looking ...")
    out.print_text("one day")
    out.print_facts([("days", "1")])
    out.print_table(ReportTable.from_rows(["day"], [["2024-01-03"]]))
    out.print_json({"days": 1})
    output = capsys.readouterr().out
    if prints_json:
        assert json.loads(output) == {"days": 1}
    else:
        assert [line.split() for line in output.splitlines()] == [
            ["Looking", "..."],
            ["one", "day"],
            ["days", "1"],
            ["day"],
            ["2024-01-03"],
        ]


def test_completion(monkeypatch, capsys):
    monkeypatch.setenv("_BACKFILL_ASSETS_COMPLETE", "bash_source")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    assert "COMP_WORDS" in capsys.readouterr().out
    monkeypatch.setenv("_BACKFILL_ASSETS_COMPLETE", "bash_complete")
    for words, at, expected in (
        ("backfill-assets pla", 1, ["plan", "plans"]),
        ("backfill-assets history fact_daily_orders_", 2, ["fact_daily_orders_current"]),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(at))
        with pytest.raises(SystemExit):
            main([])
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(",")[2] for line in lines] == expected


def test_a_fault_of_ours_is_no_finding(monkeypatch, capsys):
    monkeypatch.setattr("backfill_assets.cli.tables.open_deployment", lambda: {}["x"])
    assert main(["show"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_verbose_has_the_trace_of_an_error(monkeypatch, capsys):
    for command in (["-v", "show"], ["show", "-v"]):
        assert main(command) == 3
        message = capsys.readouterr().err
        assert "Traceback" in message
        assert message.splitlines()[-1].startswith("backfill-assets show: there is no warehouse")
    assert "exclude each other" in usage_error(capsys, "-v", "show", "-q")


# days and tables, one way to say them

TAKE_DAYS = (
    ("plan",),
    ("backfill",),
    ("verify",),
    ("history", FACT),
    ("undo", "x", "--days"),
    ("undo", "x", "--partitions"),
)


@pytest.mark.parametrize("command", TAKE_DAYS)
def test_days_are_refused_in_one_sentence(monkeypatch, capsys, command):
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-29")
    for days in (
        *("2024-1-1", "2024-02-30", "2024-13-01", "2024-01-01....2024-01-02", "2024-01-01...x"),
        *("2024-01-05...2024-01-04", "2023-12-31", "2024-01-28...2024-01-29"),
    ):
        assert usage_error(capsys, *command, days).endswith(
            f"{days!r} is not in the calendar, which is 2024-01-01...2024-01-28: give FIRST...LAST "
            "or one day, as YYYY-MM-DD, the first not after the last\n"
        )


def test_a_day_of_its_own(capsys):
    for day in ("20240101", "2024-1-1", "2024-01-01...2024-01-02"):
        assert f"{day!r} is not one day, as YYYY-MM-DD" in usage_error(
            capsys, "night", "--as-of", day
        )


@pytest.mark.parametrize(
    "command",
    [
        *(["show", "--select"], ["status", "--select"], ["maintain"], ["history"]),
        *(["plan", "2024-01-01", "--table"], ["verify", "2024-01-01", "--select"]),
        ["backfill", "2024-01-01", "--select"],
    ],
)
def test_unknown_tables(monkeypatch, capsys, command):
    monkeypatch.setattr(Engine, "from_settings", None)  # Spark is not asked
    message = usage_error(capsys, *command, "fact_daily_order")
    assert "there is no table fact_daily_order; did you mean fact_daily_orders or" in message
    assert "There are raw_orders, " in message


def test_selected_tables(capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "ok"})
    for options in (
        ["--select", "stg_orders,fact_daily_orders"],
        ["--select", FACT, "--table", "stg_orders"],
        [FACT, "--select", "stg_orders"],
    ):
        assert main(["show", "--json", *options]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["table"] for row in rows] == ["stg_orders", FACT]
    assert main(["show", "--json", "--select", "*"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(TABLES)


def test_code_is_accepted_for_tables_with_blanks_or_commas_between_them(capsys):
    """PARTITIONS come last, once."""
    argument = accept_code.params[0]
    for words, names, days in (
        (["stg_orders", FACT], ("stg_orders", FACT), None),
        ([f"{FACT},stg_orders", "2024-01-02"], ("stg_orders", FACT), JAN[1]),
        (["*", "2024-01-02...2024-01-02"], tuple(TABLES), JAN[1]),
    ):
        with click.Context(accept_code) as ctx:
            tables, window = argument.process_value(ctx, words)
        assert (tables, window and window.start) == (names, days)
    for words in (["2024-01-02"], ["2024-01-02", FACT], [FACT, "2024-01-02", "2024-01-03"]):
        message = usage_error(capsys, "accept-code", *words, "--reason", "same rows")
        assert "give tables, then at most one range of days" in message
    assert "there is no table x" in usage_error(capsys, "accept-code", FACT, "x", "--reason", "y")


# jars


def test_jars_that_are_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path))
    folder = jars_module._jar_folder(tmp_path, delta_coordinate())
    folder.mkdir()
    (folder / "io.delta_x.jar").touch()
    jars_module._jar_folder(tmp_path, jars_module._LOCAL_FILES).mkdir()
    archive = class_archive_path(tmp_path)
    assert archive is not None
    archive.parent.mkdir()
    archive.touch()
    assert main(["jars"]) == 0
    assert capsys.readouterr().out == ""


def test_jars_without_java(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["jars"]) == 3
    message = refusal_message(capsys, "jars")
    assert "Spark needs Java 17 or 21 and there is none on the PATH" in message


def test_jars_without_a_network(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_JARS", str(tmp_path))
    monkeypatch.setattr(jars_module, "check_java", lambda: None)
    failed = subprocess.CompletedProcess([], 1, "", "x\n[unresolved dependency: io.delta]\n\tat y")
    monkeypatch.setattr(jars_module.subprocess, "run", lambda *_, **__: failed)
    assert main(["jars"]) == 3
    captured = capsys.readouterr()
    assert captured.out == f"Downloading the Delta jars ({delta_coordinate()}) ...\n"
    assert captured.err.count("\n") == 1
    assert "could not be downloaded" in captured.err
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
    assert main(["sample", "--days", "5"]) == 0
    assert "it stays as it is, whatever --days says" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in orders.rglob("*")} == before
    assert "0 is not in the range" in usage_error(capsys, "sample", "--days", "0")


def test_only_a_local_landing_is_written_to(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", "s3a://bucket/in")
    assert main(["sample"]) == 0  # `make ui` goes on
    assert "s3a://bucket/in is no local folder" in capsys.readouterr().out
    assert main(["cdnow", "x.txt"]) == 3
    assert "LANDING=s3a://bucket/in is no local folder" in refusal_message(capsys, "cdnow")
    assert list(tmp_path.iterdir()) == []


def test_a_landing_that_cannot_be_written(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "file"))
    assert main(["sample"]) == 3
    assert str(tmp_path / "file") in refusal_message(capsys, "sample")


def test_cdnow(capsys, tmp_path):
    master = tmp_path / "master.txt"
    master.write_text("header\n 00001 19970101  1   11.77\n 00002 19970112  1   12.00\n")
    assert main(["cdnow", str(master)]) == 0
    assert capsys.readouterr().out == f"2 purchases written to {tmp_path / 'landing'}\n"
    landed = tmp_path / "landing/orders/arrival_date=1997-01-12/part-000.jsonl"
    assert json.loads(landed.read_text())["amount"] == "12.00"
    assert main(["cdnow", str(master)]) == 3
    assert "orders" in refusal_message(capsys, "cdnow")


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("header\nnonsense\n", "not a CDNOW record: 'nonsense\\n'")],
)
def test_cdnow_refuses(capsys, tmp_path, text, said):
    master = tmp_path / "master.txt"
    if text:
        master.write_text(text)
    assert main(["cdnow", str(master)]) == 3
    assert said in refusal_message(capsys, "cdnow")
    assert not (tmp_path / "landing").exists()


# show


def show_words(capsys) -> dict[str, list[str]]:
    """The words of each table's lines; no line is wider than 100."""
    assert main(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines if "/" not in line) <= 100
    assert lines[0].split() == ["Published"]
    assert lines[1].split() == [
        *("table", "days", "from...to", "rows", "ok", "warn", "alert", "commits")
    ]
    words_by_table: dict[str, list[str]] = {}
    for line in lines[2:]:
        if line.startswith("Tables "):
            break
        name = line.split()[0] if line[0] != " " else name  # noqa: F821
        words_by_table.setdefault(name, []).extend(line.split())
    return words_by_table


def test_show_without_tables(capsys, tmp_path):
    (tmp_path / "warehouse").mkdir()
    words_by_table = show_words(capsys)
    assert words_by_table["fact_daily_orders"] == ["fact_daily_orders", "0", "no", "table", "yet"]
    assert list(words_by_table) == list(TABLES)


@pytest.mark.parametrize("command", [["show"], ["status"], ["history", FACT], ["maintain"]])
def test_a_warehouse_that_is_not_there(capsys, tmp_path, command):
    assert main(command) == 3
    message = refusal_message(capsys, command[0])
    assert f"there is no warehouse at {tmp_path / 'warehouse'}" in message


def test_show(capsys, tmp_path):
    publish_facts(tmp_path, {**dict.fromkeys(JAN[:20], "ok"), JAN[20]: "warn"}, rows=60)
    row = show_words(capsys)["fact_daily_orders"]
    assert row[1:] == ["21", "2024-01-01...2024-01-21", "1,260", "20", "1", "0", "1"]


def test_show_as_json(capsys, tmp_path):
    publish_facts(tmp_path, {**dict.fromkeys(JAN[:3], "ok"), JAN[5]: "warn"})
    assert main(["show", "--json", "--select", FACT]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "table": FACT,
            "path": str(tmp_path / "warehouse" / FACT),
            "version": 0,
            "days": 4,
            "partitions": ["2024-01-01...2024-01-03", "2024-01-06"],
            "rows": 8,
            "verdicts": {"ok": 3, "warn": 1, "alert": 0},
            "commits": 1,
        }
    ]


def test_lines_fit_the_terminal_and_no_word_is_broken(monkeypatch, capsys):
    out, path = Output(), "/srv/" + 40 * "x"
    text = "Next     backfill-assets reconcile aecrkdop, or backfill-assets undo aecrkdop"
    monkeypatch.setenv("COLUMNS", "40")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", terminal := Terminal())
        out.print_text(f"{text}\n{path} is kept")
        out.print_command(f"dagster asset materialize --select {path}")
    assert terminal.getvalue().splitlines() == [
        "Next     backfill-assets reconcile",
        "         aecrkdop, or backfill-assets",
        "         undo aecrkdop",
        path,
        "  is kept",
        f"dagster asset materialize --select {path}",
    ]
    # A program reads lines as they are.
    out.print_text(text)
    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_a_narrow_terminal_keeps_every_column(monkeypatch, capsys, tmp_path, width):
    publish_facts(tmp_path, {**dict.fromkeys(JAN[:20], "ok"), JAN[20]: "warn"}, rows=60)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["show", "-q", "--select", FACT]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for word in ("table", "days", "from...to", "rows", "ok", "warn", "alert", "commits"):
        assert words.count(word) == 1
    at = words.index(FACT)
    figures = ["21", "2024-01-01...2024-01-21", "1,260", "20", "1", "0", "1"]
    assert words[at + 1 : at + 8] == figures


def test_quiet_has_no_hints(capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "ok"})
    for command in (["-q", "show"], ["show", "--quiet"]):
        assert main(command) == 0
        output = capsys.readouterr().out
        assert FACT in output
        assert "Next " not in output


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_text_in_a_pipe_and_without_color(monkeypatch, capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "ok"})
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["show"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr("sys.stdout", terminal := Terminal())
        assert main(["show"]) == 0
        assert ("\x1b" in terminal.getvalue()) is not bool(no_color)


def test_show_with_gaps(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys([*JAN[:3], *JAN[4:6]], "ok"))
    publish_facts(tmp_path, {JAN[10]: "warn"})
    assert show_words(capsys)["fact_daily_orders"][1:] == [
        *("6", "2024-01-01...2024-01-03", "12", "5", "1", "0", "2"),
        *("2024-01-05...2024-01-06", "2024-01-11"),
    ]


def test_show_with_many_gaps(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[::2], "ok"))
    row = " ".join(show_words(capsys)["fact_daily_orders"])
    assert "11 range(s) before" in row
    assert "2024-01-31" in row
    assert "2024-01-21" not in row


def test_show_takes_the_latest_verdict(capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "warn"})
    publish_facts(tmp_path, {JAN[0]: "ok"})
    assert show_words(capsys)["fact_daily_orders"][-4:] == ["1", "0", "0", "2"]


def test_show_says_where_things_are(capsys, monkeypatch, tmp_path):
    odd = tmp_path / ("long" * 30) / "[red]:100:"
    odd.mkdir(parents=True)
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(odd))
    assert main(["show"]) == 0
    assert f"\nTables   {odd}/<table>\n" in capsys.readouterr().out


# history


def history_lines(capsys, *arguments: str) -> list[list[str]]:
    assert main(["history", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_history(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    twice = dict.fromkeys(JAN[1:3], "ok")
    publish_facts(tmp_path, twice, 5, backfill_id="b", since=0, written=["2024-01-02...2024-01-02"])
    now = datetime.now(timezone.utc).date()
    all_days = history_lines(capsys, FACT)
    assert all_days[0] == ["version", "at", "(UTC)", "days", "run", "backfill", "by"]
    first, second, third = all_days[1:]
    assert first[:2] == ["0", str(now)]
    assert first[3:] == ["2024-01-01...2024-01-03", "r", "none", "person"]
    assert second[3:] == ["2024-01-02", "r", "b", "person"]
    assert third == ["2024-01-03", "unchanged"]


def day_history(capsys, day: str) -> list[str]:
    """What is printed of each commit."""
    assert main(["history", FACT, day]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    return "\n".join(lines).strip().split("\n\n")


def test_the_life_of_a_day(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    committed = {"git_commit": "0123456789abcdef", "git_dirty": True}
    writer = {"backfill_id": "b", "reason": "bad amounts", "inputs": {"stg_orders": 4}, **committed}
    twice = dict.fromkeys(JAN[1:3], "warn")
    publish_facts(tmp_path, twice, 5, since=0, written=["2024-01-02...2024-01-02"], **writer)
    undone = {"since": 1, "written": ["2024-01-02"], "details": {"undoes": "b"}}
    publish_facts(tmp_path, {JAN[1]: "ok"}, **undone, withdrawn=["2024-01-03"])
    first, second, third = day_history(capsys, "2024-01-02")
    assert "UTC, written" in first
    assert "2, digest d, verdict ok" in first
    assert "c (commit unknown)" in first
    assert "made from the landing" in first
    assert "r, backfill b" in second
    assert "person: bad amounts" in second
    assert "c (commit 0123456789, with uncommitted changes)" in second
    assert "stg_orders version 4" in second
    assert "put back to what it was before b" in third
    first, second, third = day_history(capsys, "2024-01-03")
    assert "computed, and unchanged" in second
    assert "taken back: before b it had never been published" in third
    assert len(day_history(capsys, "2024-01-01")) == 1
    assert "2024-01-03 taken back" in " ".join(history_lines(capsys, FACT)[-1])


def test_history_tells_of_other_writers(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    DeltaTable(tmp_path / "warehouse" / FACT).delete("run_date = '2024-01-02'")
    assert "another writer: DELETE" in " ".join(history_lines(capsys, FACT)[-1])
    assert "changed by another writer: DELETE" in day_history(capsys, "2024-01-02")[-1]
    assert len(day_history(capsys, "2024-01-03")) == 1


def test_history_of_some_days(capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "ok"})
    publish_facts(tmp_path, dict.fromkeys(JAN[1:3], "ok"))
    assert [row[0] for row in history_lines(capsys, FACT, "2024-01-02...2024-01-05")] == [
        "version",
        "1",
    ]


def test_history_as_json(capsys, tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    twice = dict.fromkeys(JAN[1:3], "warn")
    publish_facts(tmp_path, twice, 5, since=0, written=["2024-01-02"], withdrawn=["2024-01-01"])
    DeltaTable(tmp_path / "warehouse" / FACT).delete("run_date = '2024-01-02'")
    assert main(["history", FACT, "--json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)
    assert (first["version"], first["run"], first["by"]) == (0, "r", "person")
    assert {day: details["what"] for day, details in second["days"].items()} == {
        "2024-01-01": "taken back",
        "2024-01-02": "written",
        "2024-01-03": "unchanged",
    }
    assert second["days"]["2024-01-03"]["verdict"] == "warn"
    assert (third["by"], third["operation"]) == ("another writer", "DELETE")
    assert main(["history", FACT, "2024-01-03", "--json"]) == 0
    commits = json.loads(capsys.readouterr().out)
    assert [[*commit["days"]] for commit in commits] == [["2024-01-03"]] * 2


def test_history_of_what_is_not_there(capsys, tmp_path):
    (tmp_path / "warehouse").mkdir()
    assert main(["history", FACT]) == 1
    assert f"{FACT} has never been published at" in refusal_message(capsys, "history")
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    assert main(["history", FACT, "2024-01-09"]) == 1
    assert f"{FACT}[2024-01-09] has never been published" in refusal_message(capsys, "history")


# status


def test_status(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-06")
    (tmp_path / "landing" / "orders").mkdir(parents=True)
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    assert main(["status", "--select", FACT]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["table", "state", "days", "which"]
    assert [FACT, "missing", "2", "2024-01-04...2024-01-05"] in rows
    assert ["missing:", "never", "published"] in [row[:3] for row in rows]
    assert main(["status", FACT, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [*result["tables"]] == [FACT]
    assert result["good"] is False
    assert result["tables"][FACT]["missing"] == ["2024-01-04...2024-01-05"]
    final = {JAN[0]: DayState.FINAL}
    monkeypatch.setattr("backfill_assets.monitoring.states.day_states", lambda *_: final)
    assert main(["status"]) == 0
    assert main(["status", "--json"]) == 0
    assert '"good": true' in capsys.readouterr().out


def test_status_without_a_landing(capsys, tmp_path):
    publish_facts(tmp_path, {JAN[0]: "ok"})
    assert main(["status"]) == 3
    assert "landing" in refusal_message(capsys, "status")


# progress


def log_text(*events: str) -> str:
    """Lines as Dagster writes them; what does not begin with a step or RUN_ stays as it is."""
    stamp = datetime(2024, 1, 1, tzinfo=timezone.utc).strftime("%Y-%m-%d %H:%M:%S %z")
    head = f"{stamp} - dagster - DEBUG - __ASSET_JOB - 3d3d2572-95b6 - 22365 - "
    return "".join(f"{head}{e[1:]}\n" if e.startswith("*") else f"{e}\n" for e in events)


NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"
PASSED = (
    "*read_orders - ASSET_CHECK_EVALUATION - Asset check 'nulls' on 'raw_orders' passed. "
    "Description: 'did well'"
)
NOT_PASSED = (
    "*read_orders - ASSET_CHECK_EVALUATION - Asset check 'conservation' on 'raw_orders' "
    "did not pass. Description: 'x'"
)
RAW = "*read_orders - ASSET_MATERIALIZATION - Materialized value raw_orders."
REJECTED = "*read_orders - ASSET_MATERIALIZATION - Materialized value raw_orders_rejected."
BEGINNING = (
    "click/core.py:911: SupersessionWarning: superseded",
    '*RUN_START - Started execution of run for "__ASSET_JOB".',
    '*read_orders - STEP_START - Started execution of step "read_orders".',
    NOISE,
)
FAILED = (
    '*read_orders - STEP_FAILURE - Execution of step "read_orders" failed.',
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
    "*stage_orders - Dependencies for step stage_orders failed: ['read_orders']. Not executing.",
    "*make_fact_daily_orders - Dependencies for step make_fact_daily_orders were not executed: "
    "['stage_orders'].",
    '*RUN_FAILURE - Execution of run for "__ASSET_JOB" failed.',
    "",
    "dagster._core.definitions.events.Failure: raw_orders: 1 day(s) failed the audit.",
    "",
    "Stack Trace:",
    "Error: Materialization failed.",
)


def run_progress(monkeypatch, capsys, text: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status = main(["progress"])
    return status, capsys.readouterr().out


def test_progress(monkeypatch, capsys):
    text = log_text(
        *BEGINNING,
        *(PASSED, NOT_PASSED, RAW, RAW, PASSED, REJECTED),
        '*read_orders - STEP_SUCCESS - Finished execution of step "read_orders" in 41.9s.',
        "*stage_orders - STEP_START - Started",
        "*stage_orders - STEP_SUCCESS - Finished",
        "*RUN_SUCCESS - Finished execution of run.",
    )
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 0
    assert output.splitlines() == [
        "  read_orders ... published raw_orders 2 days, raw_orders_rejected 1 day; "
        "3 checks evaluated, 1 did not pass",
        "    raw_orders conservation: x",
        "  stage_orders ... published nothing; 0 checks evaluated",
    ]


def test_progress_of_assets_whose_keys_have_a_prefix(monkeypatch, capsys):
    text = log_text(
        *BEGINNING,
        *(line.replace("'raw_orders'", "'lake/gold/raw_orders'") for line in (NOT_PASSED, RAW)),
        '*read_orders - STEP_SUCCESS - Finished execution of step "read_orders" in 41.9s.',
        "*RUN_SUCCESS - Finished execution of run.",
    )
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 0
    assert "    raw_orders conservation: x" in output.splitlines()


def test_progress_says_once_what_a_check_finds_on_many_days(monkeypatch, capsys):
    finding = "*read_orders - ASSET_CHECK_EVALUATION - Asset check 'late' on 'late_orders' did not "
    text = log_text(
        *BEGINNING,
        *(f"{finding}pass. Description: '{n} line(s) of \\_a\\_ came late'" for n in (3, 5)),
        *("*read_orders - STEP_SUCCESS - Finished", "*RUN_SUCCESS - Finished execution of run."),
    )
    assert run_progress(monkeypatch, capsys, text) == (
        0,
        "  read_orders ... 2 checks evaluated, 2 did not pass\n"
        "    late_orders late: 3 line(s) of _a_ came late (and 1 more)\n",
    )


def test_progress_of_steps_that_run_at_the_same_time(monkeypatch, capsys):
    text = log_text(
        *BEGINNING,
        "*stage_orders - STEP_START - Started",
        RAW,
        "*stage_orders - ASSET_MATERIALIZATION - Materialized value stg_orders.",
        PASSED,
        "*stage_orders - STEP_SUCCESS - Finished",
        "*make_facts - STEP_START - Started",
        "*read_orders - STEP_SUCCESS - Finished",
        "*RUN_SUCCESS - Finished execution of run.",
    )
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 0
    assert output.splitlines() == [
        "  stage_orders ... published stg_orders 1 day",
        "  read_orders ... published raw_orders 1 day; 1 checks evaluated",
        "  make_facts ... published nothing; 0 checks evaluated",
    ]


def test_progress_of_a_page_has_no_days(monkeypatch, capsys):
    """Whatever a source calls its page."""
    text = log_text(
        *BEGINNING[:2],
        "*draw_how_late - STEP_START - Started",
        "*draw_how_late - ASSET_MATERIALIZATION - Materialized value how_late.",
        "*draw_how_late - STEP_SUCCESS - Finished",
        "*RUN_SUCCESS - Finished execution of run.",
    )
    assert run_progress(monkeypatch, capsys, text) == (
        0,
        "  draw_how_late ... published how_late\n",
    )


def test_progress_of_days_whose_events_the_log_does_not_have(monkeypatch, capsys):
    """But of checks that did not pass; the end of a table has the counts of all."""
    days = "[2024-01-01...2024-01-22]"
    text = log_text(
        *BEGINNING,
        *(RAW, NOT_PASSED),
        f"*read_orders - raw_orders {days}: 20 days identical, 1 day written, 1 day failed; "
        "62 checks evaluated",
        f"*read_orders - raw_orders_rejected {days}: 22 days identical; 1 checks evaluated",
        f"*read_orders - other {days}: 1 day written, 1 day unchanged; 2 checks evaluated",
        "*read_orders - STEP_SUCCESS - Finished",
        "*RUN_SUCCESS - Finished execution of run.",
    )
    assert run_progress(monkeypatch, capsys, text) == (
        0,
        "  read_orders ... identical raw_orders 20 days, raw_orders_rejected 22 days; "
        "published raw_orders 1 day, other 2 days; 65 checks evaluated, 1 did not pass\n"
        "    raw_orders conservation: x\n",
    )


def test_progress_of_a_run_with_a_failed_day(monkeypatch, capsys):
    text = log_text(*BEGINNING, PASSED, NOT_PASSED, RAW, *FAILED, *SKIPPED)
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 1
    assert output.splitlines() == [
        "  read_orders ... FAILED; published raw_orders 1 day; 2 checks evaluated, 1 did not pass",
        "    raw_orders: 1 day(s) failed the audit.",
        "      raw_orders[2024-01-04]  conservation: [bold]2 rows where 3 are due",
        "    ",
        "    raw_orders_rejected: 1 day(s) failed the audit.",
        "  stage_orders ... not run, because of what failed before it",
        "  make_fact_daily_orders ... not run, because of what failed before it",
    ]


def test_progress_shows_one_sentence_of_an_error_of_ours(monkeypatch, capsys):
    text = log_text(
        *BEGINNING,
        "*read_orders - STEP_FAILURE - Execution failed.",
        "dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred:",
        "",
        "backfill_assets.spark.jars.EngineError: no server at :100:",
        "",
        "Stack Trace:",
        "  File x",
    )
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 1
    assert output.splitlines() == [
        "  read_orders ... FAILED; published nothing; 0 checks evaluated",
        "    backfill_assets.spark.jars.EngineError: no server at :100:",
    ]


def test_progress_shows_the_sentence_of_an_error_with_a_long_stack(monkeypatch, capsys):
    sentence = "facts [2024-01-01]: its rows cannot be computed: [DIVIDE_BY_ZERO] Division by zero."
    text = log_text(
        *BEGINNING,
        "*make_facts - STEP_FAILURE - Execution failed.",
        f"dagster._core.definitions.events.Failure: {sentence}",
        "",
        *["Stack Trace:", *['  File "/x.py", line 1, in y'] * 60],
        *["The above exception was caused by the following exception:", "SparkException: x"],
        *["Stack Trace:", *["  at org.apache.spark"] * 60],
        *SKIPPED,
    )
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 1
    assert output.splitlines()[:2] == [
        "  make_facts ... FAILED; published nothing; 0 checks evaluated",
        f"    {sentence}",
    ]
    assert "org.apache" not in output


def test_progress_shows_all_days_of_a_long_message(monkeypatch, capsys):
    failed_days = [f"  facts[2024-03-{n:02}]  conservation: x" for n in range(1, 32)] * 2
    text = log_text(*BEGINNING, *FAILED[:3], *failed_days, *FAILED[-2:], *SKIPPED)
    _, output = run_progress(monkeypatch, capsys, text)
    assert output.count("facts[2024-03-") == len(failed_days)


def test_progress_shows_the_stack_of_an_unforeseen_error(monkeypatch, capsys):
    text = log_text(
        *BEGINNING,
        "*read_orders - STEP_FAILURE - Execution failed.",
        "KeyError: 'x'",
        "Stack Trace:",
        "  File x",
        "*RUN_FAILURE - failed",
    )
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 1
    assert output.splitlines()[1:] == ["    KeyError: 'x'", "    Stack Trace:", "      File x"]


def test_progress_of_a_run_that_was_killed(monkeypatch, capsys):
    status, output = run_progress(
        monkeypatch, capsys, log_text(*BEGINNING, RAW, "OutOfMemoryError", "Killed")
    )
    assert status == 1
    assert output.splitlines() == [
        "  read_orders ... BROKEN OFF; published raw_orders 1 day",
        "    OutOfMemoryError",
        "    Killed",
    ]


def test_progress_of_a_run_that_never_began(monkeypatch, capsys):
    text = "Traceback (most recent call last):\n  File x\nErrr: no such asset\n"
    status, output = run_progress(monkeypatch, capsys, text)
    assert status == 1
    assert output.splitlines()[-1] == "    Errr: no such asset"
    text = "Traceback:\n  File x\nbackfill_assets.settings.SettingsError: bad settings: X\n"
    status, output = run_progress(monkeypatch, capsys, text)
    assert (status, output) == (1, "    backfill_assets.settings.SettingsError: bad settings: X\n")
    # It has no log at all, and is not silent.
    status, output = run_progress(monkeypatch, capsys, "")
    assert (status, output) == (1, "    no run has succeeded, and nothing says why\n")
