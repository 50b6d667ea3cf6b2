"""Accept that a code change changes no rows: days count as computed by the present code.

A sample of days is recomputed first and must have the published digests. The acceptance is a commit
without data files, and can be undone like a backfill.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import dagster as dg

from backfill_assets.backfills import state_store
from backfill_assets.backfills.verify import VerifyOutcome, verify_days
from backfill_assets.calendar.partitions import Window, format_ranges, to_windows
from backfill_assets.dagster_ext.internals import BULK_ACTION_TERMINAL_STATUSES
from backfill_assets.delta.commits import PublishError, Writer
from backfill_assets.delta.delta_rs import RACE_ATTEMPTS, race_attempts
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.migrate import build_acceptance_record
from backfill_assets.deployment import Deployment
from backfill_assets.publish.types import CODE_TAG, format_code_pin
from backfill_assets.staleness.assess import find_code_differences, other_code_reason
from backfill_assets.tables.code_version import Code


class AcceptanceRefusedError(ValueError):
    """Code was not accepted for a table; the message says whether anything was written."""


@dataclass(frozen=True)
class AcceptedCode:
    """The accepted days of a table.

    Attributes:
        table: its name.
        days: days that now count as computed by the present code.
        verified: those of them that were recomputed with the same rows.
        versions: their previous code versions.
        version: the table's version of the acceptance; None if there was nothing to accept.
        run_id: names the acceptance, for example for an undo; empty if there was nothing to accept.
        differences: by what the previous versions differ from the present one, as far as known.
    """

    table: str
    days: Sequence[date]
    verified: Sequence[date] = ()
    versions: frozenset[str] = frozenset()
    version: int | None = None
    run_id: str = ""
    differences: Sequence[str] = ()


def days_by_other_code(ledger: Ledger, code: Code, window: Window | None = None) -> list[date]:
    """Published days computed by another code version, if their record is still valid."""
    version = code.table_version(ledger.table.name)
    return sorted(
        day
        for day, record in ledger.latest.items()
        if record.code_version != version and ledger.current_record(day)
        if window is None or day in window
    )


def days_by_reason(ledger: Ledger, code: Code) -> dict[str, list[date]]:
    """The days that another code version computed, by the reason that a run would have."""
    version, days = code.table_version(ledger.table.name), defaultdict(list)
    for day in days_by_other_code(ledger, code):
        days[other_code_reason(ledger, ledger.latest[day].code_version, version)].append(day)
    return days


def accept_code(
    deployment: Deployment,
    defs: dg.Definitions,
    code: Code,
    table: str,
    window: Window | None,
    reason: str,
    sample_days: int,
) -> AcceptedCode:
    """Let days of a table that other code computed count as computed by the present code.

    `sample_days` of them are recomputed first; 0 for none.

    Raises:
        AcceptanceRefusedError: a sampled day has other rows now, no day can be recomputed from its
            published inputs, or other runs keep committing first.
    """
    ledger = read_ledgers(deployment)[table]
    days = days_by_other_code(ledger, code, window)
    verified = _verify_sample(deployment, defs, ledger, days, sample_days, code)
    for _ in race_attempts():
        if not days:
            return AcceptedCode(table, ())
        record = build_acceptance_record(ledger, days, code, reason)
        try:
            version = Writer.from_settings(deployment.settings, ledger.table).commit(
                {}, [], record, ledger
            )
        except PublishError as error:
            raise AcceptanceRefusedError(f"{error} The code was not accepted.") from error
        if version is not None:
            versions = frozenset(ledger.latest[day].code_version for day in days)
            differences = _find_differences(ledger, days, code)
            return AcceptedCode(
                table, days, verified, versions, version, record["run_id"], differences
            )
        current = read_ledger(deployment.table_url(table), ledger.table)
        # Days that another run has published meanwhile are not part of this acceptance.
        unchanged = [day for day in days if current.latest.get(day) == ledger.latest[day]]
        days = [day for day in days_by_other_code(current, code, window) if day in {*unchanged}]
        ledger = current
    raise AcceptanceRefusedError(
        f"{table}: other runs committed first {RACE_ATTEMPTS} times in a row. The code was not "
        "accepted, and nothing was written. Accept it when they are through."
    )


def _find_differences(ledger: Ledger, days: Sequence[date], code: Code) -> list[str]:
    """By what the code that made days differs from the present one, as far as it is on record."""
    version = code.table_version(ledger.table.name)
    old_versions = sorted({ledger.latest[day].code_version for day in days})
    differences = [find_code_differences(ledger, old, version) for old in old_versions]
    return [*filter(None, differences)]


def _verify_sample(
    deployment: Deployment,
    defs: dg.Definitions,
    ledger: Ledger,
    days: Sequence[date],
    sample_days: int,
    code: Code,
) -> list[date]:
    """Recompute a sample of days from their published inputs; returns the days that match.

    Days without rows show little: they are taken only if no day has rows.

    Raises:
        AcceptanceRefusedError: a day has other rows, or none can be recomputed.
    """
    filled_days = [day for day in days if ledger.latest[day].days[day].rows]
    table, sample = ledger.table.name, spread_evenly(filled_days or days, sample_days)
    results = [
        result
        for window in to_windows(sample)
        for result in verify_days(deployment, defs, window, [table])
        # With changed inputs or settings, a day says nothing about the code.
        if result.day in sample and result.same_inputs
    ]
    if changed := [result for result in results if result.outcome is not VerifyOutcome.MATCHES]:
        text = "; ".join(f"{table}[{result.day}]: {result}" for result in changed)
        differences = "; ".join(_find_differences(ledger, days, code))
        told = f" What differs in the code: {differences}." if differences else ""
        raise AcceptanceRefusedError(
            f"{table} has other rows by the present code: {text}.{told} The code was not accepted, "
            "and nothing was written; the days count as made by other code. Launch them as a "
            "backfill, or put the code back."
        )
    if sample and not results:
        raise AcceptanceRefusedError(
            f"{table}: {format_ranges(sample)} cannot be computed as published, because inputs or "
            "settings have changed since. The code was not accepted, and nothing was written. "
            "Launch the days as a backfill, give other days, or accept the code without a proof: "
            "--verify-days 0."
        )
    return [result.day for result in results]


def spread_evenly(days: Sequence[date], count: int) -> list[date]:
    """At most `count` days, evenly spread, with the first and the last from two days on."""
    if count >= len(days):
        return [*days]
    if count < 2:
        return [*days[len(days) - count :]]
    return [days[n * (len(days) - 1) // (count - 1)] for n in range(count)]


def repin_plans(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    ledgers: Ledgers,
    accepted: Sequence[AcceptedCode],
    code: Code,
) -> list[str]:
    """Pin plans to the present code if their code was accepted; returns their ids.

    A plan is not changed while one of its tables still has a day by the plan's old code. `ledgers`
    must be read after the acceptance.
    """
    versions_by_table = {result.table: result.versions for result in accepted}
    repinned = []
    for id_ in state_store.own_ids(deployment, instance, state_store.list_ids(instance)):
        try:
            backfill_state = state_store.load(instance, id_)
        except state_store.BackfillRefusedError:
            continue
        plan_versions = backfill_state.plan.code_versions
        concerned = any(
            plan_versions.get(table) in versions for table, versions in versions_by_table.items()
        )
        if (
            backfill_state.complete
            or not concerned
            or _has_days_of_old_code(ledgers, plan_versions, code)
        ):
            continue
        backfill_state.plan = backfill_state.plan.model_copy(
            update={
                "code_version": code.version,
                "code": str(code),
                "code_versions": {table: code.table_version(table) for table in plan_versions},
            }
        )
        state_store.save(instance, backfill_state)
        _repin_stage(instance, backfill_state)
        repinned.append(id_)
    return repinned


def _repin_stage(instance: dg.DagsterInstance, backfill_state: state_store.BackfillState) -> None:
    """Give the new pin to runs of the active stage that Dagster has not launched yet."""
    backfill = instance.get_backfill(backfill_state.backfill_id)
    if backfill is None or backfill.status in BULK_ACTION_TERMINAL_STATUSES:
        return
    pin = format_code_pin(backfill_state.plan.code_version, backfill_state.plan.config_digest)
    instance.update_backfill(backfill._replace(tags={**backfill.tags, CODE_TAG: pin}))


def _has_days_of_old_code(ledgers: Ledgers, versions: Mapping[str, str], code: Code) -> bool:
    """Whether a table has a day by the plan's code version, if that is not the present one."""
    return any(
        version != code.table_version(table)
        and any(record.code_version == version for record in ledgers[table].latest.values())
        for table, version in versions.items()
        if table in ledgers
    )
