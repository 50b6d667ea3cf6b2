"""The checks on the states of the days, and the sensor that evaluates them.

What state a day is in is decided in `states`; here that meets Dagster.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date

import dagster as dg
from dagster import AssetKey

from backfill_assets.backfills.accounts import find_mixed_backfills
from backfill_assets.backfills.target_undo import is_mixed
from backfill_assets.backfills.undertakings import active_ids
from backfill_assets.calendar.partitions import Window, to_windows
from backfill_assets.delta.versions import save_versions
from backfill_assets.escaping import escape_markdown
from backfill_assets.monitoring.look import Monitor
from backfill_assets.monitoring.night import tables_in_progress
from backfill_assets.monitoring.states import (
    DayState,
    Situation,
    changed_final_days,
    count_states,
    day_states,
    describe_states,
)
from backfill_assets.publish.materializations import latest_materializations
from backfill_assets.quality.checks import failure_text
from backfill_assets.tables.table import Table

_DAYS, _FINAL_DAYS, _ONE_CODE = "days", "final_days", "one_code"


def _digest_texts(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _check_specs(tables: Mapping[str, Table]) -> list[dg.AssetCheckSpec]:
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


def _evaluate_checks(situation: Situation) -> Iterator[dg.AssetCheckEvaluation]:
    for name in situation.ledgers:
        states = day_states(name, situation)
        newest = max(situation.ledgers[name].published_days, default=None)
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_DAYS,
            passed=all(state.is_good for state in states.values()),
            description=describe_states(states) or "every day is in order",
            metadata={
                **count_states(states),
                "newest day": str(newest),
                "as of": str(situation.today),
                "days": dg.MetadataValue.md(_state_table(states)),
            },
        )
    mixed = find_mixed_backfills(situation.ledgers)
    for name in situation.frozen_tables:
        changed = changed_final_days(name, situation)
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_FINAL_DAYS,
            passed=not changed,
            description="\n".join(f"{day} {escape_markdown(how)}" for day, how in changed.items())
            or "no final day has changed",
            metadata={"final days": len(situation.final_by_table[name]), "changed": len(changed)},
        )
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_ONE_CODE,
            passed=not mixed,
            description="\n".join(map(escape_markdown, mixed))
            or "every backfill was made by one code and configuration",
        )


def _state_table(states: Mapping[date, DayState]) -> str:
    """The states as a Markdown table, a row for each gapless range of days in one state."""
    spans: list[tuple[Window, str]] = []
    for state in set(states.values()):
        days = [day for day, day_state in states.items() if day_state is state]
        spans += [(window, state.value) for window in to_windows(days)]
    rows = [f"| {window} | {state} |" for window, state in sorted(spans, key=lambda s: s[0].start)]
    return "\n".join(["| days | state |", "|---|---|", *rows[-200:]])


def build_state_checks(monitor: Monitor) -> dg.AssetChecksDefinition:
    """The checks as a step of a run, after all of its assets."""

    @dg.multi_asset_check(
        name="check_days",
        specs=_check_specs(monitor.tables),
        can_subset=True,
        required_resource_keys={"io_manager"},
        description="Looks at the states of all days, and fails the run if one of its days was "
        "not published. It comes last, so that no bad day keeps a good one from being built.",
    )
    def check_days(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected_keys = context.op_execution_context.selected_asset_check_keys
        for evaluation in _evaluate_checks(monitor.read_situation(context.instance)):
            if evaluation.asset_check_key in selected_keys:
                yield dg.AssetCheckResult(
                    asset_key=evaluation.asset_key,
                    check_name=evaluation.check_name,
                    passed=evaluation.passed,
                    description=evaluation.description,
                    metadata=evaluation.metadata,
                )
        selected_tables = {key.asset_key.to_user_string() for key in selected_keys}
        names = [name for name in monitor.tables if name in selected_tables]
        if failed := _failed_days(context, names):
            raise dg.Failure(failure_text(failed), allow_retries=False)

    return check_days


def _failed_days(
    context: dg.AssetCheckExecutionContext, names: Sequence[str]
) -> dict[str, dict[date, str]]:
    """The days that a run left failed, with the reasons, by table.

    A run that repeats another one from its failed step on computes only some tables, or none: what
    the runs before it left failed in the others must not look as if it were published.
    """
    run: dg.DagsterRun | None = context.run
    failed = context.resources.io_manager.failed(context.run.run_id)
    while run and run.parent_run_id and any(name not in failed for name in names):
        unreported_tables = {name for name in names if name not in failed}
        failed |= _failed_days_of_run(context.instance, run.parent_run_id, unreported_tables)
        run = context.instance.get_run_by_id(run.parent_run_id)
    return {name: days for name, days in failed.items() if days}


def _failed_days_of_run(
    instance: dg.DagsterInstance, run_id: str, names: Collection[str]
) -> dict[str, dict[date, str]]:
    """The days that a run of the past left failed, in those tables that it told of at all."""
    failed: dict[str, dict[date, float]] = {}
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        evaluation = entry.get_dagster_event().asset_check_evaluation_data
        name = evaluation.asset_key.to_user_string()
        if evaluation.partition and name in names:
            days = failed.setdefault(name, {})
            if not evaluation.passed and evaluation.blocking:
                days[date.fromisoformat(evaluation.partition)] = entry.timestamp
    reason = f"failed in run {run_id}, which this one repeats; materialize the day itself"
    still_failed = {}
    for name, days in failed.items():
        since = latest_materializations(instance, name, days)
        still_failed[name] = {
            day: reason for day, at in days.items() if day not in since or since[day].timestamp < at
        }
    return still_failed


def _is_quiet(instance: dg.DagsterInstance, monitor: Monitor) -> bool:
    """Whether no run, no backfill and no switch-over has begun and not ended, canaries included.

    The days of a backfill may be in order between two of its stages; final days that are behind
    their inputs in the middle of one are no open days.
    """
    return not (
        active_ids(instance)
        or tables_in_progress(instance, monitor.tables)
        or is_mixed(monitor.settings)
    )


def build_state_sensor(monitor: Monitor) -> dg.SensorDefinition:
    """The sensor that evaluates them where no run does."""

    @dg.sensor(
        name="watch_days",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Evaluates the checks on the states of the days whenever a state has changed. "
        "Keeps which versions of the tables belong together.",
    )
    def watch_days(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        previous = json.loads(context.cursor or "{}")
        current, events = {}, []
        quiet = _is_quiet(context.instance, monitor)
        with monitor.take_turn():
            situation = monitor.read_situation(context.instance)
        settled = situation.ledgers and not any(situation.stale.open.values())
        # Nobody was writing before the look, nor after it.
        if settled and quiet and _is_quiet(context.instance, monitor):
            save_versions(monitor.settings.warehouse, situation.ledgers)
        for evaluation in _evaluate_checks(situation):
            name = evaluation.asset_check_key.to_user_string()
            current[name] = _digest_texts([str(evaluation.description), repr(evaluation.metadata)])
            if previous.get(name) != current[name]:
                events.append(evaluation)
        if not events:
            return dg.SkipReason("no state has changed")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(current))

    return watch_days
