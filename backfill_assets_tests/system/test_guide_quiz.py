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
from backfill_assets_tests.pages import PAGES
from backfill_assets_tests.places import PROJECT
from backfill_assets_tests.ui.guide_pages import (
    Keyboard,
    called,
    fresh,
    leading_nowhere,
    links_of,
    there,
)

QUESTIONS = json.loads((PROJECT / "docs/guide/quiz.json").read_text())
TOPICS = {
    "idempotence", "append, overwrite, merge", "partition replace", "atomic commits and readers",
    "event and arrival time", "windows and final days", "corrections", "deduplication and ties",
    "null keys", "watermark", "DAG and partition mappings", "run per day or one run",
    "crash and resume", "fingerprints", "audit before publish", "reconciliation",
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
    assert len(QUESTIONS) == len({of["id"] for of in QUESTIONS}) == 30
    assert len({of["question"] for of in QUESTIONS}) == 30
    assert {of["topic"] for of in QUESTIONS} == TOPICS


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda of: of["id"])
def test_a_question_has_one_right_answer_and_a_reason_for_each(question: dict[str, Any]) -> None:
    assert question.keys() == {"id", "topic", "question", "answers", "shown_by"}
    answers = question["answers"]
    assert sum(of["right"] is True for of in answers) == 1
    assert sum(of["right"] is False for of in answers) == 3
    for name in ("text", "reason"):
        assert len({of[name].strip() for of in answers} - {""}) == 4
    # Code between backticks is closed.
    texts = [question["question"], *(of[name] for of in answers for name in ("text", "reason"))]
    assert all(text.count("`") % 2 == 0 for text in texts)
    assert all(SHOWN.fullmatch(part.strip()) for part in question["shown_by"].split(";"))


@pytest.mark.slow
def test_links_of_the_quiz_lead_somewhere(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/guide/quiz.html")
    shown = [of["shown_by"] for of in QUESTIONS]
    # Who was wrong has something to read.
    assert all("](" in of or "lab `" in of for of in shown)
    # The links of labs are looked at with the sketch.
    links = [link for link in links_of(browser, shown) if "/labs.html#" not in link]
    assert len({*links}) > 15
    assert leading_nowhere(browser, links) == []


@pytest.fixture(scope="module")
def orders(browser: Chrome, site: str) -> list[list[int]]:
    """For each question, the places of its answers in the file, in the order of the page."""
    browser.get(f"{site}/guide/quiz.html")
    code = "return g[0].map((question) => m.order(question))"
    found = called(browser, "quiz-rules.js", code, QUESTIONS)
    assert found == called(browser, "quiz-rules.js", code, QUESTIONS)
    return cast("list[list[int]]", found)


def test_answers_are_shuffled_and_always_the_same_way(orders: list[list[int]]) -> None:
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    right = [
        [question["answers"][place]["right"] for place in order].index(True)
        for question, order in zip(QUESTIONS, orders, strict=True)
    ]
    assert all(count >= 3 for count in Counter(right).values())
    assert len(Counter(right)) == 4


def test_the_score(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/guide/quiz.html")
    right = {
        of["id"]: [answer["right"] for answer in of["answers"]].index(True) for of in QUESTIONS
    }
    first, second = QUESTIONS[0]["id"], QUESTIONS[1]["id"]
    wrong = {**right, second: (right[second] + 1) % 4}
    code = (
        "return g[1].map((given) => { const { answered, right, wrong } = m.score(g[0], given);"
        " return [answered, right, wrong.map(({ id }) => id)]; })"
    )
    given = [{}, {first: right[first]}, right, wrong]
    found = called(browser, "quiz-rules.js", code, QUESTIONS, given)
    assert found == [[0, 0, []], [1, 1, []], [30, 30, []], [30, 29, [second]]]
    code = (
        "return [[-1, {}], [-1, g[1]], [29, {}], [0, g[2]]]"
        ".map(([at, given]) => m.next(g[0], given, at))"
    )
    some = {of["id"]: 0 for of in QUESTIONS[:5]}
    assert called(browser, "quiz-rules.js", code, QUESTIONS, right, some) == [0, 0, 0, 5]
    # What was kept by another version of the page is let go.
    code = "return m.known(g[0], g[1])"
    kept = {first: 1, second: 7, "other": 0}
    assert called(browser, "quiz-rules.js", code, QUESTIONS, kept) == {first: 1}


def said(page: Chrome) -> str:
    return page.find_element(By.CSS_SELECTOR, "[role=status]").text


@pytest.mark.slow
def test_the_quiz_by_keyboard_alone(browser: Chrome, site: str, orders: list[list[int]]) -> None:
    page = fresh(browser, f"{site}/guide/quiz.html", "#quiz-page form")
    keyboard = Keyboard(page)
    wrong = {3, 17}
    for number, (question, order) in enumerate(zip(QUESTIONS, orders, strict=True)):
        if number in wrong:
            place = next(n for n in range(4) if not question["answers"][order[n]]["right"])
        else:
            place = next(n for n in range(4) if question["answers"][order[n]]["right"])
        keyboard.reach("at.name === 'answer'")
        keyboard.send(Keys.SPACE, *[Keys.ARROW_DOWN] * place, Keys.ENTER)
        answer = there(page, "#quiz-page [tabindex='-1']")
        assert answer == page.switch_to.active_element
        assert answer.text == ("That is wrong." if number in wrong else "That is right.")
        reasons = there(page, "#quiz-page ol").text
        assert all(of["reason"].replace("`", "") in reasons for of in question["answers"])
        if number == 4:
            assert said(page) == "That is right. 5 of 30 answered, 4 right."
        if number < len(QUESTIONS) - 1:
            keyboard.press("Next")
    assert said(page).endswith("30 of 30 answered, 28 right.")
    page.refresh()
    there(page, "#quiz-page h3")
    assert said(page) == "30 of 30 answered, 28 right."
    read = page.find_elements(By.CSS_SELECTOR, "#quiz-page section li")
    assert len(read) == len(wrong)
    for item, number in zip(read, sorted(wrong), strict=True):
        assert QUESTIONS[number]["question"].replace("`", "") in item.text
        assert item.find_elements(By.CSS_SELECTOR, ".shown a")
    keyboard = Keyboard(page)
    keyboard.press("Forget all answers")
    assert said(page) == "0 of 30 answered, 0 right."
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
    forgetful.get(f"{site}/guide/quiz.html")
    there(forgetful, "#quiz-page input").click()
    there(forgetful, "#quiz-page [type=submit]").click()
    assert "1 of 30 answered" in said(forgetful)
    forgetful.get(f"{site}/guide/checklists.html")
    there(forgetful, ".checked input").click()
    assert said(forgetful).startswith("1 of ")
    forgetful.get(f"{site}/guide/sketch.html")
    there(forgetful, "#sketch [data-add=raw]").click()
    assert there(forgetful, "#sketch [data-kind=raw]")


def test_each_item_of_a_checklist_names_a_command_and_what_shows_it() -> None:
    assert len(LISTS) == 5
    items = [item for of in LISTS.values() for item in of]
    assert len(items) > 40
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
    titles = [re.split(r"\*\*", item)[1] for of in LISTS.values() for item in of]
    assert len({*titles}) == len(titles)


@pytest.mark.slow
def test_checklists_keep_their_state(browser: Chrome, site: str) -> None:
    page = fresh(browser, f"{site}/guide/checklists.html", ".checked input")
    keyboard = Keyboard(page)

    def counts() -> list[str]:
        return [one.text for one in page.find_elements(By.CSS_SELECTOR, "[role=status]")]

    sizes = [len(items) for items in LISTS.values()]
    assert counts() == [f"0 of {size} done." for size in sizes]
    keyboard.reach("at.type === 'checkbox' && at.closest('.checked')")
    keyboard.send(Keys.SPACE)
    # Its words are a part of the box.
    page.find_elements(By.CSS_SELECTOR, ".checked label strong")[sizes[0] + 1].click()
    expected = [f"1 of {sizes[0]} done.", f"1 of {sizes[1]} done."]
    assert counts()[:2] == expected
    page.refresh()
    there(page, ".checked input")
    assert counts()[:2] == expected
    boxes = page.find_elements(By.CSS_SELECTOR, ".checked input")
    assert [n for n, box in enumerate(boxes) if box.is_selected()] == [0, sizes[0] + 1]
    (first, *_) = LISTS
    keyboard = Keyboard(page)
    keyboard.press(f'Clear "{first}"')
    assert counts()[:2] == [f"0 of {sizes[0]} done.", expected[1]]
    page.refresh()
    there(page, ".checked input")
    assert counts()[:2] == [f"0 of {sizes[0]} done.", expected[1]]


@pytest.mark.slow
def test_checklists_can_be_read_without_javascript(browser: Chrome, site: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(f"{site}/guide/checklists.html")
        items = browser.find_elements(By.CSS_SELECTOR, "article li strong")
        assert len([one for one in items if one.text]) == sum(map(len, LISTS.values()))
        assert not browser.find_elements(By.CSS_SELECTOR, "article input")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
