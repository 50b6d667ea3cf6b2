"""Shadow backfills: days built into a target, beside production, which notices nothing of it.

The assets themselves compute and audit the days, as in any run; Dagster's instance is not told, as
no table of production has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any, NamedTuple

import dagster as dg
import msgspec
from pydantic import PrivateAttr

from backfill_assets.backfills.plans import Parameters
from backfill_assets.backfills.target_days import (
    adoptable,
    behind,
    days_of,
    refuse_foreign,
    refuse_migrated,
    tables_for,
)
from backfill_assets.calendar.partitions import DAY, Window, packed, runs_of
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.internals import AssetGraph
from backfill_assets.dagster_ext.run_failures import reason
from backfill_assets.delta import target_forks, targets
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.targets import Target, TargetError
from backfill_assets.publish.adoption import Origin, adopt
from backfill_assets.publish.candidates import Candidate, Done, Outcome
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.run_tags import REASON_TAG
from backfill_assets.quality.checks import failure_text
from backfill_assets.settings import Settings
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table


class ShadowIOManager(DeltaIOManager):
    """Reads as a target sees the tables, and publishes in its forks."""

    _settings: Settings = PrivateAttr()
    _target: Target = PrivateAttr()
    _done: list[tuple[Table, Done]] = PrivateAttr(default_factory=list)

    @classmethod
    def like(cls, io: DeltaIOManager, settings: Settings, target: Target) -> ShadowIOManager:
        """One for the tables of a target, by the same code."""
        shadow = cls(**{name: getattr(io, name) for name in type(io).model_fields})
        shadow._settings, shadow._target = settings, target
        return shadow

    @property
    def done(self) -> Sequence[tuple[Table, Done]]:
        """What became of the days so far."""
        return self._done

    def url(self, table: Table) -> str:
        """Where a table is, as the target has it."""
        return self._target.url(self._settings, table.name)

    def ledger(self, table: Table) -> Ledger:
        """What the log of a table says, as the target sees it."""
        return self._target.ledger(self._settings, table.name)

    def writer(self, table: Table) -> Writer:
        """Commits to the fork, and writes data files where those of the table lie."""
        files = self._settings.table(table.name)
        return replace(super().writer(table), files=files)

    def publish(
        self,
        candidate: Candidate,
        window: Window,
        record: Mapping[str, Any],
        *,
        rewrite: Container[date] = (),
        merge: bool = False,
    ) -> list[Done]:
        """As any run; what it made of the days is remembered. Days are replaced, never merged."""
        done = super().publish(candidate, window, record, rewrite=rewrite)
        self._done += [(candidate.table, one) for one in done]
        return done


class Stage(NamedTuple):
    """What became of a stage of a shadow backfill.

    Attributes:
        name: of the stage.
        window: its days.
        counts: by table, how many days had which outcome.
        why: what failed, in the words of the steps; empty if nothing did.
    """

    name: str
    window: Window
    counts: Mapping[str, Mapping[Outcome, int]]
    why: str = ""


def prepare(io: DeltaIOManager, settings: Settings, name: str, asked: Parameters) -> Target:
    """The target of a name: made if there is none, or else caught up, with these days as well.

    Args:
        io: reads and publishes.
        settings: the deployment's settings.
        name: of the target.
        asked: the days, and the tables if the target is to be made.

    Raises:
        TargetError: it cannot be made so, or is there with other tables.
        ForkError: a table cannot be forked.
    """
    if name not in targets.names(settings):
        tables = tables_for(settings, asked.tables)
        new = target_forks.described(settings, name, tables, asked.window, asked.reason)
        return target_forks.make(settings, new)
    target = targets.find(settings, name)
    if asked.tables and (wanted := tables_for(settings, asked.tables)) != target.tables:
        raise TargetError(
            f"target {name} has the tables {', '.join(target.tables)}, and not "
            f"{', '.join(wanted)}: take another name for these"
        )
    target = catch_up(io, settings, target)
    days = {day for window in (*target.windows, asked.window) for day in window}
    return targets.keep(settings, target.model_copy(update={"asked": tuple(packed(days))}))


def catch_up(io: DeltaIOManager, settings: Settings, target: Target) -> Target:
    """Let a target see production as it is now; its forks begin there, with the days it has made.

    Args:
        io: reads and publishes.
        settings: the deployment's settings.
        target: the target.

    Raises:
        TargetError: another writer has changed days that the target has made, or a table of it was
            migrated.
        PublishError: files of days that it has made are gone.
    """
    targets.refuse_busy(target)
    tables = tables_of(settings)
    now = {name: read_ledger(settings.table(name), table) for name, table in tables.items()}
    pins = {name: ledger.version for name, ledger in now.items()}
    if pins == target.pins:
        return target
    refuse_migrated(settings, target, now)
    refuse_foreign(settings, target, now)
    fresh = target.model_copy(update={"pins": pins, "asked": _asked(target, now)})
    if all(pins[name] == target.pins[name] for name in target.tables):
        return targets.keep(settings, fresh)
    fresh = target_forks.fork_tables(settings, fresh)
    shadow = ShadowIOManager.like(io, settings, fresh)
    for name in target.tables:
        adopted, table = adoptable(settings, target, name), tables[name]
        if adopted.days:
            record = shadow.record(table, f"target {target.name}", {})
            adopt(
                adopted,
                shadow.writer(table),
                partial(shadow.ledger, table),
                record,
                partial(
                    origin_in,
                    settings,
                    fresh,
                    adopted.ledger,
                    partial(fresh.ledgers, settings),
                ),
            )
    return targets.keep(settings, fresh)


def origin_in(
    settings: Settings,
    target: Target,
    fork: Ledger,
    ledgers: Callable[[], Ledgers],
    days: Iterable[date],
) -> Origin:
    """What days of a fork were made by and from, as another log of the table is to name it.

    Of an input that the target has too, the version there as of now is named, if the input holds
    there what the day was made of. Else no version is, as none holds it: the day is behind.

    Args:
        settings: the deployment's settings.
        target: the target.
        fork: the ledger of the table, as the target has it.
        ledgers: those of all tables where the days are to be, as of now.
        days: the days.
    """
    days, name, there = sorted(days), fork.table.name, ledgers()
    inputs = fork.table.inputs(Policy.of(settings))
    # Of a table that carries state, days are built upon days that come with them.
    supposed = {(name, day): fork.content(day) for day in days}
    fingerprints = input_fingerprints(inputs, there, days, there[name].references, supposed)
    other = {d for d in days if fork.latest[d].days[d].fingerprint != fingerprints[d]}
    forks = {table: target.ledger(settings, table) for table in target.tables}

    def holds(day: date, table: str, seen: int) -> bool:
        these = tuple(of for of in inputs if of.source.name == table)
        # What the table carries on from may have been built in the same commit.
        at = fork.latest[day].version if table == name else seen
        then = {table: forks[table].as_of(at)}
        made_from = input_fingerprints(these, then, [day])
        return made_from == input_fingerprints(these, there, [day], supposed=supposed)

    def versions(day: date) -> dict[str, int]:
        return {
            table: (there[table].version or 0) if table in target.tables else seen
            for table, seen in fork.latest[day].provenance(day).inputs.items()
            if table not in target.tables or day not in other or holds(day, table, seen)
        }

    provenances = {
        day: msgspec.structs.replace(fork.latest[day].provenance(day), inputs=versions(day))
        for day in days
    }
    return Origin(provenances, {day: fingerprints[day] for day in other})


def _asked(target: Target, now: Ledgers) -> tuple[str, ...]:
    """The days that are asked for, up to the newest of production if they are to end there."""
    newest = max((day for name in target.tables for day in now[name].published), default=None)
    last = target.windows[-1]
    if not target.newest or newest is None or newest < last.end:
        return target.asked
    return (*target.asked[:-1], str(Window(last.start, newest + DAY)))


def build(
    io: DeltaIOManager,
    settings: Settings,
    assets: Sequence[dg.AssetsDefinition],
    target: Target,
    parameters: Parameters,
) -> Iterator[Stage]:
    """Build days into a target, stage after stage; the last one may have days that did not pass.

    Days that the target has already, as they would be made now, are left alone: so a build that
    was killed goes on where it was.

    Args:
        io: reads and publishes.
        settings: the deployment's settings.
        assets: those of the deployment.
        target: the target.
        parameters: the days, and how they are cut into stages.

    Raises:
        TargetError: another command has made its forks anew meanwhile.
    """
    shadow = ShadowIOManager.like(io, settings, target)
    resources = {
        "io_manager": dg.IOManagerDefinition.hardcoded_io_manager(shadow),
        "engine": dg.ResourceDefinition.hardcoded_resource(io.engine),
    }
    graph = AssetGraph.from_assets(list(assets))
    with dg.DagsterInstance.ephemeral() as instance:
        for name, window in parameters.stages():
            before, why = len(shadow.done), []
            for part, selection in _parts(settings, days_of(settings, graph, target, window)):
                result = dg.materialize(
                    assets,
                    selection=selection,
                    instance=instance,
                    resources=resources,
                    tags={
                        REASON_TAG: parameters.reason or target.reason,
                        "dagster/asset_partition_range_start": str(part.start),
                        "dagster/asset_partition_range_end": str(part.end - DAY),
                    },
                    run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                    raise_on_error=False,
                )
                if failed := _missed(settings, graph, target, shadow, result.run_id):
                    why.append(failure_text(failed, "build the same into the target again"))
                if not result.success:
                    why.append(reason(instance, result.run_id))
            if targets.find(settings, target.name).generation != target.generation:
                raise TargetError(
                    f"another command has let target {target.name} catch up with production since "
                    "this build began: what was built is not in it. Ask for the same again."
                )
            yield _stage(name, window, shadow.done[before:], "\n".join(why))
            if why:
                return


def _missed(
    settings: Settings, graph: AssetGraph, target: Target, shadow: ShadowIOManager, run_id: str
) -> dict[str, dict[date, str]]:
    """By table, the days that a run did not publish, but for those that nobody can make yet."""
    failed = {name: of for name, of in shadow.failed(run_id).items() if of}
    if not failed:
        return {}
    code = Code(shadow.code_version, tables=shadow.code_versions)
    left = behind(settings, graph, target, code, pinned=True)
    kept = {
        name: {day: why for day, why in of.items() if day in left.get(name, ())}
        for name, of in failed.items()
    }
    return {name: of for name, of in kept.items() if of}


def _parts(
    settings: Settings, days: Mapping[str, Sequence[date]]
) -> Iterator[tuple[Window, list[str]]]:
    """Ranges of partitions, each with tables that have just these, inputs first."""
    together: list[tuple[Sequence[date], list[str]]] = []
    for name, of in days.items():
        cadence = tables_of(settings)[name].cadence
        last = together[-1] if together else None
        if last and last[0] == of and tables_of(settings)[last[1][0]].cadence is cadence:
            last[1].append(name)
        else:
            together.append((of, [name]))
    for of, names in together:
        for window in tables_of(settings)[names[0]].cadence.ranges(of):
            partitions = [day for day in sorted(of) if day in window]
            for run in runs_of(partitions, settings.partitions_per_run):
                yield run, names


def _stage(name: str, window: Window, done: Sequence[tuple[Table, Done]], why: str) -> Stage:
    counts: dict[str, dict[Outcome, int]] = {}
    for table, one in done:
        of = counts.setdefault(table.name, {})
        of[one.outcome] = of.get(one.outcome, 0) + 1
    return Stage(name, window, counts, why)
