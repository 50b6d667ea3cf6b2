"""Lab `late`: a line that comes after the window of its day has closed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timezone

import dagster as dg

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.alerts import Incident
from backfill_assets.monitoring.incidents import find_incidents, read_snapshot
from backfill_assets_guide.labs.lab import START, Lab, Line, Pipeline

_WINDOW_DAYS = 2
_LATE = "late_orders"
_FACTS = ("fact_daily_orders", "fact_daily_orders_current", "fact_order_corrections")
_BUILT = ("stg_orders", *_FACTS)
_LOADED = ("raw_orders", _LATE, *_BUILT)


def late_lab(lab: Lab) -> None:
    """An order of day 1 arrives on day 5, with a reprocessing window of two days."""
    lab.say(f"The reprocessing window is {_WINDOW_DAYS} days: day 1 is final after day 3.")
    for policy, text in (
        ("correct", "Late lines correct (the default)."),
        ("drop", "Late lines are dropped (BACKFILL_ASSETS_LATE_LINES=drop)."),
    ):
        lab.say(text)
        pipeline = lab.create_pipeline(policy, window_days=_WINDOW_DAYS, late_lines=policy)
        for n in range(1, 5):
            pipeline.land_lines(_nth_day(n), [_order_line(f"o-{n}", n)])
        lab.step("Four days are loaded, an order a day.")
        _run_days(pipeline, _nth_day(1), _nth_day(4), _LOADED)
        _show_readers(lab, pipeline)
        lab.step("On day 5 another order of day 1 arrives. Its day, and day 1, are built again.")
        pipeline.land_lines(_nth_day(5), [_order_line("late", 1, at="2024-01-05T09:00:00Z")])
        loaded = _run_days(pipeline, _nth_day(5), _nth_day(5), _LOADED)
        _run_days(pipeline, _nth_day(1), _nth_day(1), _BUILT)
        _show_readers(lab, pipeline)
        for check in loaded.get_asset_check_evaluations():
            if check.asset_key.path[-1] == _LATE and not check.passed:
                lab.show(
                    f"check {check.check_name}", f"{check.severity.value}: {check.description}"
                )
        for incident in _late_incidents(pipeline):
            lab.show(f"alert {incident.kind}", incident.detail)
    lab.lesson(
        "a final day stays as it is, so that reports that were sent stay true. A late line is "
        "counted and never lost in silence. If it corrects, readers of the current facts have it."
    )


def _nth_day(n: int) -> date:
    return START + (n - 1) * DAY


def _order_line(name: str, n: int, at: str = "") -> Line:
    moment = f"{_nth_day(n)}T10:00:00Z"
    return {
        "order_id": name,
        "customer_id": "c-1",
        "order_ts": moment,
        "amount": "10.00",
        "ingestion_ts": at or moment,
    }


def _run_days(
    pipeline: Pipeline, first: date, last: date, tables: Sequence[str]
) -> dg.ExecuteInProcessResult:
    return pipeline.run_tables(Window(first, last + DAY), tables)


def _late_incidents(pipeline: Pipeline) -> list[Incident]:
    """What a person is told of the late lines, on the day after the last."""
    noon = datetime.combine(_nth_day(6), time(12), tzinfo=timezone.utc)
    with dg.DagsterInstance.ephemeral() as instance:
        all_incidents = find_incidents(read_snapshot(Deployment(pipeline.settings), instance, noon))
    return [incident for incident in all_incidents if incident.subject == _LATE]


def _show_readers(lab: Lab, pipeline: Pipeline) -> None:
    day = f"run_date = DATE'{START}'"
    for name in _FACTS:
        lab.show_query(
            name,
            "SELECT coalesce(sum(orders), 0) AS `orders of day 1`, "
            f"coalesce(sum(revenue), 0) AS revenue FROM {pipeline.table_sql(name)} WHERE {day}",
        )
    lab.show_query(_LATE, f"SELECT count(*) AS lines FROM {pipeline.table_sql(_LATE)}")
