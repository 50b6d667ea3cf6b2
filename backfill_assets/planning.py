"""The plan of a backfill: which days of which tables it builds, and what becomes of each of them.

Made from the tables' logs, the listing of the landing and Dagster's records alone: nothing is
computed and no JVM is started.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import linear_regression, mean
from typing import Literal, NamedTuple

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.partitions.subset import PartitionsSubset
from pydantic import BaseModel, Field

from backfill_assets.arrivals import manifests, targets
from backfill_assets.calendars import days_asked
from backfill_assets.catalog import config_digests, tables_of
from backfill_assets.codes import Code
from backfill_assets.finality import final_days
from backfill_assets.graph import Graph, graph_of
from backfill_assets.history import spans
from backfill_assets.lateness import Policy
from backfill_assets.ledgers import Ledger, Ledgers
from backfill_assets.listing import Entry, list_landing
from backfill_assets.manifests import Target, news
from backfill_assets.partitions import (
    DAY,
    Window,
    days_of_run,
    packed,
    unpacked,
    windows,
)
from backfill_assets.reading import read_ledgers
from backfill_assets.reasons import new_input, why
from backfill_assets.recipes import made_of
from backfill_assets.settings import Settings
from backfill_assets.sources import Source
from backfill_assets.supposed import Supposed
from backfill_assets.tables import Inputs

#: Past runs that the expected duration is judged from.
_PAST_RUNS = 100


class Expected(enum.Enum):
    """What will become of a day."""

    #: Published as it would be made: no commit speaks of it.
    IDENTICAL = "identical"
    #: It is computed, and a commit speaks of it, also if it finds the rows that are there.
    COMPUTED = "computed"
    #: It is computed if what it is made of turns out to be other than now.
    DEPENDS = "depends on its input"
    #: It cannot be built: an input day has never been published, and is not in the plan.
    LACKING = "input missing"
    #: It cannot be built: an input day was made under other settings, and is not in the plan.
    OTHER_SETTINGS = "input made under other settings"


class Parameters(BaseModel, frozen=True):
    """What a person asks for.

    Attributes:
        days: the days, as `FIRST...LAST`; they are those of the tables that the others are made
            of, whose days follow from them as when they are launched in the UI.
        tables: the tables to build; all if none is named.
        pilot_days: so many of the first days are built and reconciled before the rest.
        chunk_days: stages of so many days, each built and reconciled before the next; none for
            all of the rest in one stage.
        max_parallel: at most so many runs at a time; none for what the run queue allows.
        write_mode: as the run tag of that name.
        rewrite: compute and write also what would be identical.
        accept: what is agreed to: names of landing files that take orders away, and more; see
            `run_tags.ACCEPT_TAG`.
        reason: why.
    """

    days: str
    tables: tuple[str, ...] = ()
    pilot_days: int = Field(default=0, ge=0)
    chunk_days: int | None = Field(default=None, ge=1)
    max_parallel: int | None = Field(default=None, ge=1, le=7)
    write_mode: Literal["overwrite", "merge"] = "overwrite"
    rewrite: bool = False
    accept: tuple[str, ...] = ()
    reason: str = ""

    @property
    def window(self) -> Window:
        """The days asked for."""
        return Window.parse(self.days)

    def stages(self) -> Iterator[tuple[str, Window]]:
        """The stages, one after another: a name and the days of each."""
        window = self.window
        if 0 < self.pilot_days < len(window):
            rest = window.start + self.pilot_days * DAY
            yield "pilot", Window(window.start, rest)
            window = Window(rest, window.end)
        chunks = window.split(self.chunk_days)
        for n, chunk in enumerate(chunks, 1):
            yield (f"{n:03d}" if len(chunks) > 1 else "rest"), chunk


class Outlook(BaseModel, frozen=True):
    """What will become of the days of one table, by ranges.

    Attributes:
        identical: see `Expected`.
        computed: see `Expected`.
        depends: see `Expected`.
        lacking: see `Expected`.
        final: those of them that are final.
        why: by reason, the days that are computed, or may be.
    """

    identical: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    other_settings: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    why: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)

    def by_reason(self) -> Iterator[tuple[Expected, str, list[date]]]:
        """The days, by what will become of them and why; without a reason where none is due."""
        reasons = {day: reason for reason, of in self.why.items() for day in unpacked(of)}
        for expected, days in self.by_expectation():
            found: dict[str, list[date]] = {}
            for day in days:
                found.setdefault(reasons.get(day, ""), []).append(day)
            for reason, of in found.items():
                yield expected, reason, of

    def by_expectation(self) -> Iterator[tuple[Expected, list[date]]]:
        """The days, by what will become of them."""
        for expected in Expected:
            if days := unpacked(getattr(self, expected.name.lower())):
                yield expected, days

    @property
    def left(self) -> list[date]:
        """The days that can be published, and are not as they should be now."""
        return unpacked([*self.computed, *self.depends])


class BackfillPlan(BaseModel, frozen=True):
    """A backfill that has not been launched, and what it was planned on.

    Attributes:
        id: of the plan, and of the backfill that comes of it.
        parameters: what was asked for.
        code_version: of the code that is to compute it.
        code_versions: the same by table.
        code: the same in words, with the git commit.
        config_digest: of the settings that decide what is in the tables.
        versions: by table that it reads or writes, the version of the last commit that changed it.
        landing: digest of the contents that raw days are loaded from; empty if none are.
        held: landing files that wait for a person to accept that they take orders away.
        replaced: landing files with other content than was loaded; they will wait as well if they
            turn out to lack orders.
        tables: what will become of the days.
        files: data files and landing files to read at most.
        size: of these, in bytes.
        commits: at most so many are made.
        runs: so many runs, if none is split further.
        seconds: expected duration, from past runs; none without any.
    """

    id: str
    parameters: Parameters
    code_version: str
    code: str
    config_digest: str
    versions: Mapping[str, int | None]
    landing: str
    code_versions: Mapping[str, str] = Field(default_factory=dict)
    held: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    tables: Mapping[str, Outlook]
    files: int
    size: int
    commits: int
    runs: int
    seconds: float | None

    @property
    def rewrites_final(self) -> dict[str, list[date]]:
        """The final days that it computes, or may, by table."""
        found = {
            name: sorted({*unpacked(outlook.final)} & {*outlook.left})
            for name, outlook in self.tables.items()
        }
        return {name: days for name, days in found.items() if days}

    def moved(self, now: BackfillPlan) -> list[str]:
        """What has changed since the plan was made, in words."""
        found = []
        if self.code_version != now.code_version:
            found.append(f"the code was {self.code} and is {now.code}")
        if self.config_digest != now.config_digest:
            found.append(f"the configuration was {self.config_digest} and is {now.config_digest}")
        found += [
            f"{name} was at version {version} and is at {now.versions.get(name)}"
            for name, version in self.versions.items()
            if now.versions.get(name) != version
        ]
        if self.landing != now.landing:
            found.append("files have landed (or gone) for the days that are to be loaded")
        return found


def target_days(
    graph: BaseAssetGraph, tables: Sequence[str], window: Window
) -> dict[str, list[date]]:
    """The days of tables, which are given inputs first: those asked for, and what follows them.

    Those asked for are the days of the tables that are made of none of the others. Dagster's own
    answer depends on the order in which it comes to a table that follows two others.
    """
    found: dict[str, PartitionsSubset] = {}
    for name in tables:
        key = dg.AssetKey(name)
        days = graph.get(key).partitions_def
        assert days is not None
        parents = [p for p in graph.get(key).parent_keys if p.to_user_string() in found]
        subset = days.subset_with_partition_keys([] if parents else map(str, window))
        for parent in parents:
            subset |= graph.get_partition_mapping(
                key, parent
            ).get_downstream_partitions_for_partitions(found[parent.to_user_string()], days, days)
        found[name] = subset
    return {
        name: sorted(map(date.fromisoformat, subset.get_partition_keys()))
        for name, subset in found.items()
        if not subset.is_empty
    }


def refuse_impossible(settings: Settings, parameters: Parameters) -> None:
    """See that what a person asks for can be planned, and that nothing of it would be ignored.

    Raises:
        ValueError: a day is not on the calendar, there is no such table, no day is left to build
            after the pilot, or files are accepted for tables that are not loaded from any.
    """
    tables = _refuse_unknown(settings, parameters)
    if 0 < len(parameters.window) <= parameters.pilot_days:
        raise ValueError(
            f"a pilot of {parameters.pilot_days} day(s) leaves nothing of the "
            f"{len(parameters.window)} day(s) {parameters.window}: give fewer pilot days, or none"
        )
    landed = Graph.of(tables_of(settings).values(), Policy.of(settings)).landed
    if parameters.accept and not {*landed} & {*tables}:
        raise ValueError(
            f"{', '.join(parameters.accept)} is accepted for nothing: only {', '.join(landed)} "
            "are loaded from files, and none of them is among the tables"
        )


def _refuse_unknown(settings: Settings, parameters: Parameters) -> tuple[str, ...]:
    """The tables that are asked for, inputs first."""
    days_asked(parameters.days, settings)
    tables = tables_of(settings)
    if unknown := set(parameters.tables) - tables.keys():
        raise ValueError(f"no such table: {', '.join(sorted(unknown))}; there are {[*tables]}")
    return tuple(name for name in tables if name in (parameters.tables or tables))


def make_plan(
    settings: Settings,
    graph: BaseAssetGraph,
    instance: dg.DagsterInstance,
    parameters: Parameters,
    code: Code,
    id_: str,
) -> BackfillPlan:
    """The plan as of now.

    Args:
        settings: the deployment's settings.
        graph: the assets.
        instance: knows the past runs.
        parameters: what is asked for.
        code: the code that is to compute it.
        id_: of the plan.

    Raises:
        ValueError: a day is not on the calendar, or there is no such table.
    """
    tables = _refuse_unknown(settings, parameters)
    parameters = parameters.model_copy(update={"tables": tables})
    days = target_days(graph, tables, parameters.window)
    ledgers = read_ledgers(settings)
    return plan_backfill(settings, parameters, days, ledgers, code, id_, past_runs(instance))


def plan_backfill(
    settings: Settings,
    parameters: Parameters,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    code: Code,
    id_: str,
    past: Sequence[tuple[int, float]] = (),
) -> BackfillPlan:
    """The plan.

    Args:
        settings: the deployment's settings.
        parameters: what is asked for.
        days: the days of each table, inputs first, as `target_days` says them.
        ledgers: those of all tables.
        code: the code that is to compute it.
        id_: of the plan.
        past: days and seconds of past runs.
    """
    policy = Policy.of(settings)
    tables = graph_of(ledgers, policy)
    landed = {
        log: _landed(settings.landing, source, ledgers[log], loaded, policy, parameters.accept)
        for log, source in tables.sources.items()
        if (loaded := {*days.get(log, ()), *days.get(source.rejected.name, ())})
    }
    found = _outcomes(settings, parameters, days, ledgers, code, landed)
    final = final_days(ledgers, policy, {day for of in days.values() for day in of})
    work = {
        name: [day for day, fate in of.items() if fate.expected in _WORK]
        for name, of in found.items()
    }
    entries = [entry for of in landed.values() for entry in of.entries]
    files, size = len(entries), sum(entry.size for entry in entries)
    for input_, of in _reads(work, ledgers, policy):
        stored = [ledgers[input_].stored[day] for day in of]
        files += sum(day.files for day in stored)
        size += sum(day.size for day in stored)
    stages = [stage for _, stage in parameters.stages()]
    chunks = sum(len(stage.split(settings.partitions_per_run)) for stage in stages)
    # What is made of the log by event day comes in runs of its own, once the log is there.
    waves = 2 if {*days} & {*tables.sources} and len(days) > 1 else 1
    runs = chunks * waves
    touched = {*days, *(source for name in days for source in tables.made_from(name))}
    return BackfillPlan(
        id=id_,
        parameters=parameters,
        code_version=code.version,
        code_versions={name: code.of(name) for name in days},
        code=str(code),
        config_digest=settings.digest,
        versions={name: last_change(ledgers[name]) for name in ledgers if name in touched},
        landing=_digest(landed) if landed else "",
        held=_names(one.manifest.held for of in landed.values() for one in of.targets.values()),
        replaced=_names(one.replaced for of in landed.values() for one in of.targets.values()),
        tables={
            name: Outlook(
                **{
                    expected.name.lower(): tuple(
                        packed(day for day, fate in of.items() if fate.expected is expected)
                    )
                    for expected in Expected
                },
                final=tuple(packed(final.get(name, set()) & of.keys())),
                why={
                    reason: tuple(packed(day for day, fate in of.items() if fate.why == reason))
                    for reason in dict.fromkeys(fate.why for fate in of.values())
                    if reason
                },
            )
            for name, of in found.items()
        },
        files=files,
        size=size,
        commits=sum(min(len(of), chunks) for of in work.values()),
        runs=runs,
        seconds=expected_seconds(past, runs, len(parameters.window) * waves)
        if any(work.values())
        else 0,
    )


_WORK = (Expected.COMPUTED, Expected.DEPENDS)


def _names(of: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in of for name in names}))


@dataclass(frozen=True)
class _Landed:
    """What the days of a raw log are to be loaded from.

    Attributes:
        targets: by day.
        news: by day, what has changed since it was loaded, in words.
        entries: the files.
    """

    targets: Mapping[date, Target]
    news: Mapping[date, str]
    entries: Sequence[Entry]

    @property
    def recipes(self) -> dict[date, str]:
        """By day, the recipe of what it is to be loaded from."""
        return {day: one.manifest.recipe() for day, one in self.targets.items()}


def _landed(
    landing: str,
    source: Source,
    log: Ledger,
    days: Collection[date],
    policy: Policy,
    accepted: Collection[str],
) -> _Landed:
    arrivals = sorted({d for day in days for d in (day - DAY, day)})
    listed, before = list_landing(landing, source.name, arrivals), manifests(log)
    wanted = targets(before, listed, sorted(days), source.under(policy), accepted=accepted)
    said = {day: news(before.get(day), one) for day, one in wanted.items()}
    entries = [entry for day in arrivals for entry in listed.files(day).values()]
    return _Landed(wanted, said, entries)


class _Fate(NamedTuple):
    """What will become of a day; and why, if that is work."""

    expected: Expected
    why: str = ""


def _outcomes(
    settings: Settings,
    parameters: Parameters,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    code: Code,
    landed: Mapping[str, _Landed],
) -> dict[str, dict[date, _Fate]]:
    """What becomes of each day: its recipe as it is now, and as it is if its inputs change."""
    policy, digests = Policy.of(settings), config_digests(settings)
    supposed: dict[str, Ledger] = dict(ledgers)
    unlike = {name: ledgers[name].under_other_settings(digests[name]) for name in ledgers}
    found, graph = {}, graph_of(ledgers, policy)
    for name, wanted in days.items():
        ledger, by = ledgers[name], (code.of(name), digests[name])
        loads = [landed[log] for log in graph.logs(name)] if name in graph.landed else []
        now = loads[0].recipes if loads else made_of(graph.inputs[name], ledgers, wanted)
        may_change = _may_change(graph.inputs[name], now, ledgers, supposed)
        inputs = graph.made_from(name)
        reads = {
            of.source.name: of.reach.deciding(supposed[of.source.name])
            for of in graph.inputs[name]
            if unlike[of.source.name]
        }
        of, fates = [ledgers[input_] for input_ in inputs], {}
        for day in wanted:
            said = loads[0].news.get(day, "") if loads else ""
            reason = why(ledger, day, now[day], *by, parameters.rewrite, inputs=of, news=said)
            if not all(day in supposed[input_].published for input_ in inputs):
                fates[day] = _Fate(Expected.LACKING)
            elif any(not unlike[of].isdisjoint(deciding(day)) for of, deciding in reads.items()):
                fates[day] = _Fate(Expected.OTHER_SETTINGS)
            elif parameters.rewrite or not _made_by(ledger, day, by):
                fates[day] = _Fate(Expected.COMPUTED, reason or "")
            elif changing := may_change[day]:
                fates[day] = _Fate(Expected.DEPENDS, new_input(changing))
            elif reason is not None:
                fates[day] = _Fate(Expected.COMPUTED, reason)
            else:
                fates[day] = _Fate(Expected.IDENTICAL)
        found[name] = fates
        if moving := {day for day, fate in fates.items() if fate.expected in _WORK}:
            unlike[name] -= moving
            supposed[name] = Supposed.of(ledger, moving)
    return found


def _may_change(
    inputs: Inputs,
    now: Mapping[date, str],
    ledgers: Ledgers,
    supposed: Ledgers,
) -> dict[date, list[str]]:
    """By day, the inputs that change what it is made of, if they change where they may."""
    found: dict[date, list[str]] = {day: [] for day in now}
    for input_ in (of.source.name for of in inputs):
        if not isinstance(supposed[input_], Supposed):
            continue
        then = made_of(inputs, {**ledgers, input_: supposed[input_]}, now)
        for day in now:
            if then[day] != now[day]:
                found[day].append(input_)
    return found


def _made_by(ledger: Ledger, day: date, by: tuple[str, str]) -> bool:
    """Whether a day stands as this code and configuration published it."""
    record = ledger.latest.get(day) if ledger.stands(day) else None
    return record is not None and (record.code_version, record.made_under(day)) == by


def last_change(ledger: Ledger) -> int | None:
    """The version of the last commit that changed a table; maintenance does not."""
    return max((commit.version for commit in ledger.commits), default=None)


def _reads(
    work: Mapping[str, Collection[date]], ledgers: Ledgers, policy: Policy
) -> Iterator[tuple[str, set[date]]]:
    """What the days that are computed read of other tables: of each input, the published days."""
    for name, days in work.items():
        for of in ledgers[name].table.inputs(policy):
            source = ledgers[of.source.name]
            if source.stored:
                deciding = of.reach.deciding(source)
                read = {d for day in days for d in deciding(day) if d in source.stored}
                yield of.source.name, read


def _digest(landed: Mapping[str, _Landed]) -> str:
    said = json.dumps(
        {
            log: {str(day): what for day, what in sorted(of.recipes.items())}
            for log, of in landed.items()
        }
    )
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def past_runs(instance: dg.DagsterInstance) -> list[tuple[int, float]]:
    """Days and seconds of the last runs that succeeded, as Dagster has them."""
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])
    found = []
    for record in instance.get_run_records(wanted, limit=_PAST_RUNS):
        days = days_of_run(record.dagster_run.tags)
        if days and record.start_time and record.end_time:
            found.append((len(days), record.end_time - record.start_time))
    return found


def expected_seconds(past: Sequence[tuple[int, float]], runs: int, days: int) -> float | None:
    """How long runs take, one after another, by what past runs took.

    Args:
        past: days and seconds of each.
        runs: how many are to come.
        days: of all of them together.
    """
    if not past:
        return None
    sizes, seconds = zip(*past, strict=True)
    if len(set(sizes)) > 1:
        line = linear_regression(sizes, seconds)
        if line.slope > 0 and line.intercept > 0:
            return runs * line.intercept + days * line.slope
    # Of one size, or of no clear trend: a run with fewer days is taken for no quicker.
    return runs * mean(seconds) * max(1, days / runs / mean(sizes))


def in_lines(plan: BackfillPlan) -> Iterator[tuple[str, str, str, str]]:
    """The plan's days for a reader: table, what becomes of them, why, and which they are."""
    for name, outlook in plan.tables.items():
        for expected, because, days in outlook.by_reason():
            yield name, f"{len(days)} {expected.value}", because, spans(windows(days))
        if outlook.final:
            days = unpacked(outlook.final)
            yield name, f"of these, {len(days)} final", "", spans(windows(days))


def in_numbers(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """The rest of the plan for a reader."""
    asked = plan.parameters
    stages = [f"{name} {window}" for name, window in asked.stages()]
    yield "stages", ", ".join(stages[:4]) + (f" and {len(stages) - 4} more" if stages[4:] else "")
    yield (
        "runs",
        f"about {plan.runs}"
        + (f", at most {asked.max_parallel} at a time" if asked.max_parallel else ""),
    )
    yield "commits", f"at most {plan.commits}"
    yield "reads", f"at most {plan.files:,} files, {plan.size / 1e6:,.1f} MB"
    yield (
        "expected",
        "no past run to judge from"
        if plan.seconds is None
        else f"{timedelta(seconds=round(plan.seconds))} if one run comes after another",
    )
    yield "code", plan.code
    yield "configuration", plan.config_digest
    yield "writes by", asked.write_mode + (", whatever is published" if asked.rewrite else "")
    if plan.held:
        yield "files waiting", f"{', '.join(plan.held)}: accept them by name, or put the old back"
    if plan.replaced:
        yield "files replaced", ", ".join(plan.replaced)
    if asked.accept:
        yield "accepted", ", ".join(asked.accept)
    yield "reason", asked.reason or "none given"
