"""A person accepts that a change of code changes no rows; days that have other rows are refused."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from backfill_assets.backfills import accept_code as acceptance
from backfill_assets.backfills import state_store
from backfill_assets.backfills.accept_code import AcceptanceRefusedError, accept_code, spread_evenly
from backfill_assets.backfills.reconcile import code_provenance
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.history import as_json, format_day_history
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.records import ACCEPTED_CODE
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT
from backfill_assets.tables import code_version
from backfill_assets_tests.helpers.pipeline import LAYERS, Pipeline, day, make_plan, order, run_undo

RAISED = {kind: number + 1 for kind, number in code_version.ROWS_VERSION.items()}


@pytest.fixture(scope="module")
def upgraded(engine, spark, tmp_path_factory):
    """Two days published by other code, as part of a backfill and of a plan; a third has landed."""
    root = tmp_path_factory.mktemp("upgraded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_version, "ROWS_VERSION", RAISED)
        before = Pipeline(engine, root, window_days=0)
        for n in (1, 2, 3):
            before.land(n, [order(f"o{n}", n, f"{n}.00"), order(f"p{n}", n, "7.50", "c2")])
        before.run(1, 2, tags={"dagster/backfill": "underway"})
        plan = make_plan(before, f"{day(1)}...{day(3)}")
    after = Pipeline(engine, root, land=False, window_days=0)
    after.instance = before.instance
    return after, plan


def plan_outcomes(pipeline: Pipeline, days: str) -> dict[str, tuple[tuple[str, str], ...]]:
    plan = make_plan(pipeline, days)
    return {
        name: tuple((outcome.value, reason) for outcome, reason, _ in forecast.days_by_reason())
        for name, forecast in plan.tables.items()
    }


def test_days_by_other_code_are_accepted_and_a_running_backfill_goes_on(upgraded, engine):
    pipeline, plan = upgraded
    settings, days, tags = (
        pipeline.settings,
        f"{day(1)}...{day(2)}",
        {"dagster/backfill": "underway"},
    )
    assert plan_outcomes(pipeline, days) == dict.fromkeys(LAYERS, (("computed", "other code"),))
    failure = pipeline.failure(pipeline.run(3, tags=tags, fails=True))
    assert "backfill underway has published" in failure
    assert "accept-code" in failure
    rows, versions = pipeline.digests(), {name: pipeline.log(name).file_uris() for name in LAYERS}

    results = [
        accept_code(
            Deployment(settings), pipeline.defs, pipeline.code, name, None, "an upgrade", sample
        )
        for name, sample in zip(LAYERS, (0, 0, 0, 0, 1), strict=True)
    ]
    assert [(r.table, r.days) for r in results] == [(name, [day(1), day(2)]) for name in LAYERS]
    assert [r.verified for r in results] == [[], [], [], [], [day(2)]]
    # No data file was written, and nothing is to be computed.
    assert pipeline.digests() == rows
    assert {name: pipeline.log(name).file_uris() for name in LAYERS} == versions
    assert plan_outcomes(pipeline, days) == dict.fromkeys(LAYERS, (("identical", ""),))
    ledgers = read_ledgers(Deployment(settings))
    assert acceptance.repin_plans(pipeline.instance, ledgers, results, pipeline.code) == [plan.id]
    repinned = state_store.load(pipeline.instance, plan.id).plan
    assert (repinned.code_version, repinned.code_versions) == (
        pipeline.code.version,
        {name: pipeline.code.table_version(name) for name in LAYERS},
    )
    # Once is enough.
    second_result = accept_code(
        Deployment(settings), pipeline.defs, pipeline.code, FACT.name, None, "an upgrade", 5
    )
    assert (second_result.days, second_result.version) == ((), None)

    texts = [text for _, text in format_day_history(Deployment(settings), FACT.name, day(1)).rows]
    accepted = "accepted as made by the present code; its rows are as they were"
    assert [text for text in texts if text.endswith(accepted)]
    commit = as_json(Deployment(settings), FACT.name)[1]
    assert (commit["kind"], commit["reason"]) == (ACCEPTED_CODE, "an upgrade")
    assert {d["what"] for d in commit["days"].values()} == {"unchanged"}

    # The backfill goes on by the present code.
    pipeline.run(3, tags=tags)
    assert code_provenance(read_ledgers(Deployment(settings)), "underway").problems == []
    rows = pipeline.digests()

    # It is undone as a backfill is: the days do not count as made by the present code any more.
    run_undo(pipeline, results[-1].run_id)
    assert pipeline.digests() == rows
    outcomes = plan_outcomes(pipeline, days)
    assert outcomes.pop(FACT.name) == (("computed", "other code"),)
    assert {*outcomes.values()} == {(("identical", ""),)}
    failure = pipeline.failure(pipeline.run(4, tags=tags, fails=True))
    assert "backfill underway has published" in failure


@pytest.fixture
def other_rows(engine, tmp_path, monkeypatch):
    """Three days of facts, the last of which has other rows by the present code."""
    before = Pipeline(engine, tmp_path)
    for n in (1, 2, 3):
        before.land(n, [order(f"o{n}", n, f"{n}.00")])
    before.run(1, 3)
    transform = FACT.transform

    def changed(stg_orders):
        names = F.concat("customer_id", F.lit("?"))
        name = F.when(F.col("run_date") == F.lit(day(3)), names).otherwise(F.col("customer_id"))
        return transform(stg_orders).withColumn("customer_id", name)

    monkeypatch.setitem(vars(FACT), "transform", changed)
    monkeypatch.setattr(code_version, "ROWS_VERSION", RAISED)
    return Pipeline(engine, tmp_path, land=False)


def test_days_with_other_rows_are_refused(other_rows):
    pipeline = other_rows
    settings = pipeline.settings
    version = read_ledger(settings.table(FACT.name), FACT).version
    with pytest.raises(AcceptanceRefusedError, match=rf"other rows.*{FACT.name}\[{day(3)}\]"):
        accept_code(
            Deployment(settings), pipeline.defs, pipeline.code, FACT.name, None, "no change", 5
        )
    assert read_ledger(settings.table(FACT.name), FACT).version == version
    # Days whose rows are the same can be accepted alone, and all of them without a proof.
    window = Window(day(1), day(3))
    result = accept_code(
        Deployment(settings), pipeline.defs, pipeline.code, FACT.name, window, "no change", 5
    )
    assert (result.days, result.verified) == ([day(1), day(2)], [day(1), day(2)])
    result = accept_code(
        Deployment(settings), pipeline.defs, pipeline.code, FACT.name, None, "no change", 0
    )
    assert (result.days, result.verified) == ([day(3)], [])


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, [5]), (2, [1, 5]), (3, [1, 3, 5]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])],
)
def test_a_sample_is_spread(count, expected):
    assert spread_evenly([day(n) for n in range(1, 6)], count) == [day(n) for n in expected]
