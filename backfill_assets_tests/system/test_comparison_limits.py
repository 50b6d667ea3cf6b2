"""Switch-overs that need a passed comparison, of exactly what they switch over.

What counts as one is decided in `test_required_comparisons`; one way through is a part of
`test_targets::test_a_target_from_end_to_end`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.definitions import build_defs
from backfill_assets.delta import targets
from backfill_assets.delta.targets import ComparisonLimits, Target
from backfill_assets.shadow.compare import require_comparison
from backfill_assets_tests.helpers.pipeline import Pipeline, copy_loaded, day, order
from backfill_assets_tests.helpers.shadow_targets import (
    AFTER,
    ALL,
    BEFORE,
    SCORES,
    build_shadow,
    compare_shadow,
    land_orders,
    read_scores,
    run_switch_over,
)

New = Callable[..., Pipeline]
WHOLE = f"{day(1)}...{day(6)}"
TENFOLD = {n: 10 * n for n in range(1, 7)}
#: Ten times as many points are another distribution, and there are the same rows.
ANY, LITTLE = ComparisonLimits(most_rows=0), ComparisonLimits(most_drift=0.25)


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("loaded")
    land_orders(Pipeline(engine, root, tables=BEFORE, window_days=1))
    return root


@pytest.fixture
def production(engine, loaded, tmp_path: Path) -> Pipeline:
    copy_loaded(loaded, tmp_path)
    return Pipeline(engine, tmp_path, tables=BEFORE, window_days=1)


@pytest.fixture
def after(production, engine, tmp_path: Path) -> Pipeline:
    return Pipeline(engine, tmp_path, tables=AFTER, window_days=1)


def require_bounds(pipeline: Pipeline, bounds: ComparisonLimits | None) -> Target:
    return require_comparison(
        pipeline.deployment, targets.load_target(pipeline.deployment, "v2"), bounds
    )


def switch_refusal(pipeline: Pipeline) -> str:
    message = pipeline.failure(run_switch_over(pipeline, fails=True))
    assert "Nothing was written" in message
    assert not targets.load_target(pipeline.deployment, "v2").switching
    return message


@pytest.mark.slow
def test_a_comparison_of_something_else_does_not_count(production, after, spark):
    build_shadow(after, f"{day(2)}...{day(6)}")
    require_bounds(after, ANY)
    assert compare_shadow(after, spark).problems == []
    # The target was built on.
    build_shadow(after, WHOLE)
    assert "the target was built on since the last one" in switch_refusal(after)
    assert compare_shadow(after, spark).problems == []
    # Production has other rows of a day that the target made, and the target has caught up.
    production.land(6, [order("6-late", 6, "1.00", at="11:00")], "late.jsonl")
    production.run(6, 6, ALL)
    assert "not as it would be made now" in switch_refusal(after)
    build_shadow(after, WHOLE)
    assert "the target was built on since the last one" in switch_refusal(after)
    assert compare_shadow(after, spark).problems == []
    run_switch_over(after)
    assert read_scores(production) == {**TENFOLD, 6: 70}


@pytest.mark.slow
def test_a_day_that_production_has_published_since_is_compared_again(production, after, spark):
    build_shadow(after, WHOLE)
    require_bounds(after, ANY)
    assert compare_shadow(after, spark).problems == []
    # By another code than that of before: the rows that were compared are no more.
    production.run(3, 3, (SCORES,), tags={"backfill_assets/rewrite": "true"})
    assert f"production has published {SCORES} [{day(3)}] since the last one" in switch_refusal(
        after
    )
    build_shadow(after, WHOLE)
    assert compare_shadow(after, spark).problems == []
    run_switch_over(after)
    assert read_scores(production) == TENFOLD


@pytest.mark.slow
def test_more_rows_than_a_bound_allows(production, after, spark):
    # The day has one customer by the code of both, and lines of another since.
    build_shadow(after, WHOLE)
    assert compare_shadow(after, spark, ComparisonLimits(most_rows=0)).problems == []
    production.land(2, [order("2-more", 2, customer="c2", at="11:00")], "more.jsonl")
    production.run(2, 2, ("raw_orders", "raw_orders_rejected", "stg_orders"))
    build_shadow(after, WHOLE)
    problems = compare_shadow(after, spark, ComparisonLimits(most_rows=0.1)).problems
    assert "scores has +16.7% rows, more than 10.0% either way" in problems
    assert compare_shadow(after, spark, ComparisonLimits(most_rows=5)).problems == []


@pytest.mark.slow
def test_the_job_takes_bounds(after, spark):
    build_shadow(after, WHOLE)

    def run_comparison(**config: object) -> str:
        result = after.repository.get_job("compare_target").execute_in_process(
            instance=after.instance,
            run_config={"ops": {"compare_tables": {"config": {"target": "v2", **config}}}},
            raise_on_error=False,
        )
        return "" if result.success else after.failure(result)

    assert "scores.score has drifted by" in run_comparison(most_drift=0.25, require=True)
    assert targets.load_target(after.deployment, "v2").required == LITTLE
    switch_refusal(after)
    assert "scores.score has drifted by" in run_comparison()
    assert run_comparison(most_drift=100, require=True) == ""
    # Its numbers are plotted, of an asset of their own: production's have no event.
    key = dg.AssetKey(["comparisons", SCORES])
    plotted = after.instance.fetch_observations(key, limit=9).records
    numbers = plotted[0].asset_observation.metadata
    # Dagster plots those of an asset that is defined, and which nobody materializes.
    assert build_defs(after.settings).resolve_asset_graph().get(key).is_external
    assert numbers["target"].value == "v2"
    assert len(plotted) == 3
    assert numbers["changed_days"].value == numbers["days"].value == 6
    assert numbers["largest_psi"].value > 0.25
    assert not after.instance.fetch_observations(dg.AssetKey(SCORES), limit=9).records
    run_switch_over(after)
