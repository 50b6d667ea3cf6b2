"""Windows of Delta tables: pruned reads, and the one write path (audit, then one commit).

Every row that reaches a table passes `DeltaIOManager.handle_output`. What a verdict means is
`audit`'s business; what a table looks like is `schemas`'.
"""

from __future__ import annotations

import enum
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from typing import Any

import dagster as dg
import msgspec
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent
from pydantic import PrivateAttr
from pyspark.sql import DataFrame

from backfill_assets import evolution
from backfill_assets.audit import (
    TRAILING_DAYS,
    Book,
    Measured,
    Verdict,
    judge,
    measure,
    refuse_strays,
)
from backfill_assets.catalog import declared
from backfill_assets.checks import day_metadata, evaluations
from backfill_assets.commits import PublishError, Writer
from backfill_assets.partitions import Days, Window, days_of_run, one_window, packed, spelled
from backfill_assets.records import Ledger, launched_by, published, read_ledger, verdict_of
from backfill_assets.settings import UNDO_DAYS
from backfill_assets.spark import Engine
from backfill_assets.tables import Table

_log = logging.getLogger(__name__)

_ATTEMPTS = 30
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
#: Why a run was launched, for the record of its commits.
REASON_TAG = "backfill_assets/reason"
#: The code and the configuration that a backfill was planned with, see `pinned`.
CODE_TAG = "backfill_assets/code"
#: Records fetched at once: SQLite takes no more than some hundred values in one condition.
_QUERY_SIZE = 500


@dataclass(frozen=True)
class Snapshot:
    """A table at one version.

    Attributes:
        ledger: what its log says, as of the version that the rows are read at.
        by_day: whether a day that is made of it needs the same day of it.
        read: reads the rows of all days.
        days_of: which days of it a day is made of; of those that are not published, nothing is
            read. Just the same day, if not given and it is needed.
    """

    ledger: Ledger
    by_day: bool
    read: Callable[[], DataFrame]
    days_of: Callable[[date], Iterable[date]] | None = None

    @property
    def table(self) -> Table:
        """The table it comes from."""
        return self.ledger.table

    @property
    def whole(self) -> DataFrame:
        """The rows of all days."""
        return self.read()

    def days(self, window: Window) -> DataFrame:
        """The rows of some days."""
        return self.whole.where(window.predicate(self.table.partition))

    def of(self, days_of: Callable[[date], Iterable[date]]) -> Snapshot:
        """The same, for days that are made of these days of it."""
        return replace(self, days_of=days_of)

    def unlike(self, window: Window, config_digest: str) -> dict[date, list[date]]:
        """By day of a window, the days that it is made of and that other settings made.

        Args:
            window: the days to be made.
            config_digest: of the settings that decide this table now.
        """
        others = self.ledger.under_other_settings(config_digest)
        days_of = self.days_of or (lambda day: [day] if self.by_day else [])
        if not others:
            return {}
        found = {day: [of for of in days_of(day) if of in others] for day in window}
        return {day: of for day, of in found.items() if of}


@dataclass(frozen=True)
class Input:
    """An input as an asset gets it: not yet read, see `DeltaIOManager.publish`.

    Attributes:
        now: the table as of the moment that this is called.
    """

    now: Callable[[], Snapshot]


@dataclass(frozen=True)
class Remarks:
    """What an asset adds to the record of its commit.

    Attributes:
        final: days that only a person may rebuild from now on.
        withdrawn: days, by the reason, that are to count as never published; they have no rows.
        said: by name, anything that JSON can hold.
    """

    final: Collection[date] = ()
    withdrawn: Mapping[date, str] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """The rows of some days, and what is known about them.

    Attributes:
        frame: the rows, with the partition column.
        books: what the inputs say about each day.
        scattered: whether each day's rows lie in many Spark partitions, as after a shuffle; they
            are then gathered, for a file a day rather than one for each task and day.
        numbers: figures for the UI by day, besides those of the audit.
        remarks: what the commit is to say of itself besides, given the table as it is (none while
            there is none) and the verdicts of all days.
        made_of: the recipes of days that turned out to be made of something else than planned.
        made_under: digests of the settings that days were made under, where not under those of now.
    """

    frame: DataFrame
    books: Mapping[date, Book]
    scattered: bool = False
    numbers: Mapping[date, Mapping[str, Any]] = field(default_factory=dict)
    remarks: Callable[[Snapshot | None, Sequence[Verdict]], Remarks] | None = None
    made_of: Mapping[date, str] = field(default_factory=dict)
    made_under: Mapping[date, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How some days are made from the inputs as they are now; nothing is computed yet.

    Attributes:
        made_of: the recipe of each day, as `recipes` says it.
        build: computes the days of a window, which may be fewer than were planned.
        sources: the tables that it reads.
        news: what is new in a day's input, where the asset can say more than `new input`.
    """

    made_of: Mapping[date, str]
    build: Callable[[Window], Built]
    sources: Sequence[Snapshot] = ()
    news: Mapping[date, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """What an asset proposes for publication.

    Attributes:
        table: the table it is meant for.
        plan: looks at the inputs as of now and plans the days of a window.
    """

    table: Table
    plan: Callable[[Window], Plan]


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
class Done:
    """What a run made of one day.

    Attributes:
        outcome: what became of it.
        verdict: what the audit says of it, or said when it was published.
        version: the commit that speaks of the day; none if there is none.
        numbers: figures for the UI, besides those of the audit.
        inputs: the version of each table that it was computed from.
        why: why it was computed, as `why` says it; of an identical day, when it was published.
    """

    outcome: Outcome
    verdict: Verdict
    version: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    why: str = ""

    @property
    def day(self) -> date:
        """The day."""
        return self.verdict.day


class DeltaIOManager(dg.ConfigurableIOManager):
    """Reads and replaces whole days of the Delta tables under one warehouse.

    Attributes:
        engine: where the Spark session comes from.
        warehouse: each table lives at `<warehouse>/<asset name>`.
        code_version: of the code that computes the tables, to which a backfill is pinned.
        code_versions: the same by table, of the code that makes it, for the commit's record.
        config_digest: of all settings that decide what is in them, to which a backfill is pinned.
        config_digests: the same by table, each of those that decide it, for the commit's record.
        tables: where the tables are declared, see `catalog.declared`.
        git_commit: of that code; empty if unknown.
        git_dirty: whether the code differs from that commit; none if unknown.
        undo_days: for how many days a table that is created keeps the files that were replaced.
    """

    engine: Engine
    warehouse: str
    code_version: str
    code_versions: dict[str, str]
    config_digest: str
    config_digests: dict[str, str]
    tables: str
    git_commit: str = ""
    git_dirty: bool | None = None
    undo_days: int = UNDO_DAYS
    _failed: dict[tuple[str, str], dict[date, str]] = PrivateAttr(default_factory=dict)

    def load_input(self, context: dg.InputContext) -> Input:
        """The input, to be read after the ledger of the table that is made of it."""
        table = declared(self.tables)[context.asset_key.path[-1]]
        by_day = bool(context.asset_partition_keys)
        return Input(lambda: self.source(self.ledger(table), by_day))

    # Dagster takes a generator as well, though its base class says None.
    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Candidate
    ) -> Iterator[DagsterEvent]:
        """Publish what has changed, and tell Dagster of every day.

        Raises:
            SchemaError: a column is missing or of another type, in the frame or in the table.
            RefusedError: rows outside the run's days, rows without a day, or none where some are
                due.
            NotContiguousError: the run's days have a gap.
            PublishError: the commit failed.
        """
        if not isinstance(obj, Candidate):
            raise TypeError(
                f"{context.asset_key}: an asset hands over a Candidate, not {type(obj)}"
            )
        window = one_window(context.asset_partition_keys)
        step = context.step_context
        run = step.dagster_run
        record = self.record(obj.table, run.run_id, run.tags)
        now = pinned(self.code_version, self.config_digest)
        if (then := run.tags.get(CODE_TAG, now)) != now:
            raise PublishError(
                f"{obj.table.name} [{window}]: the backfill was planned with code and "
                f"configuration {then}, and this run has {now}. Nothing was written. Put back what "
                "was deployed and launch the backfill again, or make a new plan."
            )
        rewrite = window if run.tags.get(REWRITE_TAG, "").lower() == "true" else ()
        merge = _merges(run.tags)
        done = self.publish(obj, window, record, rewrite=rewrite, merge=merge)
        self._failed[run.run_id, obj.table.name] = {
            d.day: d.verdict.reasons for d in done if d.outcome is Outcome.FAILED
        }
        said = Counter(d.outcome.value for d in done)
        context.log.info(
            f"{obj.table.name} [{window}]: "
            + ", ".join(f"{n} day{'s' * (n != 1)} {outcome}" for outcome, n in said.items())
        )
        for event in self.told(step.instance, run.tags, obj.table, done):
            if isinstance(event, dg.AssetMaterialization):
                yield DagsterEvent.asset_materialization(step, event)
            elif isinstance(event, dg.AssetObservation):
                yield DagsterEvent.asset_observation(step, event)
            else:
                yield DagsterEvent.asset_check_evaluation(step, event)

    def record(self, table: Table, run_id: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """What a commit says of the run that makes it: who, why, and by which code."""
        return {
            "run_id": run_id,
            "backfill_id": tags.get("dagster/backfill"),
            "launched_by": launched_by(tags),
            "reason": tags.get(REASON_TAG, ""),
            "asset": table.name,
            "code_version": self.code_of(table),
            "release": self.code_version,
            "config_digest": self.config_of(table),
            "git_commit": self.git_commit,
            "git_dirty": self.git_dirty,
        }

    def told(
        self,
        instance: dg.DagsterInstance,
        tags: Mapping[str, str],
        table: Table,
        done: Sequence[Done],
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]:
        """What Dagster is to be told of the days; each event must be stored before the next.

        Args:
            instance: where it is told.
            tags: those of the run.
            table: the table.
            done: what the run made of the days.
        """
        known = _told(instance, table, done)
        # The daemon waits for a materialization of every day that it asked for.
        asked = "dagster/backfill" in tags
        told = []
        for one in done:
            if one.outcome in (Outcome.FAILED, Outcome.WITHDRAWN):
                told.append(one)
            elif asked or one.outcome is not Outcome.IDENTICAL or one.day not in known:
                yield self._materialization(table, one)
                told.append(one)
            else:
                yield dg.AssetObservation(
                    table.name, partition=str(one.day), metadata=_outcome_metadata(one)
                )
        # Afterwards, as an evaluation names the materialization that it speaks of.
        latest = latest_materializations(instance, table.name, [d.day for d in told])
        for one in told:
            record = latest.get(one.day)
            target = record and AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
            taken_back = one.outcome is Outcome.WITHDRAWN
            yield from evaluations(table, one.verdict, target, blocks=not taken_back)

    def failed(self, run_id: str) -> dict[str, dict[date, str]]:
        """The days that a run of this process did not publish, with the reasons.

        By table, for all tables that it has computed so far.
        """
        return {name: dict(days) for (run, name), days in self._failed.items() if run == run_id}

    def publish(
        self,
        candidate: Candidate,
        window: Window,
        record: Mapping[str, Any],
        *,
        rewrite: Container[date] = (),
        merge: bool = False,
    ) -> list[Done]:
        """Compute what is not published as it is, audit it, and commit what has changed.

        The order of things is what keeps older input from overwriting newer, however many runs meet
        on a day: first the table's ledger is read, then the inputs, and the commit comes about only
        if no other of ours did meanwhile. So whatever is published was made of what is read here,
        or of something older. A run that comes second starts over with the ledger as it is then.

        Args:
            candidate: what the asset proposes.
            window: the run's days.
            record: what the commit is to say of the run.
            rewrite: days to compute and write even if nothing has changed.
            merge: whether to change rows by their natural key rather than replace the days, if
                the table allows it. The outcome is the same: a day with rows that a merge would
                leave behind fails.

        Returns:
            What became of each day, in ascending order.

        Raises:
            PublishError: the commit failed, or the backfill was begun by other code.
            SchemaError: the table, or one that it is made from, is not the one of its model.
        """
        table, merge = candidate.table, merge and candidate.table.merges
        audited: _Audited | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            ledger = self.ledger(table)
            plan = candidate.plan(window)
            evolution.refuse(ledger, self.url(table), [s.table.name for s in plan.sources])
            for source in plan.sources:
                evolution.refuse(source.ledger, self.url(source.table))
            sources = [source.ledger for source in plan.sources]
            _refuse_other_code([ledger, *sources], window, record, self.config_of)
            lacking = self._lacking(plan.sources, window, record["run_id"])
            by = (record["code_version"], record["config_digest"])
            reasons = _reasons(ledger, plan, *by, rewrite)
            todo = [day for day in reasons if day not in lacking]
            kept = [day for day in plan.made_of if day not in reasons and day not in lacking]
            done = [_as_published(ledger, day) for day in kept]
            failed = judge(table, sorted(lacking), {}, lacking, {})
            done += [Done(Outcome.FAILED, verdict) for verdict in failed]
            if todo:
                wanted = {day: plan.made_of[day] for day in todo}
                # What a merge would leave depends on the table as well.
                if audited is None or merge or not audited.covers(wanted):
                    audited = self._audited(table, plan, wanted, ledger, merge)
                because = {day: reasons[day] for day in todo}
                written = self._publish(table, audited, because, ledger, plan, record, rewrite)
                if written is None:
                    _log.info("%s [%s]: another run was first, looking again", table.name, window)
                    # Two that collided once must not collide for ever.
                    time.sleep(random.uniform(0.1, 0.5) * min(attempt, 4))
                    continue
                done += written
            return sorted(done, key=lambda one: one.day)
        raise PublishError(
            f"{table.name} [{window}]: other runs committed first {_ATTEMPTS} times in a row. The "
            "table is as they left it. Launch these days again."
        )

    def _lacking(
        self, sources: Sequence[Snapshot], window: Window, run_id: str
    ) -> dict[date, Book]:
        """The days that an input has not, or not as the settings of now make it; with the reason.

        Such a day has no rows to read, but that does not make it an empty day; and one that has
        just failed upstream must not be built from what was there before. What was made under
        other settings would count an order twice, or not at all.
        """
        found: dict[date, Book] = {}
        for source in sources:
            digest = self.config_of(source.table)
            for day, unlike in source.unlike(window, digest).items():
                said = (
                    f"{source.table.name}[{spelled(unlike)}] was made under other settings; "
                    "rebuild these days first"
                )
                found.setdefault(day, Book(problems=[said]))
            if not source.by_day:
                continue
            just_failed = self._failed.get((run_id, source.table.name), {})
            for day in window:
                name = f"{source.table.name}[{day}]"
                if day in just_failed:
                    found[day] = Book(problems=[f"{name} failed in this run"])
                elif day not in source.ledger.published:
                    found[day] = Book(problems=[f"{name} has never been published"])
        return found

    def _audited(
        self, table: Table, plan: Plan, wanted: Mapping[date, str], ledger: Ledger, merge: bool
    ) -> _Audited:
        """The days computed and judged; those between them are not."""
        days = Days.of(wanted)
        built = plan.build(days)
        frame = table.conform(built.frame)
        found = measure(frame, table)
        refuse_strays(found, table, days, built.books)
        books = dict(built.books)
        if merge and ledger.version is not None:
            left = self._writer(table).leftover(frame, list(wanted), ledger.version)
            for day, rows in left.items():
                book = books.get(day, Book())
                said = (
                    f"{rows} published row(s) are absent or less frequent in the source, and a "
                    "merge would leave them; launch the day without merge"
                )
                books[day] = replace(book, problems=[*book.problems, said])
        verdicts = judge(table, days, found, books, _trailing(ledger, days))
        return _Audited(built, frame, wanted, {v.day: v for v in verdicts}, merge)

    def _publish(
        self,
        table: Table,
        audited: _Audited,
        because: Mapping[date, str],
        ledger: Ledger,
        plan: Plan,
        record: Mapping[str, Any],
        rewrite: Container[date],
    ) -> list[Done] | None:
        """Commit the days that passed; none if another commit of ours came first.

        Args:
            table: the table.
            audited: the days, computed and judged.
            because: the days to publish, each with why it was computed.
            ledger: that of the table.
            plan: what the days were made by.
            record: what the commit is to say of the run.
            rewrite: the days to write although they have the rows that are there already.
        """
        verdicts = [audited.verdicts[day] for day in because]
        inputs = {source.table.name: source.ledger.version or 0 for source in plan.sources}
        passed = [verdict for verdict in verdicts if verdict.passed]
        changed = {
            v.day for v in passed if v.day in rewrite or ledger.content(v.day) != v.measured.digest
        }
        version, remarks = None, Remarks()
        if passed:
            if audited.built.remarks:
                before = None if ledger.version is None else self.source(ledger, False)
                remarks = audited.built.remarks(before, verdicts)
            said = {
                **record,
                "inputs": inputs,
                "since": ledger.version,
                **_summary([v for v in verdicts if v.day not in remarks.withdrawn], audited),
                "because": _by_reason({v.day: because[v.day] for v in passed}),
                "final": packed(remarks.final),
                "withdrawn": packed(remarks.withdrawn),
                "said": remarks.said,
            }
            version = self._writer(table).commit(
                audited.frame,
                sorted(changed),
                said,
                ledger,
                scattered=audited.built.scattered,
                merge=audited.merge,
            )
            if version is None:
                return None
        done = []
        for v in verdicts:
            outcome, verdict = Outcome.UNCHANGED, v
            if not v.passed:
                outcome = Outcome.FAILED
            elif v.day in remarks.withdrawn:
                outcome = Outcome.WITHDRAWN
                why = Book(problems=[remarks.withdrawn[v.day]])
                (verdict,) = judge(table, [v.day], {}, {v.day: why}, {})
            elif v.day in changed:
                outcome = Outcome.WRITTEN
            numbers = audited.built.numbers.get(v.day, {})
            at = version if v.passed else None
            done.append(Done(outcome, verdict, at, numbers, inputs, because[v.day]))
        return done

    def url(self, table: Table) -> str:
        """Where a table lives."""
        return f"{self.warehouse}/{table.name}"

    def ledger(self, table: Table) -> Ledger:
        """What the table's log says, as of now."""
        return read_ledger(self.url(table), table)

    def code_of(self, table: Table) -> str:
        """The version of the code that makes a table; of all, if the table is not declared."""
        return self.code_versions.get(table.name, self.code_version)

    def config_of(self, table: Table) -> str:
        """The digest of the settings that decide a table; of all, if the table is not declared."""
        return self.config_digests.get(table.name, self.config_digest)

    def _writer(self, table: Table) -> Writer:
        return Writer(self.engine.spark_session, self.url(table), table, self.undo_days)

    def source(self, ledger: Ledger, by_day: bool) -> Snapshot:
        """A table at the version of its ledger, to be read when the rows are wanted.

        The version is pinned: the audit and the write evaluate a frame at different times, and a
        commit in between must not come between them.
        """
        table = ledger.table

        def read() -> DataFrame:
            if ledger.version is None:
                raise dg.Failure(
                    f"{table.name} has no table yet at {self.url(table)}: materialize it first. "
                    "Nothing was written.",
                    allow_retries=False,
                )
            reader = self.engine.spark_session.read.format("delta")
            rows = reader.option("versionAsOf", ledger.version).load(self.url(table))
            return table.filled(rows)

        return Snapshot(ledger, by_day, read)

    def _materialization(self, table: Table, one: Done) -> dg.AssetMaterialization:
        return dg.AssetMaterialization(
            asset_key=table.name,
            partition=one.day.isoformat(),
            metadata={
                **day_metadata(one.verdict),
                **one.numbers,
                **_outcome_metadata(one),
                "dagster/uri": self.url(table),
                "code version": self.code_of(table),
                "config digest": self.config_of(table),
                **{f"input version {name}": version for name, version in one.inputs.items()},
            },
            tags={
                "dagster/data_version": one.verdict.measured.digest,
                "dagster/data_version_is_user_provided": "true",
            },
        )


def pinned(code_version: str, config_digest: str) -> str:
    """Code and configuration as a tag spells them."""
    return f"{code_version}/{config_digest}"


def _merges(tags: Mapping[str, str]) -> bool:
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
class _Audited:
    """Days that were computed and judged, with the recipes that they were made by."""

    built: Built
    frame: DataFrame
    made_of: Mapping[date, str]
    verdicts: Mapping[date, Verdict]
    merge: bool = False

    def covers(self, wanted: Mapping[date, str]) -> bool:
        """Whether these days would be made no otherwise now."""
        return wanted.items() <= self.made_of.items()


def _trailing(ledger: Ledger, window: Window) -> dict[date, Measured]:
    """The days before those of the window in numbers, from the statistics in the table's log."""
    before = set(window.widened(before=TRAILING_DAYS)) - set(window)
    return {day: ledger.measured[day] for day in before if day in ledger.measured}


def why(
    ledger: Ledger,
    day: date,
    recipe: str,
    code_version: str,
    config_digest: str,
    rewrite: bool = False,
    *,
    inputs: Iterable[Ledger] = (),
    news: str = "",
) -> str | None:
    """Why a day is to be computed; none if it is published as it would be made now.

    Args:
        ledger: that of the table.
        day: the day.
        recipe: what the day would be made of now, as `recipes` says it.
        code_version: of the code that would compute it.
        config_digest: of the settings that would decide what is in it.
        rewrite: whether somebody asks for it, whatever is published.
        inputs: the tables that it is made of, as they are now, to tell which of them is new.
        news: what is new in its input, where somebody knows better than these tables do.
    """
    known, published = ledger.latest.get(day), ledger.stands(day)
    if known is None:
        return "rows without a record" if day in ledger.published else "never published"
    if published is None:
        return "external commit"
    found = []
    if not published.made_of:
        found.append(news or "input not on record")
    elif published.made_of != recipe:
        # A table may have changed on other days only; which days count is the recipe's to know.
        newer = [x.table.name for x in inputs if x.moved > known.inputs.get(x.table.name, -1)]
        found.append(news or new_input(newer))
    if known.code_version != code_version:
        found.append("other code")
    if known.made_under(day) != config_digest:
        found.append("other settings")
    if rewrite and not found:
        found.append(news or "asked for")
    return "; ".join(found) or None


def new_input(names: Sequence[str]) -> str:
    """New input as a reason, with the tables that it comes from as far as they are known."""
    return f"new input: {', '.join(names)}" if names else "new input"


def _reasons(
    ledger: Ledger, plan: Plan, code_version: str, config_digest: str, rewrite: Container[date]
) -> dict[date, str]:
    """The days of a plan that are to be computed, each with why."""
    inputs = [source.ledger for source in plan.sources]
    found = {
        day: why(
            ledger,
            day,
            recipe,
            code_version,
            config_digest,
            day in rewrite,
            inputs=inputs,
            news=plan.news.get(day, ""),
        )
        for day, recipe in plan.made_of.items()
    }
    return {day: reason for day, reason in found.items() if reason is not None}


def _by_reason(because: Mapping[date, str]) -> dict[str, list[str]]:
    """The days by reason, for a record."""
    found = defaultdict(list)
    for day, reason in because.items():
        found[reason].append(day)
    return {reason: packed(days) for reason, days in found.items()}


def _refuse_other_code(
    ledgers: Sequence[Ledger],
    window: Window,
    record: Mapping[str, Any],
    config_of: Callable[[Table], str],
) -> None:
    """Keep one backfill to one code and one configuration, in a table and in those it reads.

    Raises:
        PublishError: a deploy came in between. No day of a range that is answered for as one may
            be computed by other rules than the rest.
    """
    backfill = record.get("backfill_id")
    if not backfill:
        return
    for ledger in ledgers:
        config = record["config_digest"] if ledger is ledgers[0] else config_of(ledger.table)
        now = (record.get("release", record["code_version"]), config)
        for other in reversed(ledger.records):
            then = (other.code, other.config_digest)
            if other.backfill_id == backfill and then != now:
                raise PublishError(
                    f"{ledgers[0].table.name} [{window}]: backfill {backfill} has published "
                    f"{spelled(other.days)} of {ledger.table.name} with code "
                    f"{then[0]} and configuration {then[1]}, and this run has {now[0]} and "
                    f"{now[1]}. Nothing was written. Put back what was deployed and launch what "
                    "is missing and failed again, or launch all of its days as a new backfill."
                )


def _as_published(ledger: Ledger, day: date) -> Done:
    """A day as the record of its commit tells of it."""
    record = ledger.latest[day]
    published = record.days[day]
    verdict = verdict_of(ledger.table, day, published)
    numbers, inputs = published.numbers, record.inputs
    return Done(Outcome.IDENTICAL, verdict, record.version, numbers, inputs, record.why(day))


def _outcome_metadata(one: Done) -> dict[str, Any]:
    said = {"outcome": one.outcome.value, "delta version": one.version}
    return {**said, "computed because": one.why} if one.why else said


def _told(instance: dg.DagsterInstance, table: Table, done: Sequence[Done]) -> set[date]:
    """The days of which Dagster knows that they are published as they are, and how.

    It does not if a run was lost between its commit and its events, and it takes a day for failed
    if a run that was for that day failed since, whatever became of the day itself.
    """
    records = latest_materializations(instance, table.name, [d.day for d in done])
    known = {}
    for one in done:
        record = records.get(one.day)
        told = record.asset_materialization if record else None
        version = told.metadata.get("delta version") if told else None
        if record and version is not None and version.value == one.version:
            known[one.day] = record.timestamp
    if not known:
        return set()
    failed = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED],
        updated_after=datetime.fromtimestamp(min(known.values()), timezone.utc),
    )
    for run in instance.get_run_records(failed):
        days = days_of_run(run.dagster_run.tags) or ()
        ended = run.update_timestamp.timestamp()
        known = {d: when for d, when in known.items() if d not in days or when > ended}
    return set(known)


def latest_materializations(
    instance: dg.DagsterInstance, asset: str, days: Iterable[date]
) -> dict[date, dg.EventLogRecord]:
    """The latest materialization of each day; of a day that was not published, an older one.

    An evaluation names it, or the UI counts it as missing: it compares the two by storage id.
    """
    key, wanted_days = dg.AssetKey(asset), {day.isoformat() for day in days}
    if not wanted_days:  # which would ask for all days
        return {}
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, wanted_days
    )
    found = {}
    for first in range(0, len(ids), _QUERY_SIZE):
        wanted = list(ids.values())[first : first + _QUERY_SIZE]
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, storage_ids=wanted), limit=len(wanted)
        ).records
        for record in records:
            found[date.fromisoformat(str(record.partition_key))] = record
    return found


def _summary(verdicts: Sequence[Verdict], audited: _Audited) -> dict[str, Any]:
    built = audited.built
    return {
        "audit": {
            str(v.day): msgspec.structs.asdict(
                published(
                    v,
                    built.made_of.get(v.day, audited.made_of[v.day]),
                    built.numbers.get(v.day, {}),
                    built.made_under.get(v.day, ""),
                )
            )
            for v in verdicts
            if v.passed
        },
        "not_published": {str(v.day): v.reasons for v in verdicts if not v.passed},
    }
