"""What passes through a publication: tags of the run, days to compute, computed days, results.

An asset gets inputs and proposes rows of days; nothing is read or computed here.
"""

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

#: A run with this tag set to `true` computes and writes all its days, whatever is published.
REWRITE_TAG = "backfill_assets/rewrite"
#: How a run writes: `overwrite` replaces whole days, `merge` changes their rows by the natural key
#: in the tables that allow it.
WRITE_MODE_TAG = "backfill_assets/write_mode"
#: What a person agrees to: names of replaced files as `arrival_date=YYYY-MM-DD/name`, `rows`,
#: `rejected`, with commas between them; see `assets.landed`.
ACCEPT_TAG = "backfill_assets/accept"
#: A run with this tag set to `true` closes its arrival days that have no folder.
CLOSE_TAG = "backfill_assets/close"
#: A run with this tag set to `none` calls no service: there are the answers that are kept, and no
#: others.
CALLS_TAG = "backfill_assets/calls"
#: Why a run was launched, for the record of its commits.
REASON_TAG = "backfill_assets/reason"
#: The code and the configuration that a backfill was planned with, see `format_code_pin`.
CODE_TAG = "backfill_assets/code"
#: In the environment of a run of `backfill-assets night --run`: Dagster's command takes no tags.
NIGHT_VARIABLE = "_BACKFILL_ASSETS_NIGHT"
#: Who launched such a run: no person, so it writes no day on hold and may use all of a quota.
NIGHT = "command night"


def launched_by(tags: Mapping[str, str]) -> str:
    """Who launched a run, from its tags.

    One that a person launches again has the tags of the first, unlike one that Dagster retries.
    """
    if "dagster/parent_run_id" in tags and "dagster/retry_number" not in tags:
        return PERSON
    for kind in ("schedule", "sensor"):
        if name := tags.get(f"dagster/{kind}_name"):
            return f"{kind} {name}"
    return NIGHT if NIGHT_VARIABLE in os.environ else PERSON


def format_code_pin(code_version: str, config_digest: str) -> str:
    """Code and configuration as a tag spells them."""
    return f"{code_version}/{config_digest}"


def is_merge_run(tags: Mapping[str, str]) -> bool:
    """Whether a run asks for merges."""
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
        ledger: what its log says, as of the version that the rows are read at.
        by_day: whether a day that is made of it needs the same day of it.
        read: reads the rows of some days; of all, if none are given.
        input_days: which days of it a day is made of; of those that are not published, nothing is
            read. Just the same day, if not given and it is needed.
        required_days_of: the days of it without which a day cannot be made; the same day, if not
            given.
    """

    ledger: Ledger
    by_day: bool
    read: Callable[[Collection[date] | None], DataFrame]
    input_days: Callable[[date], Iterable[date]] | None = None
    required_days_of: Callable[[date], Sequence[date]] | None = None

    @property
    def table(self) -> Table:
        """The table it comes from."""
        return self.ledger.table

    @property
    def all_rows(self) -> DataFrame:
        """The rows of all days."""
        return self.read(None)

    def read_days(self, days: Iterable[date]) -> DataFrame:
        """The rows of some days."""
        return self.read(frozenset(days))

    def with_reach(
        self,
        input_days: Callable[[date], Iterable[date]],
        required_days_of: Callable[[date], Sequence[date]] | None = None,
    ) -> Snapshot:
        """The same, for days that are made of these days of it, and need some of them."""
        return replace(self, input_days=input_days, required_days_of=required_days_of)

    def required_days(self, day: date) -> Sequence[date]:
        """The days of it without which a day cannot be made."""
        if not self.by_day:
            return []
        return self.required_days_of(day) if self.required_days_of else [day]

    def days_with_other_settings(
        self, window: Window, config_digest: str
    ) -> dict[date, list[date]]:
        """By day of a window, the days that it is made of and that other settings made.

        Args:
            window: the days to be made.
            config_digest: of the settings that decide this table now.
        """
        other_settings_days = self.ledger.under_other_settings(config_digest)
        input_days = self.input_days or (lambda day: [day] if self.by_day else [])
        if not other_settings_days:
            return {}
        other_days = {
            day: [input_day for input_day in input_days(day) if input_day in other_settings_days]
            for day in window
        }
        return {day: days for day, days in other_days.items() if days}


@dataclass(frozen=True)
class Input:
    """An input as an asset gets it: not yet read, see `Publisher.publish`.

    Attributes:
        read_snapshot: the table as of the moment that this is called.
    """

    read_snapshot: Callable[[], Snapshot]


@dataclass(frozen=True)
class CommitNotes:
    """What an asset adds to the record of its commit.

    Attributes:
        final_days: days that only a person may rebuild from now on.
        revoked_days: days, by the reason, that are to count as never published; they have no rows.
        details: what the commit is to tell those who follow the table.
    """

    final_days: Collection[date] = ()
    revoked_days: Mapping[date, str] = field(default_factory=dict)
    details: CommitDetails = field(default_factory=CommitDetails)


@dataclass(frozen=True)
class ComputedDays:
    """The rows of some days, and what is known about them.

    Attributes:
        frame: the rows, with the partition column.
        expectations: what the inputs say about each day.
        scattered: whether each day's rows lie in many Spark partitions, as after a shuffle; they
            are then gathered, for a file a day rather than one for each task and day.
        numbers: figures for the UI by day, besides those of the audit.
        commit_notes: what the commit is to say of itself besides, given the table as it is (none
            while there is none) and the verdicts of all days.
        fingerprints: those of days that turned out to be made of something else than planned.
        made_under: digests of the settings that days were made under, where not under those of now.
        provenance: what days were made by and from, where not by this run.
        files: data files that hold the rows already, by day; of other days, they are written.
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


#: Computes days, and keeps their rows as long as they are looked at.
ComputeAlone = Callable[[Window], AbstractContextManager[ComputedDays]]


@dataclass(frozen=True)
class ComputePlan:
    """How some days are made from the inputs as they are now; nothing is computed yet.

    Attributes:
        fingerprints: the input fingerprint of each day, see `staleness.fingerprints`.
        build: computes the days of a window, which may be fewer than were planned.
        sources: the tables that it reads.
        input_changes: what is new in a day's input, where the asset can say more than `new input`.
        recommitted_days: days that the commit is to cover although nothing in them has changed.
        fingerprint_after: of a table that carries state, the fingerprint of a day if the day before
            holds this content; none of other tables.
        compute_alone: computes days beside those that were built last, to be compared with them,
            and forgets them; none of a table whose days are not to be.
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
    """What an asset proposes for publication.

    Attributes:
        table: the table it is meant for.
        plan: looks at the inputs as of now and plans the days of a window.
    """

    table: Table
    plan: Callable[[Window], ComputePlan]


class Outcome(enum.Enum):
    """What a run made of a day."""

    WRITTEN = "written"
    #: Computed anew, with the rows that are published already: no file was written.
    UNCHANGED = "unchanged"
    #: Made of what it was made of before, by the same code and configuration: not computed again.
    IDENTICAL = "identical"
    #: Taken back: it counts as never published.
    WITHDRAWN = "withdrawn"
    FAILED = "failed"


@dataclass(frozen=True)
class DayResult:
    """What a run made of one day.

    Attributes:
        outcome: what became of it.
        verdict: what the audit says of it, or said when it was published.
        version: the commit that speaks of the day; none if there is none.
        numbers: figures for the UI, besides those of the audit.
        inputs: the version of each table that it was computed from.
        reason: why it was computed, as `reason` says it; of an identical day, when it was
            published.
    """

    outcome: Outcome
    verdict: Verdict
    version: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def day(self) -> date:
        """The day."""
        return self.verdict.day
