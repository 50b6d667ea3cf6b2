"""Alerts: which incidents and failed runs are reported, when, in which words, and to which webhook.

The sensor's cursor alone holds what was reported and what waits, so a restart neither loses nor
repeats an alert. An alert is sent twice if the process is killed between a post and the saving of
the cursor, or if the server takes the text without an answer. An incident that has grown is posted
again: see `Incident.size`.
"""

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
from typing import Self, TypeVar

import dagster as dg
import requests

from backfill_assets.backfills.stages import RECONCILE_JOB, RECONCILES_TAG
from backfill_assets.calendar.partitions import Window, days_of_run, to_windows
from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.failures import run_failure_message
from backfill_assets.deployment import Deployment
from backfill_assets.escaping import escape_chat
from backfill_assets.settings import PREFIX, find_ui_url
from backfill_assets.tables.table import asset_name

Key = tuple[str, str, str]
#: How large an incident is: a number by aspect, such as an amount or a failed check.
Size = Mapping[str, float]
#: An incident is reported again if a number has grown by this factor.
_GROWTH_FACTOR = 2


@dataclass(frozen=True)
class Incident:
    """Something that a person must know, reported at every look as long as it lasts.

    Attributes:
        kind: what is wrong, such as `check failed`, `hole` or `stale`.
        subject: the asset.
        item: the day as YYYY-MM-DD; empty for the asset as a whole.
        detail: one line for a reader: what state the table is in, what to do.
        size: how large it is. It is reported again when an aspect is new or has doubled.
    """

    kind: str
    subject: str
    item: str
    detail: str
    size: Size = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Its identity; the detail may change from tick to tick."""
        return self.kind, self.subject, self.item


@dataclass(frozen=True)
class Alert:
    """One message to deliver.

    Attributes:
        name: the same at every tick, so that attempts can be counted.
        text: composes the message.
        incidents: the size of each incident in it.
        runs: the ids of the failed runs in it.
    """

    name: str
    text: Callable[[], str]
    incidents: Mapping[Key, Size] = field(default_factory=dict)
    runs: frozenset[str] = frozenset()


#: Keys that the cursor had before the first release; the next release reads them no more.
_OLD_KEYS = {
    "looked": "runs_read_at",
    "seen": "seen_runs",
    "waiting": "waiting_runs",
    "told": "reported_incidents",
    "blind": "unreadable_ticks",
}


@dataclass(frozen=True)
class Outbox:
    """The sensor's memory between ticks: its cursor as a value.

    Attributes:
        looked: when failed runs were last read; None on a fresh start, which takes all earlier
            failed runs as known.
        seen_runs: the failed runs found then, reported or not.
        waiting: failed runs not reported yet, with the time of failure.
        reported: incidents that were reported and still exist, with the largest size reported.
            An incident that ends is forgotten, so that it alerts again when it comes back.
        attempts: by alert that waits, the number of failed posts.
        unreadable_ticks: for how many ticks in a row the tables could not be read.
    """

    looked: float | None = None
    seen_runs: frozenset[str] = frozenset()
    waiting: Mapping[str, float] = field(default_factory=dict)
    reported: Mapping[Key, Size] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    unreadable_ticks: int = 0

    @classmethod
    def from_text(cls, text: str | None) -> Self:
        """Parse a cursor; return an empty outbox if there is none or it cannot be read."""
        try:
            values = json.loads(text or "")
            saved = {_OLD_KEYS.get(key, key): value for key, value in values.items()}
            read_at = saved["runs_read_at"]
            return cls(
                looked=None if read_at is None else float(read_at),
                seen_runs=frozenset(map(str, saved["seen_runs"])),
                waiting={str(run): float(at) for run, at in saved["waiting_runs"].items()},
                reported={
                    key: size
                    for group in saved["reported_incidents"]
                    for key, size in _group_incidents(*group)
                },
                attempts={str(name): int(n) for name, n in saved["attempts"].items()},
                unreadable_ticks=int(saved["unreadable_ticks"]),
            )
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return cls()

    def to_text(self) -> str:
        """Return the cursor, with days as ranges: years of days must not make it long."""
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
                "runs_read_at": self.looked,
                "seen_runs": sorted(self.seen_runs),
                "waiting_runs": dict(self.waiting),
                "reported_incidents": reported_groups,
                "attempts": dict(self.attempts),
                "unreadable_ticks": self.unreadable_ticks,
            }
        )

    def with_failed_runs(self, failed: Mapping[str, float], now: float) -> Self:
        """Add the failed runs that were not seen before."""
        fresh = self.looked is None
        new = {run: at for run, at in failed.items() if not fresh and run not in self.seen_runs}
        return replace(
            self, looked=now, seen_runs=frozenset(failed), waiting={**self.waiting, **new}
        )

    def with_incidents(self, incidents: Sequence[Incident] | None) -> Self:
        """Drop reported incidents that have ended; pass None if the tables could not be read."""
        if incidents is None:
            return replace(self, unreadable_ticks=self.unreadable_ticks + 1)
        still = {i.key: self.reported[i.key] for i in incidents if i.key in self.reported}
        return replace(self, unreadable_ticks=0, reported=still)

    def unreported(self, incidents: Iterable[Incident]) -> Iterator[Incident]:
        """Yield the incidents that were not reported, and those that have grown since."""
        for incident in incidents:
            reported_size = self.reported.get(incident.key)
            if reported_size is None:
                yield incident
            elif _has_grown(reported_size, incident.size):
                yield replace(incident, detail=f"more than was told: {incident.detail}")

    def without_runs(self, runs: Set[str]) -> Self:
        """Remove runs that no longer wait."""
        waiting = {run: at for run, at in self.waiting.items() if run not in runs}
        return replace(self, waiting=waiting)

    def forget_attempts_except(self, alerts: Sequence[Alert]) -> Self:
        """Keep the attempts of these alerts only."""
        names = {alert.name for alert in alerts}
        return replace(self, attempts={a: n for a, n in self.attempts.items() if a in names})

    def mark_delivered(self, alert: Alert) -> "Outbox":
        """Add an alert's incidents to the reported ones; remove its runs and attempts."""
        attempts = {name: n for name, n in self.attempts.items() if name != alert.name}
        reported = {
            **self.reported,
            **{
                key: _largest_size(self.reported.get(key, {}), size)
                for key, size in alert.incidents.items()
            },
        }
        return replace(self.without_runs(alert.runs), reported=reported, attempts=attempts)

    def count_failure(self, alert: Alert) -> Self:
        """Count one more failed post of an alert."""
        attempts = {**self.attempts, alert.name: self.attempts.get(alert.name, 0) + 1}
        return replace(self, attempts=attempts)


def split_days(items: Iterable[str]) -> tuple[list[Window], list[str]]:
    """Split items into windows of days, and those that are not days."""
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
    """Return the largest number of each aspect: one that falls and rises again is no news."""
    return {
        name: max(reported.get(name, 0), current.get(name, 0), key=abs)
        for name in {**reported, **current}
    }


def _group_incidents(
    kind: str,
    subject: str,
    days: Iterable[Sequence[str]],
    others: Iterable[str],
    size: Mapping[str, float],
) -> Iterator[tuple[Key, Size]]:
    """Yield the incidents of a group in the cursor, with their size."""
    known_size = {str(name): float(n) for name, n in size.items()}
    for start, end in days:
        for day in Window(date.fromisoformat(start), date.fromisoformat(end)):
            yield (str(kind), str(subject), str(day)), known_size
    for item in others:
        yield (str(kind), str(subject), str(item)), known_size


# A message has about 2500 characters at most: chat systems cut or refuse those of 4000 and more.
REASON_CHARS = 1500
MAX_DETAILS, DETAIL_CHARS = 5, 300
MAX_PLACES = 10

ALL_TABLES = "all tables"


def incident_alerts(incidents: Sequence[Incident], assets_url: str) -> Iterator[Alert]:
    """Yield one alert for all new incidents of one kind and subject."""
    groups: dict[tuple[str, str], list[Incident]] = defaultdict(list)
    for incident in incidents:
        groups[incident.kind, incident.subject].append(incident)
    for (kind, subject), group in groups.items():
        yield Alert(
            name=f"{kind}: {subject}",
            text=partial(_incident_text, group, assets_url),
            incidents={incident.key: incident.size for incident in group},
        )


def _incident_text(group: Sequence[Incident], assets_url: str) -> str:
    """Return one message for incidents of one kind and subject, with a link to the asset."""
    kind, subject = group[0].kind, group[0].subject
    days, others = split_days(incident.item for incident in group)
    places = _limit_texts(MAX_PLACES, [*map(str, days), *filter(None, others)])
    details = dict.fromkeys(truncate_text(incident.detail, DETAIL_CHARS) for incident in group)
    link = assets_url
    if subject != ALL_TABLES:
        link += f"/{asset_name(subject)}"
    if days:
        link += "?view=partitions"
        if len(days) == 1 and len(days[0]) == 1 and not others and asset_name(subject) == subject:
            link += f"&partition={days[0]}"
    head = f"*{subject}*: {kind}" + (f" for {', '.join(places)}" if places else "")
    return "\n".join([head, *_limit_texts(MAX_DETAILS, list(details)), link])


def run_alert(run: dg.DagsterRun, instance: dg.DagsterInstance, ui_url: str) -> Alert:
    """Return the alert of a failed run."""
    text = partial(_run_text, run, instance, ui_url)
    return Alert(name=run.run_id, text=text, runs=frozenset([run.run_id]))


def _run_text(run: dg.DagsterRun, instance: dg.DagsterInstance, ui_url: str) -> str:
    """Return the message of a failed run: partitions, assets, origin, failure reason and link."""
    tags = run.tags
    head = f"*{run.job_name}*: run failed"
    if days := days_of_run(tags):
        head += f" for {', '.join(_limit_texts(MAX_PLACES, str(days).split(', ')))}"
    if run.asset_selection:
        names = sorted(key.to_user_string() for key in run.asset_selection)
        head += f" of {', '.join(_limit_texts(MAX_PLACES, names))}"
    origins = {
        "schedule": internals.SCHEDULE_NAME_TAG,
        "sensor": internals.SENSOR_NAME_TAG,
        "backfill": internals.BACKFILL_ID_TAG,
        "retry": internals.RETRY_NUMBER_TAG,
    }
    origin = ", ".join(f"{name} {tags[tag]}" for name, tag in origins.items() if tag in tags)
    head += f" ({origin or 'started by hand'})"
    failure_reason = truncate_text(run_failure_message(instance, run.run_id), REASON_CHARS)
    return "\n".join([head, *filter(None, [failure_reason]), f"{ui_url}/runs/{run.run_id}"])


def _limit_texts(limit: int, texts: Sequence[str]) -> list[str]:
    more = len(texts) - limit
    return [*texts[:limit], *([f"and {more} more"] if more > 0 else [])]


def truncate_text(text: str, limit: int) -> str:
    """Shorten a text to a limit, ending with three dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


TIMEOUT = 5.0  # seconds
#: Posts that may hang at the same time; further ones are refused until one ends.
_POST_SLOTS = BoundedSemaphore(5)
T = TypeVar("T")


def post_text(url: str, text: str, timeout: float = TIMEOUT) -> str | None:
    """Post a text to a webhook.

    Returns:
        What went wrong, without the URL, which is a secret; None if the server took the text.
    """
    # At DEBUG level urllib3 logs the path of every request, which is secret.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)

    def post_in_turn() -> int:
        """Post when a slot is free; runs in its own thread, raises TimeoutError without a slot."""
        # A server that drips its answer blocks a few threads, not one more with each tick.
        if not _POST_SLOTS.acquire(timeout=timeout):
            raise TimeoutError
        try:
            return send_request()
        finally:
            _POST_SLOTS.release()

    def send_request() -> int:
        """Return the HTTP status of the webhook's answer."""
        # Do not read the body nor follow a redirect: it may lead anywhere.
        with requests.post(
            url,
            json={"text": escape_chat(text)},
            timeout=timeout,
            allow_redirects=False,
            stream=True,
        ) as response:
            return response.status_code

    # The timeout of requests applies between two bytes: a server that drips them never hits it.
    answer = run_in_thread(2 * timeout, post_in_turn)
    if not answer.done():
        return f"no answer within {2 * timeout:g} s"
    if error := answer.exception():
        return type(error).__name__  # its text contains the URL
    code = answer.result()
    return None if 200 <= code < 300 else f"HTTP {code}"


def run_in_thread(seconds: float, work: Callable[[], T]) -> Future[T]:
    """Run work in a thread of its own; the result may still be missing after that time."""
    future: Future[T] = Future()

    def complete_future() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            future.set_exception(error)

    # A daemon thread, unlike those of an executor: one that hangs must not keep the process alive.
    Thread(target=complete_future, daemon=True).start()
    wait([future], timeout=seconds)
    return future


# Dagster ends a sensor's tick after 60 s, and its cursor is lost: the look at the tables, the posts
# and the last post begun in time stay below that together.
LOOK_SECONDS = 20.0
POST_SECONDS = 20.0
MAX_MESSAGES = 5  # per tick

# An event may be stored later than its timestamp, which another machine's clock gave: each tick
# looks this far back for failed runs, and knows by their ids which ones it has seen.
OVERLAP = 3600.0
# Dagster decides within seconds whether it retries a run, and starts the retry within two minutes.
RETRY_SECONDS = 600.0
# A single tick that cannot read the tables is a short failure of the storage.
UNREADABLE_TICKS_BEFORE_ALERT = 3
PAGE = 500  # events


def build_alerts_sensor(
    deployment: Deployment,
    find_incidents: Callable[[dg.SensorEvaluationContext], Sequence[Incident]],
    *,
    timeout: float = TIMEOUT,
) -> dg.SensorDefinition:
    """Build the sensor that posts alerts of failed runs and of incidents.

    The runs are those of the whole instance, or those of a deployment with a `key_prefix`.

    It is not one of Dagster's run failure sensors, as those move their cursor past a failed run
    also when their function raised: an alert that could not be delivered would be lost.

    Args:
        deployment: whose tables they are.
        find_incidents: returns all incidents at every tick, as long as they last. It may raise or
            hang: that is an incident itself, and failed runs are reported anyway.
        timeout: seconds for a server to connect, and to answer.
    """

    @dg.sensor(
        name=deployment.automation_name("alerts"),
        description="Posts failed runs and incidents to the webhook, each of them once.",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def post_alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if deployment.settings.webhook is None:
            return dg.SkipReason(f"no webhook is set: {PREFIX}WEBHOOK")
        outbox = Outbox.from_text(context.cursor)
        now = time.time()
        failed_runs = _failed_runs(context.instance, min(outbox.looked or now, now) - OVERLAP)
        outbox = outbox.with_failed_runs(failed_runs, now)
        incidents, read_error = _read_incidents(find_incidents, context)
        outbox = outbox.with_incidents(incidents)
        outbox, runs = _unreported_runs(deployment, outbox, context.instance, now)
        ui_url = find_ui_url(deployment.settings, context.instance.root_directory)
        pending = [
            *incident_alerts(
                _select_incidents_to_post(outbox, incidents, read_error),
                f"{ui_url}/{deployment.asset_path()}",
            ),
            *(run_alert(run, context.instance, ui_url) for run in runs),
        ]
        outbox = outbox.forget_attempts_except(pending)
        # The least tried first: an alert that the server never takes must not block the others.
        pending.sort(key=lambda alert: outbox.attempts.get(alert.name, 0))
        # All that can raise comes before the first post: a tick that raises loses its cursor, and
        # the next one would repeat its alerts.
        messages = [(alert, alert.text()) for alert in pending[:MAX_MESSAGES]]
        outbox, delivered, error = _deliver_alerts(
            outbox, messages, deployment.settings.webhook, timeout
        )
        context.update_cursor(outbox.to_text())
        return dg.SkipReason(_tick_summary(delivered, len(pending) - delivered, error, read_error))

    return post_alerts


def _deliver_alerts(
    outbox: Outbox, messages: Sequence[tuple[Alert, str]], webhook: str, timeout: float
) -> tuple[Outbox, int, str | None]:
    """Post messages while time remains; return the outbox, the number posted, and an error."""
    delivered, error = 0, None
    deadline = time.monotonic() + POST_SECONDS
    for alert, text in messages:
        if time.monotonic() > deadline:
            break
        error = post_text(webhook, text.replace(webhook, "(hidden)"), timeout)
        if error:
            outbox = outbox.count_failure(alert)
            error += f", attempt {outbox.attempts[alert.name]}"
            break  # the server is down: more posts would only cost time
        outbox = outbox.mark_delivered(alert)
        delivered += 1
    return outbox, delivered, error


def _read_incidents(
    find_incidents: Callable[[dg.SensorEvaluationContext], Sequence[Incident]],
    context: dg.SensorEvaluationContext,
) -> tuple[Sequence[Incident] | None, str | None]:
    """Return the incidents; or None, and why they could not be found."""
    future = run_in_thread(LOOK_SECONDS, partial(find_incidents, context))
    if not future.done():
        return None, f"looking at the tables took longer than {LOOK_SECONDS:g} s"
    if error := future.exception():
        context.log.error("the tables could not be looked at", exc_info=error)
        return None, truncate_text(f"{type(error).__name__}: {error}", DETAIL_CHARS)
    return future.result(), None


def _select_incidents_to_post(
    outbox: Outbox, incidents: Sequence[Incident] | None, read_error: str | None
) -> list[Incident]:
    """The incidents to post now: new ones, and those that have grown.

    `incidents` is None if the tables could not be read, for `read_error`. After some ticks of that
    in a row, this is the incident.
    """
    if read_error and outbox.unreadable_ticks >= UNREADABLE_TICKS_BEFORE_ALERT:
        detail = f"{read_error}. Checks, holes and delays go unnoticed until this is mended."
        incidents = [Incident("days cannot be checked", ALL_TABLES, item="", detail=detail)]
    return [*outbox.unreported(incidents or ())]


def _failed_runs(instance: dg.DagsterInstance, since: float) -> dict[str, float]:
    """Return the runs that failed since a time, with the time of failure.

    It comes from their events: the update time of a run record changes with any tag.
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
    deployment: Deployment, outbox: Outbox, instance: dg.DagsterInstance, now: float
) -> tuple[Outbox, list[dg.DagsterRun]]:
    """Return the waiting runs to report now; the others are dropped or wait on."""
    if not outbox.waiting:
        return outbox, []
    runs = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(list(outbox.waiting)))}
    runs_to_report, dropped = [], set(outbox.waiting) - set(runs)
    for run_id, failed_at in outbox.waiting.items():
        run = runs.get(run_id)
        if run is None:
            continue
        answers_person = (
            deployment.job_of_run(run) == RECONCILE_JOB and RECONCILES_TAG not in run.tags
        )
        if answers_person or not deployment.owns_run(run):
            dropped.add(run_id)
            continue
        will_retry = run.tags.get(internals.WILL_RETRY_TAG)
        retried = will_retry == "true" and internals.AUTO_RETRY_RUN_ID_TAG in run.tags
        if retried or run.status is dg.DagsterRunStatus.SUCCESS:
            # The retry is reported by itself; a run taken for dead may have ended well.
            dropped.add(run_id)
            continue
        # Dagster stores the failure event first, then the status, then the tag. If an announced
        # retry does not come, as in a canceled backfill, the wait ends after a time.
        will_not_retry = will_retry == "false" or (
            will_retry is None and not instance.run_retries_enabled
        )
        settled = run.status is dg.DagsterRunStatus.FAILURE and will_not_retry
        if settled or now - failed_at > RETRY_SECONDS:
            runs_to_report.append(run)
    return outbox.without_runs(dropped), runs_to_report


def _tick_summary(delivered: int, waiting: int, error: str | None, read_error: str | None) -> str:
    """Return the skip reason of a tick, which the UI shows as the tick's result."""
    parts = []
    if delivered:
        parts.append(f"{_count_alerts(delivered)} delivered")
    if error:
        parts.append(f"could not deliver ({error}): {_count_alerts(waiting)} waiting")
    elif waiting:
        parts.append(f"{_count_alerts(waiting)} waiting for the next tick")
    if read_error:
        parts.append(f"days cannot be checked: {read_error}")
    return "; ".join(parts) or "nothing new to tell"


def _count_alerts(alerts: int) -> str:
    return "1 alert" if alerts == 1 else f"{alerts} alerts"
