"""Types of a publication: tags of the run, inputs, compute plans, computed days, results."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from backfill_assets.audit.verdicts import Expectation, Verdict
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import PERSON, CommitDetails, Provenance
from backfill_assets.tables.table import Table

#: A run with this tag set to `true` computes and writes all its days, even if unchanged.
REWRITE_TAG = "backfill_assets/rewrite"
#: How a run writes: `overwrite` replaces whole days, `merge` changes their rows by the natural key
#: in the tables that allow it.
WRITE_MODE_TAG = "backfill_assets/write_mode"
#: What a person accepts: names of replaced files as `arrival_date=YYYY-MM-DD/name`, `rows`,
#: `rejected`, separated by commas; see `assets.raw_expectations`.
ACCEPT_TAG = "backfill_assets/accept"
#: A run with this tag set to `true` closes its arrival days that have no folder.
CLOSE_TAG = "backfill_assets/close"
#: A run with this tag set to `none` calls no service and uses cached answers only.
CALLS_TAG = "backfill_assets/calls"
#: Why a run was launched, for the record of its commits.
REASON_TAG = "backfill_assets/reason"
#: The code and the settings that a backfill was planned with, see `format_code_pin`.
CODE_TAG = "backfill_assets/code"
#: Environment variable of runs of `backfill-assets night --run`: Dagster's command takes no tags.
NIGHT_VARIABLE = "_BACKFILL_ASSETS_NIGHT"
#: `launched_by` of such a run: not a person, so it writes no day on hold and may use a full quota.
NIGHT = "command night"


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
    return NIGHT if NIGHT_VARIABLE in os.environ else PERSON


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


@dataclass(frozen=True)
class Snapshot:
    """A table at one version.

    Attributes:
        ledger: of the version that the rows are read at.
        needs_same_day: whether a day that is built from the table needs the same day of it.
        read: reads the rows of some days; of all days if None.
        input_days: returns the days of the table that a day is built from; days not published are
            not read. Default: the same day if `needs_same_day`.
        find_required_days: returns the days of the table without which a day cannot be built.
            Default: the same day.
    """

    ledger: Ledger
    needs_same_day: bool
    read: Callable[[Collection[date] | None], DataFrame]
    input_days: Callable[[date], Iterable[date]] | None = None
    find_required_days: Callable[[date], Sequence[date]] | None = None

    @property
    def table(self) -> Table:
        """The declaration of the table: columns, key, inputs. Its rows are in `read`."""
        return self.ledger.table

    @property
    def all_rows(self) -> DataFrame:
        """The rows of all days."""
        return self.read(None)

    def read_days(self, days: Iterable[date]) -> DataFrame:
        """Read the rows of some days."""
        return self.read(frozenset(days))

    def with_reach(
        self,
        input_days: Callable[[date], Iterable[date]],
        required_days_of: Callable[[date], Sequence[date]] | None = None,
    ) -> Snapshot:
        """Return a copy with other input days and required days."""
        return replace(self, input_days=input_days, find_required_days=required_days_of)

    def required_days(self, day: date) -> Sequence[date]:
        """Return the days of the table without which a day cannot be built."""
        if not self.needs_same_day:
            return []
        return self.find_required_days(day) if self.find_required_days else [day]

    def days_with_other_settings(
        self, window: Window, config_digest: str
    ) -> dict[date, list[date]]:
        """Return, by day of a window, its input days that were built under other settings."""
        other_settings_days = self.ledger.under_other_settings(config_digest)
        input_days = self.input_days or (lambda day: [day] if self.needs_same_day else [])
        if not other_settings_days:
            return {}
        other_days = {
            day: [input_day for input_day in input_days(day) if input_day in other_settings_days]
            for day in window
        }
        return {day: days for day, days in other_days.items() if days}


@dataclass(frozen=True)
class Input:
    """An input of an asset, not read yet: see `Publisher.publish`."""

    read_snapshot: Callable[[], Snapshot]


@dataclass(frozen=True)
class CommitNotes:
    """What an asset adds to the record of its commit.

    Attributes:
        final_days: days that only a person may rebuild from now on.
        revoked_days: by day without rows, the reason why it counts as never published from now on.
        details: what downstream tables need to know of the commit.
    """

    final_days: Collection[date] = ()
    revoked_days: Mapping[date, str] = field(default_factory=dict)
    details: CommitDetails = field(default_factory=CommitDetails)


@dataclass(frozen=True)
class ComputedDays:
    """The rows of some days, with expectations and figures.

    Attributes:
        frame: the rows, with the partition column.
        expectations: what each day must satisfy, according to its inputs.
        scattered: whether each day's rows are in many Spark partitions, as after a shuffle; they
            are then gathered, to write one file a day instead of one for each task and day.
        numbers: by day, figures for the UI besides those of the audit.
        commit_notes: returns additions to the commit, from the current table (None if it does not
            exist) and the verdicts of all days.
        fingerprints: by day, where the inputs turned out to be others than planned.
        made_under: by day, the digest of its settings, if not the current ones.
        provenance: by day, its code and inputs, if not those of this run.
        files: by day, data files that already hold the rows; other days are written.
    """

    frame: DataFrame
    expectations: Mapping[date, Expectation]
    scattered: bool = False
    numbers: Mapping[date, Mapping[str, Any]] = field(default_factory=dict)
    commit_notes: Callable[[Snapshot | None, Sequence[Verdict]], CommitNotes] | None = None
    fingerprints: Mapping[date, str] = field(default_factory=dict)
    made_under: Mapping[date, str] = field(default_factory=dict)
    provenance: Mapping[date, Provenance] = field(default_factory=dict)
    files: DataFiles = field(default_factory=dict)


#: Computes days; their rows stay cached until the context ends.
ComputeAlone = Callable[[Window], AbstractContextManager[ComputedDays]]


@dataclass(frozen=True)
class ComputePlan:
    """How to compute some days from the current inputs; nothing is computed yet.

    Attributes:
        fingerprints: by day, the input fingerprint, see `staleness.input_digest`.
        build: computes the days of a window, which may be fewer than planned.
        sources: the input tables.
        input_changes: by day, what changed in its input, if the asset knows more than `new input`.
        recommitted_days: days that the commit must cover although they have not changed.
        fingerprint_after: of a stateful table, returns the fingerprint of a day, given the content
            of the day before; None of other tables.
        compute_alone: computes days a second time for a comparison, and drops their rows; None if
            the table's days are not compared.
    """

    fingerprints: Mapping[date, str]
    build: Callable[[Window], ComputedDays]
    sources: Sequence[Snapshot] = ()
    input_changes: Mapping[date, str] = field(default_factory=dict)
    recommitted_days: Container[date] = ()
    fingerprint_after: Callable[[date, str], str] | None = None
    compute_alone: ComputeAlone | None = None


@dataclass(frozen=True)
class Candidate:
    """What an asset returns for publication.

    `plan` reads the current inputs and plans the days of a window.
    """

    table: Table
    plan: Callable[[Window], ComputePlan]


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
