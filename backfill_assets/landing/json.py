"""JSON lines as fields of text: strings verbatim, numbers as they were written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from uuid import uuid4

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.landing.text import PROBLEM, TEXT, decimals, identifiers, json_fields
from backfill_assets.tables.sources import Source

#: The field that ends the envelope of a line. No file can hold it: a line that ended the envelope
#: itself would hide what follows in it.
_CLOSED = f"closed_{uuid4().hex}"
# Half of a surrogate pair, as only a JSON escape can spell it. No text can hold it, so Spark makes
# the value null, and a null would pass where a field may be null.
_HALF_A_PAIR = (
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
    named, nested = identifiers(source), json_fields(source)
    cared_for = (*named, *decimals(source))
    columns = {
        "_plain": F.when(~careful, _from_json(text, source.fields)),
        "_json": F.when(careful, _from_json(_quoted(text, source), source.fields, cared_for)),
    }
    if nested:
        columns["_nested"] = F.when(careful, _from_json(text, nested))
    not_plain = reduce(Column.__or__, map(text.rlike, not_plain_patterns(cared_for)), F.lit(False))
    frame = lines.withColumn("_careful", not_plain).withColumns(columns)

    def field(name: str) -> Column:
        other = _only("_nested" if name in nested else "_json")[name]
        read = _variant_text(name) if name in cared_for else other
        return F.when(careful, read).otherwise(_only("_plain")[name]).alias(name)

    problem = (
        F.when(~F.is_valid_utf8(text), "not UTF-8")
        .when(~F.coalesce(_whole(), F.lit(False)), "not one JSON object")
        .when(_half_a_pair(source, cared_for), "half a surrogate pair")
        .when(careful, F.coalesce(*map(_not_an_id, named), F.lit(None)))
    )
    return frame.select(
        "arrival_date", "source_file", TEXT, *map(field, source.fields), problem.alias(PROBLEM)
    )


def number_pattern(source: Source) -> str:
    """A number where a line has an identifier or a decimal; an identifier takes whole ones only.

    Empty if the source has neither.
    """
    choices = []
    if named := _any_of(identifiers(source)):
        choices.append(rf'{named}"[ \t]*:[ \t]*(?=-?[0-9]+[ \t]*[,}}])')
    if numbers := _any_of(decimals(source)):
        choices.append(rf'{numbers}"[ \t]*:[ \t]*')
    if not choices:
        return ""
    return (
        rf'((?<!\\)"(?:{"|".join(choices)}))'
        r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?=[ \t]*[,}])"
    )


def not_plain_patterns(cared_for: Iterable[str]) -> list[str]:
    """Where a field is not simply a string, or a key may be escaped.

    One pattern a field: one that begins with plain text is found several times as fast as one with
    a choice.
    """
    patterns = [rf'"{re.escape(name)}"\s*:\s*(?!"|null\b|\s)' for name in cared_for]
    return [*patterns, _KEY_MAY_BE_ESCAPED] if patterns else []


def _any_of(names: Iterable[str]) -> str:
    escaped = "|".join(map(re.escape, names))
    return f"(?:{escaped})" if escaped else ""


def _quoted(text: Column, source: Source) -> Column:
    pattern = number_pattern(source)
    return F.regexp_replace(text, pattern, '$1"$2"') if pattern else text


def _from_json(text: Column, names: Iterable[str], variants: Iterable[str] = ()) -> Column:
    envelope = F.concat(F.lit('{"lines":['), text, F.lit(f'],"{_CLOSED}":true}}'))
    options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    own = {*variants}
    line = T.StructType(
        [T.StructField(name, T.VariantType() if name in own else T.StringType()) for name in names]
    )
    schema = T.StructType().add("lines", T.ArrayType(line)).add(_CLOSED, T.BooleanType())
    return F.from_json(envelope, schema, options)


def _whole() -> Column:
    """Whether the line was one object; null if it was not parsed at all."""
    return (
        F.coalesce(f"_json.{_CLOSED}", f"_plain.{_CLOSED}")
        & (F.coalesce(F.array_size("_json.lines"), F.array_size("_plain.lines")) == 1)
        & (_only("_json").isNotNull() | _only("_plain").isNotNull())
    )


def _half_a_pair(source: Source, cared_for: Iterable[str]) -> Column:
    """Whether an identifier is null, or a number that may be, as no text can hold what it was."""
    named = identifiers(source)
    doubtful = [name for name in cared_for if name in named or name in source.may_be_null]
    nameless = reduce(
        Column.__or__, (_variant_text(name).isNull() for name in doubtful), F.lit(False)
    )
    return F.col("_careful") & nameless & F.col(TEXT).rlike(_HALF_A_PAIR)


def _only(parsed: str) -> Column:
    return F.get(f"{parsed}.lines", F.lit(0))


def _variant_text(name: str) -> Column:
    return F.try_variant_get(_only("_json")[name], "$", "string")


def _not_an_id(name: str) -> Column:
    """The problem of an identifier that is neither a string nor a whole number, else null."""
    # Only text that could come of something else is asked for its type.
    doubtful = _variant_text(name).rlike(r"^(true\z|false\z|[\[{]|-?[0-9])")
    kind = F.schema_of_variant(_only("_json")[name])
    return F.when(doubtful, F.when(kind != "STRING", F.lit(f"bad {name}: not a string")))
