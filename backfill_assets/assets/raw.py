"""Raw layer: landed lines become the log of orders (by log day) and the rejected lines.

What a field means is decided here: timestamps, money, log days. Reading files is `landing`'s part.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import cache
from typing import Any

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.publishing import delta_assets, publish
from backfill_assets.assets.versions import business_day
from backfill_assets.audit import Book, Verdict
from backfill_assets.io_manager import Built, Candidate, Plan, Remarks, Source
from backfill_assets.landing import (
    CONTROL_FILE,
    Landing,
    contents,
    read_from,
    read_lines,
    readable,
    survey,
)
from backfill_assets.partitions import DAY, Window
from backfill_assets.recipes import landed
from backfill_assets.records import packed
from backfill_assets.schemas import RAW, REJECTED
from backfill_assets.settings import Settings
from backfill_assets.spark import Engine, keeping
from backfill_assets.touched import Touched, touched

Books = dict[str, dict[date, Book]]
Planned = Callable[[Window], Plan]

# `\z` is the very end; `$` would let a line end follow.
_TIMESTAMP = (
    r"^(?!0000)\d{4}-\d{2}-\d{2}"
    r"([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?\z"
)
_PLAIN_TIMESTAMP = r"^[1-8]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})?\z"
_PLAIN_AMOUNT = r"^[+-]?\d{1,16}(\.\d{0,2})?\z"
_ANY_AMOUNT = r"^[+-]?(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?\z"
_MONEY = "decimal(18,2)"


def timestamp(text: Column) -> Column:
    """An ISO-8601 date-time as a timestamp, UTC where it has no offset; null if it is not one.

    `T` or a space; seconds and fraction optional; a bare date is midnight. Spark's own cast takes
    far more (`2024`, `12:00`, zone names), hence the pattern.
    """
    plain = text.rlike(_PLAIN_TIMESTAMP)
    return F.when(plain, text.try_cast("timestamp")).otherwise(_odd_timestamp(text))


def _odd_timestamp(text: Column) -> Column:
    """The timestamps of a rarer form, and the years in which a Python date may not exist."""
    # Spark's cast does not know an offset right after the minutes.
    to_minutes = F.substring(text, 1, 16)
    whole = F.when(
        F.substring(text, 17, 1).isin("Z", "+", "-"),
        F.concat(to_minutes, F.lit(":00"), F.substring(text, 17, 6)),
    ).otherwise(F.translate(text, ",", "."))
    parsed = whole.try_cast("timestamp")
    first, last = (
        F.lit(end).cast("timestamp") for end in ("0001-01-01", "9999-12-31 23:59:59.999999")
    )
    return F.when(text.rlike(_TIMESTAMP), F.when(parsed.between(first, last), parsed))


def money(text: Column) -> Column:
    """An amount as decimal(18,2), null unless it is one exactly.

    Plain or exponent notation. It is the value that counts: `12.500` is fine, `12.345` is not.
    """
    return F.when(text.rlike(_PLAIN_AMOUNT), text.try_cast(_MONEY)).otherwise(_odd_money(text))


def _odd_money(text: Column) -> Column:
    """The amounts that are not plainly fine; whether they fit is found on the digits.

    A cast would round a third decimal away, and an exponent of millions would stall it.
    """
    fraction = F.regexp_extract(text, _ANY_AMOUNT, 2)
    exponent = F.regexp_extract(text, _ANY_AMOUNT, 3)
    digits = F.concat(F.regexp_extract(text, _ANY_AMOUNT, 1), fraction)
    # As a long, in which no int overflows; an exponent beyond an int is null, so no amount.
    shift = F.when(exponent == "", F.lit(0)).otherwise(exponent.try_cast("int")).cast("long")
    significant = F.rtrim(digits, F.lit("0"))
    decimals = F.length(fraction) - shift - (F.length(digits) - F.length(significant))
    whole = F.length(F.ltrim(significant, F.lit("0"))) - decimals
    return F.when(
        text.rlike(_ANY_AMOUNT),
        F.when(significant == "", F.lit(0).cast(_MONEY)).when(
            (decimals <= 2) & (whole <= 16), text.try_cast(_MONEY)
        ),
    )


def read_orders(lines: DataFrame, timezone: str) -> DataFrame:
    """Landed lines with their fields read, the log day found, or the reason of rejection.

    Args:
        lines: as `landing.read_lines` gives them.
        timezone: the business time zone.

    Returns:
        `arrival_date`, `source_file`, `text` (null for an accepted line), `reason` (null for an
        accepted line), `log_date`, and the five fields of an order in their types. A line's log day
        is its arrival day, or the next if its version time lies in that; beyond, it is rejected.
    """
    read = lines.select(
        "arrival_date",
        "source_file",
        "text",
        "problem",
        F.nullif("order_id", F.lit("")).alias("order_id"),
        F.nullif("customer_id", F.lit("")).alias("customer_id"),
        *[
            F.nullif(n, F.lit("")).alias(f"{n}_text")
            for n in ("order_ts", "amount", "ingestion_ts")
        ],
    )
    read = read.withColumns(
        {
            "order_ts": timestamp(F.col("order_ts_text")),
            "ingestion_ts": timestamp(F.col("ingestion_ts_text")),
            "amount": money(F.col("amount_text")),
        }
    )
    version_day = business_day(F.greatest("order_ts", "ingestion_ts"), timezone)
    ahead = F.datediff(version_day, "arrival_date")
    reason = F.coalesce(
        F.col("problem"),
        F.when(F.col("order_id").isNull(), "missing order_id"),
        *[_unread(name) for name in ("order_ts", "amount", "ingestion_ts")],
        F.when(_before_all_days(F.col("order_ts"), timezone), "bad order_ts"),
        F.when(ahead > 1, "from the future: its version time lies beyond the day after arrival"),
    )
    read = read.withColumns({"reason": reason, "_ahead": ahead})
    return read.select(
        F.when(
            F.col("reason").isNull(), F.date_add("arrival_date", F.greatest("_ahead", F.lit(0)))
        ).alias("log_date"),
        "arrival_date",
        "source_file",
        F.when(F.col("reason").isNotNull(), F.make_valid_utf8("text")).alias("text"),
        "reason",
        "order_id",
        "customer_id",
        "order_ts",
        "amount",
        "ingestion_ts",
    )


def _unread(name: str) -> Column:
    text = F.col(f"{name}_text")
    return F.when(text.isNull(), f"missing {name}").when(F.col(name).isNull(), f"bad {name}")


def _before_all_days(moment: Column, timezone: str) -> Column:
    """Whether the business day lies in the year 0, which no Python date can hold."""
    first_hours = moment < F.lit("0001-01-02").cast("timestamp")
    return first_hours & (business_day(moment, timezone) < F.lit("0001-01-01").cast("date"))


def raw_orders(read: DataFrame) -> DataFrame:
    """The accepted lines, from what `read_orders` gives."""
    return read.where(F.col("reason").isNull()).select(*RAW.columns)


def rejected_orders(read: DataFrame) -> DataFrame:
    """The rejected lines, from what `read_orders` gives."""
    return read.where(F.col("reason").isNotNull()).select(*REJECTED.columns)


def books(read: DataFrame, landing: Landing, window: Window) -> Books:
    """What the landing says that each day of raw and of rejected must hold.

    By arrival day: landed lines (counted apart from parsing) = raw + early + rejected, and the
    source's own totals where it sends them.
    """
    rows = read.groupBy("arrival_date").agg(
        F.count_if(F.col("reason").isNotNull()).alias("rejected"),
        F.count_if(F.col("log_date") > F.col("arrival_date")).alias("early"),
        F.count_if(F.col("reason").isNull()).alias("accepted"),
        F.coalesce(
            F.sum(F.when(F.col("reason").isNull(), F.col("amount"))), F.lit(Decimal("0.00"))
        ).alias("amount"),
    )
    seen: Mapping[date, Mapping] = {row["arrival_date"]: row.asDict() for row in rows.collect()}
    none = {"rejected": 0, "early": 0, "accepted": 0, "amount": Decimal("0.00")}
    raw, rejected = {}, {}
    for day in window:
        own, held_over = seen.get(day, none), seen.get(day - DAY, none)["early"]
        landed = landing.lines(day)
        entries = {
            "landed": landed,
            "rejected": own["rejected"],
            "early": own["early"],
            "from the day before": held_over,
        }
        unreadable = [f"cannot be read: {text}" for text in landing.broken_on(day)]
        unknown = [
            f"not read, unknown kind of file: {name}" for name in landing.unknown.get(day, ())
        ]
        raw[day] = Book(
            entries=entries,
            rows=landed - own["rejected"] - own["early"] + held_over,
            problems=[*unreadable, *_control_problems(landing, day, own)],
            warnings=[
                *(
                    "early lines may be missing, the day before has a file that cannot be read: "
                    f"{x}"
                    for x in landing.broken_on(day - DAY)
                ),
                *unknown,
            ],
        )
        rejected[day] = Book(
            entries=entries, rows=landed - own["accepted"], problems=unreadable, warnings=unknown
        )
    return {RAW.name: raw, REJECTED.name: rejected}


def _control_problems(landing: Landing, day: date, own: Mapping) -> list[str]:
    """Where the loaded day disagrees with what the source says it sent."""
    if day in landing.bad_controls:
        return [landing.bad_controls[day]]
    control = landing.controls.get(day)
    if control is None:
        return []
    said = []
    if control.rows != own["accepted"]:
        said.append(f"{CONTROL_FILE} says {control.rows} orders, {own['accepted']} were read")
    if control.amount != own["amount"]:
        said.append(f"{CONTROL_FILE} says {control.amount} in total, {own['amount']} was read")
    return said


def _said(found: Landing, verdicts: Sequence[Verdict], changes: Touched) -> dict[str, Any]:
    """What a commit of raw tells those who follow it; `reprocessing` reads it."""
    return {
        "landing": {str(v.day): _read_for(found, v.day) for v in verdicts if v.passed},
        "event_days": packed(changes.event_days),
        "log_days": packed(changes.log_days),
    }


def _read_for(found: Landing, day: date) -> list[str]:
    """What a log day was read from; marked where the day before could not be read to its end.

    So it is read again until that can: a file that was locked looks no different afterwards.
    """
    before, own = read_from(found.contents, day)
    return [f"{before}?" if found.broken_on(day - DAY) else before, own]


def provisional(found: Landing, days: Window) -> frozenset[date]:
    """The log days that may lack early lines, as the day before could not be read to its end."""
    return frozenset(day for day in days if found.broken_on(day - DAY))


def build(settings: Settings, code_version: str) -> dg.AssetsDefinition:
    """`raw_orders` and `raw_orders_rejected`: one step, as both come from one reading of a file."""

    @delta_assets(
        settings,
        name="read_landing",
        tables=[RAW, REJECTED],
        group="raw",
        code_version=code_version,
    )
    def read_landing(context: dg.AssetExecutionContext, engine: Engine) -> Iterator:
        with keeping() as keep:

            @cache
            def read(days: Window, _listed: Hashable) -> tuple[Landing, DataFrame, Books]:
                """One reading for both tables, as long as the same files are there."""
                spark = engine.spark_session
                # The folder of the day before holds the early lines of the first day.
                found = survey(spark, settings.landing, days.widened(before=1))

                def parse(part: Landing) -> tuple[DataFrame, Books]:
                    # No filter before this: Spark would push it down and parse all once more.
                    lines = keep(read_orders(read_lines(spark, part), settings.timezone))
                    return lines, books(lines, part, days)

                return found, *readable(found, parse)

            def raw(days: Window, found: Landing, lines: DataFrame, book: Books) -> Built:
                rows = raw_orders(lines).where(days.predicate("log_date"))

                def remarks(before: Source | None, verdicts: Sequence[Verdict]) -> Remarks:
                    w, zone = settings.window_days, settings.timezone
                    return Remarks(
                        said=_said(found, verdicts, touched(before, rows, verdicts, w, zone))
                    )

                return Built(
                    rows, book[RAW.name], remarks=remarks, provisional=provisional(found, days)
                )

            def rejected(days: Window, _: Landing, lines: DataFrame, book: Books) -> Built:
                rows = rejected_orders(lines).where(days.predicate("arrival_date"))
                return Built(rows, book[REJECTED.name])

            def planned(built: Callable[[Window, Landing, DataFrame, Books], Built]) -> Planned:
                def plan(window: Window) -> Plan:
                    listed = contents(settings.landing, window.widened(before=1))
                    key = tuple(listed.items())
                    made_of = landed(listed, window)

                    def make(days: Window) -> Built:
                        found, lines, book = read(days, key)
                        again = landed(found.contents, days)
                        # Files that came or went between the two listings: not what was planned.
                        moved = frozenset(d for d in days if made_of.get(d) != again[d])
                        made = built(days, found, lines, book)
                        return replace(made, provisional=made.provisional | moved)

                    return Plan(made_of, make)

                return plan

            yield from publish(
                context, [Candidate(RAW, planned(raw)), Candidate(REJECTED, planned(rejected))]
            )

    return read_landing
