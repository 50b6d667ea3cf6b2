"""Pandera's checks of columns: what they mean in SQL, of lines and of tables."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import functions as F

from backfill_assets import Source, nullable_column
from backfill_assets.landing.formats import lines_schema
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.columns import sql_conditions, wrong_checks
from backfill_assets.tables.table import Table
from backfill_assets.transforms.raw_rows import read_versions

NAN, INFINITY = math.nan, math.inf
#: By check: the type of the column, what is declared, values that pass, values that do not.
CHECKS = {
    "gt": (T.LongType, {"gt": 0}, [1], [0, -1]),
    "ge": (T.LongType, {"ge": 0}, [0], [-1]),
    "lt": (T.DecimalType(8, 2), {"lt": Decimal("1.50")}, [Decimal("1.49")], [Decimal("1.50")]),
    "le": (T.DateType, {"le": date(2024, 1, 5)}, [date(2024, 1, 5)], [date(2024, 1, 6)]),
    "moment": (
        T.TimestampType,
        {"ge": datetime(2024, 1, 5, 12, tzinfo=UTC)},
        [datetime(2024, 1, 5, 12, tzinfo=UTC)],
        [datetime(2024, 1, 5, 11, 59, tzinfo=UTC)],
    ),
    "eq": (T.BooleanType, {"eq": True}, [True], [False]),
    "ne": (T.StringType, {"ne": "it's"}, ["its"], ["it's"]),
    "in_range": (T.DoubleType, {"in_range": (0, 0.5)}, [0.0, 0.5], [0.51, NAN]),
    "gt of doubles": (T.DoubleType, {"gt": -1}, [-0.0, 1e300, INFINITY], [-1.0, -INFINITY, NAN]),
    "ge of doubles": (T.DoubleType, {"ge": 0}, [-0.0, 0.0], [-5e-324, NAN]),
    "le of doubles": (T.DoubleType, {"le": 1e300}, [-INFINITY, 1e300], [INFINITY, NAN]),
    "tiny": (T.DoubleType, {"gt": 1e-300}, [2e-300], [1e-300, 0.0]),
    "ne of doubles": (T.DoubleType, {"ne": 0}, [NAN, 1.0], [0.0, -0.0]),
    "one of many doubles": (T.DoubleType, {"isin": [0, *range(5, 20)]}, [-0.0, 19.0], [1.0, NAN]),
    "none of many doubles": (T.DoubleType, {"notin": [0, *range(5, 20)]}, [NAN, 1.0], [-0.0, 5.0]),
    "le of floats": (T.FloatType, {"le": 0.1}, [0.1, -0.0], [0.2, NAN]),
    "ge of floats": (T.FloatType, {"ge": 0.7}, [0.7, INFINITY], [0.6, NAN]),
    "one of floats": (T.FloatType, {"isin": [0.1, 0.2]}, [0.1, 0.2], [0.3, NAN]),
    "open range": (T.LongType, {"in_range": (0, 9, False, False)}, [1, 8], [0, 9]),
    "isin": (T.StringType, {"isin": ["a", "b\\n", "c'd"]}, ["a", "b\\n", "c'd"], ["b", ""]),
    "notin": (T.LongType, {"notin": [7, 8]}, [6], [7, 8]),
    "str_matches": (T.StringType, {"str_matches": r"a\d|b"}, ["a1", "bx"], ["xb", "a"]),
    "anchored": (T.StringType, {"str_matches": r"^a\d$"}, ["a1"], ["a12", "xa1"]),
    "str_contains": (T.StringType, {"str_contains": r"\d"}, ["x1"], ["x"]),
    "str_startswith": (T.StringType, {"str_startswith": "%_'"}, ["%_'x"], ["%x", ""]),
    "str_endswith": (T.StringType, {"str_endswith": "\\"}, ["x\\"], ["\\x"]),
    "str_length": (T.StringType, {"str_length": (1, 2)}, ["ä", "ab"], ["", "abc"]),
    "exact": (T.StringType, {"str_length": 2}, ["ab"], ["a", "abc"]),
}


def make_column(kind, field) -> pa.DataFrameModel:
    body = {"__annotations__": {"x": kind}, "x": field, "__module__": __name__}
    return type("Checked", (pa.DataFrameModel,), body).to_schema().columns["x"]


def test_each_check_holds_for_what_it_says(spark):
    # One query for all: a column for each value.
    values, rules, expected = [], [], {}
    for check, (kind, declared, passes, breaks) in CHECKS.items():
        data_type = kind if isinstance(kind, T.DataType) else kind()
        for n, value in enumerate([*passes, *breaks]):
            name = f"{check.replace(' ', '_')}_{n}"
            (condition,) = sql_conditions(name, make_column(kind, Field(**declared))).values()
            values.append(F.lit(value).cast(data_type).alias(name))
            rules.append(F.expr(condition).alias(name))
            expected[name] = value in passes
    assert spark.range(1).select(*values).select(*rules).first().asDict() == expected


#: Names that SQL reads otherwise, or not at all, and Delta takes.
ODD_NAMES = (
    *("null", "True", "not", "2d", "1e5", "7", "a-b", "it's", "größe", "100%", "a/b", '"'),
    *("from", "Select", "values", "current_path", "current_date"),
)


def test_a_condition_is_of_its_column_whatever_its_name(spark):
    values, rules = [], []
    for name in ODD_NAMES:
        column = make_column(T.LongType, Field(in_range=(1, 2), nullable=True))
        (condition,) = sql_conditions(name, column).values()
        assert condition.startswith(f"`{name}` IS NULL")
        values.append(F.lit(0).alias(name))
        rules.append(F.expr(f"({condition})").alias(name))
    expected = dict.fromkeys(ODD_NAMES, False)
    assert spark.range(1).select(*values).select(*rules).first().asDict() == expected


def test_a_name_that_sql_reads_is_not_quoted():
    column = make_column(T.LongType, Field(ge=0))
    for name in ("kwh", "Upper", "_x1", "end", "date"):
        assert sql_conditions(name, column) == {f"{name}_greater_than_or_equal_to": f"{name} >= 0"}


def make_named(name: str, kind: object = T.LongType, partition: str = "day") -> Table:
    """A table with a day and a column of a name."""
    body = {
        "__module__": __name__,
        "__annotations__": {"day": T.DateType, "other": kind},
        "day": Field(alias=partition),
        "other": Field(alias=name),
    }
    return Table("named", type("Named", (pa.DataFrameModel,), body), partition=partition)


@pytest.mark.parametrize("char", [*" ,;{}()=\n\t\r\0\u00a0", ".", "`"])
def test_a_name_that_delta_or_spark_does_not_take_is_refused(char):
    with pytest.raises(DeclarationError) as error:
        make_named(f"of{char}name")
    assert str(error.value).startswith(f"named: a column cannot be named {f'of{char}name'!r}: ")


def test_a_name_within_a_column_is_refused_if_delta_does_not_take_it():
    nested = T.StructType([T.StructField("a b", T.LongType())])
    for kind in (T.ArrayType(nested), T.MapType(T.StringType(), T.ArrayType(nested))):
        with pytest.raises(DeclarationError, match=r"cannot be named 'items\.a b'"):
            make_named("items", kind)
    dotted = T.StructType([T.StructField("a.b", T.LongType())])
    assert "items" in make_named("items", T.ArrayType(dotted)).columns


def test_other_names_are_taken():
    for name in ("a-b", "1st", "größe", "it's", "null", "100%"):
        assert [*make_named(name).columns] == ["day", name]


@pytest.mark.parametrize("name", ["the-day", "größe", "1st"])
def test_the_column_of_the_day_has_a_name_that_folders_have(name):
    with pytest.raises(DeclarationError, match=f"the partition column is named {name!r}"):
        make_named("x", partition=name)


#: Patterns that Java reads as Python does, and how a message names what it reads otherwise.
SAME_PATTERNS = (
    *(r"\(?(\d{3})\)?", r"\\Z", "[(?#]", "(?iu)ä", "(?i-s:B)", "(?>a+)b", "a{2}+", "(?<!a)b"),
    *(r"[\]](a|[b])", r"[^]&\[]", r"(a)\1", r"\012", r"[\012]", r"[\\b]", "[a||b]", "}"),
    r"\N{DIGIT ONE}",
)
OTHER_PATTERNS = {
    r"a\Z": r"\Z",
    r"\v": r"\v",
    r"[^\v]": r"[^\v]",
    r"[\b]": r"[\b]",
    r"[\1]": r"[\1]",
    r"\0": r"\0",
    r"\0123": r"\0",
    r"\377": r"\377",
    r"\U00000041": r"\U",
    "(?ia)b": "(?ia)",
    "(?sx: a)": "(?sx:",
    "(?#a)b": "(?#",
    "(a)?(?(1)b|c)": "(?(",
    "x[a-z&&b]": "[a-z&&b]",
    "a{": "{",
}


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
def test_a_pattern_that_java_reads_otherwise_is_refused():
    declared = {
        pattern: wrong_checks({"x": make_column(T.StringType, Field(str_matches=pattern))})
        for pattern in (*OTHER_PATTERNS, *SAME_PATTERNS)
    }
    for pattern, construct in OTHER_PATTERNS.items():
        (problem,) = declared.pop(pattern)
        assert problem.startswith(f"x has the check str_matches with {construct!r} in a pattern, ")
    assert {*map(tuple, declared.values())} == {()}
    as_bytes = make_column(T.StringType, Field(str_contains=b"a"))
    (problem,) = wrong_checks({"x": as_bytes})
    assert problem == "x has the check str_contains with b'a': give a pattern of text"


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
def test_spark_reads_a_pattern_as_python_does(spark):
    texts = [
        "(555)",
        "555",
        r"\Z",
        "#",
        "?",
        "Ä",
        "b",
        "aab",
        "aaaa",
        "1",
        "]b",
        "ab",
        "\n",
        "}",
        "|",
    ]
    rules = []
    for n, pattern in enumerate(SAME_PATTERNS):
        column = make_column(T.StringType, Field(str_matches=pattern))
        rules += [F.expr(rule).alias(str(n)) for rule in sql_conditions("x", column).values()]
    rows = spark.createDataFrame([(text,) for text in texts], "x STRING").select("x", *rules)
    assert {row["x"]: list(row)[1:] for row in rows.collect()} == {
        text: [re.match(pattern, text) is not None for pattern in SAME_PATTERNS] for text in texts
    }


def test_a_column_that_may_be_null(spark):
    any_share = make_column(T.StringType, Field(isin=["a"], nullable=True))
    (condition,) = sql_conditions("x", any_share).values()
    frame = spark.createDataFrame([("a",), (None,), ("b",)], "x string")
    assert frame.where(condition).count() == 2
    (bound,) = sql_conditions("x", make_column(T.DoubleType, Field(ge=0, nullable=True))).values()
    assert bound == "x IS NULL OR x >= 0 AND NOT isnan(x)"


class Reading(pa.DataFrameModel):
    """A line with checks of all kinds."""

    meter_id: T.StringType = Field(str_startswith="m", str_length=(2, 8))
    read_at: T.TimestampType = Field()
    sent_at: T.TimestampType = Field()
    kwh: T.DecimalType(12, 3) = Field(gt=0, lt=100)
    state: T.StringType = Field(isin=["on", "off"], nullable=True)
    phase: T.LongType = nullable_column(1.0, 1.0, "Phase.")


READINGS = Source(
    "readings", Reading, key=["meter_id"], event_time="read_at", version_time="sent_at"
)
GOOD = {
    "meter_id": "m1",
    "read_at": "2024-01-05T10:00:00Z",
    "sent_at": "2024-01-05T10:00:00Z",
    "kwh": "1.5",
    "state": "on",
    "phase": None,
}
LINES = [
    ({}, None),
    ({"state": None}, None),
    ({"kwh": "0.001"}, None),
    ({"kwh": "0"}, "bad kwh"),
    ({"kwh": "100"}, "bad kwh"),
    ({"meter_id": "x1"}, "bad meter_id"),
    ({"meter_id": "m"}, "bad meter_id"),
    ({"state": "broken"}, "bad state"),
]


def test_a_line_that_breaks_a_check_is_rejected(spark):
    lines = [
        (
            date(2024, 1, 5),
            str(n),
            "text",
            *({**GOOD, **change}[f] for f in READINGS.fields),
            None,
            [],
        )
        for n, (change, _) in enumerate(LINES)
    ]
    frame = spark.createDataFrame(lines, lines_schema(READINGS))
    reasons = {
        row["source_file"]: row["_reason"]
        for row in read_versions([frame], READINGS, "UTC").collect()
    }
    assert [reasons[str(n)] for n in range(len(LINES))] == [reason for _, reason in LINES]


def test_the_tables_of_a_source_have_its_checks():
    for table in (READINGS.raw, READINGS.staged, READINGS.late):
        assert table.check_constraints["kwh_greater_than"] == "kwh > 0"
        assert table.check_constraints["state_isin"] == "state IS NULL OR state IN ('on', 'off')"


class Energy(pa.DataFrameModel):
    """Energy of a meter."""

    run_date: T.DateType = Field()
    meter_id: T.StringType = Field(str_matches=r"m\d+", str_startswith="m")
    state: T.StringType = Field(isin=["it's on", "off"])

    class Config:
        """Pandera's own word for a key."""

        unique = "meter_id"


def test_a_table_has_the_key_that_pandera_calls_unique():
    assert Table("energy", Energy, partition="run_date").key == ("meter_id",)
