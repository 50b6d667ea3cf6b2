"""The simulators of the guide in a browser: their rules asked directly, their pages by keyboard."""

from __future__ import annotations

from typing import Any

from selenium.webdriver import ActionChains, Chrome, Keys

#: What a control is called: its label, or what stands on it.
_NAME = """
const at = document.activeElement;
return at.labels && at.labels.length ? at.labels[0].textContent
  : at.getAttribute("aria-label") || at.textContent;
"""
_FIRST = "document.querySelector('h1 .headerlink').focus()"
#: No simulator has more controls that TAB stops at.
_MOST = 40


def rules(browser: Chrome, module: str, body: str, *given: object) -> Any:
    """What the rules of a simulator say.

    Args:
        browser: looks at a page of the guide.
        module: the module of the rules.
        body: of a function in JavaScript, of `m`, the module, and `g`, the list of what is given.
        given: what JSON can say.

    Raises:
        AssertionError: the rules raise an error, or the module is not there.
    """
    told = browser.execute_async_script(
        "const [module, g, done] = arguments;"
        f"const ask = (m) => {{ {body} }};"
        "import(new URL(module, location)).then((m) => done({ value: ask(m) }))"
        ".catch((error) => done({ error: String(error.stack) }));",
        f"./{module}",
        given,
    )
    assert "error" not in told, told["error"]
    return told["value"]


class Keyboard:
    """The simulator of a page, used by keyboard alone."""

    def __init__(self, browser: Chrome, address: str) -> None:
        self._browser = browser
        browser.get(address)

    def reach(self, name: str) -> None:
        """TAB from the head of the page to a control.

        Raises:
            AssertionError: TAB does not stop there.
        """
        self._browser.execute_script(_FIRST)
        for _ in range(_MOST):
            self.send(Keys.TAB)
            if self._browser.execute_script(_NAME) == name:
                return
        raise AssertionError(f"TAB does not come to {name}")

    def press(self, name: str, *keys: str) -> None:
        """Go to a control, and press keys there; SPACE, if none are given."""
        self.reach(name)
        self.send(*(keys or (Keys.SPACE,)))

    def choose(self, name: str, option: str) -> None:
        """Go to a list, and choose an option of it."""
        self.press(name, Keys.HOME)
        for _ in range(_MOST):
            chosen = self._browser.execute_script(
                "return document.activeElement.selectedOptions[0].textContent"
            )
            if chosen == option:
                return
            self.send(Keys.ARROW_DOWN)
        raise AssertionError(f"{name} has no option {option}")

    def send(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self._browser, duration=0).send_keys(*keys).perform()

    @property
    def said(self) -> str:
        """What a screen reader was told last."""
        return self._read("[role=status]")

    @property
    def text(self) -> str:
        """All that the simulator shows."""
        return self._read("#simulator")

    def _read(self, selector: str) -> str:
        return self._browser.execute_script(
            "return document.querySelector(arguments[0]).innerText", selector
        )
