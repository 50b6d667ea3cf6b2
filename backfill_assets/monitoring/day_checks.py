"""The checks on the states of the days, and the sensor that evaluates them.

What state a day is in is decided in `states`; here that meets Dagster.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date

import dagster as dg
from dagster import AssetKey

from backfill_assets.backfills.accounts import mixed_backfills
from backfill_assets.backfills.target_undo import is_mixed
from backfill_assets.backfills.undertakings import under_way
from backfill_assets.calendar.partitions import Window, windows
from backfill_assets.delta.versions import keep_versions
from backfill_assets.escaping import markdown
from backfill_assets.monitoring.look import Look
from backfill_assets.monitoring.night import busy
from backfill_assets.monitoring.states import (
    Situation,
    State,
    changed_final_days,
    day_states,
    in_words,
    summary,
)
from backfill_assets.publish.materializations import latest_materializations
from backfill_assets.quality.checks import failure_text
from backfill_assets.tables.table import Table

_DAYS, _FINAL_DAYS, _ONE_CODE = "days", "final_days", "one_code"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _specs(tables: Mapping[str, Table]) -> list[dg.AssetCheckSpec]:
    frozen = [name for name, table in tables.items() if table.frozen]
    return [
        *(
            dg.AssetCheckSpec(
                _DAYS,
                asset=name,
                description="Every day that is due is published, from the input as it is now.",
            )
            for name in tables
        ),
        *(
            dg.AssetCheckSpec(
                _FINAL_DAYS,
                asset=name,
                description="No final day has changed but by a run that a person launched.",
            )
            for name in frozen
        ),
        *(
            dg.AssetCheckSpec(
                _ONE_CODE,
                asset=name,
                description="All days that one backfill made, in all tables, were made by one code "
                "and one configuration.",
            )
            for name in frozen
        ),
    ]


def _evaluations(now: Situation) -> Iterator[dg.AssetCheckEvaluation]:
    for name in now.ledgers:
        states = day_states(name, now)
        newest = max(now.ledgers[name].published, default=None)
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_DAYS,
            passed=all(state.good for state in states.values()),
            description=in_words(states) or "every day is in order",
            metadata={
                **summary(states),
                "newest day": str(newest),
                "as of": str(now.today),
                "days": dg.MetadataValue.md(_table(states)),
            },
        )
    mixed = mixed_backfills(now.ledgers)
    for name in now.frozen:
        changed = changed_final_days(name, now)
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_FINAL_DAYS,
            passed=not changed,
            description="\n".join(f"{day} {markdown(how)}" for day, how in changed.items())
            or "no final day has changed",
            metadata={"final days": len(now.final[name]), "changed": len(changed)},
        )
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_ONE_CODE,
            passed=not mixed,
            description="\n".join(map(markdown, mixed))
            or "every backfill was made by one code and configuration",
        )


def _table(states: Mapping[date, State]) -> str:
    """The states as a Markdown table, a row for each gapless range of days in one state."""
    spans: list[tuple[Window, str]] = []
    for state in set(states.values()):
        days = [day for day, found in states.items() if found is state]
        spans += [(window, state.value) for window in windows(days)]
    rows = [f"| {window} | {state} |" for window, state in sorted(spans, key=lambda s: s[0].start)]
    return "\n".join(["| days | state |", "|---|---|", *rows[-200:]])


def check_of_days(look: Look) -> dg.AssetChecksDefinition:
    """The checks as a step of a run, after all of its assets."""

    @dg.multi_asset_check(
        name="check_days",
        specs=_specs(look.tables),
        can_subset=True,
        required_resource_keys={"io_manager"},
        description="Looks at the states of all days, and fails the run if one of its days was "
        "not published. It comes last, so that no bad day keeps a good one from being built.",
    )
    def check_days(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        wanted = context.op_execution_context.selected_asset_check_keys
        for found in _evaluations(look.situation(context.instance)):
            if found.asset_check_key in wanted:
                yield dg.AssetCheckResult(
                    asset_key=found.asset_key,
                    check_name=found.check_name,
                    passed=found.passed,
                    description=found.description,
                    metadata=found.metadata,
                )
        asked = {key.asset_key.to_user_string() for key in wanted}
        names = [name for name in look.tables if name in asked]
        if failed := _not_published(context, names):
            raise dg.Failure(failure_text(failed), allow_retries=False)

    return check_days


def _not_published(
    context: dg.AssetCheckExecutionContext, names: Sequence[str]
) -> dict[str, dict[date, str]]:
    """The days that a run left failed, with the reasons, by table.

    A run that repeats another one from its failed step on computes only some tables, or none: what
    the runs before it left failed in the others must not look as if it were published.
    """
    run: dg.DagsterRun | None = context.run
    found = context.resources.io_manager.failed(context.run.run_id)
    while run and run.parent_run_id and any(name not in found for name in names):
        left = {name for name in names if name not in found}
        found |= _left_failed(context.instance, run.parent_run_id, left)
        run = context.instance.get_run_by_id(run.parent_run_id)
    return {name: days for name, days in found.items() if days}


def _left_failed(
    instance: dg.DagsterInstance, run_id: str, names: Collection[str]
) -> dict[str, dict[date, str]]:
    """The days that a run of the past left failed, in those tables that it told of at all."""
    failed: dict[str, dict[date, float]] = {}
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        said = entry.get_dagster_event().asset_check_evaluation_data
        name = said.asset_key.to_user_string()
        if said.partition and name in names:
            days = failed.setdefault(name, {})
            if not said.passed and said.blocking:
                days[date.fromisoformat(said.partition)] = entry.timestamp
    why = f"failed in run {run_id}, which this one repeats; materialize the day itself"
    found = {}
    for name, days in failed.items():
        since = latest_materializations(instance, name, days)
        found[name] = {
            day: why for day, at in days.items() if day not in since or since[day].timestamp < at
        }
    return found


def _is_quiet(instance: dg.DagsterInstance, look: Look) -> bool:
    """Whether no run, no backfill and no switch-over has begun and not ended, canaries included.

    The days of a backfill may be in order between two of its stages; final days that are behind
    their inputs in the middle of one are no open days.
    """
    return not (under_way(instance) or busy(instance, look.tables) or is_mixed(look.settings))


def sensor_of_days(look: Look) -> dg.SensorDefinition:
    """The sensor that evaluates them where no run does."""

    @dg.sensor(
        name="watch_days",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Evaluates the checks on the states of the days whenever a state has changed. "
        "Keeps which versions of the tables belong together.",
    )
    def watch_days(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        before = json.loads(context.cursor or "{}")
        after, events = {}, []
        quiet = _is_quiet(context.instance, look)
        with look.turn():
            now = look.situation(context.instance)
        settled = now.ledgers and not any(now.backlog.open.values())
        # Nobody was writing before the look, nor after it.
        if settled and quiet and _is_quiet(context.instance, look):
            keep_versions(look.settings.warehouse, now.ledgers)
        for found in _evaluations(now):
            name = found.asset_check_key.to_user_string()
            after[name] = _digest([str(found.description), repr(found.metadata)])
            if before.get(name) != after[name]:
                events.append(found)
        if not events:
            return dg.SkipReason("no state has changed")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(after))

    return watch_days
