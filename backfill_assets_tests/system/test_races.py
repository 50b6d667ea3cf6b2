"""A nightly run and a backfill that meet on the same days, again and again, while files land."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from datetime import date
from itertools import pairwise

import pytest

from backfill_assets.delta.records import CommitRecord
from backfill_assets.orders.tables import RAW, STAGED, TABLES
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

#: One after another, which is enough for one run to overtake the other.
TABLES_OF_RACE = (RAW.name, STAGED.name)
RACES = int(os.environ.get("BACKFILL_TEST_RACES", "2"))
DAYS = 2


def commits_by_day(records: list[CommitRecord]) -> Iterator[tuple[date, list[CommitRecord]]]:
    """By day, the commits that speak of it, in order."""
    for d in sorted({d for record in records for d in record.days}):
        yield d, [record for record in records if d in record.days]


@pytest.mark.torture
@pytest.mark.timeout(60 * max(10, RACES))
def test_nightly_against_backfill(engine, spark, tmp_path):
    nightly, backfill = Pipeline(engine, tmp_path), Pipeline(engine, tmp_path)
    chance = random.Random(5)
    for race in range(RACES):
        lands = [(n, f"{race}-{n}-{k}") for n in range(1, DAYS + 1) for k in (0, 1)]
        for n, name in lands[::2]:
            nightly.land(n, [order(f"o-{name}", n)], f"{name}.jsonl")
        errors: list[BaseException] = []

        def run_later(pipeline: Pipeline, wait: float, errors=errors) -> None:
            threading.Event().wait(wait)
            try:
                pipeline.run(1, DAYS, TABLES_OF_RACE)
            except BaseException as error:  # noqa: BLE001 - handed to the asserting thread
                errors.append(error)

        both = [
            threading.Thread(target=run_later, args=(pipeline, chance.uniform(0, 1.5)))
            for pipeline in (nightly, backfill)
        ]
        for thread in both:
            thread.start()
        threading.Event().wait(chance.uniform(0, 4))
        for n, name in lands[1::2]:
            nightly.land(n, [order(f"o-{name}", n)], f"{name}.jsonl")
        for thread in both:
            thread.join()
        assert errors == [], f"race {race}: a conflict surfaced"
    check_commits(nightly, RACES)


def check_commits(nightly: Pipeline, races: int) -> None:
    """That no commit was made twice or from older input, and no update lost."""
    for name in TABLES_OF_RACE:
        records = list(nightly.io_manager.ledger(TABLES[name]).records)
        for d, day_records in commits_by_day(records):
            # What files came in between has no input digest on record, and is made again.
            input_digests = [
                record.days[d].input_digest or repr(record.details.landing)
                for record in day_records
            ]
            assert len(input_digests) == len(set(input_digests)), f"{name}[{d}] was committed twice"
            for source in {s for record in day_records for s in record.inputs}:
                versions = [record.inputs[source] for record in day_records]
                assert versions == sorted(versions), f"{name}[{d}]: older {source} on newer"
            if name == RAW.name:
                # Files are only added: what was read later has more of them.
                files = [set(record.details.landing[d].get("files", ())) for record in day_records]
                newer = pairwise(files)
                assert all(a <= b for a, b in newer), f"{name}[{d}]: an older listing on a newer"
    nightly.run(1, DAYS, TABLES_OF_RACE)
    orders = [
        (day(n), f"o-{race}-{n}-{k}")
        for race in range(races)
        for n in range(1, DAYS + 1)
        for k in (0, 1)
    ]
    for name, column in ((RAW.name, "log_date"), (STAGED.name, "event_date")):
        assert sorted((r[column], r["order_id"]) for r in nightly.rows(name)) == sorted(orders)
    assert day(1) in nightly.io_manager.ledger(RAW).published_days
