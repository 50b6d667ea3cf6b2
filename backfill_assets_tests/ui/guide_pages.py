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


def called(browser: Chrome, site: str, module: str, code: str, *given: object) -> Any:
    """What JavaScript gives that has a module of the guide as `of`, and what is given as `args`.

    The browser looks at a page of the guide.

    Raises:
        AssertionError: the module is not there, or the code raises an error.
    """
    script = f"""
        const [module, args, done] = arguments;
        import(module).then((of) => {code})
            .then((value) => done({{ value }}), (error) => done({{ error: String(error) }}));
    """
    found = browser.execute_async_script(script, f"{site}/guide/{module}", list(given))
    assert "error" not in found, found["error"]
    return found["value"]


def there(page: Chrome, selector: str) -> WebElement:
    """The first element that a selector of CSS finds, as soon as it is there."""
    return WebDriverWait(page, 10).until(
        lambda _: next(iter(page.find_elements(By.CSS_SELECTOR, selector)), None)
    )


def fresh(browser: Chrome, address: str, selector: str) -> Chrome:
    """A page of which the browser has kept nothing, once an element is there."""
    browser.get(address)
    browser.execute_script("localStorage.clear()")
    browser.get(address)
    there(browser, selector)
    return browser


def links_of(browser: Chrome, site: str, shown: Iterable[str]) -> list[str]:
    """The addresses that texts of `Shown by:` lead to, as the pages have them."""
    code = "args[0].flatMap((by) => [...of.shown(by).querySelectorAll('a')].map((a) => a.href))"
    return cast("list[str]", called(browser, site, "shown.js", code, list(shown)))


def leading_nowhere(browser: Chrome, links: Iterable[str]) -> list[str]:
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
    """A page that is used by keyboard alone, from its title on.

    Attributes:
        page: the browser that shows it.
    """

    def __init__(self, page: Chrome) -> None:
        self.page = page
        page.execute_script("document.querySelector('h1 .headerlink').focus()")

    def send(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self.page, duration=0).send_keys(*keys).perform()

    def reach(self, what: str) -> None:
        """TAB to an element of which this JavaScript is true, with `at` for it.

        Raises:
            AssertionError: TAB does not stop there.
        """
        script = f"const at = document.activeElement; return Boolean({what});"
        for _ in range(MOST):
            self.send(Keys.TAB)
            if self.page.execute_script(script):
                return
        raise AssertionError(f"TAB does not come to {what}")

    def press(self, text: str) -> None:
        """TAB to the button with this text, and press it."""
        self.reach(f"at.tagName === 'BUTTON' && at.textContent === '{text}'")
        self.send(Keys.ENTER)
