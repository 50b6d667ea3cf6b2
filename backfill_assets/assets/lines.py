"""Landed lines become orders of the log, or rejected lines: the pure transforms of the raw layer.

What a field means is decided here: timestamps, money, log days. Reading files is `landing`'s part.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.versions import business_day
from backfill_assets.schemas import RAW, REJECTED

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
