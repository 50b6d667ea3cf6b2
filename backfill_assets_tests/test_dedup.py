"""Which version of a key counts: the SQL of the rule, without Spark, against its plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta

import duckdb
import pandera.pyspark as pa
import pyarrow
import pyspark.sql.types as T
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandera.pyspark import Field

from backfill_assets import Source, nullable_column
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.reach import last_days
from backfill_assets.transforms import dedup
from backfill_assets_tests.helpers.pipeline import day


class ReadingLine(pa.DataFrameModel):
    """A version of a reading; one of its fields has a name that SQL has as well."""

    sent: T.TimestampType = Field(description="When the meter sent it.")
    meter: T.StringType = Field(description="The meter.")
    value: T.StringType = nullable_column(1.0, 1.0, "The value.")
    number: T.LongType = Field(description="Of the reading, of its meter.")
    read: T.TimestampType = Field(description="When it was read.")
    order: T.LongType = nullable_column(1.0, 1.0, "What the meter calls order.")


READINGS = Source(
    "readings", ReadingLine, key=["meter", "number"], event_time="read", version_time="sent"
)
COLUMNS = pyarrow.schema(
    [
        ("line", pyarrow.int64()),
        ("meter", pyarrow.string()),
        ("number", pyarrow.int64()),
        ("read", pyarrow.timestamp("us")),
        ("sent", pyarrow.timestamp("us")),
        ("log_date", pyarrow.date32()),
        ("event_date", pyarrow.date32()),
        ("value", pyarrow.string()),
        ("order", pyarrow.int64()),
    ]
)


@dataclass(frozen=True)
class Line:
    """A line of the log; its day is that of the event."""

    meter: str
    number: int
    read: datetime
    sent: datetime
    log_date: date
    value: str | None = None
    order: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.meter, self.number

    @property
    def event_date(self) -> date:
        return self.read.date()

    @property
    def version(self) -> tuple:
        """What is compared, one after the other; what is known is greater than what is not."""
        return (
            max(self.read, self.sent),
            self.log_date,
            self.read,
            self.sent,
            *((value is not None, value or type(value)()) for value in (self.order, self.value)),
        )


def is_greater(other: Line, line: Line) -> bool:
    return other.key == line.key and other.version > line.version


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that knows the functions by which Spark reckons with days."""
    with duckdb.connect() as connection:
        connection.execute("CREATE MACRO datediff(later, day) AS date_diff('day', day, later)")
        connection.execute("CREATE MACRO date_add(day, days) AS CAST(day + days AS DATE)")
        connection.execute("CREATE MACRO date_sub(day, days) AS CAST(day - days AS DATE)")
        yield connection


Run = Callable[..., list[tuple]]


@pytest.fixture(scope="module")
def run(database: duckdb.DuckDBPyConnection) -> Run:
    """What SQL expressions say of lines: the number of each line, and its values."""

    def run_expressions(lines: list[Line], *expressions: str) -> list[tuple]:
        rows = [
            {"line": n, **{name: getattr(line, name) for name in COLUMNS.names[1:]}}
            for n, line in enumerate(lines)
        ]
        log = pyarrow.Table.from_pylist(rows, COLUMNS)
        values = database.from_arrow(log).project(", ".join(["line", *expressions]))
        return sorted(values.fetchall())

    return run_expressions


def at(day_number: int, minutes: int = 0) -> datetime:
    return datetime.combine(day(day_number), time()) + timedelta(minutes=minutes)


KEYS = st.tuples(st.sampled_from("ab"), st.integers(1, 2))
MOMENTS = st.builds(at, st.integers(1, 6), st.integers(0, 1))


@st.composite
def log_lines(draw: st.DrawFn) -> Line:
    """A line like others: of few keys, days, moments and values; logged when it was sent, or after.

    Nothing is logged before the day of what it tells.
    """
    meter, number = draw(KEYS)
    read, sent = draw(MOMENTS), draw(MOMENTS)
    log_date = max(read, sent).date() + draw(st.integers(0, 4)) * DAY
    value, order = draw(st.sampled_from([None, "x", "y"])), draw(st.sampled_from([None, 1, 2]))
    return Line(meter, number, read, sent, log_date, value, order)


LOGS = st.lists(log_lines(), min_size=1, max_size=12, unique=True)
WINDOW_DAYS = st.integers(0, 3)
CHEAP = settings(max_examples=30, deadline=None)


def of_key() -> str:
    """The versions of a key."""
    return dedup.greatest_first(READINGS, *READINGS.key)


@pytest.mark.parametrize(
    ("lesser", "greater"),
    [
        # The later of the two times decides, whichever it is.
        (Line("a", 1, at(1), at(1, 10), day(9)), Line("a", 1, at(1), at(1, 20), day(1))),
        (Line("a", 1, at(1), at(1, 20), day(9)), Line("a", 1, at(1, 30), at(1), day(1))),
        # Then the log day, and then the event time before the version time.
        (Line("a", 1, at(1, 9), at(1), day(1)), Line("a", 1, at(1), at(1, 9), day(2))),
        (Line("a", 1, at(1, 3), at(1, 9), day(1)), Line("a", 1, at(1, 4), at(1, 9), day(1))),
        (Line("a", 1, at(1, 3), at(1, 9), day(1)), Line("a", 1, at(1, 9), at(1, 3), day(1))),
        (Line("a", 1, at(1, 9), at(1, 3), day(1)), Line("a", 1, at(1, 9), at(1, 4), day(1))),
        # Then the other fields, the last one first; what is known before what is not.
        (Line("a", 1, at(1), at(1), day(1), "z", 1), Line("a", 1, at(1), at(1), day(1), "a", 2)),
        (Line("a", 1, at(1), at(1), day(1), "z"), Line("a", 1, at(1), at(1), day(1), None, 0)),
        (Line("a", 1, at(1), at(1), day(1), "a"), Line("a", 1, at(1), at(1), day(1), "b")),
        (Line("a", 1, at(1), at(1), day(1)), Line("a", 1, at(1), at(1), day(1), "")),
    ],
)
def test_the_greatest_version_comes_first(run, lesser, greater):
    place = f"row_number() OVER ({of_key()})"
    assert run([lesser, greater], place) == [(0, 2), (1, 1)]
    assert run([greater, lesser], place) == [(0, 1), (1, 2)]


@CHEAP
@given(lines=LOGS)
def test_versions_are_ordered_within_their_key(run, lines):
    places = [(n, 1 + sum(is_greater(o, line) for o in lines)) for n, line in enumerate(lines)]
    assert run(lines, f"row_number() OVER ({of_key()})") == places


@CHEAP
@given(lines=LOGS, window_days=WINDOW_DAYS)
def test_a_version_counts_if_it_is_the_greatest_at_the_end_of_its_days_window(
    run, lines, window_days
):
    def counts(line: Line) -> bool:
        end = line.event_date + window_days * DAY
        known = [other for other in lines if other.log_date <= end]
        return line in known and not any(is_greater(other, line) for other in known)

    in_time = dedup.within_window(window_days)
    superseded = dedup.is_superseded(of_key(), window_days)
    expected = [(n, counts(line)) for n, line in enumerate(lines)]
    assert run(lines, f"{in_time} AND NOT {superseded}") == expected


@CHEAP
@given(lines=LOGS, window_days=WINDOW_DAYS)
def test_with_everything_known_now_the_greatest_version_counts(run, lines, window_days):
    latest = dedup.is_latest(of_key(), window_days, corrects=True)
    greatest = [not any(is_greater(other, line) for other in lines) for line in lines]
    assert run(lines, latest) == [*enumerate(greatest)]


@CHEAP
@given(lines=LOGS, window_days=WINDOW_DAYS)
def test_late_lines_that_are_dropped_only_take_a_key_away_from_a_day_that_was_open(
    run, lines, window_days
):
    def is_late(line: Line) -> bool:
        return line.log_date > line.event_date + window_days * DAY

    def replaces(other: Line, line: Line) -> bool:
        was_open = other.log_date <= line.event_date + window_days * DAY
        return is_greater(other, line) and (was_open or not is_late(other))

    latest = dedup.is_latest(of_key(), window_days, corrects=False)
    expected = [not is_late(v) and not any(replaces(o, v) for o in lines) for v in lines]
    assert run(lines, latest) == [*enumerate(expected)]


@CHEAP
@given(
    lines=LOGS,
    before=st.integers(0, 3),
    days=st.builds(lambda n, count: Window(day(n), day(n + count)), st.integers(1, 9), WINDOW_DAYS),
)
def test_a_row_counts_on_each_day_at_whose_end_it_was_the_greatest_that_was_known(
    run, lines, before, days
):
    reach = last_days(before + 1)
    ends = dedup.known_days(READINGS, reach, days)
    counting = {
        (n, d)
        for n, first, last in run(lines, *ends.values())
        for d in Window(first, max(first, last + DAY))
    }
    expected = set()
    for d in days:
        known = [line for line in lines if line.log_date <= d]
        for line in known:
            in_reach = d - before * DAY <= line.event_date <= d
            if in_reach and not any(is_greater(other, line) for other in known):
                expected.add((lines.index(line), d))
    assert [*ends] == ["first_for_day", "last_for_day"]
    assert counting == expected


def test_a_date_is_compared_with_a_date_and_beside_a_time_as_the_moment_at_which_it_begins():
    class Dated(ReadingLine):
        read: T.DateType = Field(description="The day on which it was read.")

    class Dates(Dated):
        sent: T.DateType = Field(description="The day on which the meter sent it.")

    def compared(model: type[pa.DataFrameModel]) -> str:
        source = replace(READINGS, lines=model)
        return dedup.greatest_first(source).partition("greatest(")[2].partition(")")[0]

    assert compared(ReadingLine) == compared(Dates) == "`read`, `sent`"
    assert compared(Dated) == "`_begin_of_date`, `sent`"
    # That moment is no column of staging.
    for model, others in {ReadingLine: [], Dates: [], Dated: ["_begin_of_date"]}.items():
        source = replace(READINGS, lines=model)
        assert dedup.version_columns(source) == [*source.staged.columns, *others]


def test_versions_are_compared_within_the_columns_that_are_named():
    """Such as those of a key on each of two sides."""
    assert dedup.greatest_first(READINGS, "_side", "a`b").startswith(
        "PARTITION BY `_side`, `a``b` ORDER BY greatest(`read`, `sent`) DESC NULLS LAST, "
    )
