"""What a run says of a function that fails: a sentence with what, why, where and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import pytest

from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

TABLES = "backfill_assets_tests.failing_tables:TABLES"
#: By table, what the failure of its step says.
FAILURES = {
    "unknown_column": (
        "its function failed: [UNRESOLVED_COLUMN",
        "Did you mean",
        "failing_tables.py, line",
    ),
    "key_error": ("its function failed: KeyError: 'least'", "failing_tables.py, line"),
    "nothing": ("its function gives None, and no DataFrame",),
}
#: By table, the days whose rows fail, and the reason.
FAILING_ROWS = {
    "failing_udf": ([1, 2], ("its rows cannot be computed", "ZeroDivisionError")),
    "wrong_cast": ([1], ("its rows cannot be computed", "[CAST_INVALID_INPUT]", "'many'")),
}


@dataclass(frozen=True)
class FailedRun:
    """A run in which all tables fail.

    Attributes:
        failures: what its steps say, a line each.
        failed_days: by table, why days were refused.
        published: by table, the days that were published.
    """

    failures: list[str]
    failed_days: Mapping[str, Mapping[date, str]]
    published: Mapping[str, list[date]]


@pytest.fixture(scope="module")
def failed_run(engine, spark, tmp_path_factory) -> FailedRun:
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("failing"), tables=TABLES)
    for n in (1, 2):
        pipeline.land(n, [order(f"{n}", n)])
    pipeline.run(1, 2, ("raw_orders", "stg_orders"))
    result = pipeline.run(1, 2, [*FAILURES, *FAILING_ROWS], fails=True)
    ledgers = read_ledgers(pipeline.deployment)
    return FailedRun(
        pipeline.failure(result).splitlines(),
        pipeline.io_manager.failed_days(result.run_id),
        {name: sorted(ledgers[name].published_days) for name in (*FAILURES, *FAILING_ROWS)},
    )


@pytest.mark.parametrize("name", FAILURES)
def test_a_function_that_fails(failed_run, name):
    (text,) = (
        line for line in failed_run.failures if line.startswith(f"{name} [{day(1)}...{day(2)}]: ")
    )
    for part in FAILURES[name]:
        assert part in text
    assert "Nothing was written" in text
    assert "launch these days again" in text
    assert failed_run.published[name] == []


@pytest.mark.parametrize("name", FAILING_ROWS)
def test_days_whose_rows_fail_hold_back_no_other_days(failed_run, name):
    bad_days, parts = FAILING_ROWS[name]
    reasons = failed_run.failed_days[name]
    assert sorted(reasons) == [day(n) for n in bad_days]
    assert failed_run.published[name] == [day(n) for n in (1, 2) if n not in bad_days]
    for failed_day, text in reasons.items():
        assert "\n" not in text, "no plan, and no stack"
        for part in (f"{name} [{failed_day}]: ", *parts, "launch these days again"):
            assert part in text
