"""pytest plugin: of the tests, those that need no Spark, and random ones with few examples.

A mutant runs all tests that reach its function, until one fails. What a random test finds must be
the same in each run, and need not be made small.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

#: Whoever asks for one of them, by other fixtures as well, starts Spark.
SPARK_FIXTURES = frozenset(["engine", "one_session_engine", "pipeline", "spark"])
#: Examples of a random test, at most.
MAX_EXAMPLES = 20


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Deselect what starts Spark, and bound what is random."""
    with_spark = [item for item in items if SPARK_FIXTURES.intersection(item.fixturenames)]
    config.hook.pytest_deselected(items=with_spark)
    items[:] = [item for item in items if item not in with_spark]
    for item in items:
        # There is no public way to change the settings of a test that has some.
        own = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        if own is not None:
            item.obj._hypothesis_internal_use_settings = settings(
                own,
                max_examples=min(own.max_examples, MAX_EXAMPLES),
                phases=[Phase.explicit, Phase.generate],
                database=None,
                derandomize=True,
            )
