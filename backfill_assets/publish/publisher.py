"""The one write path: what has changed is computed and audited, then there is one commit.

Every row that reaches a table passes `Publisher.publish`. What a verdict means is `audit`'s
business; what a table looks like is `tables.table`'s.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Container, Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg
import msgspec
from pydantic import PrivateAttr
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import Days, Window, packed
from backfill_assets.delta import evolution
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.records import PERSON
from backfill_assets.delta.snapshots import rows_as_of
from backfill_assets.engine.spark import Engine
from backfill_assets.provenance import package_version
from backfill_assets.publish import chains
from backfill_assets.publish.candidates import Candidate, Done, Plan, Remarks, Snapshot
from backfill_assets.publish.computing import Audited, compute, summary, with_spreads
from backfill_assets.publish.failures import explained
from backfill_assets.publish.independence import is_known
from backfill_assets.publish.outcomes import as_published, left, outcomes
from backfill_assets.publish.reasons import by_reason, days_on_hold, to_compute
from backfill_assets.publish.refusals import lacking, refuse_other_code
from backfill_assets.publish.run_tags import REASON_TAG, launched_by
from backfill_assets.quality.audit import Expectation
from backfill_assets.settings import UNDO_DAYS
from backfill_assets.tables.table import Table

_log = logging.getLogger(__name__)

_ATTEMPTS = 30


class Publisher(dg.ConfigurableIOManager):
    """Reads and replaces whole days of the Delta tables under one warehouse.

    Attributes:
        engine: where the Spark session comes from.
        warehouse: each table lives at `<warehouse>/<asset name>`.
        code_version: of the code that computes the tables, to which a backfill is pinned.
        code_versions: the same by table, of the code that makes it, for the commit's record.
        config_digest: of all settings that decide what is in them, to which a backfill is pinned.
        config_digests: the same by table, each of those that decide it, for the commit's record.
        tables: where the tables are declared, see `catalog.declared`.
        git_commit: of that code; empty if unknown.
        git_dirty: whether the code differs from that commit; none if unknown.
        undo_days: for how many days a table that is created keeps the files that were replaced.
        stalled_after: after so many seconds a step says which query it waits for; 0 for never.
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
    _failed: dict[tuple[str, str], dict[date, str]] = PrivateAttr(default_factory=dict)

    def record(self, table: Table, run_id: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """What a commit says of the run that makes it: who, why, and by which code."""
        return {
            "run_id": run_id,
            "backfill_id": tags.get("dagster/backfill"),
            "launched_by": launched_by(tags),
            "reason": tags.get(REASON_TAG, ""),
            "asset": table.name,
            "code_version": self.code_of(table),
            "release": self.code_version,
            "config_digest": self.config_of(table),
            "package": package_version(),
            "git_commit": self.git_commit,
            "git_dirty": self.git_dirty,
        }

    def failed(self, run_id: str) -> dict[str, dict[date, str]]:
        """The days that a run of this process did not publish, with the reasons.

        By table, for all tables that it has computed so far.
        """
        # Other steps of the run add to it meanwhile.
        found = list(self._failed.items())
        return {name: dict(days) for (run, name), days in found if run == run_id}

    def publish(
        self,
        candidate: Candidate,
        window: Window,
        record: Mapping[str, Any],
        *,
        rewrite: Container[date] = (),
        merge: bool = False,
    ) -> list[Done]:
        """Compute what is not published as it is, audit it, and commit what has changed.

        The order keeps older input from overwriting newer, however many runs meet on a day: first
        the table's ledger is read, then the inputs, and the commit comes about only if no other did
        meanwhile. A run that comes second starts over with the ledger as it is then.

        Args:
            candidate: what the asset proposes.
            window: the run's days.
            record: what the commit is to say of the run.
            rewrite: days to compute and write even if nothing has changed.
            merge: whether to change rows by their natural key, if the table allows it. The outcome
                is the same: a day with rows that a merge would leave behind fails.

        Returns:
            What became of each day, in ascending order.

        Raises:
            PublishError: the commit failed, or the backfill was begun by other code.
            SchemaError: the table, or one that it is made from, is not the one of its model.
        """
        table, merge = candidate.table, merge and candidate.table.merges
        audited: Audited | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            ledger, plan = self._look(candidate, window, record)
            asked = to_compute(ledger, plan, *_by(record), rewrite)
            asked, buildable = _without_held(ledger, plan, window, asked, record)
            because, refused = self._possible(ledger, plan, buildable, asked, record)
            done = left(ledger, plan, because, refused)
            if because:
                wanted = {day: plan.fingerprints[day] for day in because}
                # What a merge would leave depends on the table as well.
                if audited is None or merge or not audited.covers(wanted, ledger):
                    self._remove_left(table, audited)
                    audited = self._computed(table, plan, wanted, ledger, record, merge=merge)
                for day in chains.as_it_was(ledger, plan, audited.fingerprints, asked):
                    done.append(as_published(ledger, day))
                    del because[day]
                written = self._publish(table, audited, because, ledger, plan, record, rewrite)
                if written is None:
                    _log.info("%s [%s]: another run was first, looking again", table.name, window)
                    time.sleep(random.uniform(0.1, 0.5) * min(attempt, 4))  # not both at once again
                    continue
                done += written
            self._remove_left(table, audited)
            return sorted(done, key=lambda one: one.day)
        raise PublishError(
            f"{table.name} [{window}]: other runs committed first {_ATTEMPTS} times in a row. The "
            "table is as they left it. Launch these days again."
        )

    def _computed(
        self,
        table: Table,
        plan: Plan,
        wanted: Mapping[date, str],
        ledger: Ledger,
        record: Mapping[str, Any],
        *,
        merge: bool,
    ) -> Audited:
        """The days computed and judged, as this code makes them.

        Raises:
            dagster.Failure: Spark cannot compute the rows.
        """
        merging = self.writer(table) if merge else None
        known = is_known(ledger, record["code_version"])
        with explained(table, Days.of(wanted)):
            return compute(table, plan, wanted, ledger, merging, known=known)

    def _look(
        self, candidate: Candidate, window: Window, record: Mapping[str, Any]
    ) -> tuple[Ledger, Plan]:
        """The table's ledger and, read after it, the plan; both as of now.

        Raises:
            PublishError: the backfill was begun by other code.
            SchemaError: the table, or one that it is made from, is not the one of its model.
        """
        ledger = self.ledger(candidate.table)
        plan = candidate.plan(window)
        made_from = [source.table.name for source in plan.sources]
        evolution.refuse(ledger, self.url(candidate.table), made_from)
        for source in plan.sources:
            evolution.refuse(source.ledger, self.url(source.table))
        sources = [source.ledger for source in plan.sources]
        refuse_other_code([ledger, *sources], window, record, self.config_of)
        return ledger, plan

    def _possible(
        self,
        ledger: Ledger,
        plan: Plan,
        window: Window,
        asked: Mapping[date, str],
        record: Mapping[str, Any],
    ) -> tuple[dict[date, str], dict[date, Expectation]]:
        """Of the days to compute, those that can be, each with why; and those that cannot.

        Args:
            ledger: that of the table.
            plan: how its days would be made now.
            window: the days of the plan.
            asked: the days that are not published as they would be made now.
            record: what the commit is to say of the run.
        """
        table, failed = ledger.table, self.failed(record["run_id"])
        others = [source for source in plan.sources if source.table is not table]
        refused = lacking(others, window, self.config_of, failed)
        if plan.after:
            own, config = failed.get(table.name, ()), self.config_of(table)
            return chains.in_order(ledger, plan, window, asked, refused, own, config)
        return {day: why for day, why in asked.items() if day not in refused}, refused

    def _publish(
        self,
        table: Table,
        audited: Audited,
        because: Mapping[date, str],
        ledger: Ledger,
        plan: Plan,
        record: Mapping[str, Any],
        rewrite: Container[date],
    ) -> list[Done] | None:
        """Commit the days that passed; none if another commit of ours came first.

        Args:
            table: the table.
            audited: the days, computed and judged.
            because: the days to publish, each with why it was computed.
            ledger: that of the table.
            plan: what the days were made by.
            record: what the commit is to say of the run.
            rewrite: the days to write although they have the rows that are there already.
        """
        verdicts = [audited.verdicts[day] for day in because]
        inputs = {source.table.name: source.ledger.version or 0 for source in plan.sources}
        passed = [verdict for verdict in verdicts if verdict.passed]
        changed = {
            v.day for v in passed if v.day in rewrite or ledger.content(v.day) != v.measured.digest
        }
        version, remarks = None, Remarks()
        if passed:
            if audited.built.remarks:
                before = None if ledger.version is None else self.source(ledger, False)
                remarks = audited.built.remarks(before, verdicts)
            metadata = {
                **record,
                "inputs": inputs,
                "since": ledger.version,
                **summary([v for v in verdicts if v.day not in remarks.withdrawn], audited),
                "because": by_reason({v.day: because[v.day] for v in passed}),
                "final": packed(remarks.final),
                "withdrawn": packed(remarks.withdrawn),
                "said": msgspec.to_builtins(with_spreads(remarks.details, audited, passed)),
            }
            version = self._commit(table, audited, sorted(changed), metadata, ledger)
            if version is None:
                return None
        return outcomes(table, audited, because, version, inputs, remarks, changed)

    def _commit(
        self,
        table: Table,
        audited: Audited,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        ledger: Ledger,
    ) -> int | None:
        """The version that holds the days; none if another commit came first.

        Raises:
            PublishError: the commit failed, or rows were not the ones that the audit has seen.
        """
        writer = self.writer(table)
        if audited.merge and days:
            return writer.merge(audited.written(writer, days), days, metadata, ledger)
        version = writer.commit(audited.written(writer, days), days, metadata, ledger)
        if version is not None:
            audited.committed(days)
        return version

    def _remove_left(self, table: Table, audited: Audited | None) -> None:
        """Remove the data files that no commit will name."""
        if audited and audited.left:
            self.writer(table).remove(audited.left)

    def url(self, table: Table) -> str:
        """Where a table lives."""
        return f"{self.warehouse}/{table.name}"

    def ledger(self, table: Table) -> Ledger:
        """What the table's log says, as of now."""
        return read_ledger(self.url(table), table)

    def code_of(self, table: Table) -> str:
        """The version of the code that makes a table; of all, if the table is not declared."""
        return self.code_versions.get(table.name, self.code_version)

    def config_of(self, table: Table) -> str:
        """The digest of the settings that decide a table; of all, if the table is not declared."""
        return self.config_digests.get(table.name, self.config_digest)

    def writer(self, table: Table) -> Writer:
        """What commits to a table."""
        return Writer(lambda: self.engine.spark_session, self.url(table), table, self.undo_days)

    def source(self, ledger: Ledger, by_day: bool) -> Snapshot:
        """A table at the version of its ledger, to be read when the rows are wanted.

        The version is pinned: the audit and the write evaluate a frame at different times, and a
        commit in between must not come between them.
        """
        table = ledger.table

        def read(days: Collection[date] | None) -> DataFrame:
            if ledger.version is None:
                raise dg.Failure(
                    f"{table.name} has no table yet at {self.url(table)}: materialize it first. "
                    "Nothing was written.",
                    allow_retries=False,
                )
            spark = self.engine.spark_session
            return rows_as_of(spark, self.url(table), table, ledger.version, days)

        return Snapshot(ledger, by_day, read)


def _without_held(
    ledger: Ledger,
    plan: Plan,
    window: Window,
    asked: Mapping[date, str],
    record: Mapping[str, Any],
) -> tuple[dict[date, str], Window]:
    """The days to compute and the window to build, without days on hold if no person launched it.

    Of a table that carries state, nothing is built upon a day that is on hold.
    """
    if record.get("launched_by", PERSON) == PERSON:
        return dict(asked), window
    on_hold = days_on_hold(ledger, plan.fingerprints)
    if on_hold and plan.after:
        window = Window(window.start, max(window.start, min(on_hold)))
    return {d: why for d, why in asked.items() if d not in on_hold and d in window}, window


def _by(record: Mapping[str, Any]) -> tuple[str, str]:
    return record["code_version"], record["config_digest"]
