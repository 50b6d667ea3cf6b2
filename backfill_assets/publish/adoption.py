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

from backfill_assets.calendar.partitions import spelled
from backfill_assets.delta.carried_records import carried_record
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import DataFiles, rows_in
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CANARY, Details, Provenance, verdict_of
from backfill_assets.delta.snapshots import files_as_of
from backfill_assets.engine.stores import open_store
from backfill_assets.publish.candidates import Done, Outcome
from backfill_assets.publish.reasons import by_reason

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
class Adopted:
    """Days of a fork that a table is to have.

    Attributes:
        url: where the fork lives.
        ledger: what its log says.
        days: the days, each on record there.
        since: the version that it was forked at: most of the files came later.
    """

    url: str
    ledger: Ledger
    days: Set[date]
    since: int

    @cached_property
    def files(self) -> DataFiles:
        """The data files of the days, as the log of the table is to name them.

        Raises:
            PublishError: somebody else wrote to the fork: its files are not those of its commits.
        """
        table, version = self.ledger.table, self.ledger.version or 0
        found = files_as_of(self.url, table, self.days, version, self.since)
        for day in self.days:
            rows, said = rows_in(found.get(day, ())), self.ledger.latest[day].days[day].rows
            if rows != said:
                raise PublishError(
                    f"{table.name} [{day}]: the files at {self.url} hold {rows} row(s), and the "
                    f"commit that wrote them says {said}. Nothing was published. Build the day "
                    "again."
                )
        return found

    def changed(self, days: Iterable[date], now: Ledger) -> list[date]:
        """Those of days that hold something else in a table, as of now."""
        return [day for day in days if now.content(day) != self.ledger.content(day)]

    def refuse_gone(self, url: str, days: Iterable[date]) -> None:
        """See that the data files of days are still there.

        Args:
            url: of the table that is to have them.
            days: the days.

        Raises:
            PublishError: they are not.
        """
        named = [(day, file.path) for day in days for file in self.files.get(day, ())]
        filesystem, root = open_store(url)
        infos = filesystem.get_file_info([f"{root}/{path}" for _, path in named])
        gone = {day for (day, _), info in zip(named, infos, strict=True) if not info.is_file}
        if gone:
            raise PublishError(
                f"{self.ledger.table.name} [{spelled(gone)}]: data files that {self.url} names are "
                "gone, as a VACUUM of the table by another writer takes them. These days were not "
                "published. Drop the target and build it again."
            )


def adopt(
    adopted: Adopted,
    writer: Writer,
    ledger: Callable[[], Ledger],
    record: Mapping[str, Any],
    origin: Callable[[Iterable[date]], Origin],
    refuse: Callable[[Ledger], None] = lambda _: None,
    kind: str = "",
) -> list[Done]:
    """Publish days of a fork in its table, or in another fork of it, in one commit.

    Args:
        adopted: the days.
        writer: commits to the table.
        ledger: what its log says, as of now.
        record: what the commit is to say of the run.
        origin: what days were made by and from, as the log of the table is to name it; as of now.
        refuse: is given the ledger on which the commit will rest, and may raise.
        kind: of the commit, see `Details`.

    Returns:
        What became of each day, in ascending order.

    Raises:
        PublishError: the commit failed, or others committed first each time.
    """
    days = sorted(adopted.days)
    for _ in range(_ATTEMPTS):
        now = ledger()
        refuse(now)
        changed = adopted.changed(days, now)
        adopted.refuse_gone(writer.files or writer.url, changed)
        made = origin(days)
        metadata = {**record, **_said(adopted.ledger, days, made, kind), "since": now.version}
        version = writer.commit(adopted.files, changed, metadata, now)
        if version is not None:
            inputs = {day: made.provenances[day].inputs for day in days}
            return [*_outcomes(adopted.ledger, days, version, changed, inputs)]
    raise PublishError(
        f"{writer.table.name} [{spelled(days)}]: other runs committed first {_ATTEMPTS} times in a "
        "row. The table is as they left it. Ask again."
    )


def adopted_before(ledger: Ledger, days: Iterable[date]) -> list[Done]:
    """What became of days that a table had adopted already, by what its log says.

    Args:
        ledger: that of the table.
        days: the days.
    """
    return [
        one
        for day in sorted(days)
        for record in [ledger.latest[day]]
        for one in _outcomes(ledger, [day], record.version, [day], {day: record.inputs})
    ]


def _said(ledger: Ledger, days: Sequence[date], origin: Origin, kind: str) -> dict[str, Any]:
    """What a commit is to say of days that it adopts."""
    records = {day: ledger.latest[day] for day in days}
    details = Details(
        kind=kind,
        late={d: r.details.late[d] for d, r in records.items() if d in r.details.late},
        spreads={d: r.details.spreads[d] for d, r in records.items() if d in r.details.spreads},
        on_hold={} if kind != CANARY else dict(origin.other_inputs),
    )
    published = {day: record.days[day] for day, record in records.items()}
    return {
        **carried_record(ledger, published, origin.provenances, details),
        "not_published": {},
        "because": by_reason({day: record.why(day) for day, record in records.items()}),
        "withdrawn": [],
    }


def _outcomes(
    ledger: Ledger,
    days: Sequence[date],
    version: int,
    changed: Collection[date],
    inputs: Mapping[date, Mapping[str, int]],
) -> Iterator[Done]:
    for day in days:
        record = ledger.latest[day]
        published = record.days[day]
        outcome = Outcome.WRITTEN if day in changed else Outcome.UNCHANGED
        verdict = verdict_of(ledger.table, day, published)
        yield Done(outcome, verdict, version, published.numbers, inputs[day], record.why(day))
