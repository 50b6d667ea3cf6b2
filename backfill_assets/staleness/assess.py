"""Assessment of days: why a day must be computed, and why it cannot be."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.partitions import DAY, Window, format_ranges, to_ranges
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.table import Table

#: Reason of a day whose inputs, code and settings have not changed.
REQUESTED = "asked for"


def recompute_reason(
    ledger: Ledger,
    day: date,
    fingerprint: str,
    code_version: str,
    config_digest: str,
    rewrite: bool = False,
    *,
    inputs: Iterable[Ledger] = (),
    input_change: str = "",
) -> str | None:
    """Return why a day must be computed; None if it is published with current inputs and code.

    Args:
        ledger: of the table.
        day: the day.
        fingerprint: the current input fingerprint of the day.
        code_version: of the code that would compute it.
        config_digest: of the settings that decide its rows now.
        rewrite: whether the run requests the day in any case.
        inputs: current ledgers of the input tables; they tell which input is newer.
        input_change: replaces the text `new input` where the caller knows the change.
    """
    latest, published = ledger.latest.get(day), ledger.current_record(day)
    if latest is None:
        return "rows without a record" if day in ledger.published_days else "never published"
    if published is None:
        return "external commit"
    reasons = []
    if not published.fingerprint:
        reasons.append(input_change or "input not on record")
    elif published.fingerprint != fingerprint:
        # The input may have changed on other days only: the fingerprint tells which days count.
        newer = [
            x.table.name for x in inputs if x.last_change > latest.inputs.get(x.table.name, -1)
        ]
        reasons.append(input_change or new_input_reason([*newer, *ledger.changed_references(day)]))
    if latest.code_version != code_version:
        reasons.append("other code")
    if latest.made_under(day) != config_digest:
        reasons.append("other settings")
    if rewrite and not reasons:
        reasons.append(input_change or REQUESTED)
    return "; ".join(reasons) or None


def new_input_reason(names: Sequence[str]) -> str:
    """Return the reason for new input, with the names of the changed tables if known."""
    return f"new input: {', '.join(names)}" if names else "new input"


def recompute_reasons(
    ledger: Ledger,
    fingerprints: Mapping[date, str],
    inputs: Sequence[Ledger],
    code_version: str,
    config_digest: str,
    requested: Container[date] = (),
    input_changes: Mapping[date, str] = MappingProxyType({}),
) -> dict[date, str]:
    """Return the days that must be computed, each with its reason; see `recompute_reason`.

    `requested` days are computed in any case.
    """
    reasons = {
        day: recompute_reason(
            ledger,
            day,
            fingerprint,
            code_version,
            config_digest,
            day in requested,
            inputs=inputs,
            input_change=input_changes.get(day, ""),
        )
        for day, fingerprint in fingerprints.items()
    }
    return {day: reason for day, reason in reasons.items() if reason is not None}


def days_on_hold(ledger: Ledger, fingerprints: Mapping[date, str]) -> set[date]:
    """Return the days that a person put on hold and whose inputs have not changed since.

    Of a stateful table, also the days on hold that follow such a day without a gap: they were built
    from it.
    """
    held_days: set[date] = set()
    for day in sorted(ledger.on_hold.keys() & fingerprints.keys()):
        follows_held_day = carries_state(ledger.table) and day - DAY in held_days
        if follows_held_day or ledger.on_hold[day] == fingerprints[day]:
            held_days.add(day)
    return held_days


def days_by_reason(reasons: Mapping[date, str]) -> dict[str, list[str]]:
    """Group days by reason, in the form that a commit stores."""
    grouped = defaultdict(list)
    for day, reason in reasons.items():
        grouped[reason].append(day)
    return {reason: to_ranges(days) for reason, days in grouped.items()}


def refuse_other_code(
    ledgers: Sequence[Ledger],
    window: Window,
    record: Mapping[str, Any],
    config_of: Callable[[Table], str],
) -> None:
    """Raise if the backfill of this run was planned with other code or other settings.

    `ledgers` starts with the table's own; those of its inputs follow.

    Raises:
        PublishError: a deploy came in between. All days of one backfill must be computed by the
            same rules, as it is reconciled as a whole.
    """
    backfill = record.get("backfill_id")
    if not backfill:
        return
    for ledger in ledgers:
        config = record["config_digest"] if ledger is ledgers[0] else config_of(ledger.table)
        running_version = (record.get("release", record["code_version"]), config)
        for earlier_record in reversed(ledger.records):
            if earlier_record.backfill_id != backfill:
                continue
            for day in earlier_record.days:
                recorded_version = (
                    ledger.code_of(earlier_record, day),
                    earlier_record.config_digest,
                )
                if recorded_version != running_version:
                    raise PublishError(
                        f"{ledgers[0].table.name} [{window}]: backfill {backfill} has published "
                        f"{format_ranges(earlier_record.days)} of {ledger.table.name} with code "
                        f"{recorded_version[0]} and configuration {recorded_version[1]}, and this "
                        f"run has {running_version[0]} and {running_version[1]}. Nothing was "
                        "written. Put back what was deployed and launch what is missing and failed "
                        "again, or launch all of its days as a new backfill. If the new code makes "
                        "the same rows, `backfill-assets accept-code` says so for the days that "
                        "are published."
                    )


def missing_inputs(
    sources: Sequence[TableSnapshot],
    window: Window,
    config_of: Callable[[Table], str],
    failed: Mapping[str, Container[date]],
) -> dict[date, Expectation]:
    """Return the days that an input lacks, or has under other settings only, with the reason.

    A missing input day is not an empty one. A day that failed upstream in this run must not be
    built from its older rows. Input days of other settings could count an order twice, or not at
    all.
    """
    expectations: dict[date, Expectation] = {}
    for source in sources:
        digest = config_of(source.table)
        for day, other_settings_days in source.days_with_other_settings(window, digest).items():
            problem = (
                f"{source.table.name}[{format_ranges(other_settings_days)}] was made under other "
                "settings; rebuild these days first"
            )
            expectations.setdefault(day, Expectation(problems=[problem]))
        just_failed = failed.get(source.table.name, ())
        for day in window:
            needed = source.required_days(day)
            if unusable_days := [needed_day for needed_day in needed if needed_day in just_failed]:
                problem = f"{source.table.name}[{format_ranges(unusable_days)}] failed in this run"
                expectations[day] = Expectation(problems=[problem])
            elif unusable_days := [
                needed_day
                for needed_day in needed
                if needed_day not in source.ledger.published_days
            ]:
                problem = (
                    f"{source.table.name}[{format_ranges(unusable_days)}] has never been published"
                )
                expectations[day] = Expectation(problems=[problem])
    return expectations
