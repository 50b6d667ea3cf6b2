"""The deployment of a drill: its folder, its settings, and what its tables hold."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg

import backfill_assets
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.definitions import build_defs
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.settings import PREFIX, Settings, load_settings
from backfill_assets.spark.session import Engine
from backfill_assets.tables.graph import tables_of
from backfill_assets_guide.drills import places
from backfill_assets_guide.drills.breaking import arrival_folder
from backfill_assets_guide.drills.rates import url_of
from backfill_assets_guide.labs.lab import START, materialize_days
from backfill_assets_guide.labs.loopback import NO_PROXY, set_environment
from backfill_assets_guide.sample.landings import Emitter, render_file

ORDERS = "backfill_assets.orders.tables:TABLES"
_WINDOW_DAYS, _SEED = 2, 7
#: Settings that are the machine's, and not a deployment's.
_MACHINE = ("jars", "spark_conf")
_INSTANCE = Path(backfill_assets.__file__).parent / "scaffold" / "dagster.yaml"

#: By table and day, what is published: equal texts are equal rows.
Contents = Mapping[str, Mapping[date, str]]


def other_variables() -> list[str]:
    """The environment variables by which a shell may have another deployment than a drill."""
    names = [PREFIX + name.upper() for name in Settings.model_fields if name not in _MACHINE]
    return sorted(["SPARK_REMOTE", places.RATES_URL, *names])


def failure_messages(result: dg.ExecuteInProcessResult) -> str:
    """Why a run failed."""
    return "; ".join(str(event.message) for event in result.all_events if event.is_failure)


class DrillDeployment:
    """Landing, warehouse and DAGSTER_HOME in one folder, run in this process.

    Attributes:
        folder: that folder. It may be copied to another place.
        days: the days that have landed.
    """

    def __init__(self, folder: Path) -> None:
        """One that is there.

        Raises:
            DrillError: there is none.
        """
        self.folder = folder.resolve()
        try:
            stored = json.loads((self.folder / places.OWN / "deployment.json").read_text())
        except (OSError, ValueError) as error:
            raise places.DrillError(
                f"{folder} is no folder of a drill; make one with `backfill-assets drill start "
                f"{folder}`"
            ) from error
        self.days = Window.parse(stored["days"])
        self._tables = stored.get("tables", ORDERS)

    @classmethod
    def create(
        cls, folder: Path, days: int, orders_per_day: int, tables: str = ORDERS
    ) -> DrillDeployment:
        """A new one, in which sample orders have landed and nothing is loaded.

        Args:
            folder: a new or an empty folder.
            days: so many arrival days.
            orders_per_day: so many orders happen on each of them.
            tables: where they are declared.

        Raises:
            DrillError: the folder has something in it.
        """
        if folder.exists() and any(folder.iterdir()):
            raise places.DrillError(
                f"{folder} is not empty; nothing was written. Name a new folder"
            )
        (folder / places.OWN).mkdir(parents=True)
        window = Window(START, START + days * DAY)
        stored = {"days": str(window), "tables": tables}
        (folder / places.OWN / "deployment.json").write_text(json.dumps(stored))
        deployment = cls(folder)
        deployment._land_orders(orders_per_day)
        deployment.home.mkdir()
        shutil.copy(_INSTANCE, deployment.home / "dagster.yaml")
        return deployment

    def _land_orders(self, orders_per_day: int) -> None:
        """Sample orders in one file of JSON lines a day, which is read fast and by a person."""
        rng = random.Random(_SEED)
        days = len(self.days)
        lines = Emitter(rng, self.days.start, days, orders_per_day, _WINDOW_DAYS).emit_lines()
        for day in self.days:
            folder = arrival_folder(self.folder / "landing", day)
            folder.mkdir(parents=True)
            arrived = [line for line in lines if line.arrival == day]
            (folder / "part-000.jsonl").write_bytes(render_file("jsonl", arrived, 0, rng))

    def copy_to(self, folder: Path, *, loaded: bool = True) -> DrillDeployment:
        """The same in another folder.

        Args:
            folder: a new or an empty folder.
            loaded: with its tables and its runs; else only what has landed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        excluded = () if loaded else ("warehouse", "home")
        for name in (places.OWN, "landing", "home", "warehouse"):
            if name not in excluded:
                shutil.copytree(
                    self.folder / name,
                    folder / name,
                    ignore=lambda *_: (places.RATES_PORT, places.CALLS_PAID, places.CALLS_ANSWERED),
                )
        if not loaded:
            (folder / "home").mkdir()
            shutil.copy(_INSTANCE, folder / "home" / "dagster.yaml")
        return DrillDeployment(folder)

    @property
    def home(self) -> Path:
        """The folder of Dagster's instance."""
        return self.folder / "home"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which the ordinary commands work on it."""
        url = url_of(self.folder)
        return {
            **({places.RATES_URL: url, **NO_PROXY} if url else {}),
            "DAGSTER_HOME": str(self.home),
            f"{PREFIX}LANDING": str(self.folder / "landing"),
            f"{PREFIX}WAREHOUSE": str(self.folder / "warehouse"),
            f"{PREFIX}START": str(self.days.start),
            f"{PREFIX}END": str(self.days.end),
            f"{PREFIX}WINDOW_DAYS": str(_WINDOW_DAYS),
            f"{PREFIX}TIMEZONE": "UTC",
            f"{PREFIX}TABLES": self._tables,
        }

    def settings(self, **others: Any) -> Settings:
        """Its settings.

        Args:
            others: those that are to be otherwise, by name.
        """
        own_settings = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in self.variables.items()
            if name.startswith(PREFIX)
        }
        return load_settings(**{**own_settings, **others})

    def write_environment(self) -> None:
        """Write the file that the player's shell is to source.

        What the shell has of another deployment is unset: commands of a drill must reach neither
        its engine nor its chat.
        """
        lines = [f"unset {' '.join(other_variables())}\n"]
        lines += [f"export {name}={shlex.quote(value)}\n" for name, value in self.variables.items()]
        (self.folder / places.ENVIRONMENT).write_text("".join(lines))

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Dagster's instance. It finds itself by the environment, which is put back."""
        # What a lookup asks is found by the environment as well; settings are handed over.
        other_variables = {
            name: value for name, value in self.variables.items() if not name.startswith(PREFIX)
        }
        with set_environment(other_variables), dg.DagsterInstance.get() as dagster_instance:
            yield dagster_instance

    @property
    def ledgers(self) -> Ledgers:
        """The ledgers of all tables as of now."""
        return read_ledgers(Deployment(self.settings()))

    def run(
        self,
        engine: Engine,
        days: Window,
        tables: Sequence[str] = (),
        *,
        resources: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> dg.ExecuteInProcessResult:
        """Materialize days in one run, which may fail.

        Args:
            engine: with a session, or that starts one.
            days: the days.
            tables: of these tables; of all if none is named.
            resources: stand-ins for those of the deployment.
            tags: more tags of the run.
            settings: those under which it runs that are not the deployment's, by name.
        """
        run_settings = self.settings(**settings)
        defs = build_defs(run_settings, engine=engine, resources=resources)
        with self.instance() as instance:
            return materialize_days(
                defs, days, tables or [*tables_of(run_settings)], instance, tags
            )

    def load_days(self, engine: Engine, days: Window, tables: Sequence[str] = ()) -> None:
        """Materialize days in one run, of all tables unless some are named.

        Raises:
            DrillError: the run failed, and why.
        """
        result = self.run(engine, days, tables)
        if not result.success:
            raise places.DrillError(
                f"the deployment of the drill could not be loaded: {failure_messages(result)}"
            )

    def published_contents(self) -> Contents:
        """What is published now."""
        return {
            name: {day: ledger.content_key(day) for day in ledger.published_days}
            for name, ledger in self.ledgers.items()
        }
