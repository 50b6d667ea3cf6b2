"""A person accepts that a change of code changes no rows; days that have other rows are refused."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from backfill_assets.backfills import accept_code as acceptance
from backfill_assets.backfills import state_store
from backfill_assets.backfills.accept_code import (
    AcceptanceRefusedError,
    AcceptedCode,
    accept_code,
    spread_evenly,
)
from backfill_assets.backfills.reconcile import code_provenance
from backfill_assets.backfills.verify import VerifiedDay, VerifyOutcome
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.history import commit_values, format_day_history
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.records import ACCEPTED_CODE
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT
from backfill_assets.orders.tables import TABLES as ORDERS
from backfill_assets.tables import code_version
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import Pipeline, day, make_plan, order, run_undo

TABLES = ("raw_orders", "raw_orders_rejected", "stg_orders", FACT.name)
RAISED = {kind: number + 1 for kind, number in code_version.ROWS_VERSION.items()}


@pytest.fixture
def upgraded(engine, spark, tmp_path):
    """Two days published by other code, as part of a backfill and of a plan; a third has landed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_version, "ROWS_VERSION", RAISED)
        before = Pipeline(engine, tmp_path, window_days=0)
        for n in (1, 2, 3):
            before.land(n, [order(f"o{n}", n, f"{n}.00"), order(f"p{n}", n, "7.50", "c2")])
        before.run(1, 2, TABLES, tags={"dagster/backfill": "underway"})
        plan = make_plan(before, f"{day(1)}...{day(3)}", tables=TABLES)
    after = Pipeline(engine, tmp_path, land=False, window_days=0)
    after.instance = before.instance
    return after, plan


def other_code_reason(name: str) -> str:
    """The reason for the days of a table: what the plan, and later the history, tells of it."""
    kind = ORDERS[name].kind
    new, old = (
        f"{kind}-{numbers[kind]}-package-{numbers['package']}"
        for numbers in (code_version.ROWS_VERSION, RAISED)
    )
    return f"other code: rows of this package: {old} → {new}"


def plan_outcomes(pipeline: Pipeline, days: str) -> dict[str, tuple[tuple[str, str], ...]]:
    plan = make_plan(pipeline, days, tables=TABLES)
    return {
        name: tuple((outcome.value, reason) for outcome, reason, _ in forecast.days_by_reason())
        for name, forecast in plan.tables.items()
    }


def test_days_by_other_code_are_accepted_and_a_running_backfill_goes_on(
    upgraded, engine, monkeypatch
):
    pipeline, plan = upgraded
    settings, days, tags = (
        pipeline.settings,
        f"{day(1)}...{day(2)}",
        {"dagster/backfill": "underway"},
    )
    reasons = {name: other_code_reason(name) for name in TABLES}
    assert plan_outcomes(pipeline, days) == {
        name: (("computed", reason),) for name, reason in reasons.items()
    }
    failure = pipeline.failure(pipeline.run(3, assets=TABLES, tags=tags, fails=True))
    assert "backfill underway has published" in failure
    assert "accept-code" in failure
    rows, versions = pipeline.digests(), {name: pipeline.log(name).file_uris() for name in TABLES}

    results = [
        accept_code(
            Deployment(settings), pipeline.defs, pipeline.code, name, None, "an upgrade", sample
        )
        for name, sample in zip(TABLES, (0, 0, 0, 1), strict=True)
    ]
    assert [(r.table, r.days) for r in results] == [(name, [day(1), day(2)]) for name in TABLES]
    assert [r.verified for r in results] == [[], [], [], [day(2)]]
    assert [f"other code: {r.differences[0]}" for r in results] == [*reasons.values()]
    # No data file was written, and nothing is to be computed.
    assert pipeline.digests() == rows
    assert {name: pipeline.log(name).file_uris() for name in TABLES} == versions
    assert plan_outcomes(pipeline, days) == dict.fromkeys(TABLES, (("identical", ""),))
    ledgers = read_ledgers(Deployment(settings))
    arguments = pipeline.deployment, pipeline.instance, ledgers, results, pipeline.code
    assert acceptance.repin_plans(*arguments) == [plan.id]
    repinned = state_store.load(pipeline.instance, plan.id).plan
    assert (repinned.code_version, repinned.code_versions) == (
        pipeline.code.version,
        {name: pipeline.code.table_version(name) for name in TABLES},
    )
    # Once is enough.
    second_result = accept_code(
        Deployment(settings), pipeline.defs, pipeline.code, FACT.name, None, "an upgrade", 5
    )
    assert (second_result.days, second_result.version) == ((), None)

    texts = [text for _, text in format_day_history(Deployment(settings), FACT.name, day(1)).rows]
    accepted = "accepted as made by the present code; its rows are as they were"
    assert [text for text in texts if text.endswith(accepted)]
    commit = commit_values(Deployment(settings), FACT.name)[1]
    assert (commit["kind"], commit["reason"]) == (ACCEPTED_CODE, "an upgrade")
    assert {d["what"] for d in commit["days"].values()} == {"unchanged"}

    # The backfill goes on by the present code.
    pipeline.run(3, assets=TABLES, tags=tags)
    assert code_provenance(read_ledgers(Deployment(settings)), "underway").problems == []
    rows = pipeline.digests()

    # It is undone as a backfill is: the days do not count as made by the present code any more.
    run_undo(pipeline, results[-1].run_id)
    assert pipeline.digests() == rows
    outcomes = plan_outcomes(pipeline, days)
    assert outcomes.pop(FACT.name) == (("computed", reasons[FACT.name]),)
    assert {*outcomes.values()} == {(("identical", ""),)}
    failure = pipeline.failure(pipeline.run(4, assets=TABLES, tags=tags, fails=True))
    assert "backfill underway has published" in failure

    # Days that have other rows by the present code are refused.
    transform = FACT.transform

    def change_rows(stg_orders):
        names = F.concat("customer_id", F.lit("?"))
        name = F.when(F.col("run_date") == F.lit(day(2)), names).otherwise(F.col("customer_id"))
        return transform(stg_orders).withColumn("customer_id", name)

    monkeypatch.setitem(vars(FACT), "transform", change_rows)
    changed = Pipeline(engine, pipeline.root, land=False, window_days=0)

    def accept_facts(window: Window | None, reason: str, sample: int) -> AcceptedCode:
        return accept_code(
            Deployment(settings), changed.defs, changed.code, FACT.name, window, reason, sample
        )

    version = read_ledger(settings.table(FACT.name), FACT).version
    with pytest.raises(AcceptanceRefusedError, match=rf"other rows.*{FACT.name}\[{day(2)}\]"):
        accept_facts(None, "no change", 5)
    assert read_ledger(settings.table(FACT.name), FACT).version == version
    # Days whose rows are the same can be accepted alone, and all of them without a proof.
    result = accept_facts(Window(day(1), day(2)), "no change", 5)
    assert (result.days, result.verified) == ([day(1)], [day(1)])
    result = accept_facts(None, "no change", 0)
    assert (result.days, result.verified) == ([day(2)], [])


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, [5]), (2, [1, 5]), (3, [1, 3, 5]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])],
)
def test_a_sample_is_spread(count, expected):
    assert spread_evenly([day(n) for n in range(1, 6)], count) == [day(n) for n in expected]


@pytest.mark.parametrize(("filled", "verified"), [((2, 4), (2, 4)), ((), (1, 5))])
def test_a_sample_is_of_days_with_rows(monkeypatch, filled, verified):
    """Days that are empty by the present code as well say little of it."""

    def verify(_: object, __: object, window: Window, ___: object) -> list[VerifiedDay]:
        return [VerifiedDay(FACT.name, d, VerifyOutcome.MATCHES, same_inputs=True) for d in window]

    monkeypatch.setattr(acceptance, "verify_days", verify)
    commits = [record(n, days(n), rows=int(n in filled)) for n in range(1, 6)]
    known = ledger(FACT, *commits)
    code = code_version.Code("this")
    sample = acceptance._verify_sample(None, None, known, sorted(days((1, 5))), 2, code)
    assert sample == sorted(days(*verified))
