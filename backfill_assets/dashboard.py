"""The lateness page: one HTML file with pictures, for people, from the rows of `arrival_lateness`.

Nothing here knows Spark or Dagster. The same rows give the same page, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from html import escape
from math import log10
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from backfill_assets.advice import Arrived, Rows, arrived, smallest_window
from backfill_assets.delays import COMPARED, lines_within, within
from backfill_assets.partitions import DAY
from backfill_assets.schemas import LATENESS
from backfill_assets.stores import open_store

DASHBOARD = "lateness_dashboard"


def write(text: str, folder: str, run_id: str) -> str:
    """Put the page in place at once, so that nobody reads half of it.

    Args:
        text: the page.
        folder: path or URL, made if need be.
        run_id: of the Dagster run: two that write at once must not write to one file.

    Returns:
        Where it is.
    """
    filesystem, root = open_store(folder)
    filesystem.create_dir(root, recursive=True)
    unfinished = f"{root}/.index.html.{run_id}"
    with filesystem.open_output_stream(unfinished) as stream:
        stream.write(text.encode())
    filesystem.move(unfinished, f"{root}/index.html")
    return f"{folder}/index.html"


# The page. Colours are of Okabe and Ito's palette, which colour-blind people can tell apart; the
# green is darker, as it is for text too.
_BLUE, _SKY, _ORANGE, _RED, _GREEN = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#007A5A"
_INK, _GREY, _GRID = "#222222", "#CCCCCC", "#E3E3E3"
_WIDTH = 1040
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_STYLE = f"""
body {{ margin: 0; background: #fff; color: {_INK}; font: 17px/1.5 {_FONT}; }}
main {{ max-width: {_WIDTH}px; margin: 0 auto; padding: 24px 20px 48px; }}
h1 {{ font-size: 30px; line-height: 1.2; margin: 0 0 4px; }}
h2 {{ font-size: 21px; margin: 40px 0 0; }}
p {{ margin: 8px 0; }}
.lead {{ font-size: 20px; }}
.said {{ border-left: 5px solid {_BLUE}; background: #EFF6FA; padding: 10px 16px; }}
.note {{ border-left: 5px solid {_RED}; background: #FCF1EA; padding: 10px 16px; }}
.small {{ color: #555; font-size: 15px; }}
figure {{ margin: 8px 0 0; overflow-x: auto; }}
figure > div {{ min-width: 760px; }}
dt {{ font-weight: 600; margin-top: 10px; }}
dd {{ margin: 0; }}
"""
# What makes it sure that the page asks nobody for anything: plotly.js knows addresses of maps.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def page(rows: pa.Table, window_days: int, version: int) -> str:
    """The dashboard as one HTML page that needs nothing from elsewhere.

    The same table gives the same page byte for byte: it has no clock and no random ids.

    Args:
        rows: of `arrival_lateness`, at least one.
        window_days: the reprocessing window W that is configured.
        version: of the table that the rows are from.
    """
    days = sorted(rows.to_pylist(), key=lambda row: row["log_date"])
    lines = sum(row["lines"] for row in days)
    known = arrived(days, window_days)
    first, last = days[0]["log_date"], days[-1]["log_date"]
    source = f"Log days {first} to {last}" if len(days) > 1 else f"Log day {first}"
    sections = [
        "<h1>How late do order lines arrive?</h1>",
        f'<p class="small">{source}, from version {version} of {escape(LATENESS.name)}. Drag '
        "across a picture to enlarge a part of it; double-click to see all again.</p>",
        f'<p class="lead">{_in_words(days, lines, window_days)}</p>',
        *_notes(days, window_days),
        "<h2>Which window catches how much?</h2>",
        *_windows_section(known, window_days),
        f'<p class="said">{_advice(known, window_days)}</p>',
        "<h2>Late lines by log day</h2>",
        _chart("late", _late_chart(days, window_days)),
        "<h2>How late the late lines are, by log day</h2>",
        f'<p class="small">{_delays_in_words(days)}</p>',
        _chart("delays", _delay_chart(days, window_days)),
        "<h2>Superseded and rejected lines by log day</h2>",
        _chart("others", _others_chart(days)),
        "<h2>What the words mean</h2>",
        _terms(window_days),
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>How late do order lines arrive?</title>\n<style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>",
            *sections,
            "</main>\n</body>\n</html>\n",
        ]
    )


def _in_words(rows: Rows, lines: int, window_days: int) -> str:
    days = _many(len(rows), "log day")
    rejected = sum(row["rejected_lines"] for row in rows)
    superseded = sum(row["superseded_lines"] for row in rows)
    rest = (
        f"{_many(superseded, 'line')} made another version of an order obsolete; "
        f"{_many(rejected, 'more line')} could not be read and {_were(rejected)} rejected."
    )
    if not lines:
        return f"No lines on {days}. {rest}"
    late = sum(row["late_lines"] for row in rows)
    missed = sum(_missed(row, window_days) for row in rows)
    amount = sum(row["beyond_amount"] for row in rows)
    window = f"the window of {_many(window_days, 'day')} had closed"
    if not late:
        said = "<strong>None</strong> came late."
    elif not missed:
        said = f"{_bold(late, lines)} came late; <strong>none</strong> came after {window}."
    else:
        said = (
            f"{_bold(late, lines)} came late; {_bold(missed, lines)} came after {window}, with "
            f"amounts that add up to <strong>{amount:,.2f}</strong>."
        )
    return f"<strong>{_many(lines, 'line')}</strong> on {days}. {said} {rest}"


def _bold(part: int, whole: int) -> str:
    return f"<strong>{_up(part, whole)}</strong> ({part:,})"


def _missed(row: Mapping[str, Any], window_days: int) -> int:
    """Lines that a window does not take in, whatever window was configured at the time."""
    return row["lines"] - lines_within(row, window_days)


def _notes(rows: Rows, window_days: int) -> Iterator[str]:
    """What a reader must know before believing the figures."""
    missing = (rows[-1]["log_date"] - rows[0]["log_date"]).days + 1 - len(rows)
    if missing:
        yield (
            f'<p class="note">{_many(missing, "log day")} in between {_were(missing)} not measured '
            "and therefore in no figure.</p>"
        )
    other = sum(_missed(row, window_days) != row["beyond_lines"] for row in rows)
    if other:
        yield (
            f'<p class="note">At least {_many(other, "log day")} {_were(other)} measured when '
            "another window was configured: the amounts after the window and the superseded "
            "versions are still those of that window. Materialize "
            f"{escape(LATENESS.name)} for all days again.</p>"
        )


def _advice(known: Arrived, window_days: int) -> str:
    if not known.days:
        return (
            "<strong>Too little is measured to advise.</strong> An order day tells how late its "
            f"lines come once it and the {known.needed - 1} log days after it are measured, and "
            f"there is no such day yet: it takes {known.needed} log days in a row."
        )
    days = f"{_many(len(known.days), 'order day')} {_span(known.days)}"
    lines, missed = (sum(known.lines.values()), _beyond(known.lines, window_days))
    if not lines:
        return f"The {days} had no lines, so there is nothing to say about windows."
    said = [_enough(known.lines, "lines")]
    caught = f"{_down(lines - missed, lines)} of the lines"
    if cents := sum(known.cents.values()):
        said.append(_enough(known.cents, "money"))
        share = _down(cents - _beyond(known.cents, window_days), cents)
        caught += f" and {share} of the money"
    return (
        f"{' '.join(said)} The configured window of {_many(window_days, 'day')} catches {caught}; "
        f"{_many(missed, 'line')} came after it. All shares are of the {_many(lines, 'line')} of "
        f"the {days}: the days that are measured together with the {known.needed - 1} log days "
        "after them, so that a late line had the time to come."
    )


def _beyond(by_delay: Mapping[int, int], window_days: int) -> int:
    return sum(by_delay.values()) - within(by_delay, window_days)


def _span(days: Sequence[date]) -> str:
    return f"{days[0]} to {days[-1]}" if len(days) > 1 else f"{days[0]}"


def _enough(by_delay: Mapping[int, int], what: str) -> str:
    enough, most = smallest_window(by_delay, 999), smallest_window(by_delay, 990)
    longest = COMPARED[-1]
    if enough is not None:
        said = f"<strong>A window of {_many(enough, 'day')} catches 99.9 % of the {what}"
        said += "</strong>" if enough == 0 else ", and no shorter one does.</strong>"
        said += " (0 days: only what comes on the very day)." if enough == 0 else ""
    else:
        share = _down(within(by_delay, longest), sum(by_delay.values()))
        said = (
            f"<strong>No window of up to {longest} days catches 99.9 % of the {what}</strong>; one "
            f"of {longest} days catches {share}."
        )
    if most is not None and most != enough:
        said += f" For 99 % it takes {_many(most, 'day')}."
    return said


def _windows_section(known: Arrived, window_days: int) -> Iterator[str]:
    if any(known.lines.values()):
        yield (
            '<p class="small">Share of the lines and of the money, in percent, that a window of W '
            "days takes in. The scale does not start at zero, so that small differences show.</p>"
        )
        yield _chart("windows", _windows_chart(known, window_days))


def _windows_chart(known: Arrived, window_days: int) -> go.Figure:
    enough = smallest_window(known.lines, 999)
    marks: dict[int, tuple[str, str]] = {}
    if window_days in COMPARED:
        marks[window_days] = (_RED, "configured")
    if enough is not None:
        what = "catches 99.9 % of the lines"
        text = f"configured, and {what}" if enough == window_days else what
        marks[enough] = (_GREEN, text)
    figure, lowest = go.Figure(), 100.0
    for name, by_delay, colour, symbol in (
        ("money", known.cents, _ORANGE, "diamond"),
        ("lines", known.lines, _BLUE, "circle"),
    ):
        whole = sum(by_delay.values())
        if not whole:  # lines without amounts
            continue
        caught = [within(by_delay, w) for w in COMPARED]
        lowest = min(lowest, 100 * caught[0] / whole)
        figure.add_scatter(
            name=name,
            x=list(COMPARED),
            y=[100 * n / whole for n in caught],
            # Both curves with numbers would write one over the other.
            mode="lines+markers+text" if name == "lines" else "lines+markers",
            text=[_down(n, whole).removesuffix(" %") for n in caught],
            # A curve that flattens leaves its lower right free.
            textposition="bottom right",
            textfont={"size": 13},
            cliponaxis=False,
            line={"color": colour, "width": 2.5},
            marker={
                "size": [15 if w in marks else 9 for w in COMPARED],
                "color": [marks[w][0] if w in marks else colour for w in COMPARED],
                "symbol": symbol,
                "opacity": 1,
            },
            hovertemplate=f"window of %{{x}} days: %{{text}} % of the {name}<extra></extra>",
        )
    bottom, step = _zoom(lowest)
    for n, (w, (colour, text)) in enumerate(marks.items()):
        # Away from the other mark, unless the text would leave the picture.
        left = w > 10 or (w == min(marks) and len(marks) > 1 and w > 3)
        figure.add_vline(
            w, line={"color": colour, "width": 1.5, "dash": "dash"}, opacity=1, layer="below"
        )
        figure.add_annotation(
            x=w,
            xanchor="right" if left else "left",
            xshift=-6 if left else 6,
            # One above the other, as the two may be neighbours.
            y=0.02 + 0.08 * n,
            yref="paper",
            yanchor="bottom",
            text=f"{_many(w, 'day')}: {text}",
            font={"color": colour},
            bgcolor="white",
            showarrow=False,
        )
    figure.update_xaxes(
        title="window W in days",
        tickvals=list(COMPARED),
        range=[-0.5, COMPARED[-1] + 1],
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title="share caught",
        range=[bottom - step, 100 + step / 4],
        tick0=100,
        dtick=step,
        ticksuffix=" %",
        zeroline=False,
    )
    return figure.update_layout(height=440, showlegend=True)


def _zoom(lowest: float) -> tuple[float, float]:
    """The bottom of a scale that ends at 100 %, and the distance of its few ticks."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        ticks = -(-(100 - lowest) // step)
        if ticks <= 6:
            return 100 - max(ticks, 1) * step, step
    return 0, 20


def _late_chart(rows: Rows, window_days: int) -> go.Figure:
    missed = [_missed(row, window_days) for row in rows]
    within = [row["late_lines"] - n for row, n in zip(rows, missed, strict=True)]
    window = _many(window_days, "day")
    figure = go.Figure()
    for name, counts, colour in (
        (f"late, within the window of {window}", within, _SKY),
        ("beyond the window", missed, _RED),
    ):
        figure.add_trace(_bars(rows, counts, name, colour))
    _day_axis(figure, rows)
    _count_axis(figure, max(row["late_lines"] for row in rows), "lines")
    return figure.update_layout(barmode="stack", height=360)


_SPREAD = 60


def _longest(rows: Rows) -> int:
    """The longest delay of all, in days; 0 without late lines."""
    return max(row["delay_days_max"] or 0 for row in rows)


def _delays_in_words(rows: Rows) -> str:
    said = "Days between the day of an order and its log day, of the late lines only."
    if not _longest(rows):
        return f"{said} No line was late."
    said += " A log day without late lines has no mark."
    return f"{said} The scale is logarithmic." if _longest(rows) > _SPREAD else said


def _delay_chart(rows: Rows, window_days: int) -> go.Figure:
    days, longest = _dates(rows), _longest(rows)
    delays = {n: [row[f"delay_days_{n}"] for row in rows] for n in ("max", "p95", "p50")}
    size = 4 if len(rows) > 200 else 6 if len(rows) > 60 else 9
    figure = go.Figure()
    figure.add_trace(_bars(rows, delays["max"], "longest", _GREY))
    for column, name, colour, symbol in (
        ("p95", "95 % are this late at most", _ORANGE, "diamond"),
        ("p50", "half are this late at most (median)", _BLUE, "circle"),
    ):
        marker = {"color": colour, "symbol": symbol, "size": size, "opacity": 1}
        figure.add_scatter(x=days, y=delays[column], name=name, mode="markers", marker=marker)
    _day_axis(figure, rows)
    top = max(longest, 1) + 0.5
    if window_days + 1 <= 2 * top:
        top = max(top, window_days + 1)
        figure.add_scatter(
            x=list(figure.layout.xaxis.range),
            # A delay of W days is the last within the window.
            y=[window_days + 0.5] * 2,
            name=f"above this line: beyond the window of {_many(window_days, 'day')}",
            mode="lines",
            line={"color": _RED, "width": 2, "dash": "dash"},
            hoverinfo="skip",
        )
    if longest > _SPREAD:
        # A few lines of long ago would press all others flat.
        figure.update_yaxes(type="log", tickformat=",", title="days", nticks=8)
        figure.update_yaxes(range=[log10(0.5), log10(top * 1.3)])
    else:
        _count_axis(figure, top, "days")
        figure.update_yaxes(range=[0, top * 1.05])
    return figure.update_layout(height=420)


def _others_chart(rows: Rows) -> go.Figure:
    parts = (("superseded", _BLUE), ("rejected", _ORANGE))
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.14,
        subplot_titles=["superseded versions of orders", "rejected lines"],
    )
    for n, (name, colour) in enumerate(parts, 1):
        counts = [row[f"{name}_lines"] for row in rows]
        figure.add_trace(_bars(rows, counts, name, colour), row=n, col=1)
        _count_axis(figure, max(counts), "lines", row=n)
    _day_axis(figure, rows)
    return figure.update_layout(height=460, showlegend=False)


def _dates(rows: Rows) -> list[str]:
    return [str(row["log_date"]) for row in rows]


def _bars(rows: Rows, counts: Sequence[int | None], name: str, colour: str) -> go.Bar:
    """A bar a day, without the outline that would cover one of a pixel's width."""
    return go.Bar(
        x=_dates(rows),
        y=counts,
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        # In milliseconds: of a single day, plotly does not know how wide a day is.
        width=0.85 * (DAY / timedelta(milliseconds=1)),
    )


def _day_axis(figure: go.Figure, rows: Rows) -> None:
    """Whole days, with some room around them where there are few."""
    first, last = rows[0]["log_date"], rows[-1]["log_date"]
    span = (last - first).days + 1
    room = max(0, 8 - span) // 2 + 0.5
    figure.update_xaxes(
        range=[_moment(first, -room), _moment(last, room)], showgrid=False, hoverformat="%Y-%m-%d"
    )
    if span <= 14:
        ticks = [str(first + n * DAY) for n in range(span)]
        figure.update_xaxes(tickvals=ticks, tickformat="%b %-d<br>%Y")


def _moment(day: date, days: float) -> str:
    return str(datetime.combine(day, time()) + days * DAY)


def _count_axis(figure: go.Figure, most: float, title: str, row: int | None = None) -> None:
    """From zero, in whole numbers."""
    where = {"row": row} if row else {}
    figure.update_yaxes(title=title, rangemode="tozero", tickformat=",", **where)
    if most <= 6:
        figure.update_yaxes(dtick=1, **where)
    if not most:
        figure.update_yaxes(range=[0, 1.2], **where)


def _chart(name: str, figure: go.Figure) -> str:
    figure.update_layout(
        template="none",
        font={"family": _FONT, "size": 14, "color": _INK},
        margin={"l": 80, "r": 20, "t": 40, "b": 60},
        hoverlabel={"namelength": -1},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        hovermode="closest" if name == "windows" else "x unified",
    )
    figure.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True, title_standoff=14)
    # Invisible ticks keep the labels below clear of the zero beside them.
    figure.update_xaxes(ticks="outside", ticklen=7, tickcolor="rgba(0,0,0,0)")
    html = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        # Its own would be a random one.
        div_id=f"chart-{name}",
        config={"displayModeBar": False, "responsive": True},
    )
    return f"<figure>{html}</figure>"


def _terms(window_days: int) -> str:
    days = _many(window_days, "day")
    terms = {
        "Log day": "The day on which a line arrived, or the next if its own time lies in that.",
        "Late": "A line that was logged a day or more after the day of its order.",
        "Beyond the window": f"A line that was logged more than {days} after the day of its order, "
        "too late to be taken into that day.",
        "Superseded": "A version of an order that a line made obsolete. Each line of an order that "
        f"was known already, by its own log day or the {days} before it, makes one so.",
        "Rejected": "A line that could not be read as an order. It is kept with the reason, and is "
        "none of the lines that the shares are of.",
        "Order day": "The day on which the order of a line happened, in the business time zone.",
        "Money": "The sum of the lines' amounts without their signs: a refund that is late does "
        "not make up for a sale that is.",
        "Shares": "Of what is caught, rounded down; of what is late or missed, up; to 0.01 %.",
    }
    return "".join(
        ["<dl>", *(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in terms.items()), "</dl>"]
    )


def _down(part: int, whole: int) -> str:
    """A share in percent that says 100 only of all."""
    return _hundredths(part * 10_000 // whole)


def _up(part: int, whole: int) -> str:
    """A share in percent that says 0 only of none."""
    return _hundredths(-(-part * 10_000 // whole))


def _hundredths(share: int) -> str:
    if share in (0, 10_000):
        return f"{share // 100} %"
    return f"{share // 100}.{share % 100:02d} %"


def _many(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
