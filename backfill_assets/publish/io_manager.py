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
    stored_events,
)
from backfill_assets.delta.commits import PublishError
from backfill_assets.engine.stalls import report_stalls
from backfill_assets.engine.task_times import watch_tasks
from backfill_assets.publish.candidates import Candidate, DayResult, Input, Outcome
from backfill_assets.publish.chains import DAYS_PER_COMMIT
from backfill_assets.publish.materializations import latest_materializations
from backfill_assets.publish.publisher import Publisher
from backfill_assets.publish.run_tags import CODE_TAG, REWRITE_TAG, format_code_pin, is_merge_run
from backfill_assets.publish.task_metadata import PLOT, task_metadata
from backfill_assets.quality.checks import check_evaluations, day_metadata
from backfill_assets.tables.catalog import load_tables
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.table import Table


class DeltaIOManager(Publisher):
    """Hands days of tables to the assets, publishes what they propose, and tells Dagster of it."""

    def load_input(self, context: dg.InputContext) -> Input:
        """The input, to be read after the ledger of the table that is made of it."""
        table = load_tables(self.tables)[context.asset_key.path[-1]]
        by_day = bool(context.asset_partition_keys)
        return Input(lambda: self.table_snapshot(self.ledger(table), by_day))

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
        window = obj.table.grain.one_range(context.asset_partition_keys)
        step = context.step_context
        run = step.dagster_run
        record = self.run_metadata(obj.table, run.run_id, run.tags)
        current_pin = format_code_pin(self.code_version, self.config_digest)
        if (planned_pin := run.tags.get(CODE_TAG, current_pin)) != current_pin:
            raise PublishError(
                f"{obj.table.name} [{window}]: the backfill was planned with code and "
                f"configuration {planned_pin}, and this run has {current_pin}. Nothing was written. Put back what "
                "was deployed and launch the backfill again, or make a new plan."
            )
        rewrite = window if run.tags.get(REWRITE_TAG, "").lower() == "true" else ()
        merge = is_merge_run(run.tags)
        failed: dict[date, str] = {}
        outcome_counts: Counter[str] = Counter()
        for part in (
            window.split_by_length(DAYS_PER_COMMIT) if carries_state(obj.table) else [window]
        ):
            with watch_tasks() as tasks, self._report_stalls(context, f"{obj.table.name} [{part}]"):
                results = self.publish(obj, part, record, rewrite=rewrite, merge=merge)
            failed |= {
                d.day: d.verdict.failure_reasons for d in results if d.outcome is Outcome.FAILED
            }
            self._failed_days[run.run_id, obj.table.name] = {**failed}  # other steps read it
            outcome_counts.update(d.outcome.value for d in results)
            task_figures = task_metadata(tasks.read_times())
            for events in self.events(step.instance, obj.table, results, task_figures):
                yield from stored_events(step, events)
        context.log.info(
            f"{obj.table.name} [{window}]: "
            + ", ".join(
                f"{n} day{'s' * (n != 1)} {outcome}" for outcome, n in outcome_counts.items()
            )
        )

    def _report_stalls(
        self, context: dg.OutputContext, days: str
    ) -> contextlib.AbstractContextManager[None]:
        """Say in the log of the step which query it waits for, if that takes long."""

        def log_stall(text: str) -> None:
            context.log.warning(f"{days}: {text}")

        return report_stalls(lambda: self.engine.started_session, self.stalled_after, log_stall)

    def events(
        self,
        instance: dg.DagsterInstance,
        table: Table,
        results: Sequence[DayResult],
        task_figures: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[list[AssetEvent]]:
        """What Dagster is to be told of the days; a list must be stored before the next.

        A day that stays as it is gets a materialization and evaluations like any other: Dagster
        expects both of every day of a run, and shows a day that lacks them as failed or missing if
        the run fails.

        Args:
            instance: where it is told.
            table: the table.
            results: what the run made of the days.
            task_figures: metadata of the days that were computed, besides what is known of each.
        """
        not_computed = (Outcome.IDENTICAL, Outcome.FAILED, Outcome.WITHDRAWN)
        newest = max(
            (result.day for result in results if result.outcome not in not_computed), default=None
        )
        numbers = {name: figure for name, figure in task_figures.items() if name != PLOT}
        # The plot is large, and the same for all days of a run: the newest has it.
        yield [
            self._day_materialization(
                table, result, task_figures if result.day == newest else numbers
            )
            for result in results
            if result.outcome not in (Outcome.FAILED, Outcome.WITHDRAWN)
        ]
        # Afterwards, as an evaluation names the materialization that it speaks of.
        latest = latest_materializations(instance, table.name, [result.day for result in results])
        check_events: list[AssetEvent] = []
        for result in results:
            record = latest.get(result.day)
            target = record and AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
            withdrawn = result.outcome is Outcome.WITHDRAWN
            check_events += check_evaluations(table, result.verdict, target, blocks=not withdrawn)
        yield check_events

    def _day_materialization(
        self, table: Table, result: DayResult, task_figures: Mapping[str, Any]
    ) -> dg.AssetMaterialization:
        return dg.AssetMaterialization(
            asset_key=table.name,
            partition=result.day.isoformat(),
            metadata={
                **day_metadata(result.verdict),
                **result.numbers,
                **_outcome_metadata(result),
                **(task_figures if result.outcome is not Outcome.IDENTICAL else {}),
                "dagster/uri": self.url(table),
                "code version": self.code_of(table),
                "config digest": self.config_of(table),
                **{f"input version {name}": version for name, version in result.inputs.items()},
            },
            tags={
                "dagster/data_version": result.verdict.metrics.digest,
                "dagster/data_version_is_user_provided": "true",
            },
        )


def _outcome_metadata(result: DayResult) -> dict[str, Any]:
    metadata = {"outcome": result.outcome.value, "delta version": result.version}
    return {**metadata, "computed because": result.reason} if result.reason else metadata
