"""The IO manager: gives the assets their inputs, and tells Dagster of what is published."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

import dagster as dg

from backfill_assets.dagster_ext.events import (
    AssetCheckEvaluationTargetMaterializationData,
    AssetEvent,
    DagsterEvent,
    stored_together,
)
from backfill_assets.delta.commits import PublishError
from backfill_assets.engine.stalls import report_stalls
from backfill_assets.engine.task_times import watched
from backfill_assets.publish.candidates import Candidate, Done, Input, Outcome
from backfill_assets.publish.chains import AT_ONCE
from backfill_assets.publish.materializations import latest_materializations
from backfill_assets.publish.publisher import Publisher
from backfill_assets.publish.run_tags import CODE_TAG, REWRITE_TAG, merges, pinned
from backfill_assets.publish.task_metadata import PLOT, task_metadata
from backfill_assets.quality.checks import day_metadata, evaluations
from backfill_assets.tables.catalog import declared
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.table import Table


class DeltaIOManager(Publisher):
    """Hands days of tables to the assets, publishes what they propose, and tells Dagster of it."""

    def load_input(self, context: dg.InputContext) -> Input:
        """The input, to be read after the ledger of the table that is made of it."""
        table = declared(self.tables)[context.asset_key.path[-1]]
        by_day = bool(context.asset_partition_keys)
        return Input(lambda: self.source(self.ledger(table), by_day))

    # Dagster takes a generator as well, though its base class says None.
    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Candidate
    ) -> Iterator[DagsterEvent]:
        """Publish what has changed, and tell Dagster of every day.

        Raises:
            SchemaError: a column is missing or of another type, in the frame or in the table.
            RefusedError: rows outside the run's days, rows without a day, or none where some are
                due.
            NotContiguousError: the run's days have a gap.
            PublishError: the commit failed.
        """
        if not isinstance(obj, Candidate):
            raise TypeError(
                f"{context.asset_key}: an asset hands over a Candidate, not {type(obj)}"
            )
        window = obj.table.cadence.one_range(context.asset_partition_keys)
        step = context.step_context
        run = step.dagster_run
        record = self.record(obj.table, run.run_id, run.tags)
        now = pinned(self.code_version, self.config_digest)
        if (then := run.tags.get(CODE_TAG, now)) != now:
            raise PublishError(
                f"{obj.table.name} [{window}]: the backfill was planned with code and "
                f"configuration {then}, and this run has {now}. Nothing was written. Put back what "
                "was deployed and launch the backfill again, or make a new plan."
            )
        rewrite = window if run.tags.get(REWRITE_TAG, "").lower() == "true" else ()
        merge = merges(run.tags)
        failed: dict[date, str] = {}
        said: Counter[str] = Counter()
        for part in window.split(AT_ONCE) if carries_state(obj.table) else [window]:
            with watched() as tasks, self._report_stalls(context, f"{obj.table.name} [{part}]"):
                done = self.publish(obj, part, record, rewrite=rewrite, merge=merge)
            failed |= {d.day: d.verdict.reasons for d in done if d.outcome is Outcome.FAILED}
            self._failed[run.run_id, obj.table.name] = {**failed}  # other steps read it
            said.update(d.outcome.value for d in done)
            took = task_metadata(tasks.times())
            for told in self.events(step.instance, obj.table, done, took):
                yield from stored_together(step, told)
        context.log.info(
            f"{obj.table.name} [{window}]: "
            + ", ".join(f"{n} day{'s' * (n != 1)} {outcome}" for outcome, n in said.items())
        )

    def _report_stalls(
        self, context: dg.OutputContext, days: str
    ) -> contextlib.AbstractContextManager[None]:
        """Say in the log of the step which query it waits for, if that takes long."""

        def say(text: str) -> None:
            context.log.warning(f"{days}: {text}")

        return report_stalls(lambda: self.engine.started_session, self.stalled_after, say)

    def events(
        self,
        instance: dg.DagsterInstance,
        table: Table,
        done: Sequence[Done],
        took: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[list[AssetEvent]]:
        """What Dagster is to be told of the days; a list must be stored before the next.

        A day that stays as it is gets a materialization and evaluations like any other: Dagster
        expects both of every day of a run, and shows a day that lacks them as failed or missing if
        the run fails.

        Args:
            instance: where it is told.
            table: the table.
            done: what the run made of the days.
            took: metadata of the days that were computed, besides what is known of each.
        """
        not_computed = (Outcome.IDENTICAL, Outcome.FAILED, Outcome.WITHDRAWN)
        newest = max((one.day for one in done if one.outcome not in not_computed), default=None)
        numbers = {name: of for name, of in took.items() if name != PLOT}
        # The plot is large, and the same for all days of a run: the newest has it.
        yield [
            self._materialization(table, one, took if one.day == newest else numbers)
            for one in done
            if one.outcome not in (Outcome.FAILED, Outcome.WITHDRAWN)
        ]
        # Afterwards, as an evaluation names the materialization that it speaks of.
        latest = latest_materializations(instance, table.name, [one.day for one in done])
        found: list[AssetEvent] = []
        for one in done:
            record = latest.get(one.day)
            target = record and AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
            withdrawn = one.outcome is Outcome.WITHDRAWN
            found += evaluations(table, one.verdict, target, blocks=not withdrawn)
        yield found

    def _materialization(
        self, table: Table, one: Done, took: Mapping[str, Any]
    ) -> dg.AssetMaterialization:
        return dg.AssetMaterialization(
            asset_key=table.name,
            partition=one.day.isoformat(),
            metadata={
                **day_metadata(one.verdict),
                **one.numbers,
                **_outcome_metadata(one),
                **(took if one.outcome is not Outcome.IDENTICAL else {}),
                "dagster/uri": self.url(table),
                "code version": self.code_of(table),
                "config digest": self.config_of(table),
                **{f"input version {name}": version for name, version in one.inputs.items()},
            },
            tags={
                "dagster/data_version": one.verdict.measured.digest,
                "dagster/data_version_is_user_provided": "true",
            },
        )


def _outcome_metadata(one: Done) -> dict[str, Any]:
    said = {"outcome": one.outcome.value, "delta version": one.version}
    return {**said, "computed because": one.why} if one.why else said
