"""Alerts: which incidents are reported, when, in which words, and the post to a webhook.

An incident that has grown is posted once more: see `Incident.size`.

What was told and what still has to be is kept in the sensor's cursor and nowhere else, so that a
restart neither loses nor repeats an alert. Killed between a post and the saving of the cursor, or
left without an answer by a server that took the text all the same, it tells an alert twice.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from threading import BoundedSemaphore, Thread
from typing import TypeVar

import dagster as dg
import requests

from backfill_assets.calendar.partitions import Window, to_windows
from backfill_assets.dagster_ext.failures import run_failure_message
from backfill_assets.dagster_ext.internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    AUTO_RETRY_RUN_ID_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    RETRY_NUMBER_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
    WILL_RETRY_TAG,
)
from backfill_assets.escaping import escape_chat
from backfill_assets.settings import PREFIX, Settings

Key = tuple[str, str, str]
#: How large an incident is: by aspect, such as a sum of money or a failed check, a number.
Size = Mapping[str, float]
#: Told once more from so many times the number that was told.
_GROWTH_FACTOR = 2


@dataclass(frozen=True)
class Incident:
    """Something that a person must know, for as long as it is found.

    Attributes:
        kind: what is wrong, such as `check failed`, `hole` or `stale`.
        subject: the asset.
        item: the day as YYYY-MM-DD; empty for the asset as a whole.
        detail: one line for a reader: what state the table is in, what to do.
        size: how large it is. It is told again when an aspect comes up that was not told, or has
            doubled.
    """

    kind: str
    subject: str
    item: str
    detail: str
    size: Size = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What makes it this incident: the detail may change from tick to tick."""
        return self.kind, self.subject, self.item


@dataclass(frozen=True)
class Alert:
    """One message that has to be delivered.

    Attributes:
        name: the same at every tick, so that attempts can be counted.
        text: composes the message.
        incidents: the incidents that it tells, with the size of each.
        runs: the ids of the failed runs that it tells.
    """

    name: str
    text: Callable[[], str]
    incidents: Mapping[Key, Size] = field(default_factory=dict)
    runs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outbox:
    """The memory of the sensor from tick to tick: its cursor as a value.

    Attributes:
        looked: when failed runs were last looked for; none on a fresh start, which takes the runs
            that have failed before as known.
        seen_runs: the failed runs found then, told or not.
        waiting: the failed runs that nobody was told of yet, by when they failed.
        reported: the incidents that a person was told of and that are still there, with the largest
            size told. One that goes away is forgotten, so that it alerts again when it comes back.
        attempts: how often each alert that waits was posted in vain.
        blind: for how many ticks in a row the tables could not be looked at.
    """

    looked: float | None = None
    seen_runs: frozenset[str] = frozenset()
    waiting: Mapping[str, float] = field(default_factory=dict)
    reported: Mapping[Key, Size] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    blind: int = 0

    @classmethod
    def from_text(cls, text: str | None) -> Outbox:
        """The outbox of a cursor; an empty one if there is none or it cannot be read."""
        try:
            saved = json.loads(text or "")
            return cls(
                looked=None if saved["looked"] is None else float(saved["looked"]),
                seen_runs=frozenset(map(str, saved["seen"])),
                waiting={str(run): float(at) for run, at in saved["waiting"].items()},
                reported={
                    key: size for group in saved["told"] for key, size in _group_incidents(*group)
                },
                attempts={str(name): int(n) for name, n in saved["attempts"].items()},
                blind=int(saved["blind"]),
            )
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return cls()

    def to_text(self) -> str:
        """The cursor, with days as ranges: years of them must not make it long."""
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for key in sorted(self.reported):
            kind, subject, item = key
            groups[kind, subject, json.dumps(self.reported[key], sort_keys=True)].append(item)
        reported_groups = []
        for (kind, subject, size), items in groups.items():
            days, others = split_days(items)
            day_ranges = [[str(w.start), str(w.end)] for w in days]
            reported_groups.append([kind, subject, day_ranges, others, json.loads(size)])
        return json.dumps(
            {
                "looked": self.looked,
                "seen": sorted(self.seen_runs),
                "waiting": dict(self.waiting),
                "told": reported_groups,
                "attempts": dict(self.attempts),
                "blind": self.blind,
            }
        )

    def with_failed_runs(self, failed: Mapping[str, float], now: float) -> Outbox:
        """With the runs that failed since a while before the last look."""
        fresh = self.looked is None
        new = {run: at for run, at in failed.items() if not fresh and run not in self.seen_runs}
        return replace(
            self, looked=now, seen_runs=frozenset(failed), waiting={**self.waiting, **new}
        )

    def with_incidents(self, incidents: Sequence[Incident] | None) -> Outbox:
        """With what was found in the tables; none if they could not be looked at."""
        if incidents is None:
            return replace(self, blind=self.blind + 1)
        # A size is unknown of what an earlier version of this project told: the first look sets it.
        still = {i.key: self.reported[i.key] or i.size for i in incidents if i.key in self.reported}
        return replace(self, blind=0, reported=still)

    def unreported(self, incidents: Iterable[Incident]) -> Iterator[Incident]:
        """The incidents that nobody was told of, and those that have grown since."""
        for incident in incidents:
            reported_size = self.reported.get(incident.key)
            if reported_size is None:
                yield incident
            elif _has_grown(reported_size, incident.size):
                yield replace(incident, detail=f"more than was told: {incident.detail}")

    def without_runs(self, runs: Set[str]) -> Outbox:
        """With these runs no longer waiting."""
        waiting = {run: at for run, at in self.waiting.items() if run not in runs}
        return replace(self, waiting=waiting)

    def with_pending(self, alerts: Sequence[Alert]) -> Outbox:
        """With attempts only of the alerts that there still are."""
        names = {alert.name for alert in alerts}
        return replace(self, attempts={a: n for a, n in self.attempts.items() if a in names})

    def mark_delivered(self, alert: Alert) -> Outbox:
        """With an alert delivered."""
        attempts = {name: n for name, n in self.attempts.items() if name != alert.name}
        reported = {
            **self.reported,
            **{
                key: _largest_size(self.reported.get(key, {}), size)
                for key, size in alert.incidents.items()
            },
        }
        return replace(self.without_runs(alert.runs), reported=reported, attempts=attempts)

    def count_failure(self, alert: Alert) -> Outbox:
        """With one more attempt to deliver an alert in vain."""
        attempts = {**self.attempts, alert.name: self.attempts.get(alert.name, 0) + 1}
        return replace(self, attempts=attempts)


def split_days(items: Iterable[str]) -> tuple[list[Window], list[str]]:
    """Items as windows of days, and those that are no days."""
    days, others = [], []
    for item in items:
        day = _parse_day(item)
        if day is None:
            others.append(item)
        else:
            days.append(day)
    return to_windows(days), others


def _parse_day(item: str) -> date | None:
    try:
        day = date.fromisoformat(item)
    except ValueError:
        return None
    return day if str(day) == item else None  # other spellings are read since Python 3.11


def _has_grown(reported: Size, current: Size) -> bool:
    return any(
        name not in reported
        or (abs(n) > abs(reported[name]) and abs(n) >= _GROWTH_FACTOR * abs(reported[name]))
        for name, n in current.items()
    )


def _largest_size(reported: Size, current: Size) -> Size:
    """The largest of each aspect: what goes down and up again is no news."""
    return {
        name: max(reported.get(name, 0), current.get(name, 0), key=abs)
        for name in {**reported, **current}
    }


def _group_incidents(
    kind: str,
    subject: str,
    days: Iterable[Sequence[str]],
    others: Iterable[str],
    size: Mapping[str, float] | None = None,
) -> Iterator[tuple[Key, Size]]:
    """The incidents of a group in the cursor."""
    known_size = {str(name): float(n) for name, n in (size or {}).items()}
    for start, end in days:
        for day in Window(date.fromisoformat(start), date.fromisoformat(end)):
            yield (str(kind), str(subject), str(day)), known_size
    for item in others:
        yield (str(kind), str(subject), str(item)), known_size


# A message has some 2500 characters at most: chat systems cut off or refuse those of 4000 and more.
REASON_CHARS = 1500
MAX_DETAILS, DETAIL_CHARS = 5, 300
MAX_PLACES = 10

ALL_TABLES = "all tables"


def incident_alerts(incidents: Sequence[Incident], ui_url: str) -> Iterator[Alert]:
    """One alert for all that is new of one kind about one subject."""
    groups: dict[tuple[str, str], list[Incident]] = defaultdict(list)
    for incident in incidents:
        groups[incident.kind, incident.subject].append(incident)
    for (kind, subject), group in groups.items():
        yield Alert(
            name=f"{kind}: {subject}",
            text=partial(_incident_text, group, ui_url),
            incidents={incident.key: incident.size for incident in group},
        )


def _incident_text(group: Sequence[Incident], ui_url: str) -> str:
    kind, subject = group[0].kind, group[0].subject
    days, others = split_days(incident.item for incident in group)
    places = _limit_texts(MAX_PLACES, [*map(str, days), *filter(None, others)])
    details = dict.fromkeys(truncate_text(incident.detail, DETAIL_CHARS) for incident in group)
    link = f"{ui_url}/assets"
    if subject != ALL_TABLES:
        link += f"/{subject}"
    if days:
        link += "?view=partitions"
        if len(days) == 1 and len(days[0]) == 1 and not others:
            link += f"&partition={days[0]}"
    head = f"*{subject}*: {kind}" + (f" for {', '.join(places)}" if places else "")
    return "\n".join([head, *_limit_texts(MAX_DETAILS, list(details)), link])


def run_alert(run: dg.DagsterRun, instance: dg.DagsterInstance, ui_url: str) -> Alert:
    """The alert of a failed run."""
    text = partial(_run_text, run, instance, ui_url)
    return Alert(name=run.run_id, text=text, runs=frozenset([run.run_id]))


def _run_text(run: dg.DagsterRun, instance: dg.DagsterInstance, ui_url: str) -> str:
    tags = run.tags
    head = f"*{run.job_name}*: run failed"
    first = tags.get(ASSET_PARTITION_RANGE_START_TAG) or tags.get(PARTITION_NAME_TAG)
    last = tags.get(ASSET_PARTITION_RANGE_END_TAG, first)
    if first:
        head += f" for {first}" if first == last else f" for {first}...{last}"
    if run.asset_selection:
        names = sorted(key.to_user_string() for key in run.asset_selection)
        head += f" of {', '.join(_limit_texts(MAX_PLACES, names))}"
    origins = {
        "schedule": SCHEDULE_NAME_TAG,
        "sensor": SENSOR_NAME_TAG,
        "backfill": BACKFILL_ID_TAG,
        "retry": RETRY_NUMBER_TAG,
    }
    origin = ", ".join(f"{name} {tags[tag]}" for name, tag in origins.items() if tag in tags)
    head += f" ({origin or 'started by hand'})"
    failure_reason = truncate_text(run_failure_message(instance, run.run_id), REASON_CHARS)
    return "\n".join([head, *filter(None, [failure_reason]), f"{ui_url}/runs/{run.run_id}"])


def _limit_texts(limit: int, texts: Sequence[str]) -> list[str]:
    more = len(texts) - limit
    return [*texts[:limit], *([f"and {more} more"] if more > 0 else [])]


def truncate_text(text: str, limit: int) -> str:
    """A text, or the first of it and three dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


TIMEOUT = 5.0  # seconds
#: So many posts may hang; then there are no new ones until one has come back.
_POST_SLOTS = BoundedSemaphore(5)
T = TypeVar("T")


def post_text(url: str, text: str, timeout: float = TIMEOUT) -> str | None:
    """Post a text to a webhook.

    Returns:
        What went wrong, without the URL, which is a secret; none if the server took the text.
    """
    # At DEBUG level urllib3 logs the path of every request.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)

    def post_in_turn() -> int:
        # A server that drips its answer holds up a few threads, not one more with each tick.
        if not _POST_SLOTS.acquire(timeout=timeout):
            raise TimeoutError
        try:
            return send_request()
        finally:
            _POST_SLOTS.release()

    def send_request() -> int:
        # The body is not read, and a redirect not followed: it may lead anywhere.
        with requests.post(
            url,
            json={"text": escape_chat(text)},
            timeout=timeout,
            allow_redirects=False,
            stream=True,
        ) as response:
            return response.status_code

    # The timeout of requests is one between two bytes: a server that drips them never hits it.
    answer = run_in_thread(2 * timeout, post_in_turn)
    if not answer.done():
        return f"no answer within {2 * timeout:g} s"
    if error := answer.exception():
        return type(error).__name__  # its text has the URL
    code = answer.result()
    return None if 200 <= code < 300 else f"HTTP {code}"


def run_in_thread(seconds: float, work: Callable[[], T]) -> Future[T]:
    """The result of work in a thread of its own, which may not be there yet after that time."""
    future: Future[T] = Future()

    def complete_future() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            future.set_exception(error)

    # A daemon, unlike the threads of an executor: one that hangs must not keep the process alive.
    Thread(target=complete_future, daemon=True).start()
    wait([future], timeout=seconds)
    return future


# A tick of a sensor is cut off after 60 s, and its cursor with it: a look at the tables, the posts
# and the last post begun in time stay below that together.
LOOK_SECONDS = 20.0
POST_SECONDS = 20.0
MAX_MESSAGES = 5  # a tick

# An event may be stored later than it says, by the clock of another machine: so far back each tick
# looks again for failed runs, and knows by their ids which ones it has met.
OVERLAP = 3600.0
# Dagster says within seconds whether it retries a run, and starts the retry within a minute or two.
RETRY_SECONDS = 600.0
# One tick that cannot look at the tables is a hiccup of the storage.
BLIND_TICKS = 3
PAGE = 500  # events


def build_alerts_sensor(
    settings: Settings,
    find_incidents: Callable[[dg.SensorEvaluationContext], Sequence[Incident]],
    *,
    timeout: float = TIMEOUT,
) -> dg.SensorDefinition:
    """The sensor that posts alerts, of failed runs of the whole instance and of incidents.

    It is not one of Dagster's run failure sensors, as those move their cursor past a failed run
    also when their function raised: an alert that could not be delivered would be lost.

    Args:
        settings: the deployment's settings.
        find_incidents: all the incidents that there are, at every tick as long as they last. It
            may raise or hang: that becomes an incident itself, and failed runs are told anyhow.
        timeout: how many seconds a server may take to connect, and to answer.
    """

    @dg.sensor(
        name="alerts",
        description="Posts failed runs and incidents to the webhook, each of them once.",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def post_alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if settings.webhook is None:
            return dg.SkipReason(f"no webhook is set: {PREFIX}WEBHOOK")
        outbox = Outbox.from_text(context.cursor)
        now = time.time()
        failed_runs = _failed_runs(context.instance, min(outbox.looked or now, now) - OVERLAP)
        outbox = outbox.with_failed_runs(failed_runs, now)
        incidents, trouble = _look_at_tables(find_incidents, context)
        outbox = outbox.with_incidents(incidents)
        outbox, runs = _unreported_runs(outbox, context.instance, now)
        pending = [
            *incident_alerts(_unreported_incidents(outbox, incidents, trouble), settings.ui_url),
            *(run_alert(run, context.instance, settings.ui_url) for run in runs),
        ]
        outbox = outbox.with_pending(pending)
        # The least tried first: one that the server never takes must not hold up the others.
        pending.sort(key=lambda alert: outbox.attempts.get(alert.name, 0))
        # All that can raise has to come before the first post: a tick that raises loses its cursor,
        # and would tell again what it has told.
        messages = [(alert, alert.text()) for alert in pending[:MAX_MESSAGES]]
        outbox, delivered, error = _deliver_alerts(outbox, messages, settings.webhook, timeout)
        context.update_cursor(outbox.to_text())
        return dg.SkipReason(_tick_summary(delivered, len(pending) - delivered, error, trouble))

    return post_alerts


def _deliver_alerts(
    outbox: Outbox, messages: Sequence[tuple[Alert, str]], webhook: str, timeout: float
) -> tuple[Outbox, int, str | None]:
    """Post messages, as many as there is time for; how many were, and what went wrong with one."""
    delivered, error = 0, None
    until = time.monotonic() + POST_SECONDS
    for alert, text in messages:
        if time.monotonic() > until:
            break
        error = post_text(webhook, text.replace(webhook, "(hidden)"), timeout)
        if error:
            outbox = outbox.count_failure(alert)
            error += f", attempt {outbox.attempts[alert.name]}"
            break  # the server is down: the others would only take their time as well
        outbox = outbox.mark_delivered(alert)
        delivered += 1
    return outbox, delivered, error


def _look_at_tables(
    find_incidents: Callable[[dg.SensorEvaluationContext], Sequence[Incident]],
    context: dg.SensorEvaluationContext,
) -> tuple[Sequence[Incident] | None, str | None]:
    """The incidents; or none, and why they could not be found."""
    future = run_in_thread(LOOK_SECONDS, partial(find_incidents, context))
    if not future.done():
        return None, f"looking at the tables took longer than {LOOK_SECONDS:g} s"
    if error := future.exception():
        context.log.error("the tables could not be looked at", exc_info=error)
        return None, truncate_text(f"{type(error).__name__}: {error}", DETAIL_CHARS)
    return future.result(), None


def _unreported_incidents(
    outbox: Outbox, incidents: Sequence[Incident] | None, trouble: str | None
) -> list[Incident]:
    if trouble and outbox.blind >= BLIND_TICKS:
        detail = f"{trouble}. Checks, holes and delays go unnoticed until this is mended."
        incidents = [Incident("days cannot be checked", ALL_TABLES, "", detail)]
    return [*outbox.unreported(incidents or ())]


def _failed_runs(instance: dg.DagsterInstance, since: float) -> dict[str, float]:
    """The runs that failed since a time, by when they did.

    Their events tell: the time of the last update, which a run record has, changes with any tag.
    """
    failure_filter = dg.RunStatusChangeRecordsFilter(
        dg.DagsterEventType.RUN_FAILURE, after_timestamp=since
    )
    failed_at: dict[str, float] = {}
    cursor, more = None, True
    while more:
        page = instance.fetch_run_status_changes(
            failure_filter, limit=PAGE, cursor=cursor, ascending=True
        )
        failed_at.update({record.run_id: record.timestamp for record in page.records})
        cursor, more = page.cursor, page.has_more
    return failed_at


def _unreported_runs(
    outbox: Outbox, instance: dg.DagsterInstance, now: float
) -> tuple[Outbox, list[dg.DagsterRun]]:
    """The waiting runs that a person must know of now; the others are dropped or held back."""
    if not outbox.waiting:
        return outbox, []
    runs = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(list(outbox.waiting)))}
    runs_to_report, dropped = [], set(outbox.waiting) - set(runs)
    for run_id, failed_at in outbox.waiting.items():
        run = runs.get(run_id)
        if run is None:
            continue
        will_retry = run.tags.get(WILL_RETRY_TAG)
        retried = will_retry == "true" and AUTO_RETRY_RUN_ID_TAG in run.tags
        if retried or run.status is dg.DagsterRunStatus.SUCCESS:
            # The retry speaks for itself; a run taken for dead may still have come to its end.
            dropped.add(run_id)
            continue
        # The event of the failure is stored first, the status after it and the tag last. A retry
        # that was said to come and does not, such as one of a canceled backfill, ends the waiting.
        will_not_retry = will_retry == "false" or (
            will_retry is None and not instance.run_retries_enabled
        )
        settled = run.status is dg.DagsterRunStatus.FAILURE and will_not_retry
        if settled or now - failed_at > RETRY_SECONDS:
            runs_to_report.append(run)
    return outbox.without_runs(dropped), runs_to_report


def _tick_summary(delivered: int, waiting: int, error: str | None, trouble: str | None) -> str:
    parts = []
    if delivered:
        parts.append(f"{_count_alerts(delivered)} delivered")
    if error:
        parts.append(f"could not deliver ({error}): {_count_alerts(waiting)} waiting")
    elif waiting:
        parts.append(f"{_count_alerts(waiting)} waiting for the next tick")
    if trouble:
        parts.append(f"days cannot be checked: {trouble}")
    return "; ".join(parts) or "nothing new to tell"


def _count_alerts(alerts: int) -> str:
    return "1 alert" if alerts == 1 else f"{alerts} alerts"
