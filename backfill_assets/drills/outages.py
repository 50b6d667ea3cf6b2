"""The outages of the drills: what breaks, what a user says of it, hints, and a solution."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from string import ascii_lowercase

import dagster as dg

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.drills import breaking
from backfill_assets.drills.deployment import Deployment, DrillError
from backfill_assets.engine.spark import Engine

#: The table that the readers of a drill ask.
READERS = "fact_daily_orders"
#: The source's file that a drill counts on: one order a day.
SHOP_FILE = "shop-api.jsonl"
RIGHT, WRONG = Decimal("10.00"), Decimal("1000000.00")
_LOG = ("raw_orders", "raw_orders_rejected")
_MADE = (
    "stg_orders",
    "late_orders",
    "fact_daily_orders",
    "fact_daily_orders_current",
    "fact_order_corrections",
    "arrival_lateness",
)
#: With so many times the orders of a day does one customer skew it.
_SKEW = 20


@dataclass(frozen=True)
class Struck:
    """What an outage did.

    Attributes:
        days: those that a diagnosis should name.
        symptom: what a user says of it.
        run: the run that did it, by its first eight characters; empty if none did.
    """

    days: Window
    symptom: str
    run: str = ""


Strike = Callable[[Deployment, Engine, random.Random], Struck]


@dataclass(frozen=True)
class Outage:
    """One outage, and what is told of it.

    Attributes:
        cause: what it is, for the list of causes.
        strike: makes it.
        hints: of growing clarity.
        solution: commands of a solution. `{days}`, `{first}`, `{last}`, `{folder}`, `{run}` and
            `{repair}` are filled in.
        loaded: whether all days are loaded when it strikes.
        days: so many days have landed, unless the player says otherwise.
        fewest: so many days at least.
        orders_per_day: so many orders happen on each.
    """

    cause: str
    strike: Strike
    hints: tuple[str, str, str]
    solution: tuple[str, ...]
    loaded: bool = True
    days: int = 28
    fewest: int = 12
    orders_per_day: int = 40


def _some(deployment: Deployment, rng: random.Random) -> Window:
    """Three to five days, neither the first nor the last ones."""
    length = rng.randint(3, 5)
    first = rng.randint(2, len(deployment.days) - length - 4)
    start = deployment.days.start + first * DAY
    return Window(start, start + length * DAY)


def _revenue(deployment: Deployment) -> Decimal:
    facts = breaking.facts_of(deployment.settings().table(READERS))
    return sum((revenue for _, revenue in facts.values()), Decimal(0))


def _doubled(deployment: Deployment, _engine: Engine, rng: random.Random) -> Struck:
    days, right = _some(deployment, rng), _revenue(deployment)
    breaking.append_again(deployment.settings().table(READERS), "run_date", days)
    return Struck(
        days,
        f"Finance: {READERS} has a revenue of {_revenue(deployment):,} for {deployment.days}. Our "
        f"books say {right:,}. Yesterday the two agreed.",
    )


def _amounts(deployment: Deployment, engine: Engine, rng: random.Random) -> Struck:
    days = _some(deployment, rng)
    landing = deployment.folder / "landing"
    breaking.send(landing, days, SHOP_FILE, WRONG)
    deployment.load(engine, deployment.days)
    now = _revenue(deployment)
    return Struck(
        days,
        f"Finance: the revenue of {deployment.days} is {now:,} in {READERS}. Our books say "
        f"{now - len(days) * (WRONG - RIGHT):,}. All runs are green.",
    )


def _purged(deployment: Deployment, _engine: Engine, rng: random.Random) -> Struck:
    days = _some(deployment, rng)
    settings = deployment.settings()
    breaking.purge(deployment.folder / "landing", [*deployment.days][:-3])
    breaking.delete_rows(settings.table("stg_orders"), "event_date", days)
    breaking.delete_rows(settings.table(READERS), "run_date", days)
    return Struck(
        days,
        f"Finance: the report has no orders at all on {len(days)} days of {deployment.days}. The "
        "days were there yesterday, and the landing is nearly empty now.",
    )


def _timezone(deployment: Deployment, engine: Engine, _rng: random.Random) -> Struck:
    days = Window(deployment.days.end - 45 * DAY, deployment.days.end)
    done = deployment.run(engine, days, timezone="America/New_York")
    _refuse_failed(done)
    return Struck(
        days,
        "The shop's manager: since yesterday the orders of the nights are reported on the day "
        "before. The totals of the months are nearly the same.",
        done.run_id[:8],
    )


def _crashed(deployment: Deployment, engine: Engine, rng: random.Random) -> Struck:
    first = deployment.days.start
    half = first + rng.randint(len(deployment.days) // 2, len(deployment.days) - 5) * DAY
    of = {"dagster/backfill": "".join(rng.choices(ascii_lowercase, k=8))}
    for window, tables in ((deployment.days, _LOG), (Window(first, half), _MADE)):
        _refuse_failed(deployment.run(engine, window, tables, tags=of))
    missing = Window(half, deployment.days.end)
    killed = {"io_manager": dg.IOManagerDefinition(_killed)}
    done = deployment.run(engine, missing, _MADE, resources=killed, tags=of)
    return Struck(
        missing,
        f"Finance: the report ends with {half - DAY}. {deployment.days} has been loaded from "
        "scratch since last night, we were told.",
        done.run_id[:8],
    )


def _killed(_: dg.InitResourceContext) -> dg.IOManager:
    raise RuntimeError("the machine was restarted while this run was at work")


def _skewed(deployment: Deployment, engine: Engine, rng: random.Random) -> Struck:
    days = _some(deployment, rng)
    day = days.start
    orders = _SKEW * OUTAGES["skewed"].orders_per_day
    breaking.send_many(deployment.folder / "landing", day, "bulk.jsonl", orders)
    reach = Window(day, min(day + 3 * DAY, deployment.days.end))
    done = deployment.run(engine, reach)
    _refuse_failed(done)
    return Struck(
        Window(day, day + DAY),
        f"Marketing: {orders:,} orders on one day make {breaking.MANY} our best customer. Nobody "
        "here has heard of it.",
        done.run_id[:8],
    )


def _refuse_failed(done: dg.ExecuteInProcessResult) -> None:
    if not done.success:
        said = "; ".join(str(event.message) for event in done.all_events if event.is_failure)
        raise DrillError(f"the outage of the drill could not be made: {said}")


_MATERIALIZE = "dagster asset materialize -m backfill_assets.definitions --select"
_END = (
    "backfill-assets runbook {repair} --out {folder}",
    "$EDITOR {folder}/post-mortem-{repair}.md",
    "backfill-assets drill end {folder}",
)

OUTAGES: Mapping[str, Outage] = {
    "doubled": Outage(
        "another writer appended days a second time",
        _doubled,
        (
            "Ask the tables, not the runs: `backfill-assets status` knows of each day who wrote "
            "it last.",
            f"Look at the last commit of `backfill-assets history {READERS}`: who made it?",
            "An old job has appended some days once more. Materialize exactly these days of "
            f"{READERS}: they are computed again and replaced.",
        ),
        (
            "backfill-assets status",
            f"backfill-assets history {READERS}",
            "backfill-assets drill found {folder} doubled {days}",
            f"{_MATERIALIZE} {READERS} --partition-range {{days}}",
            f"backfill-assets verify {{days}} --select {READERS}",
            *_END,
        ),
    ),
    "amounts": Outage(
        "the source sent wrong amounts",
        _amounts,
        (
            "The tables are what the landing says: `backfill-assets verify` finds nothing. Look "
            "at the days with `backfill-assets drill look`.",
            "Some days have a million too much, each in one order. Look at the amounts in the "
            f"landing's files of these days, {SHOP_FILE} among them.",
            "The source sent wrong amounts. Ask it for these days again with `backfill-assets "
            "drill ask`, then materialize all tables for exactly these days.",
        ),
        (
            "backfill-assets drill look {folder}",
            "grep -r 1000000 {folder}/landing/orders --include=*.jsonl",
            "backfill-assets drill found {folder} amounts {days}",
            "backfill-assets drill ask {folder} {days}",
            'backfill-assets plan {days} --reason "wrong amounts from the source"',
            f"{_MATERIALIZE} '*' --partition-range {{days}}",
            "backfill-assets verify {days}",
            *_END,
        ),
        loaded=False,
    ),
    "purged": Outage(
        "landing purged, and rows of days deleted",
        _purged,
        (
            "`backfill-assets status` names the tables and the days; the files that they were "
            "loaded from are gone.",
            "What was loaded once is in `raw_orders`, whatever becomes of the landing. Which "
            "tables do not agree with it?",
            "Rows of `stg_orders` and of `fact_daily_orders` were deleted. Materialize these two "
            "for exactly these days: they are made of the raw log, not of files.",
        ),
        (
            "backfill-assets status",
            f"backfill-assets history {READERS}",
            "backfill-assets drill found {folder} purged {days}",
            f"{_MATERIALIZE} stg_orders,{READERS} --partition-range {{days}}",
            f"backfill-assets verify {{days}} --select stg_orders,{READERS}",
            *_END,
        ),
    ),
    "timezone": Outage(
        "days were made under another business time zone",
        _timezone,
        (
            "Days are as complete as before, and orders are on another day. What decides which "
            "day an order is of? `backfill-assets status` compares it with what it was.",
            f"`backfill-assets history {READERS}` has the configuration of each commit, for one "
            "day: the last one has another than those before.",
            "Somebody made 45 days under another business time zone, in one run. `backfill-assets "
            "undo` with the id of that run puts exactly these days back, in all tables.",
        ),
        (
            "backfill-assets status",
            f"backfill-assets history {READERS} {{first}}",
            "backfill-assets drill found {folder} timezone {days}",
            'backfill-assets undo {run} --reason "made under another time zone"',
            f"backfill-assets verify {{first}} --select {READERS}",
            *_END,
        ),
        days=50,
        fewest=50,
        orders_per_day=3,
    ),
    "crashed": Outage(
        "a backfill was killed halfway",
        _crashed,
        (
            "`backfill-assets status` names the days that are missing. Which tables have them all?",
            "The raw log is complete, and what is made of it ends in the middle: a backfill was "
            "killed. What it published before is whole.",
            "Nothing that is there needs to be done again. Materialize all tables but the raw "
            "ones for the missing days alone.",
        ),
        (
            "backfill-assets status",
            f"backfill-assets history {READERS}",
            "backfill-assets drill found {folder} crashed {days}",
            f"{_MATERIALIZE} {','.join(_MADE)} --partition-range {{days}}",
            "backfill-assets show",
            *_END,
        ),
        loaded=False,
    ),
    "skewed": Outage(
        "one customer has most rows of a day",
        _skewed,
        (
            "One key has nearly all rows of a day. Which day is it? Look at the days with "
            "`backfill-assets drill look`.",
            f"Look at the life of that day with `backfill-assets history {READERS} DAY`, and at "
            "the landing's folder of that day.",
            "A file that does not belong there landed and was loaded. Take it away, and undo the "
            "run that loaded it.",
        ),
        (
            "backfill-assets drill look {folder}",
            f"backfill-assets history {READERS} {{first}}",
            "backfill-assets drill found {folder} skewed {days}",
            "rm {folder}/landing/orders/arrival_date={first}/bulk.jsonl",
            'backfill-assets undo {run} --reason "a file that is none of the source"',
            f"backfill-assets verify {{first}} --select {READERS}",
            *_END,
        ),
    ),
}
