"""What a run says of a function that fails: a sentence with what, why, where and what to do."""

from __future__ import annotations

import pytest

from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

TABLES = "backfill_assets_tests.failing_tables:TABLES"
#: By table, what its failure says.
FAILURES = {
    "unknown_column": (
        "its function failed: [UNRESOLVED_COLUMN",
        "Did you mean",
        "failing_tables.py, line",
    ),
    "key_error": ("its function failed: KeyError: 'least'", "failing_tables.py, line"),
    "failing_udf": ("its rows cannot be computed", "ZeroDivisionError"),
    "wrong_cast": ("its rows cannot be computed", "[CAST_INVALID_INPUT]", "'many'"),
    "nothing": ("its function gives None, and no DataFrame",),
}


@pytest.fixture(scope="module")
def failures(engine, spark, tmp_path_factory) -> list[str]:
    """What the steps of one run say, of which each fails."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("failing"), tables=TABLES)
    for n in (1, 2):
        pipeline.land(n, [order(f"{n}", n)])
    pipeline.run(1, 2, ("raw_orders", "stg_orders"))
    message = pipeline.failure(pipeline.run(1, 2, [*FAILURES], fails=True))
    ledgers = read_ledgers(pipeline.deployment)
    assert [name for name in FAILURES if ledgers[name].version is not None] == []
    return message.splitlines()


@pytest.mark.parametrize("name", FAILURES)
def test_a_function_that_fails(failures, name):
    assert len(failures) == len(FAILURES), "a line each: no plan, and no stack"
    (text,) = (line for line in failures if line.startswith(f"{name} [{day(1)}...{day(2)}]: "))
    for part in FAILURES[name]:
        assert part in text
    assert "Nothing was written" in text
    assert "launch these days again" in text
