"""The pictures of the lateness page as numbers: where each mark goes, and the table behind it.

Places are in percent of a picture, from its upper left corner: a picture takes any width, and its
words keep their size. Marks are SVG paths on a grid of one unit a day (or a day of the window) by
100. How they look is the template's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from math import ceil, log10

from backfill_assets.advice import Arrived, Rows, smallest_window
from backfill_assets.delays import COMPARED, lines_within, within
from backfill_assets.partitions import DAY

#: Longer delays, in days, are drawn to a logarithmic scale: a few lines of long ago would press
#: all others flat.
SPREAD = 60
#: So many log days are drawn, the newest: three years. The page stays small, and a bar can be seen.
DRAWN = 1_096

#: From a value to its height: 0 at the top of the picture, 100 at its bottom.
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Label:
    """Words at a place of the picture.

    Attributes:
        text: the words.
        x: in percent of the width.
        y: in percent of the height, from the top.
        spare: whether a narrow picture does without it.
    """

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
        name: identifies it within the page.
        title: what it shows, in a few words.
        about: the same for who cannot see it, in a sentence.
        unit: of the vertical axis.
        across: what the horizontal axis has; empty for log days.
        view: the grid of the paths, as the `viewBox` of an SVG.
        x: ticks of the horizontal axis.
        y: ticks of the vertical axis.
        series: the marks, those behind first.
        key: what the rows of the table are by.
        keys: the heads of these rows.
        labels: words among the marks.
    """

    name: str
    title: str
    about: str
    unit: str
    across: str
    view: str
    x: Sequence[Label]
    y: Sequence[Label]
    series: Sequence[Series]
    key: str
    keys: Sequence[str]
    labels: Sequence[Label] = field(default_factory=list)


def windows_chart(known: Arrived, window_days: int) -> Chart:
    """The share of the lines and of the money that each window takes in.

    Args:
        known: of order days with lines.
        window_days: the reprocessing window W that is configured.
    """
    parts = (("money", known.cents, "orange", "square"), ("lines", known.lines, "blue", "dot"))
    # Lines may be without amounts.
    kinds = [(*part, sum(part[1].values())) for part in parts if any(part[1].values())]
    bottom, step = _zoom(min(100 * within(of, 0) / whole for _, of, _, _, whole in kinds))
    floor, top = bottom - step, 100 + step / 4
    left, right = -0.5, COMPARED[-1] + 1

    def height(percent: float) -> float:
        return 100 * (top - percent) / (top - floor)

    series, labels = [], []
    for name, of, colour, shape, whole in kinds:
        points = [(w, height(100 * within(of, w) / whole)) for w in COMPARED]
        said = [down(within(of, w), whole) for w in COMPARED]
        line = "L".join(f"{w} {_short(y)}" for w, y in points)
        series.append(Series(f"line {colour}", f"M{line}"))
        series.append(Series(f"{shape} {colour}", _dots(points), name, said))
        if name == "lines":  # both with numbers would write one over the other
            labels = [
                Label(text.removesuffix(" %"), _percent(w, left, right), _rounded(y), w % 2 == 1)
                for (w, y), text in zip(points, said, strict=True)
            ]
    for w, (colour, text) in _marks(known, window_days).items():
        series.append(Series(f"dashes {colour}", f"M{w} 0V100", f"{many(w, 'day')}: {text}"))
    ticks = [100 - n * step for n in range(round((100 - floor) / step) + 1)]
    return Chart(
        name="windows",
        title="Share caught by window",
        about="Two curves that rise with the length of the window, from 0 to "
        f"{COMPARED[-1]} days: the share of the lines and the share of the money that it catches.",
        unit="share caught",
        across="window W in days",
        view=f"{left} 0 {right - left} 100",
        x=[Label(str(w), _percent(w, left, right), spare=w % 2 == 1) for w in COMPARED],
        y=[Label(f"{_rounded(tick):g} %", y=_rounded(height(tick))) for tick in ticks],
        series=series,
        key="Window, days",
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


def late_chart(rows: Rows, window_days: int) -> Chart:
    """The late lines of each log day, those beyond the window on top."""
    beyond = [row["lines"] - lines_within(row, window_days) for row in rows]
    late = [row["late_lines"] for row in rows]
    inside = [all_late - n for all_late, n in zip(late, beyond, strict=True)]
    scale, ticks = _counted(max(late))
    name = f"late, within the window of {many(window_days, 'day')}"
    return _by_day(
        "late",
        "Late lines by log day",
        "lines",
        rows,
        ticks,
        [
            Series("bar sky", _bars(rows, inside, scale), name, _cells(inside)),
            Series(
                "bar red", _bars(rows, late, scale, inside), "beyond the window", _cells(beyond)
            ),
        ],
        f"At most {many(max(late), 'late line')} a day.",
    )


def longest_delay(rows: Rows) -> int:
    """The longest delay of all, in days; 0 without late lines."""
    return max(row["delay_days_max"] or 0 for row in rows)


def delays_chart(rows: Rows, window_days: int) -> Chart:
    """How late the late lines of each log day are."""
    longest = longest_delay(rows)
    most, p95, p50 = ([row[f"delay_days_{n}"] for row in rows] for n in ("max", "p95", "p50"))
    top = max(longest, 1) + 0.5
    # Where all is far below the end of the window, its line would press it flat.
    shown = window_days + 1 <= 2 * top
    top = max(top, window_days + 1) if shown else top
    scale, ticks = _logarithmic(top * 1.3) if longest > SPREAD else _counted(top)
    half, most_of = "half are this late at most (median)", "95 % are this late at most"
    series = [
        Series("bar pale", _bars(rows, most, scale), "longest", _cells(most)),
        Series("edge grey", _edges(_points(rows, most, scale))),
        Series("square orange", _dots(_points(rows, p95, scale)), most_of, _cells(p95)),
        Series("dot blue", _dots(_points(rows, p50, scale)), half, _cells(p50)),
    ]
    if shown:
        # A delay of W days is the last within the window.
        at = _short(scale(window_days + 0.5))
        name = f"above this line: beyond the window of {many(window_days, 'day')}"
        left, right = _sides(rows)
        series.append(Series("dashes red", f"M{left:g} {at}H{right:g}", name))
    about = f"The longest delay is {many(longest, 'day')}."
    title = "Delays of the late lines by log day, in days"
    return _by_day("delays", title, "days", rows, ticks, series, about)


def counts_chart(rows: Rows, name: str, title: str, colour: str) -> Chart:
    """One count of each log day.

    Args:
        rows: of `arrival_lateness`.
        name: of the column `<name>_lines`.
        title: what is counted.
        colour: of the bars, as a CSS class.
    """
    counts = [row[f"{name}_lines"] for row in rows]
    scale, ticks = _counted(max(counts))
    series = [Series(f"bar {colour}", _bars(rows, counts, scale), title, _cells(counts))]
    about = f"At most {max(counts):,} a day."
    return _by_day(name, f"{title.capitalize()} by log day", "lines", rows, ticks, series, about)


def _by_day(
    name: str,
    title: str,
    unit: str,
    rows: Rows,
    y: Sequence[Label],
    series: Sequence[Series],
    about: str,
) -> Chart:
    """A chart over log days."""
    first, last = rows[0]["log_date"], rows[-1]["log_date"]
    left, right = _sides(rows)
    ticks = _day_ticks(first, last)
    return Chart(
        name=name,
        title=title,
        about=f"A mark for each log day, {first} to {last}. {about}",
        unit=unit,
        across="",
        view=f"{left:g} 0 {right - left:g} 100",
        x=[
            Label(str(day), _percent((day - first).days, left, right), spare=n % 2 == 1)
            for n, day in enumerate(ticks)
        ],
        y=y,
        series=series,
        key="Log day",
        keys=[str(row["log_date"]) for row in rows],
    )


def _sides(rows: Rows) -> tuple[float, float]:
    """Where the picture begins and ends, in days from the first: with room around few days."""
    span = (rows[-1]["log_date"] - rows[0]["log_date"]).days
    room = max(0, 7 - span) // 2 + 0.5
    return -room, span + room


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


def _bars(rows: Rows, values: Sequence[int | None], scale: Scale, above: Sequence[int] = ()) -> str:
    """A bar for each day with a value, from the bottom or from the top of another."""
    first, path = rows[0]["log_date"], []
    for row, value, low in zip(rows, values, above or [0] * len(rows), strict=True):
        if value and value > low:
            foot = _short(scale(low)) if low else "100"
            path.append(f"M{(row['log_date'] - first).days} {foot}V{_short(scale(value))}")
    return "".join(path)


def _points(rows: Rows, values: Sequence[int | None], scale: Scale) -> Iterator[tuple[int, float]]:
    first = rows[0]["log_date"]
    for row, value in zip(rows, values, strict=True):
        if value is not None:
            yield (row["log_date"] - first).days, scale(value)


def _dots(points: Iterable[tuple[int, float]]) -> str:
    """Lines without a length: their caps are the dots, which keep their shape at any width."""
    return "".join(f"M{x} {_short(y)}h0" for x, y in points)


def _edges(points: Iterable[tuple[int, float]]) -> str:
    """The upper edges of bars."""
    return "".join(f"M{x - 0.425:.4g} {_short(y)}h.85" for x, y in points)


def _cells(values: Sequence[int | None]) -> list[str]:
    return ["none" if value is None else f"{value:,}" for value in values]


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
