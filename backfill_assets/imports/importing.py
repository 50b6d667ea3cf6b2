"""Importing a table: what would land, with its duplicates; landing it; following it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.policy import Policy
from backfill_assets.engine.spark import Engine
from backfill_assets.engine.stores import on_s3
from backfill_assets.imports.files import arrival_day, chunks, clear, land, scratch_of
from backfill_assets.imports.lines import TOLD, Lines, counts_by_day, lines_of
from backfill_assets.imports.manifests import (
    How,
    Import,
    ImportRefusedError,
    Step,
    digest,
    keep,
    known,
    locked,
)
from backfill_assets.imports.old_tables import News, OldTable, open_table, place
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source

#: A chunk has so many rows, or one day.
ROWS_PER_CHUNK = 20_000_000


@dataclass(frozen=True)
class Work:
    """What an import reads and writes.

    Attributes:
        settings: the deployment's settings.
        spark: the session.
        source: what the rows become lines of.
        table: the folder or URL of the table.
        how: how its rows become lines; as before, where nothing is said.
        skip: versions of the table that are not followed.
        chunk_rows: so many rows land at a time.
    """

    settings: Settings
    spark: SparkSession
    source: Source
    table: str
    how: How = field(default_factory=How)
    skip: tuple[int, ...] = ()
    chunk_rows: int = ROWS_PER_CHUNK

    @property
    def policy(self) -> Policy:
        """The late-data policy of the source."""
        return self.source.policy(self.settings)

    def begun(self) -> tuple[OldTable, Import]:
        """The table, and how far its import has come.

        Raises:
            ImportRefusedError: it was begun in another way, or cannot be imported at all.
        """
        if self.source.hourly:
            raise ImportRefusedError(
                f"the source {self.source.name} lands by the hour, and an import lands by day. "
                "Nothing was written. Declare the source without `hourly`."
            )
        url = place(self.table)
        old = open_table(url)
        one = known(self.settings, self.source.name).get(url)
        if one is None:
            one = Import(self.source.name, url, old.kind, old.table_id, self.how)
        how = How(
            self.how.fields or one.how.fields,
            self.how.arrived or one.how.arrived,
            self.how.stray or one.how.stray,
        )
        if (how.fields, how.arrived) != (one.how.fields, one.how.arrived):
            raise ImportRefusedError(
                f"{url} is imported into {self.source.name} already, with other expressions: "
                f"{_spelled(one.how)}. Nothing was written. Leave --field and --arrived out to "
                "follow the table as before."
            )
        skipped = sorted({*one.skipped, *self.skip})
        return old, msgspec.structs.replace(one, how=how, skipped=skipped)

    def lines(self, old: OldTable, news: News, how: How, scratch: str) -> Lines:
        """Rows of the table as lines."""
        rows = old.rows(self.spark, news, scratch)
        return lines_of(rows, self.source, how, self.settings.timezone)

    @contextmanager
    def scratch(self, name: str) -> Iterator[str]:
        """A folder beside the arrival days, which is removed."""
        folder = scratch_of(self.settings.landing, self.source, name)
        try:
            yield folder
        finally:
            clear(folder)


def _spelled(how: How) -> str:
    said = [f"--field {name}={text!r}" for name, text in sorted(how.fields.items())]
    return " ".join([*said, *([f"--arrived {how.arrived!r}"] if how.arrived else [])]) or "none"


def spark_for(settings: Settings, tables: Iterable[str]) -> SparkSession:
    """The session that reads the tables.

    Raises:
        ImportRefusedError: a table lies on S3, and nothing else of the deployment does.
    """
    engine = Engine.of(settings)
    if not engine.uses_s3 and any(map(on_s3, tables)):
        raise ImportRefusedError(
            "the table lies on S3, and neither landing nor warehouse do, so the engine has no way "
            "there. Nothing was written. Put the landing there, or copy the table."
        )
    return engine.spark_session


@dataclass(frozen=True)
class Kinds:
    """How many rows of an arrival day are of which kind.

    Attributes:
        rows: all.
        repeated: rows that are equal to another one in all fields of the source, but for the first.
        no_key: without a key; they are rejected.
        late: that came after the window of their day; they count as corrections.
        ahead: whose version time lies beyond the day after; they are rejected.
    """

    rows: int = 0
    repeated: int = 0
    no_key: int = 0
    late: int = 0
    ahead: int = 0

    def __add__(self, other: Kinds) -> Kinds:
        return Kinds(*(a + b for a, b in zip(_fields(self), _fields(other), strict=True)))


def _fields(of: Kinds) -> tuple[int, ...]:
    return of.rows, of.repeated, of.no_key, of.late, of.ahead


@dataclass(frozen=True)
class Proposal:
    """What an import would land now.

    Attributes:
        of: the import as it is.
        news: what is read.
        by_day: by the arrival day that rows tell, in ascending order.
        stray: rows that tell no day of the calendar.
        keys: how many different keys there are.
        versions: how many different rows have a key.
        most: how often the row that is repeated most is there.
        absent: fields that the table does not have.
        unused: columns of the table that no field takes.
        chunks: the days of each chunk.
    """

    of: Import
    news: News
    by_day: Mapping[date, Kinds]
    stray: Kinds
    keys: int
    versions: int
    most: int
    absent: list[str]
    unused: list[str]
    chunks: list[list[date]]

    @property
    def total(self) -> Kinds:
        """All rows."""
        return sum(self.by_day.values(), self.stray)


def propose(work: Work) -> Proposal:
    """What an import would land; nothing is written that stays.

    Raises:
        ImportRefusedError: the table cannot be imported.
    """
    old, one = work.begun()
    if step := one.unfinished:
        raise ImportRefusedError(
            f"an import of {one.table} was ended before its end: {sum(step.landed.values()):,} of "
            f"{step.count:,} rows have landed. Import again to land the others."
        )
    news = old.news(one)
    with work.scratch(f"plan-{uuid4().hex}") as scratch:
        if news.is_empty:
            return Proposal(one, news, {}, Kinds(), 0, 0, 0, [], [], [])
        lines = work.lines(old, news, one.how, scratch)
        by_day, stray = _kinds(lines.rows, work)
        keys, versions, most = _keys(lines.rows, work.source)
        landing = _landing(by_day, stray, one.how.stray)
        return Proposal(
            one,
            news,
            by_day,
            stray,
            keys,
            versions,
            most,
            lines.absent,
            lines.unused,
            list(chunks(landing, work.chunk_rows)),
        )


def _kinds(rows: DataFrame, work: Work, *, repeats: bool = True) -> tuple[dict[date, Kinds], Kinds]:
    """How many rows there are by arrival day, and how many tell none of the calendar."""
    policy = work.policy
    repeated: dict[date | None, int] = {}
    if repeats:
        same = rows.groupBy(TOLD, *work.source.fields).agg((F.count(F.lit(1)) - 1).alias("more"))
        repeated = dict(same.groupBy(TOLD).agg(F.sum("more")).toLocalIterator())
    by_day, stray = dict[date, Kinds](), Kinds()
    counted = counts_by_day(rows, work.source, policy, work.settings.timezone)
    for told, count, *others in counted.orderBy(TOLD).toLocalIterator():
        kinds = Kinds(count, repeated.get(told, 0), *others)
        on_calendar = told is not None and policy.start <= told
        if on_calendar and (policy.end is None or told < policy.end):
            by_day[told] = kinds
        else:
            stray += kinds
    return by_day, stray


def _keys(rows: DataFrame, source: Source) -> tuple[int, int, int]:
    """How many keys there are, how many different rows of them, and the most that are the same."""
    different = rows.groupBy(*source.fields).agg(F.count(F.lit(1)).alias("same"))
    by_key = different.groupBy(*source.key).agg(
        F.count(F.lit(1)).alias("versions"), F.max("same").alias("same")
    )
    for name in source.key:
        by_key = by_key.where(F.col(name).isNotNull())
    found = by_key.agg(F.count(F.lit(1)), F.sum("versions"), F.max("same")).first()
    assert found is not None
    keys, versions, most = (int(number or 0) for number in found)
    return keys, versions, most


def _landing(by_day: Mapping[date, Kinds], stray: Kinds, to: date | None) -> dict[date, int]:
    """Number of rows by the folder that they land in."""
    rows = {day: kinds.rows for day, kinds in by_day.items()}
    if stray.rows and to is not None:
        rows[to] = rows.get(to, 0) + stray.rows
    return rows


def bring(work: Work, note: Callable[[str], None] = lambda _: None) -> Import:
    """Land what the table holds and what has not landed.

    What is to land is written down first. An import that was killed goes on with the same rows.

    Args:
        work: what is asked for.
        note: prints progress.

    Raises:
        ImportRefusedError: the table cannot be imported, or followed, or another process does so.
    """
    with locked(work.settings, work.source.name, place(work.table)):
        return _bring(work, note)


def _bring(work: Work, note: Callable[[str], None]) -> Import:
    old, one = work.begun()
    if step := one.unfinished:
        note(f"going on with {step.name}, which was not ended")
        one = _land(work, old, one, step, note)
    news = old.news(one)
    if news.is_empty:
        if news.version == one.version:
            return one
        return keep(work.settings, msgspec.structs.replace(one, version=news.version))
    name = f"import-{_digest(one, news)}"
    with work.scratch(name) as scratch:
        lines = work.lines(old, news, one.how, scratch)
        by_day, stray = _kinds(lines.rows, work, repeats=False)
        _refuse_stray(work, one, stray)
        rows = _landing(by_day, stray, one.how.stray)
    step = Step(name, news.since, news.version, rows, read=news.read, skipped=one.skipped)
    return _land(work, old, keep(work.settings, one.with_step(step)), step, note)


def _digest(one: Import, news: News) -> str:
    files = [f"{file.path} {file.size} {file.mtime}" for file in news.read]
    how = msgspec.json.encode(one.how, order="sorted").decode()
    return digest(one.table, one.table_id, f"{news.since}...{news.version}", how, *files)


def _refuse_stray(work: Work, one: Import, stray: Kinds) -> None:
    if stray.rows and one.how.stray is None:
        policy = work.policy
        until = f" to {policy.end}" if policy.end else ""
        raise ImportRefusedError(
            f"{stray.rows:,} row(s) of {one.table} tell no day of the calendar ({policy.start}"
            f"{until}): their time is null, before the first day or after the last. Nothing was "
            "written. Set BACKFILL_ASSETS_START if the history begins earlier, or give an arrival "
            "day for them with --stray DAY: they are then rejected, or counted as lines of days "
            "before the first."
        )
    if (day := one.how.stray) and day not in work.policy.until(day):
        raise ImportRefusedError(
            f"--stray {day} is not on the calendar of {work.source.name}. Nothing was written. "
            "Give a day that is."
        )


def _land(
    work: Work, old: OldTable, one: Import, step: Step, note: Callable[[str], None]
) -> Import:
    """Land what has not landed of a step."""
    news = News(step.version, step.since, 0, step.read, skipped=step.skipped)
    landed = {date.fromisoformat(file[13:23]) for file in step.landed}
    left = {day: rows for day, rows in step.rows.items() if day not in landed}
    arrived = arrival_day(work.policy, one.how.stray)
    with work.scratch(step.name) as scratch:
        lines = work.lines(old, news, one.how, scratch) if left else None
        for days in chunks(left, work.chunk_rows):
            assert lines is not None
            files = land(lines.rows, work.source, step, days, arrived, work.settings.landing)
            step = msgspec.structs.replace(step, landed={**step.landed, **files})
            one = keep(work.settings, one.with_step(step))
            note(f"landed {days[0]}...{days[-1]}: {sum(files.values()):,} rows")
    return keep(work.settings, one.with_step(msgspec.structs.replace(step, done=True)))
