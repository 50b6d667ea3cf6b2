"""Days that a fork of a table has, published in the table as they are: files and verdicts.

Nothing is computed, read or copied. The audit has seen the rows when the fork got them, and data
files do not change.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import msgspec

from backfill_assets.calendar.partitions import packed, spelled
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import DataFiles, rows_in
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import Details, Record, as_written, verdict_of
from backfill_assets.delta.snapshots import files_as_of
from backfill_assets.engine.stores import open_store
from backfill_assets.publish.candidates import Done, Outcome
from backfill_assets.publish.reasons import by_reason

#: Commits that rest on another state than that of now are tried again, as often.
_ATTEMPTS = 10


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

    def together(self) -> Iterator[tuple[Record, list[date]]]:
        """The days that one commit can speak of: by the same code, under the same settings."""
        found: dict[str, list[date]] = defaultdict(list)
        for day in sorted(self.days):
            found[_by(self.ledger.latest[day])].append(day)
        for days in found.values():
            yield self.ledger.latest[days[-1]], days


def _by(record: Record) -> str:
    """What a commit says once of all of its days."""
    return json.dumps(
        [
            record.code,
            record.code_version,
            record.config_digest,
            record.git_commit,
            record.git_dirty,
            record.details.references,
        ],
        sort_keys=True,
    )


def adopt(
    adopted: Adopted,
    writer: Writer,
    ledger: Callable[[], Ledger],
    record: Mapping[str, Any],
    inputs: Callable[[Record], Mapping[str, int]],
    refuse: Callable[[Ledger], None] = lambda _: None,
    kind: str = "",
) -> list[Done]:
    """Publish days of a fork in its table, or in another fork of it; one commit for each code.

    Args:
        adopted: the days.
        writer: commits to the table.
        ledger: what its log says, as of now.
        record: what the commit is to say of the run.
        inputs: of a commit of the fork, the versions of its inputs as the commit is to name them.
        refuse: is given the ledger on which the commit will rest, and may raise.
        kind: of the commits, see `Details`.

    Returns:
        What became of each day, in ascending order.

    Raises:
        PublishError: the commit failed, or others committed first each time.
    """
    done: list[Done] = []
    for of, days in adopted.together():
        for _ in range(_ATTEMPTS):
            now = ledger()
            refuse(now)
            changed = adopted.changed(days, now)
            adopted.refuse_gone(writer.files or writer.url, changed)
            metadata = {
                **record,
                **_said(adopted.ledger, of, days, inputs(of), kind),
                "since": now.version,
            }
            version = writer.commit(adopted.files, changed, metadata, now)
            if version is not None:
                done += _outcomes(adopted.ledger, days, version, changed, metadata["inputs"])
                break
        else:
            raise PublishError(
                f"{writer.table.name} [{spelled(days)}]: other runs committed first {_ATTEMPTS} "
                "times in a row. The table is as they left it. Ask again."
            )
    return sorted(done, key=lambda one: one.day)


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
        for one in _outcomes(ledger, [day], record.version, [day], record.inputs)
    ]


def _said(
    ledger: Ledger, of: Record, days: Sequence[date], inputs: Mapping[str, int], kind: str
) -> dict[str, Any]:
    """What a commit is to say of days that it adopts."""
    records = {day: ledger.latest[day] for day in days}
    details = Details(
        kind=kind,
        references={**of.details.references},
        late={d: r.details.late[d] for d, r in records.items() if d in r.details.late},
        spreads={d: r.details.spreads[d] for d, r in records.items() if d in r.details.spreads},
    )
    return {
        "code_version": of.code_version,
        "release": of.release,
        "config_digest": of.config_digest,
        "git_commit": of.git_commit,
        "git_dirty": of.git_dirty,
        "inputs": inputs,
        "audit": {str(day): as_written(record.days[day]) for day, record in records.items()},
        "not_published": {},
        "because": by_reason({day: record.why(day) for day, record in records.items()}),
        "final": packed(day for day, record in records.items() if day in record.final),
        "withdrawn": [],
        "said": msgspec.to_builtins(details),
    }


def _outcomes(
    ledger: Ledger,
    days: Sequence[date],
    version: int,
    changed: Collection[date],
    inputs: Mapping[str, int],
) -> Iterator[Done]:
    for day in days:
        record = ledger.latest[day]
        published = record.days[day]
        outcome = Outcome.WRITTEN if day in changed else Outcome.UNCHANGED
        verdict = verdict_of(ledger.table, day, published)
        yield Done(outcome, verdict, version, published.numbers, inputs, record.why(day))
