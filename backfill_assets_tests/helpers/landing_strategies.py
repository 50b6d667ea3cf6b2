"""Hypothesis strategies: generated histories of what landed, on a calendar of a few days."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone

from hypothesis import strategies as st

from backfill_assets_tests.helpers.pipeline import START

#: Few days, ids and customers, so that versions of an order meet, move, repeat and come late.
DAYS = 6
_MINUTES = DAYS * 24 * 60


def _format_stamp(minutes: int) -> str:
    midnight = datetime(START.year, START.month, START.day, tzinfo=timezone.utc)
    return (midnight + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


@st.composite
def lines(draw: st.DrawFn) -> tuple[int, str]:
    """(arrival day number, line): mostly a good order, at times one that must be rejected."""
    arrival = draw(st.integers(1, DAYS))
    # Mostly of the days before, at times a little ahead (early) or far ahead (the future).
    latest = min(arrival * 24 * 60 + draw(st.sampled_from([0, 0, 0, 600, 2000])), _MINUTES - 1)
    happened = draw(st.integers(0, latest))
    ingested = draw(st.integers(max(happened - 100, 0), latest))
    line = {
        "order_id": draw(st.sampled_from("abcde")),
        "customer_id": draw(st.sampled_from(["c1", "c2", "é", "", None])),
        "order_ts": _format_stamp(happened),
        "amount": draw(st.sampled_from(["1.00", "2.50", "-3.00", 4.25, "5e1", "0"])),
        "ingestion_ts": _format_stamp(ingested),
    }
    spoil = draw(st.sampled_from([None] * 9 + ["broken", "missing", "amount", "stamp"]))
    if spoil == "missing":
        del line[draw(st.sampled_from(["order_id", "order_ts", "amount", "ingestion_ts"]))]
    elif spoil == "amount":
        line["amount"] = draw(st.sampled_from(["1.005", "abc", "1e99", True, None]))
    elif spoil == "stamp":
        line["order_ts"] = draw(st.sampled_from(["yesterday", "2024-02-30", 20240101]))
    text = json.dumps(line, ensure_ascii=False)
    return arrival, text[:-3] if spoil == "broken" else text


#: Some lines that land together; the same line may come twice.
batches = st.lists(lines(), min_size=5, max_size=40).map(lambda drawn: drawn + drawn[:2])


def history(seed: int, days: int, count: int = 60) -> list[tuple[int, int, str]]:
    """(night, arrival day number, line): versions of a few orders, as they land over some days.

    Lines are late, out of order, repeated and corrected onto other days, a few are broken, and
    some land in their folder only nights after its day.
    """
    chance = random.Random(seed)
    landed_lines = []
    for _ in range(count):
        arrival = chance.randint(1, days)
        end = arrival * 24 * 60 - 1
        happened = max(0, end - int(chance.expovariate(1 / 1500)))
        ingested = chance.randint(happened, end)
        line = {
            "order_id": chance.choice("abcdefgh"),
            "customer_id": chance.choice(["c1", "c2", "é", None]),
            "order_ts": _format_stamp(happened),
            "amount": f"{chance.randint(-500, 2000) / 100:.2f}",
            "ingestion_ts": _format_stamp(ingested),
        }
        text = json.dumps(line, ensure_ascii=False)
        if chance.random() < 0.05:
            text = text[:-3]
        night = min(days, arrival + chance.choice([0, 0, 0, 0, 1, 2, 4]))
        landed_lines += [(night, arrival, text)] * chance.choice([1, 1, 1, 1, 2])
    return landed_lines
