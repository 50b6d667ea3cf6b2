"""The quiz and the checklists of the guide: their data, and the pages by keyboard alone."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import click
import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from backfill_assets.cli import cli
from backfill_assets_tests.helpers.docs_pages import PAGES
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

QUESTIONS = json.loads((PROJECT / "docs/guide/quiz.json").read_text())
TOPICS = {
    "idempotence", "append, overwrite, merge", "partition replace", "atomic commits and readers",
    "event and arrival time", "windows and final days", "corrections", "deduplication and ties",
    "null keys", "watermark", "DAG and partition mappings", "run per day or one run",
    "crash and resume", "input digests", "audit before publish", "reconciliation",
    "undo and time travel", "schema change", "shadow and switch-over", "skew and remedies",
    "leaks and as-of joins", "quotas", "VACUUM and retention", "two writers", "CURRENT_DATE",
    "time zones", "monitoring by day", "incident steps",
}  # fmt: skip
#: One piece of a text of `shown_by`.
SHOWN = re.compile(
    r"lab `[\w-]+`|`(system/)?test_\w+\.py::test_\w+`|\[[^\]]+\]\(\.\./[\w-]+\.md(#[\w-]+)?\)"
)
CHECKLISTS = PAGES["docs/guide/checklists.md"]
#: By list, its items as they stand in the page.
LISTS = {
    title: re.findall(r"^- (.*\n(?:(?!- ).+\n)*)", text, re.MULTILINE)
    for title, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", CHECKLISTS, re.MULTILINE)
}


def test_thirty_questions() -> None:
    assert len(QUESTIONS) == len({question["id"] for question in QUESTIONS}) == 30
    assert len({question["question"] for question in QUESTIONS}) == 30
    assert {question["topic"] for question in QUESTIONS} == TOPICS


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
def test_a_question_has_one_right_answer_and_a_reason_for_each(question: dict[str, Any]) -> None:
    assert question.keys() == {"id", "topic", "question", "answers", "shown_by"}
    answers = question["answers"]
    assert sum(answer["right"] is True for answer in answers) == 1
    assert sum(answer["right"] is False for answer in answers) == 3
    for name in ("text", "reason"):
        assert len({answer[name].strip() for answer in answers} - {""}) == 4
    # Code between backticks is closed.
    texts = [
        question["question"],
        *(answer[name] for answer in answers for name in ("text", "reason")),
    ]
    assert all(text.count("`") % 2 == 0 for text in texts)
    assert all(SHOWN.fullmatch(part.strip()) for part in question["shown_by"].split(";"))


@pytest.mark.slow
def test_links_of_the_quiz_lead_somewhere(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/{PAGE}")
    shown = [question["shown_by"] for question in QUESTIONS]
    # Who was wrong has something to read.
    assert all("](" in shown_by or "lab `" in shown_by for shown_by in shown)
    links = links_of(browser, shown)
    assert len({*links}) > 15
    assert find_broken_links(browser, links) == []


@pytest.fixture(scope="module")
def orders(browser: Chrome, site: str) -> list[list[int]]:
    """For each question, the places of its answers in the file, in the order of the page."""
    browser.get(f"{site}/{PAGE}")
    code = "return g[0].map((question) => m.order(question))"
    places = call_module(browser, "quiz-rules.js", code, QUESTIONS)
    assert places == call_module(browser, "quiz-rules.js", code, QUESTIONS)
    return cast("list[list[int]]", places)


def test_answers_are_shuffled_and_always_the_same_way(orders: list[list[int]]) -> None:
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    right = [
        [question["answers"][place]["right"] for place in order].index(True)
        for question, order in zip(QUESTIONS, orders, strict=True)
    ]
    assert all(count >= 3 for count in Counter(right).values())
    assert len(Counter(right)) == 4


def test_the_score(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/{PAGE}")
    right = {
        question["id"]: [answer["right"] for answer in question["answers"]].index(True)
        for question in QUESTIONS
    }
    first, second = QUESTIONS[0]["id"], QUESTIONS[1]["id"]
    wrong = {**right, second: (right[second] + 1) % 4}
    code = (
        "return g[1].map((given) => { const { answered, right, wrong } = m.score(g[0], given);"
        " return [answered, right, wrong.map(({ id }) => id)]; })"
    )
    answer_sets = [{}, {first: right[first]}, right, wrong]
    scores = call_module(browser, "quiz-rules.js", code, QUESTIONS, answer_sets)
    assert scores == [[0, 0, []], [1, 1, []], [30, 30, []], [30, 29, [second]]]
    code = (
        "return [[-1, {}], [-1, g[1]], [29, {}], [0, g[2]]]"
        ".map(([at, given]) => m.next(g[0], given, at))"
    )
    first_answers = {question["id"]: 0 for question in QUESTIONS[:5]}
    assert call_module(browser, "quiz-rules.js", code, QUESTIONS, right, first_answers) == [
        0,
        0,
        0,
        5,
    ]
    # What was kept by another version of the page is let go.
    code = "return m.known(g[0], g[1])"
    stored = {first: 1, second: 7, "other": 0}
    assert call_module(browser, "quiz-rules.js", code, QUESTIONS, stored) == {first: 1}


def status_text(page: Chrome, within: str = "#quiz-page") -> str:
    return page.find_element(By.CSS_SELECTOR, f"{within} [role=status]").text


@pytest.mark.slow
def test_the_quiz_by_keyboard_alone(browser: Chrome, site: str, orders: list[list[int]]) -> None:
    page = open_fresh_page(browser, f"{site}/{PAGE}", "#quiz-page form")
    keyboard = Keyboard(page, "#quiz")
    wrong = {3, 17}
    for number, (question, order) in enumerate(zip(QUESTIONS, orders, strict=True)):
        if number in wrong:
            place = next(n for n in range(4) if not question["answers"][order[n]]["right"])
        else:
            place = next(n for n in range(4) if question["answers"][order[n]]["right"])
        keyboard.tab_to("at.name === 'answer'")
        keyboard.press_keys(Keys.SPACE, *[Keys.ARROW_DOWN] * place, Keys.ENTER)
        answer = wait_for_element(page, "#quiz-page [tabindex='-1']")
        assert answer == page.switch_to.active_element
        assert answer.text == ("That is wrong." if number in wrong else "That is right.")
        reasons = wait_for_element(page, "#quiz-page ol").text
        assert all(choice["reason"].replace("`", "") in reasons for choice in question["answers"])
        if number == 4:
            assert status_text(page) == "That is right. 5 of 30 answered, 4 right."
        if number < len(QUESTIONS) - 1:
            keyboard.press_button("Next")
    assert status_text(page).endswith("30 of 30 answered, 28 right.")
    page.refresh()
    wait_for_element(page, "#quiz-page h3")
    assert status_text(page) == "30 of 30 answered, 28 right."
    read = page.find_elements(By.CSS_SELECTOR, "#quiz-page section li")
    assert len(read) == len(wrong)
    for item, number in zip(read, sorted(wrong), strict=True):
        assert QUESTIONS[number]["question"].replace("`", "") in item.text
        assert item.find_elements(By.CSS_SELECTOR, ".shown a")
    keyboard = Keyboard(page, "#quiz")
    keyboard.press_button("Forget all answers")
    assert status_text(page) == "0 of 30 answered, 0 right."
    assert not page.find_elements(By.CSS_SELECTOR, "#quiz-page section li")


@pytest.fixture
def forgetful(browser: Chrome) -> Iterator[Chrome]:
    """A browser that refuses to keep anything for the guide."""
    code = """
        for (const name of ["getItem", "setItem"]) {
            const own = Storage.prototype[name];
            Storage.prototype[name] = function (key, ...given) {
                if (key.startsWith("backfill-assets")) throw new Error("refused");
                return own.call(this, key, ...given);
            };
        }
    """
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
    yield browser
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.mark.slow
def test_without_storage_the_pages_work(forgetful: Chrome, site: str) -> None:
    forgetful.get(f"{site}/{PAGE}")
    wait_for_element(forgetful, "#quiz-page input").click()
    wait_for_element(forgetful, "#quiz-page [type=submit]").click()
    assert "1 of 30 answered" in status_text(forgetful)
    forgetful.get(f"{site}/guide/checklists.html")
    wait_for_element(forgetful, ".checked input").click()
    assert status_text(forgetful, ".checked").startswith("1 of ")
    forgetful.get(f"{site}/{PAGE}")
    wait_for_element(forgetful, "#sketch [data-add=raw]").click()
    assert wait_for_element(forgetful, "#sketch [data-kind=raw]")


def test_each_item_of_a_checklist_names_a_command_and_what_shows_it() -> None:
    assert len(LISTS) == 5
    items = [item for checklist in LISTS.values() for item in checklist]
    assert len(items) > 30
    assert CHECKLISTS.count("\n- ") == len(items)
    for item in items:
        assert re.match(r"\*\*[^*]+\*\* ", item), item
        typed = re.findall(r"`backfill-assets ([^`]+)`", item)
        assert typed, item
        for name, *words in map(shlex.split, typed):
            command = cli.get_command(click.Context(cli), name)
            assert command, item
            if words:
                # That its arguments and options are there; nothing is run.
                command.make_context(name, [*words])
            # A plan is launched as it was made.
            assert name != "backfill" or not words or "-" in words[0] or words[1:] == [], item
        (shown,) = re.findall(r"^Shown by: (.+)$", item, re.MULTILINE)
        assert all(SHOWN.fullmatch(part.strip()) for part in shown.split(";")), item
    titles = [re.split(r"\*\*", item)[1] for checklist in LISTS.values() for item in checklist]
    assert len({*titles}) == len(titles)


@pytest.mark.slow
def test_checklists_keep_their_state(browser: Chrome, site: str) -> None:
    page = open_fresh_page(browser, f"{site}/guide/checklists.html", ".checked input")
    keyboard = Keyboard(page)

    def status_texts() -> list[str]:
        return [element.text for element in page.find_elements(By.CSS_SELECTOR, "[role=status]")]

    sizes = [len(items) for items in LISTS.values()]
    assert status_texts() == [f"0 of {size} done." for size in sizes]
    keyboard.tab_to("at.type === 'checkbox' && at.closest('.checked')")
    keyboard.press_keys(Keys.SPACE)
    # Its words are a part of the box.
    page.find_elements(By.CSS_SELECTOR, ".checked label strong")[sizes[0] + 1].click()
    expected = [f"1 of {sizes[0]} done.", f"1 of {sizes[1]} done."]
    assert status_texts()[:2] == expected
    page.refresh()
    wait_for_element(page, ".checked input")
    assert status_texts()[:2] == expected
    boxes = page.find_elements(By.CSS_SELECTOR, ".checked input")
    assert [n for n, box in enumerate(boxes) if box.is_selected()] == [0, sizes[0] + 1]
    (first, *_) = LISTS
    keyboard = Keyboard(page)
    keyboard.press_button(f'Clear "{first}"')
    assert status_texts()[:2] == [f"0 of {sizes[0]} done.", expected[1]]
    page.refresh()
    wait_for_element(page, ".checked input")
    assert status_texts()[:2] == [f"0 of {sizes[0]} done.", expected[1]]


@pytest.mark.slow
def test_checklists_can_be_read_without_javascript(browser: Chrome, site: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{site}/guide/checklists.html")
        items = browser.find_elements(By.CSS_SELECTOR, "article li strong")
        assert len([item for item in items if item.text]) == sum(map(len, LISTS.values()))
        assert not browser.find_elements(By.CSS_SELECTOR, "article input")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
