"""A table that is made of its own day before: declared, and what follows from that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from random import Random
from typing import Annotated

import dagster as dg
import pytest
from msgspec.structs import replace
from pyspark import SparkContext
from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, Reads, Source, last_days, table
from backfill_assets.assets import derived
from backfill_assets.assets.input_frames import input_frames
from backfill_assets.assets.table_asset import delta_assets
from backfill_assets.backfills.backfill_plan import BackfillRequest, TableForecast
from backfill_assets.backfills.planner import plan_backfill
from backfill_assets.backfills.reconcile import find_final_days_behind
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window, from_ranges
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.orders.tables import FACT, LATE, ORDERS, RAW, STAGED, DailyOrders
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.staleness.assess import assess
from backfill_assets.staleness.snapshot import Snapshot, input_digests
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph, tables_of
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.web_events import Visit
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS, START, day
from backfill_assets_tests.own_tables import my_state


@table(DailyOrders, **FACT_OPTIONS)
def balance(
    orders: Annotated[DataFrame, Reads(STAGED)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def after_balance(of: Annotated[DataFrame, Reads(balance)]) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def yesterday(orders: Annotated[DataFrame, Reads(STAGED, PREVIOUS_DAY)]) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def late_balance(
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
    late: Annotated[DataFrame, Reads(LATE)],
) -> DataFrame: ...


TABLES = [*ORDERS, balance, after_balance, yesterday, late_balance]
BACKWARDS = [*ORDERS, after_balance, balance]
SETTINGS = load_settings(
    tables="backfill_assets_tests.test_own_past:TABLES", start=START, window_days=2
)
POLICY = Policy.from_settings(SETTINGS)
GRAPH = Graph.from_tables(tables_of(SETTINGS).values(), POLICY)
LATER = day(20)


# --- the declaration ------------------------------------------------------------------------------


def test_a_table_is_an_input_of_itself():
    staged_input, self_input = balance.inputs(POLICY)
    assert (staged_input.source, staged_input.reach) == (STAGED, SAME_DAY)
    assert self_input.source is balance
    assert self_input.reach == PREVIOUS_DAY
    assert self_input.launched is None, "Dagster is told the reach itself"
    # What decides its rows is what decides the rows of the others.
    assert balance.decided_by == FACT.decided_by
    digests = Deployment(SETTINGS).config_digests
    assert digests[balance.name] == digests[FACT.name]


def of_today(
    orders: Annotated[DataFrame, Reads(STAGED)], own: Annotated[DataFrame, Reads(SELF)]
): ...


def of_a_week(
    orders: Annotated[DataFrame, Reads(STAGED)],
    own: Annotated[DataFrame, Reads(SELF, last_days(7))],
): ...


def of_other_days(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(7))],
    own: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
): ...


def alone(own: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)]): ...


def twice(
    orders: Annotated[DataFrame, Reads(STAGED)],
    one: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
    other: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
): ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_today, "own has days that are being made"),
        (of_a_week, "own has days that are being made"),
        (of_other_days, "orders reaches for other days than the day itself"),
        (alone, "inputs with days besides itself"),
        (twice, "each table once"),
    ],
)
def test_of_itself_a_table_reads_earlier_days_and_something_else(function, said):
    with pytest.raises(DeclarationError, match=said):
        table(DailyOrders, **FACT_OPTIONS)(function)


@pytest.mark.parametrize("made", [balance, yesterday, after_balance])
def test_it_has_an_asset(made):
    (key,) = derived.build_derived_asset(Deployment(SETTINGS), [made]).keys
    assert key.path[-1] == made.name


def test_the_page_declares_one():
    assert carries_state(my_state.spend_so_far)
    staged_input, self_input = my_state.spend_so_far.inputs(POLICY)
    assert (staged_input.source, staged_input.reach) == (STAGED, SAME_DAY)
    assert (self_input.source, self_input.reach) == (my_state.spend_so_far, PREVIOUS_DAY)


# --- the graph ------------------------------------------------------------------------------------


def test_a_table_does_not_come_before_itself():
    assert list(tables_of(SETTINGS))[-4:] == [derived_table.name for derived_table in TABLES[-4:]]
    assert GRAPH.direct_inputs(balance.name) == [STAGED.name]
    assert GRAPH.upstream_tables(balance.name) == {STAGED.name, RAW.name}
    assert GRAPH.upstream_tables(after_balance.name) == {balance.name, STAGED.name, RAW.name}
    assert GRAPH.source_logs(after_balance.name) == {RAW.name}
    assert [name for name in GRAPH.tables if carries_state(GRAPH.tables[name])] == [
        balance.name,
        late_balance.name,
    ]
    with pytest.raises(SettingsError, match="balance, an input of after_balance, must come before"):
        tables_of(load_settings(tables="backfill_assets_tests.test_own_past:BACKWARDS"))


def test_it_stays_open_and_closes_as_its_other_inputs_do():
    named = {balance.name, after_balance.name, yesterday.name}
    assert named <= {*GRAPH.by_event_day}
    assert named <= {*GRAPH.closing_tables}
    assert late_balance.name in GRAPH.by_log_day
    assert late_balance.name not in GRAPH.closing_tables


def test_dagster_takes_the_days_before_for_a_dependency_of_the_asset_on_itself():
    @delta_assets(Deployment(SETTINGS), name="make_balance", tables=[balance], group="derived")
    def asset(context, **inputs): ...

    staged = dg.AssetSpec(STAGED.name, partitions_def=asset.partitions_def)
    resources = {IO_MANAGER_KEY: dg.mem_io_manager}
    definitions = dg.Definitions(assets=[staged, asset], resources=resources)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    key, daily = dg.AssetKey(balance.name), graph.get(dg.AssetKey(balance.name)).partitions_def
    assert graph.get(key).has_self_dependency
    mapping = graph.get_partition_mapping(key, key)

    def upstream_keys(*dates: date) -> set[str]:
        subset = daily.subset_with_partition_keys(map(str, dates))
        mapped = mapping.get_upstream_mapped_partitions_result_for_partitions(subset, daily, daily)
        return {*mapped.partitions_subset.get_partition_keys()}

    assert upstream_keys(day(5), day(6)) == {str(day(4)), str(day(5))}
    assert upstream_keys(START) == set()
    # What a launch takes along of another table's days is the same days.
    (dependency,) = yesterday.inputs(POLICY)
    assert dependency.launched == SAME_DAY


# --- what a day is made of, and what is behind ----------------------------------------------------


def test_a_day_has_another_input_digest_once_the_day_before_has_other_rows():
    staged = ledger(STAGED, record(0, days((1, 4)), inputs={RAW.name: 0}))
    original = record(0, days((1, 3)), inputs={STAGED.name: 0})
    replacement = record(1, days(2), inputs={STAGED.name: 0}, digest="other")
    then, now = (
        input_digests(
            GRAPH.inputs[balance.name], ledgers(staged, ledger(balance, *records)), days((1, 4))
        )
        for records in ([original], [original, replacement])
    )
    assert {d for d in then if then[d] != now[d]} == days(3)


def list_stale_inputs(*records) -> dict[date, set[str]]:
    staged = ledger(STAGED, record(0, days((1, 3)), inputs={RAW.name: 0}))
    result = find_stale_days(
        snapshot_ledgers(ledgers(staged, ledger(balance, *records)), POLICY, LATER)
    )
    return {d: {*entry.input_commits} for d, entry in result.open.get(balance.name, {}).items()}


def test_a_day_waits_for_the_day_before():
    assert list_stale_inputs() == {day(1): {STAGED.name}}
    first = record(0, days(1), inputs={STAGED.name: 0, balance.name: 0})
    assert list_stale_inputs(first) == {day(2): {STAGED.name, balance.name}}
    second = record(1, days(2), inputs={STAGED.name: 0, balance.name: 0})
    assert list_stale_inputs(first, second).keys() == days(3)
    # The first day with other rows: the second one was made of what it held before.
    replacement = record(2, days(1), inputs={STAGED.name: 0, balance.name: 1})
    assert list_stale_inputs(first, second, replacement) == {
        day(2): {balance.name},
        day(3): {STAGED.name, balance.name},
    }


def test_a_day_of_the_day_before_of_another_table_waits_for_that_day():
    staged = ledger(STAGED, record(0, days(1, 2, 4), inputs={RAW.name: 0}))
    result = find_stale_days(snapshot_ledgers(ledgers(staged, ledger(yesterday)), POLICY, LATER))
    assert result.open[yesterday.name].keys() == days(2, 3, 5)


VISITS = Source(
    "late_visits",
    Visit,
    key=["visit_id"],
    event_time="began_at",
    version_time="sent_at",
    start=day(5),
)


@table(DailyOrders, **FACT_OPTIONS)
def of_both(
    orders: Annotated[DataFrame, Reads(STAGED, PREVIOUS_DAY)],
    visits: Annotated[DataFrame, Reads(VISITS.staged)],
) -> DataFrame: ...


def test_the_first_day_of_a_table_needs_the_day_before_of_an_input_that_begins_earlier():
    def open_days(*staged: int) -> set[date]:
        table_ledgers = [
            ledger(STAGED, record(0, days(*staged), inputs={RAW.name: 0})),
            *map(
                ledger,
                [
                    visits_table
                    for visits_table in VISITS.tables
                    if visits_table is not VISITS.staged
                ],
            ),
            ledger(VISITS.staged, record(0, days(5, 6), inputs={VISITS.raw.name: 0})),
            ledger(of_both),
        ]
        return {
            *find_stale_days(snapshot_ledgers(ledgers(*table_ledgers), POLICY, LATER)).open.get(
                of_both.name, ()
            )
        }

    assert open_days(4, 5) == days(5, 6)
    assert open_days(5) == days(6)


# --- what is final --------------------------------------------------------------------------------


def compute_final_days(
    *records, last: int = 5, staged: Iterable[date] | None = None
) -> frozenset[date]:
    """With a window of 2 days, the days of a log that is settled to the last are final but two."""
    log_days = days((1, last))
    raw = ledger(RAW, record(0, log_days, settled=log_days, event_days=log_days))
    stg = ledger(STAGED, record(0, log_days if staged is None else staged, inputs={RAW.name: 0}))
    known = ledgers(raw, stg, ledger(balance, *records))
    result = snapshot_ledgers(known, POLICY).final_by_table
    return frozenset(result[balance.name])


def daily_records(*numbers: int) -> list:
    """A commit for each day, which has read what the commits before it published."""
    return [
        record(n, days(d), inputs={STAGED.name: 0, balance.name: max(n - 1, 0)})
        for n, d in enumerate(numbers)
    ]


def test_a_day_is_final_once_the_day_before_is():
    assert compute_final_days(*daily_records(1, 2, 3, 4, 5)) == days(1, 2, 3)
    # Days of one commit are built one upon the other.
    assert compute_final_days(record(0, days((1, 5)), inputs={STAGED.name: 0})) == days(1, 2, 3)
    # The first day of all has none before it; the third one has none that is published.
    assert compute_final_days(*daily_records(1, 3, 4, 5)) == days(1)
    assert compute_final_days(*daily_records(2, 3, 4, 5)) == frozenset()
    # The second day came after the third had been made.
    assert compute_final_days(*daily_records(1, 3, 2)) == days(1, 2)
    # Staging lacks a day: those after it are not final either.
    assert compute_final_days(*daily_records(1, 2, 3, 4, 5), staged=days(1, (3, 5))) == days(1)


def test_a_day_of_a_long_history_is_final_as_well():
    last = 1500
    assert compute_final_days(*daily_records(*range(1, last + 1)), last=last) == days((1, last - 2))
    # And so is none after a day that is not.
    gap = [n for n in range(1, last + 1) if n != 700]
    assert compute_final_days(*daily_records(*gap), last=last) == days((1, 699))
    # Whichever day is asked for first: here it is the last one.
    backwards = daily_records(*range(last, 0, -1), *range(1, last + 1))
    assert compute_final_days(*backwards, last=last) == days((1, last - 2))


def test_the_first_day_of_all_needs_no_day_before():
    assert PREVIOUS_DAY.required_days(START) == [START - DAY]
    assert {*PREVIOUS_DAY.input_days(Window(START, START + DAY))} == {START - DAY}


class _StartedError(Exception):
    """The session was asked for."""


class _Unread:
    """An input of which no row was read yet: whoever reads it starts the session."""

    def read_days(self, dates: Iterable[date]) -> DataFrame:
        raise _StartedError


def test_a_run_with_a_process_of_its_own_starts_its_session_before_it_names_a_column(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    with pytest.raises(_StartedError):
        input_frames(
            balance, [dict.fromkeys(balance.reads, _Unread())], Window(day(0), day(2)), "UTC"
        )


# --- the plan -------------------------------------------------------------------------------------


def plan_days(planned: Table, window: Window, *table_ledgers: Ledger) -> TableForecast:
    """What a plan of these days says of a table."""
    request = BackfillRequest(days=str(window), tables=(planned.name,))
    all_ledgers = {name: Ledger(declared) for name, declared in tables_of(SETTINGS).items()}
    all_ledgers |= {known.table.name: known for known in table_ledgers}
    days_by_table = {planned.name: [*window]}
    plan = plan_backfill(
        Deployment(SETTINGS), request, days_by_table, all_ledgers, Code("code"), "id"
    )
    return plan.tables[planned.name]


def test_a_plan_builds_the_first_day_that_needs_no_day_before():
    digest = Deployment(SETTINGS).config_digests[STAGED.name]
    staged = ledger(STAGED, record(0, days(1, 2), config_digest=digest))
    forecast = plan_days(yesterday, Window(day(1), day(5)), staged)
    assert (forecast.days_to_compute, forecast.lacking) == (
        [day(1), day(2), day(3)],
        (str(day(4)),),
    )


def test_a_plan_rebuilds_days_under_other_settings_one_upon_the_other():
    digests = Deployment(SETTINGS).config_digests
    staged = ledger(STAGED, record(0, days((1, 4)), config_digest=digests[STAGED.name]))
    old = ledger(balance, record(0, days((1, 4)), config_digest="old"))
    forecast = plan_days(balance, Window(day(1), day(5)), staged, old)
    assert forecast.days_to_compute == [day(1), day(2), day(3), day(4)]
    # But not upon a day before them that is not in the plan.
    forecast = plan_days(balance, Window(day(3), day(5)), staged, old)
    assert (forecast.days_to_compute, forecast.other_settings) == ([], ("2024-01-03...2024-01-04",))


def test_a_plan_names_the_days_that_follow_and_are_not_in_it():
    digests = Deployment(SETTINGS).config_digests
    names = (STAGED.name, yesterday.name, balance.name, after_balance.name)
    all_ledgers = {name: Ledger(declared) for name, declared in tables_of(SETTINGS).items()}
    all_ledgers |= {
        name: ledger(GRAPH.tables[name], record(0, days((1, 6)), config_digest=digests[name]))
        for name in (RAW.name, *names)
    }
    window = Window(day(2), day(4))
    request = BackfillRequest(days=str(window), tables=names[:2], rewrite=True)
    planned_days = {name: [*window] for name in names[:2]}
    plan = plan_backfill(
        Deployment(SETTINGS), request, planned_days, all_ledgers, Code("code"), "id"
    )
    assert plan.days_following == {
        # It reads the day before: days 3 and 4 change with days 2 and 3.
        yesterday.name: [day(4)],
        # All days from the first that changes, as each is built upon the one before.
        balance.name: [day(2), day(3), day(4), day(5), day(6)],
        after_balance.name: [day(2), day(3), day(4), day(5), day(6)],
    }
    assert plan.following_command == (
        f"backfill-assets backfill {day(2)}...{day(6)} --select "
        f"{balance.name},{after_balance.name},{yesterday.name}"
    )


def test_a_reconciliation_names_final_days_that_are_behind():
    digests, inputs = Deployment(SETTINGS).config_digests, {STAGED.name: 0}
    all_ledgers = {name: Ledger(declared) for name, declared in tables_of(SETTINGS).items()}
    all_ledgers[STAGED.name] = ledger(
        STAGED,
        record(0, days((1, 6)), config_digest=digests[STAGED.name]),
        record(1, days((2, 4)), config_digest=digests[STAGED.name], backfill="bf-rest"),
    )
    final, built = days((1, 5)), days((1, 6))
    all_ledgers[yesterday.name] = ledger(
        yesterday,
        record(0, built, final=final, inputs=inputs, config_digest=digests[yesterday.name]),
        record(1, days(3), final=days(3), inputs={STAGED.name: 1}),
    )
    behind = find_final_days_behind(snapshot_ledgers(all_ledgers, POLICY, LATER), "bf")
    # Day 3 was built since, and day 6 is open.
    assert behind == {yesterday.name: [day(4), day(5)]}
    assert find_final_days_behind(snapshot_ledgers(all_ledgers, POLICY, LATER), "other") == {}


def make_ledgers(chance: Random) -> dict[str, Ledger]:
    """Ledgers of all tables; inputs, content and settings of some days are current, at random."""
    digests, known = Deployment(SETTINGS).config_digests, {}
    for name, declared in tables_of(SETTINGS).items():
        current, old = (
            days(*[n for n in range(1, 7) if chance.random() < share]) for share in (0.7, 0.2)
        )
        current_record = record(0, current, config_digest=digests[name], inputs={STAGED.name: 0})
        records = [current_record]
        if chance.random() < 0.5 and old:
            records.append(record(1, old, config_digest="old"))
        known[name] = ledger(declared, *records)
        current_digests = input_digests(GRAPH.inputs[name], known, sorted(current))
        for d in current:
            if chance.random() < 0.6:
                published_day = current_record.days[d]
                current_record.days[d] = replace(published_day, input_digest=current_digests[d])
        known[name] = ledger(declared, *records)
    return known


def find_refused_days(planned: Table, window: Window, known: Mapping[str, Ledger]) -> set[date]:
    """The days that a run of them refuses."""
    snapshot = Snapshot(GRAPH, known, config_digests=Deployment(SETTINGS).config_digests)
    assessments = assess(snapshot, planned.name, window)
    return {d for d, assessment in assessments.items() if assessment.obstacle}


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_a_run_and_the_backlog_agree_on_what_cannot_be_built(seed):
    """Over invented ledgers: days, inputs and settings of all tables at random."""
    known = make_ledgers(Random(seed))
    stale = find_stale_days(snapshot_ledgers(known, POLICY, LATER))
    window = Window(day(1), day(7))
    for planned in GRAPH.by_event_day:
        forecast = plan_days(GRAPH.tables[planned], window, *known.values())
        blocked = {*from_ranges([*forecast.lacking, *forecast.other_settings])}
        open_days = {*stale.open.get(planned, ())}
        present = known[planned].published_days | open_days
        alone = assess(Snapshot(GRAPH, known), planned, open_days, in_order=False)
        lacking = {d for d in open_days if alone[d].obstacle}
        # The day before may be one of those that are built first.
        assert not {d for d in lacking if d - DAY not in present}, planned
        assert blocked == find_refused_days(GRAPH.tables[planned], window, known), planned
