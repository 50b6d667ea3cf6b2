"""Three regions as parts of one deployment have the rows of three deployments, one of each region.

Through random histories with late and replaced files, kills, undos and switch-overs.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, table
from backfill_assets.delta.commits import Writer
from backfill_assets.spark.session import Engine
from backfill_assets_guide.examples.regions import ORDERS
from backfill_assets_tests.helpers.pipeline import Pipeline, day, run_undo
from backfill_assets_tests.helpers.region_lines import REGIONS, land, line
from backfill_assets_tests.helpers.shadow_targets import build_shadow, run_switch_over

LAST = 5
STEPS = int(os.environ.get("BACKFILL_TEST_TWIN_STEPS", "8"))
LOADED = ("raw_orders", "raw_orders_rejected", "stg_orders", "late_orders", "orders_lateness")
BUILT = ("spend", "extreme")
BUILT_ALONE = ("spend_alone", "extreme_alone")


class Spend(pa.DataFrameModel):
    run_date: T.DateType
    customer: T.StringType
    spent: T.DecimalType(28, 2)  # type: ignore[valid-type]


class Extreme(pa.DataFrameModel):
    run_date: T.DateType
    amount: T.DecimalType(18, 2)  # type: ignore[valid-type]


class RegionSpend(Spend):
    region: T.StringType


class RegionExtreme(Extreme):
    region: T.StringType


ALONE = replace(ORDERS, dimension=None)
Before = Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)]


@table(RegionSpend, partition=("run_date", "region"), key=["customer"], totals=["spent"])
def spend(orders: Annotated[DataFrame, Reads(ORDERS.staged)], before: Before) -> DataFrame:
    return _add_spending(orders, before, "region")


@table(Spend, partition="run_date", key=["customer"], totals=["spent"])
def spend_alone(orders: Annotated[DataFrame, Reads(ALONE.staged)], before: Before) -> DataFrame:
    return _add_spending(orders, before)


def _add_spending(orders: DataFrame, before: DataFrame, *part: str) -> DataFrame:
    customer = F.coalesce("customer", F.lit("unknown")).alias("customer")
    now = orders.select("for_day", *part, customer, "amount")
    earlier = before.select("for_day", *part, "customer", F.col("spent").alias("amount"))
    days = now.unionByName(earlier).groupBy(F.col("for_day").alias("run_date"), *part, "customer")
    return days.agg(F.sum("amount").cast("decimal(28,2)").alias("spent"))


@table(RegionExtreme, partition=("run_date", "region"), key=[], totals=[])
def extreme(orders: Annotated[DataFrame, Reads(ORDERS.staged)]) -> DataFrame:
    return _by_day(orders, "region").agg(F.max("amount").alias("amount"))


@table(Extreme, partition="run_date", key=[], totals=[])
def extreme_alone(orders: Annotated[DataFrame, Reads(ALONE.staged)]) -> DataFrame:
    return _by_day(orders).agg(F.max("amount").alias("amount"))


def least(orders: DataFrame) -> DataFrame:
    return _by_day(orders, "region").agg(F.min("amount").alias("amount"))


def least_alone(orders: DataFrame) -> DataFrame:
    return _by_day(orders).agg(F.min("amount").alias("amount"))


def _by_day(orders: DataFrame, *part: str) -> GroupedData:
    return orders.groupBy(F.col("for_day").alias("run_date"), *part)


CELLS, SINGLE = [ORDERS, spend, extreme], [ALONE, spend_alone, extreme_alone]
CELLS_AFTER = [ORDERS, spend, replace(extreme, transform=least)]
SINGLE_AFTER = [ALONE, spend_alone, replace(extreme_alone, transform=least_alone)]


class KilledError(BaseException):
    """The process of a run ends here."""


class Twins:
    """The two ways to have three regions, through the same history."""

    def __init__(self, engine: Engine, root: Path, random: Random) -> None:
        self.engine, self.root, self.random = engine, root, random
        self.after, self.files, self.runs = "", dict[tuple[int, str, str], list[dict]](), 0
        self.undoable: dict[str, str] = {}
        self.deploy()

    def deploy(self) -> None:
        """Deploy the current code of both."""
        self.cells = Pipeline(
            self.engine,
            self.root / "cells",
            tables=f"{__name__}:CELLS{self.after}",
            # Without, what a function computes is not joined.
            check_independence=True,
        )
        self.alone = {
            region: Pipeline(
                self.engine, self.root / region, tables=f"{__name__}:SINGLE{self.after}"
            )
            for region in REGIONS
        }

    def land_lines(self, n: int, region: str) -> None:
        """A new file, or another one in its place, with some late lines and new versions."""
        lines = []
        for _ in range(self.random.randrange(1, 4)):
            event = max(1, n - self.random.choice([0, 0, 0, 1, 2, 3]))
            number, version = self.random.randrange(3), self.random.randrange(8)
            amount = f"{self.random.randrange(1, 99)}.50"
            entry = line(f"o{event}-{number}", event, amount, version=version)
            lines.append(entry | {"customer": self.random.choice(["c1", "c2", None])})
        name = self.random.choice(["a.jsonl", "b.jsonl"])
        # A file in place of another one that lacks its orders would wait for a person.
        lines = [*self.files.get((n, region, name), ()), *lines]
        self.files[n, region, name] = lines
        land(self.cells, n, region, lines, name)
        (self.alone[region].folder(n) / name).write_text(
            "".join(f"{row}\n" for row in map(json.dumps, lines))
        )

    def materialize(self, first: int, last: int, regions: list[str]) -> None:
        """Run days of adjacent regions, in one run, and in a run of each deployment."""
        tags = {"backfill_assets/rewrite": str(self.random.random() < 0.2).lower()}
        ends = {"start": f"{day(first)}|{regions[0]}", "end": f"{day(last)}|{regions[-1]}"}
        ends = {f"dagster/asset_partition_range_{end}": key for end, key in ends.items()}
        run = self.cells.run(first, last, [*LOADED, *BUILT], tags=tags | ends, fails=None)
        self.undoable = {"cells": run.run_id}
        for region in regions:
            alone = self.alone[region].run(
                first, last, [*LOADED, *BUILT_ALONE], tags=tags, fails=None
            )
            self.undoable[region] = alone.run_id

    def kill(self, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
        """A run of all regions commits nothing from some commit on, as if its process had ended."""
        left, commit_files = [self.random.randrange(8)], Writer.commit_files

        def commit_or_die(writer: Writer, *arguments: Any, **more: Any) -> int | None:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            return commit_files(writer, *arguments, **more)

        ends = {"start": f"{day(first)}|{REGIONS[0]}", "end": f"{day(last)}|{REGIONS[-1]}"}
        tags = {f"dagster/asset_partition_range_{end}": key for end, key in ends.items()}
        tags["backfill_assets/rewrite"] = "true"
        with monkeypatch.context() as patched, suppress(KilledError):
            patched.setattr(Writer, "commit_files", commit_or_die)
            self.cells.run(first, last, [*LOADED, *BUILT], tags=tags, fails=None)
        assert left[0] < 0, "no commit was left to be killed"

    def undo(self, region: str) -> None:
        """Put back the last run, of one region."""
        if region in self.undoable:
            run_undo(self.cells, self.undoable["cells"], f"/{region}")
            run_undo(self.alone[region], self.undoable.pop(region))

    def switch_over(self) -> None:
        """Build other code beside the published tables, publish it, and deploy it."""
        self.after = "" if self.after else "_AFTER"
        self.deploy()
        days, self.undoable = f"{day(1)}...{day(LAST)}", {}
        parts = tuple(f"extreme/{region}" for region in REGIONS)
        for pipeline, tables in [
            (self.cells, parts),
            *((pipeline, ("extreme_alone",)) for pipeline in self.alone.values()),
        ]:
            self.runs += 1
            build_shadow(pipeline, days, f"v{self.runs}", tables=tables)
            run_switch_over(pipeline, f"v{self.runs}")

    def settle(self) -> None:
        """All that a night builds by itself; it may write what the last run wrote."""
        self.undoable = {}
        for pipeline in (self.cells, *self.alone.values()):
            pipeline.run_keys.clear()
            pipeline.night(day(LAST + 1))

    def assert_same_rows(self) -> None:
        pairs = zip((*LOADED, *BUILT), (*LOADED, *BUILT_ALONE), strict=True)
        for name, name_alone in pairs:
            rows = self.cells.rows(name)
            assert {row["region"] for row in rows} <= {*REGIONS}
            for region, pipeline in self.alone.items():
                cells = [row for row in rows if row["region"] == region]
                assert _texts(cells) == _texts(pipeline.rows(name_alone)), (name, region)


def _texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The rows without their part, as sorted texts."""
    return sorted(str({k: v for k, v in sorted(row.items()) if k != "region"}) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("BACKFILL_TEST_TWINS", "1"))))
def test_three_regions_are_three_deployments(engine, spark, tmp_path, monkeypatch, seed):
    random = Random(f"twins {seed}")
    twins = Twins(engine, tmp_path, random)
    for n in range(1, LAST + 1):
        for region in REGIONS:
            twins.land_lines(n, region)
    twins.materialize(1, LAST, [*REGIONS])
    twins.assert_same_rows()
    steps = ["load", "load", "load", "kill", "undo", "undo", "night", "switch"]
    random.shuffle(steps)
    for step in (steps * STEPS)[:STEPS]:
        first = random.randrange(1, LAST + 1)
        last = random.randrange(first, LAST + 1)
        some = random.choice([["eu"], ["us"], ["eu", "us"], ["us", "apac"], [*REGIONS]])
        if step == "load":
            for region in some:
                twins.land_lines(first, region)
            twins.materialize(first, last, some)
        elif step == "kill":
            twins.land_lines(first, some[0])
            twins.kill(monkeypatch, first, last)
            twins.settle()
        elif step == "undo":
            twins.undo(some[0])
        elif step == "switch":
            twins.settle()
            twins.switch_over()
        else:
            twins.settle()
        twins.assert_same_rows()
    twins.settle()
    twins.assert_same_rows()
