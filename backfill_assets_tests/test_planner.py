"""The plan of a backfill: its days, runs, files and warnings, without Spark."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets.backfills import planner
from backfill_assets.backfills.backfill_plan import (
    ApiCallEstimate,
    BackfillPlan,
    BackfillRequest,
    FirstChange,
    Skew,
    Stage,
    TableForecast,
    find_first_change,
    plan_facts,
)
from backfill_assets.backfills.forecast import ROWS_OF_DAY, ROWS_OF_RUN
from backfill_assets.backfills.planner import (
    add_sampled_skews,
    days_by_table,
    explain_left_out,
    last_change,
    make_plan,
    plan_backfill,
    refuse_invalid_request,
    split_runs,
    total_rows,
    unusual_rows,
)
from backfill_assets.calendar.partitions import DaySet, Window, to_ranges
from backfill_assets.delta.ledgers import Ledger, StoredFiles
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import list_landing
from backfill_assets.landing.load_manifest import NO_FOLDER, LoadedFile, LoadManifest
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATENESS,
    ORDER_LINES,
    RAW,
    REJECTED,
    STAGED,
)
from backfill_assets.settings import load_settings
from backfill_assets.staleness import unloaded
from backfill_assets.staleness.assess import REQUESTED
from backfill_assets.staleness.unloaded import digest_load_plans, plan_load
from backfill_assets_guide.examples.web_events import VISITS
from backfill_assets_tests.helpers.invented_listings import write_landing
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.invented_runs import CODE, InventedRuns
from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.pipeline import END, START, day
from backfill_assets_tests.planned_tables import (
    WATCHED,
    after_balance,
    balance,
    order_counts,
    taken,
    taken_retired,
    weekly,
)


def make_deployment(**overrides) -> Deployment:
    values = {
        "tables": "backfill_assets_tests.planned_tables:TABLES",
        "start": START,
        "end": END,
        "window_days": 2,
        "partitions_per_run": 2,
    }
    return Deployment(load_settings(**{**values, **overrides}))


DEPLOYMENT = make_deployment()


def window(first: int, last: int) -> Window:
    return Window(day(first), day(last + 1))


def dates(*numbers: int) -> list[date]:
    return [day(n) for n in numbers]


# --- the days of each table -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "first", "last", "expected"),
    [
        # What is touched by log days 4 and 5 are event days 2 to 5.
        (
            [RAW, REJECTED, STAGED, FACT, weekly],
            9,
            10,
            {
                RAW.name: [9, 10],
                REJECTED.name: [9, 10],
                STAGED.name: [7, 8, 9, 10],
                FACT.name: [7, 8, 9, 10],
                weekly.name: [1, 8],
            },
        ),
        # Without an input among them, tables have the requested days.
        ([FACT, REJECTED], 9, 10, {FACT.name: [9, 10], REJECTED.name: [9, 10]}),
        ([weekly], 9, 10, {weekly.name: [8]}),
        # All inputs count.
        (
            [RAW, FACT, CURRENT, CORRECTIONS],
            9,
            9,
            {RAW.name: [9], FACT.name: [9], CURRENT.name: [7, 8, 9], CORRECTIONS.name: [7, 8, 9]},
        ),
        ([REJECTED, LATENESS], 9, 9, {REJECTED.name: [9], LATENESS.name: [9]}),
        # The week from the 29th on is not over when the calendar ends: it is no partition.
        ([FACT, weekly], 31, 31, {FACT.name: [31]}),
        ([weekly], 28, 29, {weekly.name: [22]}),
    ],
)
def test_the_days_of_a_table_follow_from_those_of_its_inputs(tables, first, last, expected):
    names = [table.name for table in tables]
    assert days_by_table(DEPLOYMENT, names, window(first, last)) == {
        name: dates(*numbers) for name, numbers in expected.items()
    }


# --- runs -----------------------------------------------------------------------------------------


def list_runs(**numbers_by_table: list[int]) -> list[tuple[list[str], list[str]]]:
    by_table = {name: dates(*numbers) for name, numbers in numbers_by_table.items()}
    return [
        (names, [str(window) for window in windows])
        for names, windows in split_runs(DEPLOYMENT, by_table)
    ]


def test_tables_of_the_same_days_are_built_in_the_same_runs():
    assert list_runs(stg_orders=[1, 2, 3], fact_daily_orders=[1, 2, 3], in_euros=[1, 2]) == [
        (
            ["stg_orders", "fact_daily_orders"],
            ["2024-01-01...2024-01-02", "2024-01-03"],
        ),
        (["in_euros"], ["2024-01-01...2024-01-02"]),
    ]


def test_a_table_without_days_has_no_run():
    assert list_runs(stg_orders=[], fact_daily_orders=[2]) == [
        (["fact_daily_orders"], ["2024-01-02"])
    ]
    assert list_runs(stg_orders=[]) == []


def test_days_and_weeks_are_built_in_runs_of_their_own():
    """The first of the days is the name of the week as well."""
    assert list_runs(fact_daily_orders=[1], weekly=[1]) == [
        (["fact_daily_orders"], ["2024-01-01"]),
        (["weekly"], ["2024-01-01"]),
    ]


def test_a_table_that_reads_other_days_is_built_after_all_runs_that_build_them():
    both = {"stg_orders": [1, 2, 3], "two_days_in_euros": [1, 2, 3]}
    windows = ["2024-01-01...2024-01-02", "2024-01-03"]
    assert list_runs(**both) == [(["stg_orders"], windows), (["two_days_in_euros"], windows)]
    # In one run, tables are built one after another.
    assert list_runs(stg_orders=[1, 2], two_days_in_euros=[1, 2]) == [
        (["stg_orders", "two_days_in_euros"], ["2024-01-01...2024-01-02"])
    ]


def test_a_table_joins_no_runs_before_those_of_what_it_is_built_from():
    order_of_runs = [
        (["raw_orders"], ["2024-01-03"]),
        (["stg_orders", "in_euros"], ["2024-01-02...2024-01-03"]),
        (["fact_daily_orders"], ["2024-01-03"]),
    ]
    assert (
        list_runs(raw_orders=[3], stg_orders=[2, 3], in_euros=[2, 3], fact_daily_orders=[3])
        == order_of_runs
    )
    # The rejected lines are not built from the staging.
    assert list_runs(raw_orders=[3], stg_orders=[2, 3], raw_orders_rejected=[3]) == [
        (["raw_orders", "raw_orders_rejected"], ["2024-01-03"]),
        (["stg_orders"], ["2024-01-02...2024-01-03"]),
    ]


def test_runs_of_a_table_of_its_own_past_come_one_after_another():
    assert list_runs(fact_daily_orders=[4, 5, 6], balance=[1, 2, 3], after_balance=[1, 2, 3]) == [
        (["fact_daily_orders"], ["2024-01-04...2024-01-05", "2024-01-06"]),
        (["balance", "after_balance"], ["2024-01-01...2024-01-02"]),
        (["balance", "after_balance"], ["2024-01-03"]),
    ]


# --- requests that are refused --------------------------------------------------------------------


def make_request(first: int = 1, last: int = 3, *tables: str, **more) -> BackfillRequest:
    return BackfillRequest(days=str(window(first, last)), tables=tables, **more)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            make_request(31, 32),
            "'2024-01-31...2024-02-01' is not in the calendar, which is 2024-01-01...2024-01-31: "
            "give FIRST...LAST or one day, as YYYY-MM-DD, the first not after the last",
        ),
        (
            make_request(1, 3, "no_table", FACT.name, "another"),
            f"no such table: another, no_table; there are {[*DEPLOYMENT.tables]}",
        ),
        (
            make_request(29, 31, weekly.name),
            "there is nothing to build: weekly[2024-01-29] ends after the calendar, on 2024-02-04",
        ),
        (
            make_request(1, 3, pilot_days=3),
            "a pilot of 3 day(s) leaves nothing of the 3 day(s) 2024-01-01...2024-01-03: give "
            "fewer pilot days, or none",
        ),
        (
            make_request(1, 1, pilot_days=1),
            "a pilot of 1 day(s) leaves nothing of the 1 day(s) 2024-01-01: give fewer pilot "
            "days, or none",
        ),
        (
            make_request(1, 3, FACT.name, STAGED.name, accept=("a.jsonl", "b.jsonl")),
            "a.jsonl, b.jsonl is accepted for nothing: only raw_orders, raw_orders_rejected are "
            "loaded from files, and none of them is among the tables",
        ),
    ],
)
def test_a_request_of_which_a_part_would_do_nothing_is_refused(request_, message):
    with pytest.raises(ValueError) as refusal:
        refuse_invalid_request(DEPLOYMENT, request_)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "request_",
    [
        make_request(),
        make_request(1, 31, FACT.name),
        make_request(1, 3, pilot_days=2),
        make_request(1, 3, REJECTED.name, FACT.name, accept=("a.jsonl",)),
        make_request(1, 3, accept=("a.jsonl",)),
    ],
)
def test_other_requests_are_not_refused(request_):
    refuse_invalid_request(DEPLOYMENT, request_)


def test_weeks_that_cannot_be_built_are_named_with_the_day_on_which_they_are_due(monkeypatch):
    monkeypatch.setattr("backfill_assets.deployment.datetime", _LastHourOfFebruary)
    deployment = make_deployment(start=day(3), end=None, lag_days=2)
    begins = "weekly[2024-01-01] begins before its first day, 2024-01-03"
    is_open = "weekly[2024-02-26] is not over before 2024-03-03: it is due on 2024-03-05"
    with pytest.raises(ValueError) as refusal:
        refuse_invalid_request(deployment, make_request(3, 7, weekly.name))
    assert str(refusal.value) == f"there is nothing to build: {begins}"
    request = make_request(3, 57, FACT.name, weekly.name)
    refuse_invalid_request(deployment, request)
    explained = explain_left_out(deployment, request.tables, request.window, date(2024, 2, 29))
    assert [*explained] == [begins, is_open]
    assert [*explain_left_out(deployment, request.tables, request.window, date(2024, 3, 4))] == [
        begins
    ]
    # A day that is still to come is planned all the same.
    assert [*explain_left_out(deployment, [FACT.name], request.window, day(9))] == []


class _LastHourOfFebruary(datetime):
    """In UTC it is the 29th of February, and in Tokyo the first of March."""

    @classmethod
    def now(cls, tz=None):
        return datetime(2024, 2, 29, 23, tzinfo=timezone.utc).astimezone(tz)


@pytest.mark.parametrize(
    ("zone", "is_retired"), [("UTC", False), ("Asia/Tokyo", True), ("America/New_York", False)]
)
def test_a_table_is_retired_from_a_day_of_the_business_on(zone, is_retired, monkeypatch):
    monkeypatch.setattr("backfill_assets.deployment.datetime", _LastHourOfFebruary)
    deployment = make_deployment(timezone=zone)
    request = make_request(1, 3, taken_retired.name)
    if not is_retired:
        refuse_invalid_request(deployment, request)
        return
    with pytest.raises(ValueError, match="taken_retired is retired since 2024-03-01: no day"):
        refuse_invalid_request(deployment, request)


# --- the plan -------------------------------------------------------------------------------------


@pytest.fixture
def deployment(tmp_path) -> Deployment:
    """With nothing in the landing and the warehouse."""
    (tmp_path / "landing" / "orders").mkdir(parents=True)
    return make_deployment(landing=str(tmp_path / "landing"), warehouse=str(tmp_path / "warehouse"))


def land(deployment, n, *lines, name="part-0.jsonl") -> str:
    """Put a file into the folder of an arrival day, and return its name in the tables."""
    source_file = f"arrival_date={day(n)}/{name}"
    path = f"{deployment.settings.landing}/orders/{source_file}"
    folder = Path(path).parent
    folder.mkdir(exist_ok=True)
    Path(path).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return source_file


def plan(runs, numbers_by_table, *, last_days=None, history=(), **more) -> BackfillPlan:
    """A plan of the third and the fourth day, and of what is given by table."""
    return plan_backfill(
        runs.deployment,
        make_request(3, 4, *numbers_by_table, **more),
        {name: dates(*numbers) for name, numbers in numbers_by_table.items()},
        runs.ledgers,
        CODE,
        "plan",
        history,
        {name: dates(*numbers) for name, numbers in (last_days or {}).items()},
    )


def store_files(runs, table, **stored):
    runs.ledgers[table.name] = replace(
        runs.ledgers[table.name],
        stored={day(int(n[1:])): StoredFiles(*files) for n, files in stored.items()},
    )


def make_manifest(files, *, held=(), present=()) -> dict:
    return LoadManifest(
        files, days(*present), awaiting_approval={name: files[name].digest for name in held}
    ).as_json


def loaded_file(deployment, source_file: str) -> LoadedFile:
    """A file of the landing as a load records it."""
    listing = list_landing(deployment.settings.landing, RAW.source)
    (entry,) = (
        file
        for folder in listing.folders.values()
        for name, file in folder.files.items()
        if name == source_file
    )
    return LoadedFile(entry.size, entry.mtime, listing.content_digests([entry])[entry])


@pytest.fixture
def runs(deployment) -> InventedRuns:
    """Five days are built; since, one file was replaced, and one waits for a person."""
    runs = InventedRuns(deployment)
    replaced = land(deployment, 2, {"replaced": 1})
    held = land(deployment, 4, {"is_held": 1})
    land(deployment, 5, {"outside": 1})
    landed = {name: loaded_file(deployment, name) for name in (replaced, held)}
    before = {**landed, replaced: LoadedFile(1, 1, "before")}
    manifests = {
        day(3): make_manifest({replaced: before[replaced]}, present=[2]),
        day(4): make_manifest({held: landed[held]}, held=[held], present=[4]),
    }
    for n in range(1, 6):
        landing = {day(n): manifests[day(n)]} if day(n) in manifests else {}
        digest = LoadManifest.from_record(landing[day(n)]).content_digest() if landing else ""
        runs.build(RAW, n, rows=n * 100, event_days=days(n), landing=landing, input_digest=digest)
    runs.build(STAGED, (1, 7), rows=10)
    runs.build(FACT, (1, 7), rows=5, final=days(1, 5))
    runs.build_all([balance, after_balance], (1, 6))
    runs.build(weekly, 1)
    store_files(runs, RAW, **{f"n{n}": (1, n) for n in range(1, 6)})
    store_files(runs, STAGED, **{f"n{n}": (2, 10 * n) for n in range(1, 5)})
    return runs


LOADED = {
    RAW.name: [3, 4],
    STAGED.name: [1, 2, 3, 4],
    FACT.name: [1, 2, 3, 4],
    "in_euros": [3],
}


def plan_files(deployment, runs, *numbers: int, accept=()) -> str:
    """The digest of what is to be loaded for log days."""
    log = runs.ledgers[RAW.name]
    landing = deployment.settings.landing
    loaded = plan_load(landing, RAW.source, log, days(*numbers), deployment.policy, accept)
    return digest_load_plans({RAW.name: loaded})


REPLACED, HELD = (f"arrival_date=2024-01-0{n}/part-0.jsonl" for n in (2, 4))


def test_a_plan_of_a_load_and_of_what_follows_it(runs, deployment):
    assert plan(runs, LOADED, history=[(2, 20.0)]) == BackfillPlan(
        id="plan",
        parameters=make_request(3, 4, *LOADED),
        code_version="code",
        code_versions=dict.fromkeys(LOADED, "code"),
        code="code (commit unknown)",
        config_digest=deployment.settings.digest,
        versions={RAW.name: 4, STAGED.name: 0, FACT.name: 0, "in_euros": None},
        landing=plan_files(deployment, runs, 3, 4),
        held=(HELD,),
        replaced=(REPLACED,),
        tables={
            RAW.name: TableForecast(
                identical=("2024-01-04",),
                computed=("2024-01-03",),
                why={"other content": ("2024-01-03",)},
            ),
            STAGED.name: TableForecast(
                identical=("2024-01-04",),
                depends=("2024-01-01...2024-01-03",),
                why={"new input: raw_orders": ("2024-01-01...2024-01-03",)},
            ),
            FACT.name: TableForecast(
                identical=("2024-01-04",),
                depends=("2024-01-01...2024-01-03",),
                final=("2024-01-01",),
                why={"new input: stg_orders": ("2024-01-01...2024-01-03",)},
            ),
            "in_euros": TableForecast(
                computed=("2024-01-03",), why={"never published": ("2024-01-03",)}
            ),
        },
        keys={
            STAGED.name: ("order_id",),
            FACT.name: ("customer_id",),
            "in_euros": ("order_id",),
        },
        # A line changes days up to two before its own.
        only_read={RAW.name: ("2024-01-01...2024-01-02", "2024-01-05")},
        following={
            balance.name: ("2024-01-01...2024-01-06",),
            after_balance.name: ("2024-01-01...2024-01-06",),
            weekly.name: ("2024-01-01",),
        },
        # Of the landing those of days 2 to 4; then of the log, and of the staging for two tables.
        files=2 + 5 + 3 * 2 + 2,
        size=(16 + 15) + (1 + 2 + 3 + 4 + 5) + (10 + 20 + 30) + 30,
        commits=4,
        # The log is loaded before the rest is built.
        runs=2,
        seconds=2 * 20.0,
        calls={
            "exchange_rates": ApiCallEstimate(
                at_most=10,
                seconds=10 * 86400 / 8000,
                quota="10 a second and 10,000 a day",
                reserve=0.2,
            )
        },
        # The file has 16 bytes, and 16 bytes had 700 rows.
        cut=(
            Stage(
                name="rest",
                days="2024-01-03...2024-01-04",
                work=4 * (ROWS_OF_RUN + ROWS_OF_DAY + 700),
            ),
        ),
    )


def test_files_that_a_person_accepts_wait_no_more(runs, deployment):
    result = plan(runs, {RAW.name: [3, 4]}, accept=(HELD, REPLACED))
    assert (result.held, result.replaced) == ((), ())
    assert result.landing == plan_files(deployment, runs, 3, 4, accept=(HELD, REPLACED))
    assert result.tables[RAW.name].why == {
        "new input": ("2024-01-03",),
        "accepted files": ("2024-01-04",),
    }


def test_days_of_rejected_lines_are_loaded_with_those_of_the_log(runs, deployment):
    result = plan(runs, {RAW.name: [4], REJECTED.name: [3]})
    assert result.landing == plan_files(deployment, runs, 3, 4)
    assert result.tables[REJECTED.name].why == {"never published": ("2024-01-03",)}
    only_rejected = plan(runs, {REJECTED.name: [3]})
    assert only_rejected.landing == plan_files(deployment, runs, 3)
    assert (only_rejected.held, only_rejected.replaced) == ((), (REPLACED,))


def test_a_plan_of_days_that_are_as_they_would_be_does_nothing(runs):
    result = plan(runs, {FACT.name: [3, 4], weekly.name: [1]})
    expected = {
        FACT.name: TableForecast(identical=("2024-01-03...2024-01-04",)),
        weekly.name: TableForecast(identical=("2024-01-01",), apart=7),
    }
    assert result.tables == expected
    assert (result.landing, result.keys, result.only_read, result.following) == ("", {}, {}, {})
    assert (result.files, result.size, result.commits, result.seconds) == (0, 0, 0, 0)
    assert (result.runs, result.calls, result.skews) == (1, {}, ())
    assert result.versions == {STAGED.name: 0, FACT.name: 0, weekly.name: 0}
    assert result.cut == (Stage(name="rest", days="2024-01-03...2024-01-04", work=0),)


def test_without_a_past_run_no_time_is_told(runs):
    planned = {STAGED.name: [3, 4], FACT.name: [3, 4]}
    assert plan(runs, planned, rewrite=True).seconds is None
    # One run after another: there is nothing to load first.
    result = plan(runs, planned, rewrite=True, history=[(1, 5.0)])
    assert (result.runs, result.seconds) == (1, 10.0)
    loaded = plan(runs, {RAW.name: [3, 4]}, history=[(1, 5.0)])
    assert (loaded.runs, loaded.seconds) == (1, 10.0)


def test_what_follows_the_last_day_is_work_of_its_stage(runs):
    planned = {STAGED.name: [1, 2, 3, 4]}
    for last_days, days_of_work in (({}, 2), ({STAGED.name: [2, 3, 4]}, 4)):
        (stage,) = plan(runs, planned, rewrite=True, last_days=last_days).cut
        work = [ROWS_OF_DAY + n * 100 for n in (4, 3, 2, 1)[:days_of_work]]
        assert stage.work == ROWS_OF_RUN + sum(work)


def test_a_plan_in_stages(runs):
    """Runs have at most two days, and none has days of two ranges."""
    request = BackfillRequest(
        days="2024-01-01...2024-01-04, 2024-01-06",
        tables=(STAGED.name,),
        rewrite=True,
        pilot_days=1,
        chunk_days=3,
    )
    planned = {STAGED.name: [*request.window]}
    result = plan_backfill(runs.deployment, request, planned, runs.ledgers, CODE, "plan")
    works = [ROWS_OF_DAY + n * 100 for n in (1, 2, 3, 4)]
    assert result.cut == (
        Stage(name="pilot", days="2024-01-01", work=ROWS_OF_RUN + works[0]),
        Stage(name="001", days="2024-01-02...2024-01-04", work=ROWS_OF_RUN + sum(works[1:])),
        Stage(name="002", days="2024-01-06", work=ROWS_OF_RUN),
    )
    assert (result.runs, result.commits) == (4, 4)


def test_the_pilot_begins_with_a_day_that_changes(runs):
    """Day 4 of the log is as it would be loaded; the plan says why it begins with day 5."""
    request = make_request(4, 5, RAW.name, pilot_days=1)
    planned = {RAW.name: dates(4, 5)}
    result = plan_backfill(runs.deployment, request, planned, runs.ledgers, CODE, "plan")
    assert [(stage.name, stage.days) for stage in result.cut] == [
        ("pilot", "2024-01-05"),
        ("rest", "2024-01-04"),
    ]
    assert dict(plan_facts(result))["pilot"] == (
        "2024-01-05: raw_orders [2024-01-05] is the first to change (input not on record)"
    )


def test_totals_of_a_plan_and_what_is_unusual_in_it():
    january = ("2024-01-01...2024-01-09",)
    forecasts = {
        "raw": TableForecast(
            computed=january,
            why={
                "never published": ("2024-01-01...2024-01-08",),
                f"never published; {NO_FOLDER}": ("2024-01-09",),
            },
        ),
        "a": TableForecast(identical=january),
        "b": TableForecast(computed=january, why={"new input: raw, a": january}),
        "c": TableForecast(
            computed=("2024-01-01...2024-01-08",),
            lacking=("2024-01-09",),
            why={"new input: b": ("2024-01-01...2024-01-08",)},
        ),
        "d": TableForecast(depends=january, why={"other code: x → 1": january}),
    }
    plan = BackfillPlan.model_construct(tables=forecasts)
    assert [*total_rows(plan)] == [
        ("9 computed", "never published", "raw", "2024-01-01...2024-01-09"),
        ("9 identical", "", "a", "2024-01-01...2024-01-09"),
        ("17 computed", "new input", "b, c", "2024-01-01...2024-01-09"),
        ("1 input missing", "", "c", "2024-01-09"),
        ("9 depends on its input", "other code", "d", "2024-01-01...2024-01-09"),
    ]
    assert [*unusual_rows(plan)] == [
        ("raw", "1 computed", f"never published; {NO_FOLDER}", "2024-01-09"),
        ("c", "1 input missing", "", "2024-01-09"),
        ("d", "9 depends on its input", "other code: x → 1", "2024-01-01...2024-01-09"),
    ]


@pytest.mark.parametrize(
    ("computed", "why", "change"),
    [
        ({}, {}, None),
        # A day that is computed only as it was asked for changes nothing.
        ({FACT.name: (2, 3)}, {REQUESTED: (2,), "other code": (3,)}, (3, FACT.name, 3)),
        ({STAGED.name: (4,), FACT.name: (2, 4)}, {"other code": (2, 4)}, (2, FACT.name, 2)),
        ({STAGED.name: (3,), FACT.name: (3,)}, {"other code": (3,)}, (3, STAGED.name, 3)),
        # Tables have days before and after the requested ones, which their runs build.
        ({STAGED.name: (1,)}, {"other code": (1,)}, (2, STAGED.name, 1)),
        ({STAGED.name: (7,)}, {"other code": (7,)}, (5, STAGED.name, 7)),
        # In a gap of the request.
        ({STAGED.name: (4,)}, {"other code": (4,)}, (5, STAGED.name, 4)),
    ],
)
def test_the_first_requested_day_that_changes_a_table(computed, why, change):
    requested = DaySet.from_days(dates(2, 3, 5))
    forecasts = {
        name: TableForecast(
            computed=to_ranges(dates(*numbers)),
            why={reason: to_ranges(dates(*of_reason)) for reason, of_reason in why.items()},
        )
        for name, numbers in computed.items()
    }
    result = find_first_change(requested, forecasts)
    expected = change and FirstChange(day(change[0]), change[1], day(change[2]), "other code")
    assert result == expected


@pytest.mark.parametrize(
    ("pilot_days", "start", "stages"),
    [
        (2, START, ["2024-01-01...2024-01-02", "2024-01-03...2024-01-05"]),
        (2, day(3), ["2024-01-03...2024-01-04", "2024-01-01...2024-01-02, 2024-01-05"]),
        (2, day(5), ["2024-01-04...2024-01-05", "2024-01-01...2024-01-03"]),
        (0, day(3), ["2024-01-01...2024-01-05"]),
    ],
)
def test_a_pilot_has_as_many_days_as_were_asked_for(pilot_days, start, stages):
    request = make_request(1, 5, pilot_days=pilot_days)
    assert [str(window) for _, window in request.split_stages(pilot_start=start)] == stages


def test_stages_of_runs_that_would_differ_much_are_even(runs):
    for n in range(1, 6):
        runs.build(RAW, n, rows=10_000_000 if n == 3 else 1_000_000, event_days=days(n))
    request = make_request(1, 5, STAGED.name, rewrite=True)
    planned = {STAGED.name: [*request.window]}
    result = plan_backfill(runs.deployment, request, planned, runs.ledgers, CODE, "plan")
    assert [(stage.name, stage.days) for stage in result.cut] == [
        ("001", "2024-01-01...2024-01-02"),
        ("002", "2024-01-03"),
        ("003", "2024-01-04...2024-01-05"),
    ]
    assert result.runs == 3


def test_a_plan_tells_which_days_of_its_inputs_are_skewed(runs):
    for n, most in ((3, 10), (4, 60), (5, 90)):
        runs.build(taken, n, rows=100, numbers={"most rows of one customer_id": most})
    store_files(runs, taken, n3=(1, 1), n4=(1, 1), n5=(1, 1))
    assert plan(runs, {order_counts.name: [3, 4]}).skews == (
        Skew(
            table=taken.name,
            column="customer_id",
            above=0.5,
            day=day(4),
            one_key=0.6,
            no_key=0.0,
            days=("2024-01-04",),
        ),
    )


def test_the_last_commit_that_changed_rows_is_the_last_change():
    assert last_change(ledger(FACT)) is None
    by_others = [ExternalCommit(3, "DELETE", days(1))]
    assert last_change(ledger(FACT, record(1, days(1)), record(2, days(1)))) == 2
    assert last_change(ledger(FACT, record(1, days(1)), external=by_others)) == 3
    assert last_change(replace(ledger(FACT, record(1, days(1))), version=7)) == 1


def test_a_plan_is_made_of_what_is_there_now(deployment):
    request = make_request(9, 10, STAGED.name, RAW.name, weekly.name)
    names = (RAW.name, STAGED.name, weekly.name)
    with memory_instance() as instance:
        result = make_plan(deployment, instance, request, CODE, "plan")
    empty = {name: Ledger(table) for name, table in deployment.tables.items()}
    assert result == plan_backfill(
        deployment,
        make_request(9, 10, *names),
        days_by_table(DEPLOYMENT, names, window(9, 10)),
        empty,
        CODE,
        "plan",
        (),
        days_by_table(DEPLOYMENT, names, window(10, 10)),
    )
    assert result.tables[STAGED.name] == TableForecast(
        computed=("2024-01-09...2024-01-10",),
        lacking=("2024-01-07...2024-01-08",),
        why={"never published": ("2024-01-09...2024-01-10",)},
    )


# --- skew of what has landed and is not loaded ----------------------------------------------------


@pytest.fixture
def watched(tmp_path) -> Deployment:
    """Lines of orders land here, of which two columns are watched; and visits, of which none is."""
    for name in ("orders", "visits"):
        (tmp_path / "landing" / name).mkdir(parents=True)
    return make_deployment(
        tables="backfill_assets_tests.planned_tables:LANDED",
        landing=str(tmp_path / "landing"),
        warehouse=str(tmp_path / "warehouse"),
    )


def sample_skews(deployment, *numbers, **more) -> tuple[tuple[Skew, ...], tuple[str, ...]]:
    """What a plan to load log days says of skew once files were sampled, and of files not read."""
    forecasts = {
        name: TableForecast(computed=tuple(to_ranges(days(*numbers))), identical=("2024-01-31",))
        for name in (VISITS.raw.name, WATCHED.raw.name)
    }
    first_plan = BackfillPlan(
        id="plan",
        parameters=make_request(1, 31),
        **dict.fromkeys(("code_version", "code", "config_digest", "landing"), ""),
        versions={},
        tables=more.pop("tables", forecasts),
        **dict.fromkeys(("files", "size", "commits", "runs", "seconds"), 0),
        **more,
    )
    result = add_sampled_skews(deployment, first_plan)
    assert result == first_plan.model_copy(
        update={"skews": result.skews, "unsampled": result.unsampled}
    )
    return result.skews, result.unsampled


def make_lines(*pairs: tuple[str | None, str | None]) -> list[dict]:
    return [{"order_id": order_id, "customer_id": customer} for order_id, customer in pairs]


def make_skew(column, above, *skewed_days, one_key, no_key=0.0, lines, at) -> Skew:
    return Skew(
        table=STAGED.name,
        column=column,
        above=above,
        day=day(at),
        one_key=one_key,
        no_key=no_key,
        days=tuple(to_ranges(days(*skewed_days))),
        lines=lines,
    )


def test_lines_that_landed_tell_of_skew_before_they_are_loaded(watched):
    land(watched, 1, *make_lines(("a", "c1"), ("b", "c2"), ("c", None), ("d", None), ("e", None)))
    # A load rejects lines without an order; the customer may be unknown.
    land(watched, 2, *make_lines((None, "c1"), (None, "c1"), ("a", "c1"), ("b", "c2")))
    land(watched, 3, *make_lines(*((f"o{n}", f"c{n}") for n in range(5))))
    land(watched, 31, *make_lines(("a", "c1")))
    assert sample_skews(watched, 1, 2, 3, 4) == (
        (
            make_skew("order_id", 0.2, 2, one_key=0.5, lines=2, at=2),
            make_skew("customer_id", 0.5, 1, one_key=0.2, no_key=0.6, lines=5, at=1),
        ),
        (),
    )


def test_what_a_plan_says_of_skew_already_stays(watched):
    land(watched, 1, *make_lines(("a", "c1"), ("a", "c1")))
    known = make_skew("customer_id", 0.5, 9, one_key=0.7, lines=0, at=9)
    sampled = [
        make_skew(column, above, 1, one_key=1.0, lines=2, at=1)
        for column, above in (("order_id", 0.2), ("customer_id", 0.5))
    ]
    assert sample_skews(watched, 1, skews=(known,)) == ((known, *sampled), ())
    assert sample_skews(watched, skews=(known,), tables={}) == ((known,), ())


def test_days_that_are_published_are_not_sampled(watched):
    land(watched, 1, *make_lines(("a", "c1")))
    land(watched, 2, *make_lines(("a", "c1"), ("b", "c2")))
    write_deltalake(
        watched.table_url(WATCHED.raw.name),
        pa.table({"log_date": pa.array([day(1)], pa.date32()), "order_id": ["a"]}),
        partition_by=["log_date"],
    )
    assert [(skew.day, skew.lines) for skew in sample_skews(watched, 1, 2)[0]] == [(day(2), 2)]


def test_files_that_cannot_be_sampled_are_named(watched):
    land(watched, 1, *make_lines(("a", "c1")), name="b.jsonl")
    folder = Path(watched.settings.landing) / "orders" / f"arrival_date={day(1)}"
    (folder / "a.jsonl.gz").write_bytes(b"no gzip")
    (folder / "link.jsonl").symlink_to("/etc/hostname")
    # Of these there is nothing to read.
    land(watched, 2, name="empty.jsonl")
    land(watched, 2, {"files": 1}, name="_control.json")
    skews, unsampled = sample_skews(watched, 1, 2)
    assert [(skew.day, skew.lines) for skew in skews] == [(day(1), 1)] * 2
    assert unsampled == (
        "orders/arrival_date=2024-01-01/a.jsonl.gz (OSError: zlib inflate failed: incorrect header "
        "check)",
        "orders/arrival_date=2024-01-01/link.jsonl (a link that leads out of the landing: land the "
        "file itself)",
    )
    # Of days without a folder there is nothing to sample.
    assert sample_skews(watched, 20) == ((), ())


def test_a_landing_without_the_folder_of_a_source_is_told(watched):
    (Path(watched.settings.landing) / "orders").rmdir()
    skews, unsampled = sample_skews(watched, 1)
    assert skews == ()
    folder = watched.settings.landing
    assert unsampled == (
        f"there is no folder {folder}/orders: set BACKFILL_ASSETS_LANDING to the folder that holds "
        "orders/arrival_date=YYYY-MM-DD/. Nothing was written.",
    )


@pytest.mark.parametrize(
    ("last", "limit", "sampled_days", "lines"),
    [
        # Of many days some, from the first to the last, and of each the first file.
        (31, 7, [1, 6, 11, 16, 21, 26, 31], 1),
        (9, 2, [1, 9], 1),
        (9, 1, [1], 1),
        (3, 3, [1, 2, 3], 1),
        # Of few days all, and of each as many files as there may be, with the last.
        (3, 7, [1, 2, 3], 1 + 4),
        (2, 6, [1, 2], 1 + 2 + 4),
        (1, 2, [1], 1 + 4),
    ],
)
def test_of_many_files_some_are_sampled(watched, last, limit, sampled_days, lines, monkeypatch):
    for n in range(1, last + 1):
        for name, count in (("a", 1), ("b", 2), ("c", 4)):
            land(watched, n, *make_lines(*[("a", "c1")] * count), name=f"{name}.jsonl")
    monkeypatch.setattr(planner, "MAX_SAMPLED_FILES", limit)
    skews, _ = sample_skews(watched, (1, last))
    assert skews == tuple(
        make_skew(column, above, *sampled_days, one_key=1.0, lines=lines, at=1)
        for column, above in (("order_id", 0.2), ("customer_id", 0.5))
    )


# --- arrival days that are closed -----------------------------------------------------------------


@pytest.fixture
def loaded_days(monkeypatch, tmp_path) -> Deployment:
    """Orders of days 1 and 40 have landed and are loaded; days 2 to 38 are empty, 38 is closed."""
    manifests = {
        day(1): LoadManifest(present_days=frozenset({day(1)})),
        day(40): LoadManifest(present_days=frozenset({day(40)})),
        **{day(n): LoadManifest(closed=n in (3, 38)) for n in range(2, 40)},
    }
    landing = {str(d): manifest.as_json for d, manifest in manifests.items()}
    log = ledger(RAW, record(1, manifests, landing=landing))
    monkeypatch.setattr(unloaded, "read_ledger", lambda _, table: {RAW.name: log}[table.name])
    write_landing(tmp_path, "a=1", *[None] * 37, "a=39")
    return Deployment(load_settings(landing=str(tmp_path), start=day(1), end=None))


@pytest.mark.parametrize(
    ("n", "reopen", "reason"),
    [
        (-3, False, "is before the first day of the source, 2024-01-01"),
        (1, False, "has a folder: arrival_date=2024-01-01 has come"),
        (39, False, "has a folder: arrival_date=2024-02-08 has come"),
        (40, False, "has a folder: arrival_date=2024-02-09 has come"),
        (900_000, False, "is not over: its folder may still come"),
        (2, True, "is not closed"),
        (41, True, "is not closed"),
        (
            3,
            True,
            "is not waited for: the folder of 2024-02-09 has come, 30 days later or more. A folder "
            "that comes after all is loaded",
        ),
    ],
)
def test_days_that_cannot_be_closed_or_opened(loaded_days, n, reopen, reason):
    verb = "opened" if reopen else "closed"
    text = f"orders [{day(n)}] is not {verb}, as {day(n)} {reason}. Nothing was changed"
    with pytest.raises(ValueError, match=re.escape(text)):
        unloaded.refuse_closing(loaded_days, ORDER_LINES, Window(day(n), day(n + 1)), reopen=reopen)


def test_days_that_can_be_closed_or_opened(loaded_days):
    unloaded.refuse_closing(loaded_days, ORDER_LINES, Window(day(20), day(25)), reopen=False)
    unloaded.refuse_closing(loaded_days, ORDER_LINES, Window(day(38), day(39)), reopen=True)
    with pytest.raises(ValueError, match="is no arrival day of the source"):
        unloaded.refuse_closing(
            loaded_days,
            replace(ORDER_LINES, arrives_on="mon"),
            Window(day(38), day(39)),
            reopen=True,
        )
