"""Publish days of a shallow clone in its table, by the clone's own files and verdicts.

Nothing is computed, read or copied: the audit has checked the rows when they were written to the
clone, and data files do not change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta import records
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import DataFiles, count_rows, files_as_of
from backfill_assets.delta.delta_rs import RACE_ATTEMPTS, race_attempts
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.migrate import build_carried_record
from backfill_assets.publish.publication import result_from_record
from backfill_assets.publish.types import DayResult, Outcome
from backfill_assets.spark.filesystems import open_store


@dataclass(frozen=True)
class Origin:
    """Provenance of adopted days, in the table versions of the receiving table's inputs.

    Attributes:
        provenances: by day.
        other_inputs: by day whose inputs differ from those of the clone, its input digest
            in the receiving table.
    """

    provenances: Mapping[date, records.Provenance]
    other_inputs: Mapping[date, str]


@dataclass(frozen=True)
class ClonedDays:
    """Days of a shallow clone that a table is to receive.

    Attributes:
        url: of the clone.
        ledger: of the clone.
        days: the days; the ledger has a record of each.
        cloned_at: the version of the clone's first commit; most files were added after it.
    """

    url: str
    ledger: Ledger
    days: Set[date]
    cloned_at: int

    @cached_property
    def files(self) -> DataFiles:
        """The data files of the days, with the paths that the receiving table's log needs.

        Raises:
            PublishError: another writer changed the clone: row counts of files and commits differ.
        """
        table, version = self.ledger.table, self.ledger.version or 0
        files = files_as_of(self.url, table, self.days, version, self.cloned_at)
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
        """Return the days whose content differs from the receiving table."""
        return [day for day in days if current.content_key(day) != self.ledger.content_key(day)]

    def raise_if_files_missing(self, url: str, days: Iterable[date]) -> None:
        """Check that the data files of these days still exist.

        `url` is that of the receiving table.

        Raises:
            PublishError: files are missing.
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
    """Publish days of a clone in its table, or in another clone of it, in one commit.

    Args:
        cloned: the days.
        writer: commits to the receiving table.
        read_ledger: reads the current ledger of the receiving table.
        run_metadata: the run's part of the commit metadata.
        origin_of: returns the provenance of days for the receiving table's log; called once for
            each attempt.
        check_ledger: called with the ledger that the commit is based on; may raise.
        kind: of the commit, see `CommitDetails`.

    Returns:
        The result of each day, in ascending order.

    Raises:
        PublishError: the commit failed, or other commits came first each time.
    """
    days = sorted(cloned.days)
    for _ in race_attempts():
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
            return [
                replace(
                    result_from_record(cloned.ledger, day),
                    outcome=Outcome.WRITTEN if day in changed_days else Outcome.UNCHANGED,
                    version=version,
                    inputs=origin.provenances[day].inputs,
                )
                for day in days
            ]
    raise PublishError(
        f"{writer.table.name} [{format_ranges(days)}]: other runs committed first {RACE_ATTEMPTS} "
        "times in a row. The table is as they left it. Ask again."
    )


def results_of_adopted(ledger: Ledger, days: Iterable[date]) -> list[DayResult]:
    """Return the results of days that the table has already adopted, from its ledger."""
    return [
        replace(result_from_record(ledger, day), outcome=Outcome.WRITTEN) for day in sorted(days)
    ]


def _adoption_metadata(
    ledger: Ledger, days: Sequence[date], origin: Origin, kind: str
) -> dict[str, Any]:
    """Return the commit metadata of adopted days: the clone's records with the given provenance.

    A canary puts the days on hold whose inputs differ from those of the clone.
    """
    record_by_day = {day: ledger.latest[day] for day in days}
    details = records.CommitDetails(
        kind=kind,
        late={d: r.details.late[d] for d, r in record_by_day.items() if d in r.details.late},
        spreads={
            d: r.details.spreads[d] for d, r in record_by_day.items() if d in r.details.spreads
        },
        on_hold={} if kind != records.CANARY else dict(origin.other_inputs),
    )
    published = {day: record.days[day] for day, record in record_by_day.items()}
    return {
        **build_carried_record(ledger, published, origin.provenances, details),
        "not_published": {},
        "reasons": records.days_by_reason(
            {day: record.reason_for_day(day) for day, record in record_by_day.items()}
        ),
        "withdrawn": [],
    }
