"""The names of all that Dagster shows and stores: assets, checks, jobs, tags, metadata."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import backfill_assets
import backfill_assets_guide
from backfill_assets.audit.verdicts import (
    DayMetrics,
    Expectation,
    Finding,
    Severity,
    Verdict,
    Violation,
)
from backfill_assets.backfills.diff import TableDiff
from backfill_assets.dagster_ext.internals import AssetGraph
from backfill_assets.definitions import build_defs, with_executor
from backfill_assets.delta import targets
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring import automation
from backfill_assets.monitoring.lateness_page import key_figures
from backfill_assets.orders.tables import FACT
from backfill_assets.publish.io_manager import task_metadata
from backfill_assets.publish.types import DayResult, Outcome
from backfill_assets.settings import load_settings
from backfill_assets.shadow.compare import comparison_metrics
from backfill_assets.spark.tasks import TaskTimes
from backfill_assets_tests.contracts.snapshot_files import TextFile
from backfill_assets_tests.helpers.invented_states import make_snapshot
from backfill_assets_tests.helpers.pipeline import io_manager_of

PACKAGE = Path(backfill_assets.__file__).parent
GUIDE = Path(backfill_assets_guide.__file__).parent
#: These make the metadata of a commit: see `test_commits`.
COMMITS = {"_commit_metadata", "_adoption_metadata", "run_metadata"}
SETTINGS = {"warehouse": "/w", "landing": "/l", "spark_remote": None, "start": date(2024, 1, 1)}
EVERY_KIND = "backfill_assets_tests.contracts.every_kind:TABLES"


def read_clock() -> datetime:
    """A time at which one table of `every_kind` is still to be retired."""
    return datetime(2024, 2, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "settings",
    [{}, {"tables": EVERY_KIND, "timezone": "Europe/Berlin", "partitions_per_run": 31}],
    ids=["default", "every_kind"],
)
def test_definitions(settings, snapshot, monkeypatch):
    monkeypatch.setattr(targets, "any_targets", lambda _: True)
    built = build_defs(load_settings(**SETTINGS | settings), clock=read_clock, automate=True)
    definitions = with_executor(built)
    repository = definitions.get_repository_def()
    lines = [
        *assets_in(repository.asset_graph),
        *checks_in(repository),
        *jobs_in(repository),
        *schedules_in(repository),
        *sensors_in(repository),
        "resources",
        *(f"  {key}" for key in sorted(repository.get_top_level_resources())),
        f"executor {repository.get_implicit_global_asset_job_def().executor_def.name}",
        "",
    ]
    assert snapshot(extension_class=TextFile) == "\n".join(lines)


def assets_in(graph: AssetGraph) -> Iterator[str]:
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        definition = node.assets_def
        yield f"asset {key.to_user_string()}"
        kinds, owners = join_names(node.kinds), join_names(node.owners)
        yield f"  group {node.group_name}; kinds {kinds}; owners {owners}"
        if definition.is_executable:
            yield f"  op {definition.op.name}; pool {definition.op.pool or 'none'}"
        if node.partitions_def:
            yield f"  partitions {partitions_text(node.partitions_def)}"
        if node.backfill_policy:
            yield f"  backfill policy {policy_text(node.backfill_policy)}"
        if node.freshness_policy:
            yield f"  freshness {freshness_text(node.freshness_policy)}"
        for parent in sorted(node.parent_keys):
            mapping = node.partition_mappings.get(parent)
            yield f"  dep {parent.to_user_string()}{mapping_text(mapping)}"
        for name, value in sorted(node.tags.items()):
            if not name.startswith("dagster/kind/"):  # these are shown as kinds
                yield f"  tag {name}={value}"
        if node.metadata:
            yield f"  metadata {join_names(node.metadata)}"


def join_names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def partitions_text(definition: dg.PartitionsDefinition) -> str:
    assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
    schedule = definition.cron_schedule
    return (
        f"{schedule!r} as {definition.fmt} from {definition.start:%Y-%m-%d} {definition.timezone}"
    )


def policy_text(policy: dg.BackfillPolicy) -> str:
    most = policy.max_partitions_per_run
    return f"{policy.policy_type.value}{f', at most {most} a run' if most else ''}"


def freshness_text(policy: Any) -> str:
    return f"{policy.deadline_cron!r} {policy.timezone}, {policy.lower_bound_delta} before"


def mapping_text(mapping: dg.PartitionMapping | None) -> str:
    if mapping is None:
        return ""
    if isinstance(mapping, dg.TimeWindowPartitionMapping):
        return f" [{mapping.start_offset:+}, {mapping.end_offset:+}]"
    return f" [{type(mapping).__name__}]"


def checks_in(repository: dg.RepositoryDefinition) -> Iterator[str]:
    graph = repository.asset_graph
    yield "checks (whether they block)"
    for key in sorted(graph.asset_check_keys):
        spec = graph.get_check_spec(key)
        mark = "blocks" if spec.blocking else "does not block"
        yield f"  {key.asset_key.to_user_string()}:{key.name} {mark}"


def jobs_in(repository: dg.RepositoryDefinition) -> Iterator[str]:
    for job in sorted(repository.get_all_jobs(), key=lambda job: job.name):
        yield f"job {job.name}"
        yield from (f"  tag {name}={value}" for name, value in sorted(job.tags.items()))
        for node in sorted(job.nodes, key=lambda node: node.name):
            op = node.definition
            assert isinstance(op, dg.OpDefinition)
            fields = getattr(op.config_field.config_type, "fields", {}) if op.config_field else {}
            config = [f"{name}{'' if field.is_required else '?'}" for name, field in fields.items()]
            yield f"  op {node.name}{f'; config {join_names(config)}' if config else ''}"


def schedules_in(repository: dg.RepositoryDefinition) -> Iterator[str]:
    for schedule in sorted(repository.schedule_defs, key=lambda schedule: schedule.name):
        yield (
            f"schedule {schedule.name}: {schedule.cron_schedule!r} {schedule.execution_timezone}, "
            f"{schedule.default_status.value}, job {schedule.job_name}"
        )


def sensors_in(repository: dg.RepositoryDefinition) -> Iterator[str]:
    for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name):
        jobs = join_names(target.job_name for target in sensor.targets)
        yield (
            f"sensor {sensor.name}: {sensor.default_status.value}, every "
            f"{sensor.minimum_interval_seconds} s, {sensor.sensor_type.value}, jobs {jobs}"
        )


def test_tags_and_keys_of_the_storage(snapshot):
    """All text of the package that names a tag of Dagster's, or a key in its storage."""
    names = set()
    for path in [*PACKAGE.rglob("*.py"), *GUIDE.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(
                r"(backfill_assets|dagster)/[\w{}/]+|backfill_assets_\w+", text
            ):
                names.add(text)
    assert snapshot(extension_class=TextFile) == "\n".join([*sorted(names - {GUIDE.name}), ""])


def test_events(snapshot):
    """What an event of each kind has as metadata and as tags."""
    defs = build_defs(load_settings(**SETTINGS), clock=read_clock)
    took = task_metadata(TaskTimes(1, (1.0,)))
    io_manager, day_results = io_manager_of(defs), [*make_done_days()]
    with dg.DagsterInstance.ephemeral() as instance:
        lists = io_manager.events(instance, [(FACT, day_results)], took)
        events = [event for events in lists for event in events]
    events += automation._evaluate_checks(Deployment(load_settings(**SETTINGS)), make_snapshot())
    lines = {line for event in events for line in event_lines(event)}
    lines.add(f"comparison: metadata {join_names(comparison_metrics(TableDiff(FACT, [])))}")
    lines.add(f"lateness page: metadata {join_names(key_figures([make_log_day()], 7))}")
    assert snapshot(extension_class=TextFile) == "\n".join([*sorted(lines), ""])


def make_done_days() -> Iterator[DayResult]:
    """A day of each outcome, with a finding of each check."""
    for n, outcome in enumerate(Outcome, 1):
        measured = DayMetrics(
            2,
            {"revenue": Decimal(1)},
            "d",
            1,
            nulls={"customer_id": 1},
            violations={"offends": Violation(1, "")},
        )
        expectation = Expectation({"rows": 2}, figures={"drift": {"drift of orders": 0.1}})
        names = ["offends", "drift", *FACT.check_descriptions]
        severities = [Severity.WARN, *[Severity.OK] * (len(names) - 1)]
        findings = [Finding(*both, "") for both in zip(names, severities, strict=True)]
        verdict = Verdict(date(2024, 1, n), measured, expectation, findings)
        yield DayResult(outcome, verdict, n, {"count of x": 1}, {"stg_orders": 1}, "new input")


def make_log_day() -> dict[str, Any]:
    """A row of the table of lateness."""
    counts = {"lines": 1, "late_lines": 1, "delays": [0], "lines_by_delay": [1]}
    return {"log_date": date(2024, 1, 1), "amount_by_delay": [Decimal(1)], **counts}


def test_metadata_of_ops(snapshot):
    """The keys of all dictionaries in functions that add metadata to what an op gives."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef)
                and adds_metadata(node)
                and node.name not in COMMITS
            ):
                names |= {*keys_in(node)}
    assert snapshot(extension_class=TextFile) == "\n".join([*sorted(names), ""])


def adds_metadata(function: ast.FunctionDef) -> bool:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return function.name.endswith("_metadata") or any(
        ast.unparse(call.func).endswith(".add_output_metadata")
        or any(keyword.arg == "metadata" for keyword in call.keywords)
        for call in calls
    )


def keys_in(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        for key in node.keys if isinstance(node, ast.Dict) else []:
            if isinstance(key, ast.Constant):
                yield str(key.value)
            elif isinstance(key, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}"
                    for part in key.values
                )


def event_lines(event: Any) -> Iterator[str]:
    kind = type(event).__name__
    if isinstance(event, dg.AssetCheckEvaluation):
        yield f"{kind} {event.check_name}: metadata {join_names(event.metadata)}"
    else:
        kind = f"{kind} ({event.metadata['outcome'].value})"
        yield f"{kind}: metadata {join_names(event.metadata)}"
        yield f"{kind}: tags {join_names(event.tags or {})}"
