"""What a pandera model may say: its columns, and the names in its `Config.metadata`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.errors import SchemaInitError

from backfill_assets.tables.arguments import DeclarationError, is_share
from backfill_assets.tables.column_checks import wrong_checks
from backfill_assets.tables.columns import nullable_bounds

#: By name in the metadata of a table's model, what it holds.
_METADATA: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "partition": (object, "the DATE column of the day"),  # `partitioning` tells what is wrong
    "key": ((list, tuple), 'a list of columns, as ["customer_id"]'),
    "totals": ((list, tuple), 'a list of columns, as ["amount"]'),
    "rules": (Mapping, "conditions by name, as {'paid': ('paid <= due', 'No more than due.')}"),
    "drift": (Mapping, "bounds by column, as {'revenue': 0.25}"),
    "skew": (Mapping, "shares by column, as {'customer_id': 0.2}"),
    "counts": (Mapping, "conditions by kind of rows, as {'open': \"state = 'open'\"}"),
    "notices": (Mapping, "descriptions by check"),
    "merge": (bool, "true or false"),
    "schema_version": (object, "a whole number"),  # `schemas` tells what is wrong
}
#: Names in the metadata of a column, see `columns` and `schemas`. Others are the user's own.
_COLUMN_OPTIONS = ("null_warn", "null_error", "renamed_from", "gap", "json")
#: So like a name of ours is one of a user's own that is a slip; most are not.
_TYPO_CUTOFF = 0.85
#: A rule of a row has a condition and a description.
_RULE_LENGTH = 2
_CONFIG_OPTIONS = ("metadata", "strict", "name", "title", "description", "unique", "ordered")


def is_model(value: object) -> bool:
    """Whether a value is a pandera model of Spark's columns."""
    return isinstance(value, type) and issubclass(value, pa.DataFrameModel)


def metadata_of(model: type[pa.DataFrameModel]) -> Mapping[str, Any]:
    """The metadata of a model; empty if it has none.

    Raises:
        DeclarationError: it is no mapping.
    """
    metadata = getattr(model.Config, "metadata", None) or {}
    if not isinstance(metadata, Mapping):
        raise DeclarationError(f"Config of {model.__name__} has metadata that is no dict")
    return metadata


def suggest_name(name: object, names: Collection[str]) -> str:
    """A question for the name that is meant, and all names that there are."""
    close = get_close_matches(str(name), names, n=1)
    question = f"; did you mean {close[0]!r}?" if close else "."
    return f"{question} There are {', '.join(names)}"


def wrong_model(model: type[pa.DataFrameModel]) -> list[str]:
    """What makes a model none of a table or a line, one sentence each."""
    try:
        schema = model.to_schema()
    except (SchemaInitError, AttributeError, TypeError, ValueError, KeyError) as error:
        config = vars(getattr(model, "Config", object))
        unknown = [
            name for name in config if not name.startswith("_") and name not in _CONFIG_OPTIONS
        ]
        if unknown:
            return [
                f"Config of {model.__name__} has {unknown[0]!r}{suggest_name(unknown[0], _CONFIG_OPTIONS)}"
            ]
        return [f"{model.__name__} is no model: {str(error).partition(chr(10))[0]}"]
    columns: Mapping[str, Any] = schema.columns
    if not columns:
        return [f"{model.__name__} has no columns"]
    if wrong := [*_wrong_types(columns)]:
        return wrong
    return [*_wrong_options(schema, columns), *_wrong_columns(columns), *wrong_checks(columns)]


def _wrong_types(columns: Mapping[str, Any]) -> Iterator[str]:
    lower_names = [name.lower() for name in columns]
    for name, column in columns.items():
        kind = getattr(column.dtype, "type", None)
        if not isinstance(kind, T.DataType):
            yield f"{name} has no type of Spark's: annotate it as {name}: T.StringType"
        if lower_names.count(name.lower()) > 1:
            yield f"{name} is there twice, as Spark does not tell upper from lower case"


def _wrong_options(schema: Any, columns: Mapping[str, Any]) -> Iterator[str]:
    """What pandera has for a frame, and nothing here looks at."""
    for check in schema.checks:
        yield (
            f"the model has the check {check.name or check} of a frame, which no run would look "
            'at: write it as one of "rules" in the metadata, or as forbids(...)'
        )
    if schema.coerce:
        yield "Config has coerce, and no value is cast: cast it in the function, and leave that out"
    for name, column in columns.items():
        for option, other in (("coerce", False), ("regex", False), ("required", True)):
            if getattr(column, option, other) != other:
                yield (
                    f"{name} has {option}={not other}: a table has each of its columns, by its "
                    "name and in its type. Leave that out"
                )


def _wrong_columns(columns: Mapping[str, Any]) -> Iterator[str]:
    for name, column in columns.items():
        for option in column.metadata or {}:
            close = get_close_matches(str(option), _COLUMN_OPTIONS, cutoff=_TYPO_CUTOFF)
            if option not in _COLUMN_OPTIONS and close:
                yield f"the metadata of {name} has {option!r}; did you mean {close[0]!r}?"
        if column.nullable:
            bounds = nullable_bounds(column)
            if not (
                is_share(bounds.warn) and is_share(bounds.error) and bounds.warn <= bounds.error
            ):
                yield (
                    f"{name} may be null in shares of {bounds.warn} with a warning and of "
                    f"{bounds.error} at most: give shares from 0 to 1, the warning's no larger"
                )


def key_of(model: type[pa.DataFrameModel], metadata: Mapping[str, Any]) -> Sequence[str]:
    """The columns that are unique within a day: `key`, or pandera's own `Config.unique`."""
    unique = model.to_schema().unique
    unique_columns = [unique] if isinstance(unique, str) else [*(unique or ())]
    return metadata.get("key") or unique_columns


def wrong_metadata(model: type[pa.DataFrameModel], metadata: Mapping[str, Any]) -> list[str]:
    """What the metadata of a table's model says wrongly, one sentence each."""
    return [*_wrong_names(metadata)] or [
        *_wrong_keys(model, metadata),
        *_wrong_rules(metadata),
        *_wrong_shares(metadata),
    ]


def _wrong_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    for name, value in metadata.items():
        if name not in _METADATA:
            yield f'the model\'s metadata has "{name}"{suggest_name(name, _METADATA)}'
            continue
        types, allowed = _METADATA[name]
        if not isinstance(value, types):
            yield f'the model\'s metadata has "{name}": {value!r}; give {allowed}'


def _wrong_keys(model: type[pa.DataFrameModel], metadata: Mapping[str, Any]) -> Iterator[str]:
    columns = [*model.to_schema().columns]
    key, unique = [*metadata.get("key", ())], [*key_of(model, {})]
    for name, names in (("key", key), ("Config.unique", unique)):
        for column in names:
            if column not in columns:
                yield f'"{name}" has {column!r}, which is no column{suggest_name(column, columns)}'
    totals = [*metadata.get("totals", ())]
    for name, names in (("key", key), ("totals", totals)):
        if repeated := [column for column in names if names.count(column) > 1]:
            yield f'"{name}" has {repeated[0]!r} more than once'
    if key and unique and {*key} != {*unique}:
        yield f'"key" is {key} and Config.unique is {unique}: leave one of them out'


def _wrong_rules(metadata: Mapping[str, Any]) -> Iterator[str]:
    for name, rule in metadata.get("rules", {}).items():
        if isinstance(rule, str) or not _is_texts(rule) or len(rule) != _RULE_LENGTH:
            yield (
                f'"rules" has {name!r}: {rule!r}; give a condition in SQL and a description, as '
                "('paid <= due', 'No more than due.')"
            )
    for kind, condition in metadata.get("counts", {}).items():
        if not _is_texts([kind, condition]):
            yield f'"counts" has {kind!r}: {condition!r}; give a condition in SQL'


def _wrong_shares(metadata: Mapping[str, Any]) -> Iterator[str]:
    for name in ("drift", "skew"):
        for column, share in metadata.get(name, {}).items():
            if type(share) not in (int, float):
                yield f'"{name}" has {column!r}: {share!r}; give a number'


def wrong_line_metadata(metadata: Mapping[str, Any]) -> list[str]:
    """What the metadata of a source's model of lines says wrongly, one sentence each."""
    return [
        f'the metadata of its lines has "{name}"{suggest_name(name, ["skew"])}; the key, the times and '
        "the amount are arguments of Source"
        for name in metadata
        if name != "skew"
    ]


def _is_texts(values: Any) -> bool:
    return isinstance(values, Sequence) and all(isinstance(value, str) for value in values)
