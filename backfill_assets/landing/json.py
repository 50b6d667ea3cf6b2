"""JSON lines as fields of text: strings verbatim, numbers as they were written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from uuid import uuid4

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.landing.text import (
    PROBLEM,
    TEXT,
    decimal_fields,
    identifier_fields,
    json_fields,
)
from backfill_assets.tables.sources import Source

#: The field that ends the envelope of a line. No file can hold it: a line that ended the envelope
#: itself would hide what follows in it.
_CLOSED = f"closed_{uuid4().hex}"
# Half of a surrogate pair, as only a JSON escape can spell it. No text can hold it, so Spark makes
# the value null, and a null would pass where a field may be null.
_LONE_SURROGATE = (
    r"(?i)\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)
_KEY_MAY_BE_ESCAPED = r"\\u"


def json_lines(lines: DataFrame, source: Source) -> DataFrame:
    """The fields of JSON lines.

    A line is parsed as the only element of an array, in an envelope that only closes if the line is
    one whole value: Spark's parser otherwise ignores whatever follows the first one, and a line
    would be lost in silence. (Without the array, `{...},"x":{...}` would be more of the envelope.)
    Where identifiers and decimals are plain strings, as nearly always, they are read as such; only
    the other lines pay for care. There, numbers are put in quotes before, as the parser would pass
    some of them through a double, and these fields go through VARIANT, which tells a string from a
    boolean or an object. Of the other types any JSON may be read as text: what is no such value
    does not read as one later. What is nested is read of the line as it is, without such quotes.
    """
    text, careful = F.col(TEXT), F.col("_careful")
    ids, nested = identifier_fields(source), json_fields(source)
    exact_fields = (*ids, *decimal_fields(source))
    columns = {
        "_plain": F.when(~careful, _from_json(text, source.fields)),
        "_json": F.when(
            careful, _from_json(_quote_numbers(text, source), source.fields, exact_fields)
        ),
    }
    if nested:
        columns["_nested"] = F.when(careful, _from_json(text, nested))
    not_plain = reduce(
        Column.__or__, map(text.rlike, not_plain_patterns(exact_fields)), F.lit(False)
    )
    frame = lines.withColumn("_careful", not_plain).withColumns(columns)

    def field_column(name: str) -> Column:
        other = _parsed_line("_nested" if name in nested else "_json")[name]
        exact = _variant_text(name) if name in exact_fields else other
        return F.when(careful, exact).otherwise(_parsed_line("_plain")[name]).alias(name)

    problem = (
        F.when(~F.is_valid_utf8(text), "not UTF-8")
        .when(~F.coalesce(_is_one_object(), F.lit(False)), "not one JSON object")
        .when(_has_lone_surrogate(source, exact_fields), "half a surrogate pair")
        .when(careful, F.coalesce(*map(_identifier_problem, ids), F.lit(None)))
    )
    return frame.select(
        "arrival_date",
        "source_file",
        TEXT,
        *map(field_column, source.fields),
        problem.alias(PROBLEM),
    )


def number_pattern(source: Source) -> str:
    """A number where a line has an identifier or a decimal; an identifier takes whole ones only.

    Empty if the source has neither.
    """
    choices = []
    if ids := _any_name_pattern(identifier_fields(source)):
        choices.append(rf'{ids}"[ \t]*:[ \t]*(?=-?[0-9]+[ \t]*[,}}])')
    if numbers := _any_name_pattern(decimal_fields(source)):
        choices.append(rf'{numbers}"[ \t]*:[ \t]*')
    if not choices:
        return ""
    return (
        rf'((?<!\\)"(?:{"|".join(choices)}))'
        r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?=[ \t]*[,}])"
    )


def not_plain_patterns(exact_fields: Iterable[str]) -> list[str]:
    """Where a field is not simply a string, or a key may be escaped.

    One pattern a field: one that begins with plain text is found several times as fast as one with
    a choice.
    """
    patterns = [rf'"{re.escape(name)}"\s*:\s*(?!"|null\b|\s)' for name in exact_fields]
    return [*patterns, _KEY_MAY_BE_ESCAPED] if patterns else []


def _any_name_pattern(names: Iterable[str]) -> str:
    escaped = "|".join(map(re.escape, names))
    return f"(?:{escaped})" if escaped else ""


def _quote_numbers(text: Column, source: Source) -> Column:
    pattern = number_pattern(source)
    return F.regexp_replace(text, pattern, '$1"$2"') if pattern else text


def _from_json(text: Column, names: Iterable[str], variants: Iterable[str] = ()) -> Column:
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
    """Whether the line was one object; null if it was not parsed at all."""
    return (
        F.coalesce(f"_json.{_CLOSED}", f"_plain.{_CLOSED}")
        & (F.coalesce(F.array_size("_json.lines"), F.array_size("_plain.lines")) == 1)
        & (_parsed_line("_json").isNotNull() | _parsed_line("_plain").isNotNull())
    )


def _has_lone_surrogate(source: Source, exact_fields: Iterable[str]) -> Column:
    """Whether an identifier is null, or a number that may be, as no text can hold what it was."""
    ids = identifier_fields(source)
    doubtful = [name for name in exact_fields if name in ids or name in source.may_be_null]
    is_missing = reduce(
        Column.__or__, (_variant_text(name).isNull() for name in doubtful), F.lit(False)
    )
    return F.col("_careful") & is_missing & F.col(TEXT).rlike(_LONE_SURROGATE)


def _parsed_line(parsed: str) -> Column:
    return F.get(f"{parsed}.lines", F.lit(0))


def _variant_text(name: str) -> Column:
    return F.try_variant_get(_parsed_line("_json")[name], "$", "string")


def _identifier_problem(name: str) -> Column:
    """The problem of an identifier that is neither a string nor a whole number, else null."""
    # Only text that could come of something else is asked for its type.
    doubtful = _variant_text(name).rlike(r"^(true\z|false\z|[\[{]|-?[0-9])")
    kind = F.schema_of_variant(_parsed_line("_json")[name])
    return F.when(doubtful, F.when(kind != "STRING", F.lit(f"bad {name}: not a string")))
