"""Reconcile a backfill: compare its result with its request, and tables with each other.

The requested days come from its runs and backfills in Dagster, and from its plan if there is one.
Reads tables' logs; `diff_query` compares the rows.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from backfill_assets.backfills.backfill_plan import BackfillPlan, format_command
from backfill_assets.backfills.changes import (
    DayChange,
    changed_days_by_table,
    is_commit_of,
    own_commits,
    publishing_commits,
    reverted_days,
)
from backfill_assets.backfills.diff import (
    TableDiff,
    as_table,
    cross_table_mismatches,
    report_values,
)
from backfill_assets.backfills.diff_query import diff_table
from backfill_assets.backfills.state_store import Backfill, find_backfill
from backfill_assets.calendar.partitions import Grain, days_of_run, format_ranges, split_key
from backfill_assets.dagster_ext import internals
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers, own_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.report import Report
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table

_NEVER = float("inf")


@dataclass(frozen=True)
class RequestedDays:
    """The requested days of a backfill.

    Attributes:
        days: by table.
        unpublished: the table and the day of those that were not published, with the error; empty
            if none is recorded.
        tags: of the last run, without those of Dagster.
    """

    days: Mapping[str, Collection[date]]
    unpublished: Mapping[tuple[str, date], str]
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_published(self) -> list[str]:
        """One sentence for each table and error, about the days that were not published."""
        return [*_unpublished_messages(self.unpublished)]


def requested_days(
    deployment: Deployment, instance: dg.DagsterInstance, ledgers: Ledgers, backfill: Backfill
) -> RequestedDays:
    """The requested days of a backfill, and which of them were not published.

    A day counts as published if a commit of the backfill covers it, if another run has published it
    since, or if it is published and a run or launch of it succeeded or a run of it reported the day
    (its rows were there already). A day that failed counts only if it was published after that.
    """
    name, ledgers = backfill.name, own_ledgers(ledgers)
    runs = find_runs(instance, ledgers, backfill)
    times = [launch.backfill_timestamp for launch in backfill.launches]
    times += [run.create_timestamp.timestamp() for run in runs]
    times += [r.at.timestamp() for r in own_commits(ledgers, name) if r.at]
    planned_at = (backfill.state.made if backfill.state else 0) or _NEVER
    start = min(times, default=planned_at)
    dagster_runs = [run.dagster_run for run in runs]
    days = _days_by_table(deployment, backfill.launches, dagster_runs, ledgers)
    for table, forecast in backfill.plan.tables.items() if backfill.plan else ():
        days.setdefault(table, set()).update(forecast.days_to_compute)
    success = internals.BulkActionStatus.COMPLETED_SUCCESS
    successful_days = _days_by_table(
        deployment,
        [launch for launch in backfill.launches if launch.status is success],
        [run for run in dagster_runs if run.status is dg.DagsterRunStatus.SUCCESS],
        ledgers,
    )
    unpublished: dict[tuple[str, date], str] = {}
    published_before: set[tuple[str, date]] = set()
    for table, ledger in ledgers.items():
        recorded, failed = _recorded_days(ledger, name)
        others = _days_by_others(ledger, name, start, failed)
        missing = {*days.get(table, ()), *failed} - recorded - others
        unfailed = missing & ledger.latest.keys() - failed.keys()
        missing -= unfailed & successful_days.get(table, set())
        unpublished |= {
            (table, day): failed[day][1] if day in failed else "" for day in sorted(missing)
        }
        published_before |= {(table, day) for day in missing & unfailed}
    if published_before:
        for key in published_before & _days_reported(deployment, instance, dagster_runs):
            del unpublished[key]
    last_run = max(runs, key=lambda run: run.create_timestamp, default=None)
    tags = last_run.dagster_run.tags if last_run else {}
    return RequestedDays(
        days,
        unpublished,
        {key: tags[key] for key in tags if not key.startswith(("dagster/", ".dagster/"))},
    )


def find_runs(
    instance: dg.DagsterInstance, ledgers: Ledgers, backfill: Backfill
) -> list[dg.RunRecord]:
    """The runs of a backfill: those that Dagster launched for it, and those of its commits."""
    run_ids = {backfill.name, *(record.run_id for record in own_commits(ledgers, backfill.name))}
    launches = [backfill.name, *(launch.backfill_id for launch in backfill.launches)]
    filters = dg.RunsFilter([*run_ids]), dg.RunsFilter(tags={"dagster/backfill": launches})
    records = {r.dagster_run.run_id: r for f in filters for r in instance.get_run_records(f)}
    return list(records.values())


def _days_by_table(
    deployment: Deployment,
    launches: Iterable[internals.PartitionBackfill],
    runs: Iterable[dg.DagsterRun],
    ledgers: Ledgers,
) -> dict[str, set[date]]:
    """The days of the runs, and of the launches, with or without a run."""
    days: dict[str, set[date]] = defaultdict(set)
    for run in runs:
        for table, day in _days_of_run(deployment, run, ledgers):
            days[table].add(day)
    for launch in launches:
        data = launch.asset_backfill_data
        subsets = data.target_subset.partitions_subsets_by_asset_key if data else {}
        for key, subset in subsets.items():
            # Only of tables of ours the keys are read: others may have no days.
            for name in ledgers.keys() & deployment.tables_of([key]):
                if part_days := _days_of_part(ledgers[name].table, subset.get_partition_keys()):
                    days[name] |= part_days
    return days


def _days_of_part(table: Table, keys: Iterable[str]) -> set[date]:
    """The days of those partition keys of an asset that are of the table, or of its part."""
    return {day for day, part in map(split_key, keys) if part == table.part}


def _days_reported(
    deployment: Deployment, instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun]
) -> set[tuple[str, date]]:
    """The days of the tables that runs which did not succeed published, or found as published.

    Another run's event is no proof: it may pass over a day that these were to compute, as one on
    hold, or with a file that it does not accept.
    """
    return {
        (name, day)
        for run in runs
        if run.status is not dg.DagsterRunStatus.SUCCESS
        for entry in instance.all_logs(
            run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        if (key := (event := entry.get_dagster_event()).asset_key) and event.partition
        for name in deployment.tables_of([key])
        for day in _days_of_part(deployment.tables[name], [event.partition])
    }


def _days_of_run(
    deployment: Deployment, run: dg.DagsterRun, ledgers: Ledgers
) -> Iterator[tuple[str, date]]:
    """The days of tables that a run was asked for; of a whole job, those of its grain."""
    window, job = days_of_run(run.tags), deployment.job_of_run(run)
    is_whole_job = Grain.of_job(job) is not None
    selected = {*deployment.tables_of(run.asset_selection or ())}
    for name, ledger in ledgers.items() if window else ():
        table = ledger.table
        is_asked = not is_whole_job or job == table.job_name
        if run.asset_selection:
            is_asked = name in selected
        for day in table.grain.partitions_of(window or ()) if is_asked else ():
            if table.is_in_run(run.tags):
                yield name, day


def _unpublished_messages(unpublished: Mapping[tuple[str, date], str]) -> Iterator[str]:
    """One message for each table and error; an empty error means that none is recorded."""
    days: dict[tuple[str, str], list[date]] = defaultdict(list)
    for (table, day), error in unpublished.items():
        days[table, error].append(day)
    for (table, error), table_days in days.items():
        yield (
            f"{table} [{format_ranges(table_days)}] was asked for and not "
            f"published{error and f' ({error})'}; readers see what was there before. See what "
            "failed, and launch these days again"
        )


def _recorded_days(ledger: Ledger, name: str) -> tuple[set[date], dict[date, tuple[int, str]]]:
    """Days that commits of a backfill cover; and version and error of days that failed last."""
    recorded: set[date] = set()
    failed: dict[date, tuple[int, str]] = {}
    for record in ledger.records:
        if is_commit_of(record, name):
            recorded = (
                recorded | record.days.keys() | record.revoked_days
            ) - record.failed_days.keys()
            failed |= {day: (record.version, error) for day, error in record.failed_days.items()}
            failed = {day: failure for day, failure in failed.items() if day not in recorded}
    return recorded, failed


def _days_by_others(
    ledger: Ledger, name: str, start: float, failed: Mapping[date, tuple[int, str]]
) -> set[date]:
    """Days that others published after a time; those of `_recorded_days` that failed, since.

    What carries older rows over is no proof: an undo, a migration, an acceptance of their code.
    """
    return {
        day
        for day, record in publishing_commits(ledger).items()
        if not is_commit_of(record, name)
        and (
            record.version > failed[day][0]
            if day in failed
            else record.at and record.at.timestamp() > start
        )
    }


@dataclass(frozen=True)
class CodeProvenance:
    """The code and configuration that computed the days of a backfill.

    Attributes:
        days_by_code: days of each table by code version.
        code_descriptions: code versions with what git knows of them, as text.
        config_digests: digests of the settings that decide the rows, by table.
    """

    days_by_code: Mapping[str, Mapping[str, Sequence[date]]]
    code_descriptions: frozenset[str]
    config_digests: Mapping[str, Sequence[str]]

    @property
    def problems(self) -> list[str]:
        """Sentences about several code versions or configurations in one backfill."""
        problems = []
        if len(self.days_by_code) > 1:
            text = "; ".join(
                f"{code} made "
                + ", ".join(f"{name} [{format_ranges(days)}]" for name, days in tables.items())
                for code, tables in self.days_by_code.items()
            )
            problems.append(f"its days carry {len(self.days_by_code)} code versions: {text}")
        problems += [
            f"its days of {name} carry {len(digests)} configurations: {', '.join(digests)}"
            for name, digests in self.config_digests.items()
            if len(digests) > 1
        ]
        return problems


def code_provenance(ledgers: Ledgers, name: str) -> CodeProvenance:
    """The code and configuration of every commit of a backfill.

    `name` is a backfill or run, as in `changes.is_commit_of`.
    """
    days_by_code: dict[str, dict[str, list[date]]] = {}
    descriptions = set()
    digests_by_table: dict[str, set[str]] = {}
    for table, ledger in ledgers.items():
        for record in ledger.records:
            if is_commit_of(record, name):
                for day in record.days:
                    code = ledger.code_of(record, day)
                    days_by_code.setdefault(code, {}).setdefault(table, []).append(day)
                    day_record = record.for_day(day)
                    descriptions.add(
                        str(Code(day_record.code_id, day_record.git_commit, day_record.git_dirty))
                    )
                    digests_by_table.setdefault(table, set()).add(record.made_under(day))
    config_digests = {table: sorted(digests) for table, digests in digests_by_table.items()}
    return CodeProvenance(days_by_code, frozenset(descriptions), config_digests)


def find_mixed_backfills(ledgers: Ledgers) -> list[str]:
    """Sentences about backfills whose current days have several code versions or configurations.

    Configurations are compared within a table, as each has the digest of its own settings.
    """
    tables_by_backfill: dict[str, dict[tuple[str, str], dict[str, list[date]]]] = {}
    for name, ledger in ledgers.items():
        for day, record in ledger.latest.items():
            if record.backfill_id:
                tables_by_code = tables_by_backfill.setdefault(
                    record.backfill_id.partition("-")[0], {}
                )
                code_and_settings = (record.code_id, record.made_under(day))
                tables_by_code.setdefault(code_and_settings, {}).setdefault(name, []).append(day)
    return [
        f"backfill {backfill}: "
        + "; ".join(
            f"code {code} with configuration {digest} made "
            + ", ".join(f"{name} [{format_ranges(days)}]" for name, days in tables.items())
            for (code, digest), tables in tables_by_code.items()
        )
        for backfill, tables_by_code in sorted(tables_by_backfill.items())
        if len({code for code, _ in tables_by_code}) > 1 or _share_a_table(tables_by_code.values())
    ]


def _share_a_table(table_groups: Collection[Mapping[str, Sequence[date]]]) -> bool:
    return len({name for tables in table_groups for name in tables}) < sum(map(len, table_groups))


def find_replaced_days(
    ledgers: Ledgers, name: str, changes: Mapping[str, Mapping[date, DayChange]]
) -> Iterator[str]:
    """Sentences about days of a backfill that were undone, or changed by another writer, since.

    `changes` are the days that it wrote, by table.
    """
    for table, ledger in ledgers.items():
        undone = reverted_days(ledger, changes[table]) if table in changes else set()
        if undone:
            yield f"{table} [{format_ranges(undone)}] has been undone since"
        if changed := [
            day
            for day, record in ledger.latest.items()
            if is_commit_of(record, name) and ledger.current_record(day) is None
        ]:
            yield f"{table} [{format_ranges(changed)}] has been changed by another writer since"


def compare_with_plan(plan: BackfillPlan, ledgers: Ledgers) -> Iterator[tuple[str, str, str]]:
    """Rows of table, planned outcome and actual outcome."""
    for table, forecast in plan.tables.items():
        rewritten_by_day: dict[date, bool] = {}
        for record in ledgers[table].records:
            if is_commit_of(record, plan.id):
                for day in record.days:
                    rewritten_by_day[day] = (
                        rewritten_by_day.get(day, False) or day in record.rewritten_days
                    )
        for expected, days in forecast.days_by_outcome():
            written = [d for d in days if rewritten_by_day.get(d)]
            same = [d for d in days if rewritten_by_day.get(d) is False]
            untouched = [d for d in days if d not in rewritten_by_day]
            counts = [
                f"{len(matching)} {outcome}"
                for matching, outcome in (
                    (written, "written"),
                    (same, "computed with the rows that were there"),
                    (untouched, "left alone"),
                )
                if matching
            ]
            yield table, f"{len(days)} {expected.value}", ", ".join(counts)


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a reconciliation.

    Attributes:
        name: the backfill.
        reports: diffs by table.
        provenance: the code and configuration.
        plan_results: rows of table, planned outcome, actual outcome; empty without a plan.
        problems: sentences about what is wrong; empty if the backfill is as it should be.
        plan_error: why the plan could not be read, so that the request in Dagster was compared
            instead; empty if it was read or there is none.
        final_days_behind: by table, final days that read its days and were not built since.
    """

    name: str
    reports: Sequence[TableDiff]
    provenance: CodeProvenance
    plan_results: Sequence[tuple[str, str, str]]
    problems: Sequence[str]
    plan_error: str = ""
    final_days_behind: Mapping[str, Sequence[date]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The problems, or that there are none, in one sentence."""
        return "; ".join(self.problems) or "all of it is there, and adds up"


def reconcile_backfill(
    deployment: Deployment, instance: dg.DagsterInstance, spark: SparkSession, name: str
) -> ReconcileResult:
    """Compare the rows that a backfill replaced with the rows that it published.

    Args:
        deployment: whose tables they are.
        instance: has its runs, launches and plan.
        spark: reads the tables.
        name: backfill, stage or run, as in `changes.is_commit_of`.
    """
    ledgers = read_ledgers(deployment)
    backfill = find_backfill(instance, name)
    requested = requested_days(deployment, instance, ledgers, backfill)
    changes = changed_days_by_table(ledgers, name)
    reports = [
        diff_table(
            spark,
            deployment.table_url(table),
            ledgers[table].table,
            {
                day: (
                    change.version_before if change.previous_commit else None,
                    change.version_after,
                )
                for day, change in days.items()
            },
            ledgers[table],
        )
        for table, days in changes.items()
    ]
    provenance = code_provenance(ledgers, name)
    problems = [
        *cross_table_mismatches(reports, ledgers),
        *provenance.problems,
        *requested.not_published,
        *find_replaced_days(ledgers, name, changes),
    ]
    # A launch may have no days: of weeks, a stage in which none ends.
    if not (provenance.days_by_code or any(requested.days.values()) or backfill.launches):
        problems.append(f"no commit of {name} is in any table at {deployment.settings.warehouse}")
    today = deployment.today
    return ReconcileResult(
        name,
        reports,
        provenance,
        list(compare_with_plan(backfill.plan, ledgers)) if backfill.plan else [],
        problems,
        backfill.plan_error,
        find_final_days_behind(Snapshot.from_deployment(deployment, ledgers, today), name),
    )


def find_final_days_behind(snapshot: Snapshot, name: str) -> dict[str, list[date]]:
    """The final days, by table, that are behind an input that a backfill changed.

    No schedule and no sensor builds them.
    """
    stale = find_stale_days(snapshot)
    behind = {
        table: [
            day
            for day, reason in days.items()
            if any(is_commit_of(record, name) for record in reason.input_commits.values())
        ]
        for table, days in stale.final.items()
    }
    return {table: days for table, days in behind.items() if days}


def reconcile_report(result: ReconcileResult) -> Report:
    """The result for a reader."""
    return Report(tuple(reconcile_facts(result)), tuple(map(as_table, result.reports)))


def encode_result(result: ReconcileResult, report: Report, *, details: bool) -> dict[str, Any]:
    """The result and its report as JSON values: `summary`, `report`, and `details` if asked for.

    `summary` is the verdict; `details` are code, settings, and the figures of each day.
    """
    summary = {
        "backfill": result.name,
        "verdict": result.verdict,
        "good": not result.problems,
        "problems": list(result.problems),
        **({"plan": result.plan_error} if result.plan_error else {}),
    }
    figures = {}
    if details:
        figures = {
            "code": sorted(result.provenance.code_descriptions),
            "configuration": dict(result.provenance.config_digests),
            **report_values(result.reports),
        }
    return {"summary": summary, "report": report.to_json(), "details": figures}


def reconcile_facts(result: ReconcileResult) -> Iterator[tuple[str, str]]:
    """Names and texts of the result without its diffs, for a reader; the verdict comes first."""
    yield "verdict", result.verdict
    if result.plan_error:
        yield "plan", result.plan_error
    for table, days in result.final_days_behind.items():
        yield (
            "final days behind",
            f"{table} [{format_ranges(days)}] read its days, and only a person builds final days: "
            + format_command({table: days}),
        )
    for table, expected, outcome in result.plan_results:
        yield f"planned for {table}", f"{expected}: {outcome}"
    for code in sorted(result.provenance.code_descriptions):
        yield "made by code", code
    tables: dict[str, list[str]] = defaultdict(list)
    for name, digests in result.provenance.config_digests.items():
        tables[", ".join(digests)].append(name)
    for digests, names in tables.items():
        yield "configuration", f"{digests}: {', '.join(names)}"
