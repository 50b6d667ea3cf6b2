"""The page "Sketch the DAG": its rules, and the same sketch by pointer, keyboard and list."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from backfill_assets.calendar.policy import Policy
from backfill_assets.calendar.reach import RecordedReach
from backfill_assets.labs.running import LABS
from backfill_assets.orders.tables import ORDERS
from backfill_assets.settings import load_settings
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Role, SourceTable
from backfill_assets.tables.table import Table
from backfill_assets_tests.places import PROJECT
from backfill_assets_tests.ui.guide_pages import (
    Keyboard,
    called,
    fresh,
    leading_nowhere,
    links_of,
    there,
)

WORDS = json.loads((PROJECT / "docs/guide/sketch.json").read_text())
#: A pipeline that is right, and the same as edges: other tests spoil one thing of it.
PIECES: dict[str, dict[str, str]] = {
    "landing": {},
    "raw": {"keeps": "all"},
    "staging": {},
    "target": {"by": "event", "writes": "replaces"},
    "late": {},
    "current": {},
    "corrections": {},
    "reader": {},
    "orchestrator": {},
    "checks": {},
}
EDGES = (
    "landing > raw", "raw > staging", "staging > target", "raw > late", "raw > current",
    "target > corrections", "current > corrections", "target > reader", "current > reader",
    "orchestrator > raw", "checks > target",
)  # fmt: skip


def drawn(
    without: tuple[str, ...] = (), more: tuple[str, ...] = (), **choices: dict[str, str]
) -> dict[str, Any]:
    """The right sketch without some pieces or edges, with more edges, with other choices.

    Pieces that only `more` names are added.
    """
    edges = [edge for edge in (*EDGES, *more) if edge not in without]
    edges = [edge for edge in edges if not {*edge.split(" > ")} & {*without}]
    ends = [kind for edge in more for kind in edge.split(" > ")]
    kinds = [kind for kind in dict.fromkeys([*PIECES, *ends]) if kind not in without]
    pieces = {kind: {"x": 0, "y": 0, **PIECES.get(kind, {})} for kind in kinds}
    for kind, of in choices.items():
        pieces[kind].update(of)
    return {"pieces": pieces, "edges": [edge.split(" > ") for edge in edges]}


#: By what is said of them, sketches that are wrong in that way alone.
WRONG = {
    "no-target": [drawn(without=("target",))],
    "no-landing": [drawn(without=("landing",))],
    "no-raw": [
        drawn(
            without=("raw",),
            more=("landing > staging", "landing > late", "landing > current",
                  "orchestrator > staging", "orchestrator > late", "orchestrator > current"),
        ),
        drawn(without=("raw > staging",), more=("landing > staging", "orchestrator > staging")),
    ],
    "raw-overwritten": [drawn(raw={"keeps": "newest"})],
    "no-staging": [
        drawn(without=("staging",), more=("raw > target",)),
        drawn(without=("staging > target",), more=("raw > target",)),
    ],
    "target-by-arrival": [drawn(target={"by": "arrival"})],
    "target-appends": [drawn(target={"writes": "appends"})],
    "two-load-paths": [
        drawn(more=("landing > script", "script > target")),
        drawn(more=("script > target",)),
        drawn(more=("landing > staging",)),
        drawn(more=("raw > target",)),
        drawn(more=("late > target",)),
        drawn(more=("script > raw",)),
        drawn(more=("script > corrections",)),
    ],
    "no-checks": [
        drawn(without=("checks",)),
        drawn(without=("checks > target",)),
        drawn(without=("checks > target",), more=("checks > staging",)),
    ],
    "checks-after": [drawn(without=("checks > target",), more=("target > checks",))],
    "late-rows-lost": [
        drawn(without=("current", "corrections")),
        drawn(without=("current", "corrections", "late")),
        drawn(without=("corrections", "raw > current"), more=("staging > current",)),
        drawn(without=("current",)),
    ],
    "late-from-staging": [drawn(without=("raw > late",), more=("staging > late",))],
    "reader-on-staging": [drawn(more=("staging > reader",))],
    "reader-on-raw": [drawn(more=("raw > reader",)), drawn(more=("landing > reader",))],
    "cycle": [drawn(more=("target > staging",)), drawn(more=("corrections > target",))],
    "no-orchestrator": [
        drawn(without=("orchestrator",)),
        drawn(without=("orchestrator > raw",)),
    ],
    "not-started": [
        drawn(without=("orchestrator > raw",), more=("orchestrator > target",)),
        drawn(without=("orchestrator > raw",), more=("orchestrator > staging",)),
    ],
    "no-input": [drawn(without=("raw > late",)), drawn(more=("lateness > reader",))],
    "open-choice": [drawn(raw={"keeps": ""}), drawn(target={"by": ""})],
}  # fmt: skip
#: Other sketches that are right.
RIGHT = [
    drawn(),
    # Without what a pipeline may have.
    drawn(without=("late", "corrections")),
    drawn(without=("reader",)),
    # Late lines by another way.
    drawn(without=("current",), more=("late > corrections",)),
    drawn(
        without=("raw > current", "current > corrections"),
        more=("late > corrections", "target > current", "corrections > current"),
    ),
    # Rows that flow through the checks, or are held by them before the reader.
    drawn(without=("staging > target",), more=("staging > checks",)),
    drawn(
        without=("target > reader", "checks > target"),
        more=("target > checks", "checks > reader"),
    ),
    # Checks before each table; looks at it afterwards besides.
    drawn(more=("checks > raw", "checks > staging", "target > checks")),
    # Started one by one, or by what lands.
    drawn(more=("orchestrator > staging", "orchestrator > target")),
    drawn(without=("orchestrator > raw",), more=("orchestrator > landing",)),
    # A script that lands files is no load path of its own.
    drawn(more=("script > landing",)),
    drawn(more=("landing > rejected", "raw > lateness", "rejected > lateness")),
]

_KINDS = {
    Role.LOG: "raw",
    Role.REJECTED: "rejected",
    Role.STAGED: "staging",
    Role.LATE: "late",
    Role.LATENESS: "lateness",
}


def kind_of(table: Table, graph: Graph) -> str:
    """The piece that a table of the orders is, by its declaration."""
    if isinstance(table, SourceTable):
        return _KINDS[table.role]
    if table.frozen:
        return "target"
    if any(isinstance(of.reach, RecordedReach) for of in graph.inputs[table.name]):
        return "current"
    made_from = {kind_of(graph.tables[name], graph) for name in graph.direct_inputs(table.name)}
    assert made_from == {"target", "current"}, table.name
    return "corrections"


def own_pipeline() -> dict[str, Any]:
    """The orders' tables as they are declared: a piece each, and an edge for each input.

    The audit comes before each is published, and the schedule or a sensor asks for each. No
    declaration says so, nor that runs replace days and that the log keeps all: other tests do.
    """
    graph = Graph.from_tables(ORDERS, Policy.from_settings(load_settings()))
    kinds = {name: kind_of(table, graph) for name, table in graph.tables.items()}
    assert len({*kinds.values()}) == len(kinds)
    pieces: dict[str, dict[str, Any]] = {
        kind: {"x": 0, "y": 0} for kind in ("landing", "checks", "orchestrator", *kinds.values())
    }
    edges = [["landing", kinds[name]] for name in graph.landed_tables]
    for name in graph.tables:
        edges += [[kinds[source], kinds[name]] for source in graph.direct_inputs(name)]
        edges += [["checks", kinds[name]], ["orchestrator", kinds[name]]]
    by_event = {kinds[name] for name in graph.by_event_day}
    pieces["target"].update(by="event" if "target" in by_event else "arrival", writes="replaces")
    pieces["raw"]["keeps"] = "all"
    return {"pieces": pieces, "edges": edges}


@pytest.fixture
def page(browser: Chrome, site: str) -> Chrome:
    """The page with an empty sketch."""
    return fresh(browser, f"{site}/guide/sketch.html", "#sketch svg")


def sketch(page: Chrome) -> dict[str, Any]:
    """What the page has kept."""
    return cast(
        "dict[str, Any]",
        page.execute_script("return JSON.parse(localStorage.getItem('backfill-assets sketch'))"),
    )


def labelled(page: Chrome, text: str) -> WebElement:
    """The button of the page with this text."""
    path = f"//div[@id='sketch']//button[normalize-space()='{text}']"
    return page.find_element(By.XPATH, path)


def press(page: Chrome, text: str) -> None:
    labelled(page, text).send_keys(Keys.ENTER)


def piece(page: Chrome, kind: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f"#sketch g[data-kind='{kind}']")


def found(page: Chrome) -> list[str | None]:
    listed = page.find_elements(By.CSS_SELECTOR, "#sketch [data-finding]")
    return [item.get_attribute("data-finding") for item in listed]


@pytest.fixture(scope="module")
def grades(browser: Chrome, site: str) -> dict[str, list[Any]]:
    """What the rules find in all sketches of this module: asked for at once."""
    browser.get(f"{site}/guide/sketch.html")
    given = {**WRONG, "right": RIGHT, "own": [own_pipeline()]}
    code = (
        "return Object.fromEntries(Object.entries(g[0])"
        ".map(([name, all]) => [name, all.map((sketch) => m.graded(sketch))]))"
    )
    return cast("dict[str, list[Any]]", called(browser, "sketch-rules.js", code, given))


@pytest.mark.parametrize("name", WRONG)
def test_a_sketch_that_is_wrong_in_one_way(grades: dict[str, list[Any]], name: str) -> None:
    for found in grades[name]:
        assert [one["finding"] for one in found] == [name]


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_several_sketches_are_right(grades: dict[str, list[Any]], number: int) -> None:
    assert grades["right"][number] == []


def test_the_pipeline_of_this_project_has_no_finding(grades: dict[str, list[Any]]) -> None:
    assert grades["own"] == [[]]
    assert len(own_pipeline()["pieces"]) == len(ORDERS) + 3


def test_each_finding_has_words_and_each_words_a_sketch(browser: Chrome, site: str) -> None:
    assert WORDS.keys() == WRONG.keys()
    assert all(of.keys() == {"title", "why", "shown_by"} for of in WORDS.values())
    browser.get(f"{site}/guide/sketch.html")
    text = browser.execute_async_script(
        "fetch('sketch-rules.js').then((of) => of.text()).then(arguments[0])"
    )
    assert [name for name in WORDS if f'"{name}"' not in text] == []


@pytest.mark.slow
def test_any_sketch_is_graded(browser: Chrome, site: str) -> None:
    """A thousand sketches of any pieces and edges: each finding has words, about pieces of it."""
    code = """
        let state = 1;
        const random = (most) => (state = (state * 48271) % 2147483647) % most;
        const kinds = g[0];
        return Array.from({ length: 1000 }, () => {
            const some = kinds.filter(() => random(3));
            const pieces = Object.fromEntries(some.map((kind) => [kind, { x: 0, y: 0 }]));
            const edges = some.flatMap((from) =>
                some.filter((to) => to !== from && !random(4)).map((to) => [from, to]));
            return [some, m.graded({ pieces, edges })];
        });
    """
    browser.get(f"{site}/guide/sketch.html")
    kinds = [*PIECES, "script", "rejected", "lateness"]
    seen = set()
    for there_are, found in called(browser, "sketch-rules.js", code, kinds):
        names = [one["finding"] for one in found]
        assert len({*names}) == len(names)
        assert all({*one["about"]} <= {*there_are} for one in found)
        # No choice is made in any of them.
        assert ("open-choice" in names) == ("target" in there_are)
        seen |= {*names}
    assert seen == WORDS.keys() - {"target-by-arrival", "target-appends", "raw-overwritten"}


@pytest.mark.slow
def test_what_is_begun_with_is_wrong_in_one_way_and_the_solution_is_right(page: Chrome) -> None:
    begin = Select(page.find_element(By.ID, "sketch-begin"))
    starts = [option.get_attribute("value") for option in begin.options][1:]
    seen = set()
    for start in starts:
        Select(page.find_element(By.ID, "sketch-begin")).select_by_value(str(start))
        press(page, "Begin")
        press(page, "Grade the sketch")
        (finding,) = found(page)
        seen.add(finding)
        link = there(page, "#sketch [data-finding] .shown")
        assert link.text.startswith("Shown by: ")
    assert len(seen) == len(starts) == 3
    press(page, "Show a solution")
    press(page, "Grade the sketch")
    assert found(page) == []
    assert "survives backfills" in there(page, "#sketch [role=status]").text


@pytest.mark.slow
def test_by_pointer_by_keyboard_and_by_list_it_is_the_same_sketch(page: Chrome) -> None:
    by_pointer(page)
    first = sketch(page)
    press(page, "Begin")
    by_keyboard(page)
    second = sketch(page)
    assert first["edges"] == second["edges"] == [["raw", "staging"]]
    assert first["pieces"].keys() == second["pieces"].keys() == {"raw", "staging"}
    # Where a pointer drops a piece depends on pixels.
    for kind, of in first["pieces"].items():
        other = second["pieces"][kind]
        assert abs(of["x"] - other["x"]) + abs(of["y"] - other["y"]) < 6, kind
    press(page, "Begin")
    by_list(page)
    third = sketch(page)
    assert third["edges"] == first["edges"]
    assert third["pieces"].keys() == first["pieces"].keys()


def by_pointer(page: Chrome) -> None:
    """Drop raw log, move it, drop staging, remove an edge and draw another."""
    drawing = there(page, "#sketch svg")
    # Below the bar on top of the page, which would take the pointer.
    palette = there(page, "#sketch .palette")
    page.execute_script("scrollBy(0, arguments[0].getBoundingClientRect().top - 100)", palette)
    scale = drawing.rect["width"] / 840

    def drop(kind: str, x: int, y: int) -> None:
        button = page.find_element(By.CSS_SELECTOR, f"#sketch [data-add='{kind}']")
        # Offsets are from the middle of the drawing.
        across, down = round((x - 420) * scale), round((y - 220) * scale)
        chain = ActionChains(page, duration=0).click_and_hold(button)
        chain.move_to_element_with_offset(drawing, across, down).release().perform()

    drop("raw", 240, 200)
    drop("staging", 400, 200)
    # Down by three steps of the keyboard.
    ActionChains(page, duration=0).drag_and_drop_by_offset(
        piece(page, "raw").find_element(By.TAG_NAME, "rect"), 0, round(60 * scale)
    ).perform()
    pull(page, "staging", "raw")
    assert sketch(page)["edges"] == [["staging", "raw"]]
    edge = page.find_element(By.CSS_SELECTOR, "#sketch [data-edge='staging raw'] .hit")
    ActionChains(page, duration=0).click(edge).perform()
    assert sketch(page)["edges"] == []
    pull(page, "raw", "staging")


def pull(page: Chrome, start: str, end: str) -> None:
    """Drag an edge from the handle of a piece to another piece."""
    handle = piece(page, start).find_element(By.CSS_SELECTOR, ".handle")
    other = piece(page, end).find_element(By.TAG_NAME, "rect")
    ActionChains(page, duration=0).drag_and_drop(handle, other).perform()


def by_keyboard(page: Chrome) -> None:
    """TAB to pieces, add three of them, remove one, move one, begin and end an edge."""
    for name in ("raw log", "staging", "late orders"):
        # What is added has the focus.
        keyboard = Keyboard(page)
        keyboard.press(f"+ {name}")
    assert page.switch_to.active_element == piece(page, "late")
    keyboard.send(Keys.DELETE)
    keyboard.reach("at.dataset.kind === 'raw'")
    keyboard.send(*[Keys.ARROW_DOWN] * 3)
    assert "from the top" in there(page, "#sketch [role=status]").text
    keyboard.send(Keys.ENTER, Keys.ESCAPE, Keys.ENTER)
    assert piece(page, "raw").get_attribute("aria-pressed") == "true"
    keyboard.reach("at.dataset.kind === 'staging'")
    keyboard.send(Keys.ENTER)
    assert piece(page, "staging").get_attribute("aria-label") == "staging; edges from raw log"


def by_list(page: Chrome) -> None:
    for name in ("raw log", "staging", "late orders"):
        Select(page.find_element(By.ID, "sketch-add")).select_by_visible_text(name)
        press(page, "Add")
    page.find_element(By.CSS_SELECTOR, "#sketch [data-key='remove late']").send_keys(Keys.ENTER)
    for start, end in (("staging", "raw"), ("raw", "staging")):
        Select(page.find_element(By.ID, "sketch-from")).select_by_value(start)
        Select(page.find_element(By.ID, "sketch-to")).select_by_value(end)
        press(page, "Draw the edge")
    assert page.find_elements(By.CSS_SELECTOR, "#sketch [data-edge='staging raw']")
    key = "#sketch [data-key='edge staging raw']"
    page.find_element(By.CSS_SELECTOR, key).send_keys(Keys.ENTER)
    keeps = Select(page.find_element(By.CSS_SELECTOR, "#sketch [data-key='raw keeps']"))
    keeps.select_by_value("newest")
    assert sketch(page)["pieces"]["raw"]["keeps"] == "newest"
    press(page, "Grade, and go to the findings")
    assert found(page) == ["no-target"]
    assert page.switch_to.active_element == there(page, "#sketch .result")


@pytest.mark.slow
def test_findings_are_marked_in_the_drawing_and_gone_when_the_sketch_changes(page: Chrome) -> None:
    Select(page.find_element(By.ID, "sketch-begin")).select_by_index(2)
    press(page, "Begin")
    press(page, "Grade the sketch")
    assert found(page) == ["two-load-paths"]
    label = piece(page, "target").get_attribute("aria-label")
    assert label is not None
    assert label.endswith("a finding concerns it")
    assert not page.find_elements(By.CSS_SELECTOR, "#sketch [data-kind=staging].concerned")
    piece(page, "script").send_keys(Keys.DELETE)
    assert found(page) == []
    assert "Grade the sketch again" in there(page, "#sketch [role=status]").text
    # A browser keeps the sketch.
    page.refresh()
    there(page, "#sketch g[data-kind=target]")
    press(page, "Grade the sketch")
    assert found(page) == []
    assert "survives backfills" in there(page, "#sketch [role=status]").text


@pytest.mark.slow
def test_links_of_findings_and_of_all_labs_lead_somewhere(browser: Chrome, site: str) -> None:
    """As the built pages have them."""
    browser.get(f"{site}/guide/sketch.html")
    shown = [of["shown_by"] for of in WORDS.values()]
    # Who has a finding has something to read.
    assert all("](" in of or "lab `" in of for of in shown)
    labs = links_of(browser, [f"lab `{name}`" for name in LABS])
    assert len({*labs}) == len(LABS)
    assert leading_nowhere(browser, [*links_of(browser, shown), *labs]) == []
    nowhere = [f"{site}/labs.html#nothing", f"{site}/nothing.html"]
    assert leading_nowhere(browser, nowhere) == nowhere
