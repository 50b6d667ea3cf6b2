"""A source whose lines arrive the next day: no day is published empty, and nothing is late."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import date, datetime, time
from types import ModuleType

import pytest

from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import day_states
from backfill_assets.settings import load_settings
from backfill_assets.tables.graph import load_graph, tables_of
from backfill_assets_tests.helpers.pipeline import Pipeline, day
from backfill_assets_tests.next_day_tables import READINGS, consumption

TABLES = "backfill_assets_tests.next_day_tables:TABLES"


@pytest.fixture
def meters(engine, spark, tmp_path) -> Pipeline:
    (tmp_path / "landing" / "readings").mkdir(parents=True)
    return Pipeline(engine, tmp_path, land=False, tables=TABLES)


def send_readings(meters: Pipeline, folder_n: int, event_n: int, meter_ids: str) -> None:
    """Readings of a day in the folder of another."""
    folder = meters.landing / "readings" / f"arrival_date={day(folder_n)}"
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "meter_id": meter,
            "at": f"{day(event_n)}T12:00:00Z",
            "sent_at": f"{day(folder_n)}T01:00:00Z",
            "kwh": "0.250",
        }
        for meter in meter_ids
    ]
    path = folder / f"{event_n}-{meter_ids}.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def published_meters(meters: Pipeline) -> dict[date, int]:
    """By day, from how many meters there are readings in the table that readers use."""
    if not (meters.warehouse / consumption.name).exists():
        return {}
    rows = meters.rows(consumption.name)
    return {d: sum(row["run_date"] == d for row in rows) for d in {row["run_date"] for row in rows}}


def test_each_night_publishes_the_day_that_has_arrived(meters):
    # The first folder is there, and empty.
    (meters.landing / "readings" / f"arrival_date={day(1)}").mkdir()
    send_readings(meters, 2, 1, "abc")
    meters.night(day(3))
    assert published_meters(meters) == {day(1): 3}
    snapshot = Monitor(meters.deployment, lambda: meters.now).read_snapshot(meters.instance)
    bad = {
        name: states
        for name in tables_of(meters.settings)
        if (states := [s for s in day_states(name, snapshot).values() if not s.is_good])
    }
    assert not bad
    # The lines of the last day would be in a folder beyond the calendar.
    graph = load_graph(load_settings(tables=TABLES, start=day(1), end=day(6)))
    assert graph.policy_of(consumption.name).expected_days(day(30)).end == day(5)
    assert graph.policy_of(READINGS.raw.name).expected_days(day(30)).end == day(6)

    # A line in the window, which begins when lines usually arrive, and one beyond it.
    send_readings(meters, 3, 2, "abc")
    send_readings(meters, 4, 3, "abc")
    send_readings(meters, 4, 2, "d")
    send_readings(meters, 4, 1, "d")
    # At midnight, before the folders of the days are loaded, nothing is published.
    meters.now = datetime.combine(day(5), time(0, 1), tzinfo=meters.settings.zone)
    assert meters.launch(meters.tick("touched_days").run_requests or []) == []
    meters.night(day(5))
    assert published_meters(meters) == {day(1): 3, day(2): 4, day(3): 3}
    assert [row["event_date"] for row in meters.rows(READINGS.late.name)] == [day(1)]
    lateness = sorted(meters.rows(READINGS.lateness.name), key=lambda row: row["log_date"])
    assert [(row["lines"], row["late_lines"], row["beyond_lines"]) for row in lateness] == [
        (0, 0, 0),
        (3, 0, 0),
        (3, 0, 0),
        (5, 2, 1),
    ]
    assert lateness[-1]["delay_days_max"] == 2


def test_when_lines_arrive_decides_rows(monkeypatch):
    digests = []
    for days in (0, 1, 2):
        place = f"arrives_{days}"
        module = ModuleType(place)
        module.TABLES = [replace(READINGS, arrives_after=days)]
        monkeypatch.setitem(sys.modules, place, module)
        digests.append(Deployment(load_settings(tables=f"{place}:TABLES")).config_digests)
    for table in (READINGS.staged, READINGS.late, READINGS.lateness):
        assert len({digest[table.name] for digest in digests}) == 3
    assert len({digest[READINGS.raw.name] for digest in digests}) == 1
