"""The publisher: which days of a run to compute, why, and where their rows go."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from backfill_assets.audit.checks import evaluated_failures
from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta import records, table_schema
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.publish import types
from backfill_assets.publish.publication import publish_candidates
from backfill_assets.runtime_versions import package_version
from backfill_assets.spark.frames import SharedFrames
from backfill_assets.spark.session import Engine
from backfill_assets.staleness import assess
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table, asset_name

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Destination:
    """Where a publisher reads tables, and what it does with a candidate; this one is production.

    Attributes:
        warehouse: each table is at `<warehouse>/<asset name>`, unless others write it elsewhere.
    """

    warehouse: str

    #: Whether a run may merge rows rather than replace days.
    merges = True
    #: Whether days are compared with the published ones, and none is published.
    compares = False

    def url(self, table: Table) -> str:
        """Return the URL of a table."""
        return table.place(self.warehouse)

    def ledger(self, table: Table) -> Ledger:
        """Read the current ledger of a table."""
        return read_ledger(self.url(table), table, self.warehouse)

    def data_url(self, table: Table) -> str:
        """Return where new data files are written; empty for the table's own folder."""
        return ""

    def deliver(
        self, publisher: "Publisher", candidates: Sequence[types.Candidate]
    ) -> Iterator[types.Delivery]:
        """Publish the days of candidates; see `publish_candidates`."""
        yield from publish_candidates(candidates)


#: Sends the lineage events of days of a run; returns what went wrong.
SendLineage = Callable[["Publisher", dg.DagsterRun, Table, Sequence[types.DayResult]], list[str]]


@dataclass(eq=False)
class Publisher(dg.IOManager):
    """Reads and replaces whole days of the Delta tables of one deployment.

    Attributes:
        deployment: whose tables, code and settings they are.
        engine: provides the Spark session.
        asset_versions: code versions of ordinary assets, which the deployment does not declare.
        shared_frames: the cached frames that steps of a run share.
        send_lineage: None if no lineage events are sent.
    """

    deployment: Deployment
    engine: Engine
    asset_versions: dict[str, str] = field(default_factory=dict)
    _destination: Destination | None = None
    _failed_days: dict[tuple[str, str], dict[date, str]] = field(default_factory=dict)
    shared_frames: SharedFrames = field(default_factory=SharedFrames)
    send_lineage: SendLineage | None = None

    def __post_init__(self) -> None:
        _ = self.deployment.code  # that of now, even if its files change before the first run

    @property
    def destination(self) -> Destination:
        """Where tables are read and candidates go; production unless set."""
        return self._destination or Destination(self.deployment.settings.warehouse)

    def run_metadata(self, table: Table, run_id: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's part of the commit metadata: who, why, and by which code."""
        return {
            "run_id": run_id,
            "backfill_id": tags.get("dagster/backfill"),
            "launched_by": types.launched_by(tags),
            "reason": tags.get(types.REASON_TAG, ""),
            "asset": table.name,
            "code_version": self.code_of(table),
            "release": self.deployment.code.version,
            "config_digest": self.config_of(table),
            "package": package_version(),
            "git_commit": self.deployment.code.commit,
            "git_dirty": self.deployment.code.dirty,
            **({"key_prefix": prefix} if (prefix := self.deployment.settings.key_prefix) else {}),
        }

    def failed_days(self, run_id: str) -> dict[str, dict[date, str]]:
        """Return the days that a run in this process did not publish, with reasons, by table."""
        # Other steps of the run add to it at the same time.
        entries = list(self._failed_days.items())
        return {name: dict(days) for (run, name), days in entries if run == run_id}

    def note_failed_days(self, run_id: str, table_name: str, failed: Mapping[date, str]) -> None:
        """Note all days of a table that a run has not published so far: later steps read them."""
        self._failed_days[run_id, table_name] = {**failed}

    def note_failures_of_run(
        self, instance: dg.DagsterInstance, run: dg.DagsterRun, keys: Iterable[dg.AssetKey]
    ) -> None:
        """Note the days of inputs that earlier steps of the run failed to publish.

        Needed only if these steps had another IO manager, or processes of their own.
        """
        noted = {asset_name(name) for id_, name in [*self._failed_days] if id_ == run.run_id}
        unknown = [key for key in keys if key.path[-1] not in noted]
        if run.asset_selection is not None:
            unknown = [key for key in unknown if key in run.asset_selection]
        if unknown:
            for name, failed in evaluated_failures(instance, run.run_id, unknown).items():
                self.note_failed_days(run.run_id, name, failed)

    def request_for_run(
        self, table: Table, run_id: str, tags: Mapping[str, str], window: Window
    ) -> types.RunRequest:
        """Return what a run asks of the days of a table, by its tags.

        Raises:
            PublishError: the run belongs to a backfill that was planned with other code.
            dagster.Failure: a tag has a value that is not known.
        """
        current_pin = types.format_code_pin(
            self.deployment.code.version, self.deployment.settings.digest
        )
        if (planned_pin := tags.get(types.CODE_TAG, current_pin)) != current_pin:
            raise PublishError(
                f"{table.name} [{window}]: the backfill was planned with code and "
                f"configuration {planned_pin}, and this run has {current_pin}. Nothing was "
                "written. Put back what was deployed and launch the backfill again, or make a new "
                "plan."
            )
        destination = self.destination
        return types.RunRequest(
            window,
            self.run_metadata(table, run_id, tags),
            rewrite=window if tags.get(types.REWRITE_TAG, "").lower() == "true" else (),
            merge=types.is_merge_run(tags) and table.merge and destination.merges,
            compares=destination.compares,
        )

    def snapshot(
        self, request: types.RunRequest, graph: Graph, ledgers: Ledgers, **more: Any
    ) -> Snapshot:
        """Return what the days of a request are assessed from; `more` are further attributes."""
        return Snapshot(
            graph,
            ledgers,
            self.deployment.today,
            code_versions={name: self.code_of(ledger.table) for name, ledger in ledgers.items()},
            config_digests={
                name: self.config_of(ledger.table)
                for name, ledger in ledgers.items()
                if name not in graph.external
            },
            failed=self.failed_days(request.record["run_id"]),
            **more,
        )

    def plan_days(
        self,
        request: types.RunRequest,
        table: Table,
        snapshot: Snapshot,
        sources: Sequence[TableSnapshot],
        session: table_schema.SessionFactory | None = None,
    ) -> types.ComputePlan:
        """Decide which days of a request to compute, and which cannot be.

        Args:
            request: of the run.
            table: the table.
            snapshot: with its ledger, which was read before those of its inputs.
            sources: the input tables, as of the snapshot.
            session: starts the Spark session of the step; the engine's default one if None.

        Raises:
            PublishError: the backfill was planned with other code.
            SchemaError: the table or one of its inputs does not match its model.
        """
        by_person = request.record.get("launched_by", records.PERSON) == records.PERSON
        plan = self.plan_commit(request, table, snapshot, sources, session=session)
        assessments = assess.assess(
            snapshot,
            table.name,
            request.window,
            requested=request.window if request.compares else request.rewrite,
            respects_holds=not (request.compares or by_person),
            in_order=not request.compares,
        )
        return replace(
            plan,
            input_digests={day: a.digest for day, a in assessments.items() if not a.not_due},
            reasons={
                day: a.reason or assess.new_input_reason([table.name])
                for day, a in assessments.items()
                if a.can_change
            },
            refused={
                day: Expectation(problems=[a.obstacle.text])
                for day, a in assessments.items()
                if a.obstacle and not a.on_hold
            },
            requested={day for day, a in assessments.items() if a.reason and not a.on_hold},
            not_due={day: a.not_due for day, a in assessments.items() if a.not_due},
            snapshot=snapshot if carries_state(table) else None,
        )

    def plan_commit(
        self,
        request: types.RunRequest,
        table: Table,
        snapshot: Snapshot,
        sources: Sequence[TableSnapshot],
        reasons: Mapping[date, str] = MappingProxyType({}),
        session: table_schema.SessionFactory | None = None,
    ) -> types.ComputePlan:
        """Return a plan of days with known reasons; raises as `plan_days`."""
        ledger = snapshot.ledgers[table.name]
        if not request.compares:
            input_names = [source.table.name for source in sources]
            table_schema.raise_if_schema_differs(ledger, self.url(table), input_names)
            for source in sources:
                table_schema.raise_if_schema_differs(source.ledger, self.url(source.table))
        inputs = [(source.ledger, self.config_of(source.table)) for source in sources]
        assess.refuse_other_code(ledger, request.window, request.record, inputs)
        digests = snapshot.input_digests(table.name, reasons)
        writer = self.writer(table, session)
        return types.ComputePlan(request, writer, ledger, sources, digests, reasons, {}, reasons)

    def url(self, table: Table) -> str:
        """Return the URL of a table at the destination."""
        return self.destination.url(table)

    def ledger(self, table: Table) -> Ledger:
        """Read the ledger of a table at the destination."""
        return self.destination.ledger(table)

    def code_of(self, table: Table) -> str:
        """Return the code version of a table; of all tables if it is not declared."""
        return self.asset_versions.get(table.name) or self.deployment.code.table_version(table.name)

    def config_of(self, table: Table) -> str:
        """Return the digest of the settings that decide a table; of all if it is not declared."""
        deployment = self.deployment
        return deployment.config_digests.get(table.name, deployment.settings.digest)

    def start_session(self) -> SparkSession:
        """Return the engine's default session, started at its first use."""
        session: SparkSession = self.engine.spark_session
        return session

    def writer(self, table: Table, session: table_schema.SessionFactory | None = None) -> Writer:
        """Return the writer that commits to a table, in the default session if none is given."""
        data_url, undo_days = self.destination.data_url(table), self.deployment.settings.undo_days
        return Writer(session or self.start_session, self.url(table), table, undo_days, data_url)

    def table_snapshot(
        self, ledger: Ledger, by_day: bool, session: table_schema.SessionFactory | None = None
    ) -> TableSnapshot:
        """Return a table at the version of its ledger, in the default session if none is given."""
        url, start_session = self.url(ledger.table), session or self.start_session
        return TableSnapshot.at_version(url, ledger, start_session, by_day=by_day)


@dataclass(frozen=True)
class Input:
    """An input of an asset, not read yet: the ledger of the table to build is read before it."""

    publisher: Publisher
    table: Table
    by_day: bool

    def read_ledger(self) -> Ledger:
        """Read the current ledger of the input."""
        return self.publisher.ledger(self.table)

    def snapshot(
        self, ledger: Ledger, session: table_schema.SessionFactory | None = None
    ) -> TableSnapshot:
        """Return the input at the version of its ledger; see `Publisher.table_snapshot`."""
        return self.publisher.table_snapshot(ledger, self.by_day, session)
