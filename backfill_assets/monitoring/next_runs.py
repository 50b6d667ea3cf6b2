"""The next runs: those that load what has landed, then those that rebuild what it changed.

Used by the schedule, the sensors and the command `backfill-assets night`. Without a daemon,
`run_night` does what schedule and sensors would do.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from functools import cache
from types import MappingProxyType

import dagster as dg

from backfill_assets.backfills.backfill_plan import materialize_command, select_command
from backfill_assets.backfills.state_store import active_launches
from backfill_assets.calendar.partitions import DAY, DaySet, Grain, Window
from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.run_locks import is_run_alive
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import list_landing
from backfill_assets.staleness.assess import assess, find_obstacles
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import StaleDays, StaleReason, find_stale_days
from backfill_assets.staleness.unloaded import UnloadedDays, find_unloaded_days, no_data_warning
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table

#: The most runs of one batch; those of the same tables count as one.
BATCH_SIZE = 5


@dataclass(frozen=True)
class Request:
    """A run to launch: days of some tables, of one grain.

    Attributes:
        tables: names of the tables to build.
        window: the days.
        key: identifies the purpose: the same days for the same inputs have the same key.
    """

    tables: tuple[str, ...]
    window: Window
    key: str


#: Says something of a day of a table.
DayRule = Callable[[str, date], bool]
#: Days by the name of a table.
DaysByTable = Mapping[str, Container[date]]


#: The days of a table that a run would refuse, given what it builds before, by table.
BlockRule = Callable[[str, Collection[date], Mapping[str, Collection[date]]], Collection[date]]


def load_requests(
    unloaded: Mapping[str, UnloadedDays],
    graph: Graph,
    per_run: int,
    failed_days: DaysByTable = MappingProxyType({}),
    find_blocked: BlockRule = lambda _table, _days, _built: (),
) -> list[Request]:
    """Return the runs that load what has landed, with the tables by log day that can follow.

    `per_run` is the most days of a run; `failed_days` are those that the last run of them could not
    publish, which do not share a run with others.
    """
    groups: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
    for log, unloaded_days in unloaded.items():
        built: dict[str, Collection[date]] = {}
        for table in graph.loaded_with(log):
            days = built[table] = unloaded_days.days_to_load.keys()
            if table not in graph.landed_tables:
                built[table] = days - {*find_blocked(table, days, built)}
        for day, token in unloaded_days.days_to_load.items():
            groups[tuple(table for table in built if day in built[table])][day] = token
    return _drop_waiting_parts(_build_requests(groups, graph, per_run, failed_days), graph)


def _writer_will_build(
    table: str, reason: StaleReason, waiting_tables: Mapping[str, Container[str]]
) -> bool:
    """Whether an unfinished run or backfill that changed an input of the day builds the table."""
    writer_ids = {
        id_
        for record in reason.input_commits.values()
        for id_ in (record.run_id, record.backfill_id)
        if id_
    }
    return any(table in waiting_tables.get(id_, ()) for id_ in writer_ids)


def rebuild_requests(
    stale: StaleDays,
    graph: Graph,
    per_run: int,
    waiting_tables: Mapping[str, Container[str]] | None = None,
    may_include: DayRule = lambda _table, _day: False,
    failed_days: DaysByTable = MappingProxyType({}),
    is_due: DayRule = lambda _table, _day: True,
    find_blocked: BlockRule = lambda _table, _days, _built: (),
) -> list[Request]:
    """Return the runs that bring the open days up to date, in ascending order of their days.

    `per_run` and `failed_days` are as in `load_requests`. `waiting_tables` has, by id of an
    unfinished run or backfill, the tables that it will still build if it has changed one of their
    inputs. `may_include` says whether a run may include a day that need not be built, without
    changing it. A table that is blocked or not due on a day is not rebuilt together with its
    inputs.
    """
    tokens: dict[tuple[date, str], str] = {}
    for table in (*graph.by_log_day, *graph.by_event_day):
        for day, reason in stale.open.get(table, {}).items():
            if not _writer_will_build(table, reason, waiting_tables or {}):
                tokens[day, table] = reason.commit_key
    groups: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
    for chain, together in _table_chains(graph):
        tables_by_day: dict[date, tuple[str, ...]] = {}
        own_days: dict[str, set[date]] = defaultdict(set)
        for day in sorted({day for day, table in tokens if table in chain}):
            stale_tables = tuple(table for table in chain if (day, table) in tokens)
            # By event day, downstream tables are rebuilt together with a table.
            build = _with_followers(stale_tables, chain, graph) if together else stale_tables
            # But not those whose input another run will build.
            waits = {table for table in chain if day in stale.open.get(table, ())} - {*build}
            waits -= graph.upstream_tables(stale_tables[0])
            built: dict[str, Collection[date]] = {}
            for name in build:
                if not waits.isdisjoint(graph.upstream_tables(name)):
                    continue
                before = {**built, name: own_days[name]}
                if name in stale_tables or (
                    is_due(name, day) and day not in find_blocked(name, [day], before)
                ):
                    built[name] = [day]
                    own_days[name].add(day)
            tables_by_day[day] = (*built,)
        for day, tables in tables_by_day.items():
            allowed_tables = [
                table for table in chain if table in tables or may_include(table, day)
            ]
            build = _widest_build(tables, tables_by_day.values(), allowed_tables)
            token = ",".join(tokens[day, table] for table in chain if (day, table) in tokens)
            groups[build][day] = token
    return _drop_waiting_parts(_build_requests(groups, graph, per_run, failed_days), graph)


def _table_chains(graph: Graph) -> Iterator[tuple[list[str], bool]]:
    """Yield tables that one run may build, and whether downstream ones are built with a table."""
    for tables, together in ((graph.by_log_day, False), (graph.by_event_day, True)):
        for cadence in Grain:
            chains: dict[tuple[str, str], list[str]] = {}
            for name in tables:
                table = graph.tables[name]
                if table.grain is cadence:
                    chains.setdefault((table.job_name, table.part), []).append(name)
            yield from ((chain, together) for chain in chains.values())


def _drop_waiting_parts(requests: Sequence[Request], graph: Graph) -> list[Request]:
    """Drop runs of a stateful table whose first day follows the last one of another run.

    Stateful days cannot be built by parallel runs. The later days are still stale after that run.
    """
    runnable: list[Request] = []
    ends: dict[tuple[str, ...], date] = {}
    for request in requests:
        is_stateful = any(carries_state(graph.tables[name]) for name in request.tables)
        if not (is_stateful and ends.get(request.tables) == request.window.start):
            runnable.append(request)
        ends[request.tables] = request.window.end
    return runnable


def _with_followers(
    stale_tables: Sequence[str], chain: Sequence[str], graph: Graph
) -> tuple[str, ...]:
    """Return the tables, and those later in the chain that have the same sources."""
    first = {log: name for name in reversed(stale_tables) for log in graph.source_logs(name)}
    return tuple(
        name
        for n, name in enumerate(chain)
        if any(log in first and chain.index(first[log]) <= n for log in graph.source_logs(name))
    )


def first_batch(requests: Sequence[Request]) -> list[Request]:
    """Return the first requests, as many as one batch allows; those of the same tables are one."""
    first = [*dict.fromkeys(request.tables for request in requests)][:BATCH_SIZE]
    return [request for request in requests if request.tables in first]


def _widest_build(
    tables: Collection[str], builds: Iterable[tuple[str, ...]], allowed_tables: Collection[str]
) -> tuple[str, ...]:
    """Return the most tables built for some day that may also be built for this day."""
    return max((b for b in builds if {*tables} <= {*b} <= {*allowed_tables}), key=len)


def _build_requests(
    groups: Mapping[tuple[str, ...], Mapping[date, str]],
    graph: Graph,
    per_run: int,
    failed_days: DaysByTable,
) -> list[Request]:
    """Return the requests of each group of tables, of at most `per_run` days.

    `groups` has, by tables that one run builds, a token of the inputs of each day. The run key has
    them: a request that failed is made again if an input changes, or the next night. Days that
    failed have requests of their own, so that new days do not change their key; not those of a
    stateful table, whose days are built one upon the other.
    """
    requests = []
    for tables, tokens in groups.items():
        split_into_runs = graph.tables[tables[0]].grain.split_into_runs
        failed = {day for day in tokens if any(day in failed_days.get(t, ()) for t in tables)}
        if any(carries_state(graph.tables[name]) for name in tables):
            failed = set()
        for part in (tokens.keys() - failed, failed):
            for days in split_into_runs(part, per_run):
                inputs = str(days), sorted({tokens[day] for day in days if day in tokens})
                digest = hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]
                first_to_last = Window(days.start, days.end)
                key = f"{'+'.join(tables)}:{first_to_last}:{digest}"
                requests.append(Request(tables, days, key))
    requests.sort(key=lambda request: (request.window.start, -len(request.tables)))
    return _join_parts(requests, graph)


def _join_parts(requests: Iterable[Request], graph: Graph) -> list[Request]:
    """Return requests of the same days, without gaps, of the parts of the same tables as one."""
    joined: list[Request] = []
    for request in requests:
        for n, other in enumerate(joined):
            is_alike = request.window == other.window and not isinstance(other.window, DaySet)
            if is_alike and graph.follows_part(request.tables, other.tables):
                digest = hashlib.sha256(f"{other.key} {request.key}".encode()).hexdigest()[:12]
                tables = (*other.tables, *request.tables)
                key = f"{'+'.join(graph.join_parts(tables))}:{other.window}:{digest}"
                joined[n] = Request(tables, other.window, key)
                break
        else:
            joined.append(request)
    return joined


#: The tag of a run of a batch: `load` or `rebuild`. The queue runs one load at a time.
BATCH_TAG = "backfill_assets/batch"
LOAD, REBUILD = "load", "rebuild"
#: How long a failed run counts as unfinished while its retry is expected.
_RETRY_PERIOD = timedelta(minutes=10)

RequestFilter = Callable[[Sequence[Request]], list[Request]]


class RunPlanner:
    """Plans the next runs as of a business day.

    Args:
        deployment: whose tables they are.
        now: the business day by the clock, if another one may be planned: a table that is retired
            by now has no asset to run, whatever day is planned.
    """

    def __init__(self, deployment: Deployment, now: date = date.min) -> None:
        self.deployment = deployment
        self._now = now
        self._code = deployment.code

    def fed_tables(self, today: date) -> Mapping[str, Table]:
        """Return the tables that are not retired on a business day, by name."""
        return self._fed_graph(today).tables

    def _fed_graph(self, today: date) -> Graph:
        return self.deployment.graph.without_retired(max(today, self._now))

    def night_of(self, moment: datetime) -> date:
        """Return the date on which the last nightly run before a moment began."""
        local = moment.astimezone(self.deployment.settings.zone)
        has_begun = local.strftime("%H:%M") >= self.deployment.settings.nightly_at
        return local.date() - (not has_begun) * DAY

    def plan_loads(self, today: date) -> list[Request]:
        """Return the runs that load what has landed, in ascending order of their days."""
        ledgers, unloaded = self._read_unloaded(today)
        if not any(unloaded_days.days_to_load for unloaded_days in unloaded.values()):
            return []
        all_ledgers = read_ledgers(self.deployment)
        return load_requests(
            unloaded,
            self._fed_graph(today),
            self.deployment.settings.partitions_per_run,
            _failed_days_by_table(ledgers),
            make_block_rule(Snapshot.from_deployment(self.deployment, all_ledgers, today)),
        )

    def _read_unloaded(self, today: date) -> tuple[Ledgers, Mapping[str, UnloadedDays]]:
        tables = [self.deployment.tables[name] for name in self.deployment.graph.landed_tables]
        ledgers = {t.name: read_ledger(self.deployment.table_url(t.name), t) for t in tables}
        return ledgers, unloaded_by_log(self.deployment, ledgers, self.deployment.graph, today)

    def no_data_warnings(self, today: date) -> dict[str, str]:
        """Return, by raw log whose source has been silent for long, a warning."""
        _, unloaded = self._read_unloaded(today)
        warnings = (
            (log, no_data_warning(unloaded_days, self.deployment.graph.policy_of(log), today))
            for log, unloaded_days in unloaded.items()
        )
        return {log: warning for log, warning in warnings if warning}

    def days_for_a_person(self, today: date) -> Iterator[tuple[str, Collection[date], str]]:
        """Yield table, days and reason of days that no schedule and no sensor builds."""
        ledgers = read_ledgers(self.deployment)
        stale = find_stale_days(Snapshot.from_deployment(self.deployment, ledgers, today))
        unloaded = unloaded_by_log(self.deployment, ledgers, self.deployment.graph, today)
        for table in self.deployment.tables:
            ledger = ledgers[table]
            if table in unloaded and (reverted := unloaded[table].reverted_days):
                yield table, reverted, "on hold, as a person reverted files that still lie there"
            if final := stale.final.get(table):
                yield table, final.keys(), "final, and new input has come since"
            if on_hold := stale.on_hold.get(table):
                yield table, on_hold, "on hold, as a person decided against these rows"
            if other := ledger.under_other_settings(self.deployment.config_digests[table]):
                yield table, other, "made under other settings than those of now"

    def blocked_days(self, today: date) -> Iterator[tuple[str, Collection[date], str]]:
        """Yield table, days and reason of days that are behind and that no run could build."""
        snapshot = Snapshot.from_deployment(self.deployment, read_ledgers(self.deployment), today)
        for table, obstacles in find_stale_days(snapshot).blocked.items():
            days_by_text: dict[str, list[date]] = defaultdict(list)
            for day, obstacle in sorted(obstacles.items()):
                days_by_text[obstacle.text].append(day)
            for text, days in days_by_text.items():
                yield table, days, text

    def plan_rebuilds(
        self, today: date, in_progress: Mapping[str, Collection[str]]
    ) -> list[Request]:
        """Return the runs that bring open days up to date.

        `in_progress`, the result of `tables_in_progress`, must be read before this call.
        """
        ledgers = read_ledgers(self.deployment)
        snapshot = Snapshot.from_deployment(self.deployment, ledgers, today)
        stale = find_stale_days(snapshot)
        if not any(stale.open.values()):
            return []
        snapshot = Snapshot.from_deployment(self.deployment, ledgers, today, self._code)
        may_include = make_inclusion_rule(snapshot, stale)
        due_days = cache(lambda table: snapshot.graph.expected_days(table, today))
        per_run = self.deployment.settings.partitions_per_run
        return rebuild_requests(
            stale,
            self._fed_graph(today),
            per_run,
            in_progress,
            may_include,
            _failed_days_by_table(ledgers),
            lambda table, day: day in due_days(table),
            make_block_rule(snapshot),
        )

    def command_of(self, request: Request) -> list[str]:
        """Return the command for a request."""
        assets = assets_of(request.tables, self.deployment.tables)
        keys, table_count = [*map(self.deployment.asset_key, assets)], len(request.tables)
        if self.deployment.tables[request.tables[0]].part:
            names = self.deployment.graph.join_parts(request.tables)
            return select_command("materialize", request.window, names)
        return materialize_command(keys[:table_count], request.window, keys[table_count:])

    def next_batch(
        self, today: date, in_progress: Mapping[str, Collection[str]], not_tried: RequestFilter
    ) -> tuple[str, list[Request]]:
        """Return the next requests and their kind: loads or, if there are none, rebuilds.

        All loads are returned at once, as they run one by one in the queue.

        `not_tried` removes requests that were made before.
        """
        if load_runs := not_tried(self.plan_loads(today)):
            return LOAD, load_runs
        return REBUILD, first_batch(not_tried(self.plan_rebuilds(today, in_progress)))


def _failed_days_by_table(ledgers: Ledgers) -> DaysByTable:
    return {name: ledger.failed_days for name, ledger in ledgers.items()}


def unloaded_by_log(
    deployment: Deployment, ledgers: Ledgers, graph: Graph, today: date
) -> dict[str, UnloadedDays]:
    """Return, by raw log, what has landed compared with what was loaded.

    Raises:
        LandingError: the landing is not where the settings say.
    """
    return {
        log: find_unloaded_days(
            ledgers[log],
            list_landing(deployment.settings.landing, source),
            graph.policy_of(log),
            today,
            ledgers[source.rejected.name],
        )
        for log, source in graph.sources.items()
    }


def make_inclusion_rule(snapshot: Snapshot, stale: StaleDays) -> DayRule:
    """Return a rule that allows published days with current settings and unchanged inputs.

    Computing such a day again changes no row; if its code has not changed either, it is not even
    computed. A final day is allowed only in the latter case: no scheduled run may write it.
    """
    ledgers = snapshot.ledgers

    @cache
    def published_days(table: str) -> frozenset[date]:
        tables = {table, *snapshot.graph.upstream_tables(table)}
        published = frozenset.intersection(*(ledgers[name].published_days for name in tables))
        blocked = find_obstacles(snapshot, table, published, own=False)
        return published - stale.all_days(table) - blocked.keys()

    @cache
    def protected_days(table: str) -> set[date]:
        final_days = snapshot.final_by_table.get(table, ())
        final = assess(snapshot, table, final_days, in_order=False)
        return {day for day, assessment in final.items() if not assessment.is_current}

    def may_include(table: str, day: date) -> bool:
        """Return whether a run that includes this day would leave its rows unchanged."""
        if day not in published_days(table) or day in protected_days(table):
            return False
        ledger = ledgers[table]
        return (
            ledger.current_record(day) is not None
            and ledger.latest[day].made_under(day) == snapshot.config_digests[table]
        )

    return may_include


def make_block_rule(snapshot: Snapshot) -> BlockRule:
    """Return a rule that finds the days which lack an input, or have it under other settings only.

    What a run builds before will be there, under the current settings.
    """
    known: dict[str, dict[date, bool]] = defaultdict(dict)

    def find_blocked(
        table: str, days: Collection[date], built: Mapping[str, Collection[date]]
    ) -> set[date]:
        """Return the days that a run would refuse."""
        new = [day for day in days if day not in known[table]]
        obstacles = find_obstacles(snapshot, table, new, own=True)
        known[table] |= {day: day in obstacles for day in new}
        blocked = [day for day in days if known[table][day]]
        if not blocked:
            return set()
        after = snapshot
        for name in {d.source.name for d in snapshot.inputs_of(table)} & built.keys():
            after = after.with_planned(name, built[name])
        return {*find_obstacles(after, table, blocked, own=True)}

    return find_blocked


def assets_of(names: Sequence[str], tables: Mapping[str, Table]) -> list[str]:
    """Return the assets that a run of tables selects: the tables, and their pages."""
    return [*names, *(page for name in names for page in tables[name].page_assets)]


@dataclass
class NightResult:
    """Outcome of a night without a daemon.

    `waiting` requests are left to unfinished runs of others.
    """

    succeeded: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)


def run_night(
    planner: RunPlanner,
    today: date,
    find_in_progress: Callable[[], Mapping[str, Collection[str]]],
    run_request: Callable[[str, Request, Collection[date]], bool],
) -> NightResult:
    """Run batch after batch, reading the tables again after each, until nothing is due.

    A failed request is not tried again; the others continue. `run_request` is given the kind of a
    request, the request, and the days of its tables that later requests of the batch build.
    """
    result = NightResult()

    def not_tried(requests: Sequence[Request]) -> list[Request]:
        tried = {request.key for request in (*result.succeeded, *result.failed)}
        return [request for request in requests if request.key not in tried]

    while True:
        kind, requests = planner.next_batch(today, find_in_progress(), not_tried)
        if not requests:
            break
        for n, request in enumerate(requests, 1):
            later_days = [
                day
                for later in requests[n:]
                if {*request.tables} <= {*later.tables}
                for day in later.window
            ]
            succeeded = run_request(kind, request, later_days)
            (result.succeeded if succeeded else result.failed).append(request)
    result.waiting = not_tried(planner.plan_rebuilds(today, {}))
    return result


def tables_in_progress(
    instance: dg.DagsterInstance, deployment: Deployment, *, daemon: bool = True
) -> dict[str, frozenset[str]]:
    """Return, by id of each unfinished run and backfill, the tables that wait for it.

    What others run, and another deployment on the same instance, is left out.

    Without a daemon, queued runs are never launched, and runs whose process is dead are never ended
    or retried: they are left out.
    """
    waiting_tables = {
        run.run_id: written
        for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED_STATUSES))
        if (written := _written_tables(instance, run, deployment))
        if daemon or (run.status not in _WAITING and is_run_alive(instance, run) is not False)
    }
    for launch in active_launches(instance) if daemon else ():
        keys = launch.asset_selection
        if keys is None or deployment.tables_of(keys):
            # All tables wait: until the backfill ends, its next run may change their inputs again.
            waiting_tables[launch.backfill_id] = frozenset(deployment.tables)
    return waiting_tables


UNFINISHED_STATUSES = [
    status for status in dg.DagsterRunStatus if status not in internals.FINISHED_STATUSES
]
_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def unfinished_batch_runs(
    instance: dg.DagsterInstance, deployment: Deployment, kinds: Sequence[str] = (LOAD, REBUILD)
) -> list[str]:
    """Return the ids of the deployment's batch runs that have not ended, or will be retried."""
    tags = {BATCH_TAG: list(kinds)}
    unfinished = instance.get_runs(dg.RunsFilter(tags=tags, statuses=UNFINISHED_STATUSES))
    failed = instance.get_runs(
        dg.RunsFilter(
            tags={**tags, internals.WILL_RETRY_TAG: "true"},
            statuses=[dg.DagsterRunStatus.FAILURE],
            updated_after=datetime.now(timezone.utc) - _RETRY_PERIOD,
        )
    )
    runs_to_retry = [run for run in failed if run.is_complete_and_waiting_to_retry]
    return [run.run_id for run in (*unfinished, *runs_to_retry) if deployment.owns_run(run)]


def not_launched(instance: dg.DagsterInstance, keys: Collection[str]) -> set[str]:
    """Return the run keys that no run has had."""
    if not keys:
        return set()
    runs = instance.get_runs(dg.RunsFilter(tags={internals.RUN_KEY_TAG: sorted(keys)}))
    return {*keys} - {run.tags[internals.RUN_KEY_TAG] for run in runs}


#: The jobs of ops that write tables.
_WRITING_JOBS = frozenset(["housekeeping", "maintenance", "switch_over", "undo"])


def _written_tables(
    instance: dg.DagsterInstance, run: dg.DagsterRun, deployment: Deployment
) -> frozenset[str]:
    """Return the tables that a run may write: of a whole job of ours, all."""
    tables, job = deployment.tables, deployment.job_of_run(run)
    if run.asset_selection:
        keys = run.asset_selection
    elif job in _WRITING_JOBS or Grain.of_job(job) or run.job_name.startswith("__ASSET_JOB"):
        return frozenset(tables)
    else:
        planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        entries = instance.all_logs(run.run_id, of_type=planned)
        keys = {key for entry in entries if (key := entry.get_dagster_event().asset_key)}
    return frozenset(deployment.tables_of(keys)).intersection(tables)
