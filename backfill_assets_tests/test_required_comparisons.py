"""Which comparison lets a target be switched over, and what its limits allow: without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.audit.verdicts import DayContent
from backfill_assets.backfills.diff import ColumnDrift, DayDiff, TableDiff
from backfill_assets.delta.records import CommitRecord
from backfill_assets.delta.targets import (
    ComparisonLimits,
    Target,
    TargetComparison,
    TargetError,
)
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT
from backfill_assets.settings import load_settings
from backfill_assets.shadow.compare import exceeded_limits, refuse_uncompared, require_comparison
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.written_logs import commit_with_record

LITTLE = ComparisonLimits(most_drift=0.25)
PASSED: dict[str, Any] = {
    "generation": "g1",
    "versions": {FACT.name: 1},
    "pins": {FACT.name: 0},
    "bounds": LITTLE,
}
TARGET: dict[str, Any] = {
    "name": "v2",
    "tables": (FACT.name,),
    "requested_days": (f"{day(1)}...{day(2)}",),
    "pins": {FACT.name: 0},
    "generation": "g1",
    "required": LITTLE,
}
#: Production as it was when the clone was made.
PUBLISHED = record(0, days(1, 2))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Deployment:
    """With a clone of the facts at version 0, into which day 2 was built since."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    deployment = Deployment(load_settings(warehouse=str(warehouse)))
    clone = Path(Target(**TARGET).table_url(deployment, FACT.name))
    commit_with_record(clone, 1)
    commit_with_record(clone, 2)
    return deployment


def refusal(
    deployment: Deployment,
    compared: dict[str, Any] | None,
    since: Iterable[CommitRecord] = (),
    **changes: Any,
) -> str:
    """Why the target is not switched over, with such a comparison and commits of production."""
    comparison = None if compared is None else TargetComparison(**{**PASSED, **compared})
    target = Target(**{**TARGET, "compared": comparison, **changes})
    current = ledgers(ledger(FACT, PUBLISHED, *since))
    try:
        refuse_uncompared(deployment, target, {FACT.name: 1}, current)
    except TargetError as error:
        message = str(error)
        assert message.startswith("target v2 is not switched over, as it must pass a comparison")
        assert message.endswith("Nothing was written.")
        return message
    return ""


def test_a_target_of_an_earlier_release_is_read():
    values = {name: value for name, value in TARGET.items() if name != "requested_days"}
    old = Target(**values, asked=TARGET["requested_days"])
    assert old == Target(**TARGET)
    assert "asked" not in old.model_dump()


def test_one_that_passed_lets_the_target_be_switched_over(deployment):
    assert refusal(deployment, {}) == ""


def test_none_is_needed_where_none_is_required(deployment):
    assert refusal(deployment, None, required=None) == ""
    assert refusal(deployment, {"problems": ("a problem",)}, required=None) == ""


@pytest.mark.parametrize(
    ("compared", "problem"),
    [
        (None, "with --most-drift 0.25 first: there was none: run `backfill-assets compare v2`"),
        ({"bounds": ComparisonLimits()}, "the last one had other bounds"),
        ({"bounds": ComparisonLimits(most_drift=0.3)}, "the last one had other bounds"),
        # Built on, caught up with production, or cloned again.
        ({"versions": {FACT.name: 0}}, "the target was built on since the last one"),
        ({"pins": {FACT.name: None}}, "the target was built on since the last one"),
        ({"generation": "g0"}, "the target was built on since the last one"),
        ({"problems": ("a problem", "another")}, "the last one found that a problem; another."),
    ],
)
def test_one_of_something_else_or_with_problems_does_not_count(deployment, compared, problem):
    assert problem in refusal(deployment, compared)


@pytest.mark.parametrize(
    ("since", "is_compared"),
    [
        # Day 1 is not built by the target.
        (record(1, days(1)), True),
        (record(1, days(1, 2)), False),
        (record(1, days(2), backfill="other-1"), False),
        # Its own switch-over, as that of a canary before the rest, and the undo of it.
        (record(1, days(2), backfill="v2-1"), True),
        (record(1, days(2), undoes="v2-1"), True),
        (record(1, days(2), undoes="v2"), True),
        (record(1, days(2), undoes="other-1"), False),
    ],
)
def test_a_day_that_others_have_published_since_is_compared_again(deployment, since, is_compared):
    message = refusal(deployment, {}, [since])
    assert (not message) is is_compared
    if not is_compared:
        text = f"production has published {FACT.name} [{day(2)}] since the last one: catch up"
        assert text in message


def test_what_is_required_is_kept_and_not_changed_while_somebody_is_at_work(tmp_path):
    deployment = Deployment(load_settings(warehouse=f"{tmp_path}/warehouse"))
    target = require_comparison(deployment, Target(**{**TARGET, "required": None}), LITTLE)
    assert target.required == LITTLE
    for state in ({"switching": True}, {"undoing": "v2-1"}, {"dropping": True}):
        with pytest.raises(TargetError, match="is being"):
            require_comparison(deployment, target.model_copy(update=state), None)
    assert require_comparison(deployment, target, None).required is None


def figures(rows: int) -> DayContent:
    return DayContent(rows, {}, str(rows), rows)


@pytest.mark.parametrize(
    ("most_drift", "most_rows", "after", "said"),
    [
        (None, None, 2000, []),
        (0.3, None, 120, []),
        (0.25, None, 120, [f"{FACT.name}.orders has drifted by 0.30, more than 0.25"]),
        (None, 0.2, 120, []),
        (None, 0.1, 120, [f"{FACT.name} has +20.0% rows, more than 10.0% either way"]),
        (None, 0.1, 80, [f"{FACT.name} has -20.0% rows, more than 10.0% either way"]),
        (None, 0, 100, []),
    ],
)
def test_what_limits_allow(most_drift, most_rows, after, said):
    table_diff = TableDiff(
        FACT,
        [
            DayDiff(day(1), (0, 1), figures(100), figures(after)),
            # A day that production has not counts for nothing.
            DayDiff(day(2), (None, 1), None, figures(1000)),
        ],
        drift={"orders": ColumnDrift(0.3, 0.2)},
    )
    limits = ComparisonLimits(most_drift=most_drift, most_rows=most_rows)
    assert [*exceeded_limits(table_diff, limits)] == said
