"""How late lines arrive: the figures against plain Python, and the page as a reader gets it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from html.parser import HTMLParser
from math import ceil

import dagster as dg
import pyarrow as pa
import pyspark.sql.types as T
import pytest
from deltalake import write_deltalake

from backfill_assets import dashboard
from backfill_assets.assets import lateness
from backfill_assets.audit import Severity, judge, measure
from backfill_assets.partitions import DAY, Window
from backfill_assets.schemas import LATENESS
from backfill_assets_tests.pipeline import Pipeline, day, order

WEEK = Window(day(10), day(17))
LINE = T.StructType(
    [
        T.StructField("log_date", T.DateType()),
        T.StructField("event_date", T.DateType()),
        T.StructField("order_id", T.StringType()),
        T.StructField("order_ts", T.TimestampType()),
        T.StructField("ingestion_ts", T.TimestampType()),
        T.StructField("amount", T.DecimalType(18, 2)),
    ]
)


def line(log_day: int, event_day: int, order_id: str, amount="1.00", *, seconds: float = 0) -> dict:
    """A raw line, taken so many seconds after it happened."""
    happened = datetime.combine(day(event_day), datetime.min.time(), timezone.utc)
    return {
        "log_date": day(log_day),
        "event_date": day(event_day),
        "order_id": order_id,
        "order_ts": happened,
        "ingestion_ts": happened + timedelta(seconds=seconds),
        "amount": Decimal(amount),
    }


def generated() -> list[dict]:
    chosen = random.Random(5)
    lines = []
    for _ in range(150):
        log_day = chosen.randint(3, 16)
        if day(log_day) == day(13):  # a day without lines
            continue
        delay = chosen.choice([0, 0, 0, 0, 1, 1, 2, 3, 4, 9, 16, 40])
        amount = f"{chosen.randint(-500, 500)}.{chosen.randint(10, 99)}"
        seconds = chosen.choice([-100, 0, 59, 60, 86_399.999999, chosen.randint(0, 10**6)])
        order_id = f"o{chosen.randint(1, 30)}"
        lines.append(line(log_day, log_day - delay, order_id, amount, seconds=seconds))
    return lines


def by_delay(lines: Iterable[tuple[Decimal, int]]) -> dict[str, list]:
    """The columns by delay of lines, each given as amount and delay."""
    counts, money = Counter(), defaultdict(Decimal)
    for amount, delay in lines:
        counts[delay] += 1
        money[delay] += abs(amount)
    return {
        "delays": sorted(counts),
        "lines_by_delay": [counts[delay] for delay in sorted(counts)],
        "amount_by_delay": [money[delay] for delay in sorted(counts)],
    }


def expected(lines: list[dict], rejected: list[date], log_day: date, window_days: int) -> dict:
    """One row of the table, worked out line by line."""
    own = [x for x in lines if x["log_date"] == log_day]
    delays = [(x["log_date"] - x["event_date"]).days for x in own]
    late = [x for x, delay in zip(own, delays, strict=True) if delay >= 1]
    beyond = [x for x, delay in zip(own, delays, strict=True) if delay > window_days]
    before = Window(log_day - window_days * DAY, log_day)
    known = {x["order_id"] for x in lines if x["log_date"] in before}
    superseded = 0
    for x in own:
        superseded += x["order_id"] in known
        known.add(x["order_id"])
    row = {
        "log_date": log_day,
        "lines": len(own),
        "late_lines": len(late),
        "late_amount": sum((x["amount"] for x in late), Decimal("0.00")),
        "beyond_lines": len(beyond),
        "beyond_amount": sum((x["amount"] for x in beyond), Decimal("0.00")),
        "superseded_lines": superseded,
        "rejected_lines": Counter(rejected)[log_day],
        **by_delay((x["amount"], delay) for x, delay in zip(own, delays, strict=True)),
    }
    days = sorted(delay for delay in delays if delay >= 1)
    minutes = sorted(
        (max(x["order_ts"], x["ingestion_ts"]) - x["order_ts"]) // timedelta(minutes=1)
        for x in late
    )
    for unit, values in (("days", days), ("minutes", minutes)):
        for name, percent in (("p50", 50), ("p95", 95), ("max", 100)):
            at = ceil(len(values) * percent / 100) - 1
            row[f"delay_{unit}_{name}"] = values[at] if values else None
    return row


def frames(spark, lines: list[dict], rejected: list[date]):
    ddl = "arrival_date date"
    return (
        spark.createDataFrame(lines, LINE),
        spark.createDataFrame([{"arrival_date": d} for d in rejected], ddl),
    )


def measured(spark, lines, rejected, window: Window, window_days: int) -> list[dict]:
    """What the transform makes of the days that a run over this window reads."""
    read = window.widened(before=window_days)
    found = lateness.arrival_lateness(
        *frames(
            spark,
            [x for x in lines if x["log_date"] in read],
            [d for d in rejected if d in window],
        ),
        window,
        window_days,
    )
    LATENESS.conform(found)
    return sorted((row.asDict() for row in found.collect()), key=lambda row: row["log_date"])


def test_lines_as_a_reader_would_count_them(spark):
    lines = [
        line(9, 9, "a"),  # known by the day before
        line(10, 10, "a", "5.00"),  # supersedes it
        line(10, 10, "b", "7.00"),
        line(10, 9, "c", "1.50", seconds=119),  # late by one day, taken after a minute
        line(10, 9, "c", "1.50", seconds=119),  # the same line again
        line(10, 7, "d", "-2.25", seconds=3 * 86_400 + 59.9),  # beyond a window of two days
        line(10, 4, "e", "100.00", seconds=-60),  # taken before it happened
    ]
    (row,) = measured(spark, lines, [day(10), day(10)], Window(day(10), day(11)), 2)
    assert row == {
        "log_date": day(10),
        "lines": 6,
        "late_lines": 4,
        "late_amount": Decimal("100.75"),
        "beyond_lines": 2,
        "beyond_amount": Decimal("97.75"),
        "superseded_lines": 2,
        "rejected_lines": 2,
        "delay_days_p50": 1,
        "delay_days_p95": 6,
        "delay_days_max": 6,
        "delay_minutes_p50": 1,
        "delay_minutes_p95": 3 * 1440,
        "delay_minutes_max": 3 * 1440,
        "delays": [0, 1, 3, 6],
        "lines_by_delay": [2, 2, 1, 1],
        "amount_by_delay": [Decimal("12.00"), Decimal("3.00"), Decimal("2.25"), Decimal("100.00")],
    }


@pytest.mark.parametrize("window_days", [0, 2, 7, 20])
def test_every_day_is_what_plain_python_says(spark, window_days):
    lines = generated()
    rejected = [day(11), day(11), day(13), day(20)]
    found = measured(spark, lines, rejected, WEEK, window_days)
    assert found == [expected(lines, rejected, d, window_days) for d in WEEK]
    assert sum(row["superseded_lines"] for row in found) > 0


def test_a_range_is_its_days_one_by_one(spark):
    lines, rejected = generated(), [day(12)]
    alone = [measured(spark, lines, rejected, Window(d, d + DAY), 2)[0] for d in WEEK]
    assert measured(spark, lines, rejected, WEEK, 2) == alone


def test_order_days_before_all_days_count_like_others(spark):
    happened = datetime(1, 1, 2, tzinfo=timezone.utc)
    old = line(10, 10, "a") | {"event_date": happened.date(), "order_ts": happened}
    (row,) = measured(spark, [old], [], Window(day(10), day(11)), 7)
    assert row == expected([old], [], day(10), 7)
    assert row["delay_days_max"] > 700_000


def test_a_day_without_lines_has_its_row(spark):
    (row,) = measured(spark, [], [], Window(day(10), day(11)), 7)
    assert row == expected([], [], day(10), 7)
    assert row["delay_days_p50"] is None
    said = lateness.numbers(row)
    assert set(said) == {
        "late lines",
        "beyond window lines",
        "beyond window amount",
        "superseded lines",
        "rejected lines",
    }


def test_numbers_are_what_the_ui_plots(spark):
    row = expected(generated(), [], day(12), 2)
    said = lateness.numbers(row)
    assert {type(value) for value in said.values()} == {int, float}
    assert said["late share"] == row["late_lines"] / row["lines"]
    assert said["beyond window share"] == row["beyond_lines"] / row["lines"]
    assert said["caught by W=0"] == pytest.approx(1 - said["late share"])
    assert said["caught by W=14"] <= 1
    assert {f"delay {unit} {name}" for unit in ("days", "minutes") for name in ("p50", "p95")} < (
        set(said)
    )


def test_books_count_for_themselves(spark):
    lines, window = generated(), Window(day(10), day(12))
    rejected = [day(10)]
    raw_frame, rejected_frame = frames(spark, lines, rejected)
    rows = {d: expected(lines, rejected, d, 2) for d in window}
    rows[day(11)]["lines"] += 1
    found = lateness.books(rows, raw_frame, rejected_frame, window, 2, {day(8)})
    good, bad = found[day(10)], found[day(11)]
    assert (good.rows, bad.rows) == (1, 1)
    assert not good.problems
    assert good.entries == {
        "lines": rows[day(10)]["lines"],
        "late": rows[day(10)]["late_lines"],
        "beyond": rows[day(10)]["beyond_lines"],
        "rejected": 1,
    }
    assert bad.problems == [
        f"lines is {rows[day(11)]['lines']} where {rows[day(11)]['lines'] - 1} are due"
    ]
    assert "1 of the 2 day(s) before" in good.warnings[0]
    assert not bad.warnings
    # A missing row is the audit's to find.
    frame = lateness.arrival_lateness(raw_frame, rejected_frame, Window(day(10), day(11)), 2)
    verdicts = judge(LATENESS, window, measure(frame, LATENESS), found, {})
    assert [verdict.severity for verdict in verdicts] == [Severity.WARN, Severity.ERROR]


MEASURED = ("raw_orders", "raw_orders_rejected", LATENESS.name, dashboard.DASHBOARD)


def events(pipeline: Pipeline, name: str) -> list[dg.AssetMaterialization]:
    records = pipeline.instance.fetch_materializations(dg.AssetKey(name), limit=100).records
    return [record.asset_materialization for record in records]


def test_assets_from_landing_to_page(pipeline):
    for n in range(1, 5):
        pipeline.land(n, [order("same", n), order(f"o{n}", 1, "3.00"), "no order"])
    pipeline.run(1, 2, MEASURED)
    pipeline.run(4, 4, MEASURED)  # before the day before it
    rows = {row["log_date"]: row for row in pipeline.rows(LATENESS.name)}
    assert [rows[day(n)]["superseded_lines"] for n in (1, 2, 4)] == [0, 1, 1]
    pipeline.run(3, 3, MEASURED)
    rows = {row["log_date"]: row for row in pipeline.rows(LATENESS.name)}
    assert [rows[day(n)]["late_lines"] for n in range(1, 5)] == [0, 1, 1, 1]
    assert [rows[day(n)]["delay_days_max"] for n in range(1, 5)] == [None, 1, 2, 3]
    assert [rows[day(n)]["rejected_lines"] for n in range(1, 5)] == [1, 1, 1, 1]
    by_day = {e.partition: e.metadata for e in events(pipeline, LATENESS.name)}
    assert sorted(by_day) == [str(day(n)) for n in range(1, 5)]
    assert by_day[str(day(4))]["late share"] == dg.FloatMetadataValue(0.5)
    assert by_day[str(day(4))]["delay days p95"] == dg.IntMetadataValue(3)
    assert "superseded_lines may be too low: 1 of the 7" in by_day[str(day(4))]["warnings"].value

    pages = events(pipeline, dashboard.DASHBOARD)
    assert [page.partition for page in pages] == [None, None, None]  # one a run, of no day
    said = {name: value.value for name, value in pages[0].metadata.items()}
    folder = pipeline.warehouse / dashboard.DASHBOARD
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    assert said["path"] == str(folder / "index.html")
    assert (said["days"], said["lines"], said["late share"]) == (4, 8, 3 / 8)
    assert (said["order days compared"], said["smallest W that catches 99 %"]) == (
        0,
        "not known yet",
    )
    version = pipeline.log(LATENESS.name).version()
    assert said[f"delta version {LATENESS.name}"] == version
    table = pipeline.log(LATENESS.name).to_pyarrow_table()
    text = (folder / "index.html").read_text()
    assert text == dashboard.page(table, pipeline.settings.window_days, version)


def test_without_a_table_there_is_no_page(pipeline):
    result = pipeline.run(1, assets=[dashboard.DASHBOARD], fails=True)
    assert "materialize it for some days, then lateness_dashboard again" in (
        pipeline.failure(result)
    )
    assert not (pipeline.warehouse / dashboard.DASHBOARD).exists()


def test_a_table_of_an_earlier_release_is_named_with_the_way(pipeline):
    without = [name for name in LATENESS.columns if "delays" not in name]
    rows = pa.Table.from_pylist([expected([], [], day(1), 7)]).select(without)
    write_deltalake(str(pipeline.warehouse / LATENESS.name), rows)
    result = pipeline.run(1, assets=[dashboard.DASHBOARD], fails=True)
    assert "was made by an earlier release and has no delays. The page is as it was." in (
        pipeline.failure(result)
    )


def table(days: int = 1, delays: tuple[int, ...] = (0,) * 997 + (1, 3, 9), **changed) -> pa.Table:
    """Rows of the table: so many days with the same delays each, and amounts of 1."""
    return pa.Table.from_pylist([row(day(n), delays) | changed for n in range(1, days + 1)])


def row(log_day: date, delays: Sequence[int], amounts: Sequence[Decimal] = ()) -> dict:
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
    """The text outside of scripts and styles, and every attribute with its tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self.attributes, self.inside = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split()).replace(" ,", ",").replace(" ;", ";")


def test_the_page_needs_nothing_from_elsewhere():
    page = dashboard.page(table(15), 7, 2)
    reader = Reader(page)
    assert not [a for a in reader.attributes if a[1] in ("src", "href", "srcset", "data", "action")]
    assert not {tag for tag, _, _ in reader.attributes} & {"link", "img", "iframe", "object"}
    (policy,) = [v for tag, _, v in reader.attributes if v and v.startswith("default-src")]
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-")
    assert "http" not in policy
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert ids == ["chart-windows", "chart-late", "chart-delays", "chart-others"]


def test_the_same_table_gives_the_same_page():
    rows = table(3)
    assert dashboard.page(rows, 7, 2) == dashboard.page(rows.take([2, 0, 1]), 7, 2)


def test_the_page_says_its_figures():
    text = Reader(dashboard.page(table(24), 7, 2)).text
    for said in (
        "Log days 2024-01-01 to 2024-01-24, from version 2 of arrival_lateness.",
        "24,000 lines on 24 log days. 0.30 % (72) came late; 0.10 % (24) came after the window of "
        "7 days had closed, with amounts that add up to 29,628.00 . 96 lines made another version "
        "of an order obsolete; 24 more lines could not be read and were rejected.",
        "A window of 3 days catches 99.9 % of the lines, and no shorter one does. For 99 % it "
        "takes 0 days. A window of 3 days catches 99.9 % of the money, and no shorter one does. "
        "For 99 % it takes 0 days. The configured window of 7 days catches 99.90 % of the lines "
        "and 99.90 % of the money; 10 lines came after it. All shares are of the 10,000 lines of "
        "the 10 order days 2024-01-01 to 2024-01-10: the days that are measured together with the "
        "14 log days after them",
    ):
        assert said in text
    assert "not measured" not in text
    assert "another window" not in text


#: Of an order day's 2,000 lines 2 % come late, over 1 to 12 days: three with each delay, four with
#: 7 to 10 days. So a window of 6 days misses 22 of them and one of 7 days 18; 20 are 1 %.
DELAYS = [0] * 1960 + [(n + 6) % 12 + 1 for n in range(40)]


def delayed(history: int, *, older: bool) -> list[dict]:
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
        row(day(n), [delay for _, delay in logged[n]], [amount for amount, _ in logged[n]])
        for n in range(1, history + 1)
    ]


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("history", [15, 16, 30, 40])
def test_the_advice_is_the_true_window_from_the_first_day_that_can_tell(history, older):
    rows = delayed(history, older=older)
    known = dashboard.arrived(rows, 7)
    assert known.days == list(map(day, range(1, history - 13)))
    assert known.lines == {d: n * len(known.days) for d, n in Counter(DELAYS).items()}
    assert dashboard.smallest_window(known.lines, 990) == 7
    assert dashboard.smallest_window(known.lines, 999) == 12
    # Money comes later than lines, as late lines have the greater amounts.
    assert dashboard.smallest_window(known.cents, 990) == 9
    assert dashboard.smallest_window(known.cents, 999) == 12
    said = dashboard.key_figures(rows, 7)
    assert [value for name, value in said.items() if "smallest W" in name] == [7, 12, 9, 12]


def test_counting_every_log_day_would_advise_too_short_a_window():
    every = Counter()
    for found in delayed(30, older=False):
        every += Counter(dict(zip(found["delays"], found["lines_by_delay"], strict=True)))
    assert [dashboard.smallest_window(every, n) for n in (990, 999)] == [5, 11]


@pytest.mark.parametrize("history", [0, 1, 14])
def test_a_history_too_short_gives_no_advice(history):
    rows = delayed(history, older=True)
    said = dashboard.key_figures(rows, 7)
    assert said["order days compared"] == 0
    assert {value for name, value in said.items() if "smallest W" in name} == {"not known yet"}
    if rows:
        text = Reader(dashboard.page(pa.Table.from_pylist(rows), 7, 0)).text
        assert "Too little is measured to advise." in text
        assert "it takes 15 log days in a row" in text
        assert "A window of" not in text


def test_a_day_that_is_not_measured_hides_those_whose_late_lines_it_may_hold():
    rows = [row for row in delayed(40, older=False) if row["log_date"] != day(20)]
    known = dashboard.arrived(rows, 7)
    assert known.days == [*map(day, range(1, 6)), *map(day, range(21, 27))]
    assert dashboard.smallest_window(known.lines, 999) == 12


def test_a_configured_window_longer_than_those_compared_needs_a_longer_history():
    known = dashboard.arrived(delayed(40, older=False), 30)
    assert known.days == list(map(day, range(1, 11)))


def test_lines_of_long_ago_are_of_no_order_day_that_counts():
    rows = [row(day(n), [0, 9_999, 800_000]) for n in range(1, 16)]
    assert dashboard.arrived(rows, 7).lines == {0: 1}


@pytest.mark.parametrize(
    ("rows", "window_days", "said"),
    [
        (table(), 7, ["Log day 2024-01-01, from", "on 1 log day."]),
        (table(15, (0,) * 5), 7, ["None came late.", "A window of 0 days catches 99.9 % of"]),
        (table(delays=(0, 2)), 7, ["50.00 % (1) came late; none came after the window of 7 days"]),
        (table(delays=()), 7, ["No lines on 1 log day.", "Too little is measured"]),
        (table(15, ()), 7, ["order day 2024-01-01 had no lines, so there is nothing to say"]),
        (table(546), 7, ["546,000 lines on 546 log days.", "2024-01-01 to 2025-06-15"]),
        (table(delays=(0,) * 9_999 + (20,)), 7, ["0.01 % (1) came late"]),
        (table(40, (0,) * 9 + (20,)), 14, ["No window of up to 14 days catches 99.9 % of the li"]),
        (table(delays=(0, 20_000)), 7, ["The scale is logarithmic."]),
        (table(3), 2, ["0.20 % (6) came after", "At least 3 log days were measured when another"]),
        (table(40), 30, ["window of 30 days catches 100 % of the lines", "the 30 log days after"]),
        (table(3).take([0, 2]), 7, ["1 log day in between was not measured"]),
        (
            table(15, amount_by_delay=[Decimal(0)] * 4),
            7,
            ["catches 99.90 % of the lines;", "3 days catches 99.9 % of the lines"],
        ),
    ],
)
def test_the_page_of_any_table(rows, window_days, said):
    text = Reader(dashboard.page(rows, window_days, 0)).text
    for words in said:
        assert words in text


def test_a_share_is_never_rounded_to_what_it_is_not():
    assert dashboard.smallest_window({0: 998_999, 1: 1_001}, 999) == 1
    assert dashboard.smallest_window({0: 999, 1: 1}, 999) == 0
    assert dashboard.smallest_window({0: 1, 20: 1}, 999) is None
    # Beyond all windows that are compared, but of order days that count.
    figures = dashboard.key_figures(table(40, (0, 20)).to_pylist(), 7)
    assert figures["smallest W that catches 99 %"] == "more than 14"


def test_a_page_replaces_the_one_before(tmp_path):
    folder = tmp_path / "a" / "page"
    for text in ("first", "zweite é"):
        assert dashboard.write(text, str(folder), "run") == f"{folder}/index.html"
    assert dashboard.write("third", f"file://{folder}", "run") == f"file://{folder}/index.html"
    assert (folder / "index.html").read_text() == "third"
    assert [path.name for path in folder.iterdir()] == ["index.html"]
