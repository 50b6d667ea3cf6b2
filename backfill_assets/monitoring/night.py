"""What a night asks for: the runs that load what has landed, then those that rebuild what it moved.

The schedule, the sensors and the command `backfill-assets night` all ask here. What is to be built
is decided in `backlog` and `run_requests`; here it meets tables, landing and Dagster's instance.
Without a daemon, `run_night` does what schedule and sensors would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from functools import cache

import dagster as dg

from backfill_assets.calendar.partitions import DAY
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.internals import (
    FINISHED_STATUSES,
    RUN_KEY_TAG,
    WILL_RETRY_TAG,
    BulkActionStatus,
)
from backfill_assets.dagster_ext.run_locks import is_alive
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.reading import read_ledger, read_ledgers
from backfill_assets.landing.listing import list_landing
from backfill_assets.monitoring.run_requests import (
    GapRule,
    Request,
    first_batch,
    load_requests,
    rebuild_requests,
)
from backfill_assets.publish.reasons import recompute_reason
from backfill_assets.settings import Settings
from backfill_assets.staleness.arrivals import UnloadedDays, find_unloaded_days, no_data_warning
from backfill_assets.staleness.backlog import StaleDays, find_stale_days
from backfill_assets.staleness.finality import final_days
from backfill_assets.staleness.fingerprints import input_digests
from backfill_assets.tables.catalog import config_digests, graph_for
from backfill_assets.tables.code_version import Code, running_code
from backfill_assets.tables.graph import Graph, graph_of
from backfill_assets.tables.table import Table

#: The tag of a run of a wave: `load` or `rebuild`. The queue lets one load go at a time.
BATCH_TAG = "backfill_assets/wave"
LOAD, REBUILD = "load", "rebuild"
#: For so long a run that failed counts as under way while its retry is still to come.
_RETRY_PERIOD = timedelta(minutes=10)

RequestFilter = Callable[[Sequence[Request]], list[Request]]


class RunPlanner:
    """What there is to do as of a business day.

    Args:
        settings: the deployment's settings.
        now: the business day by the clock, if another may be asked for: a table that is retired by
            now has no asset that a run could make, whatever day is asked for.
    """

    def __init__(self, settings: Settings, now: date = date.min) -> None:
        self.settings = settings
        self._now = now
        self.policy = Policy.from_settings(settings)
        self._code = running_code(settings)
        self._configs = config_digests(settings)
        self._graph = graph_for(settings)
        self.tables = self._graph.tables

    def fed_tables(self, today: date) -> Mapping[str, Table]:
        """The tables that are fed on a business day, by name: those that are not retired."""
        return self._fed_graph(today).tables

    def _fed_graph(self, today: date) -> Graph:
        return self._graph.without_retired(max(today, self._now))

    def night_of(self, moment: datetime) -> date:
        """The day on which the night before a moment began its work."""
        local = moment.astimezone(self.settings.zone)
        began = local.strftime("%H:%M") >= self.settings.nightly_at
        return local.date() if began else local.date() - DAY

    def plan_loads(self, today: date) -> list[Request]:
        """The runs that load what has landed, in ascending order of their days."""
        ledgers, unloaded = self._read_unloaded(today)
        graph = self._fed_graph(today)

        @cache
        def unchanged_days(log: str) -> set[date]:
            return set.intersection(
                *(
                    _unchanged_days(
                        ledger,
                        unloaded[log].fingerprints,
                        self._code.table_version(name),
                        self._configs[name],
                    )
                    for name, ledger in ledgers.items()
                    if log in self._graph.source_logs(name)
                )
            )

        def may_fill_gap(table: str, day: date) -> bool:
            return all(day in unchanged_days(log) for log in self._graph.source_logs(table))

        return load_requests(unloaded, graph, self.settings.partitions_per_run, may_fill_gap)

    def _read_unloaded(self, today: date) -> tuple[Ledgers, Mapping[str, UnloadedDays]]:
        tables = [self.tables[name] for name in self._graph.landed_tables]
        ledgers = {t.name: read_ledger(self.settings.table(t.name), t) for t in tables}
        return ledgers, unloaded_by_log(self.settings, ledgers, self._graph, today)

    def no_data_warnings(self, today: date) -> dict[str, str]:
        """By raw log whose source has been silent for long, what is to be said of it."""
        _, unloaded = self._read_unloaded(today)
        warnings = (
            (log, no_data_warning(unloaded_days, self._graph.policy_of(log), today))
            for log, unloaded_days in unloaded.items()
        )
        return {log: warning for log, warning in warnings if warning}

    def plan_rebuilds(
        self, today: date, in_progress: Mapping[str, Collection[str]]
    ) -> list[Request]:
        """The runs that bring open days up to date.

        Args:
            today: the business day.
            in_progress: what is under way, as `in_progress` says it, looked at before.
        """
        ledgers = read_ledgers(self.settings)
        stale = find_stale_days(ledgers, self.policy, today)
        if not any(stale.open.values()):
            return []
        may_fill_gap = make_gap_rule(ledgers, stale, self.policy, self._code, self._configs)
        per_run = self.settings.partitions_per_run
        return rebuild_requests(stale, self._fed_graph(today), per_run, in_progress, may_fill_gap)

    def materialize_command(self, request: Request) -> list[str]:
        """Dagster's own command for a request's run."""
        materialize = ["dagster", "asset", "materialize", "-m", "backfill_assets.definitions"]
        first, last = request.window.start, request.window.end - DAY
        selected = ",".join(assets_of(request, self.tables))
        return [*materialize, "--select", selected, "--partition-range", f"{first}...{last}"]

    def next_batch(
        self, today: date, in_progress: Mapping[str, Collection[str]], not_tried: RequestFilter
    ) -> tuple[str, list[Request]]:
        """What is to be run next, and its kind: loads, or once there are none, rebuilds.

        Loads are asked for all at once, as they follow each other in the queue. Between two ranges
        of them that are not one lies a day that cannot be loaded.

        Args:
            today: the business day.
            in_progress: what is under way, as `in_progress` says it.
            not_tried: takes away what was asked for before.
        """
        if load_runs := not_tried(self.plan_loads(today)):
            return LOAD, load_runs
        return REBUILD, first_batch(not_tried(self.plan_rebuilds(today, in_progress)))


def unloaded_by_log(
    settings: Settings, ledgers: Ledgers, graph: Graph, today: date
) -> dict[str, UnloadedDays]:
    """By raw log, what has landed against what was loaded.

    Args:
        settings: say where the landing is.
        ledgers: of the raw logs and the rejected lines.
        graph: of all tables.
        today: the business day.

    Raises:
        LandingError: the landing is not where the settings say.
    """
    return {
        log: find_unloaded_days(
            ledgers[log],
            list_landing(settings.landing, source),
            graph.policy_of(log),
            today,
            ledgers[source.rejected.name],
        )
        for log, source in graph.sources.items()
    }


def _unchanged_days(
    ledger: Ledger, fingerprints: Mapping[date, str], code: str, config: str
) -> set[date]:
    """The days that are published as this code and these settings would make them now."""
    code_and_settings = (code, config)
    return {
        day
        for day, fingerprint in fingerprints.items()
        if recompute_reason(ledger, day, fingerprint, *code_and_settings) is None
    }


def make_gap_rule(
    ledgers: Ledgers, stale: StaleDays, policy: Policy, code: Code, configs: Mapping[str, str]
) -> GapRule:
    """Tells the days that a run may take in although nothing asks for them.

    Those that are published, from these settings, with nothing new in their inputs: to compute them
    anew changes no row, and where nothing at all has changed they are not even computed. A final
    day only if it would not be computed: no scheduled run may write it.

    Args:
        ledgers: those of all tables.
        stale: the days that are behind.
        policy: the late-data policy.
        code: of the runs.
        configs: by table, the digest of the settings that decide it.
    """
    final_by_table, graph = final_days(ledgers, policy), graph_of(ledgers, policy)

    @cache
    def published_days(table: str) -> frozenset[date]:
        """The days on which the table and what it is made of are published."""
        tables = {table, *graph.upstream_tables(table)}
        published = (ledgers[name].published_days for name in tables)
        return frozenset.intersection(*published) - stale.all_days(table)

    @cache
    def protected_days(table: str) -> set[date]:
        days = final_by_table.get(table, set())
        references = ledgers[table].references
        fingerprints = input_digests(graph.inputs[table], ledgers, days, references)
        return days - _unchanged_days(
            ledgers[table], fingerprints, code.table_version(table), configs[table]
        )

    def may_fill_gap(table: str, day: date) -> bool:
        if day not in published_days(table) or day in protected_days(table):
            return False
        ledger = ledgers[table]
        return (
            ledger.current_record(day) is not None
            and ledger.latest[day].made_under(day) == configs[table]
        )

    return may_fill_gap


def assets_of(request: Request, tables: Mapping[str, Table]) -> list[str]:
    """The assets that a request's run is to select: the tables, and the pages made of them.

    Args:
        request: the request.
        tables: all tables, by name.
    """
    return [
        *request.tables,
        *(page for name in request.tables for page in tables[name].page_assets),
    ]


@dataclass
class NightResult:
    """What a night without a daemon did.

    Attributes:
        succeeded: the requests whose runs succeeded.
        failed: those whose runs failed.
        waiting: those that are left to runs that others have launched.
    """

    succeeded: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)


def run_night(
    planner: RunPlanner,
    today: date,
    find_in_progress: Callable[[], Mapping[str, Collection[str]]],
    run_request: Callable[[str, Request], bool],
) -> NightResult:
    """Run wave after wave, looking again after each, until nothing is asked for.

    What failed is not tried again; the rest goes on, as at night.

    Args:
        planner: what there is to do.
        today: the business day.
        find_in_progress: what is under way besides, as `tables_in_progress` says it.
        run_request: runs a request of a kind, and tells whether that succeeded.
    """
    result = NightResult()

    def not_tried(requests: Sequence[Request]) -> list[Request]:
        tried = {request.key for request in (*result.succeeded, *result.failed)}
        return [request for request in requests if request.key not in tried]

    while True:
        kind, requests = planner.next_batch(today, find_in_progress(), not_tried)
        if not requests:
            break
        for request in requests:
            (result.succeeded if run_request(kind, request) else result.failed).append(request)
    result.waiting = not_tried(planner.plan_rebuilds(today, {}))
    return result


def tables_in_progress(
    instance: dg.DagsterInstance, tables: Collection[str], *, daemon: bool = True
) -> dict[str, frozenset[str]]:
    """What waits for the runs and backfills that are under way: tables, by the id of each.

    Args:
        instance: where they run.
        tables: all tables, by name.
        daemon: whether a daemon is at work. Without one nobody launches what is queued, and nobody
            gives up or repeats a run whose process is gone.
    """
    waiting_tables = {
        run.run_id: _selected_tables(run.asset_selection, tables)
        for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED_STATUSES))
        if daemon or (run.status not in _WAITING and is_alive(instance, run) is not False)
    }
    for status in (BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING):
        for backfill in instance.get_backfills(status=status) if daemon else ():
            # All that follows: until it has ended, its next run may change the inputs again.
            waiting_tables[backfill.backfill_id] = frozenset(tables)
    return waiting_tables


#: The statuses of a run that has not ended.
UNFINISHED_STATUSES = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]
_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def unfinished_batch_runs(
    instance: dg.DagsterInstance, kinds: Sequence[str] = (LOAD, REBUILD)
) -> list[str]:
    """The runs of waves before that have not ended, or are about to be retried; their ids."""
    tags = {BATCH_TAG: list(kinds)}
    unfinished = instance.get_runs(dg.RunsFilter(tags=tags, statuses=UNFINISHED_STATUSES))
    failed = instance.get_runs(
        dg.RunsFilter(
            tags={**tags, WILL_RETRY_TAG: "true"},
            statuses=[dg.DagsterRunStatus.FAILURE],
            updated_after=datetime.now(timezone.utc) - _RETRY_PERIOD,
        )
    )
    runs_to_retry = [run for run in failed if run.is_complete_and_waiting_to_retry]
    return [run.run_id for run in (*unfinished, *runs_to_retry)]


def not_launched(instance: dg.DagsterInstance, keys: Collection[str]) -> set[str]:
    """The run keys that no run has had."""
    if not keys:
        return set()
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: sorted(keys)}))
    return {*keys} - {run.tags[RUN_KEY_TAG] for run in runs}


def _selected_tables(
    selection: Collection[dg.AssetKey] | None, tables: Collection[str]
) -> frozenset[str]:
    """The selected assets; without a selection, all."""
    if selection is None:
        return frozenset(tables)
    return frozenset(key.to_user_string() for key in selection)
