"""A lab: what is done to tables of its own, and what a reader of them sees after each step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import Window
from backfill_assets.definitions import build_defs, delta_io_manager
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.settings import Settings, load_settings
from backfill_assets.spark.session import SPARK_ERRORS, Engine


class Sales(pa.DataFrameModel):
    """Sales of each shop on a day."""

    day: T.DateType = Field(description="The day.")
    shop: T.StringType = Field(description="The shop.")
    amount: T.LongType = Field(ge=0, description="What it sold.")


#: The first day of every lab.
START = date(2024, 1, 1)
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_WIDTH = 26
Line = Mapping[str, object]


class JobDiedError(RuntimeError):
    """A lab lets a job die here."""


class Lab:
    """What a lab works with, and the transcript of what it did.

    Attributes:
        engine: gives the session.
        folder: where its tables are, which is removed afterwards.
        lines: the transcript.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.lines: list[str] = []
        self._steps = 0

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.engine.spark_session

    def say(self, text: str) -> None:
        """Tell something, in a paragraph of its own."""
        self.lines += ["", text] if self.lines else [text]

    def step(self, text: str) -> None:
        """Tell what is done next."""
        self._steps += 1
        self.say(f"{self._steps}. {text}")

    def lesson(self, text: str) -> None:
        """Tell what follows from it."""
        self.say(f"Lesson: {text}")

    def show_query(self, who: str, query: str) -> None:
        """Tell what a reader sees: a line for each row of a query, with the names of its columns.

        Args:
            who: the reader, or what is read.
            query: in Spark's SQL; its rows come in an order that the query says.
        """
        for row in self.spark.sql(query).collect():
            figures = [f"{name} {_format_figure(value)}" for name, value in row.asDict().items()]
            self.show(who, "   ".join(figures))

    def show(self, who: str, text: str) -> None:
        """Tell what somebody sees, in a line below the step."""
        self.lines.append(f"   {who:{_WIDTH}} {text}")

    def table_url(self, table: str) -> str:
        """Where a table of the lab is."""
        return str(self.folder / table)

    def table_sql(self, name: str) -> str:
        """A table of the lab, as SQL names it."""
        return f"delta.`{self.table_url(name)}`"

    def run_sql(self, statement: str) -> None:
        """Run a statement."""
        self.spark.sql(statement).collect()

    def append(self, rows: DataFrame, name: str) -> None:
        """Append rows to a table, as many jobs do."""
        rows.write.format("delta").mode("append").save(self.table_url(name))

    def replace(self, rows: DataFrame, name: str, condition: str) -> None:
        """Replace what meets a condition by rows that meet it, in one commit."""
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", condition)
        writer.save(self.table_url(name))

    @contextmanager
    def expect_death(self) -> Iterator[None]:
        """A job that dies in here; what comes after is done by nobody.

        Raises:
            AssertionError: it did not die.
        """
        try:
            yield
        except (JobDiedError, *SPARK_ERRORS):
            return
        raise AssertionError("the job was to die, and did not")

    def create_pipeline(self, name: str = "here", **settings: Any) -> Pipeline:
        """The tables of the orders in folders of their own, as this project makes them.

        Args:
            name: of the folder.
            settings: those that are not the defaults.
        """
        return Pipeline(self, self.folder / name, settings)


def _format_figure(value: object) -> str:
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return f"{value:,}"
    return "null" if value is None else str(value)


class Pipeline:
    """A deployment of this project on folders of a lab, run in this process.

    Attributes:
        settings: its settings.
    """

    def __init__(self, lab: Lab, root: Path, settings: Mapping[str, Any]) -> None:
        self._lab, self._root = lab, root
        self.settings: Settings = load_settings(
            **{
                "landing": str(root / "landing"),
                "warehouse": str(root / "warehouse"),
                "start": START,
                **settings,
            }
        )

    @cached_property
    def defs(self) -> dg.Definitions:
        """The definitions of the deployment, on the engine of the lab."""
        return build_defs(self.settings, engine=self._lab.engine)

    def land_lines(self, day: date, lines: Iterable[Line], name: str = "part-0.jsonl") -> None:
        """Put a file into the folder of an arrival day."""
        folder = Path(self.settings.landing) / "orders" / f"arrival_date={day}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def run_tables(
        self, days: Window, tables: Sequence[str], tags: Mapping[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Materialize days of tables in one run, with these tags as well."""
        defs = self.defs
        with dg.DagsterInstance.ephemeral() as instance:
            return materialize_days(defs, days, tables, instance, tags)

    @property
    def assets(self) -> list[dg.AssetsDefinition]:
        """The assets of the deployment."""
        return [asset for asset in self.defs.assets or () if isinstance(asset, dg.AssetsDefinition)]

    @contextmanager
    def io_manager(self) -> Iterator[DeltaIOManager]:
        """What reads and publishes in the runs of the deployment."""
        key = Deployment(self.settings).resource_key(IO_MANAGER_KEY)
        with dg.build_resources({"it": (self.defs.resources or {})[key]}) as resources:
            yield resources.it

    def run_job(self, name: str, op: str, config: Mapping[str, Any]) -> None:
        """Run a job that has one op, which must end with success."""
        with dg.DagsterInstance.ephemeral() as instance:
            job, op = map(Deployment(self.settings).automation_name, (name, op))
            self.defs.get_job_def(job).execute_in_process(
                instance=instance,
                run_config={**_QUIET, "ops": {op: {"config": dict(config)}}},
            )

    def publish_asset(self, asset: dg.AssetsDefinition, days: Window) -> bool:
        """Materialize days of an ordinary asset in one run; whether it ended with success."""
        io_manager = delta_io_manager(self.settings, [asset], self._lab.engine)
        (name,) = (key.path[-1] for key in asset.keys)
        defs = dg.Definitions([asset], resources={"io_manager": io_manager})
        with dg.DagsterInstance.ephemeral() as instance:
            return materialize_days(defs, days, [name], instance).success

    def table_sql(self, name: str) -> str:
        """A table of the deployment, as SQL names it."""
        return f"delta.`{self.settings.table(name)}`"


def materialize_days(
    defs: dg.Definitions,
    days: Window,
    tables: Sequence[str],
    instance: dg.DagsterInstance,
    tags: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize days of tables in one run in this process, which may fail.

    Args:
        defs: have the assets and the resources.
        days: a gapless range.
        tables: the names of the assets.
        instance: where the run is recorded.
        tags: more tags of the run.
    """
    first, *_, last = [*days, *days]
    assets: list[Any] = [*(defs.assets or ())]
    return dg.materialize(
        assets,
        selection=list(tables),
        instance=instance,
        resources=dict(defs.resources or {}),
        tags={
            "dagster/asset_partition_range_start": str(first),
            "dagster/asset_partition_range_end": str(last),
            **(tags or {}),
        },
        run_config=_QUIET,
        raise_on_error=False,
    )
