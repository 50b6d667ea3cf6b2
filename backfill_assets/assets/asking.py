"""What a run asks of services: the requests of its days that have no kept answer yet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.records import PERSON
from backfill_assets.engine.caching import Cache
from backfill_assets.lookups.asking import Asked, Request, ask
from backfill_assets.lookups.kept import AnswersError, KeptAnswers, create
from backfill_assets.lookups.quotas import SharedQuota
from backfill_assets.lookups.service import Service, ServiceError
from backfill_assets.publish.run_tags import CALLS_TAG, launched_by
from backfill_assets.quality.audit import Expectation
from backfill_assets.tables.derived import FOR_DAY
from backfill_assets.tables.lookups import ANSWERED_AT, Answers, Lookup, calls_of, requests_to
from backfill_assets.tables.table import SchemaError

#: Of the reasons why requests have no answer, a message has so many.
_REASONS = 3


@dataclass(frozen=True)
class Answered:
    """What services answered to the requests of some days.

    Attributes:
        frames: by parameter, the requests with their answers, and `for_day`.
        problems: by day, why it cannot be published.
        numbers: by day, figures for the UI.
    """

    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    problems: Mapping[date, Sequence[str]] = field(default_factory=dict)
    numbers: Mapping[date, Mapping[str, int]] = field(default_factory=dict)

    def added_to(self, due: Mapping[date, Expectation]) -> dict[date, Expectation]:
        """Expectations by day, with the problems."""
        return {
            day: replace(of, problems=[*of.problems, *self.problems.get(day, ())])
            for day, of in due.items()
        }


@dataclass(frozen=True)
class Asking:
    """How a run may ask.

    Attributes:
        quotas: the folder of the quotas that all runs of a deployment share.
        warehouse: where the answers are.
        run_id: of the run.
        live: whether no person launched it: then it may use all of a quota.
        calls: whether it may call at all.
    """

    quotas: Path
    warehouse: str
    run_id: str
    live: bool
    calls: bool

    @classmethod
    def of(cls, context: dg.AssetExecutionContext, warehouse: str) -> Asking:
        """As the run of a step may ask."""
        tags = context.run.tags
        return cls(
            quotas=Path(context.instance.root_directory) / "quotas",
            warehouse=warehouse,
            run_id=context.run.run_id,
            live=launched_by(tags) != PERSON,
            calls=tags.get(CALLS_TAG) != "none",
        )

    def prepare(self, lookups: Iterable[Lookup]) -> None:
        """Create the tables of answers, before anything is planned upon what they hold."""
        if self.calls:
            for lookup in lookups:
                create(lookup, lookup.place(self.warehouse))

    def ask(
        self,
        asks: Mapping[str, Answers],
        frames: Mapping[str, DataFrame],
        cache: Cache,
        days: Window,
    ) -> Answered:
        """Ask what has no kept answer yet.

        Args:
            asks: by parameter, what is asked.
            frames: by parameter, what the requests are made of.
            cache: keeps the rows of a frame until they are published.
            days: the days.

        Raises:
            dagster.Failure: the table of answers is not there, or not the one of the lookup.
            SchemaError: requests are not of the columns and types of the lookup.
        """
        found: dict[str, DataFrame] = {}
        problems: dict[date, list[str]] = defaultdict(list)
        numbers: dict[date, dict[str, int]] = defaultdict(dict)
        for parameter, of in asks.items():
            made_of = {name: frames[name] for name in of.parameters}
            wanted = cache(requests_of(of.lookup, of.of(**made_of), days))
            found[parameter] = self._answers(of.lookup, wanted, problems, numbers)
        return Answered(found, problems, numbers)

    def _answers(
        self,
        lookup: Lookup,
        wanted: DataFrame,
        problems: Mapping[date, list[str]],
        numbers: Mapping[date, dict[str, int]],
    ) -> DataFrame:
        """The requests with their answers; adds to the problems and the numbers of the days."""
        spark, url = wanted.sparkSession, lookup.place(self.warehouse)
        by_day = {row[FOR_DAY]: row["count"] for row in wanted.groupBy(FOR_DAY).count().collect()}
        try:
            kept = KeptAnswers(lookup, url)
        except AnswersError as error:
            raise dg.Failure(f"{error}. Nothing was written.", allow_retries=False) from error
        rows = _rows(spark, url, kept.version)
        lacking = _by_request(lookup, wanted.join(rows, [*lookup.request], "left_anti"))
        asked = self._asked(lookup, [*lacking], kept) if lacking else Asked()
        calls: Counter[date] = Counter()
        unanswered: dict[date, dict[Request, str]] = defaultdict(dict)
        for request, of in lacking.items():
            # A call that helps several days is counted once.
            calls[min(of)] += asked.calls[request]
            if request in asked.unanswered:
                for day in of:
                    unanswered[day][request] = asked.unanswered[request]
        for day, count in by_day.items():
            numbers[day][requests_to(lookup.name)] = count
            numbers[day][calls_of(lookup.name)] = calls[day]
            if day in unanswered:
                problems[day].append(_said(lookup, count, unanswered[day]))
        answers = _rows(spark, url, kept.version)
        return wanted.join(answers, [*lookup.request]).select(FOR_DAY, *lookup.columns, ANSWERED_AT)

    def _asked(self, lookup: Lookup, requests: Sequence[Request], kept: KeptAnswers) -> Asked:
        """What came of asking; nothing is asked if the run may not."""
        if not self.calls:
            why = "no answer is kept, and this run makes no call"
            return Asked(unanswered=dict.fromkeys(requests, why))
        try:
            service = Service(lookup)
        except ServiceError as error:
            return Asked(unanswered=dict.fromkeys(requests, str(error)))
        share = lookup.share(live=self.live)
        quota = SharedQuota(self.quotas, lookup.name, lookup.quotas, share)
        try:
            found = ask(lookup, requests, service, quota, partial(kept.add, run_id=self.run_id))
        finally:
            service.close()
            quota.close()
        return found


def requests_of(lookup: Lookup, frame: DataFrame, days: Window) -> DataFrame:
    """The different requests of each day.

    Args:
        lookup: the lookup.
        frame: what the declared function gives.
        days: the days.

    Raises:
        SchemaError: a column is missing or of another type.
    """
    there = {column.name: column.dataType for column in frame.schema}
    wanted = {name: lookup.struct[name].dataType for name in lookup.request}
    if FOR_DAY not in there or any(there.get(name) != kind for name, kind in wanted.items()):
        names = {name: kind.simpleString() for name, kind in there.items()}
        raise SchemaError(
            f"requests to {lookup.name} must have {FOR_DAY} and {lookup.struct.simpleString()}: "
            f"{[*wanted]} are asked for, and there are {names}. Nothing was written."
        )
    known = [F.col(name).isNotNull() for name in lookup.request]
    chosen = frame.where(days.predicate(FOR_DAY)).select(FOR_DAY, *lookup.request)
    for condition in known:
        chosen = chosen.where(condition)
    return chosen.distinct()


def _rows(spark: Any, url: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(url)


def _by_request(lookup: Lookup, frame: DataFrame) -> dict[Request, list[date]]:
    """By request, the days that it is for, in an order that is the same each time."""
    found: dict[Request, list[date]] = defaultdict(list)
    rows = frame.select(*lookup.request, FOR_DAY).toArrow()
    for row in zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True):
        found[row[:-1]].append(row[-1])
    return {request: sorted(found[request]) for request in sorted(found)}


def _said(lookup: Lookup, count: int, unanswered: Mapping[Request, str]) -> str:
    """Why a day lacks answers, for a person."""
    first: dict[str, Request] = {}
    for request, why in unanswered.items():
        first.setdefault(why, request)
    reasons = Counter(unanswered.values()).most_common()
    said = "; ".join(
        (f"{n:,} " if len(reasons) > 1 else "")
        + f"{why}, e.g. {' '.join(str(value) for value in first[why])}"
        for why, n in reasons[:_REASONS]
    )
    more = f"; and {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
    many = "request has" if len(unanswered) == 1 else "requests have"
    return f"{lookup.name}: {len(unanswered):,} of {count:,} {many} no answer: {said}{more}"
