"""The project in the docstring of the package runs as it says: a day, a late line, a rebuild."""

from __future__ import annotations

import inspect
import json
import sys

import pytest

import backfill_assets
from backfill_assets.monitoring.incidents import read_snapshot
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.tables.graph import load_graph
from backfill_assets_tests.helpers.pipeline import Pipeline, day

MODULE = "docstring_visits"
#: Those from the lines to the count, without what is beside them.
TABLES = ("raw_visits", "stg_visits", "daily_visits")


@pytest.fixture
def visits(engine, spark, tmp_path, monkeypatch) -> Pipeline:
    """A pipeline of the docstring's project."""
    documentation = inspect.cleandoc(backfill_assets.__doc__ or "")
    _, _, rest = documentation.partition("`visits.py`:\n\n")
    code, _, _ = rest.partition("\n\nA file has landed")
    (tmp_path / f"{MODULE}.py").write_text(inspect.cleandoc(f"\n{code}"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    (tmp_path / "landing" / "visits").mkdir(parents=True)
    return Pipeline(engine, tmp_path, land=False, tables=f"{MODULE}:TABLES")


def land_visit(visits: Pipeline, folder_n: int, visit_id: str, began_n: int) -> None:
    folder = visits.landing / "visits" / f"arrival_date={day(folder_n)}"
    folder.mkdir(exist_ok=True)
    line = {
        "visit_id": visit_id,
        "began_at": f"{day(began_n)}T10:00:00Z",
        "sent_at": f"{day(folder_n)}T11:00:00Z",
    }
    (folder / f"{visit_id}.jsonl").write_text(f"{json.dumps(line)}\n")


def read_counts(visits: Pipeline) -> dict:
    return {row["run_date"]: row["visits"] for row in visits.rows("daily_visits")}


def test_a_late_line_makes_its_day_stale_and_the_next_run_counts_it(visits):
    assert {*load_graph(visits.settings).tables} > {*TABLES}
    land_visit(visits, 1, "first", began_n=1)
    visits.run(1, 1, TABLES)
    assert read_counts(visits) == {day(1): 1}
    land_visit(visits, 2, "late", began_n=1)
    land_visit(visits, 2, "second", began_n=2)
    visits.run(2, 2, TABLES[:1])
    snapshot = read_snapshot(visits.deployment, visits.instance, visits.now)
    assert day_states("stg_visits", snapshot)[day(1)] is DayState.INPUT_NEWER
    visits.run(1, 2, TABLES[1:])
    assert read_counts(visits) == {day(1): 2, day(2): 1}
