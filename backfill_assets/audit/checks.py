"""Asset check specs from tables, and check evaluations and metadata from verdicts, for Dagster.

Evaluations are logged with their partition, day by day: Dagster's own check result has no partition
in a range run.
"""

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import dagster as dg

from backfill_assets.audit.verdicts import DayMetrics, Finding, Severity, Verdict
from backfill_assets.calendar.partitions import split_key
from backfill_assets.dagster_ext.internals import AssetCheckEvaluationTargetMaterializationData
from backfill_assets.escaping import escape_markdown
from backfill_assets.tables.table import Table, table_name

#: Records of one query: SQLite takes at most some hundred values in one condition.
_QUERY_SIZE = 500
_PUBLISHED_WITH = (Severity.WARN, Severity.ALERT)


def check_specs(
    tables: Mapping[dg.AssetKey, Table], partitions_def: dg.PartitionsDefinition
) -> list[dg.AssetCheckSpec]:
    """The asset checks of the tables, which are given by the keys of their assets."""
    with warnings.catch_warnings():
        # Partitioned checks are a preview; `make test-versions` shows that all releases have them.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name,
                asset=key,
                description=text,
                blocking=name not in table.notices,
                partitions_def=partitions_def,
            )
            for key, table in tables.items()
            for name, text in table.check_descriptions.items()
        ]


def check_evaluations(
    key: dg.AssetKey,
    table: Table,
    verdict: Verdict,
    target: AssetCheckEvaluationTargetMaterializationData | None = None,
    *,
    blocks: bool = True,
) -> Iterator[dg.AssetCheckEvaluation]:
    """One evaluation per check for the verdict's day; without `blocks` no error fails the step.

    `key` is that of the table's asset.
    """
    for finding in verdict.findings:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=finding.check,
            passed=finding.severity is Severity.OK,
            severity=_dagster_severity(finding),
            blocking=blocks and (finding.check not in table.notices or not verdict.may_publish),
            description=escape_markdown(finding.text),
            metadata=metadata_keys(_check_metadata(finding, verdict)),
            partition=table.partition_key(verdict.day),
            target_materialization_data=target,
        )


def _dagster_severity(finding: Finding) -> dg.AssetCheckSeverity:
    warns = finding.severity is Severity.WARN
    return dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR


def _check_metadata(finding: Finding, verdict: Verdict) -> dict[str, Any]:
    """Return the numbers behind a finding for the UI; the row count if it has no other."""
    metrics = verdict.metrics
    if finding.check == "nulls":
        return _null_rates(metrics)
    if finding.check == "unique_key":
        return {"rows": metrics.rows, "repeated": metrics.duplicate_keys}
    if violation := metrics.violations.get(finding.check):
        return {"rows": metrics.rows, "offending": violation.rows}
    if figures := verdict.expectation.figures.get(finding.check):
        return dict(figures)
    if finding.check == "conservation" or finding.check in verdict.expectation.notices:
        return {name: exact_number(count) for name, count in verdict.expectation.entries.items()}
    return {"rows": metrics.rows}


def metadata_keys(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures by names as Dagster has them: `count of open labels` is `count_of_open_labels`.

    A name may contain what a project has declared, such as a kind of rows.
    """
    return {re.sub(r"[^\w/]+", "_", name): figure for name, figure in figures.items()}


def _null_rates(metrics: DayMetrics) -> dict[str, Any]:
    return {f"null_rate_{name}": metrics.null_rate(name) for name, n in metrics.nulls.items() if n}


def day_metadata(verdict: Verdict, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a published day, and further numbers, as metadata of its materialization."""
    metrics = verdict.metrics
    warnings = [f"{f.check}: {f.text}" for f in verdict.findings if f.severity in _PUBLISHED_WITH]
    return {
        "dagster/partition_row_count": metrics.rows,
        "digest": metrics.digest,
        **_null_rates(metrics),
        **{f"total_{name}": plottable_number(total) for name, total in metrics.totals.items()},
        **(
            {
                "warnings": dg.MetadataValue.md(
                    "\n".join(f"- {escape_markdown(w)}" for w in warnings)
                )
            }
            if warnings
            else {}
        ),
        **metadata_keys(numbers),
    }


def exact_number(value: int | Decimal) -> Any:
    """A number as metadata: a decimal as text, as a float would not be exact."""
    return value if isinstance(value, int) else str(value)


def plottable_number(value: int | Decimal) -> Any:
    """A number as metadata that the UI plots; text if no float is exactly equal to it."""
    if isinstance(value, int):
        return value
    return as_float if Decimal(str(as_float := float(value))) == value else str(value)


def failure_text(
    failed: Mapping[str, Mapping[date, str]],
    next_step: str = "materialize the assets again for just these days",
) -> str:
    """The message of a failed run: failed days and reasons, state of the tables, what to do.

    Args:
        failed: by table and day, the reason why the day was not published.
        next_step: what to do after the input is fixed.
    """
    lines = [
        f"  {name}[{day}]  {reason}"
        for name, days in failed.items()
        for day, reason in sorted(days.items())
    ]
    return (
        "Some days failed the audit and were not published; what was readable there before still "
        "is. All other days of this run are published, in all tables that the run was for.\n"
        + "\n".join(lines)
        + f"\nMend the input that is named first, then {next_step}."
    )


def latest_materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition_keys: Iterable[str]
) -> dict[str, dg.EventLogRecord]:
    """Return the latest materialization by partition; of one not published now, an older one.

    An evaluation must name it, or the UI shows it as missing: Dagster compares the storage ids.
    """
    partition_keys = {*partition_keys}
    if not partition_keys:  # an empty list would select all days
        return {}
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, partition_keys
    )
    latest = {}
    for first in range(0, len(ids), _QUERY_SIZE):
        storage_ids = list(ids.values())[first : first + _QUERY_SIZE]
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, storage_ids=storage_ids), limit=len(storage_ids)
        ).records
        for record in records:
            latest[str(record.partition_key)] = record
    return latest


def evaluated_failures(
    instance: dg.DagsterInstance, run_id: str, keys: Collection[dg.AssetKey]
) -> dict[str, dict[date, str]]:
    """Return, by table, the days that a run did not publish, with the reasons.

    Of the assets with these keys, those are in it that the run has evaluated.
    """
    failed: dict[dg.AssetKey, dict[str, list[str]]] = {}
    last_failure: dict[tuple[dg.AssetKey, str], float] = {}
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        evaluation = entry.get_dagster_event().asset_check_evaluation_data
        key = evaluation.asset_key
        if evaluation.partition and key in keys:
            partitions = failed.setdefault(key, {})
            if not evaluation.passed and evaluation.blocking:
                reasons = partitions.setdefault(evaluation.partition, [])
                reasons.append(f"{evaluation.check_name}: {evaluation.description}")
                last_failure[key, evaluation.partition] = entry.timestamp
    still_failed: dict[str, dict[date, str]] = {}
    for key, partitions in failed.items():
        since = latest_materializations(instance, key, partitions)
        still_failed.setdefault(key.path[-1], {})
        for partition, reasons in partitions.items():
            # Days with warnings are published: their evaluations follow the materialization.
            record = since.get(partition)
            if record is None or (
                record.run_id != run_id and record.timestamp < last_failure[key, partition]
            ):
                day, part = split_key(partition)
                days = still_failed.setdefault(table_name(key.path[-1], part), {})
                days[day] = "; ".join(reasons)
    return still_failed
