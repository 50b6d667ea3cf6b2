"""The drawing "Sketch the DAG": its rules, and the same sketch by pointer, keyboard and list."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.reach import RecordedReach
from backfill_assets.orders.tables import ORDERS
from backfill_assets.settings import load_settings
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Role, SourceTable
from backfill_assets.tables.table import Table
from backfill_assets_guide.labs.running import LABS
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.ui.guide_pages import (
    Keyboard,
    call_module,
    find_broken_links,
    links_of,
    open_fresh_page,
    wait_for_element,
)
from backfill_assets_tests.ui.simulators import PAGE

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


def draw_sketch(
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
    for kind, options in choices.items():
        pieces[kind].update(options)
    return {"pieces": pieces, "edges": [edge.split(" > ") for edge in edges]}


#: By what is said of them, sketches that are wrong in that way alone.
WRONG = {
    "no-target": [draw_sketch(without=("target",))],
    "no-landing": [draw_sketch(without=("landing",))],
    "no-raw": [
        draw_sketch(
            without=("raw",),
            more=("landing > staging", "landing > late", "landing > current",
                  "orchestrator > staging", "orchestrator > late", "orchestrator > current"),
        ),
        draw_sketch(
            without=("raw > staging",), more=("landing > staging", "orchestrator > staging")
        ),
    ],
    "raw-overwritten": [draw_sketch(raw={"keeps": "newest"})],
    "no-staging": [
        draw_sketch(without=("staging",), more=("raw > target",)),
        draw_sketch(without=("staging > target",), more=("raw > target",)),
    ],
    "target-by-arrival": [draw_sketch(target={"by": "arrival"})],
    "target-appends": [draw_sketch(target={"writes": "appends"})],
    "two-load-paths": [
        draw_sketch(more=("landing > script", "script > target")),
        draw_sketch(more=("script > target",)),
        draw_sketch(more=("landing > staging",)),
        draw_sketch(more=("raw > target",)),
        draw_sketch(more=("late > target",)),
        draw_sketch(more=("script > raw",)),
        draw_sketch(more=("script > corrections",)),
    ],
    "no-checks": [
        draw_sketch(without=("checks",)),
        draw_sketch(without=("checks > target",)),
        draw_sketch(without=("checks > target",), more=("checks > staging",)),
    ],
    "checks-after": [draw_sketch(without=("checks > target",), more=("target > checks",))],
    "late-rows-lost": [
        draw_sketch(without=("current", "corrections")),
        draw_sketch(without=("current", "corrections", "late")),
        draw_sketch(without=("corrections", "raw > current"), more=("staging > current",)),
        draw_sketch(without=("current",)),
    ],
    "late-from-staging": [draw_sketch(without=("raw > late",), more=("staging > late",))],
    "reader-on-staging": [draw_sketch(more=("staging > reader",))],
    "reader-on-raw": [draw_sketch(more=("raw > reader",)), draw_sketch(more=("landing > reader",))],
    "cycle": [draw_sketch(more=("target > staging",)), draw_sketch(more=("corrections > target",))],
    "no-orchestrator": [
        draw_sketch(without=("orchestrator",)),
        draw_sketch(without=("orchestrator > raw",)),
    ],
    "not-started": [
        draw_sketch(without=("orchestrator > raw",), more=("orchestrator > target",)),
        draw_sketch(without=("orchestrator > raw",), more=("orchestrator > staging",)),
    ],
    "no-input": [draw_sketch(without=("raw > late",)), draw_sketch(more=("lateness > reader",))],
    "open-choice": [draw_sketch(raw={"keeps": ""}), draw_sketch(target={"by": ""})],
}  # fmt: skip
#: Other sketches that are right.
RIGHT = [
    draw_sketch(),
    # Without what a pipeline may have.
    draw_sketch(without=("late", "corrections")),
    draw_sketch(without=("reader",)),
    # Late lines by another way.
    draw_sketch(without=("current",), more=("late > corrections",)),
    draw_sketch(
        without=("raw > current", "current > corrections"),
        more=("late > corrections", "target > current", "corrections > current"),
    ),
    # Rows that flow through the checks, or are held by them before the reader.
    draw_sketch(without=("staging > target",), more=("staging > checks",)),
    draw_sketch(
        without=("target > reader", "checks > target"),
        more=("target > checks", "checks > reader"),
    ),
    # Checks before each table; looks at it afterwards besides.
    draw_sketch(more=("checks > raw", "checks > staging", "target > checks")),
    # Started one by one, or by what lands.
    draw_sketch(more=("orchestrator > staging", "orchestrator > target")),
    draw_sketch(without=("orchestrator > raw",), more=("orchestrator > landing",)),
    # A script that lands files is no load path of its own.
    draw_sketch(more=("script > landing",)),
    draw_sketch(more=("landing > rejected", "raw > lateness", "rejected > lateness")),
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
    if any(
        isinstance(table_input.reach, RecordedReach) for table_input in graph.inputs[table.name]
    ):
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
    return open_fresh_page(browser, f"{site}/{PAGE}", "#sketch svg")


def stored_sketch(page: Chrome) -> dict[str, Any]:
    """What the page has kept."""
    return cast(
        "dict[str, Any]",
        page.execute_script("return JSON.parse(localStorage.getItem('backfill-assets sketch'))"),
    )


def find_button(page: Chrome, text: str) -> WebElement:
    """The button of the page with this text."""
    path = f"//div[@id='sketch']//button[normalize-space()='{text}']"
    return page.find_element(By.XPATH, path)


def press_button(page: Chrome, text: str) -> None:
    find_button(page, text).send_keys(Keys.ENTER)


def find_piece(page: Chrome, kind: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f"#sketch g[data-kind='{kind}']")


def shown_findings(page: Chrome) -> list[str | None]:
    listed = page.find_elements(By.CSS_SELECTOR, "#sketch [data-finding]")
    return [item.get_attribute("data-finding") for item in listed]


@pytest.fixture(scope="module")
def grades(browser: Chrome, site: str) -> dict[str, list[Any]]:
    """What the rules find in all sketches of this module: asked for at once."""
    browser.get(f"{site}/{PAGE}")
    sketches = {**WRONG, "right": RIGHT, "own": [own_pipeline()]}
    code = (
        "return Object.fromEntries(Object.entries(g[0])"
        ".map(([name, all]) => [name, all.map((sketch) => m.graded(sketch))]))"
    )
    return cast("dict[str, list[Any]]", call_module(browser, "sketch-rules.js", code, sketches))


@pytest.mark.parametrize("name", WRONG)
def test_a_sketch_that_is_wrong_in_one_way(grades: dict[str, list[Any]], name: str) -> None:
    for findings in grades[name]:
        assert [finding["finding"] for finding in findings] == [name]


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_several_sketches_are_right(grades: dict[str, list[Any]], number: int) -> None:
    assert grades["right"][number] == []


def test_the_pipeline_of_this_project_has_no_finding(grades: dict[str, list[Any]]) -> None:
    assert grades["own"] == [[]]
    assert len(own_pipeline()["pieces"]) == len(ORDERS) + 3


def test_each_finding_has_words_and_each_words_a_sketch(browser: Chrome, site: str) -> None:
    assert WORDS.keys() == WRONG.keys()
    assert all(words.keys() == {"title", "why", "shown_by"} for words in WORDS.values())
    browser.get(f"{site}/{PAGE}")
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
    browser.get(f"{site}/{PAGE}")
    kinds = [*PIECES, "script", "rejected", "lateness"]
    all_names = set()
    for there_are, findings in call_module(browser, "sketch-rules.js", code, kinds):
        names = [finding["finding"] for finding in findings]
        assert len({*names}) == len(names)
        assert all({*finding["about"]} <= {*there_are} for finding in findings)
        # No choice is made in any of them.
        assert ("open-choice" in names) == ("target" in there_are)
        all_names |= {*names}
    assert all_names == WORDS.keys() - {"target-by-arrival", "target-appends", "raw-overwritten"}


@pytest.mark.slow
def test_what_is_begun_with_is_wrong_in_one_way_and_the_solution_is_right(page: Chrome) -> None:
    begin = Select(page.find_element(By.ID, "sketch-begin"))
    starts = [option.get_attribute("value") for option in begin.options][1:]
    all_findings = set()
    for start in starts:
        Select(page.find_element(By.ID, "sketch-begin")).select_by_value(str(start))
        press_button(page, "Begin")
        press_button(page, "Grade the sketch")
        (finding,) = shown_findings(page)
        all_findings.add(finding)
        link = wait_for_element(page, "#sketch [data-finding] .shown")
        assert link.text.startswith("Shown by: ")
    assert len(all_findings) == len(starts) == 3
    press_button(page, "Show a solution")
    press_button(page, "Grade the sketch")
    assert shown_findings(page) == []
    assert "survives backfills" in wait_for_element(page, "#sketch [role=status]").text


@pytest.mark.slow
def test_by_pointer_by_keyboard_and_by_list_it_is_the_same_sketch(page: Chrome) -> None:
    draw_by_pointer(page)
    first = stored_sketch(page)
    press_button(page, "Begin")
    draw_by_keyboard(page)
    second = stored_sketch(page)
    assert first["edges"] == second["edges"] == [["raw", "staging"]]
    assert first["pieces"].keys() == second["pieces"].keys() == {"raw", "staging"}
    # Where a pointer drops a piece depends on pixels.
    for kind, place in first["pieces"].items():
        other = second["pieces"][kind]
        assert abs(place["x"] - other["x"]) + abs(place["y"] - other["y"]) < 6, kind
    press_button(page, "Begin")
    draw_by_list(page)
    third = stored_sketch(page)
    assert third["edges"] == first["edges"]
    assert third["pieces"].keys() == first["pieces"].keys()


def draw_by_pointer(page: Chrome) -> None:
    """Drop raw log, move it, drop staging, remove an edge and draw another."""
    drawing = wait_for_element(page, "#sketch svg")
    # Below the bar on top of the page, which would take the pointer.
    palette = wait_for_element(page, "#sketch .palette")
    page.execute_script("scrollBy(0, arguments[0].getBoundingClientRect().top - 100)", palette)
    scale = drawing.rect["width"] / 840

    def drop_piece(kind: str, x: int, y: int) -> None:
        button = page.find_element(By.CSS_SELECTOR, f"#sketch [data-add='{kind}']")
        # Offsets are from the middle of the drawing.
        across, down = round((x - 420) * scale), round((y - 220) * scale)
        chain = ActionChains(page, duration=0).click_and_hold(button)
        chain.move_to_element_with_offset(drawing, across, down).release().perform()

    drop_piece("raw", 240, 200)
    drop_piece("staging", 400, 200)
    # Down by three steps of the keyboard.
    ActionChains(page, duration=0).drag_and_drop_by_offset(
        find_piece(page, "raw").find_element(By.TAG_NAME, "rect"), 0, round(60 * scale)
    ).perform()
    drag_edge(page, "staging", "raw")
    assert stored_sketch(page)["edges"] == [["staging", "raw"]]
    edge = page.find_element(By.CSS_SELECTOR, "#sketch [data-edge='staging raw'] .hit")
    ActionChains(page, duration=0).click(edge).perform()
    assert stored_sketch(page)["edges"] == []
    drag_edge(page, "raw", "staging")


def drag_edge(page: Chrome, start: str, end: str) -> None:
    """Drag an edge from the handle of a piece to another piece."""
    handle = find_piece(page, start).find_element(By.CSS_SELECTOR, ".handle")
    other = find_piece(page, end).find_element(By.TAG_NAME, "rect")
    ActionChains(page, duration=0).drag_and_drop(handle, other).perform()


def draw_by_keyboard(page: Chrome) -> None:
    """TAB to pieces, add three of them, remove one, move one, begin and end an edge."""
    for name in ("raw log", "staging", "late orders"):
        # What is added has the focus.
        keyboard = Keyboard(page, "#sketch-the-dag")
        keyboard.press_button(f"+ {name}")
    assert page.switch_to.active_element == find_piece(page, "late")
    keyboard.press_keys(Keys.DELETE)
    keyboard.tab_to("at.dataset.kind === 'raw'")
    keyboard.press_keys(*[Keys.ARROW_DOWN] * 3)
    assert "from the top" in wait_for_element(page, "#sketch [role=status]").text
    keyboard.press_keys(Keys.ENTER, Keys.ESCAPE, Keys.ENTER)
    assert find_piece(page, "raw").get_attribute("aria-pressed") == "true"
    keyboard.tab_to("at.dataset.kind === 'staging'")
    keyboard.press_keys(Keys.ENTER)
    assert find_piece(page, "staging").get_attribute("aria-label") == "staging; edges from raw log"


def draw_by_list(page: Chrome) -> None:
    for name in ("raw log", "staging", "late orders"):
        Select(page.find_element(By.ID, "sketch-add")).select_by_visible_text(name)
        press_button(page, "Add")
    page.find_element(By.CSS_SELECTOR, "#sketch [data-key='remove late']").send_keys(Keys.ENTER)
    for start, end in (("staging", "raw"), ("raw", "staging")):
        Select(page.find_element(By.ID, "sketch-from")).select_by_value(start)
        Select(page.find_element(By.ID, "sketch-to")).select_by_value(end)
        press_button(page, "Draw the edge")
    assert page.find_elements(By.CSS_SELECTOR, "#sketch [data-edge='staging raw']")
    key = "#sketch [data-key='edge staging raw']"
    page.find_element(By.CSS_SELECTOR, key).send_keys(Keys.ENTER)
    keeps = Select(page.find_element(By.CSS_SELECTOR, "#sketch [data-key='raw keeps']"))
    keeps.select_by_value("newest")
    assert stored_sketch(page)["pieces"]["raw"]["keeps"] == "newest"
    press_button(page, "Grade, and go to the findings")
    assert shown_findings(page) == ["no-target"]
    assert page.switch_to.active_element == wait_for_element(page, "#sketch .result")


@pytest.mark.slow
def test_findings_are_marked_in_the_drawing_and_gone_when_the_sketch_changes(page: Chrome) -> None:
    Select(page.find_element(By.ID, "sketch-begin")).select_by_index(2)
    press_button(page, "Begin")
    press_button(page, "Grade the sketch")
    assert shown_findings(page) == ["two-load-paths"]
    label = find_piece(page, "target").get_attribute("aria-label")
    assert label is not None
    assert label.endswith("a finding concerns it")
    assert not page.find_elements(By.CSS_SELECTOR, "#sketch [data-kind=staging].concerned")
    find_piece(page, "script").send_keys(Keys.DELETE)
    assert shown_findings(page) == []
    assert "Grade the sketch again" in wait_for_element(page, "#sketch [role=status]").text
    # A browser keeps the sketch.
    page.refresh()
    wait_for_element(page, "#sketch g[data-kind=target]")
    press_button(page, "Grade the sketch")
    assert shown_findings(page) == []
    assert "survives backfills" in wait_for_element(page, "#sketch [role=status]").text


@pytest.mark.slow
def test_links_of_findings_and_of_all_labs_lead_somewhere(browser: Chrome, site: str) -> None:
    """As the built pages have them."""
    browser.get(f"{site}/{PAGE}")
    shown = [words["shown_by"] for words in WORDS.values()]
    # Who has a finding has something to read.
    assert all("](" in text or "lab `" in text for text in shown)
    labs = links_of(browser, [f"lab `{name}`" for name in LABS])
    assert len({*labs}) == len(LABS)
    assert find_broken_links(browser, [*links_of(browser, shown), *labs]) == []
    nowhere = [f"{site}/{PAGE}#nothing", f"{site}/nothing.html"]
    assert find_broken_links(browser, nowhere) == nowhere
