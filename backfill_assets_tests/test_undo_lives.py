"""Undo in an ordinary life: nights, late files and backfills are undone newest first.

Lives of tables with windows, state and following days, on invented ledgers: what a run commits and
what an undo puts back, as the write path does it, with contents that are small numbers.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from zlib import crc32

import msgspec
import pytest

from backfill_assets.backfills.changes import DayChange
from backfill_assets.backfills.downstream import UndoScope, undo_scopes
from backfill_assets.calendar.partitions import DAY, to_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import CommitDetails, CommitRecord, PublishedDay
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import CURRENT, FACT
from backfill_assets.settings import load_settings
from backfill_assets.staleness.snapshot import input_digests
from backfill_assets.staleness.stale import built_from_revoked, find_stale_days
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.table import Inputs
from backfill_assets_tests.helpers.invented_logs import make_measured, snapshot_ledgers
from backfill_assets_tests.helpers.pipeline import START, day

#: What lands: the tables of these days are changed from outside.
LANDED = (CURRENT.name, FACT.name)
DAYS = 6
TODAY = day(40)
SEEDS = range(int(os.environ.get("BACKFILL_TEST_UNDO_LIVES", "5")))

pytestmark = pytest.mark.torture


@dataclass
class Life:
    """Tables whose days have numbers as contents, and the runs that committed them."""

    deployment: Deployment
    chance: random.Random
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    #: By table, the contents as of each version.
    versions: dict[str, list[dict[date, int]]] = field(default_factory=dict)
    #: By table, how many contents there are: with few, days often come out as they were.
    ranges: dict[str, int] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    #: The share of runs that build what is behind; the others leave it to the next.
    follow_share: float = 1
    #: By run, oldest first, the contents before it.
    before: dict[str, dict[str, dict[date, int]]] = field(default_factory=dict)
    #: As of the versions of the tables, the scopes of undos by run.
    _scopes: tuple[object, dict[str, dict[str, UndoScope]]] = (None, {})

    def __post_init__(self) -> None:
        # The first version is that of an empty table, before any day.
        self.ledgers = {name: Ledger(t, 0) for name, t in self.deployment.tables.items()}
        self.versions = {name: [{}] for name in self.ledgers}
        self.ranges = {name: self.chance.choice([1, 2, 3, 1000]) for name in self.ledgers}
        self.code = dict.fromkeys(self.ledgers, "code")

    def contents(self) -> dict[str, dict[date, int]]:
        """By table, the current content of each published day."""
        return {name: versions[-1] for name, versions in self.versions.items()}

    # --- what runs do ---

    def load(self, name: str, contents: Mapping[date, int], run: str) -> None:
        """Commit days of a landed table."""
        self._commit(name, contents, run, dict.fromkeys(contents, ""))

    def follow(self, run: str) -> None:
        """Build what is behind, table by table, as a night does."""
        if self.follow_share < 1 and self.chance.random() > self.follow_share:
            return
        for name in self.deployment.tables:
            stale = find_stale_days(snapshot_ledgers(self.ledgers, self.deployment.policy, TODAY))
            if name not in LANDED and (days := stale.all_days(name)):
                self.build(name, days, run)

    def build(self, name: str, days: Iterable[date], run: str, rewrite: bool = False) -> None:
        """Commit the days whose inputs have changed, from what the inputs hold now."""
        own = dict(self.versions[name][-1])
        built: dict[date, int] = {}
        input_digests: dict[date, str] = {}
        for d in sorted(days):
            if carries_state(self.ledgers[name].table) and built:
                ledgers = {**self.ledgers, name: self._hypothetical(name, own)}
            else:
                ledgers = self.ledgers
            input_digest = self._digest(name, d, ledgers)
            published = self.ledgers[name].current_record(d)
            record = self.ledgers[name].latest.get(d)
            same_code = record and record.for_day(d).code_version == self.code[name]
            if published and published.input_digest == input_digest and same_code and not rewrite:
                continue
            built[d] = own[d] = self._compute(name, d, ledgers)
            input_digests[d] = input_digest
        if built:
            self._commit(name, built, run, input_digests)

    def false_claims(self) -> list[tuple[str, date]]:
        """Days that count as up to date, and are not what their code makes of the inputs of now."""
        policy = self.deployment.policy
        stale = find_stale_days(snapshot_ledgers(self.ledgers, policy, TODAY))
        revoked = built_from_revoked(snapshot_ledgers(self.ledgers, policy))
        return [
            (name, d)
            for name, ledger in self.ledgers.items()
            if name not in LANDED
            for d, content in self.versions[name][-1].items()
            if d not in stale.all_days(name) | ledger.on_hold.keys() | revoked[name]
            for code in [ledger.latest[d].for_day(d).code_version]
            if content != self._compute(name, d, self.ledgers, code)
        ]

    def _hypothetical(self, name: str, contents: Mapping[date, int]) -> Ledger:
        """The table as it is with these contents."""
        published = {d: PublishedDay(1, f"{name} {c}", "ok") for d, c in contents.items()}
        ledger = self.ledgers[name]
        commit = CommitRecord(
            ledger.version + 1, "", None, "", "", "", {}, published, frozenset(), CommitDetails()
        )
        return replace(
            ledger,
            version=commit.version,
            records=[*ledger.records, commit],
            measured=make_measured(dict.fromkeys(contents, 1)),
        )

    def _inputs(self, name: str) -> Inputs:
        return self.deployment.graph.inputs[name] if name not in LANDED else ()

    def _digest(self, name: str, d: date, ledgers: Ledgers) -> str:
        return input_digests(self._inputs(name), ledgers, [d], {})[d]

    def _compute(self, name: str, d: date, ledgers: Ledgers, code: str = "") -> int:
        """The content that follows from the inputs and the code, by default that of now."""
        read = [
            (dependency.source.name, str(input_day), source.content_key(input_day))
            for dependency in self._inputs(name)
            for source in [ledgers[dependency.source.name]]
            for input_day in dependency.reach.deciding_days(source)(d)
        ]
        return crc32(repr((read, code or self.code[name])).encode()) % self.ranges[name]

    def _commit(
        self, name: str, contents: Mapping[date, int], run: str, input_digests: Mapping[date, str]
    ) -> None:
        old = self.versions[name][-1]
        published = {
            d: PublishedDay(1, f"{name} {c}", "ok", input_digest=input_digests[d])
            for d, c in contents.items()
        }
        inputs = {
            x.source.name: self.ledgers[x.source.name].version or 0 for x in self._inputs(name)
        }
        self._append(
            name,
            run,
            published,
            inputs,
            written=frozenset(d for d in contents if old.get(d) != contents[d]),
            contents={**old, **contents},
        )

    def _append(
        self,
        name: str,
        run: str,
        published: Mapping[date, PublishedDay],
        inputs: Mapping[str, int],
        *,
        written: frozenset[date],
        contents: dict[date, int],
        revoked: frozenset[date] = frozenset(),
        details: CommitDetails | None = None,
    ) -> None:
        ledger = self.ledgers[name]
        version = (ledger.version or 0) + 1
        commit = CommitRecord(
            version=version,
            run_id=run,
            backfill_id=None,
            launched_by="schedule nightly",
            code_version=self.code[name],
            config_digest="config",
            inputs=inputs,
            days=dict(sorted(published.items())),
            final=frozenset(),
            details=details or CommitDetails(),
            since=version - 1,
            written_days=written,
            revoked_days=revoked,
        )
        self.versions[name].append(contents)
        assert len(self.versions[name]) == version + 1
        self.ledgers[name] = replace(
            ledger,
            version=version,
            records=[*ledger.records, commit],
            measured=make_measured(dict.fromkeys(contents, 1)),
        )

    # --- what an undo does ---

    def scopes(self, run: str) -> dict[str, UndoScope]:
        """What an undo of a run changes now, as of the last commit."""
        versions = tuple(ledger.version for ledger in self.ledgers.values())
        if self._scopes[0] != versions:
            self._scopes = versions, {}
        scopes = self._scopes[1]
        if run not in scopes:
            scopes[run] = undo_scopes(snapshot_ledgers(self.ledgers, self.deployment.policy), run)
        return scopes[run]

    def problems(self, run: str) -> list[str]:
        return [text for scope in self.scopes(run).values() for text in scope.problems]

    def has_work(self, run: str) -> bool:
        """Whether an undo of a run would change something."""
        return any(scope.changes or scope.unchanged for scope in self.scopes(run).values())

    def undo(self, run: str, commits: int = sys.maxsize) -> None:
        """Put back, table by table, what a run changed; killed after so many commits."""
        undo_run = f"undo{len(self.before):04}"
        self.before[undo_run] = self.contents()
        for name in self.deployment.tables:
            scope = self.scopes(run)[name]
            assert not scope.problems
            if todo := {**scope.unchanged, **scope.changes}:
                if commits == 0:
                    break
                commits -= 1
                self._put_back(name, run, undo_run, scope, todo)

    def _put_back(
        self, name: str, run: str, undo_run: str, scope: UndoScope, todo: Mapping[date, DayChange]
    ) -> None:
        ledger = self.ledgers[name]
        versions = {
            x.source.name: self.ledgers[x.source.name].version or 0 for x in self._inputs(name)
        }
        published = {}
        contents = dict(self.versions[name][-1])
        for d, change in todo.items():
            if change.previous_commit is None:
                contents.pop(d, None)
                continue
            if d in scope.changes:
                contents[d] = self.versions[name][change.version_before][d]
            old = change.previous_commit.days[d]
            assert old.digest == f"{name} {contents[d]}"
            provenance = change.previous_commit.day_provenance(d)
            if old.input_digest in ("", self._digest(name, d, self.ledgers)):
                provenance = msgspec.structs.replace(
                    provenance, inputs={**provenance.inputs, **versions}
                )
            published[d] = msgspec.structs.replace(old, provenance=provenance)
        as_of: dict[str, list[date]] = {}
        for d, change in todo.items():
            as_of.setdefault(str(change.version_before), []).append(d)
        held = {
            d: current.input_digest
            for d in scope.changes
            if (current := ledger.current_record(d)) and current.input_digest
        }
        details = CommitDetails(
            undoes=run,
            on_hold={**{d: x for d, x in ledger.on_hold.items() if d in todo}, **held},
            as_of={version: to_ranges(days) for version, days in as_of.items()},
        )
        self._append(
            name,
            undo_run,
            published,
            versions,
            written=frozenset(d for d in published if d in scope.changes),
            contents=contents,
            revoked=frozenset(d for d in scope.changes if d not in published),
            details=details,
        )


def new_life(seed: int) -> Life:
    settings = load_settings(
        tables="backfill_assets_tests.customers_tables:TABLES", start=START, window_days=2
    )
    return Life(Deployment(settings), random.Random(seed))


def run_step(life: Life) -> None:
    """A first load, a night with late files, or a backfill."""
    chance, run = life.chance, f"run-{len(life.before):04}"
    life.before[run] = life.contents()
    known = life.versions[CURRENT.name][-1]
    if not known:
        for name in LANDED:
            life.load(name, {day(n): chance.randrange(3) for n in range(1, DAYS)}, run)
    elif chance.random() < 0.7:
        changed = [d for d in sorted(known) if chance.random() < 0.25] + [max(known) + DAY]
        for name in LANDED:
            if chance.random() < 0.8:
                life.load(name, {d: chance.randrange(3) for d in changed}, run)
    else:
        name = chance.choice([n for n in life.ledgers if life.ledgers[n].records])
        if name not in LANDED:
            days = sorted(life.versions[name][-1])
            first = chance.randrange(len(days))
            if chance.random() < 0.5:
                life.code[name] += "'"
            life.build(name, days[first : first + 3], run, rewrite=True)
    life.follow(run)


def run_life(seed: int, follow_share: float = 1) -> Life:
    """A first load, and nights and backfills after it."""
    life = new_life(seed)
    life.follow_share = follow_share
    for _ in range(6):
        run_step(life)
    return life


def read_advice(problem: str) -> str:
    """The run that a refused undo says is to be undone first."""
    advised = re.search(r"run (\S{8})(?: in version| as well| has undone)", problem)
    assert advised, problem
    return advised[1]


def check_refusals(life: Life) -> int:
    """Follow each refusal to an undo that is accepted and changes something; how many there were.

    A run that is named may be refused as well: it names the next.
    """
    refusals = [(run, problem) for run in life.before for problem in life.problems(run)]
    for refused, refusal in refusals:
        named, problem = [refused], refusal
        while problem:
            named.append(read_advice(problem))
            assert named.count(named[-1]) == 1, (named, refusal)
            problem = next(iter(life.problems(named[-1])), "")
        assert life.has_work(named[-1]), (named, refusal)
    return len(refusals)


def undo_as_advised(life: Life, run: str) -> None:
    """Undo a run; if that is refused, first what the message names."""
    for _ in range(20):
        problems = life.problems(run)
        if not problems:
            break
        undo_as_advised(life, read_advice(problems[0]))
    assert not problems, (run, problems)
    life.undo(run)


def run_undo(life: Life) -> None:
    """An undo of some run or, if that is refused, of one that is advised; some are killed."""
    run = life.chance.choice([*life.before])
    for _ in range(5):
        if not (problems := life.problems(run)):
            life.undo(run, life.chance.choice([0, 1, 2, 3, sys.maxsize, sys.maxsize]))
            break
        run = read_advice(problems[0])
    if life.chance.random() < 0.5 and not life.problems(run):
        life.undo(run)  # the rest of one that was killed


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_are_undone_newest_first(seed):
    life = run_life(seed)
    for run, before in reversed([*life.before.items()]):
        assert life.problems(run) == []
        life.undo(run)
        assert life.contents() == before, run
    assert not any(life.contents().values())


@pytest.mark.parametrize("seed", SEEDS)
def test_any_run_is_undone_after_those_that_are_named(seed):
    life = run_life(seed)
    run = life.chance.choice([*life.before])
    undo_as_advised(life, run)
    assert not life.has_work(run)


@pytest.mark.parametrize("seed", [2])
def test_runs_that_left_days_to_the_next_are_undone_after_those_that_are_named(seed):
    """A day is built at once from what several runs have loaded: they do not name each other."""
    life = run_life(seed, follow_share=0.3)
    assert check_refusals(life)
    undo_as_advised(life, [*life.before][1])
    assert not life.has_work([*life.before][1])


#: The undos of the first are refused if what was undone before counts as undone since; in 51 and
#: 57 days are built from what a killed undo has put back; in 96, 155 and 192 undos are undone.
LIVES_WITH_UNDOS = [
    0,
    *(
        pytest.param(n, marks=pytest.mark.slow)
        for n in sorted({*SEEDS, 51, 57, 96, 155, 192} - {0})
    ),
]


@pytest.mark.parametrize("seed", LIVES_WITH_UNDOS)
def test_undos_are_undone_newest_first_as_other_runs_are(seed):
    """Among nights and backfills, undos of any run, some of which are killed or refused."""
    life, refusals = run_life(seed), 0
    for _ in range(5):
        life.chance.choice([run_step, run_undo, run_undo])(life)
        assert life.false_claims() == []
        refusals += check_refusals(life)
    print(f"life {seed}: {refusals} refusals lead to an undo")
    for run, before in reversed([*life.before.items()]):
        assert life.problems(run) == []
        life.undo(run)
        assert life.contents() == before, run
        assert not life.has_work(run)
    assert not any(life.contents().values())
