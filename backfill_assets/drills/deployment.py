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

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.definitions import build_defs
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.drills.breaking import folder_of
from backfill_assets.drills.places import (
    CALLS_ANSWERED,
    CALLS_PAID,
    ENVIRONMENT,
    OWN,
    RATES_PORT,
    RATES_URL,
    DrillError,
)
from backfill_assets.drills.rates import url_of
from backfill_assets.engine.spark import Engine
from backfill_assets.labs.lab import START, materialize
from backfill_assets.labs.loopback import NO_PROXY, environment
from backfill_assets.sample.emitter import Emitter
from backfill_assets.sample.rendering import render
from backfill_assets.settings import PREFIX, Settings, load_settings
from backfill_assets.tables.catalog import tables_of

ORDERS = "backfill_assets.orders.tables:TABLES"
_WINDOW_DAYS, _SEED = 2, 7
#: Settings that are the machine's, and not a deployment's.
_MACHINE = ("jars", "spark_conf")
_INSTANCE = Path(__file__).parent.parent / "scaffold" / "dagster.yaml"

#: By table and day, what is published: equal texts are equal rows.
Contents = Mapping[str, Mapping[date, str]]


def of_other_deployments() -> list[str]:
    """The environment variables by which a shell may have another deployment than a drill."""
    names = [PREFIX + name.upper() for name in Settings.model_fields if name not in _MACHINE]
    return sorted(["SPARK_REMOTE", RATES_URL, *names])


def failures(done: dg.ExecuteInProcessResult) -> str:
    """Why a run failed."""
    return "; ".join(str(event.message) for event in done.all_events if event.is_failure)


class Deployment:
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
            said = json.loads((self.folder / OWN / "deployment.json").read_text())
        except (OSError, ValueError) as error:
            raise DrillError(
                f"{folder} is no folder of a drill; make one with `backfill-assets drill start "
                f"{folder}`"
            ) from error
        self.days = Window.parse(said["days"])
        self._tables = said.get("tables", ORDERS)

    @classmethod
    def made(cls, folder: Path, days: int, orders_per_day: int, tables: str = ORDERS) -> Deployment:
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
            raise DrillError(f"{folder} is not empty; nothing was written. Name a new folder")
        (folder / OWN).mkdir(parents=True)
        window = Window(START, START + days * DAY)
        said = {"days": str(window), "tables": tables}
        (folder / OWN / "deployment.json").write_text(json.dumps(said))
        made = cls(folder)
        made._land(orders_per_day)
        made.home.mkdir()
        shutil.copy(_INSTANCE, made.home / "dagster.yaml")
        return made

    def _land(self, orders_per_day: int) -> None:
        """Sample orders in one file of JSON lines a day, which is read fast and by a person."""
        rng = random.Random(_SEED)
        days = len(self.days)
        lines = Emitter(rng, self.days.start, days, orders_per_day, _WINDOW_DAYS).emit()
        for day in self.days:
            folder = folder_of(self.folder / "landing", day)
            folder.mkdir(parents=True)
            arrived = [line for line in lines if line.arrival == day]
            (folder / "part-000.jsonl").write_bytes(render("jsonl", arrived, 0, rng))

    def copied(self, folder: Path, *, loaded: bool = True) -> Deployment:
        """The same in another folder.

        Args:
            folder: a new or an empty folder.
            loaded: with its tables and its runs; else only what has landed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        left = () if loaded else ("warehouse", "home")
        for name in (OWN, "landing", "home", "warehouse"):
            if name not in left:
                shutil.copytree(
                    self.folder / name,
                    folder / name,
                    ignore=lambda *_: (RATES_PORT, CALLS_PAID, CALLS_ANSWERED),
                )
        if not loaded:
            (folder / "home").mkdir()
            shutil.copy(_INSTANCE, folder / "home" / "dagster.yaml")
        return Deployment(folder)

    @property
    def home(self) -> Path:
        """The folder of Dagster's instance."""
        return self.folder / "home"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which the ordinary commands work on it."""
        url = url_of(self.folder)
        return {
            **({RATES_URL: url, **NO_PROXY} if url else {}),
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
        own = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in self.variables.items()
            if name.startswith(PREFIX)
        }
        return load_settings(**{**own, **others})

    def write_environment(self) -> None:
        """Write the file that the player's shell is to source.

        What the shell has of another deployment is unset: commands of a drill must reach neither
        its engine nor its chat.
        """
        lines = [f"unset {' '.join(of_other_deployments())}\n"]
        lines += [f"export {name}={shlex.quote(of)}\n" for name, of in self.variables.items()]
        (self.folder / ENVIRONMENT).write_text("".join(lines))

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Dagster's instance. It finds itself by the environment, which is put back."""
        # What a lookup asks is found by the environment as well; settings are handed over.
        own = {name: of for name, of in self.variables.items() if not name.startswith(PREFIX)}
        with environment(own), dg.DagsterInstance.get() as found:
            yield found

    @property
    def ledgers(self) -> Ledgers:
        """The ledgers of all tables as of now."""
        return read_ledgers(self.settings())

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
        under = self.settings(**settings)
        defs = build_defs(under, resources={"engine": engine, **(resources or {})})
        with self.instance() as instance:
            return materialize(defs, days, tables or [*tables_of(under)], instance, tags)

    def load(self, engine: Engine, days: Window, tables: Sequence[str] = ()) -> None:
        """Materialize days in one run, of all tables unless some are named.

        Raises:
            DrillError: the run failed, and why.
        """
        done = self.run(engine, days, tables)
        if not done.success:
            raise DrillError(f"the deployment of the drill could not be loaded: {failures(done)}")

    def contents(self) -> Contents:
        """What is published now."""
        return {
            name: {day: ledger.content(day) for day in ledger.published}
            for name, ledger in self.ledgers.items()
        }
