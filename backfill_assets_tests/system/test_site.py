"""The pages of the documentation in a browser: each is light, whole, local and readable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome

from backfill_assets_tests.helpers.docs_site import load_hooks, site_in
from backfill_assets_tests.helpers.paths import PROJECT

DOCS = PROJECT / "docs"
PAGES = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md"))
#: A page of text, one of code that is generated, and the heaviest of those with scripts.
FEW = ("index", "tables", "guide/simulators")
#: What a page may weigh with all that it asks for, in bytes as they are sent (compressed).
MOST = 500_000
WIDTH = 420
_FOLDED = '<details class="shown"><summary>Shown by</summary>{}</details>'


def _request_sizes(browser: Chrome) -> dict[str, int]:
    """What was asked of the network since the last look, with the bytes that came."""
    urls: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        params = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            urls[params["requestId"]] = params["request"]["url"]
        elif event["method"] == "Network.loadingFinished":
            sizes[params["requestId"]] = int(params["encodedDataLength"])
    return {url: sizes.get(request, 0) for request, url in urls.items()}


@pytest.fixture
def narrow(browser: Chrome) -> Iterator[Chrome]:
    """The browser as wide as a phone, in the dark."""
    shape = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})


@pytest.mark.parametrize(
    "page", [p if p in FEW else pytest.param(p, marks=pytest.mark.slow) for p in PAGES]
)
def test_a_page_is_small_local_and_fits_a_phone(narrow: Chrome, site: str, page: str) -> None:
    narrow.get_log("performance")
    narrow.get_log("browser")
    narrow.get(f"{site}/{page}.html")
    requests = {
        url: size for url, size in _request_sizes(narrow).items() if not url.startswith("data:")
    }
    assert {urlsplit(url).netloc for url in requests} == {urlsplit(site).netloc}
    assert sum(requests.values()) <= MOST, requests
    assert narrow.execute_script("return document.documentElement.scrollWidth") <= WIDTH
    shade = narrow.execute_script("return getComputedStyle(document.body).backgroundColor")
    red, green, blue = map(int, shade.removeprefix("rgb(").rstrip(")").split(",")[:3])
    assert max(red, green, blue) < 100, f"the page is light in the dark: {shade}"
    errors = [entry["message"] for entry in narrow.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_what_shows_a_claim_is_folded_without_a_script(tmp_path: Path) -> None:
    folder = site_in(tmp_path) / "guide"
    folded = 0
    for page in (DOCS / "guide").glob("*.md"):
        lines = re.findall(r"^Shown by: ", page.read_text(), re.MULTILINE)
        html = (folder / page.with_suffix(".html").name).read_text()
        assert html.count('<details class="shown"><summary>') == len(lines), page.name
        assert "Shown by:" not in html
        folded += len(lines)
    assert folded > 60


@pytest.mark.parametrize(
    ("html", "folded"),
    [
        ("<p>Shown by: x</p>", "{}"),
        ("<p>a\nShown by: x</p>\n<p>b</p>", "<p>a</p>\n{}\n<p>b</p>"),
        ("<li>a\nShown by: x</li>\n<li>b</li>", "<li>a{}</li>\n<li>b</li>"),
        ("<li>\n<p>a\nShown by: x</p>\n</li>", "<li>\n<p>a</p>\n{}\n</li>"),
        ("<li>a\nShown by: x<ul>\n<li>b</li></ul></li>", "<li>a{}<ul>\n<li>b</li></ul></li>"),
        ("<li>a\nShown by: x\n<ol>\n<li>b</li></ol></li>", "<li>a{}\n<ol>\n<li>b</li></ol></li>"),
        (
            "<li>a\nShown by: x</li></ul><p>b\nShown by: y</p>",
            "<li>a{}</li></ul><p>b</p>\n" + _FOLDED.format("y"),
        ),
    ],
)
def test_what_is_folded_ends_with_its_paragraph_or_before_a_list(html: str, folded: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guide/a.md"))
    assert load_hooks().on_page_content(html, page) == folded.replace("{}", _FOLDED.format("x"))
