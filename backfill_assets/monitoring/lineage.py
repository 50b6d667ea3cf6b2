"""Lineage: OpenLineage events of commits, and of days that were held back.

The client has its own configuration (`OPENLINEAGE_URL`, `openlineage.yml` and others). A thread of
its own builds and sends the events: no run waits for an endpoint, or fails with it.
"""

import atexit
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime, timezone
from functools import cache, partial
from queue import Queue
from threading import Thread
from time import monotonic
from typing import Any
from uuid import UUID, uuid5

import dagster as dg
from openlineage.client import OpenLineageClient, event_v2, facet_v2

from backfill_assets.audit.verdicts import Severity
from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.publish.publisher import Publisher
from backfill_assets.publish.types import DayResult, Outcome
from backfill_assets.runtime_versions import package_version
from backfill_assets.tables.sources import Role, SourceTable
from backfill_assets.tables.table import Table

_log = logging.getLogger(__name__)
#: Seconds that the steps of a process wait for events to be sent, all together; and its exit.
_PATIENCE = 5.0
event_v2.set_producer(f"urn:backfill-assets:{package_version()}")


def build_events(
    publisher: Publisher, run: dg.DagsterRun, table: Table, results: Sequence[DayResult]
) -> Iterator[event_v2.RunEvent]:
    """Yield the events of each commit, and of the days that were held back: a start and an end."""
    commits: dict[int, list[DayResult]] = defaultdict(list)
    for result in results:
        if result.version is not None and result.is_committed:
            commits[result.version].append(result)
    ends = [_build_end(publisher, run, table, days, version) for version, days in commits.items()]
    if failed := [result for result in results if result.outcome is Outcome.FAILED]:
        ends.append(_build_end(publisher, run, table, failed, None))
    for end in ends:
        start = copy(end)
        start.eventType, start.inputs, start.outputs = event_v2.RunState.START, [], []
        start.run = event_v2.Run(end.run.runId, {"parent": (end.run.facets or {})["parent"]})
        yield from (start, end)


def _build_end(
    publisher: Publisher,
    run: dg.DagsterRun,
    table: Table,
    days: Sequence[DayResult],
    version: int | None,
) -> event_v2.RunEvent:
    """The event of a commit; without a version, of days that were held back.

    A run of OpenLineage belongs to one job: each commit is one, and Dagster's run is its parent.
    """
    namespace, parent = str(publisher.deployment.settings.lineage), facet_v2.parent_run
    part = days[0].day if version is None else version
    facets: dict[str, Any] = {
        "parent": parent.ParentRunFacet(
            parent.Run(run.run_id), parent.Job(namespace, run.job_name)
        ),
        "test": facet_v2.test_run.TestRunFacet([*_test_executions(table, days)]),
    }
    if version is None:
        message = "; ".join(f"{r.day}: {r.verdict.failure_reasons}" for r in days)
        facets["errorMessage"] = facet_v2.error_message_run.ErrorMessageRunFacet(message, "Python")
    newest: dict[str, int] = {}
    for result in days:
        for name, input_version in result.inputs.items():
            newest[name] = max(input_version, newest.get(name, input_version))
    inputs = [
        event_v2.InputDataset(*_dataset_name(url), facets=_version_facet(input_version))
        for url, input_version in _input_versions(publisher, table, newest).items()
    ]
    return event_v2.RunEvent(
        eventType=event_v2.RunState.FAIL if version is None else event_v2.RunState.COMPLETE,
        eventTime=datetime.now(timezone.utc).isoformat(),
        run=event_v2.Run(str(uuid5(UUID(run.run_id), f"{table.name}@{part}")), facets),
        job=event_v2.Job(
            namespace,
            table.name,
            {"jobType": facet_v2.job_type_job.JobTypeJobFacet("BATCH", "DAGSTER", "TABLE")},
        ),
        inputs=inputs,
        outputs=[_output(publisher.url(table), table, days, version)],
    )


def _input_versions(
    publisher: Publisher, table: Table, versions: Mapping[str, int]
) -> dict[str, int | None]:
    """The inputs of a table by location, each with its version if it is recorded."""
    deployment = publisher.deployment
    tables, warehouse = deployment.graph.all_tables, deployment.settings.warehouse
    # Parts of a table are at one location: the latest version has all that was read.
    versions = dict(sorted(versions.items(), key=lambda item: item[1]))
    inputs: dict[str, int | None] = {
        publisher.url(tables[name]) if name in tables else f"{warehouse}/{name}": version
        for name, version in versions.items()
    }
    if isinstance(table, SourceTable) and table.role in (Role.LOG, Role.REJECTED):
        inputs[f"{deployment.settings.landing}/{table.source.name}"] = None
    return inputs | {item.place(warehouse): None for item in table.unpartitioned_inputs}


def _test_executions(
    table: Table, days: Sequence[DayResult]
) -> Iterator[facet_v2.test_run.TestExecution]:
    """Yield the audit by check: what it found, on each day where it is not fine."""
    findings = {(r.day, f.check): f for r in days for f in r.verdict.findings}
    for check in dict.fromkeys(name for _, name in findings):
        bad = {
            str(day): finding
            for (day, name), finding in findings.items()
            if name == check and finding.severity is not Severity.OK
        }
        blocks = any(finding.severity is Severity.ERROR for finding in bad.values())
        yield facet_v2.test_run.TestExecution(
            check,
            "fail" if bad else "pass",
            "error" if blocks else "warn",
            description=table.check_descriptions.get(check),
            params={
                day: f"{finding.severity.value}: {finding.text}" for day, finding in bad.items()
            },
        )


def _output(
    url: str, table: Table, days: Sequence[DayResult], version: int | None
) -> event_v2.OutputDataset:
    """The table, with the days; and of a commit, its version, columns and figures."""
    by_reason = defaultdict(list)
    for result in days:
        by_reason[result.reason].append(result.day)
    written = [result for result in days if result.outcome is Outcome.WRITTEN]
    facets: dict[str, Any] = {
        "backfillAssets_days": facet_v2.DatasetFacet().with_additional_properties(
            days=to_ranges([result.day for result in days]),
            written=to_ranges([result.day for result in written]),
            reasons={reason: to_ranges(dates) for reason, dates in by_reason.items()},
        )
    }
    if version is None:
        return event_v2.OutputDataset(*_dataset_name(url), facets=facets)
    schema, quality = facet_v2.schema_dataset, facet_v2.data_quality_metrics_dataset
    columns = table.columns
    facets |= _version_facet(version)
    facets["schema"] = schema.SchemaDatasetFacet(
        [
            schema.SchemaDatasetFacetFields(
                column.name, column.dataType.simpleString(), columns[column.name].description
            )
            for column in table.struct_type
        ]
    )
    metrics = [result.verdict.metrics for result in days]
    facets["dataQualityMetrics"] = quality.DataQualityMetricsDatasetFacet(
        {
            name: quality.ColumnMetrics(
                nullCount=sum(day.nulls.get(name, 0) for day in metrics),
                sum=float(sum(day.totals[name] for day in metrics))
                if name in table.totals
                else None,
            )
            for name in columns
        },
        rowCount=sum(day.rows for day in metrics),
    )
    rows = sum(result.verdict.metrics.rows for result in written)
    statistics = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows)
    return event_v2.OutputDataset(
        *_dataset_name(url), facets=facets, outputFacets={"outputStatistics": statistics}
    )


def _version_facet(version: int | None) -> dict[str, Any]:
    if version is None:
        return {}
    return {"version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(str(version))}


def _dataset_name(url: str) -> tuple[str, str]:
    """Namespace and name of a folder or a store's URL, as OpenLineage's naming rules have them."""
    scheme, is_store, place = url.partition("://")
    bucket, _, key = place.partition("/")
    return (f"{scheme.replace('s3a', 's3')}://{bucket}", key) if is_store else ("file", url)


class _Sender:
    """Builds and sends events one after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._queue: Queue[Callable[[], Iterator[event_v2.RunEvent]] | None] = Queue()
        self._problems: list[str] = []
        self._seconds, self._run_id = _PATIENCE, ""
        # A daemon thread: one that hangs must not keep the process alive.
        Thread(target=self._send_events, name="lineage", daemon=True).start()
        atexit.register(self._close)

    def submit(self, run_id: str, build: Callable[[], Iterator[event_v2.RunEvent]]) -> None:
        """Have events of a run built and sent, after those before them."""
        if run_id != self._run_id:
            self._seconds, self._run_id = _PATIENCE, run_id
        self._queue.put(build)

    def wait(self) -> list[str]:
        """Wait until all is sent, as far as there is patience left; return new problems."""
        start = monotonic()
        with self._queue.all_tasks_done:
            sent = self._queue.all_tasks_done.wait_for(
                lambda: not self._queue.unfinished_tasks, max(self._seconds, 0)
            )
        impatient = self._seconds > 0 and not sent
        self._seconds -= monotonic() - start
        problems, self._problems = [*dict.fromkeys(self._problems)], []
        if impatient:
            problems.append("the endpoint is slow: nothing waits for it any more")
        return problems

    def _send_events(self) -> None:
        client: OpenLineageClient | None = None
        while True:
            build = self._queue.get()
            try:
                client = client or OpenLineageClient()
                if build is None:
                    client.close(_PATIENCE)
                    return
                for event in build():
                    client.emit(event)
            except Exception as error:  # noqa: BLE001 - nothing may fail with a lineage endpoint
                self._problems.append(f"{type(error).__name__}: {error}")
            finally:
                self._queue.task_done()

    def _close(self) -> None:
        """Let a transport send what it has collected, when the process exits."""
        self._seconds = _PATIENCE
        self._queue.put(None)
        for problem in self.wait():
            _log.warning("lineage: %s", problem)


@cache
def _sender() -> _Sender:
    """The sender of this process, which may have been forked after this module was imported."""
    return _Sender()


def send_events(
    publisher: Publisher, run: dg.DagsterRun, table: Table, results: Sequence[DayResult]
) -> list[str]:
    """Send the events of days in turn; return what went wrong since the last call."""
    _sender().submit(run.run_id, partial(build_events, publisher, run, table, results))
    return _sender().wait()
