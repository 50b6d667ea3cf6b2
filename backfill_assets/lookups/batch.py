"""The answers of a lookup for a batch of requests: answer cache, shared quota, calls.

It knows no tables and days. Answers are stored while other requests still run, so that a killed
process loses only the last few.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyrate_limiter import Rate, RateItem, SQLiteBucket

from backfill_assets.dagster_ext.failures import raise_if_interrupted
from backfill_assets.delta import delta_rs
from backfill_assets.delta.delta_rs import RACE_ATTEMPTS, race_attempts
from backfill_assets.delta.ledger_reader import DELETION_COUNTER
from backfill_assets.lookups.service import Reply, Service
from backfill_assets.spark.filesystems import folder_filesystem, replace_file
from backfill_assets.tables.unpartitioned import ANSWERED_AT, Lookup, Quota

#: The number of added files after which they are compacted.
_COMPACT_AFTER_FILES = 200
#: Commit directly after the version that was read, or fail.
_NO_RETRIES = 0


class AnswersError(RuntimeError):
    """Answers could not be stored or deleted; those stored before are unchanged."""


class AnswerCache:
    """The stored answers as of the creation of this object, and those added here.

    `version` is the version of the Delta table that contains all of them.
    """

    def __init__(self, lookup: Lookup, url: str) -> None:
        """Open the table of answers.

        Raises:
            AnswersError: there is no such table, or it has other columns.
        """
        self._lookup, self._url = lookup, url
        log = delta_rs.load_log(url)
        if log is None:
            raise AnswersError(f"{lookup.name}: there is no table of answers at {url}")
        stored_columns = {field.name: field.type for field in log.schema().fields}
        model_columns = {field.name: field.type for field in _table_schema(lookup).fields}
        if stored_columns != model_columns:
            raise AnswersError(
                f"{lookup.name}: the table of answers at {url} is not the one of the model (there: "
                f"{', '.join(stored_columns)}; model: {', '.join(model_columns)}). Nothing was "
                "asked. Give the lookup another name, or move the table away: then all is asked "
                "again"
            )
        self.version = log.version()
        self._files = {*log.file_uris()}
        self._added = 0

    def add(self, answers: Sequence[Mapping[str, Any]], run_id: str) -> None:
        """Store answers to different requests; of several to one request, the first one counts.

        Raises:
            AnswersError: other processes committed first, again and again.
        """
        names = self._lookup.request
        for _ in race_attempts():
            log = delta_rs.delta_log(self._url).load()
            answered = self._requests_in_new_files(log)
            new = [row for row in answers if tuple(row[name] for name in names) not in answered]
            try:
                if new:
                    self._append(log, new, run_id)
            except CommitFailedError:
                continue
            self.version, self._files = log.version(), {*log.file_uris()}
            self._added += 1
            if self._added >= _COMPACT_AFTER_FILES:
                self._compact_files()
            return
        raise AnswersError(
            f"{self._lookup.name}: other processes committed first {RACE_ATTEMPTS} times in a row; "
            f"{len(answers)} answers are not kept, and are asked for again"
        )

    def _append(self, log: DeltaTable, rows: Sequence[Mapping[str, Any]], run_id: str) -> None:
        """Commit without retries; raises CommitFailedError if another process came first."""
        schema = pa.schema(log.schema().to_arrow())
        write_deltalake(
            log,
            pa.Table.from_pylist([*rows], schema=schema),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"run_id": run_id}, max_commit_retries=_NO_RETRIES
            ),
        )

    def _requests_in_new_files(self, log: DeltaTable) -> set[tuple[Any, ...]]:
        """The requests whose answers others stored since the last look."""
        if not (new := {*log.file_uris()} - self._files):
            return set()
        names = [uri.rpartition("/")[2] for uri in new]
        columns = [*self._lookup.request]
        dataset = ds.dataset(names, filesystem=folder_filesystem(self._url), format="parquet")
        requests = dataset.to_table(columns=columns)
        return {*zip(*(requests.column(name).to_pylist() for name in columns), strict=True)}

    def _compact_files(self) -> None:
        """Compact small files; skipped if another process commits at the same time."""
        self._added = 0
        try:
            log = delta_rs.delta_log(self._url).load()
            if log.version() != self.version:
                return
            log.optimize.compact(commit_properties=CommitProperties(max_commit_retries=_NO_RETRIES))
            log.vacuum(dry_run=False)
        except DeltaError:
            return
        self.version, self._files = log.version(), {*log.file_uris()}


def create_answer_table(lookup: Lookup, url: str) -> None:
    """Create the empty table of answers, if it does not exist.

    Raises:
        UnsafeStoreError: its location is on a store on which commits can be lost.
    """
    if delta_rs.load_log(url) is not None:
        return
    delta_rs.raise_if_unsafe_store(url.rpartition("/")[0])
    try:
        DeltaTable.create(
            url, _table_schema(lookup), mode="ignore", storage_options=delta_rs.storage_options(url)
        )
    except DeltaError:
        if delta_rs.load_log(url) is None:
            raise


def forget_answers(lookup: Lookup, url: str, condition: str) -> int:
    """Delete answers by a SQL condition, so that they are requested again; return their number.

    All days of the tables that read them become due.

    Raises:
        AnswersError: there is no table, the condition is wrong, or a run is storing answers.
    """
    try:
        log = delta_rs.delta_log(url).load()
        number = (log.transaction_version(DELETION_COUNTER) or 0) + 1
        metrics = log.delete(
            condition,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(DELETION_COUNTER, number)],
                max_commit_retries=_NO_RETRIES,
            ),
        )
    except TableNotFoundError:
        raise AnswersError(f"{lookup.name}: there is no table of answers at {url}") from None
    except (DeltaError, ValueError) as error:
        raise AnswersError(
            f"{lookup.name}: nothing was forgotten: {error}. A condition is SQL over "
            f"{', '.join(lookup.kept.names)}; if a run is keeping answers, try again after it"
        ) from error
    return int(metrics["num_deleted_rows"] or 0)


def _table_schema(lookup: Lookup) -> Schema:
    return Schema.from_json(lookup.kept.json())


_CLEAN_EVERY = 60.0  # seconds between two deletions of calls that no longer count


class SharedQuota:
    """A rate limit that all runs share: every call of every run counts."""

    def __init__(self, folder: Path, name: str, quotas: Sequence[Quota], share: float) -> None:
        """Open the count of calls in a folder that all processes share.

        A call is allowed here if all runs together have used less than `share` of the quotas; these
        are given with the shortest period first.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._pause_file = folder / f"{name}.until"
        self._lock = Lock()
        self._cleaned = 0.0
        self._bucket = SQLiteBucket.init_from_file(
            rates_of(quotas, share),
            table="calls",
            db_path=str(folder / f"{name}.sqlite"),
            use_file_lock=True,
        )

    def take(self) -> float:
        """Count one call and return 0; or return the seconds after which one may be allowed."""
        if (wait := self.pause_seconds) > 0:
            return wait
        # The time is read under the lock, so that calls are counted in the order of their times.
        with self._lock, self._bucket.lock:
            item = RateItem("call", time.time_ns() // 1_000_000)
            if self._bucket.put(item):
                self._clean_bucket(item.timestamp)
                return 0.0
            return max(int(self._bucket.waiting(item)), 1) / 1000  # type: ignore[arg-type]

    def pause_calls(self, seconds: float) -> None:
        """Block calls of all processes for some time, as the service requested."""
        until = time.time() + seconds
        # Under the lock of all processes: of two pauses, the longer one counts.
        with self._lock, self._bucket.lock:
            if until <= self._paused_until:
                return
            # A reader sees the old time or the new one.
            folder, name = str(self._pause_file.parent), self._pause_file.name
            replace_file(folder, name, f"{until:.3f}".encode())

    @property
    def pause_seconds(self) -> float:
        """The seconds for which no process may call; 0 if there is no pause."""
        return max(0.0, self._paused_until - time.time())

    @property
    def _paused_until(self) -> float:
        with suppress(OSError, ValueError):
            return float(self._pause_file.read_text())
        return 0.0

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._bucket.close()

    def _clean_bucket(self, now: int) -> None:
        if time.monotonic() - self._cleaned > _CLEAN_EVERY:
            self._cleaned = time.monotonic()
            self._bucket.leak(now)


def rates_of(quotas: Sequence[Quota], share: float) -> list[Rate]:
    """The rates of `pyrate_limiter` for a share of quotas: longer periods have lower rates.

    The rate of a shorter period cannot replace that of a longer one: other runs, with another share
    of the same quota, may have used up the longer one.
    """
    rates: list[Rate] = []
    for quota in quotas:
        calls, interval = max(1, int(quota.calls * share)), quota.seconds * 1000
        # A limit on the longer period also limits every shorter one.
        while rates and calls <= rates[-1].limit:
            rates.pop()
        if rates:
            calls = min(calls, rates[-1].limit * interval // rates[-1].interval)
        rates.append(Rate(calls, interval))
    return rates


#: The values of the request columns.
Request = tuple[Any, ...]
#: After this many failed requests in a row, the other requests are not sent.
MAX_FAILURES_IN_A_ROW = 20
#: Answers are stored after this number of them, or after these seconds.
_BATCH, _BATCH_SECONDS = 1000, 5.0
#: Seconds before the second try, doubled before each further one; and the longest pause.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_POLL_SECONDS = 0.2  # seconds between two checks for an interruption of the run


@dataclass
class BatchResult:
    """By request, the number of calls, and why it is unanswered."""

    calls: Counter[Request] = field(default_factory=Counter)
    unanswered: dict[Request, str] = field(default_factory=dict)


def answer_requests(
    lookup: Lookup,
    requests: Sequence[Request],
    service: Service,
    quota: SharedQuota,
    save_answers: Callable[[Sequence[Mapping[str, Any]]], None],
) -> BatchResult:
    """Send different requests, each until it is answered or its tries are used up.

    `save_answers` is called with some answers at a time, with the columns of the stored table.
    """
    return _BatchCall(lookup, requests, service, quota).call_all(save_answers)


class _BatchCall:
    """Threads that call the service, and a queue of results for the thread that started them."""

    def __init__(
        self, lookup: Lookup, requests: Sequence[Request], service: Service, quota: SharedQuota
    ) -> None:
        self._lookup, self._service, self._quota = lookup, service, quota
        self._remaining: Iterator[Request] = iter(requests)
        self._count = len(requests)
        self._finished: SimpleQueue[tuple[Request, Reply, int]] = SimpleQueue()
        self._lock = Lock()
        self._stop = Event()
        self._stop_reason = ""
        self._failed_in_a_row = 0
        self._error: Exception | None = None

    def call_all(self, save_answers: Callable[[Sequence[Mapping[str, Any]]], None]) -> BatchResult:
        """Send all requests."""
        result, batch, since = BatchResult(), [], time.monotonic()
        threads = [
            Thread(target=self._call_until_finished, daemon=True)
            for _ in range(min(self._lookup.connections, self._count))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(self._count):
                request, reply, calls = self._next_finished()
                result.calls[request] += calls
                if reply.answer is None:
                    result.unanswered[request] = reply.problem
                else:
                    batch.append(self._answer_row(request, reply.answer))
                if len(batch) >= _BATCH or time.monotonic() - since > _BATCH_SECONDS:
                    save_answers(batch)
                    batch, since = [], time.monotonic()
        finally:
            self._stop_calls("the run has ended")
            for thread in threads:
                thread.join()
            with suppress(Empty):  # after an interruption: store finished answers too
                while True:
                    request, reply, _ = self._finished.get_nowait()
                    if reply.answer is not None:
                        batch.append(self._answer_row(request, reply.answer))
            if batch:
                save_answers(batch)
        return result

    def _next_finished(self) -> tuple[Request, Reply, int]:
        while True:
            raise_if_interrupted()
            if self._error:
                raise self._error
            with suppress(Empty):
                return self._finished.get(timeout=_POLL_SECONDS)

    def _answer_row(self, request: Request, answer: Mapping[str, Any]) -> dict[str, Any]:
        request_columns = dict(zip(self._lookup.request, request, strict=True))
        return {**request_columns, **answer, ANSWERED_AT: datetime.now(timezone.utc)}

    def _call_until_finished(self) -> None:
        """Run in each thread: answer requests until none remains, and queue the results."""
        while True:
            with self._lock:
                request = next(self._remaining, None)
            if request is None:
                return
            try:
                reply, calls = self._answer_request(request)
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits for results
                self._error = error
                return
            self._finished.put((request, reply, calls))

    def _answer_request(self, request: Request) -> tuple[Reply, int]:
        """The answer to a request, and the number of calls for it."""
        request_columns = dict(zip(self._lookup.request, request, strict=True))
        calls = tries = busy = 0
        last = ""
        answered = time.monotonic()
        while self._wait_for_quota():
            try:
                reply = self._service.request_answer(request_columns)
            except Exception as error:  # noqa: BLE001 - a dead thread would block the batch
                reply = Reply(problem=f"the call failed ({type(error).__name__})", retry=False)
            calls, last = calls + 1, reply.problem
            busy = busy + 1 if reply.busy else 0
            if reply.wait or reply.busy:
                pause = min(2.0 ** (busy - 1), _LONGEST_PAUSE) if reply.wait is None else reply.wait
                pause = max(pause, 1.0) if reply.busy else pause
                self._quota.pause_calls(pause * random.uniform(1.0, 1.05))
            if not reply.busy:
                answered = time.monotonic()
            elif time.monotonic() - answered > self._lookup.patience:
                waited = f"{self._lookup.patience:g} s"
                self._stop_calls(f"the service has said for {waited} that its quota is used up")
            if reply.answer is not None:
                self._failed_in_a_row = 0
                return reply, calls
            # A used-up quota is not a failure of the request.
            tries += not reply.busy
            if reply.refused:
                self._stop_calls(f"it takes no request of ours ({reply.problem})")
            if not reply.retry or tries >= self._lookup.tries:
                return self._give_up(reply, tries), calls
            if not reply.busy:
                pause = min(_FIRST_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE)
                self._stop.wait(pause * random.uniform(0.8, 1.2))
        return Reply(problem=f"{last or 'not asked'}: {self._stop_reason}"), calls

    def _give_up(self, reply: Reply, tries: int) -> Reply:
        """A reply without an answer; too many failures in a row stop the whole batch."""
        if reply.retry:
            with self._lock:
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= MAX_FAILURES_IN_A_ROW:
                    self._stop_calls(f"{MAX_FAILURES_IN_A_ROW} requests in a row had no answer")
        tried = f" (tried {tries} times)" if tries > 1 else ""
        return Reply(problem=f"{reply.problem}{tried}")

    def _wait_for_quota(self) -> bool:
        """Wait until the quota allows a call; false if the batch was stopped."""
        since = time.monotonic()
        while not self._stop.is_set():
            wait = self._quota.take()
            if not wait:
                return True
            waited = time.monotonic() - since
            if waited + wait > self._lookup.patience:
                until = datetime.now(timezone.utc).timestamp() + wait
                when = datetime.fromtimestamp(until, timezone.utc)
                self._stop_calls(f"the quota is used up until {when:%Y-%m-%d %H:%M:%S} UTC")
            # At most 1 s, plus a random part: several processes that wait for the same time would
            # call at once.
            self._stop.wait(min(wait, 1.0) + random.uniform(0, 0.02))
        return False

    def _stop_calls(self, reason: str) -> None:
        if not self._stop.is_set():
            self._stop_reason = reason
            self._stop.set()
