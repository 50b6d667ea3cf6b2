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
from backfill_assets.drills import breaking, journal, rates
from backfill_assets.drills.deployment import Contents, Deployment
from backfill_assets.drills.journal import Event
from backfill_assets.drills.observing import newest_run, observed
from backfill_assets.drills.outages import OUTAGES, Outage
from backfill_assets.drills.places import OWN, DrillError
from backfill_assets.drills.scoring import Observed, Score, score
from backfill_assets.drills.strikes import RIGHT, SHOP_FILE
from backfill_assets.engine.spark import Engine


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
        self.deployment = Deployment(folder)
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
        return journal.events(self.deployment.folder)

    @property
    def name(self) -> str:
        """Of its outage, which the player is to find."""
        return str(self._incident.said["outage"])

    @property
    def outage(self) -> Outage:
        """The outage."""
        return OUTAGES[self.name]

    @property
    def symptom(self) -> str:
        """What a user says of it."""
        return str(self._incident.said["symptom"])

    @property
    def days(self) -> Window:
        """Those that a diagnosis should name."""
        return Window.parse(self._incident.said["days"])

    @property
    def right(self) -> Contents:
        """What the tables hold when they are right."""
        said = json.loads((self.folder / OWN / "right.json").read_text())
        return {
            name: {date.fromisoformat(day): text for day, text in of.items()}
            for name, of in said.items()
        }

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not."""
        return journal.has_ended(self.folder)

    def hint(self) -> str:
        """The next hint; the last one again if there is no other.

        Raises:
            DrillError: the drill has ended.
        """
        self._refuse_ended()
        given = sum(event.what == journal.HINT for event in self.events)
        if given < len(self.outage.hints):
            journal.note(self.folder, journal.HINT)
        return self.outage.hints[min(given, len(self.outage.hints) - 1)]

    def found(self, cause: str, days: Window | None) -> bool:
        """A diagnosis; whether it is right.

        Args:
            cause: one of `OUTAGES`.
            days: those that it is of, if the player says so.

        Raises:
            DrillError: the drill has ended.
        """
        self._refuse_ended()
        right = cause == self.name
        said = {"cause": cause, "days": str(days or "")}
        journal.note(self.folder, journal.FOUND if right else journal.WRONG, **said)
        return right

    def ask(self, days: Window) -> str:
        """Ask the source for days again, or a service for the calls that they need; what it says.

        Raises:
            DrillError: the drill has ended.
        """
        self._refuse_ended()
        journal.note(self.folder, journal.ASKED, days=str(days))
        wrong = [day for day in days if day in self.days]
        return self.outage.on_ask(self.deployment, days, wrong)

    def end(self) -> Score:
        """End it, and score it; one that has ended has the score of its end.

        Raises:
            DrillError: somebody gave up.
        """
        for event in self.events:
            if event.what == journal.END:
                return score(Observed.of(event.said["observed"]))
        self._refuse_ended()
        now = datetime.now(timezone.utc)
        seen = observed(
            self.deployment, self.right, self.events, self.days, self.outage.readers, now
        )
        journal.note(self.folder, journal.END, observed=seen.as_json())
        return score(seen)

    def give_up(self) -> None:
        """End it without a score."""
        if not self.ended:
            journal.note(self.folder, journal.GAVE_UP)

    def solution(self) -> list[str]:
        """Commands that solve it."""
        return [self.filled(line) for line in self.outage.solution]

    def filled(self, line: str) -> str:
        """A line of a solution with what it leaves open, for a shell."""
        return line.format(
            folder=shlex.quote(str(self.folder)),
            days=self.days,
            first=self.days.start,
            last=self.days.end - DAY,
            run=self._incident.said["run"],
            repair=newest_run(self.deployment) or "RUN",
        )

    def _refuse_ended(self) -> None:
        if self.ended:
            raise DrillError(
                f"the drill in {self.folder} has ended. Start another in a new folder: "
                "`backfill-assets drill start FOLDER`"
            )


def start(
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
        return begin(engine, prepared(engine, Path(place), OUTAGES[name], days), folder, name, rng)


def prepared(engine: Engine, folder: Path, outage: Outage, days: int | None = None) -> Deployment:
    """A deployment whose tables are right: as they are before an outage, or without it.

    Args:
        engine: with a session, or that starts one.
        folder: a new or an empty folder.
        outage: for which one.
        days: so many days, in place of those of the outage.
    """
    wanted = max(days or outage.days, outage.fewest)
    found = Deployment.made(folder, wanted, outage.orders_per_day, outage.tables)
    breaking.send(folder / "landing", found.days, SHOP_FILE, RIGHT)
    if outage.has_service:
        rates.pay(found.folder, len(found.days))
    with rates.answering(found.folder) if outage.has_service else nullcontext():
        found.load(engine, found.days)
    return found


def begin(engine: Engine, right: Deployment, folder: Path, name: str, rng: random.Random) -> Drill:
    """Break something in a copy of a deployment.

    Args:
        engine: with a session, or that starts one.
        right: the deployment, whose tables are right.
        folder: for the copy.
        name: of the outage.
        rng: decides the days.
    """
    outage = OUTAGES[name]
    deployment = right.copied(folder, loaded=outage.loaded)
    try:
        struck = outage.strike(deployment, engine, rng)
    except BaseException:
        journal.note(deployment.folder, journal.GAVE_UP)  # a service ends with the drill
        raise
    contents = {
        of: {str(day): text for day, text in days.items()} for of, days in right.contents().items()
    }
    (folder / OWN / "right.json").write_text(json.dumps(contents))
    deployment.write_environment()
    said: Mapping[str, object] = {
        "outage": name,
        "days": str(struck.days),
        "symptom": struck.symptom,
        "run": struck.run,
        "versions": {of: ledger.version for of, ledger in deployment.ledgers.items()},
    }
    journal.note(folder, journal.INCIDENT, **said)
    return Drill(folder)


def causes() -> Sequence[tuple[str, str]]:
    """The causes that a diagnosis may name, each with what it is."""
    return [(name, outage.cause) for name, outage in OUTAGES.items()]
