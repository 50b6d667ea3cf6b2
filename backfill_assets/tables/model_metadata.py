"""The options of a table in a pandera model's `Config.metadata`, and their validation.

`counts` names kinds of rows, each with a condition in SQL:
`{"counts": {"open labels": "label_state = 'open'"}}`.

`skew` names columns, each with a share of a day's rows. A plan reports a column if one key, or
null, has a larger share: `{"skew": {"customer_id": 0.2}}`. For a source, the model of its lines
names the columns, and its staging is watched.

`drift` names columns, each with the largest population stability index without a warning; a day
beyond it is published with a warning: `{"drift": {"revenue_30d": 0.25}}`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.errors import SchemaInitError

from backfill_assets.tables.arguments import DeclarationError, is_share
from backfill_assets.tables.columns import nullable_bounds, wrong_checks

#: By option in the metadata of a table's model: the type of its value, and its description.
_METADATA: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "partition": (object, "the DATE column of the day"),  # `wrong_partition` checks it
    "key": ((list, tuple), 'a list of columns, as ["customer_id"]'),
    "totals": ((list, tuple), 'a list of columns, as ["amount"]'),
    "rules": (Mapping, "conditions by name, as {'paid': ('paid <= due', 'No more than due.')}"),
    "drift": (Mapping, "bounds by column, as {'revenue': 0.25}"),
    "skew": (Mapping, "shares by column, as {'customer_id': 0.2}"),
    "counts": (Mapping, "conditions by kind of rows, as {'open': \"state = 'open'\"}"),
    "notices": (Mapping, "descriptions by check"),
    "merge": (bool, "true or false"),
    "schema_version": (object, "a whole number"),  # `columns.wrong_schema` checks it
}
#: The options in the metadata of a column, see `columns`. Other names are the user's own.
_COLUMN_OPTIONS = ("null_warn", "null_error", "renamed_from", "gap", "json")
#: A user's own name that is at least this similar to an option is reported as a typo.
_TYPO_CUTOFF = 0.85
#: The length of a rule: a condition and a description.
_RULE_LENGTH = 2
_CONFIG_OPTIONS = ("metadata", "strict", "name", "title", "description", "unique", "ordered")


def is_model(value: object) -> bool:
    """Whether a value is a pandera model for Spark."""
    return isinstance(value, type) and issubclass(value, pa.DataFrameModel)


def metadata_of(model: type[pa.DataFrameModel]) -> Mapping[str, Any]:
    """The metadata of a model; empty if it has none.

    Raises:
        DeclarationError: it is not a mapping.
    """
    metadata = getattr(model.Config, "metadata", None) or {}
    if not isinstance(metadata, Mapping):
        raise DeclarationError(f"Config of {model.__name__} has metadata that is no dict")
    return metadata


def suggest_name(name: object, names: Collection[str]) -> str:
    """The end of a message: a similar name as a question, and all names."""
    close = get_close_matches(str(name), names, n=1)
    question = f"; did you mean {close[0]!r}?" if close else "."
    return f"{question} There are {', '.join(names)}"


def wrong_model(model: type[pa.DataFrameModel]) -> list[str]:
    """Why a model cannot be that of a table or a line, one sentence each."""
    try:
        schema = model.to_schema()
    except (SchemaInitError, AttributeError, TypeError, ValueError, KeyError) as error:
        config = vars(getattr(model, "Config", object))
        unknown = [
            name for name in config if not name.startswith("_") and name not in _CONFIG_OPTIONS
        ]
        if unknown:
            return [
                f"Config of {model.__name__} has "
                f"{unknown[0]!r}{suggest_name(unknown[0], _CONFIG_OPTIONS)}"
            ]
        return [f"{model.__name__} is no model: {str(error).partition(chr(10))[0]}"]
    columns: Mapping[str, Any] = schema.columns
    if not columns:
        return [f"{model.__name__} has no columns"]
    if wrong := [*_wrong_types(columns)]:
        return wrong
    struct = T.StructType([T.StructField(name, c.dtype.type) for name, c in columns.items()])
    if wrong := wrong_column_names(struct):
        return wrong
    return [*_wrong_options(schema, columns), *_wrong_columns(columns), *wrong_checks(columns)]


#: Characters that Delta refuses in a name, besides those that are not printed.
_NOT_IN_NAMES = frozenset(" ,;{}()=")


def wrong_column_names(columns: T.StructType) -> list[str]:
    """Why columns, or fields within them, cannot have their names, one sentence each."""
    own = [(column.name, column.name, _NOT_IN_NAMES | {".", "`"}) for column in columns]
    nested = [
        (f"{column.name}.{name}", name, _NOT_IN_NAMES)
        for column in columns
        for name in _nested_names(column.dataType)
    ]
    return [*filter(None, (_wrong_name(*names) for names in [*own, *nested]))]


def _nested_names(kind: T.DataType) -> Iterator[str]:
    """The names of the fields within a type."""
    for nested in (getattr(kind, part, None) for part in ("elementType", "keyType", "valueType")):
        if nested:
            yield from _nested_names(nested)
    if isinstance(kind, T.StructType):
        for field in kind:
            yield field.name
            yield from _nested_names(field.dataType)


def _wrong_name(shown: str, name: str, not_allowed: Collection[str]) -> str:
    """Why a column cannot have a name, in a sentence; empty if it can."""
    wrong = [char for char in name if char in not_allowed or not char.isprintable()]
    if name and not wrong:
        return ""
    reason = f"{wrong[0]!r} in a name is nothing that Delta and Spark both take" if name else ""
    return f"a column cannot be named {shown!r}: {reason or 'give it a name'}"


#: The types of values, as Spark names them, that tables are written, compared and exported with.
#: For others, such as timestamp_ntz, a table would need features of Delta that commits do not have.
_VALUE_KINDS = (
    *("string", "binary", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("decimal", "date", "timestamp"),
)


def _value_types(kind: T.DataType) -> Iterator[T.DataType]:
    """The types of the values that a value consists of: of an array, map or struct, its parts'."""
    match kind:
        case T.ArrayType():
            yield from _value_types(kind.elementType)
        case T.MapType():
            yield from _value_types(kind.keyType)
            yield from _value_types(kind.valueType)
        case T.StructType():
            for field in kind:
                yield from _value_types(field.dataType)
        case _:
            yield kind


def _is_value_type(kind: T.DataType) -> bool:
    """Whether tables have values of a type: no intervals, no texts with a collation."""
    return kind.simpleString().partition("(")[0] in _VALUE_KINDS


def contains_floats(kind: T.DataType) -> bool:
    """Whether a type contains floating-point numbers, whose sums depend on the row order."""
    return any(isinstance(value, T.FloatType | T.DoubleType) for value in _value_types(kind))


def _contains_maps(kind: T.DataType) -> bool:
    """Whether a type contains maps, which Spark neither compares nor groups by."""
    return "map<" in kind.simpleString()


def _wrong_types(columns: Mapping[str, Any]) -> Iterator[str]:
    """Yield columns whose type no table has, and names that differ only in case."""
    lower_names = [name.lower() for name in columns]
    for name, column in columns.items():
        kind = getattr(column.dtype, "type", None)
        if not isinstance(kind, T.DataType):
            yield f"{name} has no type of Spark's: annotate it as {name}: T.StringType"
        elif wrong := [x.simpleString() for x in _value_types(kind) if not _is_value_type(x)]:
            yield (
                f"{name} is {kind.simpleString()}, and no table has values of {wrong[0]}: take one "
                f"of {', '.join(_VALUE_KINDS)}, or arrays, maps and structs of them"
            )
        if lower_names.count(name.lower()) > 1:
            yield f"{name} is there twice, as Spark does not tell upper from lower case"


def _wrong_options(schema: Any, columns: Mapping[str, Any]) -> Iterator[str]:
    """The options of pandera that have no effect here, one sentence each."""
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
    """Yield misspelled options and impossible null bounds of columns, one sentence each."""
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
    """The errors in the metadata of a table's model, one sentence each."""
    return [*_wrong_names(metadata)] or [
        *_wrong_keys(model, metadata),
        *_wrong_rules(metadata),
        *_wrong_shares(metadata),
    ]


def _wrong_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield unknown metadata options and options of a wrong type, one sentence each."""
    for name, value in metadata.items():
        if name not in _METADATA:
            yield f'the model\'s metadata has "{name}"{suggest_name(name, _METADATA)}'
            continue
        types, allowed = _METADATA[name]
        if not isinstance(value, types):
            yield f'the model\'s metadata has "{name}": {value!r}; give {allowed}'


def _wrong_keys(model: type[pa.DataFrameModel], metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors in `key`, `totals`, `merge` and `Config.unique`, one sentence each."""
    columns = model.to_schema().columns
    kinds = {name: column.dtype.type for name, column in columns.items()}
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
    for column in dict.fromkeys((*key, *unique)):
        if column in kinds and (contains_floats(kinds[column]) or _contains_maps(kinds[column])):
            yield (
                f"{column} is {kinds[column].simpleString()}, and part of the key: floating-point "
                "numbers that are computed anew may differ in the last digit, and maps have no "
                "order. Take a DECIMAL, or a text"
            )
    maps = [name for name, kind in kinds.items() if _contains_maps(kind)]
    if maps and metadata.get("merge"):
        yield (
            f'"merge" of rows with the map {maps[0]}: Spark does not tell whether two maps are '
            'equal. Leave "merge" out, or make it an array of structs'
        )


def _wrong_rules(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors in `rules` and `counts`, one sentence each."""
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
    """The errors in the metadata of a source's model of lines, one sentence each."""
    return [
        f'the metadata of its lines has "{name}"{suggest_name(name, ["skew"])}; the key, the times '
        "and the amount are arguments of Source"
        for name in metadata
        if name != "skew"
    ]


def _is_texts(values: Any) -> bool:
    return isinstance(values, Sequence) and all(isinstance(value, str) for value in values)


#: Why a table has one partition column, the day; and where other columns belong.
WHOLE_DAYS = (
    "A run publishes whole days: one commit replaces a day of a table, for all regions, shops and "
    "hours of it. Partition it by day alone, and put the others into the model's key"
)


def wrong_partition(model: type[pa.DataFrameModel], metadata: Mapping[str, Any]) -> list[str]:
    """Why a table cannot be partitioned as its model says; at most one sentence."""
    partition = metadata.get("partition")
    if not isinstance(partition, str):
        return [
            f'the model\'s metadata has "partition": {partition!r}, not one column. {WHOLE_DAYS}'
        ]
    column = model.to_schema().columns.get(partition)
    if column is None:
        return [f'the model has no column {partition}, which its metadata has as "partition"']
    if not isinstance(column.dtype.type, T.DateType):
        kind = column.dtype.type.simpleString()
        return [f"the partition column {partition} is a {kind}, not a date. {WHOLE_DAYS}"]
    if not (partition.isidentifier() and partition.isascii()):
        return [
            f"the partition column is named {partition!r}: folders have its name, so give it "
            "ASCII letters, digits and _"
        ]
    return []


class ModelledTable(Protocol):
    """The part of `table.Table` that is needed to check the options of a model."""

    @property
    def struct_type(self) -> T.StructType:
        """The Spark type of the columns."""

    @property
    def skew(self) -> Mapping[str, float]:
        """By column, the share of a day's rows beyond which a plan reports skew."""

    @property
    def drift(self) -> Mapping[str, float]:
        """By column, the population stability index beyond which a day has a warning."""


#: The option in the metadata of a model.
SKEW = "skew"


def most_rows_figure(column: str) -> str:
    """The name of a day's figure for the rows of the most frequent value of a column."""
    return f"most rows of one {column}"


def wrong_skews(table: ModelledTable) -> list[str]:
    """Why columns cannot be watched for skew, one sentence each."""
    types = {column.name: column.dataType for column in table.struct_type}
    problems = []
    for name, share in table.skew.items():
        if not isinstance(types.get(name), T.AtomicType):
            problems.append(f"skew of {name}, which is no column of it that can be a key")
        elif not 0 < share < 1:
            problems.append(f"skew of {name} beyond {share}, which is no share between 0 and 1")
    return problems


#: The option in the metadata of a model, and the name of the asset check.
DRIFT = "drift"


def notices_of(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """The notices of a model's metadata, and the check of drift, with their descriptions."""
    notices: Mapping[str, str] = metadata.get("notices", {})
    if columns := metadata.get(DRIFT):
        text = "is distributed as in the version before, or as on the day before"
        return {**notices, DRIFT: f"{', '.join(columns)} {text}."}
    return notices


def wrong_drifts(table: ModelledTable) -> list[str]:
    """Why columns cannot be watched for drift, one sentence each."""
    types = {column.name: column.dataType for column in table.struct_type}
    return [
        f"drift of {name}, which is no number and no boolean column of it"
        for name in table.drift
        if not isinstance(types.get(name), T.NumericType | T.BooleanType)
    ]


#: The most digits of a column that is summed: a sum of up to ten billion rows has ten more, and a
#: DECIMAL of Spark has 38.
_MOST_SUMMED_DIGITS = 28


def wrong_totals(columns: Mapping[str, Any], totals: Sequence[str]) -> list[str]:
    """Why columns cannot be totals, one sentence each.

    The sum of floating-point numbers depends on the order of the rows: the same day computed twice
    would have two totals.
    """
    kinds = {name: column.dtype.type for name, column in columns.items()}
    return [
        f"{name} is one of the totals and {problem}"
        for name in totals
        if (problem := wrong_sum(kinds.get(name)))
    ]


def wrong_sum(kind: T.DataType | None) -> str:
    """Why a column of a type, or of none, cannot be summed; empty if it can."""
    if kind is None:
        return "no column"
    if not isinstance(kind, T.DecimalType | T.IntegralType):
        return (
            f"has the type {kind.simpleString()}, whose sum depends on the order of the rows: make "
            "it a DECIMAL, such as decimal(18,2), or a whole number"
        )
    if isinstance(kind, T.DecimalType) and kind.precision > _MOST_SUMMED_DIGITS:
        return (
            f"has the type {kind.simpleString()}, whose sum may have more than 38 digits: give it "
            f"at most {_MOST_SUMMED_DIGITS}, as decimal({_MOST_SUMMED_DIGITS},{kind.scale})"
        )
    return ""
