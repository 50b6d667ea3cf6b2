"""Maintenance: fewer files, the same rows, and every day can be undone for as long as was said."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pytest
from pyspark.errors import PySparkException

from backfill_assets.calendar.partitions import Window
from backfill_assets.cli import main
from backfill_assets.delta import commits, maintenance
from backfill_assets.delta.consistent_versions import VERSIONS_FILE
from backfill_assets.delta.maintenance import MaintenanceResult, TableFiles, run_maintenance
from backfill_assets.deployment import ENGINE_KEY
from backfill_assets.orders.tables import CORRECTIONS, FACT
from backfill_assets.publish.types import ComputedDays, DayResult
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import Pipeline, day
from backfill_assets_tests.helpers.publish_rows import publish_days

RECORD = {"run_id": "r1", "asset": FACT.name, "code_version": "c", "config_digest": "d"}
DAYS = 86400
FILES = 3


def fact_rows(spark, days: range, customer: str):
    """Rows of some days in `FILES` files each."""
    rows = [
        (day(n), f"{customer}{i}", i + 1, Decimal(i + 1)) for n in days for i in range(4 * FILES)
    ]
    return spark.createDataFrame(rows, FACT.struct_type).repartition(FILES, "orders")


def publish_range(pipeline: Pipeline, days: range, customer: str) -> list[DayResult]:
    """Publish days of rows that the name stands for."""
    rows = fact_rows(pipeline.io_manager.engine.spark_session, days, customer)
    window = Window(day(days.start), day(days.stop))

    def build(part: Window) -> ComputedDays:
        return ComputedDays(rows.where(part.sql_condition(FACT.partition)), {})

    return publish_days(pipeline.io_manager, FACT, window, build, customer)


def table_path(pipeline: Pipeline) -> Path:
    return pipeline.warehouse / FACT.name


def maintain_facts(pipeline: Pipeline, **how: bool) -> MaintenanceResult:
    spark = pipeline.io_manager.engine.spark_session
    (result,) = run_maintenance(spark, pipeline.deployment, **how)
    return result


def list_operations(pipeline: Pipeline, since: int) -> list[str]:
    history = pipeline.log(FACT.name).history()
    return [entry["operation"] for entry in reversed(history) if entry["version"] > since]


def customers_of_day(pipeline: Pipeline, n: int, version: int | None = None) -> set[str]:
    """The customers of a day, by their first letter, as Spark reads it."""
    reader = pipeline.io_manager.engine.spark_session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    rows = reader.load(str(table_path(pipeline))).where(f"run_date = DATE'{day(n)}'").collect()
    return {row["customer_id"][0] for row in rows}


def age_pipeline(pipeline: Pipeline, days: int, root: Path, **overrides: object) -> Pipeline:
    """The same tables as they will be so many days from now, if nobody does anything.

    At another place, as Spark keeps what it has read of a log.
    """
    shutil.copytree(pipeline.warehouse, root / "warehouse")
    for path in [p for p in root.rglob("*") if p.is_file()]:
        if path.suffix == ".crc":
            path.unlink()
        elif path.suffix == ".json":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for action in lines:
                for what in action.values():
                    for stamp in ("timestamp", "modificationTime", "deletionTimestamp"):
                        if stamp in what:
                            what[stamp] -= days * DAYS * 1000
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in root.rglob("*"):
        then = path.stat().st_mtime - days * DAYS
        os.utime(path, (then, then))
    return Pipeline(pipeline.io_manager.engine, root, **overrides)


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory) -> Pipeline:
    """Days 1 to 3 in several files each, then day 2 replaced."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("original"))
    publish_range(pipeline, range(1, 4), "a")
    publish_range(pipeline, range(2, 3), "b")
    return pipeline


@pytest.fixture
def scattered(original, tmp_path) -> Pipeline:
    """A copy of it."""
    shutil.copytree(original.warehouse, tmp_path / "warehouse")
    return Pipeline(original.io_manager.engine, tmp_path)


def run_command(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(pipeline.warehouse))
    monkeypatch.setattr(Engine, "from_settings", lambda _: pipeline.io_manager.engine)
    return main(["maintain", *words])


def test_files_become_fewer_and_nothing_else_changes(scattered, monkeypatch, capsys):
    """By the command; then runs go on as before, and only the days that are worth it are next."""
    before, digests = scattered.log(FACT.name).version(), scattered.digests()
    assert run_command(scattered, monkeypatch, FACT.name) == 0
    heading, row, summary = capsys.readouterr().out.splitlines()
    assert heading.split() == ["table", "versions", "files", "size", "days", "compacted", "removed"]
    assert row.split()[:7] == [
        FACT.name, str(before), "→", str(before + 1), str(3 * FILES), "→", "3"
    ]  # fmt: skip
    assert row.split()[-2:] == ["3", "0"]
    assert summary == "3 day(s) were compacted and hold what they held, by their digests"
    assert list_operations(scattered, before) == ["OPTIMIZE"]
    files = TableFiles.from_log(scattered.log(FACT.name), FACT)
    assert files.by_day == {day(1): 1, day(2): 1, day(3): 1}
    assert scattered.digests() == digests
    # What was replaced can still be had.
    assert customers_of_day(scattered, 2, before - 1) == {"a"}
    ledger = scattered.io_manager.ledger(FACT)
    assert ledger.external_commits == []
    assert all(ledger.current_record(day(n)) for n in (1, 2, 3))
    # A second time there is nothing to do, and no commit says so.
    repeated = maintain_facts(scattered)
    assert (repeated.table, repeated.problems, repeated.notes) == (FACT.name, [], [])
    assert (repeated.compacted, repeated.removed) == ([], 0)
    assert repeated.before == repeated.after == files

    # Runs go on as before.
    (result,) = publish_range(scattered, range(1, 2), "a")
    assert result.outcome.value == "identical"
    assert scattered.log(FACT.name).version() == before + 1
    publish_range(scattered, range(3, 4), "c")
    assert scattered.log(FACT.name).version() == before + 2
    assert customers_of_day(scattered, 3) == {"c"}

    # The next time it is for the day that was written since.
    result = maintain_facts(scattered)
    assert result.compacted == [day(3)]
    assert result.before.by_day == {day(1): 1, day(2): 1, day(3): FILES}
    assert result.after.by_day == files.by_day
    assert result.after.bytes_by_day.total() < result.before.bytes_by_day.total()
    assert (result.before.version, result.after.version) == (before + 2, before + 3)


def test_as_many_files_as_delta_would_make_are_left_alone():
    full = TableFiles(
        1, Counter({day(1): 1, day(3): FILES}), Counter({day(1): 1, day(3): FILES << 30})
    )
    assert full.fragmented_days == []


def test_files_past_the_time_to_undo_are_gone_and_all_others_stay(scattered, tmp_path):
    first, second = (record.version for record in scattered.io_manager.ledger(FACT).records)
    old = age_pipeline(scattered, 40, tmp_path / "later")
    (killed := table_path(old) / f"run_date={day(1)}" / "part-of-a-killed-run.parquet").touch()
    os.utime(killed, (0, 0))
    (notes := table_path(old) / "_notes" / "of somebody").mkdir(parents=True)
    (notes / "x").touch()
    os.utime(notes / "x", (0, 0))

    # A dry run of the job tells what would be done: the files of day 2, which was replaced 40 days
    # ago, and the killed run's.
    before = sorted((p, p.stat().st_mtime) for p in old.warehouse.rglob("*"))
    dry_run = run_job(old, dry_run=True)
    assert dry_run.success
    (event,) = [e for e in dry_run.all_events if e.event_type_value == "STEP_OUTPUT"]
    metadata = event.step_output_data.metadata
    (row,) = re.findall(rf"^\| {FACT.name} \|.*$", metadata["maintenance"].value, re.MULTILINE)
    assert row.split()[-4:] == ["3", "|", str(FILES + 1), "|"]
    assert "→" not in row
    assert metadata["notes"].value == "- a dry run: nothing was done"
    assert sorted((p, p.stat().st_mtime) for p in old.warehouse.rglob("*")) == before

    # Files of versions that readers are told stay.
    publish_range(old, range(3, 4), "c")
    version, digests = old.log(FACT.name).version(), old.digests()
    commits_before = set((table_path(old) / "_delta_log").glob("*.json"))
    (old.warehouse / VERSIONS_FILE).write_text(json.dumps({"tables": {FACT.name: first}}))
    result = maintain_facts(old)
    assert (result.removed, result.problems) == (0, [])
    assert f"{VERSIONS_FILE} names version {first}" in result.notes[0]
    assert customers_of_day(old, 2, first) == {"a"}
    assert killed.exists()

    # Once newer ones belong together, they go.
    newer = {"tables": {FACT.name: result.after.version}}
    (old.warehouse / VERSIONS_FILE).write_text(json.dumps(newer))
    result = maintain_facts(old)
    assert (result.removed, result.problems) == (FILES + 1, [])
    assert list_operations(old, version) == ["OPTIMIZE", "VACUUM START", "VACUUM END"]
    assert not killed.exists()
    assert (notes / "x").exists()
    with pytest.raises(Exception, match=r"(?i)file.*(not exist|not found|missing)"):
        customers_of_day(old, 2, first)
    # Written 40 days ago, but replaced only now.
    assert customers_of_day(old, 3, second) == {"a"}
    assert old.digests() == digests
    assert commits_before <= set((table_path(old) / "_delta_log").glob("*.json"))
    ledger = old.io_manager.ledger(FACT)
    assert [record.version for record in ledger.records] == [first, second, version]
    assert ledger.external_commits == []
    after = old.log(FACT.name).version()
    assert {published.outcome.value for published in publish_range(old, range(3, 4), "c")} == {
        "identical"
    }
    assert old.log(FACT.name).version() == after

    # Folders that killed runs left go when their time is over.
    for name, age in (("writing-old", 40), ("writing-new", 20)):
        part = table_path(old) / name / "_temporary" / "0" / "part-0.parquet"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"half of a file")
        then = time.time() - age * DAYS
        for path in (part, *part.parents[:3]):
            os.utime(path, (then, then))
    assert maintain_facts(old).problems == []
    assert not (table_path(old) / "writing-old").exists()
    assert (table_path(old) / "writing-new").exists()


def test_the_time_to_undo_is_the_tables_own_from_its_creation(scattered):
    properties = scattered.log(FACT.name).metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 30 days"
    assert properties["delta.logRetentionDuration"] == "interval 36500 days"


def test_another_time_to_undo_holds_at_once_and_takes_away_the_next_time(scattered, tmp_path):
    """A shell that lacks the deployment's settings must not cost it what it wanted to keep."""
    soon = age_pipeline(scattered, 10, tmp_path / "later", undo_days=5)
    version = soon.log(FACT.name).version()
    dry_result = maintain_facts(soon, dry_run=True)
    assert (dry_result.removed, soon.log(FACT.name).version()) == (None, version)
    result = maintain_facts(soon)
    assert (result.removed, result.problems) == (None, [])
    assert result.notes == dry_result.notes
    assert "5 days from now on (BACKFILL_ASSETS_UNDO_DAYS" in result.notes[0]
    assert "was interval 30 days" in result.notes[0]
    assert list_operations(soon, version) == ["SET TBLPROPERTIES", "OPTIMIZE"]
    repeated = maintain_facts(soon)
    assert (repeated.removed, repeated.notes) == (FILES, [])
    assert soon.io_manager.ledger(FACT).external_commits == []


def test_a_run_at_the_same_time_commits_all_the_same(scattered, monkeypatch):
    """It began to write before the files were put together, and ends after that."""
    write_begun, maintenance_ended, attempts = threading.Event(), threading.Event(), []
    commit = commits.Writer.commit

    def slow_commit(self, files, days, metadata, since, *others) -> int | None:
        attempts.append(since.version)
        if len(attempts) == 1:
            write_begun.set()
            maintenance_ended.wait()
        return commit(self, files, days, metadata, since, *others)

    monkeypatch.setattr(commits.Writer, "commit", slow_commit)
    run = threading.Thread(target=publish_range, args=(scattered, range(2, 3), "c"))
    run.start()
    write_begun.wait()
    result = maintain_facts(scattered)
    maintenance_ended.set()
    run.join()
    assert (result.compacted, result.problems, result.notes) == ([day(1), day(2), day(3)], [], [])
    assert len(attempts) == 2, "the two did not meet"
    assert customers_of_day(scattered, 2) == {"c"}
    assert (
        scattered.io_manager.ledger(FACT).current_record(day(2)).digest
        == (scattered.digests()[FACT.name][str(day(2))])
    )


class Session:
    """A session that does something else in place of an OPTIMIZE."""

    def __init__(self, spark, instead) -> None:
        self.spark, self.instead = spark, instead

    def __getattr__(self, name: str):
        return getattr(self.spark, name)

    def sql(self, statement: str):
        if statement.startswith("OPTIMIZE"):
            return self.instead()
        return self.spark.sql(statement)


def test_a_run_that_goes_first_is_told_in_a_sentence_and_any_other_failure_is_a_problem(
    scattered, spark
):
    """The first error is made up, as which of the two goes first cannot be told before."""
    target = f"delta.`{scattered.warehouse / CORRECTIONS.name}`"
    spark.sql(f"CREATE TABLE {target} (run_date DATE) USING DELTA")

    def raise_overtaken():
        raise PySparkException("[DELTA_CONCURRENT_DELETE_READ] a concurrent WRITE deleted data")

    first, second = run_maintenance(Session(spark, raise_overtaken), scattered.deployment)
    assert first.problems == []
    assert first.notes == [
        f"{FACT.name}: a run published at the same time and went first; what is left to do is done "
        "by the next maintenance"
    ]
    assert first.before == first.after
    assert (second.table, second.removed) == (CORRECTIONS.name, None)

    def raise_disk_full():
        raise PySparkException("No space left on device")

    failing = Session(spark, raise_disk_full)
    (result,) = run_maintenance(failing, scattered.deployment, [FACT.name])
    assert result.removed is None
    (problem,) = result.problems
    assert "No space left on device" in problem
    assert "all days hold what they held" in problem


def test_a_compaction_that_loses_rows_is_named_by_its_days(scattered, spark):
    """A commit that calls itself a compaction, and keeps one file of the three of day 2."""
    log = table_path(scattered) / "_delta_log"
    version = scattered.log(FACT.name).version()

    def lose_rows():
        commit = log / f"{version:020d}.json"
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        adds = [action["add"] for action in actions if "add" in action]
        new_file = {
            **adds[0],
            "path": adds[0]["path"].replace("part-", "all-"),
            "dataChange": False,
        }
        shutil.copy(
            table_path(scattered) / adds[0]["path"], table_path(scattered) / new_file["path"]
        )
        removals = [
            {"remove": {**{k: add[k] for k in ("path", "partitionValues", "size")},
                        "dataChange": False, "deletionTimestamp": int(time.time() * 1000),
                        "extendedFileMetadata": True}}
            for add in adds
        ]  # fmt: skip
        info = {"commitInfo": {"operation": "OPTIMIZE", "timestamp": int(time.time() * 1000)}}
        commit_path = log / f"{version + 1:020d}.json"
        commit_path.write_text(
            "".join(json.dumps(x) + "\n" for x in (info, {"add": new_file}, *removals))
        )
        return spark.sql("SELECT 1")

    (result,) = run_maintenance(Session(spark, lose_rows), scattered.deployment)
    (problem,) = result.problems
    assert problem.startswith(f"{FACT.name} [2024-01-02]: the compaction of version {version + 1}")
    assert f"Version {version} has the rows as they were" in problem
    assert (result.removed, result.compacted) == (None, [day(2)])


def test_rows_changed_behind_the_log_are_not_taken_for_the_compactions_doing(scattered, spark):
    """Day 2's record, as of which it holds other rows than it says."""
    commit = (
        table_path(scattered) / "_delta_log" / f"{scattered.log(FACT.name).version():020d}.json"
    )
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    metadata = json.loads(actions[0]["commitInfo"]["userMetadata"])
    metadata["audit"][str(day(2))]["digest"] = "12-0-0"
    actions[0]["commitInfo"]["userMetadata"] = json.dumps(metadata)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    result = maintain_facts(scattered)
    (problem,) = result.problems
    assert problem.startswith(f"{FACT.name} [2024-01-02]: these days hold other rows than their")


# the command and the job


def test_an_unknown_table(pipeline, spark):
    with pytest.raises(ValueError, match="no such table: orders; there are raw_orders"):
        list(run_maintenance(spark, pipeline.deployment, ["orders"]))


def test_the_command_ends_with_1_where_there_is_a_problem(scattered, monkeypatch, capsys):
    bad = MaintenanceResult(
        FACT.name, *[TableFiles.from_log(scattered.log(FACT.name), FACT)] * 2, problems=["oh"]
    )
    monkeypatch.setattr(maintenance, "run_maintenance", lambda *_, **__: iter([bad]))
    assert run_command(scattered, monkeypatch) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "oh"


def run_job(pipeline: Pipeline, **config: object) -> dg.ExecuteInProcessResult:
    defs = dg.Definitions(
        jobs=[maintenance.maintenance_job(pipeline.deployment)],
        resources={ENGINE_KEY: pipeline.io_manager.engine},
    )
    return defs.resolve_job_def("maintenance").execute_in_process(
        instance=pipeline.instance,
        run_config={"ops": {"maintain_tables": {"config": config}}},
        raise_on_error=False,
    )


def test_the_job_fails_with_the_problems(scattered, monkeypatch):
    bad = MaintenanceResult(
        FACT.name, *[TableFiles.from_log(scattered.log(FACT.name), FACT)] * 2, problems=["oh"]
    )
    monkeypatch.setattr(maintenance, "run_maintenance", lambda *_, **__: iter([bad]))
    result = run_job(scattered)
    assert not result.success
    assert "oh" in scattered.failure(result)
