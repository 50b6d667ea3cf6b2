"""Assessment of days: whether a day must be computed, why, and what keeps it from being computed.

`assess` is the only place that decides it. Runs, plans, nights, states and targets read what it
returns, each over a snapshot of its own.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

from backfill_assets.calendar.partitions import DAY, Window, format_ranges
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.table_schema import explain_absence
from backfill_assets.landing.load_manifest import NO_FOLDER
from backfill_assets.settings import PREFIX
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.code_version import format_code_change, parts_of_version
from backfill_assets.tables.derived import carries_state

#: Reason of a day whose inputs, code and settings have not changed.
REQUESTED = "asked for"


class Obstacle(NamedTuple):
    """Why a day cannot be computed now: an input day is missing, failed, or of other settings.

    Attributes:
        text: for a person.
        origin: of a stateful table, what keeps an earlier day from being computed, and so this one.
        other_settings: whether an input day was made under other settings; otherwise it is missing,
            or failed in this run.
    """

    text: str
    origin: str = ""
    other_settings: bool = False


@dataclass(frozen=True)
class DayAssessment:
    """What is to be done with a day of a table.

    Attributes:
        digest: of what the day would be built from now.
        reason: why it must be computed; empty if it is published with its current inputs, code and
            settings.
        follows_previous_day: of a stateful table, whether the day before is computed, so that
            this one may change.
        on_hold: whether a person decided against the rows that the inputs give, or, of a stateful
            table, against those of a day that it follows.
        not_due: of a day that has never been published, what it waits for, whoever requests it:
            lines that are still to come by the arrival days of a source, or the folder of a part.
            Empty if nothing.
        obstacle: what keeps it from being computed; None if nothing does.
        changing_inputs: the inputs whose planned changes would change the digest.
    """

    digest: str
    reason: str = ""
    follows_previous_day: bool = False
    on_hold: bool = False
    not_due: str = ""
    obstacle: Obstacle | None = None
    changing_inputs: Sequence[str] = ()

    @property
    def is_current(self) -> bool:
        """Whether the day is published and need not be computed."""
        return not (self.reason or self.follows_previous_day)

    @property
    def can_change(self) -> bool:
        """Whether it is or may be computed."""
        changes = not self.is_current or self.changing_inputs
        return bool(changes) and not (self.on_hold or self.not_due or self.obstacle)


def assess(
    snapshot: Snapshot,
    table: str,
    days: Iterable[date],
    *,
    requested: Container[date] = (),
    respects_holds: bool = False,
    in_order: bool = True,
) -> dict[date, DayAssessment]:
    """Assess days of a table, in ascending order.

    Args:
        snapshot: what they are assessed from.
        table: its name.
        days: the days.
        requested: the days that are computed in any case.
        respects_holds: whether days on hold stay as they are: no person has launched the run.
        in_order: whether each day of a stateful table is built from the day before in the same run;
            otherwise from the published one.
    """
    days, ledger = sorted(days), snapshot.ledgers[table]
    digests = snapshot.input_digests(table, days)
    on_hold = days_on_hold(ledger, digests) if respects_holds else set()
    obstacles = find_obstacles(snapshot, table, days, own=not in_order)
    changing = _changing_inputs(snapshot, table, digests)
    published = ledger.published_days
    not_due = {day: "" if day in published else _wait_text(snapshot, table, day) for day in days}
    assessments = {
        day: DayAssessment(
            digests[day],
            reason=recompute_reason(snapshot, table, day, digests[day], day in requested),
            on_hold=day in on_hold,
            not_due=not_due[day],
            obstacle=None if not_due[day] else obstacles.get(day),
            changing_inputs=changing.get(day, ()),
        )
        for day in days
    }
    if in_order and carries_state(ledger.table):
        return follow_days(
            table, assessments, lambda day: find_state_obstacle(snapshot, table, day)
        )
    return assessments


def _wait_text(snapshot: Snapshot, table: str, day: date) -> str:
    """Return what a day that was never published waits for; empty if nothing."""
    if snapshot.awaits_lines(table, day):
        graph = snapshot.graph
        due = graph.policy_of(table).format_due(graph.due_date(table, day))
        return f"lines of it are still to come: it is due on {due}"
    folders = [f"{log}[{log_day}]" for log, log_day in snapshot.awaited_folders(table, day)]
    return f"it waits for the folder of {', '.join(folders)}" if folders else ""


def follow_days(
    table: str,
    assessments: Mapping[date, DayAssessment],
    find_obstacle: Callable[[date], Obstacle | None],
) -> dict[date, DayAssessment]:
    """Assess the days of a stateful table in date order, from assessments of each by itself.

    If a day is computed, so are the days that follow it, as they may change. No day is built after
    a day that cannot be computed, until one that is published with its current inputs; none after a
    day on hold.

    `find_obstacle` returns what keeps a day from being built from the day before, where that is not
    assessed.
    """
    ordered: dict[date, DayAssessment] = {}
    for day, assessment in sorted(assessments.items()):
        previous = ordered.get(day - DAY)
        if previous is None:
            previous = DayAssessment("", obstacle=find_obstacle(day))
        if previous.on_hold:
            assessment = replace(assessment, on_hold=True)
        elif assessment.on_hold or assessment.not_due or assessment.obstacle:
            pass
        elif previous.obstacle and (assessment.reason or assessment.changing_inputs):
            origin = previous.obstacle.origin or f"{table}[{day - DAY}] was not published"
            text = f"it is built upon earlier days, and {origin}"
            obstacle = Obstacle(text, origin, previous.obstacle.other_settings)
            assessment = replace(assessment, obstacle=obstacle)
        elif previous.can_change:
            assessment = replace(assessment, follows_previous_day=True)
        ordered[day] = assessment
    return ordered


def recompute_reason(
    snapshot: Snapshot, table: str, day: date, digest: str, requested: bool = False
) -> str:
    """Return why a day must be computed; empty if it is published with current inputs and code.

    Args:
        snapshot: with the ledgers of the table and of its inputs.
        table: its name.
        day: the day.
        digest: the current input digest of the day.
        requested: whether the day is computed in any case.
    """
    ledger, input_change = snapshot.ledgers[table], snapshot.changes.get(table, {}).get(day, "")
    latest, published = ledger.latest.get(day), ledger.current_record(day)
    if latest is None:
        if day in ledger.published_days:
            return "rows without a record"
        return f"never published; {NO_FOLDER}" if input_change == NO_FOLDER else "never published"
    if published is None:
        return "external commit"
    reasons = []
    if not published.input_digest:
        reasons.append(input_change or "input not on record")
    elif published.input_digest != digest:
        reasons.append(input_change or new_input_reason(_new_inputs(snapshot, table, day)))
    code_version = snapshot.code_versions.get(table, latest.code_version)
    if latest.code_version != code_version:
        reasons.append(other_code_reason(ledger, latest.code_version, code_version))
    if latest.made_under(day) != snapshot.config_digests.get(table, latest.made_under(day)):
        reasons.append("other settings")
    if requested and not reasons:
        reasons.append(input_change or REQUESTED)
    return "; ".join(reasons)


def _new_inputs(snapshot: Snapshot, table: str, day: date) -> list[str]:
    """Return the names of the inputs that have changed since a day was published.

    On other days only, maybe: the digest tells which days count.
    """
    ledger = snapshot.ledgers[table]
    versions = ledger.latest[day].inputs
    names = [
        name
        for dependency in snapshot.inputs_of(table)
        if (name := dependency.source.name) != table
        if snapshot.ledgers[name].last_change > versions.get(name, -1)
    ]
    names += ledger.changed_references(day)
    # Of a stateful table, the day before has.
    return names or ([table] if carries_state(ledger.table) else [])


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


def days_on_hold(ledger: Ledger, input_digests: Mapping[date, str]) -> set[date]:
    """Return the days that a person put on hold and whose inputs have not changed since.

    Of a stateful table, also the days on hold that follow such a day without a gap: they were built
    from it.
    """
    held_days: set[date] = set()
    for day in sorted(ledger.on_hold.keys() & input_digests.keys()):
        follows_held_day = carries_state(ledger.table) and day - DAY in held_days
        if follows_held_day or ledger.on_hold[day] == input_digests[day]:
            held_days.add(day)
    return held_days


def find_obstacles(
    snapshot: Snapshot, table: str, days: Collection[date], *, own: bool
) -> dict[date, Obstacle]:
    """Return the days that an input lacks, or has under other settings only, with the reason.

    A missing input day is not an empty one. A day that failed upstream in this run must not be
    built from its older rows. Input days of other settings could count an order twice, or not at
    all.

    `own`: whether the day before counts as well, in the table itself.
    """
    obstacles: dict[date, Obstacle] = {}
    references = snapshot.ledgers[table].references
    if missing := [name for name, content in references.items() if content is None]:
        text = f"there is no table {', '.join(missing)}"
        obstacles = dict.fromkeys(days, Obstacle(text))
    for dependency in snapshot.inputs_of(table):
        name = dependency.source.name
        if name == table and not own:
            continue
        source = snapshot.planned.get(name, snapshot.ledgers[name])
        if other_settings := snapshot.other_settings_days(name):
            deciding = dependency.reach.deciding_days(source)
            for day in days:
                if other_days := [d for d in deciding(day) if d in other_settings]:
                    text = (
                        f"{name}[{format_ranges(other_days)}] was made under other settings; "
                        "rebuild these days first"
                    )
                    obstacles.setdefault(day, Obstacle(text, other_settings=True))
        failed, published = snapshot.failed.get(name, ()), source.published_days
        for day in days:
            needed = snapshot.required_days(dependency, day)
            if failed_days := [d for d in needed if d in failed]:
                text = f"{name}[{format_ranges(failed_days)}] failed in this run"
                obstacles[day] = Obstacle(text)
            elif missing_days := [d for d in needed if d not in published]:
                text = f"{name}[{format_ranges(missing_days)}] {explain_absence(source)}"
                obstacles[day] = Obstacle(text)
    return obstacles


def find_state_obstacle(snapshot: Snapshot, table: str, day: date) -> Obstacle | None:
    """Return what keeps a day from being built from the published day before; None if nothing."""
    ledger, day_before = snapshot.ledgers[table], day - DAY
    (dependency,) = (d for d in snapshot.inputs_of(table) if d.source.name == table)
    other_settings, origin = False, ""
    if day_before in snapshot.failed.get(table, ()):
        origin = f"{table}[{day_before}] failed in this run"
    elif not snapshot.required_days(dependency, day):
        earlier_days = [earlier for earlier in ledger.published_days if earlier < day]
        if earlier_days and not {day, day_before} & ledger.published_days:
            origin = (
                f"{table} has days up to {max(earlier_days)} and none on the day before {day}, the "
                f"first day now: it would begin anew. Put {PREFIX}START back and build the days "
                "between"
            )
    elif day_before not in ledger.published_days:
        origin = f"{table}[{day_before}] has never been published"
    elif day_before in snapshot.other_settings_days(table):
        other_settings = True
        origin = f"{table}[{day_before}] was made under other settings; rebuild it first"
    if not origin:
        return None
    return Obstacle(f"it is built upon earlier days, and {origin}", origin, other_settings)


def _changing_inputs(
    snapshot: Snapshot, table: str, digests: Mapping[date, str]
) -> dict[date, list[str]]:
    """Return, by day, the inputs whose planned changes would change the day's input digest."""
    inputs_by_day: dict[date, list[str]] = {}
    for dependency in snapshot.inputs_of(table):
        name = dependency.source.name
        if name in snapshot.planned and table not in snapshot.digests:
            for day in snapshot.changed_days(table, digests, snapshot.planned[name]):
                inputs_by_day.setdefault(day, []).append(name)
    return inputs_by_day


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
