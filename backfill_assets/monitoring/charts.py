"""The pictures of the lateness page as numbers: where each mark goes, and the table behind it.

Places are in percent of a picture, from its upper left corner: a picture takes any width, and its
words keep their size. Marks are SVG paths on a grid of one unit a day (or a day of the window) by
100. How they look is the template's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil, log10

from backfill_assets.calendar.delays import COMPARED, lines_within, within
from backfill_assets.calendar.partitions import DAY
from backfill_assets.monitoring.advice import Arrived, Rows, smallest_window

#: Longer delays, in days, are drawn to a logarithmic scale: a few lines of long ago would press
#: all others flat.
SPREAD = 60
#: So many log days are drawn, the newest: three years. The page stays small, and a bar can be seen.
DRAWN = 1_096

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


def windows_chart(known: Arrived, window_days: int) -> Chart:
    """The share of the lines and of the money that each window takes in.

    Args:
        known: of event days with lines.
        window_days: the reprocessing window W that is configured.
    """
    parts = (("money", known.cents, "orange", "square"), ("lines", known.lines, "blue", "dot"))
    # Lines may be without amounts.
    kinds = [(*part, sum(part[1].values())) for part in parts if any(part[1].values())]
    bottom, step = _zoom(min(100 * within(of, 0) / whole for _, of, _, _, whole in kinds))
    # Below the lowest point is room for its number.
    floor, top = bottom - step / 2, 100 + step / 4
    left, right = -0.5, COMPARED[-1] + 1

    def height(percent: float) -> float:
        return 100 * (top - percent) / (top - floor)

    series, labels = [], []
    for name, of, colour, shape, whole in kinds:
        points = [height(100 * within(of, w) / whole) for w in COMPARED]
        said = [down(within(of, w), whole) for w in COMPARED]
        line = "L".join(f"{w} {_short(y)}" for w, y in zip(COMPARED, points, strict=True))
        dots = "".join(_mark(shape, w, y) for w, y in zip(COMPARED, points, strict=True))
        series.append(Series(f"line {colour}", f"M{line}"))
        series.append(Series(f"{shape} {colour}", dots, name, said))
        # The last are the lines: both with numbers would write one over the other.
        labels = [
            Label(text.removesuffix(" %"), _percent(w, left, right), _rounded(y), w % 2 == 1)
            for w, y, text in zip(COMPARED, points, said, strict=True)
        ]
    for w, (colour, text) in _marks(known, window_days).items():
        series.append(Series(f"dashes {colour}", f"M{w} 0V100", f"{many(w, 'day')}: {text}"))
    ticks = [100 - n * step for n in range(round((100 - bottom) / step) + 1)]
    return Chart(
        view=f"{left} 0 {right - left} 100",
        x=[Label(str(w), _percent(w, left, right), spare=w % 2 == 1) for w in COMPARED],
        y=[Label(f"{_rounded(tick):g} %", y=_rounded(height(tick))) for tick in ticks],
        series=series,
        keys=[str(w) for w in COMPARED],
        labels=labels,
    )


def _marks(known: Arrived, window_days: int) -> Mapping[int, tuple[str, str]]:
    """The windows to point at: their colours, and what they are."""
    marks: dict[int, tuple[str, str]] = {}
    if window_days in COMPARED:
        marks[window_days] = ("red", "configured")
    if (enough := smallest_window(known.lines, 999)) is not None:
        what = "catches 99.9 % of the lines"
        marks[enough] = ("green", f"configured, and {what}" if enough == window_days else what)
    return marks


def _zoom(lowest: float) -> tuple[float, float]:
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
        ("bar sky", f"late, within the window of {many(window_days, 'day')}", inside),
        ("bar red", "beyond the window", beyond),
    ]
    return _by_day(rows, marks, _counted(max(row["late_lines"] for row in rows)))


def counts_chart(rows: Rows, name: str, title: str, colour: str) -> Chart:
    """One count of each log day.

    Args:
        rows: of `models.ArrivalLateness`.
        name: of the column `<name>_lines`.
        title: what is counted.
        colour: of the bars, as a CSS class.
    """
    counts = [row[f"{name}_lines"] for row in rows]
    return _by_day(rows, [(f"bar {colour}", title, counts)], _counted(max(counts)))


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
        name = f"above this line: beyond the window of {many(window_days, 'day')}"
        end = [(name, window_days + 0.5)]
    axis = _logarithmic(top * 1.3) if longest > SPREAD else _counted(top)
    return _by_day(rows, marks, axis, end)


def _by_day(
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
    left, right = -room, days[-1] + room
    series, feet = [], [0] * len(rows)
    for look, name, values in marks:
        shape = look.split()[0]
        path = ""
        for n, (day, value) in enumerate(zip(days, values, strict=True)):
            if value and shape == "bar":
                foot, feet[n] = feet[n], feet[n] + value
                # A logarithmic scale has no zero.
                path += f"M{day} {_short(scale(foot) if foot else 100)}V{_short(scale(feet[n]))}"
            elif value:
                path += _mark(shape, day, scale(value))
        cells = ["none" if value is None else f"{value:,}" for value in values] if name else ()
        series.append(Series(look, path, name, cells))
    for name, height in across:
        path = f"M{left:g} {_short(scale(height))}H{right:g}"
        series.append(Series("dashes red", path, name))
    return Chart(
        view=f"{left:g} 0 {right - left:g} 100",
        x=[
            Label(str(day), _percent((day - first).days, left, right), spare=n % 2 == 1)
            for n, day in enumerate(_day_ticks(first, last))
        ],
        y=y,
        series=series,
        keys=[str(row["log_date"]) for row in rows],
    )


def _mark(shape: str, day: int, y: float) -> str:
    if shape == "edge":  # the upper one of a bar
        return f"M{_short(day - 0.425)} {_short(y)}h.85"
    # A line without a length: its caps are the mark, which keeps its shape at any width.
    return f"M{day} {_short(y)}h0"


def _day_ticks(first: date, last: date) -> Sequence[date]:
    """At most eight days to write below the axis; of long spans the first days of months."""
    days = [first + n * DAY for n in range((last - first).days + 1)]
    for step in (1, 2, 7, 14):
        if len(days) <= 8 * step:
            return days[::step]
    months = [day for day in days if day.day == 1]
    return months[:: ceil(len(months) / 8)]


def _counted(most: float) -> tuple[Scale, list[Label]]:
    """A scale from zero in whole numbers, and its ticks."""
    steps = (n * 10**power for power in range(15) for n in (1, 2, 5))
    step = next(step for step in steps if most <= 6 * step)
    top = max(ceil(most / step), 1) * step

    def height(value: float) -> float:
        return 100 - 100 * value / top

    return height, [Label(f"{n:,}", y=_rounded(height(n))) for n in range(0, top + 1, step)]


def _logarithmic(top: float) -> tuple[Scale, list[Label]]:
    """A logarithmic scale from a half, and its ticks."""

    def height(value: float) -> float:
        return 100 * (log10(top) - log10(value)) / (log10(top) - log10(0.5))

    powers = [10**n for n in range(int(log10(top)) + 1)]
    return height, [Label(f"{n:,}", y=_rounded(height(n))) for n in powers]


def _percent(at: float, left: float, right: float) -> float:
    return _rounded(100 * (at - left) / (right - left))


def _rounded(number: float) -> float:
    return round(number, 2)


def _short(number: float) -> str:
    return f"{_rounded(number):g}"


def down(part: int, whole: int) -> str:
    """A share in percent that says 100 only of all."""
    return _hundredths(part * 10_000 // whole)


def up(part: int, whole: int) -> str:
    """A share in percent that says 0 only of none."""
    return _hundredths(-(-part * 10_000 // whole))


def _hundredths(share: int) -> str:
    if share in (0, 10_000):
        return f"{share // 100} %"
    return f"{share // 100}.{share % 100:02d} %"


def many(count: int, name: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"
