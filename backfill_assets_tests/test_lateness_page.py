"""The lateness page and its advice, from rows that need no Spark."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from html.parser import HTMLParser
from math import ceil
from random import Random

import pyarrow as pa
import pytest

from backfill_assets.calendar.late_data import total_within
from backfill_assets.calendar.partitions import DAY
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring import lateness_page
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.settings import load_settings
from backfill_assets.spark.filesystems import replace_file
from backfill_assets_guide.examples import regions
from backfill_assets_guide.examples.web_events import VISITS
from backfill_assets_tests.helpers.orders_model import by_delay
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import day

UI = "http://dagster:3000"


def lateness_table(
    days: int = 1, delays: tuple[int, ...] = (0,) * 997 + (1, 3, 9), **changed
) -> pa.Table:
    """Rows of the table: so many days with the same delays each, and amounts of 1."""
    return pa.Table.from_pylist(
        [lateness_row(day(n), delays) | changed for n in range(1, days + 1)]
    )


def lateness_row(log_day: date, delays: Sequence[int], amounts: Sequence[Decimal] = ()) -> dict:
    """One row of the table, of lines with these delays; each has an amount of 1 unless given."""
    late = sorted(delay for delay in delays if delay)
    beyond = sum(delay > 7 for delay in late)

    def percentile(percent: int) -> int | None:
        return late[ceil(len(late) * percent / 100) - 1] if late else None

    return {
        "log_date": log_day,
        "lines": len(delays),
        "late_lines": len(late),
        "late_amount": Decimal(len(late)),
        "beyond_lines": beyond,
        "beyond_amount": Decimal("1234.50") * beyond,
        "superseded_lines": 4,
        "rejected_lines": 1,
        "delay_days_p50": percentile(50),
        "delay_days_p95": percentile(95),
        "delay_days_max": percentile(100),
        **by_delay(zip(amounts or [Decimal(1)] * len(delays), delays, strict=True)),
    }


class Reader(HTMLParser):
    """The text outside of styles, the tags, and every attribute with its tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self.attributes, self.tags, self.inside = [], [], set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r" (?=[.,;])", "", " ".join(" ".join(self.words).split()))


def render_page(rows: pa.Table, window_days: int = 7, version: int = 2, **overrides) -> str:
    """The page of a deployment with these settings."""
    settings = load_settings(window_days=window_days, **{"ui_url": UI} | overrides)
    return lateness_page.render_page(
        rows, ORDER_LINES, Deployment(settings), version, settings.ui_url
    )


def test_the_page_needs_nothing_from_elsewhere():
    reader = Reader(render_page(lateness_table(15)))
    assert not [a for a in reader.attributes if a[1] in ("src", "srcset", "data", "action")]
    assert {tag for tag, name, _ in reader.attributes if name == "href"} == {"a"}
    assert not reader.tags & {"link", "img", "iframe", "object", "script", "use"}
    (policy,) = [v for tag, _, v in reader.attributes if v and v.startswith("default-src")]
    assert policy == (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


def test_the_templates_are_part_of_the_package():
    package = PROJECT / "backfill_assets"
    project = (PROJECT / "pyproject.toml").read_text()
    (patterns,) = re.findall(r"^backfill_assets = (\[.*\])$", project, re.MULTILINE)
    packaged = {path for pattern in json.loads(patterns) for path in package.glob(pattern)}
    whole = ("scaffold", "deploy")
    assert packaged >= {
        package / "py.typed",
        *(p for name in whole for p in (package / name).iterdir()),
    }
    assert packaged >= set(package.rglob("*.j2"))


def test_the_links_lead_to_the_ui():
    reader = Reader(render_page(lateness_table(3), 2, ui_url="https://dagster.example/a&b/"))
    assert {value for _, name, value in reader.attributes if name == "href"} == {
        f"https://dagster.example/a&b/assets/{path}"
        for path in (
            "arrival_lateness",
            "arrival_lateness?view=partitions",
            "late_orders",
            "raw_orders_rejected",
            "lateness_dashboard",
        )
    }


def test_the_page_of_a_part_leads_to_the_asset_of_all_parts():
    settings, source = load_settings(window_days=7), regions.ORDERS.parts["eu"]
    rows = lateness_table(3, region="eu")
    reader = Reader(lateness_page.render_page(rows, source, Deployment(settings), 2, UI))
    assert "How late do the lines of orders/eu arrive?" in reader.text
    assert {value for _, name, value in reader.attributes if name == "href"} == {
        f"{UI}/assets/{path}"
        for path in (
            *("orders_lateness", "orders_lateness?view=partitions", "late_orders"),
            *("raw_orders_rejected", "orders_lateness_dashboard_eu"),
        )
    }


def test_the_page_is_as_of_the_newest_log_day():
    text = Reader(render_page(lateness_table(3).take([2, 0, 1]), timezone="Europe/Berlin")).text
    assert (
        "As of log day 2024-01-03, the newest measured; days are those of the time zone "
        "Europe/Berlin."
    ) in text


def test_the_same_table_gives_the_same_page():
    rows = lateness_table(3)
    assert render_page(rows) == render_page(rows.take([2, 0, 1]))


def test_a_page_of_many_years_is_small():
    chosen, rows = Random(1), []
    for n in range(1, 2_000):
        counts = [chosen.randint(10**6, 10**7) for _ in range(12)]
        record = lateness_row(day(n), range(12))
        record |= {"lines": sum(counts), "late_lines": sum(counts[1:]), "lines_by_delay": counts}
        record |= {"superseded_lines": chosen.randint(0, 10**7), "rejected_lines": counts[0]}
        rows.append(record)
    page = render_page(pa.Table.from_pylist(rows))
    assert len(page.encode()) < 500_000
    text = Reader(page).text
    assert "on 1,999 log days." in text
    assert "The pictures by log day, and their tables, are of the newest 1,096 log days." in text
    late = read_pictures(page)["late"]
    assert (late.keys[0], late.keys[-1]) == (str(day(904)), str(day(1_999)))


@dataclass(frozen=True)
class Picture:
    """A picture as a browser gets it: its paths by their looks, and its table."""

    text: str

    @property
    def paths(self) -> dict[str, str]:
        svg = self.text.partition("<svg viewBox")[2].partition("</svg>")[0]
        return dict(re.findall(r'<path class="([^"]+)" d="([^"]*)"/>', svg))

    @property
    def keys(self) -> list[str]:
        return re.findall(r'<tr><th scope="row">([^<]*)', self.text)

    @property
    def columns(self) -> dict[str, list[str]]:
        """The cells of the table by the heads of its columns."""
        rows = re.findall(r'<tr><th scope="row">[^<]*((?:<td>[^<]*)+)', self.text)
        split = ([cell.strip() for cell in row.split("<td>")[1:]] for row in rows)
        heads = re.findall(r'<th scope="col">([^<]*)', self.text)[1:]
        return dict(zip(heads, map(list, zip(*split, strict=True)), strict=True))

    def value(self, y: str) -> float:
        """What the vertical axis, which is not logarithmic, says of a height."""
        ticks = re.findall(r'<text x="-8" y="([\d.]+)%"[^>]*>([\d.,]+)', self.text)
        (y0, low), (y1, high) = (
            (float(at), float(text.replace(",", ""))) for at, text in (ticks[0], ticks[-1])
        )
        return low + (float(y) - y0) / (y1 - y0) * (high - low)

    def bars(self, look: str) -> dict[str, float]:
        """The lengths of the bars by log day."""
        matches = re.findall(r"M(\d+) ([\d.]+)V([\d.]+)", self.paths[look])
        return {self.day(n): self.value(top) - self.value(foot) for n, foot, top in matches}

    def dots(self, look: str) -> dict[str, float]:
        matches = re.findall(r"M(\d+) ([\d.]+)h0", self.paths[look])
        return {self.day(n): self.value(y) for n, y in matches}

    def day(self, n: str) -> str:
        return str(date.fromisoformat(self.keys[0]) + int(n) * DAY)


def read_pictures(page: str) -> dict[str, Picture]:
    figures = re.findall(r'<figure id="(\w+)">(.*?)</figure>', page, re.DOTALL)
    return {name: Picture(text) for name, text in figures}


def test_each_picture_has_its_words_and_its_table():
    figures = read_pictures(render_page(pa.Table.from_pylist(delayed_days(30, older=True))))
    assert list(figures) == ["windows", "late", "delays", "superseded", "rejected"]
    for name, picture in figures.items():
        assert (
            f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-about"'
        ) in picture.text
        assert re.search(rf'<title id="{name}-title">\w', picture.text)
        assert re.search(rf'<desc id="{name}-about">\w', picture.text)
        assert len(picture.keys) == (15 if name == "windows" else 30)
        assert {len(cells) for cells in picture.columns.values()} == {len(picture.keys)}
        assert re.search(r"<caption>\w", picture.text)


def some_days() -> list[dict]:
    """Log days as they may come: one without lines, one without late ones, one not measured."""
    chosen = Random(2)
    days = {n: [chosen.choice([0, 0, 0, 1, 2, 5, 9]) for _ in range(40)] for n in range(1, 40)}
    days |= {4: [], 5: [0, 0]}
    del days[7]
    rejected = {"rejected_lines": 0, "superseded_lines": 700}
    return [
        lateness_row(day(n), delays) | (rejected if n % 3 else {}) for n, delays in days.items()
    ]


def test_the_pictures_by_log_day_have_the_numbers_of_their_tables():
    rows = some_days()
    figures = read_pictures(render_page(pa.Table.from_pylist(rows)))
    late = [(r["late_lines"] - r["beyond_lines"], r["beyond_lines"]) for r in rows]
    expected = {
        ("late", "late, within the window of 7 days", "bar sky"): [n for n, _ in late],
        ("late", "beyond the window", "bar red"): [n for _, n in late],
        ("delays", "longest", "bar pale"): [r["delay_days_max"] for r in rows],
        ("delays", "95 % are this late at most", "square orange"): [
            r["delay_days_p95"] for r in rows
        ],
        ("delays", "half are this late at most (median)", "dot blue"): [
            r["delay_days_p50"] for r in rows
        ],
        ("superseded", "superseded versions", "bar blue"): [r["superseded_lines"] for r in rows],
        ("rejected", "rejected lines", "bar orange"): [r["rejected_lines"] for r in rows],
    }
    assert {(name, head) for name, head, _ in expected} == {
        (name, head)
        for name, picture in figures.items()
        if name != "windows"
        for head in picture.columns
    }
    days = [str(r["log_date"]) for r in rows]
    for (name, head, look), values in expected.items():
        picture = figures[name]
        assert picture.keys == days
        assert picture.columns[head] == ["none" if n is None else str(n) for n in values]
        marks = picture.bars(look) if look.startswith("bar") else picture.dots(look)
        shown = {d: n for d, n in zip(days, values, strict=True) if n}
        assert marks == pytest.approx(shown, rel=0.01, abs=0.2)


def test_the_picture_of_windows_has_the_numbers_of_its_table():
    rows = delayed_days(30, older=True)
    picture = read_pictures(render_page(pa.Table.from_pylist(rows)))["windows"]
    known = lateness_page.lateness_figures(rows, 7)
    assert picture.keys == [str(w) for w in range(15)]
    for head, weights, look in (
        ("lines", known.lines, "dot blue"),
        ("money", known.cents, "square orange"),
    ):
        shares = [100 * total_within(weights, w) / sum(weights.values()) for w in range(15)]
        shown = [float(cell.removesuffix(" %")) for cell in picture.columns[head]]
        assert shown == pytest.approx(shares, abs=0.01)
        marks = re.findall(r"M\d+ ([\d.]+)h0", picture.paths[look])
        assert [picture.value(y) for y in marks] == pytest.approx(shares, abs=0.01)
    assert picture.paths["dashes red"] == "M7 0V100"
    assert picture.paths["dashes green"] == "M12 0V100"


def luminance(colour: str) -> float:
    """Of a colour #rrggbb, as WCAG defines it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_have_contrast():
    light, dark = render_page(lateness_table()).split("@media (prefers-color-scheme: dark)")
    for scheme in (light, dark.partition("body {")[0]):
        colours = dict(re.findall(r"--(\w+): (#\w{6});", scheme))
        assert len(colours) == 14

        def contrast(first: str, other: str, colours: dict[str, str] = colours) -> float:
            lights = sorted(luminance(colours[name]) + 0.05 for name in (first, other))
            return lights[1] / lights[0]

        for ground in ("page", "said", "note"):
            assert min(contrast(text, ground) for text in ("ink", "soft", "link")) > 4.5
        marks = ("blue", "sky", "orange", "red", "green", "grey")
        assert min(contrast(mark, "page") for mark in marks) > 3
        assert min(contrast(mark, "pale") for mark in ("blue", "orange", "grey")) > 3


def test_sums_of_large_amounts_have_every_cent():
    most = Decimal("9" * 32 + ".99")
    rows = [
        lateness_row(day(n), (0, 9)) | {"beyond_amount": most, "amount_by_delay": [most, most]}
        for n in range(1, 64)
    ]
    cents = lateness_page.lateness_figures(rows, 7).cents
    assert {*cents} == {0, 9}
    assert all(amount % (10**34 - 1) == 0 for amount in cents.values())
    assert f">{63 * 10**32 - 1:,}.37<" in render_page(pa.Table.from_pylist(rows))


def test_a_source_without_amounts_has_no_money():
    settings = load_settings(window_days=7, ui_url=UI)
    rows = lateness_table(24, amount_by_delay=[Decimal(0)] * 4)
    text = Reader(lateness_page.render_page(rows, VISITS, Deployment(settings), 2, UI)).text
    assert "amounts that add up" not in text
    assert "money" not in text.lower()
    assert "How late do the lines of visits arrive?" in text


def test_lateness_counts_from_when_lines_usually_arrive():
    rows = delayed_days(40, older=True)
    next_day = [record | {"delays": [delay + 1 for delay in record["delays"]]} for record in rows]
    source = replace(ORDER_LINES, arrives_after=1)
    settings = load_settings(window_days=7, ui_url=UI)
    text = Reader(
        lateness_page.render_page(
            pa.Table.from_pylist(next_day), source, Deployment(settings), 2, UI
        )
    ).text
    default_text = Reader(render_page(pa.Table.from_pylist(rows))).text
    assert "later than 1 day after its event day, when lines of this source usually arrive" in text
    shares = "The configured window of 7 days catches 99.10 % of the lines"
    assert shares in default_text
    assert shares in text
    assert "it takes 9 days" in default_text
    assert "it takes 9 days" in text
    assert "logged more than 8 days after its event day" in text


def test_the_page_says_its_figures():
    text = Reader(render_page(lateness_table(24))).text
    for phrase in (
        "Log days 2024-01-01 to 2024-01-24, from version 2 of arrival_lateness.",
        "24,000 lines on 24 log days. 0.30 % (72) came late; 0.10 % (24) came after the window of "
        "7 days had closed, with amounts that add up to 29,628.00. 96 lines made another version "
        "obsolete; 24 more lines could not be read and were rejected.",
        "A window of 3 days catches 99.9 % of the lines, and no shorter one does. For 99 % it "
        "takes 0 days. A window of 3 days catches 99.9 % of the money, and no shorter one does. "
        "For 99 % it takes 0 days. The configured window of 7 days catches 99.90 % of the lines "
        "and 99.90 % of the money; 10 lines came after it. All shares are of the 10,000 lines of "
        "the 10 event days 2024-01-01 to 2024-01-10: the days that are measured together with the "
        "14 log days after them",
    ):
        assert phrase in text
    assert "not measured" not in text
    assert "another window" not in text


#: Of an event day's 2,000 lines 2 % come late, over 1 to 12 days: three with each delay, four with
#: 7 to 10 days. So a window of 6 days misses 22 of them and one of 7 days 18; 20 are 1 %.
DELAYS = [0] * 1960 + [(n + 6) % 12 + 1 for n in range(40)]


def delayed_days(history: int, *, older: bool) -> list[dict]:
    """Log days of a source whose lines are late as `DELAYS` says.

    Late lines have twice the amount of others, and half of them are refunds.

    Args:
        history: how many log days.
        older: whether the source is older than its log; otherwise no line is of a day before.
    """
    logged = defaultdict(list)
    for order_day in range(-30 if older else 1, history + 1):
        for n, delay in enumerate(DELAYS):
            amount = Decimal(1) if not delay else Decimal(2) * (-1) ** n
            logged[order_day + delay].append((amount, delay))
    return [
        lateness_row(day(n), [delay for _, delay in logged[n]], [amount for amount, _ in logged[n]])
        for n in range(1, history + 1)
    ]


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("history", [15, 16, 30, 40])
def test_the_advice_is_the_true_window_from_the_first_day_that_can_tell(history, older):
    rows = delayed_days(history, older=older)
    known = lateness_page.lateness_figures(rows, 7)
    assert known.days == list(map(day, range(1, history - 13)))
    assert known.lines == {d: n * len(known.days) for d, n in Counter(DELAYS).items()}
    assert lateness_page.smallest_window(known.lines, 990) == 7
    assert lateness_page.smallest_window(known.lines, 999) == 12
    # Money comes later than lines, as late lines have the greater amounts.
    assert lateness_page.smallest_window(known.cents, 990) == 9
    assert lateness_page.smallest_window(known.cents, 999) == 12
    figures = lateness_page.key_figures(rows, 7)
    assert [value for name, value in figures.items() if "window_days_for" in name] == [7, 12, 9, 12]


def test_counting_every_log_day_would_advise_too_short_a_window():
    every = Counter()
    for record in delayed_days(30, older=False):
        every += Counter(dict(zip(record["delays"], record["lines_by_delay"], strict=True)))
    assert [lateness_page.smallest_window(every, n) for n in (990, 999)] == [5, 11]


@pytest.mark.parametrize("history", [0, 1, 14])
def test_a_history_too_short_gives_no_advice(history):
    rows = delayed_days(history, older=True)
    figures = lateness_page.key_figures(rows, 7)
    assert figures["compared_event_days"] == 0
    assert {value for name, value in figures.items() if "window_days_for" in name} == {
        "not known yet"
    }
    if rows:
        text = Reader(render_page(pa.Table.from_pylist(rows))).text
        assert "Too little is measured to advise." in text
        assert "it takes 15 log days in a row" in text
        assert "A window of" not in text


def test_a_day_that_is_not_measured_hides_those_whose_late_lines_it_may_hold():
    rows = [row for row in delayed_days(40, older=False) if row["log_date"] != day(20)]
    known = lateness_page.lateness_figures(rows, 7)
    assert known.days == [*map(day, range(1, 6)), *map(day, range(21, 27))]
    assert lateness_page.smallest_window(known.lines, 999) == 12


def test_a_configured_window_longer_than_those_compared_needs_a_longer_history():
    known = lateness_page.lateness_figures(delayed_days(40, older=False), 30)
    assert known.days == list(map(day, range(1, 11)))


def test_lines_of_long_ago_are_of_no_order_day_that_counts():
    rows = [lateness_row(day(n), [0, 9_999, 800_000]) for n in range(1, 16)]
    assert lateness_page.lateness_figures(rows, 7).lines == {0: 1}


@pytest.mark.parametrize(
    ("rows", "window_days", "said"),
    [
        (lateness_table(), 7, ["Log day 2024-01-01, from", "on 1 log day."]),
        (
            lateness_table(15, (0,) * 5),
            7,
            ["None came late.", "A window of 0 days catches 99.9 % of"],
        ),
        (
            lateness_table(delays=(0, 2)),
            7,
            ["50.00 % (1) came late; none came after the window of 7 days"],
        ),
        (lateness_table(delays=()), 7, ["No lines on 1 log day.", "Too little is measured"]),
        (
            lateness_table(15, ()),
            7,
            ["event day 2024-01-01 had no lines, so there is nothing to say"],
        ),
        (lateness_table(546), 7, ["546,000 lines on 546 log days.", "2024-01-01 to 2025-06-15"]),
        (lateness_table(delays=(0,) * 9_999 + (20,)), 7, ["0.01 % (1) came late"]),
        (
            lateness_table(40, (0,) * 9 + (20,)),
            14,
            ["No window of up to 14 days catches 99.9 % of the li"],
        ),
        (lateness_table(delays=(0, 20_000)), 7, ["The scale is logarithmic."]),
        (
            lateness_table(3),
            2,
            ["0.20 % (6) came after", "At least 3 log days were measured when another"],
        ),
        (
            lateness_table(40),
            30,
            ["window of 30 days catches 100 % of the lines", "the 30 log days after"],
        ),
        (lateness_table(3).take([0, 2]), 7, ["1 log day in between was not measured"]),
        (
            lateness_table(15, amount_by_delay=[Decimal(0)] * 4),
            7,
            ["catches 99.90 % of the lines;", "3 days catches 99.9 % of the lines"],
        ),
    ],
)
def test_the_page_of_any_table(rows, window_days, said):
    text = Reader(render_page(rows, window_days)).text
    for words in said:
        assert words in text


def test_a_share_is_never_rounded_to_what_it_is_not():
    assert lateness_page.smallest_window({0: 998_999, 1: 1_001}, 999) == 1
    assert lateness_page.smallest_window({0: 999, 1: 1}, 999) == 0
    assert lateness_page.smallest_window({0: 1, 20: 1}, 999) is None
    # Beyond all windows that are compared, but of event days that count.
    figures = lateness_page.key_figures(lateness_table(40, (0, 20)).to_pylist(), 7)
    assert figures["window_days_for_99_percent_of_lines"] == "more than 14"


def test_a_page_replaces_the_one_before(tmp_path):
    folder = tmp_path / "a" / "page"
    for text in ("first", "zweite é"):
        replace_file(str(folder), "index.html", text.encode())
    assert (folder / "index.html").read_text() == "zweite é"
    assert [path.name for path in folder.iterdir()] == ["index.html"]
