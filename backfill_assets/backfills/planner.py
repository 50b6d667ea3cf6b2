"""Make the plan of a backfill; nothing is computed, and no JVM is started.

Reads the tables' logs, the listing of the landing and Dagster's run records.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import NamedTuple, TypeVar

import dagster as dg

from backfill_assets.backfills import backfill_plan, forecast
from backfill_assets.calendar import partitions
from backfill_assets.calendar.partitions import Grain
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.dagster_ext.internals import PartitionsSubset
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import CONTROL_FILE, LandingError, ListedFile, list_landing
from backfill_assets.landing.samples import Values, sample_values
from backfill_assets.staleness.assess import REQUESTED
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import dependent_days
from backfill_assets.staleness.unloaded import LoadPlan, digest_load_plans, plan_load
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import buildable_tables
from backfill_assets.tables.sources import Source

Item = TypeVar("Item")


def days_by_table(
    deployment: Deployment, tables: Sequence[str], window: partitions.Window
) -> dict[str, list[date]]:
    """The days of each table: requested days, and days downstream of them.

    `tables` must be inputs first. Tables without an input among them get the requested days. The
    days downstream are those of Dagster's partition mappings, as in a launch from the UI.
    Dagster's own selection is not used, as its result depends on the order in which it visits a
    table with two inputs.
    """
    graph, settings = deployment.graph, deployment.settings
    definitions = {name: graph.tables[name].days_def(settings) for name in graph.tables}
    subsets: dict[str, PartitionsSubset] = {}
    for name in tables:
        days = definitions[name]
        keys = map(str, graph.tables[name].grain.partitions_of(window))
        parents = [d for d in graph.inputs[name] if d.source.name in subsets]
        requested = (
            []
            if parents
            else [partition for partition in keys if days.has_partition_key(partition)]
        )
        subset = days.subset_with_partition_keys(requested)
        for parent in parents:
            mapping = (parent.launched or parent.reach).partition_mapping
            subset |= (
                mapping or dg.TimeWindowPartitionMapping()
            ).get_downstream_partitions_for_partitions(
                subsets[parent.source.name], definitions[parent.source.name], days
            )
        subsets[name] = subset
    return {
        name: sorted(map(date.fromisoformat, subset.get_partition_keys()))
        for name, subset in subsets.items()
        if not subset.is_empty
    }


class RunGroup(NamedTuple):
    """Tables of one grain and part with the same days, inputs first, and the days of each run."""

    names: list[str]
    days: Sequence[date]
    windows: list[partitions.Window]


def split_runs(
    deployment: Deployment, days: Mapping[str, Sequence[date]]
) -> Iterator[tuple[list[str], list[partitions.Window]]]:
    """Tables, inputs first, and the days of runs of them that may run at a time.

    A run builds exactly the days of its tables.
    """
    groups: list[RunGroup] = []
    for name, table_days in days.items():
        if table_days:
            grain, per_run = deployment.tables[name].grain, deployment.settings.partitions_per_run
            table = RunGroup([name], table_days, grain.split_into_runs(table_days, per_run))
            if group := _find_group(deployment, groups, table):
                group.names.append(name)
            else:
                groups.append(table)
    for group in _join_parts(deployment, groups):
        if any(carries_state(deployment.tables[name]) for name in group.names):
            # Each is built from the one before.
            yield from ((group.names, [window]) for window in group.windows)
        else:
            yield group.names, group.windows


def _join_parts(deployment: Deployment, groups: Iterable[RunGroup]) -> list[RunGroup]:
    """Groups of the same days, without gaps, of the parts of the same tables as one group."""
    joined: list[RunGroup] = []
    for group in groups:
        for n, other in enumerate(joined):
            has_gaps = any(isinstance(window, partitions.DaySet) for window in group.windows)
            is_alike = group.days == other.days and not has_gaps
            if is_alike and deployment.graph.follows_part(group.names, other.names):
                joined[n] = other._replace(names=[*other.names, *group.names])
                break
        else:
            joined.append(group)
    return joined


def _find_group(
    deployment: Deployment, groups: Sequence[RunGroup], table: RunGroup
) -> RunGroup | None:
    """The group whose runs can build a table as well; None if there is none."""
    graph, (name,) = deployment.graph, table.names
    # Runs of a group may run at the same time: none reads days of another run.
    other_days = {
        dependency.source.name
        for dependency in graph.inputs[name]
        if dependency.reach != SAME_DAY and len(table.windows) > 1
    }
    declared = deployment.tables[name]
    for group in reversed(groups):
        other = deployment.tables[group.names[0]]
        has_partitions = other.job_name == declared.job_name and other.part == declared.part
        is_alike = has_partitions and group.days == table.days
        if is_alike and other_days.isdisjoint(group.names):
            return group
        if not graph.upstream_tables(name).isdisjoint(group.names):
            return None  # it is built after this group
    return None


def refuse_invalid_request(deployment: Deployment, request: backfill_plan.BackfillRequest) -> None:
    """Raise if a request cannot be planned, or a part of it would have no effect.

    Raises:
        ValueError: a day is not on the calendar, there is no such table, a table is retired, none
            of the weeks and months of the days can be built, no day is left after the pilot, or
            files are accepted for tables that are not loaded from files.
    """
    deployment.parse_days(request.days)
    today = deployment.today
    tables = buildable_tables(deployment.graph, request.tables, today)
    by_hour = any(deployment.tables[name].by_hour for name in tables)
    partitions.parse_calendar_days(request.days, deployment.settings, by_hour=by_hour)
    left_out = [*explain_left_out(deployment, tables, request.window, today)]
    if len(left_out) == sum(
        len(deployment.tables[name].grain.partitions_of(request.window)) for name in tables
    ):
        raise ValueError(f"there is nothing to build: {'; '.join(left_out)}")
    if 0 < len(request.window) <= request.pilot_days:
        raise ValueError(
            f"a pilot of {request.pilot_days} day(s) leaves nothing of the "
            f"{len(request.window)} day(s) {request.window}: give fewer pilot days, or none"
        )
    landed_tables = deployment.graph.landed_tables
    if request.accept and not {*landed_tables} & {*tables}:
        raise ValueError(
            f"{', '.join(request.accept)} is accepted for nothing: only {', '.join(landed_tables)} "
            "are loaded from files, and none of them is among the tables"
        )


def explain_left_out(
    deployment: Deployment, tables: Iterable[str], window: partitions.Window, today: date
) -> Iterator[str]:
    """One sentence for each week and month of requested days that cannot be built yet, or ever."""
    for name in tables:
        grain, policy = deployment.tables[name].grain, deployment.graph.policy_of(name)
        whole = policy.loadable_days(today) if grain is not Grain.DAILY else window
        for partition in grain.partitions_of(window):
            end = grain.days_of(partition).end
            if partition in whole:
                continue
            if partition < policy.start:
                yield f"{name}[{partition}] begins before its first day, {policy.start}"
            elif policy.end and end > policy.end:
                ended = "the calendar"
                if policy.end != deployment.settings.end:
                    ended = f"its last day, {policy.end - partitions.DAY}"
                yield f"{name}[{partition}] ends after {ended}, on {end - partitions.DAY}"
            else:
                yield (
                    f"{name}[{partition}] is not over before {end - partitions.DAY}: it is due on "
                    f"{policy.format_due(deployment.graph.due_date(name, partition))}"
                )


def _requested_tables(
    deployment: Deployment, request: backfill_plan.BackfillRequest
) -> tuple[str, ...]:
    """The requested tables, inputs first; a table may be retired since it was planned."""
    deployment.parse_days(request.days)
    if not request.tables:
        return buildable_tables(deployment.graph, (), deployment.today)
    tables = deployment.tables
    if unknown := set(request.tables) - tables.keys():
        raise ValueError(f"no such table: {', '.join(sorted(unknown))}; there are {[*tables]}")
    return tuple(name for name in tables if name in request.tables)


def make_plan(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    request: backfill_plan.BackfillRequest,
    code: Code,
    id_: str,
) -> backfill_plan.BackfillPlan:
    """Make the plan as of now.

    Raises:
        ValueError: a day is not on the calendar, or there is no such table.
    """
    tables = _requested_tables(deployment, request)
    request = request.model_copy(update={"tables": tables})
    window = request.window
    days = {
        name: [day for day in table_days if deployment.graph.expects_day(name, day)]
        for name, table_days in days_by_table(deployment, tables, window).items()
    }
    downstream_of_last_day = days_by_table(
        deployment, tables, partitions.Window(window.end - partitions.DAY, window.end)
    )
    ledgers = read_ledgers(deployment)
    run_history = forecast.past_runs(instance, deployment)
    return plan_backfill(
        deployment, request, days, ledgers, code, id_, run_history, downstream_of_last_day
    )


def plan_backfill(
    deployment: Deployment,
    request: backfill_plan.BackfillRequest,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    code: Code,
    id_: str,
    run_history: Sequence[tuple[int, float]] = (),
    downstream_of_last_day: Mapping[str, Sequence[date]] | None = None,
) -> backfill_plan.BackfillPlan:
    """Make the plan from given days, ledgers and past runs.

    Args:
        deployment: whose tables they are.
        request: the request.
        days: by table, inputs first, from `days_by_table`.
        ledgers: ledgers of all tables.
        code: the code that is to compute it.
        id_: id of the plan.
        run_history: days and seconds of past runs.
        downstream_of_last_day: by table, the days downstream of the last requested day.
    """
    tables = deployment.graph
    load_plans = _load_plans(deployment, request, days, ledgers)
    targets = [target for plan in load_plans.values() for target in plan.targets.values()]
    snapshot = Snapshot.from_deployment(deployment, ledgers, deployment.today, code)
    snapshot = _add_load_plans(snapshot, load_plans)
    forecasts = forecast.forecast_days(snapshot, days, rewrite=request.rewrite)
    work = {
        name: [
            day
            for day, day_forecast in by_day.items()
            if day_forecast.outcome in forecast.COMPUTE_OUTCOMES
        ]
        for name, by_day in forecasts.items()
    }
    files, size = _count_input_files(load_plans, work, snapshot)
    estimate = forecast.estimate_work(
        request.window, forecasts, load_plans, ledgers, tables, downstream_of_last_day or {}
    )
    table_forecasts = {n: _forecast_table(snapshot, n, by_day) for n, by_day in forecasts.items()}
    first_change = backfill_plan.find_first_change(request.window, table_forecasts)
    stages, run_count = _cut_stages(
        request, estimate, deployment.settings.partitions_per_run, first_change
    )
    # Tables by event day are built in separate runs, after the log.
    waves = 2 if {*days} & {*tables.sources} and len(days) > 1 else 1
    # Dagster makes a run for each part of a backfill's days.
    part_count = len({tables.tables[name].part for name in days} - {""}) or 1
    runs, has_work = run_count * waves * part_count, any(work.values())
    used_tables = {*days, *(source for name in days for source in tables.direct_inputs(name))}
    return backfill_plan.BackfillPlan(
        id=id_,
        parameters=request,
        code_version=code.version,
        code_versions={name: code.table_version(name) for name in days},
        code=str(code),
        config_digest=deployment.settings.digest,
        versions={name: last_change(ledgers[name]) for name in ledgers if name in used_tables},
        landing=digest_load_plans(load_plans) if load_plans else "",
        held=_sorted_names(target.manifest.awaiting_approval for target in targets),
        replaced=_sorted_names(target.replaced for target in targets),
        tables=table_forecasts,
        keys={n: tuple(ledgers[n].table.key) for n in work if work[n] and ledgers[n].table.key},
        only_read=_days_only_read(days, work, snapshot),
        following=_following_days(days, work, snapshot),
        files=files,
        size=size,
        commits=sum(min(len(table_days), run_count) for table_days in work.values()),
        runs=runs,
        seconds=forecast.expected_seconds(
            run_history, runs, len(request.window) * waves * part_count
        )
        if has_work
        else 0,
        calls=forecast.estimate_api_calls(forecasts, ledgers),
        cut=stages,
        skews=tuple(backfill_plan.find_skews(_input_days_read(work, snapshot), ledgers)),
    )


def _load_plans(
    deployment: Deployment,
    request: backfill_plan.BackfillRequest,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
) -> dict[str, LoadPlan]:
    """The load plan of each raw log of which days, or rejected lines of days, are requested."""
    policy, accept = deployment.policy, request.accept
    return {
        log: plan_load(deployment.settings.landing, source, ledgers[log], load_days, policy, accept)
        for log, source in deployment.graph.sources.items()
        if (load_days := {*days.get(log, ()), *days.get(source.rejected.name, ())})
    }


def _add_load_plans(snapshot: Snapshot, load_plans: Mapping[str, LoadPlan]) -> Snapshot:
    """The snapshot with what the tables of each raw log would be loaded from."""
    by_table = {
        name: load_plans[log]
        for name in snapshot.graph.landed_tables
        for log in snapshot.graph.source_logs(name)
        if log in load_plans
    }
    return replace(
        snapshot,
        digests={name: load_plan.load_digests for name, load_plan in by_table.items()},
        changes={name: load_plan.changes for name, load_plan in by_table.items()},
        folder_plans={
            log: {day: t.manifest.lacks_folder(day) for day, t in load_plan.targets.items()}
            for log, load_plan in load_plans.items()
        },
    )


def _cut_stages(
    request: backfill_plan.BackfillRequest,
    estimate: forecast.WorkEstimate,
    max_days: int,
    first_change: backfill_plan.FirstChange | None,
) -> tuple[tuple[backfill_plan.Stage, ...], int]:
    """The stages, and their number of runs: of at most `max_days` days, without gaps."""
    split_evenly = partial(forecast.even_stages, work=estimate, days_per_run=max_days)
    pilot_start = first_change.day if first_change else date.min
    stages = list(request.split_stages(split_evenly, pilot_start))
    ranges = [part for _, window in stages for part in partitions.to_windows(window)]
    runs = sum(len(part.split_by_length(max_days)) for part in ranges)
    return tuple(
        backfill_plan.Stage(name=name, days=str(window), work=estimate.run_work(window))
        for name, window in stages
    ), runs


def _forecast_table(
    snapshot: Snapshot, table: str, forecasts: Mapping[date, forecast.DayForecast]
) -> backfill_plan.TableForecast:
    """The day forecasts of one table as ranges by outcome and by reason, as a plan stores them."""
    final = snapshot.final_by_table.get(table, ())
    days_by_outcome: dict[str, list[date]] = defaultdict(list)
    days_by_reason: dict[str, list[date]] = defaultdict(list)
    for day, (outcome, reason) in forecasts.items():
        days_by_outcome[outcome.name.lower()].append(day)
        if reason:
            days_by_reason[reason].append(day)
    return backfill_plan.TableForecast(
        **{name: tuple(partitions.to_ranges(days)) for name, days in days_by_outcome.items()},
        final=tuple(partitions.to_ranges(day for day in forecasts if day in final)),
        why={reason: tuple(partitions.to_ranges(d)) for reason, d in days_by_reason.items()},
        apart=snapshot.ledgers[table].table.grain.value,
    )


def _count_input_files(
    load_plans: Mapping[str, LoadPlan],
    work: Mapping[str, Collection[date]],
    snapshot: Snapshot,
) -> tuple[int, int]:
    """Most files that are read, and their size in bytes."""
    entries = [entry for load_plan in load_plans.values() for entry in load_plan.entries]
    files, size = len(entries), sum(entry.size for entry in entries)
    for input_, days in _input_days_read(work, snapshot):
        stored = [snapshot.ledgers[input_].stored[day] for day in days]
        files += sum(day.files for day in stored)
        size += sum(day.size for day in stored)
    return files, size


def _days_only_read(
    days: Mapping[str, Collection[date]],
    work: Mapping[str, Collection[date]],
    snapshot: Snapshot,
) -> dict[str, tuple[str, ...]]:
    """The published days that the computed days read and that are not in the plan, as ranges."""
    days_by_input: dict[str, set[date]] = {}
    for input_, days_read in _input_days_read(work, snapshot):
        days_by_input.setdefault(input_, set()).update(days_read.difference(days.get(input_, ())))
    return {
        input_: tuple(partitions.to_ranges(input_days))
        for input_, input_days in days_by_input.items()
        if input_days
    }


def _following_days(
    days: Mapping[str, Collection[date]],
    work: Mapping[str, Collection[date]],
    snapshot: Snapshot,
) -> dict[str, tuple[str, ...]]:
    """The published days that read a day to compute and are not in the plan, as ranges."""
    return {
        name: tuple(partitions.to_ranges(left_days))
        for name, changing_days in dependent_days(snapshot, work).items()
        if (left_days := changing_days.difference(days.get(name, ())))
    }


def _sorted_names(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in groups for name in names}))


def last_change(ledger: Ledger) -> int | None:
    """The version of the last commit that changed rows; maintenance commits do not count."""
    return max((commit.version for commit in ledger.all_commits), default=None)


def _input_days_read(
    work: Mapping[str, Collection[date]], snapshot: Snapshot
) -> Iterator[tuple[str, set[date]]]:
    """Each input of the computed days, with its published days that they read."""
    for name, days in work.items():
        for dependency in snapshot.graph.inputs[name]:
            source = snapshot.ledgers[dependency.source.name]
            if source.stored:
                deciding = dependency.reach.deciding_days(source)
                days_read = {d for day in days for d in deciding(day) if d in source.stored}
                yield dependency.source.name, days_read


#: Most files of a source to sample, spread over as many days as possible.
MAX_SAMPLED_FILES = 32


def add_sampled_skews(
    deployment: Deployment, plan: backfill_plan.BackfillPlan
) -> backfill_plan.BackfillPlan:
    """Add to a plan the skew of days that are loaded for the first time, from sampled files.

    Only sources whose staged table watches a column are sampled. Files that cannot be sampled are
    listed in the plan.
    """
    skews, unsampled = list(plan.skews), list[str]()
    for log, source in deployment.graph.sources.items():
        table_forecast = plan.tables.get(log)
        if table_forecast is None or not source.staged.skew:
            continue
        ledger = read_ledger(deployment.table_url(log), source.raw)
        days = [
            day for day in partitions.from_ranges(table_forecast.computed) if _is_new(ledger, day)
        ]
        lines: dict[date, list[Values]] = {}
        for day, values_or_error in _sample_files(deployment.settings.landing, source, days):
            if isinstance(values_or_error, str):
                unsampled.append(values_or_error)
            else:
                lines.setdefault(day, []).extend(values_or_error)
        skews += backfill_plan.find_sampled_skews(source.staged, lines)
    return plan.model_copy(update={"skews": tuple(skews), "unsampled": tuple(unsampled)})


def _is_new(ledger: Ledger, day: date) -> bool:
    return day not in ledger.published_days


def _sample_files(
    landing: str, source: Source, days: Sequence[date]
) -> Iterator[tuple[date, list[Values] | str]]:
    """Sampled lines by arrival day, or a text that names the file that cannot be sampled."""
    fields = [*source.staged.skew]
    try:
        listing = list_landing(landing, source, _spread_evenly(days, MAX_SAMPLED_FILES))
    except LandingError as error:
        yield date.min, str(error)
        return
    days_by_file: dict[ListedFile, date] = {}
    files_per_day = max(1, MAX_SAMPLED_FILES // max(1, len(listing.folders)))
    for day in listing.folders:
        files = [
            entry
            for entry in listing.files_on(day).values()
            if entry.name != CONTROL_FILE and (entry.size or entry.refused)
        ]
        days_by_file |= dict.fromkeys(_spread_evenly(files, files_per_day), day)
    never_null = [n for n, name in enumerate(fields) if name not in source.may_be_null]
    for entry, values_or_error in sample_values(landing, source, [*days_by_file], fields).items():
        if isinstance(values_or_error, str):
            yield days_by_file[entry], f"{source.name}/{entry.source_file} ({values_or_error})"
        else:
            # The load rejects a line with null in such a field.
            complete_lines = [
                line for line in values_or_error if all(line[n] is not None for n in never_null)
            ]
            yield days_by_file[entry], complete_lines


def _spread_evenly(items: Sequence[Item], limit: int) -> list[Item]:
    """At most `limit` items, evenly spread, with the first and the last."""
    if len(items) <= limit:
        return [*items]
    return [items[n * (len(items) - 1) // max(1, limit - 1)] for n in range(limit)]


#: What becomes of most days of most plans, and why: it needs no row for each table.
_USUAL_OUTCOMES = (
    backfill_plan.DayOutcome.IDENTICAL,
    backfill_plan.DayOutcome.COMPUTED,
    backfill_plan.DayOutcome.DEPENDS,
)
_USUAL_REASONS = ("", "never published", "new input", "new files", REQUESTED)


def total_rows(plan: backfill_plan.BackfillPlan) -> Iterator[tuple[str, str, str, str]]:
    """Rows for a reader: number of days and outcome, kind of reason, tables, first and last day."""
    totals: dict[tuple[backfill_plan.DayOutcome, str], dict[str, list[date]]] = {}
    for name, outcomes in plan.tables.items():
        for outcome, reason, days in outcomes.days_by_reason():
            days_by_table = totals.setdefault((outcome, _reason_kind(reason)), {})
            days_by_table.setdefault(name, []).extend(days)
    for (outcome, kind), days_by_table in totals.items():
        days = sorted(day for table_days in days_by_table.values() for day in table_days)
        tables = (
            ", ".join(days_by_table) if len(days_by_table) < 3 else f"{len(days_by_table)} tables"
        )
        span = partitions.Window(days[0], days[-1] + partitions.DAY)
        yield f"{len(days)} {outcome.value}", kind, tables, str(span)


def unusual_rows(plan: backfill_plan.BackfillPlan) -> Iterator[tuple[str, str, str, str]]:
    """The rows of `backfill_plan.day_rows` that a reader should look at one by one."""
    for name, outcomes in plan.tables.items():
        for outcome, reason, days in outcomes.days_by_reason():
            kinds = {_reason_kind(part) for part in reason.split("; ")}
            if outcome not in _USUAL_OUTCOMES or not kinds <= {*_USUAL_REASONS}:
                yield name, f"{len(days)} {outcome.value}", reason, outcomes.format_days(days)


def _reason_kind(reason: str) -> str:
    """The first reason of several, without the names that follow it."""
    return reason.partition("; ")[0].partition(":")[0]
