"""The days of a table that carries state, each built upon the day before: what an undo reaches.

Pure functions over a ledger; `dependents` rests on them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from backfill_assets.backfills.footprints import CommitFilter, RowOrigins, is_commit_of
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, ExternalCommit


class StatefulChain:
    """The days of a table that carries state, each built upon the day before it."""

    def __init__(
        self,
        ledger: Ledger,
        origins: RowOrigins,
        name: str,
        is_direct: CommitFilter,
        is_downstream: CommitFilter,
        find_other_input: Callable[[CommitRecord | None, CommitRecord, date], object],
    ) -> None:
        """From the table's ledger.

        Args:
            ledger: the table's.
            origins: those of the ledger.
            name: the backfill that is undone.
            is_direct: what is undone of its own days.
            is_downstream: which days follow other inputs.
            find_other_input: whether others had a part in a day, given the commit before and its own.
        """
        self._commits = {commit.version: commit for commit in ledger.all_commits}
        self._origins = origins
        #: By version of a commit, the days of it that are undone.
        self._reverted: dict[int, set[date]] = {}
        #: By version of a commit, those of them that were built upon another such day.
        self.built_upon_reverted: dict[int, set[date]] = {}
        standing: dict[date, CommitRecord] = {}
        for record in ledger.records:
            reverted = self._reverted[record.version] = set()
            chained = self.built_upon_reverted[record.version] = set()
            for day in sorted(record.days):
                # What a person leaves out, and what is new since, stays. So does a day that others
                # had a part in. They are behind once the day before them is put back.
                recomputed = day in standing and not is_commit_of(record, name)
                if (
                    recomputed
                    and self._previous_day_reverted(record, day)
                    and not find_other_input(standing[day], record, day)
                ):
                    chained.add(day)
                if day in chained or is_direct(record, day) or is_downstream(record, day):
                    reverted.add(day)
            standing |= dict.fromkeys(record.days, record)
            for day in record.revoked_days:
                standing.pop(day, None)

    def _previous_day_reverted(self, record: CommitRecord, day: date) -> bool:
        """Whether the day before a day of a commit is undone, as the commit had it."""
        previous_day = day - DAY
        return previous_day in self._reverted.get(
            self._origins.origin_at(previous_day, record.version), ()
        )

    def changed_by_others(
        self, previous: CommitRecord, record: CommitRecord, day: date
    ) -> CommitRecord | ExternalCommit | None:
        """The commit of somebody else by which the day before a day is another than it was.

        Args:
            previous: the commit that spoke of the day before.
            record: a later one.
            day: the day.
        """
        previous_day = day - DAY
        previous_origin, current_origin = (
            self._origins.origin_at(previous_day, commit.version) for commit in (previous, record)
        )
        if previous_origin == current_origin or previous_day in self._reverted.get(
            current_origin, ()
        ):
            return None
        return self._commits.get(current_origin)
