"""The pages of the guide in a browser: modules asked, links followed, keys pressed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

#: No page has more controls that TAB stops at.
MOST = 150


def call_module(browser: Chrome, module: str, body: str, *arguments: object) -> Any:
    """What a module of the guide says.

    Args:
        browser: looks at a page of the guide.
        module: the module.
        body: of a function in JavaScript, of `m`, the module, and `g`, the list of what is given.
        arguments: what JSON can say.

    Raises:
        AssertionError: the code raises an error, or the module is not there.
    """
    answer = browser.execute_async_script(
        "const [module, g, done] = arguments;"
        f"const ask = (m) => {{ {body} }};"
        "import(new URL(module, location)).then((m) => done({ value: ask(m) }))"
        ".catch((error) => done({ error: String(error.stack) }));",
        f"./{module}",
        arguments,
    )
    assert "error" not in answer, answer["error"]
    return answer["value"]


def wait_for_element(page: Chrome, selector: str) -> WebElement:
    """The first element that a selector of CSS finds, as soon as it is there."""
    return WebDriverWait(page, 10).until(
        lambda _: next(iter(page.find_elements(By.CSS_SELECTOR, selector)), None)
    )


def open_fresh_page(browser: Chrome, address: str, selector: str) -> Chrome:
    """A page of which the browser has kept nothing, once an element is there."""
    browser.get(address)
    browser.execute_script("localStorage.clear()")
    browser.get(address)
    wait_for_element(browser, selector)
    return browser


def links_of(browser: Chrome, shown: Iterable[str]) -> list[str]:
    """The addresses that texts of `Shown by:` lead to, as the pages have them."""
    code = "return g.flatMap((by) => [...m.shown(by).querySelectorAll('a')].map((a) => a.href))"
    return cast("list[str]", call_module(browser, "shown.js", code, *shown))


def find_broken_links(browser: Chrome, links: Iterable[str]) -> list[str]:
    """Those of some addresses whose page is not there, or has no element of that name."""
    script = """
        const [links, done] = arguments;
        const there = async (link) => {
            const [page, anchor] = link.split("#");
            const answer = await fetch(page);
            const text = await answer.text();
            return answer.ok && (anchor === undefined || text.includes(`id="${anchor}"`));
        };
        Promise.all(links.map(async (link) => [link, await there(link)]))
            .then((all) => done(all.filter(([, ok]) => !ok).map(([link]) => link)));
    """
    return cast("list[str]", browser.execute_async_script(script, sorted({*links})))


class Keyboard:
    """A page that is used by keyboard alone, from one of its headings on.

    Attributes:
        page: the browser that shows it.
        heading: the selector of the heading.
    """

    def __init__(self, page: Chrome, heading: str = "h1") -> None:
        self.page = page
        self.heading = heading
        self.focus_heading()

    def focus_heading(self) -> None:
        """Go to the heading."""
        self.page.execute_script(
            "document.querySelector(arguments[0]).focus()", f"{self.heading} .headerlink"
        )

    def press_keys(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self.page, duration=0).send_keys(*keys).perform()

    def tab_to(self, what: str) -> None:
        """TAB to an element of which this JavaScript is true, with `at` for it.

        Raises:
            AssertionError: TAB does not stop there.
        """
        script = f"const at = document.activeElement; return Boolean({what});"
        for _ in range(MOST):
            self.press_keys(Keys.TAB)
            if self.page.execute_script(script):
                return
        raise AssertionError(f"TAB does not come to {what}")

    def press_button(self, text: str) -> None:
        """TAB to the button with this text, and press it."""
        self.tab_to(f"at.tagName === 'BUTTON' && at.textContent === '{text}'")
        self.press_keys(Keys.ENTER)
