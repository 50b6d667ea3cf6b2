"""The answers that the days of a run need: kept ones, and calls of services for the others."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Self

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.input_frames import ServiceAnswers
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.records import PERSON
from backfill_assets.lookups import batch
from backfill_assets.lookups.service import Service, ServiceError
from backfill_assets.publish.types import CALLS_TAG, launched_by
from backfill_assets.spark.frames import Cache
from backfill_assets.tables import unpartitioned
from backfill_assets.tables.derived import FOR_DAY
from backfill_assets.tables.table import SchemaError

#: The most reasons in a message about requests without an answer.
_REASONS = 3


@dataclass(frozen=True)
class ServiceCaller:
    """Calls services for a run.

    Attributes:
        quotas: the folder of the quotas that all runs of a deployment share.
        warehouse: where the answer tables are.
        run_id: of the run.
        is_scheduled: whether no person launched it; then it may use a full quota.
        may_call: whether it may call services; if not, it uses cached answers only.
    """

    quotas: Path
    warehouse: str
    run_id: str
    is_scheduled: bool
    may_call: bool

    @classmethod
    def from_context(cls, context: dg.AssetExecutionContext, warehouse: str) -> Self:
        """Create the caller of a step's run."""
        tags = context.run.tags
        return cls(
            quotas=Path(context.instance.root_directory) / "quotas",
            warehouse=warehouse,
            run_id=context.run.run_id,
            is_scheduled=launched_by(tags) != PERSON,
            may_call=tags.get(CALLS_TAG) != "none",
        )

    def create_answer_tables(self, lookups: Iterable[unpartitioned.Lookup]) -> None:
        """Create missing answer tables, before days are planned with their content."""
        if self.may_call:
            for lookup in lookups:
                batch.create_answer_table(lookup, lookup.place(self.warehouse))

    def ask_services(
        self,
        asks: Mapping[str, unpartitioned.LookupAnswers],
        frames: Mapping[str, DataFrame],
        cache: Cache,
        days: Window,
    ) -> ServiceAnswers:
        """Return the answers to the requests of days, and call services for those not cached.

        Raises:
            dagster.Failure: the answer table is missing, or does not match the lookup.
            SchemaError: requests do not have the columns and types of the lookup.
        """
        answers: dict[str, DataFrame] = {}
        problems: dict[date, list[str]] = defaultdict(list)
        numbers: dict[date, dict[str, int]] = defaultdict(dict)
        for parameter, declared in asks.items():
            inputs = {name: frames[name] for name in declared.parameters}
            requests = cache(distinct_requests(declared.lookup, declared.of(**inputs), days))
            answers[parameter] = self._answer_requests(declared.lookup, requests, problems, numbers)
        return ServiceAnswers(answers, problems, numbers)

    def _answer_requests(
        self,
        lookup: unpartitioned.Lookup,
        requests: DataFrame,
        problems: Mapping[date, list[str]],
        numbers: Mapping[date, dict[str, int]],
    ) -> DataFrame:
        """Return the requests with their answers; add to the problems and numbers of the days."""
        spark, url = requests.sparkSession, lookup.place(self.warehouse)
        by_day = {row[FOR_DAY]: row["count"] for row in requests.groupBy(FOR_DAY).count().collect()}
        try:
            answer_cache = batch.AnswerCache(lookup, url)
        except batch.AnswersError as error:
            raise dg.Failure(f"{error}. Nothing was written.", allow_retries=False) from error
        rows = _read_answers(spark, url, answer_cache.version)
        missing = _days_by_request(lookup, requests.join(rows, [*lookup.request], "left_anti"))
        call_results = (
            self._call_service(lookup, [*missing], answer_cache) if missing else batch.BatchResult()
        )
        calls: Counter[date] = Counter()
        unanswered: dict[date, dict[batch.Request, str]] = defaultdict(dict)
        for request, request_days in missing.items():
            # A call for several days is counted once.
            calls[min(request_days)] += call_results.calls[request]
            if request in call_results.unanswered:
                for day in request_days:
                    unanswered[day][request] = call_results.unanswered[request]
        for day, count in by_day.items():
            numbers[day][unpartitioned.requests_figure(lookup.name)] = count
            numbers[day][unpartitioned.calls_figure(lookup.name)] = calls[day]
            if day in unanswered:
                problems[day].append(_unanswered_message(lookup, count, unanswered[day]))
        answers = _read_answers(spark, url, answer_cache.version)
        return requests.join(answers, [*lookup.request]).select(
            FOR_DAY, *lookup.columns, unpartitioned.ANSWERED_AT
        )

    def _call_service(
        self,
        lookup: unpartitioned.Lookup,
        requests: Sequence[batch.Request],
        answer_cache: batch.AnswerCache,
    ) -> batch.BatchResult:
        """Return the results of calls; without a call if the run may not call."""
        if not self.may_call:
            reason = "no answer is kept, and this run makes no call"
            return batch.BatchResult(unanswered=dict.fromkeys(requests, reason))
        try:
            service = Service(lookup)
        except ServiceError as error:
            return batch.BatchResult(unanswered=dict.fromkeys(requests, str(error)))
        share = lookup.share(live=self.is_scheduled)
        quota = batch.SharedQuota(self.quotas, lookup.name, lookup.quotas, share)
        try:
            call_results = batch.answer_requests(
                lookup, requests, service, quota, partial(answer_cache.add, run_id=self.run_id)
            )
        finally:
            service.close()
            quota.close()
        return call_results


def distinct_requests(lookup: unpartitioned.Lookup, frame: DataFrame, days: Window) -> DataFrame:
    """Return the distinct requests of each day.

    Raises:
        SchemaError: a column is missing or of another type.
    """
    column_types = {column.name: column.dataType for column in frame.schema}
    request_types = {name: lookup.struct[name].dataType for name in lookup.request}
    if FOR_DAY not in column_types or any(
        column_types.get(name) != kind for name, kind in request_types.items()
    ):
        names = {name: kind.simpleString() for name, kind in column_types.items()}
        raise SchemaError(
            f"requests to {lookup.name} must have {FOR_DAY} and {lookup.struct.simpleString()}: "
            f"{[*request_types]} are asked for, and there are {names}. Nothing was written."
        )
    not_null = [F.col(name).isNotNull() for name in lookup.request]
    chosen = frame.where(days.sql_condition(FOR_DAY)).select(FOR_DAY, *lookup.request)
    for condition in not_null:
        chosen = chosen.where(condition)
    return chosen.distinct()


def _read_answers(spark: Any, url: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(url)


def _days_by_request(
    lookup: unpartitioned.Lookup, frame: DataFrame
) -> dict[batch.Request, list[date]]:
    """Return the days of each request, in a stable order."""
    days_by_request: dict[batch.Request, list[date]] = defaultdict(list)
    rows = frame.select(*lookup.request, FOR_DAY).toArrow()
    for row in zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True):
        days_by_request[row[:-1]].append(row[-1])
    return {request: sorted(days_by_request[request]) for request in sorted(days_by_request)}


def _unanswered_message(
    lookup: unpartitioned.Lookup, count: int, unanswered: Mapping[batch.Request, str]
) -> str:
    """Return why a day lacks answers."""
    first_requests: dict[str, batch.Request] = {}
    for request, reason in unanswered.items():
        first_requests.setdefault(reason, request)
    reasons = Counter(unanswered.values()).most_common()
    reason_texts = "; ".join(
        (f"{n:,} " if len(reasons) > 1 else "")
        + f"{reason}, e.g. {' '.join(str(value) for value in first_requests[reason])}"
        for reason, n in reasons[:_REASONS]
    )
    more = f"; and {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
    many = "request has" if len(unanswered) == 1 else "requests have"
    return f"{lookup.name}: {len(unanswered):,} of {count:,} {many} no answer: {reason_texts}{more}"
