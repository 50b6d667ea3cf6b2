"""The search of the site finds every word of the glossary, and the page that answers a question."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from backfill_assets_tests.helpers.glossary import ROWS, Row

#: So many pages are looked at from the top of the results.
FIRST = 8
#: By question of a reader, the page that answers it.
QUESTIONS = {
    "backfill a range": "runbook.html",
    "add a column": "schema-changes.html",
    "getting started": "getting-started.html",
    "catalog": "object-storage.html",
}
#: On no page.
UNUSED = "quixotically"
#: Answers of the site's own search, by the worker that its search box asks: for each query, the
#: pages in the order of the results.
SEARCH = """
const [queries, done] = arguments;
const settings = JSON.parse(document.getElementById("__config").textContent);
const index = await (await fetch(new URL("search/search_index.json", location))).json();
const worker = new Worker(new URL(settings.search, location));
const asked = (message) => new Promise((answer) => {
  worker.onmessage = (event) => answer(event.data);
  worker.postMessage(message);
});
await asked({ type: 0, data: { ...index, options: {} } });
const found = [];
for (const query of queries) {
  const { data } = await asked({ type: 2, data: query });
  found.push(data.items.map((sections) => sections[0].location.split("#")[0]));
}
worker.terminate();
done(found);
"""


@pytest.fixture(scope="module")
def found(browser: Chrome, site: str) -> dict[str, list[str]]:
    """The pages that a search for each word leads to."""
    queries = [UNUSED, *QUESTIONS, *(term for row in ROWS for term in row.terms)]
    browser.set_script_timeout(60)
    browser.get(f"{site}/index.html")
    script = f"(async (...arguments) => {{{SEARCH}}})(...arguments)"
    return dict(zip(queries, browser.execute_async_script(script, queries), strict=True))


def _expected_pages(row: Row) -> Iterator[str]:
    """The glossary, and the pages that a row leads to."""
    yield "glossary.html"
    for link in re.findall(r"\]\(([\w/-]+)\.md", f"{row.meaning} {row.where}"):
        yield f"{link}.html"


def test_every_word_leads_to_the_glossary_or_to_its_page(found: dict[str, list[str]]) -> None:
    assert len(found) > 100
    missing = {
        term: found[term][:FIRST]
        for row in ROWS
        for term in row.terms
        if not set(found[term][:FIRST]) & set(_expected_pages(row))
    }
    assert missing == {}


def test_a_question_leads_to_the_page_that_answers_it(found: dict[str, list[str]]) -> None:
    assert {question: found[question][:1] for question in QUESTIONS} == {
        question: [page] for question, page in QUESTIONS.items()
    }


def test_a_word_that_nobody_uses_is_not_found(found: dict[str, list[str]]) -> None:
    assert found[UNUSED] == []


@pytest.mark.slow
def test_a_word_is_typed_and_its_result_followed(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/index.html")
    wait = WebDriverWait(browser, 20)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "[data-md-component=search-query]"))
    browser.execute_script("document.querySelector('label[for=__search]').click()")
    wait.until(lambda _: browser.switch_to.active_element.get_attribute("type") == "text")
    browser.switch_to.active_element.send_keys("watermark")
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
    links = browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    pages = [str(link.get_attribute("href")) for link in links]
    assert any("/glossary.html" in page or "/late-data.html" in page for page in pages), pages
