"""Names and reasons that others have chosen, wherever they are shown."""

from __future__ import annotations

import io
import re
import sys
from datetime import date

import dagster as dg
import pytest
from rich.markdown import Markdown

from backfill_assets.assets import backfill_jobs
from backfill_assets.audit.checks import check_evaluations, day_metadata
from backfill_assets.audit.verdicts import DayMetrics, Expectation, Finding, Severity, Verdict
from backfill_assets.cli import main
from backfill_assets.cli.output import Output
from backfill_assets.escaping import escape_chat, escape_line, escape_markdown, escape_terminal
from backfill_assets.monitoring.alerts import post_text
from backfill_assets.orders.tables import TABLES
from backfill_assets.report import ReportTable

#: What a file may be called, and how a person is to see it in one line.
HOSTILE = [
    ("plain.jsonl", "plain.jsonl"),
    ("Bestellungen für März 2024 (新).csv", "Bestellungen für März 2024 (新).csv"),
    ("[red]a[/red].csv", "[red]a[/red].csv"),
    ("[/nothing].csv", "[/nothing].csv"),
    (":boom: :warning:.csv", ":boom: :warning:.csv"),
    ("\x1b[2J\x1b]0;owned\x07a.csv", r"\x1b[2J\x1b]0;owned\x07a.csv"),
    ("\x9b31ma.csv", r"\x9b31ma.csv"),
    ("a.csv\n2024-01-01: all is well", r"a.csv\n2024-01-01: all is well"),
    ("a\rb.csv", r"a\rb.csv"),
    ("a\u2028b.csv", r"a\u2028b.csv"),
    ("a\u202evsc.exe", r"a\u202evsc.exe"),
    ("a\u200bb.csv", r"a\u200bb.csv"),
    ("a\udcff.csv", r"a\udcff.csv"),  # no UTF-8
    ("<!channel> <http://evil.example|ok>.csv", "<!channel> <http://evil.example|ok>.csv"),
    ("@here @anna.csv", "@here @anna.csv"),
    ("![x](http:__evil.example_x.png).csv", "![x](http:__evil.example_x.png).csv"),
    ("[ok](javascript:alert(1)).csv", "[ok](javascript:alert(1)).csv"),
    ("<img src=x onerror=alert(1)>.csv", "<img src=x onerror=alert(1)>.csv"),
    ("| a | b |\n|---|---|", r"| a | b |\n|---|---|"),
    ("![a [b]](c) [x][y] [z]: d ![^1]", "![a [b]](c) [x][y] [z]: d ![^1]"),
    ("[z]: http:x", "[z]: http:x"),
    ("- a", "- a"),
    ("==", "=="),
    ("> a", "> a"),
    ("# *a* _b_ `c` ~~d~~ \\|", "# *a* _b_ `c` ~~d~~ \\|"),
    ("&lt;b&gt; &amp;", "&lt;b&gt; &amp;"),
]
#: What Markdown is laid out with.
LAYOUT = ("p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td")
NAMES = pytest.mark.parametrize(("name", "seen"), HOSTILE)


@NAMES
def test_in_one_line(name, seen):
    assert escape_line(name) == seen
    assert escape_terminal(f"first\n{name}").startswith("first\n")
    seen.encode()  # can be printed


@NAMES
def test_in_a_terminal(monkeypatch, name, seen):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    for width in ("200", "30"):  # also where the first columns get lines of their own
        monkeypatch.setenv("COLUMNS", width)
        out = Output()
        out.print_text(name)
        row = ("2024-01-01...2024-01-31", "fact_daily_orders", name)
        headings = ("days", "table", "why")
        table = ReportTable(headings, (row,), name, lines=(name,), sentences=("why",))
        out.print_table(table)
        text = screen.getvalue()
        assert all(line.isprintable() for line in text.split("\n"))
        together = "".join(text.split())  # lines are wrapped
        whole = "".join(seen.replace("\\n", "").split())
        assert together.count(whole) == 4
        screen.truncate(0)
        screen.seek(0)


@NAMES
def test_in_an_error_of_a_command(monkeypatch, capsys, name, seen):
    def fail(*_: object) -> None:
        raise ValueError(f"{name} is not there")

    monkeypatch.setattr("backfill_assets.cli.tables.open_deployment", fail)
    assert main(["show"]) == 3
    message = capsys.readouterr().err
    assert message == f"backfill-assets show: {seen} is not there\n".replace("\\n", "\n")


def markdown_texts(shown: str) -> list[str]:
    """The texts in a piece of Markdown; nothing else but what lays them out."""
    results = []
    for token in Markdown(shown).parsed:
        assert token.type == "inline" or token.tag in LAYOUT, token
        assert {child.type for child in token.children or ()} <= {"text"}, token
        if token.type == "inline":
            results.append("".join(child.content for child in token.children))
    return results


@NAMES
def test_in_markdown(name, seen):
    assert markdown_texts(f"- {escape_markdown(name)}") == [seen]
    assert markdown_texts(f"| a |\n|---|\n| {escape_markdown(name)} |\n| b |") == ["a", seen, "b"]


@NAMES
def test_in_the_tables_of_the_jobs_and_the_warnings_of_a_day(name, seen):
    shown = backfill_jobs._markdown_table(
        [("stg_orders", name), ("next", "")], "table", "why"
    ).value
    assert shown.count("\n") == 3
    assert markdown_texts(shown) == [
        "table",
        "why",
        "stg_orders",
        seen.replace("\\n", ", "),
        "next",
        "",
    ]
    finding = Finding("late_lines", Severity.WARN, name)
    assert finding.text == seen
    verdict = Verdict(date(2024, 1, 1), DayMetrics(1, {}, "d"), Expectation(), [finding])
    assert markdown_texts(day_metadata(verdict, {})["warnings"].value) == [f"late_lines: {seen}"]
    (evaluation,) = check_evaluations(dg.AssetKey("late_orders"), TABLES["late_orders"], verdict)
    assert evaluation.description is not None
    assert markdown_texts(evaluation.description) == [seen]


def test_markdown_of_what_needs_none_is_the_text():
    """Programs read the descriptions of checks as well."""
    for text in (
        "raw_orders[2024-01-01] has never been published",
        "12 row(s) repeat a (event_date, order_id) of the day -> 3 < 4 & 5",
        "not read, unknown kind of file: arrival_date=2024-01-01/notes.txt!",
        "see https://example.org/a?b=1&c=2",
    ):
        assert escape_markdown(text) == text


@NAMES
def test_in_a_chat(name, seen):
    message = escape_chat(f"*stg_orders*: {name}")
    assert "<" not in message
    assert not re.search(r"@\w", message)
    shown = message.replace("&lt;", "<").replace("@\u200b", "@")
    assert shown.replace("\n", "\\n") == f"*stg_orders*: {seen}".replace("&lt;", "<")


def test_what_is_posted_is_for_a_chat(monkeypatch):
    sent = []

    def capture_post(_: str, **named: object) -> object:
        sent.append(named["json"])
        raise OSError

    monkeypatch.setattr("requests.post", capture_post)
    post_text("http://127.0.0.1:1", "<!channel> \x1b[2J")
    assert sent == [{"text": r"&lt;!channel> \x1b[2J"}]
