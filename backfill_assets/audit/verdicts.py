"""The audit before a publish: measure the days of a frame in Spark, and judge each day.

`measure_days` is one Spark aggregation; `judge_days` is a pure function of its numbers. Neither
writes anything, and neither uses Dagster.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from statistics import median
from types import MappingProxyType
from typing import Any, Self

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window, format_ranges
from backfill_assets.escaping import escape_line
from backfill_assets.spark.frames import PART, exact_sums, part_key, quote_name, split_by_part
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class Violation:
    """The forbidden rows that a check found in a day: their number, and the keys of a few of them.

    The same rows give the same keys, each as one text.
    """

    rows: int
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = ", ..." if self.rows > len(self.keys) else ""
        shown = f": {', '.join(self.keys)}{more}" if self.keys else ""
        return f"{self.rows} row(s) that may not be there{shown}"


#: The number of previous days to compare a day with, and the fewest that are enough for it.
TRAILING_DAYS = 7
ENOUGH_DAYS = 3
#: Warn of a day with less than this share of the median rows of the previous days, or more than
#: its inverse.
_ROW_SHARE = 0.2
#: With fewer rows, neither their number nor a share of them is judged.
MIN_JUDGED_ROWS = 20
#: Warn of a null rate that exceeds the median of the previous days by this much (of 1).
_NULL_SPIKE = 0.2


class RefusedError(ValueError):
    """A frame of which no day can be published; its table is unchanged."""


class Severity(enum.Enum):
    """The meaning of a finding: a day with an `ERROR` is not published, all others are.

    An `ALERT` needs an action of a person, a `WARN` is information for a reader.
    """

    OK = "ok"
    WARN = "warn"
    ALERT = "alert"
    ERROR = "error"


@dataclass(frozen=True)
class Expectation:
    """The numbers that one day of the output must have according to its inputs.

    Attributes:
        entries: the counts behind the expectation, by name, for display.
        rows: rows that the day must have; None if the inputs do not determine it.
        totals: sums by column that the day must have.
        problems: reasons not to publish the day, whatever its rows are.
        warnings: warnings about the day.
        notices: findings of the table's own checks (`Table.notices`), by check.
        figures: the numbers behind the notices, by check.
    """

    entries: Mapping[str, int | Decimal] = field(default_factory=dict)
    rows: int | None = None
    totals: Mapping[str, int | Decimal] = field(default_factory=dict)
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notices: Mapping[str, tuple[Severity, str]] = field(default_factory=dict)
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def with_problem(self, problem: str) -> Self:
        """Return a copy with one more reason not to publish the day."""
        return replace(self, problems=[*self.problems, problem])


@dataclass(frozen=True)
class DayContent:
    """The content of a day of a table: as measured, as published, or of a version to compare.

    Attributes:
        rows: number of rows.
        totals: sums by column, of the table's `totals`.
        digest: of the rows, in any order, see `digest_text`; in a diff, the SHA-256 of
            `docs/reconciliation.md`.
        keys: distinct natural keys; None if they were not counted, or the table has no key.
    """

    rows: int
    totals: Mapping[str, int | Decimal]
    digest: str
    keys: int | None = None

    @property
    def figures(self) -> dict[str, int | Decimal]:
        """Rows, keys (if counted) and totals, by name."""
        keys = {} if self.keys is None else {"keys": self.keys}
        return {"rows": self.rows, **keys, **self.totals}

    def __str__(self) -> str:
        totals = [f"{name} {total}" for name, total in self.totals.items()]
        return ", ".join([f"{self.rows:,} rows", *totals])


def differing_figures(
    before: DayContent | None, after: DayContent | None
) -> dict[str, tuple[int | Decimal, int | Decimal]]:
    """The figures in which two contents differ, by name; no content counts as zeros.

    A figure that only one of two contents has cannot be compared: its column came later, or went.
    """
    old, new = (content.figures if content else {} for content in (before, after))
    names = [name for name in old if name in new] if old and new else [*old, *new]
    pairs = {name: (old.get(name, 0), new.get(name, 0)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def describe_difference(before: DayContent | None, after: DayContent | None) -> str:
    """The difference of two contents as text; empty if they have the same rows."""
    with exact_sums():
        deltas = {name: new - old for name, (old, new) in differing_figures(before, after).items()}
    if deltas.get("keys") == deltas.get("rows"):  # as expected: one row for each key
        deltas.pop("keys", None)
    if not deltas and before and after and not have_same_rows(before, after):
        return "same counts and sums, other values"
    return ", ".join(f"{name} {delta:+,}" for name, delta in deltas.items())


def have_same_rows(content: DayContent | None, other: DayContent | None) -> bool:
    """Whether two contents have the same rows; also if their digests cannot be compared."""
    if content is None or other is None:
        return content is other
    return not rows_differ(content.digest, other.digest)


@dataclass(frozen=True)
class DayMetrics(DayContent):
    """The content of a day, with what the audit judges.

    Attributes:
        nulls: number of nulls by column.
        broken: by rule, the number of rows that break it; without rules that hold.
        violations: by check, the forbidden rows; without checks that found none.
        kinds: by kind of row, the number of rows that meet its condition.
    """

    nulls: Mapping[str, int] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    violations: Mapping[str, Violation] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def duplicate_keys(self) -> int:
        """Rows beyond the first of their natural key; 0 if the table has no key."""
        return 0 if self.keys is None else self.rows - self.keys

    def null_rate(self, column: str) -> float:
        """Share of rows (0 to 1) in which a column is null; 0 for an empty day."""
        return self.nulls[column] / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class Finding:
    """The result of one check for one day; its text is one line, whatever the files are called."""

    check: str
    severity: Severity
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", escape_line(self.text))


@dataclass(frozen=True)
class Verdict:
    """All findings about one day, with the numbers behind them."""

    day: date
    metrics: DayMetrics
    expectation: Expectation
    findings: Sequence[Finding]

    @property
    def worst_severity(self) -> Severity:
        """The worst severity of all checks."""
        severities = {finding.severity for finding in self.findings}
        return next(severity for severity in reversed(Severity) if severity in severities)

    @property
    def may_publish(self) -> bool:
        """Whether no check has an error."""
        return self.worst_severity is not Severity.ERROR

    @property
    def failure_reasons(self) -> str:
        """Why the day is not published, in one line."""
        bad = [f for f in self.findings if f.severity is Severity.ERROR]
        return "; ".join(f"{finding.check}: {finding.text}" for finding in bad)


def row_hash(struct: T.StructType) -> str:
    """A 64-bit hash of a row with these columns, as SQL.

    Spark's hash skips nulls, so (null, 'a') and ('a', null) would have the same hash; therefore
    each null is hashed as a value of its own, at any depth. NaN equals NaN, and -0.0 equals 0.0.
    """
    parts = (_hash_arguments(quote_name(column.name), column.dataType) for column in struct)
    return f"xxhash64({', '.join(parts)})"


def _hash_arguments(value: str, kind: T.DataType, depth: int = 0) -> str:
    """A value in a form that Spark's hash distinguishes, and whether it is null.

    Spark hashes the elements of a nested value one after the other, without their ends: elements
    and fields are replaced by their own hashes. A map has the same hash in any order of its keys.
    """
    element, hashable = f"element{depth}", value
    if isinstance(kind, T.ArrayType):
        arguments = _hash_arguments(element, kind.elementType, depth + 1)
        hashable = f"transform({value}, {element} -> xxhash64({arguments}))"
    elif isinstance(kind, T.MapType):
        pairs = T.StructType().add("key", kind.keyType).add("value", kind.valueType)
        arguments = _hash_arguments(element, pairs, depth + 1)
        entries = f"transform(map_entries({value}), {element} -> xxhash64({arguments}))"
        hashable = f"array_sort({entries})"
    elif isinstance(kind, T.StructType):
        fields = (
            _hash_arguments(f"{value}.{quote_name(field.name)}", field.dataType, depth)
            for field in kind
        )
        hashable = f"array({', '.join(f'xxhash64({arguments})' for arguments in fields)})"
    return f"{hashable}, {value} IS NULL"


def digest_sums(struct: T.StructType) -> dict[str, Column]:
    """The sums that `digest_text` combines, by name, for rows with these columns.

    Made of SQL: each call of a function of PySpark is several commands to the JVM.
    """
    hashed = row_hash(struct)
    return {
        "rows": F.count(F.lit(1)),
        "low": F.expr(f"sum({hashed} & 4294967295L)"),
        "high": F.expr(f"sum(shiftrightunsigned({hashed}, 32))"),
    }


#: The digest of no rows.
NO_ROWS = "0-0-0"
#: The suffix of digests of rows with nested columns: older digests hashed these in another way.
_NESTED = "nested"


def digest_text(sums: Mapping[str, int | None], struct: T.StructType) -> str:
    """The digest of rows, from their `digest_sums`; `0-0-0` for no rows."""
    parts = [f"{sums[name] or 0:x}" for name in ("rows", "high", "low")]
    nested = any(isinstance(c.dataType, T.ArrayType | T.MapType | T.StructType) for c in struct)
    return "-".join([*parts, _NESTED] if nested and sums["rows"] else parts)


def sum_digests(digests: Iterable[str]) -> str:
    """The digest of the rows of several days together."""
    parts = [digest.split("-") for digest in digests]
    sums = [f"{sum(int(part[n], 16) for part in parts):x}" for n in range(3)]
    return "-".join([*sums, *dict.fromkeys(kind for part in parts for kind in part[3:])])


def rows_differ(digest: str, other: str) -> bool:
    """Whether two digests are of different rows; false if they were computed in other ways."""
    same_way = NO_ROWS in (digest, other) or digest.split("-")[3:] == other.split("-")[3:]
    return digest != other and same_way


def digests_by_day(frame: DataFrame, partition: str) -> dict[date, str]:
    """The digest of each day of a frame, over all of its columns."""
    sums = [column.alias(name) for name, column in digest_sums(frame.schema).items()]
    rows = frame.groupBy(F.col(partition).alias("_day")).agg(*sums).collect()
    return {row["_day"]: digest_text(row.asDict(), frame.schema) for row in rows}


def sum_exactly(column: str, kind: T.DataType) -> Column:
    """The sum of a column, in a type that is wide enough for it; of no rows null."""
    value = F.col(column)
    # A DECIMAL of n digits is summed in one of n + 10, and a BIGINT in a BIGINT.
    return F.sum(value.cast(T.DecimalType(19, 0)) if isinstance(kind, T.LongType) else value)


def total_value(value: int | Decimal | None, zero: int | Decimal) -> int | Decimal:
    """A sum that Spark has computed, of whole numbers an `int`; `zero` if there is none."""
    if value is None:
        return zero
    whole = isinstance(zero, int) and isinstance(value, Decimal) and value == int(value)
    return int(value) if whole else value


def read_totals(row: Mapping[str, Any], table: Table) -> dict[str, int | Decimal]:
    """The totals of a row that Spark has computed, in which each is named `total_<column>`."""
    return {
        name: total_value(row[f"total_{name}"] or None, zero)
        for name, zero in table.zero_totals.items()
    }


def measure_days(
    frame: DataFrame,
    table: Table,
    rules: Sequence[str] = (),
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> dict[date | None, DayMetrics]:
    """The rows of a table, or of one part of it, in numbers by day; see `measure_parts`."""
    return measure_parts(frame, [table], rules, kinds).get(table.part, {})


def measure_parts(
    frame: DataFrame,
    tables: Sequence[Table],
    rules: Sequence[str] = (),
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, dict[date | None, DayMetrics]]:
    """The rows of some parts of a table in numbers by part and day, in one Spark aggregation.

    A row of another part counts as one without a day in each of them. The digest is a sum of the
    row hashes (upper and lower half separately, so that no sum overflows): it does not depend on
    the order, and unlike XOR it changes if a row is duplicated. Rules are SQL conditions that must
    be true for each row, as Delta's constraints. `kinds` are conditions by name, of which the rows
    are counted; a row for which one is null is not.
    """
    table = tables[0]
    day, keys = F.col(table.partition), part_key(table.part_column)
    if keys:
        is_known = F.col(table.part_column).isin([part.part for part in tables])
        day, keys = F.when(is_known, day), [F.when(is_known, *keys).alias(PART)]
    sums = {
        **digest_sums(table.struct_type),
        **{
            f"null_{name}": F.expr(f"count_if({quote_name(name)} IS NULL)")
            for name in table.columns
        },
        **{
            f"total_{name}": sum_exactly(name, table.struct_type[name].dataType)
            for name in table.totals
        },
        **{f"broken_{n}": F.count_if(_breaks_rule(rule)) for n, rule in enumerate(rules)},
        # By number: the name of a kind may have characters that a column name may not.
        **{f"kind_{n}": F.count_if(F.expr(kind)) for n, kind in enumerate(kinds.values())},
    }
    named = [column.alias(name) for name, column in sums.items()]
    if table.key:
        # By number: a column may have the name of a sum.
        key = [F.col(name).alias(f"key_{n}") for n, name in enumerate(table.key)]
        by_key = frame.groupBy(*keys, day.alias("_day"), *key).agg(*named)
        outer_sums = [F.expr(f"sum({quote_name(n)}) AS {quote_name(n)}") for n in sums]
        groups = [*[PART] * len(keys), "_day"]
        by_day = by_key.groupBy(*groups).agg(*outer_sums, F.count(F.lit(1)).alias("keys"))
    else:
        by_day = frame.groupBy(*keys, day.alias("_day")).agg(*named)
    measured = {
        part: {row["_day"]: _day_metrics(row.asDict(), table, rules, [*kinds]) for row in rows}
        for part, rows in split_by_part(by_day.collect()).items()
    }
    strays = measured.pop(None, {})
    for part in tables if strays else ():
        days = measured.setdefault(part.part, {})
        dayless = sum(metrics[None].rows for metrics in (days, strays) if None in metrics)
        days[None] = replace(strays[None], rows=dayless)
    return {part: days for part, days in measured.items() if part is not None}


def _breaks_rule(rule: str) -> Column:
    """Whether a row breaks a rule; a rule that is null is broken."""
    return ~F.coalesce(F.expr(rule), F.lit(False))


def _day_metrics(
    row: Mapping[str, int], table: Table, rules: Sequence[str], kinds: Sequence[str]
) -> DayMetrics:
    """Convert a row of the aggregation in `measure_days`; column prefixes name the metrics."""
    return DayMetrics(
        rows=row["rows"],
        nulls={name: row[f"null_{name}"] for name in table.columns},
        keys=row.get("keys"),
        totals=read_totals(row, table),
        digest=digest_text(row, table.struct_type),
        broken={rule: n for at, rule in enumerate(rules) if (n := row[f"broken_{at}"])},
        kinds={kind: row[f"kind_{at}"] for at, kind in enumerate(kinds)},
    )


def empty_day(table: Table) -> DayMetrics:
    """The numbers of a day without rows."""
    nulls = dict.fromkeys(table.columns, 0)
    return DayMetrics(0, table.zero_totals, NO_ROWS, 0 if table.key else None, nulls)


def check_frame_window(
    metrics_by_day: Mapping[date | None, DayMetrics],
    table: Table,
    window: Window,
    expectations: Mapping[date, Expectation],
) -> None:
    """Raise if a frame as a whole cannot be right for the window.

    Raises:
        RefusedError: rows outside the window or without a day, or no rows at all although the
            inputs have some. No day of such a frame is published.
    """
    prefix = f"{table.name} [{window}]: refused, the table is as it was:"
    if None in metrics_by_day:
        rows = metrics_by_day[None].rows
        others = [f" or another {column} than {part}" for column, part in table.part_values.items()]
        raise RefusedError(f"{prefix} {rows} row(s) have no {table.partition}{''.join(others)}.")
    strays = sorted(day for day in metrics_by_day if day is not None and day not in window)
    if strays:
        rows = sum(metrics_by_day[day].rows for day in strays)
        raise RefusedError(
            f"{prefix} {rows} row(s) have a {table.partition} outside the window: "
            f"{format_ranges(strays)}."
        )
    expected_rows = sum(expectations[day].rows or 0 for day in window if day in expectations)
    if not metrics_by_day and expected_rows:
        raise RefusedError(
            f"{prefix} the frame has no rows at all, but its inputs say that {expected_rows} are "
            "due."
        )


def judge_days(
    table: Table,
    days: Iterable[date],
    metrics_by_day: Mapping[date | None, DayMetrics],
    expectations: Mapping[date, Expectation],
    previous: Mapping[date, DayMetrics],
) -> list[Verdict]:
    """A verdict for every day of a run; the days are ascending.

    They are compared with the `previous` days, which are already published.
    """
    verdicts = []
    judged: dict[date, DayMetrics] = {}  # `previous` may have thousands of days, read at look-up
    for day in days:
        metrics = metrics_by_day.get(day, empty_day(table))
        expectation = expectations.get(day, Expectation())
        before_it = table.grain.partitions_before(day, TRAILING_DAYS)
        # What a source does not deliver on some days is not missing on them.
        usual_days = filter(table.expects_rows, before_it)
        days_before = (judged.get(d) or previous.get(d) for d in usual_days)
        trailing = [metrics_before for metrics_before in days_before if metrics_before]
        findings = [
            _judge_row_count(metrics, trailing if table.expects_rows(day) else ()),
            _judge_nulls(table, metrics, trailing),
            _judge_conservation(metrics, expectation),
        ]
        if table.key:
            findings.append(_judge_unique_key(table, metrics))
        findings += [_judge_forbidden(check.name, metrics) for check in table.forbidden]
        findings += [
            Finding(check, *expectation.notices.get(check, (Severity.OK, "nothing")))
            for check in table.notices
        ]
        verdicts.append(Verdict(day, metrics, expectation, findings))
        judged[day] = metrics
    return verdicts


def _judge_row_count(metrics: DayMetrics, trailing: Sequence[DayMetrics]) -> Finding:
    """Warn if the row count is far from the median of the days before; it blocks no day."""
    text = f"{metrics.rows} rows"
    counts = [other.rows for other in trailing]
    usual = median(counts) if len(counts) >= ENOUGH_DAYS else 0
    enough = max(usual, metrics.rows) >= MIN_JUDGED_ROWS
    if usual and enough and not usual * _ROW_SHARE <= metrics.rows <= usual / _ROW_SHARE:
        text += f", where the {len(counts)} days before it have {usual:g} (median)"
        return Finding("row_count", Severity.WARN, text)
    return Finding("row_count", Severity.OK, text)


def _judge_nulls(table: Table, metrics: DayMetrics, trailing: Sequence[DayMetrics]) -> Finding:
    """Compare null rates with the model's bounds and the days before; a spike only warns."""
    problems: list[tuple[Severity, str]] = []
    for name in table.columns:
        bounds = table.null_bounds.get(name)
        count, rate = metrics.nulls[name], metrics.null_rate(name)
        if bounds is None:
            if count:
                problems.append((Severity.ERROR, f"{count} null(s) in {name}, which is required"))
            continue
        if metrics.rows < MIN_JUDGED_ROWS:
            continue
        rates = [other.null_rate(name) for other in trailing if other.rows]
        text = f"{name} is null in {rate:.1%}"
        if rate > bounds.error:
            problems.append((Severity.ERROR, f"{text} (allowed {bounds.error:.0%})"))
        elif rate > bounds.warn:
            problems.append((Severity.WARN, f"{text} (usual {bounds.warn:.0%})"))
        elif len(rates) >= ENOUGH_DAYS and rate > median(rates) + _NULL_SPIKE:
            problems.append((Severity.WARN, f"{text}, before in {median(rates):.1%}"))
    return _join_problems("nulls", problems, "no unexpected nulls")


def _judge_unique_key(table: Table, metrics: DayMetrics) -> Finding:
    if metrics.duplicate_keys:
        text = f"{metrics.duplicate_keys} row(s) repeat a ({', '.join(table.key)}) of the day"
        return Finding("unique_key", Severity.ERROR, text)
    return Finding("unique_key", Severity.OK, f"{metrics.rows} distinct keys")


def _judge_forbidden(check: str, metrics: DayMetrics) -> Finding:
    violation = metrics.violations.get(check)
    return Finding(
        check, Severity.ERROR if violation else Severity.OK, str(violation or "no such row")
    )


def _judge_conservation(metrics: DayMetrics, expectation: Expectation) -> Finding:
    """Compare rows, totals and rules with what the inputs require; a difference blocks the day."""
    problems = [(Severity.ERROR, text) for text in expectation.problems]
    problems += [
        (Severity.ERROR, f"{count} row(s) break the rule {rule}")
        for rule, count in metrics.broken.items()
    ]
    if expectation.rows is not None and metrics.rows != expectation.rows:
        problems.append((Severity.ERROR, f"{metrics.rows} rows where {expectation.rows} are due"))
    problems += [
        (Severity.ERROR, f"{name} adds up to {metrics.totals[name]} where {expected} is due")
        for name, expected in expectation.totals.items()
        if metrics.totals[name] != expected
    ]
    problems += [(Severity.WARN, text) for text in expectation.warnings]
    entries = ", ".join(f"{name} {count}" for name, count in expectation.entries.items())
    return _join_problems("conservation", problems, entries or "nothing due", entries)


def _join_problems(
    check: str, problems: Sequence[tuple[Severity, str]], ok_text: str, context: str = ""
) -> Finding:
    """Join problems into one finding of the worst severity; it is OK if there are none."""
    if not problems:
        return Finding(check, Severity.OK, ok_text)
    severity = Severity.ERROR if any(s is Severity.ERROR for s, _ in problems) else Severity.WARN
    text = "; ".join(text for _, text in problems)
    return Finding(check, severity, f"{text} ({context})" if context else text)
