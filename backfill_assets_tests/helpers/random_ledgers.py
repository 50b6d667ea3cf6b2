"""Random ledgers of a deployment with all kinds of tables, and what each caller decides by them.

A history of loads, builds, undos, other writers, canaries, failed days, accepted code and changed
settings, with nothing on disk. The same seed gives the same history.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from functools import cache
from typing import Any

from backfill_assets.calendar.partitions import DAY, Window, to_ranges
from backfill_assets.delta.records import ACCEPTED_CODE, CANARY, CommitRecord, ExternalCommit
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import RAW, REJECTED
from backfill_assets.settings import load_settings
from backfill_assets.staleness.snapshot import input_digests
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_runs import InventedRuns
from backfill_assets_tests.helpers.pipeline import START, day

#: The days on which something may happen, by number: more than four weeks, so that a month is over.
LAST = 34
_LAUNCHERS = ("schedule nightly", "sensor touched_days", "command night", "person", "person")


@cache
def _make_deployment(window_days: int, lag_days: int, only_touched: bool) -> Deployment:
    return Deployment(
        load_settings(
            tables="backfill_assets_tests.planned_tables:ALL_KINDS",
            start=START,
            window_days=window_days,
            lag_days=lag_days,
            reprocess="touched" if only_touched else "window",
        )
    )


class RandomLedgers(InventedRuns):
    """The ledgers after a random history.

    Attributes:
        chance: what decides the history; for further choices of a caller.
        today: the business day.
        code: the code of the tables now.
        failed: by table, the days that a run failed to publish.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        window_days, lag_days = self.chance.choice([(0, 1), (2, 1), (2, 2), (5, 1)])
        super().__init__(_make_deployment(window_days, lag_days, self.chance.random() < 0.7))
        #: Most histories are short, and some have a month.
        self.last = self.chance.choice([4, 8, 10, 16, LAST])
        self.today = day(self.last + self.chance.choice([0, 1, 1, 1, 2, 9]))
        self.code = Code("code", dict.fromkeys(self.chance.sample([*self.ledgers], 2), "new"))
        self.failed: dict[str, set[date]] = {}
        self._load(range(1, self.last + 1 - self.chance.choice([0, 0, 0, 1, 2])))
        for name in [*self.deployment.graph.inputs][2:]:
            if self.chance.random() < 0.97:
                self.build_some(name, everything=self.chance.random() < 0.9)
        for _ in range(self.chance.randrange(16)):
            self._do_something()

    # --- what happens ---

    def _do_something(self) -> None:
        steps = [self._load_again, self._rebuild, self._rebuild, self._rebuild_all, self._revert]
        steps += [self._write_externally, self._accept_code, self._fail, self._change_reference]
        steps += [self._cut_log, self._hold, self._revert, self._hold]
        self.chance.choice(steps)()

    def choose(self, days: Iterable[date], share: float = 0.4) -> list[date]:
        return [d for d in sorted(days) if self.chance.random() < share]

    def _name(self) -> str:
        return self.chance.choice([*self.ledgers][2:])

    def _load(self, numbers: Iterable[int]) -> None:
        """Load log days, each with lines of some days before it."""
        chance, window_days = self.chance, self.deployment.policy.window_days
        logged = [day(n) for n in numbers]
        spans = {
            d: sorted({d, *(d - n * DAY for n in range(window_days + 3) if chance.random() < 0.2)})
            for d in logged
        }
        spans = {d: [x for x in touched if x >= START] for d, touched in spans.items()}
        touched = sorted({x for days in spans.values() for x in days})
        inside = [x for d in logged for x in spans[d] if (d - x).days <= window_days]
        settled = [d for d in logged if chance.random() < 0.9]
        details = {
            "event_days": to_ranges({*inside}),
            "current_days": to_ranges(touched),
            "log_days": to_ranges(logged),
            "spans": {d: to_ranges(days) for d, days in spans.items()},
            "settled": to_ranges(settled),
            "unsettled": to_ranges(self.choose(logged, 0.05)),
        }
        if chance.random() < 0.1:
            details["spans"] = None
        self._commit(RAW, logged, **details)
        self._commit(REJECTED, logged)

    def _load_again(self) -> None:
        published = sorted(self.ledgers[RAW.name].published_days)
        last = (max(published, default=START) - START).days + 1
        if self.chance.random() < 0.5:
            self._load(range(last + 1, min(last + 3, LAST)))
        elif published:
            self._load(sorted((d - START).days + 1 for d in self.chance.sample(published, 1)))

    def partitions(self, name: str) -> list[date]:
        grain = self.deployment.tables[name].grain
        return [*grain.partitions_of(Window(START, day(self.last)))]

    def build_some(self, name: str, *, everything: bool = False, **more: Any) -> None:
        partitions = [
            d
            for d in self.partitions(name)
            if self._last_day(name, d) < self.today
            if self._has_inputs(name, d) or self.chance.random() < 0.02
        ]
        published = partitions if everything else self.choose(partitions, 0.5)
        if not published:
            return
        final = self.choose(published, 0.3) if name in self.deployment.graph.by_event_day else ()
        self._commit(self.deployment.tables[name], published, final=final, **more)

    def _rebuild(self) -> None:
        chance, name = self.chance, self._name()
        more: dict[str, Any] = {}
        if chance.random() < 0.2:
            more["config_digest"] = "other settings"
        if chance.random() < 0.15:
            more["input_digest"] = chance.choice(["", "of other input"])
        if chance.random() < 0.2:
            more["code"] = "new"
        if chance.random() < 0.4:
            more["same"] = [*self.ledgers[name].latest]
        self.build_some(name, **more)

    def _rebuild_all(self) -> None:
        for name in [*self.ledgers][2:]:
            ledger = self.ledgers[name]
            self.build_some(name, everything=True, same=[*ledger.latest])

    def _revert(self) -> None:
        """An undo: some days get other rows and are on hold, some are not published any more."""
        name = self.chance.choice([*self.ledgers])
        ledger = self.ledgers[name]
        reverted = self.choose(ledger.latest)
        gone = self.choose(reverted, 0.3)
        if not reverted:
            return
        digests = self._digests(name, reverted)
        held = {d: digests[d] for d in self.choose(reverted, 0.7)}
        self._commit(
            self.deployment.tables[name],
            [d for d in reverted if d not in gone],
            revoked=gone,
            launched_by="person",
            undoes="backfill",
            on_hold=held,
        )

    def _hold(self) -> None:
        name = self._name()
        days = self.choose(self.ledgers[name].latest, 0.3)
        if days:
            held = {"on_hold": self._digests(name, days)}
            table = self.deployment.tables[name]
            self._commit(table, days, kind=CANARY, launched_by="person", **held)

    def _write_externally(self) -> None:
        name = self.chance.choice([*self.ledgers])
        ledger = self.ledgers[name]
        if ledger.version is None:
            return
        other = ExternalCommit(
            ledger.version + 1,
            "WRITE",
            frozenset(self.choose(self.partitions(name), 0.15)),
            has_unknown_days=self.chance.random() < 0.1,
        )
        self.ledgers[name] = replace(
            ledger, version=other.version, external_commits=[*ledger.external_commits, other]
        )

    def _accept_code(self) -> None:
        name = self._name()
        if accepted := self.choose(self.ledgers[name].latest):
            table = self.deployment.tables[name]
            code = self.code.table_version(name)
            self._commit(table, accepted, code=code, same=accepted, kind=ACCEPTED_CODE)

    def _fail(self) -> None:
        name = self._name()
        self.failed[name] = {*self.choose(self.partitions(name), 0.2)}

    def _change_reference(self) -> None:
        content = self.chance.choice(["old rates", "new rates"])
        for name, ledger in self.ledgers.items():
            if name.endswith("euros"):
                self.ledgers[name] = replace(ledger, references={"rates": content})

    def _cut_log(self) -> None:
        name = self._name()
        ledger = self.ledgers[name]
        if ledger.version and self.chance.random() < 0.3:
            missing = self.chance.randrange(ledger.version)
            self.ledgers[name] = replace(
                ledger,
                records=[r for r in ledger.records if r.version > missing],
                missing_versions=[*range(missing + 1)],
            )

    def _digests(self, name: str, days: Iterable[date]) -> dict[date, str]:
        inputs = self.deployment.graph.inputs[name]
        return input_digests(inputs, self.ledgers, days, self.ledgers[name].references)

    def _commit(self, table: Table, days: Iterable[date], **more: Any) -> CommitRecord:
        more = {"launched_by": self.chance.choice(_LAUNCHERS), **more}
        numbers = [(d - START).days + 1 for d in days]
        return self.build(table, *numbers, **more)

    def _last_day(self, name: str, first: date) -> date:
        """The last day of a partition of a table."""
        return self.deployment.tables[name].grain.days_of(first).end - DAY

    def _has_inputs(self, name: str, partition: date) -> bool:
        graph = self.deployment.graph
        return all(
            needed in self.ledgers[dependency.source.name].published_days
            for dependency in graph.inputs[name]
            if dependency.source.name != name
            for needed in graph.required_days(dependency, partition)
        )
