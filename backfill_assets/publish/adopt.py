"""Days that a fork of a table has, published in the table as they are: files and verdicts.

Nothing is computed, read or copied. The audit has seen the rows when the fork got them, and data
files do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import DataFiles, count_rows, files_as_of
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.migrate import build_carried_record
from backfill_assets.delta.records import CANARY, CommitDetails, Provenance, restore_verdict
from backfill_assets.publish.assess import days_by_reason
from backfill_assets.publish.types import DayResult, Outcome
from backfill_assets.spark.filesystems import open_store

#: Commits that rest on another state than that of now are tried again, as often.
_ATTEMPTS = 10


@dataclass(frozen=True)
class Origin:
    """What adopted days were made by and from, as the log of the table that takes them names it.

    Attributes:
        provenances: by day.
        other_inputs: the days whose inputs hold something else there than in the fork, each with
            the input fingerprint that it has there.
    """

    provenances: Mapping[date, Provenance]
    other_inputs: Mapping[date, str]


@dataclass(frozen=True)
class ClonedDays:
    """Days of a fork that a table is to have.

    Attributes:
        url: where the fork lives.
        ledger: what its log says.
        days: the days, each on record there.
        forked_at: the version that it was forked at: most of the files came later.
    """

    url: str
    ledger: Ledger
    days: Set[date]
    forked_at: int

    @cached_property
    def files(self) -> DataFiles:
        """The data files of the days, as the log of the table is to name them.

        Raises:
            PublishError: somebody else wrote to the fork: its files are not those of its commits.
        """
        table, version = self.ledger.table, self.ledger.version or 0
        files = files_as_of(self.url, table, self.days, version, self.forked_at)
        for day in self.days:
            rows, recorded_rows = (
                count_rows(files.get(day, ())),
                self.ledger.latest[day].days[day].rows,
            )
            if rows != recorded_rows:
                raise PublishError(
                    f"{table.name} [{day}]: the files at {self.url} hold {rows} row(s), and the "
                    f"commit that wrote them says {recorded_rows}. Nothing was published. Build "
                    "the day again."
                )
        return files

    def changed_days(self, days: Iterable[date], current: Ledger) -> list[date]:
        """Those of days that hold something else in a table, as of now."""
        return [day for day in days if current.content_key(day) != self.ledger.content_key(day)]

    def raise_if_files_missing(self, url: str, days: Iterable[date]) -> None:
        """See that the data files of days are still there.

        Args:
            url: of the table that is to have them.
            days: the days.

        Raises:
            PublishError: they are not.
        """
        day_paths = [(day, file.path) for day in days for file in self.files.get(day, ())]
        filesystem, root = open_store(url)
        infos = filesystem.get_file_info([f"{root}/{path}" for _, path in day_paths])
        missing_days = {
            day for (day, _), info in zip(day_paths, infos, strict=True) if not info.is_file
        }
        if missing_days:
            raise PublishError(
                f"{self.ledger.table.name} [{format_ranges(missing_days)}]: data files that "
                f"{self.url} names are gone, as a VACUUM of the table by another writer takes "
                "them. These days were not published. Drop the target and build it again."
            )


def adopt_files(
    cloned: ClonedDays,
    writer: Writer,
    read_ledger: Callable[[], Ledger],
    run_metadata: Mapping[str, Any],
    origin_of: Callable[[Iterable[date]], Origin],
    check_ledger: Callable[[Ledger], None] = lambda _: None,
    kind: str = "",
) -> list[DayResult]:
    """Publish days of a fork in its table, or in another fork of it, in one commit.

    Args:
        cloned: the days.
        writer: commits to the table.
        read_ledger: what its log says, as of now.
        run_metadata: what the commit is to say of the run.
        origin_of: what days were made by and from, as the log of the table is to name it; as of
            now.
        check_ledger: is given the ledger on which the commit will rest, and may raise.
        kind: of the commit, see `Details`.

    Returns:
        What became of each day, in ascending order.

    Raises:
        PublishError: the commit failed, or others committed first each time.
    """
    days = sorted(cloned.days)
    for _ in range(_ATTEMPTS):
        current_ledger = read_ledger()
        check_ledger(current_ledger)
        changed_days = cloned.changed_days(days, current_ledger)
        cloned.raise_if_files_missing(writer.files or writer.url, changed_days)
        origin = origin_of(days)
        metadata = {
            **run_metadata,
            **_adoption_metadata(cloned.ledger, days, origin, kind),
            "since": current_ledger.version,
        }
        version = writer.commit(cloned.files, changed_days, metadata, current_ledger)
        if version is not None:
            input_versions = {day: origin.provenances[day].inputs for day in days}
            return [*_day_results(cloned.ledger, days, version, changed_days, input_versions)]
    raise PublishError(
        f"{writer.table.name} [{format_ranges(days)}]: other runs committed first {_ATTEMPTS} "
        "times in a row. The table is as they left it. Ask again."
    )


def results_of_adopted(ledger: Ledger, days: Iterable[date]) -> list[DayResult]:
    """What became of days that a table had adopted already, by what its log says.

    Args:
        ledger: that of the table.
        days: the days.
    """
    return [
        result
        for day in sorted(days)
        for record in [ledger.latest[day]]
        for result in _day_results(ledger, [day], record.version, [day], {day: record.inputs})
    ]


def _adoption_metadata(
    ledger: Ledger, days: Sequence[date], origin: Origin, kind: str
) -> dict[str, Any]:
    """What a commit is to say of days that it adopts."""
    records = {day: ledger.latest[day] for day in days}
    details = CommitDetails(
        kind=kind,
        late={d: r.details.late[d] for d, r in records.items() if d in r.details.late},
        spreads={d: r.details.spreads[d] for d, r in records.items() if d in r.details.spreads},
        on_hold={} if kind != CANARY else dict(origin.other_inputs),
    )
    published = {day: record.days[day] for day, record in records.items()}
    return {
        **build_carried_record(ledger, published, origin.provenances, details),
        "not_published": {},
        "because": days_by_reason(
            {day: record.reason_for_day(day) for day, record in records.items()}
        ),
        "withdrawn": [],
    }


def _day_results(
    ledger: Ledger,
    days: Sequence[date],
    version: int,
    changed: Collection[date],
    inputs: Mapping[date, Mapping[str, int]],
) -> Iterator[DayResult]:
    for day in days:
        record = ledger.latest[day]
        published = record.days[day]
        outcome = Outcome.WRITTEN if day in changed else Outcome.UNCHANGED
        verdict = restore_verdict(ledger.table, day, published)
        yield DayResult(
            outcome, verdict, version, published.numbers, inputs[day], record.reason_for_day(day)
        )
