"""Lab `swap`: a new definition, rebuilt in place, and built beside production and switched over."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame

from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta import targets
from backfill_assets.delta.commit_log import CommitLog
from backfill_assets.deployment import Deployment
from backfill_assets.shadow import build
from backfill_assets.shadow.compare import compare_target
from backfill_assets_guide.labs.lab import START, JobDiedError, Lab, Pipeline

_DAYS = Window(START, START + 4 * DAY)
_TABLE, _TARGET = "daily_revenue", "v2"
_LOADED = ("raw_orders", "stg_orders", _TABLE)
_BEFORE, _AFTER = (
    f"backfill_assets_guide.labs.swap_{which}:TABLES" for which in ("before", "after")
)


def swap_lab(lab: Lab) -> None:
    """The revenue of each day gets another definition: it is to be without taxes."""
    lab.say(
        "Four days with an order of 120.00 each. Revenue was with taxes: 120.00 a day. By the new "
        "definition it is without: 100.00 a day."
    )
    _rebuild_in_place(lab)
    lab.say("The same here: the new code builds the days beside production, in the target v2.")
    before = lab.create_pipeline(tables=_BEFORE, window_days=0)
    after = lab.create_pipeline(tables=_AFTER, window_days=0)
    lab.step("Production, by the old code.")
    for day in _DAYS:
        before.land_lines(day, [_order_line(day)])
    before.run_tables(_DAYS, _LOADED)
    url = before.settings.table(_TABLE)
    _show_reader(lab, url)
    _build_target(lab, after)
    _show_reader(lab, url)
    _compare_target(lab, after)
    _show_reader(lab, url)
    last = _DAYS.end - DAY
    lab.step(
        f"A canary: readers get one day of the new definition first, {last}. That is a mix too, "
        "but one that was asked for, and that `undo v2-1` takes back."
    )
    _switch_over(after, str(last))
    _show_reader(lab, url)
    lab.step("The other days are switched over: one commit, which copies nothing.")
    _switch_over(after)
    _show_reader(lab, url)
    lab.step("It was wrong. All of it is undone: again one commit.")
    config = {"backfill": _TARGET, "days": "", "reason": "the lab goes back"}
    after.run_job("undo", "put_back", config)
    _show_reader(lab, url)
    lab.lesson(
        "a rebuild in place shows readers a mix of definitions for as long as it takes, and once "
        "more on the way back. Build beside production, compare, and switch over at once; then "
        "going back is as quick."
    )


def _rebuild_in_place(lab: Lab) -> None:
    """The careless way: the days are replaced one after another, where readers read."""

    def create_rows(days: Window, amount: int) -> DataFrame:
        return lab.spark.range(len(days)).selectExpr(
            f"date_add(DATE'{days.start}', CAST(id AS INT)) AS run_date",
            f"CAST({amount} AS DECIMAL(18, 2)) AS revenue",
        )

    def rebuild_days(days: Window, amount: int) -> None:
        for day in days:
            window = Window(day, day + DAY)
            lab.replace(create_rows(window, amount), "in_place", window.sql_condition("run_date"))

    url = lab.table_url("in_place")
    half = Window(_DAYS.start, _DAYS.start + 2 * DAY)
    lab.step("A job rebuilds the days where readers read them. It dies after two of them.")
    create_rows(_DAYS, 120).write.format("delta").partitionBy("run_date").save(url)
    _show_reader(lab, url)
    with lab.expect_death():
        rebuild_days(half, 100)
        raise JobDiedError
    _show_reader(lab, url)
    lab.step("The other two are rebuilt later.")
    rebuild_days(Window(half.end, _DAYS.end), 100)
    _show_reader(lab, url)
    lab.step("It was wrong. The old code rebuilds the days, and readers look when it is half way.")
    rebuild_days(half, 120)
    _show_reader(lab, url)


def _build_target(lab: Lab, after: Pipeline) -> None:
    lab.step("The days are built into the target.")
    request = BackfillRequest(days=str(_DAYS), tables=(_TABLE,))
    with after.io_manager() as io:
        target = build.prepare_target(io, Deployment(after.settings), _TARGET, request)
        for stage in build.build_stages(
            io, Deployment(after.settings), after.assets, target, request
        ):
            for table, counts in stage.counts.items():
                text = "   ".join(f"days {outcome.value} {n}" for outcome, n in counts.items())
                lab.show(f"target: {table}", text)


def _compare_target(lab: Lab, after: Pipeline) -> None:
    lab.step("The target is compared with production.")
    settings = after.settings
    target = targets.load_target(Deployment(settings), _TARGET)
    comparison = compare_target(Deployment(settings), lab.spark, target, Deployment(settings).code)
    for report in comparison.reports:
        lab.show("comparison", report.summary_line)
    lab.show("comparison", f"problems {len(comparison.problems)}")
    target_rows = lab.spark.read.format("delta").load(
        target.table_url(Deployment(settings), _TABLE)
    )
    target_rows.createOrReplaceTempView("lab_rows")
    lab.show_query("reader of the target", _revenue_query("lab_rows"))
    lab.spark.catalog.dropTempView("lab_rows")


def _switch_over(after: Pipeline, days: str = "") -> None:
    after.run_job("switch_over", "adopt_days", {"target": _TARGET, "days": days})


def _show_reader(lab: Lab, url: str) -> None:
    lab.show_query("reader", _revenue_query(f"delta.`{url}`"))
    files = len([*Path(url).glob("run_date=*/*.parquet")])
    lab.show("folder", f"commits {len(CommitLog(url).list_versions())}   data files {files}")


def _revenue_query(rows: str) -> str:
    return (
        "SELECT count_if(revenue = 120) AS `days with taxes`, "
        f"count_if(revenue = 100) AS `days without`, sum(revenue) AS revenue FROM {rows}"
    )


def _order_line(day: date) -> dict[str, object]:
    moment = f"{day}T10:00:00Z"
    return {
        "order_id": f"o-{day}",
        "customer_id": "c-1",
        "order_ts": moment,
        "amount": "120.00",
        "ingestion_ts": moment,
    }
