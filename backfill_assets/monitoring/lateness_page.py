"""The lateness page: which window catches how many lines, as figures, charts and one HTML file.

But for its asset, pure functions without Spark, Dagster, clock and random ids: the same rows give
the same page, byte for byte. `templates/lateness.html.j2` holds the layout. Positions are in
percent of a picture, from its upper left corner, so a picture takes any width while its text keeps
its size. Marks are SVG paths on a grid of one unit a day (or a day of the window) by 100.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil, log10
from operator import add
from typing import Any

import dagster as dg
import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined

from backfill_assets.calendar.late_data import COMPARED_WINDOWS, lines_within, total_within
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.deployment import Deployment
from backfill_assets.settings import find_ui_url
from backfill_assets.spark.filesystems import folder_filesystem, replace_file
from backfill_assets.spark.frames import exact_sums
from backfill_assets.tables.sources import Source

#: Rows of `tables.source_models.ArrivalLateness`, as they come from the table.
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class LatenessFigures:
    """Delays of the lines of those event days that are measured completely.

    Attributes:
        needed: the number of log days that must be measured for an event day, itself included.
        days: the event days, ascending.
        lines: number of lines by delay, in days from when the source's lines usually arrive.
        cents: absolute amounts of these lines, in cents: a late refund does not cancel a late
            sale.
    """

    needed: int
    days: Sequence[date]
    lines: Mapping[int, int]
    cents: Mapping[int, int]


def lateness_figures(rows: Rows, window_days: int, arrives_after: int = 0) -> LatenessFigures:
    """Return the delays to judge windows by, of completely measured event days only.

    On the first log days nothing is late yet, and for the last ones more lines will come: counted,
    both would make lines look more punctual than they are. So an event day counts if it and as many
    log days after it as the longest compared window are measured; then all its lines count, also
    later ones.

    Args:
        rows: of `tables.source_models.ArrivalLateness`.
        window_days: the reprocessing window W, which is compared as well.
        arrives_after: days after which the source's lines usually arrive; windows begin then.
    """
    longest = arrives_after + max(COMPARED_WINDOWS[-1], window_days)
    measured = {row["log_date"] for row in rows}
    span = [n * DAY for n in range(longest + 1)]
    days = [day for day in sorted(measured) if all(day + later in measured for later in span)]
    settled_days, lines, cents = set(days), Counter[int](), Counter[int]()
    with exact_sums():
        for row in rows:
            parts = zip(row["delays"], row["lines_by_delay"], row["amount_by_delay"], strict=True)
            for delay, count, amount in parts:
                # A delay may reach back before the first possible date.
                if (
                    delay <= row["log_date"].toordinal()
                    and row["log_date"] - delay * DAY in settled_days
                ):
                    late = max(0, delay - arrives_after)
                    lines[late] += count
                    cents[late] += int(amount * 100)
    return LatenessFigures(longest + 1, days, lines, cents)


def key_figures(
    rows: Rows, window_days: int, arrives_after: int = 0
) -> dict[str, int | float | str]:
    """Return the page's figures as metadata; see `lateness_figures`."""
    lines = sum(row["lines"] for row in rows)
    figures: dict[str, int | float | str] = {"days": len(rows), "lines": lines}
    if lines:
        figures["late_share"] = sum(row["late_lines"] for row in rows) / lines
    lateness = lateness_figures(rows, window_days, arrives_after)
    figures["compared_event_days"] = len(lateness.days)
    for by_delay, what in ((lateness.lines, "lines"), (lateness.cents, "amount")):
        for per_mille, name in ((990, "99"), (999, "99_9")):
            days: int | str | None = "not known yet"
            if any(by_delay.values()):
                days = smallest_window(by_delay, per_mille)
            more = f"more than {COMPARED_WINDOWS[-1]}"
            figures[f"window_days_for_{name}_percent_of_{what}"] = more if days is None else days
    return figures


def smallest_window(by_delay: Mapping[int, int], per_mille: int) -> int | None:
    """Return the shortest window, in days, that catches this share; None if none does.

    Computed with integers: 99.8999 % is not 99.9 %.

    Args:
        by_delay: lines or cents by delay in days.
        per_mille: the share in thousandths.
    """
    whole = sum(by_delay.values())
    return next(
        (w for w in COMPARED_WINDOWS if total_within(by_delay, w) * 1000 >= whole * per_mille), None
    )


#: Longer delays, in days, have a logarithmic scale: a few very late lines would flatten all others.
LINEAR_DELAY_DAYS = 60
#: The newest log days that are drawn, three years: the page stays small, and bars are visible.
MAX_LOG_DAYS = 1_096

#: Maps a value to its position: 0 at the top of the picture, 100 at its bottom.
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Label:
    """Text at a position of the picture; a narrow picture omits spare ones."""

    text: str
    x: float = 0
    y: float = 0
    spare: bool = False


@dataclass(frozen=True)
class Series:
    """Marks of one kind.

    Attributes:
        look: CSS classes: a shape (`bar`, `edge`, `dot`, `square`, `line`, `dashes`) and a colour.
        path: the SVG path of the marks.
        name: in the legend, and the column head in the table; empty if in neither.
        cells: the numbers as text, one for each row of the table; empty for a help line.
    """

    look: str
    path: str
    name: str = ""
    cells: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """One picture and its table.

    Attributes:
        view: the grid of the paths, as the `viewBox` of an SVG.
        x: ticks of the horizontal axis.
        y: ticks of the vertical axis.
        series: the marks, those in the background first.
        keys: the heads of the table's rows.
        labels: text among the marks.
    """

    view: str
    x: Sequence[Label]
    y: Sequence[Label]
    series: Sequence[Series]
    keys: Sequence[str]
    labels: Sequence[Label] = ()


def windows_chart(lateness: LatenessFigures, window_days: int) -> Chart:
    """Return the chart of the share of lines and money that each window catches."""
    parts = (
        ("money", lateness.cents, "orange", "square"),
        ("lines", lateness.lines, "blue", "dot"),
    )
    # Lines may have no amounts.
    kinds = [(*part, sum(part[1].values())) for part in parts if any(part[1].values())]
    bottom, step = _choose_scale(
        min(100 * total_within(by_delay, 0) / whole for _, by_delay, _, _, whole in kinds)
    )
    # Leave room below the lowest point for its number.
    floor, top = bottom - step / 2, 100 + step / 4
    x_min, x_max = -0.5, COMPARED_WINDOWS[-1] + 1

    def to_height(share: float) -> float:
        return 100 * (top - share) / (top - floor)

    series, labels = [], []
    for name, by_delay, colour, shape, whole in kinds:
        points = [to_height(100 * total_within(by_delay, w) / whole) for w in COMPARED_WINDOWS]
        shares = [percent_down(total_within(by_delay, w), whole) for w in COMPARED_WINDOWS]
        line = "L".join(
            f"{w} {_format_number(y)}" for w, y in zip(COMPARED_WINDOWS, points, strict=True)
        )
        dots = "".join(
            _mark_path(shape, w, y) for w, y in zip(COMPARED_WINDOWS, points, strict=True)
        )
        series.append(Series(f"line {colour}", f"M{line}"))
        series.append(Series(f"{shape} {colour}", dots, name, shares))
        # Only the last series, the lines, gets numbers: those of both would overlap.
        labels = [
            Label(
                text.removesuffix(" %"), _to_percent(w, x_min, x_max), _round_number(y), w % 2 == 1
            )
            for w, y, text in zip(COMPARED_WINDOWS, points, shares, strict=True)
        ]
    for w, (colour, text) in _window_marks(lateness, window_days).items():
        series.append(
            Series(f"dashes {colour}", f"M{w} 0V100", f"{format_count(w, 'day')}: {text}")
        )
    ticks = [100 - n * step for n in range(round((100 - bottom) / step) + 1)]
    return Chart(
        view=f"{x_min} 0 {x_max - x_min} 100",
        x=[Label(str(w), _to_percent(w, x_min, x_max), spare=w % 2 == 1) for w in COMPARED_WINDOWS],
        y=[Label(f"{_round_number(tick):g} %", y=_round_number(to_height(tick))) for tick in ticks],
        series=series,
        keys=[str(w) for w in COMPARED_WINDOWS],
        labels=labels,
    )


def _window_marks(lateness: LatenessFigures, window_days: int) -> Mapping[int, tuple[str, str]]:
    """Return the windows to mark, each with colour and text."""
    marks: dict[int, tuple[str, str]] = {}
    if window_days in COMPARED_WINDOWS:
        marks[window_days] = ("red", "configured")
    if (enough := smallest_window(lateness.lines, 999)) is not None:
        what = "catches 99.9 % of the lines"
        marks[enough] = ("green", f"configured, and {what}" if enough == window_days else what)
    return marks


def _choose_scale(lowest: float) -> tuple[float, float]:
    """Return the bottom of a scale that ends at 100 %, and the distance of its ticks."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        ticks = -(-(100 - lowest) // step)
        if ticks <= 6:
            return 100 - max(ticks, 1) * step, step
    return 0, 20


def late_chart(rows: Rows, window_days: int, arrives_after: int) -> Chart:
    """Return the chart of late lines by log day, those beyond the window on top."""
    beyond = [row["lines"] - lines_within(row, arrives_after + window_days) for row in rows]
    # Lines that waited for the next arrival day may be beyond a short window, and in time.
    inside = [max(row["late_lines"] - n, 0) for row, n in zip(rows, beyond, strict=True)]
    marks = [
        ("bar sky", f"late, within the window of {format_count(window_days, 'day')}", inside),
        ("bar red", "beyond the window", beyond),
    ]
    return _log_day_chart(rows, marks, _linear_axis(max(map(add, inside, beyond))))


def counts_chart(rows: Rows, name: str, title: str, colour: str) -> Chart:
    """Return the chart of one count by log day.

    The column is `<name>_lines`; `colour` is a CSS class.
    """
    counts = [row[f"{name}_lines"] for row in rows]
    return _log_day_chart(rows, [(f"bar {colour}", title, counts)], _linear_axis(max(counts)))


def longest_delay(rows: Rows) -> int:
    """Return the longest delay of all, in days; 0 without late lines."""
    return max(row["delay_days_max"] or 0 for row in rows)


def delays_chart(rows: Rows, window_days: int) -> Chart:
    """Return the chart of the delays of late lines by log day."""
    most, p95, p50 = ([row[f"delay_days_{n}"] for row in rows] for n in ("max", "p95", "p50"))
    marks = [
        ("bar pale", "longest", most),
        ("edge grey", "", most),
        ("square orange", "95 % are this late at most", p95),
        ("dot blue", "half are this late at most (median)", p50),
    ]
    longest = longest_delay(rows)
    top, end = max(longest, 1) + 0.5, []
    # If all values are far below the end of the window, its line would flatten them.
    if window_days + 1 <= 2 * top:
        top = max(top, window_days + 1)
        # A delay of W days is still within the window.
        name = f"above this line: beyond the window of {format_count(window_days, 'day')}"
        end = [(name, window_days + 0.5)]
    axis = _log_axis(top * 1.3) if longest > LINEAR_DELAY_DAYS else _linear_axis(top)
    return _log_day_chart(rows, marks, axis, end)


def _log_day_chart(
    rows: Rows,
    marks: Sequence[tuple[str, str, Sequence[int | None]]],
    axis: tuple[Scale, Sequence[Label]],
    across: Sequence[tuple[str, float]] = (),
) -> Chart:
    """Return a chart over log days, with space around if they are few.

    Bars are stacked in the order of `marks`; `across` are horizontal lines.
    """
    scale, y = axis
    first, last = rows[0]["log_date"], rows[-1]["log_date"]
    days = [(row["log_date"] - first).days for row in rows]
    room = max(0, 7 - days[-1]) // 2 + 0.5
    x_min, x_max = -room, days[-1] + room
    series, feet = [], [0] * len(rows)
    for look, name, values in marks:
        shape = look.split()[0]
        path = ""
        for n, (day, value) in enumerate(zip(days, values, strict=True)):
            if value and shape == "bar":
                foot, feet[n] = feet[n], feet[n] + value
                # A logarithmic scale has no zero.
                path += (
                    f"M{day} {_format_number(scale(foot) if foot else 100)}"
                    f"V{_format_number(scale(feet[n]))}"
                )
            elif value:
                path += _mark_path(shape, day, scale(value))
        cells = ["none" if value is None else f"{value:,}" for value in values] if name else ()
        series.append(Series(look, path, name, cells))
    for name, height in across:
        path = f"M{x_min:g} {_format_number(scale(height))}H{x_max:g}"
        series.append(Series("dashes red", path, name))
    return Chart(
        view=f"{x_min:g} 0 {x_max - x_min:g} 100",
        x=[
            Label(str(day), _to_percent((day - first).days, x_min, x_max), spare=n % 2 == 1)
            for n, day in enumerate(_day_ticks(first, last))
        ],
        y=y,
        series=series,
        keys=[str(row["log_date"]) for row in rows],
    )


def _mark_path(shape: str, day: int, y: float) -> str:
    if shape == "edge":  # the upper edge of a bar
        return f"M{_format_number(day - 0.425)} {_format_number(y)}h.85"
    # A line of zero length: its caps are the mark, which keeps its shape at any width.
    return f"M{day} {_format_number(y)}h0"


def _day_ticks(first: date, last: date) -> Sequence[date]:
    """Return at most eight days to label on the axis; of long spans the first days of months."""
    days = [first + n * DAY for n in range((last - first).days + 1)]
    for step in (1, 2, 7, 14):
        if len(days) <= 8 * step:
            return days[::step]
    months = [day for day in days if day.day == 1]
    return months[:: ceil(len(months) / 8)]


def _linear_axis(most: float) -> tuple[Scale, list[Label]]:
    """Return a scale from zero in whole numbers, and its ticks."""
    steps = (n * 10**power for power in range(15) for n in (1, 2, 5))
    step = next(step for step in steps if most <= 6 * step)
    top = max(ceil(most / step), 1) * step

    def to_height(value: float) -> float:
        return 100 - 100 * value / top

    return to_height, [
        Label(f"{n:,}", y=_round_number(to_height(n))) for n in range(0, top + 1, step)
    ]


def _log_axis(top: float) -> tuple[Scale, list[Label]]:
    """Return a logarithmic scale from a half, and its ticks."""

    def to_height(value: float) -> float:
        return 100 * (log10(top) - log10(value)) / (log10(top) - log10(0.5))

    powers = [10**n for n in range(int(log10(top)) + 1)]
    return to_height, [Label(f"{n:,}", y=_round_number(to_height(n))) for n in powers]


def _to_percent(x: float, x_min: float, x_max: float) -> float:
    return _round_number(100 * (x - x_min) / (x_max - x_min))


def _round_number(number: float) -> float:
    return round(number, 2)


def _format_number(number: float) -> str:
    return f"{_round_number(number):g}"


def percent_down(part: int, whole: int) -> str:
    """Return a share in percent, rounded down: 100 means all."""
    return _format_hundredths(part * 10_000 // whole)


def percent_up(part: int, whole: int) -> str:
    """Return a share in percent, rounded up: 0 means none."""
    return _format_hundredths(-(-part * 10_000 // whole))


def _format_hundredths(share: int) -> str:
    if share in (0, 10_000):
        return f"{share // 100} %"
    return f"{share // 100}.{share % 100:02d} %"


def format_count(count: int, name: str) -> str:
    """Return a number with its noun, in singular or plural."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


_PAGES = Environment(
    loader=PackageLoader("backfill_assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters |= {"many": format_count, "were": lambda count: "was" if count == 1 else "were"}


def render_page(
    table: pa.Table, source: Source, deployment: Deployment, version: int, ui_url: str
) -> str:
    """Return the page as one HTML file without external resources.

    `table` has at least one row, read at `version`; `ui_url` is the address of Dagster's UI.
    """
    policy = source.policy(deployment.settings)
    rows = sorted(table.to_pylist(), key=lambda row: row["log_date"])
    # Days before the first one of the source are not there; they may have been launched.
    rows = [row for row in rows if row["log_date"] >= policy.start] or rows
    # As shown to people: counted from the day on which the lines of an event day usually arrive.
    window_days = policy.window_days - source.arrives_after
    lateness = lateness_figures(rows, window_days, source.arrives_after)
    drawn = rows[-MAX_LOG_DAYS:]
    return _PAGES.get_template("lateness.html.j2").render(
        assets=f"{ui_url}/{deployment.asset_path()}",
        source=source,
        timezone=deployment.settings.timezone,
        version=version,
        window_days=window_days,
        first=rows[0]["log_date"],
        last=rows[-1]["log_date"],
        totals=_sum_totals(rows, source.arrives_after + window_days),
        known=lateness,
        lines=_caught_by_window(lateness.lines, window_days),
        money=_caught_by_window(lateness.cents, window_days),
        longest_window=COMPARED_WINDOWS[-1],
        longest_delay=longest_delay(drawn),
        spread=LINEAR_DELAY_DAYS,
        drawn=len(drawn),
        windows=windows_chart(lateness, window_days) if any(lateness.lines.values()) else None,
        late=late_chart(drawn, window_days, source.arrives_after),
        delays=delays_chart(drawn, window_days),
        superseded=counts_chart(drawn, "superseded", "superseded versions", "blue"),
        rejected=counts_chart(drawn, "rejected", "rejected lines", "orange"),
    )


def _sum_totals(rows: Rows, window_days: int) -> dict[str, Any]:
    """Return sums over all log days, and the numbers that limit their validity."""
    # Recomputed: a row may have been built with another window.
    missed = [row["lines"] - lines_within(row, window_days) for row in rows]
    lines = sum(row["lines"] for row in rows)
    late = sum(row["late_lines"] for row in rows)
    with exact_sums():
        missed_amount = sum(row["beyond_amount"] for row in rows)
    return {
        "days": len(rows),
        "lines": lines,
        "late": late,
        "late_share": percent_up(late, lines) if lines else "",
        "missed": sum(missed),
        "missed_share": percent_up(sum(missed), lines) if lines else "",
        "missed_amount": f"{missed_amount:,.2f}",
        "superseded": sum(row["superseded_lines"] for row in rows),
        "rejected": sum(row["rejected_lines"] for row in rows),
        "not_measured": (rows[-1]["log_date"] - rows[0]["log_date"]).days + 1 - len(rows),
        "other_window": sum(n != row["beyond_lines"] for n, row in zip(missed, rows, strict=True)),
    }


def _caught_by_window(by_delay: Mapping[int, int], window_days: int) -> dict[str, Any] | None:
    """Return the shares of lines or money that windows catch; None if there are none.

    `by_delay` has lines or cents by delay in days.
    """
    whole = sum(by_delay.values())
    if not whole:
        return None
    return {
        "whole": whole,
        "enough": smallest_window(by_delay, 999),
        "most": smallest_window(by_delay, 990),
        "by_longest": percent_down(total_within(by_delay, COMPARED_WINDOWS[-1]), whole),
        "by_configured": percent_down(total_within(by_delay, window_days), whole),
        "missed": whole - total_within(by_delay, window_days),
    }


def build_lateness_page(deployment: Deployment, source: Source) -> dg.AssetsDefinition:
    """Build the asset of a source's lateness page, which has no partitions."""
    name, lateness = source.page, source.lateness
    window_days = source.policy(deployment.settings).window_days - source.arrives_after

    @dg.multi_asset(
        name=deployment.automation_name(f"draw_{name}"),
        specs=[
            dg.AssetSpec(
                deployment.asset_key(name),
                deps=[deployment.asset_key(lateness.name)],
                description="One page, for people, on how late lines arrive and which window "
                "would catch them; it opens in any browser, without a network.",
                group_name="lateness",
                owners=deployment.settings.asset_owners,
                kinds={"html"},
            )
        ],
        # Not needed here, but Dagster's command line takes a range only if every asset has this.
        backfill_policy=dg.BackfillPolicy.single_run(),
        # Parallel runs would write the same page; dagster.yaml limits the pool to one.
        pool=name,
    )
    def draw_lateness(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        url = deployment.table_url(lateness.name)
        log = load_log(url)
        of_part = [(column, "=", part) for column, part in lateness.part_values.items()]
        rows = (
            log.to_pyarrow_table(filesystem=folder_filesystem(url), filters=of_part or None)
            if log
            else None
        )
        if log is None or not rows:
            raise dg.Failure(
                f"There is nothing to show yet, {lateness.name} has no rows at {url}: materialize "
                f"it for some days, then {name} again. Nothing was written.",
                allow_retries=False,
            )
        if missing := [column for column in lateness.columns if column not in rows.column_names]:
            raise dg.Failure(
                f"{name}: {lateness.name} at {url} was made by an earlier release and has no "
                f"{', '.join(missing)}. The page is as it was. Delete that folder, as all of it "
                f"follows from {source.raw.name} and {source.rejected.name}; then materialize "
                f"{lateness.name} for all its days, and {name}.",
                allow_retries=False,
            )
        ui_url = find_ui_url(deployment.settings, context.instance.root_directory)
        text = render_page(rows, source, deployment, log.version(), ui_url)
        folder = f"{deployment.settings.warehouse}/{name}"
        replace_file(folder, "index.html", text.encode())
        path = f"{folder}/index.html"
        return dg.MaterializeResult(
            metadata={
                "path": dg.MetadataValue.url(path)
                if "://" in path
                else dg.MetadataValue.path(path),
                **key_figures(rows.to_pylist(), window_days, source.arrives_after),
                f"delta_version_{lateness.name}": log.version(),
            }
        )

    return draw_lateness
