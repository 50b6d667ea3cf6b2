"""Why a day is computed: in the plan, in the record of the commit, and in Dagster."""

from __future__ import annotations

from datetime import date

import dagster as dg

from backfill_assets.backfills.backfill_plan import BackfillPlan, TableForecast, day_rows
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import CURRENT, FACT, RAW, STAGED
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.tables import code_version
from backfill_assets.tables.code_version import Code
from backfill_assets_tests.helpers.invented_logs import commit_metadata, days
from backfill_assets_tests.helpers.pipeline import LAYERS, Pipeline, day, make_plan, order, run_undo
from backfill_assets_tests.helpers.written_logs import commit_days, read_facts


def test_the_record_says_it_by_ranges_and_old_commits_say_nothing(tmp_path):
    day_reasons = {"never published": ["2024-01-01...2024-01-02", "2024-01-05"], "other code": []}
    commit_days(tmp_path / "t", days(1), commit_metadata(days(1)), "append")
    commit_days(tmp_path / "t", days(1), commit_metadata(days(1), because=day_reasons), "overwrite")
    old, new = read_facts(tmp_path / "t").records
    assert old.reason_for_day(day(1)) == ""
    assert [new.reason_for_day(day(n)) for n in (1, 2, 3, 5)] == [
        "never published",
        "never published",
        "",
        "never published",
    ]


def test_a_plan_shows_the_days_of_each_reason():
    outlook = TableForecast(
        computed=("2024-01-01...2024-01-03",),
        depends=("2024-01-05",),
        final=("2024-01-01",),
        why={
            "other code": ("2024-01-01", "2024-01-03"),
            "external commit": ("2024-01-02",),
            "new input: raw_orders": ("2024-01-05",),
        },
    )
    plan = BackfillPlan.model_construct(tables={STAGED.name: outlook})
    assert [line[1:] for line in day_rows(plan)] == [
        ("2 computed", "other code", "2024-01-01\n2024-01-03"),
        ("1 computed", "external commit", "2024-01-02"),
        ("1 depends on its input", "new input: raw_orders", "2024-01-05"),
        ("of these, 1 final", "", "2024-01-01"),
    ]
    # As an earlier release kept it.
    old_outlook = TableForecast.model_validate_json('{"computed": ["2024-01-01"]}')
    assert [
        line[1:] for line in day_rows(BackfillPlan.model_construct(tables={"x": old_outlook}))
    ] == [("1 computed", "", "2024-01-01")]


# --- and all the way ------------------------------------------------------------------------------


def reasons_by_table(plan: BackfillPlan, *names: str) -> dict[str, dict[str, tuple[str, ...]]]:
    return {name: dict(plan.tables[name].why) for name in names}


def latest_reason(pipeline: Pipeline, name: str, partition_day: date) -> str | None:
    """What Dagster's latest materialization of a day says."""
    records_filter = dg.AssetRecordsFilter(dg.AssetKey(name), asset_partitions=[str(partition_day)])
    (materialization,) = pipeline.instance.fetch_materializations(records_filter, limit=1).records
    reason = materialization.asset_materialization.metadata.get("reason")
    return reason and reason.value


def test_from_the_plan_to_the_record(engine, spark, tmp_path, monkeypatch):
    pipeline = Pipeline(engine, tmp_path, window_days=1)
    for n in (1, 2, 3):
        pipeline.land(n, [order(f"o{n}", n)])
    month = "2024-01-01...2024-01-03"
    layers = (RAW.name, STAGED.name, FACT.name)
    first = make_plan(pipeline, month)
    assert reasons_by_table(first, *LAYERS) == {
        name: {"never published": (month,)} for name in LAYERS
    }
    assert first.tables[RAW.name].computed == (month,)
    pipeline.run(1, 3, layers)
    assert {latest_reason(pipeline, name, day(2)) for name in layers} == {"never published"}
    assert reasons_by_table(make_plan(pipeline, month), *layers) == {name: {} for name in layers}

    # New files: computed where they landed, and perhaps in what is made of it.
    pipeline.land(3, [order("more", 3)], "more.jsonl")
    plan = make_plan(pipeline, month)
    assert reasons_by_table(plan, *layers) == {
        RAW.name: {"new files": ("2024-01-03",)},
        STAGED.name: {"new input: raw_orders": ("2024-01-02...2024-01-03",)},
        FACT.name: {"new input: stg_orders": ("2024-01-02...2024-01-03",)},
    }
    assert plan.tables[RAW.name].computed == ("2024-01-03",)
    assert plan.tables[FACT.name].depends == ("2024-01-02...2024-01-03",)
    pipeline.run(1, 3, layers)
    assert latest_reason(pipeline, RAW.name, day(3)) == "new files"
    assert latest_reason(pipeline, STAGED.name, day(3)) == "new input: raw_orders"
    assert latest_reason(pipeline, FACT.name, day(3)) == "new input: stg_orders"
    ledgers = read_ledgers(pipeline.deployment)
    assert ledgers[FACT.name].latest[day(3)].reason_for_day(day(3)) == "new input: stg_orders"
    assert ledgers[FACT.name].latest[day(1)].reason_for_day(day(1)) == "never published"
    # A day that a backfill found as it was is told with why it was computed when it was.
    pipeline.run(1, None, [FACT.name], tags={"dagster/backfill": "byhand12"})
    assert latest_reason(pipeline, FACT.name, day(1)) == "never published"

    spark.sql(f"DELETE FROM delta.`{pipeline.warehouse / FACT.name}` WHERE run_date = '{day(2)}'")
    plan = make_plan(pipeline, month)
    assert reasons_by_table(plan, FACT.name) == {FACT.name: {"external commit": ("2024-01-02",)}}
    assert reasons_by_table(make_plan(pipeline, month, rewrite=True), FACT.name) == {
        FACT.name: {
            "asked for": ("2024-01-01", "2024-01-03"),
            "external commit": ("2024-01-02",),
        }
    }
    tags = {REWRITE_TAG: "true", "dagster/backfill": "byhand13"}
    pipeline.run(1, 2, [FACT.name], tags=tags)
    assert [latest_reason(pipeline, FACT.name, day(n)) for n in (1, 2)] == [
        "asked for",
        "external commit",
    ]
    run_undo(pipeline, "byhand13", "2024-01-01")
    record = read_ledgers(pipeline.deployment)[FACT.name].latest[day(1)]
    assert record.reason_for_day(day(1)) == "undo of byhand13"

    monkeypatch.setattr(code_version, "running_code", lambda *_: Code("deployed-meanwhile"))
    other = Pipeline(engine, tmp_path, window_days=1, timezone="Europe/London")
    other.instance = pipeline.instance
    both = {"other code; other settings": (month,)}
    assert reasons_by_table(make_plan(other, month), RAW.name, FACT.name) == {
        RAW.name: both,
        FACT.name: both,
    }
    other.run(1, 1, [RAW.name])
    assert latest_reason(other, RAW.name, day(1)) == "other code; other settings"


def test_what_is_known_of_a_day_may_change_with_any_log_day_after_it(pipeline):
    """Which days new lines tell of is known when they are read."""
    tables = [RAW.name, CURRENT.name]
    pipeline.land(1, [order("o1", 1)])
    pipeline.run(1, 2, tables)
    pipeline.land(2, [order("o2", 1)])
    plan = make_plan(pipeline, "2024-01-02", tables=tables)
    assert plan.tables[CURRENT.name].why == {
        "new input: raw_orders": ("2024-01-01...2024-01-02",),
    }
