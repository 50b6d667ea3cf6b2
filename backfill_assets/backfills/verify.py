"""Verify published days: recompute them with the assets and compare; nothing is written."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from enum import Enum
from itertools import groupby
from typing import Any, TypeVar

import dagster as dg

from backfill_assets.audit import verdicts
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.dagster_ext.failures import raise_if_engine_failed
from backfill_assets.delta.commits import summarize_error
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.read_check import ReadCheck
from backfill_assets.delta.records import CommitRecord
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.publish.compute import DependentDaysError
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.publication import audit_days, list_results
from backfill_assets.publish.publisher import Destination, Publisher
from backfill_assets.publish.types import CALLS_TAG, Candidate, ComputePlan, Delivery
from backfill_assets.report import ReportTable
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.staleness.assess import REQUESTED
from backfill_assets.tables.graph import buildable_tables
from backfill_assets.tables.table import SchemaError, Table, run_tags

_UNEXPLAINED = (
    "nothing that it is made of has changed since: the files of an input were changed behind its "
    "log, or the computation is not deterministic"
)


class VerifyOutcome(Enum):
    """How a recomputed day compares with the published one."""

    MATCHES = "matches"
    DIFFERS = "differs"
    NOT_PUBLISHED = "not published"
    #: Published, but the recomputed rows fail the audit.
    WOULD_FAIL = "would fail"


@dataclass(frozen=True)
class VerifiedDay:
    """The verification of one day of a table.

    Attributes:
        table: the table's name.
        day: the day.
        outcome: how the day compares.
        why: explanation of the outcome; for a matching day, what changed without changing its rows.
        published: as recorded by the day's commit; None without a record.
        held: content of the data files; None if the day is not published or cannot be read.
        now: the recomputed content; None if it could not be computed.
        same_inputs: whether inputs and settings are those of the published day.
    """

    table: str
    day: date
    outcome: VerifyOutcome
    why: str = ""
    published: verdicts.DayContent | None = None
    held: verdicts.DayContent | None = None
    now: verdicts.DayContent | None = None
    same_inputs: bool = False

    def __str__(self) -> str:
        if self.outcome is not VerifyOutcome.DIFFERS:
            return self.why
        parts = [f"published {self.published}"] if self.published else []
        if self.held and not verdicts.have_same_rows(self.held, self.published):
            parts.append(f"the files hold {self._describe_other(self.held)}")
        parts.append(f"now {self._describe_other(self.now)}")
        return f"{'; '.join(parts)}: {self.why}"

    def _describe_other(self, other: verdicts.DayContent | None) -> str:
        """Another content as text, with its difference from the published one."""
        difference = self.published and verdicts.describe_difference(self.published, other)
        return f"{other} ({difference})" if difference else str(other)


def compare_day(
    ledger: Ledger,
    day: date,
    *,
    recomputed: verdicts.DayContent | None,
    audit_failure: str,
    stored: verdicts.DayContent | None,
    read_error: str,
    change: str,
    same_inputs: bool = False,
) -> VerifiedDay:
    """Compare a recomputed day with the published one.

    Args:
        ledger: the table's ledger.
        day: the day.
        recomputed: None if it could not be computed.
        audit_failure: why the day would not be published now; empty if it would.
        stored: content of the data files; None if not published or not readable.
        read_error: why the data files cannot be read; empty if they can.
        change: why a run would compute the published day anew; empty if it would not.
        same_inputs: whether inputs and settings are those of the published day.
    """
    record = ledger.latest.get(day)
    published = record.days[day].content if record else None
    file_problem = f"its files cannot be read ({read_error})" if read_error else ""
    as_published = verdicts.have_same_rows(published, stored)
    if not as_published:
        file_problem = file_problem or _explain_files(ledger, record, day)
    if day not in ledger.published_days:
        outcome = VerifyOutcome.NOT_PUBLISHED
        explanation = (
            f"would fail now: {audit_failure}"
            if audit_failure
            else f"would be published now: {recomputed}"
        )
    elif audit_failure:
        outcome, explanation = (
            VerifyOutcome.WOULD_FAIL,
            "; ".join(filter(None, [audit_failure, file_problem])),
        )
    elif as_published and verdicts.have_same_rows(stored, recomputed):
        outcome, explanation = (
            VerifyOutcome.MATCHES,
            f"although a run would compute it anew ({change})" if change else "",
        )
    else:
        outcome = VerifyOutcome.DIFFERS
        reason = change or ("" if file_problem else _UNEXPLAINED)
        if not as_published and verdicts.have_same_rows(recomputed, published):
            reason = "computed anew it is as it was published"
        explanation = "; ".join(filter(None, [file_problem, reason]))
    return VerifiedDay(
        ledger.table.name, day, outcome, explanation, published, stored, recomputed, same_inputs
    )


def _explain_files(ledger: Ledger, record: CommitRecord | None, day: date) -> str:
    """Why the files of a day do not hold what its record says."""
    valid_version = record.valid_as_of(day) if record else -1
    external_commits = [
        x for x in ledger.external_commits if day in x.days and x.version > valid_version
    ]
    if external_commits:
        last = external_commits[-1]
        return f"another writer changed it in version {last.version} ({last.operation})"
    if record is None:
        return "its rows were written before any commit on record"
    if changed_columns := ledger.columns_changed_since(record):
        return (
            f"version {record.version} is from before {', '.join(sorted(changed_columns))} came or "
            "went"
        )
    return f"its files are not what version {record.version} says: changed behind the log"


_Result = TypeVar("_Result")


def verify_days(
    deployment: Deployment,
    defs: dg.Definitions,
    window: Window,
    tables: Sequence[str] = (),
    as_of: Mapping[str, int] | None = None,
) -> list[VerifiedDay]:
    """Recompute days with the assets themselves, and compare them with the published days.

    Every table is computed from the published versions of its inputs, raw tables from the landing,
    all as of one moment. If every day matches in every table, and so do the log days outside the
    window that they depend on, then by induction a rebuild of the whole chain from the landing
    gives the published rows. This includes final days: computed from the published log, they give
    the same rows on any later date.

    Nothing is written: no commit, no file, no event in the deployment's instance. No service is
    called.

    Args:
        deployment: whose tables they are.
        defs: its assets and resources.
        window: the days.
        tables: names of tables; if empty, all published tables that are not retired.
        as_of: the version to read, by table; the last version of tables not named.

    Returns:
        One result per day, table by table in the order of declaration, days in ascending order.

    Raises:
        ValueError: days outside of the calendar, no such table, nothing published, or a retired
            table.
        LandingError: there is no landing at the configured location.
        EngineError: no Spark session is available.
    """
    deployment.parse_days(str(window))
    ledgers = _ledgers_as_of(deployment, as_of or {})
    published_tables = [n for n in deployment.tables if ledgers[n].version is not None]
    if not tables and not published_tables:
        raise ValueError(f"nothing has been published at {deployment.settings.warehouse}")
    fed = buildable_tables(deployment.graph, tables, deployment.today)
    names = [name for name in fed if name in (tables or published_tables)]
    resources = dict(defs.resources or {})
    destination = ComparisonDestination(deployment.settings.warehouse, ledgers)
    key = deployment.resource_key(IO_MANAGER_KEY)
    with dg.build_resources({"publisher": resources[key]}) as own_resources:
        publisher = own_resources.publisher.with_destination(destination)
    resources[key] = publisher.as_definition()
    # Only assets, not their checks: the check of day states is about published days.
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    with dg.DagsterInstance.ephemeral() as instance:
        verification = _Verification(publisher, destination, assets, resources, instance)
        for days, run_tables in _partition_runs(deployment, names, window):
            verification.verify_tables(days, run_tables)
    return sorted(destination.verified_days, key=lambda day: (names.index(day.table), day.day))


def _partition_runs(
    deployment: Deployment, names: Sequence[str], window: Window
) -> Iterator[tuple[list[date], list[str]]]:
    """Partitions of runs with the tables of their grain and part: those of a run have one only."""
    tables = deployment.tables
    kinds = dict.fromkeys((t.grain, t.job_name, t.part) for t in map(tables.__getitem__, names))
    for cadence, *same in sorted(kinds, key=lambda kind: [*Grain].index(kind[0])):
        names_of_grain = [n for n in names if [tables[n].job_name, tables[n].part] == same]
        known = tables[names_of_grain[0]].days_def(deployment.settings).has_partition_key
        partitions = [first for first in cadence.partitions_of(window) if known(str(first))]
        for run in cadence.split_into_runs(partitions, deployment.settings.partitions_per_run):
            yield [day for day in partitions if day in run], names_of_grain


def _ledgers_as_of(deployment: Deployment, as_of: Mapping[str, int]) -> Ledgers:
    ledgers = read_ledgers(deployment)
    pinned = {name: ledgers[name].as_of(at) for name, at in as_of.items() if name in ledgers}
    return {**ledgers, **pinned}


@dataclass(frozen=True)
class ComparisonDestination(Destination):
    """Audited days are compared with the published ones; none is published.

    Attributes:
        ledgers: of the tables, as of the start of the verification.
        verified_days: all results so far.
    """

    ledgers: Ledgers
    verified_days: list[VerifiedDay] = field(default_factory=list)

    merges = False
    compares = True

    def ledger(self, table: Table) -> Ledger:
        """The table's ledger as of the start of the verification."""
        return self.ledgers[table.name]

    def deliver(self, publisher: Publisher, candidates: Sequence[Candidate]) -> Iterator[Delivery]:
        """Audit and compare all days; publish none."""
        audited = audit_days(candidates)
        for candidate in candidates:
            plan = candidate.plan
            skipped = [result.verdict for result in list_results(plan)]
            recomputed: Mapping[date, verdicts.Verdict] = {}
            if plan.table.part in audited:
                recomputed = audited[plan.table.part].verdicts
            errors_by_day = {
                v.day: v.failure_reasons
                for v in [*skipped, *recomputed.values()]
                if not v.may_publish
            }
            self._compare_days(
                publisher, plan.ledger, plan.request.window, errors_by_day, recomputed, plan
            )
            yield [(candidate, [])]

    def record_failure(
        self, publisher: Publisher, table: str, days: Sequence[date], error: str
    ) -> None:
        """Record that the days of a table cannot be computed."""
        self._compare_days(publisher, self.ledgers[table], days, dict.fromkeys(days, error), {})

    def _compare_days(
        self,
        publisher: Publisher,
        ledger: Ledger,
        days: Collection[date],
        errors_by_day: Mapping[date, str],
        recomputed: Mapping[date, verdicts.Verdict],
        plan: ComputePlan | None = None,
    ) -> None:
        """Compare days with what is published; `plan` is None if none could be made."""
        stored, unreadable = _measure_published(publisher, ledger, days)
        self.verified_days.extend(
            compare_day(
                ledger,
                day,
                recomputed=recomputed[day].metrics if day in recomputed else None,
                audit_failure=errors_by_day.get(day, ""),
                stored=stored.get(day),
                read_error=unreadable.get(day, ""),
                change=_find_change(plan, day) if plan else "",
                same_inputs=plan is not None and _has_same_inputs(plan, day),
            )
            for day in days
        )


@dataclass(frozen=True)
class _Verification:
    publisher: DeltaIOManager
    destination: ComparisonDestination
    assets: Sequence[dg.AssetsDefinition]
    resources: Mapping[str, Any]
    instance: dg.DagsterInstance

    def verify_tables(self, days: Sequence[date], tables: Sequence[str]) -> None:
        """Compute days of tables in one run, and compare them.

        If it fails, the tables that it has not compared are computed one by one. If Spark fails in
        one of them, its days are computed in halves, so that one bad file does not hide the other
        days. So are the days of a table whose function mixes the days of a range.
        """
        try:
            self._materialize(days, tables)
        except DependentDaysError as error:
            self._verify_parts(days, tables, str(error), halves=True)
        except (verdicts.RefusedError, SchemaError, dg.Failure) as error:
            spark_failed = isinstance(error.__cause__, SPARK_ERRORS)
            self._verify_parts(days, tables, str(error), halves=spark_failed)
        except SPARK_ERRORS as error:
            raise_if_engine_failed(error)
            self._verify_parts(days, tables, summarize_error(error), halves=True)

    def _verify_parts(
        self, days: Sequence[date], tables: Sequence[str], error: str, *, halves: bool
    ) -> None:
        """Verify what a failed run has not, in parts; record the error if there are none."""
        compared = {day.table for day in self.destination.verified_days if day.day in days}
        remaining = [name for name in tables if name not in compared]
        if len(remaining) > 1:
            for name in remaining:
                self.verify_tables(days, [name])
        elif halves and len(days) > 1:
            half = len(days) // 2
            for part in (days[:half], days[half:]):
                self.verify_tables(part, remaining)
        else:
            for name in remaining:
                self.destination.record_failure(self.publisher, name, days, error)

    def _materialize(self, days: Sequence[date], tables: Sequence[str]) -> None:
        declared = [self.destination.ledgers[name].table for name in tables]
        dg.materialize(
            self.assets,
            selection=[*map(self.publisher.deployment.asset_key, tables)],
            instance=self.instance,
            resources=self.resources,
            tags={**run_tags(declared, days), CALLS_TAG: "none"},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )


def _measure_published(
    publisher: Publisher, ledger: Ledger, days: Iterable[date]
) -> tuple[dict[date, verdicts.DayContent], dict[date, str]]:
    """Content of the data files of published days, and why others cannot be read."""

    def measure(published_days: Sequence[date]) -> dict[date, verdicts.DayContent]:
        rows = publisher.table_snapshot(ledger, by_day=False).read_days(published_days)
        measured = verdicts.measure_days(rows, ledger.table)
        return {day: measured.get(day, verdicts.empty_day(ledger.table)) for day in published_days}

    return _bisect_days([day for day in days if day in ledger.published_days], measure)


def _has_same_inputs(plan: ComputePlan, day: date) -> bool:
    record = plan.ledger.latest.get(day)
    return (
        record is not None
        and record.days[day].input_digest == plan.input_digests[day] != ""
        and record.made_under(day) == plan.request.record["config_digest"]
    )


def _find_change(plan: ComputePlan, day: date) -> str:
    """Why a run would compute a published day anew; empty if it would not, or others changed it."""
    reason = plan.reasons.get(day, "") if plan.ledger.current_record(day) else ""
    return "" if reason == REQUESTED else reason


def _bisect_days(
    days: Sequence[date], check: Callable[[Sequence[date]], dict[date, _Result]]
) -> tuple[dict[date, _Result], dict[date, str]]:
    """Results by day, and errors of the days without a result.

    If Spark fails, the days are checked in halves, so that one bad file does not hide others.
    """
    if not days:
        return {}, {}
    try:
        return check(days), {}
    except SPARK_ERRORS as error:
        raise_if_engine_failed(error)
        if len(days) == 1:
            return {}, {days[0]: summarize_error(error)}
    half = len(days) // 2
    (results, failed), (more_results, more_failed) = (
        _bisect_days(part, check) for part in (days[:half], days[half:])
    )
    return results | more_results, failed | more_failed


def is_good(verified: Iterable[VerifiedDay], read_checks: Iterable[ReadCheck]) -> bool:
    """Whether all days match, and other engines can read the published tables."""
    return all(day.outcome is VerifyOutcome.MATCHES for day in verified) and not any(
        test.problems for test in read_checks
    )


def as_table(verified: Iterable[VerifiedDay]) -> ReportTable:
    """The days for a person: matching days as ranges, others one by one."""
    rows = []
    for (table, _), alike in groupby(verified, _group_key):
        days = list(alike)
        count = sum(day.published.rows for day in days if day.published)
        window = Window(days[0].day, days[-1].day + DAY)
        rows.append((table, str(window), days[0].outcome.value, f"{count:,}", str(days[0])))
    return ReportTable.from_rows(
        ("table", "days", "outcome", "rows", _COMMENT), rows, numbers=["rows"], sentences=[_COMMENT]
    )


_COMMENT = "what there is to say"


def _group_key(day: VerifiedDay) -> tuple[str, date | str]:
    return day.table, f"matches {day.why}" if day.outcome is VerifyOutcome.MATCHES else day.day


def _content_json(content: verdicts.DayContent | None) -> dict[str, Any] | None:
    """A content as JSON values; all totals are text, so that none is rounded."""
    if content is None:
        return None
    totals = {name: str(total) for name, total in content.totals.items()}
    return {"rows": content.rows, "totals": totals, "digest": content.digest}


def verified_values(verified: Iterable[VerifiedDay], reads: Iterable[ReadCheck]) -> dict[str, Any]:
    """All results as JSON values."""
    verified, reads = list(verified), list(reads)
    return {
        "good": is_good(verified, reads),
        "days": [
            {
                **vars(day),
                "outcome": day.outcome.value,
                **{side: _content_json(vars(day)[side]) for side in ("published", "held", "now")},
            }
            for day in verified
        ],
        "reads": [asdict(test) for test in reads],
    }
