"""Inputs without days: Delta tables that are read whole, and lookups of HTTP services."""

import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import pandera.pyspark as pa
import pyspark.sql.types as T
from pyspark.sql import DataFrame

from backfill_assets.settings import normalize_location
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.table_options import wrong_column_names


class UnpartitionedInput(Protocol):
    """A Delta table without days that a table is built from.

    Attributes:
        grows: whether added rows change no published day: each day is built only from the rows that
            it requested, and these do not change. If it is false, other rows are a changed input.
    """

    grows: ClassVar[bool]

    @property
    def name(self) -> str:
        """Its name in the UI, in reasons and in messages."""

    def place(self, warehouse: str) -> str:
        """Its location, in a deployment with this warehouse."""


@dataclass(frozen=True)
class Unpartitioned:
    """A Delta table that has no days; the annotation of a parameter that holds all of its rows.

    Every day is built from the version that is current when it is computed. A change of its rows
    makes all days due: open days are rebuilt, final ones wait for a person.

    Attributes:
        name: its name in the UI, in reasons and in messages.
        url: its location, as Spark reads it; in the warehouse under its name, if not given.

    Raises:
        ValueError: the URL is of a store that is not supported, or has a password.
    """

    name: str
    url: str = ""
    grows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", normalize_location(self.url))

    def place(self, warehouse: str) -> str:
        """Its location, in a deployment with this warehouse."""
        return self.url or f"{warehouse}/{self.name}"


#: The column with the time of an answer.
ANSWERED_AT = "answered_at"
#: The types that a column of request or answer may have.
_TYPES = (
    *(T.StringType, T.LongType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType),
    T.DoubleType,
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def requests_figure(name: str) -> str:
    """The name of a day's figure for the number of requests to a lookup."""
    return f"requests to {name}"


def calls_figure(name: str) -> str:
    """The name of a day's figure for the number of HTTP calls of a lookup."""
    return f"calls of {name}"


@dataclass(frozen=True)
class Quota:
    """At most so many calls in any second, minute, hour or day."""

    calls: int
    per: Literal["second", "minute", "hour", "day"]

    @property
    def seconds(self) -> int:
        """The length of the period, in seconds."""
        return _SECONDS[self.per]

    def __str__(self) -> str:
        return f"{self.calls:,} a {self.per}"


#: By pandera check: its parameter, its sign in messages, and whether a value passes.
ANSWER_CHECKS: Mapping[str, tuple[str, str, Callable[[Any, Any], bool]]] = {
    "greater_than_or_equal_to": ("min_value", ">=", lambda value, bound: value >= bound),
    "greater_than": ("min_value", ">", lambda value, bound: value > bound),
    "less_than_or_equal_to": ("max_value", "<=", lambda value, bound: value <= bound),
    "less_than": ("max_value", "<", lambda value, bound: value < bound),
    "isin": ("allowed_values", "in", lambda value, allowed: bool(value in allowed)),
    "str_matches": ("pattern", "matches", lambda text, pattern: bool(re.match(pattern, text))),
}


def _fields_in(path: str) -> set[str]:
    """The texts within the braces of a path; empty if its braces are not in pairs."""
    try:
        fields = [*string.Formatter().parse(path)]
    except ValueError:
        return set()
    return {
        f"{name}!{conversion}:{spec}" if conversion or spec else name
        for _, name, spec, conversion in fields
        if name is not None
    }


@dataclass(frozen=True)
class Lookup:
    """An HTTP service that answers requests, with a limit on calls per time.

    A request is a GET, and its answer a JSON object. Each answer is stored in a Delta table of the
    lookup's name in the warehouse, and the same request is never sent again.

    Attributes:
        name: of the table of answers and in messages.
        model: the pandera model of the columns of request and answer. An answer that breaks it is
            not stored. Columns may be bounded by `ge`, `gt`, `le`, `lt`, `isin` and `str_matches`.
        request: the columns that make up a request; the others are the answer.
        path: the part after the URL, with request columns in braces, as `/rates/{day}/{currency}`.
            A value stays within its segment: a request in which a segment would be empty, `.` or
            `..` is not sent, and has no answer.
        url: the environment variable that has the URL of the service.
        quota: the limits of the service; several may hold at once.
        secret: the environment variable that has the secret of the service. If it is not set, the
            variable of that name and `_FILE` names a file that has it. Empty if it needs none.
        header: the header that the secret is sent in, and its value with `{}` for the secret.
        read: returns the answer's columns by name, from the JSON; the JSON object itself, if not
            given.
        none_at: statuses that mean that the service has no answer, as 404. They are stored too,
            with nulls.
        reserve: the share of the quota (0 to 1) that backfills, and all other runs that a person
            launches, leave for runs of the schedule and the sensors.
        pool: Dagster's pool of the steps that call it; the lookup's name, if not given.
        connections: the most requests of a step that are open at once.
        timeout: seconds to wait for an answer.
        tries: how often a request is tried before it counts as unanswered.
        patience: the most seconds that a step waits at a time, for the quota or because of
            `Retry-After`.

    Raises:
        DeclarationError: the declaration is wrong; the message says why.
    """

    name: str
    model: type[pa.DataFrameModel]
    request: Sequence[str]
    path: str
    url: str
    quota: Quota | Sequence[Quota]
    secret: str = ""
    header: tuple[str, str] = ("Authorization", "Bearer {}")
    read: Callable[[Any], Mapping[str, Any]] | None = None
    none_at: Sequence[int] = ()
    reserve: float = 0.2
    pool: str = ""
    connections: int = 4
    timeout: float = 30.0
    tries: int = 5
    patience: float = 900.0
    grows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", tuple(self.request))
        if problem := self._find_problem():
            raise DeclarationError(f"lookup {self.name}: {problem}")

    def _find_problem(self) -> str:
        """Why the declaration is wrong; empty if it is not."""
        path_columns = _fields_in(self.path)
        fewest_calls = min(quota.calls for quota in self.quotas)
        may_be_null = {column.name for column in self.struct if column.nullable}
        answer = [name for name in self.columns if name not in self.request]
        wrong_names = wrong_column_names(self.struct)
        problems = {
            "its name is that of a folder: letters, digits and _": not self.name.isidentifier(),
            f"its request must be columns of the model ({[*self.columns]})": (
                not self.request or not {*self.request} <= self.columns.keys()
            ),
            "a column of the request may not be null": bool({*self.request} & may_be_null),
            "its model has no column of an answer": not answer,
            f"{ANSWERED_AT} is a column that it has anyway": ANSWERED_AT in self.columns,
            f"its path names {sorted(path_columns)}, its request {[*self.request]}": (
                path_columns != {*self.request}
            ),
            f"its path is {self.path!r}; it begins with / and has no #": (
                not self.path.startswith("/") or "#" in self.path
            ),
            "url and secret are names of environment variables": not all(
                re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
                for name in (self.url, *filter(None, [self.secret]))
            ),
            f"a reserve of {self.reserve} leaves backfills nothing of {fewest_calls} calls": (
                not 0 <= self.reserve < 1 or int(fewest_calls * (1 - self.reserve)) < 1
            ),
            "with none_at, all columns of the answer must be nullable": (
                bool(self.none_at) and not {*answer} <= may_be_null
            ),
            "connections, timeout, tries and patience must be positive": (
                min(self.connections, self.timeout, self.tries, self.patience) <= 0
            ),
            "; ".join(wrong_names): bool(wrong_names),
            **{
                f"{column.name} is {column.dataType.simpleString()}, which no column may be": (
                    not isinstance(column.dataType, _TYPES)
                )
                for column in self.struct
            },
            **{
                f"{name} has a check {check.name}; there are {[*ANSWER_CHECKS]}": check.name
                not in ANSWER_CHECKS
                for name, column in self.columns.items()
                for check in column.checks
            },
        }
        return next((text for text, wrong in problems.items() if wrong), "")

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The pandera columns of request and answer by name."""
        return dict(self.model.to_schema().columns)

    @cached_property
    def struct(self) -> T.StructType:
        """The Spark type of request and answer."""
        return T.StructType(
            [T.StructField(n, c.dtype.type, bool(c.nullable)) for n, c in self.columns.items()]
        )

    @cached_property
    def kept(self) -> T.StructType:
        """The Spark type of the table of answers."""
        return T.StructType([*self.struct, T.StructField(ANSWERED_AT, T.TimestampType(), False)])

    @property
    def quotas(self) -> Sequence[Quota]:
        """The limits of the service, the shortest period first."""
        limits = [self.quota] if isinstance(self.quota, Quota) else self.quota
        return sorted(limits, key=lambda quota: quota.seconds)

    def share(self, *, live: bool) -> float:
        """The share of the quota that a run may use (0 to 1).

        Args:
            live: whether the schedule or a sensor launched it.
        """
        return 1.0 if live else 1.0 - self.reserve

    def seconds_for(self, calls: int, *, live: bool = False) -> float:
        """The seconds that calls take because of the quota, if no other run calls."""
        share = self.share(live=live)
        return max(
            calls * quota.seconds / max(1, int(quota.calls * share)) for quota in self.quotas
        )

    def place(self, warehouse: str) -> str:
        """The location of the table of answers, in a deployment with this warehouse."""
        return f"{warehouse}/{self.name}"


@dataclass(frozen=True)
class LookupAnswers:
    """The answers of a lookup; the annotation of a parameter.

    The parameter holds, with the column `for_day`, the requests of each day with their answers,
    and `answered_at`, the time of the answer.

    Attributes:
        of: builds the requests: a function of other parameters, by their names, that returns a
            frame with `for_day` and the columns of a request. Repeated rows, and rows with a null
            in a request, cause no call.
    """

    lookup: Lookup
    of: Callable[..., DataFrame]

    @property
    def parameters(self) -> Sequence[str]:
        """The parameters that the requests are built from."""
        return [*inspect.signature(self.of).parameters]
