"""`dagster dev` on an instance without configuration, and a pipeline whose runs it launches."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from backfill_assets.settings import Settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests import stock_project
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.paths import BIN
from backfill_assets_tests.helpers.pipeline import Pipeline

_LAUNCH = """mutation ($params: ExecutionParams!) { launchPipelineExecution(
  executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId } }
  ... on RunConfigValidationInvalid { errors { message } } ... on PythonError { message } } }"""
#: By asset, check and day, whether it passed.
Checks = dict[tuple[str, str, str], bool]


class StockDeployment(ServedDeployment):
    """Web server, daemon and code server of `dagster dev`; SQLite, its launcher and its queue."""

    #: A code server of Dagster's ends when it has had no heartbeat for 45 seconds.
    last_seconds = 90.0

    def __init__(self, root: Path, settings: Settings, module: str = stock_project.__name__):
        super().__init__(root, settings)
        self.location = module
        address = ("-h", "127.0.0.1", "-p", str(self.port))
        self.command = (str(BIN / "dagster"), "dev", "-m", module, *address)

    def configure_instance(self) -> None:
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")

    def interrupt(self, process: subprocess.Popen) -> None:
        """As a terminal does: else its code server ends when it misses the heartbeat."""
        os.killpg(process.pid, signal.SIGINT)

    def run_job(
        self,
        job: str,
        *,
        asset_selection: Sequence[dg.AssetKey] = (),
        run_config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dg.DagsterRun:
        """Launch a job as the UI does, and wait for its end."""
        selector = {
            "pipelineName": job,
            "repositoryName": "__repository__",
            "repositoryLocationName": self.location,
            "assetSelection": [{"path": key.path} for key in asset_selection] or None,
        }
        tag_list = [{"key": key, "value": text} for key, text in (tags or {}).items()]
        answer = self.ask(
            _LAUNCH,
            params={
                "selector": selector,
                "runConfigData": dict(run_config or {}),
                "executionMetadata": {"tags": tag_list},
            },
        )
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run_id = answer["run"]["runId"]
        with self.instance() as instance:
            while not (run := instance.get_run_by_id(run_id)) or not run.is_finished:
                time.sleep(0.2)
        return run


class StockPipeline(Pipeline):
    """Its runs are those of a deployment of stock Dagster; only its tests read tables here."""

    def __init__(self, engine: Engine, root: Path, **overrides: Any) -> None:
        super().__init__(engine, root, **overrides)
        self.served = StockDeployment(root / "stock", self.settings)
        self.instance.dispose()
        self.instance = self.served.instance()
        self.served.wait_for_daemons()
        self.served.stop_rebuilding()

    def run_job(self, job: str, **arguments: Any) -> Any:
        run = self.served.run_job(job, **arguments)
        return StockRun(self.instance, run)

    def stop(self) -> None:
        """Stop the deployment as a user does."""
        self.instance.dispose()
        self.served.stop()


class StockRun:
    """What tests ask the result of a run for."""

    def __init__(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
        self.run_id, self.success = run.run_id, run.is_success
        logs = instance.all_logs(run.run_id)
        self.all_events = [log.dagster_event for log in logs if log.is_dagster_event]


def recorded_checks(pipeline: Pipeline) -> Checks:
    """The newest verdict of each check on each day, as Dagster's UI has it."""
    storage = pipeline.instance.event_log_storage
    verdicts: Checks = {}
    for key in pipeline.repository.asset_graph.asset_check_keys:
        for record in reversed(storage.get_asset_check_execution_history(key, 1000)):
            evaluation = record.event and record.event.asset_check_evaluation
            # The sensors evaluate checks that are about no day.
            if evaluation and evaluation.partition:
                name = (key.asset_key.path[-1], key.name, evaluation.partition)
                verdicts[name] = evaluation.passed
    return verdicts
