"""Landed lines become versions in the log, or rejected lines: the pure transforms of the raw layer.

What a field means is decided here: timestamps, numbers, log days. Reading files is `landing`'s
part.
"""

from collections.abc import Callable, Iterator, Mapping

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.landing.text import PROBLEM, TEXT, identifier_fields
from backfill_assets.tables.column_checks import sql_conditions
from backfill_assets.tables.sources import Source
from backfill_assets.tables.versions import business_day

#: Why a line is rejected; null for an accepted one. As `TEXT` no field of a source.
REASON = "_reason"

# `\z` is the very end; `$` would let a line end follow.
_TIMESTAMP = (
    r"^(?!0000)\d{4}-\d{2}-\d{2}"
    r"([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?\z"
)
_PLAIN_TIMESTAMP = r"^[1-8]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})?\z"
_DATE = r"^(?!0000)\d{4}-\d{2}-\d{2}\z"
_WHOLE = r"^[+-]?\d{1,19}\z"
#: A longer number takes minutes to match or to convert; it is none that anybody pays.
_LONGEST_NUMBER = 1000
_ANY_DECIMAL = r"^[+-]?(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?\z"


def parse_timestamp(text: Column) -> Column:
    """An ISO-8601 date-time as a timestamp, UTC where it has no offset; null if it is not one.

    `T` or a space; seconds and fraction optional; a bare date is midnight. Spark's own cast takes
    far more (`2024`, `12:00`, zone names), hence the pattern.
    """
    plain = text.rlike(_PLAIN_TIMESTAMP)
    return F.when(plain, text.try_cast("timestamp")).otherwise(_parse_rare_timestamp(text))


def _parse_rare_timestamp(text: Column) -> Column:
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


def parse_decimal(text: Column, kind: T.DecimalType) -> Column:
    """A number as a decimal of a type, null unless it is one exactly.

    Plain or exponent notation. It is the value that counts: as decimal(18,2), `12.500` is fine,
    `12.345` is not. One of more than a thousand characters is none.
    """
    digits = max(kind.precision - kind.scale, 1)
    plain = rf"^[+-]?\d{{1,{digits}}}(\.\d{{0,{kind.scale}}})?\z"
    short = F.when(F.length(text) <= _LONGEST_NUMBER, text)
    return F.when(text.rlike(plain), text.try_cast(kind)).otherwise(
        _parse_rare_decimal(short, kind)
    )


def _parse_rare_decimal(text: Column, kind: T.DecimalType) -> Column:
    """The numbers that are not plainly fine; whether they fit is found on the digits.

    A cast would round a decimal too many away, and an exponent of millions would stall it.
    """
    fraction = F.regexp_extract(text, _ANY_DECIMAL, 2)
    exponent = F.regexp_extract(text, _ANY_DECIMAL, 3)
    digits = F.concat(F.regexp_extract(text, _ANY_DECIMAL, 1), fraction)
    # As a long, in which no int overflows; an exponent beyond an int is null, so no number.
    shift = F.when(exponent == "", F.lit(0)).otherwise(exponent.try_cast("int")).cast("long")
    significant = F.rtrim(digits, F.lit("0"))
    decimals = F.length(fraction) - shift - (F.length(digits) - F.length(significant))
    whole = F.length(F.ltrim(significant, F.lit("0"))) - decimals
    fits = (decimals <= kind.scale) & (whole <= kind.precision - kind.scale)
    return F.when(
        text.rlike(_ANY_DECIMAL),
        F.when(significant == "", F.lit(0).cast(kind)).when(fits, text.try_cast(kind)),
    )


def parse_whole_number(text: Column) -> Column:
    """A whole number as a long, null if it is none or does not fit."""
    return F.when(text.rlike(_WHOLE), text.try_cast("long"))


def parse_boolean(text: Column) -> Column:
    """`true` or `false`, null if it is neither."""
    return F.when(text == "true", F.lit(True)).when(text == "false", F.lit(False))


def parse_date(text: Column) -> Column:
    """An ISO date `YYYY-MM-DD` of the years 1 to 9999, null if it is none."""
    return F.when(text.rlike(_DATE), text.try_cast("date"))


def parse_json(text: Column) -> Column:
    """The text if it is one JSON value, else null.

    As elements of two arrays: what closes the first by itself is not twice in the second. (Spark's
    parser ignores whatever follows an array.)
    """
    options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}

    def array_length(*parts: Column) -> Column:
        array = F.concat(F.lit("["), F.concat_ws(",", *parts), F.lit("]"))
        return F.array_size(F.from_json(array, T.ArrayType(T.StringType()), options))

    return F.when((array_length(text) == 1) & (array_length(text, text) == 2), text)


#: Of the types but decimals; a string that is read holds JSON, see `landing.text.identifiers`.
_PARSERS: Mapping[type[T.DataType], Callable[[Column], Column]] = {
    T.StringType: parse_json,
    T.LongType: parse_whole_number,
    T.BooleanType: parse_boolean,
    T.DateType: parse_date,
    T.TimestampType: parse_timestamp,
}


def _parse_field(source: Source, name: str, text: Column) -> Column:
    """The value of a field, null where the text is no such value."""
    kind = source.types[name]
    if isinstance(kind, T.DecimalType):
        return parse_decimal(text, kind)
    return _PARSERS[type(kind)](text)


def read_versions(lines: DataFrame, source: Source, timezone: str) -> DataFrame:
    """Landed lines with their fields read, the log day found, or the reason of rejection.

    Args:
        lines: as `landing.lines.read_lines` gives them.
        source: whose lines they are.
        timezone: the business time zone.

    Returns:
        `log_date`, `arrival_date`, `source_file`, `_text` (null for an accepted line), `_reason`
        (null for an accepted line), and the source's fields in their types. A line's log day is its
        arrival day, or the next if its version time lies in that; beyond, it is rejected.
    """
    verbatim = {*identifier_fields(source)}
    frame = lines.select(
        "arrival_date",
        "source_file",
        TEXT,
        PROBLEM,
        *[
            F.nullif(name, F.lit("")).alias(name if name in verbatim else _text_column(name))
            for name in source.fields
        ],
    )
    values = {
        name: _parse_field(source, name, F.col(_text_column(name)))
        for name in source.fields
        if name not in verbatim
    }
    frame = frame.withColumns(values)
    event_time = F.col(source.event_time)
    version_day = business_day(F.greatest(source.event_time, source.version_time), timezone)
    ahead = F.datediff(version_day, "arrival_date")
    reason = F.coalesce(
        F.col(PROBLEM),
        *_field_reasons(source, verbatim),
        F.when(_before_all_days(event_time, timezone), f"bad {source.event_time}"),
        F.when(ahead > 1, "from the future: its version time lies beyond the day after arrival"),
    )
    frame = frame.withColumns({REASON: reason, "_ahead": ahead})
    return frame.select(
        F.when(
            F.col(REASON).isNull(), F.date_add("arrival_date", F.greatest("_ahead", F.lit(0)))
        ).alias("log_date"),
        "arrival_date",
        "source_file",
        F.when(F.col(REASON).isNotNull(), F.make_valid_utf8(TEXT)).alias(TEXT),
        REASON,
        *source.fields,
    )


def _text_column(name: str) -> str:
    """The column of what is read as a field."""
    return f"_field_{name}"


def _field_reasons(source: Source, verbatim: set[str]) -> Iterator[Column]:
    """Why a line's fields are not those of the source, in the order of the fields."""
    for name in source.fields:
        value = F.col(name)
        text = value if name in verbatim else F.col(_text_column(name))
        null = F.lit(None) if name in source.may_be_null else F.lit(f"missing {name}")
        reason = F.when(text.isNull(), null)
        if name not in verbatim:
            reason = reason.when(value.isNull(), f"bad {name}")
        # What Delta's CHECK constraint refuses would be the end of the whole run.
        for rule in sql_conditions(name, source.columns[name]).values():
            reason = reason.when(~F.expr(rule), f"bad {name}")
        yield reason


def _before_all_days(moment: Column, timezone: str) -> Column:
    """Whether the business day lies in the year 0, which no Python date can hold."""
    first_hours = moment < F.lit("0001-01-02").cast("timestamp")
    return first_hours & (business_day(moment, timezone) < F.lit("0001-01-01").cast("date"))


def accepted_rows(read: DataFrame, source: Source) -> DataFrame:
    """The accepted lines, from what `read_versions` gives."""
    return read.where(F.col(REASON).isNull()).select(*source.raw.columns)


def rejected_rows(read: DataFrame, source: Source) -> DataFrame:
    """The rejected lines, from what `read_versions` gives."""
    source_columns = {"text": TEXT, "reason": REASON}
    columns = [
        F.col(source_columns.get(name, name)).alias(name) for name in source.rejected.columns
    ]
    return read.where(F.col(REASON).isNotNull()).select(*columns)
