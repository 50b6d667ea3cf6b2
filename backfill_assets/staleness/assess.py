"""Assessment of days: why one must be computed, why it cannot be, and whether it is final.

Whether a day is final follows from the commits of the raw logs and of the tables built from them.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window, format_ranges, from_ranges
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger, Ledgers, due_days, graph_of_ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.tables.code_version import format_code_change, parts_of_version
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency, Table

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
        reasons.append(other_code_reason(ledger, latest.code_version, code_version))
    if latest.made_under(day) != config_digest:
        reasons.append("other settings")
    if rewrite and not reasons:
        reasons.append(input_change or REQUESTED)
    return "; ".join(reasons) or None


def other_code_reason(ledger: Ledger, old: str, new: str) -> str:
    """Return the reason for another code version, with what differs between both if known."""
    differences = find_code_differences(ledger, old, new)
    return f"other code: {differences}" if differences else "other code"


def find_code_differences(ledger: Ledger, old: str, new: str) -> str:
    """Return what differs between two code versions of a table; empty if it is not on record."""
    return format_code_change(ledger.code_parts.get(old, {}), parts_of_version(new))


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


def refuse_other_code(
    own_ledger: Ledger,
    window: Window,
    record: Mapping[str, Any],
    inputs: Sequence[tuple[Ledger, str]] = (),
) -> None:
    """Raise if the backfill of this run was planned with other code or other settings.

    `inputs` are the ledgers of the inputs, each with the digest of its settings.

    Raises:
        PublishError: a deploy came in between. All days of one backfill must be computed by the
            same rules, as it is reconciled as a whole.
    """
    backfill = record.get("backfill_id")
    if not backfill:
        return
    for ledger, config in [(own_ledger, record["config_digest"]), *inputs]:
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
                        f"{own_ledger.table.name} [{window}]: backfill {backfill} has published "
                        f"{format_ranges(earlier_record.days)} of {ledger.table.name} with code "
                        f"{recorded_version[0]} and configuration {recorded_version[1]}, and this "
                        f"run has {running_version[0]} and {running_version[1]}. Nothing was "
                        "written. Put back what was deployed and launch what is missing and failed "
                        "again, or launch all of its days as a new backfill. If the new code makes "
                        "the same rows, `backfill-assets accept-code` says so for the days that "
                        "are published."
                    )


def lacks_input(graph: Graph, ledgers: Ledgers, table: str, day: date, *, own: bool = True) -> bool:
    """Return whether a day cannot be built, as a required day of an input is not published.

    `own`: of a stateful table, its own day before is one of them. An unpartitioned input that was
    never published counts as well.
    """
    return None in ledgers[table].references.values() or any(
        needed not in ledgers[dependency.source.name].published_days
        for dependency in graph.inputs[table]
        if own or dependency.source.name != table
        for needed in graph.required_days(dependency, day)
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


def final_days(
    ledgers: Ledgers, policy: Policy, among: Container[date] | None = None
) -> dict[str, set[date]]:
    """Return the final days of all tables that close, restricted to `among` if given.

    A day is final if its latest record was built after its window had closed, or if the window
    closed later by commits that did not change the day.
    """
    is_final = finality_check(ledgers, policy)
    return {
        name: {
            day
            for day, record in ledgers[name].latest.items()
            if (among is None or day in among)
            if day in record.final or is_final(name, record, day)
        }
        for name in graph_of_ledgers(ledgers, policy).closing_tables
    }


def window_closed_at(raw: Ledger, policy: Policy) -> dict[date, int]:
    """Return, by event day whose window has closed, the version of the raw log that closed it.

    A window closes with the commit after which all its log days are settled at the same time: all
    that had landed for them was loaded, and nothing more was due. Files that land later do not open
    it again; a log day that is reverted does.
    """
    closed_at: dict[date, int] = {}
    for record, new, settled in _completed_log_days(raw):
        for day in {
            d
            for revoked_day in record.revoked_days
            for d in policy.affected_event_days(revoked_day)
        }:
            closed_at.pop(day, None)
        for day in {
            d for logged in new for d in policy.affected_event_days(logged)
        } - closed_at.keys():
            # The last log day first: it is the one that most open windows lack.
            if all(logged in settled for logged in reversed(list(policy.log_days(day)))):
                closed_at[day] = record.version
    return closed_at


def settled_days(raw: Ledger) -> set[date]:
    """Return the log days of which all that had landed is loaded, and nothing more was due."""
    settled: set[date] = set()
    for _record, _new, settled_so_far in _completed_log_days(raw):
        settled = settled_so_far
    return settled


def _completed_log_days(raw: Ledger) -> Iterator[tuple[CommitRecord, frozenset[date], set[date]]]:
    """Yield each commit of the raw log, the log days it settled, and all days settled so far."""
    settled: set[date] = set()
    for record in raw.records:
        settled -= {*from_ranges(record.details.unsettled)} | record.revoked_days
        new = frozenset(from_ranges(record.details.settled)) - settled
        settled |= new
        yield record, new, settled


def finality_check(ledgers: Ledgers, policy: Policy) -> Callable[[str, CommitRecord, date], bool]:
    """Return a function of table, record and day: whether the record's rows of the day are final.

    Table that reads a raw log: the day's window has closed, and the record was built from the last
    commit that changed the day up to the closing one, or from a later one. Other tables: the input
    days that decide the day were final. A stateful table goes back to its first day.
    """
    graph = graph_of_ledgers(ledgers, policy)
    closing_versions = {
        log: window_closed_at(ledgers[log], graph.policy_of(log)) for log in graph.sources
    }
    changes = {
        (name, dependency.source.name): _changing_versions(dependency, ledgers)
        for name in graph.closing_tables
        for dependency in graph.inputs[name]
        if dependency.source.name in closing_versions
    }
    records_by_table = {name: _publishing_records(ledgers[name]) for name in graph.closing_tables}
    final_by_day: dict[tuple[str, int, date], bool] = {}

    def is_final(table: str, record: CommitRecord, day: date) -> bool:
        """Return whether a record's rows of the day are final; cached, as `was_final` recurses."""
        key = table, record.version, day
        if key not in final_by_day:
            final_by_day[key] = all(
                covers_closing(table, dependency.source.name, record, day)
                if dependency.source.name in closing_versions
                else all(
                    was_final(
                        dependency.source.name,
                        _input_version(dependency.source.name, table, record),
                        needed,
                    )
                    for needed in dependency.reach.deciding_days(ledgers[dependency.source.name])(
                        day
                    )
                    if needed >= graph.policy_of(dependency.source.name).start
                )
                for dependency in graph.inputs[table]
            )
        return final_by_day[key]

    def covers_closing(table: str, log: str, record: CommitRecord, day: date) -> bool:
        """Return whether a record read the log's last change of a day up to the closing commit."""
        closed_by = closing_versions[log].get(day)
        if closed_by is None:
            return False
        required_version = max(
            (v for v in changes[table, log][day] if v <= closed_by), default=closed_by
        )
        return record.inputs.get(log, -1) >= required_version

    def was_final(source: str, version: int, day: date) -> bool:
        """Return whether an input's day was final at the version that a record was built from."""
        published_then = [r for r in records_by_table[source][day] if r.version <= version][-1:]
        # A later build with the same rows does not change the days that depend on it.
        same_rows = [
            r
            for r in records_by_table[source][day]
            if published_then
            and r.version > version
            and r.days[day].digest == published_then[0].days[day].digest
        ]
        return any(is_final(source, r, day) for r in [*published_then, *same_rows])

    for name in (name for name in records_by_table if carries_state(ledgers[name].table)):
        # In date order, so that the recursion goes back one day only.
        for day, records in sorted(records_by_table[name].items()):
            for record in records:
                is_final(name, record, day)
    return is_final


def _input_version(source: str, table: str, record: CommitRecord) -> int:
    """Return the version of an input that a record's days were built from.

    A stateful table reads its previous day in the same commit.
    """
    return record.version if source == table else record.inputs.get(source, -1)


def _publishing_records(ledger: Ledger) -> Mapping[date, Sequence[CommitRecord]]:
    """Return, by day, the commits that published it since its last revert, in ascending order."""
    records_by_day: dict[date, list[CommitRecord]] = defaultdict(list)
    for record in ledger.records:
        for day in record.days:
            records_by_day[day].append(record.for_day(day))
        for day in record.revoked_days:
            records_by_day.pop(day, None)
    return records_by_day


def _changing_versions(dependency: Dependency, ledgers: Ledgers) -> Mapping[date, Sequence[int]]:
    """Return, by day of a table, the versions of a raw log that made it due."""
    versions_by_day: dict[date, list[int]] = defaultdict(list)
    log = ledgers[dependency.source.name]
    days_of = due_days(dependency, log)
    for record in log.records:
        for day in days_of(record):
            versions_by_day[day].append(record.version)
    return versions_by_day
