"""What a night asks for, by schedule and sensors or by the command; and until it rests."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from datetime import date, datetime, timezone

import dagster as dg
import msgspec
import pytest
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from backfill_assets.calendar.late_data import Policy
from backfill_assets.cli import main
from backfill_assets.delta.consistent_versions import versions_that_belong_together
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.next_runs import (
    BATCH_SIZE,
    LOAD,
    REBUILD,
    RunPlanner,
    make_inclusion_rule,
    run_night,
    tables_in_progress,
    unfinished_batch_runs,
)
from backfill_assets.orders.tables import CURRENT, FACT, RAW, REJECTED, STAGED, TABLES
from backfill_assets.settings import load_settings
from backfill_assets.staleness.snapshot import input_digests
from backfill_assets.staleness.stale import StaleDays, StaleReason
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    make_raw_record,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, order

DEPLOYMENT = Deployment(load_settings())


def selected_assets(command: str) -> list[str]:
    words = shlex.split(command)
    return words[words.index("--select") + 1].split(",")


# --- under way ------------------------------------------------------------------------------------


def add_run(instance: dg.DagsterInstance, status: DagsterRunStatus, **tags: str) -> str:
    tags = {key.replace("__", "/"): value for key, value in tags.items()}
    return create_run_for_test(instance, job_name="daily", status=status, tags=tags).run_id


def test_rebuilds_wait_for_the_batch_before(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path)
    instance = pipeline.instance
    add_run(instance, DagsterRunStatus.STARTED)  # somebody else's
    add_run(instance, DagsterRunStatus.SUCCESS, backfill_assets__batch=LOAD)
    add_run(instance, DagsterRunStatus.FAILURE, backfill_assets__batch=LOAD)
    assert unfinished_batch_runs(instance, pipeline.deployment) == []
    going = {
        add_run(instance, DagsterRunStatus.NOT_STARTED, backfill_assets__batch=LOAD),
        add_run(instance, DagsterRunStatus.STARTED, backfill_assets__batch=REBUILD),
        # It will be retried.
        add_run(
            instance,
            DagsterRunStatus.FAILURE,
            backfill_assets__batch=LOAD,
            dagster__will_retry="true",
        ),
    }
    assert set(unfinished_batch_runs(instance, pipeline.deployment)) == going
    assert len(unfinished_batch_runs(instance, pipeline.deployment, [REBUILD])) == 1
    assert "3 run(s)" in str(pipeline.tick("touched_days").skip_message)
    assert "2 load(s)" in str(pipeline.tick("landed_files").skip_message)


def test_without_a_daemon_nobody_works_on_what_is_queued():
    with dg.DagsterInstance.ephemeral() as instance:
        queued = add_run(instance, DagsterRunStatus.NOT_STARTED)
        started = add_run(instance, DagsterRunStatus.STARTED)
        create_run_for_test(instance, job_name="reconcile", status=DagsterRunStatus.STARTED)
        assert tables_in_progress(instance, DEPLOYMENT).keys() == {queued, started}
        assert tables_in_progress(instance, DEPLOYMENT, daemon=False).keys() == {started}


@pytest.mark.parametrize(
    ("job", "assets", "tables"),
    [
        ("monthly", None, [*TABLES]),
        ("__ASSET_JOB", None, [*TABLES]),
        ("undo", None, [*TABLES]),
        ("train_models", None, []),
        ("__ASSET_JOB", [[FACT.name], ["report"]], [FACT.name]),
        ("__ASSET_JOB", [["lake", FACT.name]], []),
        ("__ASSET_JOB", [["report"]], []),
    ],
)
def test_runs_of_the_projects_own_write_no_table(job, assets, tables):
    with memory_instance() as instance:
        create_run_for_test(
            instance,
            job_name=job,
            status=DagsterRunStatus.STARTED,
            asset_selection=None if assets is None else frozenset(map(dg.AssetKey, assets)),
        )
        in_progress = tables_in_progress(instance, DEPLOYMENT)
    assert [*in_progress.values()] == [frozenset(tables)] * bool(tables)


@pytest.mark.parametrize(
    ("hour", "expected"), [(0, "2024-01-04"), (1, "2024-01-04"), (2, "2024-01-05")]
)
def test_the_night_of_a_moment(hour, expected):
    night = RunPlanner(Deployment(load_settings(timezone="Europe/Berlin", nightly_at="02:30")))
    moment = datetime(2024, 1, 5, hour, tzinfo=timezone.utc)  # an hour earlier than in Berlin
    assert str(night.night_of(moment)) == expected


# --- which days a run may take in ---------------------------------------------------------------


def test_days_that_a_run_may_include():
    """Published ones with nothing new; a final one only if it would not be computed."""
    policy = Policy(START, day(9), window_days=1, lag_days=1, corrects=True, only_touched=True)
    raw = ledger(RAW, make_raw_record(0, days((1, 3))))
    staged = ledger(
        STAGED,
        record(0, days((1, 3)), inputs={RAW.name: 0}, final=days((1, 2))),
    )
    table_ledgers = ledgers(raw, staged)
    digests = input_digests(STAGED.inputs(policy), table_ledgers, days((1, 3)))
    (old,) = staged.records
    day_records = {
        d: msgspec.structs.replace(p, input_digest=digests[d]) for d, p in old.days.items()
    }

    def included_days(code: str, config: str, behind: set = frozenset(), **changed) -> set[int]:
        changed_record = msgspec.structs.replace(
            old, days={**day_records, **changed.get("made", {})}
        )
        now = ledgers(raw, ledger(STAGED, changed_record))
        waiting = StaleDays({STAGED.name: dict.fromkeys(behind, StaleReason({}))})
        snapshot = replace(
            snapshot_ledgers(now, policy),
            code_versions=dict.fromkeys(TABLES, code),
            config_digests=dict.fromkeys(TABLES, config),
        )
        ask = make_inclusion_rule(snapshot, waiting)
        return {n for n in range(1, 8) if ask(STAGED.name, day(n))}

    same_versions = (old.code_version, old.config_digest)
    assert included_days(*same_versions) == {1, 2, 3}
    assert included_days(*same_versions, behind=days(2)) == {1, 3}
    assert included_days("other code", same_versions[1]) == {3}, (
        "final days would be computed by it"
    )
    assert included_days(same_versions[0], "other settings") == set()
    # Made of something else though not behind: lines that touch other days of its window.
    odd = {
        d: msgspec.structs.replace(p, input_digest="x")
        for d, p in day_records.items()
        if d != day(1)
    }
    assert included_days(*same_versions, made=odd) == {1, 3}


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def landed(engine, tmp_path, monkeypatch) -> Pipeline:
    """Two weeks have landed; the command sees them."""
    pipeline = Pipeline(engine, tmp_path, end=day(15))
    for n in range(1, 15):
        pipeline.land(n, [order(f"o{n}", n)])
    for name in ("landing", "warehouse", "start", "end"):
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", str(getattr(pipeline.settings, name)))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    return pipeline


def test_it_prints_what_the_schedule_asks_for(landed, capsys):
    landed.now = datetime(2024, 1, 15, 2, tzinfo=timezone.utc)
    (request,) = landed.tick_schedule()
    assert main(["night", "--as-of", "2024-01-15"]) == 0
    comment, command = capsys.readouterr().out.splitlines()
    assert comment.startswith("# As of 2024-01-15: load")
    assert command.startswith("dagster asset materialize -m backfill_assets.definitions --select ")
    assert command.endswith(" --partition-range 2024-01-01...2024-01-14")
    assert selected_assets(command) == [key.to_user_string() for key in request.asset_selection]
    assert main(["night", "--as-of", "2024-01-01"]) == 0
    assert capsys.readouterr().out.startswith("# As of 2024-01-01 all that has landed is loaded")


def test_a_clock_that_is_years_ahead_asks_for_few_days(landed, monkeypatch, capsys):
    monkeypatch.delenv("BACKFILL_ASSETS_END")
    monkeypatch.setenv("BACKFILL_ASSETS_ABSENT_DAYS", "3")
    assert main(["night", "--as-of", "2030-01-01"]) == 0
    silent, comment, command = capsys.readouterr().out.splitlines()
    assert silent.startswith("# raw_orders: nothing has landed since 2024-01-14, for more than 3 ")
    assert comment.startswith("# As of 2030-01-01: load")
    assert command.endswith(" --partition-range 2024-01-01...2024-01-17")


def test_what_is_retired_by_now_is_not_fed_on_a_day_before():
    settings = load_settings(tables="backfill_assets_tests.retired_features:TABLES")
    before = date(2024, 5, 1)
    assert "features" in RunPlanner(Deployment(settings)).fed_tables(before)
    assert "features" not in RunPlanner(Deployment(settings), date(2024, 7, 1)).fed_tables(before)
    assert "features" in RunPlanner(Deployment(settings), before).fed_tables(before)


def test_it_is_cut_as_the_schedule_is(landed, monkeypatch, capsys):
    monkeypatch.setenv("BACKFILL_ASSETS_PARTITIONS_PER_RUN", "10")
    assert main(["night", "--as-of", "2024-01-15"]) == 0
    _, *commands = capsys.readouterr().out.splitlines()
    assert [c.rpartition(" ")[2] for c in commands] == [
        "2024-01-01...2024-01-10",
        "2024-01-11...2024-01-14",
    ]


def test_waves_until_it_rests(engine, spark, tmp_path):
    """The same runs as the daemon's, a handful."""
    pipeline = Pipeline(engine, tmp_path, end=day(7))
    for n in range(1, 7):
        pipeline.land(n, [order(f"o{n}", n)])
    requests: list[tuple[str, str, str]] = []

    def run_night_of(n: int, tables=(*TABLES,)):
        requests.clear()

        def launch(kind, request, _later_days):
            requests.append((kind, request.tables[0], str(request.window)))
            if names := [name for name in request.tables if name in tables]:
                pipeline.run_days(request.window, names)
            return True

        look = dict[str, frozenset[str]]
        return run_night(RunPlanner(pipeline.deployment), day(n), look, launch)

    result = run_night_of(7)
    assert not result.failed and not result.waiting
    assert [kind for kind, *_ in requests] == [LOAD, *[REBUILD] * (len(requests) - 1)]
    assert len(requests) <= 1 + BATCH_SIZE, requests
    ledgers = read_ledgers(pipeline.deployment)
    assert all(len(ledgers[name].published_days) == 6 for name in TABLES)
    assert run_night_of(7).succeeded == []

    # Late lines for scattered days: one run of exactly these days.
    stamp = f"{day(6)}T20:00:00Z"
    late = [order(f"late{n}", n, ingested=stamp) for n in (1, 3, 6)]
    pipeline.land(6, late, "late.jsonl")
    run_night_of(7, (RAW.name, REJECTED.name, STAGED.name))
    assert requests[0][::2] == (LOAD, "2024-01-06")
    staged = [window for _, table, window in requests if table == STAGED.name]
    assert staged == ["2024-01-01, 2024-01-03, 2024-01-06"], requests
    assert len(requests) <= 1 + BATCH_SIZE
    assert {r["order_id"] for r in pipeline.rows(STAGED.name)} >= {"late1", "late3", "late6"}


@pytest.mark.slow
def test_after_a_wiped_warehouse_the_same_runs_are_launched_again(engine, spark, tmp_path):
    """With the same Dagster home: the keys of what was there before are used."""
    pipeline = Pipeline(engine, tmp_path, window_days=0)
    pipeline.land(1, [order("a", 1)])
    pipeline.night(day(2))
    before = pipeline.digests()
    assert before[CURRENT.name]
    shutil.rmtree(pipeline.warehouse)
    pipeline.night(day(3))
    after = pipeline.digests()
    assert {name: days["2024-01-01"] for name, days in after.items() if days} == {
        name: days["2024-01-01"] for name, days in before.items() if days
    }
    # The first night's key of the rebuild, though the versions are the same, was another.
    shutil.rmtree(pipeline.warehouse)
    pipeline.run_keys -= {key for key in pipeline.run_keys if "raw_orders+" in key}
    pipeline.night(day(3))
    assert pipeline.digests().keys() == after.keys()


@pytest.mark.slow
def test_the_command_runs_them_without_a_home(landed, tmp_path):
    """As cron would: processes of their own, one bad day, and no state but the tables."""
    for n in range(4, 15):
        shutil.rmtree(landed.folder(n))
    (landed.folder(2) / "_control.json").write_text('{"rows": 9, "amount": "1.00"}')
    environment = {
        **os.environ,
        "BACKFILL_ASSETS_WINDOW_DAYS": "1",
        "BACKFILL_ASSETS_END": str(day(4)),
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps({**conftest.SMALL, "spark.master": "local[2]"}),
    }

    def run_command(today: date) -> subprocess.CompletedProcess:
        command = [str(BIN / "backfill-assets"), "night", "--run", "--as-of"]
        result = subprocess.run(
            [*command, str(today)],
            env=environment,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        print(result.stdout, result.stderr)
        return result

    bad = run_command(day(4))
    assert bad.returncode == 1
    assert "_control.json says 9 orders, 1 were read" in bad.stdout
    assert "FAILED   raw_orders" in bad.stdout
    (landed.folder(2) / "_control.json").unlink()
    good = run_command(day(4))
    assert good.returncode == 0, good.stdout
    assert "nothing is left to do" in good.stdout
    assert [r["run_date"] for r in sorted(landed.rows(FACT.name), key=lambda r: r["run_date"])] == [
        day(n) for n in (1, 2, 3)
    ]
    ledgers = read_ledgers(landed.deployment)
    launchers = {record.launched_by for ledger in ledgers.values() for record in ledger.records}
    assert launchers == {"command night"}
    versions = versions_that_belong_together(landed.settings.warehouse)
    assert versions == {name: ledger.version for name, ledger in ledgers.items()}
    assert run_command(day(4)).stdout == f"Night    {day(4)}: 0 run(s), nothing is left to do\n"
