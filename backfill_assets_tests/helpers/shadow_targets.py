"""Targets in a test: two definitions of the same tables, days of both, builds and switch-overs."""

from __future__ import annotations

import dagster as dg
from pyspark.sql import SparkSession

from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.delta import targets
from backfill_assets.delta.targets import ComparisonLimits, Target
from backfill_assets.shadow.build import StageResult, build_stages, prepare_target
from backfill_assets.shadow.compare import Comparison, compare_target
from backfill_assets_tests.helpers.pipeline import Pipeline, day, io_manager_of, order
from backfill_assets_tests.target_tables import SOURCES

BEFORE, AFTER = (f"backfill_assets_tests.target_tables{which}:TABLES" for which in ("", "_after"))
SCORES, RANKS, STATE = "scores", "ranks", "sums"
ALL = (*(table.name for table in SOURCES), SCORES, RANKS, STATE)
DAYS = f"{day(2)}...{day(4)}"


def land_orders(pipeline: Pipeline, last: int = 6) -> Pipeline:
    """With n orders of one customer on day n."""
    for n in range(1, last + 1):
        pipeline.land(n, [order(f"{n}-{k}", n, f"{n}.0{k}") for k in range(n)])
    pipeline.run(1, last, ALL)
    return pipeline


def build_shadow(
    pipeline: Pipeline, days: str = DAYS, name: str = "v2", **more: object
) -> tuple[Target, list[StageResult]]:
    io, assets = io_manager_of(pipeline.defs), list(pipeline.defs.assets)
    request = BackfillRequest(days=days, **{"tables": (SCORES,), **more})
    target = prepare_target(io, pipeline.deployment, name, request)
    stages = list(build_stages(io, pipeline.deployment, assets, target, request))
    return targets.load_target(pipeline.deployment, name), stages


def compare_shadow(
    pipeline: Pipeline, spark: SparkSession, bounds: ComparisonLimits | None = None
) -> Comparison:
    target = targets.load_target(pipeline.deployment, "v2")
    return compare_target(pipeline.deployment, spark, target, pipeline.code, bounds)


def run_switch_over(
    pipeline: Pipeline, name: str = "v2", days: str = "", reason: str = "", *, fails: bool = False
) -> dg.ExecuteInProcessResult:
    config = {"target": name, "days": days, "reason": reason}
    result = pipeline.repository.get_job("switch_over").execute_in_process(
        instance=pipeline.instance,
        run_config={"ops": {"adopt_days": {"config": config}}},
        raise_on_error=False,
    )
    assert result.success is not fails, pipeline.failure(result)
    return result


def read_scores(pipeline: Pipeline, name: str = SCORES) -> dict[int, int]:
    """By day, the score of the one customer, as another engine reads it."""
    return {(row["run_date"] - day(1)).days + 1: row["score"] for row in pipeline.rows(name)}
