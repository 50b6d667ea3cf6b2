"""The example `city` by night: a source a day late, one without Sundays, tables over both."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from functools import partial

import dagster as dg
import pytest

from backfill_assets.backfills.undo import undo_backfill
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.next_runs import RunPlanner
from backfill_assets.monitoring.states import DayState
from backfill_assets.publish.types import closing_tags
from backfill_assets.staleness.unloaded import refuse_closing
from backfill_assets_guide.examples.city import READINGS, TICKETS
from backfill_assets_guide.sample.city_landing import (
    Line,
    district_days,
    files_of_day,
    write_files,
)
from backfill_assets_tests.helpers.pipeline import Pipeline, day

TABLES = "backfill_assets_guide.examples.city:TABLES"
SUNDAYS = [day(7 * n) for n in range(1, 7)]


class City:
    """The example's deployment, with the files that have come so far."""

    def __init__(self, engine, tmp_path) -> None:
        for source in ("readings", "tickets"):
            (tmp_path / "landing" / source).mkdir(parents=True)
        self.pipeline = Pipeline(
            engine, tmp_path, land=False, tables=TABLES, start=day(1), end=None, today=day(2)
        )
        self.files: dict[str, list[Line]] = {}

    def land(self, *numbers: int) -> None:
        for number in numbers:
            self.land_files(files_of_day(7, day(number), day(1)))

    def land_files(self, files: Mapping[str, list[Line]]) -> None:
        write_files(self.pipeline.landing, files)
        self.files |= files

    def play_night(self, today: date) -> None:
        """What the daemon does; then nothing is left to do, and no state is bad but of missing."""
        self.pipeline.night(today)
        planner = RunPlanner(self.pipeline.deployment)
        assert planner.next_batch(today, {}, list)[1] == [], f"on {today}"
        self.check_rows(today)

    def change_closing(self, d: date, *, reopen: bool) -> None:
        """Close an arrival day of tickets, or open it again, as the command does."""
        days, deployment = Window(d, d + DAY), self.pipeline.deployment
        refuse_closing(deployment, TICKETS, days, reopen=reopen)
        tables = deployment.graph.loaded_with(TICKETS.raw.name)
        self.pipeline.run(d, assets=tables, tags=closing_tags("a strike", reopen=reopen))

    def states(self) -> dict[str, dict[date, DayState]]:
        """The states at noon, after the deadline of the night."""
        monitor = Monitor(self.pipeline.deployment, lambda: self.pipeline.now.replace(hour=12))
        snapshot = monitor.read_snapshot(self.pipeline.instance)
        return {name: snapshot.states_of(name) for name in self.pipeline.deployment.tables}

    def bad_states(self) -> dict[str, dict[date, DayState]]:
        return {
            name: bad
            for name, states in self.states().items()
            if (bad := {d: state for d, state in states.items() if not state.is_good})
        }

    def ledger(self, name: str) -> Ledger:
        deployment = self.pipeline.deployment
        return read_ledger(deployment.table_url(name), deployment.tables[name])

    def published(self, name: str) -> set[date]:
        return {*self.ledger(name).published_days}

    def folder_metadata(self, number: int) -> object:
        """What the last materialization of an arrival day of tickets says of its folder."""
        asset, partitions = dg.AssetKey(TICKETS.raw.name), [str(day(number))]
        records = self.pipeline.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset, asset_partitions=partitions), limit=1
        ).records
        return records[0].asset_materialization.metadata["arrival_folder"].value

    def check_rows(self, today: date) -> None:
        """The rows of all tables are those of plain Python, and every day that is due is there."""
        # Readings of a day come on the next one, which is loaded in the night after it.
        due = Window(day(1), today - DAY)
        assert self.published("district_day") == self.published("district_baseline") == {*due}
        expected = {key: row for key, row in district_days(self.files).items() if key[0] in due}
        if not due:
            return
        rows = {
            (row.pop("run_date"), row.pop("district")): row
            for row in self.pipeline.rows("district_day")
        }
        grades = {key: row.pop("air") for key, row in rows.items()}
        assert rows == expected, f"on {today}"
        assert grades == {key: grade(row) for key, row in expected.items()}
        columns = ("tickets", "fines")
        assert {
            (row["run_date"], row["district"]): [row[c] for c in columns]
            for row in self.pipeline.rows("district_baseline")
        } == {
            (d, district): [sum(row[c] for row in days) for c in columns]
            for d in due
            for district in {key[1] for key in expected}
            if (days := [expected[k] for k in expected if k[1] == district and in_28_days(k[0], d)])
        }
        if whole_months := {*Grain.MONTHLY.whole_partitions(due)}:
            assert self.published("district_month") == whole_months
            assert {
                (row["month"], row["district"]): row["fines"]
                for row in self.pipeline.rows("district_month")
            } == {
                (month, district): sum(
                    row["fines"]
                    for (d, name), row in expected.items()
                    if name == district and d in Grain.MONTHLY.days_of(month)
                )
                for month in whole_months
                for district in {key[1] for key in expected}
            }


def in_28_days(d: date, last: date) -> bool:
    return 0 <= (last - d).days < 28


def grade(row: Mapping[str, Decimal]) -> str | None:
    if not row["readings"]:
        return None
    mean = row["pm10"] / row["readings"]
    return "good" if mean <= 20 else "fair" if mean <= 40 else "poor"


@pytest.fixture
def city(engine, spark, tmp_path) -> City:
    return City(engine, tmp_path)


def test_sundays_without_tickets(city, monkeypatch):
    """On the second Sunday a file comes after all, and on the last Monday none does."""
    city.land(*range(1, 15))
    extra = [
        {**line, "ticket": f"extra {line['ticket']}"}
        for line in city.files[f"tickets/arrival_date={day(13)}/tickets.jsonl"]
    ]
    city.land_files({f"tickets/arrival_date={day(14)}/extra.jsonl": extra})
    files = files_of_day(7, day(15), day(1))
    files.pop(f"tickets/arrival_date={day(15)}/tickets.jsonl")
    city.land_files(files)
    city.play_night(day(16))
    assert city.published(TICKETS.staged.name) == {*Window(day(1), day(16))}
    tickets = city.states()[TICKETS.raw.name]
    assert [d for d, state in tickets.items() if state is DayState.NOT_EXPECTED] == [day(7)]
    assert city.bad_states()[TICKETS.raw.name] == {day(15): DayState.INPUT_MISSING}
    assert READINGS.raw.name not in city.bad_states()
    verdicts = city.ledger(TICKETS.raw.name).latest
    assert verdicts[day(14)].days[day(14)].verdict == "warn"
    assert verdicts[day(7)].days[day(7)].verdict == "ok"
    # Readings of this day come tomorrow: its partition stays missing, and says why.
    with monkeypatch.context() as patch:
        patch.setattr(Deployment, "today", day(16))
        city.pipeline.run(15, 15, ["district_day"])
    instance = city.pipeline.instance
    assert str(day(15)) not in instance.get_materialized_partitions(dg.AssetKey("district_day"))
    (observed,) = instance.fetch_observations(dg.AssetKey("district_day"), limit=9).records
    assert observed.partition_key == str(day(15))
    assert f"due on {day(17)}" in observed.asset_observation.description
    assert city.folder_metadata(7) == "none is expected"
    assert city.folder_metadata(15) == "none yet"
    # Nothing will come, says a person: nothing is waited for, until it is again.
    city.change_closing(day(15), reopen=False)
    assert city.bad_states() == {}
    assert city.states()[TICKETS.raw.name][day(15)] is DayState.NOT_EXPECTED
    city.change_closing(day(15), reopen=True)
    assert city.bad_states()[TICKETS.raw.name] == {day(15): DayState.INPUT_MISSING}


@pytest.mark.slow
def test_forty_nights(city):
    """With late files, corrections, a backfill and its undo: every night ends with nothing left."""
    for number in range(1, 41):
        files = files_of_day(7, day(number), day(1))
        tickets = f"tickets/arrival_date={day(number)}/tickets.jsonl"
        if number in (10, 25):
            withheld = {tickets: files.pop(tickets)}
        city.land_files(files)
        if number in (12, 26):
            city.land_files(withheld)
        if number in (17, 33):
            # A corrected file of four days ago, with another ticket.
            name = f"tickets/arrival_date={day(number - 4)}/tickets.jsonl"
            lines = city.files[name]
            city.land_files({name: [*lines, {**lines[0], "ticket": f"found {number}"}]})
        city.play_night(day(number + 1))
        bad = {state for states in city.bad_states().values() for state in states.values()}
        waits = number in (10, 11, 25)
        assert bad == ({DayState.INPUT_MISSING} if waits else set()), f"in the night of {number}"
    final = [d for d, s in city.states()["district_day"].items() if s is DayState.FINAL]
    # The window of 7 days begins a day late, for readings.
    assert final == [*Window(day(1), day(41 - 8))]
    # A backfill of corrected files of final days, and its undo.
    before = city.pipeline.digests()
    name = f"tickets/arrival_date={day(20)}/tickets.jsonl"
    lines = city.files[name]
    city.land_files({name: [*lines, {**lines[0], "ticket": "found late"}]})
    city.pipeline.run(20, 20, [TICKETS.raw.name, TICKETS.rejected.name])
    issued = date.fromisoformat(lines[0]["issued_at"][:10])
    daily = [TICKETS.staged.name, "district_day", "district_baseline"]
    backfill = city.pipeline.run(issued, issued, daily).run_id
    assert city.pipeline.digests() != before
    undo = partial(undo_backfill, city.pipeline.io_manager, city.pipeline.deployment)
    [*undo(backfill, "undo", {})]
    after = city.pipeline.digests()
    assert {n: after[n] for n in daily} == {n: before[n] for n in daily}
    city.files[name] = lines
    city.play_night(day(42))
