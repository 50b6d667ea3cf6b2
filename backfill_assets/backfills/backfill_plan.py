"""The plan of a backfill as data: the request, the outcome of each day, stages, cost and skew.

From the tables' records: what a commit recorded of a day when it was published. Of days that have
landed and are not loaded yet, from a sample of their lines.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from backfill_assets.calendar.grain import Grain
from backfill_assets.calendar.partitions import DAY, Window, format_ranges, from_ranges, to_ranges
from backfill_assets.delta.history import format_windows
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.tables.model_metadata import most_rows_of, skews_of
from backfill_assets.tables.table import Table


class Skew(BaseModel, frozen=True):
    """A column of an input that has more than a share of a day's rows in one key, or in none.

    Attributes:
        table: the input.
        column: the column.
        above: the share (0 to 1) that its model declares.
        day: the worst of the days: the one with the largest of both shares.
        one_key: on that day, the share of the most frequent key.
        no_key: on that day, the share of nulls.
        days: all days that are above, as ranges.
        lines: the share is one of so many lines that landed on that day, a sample; 0 if it is exact
            and the day one that is published.
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
        days = from_ranges(self.days)
        rows = "lines that landed on" if self.lines else "rows of"
        sample = f" in a sample of {self.lines:,} lines" if self.lines else ""
        text = (
            f"{self.one_key:.0%} of the {rows} {self.day} have one key, {self.no_key:.0%} have "
            f"none{sample}; above {self.above:.0%}"
        )
        return f"{text} on {len(days)} days: {format_ranges(days)}" if len(days) > 1 else text


def find_skews(reads: Iterable[tuple[str, Iterable[date]]], ledgers: Ledgers) -> Iterator[Skew]:
    """What is skewed of the days that a plan reads.

    Args:
        reads: inputs, each with days of it that are read. A table may come several times.
        ledgers: those of all tables.
    """
    days_by_input: dict[str, set[date]] = {}
    for name, days in reads:
        days_by_input.setdefault(name, set()).update(days)
    for name, table_days in days_by_input.items():
        for column, above in skews_of(ledgers[name].table).items():
            shares = {
                day: day_shares
                for day in table_days
                if (day_shares := _recorded_shares(ledgers[name], day, column))
            }
            yield from _skew_above(name, column, above, shares)


def find_sampled_skews(
    table: Table, lines: Mapping[date, Sequence[Sequence[str | None]]]
) -> Iterator[Skew]:
    """What is skewed of lines that have landed.

    Args:
        table: that they are going to be rows of.
        lines: by arrival day a sample, with the values of the columns that the table watches.
    """
    for n, (column, above) in enumerate(skews_of(table).items()):
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
    """What is to be told of a column, from the shares of one key and of nulls by day."""
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
            days=tuple(to_ranges(skewed_days)),
        )


def _recorded_shares(ledger: Ledger, day: date, column: str) -> tuple[float, float] | None:
    """The shares of the most frequent key and of nulls; none if they are not on record."""
    published = ledger.current_record(day)
    if published is None or not published.rows or most_rows_of(column) not in published.numbers:
        return None
    most_rows = published.numbers[most_rows_of(column)]
    return most_rows / published.rows, published.nulls.get(column, 0) / published.rows


class DayOutcome(enum.Enum):
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


class BackfillRequest(BaseModel, frozen=True):
    """What a person asks for.

    Attributes:
        days: the days, as `FIRST...LAST`; they are those of the tables that the others are made
            of, whose days follow from them as when they are launched in the UI.
        tables: the tables to build; all if none is named.
        pilot_days: so many of the first days are built and reconciled before the rest.
        chunk_days: stages of so many days, each built and reconciled before the next; `auto` for
            stages of about the same work where runs would differ much; none for all of the rest in
            one stage.
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
    chunk_days: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto"
    max_parallel: int | None = Field(default=None, ge=1, le=7)
    write_mode: Literal["overwrite", "merge"] = "overwrite"
    rewrite: bool = False
    accept: tuple[str, ...] = ()
    reason: str = ""

    @property
    def window(self) -> Window:
        """The days asked for."""
        return Window.parse(self.days)

    def split_stages(
        self, split_evenly: Callable[[Window], Sequence[Window]] | None = None
    ) -> Iterator[tuple[str, Window]]:
        """The stages, one after another: a name and the days of each.

        Args:
            split_evenly: cuts days for `auto`; else these are one stage.
        """
        window = self.window
        if 0 < self.pilot_days < len(window):
            rest = window.start + self.pilot_days * DAY
            yield "pilot", Window(window.start, rest)
            window = Window(rest, window.end)
        if self.chunk_days == "auto":
            chunks = split_evenly(window) if split_evenly else [window]
        else:
            chunks = window.split_by_length(self.chunk_days or len(window))
        for n, chunk in enumerate(chunks, 1):
            yield (f"{n:03d}" if len(chunks) > 1 else "rest"), chunk


class Stage(BaseModel, frozen=True):
    """Days that are built and reconciled together.

    Attributes:
        name: follows the id of the plan in that of the stage's backfill.
        days: as `FIRST...LAST`.
        work: expected, in rows: see `workloads`.
    """

    name: str
    days: str
    work: int = 0


class TableForecast(BaseModel, frozen=True):
    """What will become of the days of one table, by ranges.

    Attributes:
        identical: see `DayOutcome`.
        computed: see `DayOutcome`.
        depends: see `DayOutcome`.
        lacking: see `DayOutcome`.
        final: those of them that are final.
        why: by reason, the days that are computed, or may be.
        apart: days from one partition of the table to the next.
    """

    identical: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    other_settings: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    why: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    apart: int = 1

    def format_days(self, days: Iterable[date]) -> str:
        """Days of the table, by ranges: a week after the other is one, as a day after the other."""
        return format_windows(Grain(self.apart).gapless_ranges(days))

    def days_by_reason(self) -> Iterator[tuple[DayOutcome, str, list[date]]]:
        """The days, by what will become of them and why; without a reason where none is due."""
        reasons = {
            day: reason for reason, ranges in self.why.items() for day in from_ranges(ranges)
        }
        for outcome, days in self.days_by_outcome():
            grouped: dict[str, list[date]] = {}
            for day in days:
                grouped.setdefault(reasons.get(day, ""), []).append(day)
            for reason, reason_days in grouped.items():
                yield outcome, reason, reason_days

    def days_by_outcome(self) -> Iterator[tuple[DayOutcome, list[date]]]:
        """The days, by what will become of them."""
        for outcome in DayOutcome:
            if days := from_ranges(getattr(self, outcome.name.lower())):
                yield outcome, days

    @property
    def days_to_compute(self) -> list[date]:
        """The days that can be published, and are not as they should be now."""
        return from_ranges([*self.computed, *self.depends])


class ApiCallEstimate(BaseModel, frozen=True):
    """How many calls of a service a backfill makes.

    Attributes:
        at_most: so many at most, one for each row that requests are made of.
        expected: so many, if days ask like those that are published; none if none are.
        unknown_days: days whose input is not there yet; their calls come on top.
        seconds: how long the quota makes all of these take, if nobody else calls.
        expected_seconds: the same of those that are expected.
        quota: what the service allows, in words.
        reserve: the share of it (0 to 1) that is left to the schedule and the sensors.
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
        calls: by service, the calls that it makes.
        cut: its stages, as they were cut when it was planned; of a plan of an older version, none.
        skews: the inputs that are skewed, as far as their days are published, or have landed.
        unsampled: landing files that could not be sampled for it, each with the reason.
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
    def stages(self) -> list[tuple[str, Window]]:
        """The stages, one after another: a name and the days of each."""
        saved_stages = [(stage.name, Window.parse(stage.days)) for stage in self.cut]
        return saved_stages or list(self.parameters.split_stages())

    @property
    def rewritten_final_days(self) -> dict[str, list[date]]:
        """The final days that it computes, or may, by table."""
        final_days = {
            name: sorted({*from_ranges(forecast.final)} & {*forecast.days_to_compute})
            for name, forecast in self.tables.items()
        }
        return {name: days for name, days in final_days.items() if days}

    def changes_since_planning(self, current: BackfillPlan) -> list[str]:
        """What has changed since the plan was made, in words."""
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
    """The plan's days for a reader: table, what becomes of them, why, and which they are."""
    for name, forecast in plan.tables.items():
        for outcome, reason, days in forecast.days_by_reason():
            yield name, f"{len(days)} {outcome.value}", reason, forecast.format_days(days)
        if forecast.final:
            days = from_ranges(forecast.final)
            yield name, f"of these, {len(days)} final", "", forecast.format_days(days)


def plan_facts(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """The rest of the plan for a reader."""
    request = plan.parameters
    stages = [f"{name} {window}" for name, window in plan.stages]
    yield "stages", ", ".join(stages[:4]) + (f" and {len(stages) - 4} more" if stages[4:] else "")
    if len(plan.cut) > 1:
        yield "work of a stage", _describe_stage_work(plan)
    yield (
        "runs",
        f"about {plan.runs}"
        + (f", at most {request.max_parallel} at a time" if request.max_parallel else ""),
    )
    yield "commits", f"at most {plan.commits}"
    yield "reads", f"at most {plan.files:,} files, {plan.size / 1e6:,.1f} MB"
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


def _describe_stage_work(plan: BackfillPlan) -> str:
    """The expected work of the smallest and of the largest stage: shares of all, and days."""
    total = sum(stage.work for stage in plan.cut)
    if not total:
        return "none"

    def describe_stage(stage: Stage) -> str:
        share = stage.work / total
        duration = (
            "" if plan.seconds is None else f", {timedelta(seconds=round(share * plan.seconds))}"
        )
        return f"{share:.1%} of all ({len(Window.parse(stage.days))} days{duration})"

    by_work = sorted(plan.cut, key=lambda stage: stage.work)
    return f"{describe_stage(by_work[0])} to {describe_stage(by_work[-1])}"
