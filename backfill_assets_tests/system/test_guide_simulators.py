"""The simulators of the guide: their rules agree with the labs and with the code; keys suffice."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions
from selenium.webdriver import Chrome, Keys

from backfill_assets.backfills.planner import days_by_table
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, DaySet, Window
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, LATE, RAW, TABLES
from backfill_assets.settings import load_settings
from backfill_assets.staleness.finality import window_closed_at
from backfill_assets.tables.graph import Graph
from backfill_assets_tests.helpers.docs_pages import PAGES
from backfill_assets_tests.helpers.invented_logs import ledger
from backfill_assets_tests.helpers.invented_logs import make_raw_record as commit
from backfill_assets_tests.helpers.lab_pages import read_figures
from backfill_assets_tests.helpers.orders_model import current_facts, run_model, version_key
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.ui.guide_pages import call_module
from backfill_assets_tests.ui.simulators import PAGE, Simulator


@pytest.fixture(scope="module")
def guide(browser: Chrome, site: str) -> Chrome:
    """The browser at the page, so that it can import what lies beside it."""
    browser.get(f"{site}/{PAGE}")
    return browser


def reader_figures(lab: str, *names: str) -> list[list[list[object]]]:
    """By step of a lab, the figures of these names that readers saw."""
    return [
        [[values[name] for name in names] for _, values in looks if names[0] in values]
        for _, looks in read_figures(lab)
    ]


# --- append or replace ----------------------------------------------------------------------------

APPEND = "append-or-replace-rules.js"
_PLAYED = {
    "append": """
        const days = [...Array(1096).keys()];
        const sales = (price) => days.flatMap((day) => [0, 1, 2].map((shop) =>
          ({ day, key: `${shop} ${day}`, version: 1, amount: shop === 2 ? price : 10 })));
        const look = (table) => [m.seen(table).rows, m.seen(table).total];
        const load = (way, table, price) => m.job(way, table, sales(price), days).table;
        const added = [load("append", [], 10)];
        for (const _ of [1, 2]) added.push(load("append", added.at(-1), 12));
        const replaced = [load("replace", [], 10)];
        for (const _ of [1, 2]) replaced.push(load("replace", replaced.at(-1), 12));
        return [...added.map((table) => [look(table)]),
          replaced.slice(0, 2).map(look), [look(replaced[2])]];
    """,
    "torn": """
        const rows = (amount, days) => days.flatMap((day) => [0, 1, 2].map((id) =>
          ({ day, key: `${id} ${day}`, version: 1, amount })));
        const look = (table) => {
          const [day] = m.compared(table, [], [2]);
          return [[day.reader.rows, m.seen(table).total]];
        };
        const before = rows(10, [1, 2, 3]);
        const job = (way, table, crash) => m.job(way, table, rows(12, [2]), [2], crash).table;
        const torn = job("delete-insert", before, "middle");
        const whole = job("replace", before, "middle");
        return [before, torn, job("append", torn), whole, job("replace", whole)].map(look);
    """,
    "merge": """
        const [a, b, vanished] = [["a", 2, 10], ["b", 2, 10], [null, 1, 10]];
        const seen = [];
        let table = [];
        const load = (way, ...rows) => {
          const given = rows.map(([key, version, amount]) => ({ day: 1, key, version, amount }));
          table = m.job(way, table, given, [1]).table;
          const { rows: count, total } = m.seen(table);
          const of = (key) => table.filter((row) => row.key === key);
          return [count, total, of(null).length, of("a")[0].version];
        };
        seen.push([load("merge", a, b), load("merge", a, b)], [load("merge", a)]);
        seen.push([1, 2, 3].map(() => load("merge", vanished)));
        seen.push([load("merge", ["a", 1, 99])]);
        load("merge", a);
        return [...seen, [load("merge-versions", ["a", 1, 99])]];
    """,
    "crash": """
        const months = [];
        for (const day of [...Array(182).keys()]) {
          const month = new Date(Date.UTC(2024, 0, 1 + day)).getUTCMonth();
          (months[month] ??= []).push(day);
        }
        const days = months.flat().map((day) => [day]);
        const source = days.flat().flatMap((day) => [0, 1, 2].map((shop) =>
          ({ day, key: `${shop} ${day}`, version: 1, amount: 10 + shop })));
        const look = (table, commits) => {
          const days = new Set(table.map((row) => row.day)).size;
          return [days, m.seen(table).rows, m.seen(table).total, commits];
        };
        const play = (way, chunks, crash, at, all = false) => {
          const first = m.backfill(way, [], source, chunks, { crash, at });
          const then = m.backfill(way, first.table, source, chunks, { from: all ? 0 : first.next });
          const left = chunks.length - first.ended - 1;
          const [commits, ended] = [first.commits + then.commits, first.ended + then.ended];
          return [{ seen: look(first.table, first.commits), ended: first.ended, left },
            { seen: look(then.table, commits), ended }];
        };
        const [oneShot] = play("replace", [months.flat()], "middle", 0);
        return [oneShot, ...play("append", months, "after", 3),
          ...play("append", days, "before", 105), ...play("replace", months, "before", 3, true)];
    """,
}


@pytest.mark.parametrize(
    ("lab", "names"),
    [
        ("append", ["rows", "revenue"]),
        ("torn", ["rows of the day", "revenue of all days"]),
        ("merge", ["rows", "amount", "null keys", "version of a"]),
    ],
)
def test_append_or_replace_agrees_with_the_labs(guide, lab, names):
    assert call_module(guide, APPEND, _PLAYED[lab]) == reader_figures(lab, *names)


@pytest.mark.slow
def test_append_or_replace_agrees_with_the_lab_that_crashes(guide):
    first, *others = call_module(guide, APPEND, _PLAYED["crash"])
    assert first["seen"] == [0, 0, 0, 0]
    assert read_figures("crash")[0][1] == [("reader", {"text": "there is no table"})]
    steps = [dict(looks) for _, looks in read_figures("crash")[1:]]
    assert [state["seen"] for state in others] == [
        [*(step["reader"][name] for name in ("days", "rows", "amount")), *step["history"].values()]
        for step in steps
    ]
    by_day, gone_on, ours = others[2], others[3], others[4]
    assert by_day["ended"] == steps[2]["jobs"]["ended"]
    assert by_day["left"] == steps[2]["jobs"]["not begun"]
    assert gone_on["ended"] == steps[3]["jobs"]["ended"]
    assert ours["ended"] == steps[4]["Dagster"]["runs with success"]


def test_append_or_replace_by_keyboard(browser, site):
    page = Simulator(browser, site, "#sim-append", "#append-or-replace")
    right = "right: 18 rows, total 180.00."
    assert (
        page.status_text
        == f"Readers see 0 rows, total 0.00; {right} Wrong days: 6, of them empty: 6."
    )
    page.press_at("Run")
    assert (
        page.status_text
        == f"Readers see 18 rows, total 180.00; {right} Wrong days: 0, of them empty: 0."
    )
    page.press_at("Run", Keys.ENTER)
    assert page.status_text.startswith("Readers see 36 rows, total 360.00;")
    assert "An append counts each run." in page.visible_text
    page.choose_option("Way of writing", "delete, then insert")
    page.choose_option("Jobs", "one for each day")
    page.choose_option(
        "Crash of the job (of each day: the third)", "in the middle (between delete and insert)"
    )
    page.press_at("Run")
    assert page.status_text.endswith("Wrong days: 4, of them empty: 1.")
    page.choose_option("Crash of the job (of each day: the third)", "nowhere")
    page.press_at("Go on with the failed job")
    assert page.status_text.endswith("Wrong days: 0, of them empty: 0.")
    page.choose_option("Way of writing", "merge by key")
    page.press_at("Row without a key on day 4")
    page.press_at("Row of shop b on day 3 is taken away")
    page.press_at("Run")
    page.press_at("Run")
    assert "Wrong days: 2, of them empty: 0." in page.status_text
    assert "A null key matches nothing: each MERGE inserts its row again." in page.visible_text
    page.press_at("Reset")
    assert page.status_text.startswith("Readers see 0 rows")
    assert "An append" not in page.visible_text


# --- event day and arrival day --------------------------------------------------------------------

WINDOW = "window-rules.js"
#: Orders of the lab `event-time`: event day, arrival day.
_OF_THE_LAB = """
const lines = [[1, 1], [2, 2], [1, 3]].map(([event, logged], at) =>
  ({ id: `o-${at}`, event, logged, amount: 10, version: [logged] }));
"""


@pytest.mark.slow
def test_the_window_agrees_with_the_lab_of_the_event_time(guide):
    played = call_module(
        guide,
        WINDOW,
        f"""{_OF_THE_LAB}
        const revenue = (sums) => Object.values(sums).map((of) => of.revenue);
        const monday = (window) =>
          m.sums(m.staged(lines, window).filter((line) => line.event === 1), "event")[1];
        const clock = [2, 2 + 366].map((today) => m.ofLastTwoDays(lines, 2, today).length);
        return [revenue(m.sums(lines, "logged")), revenue(m.sums(lines, "event")),
          [0, 1, 2, 7].map((window) => [monday(window).orders, monday(window).revenue]), clock];
        """,
    )
    by_arrival, by_event, windows, clock, _ = (looks for _, looks in read_figures("event-time"))
    assert [who for who, _ in windows] == [f"{n} days" for n in (0, 1, 2, 7)]
    assert played == [
        [values["revenue"] for _, values in by_arrival],
        [values["revenue"] for _, values in by_event],
        [[values["orders"], values["revenue"]] for _, values in windows],
        [values["orders"] for _, values in clock],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("corrects", "first"), [(True, 0), (False, 2)])
def test_the_window_agrees_with_the_lab_of_late_lines(guide, corrects, first):
    played = call_module(
        guide,
        WINDOW,
        """
        const days = [[1, 1], [2, 2], [3, 3], [4, 4], [1, 5]];
        const lines = days.map(([event, logged], at) =>
          ({ id: `o-${at}`, event, logged, amount: 10, version: [logged] }));
        return [5, 6].map((today) => {
          const of = m.tables(lines, { window: 2, today, corrects: g[0] });
          const seen = [of.facts, of.current, of.corrections].map((sums) => sums[1])
            .map((sums) => [sums?.orders ?? 0, sums?.revenue ?? 0]);
          return [...seen, [of.late.length], of.check];
        });
        """,
        corrects,
    )
    for outcome, (_, looks) in zip(played, read_figures("late")[first : first + 2], strict=True):
        *tables, check = outcome
        shown = dict(looks)
        assert tables == [
            *(
                [shown[name]["orders of day 1"], shown[name]["revenue"]]
                for name in (FACT.name, CURRENT.name, CORRECTIONS.name)
            ),
            [shown[LATE.name]["lines"]],
        ]
        assert check == shown.get("check late_lines", {"text": ""})["text"]
    assert played[1][-1]


@pytest.mark.slow
def test_the_window_has_one_order_as_its_page_has_it(guide):
    """An order of January 5 with two later versions, after the load of each."""
    text = PAGES["docs/late-data.md"]
    lines = re.findall(r"^\| (\d+\.\d+) \| \S+ \| 2024-01-(\d+) \| 2024-01-(\d+) \|", text, re.M)[
        :3
    ]
    rows = re.findall(r"^\| 2024-01-(\d+) \|((?: (?:[\d.]+|none) \|){5})$", text, re.M)
    assert len(lines) == len(rows) == 3
    results = call_module(
        guide,
        WINDOW,
        """
        const lines = g[0].map(([amount, logged, event]) => ({
          id: "o-1001",
          event: Number(event), logged: Number(logged), amount: Number(amount),
          version: [Number(logged)],
        }));
        return g[1].map((day) => {
          const of = m.tables(lines, { window: 7, today: Number(day) + 1, corrects: true });
          const late = of.late.reduce((sum, line) => sum + line.amount, 0);
          const sums = [of.facts, of.facts, of.current, of.corrections].map((of) => of[5]?.revenue);
          return [...sums, late].map((amount) => amount ? amount.toFixed(2) : "none");
        });
        """,
        lines,
        [day for day, _ in rows],
    )
    assert results == [re.findall(r"[\d.]+|none", row) for _, row in rows]


@dataclass
class Case:
    """Invented lines, as they land, and from which day one looks at them.

    Attributes:
        lines: arrival day and line.
        window: the window, in days.
        today: the number of the day on which one looks.
    """

    lines: list[tuple[int, dict[str, Any]]]
    window: int
    today: int


def _invent_cases(count: int) -> Iterable[Case]:
    invent = random.Random(21)
    for _ in range(count):
        lines = []
        for _ in range(invent.randint(1, 14)):
            event = invent.randint(1, 9)
            arrival = event + invent.choice([0, 0, 0, 1, 2, 3, 5, 9])
            event_hour, logged_hour = (invent.choice(["00", "09", "23"]) for _ in range(2))
            line = {
                "order_id": invent.choice("abcd"),
                "customer_id": invent.choice(["c-1", None]),
                "order_ts": f"{day(event)}T{event_hour}:00:00Z",
                "amount": invent.choice(["10.00", "12.50", "-3.25"]),
                # A folder may have lines of the first hours of the next day.
                "ingestion_ts": f"{day(arrival + invent.choice([0, 0, 1]))}T{logged_hour}:30:00Z",
            }
            # Some lines are there twice.
            lines += [(arrival, line)] * invent.choice([1, 1, 1, 2])
        yield Case(lines, invent.choice([0, 1, 2, 3, 7]), invent.randint(3, 20))


def _land_case(landing: Path, case: Case) -> Path:
    for number, (arrival, line) in enumerate(case.lines):
        folder = landing / "orders" / f"arrival_date={day(arrival)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{number:02}.jsonl").write_text(json.dumps(line))
    return landing


def _day_number(calendar_day: date) -> int:
    return (calendar_day - START).days + 1


def _sums_by_day(facts: dict[tuple[date, str], tuple[int, Decimal]]) -> dict[str, list[float]]:
    """Orders and revenue by the number of the day."""
    sums_by_day: dict[str, list[float]] = {}
    for (event_day, _), (orders, revenue) in facts.items():
        sums = sums_by_day.setdefault(str(_day_number(event_day)), [0, 0])
        sums[0] += orders
        sums[1] += float(revenue)
    return sums_by_day


@pytest.mark.slow
def test_the_window_agrees_with_the_model_and_the_policy(guide, tmp_path):
    """The tables of invented lines, as a second reading of the design has them."""
    inputs, expected = [], []
    for number, case in enumerate(_invent_cases(60)):
        landing = _land_case(tmp_path / str(number), case)
        model = run_model(
            landing, start=START, end=day(40), window_days=case.window, timezone="UTC"
        )
        inputs.append(
            {
                "window": case.window,
                "today": case.today,
                "lines": [
                    {
                        "id": row["order_id"],
                        "event": _day_number(row["order_ts"].date()),
                        "logged": _day_number(row["log_date"]),
                        "amount": float(row["amount"]),
                        "version": _comparison_key(row),
                    }
                    for row in model.raw
                ],
            }
        )
        calendar = {"start": START, "end": day(case.today), "timezone": "UTC"}
        known = run_model(landing, window_days=case.window, **calendar)
        expected.append(
            {
                "facts": _sums_by_day(known.fact),
                "late": len(known.late),
                **{
                    name: _sums_by_day(
                        current_facts(known.raw, window_days=case.window, drop=drop, **calendar)
                    )
                    for name, drop in (("corrected", False), ("dropped", True))
                },
            }
        )
    results = call_module(
        guide,
        WINDOW,
        """
        const listed = (sums) => Object.fromEntries(
          Object.entries(sums).map(([day, of]) => [day, [of.orders, of.revenue]]));
        return g[0].map(({ lines, window, today }) => {
          const [kept, dropped] = [true, false].map((corrects) =>
            m.tables(lines, { window, today, corrects }));
          for (const { facts, current, corrections } of [kept, dropped]) {
            for (const day of Object.keys({ ...facts, ...current })) {
              for (const name of ["orders", "revenue"]) {
                const of = (sums) => sums[day]?.[name] ?? 0;
                if (of(facts) + of(corrections) !== of(current)) throw new Error(`${day} ${name}`);
              }
            }
          }
          return { facts: listed(kept.facts), late: kept.late.length,
            corrected: listed(kept.current), dropped: listed(dropped.current) };
        });
        """,
        inputs,
    )
    assert results == expected
    assert sum(result["late"] for result in expected) > 50
    assert sum(result["corrected"] != result["facts"] for result in expected) > 20
    assert any(result["dropped"] != result["facts"] for result in expected)


def _comparison_key(row: dict[str, Any]) -> list[float]:
    """What versions are compared by, as numbers."""
    version_time, log_date, order_ts, ingestion_ts, amount, (known, _) = version_key(row)
    times = [moment.timestamp() for moment in (version_time, order_ts, ingestion_ts)]
    return [times[0], _day_number(log_date), *times[1:], float(amount), known]


@pytest.mark.slow
def test_a_day_of_the_window_is_final_when_the_code_says_so(guide):
    """Also where the folder of an arrival day has not come."""
    inputs, expected = [], []
    for window, today, missing in product(range(8), range(1, 20), (0, 3, 11)):
        policy = Policy(START, None, window, lag_days=1, corrects=True, only_touched=True)
        logged = policy.loadable_days(day(today))
        raw = ledger(
            RAW,
            *(commit(n, [log_day]) for log_day in logged if (n := _day_number(log_day)) != missing),
        )
        final = {final_day for final_day in window_closed_at(raw, policy) if final_day >= START}
        states = {log_day: "final" if log_day in final else "open" for log_day in logged}
        touched, read = policy.affected_event_days(day(today)), policy.log_days(day(today))
        inputs.append([window, today, missing])
        expected.append(
            [
                [states.get(day(n), "to come") for n in range(1, 22)],
                [_day_number(span.start) for span in (touched, read)],
                [_day_number(span.end - DAY) for span in (touched, read)],
            ]
        )
    results = call_module(
        guide,
        WINDOW,
        """return g[0].map(([window, today, missing]) => {
          const spans = [m.mayTouch(today, window), m.logDays(today, window)];
          const days = Array.from({ length: 21 }, (_, at) => at + 1);
          const states = days.map((day) => m.state(day, window, today, missing));
          return [states, spans.map(([first]) => first), spans.map(([, last]) => last)];
        });""",
        inputs,
    )
    assert results == expected


@pytest.mark.slow
def test_the_window_by_keyboard(browser, site):
    page = Simulator(browser, site, "#sim-window", "#event-day-and-arrival-day")
    assert page.status_text.startswith(
        "Window of 7 day(s), today is day 12. Final days: 1 to 4. Open days: 5 to 8. Lines: 5 "
        "staged, 2 superseded, 1 late, 0 not loaded yet. Check late_lines: WARN: 1 line(s)"
    )
    assert "E ✎" in page.visible_text
    page.press_at("Window (days)", *[Keys.ARROW_LEFT] * 7)
    assert "Window of 0 day(s)" in page.status_text
    assert "Lines: 4 staged, 0 superseded, 4 late" in page.status_text
    page.choose_option("Late lines", "they are dropped")
    assert "ERROR: 4 line(s) worth 45.00" in page.status_text
    page.press_at("Today is day", *[Keys.ARROW_LEFT] * 9)
    assert "today is day 3. Final days: 1 to 2. Open days: none." in page.status_text
    run = "The run of day 2, run today (day {}): by the day of the run it takes 2 line(s). By "
    assert run.format(3) + "CURRENT_DATE it takes 1." in page.visible_text
    page.press_at("Today is day", Keys.END)
    assert run.format(18) + "CURRENT_DATE it takes 0." in page.visible_text
    page.press_at("Reset", Keys.ENTER)
    page.choose_option("Late lines", "they become corrections")
    page.press_at("Arrival day that has not landed (0: none)", *[Keys.ARROW_UP] * 3)
    assert (
        "Final days: 4. Open days: 1 to 3, 5 to 8. Lines: 4 staged, 1 superseded"
        in page.status_text
    )
    page.press_at("Reset", Keys.ENTER)
    page.press_at("Arrival day", Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    page.press_at("Add")
    assert page.status_text.startswith("This line was not added:")
    page.press_at("Arrival day", Keys.ARROW_UP)
    page.press_at("Add")
    assert "Lines: 6 staged" in page.status_text


# --- workers under skew ---------------------------------------------------------------------------

SKEW = "skew-sim-rules.js"
#: Of the rows of the page: what the stage of each form looks like, on some workers.
_STAGES = """
const customers = Array.from({ length: 1000 }, (_, at) => `c-${at}`);
const rows = (hot, nulls) => m.orders({ rows: 40000, files: 8, customers: 1000, hot, nulls });
const look = (form, files, tasks, workers) => {
  const of = m.stage(form, files, customers, tasks);
  const busy = of.tasks.filter((task) => task.rows);
  const sum = (name) => busy.reduce((whole, task) => whole + task[name], 0);
  const { time, even } = m.scheduled(of.tasks, workers);
  return {
    tasks: busy.length, largest: Math.max(...busy.map((task) => task.rows)), rows: sum("rows"),
    hot: busy.filter((task) => task.hot).length, nulls: busy.filter((task) => task.nulls).length,
    scans: of.scans, copies: of.copies, time, even,
  };
};
"""


@pytest.mark.slow
def test_rows_go_to_the_tasks_that_sparks_hash_says(guide):
    """As Spark's documentation of the hash has it: of a column, and of two."""
    shown = dict.fromkeys(re.findall(r"\|ABC\|DEF\| *(-?\d+)\|", functions.hash.__doc__ or ""))
    assert len(shown) == 2
    assert [
        str(n)
        for n in call_module(
            guide,
            SKEW,
            """const first = m.hashOfText("ABC");
        return [first, m.hashOfText("DEF", first)];""",
        )
    ] == [*shown]


@pytest.mark.slow
def test_workers_under_skew_follow_the_rules_of_the_page_on_skew(guide):
    results = call_module(
        guide,
        SKEW,
        f"""{_STAGES}
        const forms = (files, tasks, workers) => Object.fromEntries(
          Object.keys(m.FORMS).map((form) => [form, look(form, files, tasks, workers)]));
        return [forms(rows(60, 20), 8, 4), forms(rows(0, 0), 8, 4), forms(rows(60, 20), 8, 16)];
        """,
    )
    skewed, even, more = results
    orders = {form: numbers for form, numbers in skewed.items() if form != "sums"}
    assert {numbers["rows"] for numbers in orders.values()} == {40_000}
    # All rows of a key come into one task, and all without one: more workers do not help.
    assert skewed["plain"]["hot"] == skewed["plain"]["nulls"] == 1
    assert skewed["plain"]["largest"] >= 24_000
    assert more["plain"]["time"] == skewed["plain"]["time"]
    # Adaptive execution splits a join by the files, and not `as_of_join`.
    assert skewed["adaptive"]["hot"] == skewed["adaptive"]["nulls"] == 8
    assert skewed["adaptive"]["copies"] > 0
    assert skewed["as_of"] == skewed["plain"]
    # Isolated nulls leave the hot key, salt spreads both; either reads the orders twice.
    assert skewed["nulls"]["nulls"] == 8
    assert skewed["nulls"]["largest"] == skewed["plain"]["largest"]
    assert skewed["salted"]["hot"] > 3
    assert skewed["salted"]["nulls"] > 3
    assert skewed["salted"]["largest"] < skewed["plain"]["largest"] / 2
    assert [skewed[form]["scans"] for form in ("plain", "nulls", "salted")] == [1, 2, 2]
    assert skewed["salted"]["copies"] == 15
    # Sums cost nothing: each file has one row of a key. And without skew all forms are even.
    assert skewed["sums"]["largest"] < 1.3 * skewed["sums"]["rows"] / 8
    assert all(numbers["time"] < 1.3 * numbers["even"] for numbers in even.values())
    assert all(even[form]["copies"] == 0 for form in ("adaptive", "salted"))


def _xxhash64(number: int, seed: int = 42) -> int:
    """Spark's `xxhash64` of a whole number, by which the lab spreads its orders over customers."""
    whole = 2**64 - 1
    first, second, third = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9

    def rotate_left(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (64 - bits))) & whole

    digest = (seed + 0x27D4EB2F165667C5 + 8) & whole
    digest ^= rotate_left(number * second & whole, 31) * first & whole
    digest = (rotate_left(digest, 27) * first + 0x85EBCA77C2B2AE63) & whole
    digest = (digest ^ (digest >> 33)) * second & whole
    digest = (digest ^ (digest >> 29)) * third & whole
    digest ^= digest >> 32
    return digest - 2**64 if digest >= 2**63 else digest


def _orders_of_the_lab() -> Iterable[list[tuple[str | None, int]]]:
    """By file, the rows of each customer, and of none."""
    for file in range(8):
        rows: Counter[str | None] = Counter()
        for number in range(file * 5000, file * 5000 + 5000):
            share = number % 10
            customer = f"c-{_xxhash64(number) % 1000}" if share < 8 else None
            rows["c-0" if share < 6 else customer] += 1
        yield [*rows.items()]


@pytest.mark.slow
def test_workers_under_skew_agree_with_the_lab(guide):
    """Rows, tasks and scans are equal. Which number a salted row gets, the rules do not know."""
    files = [*_orders_of_the_lab()]
    results = call_module(
        guide,
        SKEW,
        f"""{_STAGES}
        return ["plain", "adaptive", "as_of", "nulls", "salted"].map((form) => {{
          const {{ tasks, largest, hot, nulls, scans, rows }} = look(form, g[0], 8, 4);
          return [[tasks, largest], [hot, nulls], [scans], [rows]];
        }});""",
        files,
    )
    names = (
        ["with rows", "rows of the largest"],
        ["the one customer", "no customer"],
        ["times"],
        ["rows"],
    )
    expected = [
        [
            [values[name] for name in columns]
            for columns, (_, values) in zip(names, looks, strict=True)
        ]
        for _, looks in read_figures("skew")
    ]
    (_, largest), (_, salted) = results[-1][0], expected[-1][0]
    assert largest == pytest.approx(salted, rel=0.02)
    results[-1][0][1] = salted
    assert results == expected


@pytest.mark.slow
def test_workers_under_skew_by_keyboard(browser, site):
    page = Simulator(browser, site, "#sim-skew", "#workers-under-skew")
    assert page.status_text.startswith("join, plain: the longest of 4 worker(s) takes ")
    assert "2.5 times the even share." in page.status_text
    page.press_at("Workers", *[Keys.ARROW_RIGHT] * 4)
    assert "the longest of 8 worker(s)" in page.status_text
    assert "4.9 times the even share." in page.status_text
    page.choose_option("Query", "as_of_join, salted")
    assert "Orders are read 2 time(s), 15 row(s) of customers are copied." in page.status_text
    page.press_at("Rows of one customer (%)", Keys.END)
    page.press_at("Rows of no customer (%)", Keys.HOME)
    assert "worker 1" in page.visible_text
    # Both shares make at most the whole.
    page.press_at("Rows of no customer (%)", Keys.END)
    page.go_to("Rows of one customer (%)")
    assert browser.execute_script("return document.activeElement.value") == "10"
    page.press_at("Reset")
    assert "2.5 times the even share." in page.status_text


# --- the grid of a backfill -----------------------------------------------------------------------

GRID = "backfill-grid-rules.js"
CALENDAR = Window(START, day(17))


def _day_numbers(days: Iterable[date]) -> list[int]:
    return sorted(_day_number(calendar_day) for calendar_day in days if calendar_day in CALENDAR)


@pytest.mark.slow
def test_what_follows_in_the_grid_is_what_the_graph_says(guide, tmp_path):
    settings = load_settings(start=START, end=CALENDAR.end, warehouse=str(tmp_path))
    tables = dict(call_module(guide, GRID, "return Object.entries(m.TABLES)"))
    graph = Graph.from_tables(TABLES.values(), Policy.from_settings(settings))
    reaches = {}
    for name, entry in tables.items():
        inputs = graph.inputs[name]
        assert [table_input.source.name for table_input in inputs] == (
            [entry["of"]] if entry else []
        )
        for table_input in inputs:
            assert (table_input.reach.before, table_input.reach.after) == (
                entry["before"],
                entry["after"],
            )
            reaches[name] = table_input.reach
    # Whatever is asked for, gaps included.
    invent = random.Random(4)
    requests, expected = [], []
    for _ in range(200):
        first = invent.choice([*tables])
        days = {day(n) for n in range(1, 17) if invent.random() < 0.2} or {day(16)}
        simulated_days = {first: days}
        for name in [*tables][[*tables].index(first) + 1 :]:
            changed = reaches[name].changed_days(simulated_days[tables[name]["of"]], ledger(RAW))
            simulated_days[name] = {
                changed_day for changed_day in changed if changed_day in CALENDAR
            }
            input_days = DaySet.from_days(simulated_days[tables[name]["of"]])
            assert simulated_days[name] == {
                touched_day
                for touched_day in reaches[name].affected_days(input_days)
                if touched_day in CALENDAR
            }
        requests.append([first, _day_numbers(days)])
        expected.append(
            {name: _day_numbers(table_days) for name, table_days in simulated_days.items()}
        )
    follows = "return g[0].map(([first, days]) => m.follows(first, days))"
    assert call_module(guide, GRID, follows, requests) == expected
    # And as a plan of ours has it: the days that Dagster is asked for.
    requests, expected = [], []
    for first in tables:
        names = [*tables][[*tables].index(first) :]
        for start, length in ((1, 1), (4, 1), (9, 3), (16, 1), (1, 16)):
            window = Window(day(start), day(start + length))
            requests.append([first, _day_numbers(window)])
            planned = days_by_table(Deployment(settings), names, window)
            expected.append(
                {name: _day_numbers(table_days) for name, table_days in planned.items()}
            )
    assert call_module(guide, GRID, follows, requests) == expected


@pytest.mark.slow
def test_a_range_of_the_grid_is_cut_as_ours_are(guide):
    requests = [(n, most) for n in (1, 7, 16) for most in (0, 1, 3, 7)]
    assert call_module(
        guide,
        GRID,
        """return g[0].map(([last, most]) =>
          m.chunks(Array.from({ length: last }, (_, at) => at + 1), most));""",
        requests,
    ) == [
        [_day_numbers(part) for part in Window(START, day(n + 1)).split_by_length(most or 16)]
        for n, most in requests
    ]


@pytest.mark.slow
def test_what_the_grid_is_asked_for_makes_days_right(guide):
    """Of many situations: all days, in runs of any size, wherever a run fails and goes on."""
    results = call_module(
        guide,
        GRID,
        """
        const days = Array.from({ length: m.LAST }, (_, at) => at + 1);
        const seeds = Array.from({ length: 60 }, (_, at) => ["several", at]);
        const named = Object.keys(m.SITUATIONS).map((name) => [name, 0]);
        return [...named, ...seeds].map(([name, seed]) => {
          const world = m.situation(name, seed);
          const wrong = m.left(world);
          const at = (name) => m.runs(name, days, [0, 1, 3, 7][seed % 4]);
          const plan = at("raw_orders");
          const first = m.backfill(world, plan, { failing: seed % plan.length });
          const kept = m.left(first.world).length;
          const second = m.backfill(first.world, plan, { from: first.next });
          const again = m.backfill(second.world, plan);
          const script = m.backfill(second.world, plan, { always: true });
          const facts = m.backfill(world, at("fact_daily_orders"));
          const built = [...first.became.computed, ...second.became.computed];
          return {
            name, wrong: wrong.length, kept, left: m.left(second.world).length,
            built: built.length, needless: m.needless({ computed: built }),
            again: again.became.computed.length, script: m.needless(script.became),
            facts: m.left(facts.world).length,
          };
        });
        """,
    )
    for result in results:
        assert result["left"] == result["needless"] == result["again"] == 0, result
        assert result["wrong"] == result["built"] >= 1, result
        assert result["kept"] <= result["wrong"]
        assert result["script"] == 3 * 16
        # Facts alone help only where the facts alone are wrong.
        assert (result["facts"] == 0) is (result["name"] == "code"), result


@pytest.mark.slow
def test_the_grid_by_keyboard(browser, site):
    page = Simulator(browser, site, "#sim-grid", "#plan-a-backfill")
    assert page.status_text == "7 days are wrong, late or empty."
    page.press_at("raw_orders day 1: filled, asked for", *[Keys.ARROW_RIGHT] * 8, Keys.SPACE)
    assert page.status_text == (
        "Asked for: raw_orders, day 9. What follows: stg_orders, days 2 to 9; fact_daily_orders, "
        "days 2 to 9. 7 day(s) computed, 10 identical in 2 run(s)."
    )
    page.press_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    assert page.status_text.startswith("Asked for: raw_orders, days 9 to 10.")
    page.choose_option("Days in a run", "3")
    page.press_at("Run that fails (0: none)", Keys.ARROW_UP, Keys.ARROW_UP)
    page.press_at("Launch")
    score = "Built needlessly: 0. Left wrong, late or empty:"
    assert page.status_text == f"Run 2 failed: 1 day(s) computed, 1 identical. {score} 6."
    page.press_at("Go on with the failed run", Keys.ENTER)
    assert page.status_text == f"Success: 6 day(s) computed, 12 identical. {score} 0."
    page.press_at("Build identical days too")
    page.press_at("Launch")
    assert "Built needlessly: 20." in page.status_text
    page.choose_option("What happened", "three days that were not loaded")
    page.choose_option("Begin with", "fact_daily_orders")
    page.press_at("Last day", Keys.DELETE, "16")
    page.press_at("Launch")
    assert "3 without their input" in page.status_text
    assert "A day cannot be built without its own day of the input." in page.visible_text
    page.press_at("Another situation")
    assert "Several things happened at once." in page.visible_text
    page.press_at("Reset")
    assert "Launch 1" not in page.visible_text
