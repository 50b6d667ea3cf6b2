"""What the outages of the drills break, and what somebody else does who is asked for help."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from string import ascii_lowercase

import dagster as dg

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.deployment import IO_MANAGER_KEY
from backfill_assets.spark.session import Engine
from backfill_assets_guide.drills import breaking, rates
from backfill_assets_guide.drills.deployment import DrillDeployment, failure_messages
from backfill_assets_guide.drills.places import DrillError

#: The table that the readers of a drill ask.
READERS = "fact_daily_orders"
EUROS = "fact_daily_euros"
#: The source's file that a drill counts on: one order a day.
SHOP_FILE = "shop-api.jsonl"
RIGHT, WRONG = Decimal("10.00"), Decimal("1000000.00")
LOG = ("raw_orders", "raw_orders_rejected")
MADE = (
    "stg_orders",
    "late_orders",
    "fact_daily_orders",
    "fact_daily_orders_current",
    "fact_order_corrections",
    "arrival_lateness",
)
#: So many orders happen on a day, unless an outage says otherwise.
ORDERS_PER_DAY = 40
#: With so many times the orders of a day does one customer skew it.
_SKEW = 20


@dataclass(frozen=True)
class StrikeResult:
    """What an outage did.

    Attributes:
        days: those that a diagnosis should name.
        symptom: what a user says of it.
        run: the run that did it, by its first eight characters; empty if none did.
    """

    days: Window
    symptom: str
    run: str = ""


Strike = Callable[[DrillDeployment, Engine, random.Random], StrikeResult]
#: What somebody else does and says who is asked about days, of which some are wrong.
OnAsk = Callable[[DrillDeployment, Window, Sequence[date]], str]


def _choose_days(deployment: DrillDeployment, rng: random.Random) -> Window:
    """Three to five days, neither the first nor the last ones."""
    length = rng.randint(3, 5)
    first = rng.randint(2, len(deployment.days) - length - 4)
    start = deployment.days.start + first * DAY
    return Window(start, start + length * DAY)


def _choose_halfway_day(deployment: DrillDeployment, rng: random.Random) -> date:
    """A day of the second half; with it at least five days are left."""
    length = len(deployment.days)
    return deployment.days.start + rng.randint(length // 2, length - 5) * DAY


def _total_revenue(deployment: DrillDeployment) -> Decimal:
    facts = breaking.read_facts(deployment.settings().table(READERS))
    return sum((revenue for _, revenue in facts.values()), Decimal(0))


def append_days_again(
    deployment: DrillDeployment, _engine: Engine, rng: random.Random
) -> StrikeResult:
    """Append some days of the facts once more."""
    days, right = _choose_days(deployment, rng), _total_revenue(deployment)
    breaking.append_again(deployment.settings().table(READERS), "run_date", days)
    return StrikeResult(
        days,
        f"Finance: {READERS} has a revenue of {_total_revenue(deployment):,} for "
        f"{deployment.days}. Our books say {right:,}. Yesterday the two agreed.",
    )


def send_wrong_amounts(
    deployment: DrillDeployment, engine: Engine, rng: random.Random
) -> StrikeResult:
    """Have the source send a wrong amount on some days, and load them."""
    days = _choose_days(deployment, rng)
    landing = deployment.folder / "landing"
    breaking.send_orders(landing, days, SHOP_FILE, WRONG)
    deployment.load_days(engine, deployment.days)
    now = _total_revenue(deployment)
    return StrikeResult(
        days,
        f"Finance: the revenue of {deployment.days} is {now:,} in {READERS}. Our books say "
        f"{now - len(days) * (WRONG - RIGHT):,}. All runs are green.",
    )


def purge_days(deployment: DrillDeployment, _engine: Engine, rng: random.Random) -> StrikeResult:
    """Purge most of the landing, and delete the rows of some days."""
    days = _choose_days(deployment, rng)
    settings = deployment.settings()
    breaking.purge_landing(deployment.folder / "landing", [*deployment.days][:-3])
    breaking.delete_rows(settings.table("stg_orders"), "event_date", days)
    breaking.delete_rows(settings.table(READERS), "run_date", days)
    return StrikeResult(
        days,
        f"Finance: the report has no orders at all on {len(days)} days of {deployment.days}. The "
        "days were there yesterday, and the landing is nearly empty now.",
    )


def run_in_other_timezone(
    deployment: DrillDeployment, engine: Engine, _rng: random.Random
) -> StrikeResult:
    """Make 45 days under another time zone, in one run."""
    days = Window(deployment.days.end - 45 * DAY, deployment.days.end)
    result = deployment.run(engine, days, timezone="America/New_York")
    _raise_if_failed(result)
    return StrikeResult(
        days,
        "The shop's manager: since yesterday the orders of the nights are reported on the day "
        "before. The totals of the months are nearly the same.",
        result.run_id[:8],
    )


def kill_backfill(deployment: DrillDeployment, engine: Engine, rng: random.Random) -> StrikeResult:
    """Load the first days, and then kill the run of the others."""
    first = deployment.days.start
    half = _choose_halfway_day(deployment, rng)
    tags = {"dagster/backfill": "".join(rng.choices(ascii_lowercase, k=8))}
    for window, tables in ((deployment.days, LOG), (Window(first, half), MADE)):
        _raise_if_failed(deployment.run(engine, window, tables, tags=tags))
    missing = Window(half, deployment.days.end)
    killed = {IO_MANAGER_KEY: dg.IOManagerDefinition(_kill_run)}
    result = deployment.run(engine, missing, MADE, resources=killed, tags=tags)
    return StrikeResult(
        missing,
        f"Finance: the report ends with {half - DAY}. {deployment.days} has been loaded from "
        "scratch since last night, we were told.",
        result.run_id[:8],
    )


def use_up_quota(deployment: DrillDeployment, engine: Engine, rng: random.Random) -> StrikeResult:
    """Load the first days in euros; then the service takes no call more.

    Raises:
        DrillError: the others fail for another reason, or do not.
    """
    first, end = deployment.days.start, deployment.days.end
    half = _choose_halfway_day(deployment, rng)
    rates.pay_calls(deployment.folder, (half - first).days)
    rates.start_service(deployment.folder)
    missing = Window(half, end)
    for window, tables in ((deployment.days, [*LOG, *MADE]), (Window(first, half), [EUROS])):
        _raise_if_failed(deployment.run(engine, window, tables))
    result = deployment.run(engine, missing, [EUROS])
    descriptions = [
        str(check.description) for check in result.get_asset_check_evaluations() if not check.passed
    ]
    if not any("HTTP 403" in text for text in descriptions):
        raise DrillError(f"the service was to refuse its calls, and did not: {descriptions}")
    return StrikeResult(
        missing,
        f"Finance: the report in euros, {EUROS}, ends with {half - DAY}. The one in dollars has "
        f"all days up to {end - DAY}.",
        result.run_id[:8],
    )


def nothing_is_sent(_: DrillDeployment, days: Window, _wrong: Sequence[date]) -> str:
    """Send nothing."""
    return f"The source says that it sent {days} as it should be. It sends nothing."


def send_again(deployment: DrillDeployment, days: Window, wrong: Sequence[date]) -> str:
    """Send right files for wrong days."""
    if not wrong:
        return nothing_is_sent(deployment, days, wrong)
    breaking.send_orders(deployment.folder / "landing", wrong, SHOP_FILE, RIGHT)
    return f"The source has sent {Window(wrong[0], wrong[-1] + DAY)} again."


def pay_more_calls(deployment: DrillDeployment, days: Window, wrong: Sequence[date]) -> str:
    """Have the service take a call for each wrong day."""
    rates.pay_calls(deployment.folder, len(wrong))
    rates.start_service(deployment.folder)
    return f"The service takes more calls, for {days}: {len(wrong)}."


def _kill_run(_: dg.InitResourceContext) -> dg.IOManager:
    raise RuntimeError("the machine was restarted while this run was at work")


def load_skewed_day(
    deployment: DrillDeployment, engine: Engine, rng: random.Random
) -> StrikeResult:
    """Load a file of one customer's, who has most orders of its day."""
    days = _choose_days(deployment, rng)
    day = days.start
    orders = _SKEW * ORDERS_PER_DAY
    breaking.send_many(deployment.folder / "landing", day, "bulk.jsonl", orders)
    reach = Window(day, min(day + 3 * DAY, deployment.days.end))
    result = deployment.run(engine, reach)
    _raise_if_failed(result)
    return StrikeResult(
        Window(day, day + DAY),
        f"Marketing: {orders:,} orders on one day make {breaking.MANY} our best customer. Nobody "
        "here has heard of it.",
        result.run_id[:8],
    )


def _raise_if_failed(result: dg.ExecuteInProcessResult) -> None:
    if not result.success:
        raise DrillError(f"the outage of the drill could not be made: {failure_messages(result)}")
