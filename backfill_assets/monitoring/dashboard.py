"""The lateness page: one HTML file with pictures, for people, from a source's figures.

Nothing here knows Spark or Dagster. The same rows give the same page, byte for byte: it has no
clock and no random ids. What the page looks like is in `templates/lateness.html.j2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined

from backfill_assets.calendar.delays import COMPARED_WINDOWS, lines_within, total_within
from backfill_assets.monitoring.advice import Rows, lateness_figures, smallest_window
from backfill_assets.monitoring.charts import (
    LINEAR_DELAY_DAYS,
    MAX_LOG_DAYS,
    counts_chart,
    delays_chart,
    format_count,
    late_chart,
    longest_delay,
    percent_down,
    percent_up,
    windows_chart,
)
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source

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
