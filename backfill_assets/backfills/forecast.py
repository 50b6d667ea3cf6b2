"""The forecast of each day of a plan: its outcome now, and if its inputs change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import NamedTuple

from backfill_assets.backfills.backfill_plan import BackfillRequest, DayOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.ledgers import Ledger, Ledgers, graph_of_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import ListedFile, list_landing
from backfill_assets.landing.load_manifest import LoadTarget, describe_change
from backfill_assets.staleness.assess import new_input_reason, recompute_reason
from backfill_assets.staleness.input_digest import HypotheticalLedger, input_digests
from backfill_assets.staleness.unloaded import load_targets, loaded_manifests
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.sources import Source

#: Outcomes in which a day is or may be computed.
COMPUTE_OUTCOMES = (DayOutcome.COMPUTED, DayOutcome.DEPENDS)


class DayForecast(NamedTuple):
    """The planned outcome of a day; with a reason if the day is or may be computed."""

    outcome: DayOutcome
    reason: str = ""


def forecast_days(
    deployment: Deployment,
    request: BackfillRequest,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    code: Code,
    load_plans: Mapping[str, LoadPlan],
) -> dict[str, dict[date, DayForecast]]:
    """Forecast each day: compare its input digest as of now, and as if its inputs change.

    `days` must be by table, inputs first; `load_plans` are by raw log.
    """
    policy, digests = deployment.policy, deployment.config_digests
    hypothetical_ledgers: dict[str, Ledger] = dict(ledgers)
    other_settings_days = {
        name: ledgers[name].under_other_settings(digests[name]) for name in ledgers
    }
    forecasts, graph = {}, graph_of_ledgers(ledgers, policy)
    for name, table_days in days.items():
        ledger, code_and_settings = ledgers[name], (code.table_version(name), digests[name])
        load = _find_load_plan(graph, name, load_plans)
        current_digests = (
            load.load_digests if load else _day_digests(graph, name, ledgers, table_days)
        )
        inputs_by_day = _changing_inputs(
            graph, name, current_digests, ledgers, hypothetical_ledgers
        )
        inputs = graph.direct_inputs(name)
        deciding_days = {
            dependency.source.name: dependency.reach.deciding_days(
                hypothetical_ledgers[dependency.source.name]
            )
            for dependency in graph.inputs[name]
            if other_settings_days[dependency.source.name]
        }
        input_ledgers, day_forecasts = [ledgers[input_] for input_ in inputs], {}
        for day in table_days:
            news = load.changes.get(day, "") if load else ""
            reason = recompute_reason(
                ledger,
                day,
                current_digests[day],
                *code_and_settings,
                request.rewrite,
                inputs=input_ledgers,
                input_change=news,
            )
            missing = None in ledger.references.values()
            if missing or _lacks_input(graph, name, day, hypothetical_ledgers):
                day_forecasts[day] = DayForecast(DayOutcome.LACKING)
            elif any(
                not other_settings_days[input_name].isdisjoint(deciding(day))
                for input_name, deciding in deciding_days.items()
            ):
                day_forecasts[day] = DayForecast(DayOutcome.OTHER_SETTINGS)
            elif request.rewrite or not _is_built_by(ledger, day, code_and_settings):
                day_forecasts[day] = DayForecast(DayOutcome.COMPUTED, reason or "")
            elif changed_inputs := inputs_by_day[day]:
                day_forecasts[day] = DayForecast(
                    DayOutcome.DEPENDS, new_input_reason(changed_inputs)
                )
            elif reason is not None:
                day_forecasts[day] = DayForecast(DayOutcome.COMPUTED, reason)
            else:
                day_forecasts[day] = DayForecast(DayOutcome.IDENTICAL)
        if carries_state(ledger.table):
            day_forecasts = _forecast_in_order(ledger, day_forecasts, graph.policy_of(name).start)
        forecasts[name] = day_forecasts
        if changed_days := {
            day for day, forecast in day_forecasts.items() if forecast.outcome in COMPUTE_OUTCOMES
        }:
            other_settings_days[name] -= changed_days
            hypothetical_ledgers[name] = HypotheticalLedger.from_ledger(ledger, changed_days)
    return forecasts


def _lacks_input(graph: Graph, name: str, day: date, ledgers: Ledgers) -> bool:
    """Whether a required day of another table is not published, and not in the plan."""
    return any(
        needed not in ledgers[dependency.source.name].published_days
        for dependency in graph.inputs[name]
        if dependency.source.name != name
        for needed in dependency.reach.required_days(day)
    )


def _forecast_in_order(
    ledger: Ledger, forecasts: Mapping[date, DayForecast], start: date
) -> dict[date, DayForecast]:
    """Forecasts of a stateful table in date order, from forecasts by the other inputs of its days.

    `start` is the table's first day.
    """
    ordered: dict[date, DayForecast] = {}
    for day, forecast in sorted(forecasts.items()):
        previous_day = day - DAY
        is_present = previous_day in ledger.published_days or previous_day < start
        earlier = ordered.get(
            previous_day, DayForecast(DayOutcome.IDENTICAL if is_present else DayOutcome.LACKING)
        )
        ordered[day] = forecast
        if forecast.outcome not in (*COMPUTE_OUTCOMES, DayOutcome.IDENTICAL):
            continue
        if earlier.outcome in COMPUTE_OUTCOMES:
            outcome = (
                forecast.outcome if forecast.outcome in COMPUTE_OUTCOMES else DayOutcome.DEPENDS
            )
            reasons = [forecast.reason, f"waits for the day before of {ledger.table.name}"]
            ordered[day] = DayForecast(outcome, "; ".join(filter(None, reasons)))
        elif earlier.outcome is not DayOutcome.IDENTICAL and forecast.outcome in COMPUTE_OUTCOMES:
            ordered[day] = DayForecast(earlier.outcome)
    return ordered


def _find_load_plan(graph: Graph, name: str, load_plans: Mapping[str, LoadPlan]) -> LoadPlan | None:
    """The load plan of a table; None if it is not loaded from files."""
    logs = graph.source_logs(name) if name in graph.landed_tables else ()
    return next((load_plans[log] for log in logs), None)


def _day_digests(
    graph: Graph, name: str, ledgers: Ledgers, days: Iterable[date]
) -> dict[date, str]:
    return input_digests(graph.inputs[name], ledgers, days, ledgers[name].references)


def _changing_inputs(
    graph: Graph,
    name: str,
    current_digests: Mapping[date, str],
    ledgers: Ledgers,
    hypothetical_ledgers: Ledgers,
) -> dict[date, list[str]]:
    """By day, the inputs whose planned changes would change the day's input digest."""
    inputs_by_day: dict[date, list[str]] = {day: [] for day in current_digests}
    for input_ in (dependency.source.name for dependency in graph.inputs[name]):
        if not isinstance(hypothetical_ledgers[input_], HypotheticalLedger):
            continue
        changed_digests = _day_digests(
            graph, name, {**ledgers, input_: hypothetical_ledgers[input_]}, current_digests
        )
        for day in current_digests:
            if changed_digests[day] != current_digests[day]:
                inputs_by_day[day].append(input_)
    return inputs_by_day


def _is_built_by(ledger: Ledger, day: date, code_and_settings: tuple[str, str]) -> bool:
    record = ledger.latest.get(day) if ledger.current_record(day) else None
    return record is not None and (record.code_version, record.made_under(day)) == code_and_settings


@dataclass(frozen=True)
class LoadPlan:
    """The files to load for days of a raw log.

    Attributes:
        targets: by day.
        changes: by day, what changed since it was loaded, as text.
        entries: all listed files of these days.
    """

    targets: Mapping[date, LoadTarget]
    changes: Mapping[date, str]
    entries: Sequence[ListedFile]

    @cached_property
    def load_digests(self) -> dict[date, str]:
        """By day, the digest of the content to load."""
        return {day: target.manifest.content_digest() for day, target in self.targets.items()}


def plan_load(
    landing: str,
    source: Source,
    log: Ledger,
    days: Collection[date],
    policy: Policy,
    accepted: Collection[str],
) -> LoadPlan:
    """Plan the load of days of a raw log, from the landing as of now.

    `accepted` has names of files that may remove orders.
    """
    arrival_days = sorted({d for day in days for d in (day - DAY, day)})
    listing, loaded = list_landing(landing, source, arrival_days), loaded_manifests(log)
    target_by_day = load_targets(
        loaded, listing, sorted(days), source.under(policy), accepted=accepted
    )
    changes = {
        day: describe_change(loaded.get(day), target) for day, target in target_by_day.items()
    }
    entries = [entry for day in arrival_days for entry in listing.files_on(day).values()]
    return LoadPlan(target_by_day, changes, entries)


def digest_load_plans(load_plans: Mapping[str, LoadPlan]) -> str:
    """A digest of what is to be loaded: a launch compares it with that of the plan.

    It changes if files land, change or are deleted.
    """
    text = json.dumps(
        {
            raw_table: {str(day): digest for day, digest in sorted(load_plan.load_digests.items())}
            for raw_table, load_plan in load_plans.items()
        }
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
