"""The options of a table, and their validation together with its pandera model."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeGuard, TypeVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.errors import SchemaInitError

from backfill_assets.calendar.late_data import ArrivalDays
from backfill_assets.tables import arguments
from backfill_assets.tables.columns import Rule, nullable_bounds, wrong_checks

P = ParamSpec("P")
R = TypeVar("R")

#: The options in the metadata of a column, see `columns`. Other names are the user's own.
_COLUMN_OPTIONS = ("null_warn", "null_error", "renamed_from", "gap", "json")
#: A user's own name that is at least this similar to an option is reported as a typo.
_TYPO_CUTOFF = 0.85
#: The length of a rule: a condition and a description.
_RULE_LENGTH = 2
_CONFIG_OPTIONS = ("metadata", "strict", "name", "title", "description", "unique", "ordered")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a declaration says of a table besides its model; `table` has them as arguments.

    Attributes:
        partition: name of the DATE column that the table is partitioned by.
        key: columns that are unique within a partition; empty if there is no natural key.
        totals: numeric columns whose daily sums are part of the audit.
        rules: conditions on each row over several columns, by name.
        notices: further checks of a day against its inputs, with their descriptions; they block a
            day only if their finding is an error.
        counts: by kind of rows, the SQL condition that they meet; each day's are counted.
        drift: by column, the population stability index beyond which a day has a warning.
        skew: by column, the share of a day's rows (0 to 1) beyond which a plan reports skew.
        merge: whether a run may merge its rows instead of replacing the days.
        schema_version: the version of the model's columns.
    """

    partition: str
    key: Sequence[str] = ()
    totals: Sequence[str] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    notices: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    skew: Mapping[str, float] = field(default_factory=dict)
    merge: bool = False
    schema_version: int = 1


OPTION_NAMES = tuple(option.name for option in fields(TableOptions))


def is_model(value: object) -> TypeGuard[type[pa.DataFrameModel]]:
    """Whether a value is a pandera model for Spark."""
    return isinstance(value, type) and issubclass(value, pa.DataFrameModel)


#: The rule of an argument that is a pandera model.
MODEL_RULE = (is_model, "a class of pandera.pyspark.DataFrameModel")
#: The rules of arguments that say from when on, and on which days, others deliver.
DELIVERY_RULES: arguments.Rules = {
    "start": (arguments.none_or(arguments.is_date), "a date, as date(2025, 3, 20)"),
    "arrives_on": (
        ArrivalDays.can_parse,
        'weekdays, as "mon-sat" or ["mon", "thu"], a set of dates, or a function from a date to '
        "True or False",
    ),
}


def model_argument(model: object) -> arguments.Argument:
    """The argument of a declaration that is a pandera model."""
    return arguments.Argument("model", model, *MODEL_RULE)


def takes_options(call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the names of the arguments, and the model, of a function that declares.

    Args:
        call: how a project writes the function, as `@table`.
    """

    def add_check(declare: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(declare)
        before_model = "" if "other" not in signature.parameters else "..., model="

        @wraps(declare)
        def check_call(*values: P.args, **named: P.kwargs) -> R:
            for name in named:
                if name not in signature.parameters:
                    names = suggest_name(name, signature.parameters)
                    raise arguments.DeclarationError(f"{call} has no argument {name!r}{names}")
            model = signature.bind_partial(*values, **named).arguments.get("model")
            if model is not None:
                arguments.check_arguments(call, [model_argument(model)])
                refuse_metadata(model, f"{call}({before_model}{model.__name__}", OPTION_NAMES)
            return declare(*values, **named)

        return check_call

    return add_check


def refuse_metadata(
    model: type[pa.DataFrameModel], call: str, accepted_names: Collection[str]
) -> None:
    """Raise if the `Config.metadata` of a model has options of a table, which are arguments.

    Args:
        model: the model.
        call: the call that takes them, up to the model, as `@table(DailyVisits`.
        accepted_names: the options that it takes. Other names are the user's own.
    """
    metadata = getattr(model.Config, "metadata", None)
    found = {n: v for n, v in (metadata or {}).items() if n in OPTION_NAMES}
    if not found:
        return
    if isinstance(rules := found.get("rules"), Mapping):
        found["rules"] = {n: (*r,) if isinstance(r, tuple) else r for n, r in rules.items()}
    options = [f"{name}={value!r}" for name, value in found.items() if name in accepted_names]
    raise arguments.DeclarationError(
        f"Config.metadata of {model.__name__} has {', '.join(map(repr, found))}, and an option of "
        f"a table is an argument of its declaration: write {', '.join([call, *options])}), and "
        "take it out of the model"
    )


def suggest_name(name: object, names: Collection[str]) -> str:
    """The end of a message: a similar name as a question, and all names."""
    close = get_close_matches(str(name), names, n=1)
    question = f"; did you mean {close[0]!r}?" if close else "."
    return f"{question} There are {', '.join(names)}"


def unique_columns(model: type[pa.DataFrameModel]) -> Sequence[str]:
    """The columns of pandera's own `Config.unique`."""
    unique = getattr(model.Config, "unique", None) or ()
    return [unique] if isinstance(unique, str) else [*unique]


def declared_key(
    name: str, model: type[pa.DataFrameModel], key: Sequence[str] | None
) -> Sequence[str]:
    """The key of a declaration; warn if it has none and does not say so."""
    if key is None and not unique_columns(model):
        arguments.warn_declaration(
            f"{name} has no key: no check finds rows that are there twice, and a diff or a merge "
            'cannot tell which rows of a day belong together. Give its columns, as key=["page"], '
            "or key=[] if its rows have none"
        )
    return () if key is None else key


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
            "at: write it as one of rules={...}, or as forbids_rows(...)"
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
                arguments.is_share(bounds.warn)
                and arguments.is_share(bounds.error)
                and bounds.warn <= bounds.error
            ):
                yield (
                    f"{name} may be null in shares of {bounds.warn} with a warning and of "
                    f"{bounds.error} at most: give shares from 0 to 1, the warning's no larger"
                )


#: Why a table has one partition column, the day; and where other columns belong.
WHOLE_DAYS = (
    "A run publishes whole days: one commit replaces a day of a table, for all regions, shops and "
    "hours of it. Partition it by day alone, and put the others into the key"
)


def _is_rule(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == _RULE_LENGTH
        and all(isinstance(text, str) for text in value)
    )


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) and arguments.sequence_of(arguments.is_text)(value)


#: By option that has values by name: what a value must be, its description, and an example.
_BY_NAME: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "rules": (
        _is_rule,
        "a condition in SQL and a description",
        "{'paid': ('paid <= due', 'No more than due.')}",
    ),
    "notices": (arguments.is_text, "a description", "{'silence': 'Something came.'}"),
    "counts": (arguments.is_text, "a condition in SQL", "{'open': \"state = 'open'\"}"),
    "drift": (_is_number, "a number", "{'revenue': 0.25}"),
    "skew": (
        lambda value: arguments.is_share(value) and 0 < value < 1,
        "a share between 0 and 1",
        "{'customer_id': 0.2}",
    ),
}


def option_arguments(options: TableOptions) -> Iterator[arguments.Argument]:
    """Yield the options with the types that they must have."""
    partition = 'the column of the day, or ("run_date", "region") with that of a second dimension'
    yield arguments.Argument("partition", options.partition, arguments.is_text, partition)
    for name, example in (("key", '["customer_id"]'), ("totals", '["amount"]')):
        yield arguments.Argument(
            name, getattr(options, name), _is_list, f"a list of columns, as {example}"
        )
    for name, (fits, allowed, example) in _BY_NAME.items():
        values = getattr(options, name)
        is_by_name = arguments.mapping_of(lambda _: True)
        yield arguments.Argument(name, values, is_by_name, f"{allowed} by name, as {example}")
        for key, value in values.items() if is_by_name(values) else ():
            yield arguments.Argument(
                f"{name} of {key!r}", value, fits, f"{allowed}, as in {example}"
            )
    yield arguments.Argument("merge", options.merge, arguments.is_bool, "True or False")
    yield arguments.Argument(
        "schema_version",
        options.schema_version,
        lambda value: arguments.is_whole_number(value, 1),
        "a whole number of 1 or more",
    )


def wrong_options(model: type[pa.DataFrameModel], options: TableOptions) -> list[str]:
    """Why a table with the columns of a model cannot have its options, one sentence each."""
    columns = dict(model.to_schema().columns)
    kinds = {name: column.dtype.type for name, column in columns.items()}
    return [
        *_wrong_partition(options.partition, kinds),
        *_wrong_keys(model, kinds, options),
        *_wrong_totals(kinds, options.totals),
        *(
            f"drift of {name}, which is no number and no boolean column of it"
            for name in options.drift
            if not isinstance(kinds.get(name), T.NumericType | T.BooleanType)
        ),
        *(
            f"skew of {name}, which is no column of it that can be a key"
            for name in options.skew
            if not isinstance(kinds.get(name), T.AtomicType)
        ),
    ]


def _wrong_partition(partition: str, kinds: Mapping[str, T.DataType]) -> Iterator[str]:
    """Why a table cannot be partitioned by a column; at most one sentence."""
    kind = kinds.get(partition)
    if kind is None:
        yield f"partition is {partition!r}, which is no column{suggest_name(partition, kinds)}"
    elif not isinstance(kind, T.DateType):
        yield (
            f"the partition column {partition} is a {kind.simpleString()}, not a date. {WHOLE_DAYS}"
        )
    elif not (partition.isidentifier() and partition.isascii()):
        yield (
            f"the partition column is named {partition!r}: folders have its name, so give it "
            "ASCII letters, digits and _"
        )


def _wrong_keys(
    model: type[pa.DataFrameModel], kinds: Mapping[str, T.DataType], options: TableOptions
) -> Iterator[str]:
    """Yield errors in `key`, `totals`, `merge` and `Config.unique`, one sentence each."""
    key, unique = [*options.key], unique_columns(model)
    for name, names in (("key", key), ("Config.unique", unique)):
        for column in names:
            if column not in kinds:
                yield f"{name} has {column!r}, which is no column{suggest_name(column, kinds)}"
    for name, names in (("key", key), ("totals", options.totals)):
        if repeated := [column for column in names if names.count(column) > 1]:
            yield f"{name} has {repeated[0]!r} more than once"
    if key and unique and {*key} != {*unique}:
        yield f"key is {key} and Config.unique is {unique}: leave one of them out"
    for column in dict.fromkeys((*key, *unique)):
        if column in kinds and (contains_floats(kinds[column]) or _contains_maps(kinds[column])):
            yield (
                f"{column} is {kinds[column].simpleString()}, and part of the key: floating-point "
                "numbers that are computed anew may differ in the last digit, and maps have no "
                "order. Take a DECIMAL, or a text"
            )
    maps = [name for name, kind in kinds.items() if _contains_maps(kind)]
    if maps and options.merge:
        yield (
            f"merge of rows with the map {maps[0]}: Spark does not tell whether two maps are "
            "equal. Leave merge out, or make it an array of structs"
        )


#: The name of the asset check.
DRIFT = "drift"


def most_rows_figure(column: str) -> str:
    """The name of a day's figure for the rows of the most frequent value of a column."""
    return f"most rows of one {column}"


def with_drift(notices: Mapping[str, str], drift: Collection[str]) -> Mapping[str, str]:
    """Notices, and the check of drift if there is one, with their descriptions."""
    text = "is distributed as in the version before, or as on the day before"
    others = {name: described for name, described in notices.items() if name != DRIFT}
    return {**others, DRIFT: f"{', '.join(drift)} {text}."} if drift else others


#: The most digits of a column that is summed: a sum of up to ten billion rows has ten more, and a
#: DECIMAL of Spark has 38.
_MOST_SUMMED_DIGITS = 28


def _wrong_totals(kinds: Mapping[str, T.DataType], totals: Sequence[str]) -> Iterator[str]:
    """Yield why columns cannot be totals, one sentence each.

    The sum of floating-point numbers depends on the order of the rows: the same day computed twice
    would have two totals.
    """
    for name in totals:
        if problem := wrong_sum(kinds.get(name)):
            yield f"{name} is one of the totals and {problem}"


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
