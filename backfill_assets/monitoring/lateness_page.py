"""The lateness page: which window catches how much, as figures, charts and one HTML file.

Nothing here knows Spark, Dagster or the page.

Places are in percent of a picture, from its upper left corner: a picture takes any width, and its
words keep their size. Marks are SVG paths on a grid of one unit a day (or a day of the window) by
100. How they look is the template's.

Nothing here knows Spark or Dagster. The same rows give the same page, byte for byte: it has no
clock and no random ids. What the page looks like is in `templates/lateness.html.j2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil, log10
from typing import Any

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined

from backfill_assets.calendar.late_data import COMPARED_WINDOWS, lines_within, total_within
from backfill_assets.calendar.partitions import DAY
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source

#: Rows of `models.ArrivalLateness`, as they come from the table.
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class LatenessFigures:
    """What is known of the event days that had the time to be known.

    Attributes:
        needed: so many log days an event day needs, itself the first.
        days: the event days, ascending.
        lines: of these event days, by delay in days from when the source's lines usually arrive.
        cents: the amounts of these lines without their signs, in cents: a refund that is late does
            not make up for a sale that is.
    """

    needed: int
    days: Sequence[date]
    lines: Mapping[int, int]
    cents: Mapping[int, int]


def lateness_figures(rows: Rows, window_days: int, arrives_after: int = 0) -> LatenessFigures:
    """The lines by which windows are judged: only of event days that had the chance to be late.

    A log that begins with a day holds nothing late on it, and of the last days more is to come:
    counted, both would make lines look more punctual than they are. So an event day counts if it
    and as many log days after it as the longest window compared are measured, and then with all of
    its lines, those that came later still included.

    Args:
        rows: of `models.ArrivalLateness`.
        window_days: the reprocessing window W, which is compared as well.
        arrives_after: after so many days the source's lines usually arrive; windows begin then.
    """
    longest = arrives_after + max(COMPARED_WINDOWS[-1], window_days)
    measured = {row["log_date"] for row in rows}
    span = [n * DAY for n in range(longest + 1)]
    days = [day for day in sorted(measured) if all(day + later in measured for later in span)]
    settled_days, lines, cents = set(days), Counter[int](), Counter[int]()
    for row in rows:
        parts = zip(row["delays"], row["lines_by_delay"], row["amount_by_delay"], strict=True)
        for delay, count, amount in parts:
            # A delay may reach back to before all days.
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
    """The page's figures, as metadata; see `lateness_figures`."""
    lines = sum(row["lines"] for row in rows)
    figures: dict[str, int | float | str] = {"days": len(rows), "lines": lines}
    if lines:
        figures["late share"] = sum(row["late_lines"] for row in rows) / lines
    lateness = lateness_figures(rows, window_days, arrives_after)
    figures["event days compared"] = len(lateness.days)
    for by_delay, what in ((lateness.lines, ""), (lateness.cents, " of the money")):
        for per_mille, name in ((990, "99 %"), (999, "99.9 %")):
            days: int | str | None = "not known yet"
            if any(by_delay.values()):
                days = smallest_window(by_delay, per_mille)
            more = f"more than {COMPARED_WINDOWS[-1]}"
            figures[f"smallest W that catches {name}{what}"] = more if days is None else days
    return figures


def smallest_window(by_delay: Mapping[int, int], per_mille: int) -> int | None:
    """The shortest window, in days, that takes in so many of a thousand; none if none does.

    Counted in integers: 99.8999 % is not 99.9 %.

    Args:
        by_delay: lines or cents by delay in days.
        per_mille: how many of a thousand.
    """
    whole = sum(by_delay.values())
    return next(
        (w for w in COMPARED_WINDOWS if total_within(by_delay, w) * 1000 >= whole * per_mille), None
    )


#: Longer delays, in days, are drawn to a logarithmic scale: a few lines of long ago would press
#: all others flat.
LINEAR_DELAY_DAYS = 60
#: So many log days are drawn, the newest: three years. The page stays small, and a bar can be seen.
MAX_LOG_DAYS = 1_096

#: From a value to its height: 0 at the top of the picture, 100 at its bottom.
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Label:
    """Words at a place of the picture; a narrow picture does without those that are spare."""

    text: str
    x: float = 0
    y: float = 0
    spare: bool = False


@dataclass(frozen=True)
class Series:
    """Marks of one kind.

    Attributes:
        look: CSS classes: a shape (`bar`, `edge`, `dot`, `square`, `line`, `dashes`) and a colour.
        path: where the marks are.
        name: in the legend, and over the column of the table; empty for what is in neither.
        cells: the same numbers in words, one for each row of the table; empty for a help line.
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
        series: the marks, those behind first.
        keys: the heads of the table's rows.
        labels: words among the marks.
    """

    view: str
    x: Sequence[Label]
    y: Sequence[Label]
    series: Sequence[Series]
    keys: Sequence[str]
    labels: Sequence[Label] = ()


def windows_chart(lateness: LatenessFigures, window_days: int) -> Chart:
    """The share of the lines and of the money that each window takes in.

    Args:
        lateness: of event days with lines.
        window_days: the reprocessing window W that is configured.
    """
    parts = (
        ("money", lateness.cents, "orange", "square"),
        ("lines", lateness.lines, "blue", "dot"),
    )
    # Lines may be without amounts.
    kinds = [(*part, sum(part[1].values())) for part in parts if any(part[1].values())]
    bottom, step = _choose_scale(
        min(100 * total_within(by_delay, 0) / whole for _, by_delay, _, _, whole in kinds)
    )
    # Below the lowest point is room for its number.
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
        # The last are the lines: both with numbers would write one over the other.
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
    """The windows to point at: their colours, and what they are."""
    marks: dict[int, tuple[str, str]] = {}
    if window_days in COMPARED_WINDOWS:
        marks[window_days] = ("red", "configured")
    if (enough := smallest_window(lateness.lines, 999)) is not None:
        what = "catches 99.9 % of the lines"
        marks[enough] = ("green", f"configured, and {what}" if enough == window_days else what)
    return marks


def _choose_scale(lowest: float) -> tuple[float, float]:
    """The bottom of a scale that ends at 100 %, and the distance of its few ticks."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        ticks = -(-(100 - lowest) // step)
        if ticks <= 6:
            return 100 - max(ticks, 1) * step, step
    return 0, 20


def late_chart(rows: Rows, window_days: int, arrives_after: int) -> Chart:
    """The late lines of each log day, those beyond the window on top."""
    beyond = [row["lines"] - lines_within(row, arrives_after + window_days) for row in rows]
    inside = [row["late_lines"] - n for row, n in zip(rows, beyond, strict=True)]
    marks = [
        ("bar sky", f"late, within the window of {format_count(window_days, 'day')}", inside),
        ("bar red", "beyond the window", beyond),
    ]
    return _log_day_chart(rows, marks, _linear_axis(max(row["late_lines"] for row in rows)))


def counts_chart(rows: Rows, name: str, title: str, colour: str) -> Chart:
    """One count of each log day.

    Args:
        rows: of `models.ArrivalLateness`.
        name: of the column `<name>_lines`.
        title: what is counted.
        colour: of the bars, as a CSS class.
    """
    counts = [row[f"{name}_lines"] for row in rows]
    return _log_day_chart(rows, [(f"bar {colour}", title, counts)], _linear_axis(max(counts)))


def longest_delay(rows: Rows) -> int:
    """The longest delay of all, in days; 0 without late lines."""
    return max(row["delay_days_max"] or 0 for row in rows)


def delays_chart(rows: Rows, window_days: int) -> Chart:
    """How late the late lines of each log day are."""
    most, p95, p50 = ([row[f"delay_days_{n}"] for row in rows] for n in ("max", "p95", "p50"))
    marks = [
        ("bar pale", "longest", most),
        ("edge grey", "", most),
        ("square orange", "95 % are this late at most", p95),
        ("dot blue", "half are this late at most (median)", p50),
    ]
    longest = longest_delay(rows)
    top, end = max(longest, 1) + 0.5, []
    # Where all is far below the end of the window, its line would press it flat.
    if window_days + 1 <= 2 * top:
        top = max(top, window_days + 1)
        # A delay of W days is the last within the window.
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
    """A chart over log days, with room around few of them.

    Args:
        rows: of `models.ArrivalLateness`, by log day.
        marks: looks, names and values of the series; bars stand on those before.
        axis: the scale upwards, and its ticks.
        across: names and heights of lines.
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
    if shape == "edge":  # the upper one of a bar
        return f"M{_format_number(day - 0.425)} {_format_number(y)}h.85"
    # A line without a length: its caps are the mark, which keeps its shape at any width.
    return f"M{day} {_format_number(y)}h0"


def _day_ticks(first: date, last: date) -> Sequence[date]:
    """At most eight days to write below the axis; of long spans the first days of months."""
    days = [first + n * DAY for n in range((last - first).days + 1)]
    for step in (1, 2, 7, 14):
        if len(days) <= 8 * step:
            return days[::step]
    months = [day for day in days if day.day == 1]
    return months[:: ceil(len(months) / 8)]


def _linear_axis(most: float) -> tuple[Scale, list[Label]]:
    """A scale from zero in whole numbers, and its ticks."""
    steps = (n * 10**power for power in range(15) for n in (1, 2, 5))
    step = next(step for step in steps if most <= 6 * step)
    top = max(ceil(most / step), 1) * step

    def to_height(value: float) -> float:
        return 100 - 100 * value / top

    return to_height, [
        Label(f"{n:,}", y=_round_number(to_height(n))) for n in range(0, top + 1, step)
    ]


def _log_axis(top: float) -> tuple[Scale, list[Label]]:
    """A logarithmic scale from a half, and its ticks."""

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
    """A share in percent that says 100 only of all."""
    return _format_hundredths(part * 10_000 // whole)


def percent_up(part: int, whole: int) -> str:
    """A share in percent that says 0 only of none."""
    return _format_hundredths(-(-part * 10_000 // whole))


def _format_hundredths(share: int) -> str:
    if share in (0, 10_000):
        return f"{share // 100} %"
    return f"{share // 100}.{share % 100:02d} %"


def format_count(count: int, name: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


_PAGES = Environment(
    loader=PackageLoader("backfill_assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters |= {"many": format_count, "were": lambda count: "was" if count == 1 else "were"}


def render_page(table: pa.Table, source: Source, settings: Settings, version: int) -> str:
    """The dashboard as one HTML page that needs nothing from elsewhere.

    Args:
        table: rows of the table with the source's figures of lateness, at least one.
        source: the source.
        settings: the window that is configured, the business time zone, and where the UI is.
        version: of the table that the rows are from.
    """
    rows = sorted(table.to_pylist(), key=lambda row: row["log_date"])
    # As people are told it: from the day on which the lines of an event day usually arrive.
    window_days = source.policy(settings).window_days - source.arrives_after
    lateness = lateness_figures(rows, window_days, source.arrives_after)
    drawn = rows[-MAX_LOG_DAYS:]
    return _PAGES.get_template("lateness.html.j2").render(
        assets=f"{settings.ui_url}/assets",
        source=source,
        timezone=settings.timezone,
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
    """Sums over all log days, and what a reader must know before believing them."""
    # Whatever window was configured when a row was made.
    missed = [row["lines"] - lines_within(row, window_days) for row in rows]
    lines = sum(row["lines"] for row in rows)
    late = sum(row["late_lines"] for row in rows)
    return {
        "days": len(rows),
        "lines": lines,
        "late": late,
        "late_share": percent_up(late, lines) if lines else "",
        "missed": sum(missed),
        "missed_share": percent_up(sum(missed), lines) if lines else "",
        "missed_amount": f"{sum(row['beyond_amount'] for row in rows):,.2f}",
        "superseded": sum(row["superseded_lines"] for row in rows),
        "rejected": sum(row["rejected_lines"] for row in rows),
        "not_measured": (rows[-1]["log_date"] - rows[0]["log_date"]).days + 1 - len(rows),
        "other_window": sum(n != row["beyond_lines"] for n, row in zip(missed, rows, strict=True)),
    }


def _caught_by_window(by_delay: Mapping[int, int], window_days: int) -> dict[str, Any] | None:
    """What windows take in of the lines, or of the money; none of nothing.

    Args:
        by_delay: lines or cents by delay in days.
        window_days: the reprocessing window W that is configured.
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
