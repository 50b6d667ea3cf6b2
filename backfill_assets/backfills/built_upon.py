"""The days of a table that carries state, each built upon the day before: what an undo reaches.

Pure functions over a ledger; `dependents` rests on them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from backfill_assets.backfills.footprints import Mine, Origins, belongs
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import ExternalCommit, Record


class Chain:
    """The days of a table that carries state, each built upon the day before it."""

    def __init__(
        self,
        ledger: Ledger,
        origins: Origins,
        name: str,
        direct: Mine,
        follows: Mine,
        mixed: Callable[[Record | None, Record, date], object],
    ) -> None:
        """From the table's ledger.

        Args:
            ledger: the table's.
            origins: those of the ledger.
            name: the backfill that is undone.
            direct: what is undone of its own days.
            follows: which days follow other inputs.
            mixed: whether others had a part in a day, given the commit before and its own.
        """
        self._commits = {commit.version: commit for commit in ledger.commits}
        self._origins = origins
        #: By version of a commit, the days of it that are undone.
        self._mine: dict[int, set[date]] = {}
        #: By version of a commit, those of them that were built upon another such day.
        self.upon: dict[int, set[date]] = {}
        stands: dict[date, Record] = {}
        for record in ledger.records:
            mine = self._mine[record.version] = set()
            upon = self.upon[record.version] = set()
            for day in sorted(record.days):
                # What a person leaves out, and what is new since, stays. So does a day that others
                # had a part in. They are behind once the day before them is put back.
                again = day in stands and not belongs(record, name)
                if again and self._built_upon(record, day) and not mixed(stands[day], record, day):
                    upon.add(day)
                if day in upon or direct(record, day) or follows(record, day):
                    mine.add(day)
            stands |= dict.fromkeys(record.days, record)
            for day in record.withdrawn:
                stands.pop(day, None)

    def _built_upon(self, record: Record, day: date) -> bool:
        """Whether the day before a day of a commit is undone, as the commit had it."""
        before = day - DAY
        return before in self._mine.get(self._origins.at(before, record.version), ())

    def by_others(
        self, previous: Record, record: Record, day: date
    ) -> Record | ExternalCommit | None:
        """The commit of somebody else by which the day before a day is another than it was.

        Args:
            previous: the commit that spoke of the day before.
            record: a later one.
            day: the day.
        """
        before = day - DAY
        then, now = (self._origins.at(before, of.version) for of in (previous, record))
        if then == now or before in self._mine.get(now, ()):
            return None
        return self._commits.get(now)
