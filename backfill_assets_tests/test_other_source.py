"""The rules for a source that is not orders: two key columns, no amount, other names of the times.

Its fields are in another order than those of orders, and one is named like what the rules tell.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import pandera.pyspark as pa
import pyarrow
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets import derived, raw_load, staging
from backfill_assets.audit import raw_expectations
from backfill_assets.audit.verdicts import (
    DayContent,
    DayMetrics,
    Expectation,
    Finding,
    Severity,
    Verdict,
    measure_days,
    total_value,
)
from backfill_assets.backfills.diff import DayDiff
from backfill_assets.calendar.late_data import ArrivalDays, Policy
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.reach import last_days
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import Deployment
from backfill_assets.imports import importer
from backfill_assets.imports import landing_files as imported_files
from backfill_assets.imports.landing_files import ARRIVAL_DAY
from backfill_assets.landing.csv_files import (
    CsvHeader,
    csv_records,
    header_columns,
    read_header,
)
from backfill_assets.landing.files import LandingFile, LandingFiles, probe_files, read_lines
from backfill_assets.landing.formats import TEXT
from backfill_assets.landing.listing import LandingError, ListedFile
from backfill_assets.landing.load_manifest import LoadManifest, LoadTarget
from backfill_assets.orders.tables import CORRECTIONS, ORDER_LINES, RAW, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.spark.frames import cache_frames
from backfill_assets.staleness.impact import ChangeImpact, impact_of
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.columns import nullable_column
from backfill_assets.tables.derived import Reads, conserves_total, current_table
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Role, Source
from backfill_assets.tables.table_function import table
from backfill_assets.transforms import dedup
from backfill_assets.transforms.lateness import lateness_figures
from backfill_assets.transforms.raw_rows import (
    REASON,
    FileCounts,
    ParsedFiles,
    RetainedRows,
    read_versions,
)
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.orders_model import by_delay
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.helpers.publish_rows import make_plan


class VisitLine(pa.DataFrameModel):
    """A version of a visit."""

    sent: T.TimestampType = Field(description="When the site sent it.")
    site: T.StringType = Field(description="The site.")
    page: T.StringType = nullable_column(0.9, 1.0, "The page; null if unknown.")
    number: T.LongType = Field(description="Of the visit, on its site.")
    began: T.TimestampType = Field(description="When the visit began.")
    superseded: T.BooleanType = nullable_column(0.9, 1.0, "What the site calls superseded.")


VISITS = Source(
    "visits",
    VisitLine,
    key=["site", "number"],
    event_time="began",
    version_time="sent",
    named={Role.LATE: "tardy_visits", Role.LATENESS: "lateness_of_visits"},
)
WEEK, ONE_DAY = Window(day(1), day(8)), Window(day(1), day(2))


def visit_row(
    key: tuple[str, int],
    log_day: int,
    event_day: int,
    page: str | None = "p",
    flag: bool | None = None,
    *,
    began: int = 0,
    sent: int = 0,
) -> dict[str, Any]:
    """A row of the raw log: it began and was sent so many minutes after the event day began."""
    midnight = datetime.combine(day(event_day), datetime.min.time(), timezone.utc)
    return {
        "log_date": day(log_day),
        "arrival_date": day(log_day),
        "sent": midnight + timedelta(minutes=sent),
        "site": key[0],
        "page": page,
        "number": key[1],
        "began": midnight + timedelta(minutes=began),
        "superseded": flag,
        "source_file": f"{log_day}.jsonl",
    }


A1, A2, B1 = ("a", 1), ("a", 2), ("b", 1)


def log_frame(spark, rows: Iterable[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(list(rows), VISITS.raw.struct_type)


def dated_frame(spark, rows: Iterable[dict[str, Any]], zone: str = "UTC") -> DataFrame:
    return dedup.with_event_day(log_frame(spark, rows), VISITS, zone)


def staged_rows(frame: DataFrame, window_days: int) -> list[tuple]:
    """(event day, key, page, flag, log day) of each staged row."""
    ranked = dedup.rank_in_window(
        dedup.rank_lines(frame, VISITS, window_days, corrects=True), VISITS, WEEK, window_days
    )
    rows = dedup.drop_superseded(ranked, VISITS)
    VISITS.staged.conform_frame(rows)
    return sorted(map(_short_row, rows.collect()))


def _short_row(row: Any) -> tuple:
    key = row["site"], row["number"]
    return row["event_date"], key, row["page"], row["superseded"], row["log_date"]


# --- which version counts -------------------------------------------------------------------------


#: Two versions of a visit, of which the second counts.
VERSIONS = [
    # The later of the two times decides, whichever it is.
    (visit_row(A1, 1, 1, sent=10), visit_row(A1, 1, 1, sent=20)),
    (visit_row(A1, 1, 1, sent=20), visit_row(A1, 1, 1, began=30)),
    # Then the log day, and then the event time before the version time.
    (visit_row(A1, 1, 1, "z", sent=9), visit_row(A1, 2, 1, "a", sent=9)),
    (visit_row(A1, 1, 1, began=3, sent=9), visit_row(A1, 1, 1, began=4, sent=9)),
    (visit_row(A1, 1, 1, began=9, sent=3), visit_row(A1, 1, 1, began=9, sent=4)),
    # Then the other fields, the last one first; what is known before what is not.
    (visit_row(A1, 1, 1, "z", False), visit_row(A1, 1, 1, "a", True)),
    (visit_row(A1, 1, 1, "z", None), visit_row(A1, 1, 1, "a", False)),
    (visit_row(A1, 1, 1, "a"), visit_row(A1, 1, 1, "b")),
    (visit_row(A1, 1, 1, None), visit_row(A1, 1, 1, "a")),
]


def test_the_greatest_version_counts(spark):
    """Each pair of versions in either order; all at once, as a key knows of no other."""
    lines, expected = [], {}
    for n, (lesser, greater) in enumerate(VERSIONS):
        for number, pair in enumerate(([lesser, greater], [greater, lesser])):
            key = {"site": f"pair {n}", "number": number}
            lines += [row | key for row in pair]
            expected[f"pair {n}", number] = greater
    frame = dated_frame(spark, lines)
    ranked = dedup.rank_in_window(
        dedup.rank_lines(frame, VISITS, 7, corrects=True), VISITS, WEEK, 7
    )
    staged = {(r["site"], r["number"]): r for r in dedup.drop_superseded(ranked, VISITS).collect()}
    assert staged.keys() == expected.keys()
    for key, greater in expected.items():
        for name in ("began", "sent"):
            assert staged[key][name].replace(tzinfo=timezone.utc) == greater[name], key
        assert _short_row(staged[key])[2:] == (
            greater["page"],
            greater["superseded"],
            greater["log_date"],
        ), key


def test_a_key_is_all_its_columns(spark):
    frame = dated_frame(
        spark,
        [
            visit_row(A1, 1, 1, "old"),
            visit_row(A1, 2, 1, "new", sent=5),
            visit_row(A2, 1, 1, "other number"),
            visit_row(B1, 1, 1, "other site"),
            visit_row(B1, 2, 2, "moved", sent=5),
        ],
    )
    assert staged_rows(frame, 1) == [
        (day(1), A1, "new", None, day(2)),
        (day(1), A2, "other number", None, day(1)),
        (day(2), B1, "moved", None, day(2)),
    ]
    # With no window, what came a day later is not known on the first day.
    assert [row[:3] for row in staged_rows(frame, 0)] == [
        (day(1), A1, "old"),
        (day(1), A2, "other number"),
        (day(1), B1, "other site"),
        (day(2), B1, "moved"),
    ]


def test_the_event_day_is_that_of_the_event_time(spark):
    frame = dated_frame(spark, [visit_row(A1, 3, 1, began=23 * 60, sent=50 * 60)], "Asia/Tokyo")
    assert [row["event_date"] for row in frame.collect()] == [day(2)]


@pytest.mark.parametrize(("corrects", "page"), [(True, "late"), (False, "in time")])
def test_what_is_known_of_a_key(spark, corrects, page):
    rows = [
        visit_row(A1, 1, 1, "in time"),
        visit_row(A1, 5, 1, "late", sent=5),
        visit_row(A2, 1, 1),
    ]
    known_rows = dedup.rank_all(
        dedup.rank_lines(dated_frame(spark, rows), VISITS, 2, corrects=corrects),
        VISITS,
        WEEK,
        2,
        corrects=corrects,
    )
    counting = dedup.drop_superseded(known_rows, VISITS)
    assert sorted(row["page"] for row in counting.collect()) == sorted(["p", page])


# --- late lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "severity", "became"),
    [
        (
            True,
            Severity.WARN,
            "they are in tardy_visits and in what is made of all that is known",
        ),
        (False, Severity.ALERT, "THEY WERE DROPPED and are in no total"),
    ],
)
def test_late_lines_have_no_worth_without_an_amount(spark, keep, severity, became):
    frame = dated_frame(
        spark, [visit_row(A1, 5, 1), visit_row(A2, 5, 2), visit_row(B1, 5, 5), visit_row(B1, 2, 2)]
    )
    late = staging.late_lines(frame, VISITS, 2, keep=keep)
    VISITS.late.conform_frame(late)
    assert late.count() == (2 if keep else 0)
    (expectations,) = staging.late_expectations(frame, [(VISITS, day(2))], WEEK, 2, keep=keep)
    expectation = expectations[day(5)]
    assert expectation.entries == {
        "raw": 3,
        "in time": 1,
        "late": 2,
        "late amount": Decimal("0.00"),
        "before the first day": 1,
    }
    assert expectation.rows == (2 if keep else 0)
    assert expectation.notices == {
        "late_lines": (
            severity,
            f"2 line(s) came after the window of their day had closed; {became}",
        )
    }
    assert "they are in raw_visits and in no total" in expectation.warnings[0]
    assert not expectations[day(2)].notices


def test_staged_books_count_for_themselves(spark):
    frame = dated_frame(
        spark, [visit_row(A1, 1, 1), visit_row(A1, 2, 1, sent=5), visit_row(A2, 1, 1)]
    )
    rows = dedup.rank_in_window(dedup.rank_lines(frame, VISITS, 1, corrects=True), VISITS, WEEK, 1)
    (staged,) = staging.staged_expectations(frame, rows, WEEK, 1, [VISITS.staged])
    expectation = staged[day(1)]
    assert (expectation.entries, expectation.rows) == ({"in time": 3, "superseded": 1}, 2)
    # Of what is made of all that is known, a table with the rows of its input has as many.
    ranked = dedup.rank_lines(frame, VISITS, 1, corrects=True)
    known = dedup.rank_all(ranked, VISITS, WEEK, 1, corrects=True)
    kept_now = current_table(kept_visits)
    (now,) = derived.current_expectations([kept_now], frame, known, ONE_DAY, POLICY)
    expectation = now[day(1)]
    assert (expectation.rows, expectation.totals) == (2, {})


# --- figures of lateness --------------------------------------------------------------------------


def test_lateness_without_money(spark):
    frame = dated_frame(
        spark,
        [
            visit_row(A1, 2, 2),
            visit_row(A1, 3, 2, sent=3 * 60),  # late, and of a key that was known
            visit_row(A2, 3, 3),
            visit_row(B1, 3, 1, sent=90),  # beyond a window of a day
            visit_row(B1, 3, 1, sent=90),
        ],
    )
    rejected = spark.createDataFrame([(day(3),)], "arrival_date DATE")
    log_window = Window(day(3), day(4))
    policy = replace(POLICY, window_days=1)
    figures = lateness_figures(frame, rejected, [VISITS.lateness], log_window, policy)
    VISITS.lateness.conform_frame(figures)
    (row,) = (row.asDict() for row in figures.collect())
    nothing = Decimal("0.00")
    minutes = {"p50": 90, "p95": 180, "max": 180}
    assert row == {
        "log_date": day(3),
        "lines": 4,
        "late_lines": 3,
        "late_amount": nothing,
        "beyond_lines": 2,
        "beyond_amount": nothing,
        "superseded_lines": 2,
        "rejected_lines": 1,
        **{f"delay_days_{name}": 2 for name in minutes},
        **{f"delay_minutes_{name}": value for name, value in minutes.items()},
        **by_delay((nothing, delay) for delay in (0, 1, 2, 2)),
    }
    assert staging.day_figures(row)["beyond window amount"] == 0
    rows = {"": {day(3): row}}
    (expectations,) = staging.lateness_expectations(
        rows, frame, rejected, [VISITS.lateness], log_window, policy, {"": {day(2)}}
    )
    expectation = expectations[day(3)]
    assert expectation.entries == {"lines": 4, "late": 3, "beyond": 2, "rejected": 1}
    assert not expectation.problems
    assert "have no published raw_visits;" in expectation.warnings[0]


def test_lines_that_wait_for_the_next_arrival_day_are_not_late(spark):
    """The file of a day comes the next day, and none on Saturday or Sunday.

    2024-01-08 is a Monday. Lines of Friday to Sunday are due on it, those of Monday on Tuesday.
    """
    pairs = [(8, 7), (8, 5), (8, 4), (8, 3), (9, 8), (9, 7), (9, 5), (9, 4)]
    rows = [visit_row(A1, logged, event, sent=60) for logged, event in pairs]
    # Beyond a year, the days without a file are left out.
    frame = dated_frame(spark, [*rows, visit_row(A1, 9, 9 - 367)])
    rejected = spark.createDataFrame([], "arrival_date DATE")
    policy = replace(
        POLICY, window_days=14, arrives_after=1, arrival_days=ArrivalDays.parse("mon-fri")
    )
    log_window = Window(day(8), day(10))
    figures = lateness_figures(frame, rejected, [VISITS.lateness], log_window, policy)
    by_day = {row["log_date"].day: row.asDict() for row in figures.collect()}
    # Logged on Monday, lines of Thursday and Wednesday were due on Friday and Thursday. Logged on
    # Tuesday, lines of Friday to Sunday were due a day before, those of Thursday on Friday.
    assert [by_day[n]["late_lines"] for n in (8, 9)] == [2, 4]
    assert [by_day[n]["delay_days_p50"] for n in (8, 9)] == [3, 1]
    assert [by_day[n]["delay_days_max"] for n in (8, 9)] == [4, 366]
    assert [by_day[n]["delays"] for n in (8, 9)] == [[1, 3, 4, 5], [1, 2, 4, 5, 367]]
    tuesday = Window(day(9), day(10))
    alone = lateness_figures(frame, rejected, [VISITS.lateness], tuesday, policy)
    assert [row.asDict() for row in alone.collect()] == [by_day[9]]
    rows_by_part = {"": {day(n): by_day[n] for n in (8, 9)}}
    (expected,) = staging.lateness_expectations(
        rows_by_part, frame, rejected, [VISITS.lateness], log_window, policy, {}
    )
    assert not any(expectation.problems for expectation in expected.values())


class CopyLine(pa.DataFrameModel):
    """A line whose fields are named as what an import counts."""

    same: T.StringType = Field(description="What is copied.")
    versions: T.LongType = Field(description="Its number.")
    at: T.TimestampType = Field(description="When.")


def test_an_import_counts_the_keys_of_fields_with_any_name(spark):
    source = Source("copies", CopyLine, key=["same", "versions"], event_time="at")
    rows = spark.sql("SELECT explode(array('a', 'a', 'b')) AS same, 1L AS versions, now() AS at")
    assert importer._count_keys(rows, source) == (2, 2, 2)


class BillLine(pa.DataFrameModel):
    """A version of a bill in a currency with many zeros."""

    number: T.LongType = Field(description="Of the bill.")
    at: T.TimestampType = Field(description="When it was written.")
    amount: T.DecimalType(28, 0) = Field(description="What is to be paid.")  # type: ignore[valid-type]


def source_of(kind: T.DecimalType) -> Source:
    """A source of bills with amounts of a type."""
    body = {"__annotations__": {"amount": kind}, "amount": Field(description="To be paid.")}
    lines = type("Lines", (BillLine,), {**body, "__module__": __name__})
    return Source("bills", lines, key=["number"], event_time="at", amount="amount")


@pytest.mark.parametrize(
    ("amount", "figure"),
    [
        ((10, 4), (28, 2)),
        ((18, 2), (28, 2)),
        ((20, 2), (30, 2)),
        ((28, 2), (38, 2)),
        ((28, 0), (38, 0)),
    ],
)
def test_figures_of_lateness_are_wide_enough_for_the_amounts(amount, figure):
    table = source_of(T.DecimalType(*amount)).lateness
    kind = T.DecimalType(*figure)
    kinds = {column.name: column.dataType for column in table.struct_type}
    assert kinds["late_amount"] == kinds["beyond_amount"] == kind
    assert kinds["amount_by_delay"] == T.ArrayType(kind)
    assert table.schema_version == (1 if figure == (28, 2) else 2)
    assert [*kinds] == [*VISITS.lateness.columns]
    assert table.check_constraints == VISITS.lateness.check_constraints


def test_sums_of_the_largest_amounts(spark):
    source, most = source_of(T.DecimalType(28, 0)), Decimal("9" * 28)
    rows = [
        (day(3), day(3), n, datetime(2024, 1, 1, tzinfo=timezone.utc), most, "f") for n in (1, 2)
    ]
    raw = dedup.with_event_day(spark.createDataFrame(rows, source.raw.struct_type), source, "UTC")
    rejected = spark.createDataFrame([], "arrival_date DATE")
    one_day = Window(day(3), day(4))
    frame = lateness_figures(
        raw, rejected, [source.lateness], one_day, replace(POLICY, window_days=1)
    )
    source.lateness.conform_frame(frame)
    (row,) = frame.collect()
    assert row["late_amount"] == row["beyond_amount"] == row["amount_by_delay"][0]
    assert str(row["late_amount"]) == "1" + "9" * 27 + "8"
    (expectations,) = staging.late_expectations(raw, [(source, START)], WEEK, 1)
    expectation = expectations[day(3)]
    assert expectation.entries["late amount"] == row["late_amount"]
    (measured,) = measure_days(raw.select(*source.raw.columns), source.raw).values()
    assert measured.totals == {"amount": row["late_amount"]}


def test_sums_in_python_are_exact():
    cents = Decimal("9" * 28 + ".99")
    counts = FileCounts(amount=cents) + FileCounts(amount=Decimal("0.02"))
    assert str(counts.amount) == "1" + "0" * 28 + ".01"
    totals, more = {"orders": 1, "revenue": cents}, {"orders": 1, "revenue": Decimal("0.01")}
    expectations = derived.correction_expectations(CORRECTIONS, {day(1): totals}, {}, ONE_DAY)
    assert expectations[day(1)].totals["revenue"] == cents.copy_negate()
    figures = DayContent(1, totals, "a"), DayContent(1, more, "b")
    assert (total_value(None, 0), total_value(Decimal("1.5"), 0)) == (0, Decimal("1.5"))
    assert [type(total_value(Decimal(3), zero)) for zero in (0, Decimal(0))] == [int, Decimal]
    difference = DayDiff(day(1), (0, 1), *figures).difference_text
    assert difference == f"revenue -{Decimal('9' * 28 + '.98'):,}"


# --- what a change touches ------------------------------------------------------------------------

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)


def make_verdict(log_day: date, digest: str) -> Verdict:
    return Verdict(
        log_day, DayMetrics(1, {}, digest), Expectation(), [Finding("c", Severity.OK, "")]
    )


def impact_of_change(
    spark, previous: list[dict[str, Any]], current: list[dict[str, Any]], changed: Collection[date]
) -> ChangeImpact:
    """What is touched when the rows of some log days are replaced, all being published."""
    known = ledger(VISITS.raw, record(1, WEEK))
    before = TableSnapshot(known, needs_same_day=False, read=lambda _: log_frame(spark, previous))
    after = log_frame(spark, (row for row in current if row["log_date"] in changed))
    verdicts = [make_verdict(log_day, "another") for log_day in sorted(changed)]
    return impact_of(VISITS, before, after, verdicts, POLICY, "UTC")


def raise_if_read(_: object) -> NoReturn:
    raise AssertionError("there is nothing to read")


def test_a_first_load_touches_what_it_brings(spark):
    rows = [
        visit_row(A1, 1, 1),
        visit_row(A1, 3, 1),
        visit_row(A1, 2, 2),
        visit_row(A2, 3, 3),
        visit_row(B1, 4, 4),
    ]
    verdicts = [make_verdict(log_day, "first") for log_day in WEEK]
    unpublished = TableSnapshot(ledger(VISITS.raw), needs_same_day=False, read=raise_if_read)
    impact = impact_of(VISITS, unpublished, log_frame(spark, rows), verdicts, POLICY, "UTC")
    assert impact.event_days == impact.current_days == impact.log_days == frozenset(WEEK)
    assert impact.spans == {
        day(1): days(1, 2),
        day(2): days(1, 2),
        day(3): days(1, 2, 3),
        day(4): days(4),
    }


def test_a_change_touches_the_days_of_its_key_alone(spark):
    previous = [visit_row(A1, 1, 1), visit_row(A2, 2, 2), visit_row(B1, 3, 3)]
    moved = visit_row(A1, 3, 3, sent=5)
    impact = impact_of_change(spark, previous, [*previous, moved], {day(3)})
    assert impact.event_days == impact.current_days == days(1, 3)
    assert impact.spans == {day(1): days(1, 3), day(3): days(1, 3)}
    assert impact.log_days == days(3)
    late = impact_of_change(
        spark, previous, [*previous, visit_row(A2, 5, 2, "late", sent=5)], {day(5)}
    )
    assert (late.event_days, late.current_days) == (frozenset(), days(2))


def test_every_field_of_a_line_counts_but_not_its_file(spark):
    previous = [visit_row(A1, 1, 1), visit_row(A2, 2, 2)]
    flagged = [previous[0] | {"superseded": True}, previous[1]]
    assert impact_of_change(spark, previous, flagged, {day(1)}).event_days == days(1)
    elsewhere = [previous[0] | {"source_file": "another.jsonl"}, previous[1]]
    assert impact_of_change(spark, previous, elsewhere, {day(1)}) == ChangeImpact(log_days=days(1))


def test_touched_days_are_those_whose_rows_differ(spark):
    chance = random.Random(7)

    def random_lines(count: int) -> list[dict[str, Any]]:
        return [
            visit_row(
                (chance.choice("ab"), chance.randint(1, 3)),
                chance.randint(event_day, 7),
                event_day,
                chance.choice(["p", "q", None]),
                sent=chance.randint(0, 3000),
            )
            for event_day in (chance.randint(1, 6) for _ in range(count))
        ]

    def days_of(rows: list[dict[str, Any]]) -> tuple[set, set]:
        frame = dated_frame(spark, rows)
        in_time = dedup.rank_in_window(
            dedup.rank_lines(frame, VISITS, 2, corrects=True), VISITS, WEEK, 2
        )
        known = dedup.rank_all(
            dedup.rank_lines(frame, VISITS, 2, corrects=True), VISITS, WEEK, 2, corrects=True
        )
        then, now = (
            set(dedup.drop_superseded(frame_part, VISITS).collect())
            for frame_part in (in_time, known)
        )
        return then, now

    for _ in range(2):
        previous = random_lines(14)
        changed = {day(n) for n in chance.sample(range(1, 8), 2)}
        current = [row for row in previous if row["log_date"] not in changed]
        current += [row for row in random_lines(14) if row["log_date"] in changed]
        impact = impact_of_change(spark, previous, current, changed)
        then, after = days_of(previous), days_of(current)
        assert impact.event_days == {row["event_date"] for row in then[0] ^ after[0]}
        assert impact.current_days == {row["event_date"] for row in then[1] ^ after[1]}


# --- as assets ------------------------------------------------------------------------------------


def test_the_assets_are_named_after_the_source():
    settings = load_settings()
    stage, keep = staging.build_staging_assets(Deployment(settings), [VISITS])
    measure = staging.build_lateness_asset(Deployment(settings), [VISITS])
    assert [asset.op.name for asset in (stage, keep, measure)] == [
        "stage_visits",
        "keep_late_visits",
        "measure_lateness_of_visits",
    ]
    for asset, declared, inputs in (
        (stage, VISITS.staged, {"raw_visits"}),
        (keep, VISITS.late, {"raw_visits"}),
        (measure, VISITS.lateness, {"raw_visits", "raw_visits_rejected"}),
    ):
        assert set(asset.keys_by_input_name) == inputs
        (metadata,) = asset.metadata_by_key.values()
        lineage = metadata["dagster/column_lineage"].deps_by_column
        assert set(lineage) == set(declared.columns)
        assert {
            dep.asset_key.to_user_string()
            for column_deps in lineage.values()
            for dep in column_deps
        } == inputs
    lineage = metadata["dagster/column_lineage"].deps_by_column
    assert {dep.column_name for dep in lineage["superseded_lines"]} == {
        "log_date",
        "site",
        "number",
    }
    assert lineage["late_amount"] == []


# --- of several sources ---------------------------------------------------------------------------


class Visitors(pa.DataFrameModel):
    """Orders and visits of a day."""

    run_date: T.DateType = Field(description="The day.")
    orders: T.LongType = Field(description="Orders.")
    visits: T.LongType = Field(description="Visits.")


LATE_STARTER = replace(VISITS, start=day(5), window_days=20, late_lines="drop")


@table(Visitors, partition="run_date", key=[], totals=["orders", "visits"])
def visitors(
    orders: Annotated[DataFrame, Reads(STAGED)],
    visits: Annotated[DataFrame, Reads(LATE_STARTER.staged)],
) -> DataFrame:
    raise AssertionError("it is only declared")


class KeptVisit(pa.DataFrameModel):
    """A visit, as it is staged."""

    run_date: T.DateType = Field(description="Its day.")
    site: T.StringType = Field(description="The site.")
    number: T.LongType = Field(description="Of the visit, on its site.")


KEPT_KEY = ["site", "number"]


@table(KeptVisit, partition="run_date", key=KEPT_KEY, checks=[conserves_total("visits")])
def kept_visits(visits: Annotated[DataFrame, Reads(VISITS.staged)]) -> DataFrame:
    return visits.withColumn("run_date", F.col("for_day")).select(*KeptVisit.to_schema().columns)


def test_a_table_has_as_many_rows_as_its_input_without_a_total():
    commit = record(1, days(1), rows=7)
    source = TableSnapshot(ledger(VISITS.staged, commit), needs_same_day=False, read=raise_if_read)
    frames = {"visits": None}  # the commit says how many rows there are
    (expected,) = derived.derived_expectations(kept_visits, [{"visits": source}], frames, ONE_DAY)
    assert expected == {day(1): Expectation(entries={"expected number of rows": 7}, rows=7)}
    (equation,) = kept_visits.layer_equations
    assert [(figure.table, figure.name) for figure in equation] == [
        (VISITS.staged, "rows"),
        (kept_visits, "rows"),
    ]


def test_a_table_of_two_sources_begins_with_the_later_and_stays_open_with_the_longer():
    policy = Policy(START, None, window_days=7, lag_days=1, corrects=True, only_touched=True)
    graph = Graph.from_tables([*ORDER_LINES.tables, *LATE_STARTER.tables, visitors], policy)
    assert graph.source_logs(visitors.name) == {RAW.name, "raw_visits"}
    assert graph.policy_of(visitors.name) == replace(
        policy, start=day(5), window_days=20, corrects=False
    )
    assert graph.policy_of(STAGED.name) == policy
    # It is loaded with neither, and closes when both have.
    assert visitors.name not in graph.loaded_with(RAW.name) + graph.loaded_with("raw_visits")
    assert visitors.name in graph.closing_tables


# --- dialects of CSV, and times without an offset -------------------------------------------------


def test_a_dialect_of_csv_and_local_times(spark):
    source = replace(VISITS, delimiter=";", timezone="Europe/Berlin")
    header = "SITE;Number; began ;sent;Page;superseded;note"
    texts = [
        'a;1;2024-07-02T08:00:00;2024-07-02 09:00:00Z;"x;""y""";true;',
        "a;2;2024-01-02T08:00;2024-01-02T08:00:00+01:00;;;",
        "a;3;2024-10-27 02:30:00;2024-10-27T03:30:00;p,q;;",  # twice on that night
        "a;4;2024-07-02;2024-07-03;p;false;",
        "a,5,2024-07-02;2024-07-03;p;;;",
    ]
    lines = spark.createDataFrame(
        [(day(1), "f.csv", text) for text in texts],
        f"arrival_date date, source_file string, {TEXT} string",
    )
    records = csv_records(lines, CsvHeader(header), source)
    assert header_columns(CsvHeader(header), source)[:2] == ["site", "number"]
    rows = {row["number"]: row for row in read_versions([records], source, "UTC").collect()}
    assert rows.keys() == {1, 2, 3, 4, None}
    moments = {
        number: (row["began"].isoformat(sep=" "), row["sent"].isoformat(sep=" "))
        for number, row in rows.items()
        if number
    }
    assert moments == {
        1: ("2024-07-02 06:00:00", "2024-07-02 09:00:00"),
        2: ("2024-01-02 07:00:00", "2024-01-02 07:00:00"),
        3: ("2024-10-27 00:30:00", "2024-10-27 02:30:00"),
        4: ("2024-07-01 22:00:00", "2024-07-02 22:00:00"),
    }
    assert [rows[number]["page"] for number in (1, 2, 3)] == ['x;"y"', None, "p,q"]
    assert rows[None][REASON] is not None


BERLIN = replace(VISITS, timezone="Europe/Berlin")


CLOCKS_BACK = date(2024, 10, 27)


def parse_landing(spark, landing: Path, source: Source) -> tuple[ParsedFiles, set[str]]:
    """The parsed files of the day, and the names of those that have lines."""
    deployment = Deployment(load_settings(landing=str(landing)))
    with cache_frames() as cache:
        loader = raw_load.RawLoader(deployment, {"": source}, None, cache, frozenset())
        listing = loader.list_folders(source, [CLOCKS_BACK])
        plan = make_plan(Ledger(source.raw), [CLOCKS_BACK])
        load = raw_load.PlannedLoad(plan, plan.ledger, listing, {}, {})
        parsed = loader.parse_files(lambda: spark, [load])[""]
        return parsed, {row["source_file"] for row in parsed.lines.collect()}


def test_lines_of_two_hours_with_one_local_time_are_counted_with_their_keys(spark, tmp_path):
    """When clocks are set back, both have the earlier moment: one would supersede the other."""
    texts = ["site,number,began,sent"]
    texts += [f"a,{n},2024-10-27 0{n}:30:00,2024-10-27T01:00:00Z" for n in (1, 2, 3)]
    texts += ["a,4,2024-10-27 02:30:00,2024-10-27T01:00:00Z", "a,x,2024-10-27 02:30:00,"]
    twice, once = (f"arrival_date={CLOCKS_BACK}/{name}.csv" for name in ("twice", "once"))
    folder = tmp_path / "visits"
    (folder / twice).parent.mkdir(parents=True)
    (folder / twice).write_text("\n".join(texts))
    (folder / once).write_text("\n".join(texts[:2]))
    parsed, names = parse_landing(spark, tmp_path, BERLIN)
    assert names == {once, twice}
    assert parsed.counts[once].ambiguous == 0
    assert (parsed.counts[twice].accepted, parsed.counts[twice].ambiguous) == (4, 2)
    assert parsed.counts[twice].ambiguous_keys == ("site=a, number=2", "site=a, number=4")
    # Where the later moment is taken, as many are.
    parsed, _ = parse_landing(spark, tmp_path, replace(BERLIN, ambiguous="second"))
    assert (parsed.counts[twice].accepted, parsed.counts[twice].ambiguous) == (4, 2)
    # Held back, the file has no rows.
    parsed, names = parse_landing(spark, tmp_path, replace(BERLIN, ambiguous="raise"))
    assert names == {once}
    assert parsed.landing_files.broken_names == {twice}


AMBIGUOUS_FILES = {
    f"arrival_date={day(1)}/{name}": FileCounts(9, accepted=9, ambiguous=n, ambiguous_keys=keys)
    for name, n, keys in (("a.csv", 2, ("k=1", "k=2")), ("b.csv", 0, ()), ("c.csv", 1, ("k=3",)))
}
HAS_TWICE = "local time that Europe/Berlin has twice, or not at all, as its clocks change, such as"
MEND = "have the source send times in UTC, or with an offset"


def expected_day(
    source: Source, file_counts: Mapping[str, FileCounts] = AMBIGUOUS_FILES
) -> Expectation:
    """What is expected of the first day, loaded from these files."""
    files = [LandingFile(day(1), name.rpartition("/")[2], f"/{name}", 9) for name in file_counts]
    landing_files = LandingFiles(files=files)
    raw_expectations.drop_ambiguous_files(source, landing_files, file_counts)
    counts = {file.source_file: file_counts[file.source_file] for file in landing_files.files}
    listed = {name: ListedFile(name, f"/{name}", 9, 1) for name in counts}
    expectations = raw_expectations.raw_expectations(
        source,
        ParsedFiles(landing_files, frozenset(), None, counts),
        {day(1): LoadTarget(LoadManifest(), listed)},
        RetainedRows(),
        Window(day(1), day(2)),
        raw_expectations.PublishedCounts({}, {}, ()),
        load_settings(),
        (),
    )
    return expectations[day(1)]


def test_ambiguous_lines_are_a_warning_of_their_day_with_the_mend():
    expectation = expected_day(BERLIN)
    assert not expectation.problems
    (warning,) = expectation.warnings
    assert warning.startswith(f"3 line(s) have a {HAS_TWICE} k=1; k=2; k=3: {MEND}. They are")
    assert 'declare the source visits with ambiguous="raise"' in warning
    assert expectation.rows == 27
    (later,) = expected_day(replace(BERLIN, ambiguous="second")).warnings
    assert later == warning.replace("the first of two", "the second of two")


def test_the_lines_with_ambiguous_times_are_counted_by_day():
    parsed = ParsedFiles(LandingFiles(), frozenset(), None, AMBIGUOUS_FILES)
    listed = {name: ListedFile(name, f"/{name}", 9, 1) for name in AMBIGUOUS_FILES}
    # Those of the day before are read for their early lines alone.
    targets = {day(n): LoadTarget(LoadManifest(), listed) for n in (1, 2)}
    counted = partial(
        raw_expectations.ambiguous_figures,
        parsed_files=parsed,
        targets=targets,
        window=Window(day(1), day(3)),
    )
    assert counted(BERLIN) == {day(1): {"ambiguous times": 3}, day(2): {"ambiguous times": 0}}
    assert counted(replace(BERLIN, timezone="UTC")) == {}


def test_a_source_can_hold_back_files_with_ambiguous_lines():
    day_folder = f"arrival_date={day(1)}"
    expectation = expected_day(replace(BERLIN, ambiguous="raise"))
    assert expectation.problems == [
        f"cannot be read: {day_folder}/{name} ({n} line(s) have a {HAS_TWICE} {keys}: {MEND})"
        for name, n, keys in (("a.csv", 2, "k=1; k=2"), ("c.csv", 1, "k=3"))
    ]
    assert not expectation.warnings
    assert expectation.rows == 9


def test_a_field_that_no_line_of_a_day_has_is_a_warning():
    folder = f"arrival_date={day(1)}"
    files = {
        f"{folder}/a.csv": FileCounts(9, accepted=9, lacking=Counter(page=9, user_id=9)),
        f"{folder}/b.csv": FileCounts(
            4, rejected=1, accepted=3, lacking=Counter(page=2, user_id=3)
        ),
        f"{folder}/c.csv": FileCounts(1, rejected=1),
    }
    (warning,) = expected_day(VISITS, files).warnings
    assert warning.startswith(f"no line in {folder} has the field user_id, so it is null in all 12")
    assert "land the files again with the name user_id" in warning
    # Where no line was accepted, nothing is known of its fields.
    assert not expected_day(VISITS, {f"{folder}/c.csv": files[f"{folder}/c.csv"]}).warnings


def test_a_source_without_a_version_time_has_assets():
    """Dagster refuses a lineage that names a column twice."""
    source, deployment = replace(VISITS, version_time=""), Deployment(load_settings())
    assert len(staging.build_staging_assets(deployment, [source])) == 2
    assert staging.build_lateness_asset(deployment, [source]).keys
    assert raw_load.build_raw_assets(deployment, [source]).keys


def test_without_a_version_time_the_line_that_was_logged_last_counts(spark):
    source = replace(VISITS, version_time="")
    assert source.version_time == "began"
    rows = [
        visit_row(A1, 1, 1, "first"),
        visit_row(A1, 2, 1, "second", began=0),
        visit_row(A2, 1, 1),
    ]
    frame = dedup.with_event_day(log_frame(spark, rows), source, "UTC")
    ranked = dedup.rank_in_window(
        dedup.rank_lines(frame, source, 2, corrects=True), source, WEEK, 2
    )
    staged = dedup.drop_superseded(ranked, source).collect()
    assert {(row["number"], row["page"]) for row in staged} == {(1, "second"), (2, "p")}


# --- sources that know only a date ----------------------------------------------------------------


class ShippedItem(pa.DataFrameModel):
    """A line item as TPC-H has it: dates and decimals, no times."""

    l_orderkey: T.LongType = Field(description="The order.")
    l_linenumber: T.LongType = Field(description="The line of it.")
    l_extendedprice: T.DecimalType(15, 2) = Field(description="Its price.")  # type: ignore[valid-type]
    l_shipdate: T.DateType = Field(description="The day of the shipment.")
    l_receiptdate: T.DateType = Field(description="The day of the receipt.")


ITEMS = Source(
    "items",
    ShippedItem,
    key=["l_orderkey", "l_linenumber"],
    event_time="l_shipdate",
    version_time="l_receiptdate",
    amount="l_extendedprice",
)


def item(order: int, price: str, shipped: int, received: int) -> dict[str, Any]:
    return {
        "l_orderkey": order,
        "l_linenumber": 1,
        "l_extendedprice": Decimal(price),
        "l_shipdate": day(shipped),
        "l_receiptdate": day(received),
    }


# By number of their order: of a day, its correction on the day after arrival, late, not yet.
SHIPPED = [item(1, "1.50", 8, 8), item(1, "2.50", 8, 9), item(2, "3.00", 5, 6), item(3, "4", 8, 10)]


@pytest.fixture(scope="module")
def shipped_files(tmp_path_factory) -> Path:
    """The same items in each format, of which each is a source's own."""
    folder = tmp_path_factory.mktemp("landing") / "items" / f"arrival_date={day(8)}"
    folder.mkdir(parents=True)
    texts = [{name: str(value) for name, value in row.items()} for row in SHIPPED]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, texts)))
    rows = [",".join(values) for values in ([*texts[0]], *(row.values() for row in texts))]
    (folder / "a.csv").write_text("\n".join(rows))
    kinds = {"l_extendedprice": pyarrow.decimal128(15, 2)}
    columns = {n: pyarrow.array([r[n] for r in SHIPPED], kinds.get(n)) for n in SHIPPED[0]}
    pq.write_table(pyarrow.table(columns), folder / "a.parquet")
    return folder.parent.parent


def test_a_date_is_the_event_day_in_every_zone_and_format(spark, shipped_files):
    reason = "from the future: its version time lies beyond the day after arrival"
    expected = [(1, day(8), day(8)), (1, day(8), day(9)), (2, day(5), day(8)), (reason, None, None)]
    for zone in ("America/Los_Angeles", "Asia/Tokyo"):
        # The zone of a source is one of its times; a date is none.
        source = replace(ITEMS, timezone=zone)
        probed = probe_files(spark, str(shipped_files), source, Window(day(8), day(9)))
        frames = read_lines(spark, probed, source)
        assert len(frames) == 2  # of text, and of the types of Parquet
        raw = dedup.with_event_day(read_versions(frames, source, zone), source, zone)
        told = F.coalesce(REASON, F.col("l_orderkey").cast("string"))
        event_day = F.when(F.col(REASON).isNull(), F.col("event_date"))
        rows = raw.select("source_file", told, event_day, "log_date").collect()
        assert Counter(tuple(row)[1:] for row in rows) == {
            (str(told), *days): 3 for told, *days in expected
        }
        assert len({tuple(row) for row in rows}) == 12


def test_dates_decide_versions_and_lateness(spark):
    rows = [
        (day(n), day(8), *line.values(), "a")
        for n, line in zip((8, 9, 8), SHIPPED[:3], strict=True)
    ]
    raw = spark.createDataFrame(rows, ITEMS.raw.struct_type)
    frame = dedup.with_event_day(raw, ITEMS, "America/Los_Angeles")
    ranked = dedup.rank_lines(frame, ITEMS, 2, corrects=True)
    in_time = dedup.rank_in_window(ranked, ITEMS, Window(day(1), day(9)), 2)
    staged = dedup.drop_superseded(in_time, ITEMS).collect()
    assert [(r["l_orderkey"], r["l_extendedprice"]) for r in staged] == [(1, Decimal("2.50"))]
    late = staging.late_lines(frame, ITEMS, 2).collect()
    assert [(row["l_orderkey"], row["event_date"]) for row in late] == [(2, day(5))]
    nothing = spark.createDataFrame([], "arrival_date DATE")
    log_window = Window(day(8), day(9))
    (figures,) = lateness_figures(frame, nothing, [ITEMS.lateness], log_window, POLICY).collect()
    assert (figures["late_lines"], figures["beyond_lines"]) == (1, 1)
    assert (figures["delay_days_max"], figures["delay_minutes_max"]) == (3, 24 * 60)
    # An import counts them by the same days, also where the table has text.
    texts = raw.withColumn("l_shipdate", F.col("l_shipdate").cast("string"))
    told = texts.withColumn(ARRIVAL_DAY, F.col("arrival_date"))
    (counts,) = imported_files.counts_by_day(told, ITEMS, POLICY, "America/Los_Angeles").collect()
    assert (counts["rows"], counts["late"], counts["ahead"]) == (3, 1, 0)


class Invoice(pa.DataFrameModel):
    """A line of an invoice, with a date and the time at which it was sent."""

    invoice: T.StringType = Field(description="Names the invoice.")
    text: T.StringType = Field(description="What it says.")
    dated: T.DateType = Field(description="The day of the invoice.")
    sent: T.TimestampType = Field(description="When it was sent.")


def test_a_date_beside_a_time_begins_in_the_business_zone(spark):
    """Else a line that was logged before the day could be greater than one of the day."""
    source = Source("invoices", Invoice, key=["invoice"], event_time="dated", version_time="sent")
    zone = "America/New_York"
    # 22:00 on the second day in New York; the third day begins two hours later, there.
    evening = datetime(*day(3).timetuple()[:3], 3, tzinfo=timezone.utc)
    rows = [
        (day(2), day(2), "i", "of the second day", day(2), evening, "a"),
        (day(3), day(3), "i", "of the third day", day(3), evening - 2 * DAY, "b"),
    ]
    raw = spark.createDataFrame(rows, source.raw.struct_type)
    dated = dedup.with_event_day(raw, source, zone)
    ranked = dedup.rank_in_window(
        dedup.rank_lines(dated, source, 2, corrects=True), source, WEEK, 2
    )
    counting = dedup.drop_superseded(ranked, source).collect()
    assert [(row["text"], row["event_date"]) for row in counting] == [("of the third day", day(3))]
    known = dedup.as_known(dated, source, last_days(2), Window(day(3), day(4)))
    assert [row["text"] for row in known.collect()] == ["of the third day"]
    log_days = dated.select("text", dedup.version_day(source, zone).alias("version_day")).collect()
    assert [row["version_day"] for row in log_days] == [day(2), day(3)]
    nothing = spark.createDataFrame([], "arrival_date DATE")
    log_window = Window(day(3), day(5))
    late = raw.withColumn("log_date", F.date_add("log_date", 1))
    frame = dedup.with_event_day(late, source, zone)
    figures = lateness_figures(frame, nothing, [source.lateness], log_window, POLICY).collect()
    # The evening is 22 hours into its day; the other line was sent before its day began.
    assert [row["delay_minutes_max"] for row in figures] == [22 * 60, 0]


def test_a_group_of_thousands_may_be_the_delimiter_in_quotes():
    assert replace(VISITS, thousands=",").thousands == ","
    with pytest.raises(DeclarationError, match="delimiter and thousands are both ','"):
        replace(VISITS, thousands=",", quote="")


def test_an_alias_that_is_no_name_of_a_column_is_one_in_the_files():
    class Call(VisitLine):
        caller: T.StringType = nullable_column(0.1, 0.2, "Who called.")
        seconds: T.LongType = Field(ge=0, alias="Dauer (s)", description="How long.")
        agent: T.StringType = Field(alias="agent_id", description="Who was called.")

    source = replace(VISITS, lines=Call, rename={"Anrufer": "caller"})
    assert source.fields[-3:] == ("caller", "seconds", "agent_id")
    assert source.rename == {"Dauer (s)": "seconds", "Anrufer": "caller"}
    assert source.lines.__module__ == __name__
    column = source.staged.model.to_schema().columns["seconds"]
    assert (column.description, len(column.checks)) == ("How long.", 1)
    assert source.may_be_null == {"page", "superseded", "caller"}
    names = ["site", "number", "seconds", "began", "sent", "agent_id", "caller"]
    header = "site,number,DAUER (S),began,sent,agent_id,Anrufer"
    assert header_columns(CsvHeader(header), source) == names
    assert replace(source, rename={}).rename == {"Dauer (s)": "seconds"}


@pytest.mark.parametrize(
    ("options", "content", "reason"),
    [
        ({}, b"a,b,c\n1,2,3\n", r"If the source sends no header, declare it with header=False"),
        (
            {"header": False},
            b"SITE,sent,number,page,began,superseded\n",
            "its first line is a header",
        ),
        ({"encoding": "utf-16"}, b"site,sent,number\n", "does not begin with the mark of UTF-16"),
    ],
)
def test_a_file_that_does_not_fit_its_source_says_what_to_declare(
    tmp_path, options, content, reason
):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(LandingError, match=reason):
        read_header(pafs.LocalFileSystem(), str(tmp_path / "a.csv"), replace(VISITS, **options))


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("site,number", ["site", "number"]),
        ("SITE,Number", ["site", "number"]),
        ("SITE,site,number", ["SITE", "site", "number"]),  # that of the field itself counts
    ],
)
def test_names_of_a_header_in_another_case(header, names):
    rest = ",began,sent"
    assert header_columns(CsvHeader(header + rest), VISITS) == [*names, "began", "sent"]


def test_a_header_that_has_a_field_twice_in_another_case_is_none():
    with pytest.raises(LandingError, match="more than one column is named site"):
        header_columns(CsvHeader("SITE,Site,number,began,sent"), VISITS)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("delimiter", "", "one ASCII character"),
        ("delimiter", '"', "one ASCII character"),
        ("delimiter", "\n", "one ASCII character"),
        ("delimiter", ";;", "one ASCII character"),
        ("timezone", "Berlin", "the IANA name of a time zone"),
        ("timezone", ["UTC"], "the IANA name of a time zone"),
        ("ambiguous", "later", 'give "first", "second" or "raise"'),
        ("decimal", ",", "delimiter and decimal are both ','; did you mean delimiter=\";\"?"),
        ("decimal", ";", 'give "." or ","'),
        ("thousands", ".", "thousands and decimal are both '.'; did you mean decimal=\",\"?"),
        ("thousands", "1", "thousands is '1': give one of"),
        ("quote", ",", "delimiter and quote are both ','"),
        ("quote", "''", "quote is \"''\": give one ASCII character"),
        ("comment", '"', "quote and comment are both"),
        ("comment", "-", "comment is '-': give one ASCII character"),
        ("header", "no", "header is 'no': give True or False"),
        ("null", "NULL", "null is 'NULL': give texts, as \\[\"NULL\"\\]"),
        ("encoding", "cp1525", "encoding is 'cp1525': .*; did you mean 'cp1252'"),
        ("encoding", "shift_jis", "give an encoding in which each byte is a character"),
        ("encoding", "rot13", "give an encoding in which each byte is a character"),
        ("rename", {"Page": "pages"}, "'Page' is to be pages, .*; did you mean 'page'"),
        ("rename", {"SITE": "page"}, "'SITE' is the name of a field itself"),
        ("rename", {"URL": "page", "url": "page"}, "'URL' is there twice"),
    ],
)
def test_a_dialect_that_is_none_is_refused(argument, value, expected):
    with pytest.raises(DeclarationError, match=expected):
        replace(VISITS, **{argument: value})
