"""Customers as they were: the dimension, the joins as of a moment, and the proof of no leak."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.profile import find_violations
from backfill_assets.audit.verdicts import DayMetrics, judge_days, measure_days
from backfill_assets.orders.tables import STAGED
from backfill_assets.tables.derived import Derived
from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES
from backfill_assets_guide.examples.customers.dimension import dim_customers
from backfill_assets_guide.examples.customers.orders import (
    SETTLES_AFTER,
    enrich_orders,
    fact_orders_enriched,
    fact_orders_settled,
)
from backfill_assets_guide.examples.customers.sample import create_batches
from backfill_assets_tests.helpers.customers_model import (
    Change,
    Version,
    expected_versions,
    parse_change,
    parse_moment,
    parse_versions,
    version_as_known,
)
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.pipeline import START, day

LAST = 6
LONG_BEFORE, LONG_AFTER = (datetime(year, 3, 1, tzinfo=timezone.utc) for year in (2020, 2025))


def feed_lines(seed: int, days: int = LAST, **more: Any) -> list[tuple[date, Mapping[str, Any]]]:
    """(arrival day, line) of a generated change feed."""
    feed_batches = create_batches(
        start=START, days=days, customers=4, orders_per_day=0, seed=seed, **more
    )
    return [
        (arrival, line)
        for batch in feed_batches
        for arrival, lines in batch["customer_changes"].items()
        for line in lines
    ]


def raw_row(arrival: date, line: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the raw log."""
    times = {name: parse_moment(line[name]) for name in ("changed_at", "ingested_at")}
    logged = {"log_date": parse_change(arrival, line).log_day, "arrival_date": arrival}
    return {**line, **times, **logged, "source_file": "part.jsonl"}


def for_days(
    spark: Any, table: Any, rows: Iterable[tuple[date, Mapping[str, Any]]], name: str = "for_day"
) -> DataFrame:
    """Rows of a table, each for a day."""
    struct = table.struct_type.add(name, "date")
    return spark.createDataFrame([{**row, name: for_day} for for_day, row in rows], struct)


def run_days(
    spark: Any, log: Sequence[Mapping[str, Any]], state: Sequence[Mapping], first: int, last: int
) -> dict[date, list[dict[str, Any]]]:
    """By day, what one run of the days computes from the state of the day before the first."""
    days = [day(n) for n in range(first, last + 1)]
    changes = [
        (for_day, row) for for_day in days for row in log if days[0] <= row["log_date"] <= for_day
    ]
    before = [(for_day, row) for for_day in days for row in state]
    dimension_frame = dim_customers(
        for_days(spark, CUSTOMER_CHANGES.raw, changes), for_days(spark, dim_customers, before)
    )
    rows = [
        {
            name: as_utc(value) if isinstance(value, datetime) else value
            for name, value in fields.items()
        }
        for fields in (
            row.asDict() for row in dim_customers.conform_frame(dimension_frame).collect()
        )
    ]
    return {for_day: [row for row in rows if row["log_date"] == for_day] for for_day in days}


def as_utc(value: datetime | None) -> datetime | None:
    return value and value.replace(tzinfo=timezone.utc)


def in_order(row: Mapping[str, Any]) -> tuple[datetime, bool, datetime]:
    """Where a version stands in a history."""
    return row["valid_from"], row["valid_to"] is None, row["valid_to"] or row["valid_from"]


# --- the dimension --------------------------------------------------------------------------------


def test_the_sample_has_every_trouble():
    lines = feed_lines(7, days=14)
    changes = [parse_change(*feed_line) for feed_line in lines]
    ops = [line["op"] for _, line in lines]
    assert {*ops} == {"insert", "update", "delete"}
    by_customer: dict[str, list[Change]] = {}
    for customer_change in sorted(changes, key=lambda c: c.changed_at):
        by_customer.setdefault(customer_change.customer_id, []).append(customer_change)
    assert any(
        earlier.deleted and not later.deleted
        for customer_changes in by_customer.values()
        for earlier, later in pairwise(customer_changes)
    ), "re-inserted"
    moments = [(c.customer_id, c.changed_at) for c in changes]
    ids = {(*change_moment, c.change_id) for change_moment, c in zip(moments, changes, strict=True)}
    assert len({*moments}) < len(ids), "two changes of a moment"
    assert len({(c.customer_id, c.changed_at.date()) for c in changes}) < len({*moments})
    assert any(c.log_day > c.known_at.date() for c in changes), "shipped late"
    assert any(c.known_at.date() > c.changed_at.date() for c in changes), "taken late"
    assert len({c.change_id for c in changes}) < len({(c.change_id, c.known_at) for c in changes})
    assert len({(c.change_id, c.changed_at) for c in changes}) > len({c.change_id for c in changes})
    assert len(changes) > len({(c.change_id, c.known_at) for c in changes}), "sent again"
    assert feed_lines(7, days=14) == lines
    first, second, third = create_batches(start=START, days=5, seed=3)
    assert [[*batch["orders"]] for batch in (first, second, third)] == [
        [day(1), day(2), day(3)],
        [day(4)],
        [day(5)],
    ]
    with pytest.raises(ValueError, match="three batches"):
        create_batches(start=START, days=2)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), cuts=st.sets(st.integers(1, LAST - 1)))
def test_each_day_is_that_of_the_model_however_the_days_are_run(spark, seed, cuts):
    lines = feed_lines(seed)
    log = [raw_row(*feed_line) for feed_line in lines]
    changes = [parse_change(*feed_line) for feed_line in lines]
    state: list[dict[str, Any]] = []
    ends = [*sorted(cuts), LAST]
    for first, last in zip([1, *(n + 1 for n in ends)], ends, strict=False):
        rows_by_day = run_days(spark, log, state, first, last)
        for log_day, rows in rows_by_day.items():
            assert parse_versions(rows) == expected_versions(changes, log_day)
        state = rows_by_day[day(last)]
    assert state


def change_line(
    id_: str, at: str, ingested: str, status: str = "ok", op: str = "update", customer: str = "c"
) -> dict[str, Any]:
    return {
        "change_id": id_,
        "customer_id": customer,
        "op": op,
        "email_status": status,
        "segment": "auto",
        "country": None,
        "changed_at": f"2024-01-0{at}:00Z",
        "ingested_at": f"2024-01-0{ingested}:00Z",
    }


def version_spans(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str | None]]:
    """(begin, end, change, status), in order."""
    spans = []
    for row in sorted(rows, key=in_order):
        ends = f"{row['valid_to']:%d %H}" if row["valid_to"] else ""
        spans.append((f"{row['valid_from']:%d %H}", ends, row["change_id"], row["email_status"]))
    return spans


def test_a_late_change_splits_history(spark):
    log = [
        raw_row(day(1), change_line("a", "1T08:00", "1T09:00", op="insert")),
        raw_row(day(3), change_line("c", "3T08:00", "3T09:00", "bounced")),
        raw_row(day(4), change_line("b", "2T08:00", "4T09:00", "unsubscribed")),
        raw_row(day(5), change_line("d", "4T08:00", "5T09:00", op="delete")),
        raw_row(day(5), change_line("e", "5T08:00", "5T09:00", op="insert")),
        # A correction onto another moment, which is another place in the history.
        raw_row(day(6), change_line("c", "1T20:00", "6T09:00", "bounced")),
        # An older version of it comes after it.
        raw_row(day(6), change_line("c", "3T10:00", "5T09:00", "nothing")),
    ]
    rows_by_day = run_days(spark, log, [], 1, 6)
    assert version_spans(rows_by_day[day(3)]) == [
        ("01 08", "03 08", "a", "ok"),
        ("03 08", "", "c", "bounced"),
    ]
    # The page shows these two days.
    (page_rows,) = code_blocks("docs/customers.md", "text")
    assert [line.split() for line in page_rows.splitlines()[1:] if line] == [
        [
            str(value.date() if isinstance(value, datetime) else value)
            for name in ("log_date", "valid_from", "valid_to", "change_id", "email_status")
            if (value := row[name])
        ]
        for n in (3, 4)
        for row in sorted(rows_by_day[day(n)], key=in_order)
    ]
    assert version_spans(rows_by_day[day(4)]) == [
        ("01 08", "02 08", "a", "ok"),
        ("02 08", "03 08", "b", "unsubscribed"),
        ("03 08", "", "c", "bounced"),
    ]
    assert version_spans(rows_by_day[day(5)])[2:] == [
        ("03 08", "04 08", "c", "bounced"),
        ("04 08", "05 08", "d", None),
        ("05 08", "", "e", "ok"),
    ]
    assert version_spans(rows_by_day[day(6)]) == [
        ("01 08", "01 20", "a", "ok"),
        ("01 20", "02 08", "c", "bounced"),
        ("02 08", "04 08", "b", "unsubscribed"),
        ("04 08", "05 08", "d", None),
        ("05 08", "", "e", "ok"),
    ]


def test_of_two_changes_of_a_moment_the_one_that_was_known_last_holds(spark):
    log = [
        raw_row(day(1), change_line("z", "1T08:00", "1T09:00")),
        raw_row(day(1), change_line("a", "1T08:00", "1T10:00", "bounced")),
    ]
    assert version_spans(run_days(spark, log, [], 1, 1)[day(1)]) == [
        ("01 08", "01 08", "z", "ok"),
        ("01 08", "", "a", "bounced"),
    ]


def test_a_change_that_was_taken_before_it_holds_is_known_when_it_holds(spark):
    log = [raw_row(day(1), change_line("a", "2T08:00", "1T09:00"))]
    (row,) = run_days(spark, log, [], 2, 2)[day(2)]
    assert row["known_at"] == row["valid_from"] == parse_moment("2024-01-02T08:00:00Z")


# --- its checks -----------------------------------------------------------------------------------


def failed_checks(table: Derived, frame: DataFrame) -> dict[date, dict[str, str]]:
    """By day, what keeps it from being published, by check."""
    measured_days = {**measure_days(frame, table, [*table.check_constraints.values()])}
    broken = find_violations(frame, [table]).get(table.part, {})
    all_of = {
        for_day: DayMetrics(**{**vars(measured), "violations": broken.get(for_day, {})})
        for for_day, measured in measured_days.items()
    }
    return {
        verdict.day: {f.check: f.text for f in verdict.findings if f.severity.value == "error"}
        for verdict in judge_days(table, sorted(all_of), all_of, {}, {})
    }


@pytest.fixture(scope="module")
def sound(spark) -> list[dict[str, Any]]:
    """Two days of a dimension that is in order."""
    log = [raw_row(*feed_line) for feed_line in feed_lines(3)]
    rows_by_day = run_days(spark, log, [], 4, 5)
    return [row for day_rows in rows_by_day.values() for row in day_rows]


def spoil_row(rows: list[dict[str, Any]], *, last: bool, **changes: Any) -> list[dict[str, Any]]:
    """The rows, with one of a history of several on the second day changed."""
    day_rows = [row for row in rows if row["log_date"] == day(5)]
    many = [
        r["customer_id"]
        for r in day_rows
        if sum(r["customer_id"] == o["customer_id"] for o in day_rows) > 2
    ]
    history_ = sorted(
        (row for row in day_rows if row["customer_id"] == min(many)),
        key=in_order,
    )
    chosen = history_[-1] if last else history_[0]
    return [{**row, **changes} if row is chosen else row for row in rows]


#: Whether the last version of a history is changed or the first, in what, and which checks say so.
SPOILT = [
    (False, {}, set()),
    (False, {"valid_to": LONG_AFTER}, {"overlap"}),
    (False, {"valid_to": None}, {"overlap", "conservation"}),
    (False, {"valid_to": None, "is_current": True}, {"overlap", "one_current"}),
    (True, {"valid_from": LONG_AFTER}, {"gap"}),
    (True, {"valid_to": LONG_AFTER, "is_current": False}, {"one_current"}),
    (
        True,
        {"valid_to": LONG_BEFORE, "is_current": False},
        {"one_current", "conservation"},
    ),
    (True, {"logged_on": day(6)}, {"conservation"}),
]


def test_a_history_that_is_not_one_holds_its_day_back(spark, sound):
    """Each case in a month of its own, as a day knows nothing of those of other months."""
    rows = [
        {**row, "log_date": row["log_date"] + month, "logged_on": row["logged_on"] + month}
        for n, (last, changes, _) in enumerate(SPOILT)
        for month in [timedelta(days=30 * n)]
        for row in spoil_row(sound, last=last, **changes)
    ]
    problems = failed_checks(dim_customers, spark.createDataFrame(rows, dim_customers.struct_type))
    for n, (_, changes, said) in enumerate(SPOILT):
        month = timedelta(days=30 * n)
        assert problems[day(4) + month] == {}, changes
        assert problems[day(5) + month].keys() == said, changes


def test_a_finding_names_how_many_and_up_to_three_keys(spark, sound):
    rows = [{**row, "is_current": False} for row in sound]
    problems = failed_checks(dim_customers, spark.createDataFrame(rows, dim_customers.struct_type))
    ids = sorted(row["change_id"] for row in sound if row["log_date"] == day(5))
    assert problems[day(5)]["one_current"] == (
        f"{len(ids)} row(s) that may not be there: ({ids[0]}), ({ids[1]}), ({ids[2]}), ..."
    )
    broken = sum(r["valid_to"] is None for r in sound if r["log_date"] == day(5))
    assert (
        f"{broken} row(s) break the rule is_current = (valid_to IS NULL)"
        in (problems[day(5)]["conservation"])
    )


# --- orders as of their time ----------------------------------------------------------------------


def order_row(id_: str, customer: str | None, at: datetime, event_day: date) -> dict[str, Any]:
    return {
        "event_date": event_day,
        "order_id": id_,
        "customer_id": customer,
        "order_ts": at,
        "amount": Decimal("1.00"),
        "ingestion_ts": at,
        "log_date": event_day,
    }


def attached_version(row: Any) -> tuple[Any, ...] | None:
    if row["change_id"] is None:
        return None
    attributes = (row["email_status"], row["segment"], row["country"])
    return (
        row["change_id"],
        row["is_deleted"],
        attributes,
        as_utc(row["valid_from"]),
        row["logged_on"],
    )


def expected_version(version: Version | None) -> tuple[Any, ...] | None:
    return version and (
        version.change_id,
        version.deleted,
        version.attributes,
        version.valid_from,
        version.logged_on,
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_order_has_the_customer_of_the_model(spark, seed):
    lines = feed_lines(seed)
    changes = [parse_change(*feed_line) for feed_line in lines]
    states = run_days(spark, [raw_row(*feed_line) for feed_line in lines], [], 1, LAST)
    chance = random.Random(seed)
    known = sorted({c.customer_id for c in changes})
    orders = []
    for n in range(200):
        event_day = day(chance.randint(1, LAST))
        at = datetime(event_day.year, event_day.month, event_day.day, tzinfo=timezone.utc)
        at += timedelta(seconds=chance.randrange(86_400))
        orders.append(order_row(f"o{n}", chance.choice([*known, "stranger", None]), at, event_day))
    # At the very moment of a change as well.
    known_change = next(c for c in changes if c.known_at == c.changed_at or c.log_day >= START)
    orders.append(
        order_row(
            "same", known_change.customer_id, known_change.known_at, known_change.known_at.date()
        )
    )
    orders = [o for o in orders if day(1) <= o["event_date"] <= day(LAST)]

    staged = for_days(spark, STAGED, ((o["event_date"], o) for o in orders))
    same = for_days(
        spark, dim_customers, ((for_day, r) for for_day, rows in states.items() for r in rows)
    )
    frame = fact_orders_enriched.conform_frame(fact_orders_enriched(staged, same))
    attached = {row["order_id"]: attached_version(row) for row in frame.collect()}
    assert attached == {
        o["order_id"]: expected_version(
            version_as_known(
                expected_versions(changes, o["event_date"]),
                o["customer_id"],
                o["order_ts"],
                o["order_ts"],
            )
        )
        for o in orders
    }
    assert len({*attached.values()}) > 5
    assert not any(failed_checks(fact_orders_enriched, frame).values())

    # And days later, with the newest state that there is.
    later = for_days(
        spark,
        dim_customers,
        (
            (for_day, row)
            for for_day in {o["event_date"] for o in orders}
            for n in range(SETTLES_AFTER + 1)
            for row in states.get(for_day + timedelta(days=n), ())
        ),
    )
    frame = fact_orders_settled.conform_frame(fact_orders_settled(staged, later))
    settled = {row["order_id"]: attached_version(row) for row in frame.collect()}
    end = datetime(2025, 1, 1, tzinfo=timezone.utc)
    assert settled == {
        o["order_id"]: expected_version(
            version_as_known(
                expected_versions(changes, day(LAST)), o["customer_id"], o["order_ts"], end
            )
        )
        for o in orders
    }
    assert settled != attached
    assert not any(failed_checks(fact_orders_settled, frame).values())


def test_a_settled_order_has_what_was_logged_by_the_end_of_its_seventh_day(spark):
    last = SETTLES_AFTER + 1
    log = [
        raw_row(day(1), change_line("in", "1T08:00", "1T09:00")),
        raw_row(day(last), change_line("last", "1T09:00", f"{last}T23:00", "unsubscribed")),
    ]
    states = run_days(spark, log, [], 1, last)
    at = datetime(2024, 1, 1, 10, tzinfo=timezone.utc)
    orders = for_days(spark, STAGED, [(day(1), order_row("o", "c", at, day(1)))])

    def settled_change(until: int) -> str:
        """The change that an order of the first day carries, by the states that there are."""
        state_rows = [(day(1), row) for n in range(1, until + 1) for row in states[day(n)]]
        (row,) = fact_orders_settled(orders, for_days(spark, dim_customers, state_rows)).collect()
        return row["change_id"]

    assert settled_change(last) == "last"
    assert settled_change(last - 1) == "in"


def order_before_bounce(spark) -> tuple[DataFrame, DataFrame]:
    """An order of 2021, and what is known of its customer in 2026, when an e-mail bounced."""
    inserted, late, bounce = (
        raw_row(date(2026, 5, 2), change_line(id_, "1T00:00", "1T00:00", status) | times)
        for id_, status, times in (
            ("in", "ok", _change_times("2020-01-01", "2020-01-01")),
            ("late", "unsubscribed", _change_times("2021-02-01", "2026-05-01")),
            ("bounce", "bounced", _change_times("2026-05-01", "2026-05-01")),
        )
    )
    at, event_day = datetime(2021, 3, 1, 10, tzinfo=timezone.utc), date(2021, 3, 1)
    empty = for_days(spark, dim_customers, [])
    newest = date(2026, 5, 2)
    changes = for_days(spark, CUSTOMER_CHANGES.raw, [(newest, r) for r in (inserted, late, bounce)])
    customers = dim_customers(changes, empty).withColumn("for_day", F.lit(event_day))
    return for_days(spark, STAGED, [(event_day, order_row("o", "c", at, event_day))]), customers


def _change_times(changed: str, ingested: str) -> dict[str, str]:
    return {"changed_at": f"{changed}T08:00:00Z", "ingested_at": f"{ingested}T09:00:00Z"}


def test_an_order_of_2021_does_not_carry_the_bounce_of_2026(spark):
    orders, customers = order_before_bounce(spark)
    (row,) = enrich_orders(orders, customers, "order_ts").collect()
    assert (row["email_status"], row["change_id"]) == ("ok", "in")
    # With all that is known in 2026, it carries what held in 2021, and not the bounce.
    now = F.lit("2026-12-31").cast("timestamp")
    (row,) = enrich_orders(orders, customers, now).collect()
    assert (row["email_status"], row["change_id"]) == ("unsubscribed", "late")


def test_the_leak_check_fails_on_a_join_without_a_cutoff(spark):
    orders, customers = order_before_bounce(spark)
    # That all of it came with one load in 2026 is another rule's business.
    loaded = customers.withColumn("logged_on", F.to_date("known_at"))
    event_day = date(2021, 3, 1)

    def held_back(frame: DataFrame) -> dict[str, str]:
        return failed_checks(fact_orders_enriched, fact_orders_enriched.conform_frame(frame))[
            event_day
        ]

    assert held_back(enrich_orders(orders, loaded, "order_ts")) == {}
    for_ever = F.lit("9999-12-31").cast("timestamp")
    leaking = enrich_orders(orders, loaded, for_ever)
    assert "known_at <= order_ts" in held_back(leaking)["conservation"]
    # The newest version whatever the moment: what began later is found as well.
    newest = loaded.where("is_current")
    latest = enrich_orders(orders.withColumn("order_ts", for_ever), newest, for_ever)
    back = latest.withColumn("order_ts", F.lit(datetime(2021, 3, 1, 10, tzinfo=timezone.utc)))
    assert "valid_from <= order_ts" in held_back(back)["conservation"]
    # Nor does it help to say nothing of when it was known.
    silent = leaking.withColumn("known_at", F.lit(None).cast("timestamp"))
    assert "known_at IS NOT NULL" in held_back(silent)["conservation"]
    # What came in with a later log day.
    assert (
        "logged_on <= event_date"
        in held_back(enrich_orders(orders, customers, "order_ts"))["conservation"]
    )
