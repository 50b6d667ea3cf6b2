"""Proof by re-running: days computed anew and compared with what is published; nothing is written.

What a day is computed from and how it is judged is the assets' and `publisher`'s part, as in any
run. Here is what it is compared with, and why it may differ.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import asdict, dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import groupby
from typing import Any, TypeVar

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import PrivateAttr
from rich.table import Table as Grid
from rich.text import Text

from backfill_assets.audit import Measured, RefusedError, Verdict, empty_day, judge, measure
from backfill_assets.calendars import days_asked
from backfill_assets.candidates import Candidate, Done, Plan
from backfill_assets.codes import Code
from backfill_assets.commits import gist
from backfill_assets.computing import compute
from backfill_assets.definitions import build_defs
from backfill_assets.io_manager import DeltaIOManager
from backfill_assets.ledgers import Ledger
from backfill_assets.logs import delta_log
from backfill_assets.partitions import DAY, Window, any_of, windows
from backfill_assets.reading import read_ledger, read_ledgers
from backfill_assets.records import Published, Record
from backfill_assets.refusals import lacking
from backfill_assets.retries import engine_lost
from backfill_assets.settings import Settings
from backfill_assets.spark import SPARK_ERRORS, Engine
from backfill_assets.stores import folder_of
from backfill_assets.tables import SchemaError, Table

_Found = TypeVar("_Found")

_UNEXPLAINED = (
    "nothing that it is made of has changed since: the files of an input were changed behind its "
    "log, or the computation is not deterministic"
)


class Outcome(Enum):
    """How a day that was computed anew compares with the published one."""

    MATCHES = "matches"
    DIFFERS = "differs"
    NOT_PUBLISHED = "not published"
    #: It is published, but what would be computed now does not pass the audit.
    WOULD_FAIL = "would fail"


@dataclass(frozen=True)
class Content:
    """What a day holds, in numbers; equal if the digests are.

    Attributes:
        rows: number of rows.
        totals: sums by column, as text; money exact.
        digest: of the rows.
    """

    rows: int = field(compare=False)
    totals: Mapping[str, str] = field(compare=False)
    digest: str

    @classmethod
    def of(cls, numbers: Measured | Published) -> Content:
        """The content that an audit measured, now or when the day was published."""
        totals = {name: str(total) for name, total in numbers.totals.items()}
        return cls(numbers.rows, totals, numbers.digest)

    def __str__(self) -> str:
        totals = [f"{name} {total}" for name, total in self.totals.items()]
        return ", ".join([f"{self.rows:,} rows", *totals])


@dataclass(frozen=True)
class Verified:
    """What was found of one day of a table.

    Attributes:
        table: the table's name.
        day: the day.
        outcome: how the day compares.
        why: what explains the outcome; of a day that matches, what has changed without changing it.
        published: what the record of the day's commit says; none if there is no record.
        held: what the data files hold; none if the day is not published or cannot be read.
        now: what was computed anew; none if it could not be computed.
    """

    table: str
    day: date
    outcome: Outcome
    why: str = ""
    published: Content | None = None
    held: Content | None = None
    now: Content | None = None

    def __str__(self) -> str:
        if self.outcome is not Outcome.DIFFERS:
            return self.why
        told = [f"published {self.published}"] if self.published else []
        if self.held and self.held != self.published:
            told.append(f"the files hold {self._beside(self.held)}")
        told.append(f"now {self._beside(self.now)}")
        return f"{'; '.join(told)}: {self.why}"

    def _beside(self, other: Content | None) -> str:
        """Another content than the published one, also where its numbers alone do not tell."""
        if other != self.published and str(other) == str(self.published):
            return "as many rows with the same totals, but other values"
        return str(other)


@dataclass(frozen=True)
class ReadTest:
    """How a table reads in an engine that is not Spark.

    Attributes:
        table: the table's name.
        version: the version that was opened; none while there is no table.
        problems: a sentence for each thing that is not as published.
    """

    table: str
    version: int | None
    problems: Sequence[str] = ()

    def __str__(self) -> str:
        head = f"{self.table}: read by another engine"
        if self.version is not None:
            head += f" at version {self.version}"
        return "\n  ".join([f"{head}: {'NOT ' * bool(self.problems)}as published", *self.problems])


def verify(
    settings: Settings,
    window: Window,
    tables: Sequence[str] = (),
    *,
    engine: Engine | None = None,
) -> list[Verified]:
    """Compute days anew by the assets themselves, and compare them with what is published.

    Every table is computed from the published versions of its inputs, raw from the landing, all
    as of one moment. So if every day matches in every table, and so do the log days beyond these
    that they are made of, by induction a rebuild of the whole chain from the landing would end in
    what is published. Days that are final are no exception: computed from the published log, they
    give the same rows on any later date.

    Nothing is written: no commit, no data file, no event in the deployment's Dagster instance.

    Args:
        settings: the deployment's settings.
        window: the days.
        tables: names of tables; all that there are, if none is given.
        engine: where the Spark session comes from; from the settings if not given.

    Returns:
        What was found, table by table as they are declared, days in ascending order.

    Raises:
        ValueError: days outside of the calendar, or no table at all.
        LandingError: the landing is not where the settings say.
        EngineError: no Spark session can be had.
    """
    days_asked(str(window), settings)
    ledgers = read_ledgers(settings)
    there = [name for name in ledgers if ledgers[name].version is not None]
    if not tables and not there:
        raise ValueError(f"nothing has been published at {settings.warehouse}")
    names = [name for name in ledgers if name in (tables or there)]
    defs = build_defs(settings, resources={"engine": engine} if engine else None)
    resources = dict(defs.resources or {})
    verifier = _Verifier.like(resources["io_manager"], ledgers)
    with dg.DagsterInstance.ephemeral() as instance:
        # Without the check on the states of the days: it is about what runs have published.
        for part in window.split(settings.partitions_per_run):
            dg.materialize(
                [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)],
                selection=names,
                instance=instance,
                # As it is: of a resource that is configurable, Dagster would make a copy.
                resources={
                    **resources,
                    "io_manager": dg.IOManagerDefinition.hardcoded_io_manager(verifier),
                },
                tags={
                    "dagster/asset_partition_range_start": str(part.start),
                    "dagster/asset_partition_range_end": str(part.end - DAY),
                },
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
    return sorted(verifier.found, key=lambda one: (names.index(one.table), one.day))


class _Verifier(DeltaIOManager):
    """Takes the days up to where they would be committed, and compares them instead."""

    _ledgers: dict[str, Ledger] = PrivateAttr(default_factory=dict)
    _found: list[Verified] = PrivateAttr(default_factory=list)

    @classmethod
    def like(cls, publisher: DeltaIOManager, ledgers: Mapping[str, Ledger]) -> _Verifier:
        """One for the same tables by the same code, which sees them as of these ledgers."""
        verifier = cls(**{name: getattr(publisher, name) for name in type(publisher).model_fields})
        verifier._ledgers.update(ledgers)
        return verifier

    @property
    def found(self) -> list[Verified]:
        """All that was compared so far."""
        return self._found

    def ledger(self, table: Table) -> Ledger:
        """What the table's log said when verification began."""
        return self._ledgers[table.name]

    def publish(
        self,
        candidate: Candidate,
        window: Window,
        record: Mapping[str, Any],
        *,
        rewrite: Container[date] = (),
        merge: bool = False,
    ) -> list[Done]:
        """Compute and audit all days, compare them, and publish none."""
        table, ledger = candidate.table, self.ledger(candidate.table)
        plan = candidate.plan(window)
        refused = lacking(plan.sources, window, self.config_of, self.failed(record["run_id"]))

        def anew(days: Sequence[date]) -> dict[date, Verdict]:
            wanted = {day: plan.made_of[day] for day in days}
            verdicts = compute(table, plan, wanted, ledger).verdicts
            return {day: verdicts[day] for day in days}

        def look(days: Sequence[date]) -> dict[date, Measured]:
            rows = self.source(ledger, by_day=False).whole
            found = measure(rows.where(any_of(windows(days), table.partition)), table)
            return {day: found.get(day, empty_day(table)) for day in days}

        now, broken = _each_day([day for day in window if day not in refused], anew)
        held, unreadable = _each_day([day for day in window if day in ledger.published], look)
        failed = judge(table, sorted(refused), {}, refused, {})
        broken |= {v.day: v.reasons for v in [*failed, *now.values()] if not v.passed}
        self._found += [
            compare(
                ledger,
                day,
                now=Content.of(now[day].measured) if day in now else None,
                failing=broken.get(day, ""),
                held=Content.of(held[day]) if day in held else None,
                unreadable=unreadable.get(day, ""),
                moved=self._moved(ledger, day, plan),
            )
            for day in window
        ]
        return []

    def _moved(self, ledger: Ledger, day: date, plan: Plan) -> list[str]:
        """What is no longer as it was when the day was published."""
        record = ledger.latest.get(day)
        if record is None:
            return []
        moved = []
        recipe = record.days[day].made_of
        if not recipe:
            moved.append("what it was made of is not on record")
        elif recipe != plan.made_of[day]:
            versions = {source.table.name: source.ledger.version for source in plan.sources}
            newer = [name for name, at in versions.items() if record.inputs.get(name) != at]
            what = ", ".join(newer) or "what it is made of" if plan.sources else "the landing"
            moved.append(f"{what} has changed since")
        if record.code_version != self.code_versions[ledger.table.name]:
            was = Code(record.code_version, record.git_commit, record.git_dirty)
            moved.append(f"it was computed by other code: {was}")
        if (under := record.made_under(day)) != self.config_digests[ledger.table.name]:
            moved.append(f"it was computed under another configuration: {under}")
        return moved


def _each_day(
    days: Sequence[date], look: Callable[[Sequence[date]], dict[date, _Found]]
) -> tuple[dict[date, _Found], dict[date, str]]:
    """What is found of each day, and why of those where nothing can be.

    Where Spark fails the days are looked at in halves, so that one bad file hides no other day.
    """
    if not days:
        return {}, {}
    try:
        return look(days), {}
    except (RefusedError, SchemaError, dg.Failure) as error:
        return {}, dict.fromkeys(days, str(error))
    except SPARK_ERRORS as error:
        if engine_lost(error):
            raise
        if len(days) == 1:
            return {}, {days[0]: gist(error)}
    half = len(days) // 2
    (found, failed), (more, too) = (_each_day(part, look) for part in (days[:half], days[half:]))
    return found | more, failed | too


def compare(
    ledger: Ledger,
    day: date,
    *,
    now: Content | None,
    failing: str,
    held: Content | None,
    unreadable: str,
    moved: Sequence[str],
) -> Verified:
    """How a day that was computed anew compares with the published one.

    Args:
        ledger: what the table's log says.
        day: the day.
        now: what was computed; none if it could not be.
        failing: why it would not be published now; empty if it would.
        held: what the data files hold; none if nothing is published or they cannot be read.
        unreadable: why the data files cannot be read; empty if they can.
        moved: what is no longer as it was when the day was published.
    """
    record = ledger.latest.get(day)
    published = Content.of(record.days[day]) if record else None
    others = f"its files cannot be read ({unreadable})" if unreadable else ""
    if held != published:
        others = others or _who_wrote(ledger, record, day)
    if day not in ledger.published:
        outcome = Outcome.NOT_PUBLISHED
        why = f"would fail now: {failing}" if failing else f"would be published now: {now}"
    elif failing:
        outcome, why = Outcome.WOULD_FAIL, "; ".join(filter(None, [failing, others]))
    elif held == published == now:
        outcome, why = Outcome.MATCHES, f"although {' and '.join(moved)}" if moved else ""
    else:
        outcome = Outcome.DIFFERS
        if now == published:
            said = ["computed anew it is as it was published"]
        else:
            said = [" and ".join(moved) or ("" if others else _UNEXPLAINED)]
        why = "; ".join(filter(None, [others, *said]))
    return Verified(ledger.table.name, day, outcome, why, published, held, now)


def _who_wrote(ledger: Ledger, record: Record | None, day: date) -> str:
    """Why the files of a day do not hold what its record says."""
    since = record.vouches(day) if record else -1
    theirs = [x for x in ledger.foreign if day in x.days and x.version > since]
    if theirs:
        last = theirs[-1]
        return f"another writer changed it in version {last.version} ({last.operation})"
    if record is None:
        return "its rows were written before any commit on record"
    if lacked := ledger.lacked(record):
        return f"version {record.version} is from before {', '.join(sorted(lacked))} was added"
    return f"its files are not what version {record.version} says: changed behind the log"


def read_test(settings: Settings, table: Table, days: Iterable[date]) -> ReadTest:
    """Read days as a consumer may: by delta-rs and Arrow, without a JVM.

    The table is opened at its published version, and of each day all columns are read. Rows, nulls
    and totals (money as exact decimals) must be what the record of the day's commit says. Only the
    files of these days are opened; a day without a record is left out.

    Args:
        settings: the deployment's settings.
        table: the table.
        days: the days.
    """
    url = settings.table(table.name)
    try:
        ledger = read_ledger(url, table)
        if ledger.version is None:
            return ReadTest(table.name, None, [f"there is no table at {url}"])
        log = delta_log(url, ledger.version).load()
        there = {field.name for field in log.schema().fields}
    except (DeltaError, OSError, ValueError) as error:
        return ReadTest(table.name, None, [f"it cannot be opened: {gist(error)}"])
    absent = table.columns.keys() - there
    if missing := sorted(absent - table.nullable.keys()):
        problems = [f"column {name} is missing" for name in missing]
    else:
        records = {day: ledger.latest[day] for day in days if day in ledger.latest}
        problems = [
            f"{table.name}[{day}]: {said}"
            for day, record in records.items()
            for said in _unlike(
                url, log, table, day, record.days[day], absent | ledger.lacked(record)
            )
        ]
    return ReadTest(table.name, ledger.version, problems)


def _unlike(
    url: str, log: DeltaTable, table: Table, day: date, said: Published, lacked: Collection[str]
) -> Iterator[str]:
    """What the rows of a day have otherwise than its record, which lacked some columns."""
    columns = [name for name in table.columns if name not in lacked]
    try:
        files = log.to_pyarrow_dataset(
            filesystem=folder_of(url),
            file_pruning_predicate=[(table.partition, "in", [day.isoformat()])],
        )
        rows = files.to_table(columns=columns)
    except (DeltaError, OSError, pa.ArrowException) as error:
        yield f"cannot be read: {gist(error)}"
        return
    if rows.num_rows != said.rows:
        yield f"{rows.num_rows} rows where {said.rows} were published"
    for name in columns:
        nulls, were = rows[name].null_count, said.nulls.get(name, 0)
        if nulls != were:
            yield f"{nulls} null(s) in {name} where {were} were published"
    for name, total in said.totals.items():
        found = pc.sum(rows[name]).as_py() or 0
        if Decimal(found) != Decimal(total):
            yield f"{name} adds up to {found} where {total} was published"


def good(found: Iterable[Verified], reads: Iterable[ReadTest]) -> bool:
    """Whether all days match, and other engines read what was published."""
    return all(one.outcome is Outcome.MATCHES for one in found) and not any(
        test.problems for test in reads
    )


def as_grid(found: Iterable[Verified]) -> Grid:
    """The days as a console table: those that match as ranges, the others one by one."""
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "days", "outcome"):
        grid.add_column(heading, no_wrap=True)
    grid.add_column("rows", justify="right", no_wrap=True)
    grid.add_column("what there is to say")
    for one, alike in groupby(found, _line):
        days = list(alike)
        rows = sum(day.published.rows for day in days if day.published)
        shown = Window(days[0].day, days[-1].day + DAY)
        cells = (one[0], str(shown), days[0].outcome.value, f"{rows:,}", str(days[0]))
        # As text: what a file is called must not be taken for markup.
        grid.add_row(*map(Text, cells))
    return grid


def _line(one: Verified) -> tuple[str, date | str]:
    """What days that share a line of the table have in common."""
    return one.table, f"matches {one.why}" if one.outcome is Outcome.MATCHES else one.day


def as_json(found: Iterable[Verified], reads: Iterable[ReadTest]) -> dict[str, Any]:
    """All that was found, for a program."""
    found, reads = list(found), list(reads)
    return {
        "good": good(found, reads),
        "days": [{**asdict(one), "outcome": one.outcome.value} for one in found],
        "reads": [asdict(test) for test in reads],
    }
