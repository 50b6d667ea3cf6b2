"""Tables by day that others write, as inputs: what makes days due, what holds them back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import dagster as dg
import msgspec
import pandera.pyspark as pa
import pyarrow as arrow
import pyspark.sql.types as T
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    WEEK,
    Reads,
    build_defs,
    conserves_total,
    external_table,
    last_days,
    load_settings,
    table,
)
from backfill_assets.backfills import undo
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.cli import outcomes, parameters
from backfill_assets.delta import ledger_reader
from backfill_assets.delta.commit_log import CommitLog
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger, own_ledgers
from backfill_assets.delta.table_schema import raise_if_schema_differs
from backfill_assets.deployment import Deployment
from backfill_assets.doctor.data import check_external_table
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.monitoring.next_runs import make_block_rule
from backfill_assets.monitoring.states import DayState, MonitoringSnapshot
from backfill_assets.orders.tables import ORDERS, RAW, REJECTED, STAGED
from backfill_assets.settings import SettingsError
from backfill_assets.shadow import switch
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import StaleDays, find_stale_days
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import Graph, load_graph
from backfill_assets.tables.table import ExternalTable, SchemaError, Table
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.invented_logs import commit_metadata, days, ledger, record
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, run_undo, run_verify
from backfill_assets_tests.helpers.written_logs import log_copy_file, log_file


class TheirOrder(pa.DataFrameModel):
    """An order, as another team keeps it."""

    order_date: T.DateType = Field(description="The day of the order.")
    order_id: T.StringType = Field(description="Names the order.")
    amount: T.LongType = Field(description="What it costs, in cents.")


THEIRS = external_table(
    "their_orders",
    TheirOrder,
    partition="order_date",
    key=["order_id"],
    asset_key=["shop", "orders"],
    arrives_on=lambda d: d != day(9),
)


class Revenue(pa.DataFrameModel):
    """Orders of a day, or of the last two."""

    run_date: T.DateType = Field(description="The day.")
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.LongType = Field(description="Sum of their amounts.")


def summed(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.col("for_day").alias("run_date")).agg(
        F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("revenue")
    )


@table(
    Revenue,
    partition="run_date",
    key=["run_date"],
    totals=["orders", "revenue"],
    checks=[
        conserves_total("orders", None, "orders"),
        conserves_total("orders", "amount", "revenue"),
    ],
)
def daily_revenue(orders: Annotated[DataFrame, Reads(THEIRS)]) -> DataFrame:
    return summed(orders)


@table(Revenue, partition="run_date", key=["run_date"], totals=["orders", "revenue"])
def revenue_2d(orders: Annotated[DataFrame, Reads(THEIRS, last_days(2))]) -> DataFrame:
    return summed(orders)


TABLES = [daily_revenue, revenue_2d]
POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)
GRAPH = Graph.from_tables(TABLES, POLICY)
#: Their orders: by day, the amount of each by its name.
Orders = Mapping[date, Mapping[str, int]]


def write_orders(url: Path, orders: Orders, mode: Any = "append") -> None:
    """What others do: append orders, or write the days of these orders anew."""
    rows = [
        {"order_date": d, "order_id": order_id, "amount": amount, "shop": "s1"}
        for d, by_id in orders.items()
        for order_id, amount in by_id.items()
    ]
    schema = arrow.schema(
        [
            ("order_date", arrow.date32()),
            ("order_id", arrow.string()),
            ("amount", arrow.int64()),
            ("shop", arrow.string()),  # which nobody here reads
        ]
    )
    dates = ", ".join(f"'{d}'" for d in orders)
    write_deltalake(
        url,
        arrow.Table.from_pylist(rows, schema),
        partition_by=["order_date"],
        mode=mode,
        predicate=f"order_date IN ({dates})" if mode == "overwrite" else None,
    )


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """Their table, of days 1 to 3, each in a commit of its own."""
    url = tmp_path / "warehouse" / THEIRS.name
    for n in (1, 2, 3):
        write_orders(url, {day(n): {f"o{n}": n}})
    return url


def read_theirs(url: Path) -> Ledger:
    """As a process reads it that has not seen the table."""
    ledger_reader._cached_ledgers.pop((str(url), ""), None)
    return read_ledger(str(url), THEIRS)


def contents(source: Ledger) -> dict[int, str]:
    """By the number of the day, what identifies its rows."""
    return {n: source.content_key(day(n)) for n in range(1, 6)}


# --- what their log says --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "changed", "published"),
    [
        (lambda url: write_orders(url, {day(2): {"o2": 5}}, "overwrite"), {2}, (1, 3)),
        (lambda url: write_orders(url, {day(4): {"o4": 5}}), {4}, (1, 4)),
        (lambda url: DeltaTable(url).delete("order_date = '2024-01-03'"), {3}, (1, 2)),
        (lambda url: DeltaTable(url).restore(1), {1, 3}, (1, 2)),
        (lambda url: DeltaTable(url).optimize.compact(), set(), (1, 3)),
        (lambda url: DeltaTable(url).vacuum(0, False, False), set(), (1, 3)),
    ],
    ids=["overwrite", "append", "delete", "restore", "optimize", "vacuum"],
)
def test_a_commit_of_theirs_changes_the_days_that_it_wrote(url, change, changed, published):
    write_orders(url, {day(1): {"o1b": 1}})  # two files, for OPTIMIZE
    before = read_theirs(url)
    assert before.published_days == days((1, 3))
    change(url)
    after = read_ledger(str(url), THEIRS)
    assert {n for n in range(1, 6) if contents(before)[n] != contents(after)[n]} == changed
    assert after.published_days == days(published)
    # So does a process that has read the table before, and one that has not.
    assert contents(read_theirs(url)) == contents(after)
    assert [after.rows_of(day(n)) for n in (2, 5)] == [1, None]
    assert not after.external_commits
    assert after.final_days == frozenset()
    assert not own_ledgers({THEIRS.name: after})


def test_days_that_their_log_tells_no_more_of_are_known_by_their_files(url):
    DeltaTable(url).create_checkpoint()
    write_orders(url, {day(4): {"o4": 4}})
    for version in (0, 1, 2):
        log_file(url, version).unlink()
    theirs = read_theirs(url)
    assert theirs.published_days == days((1, 4))
    assert not theirs.missing_versions
    assert "1 rows in 1 file(s)" in theirs.content_key(day(2))
    assert theirs.content_key(day(4)).startswith("version 3 of ")
    # What was built before is not due for that; what never was is.
    built = ledger(daily_revenue, record(0, days((1, 2)), inputs={THEIRS.name: 2}))
    stale = stale_days(built, theirs)
    assert stale.open[daily_revenue.name].keys() == days(3, 4)
    # A target looks at an older version.
    assert theirs.as_of(2).published_days == days((1, 3))


def test_commits_that_were_read_are_known_when_their_log_is_cut(url, monkeypatch):
    """They are kept in the warehouse, and not in the table."""
    monkeypatch.setattr("backfill_assets.delta.commit_log._MIN_READS_OF_OTHERS", 3)
    before = read_theirs(url)
    DeltaTable(url).create_checkpoint()
    write_orders(url, {day(4): {"o4": 4}})
    for version in (0, 1, 2):
        log_file(url, version).unlink()
    after = read_theirs(url)
    assert [after.content_key(day(n)) for n in (1, 2, 3)] == [*contents(before).values()][:3]
    assert after.published_days == days((1, 4))
    assert log_copy_file(url.parent, THEIRS.name).exists()
    assert {path.name for path in url.iterdir() if "=" not in path.name} == {"_delta_log"}


def test_deleted_commits_are_not_asked_for_one_by_one(url, monkeypatch):
    DeltaTable(url).create_checkpoint()
    for version in (0, 1):
        log_file(url, version).unlink()
    asked, read = [], CommitLog.read_commit
    monkeypatch.setattr(
        CommitLog, "read_commit", lambda log, version: asked.append(version) or read(log, version)
    )
    assert read_theirs(url).published_days == days((1, 3))
    assert {*asked} == {2, 3}


def test_a_table_that_was_created_again_has_other_rows(url, tmp_path):
    first = read_theirs(url).content_key(day(2))
    for n in (1, 2, 3):
        write_orders(tmp_path / "again", {day(n): {f"o{n}": n}})
    assert read_theirs(tmp_path / "again").content_key(day(2)) != first


def test_a_table_that_is_not_there_has_no_days(tmp_path):
    assert read_theirs(tmp_path / "none").published_days == frozenset()


def test_a_removal_of_unknown_days_changes_all(url):
    theirs = read_theirs(url)
    remove = json.dumps({"remove": {"path": "x.parquet", "dataChange": True}})
    log_file(url, 3).write_text(f'{{"commitInfo": {{"operation": "DELETE"}}}}\n{remove}\n')
    after = read_theirs(url)
    assert all(contents(theirs)[n] != contents(after)[n] for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("columns", "partition_by", "said"),
    [
        ({"order_date": "date32", "order_id": "string"}, ["order_date"], "has no column amount"),
        (
            {"order_date": "date32", "order_id": "string", "amount": "string"},
            ["order_date"],
            "column amount is string, not bigint",
        ),
        (
            {"order_date": "string", "order_id": "string", "amount": "int64"},
            ["order_date"],
            "column order_date is string, not date",
        ),
        (
            {"order_date": "date32", "order_id": "string", "amount": "int64"},
            None,
            "it is partitioned by nothing, not by order_date",
        ),
    ],
)
def test_a_table_that_is_not_as_declared_is_refused(tmp_path, columns, partition_by, said):
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in columns.items()])
    DeltaTable.create(tmp_path / "t", schema, partition_by=partition_by)
    theirs = read_theirs(tmp_path / "t")
    assert theirs.published_days == frozenset()
    with pytest.raises(
        SchemaError, match=f"which others write, is not as it is declared: .*{said}"
    ):
        raise_if_schema_differs(theirs, str(tmp_path / "t"))


def test_a_day_of_theirs_may_be_divided_further(tmp_path):
    rows = {"order_date": [day(1)] * 2, "order_id": ["a", "b"], "amount": [1, 2]}
    table = arrow.table({**rows, "shop": ["x", "y"]})
    write_deltalake(tmp_path / "t", table, partition_by=["order_date", "shop"])
    theirs = read_theirs(tmp_path / "t")
    assert theirs.published_days == days(1)
    assert theirs.rows_of(day(1)) == 2
    raise_if_schema_differs(theirs, str(tmp_path / "t"))


def test_days_that_another_deployment_writes_by_parts_change_with_each_part(tmp_path):
    """Their records are of parts, and a day that is read here has all of them."""
    contents_by_part = {}
    for shop in ("x", "y"):
        rows = {"order_date": [day(1)], "order_id": [shop], "amount": [1], "shop": [shop]}
        write_deltalake(
            tmp_path / "t",
            arrow.table(rows),
            mode="append",
            partition_by=["order_date", "shop"],
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": json.dumps(commit_metadata(days(1), part=shop))}
            ),
        )
        contents_by_part[shop] = contents(read_theirs(tmp_path / "t"))[1]
    assert contents_by_part["x"] != contents_by_part["y"]
    assert "version 1" in contents_by_part["y"]


def test_the_doctor_reads_what_is_declared_of_it(url, tmp_path):
    """No run is ever launched for it, so nothing else would say so."""
    write_deltalake(
        tmp_path / "other",
        arrow.table({"order_date": ["2024-01-01"], "order_id": ["a"], "amount": [1]}),
        partition_by=["order_date"],
    )
    deployment = Deployment(load_settings(warehouse=str(tmp_path)), (daily_revenue,))

    def problems(location: Path) -> str:
        table = replace(THEIRS, url=str(location))
        return "; ".join(r.message for r in check_external_table(deployment, table))

    assert "version 2, 3 days, written by others" in problems(url)
    assert "column order_date is string, not date" in problems(tmp_path / "other")
    assert f"no table is at {tmp_path / 'none'}" in problems(tmp_path / "none")


def test_a_plan_of_an_undo_leaves_it_out(url, monkeypatch, tmp_path):
    ledgers = {
        "their_orders": read_theirs(url),
        daily_revenue.name: ledger(daily_revenue, record(0, days(1), backfill="aecrkdop")),
    }
    deployment = Deployment(load_settings(warehouse=str(tmp_path)), (daily_revenue,))
    monkeypatch.setattr(undo, "read_ledgers", lambda _: ledgers)
    monkeypatch.setattr(undo.UndoPlan, "problems", ())
    monkeypatch.setattr(parameters, "chosen_part", lambda: "")
    monkeypatch.setattr(switch, "resolve_names", lambda *_: ())
    monkeypatch.setattr(switch, "refuse_undo", lambda *_: None)
    printed = Mock(json=False)
    outcomes._plan_undo(printed, deployment, Mock(), "aecrkdop", None)
    (report,) = printed.print_json.call_args.args
    assert report["tables"].keys() == {daily_revenue.name}


# --- which days are due ---------------------------------------------------------------------------


def stale_days(*ledgers: Ledger, today: int = 6) -> StaleDays:
    known = {name: Ledger(t) for name, t in GRAPH.all_tables.items()}
    given = {given.table.name: given for given in ledgers}
    return find_stale_days(Snapshot(GRAPH, known | given, day(today)))


def open_numbers(stale: StaleDays) -> dict[str, set[int]]:
    return {name: {(d - START).days + 1 for d in by_day} for name, by_day in stale.open.items()}


def test_days_that_were_never_built_are_due_when_they_are_there(url):
    """Up to yesterday; of two days, only the day itself must be there."""
    theirs = read_theirs(url)
    assert open_numbers(stale_days(theirs, today=3)) == {
        daily_revenue.name: {1, 2},
        revenue_2d.name: {1, 2},
    }
    assert open_numbers(stale_days(theirs)) == {
        daily_revenue.name: {1, 2, 3},
        revenue_2d.name: {1, 2, 3},
    }


def test_exactly_the_days_of_a_changed_day_are_due(url):
    theirs = read_theirs(url)
    before = Snapshot(GRAPH, {t.name: Ledger(t) for t in TABLES} | {THEIRS.name: theirs})
    built = []
    for t in TABLES:
        commit = record(0, days((1, 3)), inputs={THEIRS.name: 2})
        published = {
            d: msgspec.structs.replace(commit.days[d], input_digest=digest)
            for d, digest in before.input_digests(t.name, days((1, 3))).items()
        }
        built.append(ledger(t, msgspec.structs.replace(commit, days=published)))
    assert not stale_days(*built, theirs).any_open
    write_orders(url, {day(2): {"o2": 7}}, "overwrite")
    stale = stale_days(*built, read_theirs(url))
    assert open_numbers(stale) == {daily_revenue.name: {2}, revenue_2d.name: {2, 3}}
    (reason,) = stale.open[daily_revenue.name].values()
    assert reason.commit_key == f"{THEIRS.name}@3"
    # OPTIMIZE afterwards changes no row.
    DeltaTable(url).optimize.compact()
    assert open_numbers(stale_days(*built, read_theirs(url))) == open_numbers(stale)


def make_monitoring(*ledgers: Ledger, today: date) -> MonitoringSnapshot:
    known = {name: Ledger(t) for name, t in GRAPH.all_tables.items()}
    given = {given.table.name: given for given in ledgers}
    return MonitoringSnapshot(GRAPH, known | given, today, unloaded={}, failed_checks={})


def test_a_day_that_they_have_not_written_is_missing_and_says_so(url):
    theirs = read_theirs(url)
    built = [ledger(t, record(0, days((1, 3)), inputs={THEIRS.name: 2})) for t in TABLES]
    snapshot = make_monitoring(*built, theirs, today=day(5))
    assert snapshot.states_of(daily_revenue.name)[day(4)] is DayState.MISSING
    stale = [i for i in find_incidents(snapshot) if i.kind == "stale"]
    assert {(i.subject, i.item) for i in stale} == {(t.name, str(day(4))) for t in TABLES}
    text = "their_orders[2024-01-04] is not there, and others write it; it is built once that is"
    assert all(incident.detail.startswith(text) for incident in stale)
    # Nothing of theirs is looked at as if it were ours.
    assert {i.subject for i in find_incidents(snapshot)} <= {t.name for t in TABLES}


def test_days_of_a_day_that_they_have_deleted_have_lost_their_input(url):
    built = [ledger(t, record(0, days((1, 3)), inputs={THEIRS.name: 2})) for t in TABLES]
    DeltaTable(url).delete("order_date = '2024-01-03'")
    snapshot = make_monitoring(*built, read_theirs(url), today=day(4))
    assert snapshot.states_of(daily_revenue.name)[day(3)] is DayState.INPUT_WITHDRAWN
    assert not snapshot.stale.open


def test_a_table_of_another_shape_is_not_called_missing(tmp_path):
    """Its days are not known, and the alert says why."""
    rows = arrow.table({"order_date": ["2024-01-01"], "order_id": ["a"], "amount": [1]})
    write_deltalake(tmp_path / "t", rows, partition_by=["order_date"])
    snapshot = make_monitoring(read_theirs(tmp_path / "t"), today=day(2))
    details = {i.detail for i in find_incidents(snapshot) if i.kind == "stale"}
    (detail,) = (d for d in details if "their_orders[2024-01-01]" in d)
    assert "is not as it is declared: column order_date is string, not date; it is built" in detail
    assert "is not there" not in detail


# --- days on which they write nothing -------------------------------------------------------------

#: Of the days 1 to 8, a Monday to a Monday, they have no row on the seventh, a Sunday.
SHOP_WEEK = external_table("shop_week", TheirOrder, partition="order_date", arrives_on="mon-sat")
#: They began on the third day.
SINCE = external_table("since", TheirOrder, partition="order_date", start=day(3))


@table(Revenue, partition="run_date", key=["run_date"], totals=["orders"])
def by_day(orders: Annotated[DataFrame, Reads(SHOP_WEEK)]) -> DataFrame: ...


@table(Revenue, partition="run_date", key=["run_date"], totals=["orders"])
def by_week(orders: Annotated[DataFrame, Reads(SHOP_WEEK, WEEK)]) -> DataFrame: ...


@table(Revenue, partition="run_date", key=["run_date"])
def of_both(
    orders: Annotated[DataFrame, Reads(SHOP_WEEK)], since: Annotated[DataFrame, Reads(SINCE)]
) -> DataFrame: ...


@table(Revenue, partition="run_date", key=["run_date"])
def after_both(revenue: Annotated[DataFrame, Reads(of_both)]) -> DataFrame: ...


WEEK_GRAPH = Graph.from_tables([by_day, by_week, of_both, after_both], POLICY)


def week_snapshot(*given: Ledger, today: int) -> MonitoringSnapshot:
    known = {name: Ledger(t) for name, t in WEEK_GRAPH.all_tables.items()}
    known |= {g.table.name: g for g in given}
    return MonitoringSnapshot(WEEK_GRAPH, known, day(today), unloaded={}, failed_checks={})


def written_by_others(table: Table, *day_ranges: int | tuple[int, int]) -> Ledger:
    """The ledger of a table of others, with a commit of some days."""
    return ledger(table, record(0, days(*day_ranges)))


def test_a_day_on_which_they_write_nothing_holds_nothing_back():
    """It is due when it is over, and is built from no rows; the week is complete without it."""
    theirs = written_by_others(SHOP_WEEK, (1, 6))
    assert week_snapshot(theirs, today=7).stale.open[by_day.name].keys() == days((1, 6))
    stale = week_snapshot(theirs, today=8).stale
    assert stale.open[by_day.name].keys() == days((1, 7))
    assert stale.open[by_week.name].keys() == {day(1)}
    assert stale.open[by_day.name][day(7)].commit_key == "shop_week@0"
    # Built once, it is due no more; rows that come on it after all are new input.
    built = ledger(by_day, record(0, days((1, 7)), inputs={SHOP_WEEK.name: 0}))
    assert by_day.name not in week_snapshot(theirs, built, today=8).stale.open
    came = ledger(SHOP_WEEK, record(0, days((1, 6))), record(1, days(7)))
    assert week_snapshot(came, built, today=8).stale.open[by_day.name].keys() == days(7)
    assert not by_day.expects_rows(day(7))


def test_a_day_with_rows_that_they_owe_is_missing_as_ever():
    snapshot = week_snapshot(written_by_others(SHOP_WEEK, (1, 5)), today=8)
    assert snapshot.stale.open[by_day.name].keys() == days((1, 5), 7)
    assert by_week.name not in snapshot.stale.open
    assert snapshot.states_of(by_day.name)[day(6)] is DayState.MISSING
    # Of a table that is not there, no day is known to be empty.
    assert not week_snapshot(today=8).stale.any_open


def test_an_undone_day_without_rows_stays_undone():
    theirs = written_by_others(SHOP_WEEK, (1, 6))
    snapshot = Snapshot(WEEK_GRAPH, {by_day.name: Ledger(by_day), SHOP_WEEK.name: theirs})
    digest = snapshot.input_digests(by_day.name, [day(7)])[day(7)]
    undo_commit = msgspec.structs.replace(
        record(1, (), on_hold={str(day(7)): digest}), revoked_days=days(7)
    )
    built = ledger(by_day, record(0, days((1, 7)), inputs={SHOP_WEEK.name: 0}), undo_commit)
    stale = week_snapshot(theirs, built, today=9).stale
    assert stale.on_hold[by_day.name] == days(7)
    assert not stale.open.get(by_day.name)


def test_a_table_of_others_may_begin_later():
    """What reads it begins with it, as with a source that begins later."""
    starts = {name: WEEK_GRAPH.policy_of(name).start for name in WEEK_GRAPH.all_tables}
    assert starts == {
        **dict.fromkeys((SHOP_WEEK.name, by_day.name, by_week.name), START),
        **dict.fromkeys((SINCE.name, of_both.name, after_both.name), day(3)),
    }
    snapshot = week_snapshot(
        written_by_others(SHOP_WEEK, (1, 4)), written_by_others(SINCE, 3), today=5
    )
    assert snapshot.stale.open[of_both.name].keys() == days(3)
    assert snapshot.states_of(of_both.name) == dict.fromkeys(sorted(days(3, 4)), DayState.MISSING)


# --- declarations ---------------------------------------------------------------------------------


def test_the_graph_knows_it_as_an_input_only():
    assert {*GRAPH.tables} == {t.name for t in TABLES}
    assert [*GRAPH.all_tables] == [THEIRS.name, *GRAPH.tables]
    assert GRAPH.by_log_day == tuple(GRAPH.tables)
    assert not GRAPH.landed_tables
    assert not GRAPH.closing_tables
    assert GRAPH.upstream_tables(revenue_2d.name) == {THEIRS.name}
    assert GRAPH.policy_of(THEIRS.name).start == START
    assert GRAPH.expected_days(revenue_2d.name, day(4)) == Window(START, day(4))
    assert not daily_revenue.layer_equations


@table(Revenue, partition="run_date", key=["run_date"])
def with_rejected(
    orders: Annotated[DataFrame, Reads(THEIRS)], rejected: Annotated[DataFrame, Reads(REJECTED)]
) -> DataFrame: ...


@table(Revenue, partition="run_date", key=["run_date"])
def with_staged(
    orders: Annotated[DataFrame, Reads(THEIRS)], staged: Annotated[DataFrame, Reads(STAGED)]
) -> DataFrame: ...


def test_a_table_may_read_what_landed_as_well(url):
    """It is built with the load, but for the days that they have not written, and never final."""
    graph = Graph.from_tables([*ORDERS, with_rejected, with_staged], POLICY)
    assert with_rejected.name in graph.loaded_with(RAW.name)
    assert with_staged.name in graph.by_event_day
    assert with_staged.name not in graph.closing_tables
    assert graph.arrivals(with_staged.name, day(1)) == graph.arrivals(STAGED.name, day(1))
    known = {name: Ledger(t) for name, t in graph.all_tables.items()}
    snapshot = Snapshot(graph, known | {THEIRS.name: read_theirs(url)}, day(6))
    assert with_staged.name not in snapshot.final_by_table
    blocked = make_block_rule(snapshot)(
        with_rejected.name, days((1, 5)), {REJECTED.name: days((1, 5))}
    )
    assert blocked == days(4, 5)


@table(Revenue, partition="run_date", key=["run_date"])
def their_orders(orders: Annotated[DataFrame, Reads(THEIRS)]) -> DataFrame: ...


OTHER = external_table("their_orders", TheirOrder, partition="order_date")


@table(Revenue, partition="run_date", key=["run_date"])
def of_the_other(orders: Annotated[DataFrame, Reads(OTHER)]) -> DataFrame: ...


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ([THEIRS, daily_revenue], "neither a table nor a source: tables that read it are"),
        ([their_orders], "two tables are named their_orders"),
        ([daily_revenue, of_the_other], "two tables are named their_orders"),
    ],
)
def test_tables_that_do_not_fit_are_refused(declared, said):
    with pytest.raises(SettingsError, match=said):
        load_graph(load_settings(), declared)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"partition": "day"}, "partition is 'day', which is no column"),
        ({"key": ["day"]}, "key has 'day', which is no column"),
        ({"asset_key": "shop/orders"}, "asset_key"),
        ({"start": "2024-01-03"}, "start is '2024-01-03': give a date"),
        ({"arrives_on": "each sunday"}, "arrives_on is 'each sunday': give weekdays"),
        ({"name": ""}, "the name"),
        ({"name": "shop/orders"}, "the name is 'shop/orders'"),
        ({"name": "../t"}, "the name is '../t'"),
        ({"model": dict}, "the model"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(arguments, said):
    values = {"name": "t", "model": TheirOrder, "partition": "order_date", **arguments}
    with pytest.raises(DeclarationError, match=said):
        external_table(**values)


def test_its_place():
    assert THEIRS.place("/lake") == "/lake/their_orders"
    elsewhere = external_table("t", TheirOrder, partition="order_date", url="s3://bucket/t")
    assert elsewhere.place("/lake") == "s3a://bucket/t"


# --- in Dagster -----------------------------------------------------------------------------------

DAYS = dg.DailyPartitionsDefinition(str(START))
SHOP, REPORT = dg.AssetKey(["shop", "orders"]), dg.AssetKey("report")
OURS = dg.AssetKey(["lake", "daily_revenue"])


def merged_definitions(root: Path, **assets: Any) -> dg.Definitions:
    """Ours, between an asset of theirs that writes the orders and one that reads our table."""

    @dg.asset(key=SHOP, partitions_def=DAYS)
    def shop_orders() -> None: ...

    @dg.asset(
        deps=[["lake", daily_revenue.name]],
        partitions_def=DAYS,
        automation_condition=dg.AutomationCondition.eager(),
    )
    def report() -> None: ...

    ours = build_defs(
        tables=TABLES,
        warehouse=str(root),
        landing=str(root),
        start=START,
        key_prefix="lake",
        translation=lambda spec: spec.replace_attributes(
            automation_condition=dg.AutomationCondition.eager()
        ),
    )
    return dg.Definitions.merge(ours, dg.Definitions(assets=[shop_orders, report]))


@pytest.mark.filterwarnings("ignore:Parameter `include_sources`:dagster.BetaWarning")
def test_conditions_of_automation_on_both_sides(tmp_path):
    """A day of theirs asks for ours, and a day of ours for what reads it."""
    definitions = merged_definitions(tmp_path)
    graph = definitions.resolve_asset_graph()
    assert graph.get(OURS).parent_keys == {SHOP}
    assert graph.get(REPORT).parent_keys == {OURS}
    instance, now = dg.DagsterInstance.ephemeral(), datetime(2024, 1, 6, 12, tzinfo=timezone.utc)

    def requested(cursor: Any, *materialized: dg.AssetKey) -> tuple[Any, dict[str, set[str]]]:
        for key in materialized:
            event = dg.AssetMaterialization(key, partition="2024-01-05")
            instance.report_runless_asset_event(event)
        result = dg.evaluate_automation_conditions(
            definitions, instance, evaluation_time=now, cursor=cursor
        )
        keys = {key: result.get_requested_partitions(key) for key in graph.get_all_asset_keys()}
        return result.cursor, {key.path[-1]: found for key, found in keys.items() if found}

    cursor, first = requested(None)
    assert not first
    cursor, after_theirs = requested(cursor, SHOP)
    fifth = {"2024-01-05"}
    assert after_theirs == dict.fromkeys(("daily_revenue", "revenue_2d", "report"), fifth)
    _, after_ours = requested(requested(None)[0], OURS)
    assert after_ours == {"report": fifth}


def test_an_asset_of_theirs_may_begin_later(tmp_path):
    """Dagster refuses a backfill with a day that needs a partition which does not exist."""

    @dg.asset(key=SHOP, partitions_def=dg.DailyPartitionsDefinition(str(day(3))))
    def shop_orders() -> None: ...

    def nonexistent_days(their_table: ExternalTable) -> list[str]:
        reading = replace(daily_revenue, reads={"orders": Reads(their_table)})
        ours = build_defs(tables=[reading], warehouse=str(tmp_path), key_prefix="lake", start=START)
        merged = dg.Definitions.merge(ours, dg.Definitions(assets=[shop_orders]))
        result = merged.resolve_asset_graph().get_parents_partitions(OURS, str(day(2)))
        return [key.partition_key for key in result.required_but_nonexistent_parents_partitions]

    assert nonexistent_days(replace(THEIRS, start=day(3))) == []
    assert nonexistent_days(THEIRS) == [str(day(2))]  # what the page says


def test_an_asset_of_theirs_in_another_code_location_is_external(tmp_path):
    """Of a table that Dagster does not build, its name is the key."""
    other = external_table("their_orders", TheirOrder, partition="order_date")
    reading = replace(daily_revenue, reads={"orders": Reads(other)})
    for tables, key in ((TABLES, SHOP), ([reading], dg.AssetKey("their_orders"))):
        ours = build_defs(tables=tables, warehouse=str(tmp_path), key_prefix="lake", start=START)
        graph = ours.resolve_asset_graph()
        assert graph.get(OURS).parent_keys == {key}
        assert not graph.get(key).is_executable


def test_the_declaration_of_the_page(tmp_path, monkeypatch):
    block = code_blocks("docs/your-project.md", "python")[2]
    imports, *_ = code_blocks("docs/own-tables.md", "python")[0].partition("\n\n\nclass ")
    (tmp_path / "shop_tables_of_the_page.py").write_text(f"{imports}\n{block}")
    monkeypatch.syspath_prepend(tmp_path)
    page = import_module("shop_tables_of_the_page")
    ours = build_defs(tables=[page.daily_revenue], warehouse=str(tmp_path), start=START)
    graph = ours.resolve_asset_graph()
    assert graph.get(dg.AssetKey("daily_revenue")).parent_keys == {SHOP}


# --- whole runs -----------------------------------------------------------------------------------


def expected_rows(orders: Orders, window: int) -> dict[date, tuple[int, int]]:
    """By day of theirs, the number of orders and their sum, of so many days that end with it."""
    rows = {}
    for d in orders:
        amounts = [
            amount
            for other, by_id in orders.items()
            if 0 <= (d - other).days < window
            for amount in by_id.values()
        ]
        rows[d] = len(amounts), sum(amounts)
    return rows


def published_rows(pipeline: Pipeline, name: str) -> dict[date, tuple[int, int]]:
    return {r["run_date"]: (r["orders"], r["revenue"]) for r in pipeline.rows(name)}


def test_days_follow_what_others_write(engine, tmp_path):
    """The nights build what is there, then exactly what they change; nothing of theirs changes."""
    orders: dict[date, dict[str, int]] = {
        day(1): {"a": 100, "b": 250},
        day(2): {"c": 30},
        day(3): {"d": 5, "e": 6, "f": 7},
    }
    tables = f"{__name__}:TABLES"
    pipeline = Pipeline(engine, tmp_path, tables=tables, key_prefix="lake", today=day(5))
    theirs = pipeline.warehouse / THEIRS.name
    write_orders(theirs, orders)
    pipeline.night(day(5))
    for built, window in ((daily_revenue, 1), (revenue_2d, 2)):
        assert published_rows(pipeline, built.name) == expected_rows(orders, window)
        assert pipeline.materialized(built.name) == {str(d) for d in orders}

    # A day that is not there holds back a run of it, and says why.
    result = pipeline.run(3, 4, [daily_revenue.name], fails=None)
    assert "their_orders[2024-01-04] is not there, and others write it" in str(
        [e.description for e in result.get_asset_check_evaluations()]
    )
    assert not pipeline.night(day(5))

    # A day that they write anew is computed anew, and so is what reads it; no other.
    changed_days = {daily_revenue.name: days(2), revenue_2d.name: days(2, 3)}
    versions = {name: pipeline.log(name).version() for name in changed_days}
    orders[day(2)] = {"c": 31, "g": 1000}
    write_orders(theirs, {day(2): orders[day(2)]}, "overwrite")
    pipeline.night(day(5))
    for built, window in ((daily_revenue, 1), (revenue_2d, 2)):
        assert published_rows(pipeline, built.name) == expected_rows(orders, window)
        commits = read_ledger(str(pipeline.warehouse / built.name), built).records
        new = [commit for commit in commits if commit.version > versions[built.name]]
        assert {d for commit in new for d in commit.days} == changed_days[built.name]
    verified = run_verify(pipeline.settings, engine, Window(day(1), day(4)), [daily_revenue.name])
    assert {v.outcome.value for v in verified} == {"matches"}

    # A day on which they write nothing is an empty one.
    pipeline.night(day(10))
    for built in (daily_revenue, revenue_2d):
        assert pipeline.materialized(built.name) == {*map(str, orders), str(day(9))}
        assert day(9) not in published_rows(pipeline, built.name)
    assert not pipeline.night(day(10))

    # A row that they have twice is published by nobody.
    write_orders(theirs, {day(3): {"d": 5}})
    result = pipeline.run(3, 3, [daily_revenue.name], fails=None)
    text = "1 row(s) that repeat a (order_id), as another writer left it; have it mended there"
    assert text in str([e.description for e in result.get_asset_check_evaluations()])
    assert published_rows(pipeline, daily_revenue.name)[day(3)] == (3, 18)

    # What was built can be undone, and stays so; nothing is ever written to their table.
    version = DeltaTable(theirs).version()
    run_undo(pipeline, new[-1].run_id, str(day(2)))
    before = expected_rows({**orders, day(2): {"c": 30}}, 1)
    assert published_rows(pipeline, daily_revenue.name) == before
    pipeline.night(day(5))
    assert published_rows(pipeline, daily_revenue.name)[day(2)] == before[day(2)]
    assert DeltaTable(theirs).version() == version
    assert {p.name for p in theirs.iterdir() if "=" not in p.name} == {"_delta_log"}
