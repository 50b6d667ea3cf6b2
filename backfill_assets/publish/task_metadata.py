"""How long the tasks of a run took, as metadata of the days that it computed."""

from __future__ import annotations

from typing import Any

import dagster as dg

from backfill_assets.engine.task_times import TaskTimes

#: The entry that has the plot.
PLOT = "task times"
#: So many tasks have a line each; of more, the lines are spread over them.
_LINES = 12
_BAR = 30


def task_metadata(times: TaskTimes | None) -> dict[str, Any]:
    """Two numbers, which the UI plots over days, and a plot of the tasks; nothing without times."""
    if times is None:
        return {}
    return {
        "longest task seconds": round(times.longest_seconds, 3),
        "median task seconds": round(times.median_seconds, 3),
        PLOT: dg.MetadataValue.md(_task_plot(times)),
    }


def _task_plot(times: TaskTimes) -> str:
    """A line for each task, from the longest on, with a bar as long as it took."""
    last_index = len(times.seconds) - 1
    line_count = min(len(times.seconds), _LINES)
    width = len(str(times.tasks))
    rows = []
    for n in range(line_count):
        at = round(n * last_index / max(line_count - 1, 1))  # from the longest on
        seconds = times.seconds[last_index - at]
        rank = 1 + round(at * (times.tasks - 1) / max(last_index, 1))
        bar = (
            "█" * max(round(_BAR * seconds / times.longest_seconds), 1)
            if times.longest_seconds
            else ""
        )
        rows.append(f"{rank:>{width}}. {seconds:10.3f} s  {bar}".rstrip())
    head = f"The stage with the longest task had {times.tasks} task{'s' * (times.tasks != 1)}."
    return "\n".join([head, "", "```text", *rows, "```"])
