"""The plan of a backfill as data: request, outcome of each day, stages, cost and skew.

Skew comes from the records of published days; for days that have landed and are not loaded yet,
from a sample of their lines.
"""

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

import dagster as dg
from pydantic import BaseModel, Field

from backfill_assets.calendar import partitions
from backfill_assets.delta.history import format_windows
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.staleness.assess import REQUESTED
from backfill_assets.tables.table import Table
from backfill_assets.tables.table_options import most_rows_figure


class Skew(BaseModel, frozen=True):
    """A column of an input in which one key, or null, has more than a share of a day's rows.

    Attributes:
        table: the input.
        column: the column.
        above: the share (0 to 1) that its model declares.
        day: the day with the largest of both shares.
        one_key: share of the most frequent key on that day.
        no_key: share of nulls on that day.
        days: all days above the share, as ranges.
        lines: number of sampled lines of that landed day; 0 if the day is published and the share
            exact.
    """

    table: str
    column: str
    above: float
    day: date
    one_key: float
    no_key: float
    days: tuple[str, ...]
    lines: int = 0

    def __str__(self) -> str:
        days = partitions.from_ranges(self.days)
        rows = "lines that landed on" if self.lines else "rows of"
        sample = f" in a sample of {self.lines:,} lines" if self.lines else ""
        text = (
            f"{self.one_key:.0%} of the {rows} {self.day} have one key, {self.no_key:.0%} have "
            f"none{sample}; above {self.above:.0%}"
        )
        return (
            f"{text} on {len(days)} days: {partitions.format_ranges(days)}"
            if len(days) > 1
            else text
        )


def find_skews(reads: Iterable[tuple[str, Iterable[date]]], ledgers: Ledgers) -> Iterator[Skew]:
    """Skewed columns of the input days that a plan reads; a table may occur several times."""
    days_by_input: dict[str, set[date]] = {}
    for name, days in reads:
        days_by_input.setdefault(name, set()).update(days)
    for name, table_days in days_by_input.items():
        for column, above in ledgers[name].table.skew.items():
            shares = {
                day: day_shares
                for day in table_days
                if (day_shares := _recorded_shares(ledgers[name], day, column))
            }
            yield from _skew_above(name, column, above, shares)


def find_sampled_skews(
    table: Table, lines: Mapping[date, Sequence[Sequence[str | None]]]
) -> Iterator[Skew]:
    """Skewed columns of landed lines.

    Args:
        table: the table that the lines will be loaded into.
        lines: samples by arrival day, each line with the values of the watched columns.
    """
    for n, (column, above) in enumerate(table.skew.items()):
        shares = {}
        for day, day_lines in lines.items():
            keys = Counter(values[n] for values in day_lines)
            nulls = keys.pop(None, 0)
            if day_lines:
                shares[day] = max(keys.values(), default=0) / len(day_lines), nulls / len(day_lines)
        for skew in _skew_above(table.name, column, above, shares):
            yield skew.model_copy(update={"lines": len(lines[skew.day])})


def _skew_above(
    table: str, column: str, above: float, shares: Mapping[date, tuple[float, float]]
) -> Iterator[Skew]:
    """The skew of a column, if any; `shares` has the shares of the top key and of nulls by day."""
    skewed_days = sorted(day for day, day_shares in shares.items() if max(day_shares) > above)
    if skewed_days:
        worst = max(skewed_days, key=lambda day: max(shares[day]))
        one_key, no_key = shares[worst]
        yield Skew(
            table=table,
            column=column,
            above=above,
            day=worst,
            one_key=one_key,
            no_key=no_key,
            days=tuple(partitions.to_ranges(skewed_days)),
        )


def _recorded_shares(ledger: Ledger, day: date, column: str) -> tuple[float, float] | None:
    """The shares of the most frequent key and of nulls; None if not recorded."""
    published = ledger.current_record(day)
    if published is None or not published.rows or most_rows_figure(column) not in published.numbers:
        return None
    most_rows = published.numbers[most_rows_figure(column)]
    return most_rows / published.rows, published.nulls.get(column, 0) / published.rows


class DayOutcome(enum.Enum):
    """The planned outcome of a day."""

    #: Already published as it would be computed: no commit will cover it.
    IDENTICAL = "identical"
    #: Computed, and a commit covers it even if its rows are unchanged.
    COMPUTED = "computed"
    #: Computed only if its inputs change in this backfill.
    DEPENDS = "depends on its input"
    #: Cannot be built: an input day is not published, and not in the plan.
    LACKING = "input missing"
    #: Cannot be built: an input day was built under other settings, and is not in the plan.
    OTHER_SETTINGS = "input made under other settings"
    #: Left out: lines that it requires are still to come by the arrival days of a source.
    NOT_DUE = "not due yet"


class BackfillRequest(BaseModel, frozen=True):
    """The request for a backfill.

    Attributes:
        days: as `FIRST...LAST`: days of the tables without inputs in the request; the days of the
            other tables follow from them, as in a launch from Dagster's UI.
        tables: the tables to build; all if empty.
        pilot_days: build and reconcile this many days before the rest, from the first one that
            changes; 0 for no pilot.
        chunk_days: days per stage, each built and reconciled before the next; `auto` for stages of
            about equal work where runs would differ much; None for one stage.
        max_parallel: most runs at a time; None for the limit of the run queue.
        max_retries: most retries of a run whose process or engine died; None for what
            `dagster.yaml` says.
        write_mode: as the run tag of that name.
        rewrite: also compute and write identical days.
        accept: names of landing files that may remove orders, and other approvals; see
            `audit.raw_expectations.ACCEPT_TAG`.
        reason: why, for the record.
    """

    days: str
    tables: tuple[str, ...] = ()
    pilot_days: int = Field(default=0, ge=0)
    chunk_days: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto"
    max_parallel: int | None = Field(default=None, ge=1, le=8)
    max_retries: int | None = Field(default=None, ge=0)
    write_mode: Literal["overwrite", "merge"] = "overwrite"
    rewrite: bool = False
    accept: tuple[str, ...] = ()
    reason: str = ""

    @property
    def window(self) -> partitions.Window:
        """The requested days."""
        return partitions.Window.parse(self.days)

    def split_stages(
        self,
        split_evenly: Callable[[partitions.Window], Sequence[partitions.Window]] | None = None,
        pilot_start: date = date.min,
    ) -> Iterator[tuple[str, partitions.Window]]:
        """The name and days of each stage, in order.

        Args:
            split_evenly: cuts days for `auto`; without it, `auto` gives one stage.
            pilot_start: the first day of the pilot; it begins earlier if too few days follow.
        """
        window = self.window
        if 0 < self.pilot_days < len(window):
            days = [*window]
            start = min(bisect_left(days, pilot_start), len(days) - self.pilot_days)
            end = start + self.pilot_days
            yield "pilot", partitions.DaySet.from_days(days[start:end])
            window = partitions.DaySet.from_days([*days[:start], *days[end:]])
        if self.chunk_days == "auto":
            chunks = split_evenly(window) if split_evenly else [window]
        else:
            chunks = window.split_by_length(self.chunk_days or len(window))
        for n, chunk in enumerate(chunks, 1):
            yield (f"{n:03d}" if len(chunks) > 1 else "rest"), chunk


class Stage(BaseModel, frozen=True):
    """Days that are built and reconciled together.

    Attributes:
        name: suffix of the backfill's id in Dagster, after the plan's id.
        days: as `FIRST...LAST`, with commas between ranges.
        work: expected work, in rows: see `forecast.WorkEstimate`.
    """

    name: str
    days: str
    work: int = 0


class TableForecast(BaseModel, frozen=True):
    """The planned outcomes of the days of one table, as ranges.

    Attributes:
        identical: see `DayOutcome`.
        computed: see `DayOutcome`.
        depends: see `DayOutcome`.
        lacking: see `DayOutcome`.
        other_settings: see `DayOutcome`.
        not_due: see `DayOutcome`.
        final: the final days among all of these.
        why: days to compute, by reason.
        apart: the value of the table's grain, see `Grain`.
    """

    identical: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    other_settings: tuple[str, ...] = ()
    not_due: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    why: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    apart: int = 1

    def format_days(self, days: Iterable[date]) -> str:
        """Days of the table as ranges; consecutive partitions of its grain form one range."""
        return format_windows(partitions.Grain(self.apart).gapless_ranges(days))

    def days_by_reason(self) -> Iterator[tuple[DayOutcome, str, list[date]]]:
        """The days by outcome and reason; the reason is empty for days that are not computed."""
        reasons = {
            day: reason
            for reason, ranges in self.why.items()
            for day in partitions.from_ranges(ranges)
        }
        for outcome, days in self.days_by_outcome():
            grouped: dict[str, list[date]] = {}
            for day in days:
                grouped.setdefault(reasons.get(day, ""), []).append(day)
            for reason, reason_days in grouped.items():
                yield outcome, reason, reason_days

    def days_by_outcome(self) -> Iterator[tuple[DayOutcome, list[date]]]:
        """Days of each outcome, without empty ones."""
        for outcome in DayOutcome:
            if days := partitions.from_ranges(getattr(self, outcome.name.lower())):
                yield outcome, days

    @property
    def days_to_compute(self) -> list[date]:
        """The days that will or may be computed."""
        return partitions.from_ranges([*self.computed, *self.depends])


class FirstChange(NamedTuple):
    """The first requested day that changes a table.

    Attributes:
        day: the requested day.
        table: the table.
        table_day: the day of the table, which may be another one.
        reason: why that is computed.
    """

    day: date
    table: str
    table_day: date
    reason: str


def find_first_change(
    window: partitions.Window, tables: Mapping[str, TableForecast]
) -> FirstChange | None:
    """The first requested day that changes a table for sure; None if there is none.

    It may be built first: what depends on it comes after it, or is built in the same runs.
    """
    requested = [*window]

    def find_stage_day(forecast: TableForecast, first: date) -> date:
        """The last requested day of a partition; of one without any, the next after it."""
        after = bisect_left(requested, partitions.Grain(forecast.apart).days_of(first).end)
        before = bisect_left(requested, first)
        return requested[min(max(before, after - 1), len(requested) - 1)]

    changes = [
        FirstChange(find_stage_day(forecast, days[0]), name, days[0], reason)
        for name, forecast in tables.items()
        for outcome, reason, days in forecast.days_by_reason()
        if outcome is DayOutcome.COMPUTED and reason != REQUESTED
    ]
    return min(changes, key=attrgetter("day"), default=None)


class ApiCallEstimate(BaseModel, frozen=True):
    """How many calls of a service a backfill makes.

    Attributes:
        at_most: upper bound: one for each input row.
        expected: estimate from published days; None without any.
        unknown_days: days whose input is not published yet; their calls come on top.
        seconds: time that the quota needs for `at_most` calls, without other callers.
        expected_seconds: the same for `expected` calls.
        quota: the service's limits, as text.
        reserve: the share (0 to 1) of the quota reserved for schedules and sensors.
    """

    at_most: int
    expected: int | None = None
    unknown_days: int = 0
    seconds: float = 0.0
    expected_seconds: float = 0.0
    quota: str = ""
    reserve: float = 0.0

    def __str__(self) -> str:
        reserve_text = f" less a reserve of {self.reserve:.0%}" if self.reserve else ""
        allowed = f"at {self.quota}{reserve_text}"
        if self.unknown_days and not self.at_most:
            missing_input = "the input of {} is not there yet".format(
                "one day" if self.unknown_days == 1 else f"{self.unknown_days} days"
            )
            return f"not known, as {missing_input}; {allowed}"
        bound = f"at most {self.at_most:,} (one for each row that is read)"
        duration = f"at most {timedelta(seconds=round(self.seconds))}"
        if self.expected is not None:
            bound = f"about {self.expected:,}, as days before; {bound}"
            duration = f"{timedelta(seconds=round(self.expected_seconds))}, {duration}"
        if self.unknown_days:
            bound += f"; and those of {self.unknown_days} days whose input is not there yet"
        return f"{bound}: {duration}, {allowed}"


class BackfillPlan(BaseModel, frozen=True):
    """A planned backfill, and the state that it was planned on.

    Attributes:
        id: of the plan, and prefix of its backfills in Dagster.
        parameters: the request.
        code_version: version of the code that is to compute it.
        code_versions: the same by table.
        code: the same as text, with the git commit.
        config_digest: digest of the settings that decide the rows.
        versions: version of the last commit that changed each table it reads or writes.
        landing: digest of the files to load; empty if there are none.
        held: landing files that wait for a person's approval, as they remove orders.
        replaced: landing files whose content changed since they were loaded; they wait too if they
            turn out to lack orders.
        tables: planned outcomes by table.
        keys: key columns of the tables with days to compute, besides the day.
        only_read: days that are read and not in the plan, by input.
        following: published days that read a day to compute and are not in the plan, by table.
        files: most data files and landing files to read.
        size: their size in bytes.
        commits: most commits.
        runs: number of runs, if none is split further.
        seconds: expected duration, from past runs; None without any.
        calls: estimated calls by service.
        cut: its stages as planned; empty in a plan of an older release.
        skews: skewed inputs, as far as their days are published or have landed.
        unsampled: landing files that could not be sampled for skew, each with the reason.
    """

    id: str
    parameters: BackfillRequest
    code_version: str
    code: str
    config_digest: str
    versions: Mapping[str, int | None]
    landing: str
    code_versions: Mapping[str, str] = Field(default_factory=dict)
    held: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    tables: Mapping[str, TableForecast]
    keys: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    only_read: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    following: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    files: int
    size: int
    commits: int
    runs: int
    seconds: float | None
    calls: Mapping[str, ApiCallEstimate] = Field(default_factory=dict)
    cut: tuple[Stage, ...] = ()
    skews: tuple[Skew, ...] = ()
    unsampled: tuple[str, ...] = ()

    @property
    def stages(self) -> list[tuple[str, partitions.Window]]:
        """The name and days of each stage, in order."""
        saved_stages = [(stage.name, partitions.Window.parse(stage.days)) for stage in self.cut]
        return saved_stages or list(self.parameters.split_stages())

    @property
    def rewritten_final_days(self) -> dict[str, list[date]]:
        """The final days that will or may be computed, by table."""
        final_days = {
            name: sorted({*partitions.from_ranges(forecast.final)} & {*forecast.days_to_compute})
            for name, forecast in self.tables.items()
        }
        return {name: days for name, days in final_days.items() if days}

    @property
    def days_following(self) -> dict[str, list[date]]:
        """See `following`."""
        return {name: partitions.from_ranges(days) for name, days in self.following.items()}

    @property
    def following_command(self) -> str:
        """The command that builds the days that follow; empty if there are none."""
        return format_command(self.days_following) if self.following else ""

    def changes_since_planning(self, current: "BackfillPlan") -> list[str]:
        """What changed since the plan was made, as text."""
        changes = []
        if self.code_version != current.code_version:
            changes.append(f"the code was {self.code} and is {current.code}")
        if self.config_digest != current.config_digest:
            changes.append(
                f"the configuration was {self.config_digest} and is {current.config_digest}"
            )
        changes += [
            f"{name} was at version {version} and is at {current.versions.get(name)}"
            for name, version in self.versions.items()
            if current.versions.get(name) != version
        ]
        if self.landing != current.landing:
            changes.append("files have landed (or gone) for the days that are to be loaded")
        return changes


def day_rows(plan: BackfillPlan) -> Iterator[tuple[str, str, str, str]]:
    """Rows for a reader: table, number of days and outcome, reason, days."""
    for name, forecast in plan.tables.items():
        for outcome, reason, days in forecast.days_by_reason():
            yield name, f"{len(days)} {outcome.value}", reason, forecast.format_days(days)
        if forecast.final:
            days = partitions.from_ranges(forecast.final)
            yield name, f"of these, {len(days)} final", "", forecast.format_days(days)


def format_command(days_by_table: Mapping[str, Collection[date]]) -> str:
    """The command of a backfill of days of some tables."""
    days = {day for table_days in days_by_table.values() for day in table_days}
    ranges = partitions.format_ranges(days).replace(" ", "")
    return f"backfill-assets backfill {ranges} --select {','.join(days_by_table)}"


def select_command(name: str, days: partitions.Window, tables: Iterable[str]) -> list[str]:
    """A command of this package on days of some tables."""
    text = str(days).replace(" ", "")
    return ["backfill-assets", name, text, "--select", ",".join(tables)]


def materialize_command(
    keys: Sequence[dg.AssetKey], days: partitions.Window, pages: Sequence[dg.AssetKey] = ()
) -> list[str]:
    """The command of one run of tables: Dagster's own, which takes no days with gaps."""
    if isinstance(days, partitions.DaySet):
        return select_command("materialize", days, [key.path[-1] for key in keys])
    command = ["dagster", "asset", "materialize", "-m", "backfill_assets.definitions"]
    window = f"{days.start}...{days.end - partitions.DAY}"
    selection = ",".join(key.to_user_string() for key in (*keys, *pages))
    return [*command, "--select", selection, "--partition-range", window]


def _format_table_days(ranges_by_table: Mapping[str, Collection[str]]) -> str:
    return "; ".join(
        f"{name} {partitions.format_ranges(partitions.from_ranges(ranges))}"
        for name, ranges in ranges_by_table.items()
    )


def _input_facts(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """What the plan reads, by which key rows are known, and which days follow later."""
    yield "reads", f"at most {plan.files:,} files, {plan.size / 1e6:,.1f} MB"
    if plan.only_read:
        yield "also reads", _format_table_days(plan.only_read)
    if plan.keys:
        keys = [f"{name} by {', '.join(columns)}" for name, columns in plan.keys.items()]
        yield "keys within a day", "; ".join(keys)
    if plan.following:
        yield "follow later", _format_table_days(plan.following)


def plan_facts(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """Names and texts of all other facts of the plan, for a reader."""
    request = plan.parameters
    stages = [f"{name} {window}" for name, window in plan.stages]
    yield "stages", ", ".join(stages[:4]) + (f" and {len(stages) - 4} more" if stages[4:] else "")
    if stages[0].startswith("pilot "):
        yield "pilot", _describe_pilot(plan)
    if len(plan.cut) > 1:
        yield "work of a stage", _describe_stage_work(plan)
    yield (
        "runs",
        f"about {plan.runs}"
        + (f", at most {request.max_parallel} at a time" if request.max_parallel else "")
        + ("" if request.max_retries is None else f", each retried {request.max_retries} times"),
    )
    yield "commits", f"at most {plan.commits}"
    yield from _input_facts(plan)
    yield (
        "expected",
        "no past run to judge from"
        if plan.seconds is None
        else f"{timedelta(seconds=round(plan.seconds))} if one run comes after another",
    )
    for service, calls in plan.calls.items():
        yield f"calls of {service}", str(calls)
    for skew in plan.skews:
        yield "skew", f"{skew.table}.{skew.column}: {skew}"
    if plan.unsampled:
        yield "not looked at for skew", ", ".join(plan.unsampled)
    yield "code", plan.code
    yield "configuration", plan.config_digest
    yield "writes by", request.write_mode + (", whatever is published" if request.rewrite else "")
    if plan.held:
        yield "files waiting", f"{', '.join(plan.held)}: accept them by name, or put the old back"
    if plan.replaced:
        yield "files replaced", ", ".join(plan.replaced)
    if request.accept:
        yield "accepted", ", ".join(request.accept)
    yield "reason", request.reason or "none given"


def _describe_pilot(plan: BackfillPlan) -> str:
    """Why the pilot has these days."""
    change = find_first_change(plan.parameters.window, plan.tables)
    if change is None:
        return "the first days, as none is known to change"
    days = f"{plan.cut[0].days}: " if plan.cut else ""
    return f"{days}{change.table} [{change.table_day}] is the first to change ({change.reason})"


def _describe_stage_work(plan: BackfillPlan) -> str:
    """The work of the smallest and the largest stage, as share of the total and days."""
    total = sum(stage.work for stage in plan.cut)
    if not total:
        return "none"

    def describe_stage(stage: Stage) -> str:
        share = stage.work / total
        duration = (
            "" if plan.seconds is None else f", {timedelta(seconds=round(share * plan.seconds))}"
        )
        return f"{share:.1%} of all ({len(partitions.Window.parse(stage.days))} days{duration})"

    by_work = sorted(plan.cut, key=lambda stage: stage.work)
    return f"{describe_stage(by_work[0])} to {describe_stage(by_work[-1])}"
