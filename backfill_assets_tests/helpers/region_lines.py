"""Lines of orders of three regions, and their folders in the landing."""

from __future__ import annotations

import json
from collections.abc import Iterable

from backfill_assets_tests.helpers.pipeline import Pipeline, day

REGIONS = ("eu", "us", "apac")


def line(order_id: str, n: int, amount: str, *, version: int = 0, customer: str = "c1") -> dict:
    return {
        "order_id": order_id,
        "customer": customer,
        "ordered_at": f"{day(n)}T10:00:00Z",
        "updated_at": f"{day(n)}T1{version}:00:00Z",
        "amount": amount,
    }


def land(
    pipeline: Pipeline, n: int, region: str, lines: Iterable[dict], name: str = "a.jsonl"
) -> None:
    folder = pipeline.folder(n) / f"region={region}"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in lines))
