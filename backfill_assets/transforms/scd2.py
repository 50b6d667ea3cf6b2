"""Slowly changing dimensions of type 2: the versions of each key, and how long each held.

A history is a table that carries state: a day of it has all changes that the log knew at its end,
each in its latest version. So the day before and the changes of a day suffice for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from backfill_assets.tables.derived import FOR_DAY
from backfill_assets.tables.rules import Forbidden, Rule, forbids

#: No column of a table has a name like these.
_FIRST, _LATEST, _NEXT, _CURRENT = "_first", "_of", "_next", "_current"


@dataclass(frozen=True)
class History:
    """The declaration of a history: `rules` are for its model, `checks` for its table.

    Besides the columns that are named here, the table has `valid_from` (since when the key was as
    the row says), `valid_to` (until when, exclusive; null while it is so; equal to `valid_from` if
    it never was), `is_current` (whether it is so still) and `logged_on` (the log day on which this
    version of the change came first).

    Attributes:
        day: the DATE column that the table is partitioned by: the log day at whose end this was
            known.
        key: what the history is of, such as a customer.
        change: identifies a change; its versions correct each other.
        known: since when a version of a change is known. Of the versions of a change the latest
            counts, of several the greatest by `valid_from`, key and values, in this order.
        values: the columns that a change sets. That a key was deleted is one of them.
    """

    day: str
    key: str
    change: str
    known: str
    values: Sequence[str]

    @property
    def rules(self) -> dict[str, Rule]:
        """What must hold of each row: for `rules` in the metadata of the model."""
        return {
            "ends_no_earlier": Rule(
                "valid_to IS NULL OR valid_to >= valid_from",
                "A version ends no earlier than it began.",
            ),
            "current_is_open": Rule(
                "is_current = (valid_to IS NULL)",
                "A version is current if it has not ended, and no other is.",
            ),
            "logged_by_its_day": Rule(
                f"logged_on <= {self.day}", "A day of the log knows nothing of later ones."
            ),
        }

    @property
    def checks(self) -> list[Forbidden]:
        """What must hold between the rows of a day: for `checks` of `table`."""
        return [
            forbids("overlap", self.overlaps, f"No two versions of one {self.key} overlap."),
            forbids("gap", self.gaps, f"Between two versions of one {self.key} there is no gap."),
            forbids(
                "one_current", self.without_one_current, f"Each {self.key} has one current version."
            ),
        ]

    def overlaps(self, rows: DataFrame) -> DataFrame:
        """Versions of a key that end after the next one begins."""
        begins = F.col(_NEXT) < F.col("valid_to")
        never_ends = F.col(_NEXT).isNotNull() & F.col("valid_to").isNull()
        return self._with_next(rows).where(begins | never_ends)

    def gaps(self, rows: DataFrame) -> DataFrame:
        """Versions of a key that end before the next one begins."""
        return self._with_next(rows).where(F.col(_NEXT) > F.col("valid_to"))

    def without_one_current(self, rows: DataFrame) -> DataFrame:
        """Versions of keys with no current version, or several."""
        current = F.sum(F.col("is_current").cast("int")).over(self._key_window())
        return rows.withColumn(_CURRENT, current).where(F.col(_CURRENT) != 1)

    def versions(self, changes: DataFrame, before: DataFrame) -> DataFrame:
        """The rows of some days: all changes that are known, in the order in which they hold.

        Args:
            changes: those that were logged, with `for_day`; columns `key`, `change`, `known`,
                `values`, `valid_from`, and `logged_on`, their log day. What else they have is left
                out.
            before: the table itself as of the day before the first, with `for_day`.
        """
        version = (self.known, "valid_from", self.key, *self.values)
        columns = (FOR_DAY, self.change, *version, "logged_on")
        all_changes = changes.select(*columns).unionByName(before.select(*columns))
        # A line that is sent again was known since it came first: the greatest of these is the
        # least.
        first = (-F.unix_date("logged_on")).alias(_FIRST)
        latest = all_changes.groupBy(F.col(FOR_DAY).alias(self.day), self.change).agg(
            F.max(F.struct(*version, first)).alias(_LATEST)
        )
        in_order = self._key_window().orderBy("valid_from", self.known, self.change)
        return (
            latest.select(self.day, self.change, f"{_LATEST}.*")
            .withColumn("logged_on", F.date_from_unix_date(-F.col(_FIRST)))
            .withColumn("valid_to", F.lead("valid_from").over(in_order))
            .withColumn("is_current", F.col("valid_to").isNull())
            .drop(_FIRST)
        )

    def _key_window(self) -> WindowSpec:
        return Window.partitionBy(self.day, self.key)

    def _with_next(self, rows: DataFrame) -> DataFrame:
        """The versions, each with when the one after it begins."""
        in_order = self._key_window().orderBy("valid_from", F.col("valid_to").asc_nulls_last())
        return rows.withColumn(_NEXT, F.lead("valid_from").over(in_order))
