"""The texts of alerts: what a person reads of incidents and of a failed run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import dagster as dg

from backfill_assets.dagster_ext.internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    RETRY_NUMBER_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
)
from backfill_assets.dagster_ext.run_failures import run_failure_message
from backfill_assets.monitoring.outbox import Alert, Incident, split_days

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
