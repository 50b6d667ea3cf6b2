"""Hypothesis strategies: generated histories of what landed, on a calendar of a few days."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from hypothesis import strategies as st

from backfill_assets_tests.pipeline import START

#: Few days, ids and customers, so that versions of an order meet, move, repeat and come late.
DAYS = 6
_MINUTES = DAYS * 24 * 60


def _stamp(minutes: int) -> str:
    midnight = datetime(START.year, START.month, START.day, tzinfo=timezone.utc)
    return (midnight + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


@st.composite
def lines(draw: st.DrawFn) -> tuple[int, str]:
    """(arrival day number, line): mostly a good order, at times one that must be rejected."""
    arrival = draw(st.integers(1, DAYS))
    # Mostly of the days before, at times a little ahead (early) or far ahead (the future).
    latest = min(arrival * 24 * 60 + draw(st.sampled_from([0, 0, 0, 600, 2000])), _MINUTES - 1)
    happened = draw(st.integers(0, latest))
    taken = draw(st.integers(max(happened - 100, 0), latest))
    line = {
        "order_id": draw(st.sampled_from("abcde")),
        "customer_id": draw(st.sampled_from(["c1", "c2", "é", "", None])),
        "order_ts": _stamp(happened),
        "amount": draw(st.sampled_from(["1.00", "2.50", "-3.00", 4.25, "5e1", "0"])),
        "ingestion_ts": _stamp(taken),
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
batches = st.lists(lines(), min_size=5, max_size=40).map(lambda found: found + found[:2])
