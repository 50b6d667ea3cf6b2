"""A source: the pandera model of its lines, and the tables that every source has.

The raw log and the rejected lines are loaded from its landing folder. From the raw log follow the
staging (each key once on its event day, in the greatest version that came in time), the late lines,
and the lateness figures.
"""

import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from typing import Any, Literal, Self

import pandera.pyspark as pa
import pyspark.sql.types as T

from backfill_assets.calendar.late_data import ArrivalDays, ArrivesOn, Policy
from backfill_assets.calendar.partitions import Dimension, name_of_part
from backfill_assets.calendar.reach import SAME_DAY, last_days
from backfill_assets.settings import Settings, is_time_zone
from backfill_assets.tables import arguments, source_models, table_options
from backfill_assets.tables.table import (
    ENTRY_PREFIX,
    Dependency,
    Equation,
    Figure,
    Inputs,
    Table,
    table_name,
)

#: The columns that this package adds to the fields of a source.
OWN_COLUMNS = ("log_date", "arrival_date", "event_date", "source_file")
#: The types that a field of a line may have; nested values are JSON text in a string.
FIELD_TYPES = (T.StringType, T.LongType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType)


class Role(enum.Enum):
    """The role of an asset in its source: one of its tables, or the page with its figures."""

    LOG = "raw log"
    REJECTED = "rejected lines"
    STAGED = "staging"
    LATE = "late lines"
    LATENESS = "figures of lateness"
    PAGE = "lateness page"


#: By role of a table, its kind; see `code_version.ROWS_VERSION`.
_KINDS = {
    Role.LOG: "raw",
    Role.REJECTED: "rejected",
    Role.STAGED: "staging",
    Role.LATE: "late",
    Role.LATENESS: "lateness",
}
#: The names of a source's assets by role, unless the source overrides them.
_NAMES = {
    Role.LOG: "raw_{}",
    Role.REJECTED: "raw_{}_rejected",
    Role.STAGED: "stg_{}",
    Role.LATE: "late_{}",
    Role.LATENESS: "{}_lateness",
    Role.PAGE: "{}_lateness_dashboard",
}


def _type_advice(kind: T.DataType) -> str:
    """How to replace a type that no field may have, to end an error message."""
    if isinstance(kind, T.FractionalType):
        return (
            ": sums of it depend on the order of the rows. Make it a DECIMAL, as "
            "T.DecimalType(18, 2)"
        )
    if isinstance(kind, T.IntegralType):
        return ": make it T.LongType"
    return ""


def _is_delimiter(value: object) -> bool:
    """Whether a character may stand between the fields of a CSV line."""
    if not (isinstance(value, str) and len(value) == 1 and value.isascii()):
        return False
    return value == "\t" or (value.isprintable() and not value.isalnum() and value not in '" ')


def _is_sign(value: object) -> bool:
    """Whether a character can be around text or before a comment: nothing begins with it else."""
    return value == '"' or (_is_delimiter(value) and value not in ("\t", "\\", "+", "-", ".", "_"))


#: The characters that group the digits of numbers somewhere in the world.
_THOUSANDS = (".", ",", "'", "\u2019", "_", " ", "\u00a0", "\u202f")


def _is_name_by_role(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(role, Role) and arguments.is_name(name) for role, name in value.items()
    )


@dataclass(frozen=True, kw_only=True)
class SourceTable(Table):
    """One of the tables that every source has; `role` says which."""

    source: "Source" = field(repr=False, compare=False)
    role: Role

    @property
    def kind(self) -> str:
        """The kind that belongs to its role."""
        return _KINDS[self.role]

    def expects_rows(self, day: date) -> bool:
        """Whether lines usually come for a day: late ones come on the next arrival day."""
        comes_later = self.role is Role.STAGED and self.source.arrives_after > 0
        return comes_later or day in self.source.arrival_days

    @property
    def page_assets(self) -> tuple[str, ...]:
        """The assets without partitions that are rebuilt with it."""
        return (self.source.page,) if self.role is Role.LATENESS else ()

    @property
    def layer_equations(self) -> list[Equation]:
        """The numbers of a day that must equal those of earlier tables of the source."""
        raw, rejected = self.source.raw.rows_figure, self.source.rejected.rows_figure

        def recorded_figure(table: Table, name: str, text: str) -> Figure:
            return Figure(table, ENTRY_PREFIX + name, text)

        if self.role is Role.LOG:
            return [
                Equation(rejected, recorded_figure(self, "rejected", "was read with {} rejected"))
            ]
        if self.role is Role.LATE:
            return [Equation(raw, recorded_figure(self, "raw", "was made of {}"))]
        if self.role is Role.LATENESS:
            late = recorded_figure(self.source.late, "late", "found {} late")
            return [
                Equation(rejected, recorded_figure(self, "rejected", "was made of {}")),
                Equation(raw, recorded_figure(self, "lines", "was made of {}")),
                Equation(late, recorded_figure(self, "beyond", "found {}")),
            ]
        return []


@dataclass(frozen=True)
class Source:
    """Lines that land in folders `<landing>/<name>/arrival_date=YYYY-MM-DD/`.

    Or in `hour=HH/` within these; the tables have a partition a day in both cases.

    A line is one version of something that has a key: an order, a visit. All versions stay in the
    raw log. On its event day each key counts once, in the greatest version that was logged within
    the reprocessing window; versions are ordered by the later one of event time and version time.

    Attributes:
        name: of the landing folder; the names of the tables end in it.
        lines: the pandera model of a line. Types: string, long, boolean, date, timestamp, decimal.
            A field that may be null is declared by `nullable_column`; a line without another one is
            rejected. Nested values are stored as JSON text in a string field.
        key: the fields that identify the thing of which a line is a version.
        event_time: the timestamp or date field with the event time; its day in the business time
            zone is the event day. A date is the event day itself, in every zone.
        version_time: the timestamp or date field with the time at which the source created this
            version; the event time if not given. Of lines with equal times, the one that was logged
            last counts. If only one of both times is a date, it counts as the moment at which that
            day begins in the business time zone.
        amount: the decimal field whose sum is audited, and compared with the sum in a control file
            of the source; None if there is none.
        start: the first day of the source; the deployment's, if not given.
        window_days: its reprocessing window; the deployment's, if not given.
        late_lines: how its late lines are treated, `correct` or `drop`; the deployment's setting,
            if not given.
        arrives_after: the usual number of days from the event day of a line to the folder that it
            arrives in, such as 1 if the file of a day comes the next day. Lateness and the
            reprocessing window are counted from then. The tables by event day are first published
            this many days later.
        arrives_after_hours: the hours after the end of a day, or of an hour of `HOURS`, after which
            its folder is complete: nothing of it is due, or missed, before then.
        arrives_on: the days on which a folder is expected, each day if not given: weekdays, as
            `"mon-sat"` or `["mon", "thu"]`; the days themselves, as a set of dates; or a function
            of a date, such as one that knows the bank holidays. Any other day is an empty one, and
            nobody waits for its folder; if one comes, it is loaded, with a warning.
        hourly: whether its files lie in folders `hour=00` to `hour=23` within those of the days.
            A day without some of them is published with a warning that names them.
        named: names of its assets by role, if they differ from those derived from `name`.
        rename: by other name in its files of any format, the field that it names, as `{"Order
            Date": "ordered_at"}`. A pandera `alias` that is no name of a column counts as one.
        delimiter: the character between the fields of its CSV files.
        quote: the character around text in its CSV files, doubled within; empty if there is none.
        header: whether its CSV files begin with the names; else they have the fields of the model,
            in its order.
        comment: the character with which lines begin that are no records of its CSV files.
        null: the texts in its CSV files that are null, besides the empty text.
        decimal: the character before the decimals of numbers in its CSV files, `.` or `,`.
        thousands: the character between the thousands of numbers in its CSV files, if any.
        encoding: of its CSV files: UTF-8, UTF-16, or one in which each byte is a character. A file
            that begins with a mark of UTF-8 or UTF-16 has that encoding.
        timezone: IANA name of the zone of times that have no offset, in files of any format.
            Timestamps of Parquet that are adjusted to UTC, and INT96, have one.
        ambiguous: what becomes of local times that the zone has twice, when clocks are set back, or
            not at all, when they are set forward: `first` and `second` take that one of two
            moments, or the one after the change, with a warning; `raise` holds the file back.
        skew: by column of the staging, the share of a day's rows (0 to 1) beyond which a plan
            reports skew, see `table`.
        dimension: a second dimension of partitions: the files of an arrival day lie in folders
            `NAME=VALUE/` within its folder, such as `region=eu/`, and each part is loaded,
            published and undone apart from the others.
        declared_in: the module that declares it; the calling module, if not given.
        part: one part of the dimension, in a graph; see `Table.part`.

    Raises:
        DeclarationError: a name is not a field, or has another type.
    """

    name: str
    lines: type[pa.DataFrameModel]
    key: Sequence[str]
    event_time: str
    version_time: str = ""
    amount: str | None = None
    start: date | None = None
    window_days: int | None = None
    late_lines: Literal["correct", "drop"] | None = None
    arrives_after: int = 0
    arrives_after_hours: int = 0
    arrives_on: ArrivesOn | None = None
    hourly: bool = False
    named: Mapping[Role, str] = field(default_factory=dict)
    delimiter: str = ","
    timezone: str = "UTC"
    ambiguous: Literal["first", "second", "raise"] = "first"
    skew: Mapping[str, float] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    quote: str = '"'
    header: bool = True
    comment: str = ""
    null: Sequence[str] = ()
    decimal: Literal[".", ","] = "."
    thousands: str = ""
    encoding: str = arguments.UTF_8
    dimension: Dimension | None = None
    declared_in: str = field(default="", compare=False)
    part: str = ""

    def __post_init__(self) -> None:
        if not self.declared_in:
            caller = sys._getframe(2).f_globals.get("__name__", "")
            object.__setattr__(self, "declared_in", caller)
        declared = arguments.arguments_by_rules(vars(self), self._declaration_rules())
        arguments.check_arguments(f"source {self.name}", declared)
        call = f"Source({self.name!r}, {self.lines.__name__}"
        table_options.refuse_metadata(self.lines, call, ["key", "skew"])
        lines, aliases = source_models.without_aliases(self.lines)
        object.__setattr__(self, "lines", lines)
        object.__setattr__(self, "rename", {**aliases, **self.rename})
        if wrong := table_options.wrong_model(self.lines):
            raise arguments.DeclarationError(f"source {self.name}: {'; '.join(wrong)}")
        object.__setattr__(self, "key", tuple(self.key))
        object.__setattr__(self, "null", tuple(self.null))
        object.__setattr__(self, "version_time", self.version_time or self.event_time)
        self._check_lines()
        self._check_files()
        self._check_renames()
        if self.dimension and not self.part:
            self._check_dimension(self.dimension.name)

    def _declaration_rules(self) -> arguments.Rules:
        """What the arguments of the declaration must be."""
        name = "the name of a field of the lines"
        lateness, days = '"correct" or "drop"', "a whole number of days"
        return {
            "name": (arguments.is_name, "letters, digits and _, as folders have them"),
            "lines": table_options.MODEL_RULE,
            "key": (arguments.sequence_of(arguments.is_text, 1), 'fields, as ["order_id"]'),
            "event_time": (arguments.is_text, name),
            "version_time": (lambda x: isinstance(x, str), name),
            "amount": (arguments.none_or(arguments.is_text), f"{name}, or leave it out"),
            "window_days": (arguments.none_or(arguments.is_whole_number), days),
            "late_lines": (lambda x: x in (None, "correct", "drop"), lateness),
            "arrives_after": (arguments.is_whole_number, days),
            "arrives_after_hours": (arguments.is_whole_number, "a whole number of hours"),
            **table_options.DELIVERY_RULES,
            "hourly": (arguments.is_bool, "True or False"),
            "named": (_is_name_by_role, 'names by role, as {Role.STAGED: "visits"}'),
            **self._file_rules(),
            "dimension": (
                arguments.none_or(lambda value: isinstance(value, Dimension)),
                'Dimension("region", ["eu", "us"])',
            ),
            "timezone": (is_time_zone, 'the IANA name of a time zone, as "Europe/Berlin"'),
            "ambiguous": (
                lambda x: x in ("first", "second", "raise"),
                '"first", "second" or "raise"',
            ),
        }

    def _file_rules(self) -> arguments.Rules:
        """What the arguments that say how files are written must be."""
        renames = 'fields by their names in the files, as {"Order Date": "ordered_at"}'
        thousands = ("", *_THOUSANDS)
        suggestion = table_options.suggest_name(self.encoding, arguments.USUAL_ENCODINGS)
        encodings = f"an encoding in which each byte is a character, or UTF-8 or UTF-16{suggestion}"
        return {
            "rename": (arguments.mapping_of(arguments.is_name), renames),
            "delimiter": (_is_delimiter, "one ASCII character, as ;"),
            "quote": (lambda x: x == "" or _is_sign(x), "one ASCII character, as '"),
            "header": (arguments.is_bool, "True or False"),
            "comment": (lambda x: x == "" or _is_sign(x), "one ASCII character: #"),
            "null": (arguments.sequence_of(arguments.is_text), 'texts, as ["NULL"]'),
            "decimal": (lambda x: x in (".", ","), '"." or ","'),
            "thousands": (lambda x: x in thousands, f"one of {thousands}"),
            "encoding": (arguments.is_encoding, encodings),
        }

    def _check_files(self) -> None:
        """Raise if two options of CSV are the same character."""
        names = ("delimiter", "thousands", "quote", "comment", "decimal")
        if problem := arguments.repeated_sign({name: getattr(self, name) for name in names}):
            raise arguments.DeclarationError(f"source {self.name}: {problem}")

    def _check_renames(self) -> None:
        """Raise if a name in the files stands for what is no field, or is one itself."""
        lower_names = [name.lower() for name in self.rename]
        own_names = {name.lower() for name in self.fields}
        for name, renamed in self.rename.items():
            problem = ""
            if renamed not in self.fields:
                suggestion = table_options.suggest_name(renamed, self.fields)
                problem = f"is to be {renamed}, which is no field{suggestion}"
            elif name.lower() in own_names:
                problem = "is the name of a field itself: leave it out"
            elif lower_names.count(name.lower()) > 1:
                problem = "is there twice, in another case: leave one out, as both are found"
            if problem:
                raise arguments.DeclarationError(f"source {self.name}: rename: {name!r} {problem}")

    def _check_dimension(self, name: str) -> None:
        """Raise if the column of the part, which all tables have, would be another column."""
        by_hour = self.dimension is not None and self.dimension.is_hours
        if self.hourly and by_hour:
            raise arguments.DeclarationError(
                f"source {self.name}: its dimension is HOURS: leave out hourly"
            )
        if by_hour and self.event_time in self.dated_times:
            raise arguments.DeclarationError(
                f"source {self.name}: its dimension is HOURS, and {self.event_time} is a date "
                "without an hour: make it a T.TimestampType"
            )
        tables = replace(self, dimension=None).tables
        if name in self.fields:
            fits = isinstance(self.types[name], T.StringType) and name not in self.may_be_null
            advice = "make that field a T.StringType that may not be null, or leave it out"
        else:
            fits = name.lower() not in {c.lower() for table in tables for c in table.columns}
            advice = "a table of this source has such a column: give another name"
        if not fits:
            raise arguments.DeclarationError(
                f"source {self.name}: its dimension is {name}: {advice}"
            )

    def _check_lines(self) -> None:
        """Raise if the lines' model lacks a field of the declaration, or has an impossible one."""

        def declaration_error(reason: str) -> arguments.DeclarationError:
            return arguments.DeclarationError(f"source {self.name}: {reason}")

        for name, kind in self.types.items():
            if name.lower() in OWN_COLUMNS or name.startswith("_") or not name.isidentifier():
                raise declaration_error(f"a field cannot be named {name}")
            if not isinstance(kind, FIELD_TYPES):
                raise declaration_error(
                    f"{name} is {kind.simpleString()}, which no field may be{_type_advice(kind)}"
                )
        typed_fields: list[tuple[str, tuple[type[T.DataType], ...]]] = [
            *((name, (T.TimestampType, T.DateType)) for name in self.times),
            *([(self.amount, (T.DecimalType,))] if self.amount else []),
        ]
        for name in (*self.key, *(name for name, _ in typed_fields)):
            if name not in self.types:
                raise declaration_error(
                    f"its lines have no field {name}{table_options.suggest_name(name, self.types)}"
                )
            if name != self.amount and name in self.may_be_null:
                raise declaration_error(f"{name} may not be null")
        for name, allowed in typed_fields:
            if not isinstance(self.types[name], allowed):
                kinds = " or ".join(kind.__name__.removesuffix("Type").lower() for kind in allowed)
                raise declaration_error(f"{name} must be {kinds}")
        _ = self.staged  # checks that its columns can be watched for skew

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The pandera columns of a line by name."""
        return dict(self.lines.to_schema().columns)

    @cached_property
    def types(self) -> Mapping[str, T.DataType]:
        """The Spark types of the fields by name, in the order of the model."""
        return {name: column.dtype.type for name, column in self.columns.items()}

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the model."""
        return tuple(self.types)

    @property
    def text_encoding(self) -> str:
        """The encoding of its CSV files that have no mark, by its one name."""
        return arguments.encoding_name(self.encoding)

    @property
    def times(self) -> tuple[str, str]:
        """The names of the fields with the event time and the version time."""
        return self.event_time, self.version_time

    @cached_property
    def dated_times(self) -> frozenset[str]:
        """Those of the two fields that are dates."""
        return frozenset(name for name in self.times if isinstance(self.types[name], T.DateType))

    @cached_property
    def may_be_null(self) -> frozenset[str]:
        """The fields that a line may lack."""
        return frozenset(name for name, column in self.columns.items() if column.nullable)

    @cached_property
    def arrival_days(self) -> ArrivalDays:
        """The days on which a folder is expected."""
        return ArrivalDays.parse(self.arrives_on)

    @cached_property
    def tables(self) -> tuple[SourceTable, ...]:
        """All its tables, inputs first."""
        return (self.raw, self.rejected, self.staged, self.late, self.lateness)

    @cached_property
    def raw(self) -> SourceTable:
        """The immutable log of the lines as they arrived, by log day."""
        return self._build_table(
            Role.LOG,
            source_models.raw_model(self.name, self.lines),
            partition="log_date",
            totals=self._total_columns,
            notices={"rejected_lines": "Few of the day's lines are rejected."},
        )

    @cached_property
    def rejected(self) -> SourceTable:
        """The lines that could not be read, by arrival day."""
        return self._build_table(
            Role.REJECTED, source_models.rejected_model(self.name), partition="arrival_date"
        )

    @cached_property
    def staged(self) -> SourceTable:
        """Each key once on its event day, in the greatest version that came in time."""

        def staged_inputs(policy: Policy) -> Inputs:
            recorded = "event_days" if policy.only_touched else ""
            return (Dependency(self.raw, self.under(policy).reach, recorded),)

        return self._build_table(
            Role.STAGED,
            source_models.staged_model(self.name, self.lines),
            partition="event_date",
            key=self.key,
            totals=self._total_columns,
            skew=self.skew,
            merge=True,
            decided_by=("window_days",),
            inputs=staged_inputs,
        )

    @cached_property
    def late(self) -> SourceTable:
        """The lines that were logged after the window of their event day had closed."""
        return self._build_table(
            Role.LATE,
            source_models.late_model(self.name, self.lines),
            partition="log_date",
            totals=self._total_columns,
            notices={"late_lines": "No line came after the window of its day had closed."},
            decided_by=("window_days", "late_lines"),
            inputs=lambda _: (Dependency(self.raw, SAME_DAY),),
        )

    @cached_property
    def lateness(self) -> SourceTable:
        """How late the lines of each log day were."""

        def lateness_inputs(policy: Policy) -> Inputs:
            # With an offset in the mapping, the UI would request more days than the user did.
            window = last_days(self.under(policy).window_days + 1)
            return (
                Dependency(self.rejected, SAME_DAY),
                Dependency(self.raw, window, "log_days", launched=SAME_DAY),
            )

        model = source_models.lateness_model(self.types[self.amount] if self.amount else None)
        return self._build_table(
            Role.LATENESS,
            model,
            partition="log_date",
            key=["log_date"],
            # A table that has the narrower sums is migrated to the wider ones.
            schema_version=1 if model is source_models.ArrivalLateness else 2,
            decided_by=("window_days",),
            inputs=lateness_inputs,
        )

    @property
    def page(self) -> str:
        """The name of the asset of the page with the lateness figures."""
        name = self._asset_name(Role.PAGE)
        return f"{name}_{name_of_part(self.part)}" if self.part else name

    def _asset_name(self, role: Role) -> str:
        return self.named.get(role) or _NAMES[role].format(self.name)

    @property
    def full_name(self) -> str:
        """Its name, with that of its part."""
        return table_name(self.name, self.part)

    @property
    def part_folder(self) -> str:
        """The folder of its part within an arrival day's folder, as `/region=eu`; empty if none."""
        return f"/{self.dimension.name}={self.part}" if self.dimension and self.part else ""

    @cached_property
    def parts(self) -> "Mapping[str, Source]":
        """The source by part of its dimension; empty without one."""
        if self.dimension is None:
            return {}
        starts = dict.fromkeys(self.dimension.values, self.start) | {**self.dimension.starts}
        return {part: replace(self, part=part, start=start) for part, start in starts.items()}

    @property
    def hour(self) -> int | None:
        """The hour of the day that its part is; None if its dimension is not `HOURS`."""
        return int(self.part) if self.part and self.raw.by_hour else None

    def in_business_zone(self, timezone: str) -> Self:
        """The source, of which nothing is expected on days that lack its hour in a time zone."""
        if self.hour is None:
            return self
        expected_days = self.arrival_days.with_hour(self.hour, timezone)
        return replace(self, arrives_on=expected_days.__contains__)

    @property
    def overrides(self) -> dict[str, Any]:
        """The deployment's settings that this source overrides, by field."""
        values = {name: getattr(self, name) for name in ("start", "window_days", "late_lines")}
        return {name: value for name, value in values.items() if value is not None}

    def under(self, policy: Policy) -> Policy:
        """The late-data policy of the source, given the policy of the deployment.

        Its window is counted in log days, so `arrives_after` is added to it.
        """
        changes = {"window_days": policy.window_days, **self.overrides}
        changes["window_days"] += self.arrives_after
        changes["arrives_after"] = self.arrives_after
        changes["arrival_days"] = self.arrival_days
        if self.raw.end is not None:
            changes["end"] = min(self.raw.end, policy.end or date.max)
        last_hour = 23 if self.hour is None else self.hour
        changes["hours_ahead"] = 23 - last_hour - self.arrives_after_hours
        if late_lines := changes.pop("late_lines", None):
            changes["corrects"] = late_lines == "correct"
        return replace(policy, **changes)

    def policy(self, settings: Settings) -> Policy:
        """The late-data policy of the source in a deployment."""
        return self.under(Policy.from_settings(settings))

    @property
    def _total_columns(self) -> list[str]:
        return [self.amount] if self.amount else []

    def _build_table(self, role: Role, model: type[pa.DataFrameModel], **more: Any) -> SourceTable:
        """Build the source's table of a role; `more` has further fields of `SourceTable`."""
        name = self._asset_name(role)
        if self.dimension:
            model = source_models.add_part(model, more["partition"], self.dimension.name)
            more |= {"dimension": self.dimension, "part": self.part}
        return SourceTable(
            name=table_name(name, self.part),
            model=model,
            modules=(self.lines.__module__, self.declared_in),
            source=self,
            role=role,
            **more,
        )
