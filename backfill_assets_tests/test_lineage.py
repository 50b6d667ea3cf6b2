"""Lineage: what events say of a run and an undo, and that no endpoint breaks or delays a run."""

from __future__ import annotations

import atexit
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from uuid import UUID

import dagster as dg
import pytest

from backfill_assets import settings as settings_module
from backfill_assets.audit.verdicts import Expectation, judge_days
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring import lineage
from backfill_assets.orders.tables import RAW, REJECTED, STAGED
from backfill_assets.publish.io_manager import DataFrameIOManager
from backfill_assets.publish.types import DayResult, Outcome
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order, run_undo

(VERDICT,) = judge_days(STAGED, [day(1)], {}, {day(1): Expectation(problems=["lost"])}, {})
FAILED = [DayResult(Outcome.FAILED, VERDICT)]
ASSETS = (RAW.name, REJECTED.name, STAGED.name)
TRANSPORT = "OPENLINEAGE__TRANSPORT"


@pytest.fixture(autouse=True)
def _new_sender(monkeypatch) -> Iterator[None]:
    """The client reads its configuration once in a process."""
    monkeypatch.setenv("OPENLINEAGE__FACETS__SOURCE_CODE_LOCATION", '{"disabled": true}')
    lineage._sender.cache_clear()
    yield
    if lineage._sender.cache_info().currsize:
        atexit.unregister(lineage._sender()._close)  # one that hangs would delay the end
    lineage._sender.cache_clear()


def read_events(path: Path) -> list[dict]:
    assert lineage._sender().wait() == []
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_and_its_undo(engine, spark, tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    monkeypatch.setenv(TRANSPORT, json.dumps(transport))
    pipeline = Pipeline(engine, tmp_path, lineage="shop", window_days=0)
    pipeline.land(1, [order("a", 1), order("b", 1, "2.50", None)])
    pipeline.land(2, ["not an order"] * 30)
    run_id = pipeline.run(1, 2, ASSETS, fails=True).run_id

    events = read_events(path)
    names = [(e["job"]["name"], e["eventType"]) for e in events]
    assert {*names} == {
        (name, kind) for name in (RAW.name, STAGED.name) for kind in ("START", "COMPLETE", "FAIL")
    } | {(REJECTED.name, kind) for kind in ("START", "COMPLETE")}
    assert all(e["run"]["facets"]["parent"]["run"]["runId"] == run_id for e in events)
    assert {e["job"]["namespace"] for e in events} == {"shop"}
    by_run: dict[str, list[str]] = {}
    for event in events:
        by_run.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert all(types in (["START", "COMPLETE"], ["START", "FAIL"]) for types in by_run.values())

    staged = events[names.index((STAGED.name, "COMPLETE"))]
    (source,), (output,) = staged["inputs"], staged["outputs"]
    assert source["name"] == str(pipeline.warehouse / RAW.name)
    assert source["facets"]["version"]["datasetVersion"] == str(pipeline.log(RAW.name).version())
    assert (output["namespace"], output["name"]) == ("file", str(pipeline.warehouse / STAGED.name))
    facets = output["facets"]
    assert facets["version"]["datasetVersion"] == str(pipeline.log(STAGED.name).version())
    assert facets["backfillAssets_days"]["days"] == ["2024-01-01"]
    assert facets["backfillAssets_days"]["written"] == ["2024-01-01"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert facets["dataQualityMetrics"]["rowCount"] == 2
    assert facets["dataQualityMetrics"]["columnMetrics"]["customer_id"]["nullCount"] == 1
    assert facets["dataQualityMetrics"]["columnMetrics"]["amount"]["sum"] == 12.5
    fields = {field["name"]: field for field in facets["schema"]["fields"]}
    assert [*fields] == [*STAGED.columns]
    assert fields["amount"]["type"] == "decimal(18,2)"
    assert fields["amount"]["description"] == STAGED.columns["amount"].description
    tests = {test["name"]: test["status"] for test in staged["run"]["facets"]["test"]["tests"]}
    assert tests["unique_key"] == "pass"
    assert {*tests} == {*STAGED.check_descriptions}

    loaded = events[names.index((RAW.name, "COMPLETE"))]
    assert [x["name"] for x in loaded["inputs"]] == [f"{pipeline.settings.landing}/orders"]
    held = events[names.index((RAW.name, "FAIL"))]
    assert held["outputs"][0]["facets"]["backfillAssets_days"]["days"] == ["2024-01-02"]
    assert "rejected_lines" in held["run"]["facets"]["errorMessage"]["message"]
    (failed,) = (t for t in held["run"]["facets"]["test"]["tests"] if t["status"] == "fail")
    assert (failed["name"], failed["severity"]) == ("rejected_lines", "error")
    assert [*failed["params"]] == ["2024-01-02"]

    path.unlink()
    pipeline.run(1, 1, [RAW.name])
    assert not path.exists()  # nothing was committed
    undo = run_undo(pipeline, run_id)
    undone = [e for e in read_events(path) if e["eventType"] == "COMPLETE"]
    assert {e["job"]["name"] for e in undone} == {*ASSETS}
    assert {e["run"]["facets"]["parent"]["run"]["runId"] for e in undone} == {undo.run_id}


def send(log: list[str]) -> float:
    """Send events of nothing in particular, as a step does; seconds that it took."""
    settings = load_settings(lineage="shop", warehouse="/w")
    manager = DataFrameIOManager(
        Deployment(settings), Engine.from_settings(settings), send_lineage=lineage.send_events
    )
    start = monotonic()
    with dg.build_op_context() as context:
        context.log.warning = log.append
        run = dg.DagsterRun(job_name="daily", run_id=str(UUID(int=1)))
        manager.report_commits(context, run, STAGED, FAILED)
    return monotonic() - start


def test_an_endpoint_that_hangs_delays_a_process_once(monkeypatch):
    monkeypatch.setattr(lineage, "_PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes the request and is silent
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        log: list[str] = []
        assert 0.3 <= send(log) < 2
        assert log == ["lineage: the endpoint is slow: nothing waits for it any more"]
        assert sum(send(log) for _ in range(20)) < 3
        assert len(log) == 1


def test_an_endpoint_that_fails_is_a_warning(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    transport = {"type": "http", "url": f"http://127.0.0.1:{port}", "retry": {"total": 0}}
    monkeypatch.setenv(TRANSPORT, json.dumps(transport))
    log: list[str] = []
    send(log)
    assert len(log) == 1
    assert log[0].startswith("lineage: ConnectionError: ")


def test_a_wrong_configuration_of_the_client_is_a_warning(monkeypatch):
    monkeypatch.setenv(TRANSPORT, '{"type": "pigeon"}')
    log: list[str] = []
    send(log)
    assert len(log) == 1


def test_without_the_setting_nothing_is_loaded_or_sent(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "backfill_assets.monitoring.lineage", None)
    pipeline = Pipeline(Engine.from_settings(load_settings()), tmp_path)
    assert pipeline.settings.lineage is None
    run = dg.DagsterRun(job_name="daily", run_id=str(UUID(int=1)))
    with dg.build_op_context() as context:
        pipeline.io_manager.report_commits(context, run, STAGED, FAILED)


def test_the_setting_without_the_package_is_refused(monkeypatch):
    assert load_settings(lineage="shop").lineage == "shop"
    monkeypatch.setattr(settings_module, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'backfill-assets\[openlineage\]'"):
        load_settings(lineage="shop")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/data/warehouse/facts", ("file", "/data/warehouse/facts")),
        ("s3a://bucket/warehouse/facts", ("s3://bucket", "warehouse/facts")),
        ("gs://bucket/warehouse/facts", ("gs://bucket", "warehouse/facts")),
        (
            "abfss://lake@account.dfs.core.windows.net/w/facts",
            ("abfss://lake@account.dfs.core.windows.net", "w/facts"),
        ),
    ],
)
def test_a_table_has_the_name_that_openlineage_gives_its_place(url, name):
    assert lineage._dataset_name(url) == name
