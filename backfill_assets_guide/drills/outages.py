"""The outages of the drills: what breaks, hints, and a solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backfill_assets_guide.drills import strikes
from backfill_assets_guide.drills.deployment import ORDERS
from backfill_assets_guide.drills.strikes import EUROS, MADE, ORDERS_PER_DAY, READERS, SHOP_FILE


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
        on_ask: what the source does that is asked for days again, or a service for calls.
        has_service: whether its tables ask the service of rates.
    """

    cause: str
    strike: strikes.Strike
    hints: tuple[str, str, str]
    solution: tuple[str, ...]
    loaded: bool = True
    days: int = 28
    fewest: int = 12
    orders_per_day: int = ORDERS_PER_DAY
    on_ask: strikes.OnAsk = strikes.nothing_is_sent
    has_service: bool = False

    @property
    def reader_table(self) -> str:
        """The table that readers ask."""
        return EUROS if self.has_service else READERS

    @property
    def tables_path(self) -> str:
        """Where its tables are declared."""
        return "backfill_assets_guide.drills.euro_tables:TABLES" if self.has_service else ORDERS


_MATERIALIZE = "dagster asset materialize -m backfill_assets.definitions --select"
_END = (
    "backfill-assets runbook {repair} --out {folder}",
    "$EDITOR {folder}/post-mortem-{repair}.md",
    "backfill-assets drill end {folder}",
)

OUTAGES: Mapping[str, Outage] = {
    "doubled": Outage(
        "another writer appended days a second time",
        strikes.append_days_again,
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
        strikes.send_wrong_amounts,
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
        on_ask=strikes.send_again,
    ),
    "purged": Outage(
        "landing purged, and rows of days deleted",
        strikes.purge_days,
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
        strikes.run_in_other_timezone,
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
        strikes.kill_backfill,
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
            f"{_MATERIALIZE} {','.join(MADE)} --partition-range {{days}}",
            "backfill-assets show",
            *_END,
        ),
        loaded=False,
    ),
    "quota": Outage(
        "the calls that were paid for at a service are used up",
        strikes.use_up_quota,
        (
            "`backfill-assets status` names the days that are missing, and of which table. What "
            "does that table ask that the others do not?",
            f"Materialize one of the days of {EUROS} and read why it fails: the service of the "
            "exchange rates refuses.",
            "The calls of the service are used up. Ask for one a day with `backfill-assets drill "
            f"ask`, then materialize {EUROS} for exactly the missing days.",
        ),
        (
            "backfill-assets status",
            "backfill-assets drill found {folder} quota {days}",
            "backfill-assets drill ask {folder} {days}",
            f"{_MATERIALIZE} {EUROS} --partition-range {{days}}",
            f"backfill-assets verify {{days}} --select {EUROS}",
            *_END,
        ),
        loaded=False,
        on_ask=strikes.pay_more_calls,
        has_service=True,
    ),
    "skewed": Outage(
        "one customer has most rows of a day",
        strikes.load_skewed_day,
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
