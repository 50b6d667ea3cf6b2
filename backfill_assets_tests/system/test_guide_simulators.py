"""The simulators of the guide: their rules agree with the labs and with the code; keys suffice."""

from __future__ import annotations

import pytest
from selenium.webdriver import Chrome, Keys

from backfill_assets_tests.lab_pages import figures
from backfill_assets_tests.ui.simulators import Keyboard, rules


@pytest.fixture(scope="module")
def guide(browser: Chrome, site: str) -> Chrome:
    """The browser at a page of the guide, so that it can import what lies beside it."""
    browser.get(f"{site}/guide/append-or-replace.html")
    return browser


def seen(lab: str, *names: str) -> list[list[list[object]]]:
    """By step of a lab, the figures of these names that readers saw."""
    return [
        [[told[name] for name in names] for _, told in looks if names[0] in told]
        for _, looks in figures(lab)
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
        const chunks = [];
        for (const day of [...Array(182).keys()]) {
          const month = new Date(Date.UTC(2024, 0, 1 + day)).getUTCMonth();
          (chunks[month] ??= []).push(day);
        }
        const source = chunks.flat().flatMap((day) => [0, 1, 2].map((shop) =>
          ({ day, key: `${shop} ${day}`, version: 1, amount: 10 + shop })));
        const play = (way, crash, all) => {
          const first = m.backfill(way, [], source, chunks, { crash, at: 3 });
          const from = all ? 0 : first.next;
          const then = m.backfill(way, first.table, source, chunks, { from });
          return [[first.table, first.commits], [then.table, first.commits + then.commits]];
        };
        const look = ([table, commits]) => {
          const days = new Set(table.map((row) => row.day)).size;
          return [[days, m.seen(table).rows, m.seen(table).total, commits]];
        };
        const shot = m.backfill("replace", [], source, [chunks.flat()], { crash: "middle" });
        return [[shot.table, shot.commits], ...play("append", "after", false),
          ...play("replace", "before", true)].map(look);
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
    assert rules(guide, APPEND, _PLAYED[lab]) == seen(lab, *names)


def test_append_or_replace_agrees_with_the_lab_that_crashes(guide):
    first, *others = rules(guide, APPEND, _PLAYED["crash"])
    assert first == [[0, 0, 0, 0]]
    assert figures("crash")[0][1] == [("reader", {"text": "there is no table"})]
    assert others == [
        [[*told, *commits] for told, commits in zip(looks, made, strict=True)]
        for looks, made in zip(
            seen("crash", "days", "rows", "amount")[1:],
            seen("crash", "commits with rows")[1:],
            strict=True,
        )
    ]
    jobs = rules(
        guide,
        APPEND,
        """const days = [1, 2, 3, 4, 5, 6];
        const { delivered } = m.source();
        const chunks = days.map((day) => [day]);
        const { ended } = m.backfill("replace", [], delivered, chunks, { crash: "before", at: 3 });
        return ended;""",
    )
    (dagster,) = (told for who, told in figures("crash")[3][1] if who == "Dagster")
    assert jobs == dagster["runs with success"]


def test_append_or_replace_by_keyboard(browser, site):
    page = Keyboard(browser, f"{site}/guide/append-or-replace.html")
    right = "right: 18 rows, total 180.00."
    assert page.said == f"Readers see 0 rows, total 0.00; {right} Wrong days: 6, of them empty: 6."
    page.press("Run")
    assert (
        page.said == f"Readers see 18 rows, total 180.00; {right} Wrong days: 0, of them empty: 0."
    )
    page.press("Run", Keys.ENTER)
    assert page.said.startswith("Readers see 36 rows, total 360.00;")
    assert "An append counts each run." in page.text
    page.choose("Way of writing", "delete, then insert")
    page.choose("Jobs", "one for each day")
    page.choose(
        "Crash of the job (of each day: the third)", "in the middle (between delete and insert)"
    )
    page.press("Run")
    assert page.said.endswith("Wrong days: 4, of them empty: 1.")
    page.choose("Crash of the job (of each day: the third)", "nowhere")
    page.press("Go on with the failed job")
    assert page.said.endswith("Wrong days: 0, of them empty: 0.")
    page.choose("Way of writing", "merge by key")
    page.press("Row without a key on day 4")
    page.press("Row of shop b on day 3 is no more")
    page.press("Run")
    page.press("Run")
    assert "Wrong days: 2, of them empty: 0." in page.said
    assert "A null key matches none: each MERGE inserts its row again." in page.text
    page.press("Reset")
    assert page.said.startswith("Readers see 0 rows")
    assert "An append" not in page.text
