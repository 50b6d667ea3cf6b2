"""Mistakes in declarations: each is refused in one sentence, when the module is imported."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from backfill_assets.settings import SettingsError
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import load_tables

#: A module without a mistake; each case replaces a part of it.
MODULE = """
from datetime import date
from typing import Annotated, ClassVar
import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from backfill_assets import *

class Reading(pa.DataFrameModel):
    meter_id: T.StringType = Field(description="The meter.")
    read_at: T.TimestampType = Field(description="When it was read.")
    sent_at: T.TimestampType = Field(description="When this was sent.")
    kwh: T.DecimalType(12, 3) = Field(ge=0, description="Energy.")
    state: T.StringType = nullable(0.1, 0.5, "State.")

READINGS = Source(
    "readings",
    Reading,
    key=["meter_id", "read_at"],
    event_time="read_at",
    version_time="sent_at",
    amount="kwh",
)

class DailyEnergy(pa.DataFrameModel):
    run_date: T.DateType = Field(description="The day.")
    meter_id: T.StringType = Field(description="The meter.")
    kwh: T.DecimalType(22, 3) = Field(ge=0, description="Energy.")

    class Config:
        strict = True
        metadata: ClassVar = {"partition": "run_date", "key": ["meter_id"], "totals": ["kwh"]}

@table(DailyEnergy, checks=[conserves("readings", "kwh", "kwh")])
def daily_energy(readings: Annotated[DataFrame, Reads(READINGS.staged)]) -> DataFrame:
    ...

TABLES = [READINGS, daily_energy]
"""
KWH, KEY = 'kwh: T.DecimalType(12, 3) = Field(ge=0, description="Energy.")', '"key": ["meter_id"]'
TOTALS, READS = '"totals": ["kwh"]', "Reads(READINGS.staged)"
BODY = "    ...\n\nTABLES"
DECLARED = 'DailyEnergy, checks=[conserves("readings", "kwh", "kwh")]'
STATE = 'state: T.StringType = nullable(0.1, 0.5, "State.")'


def kwh(field: str, kind: str = "T.DecimalType(12, 3)") -> str:
    return f"kwh: {kind} = Field({field})"


MISTAKES = {
    # Sources.
    "a folder": ('"readings",\n', '"my readings",\n', "source my readings: name is 'my readings'"),
    "no model": (
        "    Reading,\n",
        '    "Reading",\n',
        "lines is 'Reading': give a class of pandera",
    ),
    "key as text": ('["meter_id", "read_at"]', '"meter_id"', r"key is 'meter_id': give fields, as"),
    "no key": ('["meter_id", "read_at"]', "[]", r"key is \[\]: give fields"),
    "unknown key": (
        '["meter_id", "read_at"]',
        '["meter"]',
        "no field meter; did you mean 'meter_id'",
    ),
    "key is null": ('["meter_id", "read_at"]', '["state"]', "state may not be null"),
    "event time": ('event_time="read_at"', 'event_time="readat"', "did you mean 'read_at'"),
    "event time text": (
        'event_time="read_at"',
        'event_time="meter_id"',
        "meter_id must be timestamp",
    ),
    "amount": ('amount="kwh"', 'amount="meter_id"', "meter_id must be decimal"),
    "amount list": (
        'amount="kwh"',
        'amount=["kwh"]',
        r"amount is \['kwh'\]: give the name of a field",
    ),
    "start": ('amount="kwh"', 'start="2025-03-20"', "start is '2025-03-20': give a date, as date"),
    "window": (
        'amount="kwh"',
        'window_days="7"',
        "window_days is '7': give a whole number of days",
    ),
    "negative": (
        'amount="kwh"',
        "window_days=-1",
        "window_days is -1: give a whole number of days",
    ),
    "late lines": (
        'amount="kwh"',
        'late_lines="ignore"',
        'late_lines is .*: give "correct" or "drop"',
    ),
    "arrives_after": (
        'amount="kwh"',
        "arrives_after=-1",
        "arrives_after is -1: give a whole number of days",
    ),
    "hourly": ('amount="kwh"', 'hourly="yes"', "hourly is 'yes': give True or False"),
    "named": ('amount="kwh"', 'named={"raw": "x"}', "named is .*: give names by role"),
    "a double": (
        KWH,
        kwh("ge=0", "T.DoubleType"),
        "kwh is double.* Make it a DECIMAL, as T.Decimal",
    ),
    "an integer": (KWH, kwh("ge=0", "T.IntegerType"), "kwh is int, .*: make it T.LongType"),
    "own name": ("state:", "log_date:", "a field cannot be named log_date"),
    "two spellings": ("state:", "KWH:", "is there twice, as Spark does not tell upper from lower"),
    "no type": (KWH, 'kwh: "Field" = Field()', "readings: Reading is no model|no type of Spark"),
    # Checks of columns.
    "regex of a number": (
        KWH,
        kwh('str_matches="a"'),
        "kwh has the check str_matches, .*not a string",
    ),
    "a broken regex": (
        STATE,
        'state: T.StringType = Field(str_matches="[")',
        "unterminated character set",
    ),
    "a text for a number": (
        KWH,
        kwh('gt="0"'),
        "kwh has the check greater_than with '0'.*a number",
    ),
    "true for a number": (KWH, kwh("isin=[True]"), "check isin with True: .* give a number"),
    "a date for a moment": (
        "read_at: T.TimestampType = Field(",
        "read_at: T.TimestampType = Field(gt=date(2020, 1, 1), ",
        "read_at has the check greater_than with .*: give a da",
    ),
    "letters": (STATE, 'state: T.StringType = Field(isin="icu")', "with 'icu': give a list of val"),
    "no value": (KWH, kwh("isin=[]"), "kwh has the check isin of no value"),
    "no text": (STATE, "state: T.StringType = Field(str_startswith=5)", "with 5: give a text"),
    "flags": (
        STATE,
        'state: T.StringType = Field(str_matches=__import__("re").compile("a", 2))',
        "the flags of 'a': write them into the pattern",
    ),
    "a pattern of Python's": (
        STATE,
        'state: T.StringType = Field(str_matches="(?P<year>a)")',
        "'\\(\\?P<' in a pattern, which Java reads otherwise",
    ),
    "unique": (KWH, kwh("unique=True"), "unique Field argument not yet implemented"),
    "no syntax": (KWH, "kwh: T.DecimalType(12, 3) = Field(", "was never closed"),
    "metadata as list": (
        '{"partition": "run_date", "key": ["meter_id"], "totals": ["kwh"]}',
        '["run_date"]',
        "Config of DailyEnergy has metadata that is no dict",
    ),
    "coerce": (KWH, kwh("coerce=True"), "kwh has coerce=True: .* Leave that out"),
    "required": (KWH, kwh("required=False"), "kwh has required=False"),
    "regex": (KWH, kwh("regex=True"), "kwh has regex=True"),
    "only a warning": (KWH, kwh("ge=0, raise_warning=True"), "kwh has raise_warning"),
    "shares": (
        "nullable(0.1, 0.5,",
        "nullable(10, 50,",
        "nullable: warn is 10: give a share of nulls",
    ),
    "shares upside down": (
        "nullable(0.1, 0.5,",
        "nullable(0.5, 0.1,",
        "error is 0.1: .*no smaller",
    ),
    "no description": (
        'nullable(0.1, 0.5, "State.")',
        "nullable(0.1, 0.5, 3)",
        "description is 3: give",
    ),
    "added since": (
        'nullable(0.1, 0.5, "State.")',
        'added("x", "2025-01-01", "State.")',
        "since is '20",
    ),
    "added default": (
        'kwh: T.DecimalType(22, 3) = Field(ge=0, description="Energy.")',
        'kwh: T.DecimalType(22, 3) = added("none", date(2025, 1, 1), "Energy.")',
        "kwh is added with the default 'none', which is no decimal",
    ),
    "checks of a frame": (
        "    class Config:\n        strict",
        "    @pa.dataframe_check\n    def positive(cls, frame): return True\n\n"
        "    class Config:\n        strict",
        "daily_energy: the model has the check positive of a frame",
    ),
    "a check of one's own": (
        "    class Config:\n        strict",
        '    @pa.check("kwh")\n    def positive(cls, column): return True\n\n'
        "    class Config:\n        strict",
        "kwh has the check positive, and a column has gt, ge",
    ),
    # The metadata of a model.
    "keys": (
        KEY,
        '"keys": ["meter_id"]',
        "has \"keys\"; did you mean 'key'\\? There are partition",
    ),
    "total": (TOTALS, '"total": ["kwh"]', "has \"total\"; did you mean 'totals'"),
    "key is a text": (KEY, '"key": "meter_id"', "\"key\": 'meter_id'; give a list of columns"),
    "key is no column": (
        KEY,
        '"key": ["meter"]',
        "\"key\" has 'meter', .*; did you mean 'meter_id'",
    ),
    "key twice": (KEY, '"key": ["meter_id", "meter_id"]', "\"key\" has 'meter_id' more than once"),
    "two keys": ("strict = True", 'strict = True; unique = ["run_date"]', "leave one of them out"),
    "total is no column": (TOTALS, '"totals": ["kw"]', "kw is one of the totals and no column"),
    "total is text": (
        TOTALS,
        '"totals": ["meter_id"]',
        "meter_id is one of the totals and has the",
    ),
    "counts": (
        TOTALS,
        '"counts": {"open": 3}',
        "\"counts\" has 'open': 3; give a condition in SQL",
    ),
    "rules": (
        TOTALS,
        '"rules": {"paid": "kwh > 0"}',
        "\"rules\" has 'paid': .*give a condition in SQL",
    ),
    "rules as list": (TOTALS, '"rules": ["kwh > 0"]', '"rules": .*; give conditions by name'),
    "skew": (
        TOTALS,
        '"totals": ["kwh"], "skew": {"meter": 0.2}',
        "skew of meter, which is no column",
    ),
    "skew as text": (
        TOTALS,
        '"skew": {"meter_id": "0.2"}',
        "\"skew\" has 'meter_id': '0.2'; give a",
    ),
    "drift": (TOTALS, '"drift": ["kwh"]', '"drift": .*; give bounds by column'),
    "no partition": ('"partition": "run_date"', '"partition": ["run_date"]', "not one column"),
    "partition is text": (
        '"partition": "run_date"',
        '"partition": "meter_id"',
        "is a string, not a d",
    ),
    "Config": ("metadata: ClassVar", "metadatum: ClassVar", "'metadatum'; did you mean 'metadata'"),
    "metadata of lines": (
        f"    {STATE}\n",
        f'    {STATE}\n    class Config:\n        metadata: ClassVar = {{"key": ["meter_id"]}}\n',
        'source readings: the metadata of its lines has "key"',
    ),
    # Tables.
    "no parentheses": (
        f"@table({DECLARED})",
        "@table",
        "@table: model is the function daily_energy",
    ),
    "no table model": (
        DECLARED,
        '"DailyEnergy"',
        "@table: model is 'DailyEnergy': give a class of",
    ),
    "a lambda": (
        DECLARED,
        "DailyEnergy, checks=[lambda rows: rows]",
        "checks is .*: give a list of",
    ),
    "one check": (
        DECLARED,
        'DailyEnergy, checks=conserves("readings", "kwh", "kwh")',
        "checks is .*: ",
    ),
    "group": (DECLARED, 'DailyEnergy, group="my group"', "group is 'my group': give letters"),
    "frozen": (DECLARED, 'DailyEnergy, frozen="yes"', "frozen is 'yes': give True or False"),
    "retired": (
        DECLARED,
        'DailyEnergy, retired="2025-01-01"',
        "retired is '2025-01-01': give a date",
    ),
    "depends_on": (
        DECLARED,
        'DailyEnergy, depends_on="rules"',
        "depends_on is 'rules': give a list",
    ),
    "lineage": (
        DECLARED,
        'DailyEnergy, lineage={"kwh": "kwh"}',
        "lineage is .*: give pairs of table",
    ),
    "conserves": (
        DECLARED,
        'DailyEnergy, checks=[conserves("reading", "kwh", "kwh")]',
        "no parameter re",
    ),
    "conserves a column": (
        DECLARED,
        'DailyEnergy, checks=[conserves("readings", "kw", "kwh")]',
        "did you mean 'kwh'",
    ),
    "conserves no name": (
        DECLARED,
        'DailyEnergy, checks=[conserves("readings", "kwh", 1)]',
        "total is 1",
    ),
    "forbids": (
        DECLARED,
        'DailyEnergy, checks=[forbids("x", "kwh > 0", "No.")]',
        "find is 'kwh > 0': g",
    ),
    "reads a source": (
        READS,
        "Reads(READINGS)",
        "readings: the table of Reads is the Source readings: gi",
    ),
    "reads a name": (
        READS,
        'Reads("stg_readings")',
        "the table of Reads is 'stg_readings': give a table",
    ),
    "reads seven": (
        READS,
        "Reads(READINGS.staged, 7)",
        r"the reach is 7: give SAME_DAY, last_days\(7\)",
    ),
    "no days": (
        READS,
        "Reads(READINGS.staged, last_days(0))",
        r"last_days\(0\): give a whole number of 1",
    ),
    "days as text": (
        READS,
        'Reads(READINGS.staged, last_days("7"))',
        r"last_days\('7'\): give a whole",
    ),
    "as known": (READS, "Reads(READINGS.staged, as_known=True)", "of the raw log of a source"),
    "no Reads": (
        "Annotated[DataFrame, Reads(READINGS.staged)]",
        "DataFrame",
        "annotate readings as Anno",
    ),
    "a version": (
        f"@table({DECLARED})",
        "@version_of(READINGS, 2)",
        "@version_of: other is the Source readings",
    ),
    # What is listed.
    "one table": (
        "TABLES = [READINGS, daily_energy]",
        "TABLES = daily_energy",
        "it is the Derived daily_",
    ),
    "a function": (
        "TABLES = [READINGS, daily_energy]",
        "TABLES = [READINGS, len]",
        "is neither a table",
    ),
    "a list in a list": (
        "TABLES = [READINGS, daily_energy]",
        "TABLES = [[READINGS]]",
        r"write \*LIST to",
    ),
    "twice": (
        "TABLES = [READINGS, daily_energy]",
        "TABLES = [READINGS, READINGS]",
        "two tables are named",
    ),
    # What gives other rows each time.
    "a clock": (
        BODY,
        "    return readings.where(f'run_date < {date.today()}')\n\nTABLES",
        r"daily_energy: `date.today\(\)` in .*mistakes_.*, line 37, gives other rows .*for_day",
    ),
    "a clock of Spark": (
        BODY,
        "    from_spark = F.current_date()\n\nfrom pyspark.sql import functions as F\nTABLES",
        r"`current_date\(\)` in .*: take the day from the column `for_day`",
    ),
    "a clock in SQL": (
        BODY,
        "    return readings.selectExpr('CURRENT_DATE AS run_date')\n\nTABLES",
        "`CURRENT_DATE` in .*for_day",
    ),
    "random without a seed, in a function below": (
        BODY,
        "    return pick(readings)\n\nfrom pyspark.sql import functions as F\n"
        "def pick(rows): return rows.where(F.rand() < 0.5)\nTABLES",
        "daily_energy: `rand` without a seed in .*line 40, gives .*: take a hash of the key and",
    ),
    "random of Python": (
        BODY,
        "    return readings.limit(random.randint(1, 9))\n\nimport random\nTABLES",
        r"`random.randint\(\)` in .*take a hash",
    ),
    "a bare clock in SQL": (
        BODY,
        "    return readings.where(F.expr('run_date < date_sub(CURRENT_DATE, 7)'))\n\n"
        "from pyspark.sql import functions as F\nTABLES",
        "`CURRENT_DATE` in .*for_day",
    ),
    "random in SQL": (
        BODY,
        "    return readings.where('rand() < 0.1')\n\nTABLES",
        r"`rand\(\)` in .*take a hash of the key and a seed, as `F.xxhash64",
    ),
    "no list": ("TABLES = [READINGS, daily_energy]", "", "has no attribute 'TABLES'"),
}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch):
    """Import a module of some text as the tables of a deployment."""
    monkeypatch.syspath_prepend(tmp_path)

    def import_tables(text: str) -> None:
        name = f"mistakes_{len(list(tmp_path.iterdir()))}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        try:
            load_tables(f"{name}:TABLES")
        finally:
            sys.modules.pop(name, None)

    return import_tables


@pytest.mark.parametrize(
    ("right", "other"),
    [
        ("", ""),
        ("[READINGS, daily_energy]", "{'a': READINGS, 'b': daily_energy}.values()"),
        ("[READINGS, daily_energy]", "(one for one in (READINGS, daily_energy))"),
        ('["meter_id", "read_at"]', '{"meter_id": 1, "read_at": 2}.keys()'),
        ("    kwh: ", "    n: T.LongType = Field(ge=0.0)\n    kwh: "),
        (STATE, 'state: T.StringType = Field(nullable=True, metadata={"map": 1, "jsonpath": "$"})'),
        (DECLARED, 'DailyEnergy, group="7d/energy"'),
        ("@table", "daily = Unpartitioned('shop.meters-of-now', 's3a://bucket/x')\n@table"),
        ("strict = True", "coerce = False"),
        (
            BODY,
            '    """No current_date() here."""\n'
            "    def older(x):\n"
            "        'Not now().'\n"
            "        raise ValueError('give a day, and not now()')\n"
            "    F.unix_timestamp(timestamp=F.col('x'), format='y')\n"
            "    random.Random(7)\n"
            "    F.lit('asked by current_date as of noon')\n"
            "    return readings.where(F.rand(7) < 1).where('now' != F.lit(date(2024, 1, 1)))"
            "\n\nimport random\nfrom pyspark.sql import functions as F\nTABLES",
        ),
    ],
)
def test_what_is_no_mistake(imported, right, other):
    imported(MODULE.replace(right, other, 1))


@pytest.mark.parametrize(("right", "wrong", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_in_a_sentence(imported, right, wrong, said):
    assert MODULE.count(right) >= 1
    with pytest.raises(SettingsError) as refused:
        imported(MODULE.replace(right, wrong, 1))
    text = str(refused.value)
    assert re.search(said, text), text
    assert "\n" not in text
    if isinstance(refused.value.__cause__, DeclarationError | ValueError):
        assert re.search(r"\(.*mistakes_.*\.py, line \d+\)$", text), "it names the file"
