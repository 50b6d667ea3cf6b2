"""Raw rows: landed lines parsed or rejected, counts by file, and rows that are retained."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, reduce
from typing import Any

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window
from backfill_assets.landing.files import LandingFiles
from backfill_assets.landing.formats import (
    LACKING,
    NO_MONEY,
    PROBLEM,
    TEXT,
    FileCounts,
    identifier_fields,
    split_name,
)
from backfill_assets.landing.listing import folder_of
from backfill_assets.landing.load_manifest import LoadTarget
from backfill_assets.landing.parquet import original_line
from backfill_assets.spark.frames import PART, create_frame
from backfill_assets.tables.columns import sql_conditions
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import Table
from backfill_assets.transforms.dedup import business_day, other_hour, version_day

#: Why a line is rejected; null for an accepted one. Like `TEXT`, no source has such a field.
REASON = "_reason"
#: Whether an accepted line has a local time that the zone of its source has twice, or not at all.
AMBIGUOUS = "_ambiguous"
#: The most keys of ambiguous lines, of a file and of a day, that are shown.
MOST_KEYS = 5

# `\z` is the very end; `$` would allow a line break after it.
_TIMESTAMP = (
    r"^(?!0000)\d{4}-\d{2}-\d{2}"
    r"([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?\z"
)
_PLAIN_TIMESTAMP = r"^[1-8]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})?\z"
#: The end of a date-time with an offset; a bare date ends in a day of the month.
_OFFSET = r"[T ].*(?:Z|[+-]\d{2}(?::?\d{2})?)\z"
_DAY_MICROS = 86_400_000_000
_DATE = r"^(?!0000)\d{4}-\d{2}-\d{2}\z"
_WHOLE = r"^[+-]?\d{1,19}\z"
#: A longer number takes minutes to match or to convert, and is no real amount.
_LONGEST_NUMBER = 1000
_ANY_DECIMAL = r"^[+-]?(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?\z"


def parse_timestamp(text: Column, timezone: str = "UTC") -> Column:
    """Parse an ISO-8601 date-time, of a zone if it has no offset; null if it is not one.

    `T` or a space; seconds and fraction optional; a bare date is midnight. Spark's own cast accepts
    far more (`2024`, `12:00`, zone names), hence the pattern.
    """
    plain = text.rlike(_PLAIN_TIMESTAMP)
    moment = F.when(plain, text.try_cast("timestamp")).otherwise(_parse_rare_timestamp(text))
    if timezone == "UTC":
        return moment
    return F.when(text.rlike(_OFFSET), moment).otherwise(F.to_utc_timestamp(moment, timezone))


def is_ambiguous(text: Column, moment: Column, timezone: str) -> Column:
    """Return whether a zone has the local time of a text twice, or not at all.

    A date alone is not ambiguous. `moment` is the result of `parse_timestamp`: when clocks are set
    back, the earlier of two moments; when they are set forward, as much later as they are.
    """
    change, _, is_twice = _clock_change(moment, timezone)
    minutes = F.translate(F.substring(text, 1, 16), "T", " ")
    local = F.from_utc_timestamp(moment, timezone)
    is_skipped = F.date_format(local, "yyyy-MM-dd HH:mm") != minutes
    # Only near a change of the clocks: the pattern and the format take time.
    return F.when(change != 0, _has_local_time(text) & (is_twice | is_skipped)).otherwise(False)


def later_moment(text: Column, moment: Column, timezone: str) -> Column:
    """Return the later one of two moments with the local time of a text; else the moment itself.

    `moment` is the result of `parse_timestamp`.
    """
    change, later, is_twice = _clock_change(moment, timezone)
    is_later = (change != 0) & _has_local_time(text) & is_twice
    return F.when(is_later, F.timestamp_micros(later)).otherwise(moment)


def _has_local_time(text: Column) -> Column:
    """Return whether a text has a time of day without an offset."""
    return (F.length(text) > 10) & ~text.rlike(_OFFSET)


def _clock_change(moment: Column, timezone: str) -> tuple[Column, Column, Column]:
    """Return by how much the clocks of a zone change near a moment, in microseconds.

    With it, the moment that much later, and whether both have the same local time.
    """

    def local_micros(micros: Column) -> Column:
        return F.unix_micros(F.from_utc_timestamp(F.timestamp_micros(micros), timezone))

    micros = F.unix_micros(moment)
    # The offsets from UTC, a day before and after.
    before = local_micros(micros - _DAY_MICROS) - (micros - _DAY_MICROS)
    after = local_micros(micros + _DAY_MICROS) - (micros + _DAY_MICROS)
    later = micros + before - after
    return before - after, later, (before > after) & (local_micros(later) == local_micros(micros))


def _parse_rare_timestamp(text: Column) -> Column:
    """Parse timestamps of rarer forms, and years at the limits of a Python date."""
    # Spark's cast does not accept an offset right after the minutes.
    to_minutes = F.substring(text, 1, 16)
    whole = F.when(
        F.substring(text, 17, 1).isin("Z", "+", "-"),
        F.concat(to_minutes, F.lit(":00"), F.substring(text, 17, 6)),
    ).otherwise(F.translate(text, ",", "."))
    parsed = whole.try_cast("timestamp")
    return F.when(text.rlike(_TIMESTAMP), null_if_out_of_range(parsed, T.TimestampType()))


def parse_decimal(text: Column, kind: T.DecimalType) -> Column:
    """Parse a number as a decimal of a type; null unless the type holds it exactly.

    Plain or exponent notation. The value counts: as decimal(18,2), `12.500` is valid, `12.345` is
    not. Text of more than a thousand characters is not a number.
    """
    digits = max(kind.precision - kind.scale, 1)
    plain = rf"^[+-]?\d{{1,{digits}}}(\.\d{{0,{kind.scale}}})?\z"
    return F.when(text.rlike(plain), text.try_cast(kind)).otherwise(_parse_rare_decimal(text, kind))


def _parse_rare_decimal(text: Column, kind: T.DecimalType) -> Column:
    """Parse numbers that are not plainly valid; their digits tell whether they fit.

    A cast would round surplus decimals, and an exponent of millions would block it.
    """
    significant, decimals = _decimal_places(text)
    whole = F.length(F.ltrim(significant, F.lit("0"))) - decimals
    fits = (decimals <= kind.scale) & (whole <= kind.precision - kind.scale)
    return F.when(
        _is_decimal(text),
        F.when(significant == "", F.lit(0).cast(kind)).when(fits, text.try_cast(kind)),
    )


def _is_decimal(text: Column) -> Column:
    return (F.length(text) <= _LONGEST_NUMBER) & text.rlike(_ANY_DECIMAL)


def _decimal_places(text: Column) -> tuple[Column, Column]:
    """Return a number's digits without zeros at the end, and how many of them are decimals.

    Negative for thousands; null if the exponent is beyond an int.
    """
    fraction = F.regexp_extract(text, _ANY_DECIMAL, 2)
    exponent = F.regexp_extract(text, _ANY_DECIMAL, 3)
    digits = F.concat(F.regexp_extract(text, _ANY_DECIMAL, 1), fraction)
    # As a long, so that sums of ints do not overflow; an exponent beyond an int is null: no number.
    shift = F.when(exponent == "", F.lit(0)).otherwise(exponent.try_cast("int")).cast("long")
    significant = F.rtrim(digits, F.lit("0"))
    decimals = F.length(fraction) - shift - (F.length(digits) - F.length(significant))
    return significant, decimals


def parse_whole_number(text: Column) -> Column:
    """Parse a whole number as a long; null if it is none or does not fit."""
    return F.when(text.rlike(_WHOLE), text.try_cast("long"))


def parse_boolean(text: Column) -> Column:
    """Parse `true` or `false`; null for other text."""
    return F.when(text == "true", F.lit(True)).when(text == "false", F.lit(False))


def parse_date(text: Column) -> Column:
    """Parse an ISO date `YYYY-MM-DD` of the years 1 to 9999; null for other text."""
    return F.when(text.rlike(_DATE), text.try_cast("date"))


def parse_json(text: Column) -> Column:
    """Return the text if it is one JSON value, else null.

    It is tried as element of two arrays: text that closes the first array is not valid twice in the
    second. (Spark's parser ignores whatever follows an array.)
    """
    options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}

    def array_length(*parts: Column) -> Column:
        array = F.concat(F.lit("["), F.concat_ws(",", *parts), F.lit("]"))
        return F.array_size(F.from_json(array, T.ArrayType(T.StringType()), options))

    return F.when((array_length(text) == 1) & (array_length(text, text) == 2), text)


def null_if_out_of_range(value: Column, kind: T.DataType) -> Column:
    """Return a value of a type; null if it is beyond what a Python value, or the type, can hold.

    Spark reads such values from Parquet: years after 9999, and decimals of too many digits.
    """
    match kind:
        case T.TimestampType():
            limits = ("0001-01-01", "9999-12-31 23:59:59.999999")
        case T.DateType():
            limits = ("0001-01-01", "9999-12-31")
        case T.DecimalType():
            largest = "9" * (kind.precision - kind.scale) + "." + "9" * kind.scale
            limits = (f"-{largest}", largest)
        case _:
            return value
    return F.when(value.between(*(F.lit(limit).cast(kind) for limit in limits)), value)


#: By type, except decimals and timestamps; a string that is parsed holds JSON.
_PARSERS: Mapping[type[T.DataType], Callable[[Column], Column]] = {
    T.StringType: parse_json,
    T.LongType: parse_whole_number,
    T.BooleanType: parse_boolean,
    T.DateType: parse_date,
}


#: By type, what a text is not if it cannot be parsed; shown with the reason of rejection.
_FORMS: Mapping[type[T.DataType], str] = {
    T.StringType: "not JSON",
    T.LongType: "not a whole number of 64 bits",
    T.BooleanType: "not true or false",
    T.DateType: "not a date as 2024-01-31",
    T.TimestampType: "not a time as 2024-01-31T08:30:00Z",
}


def _describe_form(kind: T.DataType) -> str:
    """Return what a field of a type must look like, as the reason why a text is rejected."""
    if isinstance(kind, T.DecimalType):
        return f"not a number that {kind.simpleString()} holds, with a point for decimals"
    return _FORMS[type(kind)]


def parse_text(text: Column, kind: T.DataType, timezone: str) -> Column:
    """Return the value of a field of a type; null if the text is no such value."""
    if isinstance(kind, T.DecimalType):
        return parse_decimal(text, kind)
    if isinstance(kind, T.TimestampType):
        return parse_timestamp(text, timezone)
    return _PARSERS[type(kind)](text)


def read_versions(frames: Sequence[DataFrame], source: Source, timezone: str) -> DataFrame:
    """Parse landed lines: their fields and log day, or the reason of rejection.

    `frames` is the result of `landing.files.read_lines`.

    Returns:
        `log_date`, `arrival_date`, `source_file`, `_text` (null for an accepted line), `_reason`
        (null for an accepted line), `_ambiguous`, `_lacking`, the source's fields in their types
        and, of a source with a second dimension, `_part`, as the folder says. A line's log day is
        its arrival day, or the next if its version time lies in that; beyond, it is rejected.
    """
    return reduce(
        DataFrame.unionByName, (_parse_lines(frame, source, timezone) for frame in frames)
    )


def _parse_lines(lines: DataFrame, source: Source, timezone: str) -> DataFrame:
    verbatim = {*identifier_fields(source)}
    landed_types = {field.name: field.dataType for field in lines.schema}
    typed_fields = {
        name
        for name in source.fields
        if name not in verbatim and not isinstance(landed_types[name], T.StringType)
    }
    frame = lines.select(
        "arrival_date",
        *(split_name() if source.dimension else ["source_file"]),
        TEXT,
        PROBLEM,
        LACKING,
        *[
            (F.col(name) if name in typed_fields else F.nullif(name, F.lit(""))).alias(
                name if name in verbatim else _landed_column(name)
            )
            for name in source.fields
        ],
    )
    local_times = [
        name
        for name, kind in source.types.items()
        if isinstance(kind, T.TimestampType)
        and name not in typed_fields
        and source.timezone != "UTC"
    ]
    values = {}
    for name in source.fields:
        if name in typed_fields:
            values[name] = null_if_out_of_range(F.col(_landed_column(name)), source.types[name])
        elif name not in verbatim:
            text = F.col(_landed_column(name))
            values[name] = parse_text(text, source.types[name], source.timezone)
            if name in local_times and source.ambiguous == "second":
                values[name] = later_moment(text, values[name], source.timezone)
    frame = frame.withColumns(values)
    ahead = F.datediff(version_day(source, timezone), "arrival_date")
    part_fields = {source.raw.part_column}.intersection(source.fields)
    reason = F.coalesce(
        F.col(PROBLEM),
        *_field_reasons(source, verbatim, typed_fields),
        F.when(_before_all_days(source, timezone), f"bad {source.event_time}"),
        F.when(ahead > 1, "from the future: its version time lies beyond the day after arrival"),
        *(
            F.when(
                F.col(name) != F.col(PART), F.concat(F.lit(f"bad {name}: its folder says "), PART)
            )
            for name in part_fields
        ),
        other_hour(source, timezone, F.col(PART)),
    )
    frame = frame.withColumns({REASON: reason, "_ahead": ahead})
    ambiguous = [_has_ambiguous_time(source, name) for name in local_times]
    return frame.select(
        F.when(
            F.col(REASON).isNull(), F.date_add("arrival_date", F.greatest("_ahead", F.lit(0)))
        ).alias("log_date"),
        "arrival_date",
        "source_file",
        F.when(F.col(REASON).isNotNull(), original_line(landed_types[TEXT], source)).alias(TEXT),
        REASON,
        (F.col(REASON).isNull() & reduce(Column.__or__, ambiguous, F.lit(False))).alias(AMBIGUOUS),
        LACKING,
        *source.fields,
        *([PART] if source.dimension else []),
    )


def _has_ambiguous_time(source: Source, name: str) -> Column:
    """Return whether the local time that landed of a field is ambiguous."""
    text, moment = F.col(_landed_column(name)), F.col(name)
    if source.ambiguous == "second":
        moment = parse_timestamp(text, source.timezone)
    return is_ambiguous(text, moment, source.timezone)


def _landed_column(name: str) -> str:
    """Return the name of the column with a field's text, or its value as it landed."""
    return f"_field_{name}"


def _field_reasons(source: Source, verbatim: set[str], typed_fields: set[str]) -> Iterator[Column]:
    """Yield why a line's fields are invalid, in the order of the fields."""
    for name, column in source.columns.items():
        landed = F.col(name if name in verbatim else _landed_column(name))
        yield field_reason(name, column, landed, is_text=name not in typed_fields)


def field_reason(name: str, column: Any, landed: Column, *, is_text: bool) -> Column:
    """Return why a field is invalid, by its pandera column; null if it is valid.

    `landed` is what landed of it, and whether that is text; the column of its name has the value.
    """
    value, kind = F.col(name), column.dtype.type
    reason = F.when(landed.isNull(), F.lit(None if column.nullable else f"missing {name}"))
    if isinstance(kind, T.DecimalType) and is_text:
        reason = reason.when(*_surplus_decimals(name, landed, value, kind))
    reason = reason.when(value.isNull(), f"bad {name}: {_describe_form(kind)}")
    # A row that violates Delta's CHECK constraint would fail the whole run.
    for rule in sql_conditions(name, column).values():
        reason = reason.when(~F.expr(rule), f"bad {name}")
    return reason


def _surplus_decimals(
    name: str, text: Column, value: Column, kind: T.DecimalType
) -> tuple[Column, Column]:
    """Return whether a number has more decimals than its type keeps, and the reason with both."""
    _, decimals = _decimal_places(text)
    reason = F.format_string(f"bad {name}: %d decimals, {kind.scale} are kept", decimals)
    return value.isNull() & _is_decimal(text) & (decimals > kind.scale), reason


def _before_all_days(source: Source, timezone: str) -> Column:
    """Return whether the event day lies in the year 0, which no Python date can hold."""
    if source.event_time in source.dated_times:
        return F.lit(False)  # the parser of dates accepts none of it
    moment = F.col(source.event_time)
    first_hours = moment < F.lit("0001-01-02").cast("timestamp")
    return first_hours & (business_day(moment, timezone) < F.lit("0001-01-01").cast("date"))


def accepted_rows(read: DataFrame, source: Source) -> DataFrame:
    """Return the accepted lines of a result of `read_versions`."""
    return read.where(F.col(REASON).isNull()).select(*_with_part(source.raw))


def _with_part(table: Table) -> list[Column]:
    """Return the columns of a table, that of the part as the folder says."""
    renamed = {table.part_column: PART}
    return [F.col(renamed.get(name, name)).alias(name) for name in table.columns]


def rejected_rows(read: DataFrame, source: Source) -> DataFrame:
    """Return the rejected lines of a result of `read_versions`."""
    rejected = read.where(F.col(REASON).isNotNull())
    texts = {"text": F.col(TEXT), "reason": F.col(REASON)}
    return rejected.withColumns(texts).select(*_with_part(source.rejected))


LoadTargets = Mapping[date, LoadTarget]


@dataclass(frozen=True)
class ParsedFiles:
    """The files of a run's folders, read once.

    Attributes:
        landing_files: the files, and which of them cannot be read.
        moving: names of files that changed, came or went while they were read.
        lines: the result of `read_versions`.
        counts: by file.
    """

    landing_files: LandingFiles
    moving: frozenset[str]
    lines: DataFrame
    counts: Mapping[str, FileCounts]

    @cached_property
    def broken_by_day(self) -> Mapping[date, list[str]]:
        """By arrival day, the files that cannot be read, each with its reason."""
        return self.landing_files.broken_by_day()

    @cached_property
    def counted_by_folder(self) -> Mapping[str, list[str]]:
        """By folder, the files that have counts."""
        return _group_by_folder(self.counts)

    @cached_property
    def moving_by_folder(self) -> Mapping[str, list[str]]:
        """By folder, the files that changed while they were read."""
        return _group_by_folder(self.moving)

    def counts_of(self, names: Collection[str]) -> FileCounts:
        """Return the total counts of some files."""
        return sum((self.counts.get(name, FileCounts()) for name in names), FileCounts())


@dataclass(frozen=True)
class RetainedRows:
    """Published rows that stay, as their files are gone or held back.

    Attributes:
        rows: None if there are none.
        counts: by day.
        moved_counts: by day, the number of rows that would be logged on another day now.
    """

    rows: DataFrame | None = None
    counts: Mapping[date, int] = field(default_factory=dict)
    moved_counts: Mapping[date, int] = field(default_factory=dict)


def _group_by_folder(names: Collection[str]) -> Mapping[str, list[str]]:
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_folder[folder_of(name)].append(name)
    return by_folder


def count_lines_by_file(
    versions: DataFrame, source: Source, landed: Mapping[str, int]
) -> dict[str, FileCounts]:
    """Return the counts of each file.

    `landed` has lines by file, from a separate scan. Names are with the folder of the part.
    """
    file_name = _full_name(source).alias("source_file")
    is_accepted, amount = F.col(REASON).isNull(), F.lit(NO_MONEY)
    nullable = sorted(source.may_be_null)
    if source.amount:
        amount = F.coalesce(F.sum(F.when(is_accepted, F.col(source.amount))), amount)
    lacking = (F.count_if(is_accepted & F.array_contains(LACKING, name)) for name in nullable)
    rows = versions.groupBy(file_name).agg(
        F.count_if(~is_accepted).alias("rejected"),
        F.count_if(F.col("log_date") > F.col("arrival_date")).alias("early"),
        F.count_if(is_accepted).alias("accepted"),
        amount.alias("amount"),
        F.count_if(AMBIGUOUS).alias("ambiguous"),
        F.array(*lacking).cast("array<bigint>").alias("lacking"),
    )
    counts = {
        name: replace(
            FileCounts(0, *numbers), lacking=Counter(dict(zip(nullable, lines, strict=True)))
        )
        for name, *numbers, lines in rows.collect()
    }
    has_ambiguous = any(count.ambiguous for count in counts.values())
    keys = _ambiguous_keys(versions, source) if has_ambiguous else {}
    return {
        name: replace(
            counts.get(name, FileCounts()),
            landed=landed.get(name, 0),
            ambiguous_keys=tuple(keys.get(name, ())),
        )
        for name in landed.keys() | counts.keys()
    }


def _full_name(source: Source) -> Column:
    """Return the name of a line's file, with the folder of the part."""
    name = F.col("source_file")
    if not source.dimension:
        return name
    folder = F.concat(F.lit(f"/{source.dimension.name}="), F.col(PART), F.lit("/"))
    day = F.substring_index(name, "/", 1)
    return F.concat(day, folder, F.substring(name, F.length(day) + 2, F.length(name)))


def _ambiguous_keys(versions: DataFrame, source: Source) -> dict[str, list[str]]:
    """Return, by file, the first keys of its ambiguous lines, as text."""
    parts = [F.concat(F.lit(f"{name}="), F.col(name).cast("string")) for name in source.key]
    file_name = _full_name(source).alias("source_file")
    keys = versions.where(AMBIGUOUS).select(file_name, F.concat_ws(", ", *parts).alias("_key"))
    place = F.expr("row_number() OVER (PARTITION BY source_file ORDER BY _key)")
    first_keys = keys.distinct().withColumn("_place", place).where(F.col("_place") <= MOST_KEYS)
    by_file: dict[str, list[str]] = defaultdict(list)
    for name, key, _ in first_keys.orderBy("source_file", "_place").collect():
        by_file[name].append(key)
    return by_file


def lost_keys(
    published: DataFrame, lines: DataFrame, source: Source, names: Collection[str]
) -> dict[str, int]:
    """Return, by replaced file, how many of the keys loaded from it it no longer has.

    `lines` is the result of `read_versions` for the present files.
    """
    keys = ["source_file", *source.key]
    of_files = F.col("source_file").isin(sorted(names))
    accepted = source.raw.rows_of_part(accepted_rows(lines, source))
    current = accepted.where(of_files).select(*keys)
    missing = published.where(of_files).select(*keys).distinct().join(current, keys, "left_anti")
    counts = missing.groupBy("source_file").count().collect()
    return {row["source_file"]: row["count"] for row in counts}


def rows_to_retain(
    published: DataFrame,
    targets: LoadTargets,
    days: Collection[date],
    source: Source,
    table: Table,
    timezone: str,
) -> DataFrame:
    """Return the rows of days whose files are retained, with the column `_elsewhere`.

    `_elsewhere` tells whether a raw row would be logged on another day in `timezone`.
    """
    spark = published.sparkSession
    struct = T.StructType().add(table.partition, T.DateType()).add("source_file", T.StringType())
    retained_files = [(day, name) for day in days for name in targets[day].retained_files]
    files = create_frame(spark, struct, retained_files)
    rows = published.where(F.col(table.partition).isin(list(days))).join(
        F.broadcast(files), [table.partition, "source_file"], "left_semi"
    )
    elsewhere = F.lit(False)
    if table is source.raw:
        log_day = F.greatest(F.col("arrival_date"), version_day(source, timezone))
        elsewhere = log_day != F.col("log_date")
    return rows.select(*table.columns, elsewhere.alias("_elsewhere"))


def selected_rows(
    lines: DataFrame, parts: Sequence[tuple[SourceTable, LoadTargets]], days: Window
) -> DataFrame:
    """Return the parsed lines of some days, without those of files that are held back on a day.

    `parts` has the table and its load targets, or those of parts of it.
    """
    table = parts[0][0]
    of_table = accepted_rows if table.role is Role.LOG else rejected_rows
    rows = of_table(lines, table.source).where(days.sql_condition(table.partition))
    if table.part:
        rows = rows.where(F.col(table.part_column).isin([part.part for part, _ in parts]))
    for part, targets in parts:
        for day, target in targets.items():
            if held := sorted(target.manifest.awaiting_approval):
                is_held = (F.col(table.partition) == F.lit(day)) & F.col("source_file").isin(held)
                for name, value in part.part_values.items():
                    is_held &= F.col(name) == value
                rows = rows.where(~is_held)
    return rows
