"""Which days of a run are computed, why, and which are refused: over ledgers made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import Mock, call

import msgspec
import pyspark.sql.types as T
import pytest
from dagster import Failure
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import DataFrame, SparkSession

from backfill_assets import PREVIOUS_DAY, SELF, Reads, table
from backfill_assets.assets import table_asset
from backfill_assets.audit.verdicts import Expectation
from backfill_assets.backfills.verify import ComparisonDestination
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DaySet, Window
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger, TableMetadata
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.orders.tables import FACT, ORDERS, RAW, STAGED, DailyOrders
from backfill_assets.publish import publication
from backfill_assets.publish.compute import (
    explain_spark_errors,
    has_shown_equal_days,
    has_shown_equal_parts,
    sample_days,
)
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.publication import list_results
from backfill_assets.publish.publisher import Destination, Input, Publisher
from backfill_assets.publish.types import (
    Candidate,
    CommitRaceError,
    ComputedDays,
    ComputePlan,
    Delivery,
    Outcome,
    RunRequest,
)
from backfill_assets.runtime_versions import package_version
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency, SchemaError
from backfill_assets_tests.helpers.invented_logs import NIGHTLY, days, ledger, record
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS, START, day
from backfill_assets_tests.helpers.publish_rows import make_plan
from backfill_assets_tests.helpers.written_logs import commit_with_record


@table(DailyOrders, **FACT_OPTIONS)
def balance(
    orders: Annotated[DataFrame, Reads(STAGED)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame: ...


class _StartedError(Exception):
    """The session was asked for."""


class IdleEngine(Engine):
    """An engine that is not to be started."""

    @property
    def spark_session(self) -> SparkSession:
        raise _StartedError


#: The settings digests of records that are made by hand, and of what they are built from.
DIGESTS = {FACT.name: "config", balance.name: "config", STAGED.name: "config of the staging"}
RUN = {
    "run_id": "this run",
    "launched_by": "person",
    "code_version": "code",
    "config_digest": "config",
}


def make_publisher(**fields: Any) -> DeltaIOManager:
    code = {name: fields.pop(name) for name in ("commit", "dirty") if name in fields}
    settings = {
        "warehouse": "/warehouse",
        "digest": "config of all",
        "undo_days": 2,
        "key_prefix": None,
        **fields,
    }
    deployment = SimpleNamespace(
        settings=SimpleNamespace(**settings),
        code=Code("release", tables=dict.fromkeys(DIGESTS, "code"), **code),
        config_digests=DIGESTS,
        today=date.max,
    )
    return DeltaIOManager(deployment, IdleEngine(spark_config={}, jars=""))


def make_comparing_publisher() -> DeltaIOManager:
    """The publisher of a verification: it computes days, and publishes none."""
    return make_publisher().with_destination(ComparisonDestination("/warehouse", {}))


def built(version: int, published: Iterable[date], made_of: str = "input", **more) -> CommitRecord:
    """A commit of days that were all built from the same input."""
    commit = record(version, published, **more)
    of_days = {d: msgspec.structs.replace(p, input_digest=made_of) for d, p in commit.days.items()}
    return msgspec.structs.replace(commit, days=of_days)


def hold_days(version: int, held: Mapping[date, str]) -> CommitRecord:
    """The commit of an undo: a person has rejected what was built from these inputs."""
    return record(version, (), on_hold={str(d): made_of for d, made_of in held.items()})


def staged(*records: CommitRecord) -> Ledger:
    return ledger(STAGED, *records or [staged_record(0, days((1, 9)))])


def staged_record(version: int, published: Iterable[date], **more) -> CommitRecord:
    return record(version, published, **{"config_digest": DIGESTS[STAGED.name], **more})


def read_same_day(*inputs: Ledger) -> list[TableSnapshot]:
    """The inputs of a table that has the same days as they."""
    return [TableSnapshot(source, True, None) for source in inputs]


def snapshot_facts(
    publisher: DeltaIOManager,
    request: RunRequest,
    own: Ledger,
    sources: Sequence[TableSnapshot],
    digests: Mapping[date, str],
    changes: Mapping[date, str] | None = None,
) -> Snapshot:
    """What a run of a table of the same days as its inputs decides by, with the code of the run."""
    snapshot = publisher.snapshot(
        request,
        Graph({}, Policy(START, None, 2, 1, corrects=True, only_touched=True)),
        {FACT.name: own, **{source.table.name: source.ledger for source in sources}},
        digests={FACT.name: digests},
        changes={FACT.name: changes or {}},
        asset_inputs={FACT.name: tuple(Dependency(s.table, SAME_DAY) for s in sources)},
    )
    now = request.record["code_version"], request.record["config_digest"]
    return replace(
        snapshot,
        code_versions={**snapshot.code_versions, FACT.name: now[0]},
        config_digests={**snapshot.config_digests, FACT.name: now[1]},
    )


def plan_facts(
    own: Ledger,
    *inputs: Ledger,
    publisher: DeltaIOManager | None = None,
    numbers: Iterable[int] = (1, 2, 3),
    made_of: str = "input",
    request: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    changes: Mapping[date, str] | None = None,
) -> ComputePlan:
    """The plan of some days of a table that was declared with `Reads(STAGED)`.

    Args:
        own: of the table.
        inputs: of its inputs; the staging has all days unless given.
        publisher: makes the plan.
        numbers: of the days.
        made_of: the current input digest of all of them.
        request: more of what the run asks.
        run: more of what is recorded of the run.
        changes: what changed in the input, by day.
    """
    planned = days(*numbers)
    asked_for = RunRequest(DaySet.from_days(planned), {**RUN, **(run or {})}, **(request or {}))
    sources = read_same_day(*inputs or [staged()])
    publisher = publisher or make_publisher()
    digests = dict.fromkeys(sorted(planned), made_of)
    snapshot = snapshot_facts(publisher, asked_for, own, sources, digests, changes)
    return publisher.plan_days(asked_for, FACT, snapshot, sources)


def reasons_by_number(plan: ComputePlan) -> dict[int, str]:
    return {(d - START).days + 1: reason for d, reason in plan.reasons.items()}


def problems_by_number(plan: ComputePlan) -> dict[int, str]:
    """Why days are refused; nothing else is expected of them."""
    for expectation in plan.refused.values():
        assert expectation == Expectation(problems=expectation.problems)
    return {(d - START).days + 1: "; ".join(x.problems) for d, x in plan.refused.items()}


# --- where tables are, and what is said of a run --------------------------------------------------


def test_production_is_the_destination_unless_another_is_given():
    assert make_publisher().destination == Destination("/warehouse")
    other = ComparisonDestination("/elsewhere", {})
    assert make_publisher().with_destination(other).destination is other
    assert (other.merges, other.compares) == (False, True)
    assert (Destination.merges, Destination.compares) == (True, False)


def test_a_table_lies_in_the_warehouse_by_its_name():
    publisher = make_publisher(undo_days=5)
    assert publisher.url(FACT) == "/warehouse/fact_daily_orders"
    assert Destination("/warehouse").data_url(FACT) == ""
    expected = Writer(publisher.start_session, "/warehouse/fact_daily_orders", FACT, 5, "")
    assert publisher.writer(FACT) == expected


def start_another_session() -> SparkSession:
    raise LookupError


def test_a_step_may_have_a_session_of_its_own():
    publisher = make_publisher()
    assert publisher.writer(FACT, start_another_session).session is start_another_session
    written = ledger(FACT, record(0, days(1)))
    source = Input(publisher, FACT, by_day=True)
    for snapshot in (publisher.table_snapshot(written, by_day=True), source.snapshot(written)):
        with pytest.raises(_StartedError):
            snapshot.read_days(days(1))
    for snapshot in (
        publisher.table_snapshot(written, by_day=True, session=start_another_session),
        source.snapshot(written, start_another_session),
    ):
        with pytest.raises(LookupError):
            snapshot.read_days(days(1))


@pytest.mark.parametrize("by_day", [True, False])
def test_an_input_is_read_at_the_version_of_its_ledger(tmp_path, by_day):
    publisher = make_publisher(warehouse=str(tmp_path))
    source = Input(publisher, FACT, by_day)
    commit_with_record(tmp_path / FACT.name, 1, 2)
    known = source.read_ledger()
    assert (known.table, known.version, known.published_days) == (FACT, 0, days(1, 2))
    assert publisher.ledger(FACT) == known
    commit_with_record(tmp_path / FACT.name, 3)
    snapshot = source.snapshot(known)
    assert snapshot.ledger is known
    assert snapshot.needs_same_day is by_day
    assert source.read_ledger().published_days == days(1, 2, 3)


def test_a_table_that_is_not_there_cannot_be_read():
    snapshot = make_publisher().table_snapshot(Ledger(FACT), by_day=True)
    with pytest.raises(Failure) as raised:
        snapshot.read_days(days(1))
    assert raised.value.description == (
        "fact_daily_orders has no table yet at /warehouse/fact_daily_orders: materialize it first. "
        "Nothing was written."
    )


def test_a_commit_says_by_whom_why_and_by_which_code():
    publisher = make_publisher(commit="0123abc", dirty=True)
    tags = {
        "dagster/backfill": "bf",
        "dagster/schedule_name": "nightly",
        "backfill_assets/reason": "a ticket",
    }
    assert publisher.run_metadata(FACT, "r1", tags) == {
        "run_id": "r1",
        "backfill_id": "bf",
        "launched_by": NIGHTLY,
        "reason": "a ticket",
        "asset": "fact_daily_orders",
        "code_version": "code",
        "release": "release",
        "config_digest": "config",
        "package": package_version(),
        "git_commit": "0123abc",
        "git_dirty": True,
    }


def test_a_commit_says_which_deployment_made_it():
    record = make_publisher(key_prefix="lake/gold").run_metadata(FACT, "r1", {})
    assert (record["key_prefix"], record["asset"]) == ("lake/gold", FACT.name)


def test_a_table_that_is_not_declared_has_the_code_and_settings_of_all():
    assert make_publisher().run_metadata(RAW, "r1", {}) == {
        "run_id": "r1",
        "backfill_id": None,
        "launched_by": "person",
        "reason": "",
        "asset": "raw_orders",
        "code_version": "release",
        "release": "release",
        "config_digest": "config of all",
        "package": package_version(),
        "git_commit": "",
        "git_dirty": None,
    }


def test_the_failed_days_of_a_run_are_its_own():
    publisher = make_publisher()
    publisher.note_failed_days("r1", FACT.name, {day(1): "too few"})
    publisher.note_failed_days("r1", STAGED.name, {day(2): "null"})
    publisher.note_failed_days("r2", FACT.name, {day(3): "too many"})
    assert publisher.failed_days("r1") == {
        FACT.name: {day(1): "too few"},
        STAGED.name: {day(2): "null"},
    }
    assert publisher.failed_days("r2") == {FACT.name: {day(3): "too many"}}
    assert publisher.failed_days("r3") == {}
    # A step tells all days that have failed so far, each time.
    publisher.note_failed_days("r2", FACT.name, {day(4): "none"})
    assert publisher.failed_days("r2") == {FACT.name: {day(4): "none"}}


# --- what a run asks ------------------------------------------------------------------------------

WINDOW = Window(day(1), day(4))
MERGE = {"backfill_assets/write_mode": "merge"}


@pytest.mark.parametrize(
    ("asked_of", "tags", "expected"),
    [
        (FACT, {}, {}),
        (FACT, {"backfill_assets/rewrite": "true"}, {"rewrite": WINDOW}),
        (FACT, {"backfill_assets/rewrite": "True"}, {"rewrite": WINDOW}),
        (FACT, {"backfill_assets/rewrite": "false"}, {}),
        (FACT, {"backfill_assets/rewrite": "yes"}, {}),
        (FACT, MERGE, {"merge": True}),
        (FACT, {"backfill_assets/write_mode": "overwrite"}, {}),
        # Its model does not say that its rows may be merged.
        (RAW, MERGE, {}),
        (FACT, {"backfill_assets/code": "release/config of all"}, {}),
    ],
)
def test_what_a_run_asks_by_its_tags(asked_of, tags, expected):
    publisher = make_publisher()
    assert publisher.request_for_run(asked_of, "r1", tags, WINDOW) == RunRequest(
        WINDOW,
        publisher.run_metadata(asked_of, "r1", tags),
        **{"rewrite": (), "merge": False, "compares": False, **expected},
    )


def test_a_run_that_compares_merges_nothing():
    publisher = make_comparing_publisher()
    assert publisher.request_for_run(FACT, "r1", MERGE, WINDOW) == RunRequest(
        WINDOW, publisher.run_metadata(FACT, "r1", MERGE), (), merge=False, compares=True
    )


@pytest.mark.parametrize("pin", ["older/config of all", "release/other config"])
def test_a_backfill_goes_on_with_the_code_and_settings_that_it_was_planned_with(pin):
    with pytest.raises(PublishError) as raised:
        make_publisher().request_for_run(FACT, "r1", {"backfill_assets/code": pin}, WINDOW)
    assert str(raised.value) == (
        "fact_daily_orders [2024-01-01...2024-01-03]: the backfill was planned with code and "
        f"configuration {pin}, and this run has release/config of all. Nothing was written. Put "
        "back what was deployed and launch the backfill again, or make a new plan."
    )


# --- which days are computed, and why -------------------------------------------------------------


def test_a_plan_has_what_it_was_made_from():
    publisher, own = make_publisher(), ledger(FACT, built(0, days(2)))
    request = RunRequest(WINDOW, RUN)
    sources, input_digests = read_same_day(staged()), dict.fromkeys(WINDOW, "input")
    reasons = {day(1): "never published", day(3): "never published"}
    snapshot = snapshot_facts(publisher, request, own, sources, input_digests)
    plan = publisher.plan_days(request, FACT, snapshot, sources)
    assert plan == ComputePlan(
        request=request,
        writer=publisher.writer(FACT),
        ledger=own,
        sources=sources,
        input_digests=input_digests,
        reasons=reasons,
        refused={},
        requested={*reasons},
        snapshot=None,
    )
    plan = publisher.plan_days(request, FACT, snapshot, sources, start_another_session)
    assert plan.writer == publisher.writer(FACT, start_another_session)
    # An undo has its reasons, and asks for these days alone.
    plan = publisher.plan_commit(request, FACT, snapshot, sources, reasons)
    assert plan == ComputePlan(
        request=request,
        writer=publisher.writer(FACT),
        ledger=own,
        sources=sources,
        input_digests=dict.fromkeys(reasons, "input"),
        reasons=reasons,
        refused={},
        requested=reasons,
    )


PUBLISHED = built(0, days(1, 2, 3), inputs={STAGED.name: 0})


@pytest.mark.parametrize(
    ("own", "how", "expected"),
    [
        (PUBLISHED, {}, {}),
        (PUBLISHED, {"made_of": "other"}, dict.fromkeys((1, 2, 3), "new input")),
        (
            PUBLISHED,
            {"made_of": "other", "changes": {day(2): "a file came"}},
            {1: "new input", 2: "a file came", 3: "new input"},
        ),
        (PUBLISHED, {"run": {"code_version": "new"}}, dict.fromkeys((1, 2, 3), "other code")),
        (PUBLISHED, {"run": {"config_digest": "new"}}, dict.fromkeys((1, 2, 3), "other settings")),
        (PUBLISHED, {"request": {"rewrite": days(2)}}, {2: "asked for"}),
        (PUBLISHED, {"request": {"compares": True}}, dict.fromkeys((1, 2, 3), "asked for")),
        (built(0, days(1, 3)), {}, {2: "never published"}),
        (built(0, days(1, 3)), {"request": {"rewrite": days(2)}}, {2: "never published"}),
        (record(0, days(1, 2, 3)), {}, dict.fromkeys((1, 2, 3), "input not on record")),
    ],
)
def test_why_a_day_is_computed(own, how, expected):
    plan = plan_facts(ledger(FACT, own), **how)
    assert reasons_by_number(plan) == expected
    assert plan.requested == plan.reasons.keys()
    assert plan.refused == {}


def test_new_input_is_told_by_the_input_that_has_changed_since():
    inputs = [
        staged(staged_record(4, days((1, 9)))),
        ledger(RAW, record(7, days((1, 9)), config_digest="config of all")),
    ]
    for read, expected in [
        ({STAGED.name: 3, RAW.name: 7}, "new input: stg_orders"),
        ({STAGED.name: 4, RAW.name: 6}, "new input: raw_orders"),
        ({}, "new input: stg_orders, raw_orders"),
    ]:
        own = ledger(FACT, built(0, days(1), inputs=read))
        plan = plan_facts(own, *inputs, numbers=[1], made_of="other")
        assert reasons_by_number(plan) == {1: expected}


def test_a_day_that_others_have_changed_is_computed():
    own = ledger(FACT, PUBLISHED, external=[ExternalCommit(1, "WRITE", days(2))])
    assert reasons_by_number(plan_facts(own)) == {2: "external commit"}


IN_BACKFILL = {"backfill_id": "bf", "release": "new release"}


@pytest.mark.parametrize(
    ("own", "of_input", "said"),
    [
        (
            [built(0, days(1), backfill="bf")],
            [staged_record(0, days((1, 9)))],
            "2024-01-01 of fact_daily_orders with code code and configuration config, and this run "
            "has new release and config",
        ),
        (
            [],
            [staged_record(0, days((1, 9))), staged_record(1, days(4), backfill="bf")],
            "2024-01-04 of stg_orders with code code and configuration config of the staging, and "
            "this run has new release and config of the staging",
        ),
    ],
)
def test_all_days_of_a_backfill_are_of_the_same_code(own, of_input, said):
    with pytest.raises(PublishError) as raised:
        plan_facts(ledger(FACT, *own), staged(*of_input), run=IN_BACKFILL)
    assert str(raised.value) == (
        "fact_daily_orders [2024-01-01...2024-01-03]: backfill bf has published "
        f"{said}. Nothing was written. Put back what was deployed and launch what is missing and "
        "failed again, or launch all of its days as a new backfill. If the new code makes the same "
        "rows, `backfill-assets accept-code` says so for the days that are published."
    )


def test_a_backfill_goes_on_with_inputs_under_their_own_settings():
    run = {**IN_BACKFILL, "release": "code"}
    own = ledger(FACT, built(0, days(1), backfill="bf"))
    source = staged(staged_record(0, days((1, 9)), backfill="bf"))
    assert reasons_by_number(plan_facts(own, source, run=run)) == {
        2: "never published",
        3: "never published",
    }


# --- tables of another schema ---------------------------------------------------------------------


def with_columns(known: Ledger, *extra: str) -> Ledger:
    """A table that was created with more columns than its model has."""
    struct = T.StructType(
        [*known.table.struct_type, *(T.StructField(n, T.LongType()) for n in extra)]
    )
    return replace(known, metadata=TableMetadata(struct, (known.table.partition,)))


def refusal_of_schema(name: str, made_from: str) -> str:
    return (
        f"{name}: the table at /warehouse/{name} is not the one that this code writes: column more "
        "is not in the model. Nothing was written; the table is as it was. Only columns that may "
        "be null are added by themselves. Put back the code that wrote the table; or give the "
        f"model schema_version 2 and run backfill-assets migrate {name} --plan, which tells what "
        "can be changed in place; or give the table up, move its folder away and materialize all "
        f"days of {name}: they are rebuilt from {made_from}."
    )


@pytest.mark.parametrize(
    ("own", "inputs", "expected"),
    [
        (
            with_columns(ledger(FACT), "more"),
            [with_columns(staged()), ledger(RAW)],
            refusal_of_schema(FACT.name, "stg_orders and raw_orders"),
        ),
        (
            with_columns(ledger(FACT)),
            [with_columns(staged(), "more")],
            refusal_of_schema(STAGED.name, "what it is made from"),
        ),
        (
            ledger(FACT),
            [staged(), with_columns(ledger(RAW), "more")],
            refusal_of_schema(RAW.name, "what it is made from"),
        ),
    ],
)
def test_tables_with_other_columns_than_their_models_are_refused(own, inputs, expected):
    with pytest.raises(SchemaError) as raised:
        plan_facts(own, *inputs)
    assert str(raised.value) == expected
    # A run that only compares rows writes to none of them.
    plan_facts(own, *inputs, request={"compares": True})


# --- days on hold ---------------------------------------------------------------------------------

HELD = ledger(FACT, PUBLISHED, hold_days(1, {day(2): "new", day(3): "older"}))


@pytest.mark.parametrize(
    ("run", "request_", "expected"),
    [
        ({"launched_by": NIGHTLY}, {}, {1, 3}),
        ({"launched_by": "command night"}, {}, {1, 3}),
        ({"launched_by": NIGHTLY}, {"rewrite": days(2)}, {1, 3}),
        ({"launched_by": NIGHTLY}, {"compares": True}, {1, 2, 3}),
        ({"launched_by": "person"}, {}, {1, 2, 3}),
    ],
)
def test_a_day_on_hold_is_built_by_a_person_or_once_its_input_has_changed(run, request_, expected):
    plan = plan_facts(HELD, made_of="new", run=run, request=request_)
    assert reasons_by_number(plan).keys() == expected
    assert plan.requested == plan.reasons.keys()
    assert plan.refused == {}


def test_a_run_that_does_not_say_who_launched_it_is_that_of_a_person():
    request = RunRequest(WINDOW, {k: v for k, v in RUN.items() if k != "launched_by"})
    publisher, sources = make_publisher(), read_same_day(staged())
    snapshot = snapshot_facts(publisher, request, HELD, sources, dict.fromkeys(WINDOW, "new"))
    plan = publisher.plan_days(request, FACT, snapshot, sources)
    assert reasons_by_number(plan).keys() == {1, 2, 3}


# --- days that cannot be built --------------------------------------------------------------------


def test_a_day_without_its_input_is_refused():
    source = staged(
        staged_record(0, days(1, 3)), staged_record(1, days(4), config_digest="older settings")
    )
    plan = plan_facts(ledger(FACT), source, numbers=[1, 2, 3, 4])
    assert reasons_by_number(plan) == {1: "never published", 3: "never published"}
    assert problems_by_number(plan) == {
        2: "stg_orders[2024-01-02] has never been published",
        4: "stg_orders[2024-01-04] was made under other settings; rebuild these days first",
    }
    assert plan.requested == days((1, 4))


def test_a_day_is_not_built_from_one_that_failed_in_the_same_run():
    publisher = make_publisher()
    publisher.note_failed_days("this run", STAGED.name, {day(1): "too few"})
    publisher.note_failed_days("another run", STAGED.name, {day(2): "too few"})
    plan = plan_facts(ledger(FACT), publisher=publisher)
    assert reasons_by_number(plan) == {2: "never published", 3: "never published"}
    assert problems_by_number(plan) == {1: "stg_orders[2024-01-01] failed in this run"}


# --- days that are built one upon the other -------------------------------------------------------


def plan_balances(
    own: Ledger,
    of_input: Ledger | None = None,
    *,
    window: Window = WINDOW,
    start: date = START,
    failed: Mapping[str, Mapping[date, str]] | None = None,
    made_of: str = "input",
    **request: Any,
) -> ComputePlan:
    """The plan of days of the balances, of which each is built from the day before.

    Args:
        own: of the balances.
        of_input: of the staging, which has all days unless given.
        window: the days.
        start: the first day of all.
        failed: days that the run has failed to publish, by table.
        made_of: the current input digest of all days.
        request: more of what the run asks, and of who it is.
    """
    policy = Policy(start, None, window_days=2, lag_days=1, corrects=True, only_touched=True)
    graph = Graph.from_tables([*ORDERS, balance], policy)
    known = {balance.name: own, STAGED.name: of_input or staged()}
    inputs = balance.inputs(policy)
    snapshots = [
        TableSnapshot(known[dependency.source.name], True, None).with_reach(
            dependency.reach.deciding_days(known[dependency.source.name]),
            partial(graph.required_days, dependency),
        )
        for dependency in inputs
    ]
    publisher = make_publisher()
    for name, reasons in (failed or {}).items():
        publisher.note_failed_days("this run", name, reasons)
    run = {**RUN, "launched_by": request.pop("launched_by", "person")}
    asked_for = RunRequest(window, run, **request)
    digests = {balance.name: dict.fromkeys(window, made_of)}
    snapshot = publisher.snapshot(asked_for, graph, known, digests=digests)
    return publisher.plan_days(asked_for, balance, snapshot, snapshots)


NEW, NEXT = "never published", "new input: balance"
MISSING = "stg_orders[{}] has never been published"
UPON = "it is built upon earlier days, and {}"


def published_balances(*numbers: int | tuple[int, int], **more) -> Ledger:
    return ledger(
        balance, built(0, days(*numbers), inputs={STAGED.name: 0, balance.name: 0}, **more)
    )


@pytest.mark.parametrize(
    ("own", "how", "reasons", "problems"),
    [
        # The first day of all has none before it.
        (ledger(balance), {}, {1: NEW, 2: NEW, 3: NEW}, {}),
        (published_balances((1, 3)), {}, {}, {}),
        (published_balances((1, 9)), {"window": Window(day(5), day(8))}, {}, {}),
        # All days after one that is computed are, as they may change.
        (published_balances(2, 3), {}, {1: NEW, 2: NEXT, 3: NEXT}, {}),
        (published_balances(1, 3), {}, {2: NEW, 3: NEXT}, {}),
        (
            published_balances((1, 3)),
            {"rewrite": days(2)},
            {2: "asked for", 3: NEXT},
            {},
        ),
        # Days that lack another input, and those after them that must be computed.
        (
            ledger(balance),
            {"of_input": staged(staged_record(0, days(1, 3)))},
            {1: NEW},
            {
                2: MISSING.format(day(2)),
                3: UPON.format(f"balance[{day(2)}] was not published"),
            },
        ),
        (
            ledger(balance),
            {"of_input": staged(staged_record(0, days(1, 4))), "window": Window(day(1), day(5))},
            {1: NEW},
            {
                2: MISSING.format(day(2)),
                3: MISSING.format(day(3)),
                4: UPON.format(f"balance[{day(3)}] was not published"),
            },
        ),
        # After a day that is as it must be, days are built again.
        (
            published_balances(2),
            {"of_input": staged(staged_record(0, days(2, 3)))},
            {3: NEW},
            {1: MISSING.format(day(1))},
        ),
        # The day before the first one is there, or it is not.
        (published_balances(4), {"window": Window(day(5), day(7))}, {5: NEW, 6: NEW}, {}),
        (
            published_balances(3, 5),
            {"window": Window(day(5), day(8)), "made_of": "other"},
            {},
            dict.fromkeys((5, 6, 7), UPON.format(f"balance[{day(4)}] has never been published")),
        ),
        (
            published_balances(3, 5),
            {"window": Window(day(5), day(8))},
            {6: NEW, 7: NEW},
            {},
        ),
        (
            published_balances(4, config_digest="older settings"),
            {"window": Window(day(5), day(6))},
            {},
            {5: UPON.format(f"balance[{day(4)}] was made under other settings; rebuild it first")},
        ),
        # What this run has failed to publish before these days.
        (
            published_balances((1, 4)),
            {
                "window": Window(day(5), day(6)),
                "failed": {balance.name: dict.fromkeys([day(2), day(4), day(3)], "too few")},
            },
            {},
            {5: UPON.format(f"balance[{day(4)}] failed in this run")},
        ),
        (
            published_balances((1, 4)),
            {"window": Window(day(5), day(6)), "failed": {balance.name: {day(5): "too few"}}},
            {5: NEW},
            {},
        ),
        (
            published_balances((1, 4)),
            {"window": Window(day(5), day(6)), "failed": {STAGED.name: {day(5): "too few"}}},
            {},
            {5: f"stg_orders[{day(5)}] failed in this run"},
        ),
        # The calendar begins later than it did.
        (
            published_balances((1, 3)),
            {"window": Window(day(5), day(6)), "start": day(5)},
            {},
            {
                5: UPON.format(
                    f"balance has days up to {day(3)} and none on the day before {day(5)}, the "
                    "first day now: it would begin anew. Put BACKFILL_ASSETS_START back and build "
                    "the days between"
                )
            },
        ),
        (
            published_balances((1, 4)),
            {"window": Window(day(5), day(6)), "start": day(5)},
            {5: NEW},
            {},
        ),
        (
            published_balances((1, 3), 5),
            {"window": Window(day(5), day(6)), "start": day(5), "made_of": "other"},
            {5: NEXT},
            {},
        ),
        (
            published_balances(7),
            {"window": Window(day(5), day(6)), "start": day(5)},
            {5: NEW},
            {},
        ),
    ],
)
def test_days_are_built_one_upon_the_other(own, how, reasons, problems):
    plan = plan_balances(own, **how)
    assert reasons_by_number(plan) == reasons
    assert problems_by_number(plan) == problems


def test_days_that_follow_one_that_is_computed_were_not_asked_for():
    plan = plan_balances(published_balances(1, 3, 4), window=Window(day(1), day(5)))
    assert reasons_by_number(plan) == {2: NEW, 3: NEXT, 4: NEXT}
    assert plan.requested == days(2)


def test_what_is_only_compared_takes_the_published_day_before():
    """Each day is computed from it, so one that is not there is an input that lacks."""
    own = ledger(
        balance, built(0, days(1, 2, 4)), built(1, days(3), config_digest="older settings")
    )
    plan = plan_balances(own, window=Window(day(1), day(7)), compares=True)
    assert reasons_by_number(plan) == {1: "asked for", 2: "asked for", 3: "other settings", 5: NEW}
    assert problems_by_number(plan) == {
        4: f"balance[{day(3)}] was made under other settings; rebuild these days first",
        6: f"balance[{day(5)}] has never been published",
    }


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({}, {1: NEW, 2: NEW, 3: NEW}),
        ({2: "input"}, {1: NEW}),
        ({2: "older"}, {1: NEW, 2: NEW, 3: NEW}),
        ({3: "input", 2: "input"}, {1: NEW}),
        ({3: "input"}, {1: NEW, 2: NEW}),
        ({1: "input"}, {}),
    ],
)
def test_no_day_is_built_upon_one_on_hold(held, expected):
    own = ledger(balance, hold_days(0, {day(n): made_of for n, made_of in held.items()}))
    plan = plan_balances(own, launched_by=NIGHTLY)
    assert reasons_by_number(plan) == expected
    assert plan.requested == plan.reasons.keys()
    # They wait, and have not failed.
    assert plan.refused == {}
    by_person = plan_balances(own)
    assert reasons_by_number(by_person) == {1: NEW, 2: NEW, 3: NEW}


# --- what becomes of a candidate ------------------------------------------------------------------


#: In place of a failure: the parts are to be committed each by itself.
APART = PublishError("apart")


def publish_parts(
    monkeypatch,
    *commits: Exception | None,
    changed: Mapping[str, Sequence[date]] | None = None,
    urls: Mapping[str, str] | None = None,
) -> tuple[list[list[str]], dict[str, Mock], list[bool]]:
    """Publish three parts, whose commits may fail.

    Returns:
        The parts of each commit that was made; the audited days by part; and for each commit,
        whether another one had been made since the plan.
    """
    plans = {part: Mock(table=Mock(part=part)) for part in ("eu", "us", "apac")}
    own_day = {part: [day(n)] for n, part in enumerate(plans, 1)}
    audited = {
        part: Mock(
            changed=(changed or own_day)[part],
            files=dict.fromkeys((changed or own_day)[part]),
            verdicts=[day(1)],
            passed=[day(1)],
            plan=Mock(
                request=Mock(merge=False),
                ledger=Mock(retirement_commit=None),
                writer=Mock(url=(urls or {}).get(part, "/t")),
            ),
        )
        for part in plans
    }
    outcomes, followed = iter(commits), list[bool]()

    def publish_days(days: Sequence[Mock], *, follows: bool) -> Sequence[Mock] | None:
        followed.append(follows)
        if failure := next(outcomes):
            if failure is APART:
                return None
            raise failure
        return days

    monkeypatch.setattr(publication, "audit_days", lambda _: audited)
    monkeypatch.setattr(publication, "_write_together", lambda _: None)
    monkeypatch.setattr(publication, "_publish_days", publish_days)
    monkeypatch.setattr(publication, "list_results", lambda *_: [])
    published: list[list[str]] = []
    with suppress(PublishError):
        candidates = [Candidate(plan) for plan in plans.values()]
        for delivery in publication.publish_candidates(candidates):
            published.append([candidate.plan.table.part for candidate, _ in delivery])
    return published, audited, followed


def test_parts_whose_same_days_changed_are_committed_together(monkeypatch):
    changed = {"eu": [day(1), day(2)], "us": [day(2)], "apac": [day(1), day(2)]}
    published, _, followed = publish_parts(monkeypatch, None, None, changed=changed)
    assert published == [["eu", "apac"], ["us"]]
    assert followed == [False, True]


def test_parts_that_cannot_share_a_commit_any_more_are_committed_apart(monkeypatch):
    """As another run has published days of one, or another writer has put rows into some."""
    changed = {part: [day(1)] for part in ("eu", "us", "apac")}
    lost = CommitRaceError("us is not as planned")
    published, parts, _ = publish_parts(monkeypatch, APART, None, lost, changed=changed)
    assert published == [["eu"]]
    assert [name for name, part in parts.items() if part.remove_files.called] == ["apac"]


def audited_days(*, holds: bool = True, changed: Sequence[date] = (), **commits: Any) -> Mock:
    """Audited days of a part, of which one passed."""
    days = Mock(passed=[day(1)], changed=[*changed], commit_once=Mock(**commits))
    days.with_current_ledger.return_value = days if holds else None
    return days


def test_a_commit_of_parts_is_tried_again_as_long_as_all_are_as_planned(monkeypatch):
    monkeypatch.setattr(publication, "race_attempts", lambda: range(3))
    committed = [Mock(), Mock()]
    eu, us = audited_days(side_effect=[None, committed]), audited_days()
    assert publication._publish_days([eu, us], follows=False) is committed
    assert eu.commit_once.call_args_list == [call([us])] * 2
    assert eu.remove_files.called
    assert us.remove_files.called


@pytest.mark.parametrize(
    "us",
    [
        audited_days(holds=False),
        audited_days(changed=days(1)),
        Mock(with_current_ledger=Mock(side_effect=PublishError("other code"))),
    ],
    ids=["published by another run", "written by others", "other code"],
)
def test_parts_are_left_to_each_if_one_is_not_as_planned(monkeypatch, us):
    """Their files stay, for the commits of each."""
    monkeypatch.setattr(publication, "race_attempts", lambda: range(3))
    eu = audited_days(return_value=None)
    assert publication._publish_days([eu, us], follows=False) is None
    assert eu.commit_once.call_count == 1
    assert not eu.remove_files.called
    assert not us.remove_files.called


def test_days_alone_that_are_not_as_planned_are_computed_anew(monkeypatch):
    monkeypatch.setattr(publication, "race_attempts", lambda: range(3))
    eu = audited_days(holds=False, return_value=None)
    with pytest.raises(CommitRaceError):
        publication._publish_days([eu], follows=False)
    assert eu.remove_files.called


def test_parts_in_clones_of_a_target_are_committed_apart(monkeypatch):
    changed = {part: [day(1)] for part in ("eu", "us", "apac")}
    urls = {part: f"/targets/{part}" for part in changed}
    published, _, _ = publish_parts(monkeypatch, None, None, None, changed=changed, urls=urls)
    assert published == [["eu"], ["us"], ["apac"]]


def test_the_records_of_a_commit_have_a_limit(monkeypatch):
    monkeypatch.setattr(publication, "_CELLS_PER_COMMIT", 2)
    changed = {part: [day(1)] for part in ("eu", "us", "apac")}
    published, _, _ = publish_parts(monkeypatch, None, None, changed=changed)
    assert published == [["eu", "us"], ["apac"]]


def test_a_part_that_cannot_be_committed_holds_back_no_other_one(monkeypatch):
    published, parts, followed = publish_parts(
        monkeypatch, None, PublishError("no space left"), None
    )
    assert published == [["eu"], ["apac"]]
    assert followed == [False, True, True]
    assert not any(part.remove_files.called for part in parts.values())


def test_files_of_parts_that_are_not_committed_any_more_are_removed(monkeypatch):
    """Another run was first: the step begins again, and writes them anew."""
    published, parts, _ = publish_parts(monkeypatch, None, CommitRaceError("first"), None)
    assert published == [["eu"]]
    assert [name for name, part in parts.items() if part.remove_files.called] == ["apac"]


def test_production_publishes_what_it_is_given():
    """Here there is nothing to write: one day is refused, and the other is as published."""
    publisher = make_publisher()
    own = ledger(FACT, built(0, days(1)))
    plan = plan_facts(own, staged(staged_record(0, days(1))), numbers=[1, 2])
    (((_, results),),) = Destination("/warehouse").deliver(publisher, [Candidate(plan)])
    assert [(r.day, r.outcome, r.version) for r in results] == [
        (day(1), Outcome.IDENTICAL, 0),
        (day(2), Outcome.FAILED, None),
    ]


# --- days that are computed alone as well ---------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "alone", "is_enough"),
    [
        pytest.param([(1, 1, 1)], [(1, 2)], True, id="two days"),
        pytest.param([(1, 1)], [(1, 2)], True, id="two days of two"),
        pytest.param([(1, 1, 1)], [()], False, id="a range that was not compared"),
        pytest.param([(0, 0, 0)], [(1, 2)], False, id="days without rows"),
        pytest.param([(0, 1, 0)], [(1, 2)], False, id="one day among days without rows"),
        pytest.param([(1, 0, 1)], [(1, 2)], False, id="a day without rows is no second day"),
        pytest.param([(1, 1), (1, 1)], [(1,), (1,)], False, id="one day, twice"),
        pytest.param([(1, 1), (1, 1)], [(1,), (2,)], True, id="one day, and another one"),
        pytest.param([(1, 1), (0, 1)], [(1,), (2,)], False, id="another one alone"),
    ],
)
def test_ranges_show_that_days_are_equal_alone(published, alone, is_enough):
    commits = [
        equal_days_record(version, dict(enumerate(rows, 1)), equal)
        for version, (rows, equal) in enumerate(zip(published, alone, strict=True))
    ]
    assert has_shown_equal_days(commits, "code") is is_enough
    # Later commits take nothing away from it.
    assert has_shown_equal_days([*commits, record(9, days(7))], "code") is is_enough


def test_parts_show_it_among_others_only():
    """Days of a part that was computed alone say nothing of other parts."""
    alone = equal_days_record(1, {1: 1, 2: 1}, (1, 2))
    details = msgspec.structs.replace(alone.details, among=["us"])
    among = msgspec.structs.replace(alone, details=details)
    assert not has_shown_equal_parts([alone], "code")
    assert has_shown_equal_parts([alone, among], "code")
    assert not has_shown_equal_parts([among], "other")
    undone = msgspec.structs.replace(details, undoes="x")
    assert not has_shown_equal_parts([msgspec.structs.replace(among, details=undone)], "code")


@pytest.mark.parametrize(
    "carried", [{"undoes": "x"}, {"as_of": {"1": []}}, {"kind": "canary"}], ids=str
)
def test_rows_that_are_carried_over_show_nothing(carried):
    commit = equal_days_record(1, {1: 1, 2: 1}, (1, 2))
    assert has_shown_equal_days([commit], "code")
    assert not has_shown_equal_days([commit], "other")
    details = msgspec.structs.replace(commit.details, **carried)
    assert not has_shown_equal_days([msgspec.structs.replace(commit, details=details)], "code")


def equal_days_record(version: int, rows: Mapping[int, int], equal: Iterable[int]) -> CommitRecord:
    """A commit of days with so many rows, of which some were equal alone."""
    commit = record(version, days(*rows), alone=days(*equal))
    published = {
        day(n): msgspec.structs.replace(commit.days[day(n)], rows=count)
        for n, count in rows.items()
    }
    return msgspec.structs.replace(commit, days=published)


@pytest.mark.parametrize(
    ("rows", "input_rows", "sample"),
    [
        ((3, 3, 3, 3), (9, 9, 9, 9), (2, 3)),
        ((1, 4, 3, 2), (9, 9, 9, 9), (4, 3)),
        ((3, 9), (9, 9), (2, 1)),
        # The first day with rows, not the first day.
        ((0, 1, 4, 4), (0, 9, 9, 9), (1, 3, 4)),
        ((0, 0, 9), (3, 4, 9), (2, 3)),
        ((0, 0, 0), (0, 3, 3), (2,)),
    ],
)
def test_the_days_that_show_most_are_computed_alone(rows, input_rows, sample):
    by_day, inputs_by_day = (
        {day(n): count for n, count in enumerate(counts, 1)} for counts in (rows, input_rows)
    )
    assert sample_days(by_day, inputs_by_day) == [day(n) for n in sample]


#: Functions from the input rows of a range to the rows of each day; each row has a number.
DaysFunction = Callable[[Mapping[date, list[int]]], Mapping[date, list[int]]]


def _put_on_one_day(choose: Callable[[Iterable[date]], date]) -> DaysFunction:
    def give_all_to_a_day(inputs: Mapping[date, list[int]]) -> Mapping[date, list[int]]:
        filled = [day for day, rows in inputs.items() if rows]
        return {choose(filled): [n for day in filled for n in inputs[day]]} if filled else {}

    return give_all_to_a_day


def _add_to_next_day(inputs: Mapping[date, list[int]]) -> Mapping[date, list[int]]:
    filled = {day: rows for day, rows in inputs.items() if rows}
    before = [0, *map(sum, filled.values())]
    return {
        day: [n + total for n in rows]
        for (day, rows), total in zip(filled.items(), before, strict=False)
    }


@pytest.mark.parametrize(
    ("function", "is_right"),
    [
        (dict, True),
        (_put_on_one_day(max), False),
        (_put_on_one_day(min), False),
        (_add_to_next_day, False),
    ],
    ids=["by day", "last of the range", "first of the range", "since the day before"],
)
def test_no_range_of_few_filled_days_lets_a_function_pass_that_mixes_days(function, is_right):
    """Random nights and ranges, most of whose days are empty."""
    shown = 0
    for seed in range(100):
        chance, commits = Random(seed), list[CommitRecord]()
        filled = chance.sample(range(1, 10), chance.choice([1, 1, 2, 3]))
        inputs = {
            day(n): [chance.randint(1, 99) for _ in range((n in filled) * chance.randint(1, 3))]
            for n in range(1, 10)
        }
        for version in range(6):
            first, last = sorted(chance.choices(range(1, 10), k=2))
            window = {day(n): inputs[day(n)] for n in range(first, last + 1)}
            within, by_day = (
                function(window),
                {d: function({d: rows}) for d, rows in window.items()},
            )
            alone = list[date]()
            if first < last and not has_shown_equal_days(commits, "code"):
                rows = {d: len(within.get(d, [])) for d in window}
                alone = sample_days(rows, {d: len(rows) for d, rows in window.items()})
            if all((within.get(d) or []) == (by_day[d].get(d) or []) for d in alone):
                assert all((within.get(d) or []) == (by_day[d].get(d) or []) for d in window)
                counts = {d.day: len(within.get(d, [])) for d in window}
                commits.append(equal_days_record(version, counts, [d.day for d in alone]))
            else:
                assert not is_right
        shown += has_shown_equal_days(commits, "code")
        assert is_right or not has_shown_equal_days(commits, "code")
    assert bool(shown) is is_right


# --- days whose rows fail -------------------------------------------------------------------------


class FailingStep(table_asset._TableStep):
    """Its days are planned without a table."""

    def _plan(self, requests: Mapping[str, RunRequest]) -> list[table_asset._Part]:
        plan = make_plan(Ledger(FACT), requests[""].window)
        return [table_asset._Part(plan, Mock(references={}))]


@dataclass(frozen=True)
class FailingDestination(Destination):
    """Rows of some days fail when the candidate is audited."""

    fail: Callable[[Window], None]
    published: list[Window]

    def deliver(self, publisher: Publisher, candidates: Sequence[Candidate]) -> Iterator[Delivery]:
        (candidate,) = candidates
        if candidate.computed:
            with explain_spark_errors(FACT, candidate.plan.days):
                self.fail(candidate.plan.days)
            self.published.append(candidate.plan.days)
        yield [(candidate, list_results(candidate.plan))]


def deliver_days(
    error: Exception, bad_days: Collection[date], *, at_audit: bool
) -> tuple[list[Window], list[Window], dict[date, str]]:
    """Compute and deliver days 1 to 5, of which some fail; what was tried, published, refused."""
    tried: list[Window] = []

    def fail(window: Window) -> None:
        tried.append(window)
        if {*window} & {*bad_days}:
            raise error

    def compute_days(inputs: Any, cache: Any, window: Window) -> list[ComputedDays]:
        if not at_audit:
            fail(window)
        return [ComputedDays(Mock(), {})]

    destination = FailingDestination("/warehouse", fail if at_audit else lambda _: None, [])
    publisher = make_publisher().with_destination(destination)
    deployment = Mock(settings=Mock(check_independence=False))
    step = FailingStep(deployment, {"": FACT}, compute_days, publisher, {}, Mock())
    request = RunRequest(Window(day(1), day(6)), RUN)
    delivered = publisher.deliver_all(step.compute({"": request}))
    reasons = {
        result.day: result.verdict.failure_reasons
        for delivery in delivered
        for _, results in delivery
        for result in results
    }
    return tried, destination.published, reasons


DIVISION = ArithmeticException("[DIVIDE_BY_ZERO] Division by zero.")


@pytest.mark.parametrize("at_audit", [False, True], ids=["in the function", "at the audit"])
def test_a_day_whose_rows_fail_holds_back_no_other_day(at_audit):
    tried, published, refused = deliver_days(DIVISION, days(3), at_audit=at_audit)
    parts = [days((1, 5)), days(1, 2), days((3, 5)), days(3), days(4, 5)]
    assert tried == [DaySet.from_days(part) for part in parts]
    assert published == [Window(day(1), day(3)), Window(day(4), day(6))]
    assert refused.keys() == days(3)
    assert re.fullmatch(
        rf"conservation: fact_daily_orders \[{day(3)}\]: its rows cannot be computed: "
        r"\[DIVIDE_BY_ZERO\] Division by zero \(.*\)\. Nothing was written for these days, and "
        r"they are as they were\. Mend the function, or the input rows that it cannot take, and "
        r"launch these days again\.",
        refused[day(3)],
    )


def test_each_day_whose_rows_fail_is_refused():
    tried, published, refused = deliver_days(DIVISION, days((1, 5)), at_audit=True)
    assert (len(tried), published, {*refused}) == (9, [], days((1, 5)))


@pytest.mark.parametrize("at_audit", [False, True])
def test_a_query_that_cannot_run_fails_the_step(at_audit):
    """It fails for any day: it is not tried again."""
    with pytest.raises(Failure, match=rf"\[{day(1)}...{day(5)}\]: .*UNRESOLVED_COLUMN"):
        deliver_days(AnalysisException("[UNRESOLVED_COLUMN] x"), days(3), at_audit=at_audit)
