"""A second pipeline: web events, in three formats, late and wrong, alone and beside the orders."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.planner import make_plan
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.orders.tables import FACT, ORDERS
from backfill_assets_guide.examples import web_events
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, order, run_undo, run_verify

PLACE = "backfill_assets_guide.examples.web_events:TABLES"
TABLES = [*VISITS.tables, active_users_7d]
ALL = [*(table.name for table in TABLES), VISITS.page]
BOTH = [*ORDERS, VISITS, active_users_7d]
W = 3
LAST = 12


@dataclass(frozen=True)
class Visit:
    visit_id: str
    user_id: str | None
    began_at: datetime
    page: str
    clicks: int
    logged_in: bool
    properties: str | None
    sent_at: datetime
    arrival: date

    @property
    def event(self) -> date:
        return self.began_at.date()

    @property
    def line(self) -> dict:
        """As it lands; a nested value as such."""
        return {
            "visit_id": self.visit_id,
            "user_id": self.user_id,
            "began_at": f"{self.began_at.isoformat()}Z",
            "page": self.page,
            "clicks": self.clicks,
            "logged_in": self.logged_in,
            "properties": json.loads(self.properties) if self.properties else None,
            "sent_at": f"{self.sent_at.isoformat()}Z",
        }

    @property
    def flat(self) -> dict:
        return self.line | {"properties": self.properties}


def make_visits(seed: int) -> list[Visit]:
    """Visits of twelve days: some late by up to six days, some in a second version."""
    random, visits = Random(seed), []
    for n in range(1, LAST + 1):
        for k in range(12):
            arrival = day(n)
            event = max(START, arrival - random.choice([0] * 8 + [1, 2, 4, 6]) * DAY)
            began = datetime.combine(event, datetime.min.time()) + timedelta(hours=k)
            user = random.choice([None, "u1", "u2", "u3", f"u{n}-{k}"])
            visit = Visit(
                f"v{n}-{k}",
                user,
                began,
                f"/page/{k % 4}",
                random.randrange(5),
                user is not None,
                random.choice([None, '{"dark": true, "size": [1, 2]}']),
                datetime.combine(arrival, datetime.min.time()) + timedelta(hours=23),
                arrival,
            )
            visits.append(visit)
            if k % 5 == 0 and n + 2 <= LAST:
                resent_at = visit.sent_at + 2 * DAY
                more = replace(
                    visit, clicks=visit.clicks + 10, sent_at=resent_at, arrival=resent_at.date()
                )
                visits.append(more)
    return visits


def land_visits(pipeline: Pipeline, visits: list[Visit], wrong: dict[int, list[str]]) -> None:
    """Each arrival day in one of three formats, and beside it lines that are none."""
    by_day: dict[date, list[Visit]] = defaultdict(list)
    for visit in visits:
        by_day[visit.arrival].append(visit)
    for arrival, day_visits in by_day.items():
        folder = pipeline.landing / "visits" / f"arrival_date={arrival}"
        folder.mkdir(parents=True, exist_ok=True)
        n = (arrival - START).days + 1
        if n % 3 == 0:
            rows = pa.Table.from_pylist([{**v.flat, "began_at": v.began_at} for v in day_visits])
            pa.parquet.write_table(rows, folder / "part.parquet")
        elif n % 3 == 1:
            (folder / "part.jsonl").write_text(
                "".join(f"{json.dumps(v.line)}\n" for v in day_visits)
            )
        else:
            pa.csv.write_csv(
                pa.Table.from_pylist([v.flat for v in day_visits]), folder / "part.csv"
            )
        if n in wrong:
            (folder / "wrong.jsonl").write_text("".join(f"{line}\n" for line in wrong[n]))


def one_visit(name: str, event: date, arrival: date) -> Visit:
    began, sent = (datetime.combine(d, time(5)) for d in (event, arrival))
    return Visit(name, "new", began, "/", 7, True, None, sent, arrival)


def expected_staged(visits: list[Visit], last: int) -> dict[date, dict[str, Visit]]:
    """The model: by event day, each visit in the greatest version that was logged in time."""
    newest: dict[str, list[Visit]] = defaultdict(list)
    for visit in visits:
        newest[visit.visit_id].append(visit)
    newest_by_day: dict[date, dict[str, Visit]] = defaultdict(dict)
    for name, versions in newest.items():
        by_event = defaultdict(list)
        for version in versions:
            if version.arrival <= day(last) and (version.arrival - version.event).days <= W:
                by_event[version.event].append(version)
        for event, candidates in by_event.items():
            newest_by_day[event][name] = max(candidates, key=lambda version: version.sent_at)
    return newest_by_day


def expected_active(
    visits_by_day: dict[date, dict[str, Visit]], last: int
) -> dict[date, tuple[int, int, int]]:
    """The model: users, visits and clicks of seven days."""
    numbers = {}
    for run_date in Window(START, day(last) + DAY):
        days = [run_date - n * DAY for n in range(7)]
        visits = [visit for d in days for visit in visits_by_day.get(d, {}).values()]
        users = {visit.user_id for visit in visits} - {None}
        if visits:
            numbers[run_date] = (len(users), len(visits), sum(visit.clicks for visit in visits))
    return numbers


def published_activity(pipeline: Pipeline) -> dict[date, tuple[int, int, int]]:
    return {
        row["run_date"]: (row["users"], row["visits"], row["clicks"])
        for row in pipeline.rows(active_users_7d.name)
    }


WRONG = {
    4: [
        '{"visit_id":"x","began_at":"2024-01-04T10:00:00Z","page":"/","clicks":-1,'
        '"logged_in":true,"sent_at":"2024-01-04T10:00:00Z"}',
        '{"visit_id":"x","began_at":"2024-01-04T10:00:00Z","page":"/","clicks":1.5,'
        '"logged_in":true,"sent_at":"2024-01-04T10:00:00Z"}',
        '{"visit_id":"x","began_at":"2024-01-04T10:00:00Z","page":"/","clicks":1,'
        '"logged_in":"perhaps","sent_at":"2024-01-04T10:00:00Z"}',
        '{"began_at":"2024-01-04T10:00:00Z","page":"/","clicks":1,"logged_in":true,'
        '"sent_at":"2024-01-04T10:00:00Z"}',
    ]
}


def test_backfill_nights_plan_verify_and_undo(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path, land=False, tables=PLACE, check_independence=True)
    visits = make_visits(1)
    land_visits(pipeline, visits, WRONG)
    pipeline.run(1, LAST, ALL)

    model = expected_staged(visits, LAST)
    assert {
        (row["event_date"], row["visit_id"]): (row["clicks"], row["user_id"], row["properties"])
        for row in pipeline.rows(VISITS.staged.name)
    } == {
        (event, name): (visit.clicks, visit.user_id, visit.properties)
        for event, day_visits in model.items()
        for name, visit in day_visits.items()
    }
    assert published_activity(pipeline) == expected_active(model, LAST)
    late = [v for v in visits if (v.arrival - v.event).days > W]
    assert len(pipeline.rows(VISITS.late.name)) == len(late) > 0
    assert sorted(row["reason"] for row in pipeline.rows(VISITS.rejected.name)) == [
        "bad clicks",
        "bad clicks: not a whole number of 64 bits",
        "bad logged_in: not true or false",
        "missing visit_id",
    ]

    # A line that comes late, but in time: its day, and the days that count it; no other.
    before = read_ledgers(pipeline.deployment)[active_users_7d.name]
    came = one_visit("late", day(11), day(13))
    land_visits(pipeline, [came], {})
    pipeline.night(day(14))
    visits.append(came)
    assert published_activity(pipeline) == expected_active(expected_staged(visits, 13), 13)
    after = read_ledgers(pipeline.deployment)[active_users_7d.name]
    changed = {d for d in before.published_days if before.content_key(d) != after.content_key(d)}
    assert changed == {day(11), day(12)}

    # Its own window, not the deployment's: after three days a day is final.
    look = Monitor(pipeline.deployment, lambda: pipeline.now)
    states = day_states(active_users_7d.name, look.read_snapshot(pipeline.instance))
    assert {d for d, state in states.items() if state is DayState.FINAL} == {
        *Window(START, day(11))
    }

    # Asked for again nothing changes; a plan says so, and computed anew it is the same.
    pipeline.run(1, 13, [VISITS.staged.name, active_users_7d.name])
    assert published_activity(pipeline) == expected_active(expected_staged(visits, 13), 13)
    plan = make_plan(
        pipeline.deployment,
        pipeline.instance,
        BackfillRequest(days=f"{day(1)}...{day(13)}"),
        pipeline.code,
        "id",
    )
    assert {
        name: outlook.why for name, outlook in plan.tables.items() if outlook.days_to_compute
    } == {}
    results = run_verify(
        pipeline.settings,
        engine,
        Window(day(1), day(14)),
        [active_users_7d.name],
    )
    assert {one.outcome for one in results} == {VerifyOutcome.MATCHES}

    # What was loaded wrongly is undone, in all tables.
    good = published_activity(pipeline)
    more = pipeline.landing / "visits" / f"arrival_date={day(12)}" / "more.jsonl"
    more.write_text(f"{json.dumps(one_visit('more', day(12), day(12)).line)}\n")
    loaded = pipeline.run(12, 12, [VISITS.raw.name, VISITS.staged.name, active_users_7d.name])
    assert published_activity(pipeline) != good
    run_undo(pipeline, loaded.run_id[:8])
    assert published_activity(pipeline) == good


def test_the_page_shows_the_source_of_the_module():
    module = Path(web_events.__file__).read_text()
    (block,) = code_blocks("docs/own-sources.md", "python")
    first, end = map(module.index, ("VISITS = ", "class ActiveUsers"))
    assert block == f"{module[first:end].rstrip()}\n"


@pytest.mark.slow
def test_two_sources_in_one_deployment(engine, tmp_path):
    """Each with its own landing, window and runs; what lands for one leaves the other alone."""
    pipeline = Pipeline(engine, tmp_path, tables=f"{__name__}:BOTH")
    visits = [visit for visit in make_visits(2) if visit.arrival <= day(3)]
    land_visits(pipeline, visits, {})
    for n in range(1, 4):
        pipeline.land(n, [order(f"o{n}", n)])
    pipeline.night(day(4))
    assert published_activity(pipeline) == expected_active(expected_staged(visits, 3), 3)
    assert len(pipeline.rows(FACT.name)) == 3

    before = pipeline.digests()
    came = one_visit("o1", day(3), day(4))
    land_visits(pipeline, [came], {})
    pipeline.night(day(5))
    assert published_activity(pipeline) == expected_active(expected_staged([*visits, came], 4), 4)
    # Of the orders there is a day without a line more, and nothing is computed anew.
    after = pipeline.digests()
    assert {name: digests | after[name] for name, digests in before.items()} == after
