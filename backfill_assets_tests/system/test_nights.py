"""Night after night: scheduled operation ends in the tables of one clean load, touching no more.

Each night lands what arrived, then does what the daemon does: the schedule's tick, and the
sensor's until it rests. What a night had to rebuild is told by the independent model.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, LATE, RAW, STAGED, TABLES
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_guide.sample.landings import write_cdnow_landing
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.landing_strategies import history
from backfill_assets_tests.helpers.orders_model import run_model
from backfill_assets_tests.helpers.paths import CDNOW
from backfill_assets_tests.helpers.pipeline import EVERYTHING, START, Pipeline, day

pytestmark = [pytest.mark.torture, pytest.mark.timeout(14400)]
DAY = timedelta(days=1)
#: A short window, so that days close while the history goes on.
W, DAYS = 1, 4


def count_rewrites(pipeline: Pipeline, name: str, since: int | None) -> Counter[date]:
    """How often the files of each day were written after a version.

    A run may also compute a day that lies between two others, and find the rows that are there.
    """
    records = pipeline.io_manager.ledger(TABLES[name]).records
    return Counter(d for r in records if r.version > (since or 0) for d in r.rewritten_days)


def staged_by_day(pipeline: Pipeline, end: date) -> dict[date, list[tuple]]:
    """What the model says is staged with everything logged before a day."""
    zone, window = pipeline.settings.timezone, pipeline.settings.window_days
    model = run_model(pipeline.landing, start=START, end=end, window_days=window, timezone=zone)
    rows_by_day: dict[date, list[tuple]] = defaultdict(list)
    for row in model.staged:
        rows_by_day[row["event_date"]].append(tuple(map(str, row.values())))
    return {d: sorted(rows) for d, rows in rows_by_day.items()}


class Life:
    """A pipeline that lives through a history of nights."""

    def __init__(self, engine, root: Path, seed: int, **overrides) -> None:
        self.pipeline = Pipeline(engine, root, window_days=W, **overrides)
        self.loaded: set[date] = set()
        self.staged: dict[date, list[tuple]] = {}
        landing = history(seed, DAYS)
        down = random.Random(seed).sample(range(1, DAYS), DAYS // 2 - 1)
        for n in range(1, DAYS + 1):
            by_day: dict[int, list[str]] = defaultdict(list)
            for night, arrival, text in landing:
                if night == n:
                    by_day[arrival].append(text)
            for arrival, texts in by_day.items():
                self.pipeline.land(arrival, texts, f"night-{n}.jsonl")
            if n not in down:
                self.run_night(day(n + 1))

    def run_night(self, today: date) -> None:
        before = read_ledgers(self.pipeline.deployment)
        self.pipeline.night(today)
        staged = staged_by_day(self.pipeline, today)
        policy = Policy.from_settings(self.pipeline.settings)
        final = snapshot_ledgers(before, policy).final_by_table[STAGED.name]
        known = {START + n * DAY for n in range((today - START).days)}
        expected_days = {
            d for d in known if d not in self.loaded or staged.get(d) != self.staged.get(d)
        }
        rewritten_days = count_rewrites(self.pipeline, STAGED.name, before[STAGED.name].version)
        assert not final & rewritten_days.keys(), "a final day was rebuilt"
        if self.pipeline.settings.reprocess == "touched":
            # Files for a final day leave the model ahead of the table, until a person rebuilds it.
            assert set(rewritten_days) - final == expected_days - final
            assert set(rewritten_days.values()) <= {1}
            assert (
                count_rewrites(self.pipeline, FACT.name, before[FACT.name].version)
                == rewritten_days
            )
        else:
            assert set(rewritten_days) >= expected_days - final
        self.loaded, self.staged = known, staged

    def rebuild_final_days(self) -> set[date]:
        """What a person does about new input for final days; the days."""
        p = self.pipeline
        waiting = find_stale_days(
            snapshot_ledgers(
                read_ledgers(p.deployment), Policy.from_settings(p.settings), day(DAYS + 1)
            )
        ).final
        days = {d for table_days in waiting.values() for d in table_days}
        for d in sorted(days):
            p.run(d, d, (STAGED.name, FACT.name, CORRECTIONS.name))
        return days


def clean_load(engine, root: Path, like: Pipeline) -> Pipeline:
    clean = Pipeline(engine, root, land=False, window_days=W, landing=str(like.landing))
    clean.run(1, DAYS, EVERYTHING)
    return clean


SEEDS = range(1, 1 + int(os.environ.get("BACKFILL_TEST_HISTORIES", "1")))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nightly_operation_ends_as_one_clean_load(engine, spark, tmp_path, seed):
    touched = Life(engine, tmp_path / "touched", seed)
    window = Life(engine, tmp_path / "window", seed, reprocess="window")
    clean = clean_load(engine, tmp_path / "clean", touched.pipeline)
    expected = clean.digests()
    for life in (touched, window):
        p = life.pipeline
        waiting = find_stale_days(
            snapshot_ledgers(
                read_ledgers(p.deployment), Policy.from_settings(p.settings), day(DAYS + 1)
            )
        ).final
        late = {str(d) for days in waiting.values() for d in days}
        digests = p.digests()
        # With everything known, whatever came for days that are final.
        assert digests[CURRENT.name] == expected[CURRENT.name]
        for name in (STAGED.name, FACT.name):
            assert _drop_days(digests[name], late) == _drop_days(expected[name], late)
        life.rebuild_final_days()
        assert p.digests() == expected
    # With everything known, by an endless window.
    model = run_model(
        touched.pipeline.landing, start=START, end=day(DAYS + 1), window_days=999, timezone="UTC"
    )
    current = {
        (r["run_date"], r["customer_id"]): (r["orders"], r["revenue"])
        for r in clean.rows(CURRENT.name)
    }
    assert current == model.fact


def _drop_days(digests: dict[str, str], days: set[str]) -> dict[str, str]:
    return {d: digest for d, digest in digests.items() if d not in days}


# --- CDNOW with lines that come late --------------------------------------------------------------

NIGHTS = int(os.environ.get("BACKFILL_TEST_NIGHTS", "6"))
#: In few nights, days close only if their window is short.
CDNOW_WINDOW = 7 if NIGHTS > 20 else 2
FIRST = date(1997, 1, 1)


def delay_lines(landing: Path, share: float, seed: int) -> dict[date, Counter[date]]:
    """Move a share of the lines to the folder of 1 to 12 days later; event days by arrival day."""
    chance = random.Random(seed)
    moved: dict[date, list[str]] = defaultdict(list)
    days: dict[date, Counter[date]] = defaultdict(Counter)
    for folder in sorted((landing / "orders").iterdir()):
        bought = date.fromisoformat(folder.name.partition("=")[2])
        for text in (folder / "part-000.jsonl").read_text().splitlines(keepends=True):
            late = chance.randint(1, 12) if chance.random() < share else 0
            moved[bought + late * DAY].append(text)
            days[bought + late * DAY][bought] += 1
        (folder / "part-000.jsonl").unlink()
    for arrival, texts in moved.items():
        folder = landing / "orders" / f"arrival_date={arrival}"
        folder.mkdir(exist_ok=True)
        (folder / "part-000.jsonl").write_text("".join(texts))
    return days


@pytest.mark.slow
@pytest.mark.skipif(not CDNOW.exists(), reason="the CDNOW file is not beside the project")
def test_cdnow_night_by_night_with_late_lines(engine, spark, tmp_path):
    end = FIRST + NIGHTS * DAY
    p = Pipeline(engine, tmp_path, land=False, start=FIRST, end=end, window_days=CDNOW_WINDOW)
    write_cdnow_landing(CDNOW, p.landing)
    days = delay_lines(p.landing, 0.02, seed=1)
    window = p.settings.window_days
    for today in (FIRST + n * DAY for n in range(1, NIGHTS + 1)):
        before = read_ledgers(p.deployment)
        p.night(today)
        logged = today - DAY
        touched = {logged} | {d for d in days[logged] if (logged - d).days <= window}
        for name in (STAGED.name, FACT.name):
            rewritten_days = count_rewrites(p, name, before[name].version)
            assert rewritten_days == Counter(touched), (today, name)
            assert (
                not rewritten_days.keys()
                & snapshot_ledgers(before, Policy.from_settings(p.settings)).final_by_table[name]
            )
    raw, staged, late = (p.log(t.name).to_pyarrow_table() for t in (RAW, STAGED, LATE))
    arrived = sum(sum(days[FIRST + n * DAY].values()) for n in range(NIGHTS))
    assert staged.num_rows + late.num_rows == raw.num_rows == arrived
    assert late.num_rows == sum(
        count
        for n in range(NIGHTS)
        for d, count in days[FIRST + n * DAY].items()
        if (FIRST + n * DAY - d).days > window
    )
    # What everything that has arrived adds up to, straight from the lines.
    files = [
        str(path)
        for n in range(NIGHTS)
        for path in (p.landing / "orders" / f"arrival_date={FIRST + n * DAY}").glob("*.jsonl")
    ]
    total = "count(*), sum(amount::DECIMAL(18,2))"
    (known,) = duckdb.sql(f"SELECT {total} FROM read_json({files})").fetchall()
    current = p.log(CURRENT.name).to_pyarrow_table()
    frozen = p.log(FACT.name).to_pyarrow_table()
    sums = duckdb.from_arrow(current).aggregate("sum(orders), sum(revenue)").fetchall()
    assert sums == [known]
    assert late.num_rows, "nothing came after its window: the test shows too little"
    assert duckdb.from_arrow(frozen).aggregate("sum(revenue)").fetchall() < [(known[1],)]
    _check_totals(p, end, arrived)
    late_money = sum(p.log(CORRECTIONS.name).to_pyarrow_table()["revenue"].to_pylist(), Decimal(0))
    assert late_money == sum(late["amount"].to_pylist(), Decimal(0))


def _check_totals(p: Pipeline, end: date, arrived: int) -> None:
    """Once all that was bought in the range has arrived, the totals are those of CDNOW itself."""
    text = CDNOW.read_text().splitlines()[1:]
    bought = [line.split() for line in text if line.strip()]
    inside = [r for r in bought if r[1] < f"{end:%Y%m%d}"]
    assert arrived <= len(inside)
    # The lines still on their way come in by one more load, of the days that follow.
    rest = Pipeline(
        p.io_manager.engine,
        p.root / "rest",
        land=False,
        landing=str(p.landing),
        start=FIRST,
        end=end + 12 * DAY,
        window_days=CDNOW_WINDOW,
    )
    tables = (RAW.name, STAGED.name, FACT.name, CORRECTIONS.name, CURRENT.name)
    rest.run(FIRST, end + 11 * DAY, tables)
    rows = duckdb.from_arrow(rest.log(CURRENT.name).to_pyarrow_table())
    totals = rows.filter(f"run_date < DATE '{end}'").aggregate("sum(orders), sum(revenue)")
    assert totals.fetchall() == [(len(inside), sum(Decimal(r[3]) for r in inside))]
