"""The assets in Dagster: what is published, what is recorded by day, what a failure leaves."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone

import dagster as dg
import pytest
from dagster import DagsterEventType
from dagster._core.definitions.asset_checks.asset_check_spec import AssetCheckKey
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import create_execution_plan, execute_run
from dagster._core.storage.partition_status_cache import AssetPartitionStatus
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import days_of_run
from backfill_assets.landing import files
from backfill_assets.orders.tables import RAW, STAGED, TABLES
from backfill_assets.publish import publication
from backfill_assets.publish.io_manager import PLOT, DeltaIOManager
from backfill_assets.publish.publisher import Destination
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.staleness.unloaded import loaded_manifests
from backfill_assets.transforms import dedup, raw_rows
from backfill_assets_guide.sample.landings import write_invented_landing
from backfill_assets_tests.helpers.orders_model import run_model
from backfill_assets_tests.helpers.pipeline import (
    LAYERS,
    START,
    Pipeline,
    copy_loaded,
    count_outcomes,
    day,
    order,
)

ALL_DAYS = [str(day(n)) for n in range(1, 32)]
SAMPLE_DAYS, SAMPLE_WINDOW = ALL_DAYS[:10], 3
REWRITE = {REWRITE_TAG: "true"}


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> tuple[Pipeline, dg.ExecuteInProcessResult]:
    """Eight days of sample orders, a few by hand, two empty days, and the run that loaded them."""
    root = tmp_path_factory.mktemp("sample")
    pipeline = Pipeline(engine, root, land=False, window_days=SAMPLE_WINDOW)
    write_invented_landing(pipeline.landing, start=START, days=8, orders_per_day=40, seed=3)
    of_nobody = [order("d", 1, "1.10", None), order("e", 1, "2.20", None)]
    lines = [order("a", 1, "1.00"), order("b", 1, "2.00"), order("c", 1, "3.00"), *of_nobody]
    pipeline.land(1, lines, "by-hand.jsonl")
    late = f"{day(4)}T12:00:00Z"
    lines = [order("a", 1, "1.50", ingested=late), order("b", 2, "2.00", ingested=late)]
    pipeline.land(4, lines, "by-hand.jsonl")
    pipeline.land(5, [order("c", 1, "9.99", ingested=f"{day(5)}T12:00:00Z")], "by-hand.jsonl")
    for n in (1, 4, 5):  # it counts the sample's own lines
        (pipeline.folder(n) / "_control.json").unlink(missing_ok=True)
    return pipeline, pipeline.run(1, len(SAMPLE_DAYS))


@pytest.fixture
def sample(loaded) -> Pipeline:
    return loaded[0]


@pytest.fixture
def copied(engine, sample, tmp_path) -> Pipeline:
    """The same days, to be changed."""
    copy_loaded(sample.root, tmp_path)
    return Pipeline(engine, tmp_path, window_days=SAMPLE_WINDOW)


@pytest.fixture(scope="module")
def sample_digests(loaded) -> dict[str, dict[str, str]]:
    return loaded[0].digests()


def plain_rows(rows, columns) -> list[tuple]:
    return sorted(tuple(str(row[c]) for c in columns) for row in rows)


def test_every_row_is_what_the_independent_model_says(sample):
    model = run_model(
        sample.landing, start=START, end=day(11), window_days=SAMPLE_WINDOW, timezone="UTC"
    )
    for name, rows in (
        ("raw_orders", model.raw),
        ("stg_orders", model.staged),
        ("late_orders", model.late),
    ):
        assert plain_rows(sample.rows(name), TABLES[name].columns) == plain_rows(
            rows, TABLES[name].columns
        )
    rejected = ("arrival_date", "source_file")
    assert plain_rows(sample.rows("raw_orders_rejected"), rejected) == plain_rows(
        model.rejected, rejected
    )
    fact = sample.rows("fact_daily_orders")
    assert {(r["run_date"], r["customer_id"]): (r["orders"], r["revenue"]) for r in fact} == (
        model.fact
    )
    assert len(fact) == len(model.fact)


def test_one_commit_a_table(sample):
    for name in LAYERS:
        commits = [e for e in sample.log(name).history() if "userMetadata" in e]
        assert len(commits) == 1, name


def materialization_events(pipeline: Pipeline, name: str) -> list[dg.AssetMaterialization]:
    records = pipeline.instance.fetch_materializations(dg.AssetKey(name), limit=1000).records
    return [record.asset_materialization for record in records]


@pytest.mark.parametrize("name", LAYERS)
def test_each_day_has_its_own_materialization(sample, sample_digests, name):
    materializations = materialization_events(sample, name)
    assert sorted(e.partition for e in materializations) == SAMPLE_DAYS
    rows = [str(r[TABLES[name].partition]) for r in sample.rows(name)]
    digests = sample_digests[name]
    for event in materializations:
        expected = rows.count(event.partition)
        assert event.metadata["dagster/partition_row_count"].value == expected
        digest = digests.get(event.partition, "0-0-0")
        assert event.tags["dagster/data_version"] == event.metadata["digest"].value == digest


def check_statuses(pipeline: Pipeline, name: str, check: str) -> dict[str, str]:
    """Status of a check by partition, as Dagster's storage has it."""
    key = AssetCheckKey(dg.AssetKey(name), check)
    history = pipeline.instance.event_log_storage.get_asset_check_execution_history(key, limit=500)
    return {record.partition: record.status.value for record in reversed(history)}


@pytest.mark.parametrize("name", LAYERS)
def test_each_day_has_its_own_evaluation_of_each_check(sample, name):
    for check in TABLES[name].check_descriptions:
        statuses = check_statuses(sample, name, check)
        assert sorted(statuses) == SAMPLE_DAYS
        assert set(statuses.values()) <= {"SUCCEEDED", "FAILED"}, "a planned check stayed planned"


def test_late_lines_warn_and_do_not_block(sample):
    late = {str(r["log_date"]) for r in sample.rows("late_orders")}
    statuses = check_statuses(sample, "late_orders", "late_lines")
    assert late
    assert {d for d, status in statuses.items() if status == "FAILED"} == late
    assert sample.materialized("late_orders") == set(SAMPLE_DAYS)


def partition_statuses(pipeline: Pipeline, name: str) -> dict[str, AssetPartitionStatus | None]:
    node = pipeline.repository.asset_graph.get(dg.AssetKey(name))
    return pipeline.instance.get_status_by_partition(
        dg.AssetKey(name), ALL_DAYS[:7], node.partitions_def
    )


#: What makes rows of a day that a check finds.
CORRUPT = {
    "unique_key": lambda rows, d: rows.unionByName(rows.where(f"event_date = '{d}'")),
    "nulls": lambda rows, d: rows.withColumn(
        "order_id", F.when(F.col("event_date") != F.lit(d), F.col("order_id"))
    ),
    "conservation": lambda rows, d: rows.where(f"event_date != '{d}' OR order_id != 'a'"),
}


def corrupt_staging(monkeypatch: pytest.MonkeyPatch, check: str, d: date) -> None:
    """From now on, staging makes rows of a day that a check finds."""
    honest, corrupt = dedup.drop_superseded, CORRUPT[check]
    monkeypatch.setattr(dedup, "drop_superseded", lambda *inputs: corrupt(honest(*inputs), d))


def test_one_bad_day_of_seven(pipeline, monkeypatch):
    """Six days published, one not, in all layers; only the bad day is left to launch."""
    for n in range(1, 8):
        pipeline.land(n, [order(f"o-{n}", n), order(f"p-{n}", n)])
    pipeline.run(1, 7, ["raw_orders"])
    corrupt_staging(monkeypatch, "unique_key", day(4))
    result = pipeline.run(1, 7, ["stg_orders", "fact_daily_orders"], fails=True)

    text = pipeline.failure(result)
    assert "stg_orders[2024-01-04]" in text
    assert "unique_key: 2 row(s) repeat" in text
    assert "fact_daily_orders[2024-01-04]  conservation: stg_orders[2024-01-04] failed" in text
    bad = {str(day(4))}
    for name in ("stg_orders", "fact_daily_orders"):
        assert pipeline.materialized(name) == set(ALL_DAYS[:7]) - bad
        column = TABLES[name].partition
        assert {str(r[column]) for r in pipeline.rows(name)} == set(ALL_DAYS[:7]) - bad
    count = 0
    for check in STAGED.check_descriptions:
        statuses = check_statuses(pipeline, "stg_orders", check)
        assert sorted(statuses) == ALL_DAYS[:7]
        failed = {d for d, status in statuses.items() if status == "FAILED"}
        assert failed == (bad if check in ("unique_key", "conservation") else set())
        count += len(statuses)
    assert count == 7 * len(STAGED.check_descriptions)
    for name in ("stg_orders", "fact_daily_orders"):
        statuses = partition_statuses(pipeline, name)
        failed = {d for d, status in statuses.items() if status == AssetPartitionStatus.FAILED}
        assert failed == bad, "what a launch of the missing and failed partitions would target"
        assert all(statuses[d] == AssetPartitionStatus.MATERIALIZED for d in set(statuses) - bad)

    # Downstream alone: the day that its source never published is refused.
    text = pipeline.failure(pipeline.run(3, 5, ["fact_daily_orders"], fails=True))
    assert "stg_orders[2024-01-04] has never been published" in text
    assert "2024-01-03" not in text
    # Repeating the failed step alone must not make the run look as if the day were there.
    steps = [e for e in result.all_events if e.is_step_failure]
    assert [e.step_key for e in steps] == ["check_days"]

    monkeypatch.undo()
    pipeline.run(4, 4, ["stg_orders", "fact_daily_orders"])
    assert pipeline.materialized("stg_orders") == set(ALL_DAYS[:7])
    assert len(pipeline.rows("stg_orders")) == 14


@pytest.mark.parametrize(
    ("days", "bad"),
    [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((4, 2), (4, 4), (16, 7)))],
)
def test_a_file_that_makes_spark_itself_fail_fails_its_own_day_alone(
    pipeline, monkeypatch, days, bad
):
    names = ("raw_orders", "raw_orders_rejected")
    for n in range(1, days + 1):
        pipeline.land(n, [order("poison" if n == bad else f"o-{n}", n)])
    honest, attempts = raw_rows.read_versions, []

    def read_versions(frames, source, timezone):
        attempts.append(1)
        bites = F.raise_error(F.lit("the JVM does not like this"))
        hit = F.when(F.col("order_id") == "poison", bites).otherwise(F.col("order_id"))
        return honest(frames, source, timezone).withColumn("order_id", hit.cast("string"))

    monkeypatch.setattr(raw_rows, "read_versions", read_versions)
    result = pipeline.run(1, days, names, fails=True)
    assert len(attempts) <= 2 * math.log2(days) + 1
    text = pipeline.failure(result)
    assert f"arrival_date={day(bad)}/part-0.jsonl" in text
    assert "does not like this" in text
    for name in names:
        assert pipeline.materialized(name) == set(ALL_DAYS[:days]) - {str(day(bad))}, name
    assert len(pipeline.rows("raw_orders")) == days - 1

    # The file can be read later, though it looks the same: the day after may lack its early lines.
    monkeypatch.undo()
    pipeline.now = datetime(2024, 1, days + 1, 3, tzinfo=timezone.utc)

    def requested_days() -> set[date]:
        return {
            d
            for request in pipeline.tick_schedule()
            if "raw_orders+" in request.run_key
            for d in days_of_run(request.tags) or ()
        }

    assert requested_days() == {day(bad)} | ({day(bad + 1)} if bad < days else set())
    pipeline.run(1, days, names)
    assert len(pipeline.rows("raw_orders")) == days
    assert requested_days() == set()


# --- the sample, looked at and copied ------------------------------------------------------------


def test_late_corrected_and_moved_orders(sample):
    """Inside the window they change their day; beyond it they are kept as late."""
    staged, late = (
        {
            (str(r["event_date"]), r["order_id"], str(r["amount"]))
            for r in sample.rows(name)
            if r["order_id"] in {*"abcde"}
        }
        for name in ("stg_orders", "late_orders")
    )
    assert staged == {
        ("2024-01-01", "a", "1.50"),
        ("2024-01-01", "c", "3.00"),
        ("2024-01-01", "d", "1.10"),
        ("2024-01-01", "e", "2.20"),
        ("2024-01-02", "b", "2.00"),
    }
    assert late == {("2024-01-01", "c", "9.99")}


def test_empty_days_are_published_as_empty_days(sample):
    for name in LAYERS:
        assert sample.materialized(name) == set(SAMPLE_DAYS), name
    assert {r["event_date"] for r in sample.rows("stg_orders")} == {day(n) for n in range(1, 9)}


def test_an_order_without_a_customer_stays_in_the_totals(sample):
    facts = {(r["run_date"], r["customer_id"]): r for r in sample.rows("fact_daily_orders")}
    of_nobody = [
        row["amount"]
        for row in sample.rows("stg_orders")
        if (row["event_date"], row["customer_id"]) == (day(1), None)
    ]
    fact = facts[day(1), "unknown"]
    assert (fact["orders"], fact["revenue"]) == (len(of_nobody), sum(of_nobody))
    assert len(of_nobody) >= 2
    assert facts[day(1), "c1"]["orders"] >= 2


@pytest.mark.parametrize("check", ["nulls", pytest.param("conservation", marks=pytest.mark.slow)])
def test_a_bad_day_keeps_its_old_version(copied, monkeypatch, check):
    before = copied.digests()["stg_orders"]
    corrupt_staging(monkeypatch, check, day(1))
    text = copied.failure(copied.run(1, 2, ["stg_orders"], fails=True, tags=REWRITE))
    assert f"stg_orders[2024-01-01]  {check}" in text
    assert copied.digests()["stg_orders"] == before


@pytest.mark.slow
def test_a_frame_of_the_wrong_shape_is_refused_before_any_write(copied, monkeypatch):
    version = copied.log("stg_orders").version()
    monkeypatch.setattr(
        dedup, "drop_superseded", lambda rows, _: rows.select("event_date", "order_id")
    )
    result = copied.run(1, 1, ["stg_orders"], fails=True, tags=REWRITE)
    step = next(e for e in result.all_events if e.is_step_failure)
    text = step.step_failure_data.error.cause.to_string()
    assert "SchemaError: stg_orders" in text
    assert "amount" in text
    assert copied.log("stg_orders").version() == version


def test_the_planned_checks_carry_their_partitions(loaded):
    pipeline, result = loaded
    logs = pipeline.instance.all_logs(
        result.run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION
    )
    check_results = [log.dagster_event.asset_check_evaluation_data for log in logs]
    assert sorted(
        (e.check_name, e.partition)
        for e in check_results
        if e.partition and e.asset_key.path == [RAW.name]
    ) == sorted((check, d) for check in RAW.check_descriptions for d in SAMPLE_DAYS)


# --- nothing twice --------------------------------------------------------------------------------


def data_files(pipeline: Pipeline, name: str) -> dict[str, set[str]]:
    """The data files of each day."""
    actions = pipeline.log(name).get_add_actions(flatten=True)
    days = actions.column(f"partition.{TABLES[name].partition}").to_pylist()
    files_by_day: dict[str, set[str]] = {}
    for when, path in zip(days, actions.column("path").to_pylist(), strict=True):
        files_by_day.setdefault(str(when), set()).add(path)
    return files_by_day


def changed_days(before: dict[str, set[str]], after: dict[str, set[str]]) -> set[int]:
    return {int(d[-2:]) for d in before.keys() | after.keys() if before.get(d) != after.get(d)}


def test_only_what_changed_is_written_again(pipeline, monkeypatch):
    """Of facts, what lies between the days that have changed is neither read nor computed."""
    for n in range(1, 11):
        pipeline.land(n, [order(f"o-{n}", n)])
    names = ("raw_orders", "stg_orders", "fact_daily_orders")
    pipeline.run(1, 10, names)
    versions = {name: pipeline.log(name).version() for name in names}

    # Nothing has changed: nothing is committed, and Dagster is told so.
    result = pipeline.run(1, 10, names)
    assert {name: pipeline.log(name).version() for name in names} == versions
    assert count_outcomes(result) == {"identical": 10 * len(names)}
    checks = [check for check in result.get_asset_check_evaluations() if check.partition]
    assert {check.partition for check in checks} == {str(day(n)) for n in range(1, 11)}
    assert all(check.passed for check in checks)

    # Two log days change: one for its own day alone, one for an earlier day as well.
    pipeline.land(3, [order("new", 3)], "part-1.jsonl")
    pipeline.land(7, [order("late", 5, ingested=f"{day(7)}T10:00:00Z")], "part-1.jsonl")
    before = {name: data_files(pipeline, name) for name in names}
    computed: dict[str, list[int]] = {}
    audit = publication.audit_days

    def audit_recorded(candidates):
        for plan in (candidate.plan for candidate in candidates if candidate.computed):
            computed.setdefault(plan.table.name, []).extend(d.day for d in plan.days)
        return audit(candidates)

    monkeypatch.setattr(publication, "audit_days", audit_recorded)
    pipeline.run(1, 10, names)
    rewritten_days = {
        name: changed_days(before[name], data_files(pipeline, name)) for name in names
    }
    assert rewritten_days == {
        "raw_orders": {3, 7},
        "stg_orders": {3, 5},
        "fact_daily_orders": {3, 5},
    }
    # A log day has the early lines of the folder before it.
    assert computed["raw_orders"] == [3, 4, 7, 8]
    assert computed["fact_daily_orders"] == [3, 5]

    model = run_model(pipeline.landing, start=START, end=day(11), window_days=7, timezone="UTC")
    for name, rows in (("raw_orders", model.raw), ("stg_orders", model.staged)):
        columns = TABLES[name].columns
        assert plain_rows(pipeline.rows(name), columns) == plain_rows(rows, columns)
    facts = pipeline.rows("fact_daily_orders")
    assert {(r["run_date"], r["customer_id"]): (r["orders"], r["revenue"]) for r in facts} == (
        model.fact
    )


def test_a_run_that_died_between_commit_and_events_is_recognized(pipeline, monkeypatch):
    for n in range(1, 4):
        pipeline.land(n, [order(f"o-{n}", n), order(f"p-{n}", n, customer=None)])

    def raise_error(*_):
        raise OSError("killed here")

    monkeypatch.setattr(DeltaIOManager, "events", raise_error)
    pipeline.run(1, 3, ["raw_orders"], fails=True)
    version = pipeline.log("raw_orders").version()
    assert pipeline.rows("raw_orders")
    assert pipeline.materialized("raw_orders") == set()
    monkeypatch.undo()

    pipeline.run(1, 3, ["raw_orders"])
    assert pipeline.log("raw_orders").version() == version, "committed twice"
    restored = materialization_events(pipeline, "raw_orders")
    clean = Pipeline(
        pipeline.io_manager.engine,
        pipeline.root / "clean",
        land=False,
        landing=pipeline.settings.landing,
    )
    clean.run(1, 3, ["raw_orders"])
    expected = materialization_events(clean, "raw_orders")

    def plain_events(materializations: list) -> list[tuple]:
        # Only a run that has computed the days knows how long its tasks took.
        variable_keys = {
            "outcome",
            "dagster/uri",
            PLOT,
            "longest_task_seconds",
            "median_task_seconds",
        }
        return sorted(
            (
                e.partition,
                e.tags,
                {k: v.value for k, v in e.metadata.items() if k not in variable_keys},
            )
            for e in materializations
        )

    assert plain_events(restored) == plain_events(expected)
    assert {e.metadata["outcome"].value for e in restored} == {"identical"}
    for check in RAW.check_descriptions:
        assert check_statuses(pipeline, "raw_orders", check) == check_statuses(
            clean, "raw_orders", check
        )


def test_a_day_that_dagster_takes_for_failed_is_told_again(copied, monkeypatch):
    """Published before, and then a run over it fails for another reason."""

    def raise_error(*_, **__):
        raise OSError("no space left on this device")

    monkeypatch.setattr(Destination, "deliver", raise_error)
    copied.run(1, 1, ["raw_orders"], fails=True)
    key, partitions = dg.AssetKey("raw_orders"), [str(day(1))]
    node = copied.repository.asset_graph.get(key)

    def read_status():
        statuses = copied.instance.get_status_by_partition(key, partitions, node.partitions_def)
        return statuses[partitions[0]]

    assert read_status() is AssetPartitionStatus.FAILED
    monkeypatch.undo()
    copied.run(1, 1, ["raw_orders"])
    assert read_status() is AssetPartitionStatus.MATERIALIZED
    (event,) = materialization_events(copied, "raw_orders")
    assert event.metadata["outcome"].value == "identical"


def repeat_from_failure(pipeline: Pipeline, failed: dg.DagsterRun, steps: list[str]) -> str:
    """Launch what Dagster launches for "re-execute from failure"; how it ends."""
    job = pipeline.repository.get_implicit_global_asset_job_def().get_subset(
        asset_selection=failed.asset_selection
    )
    run = pipeline.instance.create_run_for_job(
        job,
        tags=failed.tags,
        parent_run_id=failed.run_id,
        root_run_id=failed.root_run_id or failed.run_id,
        asset_selection=failed.asset_selection,
        execution_plan=create_execution_plan(job, step_keys_to_execute=steps),
    )
    execute_run(InMemoryJob(job), run, pipeline.instance)
    repeated_run = pipeline.instance.get_run_by_id(run.run_id)
    assert repeated_run is not None
    return repeated_run.status.value


def test_repeating_only_the_last_step_does_not_make_a_failed_day_good(
    engine, spark, tmp_path, monkeypatch
):
    pipeline = Pipeline(engine, tmp_path, late_lines="drop")
    layers = ["raw_orders", "stg_orders", "late_orders"]
    for n in (14, 15):
        # The late line makes an error of late_orders that does not hold its day back.
        pipeline.land(
            n, [order(f"o-{n}", n), order(f"late-{n}", 1, ingested=f"{day(n)}T09:00:00Z")]
        )
    corrupt_staging(monkeypatch, "nulls", day(15))
    failed = pipeline.run(14, 15, layers, fails=True).dagster_run
    assert "FAILED" in check_statuses(pipeline, "late_orders", "late_lines").values()
    monkeypatch.undo()
    # Whatever Dagster makes of the days meanwhile: another run over them is only queued.
    tags = {k: v for k, v in failed.tags.items() if k.startswith("dagster/asset_partition")}
    job = pipeline.repository.get_implicit_global_asset_job_def()
    pipeline.instance.create_run_for_job(job, tags=tags)
    assert repeat_from_failure(pipeline, failed, ["check_days"]) == "FAILURE"
    assert repeat_from_failure(pipeline, failed, ["stage_orders", "check_days"]) == "SUCCESS"
    # Published since, by whatever run.
    assert repeat_from_failure(pipeline, failed, ["check_days"]) == "SUCCESS"
    assert pipeline.materialized("stg_orders") == {str(day(n)) for n in (14, 15)}


def test_a_file_that_lands_after_the_listing_is_never_taken_for_read(pipeline, monkeypatch):
    pipeline.land(1, [order("a", 1)])
    honest = files.open_files

    def survey(*arguments):
        pipeline.land(1, [order("b", 1)], "part-1.jsonl")
        return honest(*arguments)

    monkeypatch.setattr(files, "open_files", survey)
    pipeline.run(1, 1, ["raw_orders"])
    monkeypatch.undo()
    assert [r["order_id"] for r in pipeline.rows("raw_orders")] == ["a"]
    assert list(loaded_manifests(pipeline.io_manager.ledger(RAW))[day(1)].files) == [
        f"arrival_date={day(1)}/part-0.jsonl"
    ]
    pipeline.run(1, 1, ["raw_orders"])
    assert sorted(r["order_id"] for r in pipeline.rows("raw_orders")) == ["a", "b"]
    assert [
        e.metadata["outcome"].value for e in materialization_events(pipeline, "raw_orders")
    ] == [
        "written",
        "written",
    ]


def test_a_step_that_another_run_overtook_starts_again(pipeline, monkeypatch):
    """The other run loads a newer listing of the same day, after this one has computed its rows."""
    pipeline.land(1, [order("a", 1)])
    publish, overtaken = publication._publish_days, []

    def publish_after_another(audited, **how):
        if not overtaken:
            overtaken.append(audited[0].plan.table.name)
            pipeline.land(1, [order("b", 1)], "part-1.jsonl")
            pipeline.run(1, 1, ["raw_orders"])
        return publish(audited, **how)

    monkeypatch.setattr(publication, "_publish_days", publish_after_another)
    result = pipeline.run(1, 1, ["raw_orders"])
    retried = [e.step_key for e in result.all_events if e.is_step_up_for_retry]
    assert (overtaken, retried) == (["raw_orders"], ["read_orders"])
    assert sorted(row["order_id"] for row in pipeline.rows("raw_orders")) == ["a", "b"]
    outcomes = [e.metadata["outcome"].value for e in materialization_events(pipeline, "raw_orders")]
    assert outcomes == ["identical", "written"], "the newest first"
    named = {path.rpartition("/")[2] for path in pipeline.log("raw_orders").file_uris()}
    folder = pipeline.warehouse / "raw_orders" / f"log_date={day(1)}"
    assert {file.name for file in folder.glob("*.parquet")} == named, "files of no commit are left"
