"""Playing a drill: its start, hints, a diagnosis, what the source sends, its end, a solution."""

from __future__ import annotations

import json
import random
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import date, datetime, timezone
from pathlib import Path

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.spark.session import Engine
from backfill_assets_guide.drills import breaking, journal, rates
from backfill_assets_guide.drills.deployment import Contents, DrillDeployment
from backfill_assets_guide.drills.journal import Event
from backfill_assets_guide.drills.observing import newest_run, observe_drill
from backfill_assets_guide.drills.outages import OUTAGES, Outage
from backfill_assets_guide.drills.places import OWN, DrillError
from backfill_assets_guide.drills.scoring import Observed, Score, score_drill
from backfill_assets_guide.drills.strikes import RIGHT, SHOP_FILE


class Drill:
    """A drill that has begun.

    Attributes:
        deployment: what it is played on.
    """

    def __init__(self, folder: Path) -> None:
        """One that is there.

        Raises:
            DrillError: there is none.
        """
        self.deployment = DrillDeployment(folder)
        first = [event for event in self.events if event.what == journal.INCIDENT]
        if not first:
            raise DrillError(f"the start of the drill in {folder} was broken off: start another")
        self._incident = first[0]

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.deployment.folder

    @property
    def events(self) -> list[Event]:
        """Its journal."""
        return journal.read_events(self.deployment.folder)

    @property
    def name(self) -> str:
        """Of its outage, which the player is to find."""
        return str(self._incident.details["outage"])

    @property
    def outage(self) -> Outage:
        """The outage."""
        return OUTAGES[self.name]

    @property
    def symptom(self) -> str:
        """What a user says of it."""
        return str(self._incident.details["symptom"])

    @property
    def days(self) -> Window:
        """Those that a diagnosis should name."""
        return Window.parse(self._incident.details["days"])

    @property
    def right_contents(self) -> Contents:
        """What the tables hold when they are right."""
        stored = json.loads((self.folder / OWN / "right.json").read_text())
        return {
            name: {date.fromisoformat(day): text for day, text in days.items()}
            for name, days in stored.items()
        }

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, well or not."""
        return journal.has_ended(self.folder)

    def next_hint(self) -> str:
        """The next hint; the last one again if there is no other.

        Raises:
            DrillError: the drill has ended.
        """
        self._refuse_ended()
        hints_given = sum(event.what == journal.HINT for event in self.events)
        if hints_given < len(self.outage.hints):
            journal.record_event(self.folder, journal.HINT)
        return self.outage.hints[min(hints_given, len(self.outage.hints) - 1)]

    def diagnose(self, cause: str, days: Window | None) -> bool:
        """A diagnosis; whether it is right.

        Args:
            cause: one of `OUTAGES`.
            days: those that it is of, if the player says so.

        Raises:
            DrillError: the drill has ended.
        """
        self._refuse_ended()
        is_right = cause == self.name
        details = {"cause": cause, "days": str(days or "")}
        journal.record_event(self.folder, journal.FOUND if is_right else journal.WRONG, **details)
        return is_right

    def ask_source(self, days: Window) -> str:
        """Ask the source for days again, or a service for the calls that they need; what it says.

        Raises:
            DrillError: the drill has ended.
        """
        self._refuse_ended()
        journal.record_event(self.folder, journal.ASKED, days=str(days))
        wrong = [day for day in days if day in self.days]
        return self.outage.on_ask(self.deployment, days, wrong)

    def end(self) -> Score:
        """End it, and score it; one that has ended has the score of its end.

        Raises:
            DrillError: somebody gave up.
        """
        for event in self.events:
            if event.what == journal.END:
                return score_drill(Observed.from_json(event.details["observed"]))
        self._refuse_ended()
        now = datetime.now(timezone.utc)
        result = observe_drill(
            self.deployment,
            self.right_contents,
            self.events,
            self.days,
            self.outage.reader_table,
            now,
        )
        journal.record_event(self.folder, journal.END, observed=result.as_json())
        return score_drill(result)

    def give_up(self) -> None:
        """End it without a score."""
        if not self.has_ended:
            journal.record_event(self.folder, journal.GAVE_UP)

    def solution(self) -> list[str]:
        """Commands that solve it."""
        return [self.fill_in(line) for line in self.outage.solution]

    def fill_in(self, line: str) -> str:
        """A line of a solution with what it leaves open, for a shell."""
        return line.format(
            folder=shlex.quote(str(self.folder)),
            days=self.days,
            first=self.days.start,
            last=self.days.end - DAY,
            run=self._incident.details["run"],
            repair=newest_run(self.deployment) or "RUN",
        )

    def _refuse_ended(self) -> None:
        if self.has_ended:
            raise DrillError(
                f"the drill in {self.folder} has ended. Start another in a new folder: "
                "`backfill-assets drill start FOLDER`"
            )


def start_drill(
    engine: Engine, folder: Path, name: str = "", seed: int | None = None, days: int | None = None
) -> Drill:
    """Make a deployment, load it, and break something.

    Args:
        engine: with a session, or that starts one.
        folder: a new or an empty folder.
        name: of the outage; one is chosen if none is named.
        seed: decides what is chosen; another each time if not given.
        days: so many days, in place of those of the outage, which may need more.

    Raises:
        DrillError: the folder is not empty, or there is no such outage.
    """
    if folder.exists() and any(folder.iterdir()):
        raise DrillError(f"{folder} is not empty; nothing was written. Name a new folder")
    if name and name not in OUTAGES:
        raise DrillError(f"no outage is named {name}; there are {', '.join(OUTAGES)}")
    rng = random.Random(seed)
    name = name or rng.choice([*OUTAGES])
    engine.spark_session  # noqa: B018 - its scratch files are not to be in a home that goes away
    with tempfile.TemporaryDirectory(prefix="drill-") as place:
        return begin_drill(
            engine, prepared(engine, Path(place), OUTAGES[name], days), folder, name, rng
        )


def prepared(
    engine: Engine, folder: Path, outage: Outage, days: int | None = None
) -> DrillDeployment:
    """A deployment whose tables are right: as they are before an outage, or without it.

    Args:
        engine: with a session, or that starts one.
        folder: a new or an empty folder.
        outage: for which one.
        days: so many days, in place of those of the outage.
    """
    day_count = max(days or outage.days, outage.fewest)
    deployment = DrillDeployment.create(
        folder, day_count, outage.orders_per_day, outage.tables_path
    )
    breaking.send_orders(folder / "landing", deployment.days, SHOP_FILE, RIGHT)
    if outage.has_service:
        rates.pay_calls(deployment.folder, len(deployment.days))
    with rates.serve_rates(deployment.folder) if outage.has_service else nullcontext():
        deployment.load_days(engine, deployment.days)
    return deployment


def begin_drill(
    engine: Engine, right: DrillDeployment, folder: Path, name: str, rng: random.Random
) -> Drill:
    """Break something in a copy of a deployment.

    Args:
        engine: with a session, or that starts one.
        right: the deployment, whose tables are right.
        folder: for the copy.
        name: of the outage.
        rng: decides the days.
    """
    outage = OUTAGES[name]
    deployment = right.copy_to(folder, loaded=outage.loaded)
    try:
        struck = outage.strike(deployment, engine, rng)
    except BaseException:
        journal.record_event(deployment.folder, journal.GAVE_UP)  # a service ends with the drill
        raise
    contents = {
        table: {str(day): text for day, text in days.items()}
        for table, days in right.published_contents().items()
    }
    (folder / OWN / "right.json").write_text(json.dumps(contents))
    deployment.write_environment()
    details: Mapping[str, object] = {
        "outage": name,
        "days": str(struck.days),
        "symptom": struck.symptom,
        "run": struck.run,
        "versions": {table: ledger.version for table, ledger in deployment.ledgers.items()},
    }
    journal.record_event(folder, journal.INCIDENT, **details)
    return Drill(folder)


def list_causes() -> Sequence[tuple[str, str]]:
    """The causes that a diagnosis may name, each with what it is."""
    return [(name, outage.cause) for name, outage in OUTAGES.items()]
