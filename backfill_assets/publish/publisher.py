"""The publisher: which days of a run to compute, why, and where their rows go."""

import logging
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType
from typing import Any

import dagster as dg
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta import records, table_schema
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish import types
from backfill_assets.publish.publication import publish_candidate
from backfill_assets.runtime_versions import package_version
from backfill_assets.settings import PREFIX, UNDO_DAYS
from backfill_assets.spark.frames import SharedFrames
from backfill_assets.spark.session import Engine
from backfill_assets.staleness import assess
from backfill_assets.staleness.input_digest import StateDigester
from backfill_assets.tables.table import Table

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Destination:
    """Where a publisher reads tables, and what it does with a candidate; this one is production.

    Attributes:
        warehouse: each table is at `<warehouse>/<asset name>`.
    """

    warehouse: str

    #: Whether a run may merge rows rather than replace days.
    merges = True
    #: Whether days are compared with the published ones, and none is published.
    compares = False

    def url(self, table: Table) -> str:
        """Return the URL of a table."""
        return f"{self.warehouse}/{table.name}"

    def ledger(self, table: Table) -> Ledger:
        """Read the current ledger of a table."""
        return read_ledger(self.url(table), table)

    def data_url(self, table: Table) -> str:
        """Return where new data files are written; empty for the table's own folder."""
        return ""

    def deliver(self, publisher: "Publisher", candidate: types.Candidate) -> list[types.DayResult]:
        """Publish the days of a candidate; see `publish_candidate`."""
        return publish_candidate(candidate)


class Publisher(dg.ConfigurableIOManager):
    """Reads and replaces whole days of the Delta tables of one warehouse.

    Attributes:
        engine: provides the Spark session.
        warehouse: each table is at `<warehouse>/<asset name>`.
        code_version: of the code of all tables; a backfill is pinned to it.
        code_versions: by table, of the code that computes it; commits record it.
        config_digest: of all settings that decide rows; a backfill is pinned to it.
        config_digests: by table, of the settings that decide its rows; commits record it.
        tables: where the tables are declared, see `load_tables`.
        git_commit: of the code; empty if unknown.
        git_dirty: whether the code differs from that commit; None if unknown.
        undo_days: for how many days a new table keeps replaced files.
        stalled_after: seconds after which a step logs the query it waits for; 0 for never.
        lineage: the namespace of jobs in OpenLineage events; None sends no events.
        landing: where the files of sources lie.
        catalog: where tables are registered, as `catalog.schema`; None registers none.
    """

    engine: Engine
    warehouse: str
    code_version: str
    code_versions: dict[str, str]
    config_digest: str
    config_digests: dict[str, str]
    tables: str
    git_commit: str = ""
    git_dirty: bool | None = None
    undo_days: int = UNDO_DAYS
    stalled_after: int = 0
    lineage: str | None = None
    landing: str = ""
    catalog: str | None = None
    _failed_days: dict[tuple[str, str], dict[date, str]] = PrivateAttr(default_factory=dict)
    _destination: Destination | None = PrivateAttr(default=None)
    _shared_frames: SharedFrames = PrivateAttr(default_factory=SharedFrames)

    @property
    def destination(self) -> Destination:
        """Where tables are read and candidates go; production unless set."""
        return self._destination or Destination(self.warehouse)

    @property
    def shared_frames(self) -> SharedFrames:
        """The cached frames that steps of a run share."""
        return self._shared_frames

    def run_metadata(self, table: Table, run_id: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's part of the commit metadata: who, why, and by which code."""
        return {
            "run_id": run_id,
            "backfill_id": tags.get("dagster/backfill"),
            "launched_by": types.launched_by(tags),
            "reason": tags.get(types.REASON_TAG, ""),
            "asset": table.name,
            "code_version": self.code_of(table),
            "release": self.code_version,
            "config_digest": self.config_of(table),
            "package": package_version(),
            "git_commit": self.git_commit,
            "git_dirty": self.git_dirty,
        }

    def failed_days(self, run_id: str) -> dict[str, dict[date, str]]:
        """Return the days that a run in this process did not publish, with reasons, by table."""
        # Other steps of the run add to it at the same time.
        entries = list(self._failed_days.items())
        return {name: dict(days) for (run, name), days in entries if run == run_id}

    def note_failed_days(self, run_id: str, table_name: str, failed: Mapping[date, str]) -> None:
        """Note all days of a table that a run has not published so far: later steps read them."""
        self._failed_days[run_id, table_name] = {**failed}

    def request_for_run(
        self, table: Table, run_id: str, tags: Mapping[str, str], window: Window
    ) -> types.RunRequest:
        """Return what a run asks of the days of a table, by its tags.

        Raises:
            PublishError: the run belongs to a backfill that was planned with other code.
            dagster.Failure: a tag has a value that is not known.
        """
        current_pin = types.format_code_pin(self.code_version, self.config_digest)
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

    def plan_days(
        self,
        request: types.RunRequest,
        ledger: Ledger,
        sources: Sequence[TableSnapshot],
        fingerprints: Mapping[date, str],
        *,
        input_changes: Mapping[date, str] = MappingProxyType({}),
        recommitted: Container[date] = (),
        digester: StateDigester | None = None,
        session: table_schema.SessionFactory | None = None,
    ) -> types.ComputePlan:
        """Decide which days of a request to compute, and which cannot be.

        Args:
            request: of the run.
            ledger: of the table, read before its inputs.
            sources: the input tables.
            fingerprints: the current input fingerprint of each day.
            input_changes: by day, what changed in its input, if known better than `new input`.
            recommitted: days that the commit must cover although they have not changed.
            digester: of a stateful table.
            session: starts the Spark session of the step; the engine's default one if None.

        Raises:
            PublishError: the backfill was planned with other code.
            SchemaError: the table or one of its inputs does not match its model.
        """
        if not request.compares:
            self._raise_if_schema_differs(ledger, sources)
        window, record = request.window, request.record
        input_ledgers = [source.ledger for source in sources]
        inputs = [(source.ledger, self.config_of(source.table)) for source in sources]
        assess.refuse_other_code(ledger, window, record, inputs)
        requested = assess.recompute_reasons(
            ledger,
            fingerprints,
            input_ledgers,
            record["code_version"],
            record["config_digest"],
            {
                d
                for d in fingerprints
                if request.compares or d in request.rewrite or d in recommitted
            },
            input_changes,
        )
        writer = self.writer(ledger.table, session)
        plan = types.ComputePlan(
            request, writer, ledger, sources, fingerprints, requested, {}, requested, digester
        )
        plan, buildable_window = _skip_days_on_hold(plan)
        return self._refuse_unbuildable_days(plan, buildable_window)

    def _raise_if_schema_differs(self, ledger: Ledger, sources: Sequence[TableSnapshot]) -> None:
        input_names = [source.table.name for source in sources]
        table_schema.raise_if_schema_differs(ledger, self.url(ledger.table), input_names)
        for source in sources:
            table_schema.raise_if_schema_differs(source.ledger, self.url(source.table))

    def _refuse_unbuildable_days(
        self, plan: types.ComputePlan, window: Window
    ) -> types.ComputePlan:
        """Return the plan without the days of a window that lack an input, or the day before."""
        table, request = plan.table, plan.request
        failed_by_table = self.failed_days(request.record["run_id"])
        others = [x for x in plan.sources if request.compares or x.table is not table]
        refused = assess.missing_inputs(others, window, self.config_of, failed_by_table)
        reasons: Mapping[date, str] = {d: r for d, r in plan.reasons.items() if d not in refused}
        if plan.digester and not request.compares:
            reasons, refused = split_buildable_days(
                replace(plan, refused=refused),
                window,
                failed_by_table.get(table.name, ()),
                self.config_of(table),
            )
        return replace(plan, reasons=reasons, refused=refused)

    def url(self, table: Table) -> str:
        """Return the URL of a table at the destination."""
        return self.destination.url(table)

    def ledger(self, table: Table) -> Ledger:
        """Read the ledger of a table at the destination."""
        return self.destination.ledger(table)

    def code_of(self, table: Table) -> str:
        """Return the code version of a table; of all tables if it is not declared."""
        return self.code_versions.get(table.name, self.code_version)

    def config_of(self, table: Table) -> str:
        """Return the digest of the settings that decide a table; of all if it is not declared."""
        return self.config_digests.get(table.name, self.config_digest)

    def start_session(self) -> SparkSession:
        """Return the engine's default session, started at its first use."""
        session: SparkSession = self.engine.spark_session
        return session

    def writer(self, table: Table, session: table_schema.SessionFactory | None = None) -> Writer:
        """Return the writer that commits to a table, in the default session if none is given."""
        data_url = self.destination.data_url(table)
        return Writer(
            session or self.start_session, self.url(table), table, self.undo_days, data_url
        )

    def table_snapshot(
        self, ledger: Ledger, by_day: bool, session: table_schema.SessionFactory | None = None
    ) -> TableSnapshot:
        """Return a table at the version of its ledger, in the default session if none is given."""
        url, start_session = self.url(ledger.table), session or self.start_session
        return TableSnapshot.at_version(url, ledger, start_session, by_day=by_day)


def _skip_days_on_hold(plan: types.ComputePlan) -> tuple[types.ComputePlan, Window]:
    """Drop days on hold from a plan and its window, unless a person launched the run.

    Of a stateful table, days after a day on hold are not built either.
    """
    request, window = plan.request, plan.request.window
    if request.compares or request.record.get("launched_by", records.PERSON) == records.PERSON:
        return plan, window
    on_hold = assess.days_on_hold(plan.ledger, plan.fingerprints)
    if on_hold and plan.digester:
        window = Window(window.start, max(window.start, min(on_hold)))
    reasons = {d: reason for d, reason in plan.reasons.items() if d not in on_hold and d in window}
    return replace(plan, reasons=reasons, requested=reasons), window


def split_buildable_days(
    plan: types.ComputePlan, window: Window, failed: Collection[date], config_digest: str
) -> tuple[dict[date, str], dict[date, Expectation]]:
    """Return the days to compute and those to refuse, as each day is built from the day before.

    If a day is computed, so are the days that follow it, as they may change. No day is built after
    a day that is refused, until one that is published with its current inputs.

    The reasons and refusals of `plan` consider the other inputs only; `failed` are days of the
    table that this run failed to publish.
    """
    name, reasons, refused = plan.table.name, plan.reasons, plan.refused
    blocker = _blocking_reason(plan, window.start, failed, config_digest)
    buildable: dict[date, str] = {}
    blocked: dict[date, Expectation] = dict(refused)
    for day in window:
        if day in refused:
            blocker = f"{name}[{day}] was not published"
        elif blocker and day in reasons:
            blocked[day] = Expectation(problems=[f"it is built upon earlier days, and {blocker}"])
        elif blocker:
            blocker = ""
        elif day - DAY in buildable or day in reasons:
            buildable[day] = reasons.get(day) or assess.new_input_reason([name])
    return buildable, blocked


def _blocking_reason(
    plan: types.ComputePlan, first: date, failed: Collection[date], config_digest: str
) -> str:
    """Return why the first day cannot be built from the days before; empty if it can."""
    ledger, name = plan.ledger, plan.table.name
    if earlier := [day for day in failed if day < first]:
        return f"{name}[{max(earlier)}] failed in this run"
    own_snapshot = next(source for source in plan.sources if source.table is ledger.table)
    earlier = [day for day in ledger.published_days if day < first]
    begins = first not in ledger.published_days and not own_snapshot.required_days(first)
    if earlier and begins and first - DAY not in ledger.published_days:
        return (
            f"{name} has days up to {max(earlier)} and none on the day before {first}, the first "
            f"day now: it would begin anew. Put {PREFIX}START back and build the days between"
        )
    for needed in own_snapshot.required_days(first):
        if needed not in ledger.published_days:
            return f"{name}[{needed}] has never been published"
        if needed in ledger.under_other_settings(config_digest):
            return f"{name}[{needed}] was made under other settings; rebuild it first"
    return ""


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
