"""Lab `swap`: a new definition, rebuilt in place, and built beside production and switched over."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame

from backfill_assets.backfills import shadow
from backfill_assets.backfills.comparing import compare
from backfill_assets.backfills.plans import Parameters
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.dagster_ext.internals import AssetGraph
from backfill_assets.delta import targets
from backfill_assets.delta.commit_files import CommitLog
from backfill_assets.labs.lab import START, JobDiedError, Lab, Pipeline
from backfill_assets.tables.code_version import running_code

_DAYS = Window(START, START + 4 * DAY)
_TABLE, _TARGET = "daily_revenue", "v2"
_LOADED = ("raw_orders", "stg_orders", _TABLE)
_BEFORE, _AFTER = (f"backfill_assets.labs.swap_{which}:TABLES" for which in ("before", "after"))


def swap(lab: Lab) -> None:
    """The revenue of each day gets another definition: it is to be without taxes."""
    lab.say(
        "Four days with an order of 120.00 each. Revenue was with taxes: 120.00 a day. By the new "
        "definition it is without: 100.00 a day."
    )
    _in_place(lab)
    lab.say("The same here: the new code builds the days beside production, in the target v2.")
    before = lab.pipeline(tables=_BEFORE, window_days=0)
    after = lab.pipeline(tables=_AFTER, window_days=0)
    lab.step("Production, by the old code.")
    for day in _DAYS:
        before.land(day, [_order(day)])
    before.run(_DAYS, _LOADED)
    url = before.settings.table(_TABLE)
    _look(lab, url)
    _build(lab, after)
    _look(lab, url)
    _compare(lab, after)
    _look(lab, url)
    last = _DAYS.end - DAY
    lab.step(
        f"A canary: readers get one day of the new definition first, {last}. That is a mix too, "
        "but one that was asked for, and that `undo v2-1` takes back."
    )
    _switch(after, str(last))
    _look(lab, url)
    lab.step("The other days are switched over: one commit, which copies nothing.")
    _switch(after)
    _look(lab, url)
    lab.step("It was wrong. All of it is undone: again one commit.")
    config = {"backfill": _TARGET, "days": "", "reason": "the lab goes back"}
    after.job("undo", "put_back", config)
    _look(lab, url)
    lab.lesson(
        "a rebuild in place shows readers a mix of definitions for as long as it takes, and once "
        "more on the way back. Build beside production, compare, and switch over at once; then "
        "going back is as quick."
    )


def _in_place(lab: Lab) -> None:
    """The careless way: the days are replaced one after another, where readers read."""

    def rows(days: Window, amount: int) -> DataFrame:
        return lab.spark.range(len(days)).selectExpr(
            f"date_add(DATE'{days.start}', CAST(id AS INT)) AS run_date",
            f"CAST({amount} AS DECIMAL(18, 2)) AS revenue",
        )

    def rebuilt(days: Window, amount: int) -> None:
        for day in days:
            one = Window(day, day + DAY)
            lab.replace(rows(one, amount), "in_place", one.predicate("run_date"))

    url = lab.url("in_place")
    half = Window(_DAYS.start, _DAYS.start + 2 * DAY)
    lab.step("A job rebuilds the days where readers read them. It dies after two of them.")
    rows(_DAYS, 120).write.format("delta").partitionBy("run_date").save(url)
    _look(lab, url)
    with lab.dies():
        rebuilt(half, 100)
        raise JobDiedError
    _look(lab, url)
    lab.step("The other two are rebuilt later.")
    rebuilt(Window(half.end, _DAYS.end), 100)
    _look(lab, url)
    lab.step("It was wrong. The old code rebuilds the days, and readers look when it is half way.")
    rebuilt(half, 120)
    _look(lab, url)


def _build(lab: Lab, after: Pipeline) -> None:
    lab.step("The days are built into the target.")
    asked = Parameters(days=str(_DAYS), tables=(_TABLE,))
    with after.io_manager() as io:
        target = shadow.prepare(io, after.settings, _TARGET, asked)
        for stage in shadow.build(io, after.settings, after.assets, target, asked):
            for table, counts in stage.counts.items():
                said = "   ".join(f"days {outcome.value} {n}" for outcome, n in counts.items())
                lab.tell(f"target: {table}", said)


def _compare(lab: Lab, after: Pipeline) -> None:
    lab.step("The target is compared with production.")
    settings = after.settings
    target = targets.find(settings, _TARGET)
    graph = AssetGraph.from_assets(after.assets)
    found = compare(settings, lab.spark, graph, target, running_code(settings))
    for report in found.reports:
        lab.tell("comparison", report.summary)
    lab.tell("comparison", f"problems {len(found.problems)}")
    there = lab.spark.read.format("delta").load(target.url(settings, _TABLE))
    there.createOrReplaceTempView("lab_rows")
    lab.look("reader of the target", _reading("lab_rows"))
    lab.spark.catalog.dropTempView("lab_rows")


def _switch(after: Pipeline, days: str = "") -> None:
    after.job("switch_over", "adopt_days", {"target": _TARGET, "days": days})


def _look(lab: Lab, url: str) -> None:
    lab.look("reader", _reading(f"delta.`{url}`"))
    files = len([*Path(url).glob("run_date=*/*.parquet")])
    lab.tell("folder", f"commits {len(CommitLog(url).there())}   data files {files}")


def _reading(rows: str) -> str:
    return (
        "SELECT count_if(revenue = 120) AS `days with taxes`, "
        f"count_if(revenue = 100) AS `days without`, sum(revenue) AS revenue FROM {rows}"
    )


def _order(day: date) -> dict[str, object]:
    moment = f"{day}T10:00:00Z"
    return {
        "order_id": f"o-{day}",
        "customer_id": "c-1",
        "order_ts": moment,
        "amount": "120.00",
        "ingestion_ts": moment,
    }
