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
    Bridge,
    Request,
    handful,
    load_requests,
    rebuild_requests,
)
from backfill_assets.publish.reasons import why
from backfill_assets.settings import Settings
from backfill_assets.staleness.arrivals import Arrivals, arrivals, silence
from backfill_assets.staleness.backlog import Backlog, backlog
from backfill_assets.staleness.finality import final_days
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.tables.catalog import config_digests, graph_for
from backfill_assets.tables.code_version import Code, running_code
from backfill_assets.tables.graph import Graph, graph_of
from backfill_assets.tables.table import Table

#: The tag of a run of a wave: `load` or `rebuild`. The queue lets one load go at a time.
WAVE_TAG = "backfill_assets/wave"
LOAD, REBUILD = "load", "rebuild"
#: For so long a run that failed counts as under way while its retry is still to come.
_RETRIED_WITHIN = timedelta(minutes=10)

Fresh = Callable[[Sequence[Request]], list[Request]]


class Night:
    """What there is to do as of a business day.

    Args:
        settings: the deployment's settings.
        now: the business day by the clock, if another may be asked for: a table that is retired by
            now has no asset that a run could make, whatever day is asked for.
    """

    def __init__(self, settings: Settings, now: date = date.min) -> None:
        self.settings = settings
        self._now = now
        self.policy = Policy.of(settings)
        self._code = running_code(settings)
        self._configs = config_digests(settings)
        self._graph = graph_for(settings)
        self.tables = self._graph.tables

    def fed(self, today: date) -> Mapping[str, Table]:
        """The tables that are fed on a business day, by name: those that are not retired."""
        return self._fed(today).tables

    def _fed(self, today: date) -> Graph:
        return self._graph.fed(max(today, self._now))

    def of(self, moment: datetime) -> date:
        """The day on which the night before a moment began its work."""
        local = moment.astimezone(self.settings.zone)
        began = local.strftime("%H:%M") >= self.settings.nightly_at
        return local.date() if began else local.date() - DAY

    def loads(self, today: date) -> list[Request]:
        """The runs that load what has landed, in ascending order of their days."""
        ledgers, found = self._landed(today)
        graph = self._fed(today)

        @cache
        def same(log: str) -> set[date]:
            return set.intersection(
                *(
                    _same(
                        ledger,
                        found[log].fingerprints,
                        self._code.table_version(name),
                        self._configs[name],
                    )
                    for name, ledger in ledgers.items()
                    if log in self._graph.logs(name)
                )
            )

        def may(table: str, day: date) -> bool:
            return all(day in same(log) for log in self._graph.logs(table))

        return load_requests(found, graph, self.settings.partitions_per_run, may)

    def _landed(self, today: date) -> tuple[Ledgers, Mapping[str, Arrivals]]:
        tables = [self.tables[name] for name in self._graph.landed]
        ledgers = {t.name: read_ledger(self.settings.table(t.name), t) for t in tables}
        return ledgers, landed(self.settings, ledgers, self._graph, today)

    def silences(self, today: date) -> dict[str, str]:
        """By raw log whose source has been silent for long, what is to be said of it."""
        _, found = self._landed(today)
        of = ((log, silence(one, self._graph.policy_of(log), today)) for log, one in found.items())
        return {log: said for log, said in of if said}

    def rebuilds(self, today: date, busy: Mapping[str, Collection[str]]) -> list[Request]:
        """The runs that bring open days up to date.

        Args:
            today: the business day.
            busy: what is under way, as `busy` says it, looked at before.
        """
        ledgers = read_ledgers(self.settings)
        behind = backlog(ledgers, self.policy, today)
        if not any(behind.open.values()):
            return []
        may = bridge(ledgers, behind, self.policy, self._code, self._configs)
        per_run = self.settings.partitions_per_run
        return rebuild_requests(behind, self._fed(today), per_run, busy, may)

    def command(self, request: Request) -> list[str]:
        """Dagster's own command for a request's run."""
        materialize = ["dagster", "asset", "materialize", "-m", "backfill_assets.definitions"]
        first, last = request.window.start, request.window.end - DAY
        selected = ",".join(assets_of(request, self.tables))
        return [*materialize, "--select", selected, "--partition-range", f"{first}...{last}"]

    def wave(
        self, today: date, busy: Mapping[str, Collection[str]], fresh: Fresh
    ) -> tuple[str, list[Request]]:
        """What is to be run next, and its kind: loads, or once there are none, rebuilds.

        Loads are asked for all at once, as they follow each other in the queue. Between two ranges
        of them that are not one lies a day that cannot be loaded.

        Args:
            today: the business day.
            busy: what is under way, as `busy` says it.
            fresh: takes away what was asked for before.
        """
        if loads := fresh(self.loads(today)):
            return LOAD, loads
        return REBUILD, handful(fresh(self.rebuilds(today, busy)))


def landed(settings: Settings, ledgers: Ledgers, graph: Graph, today: date) -> dict[str, Arrivals]:
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
        log: arrivals(
            ledgers[log],
            list_landing(settings.landing, source),
            graph.policy_of(log),
            today,
            ledgers[source.rejected.name],
        )
        for log, source in graph.sources.items()
    }


def _same(ledger: Ledger, fingerprints: Mapping[date, str], code: str, config: str) -> set[date]:
    """The days that are published as this code and these settings would make them now."""
    by = (code, config)
    return {
        day
        for day, fingerprint in fingerprints.items()
        if why(ledger, day, fingerprint, *by) is None
    }


def bridge(
    ledgers: Ledgers, behind: Backlog, policy: Policy, code: Code, configs: Mapping[str, str]
) -> Bridge:
    """Tells the days that a run may take in although nothing asks for them.

    Those that are published, from these settings, with nothing new in their inputs: to compute them
    anew changes no row, and where nothing at all has changed they are not even computed. A final
    day only if it would not be computed: no scheduled run may write it.

    Args:
        ledgers: those of all tables.
        behind: the days that are behind.
        policy: the late-data policy.
        code: of the runs.
        configs: by table, the digest of the settings that decide it.
    """
    closed, graph = final_days(ledgers, policy), graph_of(ledgers, policy)

    @cache
    def there(table: str) -> frozenset[date]:
        """The days on which the table and what it is made of are published."""
        tables = {table, *graph.upstream(table)}
        published = (ledgers[name].published for name in tables)
        return frozenset.intersection(*published) - behind.days(table)

    @cache
    def frozen(table: str) -> set[date]:
        days = closed.get(table, set())
        references = ledgers[table].references
        fingerprints = input_fingerprints(graph.inputs[table], ledgers, days, references)
        return days - _same(ledgers[table], fingerprints, code.table_version(table), configs[table])

    def may(table: str, day: date) -> bool:
        if day not in there(table) or day in frozen(table):
            return False
        ledger = ledgers[table]
        return (
            ledger.current_record(day) is not None
            and ledger.latest[day].made_under(day) == configs[table]
        )

    return may


def assets_of(request: Request, tables: Mapping[str, Table]) -> list[str]:
    """The assets that a request's run is to select: the tables, and the pages made of them.

    Args:
        request: the request.
        tables: all tables, by name.
    """
    return [*request.tables, *(page for name in request.tables for page in tables[name].pages)]


@dataclass
class Result:
    """What a night without a daemon did.

    Attributes:
        done: the requests whose runs succeeded.
        failed: those whose runs failed.
        waiting: those that are left to runs that others have launched.
    """

    done: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)


def run_night(
    night: Night,
    today: date,
    look: Callable[[], Mapping[str, Collection[str]]],
    run: Callable[[str, Request], bool],
) -> Result:
    """Run wave after wave, looking again after each, until nothing is asked for.

    What failed is not tried again; the rest goes on, as at night.

    Args:
        night: what there is to do.
        today: the business day.
        look: what is under way besides, as `busy` says it.
        run: runs a request of a kind, and tells whether that succeeded.
    """
    result = Result()

    def fresh(requests: Sequence[Request]) -> list[Request]:
        tried = {request.key for request in (*result.done, *result.failed)}
        return [request for request in requests if request.key not in tried]

    while True:
        kind, requests = night.wave(today, look(), fresh)
        if not requests:
            break
        for request in requests:
            (result.done if run(kind, request) else result.failed).append(request)
    result.waiting = fresh(night.rebuilds(today, {}))
    return result


def busy(
    instance: dg.DagsterInstance, tables: Collection[str], *, daemon: bool = True
) -> dict[str, frozenset[str]]:
    """What waits for the runs and backfills that are under way: tables, by the id of each.

    Args:
        instance: where they run.
        tables: all tables, by name.
        daemon: whether a daemon is at work. Without one nobody launches what is queued, and nobody
            gives up or repeats a run whose process is gone.
    """
    found = {
        run.run_id: _names(run.asset_selection, tables)
        for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
        if daemon or (run.status not in _WAITING and is_alive(instance, run) is not False)
    }
    for status in (BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING):
        for backfill in instance.get_backfills(status=status) if daemon else ():
            # All that follows: until it has ended, its next run may change the inputs again.
            found[backfill.backfill_id] = frozenset(tables)
    return found


#: The statuses of a run that has not ended.
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]
_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def waves_under_way(
    instance: dg.DagsterInstance, kinds: Sequence[str] = (LOAD, REBUILD)
) -> list[str]:
    """The runs of waves before that have not ended, or are about to be retried; their ids."""
    of = {WAVE_TAG: list(kinds)}
    unfinished = instance.get_runs(dg.RunsFilter(tags=of, statuses=UNFINISHED))
    failed = instance.get_runs(
        dg.RunsFilter(
            tags={**of, WILL_RETRY_TAG: "true"},
            statuses=[dg.DagsterRunStatus.FAILURE],
            updated_after=datetime.now(timezone.utc) - _RETRIED_WITHIN,
        )
    )
    again = [run for run in failed if run.is_complete_and_waiting_to_retry]
    return [run.run_id for run in (*unfinished, *again)]


def not_launched(instance: dg.DagsterInstance, keys: Collection[str]) -> set[str]:
    """The run keys that no run has had."""
    if not keys:
        return set()
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: sorted(keys)}))
    return {*keys} - {run.tags[RUN_KEY_TAG] for run in runs}


def _names(selection: Collection[dg.AssetKey] | None, tables: Collection[str]) -> frozenset[str]:
    """The selected assets; without a selection, all."""
    if selection is None:
        return frozenset(tables)
    return frozenset(key.to_user_string() for key in selection)
