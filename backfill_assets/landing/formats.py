"""Lines of text of the landing, and JSON lines, read as fields of text; `csv_files` reads CSV."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, partial, reduce
from typing import Any
from uuid import uuid4

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.spark.filesystems import read_options
from backfill_assets.spark.frames import PART, exact_sums
from backfill_assets.tables.columns import holds_json
from backfill_assets.tables.sources import Source

BYTE_ORDER_MARK = "\ufeff"
#: Columns with the original line (of a Parquet row, its columns), why it has no fields, and those
#: that may be null and that a line, or its file, has in no case. No field can have these names.
TEXT, PROBLEM, LACKING = "_text", "_problem", "_lacking"


def lines_schema(source: Source) -> T.StructType:
    """The schema of lines: origin and text, fields as text, its problem, and what it lacks."""
    texts = ("source_file", TEXT, *source.fields, PROBLEM)
    return T.StructType(
        [
            T.StructField("arrival_date", T.DateType()),
            *(T.StructField(name, T.StringType()) for name in texts),
            T.StructField(LACKING, T.ArrayType(T.StringType())),
        ]
    )


@dataclass(frozen=True)
class Control:
    """The totals of valid lines that the source sent for a day; no amount if it declares none."""

    rows: int
    amount: Decimal | None


#: Maximum digits of a total.
_MOST_DIGITS = 38


def parse_control(content: Any, source: Source) -> Control:
    """Check decoded content, in which numbers are Decimals; `read_control` catches each error."""
    rows = Decimal(content["rows"])
    if source.amount is None and "amount" in content:
        raise ValueError(f"the source {source.name} declares no amount")
    amount = Decimal(content["amount"]) if source.amount else None
    # Check the size before the value: computing `int(1e999999999)` would never end.
    if not rows.is_finite() or rows.adjusted() > 18 or rows != int(rows):
        raise ValueError("rows must be a whole number")
    if amount is not None and not _is_valid_total(amount):
        raise ValueError("amount must be a finite number of at most 38 digits")
    return Control(int(rows), amount)


def _is_valid_total(amount: Decimal) -> bool:
    """Whether a total is finite and has at most 38 digits; others are attacks or faults."""
    if not amount.is_finite():
        return False
    # Trailing zeros count as digits too: printing millions of them takes too long.
    digits = len(amount.as_tuple().digits)
    return digits <= _MOST_DIGITS and abs(amount.adjusted()) <= _MOST_DIGITS


#: The amount of no lines.
NO_MONEY = Decimal("0.00")


@dataclass(frozen=True)
class FileCounts:
    """Counts of one file.

    Attributes:
        landed: lines, counted separately from parsing.
        rejected: lines that could not be parsed.
        early: accepted lines that are logged on the next day.
        accepted: all other lines than the rejected ones, early ones included.
        amount: the sum of their amounts; zero if the source declares none.
        ambiguous: accepted lines whose local time is ambiguous.
        ambiguous_keys: the first keys of these, as text.
        lacking: the number of accepted lines that have no such field, by field that may be null.
    """

    landed: int = 0
    rejected: int = 0
    early: int = 0
    accepted: int = 0
    amount: Decimal = NO_MONEY
    ambiguous: int = 0
    ambiguous_keys: tuple[str, ...] = ()
    lacking: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "FileCounts") -> "FileCounts":
        with exact_sums():
            return FileCounts(
                self.landed + other.landed,
                self.rejected + other.rejected,
                self.early + other.early,
                self.accepted + other.accepted,
                self.amount + other.amount,
                self.ambiguous + other.ambiguous,
                self.ambiguous_keys + other.ambiguous_keys,
                self.lacking + other.lacking,
            )


def origin_columns(source: Source) -> tuple[Column, Column]:
    """The arrival day and file of a row, from the path that Spark read.

    Of a source with a second dimension, the name of the file is with the folder of the part, see
    `split_name`. Computed for every row, so it cuts the path instead of using slow patterns.
    """
    depth = 2 + source.hourly + bool(source.dimension)
    tail = F.substring_index("_metadata.file_path", "/", -depth)
    # A file path is percent-encoded, but a plus sign in it is a plus sign.
    decoded = F.url_decode(F.replace(tail, F.lit("+"), F.lit("%2B")))
    name = F.when(tail.contains("%"), decoded).otherwise(tail)
    return F.substring(tail, 14, 10).cast("date").alias("arrival_date"), name.alias("source_file")


def split_name() -> tuple[Column, Column]:
    """The file of a row without the folder of its part, and the part."""
    folder = F.substring_index(F.substring_index("source_file", "/", 2), "/", -1)
    name = F.replace(F.col("source_file"), F.concat(F.lit("/"), folder, F.lit("/")), F.lit("/"))
    return name.alias("source_file"), F.substring_index(folder, "=", -1).alias(PART)


def text_lines(
    spark: SparkSession, source: Source, urls: Sequence[str], max_bytes: int
) -> DataFrame:
    """The non-blank lines of text files."""
    return nonblank_texts(all_lines(spark, source, urls, max_bytes))


def all_lines(
    spark: SparkSession, source: Source, urls: Sequence[str], max_bytes: int
) -> DataFrame:
    """The lines of text files, as the bytes that they have.

    Lines longer than `max_bytes` are skipped, not held in memory: a file may have been replaced
    after the size check.
    """
    # Hadoop's reader includes the line end, and reads lines shorter than this.
    reader = spark.read.option("mapreduce.input.linerecordreader.line.maxlength", max_bytes + 3)
    lines = reader.options(**read_options(urls)).text([*urls])
    return lines.select(*origin_columns(source), F.col("value").alias(TEXT))


def nonblank_texts(lines: DataFrame) -> DataFrame:
    """The lines without byte-order marks, and without blank ones."""
    text = F.col(TEXT)
    # Concatenated files have byte-order marks in the middle. (Not `ltrim`, which also removes parts
    # of a mark.)
    marked = F.when(text.startswith(BYTE_ORDER_MARK), F.expr(f"substring({TEXT}, 2)"))
    lines = lines.withColumn(TEXT, marked.otherwise(text))
    # Lines that begin with a visible character need no trimming, which is slow.
    starts_with_text, trimmed = text >= "!", F.trim(text, F.lit(" \t\v\f"))
    return lines.where(starts_with_text | (trimmed != ""))


def identifier_fields(source: Source) -> tuple[str, ...]:
    """The string fields without JSON: a string, or a whole number as written."""
    return tuple(
        name
        for name, kind in source.types.items()
        if isinstance(kind, T.StringType) and not holds_json(source.columns[name])
    )


def json_fields(source: Source) -> tuple[str, ...]:
    """The fields that hold JSON text."""
    return tuple(name for name, column in source.columns.items() if holds_json(column))


def decimal_fields(source: Source) -> tuple[str, ...]:
    """The fields with exact decimal numbers."""
    return tuple(name for name, kind in source.types.items() if isinstance(kind, T.DecimalType))


def lacking_fields(source: Source, names: Collection[str]) -> Column:
    """The column `LACKING` of a file that has these fields only."""
    lacking = (F.lit(name) for name in sorted(source.may_be_null) if name not in names)
    return F.array(*lacking).cast("array<string>").alias(LACKING)


def missing_field(name: str) -> Column:
    """The null column of a field that a file does not have."""
    return F.lit(None).cast("string").alias(name)


def match_fields(
    names: Sequence[str], fields: Sequence[str], renames: Mapping[str, str]
) -> list[str]:
    """The names in a file, with those of fields for other names of them, in any case.

    Not where the file has the field as well. (No two fields of a source differ in case alone.)

    Args:
        names: in the file.
        fields: their names in the tables.
        renames: of a source.
    """
    others = {**dict(zip(fields, fields, strict=True)), **renames}
    by_lower = {name.lower(): field for name, field in others.items() if field not in names}
    return [by_lower.get(name.lower(), name) for name in names]


#: The field at the end of a line's envelope. It is random, so that no line can contain it: such a
#: line could close the envelope itself and hide the rest of its text.
_CLOSED = f"closed_{uuid4().hex}"
# Half of a surrogate pair, which only a JSON escape can write. It is not valid text, so Spark makes
# the value null, which a nullable field would accept.
_LONE_SURROGATE = (
    r"(?i)\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)
_ESCAPED_CHARACTER = r"\u"
# Java recurses for each level.
_MOST_LEVELS = 64
_TOO_DEEP = f"nested more than {_MOST_LEVELS} levels"
# Spark's parser keeps these numbers as they are: a long holds eighteen digits, a double fifteen.
_FEW_DIGITS = r"[0-9]{1,18}"
_FEW_DECIMAL_DIGITS = r"-?[0-9]{1,7}(?:\.[0-9]{1,8})?"


def json_lines(lines: DataFrame, source: Source) -> DataFrame:
    """The fields of JSON lines.

    A line is parsed as the only element of an array in an envelope, which is closed only if the
    line is one whole value. Otherwise Spark's parser ignores everything after the first value, and
    lines would be lost silently. (Without the array, `{...},"x":{...}` would be part of the
    envelope.)

    Nearly always, identifiers and decimals are plain strings, or numbers of few digits, and are
    read directly. Only other lines are parsed carefully: numbers are quoted first, as the parser
    would convert some to a double, and these fields are read as VARIANT, which distinguishes a
    string from a boolean or an object. Fields of other types may be read as text from any JSON: an
    invalid value fails later when it is parsed. Fields that hold JSON are cut out of the line, as
    the parser would write them anew, with other numbers. Keys that are other names of a field, or
    differ from it in case only, are named as the field before that, see `_name_fields`.
    """
    text, named, careful = F.col(TEXT), F.col("_named"), F.col("_careful")
    ids, nested = identifier_fields(source), json_fields(source)
    exact_fields = (*ids, *decimal_fields(source))
    parsed_fields = [name for name in source.fields if name not in nested]
    not_plain = reduce(Column.__or__, map(text.rlike, careful_patterns(source)), F.lit(False))
    if exact_fields:
        # A key may be escaped. This is no pattern: one of two characters is four times as slow.
        not_plain |= text.contains(_ESCAPED_CHARACTER)
    cuts = {f"_cut_{name}": _cut_field(text, name) for name in nested}
    frame = lines.withColumns({"_not_plain": not_plain, **cuts})
    parsed = _from_json(text, parsed_fields)
    frame = frame.withColumn("_plain", F.when(~F.col("_not_plain"), parsed))
    frame = _name_fields(frame, source, parsed_fields)
    is_renamed = F.coalesce(F.size("_renamed") > 0, F.lit(False))
    cuts = {
        f"_cut_{name}": F.when(is_renamed, _cut_field(named, name)).otherwise(F.col(f"_cut_{name}"))
        for name in nested
    }
    frame = frame.withColumns({"_careful": F.col("_not_plain") | is_renamed, **cuts})
    parsed = _from_json(_quote_numbers(named, source), parsed_fields, exact_fields)
    frame = frame.withColumn("_json", F.when(careful, parsed))

    def field_column(name: str) -> Column:
        if name in nested:
            return _cut_value(name).alias(name)
        exact = _variant_text(name) if name in exact_fields else _parsed_line("_json")[name]
        return F.when(careful, exact).otherwise(_parsed_line("_plain")[name]).alias(name)

    problem = (
        F.when(~F.is_valid_utf8(text), "not UTF-8")
        .when(~F.coalesce(_is_one_object(), F.lit(False)), "not one JSON object")
        .when(_has_lone_surrogate(source, exact_fields), "half a surrogate pair")
        .when(careful, F.coalesce(*map(_identifier_problem, ids), F.lit(None)))
    )
    problems = [problem, _naming_problem(), *map(_cut_problem, nested)]
    nullable = sorted(source.may_be_null)
    lacking = F.filter("_absent", lambda name: name.isin(nullable) & (_count_keys(name) == 0))
    return frame.select(
        "arrival_date",
        "source_file",
        TEXT,
        *map(field_column, source.fields),
        F.coalesce(*problems).alias(PROBLEM),
        lacking.alias(LACKING),
    )


def _name_fields(frame: DataFrame, source: Source, parsed_fields: Iterable[str]) -> DataFrame:
    """Add the line with each key that is another name of a field, in any case, named as the field.

    Adds `_named` (the line), `_renamed` (these fields), `_absent` (the fields that are no key of
    the line) and `_lower_keys` (its keys, with those that are another name as the field). But for
    `_named`, they are null for a line that has a value of each field, as nearly all do. So few
    lines are scanned for their keys besides being parsed.
    """
    lacks_value = reduce(
        Column.__or__,
        [
            F.col("_not_plain"),
            *(_parsed_line("_plain")[name].isNull() for name in parsed_fields),
            *(F.col(f"_cut_{name}").isin("", "null") for name in json_fields(source)),
        ],
    )
    absent = F.array_except(F.array(*map(F.lit, source.fields)), F.col("_keys"))
    frame = frame.withColumn("_keys", F.when(lacks_value, F.json_object_keys(TEXT)))
    keys = F.transform("_keys", partial(_lower_key, source.rename))
    frame = frame.withColumns({"_absent": absent, "_lower_keys": keys})
    renamed = F.filter("_absent", lambda name: _count_keys(name) == 1)

    def file_names(field: str) -> list[str]:
        return [field, *(name for name, renamed in source.rename.items() if renamed == field)]

    frame = frame.withColumn("_renamed", renamed)
    named = reduce(
        lambda text, name: F.regexp_replace(text, key_pattern(*file_names(name)), f'$1"{name}"'),
        source.fields,
        F.col(TEXT),
    )
    return frame.withColumn("_named", F.when(F.size("_renamed") > 0, named).otherwise(F.col(TEXT)))


def _lower_key(renames: Mapping[str, str], key: Column) -> Column:
    """A key in lower case; if it is another name of a field, that field."""
    lower = F.lower(key)
    fields = [F.when(lower == F.lower(F.lit(name)), field) for name, field in renames.items()]
    return F.lower(F.coalesce(*fields, lower))


def _count_keys(name: Column) -> Column:
    """The number of a line's keys that are a field, by any of its names in any case."""
    return F.size(F.filter("_lower_keys", lambda key: key == F.lower(name)))


def _naming_problem() -> Column:
    """Why a field has no value although the line has keys that are other names of the field."""
    doubtful = F.get(F.filter("_absent", lambda name: _count_keys(name) > 1), F.lit(0))
    unnamed = F.array_except("_renamed", F.json_object_keys("_named"))
    too_deep = F.when(F.size("_renamed") > 0, F.when(F.size(unnamed) > 0, _TOO_DEEP))
    return F.coalesce(F.concat(F.lit("more than one key is named "), doubtful), too_deep)


def number_pattern(source: Source) -> str:
    """A pattern for an unquoted number with its key, as two groups: up to the number, the number.

    `_quote_numbers` puts quotes around the second, so that Spark loses no digit. Of identifiers it
    matches whole numbers only. Empty if the source has neither identifiers nor decimals.
    """
    choices = []
    if id_names := _match_any_field(identifier_fields(source)):
        choices.append(rf'{id_names}"[ \t]*:[ \t]*(?=-?[0-9]+[ \t]*[,}}])')
    if decimal_names := _match_any_field(decimal_fields(source)):
        choices.append(rf'{decimal_names}"[ \t]*:[ \t]*')
    if not choices:
        return ""
    return (
        rf'((?<!\\)"(?:{"|".join(choices)}))'
        r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?=[ \t]*[,}])"
    )


def careful_patterns(source: Source) -> list[str]:
    """Patterns for lines in which a field is neither a plain string nor a number of few digits.

    One pattern for each field: a pattern that begins with plain text is found several times as fast
    as one with alternatives.
    """
    numbers = dict.fromkeys(identifier_fields(source), _FEW_DIGITS)
    numbers |= dict.fromkeys(decimal_fields(source), _FEW_DECIMAL_DIGITS)
    return [
        rf'"{re.escape(name)}"\s*:\s*(?!"|null\b|\s|{number}[ \t]*[,}}])'
        for name, number in numbers.items()
    ]


def _match_any_field(field_names: Iterable[str]) -> str:
    """A regular expression of these field names; empty if there are none: leave it out then."""
    alternatives = "|".join(map(re.escape, field_names))
    return f"(?:{alternatives})" if alternatives else ""


_BLANK, _STRING = r"[ \t\r\n]*+", r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"'


@cache
def _value_pattern() -> str:
    """A pattern for a JSON value of at most `_MOST_LEVELS` levels."""
    nested = ""
    for _ in range(_MOST_LEVELS):
        parts = "|".join(filter(None, (r'[^"\[\]{}]++', _STRING, nested)))
        nested = rf"[\[{{](?:{parts})*+[\]}}]"
    return rf'(?:{_STRING}|[^"\[\]{{}},\s]++|{nested})'


def _name_pattern(name: str, *, any_case: bool = False) -> str:
    """A pattern for a key; any character of it may be escaped."""
    pattern = ""
    for character in name:
        cases = {character, character.swapcase() if any_case else character}
        choices = [rf"{re.escape(c)}|\\u(?i:{ord(c):04x})" for c in sorted(cases) if len(c) == 1]
        pattern += f"(?:{'|'.join(choices)})"
    return pattern


def member_pattern(name: str) -> str:
    """A pattern for a line that is a JSON object; group 1 is the value of a field, as written.

    Of a key that comes twice, the last one counts, as for the parser; there is no group if the line
    has none. No line matches that is nested more than `_MOST_LEVELS` levels.
    """
    colon, value = f"{_BLANK}:{_BLANK}", _value_pattern()
    members = rf'"{_name_pattern(name)}"{colon}({value})|{_STRING}{colon}{value}'
    return rf"\A{_BLANK}\{{(?:{_BLANK}(?:{members}){_BLANK},?+)*+{_BLANK}\}}[\s\S]*+"


def key_pattern(*names: str) -> str:
    """A pattern for a line up to the first key of these names in any case; group 1 ends before."""
    key = rf'"(?:{"|".join(_name_pattern(name, any_case=True) for name in names)})"'
    member = rf"{_STRING}{_BLANK}:{_BLANK}{_value_pattern()}{_BLANK},{_BLANK}"
    return rf"\A({_BLANK}\{{{_BLANK}(?:(?!{key}){member})*+){key}"


def _cut_field(text: Column, name: str) -> Column:
    """The value of a field as a line has it; the whole line if the pattern does not match it."""
    return F.regexp_replace(text, member_pattern(name), "$1")


def _cut_value(name: str) -> Column:
    """The text of a field that holds JSON, as written; that in a JSON string is JSON, as in CSV."""
    cut = F.col(f"_cut_{name}")
    array = F.from_json(F.concat(F.lit("["), cut, F.lit("]")), T.ArrayType(T.StringType()))
    return F.when(cut.startswith('"'), F.get(array, F.lit(0))).when(~cut.isin("", "null"), cut)


def _cut_problem(name: str) -> Column:
    """Why a field that holds JSON has no value although the line has one, else null."""
    cut = F.col(f"_cut_{name}")
    # In a string, the parser would write it as a question mark.
    return F.when(cut == F.col("_named"), f"bad {name}: {_TOO_DEEP}").when(
        cut.startswith('"') & _has_half(cut), "half a surrogate pair"
    )


def _has_half(text: Column) -> Column:
    """Whether JSON has half of a surrogate pair; an escaped backslash escapes none."""
    return F.regexp_replace(text, r"\\\\", " ").rlike(_LONE_SURROGATE)


def _quote_numbers(text: Column, source: Source) -> Column:
    pattern = number_pattern(source)
    return F.regexp_replace(text, pattern, '$1"$2"') if pattern else text


def _from_json(text: Column, names: Iterable[str], variants: Iterable[str] = ()) -> Column:
    """Parse a line in its envelope, see `json_lines`; fields not in `variants` become text."""
    envelope = F.concat(F.lit('{"lines":['), text, F.lit(f'],"{_CLOSED}":true}}'))
    options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    variant_names = {*variants}
    line = T.StructType(
        [
            T.StructField(name, T.VariantType() if name in variant_names else T.StringType())
            for name in names
        ]
    )
    schema = T.StructType().add("lines", T.ArrayType(line)).add(_CLOSED, T.BooleanType())
    return F.from_json(envelope, schema, options)


def _is_one_object() -> Column:
    """Whether the line is one object; null if it was not parsed."""
    return (
        F.coalesce(f"_json.{_CLOSED}", f"_plain.{_CLOSED}")
        & (F.coalesce(F.array_size("_json.lines"), F.array_size("_plain.lines")) == 1)
        & (_parsed_line("_json").isNotNull() | _parsed_line("_plain").isNotNull())
    )


def _has_lone_surrogate(source: Source, exact_fields: Iterable[str]) -> Column:
    """Whether half of a surrogate pair made an identifier or a nullable number null."""
    doubtful = {*identifier_fields(source), *source.may_be_null}.intersection(exact_fields)
    is_any_half = F.lit(False)
    for name in sorted(doubtful):  # the half may be of another field
        half = _has_half(_cut_field(F.col("_named"), name))
        is_any_half |= _variant_text(name).isNull() & half
    return F.col("_careful") & F.col(TEXT).rlike(_LONE_SURROGATE) & is_any_half


def _parsed_line(parsed: str) -> Column:
    return F.get(f"{parsed}.lines", F.lit(0))


def _variant_text(name: str) -> Column:
    return F.try_variant_get(_parsed_line("_json")[name], "$", "string")


def _identifier_problem(name: str) -> Column:
    """The problem of an identifier that is neither a string nor a whole number, else null."""
    # Check the type only of text that could come from another type.
    doubtful = _variant_text(name).rlike(r"^(true\z|false\z|[\[{]|-?[0-9])")
    kind = F.schema_of_variant(_parsed_line("_json")[name])
    return F.when(doubtful, F.when(kind != "STRING", F.lit(f"bad {name}: not a string")))
