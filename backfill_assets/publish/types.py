"""Types of a publication: tags of the run, request, plan, computed days, candidate, results."""

import enum
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any, Self

import dagster as dg
from pyspark.sql import DataFrame

from backfill_assets.audit.verdicts import DayMetrics, Expectation, Finding, Severity, Verdict
from backfill_assets.calendar.partitions import MAX_RANGES, DaySet, Window, to_windows
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import DataFiles, TableSnapshot
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import PERSON, CommitNotes, Provenance, PublishedDay
from backfill_assets.delta.table_schema import all_constraints
from backfill_assets.staleness.impact import LogChange
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.table import Table

#: A run with this tag set to `true` computes and writes all its days, even if unchanged.
REWRITE_TAG = "backfill_assets/rewrite"
#: How a run writes: `overwrite` replaces whole days, `merge` changes their rows by the natural key
#: in the tables that allow it.
WRITE_MODE_TAG = "backfill_assets/write_mode"
#: A run with this tag set to `true` closes its arrival days that have no folder.
CLOSE_TAG = "backfill_assets/close"
#: A run with this tag set to `true` expects the folders of its closed arrival days again.
REOPEN_TAG = "backfill_assets/reopen"
#: A run with this tag set to `none` calls no service and uses cached answers only.
CALLS_TAG = "backfill_assets/calls"
#: Why a run was launched, for the record of its commits.
REASON_TAG = "backfill_assets/reason"
#: The code and the settings that a backfill was planned with, see `format_code_pin`.
CODE_TAG = "backfill_assets/code"
#: A tag of runs of `backfill-assets night --run`.
NIGHT_TAG = "backfill_assets/night"
#: `launched_by` of such a run: not a person, so it writes no day on hold and may use a full quota.
NIGHT = "command night"
#: The days of a run's tables that later runs of the same command build, as ranges.
LATER_DAYS_TAG = "backfill_assets/later_days"


def closing_tags(reason: str, *, reopen: bool) -> dict[str, str]:
    """Return the tags of a run that closes the arrival days it loads, or opens them again."""
    return {REOPEN_TAG if reopen else CLOSE_TAG: "true", REASON_TAG: reason}


def later_days_tags(days: Collection[date]) -> dict[str, str]:
    """Return the tag of a run whose tables have other days that later runs build; empty if none.

    Of more ranges than a tag has room for, it has the first ones.
    """
    ranges = to_windows(days)[:MAX_RANGES]
    return {LATER_DAYS_TAG: ", ".join(map(str, ranges))} if ranges else {}


def launched_by(tags: Mapping[str, str]) -> str:
    """Return who launched a run, from its tags.

    A run that a person re-executes has the tags of the first run, as has one that Dagster retries;
    only the latter has a retry number.
    """
    if "dagster/parent_run_id" in tags and "dagster/retry_number" not in tags:
        return PERSON
    for kind in ("schedule", "sensor"):
        if name := tags.get(f"dagster/{kind}_name"):
            return f"{kind} {name}"
    return NIGHT if NIGHT_TAG in tags else PERSON


def format_code_pin(code_version: str, config_digest: str) -> str:
    """Return code version and settings digest as the value of `CODE_TAG`."""
    return f"{code_version}/{config_digest}"


def is_merge_run(tags: Mapping[str, str]) -> bool:
    """Return whether the run's write mode is `merge`."""
    mode = tags.get(WRITE_MODE_TAG, "overwrite")
    if mode not in ("overwrite", "merge"):
        raise dg.Failure(
            f"The run's tag {WRITE_MODE_TAG} is {mode!r}: it must be `overwrite` or `merge`. "
            "Nothing was written.",
            allow_retries=False,
        )
    return mode == "merge"


class CommitRaceError(PublishError):
    """Another commit changed the days that a candidate replaces: they must be planned anew."""


@dataclass(frozen=True)
class RunRequest:
    """What a run asks of the days of a table.

    Attributes:
        window: the days.
        record: the run's part of the commit metadata, see `Publisher.run_metadata`.
        rewrite: days to compute and write even if nothing has changed.
        merge: whether to merge rows by their natural key rather than replace days.
        compares: whether all days are computed to be compared, and none is published.
    """

    window: Window
    record: Mapping[str, Any]
    rewrite: Container[date] = ()
    merge: bool = False
    compares: bool = False


@dataclass(frozen=True)
class ComputePlan:
    """Which days of a table to compute, and why, as of one version of the table and its inputs.

    Attributes:
        request: of the run.
        writer: commits to the table.
        ledger: of the table; read before the inputs, so that older input never replaces newer.
        sources: the input tables.
        input_digests: by day, the input digest, see `staleness.snapshot`.
        reasons: by day to compute, why.
        refused: by day that cannot be computed, why.
        not_due: by day that is not due yet, what it waits for; see `DayAssessment`.
        requested: of a stateful table, the days that are not computed for an earlier day's sake.
        snapshot: of a stateful table, what the input digest of a day follows from, given the day
            before.
    """

    request: RunRequest
    writer: Writer
    ledger: Ledger
    sources: Sequence[TableSnapshot]
    input_digests: Mapping[date, str]
    reasons: Mapping[date, str]
    refused: Mapping[date, Expectation]
    requested: Container[date] = ()
    snapshot: Snapshot | None = None
    not_due: Mapping[date, str] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """The table."""
        return self.ledger.table

    @property
    def days(self) -> Window:
        """The days to compute."""
        return DaySet.from_days(self.reasons)

    @property
    def input_versions(self) -> dict[str, int]:
        """The version of each input table."""
        return {source.table.name: source.ledger.version or 0 for source in self.sources}

    def refuse_all(self, reason: str) -> "ComputePlan":
        """Return the plan without days to compute: all of them are refused, for one reason."""
        refused = dict.fromkeys(self.reasons, Expectation(problems=[reason]))
        return replace(self, reasons={}, refused={**self.refused, **refused})

    @property
    def published(self) -> TableSnapshot:
        """The table as published, at the version of its ledger."""
        return TableSnapshot.at_version(self.writer.url, self.ledger, self.writer.session)

    @property
    def rules(self) -> dict[str, str]:
        """By name, the conditions that each row must meet."""
        return all_constraints(self.table, self.ledger.metadata)

    def holds_for(self, ledger: Ledger) -> bool:
        """Return whether a later ledger has the planned days, and what they follow, as planned.

        The rules of the rows must be the same as well.

        Rows that another writer put into a day to compute are replaced all the same, unless rows
        are merged into them, or the next day is built from them.
        """
        before = 1 if self.snapshot else 0
        replaced = self.reasons if not (self.snapshot or self.request.merge) else {}
        return all_constraints(ledger.table, ledger.metadata) == self.rules and all(
            _published_state(self.ledger, day, with_rows=day not in replaced)
            == _published_state(ledger, day, with_rows=day not in replaced)
            for day in self.request.window.widen_by(before=before)
        )


def _published_state(ledger: Ledger, day: date, *, with_rows: bool) -> tuple[Any, ...]:
    record = ledger.latest.get(day)
    rows = (ledger.current_record(day) is None, ledger.content_key(day)) if with_rows else ()
    return (record and record.version, ledger.on_hold.get(day), *rows)


@dataclass(frozen=True)
class ComputedDays:
    """The rows of some days, with expectations and figures.

    Attributes:
        frame: the rows, with the partition column.
        expectations: what each day must satisfy, according to its inputs.
        scattered: whether each day's rows are in many Spark partitions, as after a shuffle; they
            are then gathered, to write one file a day instead of one for each task and day.
        numbers: by day, figures for the UI besides those of the audit.
        notes: what the commit records, if all days pass the audit.
        log_change: of a raw log, from what the impact of the commit is read.
        input_digests: by day, where the inputs turned out to be others than planned.
        made_under: by day, the digest of its settings, if not the current ones.
        provenance: by day, its code and inputs, if not those of this run.
        files: by day, data files that already hold the rows; other days are written.
    """

    frame: DataFrame
    expectations: Mapping[date, Expectation]
    scattered: bool = False
    numbers: Mapping[date, Mapping[str, Any]] = field(default_factory=dict)
    notes: CommitNotes = field(default_factory=CommitNotes)
    log_change: LogChange | None = None
    input_digests: Mapping[date, str] = field(default_factory=dict)
    made_under: Mapping[date, str] = field(default_factory=dict)
    provenance: Mapping[date, Provenance] = field(default_factory=dict)
    files: DataFiles = field(default_factory=dict)

    def with_numbers(self, numbers: Mapping[date, Mapping[str, Any]]) -> Self:
        """Return the days with more figures, by day."""
        more = {day: {**self.numbers.get(day, {}), **figures} for day, figures in numbers.items()}
        return replace(self, numbers={**self.numbers, **more})


@dataclass(frozen=True)
class Candidate:
    """Days of a table that a step hands to the IO manager: audited next, and then committed.

    `computed` is None if the plan has no day to compute.
    """

    plan: ComputePlan
    computed: ComputedDays | None = None


class Outcome(enum.Enum):
    """Outcome of a day in a run."""

    WRITTEN = "written"
    #: Computed again, with the same rows as published: no file was written.
    UNCHANGED = "unchanged"
    #: Same inputs, code and settings as published: not computed again.
    IDENTICAL = "identical"
    #: Reverted: it counts as never published.
    WITHDRAWN = "withdrawn"
    FAILED = "failed"


@dataclass(frozen=True)
class DayResult:
    """The result of one day in a run.

    Attributes:
        outcome: of the day.
        verdict: of the audit; of an identical day, the one of its publication.
        version: of the commit that covers the day; None if there is none.
        numbers: figures for the UI besides those of the audit.
        inputs: the version of each input table.
        reason: why it was computed, see `recompute_reason`; of an identical day, at its
            publication.
    """

    outcome: Outcome
    verdict: Verdict
    version: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def day(self) -> date:
        """The day of the verdict."""
        return self.verdict.day

    @property
    def is_committed(self) -> bool:
        """Whether a commit of this run covers the day."""
        return self.version is not None and self.outcome is not Outcome.IDENTICAL


#: Candidates that are published together, each with the result of each day.
Delivery = Sequence[tuple[Candidate, list[DayResult]]]


def restore_verdict(table: Table, day: date, published: PublishedDay) -> Verdict:
    """The verdict on a day, from its record."""
    entries = {
        name: count if isinstance(count, int) else Decimal(count)
        for name, count in published.entries.items()
    }
    totals = {
        name: type(zero)(published.totals[name]) if name in published.totals else zero
        for name, zero in table.zero_totals.items()
    }
    keys = published.rows if table.key else None  # no key twice: else it was not published
    nulls = {name: published.nulls.get(name, 0) for name in table.columns}
    fine = [Severity.OK.value, "in order when it was published"]
    findings = [
        Finding(check, Severity(severity), text)
        for check in table.check_descriptions
        for severity, text in [published.findings.get(check, fine)]
    ]
    return Verdict(
        day,
        DayMetrics(published.rows, totals, published.digest, keys, nulls),
        Expectation(entries=entries, notices=dict.fromkeys(table.notices, (Severity.OK, ""))),
        findings,
    )
