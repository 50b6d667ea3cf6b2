"""The score of a drill is a function of what was observed."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from backfill_assets_guide.drills import playing
from backfill_assets_guide.drills.observing import wrong_answers
from backfill_assets_guide.drills.scoring import (
    DETECT,
    HINT,
    POINTS,
    READ,
    WRONG_DIAGNOSIS,
    Observed,
    score_drill,
)
from backfill_assets_tests.helpers.docs_pages import PAGES

BEGAN = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
PERFECT = Observed(
    detected=timedelta(minutes=4),
    days_named=True,
    wrong_diagnoses=0,
    hints=0,
    broken=8,
    wrong=0,
    touched=0,
    broken_for_readers=4,
    answers=80,
    sections=3,
    filled=3,
)


def test_who_does_all_of_it_has_all_points():
    scored = score_drill(PERFECT)
    assert scored.total == sum(POINTS.values()) == 100
    assert scored.repaired


@pytest.mark.parametrize(
    ("seen", "lost"),
    [
        ({"detected": None, "days_named": False}, 25),
        ({"days_named": False}, 10),
        ({"detected": timedelta(minutes=35)}, 7),
        ({"detected": timedelta(days=3)}, 15),
        ({"wrong_diagnoses": 1}, 5),
        ({"hints": 3}, 15),
        ({"wrong": 4}, 15 + 10 + 7.5),
        ({"wrong": 8}, 65),
        ({"wrong": 100}, 65),
        ({"touched": 3}, 3),
        ({"touched": 100}, 20),
        ({"answers": 4 * 75}, 7),
        ({"answers": 10_000}, 15),
        ({"filled": 2}, 3),
        ({"filled": 0}, 10),
    ],
)
def test_what_each_thing_costs(seen, lost):
    scored = score_drill(replace(PERFECT, **seen))
    assert 100 - scored.total == pytest.approx(lost, abs=1)
    assert scored.repaired is not ("wrong" in seen)
    assert scored.total == sum(part.points for part in scored.parts)


def test_no_score_is_below_nothing():
    worst = replace(
        PERFECT, detected=None, days_named=False, hints=3, wrong_diagnoses=9, wrong=8,
        touched=200, answers=10**6, filled=0,
    )  # fmt: skip
    assert score_drill(worst).total == 0


@pytest.mark.parametrize("detected", [None, timedelta(seconds=90, microseconds=5)])
def test_a_journal_keeps_what_was_observed(detected):
    observed = replace(PERFECT, detected=detected)
    assert Observed.from_json(observed.as_json()) == observed


@pytest.mark.parametrize(
    ("states", "minutes", "answers"),
    [
        # Asked at once, and then once a minute: at 0, 1, 2, 3 and 4.
        ([(0, 3)], 4.5, 15),
        ([(0, 3)], 0, 0),
        ([(0, 3), (2.5, 0)], 60, 9),
        # A repair that makes other days wrong for a while.
        ([(0, 3), (2.5, 10), (4.5, 0)], 60, 9 + 20),
        # Between two looks nobody saw anything.
        ([(0, 0), (2.1, 5), (2.9, 0)], 60, 0),
    ],
)
def test_a_reader_asks_once_a_minute(states, minutes, answers):
    at = [(BEGAN + timedelta(minutes=m), wrong) for m, wrong in states]
    assert wrong_answers(at, BEGAN + timedelta(minutes=minutes)) == answers


def test_the_page_has_the_points_of_the_score():
    section = PAGES["docs/guide/incident-room.md"].partition("\n## The score\n")[2]
    rows = re.findall(r"^\| ([a-z ]+) \| (\d*) ?\| (.*?) ?\| (.*?) \|$", section, re.MULTILINE)
    assert {name: int(points) for name, points, *_ in rows if points} == POINTS
    points_by_name = {
        name: [*map(int, re.findall(r"\d+", f"{most} {least}"))] for name, _, most, least in rows
    }
    minutes = [[round(time.total_seconds() / 60) for time in limits] for limits in (DETECT, READ)]
    assert [points_by_name["cause"], points_by_name["wrong answers to readers"]] == minutes
    assert points_by_name["days wrongly touched"] == [POINTS["days wrongly touched"]]
    assert (points_by_name["wrong diagnoses"], points_by_name["hints"]) == (
        [WRONG_DIAGNOSIS],
        [HINT],
    )
    causes = PAGES["docs/guide/incident-room.md"].partition("\n## The outages\n")[2]
    listed = re.findall(r"^- `(\w+)`: (.*?)(?: \(.*\))?$", causes, re.MULTILINE)
    assert listed == [*playing.list_causes()]
