"""Mistakes in declarations: each is refused in one sentence, when the module is imported."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from backfill_assets.settings import SettingsError
from backfill_assets.tables.arguments import DeclarationError, DeclarationWarning
from backfill_assets.tables.graph import load_tables

#: A module without a mistake; each case replaces a part of it.
MODULE = """
from datetime import date
from typing import Annotated
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
    state: T.StringType = nullable_column(0.1, 0.5, "State.")

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

@table(
    DailyEnergy,
    partition="run_date", key=["meter_id"], totals=["kwh"],
    checks=[conserves_total("readings", "kwh", "kwh")],
)
def daily_energy(readings: Annotated[DataFrame, Reads(READINGS.staged)]) -> DataFrame:
    ...

TABLES = [READINGS, daily_energy]
"""
KWH, KEY = 'kwh: T.DecimalType(12, 3) = Field(ge=0, description="Energy.")', 'key=["meter_id"]'
TABLE_METER = 'meter_id: T.StringType = Field(description="The meter.")\n    kwh'
TABLE_KWH = '    kwh: T.DecimalType(22, 3) = Field(ge=0, description="Energy.")\n'
PARTITION, TOTALS, READS = 'partition="run_date"', 'totals=["kwh"]', "Reads(READINGS.staged)"
BODY = "    ...\n\nTABLES"
CHECKS = 'checks=[conserves_total("readings", "kwh", "kwh")]'
DECLARED = f"@table(\n    DailyEnergy,\n    {PARTITION}, {KEY}, {TOTALS},\n    {CHECKS},\n)"
STATE = 'state: T.StringType = nullable_column(0.1, 0.5, "State.")'


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
        "meter_id must be timestamp or date",
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
    "sums beyond 38 digits": (
        KWH,
        kwh("ge=0", "T.DecimalType(38, 0)"),
        r"kwh is one of the totals and has the type decimal\(38,0\), .* at most 28, as decimal\(28",
    ),
    "an integer": (KWH, kwh("ge=0", "T.IntegerType"), "kwh is int, .*: make it T.LongType"),
    "own name": ("state:", "log_date:", "a field cannot be named log_date"),
    "two spellings": ("state:", "KWH:", "is there twice, as Spark does not tell upper from lower"),
    "times without a zone": (
        TABLE_KWH,
        f"{TABLE_KWH}    at: T.ArrayType(T.TimestampNTZType())\n",
        "at is array<timestamp_ntz>, and no table has values of timestamp_ntz: take one of str",
    ),
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
    "a pattern of Java's": (
        STATE,
        'state: T.StringType = Field(str_matches=r"\\p{L}+")',
        r"`state: .*p\{L\}.*`: bad escape \\p .*compiles the pattern .* in Python .*\"rules\"",
    ),
    "a union of Java's": (
        STATE,
        'state: T.StringType = Field(str_matches="[a[b]")',
        r"state has the check str_matches with '\[a\[b\]' in a pattern, which Java reads otherw",
    ),
    "a brace": (
        STATE,
        'state: T.StringType = Field(str_matches="a{,3}")',
        r"with '\{,3\}' in a pattern, which Java reads otherwise",
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
    "unique": (KWH, kwh("unique=True"), r"`kwh: .*`: unique Field argument not yet implemented"),
    "no syntax": (KWH, "kwh: T.DecimalType(12, 3) = Field(", "was never closed"),
    "coerce": (KWH, kwh("coerce=True"), "kwh has coerce=True: .* Leave that out"),
    "required": (KWH, kwh("required=False"), "kwh has required=False"),
    "regex": (KWH, kwh("regex=True"), "kwh has regex=True"),
    "only a warning": (KWH, kwh("ge=0, raise_warning=True"), "kwh has raise_warning"),
    "shares": (
        "nullable_column(0.1, 0.5,",
        "nullable_column(10, 50,",
        "nullable_column: warn is 10: give a share of nulls",
    ),
    "shares upside down": (
        "nullable_column(0.1, 0.5,",
        "nullable_column(0.5, 0.1,",
        "error is 0.1: .*no smaller",
    ),
    "no description": (
        'nullable_column(0.1, 0.5, "State.")',
        "nullable_column(0.1, 0.5, 3)",
        "description is 3: give",
    ),
    "added since": (
        'nullable_column(0.1, 0.5, "State.")',
        'added_column("x", "2025-01-01", "State.")',
        "since is '20",
    ),
    "added default": (
        'kwh: T.DecimalType(22, 3) = Field(ge=0, description="Energy.")',
        'kwh: T.DecimalType(22, 3) = added_column("none", date(2025, 1, 1), "Energy.")',
        "kwh is added with the default 'none', which is no decimal",
    ),
    "checks of a frame": (
        TABLE_KWH,
        f"{TABLE_KWH}\n    @pa.dataframe_check\n    def positive(cls, frame): return True\n",
        "daily_energy: the model has the check positive of a frame",
    ),
    "a check of one's own": (
        TABLE_KWH,
        f'{TABLE_KWH}\n    @pa.check("kwh")\n    def positive(cls, column): return True\n',
        "kwh has the check positive, and a column has gt, ge",
    ),
    # The options of a table.
    "keys": (KEY, 'keys=["meter_id"]', "@table has no argument 'keys'; did you mean 'key'\\?"),
    "total": (TOTALS, 'total=["kwh"]', "has no argument 'total'; did you mean 'totals'\\?"),
    "key is a text": (KEY, 'key="meter_id"', "key is 'meter_id': give a list of columns, as"),
    "key is no column": (KEY, 'key=["meter"]', "key has 'meter', .*; did you mean 'meter_id'"),
    "a key of doubles": (
        TABLE_METER,
        TABLE_METER.replace("T.StringType", "T.ArrayType(T.DoubleType())"),
        "meter_id is array<double>, and part of the key: .* Take a DECIMAL",
    ),
    "a merge of maps": (
        f"{TABLE_KWH}\n@table(",
        f"{TABLE_KWH}    limits: T.MapType(T.StringType(), T.LongType())\n\n"
        "@table(merge=True, model=",
        "merge of rows with the map limits: .* Leave merge out",
    ),
    "merge as text": (TOTALS, 'merge="no"', "merge is 'no': give True or False"),
    "key twice": (KEY, 'key=["meter_id", "meter_id"]', "key has 'meter_id' more than once"),
    "two keys": (
        TABLE_KWH,
        f'{TABLE_KWH}\n    class Config:\n        unique = ["run_date"]\n',
        "leave one of them out",
    ),
    "total is no column": (TOTALS, 'totals=["kw"]', "kw is one of the totals and no column"),
    "total is text": (
        TOTALS,
        'totals=["meter_id"]',
        "meter_id is one of the totals and has the",
    ),
    "counts": (TOTALS, 'counts={"open": 3}', "counts of 'open' is 3: give a condition in SQL"),
    "rules": (
        TOTALS,
        'rules={"paid": "kwh > 0"}',
        "rules of 'paid' is 'kwh > 0': give a condition in SQL and a description, as in",
    ),
    "rules as list": (TOTALS, 'rules=["kwh > 0"]', "rules is .*: give .* by name, as {'paid'"),
    "skew": (TOTALS, f'{TOTALS}, skew={{"meter": 0.2}}', "skew of meter, which is no column"),
    "skew as text": (
        TOTALS,
        'skew={"meter_id": "0.2"}',
        "skew of 'meter_id' is '0.2': give a share between 0 and 1",
    ),
    "drift": (TOTALS, 'drift=["kwh"]', "drift is .*: give a number by name, as"),
    "schema version": (TOTALS, "schema_version=True", "schema_version is True: give a whole"),
    "no partition": (f"{PARTITION}, ", "", "missing 1 required keyword-only argument: 'partition'"),
    "two partitions": (
        PARTITION,
        'partition=["run_date"]',
        r"partition is \['run_date'\]: give the column of the day, or \(\"run_date\", \"region\"\)",
    ),
    "partition is text": (PARTITION, 'partition="meter_id"', "is a string, not a d"),
    "partition is no column": (
        PARTITION,
        'partition="rundate"',
        "partition is 'rundate', which is no column; did you mean 'run_date'",
    ),
    "Config": (
        TABLE_KWH,
        f"{TABLE_KWH}\n    class Config:\n        metadatum = {{}}\n",
        "'metadatum'; did you mean 'metadata'",
    ),
    # Options in the model, where they are no longer read.
    "metadata": (
        f"{TABLE_KWH}\n@table(\n    DailyEnergy,\n    {PARTITION}, {KEY}, {TOTALS},\n",
        f"{TABLE_KWH}\n    class Config:\n        strict = True\n"
        '        metadata = {"partition": "run_date", "key": ["meter_id"], "of_mine": 1}\n\n'
        "@table(\n    DailyEnergy,\n",
        r"Config.metadata of DailyEnergy has 'partition', 'key', .*: write "
        r"@table\(DailyEnergy, partition='run_date', key=\['meter_id'\]\), and take",
    ),
    "metadata of a version": (
        BODY,
        "    ...\n\nclass Wider(DailyEnergy):\n    class Config:\n"
        '        metadata = {"rules": no_leaks("a", carries=[], began="b", known="c")}\n\n'
        "@version_of(daily_energy, 2, model=Wider)\n"
        "def second(readings: Annotated[DataFrame, Reads(READINGS.staged)]): ...\n\nTABLES",
        r"write @version_of\(\.\.\., model=Wider, rules={'b_by_a': \('b IS NULL OR b <= a', ",
    ),
    "metadata of lines": (
        f"    {STATE}\n",
        f'    {STATE}\n    class Config:\n        metadata = {{"skew": {{"meter_id": 0.2}}}}\n',
        r"write Source\('readings', Reading, skew={'meter_id': 0.2}\), and take it out",
    ),
    "skew of lines": (
        '    amount="kwh",\n',
        '    amount="kwh",\n    skew={"meter": 0.2},\n',
        "stg_readings: skew of meter, which is no column of it that can be a key",
    ),
    # Tables.
    "no parentheses": (
        DECLARED,
        "@table",
        "@table: model is the function daily_energy",
    ),
    "no table model": (
        "    DailyEnergy",
        '    "DailyEnergy"',
        "@table: model is 'DailyEnergy': give a class of",
    ),
    "a lambda": (
        CHECKS,
        "checks=[lambda rows: rows]",
        "checks is .*: give a list of",
    ),
    "one check": (
        CHECKS,
        'checks=conserves_total("readings", "kwh", "kwh")',
        "checks is .*: ",
    ),
    "group": (CHECKS, 'group="my group"', "group is 'my group': give letters"),
    "frozen": (CHECKS, 'frozen="yes"', "frozen is 'yes': give True or False"),
    "retired": (
        CHECKS,
        'retired="2025-01-01"',
        "retired is '2025-01-01': give a date",
    ),
    "depends_on": (
        CHECKS,
        'depends_on="rules"',
        "depends_on is 'rules': give a list",
    ),
    "lineage": (
        CHECKS,
        'lineage={"kwh": "kwh"}',
        "lineage is .*: give pairs of table",
    ),
    "conserves": (
        CHECKS,
        'checks=[conserves_total("reading", "kwh", "kwh")]',
        "no parameter re",
    ),
    "conserves a column": (
        CHECKS,
        'checks=[conserves_total("readings", "kw", "kwh")]',
        "did you mean 'kwh'",
    ),
    "conserves a text": (
        CHECKS,
        'checks=[conserves_total("readings", "state", "kwh")]',
        r"stg_readings\.state is conserved and has the type string, whose sum",
    ),
    "conserves rows by a decimal": (
        CHECKS,
        'checks=[conserves_total("readings", "kwh")]',
        "stg_readings.kwh adds up to, which is no whole number: name a total",
    ),
    "conserves a total twice": (
        CHECKS,
        'checks=[conserves_total("readings", c, "kwh") for c in ("kwh", None)]',
        "two checks compare kwh with readings: take one out",
    ),
    "conserves no name": (
        CHECKS,
        'checks=[conserves_total("readings", "kwh", 1)]',
        "total is 1",
    ),
    "forbids": (
        CHECKS,
        'checks=[forbids_rows("x", "kwh > 0", "No.")]',
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
        DECLARED,
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
    "a source in part": (
        "TABLES = [READINGS, daily_energy]",
        "TABLES = [READINGS.raw, READINGS.staged, daily_energy]",
        "source readings is listed without raw_readings_rejected, and one run loads",
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
    "random, in a function below": (
        BODY,
        "    return pick(readings)\n\nfrom pyspark.sql import functions as F\n"
        "def pick(rows): return rows.where(F.rand() < 0.5)\nTABLES",
        r"daily_energy: `rand\(\)` in .*line 40, gives .*: take a hash of the key and",
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
    # What is reached from a function.
    "a lambda of the module": (
        BODY,
        "    return readings.where(today() > F.lit(1))\n\n"
        "from pyspark.sql import functions as F\ntoday = lambda: F.current_date()\nTABLES",
        r"`current_date\(\)` in .*, line 40, ",
    ),
    "a partial": (
        BODY,
        "    return readings.where(draw() < 0.5)\n\nfrom functools import partial\n"
        "from pyspark.sql import functions as F\ndraw = partial(F.rand)\nTABLES",
        r"`rand\(\)` in .*, line 41, ",
    ),
    "a partial without the last argument": (
        BODY,
        "    return readings.where(F.lit(year()))\n\nimport time\nfrom functools import partial\n"
        "from pyspark.sql import functions as F\nyear = partial(time.strftime, '%Y')\nTABLES",
        r"`time.strftime\(\)` in .*, line 42, ",
    ),
    "a method": (
        BODY,
        "    return readings.where(F.lit(CALENDAR.age_of('x')) > 1)\n\n"
        "from pyspark.sql import functions as F\n"
        "class Base:\n    def today(self): return date.today()\n"
        "class Calendar(Base):\n    def age_of(self, day): return self.today() - day\n"
        "CALENDAR = Calendar()\nTABLES",
        r"`date.today\(\)` in .*, line 41, ",
    ),
    "a static method and a property": (
        BODY,
        "    return readings.where(Calendar.first().month)\n\n"
        "class Calendar:\n    @staticmethod\n    def first(): return Calendar()\n"
        "    @property\n    def month(self): return date.today().month\nTABLES",
        r"`date.today\(\)` in .*, line 43, ",
    ),
    "a constant": (
        BODY,
        "    return readings.where(F.col('read_at') < F.lit(TODAY))\n\n"
        "from pyspark.sql import functions as F\nTODAY = date.today()\nTABLES",
        r"`date.today\(\)` in .*, line 40, ",
    ),
    "a constant of a constant, as a default": (
        BODY,
        "    return recent(readings)\n\nfrom datetime import timedelta\n"
        "TODAY = date.today()\nFIRST: date = TODAY - timedelta(7)\n"
        "def recent(rows, first=FIRST): return rows.where(rows.read_at > first)\nTABLES",
        r"`date.today\(\)` in .*, line 40, ",
    ),
    "a constant under a condition": (
        BODY,
        "    return readings.where(LIMIT)\n\nif date.today().year > 2024:\n    LIMIT = 'kwh < 1'\n"
        "else:\n    LIMIT = 'kwh < 2'\nTABLES",
        r"`date.today\(\)` in .*, line 39, ",
    ),
    "a UDF": (
        BODY,
        "    return readings.withColumn('kwh', drawn('kwh'))\n\nimport random\n"
        "from pyspark.sql import functions as F\n@F.udf(T.DoubleType())\n"
        "def drawn(kwh):\n    return kwh * random.random()\nTABLES",
        r"`random.random\(\)` in .*, line 43, ",
    ),
    "a UDF of a lambda": (
        BODY,
        "    return readings.withColumn('at', F.udf(lambda: time.time())())\n\n"
        "import time\nfrom pyspark.sql import functions as F\nTABLES",
        r"`time.time\(\)` in .*, line 37, ",
    ),
    "a decorator": (
        BODY,
        "    return pick(readings)\n\ndef dated(function):\n"
        "    return lambda rows: function(rows).where(f'kwh < {date.today().day}')\n"
        "@dated\ndef pick(rows): return rows\nTABLES",
        r"`date.today\(\)` in .*, line 40, ",
    ),
    "a function that is handed on": (
        BODY,
        "    return readings.transform(pick)\n\nfrom pyspark.sql import functions as F\n"
        "def pick(rows): return rows.withColumn('day', F.current_date())\nTABLES",
        r"`current_date\(\)` in .*, line 40, ",
    ),
    "other names": (
        BODY,
        "    clock = dt.datetime\n    now = clock.now\n    return readings.where(now())\n\n"
        "import datetime as dt\nTABLES",
        r"`datetime.now\(\)` in .*, line 38, ",
    ),
    "an import in the function": (
        BODY,
        "    from datetime import datetime as clock\n    return readings.where(clock.now())\n\n"
        "TABLES",
        r"`datetime.now\(\)` in .*, line 38, ",
    ),
    "names that a star imports": (
        BODY,
        "    return readings.where(rand() < 0.5)\n\nfrom pyspark.sql.functions import *\nTABLES",
        r"`rand\(\)` in .*, line 37, ",
    ),
    "a check": (
        DECLARED,
        "def late(rows): return rows.where('run_date > current_date()')\n"
        "@table(DailyEnergy, partition='run_date', key=['meter_id'], "
        "checks=[forbids_rows('late', late, 'None is of tomorrow.')])",
        r"daily_energy: `current_date\(\)` in .*, line 31, ",
    ),
    "requests to a lookup": (
        f"{DECLARED}\ndef daily_energy(",
        "class Rate(pa.DataFrameModel):\n    state: T.StringType\n    rate: T.DoubleType\n"
        "RATES = Lookup('rates', Rate, request=['state'], path='/{state}', url='RATES_URL', "
        "quota=[Quota(9, 'second')])\n"
        "def needed(readings): return readings.where('rand() < 0.5').select('for_day', 'state')\n"
        f"{DECLARED}\n"
        "def daily_energy(rates: Annotated[DataFrame, LookupAnswers(RATES, of=needed)], ",
        r"daily_energy: `rand\(\)` in .*, line 35, ",
    ),
    # SQL that is no literal of the call.
    **{
        f"SQL in {what}": (
            BODY,
            f"    return readings.{used}\n\n"
            f"from functools import partial\nfrom pyspark.sql import functions as F\n{made}\n"
            "TABLES",
            "`(current_date|now).* in .*for_day",
        )
        for what, used, made in [
            ("a constant", "where(F.expr(LATE))", "LATE = 'run_date < current_date()'"),
            ("a class", "where(Sql.LATE)", "class Sql: LATE = 'run_date < current_date()'"),
            ("a mapping", "where(SQL['late'])", "SQL = {'late': 'run_date < current_date()'}"),
            ("a list", "selectExpr(*SQL)", "SQL = ['*', 'current_date() AS day']"),
            ("an item", "select(*map(F.expr, SQL))", "SQL = []\nSQL[0:] = ['current_date()']"),
            ("a text of parts", "where(f'run_date < {DAY}')", "DAY = 'current_' + 'date()'"),
            ("a format", "where(LATE.format('run_date'))", "LATE = '{} < current_date()'"),
            (
                "a file",
                "where(LATE)",
                "LATE = open(__file__).read().splitlines()[-2][2:]\n# now() > 1",
            ),
            ("a function", "where(late())", "def late(): return 'run_date < current_date()'"),
            ("a partial", "select(day())", "day = partial(F.expr, 'current_date()')"),
            (
                "a parameter",
                "transform(late, 'run_date < current_date()')",
                "def late(rows, sql):\n    return rows.where(sql)",
            ),
            (
                "an object",
                "transform(Rule('run_date < current_date()').filtered)",
                "class Rule:\n    def __init__(self, sql): self.sql = sql\n"
                "    def filtered(self, rows): return rows.where(self.sql)",
            ),
            ("a name", "select(F.call_function('current_date'))", ""),
        ]
    },
    # Other clocks, other chance.
    **{
        call: (
            BODY,
            f"    return readings.where(str({call}))\n\nimport os, random, secrets, time, uuid\n"
            "from datetime import datetime, timezone\nimport numpy as np\nimport pandas as pd\n"
            "from pyspark.sql import functions as F\nRNG = random.Random(7)\nTABLES",
            f"in .*, line 37, gives other rows .*: take {advice}",
        )
        for advice, calls in {
            "the day": [
                *("time.strftime('%Y')", "time.localtime()", "time.gmtime(None)", "time.time_ns()"),
                *("datetime.now(timezone.utc)", "datetime.utcnow()", "F.unix_timestamp()"),
                *("pd.Timestamp.now()", "pd.Timestamp.today()", "pd.Timestamp('now')"),
                *("pd.to_datetime('today')", "np.datetime64('now')", "F.current_time()"),
                *("F.expr('unix_timestamp()')", "F.expr(\"DATE 'today'\")"),
                *("F.expr('localtimestamp')", "F.now()"),
            ],
            "a hash": [
                *("np.random.rand()", "np.random.default_rng().random()", "random.Random()"),
                *("random.Random(None)", "random.SystemRandom(7)", "RNG.random()", "os.urandom(4)"),
                *("uuid.uuid4()", "secrets.token_hex()", "F.rand(7)", "F.randn(seed=7)"),
                *("F.shuffle('x', 7)", "F.monotonically_increasing_id()", "F.expr('rand(7)')"),
                *("F.expr('uniform(0, 9, 7)')", "readings.sample(0.1)", "readings.sample(0.1, 7)"),
                *("readings.limit(9).sample(fraction=0.1, seed=7)", "readings.randomSplit([1, 2])"),
            ],
        }.items()
        for call in calls
    },
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
        ("[READINGS, daily_energy]", "[*READINGS.tables, daily_energy]"),
        ("[READINGS, daily_energy]", "(one for one in (READINGS, daily_energy))"),
        ('["meter_id", "read_at"]', '{"meter_id": 1, "read_at": 2}.keys()'),
        ("    kwh: ", "    n: T.LongType = Field(ge=0.0)\n    kwh: "),
        (STATE, 'state: T.StringType = Field(nullable=True, metadata={"map": 1, "jsonpath": "$"})'),
        (CHECKS, 'group="7d/energy"'),
        ("@table", "daily = Unpartitioned('shop.meters-of-now', 's3a://bucket/x')\n@table"),
        (TABLE_KWH, f"{TABLE_KWH}\n    class Config:\n        coerce = False\n"),
        (TABLE_KWH, f"{TABLE_KWH}\n    class Config:\n        metadata = {{'owner': 'energy'}}\n"),
        (STATE, r'state: T.StringType = Field(str_matches=r"[]\[a{]\{a{1,2}b{3}\N{DIGIT ONE}")'),
        (
            BODY,
            '    """No current_date() here."""\n'
            "    def older(x):\n"
            "        'Not now().'\n"
            "        raise ValueError('give a day, and not now()')\n"
            "    F.unix_timestamp(timestamp=F.col('x'), format='y')\n"
            "    random.Random(7)\n"
            "    F.lit('asked by current_date as of noon')\n"
            "    return readings.where('now' != F.lit(date(2024, 1, 1)))"
            "\n\nimport random\nfrom pyspark.sql import functions as F\nTABLES",
        ),
        # Reached by the function, or not reached.
        (
            BODY,
            "    rng = np.random.default_rng(7)\n"
            "    started = time.perf_counter()\n"
            "    print(rng.random(), random.Random(7).sample([1, 2], 1), WEIGHTS, started)\n"
            "    print(time.strftime('%Y', time.gmtime(0)), uuid.uuid5(uuid.NAMESPACE_URL, 'x'))\n"
            "    print(pd.Timestamp('2024-01-01'), datetime(2024, 1, 1), NOTE, SAMPLER.sample(9))\n"
            "    rows = readings.where(\"state <> 'now()' AND `current_date` > 1 -- not rand()\")\n"
            "    rows = rows.where(F.col('state') == NOTE).where(F.col('state').isin('now()'))\n"
            "    rows = rows.select('now', F.col('current_date'))\n"
            "    return pick(rows, random.Random(7), now=1)\n\n"
            "import random, time, uuid\nfrom datetime import datetime\n"
            "import numpy as np\nimport pandas as pd\nfrom pyspark.sql import functions as F\n"
            "WEIGHTS = random.Random(7).sample([1, 2], 1)\n"
            "NOTE = 'as of current_date()'\n"
            "def pick(rows, rng: random.Random, now, time=None):\n"
            "    return rows.where(f'kwh > {rng.sample([1, now], 1)[0]} OR {time.time} IS NULL')\n"
            "class Sampler:\n"
            "    def sample(self, number): return number\n"
            "    def created_at(self): return datetime.now()\n"
            "SAMPLER = Sampler()\nLOADED_AT = datetime.now()\n"
            "def report(): return random.random(), LOADED_AT, F.rand()\nTABLES",
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


def test_a_table_without_a_key_has_a_warning_that_says_what_is_not_checked(imported):
    with pytest.warns(DeclarationWarning, match="daily_energy has no key: no check finds") as found:
        imported(MODULE.replace(f" {KEY},", ""))
    (warning,) = found
    assert re.search(r"mistakes_.*\.py", warning.filename)
    assert MODULE.splitlines()[warning.lineno - 1] == "@table("
    # `filterwarnings` of the tests makes an error of it.
    imported(MODULE.replace(KEY, "key=[]"))
    unique = f'{TABLE_KWH}\n    class Config:\n        unique = "meter_id"\n'
    imported(MODULE.replace(f" {KEY},", "").replace(TABLE_KWH, unique))


def test_a_function_is_read_through_the_modules_of_its_project(tmp_path, monkeypatch):
    # Installed as a wheel is: what is in `site-packages` is read if the tables are there, too.
    package = tmp_path / "site-packages" / f"read_{tmp_path.name}".replace("-", "_")
    package.mkdir(parents=True)
    monkeypatch.syspath_prepend(package.parent)
    body = "    return since(readings, days.FIRST)\n\nfrom . import days, since\nTABLES"
    (package / "tables.py").write_text(MODULE.replace(BODY, body))
    (package / "days.py").write_text("from .clocks import *\nFIRST = start() - 7\n")
    (package / "clocks.py").write_text("import time\n\n\ndef start():\n    return time.time()\n")
    (package / "__init__.py").write_text("from .since import since\n")
    (package / "since.py").write_text("def since(rows, day): return rows.where(f'kwh > {day}')\n")
    with pytest.raises(
        SettingsError, match=r"`time\.time\(\)` in .*clocks\.py, line 5, gives other"
    ):
        load_tables(f"{package.name}.tables:TABLES")
