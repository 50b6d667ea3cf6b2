"""The simulators of the guide in a browser, used by keyboard alone."""

from __future__ import annotations

from selenium.webdriver import Chrome, Keys

from backfill_assets_tests.ui.guide_pages import MOST, Keyboard

#: The page that has all of them, and the sketch and the quiz.
PAGE = "guide/simulators.html"
#: What a control is called: its label, or what stands on it.
_NAME = """(at.labels && at.labels.length ? at.labels[0].textContent
    : at.getAttribute("aria-label") || at.textContent)"""


class Simulator(Keyboard):
    """One of the simulators of the page.

    Attributes:
        root: the selector of what it is in.
    """

    def __init__(self, browser: Chrome, site: str, root: str, heading: str) -> None:
        browser.get(f"{site}/{PAGE}")
        super().__init__(browser, heading)
        self.root = root

    def go_to(self, name: str) -> None:
        """TAB from the heading to a control.

        Raises:
            AssertionError: TAB does not stop there.
        """
        self.focus_heading()
        self.tab_to(f"at.closest({self.root!r}) && {_NAME} === {name!r}")

    def press_at(self, name: str, *keys: str) -> None:
        """Go to a control, and press keys there; SPACE, if none are given."""
        self.go_to(name)
        self.press_keys(*(keys or (Keys.SPACE,)))

    def choose_option(self, name: str, option: str) -> None:
        """Go to a list, and choose an option of it.

        Raises:
            AssertionError: there is no such list, or no such option.
        """
        self.press_at(name, Keys.HOME)
        for _ in range(MOST):
            chosen = self.page.execute_script(
                "return document.activeElement.selectedOptions[0].textContent"
            )
            if chosen == option:
                return
            self.press_keys(Keys.ARROW_DOWN)
        raise AssertionError(f"{name} has no option {option}")

    @property
    def status_text(self) -> str:
        """What a screen reader was told last."""
        return self._inner_text(f"{self.root} [role=status]")

    @property
    def visible_text(self) -> str:
        """All that the simulator shows."""
        return self._inner_text(self.root)

    def _inner_text(self, selector: str) -> str:
        return self.page.execute_script(
            "return document.querySelector(arguments[0]).innerText", selector
        )
