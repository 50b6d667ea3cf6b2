"""`table` and `version_of`: declare a table by a function whose parameters are its inputs."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import pandera.pyspark as pa
import pyspark.sql.types as T

from backfill_assets.calendar.partitions import Grain
from backfill_assets.calendar.reach import (
    PREVIOUS_DAY,
    SAME_DAY,
    GrainReach,
    PartitionsReach,
    Reach,
)
from backfill_assets.tables import arguments, table_options
from backfill_assets.tables.columns import Forbidden, holds_json
from backfill_assets.tables.derived import (
    FIRST_FOR_DAY,
    FOR_DAY,
    LAST_FOR_DAY,
    SELF,
    Conserved,
    Derived,
    PublishedDays,
    Reads,
    Transform,
)
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import Lineage, Table
from backfill_assets.tables.unpartitioned import Lookup, LookupAnswers, Unpartitioned

#: The annotations that a parameter may have, in the order of `FunctionInputs`.
_ANNOTATIONS = (Reads, Unpartitioned, PublishedDays, LookupAnswers)


class FunctionInputs(NamedTuple):
    """The inputs of a function by parameter, grouped by kind."""

    reads: dict[str, Reads]
    unpartitioned: dict[str, Unpartitioned]
    published: dict[str, PublishedDays]
    answers: dict[str, LookupAnswers]

    @property
    def request_modules(self) -> list[str]:
        """The modules of the functions that build the requests to lookups."""
        return [answers.of.__module__ for answers in self.answers.values()]


def inputs_of(function: Transform) -> FunctionInputs:
    """The inputs of a function, from its parameters' annotations."""
    try:
        hints: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise arguments.DeclarationError(
            f"{function.__name__}: the annotation of a parameter is none: {error}"
        ) from error
    function_inputs = FunctionInputs({}, {}, {}, {})
    reads, unpartitioned, published, answers = function_inputs
    by_kind: dict[type, dict[str, Any]] = dict(zip(_ANNOTATIONS, function_inputs, strict=True))
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        annotations = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        inputs = [annotation for annotation in annotations if isinstance(annotation, _ANNOTATIONS)]
        if len(inputs) != 1:
            raise arguments.DeclarationError(
                f"{function.__name__}: annotate {parameter} as Annotated[DataFrame, Reads(TABLE)]"
            )
        arguments.check_arguments(f"{function.__name__}: {parameter}", _input_arguments(inputs[0]))
        by_kind[type(inputs[0])][parameter] = inputs[0]
    with_days = [read.table.name for read in reads.values()]
    names = [
        *with_days,
        *(read.name for read in unpartitioned.values()),
        *(answer.lookup.name for answer in answers.values()),
    ]
    if {*with_days} <= {SELF.name} or len(set(names)) < len(names):
        raise arguments.DeclarationError(
            f"{function.__name__}: it needs inputs with days besides itself, each table once: "
            f"{names}"
        )
    if SELF.name in with_days:
        _check_state(function.__name__, reads)
    _check_days(function.__name__, reads, published)
    return function_inputs


def _input_arguments(annotation: Any) -> list[arguments.Argument]:
    """Return the arguments of a parameter's annotation, with the types that they must have."""
    if isinstance(annotation, Unpartitioned):
        return [arguments.Argument("the name", annotation.name, arguments.is_text, "a name")]
    if isinstance(annotation, LookupAnswers):
        return [
            arguments.Argument(
                "lookup", annotation.lookup, lambda value: isinstance(value, Lookup), "a Lookup"
            ),
            arguments.Argument("of", annotation.of, callable, "a function that gives the requests"),
        ]
    tables = "a table"
    if isinstance(annotation.table, Source):
        tables = f"one of its tables, as that of {annotation.table.name} is .staged"
    return [
        arguments.Argument(
            "the table of Reads",
            annotation.table,
            lambda value: value is SELF or isinstance(value, Table),
            tables,
        ),
        arguments.Argument(
            "the reach",
            annotation.reach,
            lambda value: isinstance(value, Reach),
            "SAME_DAY, last_days(7), following_days(7), days_between(-7, 30), PREVIOUS_DAY, WEEK, "
            "week_starting('sunday'), MONTH or previous_partitions(3, MONTH)",
        ),
        arguments.Argument(
            "as_known", getattr(annotation, "as_known", False), arguments.is_bool, "True or False"
        ),
        arguments.Argument(
            "each_row_once",
            getattr(annotation, "each_row_once", False),
            arguments.is_bool,
            "True or False",
        ),
    ]


def _check_state(name: str, reads: Mapping[str, Reads]) -> None:
    """Raise if a table that reads its own previous day has an input that it cannot have."""
    for parameter, read in reads.items():
        if read.table is SELF and read.reach != PREVIOUS_DAY:
            raise arguments.DeclarationError(
                f"{name}: {parameter} has days that are being made; of itself, a table reads the "
                "day before: Reads(SELF, PREVIOUS_DAY)"
            )
        if read.table is not SELF and not read.of_the_day:
            raise arguments.DeclarationError(
                f"{name}: {parameter} reaches for other days than the day itself; a table that is "
                "made of its own day before has them in its state"
            )


def _check_days(
    name: str, reads: Mapping[str, Reads], published: Mapping[str, PublishedDays]
) -> None:
    """Raise if a parameter asks for days that its table cannot provide."""
    for parameter, read in reads.items():
        log = isinstance(read.table, SourceTable) and read.table.role is Role.LOG
        if read.as_known and (not log or read.reach.after):
            raise arguments.DeclarationError(
                f"{name}: {parameter} is as it was known on a day: of the raw log of a source, "
                "and of days that end with the day itself, as last_days(n) has them"
            )
        reserved = (FOR_DAY, FIRST_FOR_DAY, LAST_FOR_DAY)
        if taken := [name for name in reserved if name in getattr(read.table, "columns", ())]:
            raise arguments.DeclarationError(
                f"{name}: {read.table.name} has a column {taken[0]}, which {parameter} has for the "
                "days that a row counts for: give it another name"
            )
        has_one_day = read.reach in (SAME_DAY, PREVIOUS_DAY)
        is_by_grain = isinstance(read.reach, GrainReach | PartitionsReach)
        if read.each_row_once and (has_one_day or is_by_grain or read.table is SELF):
            raise arguments.DeclarationError(
                f"{name}: {parameter} has each row once in any case: each_row_once is for a reach "
                "of several days, as last_days(n)"
            )
    reaches = {read.table.name: read.reach for read in reads.values()}
    for parameter, published_input in published.items():
        if (
            published_input.table is SELF
            or reaches.setdefault(published_input.table.name, published_input.reach)
            != published_input.reach
        ):
            raise arguments.DeclarationError(
                f"{name}: {parameter} tells which days of {published_input.table.name} are "
                "published: of another table, and with the reach that it is read with"
            )


#: The length of a (table, column) pair.
_PAIR = 2


@table_options.takes_options("@table")
def table(
    model: "type[pa.DataFrameModel[Any]]",
    *,
    partition: str | tuple[str, str],
    key: Sequence[str] | None = None,
    totals: Sequence[str] = (),
    rules: Mapping[str, tuple[str, str]] = {},
    notices: Mapping[str, str] = {},
    counts: Mapping[str, str] = {},
    drift: Mapping[str, float] = {},
    skew: Mapping[str, float] = {},
    merge: bool = False,
    schema_version: int = 1,
    checks: Sequence[Conserved | Forbidden] = (),
    group: str = "derived",
    frozen: bool = False,
    lineage: Mapping[str, Sequence[tuple[str, str]]] = {},
    retired: date | None = None,
    depends_on: Sequence[str | Path] = (),
) -> Callable[[Transform], Derived]:
    """Declare a table that a function computes; it has the name of the function.

    Each parameter is an input, annotated with the table and its reach::

        @table(
            CustomerSpend,
            partition="run_date",
            key=["customer_id"],
            totals=["spend"],
            checks=[conserves_total("orders", "amount", "spend")],
        )
        def customer_spend_7d(
            orders: Annotated[DataFrame, Reads(STAGED, last_days(7))],
        ) -> DataFrame:
            return orders.groupBy(F.col("for_day").alias("run_date"), "customer_id").agg(
                F.sum("amount").alias("spend")
            )

    The function gets all rows that decide the days to compute. Their column `for_day` is the day of
    the table for which a row counts. The function returns the rows of these days. It reads no
    clock and no table. An `Unpartitioned` parameter holds all rows of its table, a
    `PublishedDays` one the days that are published, and a `LookupAnswers` one the answers of a
    service.

    Args:
        model: the columns. The frame that the function returns has these, and no others.
        partition: the DATE column with the day of the table; or this and the column of a second
            dimension that its inputs have, as `("run_date", "region")`: the table then has days of
            each part, each computed from the same part of the inputs.
        key: the columns that are unique within a day. Without it, a `DeclarationWarning` says what
            is not checked; `[]` says that the rows of a day have none.
        totals: DECIMAL and whole-number columns whose sums of a day are audited and recorded.
        rules: by name, a condition in SQL that each row meets, and its meaning in a sentence:
            `{"paid": ("paid <= due", "No more than due.")}`.
        notices: by name, the description of a further asset check, whose findings warn only.
        counts: by kind of rows, the condition in SQL that they meet; a day has their numbers:
            `{"open labels": "label_state = 'open'"}`.
        drift: by column, the largest population stability index without a warning; a day beyond it
            is published with one: `{"revenue_30d": 0.25}`.
        skew: by column, a share of a day's rows (0 to 1). A plan reports the column if one key, or
            null, has a larger share: `{"customer_id": 0.2}`.
        merge: whether a run may merge its rows into the days instead of replacing them.
        schema_version: the version of the model's columns; `backfill-assets migrate` changes a
            table that has an older one.
        checks: totals that must be conserved between the inputs and a day (`conserves_total`), and
            rows that must not be in a day (`forbids_rows`).
        group: the asset group in the UI.
        frozen: whether a check reports that a final day was changed other than by a person.
        lineage: for the UI, by column of the table, the (table, column) pairs it is built from.
        retired: the first business day on which the table is no longer built, see `version_of`.
        depends_on: what decides the rows but is not visible in the imports of the module. The name
            of a module: its source counts for the code version, or, if it is installed, the
            version of its distribution. A `Path`, relative to the module's folder: a data file.

    Raises:
        DeclarationError: a parameter has no such annotation, or a name does not exist.
    """
    return partial(_declare_table, **locals())  # each argument, by its name


@table_options.takes_options("@version_of")
def version_of(
    other: Derived,
    number: int,
    *,
    model: "type[pa.DataFrameModel[Any]] | None" = None,
    partition: str | tuple[str, str] | None = None,
    key: Sequence[str] | None = None,
    totals: Sequence[str] | None = None,
    rules: Mapping[str, tuple[str, str]] | None = None,
    notices: Mapping[str, str] | None = None,
    counts: Mapping[str, str] | None = None,
    drift: Mapping[str, float] | None = None,
    skew: Mapping[str, float] | None = None,
    merge: bool | None = None,
    schema_version: int | None = None,
    checks: Sequence[Conserved | Forbidden] | None = None,
    lineage: Lineage | None = None,
    retired: date | None = None,
    depends_on: Sequence[str | Path] | None = None,
) -> Callable[[Transform], Derived]:
    """Declare another version of a table, computed by another function and named like it.

    Both are tables: each has its own days, code version and readers, and is built until it is
    retired. Arguments that are not given are those of the other version::

        @version_of(features, 2)
        def features_v2(orders: Annotated[DataFrame, Reads(...)]) -> DataFrame: ...

    Args:
        other: a version of the table.
        number: the number of the new version.
        model: the columns.
        partition: see `table`, as for all that follow.
        key: columns; if not given, and the new model has `Config.unique`, then these.
        totals: columns.
        rules: conditions and meanings by name.
        notices: descriptions by check.
        counts: conditions by kind of rows.
        drift: bounds by column.
        skew: shares by column.
        merge: whether a run may merge its rows.
        schema_version: the version of the columns.
        checks: all of them.
        lineage: by column.
        retired: the first business day on which the new version is no longer built.
        depends_on: all that counts besides its code.

    Raises:
        DeclarationError: as `table`; or the number is not above that of the other version.
    """
    parameters = dict(locals())
    arguments.check_arguments(
        "@version_of",
        [
            arguments.Argument("other", other, lambda value: isinstance(value, Derived), "a table"),
            arguments.Argument("number", number, arguments.is_whole_number, "a whole number"),
        ],
    )

    others = ("model", "group", "frozen", "lineage", "depends_on", "first")
    fields = {name: getattr(other, name) for name in (*table_options.OPTION_NAMES, *others)}
    fields |= {"checks": [*other.conserved, *other.forbidden], "retired": None}
    if model and table_options.unique_columns(model):
        fields["key"] = ()
    if other.part_column:
        fields["partition"] = (other.partition, other.part_column)
    fields |= {n: v for n, v in parameters.items() if n in fields and v is not None}

    def declare_version(function: Transform) -> Derived:
        """Declare the version that the decorated function computes."""
        if number <= other.version:
            raise arguments.DeclarationError(
                f"{function.__name__}: {other.name} is version {other.version}; give a new version "
                "a number above that"
            )
        return _declare_table(function, version=number, **fields)

    return declare_version


def _is_check(value: object) -> bool:
    return isinstance(value, Conserved | Forbidden)


def _is_group(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w+(/\w+)*", value, re.ASCII) is not None


def _is_code(value: object) -> bool:
    return arguments.is_text(value) or isinstance(value, Path)


def _is_column(value: Any) -> bool:
    return arguments.sequence_of(arguments.is_text, 2)(value) and len(value) == _PAIR


#: What the arguments of `@table` must be, besides the options of a table.
_TABLE_RULES: arguments.Rules = {
    "model": table_options.MODEL_RULE,
    "checks": (
        arguments.sequence_of(_is_check),
        "a list of conserves_total(...) and forbids_rows(...)",
    ),
    "group": (_is_group, "letters, digits and _, as Dagster has it"),
    "frozen": (arguments.is_bool, "True or False"),
    "lineage": (
        arguments.mapping_of(arguments.sequence_of(_is_column)),
        'pairs of table and column by column, as {"hits": [("visits", "clicks")]}',
    ),
    "retired": (arguments.none_or(arguments.is_date), "a date, as date(2025, 3, 20)"),
    "depends_on": (arguments.sequence_of(_is_code), "a list of names of modules and of paths"),
}


def _declare_table(
    function: Transform,
    *,
    model: type[pa.DataFrameModel],
    key: Sequence[str] | None,
    checks: Sequence[Conserved | Forbidden],
    group: str,
    frozen: bool,
    lineage: Lineage,
    retired: date | None,
    depends_on: Sequence[str | Path],
    partition: str | tuple[str, str],
    **fields: Any,
) -> Derived:
    """Check the arguments and build the table; `fields` are the other ones of `Derived`."""
    declared = arguments.arguments_by_rules(locals(), _TABLE_RULES)
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function):
        raise arguments.DeclarationError(
            f"@table stands before {arguments.describe_value(function)}: it takes a function"
        )
    if "<" in function.__qualname__ or not name.isidentifier():
        raise arguments.DeclarationError(
            f"{function.__qualname__}: a table needs a function in a module"
        )
    arguments.check_arguments(name, declared)
    inputs = inputs_of(function)
    day_column, part_column = partition, ""
    if isinstance(partition, tuple) and len(partition) == _PAIR:
        day_column, part_column = partition
    derived = Derived(
        name=name,
        partition=day_column,  # type: ignore[arg-type]  # what it must be is checked there
        part_column=part_column,
        model=model,
        key=table_options.declared_key(name, model, key),
        modules=(function.__module__, model.__module__, *inputs.request_modules),
        depends_on=tuple(_resolve_dependency(dependency, function) for dependency in depends_on),
        transform=function,
        **inputs._asdict(),
        conserved=tuple(check for check in checks if isinstance(check, Conserved)),
        forbidden=tuple(check for check in checks if isinstance(check, Forbidden)),
        group=group,
        frozen=frozen,
        lineage=lineage,
        retired=retired,
        **fields,
    )
    return _check_table(derived)


def _resolve_dependency(dependency: str | Path, function: Transform) -> str | Path:
    """A module name unchanged; a data file relative to the folder of the function's module."""
    if isinstance(dependency, str):
        return dependency
    return Path(inspect.getfile(function)).resolve().parent / dependency


def _check_table(derived: Derived) -> Derived:
    """The table itself; raise if it names a parameter, column or total that does not exist."""
    compared: set[tuple[str, str]] = set()
    for check in derived.conserved:
        if (check.parameter, check.figure) in compared:
            raise arguments.DeclarationError(
                f"{derived.name}: two checks compare {check.total or 'its rows'} with "
                f"{check.parameter}: take one out, or give one another total"
            )
        compared.add((check.parameter, check.figure))
        if check.parameter not in derived.reads:
            raise arguments.DeclarationError(
                f"{derived.name}: there is no parameter {check.parameter}"
                f"{table_options.suggest_name(check.parameter, derived.reads)}"
            )
        if check.total is not None and check.total not in derived.totals:
            raise arguments.DeclarationError(
                f"{derived.name}: {check.total} is none of the totals ({list(derived.totals)})"
            )
        source = derived.reads[check.parameter].table
        if check.column is not None and check.column not in source.columns:
            raise arguments.DeclarationError(
                f"{derived.name}: {source.name} has no column {check.column}"
                f"{table_options.suggest_name(check.column, source.columns)}"
            )
        if check.column and not _counts_items(source, check.column):
            _check_conserved_sum(derived, source, check.column, check.total)
    _check_answers(derived)
    _check_grain(derived)
    input_columns = {
        (read.table.name, column)
        for read in derived.reads.values()
        for column in read.table.columns
    }
    for column, origins in derived.lineage.items():
        if column not in derived.columns:
            raise arguments.DeclarationError(
                f"{derived.name}: lineage of {column}, which is no column of it"
            )
        whole = {reference.name for reference in derived.unpartitioned_inputs}
        for name, other in {pair for pair in origins if pair[0] not in whole} - input_columns:
            raise arguments.DeclarationError(
                f"{derived.name}: {column} cannot be made of {name}.{other}"
            )
    return derived


def _counts_items(source: Table, column: str) -> bool:
    """Whether a column of a source's table holds JSON, whose items are conserved."""
    fields = source.source.columns if isinstance(source, SourceTable) else {}
    return column in fields and holds_json(fields[column])


def _check_conserved_sum(derived: Derived, source: Table, column: str, total: str | None) -> None:
    """Raise if a column has no sum, or none that can be a number of rows."""
    kind = source.columns[column].dtype.type
    if problem := table_options.wrong_sum(kind):
        raise arguments.DeclarationError(
            f"{derived.name}: {source.name}.{column} is conserved and {problem}"
        )
    if total is None and not isinstance(kind, T.IntegralType):
        raise arguments.DeclarationError(
            f"{derived.name}: the rows of a day are to be as many as {source.name}.{column} adds "
            "up to, which is no whole number: name a total, too"
        )


def _check_answers(derived: Derived) -> None:
    """Raise if requests are built from no rows, or if the lookups need several pools."""
    rows = [*derived.inputs_by_day, *derived.unpartitioned]
    for parameter, answers in derived.answers.items():
        if not answers.parameters or not {*answers.parameters} <= {*rows}:
            raise arguments.DeclarationError(
                f"{derived.name}: the requests of {parameter} are made of {[*answers.parameters]}; "
                f"they must be parameters with rows: {rows}"
            )
        once = [
            n for n in answers.parameters if n in derived.reads and derived.reads[n].each_row_once
        ]
        if once:
            raise arguments.DeclarationError(
                f"{derived.name}: the requests of {parameter} are made of {once[0]}, which has "
                "each row once: requests are by day, leave each_row_once out"
            )
    if len({answer.lookup.pool or answer.lookup.name for answer in derived.answers.values()}) > 1:
        raise arguments.DeclarationError(
            f"{derived.name}: a step has one pool; give its lookups the same: "
            f"{[answer.lookup.name for answer in derived.answers.values()]}"
        )


def _check_grain(derived: Derived) -> None:
    """Raise if an input of a table by week or month does not cover exactly one week or month."""
    grain = derived.grain
    for parameter, read in derived.inputs_by_day.items():
        input_grain = grain if read.table is derived else read.table.grain
        if isinstance(read.reach, PartitionsReach):
            fits = read.table is not derived and read.reach.grain is grain is input_grain
        elif input_grain is grain:
            fits = grain is Grain.DAILY or read.reach == SAME_DAY
        else:
            fits = input_grain is Grain.DAILY and read.reach == GrainReach(grain=grain)
        as_known = isinstance(read, Reads) and read.as_known and grain is not Grain.DAILY
        if as_known or not fits:
            unit = {Grain.DAILY: "day", Grain.MONTHLY: "month"}.get(grain, "week")
            reach = "MONTH" if grain is Grain.MONTHLY else "WEEK"
            raise arguments.DeclarationError(
                f"{derived.name}: it is a table by {unit}, and {parameter} does not hold the rows "
                f"of a {unit}; a table by week or month reads tables by day with Reads(TABLE, "
                f"{reach}), and tables by the same week or month with Reads(TABLE) or "
                f"previous_partitions(3, {reach}). A table by day reads tables by day, and no "
                "month is made of weeks"
            )
