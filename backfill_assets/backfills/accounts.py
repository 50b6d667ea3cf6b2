"""The account of a backfill: what it did against what was planned, and whether all of it is there.

From the tables' logs; the comparison of the rows themselves is `reconciliation`'s part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import SparkSession

from backfill_assets.backfills.asked import Asked
from backfill_assets.backfills.footprints import Change, belongs, footprint, part_of
from backfill_assets.backfills.layers import across_layers
from backfill_assets.backfills.plans import BackfillPlan
from backfill_assets.backfills.reconciliation import reconcile
from backfill_assets.backfills.reports import Report
from backfill_assets.calendar.partitions import spelled, unpacked
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.settings import Settings
from backfill_assets.staleness.supposed import depending
from backfill_assets.tables.code_version import Code


@dataclass(frozen=True)
class Certificate:
    """By which code and configuration a backfill made its days.

    Attributes:
        codes: the code versions, with the days of each table.
        commits: the same with what git knows of them, in words.
        configurations: the digests of what decides the rows, by table.
    """

    codes: Mapping[str, Mapping[str, Sequence[date]]]
    commits: frozenset[str]
    configurations: Mapping[str, Sequence[str]]

    @property
    def problems(self) -> list[str]:
        """Why nobody can answer for the backfill as one."""
        found = []
        if len(self.codes) > 1:
            said = "; ".join(
                f"{code} made "
                + ", ".join(f"{name} [{spelled(days)}]" for name, days in tables.items())
                for code, tables in self.codes.items()
            )
            found.append(f"its days carry {len(self.codes)} code versions: {said}")
        found += [
            f"its days of {name} carry {len(digests)} configurations: {', '.join(digests)}"
            for name, digests in self.configurations.items()
            if len(digests) > 1
        ]
        return found


def certificate(ledgers: Ledgers, name: str) -> Certificate:
    """The certificate of a backfill, from every commit that it made.

    Args:
        ledgers: those of all tables.
        name: as `footprints.belongs` takes it.
    """
    codes: dict[str, dict[str, list[date]]] = {}
    commits = set()
    configurations: dict[str, set[str]] = {}
    for table, ledger in ledgers.items():
        for record in ledger.records:
            if belongs(record, name):
                for day in record.days:
                    code = ledger.code_of(record, day)
                    codes.setdefault(code, {}).setdefault(table, []).append(day)
                    made = record.for_day(day)
                    commits.add(str(Code(made.code, made.git_commit, made.git_dirty)))
                    configurations.setdefault(table, set()).add(record.made_under(day))
    by_table = {table: sorted(digests) for table, digests in configurations.items()}
    return Certificate(codes, frozenset(commits), by_table)


def mixed_backfills(ledgers: Ledgers) -> list[str]:
    """The backfills that several codes or configurations had a part in, as far as they stand.

    Each table has a configuration of its own, that of the settings which decide its rows.
    """
    makers: dict[str, dict[tuple[str, str], dict[str, list[date]]]] = {}
    for name, ledger in ledgers.items():
        for day, record in ledger.latest.items():
            if record.backfill_id:
                of = makers.setdefault(record.backfill_id.partition("-")[0], {})
                by = (record.code, record.made_under(day))
                of.setdefault(by, {}).setdefault(name, []).append(day)
    return [
        f"backfill {backfill}: "
        + "; ".join(
            f"code {code} with configuration {digest} made "
            + ", ".join(f"{name} [{spelled(days)}]" for name, days in tables.items())
            for (code, digest), tables in of.items()
        )
        for backfill, of in sorted(makers.items())
        if len({code for code, _ in of}) > 1 or _met_in_a_table(of.values())
    ]


def _met_in_a_table(made: Collection[Mapping[str, Sequence[date]]]) -> bool:
    """Whether two had a part in one table."""
    return len({name for tables in made for name in tables}) < sum(map(len, made))


def changes(ledgers: Ledgers, name: str) -> dict[str, dict[date, Change]]:
    """What a backfill wrote, in every table that it wrote."""
    found = {table: footprint(ledger, part_of(name)) for table, ledger in ledgers.items()}
    return {table: days for table, days in found.items() if days}


def unfinished(again: BackfillPlan, ledgers: Ledgers, name: str, policy: Policy) -> Iterator[str]:
    """The days that the backfill was to build and that are not as it would build them now.

    A later stage may load lines that belong, beyond the window, to a day of an earlier one. The
    backfill has built that day; its new input is in the backlog. So it is not counted here, and
    nor is what depends on that day alone.

    Args:
        again: a plan of the same days as of now: when all is done, nothing is left to do.
        ledgers: those of all tables.
        name: as `footprints.belongs` takes it.
        policy: the late-data policy.
    """
    found: dict[str, list[date]] = {}
    for table, outlook in again.tables.items():
        ledger = ledgers[table]
        mine = [record.version for record in ledger.records if belongs(record, name)]
        due = {*unpacked(outlook.computed)}
        for source, moving in found.items():
            depends = unpacked(outlook.depends)
            due |= depending(ledgers, policy, table, depends, source, moving)
        left = [day for day in sorted(due) if not _made_since(ledger, day, mine)]
        if left:
            found[table] = left
            yield f"{table} [{spelled(left)}] is not published as it should be now"


def _made_since(ledger: Ledger, day: date, mine: Sequence[int]) -> bool:
    """Whether a backfill with these versions published a day, or a later run did; and it stands."""
    record = ledger.latest.get(day)
    if record is None or ledger.current_record(day) is None or not mine:
        return False
    return record.version in mine or record.version >= max(mine)


def against_plan(plan: BackfillPlan, ledgers: Ledgers) -> Iterator[tuple[str, str, str]]:
    """What came of the plan's days: table, what was expected, and what became of them."""
    for table, outlook in plan.tables.items():
        spoken: dict[date, bool] = {}
        for record in ledgers[table].records:
            if belongs(record, plan.id):
                for day in record.days:
                    spoken[day] = spoken.get(day, False) or day in record.wrote
        for expected, days in outlook.by_expectation():
            written = [d for d in days if spoken.get(d)]
            same = [d for d in days if spoken.get(d) is False]
            silent = [d for d in days if d not in spoken]
            said = [
                f"{len(found)} {what}"
                for found, what in (
                    (written, "written"),
                    (same, "computed with the rows that were there"),
                    (silent, "left alone"),
                )
                if found
            ]
            yield table, f"{len(days)} {expected.value}", ", ".join(said)


@dataclass(frozen=True)
class Account:
    """All that can be said of a backfill when it is done.

    Attributes:
        name: the backfill.
        reports: before and after, by table.
        certificate: by what it was made.
        planned: what came of the plan, by table; nothing without a plan.
        problems: why the backfill is not what it should be, in sentences; without any, it is.
        unreadable: why its plan could not be read, so that it is compared with what Dagster was
            asked for; empty if it was read, or if there was none.
    """

    name: str
    reports: Sequence[Report]
    certificate: Certificate
    planned: Sequence[tuple[str, str, str]]
    problems: Sequence[str]
    unreadable: str = ""

    @property
    def verdict(self) -> str:
        """Whether all is as it should be, in a sentence."""
        return "; ".join(self.problems) or "all of it is there, and adds up"


def account(
    settings: Settings,
    spark: SparkSession,
    name: str,
    plan: BackfillPlan | None = None,
    again: BackfillPlan | None = None,
    asked: Asked | None = None,
    unreadable: str = "",
) -> Account:
    """Read what a backfill replaced and what it published, and compare.

    Args:
        settings: the deployment's settings.
        spark: reads the tables.
        name: the backfill, as `footprints.belongs` takes it.
        plan: what it was launched by, if it was planned.
        again: the plan of the same days as of now.
        asked: what Dagster was asked for, if it was not planned.
        unreadable: as the account has it.
    """
    ledgers = read_ledgers(settings)
    reports = [
        reconcile(
            spark,
            settings.table(table),
            ledgers[table].table,
            {
                day: (change.before if change.previous else None, change.after)
                for day, change in days.items()
            },
            ledgers[table],
        )
        for table, days in changes(ledgers, name).items()
    ]
    proof = certificate(ledgers, name)
    problems = [*across_layers(reports, ledgers), *proof.problems]
    if again:
        problems += unfinished(again, ledgers, name, Policy.of(settings))
    if asked:
        problems += asked.not_published
    if not proof.codes and not again and not (asked and asked.days):
        problems.append(f"no commit of {name} is in any table at {settings.warehouse}")
    planned = list(against_plan(plan, ledgers)) if plan else []
    return Account(name, reports, proof, planned, problems, unreadable)


def in_lines(found: Account) -> Iterator[tuple[str, str]]:
    """The account beside the reports, for a reader; the verdict comes first."""
    yield "verdict", found.verdict
    if found.unreadable:
        yield "plan", found.unreadable
    for table, expected, came in found.planned:
        yield f"planned for {table}", f"{expected}: {came}"
    for code in sorted(found.certificate.commits):
        yield "made by code", code
    tables: dict[str, list[str]] = defaultdict(list)
    for name, digests in found.certificate.configurations.items():
        tables[", ".join(digests)].append(name)
    for digests, names in tables.items():
        yield "configuration", f"{digests}: {', '.join(names)}"
